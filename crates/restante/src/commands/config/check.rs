//! What would keep a server from starting with its settings, as far as it can be seen without starting one.

use std::path::Path;

use restante_archive::EngineUrl;

use crate::{
    commands::serve::read_token,
    config::{Config, WakuSection},
    open_files, secrets,
};

/// What is wrong with the settings on this machine.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// A server would not start.
    pub(super) problems: Vec<String>,
    /// A server would start, and not do all that the settings say.
    pub(super) warnings: Vec<String>,
}

/// Checks settings against the files that they name and the limits of the system. Nothing is created or changed.
pub(super) fn check(config: &Config) -> Findings {
    let mut findings = Findings::default();
    check_data_dir(&config.server.data_dir, &mut findings);
    check_secrets(config, &mut findings);
    if config.waku.node.enabled {
        check_node(config, &mut findings);
    }
    check_shards(&config.waku, &mut findings);
    check_certificates(config, &mut findings);
    if let Some((allowed, wanted)) = open_files::shortage(config) {
        findings.warnings.push(format!(
            "the limits of connections need {wanted} open files, and the system allows {allowed}: raise it (ulimit -n, \
             LimitNOFILE=) or lower rest.connections_max and waku.limits.connections_max"
        ));
    }
    findings
}

impl Findings {
    /// Notes the error of something that a key names.
    fn note<T>(&mut self, key: &str, result: anyhow::Result<T>) {
        if let Err(error) = result {
            self.problems.push(format!("{key}: {error:#}"));
        }
    }
}

/// A data folder that is not there is created at the start, with those above it.
fn check_data_dir(data_dir: &Path, findings: &mut Findings) {
    let nearest = data_dir.ancestors().find(|folder| folder.exists());
    if let Some(path) = nearest.filter(|path| !path.is_dir()) {
        findings.problems.push(format!("server.data_dir: {} is not a folder", path.display()));
    }
}

fn check_secrets(config: &Config, findings: &mut Findings) {
    if config.rest.enabled || config.operate.listen.is_some() {
        findings.note(config.token_key(), read_token(config.token_file()));
    }
    let is_postgres = |url: &EngineUrl| matches!(url, EngineUrl::Postgres(_));
    let needs_password =
        is_postgres(&config.archive_url()) || config.archive.tandem.as_ref().is_some_and(is_postgres);
    let passwords = [
        ("archive.postgres.password_file", &config.archive.postgres.password_file, needs_password),
        ("sessions.redis.password_file", &config.sessions.redis.password_file, true),
    ];
    for (key, file, is_needed) in passwords {
        if is_needed && !file.as_os_str().is_empty() {
            findings.note(key, secrets::read("password", file));
        }
    }
}

fn check_certificates(config: &Config, findings: &mut Findings) {
    for files in config.tls.files() {
        findings.note("tls.certificate_files", files.check().map_err(Into::into));
    }
}

fn check_node(config: &Config, findings: &mut Findings) {
    let node = &config.waku.node;
    if let Some(files) = node.certificate() {
        findings.note("waku.node.certificate_file", files.check().map_err(Into::into));
    }
    // A key file that is not there is created at the start.
    let file = node.key.file(&config.server.data_dir);
    if file.is_some_and(|file| file.exists()) {
        findings.note("waku.node.key", node.key.load(&config.server.data_dir).map_err(Into::into));
    }
}

/// Autosharding never chooses a shard beyond those of the network. A network with static shards may have them.
fn check_shards(waku: &WakuSection, findings: &mut Findings) {
    let in_network = waku.rules.shards_in_network.max(1);
    let beyond: Vec<String> =
        waku.rules.shards.iter().filter(|shard| **shard >= in_network).map(u16::to_string).collect();
    if !beyond.is_empty() {
        findings.warnings.push(format!(
            "waku.shards: no content topic falls on {}: the network has the shards 0 to {} (waku.shards_in_network)",
            beyond.join(", "),
            in_network - 1
        ));
    }
}
