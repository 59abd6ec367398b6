//! PostgreSQL: an ordered map with the same keys as the `lmdb` engine, one row for each account, several servers on one database.
//!
//! `docs/design/records.md` gives the reasons, `docs/formats/records-postgres.md` the tables.
//!
//! - [`connect`]: connections, lost ones and new ones. [`error`]: what an error of the database means.
//! - [`open`], [`reindex`]: tables, restores, indexes. [`schema`]: tables and keys.
//! - [`commit`], [`transact`]: commits of many accounts in one transaction.
//! - [`read`], [`query`], [`changes`], [`feed`]: reads. [`listen`]: commits of this server and of others.
//! - [`check`], [`clean`], [`dump`], [`erase`], [`stats`]: upkeep. [`transfer`]: moving the records to another engine.

mod changes;
mod check;
mod clean;
mod commit;
mod connect;
mod dump;
mod erase;
mod error;
mod feed;
mod listen;
mod open;
mod options;
mod query;
mod read;
mod reindex;
mod schema;
mod stats;
mod transact;
mod transfer;

pub(crate) use self::options::ConnectOptions;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use restante_core::{Clock, Identity, Timestamp};
use tokio::task::JoinHandle;

use self::{
    commit::{Queue, closed},
    connect::{Database, Lease},
    error::AttemptError,
    listen::Listener,
};
use crate::{
    AccountId, Changes, ChangesSince, Checkpoint, Cleaned, Commit, Committed, Config, Count, Dumped, Erased,
    Error, Feed, FeedRequest, Get, Metrics, Moving, Opened, Page, Position, PostgresUrl, Query, Record,
    RecordKey, Records, Referenced, Report, Schema, States, Stats, Touched, Upkeep, Watch,
    map::announce::Announcements, open::Purpose, transfer::incomplete, validate,
};

/// How long creating tables and indexes may take on opening.
const PREPARING: Duration = Duration::from_secs(24 * 3_600);

/// Opens the records of a database, and creates their tables when they don't exist.
///
/// # Errors
/// `NotFound` when there are none and they must exist; `Unavailable` when the server can't be reached; `Conflict` when another
/// server has the records open with other indexes, or has them open at all when they are to be moved; `Invalid` when the server
/// may lose what it acknowledged, or when the stored schema can't become the requested one; `Corrupt`.
pub(crate) async fn open(url: &PostgresUrl, config: Config, purpose: Purpose) -> Result<Moving, Error> {
    let database = Database::new(url, &config.postgres)?;
    let channel = format!("restante_{}", url.schema());
    let mut listener = Listener::connect(&database).await?;
    let found = begin(&mut listener, &database, url, &config, (&channel, purpose)).await?;
    let shared = Arc::new(Shared {
        database,
        url: url.clone(),
        schema: Arc::new(config.schema),
        announcements: Announcements::from(Position(found.state.position)),
        restores: AtomicU64::new(found.state.restores),
        epoch: found.state.epoch,
        has_other_indexes: AtomicBool::new(false),
        is_closed: AtomicBool::new(false),
        identity: found.identity,
        lock_name: format!("restante records open {}", url.schema()),
        channel,
        clock: config.clock,
        metrics: config.metrics,
    });
    let (queue, waitings) = commit::queue(config.postgres.write_connections.get());
    let writers = waitings.into_iter().map(|waitings| tokio::spawn(commit::run(shared.clone(), waitings)));
    let writers = Mutex::new(writers.collect());
    let listener = match purpose {
        Purpose::Serve => tokio::spawn(listen::run(shared.clone(), listener)),
        Purpose::Move => tokio::spawn(listen::hold(shared.clone(), listener)),
    };
    let postgres = Arc::new(Postgres { shared, queue, writers, listener });
    let opened =
        Opened { records: postgres.clone(), feed: postgres.clone(), upkeep: postgres.clone(), peers: None };
    Ok(Moving { opened, transfer: postgres })
}

/// Prepares the tables and starts listening. No other server does so at the same time.
async fn begin(
    listener: &mut Listener,
    database: &Database,
    url: &PostgresUrl,
    config: &Config,
    (channel, purpose): (&str, Purpose),
) -> Result<open::Found, Error> {
    let connection = listener.connection.clone();
    listener.run(PREPARING, open::lock_opening(&connection, url)).await?;
    let new = open::New { identity: config.identity, is_incomplete: purpose == Purpose::Move };
    let new = (!config.must_exist).then_some(new);
    let prepared = Box::pin(open::prepare(&connection, database, url, &config.schema, new));
    let mut found = listener.run(PREPARING, prepared).await?;
    match purpose {
        Purpose::Serve => {
            listener.listen(url, channel).await?;
            // Checked after taking the lock: from now on nobody can begin a copy.
            if listener.run(PREPARING, open::is_incomplete(&connection)).await? {
                return Err(incomplete());
            }
        }
        Purpose::Move => listener.run(PREPARING, open::lock_alone(&connection, url)).await?,
    }
    let state = async {
        let state = open::read_state(&connection).await?;
        open::unlock_opening(&connection, url).await?;
        Ok(state)
    };
    found.state = listener.run(PREPARING, state).await?;
    Ok(found)
}

/// What all parts of the engine share.
struct Shared {
    database: Database,
    url: PostgresUrl,
    schema: Arc<Schema>,
    announcements: Announcements,
    /// How many restores the records have been through.
    restores: AtomicU64,
    /// The index epoch of this server: the indexes are unchanged as long as `feed_head` has this number.
    epoch: i64,
    has_other_indexes: AtomicBool,
    is_closed: AtomicBool,
    identity: Identity,
    /// The name of the lock that servers hold while they have the records open.
    lock_name: String,
    /// The channel on which commits are notified.
    channel: String,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
}

impl Shared {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// Fails when another server has changed the indexes.
    fn check_epoch(&self, epoch: i64) -> Result<(), Error> {
        if epoch == self.epoch {
            return Ok(());
        }
        self.has_other_indexes.store(true, Ordering::Release);
        Err(other_indexes())
    }

    async fn reader(&self) -> Result<Lease, Error> {
        self.lease(|| self.database.reader()).await
    }

    async fn writer(&self) -> Result<Lease, Error> {
        self.lease(|| self.database.writer()).await
    }

    /// A connection for changes other than commits, unless the store is closed.
    async fn caretaker(&self) -> Result<Lease, Error> {
        self.check_open()?;
        self.lease(|| self.database.caretaker()).await
    }

    /// A connection to a database that was checked for a restore.
    async fn lease<F>(&self, take: impl Fn() -> F) -> Result<Lease, Error>
    where
        F: Future<Output = Result<Lease, Error>>,
    {
        self.database.connector.take_settled(|| self.settle_if_moved(), take).await
    }

    /// Runs a read of upkeep.
    async fn read<T>(
        &self,
        what: &'static str,
        work: impl AsyncFnOnce(&connect::Connection) -> Result<T, AttemptError>,
    ) -> Result<T, Error> {
        let lease = self.lease(|| self.database.maintainer()).await?;
        let connection = lease.connection.clone();
        Ok(lease.drive(what, work(&connection)).await?)
    }
}

fn other_indexes() -> Error {
    Error::unavailable(
        "another server has changed the indexes of the records: restart this one with the same version",
    )
}

/// Implements the traits of the crate.
struct Postgres {
    shared: Arc<Shared>,
    queue: Queue,
    writers: Mutex<Vec<JoinHandle<()>>>,
    listener: JoinHandle<()>,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.listener.abort();
        for writer in self.writers.lock().iter() {
            writer.abort();
        }
    }
}

#[async_trait]
impl Records for Postgres {
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        self.shared.commit(&self.queue, account, commit).await
    }

    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
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

#[async_trait]
impl Feed for Postgres {
    async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
        self.shared.touched(after, limit).await
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
impl Upkeep for Postgres {
    async fn stats(&self) -> Result<Stats, Error> {
        self.shared.stats().await
    }

    fn health(&self) -> Result<(), Error> {
        self.shared.check_open()?;
        if self.shared.has_other_indexes.load(Ordering::Acquire) {
            return Err(other_indexes());
        }
        self.shared.database.connector.reach.health()
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
            "the records lie in PostgreSQL, which keeps them: back them up by pg_dump --schema={}, or the whole server by \
             pg_basebackup",
            self.shared.url.schema()
        );
        Err(Error::invalid(what))
    }

    async fn close(&self) -> Result<(), Error> {
        self.shared.is_closed.store(true, Ordering::Release);
        self.queue.close();
        let writers = std::mem::take(&mut *self.writers.lock());
        for writer in writers {
            writer.await.map_err(|error| {
                Error::internal("a writer of the records has panicked").with_source(error)
            })?;
        }
        self.listener.abort();
        self.shared.database.close();
        Ok(())
    }
}
