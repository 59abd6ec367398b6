//! Promises of `counts` and `nodes`.

use std::sync::Arc;

use restante_core::ErrorKind;
use restante_sessions::{Config, Counts, Ended, INFO_BYTES_MAX};

use crate::{
    Subject,
    common::{node::Node, number, soon, text},
};

crate::promises! {
    any: [
        an_empty_table_counts_zero,
        counts_follow_every_change,
        counts_are_right_after_concurrent_changes,
        counts_follow_the_growth_and_shrinking_of_a_table,
        a_node_is_one_of_the_nodes,
        a_node_reports_how_many_sessions_it_has,
        a_node_that_lives_is_not_swept,
        a_heartbeat_changes_nothing,
    ],
    shared: []
}

async fn an_empty_table_counts_zero(subject: Subject) {
    let node = subject.node().await;
    let nothing = Counts { sessions: 0, users: 0, by_node: vec![], is_complete: true };
    assert_eq!(node.counts().await, nothing);
    let id = node.open("ann", "phone").await;
    let one = Counts { sessions: 1, users: 1, by_node: vec![(node.here(), 1)], is_complete: true };
    assert_eq!(node.counts().await, one);
    assert!(node.close(id, Ended::Left).await);
    assert_eq!(node.counts().await, nothing, "a node without sessions is not among those that have some");
}

async fn counts_follow_every_change(subject: Subject) {
    let node = subject.node_with_limit(2).await;
    let phone = node.open("ann", "phone").await;
    assert_eq!(node.totals().await, (1, 1));
    let desk = node.open("ann", "desk").await;
    assert_eq!(node.totals().await, (2, 1));
    let of_bob = node.open("bob", "phone").await;
    assert_eq!(node.totals().await, (3, 2));
    let again = node.open("ann", "phone").await;
    assert_eq!(node.totals().await, (3, 2), "it was replaced");
    let third = node.open("ann", "watch").await;
    assert_eq!(node.totals().await, (3, 2), "the oldest was crowded out");
    assert!(node.presence(again, Some(1), &[number(1, 1)]).await);
    assert!(node.merge(third, &[number(1, 1)]).await);
    assert_eq!(node.totals().await, (3, 2), "they were changed");
    let long = "x".repeat(INFO_BYTES_MAX);
    let refused = node.try_open("cid", "phone", &[text(1, &long)]).await.map_err(|error| error.kind());
    assert_eq!((refused, node.totals().await), (Err(ErrorKind::Full), (3, 2)));
    for gone in [phone, desk] {
        assert!(!node.close(gone, Ended::Left).await);
        assert_eq!(node.totals().await, (3, 2), "it was closed already");
    }
    assert!(node.close(of_bob, Ended::Operator).await);
    assert_eq!(node.totals().await, (2, 1));
    assert!(node.close(again, Ended::Left).await);
    assert_eq!(node.totals().await, (1, 1));
    assert!(node.close(third, Ended::Left).await);
    assert_eq!(node.totals().await, (0, 0));
}

/// Tasks open and close sessions of the same users, each with its own resources; every third session stays open.
async fn counts_are_right_after_concurrent_changes(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let mut tasks = Vec::new();
    for task in 0..6 {
        let node = node.clone();
        tasks.push(tokio::spawn(async move {
            for n in 0..60 {
                let id = node.open(&format!("user {}", n % 10), &format!("{task} {n}")).await;
                if n % 3 > 0 {
                    assert!(node.close(id, Ended::Left).await);
                }
            }
        }));
    }
    for task in tasks {
        soon("a task opens and closes", task).await.unwrap();
    }
    assert_eq!(node.totals().await, (6 * 20, 10));
    let all = node.all().await;
    assert_eq!(all.values().map(Vec::len).sum::<usize>(), 6 * 20);
}

async fn counts_follow_the_growth_and_shrinking_of_a_table(subject: Subject) {
    let node = subject.node().await;
    for round in 1..=3 {
        let mut ids = Vec::new();
        for n in 0..round * 200_u64 {
            ids.push(node.open(&format!("user {n}"), "phone").await);
            assert_eq!(node.totals().await, (n + 1, n + 1));
        }
        while let Some(id) = ids.pop() {
            assert!(node.close(id, Ended::Left).await);
            assert_eq!(node.totals().await, (ids.len() as u64, ids.len() as u64));
        }
    }
}

async fn a_node_is_one_of_the_nodes(subject: Subject) {
    let node = Node::new(Config { node_name: "north: *'\" é".to_owned(), ..subject.config() }).await;
    let state = node.seen_by(&node).await.expect("it is one of the nodes");
    assert_eq!((&*state.name, state.sessions), ("north: *'\" é", 0));
    assert!(state.is_living(), "its lease runs");
    node.nodes.health().unwrap();
}

async fn a_node_reports_how_many_sessions_it_has(subject: Subject) {
    let node = subject.node().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(node.open("ann", &n.to_string()).await);
        assert_eq!(node.seen_by(&node).await.unwrap().sessions, n + 1);
    }
    assert!(node.close(ids[2], Ended::Left).await);
    assert_eq!(node.seen_by(&node).await.unwrap().sessions, 4);
}

async fn a_node_that_lives_is_not_swept(subject: Subject) {
    let node = subject.node().await;
    let id = node.open("ann", "phone").await;
    for _ in 0..3 {
        assert_eq!(node.nodes.sweep().await.unwrap(), 0);
    }
    assert_eq!((node.ids("ann").await, node.totals().await), (vec![id], (1, 1)));
    assert_eq!(node.ended_sessions().await, []);
}

async fn a_heartbeat_changes_nothing(subject: Subject) {
    let node = subject.node().await;
    let id = node.open_with("ann", "phone", &[number(1, 1)]).await;
    node.open("ann", "desk").await;
    assert!(node.presence(id, Some(3), &[]).await);
    let before = (node.user("ann").await, node.counts().await);
    for _ in 0..3 {
        node.nodes.heartbeat().await.unwrap();
    }
    assert_eq!((node.user("ann").await, node.counts().await), before);
    assert_eq!(node.ended_sessions().await, []);
}
