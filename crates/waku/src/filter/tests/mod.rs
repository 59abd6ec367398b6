//! Tests the filter with simulated clients, and with real nodes on loopback.

pub(crate) mod network;
mod sessions;

use std::{collections::HashMap, net::SocketAddr, pin::pin};

use futures_util::FutureExt;
use parking_lot::Mutex;
use restante_core::{MessageHash, Timestamp, nonzero};
use restante_sessions::{Config, EngineUrl, hub::HubConfig};
use restante_waku_wire::{WakuMessage, rpc::filter::MessagePush};
use tokio::time::sleep;

use super::{
    push_streams::{
        Opened,
        tests::{Client, Manner},
    },
    pusher::FAILURE_PAUSE,
    *,
};
use crate::{live::Event, node::OpenError};

const PUBSUB: &str = "/waku/2/rs/42/0";
const CHAT: &str = "/toychat/2/huilong/proto";
/// The address of all clients.
const ADDRESS: &str = "192.0.2.1:60000";

/// Clients by their peer ids.
#[derive(Default)]
struct Clients {
    by_id: Mutex<HashMap<PeerId, Arc<Client>>>,
}

#[async_trait]
impl Opener for Clients {
    async fn open(&self, peer: PeerId) -> Opened {
        let client = self.by_id.lock().get(&peer).cloned();
        client.ok_or(OpenError::NotConnected)?.stream()
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        self.by_id.lock().get(&peer).is_some_and(|client| client.is_connected())
    }

    fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        self.is_connected(peer).then(|| ADDRESS.parse().unwrap())
    }
}

/// A filter and its clients.
struct Setup {
    filter: Arc<FilterService>,
    clients: Arc<Clients>,
    live: Live,
    metrics: FilterMetrics,
    events: broadcast::Sender<NodeEvent>,
}

impl Setup {
    fn new(config: FilterConfig) -> Self {
        Self::with_rules(config, Rules::default())
    }

    fn with_rules(config: FilterConfig, rules: Rules) -> Self {
        Self::over(config, rules, live(HubConfig::default()))
    }

    fn over(config: FilterConfig, rules: Rules, live: Live) -> Self {
        let (metrics, clients) = (FilterMetrics::default(), Arc::new(Clients::default()));
        let (events, received) = broadcast::channel(4);
        let node = (clients.clone() as Arc<dyn Opener>, received);
        let filter = FilterService::start_with(config, rules, node, &live, metrics.clone());
        Self { filter, clients, live, metrics, events }
    }

    fn client(&self, manner: Manner) -> (PeerId, Arc<Client>) {
        let (peer, client) = (PeerId::random(), Client::new(manner));
        self.clients.by_id.lock().insert(peer, client.clone());
        (peer, client)
    }

    async fn subscribed(&self, manner: Manner) -> (PeerId, Arc<Client>) {
        let (peer, client) = self.client(manner);
        assert_eq!(self.subscribe(peer, PUBSUB, &[CHAT]).await, 200);
        (peer, client)
    }

    async fn ask(&self, peer: PeerId, request: &SubscribeRequest) -> SubscribeResponse {
        let answer = self.filter.answer(peer, request.encode_to_vec().into()).await;
        let response = SubscribeResponse::decode_length_delimited(&*answer.frame.unwrap()).unwrap();
        assert_eq!((&*response.request_id, response.status_code), ("id", answer.status));
        assert!(!response.status_desc.clone().unwrap().is_empty());
        response
    }

    async fn ask_of(&self, kind: SubscribeType, peer: PeerId, pubsub: &str, topics: &[&str]) -> u32 {
        self.ask(peer, &request(kind, pubsub, topics)).await.status_code
    }

    async fn subscribe(&self, peer: PeerId, pubsub: &str, topics: &[&str]) -> u32 {
        self.ask_of(SubscribeType::Subscribe, peer, pubsub, topics).await
    }

    async fn ping(&self, peer: PeerId) -> u32 {
        self.ask_of(SubscribeType::Ping, peer, "", &[]).await
    }

    fn publish(&self, number: usize) {
        self.publish_to(CHAT, number);
    }

    fn publish_to(&self, content_topic: &str, number: usize) {
        self.live.hub.publish(&event(content_topic, number));
    }

    /// Waits until `messages` were pushed, lost or dropped.
    async fn settled(&self, messages: u64) {
        let all = [Pushed::Sent, Pushed::Dropped, Pushed::Failed, Pushed::Away];
        until(|| all.iter().map(|result| self.metrics.count_of(*result)).sum::<u64>() >= messages).await;
    }

    fn counts(&self) -> [u64; 4] {
        [Pushed::Sent, Pushed::Dropped, Pushed::Failed, Pushed::Away]
            .map(|result| self.metrics.count_of(result))
    }
}

/// A table in memory, and a hub.
fn live(hub: HubConfig) -> Live {
    let opened = Live::open(Config::new(EngineUrl::Memory), hub).now_or_never();
    opened.expect("the memory engine opens at once").unwrap()
}

fn request(kind: SubscribeType, pubsub: &str, topics: &[&str]) -> SubscribeRequest {
    SubscribeRequest {
        request_id: "id".to_owned(),
        subscribe_type: kind.into(),
        pubsub_topic: (!pubsub.is_empty()).then(|| pubsub.to_owned()),
        content_topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
    }
}

fn wire(content_topic: &str, number: usize) -> Bytes {
    let payload = number.to_string().into();
    WakuMessage { payload, content_topic: content_topic.to_owned(), ..WakuMessage::default() }.to_wire()
}

fn event(content_topic: &str, number: usize) -> Arc<Event> {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    let wire = wire(content_topic, number);
    Arc::new(Event::new(PUBSUB.into(), content_topic.into(), MessageHash(hash), Timestamp(0), wire))
}

/// The numbers of the messages that were pushed to a client.
fn numbers(client: &Client) -> Vec<usize> {
    let read = client.read();
    let pushes = read.iter().map(|frame| MessagePush::decode_length_delimited(&**frame).unwrap());
    pushes
        .map(|push| {
            assert_eq!(push.pubsub_topic.as_deref(), Some(PUBSUB));
            let message = WakuMessage::from_wire(&push.waku_message.unwrap()).unwrap();
            std::str::from_utf8(&message.payload).unwrap().parse().unwrap()
        })
        .collect()
}

/// Waits for a condition. Time is paused in these tests and advances when all tasks wait, so this takes no time.
async fn until(condition: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if condition() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition never held");
}

#[tokio::test(start_paused = true)]
async fn messages_are_pushed_in_order_to_their_subscribers() {
    for manner in [Manner::ReadsOne, Manner::ReadsOn] {
        let setup = Setup::new(FilterConfig::default());
        let (_, chatting) = setup.subscribed(manner).await;
        let (other, silent) = setup.client(manner);
        assert_eq!(setup.subscribe(other, PUBSUB, &["/other/1/x/proto"]).await, 200);
        assert_eq!(setup.subscribe(other, "/waku/2/rs/42/1", &[CHAT]).await, 200);
        assert_eq!(setup.subscribe(other, PUBSUB, &[&CHAT[..CHAT.len() - 1]]).await, 200);
        for number in 0..300 {
            setup.publish(number);
        }
        setup.settled(300).await;
        assert_eq!(numbers(&chatting), (0..300).collect::<Vec<_>>(), "{manner:?}");
        assert_eq!(silent.read().len(), 0);
        assert_eq!(setup.counts(), [300, 0, 0, 0]);
        assert_eq!(setup.live.hub.queued_bytes(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_have_their_statuses() {
    use SubscribeType::{Ping, Subscribe, Unsubscribe, UnsubscribeAll};
    let setup = Setup::new(FilterConfig::default());
    let peer = PeerId::random();
    let many: Vec<String> = (0..101).map(|n| format!("/a/1/{n}/proto")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = "x".repeat(CONTENT_TOPIC_BYTES_MAX + 1);
    let steps = [
        (Ping, "", &[][..], 404),
        (UnsubscribeAll, "", &[], 404),
        (Unsubscribe, PUBSUB, &[CHAT], 404),
        (Subscribe, "", &[CHAT], 400),
        (Subscribe, PUBSUB, &[], 400),
        (Subscribe, PUBSUB, &[""], 400),
        (Subscribe, PUBSUB, &[&*long], 400),
        (Subscribe, "/other/topic", &[CHAT], 400),
        (Subscribe, PUBSUB, &many, 400),
        (Ping, "", &[], 404),
        (Subscribe, PUBSUB, &many[..100], 200),
        (Subscribe, PUBSUB, &[CHAT], 200),
        (Subscribe, PUBSUB, &[CHAT], 200),
        (Ping, "", &[], 200),
        (Unsubscribe, "", &[CHAT], 400),
        (Unsubscribe, PUBSUB, &[], 400),
        (Unsubscribe, PUBSUB, &["/not/1/there/proto"], 404),
        (Unsubscribe, PUBSUB, &[CHAT], 200),
        (Unsubscribe, PUBSUB, &many[..100], 200),
        (Ping, "", &[], 404),
        (Subscribe, PUBSUB, &[CHAT], 200),
        (UnsubscribeAll, "", &[], 200),
        (UnsubscribeAll, "", &[], 404),
    ];
    for (step, (kind, pubsub, topics, status)) in steps.into_iter().enumerate() {
        assert_eq!(setup.ask_of(kind, peer, pubsub, topics).await, status, "step {step}: {kind:?}");
    }
    let unknown = SubscribeRequest { subscribe_type: 9, ..request(Ping, "", &[]) };
    assert_eq!(setup.ask(peer, &unknown).await.status_code, 400);
    assert_eq!(setup.metrics.removed_for(Removed::Unsubscribed), 2);
    assert_eq!((setup.metrics.subscribers.get(), setup.metrics.criteria.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn requests_that_cannot_be_decoded_are_answered() {
    let setup = Setup::new(FilterConfig::default());
    let answer = setup.filter.answer(PeerId::random(), Bytes::from_static(b"\xff\xff\xff")).await;
    let response = SubscribeResponse::decode_length_delimited(&*answer.frame.unwrap()).unwrap();
    assert_eq!((response.status_code, &*response.request_id), (400, "N/A"));
    let often = setup.filter.answer_too_often(request(SubscribeType::Ping, "", &[]).encode_to_vec().into());
    let response = SubscribeResponse::decode_length_delimited(&*often.frame.unwrap()).unwrap();
    assert_eq!((response.status_code, &*response.request_id, often.status), (429, "id", 429));
}

#[tokio::test(start_paused = true)]
async fn limits_are_answered_with_503_and_unserved_topics_with_400() {
    let config = FilterConfig {
        subscribers_max: nonzero!(1),
        criteria_per_peer_max: nonzero!(2),
        ..FilterConfig::default()
    };
    let setup =
        Setup::with_rules(config, Rules { cluster_id: Some(42), shards: vec![0], ..Rules::default() });
    let peer = PeerId::random();
    assert_eq!(setup.subscribe(peer, PUBSUB, &["/a/1/1/x", "/a/1/2/x", "/a/1/3/x"]).await, 503);
    assert_eq!(setup.subscribe(peer, PUBSUB, &["/a/1/1/x", "/a/1/2/x"]).await, 200);
    assert_eq!(setup.subscribe(peer, PUBSUB, &["/a/1/3/x"]).await, 503);
    assert_eq!(setup.subscribe(PeerId::random(), PUBSUB, &[CHAT]).await, 503);
    for unserved in ["/waku/2/rs/42/1", "/waku/2/rs/1/0"] {
        let answer = setup.ask(peer, &request(SubscribeType::Subscribe, unserved, &[CHAT])).await;
        assert_eq!(answer.status_code, 400);
        assert!(answer.status_desc.unwrap().contains("/waku/2/rs/42/"), "it names the served topics");
    }
}

#[tokio::test(start_paused = true)]
async fn unsubscribing_stops_the_pushes() {
    let setup = Setup::new(FilterConfig::default());
    let (peer, client) = setup.subscribed(Manner::ReadsOn).await;
    setup.subscribe(peer, PUBSUB, &["/other/1/x/proto"]).await;
    setup.publish(1);
    setup.settled(1).await;
    assert_eq!(setup.ask_of(SubscribeType::Unsubscribe, peer, PUBSUB, &[CHAT]).await, 200);
    setup.publish(2);
    setup.publish_to("/other/1/x/proto", 3);
    setup.settled(2).await;
    assert_eq!(setup.ask_of(SubscribeType::UnsubscribeAll, peer, "", &[]).await, 200);
    setup.publish_to("/other/1/x/proto", 4);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(numbers(&client), [1, 3]);
    assert!(!setup.live.hub.has_subscribers(PUBSUB, CHAT));
}

#[tokio::test(start_paused = true)]
async fn the_same_message_is_pushed_once() {
    let setup = Setup::new(FilterConfig::default());
    let (_, client) = setup.subscribed(Manner::ReadsOn).await;
    for number in [1, 1, 2, 1] {
        setup.publish(number);
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(numbers(&client), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_is_bounded_and_removed_without_delaying_others() {
    let config = FilterConfig { queue_messages_max: nonzero!(100), ..FilterConfig::default() };
    let setup = Setup::new(config);
    let (deaf_peer, deaf) = setup.subscribed(Manner::ReadsNothing).await;
    let (_, well) = setup.subscribed(Manner::ReadsOn).await;
    for number in 0..500 {
        setup.publish(number);
        sleep(Duration::from_millis(20)).await;
    }
    until(|| well.read().len() == 500).await;
    assert_eq!(numbers(&well), (0..500).collect::<Vec<_>>());
    until(|| setup.metrics.removed_for(Removed::Failed) == 1).await;
    assert_eq!(setup.ping(deaf_peer).await, 404);
    assert_eq!((deaf.read().len(), setup.metrics.subscribers.get()), (0, 1));
    setup.settled(1_000).await;
    let [sent, dropped, failed, away] = setup.counts();
    assert_eq!((sent, dropped + failed, away), (500, 500, 0));
    assert!(dropped >= 350 && failed > 0, "{dropped} dropped, {failed} failed");
    assert_eq!(setup.live.hub.queued_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_refuses_streams_is_removed_after_three_failures() {
    let setup = Setup::new(FilterConfig::default());
    let (peer, client) = setup.subscribed(Manner::Refuses).await;
    for number in 0..2 {
        setup.publish(number);
        sleep(2 * FAILURE_PAUSE).await;
    }
    assert_eq!(setup.ping(peer).await, 200, "two failures are not enough");
    client.behave(Manner::ReadsOn);
    setup.publish(2);
    sleep(2 * FAILURE_PAUSE).await;
    client.behave(Manner::Refuses);
    for number in 3..5 {
        setup.publish(number);
        sleep(2 * FAILURE_PAUSE).await;
    }
    assert_eq!(setup.ping(peer).await, 200, "a success resets the count");
    setup.publish(5);
    sleep(2 * FAILURE_PAUSE).await;
    assert_eq!(setup.ping(peer).await, 404);
    assert_eq!((setup.metrics.removed_for(Removed::Failed), setup.counts()), (1, [1, 0, 5, 0]));
}

/// Messages that were written to a peer that does not support the protocol were counted as sent, and it was not removed.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_does_not_support_the_protocol_is_removed() {
    for messages_at_once in [1, 20] {
        let setup = Setup::new(FilterConfig::default());
        let (peer, _) = setup.subscribed(Manner::OtherProtocol).await;
        for number in 0..3 * messages_at_once {
            setup.publish(number);
            if number % messages_at_once == 0 {
                sleep(Duration::from_secs(5)).await;
            }
        }
        until(|| setup.metrics.removed_for(Removed::Failed) == 1).await;
        assert_eq!(setup.ping(peer).await, 404);
        let [sent, _, failed, away] = setup.counts();
        assert_eq!((sent, away), (0, 0), "{failed} failed");
    }
}

/// When a connection ends, its streams break before the event arrives.
#[tokio::test(start_paused = true)]
async fn failures_after_a_connection_ended_do_not_count() {
    let setup = Setup::new(FilterConfig { failures_max: nonzero!(1), ..FilterConfig::default() });
    let (peer, client) = setup.subscribed(Manner::ReadsOn).await;
    setup.publish(1);
    sleep(Duration::from_secs(1)).await;
    client.behave(Manner::OtherProtocol);
    setup.publish(2);
    sleep(FAILURE_PAUSE / 2).await;
    setup.events.send(NodeEvent::Gone { peer }).unwrap();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(setup.ping(peer).await, 200);
    assert_eq!(setup.counts(), [0, 0, 0, 2]);
}

/// The subscriber stayed in the table and its pings were answered, but nothing was pushed to it any more.
#[tokio::test(start_paused = true)]
async fn a_subscriber_is_removed_when_its_pusher_panics() {
    let setup = Setup::new(FilterConfig::default());
    let (peer, client) = setup.subscribed(Manner::Panics).await;
    setup.publish(1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(setup.metrics.removed_for(Removed::Failed), 1);
    assert_eq!(setup.ping(peer).await, 404);
    client.behave(Manner::ReadsOn);
    assert_eq!(setup.subscribe(peer, PUBSUB, &[CHAT]).await, 200);
    setup.publish(2);
    setup.settled(1).await;
    assert_eq!(numbers(&client), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reconnects_still_has_its_subscription() {
    let setup = Setup::new(FilterConfig::default());
    let (peer, client) = setup.subscribed(Manner::ReadsOn).await;
    let address: libp2p::Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
    for by_event in [true, false] {
        client.connect(false);
        setup.events.send(NodeEvent::Gone { peer }).unwrap();
        sleep(Duration::from_secs(1)).await;
        setup.publish(usize::from(by_event));
        sleep(Duration::from_secs(200)).await;
        client.connect(true);
        if by_event {
            setup.events.send(NodeEvent::Connected { peer, address: address.clone() }).unwrap();
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(setup.ping(peer).await, 200);
        setup.publish(10 + usize::from(by_event));
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(numbers(&client), [11, 10]);
    setup.settled(4).await;
    assert_eq!(setup.counts(), [2, 0, 0, 2]);
}

#[tokio::test(start_paused = true)]
async fn after_missed_events_all_subscribers_are_checked() {
    let setup = Setup::new(FilterConfig::default());
    let (peer, client) = setup.subscribed(Manner::ReadsOn).await;
    client.connect(false);
    // More events than the channel holds, none of them about this peer.
    for _ in 0..20 {
        setup.events.send(NodeEvent::Gone { peer: PeerId::random() }).unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    setup.publish(1);
    assert_eq!(setup.counts(), [0, 0, 0, 1]);
    client.connect(true);
    for _ in 0..20 {
        setup.events.send(NodeEvent::Gone { peer: PeerId::random() }).unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    setup.publish(2);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(numbers(&client), [2]);
    assert_eq!(setup.ping(peer).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_expires_without_pings() {
    let setup = Setup::new(FilterConfig { ttl_seconds: nonzero!(300), ..FilterConfig::default() });
    let (pinging, _) = setup.subscribed(Manner::ReadsOn).await;
    let (silent, _) = setup.subscribed(Manner::ReadsOn).await;
    for _ in 0..4 {
        sleep(Duration::from_secs(70)).await;
        assert_eq!(setup.ping(pinging).await, 200);
    }
    assert_eq!(setup.filter.subscriptions().len(), 2);
    sleep(Duration::from_secs(21)).await;
    assert_eq!(setup.ping(silent).await, 404, "even before the sweeper runs");
    sleep(Duration::from_secs(290)).await;
    assert_eq!(setup.filter.subscriptions(), []);
    assert_eq!(setup.metrics.removed_for(Removed::Expired), 2);
    assert_eq!(setup.metrics.criteria.get(), 0);
}

/// All were removed at once, while relay waited for the table.
#[tokio::test(start_paused = true)]
async fn many_that_expire_are_removed_one_by_one() {
    let setup = Setup::new(FilterConfig::default());
    for _ in 0..3 {
        setup.subscribed(Manner::ReadsOn).await;
    }
    let end = Instant::now() + Duration::from_secs(300);
    let mut sweep = pin!(setup.filter.shared.sweep(end));
    for left in [2, 1, 0] {
        assert!(sweep.as_mut().now_or_never().is_none());
        assert!(setup.filter.shared.subscriptions.try_write().is_some());
        assert_eq!(setup.metrics.subscribers.get(), left);
    }
    sweep.await;
}

#[tokio::test(start_paused = true)]
async fn the_queues_of_all_subscribers_are_bounded() {
    let live = live(HubConfig { queued_bytes_max: nonzero!(100_000), ..HubConfig::default() });
    let setup = Setup::over(FilterConfig::default(), Rules::default(), live);
    for _ in 0..20 {
        setup.subscribed(Manner::ReadsNothing).await;
    }
    for number in 0..10_000 {
        setup.publish(number);
        assert!(setup.live.hub.queued_bytes() <= 100_000);
    }
    assert!(setup.live.hub.queued_bytes() > 0);
    assert!(setup.metrics.count_of(Pushed::Dropped) > 0);
}

#[tokio::test(start_paused = true)]
async fn all_tasks_end_with_the_filter() {
    let setup = Setup::new(FilterConfig::default());
    let (_, client) = setup.subscribed(Manner::ReadsOn).await;
    setup.publish(1);
    setup.settled(1).await;
    let weak = Arc::downgrade(&client);
    let Setup { filter, clients, .. } = setup;
    drop((filter, client));
    clients.by_id.lock().clear();
    drop(clients);
    until(|| weak.upgrade().is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn subscriptions_are_listed() {
    let setup = Setup::new(FilterConfig::default());
    let peer = PeerId::random();
    setup.subscribe(peer, PUBSUB, &["/b/1/x/proto", "/a/1/x/proto"]).await;
    let criterion = |topic: &str| Criterion { pubsub_topic: PUBSUB.into(), content_topic: topic.into() };
    let criteria = vec![criterion("/a/1/x/proto"), criterion("/b/1/x/proto")];
    assert_eq!(setup.filter.subscriptions(), [Subscription { peer, criteria }]);
}
