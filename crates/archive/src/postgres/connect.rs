//! Connections: a pool that reads and one that writes, opened when they are needed and again when they were lost.

use std::{
    collections::HashMap,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool::managed::{self, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult, Timeouts};
use parking_lot::Mutex;
use restante_core::{Clock, ErrorKind, Timestamp};
use tokio_postgres::{Client, NoTls, Statement};
use tracing::{debug, info, warn};

use super::{fault, schema::SelectKey};
use crate::{Config, Error, PostgresUrl};

/// How long nobody tries to connect after a failure, growing from the first to the second.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// Prepared statements of one connection: five plans of a year of daily windows. When there are more, all are let go.
const STATEMENTS_MAX: usize = 2_000;
/// What the network may take beyond the server's own time-out.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection from the pool. One whose work was given up, at an error or a time-out, is not used again: nobody knows what
/// it still has to say.
pub(super) struct Lease(Object<Connector>);

impl Lease {
    fn begin(object: Object<Connector>) -> Self {
        object.is_at_work.store(true, Ordering::Relaxed);
        Self(object)
    }

    /// Gives the connection back: its work is done.
    pub(super) fn end(self) {
        self.0.is_at_work.store(false, Ordering::Relaxed);
    }
}

impl Deref for Lease {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.0
    }
}

/// The way to the database.
pub(super) struct Database {
    read: Pool<Connector>,
    write: Pool<Connector>,
    pub(super) reach: Arc<Reach>,
    timeout: Duration,
}

impl Database {
    pub(super) fn new(url: &PostgresUrl, config: &Config) -> Result<Self, Error> {
        let parsed: tokio_postgres::Config = url
            .connection()
            .parse()
            .map_err(|error| Error::invalid(format!("archive URL {url} is not understood: {error}")))?;
        let settings = &config.postgres;
        let reach = Arc::new(Reach::new(config.clock.clone()));
        let pool = |size: usize, is_writer: bool| {
            let connector = Connector {
                config: with_defaults(parsed.clone(), settings.connect_timeout_ms),
                session: session(url, settings.statement_timeout_ms, is_writer),
                reach: reach.clone(),
            };
            let wait = Some(Duration::from_millis(settings.statement_timeout_ms));
            let timeouts = Timeouts { wait, create: None, recycle: None };
            Pool::builder(connector)
                .max_size(size.max(1))
                .timeouts(timeouts)
                .runtime(deadpool::Runtime::Tokio1)
                .build()
                .map_err(|error| Error::new(ErrorKind::Internal, "can't make a pool").with_source(error))
        };
        Ok(Self {
            read: pool(settings.read_connections, false)?,
            write: pool(settings.write_connections + 1, true)?, // one more for upkeep
            reach,
            timeout: Duration::from_millis(settings.statement_timeout_ms) + NETWORK_TIMEOUT,
        })
    }

    /// A connection that only reads.
    pub(super) async fn reader(&self) -> Result<Lease, Error> {
        self.read.get().await.map(Lease::begin).map_err(|error| self.no_connection(error))
    }

    /// A connection that writes.
    pub(super) async fn writer(&self) -> Result<Lease, Error> {
        self.write.get().await.map(Lease::begin).map_err(|error| self.no_connection(error))
    }

    fn no_connection(&self, error: PoolError<Error>) -> Error {
        match error {
            PoolError::Backend(error) => error,
            PoolError::Timeout(_) => {
                Error::new(ErrorKind::Unavailable, "no connection to postgres came free in time")
            }
            error => {
                Error::new(ErrorKind::Unavailable, "there is no connection to postgres").with_source(error)
            }
        }
    }

    /// Waits for an answer of the database, but not for ever: a server that hangs is as good as gone.
    pub(super) async fn in_time<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(Ok(value)) => {
                self.reach.found();
                Ok(value)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let error = Error::new(ErrorKind::Unavailable, format!("postgres took too long to {what}"));
                self.reach.lost(&error.to_string());
                Err(error)
            }
        }
    }

    pub(super) fn close(&self) {
        self.read.close();
        self.write.close();
    }
}

fn with_defaults(mut config: tokio_postgres::Config, connect_timeout_ms: u64) -> tokio_postgres::Config {
    config.connect_timeout(Duration::from_millis(connect_timeout_ms));
    if config.get_application_name().is_none() {
        config.application_name("restante");
    }
    if config.get_password().is_none()
        && let Ok(password) = std::env::var("PGPASSWORD")
    {
        config.password(password);
    }
    config
}

/// What each connection is told first: who it is for, and for how long.
fn session(url: &PostgresUrl, statement_timeout_ms: u64, is_writer: bool) -> String {
    let read_only = if is_writer { "off" } else { "on" };
    format!(
        "SET search_path = {}; SET statement_timeout = {statement_timeout_ms}; \
         SET lock_timeout = {statement_timeout_ms}; SET default_transaction_read_only = {read_only}; \
         SET client_min_messages = warning; {PLANNER}",
        url.schema()
    )
}

/// Every statement of ours has one right plan, by an index; what could tempt the planner away from it, when its statistics
/// are old or a table is nearly empty, is switched off. Rows of a page are sorted in memory.
pub(super) const PLANNER: &str = "\
    SET plan_cache_mode = force_generic_plan; SET jit = off; SET work_mem = '32MB'; \
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_hashjoin = off; \
    SET enable_mergejoin = off; SET enable_material = off; SET max_parallel_workers_per_gather = 0";

/// Makes connections.
pub(super) struct Connector {
    config: tokio_postgres::Config,
    session: String,
    reach: Arc<Reach>,
}

/// A connection and the statements that it knows.
pub(super) struct Connection {
    pub(super) client: Client,
    is_at_work: AtomicBool,
    prepared: Mutex<HashMap<SelectKey, Statement>>,
}

impl Connection {
    /// The statement of that key, prepared when it is asked for first.
    pub(super) async fn prepared(
        &self,
        key: SelectKey,
        sql: impl FnOnce() -> String,
    ) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.prepared.lock().get(&key) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(&sql()).await?;
        let mut prepared = self.prepared.lock();
        if prepared.len() >= STATEMENTS_MAX {
            prepared.clear();
        }
        prepared.insert(key, statement.clone());
        Ok(statement)
    }
}

impl managed::Manager for Connector {
    type Type = Connection;
    type Error = Error;

    async fn create(&self) -> Result<Connection, Error> {
        self.reach.check_back_off()?;
        let connected = self.connect().await;
        if let Err(error) = &connected {
            self.reach.lost(&error.to_string());
        }
        let client = connected?;
        self.reach.found();
        Ok(Connection { client, is_at_work: AtomicBool::new(false), prepared: Mutex::default() })
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<Error> {
        if connection.client.is_closed() || connection.is_at_work.load(Ordering::Relaxed) {
            return Err(RecycleError::message("the connection was lost, or its work was given up"));
        }
        Ok(())
    }
}

impl Connector {
    async fn connect(&self) -> Result<Client, Error> {
        let (client, connection) =
            self.config.connect(NoTls).await.map_err(|error| fault::failed("be reached", error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection to postgres ended");
            }
        });
        client
            .batch_execute(&self.session)
            .await
            .map_err(|error| fault::failed("set up a connection", error))?;
        Ok(client)
    }
}

/// Whether the database is within reach, and when to try again.
pub(super) struct Reach {
    is_lost: AtomicBool,
    loss: Mutex<Loss>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Loss {
    problem: Option<String>,
    since: Option<Timestamp>,
    delay: Duration,
    retry_at: Option<Instant>,
}

impl Reach {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self { is_lost: AtomicBool::new(false), loss: Mutex::default(), clock }
    }

    /// Refuses until the back-off has passed: a database that restarts is not stormed.
    fn check_back_off(&self) -> Result<(), Error> {
        let loss = self.loss.lock();
        let waits = loss.retry_at.is_some_and(|retry_at| Instant::now() < retry_at);
        match &loss.problem {
            Some(problem) if waits => Err(Error::new(ErrorKind::Unavailable, problem.clone())),
            _ => Ok(()),
        }
    }

    fn lost(&self, problem: &str) {
        let mut loss = self.loss.lock();
        if loss.since.is_none() {
            warn!(problem, "postgres is out of reach");
            loss.since = Some(self.clock.now());
        }
        loss.problem = Some(problem.to_owned());
        loss.delay = (loss.delay * 2).clamp(BACK_OFF_MIN, BACK_OFF_MAX);
        loss.retry_at = Some(Instant::now() + jittered(loss.delay));
        self.is_lost.store(true, Ordering::Release);
    }

    fn found(&self) {
        if !self.is_lost.load(Ordering::Acquire) {
            return;
        }
        let mut loss = self.loss.lock();
        if loss.since.is_some() {
            info!("postgres is within reach again");
        }
        *loss = Loss::default();
        self.is_lost.store(false, Ordering::Release);
    }

    /// What is wrong, and since when.
    pub(super) fn problem(&self) -> (Option<String>, Option<Timestamp>) {
        let loss = self.loss.lock();
        (loss.problem.clone(), loss.since)
    }
}

/// Half to all of a delay, so that several servers don't come back at the same moment.
fn jittered(delay: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let chance = RandomState::new().hash_one(0) % 512;
    delay / 2 + delay * chance as u32 / 1_024
}
