use restante_archive::Row;
use restante_core::{Key, MessageHash, Timestamp};
use restante_sessions::hub::Event;

use super::*;
use crate::{
    rest::live::hand_over::{Bounds, HandOver, Times, TooSlow, key_of},
    validate::Rules,
};

fn event(payload: &str, seconds: i64) -> Arc<Event> {
    event_with(payload, seconds, false)
}

fn event_with(payload: &str, seconds: i64, is_ephemeral: bool) -> Arc<Event> {
    let timestamp = NOW.plus_seconds(seconds);
    let (wire, hash) = message_with(TOPIC, payload, timestamp, is_ephemeral);
    Arc::new(Event::new(PUBSUB.into(), TOPIC.into(), hash, timestamp, wire))
}

fn hand_over(events_max: usize, held_max: usize) -> HandOver {
    let bounds = Bounds { events_max, bytes_max: 1 << 20, held_max };
    let behind = Key { timestamp: NOW, message_hash: MessageHash::MIN };
    HandOver::new(behind, NOW, Times::of(&Rules::default()), bounds)
}

fn late(hand_over: &mut HandOver) -> Vec<Key> {
    std::iter::from_fn(|| hand_over.take_late()).map(|event| key_of(&event)).collect()
}

/// What a walk sends up to a row: the events that it passes, and the row.
fn walk_to(hand_over: &mut HandOver, row: Key) -> Vec<Key> {
    let mut given: Vec<Key> =
        std::iter::from_fn(|| hand_over.take_passed(row)).map(|event| key_of(&event)).collect();
    give(hand_over, row);
    given.push(row);
    given
}

/// The walk sends a row of the usual topics.
fn give(hand_over: &mut HandOver, key: Key) {
    let Key { timestamp, message_hash } = key;
    hand_over.give(&Row { message_hash, timestamp, channel: PUBSUB, topic: TOPIC, body: b"" });
}

/// Another message with the hash and the time of this one.
fn same_hash(event: &Event) -> Arc<Event> {
    let (hash, timestamp) = (event.message_hash, event.timestamp);
    Arc::new(Event::new(PUBSUB.into(), "/other/1/x/proto".into(), hash, timestamp, event.body.clone()))
}

#[test]
fn a_held_event_that_the_walk_meets_is_given_once() {
    let (mut hand_over, one, other) = (hand_over(10, 10), event("one", 1), event("other", 2));
    for event in [&one, &other, &one] {
        hand_over.arrived(event.clone(), NOW).unwrap();
    }
    assert_eq!(walk_to(&mut hand_over, key_of(&one)), [key_of(&one)]);
    hand_over.arrived(one.clone(), NOW).unwrap();
    assert_eq!(late(&mut hand_over), [], "it was given");
    let (left, given) = hand_over.finish();
    assert_eq!(left.map(|event| key_of(&event)).collect::<Vec<_>>(), [key_of(&other)]);
    assert!(given.has(&one) && !given.has(&other));
}

#[test]
fn a_held_event_that_the_walk_passes_is_given_in_its_place() {
    let (mut hand_over, passed, row) = (hand_over(10, 10), event("passed", 1), event("row", 2));
    hand_over.arrived(passed.clone(), NOW).unwrap();
    assert_eq!(walk_to(&mut hand_over, key_of(&row)), [key_of(&passed), key_of(&row)]);
}

#[test]
fn an_event_at_a_place_that_the_walk_has_passed_is_given_at_once() {
    let (mut hand_over, row, too_late) = (hand_over(10, 10), event("row", 2), event("late", 1));
    walk_to(&mut hand_over, key_of(&row));
    hand_over.arrived(too_late.clone(), NOW).unwrap();
    assert_eq!(late(&mut hand_over), [key_of(&too_late)]);
}

/// The hash covers the concatenated topics and payload, so that a sender can create two messages with the same hash.
#[test]
fn a_message_does_not_hide_another_with_the_same_hash() {
    let row = event("row", 1);
    let other = same_hash(&row);
    let texts = |hand_over: &mut HandOver| -> Vec<String> {
        std::iter::from_fn(|| hand_over.take_late()).map(|event| event.topic.to_string()).collect()
    };
    // The walk has sent the one, and the other arrives.
    let mut walked = hand_over(10, 10);
    give(&mut walked, key_of(&row));
    walked.arrived(other.clone(), NOW).unwrap();
    assert_eq!(texts(&mut walked), [&*other.topic]);
    assert!(walked.finish().1.has(&row));
    // The one is held, and the other arrives.
    let mut held = hand_over(10, 10);
    for event in [&row, &other, &row] {
        held.arrived(event.clone(), NOW).unwrap();
    }
    assert_eq!(texts(&mut held), [&*other.topic]);
    // The other is held, and the walk meets the one.
    let mut met = hand_over(10, 10);
    met.arrived(other.clone(), NOW).unwrap();
    give(&mut met, key_of(&row));
    assert_eq!(texts(&mut met), [&*other.topic]);
    assert!(met.has_nothing_waiting());
}

/// More is passed than fits into one piece, and the rest stays held.
#[test]
fn a_walk_rests_at_the_last_event_that_it_has_passed() {
    let (mut hand_over, first, second, row) =
        (hand_over(10, 10), event("first", 1), event("second", 2), event("row", 3));
    for event in [&second, &first] {
        hand_over.arrived(event.clone(), NOW).unwrap();
    }
    let passed = hand_over.take_passed(key_of(&row)).unwrap();
    assert_eq!((key_of(&passed), hand_over.position()), (key_of(&first), key_of(&first)));
    assert!(!hand_over.has_nothing_waiting());
    assert_eq!(walk_to(&mut hand_over, key_of(&row)), [key_of(&second), key_of(&row)]);
}

#[test]
fn what_is_never_archived_is_given_at_once() {
    let mut hand_over = hand_over(10, 0);
    let unarchived =
        [event_with("ephemeral", 1, true), event("of tomorrow", 86_400), event("of old", -86_400)];
    for event in &unarchived {
        hand_over.arrived(event.clone(), NOW).unwrap();
    }
    assert_eq!(late(&mut hand_over), unarchived.each_ref().map(|event| key_of(event)));
    assert_eq!(hand_over.end(), None);
}

#[test]
fn what_has_no_room_bounds_the_walk_until_it_is_settled() {
    let mut hand_over = hand_over(10, 1);
    for (payload, seconds) in [("held", 9), ("first", 7), ("second", 5), ("third", 6)] {
        hand_over.arrived(event(payload, seconds), NOW).unwrap();
    }
    assert_eq!(hand_over.end(), Some(NOW.plus_seconds(5)));
    assert!(
        hand_over.is_uncertain(key_of(&event("x", 5))) && !hand_over.is_uncertain(key_of(&event("x", 4)))
    );
    assert!(!hand_over.has_nothing_waiting());
    hand_over.settle();
    assert_eq!(hand_over.end(), None);
}

#[test]
fn what_must_be_given_at_once_has_a_bound() {
    let mut hand_over = hand_over(2, 2);
    for number in 0..2 {
        hand_over.arrived(event(&format!("{number}"), -1), NOW).unwrap();
    }
    assert_eq!(hand_over.arrived(event("2", -1), NOW), Err(TooSlow));
}

#[test]
fn what_was_given_is_remembered_for_as_long_as_it_may_be_announced() {
    let mut hand_over = hand_over(10, 10);
    let (old, fresh) = (event("old", -200), event("fresh", -70));
    // As if the walk had begun long ago.
    for event in [&old, &fresh] {
        give(&mut hand_over, key_of(event));
    }
    let (_, given) = hand_over.finish();
    assert!(given.has(&fresh) && !given.has(&old));
}

#[test]
fn a_server_that_takes_any_time_remembers_any_row() {
    let rules = Rules { timestamp_window_seconds: 0, ..Rules::default() };
    let times = Times::of(&rules);
    let bounds = Bounds { events_max: 1, bytes_max: 1 << 20, held_max: 1 };
    let behind = Key { timestamp: Timestamp::MIN, message_hash: MessageHash::MIN };
    let mut hand_over = HandOver::new(behind, NOW, times, bounds);
    let old = event("old", -100_000);
    walk_to(&mut hand_over, key_of(&old));
    hand_over.arrived(old, NOW).unwrap();
    assert_eq!(late(&mut hand_over), []);
}
