//! Nodes on loopback.

use std::collections::BTreeSet;

use async_trait::async_trait;
use libp2p::identity::Keypair;
use restante_archive::{Archive, Config, Query, open};
use restante_core::{Clock, SystemClock, nonzero};
use restante_waku_wire::WakuMessage;

use super::*;
use crate::{
    WakuMetrics,
    intake::{HandoverConfig, Intake},
    rates::Limiter,
    service::{Answer, Service},
    validate::Rules,
};

const TOPIC: &str = "/waku/2/rs/42/0";
/// How long a test waits for a condition before it fails.
const PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    node: Node,
    archive: Arc<dyn Archive>,
    intake: Intake,
}

fn config(listen: &str) -> NodeConfig {
    NodeConfig {
        listen: vec![listen.parse().unwrap()],
        relay: Some(vec![TOPIC.to_owned()]),
        ..NodeConfig::new(Keypair::generate_secp256k1())
    }
}

async fn start_with(config: NodeConfig, services: Vec<Arc<dyn Service>>) -> Running {
    let archive = open(Config::new("memory:".parse().unwrap())).await.unwrap().archive;
    let metrics = WakuMetrics::default();
    let (clock, rules) = (Arc::new(SystemClock), Rules::default());
    let intake =
        Intake::new(archive.clone(), clock, rules, HandoverConfig::default(), metrics.intake.clone());
    let (node, unstarted) = Node::new(config, metrics.node.clone());
    intake.connect(Vec::new(), Some(node.clone()));
    unstarted.start(services, Limiter::default(), intake.clone()).await.unwrap();
    Running { node, archive, intake }
}

async fn start(listen: &str) -> Running {
    start_with(config(listen), Vec::new()).await
}

const TCP: &str = "/ip4/127.0.0.1/tcp/0";

fn message(payload: &str) -> Bytes {
    let message = WakuMessage {
        payload: payload.to_owned().into(),
        content_topic: "/toy/1/chat/proto".into(),
        timestamp: Some(SystemClock.now().nanos()),
        ..WakuMessage::default()
    };
    message.to_wire()
}

async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("it did not happen: {what}"));
}

async fn bodies(archive: &dyn Archive) -> BTreeSet<Vec<u8>> {
    archive.query(&Query::default()).await.unwrap().rows().map(|row| row.body.to_vec()).collect()
}

async fn connect(from: &Running, to: &Running) -> PeerId {
    let peer = from.node.connect(to.node.addresses()[0].clone()).await.unwrap();
    until("both follow the topic", async || {
        let follows =
            |one: &Running, peer| one.node.peer(peer).is_some_and(|info| info.topics.contains(TOPIC));
        follows(from, to.node.peer_id()) && follows(to, from.node.peer_id())
    })
    .await;
    peer
}

#[tokio::test]
async fn a_published_message_is_archived_by_the_peer() {
    let (one, other) = (start(TCP).await, start(TCP).await);
    connect(&one, &other).await;
    let sent: BTreeSet<Vec<u8>> = (0..50).map(|n| message(&format!("message {n}")).to_vec()).collect();
    for wire in &sent {
        let published = one.intake.publish(TOPIC, wire.clone().into()).await.unwrap();
        assert_eq!(published.relay_peers, 1);
    }
    assert_eq!(bodies(&*one.archive).await, sent, "the publisher archives them too");
    until("all have arrived", async || bodies(&*other.archive).await == sent).await;
    one.node.close().await;
    until("the other has noticed", async || other.node.peers().is_empty()).await;
}

#[tokio::test]
async fn websockets_work_too() {
    let (one, other) = (start("/ip4/127.0.0.1/tcp/0/ws").await, start(TCP).await);
    let address = one.node.addresses()[0].clone();
    assert!(address.to_string().contains("/ws/p2p/16Uiu2HA"), "{address}");
    let peer = connect(&other, &one).await;
    assert_eq!(peer, one.node.peer_id());
    other.intake.publish(TOPIC, message("by websocket")).await.unwrap();
    until("it has arrived", async || bodies(&*one.archive).await.len() == 1).await;
}

/// Answers with the request, twice.
struct Echo;

#[async_trait]
impl Service for Echo {
    fn id(&self) -> &'static str {
        "/test/echo/1"
    }

    fn name(&self) -> &'static str {
        "echo"
    }

    fn request_bytes_max(&self) -> usize {
        100_000
    }

    async fn answer(&self, _: PeerId, request: Bytes) -> Answer {
        let twice = [&request[..], &request[..]].concat();
        let mut frame = Vec::new();
        prost::encoding::encode_varint(twice.len() as u64, &mut frame);
        frame.extend(twice);
        Answer::new(200, frame)
    }

    fn answer_too_often(&self, _: Bytes) -> Answer {
        Answer::none(429)
    }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    prost::encoding::encode_varint(bytes.len() as u64, &mut frame);
    frame.extend_from_slice(bytes);
    frame
}

#[tokio::test]
async fn requests_are_answered_many_at_once() {
    let server = start_with(config(TCP), vec![Arc::new(Echo)]).await;
    let client = start(TCP).await;
    let peer = client.node.connect(server.node.addresses()[0].clone()).await.unwrap();
    let ask = async |len: usize| {
        let request = vec![7; len];
        let answer = client.node.ask(peer, "/test/echo/1", &frame(&request), 200_000).await;
        assert_eq!(answer.unwrap().len(), 2 * len);
    };
    for len in [0, 1, 5_000, 100_000] {
        ask(len).await;
    }
    futures_util::future::join_all((0..40).map(|n| ask(n * 1_000))).await;

    let too_long = client.node.ask(peer, "/test/echo/1", &frame(&[0; 100_001]), 300_000).await;
    assert!(matches!(too_long, Err(AskError::Io(_))), "{too_long:?}");
    let answer_too_long = client.node.ask(peer, "/test/echo/1", &frame(b"ab"), 3).await;
    assert!(matches!(answer_too_long, Err(AskError::TooLong(3))));
    let unknown = client.node.ask(peer, "/test/unknown/1", b"\x00", 10).await;
    assert!(matches!(unknown, Err(AskError::Open(_) | AskError::Io(_))), "{unknown:?}");
    let nobody = client.node.ask(PeerId::random(), "/test/echo/1", b"\x00", 10).await;
    assert!(matches!(nobody, Err(AskError::Open(OpenError::NotConnected))));
}

#[tokio::test]
async fn static_peers_are_dialled_again() {
    let first = start(TCP).await;
    let address = first.node.addresses()[0].clone();
    let follower = start_with(
        NodeConfig { static_peers: vec![address.clone().try_into().unwrap()], ..config(TCP) },
        Vec::new(),
    )
    .await;
    until("it is connected", async || follower.node.peers().iter().any(|peer| peer.is_static)).await;

    let key = first.node.key().clone();
    first.node.close().await;
    until("it is gone", async || follower.node.peers().is_empty()).await;
    let listen: String = address.to_string().split("/p2p/").next().unwrap().to_owned();
    let _again = start_with(NodeConfig { key, ..config(&listen) }, Vec::new()).await;
    until("it is connected again", async || !follower.node.peers().is_empty()).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_for_a_new_one() {
    let limits = NodeLimits { connections_max: nonzero!(4), ..NodeLimits::default() };
    let server = start_with(NodeConfig { limits, ..config(TCP) }, vec![Arc::new(Echo)]).await;
    let address = server.node.addresses()[0].clone();
    let mut clients = Vec::new();
    for _ in 0..12 {
        let client = start(TCP).await;
        let peer = client.node.connect(address.clone()).await.unwrap();
        let answer = client.node.ask(peer, "/test/echo/1", &frame(b"here"), 100).await.unwrap();
        assert_eq!(&answer[..], b"herehere", "a new peer is served");
        clients.push(client);
    }
    until("the limit is kept", async || server.node.peers().len() <= 4).await;
}

#[tokio::test]
async fn addresses_that_cannot_be_used_are_reported() {
    let first = start(TCP).await;
    let taken = first.node.addresses()[0].to_string();
    let taken = taken.split("/p2p/").next().unwrap();
    let (_, unstarted) = Node::new(config(taken), NodeMetrics::default());
    let error = unstarted.start(Vec::new(), Limiter::default(), first.intake.clone()).await.unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");

    let wrong = first.node.connect("/ip4/127.0.0.1/tcp/1".parse().unwrap()).await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Address(_)));
    let away = format!("/ip4/127.0.0.1/tcp/1/p2p/{}", PeerId::random()).parse().unwrap();
    assert!(matches!(first.node.connect(away).await.unwrap_err(), ConnectError::Failed(_)));
}

#[tokio::test]
async fn a_topic_is_subscribed_and_unsubscribed() {
    let (one, other) = (start(TCP).await, start(TCP).await);
    connect(&one, &other).await;
    let topic = "/waku/2/rs/42/5";
    assert_eq!(one.node.publish(topic, message("nobody")).await, Err(PublishError::NoPeers));
    assert!(other.node.subscribe(topic).await);
    assert!(!other.node.subscribe(topic).await, "it is subscribed already");
    let peer = other.node.peer_id();
    until("it is known", async || one.node.peer(peer).unwrap().topics.contains(topic)).await;
    let wire = message("somebody");
    assert_eq!(one.node.publish(topic, wire.clone()).await, Ok(1));
    assert_eq!(one.node.publish(topic, wire).await, Err(PublishError::Duplicate));
    until("it has arrived", async || bodies(&*other.archive).await.len() == 1).await;
    assert!(other.node.unsubscribe(topic).await);
    assert_eq!(other.node.topics(), [TOPIC]);
    let quiet = start_with(NodeConfig { relay: None, ..config(TCP) }, Vec::new()).await;
    assert_eq!(quiet.node.publish(TOPIC, message("no relay")).await, Err(PublishError::NoRelay));
}

#[tokio::test]
async fn a_node_notices_that_another_has_its_key() {
    let key = Keypair::generate_secp256k1();
    let (one, other) = (NodeConfig { key: key.clone(), ..config(TCP) }, NodeConfig { key, ..config(TCP) });
    let (one, other) = (start_with(one, Vec::new()).await, start_with(other, Vec::new()).await);
    assert!(one.node.connect(other.node.addresses()[0].clone()).await.is_err());
    let met = |running: &Running| running.node.shared.streams.metrics.own_peer_id.get();
    until("both have noticed", async || met(&one) == 1 && met(&other) == 1).await;
    connect(&one, &start(TCP).await).await; // a node with another key is not counted
    assert_eq!(met(&one), 1);
}
