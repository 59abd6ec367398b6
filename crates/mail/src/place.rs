//! Where an email goes, and what that changes: pure functions from what was read and an edit to the next view of the account.
//!
//! Each function checks everything before it changes anything, so an edit that fails leaves the view as it was.

use std::collections::BTreeSet;

use bytes::Bytes;
use restante_core::Error;
use restante_records::{Body, Properties, RecordId, Value};

use crate::{EmailState, MailConfig, MailError, StoredMessage, mailboxes::NEXT, schema::vault, view::View};

/// The most emails that a thread gets. The counters need all emails of a thread for each change of one.
pub(crate) const THREAD_EMAILS_MAX: usize = 500;
/// The most places that an email has: IMAP may give it several in a mailbox.
const PLACES_MAX: usize = restante_records::INDEX_ENTRIES_MAX;
/// The largest UID (RFC 9051 §2.3.1.1).
const UID_MAX: u64 = u32::MAX as u64;
const UID_BITS: u32 = 32;
/// Ids of mailboxes are below this, so that a place is a number of 63 bits.
const MAILBOX_ID_END: u64 = 1 << 31;

/// An email to place.
pub(crate) struct Unplaced {
    pub(crate) body: Body,
    pub(crate) mailboxes: BTreeSet<RecordId>,
    /// Without mailboxes, places and thread.
    pub(crate) state: EmailState,
}

/// The body of the record of a message's email.
pub(crate) fn body_of(message: &StoredMessage) -> Body {
    Body { bytes: message.row.clone(), blobs: vec![message.blob] }
}

/// Keys of threads as values of properties.
pub(crate) fn thread_keys_of(message: &StoredMessage) -> Vec<Value> {
    let keys: BTreeSet<&[u8; 16]> =
        message.thread_keys.iter().take(crate::message::THREAD_KEYS_MAX).collect();
    keys.into_iter().map(|key| Value::Text(Bytes::copy_from_slice(key))).collect()
}

/// Seconds since 1970 as they are stored; a time before 1970 counts as 1970.
pub(crate) fn seconds(received: i64) -> u64 {
    u64::try_from(received).unwrap_or(0)
}

/// Places a new email into its mailboxes, and into `thread`, or a new thread for `None`; returns the email and its thread.
pub(crate) fn add_email(
    view: &mut View,
    config: &MailConfig,
    new: Unplaced,
    thread: Option<RecordId>,
    quota: Option<u64>,
) -> Result<(RecordId, RecordId), MailError> {
    let Unplaced { body, mailboxes, mut state } = new;
    check_mailboxes(view, config, &mailboxes)?;
    check_keywords(config, &state)?;
    let bytes = view.account.bytes.saturating_add(state.size);
    if quota.is_some_and(|quota| bytes > quota) {
        return Err(MailError::OverQuota);
    }
    check_uids(view, &mailboxes)?;
    let thread = thread.unwrap_or_else(|| view.create_thread());
    state.thread = thread;
    state.places = mailboxes.iter().filter_map(|mailbox| take_place(view, *mailbox)).collect();
    state.mailboxes = mailboxes.into_iter().collect();
    touch_mailboxes(view, &state);
    let account = view.change_account();
    account.bytes = bytes;
    account.count += 1;
    account.delivered = NEXT;
    Ok((view.create_email(state, body), thread))
}

/// The mailboxes and keywords that an email has after an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) mailboxes: BTreeSet<RecordId>,
    pub(crate) keywords: Vec<u64>,
    pub(crate) is_unseen: bool,
}

impl Target {
    pub(crate) fn of(email: &EmailState) -> Self {
        Self {
            mailboxes: email.mailboxes.iter().copied().collect(),
            keywords: email.keywords.clone(),
            is_unseen: email.is_unseen,
        }
    }

    /// Whether the counters change, so that the other emails of the thread are needed.
    pub(crate) fn changes_counters(&self, email: &EmailState) -> bool {
        let keywords = self.keywords.clone();
        let changed = EmailState { keywords, is_unseen: self.is_unseen, ..EmailState::default() };
        changed.is_unread() != email.is_unread() || !self.mailboxes.iter().eq(&email.mailboxes)
    }
}

/// Gives an email other mailboxes and keywords. Its thread must have been read when counters change.
pub(crate) fn update_email(
    view: &mut View,
    config: &MailConfig,
    id: RecordId,
    before: &EmailState,
    target: Target,
) -> Result<(), MailError> {
    let mut state = before.clone();
    (state.keywords, state.is_unseen) = (target.keywords, target.is_unseen);
    if state.keywords != before.keywords {
        check_keywords(config, &state)?;
    }
    if !target.mailboxes.iter().eq(&before.mailboxes) {
        check_mailboxes(view, config, &target.mailboxes)?;
        move_email(view, &mut state, target.mailboxes)?;
    }
    // For IMAP's MODSEQ, the mailboxes that it leaves have changed, too.
    touch_mailboxes(view, before);
    touch_mailboxes(view, &state);
    view.change_email(id, state);
    Ok(())
}

/// Takes an email out of a mailbox that is to be destroyed. It must be in another one, and its thread must have been read.
pub(crate) fn leave_mailbox(view: &mut View, id: RecordId, before: &EmailState, mailbox: RecordId) {
    let mut state = before.clone();
    state.mailboxes.retain(|other| *other != mailbox);
    remove_places(view, &mut state, mailbox);
    touch_mailboxes(view, before);
    view.change_email(id, state);
}

/// Destroys an email whose thread was read, and puts it into the vault.
pub(crate) fn destroy_email(view: &mut View, id: RecordId, state: &EmailState, body: Body, now: u64) {
    touch_mailboxes(view, state);
    for place in &state.places {
        if let Some(mailbox) = view.change_counters(mailbox_of_place(*place)) {
            mailbox.expunged = NEXT;
        }
    }
    let account = view.change_account();
    account.bytes = account.bytes.saturating_sub(state.size);
    account.count = account.count.saturating_sub(1);
    account.vault_bytes = account.vault_bytes.map(|bytes| bytes.saturating_add(state.size));
    view.destroy_email(id, state.thread, body, vault_properties(id, state, now));
}

/// The properties of the entry of the vault that an email becomes.
fn vault_properties(id: RecordId, state: &EmailState, now: u64) -> Properties {
    let mut pairs = vec![
        (vault::RECEIVED, Value::Number(state.received)),
        (vault::SIZE, Value::Number(state.size)),
        (vault::DELETED_AT, Value::Number(now)),
        (vault::EMAIL, Value::from(id)),
    ];
    pairs.extend(state.mailboxes.iter().map(|mailbox| (vault::MAILBOX, Value::from(*mailbox))));
    pairs.extend(state.thread_keys.iter().map(|key| (vault::THREAD_KEY, key.clone())));
    pairs.extend(state.keywords.iter().map(|keyword| (vault::KEYWORD, Value::Number(*keyword))));
    pairs.extend(state.is_unseen.then_some((vault::UNSEEN, Value::Number(1))));
    pairs.extend(state.delivery.iter().map(|key| (vault::DELIVERY, key.clone())));
    pairs.extend(state.origins.iter().map(|origin| (vault::ORIGIN, Value::Number(*origin))));
    pairs.into_iter().collect()
}

fn check_mailboxes(
    view: &View,
    config: &MailConfig,
    mailboxes: &BTreeSet<RecordId>,
) -> Result<(), MailError> {
    if mailboxes.is_empty() {
        return Err(MailError::NoMailbox);
    }
    let unknown = mailboxes.iter().filter(|id| !view.mailboxes().contains_key(id));
    let unknown: Vec<RecordId> = unknown.copied().collect();
    if !unknown.is_empty() {
        return Err(MailError::UnknownMailbox(unknown));
    }
    if mailboxes.len() > config.mailboxes_per_email_max.get() {
        return Err(MailError::TooManyMailboxes);
    }
    Ok(())
}

fn check_keywords(config: &MailConfig, state: &EmailState) -> Result<(), MailError> {
    let count = state.keywords.len() + usize::from(!state.is_unseen);
    if count > config.keywords_per_email_max.get() {
        return Err(MailError::TooManyKeywords);
    }
    Ok(())
}

fn check_uids(view: &View, mailboxes: &BTreeSet<RecordId>) -> Result<(), MailError> {
    for id in mailboxes {
        let is_exhausted = view.mailboxes().get(id).is_some_and(|mailbox| mailbox.uid_next > UID_MAX);
        if is_exhausted || id.0 >= MAILBOX_ID_END {
            let what = format!("mailbox {} has no UIDs left: move its emails to another mailbox", id.0);
            return Err(Error::full(what).into());
        }
    }
    Ok(())
}

/// Moves an email to other mailboxes: it gets new places in those that it joins, and loses its places in those that it leaves.
fn move_email(
    view: &mut View,
    state: &mut EmailState,
    mailboxes: BTreeSet<RecordId>,
) -> Result<(), MailError> {
    let joined: BTreeSet<RecordId> =
        mailboxes.iter().filter(|id| !state.mailboxes.contains(id)).copied().collect();
    let left: Vec<RecordId> = state.mailboxes.iter().filter(|id| !mailboxes.contains(id)).copied().collect();
    if state.places.len() + joined.len() > PLACES_MAX {
        return Err(MailError::TooManyMailboxes);
    }
    check_uids(view, &joined)?;
    for mailbox in left {
        remove_places(view, state, mailbox);
    }
    for mailbox in joined {
        state.places.extend(take_place(view, mailbox));
    }
    state.places.sort_unstable();
    state.mailboxes = mailboxes.into_iter().collect();
    Ok(())
}

/// The next place in a mailbox; `None` when it does not exist.
fn take_place(view: &mut View, id: RecordId) -> Option<u64> {
    let mailbox = view.change_counters(id)?;
    let uid = mailbox.uid_next.max(1);
    mailbox.uid_next = uid + 1;
    Some(id.0 << UID_BITS | uid)
}

fn remove_places(view: &mut View, state: &mut EmailState, mailbox: RecordId) {
    state.places.retain(|place| mailbox_of_place(*place) != mailbox);
    state.deleted.retain(|place| mailbox_of_place(*place) != mailbox);
    if let Some(mailbox) = view.change_counters(mailbox) {
        mailbox.expunged = NEXT;
    }
}

/// The mailbox of a place of IMAP.
pub(crate) fn mailbox_of_place(place: u64) -> RecordId {
    RecordId(place >> UID_BITS)
}

/// The UID of a place of IMAP.
pub(crate) fn uid_of_place(place: u64) -> u64 {
    place & UID_MAX
}

/// Notes that an email in these mailboxes changes: HIGHESTMODSEQ (RFC 7162).
fn touch_mailboxes(view: &mut View, state: &EmailState) {
    for place in &state.places {
        if let Some(mailbox) = view.change_counters(mailbox_of_place(*place)) {
            mailbox.modseq = NEXT;
        }
    }
}
