//! A live stream over a WebSocket: messages as JSON texts.

use std::time::Duration;

use axum::response::Response;
use futures_util::FutureExt;
use restante_core::Key;
use restante_http::websocket::{CloseCode, Message, SocketLimits, Upgrade, WebSocket};
use restante_sessions::Ended;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    ask::write_cursor,
    feed::{BEAT, End, Feed, Item, Piece},
};

/// Clients need not send anything: what they send is dropped. A client that sends longer messages than this was not written for
/// this protocol.
pub(super) const LIMITS: SocketLimits =
    SocketLimits { message_bytes_max: 64 << 10, ping_interval: BEAT, message_timeout: MESSAGE_TIMEOUT };
/// How long a client may take to send a message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The bytes around a message, with its cursor.
const FRAME_BYTES: usize = 200;

/// Sends the feed's pieces over the socket of a handshake.
pub(super) fn answer(upgrade: Upgrade, feed: Feed) -> Response {
    upgrade.answer(LIMITS, |socket| run(socket, feed).boxed())
}

/// Sends the feed's pieces until either side ends the stream.
pub(super) async fn run<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocket<S>, mut feed: Feed) {
    loop {
        tokio::select! {
            piece = feed.next() => {
                let Some(piece) = piece else { return };
                if socket.send(write(&piece)).await.is_err() {
                    return;
                }
                if let Piece::End(end) = piece {
                    return socket.close(code_of(end), end.as_str()).await;
                }
            }
            received = socket.receive() => {
                if received.is_err() {
                    return;
                }
            }
        }
    }
}

fn write(piece: &Piece) -> Vec<Message> {
    match piece {
        Piece::Messages(items) => items.iter().map(write_message).collect(),
        Piece::Live(cursor) => {
            let mut text = br#"{"type":"live""#.to_vec();
            write_cursor_field(Some(*cursor), &mut text);
            text.push(b'}');
            vec![message_of(text)]
        }
        Piece::End(end) => vec![Message::Text(format!(r#"{{"type":"end",{}}}"#, end.fields()))],
    }
}

fn write_message(item: &Item) -> Message {
    let mut text = Vec::with_capacity(FRAME_BYTES + item.json.len());
    text.extend_from_slice(br#"{"type":"message""#);
    write_cursor_field(item.cursor, &mut text);
    text.extend_from_slice(br#","message":"#);
    text.extend_from_slice(&item.json);
    text.push(b'}');
    message_of(text)
}

fn message_of(json: Vec<u8>) -> Message {
    Message::Text(String::from_utf8(json).expect("the writer of messages writes UTF-8"))
}

fn write_cursor_field(cursor: Option<Key>, out: &mut Vec<u8>) {
    if let Some(cursor) = cursor {
        out.extend_from_slice(br#","cursor":""#);
        write_cursor(cursor, out);
        out.push(b'"');
    }
}

fn code_of(end: End) -> CloseCode {
    match end {
        End::Session(Ended::Left) => CloseCode::Normal,
        End::Session(Ended::Stopping) => CloseCode::Away,
        End::Session(Ended::Slow | Ended::Full) | End::Unavailable => CloseCode::Again,
        End::Session(Ended::Replaced | Ended::Crowded | Ended::Expired | Ended::Operator | Ended::Lost) => {
            CloseCode::Policy
        }
    }
}
