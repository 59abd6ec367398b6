//! Erases the mail of accounts that were removed.
//!
//! The directory records a removed account in the commit that frees its address. The mail of such an account is erased at once, and
//! again at each start and each hour, so neither a crash nor a delivery that was accepted before the removal and stored after it leaves
//! anything behind. After [`KEPT_SECONDS`] no more mail can arrive, and the note is removed.

use std::{collections::BTreeSet, sync::Arc};

use restante_core::{Clock, Error};
use restante_directory::{Actor, Directory, PAGE_MAX, RemovedAccount};
use restante_mail::Mail;
use restante_records::AccountId;
use restante_smtp::DeliveryJournal;
use tokio::sync::Mutex;
use tracing::info;

/// Longer than any delivery or request takes that began before an account was removed.
const KEPT_SECONDS: i64 = 86_400;

/// Erases the mail of removed accounts.
#[derive(Clone)]
pub(crate) struct Eraser {
    pub(crate) mail: Mail,
    pub(crate) directory: Directory,
    pub(crate) records: Arc<dyn restante_records::Upkeep>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The actor for the log of operations.
    pub(crate) actor: Actor,
    /// The journal of deliveries, unless the settings disable it.
    pub(crate) journal: Option<DeliveryJournal>,
    /// The accounts whose journal entries this process has erased: erasing rewrites the journal's files.
    pub(crate) journal_erased: Arc<Mutex<BTreeSet<AccountId>>>,
}

impl Eraser {
    /// Erases the mail of all removed accounts, and returns for how many accounts something was erased. `progress` receives the number
    /// of erased records of an account. An account that fails does not stop the others.
    ///
    /// # Errors
    /// The last error of the records; calling it again continues.
    pub(crate) async fn erase(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<u64, Error> {
        let (mut accounts, mut failed, mut after) = (0, None, None);
        loop {
            let page = self.directory.removed_accounts(after.as_deref(), PAGE_MAX).await?;
            for removed in &page.items {
                match self.erase_account(removed, progress).await {
                    Ok(records) => accounts += u64::from(records > 0),
                    Err(error) => failed = Some(error),
                }
            }
            after = page.next;
            if after.is_none() {
                return failed.map_or(Ok(accounts), Err);
            }
        }
    }

    async fn erase_account(
        &self,
        removed: &RemovedAccount,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<u64, Error> {
        let RemovedAccount { account, address, .. } = removed;
        // Read first: otherwise a delivery between the erasing and the reading of the clock would be missed when the note is removed.
        let is_over = self.clock.now().seconds().saturating_sub(removed.removed) > KEPT_SECONDS;
        let of_journal = self.erase_deliveries(removed, is_over).await;
        let records = self.mail.erase(*account, &*self.records, progress).await?;
        if records > 0 {
            info!(account = account.0, records, "the mail of a removed account is erased");
            let what = format!("erased the mail of {address} with number {}: {records} records", account.0);
            self.directory.note(&self.actor, address, what).await?;
        }
        of_journal?;
        if is_over {
            self.directory.forget_removed(&self.actor, removed).await?;
        }
        Ok(records)
    }

    /// Erases the entries of an account in the journal of deliveries: once in the lifetime of this process, and at the end.
    async fn erase_deliveries(&self, removed: &RemovedAccount, is_over: bool) -> Result<(), Error> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let RemovedAccount { account, address, .. } = removed;
        if self.journal_erased.lock().await.contains(account) && !is_over {
            return Ok(());
        }
        journal.erase(*account, &address.to_string()).await?;
        let mut erased = self.journal_erased.lock().await;
        if is_over {
            erased.remove(account);
        } else {
            erased.insert(*account);
        }
        Ok(())
    }
}
