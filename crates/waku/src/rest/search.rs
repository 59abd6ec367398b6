//! Searches content topics by prefix.
//!
//! No archive sorts topics in an order that would help here, so rows are read one after the other, without their bodies and up to
//! a limit; the client continues where a search stopped. The answer has hashes; the messages are fetched from the store.

use std::sync::Arc;

use axum::{
    extract::{RawQuery, State},
    response::Response,
};
use restante_archive::{Archive, Direction, Error, Page, Query, Row, Walk};
use restante_core::MessageHash;
use serde_json::json;
use tokio::time::timeout_at;

use super::{App, path, refusals, reply, reply::Refusal, store::Fields};

/// The query names of a search.
pub(crate) const SEARCH_NAMES: &[&str] =
    &[PREFIX_NAME, "pubsubTopic", "startTime", "endTime", "cursor", "ascending", "pageSize"];
/// The name of the prefix.
const PREFIX_NAME: &str = "contentTopicPrefix";

/// Rows per query to the archive: about as many as are checked in a few tenths of a millisecond.
const ROWS_AT_ONCE: usize = 1_000;
/// The most rows that one search checks: some tenths of a second on a slow machine.
const ROWS_MAX: usize = 100_000;
/// The longest prefix: no content topic of any use is longer.
const PREFIX_BYTES_MAX: usize = 1_024;

/// `GET /console/v1/search`
pub(crate) async fn search(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let text = query.as_deref().unwrap_or_default();
    let prefix = prefix_in(text)?;
    let query = Fields::from_query_string(SEARCH_NAMES, text)?.into_store_query()?.query;
    let _permit = app.permits.acquire()?;
    let searching = look_through(&*app.archive, query, &prefix);
    let found = timeout_at(app.deadline(), searching).await;
    let found = found.map_err(|_| refusals::late())?;
    let found = found.map_err(|error| refusals::of_query(&error))?;
    let hashes: Vec<String> = found.hashes.iter().map(ToString::to_string).collect();
    let next = found.next.map(|hash| hash.to_string());
    Ok(reply::json(json!({"hashes": hashes, "looked": found.looked, "next": next}).to_string()))
}

fn prefix_in(text: &str) -> Result<String, Refusal> {
    let mut prefixes = text.split('&').filter_map(|pair| pair.split_once('='));
    let (_, prefix) = prefixes
        .find(|(name, _)| *name == PREFIX_NAME)
        .ok_or_else(|| Refusal::field(PREFIX_NAME, "is missing"))?;
    let prefix = path::decode_form(prefix, PREFIX_NAME)?;
    if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX {
        return Err(Refusal::field(PREFIX_NAME, "expected 1 to 1024 bytes"));
    }
    Ok(prefix.into_owned())
}

/// The result of a search.
#[derive(Debug, Default, PartialEq)]
struct Found {
    /// In the direction of the query.
    hashes: Vec<MessageHash>,
    /// The number of rows that were checked.
    looked: usize,
    /// Where the next search continues; `None` when all rows were checked.
    next: Option<MessageHash>,
}

/// Checks rows until enough are found, or enough were checked.
async fn look_through(archive: &dyn Archive, query: Query, prefix: &str) -> Result<Found, Error> {
    let (wanted, direction) = (query.limit, query.direction);
    let mut walk = Walk::new(Query { limit: ROWS_AT_ONCE, bodies: false, ..query });
    let mut found = Found::default();
    let mut last = None;
    while let Some(page) = walk.next(archive).await? {
        for row in rows_in(direction, &page) {
            if found.hashes.len() == wanted || found.looked == ROWS_MAX {
                found.next = last;
                return Ok(found);
            }
            found.looked += 1;
            last = Some(row.message_hash);
            if row.topic.starts_with(prefix) {
                found.hashes.push(row.message_hash);
            }
        }
    }
    Ok(found)
}

/// Pages are ascending in either direction of the query.
fn rows_in(direction: Direction, page: &Page) -> Vec<Row<'_>> {
    match direction {
        Direction::Forward => page.rows().collect(),
        Direction::Backward => page.rows().rev().collect(),
    }
}
