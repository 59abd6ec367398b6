use prost::Message as _;
use restante_archive::Query;
use restante_waku_wire::{WakuMessage, rpc::light_push::LightPushRequest};
use serde_json::json;

use super::*;
use crate::lightpush::{LightPush, LightPushConfig};

const PUSH: &str = "/lightpush/v3/message";
const PUSH_V1: &str = "/lightpush/v1/message";

/// The status and the answer, which is JSON for every status.
fn outcome(answer: &Answer) -> (u16, Value) {
    assert_eq!(answer.content_type, "application/json");
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

async fn channels(door: &Door) -> Vec<String> {
    let page = door.archive.query(&Query::default()).await.unwrap();
    page.rows().map(|row| row.channel.to_owned()).collect()
}

#[tokio::test]
async fn a_pushed_message_is_archived_where_it_was_to_go() {
    let door = door().await;
    let ok = (200, json!({"statusDesc": "OK", "relayPeerCount": 0}));
    let named =
        json!({"pubsubTopic": PUBSUB, "message": {"payload": "AQID", "contentTopic": CHAT}, "unknown": 1});
    assert_eq!(outcome(&door.post(PUSH, named).await), ok);
    assert_eq!(channels(&door).await, [PUBSUB]);
    let sharded = json!({"message": {"payload": "AQID", "contentTopic": CHAT, "timestamp": NOW.nanos() + 1}});
    assert_eq!(outcome(&door.post(PUSH, sharded).await), ok);
    assert_eq!(channels(&door).await, [PUBSUB, "/waku/2/rs/1/3"]);
    let former = json!({"pubsubTopic": PUBSUB, "message": {"payload": "", "contentTopic": CHAT, "timestamp": NOW.nanos() + 2}});
    assert_eq!(door.post(PUSH_V1, former).await.refusal(), (200, "OK"));
    assert_eq!(channels(&door).await.len(), 3);
}

#[tokio::test]
async fn the_peers_that_got_the_message_are_counted() {
    let here = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    let there = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    here.connect_to(&there).await;
    let has_follower = async || {
        let peers = here.waku.node.as_ref().unwrap().peers();
        peers.iter().any(|peer| peer.topics.contains(PUBSUB))
    };
    until("the peer follows", has_follower).await;
    let push = json!({"pubsubTopic": PUBSUB, "message": {"payload": "AQID", "contentTopic": CHAT}});
    let expected = (200, json!({"statusDesc": "OK", "relayPeerCount": 1}));
    assert_eq!(outcome(&here.post(PUSH, push).await), expected);
    until("the message arrives", async || channels(&there).await == [PUBSUB]).await;
}

/// Pushes a message by libp2p.
async fn push_by_libp2p(door: &Door, topic: &str, message: &WakuMessage) -> u32 {
    let light_push = LightPush::new(LightPushConfig::default(), door.waku.intake.clone(), None);
    let request = LightPushRequest {
        request_id: "r".to_owned(),
        pubsub_topic: Some(topic.to_owned()),
        message: Some(message.to_wire()),
    };
    let [service, _] = light_push.services();
    service.answer(libp2p::PeerId::random(), request.encode_to_vec().into()).await.status
}

/// REST accepted the message that libp2p refused, and libp2p refused a message that a REST client would have received.
#[tokio::test]
async fn both_doors_say_the_same_of_an_ephemeral_message() {
    let door = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    let json = json!({"payload": "AQID", "contentTopic": CHAT, "ephemeral": true});
    let push = json!({"pubsubTopic": PUBSUB, "message": json});
    let message = WakuMessage {
        payload: vec![1].into(),
        content_topic: CHAT.to_owned(),
        timestamp: Some(NOW.nanos()),
        ephemeral: Some(true),
        ..WakuMessage::default()
    };
    let nobody = "there are not enough peers to relay the message to: try another node";
    assert_eq!(outcome(&door.post(PUSH, &push).await), (505, json!({"statusDesc": nobody})));
    assert_eq!(door.post(PUSH_V1, &push).await.refusal(), (505, nobody));
    assert_eq!(push_by_libp2p(&door, PUBSUB, &message).await, 505);

    let filter = json!({"requestId": "r", "pubsubTopic": PUBSUB, "contentFilters": [CHAT]});
    assert_eq!(door.post("/filter/v2/subscriptions", filter).await.status, 200);
    assert_eq!(outcome(&door.post(PUSH, &push).await).0, 200);
    assert_eq!(door.post(PUSH_V1, &push).await.refusal(), (200, "OK"));
    assert_eq!(push_by_libp2p(&door, PUBSUB, &message).await, 200);
    let got = door.get(&format!("/filter/v2/messages/{}", escaped(CHAT))).await.json();
    assert_eq!(got.as_array().unwrap().len(), 2, "the same message twice is one: {got}");
}

#[tokio::test]
async fn refusals_are_json_with_the_protocols_status() {
    let door = door_with_rules(Rules {
        cluster_id: Some(16),
        max_message_bytes: nonzero!(1_000),
        ..Rules::default()
    })
    .await;
    let large = base64_simd::STANDARD.encode_to_string(vec![0; 1_000]);
    let (message, without) = (json!({"payload": "", "contentTopic": CHAT}), json!({"payload": ""}));
    let cases = [
        (
            json!({"pubsubTopic": "/waku/2/rs/1/0", "message": message}),
            421,
            "pubsubTopic: this server takes only",
        ),
        (json!({"pubsubTopic": "x", "message": message}), 400, "pubsubTopic: not a pubsub topic"),
        (json!({"pubsubTopic": PUBSUB}), 400, "message: is missing"),
        (json!({"pubsubTopic": PUBSUB, "message": {}}), 400, "payload: is missing"),
        (json!({"pubsubTopic": PUBSUB, "message": {"payload": 1}}), 400, "message: payload: invalid type"),
        (
            json!({"pubsubTopic": PUBSUB, "message": {"payload": "", "contentTopic": CHAT, "timestamp": 5}}),
            400,
            "timestamp: is",
        ),
        (
            json!({"pubsubTopic": PUBSUB, "message": {"payload": large, "contentTopic": CHAT}}),
            413,
            "message: ",
        ),
        (json!({"pubsubTopic": 5, "message": message}), 400, "pubsubTopic: invalid type"),
        (json!({"message": without}), 400, "contentTopic: is missing"),
        (json!({"pubsubTopic": PUBSUB, "message": without}), 400, "contentTopic: is missing"),
        (json!({"message": {"payload": "", "contentTopic": "x"}}), 400, "contentTopic: not a content topic"),
        (json!([]), 400, "invalid type: array, expected a push as a JSON object"),
    ];
    for (push, status, desc) in cases {
        let (answer_status, body) = outcome(&door.post(PUSH, &push).await);
        let answer_desc = body["statusDesc"].as_str().unwrap();
        assert!(answer_status == status && answer_desc.starts_with(desc), "{push}: {answer_status} {body}");
        assert_eq!(body.get("relayPeerCount"), None);
        assert_eq!(door.post(PUSH_V1, &push).await.refusal(), (status, answer_desc), "{push}");
    }
    assert_eq!(outcome(&door.send("POST", PUSH, "x".repeat(40_000)).await).0, 413);
    assert!(channels(&door).await.is_empty());
}

#[tokio::test]
async fn an_archive_error_is_returned_as_json() {
    let opened = memory().await;
    let failing = Failing::new(opened.archive.clone(), 0, ErrorKind::Unavailable);
    let door = door_over(Arc::new(failing), opened, RestConfig::default());
    let answer = door
        .post(PUSH, json!({"pubsubTopic": PUBSUB, "message": {"payload": "", "contentTopic": CHAT}}))
        .await;
    let desc = "the archive is unavailable: try again later";
    assert_eq!(outcome(&answer), (503, json!({"statusDesc": desc})));
    assert_eq!(answer.head[header::RETRY_AFTER], "1");
}
