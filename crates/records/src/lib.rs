//! Records: objects of an account, each change with a revision, found by declared indexes.
//!
//! [`Records`] is the contract that every engine keeps, [`Feed`] is what followers read, [`Upkeep`] what operators need.
//! [`open`] chooses an engine by URL. Each sentence of the contracts is a named test that runs on every engine: see
//! `tests/conformance`.
//!
//! A record is what a mail server calls an email, a mailbox or a thread: it has a [`Body`], which is written once and
//! seldom changes, and [`Properties`], small values that change often and that indexes are made of. What kinds of records
//! there are, and their indexes, is a [`Schema`] that is given on opening.
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

/// How far an account's ids and revisions, and the counters of its records, jump when the store was restored from a backup.
/// So what was given in the time that the restore took back is not given again, as long as it was less than this.
pub const RESTORE_JUMP: u64 = 1 << 20;

/// The longest body of a record. What is longer belongs into a blob.
pub const BODY_BYTES_MAX: usize = 256 << 10;

/// The most bytes of bodies and properties that one [`Records::commit`] takes.
pub const COMMIT_BYTES_MAX: usize = 2 << 20;

/// The most blobs that one body refers to.
pub const BODY_BLOBS_MAX: usize = 256;

/// The most index entries that one record has in one index: the product of the numbers of values of its parts.
pub const INDEX_ENTRIES_MAX: usize = 256;

/// The longest values of one index entry together: a number takes up to 9 bytes, a text 3 more than it has, and one more for
/// each zero byte in it. With what stands around them they fit into a key of LMDB.
pub const INDEX_VALUES_BYTES_MAX: usize = 480;

/// The records of accounts and their changes.
///
/// **Revisions.** Each commit takes the account's next revision; there is one sequence for all kinds of an account, and it
/// begins with 1. The *state* of a kind is the revision that last touched it. Revision order is commit order as readers see
/// it: no smaller revision appears after a larger one was seen.
///
/// **Ids.** The id of a record is given by the store: the next of its account, over all kinds. It is never used again.
///
/// **Restores.** A store that was restored from a backup gives no revision and no id again that it gave after the backup:
/// those of each account, and the counters that its schema names ([`KindSchema::counter`]), go on [`RESTORE_JUMP`] higher.
/// Changes since a revision that was left out can't be calculated.
#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// Makes all changes of `commit`, or none, as one revision; returns when they are durable.
    ///
    /// - *Durable*: what was answered with success survives the process and a power cut.
    /// - *Atomic*: readers see all of a commit or nothing of it, also after a crash.
    /// - *Visible*: a call that starts after the answer sees the commit.
    /// - *Preconditions*: for each (kind, revision) of `expect` the kind's state must be that revision.
    /// - [`Committed::created`] has the ids of the creates in their order. A property of a change may be
    ///   [`Value::Created`]`(n)`, the id that the n-th create of the commit gets, or [`Value::Revision`], the revision that
    ///   the commit gets.
    /// - An update with `None` leaves the body, or the properties, as they are.
    /// - A commit without changes checks the preconditions, changes nothing and answers the account's revision.
    ///
    /// # Errors
    /// - `Conflict`: a kind is not in the expected state, or the account is being erased, see [`Upkeep::erase`].
    /// - `NotFound`: a record that is to be updated or destroyed is not there.
    /// - `Invalid`: a kind or property that the schema lacks, a record that stands in two changes, a bound that is exceeded
    ///   ([`COMMIT_CHANGES_MAX`], [`COMMIT_BYTES_MAX`], [`BODY_BYTES_MAX`], [`BODY_BLOBS_MAX`], [`TEXT_BYTES_MAX`],
    ///   [`INDEX_ENTRIES_MAX`], [`INDEX_VALUES_BYTES_MAX`]), a `Created` that names no create.
    /// - `Full`: no room now. `Unavailable`: the engine can't write now; after a failed sync until it is opened again.
    ///
    /// After `Full` and `Unavailable` of a commit that was under way nobody knows whether it is kept; after all others it is
    /// not.
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error>;

    /// [`Records::commit`] of records that refer to something which is being made durable: it is made when all gates are open, and not before.
    /// LMDB prepares it meanwhile.
    ///
    /// The blobs of gates that have one ([`Gate::unsynced`]) are as durable as the commit when it is answered, for which
    /// [`Records::makes_blobs_durable`] must be true.
    ///
    /// # Errors
    /// Those of [`Records::commit`], and that of a gate that fails ([`Gate::failure`]): the commit is not made then. `Invalid` for an
    /// unsynced blob that the engine can't make durable.
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

    /// Whether [`Records::commit_after`] makes blobs durable that were put without a sync: the engine `lmdb` with a commit log and
    /// [`Config::unsynced_blobs`] does after [`Upkeep::put_blobs_again`], so that one sync is enough for both.
    fn makes_blobs_durable(&self) -> bool {
        false
    }

    /// The records with these ids, in the order of the ids, each `None` when there is no such record of this kind. All are
    /// read at one moment. The body is empty when [`Get::with_body`] is false.
    ///
    /// # Errors
    /// `Invalid` for more than [`GET_RECORDS_MAX`] ids or an unknown kind; `Corrupt`; `Unavailable`.
    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error>;

    /// The same with the state of the kind at that moment or before it: the changes since this state miss nothing that the records
    /// don't show. Engines that read both at once need one round trip less than for [`Records::states`] and [`Records::get`].
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

    /// One page of an index: the ids of the records whose leading parts equal the query's values, and whose next part is
    /// in its range.
    ///
    /// - The order is that of the index' values, part by part, then of the ids; *descending* is the reverse. Numbers stand
    ///   before texts; texts are compared bytewise.
    /// - A record with several values of a part is in the index once for each combination, and is returned as often.
    /// - A *scattered* index answers only when all its parts are given, in the order of the ids.
    /// - The page begins behind the first [`Query::skip`] entries; it is empty when there are no more than those.
    /// - [`Page::next`] is set when, and only when, more entries remain. Walking by it gives every entry that was there
    ///   when the walk began and is not removed or changed since exactly once, also while others commit. A cursor survives
    ///   the destruction of the record it names, restarts, and moving to another engine.
    /// - [`Page::values`] has the value of the last part of each entry when [`Query::with_values`] is set, and is empty otherwise.
    /// - [`Page::state`] is the state of the kind at the moment when the page was read.
    ///
    /// # Errors
    /// `Invalid`: an unknown kind or index, too many values, a range on a scattered index, a limit of 0 or above
    /// [`QUERY_ROWS_MAX`], a cursor that is not of this query's kind and index. `Unavailable`.
    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error>;

    /// The pages of several queries, in their order: each is what [`Records::query`] answers. They need not be of one moment. It costs
    /// less than as many calls; engines that gain nothing by it make those.
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

    /// The number of entries that walking by [`Records::query`] from `query` on would give, all counted at one moment.
    /// [`Query::skip`] and [`Query::limit`] don't change it. It reads each entry, so it takes the longer the
    /// more there are.
    ///
    /// # Errors
    /// As [`Records::query`].
    async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error>;

    /// What was created, updated and destroyed since a revision, of one kind or of all.
    ///
    /// - *Created*: records that exist, and that were created after `since`, whatever happened to them later. *Updated*:
    ///   records that exist, were created at or before `since` and changed after it. *Destroyed*: records that were created
    ///   at or before `since` and destroyed after it. Each list is in the order of revisions, then of kinds, then of ids.
    /// - A page covers the revisions from `since` up to [`Changes::revision`]: it never cuts one in two. It has at most
    ///   `limit` entries, more only when a single revision has more.
    /// - Who applies page after page, each from the last one's revision, has after the last what the store has. An update
    ///   of what was returned as created may follow, and the destruction of something that was never returned.
    /// - [`Changes::has_more`] says whether there is more. When not, `revision` is the account's revision.
    ///
    /// # Errors
    /// `NotFound`: `since` is below the floor of the kind's history (see [`Upkeep::clean`]), or was left out by a restore:
    /// changes can't be calculated, as JMAP's `cannotCalculateChanges` (RFC 8620 §5.2) says. `Invalid`: `since` is above the account's revision, an unknown
    /// kind, a limit of 0 or above [`CHANGES_MAX`]. `Unavailable`.
    async fn changes(&self, account: AccountId, since: &ChangesSince) -> Result<Changes, Error>;

    /// The state of each kind that an account has or had records of, and the account's own revision. That is 0 when nothing was
    /// ever committed in it, unless the store was restored.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn states(&self, account: AccountId) -> Result<States, Error>;

    /// Announces how far accounts are, from now on.
    ///
    /// - *Visible*: what is announced can be read.
    /// - *Rising*: the revisions of one account rise, from announcement to announcement: the last one is the
    ///   newest.
    /// - *To the end*: each commit that is not visible before this call is announced, by its own revision or, when others of
    ///   its account came at the same time, by the last of theirs; also when who committed has given up waiting.
    /// - *In time*: a commit is announced before it is answered.
    ///
    /// A slow watcher gets [`Lagged`] when announcements were left out, and reads [`Records::changes`] instead.
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
    /// The state of a kind; 0 when nothing of it was ever committed.
    pub fn of(&self, kind: Kind) -> Revision {
        let found = self.kinds.iter().find(|(known, _)| *known == kind);
        found.map_or(Revision(0), |(_, revision)| *revision)
    }
}

/// Reads any bytes as packed properties and as cursors, as they may lie on a damaged disk or come from a client; for a fuzz
/// target.
///
/// # Panics
/// When reading panics, or when something is accepted that would be written otherwise.
#[doc(hidden)]
pub fn fuzz_packed(bytes: &[u8]) {
    entries::fuzz(bytes);
}

/// Reads any bytes as rows and keys of the `lmdb` engine, as they may lie on a damaged disk; for a fuzz target.
///
/// # Panics
/// As [`fuzz_packed`].
#[doc(hidden)]
pub fn fuzz_row(bytes: &[u8]) {
    lmdb::fuzz::rows(bytes);
}
