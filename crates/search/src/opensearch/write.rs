//! Writing: the pending changes in memory, and the steps of a commit.
//!
//! 1. Accounts with documents to be removed are marked as unfinished; those that are erased get revision 0.
//! 2. Documents are written and removed.
//! 3. Revisions are written, which removes the marks.
//! 4. All of it is made visible: by the request that writes the revisions, when each account with documents has one in it. That request
//!    refreshes the shards of its items, in all copies, and an account is in one shard. Otherwise the whole index is refreshed.
//! 5. The checkpoint is written.
//!
//! A revision never becomes visible before the documents that it covers, regardless of when a copy of the shard is refreshed: it is in
//! the same shard as the documents of its account, and is sent after all copies have written them. A query reads both from one
//! snapshot of one copy.
//!
//! When the process ends before the last step, there are documents that no revision covers; they are written again from the
//! checkpoint. Removed ones could be missing at an older revision if records are restored from a backup: the next series sets accounts
//! that are still marked to revision 0, so that they are read again.
//!
//! Each write has a version: that of the series, which the next one exceeds, and of the commit in it. A write that arrives late, or
//! from a process that has been replaced, is refused.

use std::{
    collections::BTreeMap,
    mem::take,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};
use tracing::warn;

use super::{
    Engine, Failure, Handle,
    build::Build,
    bulk::{ITEMS_MAX, Item, Refresh},
    client::Body,
    place::{Found, IndexName},
    schema::{META, document, email_id, state, state_id},
};
use crate::{AccountId, Batch, Begun, Document, Error, Index, RecordId, Revision, Series, validate};

/// The most bytes of documents that are written and not committed.
const UNCOMMITTED_BYTES_MAX: usize = 5 << 20;
/// Revisions and checkpoints without documents, as after keywords have changed, are committed with the next documents, after this
/// time, or when `OTHERS_MAX` accounts have uncommitted changes: a change of keywords writes nothing. Queries of this process know
/// them ([`Ahead`]).
const OTHERS_DELAY: Duration = Duration::from_secs(600);
const OTHERS_MAX: usize = 2_000;
/// The most accounts whose revisions are kept in memory.
const KNOWN_MAX: usize = 65_536;
/// The most accounts in one request.
const ACCOUNTS_MAX: usize = 1_000;
/// The number of documents that may be refused in a series and are left out. If there are more, the cause is not single emails.
const REJECTED_MAX: usize = 100;
/// The most documents that one request removes when an account is erased.
const ERASED_MAX: usize = 2_000;
/// The wait before a series begins after one that failed; it doubles with each further one.
const BEGIN_DELAY_MIN: Duration = Duration::from_millis(100);
const BEGIN_DELAY_MAX: Duration = Duration::from_secs(60);
/// The versions of a series: commits take two each.
const SERIES_VERSIONS: i64 = 1 << 32;

/// The writer. `writing` exists from the beginning of a series until a write fails.
#[derive(Default)]
pub(super) struct Writer {
    writing: Option<Writing>,
    /// The number of consecutive series that failed without a commit.
    failures: u32,
}

impl Writer {
    /// Documents and removals that are not committed.
    pub(super) fn uncommitted(&self) -> usize {
        self.writing.as_ref().map_or(0, |writing| writing.uncommitted)
    }

    pub(super) fn fail(&mut self) {
        self.writing = None;
        self.failures = self.failures.saturating_add(1);
    }
}

pub(super) struct Writing {
    pub(super) index: IndexName,
    /// The greatest version of anything that was written.
    version: i64,
    pending: BTreeMap<AccountId, Pending>,
    /// Revisions that are committed.
    known: BTreeMap<AccountId, Revision>,
    checkpoint: Option<Bytes>,
    is_checkpoint_new: bool,
    uncommitted: usize,
    uncommitted_bytes: usize,
    /// When the first of the documents was written.
    documents_since: Option<Instant>,
    /// When the first uncommitted revision or checkpoint was written.
    others_since: Option<Instant>,
    /// Documents that were refused in this series.
    rejected: usize,
    /// The state of the build, if this index is to replace the one that queries read.
    build: Option<Build>,
}

/// The uncommitted changes of an account.
#[derive(Default)]
struct Pending {
    is_erased: bool,
    /// Documents to be added; `None` for those to be removed.
    documents: BTreeMap<RecordId, Option<Bytes>>,
    revision: Option<Revision>,
}

impl Writing {
    fn write(&mut self, account: AccountId, batch: &Batch, documents: Vec<(RecordId, Bytes)>) {
        let pending = self.pending.entry(account).or_default();
        let count = batch.removed.len() + documents.len();
        for id in &batch.removed {
            pending.documents.insert(*id, None);
        }
        for (id, bytes) in documents {
            self.uncommitted_bytes += bytes.len();
            pending.documents.insert(id, Some(bytes));
        }
        pending.revision = batch.revision.or(pending.revision);
        if count > 0 {
            self.uncommitted += count;
            self.documents_since.get_or_insert_with(Instant::now);
        } else {
            self.others_since.get_or_insert_with(Instant::now);
        }
    }

    /// The revision of an account in the last commit, and the one up to which no document has changed since.
    fn ahead(&self, account: AccountId) -> Option<(Revision, Revision)> {
        let pending = self.pending.get(&account)?;
        // While an index is built, queries read another one.
        let has_changed = pending.is_erased || !pending.documents.is_empty() || self.build.is_some();
        let committed = *self.known.get(&account)?;
        pending.revision.filter(|_| !has_changed).map(|revision| (committed, revision))
    }

    fn erase(&mut self, account: AccountId) {
        let erased = Pending { is_erased: true, documents: BTreeMap::new(), revision: Some(Revision(0)) };
        self.pending.insert(account, erased);
        self.uncommitted += 1;
        self.documents_since.get_or_insert_with(Instant::now);
    }

    fn save(&mut self, checkpoint: Bytes) {
        (self.checkpoint, self.is_checkpoint_new) = (Some(checkpoint), true);
        self.others_since.get_or_insert_with(Instant::now);
    }

    fn is_enough(&self, engine: &Engine) -> bool {
        self.uncommitted >= engine.config.commit_documents.get()
            || self.uncommitted_bytes >= UNCOMMITTED_BYTES_MAX
            || self.pending.len() >= OTHERS_MAX
    }

    /// When the next commit is due.
    fn due(&self, engine: &Engine) -> Option<Instant> {
        let delay = Duration::from_millis(engine.config.commit_ms);
        let documents = self.documents_since.map(|since| since + delay);
        let others = self.others_since.map(|since| since + OTHERS_DELAY);
        documents.into_iter().chain(others).min()
    }

    /// When the next step is due: a commit, or a check whether an index that is being built is complete.
    fn next_step(&self, engine: &Engine) -> Option<Instant> {
        let look = self.build.as_ref().map(Build::next_look);
        self.due(engine).into_iter().chain(look).min()
    }

    /// The revisions up to which accounts are written, committed or not.
    pub(super) async fn revisions(
        &mut self,
        engine: &Engine,
        accounts: &[AccountId],
    ) -> Result<Vec<Revision>, Failure> {
        self.learn(engine, accounts).await?;
        let revision = |account: &AccountId| {
            let pending = self.pending.get(account).and_then(|pending| pending.revision);
            pending.or_else(|| self.known.get(account).copied()).unwrap_or_default()
        };
        Ok(accounts.iter().map(revision).collect())
    }

    /// Looks up the committed revisions of accounts for which they are not known yet.
    async fn learn(&mut self, engine: &Engine, accounts: &[AccountId]) -> Result<(), Failure> {
        if self.known.len() + accounts.len() > KNOWN_MAX {
            self.known.clear();
        }
        let is_unknown = |account: &&AccountId| !self.known.contains_key(*account);
        let unknown: Vec<AccountId> = accounts.iter().filter(is_unknown).copied().collect();
        for accounts in unknown.chunks(ACCOUNTS_MAX) {
            let revisions = engine.revisions_in(&self.index, accounts).await?;
            self.known.extend(accounts.iter().copied().zip(revisions));
        }
        Ok(())
    }

    /// Writes everything, in the order that the module describes. After a failure it can be called again.
    /// Returns whether there was anything to write.
    async fn commit(&mut self, engine: &Engine) -> Result<bool, Failure> {
        if self.due(engine).is_none() {
            return Ok(false);
        }
        let begun = Instant::now();
        // Documents get the first version, revisions the second.
        self.version += 2;
        self.mark(engine).await?;
        self.erase_marked(engine).await?;
        self.write_documents(engine).await?;
        self.write_revisions_and_show_all(engine).await?;
        self.write_checkpoint(engine).await?;
        for (account, pending) in take(&mut self.pending) {
            if let Some(revision) = pending.revision {
                self.known.insert(account, revision);
            }
        }
        if self.known.len() > KNOWN_MAX {
            self.known.clear();
        }
        self.is_checkpoint_new = false;
        (self.uncommitted, self.uncommitted_bytes) = (0, 0);
        (self.documents_since, self.others_since) = (None, None);
        engine.metrics.commit_seconds.observe(begun.elapsed().as_secs_f64());
        Ok(true)
    }

    /// Marks accounts from which something is removed.
    async fn mark(&mut self, engine: &Engine) -> Result<(), Failure> {
        let removes =
            |pending: &Pending| pending.is_erased || pending.documents.values().any(Option::is_none);
        let accounts: Vec<AccountId> = self
            .pending
            .iter()
            .filter(|(_, pending)| removes(pending))
            .map(|(account, _)| *account)
            .collect();
        if accounts.is_empty() {
            return Ok(());
        }
        self.learn(engine, &accounts).await?;
        let is_erased =
            |account: &AccountId| self.pending.get(account).is_some_and(|pending| pending.is_erased);
        let mut items = Vec::new();
        for account in &accounts {
            let known = self.known.get(account).copied().unwrap_or_default();
            let revision = if is_erased(account) { Revision(0) } else { known };
            items.push(self.state_item(*account, revision, true, self.version));
        }
        engine.bulk_all(&self.index, items, Refresh::Later).await?;
        if accounts.iter().any(is_erased) {
            engine.refresh(&self.index).await?;
        }
        Ok(())
    }

    fn state_item(&self, account: AccountId, revision: Revision, is_unfinished: bool, version: i64) -> Item {
        let source = state(account, revision, is_unfinished).to_string();
        Item::index(state_id(account), &account.0.to_string(), version, source.into())
    }

    async fn erase_marked(&self, engine: &Engine) -> Result<(), Failure> {
        for (account, _) in self.pending.iter().filter(|(_, pending)| pending.is_erased) {
            while engine.erase_some(&self.index, *account).await? > 0 {}
        }
        Ok(())
    }

    async fn write_documents(&mut self, engine: &Engine) -> Result<(), Failure> {
        let mut items = Vec::new();
        for (account, pending) in &self.pending {
            let routing = account.0.to_string();
            for (id, document) in &pending.documents {
                let id = email_id(*account, *id);
                items.push(match document {
                    Some(bytes) => Item::index(id, &routing, self.version, bytes.clone()),
                    None => Item::delete(id, &routing, self.version),
                });
            }
        }
        let rejected = engine.bulk(&self.index, items, Refresh::Later).await?;
        for rejected in &rejected {
            let (id, why) = (&rejected.id, &rejected.why);
            warn!(id, why, "OpenSearch refuses an email (account-email): it is not searched");
        }
        engine.metrics.rejected.inc_by(rejected.len() as u64);
        self.rejected += rejected.len();
        if self.rejected > REJECTED_MAX {
            let why = rejected.first().map_or("", |rejected| rejected.why.as_str());
            let what = "OpenSearch refuses too many emails: is the mapping of the index still restante's";
            return Err(Error::internal(format!("{what} ({why})")).into());
        }
        Ok(())
    }

    async fn write_revisions_and_show_all(&self, engine: &Engine) -> Result<(), Failure> {
        let mut items = Vec::new();
        let mut has_others = false;
        for (account, pending) in &self.pending {
            let is_marked = pending.documents.values().any(Option::is_none);
            let revision = match pending.revision {
                Some(revision) => revision,
                None if is_marked => self.known.get(account).copied().unwrap_or_default(),
                None => {
                    has_others |= !pending.documents.is_empty();
                    continue;
                }
            };
            items.push(self.state_item(*account, revision, false, self.version + 1));
        }
        // Each of several requests would refresh the same shards.
        let are_items_enough = !has_others && items.len() <= ITEMS_MAX;
        if are_items_enough {
            return engine.bulk_all(&self.index, items, Refresh::ShardsOfItems).await;
        }
        engine.bulk_all(&self.index, items, Refresh::Later).await?;
        engine.refresh(&self.index).await
    }

    async fn write_checkpoint(&self, engine: &Engine) -> Result<(), Failure> {
        let Some(checkpoint) = self.checkpoint.as_ref().filter(|_| self.is_checkpoint_new) else {
            return Ok(());
        };
        let source = meta(Some(checkpoint)).to_string();
        let item = Item::index(META.to_owned(), META, self.version + 1, source.into());
        engine.bulk_all(&self.index, vec![item], Refresh::Later).await
    }
}

fn meta(checkpoint: Option<&Bytes>) -> Value {
    match checkpoint {
        Some(checkpoint) => json!({"checkpoint": hex::encode(checkpoint)}),
        None => json!({}),
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
            Some(due) => drop(timeout_at(due, written.notified()).await),
            None => written.notified().await,
        }
    }
}

impl Engine {
    /// Commits if it is due, and returns when the next commit is due.
    async fn commit_if_due(&self) -> Option<Instant> {
        let mut writer = self.writer.lock().await;
        let due = writer.writing.as_ref().and_then(|writing| writing.next_step(self))?;
        if due > Instant::now() {
            return Some(due);
        }
        if let Err(error) = self.commit(&mut writer).await {
            warn!(%error, "the search index could not be committed");
        }
        writer.writing.as_ref().and_then(|writing| writing.next_step(self)) // none if the series has ended
    }

    async fn commit(&self, writer: &mut Writer) -> Result<(), Error> {
        let Some(writing) = writer.writing.as_mut() else { return Ok(()) };
        let result = writing.commit(self).await;
        let is_anything = self.settle(writer, result)?;
        if is_anything {
            self.ahead.lock().clear(); // all are committed
            writer.failures = 0;
            *self.failure.lock() = None;
        }
        self.promote_if_complete(writer).await
    }

    /// Replaces the index that queries read by the one that is built, when that is as complete as the other.
    async fn promote_if_complete(&self, writer: &mut Writer) -> Result<(), Error> {
        let Some(writing) = writer.writing.as_mut() else { return Ok(()) };
        let Some(mut build) = writing.build.take() else { return Ok(()) };
        let result = match build.is_complete(self, writing).await {
            Ok(true) => self.promote(&writing.index, build.old()).await.map_err(Failure::from),
            Ok(false) => {
                writing.build = Some(build);
                Ok(())
            }
            Err(failure) => Err(failure),
        };
        self.settle(writer, result)
    }

    /// The state of a series that has not ended.
    fn writing_of<'w>(&self, writer: &'w mut Writer, series: Series) -> Result<&'w mut Writing, Error> {
        self.check_open()?;
        if *self.series.borrow() != series.0 {
            return Err(Error::conflict("the series of writes to the search index has ended: begin again"));
        }
        let none = || Error::conflict("no series of writes to the search index has begun");
        writer.writing.as_mut().ok_or_else(none)
    }

    async fn commit_if_enough(&self, writer: &mut Writer) -> Result<(), Error> {
        self.metrics.uncommitted.set(writer.uncommitted() as u64);
        self.written.notify_one();
        let is_enough = writer.writing.as_ref().is_some_and(|writing| writing.is_enough(self));
        if is_enough { self.commit(writer).await } else { Ok(()) }
    }

    /// Drops what is not committed, finds or creates the index, and begins a series.
    async fn begin(&self, writer: &mut Writer) -> Result<Begun, Error> {
        self.check_open()?;
        self.end_series();
        self.drop_writing(writer);
        let result = self.begin_writing().await;
        let writing = self.settle(writer, result)?;
        let checkpoint = writing.checkpoint.clone();
        writer.writing = Some(writing);
        self.is_missing.store(false, Ordering::Release);
        *self.failure.lock() = None;
        self.circuit.answered();
        self.written.notify_one();
        Ok(Begun { series: Series(*self.series.borrow()), checkpoint })
    }

    /// Drops what is not committed.
    fn drop_writing(&self, writer: &mut Writer) {
        writer.writing = None;
        self.ahead.lock().clear();
        self.metrics.uncommitted.set(0);
    }

    async fn begin_writing(&self) -> Result<Writing, Failure> {
        if self.is_to_be_cleared.load(Ordering::Acquire) {
            self.replace().await?;
            self.is_to_be_cleared.store(false, Ordering::Release);
        }
        let Found { live, next, .. } = self.find_or_create().await?;
        let (index, build) = match (live, next) {
            (live, Some(next)) => (next, Some(Build::new(live))),
            (Some(live), None) => (live, None),
            (None, None) => return Err(Failure::Missing), // it was just made
        };
        let (version, checkpoint) = self.take_over(&index).await?;
        // What an earlier series wrote without making it visible.
        self.refresh(&index).await?;
        let mut writing = Writing {
            index,
            version,
            pending: BTreeMap::new(),
            known: BTreeMap::new(),
            checkpoint,
            is_checkpoint_new: false,
            uncommitted: 0,
            uncommitted_bytes: 0,
            documents_since: None,
            others_since: None,
            rejected: 0,
            build,
        };
        self.reset_unfinished(&mut writing).await?;
        Ok(writing)
    }

    /// Takes the next version for a series: later writes of another process are refused for documents that this one has
    /// written.
    async fn take_over(&self, index: &IndexName) -> Result<(i64, Option<Bytes>), Failure> {
        let path = format!("/{}/_doc/{META}?routing={META}", index.as_str());
        let answer = self.client.ask(Method::GET, &path, Body::Nothing, self.query_limit()).await?;
        if answer.is_missing() {
            return Err(Failure::Missing);
        }
        let known = match answer.status {
            StatusCode::NOT_FOUND => Value::Null,
            _ => answer.success("read the checkpoint of the search index")?,
        };
        let before = known.get("_version").and_then(Value::as_i64).unwrap_or_default();
        let text = known.pointer("/_source/checkpoint").and_then(Value::as_str);
        let checkpoint = text.and_then(|text| hex::decode(text).ok()).map(Bytes::from);
        let version = before.div_euclid(SERIES_VERSIONS).saturating_add(1).saturating_mul(SERIES_VERSIONS);
        let path = format!(
            "/{}/_doc/{META}?routing={META}&version={version}&version_type=external&require_alias=true",
            index.for_writes()
        );
        let body = Body::Json(meta(checkpoint.as_ref()));
        let answer = self.client.ask(Method::PUT, &path, body, self.write_limit()).await?;
        match answer.status {
            StatusCode::CONFLICT => Err(Failure::Fenced),
            _ if answer.is_missing() => Err(Failure::Missing),
            _ => {
                answer.success("begin to write to the search index")?;
                Ok((version, checkpoint))
            }
        }
    }

    /// Sets accounts whose removals may be incomplete to revision 0: they are read again.
    async fn reset_unfinished(&self, writing: &mut Writing) -> Result<(), Failure> {
        loop {
            let accounts = self.unfinished(&writing.index, ACCOUNTS_MAX).await?;
            if accounts.is_empty() {
                return Ok(());
            }
            warn!(
                accounts = accounts.len(),
                "a commit of the search index was broken off: its accounts are indexed again"
            );
            writing.version += 1;
            let item =
                |account: &AccountId| writing.state_item(*account, Revision(0), false, writing.version);
            let items: Vec<Item> = accounts.iter().map(item).collect();
            self.bulk_all(&writing.index, items, Refresh::Later).await?;
            self.refresh(&writing.index).await?;
        }
    }

    /// Writes items, all of which must be accepted.
    async fn bulk_all(&self, index: &IndexName, items: Vec<Item>, refresh: Refresh) -> Result<(), Failure> {
        match self.bulk(index, items, refresh).await?.first() {
            None => Ok(()),
            Some(rejected) => {
                let what =
                    "OpenSearch refuses the state of the search index: is its mapping still restante's";
                Err(Error::internal(format!("{what} ({}: {})", rejected.id, rejected.why)).into())
            }
        }
    }

    /// Makes what was written visible in all copies of all shards.
    pub(super) async fn refresh(&self, index: &IndexName) -> Result<(), Failure> {
        let path = format!("/{}/_refresh", index.as_str());
        let answer = self.client.ask(Method::POST, &path, Body::Nothing, self.write_limit()).await?;
        if answer.is_missing() {
            return Err(Failure::Missing);
        }
        let done = answer.success("show what was written")?;
        match done.pointer("/_shards/failed").and_then(Value::as_u64) {
            Some(0) => Ok(()),
            _ => Err(Error::unavailable("a shard of the search index did not show what was written").into()),
        }
    }

    /// Removes some documents of an account, and returns how many; 0 when none is left.
    async fn erase_some(&self, index: &IndexName, account: AccountId) -> Result<u64, Failure> {
        let path = format!(
            "/{}/_delete_by_query?routing={}&max_docs={ERASED_MAX}&conflicts=proceed&refresh=true",
            index.as_str(),
            account.0
        );
        let query = json!({"bool": {
            "filter": [{"term": {"account": account.0.to_string()}}],
            "must_not": [{"term": {"state": account.0}}],
        }});
        let body = Body::Json(json!({ "query": query }));
        let answer = self.client.ask(Method::POST, &path, body, self.write_limit()).await?;
        if answer.is_missing() {
            return Err(Failure::Missing);
        }
        let done = answer.success("erase an account")?;
        let number = |field: &str| done.get(field).and_then(Value::as_u64).unwrap_or_default();
        let (removed, conflicts) = (number("deleted"), number("version_conflicts"));
        let has_failed = done.get("failures").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        if has_failed || (removed == 0 && conflicts > 0) {
            return Err(
                Error::unavailable("OpenSearch did not remove all emails of an erased account").into()
            );
        }
        Ok(removed)
    }

    /// The committed revisions of accounts, in the order of the accounts.
    pub(super) async fn revisions_in(
        &self,
        index: &IndexName,
        accounts: &[AccountId],
    ) -> Result<Vec<Revision>, Failure> {
        let documents: Vec<Value> = accounts
            .iter()
            .map(|account| json!({"_id": state_id(*account), "routing": account.0.to_string()}))
            .collect();
        let path = format!("/{}/_mget", index.as_str());
        let body = Body::Json(json!({ "docs": documents }));
        let answer = self.client.ask(Method::POST, &path, body, self.query_limit()).await?;
        if answer.is_missing() {
            return Err(Failure::Missing);
        }
        let found = answer.success("read the revisions of accounts")?;
        let found = found.get("docs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let is_answered = |one: &Value| one.get("found").is_some_and(Value::is_boolean);
        if found.len() != accounts.len() || !found.iter().all(is_answered) {
            return Err(Error::unavailable("OpenSearch did not return the revisions of accounts").into());
        }
        let revision =
            |one: &Value| one.pointer("/_source/revision").and_then(Value::as_u64).unwrap_or_default();
        Ok(found.iter().map(|one| Revision(revision(one))).collect())
    }

    pub(super) async fn clear(&self, writer: &mut Writer) -> Result<(), Error> {
        self.check_open()?;
        self.is_to_be_cleared.store(true, Ordering::Release);
        self.end_series();
        self.drop_writing(writer);
        self.replace().await?;
        self.is_to_be_cleared.store(false, Ordering::Release);
        Ok(())
    }

    /// Begins to build an index beside the one that queries read.
    pub(super) async fn rebuild(&self, writer: &mut Writer) -> Result<(), Error> {
        self.check_open()?;
        self.end_series();
        self.drop_writing(writer);
        self.create_next().await?;
        // A server that writes to the index that queries read notices that its series has ended.
        match self.find().await?.live {
            Some(live) => self.take_over(&live).await.map(drop).map_err(Failure::into_error),
            None => Ok(()),
        }
    }

    /// Commits what was written, and closes.
    pub(super) async fn close(&self, writer: &mut Writer) -> Result<(), Error> {
        self.permits.close();
        let committed = self.commit(writer).await;
        self.end_series();
        self.drop_writing(writer);
        committed
    }
}

#[async_trait]
impl Index for Handle {
    async fn begin(&self) -> Result<Begun, Error> {
        self.engine.check_open()?;
        let failures = self.engine.writer.lock().await.failures;
        if let Some(more) = failures.checked_sub(1) {
            sleep((BEGIN_DELAY_MIN * (1 << more.min(16))).min(BEGIN_DELAY_MAX)).await;
        }
        let mut writer = self.engine.writer.lock().await;
        self.engine.begin(&mut writer).await
    }

    async fn ended(&self, series: Series) {
        let mut now = self.engine.series.subscribe();
        let _ = now.wait_for(|now| *now != series.0).await; // fails when the index was dropped
    }

    async fn write(&self, series: Series, account: AccountId, mut batch: Batch) -> Result<(), Error> {
        validate::batch(&batch)?;
        let documents = rows(account, take(&mut batch.documents)).await?;
        let mut writer = self.engine.writer.lock().await;
        let writing = self.engine.writing_of(&mut writer, series)?;
        writing.write(account, &batch, documents);
        if let Some(ahead) = writing.ahead(account) {
            self.engine.ahead.lock().insert(account, ahead);
        }
        self.engine.commit_if_enough(&mut writer).await
    }

    async fn erase(&self, series: Series, account: AccountId) -> Result<(), Error> {
        let mut writer = self.engine.writer.lock().await;
        self.engine.writing_of(&mut writer, series)?.erase(account);
        self.engine.commit_if_enough(&mut writer).await
    }

    async fn save(&self, series: Series, checkpoint: Bytes) -> Result<(), Error> {
        validate::checkpoint(&checkpoint)?;
        let mut writer = self.engine.writer.lock().await;
        self.engine.writing_of(&mut writer, series)?.save(checkpoint);
        self.engine.commit_if_enough(&mut writer).await
    }

    async fn revisions(&self, series: Series, accounts: &[AccountId]) -> Result<Vec<Revision>, Error> {
        let mut writer = self.engine.writer.lock().await;
        let found = self.engine.writing_of(&mut writer, series)?.revisions(&self.engine, accounts).await;
        self.engine.settle(&mut writer, found)
    }

    async fn commit(&self, series: Series) -> Result<(), Error> {
        let mut writer = self.engine.writer.lock().await;
        self.engine.writing_of(&mut writer, series)?;
        self.engine.commit(&mut writer).await
    }
}

/// Documents in the form in which they are written. Splitting megabytes into words takes a while.
async fn rows(account: AccountId, documents: Vec<Document>) -> Result<Vec<(RecordId, Bytes)>, Error> {
    if documents.is_empty() {
        return Ok(Vec::new());
    }
    let make = move || {
        let row = |one: &Document| document(account, one).map(|bytes| (one.id, Bytes::from(bytes)));
        documents.iter().map(row).collect()
    };
    spawn_blocking(make).await.map_err(|_| Error::unavailable("the runtime is stopping"))?
}
