//! Tests the whole door with light nodes, on loopback.

use libp2p::{Multiaddr, identity::Keypair, multiaddr::Protocol};
use restante_archive::{Archive, Config, open};
use restante_core::{Clock, SystemClock, nonzero};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::mpsc::Receiver,
    task::JoinHandle,
    time::timeout,
};

use super::*;
use crate::{
    Waku, WakuConfig, WakuMetrics,
    intake::{HandoverConfig, Intake},
    node::NodeConfig,
    rates::Limiter,
};

/// How long a test waits for a condition before it fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest message of these nodes.
const MESSAGE_BYTES_MAX: usize = 150 << 10;

/// A service node.
pub(crate) struct Server {
    pub(crate) waku: Waku,
    pub(crate) archive: Arc<dyn Archive>,
    pub(crate) metrics: WakuMetrics,
}

/// A node that only subscribes and receives pushes.
pub(crate) struct LightNode {
    pub(crate) node: Node,
    pub(crate) filter: FilterClient,
    pub(crate) pushed: Receiver<PushedMessage>,
}

fn node_config(relay: Option<Vec<String>>) -> NodeConfig {
    NodeConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        relay,
        ..NodeConfig::new(Keypair::generate_secp256k1())
    }
}

async fn memory() -> Arc<dyn Archive> {
    open(Config::new("memory:".parse().unwrap())).await.unwrap().archive
}

impl Server {
    pub(crate) async fn start(change: impl FnOnce(&mut WakuConfig)) -> Self {
        let rules = Rules { cluster_id: Some(42), ..Rules::default() };
        let node = Some(node_config(Some(vec![PUBSUB.to_owned()])));
        let mut config = WakuConfig { rules, node, ..WakuConfig::default() };
        change(&mut config);
        let (archive, metrics) = (memory().await, WakuMetrics::default());
        let waku = Waku::start(
            config,
            archive.clone(),
            Arc::new(SystemClock),
            crate::live::standalone().await.unwrap(),
            Vec::new(),
            &metrics,
        )
        .await
        .unwrap();
        Self { waku, archive, metrics }
    }

    pub(crate) fn node(&self) -> &Node {
        self.waku.node.as_ref().unwrap()
    }

    pub(crate) fn peer(&self) -> PeerId {
        self.node().peer_id()
    }

    pub(crate) fn address(&self) -> Multiaddr {
        self.node().addresses()[0].clone()
    }

    async fn publish(&self, number: usize) {
        self.waku.intake.publish(PUBSUB, now_wire(number, 10)).await.unwrap();
    }

    fn counts(&self) -> [u64; 4] {
        [Pushed::Sent, Pushed::Dropped, Pushed::Failed, Pushed::Away]
            .map(|result| self.metrics.filter.count_of(result))
    }
}

impl LightNode {
    pub(crate) async fn start() -> Self {
        Self::start_with(|receiver| vec![receiver]).await
    }

    async fn start_with(services: impl FnOnce(Arc<dyn Service>) -> Vec<Arc<dyn Service>>) -> Self {
        let clock = Arc::new(SystemClock);
        let metrics = WakuMetrics::default();
        let intake =
            Intake::new(memory().await, clock, Rules::default(), HandoverConfig::default(), metrics.intake);
        let (node, unstarted) = Node::new(node_config(None), metrics.node);
        let (receiver, pushed) = FilterPushReceiver::new(1_000, MESSAGE_BYTES_MAX);
        intake.connect(Vec::new(), Some(node.clone()));
        unstarted.start(services(receiver), Limiter::default(), intake).await.unwrap();
        Self { filter: FilterClient::new(node.clone()), node, pushed }
    }

    pub(crate) async fn subscribed(server: &Server) -> Self {
        let light = Self::start().await;
        light.subscribe_at(server).await;
        light
    }

    async fn subscribe_at(&self, server: &Server) {
        self.node.connect(server.address()).await.unwrap();
        self.filter.subscribe(server.peer(), PUBSUB, &[CHAT]).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> PushedMessage {
        timeout(PATIENCE, self.pushed.recv()).await.expect("a message is pushed").unwrap()
    }

    async fn next_number(&mut self) -> usize {
        let message = WakuMessage::from_wire(&self.next().await.wire).unwrap();
        let text = std::str::from_utf8(&message.payload).unwrap();
        text.trim_end().parse().unwrap()
    }
}

/// A message with the current time; its payload is its number, padded with spaces.
pub(crate) fn now_wire(number: usize, payload_bytes: usize) -> Bytes {
    let mut payload = number.to_string().into_bytes();
    payload.resize(payload_bytes, b' ');
    let message = WakuMessage {
        payload: payload.into(),
        content_topic: CHAT.to_owned(),
        timestamp: Some(SystemClock.now().nanos()),
        ..WakuMessage::default()
    };
    message.to_wire()
}

pub(crate) async fn soon(what: &str, holds: impl AsyncFn() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("it did not happen: {what}"));
}

fn status_of(result: Result<(), FilterError>) -> u32 {
    match result {
        Ok(()) => 200,
        Err(FilterError::Refused { status, .. }) => status,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn messages_are_pushed_to_a_light_node_until_it_unsubscribes() {
    let server = Server::start(|_| {}).await;
    let mut light = LightNode::subscribed(&server).await;
    for number in 0..100 {
        server.publish(number).await;
        assert_eq!(light.next_number().await, number);
    }
    let filter = &light.filter;
    assert_eq!(status_of(filter.ping(server.peer()).await), 200);
    assert_eq!(server.waku.filter_subscriptions().unwrap()[0].peer, light.node.peer_id());
    assert_eq!(status_of(filter.unsubscribe(server.peer(), PUBSUB, &[CHAT]).await), 200);
    assert_eq!(status_of(filter.ping(server.peer()).await), 404);
    assert_eq!(status_of(filter.unsubscribe_all(server.peer()).await), 404);
    assert_eq!(status_of(filter.subscribe(server.peer(), "/waku/2/rs/1/0", &[CHAT]).await), 400);
    server.publish(100).await;
    assert_eq!(status_of(filter.subscribe(server.peer(), PUBSUB, &[CHAT]).await), 200);
    server.publish(101).await;
    assert_eq!(light.next_number().await, 101, "messages in between are not pushed");
    soon("all are counted", async || server.counts() == [101, 0, 0, 0]).await;
}

/// The client reads one message per stream, so hundreds of streams are opened.
#[tokio::test]
async fn a_burst_reaches_every_light_node_whole() {
    let server = Server::start(|_| {}).await;
    let mut lights = Vec::new();
    for _ in 0..4 {
        lights.push(LightNode::subscribed(&server).await);
    }
    for number in 0..400 {
        server.publish(number).await;
    }
    for light in &mut lights {
        let mut numbers = Vec::new();
        while numbers.len() < 400 {
            numbers.push(light.next_number().await);
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (0..400).collect::<Vec<_>>());
    }
    soon("all are counted", async || server.counts() == [1_600, 0, 0, 0]).await;
}

/// Its pusher panicked, and its pings were answered for ever.
#[tokio::test]
async fn a_light_node_that_accepts_no_pushes_is_removed() {
    let server = Server::start(|_| {}).await;
    let light = LightNode::start_with(|_| Vec::new()).await;
    light.subscribe_at(&server).await;
    for number in 0..40 {
        server.publish(number).await;
    }
    soon("it is removed", async || status_of(light.filter.ping(server.peer()).await) == 404).await;
    let [sent, dropped, failed, away] = server.counts();
    assert_eq!((sent, dropped + failed, away), (0, 40, 0));
    assert_eq!(server.metrics.filter.removed_for(Removed::Failed), 1);
}

#[tokio::test]
async fn a_light_node_that_reconnects_still_has_its_subscription() {
    let server = Server::start(|_| {}).await;
    let mut light = LightNode::subscribed(&server).await;
    server.publish(1).await;
    assert_eq!(light.next_number().await, 1);
    light.node.disconnect(server.peer()).await;
    soon("the server has noticed", async || server.node().peer(light.node.peer_id()).is_none()).await;
    soon("messages are not queued", async || {
        server.publish(2).await;
        server.metrics.filter.count_of(Pushed::Away) > 0
    })
    .await;
    light.node.connect(server.address()).await.unwrap();
    assert_eq!(status_of(light.filter.ping(server.peer()).await), 200);
    server.publish(3).await;
    while light.next_number().await != 3 {}
}

/// Forwards bytes between a client and a server until it is frozen.
struct Proxy {
    address: Multiaddr,
    tasks: Vec<JoinHandle<()>>,
    frozen: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Proxy {
    async fn to(server: &Server) -> Self {
        let port = server.address().iter().find_map(|part| match part {
            Protocol::Tcp(port) => Some(port),
            _ => None,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address =
            format!("/ip4/127.0.0.1/tcp/{}/p2p/{}", listener.local_addr().unwrap().port(), server.peer());
        let (frozen, freeze) = tokio::sync::oneshot::channel();
        let target = format!("127.0.0.1:{}", port.unwrap());
        let task = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(target).await.unwrap();
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                _ = freeze => std::future::pending().await, // both stay open
            }
        });
        Self { address: address.parse().unwrap(), tasks: vec![task], frozen: Some(frozen) }
    }

    fn freeze(&mut self) {
        self.frozen.take().unwrap().send(()).unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[tokio::test]
async fn a_light_node_that_hangs_is_removed_without_delaying_others() {
    let server = Server::start(|config| {
        config.filter.push_timeout = Duration::from_millis(200);
        config.filter.queue_messages_max = nonzero!(20);
    })
    .await;
    let mut healthy = LightNode::subscribed(&server).await;
    let mut proxy = Proxy::to(&server).await;
    let mut hanging = LightNode::start().await;
    hanging.node.connect(proxy.address.clone()).await.unwrap();
    hanging.filter.subscribe(server.peer(), PUBSUB, &[CHAT]).await.unwrap();
    server.publish(0).await;
    assert_eq!((healthy.next_number().await, hanging.next_number().await), (0, 0));
    proxy.freeze();
    // Large messages, because buffers hold some MiB before a write blocks: then pushes fail until it is removed, or pings
    // time out, whichever happens first.
    for number in 1.. {
        if server.metrics.filter.subscribers.get() == 1 || server.metrics.filter.count_of(Pushed::Away) > 0 {
            break;
        }
        assert!(number < 6_000, "it was never noticed: {:?}", server.counts());
        server.waku.intake.publish(PUBSUB, now_wire(number, 100 << 10)).await.unwrap();
        assert_eq!(healthy.next_number().await, number);
        sleep(Duration::from_millis(10)).await;
    }
    soon("the queues are empty", async || server.waku.live.hub.queued_bytes() == 0).await;
}
