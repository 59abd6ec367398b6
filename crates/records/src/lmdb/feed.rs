//! The feed of all accounts, and the checkpoints of followers.

use std::ops::Bound;

use restante_lmdb::{
    Batch, Direction, View,
    key::{KeyBuf, after_prefix},
};

use crate::{
    AccountId, Checkpoint, Error, Position, Revision, Touched,
    validate::{check_checkpoint, check_follower_name, check_touched},
};

use super::{
    Engine,
    schema::{
        FEED, FOLLOWER, corrupt, decode_feed, decode_feed_key, decode_follower_key, decode_number,
        encode_number, feed_key, follower_account_key, follower_key,
    },
};

/// How many rows of a follower one commit deletes: other commits wait no longer than a millisecond for it.
const FORGOTTEN_ROWS_MAX: usize = 1_024;

/// The position of the last commit.
pub(super) fn position(view: &View<'_>) -> Result<Position, Error> {
    let mut commits = view.range(FEED, Bound::Unbounded, Bound::Unbounded, Direction::Descending)?;
    match commits.next()? {
        Some((key, _)) => decode_feed_key(key).ok_or_else(|| corrupt(FEED, key)),
        None => Ok(Position(0)),
    }
}

/// The accounts whose last commit is after a position, in the order of those commits.
pub(super) fn touched(view: &View<'_>, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
    let from = feed_key(after);
    let mut commits = view.range(FEED, Bound::Excluded(&from), Bound::Unbounded, Direction::Ascending)?;
    let mut touched = Vec::new();
    while touched.len() < limit
        && let Some((key, value)) = commits.next()?
    {
        touched.push(decode_feed(key, value).ok_or_else(|| corrupt(FEED, key))?);
    }
    Ok(touched)
}

impl Engine {
    /// [`crate::Feed::touched`].
    pub(super) fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
        check_touched(limit)?;
        self.store.read(|view| touched(view, after, limit))
    }

    /// [`crate::Feed::checkpoint`].
    pub(super) fn checkpoint(&self, follower: &str, accounts: &[AccountId]) -> Result<Checkpoint, Error> {
        check_checkpoint(follower, accounts.len())?;
        self.store.read(|view| {
            let position = Position(read_number(view, &follower_key(follower))?);
            let mut revisions = Vec::with_capacity(accounts.len());
            for account in accounts {
                let revision = read_number(view, &follower_account_key(follower, *account))?;
                revisions.push((*account, Revision(revision)));
            }
            Ok(Checkpoint { position, accounts: revisions })
        })
    }

    /// [`crate::Feed::save`].
    pub(super) async fn save(&self, follower: &str, checkpoint: &Checkpoint) -> Result<(), Error> {
        check_checkpoint(follower, checkpoint.accounts.len())?;
        let mut rows = vec![(follower_key(follower), checkpoint.position.0)];
        for (account, revision) in &checkpoint.accounts {
            rows.push((follower_account_key(follower, *account), revision.0));
        }
        let put = move |batch: &mut Batch<'_>| {
            for (key, number) in rows {
                batch.put(FOLLOWER, &key, &encode_number(number));
            }
            Ok(())
        };
        self.store.write(put).await
    }

    /// [`crate::Feed::forget`].
    pub(super) async fn forget(&self, follower: &str) -> Result<(), Error> {
        check_follower_name(follower)?;
        let prefix = follower_key(follower);
        let mut last = None;
        loop {
            let prefix = prefix.clone();
            last = self.store.write(move |batch| forget_rows(batch, &prefix, last)).await?;
            if last.is_none() {
                return Ok(());
            }
        }
    }

    /// [`crate::Feed::followers`].
    pub(super) fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        self.store.read(|view| {
            let mut followers = Vec::new();
            let mut from = KeyBuf::new();
            while let Some(follower) = next_follower(view, &from)? {
                let end = after_prefix(&follower_key(&follower.name));
                if let Some(position) = follower.position {
                    followers.push((follower.name, position));
                }
                let Some(end) = end else { break };
                from = end;
            }
            Ok(followers)
        })
    }
}

/// The number in a row of a follower; 0 when the row does not exist.
fn read_number(view: &View<'_>, key: &[u8]) -> Result<u64, Error> {
    match view.get(FOLLOWER, key)? {
        Some(value) => decode_number(value).ok_or_else(|| corrupt(FOLLOWER, key)),
        None => Ok(0),
    }
}

/// Deletes the next rows of a follower, after the key `last`; the very first row is its position. Returns the last deleted key
/// when there may be more: deleted rows are skipped one by one as long as they are in the commit log, so each step begins after
/// that key.
fn forget_rows(batch: &mut Batch<'_>, prefix: &[u8], last: Option<KeyBuf>) -> Result<Option<KeyBuf>, Error> {
    let from = last.as_deref().map_or(Bound::Included(prefix), Bound::Excluded);
    let end = after_prefix(prefix);
    let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut keys = Vec::new();
    let mut rows = batch.view().range(FOLLOWER, from, to, Direction::Ascending)?;
    while keys.len() < FORGOTTEN_ROWS_MAX
        && let Some((key, _)) = rows.next()?
    {
        keys.push(KeyBuf::from_slice(key));
    }
    drop(rows);
    for key in &keys {
        batch.delete(FOLLOWER, key);
    }
    Ok(if keys.len() < FORGOTTEN_ROWS_MAX { None } else { keys.pop() })
}

/// The first row of a follower.
struct Follower {
    name: String,
    /// `None` when the position has been deleted, but not yet all the other rows.
    position: Option<Position>,
}

fn next_follower(view: &View<'_>, from: &[u8]) -> Result<Option<Follower>, Error> {
    let from = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
    let mut rows = view.range(FOLLOWER, from, Bound::Unbounded, Direction::Ascending)?;
    let Some((key, value)) = rows.next()? else { return Ok(None) };
    let (name, account) = decode_follower_key(key).ok_or_else(|| corrupt(FOLLOWER, key))?;
    let position = match account {
        Some(_) => None,
        None => Some(Position(decode_number(value).ok_or_else(|| corrupt(FOLLOWER, key))?)),
    };
    Ok(Some(Follower { name, position }))
}

#[cfg(test)]
mod tests {
    use super::super::{
        commit::commit,
        testing::{SECOND, create, difference, email, engine, rows},
    };
    use restante_core::Timestamp;

    use super::*;
    use crate::Commit;

    #[tokio::test]
    async fn the_feed_has_one_row_for_each_account() {
        let (_folder, engine) = engine();
        for n in 0..10 {
            commit(&engine, AccountId(n % 2), Commit::of([create(email(1, u64::from(n)))])).await.unwrap();
        }
        let touched = engine.touched(Position(0), 10).unwrap();
        let expected = [(9, 0, 5), (10, 1, 5)].map(|(position, account, revision)| Touched {
            position: Position(position),
            account: AccountId(account),
            revision: Revision(revision),
            committed_at: Timestamp::from_seconds(SECOND as i64),
        });
        assert_eq!(touched, expected);
        assert_eq!(engine.touched(Position(9), 10).unwrap(), expected[1..]);
    }

    #[tokio::test]
    async fn a_follower_of_many_accounts_is_forgotten_in_steps_and_others_are_kept() {
        let (_folder, engine) = engine();
        let other = Checkpoint { position: Position(3), accounts: vec![(AccountId(1), Revision(2))] };
        engine.save("search2", &other).await.unwrap();
        let before = rows(&engine);
        let accounts = (0..2 * FORGOTTEN_ROWS_MAX as u32).map(|n| (AccountId(n), Revision(1))).collect();
        engine.save("search", &Checkpoint { position: Position(9), accounts }).await.unwrap();
        let followers = engine.followers().unwrap();
        assert_eq!(followers, [("search".to_owned(), Position(9)), ("search2".to_owned(), Position(3))]);
        engine.forget("search").await.unwrap();
        assert!(difference(&before, &rows(&engine)).is_empty());
        assert_eq!(engine.checkpoint("search2", &[AccountId(1)]).unwrap(), other);
    }

    #[tokio::test]
    async fn a_follower_that_was_forgotten_half_has_no_position() {
        let (_folder, engine) = engine();
        let checkpoint = Checkpoint { position: Position(9), accounts: vec![(AccountId(1), Revision(1))] };
        engine.save("push", &checkpoint).await.unwrap();
        engine.save("search", &checkpoint).await.unwrap();
        let key = follower_key("push");
        engine
            .store
            .write(move |batch| {
                batch.delete(FOLLOWER, &key);
                Ok(())
            })
            .await
            .unwrap();
        assert_eq!(engine.followers().unwrap(), [("search".to_owned(), Position(9))]);
        assert_eq!(engine.checkpoint("push", &[AccountId(1)]).unwrap().position, Position(0));
    }
}
