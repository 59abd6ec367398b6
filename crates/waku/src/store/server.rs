use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;
use prost::Message as _;
use restante_archive::{Archive, Direction, Error, Page, Query, Row, Topics};
use restante_core::{Cursor, ErrorKind, MessageHash, Timestamp};
use restante_waku_wire::{
    WakuMessage, WakuMessageView,
    rpc::store::{self, Entry, ResponseHead, StoreQueryRequest},
};

use super::{NO_REQUEST_ID, OK, PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, TOO_MANY_REQUESTS, hash_of};
use crate::{
    large,
    service::{Answer, Service},
    validate::MESSAGE_BYTES_MAX,
};

/// The most content topics of one query. nwaku limits them to 10, but only with a cursor; clients with many conversations send
/// hundreds.
const CONTENT_TOPICS_MAX: usize = 1_000;
/// The most hashes of one query: ten full pages.
const HASHES_MAX: usize = 1_000;
/// The longest request: 1,000 hashes and 1,000 content topics of usual length.
const REQUEST_BYTES_MAX: usize = 256 << 10;
/// A page ends before the row that would bring it above this, because js-waku reads no answer of more than 4 MiB (the default of
/// `it-length-prefixed`). A page has at least one row, however long.
pub(crate) const PAGE_BYTES_MAX: usize = 4_000_000;
/// The bytes of a row in an answer besides its message and its pubsub topic: its hash, keys and lengths.
const ROW_BYTES: usize = 64;

const BAD_RESPONSE: u32 = 300;
const BAD_REQUEST: u32 = 400;
const INTERNAL_ERROR: u32 = 500;
const SERVICE_UNAVAILABLE: u32 = 503;

/// Answers store queries from the archive.
///
/// Where `13/WAKU2-STORE` leaves a choice, or nwaku differs from it:
/// - The end of the time range is exclusive, as the specification says; nwaku includes it. js-waku splits long ranges into
///   days, so an inclusive end would give it the messages on a boundary twice.
/// - Hashes together with topics or times are allowed: a message has to match all of them.
/// - Pubsub topic and content topics may be given one without the other, as with nwaku. An empty pubsub topic means none; an
///   empty content topic matches no message. Without a pubsub topic, all messages of this door are searched.
/// - A cursor of a message that is not archived is answered with status 300, as in nwaku. A cursor of the last message gives an
///   empty page: js-waku makes its cursors itself and continues until a page is empty.
/// - A page has fewer messages than requested when it would become too long; its cursor says that more remain.
#[derive(Clone)]
pub struct StoreService {
    archive: Arc<dyn Archive>,
}

impl std::fmt::Debug for StoreService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreService").finish_non_exhaustive()
    }
}

impl StoreService {
    /// Creates a service that answers from `archive`.
    pub fn new(archive: Arc<dyn Archive>) -> Self {
        Self { archive }
    }

    async fn page(&self, request_id: &str, request: StoreQueryRequest) -> Result<Vec<u8>, Refusal> {
        let query = query_of(request)?;
        let page = self.archive.query(&query).await.map_err(|error| Refusal::of(&error))?;
        write_answer(page, request_id, query.direction).await
    }
}

#[async_trait]
impl Service for StoreService {
    fn id(&self) -> &'static str {
        store::ID
    }

    fn name(&self) -> &'static str {
        "store"
    }

    fn request_bytes_max(&self) -> usize {
        REQUEST_BYTES_MAX
    }

    /// The frame and the archive's page, which holds copies with some engines and is cut only when it is written.
    fn answer_bytes_max(&self) -> usize {
        PAGE_BYTES_MAX + PAGE_ROWS_MAX as usize * MESSAGE_BYTES_MAX
    }

    async fn answer(&self, _peer: PeerId, request: Bytes) -> Answer {
        let Ok(mut request) = StoreQueryRequest::decode(request) else {
            return Refusal::bad_request("not a store query").answer(NO_REQUEST_ID);
        };
        let request_id = std::mem::take(&mut request.request_id);
        match self.page(&request_id, request).await {
            Ok(frame) => Answer::new(OK, frame),
            Err(refusal) => refusal.answer(&request_id),
        }
    }

    /// The request is not decoded, so its id is unknown, as in nwaku.
    fn answer_too_often(&self, _request: Bytes) -> Answer {
        let text = "TOO_MANY_REQUESTS: try again later".into();
        Refusal { status: TOO_MANY_REQUESTS, text }.answer(NO_REQUEST_ID)
    }
}

/// Why a query is refused: a status, and a text without internals.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    status: u32,
    text: Cow<'static, str>,
}

impl Refusal {
    /// The request is invalid. The text has nwaku's prefix.
    fn bad_request(what: &str) -> Self {
        Self { status: BAD_REQUEST, text: format!("BAD_REQUEST: {what}").into() }
    }

    /// Maps kinds of errors to statuses. The texts of the errors are not used: they may name files.
    fn of(error: &Error) -> Self {
        let (status, text) = match error.kind() {
            ErrorKind::NotFound => (BAD_RESPONSE, "BAD_RESPONSE: cursor not found"),
            ErrorKind::Invalid => (BAD_REQUEST, "BAD_REQUEST: the query exceeds a limit of the archive"),
            ErrorKind::Full | ErrorKind::Unavailable => {
                (SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE: the archive is unavailable, try again later")
            }
            ErrorKind::Corrupt => (INTERNAL_ERROR, "INTERNAL_ERROR: the archive is damaged here"),
            ErrorKind::Conflict | ErrorKind::Internal => (INTERNAL_ERROR, "INTERNAL_ERROR"),
        };
        Self { status, text: Cow::Borrowed(text) }
    }

    fn answer(&self, request_id: &str) -> Answer {
        let (status_code, status_desc) = (self.status, &*self.text);
        let head = ResponseHead { request_id, status_code, status_desc, cursor: None };
        Answer::new(status_code, store::encode_response(head, std::iter::empty()))
    }
}

fn query_of(request: StoreQueryRequest) -> Result<Query, Refusal> {
    let limit = request.pagination_limit.filter(|limit| *limit > 0).unwrap_or(PAGE_ROWS_DEFAULT);
    Ok(Query {
        channel: request.pubsub_topic.filter(|topic| !topic.is_empty()),
        topics: topics_of(request.content_topics)?,
        start: request.time_start.map(Timestamp),
        end: request.time_end.map(Timestamp),
        hashes: hashes_of(&request.message_hashes)?,
        cursor: request.pagination_cursor.as_ref().map(cursor_of).transpose()?,
        direction: if request.pagination_forward { Direction::Forward } else { Direction::Backward },
        limit: limit.min(PAGE_ROWS_MAX) as usize,
        bodies: request.include_data,
    })
}

fn topics_of(content_topics: Vec<String>) -> Result<Topics, Refusal> {
    if content_topics.len() > CONTENT_TOPICS_MAX {
        let what = format!(
            "content_topics: {} are too many, the limit is {CONTENT_TOPICS_MAX}",
            content_topics.len()
        );
        return Err(Refusal::bad_request(&what));
    }
    Ok(if content_topics.is_empty() { Topics::Any } else { Topics::List(content_topics) })
}

fn hashes_of(message_hashes: &[Bytes]) -> Result<Vec<MessageHash>, Refusal> {
    if message_hashes.len() > HASHES_MAX {
        let what =
            format!("message_hashes: {} are too many, the limit is {HASHES_MAX}", message_hashes.len());
        return Err(Refusal::bad_request(&what));
    }
    let wrong_length = || Refusal::bad_request("message_hashes: expected 32 bytes each");
    message_hashes.iter().map(|bytes| hash_of(bytes).ok_or_else(wrong_length)).collect()
}

fn cursor_of(bytes: &Bytes) -> Result<Cursor, Refusal> {
    let hash = hash_of(bytes).ok_or_else(|| Refusal::bad_request("pagination_cursor: expected 32 bytes"))?;
    Ok(Cursor::Message(hash))
}

async fn write_answer(page: Page, request_id: &str, direction: Direction) -> Result<Vec<u8>, Refusal> {
    let size = page.rows().map(|row| row.body.len()).sum();
    let request_id = request_id.to_owned();
    let written = large::work(size, move || answer_of(&page, &request_id, direction)).await;
    written.map_err(|_| Refusal { status: INTERNAL_ERROR, text: "INTERNAL_ERROR".into() })
}

/// Encodes a page. Each message is copied once, from the archive's page into the frame.
fn answer_of(page: &Page, request_id: &str, direction: Direction) -> Vec<u8> {
    let mut rows: Vec<Row<'_>> = page.rows().collect();
    let cut_at = cut(&mut rows, direction);
    let cursor = cut_at.or_else(|| page.next.map(message_of_cursor));
    let messages: Vec<_> = if page.bodies { rows.iter().map(message_of).collect() } else { Vec::new() };
    let entries = rows.iter().enumerate().map(|(index, row)| {
        let data = messages.get(index).map(|message| (&**message, row.channel));
        Entry { message_hash: &row.message_hash, data }
    });
    let head = ResponseHead { request_id, status_code: OK, status_desc: "OK", cursor };
    store::encode_response(head, entries)
}

/// Cuts a page whose messages take more than [`PAGE_BYTES_MAX`], at its end in the direction of the query. Returns the last
/// message that is left there, if some were removed.
pub(crate) fn cut(rows: &mut Vec<Row<'_>>, direction: Direction) -> Option<MessageHash> {
    let fitting = match direction {
        Direction::Forward => count_fitting(rows.iter()),
        Direction::Backward => count_fitting(rows.iter().rev()),
    };
    let surplus = rows.len() - fitting;
    if surplus == 0 {
        return None;
    }
    let last = match direction {
        Direction::Forward => {
            rows.truncate(fitting);
            rows.last()
        }
        Direction::Backward => {
            rows.drain(..surplus);
            rows.first()
        }
    };
    last.map(|row| row.message_hash)
}

fn count_fitting<'a>(rows: impl Iterator<Item = &'a Row<'a>>) -> usize {
    let mut bytes = 0;
    let mut count = 0;
    for row in rows {
        bytes += row.body.len() + row.topic.len() + row.channel.len() + ROW_BYTES;
        if bytes > PAGE_BYTES_MAX && count > 0 {
            break;
        }
        count += 1;
    }
    count
}

fn message_of_cursor(cursor: Cursor) -> MessageHash {
    match cursor {
        Cursor::At(key) => key.message_hash,
        Cursor::Message(hash) => hash,
    }
}

/// The message of a row, usually its unchanged body.
///
/// An importer may have stored other bytes, and one such row would make clients refuse the whole page. It is served as in REST:
/// as a message whose payload is the whole body and whose topic and timestamp are the row's. The check reads only the keys of
/// the message's fields and skips the payload.
fn message_of<'a>(row: &Row<'a>) -> Cow<'a, [u8]> {
    let is_readable = |view: &WakuMessageView<'_>| view.content_topic == row.topic && view.check().is_ok();
    if WakuMessageView::parse(row.body).is_ok_and(|view| is_readable(&view)) {
        return Cow::Borrowed(row.body);
    }
    let message = WakuMessage {
        payload: Bytes::copy_from_slice(row.body),
        content_topic: row.topic.to_owned(),
        timestamp: Some(row.timestamp.nanos()),
        ..WakuMessage::default()
    };
    Cow::Owned(message.to_wire().into())
}

/// Checks that accepted queries are bounded, and that others are refused with a short text.
pub(super) fn fuzz_request(bytes: &[u8]) {
    let Ok(request) = StoreQueryRequest::decode(bytes) else { return };
    match query_of(request) {
        Ok(query) => {
            assert!((1..=PAGE_ROWS_MAX as usize).contains(&query.limit), "a page has 1 to 100 rows");
            assert!(query.hashes.len() <= HASHES_MAX, "hashes are bounded");
            if let Topics::List(topics) = &query.topics {
                assert!((1..=CONTENT_TOPICS_MAX).contains(&topics.len()), "content topics are bounded");
            }
        }
        Err(refusal) => assert!(refusal.status == BAD_REQUEST && refusal.text.len() < 100, "{refusal:?}"),
    }
}

#[cfg(test)]
mod tests;
