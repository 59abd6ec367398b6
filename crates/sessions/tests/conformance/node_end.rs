//! What holds when a node ends cleanly, dies, or stops for a while.

use std::sync::atomic::{AtomicU64, Ordering};

use restante_sessions::{Ended, NodeId};

use crate::{
    Subject,
    common::{eventually, node::Node, number, text, until},
};

crate::promises! {
    any: [
        a_node_that_closes_ends_its_sessions_without_notifications,
    ],
    shared: [
        a_node_that_closes_leaves_the_sessions_of_the_others,
        sessions_of_a_dead_node_are_found_no_more,
        sessions_of_a_dead_node_are_swept,
        several_nodes_may_sweep_at_once,
        the_address_of_a_dead_nodes_session_is_free,
        sessions_of_a_dead_node_do_not_count_for_the_limit,
        a_node_that_comes_back_is_found_again,
        a_replaced_session_of_a_node_taken_for_dead_stays_ended,
        what_was_opened_and_closed_meanwhile_is_known_to_the_others,
    ]
}

async fn a_node_that_closes_ends_its_sessions_without_notifications(subject: Subject) {
    let node = subject.node().await;
    let mut ids = Vec::new();
    for user in ["ann", "bob"] {
        for resource in ["phone", "desk"] {
            ids.push(node.open(user, resource).await);
        }
    }
    node.settle(&node).await;
    node.nodes.close().await.unwrap();
    assert!(node.sessions.by_user("ann").await.unwrap().is_empty(), "it finds nothing itself");
    let counts = node.sessions.counts().await.unwrap();
    assert_eq!((counts.sessions, counts.users, counts.by_node), (0, 0, vec![]));
    let next = subject.node().await;
    for user in ["ann", "bob"] {
        assert_eq!(next.user(user).await, []);
    }
    for id in ids {
        assert_eq!(next.id(id).await, None);
    }
    assert_eq!((next.totals().await, next.all().await.len()), ((0, 0), 0));
    assert_eq!(next.ended_sessions().await, []);
    assert_eq!(node.owner.ended_sessions(), []);
}

async fn a_node_that_closes_leaves_the_sessions_of_the_others(subject: Subject) {
    let (node, leaving) = subject.two_nodes().await;
    let phone = node.open("ann", "phone").await;
    leaving.open("ann", "desk").await;
    leaving.open("bob", "desk").await;
    leaving.nodes.close().await.unwrap();
    assert_eq!((node.ids("ann").await, node.user("bob").await), (vec![phone], vec![]));
    assert_eq!(node.totals().await, (1, 1));
    assert_eq!(node.nodes.sweep().await.unwrap(), 0, "it has left nothing behind");
    let state = leaving.seen_by(&node).await;
    assert!(state.is_none_or(|state| !state.is_living()), "its lease has ended");
    assert_eq!((node.ended_sessions().await, leaving.owner.ended_sessions()), (vec![], vec![]));
}

/// Opens sessions of one user on both nodes, and of another on the node that is to end.
async fn fill(node: &Node, ending: &Node) {
    node.open("ann", "phone").await;
    for (user, resource) in [("ann", "desk"), ("ann", "watch: *\0"), ("bob", "desk")] {
        let id = ending.open_with(user, resource, &[text(1, resource)]).await;
        assert!(ending.presence(id, Some(1), &[number(2, 2)]).await);
    }
    assert_eq!((node.user("ann").await.len(), node.user("bob").await.len()), (3, 1));
}

/// Waits until the lease of a node has expired.
async fn missed(node: &Node, ended: NodeId) {
    eventually("the lease runs out", async || {
        let states = node.nodes.nodes().await.unwrap();
        states.iter().all(|state| state.id != ended || !state.is_living())
    })
    .await;
}

/// Waits until nothing is left of a node whose lease has expired, and returns how many sessions were swept here.
async fn swept(node: &Node, ended: NodeId) -> u64 {
    let removed = AtomicU64::new(0);
    eventually("it is swept", async || {
        removed.fetch_add(node.nodes.sweep().await.unwrap(), Ordering::Relaxed);
        let states = node.nodes.nodes().await.unwrap();
        states.iter().all(|state| state.id != ended || state.sessions == 0)
    })
    .await;
    assert_eq!(node.nodes.sweep().await.unwrap(), 0, "nothing is left to be swept");
    removed.into_inner()
}

async fn sessions_of_a_dead_node_are_found_no_more(subject: Subject) {
    let (node, mortal) = (subject.node().await, subject.mortal_node().await);
    fill(&node, &mortal.node).await;
    let of_bob = mortal.node.ids("bob").await[0];
    let phone = node.address("ann", "phone").await.unwrap();
    let dead = mortal.node.here();
    mortal.die();
    eventually("they are gone by user", async || node.user("bob").await.is_empty()).await;
    eventually("they are gone beside others", async || node.user("ann").await == [phone.clone()]).await;
    eventually("they are gone by address", async || node.address("bob", "desk").await.is_none()).await;
    eventually("they are gone by id", async || node.id(of_bob).await.is_none()).await;
    eventually("they are gone from all", async || {
        let all = node.all().await;
        all.len() == 1 && all["ann"] == [phone.clone()]
    })
    .await;
    eventually("they are not counted", async || {
        let counts = node.counts().await;
        counts.sessions == 1 && counts.by_node.iter().all(|(node, _)| *node != dead)
    })
    .await;
    assert_eq!(node.ended_sessions().await, [], "no session of this node has ended");
}

async fn sessions_of_a_dead_node_are_swept(subject: Subject) {
    let (node, mortal) = (subject.node().await, subject.mortal_node().await);
    fill(&node, &mortal.node).await;
    let dead = mortal.node.here();
    mortal.die();
    missed(&node, dead).await;
    assert!(swept(&node, dead).await <= 3, "it had three");
    assert_eq!(node.totals().await, (1, 1));
    assert_eq!((node.user("ann").await.len(), node.user("bob").await.len()), (1, 0));
}

async fn several_nodes_may_sweep_at_once(subject: Subject) {
    const SESSIONS: u64 = 400;
    let (one, two) = subject.two_nodes().await;
    let mortal = subject.mortal_node().await;
    let kept = one.open("user 0", "kept").await;
    for n in 0..SESSIONS {
        mortal.node.open(&format!("user {}", n % 150), &n.to_string()).await;
    }
    let dead = mortal.node.here();
    mortal.die();
    missed(&one, dead).await;
    let (of_one, of_two) = tokio::join!(swept(&one, dead), swept(&two, dead));
    assert!(of_one + of_two <= SESSIONS, "each is removed once");
    assert_eq!(one.totals().await, (1, 1));
    assert_eq!((two.counts().await, two.ids("user 0").await), (one.counts().await, vec![kept]));
}

async fn the_address_of_a_dead_nodes_session_is_free(subject: Subject) {
    let (node, mortal) = (subject.node().await, subject.mortal_node().await);
    let before = mortal.node.open_with("ann", "phone", &[number(1, 1)]).await;
    let dead = mortal.node.here();
    mortal.die();
    missed(&node, dead).await;
    let after = node.open("ann", "phone").await;
    assert!(!node.close(before, Ended::Operator).await, "it ended with its node");
    swept(&node, dead).await;
    assert_eq!(node.totals().await, (1, 1));
    let row = node.address("ann", "phone").await.unwrap();
    assert_eq!((row.id, row.info.len(), node.ids("ann").await), (after, 0, vec![after]));
}

async fn sessions_of_a_dead_node_do_not_count_for_the_limit(subject: Subject) {
    let (node, mortal) = (subject.node_with_limit(2).await, subject.mortal_node().await);
    let kept = node.open("ann", "kept").await;
    mortal.node.open("ann", "lost").await;
    let dead = mortal.node.here();
    mortal.die();
    missed(&node, dead).await;
    let new = node.open("ann", "new").await;
    assert_eq!((node.ids("ann").await, node.ended_sessions().await), (vec![new, kept], vec![]));
}

async fn a_node_that_comes_back_is_found_again(subject: Subject) {
    let (node, mortal) = (subject.node().await, subject.mortal_node().await);
    fill(&node, &mortal.node).await;
    let before = (node.user("ann").await, node.user("bob").await, node.counts().await);
    let standstill = mortal.stand_still().await;
    missed(&node, mortal.node.here()).await;
    swept(&node, mortal.node.here()).await;
    assert_eq!(node.totals().await, (1, 1));
    drop(standstill);
    eventually("its heart beats", async || mortal.node.nodes.heartbeat().await.is_ok()).await;
    for look in [&node, &mortal.node] {
        let after = (look.user("ann").await, look.user("bob").await, look.counts().await);
        assert_eq!(after, before, "it has written down again what was forgotten");
    }
    assert_eq!((node.ended_sessions().await, mortal.node.ended_sessions().await), (vec![], vec![]));
}

/// A session whose node was considered dead was replaced: it is not registered again.
async fn a_replaced_session_of_a_node_taken_for_dead_stays_ended(subject: Subject) {
    let (node, mortal) = (subject.node().await, subject.mortal_node().await);
    let old = mortal.node.open("ann", "phone").await;
    let kept = mortal.node.open("ann", "desk").await;
    let standstill = mortal.stand_still().await;
    missed(&node, mortal.node.here()).await;
    let new = node.open("ann", "phone").await;
    drop(standstill);
    eventually("its heart beats", async || mortal.node.nodes.heartbeat().await.is_ok()).await;
    for look in [&node, &mortal.node] {
        assert_eq!(look.ids("ann").await, [new, kept]);
        assert_eq!((look.id(old).await, look.counts().await.sessions), (None, 2));
    }
    until("its owner is notified", || !mortal.node.owner.ended_sessions().is_empty()).await;
    let ended = mortal.node.ended_by(&node).await;
    assert!(matches!(ended[..], [(id, Ended::Replaced | Ended::Lost)] if id == old), "{ended:?}");
    assert_eq!(node.ended_by(&mortal.node).await, []);
    assert!(!mortal.node.close(old, Ended::Left).await);
}

/// Clients connect and leave, though the other nodes consider this node dead.
async fn what_was_opened_and_closed_meanwhile_is_known_to_the_others(subject: Subject) {
    let (node, mortal) = (subject.node().await, subject.mortal_node().await);
    let closed = mortal.node.open("ann", "phone").await;
    let standstill = mortal.stand_still().await;
    missed(&node, mortal.node.here()).await;
    node.nodes.sweep().await.unwrap();
    drop(standstill);
    mortal.node.close(closed, Ended::Left).await; // whether others have ended it before doesn't matter
    let opened = mortal.node.open("bob", "phone").await;
    eventually("its heart beats", async || mortal.node.nodes.heartbeat().await.is_ok()).await;
    assert!(opened > closed);
    for look in [&node, &mortal.node] {
        assert_eq!((look.ids("ann").await, look.ids("bob").await), (vec![], vec![opened]));
        assert_eq!(look.counts().await.by_node, [(mortal.node.here(), 1)]);
    }
}
