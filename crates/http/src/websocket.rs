//! WebSockets (RFC 6455) over HTTP/1.1, and over HTTP/2 (RFC 8441): the handshake, and a socket with limits and a heartbeat.
//! Payloads are sent in both directions, as text and as binary messages. No extension is negotiated: compression would let a
//! small frame become any amount of memory.

mod stream;
mod watched;

use std::{
    future::{pending, poll_fn},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version, header},
    response::Response,
};
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt, future::BoxFuture};
use hyper::{
    body::Incoming,
    ext::Protocol,
    upgrade::{self, OnUpgrade},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::{Instant, sleep_until, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message as Frame, Utf8Bytes,
        handshake::derive_accept_key,
        protocol::{
            CloseFrame, Role, WebSocketConfig,
            frame::{
                Frame as RawFrame,
                coding::{Data, OpCode},
            },
        },
    },
};

pub use stream::SocketStream;
pub use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::{AccessEnded, Refusal, server::Tracked};
use stream::Http2Stream;
use watched::Watched;

/// The characters of a client's key: 16 bytes in base64 (section 4.1).
const KEY_CHARS: usize = 24;
const VERSION: HeaderValue = HeaderValue::from_static("13");
const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
/// How many pings a client may leave unanswered.
const PINGS_MAX: u32 = 2;
/// How long a client may take to read and answer the close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The read buffer of a socket. It is small because many sockets are idle most of the time.
const READ_BUFFER_BYTES: usize = 4 << 10;
/// Messages are collected up to this size before they are written.
const WRITE_BUFFER_BYTES: usize = 32 << 10;
/// Longer messages are sent in fragments of this size (section 5.4): a socket keeps a buffer as large as its longest frame, and moves the
/// rest of the buffer with each write.
const FRAGMENT_BYTES: usize = 64 << 10;

/// Serves a socket after its handshake. It gets the bytes that were read after the request, and returns the stream, which is then closed.
pub(crate) type Serve = Box<dyn FnOnce(SocketStream, BytesMut) -> BoxFuture<'static, SocketStream> + Send>;

/// In the extensions of each HTTP/1.1 request, and of an HTTP/2 request for a WebSocket: the handler puts the function into it
/// that serves the socket afterwards.
#[derive(Clone, Default)]
pub(crate) struct UpgradeSlot(Arc<Mutex<Option<Serve>>>);

impl UpgradeSlot {
    pub(crate) fn take(&self) -> Option<Serve> {
        self.0.lock().take()
    }
}

/// An HTTP/2 request for a WebSocket, which becomes one if its handler accepts it.
pub(crate) struct Http2Upgrade {
    slot: UpgradeSlot,
    upgraded: OnUpgrade,
}

impl Http2Upgrade {
    /// Detects an extended CONNECT (RFC 8441 section 4); `None` for any other request. The request becomes the GET that it would
    /// be over HTTP/1.1, so that routes and checks need no special case.
    ///
    /// # Errors
    /// 501 for another protocol than WebSockets.
    pub(crate) fn read(request: &mut Request<Incoming>) -> Result<Option<Self>, Refusal> {
        if *request.method() != Method::CONNECT {
            return Ok(None);
        }
        let Some(protocol) = request.extensions().get::<Protocol>() else { return Ok(None) };
        if protocol.as_str() != "websocket" {
            let text = "of the protocols over a stream of HTTP/2 there is websocket alone";
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, text));
        }
        let (slot, upgraded) = (UpgradeSlot::default(), upgrade::on(&mut *request));
        *request.method_mut() = Method::GET;
        request.extensions_mut().insert(slot.clone());
        Ok(Some(Self { slot, upgraded }))
    }

    /// The socket, if the handler has accepted the handshake.
    pub(crate) fn accepted(self) -> Option<Http2Socket> {
        let serve = self.slot.take()?;
        Some(Http2Socket { serve, upgraded: self.upgraded })
    }
}

/// A socket whose handshake is being answered.
pub(crate) struct Http2Socket {
    serve: Serve,
    upgraded: OnUpgrade,
}

impl Http2Socket {
    /// Serves the socket until it ends, or its connection.
    pub(crate) async fn run(self, tracked: Tracked) {
        // Fails if the client has disconnected before it got the answer.
        let Ok(upgraded) = self.upgraded.await else { return };
        let stream = SocketStream::Http2(Http2Stream::new(upgraded, tracked));
        let mut stream = (self.serve)(stream, BytesMut::new()).await;
        let _ = stream.shutdown().await; // fails if the connection is closed
    }
}

/// A valid request for a WebSocket.
pub struct Upgrade {
    /// The answer to the client's key; HTTP/2 has none.
    accept: Option<HeaderValue>,
    slot: UpgradeSlot,
    access_ended: Option<AccessEnded>,
}

/// The bounds of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketLimits {
    /// The longest message that a client may send, in one frame or in many. A longer one closes the socket with code 1009.
    pub message_bytes_max: usize,
    /// How often a client is pinged. One that leaves two pings unanswered is closed with code 1008.
    pub ping_interval: Duration,
    /// How long a client may take to send a message after its first byte; pings and pongs in between do not extend it. Time in which
    /// the server reads nothing does not count: until it awaits the message, and while it sends. A later message closes the socket
    /// with code 1008.
    pub message_timeout: Duration,
}

impl Upgrade {
    /// Reads the handshake; `None` when the request does not ask for a WebSocket.
    ///
    /// The origin of the page is checked by [`Sites`](crate::Sites) before.
    ///
    /// # Errors
    /// 400 for a handshake that is wrong, 503 on a connection that can't be upgraded.
    pub fn read(request: &Request<Body>) -> Result<Option<Self>, Refusal> {
        let (headers, slot) = (request.headers(), request.extensions().get::<UpgradeSlot>());
        let is_http2 = request.version() == Version::HTTP_2;
        // RFC 9110 section 7.8: an HTTP/1.0 request can't request an upgrade; one of HTTP/2 has a slot if it does.
        let is_asked = match request.version() {
            Version::HTTP_2 => slot.is_some(),
            Version::HTTP_11 => {
                has_word(headers, header::CONNECTION.as_str(), "upgrade")
                    && has_word(headers, header::UPGRADE.as_str(), "websocket")
            }
            _ => false,
        };
        if !is_asked {
            return Ok(None);
        }
        let slot = slot.cloned().ok_or(NO_UPGRADE)?;
        let access_ended = request.extensions().get::<AccessEnded>().cloned();
        if headers.get(header::SEC_WEBSOCKET_VERSION) != Some(&VERSION) {
            return Err(Refusal::field("Sec-WebSocket-Version", "expected 13"));
        }
        // RFC 8441 section 5: the key and the answer to it are not used.
        if is_http2 {
            return Ok(Some(Self { accept: None, slot, access_ended }));
        }
        let key = headers.get(header::SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes).unwrap_or_default();
        if key.len() != KEY_CHARS {
            return Err(Refusal::field("Sec-WebSocket-Key", "expected 16 bytes in base64"));
        }
        let accept = HeaderValue::try_from(derive_accept_key(key)).map_err(|_| NO_UPGRADE)?;
        Ok(Some(Self { accept: Some(accept), slot, access_ended }))
    }

    /// Answers 101, over HTTP/2 200, and runs `serve` with the socket. The connection or the stream is closed when that is done,
    /// or, with code 1008, when the credentials of the request become invalid.
    pub fn answer<F>(self, limits: SocketLimits, serve: F) -> Response
    where
        F: for<'s> FnOnce(&'s mut WebSocket<SocketStream>) -> BoxFuture<'s, ()> + Send + 'static,
    {
        let access_ended = self.access_ended;
        let run: Serve = Box::new(move |stream, read| {
            Box::pin(async move {
                let mut socket = WebSocket::new(stream, read, limits).await;
                let ended = async {
                    match access_ended {
                        Some(ended) => ended.wait().await,
                        None => pending().await,
                    }
                };
                let is_allowed = tokio::select! {
                    () = serve(&mut socket) => true,
                    () = ended => false,
                };
                if !is_allowed {
                    socket.close(CloseCode::Policy, "logged out").await;
                }
                socket.frames.into_inner().stream
            })
        });
        *self.slot.0.lock() = Some(run);
        let mut response = Response::new(Body::empty());
        let Some(accept) = self.accept else { return response };
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, UPGRADE);
        headers.insert(header::UPGRADE, WEBSOCKET);
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        response
    }
}

const NO_UPGRADE: Refusal = Refusal::unavailable("this connection can't become a WebSocket");

/// Whether a header is a list that contains a word.
fn has_word(headers: &HeaderMap, name: &str, word: &str) -> bool {
    let lists = headers.get_all(name).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|item| item.trim().eq_ignore_ascii_case(word))
}

/// A message of either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A text.
    Text(String),
    /// Bytes.
    Binary(Bytes),
}

/// The socket is closed, or its connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the WebSocket is closed")]
pub struct Closed;

/// The server's end of a WebSocket.
#[derive(Debug)]
pub struct WebSocket<S> {
    frames: WebSocketStream<Watched<S>>,
    limits: SocketLimits,
    /// Since when the next message is awaited; `None` between messages. While nothing is read, a client can't send either.
    awaited: Option<Instant>,
    /// How long the server has been sending while it awaited the rest of the current message: nothing is read meanwhile.
    sent_for: Duration,
    /// How many pings were sent since the last frame of the client.
    unanswered: u32,
    next_ping: Instant,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// A socket on a connection after its handshake; `read` are bytes that were already received after it.
    pub async fn new(stream: S, read: BytesMut, limits: SocketLimits) -> Self {
        let max = Some(limits.message_bytes_max);
        let config = WebSocketConfig::default().max_message_size(max).max_frame_size(max);
        let config = config.read_buffer_size(READ_BUFFER_BYTES).write_buffer_size(WRITE_BUFFER_BYTES);
        let stream = Watched::new(stream, &read);
        let frames =
            WebSocketStream::from_partially_read(stream, read.into(), Role::Server, Some(config)).await;
        let next_ping = Instant::now() + limits.ping_interval;
        Self { frames, limits, awaited: None, sent_for: Duration::ZERO, unanswered: 0, next_ping }
    }

    /// The client's next message. While waiting, this pings the client, and answers its pings and its close. Cancel-safe: no
    /// message is lost.
    ///
    /// # Errors
    /// When the socket is closed: by the client, because it breaks the protocol or a limit, because it answers no pings, or because it
    /// does not complete a message in time ([`SocketLimits::message_timeout`]).
    pub async fn receive(&mut self) -> Result<Message, Closed> {
        let awaited = *self.awaited.get_or_insert_with(Instant::now);
        loop {
            let begun = self.frames.get_ref().begun();
            let due = begun.map(|begun| begun.max(awaited) + self.limits.message_timeout + self.sent_for);
            tokio::select! {
                biased; // what has arrived is read first
                read = poll_fn(|context| poll_read(&mut self.frames, begun.is_some(), context)) => {
                    let Read::Frame(frame) = read else { continue };
                    self.unanswered = 0;
                    let message = match frame {
                        Some(Ok(Frame::Text(text))) => Message::Text(text.as_str().to_owned()),
                        Some(Ok(Frame::Binary(bytes))) => Message::Binary(bytes),
                        // Control frames that arrive without a pause must not defer the deadline.
                        Some(Ok(_)) if due.is_some_and(|due| due <= Instant::now()) => return self.close_late().await,
                        Some(Ok(_)) => continue, // pings and closes are answered with the next read
                        Some(Err(error)) => return self.fail(&error).await,
                        None => return Err(Closed),
                    };
                    (self.awaited, self.sent_for) = (None, Duration::ZERO);
                    return Ok(message);
                }
                () = sleep_until(due.unwrap_or(self.next_ping)), if due.is_some() => return self.close_late().await,
                () = sleep_until(self.next_ping) => self.ping().await?,
            }
        }
    }

    /// Sends messages, and returns when the connection has accepted them. A client that reads slowly had no time to answer pings,
    /// so the next ping is sent a whole interval later; nor could it continue a message, so its deadline is extended by the time
    /// of the sending. If this is cancelled, a message may be truncated: then the socket can only be closed.
    ///
    /// # Errors
    /// When the socket is closed.
    pub async fn send(&mut self, messages: impl IntoIterator<Item = Message>) -> Result<(), Closed> {
        let started = Instant::now();
        for message in messages {
            let (mut kind, mut rest) = match message {
                Message::Text(text) => (Data::Text, Bytes::from(text)),
                Message::Binary(bytes) => (Data::Binary, bytes),
            };
            while rest.len() > FRAGMENT_BYTES {
                let fragment = RawFrame::message(rest.split_to(FRAGMENT_BYTES), OpCode::Data(kind), false);
                self.frames.feed(Frame::Frame(fragment)).await.map_err(|_| Closed)?;
                kind = Data::Continue;
            }
            let last = RawFrame::message(rest, OpCode::Data(kind), true);
            self.frames.feed(Frame::Frame(last)).await.map_err(|_| Closed)?;
        }
        self.frames.flush().await.map_err(|_| Closed)?;
        let now = Instant::now();
        self.next_ping = now + self.limits.ping_interval;
        // If the message is not awaited yet, its time has not started.
        if self.awaited.is_some() && self.frames.get_ref().begun().is_some() {
            self.sent_for += now - started;
        }
        Ok(())
    }

    /// Closes the socket with a code and a short reason, and waits a second for the client to do the same.
    pub async fn close(&mut self, code: CloseCode, reason: &'static str) {
        let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
        let closing = async {
            if self.frames.close(Some(frame)).await.is_ok() {
                while let Some(Ok(_)) = self.frames.next().await {}
            }
        };
        let _ = timeout(CLOSE_TIMEOUT, closing).await;
    }

    /// Closes a socket whose client did not complete a message in time.
    async fn close_late(&mut self) -> Result<Message, Closed> {
        self.close(CloseCode::Policy, "the message did not arrive in time").await;
        Err(Closed)
    }

    /// Closes a socket whose client broke a rule, with the code for it.
    async fn fail(&mut self, error: &Error) -> Result<Message, Closed> {
        let code = match error {
            Error::Capacity(_) => Some(CloseCode::Size),
            Error::Protocol(_) => Some(CloseCode::Protocol),
            Error::Utf8(_) => Some(CloseCode::Invalid),
            _ => None, // the connection is lost
        };
        if let Some(code) = code {
            self.close(code, "").await;
        }
        Err(Closed)
    }

    async fn ping(&mut self) -> Result<(), Closed> {
        if self.unanswered >= PINGS_MAX {
            self.close(CloseCode::Policy, "expired").await; // it may read although it does not answer
            return Err(Closed);
        }
        self.unanswered += 1;
        self.frames.send(Frame::Ping(Bytes::new())).await.map_err(|_| Closed)?;
        self.next_ping = Instant::now() + self.limits.ping_interval;
        Ok(())
    }
}

/// The result of a read.
enum Read {
    /// A control frame, a message or an error; `None` when the socket is closed.
    Frame(Option<Result<Frame, Error>>),
    /// A message has begun.
    Begun,
}

/// Reads the next frame. Also ready when a message begins, so that its deadline starts; not if one `had_begun` before.
fn poll_read<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut WebSocketStream<Watched<S>>,
    had_begun: bool,
    context: &mut Context<'_>,
) -> Poll<Read> {
    if let Poll::Ready(frame) = frames.poll_next_unpin(context) {
        return Poll::Ready(Read::Frame(frame));
    }
    let has_begun = frames.get_ref().begun().is_some();
    if has_begun && !had_begun { Poll::Ready(Read::Begun) } else { Poll::Pending }
}

#[cfg(test)]
mod tests;
