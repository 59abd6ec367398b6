use serde_json::json;

use super::*;
use crate::node::PeerAddress;

const STORE: &str = "/store/v3/messages";

fn admin() -> RestConfig {
    RestConfig { admin: true, ..RestConfig::default() }
}

fn at(peer: &Door, query: &str) -> String {
    format!("{STORE}?peerAddr={}&{query}", escaped(&peer.address().to_string()))
}

#[tokio::test]
async fn another_nodes_history_is_shown_as_our_own() {
    let here = door_with_node(admin(), &[]).await;
    let there = door_with_node(RestConfig::default(), &[]).await;
    for second in 0..5 {
        there.publish(&format!("m{second}"), second).await;
    }
    for query in [
        "includeData=true&pageSize=2",
        "pageSize=3&ascending=false",
        "includeData=true&contentTopics=/toychat/2/huilong/proto&pubsubTopic=/waku/2/rs/16/32",
        "includeData=true&startTime=1700000001000000000&endTime=1700000003000000000",
        "contentTopics=/nobody/1/x/y",
    ] {
        let own = there.get(&format!("{STORE}?{query}")).await;
        assert_eq!(here.get(&at(&there, query)).await.json(), own.json(), "{query}");
    }
    let first = here.get(&at(&there, "pageSize=2")).await.json();
    let cursor = first["paginationCursor"].as_str().unwrap();
    let next = here.get(&at(&there, &format!("includeData=true&pageSize=2&cursor={cursor}"))).await.json();
    assert_eq!(payloads(&next), ["m2", "m3"]);
    let hashes = format!("includeData=true&hashes={cursor}");
    assert_eq!(payloads(&here.get(&at(&there, &hashes)).await.json()), ["m1"]);
    let asked = json!({"peerAddr": there.address().to_string(), "pageSize": 1, "includeData": true});
    assert_eq!(payloads(&here.post(STORE, asked).await.json()), ["m0"]);
}

/// Otherwise any client could make the server connect to any host of its network.
#[tokio::test]
async fn without_admin_only_connected_peers_are_asked() {
    let here = door_with_node(RestConfig::default(), &[]).await;
    let there = door_with_node(RestConfig::default(), &[]).await;
    let refused = here.get(&at(&there, "")).await;
    assert!(refused.status == 403 && refused.text().contains("rest.admin"), "{}", refused.text());
    assert!(here.waku.node.as_ref().unwrap().peers().is_empty(), "nobody was dialled");
    here.connect_to(&there).await;
    assert_eq!(here.get(&at(&there, "")).await.json()["statusCode"], 200);
}

/// With a token there are operators, and dialling is reserved for them, regardless of other settings.
#[tokio::test]
async fn with_a_token_only_who_shows_it_has_the_node_dial() {
    const SECRET: &str = "correct-horse-battery";
    let there = door_with_node(RestConfig::default(), &[]).await;
    for config in [RestConfig::default(), admin()] {
        let access = OperatorGuard::new(Some(Token::new(SECRET).unwrap()), LOOPBACK);
        let here = door_with_node(config, &[]).await.with_operators(access);
        assert_eq!(here.get(&at(&there, "")).await.refusal().0, 403);
        let asked = json!({"peerAddr": there.address().to_string()});
        assert_eq!(here.post(STORE, asked).await.refusal().0, 403);
        assert!(here.waku.node.as_ref().unwrap().peers().is_empty(), "nobody was dialled");
        let request = Request::get(at(&there, "")).header("authorization", format!("Bearer {SECRET}"));
        let request = request.body(Body::empty()).unwrap();
        let answer = Answer::of(here.router.clone().oneshot(request).await.unwrap()).await;
        assert_eq!(answer.json()["statusCode"], 200);
    }
}

#[tokio::test]
async fn the_own_address_means_the_own_archive() {
    let door = door_with_node(RestConfig::default(), &[]).await;
    door.publish("own", 0).await;
    assert_eq!(payloads(&door.get(&at(&door, "includeData=true")).await.json()), ["own"]);
}

#[tokio::test]
async fn peers_that_can_not_be_asked_have_a_status_of_their_own() {
    let peer = libp2p::PeerId::random();
    let nobody = format!("{STORE}?peerAddr=/ip4/127.0.0.1/tcp/1/p2p/{peer}");
    let answer = door().await.get(&nobody).await;
    assert_eq!(answer.refusal(), (412, "peerAddr: this server has no node that could ask another"));
    let door = door_with_node(admin(), &[]).await;
    assert_eq!(door.get(&nobody).await.refusal(), (504, "peerAddr: can't connect to this peer"));
    let bloom = format!("{nobody}&bloom={}", restante_core::Bloom::FULL);
    assert_eq!(door.get(&bloom).await.refusal(), (400, "bloom: does not go together with peerAddr"));
}

#[tokio::test]
async fn a_peers_refusal_is_passed_on() {
    let here = door_with_node(admin(), &[]).await;
    let there = door_with_node(RestConfig::default(), &[]).await;
    let unknown = format!("cursor={}", "0".repeat(64));
    let text = "the peer answered 300: BAD_RESPONSE: cursor not found";
    assert_eq!(here.get(&at(&there, &unknown)).await.refusal(), (502, text));
}

#[tokio::test]
async fn a_peer_that_does_not_answer_is_not_waited_for_longer_than_the_time_out() {
    let here = door_with_node(RestConfig { request_timeout_ms: nonzero!(200), ..admin() }, &[]).await;
    let opened = memory().await;
    let silent = SilentAfter { inner: opened.archive.clone(), queries: 0.into() };
    let there = start_door(Arc::new(silent), opened.upkeep, RestConfig::default(), waku_with_node(&[])).await;
    here.connect_to(&there).await;
    let answer = here.get(&at(&there, "")).await;
    assert_eq!(answer.refusal(), (504, "the peer did not answer in time"));
}

/// A peer's answer may be long, and is in memory twice while it is rewritten.
#[tokio::test]
async fn only_so_many_queries_at_once_go_to_other_nodes() {
    let here = door_with_node(RestConfig { request_timeout_ms: nonzero!(1_000), ..admin() }, &[]).await;
    let opened = memory().await;
    let silent = SilentAfter { inner: opened.archive.clone(), queries: 0.into() };
    let there = start_door(Arc::new(silent), opened.upkeep, RestConfig::default(), waku_with_node(&[])).await;
    here.connect_to(&there).await;
    let path = at(&there, "");
    let answers = (0..=REMOTE_QUERIES_MAX).map(|_| async { here.get(&path).await.status });
    let statuses = futures_util::future::join_all(answers).await;
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 1);
    assert_eq!(statuses.iter().filter(|status| **status == 504).count(), REMOTE_QUERIES_MAX);
}

/// A peer's answer is not trusted more than a client's request.
#[test]
fn answers_that_make_no_sense_are_not_shown() {
    use crate::rest::json::{Malformed, write_remote_answer};
    use restante_waku_wire::rpc::store::{KeyValue, StoreQueryResponse};

    let entry = |hash: &'static [u8], message: Option<&'static [u8]>| StoreQueryResponse {
        messages: vec![KeyValue {
            message_hash: Some(hash.into()),
            message: message.map(Into::into),
            pubsub_topic: None,
        }],
        ..StoreQueryResponse::default()
    };
    assert_eq!(write_remote_answer(&entry(&[1; 31], None), false), Err(Malformed));
    assert_eq!(write_remote_answer(&entry(&[1; 32], None), true), Err(Malformed));
    assert_eq!(write_remote_answer(&entry(&[1; 32], Some(&[0xff])), true), Err(Malformed));
    let cursor = StoreQueryResponse { pagination_cursor: Some(vec![1].into()), ..Default::default() };
    assert_eq!(write_remote_answer(&cursor, true), Err(Malformed));
    let written = write_remote_answer(&entry(&[1; 32], Some(&[0xff])), false).unwrap();
    let written: Value = serde_json::from_slice(&written).unwrap();
    assert_eq!(written["messages"], json!([{"messageHash": format!("0x{}", "01".repeat(32))}]));
}

#[test]
fn addresses_are_parsed_once_and_bounded() {
    let peer = libp2p::PeerId::random();
    let text = format!("/dns4/node.example/tcp/8000/ws/p2p/{peer}");
    let parsed = text.parse::<PeerAddress>().unwrap();
    assert_eq!((parsed.address.to_string(), parsed.peer), (text, peer));
    for wrong in [
        "",
        "x",
        "/ip4/127.0.0.1/tcp/1",
        "enr:-abc",
        "/ip4/10.0.0.1/tcp/1/p2p/me",
        &format!("/dns4/{}/tcp/1/p2p/{peer}", "x".repeat(1_000)),
    ] {
        assert!(wrong.parse::<PeerAddress>().is_err(), "{wrong}");
    }
}
