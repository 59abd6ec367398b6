//! Changes an account: one batch on its partition, on the condition that its head is as it was read.
//!
//! When the answer is lost, the same batch is retried with the same condition. If it is applied now, the earlier attempt can't be
//! applied any more, as its condition no longer holds. If it is refused, the marks in the head show whether the earlier attempt
//! was applied.

use std::collections::BTreeMap;

use scylla::value::CqlValue;
use tokio::time::Instant;

use super::{
    Shared,
    connect::{Answer, BACK_OFF_MIN, Bound, bigint, blob, jittered},
    head::{Head, Mark},
    schema::{HEAD, corrupt},
};
use crate::{AccountId, Error};

/// The limits of one batch: Cassandra accepts 16 MiB, half a segment of its commit log.
pub(super) const ROWS_MAX: usize = 20_000;
pub(super) const BYTES_MAX: usize = 8 << 20;
/// Roughly the size of a row without its key and its value.
const ROW_BYTES: usize = 48;

const BEGIN: &str =
    "INSERT INTO account (store, account, key, value, version) VALUES (?, ?, 0x00, ?, ?) IF NOT EXISTS";
const MOVE: &str =
    "UPDATE account SET value = ?, version = ? WHERE store = ? AND account = ? AND key = 0x00 IF value = ?";
const PUT: &str = "INSERT INTO account (store, account, key, value) VALUES (?, ?, ?, ?)";
const DELETE: &str = "DELETE FROM account WHERE store = ? AND account = ? AND key = ?";
const DELETE_RANGE: &str = "DELETE FROM account WHERE store = ? AND account = ? AND key >= ? AND key < ?";
const WHAT: &str = "commit records";

/// What a change writes.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// By key, each once, since of two statements on one row the deletion wins; `None` deletes the row.
    pub(super) rows: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Ranges of keys, without their ends, that are deleted except for rows that are written.
    pub(super) ranges: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The outcome of a change.
#[derive(Debug)]
pub(super) enum Outcome {
    Made,
    /// The account was changed meanwhile.
    Refused,
}

/// Whether these rows are too large for one batch.
pub(super) fn is_too_large(rows: &Rows) -> bool {
    let bytes: usize =
        rows.rows.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len) + ROW_BYTES).sum();
    rows.rows.len() > ROWS_MAX || bytes > BYTES_MAX
}

/// The error for a change that is too large by itself.
pub(super) fn too_large(rows: usize) -> Error {
    Error::invalid(format!(
        "a commit of {rows} rows is too large for cassandra: at most {ROWS_MAX} rows and {BYTES_MAX} bytes of them are \
         possible, make several commits of it"
    ))
}

impl Shared {
    /// A mark that no other change has.
    pub(super) fn mark(&self) -> Mark {
        let [a, b, c, d] = self.server;
        let [e, f, g, h] = super::server_id();
        [a, b, c, d, e, f, g, h]
    }

    /// Whether a mark is one of this server.
    pub(super) fn is_own(&self, mark: &Mark) -> bool {
        mark.starts_with(&self.server)
    }

    /// Changes an account from one head to the next one, which has a new mark.
    ///
    /// # Errors
    /// `Unavailable`: nobody knows whether it was changed. Others: it was not.
    pub(super) async fn change(
        &self,
        account: AccountId,
        before: Option<&Head>,
        after: &Head,
        rows: &Rows,
        deadline: Instant,
    ) -> Result<Outcome, Error> {
        let statements = self.statements(account, before, after, rows);
        let mark = after.marks.first().ok_or_else(|| Error::internal("a change has no mark"))?;
        let mut is_in_doubt = false;
        let mut wait = BACK_OFF_MIN;
        loop {
            match self.database.compare(WHAT, &statements).await? {
                Answer::Applied => {
                    self.confirm(account, after);
                    return Ok(Outcome::Made);
                }
                Answer::Refused(columns) => {
                    self.metrics.cassandra_refused.inc();
                    let now = match columns.get("value") {
                        Some(CqlValue::Blob(value)) => {
                            Some(Head::decode(value).ok_or_else(|| corrupt(account, HEAD))?)
                        }
                        _ => None,
                    };
                    return match now.as_ref().map_or(Some(false), |now| now.has(after.version, mark)) {
                        Some(true) => {
                            self.confirm(account, after);
                            Ok(Outcome::Made)
                        }
                        None if is_in_doubt => Err(Error::unavailable(
                            "the answer to a commit was lost, and so much was committed since that it can't be found",
                        )),
                        Some(false) | None => Ok(Outcome::Refused),
                    };
                }
                Answer::Unknown(error) => {
                    self.metrics.cassandra_settled.inc();
                    is_in_doubt = true;
                    if Instant::now() + wait >= deadline {
                        return Err(error);
                    }
                    tokio::time::sleep(jittered(wait)).await;
                    wait = (wait * 2).min(std::time::Duration::from_secs(1));
                }
            }
        }
    }

    fn statements(&self, account: AccountId, before: Option<&Head>, after: &Head, rows: &Rows) -> Vec<Bound> {
        let place = self.account_values(account);
        let mut statements: Vec<Bound> = Vec::with_capacity(rows.rows.len() + rows.ranges.len() + 1);
        // The statement with the condition is the first: by it the driver finds the node.
        match before {
            None => {
                let mut values = place.clone();
                values.extend([blob(after.encode()), bigint(after.version)]);
                statements.push((BEGIN, values));
            }
            Some(before) => {
                let mut values = vec![blob(after.encode()), bigint(after.version)];
                values.extend(place.iter().cloned());
                values.push(blob(before.encode()));
                statements.push((MOVE, values));
            }
        }
        for (from, to) in &rows.ranges {
            let mut values = place.clone();
            values.extend([blob(from.clone()), blob(to.clone())]);
            statements.push((DELETE_RANGE, values));
        }
        for (key, value) in &rows.rows {
            let mut values = place.clone();
            values.push(blob(key.clone()));
            match value {
                Some(value) => {
                    values.push(blob(value.clone()));
                    statements.push((PUT, values));
                }
                None => statements.push((DELETE, values)),
            }
        }
        statements
    }
}
