//! The settings of mail: the sections `mail`, `records`, `blobs` and `directory`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use restante_mail::MailConfig;
use restante_smtp::{JournalConfig, LmtpAddress};
use serde::{Deserialize, Serialize};

use super::MailSpec;
use crate::{
    commands::config::Findings,
    config::Config,
    doors::{DoorListener, DoorSettings, HttpBounds},
    secrets,
};

/// Whether there is mail, its limits, and the journal of deliveries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mail {
    pub(crate) enabled: bool,
    pub(crate) limits: MailConfig,
    pub(crate) journal: JournalConfig,
}

impl Default for Mail {
    fn default() -> Self {
        Self { enabled: true, limits: MailConfig::default(), journal: JournalConfig::default() }
    }
}

impl Config {
    /// The location of the records, with the default filled in.
    pub(crate) fn records_url(&self) -> restante_records::EngineUrl {
        self.records.url(&self.server.data_dir)
    }

    /// The location of the blobs, with the default filled in.
    pub(crate) fn blobs_url(&self) -> restante_blobs::EngineUrl {
        self.blobs.url(&self.server.data_dir)
    }

    /// The folder of the journal of deliveries.
    pub(crate) fn journal_folder(&self) -> PathBuf {
        self.server.data_dir.join("journal")
    }

    /// The location of the search index, with the default filled in.
    pub(crate) fn search_url(&self) -> restante_search::EngineUrl {
        self.search.url(&self.server.data_dir)
    }
}

impl DoorSettings for MailSpec {
    fn switches(&self) -> &'static [&'static str] {
        &["mail.enabled"]
    }

    fn is_on(&self, config: &Config) -> bool {
        config.mail.enabled
    }

    fn contradiction(&self, config: &Config) -> Option<(&'static str, String)> {
        let of_directory = config.directory.rounds_problem().map(|what| ("directory.rounds", what));
        of_directory
            .or_else(|| config.blobs.contradiction())
            .or_else(|| config.search.contradiction())
            .or_else(|| config.queue.contradiction())
            .or_else(|| of_doors(config))
    }

    fn listener(&self, _config: &Config) -> Option<DoorListener> {
        None
    }

    fn token_file<'c>(&self, _config: &'c Config) -> Option<(&'static str, &'c Path)> {
        None
    }

    fn http_bounds(&self, _config: &Config) -> Option<HttpBounds> {
        None
    }

    fn ports(&self, config: &Config) -> Vec<(&'static str, SocketAddr)> {
        let smtp = config.smtp.listen.iter().map(|address| ("smtp.listen", *address));
        let lmtp = config.lmtp.listen.iter().filter_map(|address| match address {
            LmtpAddress::Tcp(address) => Some(("lmtp.listen", *address)),
            LmtpAddress::Unix(_) => None,
        });
        let submission = config.submission.listen.iter().map(|address| ("submission.listen", *address));
        let submissions =
            config.submission.listen_tls.iter().map(|address| ("submission.listen_tls", *address));
        smtp.chain(lmtp).chain(submission).chain(submissions).collect()
    }

    fn unused_listeners(&self, config: &Config) -> Vec<&'static str> {
        let listeners = [
            ("lmtp.listen", config.lmtp.listen.len()),
            ("public.listen", config.public.listen.len()),
            ("smtp.listen", config.smtp.listen.len()),
            ("submission.listen", config.submission.listen.len()),
            ("submission.listen_tls", config.submission.listen_tls.len()),
        ];
        listeners.into_iter().filter(|(_, addresses)| *addresses > 0).map(|(key, _)| key).collect()
    }

    fn connections_max(&self, config: &Config) -> u64 {
        let Config { smtp, lmtp, public, submission, .. } = config;
        let of = |listeners: usize, max: usize| listeners.saturating_mul(max) as u64;
        of(smtp.listen.len(), smtp.connections_max.get())
            + of(lmtp.listen.len(), lmtp.connections_max.get())
            + of(submission.listen.len() + submission.listen_tls.len(), submission.connections_max.get())
            + of(public.listen.len(), public.connections_max.get())
    }

    fn without_secret(&self, config: &Config, key: &str) -> Option<String> {
        match key {
            "records.url" => config.records.url.as_ref().map(ToString::to_string),
            "queue.url" => Some(config.queue.url.to_string()),
            "queue.announcements_url" => config.queue.announcements_url.as_ref().map(ToString::to_string),
            "search.url" => config.search.url.as_ref().map(ToString::to_string),
            _ => None,
        }
    }

    fn check(&self, config: &Config, findings: &mut Findings) {
        if let Some((key, file)) = super::records::password_file(&config.records_url(), config) {
            findings.note(key, secrets::read("password", file));
        }
        let needs_secret_key = matches!(config.blobs_url(), restante_blobs::EngineUrl::S3(_));
        let file = &config.blobs.s3.secret_key_file;
        if needs_secret_key && !file.as_os_str().is_empty() {
            findings.note("blobs.s3.secret_key_file", secrets::read("secret key", file));
        }
        let needs_password = matches!(config.search_url(), restante_search::EngineUrl::Opensearch(_));
        let file = &config.search.opensearch.password_file;
        if needs_password && !file.as_os_str().is_empty() {
            findings.note("search.opensearch.password_file", secrets::read("password", file));
        }
        let files = [
            ("queue.password_file", &config.queue.password_file),
            ("queue.announcements_password_file", &config.queue.announcements_password_file),
        ];
        for (key, file) in files.into_iter().filter(|(_, file)| !file.as_os_str().is_empty()) {
            findings.note(key, secrets::read("password", file));
        }
        let filter = &config.checks.filter;
        if !filter.url.is_empty() && !filter.password_file.as_os_str().is_empty() {
            findings.note("checks.filter.password_file", secrets::read("password", &filter.password_file));
        }
        for address in &config.lmtp.listen {
            if let LmtpAddress::Unix(path) = address
                && let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
                && !folder.is_dir()
            {
                findings.problems.push(format!("lmtp.listen: there is no folder {}", folder.display()));
            }
        }
        check_later_files(config, findings);
    }
}

/// Checks files that are read when they are first needed: a server starts without them.
fn check_later_files(config: &Config, findings: &mut Findings) {
    let remote = &config.delivery.remote;
    let files = [
        ("delivery.remote.authorities", &remote.authorities),
        ("delivery.remote.smarthost_credentials", &remote.smarthost_credentials),
        ("jmap.push.root_file", &config.jmap.push.root_file),
    ];
    for (key, file) in files.into_iter().filter(|(_, file)| !file.as_os_str().is_empty()) {
        if let Err(error) = std::fs::File::open(file) {
            findings.warnings.push(format!("{key}: can't read {}: {error}", file.display()));
        }
    }
}

/// A problem with the limits of mail, or with the settings of JMAP or SMTP.
fn of_doors(config: &Config) -> Option<(&'static str, String)> {
    let problems = [
        ("mail.limits.", config.mail.limits.problem()),
        ("mail.journal.", config.mail.journal.problem()),
        ("jmap.", config.jmap.problem()),
        ("smtp.", config.smtp.problem()),
        ("submission.", config.submission.problem().or_else(|| missing_certificate(config))),
        ("checks.", config.checks.problem()),
        ("delivery.", config.delivery.problem()),
        ("public.mta_sts.", config.public.mta_sts.problem()),
    ];
    let mut found = problems.into_iter().filter_map(|(section, problem)| Some((section, problem?)));
    let (section, (name, what)) = found.next()?;
    let is_named = |key: &&str| {
        // A name may include the table below the section, such as `filter.url`.
        let below = key.strip_prefix(section);
        below.is_some_and(|below| below == name || below.rsplit('.').next() == Some(name))
    };
    let key = KEYS.into_iter().find(is_named);
    Some((key.unwrap_or("mail.enabled"), what))
}

/// The setting of submission that requires a certificate, if there is none.
fn missing_certificate(config: &Config) -> Option<(&'static str, String)> {
    let (setting, advice) = config.submission.missing_certificate(!config.tls.files().is_empty())?;
    Some((setting, advice.to_owned()))
}

/// The keys whose values the doors check.
const KEYS: [&str; 36] = [
    "checks.attachments",
    "checks.block_lists",
    "checks.exempt",
    "checks.filter.learn_url",
    "checks.filter.password_file",
    "checks.filter.url",
    "checks.reports.from",
    "delivery.delay_notice_seconds",
    "delivery.lease_seconds",
    "delivery.recipients_per_transaction_max",
    "delivery.remote.smarthost",
    "delivery.remote.smarthost_credentials",
    "delivery.retry_jitter_percent",
    "delivery.retry_seconds",
    "jmap.blob_sources_max",
    "jmap.changes_max",
    "jmap.objects_in_get_max",
    "jmap.objects_in_set_max",
    "jmap.push.contact",
    "jmap.push.expires_seconds_max",
    "jmap.submission.recipients_max",
    "jmap.upload_seconds",
    "jmap.uploads_bytes_max",
    "mail.journal.bytes_max",
    "mail.journal.entries_max",
    "mail.limits.keywords_per_email_max",
    "mail.limits.mailbox_name_bytes_max",
    "mail.limits.mailboxes_per_email_max",
    "public.mta_sts.max_age_seconds",
    "public.mta_sts.mx",
    "smtp.hostname",
    "smtp.memory_bytes_max",
    "smtp.recipients_max",
    "submission.hold_seconds_max",
    "submission.listen",
    "submission.listen_tls",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Effective;

    #[test]
    fn what_a_door_finds_wrong_is_a_setting_of_it() {
        for key in KEYS {
            assert!(Effective::defaults().iter().any(|(known, ..)| known == key), "{key}");
        }
        let mut config = Config::default();
        config.jmap.changes_max = restante_core::nonzero!(4_097);
        let problem = MailSpec.contradiction(&config);
        assert_eq!(problem, Some(("jmap.changes_max", "use at most 4096".to_owned())));
        config.jmap = Default::default();
        config.smtp.hostname = "a b".to_owned();
        assert_eq!(MailSpec.contradiction(&config).unwrap().0, "smtp.hostname");
        config.mail.journal.bytes_max = restante_core::nonzero!(1);
        assert_eq!(MailSpec.contradiction(&config).unwrap().0, "mail.journal.bytes_max");
    }
}
