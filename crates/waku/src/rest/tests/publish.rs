use restante_archive::Query;
use restante_waku_wire::{WakuMessage, WakuMessageView};
use serde_json::json;

use super::*;

async fn stored(door: &Door) -> Vec<(String, WakuMessage)> {
    let page = door.archive.query(&Query::default()).await.unwrap();
    let message = |body| WakuMessageView::parse(body).unwrap().to_message();
    page.rows().map(|row| (row.channel.to_owned(), message(row.body))).collect()
}

#[tokio::test]
async fn all_fields_are_archived() {
    let door = door().await;
    let message = json!({
        "payload": "AQID", "contentTopic": CHAT, "version": 1, "timestamp": NOW.nanos() - 5, "meta": "bWV0YQ==",
        "ephemeral": false, "proof": "cHJvb2Y=", "unknown": {"a": [1, null]},
    });
    assert_eq!(door.post(PUBLISH, message).await.refusal(), (200, "OK"));
    let expected = WakuMessage {
        payload: vec![1, 2, 3].into(),
        content_topic: CHAT.into(),
        version: Some(1),
        timestamp: Some(NOW.nanos() - 5),
        meta: Some("meta".into()),
        rate_limit_proof: Some("proof".into()),
        ephemeral: Some(false),
    };
    assert_eq!(stored(&door).await, [(PUBSUB.to_owned(), expected)]);
}

#[tokio::test]
async fn only_the_payload_and_the_content_topic_are_required() {
    let door = door().await;
    let message = json!({"payload": "", "contentTopic": CHAT, "timestamp": null, "proof": "no base64!"});
    assert_eq!(door.post(PUBLISH, message).await.refusal(), (200, "OK"));
    let expected =
        WakuMessage { content_topic: CHAT.into(), timestamp: Some(NOW.nanos()), ..WakuMessage::default() };
    assert_eq!(stored(&door).await, [(PUBSUB.to_owned(), expected)]);
}

#[tokio::test]
async fn publishing_twice_archives_once() {
    let door = door().await;
    door.publish("once", 1).await;
    door.publish("once", 1).await;
    assert_eq!(stored(&door).await.len(), 1);
}

#[tokio::test]
async fn ephemeral_messages_are_answered_and_not_archived() {
    let door = door().await;
    let answer = door.post(PUBLISH, json!({"payload": "", "contentTopic": CHAT, "ephemeral": true})).await;
    assert_eq!(answer.refusal(), (200, "OK"));
    let invalid = door
        .post(PUBLISH, json!({"payload": "", "contentTopic": CHAT, "ephemeral": true, "timestamp": 5}))
        .await;
    assert_eq!(invalid.status, 400);
    assert_eq!(stored(&door).await, []);
}

#[tokio::test]
async fn escaped_json_is_understood() {
    let door = door().await;
    let json = r#"{"\u0070ayload": "Pz8\/", "contentTopic": "\/a\u00e4\"\\\n/b"}"#;
    assert_eq!(door.post(PUBLISH, json).await.refusal(), (200, "OK"));
    let (_, message) = stored(&door).await.remove(0);
    assert_eq!((&*message.payload, &*message.content_topic), (&b"???"[..], "/aä\"\\\n/b"));
}

#[tokio::test]
async fn autosharding_finds_the_pubsub_topic() {
    let auto = "/relay/v1/auto/messages";
    for (cluster_id, topic) in [(None, "/waku/2/rs/1/3"), (Some(42), "/waku/2/rs/42/3")] {
        let door = door_with_rules(Rules { cluster_id, ..Rules::default() }).await;
        let answer = door.post(auto, json!({"payload": "", "contentTopic": "/toychat/2/x/proto"})).await;
        assert_eq!(answer.refusal(), (200, "OK"));
        assert_eq!(stored(&door).await[0].0, topic);
        assert_eq!(
            door.post(auto, json!({"payload": ""})).await.refusal(),
            (400, "contentTopic: is missing")
        );
        let shapeless = door.post(auto, json!({"payload": "", "contentTopic": "toychat"})).await;
        let expected = "contentTopic: not a content topic: expected /application/version/name/encoding";
        assert_eq!(shapeless.refusal(), (400, expected));
    }
}

#[tokio::test]
async fn other_clusters_and_shards_are_refused() {
    let rules = Rules { cluster_id: Some(16), shards: vec![32], ..Rules::default() };
    let door = door_with_rules(rules).await;
    assert_eq!(door.post(PUBLISH, json!({"payload": "", "contentTopic": CHAT})).await.status, 200);
    for topic in ["%2Fwaku%2F2%2Frs%2F16%2F33", "%2Fwaku%2F2%2Frs%2F1%2F32", "%2Fwaku%2F2%2Fx"] {
        let answer = door
            .post(&format!("/relay/v1/messages/{topic}"), json!({"payload": "", "contentTopic": CHAT}))
            .await;
        let expected = "pubsubTopic: this server takes only /waku/2/rs/16/<shard> of the shards 32";
        assert_eq!(answer.refusal(), (400, expected));
    }
}

#[tokio::test]
async fn the_wrong_field_is_named() {
    let door = door().await;
    let base64 = "expected base64 (RFC 4648 section 4, with padding)";
    let cases = [
        (json!({"contentTopic": CHAT}), "payload: is missing".to_owned()),
        (json!({"payload": "a", "contentTopic": CHAT}), format!("payload: {base64}")),
        (json!({"payload": "", "contentTopic": CHAT, "meta": "?"}), format!("meta: {base64}")),
        (json!({"payload": "", "contentTopic": ""}), "contentTopic: is missing".to_owned()),
        (
            json!({"payload": "", "contentTopic": CHAT, "timestamp": 5}),
            "timestamp: is 1700000000 s in the past: at most 20 s are taken".to_owned(),
        ),
        (
            json!({"payload": "", "contentTopic": CHAT, "meta": "A".repeat(88)}),
            "meta: 66 bytes are too many: the limit is 64 bytes".to_owned(),
        ),
    ];
    for (message, problem) in cases {
        assert_eq!(door.post(PUBLISH, message).await.refusal(), (400, &*problem));
    }
    let beginnings = [
        (r#"{"payload": 5}"#, "payload: invalid type: integer `5`, expected a string"),
        (
            r#"{"payload": "", "version": -1}"#,
            "version: invalid value: integer `-1`, expected a whole number from 0 to 4294967295",
        ),
        (
            r#"{"payload": "", "timestamp": "now"}"#,
            "timestamp: invalid type: string \"now\", expected a whole number",
        ),
        (
            r#"{"payload": "", "ephemeral": 1}"#,
            "ephemeral: invalid type: integer `1`, expected true or false",
        ),
        ("[]", "invalid type: array, expected a message as a JSON object"),
        ("{", "the JSON ends too early"),
        ("", "the JSON ends too early"),
        (r#"{"payload": ""} x"#, "trailing characters"),
    ];
    for (json, beginning) in beginnings {
        let answer = door.post(PUBLISH, json).await;
        let (status, text) = answer.refusal();
        assert!(status == 400 && text.starts_with(beginning), "{json}: {text}");
    }
    assert_eq!(stored(&door).await, []);
}

#[tokio::test]
async fn wrong_pubsub_topics_are_refused() {
    let door = door().await;
    for (topic, problem) in [
        ("%FF", "pubsubTopic: is not UTF-8"),
        ("x", "pubsubTopic: not a pubsub topic: expected /waku/2/rs/<cluster>/<shard> or /waku/2/<name>"),
    ] {
        let answer = door
            .post(&format!("/relay/v1/messages/{topic}"), json!({"payload": "", "contentTopic": CHAT}))
            .await;
        assert_eq!(answer.refusal(), (400, problem));
    }
}

#[tokio::test]
async fn refusals_are_short_whatever_was_sent() {
    let door = door().await;
    let answer = door
        .post(PUBLISH, json!({"payload": "", "contentTopic": CHAT, "timestamp": "9".repeat(100_000)}))
        .await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().len() < 400, "{}", answer.text());
}

#[tokio::test]
async fn large_messages_and_bodies_are_refused() {
    let door = door_with_rules(Rules { max_message_bytes: nonzero!(1_000), ..Rules::default() }).await;
    let message =
        |len| json!({"payload": base64_simd::STANDARD.encode_to_string(vec![0; len]), "contentTopic": CHAT});
    assert_eq!(door.post(PUBLISH, message(900)).await.status, 200);
    let answer = door.post(PUBLISH, message(1_000)).await;
    assert_eq!(answer.status, 413);
    assert!(answer.text().starts_with("message: "), "{}", answer.text());
    let answer = door.post(PUBLISH, message(40_000)).await;
    assert_eq!(answer.refusal(), (413, "the body is too long: the limit is 34768 bytes"));
}

#[tokio::test]
async fn the_archives_trouble_has_a_status_and_no_internals() {
    let cases = [
        (ErrorKind::Invalid, 400),
        (ErrorKind::NotFound, 404),
        (ErrorKind::Conflict, 409),
        (ErrorKind::Full, 503),
        (ErrorKind::Unavailable, 503),
        (ErrorKind::Corrupt, 500),
        (ErrorKind::Internal, 500),
    ];
    for (kind, status) in cases {
        let opened = memory().await;
        let failing = Failing::new(opened.archive.clone(), 0, kind);
        let door = door_over(Arc::new(failing), opened, RestConfig::default());
        let answer = door.post(PUBLISH, json!({"payload": "", "contentTopic": CHAT})).await;
        assert_eq!(answer.refusal().0, status, "{kind:?}");
        assert!(!answer.text().contains("secret"), "{}", answer.text());
        assert_eq!(answer.head.contains_key(header::RETRY_AFTER), status == 503);
    }
}

/// An archive whose engine is unavailable, and whose spool is full after one message.
struct Spooling(std::sync::atomic::AtomicBool);

#[async_trait]
impl Archive for Spooling {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        if self.0.swap(true, Ordering::SeqCst) {
            return Err(Error::full("the spool /secret/spool is full"));
        }
        Ok(vec![Appended::Spooled; messages.len()])
    }

    async fn query(&self, _query: &restante_archive::Query) -> Result<Page, Error> {
        Err(Error::unavailable("away"))
    }
}

#[tokio::test]
async fn a_spooled_message_is_a_published_one_and_a_full_spool_says_so() {
    let door = door_over(Arc::new(Spooling(false.into())), memory().await, RestConfig::default());
    assert_eq!(door.post(PUBLISH, json!({"payload": "", "contentTopic": CHAT})).await.refusal(), (200, "OK"));
    let answer = door.post(PUBLISH, json!({"payload": "", "contentTopic": CHAT})).await;
    let text = "the archive is full, or it is away and its spool is full: try again later";
    assert_eq!(answer.refusal(), (503, text));
    assert_eq!(answer.head[header::RETRY_AFTER], "1");
}

#[tokio::test]
async fn an_archive_that_does_not_answer_is_not_waited_for_longer_than_the_time_out() {
    let config = RestConfig { request_timeout_ms: nonzero!(20), ..RestConfig::default() };
    let door = silent_door(config).await;
    let answer = door.post(PUBLISH, json!({"payload": "", "contentTopic": CHAT})).await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("publish it again"));
    assert_eq!(door.get("/store/v3/messages").await.status, 503);
    assert_eq!(door.get("/archive/v1/export").await.status, 503);
}

#[tokio::test]
async fn requests_beyond_the_limit_are_refused_until_one_is_done() {
    let config = RestConfig { requests_max: nonzero!(2), ..RestConfig::default() };
    let door = Arc::new(silent_door(config).await);
    let ask = |door: Arc<Door>| async move { door.get("/store/v3/messages").await.status };
    let waiting = [tokio::spawn(ask(door.clone())), tokio::spawn(ask(door.clone()))];
    tokio::task::yield_now().await; // the runtime has one thread: both have reached the archive now
    let answer = door.post(PUBLISH, json!({"payload": "", "contentTopic": CHAT})).await;
    assert_eq!(answer.refusal(), (503, "too many requests are being worked on: try again later"));
    assert_eq!(answer.head[header::RETRY_AFTER], "1");
    for request in waiting {
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
    }
    let answer = tokio::spawn(ask(door.clone()));
    tokio::task::yield_now().await;
    assert!(!answer.is_finished(), "the turns that were given back can be taken again");
    answer.abort();
}
