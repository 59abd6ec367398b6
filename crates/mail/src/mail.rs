use std::{
    collections::BTreeSet,
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use restante_blobs::Blobs;
use restante_core::{BlobId, Clock, Error, Gate};
use restante_records::{AccountId, Cursor, Get, Kind, Query, RecordId, Records, Revision, Upkeep};

use crate::{
    CreatedEmail, Delivered, Delivery, EmailUpdate, Imported, ImportedMessage, Keywords, MailConfig,
    MailError, MailMetrics, Mailbox, MailboxSet, MailboxSetOutcome, NewEmail, NewMailbox, Parent, Patch,
    Purged, Transition, VaultEntry, VaultPage, VaultUsage,
    keywords::{SEEN, parse_keyword},
    lane::{ListedMailboxes, Writer},
    metrics::DeliveryResult,
    plan::{Done, Edit, RESTORED},
    read::Reader,
    schema::{account, email, mailbox, vault},
};

/// The most emails that one call of [`Mail::set_mailboxes`] removes from mailboxes, in commits of 256.
const EMPTYING_COMMITS_MAX: usize = 1 << 16;
/// Records that one step of [`Mail::erase`] erases.
const ERASE_RECORDS: usize = 4_096;
/// The locks of [`Mail::lock_edits`].
const EDIT_LOCKS: usize = 256;
/// The longest page of the vault.
const VAULT_PAGE_MAX: usize = 256;

/// The mail of accounts. Cloning shares it.
///
/// Edits of one account are made one after the other, in the order of the calls; those that wait share a commit. An edit returns
/// when its commit is durable. If the caller stops waiting, the edit is made as a whole or not at all.
#[derive(Clone)]
pub struct Mail {
    inner: Arc<Inner>,
    /// The number that the edits of one call share.
    call: Option<NonZero<u64>>,
}

struct Inner {
    writer: Arc<Writer>,
    blobs: Arc<dyn Blobs>,
    /// The number of the last call.
    calls: AtomicU64,
    /// Locks that serialize changes of records of one kind in an account. Callers that share a lock wait for each other.
    edit_locks: Vec<tokio::sync::Mutex<()>>,
}

/// What an account uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The bytes of its emails, each counted once.
    pub bytes: u64,
    /// Its emails.
    pub emails: u64,
    /// The state of EmailDelivery (RFC 8621 §1.5).
    pub delivered: Revision,
    /// The state of both numbers.
    pub state: Revision,
}

/// A wrong derived figure, or a wrong record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where the problem is: `mailbox 3`, `email 12`, `the account`.
    pub place: String,
    /// What is wrong with it: lowercase, no full stop.
    pub what: String,
    /// Whether [`Mail::rebuild`] corrects it.
    pub is_derived: bool,
}

impl Mail {
    /// The mail in these records, which were opened with [`crate::kinds`] in their schema. Must be called in a tokio runtime.
    pub fn new(
        records: Arc<dyn Records>,
        blobs: Arc<dyn Blobs>,
        clock: Arc<dyn Clock>,
        config: MailConfig,
        metrics: MailMetrics,
    ) -> Self {
        let writer = Arc::new(Writer::new(records, clock, config, metrics));
        let edit_locks = (0..EDIT_LOCKS).map(|_| tokio::sync::Mutex::default()).collect();
        let inner = Inner { writer, blobs, calls: AtomicU64::new(0), edit_locks };
        Self { inner: Arc::new(inner), call: None }
    }

    /// A handle for the edits of one method call: edits of the same call that share a commit are not [`Transition::is_shared`] for
    /// each other.
    #[must_use]
    pub fn for_call(&self) -> Self {
        let call = self.inner.calls.fetch_add(1, Ordering::Relaxed) + 1;
        Self { inner: self.inner.clone(), call: NonZero::new(call) }
    }

    /// The records, for readers.
    pub fn records(&self) -> &Arc<dyn Records> {
        &self.inner.writer.records
    }

    /// The blobs, for readers.
    pub fn blobs(&self) -> &Arc<dyn Blobs> {
        &self.inner.blobs
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.writer.clock
    }

    /// The limits.
    pub fn config(&self) -> &MailConfig {
        &self.inner.writer.config
    }

    /// Creates what every account has, if it is missing: Inbox, Drafts, Sent, Archive, Junk and Trash with their roles. All edits
    /// do this first. A door calls it at a log-in, before mailboxes are read.
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn prepare(&self, account: AccountId) -> Result<(), MailError> {
        let lane = self.inner.writer.lane(account);
        if !lane.is_prepared() {
            self.edit(account, Edit::Prepare).await?;
            lane.set_prepared();
        }
        Ok(())
    }

    /// Delivers a message to an account exactly once, even if the delivery is repeated within
    /// [`MailConfig::delivery_memory_seconds`], the email has been destroyed since, or several servers deliver it at the same time.
    ///
    /// # Errors
    /// [`MailError::OverQuota`]; [`MailError::Store`]: repeating is safe.
    pub async fn deliver(&self, account: AccountId, delivery: Delivery) -> Result<Delivered, MailError> {
        self.deliver_with(account, delivery, None).await
    }

    /// Like [`Mail::deliver`], for a message whose blob is still being put: the edit is prepared meanwhile, and only the commit
    /// waits for the blob. Other edits of the account may wait for it, too, so the put must be short.
    ///
    /// # Errors
    /// Those of [`Mail::deliver`]; `Store` with the error of the put when it has failed: nothing is delivered then.
    pub async fn deliver_when_put(
        &self,
        account: AccountId,
        delivery: Delivery,
        blob: Gate,
    ) -> Result<Delivered, MailError> {
        self.deliver_with(account, delivery, Some(blob)).await
    }

    async fn deliver_with(
        &self,
        account: AccountId,
        delivery: Delivery,
        blob: Option<Gate>,
    ) -> Result<Delivered, MailError> {
        let delivered = match self.edit_with(account, Edit::Deliver(delivery), blob).await {
            Ok(Done::Delivered(delivered)) => Ok(delivered),
            Ok(_) => Err(other_answer()),
            Err(error) => Err(error),
        };
        let result = match &delivered {
            Ok(Delivered::New(_)) => DeliveryResult::New,
            Ok(Delivered::Repeated) => DeliveryResult::Repeated,
            Err(MailError::OverQuota) => DeliveryResult::OverQuota,
            Err(_) => DeliveryResult::Failed,
        };
        self.inner.writer.metrics.deliveries_of(result).inc();
        delivered
    }

    /// Imports a message from elsewhere: once for each folder of its source, even if it is repeated after the email was moved, or
    /// was destroyed and is still in the vault. A message that is found in several folders becomes one email in several mailboxes,
    /// with the keywords of all.
    ///
    /// # Errors
    /// Those of [`Mail::create_email`] except `StateMismatch`; after `Store`, repeating is safe.
    pub async fn import(
        &self,
        account: AccountId,
        mut message: ImportedMessage,
    ) -> Result<Imported, MailError> {
        message.keywords = parse_keywords(&message.keywords)?.into_iter().collect();
        if message.keywords.len() > self.config().keywords_per_email_max.get() {
            return Err(MailError::TooManyKeywords);
        }
        match self.edit(account, Edit::Import(message)).await? {
            Done::Imported(imported) => Ok(imported),
            _ => Err(other_answer()),
        }
    }

    /// Whether [`Mail::import`] has imported the message with this key from all these folders: then its bytes are not needed.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn is_imported(
        &self,
        account: AccountId,
        key: &[u8; 32],
        origins: &[u64],
    ) -> Result<bool, MailError> {
        let known = self.reader(account).stored_origins(key).await?;
        Ok(origins.iter().all(|origin| known.contains(origin)))
    }

    /// The email that [`Mail::deliver`] has stored for this key, unless it was destroyed.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn delivered_before(
        &self,
        account: AccountId,
        key: &[u8; 32],
    ) -> Result<Option<RecordId>, Error> {
        self.reader(account).delivered_before(key).await
    }

    /// Whether the account has an email with this id that is in a mailbox and whose message is this blob.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn has_email(&self, account: AccountId, id: RecordId, blob: BlobId) -> Result<bool, MailError> {
        let Some(record) = self.reader(account).email_record(id).await? else { return Ok(false) };
        let is_visible = record.properties.values(email::MAILBOX).next().is_some();
        Ok(is_visible && record.body.blobs.first() == Some(&blob))
    }

    /// Creates an email.
    ///
    /// # Errors
    /// `StateMismatch`, `NoMailbox`, `UnknownMailbox`, `TooManyMailboxes`, `BadKeyword`, `TooManyKeywords`, `OverQuota`, `Store`.
    pub async fn create_email(
        &self,
        account: AccountId,
        mut email: NewEmail,
    ) -> Result<CreatedEmail, MailError> {
        email.keywords = parse_keywords(&email.keywords)?.into_iter().collect();
        if email.keywords.len() > self.config().keywords_per_email_max.get() {
            return Err(MailError::TooManyKeywords);
        }
        created(self.edit(account, Edit::Create(email)).await?)
    }

    /// Changes the mailboxes and keywords of an email. An update that changes nothing commits nothing.
    ///
    /// # Errors
    /// `NotFound`, and those of [`Mail::create_email`] but `OverQuota`.
    pub async fn update_email(
        &self,
        account: AccountId,
        id: RecordId,
        mut update: EmailUpdate,
    ) -> Result<Transition, MailError> {
        update.keywords = match &update.keywords {
            Patch::Keep => Patch::Keep,
            Patch::Whole(keywords) => Patch::Whole(parse_keywords(keywords)?),
            Patch::Parts { add, remove } => {
                Patch::Parts { add: parse_keywords(add)?, remove: parse_keywords(remove)? }
            }
        };
        if let Patch::Whole(added) | Patch::Parts { add: added, .. } = &update.keywords
            && added.len() > self.config().keywords_per_email_max.get()
        {
            return Err(MailError::TooManyKeywords); // before new keywords are added to the account
        }
        match self.edit(account, Edit::Update(id, update)).await? {
            Done::Updated(states) => Ok(states),
            _ => Err(other_answer()),
        }
    }

    /// Destroys an email: it goes into the vault, in the same commit.
    ///
    /// # Errors
    /// `StateMismatch`, `NotFound`, `Store`.
    pub async fn destroy_email(
        &self,
        account: AccountId,
        id: RecordId,
        if_in_state: Option<Revision>,
    ) -> Result<Transition, MailError> {
        match self.edit(account, Edit::Destroy(id, if_in_state)).await? {
            Done::Updated(states) => Ok(states),
            _ => Err(other_answer()),
        }
    }

    /// Creates, changes and destroys mailboxes. An invalid entry does not prevent the others. Entries are checked against the
    /// mailboxes as they are after all of them, so two mailboxes can swap their names, and a parent can be destroyed together with
    /// its children.
    ///
    /// Everything is one commit, except that the emails of destroyed mailboxes are removed in several commits before it if they are many.
    ///
    /// # Errors
    /// `StateMismatch`, `Store`; those of entries are in the outcome.
    pub async fn set_mailboxes(
        &self,
        account: AccountId,
        mut set: MailboxSet,
    ) -> Result<MailboxSetOutcome, MailError> {
        let mut first_state = None;
        let mut commits = 0;
        loop {
            match self.edit(account, Edit::SetMailboxes(set.clone())).await? {
                Done::Mailboxes(mut outcome) => {
                    if let Some(first) = first_state {
                        // Edits of other callers may have come between the commits.
                        outcome.states = Transition { old: first, is_shared: true, ..outcome.states };
                    }
                    return Ok(outcome);
                }
                Done::NeedsEmptying { mailboxes, old } => {
                    first_state.get_or_insert(old);
                    set.if_in_state = None; // it was checked when the set began
                    for mailbox in mailboxes {
                        self.empty(account, mailbox, &mut commits).await?;
                    }
                }
                _ => return Err(other_answer()),
            }
        }
    }

    /// Removes the emails that are in a mailbox now.
    async fn empty(
        &self,
        account: AccountId,
        mailbox: RecordId,
        commits: &mut usize,
    ) -> Result<(), MailError> {
        loop {
            *commits += 1;
            if *commits > EMPTYING_COMMITS_MAX {
                let what =
                    format!("mailbox {} gets emails faster than they are removed: try again", mailbox.0);
                return Err(Error::unavailable(what).into());
            }
            match self.edit(account, Edit::Empty(mailbox)).await? {
                Done::Emptied { has_more: true } => {}
                Done::Emptied { has_more: false } => return Ok(()),
                _ => return Err(other_answer()),
            }
        }
    }

    /// All mailboxes of an account by their ids, and their state. A change made while they are read may be in the mailboxes but not
    /// in the state.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn mailboxes(&self, account: AccountId) -> Result<(Arc<Vec<Mailbox>>, Revision), MailError> {
        let lane = self.inner.writer.lane(account);
        let state = self.records().states(account).await?.of(mailbox::KIND);
        if let Some(known) = lane.mailboxes.lock().as_ref().filter(|known| known.state == state) {
            return Ok((known.list.clone(), state));
        }
        let list = Arc::new(self.reader(account).mailboxes().await?);
        let state_after = self.records().states(account).await?.of(mailbox::KIND);
        let mut known = lane.mailboxes.lock();
        *known = None; // releases its memory first
        if state_after == state
            && let Some(memory) = self.inner.writer.keep_in_memory(list.len())
        {
            *known = Some(ListedMailboxes { list: list.clone(), state, _memory: memory });
        }
        Ok((list, state))
    }

    /// What an account uses.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn usage(&self, account: AccountId) -> Result<Usage, MailError> {
        let state = self.records().states(account).await?.of(account::KIND);
        let record = self.reader(account).account_record().await?;
        let delivered = record.delivered;
        Ok(Usage { bytes: record.bytes, emails: record.count, delivered, state })
    }

    /// The names of the account's keywords. They include all of `numbers` that emails have.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn keywords(&self, account: AccountId, numbers: &[u64]) -> Result<Arc<Keywords>, MailError> {
        let lane = self.inner.writer.lane(account);
        let known = lane.keywords.lock().clone();
        if known.has_all(numbers) {
            return Ok(known);
        }
        let (keywords, _) = self.reader(account).keywords().await?;
        let keywords = Arc::new(keywords);
        lane.keywords.lock().clone_from(&keywords);
        Ok(keywords)
    }

    /// The number of a keyword in lowercase; `None` when no email of the account has or had it, and for `$seen`.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn keyword_number(&self, account: AccountId, name: &str) -> Result<Option<u64>, MailError> {
        let known = self.inner.writer.lane(account).keywords.lock().clone();
        if name == SEEN || known.number(name).is_some() {
            return Ok(known.number(name));
        }
        Ok(self.reader(account).keyword_number(name).await?)
    }

    /// A page of the emails that can be restored, the last destroyed first.
    ///
    /// # Errors
    /// Those of the records; `Invalid` for a limit of 0.
    pub async fn vault(
        &self,
        account: AccountId,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<VaultPage, MailError> {
        let mut query = Query::new(vault::KIND, vault::BY_DELETED_AT).descending();
        (query.after, query.limit) = (after, limit.min(VAULT_PAGE_MAX));
        let page = self.records().query(account, &query).await?;
        let records = self.records().get(account, &Get::whole(vault::KIND, page.ids)).await?;
        let entries = records.into_iter().flatten().map(VaultEntry::of).collect();
        Ok(VaultPage { entries, next: page.next })
    }

    /// How much a vault holds. At most `entries_max` of its emails are read, those that were destroyed last.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn vault_usage(&self, account: AccountId, entries_max: u64) -> Result<VaultUsage, Error> {
        let mut usage = VaultUsage::default();
        let mut query = Query::new(vault::KIND, vault::BY_DELETED_AT).descending().limit(VAULT_PAGE_MAX);
        loop {
            let page = self.records().query(account, &query).await?;
            let read = self.records().get(account, &Get::small(vault::KIND, page.ids)).await?;
            for entry in read.into_iter().flatten().map(VaultEntry::of) {
                usage.add(&entry);
            }
            match page.next {
                None => return Ok(VaultUsage { is_whole: true, ..usage }),
                Some(_) if usage.emails >= entries_max => return Ok(usage),
                next => query.after = next,
            }
            tokio::task::yield_now().await; // other tasks run between the pages of a long vault
        }
    }

    /// Creates a new email from a destroyed one, in those of its mailboxes that still exist, or else in a mailbox at the top with
    /// the name `Restored`.
    ///
    /// # Errors
    /// `NotFound`, `OverQuota`, `Store`.
    pub async fn restore(
        &self,
        account: AccountId,
        entry: RecordId,
        quota: Option<u64>,
    ) -> Result<CreatedEmail, MailError> {
        match self.edit(account, Edit::Restore(entry, quota)).await? {
            Done::NeedsMailbox => {}
            done => return created(done),
        }
        let mailbox = NewMailbox {
            name: RESTORED.to_owned(),
            parent: Parent::Top,
            role: None,
            sort_order: 0,
            is_subscribed: true,
        };
        let set = MailboxSet { create: vec![mailbox], ..MailboxSet::default() };
        for created in self.set_mailboxes(account, set).await?.created {
            match created {
                // Another restore may have created it.
                Ok(_) | Err(MailError::AlreadyExists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        created(self.edit(account, Edit::Restore(entry, quota)).await?)
    }

    /// Removes up to `limit` emails from the vault, at most 256: those that are older than [`MailConfig::vault_seconds`], then the
    /// oldest ones while the vault has more than [`MailConfig::vault_bytes_max`].
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn purge_vault(&self, account: AccountId, limit: usize) -> Result<Purged, MailError> {
        // Most accounts have nothing to purge: this finds out without reading their views.
        let before = self.inner.writer.now().saturating_sub(self.config().vault_seconds);
        let reader = self.reader(account);
        let (old, _) = reader.old_vault_entries(before, 1).await?;
        if old.is_empty() {
            let has_space = match reader.account_record().await?.vault_bytes {
                Some(bytes) => bytes <= self.config().vault_bytes_max,
                None => reader.is_vault_empty().await?,
            };
            if has_space {
                return Ok(Purged::default());
            }
        }
        match self.edit(account, Edit::Purge(limit)).await? {
            Done::Purged(purged) => Ok(purged),
            _ => Err(other_answer()),
        }
    }

    /// Erases everything of an account, in small commits, and returns how many records it had: emails, mailboxes, the vault,
    /// uploads, push subscriptions. Log-ins and deliveries to the account must be disabled before; edits that arrive nevertheless
    /// are refused until it returns. An account without records is left as it is. `progress` gets the number of records erased so
    /// far.
    ///
    /// # Errors
    /// Those of [`Upkeep::erase`]; calling it again continues.
    pub async fn erase(
        &self,
        account: AccountId,
        upkeep: &dyn Upkeep,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<u64, Error> {
        let mut records = 0;
        loop {
            let erased = upkeep.erase(account, ERASE_RECORDS).await?;
            records += erased.records;
            progress(records);
            if !erased.has_more {
                break;
            }
        }
        self.inner.writer.forget(account);
        Ok(records)
    }

    /// Recounts every derived figure of an account, and returns the wrong ones, at most 1,000. Edits of the account wait meanwhile;
    /// 100,000 emails take about a second.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn check(&self, account: AccountId) -> Result<Vec<Finding>, MailError> {
        let (findings, _) = self.recount(account, false).await?;
        Ok(findings)
    }

    /// Recounts every derived figure of an account, corrects the wrong ones in the store, and returns them.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn rebuild(&self, account: AccountId) -> Result<Vec<Finding>, MailError> {
        let mut all = Vec::new();
        loop {
            let (findings, has_more) = self.recount(account, true).await?;
            all.extend(findings);
            if !has_more {
                return Ok(all);
            }
        }
    }

    async fn recount(&self, account: AccountId, is_repair: bool) -> Result<(Vec<Finding>, bool), MailError> {
        // An account that was never used stays empty: an edit would create its mailboxes.
        if self.records().states(account).await?.revision == Revision(0) {
            return Ok((Vec::new(), false));
        }
        match self.edit(account, Edit::Recount { is_repair }).await? {
            Done::Recounted { findings, has_more } => Ok((findings, has_more)),
            _ => Err(other_answer()),
        }
    }

    async fn edit(&self, account: AccountId, edit: Edit) -> Result<Done, MailError> {
        self.edit_with(account, edit, None).await
    }

    async fn edit_with(&self, account: AccountId, edit: Edit, blob: Option<Gate>) -> Result<Done, MailError> {
        let started = Instant::now();
        let done = self.inner.writer.edit(account, edit, blob, self.call).await;
        self.inner.writer.metrics.edit_seconds.observe(started.elapsed().as_secs_f64());
        done
    }

    /// Waits for the lock on records of a kind in an account. On this server, it serializes commits that fail when records of that
    /// kind have changed since they were read. Emails, mailboxes and keywords don't need it: they have their own writer. The holder
    /// of a lock must not wait for another one.
    pub async fn lock_edits(
        &self,
        account: AccountId,
        kind: Kind,
    ) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        // An odd factor: 256 consecutive accounts have different locks, and so have the kinds of one account.
        let number = (account.0 as usize).wrapping_mul(31).wrapping_add(kind.0.into());
        Some(self.inner.edit_locks.get(number % EDIT_LOCKS)?.lock().await)
    }

    fn reader(&self, account: AccountId) -> Reader<'_> {
        Reader { records: &**self.records(), account }
    }
}

fn parse_keywords<'k>(keywords: impl IntoIterator<Item = &'k String>) -> Result<BTreeSet<String>, MailError> {
    keywords.into_iter().map(|keyword| parse_keyword(keyword)).collect()
}

fn created(done: Done) -> Result<CreatedEmail, MailError> {
    match done {
        Done::Email { id, thread, states } => Ok(CreatedEmail { id, thread, states }),
        _ => Err(other_answer()),
    }
}

fn other_answer() -> MailError {
    Error::internal("an edit was answered as another one").into()
}
