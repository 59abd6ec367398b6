//! Compares two stores.

use std::collections::{BTreeMap, VecDeque};

use super::{
    AccountHead, HeadPair, HeadPairs, Heads, KindHead, Moving, Row, RowKey, TRANSFER_ROWS_MAX,
    copy::next_accounts, count_rows, describe,
};
use crate::{AccountId, Error, Kind, Position, Report};

/// Compares everything that [`super::copy`] copies; reports what differs. [`Report::records`] is the number of records and
/// tombstones that both have. What follows from the records, such as indexes, is not compared: [`crate::Upkeep::check`] verifies
/// it. A damaged record or tombstone is reported, and the others are compared.
///
/// `progress` is called with the number of compared rows of `a`, and their total.
///
/// # Errors
/// Those of both stores; differences are not errors.
pub async fn compare(
    a: &Moving,
    b: &Moving,
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Report, Error> {
    let mut comparison =
        Comparison { report: Report::default(), done: 0, total: count_rows(a).await?, progress };
    comparison.states(a, b).await?;
    let mut pairs = HeadPairs::of(a, b).await?;
    while let Some(pair) = pairs.next().await? {
        match pair {
            HeadPair::Both(left, right) => comparison.accounts(a, b, &left, &right).await?,
            HeadPair::Left(head) => {
                comparison.done += head.rows();
                comparison.report.note(account(head.account), "only in the first");
            }
            HeadPair::Right(head) => comparison.report.note(account(head.account), "only in the second"),
        }
    }
    comparison.followers(a, b).await?;
    Ok(comparison.report)
}

struct Comparison<'p> {
    report: Report,
    done: u64,
    total: u64,
    progress: &'p (dyn Fn(u64, u64) + Send + Sync),
}

fn account(account: AccountId) -> String {
    format!("account {}", account.0)
}

impl Comparison<'_> {
    fn note(&mut self, place: &str, what: &str, left: impl std::fmt::Debug, right: impl std::fmt::Debug) {
        self.report.note(place, format!("its {what} is {left:?} in the first and {right:?} in the second"));
    }

    async fn states(&mut self, a: &Moving, b: &Moving) -> Result<(), Error> {
        let (left, right) = (a.transfer.state().await?, b.transfer.state().await?);
        if left.identity != right.identity {
            self.report.note("the stores", "they have different identities: one is no copy of the other");
        }
        if left.restores != right.restores {
            self.note("the store", "number of restores", left.restores, right.restores);
        }
        for (state, which) in [(left, "the first store"), (right, "the second store")] {
            if state.is_incomplete {
                self.report.note(which, "it is an incomplete copy");
            }
        }
        Ok(())
    }

    async fn accounts(
        &mut self,
        a: &Moving,
        b: &Moving,
        left: &AccountHead,
        right: &AccountHead,
    ) -> Result<(), Error> {
        self.heads(left, right);
        let mut lefts =
            Rows { store: a, account: left.account, page: VecDeque::new(), after: None, is_last: false };
        let mut rights =
            Rows { store: b, account: left.account, page: VecDeque::new(), after: None, is_last: false };
        let (mut next, mut other) = (lefts.next().await?, rights.next().await?);
        loop {
            let order = match (&next, &other) {
                (None, None) => return Ok(()),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(one), Some(two)) => one.key().cmp(&two.key()),
            };
            if let (Some(one), Some(two), true) = (&next, &other, order.is_eq()) {
                self.rows(left.account, one, two);
            }
            if let (Some(one), true) = (&next, order.is_lt()) {
                self.report.note(describe(left.account, one.key()), "only in the first");
            }
            if let (Some(two), true) = (&other, order.is_gt()) {
                self.report.note(describe(left.account, two.key()), "only in the second");
            }
            if order.is_le() {
                self.damage(left.account, next.as_ref(), "first");
                next = lefts.next().await?;
                self.done += 1;
                if self.done.is_multiple_of(TRANSFER_ROWS_MAX as u64) {
                    (self.progress)(self.done, self.total);
                }
            }
            if order.is_ge() {
                self.damage(left.account, other.as_ref(), "second");
                other = rights.next().await?;
            }
        }
    }

    /// Notes a row that can't be read. The comparison goes on behind it.
    fn damage(&mut self, of: AccountId, row: Option<&Row>, store: &str) {
        if let Some(Row::Damaged(key, damage)) = row {
            self.report.note(describe(of, *key), format!("it can't be read in the {store}: {}", damage.0));
        }
    }

    fn heads(&mut self, left: &AccountHead, right: &AccountHead) {
        if left == right {
            return;
        }
        let place = account(left.account);
        if left.revision != right.revision {
            self.note(&place, "revision", left.revision.0, right.revision.0);
        }
        if left.next_id != right.next_id {
            self.note(&place, "next id", left.next_id.0, right.next_id.0);
        }
        if left.position != right.position {
            self.note(&place, "position in the feed", left.position.0, right.position.0);
        }
        if left.committed_at != right.committed_at {
            self.note(&place, "time of the last commit", left.committed_at, right.committed_at);
        }
        if left.restores != right.restores {
            self.note(&place, "number of restores", left.restores, right.restores);
        }
        if left.is_erasing != right.is_erasing {
            self.note(&place, "erasing", left.is_erasing, right.is_erasing);
        }
        if left.gaps != right.gaps {
            self.note(&place, "list of revisions that restores left out", &left.gaps, &right.gaps);
        }
        let mut kinds: BTreeMap<Kind, (KindHead, KindHead)> = BTreeMap::new();
        for kind in &left.kinds {
            kinds.entry(kind.kind).or_default().0 = *kind;
        }
        for kind in &right.kinds {
            kinds.entry(kind.kind).or_default().1 = *kind;
        }
        for (kind, (left, right)) in kinds {
            self.kinds(&format!("{place}, kind {}", kind.0), &left, &right);
        }
    }

    fn kinds(&mut self, place: &str, left: &KindHead, right: &KindHead) {
        if left.state != right.state {
            self.note(place, "state", left.state.0, right.state.0);
        }
        if left.floor != right.floor {
            self.note(place, "floor", left.floor.0, right.floor.0);
        }
        if left.records != right.records {
            self.note(place, "number of records", left.records, right.records);
        }
        if left.tombstones != right.tombstones {
            self.note(place, "number of tombstones", left.tombstones, right.tombstones);
        }
    }

    fn rows(&mut self, of: AccountId, left: &Row, right: &Row) {
        self.report.records += 1;
        if left == right {
            return;
        }
        let place = describe(of, left.key());
        match (left, right) {
            (Row::Record(left), Row::Record(right)) => {
                if left.revision != right.revision {
                    self.note(&place, "revision", left.revision.0, right.revision.0);
                }
                if left.created != right.created {
                    self.note(&place, "revision of creation", left.created.0, right.created.0);
                }
                if left.properties != right.properties {
                    self.report.note(&*place, "its properties differ");
                }
                if left.body.bytes != right.body.bytes {
                    self.report.note(&*place, "its body differs");
                }
                if left.body.blobs != right.body.blobs {
                    self.report.note(&*place, "the blobs that it refers to differ");
                }
            }
            (Row::Tombstone(left), Row::Tombstone(right)) => {
                if left.created != right.created {
                    self.note(&place, "revision of creation", left.created.0, right.created.0);
                }
                if left.destroyed_seconds != right.destroyed_seconds {
                    self.note(&place, "time", left.destroyed_seconds, right.destroyed_seconds);
                }
            }
            (Row::Damaged(..), _) | (_, Row::Damaged(..)) => {} // noted as damage
            _ => self.report.note(place, "it is a record in one and destroyed in the other"),
        }
    }

    async fn followers(&mut self, a: &Moving, b: &Moving) -> Result<(), Error> {
        let mut all: BTreeMap<String, (Option<Position>, Option<Position>)> = BTreeMap::new();
        for (name, position) in a.opened.feed.followers().await? {
            all.entry(name).or_default().0 = Some(position);
        }
        for (name, position) in b.opened.feed.followers().await? {
            all.entry(name).or_default().1 = Some(position);
        }
        for (name, positions) in all {
            let place = format!("follower {name:?}");
            match positions {
                (Some(left), Some(right)) if left != right => self.note(&place, "position", left.0, right.0),
                (Some(_), None) => self.report.note(&*place, "only in the first"),
                (None, Some(_)) => self.report.note(&*place, "only in the second"),
                _ => {}
            }
            self.checkpoints(a, b, &name).await?;
        }
        Ok(())
    }

    async fn checkpoints(&mut self, a: &Moving, b: &Moving, name: &str) -> Result<(), Error> {
        let mut heads = Heads::of(a);
        loop {
            let accounts = next_accounts(&mut heads).await?;
            if accounts.is_empty() {
                return Ok(());
            }
            let left = a.opened.feed.checkpoint(name, &accounts).await?.accounts;
            let right = b.opened.feed.checkpoint(name, &accounts).await?.accounts;
            for ((account, left), (_, right)) in left.into_iter().zip(right) {
                if left != right {
                    let place = format!("follower {name:?}, account {}", account.0);
                    self.note(&place, "revision", left.0, right.0);
                }
            }
        }
    }
}

/// Walks over the rows of an account.
struct Rows<'m> {
    store: &'m Moving,
    account: AccountId,
    page: VecDeque<Row>,
    after: Option<RowKey>,
    is_last: bool,
}

impl Rows<'_> {
    async fn next(&mut self) -> Result<Option<Row>, Error> {
        if self.page.is_empty() && !self.is_last {
            let page = self.store.transfer.rows(self.account, self.after, TRANSFER_ROWS_MAX).await?;
            self.is_last = page.is_empty();
            self.after = page.last().map(Row::key);
            self.page = page.into();
        }
        Ok(self.page.pop_front())
    }
}
