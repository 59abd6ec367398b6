//! Connections: a pool for reading and one for writing, opened when needed and again when lost.

use std::{
    collections::HashMap,
    future::poll_fn,
    num::NonZero,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use deadpool::managed::{
    self, Metrics, Object, Pool, PoolError, QueueMode, RecycleError, RecycleResult, Timeouts,
};
use parking_lot::Mutex;
use restante_core::{Clock, Timestamp, nonzero};
use rustix::net::sockopt;
use tokio::{io::BufReader, net::TcpStream};
use tokio_postgres::{Client, SimpleQueryMessage, Statement, config::Host, tls::MakeTlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;
use tracing::{info, warn};

use super::{
    attempt::{self, AttemptError},
    options::ConnectOptions,
    schema::SelectKey,
};
use crate::{Config, Error, PostgresUrl};

/// The pause before connecting again after a failure, growing from the first value to the second.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// Prepared statements of one connection: five plans of a year of daily windows. When there are more, all are dropped.
const STATEMENTS_MAX: usize = 2_000;
/// Connections for long operations: pruning, checking, and the periodic work.
const UPKEEP_CONNECTIONS: NonZero<usize> = nonzero!(2);
/// The most bytes that one system call reads.
const READ_AHEAD_BYTES: usize = 256 << 10;
/// How long a host may be silent before its connections are closed.
const VANISHED: Duration = Duration::from_secs(60);
/// The port of a server whose URL has none.
const PORT: u16 = 5432;
/// What the network may take in addition to the server's own time-out.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(2);

/// The connections to the database.
pub(super) struct Database {
    read: Pool<Connector>,
    write: Pool<Connector>,
    upkeep: Pool<Connector>,
    pub(super) reach: Arc<Reach>,
    timeout: Duration,
}

impl Database {
    pub(super) fn new(url: &PostgresUrl, config: &Config) -> Result<Self, Error> {
        let mut options = ConnectOptions::new(url)?;
        with_defaults(&mut options.config);
        options.connector()?; // certificates that can't be read are an error now, and not an outage later
        let options = Arc::new(options);
        let settings = &config.postgres;
        let statement_timeout_ms = settings.statement_timeout_ms.get();
        let reach = Arc::new(Reach::new(config.clock.clone()));
        let pool = |size: NonZero<usize>, is_writer: bool| {
            let connector = Connector {
                options: options.clone(),
                session: session(url, statement_timeout_ms, is_writer),
                connect_timeout: Duration::from_millis(settings.connect_timeout_ms.get()),
                reach: reach.clone(),
            };
            let wait = Some(Duration::from_millis(statement_timeout_ms));
            let timeouts = Timeouts { wait, create: None, recycle: None };
            // The connection that was used last is used next: it has the statements prepared.
            Pool::builder(connector)
                .queue_mode(QueueMode::Lifo)
                .max_size(size.get())
                .timeouts(timeouts)
                .runtime(deadpool::Runtime::Tokio1)
                .build()
                .map_err(|error| Error::internal("can't make a pool").with_source(error))
        };
        Ok(Self {
            read: pool(settings.read_connections, false)?,
            write: pool(settings.write_connections, true)?,
            upkeep: pool(UPKEEP_CONNECTIONS, true)?,
            reach,
            timeout: Duration::from_millis(statement_timeout_ms) + NETWORK_TIMEOUT,
        })
    }

    /// A connection for reading.
    pub(super) async fn reader(&self) -> Result<Lease, Error> {
        self.lease(&self.read, Some(self.timeout)).await
    }

    /// Another connection for reading, if one is free now.
    pub(super) async fn reader_if_free(&self) -> Option<Lease> {
        let at_once = Timeouts { wait: Some(Duration::ZERO), ..Timeouts::default() };
        let held = self.read.timeout_get(&at_once).await.ok()?;
        Some(self.begin(held, Some(self.timeout)))
    }

    /// A connection for writing.
    pub(super) async fn writer(&self) -> Result<Lease, Error> {
        self.lease(&self.write, Some(self.timeout)).await
    }

    /// A connection for periodic work.
    pub(super) async fn caretaker(&self) -> Result<Lease, Error> {
        self.lease(&self.upkeep, Some(self.timeout)).await
    }

    /// A connection for upkeep that reads all messages and has no time limit.
    pub(super) async fn maintainer(&self) -> Result<Lease, Error> {
        self.lease(&self.upkeep, None).await
    }

    async fn lease(&self, pool: &Pool<Connector>, limit: Option<Duration>) -> Result<Lease, Error> {
        Ok(self.begin(pool.get().await.map_err(no_connection)?, limit))
    }

    fn begin(&self, held: Object<Connector>, limit: Option<Duration>) -> Lease {
        let connection = held.connection.clone();
        connection.is_at_work.store(true, Ordering::Relaxed);
        Lease { connection, held: Some(held), limit, reach: self.reach.clone() }
    }

    pub(super) fn close(&self) {
        for pool in [&self.read, &self.write, &self.upkeep] {
            pool.close();
        }
    }
}

fn no_connection(error: PoolError<Error>) -> Error {
    match error {
        PoolError::Backend(error) => error,
        PoolError::Timeout(_) => Error::unavailable("no connection to postgres came free in time"),
        error => Error::unavailable("there is no connection to postgres").with_source(error),
    }
}

/// A connection taken from its pool.
pub(super) struct Lease {
    pub(super) connection: Arc<Connection>,
    /// Set until the lease ends.
    held: Option<Object<Connector>>,
    limit: Option<Duration>,
    reach: Arc<Reach>,
}

impl Lease {
    /// Runs some work on the connection, with a time limit: a server that hangs counts as gone.
    pub(super) async fn drive<T>(
        mut self,
        what: &'static str,
        work: impl Future<Output = Result<T, AttemptError>>,
    ) -> Result<T, AttemptError> {
        let Some(held) = &mut self.held else {
            return Err(Error::internal("a connection was used after its end").into());
        };
        let driven = drive(&mut held.socket, work);
        let done = match self.limit {
            Some(limit) => tokio::time::timeout(limit, driven).await,
            None => Ok(driven.await),
        };
        let Ok(done) = done else {
            let error = Error::unavailable(format!("postgres took too long to {what}"));
            self.reach.lost(&error.to_string());
            return Err(error.into());
        };
        let is_as_before = done.as_ref().err().is_none_or(AttemptError::leaves_no_trace);
        if is_as_before {
            self.connection.is_at_work.store(false, Ordering::Relaxed);
            self.reach.found();
        }
        done
    }
}

impl Drop for Lease {
    /// A connection whose work was cancelled leaves the pool and is closed: the server rolls back what was not committed, and
    /// releases its locks.
    fn drop(&mut self) {
        let is_unfit = self.connection.is_unfit();
        if let Some(held) = self.held.take().filter(|_| is_unfit) {
            drop(Object::take(held));
        }
    }
}

/// Runs some work and the connection's I/O in one task: two would wake each other for every few rows. When the connection ends,
/// the work fails at once.
async fn drive<T>(socket: &mut Socket, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        if socket.as_mut().poll(context).is_ready() {
            // Requests that wait for an answer fail when the connection is dropped, not when it ends.
            *socket = Box::pin(poll_fn(|_| Poll::Ready(Ok(()))));
            return work.as_mut().poll(context);
        }
        Poll::Pending
    })
    .await
}

fn with_defaults(config: &mut tokio_postgres::Config) {
    if config.get_application_name().is_none() {
        config.application_name("restante");
    }
    if config.get_password().is_none()
        && let Ok(password) = std::env::var("PGPASSWORD")
    {
        config.password(password);
    }
}

/// The server ends an open transaction that waits this long for its next statement. It may not notice that its client is gone,
/// and its locks block all others.
const IDLE_TIMEOUT_MS: u64 = 20_000;

/// The first statements of each connection: its application name and time-outs.
fn session(url: &PostgresUrl, statement_timeout_ms: u64, is_writer: bool) -> String {
    let read_only = if is_writer { "off" } else { "on" };
    format!(
        "SET search_path = \"{}\"; SET synchronous_commit = on; SET statement_timeout = {statement_timeout_ms}; \
         SET lock_timeout = {statement_timeout_ms}; SET default_transaction_read_only = {read_only}; \
         SET idle_in_transaction_session_timeout = {IDLE_TIMEOUT_MS}; SET client_min_messages = warning; {PLANNER}",
        url.schema()
    )
}

/// Every statement of this engine has one right plan, by an index; what could make the planner choose another one, when its
/// statistics are old or a table is nearly empty, is switched off. Rows of a page are sorted in memory.
pub(super) const PLANNER: &str = "\
    SET plan_cache_mode = force_generic_plan; SET jit = off; SET work_mem = '32MB'; \
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_hashjoin = off; \
    SET enable_mergejoin = off; SET enable_material = off; SET max_parallel_workers_per_gather = 0";

/// Identifies the server process and the database.
const INSTANCE: &str = "\
    SELECT pg_postmaster_start_time() || ' ' || oid FROM pg_database WHERE datname = current_database()";

/// Creates connections.
pub(super) struct Connector {
    options: Arc<ConnectOptions>,
    session: String,
    connect_timeout: Duration,
    reach: Arc<Reach>,
}

/// The future that moves the bytes of a connection while it is polled.
type Socket = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send>>;

/// A connection in its pool.
pub(super) struct Held {
    connection: Arc<Connection>,
    socket: Socket,
}

/// A connection and its prepared statements.
pub(super) struct Connection {
    pub(super) client: Client,
    /// The server process and the database that it reaches. What one instance has committed stays as long as this name is the
    /// same: after a failover or a restore, which may lack commits, connections have another one.
    pub(super) instance: String,
    is_new: AtomicBool,
    /// A connection whose work was cancelled, by an error or a time-out, is not used again: it is unknown what it will still
    /// receive.
    is_at_work: AtomicBool,
    is_abandoned: AtomicBool,
    prepared: Mutex<HashMap<SelectKey, Statement>>,
}

impl Connection {
    /// The statement of that key, prepared when it is first used.
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

    /// Whether this is the first call.
    pub(super) fn is_first_use(&self) -> bool {
        self.is_new.swap(false, Ordering::Relaxed)
    }

    fn is_unfit(&self) -> bool {
        let is_given_up =
            self.is_at_work.load(Ordering::Relaxed) || self.is_abandoned.load(Ordering::Relaxed);
        is_given_up || self.client.is_closed()
    }

    /// Has the connection closed after its work, so that the server need not send results that are not read.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

impl managed::Manager for Connector {
    type Type = Held;
    type Error = Error;

    async fn create(&self) -> Result<Held, Error> {
        self.reach.check_back_off()?;
        let connected = tokio::time::timeout(self.connect_timeout, self.connect()).await;
        let connected = connected.unwrap_or_else(|_| {
            Err(Error::unavailable("postgres can't be reached: it took too long to answer"))
        });
        if let Err(error) = &connected {
            self.reach.lost(&error.to_string());
        }
        let held = connected?;
        self.reach.found();
        Ok(held)
    }

    async fn recycle(&self, held: &mut Held, _: &Metrics) -> RecycleResult<Error> {
        // The socket was not read since: polling it shows at once whether the server has closed it.
        let has_ended = poll_fn(|context| Poll::Ready(held.socket.as_mut().poll(context).is_ready())).await;
        if has_ended || held.connection.is_unfit() {
            return Err(RecycleError::message("the connection was lost, or its work was given up"));
        }
        Ok(())
    }
}

impl Connector {
    async fn connect(&self) -> Result<Held, Error> {
        let mut tls = self.options.connector()?;
        let (stream, host) = self.dial().await?;
        // The client reads 8 KiB at a time; from here it costs no system call each.
        let stream = BufReader::with_capacity(READ_AHEAD_BYTES, stream);
        let tls =
            <MakeRustlsConnect as MakeTlsConnect<BufReader<TcpStream>>>::make_tls_connect(&mut tls, host);
        let tls = tls.map_err(|_| Error::invalid(format!("TLS to postgres: {host} is no name of a host")))?;
        let connected = Box::pin(self.options.config.connect_raw(stream, tls)).await;
        let (client, socket) = connected.map_err(|error| attempt::failed("be reached", error))?;
        let mut socket: Socket = Box::pin(socket);
        let what = "set up a connection";
        let set_up = format!("{}; {INSTANCE}", self.session);
        let answers = drive(&mut socket, client.simple_query(&set_up)).await;
        let answers = answers.map_err(|error| attempt::failed(what, error))?;
        let instance = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let Some(instance) = instance.map(str::to_owned) else {
            return Err(Error::internal("postgres doesn't say when it was started"));
        };
        let connection = Connection {
            client,
            instance,
            is_new: AtomicBool::new(true),
            is_at_work: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            prepared: Mutex::default(),
        };
        Ok(Held { connection: Arc::new(connection), socket })
    }

    /// Connects to the first of the URL's hosts that answers; returns its name, too.
    async fn dial(&self) -> Result<(TcpStream, &str), Error> {
        let config = &self.options.config;
        let ports = config.get_ports();
        let mut last = "the URL names no host to reach by TCP".to_owned();
        for (number, host) in config.get_hosts().iter().enumerate() {
            let Host::Tcp(host) = host else { continue };
            let port = ports.get(number).or(ports.first()).copied().unwrap_or(PORT);
            match TcpStream::connect((host.as_str(), port)).await {
                Ok(stream) => {
                    keep_alive(&stream);
                    return Ok((stream, host));
                }
                Err(error) => last = format!("{host}:{port}: {error}"),
            }
        }
        Err(Error::unavailable(format!("postgres can't be reached: {last}")))
    }
}

/// Sends without delay, and has a host that has vanished noticed within a minute. Where the system lacks one of these settings,
/// time-outs do the same later.
fn keep_alive(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, VANISHED / 2);
    let _ = sockopt::set_tcp_keepintvl(stream, VANISHED / 6);
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
    let _ = sockopt::set_tcp_user_timeout(stream, VANISHED.as_millis() as u32);
}

/// Whether the database can be reached, and when to try again.
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

    /// Fails until the back-off has passed, so that a database that restarts is not overloaded.
    fn check_back_off(&self) -> Result<(), Error> {
        let loss = self.loss.lock();
        let waits = loss.retry_at.is_some_and(|retry_at| Instant::now() < retry_at);
        match &loss.problem {
            Some(problem) if waits => Err(Error::unavailable(problem.clone())),
            _ => Ok(()),
        }
    }

    fn lost(&self, problem: &str) {
        let mut loss = self.loss.lock();
        let is_known = loss.retry_at.is_some_and(|retry_at| Instant::now() < retry_at);
        if is_known {
            return; // another task has had the same error
        }
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

    /// The problem, and since when.
    pub(super) fn problem(&self) -> (Option<String>, Option<Timestamp>) {
        let loss = self.loss.lock();
        (loss.problem.clone(), loss.since)
    }
}

/// Half to all of a delay, so that several servers don't retry at the same moment.
fn jittered(delay: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let chance = RandomState::new().hash_one(0) % 512;
    delay / 2 + delay * chance as u32 / 1_024
}
