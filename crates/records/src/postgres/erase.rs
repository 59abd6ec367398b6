//! Erasing accounts.
//!
//! The head of the account stays, since it has the next id and the next revision. While it is marked as being erased, nothing is
//! committed in the account, so after a crash the next call continues with what is left.

use restante_core::Identity;
use tokio_postgres::types::ToSql;

use super::{
    Shared,
    commit::{Outcome, Settled, outcome, settle},
    connect::Connection,
    error::{AttemptError, column},
    schema::{HISTORY, STATE, account_to_sql, after, corrupt, decode_history_key, decode_state_key, to_sql},
    transact::{self, MadeBy, Wanted},
};
use crate::{AccountId, Erased, Error, Kind, RecordId, Revision, map::work::Work};
use std::sync::Arc;

/// The most records and tombstones that one transaction erases.
const STEP_ROWS: usize = 256;

const KEYS: &str =
    "SELECT key, value FROM entry WHERE account = $1 AND key >= $2 AND key < $3 ORDER BY key LIMIT $4";

impl Shared {
    /// [`crate::Upkeep::erase`].
    pub(super) async fn erase(self: &Arc<Self>, account: AccountId, limit: usize) -> Result<Erased, Error> {
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

    async fn erase_once(self: &Arc<Self>, account: AccountId, rows_max: usize) -> Result<EraseStep, Error> {
        let made_by = Identity::random().0;
        let mut step = EraseStep::default();
        let mut is_committing = false;
        let lease = self.caretaker().await?;
        let connection = lease.connection.clone();
        let work = self.erase_step(&connection, account, rows_max, &made_by, &mut step, &mut is_committing);
        let done = lease.drive("erase an account", work).await;
        match outcome(done, is_committing) {
            Outcome::Made(base) => self.announce(base, &step.touched),
            Outcome::NotMade(error) => return Err(error.into()),
            Outcome::InDoubt(error) if step.touched.is_empty() => return Err(error),
            Outcome::InDoubt(error) => match settle(self, &step.touched, &made_by, error).await {
                Settled::Made(feed) => self.announce_found(&feed),
                Settled::NotMade(error) | Settled::Unknown(error) => return Err(error),
            },
        }
        Ok(step)
    }

    /// Erases records, or tombstones when no records are left.
    async fn erase_step(
        &self,
        connection: &Connection,
        account: AccountId,
        rows_max: usize,
        made_by: &MadeBy,
        step: &mut EraseStep,
        is_committing: &mut bool,
    ) -> Result<u64, AttemptError> {
        let wanted = Wanted { accounts: vec![account], ..Wanted::default() };
        let mut read = transact::begin(self, connection, &wanted).await?;
        let records = keys(connection, account, STATE, rows_max + 1).await?;
        let history = keys(connection, account, HISTORY, rows_max + 1).await?;
        let stored = read.heads.get(&account).cloned().unwrap_or_default();
        let mut head = stored.clone().after_restores(read.restores);
        if !head.is_erasing && history.is_empty() {
            step.is_done = true; // each record has a row in the history
            connection.run("erase an account", "ROLLBACK").await?;
            return Ok(0);
        }
        if !head.is_erasing || head.restores > stored.restores {
            head.is_erasing = true;
            head.cut_history();
        }
        let mut gone: Vec<(Kind, RecordId)> = Vec::new();
        let mut tombstones: Vec<(Kind, Vec<u8>)> = Vec::new();
        if records.is_empty() {
            step.is_done = history.len() <= rows_max;
            for (key, _) in history.into_iter().take(rows_max) {
                let parts = decode_history_key(&key).ok_or_else(|| corrupt(account, &key))?;
                tombstones.push((parts.kind, key));
            }
        } else {
            for (key, value) in records.into_iter().take(rows_max) {
                gone.push(decode_state_key(&key).ok_or_else(|| corrupt(account, &key))?);
                read.rows.insert((account, key), value);
            }
        }
        (step.records, step.tombstones) = (gone.len(), tombstones.len());
        let is_done = step.is_done;
        let mut work = Work::new(&self.schema, self.now(), read);
        let mut revision = Revision(0);
        work.erase(account, head, &gone, &tombstones, |head| {
            if is_done {
                head.is_erasing = false;
                head.cut_history();
            }
            revision = head.revision;
        })?;
        if revision > stored.revision {
            work.writes.touch(account, revision);
        }
        step.touched.clone_from(&work.writes.touched);
        *is_committing = true;
        transact::end(self, connection, &[account], &work.writes, made_by).await
    }
}

/// The result of a step.
#[derive(Default)]
struct EraseStep {
    records: usize,
    tombstones: usize,
    is_done: bool,
    /// The account with its new revision, if the step took one.
    touched: Vec<(AccountId, Revision)>,
}

/// The first rows of one table of an account, at most `limit`.
async fn keys(
    connection: &Connection,
    account: AccountId,
    table: u8,
    limit: usize,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>, AttemptError> {
    let (number, from, to, limit) =
        (account_to_sql(account), vec![table], after(table), to_sql(limit as u64));
    let parameters: [&(dyn ToSql + Sync); 4] = [&number, &from, &to, &limit];
    let mut rows = Vec::new();
    for row in connection.query("erase an account", KEYS, &parameters).await? {
        rows.push((column(&row, 0)?, column(&row, 1)?));
    }
    Ok(rows)
}
