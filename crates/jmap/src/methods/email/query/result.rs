//! Results: a query prepared for an account, and the emails that pass it, in their order.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
    time::Duration,
};

use restante_core::{AccountId, ErrorKind, RecordId, Revision};
use restante_mail::{Mail, email, message::Shorthand, row::Row, thread as thread_kind};
use restante_records::{ChangesSince, Get, Kind, Properties, Record, Records, Value, get_each};
use restante_search as search;
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;

use crate::{
    core::{Context, MethodError},
    methods::thread::emails_of_each,
};

use super::{
    filter::{Condition, Filter},
    list::Entry,
    plan::{Candidates, Walk, text_and_index},
    sort::{Comparator, Key, Keys, Sort, SortBy},
    test::{Facts, KeywordTest, KeywordTests, Needs, Test, ThreadFacts, received, size, thread},
    text::{self, Apart, Hits, IndexWait},
    views::{Answered, Cell, Update, View, ViewKey},
};

/// Emails are read in chunks of this many; with their rows in smaller ones, since a row may have 64 KiB.
const SMALL_READ: usize = 1_024;
const ROWS_READ: usize = 128;

/// The number of ids of one page of an index when all are read.
const WALK_PAGE: usize = 4_096;

/// A result is updated when at most this many emails have changed, and built again otherwise.
const UPDATES_MAX: usize = 4_096;

/// The most emails that are examined again for an update, including the threads of the changed ones.
const AFFECTED_MAX: usize = 16_384;

/// A result of a text search is built again after this time, even if no email has changed: the index may have been repaired by a rebuild.
const TEXT_AGE_MAX: Duration = Duration::from_secs(60);

/// A result of more emails is sorted on the blocking pool, and so is an update with more changes.
const SORTED_INLINE_MAX: usize = 2_048;
const UPDATES_INLINE_MAX: usize = 128;

/// Other requests may commit while a result is built; it is updated at most this many times, and then used as it is.
const ATTEMPTS_MAX: usize = 4;

/// A query of an account.
pub(crate) struct Selection<'c> {
    pub(crate) context: &'c Context,
    pub(crate) account: AccountId,
    pub(crate) sort: Arc<Sort>,
    test: Test,
    needs: Needs,
    keywords: KeywordTests,
    pub(crate) candidates: Candidates,
    /// Whether threads are collapsed.
    pub(crate) collapse: bool,
    pub(crate) index_wait: IndexWait,
    key: OnceLock<ViewKey>,
}

impl<'c> Selection<'c> {
    /// Prepares a query.
    pub(crate) async fn new(
        context: &'c Context,
        account: AccountId,
        filter: &Filter,
        sort: Sort,
        collapse: bool,
    ) -> Result<Self, MethodError> {
        let keywords = keyword_tests(context.mail(), account, filter, &sort).await?;
        let mut needs = Needs::default();
        let test = Test::new(filter, &keywords, &mut needs);
        for comparator in sort.comparators() {
            match &comparator.by {
                SortBy::SentAt | SortBy::From | SortBy::To | SortBy::Subject => needs.row = true,
                SortBy::InThread(_, name) => {
                    needs.thread_keyword(keywords.get(name).copied().unwrap_or(KeywordTest::Unknown));
                }
                SortBy::ReceivedAt | SortBy::Size | SortBy::HasKeyword(_) => {}
            }
        }
        let candidates = Candidates::of(&test);
        let sort = Arc::new(sort);
        let (index_wait, key) = (IndexWait::default(), OnceLock::new());
        Ok(Self { context, account, sort, test, needs, keywords, candidates, collapse, index_wait, key })
    }

    pub(crate) fn records(&self) -> &dyn Records {
        self.context.records()
    }

    /// Whether an existing email can enter or leave the result, or move in it.
    pub(crate) fn is_mutable(&self) -> bool {
        self.test.is_mutable() || self.sort.is_mutable()
    }

    /// Whether changes can be calculated (X3), and a cached result be updated with them: an index does not know what it found earlier.
    pub(crate) fn can_calculate_changes(&self) -> bool {
        self.needs.texts.is_empty()
    }

    /// Whether the emails of a thread affect each other's position in the result (X4).
    pub(crate) fn depends_on_threads(&self) -> bool {
        self.collapse || !self.needs.thread_keywords.is_empty()
    }

    /// Counts a response from an index.
    pub(crate) fn count_walk(&self) {
        self.context.views.count(Answered::Walked);
    }

    /// The range of an index that is the result in its order, and whether it ascends.
    pub(crate) fn exact_walk(&self) -> Option<(&Walk, bool)> {
        let is_ascending = self.sort.by_received_alone()?;
        match &self.candidates {
            Candidates::Walk(walk) if walk.is_exact => Some((walk, is_ascending)),
            _ => None,
        }
    }

    /// The state of emails.
    pub(crate) async fn state(&self) -> Result<Revision, MethodError> {
        Ok(self.records().states(self.account).await?.of(email::KIND))
    }

    /// The cache key of the result. The test contains the numbers of keywords, so a keyword that becomes known leads to another key.
    fn key(&self) -> ViewKey {
        *self.key.get_or_init(|| {
            let text = format!("{:?} {:?} {:?} {}", self.test, self.needs.texts, self.sort, self.collapse);
            ViewKey { account: self.account, digest: Sha256::digest(text).into() }
        })
    }

    /// Whether the result is cached.
    pub(crate) fn is_kept(&self) -> bool {
        self.context.views.is_kept(&self.key())
    }

    /// Counts a walk over this many entries of an index that a cached result would have avoided; returns the entries of all such walks.
    pub(crate) fn add_walk(&self, entries: u64) -> u64 {
        self.context.views.cell(self.key()).add_walk(entries)
    }

    /// The number of emails of the account.
    pub(crate) async fn emails_of_account(&self) -> Result<u64, MethodError> {
        Ok(self.context.mail().usage(self.account).await?.emails)
    }

    /// The result, complete up to this state or a later one.
    pub(crate) async fn view(&self, state: Revision) -> Result<Arc<Cell>, MethodError> {
        let key = self.key();
        let cell = self.context.views.cell(key);
        if self.is_current(&cell, state) {
            self.context.views.count(Answered::Current);
            return Ok(cell);
        }
        let maker = cell.maker.lock().await;
        if !self.is_current(&cell, state) {
            let answered = self.renew(&cell).await?;
            self.context.views.count(answered);
            self.context.views.weigh(key, &cell);
        }
        drop(maker);
        Ok(cell)
    }

    /// Whether a cached result can be used.
    fn is_current(&self, cell: &Cell, state: Revision) -> bool {
        let is_young = |view: &View| self.can_calculate_changes() || view.age() < TEXT_AGE_MAX;
        cell.view.lock().as_ref().is_some_and(|view| view.state >= state && is_young(view))
    }

    /// Builds the result, or updates it. The caller holds the cell's `maker`.
    async fn renew(&self, cell: &Arc<Cell>) -> Result<Answered, MethodError> {
        let known = cell.view.lock().as_ref().map(|view| view.state);
        if let Some(since) = known.filter(|_| self.can_calculate_changes())
            && let Some((updates, state)) = self.updates(since).await?
        {
            let (cell, is_long) = (cell.clone(), updates.len() > UPDATES_INLINE_MAX);
            let apply = move || {
                if let Some(view) = cell.view.lock().as_mut() {
                    view.apply(updates, state);
                }
            };
            run(is_long, apply).await?;
            return Ok(Answered::Updated);
        }
        let view = self.build().await?;
        *cell.view.lock() = Some(view);
        Ok(Answered::Made)
    }

    /// All emails that pass.
    async fn build(&self) -> Result<View, MethodError> {
        let mut state = self.state().await?;
        let mut view = self.build_at(state).await?;
        // Changes that were made while the emails were read may have been missed.
        for _ in 0..ATTEMPTS_MAX {
            let now = self.state().await?;
            if now <= state || view.state < state {
                break;
            }
            if !self.can_calculate_changes() {
                view = self.build_at(now).await?;
                state = now;
            } else if let Some((updates, reached)) = self.updates(state).await? {
                view.apply(updates, reached);
                state = reached;
            } else {
                break;
            }
        }
        Ok(view)
    }

    /// All emails that pass, read when the emails are in a state or a later one. Emails that were created after the state are left out:
    /// if they were destroyed soon, no changes since the state would name them, and they would stay in the result.
    async fn build_at(&self, state: Revision) -> Result<View, MethodError> {
        let found = self.found().await?;
        let passed = self.all_entries(&found, state).await?;
        // Once the index has caught up, more is found although no email has changed, so no later query may use a partial result.
        let state = if found.partial_at.is_some() { Revision(0) } else { state };
        let (sort, collapse, is_long) = (self.sort.clone(), self.collapse, passed.len() > SORTED_INLINE_MAX);
        let mut view = run(is_long, move || View::new(state, sort, passed, collapse)).await?;
        view.partial_at = found.partial_at;
        Ok(view)
    }

    async fn all_entries(&self, found: &text::Found, state: Revision) -> Result<Vec<Evaluated>, MethodError> {
        if let Some(entries) = self.entries_of_hits(found).await? {
            return Ok(entries);
        }
        if let Some(entries) = self.entries_of_index(state).await? {
            return Ok(entries);
        }
        let found = &found.emails;
        let mut evaluation = Evaluation::new(self, found, false).created_up_to(state);
        match &self.candidates {
            Candidates::Nobody => {}
            Candidates::Found(place) => {
                let ids = found.get(*place).into_iter().flat_map(Hits::iter).map(|hit| hit.id);
                evaluation.read(&ids.collect::<Vec<_>>()).await?;
            }
            Candidates::Walk(walk) => {
                let mut query = walk.query(true).limit(WALK_PAGE);
                loop {
                    let page = self.records().query(self.account, &query).await?;
                    evaluation.read(&page.ids).await?;
                    match page.next {
                        Some(next) => query = query.after(next),
                        None => break,
                    }
                }
            }
        }
        Ok(evaluation.passed)
    }

    /// The entries of a mailbox that an index alone provides, without emails that were created after a state. `None`: emails must be read.
    async fn entries_of_index(&self, state: Revision) -> Result<Option<Vec<Evaluated>>, MethodError> {
        let Some((walk, _)) = self.exact_walk().filter(|(walk, _)| self.is_made_of_index(walk)) else {
            return Ok(None);
        };
        let mut entries = Vec::new();
        let mut query = walk.query(true).limit(WALK_PAGE).with_values();
        let mut is_of_state = true;
        loop {
            let page = self.records().query(self.account, &query).await?;
            is_of_state &= page.state == state;
            for (id, received) in page.ids.iter().zip(&page.values) {
                let Value::Number(received) = received else { return Ok(None) };
                let keys = Keys::One(i64::try_from(*received).unwrap_or(i64::MAX));
                entries.push(Evaluated { entry: Entry { keys, id: id.0 }, thread: 0 });
            }
            match page.next {
                Some(next) => query = query.after(next),
                None => break,
            }
        }
        if !is_of_state {
            let later = self.created_after(state, &entries).await?;
            entries.retain(|email| !later.contains(&email.entry.id));
        }
        Ok(Some(entries))
    }

    /// The emails among these that were created after a state. Ids ascend, so they are the last ones.
    async fn created_after(
        &self,
        state: Revision,
        emails: &[Evaluated],
    ) -> Result<HashSet<u64>, MethodError> {
        let mut ids: Vec<RecordId> = emails.iter().map(|email| RecordId(email.entry.id)).collect();
        ids.sort_unstable_by(|left, right| right.cmp(left));
        let mut later = HashSet::new();
        for ids in ids.chunks(SMALL_READ) {
            let records = self.read(&Get::small(email::KIND, ids.to_vec())).await?;
            for (id, record) in ids.iter().zip(records) {
                // For a destroyed email it does not matter when it was created.
                if record.is_some_and(|record| record.created <= state) {
                    return Ok(later);
                }
                later.insert(id.0);
            }
        }
        Ok(later)
    }

    /// Whether the result can be built from an index without reading the emails, which have their threads and whether they are in a
    /// mailbox.
    pub(crate) fn is_made_of_index(&self, walk: &Walk) -> bool {
        !self.collapse && walk.mailbox.is_some()
    }

    /// The entries that a search and an index alone provide, so that a search for a common word reads no email. `None`: emails must be
    /// read.
    async fn entries_of_hits(&self, found: &text::Found) -> Result<Option<Vec<Evaluated>>, MethodError> {
        let needs_emails = self.collapse || found.may_be_gone || self.sort.by_received_alone().is_none();
        let Some((place, walk)) = text_and_index(&self.test).filter(|_| !needs_emails) else {
            return Ok(None);
        };
        let Some(hits) = found.emails.get(place) else { return Ok(None) };
        let entry = |id: u64, received: i64| {
            let entry = Entry { keys: Keys::One(received), id };
            Evaluated { entry, thread: 0 } // threads are not collapsed here
        };
        let Some(walk) = walk else {
            return Ok(Some(hits.iter().map(|hit| entry(hit.id.0, hit.received)).collect()));
        };
        if hits.len() <= SMALL_READ {
            return Ok(None); // reading them costs less than the walk
        }
        let mut entries = Vec::new();
        let mut query = walk.query(true).limit(WALK_PAGE);
        loop {
            let page = self.records().query(self.account, &query).await?;
            let hit = |id: &RecordId| hits.received(id.0).map(|received| entry(id.0, received));
            entries.extend(page.ids.iter().filter_map(hit));
            match page.next {
                Some(next) => query = query.after(next),
                None => return Ok(Some(entries)),
            }
        }
    }

    /// The query without its conditions on text, and these conditions; `None` when a text is an alternative to something else.
    pub(crate) fn without_texts(&self) -> Result<Option<(Selection<'c>, search::Filter)>, MethodError> {
        let Some(Apart { texts, rest }) = text::apart(&self.test, &self.needs.texts)? else {
            return Ok(None);
        };
        let selection = Selection {
            context: self.context,
            account: self.account,
            sort: self.sort.clone(),
            candidates: Candidates::of(&rest),
            test: rest,
            needs: Needs { texts: Vec::new(), ..self.needs.clone() },
            keywords: self.keywords.clone(),
            collapse: self.collapse,
            index_wait: IndexWait::default(),
            key: OnceLock::new(),
        };
        Ok(Some((selection, texts)))
    }

    /// The emails among these that pass, in the order of their ids.
    pub(crate) async fn passing(&self, ids: &[RecordId]) -> Result<Vec<Evaluated>, MethodError> {
        let mut evaluation = Evaluation::new(self, &[], false);
        evaluation.read(ids).await?;
        Ok(evaluation.passed)
    }

    /// Counts a response from the search index.
    pub(crate) fn count_search(&self) {
        self.context.views.count(Answered::Searched);
    }

    /// The emails for which each condition on text is true.
    async fn found(&self) -> Result<text::Found, MethodError> {
        if self.needs.texts.is_empty() {
            return Ok(text::Found::default());
        }
        text::find(self.context, self.account, &self.needs.texts, &self.index_wait).await
    }

    /// How the emails that changed since a state appear in the result, and the state after these updates. `None`: too many.
    async fn updates(&self, since: Revision) -> Result<Option<(Vec<Update>, Revision)>, MethodError> {
        let Some(changed) = changed(self.records(), self.account, email::KIND, since, UPDATES_MAX).await?
        else {
            return Ok(None);
        };
        let state = changed.state;
        let Some(affected) = self.affected(changed, since).await? else { return Ok(None) };
        let mut evaluation = Evaluation::new(self, &[], true).created_up_to(state);
        evaluation.read(&affected).await?;
        Ok(Some((evaluation.into_updates(&affected), state)))
    }

    /// The emails that changes since a state may have added, removed or moved, whether they still exist or not, ascending: where
    /// threads matter, all emails of all threads that changed (X4). `None`: too many.
    pub(crate) async fn affected(
        &self,
        changed_emails: Changed,
        since: Revision,
    ) -> Result<Option<Vec<RecordId>>, MethodError> {
        let mut affected = changed_emails.ids;
        if !self.depends_on_threads() {
            return Ok(Some(affected));
        }
        // A thread whose email was destroyed has changed, too.
        let changed_threads =
            changed(self.records(), self.account, thread_kind::KIND, since, AFFECTED_MAX).await?;
        let Some(changed_threads) = changed_threads else { return Ok(None) };
        let mut threads: Vec<u64> = changed_threads.ids.iter().map(|id| id.0).collect();
        threads.extend(self.small(&affected).await?.iter().map(|record| thread(&record.properties)));
        threads.sort_unstable();
        threads.dedup();
        for threads in threads.chunks(SMALL_READ) {
            affected.extend(self.emails_of(threads.iter().copied()).await?);
            if affected.len() > AFFECTED_MAX {
                return Ok(None);
            }
        }
        affected.sort_unstable();
        affected.dedup();
        Ok(Some(affected))
    }

    /// The entries of emails, whether they pass or not. Emails that don't exist are left out.
    pub(crate) async fn entries_of(&self, ids: &[RecordId]) -> Result<Vec<Entry>, MethodError> {
        let mut evaluation = Evaluation::new(self, &[], true);
        evaluation.read(ids).await?;
        let Evaluation { passed, failed, .. } = evaluation;
        Ok(passed.into_iter().chain(failed).map(|evaluated| evaluated.entry).collect())
    }

    /// Reads emails without their rows; those that don't exist are left out.
    pub(crate) async fn small(&self, ids: &[RecordId]) -> Result<Vec<Record>, MethodError> {
        let mut found = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(SMALL_READ) {
            let records = self.read(&Get::small(email::KIND, chunk.to_vec())).await?;
            found.extend(records.into_iter().flatten());
        }
        Ok(found)
    }

    /// Reads emails. A damaged one is treated as if it did not exist: the records log it.
    async fn read(&self, get: &Get) -> Result<Vec<Option<Record>>, MethodError> {
        let found = get_each(self.records(), self.account, get).await?;
        Ok(found.into_iter().map(|record| record.ok().flatten()).collect())
    }

    /// The emails of threads.
    pub(crate) async fn emails_of(
        &self,
        threads: impl IntoIterator<Item = u64>,
    ) -> Result<Vec<RecordId>, MethodError> {
        let threads = threads.into_iter().map(RecordId);
        let emails = emails_of_each(self.records(), self.account, threads).await?;
        Ok(emails.into_iter().flatten().collect())
    }
}

/// An email that is in no mailbox exists only for IMAP (RFC 8621 §4.1.1).
fn is_visible(properties: &Properties) -> bool {
    properties.values(email::MAILBOX).next().is_some()
}

async fn keyword_tests(
    mail: &Mail,
    account: AccountId,
    filter: &Filter,
    sort: &Sort,
) -> Result<KeywordTests, MethodError> {
    let of_filter = filter.conditions().into_iter().filter_map(|condition| match condition {
        Condition::HasKeyword(name) | Condition::NotKeyword(name) | Condition::InThread(_, name) => {
            Some(name)
        }
        _ => None,
    });
    let of_sort = sort.comparators().iter().filter_map(|comparator| match &comparator.by {
        SortBy::HasKeyword(name) | SortBy::InThread(_, name) => Some(name),
        _ => None,
    });
    let mut tests = HashMap::new();
    for name in of_filter.chain(of_sort) {
        if !tests.contains_key(name) {
            let number = mail.keyword_number(account, name).await?;
            tests.insert(name.clone(), KeywordTest::new(name, number));
        }
    }
    Ok(tests)
}

/// Runs work on a result, on the blocking pool if the result is long.
pub(crate) async fn run<T: Send + 'static>(
    is_long: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, MethodError> {
    if !is_long {
        return Ok(work());
    }
    spawn_blocking(work).await.map_err(|_| MethodError::ServerFail)
}

/// Objects that changed.
pub(crate) struct Changed {
    /// All of them, whether they still exist or not, ascending; includes those that were created since and still exist.
    pub(crate) ids: Vec<RecordId>,
    /// Those that were created since.
    pub(crate) created: HashSet<u64>,
    /// The state after these changes, or a later revision of the account.
    pub(crate) state: Revision,
}

/// The objects of a kind that changed since a state. `None`: more than `max`, or the state is too old.
pub(crate) async fn changed(
    records: &dyn Records,
    account: AccountId,
    kind: Kind,
    since: Revision,
    max: usize,
) -> Result<Option<Changed>, MethodError> {
    const PAGE: usize = 256; // records read a page of this many without another thread
    let mut ids = Vec::new();
    let mut created = HashSet::new();
    let mut since = since;
    loop {
        let question = ChangesSince { kind: Some(kind), since, limit: PAGE };
        let page = match records.changes(account, &question).await {
            Ok(page) => page,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        created.extend(page.created.iter().map(|changed| changed.id.0));
        let all = page.created.iter().chain(&page.updated).chain(&page.destroyed);
        ids.extend(all.map(|changed| changed.id));
        since = page.revision;
        if ids.len() > max {
            return Ok(None);
        }
        if !page.has_more {
            break;
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(Changed { ids, created, state: since }))
}

/// An email that was evaluated.
#[derive(Clone, Debug)]
pub(crate) struct Evaluated {
    pub(crate) entry: Entry,
    pub(crate) thread: u64,
}

/// Evaluates emails.
struct Evaluation<'s, 'c> {
    selection: &'s Selection<'c>,
    found: &'s [Hits],
    threads: ThreadFacts,
    passed: Vec<Evaluated>,
    /// Empty when they are not needed.
    failed: Vec<Evaluated>,
    with_failed: bool,
    /// Emails that were created later count as absent.
    created_up_to: Revision,
}

impl<'s, 'c> Evaluation<'s, 'c> {
    fn new(selection: &'s Selection<'c>, found: &'s [Hits], with_failed: bool) -> Self {
        let (passed, failed) = (Vec::new(), Vec::new());
        let created_up_to = Revision(u64::MAX);
        Self { selection, found, threads: ThreadFacts::default(), passed, failed, with_failed, created_up_to }
    }

    fn created_up_to(self, created_up_to: Revision) -> Self {
        Self { created_up_to, ..self }
    }

    async fn read(&mut self, ids: &[RecordId]) -> Result<(), MethodError> {
        let with_row = self.selection.needs.row;
        for chunk in ids.chunks(if with_row { ROWS_READ } else { SMALL_READ }) {
            let get = Get { kind: email::KIND, ids: chunk.to_vec(), with_body: with_row };
            let records = self.selection.read(&get).await?.into_iter().flatten();
            let records: Vec<Record> =
                records.filter(|record| record.created <= self.created_up_to).collect();
            self.learn_threads(&records).await?;
            for record in &records {
                self.look_at(record)?;
            }
        }
        Ok(())
    }

    /// Reads the keywords of the threads of these emails, if they are needed.
    async fn learn_threads(&mut self, records: &[Record]) -> Result<(), MethodError> {
        let keywords = &self.selection.needs.thread_keywords;
        if keywords.is_empty() {
            return Ok(());
        }
        let mut new: Vec<u64> = records.iter().map(|record| thread(&record.properties)).collect();
        new.sort_unstable();
        new.dedup();
        new.retain(|thread| !self.threads.is_known(*thread));
        new.iter().for_each(|thread| self.threads.begin(*thread));
        let emails = self.selection.emails_of(new).await?;
        for record in self.selection.small(&emails).await? {
            if is_visible(&record.properties) {
                self.threads.add(&record.properties, keywords);
            }
        }
        Ok(())
    }

    fn look_at(&mut self, record: &Record) -> Result<(), MethodError> {
        let properties = &record.properties;
        let row = if self.selection.needs.row { Some(Row::read(record.body.bytes.clone())?) } else { None };
        let facts = Facts {
            id: record.id.0,
            properties,
            row: row.as_ref(),
            threads: &self.threads,
            found: self.found,
        };
        let passes = is_visible(properties) && self.selection.test.passes(&facts);
        if !passes && !self.with_failed {
            return Ok(());
        }
        let entry = Entry { keys: self.keys(&facts), id: record.id.0 };
        let evaluated = Evaluated { entry, thread: thread(properties) };
        if passes {
            self.passed.push(evaluated);
        } else {
            self.failed.push(evaluated);
        }
        Ok(())
    }

    fn keys(&self, facts: &Facts<'_>) -> Keys {
        if self.selection.sort.by_received_alone().is_some() {
            return Keys::One(received(facts.properties));
        }
        let comparators = self.selection.sort.comparators();
        Keys::Many(comparators.iter().map(|comparator| self.key(comparator, facts)).collect())
    }

    fn key(&self, comparator: &Comparator, facts: &Facts<'_>) -> Key {
        let keyword =
            |name: &String| self.selection.keywords.get(name).copied().unwrap_or(KeywordTest::Unknown);
        let text =
            |read: &dyn Fn(&Row) -> String| comparator.text_key(&facts.row.map(read).unwrap_or_default());
        match &comparator.by {
            SortBy::ReceivedAt => Key::Number(received(facts.properties)),
            SortBy::Size => Key::Number(i64::try_from(size(facts.properties)).unwrap_or(i64::MAX)),
            // An email without a date sorts before all others.
            SortBy::SentAt => Key::Number(facts.row.and_then(Row::sent_at).unwrap_or(i64::MIN)),
            SortBy::From => text(&|row| row.address_key(Shorthand::From)),
            SortBy::To => text(&|row| row.address_key(Shorthand::To)),
            SortBy::Subject => text(&Row::subject_key),
            SortBy::HasKeyword(name) => Key::Number(keyword(name).is_of(facts.properties).into()),
            SortBy::InThread(quantifier, name) => {
                Key::Number(facts.thread_has(*quantifier, keyword(name)).into())
            }
        }
    }

    /// How these emails appear in the result. Where threads are collapsed, the input has all emails of their threads.
    fn into_updates(self, ids: &[RecordId]) -> Vec<Update> {
        let Self { selection, mut passed, mut failed, .. } = self;
        if selection.collapse {
            passed.sort_unstable_by(|left, right| selection.sort.order(&left.entry, &right.entry));
            let mut threads = HashSet::new();
            let (first, later) = passed.into_iter().partition(|email| threads.insert(email.thread));
            passed = first;
            failed.extend::<Vec<_>>(later);
        }
        let existing: HashSet<u64> = passed.iter().chain(&failed).map(|email| email.entry.id).collect();
        let gone = ids.iter().filter(|id| !existing.contains(&id.0)).map(|id| Update::Gone(id.0));
        let (passed, failed) = (passed.into_iter(), failed.into_iter());
        let passed = passed.map(|email| Update::In(email.entry));
        passed.chain(failed.map(|email| Update::Out(email.entry))).chain(gone).collect()
    }
}
