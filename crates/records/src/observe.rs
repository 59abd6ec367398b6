//! Metrics and tracing, shared by all engines.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use restante_core::{ErrorKind, Identity, Timestamp};
use tracing::{Instrument, debug, debug_span, info, warn};

use crate::{
    AccountId, Change, Changes, ChangesSince, Checkpoint, Cleaned, Commit, Committed, Count, Dumped, Erased,
    Error, Feed, FeedRequest, Gate, Get, Metrics, Opened, Page, Position, Query, Record, RecordKey, Records,
    Referenced, Report, Revision, States, Stats, Touched, UnsyncedBlobs, Upkeep, Watch,
    metrics::{ChangeLabel, Operation},
};

/// A record store that counts and times the calls to another one.
struct Observed {
    inner: Opened,
    metrics: Metrics,
    /// For calls that write.
    writes: Outage,
    /// For calls that only read.
    reads: Outage,
}

/// The same store with metrics for all calls.
pub(crate) fn observe(inner: Opened, metrics: Metrics) -> Opened {
    let peers = inner.peers.clone();
    let observed = Arc::new(Observed { inner, metrics, writes: Outage::default(), reads: Outage::default() });
    Opened { records: observed.clone(), feed: observed.clone(), upkeep: observed, peers }
}

/// Whether an operation has failed since the last success. An outage is logged once, however many operations fail meanwhile.
#[derive(Default)]
struct Outage(AtomicBool);

impl Outage {
    fn begins(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    fn ends(&self) -> bool {
        // Load first: every operation gets here, and most end no outage.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// How many records a commit creates, updates and destroys.
#[derive(Default)]
struct Counts {
    created: u64,
    updated: u64,
    destroyed: u64,
}

impl Counts {
    fn of(commit: &Commit) -> Self {
        let mut counts = Self::default();
        for change in &commit.changes {
            match change {
                Change::Create { .. } => counts.created += 1,
                Change::Update { .. } => counts.updated += 1,
                Change::Destroy { .. } => counts.destroyed += 1,
            }
        }
        counts
    }
}

impl Observed {
    fn noted<T>(&self, operation: Operation, outage: &Outage, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Ok(_) if outage.ends() => {
                info!(operation = operation.as_str(), "record operations succeed again")
            }
            Ok(_) => {}
            Err(error) => self.failed(operation, outage, error),
        }
        result
    }

    fn noted_write<T>(&self, operation: Operation, result: Result<T, Error>) -> Result<T, Error> {
        self.noted(operation, &self.writes, result)
    }

    fn noted_read<T>(&self, operation: Operation, result: Result<T, Error>) -> Result<T, Error> {
        self.noted(operation, &self.reads, result)
    }

    fn failed(&self, operation: Operation, outage: &Outage, error: &Error) {
        self.metrics.errors_of(operation, error.kind()).inc();
        let is_callers_fault =
            matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Conflict);
        if is_callers_fault {
            return;
        }
        let (operation, kind) = (operation.as_str(), error.kind().as_str());
        if error.is_transient() && !outage.begins() {
            debug!(operation, kind, %error, "record operation failed again");
        } else {
            warn!(operation, kind, %error, "record operation failed");
        }
    }

    fn committed(&self, counts: &Counts) {
        let counted = [
            (ChangeLabel::CREATE, counts.created),
            (ChangeLabel::UPDATE, counts.updated),
            (ChangeLabel::DESTROY, counts.destroyed),
        ];
        for (label, count) in counted {
            self.metrics.changes.get_or_create(&label).inc_by(count);
        }
    }
}

/// The time at which the last of these gates opened; initially now.
fn last_opened(gates: &[Gate]) -> Arc<Mutex<Instant>> {
    let last = Arc::new(Mutex::new(Instant::now()));
    for gate in gates {
        let last = last.clone();
        gate.on_end(move |_| *last.lock() = Instant::now());
    }
    last
}

#[async_trait]
impl Records for Observed {
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        self.commit_after(&[], account, commit).await
    }

    fn makes_blobs_durable(&self) -> bool {
        self.inner.records.makes_blobs_durable()
    }

    async fn commit_after(
        &self,
        gates: &[Gate],
        account: AccountId,
        commit: Commit,
    ) -> Result<Committed, Error> {
        let counts = Counts::of(&commit);
        let span = debug_span!("records_commit", account = account.0, changes = commit.changes.len());
        let begun = last_opened(gates);
        let result = self.inner.records.commit_after(gates, account, commit).instrument(span).await;
        if result.is_err() && gates.iter().any(|gate| gate.failure().is_some()) {
            return result; // not a failure of the records
        }
        let begun = *begun.lock();
        self.metrics.commit_seconds.observe(begun.elapsed().as_secs_f64());
        if result.is_ok() {
            self.committed(&counts);
            let blobs = gates.iter().filter(|gate| gate.unsynced().is_some()).count();
            self.metrics.committed_blobs.inc_by(blobs as u64);
        }
        self.noted_write(Operation::Commit, result)
    }

    /// A read by id takes about a microsecond: it is counted, but neither timed nor traced.
    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        self.metrics.gets.inc();
        let result = self.inner.records.get(account, get).await;
        self.noted_read(Operation::Get, result)
    }

    async fn get_with_state(
        &self,
        account: AccountId,
        get: &Get,
    ) -> Result<(Revision, Vec<Option<Record>>), Error> {
        self.metrics.gets.inc();
        let result = self.inner.records.get_with_state(account, get).await;
        self.noted_read(Operation::Get, result)
    }

    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        let span = debug_span!("records_query", account = account.0, limit = query.limit);
        let begun = Instant::now();
        let result = self.inner.records.query(account, query).instrument(span).await;
        self.metrics.query_seconds.observe(begun.elapsed().as_secs_f64());
        self.noted_read(Operation::Query, result)
    }

    async fn query_each(&self, account: AccountId, queries: &[Query]) -> Result<Vec<Page>, Error> {
        let span = debug_span!("records_query_each", account = account.0, queries = queries.len());
        let begun = Instant::now();
        let result = self.inner.records.query_each(account, queries).instrument(span).await;
        self.metrics.query_seconds.observe(begun.elapsed().as_secs_f64());
        self.noted_read(Operation::Query, result)
    }

    async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        self.noted_read(Operation::Query, self.inner.records.count(account, query).await)
    }

    async fn changes(&self, account: AccountId, since: &ChangesSince) -> Result<Changes, Error> {
        self.noted_read(Operation::Changes, self.inner.records.changes(account, since).await)
    }

    async fn states(&self, account: AccountId) -> Result<States, Error> {
        self.noted_read(Operation::States, self.inner.records.states(account).await)
    }

    fn watch(&self) -> Watch {
        self.inner.records.watch()
    }
}

#[async_trait]
impl Feed for Observed {
    async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
        self.noted_read(Operation::Feed, self.inner.feed.touched(after, limit).await)
    }

    async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        self.noted_read(Operation::Feed, self.inner.feed.follow(account, request).await)
    }

    async fn checkpoint(&self, follower: &str, accounts: &[AccountId]) -> Result<Checkpoint, Error> {
        self.noted_read(Operation::Feed, self.inner.feed.checkpoint(follower, accounts).await)
    }

    async fn save(&self, follower: &str, checkpoint: &Checkpoint) -> Result<(), Error> {
        self.noted_write(Operation::Feed, self.inner.feed.save(follower, checkpoint).await)
    }

    async fn forget(&self, follower: &str) -> Result<(), Error> {
        self.noted_write(Operation::Feed, self.inner.feed.forget(follower).await)
    }

    async fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        self.noted_read(Operation::Feed, self.inner.feed.followers().await)
    }
}

#[async_trait]
impl Upkeep for Observed {
    async fn stats(&self) -> Result<Stats, Error> {
        self.noted_read(Operation::Upkeep, self.inner.upkeep.stats().await)
    }

    fn health(&self) -> Result<(), Error> {
        self.inner.upkeep.health()
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.noted_read(Operation::Upkeep, self.inner.upkeep.check(progress).await)
    }

    async fn clean(&self, before: Timestamp, limit: usize) -> Result<Cleaned, Error> {
        let result = self.inner.upkeep.clean(before, limit).await;
        if let Ok(cleaned) = &result {
            self.metrics.cleaned_tombstones.inc_by(cleaned.tombstones);
        }
        self.noted_write(Operation::Upkeep, result)
    }

    async fn erase(&self, account: AccountId, limit: usize) -> Result<Erased, Error> {
        let result = self.inner.upkeep.erase(account, limit).await;
        if let Ok(erased) = &result {
            self.metrics.erased_records.inc_by(erased.records);
        }
        self.noted_write(Operation::Upkeep, result)
    }

    async fn dump(&self, after: Option<RecordKey>, limit: usize) -> Result<Vec<Dumped>, Error> {
        self.noted_read(Operation::Upkeep, self.inner.upkeep.dump(after, limit).await)
    }

    async fn referenced(&self, after: Option<u64>) -> Result<Referenced, Error> {
        self.noted_read(Operation::Upkeep, self.inner.upkeep.referenced(after).await)
    }

    fn identity(&self) -> Identity {
        self.inner.upkeep.identity()
    }

    fn restores(&self) -> u64 {
        self.inner.upkeep.restores()
    }

    async fn has_blobs_to_put(&self) -> Result<bool, Error> {
        self.inner.upkeep.has_blobs_to_put().await
    }

    async fn put_blobs_again(&self, blobs: Arc<dyn UnsyncedBlobs>) -> Result<u64, Error> {
        self.inner.upkeep.put_blobs_again(blobs).await
    }

    async fn backup(&self, folder: &Path) -> Result<(), Error> {
        // A backup reads the store and writes elsewhere: when it fails, reads and commits may still work.
        let result = self.inner.upkeep.backup(folder).await;
        if let Err(error) = &result {
            self.failed(Operation::Upkeep, &Outage::default(), error);
        }
        result
    }

    async fn close(&self) -> Result<(), Error> {
        let result = self.inner.upkeep.close().await;
        if let Err(error) = &result {
            self.failed(Operation::Upkeep, &self.writes, error);
        }
        result
    }
}
