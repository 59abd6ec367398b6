//! Errors for wrong requests: they say enough to correct them.

use super::*;

const AUTO: &str = "/relay/v1/auto/messages";

async fn refused(door: &Door, path: &str) -> String {
    let answer = door.get(path).await;
    let (status, text) = answer.refusal();
    assert_eq!(status, 400, "{path}: {text}");
    text.to_owned()
}

/// A typo in a name turned the request into a query for everything.
#[tokio::test]
async fn unknown_parameters_are_errors_that_name_the_nearest() {
    let door = door().await;
    for (path, expected) in [
        ("/store/v3/messages?pagesize=5", "pagesize: is not known here: did you mean pageSize?"),
        (
            "/store/v3/messages?includeData=true&contentTopic=/a",
            "contentTopic: is not known here: did you mean contentTopics?",
        ),
        ("/store/v3/messages?format=ndjson", "format: is not known here: use peerAddr, includeData,"),
        ("/archive/v1/export?pageSize=5", "pageSize: is not known here: use format,"),
        (
            "/live?contentTopicsPrefix=/a",
            "contentTopicsPrefix: is not known here: did you mean contentTopicPrefix?",
        ),
        (
            "/console/v1/search?contentTopicPrefix=/a&startTme=5",
            "startTme: is not known here: did you mean startTime?",
        ),
        ("/console/v1/state?sinze=5", "sinze: is not known here: did you mean since?"),
    ] {
        let text = refused(&door, path).await;
        assert!(text.starts_with(expected), "{path}: {text}");
    }
    let answer = door.post("/store/v3/messages", r#"{"pagesize": 5}"#).await;
    assert!(
        answer.refusal().1.starts_with("pagesize: is not known here: did you mean pageSize?"),
        "{}",
        answer.text()
    );
    for path in ["/store/v3/messages?", "/store/v3/messages?&pageSize=5&", "/version?now"] {
        assert_eq!(door.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn times_in_another_unit_are_recognised() {
    let door = door().await;
    let nanos = NOW.nanos();
    for (number, unit) in [
        (nanos / 1_000_000_000, "seconds"),
        (nanos / 1_000_000, "milliseconds"),
        (nanos / 1_000, "microseconds"),
    ] {
        for (path, field) in [
            ("/store/v3/messages?startTime=", "startTime"),
            ("/store/v3/messages?endTime=", "endTime"),
            ("/archive/v1/export?startTime=", "startTime"),
            ("/live?start=", "start"),
        ] {
            let expected = format!("{field}: {number} looks like {unit} since 1970: nanoseconds are wanted");
            assert_eq!(refused(&door, &format!("{path}{number}")).await, expected);
        }
        let message = serde_json::json!({"payload": "", "contentTopic": CHAT, "timestamp": number});
        let answer = door.post(PUBLISH, message).await;
        let expected = format!("timestamp: {number} looks like {unit} since 1970: nanoseconds are wanted");
        assert_eq!(answer.refusal(), (400, &*expected));
    }
}

#[tokio::test]
async fn errors_name_the_shard_that_a_topic_falls_on() {
    let rules = Rules { cluster_id: Some(16), shards: vec![0], ..Rules::default() };
    let door = door_with_rules(rules).await;
    let message = serde_json::json!({"payload": "", "contentTopic": CHAT});
    let expected = "contentTopic: falls on /waku/2/rs/16/3, and this server takes only /waku/2/rs/16/<shard> of the shards 0";
    assert_eq!(door.post(AUTO, &message).await.refusal(), (400, expected));
    assert_eq!(
        door.post("/relay/v1/auto/subscriptions", serde_json::json!([CHAT])).await.refusal(),
        (400, expected)
    );
    let pushed = door.post("/lightpush/v3/message", serde_json::json!({"message": message})).await;
    let desc: Value = serde_json::from_slice(&pushed.body).unwrap();
    assert_eq!((pushed.status, desc["statusDesc"].as_str()), (421, Some(expected)));
}

#[tokio::test]
async fn an_absent_content_topic_is_an_error_like_an_empty_one() {
    let door = door().await;
    let (missing, text) = (serde_json::json!({"payload": "AQID"}), "contentTopic: is missing");
    for topic in [missing.clone(), serde_json::json!({"payload": "AQID", "contentTopic": ""})] {
        assert_eq!(door.post(PUBLISH, &topic).await.refusal(), (400, text));
        assert_eq!(door.post(AUTO, &topic).await.refusal(), (400, text));
        let push = serde_json::json!({"pubsubTopic": PUBSUB, "message": topic});
        assert_eq!(door.post("/lightpush/v1/message", push).await.refusal(), (400, text));
    }
}

/// Clients are written in any language.
#[tokio::test]
async fn errors_have_no_words_of_the_servers_own_language() {
    let door = door().await;
    for (json, expected) in [
        (
            r#"{"payload": "", "version": -1}"#,
            "version: invalid value: integer `-1`, expected a whole number from 0 to 4294967295",
        ),
        (
            r#"{"payload": "", "version": "x"}"#,
            "version: invalid type: string \"x\", expected a whole number from 0 to 4294967295",
        ),
        (
            r#"{"payload": "", "timestamp": 1.5}"#,
            "timestamp: invalid type: floating point `1.5`, expected a whole number",
        ),
        (r#"{"payload": [1]}"#, "payload: invalid type: array, expected a string"),
        ("[]", "invalid type: array, expected a message as a JSON object at line 1 column 0"),
        ("{\"payload\"", "the JSON ends too early at line 1 column 10"),
    ] {
        let answer = door.post(PUBLISH, json).await;
        assert_eq!(answer.refusal(), (400, expected), "{json}");
    }
    let answer = door.post("/relay/v1/subscriptions", "{}").await;
    assert_eq!(answer.refusal(), (400, "invalid type: object, expected an array at line 1 column 0"));
    let connect = door_with_node(RestConfig { admin: true, ..RestConfig::default() }, &[]).await;
    let answer = connect.post("/admin/v1/peers", "5").await;
    for word in ["u16", "u32", "i64", "usize", "sequence", "map", "struct", "EOF"] {
        assert!(
            !answer.text().split(|c: char| !c.is_alphanumeric()).any(|found| found == word),
            "{}",
            answer.text()
        );
    }
}
