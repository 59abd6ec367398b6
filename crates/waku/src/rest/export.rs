//! Exports: a whole range as one stream, at the pace of the client that reads it.

use std::{io, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderValue, StatusCode, Version},
    response::Response,
};
use bytes::Bytes;
use restante_archive::{Archive, Direction, Page, Query, Row, Walk};
use restante_waku_wire::encode_key_value;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{timeout, timeout_at},
};
use tracing::warn;

use super::{
    App, json, refusals, reply,
    reply::Refusal,
    store::{EXPORT_NAMES, Fields, Format},
};

/// Rows per query to the archive: enough to make the cost of a query negligible, and few enough to hold.
const PAGE_ROWS: usize = 4_096;
/// A chunk is sent when it has this many bytes.
const CHUNK_BYTES: usize = 256 << 10;
/// The most chunks that wait for the client: building continues while they are sent, and stops when they pile up.
const CHUNKS_WAITING: usize = 3;
/// The bytes around a message in the protobuf format, besides its body and its pubsub topic.
const FRAME_BYTES: usize = 64;

const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson");
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");

/// `GET /archive/v1/export`
///
/// A client can rely on the end: when the archive fails in the middle, the connection is cut before the final chunk.
pub(crate) async fn export(
    State(app): State<Arc<App>>,
    version: Version,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    // HTTP/1.0 has no chunks: a truncated answer would look complete.
    if version < Version::HTTP_11 {
        return Err(Refusal::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "an export needs HTTP/1.1"));
    }
    let fields = Fields::from_query_string(EXPORT_NAMES, query.as_deref().unwrap_or_default())?;
    let format = fields.format();
    let query = Query { limit: PAGE_ROWS, ..fields.into_query()? };
    let permit = app.exports.acquire()?;
    let direction = query.direction;
    let mut walk = Walk::new(query);
    let first = timeout_at(app.deadline(), walk.next(&*app.archive)).await;
    let first = first.map_err(|_| refusals::late())?;
    let first = first.map_err(|error| refusals::of_query(&error))?;

    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
    let page_timeout = Duration::from_millis(app.rest.config.request_timeout_ms.get());
    let archive = app.archive.clone();
    let producer = Producer { archive, walk, format, direction, sender, page_timeout, _permit: permit };
    tokio::spawn(producer.run(first));
    let content_type = match format {
        Format::Ndjson => NDJSON,
        Format::Protobuf => PROTOBUF,
    };
    Ok(reply::with_type(content_type, body_of(receiver)))
}

/// What the producer sends.
enum Piece {
    Chunk(Bytes),
    /// Everything was sent. A producer that ends without this has failed.
    End,
}

/// Builds chunks while the connection sends earlier ones; ends when the client disconnects.
struct Producer {
    archive: Arc<dyn Archive>,
    walk: Walk,
    format: Format,
    direction: Direction,
    sender: mpsc::Sender<Piece>,
    /// How long the archive may take for a page; the export as a whole may take any time.
    page_timeout: Duration,
    _permit: OwnedSemaphorePermit,
}

/// The archive failed.
struct Broken;

/// The client has disconnected.
struct Gone;

impl Producer {
    async fn run(mut self, first: Option<Page>) {
        let mut page = first;
        while let Some(current) = page {
            if self.send_page(&current).await.is_err() {
                return;
            }
            drop(current); // releases the segments before it waits for the next page
            match self.next_page().await {
                Ok(next) => page = next,
                Err(Broken) => return, // without the final chunk, so that the connection is cut
            }
        }
        let _ = self.sender.send(Piece::End).await;
    }

    async fn next_page(&mut self) -> Result<Option<Page>, Broken> {
        let next = timeout(self.page_timeout, self.walk.next(&*self.archive)).await;
        match next {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(error)) => {
                warn!(kind = error.kind().as_str(), %error, "export broke off");
                Err(Broken)
            }
            Err(_) => {
                warn!("export broke off: the archive did not answer in time");
                Err(Broken)
            }
        }
    }

    async fn send_page(&self, page: &Page) -> Result<(), Gone> {
        let mut chunk = Vec::new();
        let mut rows = page.rows();
        loop {
            let row = match self.direction {
                Direction::Forward => rows.next(),
                Direction::Backward => rows.next_back(), // pages are ascending, an export from new to old is not
            };
            let Some(row) = row else {
                break;
            };
            if chunk.capacity() == 0 {
                chunk.reserve(CHUNK_BYTES + estimate(self.format, &row));
            }
            write(self.format, &row, &mut chunk);
            if chunk.len() >= CHUNK_BYTES {
                self.send(std::mem::take(&mut chunk)).await?;
            }
        }
        if chunk.is_empty() { Ok(()) } else { self.send(chunk).await }
    }

    async fn send(&self, chunk: Vec<u8>) -> Result<(), Gone> {
        self.sender.send(Piece::Chunk(chunk.into())).await.map_err(|_| Gone)
    }
}

fn estimate(format: Format, row: &Row<'_>) -> usize {
    match format {
        Format::Ndjson => json::estimate_row_size(row),
        Format::Protobuf => row.body.len() + row.channel.len() + FRAME_BYTES,
    }
}

fn write(format: Format, row: &Row<'_>, out: &mut Vec<u8>) {
    match format {
        Format::Ndjson => {
            json::write_export_entry(row, out);
            out.push(b'\n');
        }
        Format::Protobuf => encode_key_value(&row.message_hash, row.body, row.channel, out),
    }
}

fn body_of(receiver: mpsc::Receiver<Piece>) -> Body {
    let pieces = futures_util::stream::unfold(Some(receiver), |receiver| async move {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Piece::Chunk(chunk)) => Some((Ok(chunk), Some(receiver))),
            Some(Piece::End) => None,
            None => Some((Err(io::Error::other("the export broke off")), None)),
        }
    });
    Body::from_stream(pieces)
}
