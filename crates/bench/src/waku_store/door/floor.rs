//! The cost of a page without a store: the same bytes over plain TCP, and over the node's own encrypted connections from a
//! service with a constant answer.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use async_trait::async_trait;
use bytes::Bytes;
use restante_waku::{
    Multiaddr, PeerId,
    service::{Answer, Service},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    measure::Latencies,
    peers::{Peer, Role, bare::Bare, id_of},
};

/// The protocol of the service with the constant answer.
const PROTOCOL: &str = "/restante/bench/floor/1.0.0";
/// The approximate bytes of a store query.
const REQUEST_BYTES: usize = 128;

/// The result of requesting constant answers.
#[derive(Clone, Debug)]
pub(super) struct Floor {
    pub(super) name: &'static str,
    pub(super) users: usize,
    pub(super) page: u64,
    pub(super) answer_bytes: usize,
    pub(super) times: Latencies,
    pub(super) seconds: f64,
}

/// The requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) users: usize,
    pub(super) page: u64,
    pub(super) answer_bytes: usize,
    pub(super) length: Duration,
}

impl Question {
    fn floor(self, name: &'static str, begun: Instant, (times, ended): (Latencies, Instant)) -> Floor {
        let Self { users, page, answer_bytes, .. } = self;
        Floor { name, users, page, answer_bytes, times, seconds: (ended - begun).as_secs_f64() }
    }
}

/// Over plain TCP, one connection for each user.
pub(super) async fn plain(question: Question) -> anyhow::Result<Floor> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut serving = JoinSet::new();
    serving.spawn(accept(listener, question.answer_bytes));
    let begun = Instant::now();
    let mut asking = JoinSet::new();
    for _ in 0..question.users {
        asking.spawn(ask_plain(address, question));
    }
    let answers = gather(&mut asking).await?;
    Ok(question.floor("plain TCP", begun, answers))
}

async fn accept(listener: TcpListener, answer_bytes: usize) {
    let mut serving = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        serving.spawn(serve_plain(stream, answer_bytes));
    }
}

async fn serve_plain(mut stream: TcpStream, answer_bytes: usize) -> std::io::Result<()> {
    let (mut request, answer) = ([0; REQUEST_BYTES], vec![7; answer_bytes]);
    stream.set_nodelay(true)?;
    loop {
        stream.read_exact(&mut request).await?;
        stream.write_all(&answer).await?;
    }
}

async fn ask_plain(address: SocketAddr, question: Question) -> anyhow::Result<(Latencies, Instant)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut times, mut answer) = (Latencies::default(), vec![0; question.answer_bytes]);
    let until = Instant::now() + question.length;
    loop {
        let begun = Instant::now();
        if begun >= until {
            return Ok((times, begun));
        }
        stream.write_all(&[1; REQUEST_BYTES]).await?;
        stream.read_exact(&mut answer).await?;
        times.record(begun.elapsed());
    }
}

/// Over Noise and a muxer, a stream for each request, as for store queries; one node for each user.
pub(super) async fn encrypted(question: Question) -> anyhow::Result<Floor> {
    let service = Arc::new(Constant { answer: frame(question.answer_bytes), asked: AtomicU64::new(0) });
    let (server, address) = Bare::listen(service.clone()).await?;
    let mut connecting = JoinSet::new();
    for _ in 0..question.users {
        let address = address.clone();
        connecting.spawn(async move {
            Peer::start_connected(Role::Light, std::slice::from_ref(&address), Vec::new()).await
        });
    }
    let mut users = Vec::new();
    while let Some(connected) = connecting.join_next().await {
        users.push(connected??);
    }
    let begun = Instant::now();
    let mut asking = JoinSet::new();
    for user in users {
        asking.spawn(ask_encrypted(user, address.clone(), question));
    }
    let answers = gather(&mut asking).await?;
    server.close().await;
    ensure!(service.asked.load(Ordering::Relaxed) >= answers.0.len(), "more answers than requests");
    Ok(question.floor("Noise and muxer", begun, answers))
}

async fn ask_encrypted(
    user: Peer,
    server: Multiaddr,
    question: Question,
) -> anyhow::Result<(Latencies, Instant)> {
    let (server, request) = (id_of(&server)?, frame(REQUEST_BYTES));
    let mut times = Latencies::default();
    let mut begun = Instant::now();
    let until = begun + question.length;
    while begun < until {
        let answer = user.node.ask(server, PROTOCOL, &request, question.answer_bytes).await?;
        ensure!(answer.len() == question.answer_bytes, "an answer of {} bytes", answer.len());
        times.record(begun.elapsed());
        begun = Instant::now();
    }
    user.close().await;
    Ok((times, begun))
}

/// All times, and when the last user received its last answer.
async fn gather(
    asking: &mut JoinSet<anyhow::Result<(Latencies, Instant)>>,
) -> anyhow::Result<(Latencies, Instant)> {
    let (mut all, mut last) = (Latencies::default(), Instant::now());
    while let Some(done) = asking.join_next().await {
        let (times, ended) = done??;
        all.add(&times);
        last = last.max(ended);
    }
    Ok((all, last))
}

/// A frame of `len` bytes after their length.
fn frame(len: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(len + 10);
    let mut rest = len;
    while rest >= 0x80 {
        frame.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    frame.push(rest as u8);
    frame.resize(frame.len() + len, 7);
    frame
}

struct Constant {
    answer: Vec<u8>,
    asked: AtomicU64,
}

#[async_trait]
impl Service for Constant {
    fn id(&self) -> &'static str {
        PROTOCOL
    }

    fn name(&self) -> &'static str {
        "floor"
    }

    fn request_bytes_max(&self) -> usize {
        REQUEST_BYTES
    }

    async fn answer(&self, _peer: PeerId, _request: Bytes) -> Answer {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Answer::new(200, self.answer.clone())
    }

    fn answer_too_often(&self, _request: Bytes) -> Answer {
        Answer::none(429)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: Question =
        Question { users: 2, page: 100, answer_bytes: 150_000, length: Duration::from_millis(100) };

    #[test]
    fn a_frame_has_its_length_before_it() {
        assert_eq!(frame(3), [3, 7, 7, 7]);
        assert_eq!(frame(300)[..2], [0xac, 0x02]);
        assert_eq!(frame(300).len(), 302);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn both_floors_answer() {
        for floor in [plain(QUESTION).await.unwrap(), encrypted(QUESTION).await.unwrap()] {
            assert!(floor.times.len() >= 2, "{}", floor.name);
            assert!(floor.seconds >= 0.1);
        }
    }
}
