//! What a mailbox is: its record, its role and its body.

use bytes::Bytes;
use restante_core::Error;
use restante_records::{Body, Properties, Property, Record, RecordId, Revision, TEXT_BYTES_MAX, Value};

use crate::schema::mailbox;

/// The first byte of the body of a mailbox.
const BODY_VERSION: u8 = 1;
const SUBSCRIBED: u8 = 1;
/// The length of version, flags and sort order.
const BODY_HEAD_BYTES: usize = 6;

/// Stands for the revision of the commit being planned.
pub(crate) const NEXT: Revision = Revision(u64::MAX);
/// Ids from here on stand for records that the commit being planned creates: this plus the number of the create.
pub(crate) const FIRST_NEW_ID: u64 = 1 << 62;

/// A mailbox, RFC 8621 §2, with its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mailbox {
    /// Its id, below 2^31.
    pub id: RecordId,
    /// Its name, in Unicode's normalization form C.
    pub name: String,
    /// The mailbox above it.
    pub parent: Option<RecordId>,
    /// Its role. No two mailboxes of an account have the same.
    pub role: Option<Role>,
    /// Where a client shows it among its siblings.
    pub sort_order: u32,
    /// Whether the user subscribed to it.
    pub is_subscribed: bool,
    /// The emails in it.
    pub total: u64,
    /// Those of them that have neither $seen nor $draft.
    pub unread: u64,
    /// The threads that have an email in it.
    pub threads: u64,
    /// Those of them that are unread, see [`crate::mailbox::UNREAD_THREADS`].
    pub unread_threads: u64,
    /// The bytes of its emails.
    pub bytes: u64,
    /// The UID that the next email in it gets.
    pub uid_next: u64,
    /// Its UIDVALIDITY.
    pub uid_validity: u64,
    /// The revision that last changed an email in it.
    pub modseq: Revision,
    /// The revision that last removed an email from it.
    pub expunged: Revision,
    /// The revision that last changed more than counters: if it is not above a client's state, only the counters have changed since
    /// then (RFC 8621 §2.2).
    pub shape: Revision,
}

impl Mailbox {
    /// A mailbox from its whole record.
    ///
    /// # Errors
    /// `Corrupt` when the record is not one of a mailbox.
    pub(crate) fn of(record: &Record) -> Result<Self, Error> {
        let damaged = || Error::corrupt(format!("the record of mailbox {} is damaged", record.id.0));
        let properties = &record.properties;
        let number = |property| number_of(properties, property).unwrap_or(0);
        let role = match properties.values(mailbox::ROLE).next() {
            Some(Value::Text(text)) => Some(Role::of(text).ok_or_else(damaged)?),
            Some(_) => return Err(damaged()),
            None => None,
        };
        let body: &[u8] = &record.body.bytes;
        let (head, name) = body.split_at_checked(BODY_HEAD_BYTES).ok_or_else(damaged)?;
        let [BODY_VERSION, flags, a, b, c, d] = *head else { return Err(damaged()) };
        let parent = number(mailbox::PARENT);
        Ok(Self {
            id: record.id,
            name: std::str::from_utf8(name).map_err(|_| damaged())?.to_owned(),
            parent: (parent != 0).then_some(RecordId(parent)),
            role,
            sort_order: u32::from_be_bytes([a, b, c, d]),
            is_subscribed: flags & SUBSCRIBED != 0,
            total: number(mailbox::TOTAL),
            unread: number(mailbox::UNREAD),
            threads: number(mailbox::THREADS),
            unread_threads: number(mailbox::UNREAD_THREADS),
            bytes: number(mailbox::BYTES),
            uid_next: number(mailbox::UID_NEXT),
            uid_validity: number(mailbox::UID_VALIDITY),
            modseq: Revision(number(mailbox::MODSEQ)),
            expunged: Revision(number(mailbox::EXPUNGED)),
            shape: Revision(number(mailbox::SHAPE)),
        })
    }

    /// The body of its record: a version, flags, the sort order, and the whole name.
    pub(crate) fn body(&self) -> Body {
        let mut bytes = Vec::with_capacity(BODY_HEAD_BYTES + self.name.len());
        bytes.extend([BODY_VERSION, if self.is_subscribed { SUBSCRIBED } else { 0 }]);
        bytes.extend(self.sort_order.to_be_bytes());
        bytes.extend(self.name.as_bytes());
        Body::new(bytes)
    }

    /// The properties of its record.
    pub(crate) fn properties(&self) -> Properties {
        let name = self.name.as_bytes();
        let name = name.get(..TEXT_BYTES_MAX).unwrap_or(name);
        let numbers = [
            (mailbox::TOTAL, self.total),
            (mailbox::UNREAD, self.unread),
            (mailbox::THREADS, self.threads),
            (mailbox::UNREAD_THREADS, self.unread_threads),
            (mailbox::BYTES, self.bytes),
            (mailbox::UID_NEXT, self.uid_next),
            (mailbox::UID_VALIDITY, self.uid_validity),
        ];
        let revisions = [
            (mailbox::MODSEQ, self.modseq),
            (mailbox::EXPUNGED, self.expunged),
            (mailbox::SHAPE, self.shape),
        ];
        let mut pairs = vec![
            (mailbox::PARENT, id_value(self.parent.unwrap_or(RecordId(0)))),
            (mailbox::NAME, Value::Text(Bytes::copy_from_slice(name))),
        ];
        pairs.extend(self.role.map(|role| (mailbox::ROLE, Value::from(role.as_str()))));
        // A number of 0 is left out: a missing number is read as 0.
        pairs.extend(numbers.iter().filter(|(_, number)| *number > 0).map(|(p, n)| (*p, Value::Number(*n))));
        pairs.extend(revisions.iter().filter(|(_, r)| r.0 > 0).map(|(p, r)| (*p, revision_value(*r))));
        pairs.into_iter().collect()
    }
}

/// The first number of a property.
pub(crate) fn number_of(properties: &Properties, property: Property) -> Option<u64> {
    properties.values(property).find_map(|value| match value {
        Value::Number(number) => Some(*number),
        _ => None,
    })
}

/// An id as a value, also that of a record that the commit being planned creates.
pub(crate) fn id_value(id: RecordId) -> Value {
    match id.0.checked_sub(FIRST_NEW_ID).and_then(|create| u16::try_from(create).ok()) {
        Some(create) => Value::Created(create),
        None => Value::Number(id.0),
    }
}

/// A revision as a value, also that of the commit being planned.
pub(crate) fn revision_value(revision: Revision) -> Value {
    if revision == NEXT { Value::Revision } else { Value::Number(revision.0) }
}

/// What a mailbox is for (RFC 8621 §2, from the registry of IMAP's special-use attributes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// All mail.
    All,
    /// Mail that is kept and not in the inbox.
    Archive,
    /// Drafts.
    Drafts,
    /// Mail that is flagged.
    Flagged,
    /// Mail that is important.
    Important,
    /// What is delivered.
    Inbox,
    /// Unwanted mail.
    Junk,
    /// Mail that was sent.
    Sent,
    /// What the user subscribed to.
    Subscribed,
    /// Mail that was deleted.
    Trash,
}

impl Role {
    /// All roles, by their names.
    pub const EVERY: [Self; 10] = [
        Self::All,
        Self::Archive,
        Self::Drafts,
        Self::Flagged,
        Self::Important,
        Self::Inbox,
        Self::Junk,
        Self::Sent,
        Self::Subscribed,
        Self::Trash,
    ];

    /// Its name in JMAP.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Archive => "archive",
            Self::Drafts => "drafts",
            Self::Flagged => "flagged",
            Self::Important => "important",
            Self::Inbox => "inbox",
            Self::Junk => "junk",
            Self::Sent => "sent",
            Self::Subscribed => "subscribed",
            Self::Trash => "trash",
        }
    }

    /// The role with a name; `None` when there is no such role.
    pub fn of(name: &[u8]) -> Option<Self> {
        Self::EVERY.into_iter().find(|role| role.as_str().as_bytes() == name)
    }
}
