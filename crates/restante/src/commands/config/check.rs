//! Finds what would prevent a server from starting with its settings, as far as possible without starting one.

use std::path::Path;

use crate::{commands::serve::read_token, config::Config, doors, open_files, secrets};

/// What is wrong with the settings on this machine.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Would prevent a server from starting.
    pub(crate) problems: Vec<String>,
    /// A server would start, but not do everything that the settings say.
    pub(crate) warnings: Vec<String>,
}

/// Checks settings against the files that they name and the limits of the system. Nothing is created or changed.
pub(super) fn check(config: &Config) -> Findings {
    let mut findings = Findings::default();
    check_data_dir(&config.server.data_dir, &mut findings);
    check_secrets(config, &mut findings);
    doors::DOORS.iter().for_each(|door| door.check(config, &mut findings));
    check_certificates(config, &mut findings);
    findings
        .warnings
        .extend(doors::unused_listeners(config).iter().map(|(key, what)| format!("{key}: {what}")));
    if let Some((allowed, wanted)) = open_files::shortage(config) {
        findings.warnings.push(format!(
            "the limits of connections need {wanted} open files, and the system allows {allowed}: raise it (ulimit -n, \
             LimitNOFILE=) or lower the settings connections_max"
        ));
    }
    findings
}

impl Findings {
    /// Adds the error of something that a key names.
    pub(crate) fn note<T>(&mut self, key: &str, result: anyhow::Result<T>) {
        if let Err(error) = result {
            self.problems.push(format!("{key}: {error:#}"));
        }
    }
}

/// A data folder that does not exist is created at the start, including its parents.
fn check_data_dir(data_dir: &Path, findings: &mut Findings) {
    let nearest = data_dir.ancestors().find(|folder| folder.exists());
    if let Some(path) = nearest.filter(|path| !path.is_dir()) {
        findings.problems.push(format!("server.data_dir: {} is not a folder", path.display()));
    }
}

fn check_secrets(config: &Config, findings: &mut Findings) {
    if config.operate.listen.is_some() || !doors::listeners(config).is_empty() {
        findings.note(config.token_key(), read_token(config.token_file()));
    }
    let file = &config.sessions.redis.password_file;
    if !file.as_os_str().is_empty() {
        findings.note("sessions.redis.password_file", secrets::read("password", file));
    }
}

fn check_certificates(config: &Config, findings: &mut Findings) {
    for files in config.tls.files() {
        findings.note("tls.certificate_files", files.check().map_err(Into::into));
    }
}
