//! Connections: pools that open connections when they are needed, and again when they were lost.
//!
//! The archive has a pool of its own that does much the same: a role imports no other role.

use std::{
    collections::HashMap,
    future::poll_fn,
    num::NonZero,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::{Stream, stream};
use parking_lot::Mutex;
use restante_core::nonzero;
use rustix::net::sockopt;
use tokio::{
    io::BufReader,
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_postgres::{AsyncMessage, Client, Row, Statement, config::Host, tls::MakeTlsConnect, types::ToSql};
use tokio_postgres_rustls::MakeRustlsConnect;
use tracing::{info, warn};

use super::{
    error::{self, AttemptError, Doing},
    options::ConnectOptions,
};
use crate::{Error, PostgresConfig, PostgresUrl};

/// The pause before reconnecting after a failure, growing from the first to the second.
pub(super) const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// How often taking a connection is tried while each attempt gets to another database than the one before.
const TAKEN_MAX: u32 = 5;
/// Connections for upkeep.
const UPKEEP_CONNECTIONS: NonZero<usize> = nonzero!(2);
/// The most that one system call reads.
const READ_AHEAD_BYTES: usize = 64 << 10;
/// How long a host may be silent before its connections are closed.
const VANISHED: Duration = Duration::from_secs(60);
/// The port if the URL has none.
const PORT: u16 = 5432;
/// The network's share of a time-out, in addition to the server's own.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest that a statement of upkeep over all rows may take.
const LONG_TIMEOUT: Duration = Duration::from_secs(3_600);
/// The server ends an open transaction that waits this long for its next statement: its locks block all others.
const IDLE_TIMEOUT_MS: u64 = 10_000;

/// The connections to the database.
pub(super) struct Database {
    pub(super) connector: Arc<Connector>,
    read: Pool,
    write: Pool,
    upkeep: Pool,
    timeout: Duration,
}

impl Database {
    pub(super) fn new(url: &PostgresUrl, settings: &PostgresConfig) -> Result<Self, Error> {
        let connector = Arc::new(Connector::new(url, settings)?);
        let timeout = Duration::from_millis(settings.statement_timeout_ms.get()) + NETWORK_TIMEOUT;
        let pool = |size: NonZero<usize>| Pool::new(connector.clone(), size, timeout);
        Ok(Self {
            read: pool(settings.read_connections),
            write: pool(settings.write_connections),
            upkeep: pool(UPKEEP_CONNECTIONS),
            timeout,
            connector,
        })
    }

    /// A connection for reads.
    pub(super) async fn reader(&self) -> Result<Lease, Error> {
        self.read.lease(self.timeout).await
    }

    /// A connection for commits.
    pub(super) async fn writer(&self) -> Result<Lease, Error> {
        self.write.lease(self.timeout).await
    }

    /// A connection for upkeep in short steps.
    pub(super) async fn caretaker(&self) -> Result<Lease, Error> {
        self.upkeep.lease(self.timeout).await
    }

    /// A connection for upkeep whose statements may take long.
    pub(super) async fn maintainer(&self) -> Result<Lease, Error> {
        self.upkeep.lease(LONG_TIMEOUT).await
    }

    /// Lets no more connections be taken, and closes the idle ones.
    pub(super) fn close(&self) {
        for pool in [&self.read, &self.write, &self.upkeep] {
            pool.permits.close();
            pool.idle.lock().clear();
        }
    }
}

/// Connections that are reused. The most recently used one is taken first: it has prepared statements.
struct Pool {
    connector: Arc<Connector>,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Held>>>,
    wait: Duration,
}

impl Pool {
    fn new(connector: Arc<Connector>, size: NonZero<usize>, wait: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(size.get()));
        Self { connector, permits, idle: Arc::default(), wait }
    }

    async fn lease(&self, limit: Duration) -> Result<Lease, Error> {
        let permit = tokio::time::timeout(self.wait, self.permits.clone().acquire_owned()).await;
        let permit = permit.map_err(|_| Error::unavailable("no connection to postgres came free in time"))?;
        let permit = permit.map_err(|_| Error::unavailable("the record store is closed"))?;
        let idle = loop {
            let Some(mut held) = self.idle.lock().pop() else { break None };
            if held.is_well() {
                break Some(held);
            }
        };
        let held = match idle {
            Some(held) => held,
            None => Box::pin(self.connector.connect()).await?,
        };
        Ok(Lease {
            connection: held.connection.clone(),
            held: Some(held),
            idle: self.idle.clone(),
            limit,
            reach: self.connector.reach.clone(),
            permit,
        })
    }
}

/// A connection taken from its pool.
pub(super) struct Lease {
    pub(super) connection: Arc<Connection>,
    held: Option<Held>,
    idle: Arc<Mutex<Vec<Held>>>,
    limit: Duration,
    reach: Arc<Reach>,
    permit: OwnedSemaphorePermit,
}

impl Lease {
    /// Runs some work on the connection, with a time limit, since a server that hangs is no better than one that is gone. If the
    /// work fails, the connection is closed, so that the server rolls back what was not committed.
    pub(super) async fn drive<T>(
        mut self,
        what: &'static str,
        work: impl Future<Output = Result<T, AttemptError>>,
    ) -> Result<T, AttemptError> {
        let Some(mut held) = self.held.take() else {
            return Err(Error::internal("a connection was used after its end").into());
        };
        let done = tokio::time::timeout(self.limit, drive(&mut held.messages, work)).await;
        let Ok(done) = done else {
            let error = Error::unavailable(format!("postgres took too long to {what}"));
            self.reach.lost(&error.to_string());
            return Err(error.into());
        };
        if done.is_ok() {
            self.reach.found();
            let is_open = !self.permit.semaphore().is_closed();
            if is_open {
                self.idle.lock().push(held);
            }
        }
        done
    }
}

/// Runs some work and drives the connection that it uses, in one task. When the connection ends, the work fails at once.
pub(super) async fn drive<T>(messages: &mut Messages, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        if has_ended(messages, context) {
            // Requests that wait for an answer fail only when the connection is dropped, not when it has ended.
            *messages = Box::pin(stream::empty());
            return work.as_mut().poll(context);
        }
        Poll::Pending
    })
    .await
}

/// Reads what has arrived; returns whether the connection has ended.
pub(super) fn has_ended(messages: &mut Messages, context: &mut Context<'_>) -> bool {
    loop {
        match messages.as_mut().poll_next(context) {
            Poll::Ready(Some(Ok(_))) => {} // a notice
            Poll::Ready(Some(Err(_)) | None) => return true,
            Poll::Pending => return false,
        }
    }
}

/// What a server sends besides answers. Polling the stream drives the connection.
pub(super) type Messages = Pin<Box<dyn Stream<Item = Result<(), tokio_postgres::Error>> + Send>>;

/// A connection in its pool.
struct Held {
    connection: Arc<Connection>,
    messages: Messages,
}

impl Held {
    /// Whether the server has not closed the connection since it was last used: polling it once shows that at once.
    fn is_well(&mut self) -> bool {
        let mut context = Context::from_waker(std::task::Waker::noop());
        !has_ended(&mut self.messages, &mut context) && !self.connection.client.is_closed()
    }
}

/// A connection and its prepared statements.
pub(super) struct Connection {
    pub(super) client: Client,
    /// By their texts, which are constants: there are some dozens.
    prepared: Mutex<HashMap<&'static str, Statement>>,
}

impl Connection {
    pub(super) fn new(client: Client) -> Arc<Self> {
        Arc::new(Self { client, prepared: Mutex::default() })
    }

    /// A statement, prepared when it is first used.
    pub(super) async fn prepared(&self, sql: &'static str) -> Result<Statement, AttemptError> {
        if let Some(statement) = self.prepared.lock().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await.doing("prepare a statement")?;
        self.prepared.lock().insert(sql, statement.clone());
        Ok(statement)
    }

    /// Runs a statement; returns its rows.
    pub(super) async fn query(
        &self,
        what: &'static str,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, AttemptError> {
        let statement = self.prepared(sql).await?;
        self.client.query(&statement, parameters).await.doing(what)
    }

    /// Runs statements without parameters.
    pub(super) async fn run(&self, what: &'static str, sql: &str) -> Result<(), AttemptError> {
        self.client.batch_execute(sql).await.doing(what)
    }
}

/// Opens connections.
pub(super) struct Connector {
    options: ConnectOptions,
    session: String,
    connect_timeout: Duration,
    pub(super) reach: Arc<Reach>,
    /// The origin of the database of the latest connection. It changes when the database was restored, or a standby took over.
    pub(super) origin: Mutex<Option<String>>,
    /// How often the origin has changed. Code that notices a change reads its cached state again.
    pub(super) strangers: AtomicU64,
    /// The value of `strangers` at the last check for a restore.
    pub(super) settled: AtomicU64,
}

impl Connector {
    fn new(url: &PostgresUrl, settings: &PostgresConfig) -> Result<Self, Error> {
        let mut options = ConnectOptions::new(url)?;
        let config = &mut options.config;
        if config.get_application_name().is_none() {
            config.application_name("restante");
        }
        let beside = || url.password().map(str::to_owned).or_else(|| std::env::var("PGPASSWORD").ok());
        if config.get_password().is_none()
            && let Some(password) = beside()
        {
            config.password(password);
        }
        options.connector()?; // unreadable certificates are an error now, rather than an outage later
        Ok(Self {
            options,
            session: session(url, settings),
            connect_timeout: Duration::from_millis(settings.connect_timeout_ms.get()),
            reach: Arc::default(),
            origin: Mutex::default(),
            strangers: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        })
    }

    /// Whether the database of the latest connection has been checked for a restore.
    pub(super) fn is_settled(&self) -> bool {
        self.strangers.load(Ordering::Acquire) == self.settled.load(Ordering::Acquire)
    }

    /// Takes a connection to a database that was checked for a restore, by `settle`.
    ///
    /// # Errors
    /// Those of `take` and `settle`; `Unavailable` when the database keeps changing.
    pub(super) async fn take_settled<T, S, F>(
        &self,
        settle: impl Fn() -> S,
        take: impl Fn() -> F,
    ) -> Result<T, Error>
    where
        S: Future<Output = Result<(), Error>>,
        F: Future<Output = Result<T, Error>>,
    {
        for _ in 0..TAKEN_MAX {
            settle().await?;
            let taken = take().await?;
            // The connection may be the first one to another database.
            if self.is_settled() {
                return Ok(taken);
            }
        }
        Err(Error::unavailable("postgres changes from one server to another all the time: try again later"))
    }

    async fn connect(&self) -> Result<Held, Error> {
        let (client, messages) = Box::pin(self.connect_alone(None)).await?;
        Ok(Held { connection: Connection::new(client), messages })
    }

    /// A connection outside of the pools. Notifications go to `heard`, as long as there is room.
    pub(super) async fn connect_alone(
        &self,
        heard: Option<mpsc::Sender<String>>,
    ) -> Result<(Client, Messages), Error> {
        self.reach.check_back_off()?;
        let connected = tokio::time::timeout(self.connect_timeout, Box::pin(self.try_hosts(heard))).await;
        let connected = connected.unwrap_or_else(|_| {
            Err(Error::unavailable("postgres can't be reached: it took too long to answer"))
        });
        match &connected {
            Ok(_) => self.reach.found(),
            Err(error) => self.reach.lost(&error.to_string()),
        }
        connected
    }

    /// Connects to the first of the URL's hosts that answers and accepts writes.
    async fn try_hosts(&self, heard: Option<mpsc::Sender<String>>) -> Result<(Client, Messages), Error> {
        let config = &self.options.config;
        let ports = config.get_ports();
        let mut last = None;
        for (number, host) in config.get_hosts().iter().enumerate() {
            let Host::Tcp(host) = host else { continue };
            let port = ports.get(number).or(ports.first()).copied().unwrap_or(PORT);
            match Box::pin(self.try_host(host, port, heard.clone())).await {
                Ok(connected) => return Ok(connected),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::invalid("the URL of the records names no host to reach by TCP")))
    }

    async fn try_host(
        &self,
        host: &str,
        port: u16,
        heard: Option<mpsc::Sender<String>>,
    ) -> Result<(Client, Messages), Error> {
        let stream = TcpStream::connect((host, port)).await.map_err(|error| {
            Error::unavailable(format!("postgres can't be reached: {host}:{port}: {error}"))
        })?;
        keep_alive(&stream);
        let stream = BufReader::with_capacity(READ_AHEAD_BYTES, stream);
        let mut tls = self.options.connector()?;
        let tls =
            <MakeRustlsConnect as MakeTlsConnect<BufReader<TcpStream>>>::make_tls_connect(&mut tls, host);
        let tls = tls.map_err(|_| Error::invalid(format!("TLS to postgres: {host} is no name of a host")))?;
        let connected = Box::pin(self.options.config.connect_raw(stream, tls)).await;
        let (client, mut connection) = connected.map_err(|error| error::failed("be reached", error))?;
        let mut messages: Messages = Box::pin(stream::poll_fn(move |context| {
            let message = connection.poll_message(context);
            if let (Poll::Ready(Some(Ok(AsyncMessage::Notification(message)))), Some(heard)) =
                (&message, &heard)
            {
                let _ = heard.try_send(message.payload().to_owned()); // without room it is dropped: the commit is then read from the feed
            }
            message.map(|message| message.map(|message| message.map(|_| ())))
        }));
        let set_up = async {
            client
                .batch_execute(&self.session)
                .await
                .map_err(|error| error::failed("set up a connection", error))?;
            self.check(&client).await
        };
        drive(&mut messages, set_up).await?;
        Ok((client, messages))
    }

    /// Refuses a server that accepts no writes or may lose what it has acknowledged.
    async fn check(&self, client: &Client) -> Result<(), Error> {
        let row = client.query_one(SERVER, &[]).await;
        let row = row.map_err(|error| error::failed("say what it is", error))?;
        let is_standby: bool = error::value(&row, 0)?;
        if is_standby {
            return Err(Error::unavailable("postgres is a standby here: it takes no writes"));
        }
        for (place, name) in [(1, "fsync"), (2, "synchronous_commit")] {
            let setting: String = error::value(&row, place)?;
            if setting == "off" {
                return Err(Error::invalid(format!(
                    "postgres has {name} = off, so it would forget records that were acknowledged: switch it on"
                )));
            }
        }
        let origin: String = error::value(&row, 3)?;
        let mut known = self.origin.lock();
        if known.as_ref().is_some_and(|known| *known != origin) {
            self.strangers.fetch_add(1, Ordering::AcqRel);
        }
        *known = Some(origin);
        Ok(())
    }
}

/// What a connection checks of its server: whether it is a standby, two settings, and its origin. The origin consists of the
/// cluster, its timeline, which changes with each promotion of a standby and each point-in-time recovery, and the database.
const SERVER: &str = "SELECT r.is_standby, current_setting('fsync'), current_setting('synchronous_commit'), \
     CASE WHEN r.is_standby THEN '' ELSE \
     (SELECT system_identifier FROM pg_control_system()) || '/' || \
     substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) || '/' || \
     (SELECT oid FROM pg_database WHERE datname = current_database()) END \
     FROM (SELECT pg_is_in_recovery() AS is_standby) r";

/// The first statements of each connection.
fn session(url: &PostgresUrl, settings: &PostgresConfig) -> String {
    format!(
        "SET search_path = \"{}\"; SET statement_timeout = {}; SET lock_timeout = {}; \
         SET idle_in_transaction_session_timeout = {IDLE_TIMEOUT_MS}; SET client_min_messages = warning; {PLANNER}",
        url.schema(),
        settings.statement_timeout_ms,
        settings.lock_timeout_ms,
    )
}

/// Each of our statements has one right plan, by the primary keys. Settings that could tempt the planner away from it, when its
/// statistics are old or a table is nearly empty, are switched off.
const PLANNER: &str = "\
    SET plan_cache_mode = force_generic_plan; SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off; \
    SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_memoize = off; \
    SET max_parallel_workers_per_gather = 0";

/// Sends data at once, and detects a vanished host within a minute. Where the operating system lacks one of these settings,
/// time-outs detect it later.
fn keep_alive(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, VANISHED / 2);
    let _ = sockopt::set_tcp_keepintvl(stream, VANISHED / 6);
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
    let _ = sockopt::set_tcp_user_timeout(stream, VANISHED.as_millis() as u32);
}

/// Whether the database can be reached, and when to try again.
#[derive(Default)]
pub(super) struct Reach {
    is_lost: AtomicBool,
    loss: Mutex<Loss>,
}

#[derive(Default)]
struct Loss {
    problem: Option<String>,
    delay: Duration,
    retry_at: Option<Instant>,
}

impl Reach {
    /// Fails until the back-off has passed, so that a restarting database is not flooded with connections.
    fn check_back_off(&self) -> Result<(), Error> {
        let loss = self.loss.lock();
        let waits = loss.retry_at.is_some_and(|retry_at| Instant::now() < retry_at);
        match &loss.problem {
            Some(problem) if waits => Err(Error::unavailable(problem.clone())),
            _ => Ok(()),
        }
    }

    pub(super) fn lost(&self, problem: &str) {
        let mut loss = self.loss.lock();
        let is_known = loss.retry_at.is_some_and(|retry_at| Instant::now() < retry_at);
        if is_known {
            return; // another task got the same error
        }
        if loss.problem.is_none() {
            warn!(problem, "postgres is out of reach");
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
        if loss.problem.is_some() {
            info!("postgres is within reach again");
        }
        *loss = Loss::default();
        self.is_lost.store(false, Ordering::Release);
    }

    /// The current problem, if any.
    pub(super) fn health(&self) -> Result<(), Error> {
        match &self.loss.lock().problem {
            Some(problem) => Err(Error::unavailable(problem.clone())),
            None => Ok(()),
        }
    }
}

/// A random duration from half of `delay` to `delay`, so that several servers don't retry at the same moment.
pub(super) fn jittered(delay: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let chance = RandomState::new().hash_one(0) % 512;
    delay / 2 + delay * chance as u32 / 1_024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connector() -> Connector {
        let url = "postgres://me@one/mail".parse().unwrap();
        Connector::new(&url, &PostgresConfig::default()).unwrap()
    }

    /// Regression: after a failover, the first commits were made before the restore was counted.
    #[tokio::test]
    async fn the_first_connection_to_another_database_is_not_used_before_a_restore_is_counted() {
        let connector = connector();
        let taken = AtomicU64::new(0);
        let settle = async || {
            connector.settled.store(connector.strangers.load(Ordering::SeqCst), Ordering::SeqCst);
            Ok(())
        };
        let take = async || {
            let number = taken.fetch_add(1, Ordering::SeqCst);
            if number == 0 {
                connector.strangers.fetch_add(1, Ordering::SeqCst);
            }
            Ok(number)
        };
        assert_eq!(connector.take_settled(settle, take).await.unwrap(), 1);
        assert_eq!(connector.take_settled(settle, take).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_database_that_changes_all_the_time_is_unavailable() {
        let connector = connector();
        let take = async || Ok(connector.strangers.fetch_add(1, Ordering::SeqCst));
        let error = connector.take_settled(async || Ok(()), take).await.unwrap_err();
        assert_eq!(error.kind(), restante_core::ErrorKind::Unavailable);
        assert_eq!(connector.strangers.load(Ordering::SeqCst), u64::from(TAKEN_MAX));
    }
}
