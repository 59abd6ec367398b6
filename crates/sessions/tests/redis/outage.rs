//! What holds while Redis is unreachable, and afterwards.

use restante_core::{ErrorKind, nonzero};
use restante_fault_proxy::Direction;
use restante_sessions::{Ended, EngineUrl, Opened, open};

use crate::{
    Subject,
    common::{
        eventually,
        node::{Node, Recorder},
        number, rows, soon, text, until,
    },
    metric,
    own::OwnRedis,
    proxied, proxied_url,
    proxy::Proxy,
    raw,
};

pub(crate) async fn a_table_opens_though_redis_is_unreachable(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    proxy.close().await;
    let config = proxied(&table, &proxy);
    let owner = std::sync::Arc::new(Recorder::default());
    let Opened { sessions, nodes } = open(config, owner).await.unwrap();
    let error = nodes.health().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(nodes.heartbeat().await.unwrap_err().kind(), ErrorKind::Unavailable);

    let new = restante_sessions::NewSession { user: "u", resource: "r", info: &[] };
    let id = sessions.open(new).await.unwrap();
    let found = sessions.by_user("u").await.unwrap();
    assert!(!found.is_complete() && found.by_id(id).is_some());

    proxy.open().await;
    until("redis is reachable", || nodes.health().is_ok()).await;
    let other = table.node().await;
    assert_eq!(other.ids("u").await, [id]);
    assert!(sessions.by_user("u").await.unwrap().is_complete());
}

pub(crate) async fn local_sessions_work_while_redis_is_unreachable(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    let (node, other) = (Node::new(proxied(&table, &proxy)).await, table.node().await);
    let kept = node.open("u", "kept").await;
    let closed = node.open("u", "closed").await;
    let others = other.open("u", "others").await;
    proxy.close().await;
    until("the node has noticed", || node.nodes.health().is_err()).await;

    // Everything works for this node's sessions.
    let new = node.open("u", "new").await;
    let replaced = node.open("u", "replaced").await;
    let replacing = node.open("u", "replaced").await;
    assert!(node.close(closed, Ended::Left).await);
    assert!(!node.close(closed, Ended::Left).await);
    assert!(node.merge(kept, &[number(5, 2)]).await);
    assert!(node.presence(kept, Some(3), &[text(3, "x")]).await);
    let local = [replacing, new, kept];
    let found = node.sessions.by_user("u").await.unwrap();
    assert!(!found.is_complete());
    assert_eq!(found.iter().map(|session| session.id).collect::<Vec<_>>(), local);
    let found = node.sessions.by_address("u", "kept").await.unwrap();
    assert_eq!((found.is_complete(), rows(&found)[0].priority), (false, Some(3)));
    assert!(node.sessions.by_id(others).await.unwrap().is_empty());
    assert!(!node.sessions.by_id(others).await.unwrap().is_complete());
    let counts = node.sessions.counts().await.unwrap();
    assert_eq!((counts.sessions, counts.users, counts.is_complete), (3, 1, false));
    assert_eq!(counts.by_node, [(node.here(), 3)]);
    let all: Vec<_> = futures_util::StreamExt::collect::<Vec<_>>(node.sessions.all()).await;
    assert!(all.len() == 1 && !all[0].as_ref().unwrap().is_complete());

    // Nothing works for other nodes' sessions.
    let error = node.sessions.close(others, Ended::Operator).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(node.nodes.nodes().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(node.nodes.sweep().await.unwrap_err().kind(), ErrorKind::Unavailable);

    proxy.open().await;
    until("redis is reachable again", || node.nodes.health().is_ok()).await;
    assert_eq!(other.ids("u").await, [replacing, new, others, kept]);
    assert_eq!(other.id(kept).await.unwrap().priority, Some(3));
    assert_eq!(other.id(kept).await.unwrap(), node.id(kept).await.unwrap());
    assert_eq!(other.counts().await.sessions, 4);
    assert_eq!(node.ended_sessions().await, [(replaced, Ended::Replaced)]);
}

pub(crate) async fn what_others_ended_meanwhile_stays_ended(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    let mut config = proxied(&table, &proxy);
    config.sessions_per_user_max = nonzero!(2);
    let node = Node::new(config).await;
    let other = table.node_with_limit(2).await;
    let replaced = node.open("u", "r").await;
    let closed = node.open("v", "r").await;
    let crowded = node.open("w", "r").await;
    let kept = node.open("x", "r").await;
    proxy.close().await;
    until("the node has noticed", || node.nodes.health().is_err()).await;

    let replacing = other.open("u", "r").await;
    assert!(other.close(closed, Ended::Operator).await);
    other.open("w", "1").await;
    other.open("w", "2").await;
    assert!(node.owner.ended_sessions().is_empty(), "it is disconnected now");

    proxy.open().await;
    until("redis is reachable again", || node.nodes.health().is_ok()).await;
    let ended = [(replaced, Ended::Replaced), (closed, Ended::Operator), (crowded, Ended::Crowded)];
    assert_eq!(node.ended_sessions().await, ended, "each is reported once");
    assert_eq!(other.ids("u").await, [replacing]);
    assert_eq!(node.ids("u").await, [replacing]);
    assert!(other.ids("v").await.is_empty());
    assert_eq!(other.ids("w").await.len(), 2);
    assert_eq!(other.ids("x").await, [kept]);
}

pub(crate) async fn requests_to_a_hanging_redis_time_out(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    let mut config = proxied(&table, &proxy);
    config.redis.timeout_ms = nonzero!(300);
    let node = Node::new(config).await;
    let id = node.open("u", "r").await;
    proxy.hang();
    let found = node.sessions.by_user("u").await.unwrap();
    assert!(!found.is_complete() && found.by_id(id).is_some());
    assert_eq!(node.nodes.health().unwrap_err().kind(), ErrorKind::Unavailable);
    // Now no call waits for it.
    let second = node.open("u", "s").await;
    assert_eq!(node.sessions.by_user("u").await.unwrap().len(), 2);
    proxy.open().await;
    until("redis is reachable again", || node.nodes.health().is_ok()).await;
    assert_eq!(table.node().await.ids("u").await, [second, id]);
}

pub(crate) async fn thousands_of_sessions_are_registered_again(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    let (node, other) = (Node::new(proxied(&table, &proxy)).await, table.node().await);
    for number in 0..500 {
        node.open(&format!("early{number}"), "r").await;
    }
    proxy.close().await;
    until("the node has noticed", || node.nodes.health().is_err()).await;
    for number in 0..500 {
        let first = node.sessions.by_user(&format!("early{number}")).await.unwrap().first().unwrap().id;
        assert!(node.close(first, Ended::Left).await);
        node.open(&format!("late{number}"), "r").await;
        node.open(&format!("late{number}"), "s").await;
    }
    proxy.open().await;
    until("redis is reachable again", || node.nodes.health().is_ok()).await;
    let counts = other.counts().await;
    assert_eq!((counts.sessions, counts.users), (1_000, 500));
    let all = other.all().await;
    assert_eq!((all.len(), all.values().map(Vec::len).sum::<usize>()), (500, 1_000));
    assert!(all.keys().all(|user| user.starts_with("late")));
}

pub(crate) async fn all_continues_with_this_node_when_redis_becomes_unreachable(table: Subject) {
    use futures_util::StreamExt;
    let proxy = Proxy::new(&proxied_url()).await;
    let node = Node::new(proxied(&table, &proxy)).await;
    for number in 0..350 {
        node.open(&format!("{number}"), "r").await;
    }
    let mut all = node.sessions.all();
    let mut users = Vec::new();
    while let Some(found) = all.next().await {
        users.push(found.unwrap().first().unwrap().user().to_owned());
        if users.len() == 150 {
            proxy.close().await;
            until("the node has noticed", || node.nodes.health().is_err()).await;
        }
    }
    users.sort();
    users.dedup();
    assert_eq!(users.len(), 350, "each is returned once");
}

pub(crate) async fn what_redis_has_lost_is_registered_again(table: Subject) {
    let (node, other) = table.two_nodes().await;
    let id = node.open("u", "r").await;
    raw(&table).forget_all();
    node.nodes.heartbeat().await.unwrap();
    assert_eq!(other.ids("u").await, [id]);
    let counts = node.counts().await;
    assert_eq!((counts.sessions, counts.users), (1, 1));
}

pub(crate) async fn a_change_of_a_lost_session_registers_it(table: Subject) {
    let (node, other) = table.two_nodes().await;
    let id = node.open("u", "r").await;
    let mut raw = raw(&table);
    let _: u64 = raw.ask("DEL", raw.key("u:u"));
    assert!(node.merge(id, &[number(5, 1)]).await);
    eventually("the session is found", async || other.ids("u").await == [id]).await;
    assert_eq!(other.id(id).await.unwrap(), node.id(id).await.unwrap());
}

pub(crate) async fn scripts_that_redis_has_dropped_are_loaded_again(table: Subject) {
    let node = table.node().await;
    let _: String = raw(&table).ask("SCRIPT", "FLUSH");
    let id = node.open("u", "r").await;
    let _: String = raw(&table).ask("SCRIPT", "FLUSH");
    assert!(node.merge(id, &[number(5, 1)]).await);
    let _: String = raw(&table).ask("SCRIPT", "FLUSH");
    assert!(node.close(id, Ended::Left).await);
    assert!(node.ids("u").await.is_empty());
}

pub(crate) async fn events_are_dropped_and_counted_while_redis_is_unreachable(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    let config = proxied(&table, &proxy);
    let metrics = config.metrics.clone();
    let node = Node::new(config).await;
    proxy.close().await;
    until("the node has noticed", || node.nodes.health().is_err()).await;
    for _ in 0..10 {
        node.nodes.broadcast(&crate::event("t", b"lost"));
    }
    let lost = r#"restante_sessions_redis_lost_events_total{reason="away"}"#;
    assert_eq!(metric(&metrics, lost), 10.0);
    assert_eq!(metric(&metrics, "restante_sessions_redis_up"), 0.0);
    proxy.open().await;
    until("redis is reachable again", || node.nodes.health().is_ok()).await;
    assert_eq!(metric(&metrics, "restante_sessions_redis_up"), 1.0);
    let other = table.node().await;
    node.nodes.broadcast(&crate::event("t", b"sent"));
    until("the event is received", || !other.owner.heard().is_empty()).await;
    assert!(other.owner.heard()[0].contains("sent"));
}

pub(crate) async fn a_url_that_can_not_be_used_is_refused(table: Subject) {
    let missing = "no/such/ca.pem";
    for (url, ca_file) in [("rediss://localhost/0", missing), ("redis://localhost:6379/first", "")] {
        let mut config = table.config();
        config.url = EngineUrl::Redis(url.to_owned());
        config.redis.ca_file = ca_file.into();
        let opened = open(config, std::sync::Arc::new(Recorder::default())).await;
        assert_eq!(opened.err().unwrap().kind(), ErrorKind::Invalid, "{url}");
    }
    let mut config = table.config();
    config.redis.lease_ms = nonzero!(10);
    let opened = open(config, std::sync::Arc::new(Recorder::default())).await;
    assert_eq!(opened.err().unwrap().kind(), ErrorKind::Invalid);
}

/// Once, the lease was taken again in the middle of the work, without noticing that it had been lost.
pub(crate) async fn a_lease_lost_while_registering_is_noticed(table: Subject) {
    const SESSIONS: u64 = 5_000;
    let proxy = Proxy::new(&proxied_url()).await;
    let mut config = proxied(&table, &proxy);
    config.redis.lease_ms = nonzero!(1_500);
    let node = Node::new(config).await;
    let (here, other) = (node.here(), table.node().await);
    proxy.close().await;
    until("the node has noticed", || node.nodes.health().is_err()).await;
    for number in 0..SESSIONS {
        node.open(&format!("u{number}"), "r").await;
    }
    let mut raw = raw(&table);
    let index = raw.index(here);
    proxy.open().await;
    soon("the first are written down", async {
        while raw.ask::<u64>("HLEN", &index) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    proxy.hang();
    eventually("the node is taken for dead", async || {
        other.nodes.sweep().await.unwrap();
        other.nodes.nodes().await.unwrap().iter().all(|state| state.id != here)
    })
    .await;
    assert!(node.nodes.health().is_err(), "it was still at it");
    proxy.open().await;
    until("the node is in step", || node.nodes.health().is_ok()).await;
    eventually("all are written down", async || other.counts().await.sessions == SESSIONS).await;
}

/// Once, a sweep removed the node from the list, so that its later sessions were never swept.
pub(crate) async fn what_a_node_without_a_lease_has_opened_is_swept(table: Subject) {
    let other = table.node().await;
    let mut raw = raw(&table);
    for is_taken in [false, true] {
        let node = table.node().await;
        let (lease, index) = (raw.lease(node.here()), raw.index(node.here()));
        node.open("u", "r").await;
        let _: u64 = raw.ask("DEL", &lease);
        assert_eq!(other.nodes.sweep().await.unwrap(), 1);
        if is_taken {
            other.open("v", "r").await;
        }
        node.open("v", "r").await;
        drop(node); // before its next heartbeat
        assert!(raw.has(&index) && !raw.has(&lease));
        assert_eq!(other.nodes.sweep().await.unwrap(), 1);
        assert!(!raw.has(&index));
    }
    assert_eq!(other.totals().await, (0, 0));
}

/// Requests arrive, and their answers don't: what was done must not be repeated by later requests.
pub(crate) async fn requests_whose_answers_do_not_come_are_done_once(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    let mut config = proxied(&table, &proxy);
    config.redis.timeout_ms = nonzero!(300);
    let (node, other) = (Node::new(config).await, table.node().await);
    let closed = node.open("u", "closed").await;
    let kept = node.open("u", "kept").await;
    proxy.faults.silence(Direction::ToClient);
    let new = node.open("u", "new").await;
    assert!(node.close(closed, Ended::Left).await);
    assert!(node.merge(kept, &[number(5, 2)]).await);
    until("the node has noticed", || node.nodes.health().is_err()).await;
    proxy.open().await;
    until("redis is reachable again", || node.nodes.health().is_ok()).await;
    eventually("all is written down", async || other.ids("u").await == [new, kept]).await;
    assert_eq!(other.id(kept).await.unwrap(), node.id(kept).await.unwrap());
    assert_eq!(other.counts().await.sessions, 2);
    assert!(node.owner.ended_sessions().is_empty(), "nobody else has ended one");
}

/// Connections are cut in the middle of requests, of answers, and of the work that follows a new connection.
pub(crate) async fn connections_may_be_cut_at_any_byte(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    let (node, other) = (Node::new(proxied(&table, &proxy)).await, table.node().await);
    let mut open = vec![node.open("u", "first").await];
    for cut in 0..24_u64 {
        let direction = if cut % 2 == 0 { Direction::ToServer } else { Direction::ToClient };
        proxy.faults.cut_after(direction, cut * cut * 3);
        open.insert(0, node.open("u", &format!("r{cut}")).await);
        if cut % 3 == 0 {
            assert!(node.close(open.pop().unwrap(), Ended::Left).await);
        }
        proxy.faults.heal();
        eventually("the node is in step", async || {
            node.nodes.health().is_ok() && other.ids("u").await == open
        })
        .await;
    }
    let counts = other.counts().await;
    assert_eq!((counts.sessions as usize, counts.users), (open.len(), 1));
    assert!(node.owner.ended_sessions().is_empty(), "nobody else has ended one");
}

/// Once, only living nodes were notified, so that the session was registered again with its node once the address was free.
pub(crate) async fn what_others_took_of_a_node_without_a_lease_stays_ended(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    let (node, other) = (Node::new(proxied(&table, &proxy)).await, table.node().await);
    let taken = node.open("u", "r").await;
    let kept = node.open("v", "r").await;
    proxy.close().await;
    until("the node has noticed", || node.nodes.health().is_err()).await;
    let mut raw = raw(&table);
    let _: u64 = raw.ask("DEL", raw.lease(node.here()));
    let taking = other.open("u", "r").await;
    assert!(other.close(taking, Ended::Left).await);
    proxy.open().await;
    until("redis is reachable again", || node.nodes.health().is_ok()).await;
    assert!(other.ids("u").await.is_empty());
    assert_eq!(other.ids("v").await, [kept]);
    assert_eq!(node.ended_sessions().await, [(taken, Ended::Replaced)]);
}

/// Once, a page that could not be read counted as returned.
pub(crate) async fn users_on_an_unreadable_page_are_returned(table: Subject) {
    use futures_util::StreamExt;
    let node = table.node().await;
    for number in 0..350 {
        node.open(&format!("{number}"), "r").await;
    }
    // In the order of bytes it is on the second page of a hundred.
    let mut raw = raw(&table);
    let user = raw.key("u:250");
    let _: u64 = raw.ask("DEL", &user);
    let _: String = raw.ask("SET", (&user, "no hash"));
    let all: Vec<_> = node.sessions.all().map(Result::unwrap).collect().await;
    let complete = all.iter().filter(|found| found.is_complete()).count();
    assert_eq!(complete, 100, "the first page");
    let mut users: Vec<_> = all.iter().map(|found| found.first().unwrap().user().to_owned()).collect();
    assert_eq!(users.len(), 350);
    users.sort();
    users.dedup();
    assert_eq!(users.len(), 350, "each is returned once");
}

pub(crate) async fn a_table_that_is_closed_while_redis_is_unreachable_says_why(table: Subject) {
    let proxy = Proxy::new(&proxied_url()).await;
    let node = Node::new(proxied(&table, &proxy)).await;
    proxy.close().await;
    until("the node has noticed", || node.nodes.health().is_err()).await;
    let error = node.nodes.close().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!error.to_string().contains("closed"), "{error}");
    assert!(node.nodes.health().unwrap_err().to_string().contains("closed"));
}

/// Once, the heartbeat was refused, so that all leases expired and nothing freed memory any more.
pub(crate) async fn a_redis_without_memory_renews_leases_and_removes_what_has_ended(table: Subject) {
    let server = OwnRedis::start();
    let (node, other) = (Node::new(server.config(&table)).await, Node::new(server.config(&table)).await);
    let id = node.open("u", "r").await;
    let mut raw = server.raw(&table);
    let (lease, user) = (raw.lease(node.here()), raw.key("u:u"));
    let short_ms = 60_000;
    let _: u64 = raw.ask("PEXPIRE", (&lease, short_ms));
    let without_memory = server.raw(&table).without_memory();
    node.nodes.heartbeat().await.unwrap();
    assert!(raw.ask::<i64>("PTTL", &lease) > short_ms, "a lease that is held is renewed");
    assert!(node.close(id, Ended::Left).await);
    assert!(!raw.has(&user));
    let _: u64 = raw.ask("DEL", &lease);
    node.nodes.heartbeat().await.unwrap();
    assert!(raw.ask::<i64>("PTTL", &lease) > short_ms, "one that was lost is taken again");

    let new = node.open("u", "new").await;
    assert!(!raw.has(&user), "this needs memory");
    drop(without_memory);
    node.nodes.heartbeat().await.unwrap();
    assert_eq!(other.ids("u").await, [new]);
}
