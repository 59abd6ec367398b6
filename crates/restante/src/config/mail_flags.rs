//! Flags of mail.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use restante_smtp::LmtpAddress;
use toml::Value;

use super::{
    ConfigError, Effective, Setting,
    flags::{FolderFlags, setting, text},
};

/// Which records and blobs, and which configuration file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RecordsFlags {
    #[command(flatten)]
    folder: FolderFlags,
    #[command(flatten)]
    stores: StoreFlags,
}

/// Where records and blobs are.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct StoreFlags {
    /// Keep records here: lmdb:<folder>, postgres://<user>@<host>/<database>, cassandra://<host>/<keyspace> or memory: [default:
    /// lmdb:<data>/records]
    #[arg(long, value_name = "URL")]
    records: Option<String>,
    /// Keep blobs here: files:<folder>, s3://<bucket>/<prefix> or memory: [default: files:<data>/blobs]
    #[arg(long, value_name = "URL")]
    blobs: Option<String>,
    /// Keep the search index here: tantivy:<folder>, opensearch://<user>@<host>:<port> or memory: [default: tantivy:<data>/search]
    #[arg(long, value_name = "URL")]
    search: Option<String>,
}

/// How mail comes in and goes out.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct MailFlags {
    /// Receive mail of a mail server by LMTP on this address and port, or unix:<path>; may be repeated [default: none]
    #[arg(long, value_name = "ADDRESS")]
    lmtp_listen: Vec<LmtpAddress>,
    /// Receive mail of other servers by SMTP on this address and port; may be repeated [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    smtp_listen: Vec<SocketAddr>,
    /// Take mail of users by SMTP with STARTTLS (the role of port 587) on this address and port; may be repeated [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    submission_listen: Vec<SocketAddr>,
    /// Take mail of users by SMTP over TLS (the role of port 465) on this address and port; may be repeated [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    submissions_listen: Vec<SocketAddr>,
    /// Send all mail for other servers to this one, as mail.example.net:587; delivery.remote.smarthost_credentials has the log-in [default: none]
    #[arg(long, value_name = "HOST:PORT")]
    smarthost: Option<String>,
    /// Deal out outgoing mail between servers by this broker: amqp://<user>@<host>:<port>/<virtual host>, or local: for each server by itself [default: local:]
    #[arg(long, value_name = "URL")]
    queue_url: Option<String>,
}

impl RecordsFlags {
    /// No flags except a configuration file, for commands that name their records in another way.
    pub(crate) fn of_file(config: Option<PathBuf>) -> Self {
        Self { folder: FolderFlags { config, ..FolderFlags::default() }, ..Self::default() }
    }

    /// The effective settings for a command with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        self.folder.load([self.folder.settings(), self.stores.settings()].concat())
    }
}

impl StoreFlags {
    pub(super) fn settings(&self) -> Vec<Setting> {
        let settings = [
            text("records.url", "--records", self.records.clone()),
            text("blobs.url", "--blobs", self.blobs.clone()),
            text("search.url", "--search", self.search.clone()),
        ];
        settings.into_iter().flatten().collect()
    }
}

impl MailFlags {
    pub(super) fn settings(&self) -> Vec<Setting> {
        let settings = [
            setting("lmtp.listen", "--lmtp-listen", list(&self.lmtp_listen)),
            setting("smtp.listen", "--smtp-listen", list(&self.smtp_listen)),
            setting("submission.listen", "--submission-listen", list(&self.submission_listen)),
            setting("submission.listen_tls", "--submissions-listen", list(&self.submissions_listen)),
            text("delivery.remote.smarthost", "--smarthost", self.smarthost.clone()),
            text("queue.url", "--queue-url", self.queue_url.clone()),
        ];
        settings.into_iter().flatten().collect()
    }
}

/// Values as a list of texts; `None` for an empty list.
pub(super) fn list<T: ToString>(values: &[T]) -> Option<Value> {
    let texts: Vec<Value> = values.iter().map(|value| value.to_string().into()).collect();
    (!texts.is_empty()).then_some(Value::Array(texts))
}
