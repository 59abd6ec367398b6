//! The store as a whole, to be copied and compared.
//!
//! While an account is being copied, its head has no revision. Until the account is completed, nobody sees what is written, in as
//! many conditional batches as it takes. The rows of records are written before their bodies, so that every body that an
//! interrupted copy leaves has a row that refers to it, and is found when the account is cleared.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::Timestamp;
use scylla::value::CqlValue;
use tokio::time::Instant;

use super::{
    Cassandra, Shared,
    accounts::ACCOUNTS,
    commit::rows_of,
    connect::{bigint, text},
    head::Head,
    schema::{
        GONE, META_FLOOR, RESTORE_BITS, STATE, account_number, after, after_prefix, corrupt,
        decode_history_key, position_of, restores_of, slot_of, state_key, tombstone_prefix,
    },
    transact::{Outcome, Rows},
    view::{Range, View, ViewError, behind},
};
use crate::{
    AccountHead, AccountId, Error, Kind, Position, Row, RowKey, Transfer, TransferState,
    map::{
        keys::tombstone_key,
        moving::{count_bodies, plan},
        work::Writes,
    },
    rows::{AccountRow, BodyNumber, StateRow, TombstoneRow, encode_number},
    transfer::RowPage,
    validate,
};

const NANOS_PER_MILLI: i64 = 1_000_000;
/// Heads that are read concurrently.
const AT_ONCE: usize = 32;
/// Rows of records that one statement reads to find their bodies.
const CLEARED_ROWS: usize = 1_000;
/// How many body numbers are taken at once.
const NUMBERS: u64 = 4_096;
/// The most rows of a copied account that one batch writes.
const BATCH_ROWS: usize = 4_000;
const BATCH_BYTES: usize = 1 << 20;

const IN_FEED: &str = "INSERT INTO feed (store, segment, slot, account, done) VALUES (?, ?, ?, ?, true)";
const WHAT: &str = "copy records";

#[async_trait]
impl Transfer for Cassandra {
    async fn state(&self) -> Result<TransferState, Error> {
        let shared = &self.shared;
        let restores = shared.read_state().await?.restores;
        // A store that was just created has the mark, but nothing that an earlier copy left.
        let is_new = shared.is_new.load(Ordering::Acquire);
        let is_incomplete = !is_new && shared.is_incomplete().await?;
        Ok(TransferState { identity: shared.identity, restores, is_incomplete })
    }

    async fn heads(&self, after: Option<AccountId>, limit: usize) -> Result<Vec<AccountHead>, Error> {
        validate::check_heads(limit)?;
        self.shared.move_heads(after, limit).await
    }

    async fn rows(&self, account: AccountId, after: Option<RowKey>, limit: usize) -> Result<Vec<Row>, Error> {
        validate::check_rows(limit)?;
        self.shared.move_rows(account, after, limit).await
    }

    async fn begin(&self, restores: u64) -> Result<(), Error> {
        self.shared.check_open()?;
        self.shared.begin_copy(restores).await
    }

    async fn clear(&self, account: AccountId) -> Result<(), Error> {
        self.shared.check_open()?;
        self.shared.clear(account).await
    }

    async fn put(&self, account: AccountId, rows: Vec<Row>, head: Option<AccountHead>) -> Result<(), Error> {
        self.shared.check_open()?;
        self.shared.put(account, rows, head.as_ref()).await.map_err(moved)
    }

    async fn finish(&self) -> Result<(), Error> {
        self.shared.check_open()?;
        self.shared.finish_copy().await
    }
}

/// Whether an account ever had a commit. Without one, an account has a head if a commit failed, or if its copy is not completed.
fn is_ended(row: &AccountRow) -> bool {
    row.revision.0 > 0
}

fn head_of(account: AccountId, head: &Head) -> AccountHead {
    let committed_ms = i64::try_from(head.committed_ms).unwrap_or(0);
    head.row.head(account, Timestamp(committed_ms.saturating_mul(NANOS_PER_MILLI)))
}

impl Shared {
    async fn move_heads(&self, after: Option<AccountId>, limit: usize) -> Result<Vec<AccountHead>, Error> {
        let mut found = Vec::new();
        let mut last = after;
        loop {
            let accounts = self.next_accounts(last).await?;
            last = accounts.last().copied();
            let mut rest = &accounts[..];
            while !rest.is_empty() && found.len() < limit {
                let (next, later) = rest.split_at(rest.len().min(limit - found.len()));
                found.extend(self.decided_heads(next).await?);
                rest = later;
            }
            if found.len() >= limit || accounts.len() < ACCOUNTS {
                return Ok(found);
            }
        }
    }

    /// The heads of completed accounts. Commits that a server left undecided are decided now.
    async fn decided_heads(&self, accounts: &[AccountId]) -> Result<Vec<AccountHead>, Error> {
        let mut reads = Vec::with_capacity(accounts.len());
        for account in accounts {
            reads.push(self.read_head_serial(*account));
        }
        let heads: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        let mut ended = Vec::with_capacity(heads.len());
        for (account, head) in accounts.iter().zip(heads) {
            if let Some(head) = head.filter(|head| is_ended(&head.row)) {
                ended.push(head_of(*account, &head));
            }
        }
        Ok(ended)
    }

    async fn move_rows(
        &self,
        account: AccountId,
        after: Option<RowKey>,
        limit: usize,
    ) -> Result<Vec<Row>, Error> {
        let views = self.views(account);
        loop {
            let view = views.begin().await?;
            let read = self.page_of_rows(&view, after, limit).await;
            if let Some(page) = views.accept(&view, read).await? {
                return Ok(page.into_rows());
            }
        }
    }

    async fn page_of_rows(
        &self,
        view: &View<'_>,
        after: Option<RowKey>,
        limit: usize,
    ) -> Result<RowPage, ViewError> {
        let mut page = RowPage::new(limit);
        let from = match after {
            None => Some(vec![STATE]),
            Some(RowKey::Record(kind, id)) => Some(behind(&state_key(kind, id))),
            Some(RowKey::Tombstone(..)) => None,
        };
        if let Some(from) = from {
            // As they are stored: no counter has jumped.
            for dumped in self.view_records(view, &from, limit, 0).await? {
                if page.is_full() {
                    break;
                }
                page.push(Row::of_record(dumped.key.kind, dumped.key.id, dumped.record));
            }
        }
        for share in view.head.row.kinds.iter().filter(|share| share.tombstones > 0) {
            if !page.is_full() {
                add_tombstones(view, share.kind, after, &mut page).await?;
            }
        }
        Ok(page)
    }

    async fn begin_copy(&self, restores: u64) -> Result<(), Error> {
        if !self.is_incomplete().await? && self.move_heads(None, 1).await?.is_empty() {
            self.check_unused().await?;
        }
        self.mark_incomplete(restores).await?;
        if self.floor().await? > Position(0) {
            self.put_meta(META_FLOOR, &encode_number(0)).await?;
        }
        self.restores.store(restores, Ordering::Release);
        self.is_new.store(false, Ordering::Release);
        Ok(())
    }

    /// Refuses a store whose feed has positions of commits that were never made: accounts to be copied may have the same positions.
    async fn check_unused(&self) -> Result<(), Error> {
        for restores in 0..=self.restores() {
            let first = Position((restores << RESTORE_BITS).max(1));
            let taken = self.last_counter(restores).await?.map(|counter| counter.last());
            if taken.is_some_and(|last| last >= first) {
                return Err(Error::invalid(
                    "commits to the target were begun and never made: name a new place, which no server had open",
                ));
            }
        }
        Ok(())
    }

    async fn clear(&self, account: AccountId) -> Result<(), Error> {
        let deadline = self.database.deadline();
        loop {
            match self.try_clear(account).await {
                // A commit of a process that has died may still be applied.
                Err(ViewError::Moved) if Instant::now() < deadline => {}
                done => return done.map_err(moved),
            }
        }
    }

    /// First marks the account as never completed, so that a crash leaves nothing that [`Transfer::heads`] returns. The head
    /// itself stays, so that commits of a process that has died are refused from then on.
    async fn try_clear(&self, account: AccountId) -> Result<(), ViewError> {
        let known = self.read_head_serial(account).await?;
        if known.is_none() {
            self.list_account(account).await?;
        }
        let mut head = known.clone().unwrap_or_else(|| Head::new(self.epoch));
        if known.is_none() || head.row != AccountRow::default() {
            head.settled = head.settled.max(head.row.position);
            (head.row, head.committed_ms) = (AccountRow::default(), 0);
            head = head.changed(self.mark());
            self.write_copied(account, known.as_ref(), &head, &Rows::default()).await?;
        }
        let view = View::of(self, account, head);
        let all = Range { from: &[STATE], to: &after(GONE), limit: 1, is_down: false };
        if view.slice(all).await?.is_empty() {
            return Ok(());
        }
        self.clear_bodies(&view).await?;
        // The rows that are removed next refer to the bodies that commits have left behind.
        self.remove_gone(account).await?;
        let rows = Rows { ranges: vec![(vec![STATE], after(GONE))], ..Rows::default() };
        let next = view.head.changed(self.mark());
        self.write_copied(account, Some(&view.head), &next, &rows).await
    }

    /// Removes the bodies of all records of an account.
    async fn clear_bodies(&self, view: &View<'_>) -> Result<(), ViewError> {
        let (mut from, to) = (vec![STATE], after(STATE));
        loop {
            let range = Range { from: &from, to: &to, limit: CLEARED_ROWS, is_down: false };
            let rows = view.slice(range).await?;
            let mut numbers = Vec::with_capacity(rows.len());
            for (key, value) in &rows {
                let state = StateRow::decode(value).ok_or_else(|| corrupt(view.account(), key))?;
                if state.body != BodyNumber::EMPTY {
                    numbers.push(state.body.0);
                }
            }
            self.remove_bodies(view.account(), &numbers).await?;
            match rows.last() {
                Some((last, _)) if rows.len() == CLEARED_ROWS => from = behind(last),
                _ => return Ok(()),
            }
        }
    }

    async fn put(
        &self,
        account: AccountId,
        rows: Vec<Row>,
        ended: Option<&AccountHead>,
    ) -> Result<(), ViewError> {
        let numbers = self.next_bodies(count_bodies(&rows) as u64).await?;
        let mut numbers = numbers.filter_map(|number| i64::try_from(number).ok());
        let writes = plan(&self.schema, account, rows, &mut numbers)?;
        let mut before = self.read_head_serial(account).await?;
        if before.is_none() {
            self.list_account(account).await?;
        }
        for rows in batches_of(&writes) {
            let mut next = before.clone().unwrap_or_else(|| Head::new(self.epoch)).changed(self.mark());
            next.epoch = self.epoch;
            self.write_copied(account, before.as_ref(), &next, &rows).await?;
            before = Some(next);
        }
        self.write_bodies(account, &writes.bodies).await?;
        let Some(ended) = ended else { return Ok(()) };
        self.put_in_feed(account, ended.position).await?;
        let mut next = before.clone().unwrap_or_else(|| Head::new(self.epoch)).changed(self.mark());
        next.epoch = self.epoch;
        next.settled = next.settled.max(ended.position);
        next.committed_ms = ended.committed_at.nanos().max(0).unsigned_abs() / NANOS_PER_MILLI.unsigned_abs();
        next.row = AccountRow::of_head(ended);
        self.write_copied(account, before.as_ref(), &next, &Rows::default()).await
    }

    /// Changes an account that nobody else may change.
    async fn write_copied(
        &self,
        account: AccountId,
        before: Option<&Head>,
        next: &Head,
        rows: &Rows,
    ) -> Result<(), ViewError> {
        match self.change(account, before, next, rows, self.database.deadline()).await? {
            Outcome::Made => Ok(()),
            Outcome::Refused => Err(ViewError::Moved),
        }
    }

    /// Writes the row of the feed for the last commit of an account, before the account's head has its position. No other commit
    /// takes this position, so nobody else writes the row.
    async fn put_in_feed(&self, account: AccountId, position: Position) -> Result<(), Error> {
        if position == Position(0) {
            return Ok(());
        }
        let (segment, slot) = slot_of(position);
        let account = CqlValue::BigInt(account_number(account));
        let values = vec![text(self.store()), bigint(segment), CqlValue::Int(slot), account];
        self.database.write(WHAT, IN_FEED, values).await
    }

    /// Numbers for `count` bodies.
    async fn next_bodies(&self, count: u64) -> Result<std::ops::Range<u64>, Error> {
        let mut numbers = self.body_numbers.lock().await;
        if numbers.end - numbers.start < count {
            let taken = NUMBERS.max(count);
            let first = self.take_bodies(taken).await?;
            *numbers = first..first + taken;
        }
        let first = numbers.start;
        numbers.start += count;
        Ok(first..numbers.start)
    }

    /// Makes commits and readers of the feed continue after what was copied, and marks the store as complete.
    async fn finish_copy(&self) -> Result<(), Error> {
        let mut last_positions: BTreeMap<u64, Position> = BTreeMap::new();
        let mut first_position = None;
        let mut last = None;
        loop {
            let accounts = self.next_accounts(last).await?;
            for (_, head) in self.heads(&accounts).await? {
                let position = head.row.position;
                if !is_ended(&head.row) || position == Position(0) {
                    continue;
                }
                let restores = restores_of(slot_of(position).0);
                let known = last_positions.entry(restores).or_default();
                *known = position.max(*known);
                first_position = Some(first_position.map_or(position, |first| position.min(first)));
            }
            last = accounts.last().copied();
            if accounts.len() < ACCOUNTS {
                break;
            }
        }
        for position in last_positions.into_values() {
            self.skip_positions(position).await?;
        }
        if let Some(first) = first_position {
            let floor = position_of(slot_of(first).0, 0);
            self.put_meta(META_FLOOR, &encode_number(floor.0)).await?;
        }
        self.mark_complete().await
    }
}

fn moved(error: ViewError) -> Error {
    match error {
        ViewError::Moved => Error::conflict("an account is changed by another process while it is copied"),
        ViewError::Failed(error) => error,
    }
}

/// Adds the tombstones of a kind that follow a key.
async fn add_tombstones(
    view: &View<'_>,
    kind: Kind,
    after: Option<RowKey>,
    page: &mut RowPage,
) -> Result<(), ViewError> {
    let prefix = tombstone_prefix(kind);
    let to = after_prefix(&prefix);
    let from = match after {
        Some(RowKey::Tombstone(of, ..)) if of > kind => return Ok(()),
        Some(RowKey::Tombstone(of, revision, id)) if of == kind => behind(&tombstone_key(kind, revision, id)),
        _ => prefix,
    };
    let range = Range { from: &from, to: &to, limit: page.room(), is_down: false };
    for (key, value) in view.slice(range).await? {
        let parts = decode_history_key(&key).ok_or_else(|| corrupt(view.account(), &key))?;
        let (place, gone) = ((parts.revision, parts.id), TombstoneRow::decode(&value));
        page.push(Row::of_tombstone(kind, place, gone, || corrupt(view.account(), &key)));
    }
    Ok(())
}

/// Splits rows into batches that are small enough.
fn batches_of(writes: &Writes) -> Vec<Rows> {
    let mut batches = Vec::new();
    let (mut batch, mut bytes) = (Rows::default(), 0);
    for (key, value) in rows_of(writes).rows {
        let row_bytes = key.len() + value.as_ref().map_or(0, Vec::len);
        if batch.rows.len() >= BATCH_ROWS || !batch.rows.is_empty() && bytes + row_bytes > BATCH_BYTES {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += row_bytes;
        batch.rows.insert(key, value);
    }
    if !batch.rows.is_empty() {
        batches.push(batch);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::work::Value;

    #[test]
    fn rows_are_written_in_batches_that_are_small_enough() {
        assert!(batches_of(&Writes::default()).is_empty());
        let mut writes = Writes::default();
        for n in 0..BATCH_ROWS as u32 + 2 {
            let bytes = if n < 3 { vec![7; BATCH_BYTES / 2] } else { Vec::new() };
            let key = [&[STATE][..], &n.to_be_bytes()].concat();
            writes.rows.insert((AccountId(1), key), Some(Value::new(bytes, None)));
        }
        let batches = batches_of(&writes);
        let lengths: Vec<usize> = batches.iter().map(|batch| batch.rows.len()).collect();
        assert_eq!(lengths, [1, 1, BATCH_ROWS]);
        let keys: Vec<_> = batches.into_iter().flat_map(|batch| batch.rows.into_keys()).collect();
        assert!(keys.len() == writes.rows.len() && keys.is_sorted());
    }
}
