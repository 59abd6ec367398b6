//! A live stream as Server-Sent Events (HTML standard, section 9.2).

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::stream;
use restante_core::Key;
use tokio::time::timeout;

use super::{
    ask::write_cursor,
    feed::{BEAT, Feed, Item, Piece},
};
use crate::rest::reply;

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
/// nginx sends an answer on as it comes when the answer asks for it, and else when its buffer is full.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const NO: HeaderValue = HeaderValue::from_static("no");
/// What frames a message, beside its cursor.
const FRAME_BYTES: usize = 160;

/// The answer that gives what comes by the feed.
pub(super) fn answer(feed: Feed) -> Response {
    answer_with(feed, BEAT)
}

pub(super) fn answer_with(feed: Feed, beat: Duration) -> Response {
    let state = Some(Box::new(feed));
    let body = stream::unfold(state, move |feed| async move {
        let mut feed = feed?;
        match timeout(beat, feed.next()).await {
            Err(_) => Some((Ok::<_, std::convert::Infallible>(beat_of(feed.cursor())), Some(feed))),
            Ok(None) => None,
            Ok(Some(piece)) => Some((Ok(write(&piece)), Some(feed))),
        }
    });
    let mut response = reply::with_type(EVENT_STREAM, Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    headers.insert(X_ACCEL_BUFFERING, NO);
    response
}

/// A comment, which readers skip, and with it where the stream would go on, which browsers remember although nothing is told.
fn beat_of(cursor: Option<Key>) -> Bytes {
    let mut out = b":\n".to_vec();
    write_id(cursor, &mut out);
    out.push(b'\n');
    out.into()
}

fn write(piece: &Piece) -> Bytes {
    let mut out = Vec::new();
    match piece {
        Piece::Messages(items) => {
            out.reserve(items.iter().map(|item| FRAME_BYTES + item.json.len()).sum());
            items.iter().for_each(|item| write_message(item, &mut out));
        }
        Piece::Live(cursor) => {
            out.extend_from_slice(b"event: live\n");
            write_id(Some(*cursor), &mut out);
            out.extend_from_slice(b"data: {}\n\n"); // an event without data is not dispatched
        }
        Piece::End(end) => {
            let text = format!("event: end\ndata: {{{}}}\n\n", end.fields());
            out.extend_from_slice(text.as_bytes());
        }
    }
    out.into()
}

fn write_message(item: &Item, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: message\n");
    write_id(item.cursor, out);
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(&item.json); // JSON has no line breaks: they are escaped in texts
    out.extend_from_slice(b"\n\n");
}

fn write_id(cursor: Option<Key>, out: &mut Vec<u8>) {
    let Some(cursor) = cursor else { return };
    out.extend_from_slice(b"id: ");
    write_cursor(cursor, out);
    out.push(b'\n');
}
