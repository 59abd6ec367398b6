//! Removes old tombstones.
//!
//! Tombstones of an account and kind are sorted by revision, so the oldest come first: nothing else is visited. If a clock was
//! set back, a tombstone stays until those before it are old as well.

use std::ops::{Bound, ControlFlow};

use restante_core::Timestamp;
use restante_lmdb::{
    Batch, Direction, View,
    key::{KeyBuf, Pack, after_prefix},
};

use super::{
    Engine,
    schema::{
        ACCOUNT, AccountRow, HISTORY, KindRow, TombstoneRow, account_key, corrupt, decode_account_key,
        decode_history_key, tombstone_prefix,
    },
    walk::walk,
};
use crate::{AccountId, Cleaned, Error, Revision};

/// The most tombstones that one commit removes: it delays other commits by less than a millisecond.
const STEP_TOMBSTONES: usize = 512;
/// How many accounts with old tombstones are collected at a time. All accounts are visited; this bounds the memory.
const ACCOUNTS: usize = 1_024;

impl Engine {
    /// Removes tombstones from before a time, at most `limit`.
    pub(super) fn clean(&self, before: Timestamp, limit: usize) -> Result<Cleaned, Error> {
        let before = Second::of(before);
        let mut cleaned = Cleaned::default();
        let mut after = None;
        loop {
            let accounts = self.accounts_to_clean(after, before)?;
            for account in &accounts {
                self.clean_account(*account, before, limit, &mut cleaned)?;
                if cleaned.has_more {
                    return Ok(cleaned);
                }
            }
            after = accounts.last().copied();
            if accounts.len() < ACCOUNTS {
                return Ok(cleaned);
            }
        }
    }

    /// The next accounts that have old tombstones.
    fn accounts_to_clean(&self, after: Option<AccountId>, before: Second) -> Result<Vec<AccountId>, Error> {
        let after = after.map(account_key);
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut accounts = Vec::new();
        walk(&self.store, ACCOUNT, from, &mut |view, key, value| {
            let account = decode_account_key(key).ok_or_else(|| corrupt(ACCOUNT, key))?;
            let row = AccountRow::decode(value).ok_or_else(|| corrupt(ACCOUNT, key))?;
            if has_old(view, account, &row, before)? {
                accounts.push(account);
            }
            Ok(if accounts.len() < ACCOUNTS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(accounts)
    }

    /// Removes the old tombstones of an account, until the limit is reached.
    fn clean_account(
        &self,
        account: AccountId,
        before: Second,
        limit: usize,
        cleaned: &mut Cleaned,
    ) -> Result<(), Error> {
        let mut has_risen = false;
        loop {
            let room = limit.saturating_sub(cleaned.tombstones as usize).min(STEP_TOMBSTONES);
            let step = self.store.write_blocking(move |batch| clean_step(batch, account, before, room))?;
            cleaned.tombstones += step.tombstones as u64;
            cleaned.accounts += u64::from(step.has_risen && !has_risen);
            has_risen |= step.has_risen;
            if !step.has_more {
                return Ok(());
            }
            if cleaned.tombstones >= limit as u64 {
                cleaned.has_more = true;
                return Ok(());
            }
        }
    }
}

/// Tombstones from before this second, counted since 1970, are old.
#[derive(Clone, Copy)]
struct Second(u64);

impl Second {
    /// Tombstones store whole seconds: those from the same second as `before` are kept.
    fn of(before: Timestamp) -> Self {
        Self(u64::try_from(before.seconds()).unwrap_or(0))
    }
}

/// Whether an account has old tombstones.
fn has_old(view: &View<'_>, account: AccountId, row: &AccountRow, before: Second) -> Result<bool, Error> {
    for share in row.kinds.iter().filter(|share| share.tombstones > 0) {
        if !old_tombstones(view, account, share, first_left(row.is_erasing, share), before, 1)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The result of a step.
#[derive(Default)]
struct Step {
    tombstones: usize,
    has_risen: bool,
    has_more: bool,
}

/// Removes at most `room` old tombstones of an account, and raises the floors of their kinds.
fn clean_step(batch: &mut Batch<'_>, account: AccountId, before: Second, room: usize) -> Result<Step, Error> {
    let mut row = AccountRow::read(batch.view(), account)?;
    let mut step = Step::default();
    let is_erasing = row.is_erasing;
    for share in row.kinds.iter_mut().filter(|share| share.tombstones > 0) {
        let left = room - step.tombstones;
        let mut old =
            old_tombstones(batch.view(), account, share, first_left(is_erasing, share), before, left + 1)?;
        step.has_more |= old.len() > left;
        old.truncate(left);
        for tombstone in &old {
            batch.delete(HISTORY, &tombstone.key);
            step.has_risen |= tombstone.revision > share.floor;
            share.floor = share.floor.max(tombstone.revision);
        }
        share.tombstones = share.tombstones.saturating_sub(old.len() as u64);
        step.tombstones += old.len();
    }
    if step.tombstones > 0 {
        batch.put(ACCOUNT, &account_key(account), &row.encode());
    }
    Ok(step)
}

struct Tombstone {
    key: KeyBuf,
    revision: Revision,
}

/// The revision below which an account has no tombstones of a kind. They are removed in the order of their revisions, so those
/// below the floor are gone. Starting below it would cost more with each step, because deleted rows are skipped one by one as
/// long as they are in the commit log. Erasing raises the floor before it removes the tombstones.
fn first_left(is_erasing: bool, share: &KindRow) -> Revision {
    if is_erasing { Revision::default() } else { share.floor }
}

/// The first tombstones of an account and kind from a revision on that are old, at most `limit`.
fn old_tombstones(
    view: &View<'_>,
    account: AccountId,
    share: &KindRow,
    from_revision: Revision,
    before: Second,
    limit: usize,
) -> Result<Vec<Tombstone>, Error> {
    let prefix = tombstone_prefix(account, share.kind);
    let mut from = prefix.clone();
    from.put_number(from_revision.0);
    let end = after_prefix(&prefix);
    let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut rows = view.range(HISTORY, Bound::Included(&from), to, Direction::Ascending)?;
    let mut old = Vec::new();
    while old.len() < limit {
        let Some((key, value)) = rows.next()? else { break };
        let row = TombstoneRow::decode(value).ok_or_else(|| corrupt(HISTORY, key))?;
        let (revision, _) = decode_history_key(key, prefix.len()).ok_or_else(|| corrupt(HISTORY, key))?;
        if row.second >= before.0 {
            break;
        }
        old.push(Tombstone { key: KeyBuf::from_slice(key), revision });
    }
    Ok(old)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use restante_core::{ErrorKind, ManualClock};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        Change, ChangesSince, Commit, Config, EngineUrl, Position, Properties, RecordId, Touched,
        lmdb::{
            commit::commit,
            feed,
            schema::{FEED, encode_feed, feed_key, tombstone_key},
            testing::{ACCOUNT as OURS, EMAIL, MAILBOX_KIND, create, destroy, email, make, schema},
        },
    };

    const OTHER: AccountId = AccountId(3);

    struct Aging {
        _folder: TempDir,
        clock: Arc<ManualClock>,
        engine: Arc<Engine>,
    }

    impl Aging {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let clock = Arc::new(ManualClock::new(Timestamp(0)));
            let mut config = Config::new(EngineUrl::Lmdb(folder.path().to_owned()), schema());
            config.clock = clock.clone();
            let path = folder.path().to_owned();
            let opened = tokio::task::spawn_blocking(move || {
                Engine::open(&path, &config, crate::open::Purpose::Serve)
            })
            .await;
            let engine = Arc::new(opened.unwrap().unwrap());
            Self { _folder: folder, clock, engine }
        }

        /// Creates some emails, and destroys them again in a given second.
        async fn destroy_at(&self, second: i64, emails: u64) {
            let ids = make(&self.engine, (0..emails).map(|n| create(email(1, n)))).await;
            self.clock.set(Timestamp::from_seconds(second));
            make(&self.engine, ids.into_iter().map(destroy)).await;
        }

        async fn clean(&self, before: i64, limit: usize) -> (u64, u64, bool) {
            let engine = self.engine.clone();
            let cleaned =
                tokio::task::spawn_blocking(move || engine.clean(Timestamp::from_seconds(before), limit));
            let cleaned = cleaned.await.unwrap().unwrap();
            assert_eq!(self.engine.check(&|_, _| {}).unwrap().findings, []);
            (cleaned.tombstones, cleaned.accounts, cleaned.has_more)
        }

        fn destroyed_since(&self, since: u64) -> Result<usize, ErrorKind> {
            let since = ChangesSince { kind: Some(EMAIL), since: Revision(since), limit: 4_096 };
            let changes = self.engine.changes(OURS, &since);
            changes.map(|changes| changes.destroyed.len()).map_err(|error| error.kind())
        }
    }

    #[tokio::test]
    async fn what_is_old_goes_and_the_floor_rises_to_it() {
        let aging = Aging::new().await;
        for second in [100, 200, 300] {
            aging.destroy_at(second, 2).await; // in revisions 2, 4 and 6
        }
        assert_eq!(aging.clean(100, 99).await, (0, 0, false), "not before its second is over");
        assert_eq!(aging.destroyed_since(1), Ok(2));
        assert_eq!(aging.clean(201, 99).await, (4, 1, false));
        assert_eq!(aging.destroyed_since(3), Err(ErrorKind::NotFound));
        assert_eq!(aging.destroyed_since(4), Ok(0));
        assert_eq!(aging.destroyed_since(5), Ok(2));
        assert_eq!(aging.clean(201, 99).await, (0, 0, false));
        assert_eq!(aging.clean(i64::MAX, 99).await, (2, 1, false));
        assert_eq!(aging.destroyed_since(6), Ok(0));
    }

    #[tokio::test]
    async fn a_limit_ends_it_and_the_rest_goes_later() {
        let aging = Aging::new().await;
        aging.destroy_at(100, 2 * STEP_TOMBSTONES as u64).await;
        let more = STEP_TOMBSTONES + 100;
        assert_eq!(aging.clean(200, 0).await, (0, 0, true));
        assert_eq!(aging.clean(200, more).await, (more as u64, 1, true));
        let left = (STEP_TOMBSTONES - 100) as u64;
        // The floor was raised to their revision in the previous call.
        assert_eq!(aging.clean(200, left as usize).await, (left, 0, false));
        assert_eq!(aging.clean(200, 1).await, (0, 0, false));
    }

    #[tokio::test]
    async fn kinds_and_accounts_have_floors_of_their_own() {
        let aging = Aging::new().await;
        aging.destroy_at(100, 3).await;
        let mailbox = || Change::Create {
            kind: MAILBOX_KIND,
            body: crate::Body::default(),
            properties: Properties::default(),
        };
        for account in [OURS, OTHER] {
            let id = commit(&aging.engine, account, Commit::of([mailbox()])).await.unwrap().created[0];
            let gone = Change::Destroy { kind: MAILBOX_KIND, id };
            commit(&aging.engine, account, Commit::of([gone])).await.unwrap();
        }
        assert_eq!(aging.clean(101, 99).await, (5, 2, false));
        let row = aging.engine.store.read(|view| AccountRow::read(view, OURS)).unwrap();
        assert_eq!((row.kind(EMAIL).floor, row.kind(MAILBOX_KIND).floor), (Revision(2), Revision(4)));
    }

    /// Erasing raises the floor above tombstones that it has not removed yet.
    #[tokio::test]
    async fn tombstones_of_a_half_erased_account_go_too() {
        let aging = Aging::new().await;
        aging.destroy_at(100, 2).await;
        make(&aging.engine, [create(email(1, 3))]).await;
        let engine = aging.engine.clone();
        let erased = tokio::task::spawn_blocking(move || engine.erase(OURS, 1)).await.unwrap().unwrap();
        assert!(erased.has_more);
        assert_eq!(aging.clean(200, 99).await, (2, 0, false));
    }

    #[tokio::test]
    async fn a_clock_that_was_set_back_keeps_tombstones_longer() {
        let aging = Aging::new().await;
        aging.destroy_at(300, 1).await;
        aging.destroy_at(100, 1).await;
        assert_eq!(aging.clean(200, 99).await, (0, 0, false));
        assert_eq!(aging.clean(301, 99).await, (2, 1, false));
    }

    #[tokio::test]
    async fn more_accounts_than_are_looked_for_at_a_time_are_all_cleaned() {
        let aging = Aging::new().await;
        let accounts = 2 * ACCOUNTS as u64 + 10;
        let filled = aging.engine.store.write(move |batch| {
            assert_eq!(feed::position(batch.view())?, Position(0));
            for n in 1..=accounts {
                let (account, revision) = (AccountId(n as u32), Revision(2));
                let mut row = AccountRow {
                    revision,
                    next_id: RecordId(2),
                    position: Position(n),
                    ..AccountRow::default()
                };
                (row.kind_mut(EMAIL).state, row.kind_mut(EMAIL).tombstones) = (revision, 1);
                let tombstone = TombstoneRow { created: Revision(1), second: 100 };
                batch.put(ACCOUNT, &account_key(account), &row.encode());
                batch.put(
                    HISTORY,
                    &tombstone_key(account, EMAIL, revision, RecordId(1)),
                    &tombstone.encode(),
                );
                let position = Position(n);
                let touched = Touched { position, account, revision, committed_at: Timestamp(0) };
                batch.put(FEED, &feed_key(position), &encode_feed(&touched));
            }
            Ok(())
        });
        filled.await.unwrap();
        assert_eq!(aging.clean(200, usize::MAX).await, (accounts, accounts, false));
    }
}
