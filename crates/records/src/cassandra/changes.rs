//! What changed: the rows of an account's history.

use futures_util::future::try_join_all;

use super::{
    Shared,
    view::{Range, View, ViewError, Views},
};
use crate::{
    AccountId, Changes, ChangesSince, Error, FeedRequest,
    map::changes::{Asked, History},
    rows::AccountRow,
};

impl Shared {
    /// [`crate::Records::changes`].
    pub(super) async fn changes(
        &self,
        account: AccountId,
        question: &ChangesSince,
    ) -> Result<Changes, Error> {
        self.history(&Asked::by_client(&self.schema, account, question)?).await
    }

    /// [`crate::Feed::follow`].
    pub(super) async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        self.history(&Asked::by_follower(&self.schema, account, request)?).await
    }

    async fn history(&self, asked: &Asked) -> Result<Changes, Error> {
        let views = self.views(asked.account);
        if let Some(changes) = self.history_by_known_head(asked, &views).await? {
            return Ok(changes);
        }
        loop {
            let view = views.begin().await?;
            let head = view.head.row.clone().after_restores(self.restores());
            asked.check(&head)?;
            let answer = page(asked, &view, &head).await;
            if let Some(changes) = views.accept(&view, answer).await? {
                return Ok(changes);
            }
        }
    }

    /// Answers from the last head that this server has read, without reading it again; `None` when the account has changed since.
    async fn history_by_known_head(
        &self,
        asked: &Asked,
        views: &Views<'_>,
    ) -> Result<Option<Changes>, Error> {
        let Some(view) = views.of_known_head() else { return Ok(None) };
        let head = view.head.row.clone().after_restores(self.restores());
        if asked.check(&head).is_err() {
            return Ok(None); // the known head may be outdated
        }
        let answer = page(asked, &view, &head).await;
        views.accept(&view, answer).await
    }
}

/// A page of changes.
async fn page(asked: &Asked, view: &View<'_>, head: &AccountRow) -> Result<Changes, ViewError> {
    let (from, to) = asked.ranges(head);
    if from.is_empty() {
        return Ok(Changes { revision: head.revision, ..Changes::default() });
    }
    for rows_max in asked.rows_max() {
        let slices = from.iter().zip(&to);
        let slices = slices.map(|(from, to)| view.slice(Range { from, to, limit: rows_max, is_down: false }));
        let mut rows = Vec::new();
        for (key, value) in try_join_all(slices).await?.into_iter().flatten() {
            rows.push(History::of(asked.account, &key, &value)?);
        }
        rows.sort_unstable_by_key(|row| (row.revision, row.changed));
        let is_cut = rows.len() >= rows_max;
        rows.truncate(rows_max);
        if let Some(page) = asked.cut(&rows, is_cut, head.revision) {
            return Ok(page);
        }
    }
    Err(Error::corrupt("a revision has more changes than a commit may have").into())
}
