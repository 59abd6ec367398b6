//! The doors of the server, each with the roles that it keeps things in, its settings and its commands.
//!
//! A door is a cargo feature. [`DOORS`] lists those of this binary; the rest of the binary asks that list and names none of them.

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

/// What the features of this crate bring: sections of settings, and commands. It includes those that this binary was built without.
const FEATURES: [(&str, &[&str], &[&str]); 3] = [
    ("waku", &["archive", "rest", "waku"], &["archive", "publish", "query"]),
    (
        "mail",
        &["blobs", "directory", "jmap", "lmtp", "mail", "queue", "records", "search", "smtp"],
        &["account", "alias", "blobs", "domain", "log", "mail", "records", "setup", "token"],
    ),
    ("bench", &[], &["bench"]),
];

/// The feature that brings a section of settings.
pub(crate) fn feature_of_section(section: &str) -> Option<&'static str> {
    FEATURES.iter().find(|(_, sections, _)| sections.contains(&section)).map(|(feature, ..)| *feature)
}

/// What is wrong with something that a feature would have brought.
pub(crate) fn built_without(feature: &str) -> String {
    format!("this binary was built without the feature `{feature}`")
}

/// Adds to an error of the command line what to do: build another binary, or use another flag.
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

/// The doors that the settings switch on.
pub(crate) fn enabled(config: &Config) -> impl Iterator<Item = &'static dyn DoorSpec> {
    DOORS.iter().copied().filter(|door| door.is_on(config))
}

/// The listeners that doors have beside those for operators and for users.
pub(crate) fn listeners(config: &Config) -> Vec<DoorListener> {
    DOORS.iter().filter_map(|door| door.listener(config)).collect()
}

/// Warns of listeners that belong to doors which are off: the setting, and what is wrong.
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

/// What a door has in the settings.
pub(crate) trait DoorSettings: Sync {
    /// The settings that switch it on.
    fn switches(&self) -> &'static [&'static str];

    /// Whether the door is switched on. One that is off opens nothing.
    fn is_on(&self, config: &Config) -> bool;

    /// The first pair of settings that contradict each other: the key to blame and what is wrong.
    fn contradiction(&self, config: &Config) -> Option<(&'static str, String)>;

    /// Its own listener of HTTP, if that is switched on.
    fn listener(&self, config: &Config) -> Option<DoorListener>;

    /// The operators' token, if a setting of the door names its file: the key and the file.
    fn token_file<'c>(&self, config: &'c Config) -> Option<(&'static str, &'c Path)>;

    /// The bounds that its settings have for listeners without bounds of their own.
    fn http_bounds(&self, config: &Config) -> Option<HttpBounds>;

    /// Further addresses that it listens on, each with the key that sets the port.
    fn ports(&self, config: &Config) -> Vec<(&'static str, SocketAddr)>;

    /// The settings that were given addresses to listen on, and have no effect as the door is off.
    fn unused_listeners(&self, config: &Config) -> Vec<&'static str>;

    /// How many connections it has at most, beside those of HTTP.
    fn connections_max(&self, config: &Config) -> u64;

    /// The value of a key that can hold a secret, without the secret; `None` for any other key.
    fn without_secret(&self, config: &Config, key: &str) -> Option<String>;

    /// Notes what would keep the door from starting on this machine, as far as it can be seen without starting it.
    fn check(&self, config: &Config, findings: &mut Findings);
}

/// A door that is part of this binary.
#[async_trait]
pub(crate) trait DoorSpec: DoorSettings {
    /// What the door adds to a text: examples to the help of the whole (`help`) and of a command (`serve`), and the settings of a new server
    /// to the file that `restante setup` writes (`restante.toml`).
    fn lines(&self, text: &str) -> &'static str;

    /// Adds to an error about a flag what to do in its place.
    fn advise(&self, error: clap::Error) -> clap::Error;

    /// Fails when the settings name a file that can't be used. Returns the certificates of the door's own listeners.
    fn prepare(
        &self,
        effective: &Effective,
        metrics: &NetMetrics,
    ) -> anyhow::Result<Option<Arc<Certificates>>>;

    /// Opens the roles of the door. `certificates` are those that [`DoorSpec::prepare`] has returned.
    async fn open(
        &self,
        shared: &Shared,
        certificates: Option<Arc<Certificates>>,
    ) -> anyhow::Result<Box<dyn OpenDoor>>;

    /// Adds the places of its stores, and its files in the data folder, to those that backups know.
    fn lay_out(&self, config: &Config, layout: Layout) -> Layout;

    /// Opens those stores of the door that exist, to back them up without a server, and appends them to `held`. After an error `held`
    /// has those that were opened before.
    async fn hold(&self, config: &Config, held: &mut Vec<Box<dyn HeldStore>>) -> anyhow::Result<()>;
}

/// A store that a backup without a server has opened.
#[async_trait]
pub(crate) trait HeldStore: Send + Sync {
    /// The store, and what copies it.
    fn store(&self, config: &Config) -> Store;

    async fn close(&self) -> anyhow::Result<()>;
}

/// What doors share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) effective: Arc<Effective>,
    pub(crate) bounds: HttpBounds,
    pub(crate) live: Live,
    pub(crate) clock: Arc<dyn Clock>,
    /// What listeners count.
    #[cfg_attr(
        not(feature = "mail"),
        expect(dead_code, reason = "only mail has listeners beside those of HTTP")
    )]
    pub(crate) net: NetMetrics,
    /// The token of operators.
    pub(crate) token: Option<Token>,
    /// Held while blobs are removed, and while none may be.
    pub(crate) removing: Removing,
    /// Memory for answers on all listeners.
    pub(crate) memory: Arc<MemoryBudget>,
    /// For requests that ask a role.
    pub(crate) permits: Permits,
}

/// A door whose roles are open.
#[async_trait]
pub(crate) trait OpenDoor: Send + Sync {
    /// Makes the metrics of its roles visible.
    fn register(&self, registry: &mut Registry);

    /// What operators see of its roles.
    fn report(&self) -> Report;

    /// Its stores, and what copies them.
    fn stores(&self) -> Vec<Store>;

    /// Begins the upkeep of its roles. Called once.
    fn spawn_upkeep(&mut self, stop: &Stop) -> Vec<JoinHandle<()>>;

    /// Begins to serve. `addresses` are those of the listeners of HTTP. Returns a door for each protocol that is switched on.
    async fn start(&self, addresses: &[(Listener, SocketAddr)]) -> anyhow::Result<Vec<Started>>;

    /// Logs the addresses that the door serves, for people, and writes them to `out`, for scripts. With `is_one` both go to one place,
    /// and each address is written once.
    fn announce(
        &self,
        addresses: &[(Listener, SocketAddr)],
        is_one: bool,
        out: &mut dyn Write,
    ) -> io::Result<()>;

    /// Closes the roles. The door has ended.
    async fn close(&self, limit: Duration) -> anyhow::Result<()>;
}

/// What operators see of the roles of a door.
#[derive(Default)]
pub(crate) struct Report {
    /// The health of roles that the door does not report itself.
    pub(crate) roles: Vec<RoleCheck>,
    /// The archive of messages.
    pub(crate) archive: Option<Arc<dyn ArchiveReport>>,
    /// Routes for operators.
    pub(crate) routes: Vec<Route>,
    /// What the console shows of its roles.
    pub(crate) facts: Vec<ShowFacts>,
    /// Lets operators pass who log in.
    pub(crate) operators: Option<Arc<dyn Guard>>,
    /// Lets accounts pass that log in.
    pub(crate) accounts: Option<Arc<dyn Guard>>,
}

/// A door that serves.
pub(crate) struct Started {
    pub(crate) door: Arc<dyn Door>,
    /// What its own listener has for operators.
    pub(crate) offer: Offer,
}

/// A listener of HTTP that a door has of its own.
pub(crate) struct DoorListener {
    pub(crate) kind: Listener,
    pub(crate) address: SocketAddr,
    /// The setting of the port.
    pub(crate) key: &'static str,
    /// The flag of the port.
    pub(crate) flag: &'static str,
    pub(crate) has_tls: bool,
    /// Where connections begin with a PROXY header.
    pub(crate) proxies: Vec<IpAddr>,
}

/// The bounds of a listener of HTTP and of its requests.
#[derive(Clone, Debug)]
pub(crate) struct HttpBounds {
    pub(crate) limits: Limits,
    pub(crate) server: ServerLimits,
    pub(crate) sites: Sites,
    /// Requests at once that ask a role.
    pub(crate) requests_max: usize,
    /// How long a request may take until its answer begins.
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

    /// A missing one would be reported as a spelling mistake.
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
