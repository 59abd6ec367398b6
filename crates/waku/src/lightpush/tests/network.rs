use super::*;
use crate::filter::tests::network::{LightNode, Server, now_wire, soon};

const PUBSUB: &str = "/waku/2/rs/42/0";

async fn push_client(server: &Server) -> (LightNode, LightPushClient) {
    let light = LightNode::start().await;
    light.node.connect(server.address()).await.unwrap();
    let client = LightPushClient::new(light.node.clone());
    (light, client)
}

async fn bodies(server: &Server) -> Vec<Bytes> {
    archived(&*server.archive).await.into_iter().map(|(_, body)| body).collect()
}

/// Two service nodes that relay to each other.
async fn pair() -> (Server, Server) {
    let (one, other) = (Server::start(|_| {}).await, Server::start(|_| {}).await);
    one.node().connect(other.address()).await.unwrap();
    soon("both relay to each other", async || {
        let follows =
            |server: &Server, peer| server.node().peer(peer).is_some_and(|info| info.topics.contains(PUBSUB));
        follows(&one, other.peer()) && follows(&other, one.peer())
    })
    .await;
    (one, other)
}

#[tokio::test]
async fn a_pushed_message_is_archived_relayed_and_delivered_by_filter() {
    let (one, other) = pair().await;
    let (mut sender, client) = push_client(&one).await;
    sender.filter.subscribe(one.peer(), PUBSUB, &[CHAT]).await.unwrap();
    let mut reader = LightNode::subscribed(&other).await;
    let (first, second) = (now_wire(1, 1_000), now_wire(2, 1_000));
    let pushed = client.push(one.peer(), Some(PUBSUB), first.clone()).await.unwrap();
    assert_eq!(pushed, PushedTo { relay_peers: Some(1) });
    assert!(bodies(&one).await.contains(&first), "durable when it is answered");
    assert_eq!(reader.next().await.wire, first);
    assert_eq!(sender.next().await.wire, first, "the sender is a subscriber like others");
    let pushed = client.push_legacy(one.peer(), PUBSUB, second.clone()).await.unwrap();
    assert_eq!(pushed.relay_peers, None);
    assert_eq!(reader.next().await.wire, second);
    soon("the other archives both", async || bodies(&other).await == [first.clone(), second.clone()]).await;
}

#[tokio::test]
async fn wrong_messages_get_their_status_over_the_network() {
    let server = Server::start(|_| {}).await;
    let (_light, client) = push_client(&server).await;
    let status = async |pubsub_topic, wire| match client.push(server.peer(), Some(pubsub_topic), wire).await {
        Ok(_) => 200,
        Err(LightPushError::Refused { status, .. }) => status,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(status(PUBSUB, now_wire(1, 140 << 10)).await, 200);
    assert_eq!(status(PUBSUB, now_wire(1, 151 << 10)).await, 413);
    assert_eq!(status("/waku/2/rs/41/0", now_wire(1, 10)).await, 421);
    assert_eq!(status(PUBSUB, Bytes::new()).await, 400);
    let far_too_large = client.push(server.peer(), Some(PUBSUB), now_wire(1, 1 << 20)).await;
    assert!(matches!(far_too_large, Err(LightPushError::Ask(_))), "the stream is reset");
    let legacy = client.push_legacy(server.peer(), PUBSUB, now_wire(1, 151 << 10)).await;
    assert!(matches!(legacy, Err(LightPushError::Refused { status: 0, .. })));
    assert_eq!(bodies(&server).await.len(), 1);
}

#[tokio::test]
async fn an_ephemeral_message_needs_a_subscriber() {
    let server = Server::start(|_| {}).await;
    let (_light, client) = push_client(&server).await;
    let ephemeral = |number| {
        let message = WakuMessage::from_wire(&now_wire(number, 10)).unwrap();
        WakuMessage { ephemeral: Some(true), ..message }.to_wire()
    };
    let refused = client.push(server.peer(), Some(PUBSUB), ephemeral(1)).await;
    assert!(matches!(refused, Err(LightPushError::Refused { status: 505, .. })));
    let mut reader = LightNode::subscribed(&server).await;
    let wire = ephemeral(2);
    client.push(server.peer(), Some(PUBSUB), wire.clone()).await.unwrap();
    assert_eq!(reader.next().await.wire, wire);
    assert_eq!(bodies(&server).await, [] as [Bytes; 0]);
}

#[tokio::test]
async fn relay_peers_are_counted_when_some_are_required() {
    let server = Server::start(|config| config.light_push.relay_peers_min = 1).await;
    let (_light, client) = push_client(&server).await;
    let refused = client.push(server.peer(), Some(PUBSUB), now_wire(1, 10)).await;
    assert!(matches!(refused, Err(LightPushError::Refused { status: 505, .. })));
    let other = Server::start(|_| {}).await;
    other.node().connect(server.address()).await.unwrap();
    soon("a relay peer has come", async || {
        client.push(server.peer(), Some(PUBSUB), now_wire(2, 10)).await.is_ok()
    })
    .await;
}
