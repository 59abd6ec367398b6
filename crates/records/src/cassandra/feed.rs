//! The feed, and the checkpoints of followers.
//!
//! Each commit takes a position before it is applied, by writing a row that names the account. The account's head shows the
//! outcome: if the head has this position, the commit is the account's last one; if the head has settled the position, the commit
//! was either applied earlier or never will be. A reader stops before the first position that is not settled. If a position stays
//! open because the server that took it has died, it is settled without a commit: [`Shared::settle`].

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::Timestamp;
use scylla::value::CqlValue;

use super::{
    Shared,
    bodies::for_good,
    connect::{Bound, bigint, blob, bytes, number, text},
    head::Head,
    schema::{META_FLOOR, RESTORE_BITS, account_number, first_segment, position_of, restores_of, slot_of},
    transact::{Outcome, Rows},
};
use crate::{
    AccountId, Checkpoint, Error, Position, Revision, Touched,
    rows::{decode_number, encode_number},
    validate::{check_checkpoint, check_follower_name},
};

/// The value of `account` in the row that holds a follower's position.
const OF_POSITION: i64 = -1;
/// The prefix of the keys in `meta` that list followers.
const FOLLOWER: &str = "follower ";
/// Rows of the feed that one statement reads.
const ROWS: usize = 512;
const AT_ONCE: usize = 32;
/// Rows of a checkpoint that one statement reads.
const NUMBERS: usize = 500;

const SLICE: &str = "SELECT slot, account, done FROM feed \
     WHERE store = ? AND segment = ? AND slot > ? LIMIT ?";
const DONE: &str = "UPDATE feed SET done = true WHERE store = ? AND segment = ? AND slot = ?";
const DROP: &str = "DELETE FROM feed USING TIMESTAMP ? WHERE store = ? AND segment = ? AND slot = ?";
const NUMBER: &str = "SELECT account, number FROM follower WHERE store = ? AND name = ? AND account IN ?";
// A number is never empty, so these conditions always hold. Cassandra orders conditional batches one after the other, regardless
// of the clocks of the nodes. A plain write from a node with a slow clock would stay invisible, hidden by an earlier write from a
// node whose clock is ahead.
const SAVE_POSITION: &str =
    "UPDATE follower SET number = ? WHERE store = ? AND name = ? AND account = -1 IF number != 0x";
const FORGET_POSITION: &str =
    "DELETE FROM follower WHERE store = ? AND name = ? AND account = -1 IF number != 0x";
const SAVE: &str = "INSERT INTO follower (store, name, account, number) VALUES (?, ?, ?, ?)";
const FORGET: &str = "DELETE FROM follower WHERE store = ? AND name = ?";
const LIST: &str = "INSERT INTO meta (store, key, value) VALUES (?, ?, ?)";
const LISTED: &str = "SELECT value FROM meta WHERE store = ? AND key >= ? AND key < ?";
const WHAT: &str = "read the feed";

/// A row of the feed.
#[derive(Clone, Copy, Debug)]
struct Intent {
    position: Position,
    account: AccountId,
    /// Whether its server has noted that the commit is visible to all servers.
    is_done: bool,
}

/// The state of a position that a commit took.
enum PositionState {
    /// The commit is the last one of its account.
    Last(Touched),
    /// A later commit followed, or the commit was never applied.
    Past,
    /// The commit may still be applied.
    Open,
}

impl PositionState {
    /// The state of a position, according to the head of the account whose commit took it.
    fn of(account: AccountId, head: &Head, position: Position) -> Self {
        if head.row.position == position {
            let committed_ms = i64::try_from(head.committed_ms).unwrap_or(0);
            let committed_at = Timestamp(committed_ms.saturating_mul(1_000_000));
            return Self::Last(Touched { position, account, revision: head.row.revision, committed_at });
        }
        if head.settled >= position { Self::Past } else { Self::Open }
    }
}

/// A part of the feed after a position.
#[derive(Debug, Default)]
pub(super) struct FeedPage {
    pub(super) touched: Vec<Touched>,
    /// All positions up to this one were looked at.
    pub(super) seen: Position,
    /// The position at which the page ends because its commit may still be applied.
    pub(super) open: Option<Position>,
}

impl Shared {
    /// The accounts whose last commit is after a position, up to the first position that is not settled.
    pub(super) async fn read_touched(&self, after: Position, limit: usize) -> Result<FeedPage, Error> {
        let mut page = FeedPage { seen: after, ..FeedPage::default() };
        let begin = after.max(Position(self.floor().await?.0.saturating_sub(1)));
        let (mut segment, mut slot) = slot_of(begin);
        loop {
            if restores_of(segment) > self.restores() {
                return Ok(page); // a position that no store has assigned
            }
            // Read before the rows: if the counter says that the segment is full, all its rows are visible.
            let counter = self.counter(segment).await?;
            if counter.is_some() {
                while page.touched.len() < limit {
                    let rows = self.intents(segment, slot).await?;
                    let is_last = rows.len() < ROWS;
                    slot = rows.last().map_or(slot, |row| slot_of(row.position).1);
                    if self.add_to(&mut page, rows, limit).await? || page.touched.len() >= limit {
                        return Ok(page);
                    }
                    if is_last {
                        break;
                    }
                }
                if page.touched.len() >= limit {
                    return Ok(page);
                }
            }
            (segment, slot) = match counter {
                Some(counter) if counter.is_full() => (segment + 1, -1),
                _ if restores_of(segment) < self.restores() => (first_segment(restores_of(segment) + 1), -1),
                _ => return Ok(page),
            };
        }
    }

    /// Adds rows to a page; returns whether the page ends there.
    async fn add_to(&self, page: &mut FeedPage, rows: Vec<Intent>, limit: usize) -> Result<bool, Error> {
        let mut states = Vec::with_capacity(rows.len());
        for row in &rows {
            states.push(self.position_state(*row));
        }
        let mut states = stream::iter(states).buffered(AT_ONCE);
        for row in &rows {
            let Some(state) = states.try_next().await? else { break };
            match state {
                PositionState::Last(touched) => page.touched.push(touched),
                PositionState::Past => {}
                PositionState::Open => {
                    page.open = Some(row.position);
                    return Ok(true);
                }
            }
            page.seen = row.position;
            if page.touched.len() >= limit {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn intents(&self, segment: u64, after: i32) -> Result<Vec<Intent>, Error> {
        let limit = CqlValue::Int(ROWS as i32);
        let values = vec![text(self.store()), bigint(segment), CqlValue::Int(after), limit];
        let mut intents = Vec::new();
        for row in &self.database.read(WHAT, SLICE, values).await? {
            let slot = number(row, 0).and_then(|slot| i32::try_from(slot).ok());
            let account = number(row, 1).and_then(|account| u32::try_from(account).ok());
            let damaged = || Error::corrupt(format!("a row of segment {segment} of the feed is damaged"));
            let (slot, account) = slot.zip(account).ok_or_else(damaged)?;
            let is_done = matches!(row.columns.get(2), Some(Some(CqlValue::Boolean(true))));
            let position = position_of(segment, slot);
            intents.push(Intent { position, account: AccountId(account), is_done });
        }
        Ok(intents)
    }

    async fn position_state(&self, row: Intent) -> Result<PositionState, Error> {
        let Intent { position, account, is_done } = row;
        // The commit of a row that is marked as done is on a quorum. For any other, a serial read brings it to a quorum if it is decided.
        let head = match is_done {
            true => self.read_head(account).await?,
            false => self.read_head_serial(account).await?,
        };
        Ok(head.map_or(PositionState::Open, |head| PositionState::of(account, &head, position)))
    }

    /// The last position up to which the outcome of every commit is known. Rows that are marked as done are skipped.
    pub(super) async fn settled_end(&self) -> Result<Position, Error> {
        let Some(last) = self.last_counter(self.restores()).await? else {
            return Ok(Position((self.restores() << RESTORE_BITS).saturating_sub(1)));
        };
        let first = last.segment.saturating_sub(1).max(first_segment(self.restores()));
        for segment in first..=last.segment {
            let mut slot = -1;
            loop {
                let rows = self.intents(segment, slot).await?;
                for row in rows.iter().filter(|row| !row.is_done) {
                    if matches!(self.position_state(*row).await?, PositionState::Open) {
                        return Ok(Position(row.position.0.saturating_sub(1)));
                    }
                }
                match rows.last() {
                    Some(row) if rows.len() == ROWS => slot = slot_of(row.position).1,
                    _ => break,
                }
            }
        }
        Ok(last.last())
    }

    /// Settles all open positions of a range: none of their commits can be applied afterwards, because a head that has settled a
    /// position refuses a commit that was computed before.
    pub(super) async fn settle(&self, from: Position, to: Position) -> Result<(), Error> {
        let mut at = Position(from.0.saturating_sub(1));
        let (mut segment, _) = slot_of(from);
        while segment <= slot_of(to).0 {
            let slot = if slot_of(at).0 == segment { slot_of(at).1 } else { -1 };
            let rows = self.intents(segment, slot).await?;
            let is_last = rows.len() < ROWS;
            for row in rows {
                at = row.position;
                if at > to {
                    return Ok(());
                }
                if matches!(self.position_state(row).await?, PositionState::Open) {
                    self.settle_one(row).await?;
                }
            }
            if is_last {
                segment += 1;
            }
        }
        Ok(())
    }

    async fn settle_one(&self, row: Intent) -> Result<(), Error> {
        let deadline = self.database.deadline();
        loop {
            let before = self.read_head_serial(row.account).await?;
            let head = before.clone().unwrap_or_else(|| Head::new(self.epoch));
            match PositionState::of(row.account, &head, row.position) {
                // The commit was applied at the last moment. Followers find it by its row.
                PositionState::Last(_) => return Ok(()),
                PositionState::Past => break,
                PositionState::Open => {}
            }
            let mut after = head.changed(self.mark());
            after.settled = row.position;
            let outcome =
                self.change(row.account, before.as_ref(), &after, &Rows::default(), deadline).await?;
            if matches!(outcome, Outcome::Made) {
                break;
            }
        }
        self.remove_past(row.position).await
    }

    /// Marks the commit of a position as done.
    pub(super) fn done(&self, position: Position) -> Bound {
        (DONE, self.place(position).into())
    }

    /// Removes the row of a position that is past.
    pub(super) fn past(&self, position: Position) -> Bound {
        let mut values = vec![for_good()];
        values.extend(self.place(position));
        (DROP, values)
    }

    fn place(&self, position: Position) -> [CqlValue; 3] {
        let (segment, slot) = slot_of(position);
        [text(self.store()), bigint(segment), CqlValue::Int(slot)]
    }

    async fn remove_past(&self, position: Position) -> Result<(), Error> {
        let (statement, values) = self.past(position);
        self.database.write("shorten the feed", statement, values).await
    }

    /// The feed has no rows below this position.
    pub(super) async fn floor(&self) -> Result<Position, Error> {
        let floor = self.meta(META_FLOOR).await?;
        Ok(Position(floor.and_then(|value| decode_number(&value)).unwrap_or(0)))
    }

    /// Finds the first segment that still has rows, removing rows that are past, and stores it as the floor.
    pub(super) async fn raise_floor(&self) -> Result<(), Error> {
        let known = self.floor().await?;
        let (mut segment, _) = slot_of(known);
        loop {
            let counter = self.counter(segment).await?;
            if counter.is_some() && !self.sweep(segment).await? {
                break;
            }
            segment = match counter {
                Some(counter) if counter.is_full() => segment + 1,
                _ if restores_of(segment) < self.restores() => first_segment(restores_of(segment) + 1),
                _ => break,
            };
        }
        let floor = position_of(segment, 0);
        if floor > known {
            self.put_meta(META_FLOOR, &encode_number(floor.0)).await?;
        }
        Ok(())
    }

    /// Removes the rows of a segment that are past; returns whether the segment is empty then.
    async fn sweep(&self, segment: u64) -> Result<bool, Error> {
        let (mut slot, mut is_empty) = (-1, true);
        loop {
            let rows = self.intents(segment, slot).await?;
            for row in &rows {
                match self.position_state(*row).await? {
                    PositionState::Past => self.remove_past(row.position).await?,
                    PositionState::Last(_) | PositionState::Open => is_empty = false,
                }
            }
            match rows.last() {
                Some(row) if rows.len() == ROWS => slot = slot_of(row.position).1,
                _ => return Ok(is_empty),
            }
        }
    }

    /// [`crate::Feed::checkpoint`].
    pub(super) async fn checkpoint(
        &self,
        follower: &str,
        accounts: &[AccountId],
    ) -> Result<Checkpoint, Error> {
        check_checkpoint(follower, accounts.len())?;
        let mut wanted = vec![OF_POSITION];
        wanted.extend(accounts.iter().copied().map(account_number));
        let saved = self.numbers(follower, &wanted).await?;
        let of = |account: i64| saved.get(&account).copied().unwrap_or_default();
        let revision = |account: &AccountId| (*account, Revision(of(account_number(*account))));
        Ok(Checkpoint {
            position: Position(of(OF_POSITION)),
            accounts: accounts.iter().map(revision).collect(),
        })
    }

    async fn numbers(&self, follower: &str, wanted: &[i64]) -> Result<BTreeMap<i64, u64>, Error> {
        let mut saved = BTreeMap::new();
        for wanted in wanted.chunks(NUMBERS) {
            let asked = CqlValue::List(wanted.iter().copied().map(CqlValue::BigInt).collect());
            let values = vec![text(self.store()), blob(follower.as_bytes()), asked];
            for row in &self.database.read("read a checkpoint", NUMBER, values).await? {
                let account = match row.columns.first() {
                    Some(Some(CqlValue::BigInt(account))) => Some(*account),
                    _ => None,
                };
                let found = account.zip(bytes(row, 1).and_then(decode_number));
                let damaged = || {
                    Error::corrupt(format!("the checkpoint of the follower {follower} is damaged: forget it"))
                };
                let (account, number) = found.ok_or_else(damaged)?;
                saved.insert(account, number);
            }
        }
        Ok(saved)
    }

    /// [`crate::Feed::save`].
    pub(super) async fn save(&self, follower: &str, checkpoint: &Checkpoint) -> Result<(), Error> {
        check_checkpoint(follower, checkpoint.accounts.len())?;
        self.check_open()?;
        let name = blob(follower.as_bytes());
        let list = vec![text(self.store()), text(&listed_as(follower)), name.clone()];
        self.database.write("save a checkpoint", LIST, list).await?;
        let number = |number: u64| blob(encode_number(number).into_vec());
        let position = vec![number(checkpoint.position.0), text(self.store()), name.clone()];
        let mut statements = vec![(SAVE_POSITION, position)];
        // Each account once: of two values for the same row in one batch, the greater one would win.
        let revisions: BTreeMap<AccountId, Revision> = checkpoint.accounts.iter().copied().collect();
        for (account, revision) in revisions {
            let account = CqlValue::BigInt(account_number(account));
            statements.push((SAVE, vec![text(self.store()), name.clone(), account, number(revision.0)]));
        }
        self.write_checkpoint("save a checkpoint", &statements).await
    }

    /// [`crate::Feed::forget`]. The follower stays listed: a row that is never deleted does not depend on clocks.
    pub(super) async fn forget(&self, follower: &str) -> Result<(), Error> {
        check_follower_name(follower)?;
        self.check_open()?;
        let place = || vec![text(self.store()), blob(follower.as_bytes())];
        let statements = [(FORGET_POSITION, place()), (FORGET, place())];
        self.write_checkpoint("forget a follower", &statements).await
    }

    /// Executes statements on one follower. The first has a condition that always holds.
    async fn write_checkpoint(&self, what: &str, statements: &[Bound]) -> Result<(), Error> {
        match self.database.compare_until_known(what, statements).await? {
            None => Ok(()),
            Some(_) => {
                Err(Error::corrupt("the position of a follower is damaged: its row has an empty number"))
            }
        }
    }

    /// [`crate::Feed::followers`].
    pub(super) async fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        let end = FOLLOWER.replace(' ', "!"); // the next character
        let values = vec![text(self.store()), text(FOLLOWER), text(&end)];
        let mut followers = Vec::new();
        for row in &self.database.read("list followers", LISTED, values).await? {
            let name = bytes(row, 0).and_then(|name| String::from_utf8(name.to_vec()).ok());
            let name = name.ok_or_else(|| Error::corrupt("the row of a follower is damaged"))?;
            // It is listed before its first save, and stays listed after it was forgotten.
            if let Some(position) = self.numbers(&name, &[OF_POSITION]).await?.get(&OF_POSITION) {
                followers.push((name, Position(*position)));
            }
        }
        followers.sort();
        Ok(followers)
    }
}

/// The key of `meta` that lists a follower.
fn listed_as(follower: &str) -> String {
    format!("{FOLLOWER}{}", super::schema::hex(follower.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a server that settled a position while its commit was being applied removed the row from the feed.
    #[test]
    fn a_position_is_not_past_while_its_commit_is_the_last_one() {
        let mut head = Head::new(1);
        let is_past = |head: &Head, position| {
            matches!(PositionState::of(AccountId(1), head, Position(position)), PositionState::Past)
        };
        assert!(matches!(PositionState::of(AccountId(1), &head, Position(5)), PositionState::Open));
        head.settled = Position(5);
        assert!(is_past(&head, 5), "it was settled without a commit");
        head.row.position = Position(5);
        assert!(!is_past(&head, 5) && is_past(&head, 4));
        assert!(matches!(PositionState::of(AccountId(1), &head, Position(5)), PositionState::Last(_)));
        (head.settled, head.row.position) = (Position(6), Position(6));
        assert!(is_past(&head, 5), "another commit followed");
    }
}
