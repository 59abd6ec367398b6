use serde_json::json;

use super::*;
use crate::filter::FilterClient;

const PEERS: &str = "/admin/v1/peers";
const OTHER: &str = "/waku/2/rs/17/5";

fn admin() -> RestConfig {
    RestConfig { admin: true, ..RestConfig::default() }
}

/// Two doors with nodes that are connected and know each other's topics.
async fn connected() -> (Door, Door) {
    let here = door_with_node(admin(), &[PUBSUB, OTHER]).await;
    let there = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    here.connect_to(&there).await;
    let is_known = async || {
        let peers = here.waku.node.as_ref().unwrap().peers();
        peers.iter().any(|peer| peer.topics.contains(PUBSUB) && !peer.protocols.is_empty())
    };
    until("the peer is known", is_known).await;
    (here, there)
}

#[tokio::test]
async fn without_the_setting_there_is_nothing_below_admin() {
    let door = door().await;
    for route in peer_routes() {
        let path = route.path.replace(['{', '}'], "");
        let answer = door.send(&route.method.to_uppercase(), &path, "").await;
        let text = "no such path: GET / names all; those below /admin are where operate.listen says, and here with --rest-admin";
        assert_eq!(answer.refusal(), (404, text), "{path}");
    }
    assert!(!door.get("/").await.text().contains("/admin/"));
    assert!(door_with(admin()).await.get("/").await.text().contains("/admin/v1/peers/stats"));
}

#[tokio::test]
async fn peers_are_shown_in_nwakus_words() {
    let (here, there) = connected().await;
    let id = there.waku.peer_id().unwrap();
    let peers = here.get(PEERS).await.json();
    let peer = peers[0].as_object().unwrap();
    let names: Vec<&str> = peer.keys().map(String::as_str).collect();
    assert_eq!(names, ["agent", "connected", "multiaddr", "origin", "protocols", "shards"]);
    assert!(peer["multiaddr"].as_str().unwrap().ends_with(&format!("/p2p/{id}")), "{peer:?}");
    assert_eq!((&peer["connected"], &peer["origin"]), (&json!("Connected"), &json!("UnknownOrigin")));
    assert_eq!((&peer["shards"], &peer["agent"]), (&json!([32]), &json!("restante/9.9.9")));
    let protocols = peer["protocols"].as_array().unwrap();
    assert!(protocols.contains(&json!("/vac/waku/relay/2.0.0")), "{protocols:?}");
    assert!(protocols.contains(&json!("/vac/waku/store-query/3.0.0")), "{protocols:?}");

    assert_eq!(here.get("/admin/v1/peers/connected").await.json().as_array().unwrap().len(), 1);
    assert_eq!(here.get(&format!("/admin/v1/peer/{id}")).await.json(), peers[0]);
    let service = here.get("/admin/v1/peers/service").await.json();
    let services = service[0]["protocols"].as_array().unwrap();
    assert!(services.contains(&json!("/vac/waku/store-query/3.0.0")), "{services:?}");
    assert!(!services.iter().any(|id| id.as_str().unwrap().starts_with("/ipfs/")), "{services:?}");
}

#[tokio::test]
async fn one_peer_is_asked_for_by_its_id() {
    let door = door_with(admin()).await;
    let stranger = format!("/admin/v1/peer/{}", libp2p::PeerId::random());
    assert_eq!(door.get(&stranger).await.refusal(), (404, "this peer is not connected"));
    assert_eq!(door.get("/admin/v1/peer/x").await.refusal(), (400, "peerId: is no peer id"));
}

#[tokio::test]
async fn peers_are_listed_by_shard() {
    let (here, _there) = connected().await;
    let peer = here.get(PEERS).await.json()[0].clone();
    let relay = here.get("/admin/v1/peers/relay").await.json();
    assert_eq!(relay, json!([{"shard": 5, "peers": []}, {"shard": 32, "peers": [peer]}]));
    let on = async |what: &str| here.get(&format!("/admin/v1/peers/{what}")).await.json();
    assert_eq!(on("relay/on/32").await, json!({"shard": 32, "peers": [peer]}));
    assert_eq!(on("relay/on/7").await, json!({"shard": 7, "peers": []}));
    assert_eq!(on("connected/on/32").await, json!([peer]));
    assert_eq!(on("connected/on/5").await, json!([]));
    until("the peer is in the mesh", async || on("mesh/on/32").await["peers"] == json!([peer])).await;
    assert_eq!(on("mesh").await, relay);
    for what in ["connected", "relay", "mesh"] {
        let answer = here.get(&format!("/admin/v1/peers/{what}/on/x")).await;
        assert_eq!(answer.refusal(), (400, "shardId: expected a whole number from 0 to 65535"));
    }
}

#[tokio::test]
async fn peers_are_counted() {
    let (here, _there) = connected().await;
    let in_mesh = async || here.get("/admin/v1/peers/stats").await.json()["Mesh peers"]["32"] == json!(1);
    until("the peer is in the mesh", in_mesh).await;
    let stats = here.get("/admin/v1/peers/stats").await.json();
    assert_eq!(stats["Sum"], json!({"Total peers": 1}));
    assert_eq!(stats["By Connectedness"]["Connected"], 1);
    assert_eq!(stats["Relay peers"], json!({"5": 0, "32": 1, "Total relay peers": 1}));
    assert_eq!(stats["Mesh peers"], json!({"5": 0, "32": 1, "Total mesh peers": 1}));
    assert_eq!(stats["By Protocols"]["/vac/waku/relay/2.0.0"], 1);
}

#[tokio::test]
async fn a_server_without_a_node_has_no_peers() {
    let door = door_with(admin()).await;
    assert_eq!(door.get(PEERS).await.json(), json!([]));
    assert_eq!(door.get("/admin/v1/peers/stats").await.json()["Sum"]["Total peers"], 0);
    assert_eq!(door.get("/admin/v1/peers/relay").await.refusal(), (503, "this server does not relay"));
    assert_eq!(door.get("/admin/v1/peers/mesh/on/1").await.refusal(), (503, "this server does not relay"));
    assert_eq!(door.post(PEERS, json!([])).await.refusal(), (503, "this server has no node"));
}

#[tokio::test]
async fn peers_are_connected_to_by_their_addresses() {
    let here = door_with_node(admin(), &[]).await;
    let there = door_with_node(RestConfig::default(), &[]).await;
    let addresses = json!([there.address().to_string()]);
    assert_eq!(here.post(PEERS, &addresses).await.refusal(), (200, "OK"));
    assert_eq!(here.waku.node.as_ref().unwrap().peers().len(), 1);
    assert_eq!(here.post(PEERS, &addresses).await.refusal(), (200, "OK"), "it is connected already");

    let nobody = format!("/ip4/127.0.0.1/tcp/1/p2p/{}", libp2p::PeerId::random());
    let many = vec![nobody.clone(); 33];
    let cases = [
        (
            json!([there.address().to_string(), "/ip4/127.0.0.1/tcp/1"]),
            400,
            "address 1 does not end with /p2p/<peer id>",
        ),
        (json!([there.address().to_string(), nobody]), 400, "peer 1: can't connect"),
        (json!(many), 400, "33 addresses are too many: a request has at most 32"),
        (json!({}), 400, "invalid type: object, expected an array"),
        (json!("x".repeat(40_000)), 413, "the body is too long"),
    ];
    for (body, status, text) in cases {
        let answer = here.post(PEERS, &body).await;
        assert!(answer.status == status && answer.text().starts_with(text), "{}", answer.text());
    }
}

#[tokio::test]
async fn subscriptions_of_peers_are_listed() {
    let (path, here) = ("/admin/v1/filter/subscriptions", door_with_node(admin(), &[]).await);
    assert_eq!(here.get(path).await.json(), json!([]));
    let there = door_with_node(RestConfig::default(), &[]).await;
    there.connect_to(&here).await;
    let client = FilterClient::new(there.waku.node.clone().unwrap());
    client.subscribe(here.waku.peer_id().unwrap(), PUBSUB, &[CHAT, "/a/1/b/c"]).await.unwrap();
    let criterion = |topic: &str| json!({"pubsubTopic": PUBSUB, "contentTopic": topic});
    let id = there.waku.peer_id().unwrap().to_string();
    let expected = json!([{"peerId": id, "filterCriteria": [criterion("/a/1/b/c"), criterion(CHAT)]}]);
    assert_eq!(here.get(path).await.json(), expected);
    let without = door_with(admin()).await.get(path).await;
    assert_eq!(without.refusal(), (400, "this server offers no filter to peers"));
}

#[tokio::test]
async fn the_log_level_is_set_where_that_can_be_done() {
    let door = door_with(admin()).await;
    assert_eq!(door.post("/admin/v1/log-level/debug", "").await.refusal(), (200, "OK"));
    let wrong = door.post("/admin/v1/log-level/loud", "").await;
    assert_eq!(wrong.refusal(), (400, "logLevel: is no level of this test"));
    let long = door.post(&format!("/admin/v1/log-level/{}", "x".repeat(300)), "").await;
    assert_eq!(long.refusal(), (400, "logLevel: is too long"));
}

/// A route of the server whose answer identifies it.
pub(super) fn operator_route(method: &'static str, path: &'static str) -> Route {
    let (what, handler) = ("something else", async || "the server");
    let route = match method {
        "post" => Route::post(path, what, handler),
        _ => Route::get(path, what, handler),
    };
    route.with_audience(Audience::Operators)
}

#[tokio::test]
async fn what_the_server_adds_is_guarded_as_the_doors_own() {
    let path = "/admin/v1/other";
    let with_route = |door: Door| door.with_operator_routes(vec![operator_route("post", path)]);
    assert_eq!(
        with_route(door().await).post(path, "").await.status,
        404,
        "the door has nothing for operators"
    );

    let door = with_route(door_with(admin()).await);
    assert_eq!(door.post(path, "").await.text(), "the server");
    assert_eq!(door.get(path).await.status, 405);
    let listed = door.get("/").await;
    assert!(listed.text().contains("POST   /admin/v1/other"), "{}", listed.text());

    let token = Token::new("correct-horse-battery").unwrap();
    let door = door.with_operators(OperatorGuard::new(Some(token), LOOPBACK));
    assert_eq!(door.post(path, "").await.status, 401);
}

/// Its path need not look like an operator's route.
#[tokio::test]
async fn what_the_server_adds_is_guarded_whatever_its_path_is() {
    let token = Token::new("correct-horse-battery").unwrap();
    let door = door_with(admin()).await.with_operator_routes(vec![operator_route("get", "/elsewhere")]);
    assert_eq!(door.get("/elsewhere").await.text(), "the server");
    let door = door.with_operators(OperatorGuard::new(Some(token), LOOPBACK));
    assert_eq!(door.get("/elsewhere").await.status, 401);
}
