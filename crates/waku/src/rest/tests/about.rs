use restante_archive::{Following, Health, Pruned, Report, Retention, Stats};
use serde_json::json;

use super::*;

#[tokio::test]
async fn the_server_tells_of_itself() {
    let door = door().await;
    for path in ["/version", "/debug/v1/version"] {
        assert_eq!(door.get(path).await.refusal(), (200, "9.9.9"));
    }
    let info = json!({"listenAddresses": ["/ip4/127.0.0.1/tcp/8645/http"], "enrUri": ""});
    for path in ["/info", "/debug/v1/info"] {
        assert_eq!(door.get(path).await.json(), info);
    }
    let metrics = door.get("/metrics").await;
    assert_eq!(metrics.text(), "restante_up 1\n# EOF\n");
    assert!(metrics.content_type.starts_with("application/openmetrics-text"));
    let index = door.get("/").await;
    for route in routes_of(&door.rest, &door.parts) {
        assert!(index.text().contains(route.path), "{} is not named", route.path);
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let door = door().await;
    assert_eq!(door.get("/nothing").await.refusal(), (404, "no such path: GET / names all"));
    let answer = door.send("DELETE", "/store/v3/messages", Body::empty()).await;
    let text = "this path does not take this method: GET / names those it takes";
    assert_eq!(answer.refusal(), (405, text));
    assert_eq!(answer.head[header::ALLOW], "GET,HEAD,POST");
}

#[tokio::test]
async fn health_speaks_nwakus_words() {
    let healthy = json!({"nodeHealth": "Ready", "protocolsHealth": [
        {"Relay": "Not Mounted"}, {"Store": "Ready"}, {"Filter": "Not Mounted"}, {"Lightpush": "Not Mounted"},
        {"Peer Exchange": "Not Mounted"}, {"Metadata": "Not Mounted"}, {"Sessions": "Ready"},
    ]});
    assert_eq!(door().await.get("/health").await.json(), healthy);
}

/// A relay without peers is reported, but it is no reason for 503: history is served without them.
#[tokio::test]
async fn a_relay_without_peers_is_reported_and_the_node_is_ready() {
    let alone = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    let report = alone.get("/health").await.json();
    let desc = "no peer follows a pubsub topic that this node relays";
    assert_eq!(
        report,
        json!({"nodeHealth": "Ready", "protocolsHealth": [
            {"Relay": "Not Ready", "desc": desc}, {"Store": "Ready"}, {"Filter": "Ready"}, {"Lightpush": "Ready"},
            {"Peer Exchange": "Ready"}, {"Metadata": "Ready"}, {"Sessions": "Ready"},
        ]})
    );
    let other = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    alone.connect_to(&other).await;
    until("relay is ready", async || {
        alone.get("/health").await.json()["protocolsHealth"][0] == json!({"Relay": "Ready"})
    })
    .await;
}

/// The health of the server's other roles does not affect whether history is served.
#[tokio::test]
async fn stores_beside_the_archive_are_reported() {
    let kept = |name, problem: Option<&'static str>| RoleCheck {
        name,
        problem: Arc::new(move || problem.map(str::to_owned)),
    };
    let broken = "a sync has failed: start the server anew";
    let door = door().await.with_roles(vec![kept("Records", Some(broken)), kept("Blobs", None)]);
    let report = door.get("/health").await.json();
    assert_eq!(report["nodeHealth"], "Ready");
    let lines = report["protocolsHealth"].as_array().unwrap();
    let expected = [
        json!({"Records": "Not Ready", "desc": broken}),
        json!({"Blobs": "Ready"}),
        json!({"Sessions": "Ready"}),
    ];
    assert_eq!(lines[lines.len() - 3..], expected);
}

#[tokio::test]
async fn info_lists_the_nodes_addresses_before_the_doors() {
    let door = door_with_node(RestConfig::default(), &[]).await;
    let info = door.get("/info").await.json();
    let addresses: Vec<&str> =
        info["listenAddresses"].as_array().unwrap().iter().map(|address| address.as_str().unwrap()).collect();
    let end = format!("/p2p/{}", door.waku.peer_id().unwrap());
    assert!(addresses[0].starts_with("/ip4/127.0.0.1/tcp/") && addresses[0].ends_with(&end), "{addresses:?}");
    assert_eq!(addresses.last(), Some(&"/ip4/127.0.0.1/tcp/8645/http"));
    let enr = door.waku.node.as_ref().unwrap().enr().unwrap_or_default();
    assert_eq!(info["enrUri"], enr);
}

#[tokio::test]
async fn health_shows_an_archive_that_does_not_answer() {
    let opened = memory().await;
    let failing = Failing::new(opened.archive.clone(), 0, ErrorKind::Unavailable);
    let door = door_over(Arc::new(failing), opened, RestConfig::default());
    let answer = door.get("/health").await;
    assert_eq!(answer.status, 503);
    let health: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(health["nodeHealth"], "Not Ready");
    assert_eq!(health["protocolsHealth"][1]["desc"], "the archive does not answer");
}

#[tokio::test]
async fn health_shows_an_archive_that_takes_nothing() {
    let opened = memory().await;
    let failing = Failing::new(opened.archive.clone(), 1_000, ErrorKind::Full);
    let door = door_over(Arc::new(failing), opened, RestConfig::default());
    assert_eq!(door.get("/health").await.status, 200);
    assert_eq!(door.post(PUBLISH, json!({"payload": "", "contentTopic": CHAT})).await.status, 503);
    let answer = door.get("/health").await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("the last message could not be archived"));
}

/// An archive that accepts messages after a delay.
struct Slow(Arc<dyn Archive>, Duration);

#[async_trait]
impl Archive for Slow {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        tokio::time::sleep(self.1).await;
        self.0.append(messages).await
    }

    async fn query(&self, query: &restante_archive::Query) -> Result<Page, Error> {
        self.0.query(query).await
    }
}

/// A failure was cleared only by another message that was published by REST, even on a node where all others arrive by relay.
#[tokio::test(start_paused = true)]
async fn a_failure_counts_for_a_minute_and_not_for_ever() {
    let opened = memory().await;
    let failing = Failing::new(opened.archive.clone(), 1_000, ErrorKind::Full);
    let door = door_over(Arc::new(failing), opened, RestConfig::default());
    assert_eq!(door.post(PUBLISH, json!({"payload": "", "contentTopic": CHAT})).await.status, 503);
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(door.get("/health").await.status, 503);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(door.get("/health").await.status, 200);
}

/// The node may take two seconds for a message that is already archived: a request that ended before then was counted as a
/// failure of the archive.
#[tokio::test(start_paused = true)]
async fn only_the_archive_is_blamed_for_what_it_did_not_take_in_time() {
    for (append_seconds, status) in [(31, 200), (33, 503)] {
        let opened = memory().await;
        let slow = Slow(opened.archive.clone(), Duration::from_secs(append_seconds));
        let door = door_over(Arc::new(slow), opened, RestConfig::default());
        assert_eq!(door.post(PUBLISH, json!({"payload": "", "contentTopic": CHAT})).await.status, status);
        assert_eq!(door.get("/health").await.status, status);
    }
}

/// An archive that reports a given health.
struct Unwell {
    health: Health,
    inner: Arc<dyn Upkeep>,
}

#[async_trait]
impl Upkeep for Unwell {
    fn health(&self) -> Health {
        self.health.clone()
    }

    async fn stats(&self) -> Result<Stats, Error> {
        self.inner.stats().await
    }

    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
        self.inner.prune(policy, now).await
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.inner.check(progress).await
    }

    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.inner.rebuild(progress).await
    }

    async fn backup(&self, folder: &std::path::Path) -> Result<(), Error> {
        self.inner.backup(folder).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.inner.close().await
    }
}

pub(super) async fn door_with_health(health: Health) -> Door {
    let opened = memory().await;
    let upkeep = Arc::new(Unwell { health, inner: opened.upkeep });
    let opened = Opened { upkeep, archive: opened.archive };
    door_over(opened.archive.clone(), opened, RestConfig::default())
}

/// A database that is unavailable, and what has arrived since.
pub(super) fn away() -> Health {
    Health {
        problem: Some("postgres is unavailable: connection refused".into()),
        since: Some(NOW),
        spooled_messages: 12,
        spooled_bytes: 3_456,
        ..Health::default()
    }
}

/// The status of `/health`, the status texts of the node and the store, and the description.
async fn health_report(health: Health) -> (u16, String, String, String) {
    let answer = door_with_health(health).await.get("/health").await;
    let report: Value = serde_json::from_slice(&answer.body).unwrap();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let store = &report["protocolsHealth"][1];
    (answer.status, word(&report["nodeHealth"]), word(&store["Store"]), word(&store["desc"]))
}

#[tokio::test]
async fn health_tells_of_an_engine_that_is_away_and_of_its_spool() {
    let (status, node, store, desc) = health_report(away()).await;
    assert_eq!((status, &*node, &*store), (503, "Not Ready", "Not Ready"));
    assert_eq!(
        desc,
        "postgres is unavailable: connection refused, since 2023-11-14T22:13:20.000000000Z; \
         waiting in the spool: 12 messages (3456 bytes)"
    );
}

/// The archive in memory would answer at once; one that is known to be unavailable is not queried, because that may take long.
#[tokio::test]
async fn an_engine_that_is_known_to_be_away_is_not_asked() {
    let opened = memory().await;
    let silent = SilentAfter { inner: opened.archive.clone(), queries: 0.into() };
    let upkeep = Arc::new(Unwell { health: away(), inner: opened.upkeep });
    let opened = Opened { upkeep, archive: opened.archive };
    let door = door_over(Arc::new(silent), opened, RestConfig::default());
    assert_eq!(door.get("/health").await.status, 503);
}

#[tokio::test]
async fn what_health_says_is_short() {
    let problem = Some("x".repeat(100_000));
    let (.., desc) = health_report(Health { problem, ..Health::default() }).await;
    assert!(desc.len() < 1_000, "{}", desc.len());
}

#[tokio::test]
async fn a_spool_that_is_being_drained_is_no_trouble() {
    let health = Health { spooled_messages: 1, spooled_bytes: 100, ..Health::default() };
    let (status, node, store, desc) = health_report(health).await;
    assert_eq!((status, &*node, &*store), (200, "Ready", "Ready"));
    assert_eq!(desc, "waiting in the spool: 1 message (100 bytes)");
}

/// The rest is served, so no proxy has to send queries elsewhere.
#[tokio::test]
async fn damage_is_reported_by_a_server_that_is_ready() {
    let damage = "archived messages that are lost: 5 (00000002.log)";
    let (status, node, store, desc) =
        health_report(Health { damage: Some(damage.into()), ..Health::default() }).await;
    assert_eq!((status, &*node, &*store, &*desc), (200, "Ready", "Ready", damage));
}

#[tokio::test]
async fn a_second_archive_that_does_not_follow_is_no_trouble_of_the_first() {
    let following = Following {
        engine: "sqlite",
        problem: Some("tandem stopped: its spool is full".into()),
        is_stopped: true,
        messages: 5,
        bytes: 50,
        ..Following::default()
    };
    let (status, node, store, desc) =
        health_report(Health { following: Some(following), ..Health::default() }).await;
    assert_eq!((status, &*node, &*store), (200, "Ready", "Ready"));
    let behind = "the tandem's second archive (sqlite) lags by 5 messages (50 bytes): tandem stopped";
    assert!(desc.starts_with(behind), "{desc}");
}

#[tokio::test]
async fn requests_are_counted_by_route_and_class() {
    let door = door().await;
    door.publish("a", 0).await;
    door.get("/store/v3/messages?cursor=x").await;
    door.get("/never/heard/of").await;
    let text = door.metrics_text();
    for line in [
        r#"restante_http_requests_total{listener="rest",route="/relay/v1/messages/{pubsubTopic}",status="2xx"} 1"#,
        r#"restante_http_requests_total{listener="rest",route="/store/v3/messages",status="4xx"} 1"#,
        r#"restante_http_requests_total{listener="rest",route="other",status="4xx"} 1"#,
        r#"restante_http_request_seconds_count{listener="rest",route="/store/v3/messages"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
