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
    for route in routes() {
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
    let healthy =
        json!({"nodeHealth": "Ready", "protocolsHealth": [{"Relay": "Not Mounted"}, {"Store": "Ready"}]});
    assert_eq!(door().await.get("/health").await.json(), healthy);
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
    assert_eq!(door.post(PUBLISH, json!({"payload": ""})).await.status, 503);
    let answer = door.get("/health").await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("the last message could not be archived"));
}

#[tokio::test]
async fn requests_are_counted_by_route_and_class() {
    let door = door().await;
    door.publish("a", 0).await;
    door.get("/store/v3/messages?cursor=x").await;
    door.get("/never/heard/of").await;
    let text = door.metrics_text();
    for line in [
        r#"restante_rest_requests_total{route="/relay/v1/messages/{pubsubTopic}",status="2xx"} 1"#,
        r#"restante_rest_requests_total{route="/store/v3/messages",status="4xx"} 1"#,
        r#"restante_rest_requests_total{route="other",status="4xx"} 1"#,
        r#"restante_rest_request_seconds_count{route="/store/v3/messages"} 1"#,
        "restante_rest_connections 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
