//! What changed.

use std::{cmp::Reverse, collections::BinaryHeap, ops::Bound};

use restante_lmdb::{
    Direction, Range, View,
    key::{KeyBuf, Pack, after_prefix},
};

use crate::{
    AccountId, Changed, Changes, ChangesSince, Error, FeedRequest, Kind, RecordId, Revision,
    validate::{check_changes, check_since},
};

use super::{
    Engine,
    schema::{
        AccountRow, HISTORY, LiveRow, TombstoneRow, corrupt, decode_history_key, live_prefix,
        tombstone_prefix,
    },
};

/// A page ends with the revision at which this many rows were read for each entry that it may have. Rows without an entry belong
/// to records that were returned as created already; a reader that lags far behind may meet many of them one after the other.
const ROWS_PER_ENTRY_MAX: usize = 16;

impl Engine {
    /// [`crate::Records::changes`].
    pub(super) fn changes(&self, account: AccountId, question: &ChangesSince) -> Result<Changes, Error> {
        check_changes(&self.ledger.schema, question)?;
        let ChangesSince { kind, since, limit } = *question;
        self.store.read(|view| {
            let row = AccountRow::read(view, account)?.after_restores(self.ledger.restores);
            let floor = row.floor_above(kind, since).unwrap_or_default();
            check_since(account, since, row.revision, floor)?;
            let walk = Walk { account, since, limit, with_unknown: false };
            walk.page(view, &row, kind)
        })
    }

    /// [`crate::Feed::follow`].
    pub(super) fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        let FeedRequest { since, began, limit } = *request;
        check_changes(&self.ledger.schema, &ChangesSince { kind: None, since, limit })?;
        self.store.read(|view| {
            let row = AccountRow::read(view, account)?.after_restores(self.ledger.restores);
            let floor = row.floor_above(None, since).filter(|floor| began < *floor).unwrap_or_default();
            check_since(account, since, row.revision, floor)?;
            let walk = Walk { account, since, limit, with_unknown: true };
            walk.page(view, &row, None)
        })
    }
}

/// The part of an account's history that is read.
struct Walk {
    account: AccountId,
    since: Revision,
    limit: usize,
    /// Whether to return the destruction of records that were created after `since`.
    with_unknown: bool,
}

/// A row of the history. Rows are ordered by revision, then kind, then id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    revision: Revision,
    changed: Changed,
    what: What,
}

/// What happened to a record. The revision in a variant is that of its creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Created,
    Updated(Revision),
    Destroyed(Revision),
}

impl Walk {
    /// Reads the history revision by revision until the page has no room for the next one.
    fn page(&self, view: &View<'_>, account: &AccountRow, kind: Option<Kind>) -> Result<Changes, Error> {
        let mut rows = self.rows(view, account, kind)?;
        let mut page = Changes { revision: self.since, ..Changes::default() };
        let rows_max = self.limit.saturating_mul(ROWS_PER_ENTRY_MAX);
        let mut rows_read = 0;
        while let Some(revision) = rows.next_revision() {
            if rows_read >= rows_max {
                page.has_more = true;
                return Ok(page);
            }
            let before = Lengths::of(&page);
            while let Some(row) = rows.next_of(revision)? {
                rows_read += 1;
                self.add(row, &mut page);
            }
            let with = Lengths::of(&page);
            if before.total() > 0 && with.total() > before.total() && with.total() > self.limit {
                before.restore(&mut page);
                page.has_more = true;
                return Ok(page);
            }
            page.revision = revision;
        }
        page.revision = account.revision;
        Ok(page)
    }

    /// Adds a row to the page, unless the caller doesn't need it.
    fn add(&self, row: Row, page: &mut Changes) {
        match row.what {
            What::Created => page.created.push(row.changed),
            What::Updated(created) if created <= self.since => page.updated.push(row.changed),
            What::Destroyed(created) if created <= self.since || self.with_unknown => {
                page.destroyed.push(row.changed)
            }
            What::Updated(_) | What::Destroyed(_) => {}
        }
    }

    /// The rows of the kinds that changed after `since`.
    fn rows<'v>(
        &self,
        view: &'v View<'_>,
        account: &AccountRow,
        kind: Option<Kind>,
    ) -> Result<Rows<'v>, Error> {
        let mut rows = Rows::default();
        for share in &account.kinds {
            let is_asked_for = kind.is_none_or(|kind| kind == share.kind);
            if !is_asked_for || share.state <= self.since {
                continue;
            }
            rows.add(Source::open(
                view,
                share.kind,
                false,
                live_prefix(self.account, share.kind),
                self.since,
            )?)?;
            if share.tombstones > 0 {
                rows.add(Source::open(
                    view,
                    share.kind,
                    true,
                    tombstone_prefix(self.account, share.kind),
                    self.since,
                )?)?;
            }
        }
        Ok(rows)
    }
}

/// The rows of one kind: either of existing records or of destroyed ones.
struct Source<'v> {
    rows: Range<'v>,
    kind: Kind,
    is_gone: bool,
    prefix_len: usize,
}

impl<'v> Source<'v> {
    fn open(
        view: &'v View<'_>,
        kind: Kind,
        is_gone: bool,
        prefix: KeyBuf,
        since: Revision,
    ) -> Result<Self, Error> {
        let prefix_len = prefix.len();
        let end = after_prefix(&prefix);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut from = prefix;
        from.put_number(since.0 + 1);
        let rows = view.range(HISTORY, Bound::Included(&from), to, Direction::Ascending)?;
        Ok(Self { rows, kind, is_gone, prefix_len })
    }

    fn next(&mut self) -> Result<Option<Row>, Error> {
        let Some((key, value)) = self.rows.next()? else { return Ok(None) };
        let row = decode(key, value, self.kind, self.is_gone, self.prefix_len);
        row.map(Some).ok_or_else(|| corrupt(HISTORY, key))
    }
}

fn decode(key: &[u8], value: &[u8], kind: Kind, is_gone: bool, prefix_len: usize) -> Option<Row> {
    let (revision, id): (Revision, RecordId) = decode_history_key(key, prefix_len)?;
    let what = if is_gone {
        What::Destroyed(TombstoneRow::decode(value)?.created)
    } else {
        match LiveRow::decode(value)? {
            LiveRow::Creation => What::Created,
            LiveRow::Change { created } => What::Updated(created),
        }
    };
    Some(Row { revision, changed: Changed { kind, id }, what })
}

/// Rows of several sources, merged. The heap has the next row of each source, with the index of the source.
#[derive(Default)]
struct Rows<'v> {
    sources: Vec<Source<'v>>,
    heads: BinaryHeap<Reverse<(Row, usize)>>,
}

impl<'v> Rows<'v> {
    fn add(&mut self, mut source: Source<'v>) -> Result<(), Error> {
        if let Some(row) = source.next()? {
            self.heads.push(Reverse((row, self.sources.len())));
            self.sources.push(source);
        }
        Ok(())
    }

    /// The revision of the next row.
    fn next_revision(&self) -> Option<Revision> {
        self.heads.peek().map(|Reverse((row, _))| row.revision)
    }

    /// The next row of this revision; `None` when the next row belongs to another one.
    fn next_of(&mut self, revision: Revision) -> Result<Option<Row>, Error> {
        if self.next_revision() != Some(revision) {
            return Ok(None);
        }
        let Some(Reverse((row, place))) = self.heads.pop() else { return Ok(None) };
        if let Some(source) = self.sources.get_mut(place)
            && let Some(next) = source.next()?
        {
            self.heads.push(Reverse((next, place)));
        }
        Ok(Some(row))
    }
}

/// How long the lists of a page are.
#[derive(Clone, Copy)]
struct Lengths {
    created: usize,
    updated: usize,
    destroyed: usize,
}

impl Lengths {
    fn of(page: &Changes) -> Self {
        Self { created: page.created.len(), updated: page.updated.len(), destroyed: page.destroyed.len() }
    }

    fn total(self) -> usize {
        self.created + self.updated + self.destroyed
    }

    /// Removes from a page what was added since.
    fn restore(self, page: &mut Changes) {
        page.created.truncate(self.created);
        page.updated.truncate(self.updated);
        page.destroyed.truncate(self.destroyed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{ACCOUNT, EMAIL, create, destroy, email, engine, make, update};
    use super::*;

    fn since(since: u64, limit: usize) -> ChangesSince {
        ChangesSince { kind: Some(EMAIL), since: Revision(since), limit }
    }

    #[tokio::test]
    async fn a_page_ends_at_a_revision_before_it_is_too_full() {
        let (_folder, engine) = engine();
        make(&engine, [create(email(1, 1)), create(email(1, 2))]).await;
        make(&engine, [create(email(1, 3)), create(email(1, 4))]).await;
        let first = engine.changes(ACCOUNT, &since(0, 3)).unwrap();
        assert_eq!((first.created.len(), first.revision, first.has_more), (2, Revision(1), true));
        let whole = engine.changes(ACCOUNT, &since(1, 1)).unwrap();
        assert_eq!((whole.created.len(), whole.revision, whole.has_more), (2, Revision(2), false));
    }

    #[tokio::test]
    async fn rows_that_are_no_news_end_a_page_early_and_never_hold_it_up() {
        let (_folder, engine) = engine();
        let ids = make(&engine, [create(email(1, 1))]).await;
        let count = 3 * ROWS_PER_ENTRY_MAX as u64;
        for n in 0..count {
            let gone = make(&engine, [create(email(1, n))]).await;
            make(&engine, [destroy(gone[0])]).await; // created and destroyed again: not returned to a caller that saw neither
        }
        make(&engine, [update(ids[0], email(2, 1))]).await;
        let mut seen = Revision(1);
        let mut pages = Vec::new();
        loop {
            let page = engine.changes(ACCOUNT, &since(seen.0, 1)).unwrap();
            seen = page.revision;
            pages.push(page);
            if !pages[pages.len() - 1].has_more {
                break;
            }
            assert!(pages.len() < 10, "no page is without an end");
        }
        assert_eq!(seen, Revision(2 + 2 * count));
        assert!(pages.len() > 1, "it would have read everything in one page");
        let updated: Vec<RecordId> =
            pages.iter().flat_map(|page| &page.updated).map(|changed| changed.id).collect();
        assert_eq!(updated, ids);
        let destroyed: usize = pages.iter().map(|page| page.destroyed.len()).sum();
        assert!(
            destroyed < pages.len(),
            "only what was created before a page is returned as destroyed in it"
        );
    }
}
