//! Cassandra: a partition for each account with the same keys as the `lmdb` engine, and one conditional batch per commit.
//!
//! `docs/design/records.md` gives the reasons, `docs/formats/records-cassandra.md` the tables.
//!
//! - [`connect`], [`options`]: connections and statements. [`error`]: what an error of the database means.
//! - [`open`], [`reindex`]: tables, restores, indexes. [`schema`]: tables and keys. [`head`]: the head of an account.
//! - [`commit`], [`transact`], [`bodies`], [`finish`]: commits. [`sequence`]: positions and numbers.
//! - [`view`], [`holds`], [`read`], [`query`], [`changes`], [`feed`]: reads. [`listen`]: commits of other servers.
//! - [`accounts`], [`check`], [`clean`], [`dump`], [`erase`], [`stats`]: upkeep. [`transfer`]: moves.

mod accounts;
mod bodies;
mod changes;
mod check;
mod clean;
mod commit;
mod connect;
mod dump;
mod erase;
mod error;
mod feed;
mod finish;
mod head;
mod holds;
mod listen;
mod open;
mod options;
mod query;
mod read;
mod reindex;
mod schema;
mod sequence;
mod stats;
mod transact;
mod transfer;
mod view;

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;
use restante_core::{Clock, Identity, Timestamp};
use tokio::{
    runtime::Handle,
    sync::mpsc,
    task::{AbortHandle, JoinHandle},
};

use self::{
    commit::{Queue, closed},
    connect::Database,
    holds::Holds,
    sequence::Sequence,
};
use crate::{
    AccountId, CassandraUrl, Changes, ChangesSince, Checkpoint, Cleaned, Commit, Committed, Config, Count,
    Dumped, Erased, Error, Feed, FeedRequest, Get, Metrics, Moving, Opened, Page, PeerCommit, PeerCommits,
    Peers, Position, Query, Record, RecordKey, Records, Referenced, Report, Revision, Schema, States, Stats,
    Touched, Upkeep, Watch, map::announce::Announcements, open::Purpose, validate,
};

/// Opens the records of a keyspace, and creates their tables when they don't exist.
///
/// # Errors
/// `NotFound` when there are none and they must exist; `Unavailable` when no node can be reached; `Conflict` when another server
/// has the records open with other indexes, or when servers have them open and they are to be moved, or the reverse; `Invalid`
/// when tables have options that would break the guarantees, or when the stored schema can't become the requested one; `Corrupt`.
pub(crate) async fn open(url: &CassandraUrl, config: Config, purpose: Purpose) -> Result<Moving, Error> {
    let database = open::database(url, &config, purpose).await?;
    let (sequence, requests) = sequence::sequence();
    let (finisher, left) = finish::queue();
    let mut shared = Shared {
        database,
        url: url.clone(),
        schema: Arc::new(config.schema),
        sequence,
        announcements: Announcements::from(Position(0)),
        restores: AtomicU64::new(0),
        epoch: 0,
        has_other_indexes: AtomicBool::new(false),
        is_closed: AtomicBool::new(false),
        is_new: AtomicBool::new(false),
        identity: config.identity,
        server: server_id(),
        has_left: tokio::sync::Mutex::new(false),
        moving: None,
        body_numbers: tokio::sync::Mutex::new(0..0),
        confirmed: Mutex::new(HashMap::new()),
        holds: Holds::default(),
        finishing: Arc::default(),
        finisher,
        clock: config.clock,
        metrics: config.metrics,
    };
    open::begin(&mut shared, config.must_exist, purpose).await?;
    let shared = Arc::new(shared);
    let sequencer = tokio::spawn(sequence::run(shared.clone(), requests));
    let finisher = tokio::spawn(finish::run(shared.clone(), left));
    let listener = match purpose {
        Purpose::Serve => tokio::spawn(listen::run(shared.clone())),
        Purpose::Move => tokio::spawn(open::hold(shared.clone())),
    };
    let queue = Queue::new(shared.clone());
    let cassandra = Arc::new(Cassandra { shared, queue, tasks: [sequencer, finisher, listener] });
    let opened = Opened {
        records: cassandra.clone(),
        feed: cassandra.clone(),
        upkeep: cassandra.clone(),
        peers: Some(cassandra.clone()),
    };
    Ok(Moving { opened, transfer: cassandra })
}

/// Four random bytes.
fn server_id() -> [u8; 4] {
    let [a, b, c, d, ..] = Identity::random().0;
    [a, b, c, d]
}

/// What all parts of the engine share.
struct Shared {
    database: Database,
    url: CassandraUrl,
    schema: Arc<Schema>,
    sequence: Sequence,
    announcements: Announcements,
    /// How many restores the records have been through.
    restores: AtomicU64,
    /// The index epoch of this server: an account has the same indexes when its head has this number.
    epoch: u64,
    has_other_indexes: AtomicBool,
    is_closed: AtomicBool,
    /// Whether this opening created the store, and no copy into it has begun.
    is_new: AtomicBool,
    identity: Identity,
    /// The first bytes of the marks of this server's changes.
    server: [u8; 4],
    /// Whether this server has announced that it closes the records. Locked during every announcement.
    has_left: tokio::sync::Mutex<bool>,
    /// The lease holder when this process has the records open to move them; `None` when it serves them.
    moving: Option<Identity>,
    /// Numbers that are reserved for bodies being copied.
    body_numbers: tokio::sync::Mutex<std::ops::Range<u64>>,
    /// Heads that are known to be visible to all readers, whichever node they query.
    confirmed: Mutex<HashMap<AccountId, view::Confirmed>>,
    /// Accounts whose readers hold up commits.
    holds: Holds,
    /// Held for reading until what commits have left behind is removed.
    finishing: Arc<tokio::sync::RwLock<()>>,
    finisher: mpsc::Sender<finish::Finishing>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
}

impl Shared {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The name of the store in the tables.
    fn store(&self) -> &str {
        self.url.store()
    }

    fn restores(&self) -> u64 {
        self.restores.load(Ordering::Acquire)
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// Fails when another server has changed the indexes.
    fn check_epoch(&self, epoch: u64) -> Result<(), Error> {
        if epoch <= self.epoch {
            return Ok(());
        }
        self.has_other_indexes.store(true, Ordering::Release);
        Err(other_indexes())
    }
}

fn other_indexes() -> Error {
    Error::unavailable(
        "another server has changed the indexes of the records: restart this one with the same version",
    )
}

/// Implements the traits of the crate.
struct Cassandra {
    shared: Arc<Shared>,
    queue: Queue,
    tasks: [JoinHandle<()>; 3],
}

impl Drop for Cassandra {
    /// Announces that a server that was not closed is gone, if there is still a runtime to do that on.
    fn drop(&mut self) {
        let tasks: Vec<AbortHandle> = self.tasks.iter().map(JoinHandle::abort_handle).collect();
        let abort = move || tasks.iter().for_each(AbortHandle::abort);
        let is_closed = self.shared.is_closed.swap(true, Ordering::AcqRel);
        match Handle::try_current() {
            Ok(runtime) if !is_closed => {
                let shared = self.shared.clone();
                runtime.spawn(async move {
                    shared.leave().await;
                    abort();
                });
            }
            _ => abort(),
        }
    }
}

#[async_trait]
impl Records for Cassandra {
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        validate::check_commit(&self.shared.schema, &commit)?;
        self.queue.commit(account, commit).await
    }

    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        validate::check_get(&self.shared.schema, get)?;
        self.shared.get(account, get).await.map(|(_, records)| records)
    }

    async fn get_with_state(
        &self,
        account: AccountId,
        get: &Get,
    ) -> Result<(Revision, Vec<Option<Record>>), Error> {
        validate::check_get(&self.shared.schema, get)?;
        self.shared.get(account, get).await
    }

    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        self.shared.query(account, query).await
    }

    async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        self.shared.count(account, query).await
    }

    async fn changes(&self, account: AccountId, since: &ChangesSince) -> Result<Changes, Error> {
        self.shared.changes(account, since).await
    }

    async fn states(&self, account: AccountId) -> Result<States, Error> {
        self.shared.states(account).await
    }

    fn watch(&self) -> Watch {
        self.shared.announcements.watch()
    }
}

impl Peers for Cassandra {
    fn commits(&self) -> PeerCommits {
        self.shared.announcements.peers.commits()
    }

    fn announce(&self, commit: PeerCommit) {
        self.shared.announcements.ahead(commit);
    }
}

#[async_trait]
impl Feed for Cassandra {
    async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
        validate::check_touched(limit)?;
        Ok(self.shared.read_touched(after, limit).await?.touched)
    }

    async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        self.shared.follow(account, request).await
    }

    async fn checkpoint(&self, follower: &str, accounts: &[AccountId]) -> Result<Checkpoint, Error> {
        self.shared.checkpoint(follower, accounts).await
    }

    async fn save(&self, follower: &str, checkpoint: &Checkpoint) -> Result<(), Error> {
        self.shared.save(follower, checkpoint).await
    }

    async fn forget(&self, follower: &str) -> Result<(), Error> {
        self.shared.forget(follower).await
    }

    async fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        self.shared.followers().await
    }
}

#[async_trait]
impl Upkeep for Cassandra {
    async fn stats(&self) -> Result<Stats, Error> {
        self.shared.stats().await
    }

    fn health(&self) -> Result<(), Error> {
        self.shared.check_open()?;
        if self.shared.has_other_indexes.load(Ordering::Acquire) {
            return Err(other_indexes());
        }
        self.shared.database.health()
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        check::check(&self.shared, progress).await
    }

    async fn clean(&self, before: Timestamp, limit: usize) -> Result<Cleaned, Error> {
        self.shared.clean(before, limit).await
    }

    async fn erase(&self, account: AccountId, limit: usize) -> Result<Erased, Error> {
        self.shared.erase(account, limit).await
    }

    async fn dump(&self, after: Option<RecordKey>, limit: usize) -> Result<Vec<Dumped>, Error> {
        self.shared.dump(after, limit).await
    }

    async fn referenced(&self, after: Option<u64>) -> Result<Referenced, Error> {
        self.shared.referenced(after).await
    }

    fn identity(&self) -> Identity {
        self.shared.identity
    }

    fn restores(&self) -> u64 {
        self.shared.restores()
    }

    async fn backup(&self, _folder: &Path) -> Result<(), Error> {
        let what = format!(
            "the records lie in Cassandra, which keeps them: back them up by nodetool snapshot {} on each node",
            self.shared.url.keyspace()
        );
        Err(Error::invalid(what))
    }

    async fn close(&self) -> Result<(), Error> {
        self.queue.close().await;
        drop(self.shared.finishing.write().await); // wait until what commits have left behind is removed
        if !self.shared.is_closed.swap(true, Ordering::AcqRel) {
            self.shared.leave().await;
        }
        for task in &self.tasks {
            task.abort();
        }
        Ok(())
    }
}
