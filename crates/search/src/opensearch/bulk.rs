//! Bulk requests: in parts, each tried again while OpenSearch is busy, with the outcome of each item.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    Engine, Failure,
    client::{Answer, Body, is_block, shortened},
    place::IndexName,
};
use crate::Error;

/// A request has so many items and bytes at most, unless one item is longer. Larger ones are refused by nodes with little memory.
const ITEMS_MAX: usize = 500;
const BYTES_MAX: usize = 5 << 20;

/// The first wait of a retry; it doubles.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(3);
/// After so long the write has failed. Then the series ends, and the next one begins after a longer wait.
const RETRIED_MAX: Duration = Duration::from_secs(10);

/// A document that is written or removed.
#[derive(Clone, Debug)]
pub(super) struct Item {
    id: String,
    lines: Bytes,
}

/// A document that OpenSearch does not take.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rejected {
    pub(super) id: String,
    pub(super) why: String,
}

impl Item {
    /// Writes a document, unless a later version of it was written.
    pub(super) fn index(id: String, routing: &str, version: i64, source: &[u8]) -> Self {
        let mut lines = action("index", &id, routing, version);
        lines.extend_from_slice(source);
        lines.push(b'\n');
        Self { id, lines: lines.into() }
    }

    /// Removes a document, unless a later version of it was written.
    pub(super) fn delete(id: String, routing: &str, version: i64) -> Self {
        let lines = action("delete", &id, routing, version).into();
        Self { id, lines }
    }
}

fn action(name: &str, id: &str, routing: &str, version: i64) -> Vec<u8> {
    let action =
        json!({name: {"_id": id, "routing": routing, "version": version, "version_type": "external_gte"}});
    format!("{action}\n").into_bytes()
}

/// What became of the items of one request.
#[derive(Debug, Default)]
struct Outcome {
    rejected: Vec<Rejected>,
    /// Those that may be taken later, with a reason.
    again: Vec<Item>,
    busy: Option<Error>,
}

impl Engine {
    /// Writes all items, and returns those that can't be written ever.
    pub(super) async fn bulk(&self, index: &IndexName, items: &[Item]) -> Result<Vec<Rejected>, Failure> {
        let path = format!("/{}/_bulk?require_alias=true", index.for_writes());
        let mut rejected = Vec::new();
        let mut begin = 0;
        while begin < items.len() {
            let part = part_from(items, begin);
            begin = part.end;
            let items = items.get(part).unwrap_or_default().to_vec();
            rejected.extend(self.write_part(&path, items).await?);
        }
        Ok(rejected)
    }

    async fn write_part(&self, path: &str, items: Vec<Item>) -> Result<Vec<Rejected>, Failure> {
        let (begun, mut wait) = (Instant::now(), RETRY_MIN);
        let mut rejected = Vec::new();
        let mut waiting = vec![items];
        while let Some(items) = waiting.pop() {
            let body =
                Body::Lines(items.iter().map(|item| item.lines.as_ref()).collect::<Vec<_>>().concat().into());
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

/// The items of the next request.
fn part_from(items: &[Item], begin: usize) -> Range<usize> {
    let mut bytes = 0;
    let mut end = begin;
    for item in items.iter().skip(begin).take(ITEMS_MAX) {
        bytes += item.lines.len();
        if end > begin && bytes > BYTES_MAX {
            break;
        }
        end += 1;
    }
    begin..end
}

/// Two requests of one; the item if there is only one.
fn halves(mut items: Vec<Item>) -> Result<[Vec<Item>; 2], Item> {
    if items.len() == 1
        && let Some(item) = items.pop()
    {
        return Err(item);
    }
    let second = items.split_off(items.len() / 2);
    Ok([second, items]) // the last is taken first
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
        // All may be written or none: writing again does no harm.
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
            404 if kind.is_empty() => {} // removed what was not there
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
        let item = |length: &usize| Item { id: length.to_string(), lines: vec![b'x'; *length].into() };
        lengths.iter().map(item).collect()
    }

    #[test]
    fn requests_have_bounded_items_and_bytes_unless_one_is_longer() {
        assert_eq!(part_from(&items(&[1; 1_200]), 0), 0..500);
        assert_eq!(part_from(&items(&[1; 1_200]), 1_000), 1_000..1_200);
        let long = items(&[10, BYTES_MAX, 10, 2 * BYTES_MAX, BYTES_MAX / 2, BYTES_MAX / 2, 1]);
        let mut parts = Vec::new();
        let mut begin = 0;
        while begin < long.len() {
            let part = part_from(&long, begin);
            begin = part.end;
            parts.push(part);
        }
        assert_eq!(parts, [0..1, 1..2, 2..3, 3..4, 4..6, 6..7]);
    }

    #[test]
    fn a_request_that_is_too_long_becomes_two_in_order() {
        let [second, first] = halves(items(&[1, 2, 3])).unwrap();
        let lengths = |items: Vec<Item>| items.iter().map(|item| item.lines.len()).collect::<Vec<_>>();
        assert_eq!((lengths(first), lengths(second)), (vec![1], vec![2, 3]));
        assert_eq!(halves(items(&[7])).unwrap_err().id, "7");
    }
}
