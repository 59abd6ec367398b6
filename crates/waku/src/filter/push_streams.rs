//! The streams on which messages are pushed to one subscriber.
//!
//! `12/WAKU2-FILTER` does not define how many messages a stream carries, and clients differ. go-waku reads one message and
//! closes the stream, so a second one on it is lost. js-waku and nwaku read until the stream ends; js-waku never closes a
//! stream, and accepts no more than 100 of them on a connection. So at first each message gets its own stream, and the stream
//! is watched: if the subscriber closes it, the next message gets another stream; if it is still open after a while, the
//! subscriber reads on, and this stream is reused for all further messages.
//!
//! A message is written before the protocol is negotiated, so a successful write proves little. A message counts as sent when
//! its stream was closed in order or stayed open, and as failed when the stream broke, as it does for a peer that does not
//! support the protocol.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, FutureExt, future::join_all};
use libp2p::{Multiaddr, PeerId, multiaddr::Protocol};
use restante_sessions::hub::{Event, Form};
use restante_waku_wire::rpc::{
    self,
    filter::{self, MessagePush},
};
use tokio::time::{Instant, error::Elapsed, timeout, timeout_at};

use crate::node::{Node, OpenError};

/// A stream that stays open for this long after its message is reused: longer than a round trip around the world and the time
/// that a busy client needs.
const WATCHED: Duration = Duration::from_secs(2);
/// The most watched streams: a third of those that js-waku accepts.
const WATCHED_MAX: usize = 32;

/// A stream to a subscriber.
pub(crate) trait PushStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> PushStream for S {}

/// The result of opening a stream.
pub(crate) type Opened = Result<Box<dyn PushStream>, OpenError>;

/// Opens streams to subscribers.
#[async_trait]
pub(crate) trait Opener: Send + Sync + 'static {
    async fn open(&self, peer: PeerId) -> Opened;

    /// Whether the peer is connected.
    fn is_connected(&self, peer: PeerId) -> bool;

    /// The remote address of the peer, if it is known.
    fn address(&self, peer: PeerId) -> Option<SocketAddr>;
}

#[async_trait]
impl Opener for Node {
    async fn open(&self, peer: PeerId) -> Opened {
        let stream = Node::open(self, peer, filter::PUSH_ID).await?;
        Ok(Box::new(stream))
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        Node::is_connected(self, peer)
    }

    fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        socket_address(&self.peer(peer)?.address)
    }
}

/// The IP address and TCP port that a peer's address begins with.
fn socket_address(address: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = address.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => IpAddr::V4(ip),
        Protocol::Ip6(ip) => IpAddr::V6(ip),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some(SocketAddr::new(ip, port)),
        _ => None,
    }
}

/// An encoded `MessagePush` with its length prefix, created once for all subscribers.
fn frame_of(event: &Event) -> &Bytes {
    event.form(Form::Push, |event| {
        let push = MessagePush {
            waku_message: Some(event.body.clone()),
            pubsub_topic: Some(event.channel.to_string()),
        };
        rpc::frame(&push).into()
    })
}

/// Why messages could not be pushed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PushError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the stream broke: {0}")]
    Io(#[from] io::Error),
    #[error("the subscriber reads too slowly")]
    TimedOut(#[from] Elapsed),
}

/// The number of messages that were sent or failed since the last [`PushStreams::take_outcome`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PushOutcome {
    /// Messages that probably arrived.
    pub(crate) sent: usize,
    /// Messages that could not be written, or whose streams broke.
    pub(crate) failed: usize,
}

/// The streams to one subscriber.
pub(crate) struct PushStreams {
    peer: PeerId,
    opener: Arc<dyn Opener>,
    /// How long opening streams and writing a batch may take.
    push_timeout: Duration,
    /// The stream that the subscriber reads until its end.
    reused: Option<Box<dyn PushStream>>,
    /// Streams with one message each, the oldest first.
    watched: VecDeque<Watched>,
    /// Whether the subscriber has closed a stream after one message.
    reads_one: bool,
    outcome: PushOutcome,
}

struct Watched {
    stream: Box<dyn PushStream>,
    until: Instant,
}

/// How a stream ended. It must not be used after that: some streams panic when they are read after an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Broken,
}

impl End {
    /// The result of a read: subscribers send nothing on these streams, so any result is their end.
    fn of(read: io::Result<usize>) -> Self {
        match read {
            Ok(0) => Self::Closed,
            Ok(_) | Err(_) => Self::Broken,
        }
    }
}

impl PushStreams {
    pub(crate) fn new(peer: PeerId, opener: Arc<dyn Opener>, push_timeout: Duration) -> Self {
        let (reused, watched) = (None, VecDeque::new());
        Self {
            peer,
            opener,
            push_timeout,
            reused,
            watched,
            reads_one: false,
            outcome: PushOutcome::default(),
        }
    }

    /// Drops all streams and what was learned: the next client with this peer id may be a different one.
    pub(crate) fn forget(&mut self) {
        self.settle(Instant::now());
        self.outcome.sent += self.watched.len(); // they may have arrived
        self.watched.clear();
        (self.reused, self.reads_one) = (None, false);
    }

    /// Returns and resets the counts.
    pub(crate) fn take_outcome(&mut self) -> PushOutcome {
        std::mem::take(&mut self.outcome)
    }

    /// Writes messages in order. On an error, the rest is lost.
    pub(crate) async fn push(&mut self, events: &[Arc<Event>]) -> Result<(), PushError> {
        let mut written = 0;
        let pushed = self.write_all(events, &mut written).await;
        self.outcome.failed += events.len().saturating_sub(written);
        pushed
    }

    async fn write_all(&mut self, events: &[Arc<Event>], written: &mut usize) -> Result<(), PushError> {
        let push_timeout = self.push_timeout;
        loop {
            self.settle(Instant::now());
            let rest = events.get(*written..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(());
            }
            // Taken out: a stream with half a message must not be used again.
            if let Some(mut stream) = self.reused.take() {
                let before = *written;
                let wrote = timeout(push_timeout, write_each(&mut stream, rest, written)).await;
                self.outcome.sent += *written - before;
                if wrote?.is_ok() {
                    self.reused = Some(stream);
                }
                continue;
            }
            match WATCHED_MAX.saturating_sub(self.watched.len()) {
                0 => self.wait_for_oldest().await,
                free => {
                    let some = rest.get(..free).unwrap_or(rest);
                    let pushing = self.push_one_each(some, written);
                    timeout(push_timeout, pushing).await??;
                }
            }
        }
    }

    /// Opens a stream for each message at once, and writes the messages in order on those that opened: if some did not, only the
    /// last messages are lost.
    async fn push_one_each(&mut self, events: &[Arc<Event>], written: &mut usize) -> Result<(), PushError> {
        let opening = events.iter().map(|_| self.opener.open(self.peer));
        let opened = join_all(opening).await;
        let mut rest = events;
        let mut result = Ok(());
        for stream in opened {
            let Some((event, others)) = rest.split_first() else { break };
            match self.push_one(stream, event).await {
                Ok(()) => {
                    rest = others;
                    *written += 1;
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    async fn push_one(&mut self, opened: Opened, event: &Event) -> Result<(), PushError> {
        let mut stream = opened?;
        write(&mut stream, event).await?;
        self.watched.push_back(Watched { stream, until: Instant::now() + WATCHED });
        Ok(())
    }

    /// Waits until the oldest stream ends or its time is over.
    async fn wait_for_oldest(&mut self) {
        let Some(mut oldest) = self.watched.pop_front() else { return };
        match timeout_at(oldest.until, oldest.stream.read(&mut [0])).await {
            Ok(read) => self.note_end(End::of(read)),
            Err(_) => self.watched.push_front(oldest),
        }
    }

    /// Counts the message of a stream that ended.
    fn note_end(&mut self, end: End) {
        match end {
            End::Closed => {
                self.reads_one = true;
                self.outcome.sent += 1;
            }
            End::Broken => self.outcome.failed += 1,
        }
    }

    /// When to call [`PushStreams::settle`] next.
    pub(crate) fn settles_at(&self) -> Option<Instant> {
        self.watched.front().map(|oldest| oldest.until)
    }

    /// Checks all streams: those that the subscriber closed are dropped, and one that is still open after a while is reused.
    /// Others that are still open then are reset by dropping them: js-waku would still count a stream that only one side closed.
    pub(crate) fn settle(&mut self, now: Instant) {
        match self.reused.as_mut().and_then(end_of) {
            Some(End::Closed) => (self.reused, self.reads_one) = (None, true),
            Some(End::Broken) => self.reused = None,
            None => {}
        }
        for mut one in std::mem::take(&mut self.watched) {
            match end_of(&mut one.stream) {
                Some(end) => self.note_end(end),
                None if now < one.until => self.watched.push_back(one),
                None => {
                    self.outcome.sent += 1;
                    if !self.reads_one && self.reused.is_none() {
                        self.reused = Some(one.stream);
                    }
                }
            }
        }
    }
}

/// How a stream ended; `None` if it is open.
fn end_of(stream: &mut Box<dyn PushStream>) -> Option<End> {
    stream.read(&mut [0]).now_or_never().map(End::of)
}

async fn write_each(
    stream: &mut Box<dyn PushStream>,
    events: &[Arc<Event>],
    written: &mut usize,
) -> io::Result<()> {
    for event in events {
        write(stream, event).await?;
        *written += 1;
    }
    Ok(())
}

async fn write(stream: &mut Box<dyn PushStream>, event: &Event) -> io::Result<()> {
    stream.write_all(frame_of(event)).await?;
    stream.flush().await
}

#[cfg(test)]
pub(crate) mod tests;
