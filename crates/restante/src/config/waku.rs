//! The settings of the Waku door: which messages are taken, and the node.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZero,
    path::{Path, PathBuf},
    time::Duration,
};

use restante_archive::Retention;
use restante_net::{Rate, tls::CertificateFiles};
use restante_waku::{
    Multiaddr, Services, filter::FilterConfig, intake::HandoverConfig, lightpush::LightPushConfig,
    node::NodeLimits, peer_exchange::PeerExchangeConfig, rates::RateLimits, sync::SyncConfig,
    validate::Rules,
};
use restante_waku_wire::enr::Enr;
use serde::{Deserialize, Serialize};

use super::{
    address::{OwnAddress, PeerAddress},
    node_key::NodeKey,
    schema::nonzero,
    words,
};

/// The file below the data folder that says how far sync has come with each peer.
const SYNC_FILE: &str = "sync.state";
/// `51/WAKU2-RELAY-SHARDING`: the shards that a cluster may have.
const SHARDS_MAX: u16 = 1_024;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Waku {
    /// `None`, written as -1, takes messages of any cluster.
    #[serde(with = "words::number_or_any")]
    pub(crate) cluster_id: Option<u16>,
    pub(crate) shards: Vec<u16>,
    pub(crate) shards_in_network: u16,
    pub(crate) max_message_bytes: NonZero<usize>,
    pub(crate) timestamp_window_seconds: u64,
    pub(crate) protocols: Protocols,
    pub(crate) node: Node,
    pub(crate) limits: Limits,
    pub(crate) rates: Rates,
    pub(crate) handover: Handover,
    pub(crate) filter: Filter,
    pub(crate) lightpush: LightPush,
    pub(crate) peer_exchange: PeerExchange,
    pub(crate) sync: Sync,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Protocols {
    pub(crate) relay: bool,
    pub(crate) store: bool,
    pub(crate) filter: bool,
    pub(crate) lightpush: bool,
    pub(crate) peer_exchange: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Node {
    pub(crate) enabled: bool,
    pub(crate) address: IpAddr,
    pub(crate) tcp_port: u16,
    pub(crate) websocket: bool,
    pub(crate) websocket_port: u16,
    pub(crate) websocket_secure: bool,
    /// Empty for none.
    pub(crate) certificate_file: PathBuf,
    /// Empty for none.
    pub(crate) certificate_key_file: PathBuf,
    #[serde(with = "words::text")]
    pub(crate) key: NodeKey,
    #[serde(with = "words::texts")]
    pub(crate) static_peers: Vec<PeerAddress>,
    #[serde(with = "words::texts")]
    pub(crate) external_addresses: Vec<OwnAddress>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    pub(crate) connections_max: NonZero<u32>,
    pub(crate) connections_per_peer_max: NonZero<u32>,
    pub(crate) connections_per_address_max: NonZero<u32>,
    pub(crate) handshakes_max: NonZero<u32>,
    pub(crate) handshakes_per_address_max: NonZero<u32>,
    pub(crate) streams_per_connection_max: NonZero<usize>,
    pub(crate) unread_bytes_per_connection_max: NonZero<usize>,
    pub(crate) unread_bytes_max: NonZero<usize>,
    pub(crate) requests_max: NonZero<usize>,
    pub(crate) handshake_timeout_ms: NonZero<u64>,
    pub(crate) request_timeout_ms: NonZero<u64>,
    pub(crate) idle_timeout_seconds: NonZero<u64>,
}

/// `None`, written as an empty text, is no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rates {
    #[serde(with = "words::text_or_empty")]
    pub(crate) store: Option<Rate>,
    #[serde(with = "words::text_or_empty")]
    pub(crate) filter: Option<Rate>,
    #[serde(with = "words::text_or_empty")]
    pub(crate) lightpush: Option<Rate>,
    #[serde(with = "words::text_or_empty")]
    pub(crate) peer_exchange: Option<Rate>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Handover {
    pub(crate) bytes_max: NonZero<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filter {
    pub(crate) subscribers_max: NonZero<usize>,
    pub(crate) criteria_per_peer_max: NonZero<usize>,
    pub(crate) content_topics_per_request_max: NonZero<usize>,
    pub(crate) criteria_bytes_max: NonZero<usize>,
    pub(crate) ttl_seconds: NonZero<u64>,
    pub(crate) queue_messages_max: NonZero<usize>,
    pub(crate) queue_bytes_max: NonZero<usize>,
    pub(crate) push_timeout_ms: NonZero<u64>,
    pub(crate) failures_max: NonZero<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LightPush {
    pub(crate) relay_peers_min: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeerExchange {
    #[serde(with = "words::texts")]
    pub(crate) records: Vec<Enr>,
    pub(crate) dial_until_peers: usize,
    pub(crate) dial_any_address: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sync {
    #[serde(with = "words::texts")]
    pub(crate) peers: Vec<PeerAddress>,
    pub(crate) interval_seconds: NonZero<u64>,
    pub(crate) range_seconds: NonZero<u64>,
    pub(crate) resume_range_seconds: NonZero<u64>,
    pub(crate) lag_seconds: u64,
}

impl Waku {
    /// Which messages are taken.
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            cluster_id: self.cluster_id,
            shards: self.shards.clone(),
            shards_in_network: self.shards_in_network,
            max_message_bytes: self.max_message_bytes.get(),
            timestamp_window_seconds: self.timestamp_window_seconds,
        }
    }

    /// The pubsub topics that are relayed from the start: the shards of the cluster. Of an unknown cluster there are none.
    pub(crate) fn relay_topics(&self) -> Vec<String> {
        let Some(cluster) = self.cluster_id else { return Vec::new() };
        // 0 and 1 put everything on shard 0.
        let all: Vec<u16> = (0..self.shards_in_network.max(1)).collect();
        let shards = if self.shards.is_empty() { &all } else { &self.shards };
        shards.iter().map(|shard| format!("/waku/2/rs/{cluster}/{shard}")).collect()
    }

    /// The first pair of settings that contradict each other: the key to blame and what is wrong.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        if !self.shards.is_empty() && self.cluster_id.is_none() {
            return Some(("waku.shards", "a shard belongs to a cluster: set waku.cluster_id too".into()));
        }
        if self.shards_in_network > SHARDS_MAX {
            return Some(("waku.shards_in_network", format!("a network has at most {SHARDS_MAX} shards")));
        }
        if let Some(shard) = self.shards.iter().find(|shard| **shard >= SHARDS_MAX) {
            let what = format!("there is no shard {shard}: a cluster has the shards 0 to {}", SHARDS_MAX - 1);
            return Some(("waku.shards", what));
        }
        if !self.sync.peers.is_empty() && !self.node.enabled {
            return Some(("waku.sync.peers", "sync needs the node: set waku.node.enabled".into()));
        }
        let has_files = |node: &Node| {
            let is_empty = |path: &PathBuf| path.as_os_str().is_empty();
            (!is_empty(&node.certificate_file), !is_empty(&node.certificate_key_file))
        };
        match (self.node.websocket_secure, has_files(&self.node)) {
            (true, (true, true)) | (false, (false, false)) => None,
            (true, _) => {
                let what =
                    "secure WebSockets need waku.node.certificate_file and waku.node.certificate_key_file";
                Some(("waku.node.websocket_secure", what.into()))
            }
            (false, _) => {
                let what = "a certificate is for secure WebSockets: set waku.node.websocket_secure too";
                Some(("waku.node.certificate_file", what.into()))
            }
        }
    }
}

impl Node {
    /// Where the node listens.
    pub(crate) fn listen(&self) -> Vec<Multiaddr> {
        let tcp = address_of(self.address, self.tcp_port, "");
        // nwaku has one port for both kinds of WebSockets, and secure ones take the place of plain ones.
        let above = if self.websocket_secure { "/tls/ws" } else { "/ws" };
        let websocket = address_of(self.address, self.websocket_port, above);
        if self.has_websocket() { vec![tcp, websocket] } else { vec![tcp] }
    }

    /// The ports that it listens on, each with the flag that sets it.
    pub(crate) fn ports(&self) -> Vec<(SocketAddr, &'static str)> {
        let tcp = (SocketAddr::new(self.address, self.tcp_port), "--tcp-port");
        let websocket = (SocketAddr::new(self.address, self.websocket_port), "--websocket-port");
        if self.has_websocket() { vec![tcp, websocket] } else { vec![tcp] }
    }

    /// The addresses that it listens on, each with the key that sets its port.
    pub(crate) fn named_ports(&self) -> Vec<(&'static str, SocketAddr)> {
        let keys = ["waku.node.tcp_port", "waku.node.websocket_port"];
        keys.into_iter().zip(self.ports().into_iter().map(|(address, _)| address)).collect()
    }

    fn has_websocket(&self) -> bool {
        self.websocket || self.websocket_secure
    }

    /// The certificate of secure WebSockets.
    pub(crate) fn certificate(&self) -> Option<CertificateFiles> {
        let (certificate, key) = (self.certificate_file.clone(), self.certificate_key_file.clone());
        self.websocket_secure.then_some(CertificateFiles { certificate, key })
    }
}

fn address_of(ip: IpAddr, port: u16, above: &str) -> Multiaddr {
    let version = if ip.is_ipv4() { "ip4" } else { "ip6" };
    format!("/{version}/{ip}/tcp/{port}{above}").parse().expect("an IP address and a port make an address")
}

impl Default for Waku {
    fn default() -> Self {
        let rules = Rules::default();
        Self {
            cluster_id: rules.cluster_id,
            shards: rules.shards,
            shards_in_network: rules.shards_in_network,
            max_message_bytes: nonzero(rules.max_message_bytes),
            timestamp_window_seconds: rules.timestamp_window_seconds,
            protocols: Protocols::default(),
            node: Node::default(),
            limits: Limits::default(),
            rates: Rates::default(),
            handover: Handover::default(),
            filter: Filter::default(),
            lightpush: LightPush::default(),
            peer_exchange: PeerExchange::default(),
            sync: Sync::default(),
        }
    }
}

impl Default for Protocols {
    fn default() -> Self {
        let Services { store, filter, lightpush, peer_exchange } = Services::default();
        Self { relay: true, store, filter, lightpush, peer_exchange }
    }
}

impl From<&Protocols> for Services {
    fn from(protocols: &Protocols) -> Self {
        let Protocols { relay: _, store, filter, lightpush, peer_exchange } = *protocols;
        Self { store, filter, lightpush, peer_exchange }
    }
}

impl Default for Node {
    fn default() -> Self {
        Self {
            enabled: true,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            tcp_port: 60_000, // the ports of nwaku's node
            websocket: false,
            websocket_port: 8_000,
            websocket_secure: false,
            certificate_file: PathBuf::new(),
            certificate_key_file: PathBuf::new(),
            key: NodeKey::Default,
            static_peers: Vec::new(),
            external_addresses: Vec::new(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let limits = NodeLimits::default();
        Self {
            connections_max: nonzero(limits.connections_max),
            connections_per_peer_max: nonzero(limits.connections_per_peer_max),
            connections_per_address_max: nonzero(limits.connections_per_address_max),
            handshakes_max: nonzero(limits.handshakes_max),
            handshakes_per_address_max: nonzero(limits.handshakes_per_address_max),
            streams_per_connection_max: nonzero(limits.streams_per_connection_max),
            unread_bytes_per_connection_max: nonzero(limits.unread_bytes_per_connection_max),
            unread_bytes_max: nonzero(limits.unread_bytes_max),
            requests_max: nonzero(limits.requests_max),
            handshake_timeout_ms: nonzero(limits.handshake_timeout.as_millis() as u64),
            request_timeout_ms: nonzero(limits.request_timeout.as_millis() as u64),
            idle_timeout_seconds: nonzero(limits.idle_timeout.as_secs()),
        }
    }
}

impl From<&Limits> for NodeLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            connections_max: limits.connections_max.get(),
            connections_per_peer_max: limits.connections_per_peer_max.get(),
            connections_per_address_max: limits.connections_per_address_max.get(),
            handshakes_max: limits.handshakes_max.get(),
            handshakes_per_address_max: limits.handshakes_per_address_max.get(),
            streams_per_connection_max: limits.streams_per_connection_max.get(),
            unread_bytes_per_connection_max: limits.unread_bytes_per_connection_max.get(),
            unread_bytes_max: limits.unread_bytes_max.get(),
            requests_max: limits.requests_max.get(),
            handshake_timeout: Duration::from_millis(limits.handshake_timeout_ms.get()),
            request_timeout: Duration::from_millis(limits.request_timeout_ms.get()),
            idle_timeout: Duration::from_secs(limits.idle_timeout_seconds.get()),
        }
    }
}

impl From<&Rates> for RateLimits {
    fn from(rates: &Rates) -> Self {
        let Rates { store, filter, lightpush, peer_exchange } = *rates;
        Self { store, filter, lightpush, peer_exchange }
    }
}

impl Default for Handover {
    fn default() -> Self {
        Self { bytes_max: nonzero(HandoverConfig::default().bytes_max) }
    }
}

impl From<&Handover> for HandoverConfig {
    fn from(handover: &Handover) -> Self {
        Self { bytes_max: handover.bytes_max.get() }
    }
}

impl Default for Filter {
    fn default() -> Self {
        let filter = FilterConfig::default();
        Self {
            subscribers_max: nonzero(filter.subscribers_max),
            criteria_per_peer_max: nonzero(filter.criteria_per_peer_max),
            content_topics_per_request_max: nonzero(filter.content_topics_per_request_max),
            criteria_bytes_max: nonzero(filter.criteria_bytes_max),
            ttl_seconds: nonzero(filter.ttl_seconds),
            queue_messages_max: nonzero(filter.queue_messages_max),
            queue_bytes_max: nonzero(filter.queue_bytes_max),
            push_timeout_ms: nonzero(filter.push_timeout.as_millis() as u64),
            failures_max: nonzero(filter.failures_max),
        }
    }
}

impl From<&Filter> for FilterConfig {
    fn from(filter: &Filter) -> Self {
        Self {
            subscribers_max: filter.subscribers_max.get(),
            criteria_per_peer_max: filter.criteria_per_peer_max.get(),
            content_topics_per_request_max: filter.content_topics_per_request_max.get(),
            criteria_bytes_max: filter.criteria_bytes_max.get(),
            ttl_seconds: filter.ttl_seconds.get(),
            queue_messages_max: filter.queue_messages_max.get(),
            queue_bytes_max: filter.queue_bytes_max.get(),
            push_timeout: Duration::from_millis(filter.push_timeout_ms.get()),
            failures_max: filter.failures_max.get(),
        }
    }
}

impl From<&LightPush> for LightPushConfig {
    fn from(lightpush: &LightPush) -> Self {
        Self { relay_peers_min: lightpush.relay_peers_min }
    }
}

impl From<&PeerExchange> for PeerExchangeConfig {
    fn from(exchange: &PeerExchange) -> Self {
        let PeerExchange { records, dial_until_peers, dial_any_address } = exchange.clone();
        Self { records, dial_until_peers, dial_any_address }
    }
}

impl Default for Sync {
    fn default() -> Self {
        let sync = SyncConfig::default();
        Self {
            peers: Vec::new(),
            interval_seconds: nonzero(sync.interval_seconds),
            range_seconds: nonzero(sync.range_seconds),
            resume_range_seconds: nonzero(sync.resume_range_seconds),
            lag_seconds: sync.lag_seconds,
        }
    }
}

impl Sync {
    /// The settings of sync; how far it has come is kept below a data folder, and nothing is fetched that `retention` would
    /// remove.
    pub(crate) fn config(&self, data_dir: &Path, retention: Retention) -> SyncConfig {
        SyncConfig {
            peers: self.peers.iter().map(Into::into).collect(),
            interval_seconds: self.interval_seconds.get(),
            range_seconds: self.range_seconds.get(),
            resume_range_seconds: self.resume_range_seconds.get(),
            lag_seconds: self.lag_seconds,
            retention,
            online_file: Some(self.file(data_dir)),
        }
    }

    /// The file that says how far sync has come.
    pub(crate) fn file(&self, data_dir: &Path) -> PathBuf {
        data_dir.join(SYNC_FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(node: &Node) -> Vec<String> {
        node.listen().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_node_listens_at_its_configured_addresses() {
        let mut node = Node::default();
        assert_eq!(listen(&node), ["/ip4/127.0.0.1/tcp/60000"]);
        node.websocket = true;
        assert_eq!(listen(&node), ["/ip4/127.0.0.1/tcp/60000", "/ip4/127.0.0.1/tcp/8000/ws"]);
        assert_eq!(node.certificate(), None);
        node.websocket = false;
        (node.websocket_secure, node.address, node.tcp_port) = (true, "::".parse().unwrap(), 0);
        node.certificate_file = "cert.pem".into();
        assert_eq!(listen(&node), ["/ip6/::/tcp/0", "/ip6/::/tcp/8000/tls/ws"]);
        assert_eq!(node.certificate().map(|files| files.certificate), Some("cert.pem".into()));
        let ports =
            node.ports().iter().map(|(address, flag)| format!("{address} {flag}")).collect::<Vec<_>>();
        assert_eq!(ports, ["[::]:0 --tcp-port", "[::]:8000 --websocket-port"]);
    }

    #[test]
    fn the_shards_of_a_named_cluster_are_relayed() {
        let mut waku = Waku::default();
        assert_eq!(waku.relay_topics(), Vec::<String>::new());
        waku.cluster_id = Some(16);
        assert_eq!(waku.relay_topics().len(), 8);
        assert_eq!(waku.relay_topics()[7], "/waku/2/rs/16/7");
        waku.shards_in_network = 0;
        assert_eq!(waku.relay_topics(), ["/waku/2/rs/16/0"]);
        waku.shards = vec![32, 64];
        assert_eq!(waku.relay_topics(), ["/waku/2/rs/16/32", "/waku/2/rs/16/64"]);
    }
}
