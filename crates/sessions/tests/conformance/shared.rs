//! Promises for nodes that share a table, while all of them are alive.

use std::{collections::BTreeMap, sync::Arc};

use restante_core::{Clock, ManualClock, MessageHash, Timestamp};
use restante_sessions::{Config, Counts, Ended, SessionId, hub::Event};

use crate::{
    Subject,
    common::{
        ODD_NAMES, OwnedValue,
        engines::TestTable,
        node::{Node, show},
        number, soon, text, until,
    },
};

crate::promises! {
    any: [
        an_event_does_not_come_back_to_its_sender,
        tables_with_other_names_share_nothing,
    ],
    shared: [
        nodes_are_different,
        sessions_of_both_nodes_are_found_from_both,
        nodes_are_listed_in_order_with_their_sessions,
        the_same_resource_on_another_node_replaces_the_old_session,
        a_session_is_replaced_though_its_nodes_clock_is_ahead,
        there_is_no_moment_with_both_or_neither_of_two_nodes,
        the_limit_counts_the_sessions_of_all_nodes,
        concurrent_opens_on_two_nodes_keep_the_limit,
        a_session_can_be_closed_from_another_node,
        closing_for_another_node_tells_its_owner_why,
        closes_from_two_nodes_end_a_session_once,
        a_delayed_close_from_another_node_leaves_the_new_session,
        sessions_of_another_node_can_not_be_changed,
        of_concurrent_changes_on_two_nodes_none_is_lost,
        all_returns_users_with_sessions_on_both_nodes_once,
        an_event_is_handed_to_the_owners_of_the_others,
    ]
}

async fn nodes_are_different(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    assert_ne!(one.here(), two.here());
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let config = Config { clock: clock as Arc<dyn Clock>, ..subject.config() };
    let (three, four) = (Node::new(config.clone()).await, Node::new(config).await);
    let mut ids = vec![one.open("ann", "1").await, two.open("ann", "2").await];
    ids.extend([three.open("ann", "3").await, four.open("ann", "4").await]);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "the same moment on two nodes gives two ids");
    assert_eq!(one.user("ann").await.len(), 4);
}

async fn sessions_of_both_nodes_are_found_from_both(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    for (node, resource) in [(&one, "a"), (&two, "b"), (&one, "c"), (&two, "d")] {
        let id = node.open_with("ann", resource, &[text(1, resource)]).await;
        assert!(node.presence(id, Some(3), &[number(2, 2)]).await);
    }
    let of_bob = two.open("bob", "a").await;
    let sessions = one.user("ann").await;
    let resources: Vec<_> = sessions.iter().map(|row| row.resource.as_str()).collect();
    assert_eq!(resources, ["d", "c", "b", "a"]);
    for node in [&one, &two] {
        assert_eq!(node.user("ann").await, sessions);
        assert_eq!(node.ids("bob").await, [of_bob]);
        for row in &sessions {
            assert_eq!(row.info[&1], OwnedValue::Text(row.resource.clone()));
            assert_eq!(node.id(row.id).await.as_ref(), Some(row));
            assert_eq!(node.address("ann", &row.resource).await.as_ref(), Some(row));
        }
        assert_eq!(node.all().await["ann"], sessions);
        let mut by_node = vec![(one.here(), 2), (two.here(), 3)];
        by_node.sort();
        let counts = Counts { sessions: 5, users: 2, by_node, is_complete: true };
        assert_eq!(node.counts().await, counts);
    }
}

async fn nodes_are_listed_in_order_with_their_sessions(subject: Subject) {
    let mut nodes = Vec::new();
    for name in ["north", "south", "west"] {
        nodes.push(Node::new(Config { node_name: name.to_owned(), ..subject.config() }).await);
    }
    nodes[1].open("ann", "phone").await;
    nodes[2].open("ann", "desk").await;
    nodes[2].open("bob", "desk").await;
    let mut expected: Vec<_> = ["north", "south", "west"]
        .iter()
        .zip(&nodes)
        .enumerate()
        .map(|(n, (name, node))| (node.here(), (*name).to_owned(), n as u64))
        .collect();
    expected.sort();
    for node in &nodes {
        let states = node.nodes.nodes().await.unwrap();
        assert!(states.iter().all(|state| state.is_living()), "{states:?}");
        let states: Vec<_> = states.into_iter().map(|state| (state.id, state.name, state.sessions)).collect();
        assert_eq!(states, expected);
    }
}

async fn the_same_resource_on_another_node_replaces_the_old_session(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    let kept = one.open("ann", "desk").await;
    let old = one.open_with("ann", "phone", &[number(1, 1)]).await;
    assert!(one.presence(old, Some(1), &[]).await);
    let new = two.open_with("ann", "phone", &[number(2, 2)]).await;
    for node in [&one, &two] {
        let row = node.address("ann", "phone").await.unwrap();
        assert_eq!((row.id, row.priority), (new, None));
        assert_eq!(row.info, BTreeMap::from([(2, OwnedValue::Number(2))]));
        assert_eq!(node.ids("ann").await, [new, kept]);
        assert_eq!(node.id(old).await, None);
    }
    assert_eq!(one.ended_by(&two).await, [(old, Ended::Replaced)]);
    assert_eq!(two.ended_by(&one).await, []);
    assert!(!one.close(old, Ended::Left).await);
    assert!(!one.merge(old, &[number(1, 1)]).await);
    let mut by_node = vec![(one.here(), 1), (two.here(), 1)];
    by_node.sort();
    assert_eq!(two.counts().await, Counts { sessions: 2, users: 1, by_node, is_complete: true });
}

/// Ids are ordered by the clocks of their nodes; the last session opened stays, whatever its clock shows.
async fn a_session_is_replaced_though_its_nodes_clock_is_ahead(subject: Subject) {
    let clock = Arc::new(ManualClock::new(Timestamp(4_000_000_000_000_000_000)));
    let ahead = Node::new(Config { clock: clock as Arc<dyn Clock>, ..subject.config() }).await;
    let node = subject.node().await;
    let old = ahead.open("ann", "phone").await;
    let of_ahead = ahead.open("ann", "desk").await;
    let new = node.open("ann", "phone").await;
    assert!(new < old);
    for look in [&node, &ahead] {
        assert_eq!(look.ids("ann").await, [of_ahead, new]);
        assert_eq!(look.address("ann", "phone").await.unwrap().id, new);
    }
    assert_eq!(ahead.ended_by(&node).await, [(old, Ended::Replaced)]);
    assert_eq!(node.ended_by(&ahead).await, []);
}

/// Opens at one address in a task of its own, and returns the ids.
fn open_again_and_again(node: &Arc<Node>, times: usize) -> tokio::task::JoinHandle<Vec<SessionId>> {
    let node = node.clone();
    tokio::spawn(async move {
        let mut opened = Vec::new();
        for _ in 0..times {
            opened.push(node.open("ann", "phone").await);
        }
        opened
    })
}

async fn there_is_no_moment_with_both_or_neither_of_two_nodes(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    let (one, two) = (Arc::new(one), Arc::new(two));
    let mut opened = vec![one.open("ann", "phone").await];
    let writers = [open_again_and_again(&one, 500), open_again_and_again(&two, 500)];
    while !writers.iter().all(|writer| writer.is_finished()) {
        for node in [&one, &two] {
            assert_eq!(node.ids("ann").await.len(), 1, "there is always exactly one");
            assert!(node.address("ann", "phone").await.is_some(), "there is always one");
        }
    }
    for writer in writers {
        opened.extend(writer.await.unwrap());
    }
    let left = one.ids("ann").await;
    assert_eq!((two.ids("ann").await, left.len()), (left.clone(), 1));
    for (node, other) in [(&one, &two), (&two, &one)] {
        let mut replaced: Vec<_> = opened.iter().filter(|id| id.node == node.here()).copied().collect();
        replaced.retain(|id| !left.contains(id));
        replaced.sort();
        let replaced: Vec<_> = replaced.into_iter().map(|id| (id, Ended::Replaced)).collect();
        assert_eq!(node.ended_by(other).await, replaced);
    }
}

async fn the_limit_counts_the_sessions_of_all_nodes(subject: Subject) {
    let (one, two) = (subject.node_with_limit(3).await, subject.node_with_limit(3).await);
    let mut ids = Vec::new();
    for (node, resource) in [(&one, "a"), (&two, "b"), (&one, "c"), (&two, "d"), (&two, "e")] {
        ids.push(node.open("ann", resource).await);
    }
    assert_eq!(one.ids("ann").await, [ids[4], ids[3], ids[2]]);
    assert_eq!(one.ended_by(&two).await, [(ids[0], Ended::Crowded)]);
    assert_eq!(two.ended_by(&one).await, [(ids[1], Ended::Crowded)]);
    assert_eq!(one.counts().await.sessions, 3);
}

async fn concurrent_opens_on_two_nodes_keep_the_limit(subject: Subject) {
    let mut tasks = Vec::new();
    let nodes = [Arc::new(subject.node_with_limit(4).await), Arc::new(subject.node_with_limit(4).await)];
    for task in 0..4 {
        let node = nodes[task % 2].clone();
        tasks.push(tokio::spawn(async move {
            let mut opened = Vec::new();
            for n in 0..25 {
                opened.push(node.open("ann", &format!("{task} {n}")).await);
            }
            opened
        }));
    }
    let mut opened = Vec::new();
    for task in tasks {
        opened.extend(soon("a task opens its sessions", task).await.unwrap());
    }
    let left = nodes[0].ids("ann").await;
    assert_eq!(left.len(), 4);
    let mut ended = nodes[0].ended_by(&nodes[1]).await;
    ended.extend(nodes[1].ended_by(&nodes[0]).await);
    ended.sort_by_key(|(id, _)| *id);
    let mut crowded: Vec<_> = opened.into_iter().filter(|id| !left.contains(id)).collect();
    crowded.sort();
    assert_eq!(ended, crowded.into_iter().map(|id| (id, Ended::Crowded)).collect::<Vec<_>>());
}

async fn a_session_can_be_closed_from_another_node(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    let id = one.open("ann", "phone").await;
    let kept = one.open("ann", "desk").await;
    assert!(two.close(id, Ended::Operator).await);
    assert!(!two.close(id, Ended::Operator).await);
    assert!(!one.close(id, Ended::Left).await);
    for node in [&one, &two] {
        assert_eq!((node.ids("ann").await, node.id(id).await), (vec![kept], None));
        assert_eq!(node.counts().await.by_node, [(one.here(), 1)]);
    }
    assert_eq!(one.ended_by(&two).await, [(id, Ended::Operator)]);
    assert_eq!(two.ended_by(&one).await, []);
}

async fn closing_for_another_node_tells_its_owner_why(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    let mut expected = Vec::new();
    for why in Ended::ALL {
        let id = one.open("ann", why.as_str()).await;
        assert!(two.close(id, why).await);
        if why != Ended::Left {
            expected.push((id, why));
        }
    }
    assert_eq!(one.ended_by(&two).await, expected);
    assert_eq!(two.ended_by(&one).await, []);
    assert_eq!(one.user("ann").await, []);
}

async fn closes_from_two_nodes_end_a_session_once(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    let (one, two) = (Arc::new(one), Arc::new(two));
    let mut expected = Vec::new();
    for round in 0..50 {
        let id = one.open("ann", &format!("{}", round % 3)).await;
        let close = |node: &Arc<Node>| {
            let node = node.clone();
            tokio::spawn(async move { node.close(id, Ended::Slow).await })
        };
        let (of_one, of_two) = (close(&one), close(&two));
        let ended = (of_one.await.unwrap(), of_two.await.unwrap());
        assert!(ended.0 ^ ended.1, "there was one session: {ended:?}");
        expected.push((id, Ended::Slow));
    }
    assert_eq!(one.ended_by(&two).await, expected);
    assert_eq!(two.ended_by(&one).await, []);
}

async fn a_delayed_close_from_another_node_leaves_the_new_session(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    let old = one.open("ann", "phone").await;
    let new = one.open("ann", "phone").await;
    assert!(!two.close(old, Ended::Operator).await);
    assert_eq!((one.ids("ann").await, two.ids("ann").await), (vec![new], vec![new]));
    assert_eq!(one.ended_by(&two).await, [(old, Ended::Replaced)]);
}

async fn sessions_of_another_node_can_not_be_changed(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    let id = one.open_with("ann", "phone", &[number(1, 1)]).await;
    let before = one.user("ann").await;
    assert!(!two.merge(id, &[number(1, 2)]).await);
    assert!(!two.presence(id, Some(1), &[]).await);
    assert_eq!((one.user("ann").await, two.user("ann").await), (before.clone(), before));
}

/// Each node changes its own session of one user.
async fn of_concurrent_changes_on_two_nodes_none_is_lost(subject: Subject) {
    const TIMES: u16 = 100;
    let (one, two) = subject.two_nodes().await;
    let mut tasks = Vec::new();
    let (one, two) = (Arc::new(one), Arc::new(two));
    for (node, resource) in [(&one, "a"), (&two, "b")] {
        let id = node.open("ann", resource).await;
        let node = node.clone();
        tasks.push(tokio::spawn(async move {
            for key in 0..TIMES {
                assert!(node.merge(id, &[number(key, i64::from(key))]).await);
            }
            assert!(node.presence(id, Some(7), &[]).await);
        }));
    }
    for task in tasks {
        soon("a task merges", task).await.unwrap();
    }
    let expected: BTreeMap<_, _> = (0..TIMES).map(|key| (key, OwnedValue::Number(i64::from(key)))).collect();
    for node in [&one, &two] {
        let rows = node.user("ann").await;
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.priority == Some(7) && row.info == expected), "{rows:?}");
    }
}

async fn all_returns_users_with_sessions_on_both_nodes_once(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    for user in ODD_NAMES {
        one.open(user, "one").await;
        two.open(user, "two").await;
    }
    one.open("of one", "one").await;
    two.open("of two", "two").await;
    for node in [&one, &two] {
        let all = node.all().await; // gathering them checks that no user is returned twice
        assert_eq!(all.len(), ODD_NAMES.len() + 2);
        for user in ODD_NAMES {
            assert_eq!((all[user].len(), &all[user]), (2, &node.user(user).await));
        }
    }
}

fn event(n: u8, channel: &str, topic: &str, body: Vec<u8>) -> Event {
    let timestamp = Timestamp(i64::MAX - i64::from(n));
    Event::new(channel.into(), topic.into(), MessageHash([n; 32]), timestamp, body.into())
}

/// Short and long, text and not.
fn events() -> Vec<Event> {
    let every_byte: Vec<u8> = (0..=255).collect();
    vec![
        event(0, "/waku/2/rs/1/0", "/app/1/chat/proto", b"hello".to_vec()),
        event(1, "", "", vec![]),
        event(2, "a:b\0c\r\n", "*?[]\\\"'", every_byte.clone()),
        event(3, "ユーザー", "é", every_byte.repeat(600)),
        event(255, &"c".repeat(200), &"t".repeat(500), vec![0; 1]),
    ]
}

async fn an_event_is_handed_to_the_owners_of_the_others(subject: Subject) {
    let (one, two) = subject.two_nodes().await;
    let three = subject.node().await;
    let mut expected: Vec<_> = events().iter().map(show).collect();
    expected.sort();
    for event in events() {
        one.nodes.broadcast(&event);
    }
    for other in [&two, &three] {
        until("the others receive them", || other.owner.heard().len() >= expected.len()).await;
        other.settle(&one).await;
        assert_eq!(other.owner.heard(), expected, "each received each event once, whole");
    }
    one.settle(&two).await;
    assert_eq!(one.owner.heard(), Vec::<String>::new(), "the sender receives nothing");
    two.nodes.broadcast(&events()[0]);
    until("the answer is received", || one.owner.heard() == [show(&events()[0])]).await;
}

async fn an_event_does_not_come_back_to_its_sender(subject: Subject) {
    let node = subject.node().await;
    for event in events() {
        node.nodes.broadcast(&event);
    }
    node.settle(&node).await;
    assert_eq!(node.owner.heard(), Vec::<String>::new());
}

async fn tables_with_other_names_share_nothing(subject: Subject) {
    let (one, other) = (subject.node().await, TestTable::new(subject.engine).node().await);
    let id = one.open("ann", "phone").await;
    let of_other = other.open("ann", "phone").await;
    assert_eq!((one.ids("ann").await, other.ids("ann").await), (vec![id], vec![of_other]));
    assert_eq!((one.counts().await.sessions, other.counts().await.sessions), (1, 1));
    assert_eq!(one.nodes.nodes().await.unwrap().len(), 1);
    one.nodes.broadcast(&events()[0]);
    assert!(one.close(id, Ended::Operator).await);
    assert_eq!(other.ids("ann").await, [of_other]);
    assert_eq!((other.ended_sessions().await, other.owner.heard()), (vec![], vec![]));
    assert_eq!(one.ended_sessions().await, [(id, Ended::Operator)]);
}
