//! Removes old tombstones.
//!
//! Tombstones of an account and kind are sorted by revision, so the oldest come first. If a clock was set back, a tombstone stays
//! until those before it are old as well.

use restante_core::{Identity, Timestamp};
use restante_lmdb::key::Pack;
use tokio_postgres::types::ToSql;

use super::{
    Shared,
    connect::Connection,
    error::{AttemptError, column},
    schema::{account_to_sql, after_prefix, corrupt, decode_history_key, to_sql, tombstone_prefix},
    stats::{ACCOUNTS, heads},
    transact::{self, Wanted},
};
use crate::{
    AccountId, Cleaned, Error, Revision,
    map::work::Writes,
    rows::{AccountRow, KindRow, TombstoneRow},
};

/// The most tombstones that one transaction removes: commits in the account wait for it.
const STEP_TOMBSTONES: usize = 1_024;

const TOMBSTONES: &str = "SELECT key, value FROM entry WHERE account = $1 AND key >= $2 AND key < $3 \
     ORDER BY key LIMIT $4";

impl Shared {
    /// Removes tombstones from before a time, at most `limit`.
    pub(super) async fn clean(&self, before: Timestamp, limit: usize) -> Result<Cleaned, Error> {
        self.check_open()?;
        // Tombstones store whole seconds: those from the same second as `before` are kept.
        let before = u64::try_from(before.seconds()).unwrap_or(0);
        let mut cleaned = Cleaned::default();
        let mut after = None;
        loop {
            let accounts =
                self.read("list accounts", async |connection| heads(connection, after).await).await?;
            for (account, head) in &accounts {
                let has_tombstones = head.kinds.iter().any(|share| share.tombstones > 0);
                if has_tombstones && self.has_old(*account, head, before).await? {
                    self.clean_account(*account, before, limit, &mut cleaned).await?;
                }
                if cleaned.has_more {
                    return Ok(cleaned);
                }
                after = Some(*account);
            }
            if accounts.len() < ACCOUNTS as usize {
                return Ok(cleaned);
            }
        }
    }

    async fn has_old(&self, account: AccountId, head: &AccountRow, before: u64) -> Result<bool, Error> {
        let has_old = async |connection: &Connection| {
            for share in head.kinds.iter().filter(|share| share.tombstones > 0) {
                if !old_tombstones(connection, account, head, share, before, 1).await?.is_empty() {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        self.read("look for tombstones", has_old).await
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
        loop {
            let room = limit.saturating_sub(cleaned.tombstones as usize).min(STEP_TOMBSTONES);
            let lease = self.caretaker().await?;
            let connection = lease.connection.clone();
            let step = self.clean_step(&connection, account, before, room);
            let step = lease.drive("forget tombstones", step).await?;
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
    async fn clean_step(
        &self,
        connection: &Connection,
        account: AccountId,
        before: u64,
        room: usize,
    ) -> Result<CleanStep, AttemptError> {
        let wanted = Wanted { accounts: vec![account], ..Wanted::default() };
        let read = transact::begin(self, connection, &wanted).await?;
        let stored = read.heads.get(&account).cloned().unwrap_or_default();
        let mut head = stored.clone();
        let mut step = CleanStep::default();
        let mut writes = Writes::default();
        for share in stored.kinds.iter().filter(|share| share.tombstones > 0) {
            let left = room - step.tombstones;
            let mut old = old_tombstones(connection, account, &stored, share, before, left + 1).await?;
            step.has_more |= old.len() > left;
            old.truncate(left);
            let new = head.kind_mut(share.kind);
            for (key, revision) in &old {
                step.has_risen |= *revision > new.floor;
                new.floor = new.floor.max(*revision);
                writes.rows.insert((account, key.clone()), None);
            }
            new.tombstones = new.tombstones.saturating_sub(old.len() as u64);
            step.tombstones += old.len();
        }
        if step.tombstones == 0 {
            connection.run("forget tombstones", "ROLLBACK").await?;
            return Ok(step);
        }
        writes.heads.insert(account, head);
        transact::end(self, connection, &[account], &writes, &Identity::random().0).await?;
        Ok(step)
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
    connection: &Connection,
    account: AccountId,
    head: &AccountRow,
    share: &KindRow,
    before: u64,
    limit: usize,
) -> Result<Vec<(Vec<u8>, Revision)>, AttemptError> {
    let prefix = tombstone_prefix(share.kind);
    let to = after_prefix(&prefix);
    let mut from = prefix;
    from.put_number(if head.is_erasing { 0 } else { share.floor.0 });
    let (number, limit) = (account_to_sql(account), to_sql(limit as u64));
    let parameters: [&(dyn ToSql + Sync); 4] = [&number, &from, &to, &limit];
    let mut old = Vec::new();
    for row in connection.query("look for tombstones", TOMBSTONES, &parameters).await? {
        let (key, value): (&[u8], &[u8]) = (column(&row, 0)?, column(&row, 1)?);
        let parts = decode_history_key(key).zip(TombstoneRow::decode(value));
        let (parts, tombstone) = parts.ok_or_else(|| corrupt(account, key))?;
        if tombstone.second >= before {
            break;
        }
        old.push((key.to_vec(), parts.revision));
    }
    Ok(old)
}
