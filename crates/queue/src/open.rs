use std::{fmt, num::NonZero, path::PathBuf, str::FromStr, sync::Arc};

use futures_util::future::BoxFuture;
use restante_core::nonzero;
use serde::{Deserialize, Serialize};

use crate::{Announcements, Error, Metrics, Upkeep, Work, local};

/// Which engine, and where: `local:`, `redis://<host>:<port>/<database>` or `amqp://<user>@<host>:<port>/<virtual host>`; `rediss://` and
/// `amqps://` with TLS. Display and debug output hide the password.
#[derive(Clone, PartialEq, Eq)]
pub enum EngineUrl {
    /// In this process only.
    Local,
    /// Redis: announcements only.
    Redis(String),
    /// RabbitMQ.
    Rabbitmq(String),
}

impl EngineUrl {
    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Redis(_) => "redis",
            Self::Rabbitmq(_) => "rabbitmq",
        }
    }

    /// Whether other servers can share it.
    pub fn is_shared(&self) -> bool {
        *self != Self::Local
    }
}

impl FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_named = |rest: &str| rest.len() > 2 && rest.starts_with("//");
        match text.split_once(':') {
            Some(("local", "")) => Ok(Self::Local),
            Some(("redis" | "rediss", rest)) if is_named(rest) => Ok(Self::Redis(text.to_owned())),
            Some(("amqp" | "amqps", rest)) if is_named(rest) => Ok(Self::Rabbitmq(text.to_owned())),
            _ => Err(Error::invalid(format!(
                "queue URL '{}' is not understood: use local: or amqp://<user>@<host>:<port>/<virtual host>, and for announcements \
                 alone redis://<host>:<port>/<database>, too",
                without_password(text)
            ))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local:"),
            Self::Redis(url) | Self::Rabbitmq(url) => f.write_str(&without_password(url)),
        }
    }
}

impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A URL without its password. If the URL is malformed, only the parts that can't contain the password remain.
fn without_password(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
    let Some((scheme, secret)) = before.split_once("://") else { return format!("***@{host}") };
    match secret.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:***@{host}"),
        None => format!("{scheme}://{secret}@{host}"),
    }
}

/// Settings of engines that servers share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueConfig {
    /// The beginning of the names of queues, exchanges and channels. Servers with the same prefix share them.
    pub prefix: String,
    /// The most items that a server holds.
    pub prefetch: NonZero<u16>,
    /// How long the engine may take for a request, and for a connection.
    pub timeout_ms: NonZero<u64>,
    /// The trusted certificate authorities: a PEM file; empty for those of the operating system.
    pub ca_file: PathBuf,
}

/// The longest prefix.
const PREFIX_BYTES_MAX: usize = 64;

impl QueueConfig {
    /// The error in a prefix, if there is one.
    pub fn prefix_error(prefix: &str) -> Option<String> {
        let is_short = !prefix.is_empty() && prefix.len() <= PREFIX_BYTES_MAX;
        let is_plain =
            prefix.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.'));
        let is_reserved = prefix.starts_with("amq.");
        (!is_short || !is_plain || is_reserved).then(|| {
            format!("use 1 to {PREFIX_BYTES_MAX} letters, digits, '-', '_' or '.', not beginning with 'amq.'")
        })
    }
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            prefix: "restante".to_owned(),
            prefetch: nonzero!(500),
            timeout_ms: nonzero!(5_000),
            ca_file: PathBuf::new(),
        }
    }
}

/// How to open an engine.
#[derive(Clone)]
pub struct Config {
    /// The engine and where it is.
    pub url: EngineUrl,
    /// The password, if the URL has none.
    pub password: Option<String>,
    /// Settings of engines that servers share.
    pub shared: QueueConfig,
    /// Whether items are received and work is distributed; false for a caller that only needs [`Upkeep`].
    pub receives: bool,
    /// The metrics to count in.
    pub metrics: Metrics,
}

impl Config {
    /// The defaults for an engine.
    pub fn new(url: EngineUrl) -> Self {
        Self {
            url,
            password: None,
            shared: QueueConfig::default(),
            receives: true,
            metrics: Metrics::default(),
        }
    }
}

/// An open queue of work.
#[derive(Clone)]
pub struct OpenedWork {
    /// The queue.
    pub work: Arc<dyn Work>,
    /// Its interface for operators.
    pub upkeep: Arc<dyn Upkeep>,
}

/// Open announcements. They end when the last clone is dropped.
#[derive(Clone)]
pub struct OpenedAnnouncements {
    /// The announcements.
    pub announcements: Arc<dyn Announcements>,
    /// The current problem, if there is one; this reads memory only.
    pub problem: Arc<dyn Fn() -> Option<String> + Send + Sync>,
}

/// Opens a queue of work.
///
/// # Errors
/// `Invalid`: a setting can't be used, or the engine can't distribute work. A broker that can't be reached is not an error: the engine
/// tries again, and [`Upkeep::health`] reports it.
pub fn open_work(config: Config) -> BoxFuture<'static, Result<OpenedWork, Error>> {
    // Boxed here, so that only this crate compiles the code of the engines, and not each crate that opens one.
    Box::pin(open_work_engine(config))
}

async fn open_work_engine(config: Config) -> Result<OpenedWork, Error> {
    check(&config)?;
    match &config.url {
        EngineUrl::Local => local::local_work(1, config.shared.prefetch.get().into())
            .pop()
            .ok_or_else(|| Error::internal("a queue without a server")),
        EngineUrl::Redis(_) => {
            Err(Error::invalid("redis carries announcements, and deals out no work: use local: or amqp://"))
        }
        #[cfg(feature = "rabbitmq")]
        EngineUrl::Rabbitmq(url) => crate::rabbitmq::open_work(url, &config).await,
        #[cfg(not(feature = "rabbitmq"))]
        EngineUrl::Rabbitmq(_) => Err(without("rabbitmq")),
    }
}

/// Opens announcements.
///
/// # Errors
/// `Invalid`: a setting can't be used. As with [`open_work`], an engine that can't be reached is not an error.
pub fn open_announcements(config: Config) -> BoxFuture<'static, Result<OpenedAnnouncements, Error>> {
    Box::pin(open_announcements_engine(config))
}

async fn open_announcements_engine(config: Config) -> Result<OpenedAnnouncements, Error> {
    check(&config)?;
    match &config.url {
        EngineUrl::Local => local::local_announcements(1)
            .pop()
            .ok_or_else(|| Error::internal("announcements without a server")),
        #[cfg(feature = "redis")]
        EngineUrl::Redis(url) => crate::redis::open(url, &config).await,
        #[cfg(feature = "rabbitmq")]
        EngineUrl::Rabbitmq(url) => crate::rabbitmq::open_announcements(url, &config).await,
        #[cfg(not(feature = "redis"))]
        EngineUrl::Redis(_) => Err(without("redis")),
        #[cfg(not(feature = "rabbitmq"))]
        EngineUrl::Rabbitmq(_) => Err(without("rabbitmq")),
    }
}

fn check(config: &Config) -> Result<(), Error> {
    match QueueConfig::prefix_error(&config.shared.prefix) {
        Some(what) => Err(Error::invalid(format!("the prefix of the queue can't be used: {what}"))),
        None => Ok(()),
    }
}

#[cfg(not(all(feature = "rabbitmq", feature = "redis")))]
fn without(engine: &str) -> Error {
    Error::invalid(format!("this build is without the {engine} engine: build it with --features {engine}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_read_back_without_their_passwords() {
        for (text, engine, shown) in [
            ("local:", "local", "local:"),
            ("amqp://mail:secret@mq:5672/%2f", "rabbitmq", "amqp://mail:***@mq:5672/%2f"),
            ("amqps://mq", "rabbitmq", "amqps://mq"),
            ("rediss://:secret@cache/2", "redis", "rediss://:***@cache/2"),
        ] {
            let url: EngineUrl = text.parse().unwrap();
            assert_eq!((url.engine(), url.to_string().as_str()), (engine, shown));
            assert!(!format!("{url:?}").contains("secret"));
        }
        for text in ["", "local", "local:x", "amqp:", "amqp://", "kafka://user:secret@host"] {
            let error = text.parse::<EngineUrl>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
            assert!(error.contains("for announcements alone redis://"), "{error}");
        }
    }

    #[test]
    fn prefixes_are_plain_names() {
        for prefix in ["restante", "a", "mail_2.b-c"] {
            assert_eq!(QueueConfig::prefix_error(prefix), None, "{prefix}");
        }
        for prefix in ["", "a b", "a/b", "amq.restante", &"x".repeat(65)] {
            assert!(QueueConfig::prefix_error(prefix).is_some(), "{prefix}");
        }
    }

    #[tokio::test]
    async fn redis_deals_out_no_work() {
        let config = Config::new("redis://127.0.0.1:1".parse().unwrap());
        assert_eq!(open_work(config).await.err().unwrap().kind(), restante_core::ErrorKind::Invalid);
    }
}
