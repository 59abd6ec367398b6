//! The doors of the server, each with its stores (roles), its settings and its commands.
//!
//! A door is a cargo feature. [`DOORS`] lists those of this binary; the rest of the binary uses that list and names none of them.

#[cfg(feature = "mail")]
pub(crate) mod mail;
#[cfg(feature = "waku")]
pub(crate) mod waku;

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use prometheus_client::registry::Registry;
use restante_backup::{Layout, Removing, Store};
use restante_core::Clock;
use restante_http::{Guard, MemoryBudget, Permits, Route, ServerLimits, Sites, Token};
use restante_net::{Limits, NetMetrics, tls::Certificates};
use restante_operate::{ArchiveReport, Door, Listener, Offer, RoleCheck, ShowFacts};
use restante_sessions::Live;
use tokio::task::JoinHandle;

use crate::{
    commands::config::Findings,
    config::{Config, Effective},
    signals::Stop,
};

/// The doors that this binary was built with.
pub(crate) const DOORS: &[&dyn DoorSpec] = &[
    #[cfg(feature = "waku")]
    &waku::WakuSpec,
    #[cfg(feature = "mail")]
    &mail::MailSpec,
];

/// The sections of settings and the commands of each feature, including features that this binary was built without.
const FEATURES: [(&str, &[&str], &[&str]); 3] = [
    ("waku", &["archive", "rest", "waku"], &["archive", "publish", "query"]),
    (
        "mail",
        &["blobs", "directory", "jmap", "lmtp", "mail", "queue", "records", "search", "smtp"],
        &["account", "alias", "blobs", "domain", "log", "mail", "records", "setup", "token"],
    ),
    ("bench", &[], &["bench"]),
];

/// The feature that has a section of settings.
pub(crate) fn feature_of_section(section: &str) -> Option<&'static str> {
    FEATURES.iter().find(|(_, sections, _)| sections.contains(&section)).map(|(feature, ..)| *feature)
}

/// The error for something that belongs to a missing feature.
pub(crate) fn built_without(feature: &str) -> String {
    format!("this binary was built without the feature `{feature}`")
}

/// Adds advice to an error of the command line: build another binary, or use another flag.
pub(crate) fn advise(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(command)) = error.get(ContextKind::InvalidSubcommand)
        && let Some((feature, ..)) =
            FEATURES.iter().find(|(.., commands)| commands.contains(&command.as_str()))
    {
        error.remove(ContextKind::SuggestedSubcommand);
        let what = ContextValue::StyledStrs(vec![built_without(feature).into()]);
        error.insert(ContextKind::Suggested, what);
        return error;
    }
    DOORS.iter().fold(error, |error, door| door.advise(error))
}

/// What the doors add to a text: see [`DoorSpec::lines`].
pub(crate) fn lines(text: &str) -> String {
    DOORS.iter().map(|door| door.lines(text)).collect()
}

/// The doors that the settings enable.
pub(crate) fn enabled(config: &Config) -> impl Iterator<Item = &'static dyn DoorSpec> {
    DOORS.iter().copied().filter(|door| door.is_on(config))
}

/// The listeners of doors, in addition to those for operators and for users.
pub(crate) fn listeners(config: &Config) -> Vec<DoorListener> {
    DOORS.iter().filter_map(|door| door.listener(config)).collect()
}

/// Warnings about listeners of doors that are off: the setting, and what is wrong.
pub(crate) fn unused_listeners(config: &Config) -> Vec<(&'static str, String)> {
    let off = DOORS.iter().filter(|door| !door.is_on(config));
    let unused = off.flat_map(|door| {
        let what = format!("nothing listens there: it needs {}", door.switches().join(" or "));
        door.unused_listeners(config).into_iter().map(move |key| (key, what.clone()))
    });
    unused.collect()
}

/// The bounds of listeners that have no settings of their own.
pub(crate) fn http_bounds(config: &Config) -> HttpBounds {
    DOORS.iter().find_map(|door| door.http_bounds(config)).unwrap_or_default()
}

/// The settings of a door.
pub(crate) trait DoorSettings: Sync {
    /// The settings that enable it.
    fn switches(&self) -> &'static [&'static str];

    /// Whether the door is on. One that is off opens nothing.
    fn is_on(&self, config: &Config) -> bool;

    /// The first pair of settings that contradict each other: the key to report, and what is wrong.
    fn contradiction(&self, config: &Config) -> Option<(&'static str, String)>;

    /// Its own HTTP listener, if that is enabled.
    fn listener(&self, config: &Config) -> Option<DoorListener>;

    /// The operators' token, if a setting of the door names its file: the key and the file.
    fn token_file<'c>(&self, config: &'c Config) -> Option<(&'static str, &'c Path)>;

    /// The bounds in its settings for listeners without bounds of their own.
    fn http_bounds(&self, config: &Config) -> Option<HttpBounds>;

    /// Further addresses that it listens on, each with the key that sets the port.
    fn ports(&self, config: &Config) -> Vec<(&'static str, SocketAddr)>;

    /// Settings with addresses to listen on that have no effect because the door is off.
    fn unused_listeners(&self, config: &Config) -> Vec<&'static str>;

    /// The most connections that it accepts, not counting HTTP.
    fn connections_max(&self, config: &Config) -> u64;

    /// The value of a key that can hold a secret, without the secret; `None` for any other key.
    fn without_secret(&self, config: &Config, key: &str) -> Option<String>;

    /// Adds what would prevent the door from starting on this machine, as far as possible without starting it.
    fn check(&self, config: &Config, findings: &mut Findings);
}

/// A door that is part of this binary.
#[async_trait]
pub(crate) trait DoorSpec: DoorSettings {
    /// What the door adds to a text: examples to the help of the program (`help`) and of a command (`serve`), and the settings of a new
    /// server to the file that `restante setup` writes (`restante.toml`).
    fn lines(&self, text: &str) -> &'static str;

    /// Adds advice to an error about a flag: what to use instead.
    fn advise(&self, error: clap::Error) -> clap::Error;

    /// Fails when the settings name a file that can't be used. Returns the certificates of the door's own listeners.
    fn prepare(
        &self,
        effective: &Effective,
        metrics: &NetMetrics,
    ) -> anyhow::Result<Option<Arc<Certificates>>>;

    /// Opens the stores of the door. `certificates` are those that [`DoorSpec::prepare`] has returned.
    async fn open(
        &self,
        shared: &Shared,
        certificates: Option<Arc<Certificates>>,
    ) -> anyhow::Result<Box<dyn OpenDoor>>;

    /// Adds the locations of its stores, and its files in the data folder, to the layout of backups.
    fn lay_out(&self, config: &Config, layout: Layout) -> Layout;

    /// Opens the existing stores of the door, to back them up without a server, and appends them to `held`. After an error `held` has
    /// those that were opened before.
    async fn hold(&self, config: &Config, held: &mut Vec<Box<dyn HeldStore>>) -> anyhow::Result<()>;
}

/// A store that a backup without a server has opened.
#[async_trait]
pub(crate) trait HeldStore: Send + Sync {
    /// The store, and its backup implementation.
    fn store(&self, config: &Config) -> Store;

    async fn close(&self) -> anyhow::Result<()>;
}

/// What all doors share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) effective: Arc<Effective>,
    pub(crate) bounds: HttpBounds,
    pub(crate) live: Live,
    pub(crate) clock: Arc<dyn Clock>,
    /// The metrics of listeners.
    #[cfg_attr(
        not(feature = "mail"),
        expect(dead_code, reason = "only mail has listeners beside those of HTTP")
    )]
    pub(crate) net: NetMetrics,
    /// The token of operators.
    pub(crate) token: Option<Token>,
    /// Locked while blobs are removed, and while none may be.
    pub(crate) removing: Removing,
    /// The memory budget for responses on all listeners.
    pub(crate) memory: Arc<MemoryBudget>,
    /// Permits for requests that use a role.
    pub(crate) permits: Permits,
}

/// A door whose stores are open.
#[async_trait]
pub(crate) trait OpenDoor: Send + Sync {
    /// Registers the metrics of its roles.
    fn register(&self, registry: &mut Registry);

    /// What it reports to operators about its roles.
    fn report(&self) -> Report;

    /// Its stores, and their backup implementations.
    fn stores(&self) -> Vec<Store>;

    /// Starts the upkeep of its roles. Called once.
    fn spawn_upkeep(&mut self, stop: &Stop) -> Vec<JoinHandle<()>>;

    /// Starts serving. `addresses` are those of the HTTP listeners. Returns a door for each protocol that is enabled.
    async fn start(&self, addresses: &[(Listener, SocketAddr)]) -> anyhow::Result<Vec<Started>>;

    /// Logs the addresses that the door serves, for people, and writes them to `out`, for scripts. With `is_one` both go to the same
    /// place, and each address is written once.
    fn announce(
        &self,
        addresses: &[(Listener, SocketAddr)],
        is_one: bool,
        out: &mut dyn Write,
    ) -> io::Result<()>;

    /// Closes the stores, after the door has ended.
    async fn close(&self, limit: Duration) -> anyhow::Result<()>;
}

/// What a door reports to operators about its roles.
#[derive(Default)]
pub(crate) struct Report {
    /// The health of roles that the door does not report itself.
    pub(crate) roles: Vec<RoleCheck>,
    /// The archive of messages.
    pub(crate) archive: Option<Arc<dyn ArchiveReport>>,
    /// Routes for operators.
    pub(crate) routes: Vec<Route>,
    /// What the console shows about its roles.
    pub(crate) facts: Vec<ShowFacts>,
    /// Accepts operators who log in.
    pub(crate) operators: Option<Arc<dyn Guard>>,
    /// Accepts accounts that log in.
    pub(crate) accounts: Option<Arc<dyn Guard>>,
}

/// A running door.
pub(crate) struct Started {
    pub(crate) door: Arc<dyn Door>,
    /// What its own listener offers to operators.
    pub(crate) offer: Offer,
}

/// An HTTP listener that belongs to a door.
pub(crate) struct DoorListener {
    pub(crate) kind: Listener,
    pub(crate) address: SocketAddr,
    /// The setting for its port.
    pub(crate) key: &'static str,
    /// The flag for its port.
    pub(crate) flag: &'static str,
    pub(crate) has_tls: bool,
    /// The addresses from which connections begin with a PROXY header.
    pub(crate) proxies: Vec<IpAddr>,
}

/// The bounds of an HTTP listener and of its requests.
#[derive(Clone, Debug)]
pub(crate) struct HttpBounds {
    pub(crate) limits: Limits,
    pub(crate) server: ServerLimits,
    pub(crate) sites: Sites,
    /// The most concurrent requests that use a role.
    pub(crate) requests_max: usize,
    /// How long a request may take until its response begins.
    pub(crate) request_timeout: Duration,
}

impl Default for HttpBounds {
    fn default() -> Self {
        let limits = Limits::default();
        let server = ServerLimits {
            header_timeout: limits.handshake_timeout,
            stall_timeout: limits.stall_timeout,
            requests_max: limits.connections_max,
            requests_per_address_max: limits.connections_per_address_max,
        };
        let request_timeout = limits.stall_timeout;
        Self { limits, server, sites: Sites::default(), requests_max: 256, request_timeout }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::Cli;

    /// A section or command that is missing there would be reported as a spelling mistake.
    #[test]
    fn each_section_and_command_of_a_feature_is_there() {
        let command = Cli::command();
        let defaults = Effective::defaults();
        for (feature, sections, commands) in FEATURES {
            for section in sections {
                let begin = format!("{section}.");
                assert!(defaults.iter().any(|(key, ..)| key.starts_with(&begin)), "{feature}: {section}");
            }
            for name in commands {
                assert!(command.find_subcommand(name).is_some(), "{feature}: {name}");
            }
        }
    }

    #[test]
    fn a_command_of_another_binary_is_answered_with_its_feature() {
        let error = clap::Command::new("restante").subcommand(clap::Command::new("serve"));
        let error = error.try_get_matches_from(["restante", "account", "list"]).unwrap_err();
        let error = advise(error).to_string();
        assert!(error.contains("this binary was built without the feature `mail`"), "{error}");
        let error = advise(Cli::try_parse_from(["restante", "acount"]).unwrap_err()).to_string();
        assert!(error.contains("'account'"), "a slip is answered with the nearest command: {error}");
    }
}
