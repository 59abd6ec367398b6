//! Queries: slices of an index.

use super::{
    Shared,
    view::{Range, Row, SLICE_ROWS, View, ViewError, behind},
};
use crate::{
    AccountId, Count, Direction, Error, Page, Query,
    map::query::{Keys, page},
    validate::{CheckedQuery, check_query},
};

impl Shared {
    /// [`crate::Records::query`].
    pub(super) async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        let CheckedQuery { index, after } = check_query(&self.schema, query)?;
        let keys = Keys::of(query, index, after.as_ref());
        let views = self.views(account);
        loop {
            let walk = Walk::new(&keys, query.direction, query.skip, Some(query.limit as u64 + 1));
            // The usual page is one slice: it is read together with the head.
            let (view, first) = match walk.next() {
                Some(range) => {
                    let (view, rows) = views.begin_with(range).await?;
                    (view, Some(rows))
                }
                None => (views.begin().await?, None),
            };
            if !self.has_indexes(&view).await? {
                continue;
            }
            let found = walk.finish(&view, first).await;
            if let Some(found) = views.accept(&view, found).await? {
                return page(account, query, index, &found.keys, view.head.row.kind(query.kind).state);
            }
        }
    }

    /// [`crate::Records::count`].
    pub(super) async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        let CheckedQuery { index, after } = check_query(&self.schema, query)?;
        let keys = Keys::of(query, index, after.as_ref());
        let views = self.views(account);
        loop {
            let view = views.begin().await?;
            if !self.has_indexes(&view).await? {
                continue;
            }
            let found = Walk::new(&keys, query.direction, u64::MAX, None).finish(&view, None).await;
            if let Some(found) = views.accept(&view, found).await? {
                return Ok(Count { entries: found.skipped, state: view.head.row.kind(query.kind).state });
            }
        }
    }

    /// Whether an account has the indexes of this server. An account that an older server began gets them now.
    async fn has_indexes(&self, view: &View<'_>) -> Result<bool, Error> {
        self.check_epoch(view.head.epoch)?;
        if view.head.epoch < self.epoch {
            self.adapt_account(view.account()).await?;
            return Ok(false);
        }
        Ok(true)
    }
}

/// The result of a walk.
#[derive(Default)]
struct Found {
    skipped: u64,
    keys: Vec<Vec<u8>>,
}

/// A walk over the keys of an index: how many to skip, and how many to return.
struct Walk {
    from: Vec<u8>,
    to: Vec<u8>,
    is_down: bool,
    skip: u64,
    limit: Option<u64>,
    found: Found,
    is_over: bool,
}

impl Walk {
    fn new(keys: &Keys, direction: Direction, skip: u64, limit: Option<u64>) -> Self {
        Self {
            from: keys.from.clone(),
            to: keys.to.clone(),
            is_down: direction == Direction::Descending,
            skip,
            limit,
            found: Found::default(),
            is_over: false,
        }
    }

    /// The most rows that the next slice has.
    fn rows(&self) -> usize {
        let left = self.limit.map(|limit| limit.saturating_sub(self.found.keys.len() as u64));
        let wanted = left.map_or(u64::MAX, |left| (self.skip - self.found.skipped).saturating_add(left));
        usize::try_from(wanted).unwrap_or(SLICE_ROWS).min(SLICE_ROWS)
    }

    /// The next slice, if one is needed. A range that ends before it begins is empty.
    fn next(&self) -> Option<Range<'_>> {
        let limit = self.rows();
        let is_needed = !self.is_over && limit > 0 && self.from < self.to;
        is_needed.then_some(Range { from: &self.from, to: &self.to, limit, is_down: self.is_down })
    }

    /// Adds the rows of the slice that [`Walk::next`] returned.
    fn add(&mut self, page: Vec<Row>) {
        self.is_over = page.len() < self.rows();
        for (key, _) in page {
            match self.is_down {
                true => self.to.clone_from(&key),
                false => self.from = behind(&key),
            }
            if self.found.skipped < self.skip {
                self.found.skipped += 1;
            } else {
                self.found.keys.push(key);
            }
        }
    }

    /// Walks on to the end; `first` has the rows of the first slice.
    async fn finish(
        mut self,
        view: &View<'_>,
        first: Option<Vec<scylla::value::Row>>,
    ) -> Result<Found, ViewError> {
        if let Some(rows) = first {
            self.add(view.rows(&rows, self.rows())?);
        }
        while let Some(range) = self.next() {
            let page = view.slice(range).await?;
            self.add(page);
        }
        Ok(self.found)
    }
}
