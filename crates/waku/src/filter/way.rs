//! The way to one subscriber: the streams on which messages are pushed to it.
//!
//! `12/WAKU2-FILTER` does not say how many messages a stream carries, and clients differ. go-waku reads one message and
//! closes the stream, so a second one on it is lost. js-waku and nwaku read on for as long as a stream lasts; js-waku
//! never closes one, and takes no more than 100 of them on a connection. So each message goes on a stream of its own at
//! first, and the stream is watched: if the subscriber closes it, the next message gets another stream again; if it is
//! still open after a while, the subscriber reads on, and this stream is kept for all messages to come.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, FutureExt, future::join_all};
use libp2p::PeerId;
use restante_waku_wire::rpc::filter;
use tokio::time::{Instant, error::Elapsed, timeout, timeout_at};

use super::outbox::Frame;
use crate::node::{Node, OpenError};

/// How long a stream must stay open behind its message until it is taken for one that is read on: above a round trip
/// round the world and the time that a busy client needs.
const WATCHED: Duration = Duration::from_secs(2);
/// Streams that are watched at once: a third of those that js-waku takes.
const WATCHED_MAX: usize = 32;

/// A stream to a subscriber.
pub(crate) trait PushStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> PushStream for S {}

/// Opens streams to subscribers.
#[async_trait]
pub(crate) trait Opener: Send + Sync + 'static {
    async fn open(&self, peer: PeerId) -> Result<Box<dyn PushStream>, OpenError>;

    /// Whether the peer is connected.
    fn reaches(&self, peer: PeerId) -> bool;
}

#[async_trait]
impl Opener for Node {
    async fn open(&self, peer: PeerId) -> Result<Box<dyn PushStream>, OpenError> {
        let stream = Node::open(self, peer, filter::PUSH_ID).await?;
        Ok(Box::new(stream))
    }

    fn reaches(&self, peer: PeerId) -> bool {
        self.peer(peer).is_some()
    }
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

/// The way to one subscriber.
pub(crate) struct Way {
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
}

struct Watched {
    stream: Box<dyn PushStream>,
    until: Instant,
}

/// How a stream's other end is.
enum End {
    Open,
    Closed,
    Broken,
}

impl Way {
    pub(crate) fn new(peer: PeerId, opener: Arc<dyn Opener>, push_timeout: Duration) -> Self {
        Self { peer, opener, push_timeout, kept: None, watched: VecDeque::new(), reads_one: false }
    }

    /// Forgets all streams and what was learned: whoever connects next with this peer id may be another client.
    pub(crate) fn forget(&mut self) {
        (self.kept, self.reads_one) = (None, false);
        self.watched.clear();
    }

    /// Writes messages in their order, and counts those that were written whole.
    pub(crate) async fn push(&mut self, frames: &[Arc<Frame>], sent: &mut usize) -> Result<(), PushError> {
        let push_timeout = self.push_timeout;
        loop {
            self.settle(Instant::now());
            let rest = frames.get(*sent..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(());
            }
            // Taken out, because a stream with half a message on it must not come back.
            if let Some(mut stream) = self.kept.take() {
                if timeout(push_timeout, write_all(&mut stream, rest, sent)).await?.is_ok() {
                    self.kept = Some(stream);
                }
                continue;
            }
            match WATCHED_MAX.saturating_sub(self.watched.len()) {
                0 => self.wait_for_oldest().await,
                places => {
                    let pushing = self.push_one_each(rest.iter().take(places), sent);
                    timeout(push_timeout, pushing).await??;
                }
            }
        }
    }

    /// Opens streams at once, because each takes a round trip, and writes one message after the other.
    async fn push_one_each(
        &mut self,
        frames: impl Iterator<Item = &Arc<Frame>> + Clone,
        sent: &mut usize,
    ) -> Result<(), PushError> {
        let opening = frames.clone().map(|_| self.opener.open(self.peer));
        let streams = join_all(opening).await;
        for (frame, stream) in frames.zip(streams) {
            let mut stream = stream?;
            write(&mut stream, frame).await?;
            *sent += 1;
            self.watched.push_back(Watched { stream, until: Instant::now() + WATCHED });
        }
        Ok(())
    }

    async fn wait_for_oldest(&mut self) {
        if let Some(oldest) = self.watched.front_mut() {
            let _ = timeout_at(oldest.until, oldest.stream.read(&mut [0])).await;
        }
    }

    /// When [`Way::settle`] has something to do.
    pub(crate) fn settles_at(&self) -> Option<Instant> {
        self.watched.front().map(|oldest| oldest.until)
    }

    /// Looks at all streams: those that the subscriber closed are dropped, and one that is still open after a while is
    /// kept. Others that are still open then are dropped without having been closed, which resets them, because js-waku
    /// counts a stream that was closed by one side only.
    pub(crate) fn settle(&mut self, now: Instant) {
        match self.kept.as_mut().map(end_of) {
            Some(End::Closed) => (self.kept, self.reads_one) = (None, true),
            Some(End::Broken) => self.kept = None,
            Some(End::Open) | None => {}
        }
        for mut one in std::mem::take(&mut self.watched) {
            match end_of(&mut one.stream) {
                End::Closed => self.reads_one = true,
                End::Broken => {}
                End::Open if now < one.until => self.watched.push_back(one),
                End::Open if self.reads_one || self.kept.is_some() => {}
                End::Open => self.kept = Some(one.stream),
            }
        }
    }
}

/// A subscriber says nothing on these streams, so whatever is read is their end.
fn end_of(stream: &mut Box<dyn PushStream>) -> End {
    match stream.read(&mut [0]).now_or_never() {
        None => End::Open,
        Some(Ok(0)) => End::Closed,
        Some(Ok(_) | Err(_)) => End::Broken,
    }
}

async fn write_all(
    stream: &mut Box<dyn PushStream>,
    frames: &[Arc<Frame>],
    sent: &mut usize,
) -> io::Result<()> {
    for frame in frames {
        write(stream, frame).await?;
        *sent += 1;
    }
    Ok(())
}

async fn write(stream: &mut Box<dyn PushStream>, frame: &Frame) -> io::Result<()> {
    stream.write_all(frame.bytes()).await?;
    stream.flush().await
}

#[cfg(test)]
pub(crate) mod tests;
