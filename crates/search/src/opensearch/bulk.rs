//! Bulk requests: in parts, each tried again while OpenSearch is busy, with the outcome of each item.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    Engine, Failure,
    client::{Answer, Body, is_block, shortened},
    place::IndexName,
};
use crate::Error;

/// The most items of a request, which is also bounded in bytes unless one item is longer. Nodes with little memory refuse larger
/// ones.
pub(super) const ITEMS_MAX: usize = 500;
const BYTES_MAX: usize = 5 << 20;

/// The fields of each item in a response: the rest is long, is not read, and costs both sides time. Errors of a whole request are not
/// filtered.
const ANSWER_FIELDS: &str = "items.*.status,items.*.error.type,items.*.error.reason";

/// The first wait before a retry; it doubles.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(3);
/// When retries have lasted this long, the write has failed. Then the series ends, and the next one begins after a longer wait.
const RETRIED_MAX: Duration = Duration::from_secs(10);

/// A document that is written or removed.
#[derive(Clone, Debug)]
pub(super) struct Item {
    id: String,
    /// The line with the action.
    action: String,
    /// The line with the document, when it is written.
    source: Option<Bytes>,
}

/// When the documents that a request writes become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refresh {
    /// When the index is refreshed.
    Later,
    /// When the request is answered. Then everything in the shards of its items is visible, in all copies,
    /// also what was written there before.
    ShardsOfItems,
}

/// A document that OpenSearch does not accept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rejected {
    pub(super) id: String,
    pub(super) why: String,
}

impl Item {
    /// Writes a document, unless a later version of it was written.
    pub(super) fn index(id: String, routing: &str, version: i64, source: Bytes) -> Self {
        let action = Action::Index(Target::new(&id, routing, version)).line();
        Self { id, action, source: Some(source) }
    }

    /// Removes a document, unless a later version of it was written.
    pub(super) fn delete(id: String, routing: &str, version: i64) -> Self {
        let action = Action::Delete(Target::new(&id, routing, version)).line();
        Self { id, action, source: None }
    }

    /// Its bytes in a request.
    fn bytes(&self) -> usize {
        self.action.len() + self.source.as_ref().map_or(0, |source| source.len() + 1)
    }

    fn write_to(&self, lines: &mut Vec<u8>) {
        lines.extend_from_slice(self.action.as_bytes());
        if let Some(source) = &self.source {
            lines.extend_from_slice(source);
            lines.push(b'\n');
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Action<'a> {
    Index(Target<'a>),
    Delete(Target<'a>),
}

#[derive(Serialize)]
struct Target<'a> {
    #[serde(rename = "_id")]
    id: &'a str,
    routing: &'a str,
    version: i64,
    version_type: &'static str,
}

impl<'a> Target<'a> {
    fn new(id: &'a str, routing: &'a str, version: i64) -> Self {
        Self { id, routing, version, version_type: "external_gte" }
    }
}

impl Action<'_> {
    fn line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("text and a number have a form in JSON");
        line.push('\n');
        line
    }
}

/// The lines of all items.
fn lines_of(items: &[Item]) -> Bytes {
    let mut lines = Vec::with_capacity(items.iter().map(Item::bytes).sum());
    for item in items {
        item.write_to(&mut lines);
    }
    lines.into()
}

/// The outcome of the items of one request.
#[derive(Debug, Default)]
struct Outcome {
    rejected: Vec<Rejected>,
    /// Those that may succeed later, with a reason.
    again: Vec<Item>,
    busy: Option<Error>,
}

impl Engine {
    /// Writes all items, and returns those that can never be written.
    pub(super) async fn bulk(
        &self,
        index: &IndexName,
        mut items: Vec<Item>,
        refresh: Refresh,
    ) -> Result<Vec<Rejected>, Failure> {
        let mut path =
            format!("/{}/_bulk?require_alias=true&filter_path={ANSWER_FIELDS}", index.for_writes());
        if refresh == Refresh::ShardsOfItems {
            path.push_str("&refresh=true");
        }
        let mut rejected = Vec::new();
        while !items.is_empty() {
            let others = items.split_off(part_length(&items));
            rejected.extend(self.write_part(&path, items).await?);
            items = others;
        }
        Ok(rejected)
    }

    async fn write_part(&self, path: &str, items: Vec<Item>) -> Result<Vec<Rejected>, Failure> {
        let (begun, mut wait) = (Instant::now(), RETRY_MIN);
        let mut rejected = Vec::new();
        let mut waiting = vec![items];
        while let Some(items) = waiting.pop() {
            let body = Body::Lines(lines_of(&items));
            let (again, busy) = match self.client.ask(Method::POST, path, body, self.write_limit()).await {
                Ok(answer) if answer.status == StatusCode::PAYLOAD_TOO_LARGE => {
                    match halves(items) {
                        Ok(halves) => waiting.extend(halves),
                        Err(item) => {
                            rejected.push(Rejected { id: item.id, why: "it is too long".to_owned() })
                        }
                    }
                    continue;
                }
                Ok(answer) => {
                    let outcome = outcome(&answer, items)?;
                    rejected.extend(outcome.rejected);
                    match outcome.busy {
                        None => continue,
                        Some(busy) => (outcome.again, busy),
                    }
                }
                Err(error) => (items, error),
            };
            if begun.elapsed() + wait > RETRIED_MAX {
                return Err(busy.into());
            }
            self.metrics.retried.inc_by(again.len() as u64);
            tracing::debug!(items = again.len(), error = %busy, "documents are written again");
            sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
            waiting.push(again);
        }
        Ok(rejected)
    }
}

/// How many items the next request gets.
fn part_length(items: &[Item]) -> usize {
    let mut bytes = 0;
    for (count, item) in items.iter().take(ITEMS_MAX).enumerate() {
        bytes += item.bytes();
        if count > 0 && bytes > BYTES_MAX {
            return count;
        }
    }
    items.len().min(ITEMS_MAX)
}

/// Splits a request into two; the item if there is only one.
fn halves(mut items: Vec<Item>) -> Result<[Vec<Item>; 2], Item> {
    if items.len() == 1
        && let Some(item) = items.pop()
    {
        return Err(item);
    }
    let second = items.split_off(items.len() / 2);
    Ok([second, items]) // the last is sent first
}

fn outcome(answer: &Answer, items: Vec<Item>) -> Result<Outcome, Failure> {
    const WHAT: &str = "write documents";
    if answer.is_missing() {
        return Err(Failure::Missing);
    }
    if !answer.status.is_success() {
        let error = answer.error(WHAT);
        let is_final = answer.is_refused() || !error.is_transient();
        return if is_final {
            Err(error.into())
        } else {
            Ok(Outcome { rejected: Vec::new(), again: items, busy: Some(error) })
        };
    }
    let found = answer.json()?;
    let results = found.get("items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if results.len() != items.len() {
        // Either all or none may be written: writing again does no harm.
        let error = Error::unavailable("OpenSearch did not say what became of documents");
        return Ok(Outcome { rejected: Vec::new(), again: items, busy: Some(error) });
    }
    let mut outcome = Outcome::default();
    for (item, result) in items.into_iter().zip(results) {
        outcome.add(item, result)?;
    }
    Ok(outcome)
}

impl Outcome {
    fn add(&mut self, item: Item, result: &Value) -> Result<(), Failure> {
        let result = result.as_object().and_then(|result| result.values().next()).unwrap_or(&Value::Null);
        let status = result.get("status").and_then(Value::as_u64).unwrap_or_default();
        let text = |path: &str| result.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (kind, reason) = (text("/error/type"), text("/error/reason"));
        let why = shortened(&format!("{status} {kind}: {reason}"));
        match status {
            200..=299 => {}
            404 if kind.is_empty() => {} // the document to be removed was not there
            404 => return Err(Failure::Missing),
            409 => return Err(Failure::Fenced),
            _ if is_block(&kind) => {
                let what = format!(
                    "OpenSearch takes no writes: {why}: its disk may be full, or the index is blocked"
                );
                self.wait_for(item, Error::full(what));
            }
            429 | 500.. | 0 => {
                self.wait_for(item, Error::unavailable(format!("OpenSearch is busy: {why}")));
            }
            401 | 403 => {
                let what = format!(
                    "OpenSearch refuses writes: {why}: look at the rights of the user of the search URL"
                );
                return Err(Error::unavailable(what).into());
            }
            _ => self.rejected.push(Rejected { id: item.id, why }),
        }
        Ok(())
    }

    fn wait_for(&mut self, item: Item, error: Error) {
        self.again.push(item);
        self.busy.get_or_insert(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(lengths: &[usize]) -> Vec<Item> {
        let item =
            |length: &usize| Item { id: length.to_string(), action: "x".repeat(*length), source: None };
        lengths.iter().map(item).collect()
    }

    #[test]
    fn requests_have_bounded_items_and_bytes_unless_one_is_longer() {
        assert_eq!(part_length(&items(&[1; 1_200])), 500);
        assert_eq!(part_length(&items(&[1; 200])), 200);
        let mut long = items(&[10, BYTES_MAX, 10, 2 * BYTES_MAX, BYTES_MAX / 2, BYTES_MAX / 2, 1]);
        let mut parts = Vec::new();
        while !long.is_empty() {
            let part = part_length(&long);
            long.drain(..part);
            parts.push(part);
        }
        assert_eq!(parts, [1, 1, 1, 1, 2, 1]);
    }

    #[test]
    fn a_request_that_is_too_long_becomes_two_in_order() {
        let [second, first] = halves(items(&[1, 2, 3])).unwrap();
        let lengths = |items: Vec<Item>| items.iter().map(Item::bytes).collect::<Vec<_>>();
        assert_eq!((lengths(first), lengths(second)), (vec![1], vec![2, 3]));
        assert_eq!(halves(items(&[7])).unwrap_err().id, "7");
    }

    #[test]
    fn an_item_takes_as_many_bytes_as_it_counts() {
        let index = Item::index("7-1".to_owned(), "7", 3, Bytes::from_static(b"{\"received\":0}"));
        let delete = Item::delete("7-2".to_owned(), "7", 3);
        let expected = concat!(
            r#"{"index":{"_id":"7-1","routing":"7","version":3,"version_type":"external_gte"}}"#,
            "\n{\"received\":0}\n",
            r#"{"delete":{"_id":"7-2","routing":"7","version":3,"version_type":"external_gte"}}"#,
            "\n",
        );
        assert_eq!(index.bytes() + delete.bytes(), expected.len());
        assert_eq!(lines_of(&[index, delete]), expected);
    }
}
