use serde_json::json;

use super::*;
use crate::rest::topics::TOPICS_MAX;

const SUBSCRIPTIONS: &str = "/relay/v1/subscriptions";
const AUTO_SUBSCRIPTIONS: &str = "/relay/v1/auto/subscriptions";
/// The shard of [`CHAT`] in the public network.
const AUTO_PUBSUB: &str = "/waku/2/rs/1/3";
const OTHER: &str = "/waku/2/rs/16/33";

fn auto_messages(content_topic: &str) -> String {
    format!("/relay/v1/auto/messages/{}", escaped(content_topic))
}

fn topics_of(door: &Door) -> Vec<String> {
    door.waku.node.as_ref().unwrap().topics()
}

#[tokio::test]
async fn what_was_published_is_fetched_once_and_in_order() {
    let door = door().await;
    let not_subscribed = (404, "not subscribed to this topic: POST it to the subscriptions first");
    assert_eq!(door.get(PUBLISH).await.refusal(), not_subscribed);
    assert_eq!(door.post(SUBSCRIPTIONS, json!([PUBSUB])).await.refusal(), (200, "OK"));
    assert_eq!(door.get(PUBLISH).await.json(), json!([]));
    door.publish("a", 1).await;
    door.publish("b", 0).await;
    assert_eq!(fetched(&door.get(PUBLISH).await), ["a", "b"]);
    assert_eq!(door.get(PUBLISH).await.json(), json!([]));
    assert_eq!(door.delete(SUBSCRIPTIONS, json!([PUBSUB])).await.refusal(), (200, "OK"));
    assert_eq!(door.get(PUBLISH).await.refusal(), not_subscribed);
}

/// A golden answer: the fields that nwaku's clients read.
#[tokio::test]
async fn fetched_messages_have_all_their_fields() {
    let door = door().await;
    door.post(SUBSCRIPTIONS, json!([PUBSUB])).await;
    let message = json!({
        "payload": "AQID", "contentTopic": CHAT, "version": 1, "timestamp": NOW.nanos(), "meta": "bWV0YQ==",
        "ephemeral": true, "proof": "cHJvb2Y=",
    });
    assert_eq!(door.post(PUBLISH, &message).await.status, 200);
    assert_eq!(door.get(PUBLISH).await.json(), json!([message]));
}

#[tokio::test]
async fn only_as_many_messages_wait_as_are_configured() {
    let config = RestConfig { relay_cache_messages: nonzero!(2), ..RestConfig::default() };
    let door = door_with(config).await;
    door.post(SUBSCRIPTIONS, json!([PUBSUB])).await;
    for payload in ["a", "b", "c"] {
        door.publish(payload, 0).await;
    }
    assert_eq!(fetched(&door.get(PUBLISH).await), ["b", "c"]);
}

#[tokio::test]
async fn content_topics_are_followed_on_the_shard_into_which_they_fall() {
    let door = door().await;
    let messages = auto_messages(CHAT);
    assert_eq!(door.get(&messages).await.status, 404);
    assert_eq!(door.post(AUTO_SUBSCRIPTIONS, json!([CHAT])).await.refusal(), (200, "OK"));
    door.publish_on(AUTO_PUBSUB, CHAT, "mine").await;
    door.publish_on(AUTO_PUBSUB, "/toychat/2/other/proto", "not mine").await;
    door.publish_on(PUBSUB, CHAT, "elsewhere").await;
    let auto = json!({"payload": "YXV0bw==", "contentTopic": CHAT});
    assert_eq!(door.post("/relay/v1/auto/messages", auto).await.status, 200);
    assert_eq!(fetched(&door.get(&messages).await), ["mine", "auto"]);
    assert_eq!(door.delete(AUTO_SUBSCRIPTIONS, json!([CHAT])).await.status, 200);
    assert_eq!(door.get(&messages).await.status, 404);
    let shapeless = door.post(AUTO_SUBSCRIPTIONS, json!(["toychat"])).await;
    let expected = "contentTopic: not a content topic: expected /application/version/name/encoding";
    assert_eq!(shapeless.refusal(), (400, expected));
}

#[tokio::test]
async fn wrong_lists_of_topics_change_nothing() {
    let door = door().await;
    let many: Vec<String> = (0..=TOPICS_MAX).map(|shard| format!("/waku/2/rs/16/{shard}")).collect();
    let cases = [
        (json!([PUBSUB, "x"]).to_string(), 400, "pubsubTopic: not a pubsub topic"),
        (json!({"topics": [PUBSUB]}).to_string(), 400, "invalid type: object, expected an array"),
        (json!([PUBSUB, 5]).to_string(), 400, "invalid type: integer `5`, expected a string"),
        (json!(many).to_string(), 400, "101 topics are too many: a request has at most 100"),
        (String::new(), 400, "the JSON ends too early"),
        ("[".repeat(50_000), 400, "invalid type: array, expected a string"),
        (" ".repeat(65_537), 413, "the body is too long: the limit is 65536 bytes"),
    ];
    for (body, status, text) in cases {
        let answer = door.send("POST", SUBSCRIPTIONS, body).await;
        assert!(answer.status == status && answer.text().starts_with(text), "{}", answer.text());
    }
    assert_eq!(door.get(PUBLISH).await.status, 404);
}

#[tokio::test]
async fn topics_that_the_server_does_not_take_can_not_be_followed() {
    let door = door_with_rules(Rules { cluster_id: Some(16), ..Rules::default() }).await;
    assert_eq!(door.post(SUBSCRIPTIONS, json!([PUBSUB])).await.status, 200);
    let answer = door.post(SUBSCRIPTIONS, json!([AUTO_PUBSUB])).await;
    let expected = "pubsubTopic: this server takes only /waku/2/rs/16/<any shard>";
    assert_eq!(answer.refusal(), (400, expected));
    assert_eq!(door.post(AUTO_SUBSCRIPTIONS, json!([CHAT])).await.status, 200);
    assert!(door.cache.wants("/waku/2/rs/16/3"));
}

#[tokio::test]
async fn the_node_relays_what_clients_follow_and_leaves_what_nobody_wants_any_more() {
    let door = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    door.post(SUBSCRIPTIONS, json!([OTHER, AUTO_PUBSUB])).await;
    door.post(AUTO_SUBSCRIPTIONS, json!([CHAT])).await;
    let mut topics = topics_of(&door);
    topics.sort();
    assert_eq!(topics, [AUTO_PUBSUB, PUBSUB, OTHER]);
    door.delete(SUBSCRIPTIONS, json!([OTHER, AUTO_PUBSUB])).await;
    topics = topics_of(&door);
    topics.sort();
    assert_eq!(topics, [AUTO_PUBSUB, PUBSUB], "the content topic is still followed");
    door.delete(AUTO_SUBSCRIPTIONS, json!([CHAT])).await;
    assert_eq!(topics_of(&door), [PUBSUB]);
}

/// The archive must not miss messages because a client left.
#[tokio::test]
async fn the_node_keeps_topics_that_it_is_configured_to_relay() {
    let door = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    door.post(SUBSCRIPTIONS, json!([PUBSUB])).await;
    assert_eq!(door.delete(SUBSCRIPTIONS, json!([PUBSUB])).await.refusal(), (200, "OK"));
    assert_eq!(topics_of(&door), [PUBSUB]);
    assert_eq!(door.get(PUBLISH).await.status, 404, "the subscription has ended all the same");
}

/// nwaku's clients fetch messages of the configured shards without a subscription; here the answer was 404.
#[tokio::test]
async fn configured_topics_are_fetched_without_a_subscription() {
    let door = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    assert_eq!(door.get(PUBLISH).await.json(), json!([]));
    door.publish("a", 0).await;
    assert_eq!(fetched(&door.get(PUBLISH).await), ["a"]);
    assert_eq!(door.get(&format!("/relay/v1/messages/{}", escaped(OTHER))).await.status, 404);
}

#[tokio::test]
async fn messages_of_other_nodes_are_fetched_here() {
    let here = door_with_node(RestConfig::default(), &[]).await;
    let there = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    here.post(SUBSCRIPTIONS, json!([PUBSUB])).await;
    here.connect_to(&there).await;
    let has_follower = async || {
        let peers = there.waku.node.as_ref().unwrap().peers();
        peers.iter().any(|peer| peer.topics.contains(PUBSUB))
    };
    until("the subscription is announced", has_follower).await;
    there.publish("from afar", 0).await;
    let has_arrived = async || fetched(&here.get(PUBLISH).await) == ["from afar"];
    until("the message arrives", has_arrived).await;
}

#[tokio::test]
async fn long_answers_are_written_whole() {
    let door = door().await;
    door.post(SUBSCRIPTIONS, json!([PUBSUB])).await;
    let payload = "x".repeat(140 << 10);
    for second in 0..10 {
        door.publish(&payload, second).await;
    }
    let messages = fetched(&door.get(PUBLISH).await);
    assert!(messages.len() == 10 && messages.iter().all(|message| *message == payload));
}
