use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use restante_core::MessageHash;

use super::*;
use crate::{Config, Message, Opened, memory};

const HOUR: i64 = RANGE_NANOS;

fn scope(bodies: bool) -> Scope {
    Scope { range: TimeRange::default(), bodies, seed: 7 }
}

fn message(timestamp: i64, hash: u8, body: &str) -> Message {
    Message {
        message_hash: MessageHash([hash; 32]),
        channel: "channel".into(),
        topic: "topic".into(),
        timestamp: Timestamp(timestamp),
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

async fn archive(messages: Vec<Message>) -> Opened {
    let opened = memory::open(&Config::new("memory:".parse().unwrap()));
    opened.archive.append(messages).await.unwrap();
    opened
}

/// The ranges that differ, and the differences in them.
async fn compared(a: &Opened, b: &Opened, scope: Scope) -> (Vec<TimeRange>, Vec<Difference>) {
    let mut comparison = Comparison::new(&*a.archive, &*b.archive, scope);
    while comparison.step().await.unwrap() {}
    let ranges = comparison.differing();
    let mut found = Vec::new();
    for range in &ranges {
        let mut differences = Differences::new(&*a.archive, &*b.archive, scope, *range);
        while let Some(difference) = differences.next().await.unwrap() {
            found.push(difference);
        }
    }
    (ranges, found)
}

#[tokio::test]
async fn equal_archives_are_equal() {
    let messages = vec![message(0, 1, "a"), message(-1, 2, "b"), message(5 * HOUR, 3, "c")];
    let (a, b) = (archive(messages.clone()).await, archive(messages).await);
    assert_eq!(compared(&a, &b, scope(true)).await, (vec![], vec![]));
    let mut comparison = Comparison::new(&*a.archive, &*b.archive, scope(false));
    while comparison.step().await.unwrap() {}
    assert_eq!(comparison.messages(), (3, 3));
}

#[tokio::test]
async fn a_missing_message_is_found_in_its_range() {
    let all = vec![message(0, 1, "a"), message(HOUR, 2, "b"), message(9 * HOUR, 3, "c")];
    let (a, b) = (archive(all.clone()).await, archive(vec![all[0].clone(), all[2].clone()]).await);
    let range = TimeRange { start: Some(Timestamp(HOUR)), end: Some(Timestamp(2 * HOUR)) };
    let only_in = |kind| (vec![range], vec![Difference { key: all[1].key(), kind }]);
    assert_eq!(compared(&a, &b, scope(false)).await, only_in(DifferenceKind::OnlyInA));
    assert_eq!(compared(&b, &a, scope(false)).await, only_in(DifferenceKind::OnlyInB));
}

#[tokio::test]
async fn another_body_is_found_when_bodies_are_compared() {
    let (a, b) = (archive(vec![message(0, 1, "a")]).await, archive(vec![message(0, 1, "b")]).await);
    assert_eq!(compared(&a, &b, scope(false)).await, (vec![], vec![]));
    let differs = Difference { key: message(0, 1, "").key(), kind: DifferenceKind::Differs };
    assert_eq!(compared(&a, &b, scope(true)).await.1, [differs]);
}

/// The boundary between two names is part of what is compared.
#[tokio::test]
async fn another_topic_is_found_when_bodies_are_compared() {
    let mut other = message(0, 1, "a");
    (other.channel, other.topic) = ("channelt".into(), "opic".into());
    let (a, b) = (archive(vec![message(0, 1, "a")]).await, archive(vec![other]).await);
    assert_eq!(compared(&a, &b, scope(true)).await.1.len(), 1);
}

#[tokio::test]
async fn only_the_range_is_compared() {
    let a = archive(vec![message(0, 1, "a"), message(10, 2, "b"), message(20, 3, "c")]).await;
    let b = archive(vec![message(10, 2, "b")]).await;
    let range = TimeRange { start: Some(Timestamp(1)), end: Some(Timestamp(20)) };
    assert_eq!(compared(&a, &b, Scope { range, ..scope(false) }).await, (vec![], vec![]));
    let range = TimeRange { start: Some(Timestamp(1)), end: Some(Timestamp(21)) };
    let (ranges, found) = compared(&a, &b, Scope { range, ..scope(false) }).await;
    assert_eq!((ranges, found.len()), (vec![range], 1), "the range that differs keeps to the bounds");
}

#[test]
fn neighbouring_ranges_are_one_and_too_many_grow_together() {
    let mut differing = Vec::new();
    for number in [-2, -1, 0, 5] {
        remember(&mut differing, number);
    }
    assert_eq!(differing, [(-2, 0), (5, 5)]);
    for number in 0..2 * RANGES_MAX as i64 {
        remember(&mut differing, 10 + 2 * number);
    }
    assert_eq!(differing.len(), RANGES_MAX);
    assert_eq!(differing.last().unwrap().1, 10 + 2 * (2 * RANGES_MAX as i64 - 1));
}

#[test]
fn the_ends_of_time_have_ranges_too() {
    let whole = TimeRange::default();
    for timestamp in [Timestamp::MIN, Timestamp(-1), Timestamp(0), Timestamp::MAX] {
        let number = range_number(timestamp);
        let range = time_range((number, number), whole);
        assert!(range.start.is_none_or(|start| start <= timestamp), "{range:?}");
        assert!(range.end.is_none_or(|end| timestamp < end), "{range:?}");
    }
}

proptest! {
    /// Compared with the simplest possible implementation, with many equal timestamps and messages at the edges of ranges.
    #[test]
    fn the_differences_are_those_of_two_sets(
        a in prop::collection::vec((0_i64..6, any::<bool>(), 0_u8..4, 0_u8..3), 0..30),
        b in prop::collection::vec((0_i64..6, any::<bool>(), 0_u8..4, 0_u8..3), 0..30),
    ) {
        let messages = |list: &[(i64, bool, u8, u8)]| -> Vec<Message> {
            let all = list.iter().map(|(hour, is_edge, hash, body)| {
                message(hour * HOUR - i64::from(*is_edge), *hash, &body.to_string())
            });
            all.collect()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (found, expected) = runtime.block_on(async {
            let (one, two) = (archive(messages(&a)).await, archive(messages(&b)).await);
            (compared(&one, &two, scope(true)).await.1, expected(&messages(&a), &messages(&b)))
        });
        prop_assert_eq!(found, expected);
    }
}

fn expected(a: &[Message], b: &[Message]) -> Vec<Difference> {
    // Of equal messages the first one stays, as in an archive.
    let map = |messages: &[Message]| -> BTreeMap<Key, Bytes> {
        messages.iter().rev().map(|message| (message.key(), message.body.clone())).collect()
    };
    let (a, b) = (map(a), map(b));
    let mut keys: Vec<Key> = a.keys().chain(b.keys()).copied().collect();
    keys.sort();
    keys.dedup();
    let mut found = Vec::new();
    for key in keys {
        let kind = match (a.get(&key), b.get(&key)) {
            (Some(_), None) => DifferenceKind::OnlyInA,
            (None, _) => DifferenceKind::OnlyInB,
            (Some(one), Some(other)) if one != other => DifferenceKind::Differs,
            _ => continue,
        };
        found.push(Difference { key, kind });
    }
    found
}
