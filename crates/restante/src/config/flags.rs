//! Settings on the command line: those that people change at the prompt.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::{Args, ValueHint};
use toml::Value;

use super::{
    ConfigError, Effective, LogFormat, Origin, Setting, environment, load,
    waku_flags::{WakuFlags, switch},
    words,
};

/// Which archive, and which configuration file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ArchiveFlags {
    /// Read settings from this file instead of ./restante.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, alias = "config-file")]
    config: Option<PathBuf>,
    /// Keep everything below this folder [default: ./data]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    data: Option<String>,
    /// Use this archive: log:<folder>, sqlite:<file>, postgres://<user>@<host>/<database> or memory:
    /// [default: log:<data>/archive]
    #[arg(long, value_name = "URL", alias = "store-message-db-url")]
    archive: Option<String>,
}

/// Which records and blobs, and which configuration file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RecordsFlags {
    /// Read settings from this file instead of ./restante.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Keep everything below this folder [default: ./data]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    data: Option<String>,
    #[command(flatten)]
    locations: LocationFlags,
}

/// Where records and blobs are.
#[derive(Args, Clone, Debug, Default)]
struct LocationFlags {
    /// Keep records here: lmdb:<folder> or memory: [default: lmdb:<data>/records]
    #[arg(long, value_name = "URL")]
    records: Option<String>,
    /// Keep blobs here: files:<folder> or memory: [default: files:<data>/blobs]
    #[arg(long, value_name = "URL")]
    blobs: Option<String>,
}

/// Everything that a server keeps, and which configuration file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DataFlags {
    #[command(flatten)]
    archive: ArchiveFlags,
    #[command(flatten)]
    locations: LocationFlags,
}

/// Flags of a server.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServeFlags {
    #[command(flatten)]
    archive: ArchiveFlags,
    #[command(flatten)]
    locations: LocationFlags,
    /// Serve REST; --rest=false switches it off [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_possible_values = true)]
    rest: Option<bool>,
    /// Listen for REST on this IP address [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    rest_address: Option<IpAddr>,
    /// Listen for REST on this port; 0 selects a free one [default: 8645]
    #[arg(long, value_name = "PORT")]
    rest_port: Option<u16>,
    /// Serve the paths below /admin on REST, too [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_possible_values = true)]
    rest_admin: Option<bool>,
    /// Require the token in this file for the console and for /admin, from all addresses [default: none]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    rest_token_file: Option<String>,
    /// Keep this many messages of each subscribed topic for REST [default: 50]
    #[arg(long, value_name = "N")]
    rest_relay_cache_capacity: Option<u32>,
    /// Listen for mail clients on this address and port, once a mail protocol is there; may be repeated [default: 127.0.0.1:8647]
    #[arg(long, value_name = "ADDRESS:PORT")]
    jmap_listen: Vec<SocketAddr>,
    /// Accept messages of this cluster only [default: any]
    #[arg(long, value_name = "ID")]
    cluster_id: Option<u16>,
    /// Accept messages of this shard only; may be repeated [default: all of the cluster]
    #[arg(long, value_name = "SHARD")]
    shard: Vec<u16>,
    /// Number of shards for autosharding [default: 8]
    #[arg(long, value_name = "N")]
    num_shards_in_network: Option<u16>,
    /// The largest accepted message: bytes, or with a unit as in 150KiB [default: 150KiB]
    #[arg(long, value_name = "SIZE", value_parser = words::parse_bytes)]
    max_msg_size: Option<u64>,
    /// What to keep: time:<seconds>, capacity:<count>, size:<n>MB|GB, joined by ';', or none [default: none]
    #[arg(long, value_name = "POLICY", alias = "store-message-retention-policy")]
    retention: Option<String>,
    /// Store messages in a second archive too, to move there: a URL as for --archive [default: none]
    #[arg(long, value_name = "URL")]
    tandem: Option<String>,
    /// Share the table of sessions with other servers: redis://<host>:<port>/<database>, or rediss: for TLS [default: memory:]
    #[arg(long, value_name = "URL")]
    sessions_url: Option<String>,
    /// What to log: error, warn, info, debug or trace, or levels by target [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Format of log lines [default: text]
    #[arg(long, value_name = "FORMAT", ignore_case = true)]
    log_format: Option<LogFormat>,
    #[command(flatten)]
    waku: WakuFlags,
}

impl ArchiveFlags {
    /// No flags but a configuration file, for commands that name their archives in another way.
    pub(crate) fn of_file(config: Option<PathBuf>) -> Self {
        Self { config, ..Self::default() }
    }

    /// The settings in force for a command with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        load(self.config.as_deref(), environment(), self.settings())
    }

    fn settings(&self) -> Vec<Setting> {
        let settings = [
            text("server.data_dir", "--data", self.data.clone()),
            text("archive.url", "--archive", self.archive.clone()),
        ];
        settings.into_iter().flatten().collect()
    }
}

impl RecordsFlags {
    /// The settings in force for a command with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        let mut settings = self.locations.settings();
        settings.extend(text("server.data_dir", "--data", self.data.clone()));
        load(self.config.as_deref(), environment(), settings)
    }
}

impl DataFlags {
    /// The settings in force for a command with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        let mut settings = self.archive.settings();
        settings.extend(self.locations.settings());
        load(self.archive.config.as_deref(), environment(), settings)
    }
}

impl LocationFlags {
    fn settings(&self) -> Vec<Setting> {
        let settings = [
            text("records.url", "--records", self.records.clone()),
            text("blobs.url", "--blobs", self.blobs.clone()),
        ];
        settings.into_iter().flatten().collect()
    }
}

impl ServeFlags {
    /// The settings in force for a server with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        load(self.archive.config.as_deref(), environment(), self.settings())
    }

    fn settings(&self) -> Vec<Setting> {
        let format = self.log_format.map(|format| Value::try_from(format).expect("a format is a plain word"));
        let shards: Vec<Value> = self.shard.iter().map(|shard| i64::from(*shard).into()).collect();
        let shards = if shards.is_empty() { None } else { Some(Value::Array(shards)) };
        let addresses: Vec<Value> =
            self.jmap_listen.iter().map(|address| address.to_string().into()).collect();
        let addresses = (!addresses.is_empty()).then_some(Value::Array(addresses));
        // A size above i64 can't be meant; it is refused with all the others that are too large for their key.
        let size = self.max_msg_size.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        let mut settings = self.archive.settings();
        settings.extend(self.locations.settings());
        let own = [
            text("rest.address", "--rest-address", self.rest_address.map(|address| address.to_string())),
            number("rest.port", "--rest-port", self.rest_port.map(i64::from)),
            switch("rest.enabled", "--rest", self.rest),
            switch("rest.admin", "--rest-admin", self.rest_admin),
            text("rest.token_file", "--rest-token-file", self.rest_token_file.clone()),
            number(
                "rest.relay_cache_messages",
                "--rest-relay-cache-capacity",
                self.rest_relay_cache_capacity.map(i64::from),
            ),
            setting("public.listen", "--jmap-listen", addresses),
            number("waku.cluster_id", "--cluster-id", self.cluster_id.map(i64::from)),
            setting("waku.shards", "--shard", shards),
            number(
                "waku.shards_in_network",
                "--num-shards-in-network",
                self.num_shards_in_network.map(i64::from),
            ),
            number("waku.max_message_bytes", "--max-msg-size", size),
            text("archive.retention", "--retention", self.retention.clone()),
            text("archive.tandem", "--tandem", self.tandem.clone()),
            text("sessions.url", "--sessions-url", self.sessions_url.clone()),
            text("log.level", "--log-level", self.log_level.clone()),
            setting("log.format", "--log-format", format),
        ];
        settings.extend(own.into_iter().flatten());
        settings.extend(self.waku.settings());
        settings
    }
}

pub(super) fn text(key: &str, flag: &'static str, value: Option<String>) -> Option<Setting> {
    setting(key, flag, value.map(Value::String))
}

pub(super) fn number(key: &str, flag: &'static str, value: Option<i64>) -> Option<Setting> {
    setting(key, flag, value.map(Value::Integer))
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
        ("rest-token-file", ""),
        ("tandem", ""),
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
    ];

    /// The flags of a server, each with settings that it makes: with those of its default, if it can be set to that.
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
