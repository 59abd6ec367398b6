use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{NodeId, SessionId, hub::SubscriptionConfig};

fn subscriber(number: u64) -> Arc<Subscriber> {
    let id = SessionId { opened_us: number, node: NodeId(1), user_hash: 0 };
    let config = SubscriptionConfig {
        events_max: 1,
        bytes_max: 1,
        interests_max: 1,
        overflow: crate::hub::Overflow::Drop,
    };
    Arc::new(Subscriber::new(id, config, None))
}

fn found(prefixes: &Prefixes, topic: &str) -> Vec<u64> {
    let mut found = Vec::new();
    prefixes.find(topic, |subscribers| {
        found.extend(subscribers.iter().map(|subscriber| subscriber.id.opened_us))
    });
    found.sort_unstable();
    found
}

/// Checks the invariants of nodes, and counts them.
fn check(node: &Node, is_root: bool) -> usize {
    assert!(is_root || !node.label.is_empty());
    assert!(is_root || !node.subscribers.is_empty() || node.children.len() >= 2);
    assert!(node.children.is_sorted_by_key(|child| child.label[0]));
    1 + node.children.iter().map(|child| check(child, false)).sum::<usize>()
}

#[test]
fn prefixes_of_prefixes_are_found_and_taken_away() {
    let (mut prefixes, subscribers) = (Prefixes::default(), [0, 1, 2, 3].map(subscriber));
    let wanted = ["/app/1/", "/app/1/chat", "", "/app/2/"];
    for (subscriber, prefix) in subscribers.iter().zip(wanted) {
        prefixes.add(prefix, subscriber);
    }
    assert_eq!(found(&prefixes, "/app/1/chat/proto"), [0, 1, 2]);
    assert_eq!(found(&prefixes, "/app/1/cha"), [0, 2]);
    assert_eq!(found(&prefixes, "/app/"), [2]);
    prefixes.remove("/app/", &subscribers[0]);
    prefixes.remove("/app/1/", &subscribers[1]);
    assert_eq!(found(&prefixes, "/app/1/chat"), [0, 1, 2], "only existing subscribers are removed");
    prefixes.remove("/app/1/", &subscribers[0]);
    assert_eq!(found(&prefixes, "/app/1/chat"), [1, 2]);
    for (subscriber, prefix) in subscribers.iter().zip(wanted) {
        prefixes.remove(prefix, subscriber);
    }
    assert!(prefixes.is_empty());
}

/// A prefix at every length of a topic makes the deepest tree; no operation is recursive.
#[test]
fn a_deep_tree_is_walked_with_a_flat_stack() {
    const DEPTH: usize = 2_000;
    let walk = || {
        let (mut prefixes, subscriber) = (Prefixes::default(), subscriber(0));
        let topic = "x".repeat(DEPTH);
        for len in 1..=DEPTH {
            prefixes.add(&topic[..len], &subscriber);
        }
        assert_eq!(found(&prefixes, &topic).len(), DEPTH);
        for len in (1..=DEPTH).rev() {
            prefixes.remove(&topic[..len], &subscriber);
        }
        assert!(prefixes.is_empty());
    };
    let small = std::thread::Builder::new().stack_size(32 * DEPTH);
    small.spawn(walk).unwrap().join().unwrap();
}

proptest! {
    #[test]
    fn the_tree_agrees_with_a_list(
        steps in prop::collection::vec(("[ab]{0,6}", 0..3_usize, any::<bool>()), 0..80),
        topics in prop::collection::vec("[ab]{0,8}", 1..6),
    ) {
        let (mut prefixes, subscribers) = (Prefixes::default(), [0, 1, 2].map(subscriber));
        let mut model: BTreeSet<(String, usize)> = BTreeSet::new();
        for (prefix, one, is_added) in steps {
            if is_added {
                if model.insert((prefix.clone(), one)) {
                    prefixes.add(&prefix, &subscribers[one]);
                }
            } else {
                prefixes.remove(&prefix, &subscribers[one]);
                model.remove(&(prefix, one));
            }
            let distinct: BTreeSet<&String> = model.iter().map(|(prefix, _)| prefix).collect();
            prop_assert!(check(&prefixes.root, true) <= 2 * distinct.len() + 1);
            for topic in &topics {
                let mut expected: Vec<u64> = model.iter()
                    .filter(|(prefix, _)| topic.starts_with(prefix))
                    .map(|(_, one)| *one as u64)
                    .collect();
                expected.sort_unstable();
                prop_assert_eq!(found(&prefixes, topic), expected);
            }
        }
    }
}
