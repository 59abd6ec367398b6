//! Settings on the command line: those that are often changed there.

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
    /// Serve JMAP to mail clients on this address and port; may be repeated [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    jmap_listen: Vec<SocketAddr>,
    /// Share the table of sessions with other servers: redis://<host>:<port>/<database>, or rediss: for TLS [default: memory:]
    #[arg(long, value_name = "URL")]
    sessions_url: Option<String>,
    /// What to log: error, warn, info, debug or trace, or levels by target [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Format of log lines [default: text]
    #[arg(long, value_name = "FORMAT", ignore_case = true)]
    log_format: Option<LogFormat>,
    #[cfg(feature = "mail")]
    #[command(flatten)]
    mail: super::mail_flags::MailFlags,
    #[cfg(feature = "waku")]
    #[command(flatten)]
    waku: super::waku_flags::WakuFlags,
}

impl FolderFlags {
    /// The effective settings with further settings of a command line.
    pub(super) fn load(&self, settings: Vec<Setting>) -> Result<Effective, ConfigError> {
        load(self.config.as_deref(), environment(), settings)
    }

    pub(super) fn settings(&self) -> Vec<Setting> {
        text("server.data_dir", "--data", self.data.clone()).into_iter().collect()
    }
}

impl DataFlags {
    /// The effective settings for a command with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        self.folder.load(self.settings())
    }

    fn settings(&self) -> Vec<Setting> {
        let settings = [
            self.folder.settings(),
            #[cfg(feature = "waku")]
            self.archive.settings(),
            #[cfg(feature = "mail")]
            self.stores.settings(),
        ];
        settings.into_iter().flatten().collect()
    }
}

impl ServeFlags {
    /// The effective settings for a server with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        self.data.folder.load(self.settings())
    }

    fn settings(&self) -> Vec<Setting> {
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
        let settings = [
            self.data.settings(),
            #[cfg(feature = "waku")]
            self.waku.settings(),
            #[cfg(feature = "mail")]
            self.mail.settings(),
            own.into_iter().flatten().collect(),
        ];
        settings.into_iter().flatten().collect()
    }
}

pub(super) fn text(key: &str, flag: &'static str, value: Option<String>) -> Option<Setting> {
    setting(key, flag, value.map(Value::String))
}

pub(super) fn setting(key: &str, flag: &'static str, value: Option<Value>) -> Option<Setting> {
    Some(Setting { key: key.to_owned(), value: value?, origin: Origin::Flag(flag) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::{CommandFactory, Parser};

    use super::{super::join, *};
    use crate::config::Config;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        serve: ServeFlags,
    }

    const PEER: &str = "/ip4/10.0.0.1/tcp/1/p2p/16Uiu2HAkykgaECHswi3YKJ5dMLbq2kPVCo89fcyTd38UcQD6ej5W";
    /// Values for flags whose help describes the default in words.
    const DEFAULTS: &[(&str, &str)] = &[
        ("data", "data"),
        ("archive", ""),
        ("records", ""),
        ("blobs", ""),
        ("search", ""),
        ("rest-token-file", ""),
        ("tandem", ""),
        ("queue-url", "local:"),
        ("sessions-url", "memory:"),
        ("nodekey", ""),
        ("rate-limit", "0/1s"),
    ];
    /// Values for flags that can't be set to their default.
    const OTHERS: &[(&str, &str)] = &[
        ("cluster-id", "1"),
        ("shard", "1"),
        ("websocket-secure-cert-path", "cert.pem"),
        ("websocket-secure-key-path", "key.pem"),
        ("staticnode", PEER),
        ("ext-multiaddr", PEER),
        ("storenode", PEER),
        ("jmap-listen", "127.0.0.1:8647"),
        ("lmtp-listen", "unix:/run/restante/lmtp"),
        ("smtp-listen", "127.0.0.1:25"),
        ("submission-listen", "127.0.0.1:587"),
        ("submissions-listen", "127.0.0.1:465"),
        ("smarthost", "mail.example.net:587"),
    ];

    /// The flags of a server, each with the settings that it makes, using its default value where possible.
    fn flags() -> Vec<(String, Vec<Setting>)> {
        let mut flags = Vec::new();
        for argument in Cli::command().get_arguments() {
            let name = argument.get_long().unwrap_or_default();
            if name == "config" {
                continue;
            }
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let in_help = || help.split_once("[default: ")?.1.split_once(']');
            let value = match DEFAULTS.iter().chain(OTHERS).find(|(flag, _)| *flag == name) {
                Some((_, value)) => value,
                None => in_help().expect("the help names a default").0,
            };
            let cli = Cli::try_parse_from(["restante", &format!("--{name}={value}")]).unwrap();
            let settings = cli.serve.settings();
            assert!(!settings.is_empty(), "--{name}={value}");
            flags.push((name.to_owned(), settings));
        }
        flags
    }

    /// The comments above each key of the file in the repository.
    fn comments() -> BTreeMap<String, String> {
        let (mut section, mut comment, mut is_done) = (String::new(), String::new(), false);
        let mut comments = BTreeMap::new();
        for line in include_str!("../../../../restante.toml").lines() {
            if let Some(text) = line.strip_prefix('#') {
                if is_done {
                    comment.clear();
                }
                (comment, is_done) = (comment + text + "\n", false);
            } else if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']').to_owned();
            } else if let Some((name, _)) = line.split_once(" = ") {
                comments.insert(join(&section, name), comment.clone());
                is_done = true;
            }
        }
        comments
    }

    #[test]
    fn the_help_names_the_defaults() {
        for (flag, settings) in
            flags().into_iter().filter(|(flag, _)| OTHERS.iter().all(|(other, _)| other != flag))
        {
            let mut effective = Effective::defaults();
            for setting in settings {
                effective.set(setting).unwrap();
            }
            assert_eq!(effective.config, Config::default(), "--{flag}");
        }
    }

    #[test]
    fn the_file_in_the_repository_names_the_flag_of_each_key() {
        let comments = comments();
        for (flag, settings) in flags() {
            for Setting { key, .. } in settings {
                assert!(comments[&key].contains(&format!("--{flag}")), "{key} does not name --{flag}");
            }
        }
    }
}
