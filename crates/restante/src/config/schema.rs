//! The settings and their defaults. Each is parsed here, once, into a type that can't hold an invalid value.
//!
//! `restante.toml` in the repository documents each one; a test keeps both in sync.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZero,
    path::{Path, PathBuf},
};

use restante_core::nonzero;
use restante_operate::{Listener, PublicConfig};
use serde::{Deserialize, Serialize};

use crate::doors::{self, DOORS};

use super::{
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
    pub(crate) archive: super::archive::Archive,
    #[cfg(feature = "mail")]
    pub(crate) mail: doors::mail::MailSection,
    #[cfg(feature = "mail")]
    pub(crate) records: super::records::Records,
    #[cfg(feature = "mail")]
    pub(crate) blobs: super::blobs::Blobs,
    #[cfg(feature = "mail")]
    pub(crate) directory: restante_directory::DirectoryConfig,
    #[cfg(feature = "mail")]
    pub(crate) search: super::search::Search,
    #[cfg(feature = "mail")]
    pub(crate) jmap: restante_jmap::JmapConfig,
    #[cfg(feature = "mail")]
    pub(crate) smtp: restante_smtp::SmtpConfig,
    #[cfg(feature = "mail")]
    pub(crate) lmtp: restante_smtp::LmtpConfig,
    #[cfg(feature = "mail")]
    pub(crate) submission: restante_smtp::SubmissionConfig,
    #[cfg(feature = "mail")]
    pub(crate) checks: restante_checks::ChecksConfig,
    #[cfg(feature = "mail")]
    pub(crate) quarantine: restante_mail::quarantine::QuarantineConfig,
    #[cfg(feature = "mail")]
    pub(crate) delivery: restante_delivery::DeliveryConfig,
    #[cfg(feature = "mail")]
    pub(crate) queue: super::queue::Queue,
    pub(crate) sessions: Sessions,
    pub(crate) tls: Tls,
    #[cfg(feature = "waku")]
    pub(crate) rest: super::rest::Rest,
    pub(crate) operate: Operate,
    pub(crate) public: PublicConfig,
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

/// The listener for operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Operate {
    /// `None`, written as an empty text, means no listener.
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
            Listener::Public => self.public.tls && !self.public.listen.is_empty(),
            Listener::Rest => doors::listeners(self).iter().any(|own| own.kind == listener && own.has_tls),
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

    /// The first pair of settings that contradict each other: the key to report, and what is wrong.
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
        let tls_keys = [
            (Listener::Rest, "rest.tls"),
            (Listener::Operate, "operate.tls"),
            (Listener::Public, "public.tls"),
        ];
        let with_tls = tls_keys.into_iter().find(|(listener, _)| self.has_tls(*listener));
        let of_doors = || DOORS.iter().find_map(|door| door.contradiction(self));
        of_doors()
            .or_else(|| self.sessions.contradiction())
            .or_else(|| self.tls.contradiction(with_tls.map(|(_, key)| key)))
            .or_else(|| self.port_named_twice())
    }

    /// Two addresses of the server that need the same port.
    fn port_named_twice(&self) -> Option<(&'static str, String)> {
        let own = doors::listeners(self).into_iter().map(|own| (own.key, own.address));
        let mut ports: Vec<(&str, SocketAddr)> = own.collect();
        ports.extend(self.operate.listen.map(|address| ("operate.listen", address)));
        ports.extend(self.public.listen.iter().map(|address| ("public.listen", *address)));
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

/// Whether two addresses can't be listened on at the same time. Port 0 is any free port, and an unspecified address stands for all of
/// the machine's addresses.
fn is_same_port(one: SocketAddr, other: SocketAddr) -> bool {
    let is_for_all = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (is_for_all || one.ip() == other.ip())
}

impl Default for Server {
    fn default() -> Self {
        Self { data_dir: "data".into(), grace_seconds: nonzero!(10) }
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
