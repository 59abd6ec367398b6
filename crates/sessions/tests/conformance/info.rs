//! What `set_presence` and `merge_info` promise.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use restante_core::ErrorKind;
use restante_sessions::{Ended, INFO_BYTES_MAX, InfoBuf, InfoKey, InfoValue, SessionId};

use crate::{
    Subject,
    common::{
        OwnedChange, OwnedInfo, OwnedValue, borrow_changes, change, forget, node::Node, number, soon, text,
    },
};

crate::promises! {
    any: [
        presence_is_kept,
        presence_and_info_change_in_one_step,
        info_is_extended_by_new_keys,
        info_is_replaced_for_keys_that_it_has,
        info_is_forgotten,
        of_two_changes_of_a_key_the_later_counts,
        a_merge_leaves_everything_else,
        empty_changes_return_whether_the_session_exists,
        sessions_that_are_gone_can_not_be_changed,
        all_kinds_of_values_are_kept,
        a_thousand_entries_are_kept,
        a_merge_is_never_seen_in_part,
        of_concurrent_merges_none_is_lost,
        of_concurrent_changes_of_neighbours_none_is_lost,
        concurrent_changes_of_presence_and_info_are_both_kept,
        info_that_is_too_large_is_refused_and_nothing_is_changed,
        info_may_take_all_that_is_allowed_and_not_a_byte_more,
        removed_entries_free_space,
    ],
    shared: []
}

async fn info(node: &Node, id: SessionId) -> OwnedInfo {
    node.id(id).await.expect("it is open").info
}

async fn presence_is_kept(subject: Subject) {
    let node = subject.node().await;
    let id = node.open_with("ann", "phone", &[number(1, 1)]).await;
    let before = node.id(id).await.unwrap();
    for priority in [Some(0), Some(127), None, Some(-128), Some(-1), Some(1), None] {
        assert!(node.presence(id, priority, &[]).await);
        let mut expected = before.clone();
        expected.priority = priority;
        assert_eq!(node.user("ann").await, [expected]);
    }
    assert_eq!(node.ended_sessions().await, []);
}

/// Every lookup finds the number equal to the priority.
async fn presence_and_info_change_in_one_step(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let id = node.open("ann", "phone").await;
    assert!(node.presence(id, Some(0), &[number(1, 0)]).await);
    let writer = {
        let node = node.clone();
        tokio::spawn(async move {
            for n in 0..1_000 {
                let priority = (n % 100) as i8;
                assert!(node.presence(id, Some(priority), &[number(1, i64::from(priority))]).await);
            }
        })
    };
    while !writer.is_finished() {
        let row = node.address("ann", "phone").await.unwrap();
        let priority = row.priority.expect("it is available");
        assert_eq!(row.info[&1], OwnedValue::Number(i64::from(priority)));
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
}

async fn info_is_extended_by_new_keys(subject: Subject) {
    let node = subject.node().await;
    let id = node.open_with("ann", "phone", &[number(5, 5)]).await;
    assert!(node.merge(id, &[number(9, 9), number(1, 1)]).await);
    assert!(node.presence(id, Some(1), &[number(7, 7)]).await);
    let expected = [1, 5, 7, 9].map(|key| (key, OwnedValue::Number(i64::from(key))));
    assert_eq!(info(&node, id).await, OwnedInfo::from(expected));
}

async fn info_is_replaced_for_keys_that_it_has(subject: Subject) {
    let node = subject.node().await;
    let id = node.open_with("ann", "phone", &[number(1, 1), text(2, "two"), number(3, 3)]).await;
    assert!(node.merge(id, &[text(2, "a longer two"), text(3, "three")]).await);
    let expected = [
        (1, OwnedValue::Number(1)),
        (2, OwnedValue::Text("a longer two".into())),
        (3, OwnedValue::Text("three".into())),
    ];
    assert_eq!(info(&node, id).await, OwnedInfo::from(expected));
}

async fn info_is_forgotten(subject: Subject) {
    let node = subject.node().await;
    let id = node.open_with("ann", "phone", &[number(1, 1), number(2, 2), number(3, 3)]).await;
    assert!(node.merge(id, &[forget(2), forget(4)]).await);
    let left = [(1, OwnedValue::Number(1)), (3, OwnedValue::Number(3))];
    assert_eq!(info(&node, id).await, OwnedInfo::from(left));
    assert!(node.presence(id, None, &[forget(1), forget(3)]).await);
    assert_eq!(info(&node, id).await, OwnedInfo::new());
}

async fn of_two_changes_of_a_key_the_later_counts(subject: Subject) {
    let node = subject.node().await;
    let id = node.open_with("ann", "phone", &[number(3, 0)]).await;
    let changes = [number(1, 1), forget(2), number(3, 3), number(1, 11), number(2, 22), forget(3)];
    assert!(node.merge(id, &changes).await);
    let expected = [(1, OwnedValue::Number(11)), (2, OwnedValue::Number(22))];
    assert_eq!(info(&node, id).await, OwnedInfo::from(expected));
}

async fn a_merge_leaves_everything_else(subject: Subject) {
    let node = subject.node().await;
    for resource in ["a", "b", "c"] {
        let id = node.open_with("ann", resource, &[text(1, resource)]).await;
        assert!(node.presence(id, Some(4), &[]).await);
    }
    node.open("bob", "b").await;
    let (mut of_ann, of_bob) = (node.user("ann").await, node.user("bob").await);
    assert!(node.merge(of_ann[1].id, &[text(2, "new")]).await);
    of_ann[1].info.insert(2, OwnedValue::Text("new".into()));
    assert_eq!((node.user("ann").await, node.user("bob").await), (of_ann, of_bob));
    assert_eq!(node.totals().await, (4, 2));
    assert_eq!(node.ended_sessions().await, []);
}

async fn empty_changes_return_whether_the_session_exists(subject: Subject) {
    let node = subject.node().await;
    let id = node.open_with("ann", "phone", &[number(1, 1)]).await;
    let before = node.user("ann").await;
    assert!(node.merge(id, &[]).await);
    assert!(node.presence(id, None, &[]).await);
    assert_eq!(node.user("ann").await, before);
    assert!(node.close(id, Ended::Left).await);
    assert!(!node.merge(id, &[]).await);
    assert!(!node.presence(id, None, &[]).await);
}

async fn sessions_that_are_gone_can_not_be_changed(subject: Subject) {
    let node = subject.node().await;
    let id = node.open("ann", "phone").await;
    assert!(node.close(id, Ended::Left).await);
    assert!(!node.merge(id, &[number(1, 1)]).await);
    assert!(!node.presence(id, Some(1), &[number(1, 1)]).await);
    assert_eq!((node.user("ann").await, node.totals().await), (vec![], (0, 0)));
}

fn odd_values() -> Vec<OwnedValue> {
    let mut values = Vec::new();
    for number in [0, 1, -1, 127, 128, -128, -129, 65_535, 1 << 31, 1 << 32, i64::MAX, i64::MIN] {
        values.push(OwnedValue::Number(number));
    }
    for len in [0, 1, 30, 31, 32, 255, 256, 1_000] {
        values.push(OwnedValue::Text("t".repeat(len)));
    }
    for text in ["é", "\0", "a\r\nb", "'\"\\*:", "\u{10ffff}", &"ユ".repeat(10), &"ユ".repeat(11)] {
        values.push(OwnedValue::Text(text.to_owned()));
    }
    for ip in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST] {
        values.push(OwnedValue::Address(SocketAddr::new(ip.into(), u16::MAX)));
    }
    for ip in [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, Ipv4Addr::LOCALHOST.to_ipv6_mapped()] {
        values.push(OwnedValue::Address(SocketAddr::new(ip.into(), 0)));
    }
    values
}

/// Each alone, and all of them together.
async fn all_kinds_of_values_are_kept(subject: Subject) {
    let node = subject.node().await;
    let id = node.open("ann", "phone").await;
    for value in odd_values() {
        assert!(node.merge(id, &[(InfoKey(7), Some(value.borrow()))]).await);
        assert_eq!(info(&node, id).await, OwnedInfo::from([(7, value)]));
    }
    let mut expected = OwnedInfo::new();
    for (n, value) in odd_values().into_iter().enumerate() {
        let key = [0, 1, 127, 128, 255, 256, 16_383, 16_384, u16::MAX].get(n).copied();
        let changes: [OwnedChange; 1] = [(key.unwrap_or(n as u16 + 1_000), Some(value))];
        assert!(node.merge(id, &borrow_changes(&changes)).await);
        change(&mut expected, &changes);
    }
    expected.entry(7).or_insert_with(|| odd_values().pop().expect("there are some"));
    assert_eq!(info(&node, id).await, expected);
}

async fn a_thousand_entries_are_kept(subject: Subject) {
    let node = subject.node().await;
    let id = node.open("ann", "phone").await;
    let mut expected = OwnedInfo::new();
    for step in 0..10_u16 {
        let entry = |n: u16| (n * 10 + step, Some(OwnedValue::Number(i64::from(n) - 50)));
        let changes: Vec<OwnedChange> = (0..100).map(entry).collect();
        assert!(node.merge(id, &borrow_changes(&changes)).await);
        change(&mut expected, &changes);
        assert_eq!(info(&node, id).await, expected);
    }
    assert_eq!(expected.len(), 1_000);
    let found = node.sessions.by_user("ann").await.unwrap();
    let session = found.first().unwrap();
    for (key, value) in &expected {
        assert_eq!(session.info.get(InfoKey(*key)), Some(value.borrow()));
    }
    let all_but_three: Vec<_> = (3..1_000).map(forget).collect();
    assert!(node.merge(id, &all_but_three).await);
    assert_eq!(info(&node, id).await.len(), 3);
}

async fn a_merge_is_never_seen_in_part(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let id = node.open_with("ann", "phone", &[number(1, 0), text(2, "")]).await;
    let writer = {
        let node = node.clone();
        tokio::spawn(async move {
            for n in 0..1_000 {
                let len = n * 7 % 200;
                let padding = "x".repeat(len);
                assert!(node.merge(id, &[number(1, len as i64), text(2, &padding)]).await);
            }
        })
    };
    while !writer.is_finished() {
        let info = node.address("ann", "phone").await.unwrap().info;
        let OwnedValue::Text(padding) = &info[&2] else { panic!("it is a text") };
        assert_eq!((&info[&1], info.len()), (&OwnedValue::Number(padding.len() as i64), 2));
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
}

/// Several tasks merge their own keys into each of the sessions concurrently.
async fn merge_at_once(node: &Arc<Node>, ids: &[SessionId], tasks: u16, times: u16) {
    let mut running = Vec::new();
    for task in 0..tasks {
        let (node, ids) = (node.clone(), ids.to_vec());
        running.push(tokio::spawn(async move {
            for time in 0..times {
                let key = task * times + time;
                for id in &ids {
                    assert!(node.merge(*id, &[number(key, i64::from(key)), forget(60_000)]).await);
                }
                tokio::task::yield_now().await;
            }
        }));
    }
    for task in running {
        soon("a task merges", task).await.unwrap();
    }
}

fn merged_at_once(tasks: u16, times: u16) -> OwnedInfo {
    (0..tasks * times).map(|key| (key, OwnedValue::Number(i64::from(key)))).collect()
}

async fn of_concurrent_merges_none_is_lost(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let id = node.open_with("ann", "phone", &[number(60_000, 0)]).await;
    merge_at_once(&node, &[id], 8, 40).await;
    assert_eq!(info(&node, id).await, merged_at_once(8, 40));
}

async fn of_concurrent_changes_of_neighbours_none_is_lost(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let mut ids = Vec::new();
    for resource in ["a", "b", "c"] {
        ids.push(node.open("ann", resource).await);
    }
    let coming_and_going = {
        let node = node.clone();
        tokio::spawn(async move {
            for n in 0..100 {
                let id = node.open_with("ann", "d", &[number(1, n)]).await;
                assert!(node.close(id, Ended::Left).await);
            }
        })
    };
    merge_at_once(&node, &ids, 4, 30).await;
    soon("the neighbour comes and goes", coming_and_going).await.unwrap();
    ids.reverse();
    assert_eq!(node.ids("ann").await, ids);
    for id in ids {
        assert_eq!(info(&node, id).await, merged_at_once(4, 30));
    }
}

async fn concurrent_changes_of_presence_and_info_are_both_kept(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let id = node.open("ann", "phone").await;
    let presences = {
        let node = node.clone();
        tokio::spawn(async move {
            for n in 0..=120 {
                assert!(node.presence(id, Some(n), &[]).await);
            }
        })
    };
    merge_at_once(&node, &[id], 2, 60).await;
    soon("presences change", presences).await.unwrap();
    let row = node.id(id).await.unwrap();
    assert_eq!((row.priority, row.info), (Some(120), merged_at_once(2, 60)));
}

async fn info_that_is_too_large_is_refused_and_nothing_is_changed(subject: Subject) {
    let node = subject.node().await;
    let half = "h".repeat(INFO_BYTES_MAX / 2);
    let whole = "w".repeat(INFO_BYTES_MAX);
    let id = node.open_with("ann", "phone", &[text(1, &half), number(2, 2)]).await;
    assert!(node.presence(id, Some(5), &[]).await);
    let before = node.user("ann").await;
    let refused =
        [vec![text(3, &half)], vec![number(2, 3), text(3, &whole)], vec![forget(2), text(3, &half)]];
    for changes in &refused {
        let merged = node.sessions.merge_info(id, changes).await.map_err(|error| error.kind());
        assert_eq!(merged, Err(ErrorKind::Full));
        let present = node.sessions.set_presence(id, None, changes).await.map_err(|error| error.kind());
        assert_eq!(present, Err(ErrorKind::Full));
        assert_eq!(node.user("ann").await, before);
    }
    assert!(node.merge(id, &[number(2, 3)]).await, "it is open as before");
    assert_eq!(node.ended_sessions().await, []);
}

/// The longest text that fits into an info.
fn longest_text() -> String {
    let fits = |len: usize| InfoBuf::new().merge(&[text(1, &"x".repeat(len))]).is_ok();
    let len = (0..=INFO_BYTES_MAX).rev().find(|len| fits(*len));
    "x".repeat(len.expect("a short text fits"))
}

async fn info_may_take_all_that_is_allowed_and_not_a_byte_more(subject: Subject) {
    let node = subject.node().await;
    let longest = longest_text();
    let longer = format!("{longest}x");
    assert!(longest.len() > INFO_BYTES_MAX - 16);
    let brought = node.open_with("ann", "brought", &[text(1, &longest)]).await;
    let merged = node.open_with("ann", "merged", &[number(1, 1)]).await;
    assert!(node.merge(merged, &[text(1, &longest)]).await);
    for id in [brought, merged] {
        assert_eq!(info(&node, id).await, OwnedInfo::from([(1, OwnedValue::Text(longest.clone()))]));
        for changes in [text(1, &longer), number(2, 0)] {
            let refused = node.sessions.merge_info(id, &[changes]).await.map_err(|error| error.kind());
            assert_eq!(refused, Err(ErrorKind::Full));
        }
    }
    let refused = node.try_open("ann", "third", &[text(1, &longer)]).await.map_err(|error| error.kind());
    assert_eq!((refused, node.totals().await), (Err(ErrorKind::Full), (2, 1)));
}

async fn removed_entries_free_space(subject: Subject) {
    let node = subject.node().await;
    let longest = longest_text();
    let id = node.open_with("ann", "phone", &[text(1, &longest)]).await;
    assert!(node.merge(id, &[text(2, &longest), forget(1)]).await);
    assert_eq!(info(&node, id).await, OwnedInfo::from([(2, OwnedValue::Text(longest.clone()))]));
    // The first text is never stored: the second replaces it in the same change.
    assert!(node.merge(id, &[forget(2), text(3, &longest), text(3, "short")]).await);
    let twice = [text(3, &longest), text(3, &longest)];
    assert!(node.merge(id, &twice).await, "what counts is what the info takes afterwards");
    let long = InfoValue::Text(&longest);
    assert_eq!(info(&node, id).await, OwnedInfo::from([(3, long.into())]));
}
