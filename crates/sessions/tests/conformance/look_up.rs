//! Promises of the lookups, including `all`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::{StreamExt, TryStreamExt, stream};
use restante_sessions::{Ended, INFO_BYTES_MAX, RESOURCE_BYTES_MAX, SessionId, USER_BYTES_MAX};

use crate::{
    Subject,
    common::{ODD_NAMES, Row, node::Node, number, one_user, read_all, rows, soon, text},
};

/// More users than an engine reads at once.
const MANY: usize = 3_000;
/// Concurrent opens where many sessions are needed.
const IN_FLIGHT: usize = 32;

crate::promises! {
    any: [
        sessions_are_found_newest_first,
        every_look_up_finds_the_same,
        what_is_not_there_is_found_empty_and_complete,
        invalid_addresses_are_found_empty,
        what_was_found_stays_as_it_was,
        many_sessions_of_one_user_are_found,
        large_records_are_found_beside_small_ones,
        as_many_sessions_as_allowed_have_as_much_info_as_allowed,
        all_of_an_empty_table_is_empty,
        all_returns_each_users_sessions_together,
        all_returns_more_users_than_one_batch,
        all_returns_what_stays_exactly_once_while_others_come_and_go,
        all_returns_what_stays_exactly_once_while_the_table_grows_and_shrinks,
        all_blocks_no_other_operation,
        all_can_be_dropped_at_any_time,
    ],
    shared: []
}

async fn sessions_are_found_newest_first(subject: Subject) {
    let node = subject.node().await;
    let mut opened = Vec::new();
    for resource in ["m", "a", "z", "b", "a", "y"] {
        opened.push(node.open("ann", resource).await);
    }
    opened.remove(1); // it was replaced
    opened.reverse();
    assert_eq!(node.ids("ann").await, opened);
    assert!(node.presence(opened[4], Some(100), &[number(1, 1)]).await);
    assert!(node.close(opened[2], Ended::Left).await);
    opened.remove(2);
    assert_eq!(node.ids("ann").await, opened, "changes are no reason for another order");
}

async fn every_look_up_finds_the_same(subject: Subject) {
    let node = subject.node().await;
    for user in ["ann", "bob"] {
        for resource in ["phone", "desk", "watch"] {
            let id = node.open_with(user, resource, &[text(1, resource)]).await;
            assert!(node.presence(id, Some(resource.len() as i8), &[text(2, user)]).await);
        }
    }
    let all = node.all().await;
    assert_eq!(all.keys().collect::<Vec<_>>(), ["ann", "bob"]);
    for (user, of_all) in all {
        assert_eq!(node.user(&user).await, of_all);
        for row in of_all {
            assert_eq!(node.address(&user, &row.resource).await, Some(row.clone()));
            assert_eq!(node.id(row.id).await, Some(row));
        }
    }
}

async fn what_is_not_there_is_found_empty_and_complete(subject: Subject) {
    let node = subject.node().await;
    node.open("ann", "phone").await;
    assert_eq!(node.user("bob").await, []);
    assert_eq!(node.address("ann", "desk").await, None);
    assert_eq!(node.address("bob", "phone").await, None);
    assert_eq!(node.address("phone", "ann").await, None);
    assert_eq!(node.id(SessionId::from_bytes([7; 16])).await, None);
    for name in ODD_NAMES {
        assert_eq!(node.user(name).await, []);
        assert_eq!(node.address("ann", name).await, None);
    }
}

/// A lookup of an address that can't be opened is not an error: it finds nothing.
async fn invalid_addresses_are_found_empty(subject: Subject) {
    let node = subject.node().await;
    let user = "u".repeat(USER_BYTES_MAX);
    let resource = "r".repeat(RESOURCE_BYTES_MAX);
    node.open(&user, &resource).await;
    let (long_user, long_resource) = (format!("{user}u"), format!("{resource}r"));
    let very_long = "x".repeat(1 << 20);
    for unknown in ["", &long_user, &very_long] {
        assert_eq!(node.user(unknown).await, []);
        assert_eq!(node.address(unknown, &resource).await, None);
    }
    for nothing in ["", &long_resource, &very_long] {
        assert_eq!(node.address(&user, nothing).await, None);
    }
}

async fn what_was_found_stays_as_it_was(subject: Subject) {
    let node = subject.node().await;
    let phone = node.open_with("ann", "phone", &[text(1, "before")]).await;
    let desk = node.open("ann", "desk").await;
    let found = node.sessions.by_user("ann").await.unwrap();
    let before = rows(&found);
    assert!(node.merge(phone, &[text(1, "after, and longer than before")]).await);
    assert!(node.close(desk, Ended::Left).await);
    node.open("ann", "phone").await;
    assert_eq!(rows(&found), before);
    assert_eq!(found.by_id(phone).unwrap().resource(), "phone");
    assert_eq!(found.by_id(SessionId { user_hash: !phone.user_hash, ..phone }), None);
    assert_eq!(found.clone(), found);
}

async fn many_sessions_of_one_user_are_found(subject: Subject) {
    const SESSIONS: usize = 500;
    let node = subject.node_with_limit(SESSIONS).await;
    let mut opened = BTreeMap::new();
    for n in 0..SESSIONS {
        let resource = format!("{:0width$}", n, width = 1 + n % 60);
        let id = node.open_with("ann", &resource, &[number(1, n as i64)]).await;
        opened.insert(resource, id);
    }
    assert_eq!(opened.len(), SESSIONS);
    assert_eq!(node.user("ann").await.len(), SESSIONS);
    for (resource, id) in &opened {
        assert_eq!(node.address("ann", resource).await.unwrap().id, *id);
    }
    for (n, id) in opened.values().enumerate() {
        assert!(node.close(*id, Ended::Left).await);
        assert_eq!(node.ids("ann").await.len(), SESSIONS - n - 1);
    }
    assert_eq!(node.totals().await, (0, 0));
}

async fn large_records_are_found_beside_small_ones(subject: Subject) {
    let node = subject.node().await;
    let mut expected = BTreeMap::new();
    for n in 0..64_usize {
        let (user, len) = (format!("user {n}"), n * n * 4);
        for resource in ["a", "b", "c"] {
            node.open_with(&user, resource, &[text(1, &"x".repeat(len))]).await;
        }
        expected.insert(user.clone(), node.user(&user).await);
    }
    // The records were moved many times while they grew; none was mixed up with another.
    for (user, rows) in &expected {
        assert_eq!(&node.user(user).await, rows);
    }
    assert_eq!(node.all().await, expected);
}

/// Both limits of the contract can be reached together.
async fn as_many_sessions_as_allowed_have_as_much_info_as_allowed(subject: Subject) {
    const SESSIONS: usize = 100;
    let node = subject.node_with_limit(SESSIONS).await;
    let long = "x".repeat(INFO_BYTES_MAX - 8);
    let mut opened = Vec::new();
    for n in 0..SESSIONS {
        opened.push(node.open_with("ann", &n.to_string(), &[text(1, &long)]).await);
    }
    opened.reverse();
    assert_eq!(node.ids("ann").await, opened);
    assert!(node.close(opened[1], Ended::Left).await);
    assert_eq!(node.id(opened[0]).await.unwrap().info.len(), 1);
}

async fn all_of_an_empty_table_is_empty(subject: Subject) {
    let node = subject.node().await;
    assert_eq!(node.all().await, BTreeMap::new());
    let id = node.open("ann", "phone").await;
    assert!(node.close(id, Ended::Left).await);
    assert_eq!(node.all().await, BTreeMap::new());
}

async fn all_returns_each_users_sessions_together(subject: Subject) {
    let node = subject.node().await;
    for resource in ["a", "b", "c"] {
        for user in ODD_NAMES {
            node.open_with(user, resource, &[text(1, user)]).await;
        }
    }
    let all = node.all().await; // gathering them checks that no user is returned twice
    let expected: BTreeSet<_> = ODD_NAMES.map(str::to_owned).into();
    assert_eq!(all.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for (user, rows) in all {
        assert_eq!(rows.len(), 3);
        assert_eq!(node.user(&user).await, rows);
    }
}

/// Opens a session for each of many users, and returns the ids.
async fn open_many(node: &Node) -> BTreeMap<String, SessionId> {
    let opening = stream::iter(0..MANY).map(async |n: usize| {
        let user = format!("user {n}");
        let id = node.open(&user, "phone").await;
        (user, id)
    });
    opening.buffer_unordered(IN_FLIGHT).collect().await
}

async fn all_returns_more_users_than_one_batch(subject: Subject) {
    let node = subject.node().await;
    let opened = open_many(&node).await;
    let all = node.all().await;
    assert_eq!(all.len(), MANY);
    for (user, id) in opened {
        assert_eq!((all[&user][0].id, all[&user].len()), (id, 1));
    }
}

/// Half of the users stay with all their sessions. Other sessions are opened and closed, so that the table grows, shrinks and
/// moves records while it is read; a user who stays also has a session that is opened and closed.
async fn all_returns_what_stays_exactly_once_while_others_come_and_go(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let opened = open_many(&node).await;
    let stop = Arc::new(AtomicBool::new(false));
    let coming_and_going = {
        let (node, stop, opened) = (node.clone(), stop.clone(), opened.clone());
        tokio::spawn(async move {
            let mut leaving = opened.into_iter().enumerate().filter(|(n, _)| n % 2 == 1);
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                if let Some((_, (_, id))) = leaving.next() {
                    assert!(node.close(id, Ended::Left).await);
                }
                let new = node.open_with(&format!("new {}", round % 5_000), "phone", &[number(1, 1)]).await;
                let second = node.open("user 0", &format!("second {round}")).await;
                if round % 3 == 0 {
                    assert!(node.close(new, Ended::Left).await);
                }
                assert!(node.close(second, Ended::Left).await);
                round += 1;
                tokio::task::yield_now().await;
            }
        })
    };
    let mut reads = 0;
    while reads < 5 && !coming_and_going.is_finished() {
        let given = times_given(&read_all(node.sessions.all()).await);
        for (_, id) in opened.values().enumerate().filter(|(n, _)| n % 2 == 0) {
            assert_eq!(given.get(id), Some(&1), "a session that stays is returned once");
        }
        reads += 1;
    }
    stop.store(true, Ordering::Relaxed);
    soon("the others stop", coming_and_going).await.unwrap();
    assert_eq!(reads, 5);
}

/// How often each session was returned.
fn times_given(all: &[(String, Vec<Row>)]) -> BTreeMap<SessionId, usize> {
    let mut times = BTreeMap::new();
    for row in all.iter().flat_map(|(_, rows)| rows) {
        *times.entry(row.id).or_default() += 1;
    }
    times
}

/// Between reads of a few users others are opened or closed, until the table has many times its size and shrinks again.
async fn all_returns_what_stays_exactly_once_while_the_table_grows_and_shrinks(subject: Subject) {
    const STAY: usize = 1_500;
    const PASS: usize = 6_000;
    const AT_ONCE: usize = 4;
    let node = subject.node().await;
    let mut staying = Vec::new();
    for n in 0..STAY {
        staying.push(node.open(&format!("stays {n}"), "phone").await);
    }
    let mut passing: Vec<SessionId> = Vec::new();
    for grows in [true, false] {
        let (mut all, mut given) = (node.sessions.all(), Vec::new());
        while let Some(found) = all.next().await {
            given.push(one_user(&found.unwrap()));
            for n in 0..AT_ONCE {
                if grows && passing.len() < PASS {
                    passing.push(node.open(&format!("passes {} {n}", given.len()), "phone").await);
                } else if let Some(id) = passing.pop_if(|_| !grows) {
                    assert!(node.close(id, Ended::Left).await);
                }
            }
        }
        assert_eq!(passing.len(), if grows { PASS } else { 0 }, "there was time enough");
        let given = times_given(&given);
        for id in &staying {
            assert_eq!(given.get(id), Some(&1), "a session that stays is returned once");
        }
    }
}

/// All other operations work between the reads of a slow reader.
async fn all_blocks_no_other_operation(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let opened = open_many(&node).await;
    let mut all = node.sessions.all();
    let mut users: Vec<_> = opened.iter().collect();
    for _ in 0..20 {
        assert!(soon("a user is given", all.next()).await.unwrap().unwrap().is_complete());
        let changed: Vec<_> = users.split_off(users.len() - 100);
        for (user, id) in changed {
            let (node, user, id) = (node.clone(), user.clone(), *id);
            // In a task of its own, so that one that waits for ever is noticed.
            let change = tokio::spawn(async move {
                node.merge(id, &[number(1, 1)]).await;
                node.open(&user, "phone").await;
                node.user(&user).await.len()
            });
            assert_eq!(soon("a user is changed while all are read", change).await.unwrap(), 1);
        }
    }
    let rest: Vec<_> = all.try_collect().await.unwrap();
    assert!(rest.len() >= MANY - 2_000 - 20, "the unchanged users are returned: {}", rest.len());
}

async fn all_can_be_dropped_at_any_time(subject: Subject) {
    let node = subject.node().await;
    let opened = open_many(&node).await;
    for taken in [0, 1, 7, 1_000] {
        let some: Vec<_> = node.sessions.all().take(taken).try_collect().await.unwrap();
        assert_eq!(some.len(), taken);
    }
    for (n, id) in opened.values().enumerate() {
        if n % 10 > 0 {
            assert!(node.close(*id, Ended::Left).await);
        }
    }
    assert_eq!(node.all().await.len(), MANY / 10);
}
