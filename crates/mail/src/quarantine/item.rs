//! A message in quarantine as a record, and back.

use std::net::IpAddr;

use bytes::Bytes;
use restante_core::{BlobId, Error};
use restante_mail_wire::header::{Header, as_text};
use restante_records::{Body, Properties, Record, RecordId, Value};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    queue::{number, property_text},
    schema::quarantined,
};

/// The most recipients of one record: an index takes 256 values, and a body 256 KiB.
pub(super) const RECIPIENTS_MAX: usize = 100;
/// The most bytes of a message in which its fields are looked for.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// The most characters of a text that others have written.
const TEXT_CHARS_MAX: usize = 400;

/// A message to keep.
#[derive(Clone, Debug)]
pub struct NewQuarantined {
    /// Where it came from; `None` when that is not known.
    pub peer: Option<IpAddr>,
    /// The name that the client gave in HELO or EHLO.
    pub hello: String,
    /// The id of the reply to it, which the journal of deliveries has.
    pub reply_id: String,
    /// The envelope sender; empty for `<>`.
    pub sender: String,
    /// The recipients, one at least.
    pub recipients: Vec<String>,
    /// Why it is kept, in one line.
    pub reason: String,
    /// When it was received, in seconds since 1970.
    pub received: u64,
    /// Whether the client has declared SMTPUTF8.
    pub is_utf8: bool,
    /// SHA-256 of the message as the client sent it.
    pub digest: [u8; 32],
    /// The message as it is stored when it is released, with the fields of this server.
    pub raw: Bytes,
}

/// A message in quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Its record.
    pub id: RecordId,
    /// When it was received, in seconds since 1970.
    pub at: u64,
    /// Where it came from.
    pub peer: Option<IpAddr>,
    /// The name that the client gave in HELO or EHLO.
    pub hello: String,
    /// The id of the reply to it; empty in records of earlier versions.
    pub reply_id: String,
    /// The envelope sender; empty for `<>`.
    pub sender: String,
    /// The recipients, 100 at most: a message for more has several records.
    pub recipients: Vec<String>,
    /// Why it is kept.
    pub reason: String,
    /// The beginning of its `Subject`, decoded.
    pub subject: Option<String>,
    /// The beginning of its `From`, decoded.
    pub from: Option<String>,
    /// Its Message-ID, without brackets.
    pub message_id: Option<String>,
    /// Its bytes, with the fields of this server.
    pub size: u64,
    /// Whether the client has declared SMTPUTF8.
    pub is_utf8: bool,
    /// SHA-256 of the message as the client sent it.
    pub digest: [u8; 32],
    /// The message.
    pub blob: BlobId,
}

/// The body of a record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    peer: Option<IpAddr>,
    hello: String,
    #[serde(default)]
    reply_id: String,
    sender: String,
    recipients: Vec<String>,
    reason: String,
    subject: Option<String>,
    from: Option<String>,
    #[serde(default)]
    message_id: Option<String>,
    is_utf8: bool,
    digest: String,
    key: String,
}

/// The key of a message for some recipients: equal for the same message and recipients.
pub(super) fn key_of(message: &NewQuarantined, recipients: &[String]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"quarantine\0");
    hash.update(message.digest);
    hash.update(&message.sender);
    for recipient in recipients {
        hash.update(b"\0");
        hash.update(recipient);
    }
    hash.finalize().into()
}

/// The 64-bit hash by which a record is found.
pub(super) fn key_hash(key: &[u8; 32]) -> u64 {
    let eight = key.get(8..16).and_then(|eight| eight.try_into().ok());
    u64::from_be_bytes(eight.unwrap_or_default())
}

/// Whether a record has a key.
pub(super) fn is_of(record: &Record, key: &[u8; 32]) -> bool {
    stored(record).is_ok_and(|stored| stored.key == BlobId(*key).to_string())
}

/// The record of a message for some of its recipients.
pub(super) fn write(
    message: &NewQuarantined,
    recipients: &[String],
    blob: BlobId,
) -> Result<(Body, Properties), Error> {
    let key = key_of(message, recipients);
    let header = Header::parse(message.raw.get(..HEADER_BYTES_MAX).unwrap_or(&message.raw));
    let field = |name| header.last(name).map(|field| cut(as_text(field.value).trim()));
    let stored = Stored {
        peer: message.peer,
        hello: cut(&message.hello),
        reply_id: message.reply_id.clone(),
        sender: message.sender.clone(),
        recipients: recipients.to_vec(),
        reason: cut(&message.reason),
        subject: field("Subject"),
        from: field("From"),
        message_id: field("Message-ID").map(|id| id.trim_matches(['<', '>']).to_owned()),
        is_utf8: message.is_utf8,
        digest: BlobId(message.digest).to_string(),
        key: BlobId(key).to_string(),
    };
    let bytes = serde_json::to_vec(&stored)
        .map_err(|error| Error::internal("a message in quarantine can't be written").with_source(error))?;
    let mut properties = Properties::default()
        .with(quarantined::AT, message.received)
        .with(quarantined::SIZE, message.raw.len() as u64)
        .with(quarantined::DOMAIN, property_text(&domain_of(&message.sender)))
        .with(quarantined::KEY, key_hash(&key));
    for recipient in recipients {
        let text = property_text(&recipient.to_lowercase());
        properties.add(quarantined::RECIPIENT, Value::Text(text));
    }
    Ok((Body { bytes: bytes.into(), blobs: vec![blob] }, properties))
}

/// The domain of a sender, in lowercase.
pub(super) fn domain_of(address: &str) -> String {
    address.rsplit_once('@').map_or("", |(_, domain)| domain).to_lowercase()
}

fn cut(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

fn stored(record: &Record) -> Result<Stored, Error> {
    serde_json::from_slice(&record.body.bytes)
        .map_err(|error| Error::corrupt("a message in quarantine can't be read").with_source(error))
}

/// A message from its record.
pub(super) fn read(record: &Record) -> Result<Quarantined, Error> {
    let stored = stored(record)?;
    let damaged = || Error::corrupt("a message in quarantine has no bytes");
    let count = |property| number(&record.properties, property).unwrap_or(0);
    Ok(Quarantined {
        id: record.id,
        at: count(quarantined::AT),
        peer: stored.peer,
        hello: stored.hello,
        reply_id: stored.reply_id,
        sender: stored.sender,
        recipients: stored.recipients,
        reason: stored.reason,
        subject: stored.subject,
        from: stored.from,
        message_id: stored.message_id,
        size: count(quarantined::SIZE),
        is_utf8: stored.is_utf8,
        digest: stored.digest.parse::<BlobId>().map_err(|_| damaged())?.0,
        blob: record.body.blobs.first().copied().ok_or_else(damaged)?,
    })
}
