use std::collections::BTreeSet;

use prometheus_client::metrics::gauge::Gauge;
use proptest::prelude::*;

use super::*;

const PUBSUB: &str = "/waku/2/rs/1/0";

fn table(config: FilterConfig) -> Subscriptions {
    Subscriptions::new(config, Room::new(config.queued_bytes_max, Gauge::default()))
}

fn topics(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn wanting(table: &Subscriptions, pubsub_topic: &str, content_topic: &str) -> BTreeSet<PeerId> {
    let outboxes = table.wanting(pubsub_topic, content_topic);
    outboxes.into_iter().flat_map(HashMap::values).map(|outbox| outbox.peer).collect()
}

fn problem_of(subscribed: Result<Subscribed, Full>) -> Full {
    subscribed.map(|_| ()).unwrap_err()
}

#[test]
fn limits_hold_and_a_refused_request_changes_nothing() {
    let config = FilterConfig { criteria_per_peer_max: 3, subscribers_max: 2, ..FilterConfig::default() };
    let (mut table, now) = (table(config), Instant::now());
    let [one, other, third] = [(); 3].map(|()| PeerId::random());
    table.subscribe(one, PUBSUB, &topics(&["a", "b", "b", "a"]), now).unwrap();
    assert_eq!(table.criteria(), 2, "what is named twice counts once");
    assert_eq!(problem_of(table.subscribe(one, PUBSUB, &topics(&["c", "d"]), now)), Full::Criteria(3));
    assert_eq!((table.criteria(), wanting(&table, PUBSUB, "c")), (2, BTreeSet::new()));
    table.subscribe(one, PUBSUB, &topics(&["a", "b", "c"]), now).unwrap();
    table.subscribe(other, PUBSUB, &topics(&["a"]), now).unwrap();
    assert_eq!(problem_of(table.subscribe(third, PUBSUB, &topics(&["a"]), now)), Full::Subscribers(2));
    assert_eq!(wanting(&table, PUBSUB, "a"), BTreeSet::from([one, other]));
}

#[test]
fn topics_take_bounded_memory() {
    let criteria_bytes_max = SUBSCRIBER_SHARE * 2_000;
    let (mut table, now) =
        (table(FilterConfig { criteria_bytes_max, ..FilterConfig::default() }), Instant::now());
    let long = |n: usize| vec![format!("{n}{}", "x".repeat(1_000))];
    let first = PeerId::random();
    table.subscribe(first, PUBSUB, &long(0), now).unwrap();
    assert_eq!(problem_of(table.subscribe(first, PUBSUB, &long(1), now)), Full::SubscriberBytes(2_000));
    let subscribed =
        (1..200).take_while(|n| table.subscribe(PeerId::random(), PUBSUB, &long(*n), now).is_ok());
    let count = 1 + subscribed.count();
    assert!((50..=96).contains(&count), "{count} of 1,300 bytes and more fit into 128,000");
    assert_eq!(problem_of(table.subscribe(PeerId::random(), PUBSUB, &long(999), now)), Full::Bytes);
    table.remove(first);
    table.subscribe(PeerId::random(), PUBSUB, &long(999), now).expect("there is room again");
}

#[test]
fn a_newcomer_takes_the_place_of_one_who_is_away() {
    let config = FilterConfig { subscribers_max: 3, ..FilterConfig::default() };
    let (mut table, now) = (table(config), Instant::now());
    let peers = [(); 4].map(|()| PeerId::random());
    for (n, peer) in peers[..3].iter().enumerate() {
        table.subscribe(*peer, PUBSUB, &topics(&["a"]), now + Duration::from_secs(n as u64)).unwrap();
    }
    for away in &peers[1..3] {
        table.outbox(*away).unwrap().peer_left();
    }
    let subscribed = table.subscribe(peers[3], PUBSUB, &topics(&["a"]), now).unwrap();
    assert_eq!(subscribed.replaced.unwrap().peer, peers[1], "the one who was heard of least lately");
    assert_eq!(wanting(&table, PUBSUB, "a"), BTreeSet::from([peers[0], peers[2], peers[3]]));
}

#[test]
fn a_subscription_expires_unless_it_is_refreshed() {
    let config = FilterConfig { ttl_seconds: 100, ..FilterConfig::default() };
    let (mut table, begun) = (table(config), Instant::now());
    let after = |seconds| begun + Duration::from_secs(seconds);
    let peers = [(); 4].map(|()| PeerId::random());
    for peer in peers {
        table.subscribe(peer, PUBSUB, &topics(&["a", "b"]), begun).unwrap();
    }
    assert!(table.refresh(peers[0], after(50)));
    table.subscribe(peers[1], PUBSUB, &topics(&["a"]), after(50)).unwrap();
    assert!(matches!(table.unsubscribe(peers[2], PUBSUB, &topics(&["a"]), after(50)), Some(None)));
    assert!(table.expired(after(99)).is_empty());
    assert!(table.expire(peers[3], after(99)).is_none());
    assert_eq!(table.expired(after(100)), [peers[3]]);
    assert_eq!(table.expire(peers[3], after(100)).unwrap().peer, peers[3]);
    assert!(table.expired(after(100)).is_empty());
    assert_eq!(table.expire(peers[0], after(150)).unwrap().peer, peers[0]);
    assert!(!table.refresh(peers[0], after(150)));
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
    /// The index, the subscribers' own sets and the counts say the same as a plain set of triples.
    #[test]
    fn the_table_agrees_with_a_set(steps in steps()) {
        let mut table = table(FilterConfig::default());
        let now = Instant::now();
        let peers = [(); 4].map(|()| PeerId::random());
        let mut model: BTreeSet<(PeerId, &str, String)> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Subscribe(peer, pubsub, topics) => {
                    let (peer, pubsub, topics) = (peers[peer], PUBSUBS[pubsub], names(&topics));
                    let is_new = !model.iter().any(|(one, ..)| *one == peer);
                    let subscribed = table.subscribe(peer, pubsub, &topics, now).unwrap();
                    prop_assert_eq!(subscribed.new.is_some(), is_new);
                    model.extend(topics.into_iter().map(|topic| (peer, pubsub, topic)));
                }
                Step::Unsubscribe(peer, pubsub, topics) => {
                    let (peer, pubsub, topics) = (peers[peer], PUBSUBS[pubsub], names(&topics));
                    let mut is_found = false;
                    for topic in &topics {
                        is_found |= model.remove(&(peer, pubsub, topic.clone()));
                    }
                    let is_left = model.iter().any(|(one, ..)| *one == peer);
                    let unsubscribed = table.unsubscribe(peer, pubsub, &topics, now);
                    prop_assert_eq!(unsubscribed.is_some(), is_found);
                    prop_assert_eq!(unsubscribed.flatten().is_some(), is_found && !is_left);
                }
                Step::Remove(peer) => {
                    let before = model.len();
                    model.retain(|(one, ..)| *one != peers[peer]);
                    prop_assert_eq!(table.remove(peers[peer]).is_some(), model.len() < before);
                }
            }
            for pubsub in PUBSUBS {
                for topic in names(&[0, 1, 2, 3, 4]) {
                    let expected: BTreeSet<PeerId> = peers.into_iter()
                        .filter(|peer| model.contains(&(*peer, pubsub, topic.clone())))
                        .collect();
                    prop_assert_eq!(wanting(&table, pubsub, &topic), expected);
                }
            }
            let listed: BTreeSet<(PeerId, &str, String)> = table.all().into_iter()
                .flat_map(|one| one.criteria.into_iter().map(move |it| (one.peer, it)))
                .map(|(peer, it)| (peer, PUBSUBS[usize::from(&*it.pubsub_topic != PUBSUBS[0])], it.content_topic.to_string()))
                .collect();
            prop_assert_eq!(&listed, &model);
            let subscribers: BTreeSet<PeerId> = model.iter().map(|(peer, ..)| *peer).collect();
            prop_assert_eq!((table.criteria(), table.subscribers()), (model.len(), subscribers.len()));
        }
        for peer in peers {
            table.remove(peer);
        }
        prop_assert_eq!((table.bytes, table.criteria(), table.index.len()), (0, 0, 0));
    }
}
