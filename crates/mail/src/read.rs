//! Reads what an edit needs from the records into the view of an account.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use bytes::Bytes;
use restante_core::Error;
use restante_records::{
    AccountId, Cursor, Get, Index, Kind, Query, Record, RecordId, Records, Revision, Value,
};

use crate::{
    EmailState, Keywords, Mailbox,
    counts::{self, Shares},
    lane::keyword_hash,
    mailboxes::number_of,
    place::THREAD_EMAILS_MAX,
    schema::{account, email, keyword, mailbox, thread, vault},
    view::{AccountRecord, View},
};

/// Records that are read at once where there may be many.
const PAGE: usize = 4_096;
/// Rows of an index that are read at once: up to this number, engines read on the caller's thread.
const ROWS: usize = 1_024;
/// Whole records that are read at once.
const WHOLE_PAGE: usize = 256;
/// Emails of one delivery key or thread key that are read at once: there is seldom more than one.
const FEW: usize = 16;

/// Reads records of an account.
pub(crate) struct Reader<'r> {
    pub(crate) records: &'r dyn Records,
    pub(crate) account: AccountId,
}

/// Which of the emails that share a thread key is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Oldest,
    Newest,
}

/// What earlier imports made of a message.
#[derive(Default)]
pub(crate) struct ImportedBefore {
    /// The email that the message became.
    pub(crate) email: Option<(RecordId, EmailState)>,
    /// The folders of the source that it was imported from, even if it was destroyed since.
    pub(crate) origins: BTreeSet<u64>,
}

impl Reader<'_> {
    /// The mailboxes and the account's own record. The states are read first, so a commit that names them fails when something has
    /// changed since.
    pub(crate) async fn view(&self) -> Result<View, Error> {
        let states = self.records.states(self.account).await?;
        let account = self.account_record().await?;
        let mailboxes = self.mailboxes().await?;
        Ok(View::new(states, account, mailboxes))
    }

    pub(crate) async fn account_record(&self) -> Result<AccountRecord, Error> {
        let found =
            self.records.query(self.account, &Query::new(account::KIND, account::ALL).limit(1)).await?;
        let Some(record) = self.small(account::KIND, found.ids).await?.into_iter().next() else {
            return Ok(AccountRecord::default());
        };
        let number = |property| number_of(&record.properties, property).unwrap_or(0);
        Ok(AccountRecord {
            id: Some(record.id),
            bytes: number(account::BYTES),
            count: number(account::COUNT),
            delivered: Revision(number(account::DELIVERED)),
            uid_validity: number(account::UID_VALIDITY),
            vault_bytes: number_of(&record.properties, account::VAULT_BYTES),
        })
    }

    /// All mailboxes by their ids.
    pub(crate) async fn mailboxes(&self) -> Result<Vec<Mailbox>, Error> {
        let mut mailboxes = Vec::new();
        let mut ids = self.all(Query::new(mailbox::KIND, mailbox::BY_PARENT)).await?;
        ids.sort_unstable();
        for ids in ids.chunks(PAGE) {
            for record in self.whole(mailbox::KIND, ids.to_vec()).await? {
                mailboxes.push(Mailbox::of(&record)?);
            }
        }
        Ok(mailboxes)
    }

    /// All keywords of the account, and the state of their kind before they were read.
    pub(crate) async fn keywords(&self) -> Result<(Keywords, Revision), Error> {
        let state = self.records.states(self.account).await?.of(keyword::KIND);
        let mut keywords = Keywords::default();
        let ids = self.all(Query::new(keyword::KIND, keyword::BY_HASH)).await?;
        for ids in ids.chunks(WHOLE_PAGE) {
            for record in self.whole(keyword::KIND, ids.to_vec()).await? {
                let name = std::str::from_utf8(&record.body.bytes)
                    .map_err(|_| Error::corrupt(format!("the keyword {} is damaged", record.id.0)))?;
                keywords.insert(record.id.0 + keyword::FIRST_OTHER, name.to_ascii_lowercase());
            }
        }
        Ok((keywords, state))
    }

    /// The number of a keyword in lowercase that is not well-known.
    pub(crate) async fn keyword_number(&self, name: &str) -> Result<Option<u64>, Error> {
        let query = Query::new(keyword::KIND, keyword::BY_HASH).equals(keyword_hash(name)).limit(FEW);
        let page = self.records.query(self.account, &query).await?;
        let records = self.whole(keyword::KIND, page.ids).await?;
        let same = records.iter().find(|record| record.body.bytes.eq_ignore_ascii_case(name.as_bytes()));
        Ok(same.map(|record| record.id.0 + keyword::FIRST_OTHER))
    }

    /// An email as the commit leaves it so far; `None` when it does not exist.
    pub(crate) async fn email(&self, view: &mut View, id: RecordId) -> Result<Option<EmailState>, Error> {
        if view.email(id).is_none() {
            let records = self.small(email::KIND, vec![id]).await?;
            let Some(record) = records.first() else { return Ok(None) };
            view.note_email(id, EmailState::of(record)?);
        }
        Ok(view.email(id).flatten().cloned())
    }

    /// What earlier imports made of the message with this key, as the commit leaves it so far.
    pub(crate) async fn imported_before(
        &self,
        view: &mut View,
        key: &Value,
    ) -> Result<ImportedBefore, Error> {
        let mut before = ImportedBefore::default();
        let query = Query::new(email::KIND, email::BY_DELIVERY).equals(key.clone()).limit(FEW);
        let stored = self.records.query(self.account, &query).await?.ids;
        for id in stored.into_iter().chain(view.newly_delivered(key)) {
            let Some(state) = self.email(view, id).await? else { continue };
            before.origins.extend(&state.origins);
            if before.email.is_none() && !state.mailboxes.is_empty() {
                before.email = Some((id, state));
            }
        }
        before.origins.extend(self.stored_origins_in(vault::KIND, vault::BY_DELIVERY, key).await?);
        Ok(before)
    }

    /// The folders of its source that a message was imported from, according to the records.
    pub(crate) async fn stored_origins(&self, key: &[u8; 32]) -> Result<BTreeSet<u64>, Error> {
        let key = Value::Text(Bytes::copy_from_slice(key));
        let mut origins = self.stored_origins_in(email::KIND, email::BY_DELIVERY, &key).await?;
        origins.extend(self.stored_origins_in(vault::KIND, vault::BY_DELIVERY, &key).await?);
        Ok(origins)
    }

    /// The same, of emails or of the vault: their properties for it have the same number.
    async fn stored_origins_in(&self, kind: Kind, index: Index, key: &Value) -> Result<BTreeSet<u64>, Error> {
        let query = Query::new(kind, index).equals(key.clone()).limit(FEW);
        let ids = self.records.query(self.account, &query).await?.ids;
        let mut origins = BTreeSet::new();
        for record in self.small(kind, ids).await? {
            origins.extend(record.properties.values(email::ORIGIN).filter_map(|value| match value {
                Value::Number(origin) => Some(*origin),
                _ => None,
            }));
        }
        Ok(origins)
    }

    /// A whole email record.
    pub(crate) async fn email_record(&self, id: RecordId) -> Result<Option<Record>, Error> {
        Ok(self.whole(email::KIND, vec![id]).await?.into_iter().next())
    }

    /// All emails of a thread.
    pub(crate) async fn thread(&self, view: &mut View, id: RecordId) -> Result<(), Error> {
        if view.thread(id).is_some() {
            return Ok(());
        }
        let emails = self.all(Query::new(email::KIND, email::BY_THREAD).equals(id)).await?;
        for ids in emails.chunks(PAGE) {
            let unknown = ids.iter().filter(|id| view.email(**id).is_none()).copied().collect();
            for record in self.small(email::KIND, unknown).await? {
                view.note_email(record.id, EmailState::of(&record)?);
            }
        }
        view.note_thread(id, emails);
        Ok(())
    }

    /// The thread that an email with these thread keys joins: that of the oldest email that shares one or, when it is full, that of
    /// the newest one; `None` when that is full, too, and a new thread must begin. The emails of the thread are in the view then.
    pub(crate) async fn joined_thread(
        &self,
        view: &mut View,
        keys: &[Value],
    ) -> Result<Option<RecordId>, Error> {
        for age in [Age::Oldest, Age::Newest] {
            let Some(email) = self.sharing(view, keys, age).await? else { return Ok(None) };
            let Some(state) = self.email(view, email).await? else { return Ok(None) };
            self.thread(view, state.thread).await?;
            if view.thread(state.thread).is_some_and(|emails| emails.len() < THREAD_EMAILS_MAX) {
                return Ok(Some(state.thread));
            }
        }
        Ok(None)
    }

    /// The oldest or the newest email that shares a thread key.
    async fn sharing(&self, view: &View, keys: &[Value], age: Age) -> Result<Option<RecordId>, Error> {
        let mut best: Option<RecordId> = None;
        for key in keys {
            let stored = self.stored_sharing(view, key, age).await?;
            let new = view.new_emails_with_thread_key(key).iter().copied();
            let candidates = stored.into_iter().chain(new).chain(best);
            best = if age == Age::Oldest { candidates.min() } else { candidates.max() };
        }
        Ok(best)
    }

    async fn stored_sharing(&self, view: &View, key: &Value, age: Age) -> Result<Option<RecordId>, Error> {
        let mut query = Query::new(email::KIND, email::BY_THREAD_KEY).equals(key.clone()).limit(FEW);
        if age == Age::Newest {
            query = query.descending();
        }
        loop {
            let page = self.records.query(self.account, &query).await?;
            if let Some(id) = page.ids.iter().find(|id| !view.is_destroyed(**id)) {
                return Ok(Some(*id));
            }
            let Some(next) = page.next else { return Ok(None) };
            query = query.after(next);
        }
    }

    /// Whether a message was delivered with this key since a time, even if it was destroyed meanwhile.
    pub(crate) async fn is_delivered(&self, view: &View, key: &Value, since: u64) -> Result<bool, Error> {
        if view.is_newly_delivered(key) {
            return Ok(true);
        }
        let stored = [
            (email::KIND, email::BY_DELIVERY, email::RECEIVED),
            (vault::KIND, vault::BY_DELIVERY, vault::RECEIVED),
        ];
        for (kind, index, received) in stored {
            // Only the ones with the highest ids can be recent enough.
            let query = Query::new(kind, index).equals(key.clone()).descending().limit(FEW);
            let page = self.records.query(self.account, &query).await?;
            for record in self.small(kind, page.ids).await? {
                if number_of(&record.properties, received).is_some_and(|received| received >= since) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The newest email of a delivery key that is in a mailbox.
    pub(crate) async fn delivered_before(&self, key: &[u8; 32]) -> Result<Option<RecordId>, Error> {
        let key = Value::Text(Bytes::copy_from_slice(key));
        let query = Query::new(email::KIND, email::BY_DELIVERY).equals(key).descending().limit(FEW);
        let page = self.records.query(self.account, &query).await?;
        let records = self.small(email::KIND, page.ids).await?;
        let is_visible = |record: &&Record| record.properties.values(email::MAILBOX).next().is_some();
        Ok(records.iter().filter(is_visible).map(|record| record.id).max())
    }

    /// An entry of the vault that is still there.
    pub(crate) async fn vault_entry(&self, view: &View, id: RecordId) -> Result<Option<Record>, Error> {
        if !view.is_in_vault(id) {
            return Ok(None);
        }
        Ok(self.whole(vault::KIND, vec![id]).await?.into_iter().next())
    }

    /// Up to `limit` entries of the vault whose emails were destroyed before a time, the oldest ones, and whether there are more.
    pub(crate) async fn old_vault_entries(
        &self,
        before: u64,
        limit: usize,
    ) -> Result<(Vec<RecordId>, bool), Error> {
        let to = Bound::Excluded(Value::Number(before));
        let query = Query::new(vault::KIND, vault::BY_DELETED_AT).between(Bound::Unbounded, to);
        let page = self.records.query(self.account, &query.limit(limit.clamp(1, PAGE))).await?;
        Ok((page.ids, page.next.is_some()))
    }

    /// Up to `limit` entries of the vault, the ones destroyed first that the commit does not remove yet, with their bytes.
    pub(crate) async fn first_vault_entries(
        &self,
        view: &View,
        limit: usize,
    ) -> Result<Vec<(RecordId, u64)>, Error> {
        let query = Query::new(vault::KIND, vault::BY_DELETED_AT).limit(view.vault_removals() + limit);
        let mut ids = self.records.query(self.account, &query).await?.ids;
        ids.retain(|id| view.is_in_vault(*id));
        ids.truncate(limit);
        self.sizes_in_vault(ids).await
    }

    /// Entries of the vault with their bytes.
    pub(crate) async fn sizes_in_vault(&self, ids: Vec<RecordId>) -> Result<Vec<(RecordId, u64)>, Error> {
        let records = self.small(vault::KIND, ids).await?;
        Ok(records.iter().map(|record| (record.id, vault_size(record))).collect())
    }

    pub(crate) async fn is_vault_empty(&self) -> Result<bool, Error> {
        let query = Query::new(vault::KIND, vault::BY_DELETED_AT).limit(1);
        Ok(self.records.query(self.account, &query).await?.ids.is_empty())
    }

    /// The bytes of all emails in the vault.
    pub(crate) async fn vault_bytes(&self) -> Result<u64, Error> {
        let mut bytes: u64 = 0;
        let ids = self.all(Query::new(vault::KIND, vault::BY_DELETED_AT)).await?;
        for ids in ids.chunks(PAGE) {
            let sizes = self.sizes_in_vault(ids.to_vec()).await?;
            bytes = bytes.saturating_add(sizes.iter().map(|(_, bytes)| bytes).sum());
        }
        Ok(bytes)
    }

    /// Whether a mailbox has emails, as JMAP sees it.
    pub(crate) async fn has_emails(&self, mailbox: RecordId) -> Result<bool, Error> {
        let query = Query::new(email::KIND, email::BY_MAILBOX).equals(mailbox).limit(1);
        Ok(!self.records.query(self.account, &query).await?.ids.is_empty())
    }

    /// Up to `limit` emails with a place in a mailbox, including places that IMAP has marked as deleted.
    pub(crate) async fn emails_in(&self, mailbox: RecordId, limit: usize) -> Result<Vec<RecordId>, Error> {
        let from = Bound::Included(Value::Number(mailbox.0 << 32));
        let to = Bound::Excluded(Value::Number((mailbox.0 + 1) << 32));
        let query = Query::new(email::KIND, email::BY_PLACE).between(from, to).limit(limit);
        let page = self.records.query(self.account, &query).await?;
        let ids: BTreeSet<RecordId> = page.ids.into_iter().collect();
        Ok(ids.into_iter().collect())
    }

    /// The unread threads of all mailboxes if `trash` is the mailbox with that role, counted from the unread emails, which are usually few.
    pub(crate) async fn unread_threads(
        &self,
        trash: Option<RecordId>,
    ) -> Result<BTreeMap<RecordId, u64>, Error> {
        let unseen = self.all(Query::new(email::KIND, email::BY_UNSEEN)).await?;
        let unseen: BTreeSet<RecordId> = unseen.into_iter().collect();
        let unseen: Vec<RecordId> = unseen.into_iter().collect();
        let mut threads = BTreeSet::new();
        for ids in unseen.chunks(PAGE) {
            for record in self.small(email::KIND, ids.to_vec()).await? {
                threads.insert(EmailState::of(&record)?.thread);
            }
        }
        let mut counts: BTreeMap<RecordId, u64> = BTreeMap::new();
        for thread in threads {
            let shares = self.shares(thread, trash).await?;
            for (mailbox, share) in shares {
                *counts.entry(mailbox).or_default() += share.unread_threads;
            }
        }
        Ok(counts)
    }

    /// What a thread, as stored, adds to the counters of mailboxes.
    async fn shares(&self, thread: RecordId, trash: Option<RecordId>) -> Result<Shares, Error> {
        let mut emails = Vec::new();
        let ids = self.all(Query::new(email::KIND, email::BY_THREAD).equals(thread)).await?;
        for ids in ids.chunks(PAGE) {
            for record in self.small(email::KIND, ids.to_vec()).await? {
                emails.push(EmailState::of(&record)?);
            }
        }
        Ok(counts::of_thread(&emails, trash))
    }

    /// A page of all emails in the order of their threads, and where the next one begins.
    pub(crate) async fn emails_by_thread(
        &self,
        after: Option<Cursor>,
    ) -> Result<(Vec<(RecordId, EmailState)>, Option<Cursor>), Error> {
        let mut query = Query::new(email::KIND, email::BY_THREAD).limit(PAGE);
        query.after = after;
        let page = self.records.query(self.account, &query).await?;
        let mut emails = Vec::with_capacity(page.ids.len());
        for record in self.small(email::KIND, page.ids).await? {
            emails.push((record.id, EmailState::of(&record)?));
        }
        tokio::task::yield_now().await;
        Ok((emails, page.next))
    }

    /// Which of these threads have no record.
    pub(crate) async fn missing_threads(&self, ids: Vec<RecordId>) -> Result<Vec<RecordId>, Error> {
        let found: BTreeSet<RecordId> =
            self.small(thread::KIND, ids.clone()).await?.iter().map(|record| record.id).collect();
        Ok(ids.into_iter().filter(|id| !found.contains(id)).collect())
    }

    /// All ids of a query.
    async fn all(&self, query: Query) -> Result<Vec<RecordId>, Error> {
        let mut query = query.limit(ROWS);
        let mut ids = Vec::new();
        loop {
            let page = self.records.query(self.account, &query).await?;
            ids.extend(page.ids);
            let Some(next) = page.next else { return Ok(ids) };
            query = query.after(next);
            tokio::task::yield_now().await;
        }
    }

    /// The records with these ids that exist, without their bodies.
    pub(crate) async fn small(&self, kind: Kind, ids: Vec<RecordId>) -> Result<Vec<Record>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.records.get(self.account, &Get::small(kind, ids)).await?.into_iter().flatten().collect())
    }

    /// The records with these ids that exist.
    pub(crate) async fn whole(&self, kind: Kind, ids: Vec<RecordId>) -> Result<Vec<Record>, Error> {
        Ok(self.records.get(self.account, &Get::whole(kind, ids)).await?.into_iter().flatten().collect())
    }
}

/// The bytes of the message of an entry of the vault.
pub(crate) fn vault_size(entry: &Record) -> u64 {
    number_of(&entry.properties, vault::SIZE).unwrap_or(0)
}
