//! Nodes on loopback that discover each other.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::{PeerId, identity::Keypair};
use prost::Message;
use restante_archive::{Config, open};
use restante_core::SystemClock;
use restante_waku_wire::{
    enr::{Capabilities, Enr, RelayShards},
    rpc::peer_exchange::{PeerExchangeQuery, PeerExchangeResponse, PeerExchangeRpc, PeerInfo},
};

use super::*;
use crate::{Waku, WakuConfig, metadata, node::NodeConfig, service::Answer};

/// How long a test waits for a condition before it fails.
const PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    waku: Waku,
    metrics: WakuMetrics,
}

impl Running {
    fn node(&self) -> &Node {
        self.waku.node.as_ref().unwrap()
    }

    fn peer_id(&self) -> PeerId {
        self.node().peer_id()
    }

    fn knows(&self, other: &Self) -> Option<(Option<u32>, Vec<u32>)> {
        self.node().peer(other.peer_id()).map(|info| (info.cluster_id, info.shards))
    }

    async fn connect(&self, other: &Self) {
        self.node().connect(other.node().addresses()[0].clone()).await.unwrap();
    }

    fn known_records(&self) -> i64 {
        self.metrics.peer_exchange.known.get()
    }
}

fn config(key: Keypair, cluster_id: Option<u16>, shards: &[u16]) -> WakuConfig {
    let node = NodeConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap(), "/ip4/127.0.0.1/tcp/0/ws".parse().unwrap()],
        relay: Some(Vec::new()),
        ..NodeConfig::new(key)
    };
    let rules = Rules { cluster_id, shards: shards.to_vec(), ..Rules::default() };
    WakuConfig { rules, node: Some(node), ..WakuConfig::default() }
}

async fn start_with(config: WakuConfig) -> Running {
    let archive = open(Config::new("memory:".parse().unwrap())).await.unwrap().archive;
    let metrics = WakuMetrics::default();
    let waku = Waku::start(
        config,
        archive,
        Arc::new(SystemClock),
        crate::live::standalone().await.unwrap(),
        Vec::new(),
        &metrics,
    )
    .await
    .unwrap();
    Running { waku, metrics }
}

async fn start(cluster_id: Option<u16>, shards: &[u16]) -> Running {
    start_with(config(Keypair::generate_secp256k1(), cluster_id, shards)).await
}

async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("it did not happen: {what}"));
}

#[tokio::test]
async fn nodes_of_a_cluster_remember_each_other_s_shards() {
    let (one, other) = (start(Some(42), &[0, 1]).await, start(Some(42), &[1, 2]).await);
    one.connect(&other).await;
    until("both know", async || {
        one.knows(&other) == Some((Some(42), vec![1, 2])) && other.knows(&one) == Some((Some(42), vec![0, 1]))
    })
    .await;
    until("both have asked", async || {
        let same = |running: &Running| running.metrics.metadata.count(metadata::AnswerResult::SameCluster);
        same(&one) == 1 && same(&other) == 1
    })
    .await;
    assert!(one.node().peer(other.peer_id()).is_some(), "they stay connected");
}

#[tokio::test]
async fn nodes_of_different_clusters_disconnect() {
    let (one, other) = (start(Some(42), &[]).await, start(Some(43), &[]).await);
    one.connect(&other).await;
    until("one knows the other's cluster", async || {
        let others = |running: &Running| running.metrics.metadata.count(metadata::AnswerResult::OtherCluster);
        others(&one) + others(&other) >= 1
    })
    .await;
    until("they have disconnected", async || {
        one.node().peers().is_empty() && other.node().peers().is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_node_of_all_clusters_answers_with_the_cluster_of_its_peer() {
    let (any, one) = (start(None, &[]).await, start(Some(42), &[500]).await);
    one.connect(&any).await;
    until("it names the same cluster", async || {
        one.metrics.metadata.count(metadata::AnswerResult::SameCluster) == 1
    })
    .await;
    let shards = (0..8).chain([500]).collect();
    assert_eq!(one.knows(&any), Some((Some(42), shards)));
    assert_eq!(any.knows(&one), Some((Some(42), vec![500])), "known from the request");
}

#[tokio::test]
async fn the_record_of_a_node_is_signed() {
    let running = start(Some(42), &[3]).await;
    let record: Enr = running.node().enr().unwrap().parse().unwrap();
    let contents = record.contents();
    let offered = Capabilities::RELAY | Capabilities::STORE | Capabilities::FILTER | Capabilities::LIGHTPUSH;
    assert_eq!(contents.capabilities, Some(offered));
    assert_eq!(contents.relay_shards, Some(RelayShards { cluster: 42, shards: vec![3] }));
    let addresses = running.node().addresses();
    let tcp = format!("/ip4/127.0.0.1/tcp/{}/p2p/{}", contents.tcp.unwrap(), running.peer_id());
    assert_eq!(addresses[0].to_string(), tcp);
    assert_eq!(contents.multiaddrs.len(), 1, "the WebSocket");
}

#[tokio::test]
async fn a_node_whose_key_signs_no_record_has_none() {
    let running = start_with(config(Keypair::generate_ed25519(), Some(42), &[])).await;
    assert_eq!(running.node().enr(), None);
    let other = start(Some(42), &[]).await;
    running.connect(&other).await;
    until("it still learns of others", async || running.known_records() == 1).await;
}

#[tokio::test]
async fn a_third_node_learns_of_the_first() {
    let (first, second, third) =
        (start(Some(42), &[]).await, start(Some(42), &[]).await, start(Some(42), &[]).await);
    first.connect(&second).await;
    until("the second knows the first", async || second.known_records() == 1).await;
    third.connect(&second).await;
    until("the third knows both", async || third.known_records() == 2).await;
    until("the second knows both", async || second.known_records() == 2).await;

    let query = PeerExchangeRpc { query: Some(PeerExchangeQuery { num_peers: 10 }), response: None };
    let frame = rpc::frame(&query);
    let answer = third.node().ask(second.peer_id(), rpc::peer_exchange::ID, &frame, 10_000).await.unwrap();
    let response = PeerExchangeRpc::decode(answer).unwrap().response.unwrap();
    let returned: Vec<String> =
        response.peer_infos.iter().map(|info| Enr::decode(&info.enr).unwrap().to_string()).collect();
    assert_eq!(returned, [first.node().enr().unwrap(), second.node().enr().unwrap()], "not the asker's own");
    assert!(third.node().peer(first.peer_id()).is_none(), "nobody is dialled unless the settings say so");
}

#[tokio::test]
async fn peers_from_other_nodes_are_dialled_when_the_settings_say_so() {
    let (first, second) = (start(Some(42), &[]).await, start(Some(42), &[]).await);
    first.connect(&second).await;
    until("the second knows the first", async || second.known_records() == 1).await;
    let mut config = config(Keypair::generate_secp256k1(), Some(42), &[]);
    config.peer_exchange.dial_until_peers = 2;
    config.peer_exchange.dial_any_address = true;
    config.peer_exchange.records = vec![second.node().enr().unwrap().parse().unwrap()];
    let third = start_with(config).await;
    until("the third has dialled the second, and then the first", async || third.node().peers().len() == 2)
        .await;
}

/// A record from an unknown peer could name services that only this machine can reach.
#[tokio::test]
async fn loopback_addresses_from_other_nodes_are_not_dialled() {
    let (first, second) = (start(Some(42), &[]).await, start(Some(42), &[]).await);
    first.connect(&second).await;
    until("the second knows the first", async || second.known_records() == 1).await;
    let mut config = config(Keypair::generate_secp256k1(), Some(42), &[]);
    config.peer_exchange.dial_until_peers = 2;
    config.peer_exchange.records = vec![second.node().enr().unwrap().parse().unwrap()];
    let third = start_with(config).await;
    let not_public = || third.metrics.peer_exchange.not_public.get();
    until("the third has skipped the first's addresses", async || not_public() >= 2).await;
    let connected: Vec<PeerId> = third.node().peers().into_iter().map(|peer| peer.peer).collect();
    assert_eq!(connected, [second.peer_id()], "a record of the settings may name any address");
}

/// Answers with forged records.
struct Liar;

#[async_trait]
impl Service for Liar {
    fn id(&self) -> &'static str {
        rpc::peer_exchange::ID
    }

    fn name(&self) -> &'static str {
        "peer_exchange"
    }

    fn request_bytes_max(&self) -> usize {
        1_024
    }

    async fn answer(&self, _peer: PeerId, _request: Bytes) -> Answer {
        let forged = PeerInfo { enr: vec![0xc0; 300].into() };
        let response =
            PeerExchangeResponse { peer_infos: vec![forged; 60], ..PeerExchangeResponse::default() };
        let rpc = PeerExchangeRpc { query: None, response: Some(response) };
        Answer::new(200, rpc::frame(&rpc))
    }

    fn answer_too_often(&self, _request: Bytes) -> Answer {
        Answer::none(429)
    }
}

#[tokio::test]
async fn forged_records_are_counted_and_forgotten() {
    let archive = open(Config::new("memory:".parse().unwrap())).await.unwrap().archive;
    let metrics = WakuMetrics::default();
    let clock = Arc::new(SystemClock);
    let intake = crate::intake::Intake::new(
        archive,
        clock,
        Rules::default(),
        crate::intake::HandoverConfig::default(),
        metrics.intake.clone(),
    );
    let node = config(Keypair::generate_secp256k1(), None, &[]).node.unwrap();
    let (liar, unstarted) = Node::new(node, metrics.node.clone());
    intake.connect(Vec::new(), Some(liar.clone()));
    unstarted.start(vec![Arc::new(Liar)], crate::rates::Limiter::default(), intake).await.unwrap();

    let running = start(None, &[]).await;
    running.node().connect(liar.addresses()[0].clone()).await.unwrap();
    let wrong = || running.metrics.peer_exchange.count(peer_exchange::RecordResult::Wrong);
    until("as many records as requested are checked", async || wrong() == 30).await;
    assert_eq!(running.known_records(), 0);
    assert!(running.node().peer(liar.peer_id()).is_some());
    assert_eq!(wrong(), 30, "and no more");
}
