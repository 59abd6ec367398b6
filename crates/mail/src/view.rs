//! The mail of an account in memory: what was read, how the edits of a commit change it, and the commit itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use restante_records::{
    Body, Change, Commit, Committed, Kind, Properties, RecordId, Revision, States, Value,
};

use crate::{
    EmailState, Mailbox, Role,
    counts::{self, Share, Shares},
    mailboxes::{FIRST_NEW_ID, NEXT, revision_value},
    schema::{account, email, mailbox, thread, vault},
};

/// The kinds whose states are conditions of a commit: it fails when records of these kinds have changed since they were read.
const READ_KINDS: [Kind; 4] = [mailbox::KIND, email::KIND, account::KIND, vault::KIND];

/// Once a commit changes so many records, it takes no further edit.
pub(crate) const COMMIT_OBJECTS_MAX: usize = 256;
/// Once a commit has so many bytes of bodies, it takes no further edit. What one edit adds fits beside them.
pub(crate) const COMMIT_BODY_BYTES_MAX: usize = 1 << 20;

/// The account's own record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountRecord {
    /// `None` before the first use.
    pub(crate) id: Option<RecordId>,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) delivered: Revision,
    pub(crate) uid_validity: u64,
    /// `None` while they were never counted.
    pub(crate) vault_bytes: Option<u64>,
}

impl AccountRecord {
    pub(crate) fn properties(&self) -> Properties {
        let properties = Properties::default()
            .with(account::BYTES, self.bytes)
            .with(account::COUNT, self.count)
            .with(account::DELIVERED, revision_value(self.delivered))
            .with(account::UID_VALIDITY, self.uid_validity);
        match self.vault_bytes {
            Some(bytes) => properties.with(account::VAULT_BYTES, bytes),
            None => properties,
        }
    }
}

/// How the commit changes an existing mailbox.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MailboxChange {
    Counters,
    Body,
    Destroyed,
}

/// A record that the commit creates; the properties of emails and mailboxes are those in the view.
enum Creation {
    Mailbox,
    Email(Body),
    Thread,
    Account,
    Vault(Body, Properties),
}

/// The mail of an account as of some states of its kinds, and what a commit changes.
///
/// Until the commit is made, a record that it creates has an id from [`FIRST_NEW_ID`] on, and its own revision is [`NEXT`].
pub(crate) struct View {
    states: States,
    pub(crate) account: AccountRecord,
    mailboxes: BTreeMap<RecordId, Mailbox>,
    roles: BTreeMap<Role, RecordId>,
    /// The emails that were read or are created; `None` for those that are destroyed.
    emails: HashMap<RecordId, Option<EmailState>>,
    /// All emails of the threads that were read or are created.
    threads: HashMap<RecordId, Vec<RecordId>>,
    creations: Vec<Creation>,
    changed_mailboxes: BTreeMap<RecordId, MailboxChange>,
    changed_emails: BTreeSet<RecordId>,
    changed_threads: BTreeSet<RecordId>,
    is_account_changed: bool,
    removed_vault_entries: BTreeSet<RecordId>,
    /// The emails that are created, by their thread keys.
    new_thread_keys: HashMap<Value, Vec<RecordId>>,
    /// The emails that are created, by the keys of their deliveries or imports.
    new_deliveries: HashMap<Value, RecordId>,
    /// The bytes of bodies that are written.
    body_bytes: usize,
    email_changes: usize,
}

impl View {
    pub(crate) fn new(states: States, account: AccountRecord, mailboxes: Vec<Mailbox>) -> Self {
        let roles = mailboxes.iter().filter_map(|mailbox| Some((mailbox.role?, mailbox.id))).collect();
        Self {
            states,
            account,
            mailboxes: mailboxes.into_iter().map(|mailbox| (mailbox.id, mailbox)).collect(),
            roles,
            emails: HashMap::new(),
            threads: HashMap::new(),
            creations: Vec::new(),
            changed_mailboxes: BTreeMap::new(),
            changed_emails: BTreeSet::new(),
            changed_threads: BTreeSet::new(),
            is_account_changed: false,
            removed_vault_entries: BTreeSet::new(),
            new_thread_keys: HashMap::new(),
            new_deliveries: HashMap::new(),
            body_bytes: 0,
            email_changes: 0,
        }
    }

    /// The state of a kind before the commit.
    pub(crate) fn state(&self, kind: Kind) -> Revision {
        self.states.of(kind)
    }

    /// Whether the records are still in the states that were read.
    pub(crate) fn is_current(&self, states: &States) -> bool {
        READ_KINDS.iter().all(|kind| states.of(*kind) == self.states.of(*kind))
    }

    pub(crate) fn mailboxes(&self) -> &BTreeMap<RecordId, Mailbox> {
        &self.mailboxes
    }

    pub(crate) fn mailbox_of(&self, role: Role) -> Option<RecordId> {
        self.roles.get(&role).copied()
    }

    /// An email that was read; `None` when it was not, `Some(None)` when it is destroyed.
    pub(crate) fn email(&self, id: RecordId) -> Option<Option<&EmailState>> {
        self.emails.get(&id).map(Option::as_ref)
    }

    pub(crate) fn is_destroyed(&self, id: RecordId) -> bool {
        matches!(self.emails.get(&id), Some(None))
    }

    /// The emails of a thread that was read.
    pub(crate) fn thread(&self, id: RecordId) -> Option<&[RecordId]> {
        self.threads.get(&id).map(Vec::as_slice)
    }

    pub(crate) fn new_emails_with_thread_key(&self, key: &Value) -> &[RecordId] {
        self.new_thread_keys.get(key).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn is_newly_delivered(&self, delivery: &Value) -> bool {
        self.new_deliveries.contains_key(delivery)
    }

    /// The email that the commit creates with this key.
    pub(crate) fn newly_delivered(&self, delivery: &Value) -> Option<RecordId> {
        self.new_deliveries.get(delivery).copied()
    }

    pub(crate) fn is_in_vault(&self, entry: RecordId) -> bool {
        !self.removed_vault_entries.contains(&entry)
    }

    /// How many entries the commit removes from the vault.
    pub(crate) fn vault_removals(&self) -> usize {
        self.removed_vault_entries.len()
    }

    /// Adds an email that was read; a version that edits have already changed stays.
    pub(crate) fn note_email(&mut self, id: RecordId, state: EmailState) {
        self.emails.entry(id).or_insert(Some(state));
    }

    /// Adds the emails of a thread that was read.
    pub(crate) fn note_thread(&mut self, id: RecordId, emails: Vec<RecordId>) {
        self.threads.entry(id).or_insert(emails);
    }

    /// How many records the commit changes so far.
    pub(crate) fn changes(&self) -> usize {
        self.creations.len()
            + self.changed_mailboxes.len()
            + self.changed_emails.len()
            + self.changed_threads.len()
            + self.removed_vault_entries.len()
            + usize::from(self.is_account_changed)
    }

    /// Whether the commit takes no further edit.
    pub(crate) fn is_full(&self) -> bool {
        self.changes() >= COMMIT_OBJECTS_MAX || self.body_bytes >= COMMIT_BODY_BYTES_MAX
    }

    /// How often emails were created, changed and destroyed since the last commit.
    pub(crate) fn email_changes(&self) -> usize {
        self.email_changes
    }

    fn create(&mut self, creation: Creation) -> RecordId {
        let id = RecordId(FIRST_NEW_ID + self.creations.len() as u64);
        if let Creation::Email(body) | Creation::Vault(body, _) = &creation {
            self.body_bytes += body.bytes.len();
        }
        self.creations.push(creation);
        id
    }

    pub(crate) fn create_account(&mut self) {
        let id = self.create(Creation::Account);
        self.account.id = Some(id);
        self.account.vault_bytes = Some(0);
    }

    /// The account record, which is marked as changed.
    pub(crate) fn change_account(&mut self) -> &mut AccountRecord {
        // A record that the commit itself creates is written only once.
        self.is_account_changed = self.account.id.is_some_and(|id| id.0 < FIRST_NEW_ID);
        &mut self.account
    }

    /// Adds a new mailbox, and sets its id.
    pub(crate) fn create_mailbox(&mut self, mut mailbox: Mailbox) -> RecordId {
        let id = self.create(Creation::Mailbox);
        mailbox.id = id;
        self.roles.extend(mailbox.role.map(|role| (role, id)));
        self.mailboxes.insert(id, mailbox);
        id
    }

    /// The mailbox, whose counters or numbers are marked as changed; `None` when it does not exist.
    pub(crate) fn change_counters(&mut self, id: RecordId) -> Option<&mut Mailbox> {
        let mailbox = self.mailboxes.get_mut(&id)?;
        if id.0 < FIRST_NEW_ID {
            self.changed_mailboxes.entry(id).or_insert(MailboxChange::Counters);
        }
        Some(mailbox)
    }

    /// Replaces the properties of a mailbox that a user can change.
    pub(crate) fn change_mailbox(&mut self, mailbox: Mailbox) {
        let id = mailbox.id;
        self.roles.retain(|_, of_role| *of_role != id);
        self.roles.extend(mailbox.role.map(|role| (role, id)));
        self.mailboxes.insert(id, mailbox);
        self.changed_mailboxes.insert(id, MailboxChange::Body);
    }

    pub(crate) fn destroy_mailbox(&mut self, id: RecordId) {
        self.roles.retain(|_, of_role| *of_role != id);
        self.mailboxes.remove(&id);
        self.changed_mailboxes.insert(id, MailboxChange::Destroyed);
    }

    pub(crate) fn create_thread(&mut self) -> RecordId {
        let id = self.create(Creation::Thread);
        self.threads.insert(id, Vec::new());
        id
    }

    /// Adds a new email to a thread that was read or is new.
    pub(crate) fn create_email(&mut self, state: EmailState, body: Body) -> RecordId {
        let id = self.create(Creation::Email(body));
        for key in &state.thread_keys {
            self.new_thread_keys.entry(key.clone()).or_default().push(id);
        }
        self.new_deliveries.extend(state.delivery.clone().map(|delivery| (delivery, id)));
        let thread = state.thread;
        let before = self.shares(thread);
        self.email_changes += 1;
        self.threads.entry(thread).or_default().push(id);
        self.touch_thread(thread);
        self.emails.insert(id, Some(state));
        self.adjust_counters(&before, thread);
        id
    }

    /// Replaces the state of an email. If its mailboxes change or whether it is unread, its thread must have been read.
    pub(crate) fn change_email(&mut self, id: RecordId, state: EmailState) {
        let thread = state.thread;
        let before = self.shares(thread);
        self.email_changes += 1;
        self.emails.insert(id, Some(state));
        if id.0 < FIRST_NEW_ID {
            self.changed_emails.insert(id); // else the commit creates it in this state
        }
        self.adjust_counters(&before, thread);
    }

    /// Destroys an email whose thread was read, and puts it into the vault.
    pub(crate) fn destroy_email(&mut self, id: RecordId, thread: RecordId, body: Body, entry: Properties) {
        let before = self.shares(thread);
        self.email_changes += 1;
        self.emails.insert(id, None);
        self.changed_emails.insert(id);
        if let Some(emails) = self.threads.get_mut(&thread) {
            emails.retain(|email| *email != id);
        }
        self.touch_thread(thread);
        self.create(Creation::Vault(body, entry));
        self.adjust_counters(&before, thread);
    }

    /// Removes an entry of so many bytes from the vault, once.
    pub(crate) fn remove_from_vault(&mut self, entry: RecordId, bytes: u64) {
        if self.removed_vault_entries.insert(entry) {
            let vault_bytes = &mut self.change_account().vault_bytes;
            *vault_bytes = vault_bytes.map(|all| all.saturating_sub(bytes));
        }
    }

    fn touch_thread(&mut self, thread: RecordId) {
        if thread.0 < FIRST_NEW_ID {
            self.changed_threads.insert(thread);
        }
    }

    fn shares(&self, thread: RecordId) -> Shares {
        let emails = self.threads.get(&thread).map_or(&[][..], Vec::as_slice);
        let emails = emails.iter().filter_map(|email| self.emails.get(email)?.as_ref());
        counts::of_thread(emails, self.mailbox_of(Role::Trash))
    }

    /// Adds the difference of a thread's shares to the counters of mailboxes.
    fn adjust_counters(&mut self, before: &Shares, thread: RecordId) {
        let after = self.shares(thread);
        let ids: BTreeSet<RecordId> = before.keys().chain(after.keys()).copied().collect();
        for id in ids {
            let of = |shares: &Shares| shares.get(&id).copied().unwrap_or_default();
            let (before, after) = (of(before), of(&after));
            if before != after
                && let Some(mailbox) = self.change_counters(id)
            {
                Share::of_mailbox(mailbox).changed(before, after).store_in(mailbox);
            }
        }
    }

    /// The commit, on the condition that the records are still in the states that were read.
    pub(crate) fn commit(&self) -> Commit {
        let mut changes = Vec::with_capacity(self.changes());
        for (number, creation) in (FIRST_NEW_ID..).zip(&self.creations) {
            changes.push(self.creation(RecordId(number), creation));
        }
        for (id, change) in &self.changed_mailboxes {
            let mailbox = self.mailboxes.get(id).filter(|_| *change != MailboxChange::Destroyed);
            let Some(mailbox) = mailbox else {
                changes.push(Change::Destroy { kind: mailbox::KIND, id: *id });
                continue;
            };
            let body = (*change == MailboxChange::Body).then(|| mailbox.body());
            changes.push(update(mailbox::KIND, *id, body, Some(mailbox.properties())));
        }
        for id in &self.changed_emails {
            changes.push(match self.emails.get(id).and_then(Option::as_ref) {
                Some(state) => update(email::KIND, *id, None, Some(state.properties())),
                None => Change::Destroy { kind: email::KIND, id: *id },
            });
        }
        for id in &self.changed_threads {
            let is_empty = self.threads.get(id).is_none_or(Vec::is_empty);
            changes.push(match is_empty {
                true => Change::Destroy { kind: thread::KIND, id: *id },
                false => update(thread::KIND, *id, None, None), // rule S4: the state of threads moves
            });
        }
        for id in &self.removed_vault_entries {
            changes.push(Change::Destroy { kind: vault::KIND, id: *id });
        }
        if let Some(id) = self.account.id.filter(|_| self.is_account_changed) {
            changes.push(update(account::KIND, id, None, Some(self.account.properties())));
        }
        let expect = READ_KINDS.iter().map(|kind| (*kind, self.states.of(*kind))).collect();
        Commit { expect, changes }
    }

    fn creation(&self, id: RecordId, creation: &Creation) -> Change {
        let create = |kind, body, properties| Change::Create { kind, body, properties };
        match creation {
            Creation::Mailbox => {
                let (body, properties) = self
                    .mailboxes
                    .get(&id)
                    .map(|mailbox| (mailbox.body(), mailbox.properties()))
                    .unwrap_or_default();
                create(mailbox::KIND, body, properties)
            }
            Creation::Email(body) => {
                let state = self.emails.get(&id).and_then(Option::as_ref);
                create(email::KIND, body.clone(), state.map(EmailState::properties).unwrap_or_default())
            }
            Creation::Thread => create(thread::KIND, Body::default(), Properties::default()),
            Creation::Account => create(account::KIND, Body::default(), self.account.properties()),
            Creation::Vault(body, properties) => create(vault::KIND, body.clone(), properties.clone()),
        }
    }

    /// Updates the view to the state of the records after its commit.
    pub(crate) fn settle(&mut self, committed: &Committed) {
        let revision = committed.revision;
        let mut touched = BTreeSet::new();
        for (number, creation) in self.creations.iter().enumerate() {
            touched.insert(match creation {
                Creation::Mailbox => mailbox::KIND,
                Creation::Email(_) => email::KIND,
                Creation::Thread => thread::KIND,
                Creation::Account => account::KIND,
                Creation::Vault(..) => vault::KIND,
            });
            if matches!(creation, Creation::Mailbox)
                && let Some(mut mailbox) = self.mailboxes.remove(&RecordId(FIRST_NEW_ID + number as u64))
                && let Some(id) = committed.created.get(number)
            {
                mailbox.id = *id;
                settle_mailbox(&mut mailbox, committed);
                self.mailboxes.insert(*id, mailbox);
            }
        }
        for id in self.changed_mailboxes.keys() {
            touched.insert(mailbox::KIND);
            if let Some(mailbox) = self.mailboxes.get_mut(id) {
                settle_mailbox(mailbox, committed);
            }
        }
        for role in self.roles.values_mut() {
            *role = settled(*role, committed);
        }
        self.account.id = self.account.id.map(|id| settled(id, committed));
        settle_revision(&mut self.account.delivered, revision);
        touched.extend((!self.changed_emails.is_empty()).then_some(email::KIND));
        touched.extend((!self.changed_threads.is_empty()).then_some(thread::KIND));
        touched.extend((!self.removed_vault_entries.is_empty()).then_some(vault::KIND));
        touched.extend(self.is_account_changed.then_some(account::KIND));
        self.states.revision = revision;
        self.states.kinds.retain(|(kind, _)| !touched.contains(kind));
        self.states.kinds.extend(touched.into_iter().map(|kind| (kind, revision)));
        self.forget();
    }

    /// Drops the emails and threads that were read, and the changes that were committed.
    fn forget(&mut self) {
        self.emails.clear();
        self.threads.clear();
        self.creations.clear();
        self.changed_mailboxes.clear();
        self.changed_emails.clear();
        self.changed_threads.clear();
        self.is_account_changed = false;
        self.removed_vault_entries.clear();
        self.new_thread_keys.clear();
        self.new_deliveries.clear();
        self.body_bytes = 0;
        self.email_changes = 0;
    }
}

fn update(kind: Kind, id: RecordId, body: Option<Body>, properties: Option<Properties>) -> Change {
    Change::Update { kind, id, body, properties }
}

/// The id that a commit assigned for one from [`FIRST_NEW_ID`] on; other ids are unchanged.
pub(crate) fn settled(id: RecordId, committed: &Committed) -> RecordId {
    let number = id.0.checked_sub(FIRST_NEW_ID).and_then(|number| usize::try_from(number).ok());
    number.and_then(|number| committed.created.get(number)).copied().unwrap_or(id)
}

fn settle_mailbox(mailbox: &mut Mailbox, committed: &Committed) {
    mailbox.parent = mailbox.parent.map(|parent| settled(parent, committed));
    settle_revision(&mut mailbox.modseq, committed.revision);
    settle_revision(&mut mailbox.expunged, committed.revision);
    settle_revision(&mut mailbox.shape, committed.revision);
}

fn settle_revision(revision: &mut Revision, committed: Revision) {
    if *revision == NEXT {
        *revision = committed;
    }
}
