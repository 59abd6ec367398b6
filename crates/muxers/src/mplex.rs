//! mplex: a muxer without flow control, used by js-waku.
//!
//! A frame is a header (the stream's id and the kind of frame), a length, both as varints, and data. Data goes into its stream's
//! buffer as it arrives, so a long frame is never held as a whole.
//!
//! Only the muxer, which the connection's task polls, reads from and writes to the socket. Streams share buffers with it.

use std::{
    collections::{HashMap, VecDeque},
    io, iter,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures_util::{
    AsyncRead, AsyncWrite,
    future::{Ready, ready},
};
use libp2p::core::{
    UpgradeInfo,
    muxing::{StreamMuxer, StreamMuxerEvent},
    upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade},
};
use parking_lot::Mutex;
use tokio::task::coop;

use super::{
    STREAM_BYTES,
    budget::{Budget, ConnectionBudget},
};

const PROTOCOL: &str = "/mplex/6.7.0";
/// The longest frame that is accepted from peers: 1 MiB by the specification.
const FRAME_BYTES_MAX: u64 = 1 << 20;
/// The longest frame that we send: while one is written, other streams wait.
const SENT_FRAME_BYTES: usize = 64 << 10;
/// Streams don't write while this many bytes wait to be sent.
const OUT_BYTES: usize = 64 << 10;
/// The connection ends when more bytes wait: the peer causes answers without reading them.
const OUT_BYTES_MAX: usize = OUT_BYTES + 2 * SENT_FRAME_BYTES;
/// The bytes of one read from the socket, and the most reads in one poll.
const READ_BYTES: usize = 8 << 10;
const READS_MAX: usize = 8;
/// The sizes of the first and of the largest chunk of a stream's buffer; they double in between.
const CHUNK_BYTES_MIN: usize = 512;
const CHUNK_BYTES_MAX: usize = 16 << 10;
/// The overhead of a chunk in memory.
const CHUNK_OVERHEAD: usize = 64;
/// The most bytes of a varint of 64 bits.
const VARINT_BYTES_MAX: u32 = 10;

/// Offers mplex to a peer.
#[derive(Clone)]
pub struct Mplex {
    budget: Arc<Budget>,
    streams_max: usize,
}

impl Mplex {
    /// At most `streams_max` streams on a connection.
    pub fn new(budget: Arc<Budget>, streams_max: usize) -> Self {
        Self { budget, streams_max }
    }

    fn muxer<C>(self, socket: C) -> Muxer<C> {
        let shared = Shared {
            streams: HashMap::new(),
            streams_max: self.streams_max,
            accepted: VecDeque::new(),
            next_id: 0,
            out: Vec::new(),
            is_sending: false,
            is_closed: false,
            budget: self.budget.connection(),
            connection_waker: Waker::noop().clone(),
            write_wakers: Vec::new(),
        };
        Muxer {
            socket,
            shared: Arc::new(Mutex::new(shared)),
            parser: Parser::default(),
            unparsed: Vec::new(),
            sending: Vec::new(),
            sent: 0,
        }
    }
}

impl UpgradeInfo for Mplex {
    type Info = &'static str;
    type InfoIter = iter::Once<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        iter::once(PROTOCOL)
    }
}

impl<C> InboundConnectionUpgrade<C> for Mplex {
    type Output = Muxer<C>;
    type Error = io::Error;
    type Future = Ready<Result<Muxer<C>, io::Error>>;

    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(self.muxer(socket)))
    }
}

impl<C> OutboundConnectionUpgrade<C> for Mplex {
    type Output = Muxer<C>;
    type Error = io::Error;
    type Future = Ready<Result<Muxer<C>, io::Error>>;

    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(self.muxer(socket)))
    }
}

/// A stream's number and who opened it: each side has its own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StreamId {
    number: u64,
    is_ours: bool,
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Open,
    Data,
    Close,
    Reset,
}

/// The header of a frame that we send.
fn header(id: StreamId, kind: Kind) -> u64 {
    let tag = match (kind, id.is_ours) {
        (Kind::Open, _) => 0,
        (Kind::Data, false) => 1,
        (Kind::Data, true) => 2,
        (Kind::Close, false) => 3,
        (Kind::Close, true) => 4,
        (Kind::Reset, false) => 5,
        (Kind::Reset, true) => 6,
    };
    id.number << 3 | tag
}

/// Decodes the header of a received frame. Odd tags are for streams that we opened.
fn read_header(header: u64) -> io::Result<(StreamId, Kind)> {
    let (number, tag) = (header >> 3, header & 7);
    let kind = match tag {
        0 => Kind::Open,
        1 | 2 => Kind::Data,
        3 | 4 => Kind::Close,
        5 | 6 => Kind::Reset,
        _ => return Err(invalid("an mplex frame of an unknown kind")),
    };
    Ok((StreamId { number, is_ours: tag & 1 == 1 }, kind))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The unread bytes of a stream.
#[derive(Debug, Default)]
struct Buffer {
    chunks: VecDeque<Vec<u8>>,
    /// The number of bytes of the first chunk that were read.
    read: usize,
}

impl Buffer {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    fn spare(&self) -> usize {
        self.chunks.back().map_or(0, |chunk| chunk.capacity() - chunk.len())
    }

    /// The capacity of the next chunk when `bytes` are to be added.
    fn next_capacity(&self, bytes: usize) -> usize {
        let doubled = self.chunks.back().map_or(0, |chunk| chunk.capacity() * 2);
        doubled.max(bytes).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
    }

    fn cost_of(capacity: usize) -> usize {
        capacity + CHUNK_OVERHEAD
    }

    /// The memory of the buffer.
    fn cost(&self) -> usize {
        self.chunks.iter().map(|chunk| Self::cost_of(chunk.capacity())).sum()
    }

    /// Adds as many bytes as the budget allows; returns how many.
    fn push(&mut self, bytes: &[u8], budget: &mut ConnectionBudget, waker: &Waker) -> usize {
        let mut added = 0;
        while let Some(rest) = bytes.get(added..).filter(|rest| !rest.is_empty()) {
            if self.spare() == 0 {
                let capacity = self.next_capacity(rest.len());
                if !budget.hold(Self::cost_of(capacity), waker) {
                    return added;
                }
                self.chunks.push_back(Vec::with_capacity(capacity));
            }
            let len = rest.len().min(self.spare());
            if let (Some(chunk), Some(piece)) = (self.chunks.back_mut(), rest.get(..len)) {
                chunk.extend_from_slice(piece);
            }
            added += len;
        }
        added
    }

    /// Copies to `target` and releases the chunks that were read; returns the number of bytes.
    fn read(&mut self, target: &mut [u8], budget: &mut ConnectionBudget) -> usize {
        let mut copied = 0;
        while let Some(chunk) = self.chunks.front() {
            let rest = chunk.get(self.read..).unwrap_or_default();
            let Some(space) = target.get_mut(copied..).filter(|space| !space.is_empty()) else { break };
            let len = rest.len().min(space.len());
            if let (Some(to), Some(from)) = (space.get_mut(..len), rest.get(..len)) {
                to.copy_from_slice(from);
            }
            copied += len;
            self.read += len;
            if len == rest.len() {
                let cost = Self::cost_of(chunk.capacity());
                self.chunks.pop_front();
                self.read = 0;
                budget.release(cost);
            }
        }
        copied
    }
}

/// The state of a stream.
#[derive(Debug, Default)]
struct StreamState {
    received: Buffer,
    /// The peer sends nothing more.
    is_read_closed: bool,
    /// We send nothing more.
    is_write_closed: bool,
    is_reset: bool,
    reader: Option<Waker>,
}

/// The state that the muxer and its streams share.
struct Shared {
    streams: HashMap<StreamId, StreamState>,
    streams_max: usize,
    /// Streams of the peer that were not returned yet.
    accepted: VecDeque<StreamId>,
    next_id: u64,
    /// Frames that wait to be sent.
    out: Vec<u8>,
    /// Whether the muxer is sending bytes from `out`.
    is_sending: bool,
    is_closed: bool,
    budget: ConnectionBudget,
    connection_waker: Waker,
    /// Streams that wait for space in `out`, or until everything was sent.
    write_wakers: Vec<Waker>,
}

impl Shared {
    fn send(&mut self, id: StreamId, kind: Kind, bytes: &[u8]) {
        prost::encoding::encode_varint(header(id, kind), &mut self.out);
        prost::encoding::encode_varint(bytes.len() as u64, &mut self.out);
        self.out.extend_from_slice(bytes);
        self.connection_waker.wake_by_ref();
    }

    fn wait_to_write(&mut self, cx: &Context<'_>) {
        if !self.write_wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.write_wakers.push(cx.waker().clone());
        }
    }

    fn wake_writers(&mut self) {
        for waker in self.write_wakers.drain(..) {
            waker.wake();
        }
    }

    /// The peer opens a stream. Returns false when the connection has to wait for memory.
    fn on_open(&mut self, id: StreamId, waker: &Waker) -> io::Result<bool> {
        if self.streams.contains_key(&id) {
            return Err(invalid("an mplex stream was opened twice"));
        }
        if self.streams.len() >= self.streams_max {
            self.send(id, Kind::Reset, b"");
            return Ok(true);
        }
        if !self.budget.hold(STREAM_BYTES, waker) {
            return Ok(false);
        }
        self.streams.insert(id, StreamState::default());
        self.accepted.push_back(id);
        Ok(true)
    }

    /// The peer sends nothing more on a stream.
    fn on_end(&mut self, id: StreamId, kind: Kind) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_read_closed = true;
        stream.is_reset |= kind == Kind::Reset;
        if let Some(reader) = stream.reader.take() {
            reader.wake();
        }
        if kind == Kind::Reset {
            self.wake_writers();
        }
    }

    /// Data for a stream; returns how many bytes were handled. Data for a stream that is gone is dropped.
    fn on_data(&mut self, id: StreamId, bytes: &[u8], waker: &Waker) -> usize {
        let open = self.streams.get_mut(&id).filter(|stream| !stream.is_read_closed);
        let Some(stream) = open else { return bytes.len() };
        let added = stream.received.push(bytes, &mut self.budget, waker);
        if let Some(reader) = stream.reader.take() {
            reader.wake();
        }
        added
    }

    fn remove(&mut self, id: StreamId) {
        let Some(stream) = self.streams.remove(&id) else { return };
        self.budget.release(STREAM_BYTES + stream.received.cost());
        if !stream.is_write_closed && !stream.is_reset && !self.is_closed {
            let kind = if stream.is_read_closed { Kind::Close } else { Kind::Reset };
            self.send(id, kind, b"");
        }
        self.wake_writers(); // a task may wait to open a stream
    }

    /// Ends all streams: the connection is closed or broken.
    fn close(&mut self) {
        self.is_closed = true;
        for stream in self.streams.values_mut() {
            if let Some(reader) = stream.reader.take() {
                reader.wake();
            }
        }
        self.wake_writers();
    }
}

/// Parses frames.
#[derive(Debug, Default)]
struct Parser {
    state: ParserState,
    /// The varint that is being read, and the number of its bytes so far.
    varint: u64,
    varint_bytes: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum ParserState {
    #[default]
    Header,
    Len(u64),
    /// The header and length of a frame were read, and the frame is not handled yet.
    Begin(StreamId, Kind, u64),
    /// The rest of the data of a frame; the number is its length.
    Body(StreamId, Kind, u64),
}

impl Parser {
    /// Reads bytes until memory or the task's budget is used up; returns how many were read. The task is then woken for the rest.
    fn parse(&mut self, bytes: &[u8], shared: &mut Shared, cx: &mut Context<'_>) -> io::Result<usize> {
        let mut at = 0;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            match self.state {
                ParserState::Header | ParserState::Len(_) => {
                    let Some(byte) = rest.first() else { return Ok(at) };
                    at += 1;
                    if let Some(number) = self.add_to_varint(*byte)? {
                        self.on_number(number)?;
                    }
                }
                ParserState::Begin(id, kind, len) => {
                    // A frame costs one unit of the task's budget, so a flood of short frames leaves time for other tasks.
                    let Poll::Ready(unit) = coop::poll_proceed(cx) else { return Ok(at) };
                    let is_begun = match kind {
                        Kind::Open => shared.on_open(id, cx.waker())?,
                        Kind::Close | Kind::Reset => {
                            shared.on_end(id, kind);
                            true
                        }
                        Kind::Data => true,
                    };
                    if !is_begun {
                        return Ok(at);
                    }
                    unit.made_progress();
                    self.state =
                        if len == 0 { ParserState::Header } else { ParserState::Body(id, kind, len) };
                }
                ParserState::Body(id, kind, missing) => {
                    if rest.is_empty() {
                        return Ok(at);
                    }
                    let len = usize::try_from(missing).unwrap_or(usize::MAX).min(rest.len());
                    let piece = rest.get(..len).unwrap_or_default();
                    let handled =
                        if kind == Kind::Data { shared.on_data(id, piece, cx.waker()) } else { len };
                    at += handled;
                    let missing = missing - handled as u64;
                    self.state =
                        if missing == 0 { ParserState::Header } else { ParserState::Body(id, kind, missing) };
                    if handled < len {
                        return Ok(at);
                    }
                }
            }
        }
    }

    /// Whether a frame's header was read and the frame is not handled yet.
    fn has_frame(&self) -> bool {
        matches!(self.state, ParserState::Begin(..))
    }

    fn add_to_varint(&mut self, byte: u8) -> io::Result<Option<u64>> {
        if self.varint_bytes >= VARINT_BYTES_MAX {
            return Err(invalid("an mplex number is too long"));
        }
        self.varint |= u64::from(byte & 0x7f).checked_shl(7 * self.varint_bytes).unwrap_or(0);
        self.varint_bytes += 1;
        if byte & 0x80 != 0 {
            return Ok(None);
        }
        self.varint_bytes = 0;
        Ok(Some(std::mem::take(&mut self.varint)))
    }

    fn on_number(&mut self, number: u64) -> io::Result<()> {
        self.state = match self.state {
            ParserState::Len(header) => {
                if number > FRAME_BYTES_MAX {
                    return Err(invalid("an mplex frame is too long"));
                }
                let (id, kind) = read_header(header)?;
                if kind == Kind::Open && id.is_ours {
                    return Err(invalid("an mplex frame of an unknown kind"));
                }
                ParserState::Begin(id, kind, number)
            }
            _ => ParserState::Len(number),
        };
        Ok(())
    }
}

/// An mplex connection.
pub struct Muxer<C> {
    socket: C,
    shared: Arc<Mutex<Shared>>,
    parser: Parser,
    /// Bytes that were read from the socket, but not parsed because memory or the task's budget was used up.
    unparsed: Vec<u8>,
    sending: Vec<u8>,
    sent: usize,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Muxer<C> {
    /// Sends and receives what it can. An error ends the connection.
    fn drive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let outcome = self.try_drive(cx);
        if outcome.is_err() {
            self.shared.lock().close();
        }
        outcome
    }

    fn try_drive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.shared.lock().connection_waker.will_wake(cx.waker()) {
            self.shared.lock().connection_waker = cx.waker().clone();
        }
        let _ = self.write_out(cx)?;
        self.read_in(cx)?;
        let mut shared = self.shared.lock();
        if shared.out.len() > OUT_BYTES_MAX {
            return Err(invalid("the peer does not read our answers"));
        }
        shared.budget.check(cx)
    }

    /// Sends waiting bytes; ready when all were sent.
    fn write_out(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        loop {
            while let Some(rest) = self.sending.get(self.sent..).filter(|rest| !rest.is_empty()) {
                match Pin::new(&mut self.socket).poll_write(cx, rest)? {
                    Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(sent) => self.sent += sent,
                    Poll::Pending => return Ok(Poll::Pending),
                }
            }
            self.sent = 0;
            self.sending = Vec::new(); // idle connections keep no buffer
            let mut shared = self.shared.lock();
            if shared.out.is_empty() {
                if !shared.is_sending {
                    return Ok(Poll::Ready(()));
                }
                drop(shared);
                if Pin::new(&mut self.socket).poll_flush(cx)?.is_pending() {
                    return Ok(Poll::Pending);
                }
                let mut shared = self.shared.lock();
                shared.is_sending = !shared.out.is_empty();
                shared.wake_writers();
            } else {
                self.sending = std::mem::take(&mut shared.out);
                shared.is_sending = true;
                shared.wake_writers();
            }
        }
    }

    fn read_in(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let unparsed = std::mem::take(&mut self.unparsed);
        self.parse(&unparsed, cx)?;
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_MAX {
            if !self.unparsed.is_empty() || self.parser.has_frame() {
                return Ok(()); // woken when memory is free, or at once when the task's budget is used up
            }
            match Pin::new(&mut self.socket).poll_read(cx, &mut buffer)? {
                Poll::Pending => return Ok(()),
                Poll::Ready(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Poll::Ready(len) => self.parse(buffer.get(..len).unwrap_or_default(), cx)?,
            }
        }
        cx.waker().wake_by_ref(); // there may be more
        Ok(())
    }

    fn parse(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> io::Result<()> {
        let mut shared = self.shared.lock();
        let parsed = self.parser.parse(bytes, &mut shared, cx)?;
        self.unparsed = bytes.get(parsed..).unwrap_or_default().to_vec();
        Ok(())
    }

    fn stream(&self, id: StreamId) -> Stream {
        Stream { id, shared: self.shared.clone() }
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> StreamMuxer for Muxer<C> {
    type Substream = Stream;
    type Error = io::Error;

    /// A connection's task calls this after [`Self::poll`], which receives, and wakes the task.
    fn poll_inbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        let accepted = self.shared.lock().accepted.pop_front();
        accepted.map_or(Poll::Pending, |id| Poll::Ready(Ok(self.stream(id))))
    }

    fn poll_outbound(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        let mut shared = self.shared.lock();
        if shared.is_closed {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        }
        if shared.streams.len() >= shared.streams_max {
            shared.wait_to_write(cx);
            return Poll::Pending;
        }
        let id = StreamId { number: shared.next_id, is_ours: true };
        shared.next_id += 1;
        shared.budget.hold_own(STREAM_BYTES);
        shared.streams.insert(id, StreamState::default());
        shared.send(id, Kind::Open, b"");
        drop(shared);
        Poll::Ready(Ok(self.stream(id)))
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
        self.drive(cx)?;
        Poll::Pending
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.lock().close();
        if self.write_out(cx)?.is_pending() {
            return Poll::Pending;
        }
        Pin::new(&mut self.socket).poll_close(cx)
    }
}

impl<C> Drop for Muxer<C> {
    fn drop(&mut self) {
        self.shared.lock().close();
    }
}

/// An mplex stream.
pub struct Stream {
    id: StreamId,
    shared: Arc<Mutex<Shared>>,
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut shared = self.shared.lock();
        let Shared { streams, budget, is_closed, .. } = &mut *shared;
        let Some(stream) = streams.get_mut(&self.id) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        if !stream.received.is_empty() {
            return Poll::Ready(Ok(stream.received.read(buffer, budget)));
        }
        if stream.is_read_closed {
            return Poll::Ready(Ok(0));
        }
        if *is_closed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        stream.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut shared = self.shared.lock();
        let stream = shared.streams.get(&self.id);
        let is_open = stream.is_some_and(|stream| !stream.is_write_closed && !stream.is_reset);
        if !is_open || shared.is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if shared.out.len() >= OUT_BYTES {
            shared.wait_to_write(cx);
            return Poll::Pending;
        }
        let bytes = bytes.get(..SENT_FRAME_BYTES).unwrap_or(bytes);
        shared.send(self.id, Kind::Data, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.shared.lock();
        if shared.out.is_empty() && !shared.is_sending {
            return Poll::Ready(Ok(()));
        }
        if shared.is_closed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        shared.wait_to_write(cx);
        Poll::Pending
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.shared.lock();
        let is_closed = shared.is_closed;
        if let Some(stream) = shared.streams.get_mut(&self.id)
            && !stream.is_write_closed
            && !stream.is_reset
            && !is_closed
        {
            stream.is_write_closed = true;
            shared.send(self.id, Kind::Close, b"");
        }
        drop(shared);
        self.poll_flush(cx)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.lock().remove(self.id);
    }
}
