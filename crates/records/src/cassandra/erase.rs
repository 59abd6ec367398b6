//! Erasing accounts.
//!
//! The head of the account stays, since it has the next id and the next revision. While it is marked as being erased, nothing is
//! committed in the account, so after a crash the next call continues with what is left.

use tokio::time::Instant;

use super::{
    Shared,
    commit::{gone_of, rows_of},
    finish::Left,
    head::Head,
    schema::{HISTORY, STATE, after, corrupt, decode_history_key, decode_state_key},
    transact::Outcome,
    view::{Range, Row, View, ViewError},
};
use crate::{
    AccountId, Erased, Error, Kind, RecordId,
    map::work::{Read, Work},
};

/// The most records and tombstones that one batch erases. Each record has up to 256 entries in each index.
const STEP_ROWS: usize = 64;

impl Shared {
    /// [`crate::Upkeep::erase`].
    pub(super) async fn erase(&self, account: AccountId, limit: usize) -> Result<Erased, Error> {
        self.check_open()?;
        let mut erased = Erased::default();
        let mut left = limit;
        loop {
            let step = self.erase_once(account, left.min(STEP_ROWS)).await?;
            erased.records += step.records as u64;
            erased.tombstones += step.tombstones as u64;
            // When the limit is used up, one more step with no room finds out whether there is more.
            erased.has_more = !step.is_done;
            if step.is_done || left == 0 {
                return Ok(erased);
            }
            left -= step.records + step.tombstones;
        }
    }

    async fn erase_once(&self, account: AccountId, rows_max: usize) -> Result<EraseStep, Error> {
        let deadline = self.database.deadline();
        loop {
            let Some(head) = self.read_head_serial(account).await? else { return Ok(EraseStep::nothing()) };
            self.check_epoch(head.epoch)?;
            let view = View::of(self, account, head);
            match self.erase_step(&view, rows_max, deadline).await {
                Ok(step) => return Ok(step),
                Err(ViewError::Failed(error)) => return Err(error),
                Err(ViewError::Moved) if Instant::now() < deadline => {}
                Err(ViewError::Moved) => {
                    return Err(Error::unavailable("the account changes while it is erased: try again"));
                }
            }
        }
    }

    /// Erases records, or tombstones when no records are left.
    async fn erase_step(
        &self,
        view: &View<'_>,
        rows_max: usize,
        deadline: Instant,
    ) -> Result<EraseStep, ViewError> {
        let account = view.account();
        let found = keys(view, STATE, rows_max + 1).await?;
        let history = keys(view, HISTORY, rows_max + 1).await?;
        let stored = view.head.row.clone();
        let restores = self.restores();
        let mut row = stored.clone().after_restores(restores);
        if !row.is_erasing && history.is_empty() {
            return Ok(EraseStep::nothing()); // each record has a row in the history
        }
        if !row.is_erasing || row.restores > stored.restores {
            row.is_erasing = true;
            row.cut_history();
        }
        let mut step = EraseStep::default();
        let mut read = Read { restores, ..Read::default() };
        read.heads.insert(account, stored.clone());
        let mut records: Vec<(Kind, RecordId)> = Vec::new();
        let mut tombstones: Vec<(Kind, Vec<u8>)> = Vec::new();
        if found.is_empty() {
            step.is_done = history.len() <= rows_max;
            for (key, _) in history.into_iter().take(rows_max) {
                let parts = decode_history_key(&key).ok_or_else(|| corrupt(account, &key))?;
                tombstones.push((parts.kind, key));
            }
        } else {
            for (key, value) in found.into_iter().take(rows_max) {
                records.push(decode_state_key(&key).ok_or_else(|| corrupt(account, &key))?);
                read.rows.insert((account, key), value);
            }
        }
        (step.records, step.tombstones) = (records.len(), tombstones.len());
        let is_done = step.is_done;
        let mut work = Work::new(&self.schema, self.now(), read);
        work.erase(account, row, &records, &tombstones, |row| {
            if is_done {
                row.is_erasing = false;
                row.cut_history();
            }
        })?;
        let mut next = view.head.changed(self.mark());
        next.row = work.writes.heads.get(&account).cloned().unwrap_or(stored);
        self.write_step(view, next, &work, deadline).await?;
        Ok(step)
    }

    async fn write_step(
        &self,
        view: &View<'_>,
        mut next: Head,
        work: &Work<'_>,
        deadline: Instant,
    ) -> Result<(), ViewError> {
        let (account, stored) = (view.account(), &view.head.row);
        let mut left = Left { bodies: gone_of(&work.writes), ..Left::default() };
        next.row.position = stored.position;
        if next.row.revision > stored.revision {
            let taken = self.sequence.take(account, 0).await?;
            (next.row.position, next.settled) = (taken.position, taken.position);
            next.committed_ms = self.now_ms();
            (left.position, left.position_before) = (Some(taken.position), Some(stored.position));
        }
        match self.change(account, Some(&view.head), &next, &rows_of(&work.writes), deadline).await? {
            Outcome::Refused => Err(ViewError::Moved),
            Outcome::Made => {
                let _guard = self.finishing.read().await;
                if let Some(position) = left.position {
                    self.announcements.committed(account, next.row.revision, position);
                }
                self.remove_left(&[(account, &left)]).await;
                Ok(())
            }
        }
    }
}

/// The result of a step.
#[derive(Default)]
struct EraseStep {
    records: usize,
    tombstones: usize,
    is_done: bool,
}

impl EraseStep {
    fn nothing() -> Self {
        Self { is_done: true, ..Self::default() }
    }
}

/// The first rows of one table of an account, at most `limit`.
async fn keys(view: &View<'_>, table: u8, limit: usize) -> Result<Vec<Row>, ViewError> {
    view.slice(Range { from: &[table], to: &after(table), limit, is_down: false }).await
}
