//! Queries: slices of an index.

use super::{
    Shared,
    view::{Range, SLICE_ROWS, View, ViewError, behind},
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
            let view = views.begin().await?;
            if !self.has_indexes(&view).await? {
                continue;
            }
            let found = walk(&view, &keys, query.direction, query.skip, Some(query.limit as u64 + 1)).await;
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
            let found = walk(&view, &keys, query.direction, u64::MAX, None).await;
            if let Some(found) = views.accept(&view, found).await? {
                return Ok(Count { entries: found.skipped, state: view.head.row.kind(query.kind).state });
            }
        }
    }

    /// Whether an account has the indexes of this server. One that was begun by an older server gets them.
    async fn has_indexes(&self, view: &View<'_>) -> Result<bool, Error> {
        self.check_epoch(view.head.epoch)?;
        if view.head.epoch < self.epoch {
            self.adapt_account(view.account()).await?;
            return Ok(false);
        }
        Ok(true)
    }
}

/// What a walk has found.
#[derive(Default)]
struct Found {
    skipped: u64,
    keys: Vec<Vec<u8>>,
}

/// Walks through the keys of an index: leaves so many out, and takes so many.
async fn walk(
    view: &View<'_>,
    keys: &Keys,
    direction: Direction,
    skip: u64,
    limit: Option<u64>,
) -> Result<Found, ViewError> {
    let is_down = direction == Direction::Descending;
    let (mut from, mut to) = (keys.from.clone(), keys.to.clone());
    let mut found = Found::default();
    // A range that ends before it begins has nothing; Cassandra refuses none of them.
    while from < to {
        let left = limit.map(|limit| limit.saturating_sub(found.keys.len() as u64));
        let wanted = left.map_or(u64::MAX, |left| (skip - found.skipped).saturating_add(left));
        let rows = usize::try_from(wanted).unwrap_or(SLICE_ROWS).min(SLICE_ROWS);
        if rows == 0 {
            break;
        }
        let page = view.slice(Range { from: &from, to: &to, limit: rows, is_down }).await?;
        let is_last = page.len() < rows;
        for (key, _) in page {
            match is_down {
                true => to.clone_from(&key),
                false => from = behind(&key),
            }
            if found.skipped < skip {
                found.skipped += 1;
            } else {
                found.keys.push(key);
            }
        }
        if is_last {
            break;
        }
    }
    Ok(found)
}
