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
use restante_core::nonzero;
use restante_directory::DirectoryConfig;
use restante_operate::{Listener, PublicConfig};
use restante_waku::rest::RestConfig;
use serde::{Deserialize, Serialize};

use super::{
    blobs::Blobs,
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
pub(crate) struct Rest {
    pub(crate) enabled: bool,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// Whether the listener speaks TLS, with the certificates of [`Tls`].
    pub(crate) tls: bool,
    /// Where connections begin with a PROXY header.
    pub(crate) proxies: Vec<IpAddr>,
    /// Empty for no token.
    pub(crate) token_file: PathBuf,
    #[serde(flatten)]
    pub(crate) door: RestConfig,
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
        let is_asked_for = !self.archive.spool.folder.as_os_str().is_empty();
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
        let SpoolConfig { folder, bytes_max, timeout_ms } = self.archive.spool.clone();
        let folder = if folder.as_os_str().is_empty() { self.server.data_dir.join("spool") } else { folder };
        SpoolConfig { folder: folder.join(name), bytes_max, timeout_ms }
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
        Self { data_dir: "data".into(), grace_seconds: nonzero!(10) }
    }
}

impl Default for Archive {
    fn default() -> Self {
        Self {
            url: None,
            retention: Retention::default(),
            retention_interval_seconds: nonzero!(60),
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
        Self {
            enabled: true,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8645, // the port of nwaku's REST door
            tls: false,
            proxies: Vec::new(),
            token_file: PathBuf::new(),
            door: RestConfig::default(),
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
