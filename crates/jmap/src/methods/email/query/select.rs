//! Parts of results (RFC 8620 §5.5), and how a result changed (RFC 8620 §5.6).

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use restante_core::{ErrorKind, RecordId, Revision};
use restante_mail::{mailbox, thread as thread_kind};
use restante_records::{ChangesSince, Get, QUERY_ROWS_MAX, Value};

use crate::core::MethodError;

use super::{
    plan::Walk,
    result::{ChangedEmails, Selection, changed},
    test::thread,
    views::{Cell, Entry, View},
};

/// An index is walked up to so many entries for one request. A request for what comes later uses a kept result, once some others
/// have asked for it: the first of them walk, since a result costs more to make than one walk.
const WALK_REACH_MAX: u64 = 1_024;
const WALKS_BEFORE_A_VIEW: u32 = 3;

/// How often an answer is made again because of a commit between its reads.
const ATTEMPTS_MAX: usize = 8;

/// So many records are read at once without another thread.
const COLLAPSE_READ: usize = 32;

/// Changes of a result are calculated of so many emails and threads at most.
const CHANGES_MAX: usize = 16_384;

/// A result of more emails is looked through on the blocking pool.
const ENTRIES_INLINE_MAX: usize = 20_000;

/// Which part of a result is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: Start,
    pub(crate) limit: usize,
}

/// Where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// From the beginning on, or when negative from the end back.
    Position(i64),
    /// So far behind an email; `None` is an id that no email has.
    Anchor(Option<RecordId>, i64),
}

/// A part of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// The state of emails of which this is the result.
    pub(crate) state: Revision,
    /// Whether it is exactly that: others committed all the time otherwise, and it may have later changes, too.
    pub(crate) is_exact: bool,
    pub(crate) position: u64,
    pub(crate) ids: Vec<u64>,
    pub(crate) total: Option<u64>,
}

/// How a result changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResultChanges {
    pub(crate) state: Revision,
    pub(crate) total: Option<u64>,
    pub(crate) removed: Vec<u64>,
    /// (index, id), ascending.
    pub(crate) added: Vec<(usize, u64)>,
}

/// What the client knows, and how much it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SinceResult {
    pub(crate) state: Revision,
    pub(crate) max: Option<u64>,
    pub(crate) up_to: Option<RecordId>,
    pub(crate) with_total: bool,
}

impl Selection<'_> {
    /// A part of the result.
    pub(crate) async fn select(&self, window: Window, with_total: bool) -> Result<Selected, MethodError> {
        if let Some(selected) = self.by_walk(window, with_total).await? {
            return Ok(selected);
        }
        if let Some(selected) = self.by_search(window, with_total).await? {
            return Ok(selected);
        }
        for attempt in 1..=ATTEMPTS_MAX {
            let state = self.state().await?;
            let cell = self.view(state).await?;
            let anchor = self.anchor_entry(window).await?;
            let collapse = self.collapse;
            let part =
                look(cell, move |view| part(view, window, anchor.as_ref(), collapse, with_total)).await?;
            // All was read between two looks at the state: equal states mean that it is of that state.
            let is_exact = self.state().await? == state;
            if is_exact || attempt == ATTEMPTS_MAX {
                let Part { position, ids, total } = part?;
                return Ok(Selected { state, is_exact, position, ids, total });
            }
        }
        Err(MethodError::ServerUnavailable)
    }

    /// The entry of the anchor, if it says where the anchor is.
    async fn anchor_entry(&self, window: Window) -> Result<Option<Entry>, MethodError> {
        match window.start {
            Start::Anchor(Some(id), _) if self.has_stable_keys() && !self.collapse => {
                Ok(self.entries_of(&[id]).await?.pop())
            }
            _ => Ok(None),
        }
    }

    /// Whether the keys that an email has now say where it is in a result.
    fn has_stable_keys(&self) -> bool {
        self.is_own() && !self.sort.is_mutable()
    }

    /// The part, if an index has it and it is near the beginning.
    async fn by_walk(&self, window: Window, with_total: bool) -> Result<Option<Selected>, MethodError> {
        let Some((walk, is_ascending)) = self.exact_walk() else { return Ok(None) };
        let Start::Position(position) = window.start else { return Ok(None) };
        let Ok(position) = u64::try_from(position) else { return Ok(None) };
        if with_total && walk.whole_mailbox.is_none() {
            return Ok(None);
        }
        let reach = position.saturating_add(window.limit as u64);
        let is_far = reach > WALK_REACH_MAX;
        if is_far && (self.collapse || self.is_view_worth_it(WALKS_BEFORE_A_VIEW)) {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS_MAX {
            let read = if self.collapse {
                self.walk_collapsed(walk, is_ascending, position, window.limit).await?
            } else {
                self.walk_plain(walk, is_ascending, position, window.limit).await?
            };
            let Some((ids, state)) = read else { continue };
            let total = match walk.whole_mailbox.filter(|_| with_total) {
                None => None,
                Some(mailbox) => {
                    let total = self.counted(mailbox).await?;
                    if self.state().await? != state {
                        continue;
                    }
                    Some(total)
                }
            };
            self.count_walk();
            return Ok(Some(Selected { state, is_exact: true, position, ids, total }));
        }
        Ok(None)
    }

    /// The emails from a position on; `None` when emails changed meanwhile.
    async fn walk_plain(
        &self,
        walk: &Walk,
        is_ascending: bool,
        position: u64,
        limit: usize,
    ) -> Result<Option<(Vec<u64>, Revision)>, MethodError> {
        if limit == 0 {
            return Ok(Some((Vec::new(), self.state().await?)));
        }
        let mut query = walk.query(is_ascending).skip(position);
        let mut state = None;
        let mut ids = Vec::new();
        loop {
            query = query.limit((limit - ids.len()).min(QUERY_ROWS_MAX));
            let page = self.records().query(self.account, &query).await?;
            if *state.get_or_insert(page.state) != page.state {
                return Ok(None);
            }
            ids.extend(page.ids.iter().map(|id| id.0));
            match page.next.filter(|_| ids.len() < limit) {
                Some(next) => query = query.skip(0).after(next),
                None => return Ok(Some((ids, page.state))),
            }
        }
    }

    /// The first email of each thread, from a position on. `None` when emails changed meanwhile, or when too few threads are near
    /// the beginning.
    async fn walk_collapsed(
        &self,
        walk: &Walk,
        is_ascending: bool,
        position: u64,
        limit: usize,
    ) -> Result<Option<(Vec<u64>, Revision)>, MethodError> {
        let reach = usize::try_from(position).unwrap_or(usize::MAX).saturating_add(limit);
        let state = self.state().await?;
        let mut threads = HashSet::new();
        let mut firsts = Vec::new();
        let mut query = walk.query(is_ascending).limit(COLLAPSE_READ);
        let mut read = 0;
        while firsts.len() < reach {
            let page = self.records().query(self.account, &query).await?;
            if page.state != state || read >= 2 * WALK_REACH_MAX {
                return Ok(None);
            }
            read += page.ids.len() as u64;
            for record in self.small(&page.ids).await? {
                if threads.insert(thread(&record.properties)) {
                    firsts.push(record.id.0);
                }
            }
            match page.next {
                Some(next) => query = query.after(next),
                None => break,
            }
        }
        if self.state().await? != state {
            return Ok(None);
        }
        let ids = firsts.into_iter().take(reach).skip(usize::try_from(position).unwrap_or(usize::MAX));
        Ok(Some((ids.collect(), state)))
    }

    /// How many emails, or threads, a mailbox counts; none for a mailbox that is not there.
    async fn counted(&self, id: u64) -> Result<u64, MethodError> {
        let get = Get::small(mailbox::KIND, vec![RecordId(id)]);
        let records = self.records().get(self.account, &get).await?;
        let Some(record) = records.into_iter().flatten().next() else { return Ok(0) };
        let counter = if self.collapse { mailbox::THREADS } else { mailbox::TOTAL };
        Ok(match record.properties.values(counter).next() {
            Some(Value::Number(count)) => *count,
            _ => 0,
        })
    }

    /// How the result changed since a state.
    pub(crate) async fn changes(&self, since: SinceResult) -> Result<ResultChanges, MethodError> {
        if !self.can_calculate_changes() {
            return Err(MethodError::CannotCalculateChanges);
        }
        if since.state > self.records().states(self.account).await?.revision {
            return Err(MethodError::CannotCalculateChanges);
        }
        for _ in 0..ATTEMPTS_MAX {
            let state = self.state().await?;
            let changes = self.changes_up_to(state, since).await;
            // As of a query: otherwise a client would get what it does not expect in its own result.
            if self.state().await? == state {
                return changes;
            }
        }
        Err(MethodError::CannotCalculateChanges)
    }

    async fn changes_up_to(&self, state: Revision, since: SinceResult) -> Result<ResultChanges, MethodError> {
        let cell = self.view(state).await?;
        let changed = changed(self.records(), self.account, since.state, CHANGES_MAX).await?;
        let changed = changed.ok_or(MethodError::CannotCalculateChanges)?;
        let changes = if self.depends_on_threads() {
            self.changes_by_thread(&cell, &changed, since).await?
        } else {
            self.changes_by_email(&cell, &changed, since).await?
        };
        let count = changes.removed.len() + changes.added.len();
        if since.max.is_some_and(|max| count as u64 > max) {
            return Err(MethodError::TooManyChanges);
        }
        let total = if since.with_total { Some(self.total(&cell).await?) } else { None };
        Ok(ResultChanges { state, total, ..changes })
    }

    async fn total(&self, cell: &Arc<Cell>) -> Result<u64, MethodError> {
        let collapse = self.collapse;
        let count = move |view: &View| if collapse { collapsed(view).count() } else { view.len() };
        look(cell.clone(), move |view| count(view) as u64).await
    }

    /// Emails stand in the result or not by themselves.
    async fn changes_by_email(
        &self,
        cell: &Arc<Cell>,
        changed: &ChangedEmails,
        since: SinceResult,
    ) -> Result<ResultChanges, MethodError> {
        // X2: what can change must be removed and added again, wherever it was. Else an email that stays has not moved.
        let is_immutable = !self.is_mutable();
        let is_old = |id: &u64| !changed.created.contains(id);
        let all: Vec<u64> = changed.ids.iter().map(|id| id.0).collect();
        let existing: HashSet<u64> =
            self.small(&changed.ids).await?.iter().map(|record| record.id.0).collect();
        let is_removed = |id: &u64| is_old(id) && !(is_immutable && existing.contains(id));
        let removed = all.iter().copied().filter(is_removed).collect();
        let candidates: HashSet<u64> =
            all.into_iter().filter(|id| !is_immutable || !is_old(id) || !existing.contains(id)).collect();
        let mut added = self.indexes_of(cell, candidates).await?;
        if let Some(up_to) = since.up_to.filter(|_| is_immutable) {
            // X2: the client has nothing behind this email.
            if let Some((last, _)) = self.indexes_of(cell, [up_to.0].into()).await?.first() {
                added.retain(|(index, _)| index <= last);
            }
        }
        Ok(ResultChanges { removed, added, ..ResultChanges::default() })
    }

    /// Where emails are in the result, ascending.
    async fn indexes_of(
        &self,
        cell: &Arc<Cell>,
        ids: HashSet<u64>,
    ) -> Result<Vec<(usize, u64)>, MethodError> {
        if !self.has_stable_keys() {
            return look(cell.clone(), move |view| view.indexes_of(&ids)).await;
        }
        let ids: Vec<RecordId> = ids.into_iter().map(RecordId).collect();
        let entries = self.entries_of(&ids).await?;
        let mut found = look(cell.clone(), move |view| {
            let indexed = entries.iter().filter_map(|entry| Some((view.index_of(entry)?, entry.id)));
            indexed.collect::<Vec<_>>()
        })
        .await?;
        found.sort_unstable();
        Ok(found)
    }

    /// X4: a change of one email may move others of its thread, so that all of them are removed, and those added that stand in
    /// the result now.
    async fn changes_by_thread(
        &self,
        cell: &Arc<Cell>,
        changed: &ChangedEmails,
        since: SinceResult,
    ) -> Result<ResultChanges, MethodError> {
        let mut threads: BTreeSet<u64> = self.changed_threads(since.state).await?;
        threads.extend(self.small(&changed.ids).await?.iter().map(|record| thread(&record.properties)));
        let mut emails: BTreeSet<u64> = changed.ids.iter().map(|id| id.0).collect();
        emails.extend(self.emails_of(threads.iter().copied()).await?.iter().map(|id| id.0));
        let is_old = |id: &u64| !changed.created.contains(id);
        let removed = emails.iter().copied().filter(is_old).collect();
        let collapse = self.collapse;
        let added = look(cell.clone(), move |view| {
            let affected = |(index, entry): (usize, &Entry)| {
                threads.contains(&entry.thread).then_some((index, entry.id))
            };
            if collapse {
                collapsed(view).enumerate().filter_map(affected).collect::<Vec<_>>()
            } else {
                view.from(0).enumerate().filter_map(affected).collect()
            }
        })
        .await?;
        Ok(ResultChanges { removed, added, ..ResultChanges::default() })
    }

    /// The threads that changed since a state and exist.
    async fn changed_threads(&self, since: Revision) -> Result<BTreeSet<u64>, MethodError> {
        const PAGE: usize = 256;
        let mut threads = BTreeSet::new();
        let mut since = since;
        loop {
            let question = ChangesSince { kind: Some(thread_kind::KIND), since, limit: PAGE };
            let page = match self.records().changes(self.account, &question).await {
                Ok(page) => page,
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => {
                    return Err(MethodError::CannotCalculateChanges);
                }
                Err(error) => return Err(error.into()),
            };
            threads.extend(page.created.iter().chain(&page.updated).map(|changed| changed.id.0));
            if threads.len() > CHANGES_MAX {
                return Err(MethodError::CannotCalculateChanges);
            }
            if !page.has_more {
                return Ok(threads);
            }
            since = page.revision;
        }
    }
}

/// Looks through a result.
async fn look<T: Send + 'static>(
    cell: Arc<Cell>,
    look: impl FnOnce(&View) -> T + Send + 'static,
) -> Result<T, MethodError> {
    let run = move |cell: &Cell| cell.view.lock().as_ref().map(look).ok_or(MethodError::ServerUnavailable);
    let is_long = cell.view.lock().as_ref().is_some_and(|view| view.len() > ENTRIES_INLINE_MAX);
    if !is_long {
        return run(&cell);
    }
    let done = tokio::task::spawn_blocking(move || run(&cell)).await;
    done.map_err(|_| MethodError::ServerFail)?
}

/// The first email of each thread (EQ4).
fn collapsed(view: &View) -> impl Iterator<Item = &Entry> {
    let mut threads = HashSet::new();
    view.from(0).filter(move |entry| threads.insert(entry.thread))
}

/// A part of a view.
struct Part {
    position: u64,
    ids: Vec<u64>,
    total: Option<u64>,
}

fn part(
    view: &View,
    window: Window,
    anchor: Option<&Entry>,
    collapse: bool,
    with_total: bool,
) -> Result<Part, MethodError> {
    if !collapse {
        let position = match window.start {
            Start::Position(position) => from_start_or_end(position, view.len()),
            Start::Anchor(id, offset) => {
                let indexes = |id: RecordId| view.indexes_of(&[id.0].into()).first().map(|(index, _)| *index);
                let index = match anchor {
                    Some(entry) => view.index_of(entry),
                    None => id.and_then(indexes),
                };
                behind(index.ok_or(MethodError::AnchorNotFound)?, offset)
            }
        };
        let start = usize::try_from(position).unwrap_or(usize::MAX);
        let ids = view.from(start).take(window.limit).map(|entry| entry.id).collect();
        return Ok(Part { position, ids, total: with_total.then_some(view.len() as u64) });
    }
    let all: Vec<u64> = collapsed(view).map(|entry| entry.id).collect();
    let position = match window.start {
        Start::Position(position) => from_start_or_end(position, all.len()),
        Start::Anchor(id, offset) => {
            let index = all.iter().position(|known| id == Some(RecordId(*known)));
            behind(index.ok_or(MethodError::AnchorNotFound)?, offset)
        }
    };
    let start = usize::try_from(position).unwrap_or(usize::MAX);
    let ids = all.iter().skip(start).take(window.limit).copied().collect();
    Ok(Part { position, ids, total: with_total.then_some(all.len() as u64) })
}

/// L2: a negative position counts from the end, and ends at the beginning.
fn from_start_or_end(position: i64, len: usize) -> u64 {
    match u64::try_from(position) {
        Ok(position) => position,
        Err(_) => (len as u64).saturating_sub(position.unsigned_abs()),
    }
}

/// L2: an offset of an anchor ends at the beginning.
fn behind(index: usize, offset: i64) -> u64 {
    (index as u64).saturating_add_signed(offset)
}
