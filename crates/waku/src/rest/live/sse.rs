//! A live stream as Server-Sent Events.

use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use restante_core::Key;
use restante_http::event_stream::{self, write_comment, write_event};
use tokio::time::timeout;

use super::{
    ask::write_cursor,
    feed::{BEAT, Feed, Item, Piece},
};

/// The bytes around a message, besides its cursor.
const FRAME_BYTES: usize = 160;

/// The answer that sends the feed's pieces.
pub(super) fn answer(feed: Feed) -> Response {
    answer_with(feed, BEAT)
}

pub(super) fn answer_with(feed: Feed, beat: Duration) -> Response {
    let state = Some(Box::new(feed));
    event_stream::response(stream::unfold(state, move |feed| async move {
        let mut feed = feed?;
        match timeout(beat, feed.next()).await {
            Err(_) => Some((beat_of(feed.cursor()), Some(feed))),
            Ok(None) => None,
            Ok(Some(piece)) => Some((write(&piece), Some(feed))),
        }
    }))
}

/// A comment with the cursor at which the stream would resume, which browsers remember although there was no event.
fn beat_of(cursor: Option<Key>) -> Bytes {
    let mut out = Vec::new();
    write_comment(id_of(cursor).as_deref(), &mut out);
    out.into()
}

fn write(piece: &Piece) -> Bytes {
    let mut out = Vec::new();
    match piece {
        Piece::Messages(items) => {
            out.reserve(items.iter().map(|item| FRAME_BYTES + item.json.len()).sum());
            for Item { cursor, json } in items {
                write_event("message", id_of(*cursor).as_deref(), json, &mut out);
            }
        }
        // An event without data is not dispatched.
        Piece::Live(cursor) => write_event("live", id_of(Some(*cursor)).as_deref(), b"{}", &mut out),
        Piece::End(end) => write_event("end", None, format!("{{{}}}", end.fields()).as_bytes(), &mut out),
    }
    out.into()
}

fn id_of(cursor: Option<Key>) -> Option<Vec<u8>> {
    let mut id = Vec::new();
    write_cursor(cursor?, &mut id);
    Some(id)
}
