//! Removes old tombstones, and the rows that commits have left behind.
//!
//! Tombstones of an account and kind are sorted by revision, so the oldest come first. If a clock was set back, a tombstone stays
//! until those before it are old as well.

use restante_core::Timestamp;
use restante_lmdb::key::Pack;
use tokio::time::Instant;

use super::{
    Shared,
    accounts::ACCOUNTS,
    head::Head,
    schema::{GONE, after, after_prefix, corrupt, decode_gone_key, decode_history_key, tombstone_prefix},
    transact::{Outcome, Rows},
    view::{Range, View, ViewError, behind},
};
use crate::{
    AccountId, Cleaned, Error, Revision,
    rows::{KindRow, TombstoneRow},
};

/// The most tombstones that one batch removes.
const STEP_TOMBSTONES: usize = 1_024;
/// After this many transient failures in a row no further account is tried: each one is retried for as long as a commit.
const TRANSIENT_MAX: usize = 4;
/// How many unreferenced bodies are looked for at once.
const GONE_BODIES: usize = 500;

impl Shared {
    /// Removes tombstones from before a time, at most `limit`. An account that fails does not keep the following ones from being cleaned.
    pub(super) async fn clean(&self, before: Timestamp, limit: usize) -> Result<Cleaned, Error> {
        self.check_open()?;
        // Tombstones store whole seconds: those from the same second as `before` are kept.
        let before = u64::try_from(before.seconds()).unwrap_or(0);
        let mut cleaned = Cleaned::default();
        let mut failures = Failures::default();
        let mut last = None;
        loop {
            let accounts = self.next_accounts(last).await?;
            for (account, head) in self.heads_or_errors(&accounts).await {
                let done = match head {
                    Ok(Some(head)) => self.clean_if_needed(account, &head, before, limit, &mut cleaned).await,
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                };
                failures.note(done)?;
                if cleaned.has_more {
                    return Ok(cleaned);
                }
            }
            last = accounts.last().copied();
            if accounts.len() < ACCOUNTS {
                break;
            }
        }
        failures.note(self.raise_floor().await)?;
        failures.first.map_or(Ok(cleaned), Err)
    }

    /// Removes what commits have left behind in an account, and its old tombstones.
    async fn clean_if_needed(
        &self,
        account: AccountId,
        head: &Head,
        before: u64,
        limit: usize,
        cleaned: &mut Cleaned,
    ) -> Result<(), Error> {
        self.remove_gone(account).await?;
        if head.row.kinds.iter().any(|share| share.tombstones > 0) {
            self.clean_account(account, before, limit, cleaned).await?;
        }
        Ok(())
    }

    /// Removes bodies that a crash left behind and that no record refers to any more.
    pub(super) async fn remove_gone(&self, account: AccountId) -> Result<(), Error> {
        loop {
            let views = self.views(account);
            let view = views.begin().await?;
            let range = Range { from: &[GONE], to: &after(GONE), limit: GONE_BODIES, is_down: false };
            let rows = view.slice(range).await;
            let rows = match rows {
                Ok(rows) => rows,
                Err(ViewError::Moved) => return Ok(()), // the next run will do it
                Err(ViewError::Failed(error)) => return Err(error),
            };
            let numbers: Vec<u64> = rows.iter().filter_map(|(key, _)| decode_gone_key(key)).collect();
            self.remove_bodies(account, &numbers).await?;
            if rows.len() < GONE_BODIES || numbers.is_empty() {
                return Ok(());
            }
        }
    }

    /// Removes the old tombstones of an account, until the limit is reached.
    async fn clean_account(
        &self,
        account: AccountId,
        before: u64,
        limit: usize,
        cleaned: &mut Cleaned,
    ) -> Result<(), Error> {
        let mut has_risen = false;
        let mut deadline = self.database.deadline();
        loop {
            let room = limit.saturating_sub(cleaned.tombstones as usize).min(STEP_TOMBSTONES);
            let Some(head) = self.read_head_serial(account).await? else { return Ok(()) };
            let view = View::of(self, account, head);
            let step = match self.clean_step(&view, before, room).await {
                Ok(step) => step,
                Err(ViewError::Failed(error)) => return Err(error),
                Err(ViewError::Moved) if Instant::now() < deadline => continue,
                Err(ViewError::Moved) => {
                    let what = format!("account {} changes faster than it is cleaned", account.0);
                    return Err(Error::unavailable(what));
                }
            };
            deadline = self.database.deadline();
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

    /// Removes at most `room` old tombstones of an account, and raises the floors of their kinds.
    async fn clean_step(&self, view: &View<'_>, before: u64, room: usize) -> Result<CleanStep, ViewError> {
        let mut next = view.head.changed(self.mark());
        let mut step = CleanStep::default();
        let mut rows = Rows::default();
        for share in view.head.row.kinds.iter().filter(|share| share.tombstones > 0) {
            let left = room - step.tombstones;
            let mut old = old_tombstones(view, &view.head, share, before, left + 1).await?;
            step.has_more |= old.len() > left;
            old.truncate(left);
            let Some((last, _)) = old.last() else { continue };
            // One range deletion leaves a single tombstone in Cassandra.
            rows.ranges.push((tombstone_prefix(share.kind), behind(last)));
            let new = next.row.kind_mut(share.kind);
            for (_, revision) in &old {
                step.has_risen |= *revision > new.floor;
                new.floor = new.floor.max(*revision);
            }
            new.tombstones = new.tombstones.saturating_sub(old.len() as u64);
            step.tombstones += old.len();
        }
        if step.tombstones == 0 {
            return Ok(step);
        }
        let deadline = self.database.deadline();
        match self.change(view.account(), Some(&view.head), &next, &rows, deadline).await? {
            Outcome::Made => Ok(step),
            Outcome::Refused => Err(ViewError::Moved),
        }
    }
}

/// Counts the accounts that could not be cleaned.
#[derive(Default)]
struct Failures {
    first: Option<Error>,
    /// Transient failures since the last account that succeeded.
    in_a_row: usize,
}

impl Failures {
    /// Records the outcome of cleaning one account.
    ///
    /// # Errors
    /// The first error, when [`TRANSIENT_MAX`] accounts in a row failed.
    fn note(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        let Err(error) = done else {
            self.in_a_row = 0;
            return Ok(());
        };
        self.in_a_row += usize::from(error.is_transient());
        let first = self.first.take().unwrap_or(error);
        if self.in_a_row >= TRANSIENT_MAX {
            return Err(first);
        }
        self.first = Some(first);
        Ok(())
    }
}

/// The result of a step.
#[derive(Default)]
struct CleanStep {
    tombstones: usize,
    has_risen: bool,
    has_more: bool,
}

/// The first tombstones of an account and kind that are old, at most `limit`, with their revisions. Those below the floor have
/// been removed already, unless the account is being erased: erasing raises the floor first.
async fn old_tombstones(
    view: &View<'_>,
    head: &Head,
    share: &KindRow,
    before: u64,
    limit: usize,
) -> Result<Vec<(Vec<u8>, Revision)>, ViewError> {
    let prefix = tombstone_prefix(share.kind);
    let to = after_prefix(&prefix);
    let mut from = prefix;
    from.put_number(if head.row.is_erasing { 0 } else { share.floor.0 });
    let mut old = Vec::new();
    for (key, value) in view.slice(Range { from: &from, to: &to, limit, is_down: false }).await? {
        let parts = decode_history_key(&key).zip(TombstoneRow::decode(&value));
        let (parts, tombstone) = parts.ok_or_else(|| corrupt(view.account(), &key))?;
        if tombstone.second >= before {
            break;
        }
        old.push((key, parts.revision));
    }
    Ok(old)
}

#[cfg(test)]
mod tests {
    use restante_core::ErrorKind;

    use super::*;

    #[test]
    fn cleaning_goes_on_behind_failures_until_cassandra_seems_to_be_away() {
        let mut failures = Failures::default();
        for _ in 0..100 {
            failures.note(Err(Error::corrupt("damaged"))).unwrap();
        }
        for n in 1..2 * TRANSIENT_MAX {
            let done = if n == TRANSIENT_MAX { Ok(()) } else { Err(Error::unavailable("away")) };
            failures.note(done).unwrap();
        }
        let error = failures.note(Err(Error::unavailable("away"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "the first one is returned");
    }
}
