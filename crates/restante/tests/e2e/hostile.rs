//! Wrong, broken and hostile requests: they are refused with a reason, and the server survives.

use serde_json::{Value, json};

use crate::support::{CONTENT_TOPIC, Server, exchange, folder, message, now, publish_path};

fn server() -> (tempfile::TempDir, Server) {
    let (guard, folder) = folder();
    let server = Server::start_with(&folder, &["--archive", "memory:", "--max-msg-size", "10KiB"]);
    (guard, server)
}

/// The server still does its work.
fn lives(server: &mut Server) {
    assert!(server.is_running());
    server.publish("alive");
    assert_eq!(server.payloads(100).last().map(String::as_str), Some("alive"));
}

#[test]
fn wrong_messages_are_refused_and_nothing_of_them_is_kept() {
    let (_guard, mut server) = server();
    let path = publish_path();
    let with = |field: &str, value: Value| {
        let mut message = message("x", now());
        message[field] = value;
        message
    };
    for body in [
        json!(null),
        json!([]),
        json!("text"),
        json!({}),
        with("payload", json!("not base64!")),
        with("payload", json!(7)),
        with("timestamp", json!("now")),
        with("timestamp", json!(1)),
        with("version", json!(-1)),
        with("meta", json!("A".repeat(400))),
        with("contentTopic", json!(["a"])),
    ] {
        let answer = server.post(&path, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        assert!(!answer.body.trim().is_empty(), "{body} is refused without a reason");
    }
    let large = message(&"x".repeat(20 << 10), now());
    assert_eq!(server.post(&path, &large).status, 413);
    assert_eq!(server.post("/relay/v1/messages/nonsense", &message("x", now())).status, 400);
    assert_eq!(server.payloads(100), Vec::<String>::new());
    lives(&mut server);
}

#[test]
fn wrong_queries_are_refused() {
    let (_guard, mut server) = server();
    for query in [
        "cursor=0x12",
        "hashes=zz",
        "startTime=yesterday",
        "endTime=1e99",
        "pageSize=-1",
        "pageSize=many",
        "ascending=perhaps",
        "includeData=perhaps",
        "bloom=ff",
        "contentTopics=%FF",
    ] {
        let answer = server.get(&format!("/store/v3/messages?{query}"));
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
    }
    assert_eq!(server.get("/no/such/path").status, 404);
    assert_eq!(server.get(&publish_path()).status / 100, 4);
    lives(&mut server);
}

#[test]
fn broken_http_is_refused() {
    let (_guard, mut server) = server();
    let address = server.address();
    let long = "a".repeat(1 << 20);
    for bytes in [
        "nonsense\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        format!("GET /{long} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: localhost\r\nlong: {long}\r\n\r\n"),
        format!("POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n", publish_path()),
    ] {
        let begin: String = bytes.chars().take(40).collect();
        if let Some(answer) = exchange(address, bytes.as_bytes()) {
            assert_eq!(answer.status / 100, 4, "{begin}: {answer:?}");
        }
    }
    lives(&mut server);
}

#[test]
fn json_that_is_deep_or_no_text_is_refused() {
    let (_guard, mut server) = server();
    let address = server.address();
    for body in [b"[".repeat(5_000), b"{\"payload\":\"\xff\xfe\"}".to_vec(), b"{\"payload\":".to_vec()] {
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            publish_path(),
            body.len()
        );
        let answer = exchange(address, &[head.as_bytes(), &body].concat()).unwrap();
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    lives(&mut server);
}

#[test]
fn a_query_of_very_many_topics_is_answered() {
    let (_guard, server) = server();
    server.publish("found");
    let mut topics: Vec<String> = (0..5_000).map(|number| format!("/none/1/{number}/proto")).collect();
    topics.push(CONTENT_TOPIC.into());
    let answer = server.post("/store/v3/messages", &json!({"contentTopics": topics, "includeData": true}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let page: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(page["messages"].as_array().map(Vec::len), Some(1));
}
