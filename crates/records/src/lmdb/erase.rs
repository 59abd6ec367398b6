//! Erasing accounts.
//!
//! The row of the account stays, since it has the next id and the next revision. While it is marked as being erased, nothing is
//! committed in the account, so after a crash the next call continues with what is left.

use std::ops::Bound;

use restante_lmdb::{
    Batch, Direction, Table, View,
    key::{KeyBuf, after_prefix},
};

use super::{
    Engine, Ledger,
    commit::{Writer, put_account},
    schema::{
        ACCOUNT, AccountRow, HISTORY, STATE, account_key, corrupt, decode_state_key, take_history_kind,
    },
};
use crate::{AccountId, Announcement, Erased, Error, Revision};

/// The most records and tombstones that one commit erases: other commits wait for about a millisecond.
const STEP_ROWS: usize = 128;

impl Engine {
    /// [`crate::Upkeep::erase`].
    pub(super) fn erase(&self, account: AccountId, limit: usize) -> Result<Erased, Error> {
        let mut erased = Erased::default();
        let mut left = limit;
        let mut erasure = Erasure::of(account);
        loop {
            let (rows_max, ledger) = (left.min(STEP_ROWS), self.ledger.clone());
            let announcer = self.announcer.clone();
            let step = self.store.write_blocking(move |batch| {
                let step = erasure.step(batch, &ledger, rows_max)?;
                if let Some(revision) = step.revision {
                    batch.on_durable(move || announcer.announce(Announcement { account, revision }));
                }
                Ok(step)
            })?;
            erased.records += step.records as u64;
            erased.tombstones += step.tombstones as u64;
            // When the limit is used up, one more step with no room finds out whether there is more.
            erased.has_more = !step.is_done;
            if step.is_done || left == 0 {
                return Ok(erased);
            }
            left -= step.records + step.tombstones;
            erasure = step.erasure;
        }
    }
}

/// The progress of erasing an account.
struct Erasure {
    account: AccountId,
    /// The remaining rows follow this key. Erased rows are skipped one by one as long as they are in the commit log, so each step
    /// begins after those of the previous one.
    records: KeyBuf,
    history: KeyBuf,
}

/// The result of a step.
struct Step {
    records: usize,
    tombstones: usize,
    is_done: bool,
    /// The account's new revision, if the step took one.
    revision: Option<Revision>,
    erasure: Erasure,
}

impl Erasure {
    fn of(account: AccountId) -> Self {
        let begin = account_key(account);
        Self { account, records: begin.clone(), history: begin }
    }

    /// Erases records, or tombstones when no records are left.
    fn step(self, batch: &mut Batch<'_>, ledger: &Ledger, rows_max: usize) -> Result<Step, Error> {
        let records = self.keys(batch.view(), STATE, &self.records, rows_max + 1)?;
        let history = self.keys(batch.view(), HISTORY, &self.history, rows_max + 1)?;
        let stored = AccountRow::read(batch.view(), self.account)?;
        let mut row = stored.clone().after_restores(ledger.restores);
        let mut step = Step { records: 0, tombstones: 0, is_done: false, revision: None, erasure: self };
        if !row.is_erasing && history.is_empty() {
            step.is_done = true; // each record has a row in the history
            return Ok(step);
        }
        if !row.is_erasing || row.restores > stored.restores {
            row.is_erasing = true;
            row.cut_history();
        }
        let mut writer = Writer::new(batch, ledger, step.erasure.account, row);
        if records.is_empty() {
            step.tombstones =
                step.erasure.erase_tombstones(&mut writer, history.get(..rows_max).unwrap_or(&history))?;
            step.is_done = history.len() <= rows_max;
        } else {
            step.records =
                step.erasure.erase_records(&mut writer, records.get(..rows_max).unwrap_or(&records))?;
        }
        let mut row = writer.row;
        if step.is_done {
            row.is_erasing = false;
            row.cut_history();
        }
        if row.revision > stored.revision {
            put_account(batch, ledger, step.erasure.account, &mut row);
            step.revision = Some(row.revision);
        } else {
            batch.put(ACCOUNT, &account_key(step.erasure.account), &row.encode());
        }
        Ok(step)
    }

    fn erase_records(&mut self, writer: &mut Writer<'_, '_>, keys: &[KeyBuf]) -> Result<usize, Error> {
        for key in keys {
            let (_, kind, id) = decode_state_key(key).ok_or_else(|| corrupt(STATE, key))?;
            writer.remove(kind, id)?;
            self.records = key.clone();
        }
        Ok(keys.len())
    }

    /// Without records, only tombstones are left in the history.
    fn erase_tombstones(&mut self, writer: &mut Writer<'_, '_>, keys: &[KeyBuf]) -> Result<usize, Error> {
        for key in keys {
            let kind = take_history_kind(key).ok_or_else(|| corrupt(HISTORY, key))?;
            writer.batch.delete(HISTORY, key);
            let share = writer.row.kind_mut(kind);
            share.tombstones = share.tombstones.saturating_sub(1);
            self.history = key.clone();
        }
        Ok(keys.len())
    }

    /// The keys of the account in a table that follow `after`, at most `limit`.
    fn keys(&self, view: &View<'_>, table: Table, after: &[u8], limit: usize) -> Result<Vec<KeyBuf>, Error> {
        let end = after_prefix(&account_key(self.account));
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rows = view.range(table, Bound::Excluded(after), to, Direction::Ascending)?;
        let mut keys = Vec::new();
        while keys.len() < limit
            && let Some((key, _)) = rows.next()?
        {
            keys.push(KeyBuf::from_slice(key));
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use restante_core::ErrorKind;

    use super::super::{
        commit::commit,
        testing::{ACCOUNT as OURS, create, destroy, difference, email, engine, make, rows},
    };
    use super::*;
    use crate::{Commit, RecordId, Report};

    const OTHER: AccountId = AccountId(700);

    async fn erase(engine: &std::sync::Arc<Engine>, limit: usize) -> Erased {
        let engine = engine.clone();
        tokio::task::spawn_blocking(move || engine.erase(OURS, limit)).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn an_erased_account_leaves_its_own_row_and_that_of_the_feed() {
        let (_folder, engine) = engine();
        commit(&engine, OTHER, Commit::of([create(email(1, 1))])).await.unwrap();
        let others = rows(&engine);
        let ids = make(&engine, (0..3 * STEP_ROWS as u64).map(|n| create(email(1, n)))).await;
        make(&engine, ids[..2 * STEP_ROWS].iter().copied().map(destroy)).await;
        let erased = erase(&engine, usize::MAX).await;
        let (records, tombstones) = (STEP_ROWS as u64, 2 * STEP_ROWS as u64);
        assert_eq!(erased, Erased { records, tombstones, has_more: false });
        assert_eq!(difference(&others, &rows(&engine)), ["account", "feed"]);
        assert_eq!(engine.check(&|_, _| {}).unwrap(), Report { records: 1, ..Report::default() });
    }

    /// As after a crash: each call starts from what is stored.
    #[tokio::test]
    async fn a_half_erased_account_is_sound_takes_no_commit_and_is_finished_later() {
        let (_folder, engine) = engine();
        let ids = make(&engine, (0..10).map(|n| create(email(1, n)))).await;
        make(&engine, ids[..4].iter().copied().map(destroy)).await;
        for left in (1..10).rev() {
            assert!(erase(&engine, 1).await.has_more, "{left} are left");
            assert_eq!(engine.check(&|_, _| {}).unwrap().findings, []);
            let error = commit(&engine, OURS, Commit::of([create(email(1, 1))])).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
        }
        assert_eq!(erase(&engine, 1).await, Erased { records: 0, tombstones: 1, has_more: false });
        let next = make(&engine, [create(email(1, 1))]).await;
        assert_eq!(next, [RecordId(11)]);
        assert_eq!(engine.check(&|_, _| {}).unwrap().findings, []);
    }
}
