//! Records: objects of an account, each change with a revision, found by declared indexes.
//!
//! [`Records`] is the contract that every engine implements, [`Feed`] serves followers, [`Upkeep`] serves operators. [`open`]
//! chooses an engine by URL. Each sentence of the contracts has a named test that runs on every engine: see `tests/conformance`.
//!
//! A record is what a mail server calls an email, a mailbox or a thread. It has a [`Body`], which is written once and rarely
//! changes, and [`Properties`], small values that change often and that indexes are built from. A [`Schema`], given on opening,
//! lists the kinds of records and their indexes.
//!
//! ```
//! # async fn example() -> Result<(), restante_records::Error> {
//! use restante_records::{
//!     AccountId, Body, Change, Commit, Config, Get, Index, IndexSchema, Kind, KindSchema, Properties, Property, Query,
//!     Schema, open,
//! };
//!
//! const EMAIL: Kind = Kind(1);
//! const MAILBOX: Property = Property(1);
//! const RECEIVED: Property = Property(2);
//! const BY_MAILBOX: Index = Index(1);
//!
//! let email = KindSchema::new(EMAIL, "email")
//!     .property(MAILBOX, "mailbox")
//!     .property(RECEIVED, "received")
//!     .index(IndexSchema::ordered(BY_MAILBOX, "mailbox", &[MAILBOX, RECEIVED]));
//! let records = open(Config::new("memory:".parse()?, Schema::new(vec![email])?)).await?.records;
//!
//! let account = AccountId(7);
//! let properties = Properties::default().with(MAILBOX, 3).with(RECEIVED, 1_700_000_000);
//! let create = Change::Create { kind: EMAIL, body: Body::new("Hello"), properties };
//! let committed = records.commit(account, Commit::of([create])).await?;
//!
//! let newest = Query::new(EMAIL, BY_MAILBOX).equals(3).descending().limit(20);
//! let page = records.query(account, &newest).await?;
//! assert_eq!(page.ids, committed.created);
//! let found = records.get(account, &Get::whole(EMAIL, page.ids)).await?;
//! assert_eq!(found[0].as_ref().map(|email| email.body.bytes.as_ref()), Some(&b"Hello"[..]));
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cassandra")]
mod cassandra;
mod cassandra_url;
mod changes;
mod commit;
mod entries;
mod feed;
mod get_each;
mod indexes;
mod lmdb;
#[cfg(any(feature = "postgres", feature = "cassandra"))]
mod map;
mod memory;
mod metrics;
mod observe;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
mod postgres_url;
mod query;
mod record;
mod rows;
mod schema;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transfer;
mod upkeep;
mod validate;
mod watch;

use async_trait::async_trait;

pub use cassandra_url::CassandraUrl;
pub use changes::{CHANGES_MAX, Changed, Changes, ChangesSince};
pub use commit::{Body, Change, Commit, Committed};
pub use feed::{Checkpoint, FOLLOWER_NAME_BYTES_MAX, Feed, FeedRequest, Position, TOUCHED_MAX, Touched};
pub use get_each::get_each;
pub use metrics::Metrics;
pub use open::{
    CassandraConfig, Config, EngineUrl, LmdbConfig, Opened, PostgresConfig, check_pages, open, open_moving,
};
pub use postgres_url::PostgresUrl;
pub use query::{Count, Cursor, Direction, Page, QUERIES_MAX, QUERY_ROWS_MAX, Query};
pub use record::{GET_RECORDS_MAX, Get, Properties, Property, Record, TEXT_BYTES_MAX, Value};
pub use restante_core::{AccountId, Error, Gate, Kind, RecordId, Revision, UnsyncedBlob, UnsyncedBlobs};
pub use schema::{Index, IndexOrder, IndexSchema, KindSchema, Schema};
pub use transfer::{
    AccountHead, Copied, KindHead, Moving, RevisionGap, Row, RowKey, TRANSFER_ACCOUNTS_MAX, TRANSFER_BYTES,
    TRANSFER_ROWS_MAX, Tombstone, Transfer, TransferState, compare, copy,
};
pub use upkeep::{
    Cleaned, DUMP_RECORDS_MAX, Damage, Dumped, Erased, Finding, KindStats, RecordKey, Referenced, Report,
    Stats, Upkeep,
};
pub use watch::{Announcement, Lagged, PeerCommit, PeerCommits, PeerSender, Peers, Watch};

/// The most changes that one [`Records::commit`] takes.
pub const COMMIT_CHANGES_MAX: usize = 4_096;

/// How far an account's ids and revisions, and the counters of its records, jump after the store was restored from a backup. So
/// numbers that were assigned after the backup are not assigned again, provided that there were fewer of them than this.
pub const RESTORE_JUMP: u64 = 1 << 20;

/// The longest body of a record. Longer content belongs in a blob.
pub const BODY_BYTES_MAX: usize = 256 << 10;

/// The most bytes of bodies and properties that one [`Records::commit`] takes.
pub const COMMIT_BYTES_MAX: usize = 2 << 20;

/// The most blobs that one body refers to.
pub const BODY_BLOBS_MAX: usize = 256;

/// The most entries that one record has in one index: the product of the numbers of values of its parts.
pub const INDEX_ENTRIES_MAX: usize = 256;

/// The most bytes of the values of one index entry: a number takes up to 9 bytes, a text 3 more than its length, plus one for
/// each zero byte in it. Together with the rest of the entry's key they fit into a key of LMDB.
pub const INDEX_VALUES_BYTES_MAX: usize = 480;

/// The records of accounts and their changes.
///
/// **Revisions.** Each commit takes the account's next revision; there is one sequence for all kinds of an account, and it
/// begins with 1. The *state* of a kind is the revision that last touched it. Revision order is commit order as readers see
/// it: no smaller revision appears after a larger one was seen.
///
/// **Ids.** The store assigns the id of a record: the next one of its account, over all kinds. It is never used again.
///
/// **Restores.** A store that was restored from a backup does not reuse revisions and ids that it assigned after the backup:
/// those of each account, and the counters that its schema names ([`KindSchema::counter`]), continue [`RESTORE_JUMP`] higher.
/// Changes since a skipped revision can't be calculated.
#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// Applies all changes of `commit`, or none, as one revision; returns when they are durable.
    ///
    /// - *Durable*: a commit that was acknowledged survives a crash of the process and a power cut.
    /// - *Atomic*: readers see all of a commit or nothing of it, also after a crash.
    /// - *Visible*: a call that starts after the answer sees the commit.
    /// - *Preconditions*: for each (kind, revision) of `expect`, the kind's state must be that revision.
    /// - [`Committed::created`] has the ids of the creates in their order. A property of a change may be
    ///   [`Value::Created`]`(n)`, the id that the n-th create of the commit gets, or [`Value::Revision`], the revision that
    ///   the commit gets.
    /// - An update with `None` leaves the body, or the properties, as they are.
    /// - A commit without changes checks the preconditions, changes nothing and returns the account's revision.
    ///
    /// # Errors
    /// - `Conflict`: a kind is not in the expected state, or the account is being erased, see [`Upkeep::erase`].
    /// - `NotFound`: a record to be updated or destroyed does not exist.
    /// - `Invalid`: a kind or property that is not in the schema, a record that occurs in two changes, an exceeded limit
    ///   ([`COMMIT_CHANGES_MAX`], [`COMMIT_BYTES_MAX`], [`BODY_BYTES_MAX`], [`BODY_BLOBS_MAX`], [`TEXT_BYTES_MAX`],
    ///   [`INDEX_ENTRIES_MAX`], [`INDEX_VALUES_BYTES_MAX`]), a `Created` that refers to no create.
    /// - `Full`: no space now. `Unavailable`: the engine can't write now; after a failed sync, until it is opened again.
    ///
    /// After `Full` and `Unavailable` it is unknown whether a commit that had begun was applied; after all other errors it was
    /// not.
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error>;

    /// [`Records::commit`] for records that refer to something that is still being made durable: the commit is applied only when
    /// all gates are open. The engine `lmdb` prepares it meanwhile.
    ///
    /// If a gate has a blob ([`Gate::unsynced`]), the blob is as durable as the commit when the call returns. This needs an
    /// engine for which [`Records::makes_blobs_durable`] is true.
    ///
    /// # Errors
    /// Those of [`Records::commit`], and that of a gate that fails ([`Gate::failure`]): then the commit is not applied. `Invalid`
    /// for an unsynced blob that the engine can't make durable.
    async fn commit_after(
        &self,
        gates: &[Gate],
        account: AccountId,
        commit: Commit,
    ) -> Result<Committed, Error> {
        validate::check_synced(gates)?;
        for gate in gates {
            gate.opened().await?;
        }
        self.commit(account, commit).await
    }

    /// Whether [`Records::commit_after`] makes blobs durable that were put without a sync, so that one sync is enough for both.
    /// The engine `lmdb` with a commit log and [`Config::unsynced_blobs`] does, once [`Upkeep::put_blobs_again`] was called.
    fn makes_blobs_durable(&self) -> bool {
        false
    }

    /// The records with these ids, in the order of the ids, each `None` when there is no such record of this kind. All are read
    /// as of one moment. The body is empty when [`Get::with_body`] is false.
    ///
    /// # Errors
    /// `Invalid` for more than [`GET_RECORDS_MAX`] ids or an unknown kind; `Corrupt`; `Unavailable`.
    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error>;

    /// The same with the state of the kind as of that moment or before it: every later change that the records don't show is
    /// among the changes since this state. Engines that read both at once need one round trip less than for [`Records::states`]
    /// and [`Records::get`].
    ///
    /// # Errors
    /// As [`Records::get`].
    async fn get_with_state(
        &self,
        account: AccountId,
        get: &Get,
    ) -> Result<(Revision, Vec<Option<Record>>), Error> {
        let state = self.states(account).await?.of(get.kind);
        Ok((state, self.get(account, get).await?))
    }

    /// One page of an index: the ids of the records whose leading parts equal the query's values, and whose next part is in its
    /// range.
    ///
    /// - The order is that of the index's values, part by part, then of the ids; *descending* is the reverse. Numbers sort before
    ///   texts; texts are compared bytewise.
    /// - A record with several values for a part is in the index once for each combination, and is returned as often.
    /// - A *scattered* index can be queried only with values for all its parts; the order is that of the ids.
    /// - The first [`Query::skip`] entries are left out; the page is empty when there are no more than those.
    /// - [`Page::next`] is set if and only if more entries remain. Following it page by page returns every entry that existed
    ///   when the walk began, and was not removed or changed since, exactly once, even while others commit. A cursor survives the
    ///   destruction of the record it names, restarts, and moving to another engine.
    /// - [`Page::values`] has the value of the last part of each entry when [`Query::with_values`] is set, and is empty otherwise.
    /// - [`Page::state`] is the state of the kind at the moment of the read.
    ///
    /// # Errors
    /// `Invalid`: an unknown kind or index, too many values, a range on a scattered index, a limit of 0 or above
    /// [`QUERY_ROWS_MAX`], a cursor that is not of this query's kind and index. `Unavailable`.
    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error>;

    /// The pages of several queries, in their order: each is what [`Records::query`] returns. They need not be as of one moment.
    /// It costs less than separate calls; engines that can't save anything make separate calls.
    ///
    /// # Errors
    /// `Invalid` for more than [`QUERIES_MAX`] queries; as [`Records::query`] when one of them fails.
    async fn query_each(&self, account: AccountId, queries: &[Query]) -> Result<Vec<Page>, Error> {
        validate::check_queries(queries)?;
        let mut pages = Vec::with_capacity(queries.len());
        for query in queries {
            pages.push(self.query(account, query).await?);
        }
        Ok(pages)
    }

    /// The number of entries that a walk with [`Records::query`] from `query` on would return, all counted as of one moment.
    /// [`Query::skip`] and [`Query::limit`] are ignored. It reads each entry, so the time grows with their number.
    ///
    /// # Errors
    /// As [`Records::query`].
    async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error>;

    /// What was created, updated and destroyed since a revision, of one kind or of all.
    ///
    /// - *Created*: records that exist and were created after `since`, even if they were changed later. *Updated*: records that
    ///   exist, were created at or before `since` and changed after it. *Destroyed*: records that were created at or before
    ///   `since` and destroyed after it. Each list is sorted by revision, then kind, then id.
    /// - A page covers the revisions from `since` up to [`Changes::revision`] and never splits a revision. It has at most `limit`
    ///   entries, more only when a single revision has more.
    /// - A client that applies page after page, each from the revision of the previous one, has the same records as the store
    ///   after the last page. An update of a record that was returned as created may follow, and the destruction of a record that
    ///   was never returned.
    /// - [`Changes::has_more`] says whether more changes follow. If not, `revision` is the account's revision.
    ///
    /// # Errors
    /// `NotFound`: `since` is below the floor of the kind's history (see [`Upkeep::clean`]), or was skipped by a restore: changes
    /// can't be calculated, which is JMAP's `cannotCalculateChanges` (RFC 8620 §5.2). `Invalid`: `since` is above the account's
    /// revision, an unknown kind, a limit of 0 or above [`CHANGES_MAX`]. `Unavailable`.
    async fn changes(&self, account: AccountId, since: &ChangesSince) -> Result<Changes, Error>;

    /// The state of each kind that an account has or had records of, and the account's own revision, which is 0 when nothing was
    /// ever committed in it, unless the store was restored.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn states(&self, account: AccountId) -> Result<States, Error>;

    /// Announces new revisions of accounts, from now on.
    ///
    /// - *Visible*: an announced revision can be read.
    /// - *Rising*: the revisions of one account rise from announcement to announcement, so the last one is the newest.
    /// - *Complete*: each commit that is not yet visible when this is called is announced by its own revision, or by that of a
    ///   later commit of its account made at the same time, even when the caller of the commit has given up waiting.
    /// - *In time*: a commit is announced before its caller gets the answer.
    ///
    /// A slow watcher that missed announcements gets [`Lagged`], and then reads [`Records::changes`] instead.
    fn watch(&self) -> Watch;
}

/// The revisions of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// The revision of the last commit.
    pub revision: Revision,
    /// The state of each kind, ascending by kind.
    pub kinds: Vec<(Kind, Revision)>,
}

impl States {
    /// The state of a kind; 0 when no record of it was ever committed.
    pub fn of(&self, kind: Kind) -> Revision {
        let found = self.kinds.iter().find(|(known, _)| *known == kind);
        found.map_or(Revision(0), |(_, revision)| *revision)
    }
}

/// Decodes arbitrary bytes as packed properties and as cursors, as they may come from a damaged disk or a client; for a fuzz
/// target.
///
/// # Panics
/// If decoding panics, or if bytes are accepted that would be encoded differently.
#[doc(hidden)]
pub fn fuzz_packed(bytes: &[u8]) {
    entries::fuzz(bytes);
}

/// Decodes arbitrary bytes as rows and keys of the `lmdb` engine, as they may be on a damaged disk; for a fuzz target.
///
/// # Panics
/// As [`fuzz_packed`].
#[doc(hidden)]
pub fn fuzz_row(bytes: &[u8]) {
    lmdb::fuzz::rows(bytes);
}
