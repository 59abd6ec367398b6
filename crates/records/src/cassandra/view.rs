//! Reading an account as it is at one moment.
//!
//! A commit is one mutation of the account's partition, so a single read of one replica sees all of it or nothing. Several reads,
//! and reads of several replicas, may see different versions. Each row is read together with the version of its partition (a
//! static column). A view compares all these versions with the head that it began with, and starts over when they differ. A range
//! without rows shows no version, so the head is read again after it. The same holds for a slice that is cut by its limit soon
//! after a commit: when replicas differ, Cassandra fetches more rows to fill it. These may be of a later commit, but get the
//! version of the first ones.
//!
//! A version that this server sees for the first time may be on one replica only, because the server that committed it has died.
//! Reading the head at serial consistency brings it to a quorum, so no later reader sees less.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use scylla::value::CqlValue;
use tokio::time::Instant;

use super::{
    Shared,
    connect::{bytes, number, text},
    head::Head,
    holds::Hold,
    schema::{HEAD, account_number, corrupt},
};
use crate::{AccountId, Error};

/// The most rows that one statement reads.
pub(super) const SLICE_ROWS: usize = 5_000;
/// The most keys that one statement asks for: each costs some tens of microseconds.
pub(super) const KEYS: usize = 200;
/// The most accounts whose heads are remembered: each takes some hundred bytes.
const CONFIRMED_MAX: usize = 16_384;
/// A reader that was overtaken by commits this many times holds up the next ones.
const OVERTAKEN_MAX: u32 = 3;
/// For this long after this server has first seen a version, even healthy replicas may not have it yet.
const SPREADING: Duration = Duration::from_secs(1);

const READ_HEAD: &str = "SELECT value FROM account WHERE store = ? AND account = ? AND key = 0x00";
const UP: &str = "SELECT key, value, version FROM account \
     WHERE store = ? AND account = ? AND key >= ? AND key < ? ORDER BY key ASC LIMIT ?";
const DOWN: &str = "SELECT key, value, version FROM account \
     WHERE store = ? AND account = ? AND key >= ? AND key < ? ORDER BY key DESC LIMIT ?";
const FIND: &str = "SELECT key, value FROM account WHERE store = ? AND account = ? AND key IN ?";
const WHAT: &str = "read an account";

/// A row of an account: its key and its value.
pub(super) type Row = (Vec<u8>, Vec<u8>);

/// A head that is known to be visible to all readers.
pub(super) struct Confirmed {
    head: Arc<Head>,
    /// When this server first saw it.
    met_at: Instant,
}

/// A range of keys of an account.
#[derive(Clone, Debug)]
pub(super) struct Range<'k> {
    pub(super) from: &'k [u8],
    /// The end of the range, which is not part of it.
    pub(super) to: &'k [u8],
    pub(super) limit: usize,
    pub(super) is_down: bool,
}

/// Why a view has no result.
#[derive(Debug)]
pub(super) enum ViewError {
    /// The account has changed meanwhile.
    Moved,
    Failed(Error),
}

impl From<Error> for ViewError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// An account as of one moment.
pub(super) struct View<'s> {
    shared: &'s Shared,
    account: AccountId,
    pub(super) head: Head,
    /// Whether something was read that doesn't show its version well enough: the head must be read once more.
    is_silent: AtomicBool,
    reads: AtomicU32,
    /// Whether the head was not read for this view: then the rows that are read must show that it is still current.
    is_head_unread: bool,
}

/// The attempts to read an account, until one succeeds.
pub(super) struct Views<'s> {
    shared: &'s Shared,
    account: AccountId,
    deadline: Instant,
    /// How often the account changed before there was a result.
    overtaken: AtomicU32,
    hold: OnceLock<Hold<'s>>,
}

impl Shared {
    pub(super) fn views(&self, account: AccountId) -> Views<'_> {
        let deadline = self.database.deadline();
        Views { shared: self, account, deadline, overtaken: 0.into(), hold: OnceLock::new() }
    }

    /// The head of an account, with everything that was acknowledged.
    pub(super) async fn read_head(&self, account: AccountId) -> Result<Option<Head>, Error> {
        let rows = self.database.read(WHAT, READ_HEAD, self.account_values(account)).await?;
        decode_head(account, rows.first())
    }

    /// The head of an account with everything that is decided, which all readers see from now on.
    pub(super) async fn read_head_serial(&self, account: AccountId) -> Result<Option<Head>, Error> {
        let rows = self.database.read_serial(WHAT, READ_HEAD, self.account_values(account)).await?;
        let head = decode_head(account, rows.first())?;
        self.confirm(account, &head.clone().unwrap_or_else(|| Head::new(self.epoch)));
        Ok(head)
    }

    pub(super) fn account_values(&self, account: AccountId) -> Vec<CqlValue> {
        vec![text(self.store()), CqlValue::BigInt(account_number(account))]
    }

    /// Remembers a head that is visible to all readers.
    pub(super) fn confirm(&self, account: AccountId, head: &Head) {
        let mut confirmed = self.confirmed.lock();
        if confirmed.get(&account).is_some_and(|known| known.head.version >= head.version) {
            return;
        }
        if confirmed.len() >= CONFIRMED_MAX {
            confirmed.clear();
        }
        confirmed.insert(account, Confirmed { head: Arc::new(head.clone()), met_at: Instant::now() });
    }

    /// The last head that is known to be visible to all readers.
    pub(super) fn confirmed(&self, account: AccountId) -> Option<Arc<Head>> {
        self.confirmed.lock().get(&account).map(|known| known.head.clone())
    }

    /// Whether a version is known to be visible to all readers.
    fn is_confirmed(&self, account: AccountId, version: u64) -> bool {
        self.confirmed(account).is_some_and(|known| known.version == version)
    }

    /// Whether replicas may not have a version yet.
    fn is_spreading(&self, account: AccountId, version: u64) -> bool {
        let confirmed = self.confirmed.lock();
        confirmed.get(&account).is_none_or(|known| known.is_spreading(version, Instant::now()))
    }
}

impl Confirmed {
    fn is_spreading(&self, version: u64, now: Instant) -> bool {
        self.head.version != version || now.duration_since(self.met_at) < SPREADING
    }
}

fn decode_head(account: AccountId, row: Option<&scylla::value::Row>) -> Result<Option<Head>, Error> {
    let Some(row) = row else { return Ok(None) };
    // A partition with only the static column would give a row without a value. That can't happen, since the head is never deleted.
    let head = bytes(row, 0).and_then(Head::decode);
    head.map(Some).ok_or_else(|| corrupt(account, HEAD))
}

impl<'s> Views<'s> {
    pub(super) fn account(&self) -> AccountId {
        self.account
    }

    /// Begins a view.
    pub(super) async fn begin(&self) -> Result<View<'s>, Error> {
        let (shared, account) = (self.shared, self.account);
        loop {
            let head = shared.read_head(account).await?;
            let version = head.as_ref().map_or(0, |head| head.version);
            if !shared.is_confirmed(account, version) {
                let decided = shared.read_head_serial(account).await?;
                if decided != head {
                    self.note_overtaken()?;
                    continue;
                }
            }
            return Ok(View::of(shared, account, head.unwrap_or_else(|| Head::new(shared.epoch))));
        }
    }

    /// Begins a view with the rows of a range. They are of the view's version, or else useless: [`View::rows`] checks that. If
    /// the account has not changed since this server last saw it, this costs one statement.
    pub(super) async fn begin_with(
        &self,
        range: Range<'_>,
    ) -> Result<(View<'s>, Vec<scylla::value::Row>), Error> {
        let rows = self.shared.read_range(self.account, range).await?;
        let version = rows.first().and_then(|row| number(row, 2));
        let known = self.shared.confirmed(self.account);
        let view = match known.filter(|head| Some(head.version) == version) {
            Some(head) => View::of(self.shared, self.account, Head::clone(&head)),
            None => self.begin().await?,
        };
        Ok((view, rows))
    }

    /// A view of the last head that this server has read, if any. The rows that are read show whether it is still current; if
    /// none are, [`Views::accept`] reads the head.
    pub(super) fn of_known_head(&self) -> Option<View<'s>> {
        let known = self.shared.confirmed(self.account)?;
        let view = View::of(self.shared, self.account, Head::clone(&known));
        Some(View { is_head_unread: true, ..view })
    }

    /// A view of a head that a statement has read along with other rows; `None` when that head may not be visible to all readers yet.
    pub(super) fn of_confirmed(&self, head: Option<Head>) -> Option<View<'s>> {
        let version = head.as_ref().map_or(0, |head| head.version);
        let head = head.unwrap_or_else(|| Head::new(self.shared.epoch));
        let is_confirmed = self.shared.is_confirmed(self.account, version);
        is_confirmed.then(|| View::of(self.shared, self.account, head))
    }

    /// The result of a view, if the account has not changed during it; `None` when it must be read again.
    pub(super) async fn accept<T>(
        &self,
        view: &View<'_>,
        answer: Result<T, ViewError>,
    ) -> Result<Option<T>, Error> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(ViewError::Failed(error)) => return Err(error),
            Err(ViewError::Moved) => {
                self.note_overtaken()?;
                return Ok(None);
            }
        };
        let head = if view.is_silent.load(Ordering::Relaxed) {
            self.shared.read_head_serial(self.account).await?
        } else if view.reads.load(Ordering::Relaxed) > 1
            || view.is_head_unread && view.reads.load(Ordering::Relaxed) == 0
        {
            self.shared.read_head(self.account).await?
        } else {
            return Ok(Some(answer));
        };
        if head.map_or(0, |head| head.version) == view.head.version {
            return Ok(Some(answer));
        }
        self.note_overtaken()?;
        Ok(None)
    }

    /// Notes that the account has changed and must be read again. Fails after the deadline.
    fn note_overtaken(&self) -> Result<(), Error> {
        if self.overtaken.fetch_add(1, Ordering::Relaxed) + 1 >= OVERTAKEN_MAX {
            self.hold.get_or_init(|| self.shared.holds.hold(self.account));
        }
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let what = format!("account {} changes faster than it can be read: try again later", self.account.0);
        Err(Error::unavailable(what))
    }
}

impl<'s> View<'s> {
    pub(super) fn account(&self) -> AccountId {
        self.account
    }

    /// The account with a head that was read.
    pub(super) fn of(shared: &'s Shared, account: AccountId, head: Head) -> Self {
        Self { shared, account, head, is_silent: false.into(), reads: 0.into(), is_head_unread: false }
    }

    /// The rows of a range.
    pub(super) async fn slice(&self, range: Range<'_>) -> Result<Vec<Row>, ViewError> {
        let limit = range.limit;
        self.rows(&self.shared.read_range(self.account, range).await?, limit)
    }

    /// Checks and decodes rows of a range. If there are `limit` of them, the range may have more.
    pub(super) fn rows(&self, found: &[scylla::value::Row], limit: usize) -> Result<Vec<Row>, ViewError> {
        self.note_read();
        let is_cut = found.len() >= limit;
        if found.is_empty() || is_cut && self.shared.is_spreading(self.account, self.head.version) {
            self.is_silent.store(true, Ordering::Relaxed);
        }
        let mut rows = Vec::with_capacity(found.len());
        for row in found {
            if number(row, 2) != Some(self.head.version) {
                return Err(ViewError::Moved);
            }
            let key = bytes(row, 0).unwrap_or_default();
            let value = bytes(row, 1).ok_or_else(|| corrupt(self.account, key))?;
            rows.push((key.to_vec(), value.to_vec()));
        }
        Ok(rows)
    }

    /// All rows of a range, read in several statements.
    pub(super) async fn whole(&self, from: &[u8], to: &[u8]) -> Result<Vec<Row>, ViewError> {
        let mut rows: Vec<Row> = Vec::new();
        loop {
            let from = rows.last().map_or_else(|| from.to_vec(), |(key, _)| behind(key));
            let page = self.slice(Range { from: &from, to, limit: SLICE_ROWS, is_down: false }).await?;
            let is_last = page.len() < SLICE_ROWS;
            rows.extend(page);
            if is_last {
                return Ok(rows);
            }
        }
    }

    /// The rows with these keys, as far as they exist, in no particular order.
    pub(super) async fn find(&self, keys: &[Vec<u8>]) -> Result<Vec<Row>, ViewError> {
        let mut rows = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS) {
            // The head is read by the same statement: it shows the version of these rows.
            let (found, head) = self.shared.find(self.account, keys).await?;
            if head.map_or(0, |head| head.version) != self.head.version {
                return Err(ViewError::Moved);
            }
            rows.extend(found);
        }
        Ok(rows)
    }

    fn note_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shared {
    async fn read_range(
        &self,
        account: AccountId,
        range: Range<'_>,
    ) -> Result<Vec<scylla::value::Row>, Error> {
        let mut values = self.account_values(account);
        let limit = i32::try_from(range.limit).unwrap_or(i32::MAX);
        values.extend([
            CqlValue::Blob(range.from.to_vec()),
            CqlValue::Blob(range.to.to_vec()),
            CqlValue::Int(limit),
        ]);
        self.database.read(WHAT, if range.is_down { DOWN } else { UP }, values).await
    }

    /// The rows with some keys, and the head, as of the same moment.
    pub(super) async fn find(
        &self,
        account: AccountId,
        keys: &[Vec<u8>],
    ) -> Result<(Vec<Row>, Option<Head>), Error> {
        let mut values = self.account_values(account);
        let asked = std::iter::once(HEAD).chain(keys.iter().map(Vec::as_slice));
        values.push(CqlValue::List(asked.map(|key| CqlValue::Blob(key.to_vec())).collect()));
        let mut rows = Vec::with_capacity(keys.len());
        let mut head = None;
        for row in &self.database.read(WHAT, FIND, values).await? {
            let key = bytes(row, 0).unwrap_or_default();
            let value = bytes(row, 1).ok_or_else(|| corrupt(account, key))?;
            if key == HEAD {
                head = Some(Head::decode(value).ok_or_else(|| corrupt(account, HEAD))?);
            } else {
                rows.push((key.to_vec(), value.to_vec()));
            }
        }
        Ok((rows, head))
    }

    /// The rows with any number of keys, and the head, as of the same moment.
    pub(super) async fn find_all(
        &self,
        account: AccountId,
        keys: &[Vec<u8>],
    ) -> Result<(Vec<Row>, Option<Head>), Error> {
        let deadline = self.database.deadline();
        'again: loop {
            let mut chunks = keys.chunks(KEYS);
            let (mut rows, head) = self.find(account, chunks.next().unwrap_or_default()).await?;
            for keys in chunks {
                let (more, now) = self.find(account, keys).await?;
                if now != head {
                    if Instant::now() >= deadline {
                        return Err(Error::unavailable("the account changes faster than it can be read"));
                    }
                    continue 'again;
                }
                rows.extend(more);
            }
            return Ok((rows, head));
        }
    }
}

/// The smallest key greater than `key`.
pub(super) fn behind(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_version_is_spreading_for_a_second_after_it_was_met() {
        let head = Head::new(1).changed([0; 8]);
        let confirmed = Confirmed { head: Arc::new(head), met_at: Instant::now() };
        let is_spreading = |version| confirmed.is_spreading(version, Instant::now());
        assert!(is_spreading(1));
        tokio::time::advance(SPREADING).await;
        assert!(!is_spreading(1));
        assert!(is_spreading(0) && is_spreading(2), "of others it is not known");
    }
}
