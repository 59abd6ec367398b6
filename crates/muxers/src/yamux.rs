//! yamux, by the library of that name, with its unread bytes counted.
//!
//! Its windows bound the unread bytes of a stream, but not of a connection. So a [`Meter`] between the library and the
//! socket reads each frame's header, and passes the frame on when it fits into the connection's budget.

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
use yamux::{Config, Connection, ConnectionError, DEFAULT_CREDIT, Mode};

use super::{
    STREAM_BYTES,
    budget::{Budget, ConnectionBudget},
};

const PROTOCOL: &str = "/yamux/1.0.0";
/// A frame that is longer than a stream's first window is refused: other implementations send at most 64 KiB.
const FRAME_BYTES_MAX: usize = DEFAULT_CREDIT as usize;
/// The overhead of a frame in memory.
const FRAME_OVERHEAD: usize = 96;
const HEADER_BYTES: usize = 12;
const KIND_DATA: u8 = 0;
const KIND_WINDOW_UPDATE: u8 = 1;
const FLAG_SYN: u16 = 1;

/// Offers yamux to a peer.
#[derive(Clone)]
pub struct Yamux {
    budget: Arc<Budget>,
    streams_max: usize,
}

impl Yamux {
    /// At most `streams_max` streams on a connection.
    pub fn new(budget: Arc<Budget>, streams_max: usize) -> Self {
        Self { budget, streams_max }
    }

    fn muxer<C: AsyncRead + AsyncWrite + Unpin>(self, socket: C, mode: Mode) -> Muxer<C> {
        // All windows together may grow by what the connection may hold.
        let growth = self.budget.connection_bytes_max().saturating_sub(DEFAULT_CREDIT as usize);
        let windows = self.streams_max.saturating_mul(DEFAULT_CREDIT as usize).saturating_add(growth);
        let mut config = Config::default();
        config.set_max_connection_receive_window(None); // each setter compares it with the number of streams
        config.set_max_num_streams(self.streams_max);
        config.set_max_connection_receive_window(Some(windows));
        let ledger = Ledger { streams: HashMap::new(), budget: self.budget.connection(), open_waker: None };
        let ledger = Arc::new(Mutex::new(ledger));
        let meter = Meter { socket, ledger: ledger.clone(), state: MeterState::default() };
        Muxer {
            connection: Connection::new(meter, config, mode),
            ledger,
            accepted: VecDeque::new(),
            streams_max: self.streams_max,
        }
    }
}

impl UpgradeInfo for Yamux {
    type Info = &'static str;
    type InfoIter = iter::Once<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        iter::once(PROTOCOL)
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> InboundConnectionUpgrade<C> for Yamux {
    type Output = Muxer<C>;
    type Error = io::Error;
    type Future = Ready<Result<Muxer<C>, io::Error>>;

    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(self.muxer(socket, Mode::Server)))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> OutboundConnectionUpgrade<C> for Yamux {
    type Output = Muxer<C>;
    type Error = io::Error;
    type Future = Ready<Result<Muxer<C>, io::Error>>;

    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(self.muxer(socket, Mode::Client)))
    }
}

/// The unread bytes of the streams of a connection.
struct Ledger {
    streams: HashMap<u32, Held>,
    budget: ConnectionBudget,
    /// Woken when a stream ends.
    open_waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    bytes: usize,
    overhead: usize,
}

impl Ledger {
    /// Takes the memory of a frame, as a whole or not at all. Until the frame is complete it belongs to no stream.
    fn begin(&mut self, frame: Frame, waker: &Waker) -> bool {
        let is_new = frame.opens && !self.streams.contains_key(&frame.stream);
        let opening = if is_new { STREAM_BYTES } else { 0 };
        if !self.budget.hold(frame.cost() + opening, waker) {
            return false;
        }
        if is_new {
            self.streams.insert(frame.stream, Held::default());
        }
        true
    }

    /// Counts a complete frame for its stream. The library drops the frame when its stream is gone.
    fn end(&mut self, frame: Frame) {
        match self.streams.get_mut(&frame.stream).filter(|_| frame.bytes > 0) {
            Some(held) => {
                held.bytes += frame.bytes;
                held.overhead += FRAME_OVERHEAD;
            }
            None => self.budget.release(frame.cost()),
        }
    }

    fn read(&mut self, stream: u32, bytes: usize) {
        let Some(held) = self.streams.get_mut(&stream) else { return };
        let bytes = bytes.min(held.bytes);
        let overhead = held.overhead * bytes / held.bytes.max(1);
        held.bytes -= bytes;
        held.overhead -= overhead;
        self.budget.release(bytes + overhead);
    }

    fn open(&mut self, stream: u32) {
        self.streams.insert(stream, Held::default());
        self.budget.hold_own(STREAM_BYTES);
    }

    fn remove(&mut self, stream: u32) {
        if let Some(held) = self.streams.remove(&stream) {
            self.budget.release(STREAM_BYTES + held.bytes + held.overhead);
        }
        if let Some(waker) = self.open_waker.take() {
            waker.wake();
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    stream: u32,
    opens: bool,
    /// The length of its data.
    bytes: usize,
}

impl Frame {
    fn read(header: [u8; HEADER_BYTES]) -> Self {
        let [_, kind, flags @ .., _, _, _, _, _, _, _, _] = header;
        let [_, _, _, _, stream @ .., _, _, _, _] = header;
        let [_, _, _, _, _, _, _, _, len @ ..] = header;
        let is_data = kind == KIND_DATA;
        let has_stream = is_data || kind == KIND_WINDOW_UPDATE;
        Self {
            stream: u32::from_be_bytes(stream),
            opens: has_stream && u16::from_be_bytes(flags) & FLAG_SYN != 0,
            bytes: if is_data { u32::from_be_bytes(len) as usize } else { 0 },
        }
    }

    fn cost(self) -> usize {
        if self.bytes == 0 { 0 } else { self.bytes + FRAME_OVERHEAD }
    }
}

/// The socket that the library reads from: it counts the frames.
struct Meter<C> {
    socket: C,
    ledger: Arc<Mutex<Ledger>>,
    state: MeterState,
}

#[derive(Clone, Copy, Debug)]
enum MeterState {
    /// A header and the number of its bytes that have arrived.
    Receiving([u8; HEADER_BYTES], usize),
    /// A header and the number of its bytes that were passed on.
    Passing([u8; HEADER_BYTES], usize, Frame),
    /// The number of missing bytes of the frame's data.
    Data(usize, Frame),
}

impl Default for MeterState {
    fn default() -> Self {
        Self::Receiving([0; HEADER_BYTES], 0)
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Meter<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            match this.state {
                MeterState::Receiving(header, HEADER_BYTES) => {
                    let frame = Frame::read(header);
                    if frame.bytes > FRAME_BYTES_MAX {
                        let error = io::Error::new(io::ErrorKind::InvalidData, "a yamux frame is too long");
                        return Poll::Ready(Err(error));
                    }
                    // A frame costs one unit of the task's budget, so a flood of short frames leaves time for other tasks.
                    let Poll::Ready(unit) = coop::poll_proceed(cx) else { return Poll::Pending };
                    if !this.ledger.lock().begin(frame, cx.waker()) {
                        return Poll::Pending;
                    }
                    unit.made_progress();
                    this.state = MeterState::Passing(header, 0, frame);
                }
                MeterState::Receiving(mut header, received) => {
                    let missing = header.get_mut(received..).unwrap_or_default();
                    let Poll::Ready(len) = Pin::new(&mut this.socket).poll_read(cx, missing)? else {
                        return Poll::Pending;
                    };
                    if len == 0 {
                        return Poll::Ready(Ok(0));
                    }
                    this.state = MeterState::Receiving(header, received + len);
                }
                MeterState::Passing(header, passed, frame) => {
                    let rest = header.get(passed..).unwrap_or_default();
                    let len = rest.len().min(buffer.len());
                    if let (Some(to), Some(from)) = (buffer.get_mut(..len), rest.get(..len)) {
                        to.copy_from_slice(from);
                    }
                    this.state = MeterState::Passing(header, passed + len, frame);
                    if passed + len == HEADER_BYTES {
                        this.expect(frame.bytes, frame);
                    }
                    return Poll::Ready(Ok(len));
                }
                MeterState::Data(missing, frame) => {
                    let len = missing.min(buffer.len());
                    let target = buffer.get_mut(..len).unwrap_or_default();
                    let Poll::Ready(len) = Pin::new(&mut this.socket).poll_read(cx, target)? else {
                        return Poll::Pending;
                    };
                    this.expect(missing - len, frame);
                    return Poll::Ready(Ok(len));
                }
            }
        }
    }
}

impl<C> Meter<C> {
    /// Sets the number of bytes of a frame that are still to come.
    fn expect(&mut self, missing: usize, frame: Frame) {
        if missing > 0 {
            self.state = MeterState::Data(missing, frame);
        } else {
            self.state = MeterState::default();
            self.ledger.lock().end(frame);
        }
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Meter<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx)
    }
}

/// A yamux connection.
pub struct Muxer<C> {
    connection: Connection<Meter<C>>,
    ledger: Arc<Mutex<Ledger>>,
    /// Streams of the peer that were not returned yet.
    accepted: VecDeque<Stream>,
    streams_max: usize,
}

impl<C: AsyncRead + AsyncWrite + Unpin> StreamMuxer for Muxer<C> {
    type Substream = Stream;
    type Error = io::Error;

    /// A connection's task calls this after [`Self::poll`], which receives, and wakes the task.
    fn poll_inbound(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        self.accepted.pop_front().map_or(Poll::Pending, |stream| Poll::Ready(Ok(stream)))
    }

    fn poll_outbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        let mut ledger = self.ledger.lock();
        if ledger.streams.len() >= self.streams_max {
            // The library would end the connection.
            ledger.open_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(ledger);
        let Poll::Ready(stream) = self.connection.poll_new_outbound(cx).map_err(io_error)? else {
            return Poll::Pending;
        };
        self.ledger.lock().open(stream.id().val());
        Poll::Ready(Ok(Stream { stream, ledger: self.ledger.clone() }))
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
        while let Poll::Ready(next) = self.connection.poll_next_inbound(cx) {
            let stream = next.ok_or(ConnectionError::Closed).flatten().map_err(io_error)?;
            let stream = Stream { stream, ledger: self.ledger.clone() };
            self.accepted.push_back(stream); // the library bounds their number
        }
        self.ledger.lock().budget.check(cx)?;
        Poll::Pending
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.poll_close(cx).map_err(io_error)
    }
}

fn io_error(error: ConnectionError) -> io::Error {
    match error {
        ConnectionError::Io(error) => error,
        other => io::Error::other(other),
    }
}

/// A yamux stream.
pub struct Stream {
    stream: yamux::Stream,
    ledger: Arc<Mutex<Ledger>>,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer)?;
        read.map(|len| {
            if len > 0 {
                self.ledger.lock().read(self.stream.id().val(), len);
            }
            Ok(len)
        })
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ledger.lock().remove(self.stream.id().val());
    }
}
