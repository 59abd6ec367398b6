//! Flags of the Waku door, most of them with nwaku's names.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, ValueHint};
use restante_waku::rates::{RateEntry, RateLimits, RatedService};
use toml::Value;

use super::{
    ConfigError, Effective, Setting,
    flags::{FolderFlags, setting, text},
};

/// Which archive, and which configuration file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ArchiveFlags {
    #[command(flatten)]
    folder: FolderFlags,
    #[command(flatten)]
    archive: ArchiveFlag,
}

/// Where the archive is.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct ArchiveFlag {
    /// Use this archive: log:<folder>, sqlite:<file>, postgres://<user>@<host>/<database>, cassandra://<host>/<keyspace> or memory:
    /// [default: log:<data>/archive]
    #[arg(long, value_name = "URL", alias = "store-message-db-url")]
    archive: Option<String>,
}

impl ArchiveFlags {
    /// No flags except a configuration file, for commands that name their archives in another way.
    pub(crate) fn of_file(config: Option<PathBuf>) -> Self {
        Self { folder: FolderFlags { config, ..FolderFlags::default() }, ..Self::default() }
    }

    /// The effective settings for a command with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        self.folder.load([self.folder.settings(), self.archive.settings()].concat())
    }
}

impl ArchiveFlag {
    pub(super) fn settings(&self) -> Vec<Setting> {
        text("archive.url", "--archive", self.archive.clone()).into_iter().collect()
    }
}

/// Flags of a server with the Waku door.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct WakuFlags {
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
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    max_msg_size: Option<u64>,
    /// What to keep: time:<seconds>, capacity:<count>, size:<n>MB|GB, joined by ';', or none [default: none]
    #[arg(long, value_name = "POLICY", alias = "store-message-retention-policy")]
    retention: Option<String>,
    /// Store messages in a second archive too, to move there: a URL as for --archive [default: none]
    #[arg(long, value_name = "URL")]
    tandem: Option<String>,
    #[command(flatten)]
    node: NodeFlags,
}

impl WakuFlags {
    pub(super) fn settings(&self) -> Vec<Setting> {
        let shards: Vec<Value> = self.shard.iter().map(|shard| i64::from(*shard).into()).collect();
        let shards = if shards.is_empty() { None } else { Some(Value::Array(shards)) };
        // A size above i64 is a mistake; it is refused like all others that are too large for their key.
        let size = self.max_msg_size.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
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
        ];
        own.into_iter().flatten().chain(self.node.settings()).collect()
    }
}

/// Flags of the Waku node.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Waku node")]
struct NodeFlags {
    /// Relay messages; --relay=false switches it off [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_possible_values = true)]
    relay: Option<bool>,
    /// Answer history queries of peers; without it messages are still kept [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_possible_values = true)]
    store: Option<bool>,
    /// Push messages to subscribed peers [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_possible_values = true)]
    filter: Option<bool>,
    /// Publish messages for peers that don't relay themselves [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_possible_values = true)]
    lightpush: Option<bool>,
    /// Send addresses of other peers to peers [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_possible_values = true)]
    peer_exchange: Option<bool>,
    /// Listen for peers on this IP address [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    listen_address: Option<IpAddr>,
    /// Listen for peers on this TCP port; 0 selects a free one [default: 60000]
    #[arg(long, value_name = "PORT")]
    tcp_port: Option<u16>,
    /// Listen for WebSockets, too [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_possible_values = true)]
    websocket_support: Option<bool>,
    /// Listen for WebSockets on this port; 0 selects a free one [default: 8000]
    #[arg(long, value_name = "PORT")]
    websocket_port: Option<u16>,
    /// Listen for secure WebSockets in place of plain ones [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_possible_values = true)]
    websocket_secure_support: Option<bool>,
    /// The certificate of secure WebSockets with its chain, as a PEM file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    websocket_secure_cert_path: Option<String>,
    /// The certificate's private key, as a PEM file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    websocket_secure_key_path: Option<String>,
    /// A file with the node's key, in the data folder and created if missing; or the key's 64 hex digits, which everybody
    /// on the machine can read there [default: node.key]
    #[arg(long, value_name = "FILE|KEY", value_hint = ValueHint::FilePath)]
    nodekey: Option<String>,
    /// Keep a connection to this peer, /ip4/<address>/tcp/<port>/p2p/<peer id>; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    staticnode: Vec<String>,
    /// Announce this address of the node to peers; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    ext_multiaddr: Vec<String>,
    /// Most connections [default: 1000]
    #[arg(long, value_name = "N")]
    max_connections: Option<u32>,
    /// Most filter subscribers [default: 1000]
    #[arg(long, value_name = "N")]
    filter_max_peers_to_serve: Option<u32>,
    /// Most pairs of topics of one filter subscriber [default: 1000]
    #[arg(long, value_name = "N")]
    filter_max_criteria: Option<u32>,
    /// Remove a filter subscriber that sent nothing for this time [default: 300]
    #[arg(long, value_name = "SECONDS")]
    filter_subscription_timeout: Option<u32>,
    /// Fetch missed messages from this store node, /ip4/<address>/tcp/<port>/p2p/<peer id>; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    storenode: Vec<String>,
    /// Time between two runs of store sync [default: 300]
    #[arg(long, value_name = "SECONDS")]
    store_sync_interval: Option<u32>,
    /// Largest age of messages that store sync fetches [default: 3600]
    #[arg(long, value_name = "SECONDS")]
    store_sync_range: Option<u32>,
    /// How often a peer may ask: [<service>:]<requests>/<period>, as in store:150/1s, of the services store, filter,
    /// lightpush and px; may be repeated [default: no limit]
    #[arg(long, value_name = "RATE")]
    rate_limit: Vec<RateEntry>,
}

impl NodeFlags {
    fn settings(&self) -> Vec<Setting> {
        let settings = [
            switch("waku.protocols.relay", "--relay", self.relay),
            switch("waku.protocols.store", "--store", self.store),
            switch("waku.protocols.filter", "--filter", self.filter),
            switch("waku.protocols.lightpush", "--lightpush", self.lightpush),
            switch("waku.protocols.peer_exchange", "--peer-exchange", self.peer_exchange),
            text("waku.node.address", "--listen-address", self.listen_address.map(|ip| ip.to_string())),
            number("waku.node.tcp_port", "--tcp-port", self.tcp_port.map(i64::from)),
            switch("waku.node.websocket", "--websocket-support", self.websocket_support),
            number("waku.node.websocket_port", "--websocket-port", self.websocket_port.map(i64::from)),
            switch("waku.node.websocket_secure", "--websocket-secure-support", self.websocket_secure_support),
            text(
                "waku.node.certificate_file",
                "--websocket-secure-cert-path",
                self.websocket_secure_cert_path.clone(),
            ),
            text(
                "waku.node.certificate_key_file",
                "--websocket-secure-key-path",
                self.websocket_secure_key_path.clone(),
            ),
            text("waku.node.key", "--nodekey", self.nodekey.clone()),
            texts("waku.node.static_peers", "--staticnode", &self.staticnode),
            texts("waku.node.external_addresses", "--ext-multiaddr", &self.ext_multiaddr),
            texts("waku.sync.peers", "--storenode", &self.storenode),
            number(
                "waku.sync.interval_seconds",
                "--store-sync-interval",
                self.store_sync_interval.map(i64::from),
            ),
            number("waku.sync.range_seconds", "--store-sync-range", self.store_sync_range.map(i64::from)),
            number("waku.limits.connections_max", "--max-connections", self.max_connections.map(i64::from)),
        ];
        settings.into_iter().flatten().chain(self.filter()).chain(self.rates()).collect()
    }

    fn filter(&self) -> impl Iterator<Item = Setting> {
        let settings = [
            ("waku.filter.subscribers_max", "--filter-max-peers-to-serve", self.filter_max_peers_to_serve),
            ("waku.filter.criteria_per_peer_max", "--filter-max-criteria", self.filter_max_criteria),
            ("waku.filter.ttl_seconds", "--filter-subscription-timeout", self.filter_subscription_timeout),
        ];
        settings.into_iter().filter_map(|(key, flag, value)| number(key, flag, value.map(i64::from)))
    }

    /// The rates of the services that the flags name.
    fn rates(&self) -> impl Iterator<Item = Setting> {
        let RateLimits { store, filter, lightpush, peer_exchange } =
            RateLimits::from_entries(&self.rate_limit);
        let rates = [
            (RatedService::Store, "waku.rates.store", store),
            (RatedService::Filter, "waku.rates.filter", filter),
            (RatedService::Lightpush, "waku.rates.lightpush", lightpush),
            (RatedService::PeerExchange, "waku.rates.peer_exchange", peer_exchange),
        ];
        rates.into_iter().filter_map(|(service, key, rate)| {
            let is_meant = |entry: &RateEntry| entry.service.is_none_or(|named| named == service);
            let is_set = self.rate_limit.iter().any(is_meant);
            let rate = rate.map(|rate| rate.to_string()).unwrap_or_default();
            text(key, "--rate-limit", is_set.then_some(rate))
        })
    }
}

fn number(key: &str, flag: &'static str, value: Option<i64>) -> Option<Setting> {
    setting(key, flag, value.map(Value::Integer))
}

fn switch(key: &str, flag: &'static str, value: Option<bool>) -> Option<Setting> {
    setting(key, flag, value.map(Value::Boolean))
}

/// A flag that may be repeated; without values it sets nothing.
fn texts(key: &str, flag: &'static str, values: &[String]) -> Option<Setting> {
    let values: Vec<Value> = values.iter().cloned().map(Value::String).collect();
    setting(key, flag, (!values.is_empty()).then_some(Value::Array(values)))
}

/// A number of bytes as operators write it: `153600`, `150KiB`, `1MiB`, `150KB`.
///
/// nwaku's `--max-msg-size` uses binary units.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "kb" => 1_000,
        "mb" => 1_000_000,
        _ => return Err(format!("'{text}' is no size: use bytes, or a unit as in 150KiB, 1MiB, 150KB, 1MB")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.ok_or_else(|| format!("'{text}' is no size: use a whole number, as in 150KiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        for (text, bytes) in
            [("153600", 153_600), ("150KiB", 153_600), ("1 MiB", 1 << 20), ("2kb", 2_000), ("3MB", 3_000_000)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5MiB", "1GiBi", "99999999999999999999", "99999999999999999MiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    fn rates(texts: &[&str]) -> Vec<(String, String)> {
        let rate_limit = texts.iter().map(|text| text.parse().unwrap()).collect();
        let flags = NodeFlags { rate_limit, ..NodeFlags::default() };
        let settings = flags.settings().into_iter();
        settings.map(|setting| (setting.key, setting.value.as_str().unwrap().to_owned())).collect()
    }

    /// Settings without a flag keep the value of the file.
    #[test]
    fn a_rate_sets_the_services_that_it_is_for() {
        let set = |key: &str, rate: &str| (format!("waku.rates.{key}"), rate.to_owned());
        assert_eq!(rates(&[]), []);
        assert_eq!(rates(&["store:5/1s", "px:0/1s"]), [set("store", "5/1s"), set("peer_exchange", "")]);
        let all = [
            set("store", "5/1s"),
            set("filter", "100/1m"),
            set("lightpush", "100/1m"),
            set("peer_exchange", "100/1m"),
        ];
        assert_eq!(rates(&["store:5/1s", "100/1m"]), all);
    }
}
