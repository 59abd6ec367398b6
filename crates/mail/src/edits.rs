//! The edits that callers pass to [`crate::Mail`], and their outcomes.

use std::collections::BTreeSet;

use bytes::Bytes;
use restante_core::BlobId;
use restante_records::{RecordId, Revision};

use crate::message::Message;

/// What the records keep of a message. Cloning shares it, so a message for many recipients is read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// The listing row: the body of the email's record.
    pub row: Bytes,
    /// The bytes of the raw message.
    pub size: u64,
    /// The keys that its thread is found by, see [`crate::email::THREAD_KEY`]; [`crate::message::THREAD_KEYS_MAX`] at most.
    pub thread_keys: Vec<[u8; 16]>,
    /// The raw message. It must have been put or touched before the edit, see [`restante_blobs::Blobs::touch`].
    pub blob: BlobId,
}

impl StoredMessage {
    /// What is kept of a message whose bytes are this blob.
    pub fn new(message: &Message, blob: BlobId) -> Self {
        Self { row: message.row(), size: message.size, thread_keys: message.thread_keys.clone(), blob }
    }
}

/// A message that SMTP or LMTP delivered to an account.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The message.
    pub message: StoredMessage,
    /// SHA-256 of the bytes as they were received and of the recipient. A delivery with the key of an earlier one is not stored.
    pub key: [u8; 32],
    /// Whether it goes to the mailbox with the role junk, with the keyword `$junk`, and not to the inbox.
    pub to_junk: bool,
    /// When it was received, in seconds since 1970.
    pub received: i64,
    /// The most bytes that the account may have; `None` for no limit.
    pub quota: Option<u64>,
}

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// It became this email.
    New(RecordId),
    /// It was delivered before; nothing was stored.
    Repeated,
}

/// A message that is imported from elsewhere.
#[derive(Clone, Debug)]
pub struct ImportedMessage {
    /// The message.
    pub message: StoredMessage,
    /// Identifies the message at its source: a message with the key of an earlier one is the same email.
    pub key: [u8; 32],
    /// The mailboxes that it is placed into, at least one, each with the number of the source folder that it stands for.
    pub places: Vec<(RecordId, u64)>,
    /// Its keywords, in any case.
    pub keywords: Vec<String>,
    /// When it was received, in seconds since 1970.
    pub received: i64,
    /// The most bytes that the account may have; `None` for no limit.
    pub quota: Option<u64>,
}

/// How an import of a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    /// It became this email.
    New(RecordId),
    /// It was already this email, which was placed into more mailboxes and got the keywords.
    Placed(RecordId),
    /// It was already imported from these folders; nothing was changed.
    Repeated,
}

/// An email that a user creates: by Email/set, Email/import, Email/copy or IMAP's APPEND.
#[derive(Clone, Debug)]
pub struct NewEmail {
    /// The state that emails must be in, if any (RFC 8620 §5.3).
    pub if_in_state: Option<Revision>,
    /// The message.
    pub message: StoredMessage,
    /// Its mailboxes, one at least.
    pub mailboxes: Vec<RecordId>,
    /// Its keywords, in any case.
    pub keywords: Vec<String>,
    /// When it was received, in seconds since 1970.
    pub received: i64,
    /// The most bytes that the account may have; `None` for no limit.
    pub quota: Option<u64>,
}

/// An email that was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedEmail {
    /// The email.
    pub id: RecordId,
    /// Its thread.
    pub thread: RecordId,
    /// The states of emails before and after.
    pub states: Transition,
}

/// The states of a kind before and after an edit.
///
/// Edits of several callers may share a commit, and other commits may come between two edits of one caller. Either way the two
/// states say more than the caller's own changes: RFC 8620 §5.3 allows `null` as `oldState` then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state before the commit.
    pub old: Revision,
    /// The state after it; equal to `old` when the edit changed nothing.
    pub new: Revision,
    /// Whether edits of others changed the kind in the same commit, see [`crate::Mail::for_call`], or may have changed it
    /// between the commits of one edit.
    pub is_shared: bool,
}

/// How a set of values changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch<T> {
    /// It stays as it is.
    Keep,
    /// It becomes this set.
    Whole(BTreeSet<T>),
    /// These values are added and removed. Adding a value that is there, or removing one that is not, is no error.
    Parts {
        /// Added, after the removals.
        add: BTreeSet<T>,
        /// Removed.
        remove: BTreeSet<T>,
    },
}

/// How an email changes. Nothing else about it can change (RFC 8621 §4.6).
#[derive(Clone, Debug)]
pub struct EmailUpdate {
    /// The state that emails must be in, if any.
    pub if_in_state: Option<Revision>,
    /// Its mailboxes.
    pub mailboxes: Patch<RecordId>,
    /// Its keywords, in any case.
    pub keywords: Patch<String>,
}

/// The parent of a mailbox that is created or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// None: the mailbox is at the top.
    Top,
    /// This one.
    Mailbox(RecordId),
    /// The mailbox that the create with this number in the same set makes, counted from 0.
    Created(usize),
}

/// A mailbox to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMailbox {
    /// Its name; it is stored in Unicode's normalization form C.
    pub name: String,
    /// The mailbox above it.
    pub parent: Parent,
    /// Its role.
    pub role: Option<String>,
    /// Where a client shows it among its siblings, below 2^31.
    pub sort_order: u32,
    /// Whether the user subscribed to it.
    pub is_subscribed: bool,
}

/// How a mailbox changes; `None` leaves a property as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailboxUpdate {
    /// Its name.
    pub name: Option<String>,
    /// The mailbox above it.
    pub parent: Option<Parent>,
    /// Its role.
    pub role: Option<Option<String>>,
    /// Its place among its siblings.
    pub sort_order: Option<u32>,
    /// Whether the user subscribed to it.
    pub is_subscribed: Option<bool>,
}

/// What Mailbox/set changes (RFC 8621 §2.5): creates, then updates, then destroys.
#[derive(Clone, Debug, Default)]
pub struct MailboxSet {
    /// The state that mailboxes must be in, if any.
    pub if_in_state: Option<Revision>,
    /// The mailboxes to create, in any order: a child may come before its parent.
    pub create: Vec<NewMailbox>,
    /// The mailboxes to change.
    pub update: Vec<(RecordId, MailboxUpdate)>,
    /// The mailboxes to destroy.
    pub destroy: Vec<RecordId>,
    /// Whether the emails of a destroyed mailbox are removed from it (`onDestroyRemoveEmails`); those that are in no other mailbox
    /// are destroyed.
    pub remove_emails: bool,
}

/// The outcome of a [`MailboxSet`], entry by entry.
#[derive(Debug)]
pub struct MailboxSetOutcome {
    /// The states of mailboxes before and after.
    pub states: Transition,
    /// For each create, in order: the mailbox, and its name if normalization changed it.
    pub created: Vec<Result<SetMailbox, crate::MailError>>,
    /// The same for each update, in order.
    pub updated: Vec<Result<SetMailbox, crate::MailError>>,
    /// The outcome of each destroy, in order.
    pub destroyed: Vec<Result<(), crate::MailError>>,
}

/// A mailbox that was created or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetMailbox {
    /// The mailbox.
    pub id: RecordId,
    /// Its name in normalization form C, if that is not the one that was given.
    pub normalized_name: Option<String>,
}
