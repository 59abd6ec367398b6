//! Settings on the command line: those that people change at the prompt.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueHint};
use toml::Value;

use super::{ConfigError, Effective, LogFormat, Origin, Setting, environment, load};

/// Which configuration file, and which data folder.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct FolderFlags {
    /// Read settings from this file instead of ./restante.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, alias = "config-file")]
    pub(super) config: Option<PathBuf>,
    /// Keep everything below this folder [default: ./data]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(super) data: Option<String>,
}

/// Everything that a server keeps, and which configuration file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DataFlags {
    #[command(flatten)]
    folder: FolderFlags,
    #[cfg(feature = "waku")]
    #[command(flatten)]
    archive: super::waku_flags::ArchiveFlag,
    #[cfg(feature = "mail")]
    #[command(flatten)]
    stores: super::mail_flags::StoreFlags,
}

/// Flags of a server.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServeFlags {
    #[command(flatten)]
    data: DataFlags,
    /// Listen for mail clients on this address and port, once a door serves them; may be repeated [default: 127.0.0.1:8647]
    #[arg(long, value_name = "ADDRESS:PORT")]
    jmap_listen: Vec<SocketAddr>,
    /// Share who is connected with other servers: redis://<host>:<port>/<database> [default: memory:, this server alone]
    #[arg(long, value_name = "URL")]
    sessions_url: Option<String>,
    /// What to log: error, warn, info, debug or trace, or levels by target [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// How log lines look [default: text]
    #[arg(long, value_name = "FORMAT", ignore_case = true)]
    log_format: Option<LogFormat>,
    #[cfg(feature = "waku")]
    #[command(flatten)]
    waku: super::waku_flags::WakuFlags,
}

impl FolderFlags {
    /// The settings in force with these flags and further settings.
    pub(super) fn load(&self, mut settings: Vec<Setting>) -> Result<Effective, ConfigError> {
        settings.extend(text("server.data_dir", "--data", self.data.clone()));
        load(self.config.as_deref(), environment(), settings)
    }
}

impl DataFlags {
    /// The settings in force for a command with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        self.folder.load(self.settings())
    }

    fn settings(&self) -> Vec<Setting> {
        let of_doors = [
            #[cfg(feature = "waku")]
            self.archive.settings(),
            #[cfg(feature = "mail")]
            self.stores.settings(),
        ];
        of_doors.into_iter().flatten().collect()
    }
}

impl ServeFlags {
    /// The settings in force for a server with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        let format = self.log_format.map(|format| Value::try_from(format).expect("a format is a plain word"));
        let addresses: Vec<Value> =
            self.jmap_listen.iter().map(|address| address.to_string().into()).collect();
        let addresses = (!addresses.is_empty()).then_some(Value::Array(addresses));
        let own = [
            setting("public.listen", "--jmap-listen", addresses),
            text("sessions.url", "--sessions-url", self.sessions_url.clone()),
            text("log.level", "--log-level", self.log_level.clone()),
            setting("log.format", "--log-format", format),
        ];
        let of_doors = [
            self.data.settings(),
            #[cfg(feature = "waku")]
            self.waku.settings(),
        ];
        let of_doors = of_doors.into_iter().flatten();
        self.data.folder.load(of_doors.chain(own.into_iter().flatten()).collect())
    }
}

pub(super) fn text(key: &str, flag: &'static str, value: Option<String>) -> Option<Setting> {
    setting(key, flag, value.map(Value::String))
}

pub(super) fn setting(key: &str, flag: &'static str, value: Option<Value>) -> Option<Setting> {
    Some(Setting { key: key.to_owned(), value: value?, origin: Origin::Flag(flag) })
}
