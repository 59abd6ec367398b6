//! Plans the edits of an account on its view: reads what an edit needs, then calls the pure functions that change the view.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use restante_core::Error;
use restante_records::{Record, RecordId, Revision, Value};

use crate::{
    Delivered, Delivery, EmailState, EmailUpdate, Finding, Imported, ImportedMessage, Keywords, MailConfig,
    MailError, MailboxSet, MailboxSetOutcome, NewEmail, Patch, Purged, Role, SEEN, SetMailbox, Transition,
    check,
    email_state::JUNK,
    mailboxes::{FIRST_NEW_ID, Mailbox, NEXT, number_of},
    place::{self, Target, Unplaced},
    read::{ImportedBefore, Reader, vault_size},
    schema::{email, mailbox, vault},
    tree::{self, PlannedSet},
    view::{COMMIT_BODY_BYTES_MAX, COMMIT_OBJECTS_MAX, View},
};

/// The mailbox for restored emails whose own mailboxes are gone.
pub(crate) const RESTORED: &str = "Restored";
/// The most entries that are removed from a full vault for each one that is added.
const EVICTED_MAX: usize = 32;
/// The mailboxes that every account has.
const FIRST_MAILBOXES: [(&str, Role); 6] = [
    ("Inbox", Role::Inbox),
    ("Drafts", Role::Drafts),
    ("Sent", Role::Sent),
    ("Archive", Role::Archive),
    ("Junk", Role::Junk),
    ("Trash", Role::Trash),
];

/// An edit of an account. Keywords are in lowercase.
pub(crate) enum Edit {
    /// What every edit needs first.
    Prepare,
    Deliver(Delivery),
    Import(ImportedMessage),
    Create(NewEmail),
    Update(RecordId, EmailUpdate),
    Destroy(RecordId, Option<Revision>),
    SetMailboxes(MailboxSet),
    /// Removes some emails from a mailbox that is to be destroyed.
    Empty(RecordId),
    Restore(RecordId, Option<u64>),
    Purge(usize),
    Recount {
        is_repair: bool,
    },
}

impl Edit {
    /// Whether it reads indexes, which lack the changes of other edits in the same commit: it then gets a commit of its own.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self, Self::SetMailboxes(_) | Self::Empty(_) | Self::Purge(_) | Self::Recount { .. })
    }

    /// The keywords that it gives to emails.
    pub(crate) fn keywords(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Self::Create(new) => Box::new(new.keywords.iter().map(String::as_str)),
            Self::Import(import) => Box::new(import.keywords.iter().map(String::as_str)),
            Self::Update(_, update) => match &update.keywords {
                Patch::Whole(keywords) | Patch::Parts { add: keywords, .. } => {
                    Box::new(keywords.iter().map(String::as_str))
                }
                Patch::Keep => Box::new(std::iter::empty()),
            },
            _ => Box::new(std::iter::empty()),
        }
    }
}

/// The outcome of an edit. Until the commit is made, ids and revisions are those of the view.
#[derive(Debug)]
pub(crate) enum Done {
    Prepared,
    Delivered(Delivered),
    Imported(Imported),
    Email {
        id: RecordId,
        thread: RecordId,
        states: Transition,
    },
    Updated(Transition),
    Mailboxes(MailboxSetOutcome),
    /// These mailboxes have more emails than a commit removes.
    NeedsEmptying {
        mailboxes: Vec<RecordId>,
        old: Revision,
    },
    /// There is no mailbox for the restored email.
    NeedsMailbox,
    Emptied {
        has_more: bool,
    },
    Purged(Purged),
    Recounted {
        findings: Vec<Finding>,
        has_more: bool,
    },
}

/// Plans edits.
pub(crate) struct Planner<'p> {
    pub(crate) reader: Reader<'p>,
    pub(crate) config: &'p MailConfig,
    pub(crate) keywords: &'p Keywords,
    /// Seconds since 1970.
    pub(crate) now: u64,
}

impl Planner<'_> {
    /// Plans an edit after those that are in the view. An error leaves the view as it was.
    pub(crate) async fn plan(&self, view: &mut View, edit: &Edit) -> Result<Done, MailError> {
        match edit {
            Edit::Prepare => Ok(Done::Prepared),
            Edit::Deliver(delivery) => self.deliver(view, delivery).await,
            Edit::Import(import) => self.import(view, import).await,
            Edit::Create(new) => self.create(view, new).await,
            Edit::Update(id, update) => self.update(view, *id, update).await,
            Edit::Destroy(id, if_in_state) => self.destroy(view, *id, *if_in_state).await,
            Edit::SetMailboxes(set) => self.set_mailboxes(view, set).await,
            Edit::Empty(mailbox) => self.empty(view, *mailbox).await,
            Edit::Restore(entry, quota) => self.restore(view, *entry, *quota).await,
            Edit::Purge(limit) => self.purge(view, *limit).await,
            Edit::Recount { is_repair } => {
                let (findings, has_more) = check::recount(&self.reader, view, *is_repair).await?;
                Ok(Done::Recounted { findings, has_more })
            }
        }
    }

    async fn deliver(&self, view: &mut View, delivery: &Delivery) -> Result<Done, MailError> {
        let key = Value::Text(Bytes::copy_from_slice(&delivery.key));
        let since = self.now.saturating_sub(self.config.delivery_memory_seconds.get());
        if self.reader.is_delivered(view, &key, since).await? {
            return Ok(Done::Delivered(Delivered::Repeated));
        }
        let role = if delivery.to_junk { Role::Junk } else { Role::Inbox };
        let mailbox = view.mailbox_of(role).or_else(|| view.mailbox_of(Role::Inbox));
        let mailbox = mailbox.ok_or_else(|| {
            let account = self.reader.account.0;
            MailError::Store(Error::corrupt(format!("account {account} has no inbox")))
        })?;
        let new = Unplaced {
            body: place::body_of(&delivery.message),
            mailboxes: BTreeSet::from([mailbox]),
            state: EmailState {
                received: place::seconds(delivery.received),
                keywords: if delivery.to_junk { vec![JUNK] } else { Vec::new() },
                is_unseen: true,
                size: delivery.message.size,
                thread_keys: place::thread_keys_of(&delivery.message),
                delivery: Some(key),
                ..EmailState::default()
            },
        };
        let (id, _) = self.add(view, new, delivery.quota).await?;
        Ok(Done::Delivered(Delivered::New(id)))
    }

    async fn import(&self, view: &mut View, import: &ImportedMessage) -> Result<Done, MailError> {
        let key = Value::Text(Bytes::copy_from_slice(&import.key));
        let ImportedBefore { email, origins } = self.reader.imported_before(view, &key).await?;
        let places: Vec<(RecordId, u64)> =
            import.places.iter().filter(|(_, origin)| !origins.contains(origin)).copied().collect();
        if places.is_empty() && !import.places.is_empty() {
            return Ok(Done::Imported(Imported::Repeated));
        }
        let (is_seen, keywords) = self.numbers(import.keywords.iter().map(String::as_str))?;
        let mailboxes = places.iter().map(|(mailbox, _)| *mailbox);
        let new_origins = places.iter().map(|(_, origin)| *origin);
        if let Some((id, mut before)) = email {
            let mut target = Target::of(&before);
            target.mailboxes.extend(mailboxes);
            let all: BTreeSet<u64> = target.keywords.iter().copied().chain(keywords).collect();
            target.keywords = all.into_iter().collect();
            target.is_unseen &= !is_seen;
            self.reader.thread(view, before.thread).await?;
            before.origins.extend(new_origins);
            before.origins.sort_unstable();
            before.origins.dedup();
            place::update_email(view, self.config, id, &before, target)?;
            return Ok(Done::Imported(Imported::Placed(id)));
        }
        let origins: BTreeSet<u64> = new_origins.collect();
        let new = Unplaced {
            body: place::body_of(&import.message),
            mailboxes: mailboxes.collect(),
            state: EmailState {
                received: place::seconds(import.received),
                keywords,
                is_unseen: !is_seen,
                size: import.message.size,
                thread_keys: place::thread_keys_of(&import.message),
                delivery: Some(key),
                origins: origins.into_iter().collect(),
                ..EmailState::default()
            },
        };
        let (id, _) = self.add(view, new, import.quota).await?;
        Ok(Done::Imported(Imported::New(id)))
    }

    async fn create(&self, view: &mut View, new: &NewEmail) -> Result<Done, MailError> {
        self.check_state(view, new.if_in_state)?;
        let (is_seen, keywords) = self.numbers(new.keywords.iter().map(String::as_str))?;
        let unplaced = Unplaced {
            body: place::body_of(&new.message),
            mailboxes: new.mailboxes.iter().copied().collect(),
            state: EmailState {
                received: place::seconds(new.received),
                keywords,
                is_unseen: !is_seen,
                size: new.message.size,
                thread_keys: place::thread_keys_of(&new.message),
                ..EmailState::default()
            },
        };
        let (id, thread) = self.add(view, unplaced, new.quota).await?;
        Ok(Done::Email { id, thread, states: planned_transition(view) })
    }

    async fn add(
        &self,
        view: &mut View,
        new: Unplaced,
        quota: Option<u64>,
    ) -> Result<(RecordId, RecordId), MailError> {
        let thread = self.reader.joined_thread(view, &new.state.thread_keys).await?;
        place::add_email(view, self.config, new, thread, quota)
    }

    async fn update(&self, view: &mut View, id: RecordId, update: &EmailUpdate) -> Result<Done, MailError> {
        self.check_state(view, update.if_in_state)?;
        let before = self.visible_email(view, id).await?;
        let target = self.target(&before, update)?;
        if target == Target::of(&before) {
            let old = view.state(email::KIND);
            return Ok(Done::Updated(Transition { old, new: old, is_shared: false }));
        }
        if target.changes_counters(&before) {
            self.reader.thread(view, before.thread).await?;
        }
        place::update_email(view, self.config, id, &before, target)?;
        Ok(Done::Updated(planned_transition(view)))
    }

    /// The state of an email after an update.
    fn target(&self, before: &EmailState, update: &EmailUpdate) -> Result<Target, MailError> {
        let mut target = Target::of(before);
        match &update.mailboxes {
            Patch::Keep => {}
            Patch::Whole(mailboxes) => target.mailboxes.clone_from(mailboxes),
            Patch::Parts { add, remove } => {
                target.mailboxes.retain(|mailbox| !remove.contains(mailbox));
                target.mailboxes.extend(add);
            }
        }
        match &update.keywords {
            Patch::Keep => {}
            Patch::Whole(keywords) => {
                let (is_seen, numbers) = self.numbers(keywords.iter().map(String::as_str))?;
                (target.is_unseen, target.keywords) = (!is_seen, numbers);
            }
            Patch::Parts { add, remove } => {
                let removed: Vec<u64> = remove.iter().filter_map(|name| self.keywords.number(name)).collect();
                let (is_seen, added) = self.numbers(add.iter().map(String::as_str))?;
                let keywords = target.keywords.iter().filter(|number| !removed.contains(number)).copied();
                let keywords: BTreeSet<u64> = keywords.chain(added).collect();
                target.keywords = keywords.into_iter().collect();
                target.is_unseen = !is_seen && (target.is_unseen || remove.contains(SEEN));
            }
        }
        Ok(target)
    }

    async fn destroy(
        &self,
        view: &mut View,
        id: RecordId,
        if_in_state: Option<Revision>,
    ) -> Result<Done, MailError> {
        self.check_state(view, if_in_state)?;
        let state = self.visible_email(view, id).await?;
        self.destroy_email(view, id, &state).await?;
        Ok(Done::Updated(planned_transition(view)))
    }

    async fn destroy_email(
        &self,
        view: &mut View,
        id: RecordId,
        state: &EmailState,
    ) -> Result<(), MailError> {
        let record = self.reader.email_record(id).await?.ok_or(MailError::NotFound)?;
        self.reader.thread(view, state.thread).await?;
        self.count_vault(view).await?;
        place::destroy_email(view, id, state, record.body, self.now);
        self.bound_vault(view, EVICTED_MAX).await
    }

    /// Counts the bytes of the vault, if that was never done. Must come before the first change of the vault in a view.
    async fn count_vault(&self, view: &mut View) -> Result<(), MailError> {
        if view.account.vault_bytes.is_none() {
            view.change_account().vault_bytes = Some(self.reader.vault_bytes().await?);
        }
        Ok(())
    }

    /// Removes up to `limit` entries, those destroyed first, from a vault with too many bytes. If it is still too large, more are
    /// removed with the next destroyed email, or when the vault is purged.
    async fn bound_vault(&self, view: &mut View, limit: usize) -> Result<(), MailError> {
        if limit == 0 || !self.is_vault_too_big(view) {
            return Ok(());
        }
        for (entry, bytes) in self.reader.first_vault_entries(view, limit).await? {
            if !self.is_vault_too_big(view) {
                break;
            }
            view.remove_from_vault(entry, bytes);
        }
        Ok(())
    }

    fn is_vault_too_big(&self, view: &View) -> bool {
        view.account.vault_bytes.is_some_and(|bytes| bytes > self.config.vault_bytes_max)
    }

    /// An email that is in a mailbox. One that IMAP has marked as deleted in all of its mailboxes does not exist for others (RFC
    /// 8621 §4.1.1).
    async fn visible_email(&self, view: &mut View, id: RecordId) -> Result<EmailState, MailError> {
        let state = self.reader.email(view, id).await?;
        state.filter(|state| !state.mailboxes.is_empty()).ok_or(MailError::NotFound)
    }

    /// Checks rule T1.
    fn check_state(&self, view: &View, if_in_state: Option<Revision>) -> Result<(), MailError> {
        match if_in_state {
            Some(state) if state != view.state(email::KIND) || view.email_changes() > 0 => {
                Err(MailError::StateMismatch)
            }
            _ => Ok(()),
        }
    }

    /// Whether `$seen` is among some keywords, and the numbers of the others.
    fn numbers<'n>(&self, names: impl Iterator<Item = &'n str>) -> Result<(bool, Vec<u64>), MailError> {
        let mut is_seen = false;
        let mut numbers = BTreeSet::new();
        for name in names {
            if name == SEEN {
                is_seen = true;
            } else {
                // A keyword that has no number by now did not get one: the account has as many keywords as it may.
                numbers.insert(self.keywords.number(name).ok_or(MailError::TooManyKeywords)?);
            }
        }
        Ok((is_seen, numbers.into_iter().collect()))
    }

    async fn restore(&self, view: &mut View, entry: RecordId, quota: Option<u64>) -> Result<Done, MailError> {
        let record = self.reader.vault_entry(view, entry).await?.ok_or(MailError::NotFound)?;
        self.count_vault(view).await?;
        let bytes = vault_size(&record);
        let mut new = unplaced_entry(record);
        new.mailboxes.retain(|mailbox| view.mailboxes().contains_key(mailbox));
        if new.mailboxes.is_empty() {
            let restored = view
                .mailboxes()
                .values()
                .find(|mailbox| mailbox.parent.is_none() && mailbox.name == RESTORED);
            let Some(restored) = restored else { return Ok(Done::NeedsMailbox) };
            new.mailboxes.insert(restored.id);
        }
        let (id, thread) = self.add(view, new, quota).await?;
        view.remove_from_vault(entry, bytes);
        Ok(Done::Email { id, thread, states: planned_transition(view) })
    }

    async fn purge(&self, view: &mut View, limit: usize) -> Result<Done, MailError> {
        let before = self.now.saturating_sub(self.config.vault_seconds);
        let limit = limit.min(COMMIT_OBJECTS_MAX);
        let (entries, has_more) = self.reader.old_vault_entries(before, limit).await?;
        self.count_vault(view).await?;
        for (entry, bytes) in self.reader.sizes_in_vault(entries).await? {
            view.remove_from_vault(entry, bytes);
        }
        if !has_more {
            self.bound_vault(view, limit.saturating_sub(view.vault_removals())).await?;
        }
        let has_more = has_more || self.is_vault_too_big(view);
        Ok(Done::Purged(Purged { entries: view.vault_removals(), has_more }))
    }

    async fn set_mailboxes(&self, view: &mut View, set: &MailboxSet) -> Result<Done, MailError> {
        let old = view.state(mailbox::KIND);
        if set.if_in_state.is_some_and(|state| state != old) {
            return Err(MailError::StateMismatch);
        }
        let plan = self.possible_set(view, set).await?;
        let trash = trash_after(view, &plan);
        let is_other_trash = trash != view.mailbox_of(Role::Trash);
        let emails = self.emails_of(&plan.destroyed).await?;
        if !emails.is_empty() && (is_other_trash || !self.fit_into_commit(&emails).await?) {
            let mailboxes: BTreeSet<RecordId> = emails.into_iter().map(|(_, mailbox)| mailbox).collect();
            return Ok(Done::NeedsEmptying { mailboxes: mailboxes.into_iter().collect(), old });
        }
        // Unread threads depend on which mailbox is the trash (rule MB4). A new mailbox has no emails.
        let unread_threads = match is_other_trash {
            true => Some(self.reader.unread_threads(trash.filter(|id| id.0 < FIRST_NEW_ID)).await?),
            false => None,
        };
        create_mailboxes(view, &plan, self.now); // first: the plan has numbered what the commit creates
        for (id, mailbox) in emails {
            self.leave(view, id, mailbox).await?;
        }
        change_mailboxes(view, &plan);
        if let Some(counts) = unread_threads {
            store_unread_threads(view, &counts);
        }
        Ok(Done::Mailboxes(outcome(view, set, plan, old)))
    }

    /// The plan of a set, in which mailboxes that have emails and must keep them are not destroyed.
    async fn possible_set(&self, view: &View, set: &MailboxSet) -> Result<PlannedSet, MailError> {
        let mut set = set.clone();
        let mut with_emails = BTreeMap::new();
        if !set.remove_emails {
            for (number, id) in set.destroy.iter().enumerate() {
                if view.mailboxes().contains_key(id) && self.reader.has_emails(*id).await? {
                    with_emails.insert(number, *id);
                }
            }
        }
        // A mailbox with both children and emails gets the error about the children (rule MB7).
        let first = tree::plan(view.mailboxes(), &set, self.config);
        with_emails.retain(|number, _| !first.destroy_errors.contains_key(number));
        if with_emails.is_empty() {
            return Ok(first);
        }
        for number in with_emails.keys() {
            if let Some(id) = set.destroy.get_mut(*number) {
                *id = RecordId(0); // not a mailbox: refused at its position
            }
        }
        let mut plan = tree::plan(view.mailboxes(), &set, self.config);
        for number in with_emails.into_keys() {
            plan.destroy_errors.insert(number, MailError::HasEmail);
        }
        Ok(plan)
    }

    /// The emails of mailboxes that are to be destroyed, each with the mailbox; not all of them when they are too many for a commit.
    async fn emails_of(
        &self,
        mailboxes: &BTreeSet<RecordId>,
    ) -> Result<Vec<(RecordId, RecordId)>, MailError> {
        let mut emails = Vec::new();
        for mailbox in mailboxes {
            let ids = self.reader.emails_in(*mailbox, COMMIT_OBJECTS_MAX + 1).await?;
            emails.extend(ids.into_iter().map(|id| (id, *mailbox)));
            if emails.len() > COMMIT_OBJECTS_MAX {
                break;
            }
        }
        Ok(emails)
    }

    /// Whether so many emails can be destroyed in one commit.
    async fn fit_into_commit(&self, emails: &[(RecordId, RecordId)]) -> Result<bool, MailError> {
        if emails.len() > COMMIT_OBJECTS_MAX {
            return Ok(false);
        }
        let ids = emails.iter().map(|(id, _)| *id).collect();
        let records = self.reader.whole(email::KIND, ids).await?;
        let bytes: usize = records.iter().map(|record| record.body.bytes.len()).sum();
        Ok(bytes <= COMMIT_BODY_BYTES_MAX)
    }

    /// Takes an email out of a mailbox; if it is in no other one, it is destroyed.
    async fn leave(&self, view: &mut View, id: RecordId, mailbox: RecordId) -> Result<(), MailError> {
        let Some(state) = self.reader.email(view, id).await? else { return Ok(()) };
        let is_elsewhere = state.places.iter().any(|place| place::mailbox_of_place(*place) != mailbox);
        if is_elsewhere {
            self.reader.thread(view, state.thread).await?;
            place::leave_mailbox(view, id, &state, mailbox);
            return Ok(());
        }
        self.destroy_email(view, id, &state).await
    }

    async fn empty(&self, view: &mut View, mailbox: RecordId) -> Result<Done, MailError> {
        let ids = self.reader.emails_in(mailbox, COMMIT_OBJECTS_MAX).await?;
        for id in &ids {
            if view.is_full() {
                return Ok(Done::Emptied { has_more: true });
            }
            self.leave(view, *id, mailbox).await?;
        }
        Ok(Done::Emptied { has_more: ids.len() >= COMMIT_OBJECTS_MAX })
    }
}

/// The effect of an edit of emails on their state; the commit fills in the revision.
fn planned_transition(view: &View) -> Transition {
    Transition { old: view.state(email::KIND), new: NEXT, is_shared: false }
}

/// An entry of the vault as an email to place.
fn unplaced_entry(record: Record) -> Unplaced {
    let properties = &record.properties;
    let numbers = |property| {
        properties.values(property).filter_map(|value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        })
    };
    Unplaced {
        mailboxes: numbers(vault::MAILBOX).map(RecordId).collect(),
        state: EmailState {
            received: number_of(properties, vault::RECEIVED).unwrap_or(0),
            keywords: numbers(vault::KEYWORD).collect(),
            is_unseen: number_of(properties, vault::UNSEEN).is_some(),
            size: number_of(properties, vault::SIZE).unwrap_or(0),
            thread_keys: properties.values(vault::THREAD_KEY).cloned().collect(),
            delivery: properties.values(vault::DELIVERY).next().cloned(),
            origins: numbers(vault::ORIGIN).collect(),
            ..EmailState::default()
        },
        body: record.body,
    }
}

/// Puts what every account has into the view of an account without a record of its own.
pub(crate) fn prepare(view: &mut View, now: u64) {
    view.create_account();
    for (sort_order, (name, role)) in (1..).zip(FIRST_MAILBOXES) {
        let mailbox = Mailbox {
            name: name.to_owned(),
            role: Some(role),
            sort_order,
            is_subscribed: true,
            uid_next: 1,
            uid_validity: next_uid_validity(view, now),
            shape: NEXT,
            ..Mailbox::default()
        };
        view.create_mailbox(mailbox);
    }
}

/// A UIDVALIDITY above all that the account has used (RFC 9051 §2.3.1.1).
fn next_uid_validity(view: &mut View, now: u64) -> u64 {
    let account = view.change_account();
    account.uid_validity = now.max(account.uid_validity + 1);
    account.uid_validity
}

/// The mailbox that is the trash after a set; an id from [`FIRST_NEW_ID`] on when it is new.
fn trash_after(view: &View, plan: &PlannedSet) -> Option<RecordId> {
    let is_trash = |mailbox: &Mailbox| mailbox.role == Some(Role::Trash);
    if plan.created.iter().any(|(_, mailbox)| is_trash(mailbox)) {
        return Some(RecordId(FIRST_NEW_ID));
    }
    if let Some((id, _)) = plan.updated.iter().find(|(_, mailbox)| is_trash(mailbox)) {
        return Some(*id);
    }
    let before = view.mailbox_of(Role::Trash)?;
    let stays = !plan.updated.contains_key(&before) && !plan.destroyed.contains(&before);
    stays.then_some(before)
}

fn create_mailboxes(view: &mut View, plan: &PlannedSet, now: u64) {
    for (_, mailbox) in &plan.created {
        let uid_validity = next_uid_validity(view, now);
        view.create_mailbox(Mailbox { uid_validity, ..mailbox.clone() });
    }
}

fn change_mailboxes(view: &mut View, plan: &PlannedSet) {
    for (id, updated) in &plan.updated {
        // The counters may have changed since the plan was made.
        let Some(present) = view.mailboxes().get(id) else { continue };
        let mailbox = Mailbox {
            name: updated.name.clone(),
            parent: updated.parent,
            role: updated.role,
            sort_order: updated.sort_order,
            is_subscribed: updated.is_subscribed,
            shape: NEXT,
            ..present.clone()
        };
        view.change_mailbox(mailbox);
    }
    for id in &plan.destroyed {
        view.destroy_mailbox(*id);
    }
}

fn store_unread_threads(view: &mut View, counts: &BTreeMap<RecordId, u64>) {
    let wrong = view.mailboxes().iter().filter_map(|(id, mailbox)| {
        let unread_threads = counts.get(id).copied().unwrap_or(0);
        (mailbox.unread_threads != unread_threads).then_some((*id, unread_threads))
    });
    for (id, unread_threads) in wrong.collect::<Vec<_>>() {
        if let Some(mailbox) = view.change_counters(id) {
            mailbox.unread_threads = unread_threads;
        }
    }
}

fn outcome(view: &View, set: &MailboxSet, mut plan: PlannedSet, old: Revision) -> MailboxSetOutcome {
    let normalized = |given: Option<&String>, id: RecordId| {
        let name = view.mailboxes().get(&id).map(|mailbox| &mailbox.name);
        if given.is_some() && name != given { name.cloned() } else { None }
    };
    let new = view.mailboxes().keys().copied().filter(|id| id.0 >= FIRST_NEW_ID);
    let mut made: BTreeMap<usize, RecordId> =
        plan.created.iter().map(|(number, _)| *number).zip(new).collect();
    let mut created = Vec::with_capacity(set.create.len());
    for (number, new) in set.create.iter().enumerate() {
        created.push(match (made.remove(&number), plan.create_errors.remove(&number)) {
            (Some(id), None) => Ok(SetMailbox { id, normalized_name: normalized(Some(&new.name), id) }),
            (_, error) => Err(error.unwrap_or(MailError::NotFound)),
        });
    }
    let mut updated = Vec::with_capacity(set.update.len());
    for (number, (id, update)) in set.update.iter().enumerate() {
        updated.push(match plan.update_errors.remove(&number) {
            None => Ok(SetMailbox { id: *id, normalized_name: normalized(update.name.as_ref(), *id) }),
            Some(error) => Err(error),
        });
    }
    let destroyed =
        (0..set.destroy.len()).map(|number| plan.destroy_errors.remove(&number).map_or(Ok(()), Err));
    let is_changed = view.changes() > 0;
    let states = Transition { old, new: if is_changed { NEXT } else { old }, is_shared: false };
    MailboxSetOutcome { states, created, updated, destroyed: destroyed.collect() }
}
