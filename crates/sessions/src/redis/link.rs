//! The way to Redis: one connection for requests, which are all under way at the same time, and one on which it is heard.
//!
//! A link is lost as a whole, as soon as one of its connections ends or a request on it is not answered in time. Nothing is
//! tried again here: who asked has the local table to answer from, and the keeper makes the next link.

use std::{path::Path, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionInfo, ErrorKind as RedisErrorKind,
    IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError, ServerErrorKind, TlsCertificates,
    Value, aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use restante_core::ErrorKind;
use restante_net::tls;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::{schema::Keys, scripts::Script};
use crate::{
    Error, RedisConfig,
    redis_metrics::{Op, Outcome, RedisMetrics, RequestLabel},
};

/// Requests that may be under way; more of them wait, for as long as a request may take. At a tenth of a millisecond each that is ten million a second, which no
/// Redis answers.
const REQUESTS_MAX: usize = 1_024;
/// Bytes of requests that are put together into one write.
const WRITE_BYTES: usize = 64 << 10;

/// Why Redis has not done as it was asked.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// Whether it did not answer: the link is of no use any more.
    pub(super) is_lost: bool,
    text: String,
}

impl Fault {
    pub(super) fn lost(text: impl Into<String>) -> Self {
        Self { is_lost: true, text: text.into() }
    }

    pub(super) fn refused(text: impl Into<String>) -> Self {
        Self { is_lost: false, text: text.into() }
    }

    fn of(error: &RedisError) -> Self {
        let is_answer = matches!(
            error.kind(),
            RedisErrorKind::Server(_) | RedisErrorKind::Extension | RedisErrorKind::UnexpectedReturnType
        );
        Self { is_lost: !is_answer, text: error.to_string() }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let what = if fault.is_lost { "redis is out of reach" } else { "redis refuses" };
        Self::new(ErrorKind::Unavailable, format!("{what}: {}", fault.text))
    }
}

/// Where Redis is, and how it is spoken to.
pub(super) struct Address {
    requests: Client,
    listening: Client,
    db: i64,
    timeout: Duration,
}

impl Address {
    /// # Errors
    /// `Invalid`: the URL can't be used.
    pub(super) fn new(url: &str, config: &RedisConfig) -> Result<Self, Error> {
        // The library's own error might show the password.
        let invalid =
            || Error::invalid("the URL of Redis can't be used: it is redis://<host>:<port>/<database>");
        let is_tls = url.starts_with("rediss:");
        if is_tls {
            tls::install_provider();
        }
        let mut info: ConnectionInfo = url.into_connection_info().map_err(|_| invalid())?;
        if let (None, Some(password)) = (info.redis_settings().password(), &config.password) {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        // Requests are short and wait for their answers: none is held back for the next.
        info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        // Only since RESP3 can one connection be told of messages and be asked to send some.
        let listening = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let requests = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
        let certificates = is_tls.then(|| certificates(config)).transpose()?;
        let client = |info: ConnectionInfo| match &certificates {
            None => Client::open(info).map_err(|_| invalid()),
            Some(certificates) => Client::build_with_tls(info, certificates.clone())
                .map_err(|error| Error::invalid(format!("TLS to redis can't be set up: {error}"))),
        };
        Ok(Self {
            db: info.redis_settings().db(),
            listening: client(info.clone().set_redis_settings(listening))?,
            requests: client(info.set_redis_settings(requests))?,
            timeout: Duration::from_millis(config.timeout_ms.max(1)),
        })
    }

    pub(super) fn db(&self) -> i64 {
        self.db
    }
}

/// The certificates for connections over TLS.
fn certificates(config: &RedisConfig) -> Result<TlsCertificates, Error> {
    let read =
        |file: &Path| tls::read_pem(file).map_err(|error| Error::invalid(format!("TLS to redis: {error}")));
    let client_tls = match &config.identity {
        Some((certificate, key)) => {
            Some(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? })
        }
        None => None,
    };
    Ok(TlsCertificates { client_tls, root_cert: config.ca_file.as_deref().map(read).transpose()? })
}

/// What is heard on a link.
pub(super) trait Listener: Send + Sync + 'static {
    /// A message on a channel. Must not wait.
    fn heard(&self, channel: &[u8], message: &[u8]);

    /// The connection has ended.
    fn ended(&self);
}

/// Both connections, for as long as they last.
pub(super) struct Link {
    /// Counts links, so that a late report of a lost one doesn't end the next.
    pub(super) generation: u64,
    requests: MultiplexedConnection,
    listening: MultiplexedConnection,
    shas: Vec<(Script, String)>,
    permits: Semaphore,
    timeout: Duration,
    metrics: RedisMetrics,
}

impl Link {
    /// Connects, listens on the channels and loads the scripts.
    pub(super) async fn open(
        address: &Address,
        generation: u64,
        channels: &[String],
        listener: Arc<dyn Listener>,
        metrics: RedisMetrics,
    ) -> Result<Self, Fault> {
        let work = async {
            let hear = move |push: PushInfo| {
                hear(&*listener, &push);
                Ok::<_, std::convert::Infallible>(())
            };
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(address.timeout))
                .set_response_timeout(None) // each request has its own below
                .set_pipeline_buffer_size(REQUESTS_MAX)
                .set_write_backpressure_boundary(WRITE_BYTES);
            let mut requests = address.requests.get_multiplexed_async_connection_with_config(&config).await?;
            let config = config.set_push_sender(hear);
            let mut listening =
                address.listening.get_multiplexed_async_connection_with_config(&config).await?;
            listening.subscribe(channels).await?;
            let shas = load(&mut requests).await?;
            Ok((requests, listening, shas))
        };
        // Two connections are made, one after the other, and each is spoken to.
        let made = timeout(address.timeout.saturating_mul(2), work).await;
        let made = made.map_err(|_| Fault::lost("it took too long to connect"))?;
        let (requests, listening, shas) = made.map_err(|error: RedisError| Fault::of(&error))?;
        metrics.connects.inc();
        Ok(Self {
            generation,
            requests,
            listening,
            shas,
            permits: Semaphore::new(REQUESTS_MAX),
            timeout: address.timeout,
            metrics,
        })
    }

    /// Begins the command that runs a script. Its arguments follow; it finds its keys itself.
    pub(super) fn command(&self, script: Script) -> Cmd {
        let sha = self.shas.iter().find(|(known, _)| *known == script).map(|(_, sha)| sha.as_str());
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha.unwrap_or_default()).arg(0);
        command
    }

    /// Runs a script.
    pub(super) async fn call(&self, op: Op, command: &Cmd) -> Result<Value, Fault> {
        let mut connection = self.requests.clone();
        let work = async {
            match command.query_async(&mut connection).await {
                // The server has forgotten its scripts (SCRIPT FLUSH): once they are loaded it knows them by the same names.
                Err(error) if error.kind() == RedisErrorKind::Server(ServerErrorKind::NoScript) => {
                    load(&mut connection).await?;
                    command.query_async(&mut connection).await
                }
                answer => answer,
            }
        };
        self.timed(op, work).await
    }

    /// Sends a command.
    pub(super) async fn ask(&self, op: Op, command: &Cmd) -> Result<Value, Fault> {
        let mut connection = self.requests.clone();
        self.timed(op, async { command.query_async(&mut connection).await }).await
    }

    /// Sends commands together; answers what each was answered.
    pub(super) async fn ask_all(&self, op: Op, commands: &redis::Pipeline) -> Result<Vec<Value>, Fault> {
        let mut connection = self.requests.clone();
        self.timed(op, async { commands.query_async(&mut connection).await }).await
    }

    /// Sends messages to a channel, by the connection on which others' messages come: requests don't wait behind them.
    pub(super) async fn publish(&self, channel: &str, messages: &[Vec<u8>]) -> Result<(), Fault> {
        let mut commands = redis::pipe();
        for message in messages {
            commands.cmd("PUBLISH").arg(channel).arg(message).ignore();
        }
        let mut connection = self.listening.clone();
        self.timed(Op::Publish, async { commands.query_async(&mut connection).await }).await
    }

    /// Makes sure that it is still heard: nothing else need ever come by that connection.
    pub(super) async fn check_listening(&self) -> Result<(), Fault> {
        let mut connection = self.listening.clone();
        let ping = redis::cmd("PING");
        self.timed(Op::Beat, async { ping.query_async(&mut connection).await }).await
    }

    async fn timed<T>(&self, op: Op, work: impl Future<Output = Result<T, RedisError>>) -> Result<T, Fault> {
        let start = Instant::now();
        let answer = in_turn(&self.permits, self.timeout, work).await;
        let outcome = match &answer {
            Ok(_) => Outcome::Ok,
            Err(fault) if fault.is_lost => Outcome::Lost,
            Err(_) => Outcome::Refused,
        };
        self.metrics.requests.get_or_create(&RequestLabel::new(op, outcome)).inc();
        self.metrics.seconds.observe(start.elapsed().as_secs_f64());
        answer
    }
}

/// Does some work when there is a permit for it. The wait for that and the work may each take so long: a wait that takes longer
/// is no fault of Redis, and doesn't end the link.
async fn in_turn<T>(
    permits: &Semaphore,
    limit: Duration,
    work: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, Fault> {
    let permit = timeout(limit, permits.acquire()).await;
    // Requests are counted until they are answered. The semaphore is never closed.
    let _permit = permit.map_err(|_| Fault::refused("too many other requests are under way"))?;
    match timeout(limit, work).await {
        Ok(answer) => answer.map_err(|error| Fault::of(&error)),
        Err(_) => Err(Fault::lost("it has not answered in time")),
    }
}

fn hear(listener: &dyn Listener, push: &PushInfo) {
    match (&push.kind, push.data.as_slice()) {
        (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)]) => {
            listener.heard(channel, message);
        }
        (PushKind::Disconnection, _) => listener.ended(),
        _ => {}
    }
}

/// Gives the server all scripts; answers the names by which it knows them.
async fn load(connection: &mut MultiplexedConnection) -> Result<Vec<(Script, String)>, RedisError> {
    let mut commands = redis::pipe();
    for script in Script::ALL {
        commands.cmd("SCRIPT").arg("LOAD").arg(script.code());
    }
    let shas: Vec<String> = commands.query_async(connection).await?;
    Ok(Script::ALL.into_iter().zip(shas).collect())
}

/// The names of the channels of a node.
pub(super) fn channels(keys: &Keys, here: crate::NodeId) -> [String; 2] {
    [keys.to(here), keys.live()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_redis_itself_can_be_lost() {
        let limit = Duration::from_secs(1);
        let waits = in_turn(&Semaphore::new(0), limit, async { Ok(()) }).await;
        assert!(!waits.unwrap_err().is_lost, "nothing was sent");
        let hangs = in_turn(&Semaphore::new(1), limit, std::future::pending::<Result<(), _>>()).await;
        assert!(hangs.unwrap_err().is_lost);
        assert_eq!(in_turn(&Semaphore::new(1), limit, async { Ok(7) }).await.unwrap(), 7);
    }

    #[test]
    fn urls_are_checked_without_showing_their_password() {
        let config = RedisConfig::default();
        let missing = RedisConfig { ca_file: Some("no/such/ca.pem".into()), ..config.clone() };
        for (url, config) in [
            ("redis://:secret@", &config),
            ("rediss://:secret@localhost/0", &missing),
            ("redis://:secret@localhost/x", &config),
        ] {
            let error = Address::new(url, config).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert_eq!(Address::new("redis://localhost:6379/3", &config).unwrap().db(), 3);
    }
}
