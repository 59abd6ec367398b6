//! Compares the rows of accounts with counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, ControlFlow},
};

use restante_lmdb::{
    Direction, Table, View,
    key::{KeyBuf, after_prefix},
};
use tracing::warn;

use super::{Check, row_name, take_history_key};
use crate::{
    AccountId, Error, Kind, RecordId, Revision, Touched,
    lmdb::{
        schema::{
            ACCOUNT, AccountRow, FEED, HISTORY, KindRow, STATE, StateRow, account_key, decode_account_key,
            decode_feed, decode_state_key, feed_key, tombstone_prefix,
        },
        walk::walk,
    },
};

/// The most rows of an account that are counted in one view: some milliseconds. Counting a larger account takes several views,
/// and starts over when the account changes meanwhile.
const COUNT_ROWS_MAX: usize = 50_000;
/// How often counting a large account that keeps changing is tried, before it is skipped.
const COUNT_TRIES: u32 = 3;
/// How many accounts are held in memory at a time.
const ACCOUNTS: usize = 4_096;

/// What was counted of a kind.
#[derive(Default)]
struct Counted {
    records: u64,
    tombstones: u64,
    /// The highest revision in any row.
    revision: Revision,
    /// The highest id.
    id: RecordId,
}

type Counts = BTreeMap<Kind, Counted>;

impl Check<'_> {
    /// Checks the rows of all accounts.
    pub(super) fn accounts(&mut self) -> Result<(), Error> {
        let mut after: Option<KeyBuf> = None;
        loop {
            let accounts = self.next_accounts(after.as_deref())?;
            for account in &accounts {
                self.account(*account)?;
            }
            let Some(last) = accounts.last() else { return Ok(()) };
            after = Some(account_key(*last));
        }
    }

    /// The next accounts whose rows can be read.
    fn next_accounts(&mut self, after: Option<&[u8]>) -> Result<Vec<AccountId>, Error> {
        let mut accounts = Vec::new();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        walk(&self.engine.store, ACCOUNT, from, &mut |_, key, value| {
            self.step();
            match decode_account_key(key).zip(AccountRow::decode(value)) {
                Some((account, _)) => accounts.push(account),
                None => self.note(row_name(ACCOUNT, key), "it is no row of an account"),
            }
            Ok(if accounts.len() < ACCOUNTS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(accounts)
    }

    fn account(&mut self, account: AccountId) -> Result<(), Error> {
        let store = &self.engine.store;
        for _ in 0..COUNT_TRIES {
            let (before, entry) = store.read(|view| read(view, account))?;
            let mut count = Count::of(account, &before);
            loop {
                let (is_done, after) =
                    store.read(|view| Ok((count.go_on(view)?, AccountRow::read(view, account)?)))?;
                if after != before {
                    break; // it changed, so the counts are of two different states
                }
                if is_done {
                    self.compare(account, &before, &entry, &count.counts);
                    return Ok(());
                }
            }
        }
        warn!(account = account.0, "the account changes all the time: its counters are not verified");
        Ok(())
    }

    fn compare(&mut self, account: AccountId, row: &AccountRow, entry: &FeedEntry, counts: &Counts) {
        let mut last = Revision(0);
        let mut highest = RecordId(0);
        let none = Counted::default();
        let known = row.kinds.iter().map(|share| share.kind);
        for kind in known.chain(counts.keys().copied()).collect::<BTreeSet<Kind>>() {
            let counted = counts.get(&kind).unwrap_or(&none);
            let share = row.kind(kind);
            self.compare_kind(account, &share, counted);
            last = last.max(counted.revision).max(share.floor.min(share.state));
            highest = highest.max(counted.id);
        }
        if row.revision != last {
            self.note(
                name(account),
                format!("its revision is {}, the last commit made {}", row.revision.0, last.0),
            );
        } else if let Some(what) = entry.is_wrong(account, row.revision) {
            self.note(name(account), what);
        }
        if row.next_id <= highest {
            self.note(name(account), format!("its next id is {}, and {} is taken", row.next_id.0, highest.0));
        }
    }

    fn compare_kind(&mut self, account: AccountId, share: &KindRow, counted: &Counted) {
        let place = format!("account {} kind {}", account.0, share.kind.0);
        if share.records != counted.records {
            self.note(&place, format!("it counts {} records, and has {}", share.records, counted.records));
        }
        if share.tombstones != counted.tombstones {
            self.note(
                &place,
                format!("it counts {} tombstones, and has {}", share.tombstones, counted.tombstones),
            );
        }
        // The last commit that touched a kind left its revision on a record or a tombstone, or its tombstones were forgotten,
        // which raised the floor to that revision.
        let last = counted.revision.max(share.floor);
        if share.state != last {
            self.note(
                &place,
                format!("its state is {}, the last commit that touched it made {}", share.state.0, last.0),
            );
        }
    }
}

fn name(account: AccountId) -> String {
    format!("account {}", account.0)
}

/// The row of an account, and the feed row at its position.
fn read(view: &View<'_>, account: AccountId) -> Result<(AccountRow, FeedEntry), Error> {
    let row = AccountRow::read(view, account)?;
    let key = feed_key(row.position);
    let entry = match view.get(FEED, &key)? {
        Some(value) => FeedEntry::Row(decode_feed(&key, value)),
        None => FeedEntry::Missing,
    };
    Ok((row, entry))
}

/// The feed row at the position of an account's last commit.
enum FeedEntry {
    Missing,
    /// `None` when the row is damaged.
    Row(Option<Touched>),
}

impl FeedEntry {
    /// What is wrong with it, if anything. A damaged row is found when the feed is checked.
    fn is_wrong(&self, account: AccountId, revision: Revision) -> Option<String> {
        match self {
            Self::Missing => Some("its last commit is not in the feed".into()),
            Self::Row(Some(touched)) if touched.account != account => {
                Some(format!("the feed has account {} at its position", touched.account.0))
            }
            Self::Row(Some(touched)) if touched.revision != revision => {
                Some(format!("the feed has its revision {}, it is at {}", touched.revision.0, revision.0))
            }
            Self::Row(_) => None,
        }
    }
}

/// A count of an account in progress.
struct Count {
    counts: Counts,
    /// The ranges that are left to count; the next one is the last.
    ranges: Vec<CountRange>,
}

/// The rows of a table whose keys begin with a prefix, from a key on.
struct CountRange {
    table: Table,
    prefix: KeyBuf,
    from: Bound<KeyBuf>,
}

impl CountRange {
    fn new(table: Table, prefix: KeyBuf) -> Self {
        Self { table, from: Bound::Included(prefix.clone()), prefix }
    }
}

impl Count {
    /// Starts counting an account: its records, and the tombstones of the kinds in its row.
    fn of(account: AccountId, row: &AccountRow) -> Self {
        let tombstones = row.kinds.iter().map(|share| tombstone_prefix(account, share.kind));
        let mut ranges: Vec<_> = tombstones.map(|prefix| CountRange::new(HISTORY, prefix)).collect();
        ranges.push(CountRange::new(STATE, account_key(account)));
        Self { counts: Counts::new(), ranges }
    }

    /// Counts as much as one view allows; returns whether the count is complete.
    fn go_on(&mut self, view: &View<'_>) -> Result<bool, Error> {
        let mut left = COUNT_ROWS_MAX;
        while let Some(mut range) = self.ranges.pop() {
            if !self.count_range(view, &mut range, &mut left)? {
                self.ranges.push(range);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn count_range(
        &mut self,
        view: &View<'_>,
        range: &mut CountRange,
        left: &mut usize,
    ) -> Result<bool, Error> {
        let end = after_prefix(&range.prefix);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rows =
            view.range(range.table, range.from.as_ref().map(|key| &key[..]), to, Direction::Ascending)?;
        while let Some((key, value)) = rows.next()? {
            self.count_row(range.table, key, value);
            *left = left.saturating_sub(1);
            if *left == 0 {
                range.from = Bound::Excluded(KeyBuf::from_slice(key));
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts a row. A damaged one is counted, but without a revision.
    fn count_row(&mut self, table: Table, key: &[u8], value: &[u8]) {
        if table == STATE {
            let Some((_, kind, id)) = decode_state_key(key) else { return };
            let counted = self.counts.entry(kind).or_default();
            counted.records += 1;
            counted.id = counted.id.max(id);
            let revision = StateRow::decode(value).map_or(Revision(0), |row| row.revision);
            counted.revision = counted.revision.max(revision);
        } else {
            let Some((_, kind, revision, id, _)) = take_history_key(key) else { return };
            let counted = self.counts.entry(kind).or_default();
            counted.tombstones += 1;
            counted.id = counted.id.max(id);
            counted.revision = counted.revision.max(revision);
        }
    }
}
