//! Lightpush over a memory archive, and over real nodes on loopback.

mod network;

use restante_archive::{Appended, Archive, Config, Error, Message as Archived, Page, Query, open};
use restante_core::{ManualClock, Timestamp};
use restante_waku_wire::{
    WakuMessage,
    rpc::light_push::{PushRequest, PushResponse, PushRpc},
};

use super::*;
use crate::{WakuMetrics, intake::HandoverConfig, validate::Rules};

const NOW: Timestamp = Timestamp::from_seconds(1_700_000_000);
const PUBSUB: &str = "/waku/2/rs/42/3";
/// Falls into shard 3 of 8.
const CHAT: &str = "/toychat/2/huilong/proto";

async fn memory() -> Arc<dyn Archive> {
    open(Config::new("memory:".parse().unwrap())).await.unwrap().archive
}

fn rules() -> Rules {
    Rules { cluster_id: Some(42), shards: vec![3], ..Rules::default() }
}

fn push_over(archive: Arc<dyn Archive>, config: LightPushConfig) -> LightPush {
    let (clock, metrics) = (Arc::new(ManualClock::new(NOW)), WakuMetrics::default());
    let intake = Intake::new(archive, clock, rules(), HandoverConfig::default(), metrics.intake);
    intake.connect(Vec::new(), None);
    LightPush::new(config, intake, None)
}

fn message() -> WakuMessage {
    WakuMessage {
        payload: "hello".into(),
        content_topic: CHAT.to_owned(),
        timestamp: Some(NOW.nanos()),
        ..WakuMessage::default()
    }
}

fn request(pubsub_topic: Option<&str>, message: Option<Bytes>) -> LightPushRequest {
    LightPushRequest { request_id: "id".to_owned(), pubsub_topic: pubsub_topic.map(str::to_owned), message }
}

async fn ask(light_push: &LightPush, request: &LightPushRequest) -> LightPushResponse {
    let answer = Service::answer(light_push, PeerId::random(), request.encode_to_vec().into()).await;
    let response = LightPushResponse::decode_length_delimited(&*answer.frame.unwrap()).unwrap();
    assert_eq!((&*response.request_id, response.status_code), ("id", answer.status));
    response
}

async fn ask_legacy(light_push: &LightPush, pubsub_topic: &str, message: Option<Bytes>) -> PushResponse {
    let request = PushRequest { pubsub_topic: pubsub_topic.to_owned(), message };
    let rpc = PushRpc { request_id: "id".to_owned(), request: Some(request), response: None };
    let [_, legacy] = light_push.services();
    let answer = legacy.answer(PeerId::random(), rpc.encode_to_vec().into()).await;
    let rpc = PushRpc::decode_length_delimited(&*answer.frame.unwrap()).unwrap();
    assert_eq!((&*rpc.request_id, rpc.request), ("id", None));
    let response = rpc.response.unwrap();
    assert_eq!(response.is_success, answer.status == 200);
    response
}

async fn archived(archive: &dyn Archive) -> Vec<(String, Bytes)> {
    let page = archive.query(&Query::default()).await.unwrap();
    page.rows().map(|row| (row.channel.to_owned(), Bytes::copy_from_slice(row.body))).collect()
}

#[tokio::test]
async fn a_pushed_message_is_archived_before_it_is_answered() {
    let archive = memory().await;
    let light_push = push_over(archive.clone(), LightPushConfig::default());
    let wire = message().to_wire();
    let response = ask(&light_push, &request(Some(PUBSUB), Some(wire.clone()))).await;
    let expected = LightPushResponse {
        request_id: "id".to_owned(),
        status_code: 200,
        status_desc: Some("OK".to_owned()),
        relay_peer_count: Some(0),
    };
    assert_eq!(response, expected);
    assert_eq!(archived(&*archive).await, [(PUBSUB.to_owned(), wire.clone())]);
    let again = ask(&light_push, &request(Some(PUBSUB), Some(wire))).await;
    assert_eq!(again.status_code, 200, "a client may send a message again");
    assert_eq!(archived(&*archive).await.len(), 1);
}

#[tokio::test]
async fn without_a_pubsub_topic_the_content_topic_determines_the_shard() {
    let archive = memory().await;
    let light_push = push_over(archive.clone(), LightPushConfig::default());
    for (pubsub_topic, payload) in [(None, "absent"), (Some(""), "empty")] {
        let wire = WakuMessage { payload: payload.into(), ..message() }.to_wire();
        assert_eq!(ask(&light_push, &request(pubsub_topic, Some(wire))).await.status_code, 200);
    }
    let found = archived(&*archive).await;
    assert!(found.len() == 2 && found.iter().all(|(pubsub_topic, _)| pubsub_topic == PUBSUB));
    let elsewhere = WakuMessage { content_topic: "/myapp/1/x/cbor".into(), ..message() }.to_wire();
    assert_eq!(ask(&light_push, &request(None, Some(elsewhere))).await.status_code, 421);
    let shapeless = WakuMessage { content_topic: "shapeless".into(), ..message() }.to_wire();
    let response = ask(&light_push, &request(None, Some(shapeless))).await;
    assert_eq!(response.status_code, 400);
    assert!(response.status_desc.unwrap().starts_with("contentTopic"));
}

#[tokio::test]
async fn errors_are_reported_in_both_versions() {
    let archive = memory().await;
    let light_push = push_over(archive.clone(), LightPushConfig::default());
    let with = |change: fn(&mut WakuMessage)| {
        let mut message = message();
        change(&mut message);
        Some(message.to_wire())
    };
    let too_large = with(|message| message.payload = vec![0; 151 << 10].into());
    let cases = [
        (PUBSUB, too_large, 413, "message: 154"),
        ("/waku/2/rs/42/4", with(|_| {}), 421, "pubsubTopic: "),
        ("/waku/2/rs/1/3", with(|_| {}), 421, "pubsubTopic: "),
        ("nonsense", with(|_| {}), 400, "pubsubTopic: "),
        (PUBSUB, None, 400, "message: is missing"),
        (PUBSUB, Some("\u{ff}".into()), 400, "message: "),
        (PUBSUB, with(|message| message.content_topic.clear()), 400, "contentTopic: is missing"),
        (PUBSUB, with(|message| message.timestamp = None), 400, "timestamp: is missing"),
        (PUBSUB, with(|message| message.timestamp = Some(0)), 400, "timestamp: "),
        (PUBSUB, with(|message| message.meta = Some(vec![0; 65].into())), 400, "meta: "),
    ];
    for (pubsub_topic, wire, status, text) in cases {
        let response = ask(&light_push, &request(Some(pubsub_topic), wire.clone())).await;
        let text_of_answer = response.status_desc.unwrap();
        assert_eq!((response.status_code, response.relay_peer_count), (status, None), "{text_of_answer}");
        assert!(text_of_answer.starts_with(text), "{text_of_answer}");
        let legacy = ask_legacy(&light_push, pubsub_topic, wire).await;
        assert_eq!((legacy.is_success, legacy.info), (false, Some(text_of_answer)));
    }
    assert_eq!(archived(&*archive).await, []);
}

#[tokio::test]
async fn version_2_publishes_too() {
    let archive = memory().await;
    let light_push = push_over(archive.clone(), LightPushConfig::default());
    let response = ask_legacy(&light_push, PUBSUB, Some(message().to_wire())).await;
    assert_eq!((response.is_success, response.info.as_deref()), (true, Some("OK")));
    assert_eq!(archived(&*archive).await.len(), 1);
}

#[tokio::test]
async fn invalid_and_too_frequent_requests_are_answered() {
    let light_push = push_over(memory().await, LightPushConfig::default());
    let [present, legacy] = light_push.services();
    let garbage = Bytes::from_static(b"\xff\xff\xff");
    let answer = present.answer(PeerId::random(), garbage.clone()).await;
    let response = LightPushResponse::decode_length_delimited(&*answer.frame.unwrap()).unwrap();
    assert_eq!((response.status_code, &*response.request_id), (400, "N/A"));
    let answer = legacy.answer(PeerId::random(), garbage).await;
    let rpc = PushRpc::decode_length_delimited(&*answer.frame.unwrap()).unwrap();
    assert_eq!((rpc.response.unwrap().is_success, &*rpc.request_id), (false, "N/A"));
    let empty = PushRpc { request_id: "id".to_owned(), request: None, response: None };
    let answer = legacy.answer(PeerId::random(), empty.encode_to_vec().into()).await;
    assert_eq!(answer.status, 400);
    let often = present.answer_too_often(request(None, None).encode_to_vec().into());
    let response = LightPushResponse::decode_length_delimited(&*often.frame.unwrap()).unwrap();
    assert_eq!((response.status_code, &*response.request_id), (429, "id"));
    assert_eq!(legacy.answer_too_often(empty.encode_to_vec().into()).status, 429);
}

#[tokio::test]
async fn without_enough_relay_peers_a_message_is_refused() {
    let archive = memory().await;
    let light_push = push_over(archive.clone(), LightPushConfig { relay_peers_min: 1 });
    let response = ask(&light_push, &request(Some(PUBSUB), Some(message().to_wire()))).await;
    assert_eq!(response.status_code, 505);
    assert_eq!(archived(&*archive).await, []);
    let unserved = ask(&light_push, &request(Some("/waku/2/rs/42/4"), Some(message().to_wire()))).await;
    assert_eq!(unserved.status_code, 421, "a topic that is not served is another error");
}

#[tokio::test]
async fn an_ephemeral_message_without_recipients_is_refused() {
    let archive = memory().await;
    let light_push = push_over(archive.clone(), LightPushConfig::default());
    let wire = WakuMessage { ephemeral: Some(true), ..message() }.to_wire();
    assert_eq!(ask(&light_push, &request(Some(PUBSUB), Some(wire))).await.status_code, 505);
    assert_eq!(archived(&*archive).await, []);
}

/// An archive that fails in one way.
struct Broken(ErrorKind);

#[async_trait]
impl Archive for Broken {
    async fn append(&self, _: Vec<Archived>) -> Result<Vec<Appended>, Error> {
        Err(Error::new(self.0, "the disk at /secret/path"))
    }

    async fn query(&self, _: &Query) -> Result<Page, Error> {
        Err(Error::new(self.0, "the disk"))
    }
}

#[tokio::test]
async fn errors_of_the_archive_are_reported_without_internals() {
    for (kind, status) in [
        (ErrorKind::Unavailable, 503),
        (ErrorKind::Full, 503),
        (ErrorKind::Corrupt, 500),
        (ErrorKind::Internal, 500),
    ] {
        let light_push = push_over(Arc::new(Broken(kind)), LightPushConfig::default());
        let response = ask(&light_push, &request(Some(PUBSUB), Some(message().to_wire()))).await;
        assert_eq!(response.status_code, status);
        assert!(!response.status_desc.unwrap().contains("secret"));
    }
}
