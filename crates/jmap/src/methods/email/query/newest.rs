//! The usual search: the newest emails that contain some words. The search index returns its newest hits, a page at a time, until
//! enough of them pass the rest of the filter, so a common word costs no more than a rare one.

use std::collections::HashSet;

use restante_core::{RecordId, Revision};
use restante_search::{self as search, Hit, Order};

use crate::{core::MethodError, methods::email::document};

use super::{
    plan::Candidates,
    result::{Evaluated, Selection},
    select::{Selected, Start, Window},
    sort::Keys,
    text::{self, IndexWait},
};

/// Windows that end at a later position are read from a cached result.
const REACH_MAX: u64 = 1_024;

/// The most hits that are examined for one request. When too few of them pass the rest of the filter, the mailbox or keyword that it
/// names has few emails, and all hits are intersected with these.
const HITS_MAX: usize = 2_048;

/// How many more hits than needed are requested at first: some may not pass.
const SPARE: usize = 12;

/// Each page of hits is this many times as large as the one before.
const GROWTH: usize = 4;

impl Selection<'_> {
    /// The window, if the query is for the newest emails that contain some words, and enough of them are among the newest hits.
    pub(crate) async fn by_search(
        &self,
        window: Window,
        with_total: bool,
    ) -> Result<Option<Selected>, MethodError> {
        let is_newest_first = self.sort.by_received_alone() == Some(false);
        let Start::Position(position) = window.start else { return Ok(None) };
        let Ok(position) = u64::try_from(position) else { return Ok(None) };
        let reach = position.saturating_add(window.limit as u64);
        if !is_newest_first || with_total || reach > REACH_MAX || self.can_calculate_changes() {
            return Ok(None);
        }
        let Some(index) = self.context.search() else { return Ok(None) };
        let Some((rest, texts)) = self.without_texts()? else { return Ok(None) };
        if rest.candidates == Candidates::Nobody {
            return Ok(None);
        }
        // The response may include later commits: no changes are calculated from the state of a search.
        let state = self.state().await?;
        let mut newest = Newest {
            rest: &rest,
            texts,
            index_wait: &self.index_wait,
            waiting: Vec::new(),
            threads: HashSet::new(),
            found: Vec::new(),
            reach: usize::try_from(reach).unwrap_or(usize::MAX),
            partial_at: None,
        };
        if !newest.find(index).await? {
            return Ok(None);
        }
        self.count_search();
        let skipped = usize::try_from(position).unwrap_or(usize::MAX);
        let ids = newest.found.into_iter().skip(skipped).collect();
        let partial_at = newest.partial_at;
        Ok(Some(Selected { state, is_exact: false, partial_at, position, ids, total: None }))
    }
}

/// A search for the newest emails.
struct Newest<'s, 'c> {
    /// The rest of the filter.
    rest: &'s Selection<'c>,
    texts: search::Filter,
    index_wait: &'s IndexWait,
    /// Emails that the index does not have and that pass the rest of the filter, the newest one last. They are matched when they are due.
    waiting: Vec<Evaluated>,
    /// The threads of the emails found, if threads are collapsed.
    threads: HashSet<u64>,
    /// Newest first.
    found: Vec<u64>,
    /// How many are to be found.
    reach: usize,
    /// The revision of the index, if it lacks more emails than are matched directly.
    partial_at: Option<Revision>,
}

impl Newest<'_, '_> {
    /// Finds the newest emails; returns false when too many hits do not pass the rest.
    async fn find(&mut self, index: &dyn search::Search) -> Result<bool, MethodError> {
        let limit = (self.reach + SPARE).min(HITS_MAX);
        let mut query =
            search::Query { filter: self.texts.clone(), order: Order::NewestFirst, after: None, limit };
        let mut page = index.query(self.rest.account, &query).await?;
        let mut newer = text::newer(self.rest.context, self.rest.account, page.revision).await?;
        if self.index_wait.wait(index, self.rest.account, &newer).await? {
            page = index.query(self.rest.account, &query).await?;
            newer = text::newer(self.rest.context, self.rest.account, page.revision).await?;
        }
        let complete_up_to = page.revision;
        self.partial_at = newer.is_partial.then_some(complete_up_to);
        let newer = self.note_newer(newer.ids).await?;
        let mut looked_at = 0;
        loop {
            let is_indexed = |hit: &&Hit| !newer.contains(&hit.id);
            let hits: Vec<RecordId> = page.hits.iter().filter(is_indexed).map(|hit| hit.id).collect();
            for email in self.rest.passing(&hits).await? {
                self.match_newer(Some(&email)).await?;
                self.take(&email);
            }
            looked_at += page.hits.len();
            let last = page.hits.last().copied().filter(|_| page.has_more);
            let Some(last) = last.filter(|_| self.found.len() < self.reach) else {
                self.match_newer(None).await?;
                return Ok(true);
            };
            if looked_at >= HITS_MAX {
                return Ok(false);
            }
            query.after = Some(last);
            query.limit = (query.limit * GROWTH).min(HITS_MAX - looked_at);
            page = index.query(self.rest.account, &query).await?;
            if page.revision < complete_up_to {
                return Ok(false); // the index was cleared meanwhile
            }
        }
    }

    /// Collects the emails that the index does not have.
    async fn note_newer(&mut self, newer: Vec<RecordId>) -> Result<HashSet<RecordId>, MethodError> {
        self.waiting = self.rest.passing(&newer).await?;
        self.waiting.sort_by_key(age);
        Ok(newer.into_iter().collect())
    }

    /// Matches emails that the index does not have directly: those newer than a hit, or all, until enough are found.
    async fn match_newer(&mut self, than: Option<&Evaluated>) -> Result<(), MethodError> {
        while self.found.len() < self.reach
            && let Some(email) = self.waiting.pop_if(|last| than.is_none_or(|than| age(last) > age(than)))
        {
            let id = RecordId(email.entry.id);
            let document = document::read_to_search(self.rest.context, self.rest.account, id).await?;
            if document.is_some_and(|document| search::matches(&document, &self.texts)) {
                self.take(&email);
            }
        }
        Ok(())
    }

    fn take(&mut self, email: &Evaluated) {
        let is_new = !self.rest.collapse || self.threads.insert(email.thread);
        if is_new && self.found.len() < self.reach {
            self.found.push(email.entry.id);
        }
    }
}

/// The key for ordering emails by when they were received, ascending.
fn age(email: &Evaluated) -> (i64, u64) {
    let received = match email.entry.keys {
        Keys::One(received) => received,
        Keys::Many(_) => 0, // not a sort by receivedAt alone
    };
    (received, email.entry.id)
}
