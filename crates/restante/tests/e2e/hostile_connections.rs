//! Peers that misuse a connection: they fill streams that nobody reads, never negotiate, or send nothing at all. The server's
//! memory stays bounded, and honest peers connect and are served meanwhile.
//!
//! The hostile side writes the muxers' frames itself, on top of libp2p's transports and Noise.

use std::{
    iter,
    net::TcpStream,
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{
    AsyncRead, AsyncWrite, AsyncWriteExt,
    future::{Ready, join_all, ready},
    io::Cursor,
};
use restante_waku::{
    Keypair, Multiaddr,
    libp2p::{
        self, PeerId, Transport,
        core::{
            Endpoint, UpgradeInfo,
            muxing::{StreamMuxer, StreamMuxerEvent},
            transport::{Boxed, DialOpts, PortUse},
            upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, Version},
        },
        noise, tcp, websocket,
    },
};
use restante_waku_wire::rpc::store;
use serde_json::Value;

use crate::{
    hostile_peers::{memory, others_are_served},
    support::{Server, folder, wait_until},
};

const MIB: u64 = 1 << 20;
/// By how much the server may grow beyond its memory at rest.
const GROWTH_BYTES_MAX: u64 = 300 * MIB;
/// What all attackers of a test write at most: enough to show that memory is not bounded.
const ATTACK_BYTES_MAX: usize = 450 << 20;
/// More than a node allows for one connection.
const STREAMS: u32 = 120;
/// Streams of one connection that a node negotiates at once.
const NEGOTIATING_MAX: u32 = 64;
/// Large requests of one connection that a node reads at once, and some more.
const LARGE_REQUESTS_MAX: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Muxer {
    Mplex,
    Yamux,
}

impl Muxer {
    fn protocol(self) -> &'static str {
        match self {
            Self::Mplex => "/mplex/6.7.0",
            Self::Yamux => "/yamux/1.0.0",
        }
    }

    /// The frame that opens the `n`-th stream.
    fn open(self, n: u32) -> Vec<u8> {
        match self {
            Self::Mplex => mplex_frame(n, 0, b""),
            Self::Yamux => yamux_header(1, 1, n, 0), // a window update with the flag SYN
        }
    }

    fn data(self, n: u32, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Mplex => mplex_frame(n, 2, bytes),
            Self::Yamux => {
                let mut frame = yamux_header(0, 0, n, bytes.len() as u32);
                frame.extend_from_slice(bytes);
                frame
            }
        }
    }
}

fn mplex_frame(n: u32, tag: u64, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    prost::encoding::encode_varint(u64::from(n) << 3 | tag, &mut frame);
    prost::encoding::encode_varint(bytes.len() as u64, &mut frame);
    frame.extend_from_slice(bytes);
    frame
}

fn yamux_header(kind: u8, flags: u16, n: u32, len: u32) -> Vec<u8> {
    let mut header = vec![0, kind];
    header.extend(flags.to_be_bytes());
    header.extend((2 * n + 1).to_be_bytes()); // a dialler's streams are odd
    header.extend(len.to_be_bytes());
    header
}

/// A message of multistream-select.
fn select(name: &str) -> Vec<u8> {
    let mut message = vec![name.len() as u8 + 1];
    message.extend(name.as_bytes());
    message.push(b'\n');
    message
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<C: AsyncRead + AsyncWrite + Send + Unpin> Socket for C {}

/// A connection whose muxer was negotiated but not started.
struct Raw(Box<dyn Socket>);

#[derive(Clone)]
struct RawUpgrade(Muxer);

impl UpgradeInfo for RawUpgrade {
    type Info = &'static str;
    type InfoIter = iter::Once<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        iter::once(self.0.protocol())
    }
}

impl<C: Socket + 'static> InboundConnectionUpgrade<C> for RawUpgrade {
    type Output = Raw;
    type Error = std::io::Error;
    type Future = Ready<Result<Raw, Self::Error>>;

    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(Raw(Box::new(socket))))
    }
}

impl<C: Socket + 'static> OutboundConnectionUpgrade<C> for RawUpgrade {
    type Output = Raw;
    type Error = std::io::Error;
    type Future = Ready<Result<Raw, Self::Error>>;

    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(Raw(Box::new(socket))))
    }
}

/// libp2p requires a muxer; this one is never used as such.
impl StreamMuxer for Raw {
    type Substream = Cursor<Vec<u8>>;
    type Error = std::io::Error;

    fn poll_inbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<Self::Substream, Self::Error>> {
        Poll::Pending
    }

    fn poll_outbound(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        Poll::Pending
    }

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        Poll::Pending
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }
}

/// A connection of a new identity, or why there is none.
async fn connect(address: &Multiaddr, muxer: Muxer) -> std::io::Result<Box<dyn Socket>> {
    let noise = noise::Config::new(&Keypair::generate_secp256k1()).unwrap();
    let tcp = || tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let upgraded = websocket::Config::new(tcp()).or_transport(tcp()).upgrade(Version::V1);
    let mut transport: Boxed<(PeerId, Raw)> =
        Transport::boxed(upgraded.authenticate(noise).multiplex(RawUpgrade(muxer)));
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let dialled = transport.dial(address.clone(), options).map_err(std::io::Error::other)?;
    Ok(dialled.await?.1.0)
}

/// The addresses of the server's node, over TCP and over WebSockets.
fn addresses_of(server: &Server) -> [Multiaddr; 2] {
    let info: Value = serde_json::from_str(&server.get("/info").body).unwrap();
    let all = info["listenAddresses"].as_array().unwrap().iter().filter_map(Value::as_str);
    let nodes: Vec<&str> = all.filter(|address| address.contains("/p2p/")).collect();
    let address = |is_websocket: bool| {
        let found = nodes.iter().find(|address| address.contains("/ws") == is_websocket).unwrap();
        let address: Multiaddr = found.parse().unwrap();
        address.into_iter().filter(|part| !matches!(part, libp2p::multiaddr::Protocol::P2p(_))).collect()
    };
    [address(false), address(true)]
}

fn start(folder: &Path, settings: &str) -> Server {
    let settings = format!("[waku.node]\nwebsocket = true\nwebsocket_port = 0\n{settings}");
    std::fs::write(folder.join("restante.toml"), settings).unwrap();
    let flags = ["--archive", "memory:", "--cluster-id", "42", "--shard", "0", "--log-level", "error"];
    Server::start_with(folder, &flags)
}

/// What an attacker does with its streams.
#[derive(Clone, Copy, Debug)]
struct Attack {
    muxer: Muxer,
    connections: usize,
    /// Whether each stream negotiates a protocol.
    negotiates: bool,
    frame_bytes: usize,
}

/// Opens streams and fills them until the server ends the connection, reads nothing for a while, or enough was written. The
/// connection stays open afterwards.
async fn attack(address: Multiaddr, attack: Attack, budget: Arc<AtomicUsize>) -> Option<Box<dyn Socket>> {
    let mut socket = connect(&address, attack.muxer).await.ok()?;
    let spends = |bytes| {
        let spent =
            budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left: usize| left.checked_sub(bytes));
        spent.is_ok()
    };
    let write = async {
        for n in 0..STREAMS {
            let mut opening = attack.muxer.open(n);
            let mut begin = select("/multistream/1.0.0");
            if attack.negotiates {
                begin.extend(select(store::ID));
                prost::encoding::encode_varint(200_000, &mut begin); // the request's length
            } else {
                begin.truncate(5);
            }
            opening.extend(attack.muxer.data(n, &begin));
            socket.write_all(&opening).await?;
        }
        let filler = vec![0xff; attack.frame_bytes];
        // Streams that wait for others, with either their requests or their negotiation.
        let filled = match attack.negotiates {
            true => LARGE_REQUESTS_MAX..NEGOTIATING_MAX,
            false => NEGOTIATING_MAX..STREAMS,
        };
        loop {
            for n in filled.clone() {
                let frame = attack.muxer.data(n, &filler);
                let frames = frame.repeat((64_000 / frame.len()).max(1));
                if !spends(frames.len()) {
                    return std::io::Result::Ok(());
                }
                socket.write_all(&frames).await?;
                socket.flush().await?;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(10), write).await;
    Some(socket)
}

/// Attacks over TCP and WebSockets, and returns the most bytes by which the server grew.
async fn growth_under(attack_with: Attack) -> u64 {
    let (_guard, folder) = folder();
    let server = start(&folder, "");
    let before = memory(&server);
    let budget = Arc::new(AtomicUsize::new(ATTACK_BYTES_MAX));
    let addresses = addresses_of(&server);
    let attackers = (0..attack_with.connections).map(|n| {
        let address = addresses[n % addresses.len()].clone();
        tokio::spawn(attack(address, attack_with, budget.clone()))
    });
    let attackers: Vec<_> = attackers.collect();
    let mut most = 0;
    loop {
        others_are_served(&server).await;
        most = most.max(memory(&server));
        if attackers.iter().all(tokio::task::JoinHandle::is_finished) {
            break;
        }
    }
    let held = join_all(attackers).await;
    assert!(held.iter().any(|socket| matches!(socket, Ok(Some(_)))), "nobody could connect");
    others_are_served(&server).await;
    most.max(memory(&server)).saturating_sub(before)
}

async fn stays_bounded(attack: Attack) {
    let growth = growth_under(attack).await;
    assert!(growth <= GROWTH_BYTES_MAX, "{attack:?}: the server grew by {} MiB", growth / MIB);
}

/// One such connection took 3.9 GiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mplex_frames_that_nobody_reads_cost_bounded_memory() {
    stays_bounded(Attack { muxer: Muxer::Mplex, connections: 2, negotiates: true, frame_bytes: 1 << 20 })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiny_mplex_frames_cost_bounded_memory() {
    stays_bounded(Attack { muxer: Muxer::Mplex, connections: 40, negotiates: true, frame_bytes: 1 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mplex_streams_that_never_negotiate_cost_bounded_memory() {
    stays_bounded(Attack { muxer: Muxer::Mplex, connections: 40, negotiates: false, frame_bytes: 60_000 })
        .await;
}

/// A hundred such connections took 1.6 GiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn yamux_windows_that_nobody_reads_cost_bounded_memory() {
    stays_bounded(Attack { muxer: Muxer::Yamux, connections: 60, negotiates: true, frame_bytes: 60_000 })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiny_yamux_frames_cost_bounded_memory() {
    stays_bounded(Attack { muxer: Muxer::Yamux, connections: 40, negotiates: true, frame_bytes: 1 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn yamux_streams_that_never_negotiate_cost_bounded_memory() {
    stays_bounded(Attack { muxer: Muxer::Yamux, connections: 60, negotiates: false, frame_bytes: 60_000 })
        .await;
}

/// Three hundred of them kept everybody else out for as long as they lasted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_sockets_keep_nobody_out() {
    let (_guard, folder) = folder();
    // They last longer than the test.
    let server = start(&folder, "[waku.limits]\nhandshake_timeout_ms = 600000\n");
    let [tcp, websocket] = addresses_of(&server).map(|address| {
        let port = address.to_string().split('/').nth(4).unwrap().parse::<u16>().unwrap();
        (0..300).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect::<Vec<_>>()
    });
    others_are_served(&server).await;
    drop((tcp, websocket));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_identities_of_one_address_leave_room_for_others() {
    let (_guard, folder) = folder();
    let server = start(&folder, "");
    let before = memory(&server);
    let addresses = addresses_of(&server);
    let mut held = Vec::new();
    for round in 0..20 {
        let muxer = if round % 2 == 0 { Muxer::Mplex } else { Muxer::Yamux };
        let address = &addresses[round / 2 % 2];
        held.extend(join_all((0..50).map(|_| connect(address, muxer))).await);
    }
    let connected = held.iter().filter(|connection| connection.is_ok()).count();
    assert!(connected > 500, "only {connected} of {} could connect", held.len());
    others_are_served(&server).await;
    let growth = memory(&server).saturating_sub(before);
    assert!(growth <= GROWTH_BYTES_MAX, "the server grew by {} MiB", growth / MIB);
    let connections = || {
        let metrics = server.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("restante_waku_connections "));
        line.unwrap().trim().parse::<u32>().unwrap()
    };
    wait_until("one address has a part of the connections", || connections() < 300);
}
