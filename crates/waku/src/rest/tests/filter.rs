use serde_json::json;

use super::*;

const SUBSCRIPTIONS: &str = "/filter/v2/subscriptions";
const ALL: &str = "/filter/v2/subscriptions/all";

fn messages(content_topic: &str) -> String {
    format!("/filter/v2/messages/{}", escaped(content_topic))
}

/// The status and the answer, which is JSON for every status.
fn outcome(answer: &Answer) -> (u16, Value) {
    assert_eq!(answer.content_type, "application/json");
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

fn ok(id: &str) -> (u16, Value) {
    (200, json!({"requestId": id, "statusDesc": "OK"}))
}

fn none(id: &str) -> (u16, Value) {
    (404, json!({"requestId": id, "statusDesc": "there is no such subscription"}))
}

/// A golden conversation, as in a script for nwaku.
#[tokio::test]
async fn messages_of_a_filter_are_fetched_until_it_ends() {
    let door = door().await;
    assert_eq!(outcome(&door.get(&format!("{SUBSCRIPTIONS}/p0")).await), none("p0"));
    let request = json!({"requestId": "r1", "pubsubTopic": PUBSUB, "contentFilters": [CHAT, "/a/1/b/c"]});
    assert_eq!(outcome(&door.post(SUBSCRIPTIONS, &request).await), ok("r1"));
    assert_eq!(outcome(&door.send("PUT", SUBSCRIPTIONS, request.to_string()).await), ok("r1"));
    assert_eq!(outcome(&door.get(&format!("{SUBSCRIPTIONS}/p%2F1")).await), ok("p/1"));
    door.publish("mine", 0).await;
    door.publish_on(PUBSUB, "/a/1/b/c", "also mine").await;
    door.publish_on(PUBSUB, "/a/1/b/d", "not mine").await;
    door.publish_on("/waku/2/rs/16/33", CHAT, "elsewhere").await;
    assert_eq!(fetched(&door.get(&messages(CHAT)).await), ["mine"]);
    assert_eq!(fetched(&door.get(&messages(CHAT)).await), Vec::<String>::new());
    let on = format!("/filter/v2/messages/{}/{}", escaped(PUBSUB), escaped("/a/1/b/c"));
    assert_eq!(fetched(&door.get(&on).await), ["also mine"]);

    let request = json!({"requestId": "r2", "pubsubTopic": PUBSUB, "contentFilters": [CHAT]});
    assert_eq!(outcome(&door.delete(SUBSCRIPTIONS, &request).await), ok("r2"));
    assert_eq!(outcome(&door.delete(SUBSCRIPTIONS, &request).await), none("r2"));
    let not_subscribed = "not subscribed to this content topic: POST it to the subscriptions first";
    assert_eq!(door.get(&messages(CHAT)).await.refusal(), (400, not_subscribed));
    assert_eq!(outcome(&door.delete(ALL, json!({"requestId": "r3"})).await), ok("r3"));
    assert_eq!(outcome(&door.delete(ALL, json!({"requestId": "r4"})).await), none("r4"));
    assert_eq!(door.get(&on).await.refusal(), (400, not_subscribed));
}

#[tokio::test]
async fn a_filter_without_a_pubsub_topic_is_on_the_shard_of_its_content_topic() {
    let door = door().await;
    let request = json!({"requestId": "r", "contentFilters": [CHAT], "pubsubTopic": ""});
    assert_eq!(outcome(&door.post(SUBSCRIPTIONS, request).await), ok("r"));
    door.publish_on("/waku/2/rs/1/3", CHAT, "mine").await;
    door.publish_on(PUBSUB, CHAT, "elsewhere").await;
    assert_eq!(fetched(&door.get(&messages(CHAT)).await), ["mine"]);
}

#[tokio::test]
async fn filters_and_relay_subscriptions_have_nothing_to_do_with_each_other() {
    let door = door().await;
    door.post("/relay/v1/subscriptions", json!([PUBSUB])).await;
    let request = json!({"requestId": "r", "pubsubTopic": PUBSUB, "contentFilters": [CHAT]});
    door.post(SUBSCRIPTIONS, request).await;
    door.publish("a", 0).await;
    assert_eq!(fetched(&door.get(&messages(CHAT)).await), ["a"]);
    assert_eq!(outcome(&door.delete(ALL, json!({"requestId": "r"})).await), ok("r"));
    assert_eq!(fetched(&door.get(PUBLISH).await), ["a"]);
}

#[tokio::test]
async fn the_wrong_field_is_named() {
    let door = door().await;
    let many: Vec<String> = (0..101).map(|n| format!("/a/1/{n}/c")).collect();
    let cases = [
        (json!({"contentFilters": [CHAT]}), "unknown", "requestId: is missing"),
        (json!({"requestId": 1}), "unknown", "requestId: expected a string"),
        (json!({"requestId": "x".repeat(257)}), "unknown", "requestId: is longer than 256 bytes"),
        (json!([]), "unknown", "requestId: is missing"),
        (json!({"requestId": "r"}), "r", "contentFilters: expected an array of content topics"),
        (json!({"requestId": "r", "contentFilters": []}), "r", "contentFilters: is empty"),
        (
            json!({"requestId": "r", "contentFilters": [1]}),
            "r",
            "contentFilters: expected an array of content topics",
        ),
        (
            json!({"requestId": "r", "contentFilters": many}),
            "r",
            "contentFilters: 101 topics are too many: a request has at most 100",
        ),
        (
            json!({"requestId": "r", "contentFilters": [""], "pubsubTopic": PUBSUB}),
            "r",
            "contentTopic: 0 bytes are not 1 to 4096",
        ),
        (
            json!({"requestId": "r", "contentFilters": ["x".repeat(4_097)], "pubsubTopic": PUBSUB}),
            "r",
            "contentTopic: 4097 bytes are not 1 to 4096",
        ),
        (
            json!({"requestId": "r", "contentFilters": ["chat"]}),
            "r",
            "contentTopic: not a content topic: expected /application/version/name/encoding",
        ),
        (
            json!({"requestId": "r", "contentFilters": [CHAT], "pubsubTopic": 1}),
            "r",
            "pubsubTopic: expected a string",
        ),
        (
            json!({"requestId": "r", "contentFilters": [CHAT], "pubsubTopic": "x"}),
            "r",
            "pubsubTopic: not a pubsub topic: expected /waku/2/rs/<cluster>/<shard> or /waku/2/<name>",
        ),
    ];
    for (request, id, desc) in cases {
        let expected = (400, json!({"requestId": id, "statusDesc": desc}));
        assert_eq!(outcome(&door.post(SUBSCRIPTIONS, &request).await), expected, "{request}");
        assert_eq!(outcome(&door.delete(SUBSCRIPTIONS, &request).await), expected, "{request}");
    }
    let long = door.send("POST", SUBSCRIPTIONS, " ".repeat(65_537)).await;
    let desc = "the body is too long: the limit is 65536 bytes";
    assert_eq!(outcome(&long), (413, json!({"requestId": "unknown", "statusDesc": desc})));
    assert_eq!(outcome(&door.post(SUBSCRIPTIONS, "{").await).0, 400);
    assert_eq!(outcome(&door.post(SUBSCRIPTIONS, "[".repeat(60_000)).await).0, 400);
    assert_eq!(outcome(&door.get(&format!("{SUBSCRIPTIONS}/{}", "x".repeat(257))).await).0, 400);
    assert!(door.cache.filter_feeds().is_empty());
}

#[tokio::test]
async fn too_many_subscriptions_are_refused() {
    let door = door().await;
    for request in 0..10 {
        let filters: Vec<String> = (0..100).map(|n| format!("/a/1/{request}-{n}/c")).collect();
        let request = json!({"requestId": "r", "contentFilters": filters});
        assert_eq!(outcome(&door.post(SUBSCRIPTIONS, request).await), ok("r"));
    }
    let request = json!({"requestId": "r", "contentFilters": [CHAT]});
    let desc = "too many subscriptions: at most 1000 at once; end some of them first";
    let expected = (503, json!({"requestId": "r", "statusDesc": desc}));
    assert_eq!(outcome(&door.post(SUBSCRIPTIONS, request).await), expected);
}
