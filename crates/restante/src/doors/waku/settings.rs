//! The settings of the Waku door: the sections `archive`, `rest` and `waku`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use restante_archive::{EngineUrl, SpoolConfig, TandemConfig};
use restante_operate::Listener;

use super::WakuSpec;
use crate::{
    commands::config::Findings,
    config::{Config, Effective, Origin},
    doors::{DoorListener, DoorSettings, HttpBounds},
    secrets,
};

impl Config {
    /// The archive's URL, with the default filled in.
    pub(crate) fn archive_url(&self) -> EngineUrl {
        let below = || EngineUrl::Log(self.server.data_dir.join("archive"));
        self.archive.url.clone().unwrap_or_else(below)
    }

    /// The spool for the archive of a server, if it should have one: an engine on a network has one, an engine on this machine when a
    /// folder is named for it. Messages that an earlier engine has left in the spool are drained into the current one.
    pub(crate) fn spool(&self) -> Option<SpoolConfig> {
        let spool = self.spool_in("archive");
        let is_asked_for = !self.archive.spool.folder.as_os_str().is_empty();
        let is_wanted = matches!(self.archive_url(), EngineUrl::Postgres(_) | EngineUrl::Cassandra(_))
            || is_asked_for
            || spool.has_content();
        (is_wanted && spool.bytes_max > 0).then_some(spool)
    }

    /// A disabled spool that may still contain messages.
    pub(crate) fn spool_left_behind(&self) -> Option<PathBuf> {
        let spool = self.spool_in("archive");
        (spool.bytes_max == 0 && spool.has_content()).then_some(spool.folder)
    }

    /// The second archive of a server, if it should have one.
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
}

impl Effective {
    /// Whether there is a secret on the command line, where everybody on the machine can read it.
    pub(crate) fn has_secret_flag(&self) -> bool {
        let is_flag = matches!(self.origin("waku.node.key"), Origin::Flag(_));
        is_flag && self.config.waku.node.key.is_secret()
    }
}

impl DoorSettings for WakuSpec {
    fn switches(&self) -> &'static [&'static str] {
        &["rest.enabled", "waku.node.enabled"]
    }

    fn is_on(&self, config: &Config) -> bool {
        config.rest.enabled || config.waku.node.enabled
    }

    fn contradiction(&self, config: &Config) -> Option<(&'static str, String)> {
        let archive = &config.archive;
        if archive.tandem.as_ref() == Some(&config.archive_url()) {
            return Some(("archive.tandem", "an archive can't follow itself: name another one".into()));
        }
        if archive.tandem.is_some() && archive.spool.bytes_max == 0 {
            let what =
                "what the second archive does not have yet waits in a spool: set archive.spool.bytes_max";
            return Some(("archive.tandem", what.into()));
        }
        config.waku.contradiction()
    }

    fn listener(&self, config: &Config) -> Option<DoorListener> {
        let rest = &config.rest;
        rest.enabled.then(|| DoorListener {
            kind: Listener::Rest,
            address: SocketAddr::new(rest.address, rest.port),
            key: "rest.port",
            flag: "--rest-port",
            has_tls: rest.tls,
            proxies: rest.proxies.clone(),
        })
    }

    fn token_file<'c>(&self, config: &'c Config) -> Option<(&'static str, &'c Path)> {
        let file = &config.rest.token_file;
        (!file.as_os_str().is_empty()).then_some(("rest.token_file", file))
    }

    fn http_bounds(&self, config: &Config) -> Option<HttpBounds> {
        let rest = &config.rest.door;
        Some(HttpBounds {
            limits: rest.limits(),
            server: rest.server_limits(),
            sites: rest.sites(),
            requests_max: rest.requests_max.get(),
            request_timeout: Duration::from_millis(rest.request_timeout_ms.get()),
        })
    }

    fn ports(&self, config: &Config) -> Vec<(&'static str, SocketAddr)> {
        let node = &config.waku.node;
        if node.enabled { node.named_ports() } else { Vec::new() }
    }

    /// Its listeners are enabled by the settings that enable the door.
    fn unused_listeners(&self, _config: &Config) -> Vec<&'static str> {
        Vec::new()
    }

    fn connections_max(&self, config: &Config) -> u64 {
        let limits = &config.waku.limits;
        u64::from(limits.connections_max.get()) + u64::from(limits.handshakes_max.get())
    }

    fn without_secret(&self, config: &Config, key: &str) -> Option<String> {
        let Config { archive, waku, .. } = config;
        match key {
            "archive.url" => archive.url.as_ref().map(ToString::to_string),
            "archive.tandem" => archive.tandem.as_ref().map(ToString::to_string),
            "waku.node.key" => Some(waku.node.key.to_string()),
            _ => None,
        }
    }

    fn check(&self, config: &Config, findings: &mut Findings) {
        check_password(config, findings);
        if config.waku.node.enabled {
            check_node(config, findings);
        }
        check_shards(config, findings);
    }
}

fn check_password(config: &Config, findings: &mut Findings) {
    let archive = &config.archive;
    let is_used = |engine: &str| {
        [Some(&config.archive_url()), archive.tandem.as_ref()]
            .into_iter()
            .flatten()
            .any(|url| url.engine() == engine)
    };
    for (engine, key, file) in [
        ("postgres", "archive.postgres.password_file", &archive.postgres.password_file),
        ("cassandra", "archive.cassandra.password_file", &archive.cassandra.password_file),
    ] {
        if is_used(engine) && !file.as_os_str().is_empty() {
            findings.note(key, secrets::read("password", file));
        }
    }
}

fn check_node(config: &Config, findings: &mut Findings) {
    let node = &config.waku.node;
    if let Some(files) = node.certificate() {
        findings.note("waku.node.certificate_file", files.check().map_err(Into::into));
    }
    // A missing key file is created at the start.
    let file = node.key.file(&config.server.data_dir);
    if file.is_some_and(|file| file.exists()) {
        findings.note("waku.node.key", node.key.load(&config.server.data_dir).map_err(Into::into));
    }
}

/// Autosharding never chooses a shard beyond those of the network. A network with static shards may have such shards.
fn check_shards(config: &Config, findings: &mut Findings) {
    let waku = &config.waku.rules;
    let in_network = waku.shards_in_network.max(1);
    let beyond: Vec<String> =
        waku.shards.iter().filter(|shard| **shard >= in_network).map(u16::to_string).collect();
    if !beyond.is_empty() {
        findings.warnings.push(format!(
            "waku.shards: no content topic falls on {}: the network has the shards 0 to {} (waku.shards_in_network)",
            beyond.join(", "),
            in_network - 1
        ));
    }
}
