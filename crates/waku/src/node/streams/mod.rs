//! Streams by which peers ask each other: those that peers open are answered by services, those that we open are handed to
//! whoever wants to ask.
//!
//! A connection's handler passes streams on directly, without a way through the swarm's task, so that many requests are
//! answered at once.

mod behaviour;
mod handler;
mod memory_budget;
mod serve;

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream, StreamProtocol, swarm::ConnectionId};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{AskError, Node, NodeLimits, NodeMetrics, address::AddressGroup};

pub(crate) use behaviour::Behaviour;
pub(crate) use serve::RequestHandler;

/// Streams to one peer that wait to be opened at most; who wants more waits.
const OPENS_MAX: usize = 64;

/// How long a stream that has done its work has to be closed.
const CLOSING: Duration = Duration::from_secs(5);

/// Why no stream to a peer could be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The peer is not connected.
    #[error("the peer is not connected")]
    NotConnected,
    /// The peer does not speak the protocol.
    #[error("the peer does not speak {0}")]
    Unsupported(String),
    /// It took too long.
    #[error("the peer did not open a stream in time")]
    TimedOut,
    /// The connection broke.
    #[error("the connection to the peer broke: {0}")]
    Broken(String),
}

/// A stream that somebody wants to a peer.
pub(crate) struct Wanted {
    pub(crate) protocol: StreamProtocol,
    pub(crate) then: Then,
}

/// What is done with a stream once it is open.
pub(crate) enum Then {
    /// It is handed over.
    Give(oneshot::Sender<Result<Stream, OpenError>>),
    /// Something is written, and an answer read, by the connection's own task.
    Exchange(Exchange),
}

/// A message to a peer, and whether it is answered.
pub(crate) struct Exchange {
    frame: Vec<u8>,
    /// The longest answer; `None` when there is none.
    answer_bytes_max: Option<usize>,
    reply: oneshot::Sender<Result<Bytes, AskError>>,
}

impl Then {
    /// Goes on with a stream, or with why there is none; returns what is still to be done.
    fn go_on(self, opened: Result<Stream, OpenError>) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        // Whoever wanted the stream may have given up, and then nobody is told.
        match (self, opened) {
            (Self::Give(reply), opened) => _ = reply.send(opened),
            (Self::Exchange(exchange), Err(error)) => _ = exchange.reply.send(Err(error.into())),
            (Self::Exchange(exchange), Ok(stream)) => return Some(Box::pin(exchange.run(stream))),
        }
        None
    }
}

impl Exchange {
    async fn run(self, mut stream: Stream) {
        let Self { frame, answer_bytes_max, mut reply } = self;
        let answered = tokio::select! {
            answered = exchange(&mut stream, &frame, answer_bytes_max) => answered,
            () = reply.closed() => return,
        };
        let is_whole = answered.is_ok();
        let _ = reply.send(answered);
        if is_whole {
            // The answer is there: how the stream ends changes nothing.
            let _ = timeout(CLOSING, stream.close()).await;
        }
    }
}

/// The connections by which streams can be opened. Cloning gives another handle of the same.
#[derive(Clone)]
pub(crate) struct Streams {
    connections: Arc<Mutex<HashMap<PeerId, Vec<OpenConnection>>>>,
    epoch: Instant,
    pub(crate) limits: NodeLimits,
    pub(crate) metrics: NodeMetrics,
}

/// One connection to a peer.
struct OpenConnection {
    id: ConnectionId,
    origin: Origin,
    wanted: mpsc::Sender<Wanted>,
    activity: Activity,
}

/// Where a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This node dialled.
    Dialled,
    /// The peer dialled, from one of these addresses if its address is known.
    Incoming(Option<AddressGroup>),
}

/// When a connection was last used, in milliseconds since the node was made, and how many streams are in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity(Arc<[AtomicU64; 2]>);

impl Activity {
    pub(crate) fn touch(&self, now_ms: u64) {
        let [last, _] = &*self.0;
        last.fetch_max(now_ms, Ordering::Relaxed);
    }

    fn last_ms(&self) -> u64 {
        let [last, _] = &*self.0;
        last.load(Ordering::Relaxed)
    }

    /// Counts a stream for as long as the guard lives.
    pub(crate) fn begin(&self) -> InUse {
        let [_, streams] = &*self.0;
        streams.fetch_add(1, Ordering::Relaxed);
        InUse(self.clone())
    }

    pub(crate) fn streams(&self) -> u64 {
        let [_, streams] = &*self.0;
        streams.load(Ordering::Relaxed)
    }
}

/// A stream in use.
#[derive(Debug)]
pub(crate) struct InUse(Activity);

impl Drop for InUse {
    fn drop(&mut self) {
        let [_, streams] = &*self.0.0;
        streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Streams {
    pub(crate) fn new(limits: NodeLimits, metrics: NodeMetrics) -> Self {
        Self { connections: Arc::default(), epoch: Instant::now(), limits, metrics }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Opens a stream by the peer's oldest connection.
    pub(crate) async fn open(&self, peer: PeerId, protocol: &'static str) -> Result<Stream, OpenError> {
        let (reply, answer) = oneshot::channel();
        let opened = async {
            self.want(peer, protocol, Then::Give(reply)).await?;
            answer.await.map_err(|_| closed())?
        };
        timeout(self.limits.request_timeout, opened).await.map_err(|_| OpenError::TimedOut)?
    }

    /// Writes a message to a peer, and reads an answer unless there is none.
    async fn exchange(
        &self,
        peer: PeerId,
        protocol: &'static str,
        frame: &[u8],
        answer_bytes_max: Option<usize>,
    ) -> Result<Bytes, AskError> {
        let (reply, answer) = oneshot::channel();
        let exchange = Exchange { frame: frame.to_vec(), answer_bytes_max, reply };
        self.want(peer, protocol, Then::Exchange(exchange)).await?;
        answer.await.map_err(|_| closed())?
    }

    async fn want(&self, peer: PeerId, protocol: &'static str, then: Then) -> Result<(), OpenError> {
        let wanted = self.line_to(peer).ok_or(OpenError::NotConnected)?;
        let want = Wanted { protocol: StreamProtocol::new(protocol), then };
        wanted.send(want).await.map_err(|_| OpenError::NotConnected)
    }

    fn line_to(&self, peer: PeerId) -> Option<mpsc::Sender<Wanted>> {
        let connections = self.connections.lock();
        let line = connections.get(&peer)?.iter().find(|line| !line.wanted.is_closed())?;
        line.activity.touch(self.now_ms());
        Some(line.wanted.clone())
    }

    fn add(
        &self,
        peer: PeerId,
        id: ConnectionId,
        origin: Origin,
        activity: Activity,
    ) -> mpsc::Receiver<Wanted> {
        let (wanted, received) = mpsc::channel(OPENS_MAX);
        activity.touch(self.now_ms());
        self.connections.lock().entry(peer).or_default().push(OpenConnection {
            id,
            origin,
            wanted,
            activity,
        });
        received
    }

    pub(crate) fn remove(&self, peer: PeerId, id: ConnectionId) {
        forget(&mut self.connections.lock(), peer, id);
    }

    /// Notes that a peer did something useful.
    pub(crate) fn touch(&self, peer: PeerId) {
        let now = self.now_ms();
        for line in self.connections.lock().get(&peer).into_iter().flatten() {
            line.activity.touch(now);
        }
    }

    /// Takes the connection off the table that has been idle for longest among those that `may_go`; one without a stream in
    /// use before all others. It is to be closed: until it is, nobody shall find it again.
    pub(crate) fn take_most_idle(
        &self,
        may_go: impl Fn(PeerId, Origin) -> bool,
        except: ConnectionId,
    ) -> Option<ConnectionId> {
        let mut connections = self.connections.lock();
        let all = connections.iter();
        let lines = all.flat_map(|(peer, lines)| lines.iter().map(move |line| (*peer, line)));
        let lines = lines.filter(|(peer, line)| line.id != except && may_go(*peer, line.origin));
        let idlest = lines.min_by_key(|(_, line)| (line.activity.streams() > 0, line.activity.last_ms()));
        let (peer, id) = idlest.map(|(peer, line)| (peer, line.id))?;
        forget(&mut connections, peer, id);
        Some(id)
    }

    /// Takes the connections off the table that have been idle for so long, of those that `may_go`.
    pub(crate) fn take_idle(&self, idle: Duration, may_go: impl Fn(PeerId) -> bool) -> Vec<ConnectionId> {
        let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let now = self.now_ms();
        let mut connections = self.connections.lock();
        let is_idle = |line: &OpenConnection| {
            line.activity.streams() == 0 && now.saturating_sub(line.activity.last_ms()) > idle_ms
        };
        let all = connections.iter().flat_map(|(peer, lines)| lines.iter().map(move |line| (*peer, line)));
        let idle = all.filter(|(peer, line)| is_idle(line) && may_go(*peer));
        let idle: Vec<(PeerId, ConnectionId)> = idle.map(|(peer, line)| (peer, line.id)).collect();
        for (peer, id) in &idle {
            forget(&mut connections, *peer, *id);
        }
        idle.into_iter().map(|(_, id)| id).collect()
    }

    /// How many connections of an origin there are that are not being closed.
    pub(crate) fn count_of(&self, origin: Origin) -> usize {
        let connections = self.connections.lock();
        connections.values().flatten().filter(|line| line.origin == origin).count()
    }

    /// How many connections there are that are not being closed.
    pub(crate) fn len(&self) -> usize {
        self.connections.lock().values().map(Vec::len).sum()
    }
}

fn forget(connections: &mut HashMap<PeerId, Vec<OpenConnection>>, peer: PeerId, id: ConnectionId) {
    if let Some(lines) = connections.get_mut(&peer) {
        lines.retain(|line| line.id != id);
        if lines.is_empty() {
            connections.remove(&peer);
        }
    }
}

fn closed() -> OpenError {
    OpenError::Broken("it was closed".to_owned())
}

/// Writes a request and reads the answer behind its length.
pub(crate) async fn ask(
    node: &Node,
    peer: PeerId,
    protocol: &'static str,
    frame: &[u8],
    answer_bytes_max: usize,
) -> Result<Bytes, AskError> {
    node.shared.streams.exchange(peer, protocol, frame, Some(answer_bytes_max)).await
}

/// Writes a message and closes the stream.
pub(crate) async fn tell(
    node: &Node,
    peer: PeerId,
    protocol: &'static str,
    frame: &[u8],
) -> Result<(), AskError> {
    node.shared.streams.exchange(peer, protocol, frame, None).await.map(drop)
}

async fn exchange(
    stream: &mut Stream,
    frame: &[u8],
    answer_bytes_max: Option<usize>,
) -> Result<Bytes, AskError> {
    stream.write_all(frame).await?;
    let Some(answer_bytes_max) = answer_bytes_max else {
        stream.close().await?;
        return Ok(Bytes::new());
    };
    stream.flush().await?;
    let len = read_len(stream).await?;
    let len = usize::try_from(len).ok().filter(|len| *len <= answer_bytes_max);
    let len = len.ok_or(AskError::TooLong(answer_bytes_max))?;
    Ok(read_exactly(stream, len).await?.into())
}

/// The bytes of a length, lowest first, seven bits in each.
const LEN_BYTES_MAX: usize = 10;

/// Reads the length before a frame, byte by byte: what follows it is wanted as a whole.
async fn read_len(stream: &mut (impl AsyncReadExt + Unpin)) -> std::io::Result<u64> {
    let mut len = 0_u64;
    for index in 0..LEN_BYTES_MAX {
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        let [byte] = byte;
        len |= u64::from(byte & 0x7f).checked_shl(7 * index as u32).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Ok(len);
        }
    }
    Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "a length of more than ten bytes"))
}

/// A buffer grows to what has arrived, and is not made as large as a peer says that it will need.
const RESERVED_BYTES_MAX: usize = 256 << 10;

/// Reads so many bytes.
async fn read_exactly(stream: &mut (impl AsyncReadExt + Unpin), len: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len.min(RESERVED_BYTES_MAX));
    let read = stream.take(len as u64).read_to_end(&mut bytes).await?;
    if read < len {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
