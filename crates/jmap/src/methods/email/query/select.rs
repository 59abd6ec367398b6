//! Parts of results (RFC 8620 §5.5), and how a result changed (RFC 8620 §5.6).

use std::{collections::HashSet, mem, sync::Arc};

use restante_core::{RecordId, Revision};
use restante_mail::{email, mailbox};
use restante_records::{Get, Property, QUERY_ROWS_MAX, Value};

use crate::core::{MethodError, args::INT_MAX};

use super::{
    plan::Walk,
    result::{Changed, Selection, changed, run},
    test::thread,
    views::{Cell, View},
};

/// A walk over at most this many index entries is always allowed, even if there is a cached result: entries of emails, or of threads,
/// whose emails are read.
const NEAR: u64 = 128;
const NEAR_COLLAPSED: u64 = 24;
/// The most emails that a walk over threads reads.
const COLLAPSE_READS_MAX: usize = 2_048;
/// How many entries of an index are walked over in the time that it takes to put one email into a result: when it must be read, and
/// when it comes from the index.
const STEPS_OF_A_READ: u64 = 8;
const STEPS_OF_AN_ENTRY: u64 = 2;

/// How often a response is built again because of a commit between its reads.
const ATTEMPTS_MAX: usize = 8;

/// Records read this many at once without another thread.
const COLLAPSE_READ: usize = 32;

/// The most emails and threads for which changes of a result are calculated.
const CHANGES_MAX: usize = 16_384;

/// A result of more emails is searched on the blocking pool.
const ENTRIES_INLINE_MAX: usize = 20_000;

/// The requested part of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: Start,
    pub(crate) limit: usize,
}

/// Where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// From the beginning; a negative position counts from the end.
    Position(i64),
    /// This many positions after an email, or before it if negative; `None` for an id that no email has.
    Anchor(Option<RecordId>, i64),
}

/// A part of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// The state of emails for which this result is valid.
    pub(crate) state: Revision,
    /// Whether it is exactly of that state: when other commits interfere too often, it may include later changes.
    pub(crate) is_exact: bool,
    /// The revision of the search index, if it lacks emails that may therefore be missing here.
    pub(crate) partial_at: Option<Revision>,
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

/// What the client knows, and the most changes that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SinceResult {
    pub(crate) state: Revision,
    pub(crate) max: Option<u64>,
    pub(crate) up_to: Option<RecordId>,
    pub(crate) with_total: bool,
}

/// The result of a walk over an index.
enum Walked {
    /// Emails, and the state that was valid during all reads.
    Read(Vec<u64>, Revision),
    /// Emails changed in the meantime.
    Changed,
    /// The beginning of the index has too few threads.
    TooFar,
}

impl Selection<'_> {
    /// Reads a part of the result.
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
            let part = self.part(&cell, window, with_total).await;
            // Everything was read between two reads of the state: if they are equal, the result is of that state.
            let is_exact = self.state().await? == state;
            if is_exact || attempt == ATTEMPTS_MAX {
                let Part { partial_at, position, ids, total } = part?;
                return Ok(Selected { state, is_exact, partial_at, position, ids, total });
            }
        }
        Err(MethodError::ServerUnavailable)
    }

    /// A part of a cached result.
    async fn part(&self, cell: &Arc<Cell>, window: Window, with_total: bool) -> Result<Part, MethodError> {
        let position = match window.start {
            Start::Position(position) => from_start_or_end(position, look(cell, View::len)?),
            Start::Anchor(id, offset) => {
                let found = self.indexes_of(cell, id.iter().map(|id| id.0).collect()).await?;
                let (index, _) = found.first().ok_or(MethodError::AnchorNotFound)?;
                behind(*index, offset)
            }
        };
        look(cell, |view| {
            let from = view.from(usize::try_from(position).unwrap_or(usize::MAX));
            let ids = from.take(window.limit).map(|entry| entry.id).collect();
            let total = with_total.then_some(view.len() as u64);
            Part { partial_at: view.partial_at, position, ids, total }
        })
    }

    /// Whether the current keys of an email determine its position in a result.
    fn has_stable_keys(&self) -> bool {
        !self.sort.is_mutable()
    }

    /// Whether a walk over this many entries costs less than a cached result. Walks to distant positions are allowed until all walks
    /// together have cost about as much as building a result.
    async fn is_walk_cheaper(&self, walk: &Walk, reach: u64) -> Result<bool, MethodError> {
        let (near, cost) = if self.collapse { (NEAR_COLLAPSED, STEPS_OF_A_READ) } else { (NEAR, 1) };
        if reach <= near {
            return Ok(true);
        }
        if self.is_kept() {
            return Ok(false);
        }
        let emails = match walk.mailbox {
            Some(mailbox) => self.counted(mailbox, mailbox::TOTAL).await?,
            None => self.emails_of_account().await?,
        };
        let reach = reach.min(emails);
        if reach <= near {
            return Ok(true);
        }
        let walked = self.add_walk(reach.saturating_mul(cost));
        let steps = if self.is_made_of_index(walk) { STEPS_OF_AN_ENTRY } else { STEPS_OF_A_READ };
        Ok(walked < emails.saturating_mul(steps))
    }

    /// The window, if an index has it and a walk is the cheapest way.
    async fn by_walk(&self, window: Window, with_total: bool) -> Result<Option<Selected>, MethodError> {
        let Some((walk, is_ascending)) = self.exact_walk() else { return Ok(None) };
        let Start::Position(position) = window.start else { return Ok(None) };
        let Ok(position) = u64::try_from(position) else { return Ok(None) };
        if with_total && walk.whole_mailbox().is_none() {
            return Ok(None);
        }
        if !self.is_walk_cheaper(walk, position.saturating_add(window.limit as u64)).await? {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS_MAX {
            let read = if self.collapse {
                self.walk_collapsed(walk, is_ascending, position, window.limit).await?
            } else {
                self.walk_plain(walk, is_ascending, position, window.limit).await?
            };
            let (ids, state) = match read {
                Walked::Read(ids, state) => (ids, state),
                Walked::Changed => continue,
                Walked::TooFar => break,
            };
            let total = match walk.whole_mailbox().filter(|_| with_total) {
                None => None,
                Some(mailbox) => {
                    let counter = if self.collapse { mailbox::THREADS } else { mailbox::TOTAL };
                    let total = self.counted(mailbox, counter).await?;
                    if self.state().await? != state {
                        continue;
                    }
                    Some(total)
                }
            };
            self.count_walk();
            let (is_exact, partial_at) = (true, None);
            return Ok(Some(Selected { state, is_exact, partial_at, position, ids, total }));
        }
        Ok(None)
    }

    /// The emails starting at a position.
    async fn walk_plain(
        &self,
        walk: &Walk,
        is_ascending: bool,
        position: u64,
        limit: usize,
    ) -> Result<Walked, MethodError> {
        if limit == 0 {
            return Ok(Walked::Read(Vec::new(), self.state().await?));
        }
        let mut query = walk.query(is_ascending).skip(position);
        let mut state = None;
        let mut ids = Vec::new();
        loop {
            query = query.limit((limit - ids.len()).min(QUERY_ROWS_MAX));
            let page = self.records().query(self.account, &query).await?;
            if *state.get_or_insert(page.state) != page.state {
                return Ok(Walked::Changed);
            }
            ids.extend(page.ids.iter().map(|id| id.0));
            match page.next.filter(|_| ids.len() < limit) {
                Some(next) => query = query.skip(0).after(next),
                None => return Ok(Walked::Read(ids, page.state)),
            }
        }
    }

    /// The first email of each thread, starting at a position.
    async fn walk_collapsed(
        &self,
        walk: &Walk,
        is_ascending: bool,
        position: u64,
        limit: usize,
    ) -> Result<Walked, MethodError> {
        let reach = usize::try_from(position).unwrap_or(usize::MAX).saturating_add(limit);
        let state = self.state().await?;
        let mut threads = HashSet::new();
        let mut firsts = Vec::new();
        let mut query = walk.query(is_ascending).limit(COLLAPSE_READ);
        let mut read = 0;
        while firsts.len() < reach {
            let page = self.records().query(self.account, &query).await?;
            if page.state != state {
                return Ok(Walked::Changed);
            }
            if read >= COLLAPSE_READS_MAX {
                return Ok(Walked::TooFar);
            }
            read += page.ids.len();
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
            return Ok(Walked::Changed);
        }
        let ids = firsts.into_iter().take(reach).skip(usize::try_from(position).unwrap_or(usize::MAX));
        Ok(Walked::Read(ids.collect(), state))
    }

    /// The value of a counter of a mailbox; 0 for a mailbox that does not exist.
    async fn counted(&self, id: u64, counter: Property) -> Result<u64, MethodError> {
        let get = Get::small(mailbox::KIND, vec![RecordId(id)]);
        let records = self.records().get(self.account, &get).await?;
        let Some(record) = records.into_iter().flatten().next() else { return Ok(0) };
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
            // As of a query: otherwise the client would get changes that its own result does not expect.
            if self.state().await? == state {
                return changes;
            }
        }
        Err(MethodError::CannotCalculateChanges)
    }

    async fn changes_up_to(&self, state: Revision, since: SinceResult) -> Result<ResultChanges, MethodError> {
        let cell = self.view(state).await?;
        let changed = changed(self.records(), self.account, email::KIND, since.state, CHANGES_MAX).await?;
        let changed = changed.ok_or(MethodError::CannotCalculateChanges)?;
        let changes = if self.depends_on_threads() {
            self.changes_by_thread(&cell, changed, since).await?
        } else {
            self.changes_by_email(&cell, &changed, since).await?
        };
        let count = changes.removed.len() + changes.added.len();
        if since.max.is_some_and(|max| count as u64 > max) {
            return Err(MethodError::TooManyChanges);
        }
        let total = if since.with_total { Some(look(&cell, |view| view.len() as u64)?) } else { None };
        Ok(ResultChanges { state, total, ..changes })
    }

    /// The changes of a result in which each email is included or not on its own, without its thread.
    async fn changes_by_email(
        &self,
        cell: &Arc<Cell>,
        changed: &Changed,
        since: SinceResult,
    ) -> Result<ResultChanges, MethodError> {
        // X2: an email whose position can change must be removed and added again, wherever it was. Otherwise, an email that stays has
        // not moved.
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
            // X2: the client has nothing after this email.
            if let Some((last, _)) = self.indexes_of(cell, [up_to.0].into()).await?.first() {
                added.retain(|(index, _)| index <= last);
            }
        }
        Ok(ResultChanges { removed, added, ..ResultChanges::default() })
    }

    /// The positions of emails in the result, ascending.
    async fn indexes_of(
        &self,
        cell: &Arc<Cell>,
        ids: HashSet<u64>,
    ) -> Result<Vec<(usize, u64)>, MethodError> {
        if !self.has_stable_keys() {
            return look_through(cell, move |view| view.indexes_of(&ids)).await;
        }
        let ids: Vec<RecordId> = ids.into_iter().map(RecordId).collect();
        let entries = self.entries_of(&ids).await?;
        let mut found = look(cell, |view| {
            let indexed = entries.iter().filter_map(|entry| Some((view.index_of(entry)?, entry.id)));
            indexed.collect::<Vec<_>>()
        })?;
        found.sort_unstable();
        Ok(found)
    }

    /// X4: a change of one email may move others of its thread, so all of them are reported as removed, and those that are in the
    /// result now as added.
    async fn changes_by_thread(
        &self,
        cell: &Arc<Cell>,
        mut changed: Changed,
        since: SinceResult,
    ) -> Result<ResultChanges, MethodError> {
        let created = mem::take(&mut changed.created);
        let affected = self.affected(changed, since.state).await?;
        let affected = affected.ok_or(MethodError::CannotCalculateChanges)?;
        let removed = affected.iter().map(|id| id.0).filter(|id| !created.contains(id)).collect();
        let added = self.indexes_of(cell, affected.iter().map(|id| id.0).collect()).await?;
        Ok(ResultChanges { removed, added, ..ResultChanges::default() })
    }
}

/// Reads from a result.
fn look<T>(cell: &Cell, look: impl FnOnce(&View) -> T) -> Result<T, MethodError> {
    cell.view.lock().as_ref().map(look).ok_or(MethodError::ServerUnavailable)
}

/// Reads from a result in time linear in its length.
async fn look_through<T: Send + 'static>(
    cell: &Arc<Cell>,
    through: impl FnOnce(&View) -> T + Send + 'static,
) -> Result<T, MethodError> {
    let is_long = look(cell, View::len)? > ENTRIES_INLINE_MAX;
    let cell = cell.clone();
    run(is_long, move || look(&cell, through)).await?
}

/// A part of a view.
struct Part {
    partial_at: Option<Revision>,
    position: u64,
    ids: Vec<u64>,
    total: Option<u64>,
}

/// L2: a negative position counts from the end, but not beyond the beginning.
fn from_start_or_end(position: i64, len: usize) -> u64 {
    match u64::try_from(position) {
        Ok(position) => position,
        Err(_) => (len as u64).saturating_sub(position.unsigned_abs()),
    }
}

/// L2: the offset of an anchor is clamped to the beginning and to the greatest number that a position can be.
fn behind(index: usize, offset: i64) -> u64 {
    (index as u64).saturating_add_signed(offset).min(INT_MAX)
}
