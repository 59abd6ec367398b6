//! The requests to Redis, what it stores, and that nothing is left over.

use futures_util::FutureExt;
use restante_core::{ErrorKind, nonzero};
use restante_sessions::{Ended, InfoChange, InfoKey, InfoValue, NewSession, SessionId};

use crate::{
    Subject,
    common::{eventually, node::Node, number, until},
    event, metric, proxied, proxied_url,
    proxy::Proxy,
    raw,
};

/// The most bytes of a session in Redis.
const SESSION_BYTES_MAX: u64 = 520;

pub(crate) async fn a_session_takes_at_most_520_bytes_of_redis(table: Subject) {
    let some: [InfoChange<'_>; 3] = [
        (InfoKey::DOOR, Some(InfoValue::Text("waku_filter"))),
        (InfoKey::ADDRESS, Some(InfoValue::Address("192.0.2.7:60123".parse().unwrap()))),
        (InfoKey::TOPICS, Some(InfoValue::Number(12))),
    ];
    const SESSIONS: u64 = 3_000;
    let none: &[InfoChange<'_>] = &[];
    for info in [none, &some] {
        let node = table.node().await;
        for number in 0..SESSIONS {
            node.open_with(&format!("user{number:09}"), "conversatio", info).await;
        }
        let mut raw = raw(&table);
        let keys = raw.keys();
        let bytes = raw.bytes(&keys) / SESSIONS;
        println!("{} entries of info: {bytes} bytes for each session", info.len());
        assert!(bytes <= SESSION_BYTES_MAX, "{bytes}");
        node.nodes.close().await.unwrap();
        assert!(raw.keys().is_empty(), "{:?}", raw.keys());
    }
}

pub(crate) async fn each_operation_is_one_request(table: Subject) {
    let config = table.config();
    let metrics = config.metrics.clone();
    let node = Node::new(config).await;
    let requests = || -> f64 {
        let ops = ["open", "update", "close", "by_user", "by_address", "by_id", "leases", "nodes", "page"];
        let name = |op| format!(r#"restante_sessions_redis_requests_total{{op="{op}",result="ok"}}"#);
        ops.iter().map(|op| metric(&metrics, &name(op))).sum()
    };
    let before = requests();
    node.open("u", "r").await;
    let id = node.open("u", "r").await; // replaces the first
    assert_eq!(requests() - before, 2.0);
    node.merge(id, &[number(1, 1)]).await;
    node.presence(id, Some(1), &[]).await;
    assert_eq!(requests() - before, 4.0);
    node.user("u").await;
    node.address("u", "r").await.unwrap();
    node.id(id).await.unwrap();
    node.counts().await;
    assert_eq!(requests() - before, 8.0);
    node.close(id, Ended::Left).await;
    assert_eq!(requests() - before, 9.0);
}

pub(crate) async fn nothing_stays_of_sessions_that_have_ended(table: Subject) {
    let (node, other) = table.two_nodes().await;
    let a = node.open("u", "a").await;
    let b = node.open("u", "b").await;
    other.open("u", "a").await; // replaces a
    assert!(other.close(b, Ended::Operator).await);
    node.ended_by(&other).await;
    assert!(!node.close(a, Ended::Left).await);
    other.nodes.close().await.unwrap();
    node.nodes.heartbeat().await.unwrap();
    let mut raw = raw(&table);
    assert_eq!(raw.keys(), [raw.lease(node.here()), raw.key("nodes")]);
    node.nodes.close().await.unwrap();
    assert!(raw.keys().is_empty(), "{:?}", raw.keys());
    node.nodes.close().await.unwrap();
    assert_eq!(node.nodes.health().unwrap_err().kind(), ErrorKind::Unavailable);
}

pub(crate) async fn a_dropped_table_ends_all_its_tasks(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    let mut config = proxied(&table, &proxy);
    config.redis.lease_ms = nonzero!(3_000);
    let node = Node::new(config).await;
    let other = table.node().await;
    let here = node.here();
    for number in 0..300 {
        node.open(&format!("u{number}"), "r").await;
    }
    assert_eq!(other.counts().await.sessions, 300);
    drop(node);
    until("its connections end", || proxy.connections() == 0).await;
    let mut raw = raw(&table);
    let lease = raw.lease(here);
    until_gone(&mut raw, &lease).await;
    // From this moment on, without waiting for a heartbeat.
    assert!(other.ids("u0").await.is_empty());
    assert!(other.address("u1", "r").await.is_none());
    assert_eq!(other.counts().await.by_node, []);
    assert!(other.all().await.is_empty());
    // Its sessions are removed without being requested.
    let (index, user) = (raw.index(here), raw.key("u:u0"));
    until_gone(&mut raw, &index).await;
    until_gone(&mut raw, &user).await;
    assert!(!raw.has(&raw.key("users")));
    eventually("the node is forgotten", async || other.nodes.nodes().await.unwrap().len() == 1).await;
}

async fn until_gone(raw: &mut crate::raw::Raw, key: &str) {
    let raw = std::cell::RefCell::new(raw);
    until("the key is gone", || !raw.borrow_mut().has(key)).await;
}

pub(crate) async fn a_cancelled_open_leaves_nothing(table: Subject) {
    let (node, other) = table.two_nodes().await;
    for polls in 0..2 {
        let mut opening = node.sessions.open(NewSession { user: "u", resource: "r", info: &[] });
        for _ in 0..polls {
            if let Some(opened) = (&mut opening).now_or_never() {
                assert!(node.close(opened.unwrap(), Ended::Left).await, "it was fast: then it is known");
            }
        }
        drop(opening);
        eventually("the session is gone", async || other.counts().await.sessions == 0).await;
        assert_eq!(node.totals().await, (0, 0));
        // After a heartbeat the supervisor has no work left.
        node.nodes.heartbeat().await.unwrap();
        assert_eq!(other.counts().await.sessions, 0);
    }
}

/// The sessions that it had replaced or crowded out were once still found by other nodes.
pub(crate) async fn what_a_cancelled_open_has_ended_is_removed(table: Subject) {
    let (node, other) = (table.node_with_limit(2).await, table.node_with_limit(2).await);
    let crowded = node.open("u", "a").await;
    let replaced = node.open("u", "b").await;
    drop(node.sessions.open(NewSession { user: "u", resource: "b", info: &[] }));
    eventually("what it replaced is gone", async || other.ids("u").await == [crowded]).await;
    let kept = node.open("u", "c").await;
    drop(node.sessions.open(NewSession { user: "u", resource: "d", info: &[] }));
    eventually("what it crowded out is gone", async || other.ids("u").await == [kept]).await;
    assert_eq!(node.ended_sessions().await, [(crowded, Ended::Crowded), (replaced, Ended::Replaced)]);
}

/// Once, the scan began with empty slots, which were mistaken for the end.
pub(crate) async fn a_long_mail_is_read_to_its_end(table: Subject) {
    let node = table.node().await;
    let id = node.open("u", "r").await;
    let mut raw = raw(&table);
    let mail = raw.key(&format!("mail:{}", node.here()));
    let mut entries = redis::cmd("HSET");
    entries.arg(&mail);
    for opened_us in 0..10_000_u64 {
        entries.arg([&opened_us.to_be_bytes()[..], &[0; 4]].concat()).arg("replaced");
    }
    raw.run(&entries);
    node.nodes.heartbeat().await.unwrap();
    assert!(!raw.has(&mail));
    assert_eq!(node.ids("u").await, [id]);
}

pub(crate) async fn cancelled_changes_are_completed(table: Subject) {
    let (node, other) = table.two_nodes().await;
    let changed = node.open("u", "changed").await;
    let closed = node.open("u", "closed").await;
    let _ = node.sessions.set_presence(changed, Some(7), &[]).now_or_never();
    let _ = node.sessions.close(closed, Ended::Left).now_or_never();
    eventually("the session is gone", async || other.ids("u").await == [changed]).await;
    eventually("the change is there", async || {
        other.id(changed).await.is_some_and(|row| row.priority == Some(7))
    })
    .await;
    // Neither is polled: the call itself begins the work.
    drop(node.sessions.set_presence(changed, Some(8), &[]));
    eventually("the change is there", async || {
        other.id(changed).await.is_some_and(|row| row.priority == Some(8))
    })
    .await;
    drop(node.sessions.close(changed, Ended::Left));
    eventually("the session is gone", async || other.ids("u").await.is_empty()).await;
}

pub(crate) async fn an_open_that_was_overtaken_does_not_come_back(table: Subject) {
    let node = table.node().await;
    let mut raw = raw(&table);
    // As if a request for a newer session of this node, at the same address, had overtaken it.
    let newer = SessionId { opened_us: u64::MAX, node: node.here(), user_hash: 0 };
    let row = [&newer.to_bytes()[..], &[0; 8]].concat();
    let user = raw.key("u:u");
    let _: u64 = raw.ask("HSET", (&user, "r", row.as_slice()));
    node.open("u", "r").await;
    assert_eq!(raw.ask::<Vec<u8>>("HGET", (&user, "r")), row);
    assert!(!raw.has(&raw.index(node.here())));
}

pub(crate) async fn a_change_that_was_overtaken_does_not_undo_the_later(table: Subject) {
    let node = table.node().await;
    let id = node.open("u", "r").await;
    let mut raw = raw(&table);
    // As if a request for a later change, by its revision, had overtaken it.
    let user = raw.key("u:u");
    let mut row: Vec<u8> = raw.ask("HGET", (&user, "r"));
    row[16..22].fill(0xff);
    let _: u64 = raw.ask("HSET", (&user, "r", row.as_slice()));
    assert!(node.presence(id, Some(1), &[]).await);
    assert_eq!(raw.ask::<Vec<u8>>("HGET", (&user, "r")), row);
}

pub(crate) async fn what_others_have_ended_is_not_registered_again(table: Subject) {
    let (node, other) = table.two_nodes().await;
    let id = node.open("u", "r").await;
    let mut raw = raw(&table);
    // As if another node had closed it, and the notification were still on its way.
    let bytes = id.to_bytes();
    let field = [&bytes[..8], &bytes[12..]].concat();
    let _: u64 = raw.ask("HSET", (raw.key(&format!("mail:{}", node.here())), field, "operator"));
    let keys = vec![raw.key("u:u"), raw.key("users"), raw.index(node.here())];
    let _: u64 = raw.ask("DEL", keys);
    drop(node.sessions.set_presence(id, Some(1), &[])); // queues a repair
    until("the owner is notified", || node.owner.ended_sessions() == [(id, Ended::Operator)]).await;
    assert!(other.ids("u").await.is_empty() && node.ids("u").await.is_empty());
}

pub(crate) async fn foreign_values_are_ignored(table: Subject) {
    let node = table.node().await;
    let id = node.open("u", "r").await;
    let mut raw = raw(&table);
    let rows: [&[u8]; 4] = [b"", b"short", &[0xff; 24], &[0; 300]];
    for (number, row) in rows.iter().enumerate() {
        let key = raw.key("u:u");
        let _: u64 = raw.ask("HSET", (key, format!("x{number}"), *row));
        let index = raw.index(node.here());
        let _: u64 = raw.ask("HSET", (index, *row, *row));
    }
    let key = raw.key("u:u");
    let _: u64 = raw.ask("HSET", (key, &[0xff_u8, 0xfe][..], &[0_u8; 30][..]));
    let users = raw.key("users");
    let _: u64 = raw.ask("ZADD", (users, 0, &[0xff_u8, 0xfe][..]));
    assert_eq!(node.ids("u").await, [id]);
    for number in 0..4 {
        assert!(node.address("u", &format!("x{number}")).await.is_none());
        node.open("u", &format!("x{number}")).await;
    }
    assert_eq!(node.ids("u").await.len(), 5);
    assert_eq!(node.all().await.len(), 1);
    node.nodes.heartbeat().await.unwrap();
    node.nodes.close().await.unwrap();
    assert!(!raw.has(&raw.index(node.here())));
}

pub(crate) async fn foreign_messages_on_the_channels_are_ignored(table: Subject) {
    let config = table.config();
    let metrics = config.metrics.clone();
    let node = Node::new(config).await;
    let id = node.open("u", "r").await;
    let mut raw = raw(&table);
    let (live, to) = (raw.key("live:0"), raw.key(&format!("to:{}", node.here())));
    let mut received: u64 = raw.ask("PUBLISH", (&live, b""));
    received += raw.ask::<u64>("PUBLISH", (&live, &[0xff_u8; 100][..]));
    received += raw.ask::<u64>("PUBLISH", (&live, &[1_u8; 46][..]));
    received += raw.ask::<u64>("PUBLISH", (&to, b"nonsense"));
    let stranger = SessionId { opened_us: 1, ..id };
    received += raw.ask::<u64>("PUBLISH", (&to, [&stranger.to_bytes()[..], b"operator"].concat()));
    assert_eq!(received, 5, "the node listens");
    let lost = r#"restante_sessions_redis_lost_events_total{reason="unreadable"}"#;
    until("all were read", || metric(&metrics, lost) == 3.0).await;
    assert!(node.ended_sessions().await.is_empty() && node.owner.heard().is_empty());
    assert_eq!(node.ids("u").await, [id]);
}

pub(crate) async fn tables_in_other_databases_receive_nothing(table: Subject) {
    let (node, neighbour) = table.two_nodes().await;
    let mut config = table.config();
    config.url = proxied_url().replace("/0", "/1").parse().unwrap();
    let stranger = Node::new(config).await;
    stranger.nodes.broadcast(&event("t", b"elsewhere"));
    stranger.open("u", "r").await;
    node.nodes.broadcast(&event("t", b"here"));
    until("the event is received", || !neighbour.owner.heard().is_empty()).await;
    let received = neighbour.owner.heard();
    assert!(received.len() == 1 && received[0].contains("here\""), "{received:?}");
    assert!(node.ids("u").await.is_empty());
    stranger.nodes.close().await.unwrap();
}

pub(crate) async fn events_that_are_too_long_are_dropped_and_counted(table: Subject) {
    let config = table.config();
    let metrics = config.metrics.clone();
    let node = Node::new(config).await;
    let other = table.node().await;
    node.nodes.broadcast(&event("t", &vec![0; (1 << 20) + 1]));
    node.nodes.broadcast(&event(&"t".repeat(20_000), b""));
    let lost = r#"restante_sessions_redis_lost_events_total{reason="too_long"}"#;
    assert_eq!(metric(&metrics, lost), 2.0);
    node.nodes.broadcast(&event("t", &vec![7; 1 << 20]));
    until("the event is received", || !other.owner.heard().is_empty()).await;
}

/// The queue is bounded by the bytes that wait, not by those that were ever sent.
pub(crate) async fn more_events_than_the_queue_holds_are_sent_one_after_the_other(table: Subject) {
    let (node, other) = (table.node().await, table.node().await);
    for sent in 1..=20 {
        node.nodes.broadcast(&event(&format!("topic {sent}"), &vec![7; 1 << 20]));
        until("the event is received", || other.owner.heard().len() == sent).await;
    }
}

pub(crate) async fn a_node_id_is_not_shared_with_another_process(table: Subject) {
    let node = table.node().await;
    let mut raw = raw(&table);
    let lease = raw.lease(node.here());
    let _: String = raw.ask("SET", (&lease, "another token", "PX", 60_000));
    let error = node.nodes.heartbeat().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("same id"), "{error}");
    let _: u64 = raw.ask("DEL", &lease);
    until("the id is its own again", || node.nodes.health().is_ok()).await;
}
