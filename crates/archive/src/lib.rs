//! The archive: stores messages in one total order and returns them by time range, topic, bloom filter or hash.
//!
//! [`Archive`] is the contract that every engine implements, [`Upkeep`] serves operators. [`open`] chooses an engine by URL. Each
//! sentence of the contract has a named test that runs on every engine: see `tests/conformance`.
//!
//! ```
//! # async fn example() -> Result<(), restante_archive::Error> {
//! use restante_archive::{Config, Message, Query, open};
//! use restante_core::{MessageHash, Timestamp};
//!
//! let archive = open(Config::new("memory:".parse()?)).await?.archive;
//! let message = Message {
//!     message_hash: MessageHash([7; 32]),
//!     channel: "/waku/2/rs/1/0".into(),
//!     topic: "/toy/1/chat/proto".into(),
//!     timestamp: Timestamp::from_seconds(1_700_000_000),
//!     body: "wire bytes".into(),
//! };
//! archive.append(vec![message]).await?;
//! let page = archive.query(&Query::default()).await?;
//! assert_eq!(page.rows().next().map(|row| row.body), Some(&b"wire bytes"[..]));
//! # Ok(())
//! # }
//! ```

pub mod backup;
#[cfg(feature = "cassandra")]
mod cassandra;
mod cassandra_url;
mod compare;
mod copy;
mod disk_full;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "cassandra"))]
mod group;
mod health;
mod log;
mod mapped;
mod memory;
mod message;
mod metrics;
mod nearest;
mod observe;
mod open;
mod page;
pub mod plan;
#[cfg(feature = "postgres")]
mod postgres;
mod query;
pub mod record;
mod report;
mod retention;
mod spool;
#[cfg(feature = "sqlite")]
mod sqlite;
mod tandem;
mod topics;
mod upkeep;
mod url;
mod waiting;
mod walk;

use async_trait::async_trait;

pub use cassandra_url::CassandraUrl;
pub use compare::{Comparison, Difference, DifferenceKind, Differences, Fingerprint, Scope};
pub use copy::{Copied, Copier, TimeRange, copy_keys};
pub use health::{Following, Health};
pub use message::{Appended, BODY_BYTES_MAX, CHANNEL_BYTES_MAX, Message, TOPIC_BYTES_MAX, TopicName};
pub use metrics::Metrics;
pub use open::{
    CassandraConfig, Config, LogConfig, Opened, PostgresConfig, SpoolConfig, SqliteConfig, TandemConfig,
    open, open_over,
};
pub use page::{Page, Part, Row, RowAt};
pub use query::{Direction, HASHES_MAX, PAGE_BYTES_MAX, PAGE_ROWS_MAX, Query, Topics};
pub use report::{Finding, PartStats, Pruned, Report, Stats};
pub use restante_core::Error;
pub use retention::{ParseRetentionError, Retention};
pub use upkeep::Upkeep;
pub use url::{EngineUrl, PostgresUrl};
pub use walk::Walk;

#[cfg(feature = "cassandra")]
#[doc(hidden)]
pub use cassandra::drop_keyspace as drop_cassandra_keyspace;
#[cfg(feature = "postgres")]
pub use postgres::ConnectOptions as PostgresOptions;
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub use postgres::statements as postgres_statements;

/// The most messages that one [`Archive::append`] takes.
pub const APPEND_MESSAGES_MAX: usize = 10_000;

/// Stores messages and answers queries about them.
///
/// **Order.** All messages are in one total order, (timestamp, message hash) ascending, the same on every engine. That
/// pair is a message's identity: a hash is expected to cover its timestamp, as the Waku message hash does.
#[async_trait]
pub trait Archive: Send + Sync + 'static {
    /// Stores messages and returns when they are durable.
    ///
    /// - *Durable*: a message that was acknowledged survives a crash of the process and a power cut.
    /// - *Idempotent*: a message that is already stored, or occurs twice in the batch, is answered with [`Appended::Duplicate`]
    ///   and changes nothing, not even if its body differs. The answers are in the order of the messages. In Cassandra, two
    ///   servers that receive the same new message within milliseconds may both answer [`Appended::Stored`]; it is stored once,
    ///   and all readers see the same body. In PostgreSQL, when the connection is lost before the answer to a commit, messages
    ///   that were already stored may be answered with [`Appended::Stored`], too.
    /// - *Visible*: a query that starts after the answer sees the messages, except those that were answered with
    ///   [`Appended::Spooled`].
    ///
    /// # Errors
    /// - `Invalid`: more than [`APPEND_MESSAGES_MAX`] messages, a body over [`BODY_BYTES_MAX`], or a channel or topic over
    ///   [`CHANNEL_BYTES_MAX`] or [`TOPIC_BYTES_MAX`]; nothing was stored.
    /// - `Full`: no space; nothing of the batch is guaranteed to be stored, later appends may succeed.
    /// - `Unavailable`: the engine can't write now. After a failed sync the `log` engine returns this until it is opened again,
    ///   because it is unknown what the disk has kept.
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error>;

    /// One page of the messages that match.
    ///
    /// - A message matches when its channel is the query's (if any), its topic is among the query's, its hash is among the
    ///   query's hashes (if any) and `start <= timestamp < end`.
    /// - *Forward* pages begin after the cursor or at the oldest match; *backward* pages end before the cursor or at the
    ///   newest match. The rows of a page are in ascending order in both directions.
    /// - A page has at most `limit` rows, and fewer when the matches end or the page reaches [`PAGE_BYTES_MAX`]; at least
    ///   one row if there is a match. [`Page::next`] is set when, and only when, more matches remain in the query's
    ///   direction.
    /// - *Exactly once*: walking from page to page with `next` returns every message that was stored when the walk began, and was
    ///   not removed since, exactly once, even while others append.
    /// - *Cost*: the cost of a page depends on its rows, not on how many messages the archive holds.
    ///
    /// # Errors
    /// - `Invalid`: a limit of 0 or above [`PAGE_ROWS_MAX`], or more than [`HASHES_MAX`] hashes.
    /// - `NotFound`: the cursor's message isn't archived.
    /// - `Unavailable`: the engine can't answer now. `Corrupt`: the engine knows that its answer would be incomplete.
    async fn query(&self, query: &Query) -> Result<Page, Error>;
}
