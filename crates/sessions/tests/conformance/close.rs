//! What `close` promises.

use std::sync::Arc;

use restante_sessions::{Ended, NodeId, SessionId};

use crate::{
    Subject,
    common::{number, soon},
};

crate::promises! {
    any: [
        a_closed_session_is_found_no_more,
        closing_returns_whether_a_session_existed,
        closing_one_session_leaves_the_others,
        ids_that_were_never_assigned_have_no_session,
        a_delayed_close_leaves_the_session_that_replaced_it,
        what_was_replaced_or_crowded_can_not_be_changed,
        the_owner_is_notified_with_the_reason,
        the_owner_is_not_notified_when_a_session_leaves,
        concurrent_closes_end_a_session_once,
        a_close_and_a_replacement_at_once_end_a_session_once,
        a_closed_client_gets_a_new_session,
    ],
    shared: []
}

async fn a_closed_session_is_found_no_more(subject: Subject) {
    let node = subject.node().await;
    let id = node.open_with("ann", "phone", &[number(1, 1)]).await;
    assert!(node.close(id, Ended::Left).await);
    assert_eq!(node.user("ann").await, []);
    assert_eq!(node.address("ann", "phone").await, None);
    assert_eq!(node.id(id).await, None);
    assert_eq!(node.all().await.len(), 0);
    assert_eq!(node.totals().await, (0, 0));
}

async fn closing_returns_whether_a_session_existed(subject: Subject) {
    let node = subject.node().await;
    let id = node.open("ann", "phone").await;
    assert!(node.close(id, Ended::Operator).await);
    assert!(!node.close(id, Ended::Operator).await);
    assert!(!node.close(id, Ended::Left).await);
    assert_eq!(node.ended_sessions().await, [(id, Ended::Operator)]);
}

async fn closing_one_session_leaves_the_others(subject: Subject) {
    let node = subject.node().await;
    let phone = node.open_with("ann", "phone", &[number(1, 1)]).await;
    let desk = node.open_with("ann", "desk", &[number(1, 2)]).await;
    let watch = node.open_with("ann", "watch", &[number(1, 3)]).await;
    let of_bob = node.open("bob", "desk").await;
    let before = node.user("ann").await;
    assert!(node.close(desk, Ended::Left).await);
    assert_eq!(node.user("ann").await, [before[0].clone(), before[2].clone()]);
    assert!(node.close(watch, Ended::Left).await);
    assert_eq!(node.user("ann").await, [before[2].clone()]);
    assert_eq!((node.ids("ann").await, node.ids("bob").await), (vec![phone], vec![of_bob]));
    assert_eq!(node.totals().await, (2, 2));
}

/// Ids near assigned ones, and far from all of them.
async fn ids_that_were_never_assigned_have_no_session(subject: Subject) {
    let node = subject.node().await;
    let id = node.open("ann", "phone").await;
    let before = node.user("ann").await;
    let others = [
        SessionId { opened_us: id.opened_us - 1, ..id },
        SessionId { opened_us: id.opened_us + 1, ..id },
        SessionId { node: NodeId(id.node.0 ^ 1), ..id },
        SessionId { node: NodeId(u32::MAX), ..id },
        SessionId { user_hash: id.user_hash ^ 1, ..id },
        SessionId { user_hash: id.user_hash ^ 1 << 31, ..id },
        SessionId { user_hash: !id.user_hash, ..id },
        SessionId::from_bytes([0; 16]),
        SessionId::from_bytes([0xff; 16]),
    ];
    for other in others {
        assert_eq!(node.id(other).await, None, "{other} near {id}");
        assert!(!node.close(other, Ended::Operator).await, "{other} near {id}");
        assert!(!node.merge(other, &[number(1, 1)]).await, "{other} near {id}");
        assert!(!node.presence(other, Some(1), &[]).await, "{other} near {id}");
    }
    assert_eq!(node.user("ann").await, before);
    assert_eq!(node.ended_sessions().await, []);
}

async fn a_delayed_close_leaves_the_session_that_replaced_it(subject: Subject) {
    let node = subject.node().await;
    let old = node.open("ann", "phone").await;
    let new = node.open("ann", "phone").await;
    assert!(!node.close(old, Ended::Left).await);
    assert!(!node.close(old, Ended::Operator).await);
    assert_eq!((node.ids("ann").await, node.totals().await), (vec![new], (1, 1)));
    assert_eq!(node.ended_sessions().await, [(old, Ended::Replaced)]);
}

async fn what_was_replaced_or_crowded_can_not_be_changed(subject: Subject) {
    let node = subject.node_with_limit(2).await;
    let crowded = node.open("ann", "desk").await;
    let replaced = node.open("ann", "phone").await;
    node.open("ann", "phone").await;
    node.open("ann", "watch").await;
    let before = node.user("ann").await;
    for id in [crowded, replaced] {
        assert!(!node.merge(id, &[number(1, 1)]).await);
        assert!(!node.presence(id, Some(1), &[number(1, 1)]).await);
        assert!(!node.close(id, Ended::Left).await);
        assert_eq!(node.id(id).await, None);
    }
    assert_eq!(node.user("ann").await, before);
}

async fn the_owner_is_notified_with_the_reason(subject: Subject) {
    let node = subject.node().await;
    let mut ended = Vec::new();
    for why in Ended::ALL {
        let id = node.open("ann", why.as_str()).await;
        assert!(node.close(id, why).await);
        assert!(!node.close(id, why).await);
        if why != Ended::Left {
            ended.push((id, why));
        }
    }
    assert_eq!(node.ended_sessions().await, ended);
}

async fn the_owner_is_not_notified_when_a_session_leaves(subject: Subject) {
    let node = subject.node().await;
    for n in 0..10 {
        let id = node.open("ann", &n.to_string()).await;
        assert!(node.close(id, Ended::Left).await);
    }
    assert_eq!(node.ended_sessions().await, []);
}

async fn concurrent_closes_end_a_session_once(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let mut expected = Vec::new();
    for round in 0..50 {
        let id = node.open("ann", &format!("{}", round % 3)).await;
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let node = node.clone();
            tasks.push(tokio::spawn(async move { node.close(id, Ended::Slow).await }));
        }
        let mut ended = 0;
        for task in tasks {
            ended += usize::from(soon("a close is answered", task).await.unwrap());
        }
        assert_eq!(ended, 1, "there was one session in round {round}");
        expected.push((id, Ended::Slow));
    }
    assert_eq!(node.totals().await, (0, 0));
    assert_eq!(node.ended_sessions().await, expected);
}

async fn a_close_and_a_replacement_at_once_end_a_session_once(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let mut opened = vec![node.open("ann", "phone").await];
    for round in 0..200 {
        let (closing, opening) = (node.clone(), node.clone());
        let old = opened[round];
        let close = tokio::spawn(async move { closing.close(old, Ended::Operator).await });
        let open = tokio::spawn(async move { opening.open("ann", "phone").await });
        let was_closed = soon("the close is answered", close).await.unwrap();
        opened.push(soon("the open is answered", open).await.unwrap());
        assert_eq!(node.ids("ann").await, opened[round + 1..], "round {round}");
        let why = if was_closed { Ended::Operator } else { Ended::Replaced };
        let ended = node.ended_sessions().await;
        assert_eq!(ended.len(), round + 1, "each is reported once");
        assert_eq!(ended[round], (old, why), "round {round}");
    }
}

async fn a_closed_client_gets_a_new_session(subject: Subject) {
    let node = subject.node().await;
    let before = node.open_with("ann", "phone", &[number(1, 1)]).await;
    assert!(node.presence(before, Some(3), &[]).await);
    assert!(node.close(before, Ended::Left).await);
    let after = node.open("ann", "phone").await;
    let row = node.address("ann", "phone").await.unwrap();
    assert!(after > before);
    assert_eq!((row.id, row.priority, row.info.len()), (after, None, 0));
    assert!(!node.close(before, Ended::Left).await);
    assert_eq!((node.ids("ann").await, node.totals().await), (vec![after], (1, 1)));
}
