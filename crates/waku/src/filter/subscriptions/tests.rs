use futures_util::FutureExt;
use proptest::prelude::*;
use restante_core::{MessageHash, Timestamp, nonzero};
use restante_sessions::{
    NodeId,
    hub::{Event, HubConfig, HubMetrics, Next},
};

use super::*;

const PUBSUB: &str = "/waku/2/rs/1/0";

/// A table and its hub, without a session table.
struct Setup {
    table: Subscriptions,
    hub: Hub,
    ids: u64,
}

impl Setup {
    fn new(config: FilterConfig) -> Self {
        let hub = Hub::new(HubConfig::default(), HubMetrics::default());
        let table = Subscriptions::new(config, hub.clone(), Arc::default());
        Self { table, hub, ids: 0 }
    }

    fn next_id(&mut self) -> SessionId {
        self.ids += 1;
        SessionId { opened_us: self.ids, node: NodeId(1), user_hash: 0 }
    }

    /// Subscribes as a request does. Returns the new subscriber, if the peer was not one.
    fn subscribe(
        &mut self,
        peer: PeerId,
        pubsub: &str,
        topics: &[String],
        now: Instant,
    ) -> Result<Option<Added>, Full> {
        let criteria = criteria_of(pubsub, topics);
        if self.table.add(peer, &criteria, now)?.is_some() {
            return Ok(None);
        }
        let id = self.next_id();
        self.table.insert(id, peer, &criteria, now).map(Some)
    }

    fn problem_of(&mut self, peer: PeerId, topics: &[String]) -> Full {
        self.subscribe(peer, PUBSUB, topics, Instant::now()).map(|_| ()).unwrap_err()
    }

    fn remove(&mut self, peer: PeerId) -> bool {
        self.table.remove(peer).map(|subscriber| subscriber.subscription.leave()).is_some()
    }

    /// The peers to which the hub delivers a message.
    fn receivers_of(&mut self, pubsub: &str, topic: &str) -> BTreeSet<PeerId> {
        self.ids += 1;
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&self.ids.to_be_bytes());
        let event =
            Event::new(pubsub.into(), topic.into(), MessageHash(hash), Timestamp(0), Default::default());
        let delivered = self.hub.publish(&Arc::new(event));
        let of = |subscriber: &&Arc<Subscriber>| match subscriber.subscription.next().now_or_never() {
            Some(Next::Events(events)) => events.len() == 1,
            Some(Next::Ended(why)) => panic!("ended: {why:?}"),
            None => false,
        };
        let peers: BTreeSet<PeerId> = self.table.iter().filter(of).map(|one| one.peer).collect();
        assert_eq!(peers.len(), delivered, "nobody else gets it");
        peers
    }
}

fn topics(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn limits_hold_and_a_refused_request_changes_nothing() {
    let config = FilterConfig {
        criteria_per_peer_max: nonzero!(3),
        subscribers_max: nonzero!(2),
        ..FilterConfig::default()
    };
    let (mut setup, now) = (Setup::new(config), Instant::now());
    let [one, other, third] = [(); 3].map(|()| PeerId::random());
    setup.subscribe(one, PUBSUB, &topics(&["a", "b", "b", "a"]), now).unwrap();
    assert_eq!(setup.table.criteria(), 2, "duplicates count once");
    assert_eq!(setup.problem_of(one, &topics(&["c", "d"])), Full::Criteria(3));
    assert_eq!((setup.table.criteria(), setup.receivers_of(PUBSUB, "c")), (2, BTreeSet::new()));
    setup.subscribe(one, PUBSUB, &topics(&["a", "b", "c"]), now).unwrap();
    setup.subscribe(other, PUBSUB, &topics(&["a"]), now).unwrap();
    assert_eq!(setup.problem_of(third, &topics(&["a"])), Full::Subscribers(2));
    assert_eq!(setup.problem_of(third, &topics(&["a", "b", "c", "d"])), Full::Criteria(3));
    assert_eq!(setup.receivers_of(PUBSUB, "a"), BTreeSet::from([one, other]));
}

#[test]
fn topics_take_bounded_memory() {
    let criteria_bytes_max = nonzero!(SUBSCRIBER_SHARE * 2_000);
    let (mut setup, now) =
        (Setup::new(FilterConfig { criteria_bytes_max, ..FilterConfig::default() }), Instant::now());
    let long = |n: usize| vec![format!("{n}{}", "x".repeat(1_000))];
    let first = PeerId::random();
    setup.subscribe(first, PUBSUB, &long(0), now).unwrap();
    assert_eq!(setup.problem_of(first, &long(1)), Full::SubscriberBytes(2_000));
    let subscribed =
        (1..200).take_while(|n| setup.subscribe(PeerId::random(), PUBSUB, &long(*n), now).is_ok());
    let count = 1 + subscribed.count();
    assert!((50..=96).contains(&count), "{count} of 1,300 bytes and more fit into 128,000");
    assert_eq!(setup.problem_of(PeerId::random(), &long(999)), Full::Bytes);
    setup.remove(first);
    assert!(setup.subscribe(PeerId::random(), PUBSUB, &long(999), now).is_ok(), "the bytes are free again");
}

/// The hub is shared with live streams and may be full before the filter is. Then the request changes nothing.
#[test]
fn the_limits_of_the_hub_are_reported_as_the_filters_own() {
    let mut setup = Setup::new(FilterConfig::default());
    setup.hub = Hub::new(
        HubConfig {
            subscriptions_max: nonzero!(1),
            interest_bytes_max: nonzero!(64 * 500),
            ..HubConfig::default()
        },
        HubMetrics::default(),
    );
    setup.table = Subscriptions::new(FilterConfig::default(), setup.hub.clone(), Arc::default());
    let (peer, now) = (PeerId::random(), Instant::now());
    assert_eq!(setup.problem_of(peer, &topics(&["a", "b"])), Full::SubscriberBytes(500));
    assert_eq!((setup.table.subscribers(), setup.table.criteria(), setup.table.bytes), (0, 0, 0));
    setup.subscribe(peer, PUBSUB, &topics(&["a"]), now).unwrap();
    assert_eq!(setup.problem_of(peer, &topics(&["b"])), Full::SubscriberBytes(500));
    assert_eq!(setup.problem_of(PeerId::random(), &topics(&["a"])), Full::Subscribers(1));
    assert_eq!((setup.table.subscribers(), setup.table.criteria()), (1, 1));
}

#[test]
fn a_new_subscriber_replaces_a_disconnected_one() {
    let config = FilterConfig { subscribers_max: nonzero!(3), ..FilterConfig::default() };
    let (mut setup, now) = (Setup::new(config), Instant::now());
    let peers = [(); 4].map(|()| PeerId::random());
    for (n, peer) in peers[..3].iter().enumerate() {
        setup.subscribe(*peer, PUBSUB, &topics(&["a"]), now + Duration::from_secs(n as u64)).unwrap();
    }
    for away in &peers[1..3] {
        setup.table.get(*away).unwrap().peer_disconnected();
    }
    let added = setup.subscribe(peers[3], PUBSUB, &topics(&["a"]), now).unwrap().unwrap();
    let replaced = added.replaced.unwrap();
    assert_eq!(replaced.peer, peers[1], "the disconnected one that expires first");
    replaced.subscription.leave();
    assert_eq!(
        setup.receivers_of(PUBSUB, "a"),
        BTreeSet::from([peers[0], peers[3]]),
        "and not the disconnected one"
    );
}

#[test]
fn a_subscription_expires_unless_it_is_refreshed() {
    let config = FilterConfig { ttl_seconds: nonzero!(100), ..FilterConfig::default() };
    let (mut setup, begun) = (Setup::new(config), Instant::now());
    let after = |seconds| begun + Duration::from_secs(seconds);
    let peers = [(); 4].map(|()| PeerId::random());
    for peer in peers {
        setup.subscribe(peer, PUBSUB, &topics(&["a", "b"]), begun).unwrap();
    }
    let a = criteria_of(PUBSUB, &topics(&["a"]));
    assert!(setup.table.refresh(peers[0], after(50)).is_some());
    setup.subscribe(peers[1], PUBSUB, &topics(&["a"]), after(50)).unwrap();
    assert!(setup.table.remove_criteria(peers[2], &a, after(50)).is_some_and(|(_, is_over)| !is_over));
    assert!(setup.table.expired(after(99)).is_empty());
    assert!(setup.table.expire(peers[3], after(99)).is_none());
    assert_eq!(setup.table.expired(after(100)), [peers[3]]);
    assert_eq!(setup.table.expire(peers[3], after(100)).unwrap().peer, peers[3]);
    assert!(setup.table.expired(after(100)).is_empty());
    assert_eq!(setup.table.expire(peers[0], after(150)).unwrap().peer, peers[0]);
    assert!(setup.table.refresh(peers[0], after(150)).is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Subscribe(usize, usize, Vec<usize>),
    Unsubscribe(usize, usize, Vec<usize>),
    Remove(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let topics = || prop::collection::vec(0..5_usize, 1..4);
    let step = prop_oneof![
        (0..4_usize, 0..2_usize, topics())
            .prop_map(|(peer, pubsub, topics)| Step::Subscribe(peer, pubsub, topics)),
        (0..4_usize, 0..2_usize, topics())
            .prop_map(|(peer, pubsub, topics)| Step::Unsubscribe(peer, pubsub, topics)),
        (0..4_usize).prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 0..60)
}

const PUBSUBS: [&str; 2] = ["/waku/2/rs/1/0", "/waku/2/rs/1/1"];

fn names(topics: &[usize]) -> Vec<String> {
    topics.iter().map(|topic| format!("/app/1/{topic}/proto")).collect()
}

proptest! {
    /// The hub, the lists of subscribers and the counts agree with a plain set of triples.
    #[test]
    fn the_table_agrees_with_a_set(steps in steps()) {
        let mut setup = Setup::new(FilterConfig::default());
        let now = Instant::now();
        let peers = [(); 4].map(|()| PeerId::random());
        let mut model: BTreeSet<(PeerId, &str, String)> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Subscribe(peer, pubsub, topics) => {
                    let (peer, pubsub, topics) = (peers[peer], PUBSUBS[pubsub], names(&topics));
                    let is_new = !model.iter().any(|(one, ..)| *one == peer);
                    let subscribed = setup.subscribe(peer, pubsub, &topics, now).unwrap();
                    prop_assert_eq!(subscribed.is_some(), is_new);
                    model.extend(topics.into_iter().map(|topic| (peer, pubsub, topic)));
                }
                Step::Unsubscribe(peer, pubsub, topics) => {
                    let (peer, pubsub, topics) = (peers[peer], PUBSUBS[pubsub], names(&topics));
                    let mut is_found = false;
                    for topic in &topics {
                        is_found |= model.remove(&(peer, pubsub, topic.clone()));
                    }
                    let is_left = model.iter().any(|(one, ..)| *one == peer);
                    let removed = setup.table.remove_criteria(peer, &criteria_of(pubsub, &topics), now);
                    prop_assert_eq!(removed.map(|(_, is_over)| is_over), is_found.then_some(!is_left));
                }
                Step::Remove(peer) => {
                    let before = model.len();
                    model.retain(|(one, ..)| *one != peers[peer]);
                    prop_assert_eq!(setup.remove(peers[peer]), model.len() < before);
                }
            }
            for pubsub in PUBSUBS {
                for topic in names(&[0, 1, 2, 3, 4]) {
                    let expected: BTreeSet<PeerId> = peers.into_iter()
                        .filter(|peer| model.contains(&(*peer, pubsub, topic.clone())))
                        .collect();
                    prop_assert_eq!(setup.receivers_of(pubsub, &topic), expected);
                }
            }
            let listed: BTreeSet<(PeerId, &str, String)> = setup.table.all().into_iter()
                .flat_map(|one| one.criteria.into_iter().map(move |it| (one.peer, it)))
                .map(|(peer, it)| (peer, PUBSUBS[usize::from(&*it.pubsub_topic != PUBSUBS[0])], it.content_topic.to_string()))
                .collect();
            prop_assert_eq!(&listed, &model);
            let subscribers: BTreeSet<PeerId> = model.iter().map(|(peer, ..)| *peer).collect();
            prop_assert_eq!((setup.table.criteria(), setup.table.subscribers()), (model.len(), subscribers.len()));
        }
        for peer in peers {
            setup.remove(peer);
        }
        prop_assert_eq!((setup.table.bytes, setup.table.criteria()), (0, 0));
        prop_assert!(!PUBSUBS.iter().any(|pubsub| setup.hub.has_subscribers(pubsub, "/app/1/0/proto")));
    }
}
