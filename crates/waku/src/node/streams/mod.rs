//! Request streams: services answer those that peers open, and [`Node::open`] and [`Node::ask`] open our own.
//!
//! A connection's handler passes streams on directly, not through the swarm's task, so that many requests are answered
//! at the same time.

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

/// The most streams to one peer that wait to be opened; further callers wait.
const OPENS_MAX: usize = 64;

/// How long closing a finished stream may take.
const CLOSING: Duration = Duration::from_secs(5);

/// Why no stream to a peer could be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The peer is not connected.
    #[error("the peer is not connected")]
    NotConnected,
    /// The peer does not support the protocol.
    #[error("the peer does not support {0}")]
    Unsupported(String),
    /// It took too long.
    #[error("the peer did not open a stream in time")]
    TimedOut,
    /// The connection broke.
    #[error("the connection to the peer broke: {0}")]
    Broken(String),
}

/// A request to open a stream to a peer.
pub(crate) struct OpenRequest {
    pub(crate) protocol: StreamProtocol,
    pub(crate) then: Then,
}

/// What to do with a stream when it is open.
pub(crate) enum Then {
    /// Return it to the caller.
    Return(oneshot::Sender<Result<Stream, OpenError>>),
    /// Write a message and read the answer, in the connection's own task.
    Exchange(Exchange),
}

/// A message to a peer and its answer.
pub(crate) struct Exchange {
    frame: Vec<u8>,
    /// The longest answer; `None` when there is none.
    answer_bytes_max: Option<usize>,
    reply: oneshot::Sender<Result<Bytes, AskError>>,
}

impl Then {
    /// Handles an opened stream or the error; returns the remaining work.
    fn run(self, opened: Result<Stream, OpenError>) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        // Replies may fail: the caller may have dropped the receiver.
        match (self, opened) {
            (Self::Return(reply), opened) => _ = reply.send(opened),
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
            // The answer is complete: an error while closing changes nothing.
            let _ = timeout(CLOSING, stream.close()).await;
        }
    }
}

/// The connections on which streams can be opened. Clones are handles of the same table.
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
    opens: mpsc::Sender<OpenRequest>,
    activity: Activity,
}

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This node dialled.
    Dialled,
    /// The peer dialled, from this group of addresses if its address is known.
    Incoming(Option<AddressGroup>),
}

/// When a connection was last used, in milliseconds since the node was created, and the number of streams in use.
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

    /// Opens a stream on the peer's oldest connection.
    pub(crate) async fn open(&self, peer: PeerId, protocol: &'static str) -> Result<Stream, OpenError> {
        let (reply, answer) = oneshot::channel();
        let opened = async {
            self.request_stream(peer, protocol, Then::Return(reply)).await?;
            answer.await.map_err(|_| closed())?
        };
        timeout(self.limits.request_timeout, opened).await.map_err(|_| OpenError::TimedOut)?
    }

    /// Writes a message to a peer, and reads the answer if `answer_bytes_max` is given.
    async fn exchange(
        &self,
        peer: PeerId,
        protocol: &'static str,
        frame: &[u8],
        answer_bytes_max: Option<usize>,
    ) -> Result<Bytes, AskError> {
        let (reply, answer) = oneshot::channel();
        let exchange = Exchange { frame: frame.to_vec(), answer_bytes_max, reply };
        self.request_stream(peer, protocol, Then::Exchange(exchange)).await?;
        answer.await.map_err(|_| closed())?
    }

    async fn request_stream(
        &self,
        peer: PeerId,
        protocol: &'static str,
        then: Then,
    ) -> Result<(), OpenError> {
        let opens = self.connection_to(peer).ok_or(OpenError::NotConnected)?;
        let request = OpenRequest { protocol: StreamProtocol::new(protocol), then };
        opens.send(request).await.map_err(|_| OpenError::NotConnected)
    }

    fn connection_to(&self, peer: PeerId) -> Option<mpsc::Sender<OpenRequest>> {
        let connections = self.connections.lock();
        let connection = connections.get(&peer)?.iter().find(|connection| !connection.opens.is_closed())?;
        connection.activity.touch(self.now_ms());
        Some(connection.opens.clone())
    }

    fn add(
        &self,
        peer: PeerId,
        id: ConnectionId,
        origin: Origin,
        activity: Activity,
    ) -> mpsc::Receiver<OpenRequest> {
        let (opens, received) = mpsc::channel(OPENS_MAX);
        activity.touch(self.now_ms());
        self.connections.lock().entry(peer).or_default().push(OpenConnection { id, origin, opens, activity });
        received
    }

    pub(crate) fn remove(&self, peer: PeerId, id: ConnectionId) {
        forget(&mut self.connections.lock(), peer, id);
    }

    /// Marks the connections of a peer as used now.
    pub(crate) fn touch(&self, peer: PeerId) {
        let now = self.now_ms();
        for connection in self.connections.lock().get(&peer).into_iter().flatten() {
            connection.activity.touch(now);
        }
    }

    /// Removes and returns the connection that has been idle for longest among those for which `may_close` holds; connections
    /// without a stream in use come first. The caller must close it.
    pub(crate) fn take_most_idle(
        &self,
        may_close: impl Fn(PeerId, Origin) -> bool,
        except: ConnectionId,
    ) -> Option<ConnectionId> {
        let mut connections = self.connections.lock();
        let all = connections.iter();
        let all = all.flat_map(|(peer, list)| list.iter().map(move |connection| (*peer, connection)));
        let closable =
            all.filter(|(peer, connection)| connection.id != except && may_close(*peer, connection.origin));
        let idlest = closable
            .min_by_key(|(_, connection)| (connection.activity.streams() > 0, connection.activity.last_ms()));
        let (peer, id) = idlest.map(|(peer, connection)| (peer, connection.id))?;
        forget(&mut connections, peer, id);
        Some(id)
    }

    /// Removes and returns the connections that have been idle for longer than `idle` and for which `may_close` holds.
    pub(crate) fn take_idle(&self, idle: Duration, may_close: impl Fn(PeerId) -> bool) -> Vec<ConnectionId> {
        let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let now = self.now_ms();
        let mut connections = self.connections.lock();
        let is_idle = |connection: &OpenConnection| {
            connection.activity.streams() == 0 && now.saturating_sub(connection.activity.last_ms()) > idle_ms
        };
        let all = connections
            .iter()
            .flat_map(|(peer, list)| list.iter().map(move |connection| (*peer, connection)));
        let idle = all.filter(|(peer, connection)| is_idle(connection) && may_close(*peer));
        let idle: Vec<(PeerId, ConnectionId)> =
            idle.map(|(peer, connection)| (peer, connection.id)).collect();
        for (peer, id) in &idle {
            forget(&mut connections, *peer, *id);
        }
        idle.into_iter().map(|(_, id)| id).collect()
    }

    /// The number of connections of an origin that are not being closed.
    pub(crate) fn count_of(&self, origin: Origin) -> usize {
        let connections = self.connections.lock();
        connections.values().flatten().filter(|connection| connection.origin == origin).count()
    }

    /// The number of connections that are not being closed.
    pub(crate) fn len(&self) -> usize {
        self.connections.lock().values().map(Vec::len).sum()
    }
}

fn forget(connections: &mut HashMap<PeerId, Vec<OpenConnection>>, peer: PeerId, id: ConnectionId) {
    if let Some(list) = connections.get_mut(&peer) {
        list.retain(|connection| connection.id != id);
        if list.is_empty() {
            connections.remove(&peer);
        }
    }
}

fn closed() -> OpenError {
    OpenError::Broken("it was closed".to_owned())
}

/// Writes a request and reads the answer after its length prefix.
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
pub(crate) async fn send(
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

/// The most bytes of a length prefix (a varint of 64 bits).
const LEN_BYTES_MAX: usize = 10;

/// Reads the length prefix of a frame byte by byte, to leave the frame itself in the stream.
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
    Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "length prefix of more than ten bytes"))
}

/// The largest buffer that is allocated before its bytes arrive: the length comes from the peer.
const RESERVED_BYTES_MAX: usize = 256 << 10;

/// Reads exactly `len` bytes.
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
