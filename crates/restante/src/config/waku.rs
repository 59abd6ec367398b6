//! The settings of the Waku door: which messages are accepted, and the node.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use restante_archive::Retention;
use restante_net::tls::CertificateFiles;
use restante_waku::{
    Multiaddr, Services,
    filter::FilterConfig,
    intake::HandoverConfig,
    lightpush::LightPushConfig,
    node::{NodeLimits, PeerAddress},
    peer_exchange::PeerExchangeConfig,
    rates::RateLimits,
    sync::SyncConfig,
    validate::Rules,
};
use serde::{Deserialize, Serialize};

use super::{address::OwnAddress, node_key::NodeKey, words};

/// The file below the data folder with the progress of sync with each peer.
const SYNC_FILE: &str = "sync.state";
/// `51/WAKU2-RELAY-SHARDING`: the shards that a cluster may have.
const SHARDS_MAX: u16 = 1_024;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waku {
    #[serde(flatten)]
    pub(crate) rules: Rules,
    pub(crate) protocols: Protocols,
    pub(crate) node: Node,
    pub(crate) limits: NodeLimits,
    pub(crate) rates: RateLimits,
    pub(crate) handover: HandoverConfig,
    pub(crate) filter: FilterConfig,
    pub(crate) lightpush: LightPushConfig,
    pub(crate) peer_exchange: PeerExchangeConfig,
    pub(crate) sync: SyncConfig,
}

/// Relay, and the services for other peers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Protocols {
    pub(crate) relay: bool,
    #[serde(flatten)]
    pub(crate) services: Services,
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
    #[serde(with = "restante_core::settings::texts")]
    pub(crate) static_peers: Vec<PeerAddress>,
    #[serde(with = "restante_core::settings::texts")]
    pub(crate) external_addresses: Vec<OwnAddress>,
}

impl Waku {
    /// The pubsub topics that are relayed from the start: the shards of the cluster. Empty when the cluster is not known.
    pub(crate) fn relay_topics(&self) -> Vec<String> {
        let Rules { cluster_id, shards, shards_in_network, .. } = &self.rules;
        let Some(cluster) = cluster_id else { return Vec::new() };
        // 0 and 1 mean that everything is on shard 0.
        let all: Vec<u16> = (0..(*shards_in_network).max(1)).collect();
        let shards = if shards.is_empty() { &all } else { shards };
        shards.iter().map(|shard| format!("/waku/2/rs/{cluster}/{shard}")).collect()
    }

    /// The settings of sync: its progress is stored below a data folder, and messages that `retention` would remove are not
    /// fetched.
    pub(crate) fn sync(&self, data_dir: &Path, retention: Retention) -> SyncConfig {
        SyncConfig { retention, online_file: Some(self.sync_file(data_dir)), ..self.sync.clone() }
    }

    /// The file with the progress of sync.
    pub(crate) fn sync_file(&self, data_dir: &Path) -> PathBuf {
        data_dir.join(SYNC_FILE)
    }

    /// The first pair of settings that contradict each other: the key to report, and what is wrong.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        let Rules { cluster_id, shards, shards_in_network, .. } = &self.rules;
        if !shards.is_empty() && cluster_id.is_none() {
            return Some(("waku.shards", "a shard belongs to a cluster: set waku.cluster_id too".into()));
        }
        if *shards_in_network > SHARDS_MAX {
            return Some(("waku.shards_in_network", format!("a network has at most {SHARDS_MAX} shards")));
        }
        if let Some(shard) = shards.iter().find(|shard| **shard >= SHARDS_MAX) {
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
    /// The addresses on which the node listens.
    pub(crate) fn listen(&self) -> Vec<Multiaddr> {
        let tcp = address_of(self.address, self.tcp_port, "");
        // nwaku has one port for both kinds of WebSockets, and secure ones replace plain ones.
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

impl Default for Protocols {
    fn default() -> Self {
        Self { relay: true, services: Services::default() }
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
        waku.rules.cluster_id = Some(16);
        assert_eq!(waku.relay_topics().len(), 8);
        assert_eq!(waku.relay_topics()[7], "/waku/2/rs/16/7");
        waku.rules.shards_in_network = 0;
        assert_eq!(waku.relay_topics(), ["/waku/2/rs/16/0"]);
        waku.rules.shards = vec![32, 64];
        assert_eq!(waku.relay_topics(), ["/waku/2/rs/16/32", "/waku/2/rs/16/64"]);
    }
}
