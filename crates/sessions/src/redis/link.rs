//! The link to Redis: one connection for requests, which are pipelined, and one for subscribed channels.
//!
//! A link is lost as a whole when one of its connections ends or a request times out. Nothing is retried here: callers fall back
//! to the local table, and the supervisor opens the next link.

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

/// Requests in flight; more of them wait, up to the timeout of a request. At a tenth of a millisecond per request this allows ten
/// million a second, more than a Redis answers.
const REQUESTS_MAX: usize = 1_024;
/// Bytes of requests that are put together into one write.
const WRITE_BYTES: usize = 64 << 10;

/// Why a request to Redis has failed.
#[derive(Clone, Debug)]
pub(super) struct LinkError {
    /// Whether Redis did not answer: then the link is unusable.
    pub(super) is_lost: bool,
    text: String,
}

impl LinkError {
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

impl From<LinkError> for Error {
    fn from(error: LinkError) -> Self {
        let what = if error.is_lost { "redis is unreachable" } else { "redis refused a request" };
        Self::new(ErrorKind::Unavailable, format!("{what}: {}", error.text))
    }
}

/// The address of Redis, and how to connect.
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
        // The error of the client library might contain the password.
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
        // Requests are short and wait for their answers: none is delayed to be merged with the next.
        info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        // Only with RESP3 can one connection both receive messages and send them.
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
            timeout: Duration::from_millis(config.timeout_ms.get()),
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
    let is_named = |file: &Path| !file.as_os_str().is_empty();
    let RedisConfig { ca_file, certificate_file, certificate_key_file, .. } = config;
    let client_tls = if is_named(certificate_file) {
        Some(ClientTlsConfig {
            client_cert: read(certificate_file)?,
            client_key: read(certificate_key_file)?,
        })
    } else {
        None
    };
    let root_cert = if is_named(ca_file) { Some(read(ca_file)?) } else { None };
    Ok(TlsCertificates { client_tls, root_cert })
}

/// Receives messages from the subscribed channels of a link.
pub(super) trait Listener: Send + Sync + 'static {
    /// A message on a channel. Must not block.
    fn received(&self, channel: &[u8], message: &[u8]);

    /// The connection has ended.
    fn ended(&self);
}

/// Both connections.
pub(super) struct Link {
    /// Counts links, so that a late error of a lost one doesn't end the next.
    pub(super) generation: u64,
    requests: MultiplexedConnection,
    listening: MultiplexedConnection,
    shas: Vec<(Script, String)>,
    permits: Semaphore,
    timeout: Duration,
    metrics: RedisMetrics,
}

impl Link {
    /// Connects, subscribes to the channels and loads the scripts.
    pub(super) async fn open(
        address: &Address,
        generation: u64,
        channels: &[String],
        listener: Arc<dyn Listener>,
        metrics: RedisMetrics,
    ) -> Result<Self, LinkError> {
        let work = async {
            let receive = move |push: PushInfo| {
                receive(&*listener, &push);
                Ok::<_, std::convert::Infallible>(())
            };
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(address.timeout))
                .set_response_timeout(None) // requests have a timeout of their own, below
                .set_pipeline_buffer_size(REQUESTS_MAX)
                .set_write_backpressure_boundary(WRITE_BYTES);
            let mut requests = address.requests.get_multiplexed_async_connection_with_config(&config).await?;
            let config = config.set_push_sender(receive);
            let mut listening =
                address.listening.get_multiplexed_async_connection_with_config(&config).await?;
            listening.subscribe(channels).await?;
            let shas = load(&mut requests).await?;
            Ok((requests, listening, shas))
        };
        // Two connections are made one after the other, each with a request.
        let made = timeout(address.timeout.saturating_mul(2), work).await;
        let made = made.map_err(|_| LinkError::lost("connecting timed out"))?;
        let (requests, listening, shas) = made.map_err(|error: RedisError| LinkError::of(&error))?;
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

    /// Begins the command that runs a script. Arguments are added by the caller; the script computes its keys.
    pub(super) fn command(&self, script: Script) -> Cmd {
        let sha = self.shas.iter().find(|(known, _)| *known == script).map(|(_, sha)| sha.as_str());
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha.unwrap_or_default()).arg(0);
        command
    }

    /// Runs a script.
    pub(super) async fn call(&self, op: Op, command: &Cmd) -> Result<Value, LinkError> {
        let mut connection = self.requests.clone();
        let work = async {
            match command.query_async(&mut connection).await {
                // The server has dropped its scripts (SCRIPT FLUSH): once loaded again they have the same hashes.
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
    pub(super) async fn ask(&self, op: Op, command: &Cmd) -> Result<Value, LinkError> {
        let mut connection = self.requests.clone();
        self.timed(op, async { command.query_async(&mut connection).await }).await
    }

    /// Sends commands together; returns the answer to each.
    pub(super) async fn ask_all(&self, op: Op, commands: &redis::Pipeline) -> Result<Vec<Value>, LinkError> {
        let mut connection = self.requests.clone();
        self.timed(op, async { commands.query_async(&mut connection).await }).await
    }

    /// Publishes messages on a channel, over the connection of the subscriptions, so that requests don't wait for them.
    pub(super) async fn publish(&self, channel: &str, messages: &[Vec<u8>]) -> Result<(), LinkError> {
        let mut commands = redis::pipe();
        for message in messages {
            commands.cmd("PUBLISH").arg(channel).arg(message).ignore();
        }
        let mut connection = self.listening.clone();
        self.timed(Op::Publish, async { commands.query_async(&mut connection).await }).await
    }

    /// Checks the connection of the subscriptions, which may otherwise be idle for any time.
    pub(super) async fn check_listening(&self) -> Result<(), LinkError> {
        let mut connection = self.listening.clone();
        let ping = redis::cmd("PING");
        self.timed(Op::Beat, async { ping.query_async(&mut connection).await }).await
    }

    async fn timed<T>(
        &self,
        op: Op,
        work: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, LinkError> {
        let start = Instant::now();
        let answer = with_permit(&self.permits, self.timeout, work).await;
        let outcome = match &answer {
            Ok(_) => Outcome::Ok,
            Err(error) if error.is_lost => Outcome::Lost,
            Err(_) => Outcome::Refused,
        };
        self.metrics.requests.get_or_create(&RequestLabel::new(op, outcome)).inc();
        self.metrics.seconds.observe(start.elapsed().as_secs_f64());
        answer
    }
}

/// Waits for a permit, then does some work, each for at most `limit`. A wait that takes longer is not a failure of Redis, and
/// doesn't end the link.
async fn with_permit<T>(
    permits: &Semaphore,
    limit: Duration,
    work: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, LinkError> {
    let permit = timeout(limit, permits.acquire()).await;
    // The permit is held until the answer has arrived. The semaphore is never closed.
    let _permit = permit.map_err(|_| LinkError::refused("too many other requests are in flight"))?;
    match timeout(limit, work).await {
        Ok(answer) => answer.map_err(|error| LinkError::of(&error)),
        Err(_) => Err(LinkError::lost("the request timed out")),
    }
}

fn receive(listener: &dyn Listener, push: &PushInfo) {
    match (&push.kind, push.data.as_slice()) {
        (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)]) => {
            listener.received(channel, message);
        }
        (PushKind::Disconnection, _) => listener.ended(),
        _ => {}
    }
}

/// Loads all scripts; returns the hashes by which they are called.
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
        let waits = with_permit(&Semaphore::new(0), limit, async { Ok(()) }).await;
        assert!(!waits.unwrap_err().is_lost, "nothing was sent");
        let hangs = with_permit(&Semaphore::new(1), limit, std::future::pending::<Result<(), _>>()).await;
        assert!(hangs.unwrap_err().is_lost);
        assert_eq!(with_permit(&Semaphore::new(1), limit, async { Ok(7) }).await.unwrap(), 7);
    }

    #[test]
    fn urls_are_checked_without_showing_their_password() {
        let config = RedisConfig::default();
        let missing = RedisConfig { ca_file: "no/such/ca.pem".into(), ..config.clone() };
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
