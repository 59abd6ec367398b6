//! Writing: batches, the state of accounts, the checkpoint, and commits.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ::tantivy::{
    IndexWriter, TantivyDocument, TantivyError, Term,
    indexer::{IndexWriterOptions, LogMergePolicy},
};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::timeout_at};

use super::{
    Engine, Handle,
    files::{self, OpenIndex, engine_error},
    join_error, query,
    removal::WithTerm,
    run_blocking,
};
use crate::{AccountId, Batch, Begun, Error, Index, Revision, Series, validate};

/// The most bytes of texts that are written and not committed: they are in memory until they are indexed.
const UNCOMMITTED_BYTES_MAX: usize = 16 << 20;

/// Changes that nobody waits for are committed after this many times the delay: documents of accounts that are not searched
/// meanwhile, revisions and checkpoints.
const LATER: u32 = 10;

/// The number of documents that triggers a commit for all accounts together is this many times the number for one account.
const ALL_ACCOUNTS: usize = 10;

/// The documents of an account count as awaited when they are this part of those that are committed at once: a search would
/// match all of them directly.
const MANY_PART: usize = 4;

/// Segments with more documents are not merged any more, so that the time of a merge is bounded.
const MERGED_DOCUMENTS_MAX: usize = 1_000_000;

/// A segment is rewritten when more than this part of it is removed.
const REMOVED_RATIO_MAX: f32 = 0.3;

/// The accounts with uncommitted documents, and whether one of them was searched since the documents were written.
#[derive(Default)]
pub(super) struct Waiting {
    accounts: Mutex<HashSet<AccountId>>,
    is_awaited: AtomicBool,
}

impl Waiting {
    fn add(&self, account: AccountId) {
        self.accounts.lock().insert(account);
    }

    /// Notes a search; returns whether it makes a commit due earlier.
    pub(super) fn note_search(&self, account: AccountId) -> bool {
        self.accounts.lock().contains(&account) && !self.is_awaited.swap(true, Ordering::AcqRel)
    }

    /// Everything is committed, or dropped.
    pub(super) fn clear(&self) {
        self.accounts.lock().clear();
        self.is_awaited.store(false, Ordering::Release);
    }
}

/// The writer. `writing` exists from the first write of a series until one fails.
#[derive(Default)]
pub(super) struct Writer {
    writing: Option<Writing>,
}

struct Writing {
    writer: IndexWriter,
    open: OpenIndex,
    checkpoint: Option<Bytes>,
    /// Uncommitted revisions of accounts.
    revisions: BTreeMap<AccountId, Revision>,
    /// The number of uncommitted documents and removals.
    uncommitted: usize,
    uncommitted_bytes: usize,
    /// The same for each account, at least one even if only its revision changed; and the greatest of these numbers.
    of_accounts: HashMap<AccountId, usize>,
    of_account_max: usize,
    /// When the first of the documents was written.
    documents_since: Option<Instant>,
    /// When the first uncommitted revision or checkpoint was written.
    others_since: Option<Instant>,
}

impl Writing {
    fn open(engine: &Engine, open: OpenIndex) -> Result<Self, Error> {
        let options = IndexWriterOptions::builder()
            .memory_budget_per_thread(engine.config.memory_bytes)
            .num_worker_threads(1)
            .num_merge_threads(1)
            .build();
        let writer: IndexWriter =
            open.index.writer_with_options(options).map_err(|error| engine_error("write", &error))?;
        let mut policy = LogMergePolicy::default();
        policy.set_max_docs_before_merge(MERGED_DOCUMENTS_MAX);
        policy.set_del_docs_ratio_before_merge(REMOVED_RATIO_MAX);
        writer.set_merge_policy(Box::new(policy));
        let metas = open.index.load_metas().map_err(|error| engine_error("read", &error))?;
        let checkpoint =
            metas.payload.as_deref().and_then(|payload| files::read_payload(payload).ok().flatten());
        Ok(Self {
            writer,
            open,
            checkpoint,
            revisions: BTreeMap::new(),
            uncommitted: 0,
            uncommitted_bytes: 0,
            of_accounts: HashMap::new(),
            of_account_max: 0,
            documents_since: None,
            others_since: None,
        })
    }

    fn write(&mut self, account: AccountId, batch: Batch) -> Result<(), TantivyError> {
        let fields = self.open.fields;
        for id in &batch.removed {
            self.remove(fields.key_term(account, *id))?;
        }
        for document in &batch.documents {
            self.remove(fields.key_term(account, document.id))?;
            self.writer.add_document(fields.document(account, document))?;
            self.uncommitted_bytes += document.bytes();
        }
        let count = batch.removed.len() + batch.documents.len();
        self.count(account, count);
        if let Some(revision) = batch.revision {
            self.set_revision(account, revision);
        }
        Ok(())
    }

    /// Removes the documents with a term that were written before now.
    fn remove(&self, term: Term) -> Result<(), TantivyError> {
        self.writer.delete_query(Box::new(WithTerm(term))).map(drop)
    }

    /// Counts documents and removals of an account.
    fn count(&mut self, account: AccountId, count: usize) {
        if count == 0 {
            return;
        }
        self.uncommitted += count;
        let of_account = self.of_accounts.entry(account).or_default();
        *of_account += count;
        self.of_account_max = self.of_account_max.max(*of_account);
        self.documents_since.get_or_insert_with(Instant::now);
    }

    fn erase(&mut self, account: AccountId) -> Result<(), TantivyError> {
        self.remove(self.open.fields.account_term(account))?;
        self.count(account, 1);
        self.set_revision(account, Revision(0));
        Ok(())
    }

    fn set_revision(&mut self, account: AccountId, revision: Revision) {
        self.revisions.insert(account, revision);
        self.of_account_max = self.of_account_max.max(1);
        self.others_since.get_or_insert_with(Instant::now);
    }

    fn revision(&self, account: AccountId) -> Result<Revision, TantivyError> {
        match self.revisions.get(&account) {
            Some(revision) => Ok(*revision),
            None => query::revision(&self.open.reader.searcher(), &self.open.fields, account),
        }
    }

    fn is_enough(&self, engine: &Engine) -> bool {
        let of_account_max = engine.config.commit_documents.get();
        self.of_account_max >= of_account_max
            || self.uncommitted.max(self.revisions.len()) >= of_account_max.saturating_mul(ALL_ACCOUNTS)
            || self.uncommitted_bytes >= UNCOMMITTED_BYTES_MAX
    }

    /// Whether documents should be found soon.
    fn are_documents_awaited(&self, engine: &Engine) -> bool {
        self.of_account_max >= engine.config.commit_documents.get() / MANY_PART
            || engine.waiting.is_awaited.load(Ordering::Acquire)
    }

    /// When the next commit is due.
    fn due(&self, engine: &Engine) -> Option<Instant> {
        let delay = Duration::from_millis(engine.config.commit_ms);
        let documents_delay = if self.are_documents_awaited(engine) { delay } else { delay * LATER };
        let documents = self.documents_since.map(|since| since + documents_delay);
        let others = self.others_since.map(|since| since + delay * LATER);
        documents.into_iter().chain(others).min()
    }

    fn commit(&mut self, engine: &Engine) -> Result<(), TantivyError> {
        if self.due(engine).is_none() {
            return Ok(()); // there is nothing to commit
        }
        let begun = Instant::now();
        let fields = self.open.fields;
        for (account, revision) in &self.revisions {
            self.remove(fields.state_term(*account))?;
            if *revision > Revision(0) {
                let state: TantivyDocument = fields.state(*account, *revision);
                self.writer.add_document(state)?;
            }
        }
        let mut prepared = self.writer.prepare_commit()?;
        prepared.set_payload(&files::payload(self.checkpoint.as_ref()));
        prepared.commit()?;
        self.open.reader.reload()?;
        self.revisions.clear();
        self.of_accounts.clear();
        (self.uncommitted, self.uncommitted_bytes, self.of_account_max) = (0, 0, 0);
        engine.waiting.clear();
        (self.documents_since, self.others_since) = (None, None);
        *engine.failure.lock() = None;
        engine.metrics.commit_seconds.observe(begun.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Commits what was written when it is due, as long as the engine exists.
pub(super) async fn commit_when_due(engine: Weak<Engine>, written: Arc<Notify>) {
    loop {
        let due = {
            let Some(engine) = engine.upgrade() else { return };
            engine.commit_if_due().await
        };
        match due {
            // What is written meanwhile may be due earlier.
            Some(due) => drop(timeout_at(due.into(), written.notified()).await),
            None => written.notified().await,
        }
    }
}

impl Engine {
    /// Commits if it is due, and returns when the next commit is due.
    async fn commit_if_due(self: Arc<Self>) -> Option<Instant> {
        let engine = self.clone();
        let mut writer = self.writer.clone().lock_owned().await;
        let due = writer.writing.as_ref().and_then(|writing| writing.due(&self))?;
        if due > Instant::now() {
            return Some(due);
        }
        let committed = run_blocking(move || {
            let result = writer.writing.as_mut().map_or(Ok(()), |writing| writing.commit(&engine));
            engine.settle(&mut writer, result)
        });
        match committed.await.map_err(join_error).and_then(|result| result) {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(%error, "the search index could not be committed");
                None // the series has ended
            }
        }
    }

    /// Runs a write of a series that has not ended.
    async fn write_in<T: Send + 'static>(
        self: &Arc<Self>,
        series: Series,
        run: impl FnOnce(&mut Writing, &Engine) -> Result<T, TantivyError> + Send + 'static,
    ) -> Result<T, Error> {
        let engine = self.clone();
        let mut writer = self.writer.clone().lock_owned().await;
        let written = run_blocking(move || {
            engine.check_closed()?;
            if *engine.series.borrow() != series.0 {
                let what = "the series of writes to the search index has ended: begin again";
                return Err(Error::conflict(what));
            }
            let Some(writing) = writer.writing.as_mut() else {
                return Err(Error::conflict("no series of writes to the search index has begun"));
            };
            let result = run(writing, &engine).and_then(|value| {
                if writing.is_enough(&engine) {
                    writing.commit(&engine)?;
                }
                Ok(value)
            });
            engine.settle(&mut writer, result)
        });
        let result = written.await.map_err(join_error)?;
        self.written.notify_one();
        result
    }

    /// Notes the outcome of a write. After a failure it is unknown what the writer contains: the series ends.
    fn settle<T>(&self, writer: &mut Writer, result: Result<T, TantivyError>) -> Result<T, Error> {
        let uncommitted = writer.writing.as_ref().map_or(0, |writing| writing.uncommitted);
        self.metrics.uncommitted.set(uncommitted as u64);
        let error = match result {
            Ok(value) => return Ok(value), // in memory: only a commit shows that the disk can be written again
            Err(error) => engine_error("write", &error),
        };
        *self.failure.lock() = Some(error.duplicate());
        writer.writing = None;
        self.metrics.uncommitted.set(0);
        self.end_series();
        Err(error)
    }

    /// Drops what is not committed, opens the index again if it failed, or replaces it if it is damaged, and begins a series.
    fn begin(&self, writer: &mut Writer) -> Result<Begun, Error> {
        self.check_closed()?;
        self.end_series();
        let is_failed = self.failure.lock().is_some();
        let is_clean = writer.writing.as_ref().is_some_and(|writing| writing.due(self).is_none());
        let is_damaged = self.is_damaged.load(Ordering::Acquire);
        if !is_clean || is_failed || is_damaged {
            writer.writing = None; // it holds the lock of the index
            self.metrics.uncommitted.set(0);
        }
        let known = self.open.lock().clone();
        let open = match known {
            Some(open) if !is_failed && !is_damaged => open,
            _ => self.reopen(is_damaged)?,
        };
        let mut writing = match writer.writing.take() {
            Some(writing) => writing,
            None => Writing::open(self, open)?,
        };
        if self.failure.lock().is_some() {
            // A commit is due although nothing is written: it shows whether the index can be written again.
            writing.others_since.get_or_insert_with(Instant::now);
            self.written.notify_one();
        }
        let checkpoint = writing.checkpoint.clone();
        writer.writing = Some(writing);
        Ok(Begun { series: Series(*self.series.borrow()), checkpoint })
    }

    /// Opens the index again, or rebuilds it. Until then queries are answered from the snapshot that was open.
    fn reopen(&self, is_damaged: bool) -> Result<OpenIndex, Error> {
        if let Some(open) = &*self.open.lock() {
            open.directory.close();
        }
        let (open, is_new) = match is_damaged {
            true => (files::create(&self.folder)?, true),
            false => files::open_or_create(&self.folder, self.config.verify)?,
        };
        if is_new {
            self.metrics.cleared.inc();
            *self.failure.lock() = None;
        }
        *self.open.lock() = Some(open.clone());
        self.is_damaged.store(false, Ordering::Release);
        Ok(open)
    }

    /// Removes everything, and ends the series.
    pub(super) fn clear(&self, writer: &mut Writer) -> Result<(), Error> {
        self.check_closed()?;
        self.end_series();
        writer.writing = None;
        self.metrics.uncommitted.set(0);
        // Meanwhile queries are answered from the snapshot. If this fails, half an index may remain: it is replaced later.
        self.reopen(true).map(drop).inspect_err(|_| self.is_damaged.store(true, Ordering::Release))
    }

    /// Commits what was written, and closes.
    pub(super) fn close(&self, writer: &mut Writer) -> Result<(), Error> {
        self.is_closed.store(true, Ordering::Release);
        self.end_series();
        self.permits.close();
        let committed = match writer.writing.take() {
            Some(mut writing) => writing.commit(self).map_err(|error| engine_error("write", &error)),
            None => Ok(()),
        };
        if let Some(open) = self.open.lock().take() {
            open.directory.close();
        }
        *self.lock.lock() = None;
        committed
    }

    fn check_closed(&self) -> Result<(), Error> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Error::unavailable("the search index is closed")),
            false => Ok(()),
        }
    }

    /// Runs a function with the writer, in any state of the writer.
    pub(super) async fn with_writer<T: Send + 'static>(
        self: &Arc<Self>,
        run: impl FnOnce(&Engine, &mut Writer) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let engine = self.clone();
        let mut writer = self.writer.clone().lock_owned().await;
        run_blocking(move || run(&engine, &mut writer)).await.map_err(join_error)?
    }
}

impl Writer {
    /// Documents and removals that are not committed.
    pub(super) fn uncommitted(&self) -> usize {
        self.writing.as_ref().map_or(0, |writing| writing.uncommitted)
    }
}

#[async_trait]
impl Index for Handle {
    async fn begin(&self) -> Result<Begun, Error> {
        self.engine.with_writer(Engine::begin).await
    }

    async fn ended(&self, series: Series) {
        let mut now = self.engine.series.subscribe();
        let _ = now.wait_for(|now| *now != series.0).await; // fails when the index was dropped
    }

    async fn write(&self, series: Series, account: AccountId, batch: Batch) -> Result<(), Error> {
        validate::batch(&batch)?;
        let has_documents = !batch.documents.is_empty();
        let write = move |writing: &mut Writing, engine: &Engine| {
            writing.write(account, batch)?;
            if has_documents {
                engine.waiting.add(account);
            }
            Ok(())
        };
        self.engine.write_in(series, write).await
    }

    async fn erase(&self, series: Series, account: AccountId) -> Result<(), Error> {
        let erase = move |writing: &mut Writing, _: &Engine| writing.erase(account);
        self.engine.write_in(series, erase).await
    }

    async fn save(&self, series: Series, checkpoint: Bytes) -> Result<(), Error> {
        validate::checkpoint(&checkpoint)?;
        let save = move |writing: &mut Writing, _: &Engine| {
            writing.checkpoint = Some(checkpoint);
            writing.others_since.get_or_insert_with(Instant::now);
            Ok(())
        };
        self.engine.write_in(series, save).await
    }

    async fn revisions(&self, series: Series, accounts: &[AccountId]) -> Result<Vec<Revision>, Error> {
        let accounts = accounts.to_vec();
        let read = move |writing: &mut Writing, _: &Engine| {
            accounts.iter().map(|account| writing.revision(*account)).collect()
        };
        self.engine.write_in(series, read).await
    }

    async fn commit(&self, series: Series) -> Result<(), Error> {
        self.engine.write_in(series, |writing, engine| writing.commit(engine)).await
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;
    use crate::{
        Config, Document, EngineUrl, Filter, Query, RecordId, Search, TantivyConfig, Upkeep,
        tantivy::open_handle,
    };

    const COMMIT_MS: u64 = 1_000_000;
    const OF_ACCOUNT: usize = 8;

    async fn open(folder: &tempfile::TempDir) -> (Handle, Series) {
        let mut config = Config::new(EngineUrl::Tantivy(folder.path().into()));
        let commit_documents = NonZero::new(OF_ACCOUNT).unwrap();
        config.tantivy = TantivyConfig { commit_ms: COMMIT_MS, commit_documents, ..config.tantivy };
        let handle = open_handle(folder.path().into(), config).await.unwrap();
        let series = handle.begin().await.unwrap().series;
        (handle, series)
    }

    async fn write(handle: &Handle, series: Series, account: u32, ids: std::ops::Range<u64>) {
        let document = |id| Document { id: RecordId(id), ..Document::default() };
        let revision = Some(Revision(ids.end));
        let batch = Batch { documents: ids.map(document).collect(), revision, ..Batch::default() };
        handle.write(series, AccountId(account), batch).await.unwrap();
    }

    async fn search(handle: &Handle, account: u32) -> usize {
        let page = handle.query(AccountId(account), &Query::new(Filter::And(vec![]))).await.unwrap();
        page.hits.len()
    }

    /// The milliseconds from the first uncommitted document to the commit; `None` when all are committed.
    async fn delay_ms(handle: &Handle) -> Option<u64> {
        let writer = handle.engine.writer.lock().await;
        let writing = writer.writing.as_ref().unwrap();
        let delay = writing.due(&handle.engine)? - writing.documents_since?;
        Some(delay.as_millis() as u64)
    }

    #[tokio::test]
    async fn documents_are_committed_soon_where_an_account_is_searched_and_later_where_none_is() {
        let folder = tempfile::tempdir().unwrap();
        let (handle, series) = open(&folder).await;
        let later = COMMIT_MS * u64::from(LATER);
        for _ in 0..2 {
            write(&handle, series, 1, 1..2).await;
            search(&handle, 2).await;
            assert_eq!(delay_ms(&handle).await, Some(later), "nobody waits for it");
            search(&handle, 1).await;
            assert_eq!(delay_ms(&handle).await, Some(COMMIT_MS));
            handle.commit(series).await.unwrap();
            assert_eq!((delay_ms(&handle).await, search(&handle, 1).await), (None, 1));
        }
        // Nothing of a series that ended is left to wait for.
        write(&handle, series, 1, 2..3).await;
        search(&handle, 1).await;
        let series = handle.begin().await.unwrap().series;
        write(&handle, series, 2, 1..2).await;
        search(&handle, 1).await;
        assert_eq!(delay_ms(&handle).await, Some(later));
    }

    #[tokio::test]
    async fn many_documents_are_committed_soon_and_more_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (handle, series) = open(&folder).await;
        let many = (OF_ACCOUNT / MANY_PART) as u64;
        write(&handle, series, 1, 0..many).await;
        assert_eq!(delay_ms(&handle).await, Some(COMMIT_MS), "a search would match many directly");
        write(&handle, series, 1, many..OF_ACCOUNT as u64).await;
        assert_eq!((delay_ms(&handle).await, search(&handle, 1).await), (None, OF_ACCOUNT));

        let accounts = (OF_ACCOUNT * ALL_ACCOUNTS) as u32;
        for account in 2..1 + accounts {
            write(&handle, series, account, 0..1).await;
        }
        assert_eq!(delay_ms(&handle).await, Some(COMMIT_MS * u64::from(LATER)));
        write(&handle, series, 1 + accounts, 0..1).await;
        assert_eq!((delay_ms(&handle).await, search(&handle, 2).await), (None, 1));
    }

    /// With a full disk an index can be opened and documents be kept in memory: once, it seemed healthy again after each
    /// failed commit.
    #[tokio::test]
    async fn after_a_commit_that_failed_only_another_one_makes_the_index_healthy() {
        let folder = tempfile::tempdir().unwrap();
        let (handle, series) = open(&folder).await;
        write(&handle, series, 1, 0..1).await;
        handle.commit(series).await.unwrap();
        write(&handle, series, 1, 1..2).await;
        handle.engine.open_index().unwrap().directory.close(); // no file is written any more
        handle.commit(series).await.unwrap_err();

        let series = handle.begin().await.unwrap().series;
        assert!(handle.health().is_err());
        write(&handle, series, 1, 1..2).await;
        assert!(handle.health().is_err());
        handle.commit(series).await.unwrap();
        handle.health().unwrap();
    }
}
