//! The properties of an email's record: the state that can change, and the keys by which the email is found.

use restante_core::Error;
use restante_records::{Properties, Record, RecordId, Value};

use crate::{
    mailboxes::{id_value, number_of},
    schema::email,
};

/// The number of `$draft`, see [`crate::keyword::KNOWN`].
pub(crate) const DRAFT: u64 = 2;
/// The number of `$junk`.
pub(crate) const JUNK: u64 = 5;

/// The properties of an email's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmailState {
    /// The mailboxes that it is in, ascending. An email without any exists only for IMAP, until it is expunged.
    pub mailboxes: Vec<RecordId>,
    /// When it was received, in seconds since 1970.
    pub received: u64,
    /// Its thread.
    pub thread: RecordId,
    /// Its keywords except `$seen`, as ascending numbers; [`crate::Keywords`] has their names.
    pub keywords: Vec<u64>,
    /// Whether it does not have `$seen`.
    pub is_unseen: bool,
    /// The bytes of its message.
    pub size: u64,
    /// Its places in mailboxes, ascending: see [`email::PLACE`].
    pub places: Vec<u64>,
    /// Those of them that have \Deleted, ascending.
    pub deleted: Vec<u64>,
    /// The keys that its thread is found by.
    pub(crate) thread_keys: Vec<Value>,
    /// The key of its delivery or import.
    pub(crate) delivery: Option<Value>,
    /// The folders of the source that it was imported from, ascending.
    pub(crate) origins: Vec<u64>,
}

impl EmailState {
    /// The properties of a record of kind [`email::KIND`].
    ///
    /// # Errors
    /// `Corrupt` when it has no thread.
    pub fn of(record: &Record) -> Result<Self, Error> {
        let mut state = Self::default();
        for (property, value) in record.properties.iter() {
            match (*property, value) {
                (email::MAILBOX, Value::Number(id)) => state.mailboxes.push(RecordId(*id)),
                (email::RECEIVED, Value::Number(seconds)) => state.received = *seconds,
                (email::THREAD, Value::Number(id)) => state.thread = RecordId(*id),
                (email::KEYWORD, Value::Number(keyword)) => state.keywords.push(*keyword),
                (email::UNSEEN, _) => state.is_unseen = true,
                (email::PLACE, Value::Number(place)) => state.places.push(*place),
                (email::DELETED, Value::Number(place)) => state.deleted.push(*place),
                (email::SIZE, Value::Number(bytes)) => state.size = *bytes,
                (email::THREAD_KEY, key) => state.thread_keys.push(key.clone()),
                (email::DELIVERY, key) => state.delivery = Some(key.clone()),
                (email::ORIGIN, Value::Number(origin)) => state.origins.push(*origin),
                _ => {}
            }
        }
        if number_of(&record.properties, email::THREAD).is_none() {
            return Err(Error::corrupt(format!("the email {} has no thread", record.id.0)));
        }
        Ok(state)
    }

    /// Whether it has neither `$seen` nor `$draft`: what RFC 8621 §2 counts as unread.
    pub fn is_unread(&self) -> bool {
        self.is_unseen && self.keywords.binary_search(&DRAFT).is_err()
    }

    /// The properties of its record.
    pub(crate) fn properties(&self) -> Properties {
        let mut pairs = Vec::with_capacity(8 + 2 * self.mailboxes.len() + self.thread_keys.len());
        pairs.extend(self.mailboxes.iter().map(|id| (email::MAILBOX, Value::from(*id))));
        pairs.push((email::RECEIVED, Value::Number(self.received)));
        pairs.push((email::THREAD, id_value(self.thread)));
        pairs.extend(self.thread_keys.iter().map(|key| (email::THREAD_KEY, key.clone())));
        pairs.extend(self.keywords.iter().map(|keyword| (email::KEYWORD, Value::Number(*keyword))));
        pairs.extend(self.is_unseen.then_some((email::UNSEEN, Value::Number(1))));
        pairs.extend(self.places.iter().map(|place| (email::PLACE, Value::Number(*place))));
        pairs.extend(self.deleted.iter().map(|place| (email::DELETED, Value::Number(*place))));
        pairs.extend(self.delivery.iter().map(|key| (email::DELIVERY, key.clone())));
        pairs.extend(self.origins.iter().map(|origin| (email::ORIGIN, Value::Number(*origin))));
        pairs.push((email::SIZE, Value::Number(self.size)));
        pairs.into_iter().collect()
    }
}
