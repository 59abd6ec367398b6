//! The way to one subscriber: the streams on which messages are pushed to it.
//!
//! `12/WAKU2-FILTER` does not say how many messages a stream carries, and clients differ. go-waku reads one message and
//! closes the stream, so a second one on it is lost. js-waku and nwaku read on for as long as a stream lasts; js-waku
//! never closes one, and takes no more than 100 of them on a connection. So each message goes on a stream of its own at
//! first, and the stream is watched: if the subscriber closes it, the next message gets another stream again; if it is
//! still open after a while, the subscriber reads on, and this stream is kept for all messages to come.
//!
//! A message is written before the subscriber has agreed to the protocol, so that it was written says little. It is sent
//! when its stream was closed in order or stayed open, and lost when its stream broke: so do those of a peer that doesn't
//! speak the protocol.

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

/// How long a stream must stay open behind its message until it is taken for one that is read on: above a round trip
/// round the world and the time that a busy client needs.
const WATCHED: Duration = Duration::from_secs(2);
/// Streams that are watched at once: a third of those that js-waku takes.
const WATCHED_MAX: usize = 32;

/// A stream to a subscriber.
pub(crate) trait PushStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> PushStream for S {}

/// A stream, or why there is none.
pub(crate) type Opened = Result<Box<dyn PushStream>, OpenError>;

/// Opens streams to subscribers.
#[async_trait]
pub(crate) trait Opener: Send + Sync + 'static {
    async fn open(&self, peer: PeerId) -> Opened;

    /// Whether the peer is connected.
    fn reaches(&self, peer: PeerId) -> bool;

    /// From where the peer is connected, if that is known.
    fn address(&self, peer: PeerId) -> Option<SocketAddr>;
}

#[async_trait]
impl Opener for Node {
    async fn open(&self, peer: PeerId) -> Opened {
        let stream = Node::open(self, peer, filter::PUSH_ID).await?;
        Ok(Box::new(stream))
    }

    fn reaches(&self, peer: PeerId) -> bool {
        self.is_connected(peer)
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

/// A message as it is pushed, a `MessagePush` behind its length: made once for all who want it.
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

/// What became of messages since it was last asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PushOutcome {
    /// As far as can be seen they arrived.
    pub(crate) sent: usize,
    /// They could not be written, or their streams broke.
    pub(crate) failed: usize,
}

/// The way to one subscriber.
pub(crate) struct PushStreams {
    peer: PeerId,
    opener: Arc<dyn Opener>,
    /// How long it may take to open streams and to write what goes on them at once.
    push_timeout: Duration,
    /// The stream that is read on.
    kept: Option<Box<dyn PushStream>>,
    /// Streams with one message each, the oldest first.
    watched: VecDeque<Watched>,
    /// Whether the subscriber was seen to close a stream behind its message.
    reads_one: bool,
    outcome: PushOutcome,
}

struct Watched {
    stream: Box<dyn PushStream>,
    until: Instant,
}

/// How a stream ended. It is not to be touched after that: some panic when they are read again after an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Broken,
}

impl End {
    /// A subscriber says nothing on these streams, so whatever is read is their end.
    fn of(read: io::Result<usize>) -> Self {
        match read {
            Ok(0) => Self::Closed,
            Ok(_) | Err(_) => Self::Broken,
        }
    }
}

impl PushStreams {
    pub(crate) fn new(peer: PeerId, opener: Arc<dyn Opener>, push_timeout: Duration) -> Self {
        let (kept, watched) = (None, VecDeque::new());
        Self { peer, opener, push_timeout, kept, watched, reads_one: false, outcome: PushOutcome::default() }
    }

    /// Forgets all streams and what was learned: whoever connects next with this peer id may be another client.
    pub(crate) fn forget(&mut self) {
        self.settle(Instant::now());
        self.outcome.sent += self.watched.len(); // nothing says that they were lost
        self.watched.clear();
        (self.kept, self.reads_one) = (None, false);
    }

    /// What became of messages since this was last asked for.
    pub(crate) fn take_outcome(&mut self) -> PushOutcome {
        std::mem::take(&mut self.outcome)
    }

    /// Writes messages in their order. Those that are not written when it fails are lost.
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
            // Taken out, because a stream with half a message on it must not come back.
            if let Some(mut stream) = self.kept.take() {
                let before = *written;
                let wrote = timeout(push_timeout, write_each(&mut stream, rest, written)).await;
                self.outcome.sent += *written - before;
                if wrote?.is_ok() {
                    self.kept = Some(stream);
                }
                continue;
            }
            match WATCHED_MAX.saturating_sub(self.watched.len()) {
                0 => self.wait_for_oldest().await,
                places => {
                    let some = rest.get(..places).unwrap_or(rest);
                    let pushing = self.push_one_each(some, written);
                    timeout(push_timeout, pushing).await??;
                }
            }
        }
    }

    /// Opens a stream for each message at once, and writes one message after the other on those that did open: when some
    /// did not, the last messages are lost, and no others.
    async fn push_one_each(&mut self, events: &[Arc<Event>], written: &mut usize) -> Result<(), PushError> {
        let opening = events.iter().map(|_| self.opener.open(self.peer));
        let opened = join_all(opening).await;
        let mut rest = events;
        let mut result = Ok(());
        for stream in opened {
            let Some((event, behind)) = rest.split_first() else { break };
            match self.push_one(stream, event).await {
                Ok(()) => {
                    rest = behind;
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

    /// Waits until the oldest stream ends, or was open for long enough.
    async fn wait_for_oldest(&mut self) {
        let Some(mut oldest) = self.watched.pop_front() else { return };
        match timeout_at(oldest.until, oldest.stream.read(&mut [0])).await {
            Ok(read) => self.note_end(End::of(read)),
            Err(_) => self.watched.push_front(oldest),
        }
    }

    /// Notes how a stream with one message ended.
    fn note_end(&mut self, end: End) {
        match end {
            End::Closed => {
                self.reads_one = true;
                self.outcome.sent += 1;
            }
            End::Broken => self.outcome.failed += 1,
        }
    }

    /// When [`PushStreams::settle`] has something to do.
    pub(crate) fn settles_at(&self) -> Option<Instant> {
        self.watched.front().map(|oldest| oldest.until)
    }

    /// Looks at all streams: those that the subscriber closed are dropped, and one that is still open after a while is
    /// kept. Others that are still open then are dropped without having been closed, which resets them, because js-waku
    /// counts a stream that was closed by one side only.
    pub(crate) fn settle(&mut self, now: Instant) {
        match self.kept.as_mut().and_then(end_of) {
            Some(End::Closed) => (self.kept, self.reads_one) = (None, true),
            Some(End::Broken) => self.kept = None,
            None => {}
        }
        for mut one in std::mem::take(&mut self.watched) {
            match end_of(&mut one.stream) {
                Some(end) => self.note_end(end),
                None if now < one.until => self.watched.push_back(one),
                None => {
                    self.outcome.sent += 1;
                    if !self.reads_one && self.kept.is_none() {
                        self.kept = Some(one.stream);
                    }
                }
            }
        }
    }
}

/// How a stream has ended, if it has.
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
