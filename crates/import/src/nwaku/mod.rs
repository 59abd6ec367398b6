//! The archive of nwaku and go-waku: one table of messages, whose columns changed over the years.
//!
//! | columns | server |
//! | --- | --- |
//! | `timestamp`, `messageHash`, `meta` | current nwaku |
//! | `timestamp`, `storedAt`, `messageHash`, with or without `meta` | earlier nwaku, its legacy store, current go-waku |
//! | `timestamp`, `storedAt`, no hash | nwaku before 2023 |
//! | `senderTimestamp`, `receiverTimestamp`, no hash | older go-waku and nwaku |
//!
//! Rows are read in the order in which they were stored, which has an index in each of them and is nearly that
//! of the messages' own timestamps.

#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use restante_archive::{BODY_BYTES_MAX, CHANNEL_BYTES_MAX, TOPIC_BYTES_MAX};
use restante_core::MessageHash;
use restante_waku_wire::META_BYTES_MAX;

use crate::{
    Error,
    convert::{Converted, Fields, Refusal},
};

/// The names of the table: nwaku's in PostgreSQL, and that of all others.
pub(crate) const TABLES: &[&str] = &["messages", "message"];

/// The columns of a table. SQL ignores the case of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    timestamp: &'static str,
    /// The column that orders the rows.
    stored_at: &'static str,
    has_hash: bool,
    has_meta: bool,
}

impl Shape {
    /// Detects the shape from the names of the columns.
    pub(crate) fn of_columns<'a>(columns: impl Iterator<Item = &'a str> + Clone) -> Result<Self, Error> {
        let has = |name: &str| columns.clone().any(|column| column.eq_ignore_ascii_case(name));
        let first = |names: &[&'static str]| names.iter().copied().find(|name| has(name));
        for name in ["pubsubTopic", "contentTopic", "payload", "version"] {
            if !has(name) {
                return Err(unknown(name));
            }
        }
        let timestamp = first(&["timestamp", "senderTimestamp"]).ok_or_else(|| unknown("timestamp"))?;
        let stored_at = first(&["storedAt", "receiverTimestamp"]).unwrap_or(timestamp);
        Ok(Self { timestamp, stored_at, has_hash: has("messageHash"), has_meta: has("meta") })
    }

    /// The query for all rows that were stored at `after` or later. Its columns are those of [`columns`]; of values longer than
    /// any archive accepts it returns only the length.
    pub(crate) fn select(&self, table: &str, after: Option<i64>, dialect: Dialect) -> String {
        let Dialect { length, factor, none } = dialect;
        let bounded = |name: &str, max: usize| {
            format!("CASE WHEN {length}({name}) <= {} THEN {name} END, {length}({name})", max * factor)
        };
        let optional = |is_there, text: String| if is_there { text } else { none.to_owned() };
        let columns = [
            bounded("pubsubTopic", CHANNEL_BYTES_MAX),
            bounded("contentTopic", TOPIC_BYTES_MAX),
            bounded("payload", BODY_BYTES_MAX),
            optional(self.has_meta, bounded("meta", META_BYTES_MAX)),
            optional(self.has_hash, bounded("messageHash", HASH_BYTES_MAX)),
            "version".to_owned(),
            self.timestamp.to_owned(),
            self.stored_at.to_owned(),
        ];
        let later = after.map(|after| format!("WHERE {} >= {after}", self.stored_at)).unwrap_or_default();
        format!("SELECT {} FROM {table} {later} ORDER BY {}", columns.join(", "), self.stored_at)
    }
}

/// The SQL of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dialect {
    /// The function that returns the length in bytes.
    pub(crate) length: &'static str,
    /// Stored bytes per byte of the value.
    pub(crate) factor: usize,
    /// A missing column of bytes, and its length.
    pub(crate) none: &'static str,
}

/// Longer than a hash, so that other keys are recognised.
const HASH_BYTES_MAX: usize = 64;

fn unknown(column: &str) -> Error {
    Error::invalid(format!(
        "the table of messages is none that nwaku or go-waku made: it has no column {column}"
    ))
}

/// The columns of [`Shape::select`].
mod columns {
    pub(super) const PUBSUB_TOPIC: usize = 0;
    pub(super) const CONTENT_TOPIC: usize = 2;
    pub(super) const PAYLOAD: usize = 4;
    pub(super) const META: usize = 6;
    pub(super) const HASH: usize = 8;
    pub(super) const VERSION: usize = 10;
    pub(super) const TIMESTAMP: usize = 11;
    pub(super) const STORED_AT: usize = 12;
}

/// A row of either database.
pub(crate) trait Columns {
    /// A column of bytes followed by its length; `None` for NULL.
    fn bytes(&self, column: usize, name: &str) -> Result<Option<Vec<u8>>, Refusal>;
    /// A column with a number.
    fn number(&self, column: usize, name: &str) -> Result<i64, Refusal>;
}

/// The time at which a row was stored.
pub(crate) fn stored_at(row: &impl Columns) -> Option<i64> {
    row.number(columns::STORED_AT, "storedAt").ok()
}

/// The hash under which a row is stored. Rows from before there were hashes have none, a counter or a longer key, which
/// are ignored.
pub(crate) fn stated_hash(row: &impl Columns) -> Option<MessageHash> {
    let hash = row.bytes(columns::HASH, "messageHash").ok()??;
    hash.try_into().ok().map(MessageHash)
}

/// The message of a row.
pub(crate) fn message_of(row: &impl Columns, rehash: bool) -> Result<Converted, Refusal> {
    let version = row.number(columns::VERSION, "version")?;
    let fields = Fields {
        pubsub_topic: text(row, columns::PUBSUB_TOPIC, "pubsubTopic")?,
        content_topic: text(row, columns::CONTENT_TOPIC, "contentTopic")?,
        payload: row.bytes(columns::PAYLOAD, "payload")?.unwrap_or_default(),
        version: u32::try_from(version).map_err(|_| Refusal(format!("version {version} is out of range")))?,
        timestamp: row.number(columns::TIMESTAMP, "timestamp")?,
        meta: row.bytes(columns::META, "meta")?.unwrap_or_default(),
    };
    fields.into_message(stated_hash(row), rehash)
}

fn text(row: &impl Columns, column: usize, name: &str) -> Result<String, Refusal> {
    let bytes = row.bytes(column, name)?.ok_or_else(|| Refusal(format!("{name} is missing")))?;
    String::from_utf8(bytes).map_err(|_| Refusal(format!("{name} is not UTF-8")))
}

/// The name of a row in messages: its hash, or when it was stored.
pub(crate) fn name_of(row: &impl Columns) -> String {
    match (stated_hash(row), stored_at(row)) {
        (Some(hash), _) => format!("message {hash}"),
        (None, Some(nanos)) => format!("message stored at {nanos}"),
        (None, None) => "message".to_owned(),
    }
}

/// Parses where to continue. The rows of this moment are read again and are duplicates.
pub(crate) fn parse_after(after: Option<&String>) -> Result<Option<i64>, Error> {
    let parsed = after.map(|after| after.parse::<i64>()).transpose();
    parsed.map_err(|error| Error::invalid("the position to continue at is not a time").with_source(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_detected_by_their_columns() {
        let base = ["PUBSUBTOPIC", "contenttopic", "payload", "version", "id"];
        let shape = |more: &[&'static str]| Shape::of_columns(base.iter().chain(more).copied());
        let new = shape(&["timestamp", "messageHash", "meta"]).unwrap();
        assert_eq!(
            new,
            Shape { timestamp: "timestamp", stored_at: "timestamp", has_hash: true, has_meta: true }
        );
        let old = shape(&["senderTimestamp", "receiverTimestamp"]).unwrap();
        let expected = Shape {
            timestamp: "senderTimestamp",
            stored_at: "receiverTimestamp",
            has_hash: false,
            has_meta: false,
        };
        assert_eq!(old, expected);
        assert_eq!(shape(&["timestamp", "storedat"]).unwrap().stored_at, "storedAt");
        assert!(shape(&[]).unwrap_err().to_string().contains("no column timestamp"));
        assert!(Shape::of_columns(["timestamp"].into_iter()).is_err());
    }
}
