//! A whole store, account by account, for moving it to another engine.

mod compare;
mod copy;

use async_trait::async_trait;
use restante_core::{Identity, Timestamp};

use crate::{
    AccountId, Damage, Error, Kind, Opened, Position, Record, RecordId, Revision, rows::TombstoneRow,
};

pub use compare::compare;
pub use copy::{Copied, copy};

/// The most accounts that one page of [`Transfer::heads`] has.
pub const TRANSFER_ACCOUNTS_MAX: usize = 1_024;

/// The most rows that one page of [`Transfer::rows`] has, and one call of [`Transfer::put`] takes.
pub const TRANSFER_ROWS_MAX: usize = 128;

/// A page of [`Transfer::rows`] ends with the row that brings it to this many bytes of bodies.
pub const TRANSFER_BYTES: usize = 1 << 20;

/// A store that no server has open, for [`copy`] and [`compare`].
#[derive(Clone)]
pub struct Moving {
    /// The store as servers see it. Don't commit to a store that is being moved: a copy fails if anything was committed.
    pub opened: Opened,
    /// What a move needs in addition.
    pub transfer: std::sync::Arc<dyn Transfer>,
}

/// Reads and writes everything that a store has of its accounts, unchanged: ids, revisions, states, floors and positions in the
/// feed stay the same, and jumps for restores that an account has not made yet are still made later. The checkpoints of followers
/// are moved by [`crate::Feed`].
///
/// A store that is written in this way is an *incomplete copy* from [`Transfer::begin`] to [`Transfer::finish`]: [`crate::open`]
/// refuses it with `Invalid`. Every method may return `Unavailable`, and those that read may return `Corrupt`.
#[async_trait]
pub trait Transfer: Send + Sync + 'static {
    /// The state of the store as a whole.
    async fn state(&self) -> Result<TransferState, Error>;

    /// A page of the accounts that ever had a commit and follow `after`, ascending.
    ///
    /// # Errors
    /// `Invalid` for a limit of 0 or above [`TRANSFER_ACCOUNTS_MAX`].
    async fn heads(&self, after: Option<AccountId>, limit: usize) -> Result<Vec<AccountHead>, Error>;

    /// A page of the rows of an account that follow `after`, in the order of [`RowKey`]. It is empty only when there are no more. A
    /// damaged row is returned as [`Row::Damaged`], and the rows after it follow.
    ///
    /// # Errors
    /// `Invalid` for a limit of 0 or above [`TRANSFER_ROWS_MAX`].
    async fn rows(&self, account: AccountId, after: Option<RowKey>, limit: usize) -> Result<Vec<Row>, Error>;

    /// Makes the store an incomplete copy of a store with this many restores. It may be an incomplete copy already.
    ///
    /// # Errors
    /// `Invalid` when the engine can't hold a store that was restored, and for a store in which commits were begun but never made, if
    /// the engine can't tell their positions from those to be copied.
    async fn begin(&self, restores: u64) -> Result<(), Error>;

    /// Removes an account and everything that it has, including rows whose account was never completed by [`Transfer::put`], and
    /// leftovers of a call that failed or was interrupted. Writes of such a call that are still in progress are not applied any
    /// more.
    async fn clear(&self, account: AccountId) -> Result<(), Error>;

    /// Stores rows of an account that has none of them yet. With `head`, completes the account: only then does
    /// [`Transfer::heads`] return it, with all rows of all calls. Durable when it returns. A call that fails or is interrupted
    /// may have stored some of the rows, and may have completed the account: call [`Transfer::clear`] before retrying.
    ///
    /// # Errors
    /// `Corrupt` for a [`Row::Damaged`].
    async fn put(&self, account: AccountId, rows: Vec<Row>, head: Option<AccountHead>) -> Result<(), Error>;

    /// Makes the store complete: servers may open it.
    async fn finish(&self) -> Result<(), Error>;
}

/// The state of a store as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferState {
    /// See [`crate::Upkeep::identity`].
    pub identity: Identity,
    /// See [`crate::Upkeep::restores`].
    pub restores: u64,
    /// Whether a copy into it was begun and not finished.
    pub is_incomplete: bool,
}

/// The state of an account, without its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountHead {
    /// The account.
    pub account: AccountId,
    /// The revision of its last commit.
    pub revision: Revision,
    /// The id that its next record gets.
    pub next_id: RecordId,
    /// Where its last commit is in the feed.
    pub position: Position,
    /// When that commit was made, in milliseconds.
    pub committed_at: Timestamp,
    /// For how many restores of the store its revision, its next id and the counters of its records have been raised. The next
    /// commit makes up for the rest.
    pub restores: u64,
    /// Whether it is being erased.
    pub is_erasing: bool,
    /// Revisions that restores have skipped, ascending.
    pub gaps: Vec<RevisionGap>,
    /// Each kind that was ever touched, ascending.
    pub kinds: Vec<KindHead>,
}

impl AccountHead {
    /// The rows that the account has.
    pub fn rows(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.records + kind.tombstones).sum()
    }
}

/// Revisions that a restore has skipped: those between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevisionGap {
    /// The last revision before the gap.
    pub after: Revision,
    /// The first revision after the gap.
    pub until: Revision,
}

/// The state of a kind in an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindHead {
    /// The kind.
    pub kind: Kind,
    /// The revision that last touched it.
    pub state: Revision,
    /// Changes since revisions before this one can't be calculated.
    pub floor: Revision,
    /// Records that exist.
    pub records: u64,
    /// Destroyed records that are still in the history.
    pub tombstones: u64,
}

/// A record, or what is left of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// An existing record.
    Record(Record),
    /// A destroyed record.
    Tombstone(Tombstone),
    /// Either of them, when it can't be read.
    Damaged(RowKey, Damage),
}

impl Row {
    /// The key of the row.
    pub fn key(&self) -> RowKey {
        match self {
            Self::Record(record) => RowKey::Record(record.kind, record.id),
            Self::Tombstone(gone) => RowKey::Tombstone(gone.kind, gone.revision, gone.id),
            Self::Damaged(key, _) => *key,
        }
    }

    /// The row of a record that was read.
    pub(crate) fn of_record(kind: Kind, id: RecordId, record: Result<Record, Damage>) -> Self {
        match record {
            Ok(record) => Self::Record(record),
            Err(damage) => Self::Damaged(RowKey::Record(kind, id), damage),
        }
    }

    /// The row of a tombstone, whose place in the history is the revision and the id; `None` when the rest of it is damaged, as
    /// `damage` says.
    pub(crate) fn of_tombstone(
        kind: Kind,
        (revision, id): (Revision, RecordId),
        gone: Option<TombstoneRow>,
        damage: impl FnOnce() -> Error,
    ) -> Self {
        let Some(gone) = gone else {
            return Self::Damaged(RowKey::Tombstone(kind, revision, id), Damage(damage().to_string()));
        };
        let (created, destroyed_seconds) = (gone.created, gone.second);
        Self::Tombstone(Tombstone { kind, id, created, revision, destroyed_seconds })
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Record(record) => record.body.bytes.len() + record.body.blobs.len() * size_of::<[u8; 32]>(),
            Self::Tombstone(_) | Self::Damaged(..) => 0,
        }
    }
}

/// The key of a row of an account. Records come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKey {
    /// A record.
    Record(Kind, RecordId),
    /// A record destroyed by this revision.
    Tombstone(Kind, Revision, RecordId),
}

/// A row in words.
fn describe(account: AccountId, key: RowKey) -> String {
    match key {
        RowKey::Record(kind, id) => format!("account {}, kind {}, record {}", account.0, kind.0, id.0),
        RowKey::Tombstone(kind, revision, id) => {
            format!(
                "account {}, kind {}, record {}, destroyed in revision {}",
                account.0, kind.0, id.0, revision.0
            )
        }
    }
}

/// A damaged row that has to be copied.
pub(crate) fn damaged(account: AccountId, key: RowKey, damage: &Damage) -> Error {
    Error::corrupt(format!("{} can't be read: {}", describe(account, key), damage.0))
}

/// What is left of a record that was destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// Its kind.
    pub kind: Kind,
    /// Its id.
    pub id: RecordId,
    /// The revision that created it.
    pub created: Revision,
    /// The revision that destroyed it.
    pub revision: Revision,
    /// When it was destroyed, in seconds since 1970.
    pub destroyed_seconds: u64,
}

/// A page of rows that is being filled.
pub(crate) struct RowPage {
    rows: Vec<Row>,
    bytes: usize,
    limit: usize,
}

impl RowPage {
    pub(crate) fn new(limit: usize) -> Self {
        Self { rows: Vec::new(), bytes: 0, limit }
    }

    pub(crate) fn push(&mut self, row: Row) {
        self.bytes += row.bytes();
        self.rows.push(row);
    }

    /// How many more rows fit.
    pub(crate) fn room(&self) -> usize {
        if self.bytes >= TRANSFER_BYTES { 0 } else { self.limit - self.rows.len().min(self.limit) }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.room() == 0
    }

    pub(crate) fn into_rows(self) -> Vec<Row> {
        self.rows
    }
}

/// An incomplete copy, which no server may open. Not a `Conflict`: no process holds it, and waiting does not help.
pub(crate) fn incomplete() -> Error {
    Error::invalid(
        "the records are an incomplete copy of others: run `restante records copy` again to finish it, or remove them",
    )
}

/// Walks over all accounts of a store.
struct Heads<'m> {
    store: &'m Moving,
    page: std::vec::IntoIter<AccountHead>,
    after: Option<AccountId>,
    is_last: bool,
}

impl<'m> Heads<'m> {
    fn of(store: &'m Moving) -> Self {
        Self { store, page: Vec::new().into_iter(), after: None, is_last: false }
    }

    async fn next(&mut self) -> Result<Option<AccountHead>, Error> {
        if self.page.as_slice().is_empty() && !self.is_last {
            let page = self.store.transfer.heads(self.after, TRANSFER_ACCOUNTS_MAX).await?;
            self.is_last = page.is_empty();
            self.after = page.last().map(|head| head.account);
            self.page = page.into_iter();
        }
        Ok(self.page.next())
    }
}

/// An account in one of two stores, or in both.
enum HeadPair {
    Left(AccountHead),
    Right(AccountHead),
    Both(AccountHead, AccountHead),
}

/// Walks over the accounts of two stores side by side.
struct HeadPairs<'m> {
    left: Heads<'m>,
    right: Heads<'m>,
    next: (Option<AccountHead>, Option<AccountHead>),
}

impl<'m> HeadPairs<'m> {
    async fn of(left: &'m Moving, right: &'m Moving) -> Result<Self, Error> {
        let (mut left, mut right) = (Heads::of(left), Heads::of(right));
        let next = (left.next().await?, right.next().await?);
        Ok(Self { left, right, next })
    }

    async fn next(&mut self) -> Result<Option<HeadPair>, Error> {
        let order = match &self.next {
            (None, None) => return Ok(None),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(left), Some(right)) => left.account.cmp(&right.account),
        };
        let left = if order.is_le() { self.next.0.take() } else { None };
        let right = if order.is_ge() { self.next.1.take() } else { None };
        if left.is_some() {
            self.next.0 = self.left.next().await?;
        }
        if right.is_some() {
            self.next.1 = self.right.next().await?;
        }
        Ok(match (left, right) {
            (Some(left), Some(right)) => Some(HeadPair::Both(left, right)),
            (Some(left), None) => Some(HeadPair::Left(left)),
            (None, Some(right)) => Some(HeadPair::Right(right)),
            (None, None) => None,
        })
    }
}

/// The number of rows of all accounts of a store.
async fn count_rows(store: &Moving) -> Result<u64, Error> {
    let mut heads = Heads::of(store);
    let mut rows = 0;
    while let Some(head) = heads.next().await? {
        rows += head.rows();
    }
    Ok(rows)
}
