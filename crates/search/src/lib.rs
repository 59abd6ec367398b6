//! Search: which emails of an account contain some words.
//!
//! [`Search`] is what doors query, [`Index`] is what the follower writes with, and [`Upkeep`] is for operators. [`open`] chooses
//! an engine by URL. Each sentence of the contracts is a named test that runs on every engine: see `tests/conformance`.
//!
//! An index lags behind the records by some seconds, and it can be lost and rebuilt. So each answer says up to which revision
//! of the account it is complete. To find the newest emails as well, a door matches those directly, with [`matches()`]. Engines and
//! [`matches()`] share one tokeniser, [`Words`], so they agree on every email.

mod document;
mod filter;
mod matching;
mod memory;
mod metrics;
mod observe;
mod open;
#[cfg(feature = "opensearch")]
mod opensearch;
mod opensearch_url;
mod tantivy;
mod text;
mod upkeep;
mod validate;
mod words;

use std::cmp::{Ordering, Reverse};

use async_trait::async_trait;
use bytes::Bytes;
pub use restante_core::{AccountId, Error, RecordId, Revision};

pub use document::{DOCUMENT_BYTES_MAX, Document, HEADER_VALUE_CHARS_MAX};
pub use filter::{
    FILTER_CONDITIONS_MAX, FILTER_DEPTH_MAX, FILTER_WORDS_MAX, Field, Filter, FilterError, HeaderName,
};
pub use matching::{marks, matches};
pub use metrics::Metrics;
pub use open::{Config, EngineUrl, Opened, OpensearchConfig, TantivyConfig, open};
pub use opensearch_url::OpensearchUrl;
pub use text::{Phrase, SearchText, TEXT_WORDS_MAX};
pub use upkeep::{Report, Stats, Upkeep};
pub use words::{WORD_CHARS_MAX, Word, Words};

/// The most hits of a page.
pub const QUERY_HITS_MAX: usize = 1 << 18;

/// The most documents, and the most removed ones, of a [`Batch`].
pub const BATCH_DOCUMENTS_MAX: usize = 4_096;

/// The most bytes of the documents of a [`Batch`] together.
pub const BATCH_BYTES_MAX: usize = 16 << 20;

/// The longest checkpoint.
pub const CHECKPOINT_BYTES_MAX: usize = 4_096;

/// Answers which emails match.
#[async_trait]
pub trait Search: Send + Sync + 'static {
    /// A page of the emails of an account that match a filter.
    ///
    /// - The hits are those documents of this account alone for which [`matches()`] is true, of one commit of the index, in the order
    ///   of [`Query::order`].
    /// - They follow [`Query::after`], [`Query::limit`] at most; [`Page::has_more`] is true when, and only when, there are more.
    /// - *Complete up to a revision*: every email that was created at or before [`Page::revision`], matches, and is not removed is
    ///   found. What was created later may be found. What was destroyed after it may still be found: leave out what the records don't have.
    /// - *Pages*: walking by the last hit gives each matching document that is there all the time once. All pages together
    ///   are complete up to the smallest of their revisions: the index may be cleared between two pages.
    /// - An account that was never indexed has no hits and revision 0, as all accounts have after [`Upkeep::clear`]. While an index
    ///   is being rebuilt, queries are answered with what it has.
    ///
    /// # Errors
    /// `Invalid`: a limit of 0 or above [`QUERY_HITS_MAX`], a filter that exceeds its bounds ([`Filter::check`]). `Unavailable`: the
    /// engine can't answer now, or found its index damaged; a damaged index is rebuilt from zero.
    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error>;
}

/// A search for emails.
#[derive(Clone, Debug)]
pub struct Query {
    /// What the emails must contain.
    pub filter: Filter,
    /// The order of the hits.
    pub order: Order,
    /// Only emails that follow this one in the order; it need not exist.
    pub after: Option<Hit>,
    /// The most hits, from 1 to [`QUERY_HITS_MAX`].
    pub limit: usize,
}

impl Query {
    /// The first page by id, with as many hits as a page may have.
    pub fn new(filter: Filter) -> Self {
        Self { filter, order: Order::ById, after: None, limit: QUERY_HITS_MAX }
    }
}

/// The order of hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ascending by id: to get all hits.
    ById,
    /// Descending by time, then by id: to get the newest hits. They are found without reading all others if the newest documents
    /// were written last.
    NewestFirst,
}

impl Order {
    /// The order of two hits.
    pub fn compare(self, left: &Hit, right: &Hit) -> Ordering {
        let by_age = |hit: &Hit| Reverse((hit.received, hit.id));
        match self {
            Self::ById => left.id.cmp(&right.id),
            Self::NewestFirst => by_age(left).cmp(&by_age(right)),
        }
    }
}

/// An email that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hit {
    /// The email.
    pub id: RecordId,
    /// [`Document::received`], so that hits can be sorted without reading records.
    pub received: i64,
}

/// A page of matching emails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The emails, in the requested order.
    pub hits: Vec<Hit>,
    /// Whether more follow after the last one.
    pub has_more: bool,
    /// The answer is complete up to this revision of the account.
    pub revision: Revision,
}

/// What the follower writes with. There is one writer: the series that began last.
///
/// What is written becomes visible to queries and durable with a commit of the engine: after [`Index::commit`], and by itself when
/// enough was written or some time has passed ([`TantivyConfig`]). A commit has everything that was written before it, in order, and
/// nothing else: what [`Index::begin`] returns after a crash is consistent. The engine `opensearch` can't fully guarantee that: a
/// commit that a crash interrupts may leave documents that no revision includes, and the next series writes them again.
#[async_trait]
pub trait Index: Send + Sync + 'static {
    /// Begins a series of writes, and ends the one before.
    ///
    /// - What was written and not committed is dropped.
    /// - [`Begun::checkpoint`] is the last committed one; `None` when there is none, or when the index is empty because it was lost,
    ///   damaged, created by another version, or cleared.
    /// - An engine that failed to write tries again.
    ///
    /// # Errors
    /// `Unavailable`, `Full`: the engine can't write now.
    async fn begin(&self) -> Result<Begun, Error>;

    /// Returns when a series has ended: another one began, a write failed, or the index was cleared or found damaged.
    async fn ended(&self, series: Series);

    /// Adds and removes documents of an account.
    ///
    /// - A document replaces the one with its id: writing a batch twice has the effect of writing it once.
    /// - Documents are removed before others are added. Removing a document that is not there is not an error.
    /// - With [`Batch::revision`] the account is complete up to this revision.
    ///
    /// # Errors
    /// `Invalid`: more than [`BATCH_DOCUMENTS_MAX`] documents, more than [`BATCH_BYTES_MAX`] bytes, a document above
    /// [`DOCUMENT_BYTES_MAX`]; nothing is written. `Conflict`: the series has ended. `Unavailable`, `Full`: the write failed, and the
    /// series has ended.
    async fn write(&self, series: Series, account: AccountId, batch: Batch) -> Result<(), Error>;

    /// Removes all documents of an account, and sets its revision to 0.
    ///
    /// # Errors
    /// As [`Index::write`].
    async fn erase(&self, series: Series, account: AccountId) -> Result<(), Error>;

    /// Saves a checkpoint. It is committed together with everything that was written before it, or not at all. The engine does not
    /// interpret it.
    ///
    /// # Errors
    /// As [`Index::write`]; `Invalid` for more than [`CHECKPOINT_BYTES_MAX`] bytes.
    async fn save(&self, series: Series, checkpoint: Bytes) -> Result<(), Error>;

    /// The revisions up to which accounts are written, in the order of `accounts`, including what is not committed yet.
    ///
    /// # Errors
    /// As [`Index::write`].
    async fn revisions(&self, series: Series, accounts: &[AccountId]) -> Result<Vec<Revision>, Error>;

    /// Commits: what was written before is durable and visible when this returns.
    ///
    /// # Errors
    /// As [`Index::write`].
    async fn commit(&self, series: Series) -> Result<(), Error>;
}

/// A series of writes: the number that [`Index::begin`] assigned to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series(pub(crate) u64);

/// A series that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The series, for the calls that write.
    pub series: Series,
    /// The last checkpoint that was committed.
    pub checkpoint: Option<Bytes>,
}

/// Changes of the documents of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Emails that were destroyed.
    pub removed: Vec<RecordId>,
    /// Emails that are new.
    pub documents: Vec<Document>,
    /// The revision up to which the documents of the account are written with this batch; `None` when more batches of the same
    /// changes follow.
    pub revision: Option<Revision>,
}
