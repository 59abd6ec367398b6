//! Keeps records and blobs small while the server runs: tombstones of records that were destroyed long ago are removed, and so are
//! blobs that no record refers to. Destroyed emails are purged from the vault when their time is over. The mail of removed accounts is
//! erased.

mod metrics;
#[cfg(test)]
mod tests;

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use restante_backup::Removing;
use restante_blobs::{References, Swept};
use restante_core::{BlobId, Clock, Identity, Timestamp};
use restante_directory::{Actor, Answer, Directory, Operation, PAGE_MAX};
use restante_mail::{Mail, MailError};
use restante_records::{AccountId, Cleaned};
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval, interval_at},
};
use tracing::{info, warn};

pub(crate) use metrics::TidyMetrics;

use crate::{
    clock,
    config::Config,
    doors::mail::{erasing::Eraser, stores::Stores},
    signals::Stop,
};

/// The delay of the first run, or the usual interval if that is shorter: a server that was just started is busy, but one that is
/// started every day must run it, too.
const FIRST_TURN: Duration = Duration::from_secs(600);

/// Tombstones that are removed in one step. Between two steps other tasks can run, and the server can stop.
const CLEAN_STEP: usize = 4_096;
/// How often destroyed emails are purged from vaults; their time is counted in days.
const PURGE_INTERVAL: Duration = Duration::from_secs(86_400);
/// How often the mail of removed accounts is erased, in addition to the run when an account is removed: deliveries in progress at that
/// time may have stored something.
const ERASE_INTERVAL: Duration = Duration::from_secs(3_600);
/// The most destroyed emails that one commit purges.
const PURGE_STEP: usize = 256;

/// What is tidied, and how long it is kept.
pub(crate) struct Tidying {
    records: Arc<dyn restante_records::Upkeep>,
    blobs: restante_blobs::Opened,
    mail: Mail,
    directory: Directory,
    eraser: Eraser,
    /// Notified when an account was removed.
    account_removed: Arc<Notify>,
    removing: Removing,
    clock: Arc<dyn Clock>,
    keep_destroyed_seconds: u64,
    clean_interval: Duration,
    sweep_grace_seconds: u64,
    sweep_interval: Duration,
    is_sweeping: bool,
    /// Set if records and blobs did not belong together at the start. Data that was stored since then does not make these the right blobs.
    mismatch: Option<Arc<SweepError>>,
    metrics: TidyMetrics,
}

impl Tidying {
    pub(crate) fn new(
        config: &Config,
        stores: &Stores,
        eraser: Eraser,
        account_removed: Arc<Notify>,
        metrics: TidyMetrics,
    ) -> Self {
        Self {
            records: stores.records.upkeep.clone(),
            blobs: stores.blobs.clone(),
            mail: eraser.mail.clone(),
            directory: eraser.directory.clone(),
            eraser,
            account_removed,
            removing: stores.removing.clone(),
            clock: clock::system(),
            keep_destroyed_seconds: config.records.keep_destroyed_seconds.get(),
            clean_interval: Duration::from_secs(config.records.clean_interval_seconds.get()),
            sweep_grace_seconds: config.blobs.sweep_grace_seconds.get(),
            sweep_interval: Duration::from_secs(config.blobs.sweep_interval_seconds.get()),
            is_sweeping: check_records_last(config).is_ok(),
            mismatch: stores.mismatch.as_ref().map(|mismatch| mismatch.error.clone()),
            metrics,
        }
    }

    /// Tidies at regular intervals until the server stops. A failed run is repeated at the next interval.
    pub(crate) async fn run(self, stop: Stop) {
        let cleaning = repeat(self.clean_interval, stop.clone(), || self.clean_and_tell());
        let sweeping = async {
            if self.is_sweeping {
                repeat(self.sweep_interval, stop.clone(), || self.sweep_and_tell()).await;
            }
        };
        let purging = repeat(PURGE_INTERVAL, stop.clone(), || self.purge_and_tell());
        let erasing = self.erase_until(stop.clone());
        tokio::join!(cleaning, sweeping, purging, erasing);
    }

    /// Erases the mail of removed accounts until the server stops: at once what the last process has left, then at regular intervals,
    /// and whenever an account is removed.
    async fn erase_until(&self, stop: Stop) {
        let mut ticks = interval(ERASE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopped = pin!(stop.requested());
        loop {
            let turn = async {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = self.account_removed.notified() => {}
                }
                self.erase_and_tell().await;
            };
            tokio::select! {
                () = turn => {}
                () = &mut stopped => return,
            }
        }
    }

    async fn erase_and_tell(&self) {
        let erased = self.eraser.erase(&|_| {}).await;
        self.metrics.note_erase(self.clock.now(), &erased);
        if let Err(error) = erased {
            warn!(%error, "the mail of removed accounts is not erased yet: it is tried again within an hour");
        }
    }

    async fn clean_and_tell(&self) {
        let now = self.clock.now();
        let cleaned = clean(&*self.records, before(now, self.keep_destroyed_seconds)).await;
        self.metrics.note_clean(now, &cleaned);
        match cleaned {
            Ok(Cleaned { tombstones: 0, .. }) => {}
            Ok(Cleaned { tombstones, accounts, .. }) => {
                info!(tombstones, accounts, "destroyed records are forgotten")
            }
            Err(error) => {
                warn!(%error, "destroyed records are not forgotten yet: it is tried again at the next turn")
            }
        }
    }

    async fn purge_and_tell(&self) {
        let purged = purge(&self.mail, &self.directory).await;
        self.metrics.note_purge(self.clock.now(), &purged);
        match purged {
            Ok(0) => {}
            Ok(emails) => info!(emails, "destroyed emails are purged from the vaults"),
            Err(error) => {
                warn!(%error, "destroyed emails are not purged from all vaults: it is tried again in a day")
            }
        }
    }

    async fn sweep_and_tell(&self) {
        // A backup that has copied the records still needs every blob that they refer to.
        let _turn = self.removing.lock().await;
        let now = self.clock.now();
        let put_before = before(now, self.sweep_grace_seconds);
        let swept = match &self.mismatch {
            Some(error) => Err(SweepError::SinceStart(error.clone())),
            None => sweep(&self.records, &self.blobs, put_before).await,
        };
        self.metrics.note_sweep(now, &swept);
        match swept {
            Ok(Swept { removed: 0, .. }) => {}
            Ok(Swept { blobs, removed, removed_bytes }) => {
                info!(blobs, removed, removed_bytes, "blobs that no record refers to are removed");
            }
            Err(error) => warn!(%error, "blobs are not swept: it is tried again at the next turn"),
        }
    }
}

/// The time this many seconds before `now`.
pub(crate) fn before(now: Timestamp, seconds: u64) -> Timestamp {
    now.plus_seconds(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_neg())
}

/// Runs `turn` at regular intervals until the server stops: then it is dropped at its current await.
async fn repeat<T: Future<Output = ()>>(interval: Duration, stop: Stop, turn: impl Fn() -> T) {
    let first = Instant::now() + interval.min(FIRST_TURN);
    let mut ticks = interval_at(first, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped = pin!(stop.requested());
    loop {
        tokio::select! {
            () = async { ticks.tick().await; turn().await } => {}
            () = &mut stopped => return,
        }
    }
}

/// Removes all tombstones from before a time, step by step.
pub(crate) async fn clean(
    records: &dyn restante_records::Upkeep,
    before: Timestamp,
) -> Result<Cleaned, restante_records::Error> {
    let mut all = Cleaned::default();
    loop {
        let step = records.clean(before, CLEAN_STEP).await?;
        all.tombstones += step.tombstones;
        all.accounts += step.accounts;
        // A step that removes nothing would be followed by more such steps.
        if !step.has_more || step.tombstones == 0 {
            return Ok(all);
        }
        tokio::task::yield_now().await;
    }
}

/// Purges emails that were destroyed too long ago to be restored from the vaults of all accounts, and returns how many it purged. An
/// account that fails does not stop the others.
pub(crate) async fn purge(mail: &Mail, directory: &Directory) -> Result<u64, MailError> {
    let actor = Actor(String::new()); // reads are not logged
    let (mut purged, mut failed, mut after) = (0, None, None);
    loop {
        let page = Operation::Accounts { domain: None, after, limit: PAGE_MAX };
        let Answer::Accounts(page) = directory.operate(&actor, page).await? else {
            return Err(restante_core::Error::internal("the directory answered another operation").into());
        };
        for account in page.items {
            match purge_account(mail, AccountId(account.account)).await {
                Ok(emails) => purged += emails,
                Err(error) => failed = Some(error),
            }
        }
        after = page.next;
        if after.is_none() {
            return failed.map_or(Ok(purged), Err);
        }
    }
}

async fn purge_account(mail: &Mail, account: AccountId) -> Result<u64, MailError> {
    let mut purged = 0;
    loop {
        let step = mail.purge_vault(account, PURGE_STEP).await?;
        purged += step.entries as u64;
        // A step that purges nothing would be followed by more such steps.
        if !step.has_more || step.entries == 0 {
            return Ok(purged);
        }
        tokio::task::yield_now().await;
    }
}

/// Why no blob was removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SweepError {
    /// The blobs have no recorded owner, and the records refer to none of them: more likely the right records are at another location
    /// than that all blobs are garbage.
    #[error(
        "there are blobs, and the records refer to none that is there: nothing is removed, since these may be the wrong \
         records; `restante blobs sweep --adopt` makes them the blobs of these records"
    )]
    WrongRecords,
    /// The next start would have other records, and the blobs would never belong to any records again.
    #[error(
        "records.url is memory: and the blobs stay when the server ends: they are not swept; set blobs.url to memory: too, or \
         keep the records with records.url = \"lmdb:<folder>\""
    )]
    RecordsInMemory,
    /// The blobs belong to other records: of another server, or from before these were recreated.
    #[error(
        "the blobs belong to the records {owner}, and these are the records {records}: nothing is removed; `restante blobs \
         sweep --adopt` makes them the blobs of these records"
    )]
    OtherRecords { owner: Identity, records: Identity },
    /// The disk of the blobs is not mounted, or they are lost.
    #[error(
        "the records refer to blobs, and there are none: is their disk not mounted? if they are lost, `restante blobs sweep --adopt` \
         makes this place that of the blobs of these records"
    )]
    NoBlobs,
    /// One of the errors above, found at the start of the server.
    #[error("{0}")]
    SinceStart(Arc<SweepError>),
    /// The records or the blobs have failed.
    #[error(transparent)]
    Failed(#[from] restante_core::Error),
}

impl SweepError {
    /// Whether records and blobs don't belong together: usually the disk of one of them is not mounted, and an empty folder was opened.
    pub(crate) fn is_mismatch(&self) -> bool {
        match self {
            Self::NoBlobs | Self::WrongRecords | Self::OtherRecords { .. } | Self::SinceStart(_) => true,
            Self::RecordsInMemory | Self::Failed(_) => false,
        }
    }
}

/// Removes the blobs that were last put before a time and that no record refers to.
pub(crate) async fn sweep(
    records: &Arc<dyn restante_records::Upkeep>,
    blobs: &restante_blobs::Opened,
    put_before: Timestamp,
) -> Result<Swept, SweepError> {
    settle_owner(&**records, blobs).await?;
    Ok(restante_blobs::sweep(&*blobs.upkeep, &OfRecords(records.clone()), put_before).await?)
}

/// Fails when blobs outlast the records: records in memory are new after each start.
pub(crate) fn check_records_last(config: &Config) -> Result<(), SweepError> {
    let are_in_memory = matches!(config.records_url(), restante_records::EngineUrl::Memory);
    let blobs_last = !matches!(config.blobs_url(), restante_blobs::EngineUrl::Memory);
    match are_in_memory && blobs_last {
        true => Err(SweepError::RecordsInMemory),
        false => Ok(()),
    }
}

/// Checks whether blobs belong to these records. Blobs without a recorded owner are assigned to these records if there are no blobs yet
/// and the records refer to none, or if the records refer to one of them.
pub(crate) async fn settle_owner(
    records: &dyn restante_records::Upkeep,
    blobs: &restante_blobs::Opened,
) -> Result<(), SweepError> {
    let identity = records.identity();
    match blobs.upkeep.owner().await? {
        Some(owner) if owner == identity => return Ok(()),
        Some(owner) => return Err(SweepError::OtherRecords { owner, records: identity }),
        None => {}
    }
    let are_new = blobs.upkeep.list(None, 1).await?.is_empty();
    match refer_to_some(records, &*blobs.blobs).await? {
        Some(true) => {}
        None if are_new => {}
        Some(false) if are_new => return Err(SweepError::NoBlobs),
        None | Some(false) => return Err(SweepError::WrongRecords),
    }
    Ok(blobs.upkeep.set_owner(identity).await?)
}

/// Whether at least one of the blobs exists that records refer to; `None` when they refer to none. Checks the first page of references:
/// of the right records nearly all of these exist, and of others, which were merely written to, none.
pub(super) async fn refer_to_some(
    records: &dyn restante_records::Upkeep,
    blobs: &dyn restante_blobs::Blobs,
) -> Result<Option<bool>, SweepError> {
    let mut after = None;
    loop {
        let page = records.referenced(after).await?;
        for blob in &page.blobs {
            if blobs.size(*blob).await?.is_some() {
                return Ok(Some(true));
            }
        }
        after = page.next;
        if !page.blobs.is_empty() || after.is_none() {
            return Ok((!page.blobs.is_empty()).then_some(false));
        }
    }
}

/// The blobs that records refer to.
struct OfRecords(Arc<dyn restante_records::Upkeep>);

#[async_trait::async_trait]
impl References for OfRecords {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    async fn page(&self, after: Option<u64>) -> Result<(Vec<BlobId>, Option<u64>), restante_blobs::Error> {
        let page = self.0.referenced(after).await;
        let page = page.map_err(|error| error.context("can't read which blobs the records refer to"))?;
        Ok((page.blobs, page.next))
    }
}
