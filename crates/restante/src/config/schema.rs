//! The settings and their defaults. Each is parsed here, once, into a type that cannot be wrong.
//!
//! `restante.toml` in the repository says what each one means; a test keeps the two together.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZero,
    path::{Path, PathBuf},
};

use restante_archive::{
    EngineUrl, LogConfig, PostgresConfig, Retention, SpoolConfig, SqliteConfig, TandemConfig,
};
use restante_directory::DirectoryConfig;
use restante_operate::{Listener, PublicConfig};
use restante_waku::rest::RestConfig;
use serde::{Deserialize, Serialize};

use super::{
    blobs::Blobs,
    origin::{HostName, PageOrigin},
    records::Records,
    sessions::Sessions,
    tls::Tls,
    waku::Waku,
    words::{self, LogFilter},
};

/// Everything that can be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) server: Server,
    pub(crate) archive: Archive,
    pub(crate) records: Records,
    pub(crate) blobs: Blobs,
    pub(crate) directory: DirectoryConfig,
    pub(crate) sessions: Sessions,
    pub(crate) tls: Tls,
    pub(crate) rest: Rest,
    pub(crate) operate: Operate,
    pub(crate) public: PublicConfig,
    pub(crate) waku: Waku,
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
    pub(crate) log: ArchiveLog,
    pub(crate) sqlite: ArchiveSqlite,
    pub(crate) postgres: ArchivePostgres,
    pub(crate) spool: ArchiveSpool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArchiveLog {
    pub(crate) window_seconds: NonZero<u64>,
    pub(crate) segment_bytes: NonZero<u64>,
    pub(crate) segment_messages: NonZero<u64>,
    pub(crate) open_segments: NonZero<usize>,
    pub(crate) quiet_seconds: u64,
    pub(crate) queue_bytes: NonZero<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArchiveSqlite {
    pub(crate) readers: NonZero<usize>,
    pub(crate) cache_bytes: NonZero<usize>,
    pub(crate) queue_bytes: NonZero<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArchivePostgres {
    /// Empty for none.
    pub(crate) password_file: PathBuf,
    pub(crate) window_seconds: NonZero<u64>,
    pub(crate) read_connections: NonZero<usize>,
    pub(crate) write_connections: NonZero<usize>,
    pub(crate) connect_timeout_ms: NonZero<u64>,
    pub(crate) statement_timeout_ms: NonZero<u64>,
    pub(crate) queue_bytes: NonZero<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArchiveSpool {
    /// Empty for the folder `spool` below the data folder.
    pub(crate) dir: PathBuf,
    /// 0 for no spool.
    pub(crate) bytes_max: u64,
    pub(crate) timeout_ms: NonZero<u64>,
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
    /// The archive's URL, with the default filled in.
    pub(crate) fn archive_url(&self) -> EngineUrl {
        match &self.archive.url {
            Some(url) => url.clone(),
            None => log_below(&self.server.data_dir),
        }
    }

    /// The file of the operators' token; empty for no token.
    pub(crate) fn token_file(&self) -> &Path {
        let own = &self.operate.token_file;
        if own.as_os_str().is_empty() { &self.rest.token_file } else { own }
    }

    /// Whether a listener speaks HTTPS.
    pub(crate) fn has_tls(&self, listener: Listener) -> bool {
        match listener {
            Listener::Rest => self.rest.enabled && self.rest.tls,
            Listener::Operate => self.operate.listen.is_some() && self.operate.tls,
            Listener::Public => self.public.tls && !self.public.listen.is_empty(),
        }
    }

    /// The URL of a listener.
    pub(crate) fn url(&self, listener: Listener, address: SocketAddr) -> String {
        if listener == Listener::Public {
            return self.public.url(address);
        }
        let scheme = if self.has_tls(listener) { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    /// The setting that names that file.
    pub(crate) fn token_key(&self) -> &'static str {
        if self.operate.token_file.as_os_str().is_empty() { "rest.token_file" } else { "operate.token_file" }
    }

    /// The place of the records, with the default filled in.
    pub(crate) fn records_url(&self) -> restante_records::EngineUrl {
        self.records.url(&self.server.data_dir)
    }

    /// The place of the blobs, with the default filled in.
    pub(crate) fn blobs_url(&self) -> restante_blobs::EngineUrl {
        self.blobs.url(&self.server.data_dir)
    }

    /// The spool for the archive of a server, if it is to have one: an engine on a network has, one on this machine when a
    /// folder is named for it. What an earlier engine has left in the spool is drained into the present one.
    pub(crate) fn spool(&self) -> Option<SpoolConfig> {
        let spool = self.spool_in("archive");
        let is_asked_for = !self.archive.spool.dir.as_os_str().is_empty();
        let is_wanted =
            matches!(self.archive_url(), EngineUrl::Postgres(_)) || is_asked_for || spool.has_content();
        (is_wanted && spool.bytes_max > 0).then_some(spool)
    }

    /// A spool that is switched off, and in which messages of before may wait.
    pub(crate) fn spool_left_behind(&self) -> Option<PathBuf> {
        let spool = self.spool_in("archive");
        (spool.bytes_max == 0 && spool.has_content()).then_some(spool.folder)
    }

    /// The second archive of a server, if it is to have one.
    pub(crate) fn tandem(&self) -> Option<TandemConfig> {
        let url = self.archive.tandem.clone()?;
        Some(TandemConfig { url, spool: self.spool_in("tandem") })
    }

    /// A spool below the folder of spools.
    pub(crate) fn spool_in(&self, name: &str) -> SpoolConfig {
        let ArchiveSpool { dir, bytes_max, timeout_ms } = &self.archive.spool;
        let dir = if dir.as_os_str().is_empty() { self.server.data_dir.join("spool") } else { dir.clone() };
        SpoolConfig { folder: dir.join(name), bytes_max: *bytes_max, timeout_ms: timeout_ms.get() }
    }

    /// The first pair of settings that contradict each other: the key to blame and what is wrong.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        if self.archive.tandem.as_ref() == Some(&self.archive_url()) {
            return Some(("archive.tandem", "an archive can't follow itself: name another one".into()));
        }
        if self.archive.tandem.is_some() && self.archive.spool.bytes_max == 0 {
            let what =
                "what the second archive does not have yet waits in a spool: set archive.spool.bytes_max";
            return Some(("archive.tandem", what.into()));
        }
        if let Some(what) = self.directory.rounds_problem() {
            return Some(("directory.rounds", what));
        }
        let is_open = self.operate.listen.is_some_and(|address| !address.ip().is_loopback());
        if is_open && self.token_file().as_os_str().is_empty() {
            let what = "beyond loopback operators need a token: set operate.token_file";
            return Some(("operate.listen", what.into()));
        }
        if !self.rest.enabled && !self.waku.node.enabled {
            return Some(("rest.enabled", "a server has a door: enable the REST door or waku.node".into()));
        }
        let roles = self.blobs.contradiction().or_else(|| self.sessions.contradiction());
        let listeners = || {
            let keys = [
                (Listener::Rest, "rest.tls"),
                (Listener::Operate, "operate.tls"),
                (Listener::Public, "public.tls"),
            ];
            let with_tls = keys.into_iter().find(|(listener, _)| self.has_tls(*listener));
            self.tls.contradiction(with_tls.map(|(_, key)| key))
        };
        roles.or_else(listeners).or_else(|| self.waku.contradiction()).or_else(|| self.port_named_twice())
    }

    /// Two addresses of the server that need the same port.
    fn port_named_twice(&self) -> Option<(&'static str, String)> {
        let mut ports = Vec::new();
        if self.rest.enabled {
            ports.push(("rest.port", SocketAddr::new(self.rest.address, self.rest.port)));
        }
        ports.extend(self.operate.listen.map(|address| ("operate.listen", address)));
        // The default takes no port before a door has routes there.
        if self.public.listen != PublicConfig::default().listen {
            ports.extend(self.public.listen.iter().map(|address| ("public.listen", *address)));
        }
        if self.waku.node.enabled {
            ports.extend(self.waku.node.named_ports());
        }
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

/// The embedded engine's folder below a data folder.
fn log_below(data_dir: &Path) -> EngineUrl {
    EngineUrl::Log(data_dir.join("archive"))
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
            log: ArchiveLog::default(),
            sqlite: ArchiveSqlite::default(),
            postgres: ArchivePostgres::default(),
            spool: ArchiveSpool::default(),
        }
    }
}

impl Default for ArchiveLog {
    fn default() -> Self {
        let engine = LogConfig::default();
        Self {
            window_seconds: nonzero(engine.window_seconds),
            segment_bytes: nonzero(engine.segment_bytes),
            segment_messages: nonzero(engine.segment_messages),
            open_segments: nonzero(engine.open_segments),
            quiet_seconds: engine.quiet_seconds,
            queue_bytes: nonzero(engine.queue_bytes),
        }
    }
}

impl From<&ArchiveLog> for LogConfig {
    fn from(log: &ArchiveLog) -> Self {
        Self {
            window_seconds: log.window_seconds.get(),
            segment_bytes: log.segment_bytes.get(),
            segment_messages: log.segment_messages.get(),
            open_segments: log.open_segments.get(),
            quiet_seconds: log.quiet_seconds,
            queue_bytes: log.queue_bytes.get(),
        }
    }
}

impl Default for ArchiveSqlite {
    fn default() -> Self {
        let engine = SqliteConfig::default();
        Self {
            readers: nonzero(engine.readers),
            cache_bytes: nonzero(engine.cache_bytes),
            queue_bytes: nonzero(engine.queue_bytes),
        }
    }
}

impl From<&ArchiveSqlite> for SqliteConfig {
    fn from(sqlite: &ArchiveSqlite) -> Self {
        Self {
            readers: sqlite.readers.get(),
            cache_bytes: sqlite.cache_bytes.get(),
            queue_bytes: sqlite.queue_bytes.get(),
        }
    }
}

impl Default for ArchivePostgres {
    fn default() -> Self {
        let engine = PostgresConfig::default();
        Self {
            password_file: PathBuf::new(),
            window_seconds: nonzero(engine.window_seconds),
            read_connections: nonzero(engine.read_connections),
            write_connections: nonzero(engine.write_connections),
            connect_timeout_ms: nonzero(engine.connect_timeout_ms),
            statement_timeout_ms: nonzero(engine.statement_timeout_ms),
            queue_bytes: nonzero(engine.queue_bytes),
        }
    }
}

impl From<&ArchivePostgres> for PostgresConfig {
    fn from(postgres: &ArchivePostgres) -> Self {
        Self {
            window_seconds: postgres.window_seconds.get(),
            read_connections: postgres.read_connections.get(),
            write_connections: postgres.write_connections.get(),
            connect_timeout_ms: postgres.connect_timeout_ms.get(),
            statement_timeout_ms: postgres.statement_timeout_ms.get(),
            queue_bytes: postgres.queue_bytes.get(),
        }
    }
}

impl Default for ArchiveSpool {
    fn default() -> Self {
        let SpoolConfig { folder, bytes_max, timeout_ms } = SpoolConfig::new("");
        Self { dir: folder, bytes_max, timeout_ms: nonzero(timeout_ms) }
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
