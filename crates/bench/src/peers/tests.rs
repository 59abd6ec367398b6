//! A server in this process, for tests of load clients: the Waku door over an archive in memory, and its metrics over HTTP.

use std::net::SocketAddr;

use restante_archive::{Config, EngineUrl, Metrics, Opened, open};

use super::*;
use crate::http::tests::{serve, sized};

/// A running server.
pub(crate) struct Served {
    pub(crate) node: Multiaddr,
    pub(crate) rest: SocketAddr,
    pub(crate) opened: Opened,
    waku: Waku,
}

impl Served {
    pub(crate) async fn start() -> Self {
        let mut registry = Registry::default();
        let (archive_metrics, metrics) = (Metrics::default(), WakuMetrics::default());
        archive_metrics.register(&mut registry, "memory");
        metrics.register(&mut registry);
        let config = Config { metrics: archive_metrics, ..Config::new(EngineUrl::Memory) };
        let opened = open(config).await.unwrap();
        let mut door = super::config(Role::Relay, &[]).unwrap();
        if let Some(node) = &mut door.node {
            node.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        }
        let clock = Arc::new(SystemClock);
        let waku = Waku::start(
            door,
            opened.archive.clone(),
            clock,
            restante_waku::live::standalone().await.unwrap(),
            Vec::new(),
            &metrics,
        )
        .await
        .unwrap();
        let node = waku.node.as_ref().unwrap().addresses().first().unwrap().clone();
        let registry = Arc::new(registry);
        let rest = serve(move |line, _| {
            assert!(line.starts_with("GET /metrics "), "{line}");
            let mut text_format = String::new();
            text::encode(&mut text_format, &registry).unwrap();
            sized("200 OK", &text_format)
        })
        .await;
        Self { node, rest, opened, waku }
    }

    pub(crate) async fn stop(self) {
        self.waku.close().await;
        self.opened.upkeep.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_relayed_and_archived() {
    use std::sync::atomic::{AtomicU64, Ordering};

    use restante_core::{Clock, Timestamp};
    use restante_waku::live::{Event, Stage};

    struct Count(AtomicU64);
    impl Listener for Count {
        fn on_message(&self, event: &Arc<Event>, _: Stage) {
            assert_eq!(letters::note_of(&event.body), Some((5, 7)));
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let served = Served::start().await;
    let servers = [served.node.clone()];
    let count = Arc::new(Count(AtomicU64::new(0)));
    let listener = Peer::start_connected(Role::Relay, &servers, vec![count.clone()]).await.unwrap();
    let publisher = Peer::start_connected(Role::Publisher, &servers, Vec::new()).await.unwrap();
    let history = history::History::start(&served.node).await.unwrap();
    let topic = "/restante-bench/1/test/proto";
    let letter = letters::Letters::new(5, topic, 100).write(1, SystemClock.now(), 7);
    publisher.publish(&letter.wire).await.unwrap();
    until(PATIENCE, async || count.0.load(Ordering::Relaxed) == 1).await.expect("the message was relayed");
    let is_stored = async || {
        let stored = history.hashes(topic, Timestamp::from_seconds(0), None).await.unwrap();
        stored.len() == 1 && stored.contains(&letter.message_hash)
    };
    until(PATIENCE, is_stored).await.expect("the message was stored");
    assert_eq!(Scrape::of(served.rest).await.unwrap().stored(), 1);
    for peer in [listener, publisher] {
        peer.close().await;
    }
    history.close().await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_query_until_their_time_is_over() {
    use restante_core::Timestamp;

    let served = Served::start().await;
    let letters = letters::Letters::new(1, "/restante-bench/1/hot/proto", 200);
    let names = letters.names();
    let messages = (0..250).map(|number| letters.message(number, Timestamp(1_000 + number as i64), &names));
    served.opened.archive.append(messages.collect()).await.unwrap();
    let plan = users::Plan {
        server: served.node.to_string(),
        users: 2,
        page: 100,
        content_topic: "/restante-bench/1/hot/proto".to_owned(),
        seconds: 0.2,
    };
    let asked = users::ask(&plan, &|| None).await.unwrap();
    assert_eq!((asked.errors, &asked.first_error), (0, &None));
    assert!(asked.pages.len() >= 6 && asked.messages > asked.pages.len() * 50, "{asked:?}");
    let nothing = users::Plan { content_topic: "/restante-bench/1/none/proto".to_owned(), ..plan };
    let asked = users::ask(&nothing, &|| None).await.unwrap();
    assert_eq!((asked.errors, asked.messages), (0, 0));
    assert!(asked.pages.len() > 2);
    served.stop().await;
}
