use std::{fmt, num::NonZero, path::PathBuf, str::FromStr, sync::Arc};

use futures_util::future::BoxFuture;
use restante_core::{Clock, SystemClock, nonzero};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Nodes, Owner, SessionMetrics, Sessions,
    hub::{Hub, HubConfig},
    memory,
};

/// Which engine, and where: `memory:`, `redis://host:port/database`, or `rediss://...` for TLS.
#[derive(Clone, PartialEq, Eq)]
pub enum EngineUrl {
    /// A table in this process: one node.
    Memory,
    /// Redis, shared by several nodes. Display and debug output hide the password.
    Redis(String),
}

impl EngineUrl {
    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis(_) => "redis",
        }
    }
}

impl FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("redis" | "rediss", rest)) if rest.len() > 2 && rest.starts_with("//") => {
                Ok(Self::Redis(text.to_owned()))
            }
            _ => Err(Error::invalid(format!(
                "sessions URL '{}' is not understood: use memory:, redis://<host>:<port>/<database> or rediss://<host>:<port>/<database> for TLS",
                without_password(text)
            ))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Redis(url) => f.write_str(&without_password(url)),
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

/// How to open the table.
#[derive(Clone)]
pub struct Config {
    /// The engine and where it is.
    pub url: EngineUrl,
    /// Sessions that one user may have; one more ends the oldest.
    pub sessions_per_user_max: NonZero<usize>,
    /// The name of this node, for display; empty by default.
    pub node_name: String,
    /// Settings of the `redis` engine.
    pub redis: RedisConfig,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// The metrics to count in.
    pub metrics: SessionMetrics,
}

impl Config {
    /// The defaults for an engine.
    pub fn new(url: EngineUrl) -> Self {
        Self {
            url,
            sessions_per_user_max: nonzero!(100),
            node_name: String::new(),
            redis: RedisConfig::default(),
            clock: Arc::new(SystemClock),
            metrics: SessionMetrics::default(),
        }
    }
}

/// Settings of the `redis` engine.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedisConfig {
    /// The beginning of all keys, so that several tables can share a database.
    pub prefix: String,
    /// The password, if the URL has none.
    #[serde(skip)]
    pub password: Option<String>,
    /// The trusted certificate authorities for a `rediss:` URL: a PEM file; empty for those of the operating system.
    pub ca_file: PathBuf,
    /// The client's own certificate, for a `rediss:` URL: a PEM file; empty for none.
    pub certificate_file: PathBuf,
    /// The key of that certificate: a PEM file.
    pub certificate_key_file: PathBuf,
    /// How long a node counts as alive after its last heartbeat.
    pub lease_ms: NonZero<u64>,
    /// The timeout of a request.
    pub timeout_ms: NonZero<u64>,
}

/// The most bytes of a prefix: every key contains it.
const PREFIX_BYTES_MAX: usize = 64;

impl RedisConfig {
    /// The error in a prefix, if there is one. A colon is refused because it ends the prefix: keys of the prefix `a:u` would be
    /// those of users of the prefix `a`.
    pub fn prefix_error(prefix: &str) -> Option<String> {
        if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX {
            return Some(format!("it is empty or longer than {PREFIX_BYTES_MAX} bytes"));
        }
        prefix.contains(':').then(|| "it has a colon, which ends a prefix: use another character".to_owned())
    }
}

impl fmt::Debug for RedisConfig {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("prefix", &self.prefix)
            .field("ca_file", &self.ca_file)
            .field("certificate_file", &self.certificate_file)
            .field("lease_ms", &self.lease_ms)
            .field("timeout_ms", &self.timeout_ms)
            .finish_non_exhaustive()
    }
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            prefix: "restante".to_owned(),
            password: None,
            ca_file: PathBuf::new(),
            certificate_file: PathBuf::new(),
            certificate_key_file: PathBuf::new(),
            lease_ms: nonzero!(15_000),
            timeout_ms: nonzero!(1_000),
        }
    }
}

/// An open table.
#[derive(Clone)]
pub struct Opened {
    /// The table.
    pub sessions: Arc<dyn Sessions>,
    /// Its nodes.
    pub nodes: Arc<dyn Nodes>,
}

/// Opens the table. `owner` is notified when other nodes end this node's sessions or publish events.
///
/// # Errors
/// `Invalid`: a setting can't be used. An unreachable Redis is not an error: the table begins with this node alone, and
/// [`Nodes::health`] reports it.
pub fn open(config: Config, owner: Arc<dyn Owner>) -> BoxFuture<'static, Result<Opened, Error>> {
    // Boxed here, so that only this crate compiles the code of the engines, and not each crate that opens one.
    Box::pin(open_engine(config, owner))
}

async fn open_engine(config: Config, owner: Arc<dyn Owner>) -> Result<Opened, Error> {
    match &config.url {
        EngineUrl::Memory => Ok(memory::open(&config, owner)),
        #[cfg(feature = "redis")]
        EngineUrl::Redis(url) => crate::redis::open(url, &config, owner).await,
        #[cfg(not(feature = "redis"))]
        EngineUrl::Redis(_) => {
            Err(Error::invalid("this build is without the redis engine: build it with --features redis"))
        }
    }
}

/// An open table, and the hub that delivers events to this node's sessions.
#[derive(Clone)]
pub struct Live {
    /// The table.
    pub sessions: Arc<dyn Sessions>,
    /// Its nodes.
    pub nodes: Arc<dyn Nodes>,
    /// The subscriptions of this node's sessions.
    pub hub: Hub,
}

impl Live {
    /// Opens the table with a hub as the owner of this node's sessions.
    ///
    /// # Errors
    /// Those of [`open`].
    pub async fn open(config: Config, hub: HubConfig) -> Result<Self, Error> {
        let hub = Hub::new(hub, config.metrics.hub.clone());
        let Opened { sessions, nodes } = open(config, Arc::new(hub.clone())).await?;
        hub.connect(nodes.clone());
        Ok(Self { sessions, nodes, hub })
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("hub", &self.hub).finish_non_exhaustive()
    }
}
