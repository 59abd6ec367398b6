//! The settings and their defaults. Each is parsed here, once, into a type that cannot be wrong.
//!
//! `restante.toml` in the repository says what each one means; a test keeps the two together.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZero,
    path::{Path, PathBuf},
};

use restante_archive::{EngineUrl, LogConfig, PostgresConfig, Retention, SpoolConfig, SqliteConfig};
use restante_operate::Listener;
use restante_waku::rest::RestConfig;
use serde::{Deserialize, Serialize};

use crate::doors::{self, DOORS};

use super::{
    origin::{HostName, PageOrigin},
    sessions::Sessions,
    tls::Tls,
    words::{self, LogFilter},
};

/// Everything that can be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) server: Server,
    #[cfg(feature = "waku")]
    pub(crate) archive: Archive,
    #[cfg(feature = "mail")]
    pub(crate) mail: doors::mail::MailSection,
    #[cfg(feature = "mail")]
    pub(crate) records: super::records::Records,
    #[cfg(feature = "mail")]
    pub(crate) blobs: super::blobs::Blobs,
    #[cfg(feature = "mail")]
    pub(crate) directory: restante_directory::DirectoryConfig,
    pub(crate) sessions: Sessions,
    pub(crate) tls: Tls,
    #[cfg(feature = "waku")]
    pub(crate) rest: Rest,
    pub(crate) operate: Operate,
    #[cfg(feature = "waku")]
    pub(crate) waku: super::waku::Waku,
    pub(crate) log: Log,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    pub(crate) data_dir: PathBuf,
    pub(crate) grace_seconds: NonZero<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Archive {
    /// `None`, written as an empty text, is the embedded engine below the data folder.
    #[serde(with = "words::text_or_empty")]
    pub(crate) url: Option<EngineUrl>,
    #[serde(with = "words::text")]
    pub(crate) retention: Retention,
    pub(crate) retention_interval_seconds: NonZero<u64>,
    /// `None`, written as an empty text, is no second archive.
    #[serde(with = "words::text_or_empty")]
    pub(crate) tandem: Option<EngineUrl>,
    pub(crate) log: LogConfig,
    pub(crate) sqlite: SqliteConfig,
    pub(crate) postgres: ArchivePostgres,
    /// With an empty folder for `spool` below the data folder, and 0 bytes for no spool.
    pub(crate) spool: SpoolConfig,
}

/// The settings of PostgreSQL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ArchivePostgres {
    /// Empty for none.
    pub(crate) password_file: PathBuf,
    #[serde(flatten)]
    pub(crate) engine: PostgresConfig,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rest {
    pub(crate) enabled: bool,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// Whether the listener speaks TLS, with the certificates of [`Tls`].
    pub(crate) tls: bool,
    /// Where connections begin with a PROXY header.
    pub(crate) proxies: Vec<IpAddr>,
    pub(crate) connections_max: NonZero<usize>,
    pub(crate) connections_per_address_max: NonZero<usize>,
    pub(crate) header_timeout_ms: NonZero<u64>,
    pub(crate) request_timeout_ms: NonZero<u64>,
    pub(crate) requests_max: NonZero<usize>,
    pub(crate) relay_cache_messages: NonZero<usize>,
    pub(crate) admin: bool,
    pub(crate) console: Console,
    /// Empty for no token.
    pub(crate) token_file: PathBuf,
    pub(crate) live_streams_max: NonZero<usize>,
    pub(crate) live_queue_messages: NonZero<usize>,
    pub(crate) live_queue_bytes: NonZero<usize>,
    #[serde(with = "words::texts")]
    pub(crate) live_origins: Vec<PageOrigin>,
    #[serde(with = "words::texts")]
    pub(crate) hosts: Vec<HostName>,
    #[serde(with = "words::texts")]
    pub(crate) origins: Vec<PageOrigin>,
}

/// The listener for operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Operate {
    /// `None`, written as an empty text, is no listener.
    #[serde(with = "words::text_or_empty")]
    pub(crate) listen: Option<SocketAddr>,
    /// Whether it speaks HTTPS.
    pub(crate) tls: bool,
    /// Empty for no token.
    pub(crate) token_file: PathBuf,
}

/// Whether there is a console page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Console {
    /// Where none but operators can come.
    Auto,
    /// Nowhere.
    Off,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    #[serde(with = "words::text")]
    pub(crate) level: LogFilter,
    pub(crate) format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line, for machines.
    Json,
}

impl Config {
    /// The file of the operators' token; empty for no token.
    pub(crate) fn token_file(&self) -> &Path {
        self.token().1
    }

    /// The setting that names that file.
    pub(crate) fn token_key(&self) -> &'static str {
        self.token().0
    }

    fn token(&self) -> (&'static str, &Path) {
        let own = &self.operate.token_file;
        let of_door = || DOORS.iter().find_map(|door| door.token_file(self));
        let of_door = if own.as_os_str().is_empty() { of_door() } else { None };
        of_door.unwrap_or(("operate.token_file", own))
    }

    /// Whether a listener speaks HTTPS.
    pub(crate) fn has_tls(&self, listener: Listener) -> bool {
        match listener {
            Listener::Operate => self.operate.listen.is_some() && self.operate.tls,
            _ => doors::listeners(self).iter().any(|own| own.kind == listener && own.has_tls),
        }
    }

    /// The URL of a listener.
    pub(crate) fn url(&self, listener: Listener, address: SocketAddr) -> String {
        let scheme = if self.has_tls(listener) { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    /// The first pair of settings that contradict each other: the key to blame and what is wrong.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        let is_open = self.operate.listen.is_some_and(|address| !address.ip().is_loopback());
        if is_open && self.token_file().as_os_str().is_empty() {
            let what = "beyond loopback operators need a token: set operate.token_file";
            return Some(("operate.listen", what.into()));
        }
        if doors::enabled(self).next().is_none() {
            let switches: Vec<&str> = DOORS.iter().flat_map(|door| door.switches()).copied().collect();
            let key = switches.first().copied().unwrap_or("server.data_dir");
            return Some((key, format!("a server has a door: switch one on with {}", switches.join(" or "))));
        }
        let needs_certificate = [Listener::Rest, Listener::Operate].iter().any(|kind| self.has_tls(*kind));
        let of_doors = || DOORS.iter().find_map(|door| door.contradiction(self));
        of_doors()
            .or_else(|| self.sessions.contradiction())
            .or_else(|| self.tls.contradiction(needs_certificate))
            .or_else(|| self.port_named_twice())
    }

    /// Two addresses of the server that need the same port.
    fn port_named_twice(&self) -> Option<(&'static str, String)> {
        let own = doors::listeners(self).into_iter().map(|own| (own.key, own.address));
        let mut ports: Vec<(&str, SocketAddr)> = own.collect();
        ports.extend(self.operate.listen.map(|address| ("operate.listen", address)));
        ports.extend(DOORS.iter().flat_map(|door| door.ports(self)));
        for (index, (key, address)) in ports.iter().enumerate() {
            for (other, before) in ports.iter().take(index) {
                if is_same_port(*address, *before) {
                    let what = format!("{} is the port of {other}, too: choose another", address.port());
                    return Some((key, what));
                }
            }
        }
        None
    }
}

/// Whether two addresses can't be listened on at once. A port of 0 is a free one, and an unspecified address stands for all
/// of the machine's.
fn is_same_port(one: SocketAddr, other: SocketAddr) -> bool {
    let is_for_all = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (is_for_all || one.ip() == other.ip())
}

impl Default for Server {
    fn default() -> Self {
        Self { data_dir: "data".into(), grace_seconds: nonzero(10) }
    }
}

impl Default for Archive {
    fn default() -> Self {
        Self {
            url: None,
            retention: Retention::default(),
            retention_interval_seconds: nonzero(60),
            tandem: None,
            log: LogConfig::default(),
            sqlite: SqliteConfig::default(),
            postgres: ArchivePostgres::default(),
            spool: SpoolConfig::new(""),
        }
    }
}

impl Default for Rest {
    fn default() -> Self {
        let door = RestConfig::default();
        Self {
            enabled: true,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8645, // the port of nwaku's REST door
            tls: false,
            proxies: Vec::new(),
            connections_max: nonzero(door.connections_max),
            connections_per_address_max: nonzero(door.connections_per_address_max),
            header_timeout_ms: nonzero(door.header_timeout_ms),
            request_timeout_ms: nonzero(door.request_timeout_ms),
            requests_max: nonzero(door.requests_max),
            relay_cache_messages: nonzero(door.relay_cache_messages),
            admin: door.admin,
            console: if door.console { Console::Auto } else { Console::Off },
            token_file: PathBuf::new(),
            live_streams_max: nonzero(door.live_streams_max),
            live_queue_messages: nonzero(door.live_queue_messages),
            live_queue_bytes: nonzero(door.live_queue_bytes),
            live_origins: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
        }
    }
}

impl From<&Rest> for RestConfig {
    fn from(rest: &Rest) -> Self {
        Self {
            admin: rest.admin,
            console: rest.console == Console::Auto,
            live_streams_max: rest.live_streams_max.get(),
            live_queue_messages: rest.live_queue_messages.get(),
            live_queue_bytes: rest.live_queue_bytes.get(),
            live_origins: rest.live_origins.iter().map(ToString::to_string).collect(),
            hosts: rest.hosts.iter().map(ToString::to_string).collect(),
            origins: rest.origins.iter().map(ToString::to_string).collect(),
            relay_cache_messages: rest.relay_cache_messages.get(),
            connections_max: rest.connections_max.get(),
            connections_per_address_max: rest.connections_per_address_max.get(),
            stop_timeout_ms: Self::default().stop_timeout_ms, // the server sets its part of the grace time
            header_timeout_ms: rest.header_timeout_ms.get(),
            request_timeout_ms: rest.request_timeout_ms.get(),
            requests_max: rest.requests_max.get(),
        }
    }
}

impl Default for Operate {
    fn default() -> Self {
        Self { listen: Some((Ipv4Addr::LOCALHOST, 8646).into()), tls: false, token_file: PathBuf::new() }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: LogFilter::default(), format: LogFormat::Text }
    }
}

/// A default as its non-zero type.
pub(super) fn nonzero<T, N: TryFrom<T>>(value: T) -> N {
    N::try_from(value).ok().expect("no default is zero")
}
