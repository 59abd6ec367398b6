//! A recipient as a record, and back.

use std::sync::Arc;

use bytes::Bytes;
use restante_core::{BlobId, Error};
use restante_records::{AccountId, Body, Properties, Property, Record, RecordId, TEXT_BYTES_MAX, Value};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    LastAttempt, NewMessage, NewRecipient, Notify, QueuedId, QueuedMessage, QueuedRecipient, QueuedState,
    Reply, Return, Source, SourceKind, Transmission, account::key_hash,
};
use crate::schema::queued;

/// The longest text of a reply that is kept.
const REPLY_CHARS_MAX: usize = 500;
/// A recipient that is later than this, in seconds, can't have been tried: the server was off, the recipient held, or a backup restored.
const LATE_SECONDS: u64 = 3_600;

/// The body of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    source: StoredSource,
    size: u64,
    sender: String,
    envelope_id: Option<String>,
    returned: Option<Return>,
    transmission: Transmission,
    queued: u64,
    pub(super) address: String,
    notify: Notify,
    original: Option<String>,
    pub(super) last: Option<StoredAttempt>,
    pub(super) reason: Option<String>,
    /// How many times in a row it was returned for later without an attempt.
    #[serde(default)]
    pub(super) returns: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredSource {
    kind: SourceKind,
    account: Option<u32>,
    record: u64,
    key: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredAttempt {
    at: u64,
    reply: Reply,
}

impl StoredAttempt {
    pub(super) fn new(at: u64, mut reply: Reply) -> Self {
        if let Some((end, _)) = reply.text.char_indices().nth(REPLY_CHARS_MAX) {
            reply.text.truncate(end);
        }
        Self { at, reply }
    }
}

impl Stored {
    pub(super) fn new(message: &NewMessage, recipient: &NewRecipient, now: u64) -> Self {
        let source = &message.source;
        Self {
            source: StoredSource {
                kind: source.kind,
                account: source.account.map(|account| account.0),
                record: source.record.0,
                key: key_text(&source.key),
            },
            size: message.size,
            sender: message.sender.clone(),
            envelope_id: message.envelope_id.clone(),
            returned: message.returned,
            transmission: message.transmission,
            queued: now,
            address: recipient.address.clone(),
            notify: recipient.notify,
            original: recipient.original.clone(),
            last: None,
            reason: None,
            returns: 0,
        }
    }

    /// Reads the body of a record.
    pub(super) fn read(body: &Body) -> Result<Self, Error> {
        serde_json::from_slice(&body.bytes).map_err(|error| {
            Error::corrupt("the body of a queued recipient can't be read").with_source(error)
        })
    }

    pub(super) fn body(&self, blobs: Vec<BlobId>) -> Result<Body, Error> {
        let bytes = serde_json::to_vec(self)
            .map_err(|error| Error::internal("a queued recipient can't be written").with_source(error))?;
        Ok(Body { bytes: bytes.into(), blobs })
    }

    pub(super) fn is_of(&self, key: &[u8; 32]) -> bool {
        self.source.key == key_text(key)
    }

    /// Whether it is remembered when it has ended: its source may add it again with the same key after that.
    pub(super) fn is_remembered(&self) -> bool {
        match self.source.kind {
            SourceKind::Submission
            | SourceKind::Forward
            | SourceKind::Vacation
            | SourceKind::AggregateReport => true,
            SourceKind::Smtp | SourceKind::Report => false,
        }
    }
}

/// The properties of a new recipient.
pub(super) fn new_properties(message: &NewMessage, recipient: &NewRecipient, due: u64) -> Properties {
    let mut properties = Properties::default()
        .with(queued::STATE, state_number(QueuedState::Due))
        .with(queued::DUE, due)
        .with(queued::DOMAIN, property_text(&domain_of(&recipient.address)))
        .with(queued::KEY, key_hash(&message.source.key))
        .with(queued::SENDER, property_text(&message.sender.to_lowercase()))
        .with(queued::FIRST_DUE, due);
    if let Some(account) = message.source.account {
        properties.add(queued::ACCOUNT, Value::Number(account.0.into()));
    }
    properties
}

/// A record whose recipient has not ended; `None` for one that is only remembered.
pub(super) fn view(account: AccountId, record: &Record) -> Result<Option<QueuedRecipient>, Error> {
    let properties = &record.properties;
    let Some(state) = number(properties, queued::STATE) else { return Ok(None) };
    let stored = Stored::read(&record.body)?;
    let damaged = || Error::corrupt("a queued recipient has no message");
    let source = Source {
        kind: stored.source.kind,
        account: stored.source.account.map(AccountId),
        record: RecordId(stored.source.record),
        key: stored.source.key.parse::<BlobId>().map_err(|_| damaged())?.0,
    };
    let message = QueuedMessage {
        source,
        blob: record.body.blobs.first().copied().ok_or_else(damaged)?,
        size: stored.size,
        sender: stored.sender,
        envelope_id: stored.envelope_id,
        returned: stored.returned,
        transmission: stored.transmission,
        queued: stored.queued,
    };
    let count = |property| number(properties, property).unwrap_or(0);
    Ok(Some(QueuedRecipient {
        id: QueuedId { account, record: record.id },
        message: Arc::new(message),
        domain: domain_of(&stored.address),
        recipient: NewRecipient { address: stored.address, notify: stored.notify, original: stored.original },
        state: if state == 0 { QueuedState::Due } else { QueuedState::Held },
        due: count(queued::DUE),
        first_due: count(queued::FIRST_DUE),
        attempts: u32::try_from(count(queued::ATTEMPTS)).unwrap_or(u32::MAX),
        is_leased: count(queued::LEASE) > 0,
        is_delay_reported: count(queued::DELAY_REPORTED) > 0,
        faults: u32::try_from(count(queued::FAULTS)).unwrap_or(u32::MAX),
        returns: stored.returns,
        last: stored.last.map(|last| LastAttempt { at: last.at, reply: last.reply }),
        reason: stored.reason,
    }))
}

/// The domain of an address, in lowercase.
fn domain_of(address: &str) -> String {
    let domain = address.rsplit_once('@').map_or("", |(_, domain)| domain);
    domain.to_lowercase()
}

/// A text as a property. One that is too long is hashed, so that different texts stay different.
pub(crate) fn property_text(text: &str) -> Bytes {
    if text.len() <= TEXT_BYTES_MAX {
        return Bytes::copy_from_slice(text.as_bytes());
    }
    let hash = BlobId(Sha256::digest(text.as_bytes()).into()).to_string();
    Bytes::from(format!("#{}", hash.get(..32).unwrap_or_default()))
}

fn key_text(key: &[u8; 32]) -> String {
    BlobId(*key).to_string()
}

pub(super) fn state_number(state: QueuedState) -> u64 {
    match state {
        QueuedState::Due => 0,
        QueuedState::Held => 1,
    }
}

pub(crate) fn number(properties: &Properties, property: Property) -> Option<u64> {
    properties.values(property).find_map(|value| match value {
        Value::Number(number) => Some(*number),
        _ => None,
    })
}

pub(super) fn text(properties: &Properties, property: Property) -> Option<String> {
    properties.values(property).find_map(|value| match value {
        Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    })
}

/// Whether the first attempt is still to come, at a later time that its author has asked for.
pub(super) fn is_scheduled(properties: &Properties, now: u64) -> bool {
    number(properties, queued::FIRST_DUE).is_some_and(|first| first > now)
        && number(properties, queued::ATTEMPTS).unwrap_or(0) == 0
}

/// Sets a property to one value, or removes it for `None`.
pub(super) fn set(properties: &mut Properties, property: Property, value: Option<Value>) {
    let others = properties.iter().filter(|(known, _)| *known != property).cloned();
    *properties = others.chain(value.map(|value| (property, value))).collect();
}

/// Moves the first due time of a recipient, from which its expiry counts, by the time since it was due, if that is long: it was not
/// tried in that time.
pub(super) fn add_lateness(properties: &mut Properties, now: u64) {
    let (Some(due), Some(first)) = (number(properties, queued::DUE), number(properties, queued::FIRST_DUE))
    else {
        return;
    };
    let late = now.saturating_sub(due);
    // A recipient that an operator has sent before its scheduled time keeps that time.
    let later = first.saturating_add(late).min(now);
    if late > LATE_SECONDS && later > first {
        set(properties, queued::FIRST_DUE, Some(Value::Number(later)));
    }
}
