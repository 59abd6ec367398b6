//! Builds a page from the rows that were found.

use std::{collections::HashMap, sync::Arc};

use foldhash::fast::RandomState;
use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::{Cursor, Key};

use super::{
    Shared,
    query::Found,
    schema::{self, Body, BodyHash, EpochId, Statement, TopicKey, Value},
};
use crate::{Direction, Error, PAGE_BYTES_MAX, Page, Part, Query, RowAt, TopicName, record};

/// Long bodies that are read at the same time.
const BODIES: usize = 8;
/// Chunks in one response.
const CHUNKS: usize = 8;

/// Builds a page from rows in the direction of the query. If there are more rows than the page has, at least one more is in
/// `found`.
pub(super) async fn assemble(shared: &Shared, query: &Query, mut found: Vec<Found>) -> Result<Page, Error> {
    let rows_len = rows_on_page(&found, query.limit);
    let has_more = rows_len < found.len();
    found.truncate(rows_len);
    let next = found.last().filter(|_| has_more).map(|row| Cursor::At(row.key));
    if query.direction == Direction::Backward {
        found.reverse();
    }
    let mut bodies = if query.bodies { long_bodies(shared, &found).await? } else { HashMap::default() };
    let mut buffer = Vec::new();
    let mut rows = Vec::with_capacity(found.len());
    let mut topics: Vec<TopicName> = Vec::new();
    let mut numbers: HashMap<TopicKey, u32, RandomState> = HashMap::default();
    for row in &found {
        let Some(value) = schema::decode_value(&row.value) else {
            shared.metrics.damaged.inc();
            continue;
        };
        let number = match numbers.get(&value.topic) {
            Some(number) => *number,
            None => {
                // A topic is registered before its first message, unless the catalogue is damaged.
                let Some(name) = shared.catalog.name(&value.topic) else {
                    shared.metrics.damaged.inc();
                    continue;
                };
                let number = u32::try_from(topics.len()).unwrap_or(u32::MAX);
                topics.push(name);
                numbers.insert(value.topic, number);
                number
            }
        };
        let long = bodies.remove(&row.key);
        let body = match value.body {
            Body::Inline(body) => body,
            Body::Chunks(_) => long.as_deref().unwrap_or_default(),
        };
        let offset = u32::try_from(buffer.len()).expect("a page is bounded by PAGE_BYTES_MAX");
        record::encode_message(0, number, row.key, body, &mut buffer);
        rows.push(RowAt { part: 0, offset });
    }
    let part = Part { bytes: buffer.into(), topics: Arc::from(topics) };
    Ok(Page { parts: vec![part], rows, next, bodies: query.bodies })
}

/// How many rows a page has: at most `limit`; it also ends after the row that brings its bodies to [`PAGE_BYTES_MAX`].
fn rows_on_page(found: &[Found], limit: usize) -> usize {
    let mut bytes = 0;
    let mut len = 0;
    for row in found {
        if len == limit || bytes >= PAGE_BYTES_MAX {
            break;
        }
        bytes += row.body_bytes();
        len += 1;
    }
    len
}

/// The bodies that are not stored in rows.
async fn long_bodies(shared: &Shared, found: &[Found]) -> Result<HashMap<Key, Vec<u8>, RandomState>, Error> {
    let long = found.iter().filter_map(|row| {
        let value = schema::decode_value(&row.value)?;
        matches!(value.body, Body::Chunks(_)).then_some((row.epoch, row.key, value))
    });
    let long: Vec<_> = long.collect();
    let reads: Vec<_> = long
        .into_iter()
        .map(|(epoch, key, value)| async move {
            let body = body(shared, epoch, &value).await?;
            body.map(|body| (key, body)).ok_or_else(|| {
                shared.metrics.damaged.inc();
                Error::corrupt(format!(
                    "the body of the message {} is damaged or not whole",
                    key.message_hash
                ))
            })
        })
        .collect();
    let bodies: Vec<(Key, Vec<u8>)> = stream::iter(reads).buffer_unordered(BODIES).try_collect().await?;
    Ok(bodies.into_iter().collect())
}

/// The body of a message; `None` when it is damaged or incomplete.
pub(super) async fn body(
    shared: &Shared,
    epoch: EpochId,
    value: &Value<'_>,
) -> Result<Option<Vec<u8>>, Error> {
    let body = match &value.body {
        Body::Inline(body) => body.to_vec(),
        Body::Chunks(hash) => chunks(shared, epoch, hash, value.body_bytes as usize).await?,
    };
    let is_whole = body.len() == value.body_bytes as usize && crc32c::crc32c(&body) == value.checksum;
    Ok(is_whole.then_some(body))
}

/// The chunks of a long body that exist.
async fn chunks(shared: &Shared, epoch: EpochId, hash: &BodyHash, len: usize) -> Result<Vec<u8>, Error> {
    let count = i64::try_from(len.div_ceil(schema::CHUNK_BYTES)).unwrap_or(i64::MAX);
    let part = schema::chunk_part(hash);
    let mut body = Vec::new();
    for first in (0..count).step_by(CHUNKS) {
        let values = (part.as_slice(), first, count.min(first + CHUNKS as i64));
        let rows: Vec<(i64, Option<Vec<u8>>)> =
            shared.database.read("read a long body", Statement::ReadChunks(epoch), values).await?;
        for (_, chunk) in rows {
            body.extend_from_slice(&chunk.unwrap_or_default());
        }
    }
    Ok(body)
}
