//! A live stream over a WebSocket (RFC 6455): the handshake, and messages as texts in JSON.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Request, StatusCode, Version, header},
    response::Response,
};
use bytes::BytesMut;
use restante_core::Key;
use restante_sessions::Ended;
use sha1::{Digest, Sha1};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, sleep_until, timeout},
};

use super::{
    ask::write_cursor,
    feed::{BEAT, End, Feed, Item, Piece},
    frames::{self, CloseCode, Decoder, Incoming},
};
use crate::rest::{reply::Refusal, serve::Switch};

/// What a client's key is hashed with (§1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The characters of a client's key: 16 bytes in base64 (§4.1).
const KEY_CHARS: usize = 24;
const VERSION: HeaderValue = HeaderValue::from_static("13");
const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
/// Pings that a client may leave unanswered.
const PINGS_MAX: u32 = 2;
/// How long a client that answers no ping may take to be told that it is taken for gone.
const FAREWELL: Duration = Duration::from_secs(1);
/// What frames a message, beside its cursor.
const FRAME_BYTES: usize = 160;

/// A request for a WebSocket that is to be answered.
pub(super) struct Upgrade {
    accept: HeaderValue,
    switch: Switch,
}

impl Upgrade {
    /// What a request asks for; `None` when that is no WebSocket.
    ///
    /// Whose page asks was checked before: see [`cross_site`](crate::rest::cross_site).
    pub(super) fn read(request: &Request<Body>) -> Result<Option<Self>, Refusal> {
        let headers = request.headers();
        // RFC 9110 §7.8: an HTTP/1.0 request can't ask for this.
        let is_asked = request.version() >= Version::HTTP_11
            && has_word(headers, header::CONNECTION.as_str(), "upgrade")
            && has_word(headers, header::UPGRADE.as_str(), "websocket");
        if !is_asked {
            return Ok(None);
        }
        if headers.get(header::SEC_WEBSOCKET_VERSION) != Some(&VERSION) {
            return Err(Refusal::field("Sec-WebSocket-Version", "expected 13"));
        }
        let key = headers.get(header::SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes).unwrap_or_default();
        if key.len() != KEY_CHARS {
            return Err(Refusal::field("Sec-WebSocket-Key", "expected 16 bytes in base64"));
        }
        let switch = request.extensions().get::<Switch>().cloned().ok_or(NO_SWITCH)?;
        let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
        let accept = base64_simd::STANDARD.encode_to_string(digest);
        let accept = HeaderValue::try_from(accept).map_err(|_| NO_SWITCH)?;
        Ok(Some(Self { accept, switch }))
    }

    /// Has the connection go on as a WebSocket once the answer is sent.
    pub(super) fn answer(self, feed: Feed) -> Response {
        self.switch.to(|stream, read| {
            Box::pin(async move {
                let mut socket = Socket::new(stream, read);
                socket.run(feed, BEAT).await;
                socket.stream
            })
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, UPGRADE);
        headers.insert(header::UPGRADE, WEBSOCKET);
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, self.accept);
        response
    }
}

const NO_SWITCH: Refusal = Refusal::unavailable("this connection can't become a WebSocket");

/// Whether a header is a list with a word in it.
fn has_word(headers: &HeaderMap, name: &str, word: &str) -> bool {
    let lists = headers.get_all(name).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|item| item.trim().eq_ignore_ascii_case(word))
}

/// The server's end of a WebSocket.
pub(super) struct Socket<S> {
    stream: S,
    read: BytesMut,
    decoder: Decoder,
    /// Pings since the client was last heard.
    unanswered: u32,
}

/// The connection is over.
struct Over;

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    pub(super) fn new(stream: S, read: BytesMut) -> Self {
        Self { stream, read, decoder: Decoder::default(), unanswered: 0 }
    }

    /// Gives what comes by the feed, until either side ends it.
    pub(super) async fn run(&mut self, mut feed: Feed, beat: Duration) {
        let mut next_beat = Instant::now() + beat;
        if self.hear().await.is_err() {
            return; // what came with the handshake
        }
        loop {
            let step = tokio::select! {
                piece = feed.next() => {
                    let step = self.give(piece).await;
                    next_beat = Instant::now() + beat; // a client that reads slowly has had no time for pings
                    step
                }
                read = self.stream.read_buf(&mut self.read) => match read {
                    Ok(0) | Err(_) => Err(Over),
                    Ok(_) => self.hear().await,
                },
                () = sleep_until(next_beat) => {
                    let step = self.beat().await;
                    next_beat = Instant::now() + beat;
                    step
                }
            };
            if step.is_err() {
                return;
            }
        }
    }

    async fn give(&mut self, piece: Option<Piece>) -> Result<(), Over> {
        let mut out = Vec::new();
        let piece = piece.ok_or(Over)?;
        write(&piece, &mut out);
        self.send(&out).await?;
        if let Piece::End(_) = piece { Err(Over) } else { Ok(()) }
    }

    /// Answers what has come.
    async fn hear(&mut self) -> Result<(), Over> {
        let (mut out, mut is_over) = (Vec::new(), false);
        while !is_over {
            match self.decoder.next(&mut self.read) {
                Ok(None) => break,
                Ok(Some(Incoming::Data | Incoming::Pong)) => self.unanswered = 0,
                Ok(Some(Incoming::Ping(payload))) => {
                    self.unanswered = 0;
                    frames::write_pong(&payload, &mut out);
                }
                Ok(Some(Incoming::Close)) => {
                    frames::write_close(CloseCode::Normal, "left", &mut out);
                    is_over = true;
                }
                Err(code) => {
                    frames::write_close(code, "", &mut out);
                    is_over = true;
                }
            }
        }
        if self.read.is_empty() {
            self.read = BytesMut::new(); // a socket that idles holds no buffer
        }
        self.send(&out).await?;
        if is_over { Err(Over) } else { Ok(()) }
    }

    async fn beat(&mut self) -> Result<(), Over> {
        let mut out = Vec::new();
        if self.unanswered >= PINGS_MAX {
            let why = Ended::Expired;
            frames::write_close(code_of(End::Session(why)), why.as_str(), &mut out);
            let _ = timeout(FAREWELL, self.send(&out)).await; // it may read although it does not answer
            return Err(Over);
        }
        self.unanswered += 1;
        frames::write_ping(&mut out);
        self.send(&out).await
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Over> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.stream.write_all(bytes).await.map_err(|_| Over)?;
        self.stream.flush().await.map_err(|_| Over)
    }
}

fn write(piece: &Piece, out: &mut Vec<u8>) {
    match piece {
        Piece::Messages(items) => {
            out.reserve(items.iter().map(|item| FRAME_BYTES + item.json.len()).sum());
            items.iter().for_each(|item| write_message(item, out));
        }
        Piece::Live(cursor) => {
            let cursor = write_cursor_field(Some(*cursor));
            frames::write_text(&[br#"{"type":"live""#, &cursor, b"}"], out);
        }
        Piece::End(end) => {
            frames::write_text(&[br#"{"type":"end","#, end.fields().as_bytes(), b"}"], out);
            frames::write_close(code_of(*end), end.as_str(), out);
        }
    }
}

fn write_message(item: &Item, out: &mut Vec<u8>) {
    let cursor = write_cursor_field(item.cursor);
    frames::write_text(&[br#"{"type":"message""#, &cursor, br#","message":"#, &item.json, b"}"], out);
}

fn write_cursor_field(cursor: Option<Key>) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(cursor) = cursor {
        out.extend_from_slice(br#","cursor":""#);
        write_cursor(cursor, &mut out);
        out.push(b'"');
    }
    out
}

fn code_of(end: End) -> CloseCode {
    match end {
        End::Session(Ended::Left) => CloseCode::Normal,
        End::Session(Ended::Stopping) => CloseCode::GoingAway,
        End::Session(Ended::Slow | Ended::Full) | End::Unavailable => CloseCode::TryAgainLater,
        End::Session(Ended::Replaced | Ended::Crowded | Ended::Expired | Ended::Operator | Ended::Lost) => {
            CloseCode::PolicyViolation
        }
    }
}
