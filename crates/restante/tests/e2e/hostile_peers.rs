//! Broken and hostile peers: they are refused, in bounded memory, and others are served meanwhile.

use std::{net::TcpStream, path::Path, sync::Arc};

use futures_util::{AsyncReadExt, AsyncWriteExt, future::join_all};
use prost::Message;
use restante_archive::{Config, open};
use restante_core::SystemClock;
use restante_waku::{
    Keypair, Multiaddr, PeerId, WakuMetrics,
    intake::{HandoverConfig, Intake},
    node::{Node, NodeConfig},
    rates::Limiter,
    validate::Rules,
};
use restante_waku_wire::{
    WakuMessage,
    rpc::{self, filter, light_push, metadata, peer_exchange, store},
};
use serde_json::Value;

use crate::support::{Server, folder, now, wait_until};

const PUBSUB_TOPIC: &str = "/waku/2/rs/42/0";
const CONTENT_TOPIC: &str = "/toy/1/chat/proto";
/// By how much a server may grow beyond its memory at start, whatever peers do: the sum of its settings, and the
/// allocator's share.
const GROWTH_BYTES_MAX: u64 = 500 << 20;
const MIB: u64 = 1 << 20;

/// A server with settings of its own.
fn start(folder: &Path, settings: &str) -> Server {
    std::fs::write(folder.join("restante.toml"), settings).unwrap();
    let flags = ["--archive", "memory:", "--cluster-id", "42", "--shard", "0", "--log-level", "error"];
    Server::start_with(folder, &flags)
}

fn address_of(server: &Server) -> Multiaddr {
    let info: Value = serde_json::from_str(&server.get("/info").body).unwrap();
    let addresses = info["listenAddresses"].as_array().unwrap();
    let address = addresses.iter().filter_map(Value::as_str).find(|address| address.contains("/p2p/"));
    address.expect("the server says where its node is").parse().unwrap()
}

/// A peer of its own, and its node.
async fn peer() -> Node {
    let config = NodeConfig {
        relay: Some(vec![PUBSUB_TOPIC.to_owned()]),
        ..NodeConfig::new(Keypair::generate_secp256k1())
    };
    let archive = open(Config::new("memory:".parse().unwrap())).await.unwrap().archive;
    let metrics = WakuMetrics::default();
    let intake = Intake::new(
        archive,
        Arc::new(SystemClock),
        Rules::default(),
        HandoverConfig::default(),
        metrics.intake.clone(),
    );
    let (node, unstarted) = Node::new(config, metrics.node.clone());
    unstarted.start(Vec::new(), Limiter::default(), intake).await.unwrap();
    node
}

pub(crate) async fn connected_peer(server: &Server) -> (Node, PeerId) {
    let node = peer().await;
    let server = node.connect(address_of(server)).await.unwrap();
    (node, server)
}

/// The status of the answer to a store query.
async fn query(node: &Node, server: PeerId) -> Option<u32> {
    let request = store::StoreQueryRequest { request_id: "q".into(), ..Default::default() };
    let answer = node.ask(server, store::ID, &rpc::frame(&request), 64 << 20).await.ok()?;
    store::StoreQueryResponse::decode(answer).ok()?.status_code
}

/// An honest peer connects, and is served.
pub(crate) async fn others_are_served(server: &Server) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let node = peer().await;
        if let Ok(id) = node.connect(address_of(server)).await
            && query(&node, id).await == Some(200)
        {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "nobody else is served");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Bytes of the server's private memory.
pub(crate) fn memory(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn message(n: u32, payload: Vec<u8>) -> WakuMessage {
    WakuMessage {
        payload: payload.into(),
        content_topic: CONTENT_TOPIC.into(),
        timestamp: Some(now() + i64::from(n)),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_frames_are_refused_before_they_are_read() {
    let (_guard, folder) = folder();
    let server = start(&folder, "");
    let before = memory(&server);
    let (node, id) = connected_peer(&server).await;
    for protocol in [store::ID, filter::SUBSCRIBE_ID, light_push::ID, metadata::ID, peer_exchange::ID] {
        let mut streams = Vec::new();
        for _ in 0..20 {
            let mut stream = node.open(id, protocol).await.unwrap();
            let mut said = Vec::new();
            prost::encoding::encode_varint(1 << 40, &mut said);
            said.resize(60_000, 0xff);
            let _ = stream.write_all(&said).await; // the server may have reset the stream already
            let _ = stream.flush().await;
            streams.push(stream);
        }
        for mut stream in streams {
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            assert_eq!(answer, b"", "{protocol} answers what it has not read");
        }
    }
    assert_eq!(query(&node, id).await, Some(200), "the same connection goes on");
    others_are_served(&server).await;
    assert!(memory(&server) < before + 100 * MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_and_streams_hold_up_nobody() {
    let (_guard, folder) = folder();
    let server = start(&folder, "[waku.limits]\nhandshakes_max = 20\nhandshake_timeout_ms = 500\n");
    let address = address_of(&server).to_string();
    let port = address.split('/').nth(4).unwrap().to_owned();
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(format!("127.0.0.1:{port}")).unwrap()).collect();
    others_are_served(&server).await;

    let (node, id) = connected_peer(&server).await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        let mut stream = node.open(id, store::ID).await.unwrap();
        let _ = stream.flush().await; // names the protocol, and sends no more; the server refuses some
        streams.push(stream);
    }
    others_are_served(&server).await;
    drop(streams);
    wait_until("the same connection is served again", || {
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(query(&node, id)))
            == Some(200)
    });
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_make_room() {
    let (_guard, folder) = folder();
    let server = start(&folder, "[waku.limits]\nconnections_max = 200\n");
    let before = memory(&server);
    let mut idle = Vec::new();
    for _ in 0..20 {
        let some = join_all((0..50).map(|_| async {
            let node = peer().await;
            let connected = node.connect(address_of(&server)).await;
            (node, connected)
        }))
        .await;
        idle.extend(some);
    }
    assert_eq!(idle.len(), 1_000);
    others_are_served(&server).await;
    let connections = || {
        let metrics = server.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("restante_waku_connections "));
        line.unwrap().trim().parse::<u32>().unwrap()
    };
    wait_until("the limit is kept", || connections() <= 200);
    assert!(memory(&server) < before + 200 * MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_answered_or_reset() {
    let (_guard, folder) = folder();
    let mut server = start(&folder, "");
    let (node, id) = connected_peer(&server).await;
    let garbage: [&[u8]; 6] =
        [b"\xff", b"\x0a\xff\xff\xff\x7f", &[0xff; 300], b"\x00\x00", b"\x0b\x0b\x0b", &[0x0a; 999]];
    let protocols = [
        store::ID,
        filter::SUBSCRIBE_ID,
        light_push::ID,
        light_push::LEGACY_ID,
        metadata::ID,
        peer_exchange::ID,
    ];
    for protocol in protocols {
        for bytes in garbage {
            let mut frame = Vec::new();
            prost::encoding::encode_varint(bytes.len() as u64, &mut frame);
            frame.extend_from_slice(bytes);
            let _ = node.ask(id, protocol, &frame, 1 << 20).await; // an answer that refuses, or no answer
        }
    }
    let undecodable = node.ask(id, store::ID, b"\x01\xff", 1 << 20).await.unwrap();
    let undecodable = store::StoreQueryResponse::decode(undecodable).unwrap();
    assert_eq!(undecodable.status_code, Some(400));
    for n in 0..50_u8 {
        let _ = node.publish(PUBSUB_TOPIC, vec![0xff, n].into()).await; // relayed garbage
    }
    assert!(server.is_running());
    others_are_served(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_cost_bounded_memory() {
    let (_guard, folder) = folder();
    let server = start(&folder, "[waku.limits]\nrequest_timeout_ms = 3000\n");
    let (publisher, id) = connected_peer(&server).await;
    for n in 0..100 {
        let request = light_push::LightPushRequest {
            request_id: "p".into(),
            pubsub_topic: Some(PUBSUB_TOPIC.to_owned()),
            message: Some(message(n, vec![n as u8; 140_000]).to_wire()),
        };
        let answer = publisher.ask(id, light_push::ID, &rpc::frame(&request), 1 << 20).await.unwrap();
        let answer = light_push::LightPushResponse::decode(answer).unwrap();
        assert_eq!(answer.status_code, 200, "{answer:?}");
    }
    let before = memory(&server);
    let request = store::StoreQueryRequest {
        request_id: "slow".into(),
        include_data: true,
        pagination_limit: Some(100),
        ..Default::default()
    };
    let frame = rpc::frame(&request);
    let mut held = Vec::new();
    for _ in 0..10 {
        let (node, id) = connected_peer(&server).await;
        for _ in 0..20 {
            let Ok(mut stream) = node.open(id, store::ID).await else { continue };
            let _ = stream.write_all(&frame).await;
            let _ = stream.flush().await;
            held.push((node.clone(), stream)); // 14 MB that nobody reads, 200 times
        }
    }
    let mut most = 0;
    for _ in 0..10 {
        others_are_served(&server).await;
        most = most.max(memory(&server));
    }
    let growth = most.saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "the server grew by {} MiB", growth / MIB);
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_are_cut_off_for_the_one_who_floods() {
    let (_guard, folder) = folder();
    let server = start(&folder, "[waku.rates]\nstore = \"20/1h\"\n[waku.handover]\nbytes_max = 1000000\n");
    let before = memory(&server);
    let (node, id) = connected_peer(&server).await;
    let mut statuses = Vec::new();
    for _ in 0..60 {
        statuses.push(query(&node, id).await);
    }
    assert_eq!(statuses.iter().filter(|status| **status == Some(200)).count(), 20);
    assert_eq!(statuses.iter().filter(|status| **status == Some(429)).count(), 40);
    others_are_served(&server).await;

    wait_until("the server follows the topic", || {
        node.peer(id).is_some_and(|peer| peer.topics.contains(PUBSUB_TOPIC))
    });
    for n in 0..3_000 {
        let _ = node.publish(PUBSUB_TOPIC, message(n, vec![7; 1_400]).to_wire()).await;
    }
    others_are_served(&server).await;
    assert!(memory(&server) < before + 200 * MIB);
}
