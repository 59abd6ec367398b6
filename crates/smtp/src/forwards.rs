//! Forwards: mail whose alias leads to another server.

use std::sync::Arc;

use bytes::Bytes;
use restante_core::{Error, Timestamp};
use restante_directory::EmailAddress;
use restante_mail::queue::{NewMessage, NewRecipient, Notify, Source, SourceKind, Transmission};
use restante_mail_wire::smtp::encode_xtext;
use restante_records::RecordId;
use sha2::{Digest, Sha256};

use crate::Outbox;

/// Senders of forwarded mail, rewritten to addresses of this server (SRS), so that the next server finds this one in the SPF record of the
/// sender's domain, and reports come back through this server.
pub trait ForwardSender: Send + Sync + 'static {
    /// The sender with which a message is forwarded. `sender` is the one that it came with, never empty; `alias` is the address that led outside.
    fn rewrite(&self, sender: &str, alias: &EmailAddress, now: Timestamp) -> String;

    /// The sender that an address was made of by [`ForwardSender::rewrite`]; `None` when this server has not made it, or too long ago. The
    /// address is as the client wrote it, with its upper and lower case.
    fn original(&self, address: &str, now: Timestamp) -> Option<String>;
}

/// Queues what is forwarded. Cloning shares the queue.
#[derive(Clone)]
pub struct Forwards {
    /// Takes what is forwarded.
    pub outbox: Arc<dyn Outbox>,
    /// Rewrites senders.
    pub sender: Arc<dyn ForwardSender>,
}

/// A message that is forwarded.
#[derive(Clone, Debug)]
pub struct Forwarded<'m> {
    /// The message with the `Received` field of this server, without `Return-Path`.
    pub raw: &'m [u8],
    /// Says whether a message is the same: [`crate::ReceivedMail::digest`].
    pub digest: [u8; 32],
    /// The sender that it came with; empty for `<>`.
    pub sender: &'m str,
    /// Whether the client has declared SMTPUTF8.
    pub is_utf8: bool,
    /// The address that leads outside.
    pub alias: &'m EmailAddress,
    /// Where it leads.
    pub targets: &'m [String],
    /// When it was received.
    pub received: Timestamp,
}

impl Forwards {
    /// Queues a message for the targets outside of an alias: durably when this returns, and once, however often the same message comes to the same
    /// alias. Its copy begins with `Delivered-To`, by which a loop is recognized.
    ///
    /// # Errors
    /// Those of the blobs and of the queue; repeating is safe.
    pub async fn forward(&self, mail: Forwarded<'_>) -> Result<(), Error> {
        let mut raw = format!("Delivered-To: {}\r\n", mail.alias).into_bytes();
        raw.extend_from_slice(mail.raw);
        let raw = Bytes::from(raw);
        let sender = match mail.sender {
            "" => String::new(),
            sender => self.sender.rewrite(sender, mail.alias, mail.received),
        };
        let transmission =
            transmission_of(&raw, mail.is_utf8, [sender.as_str()].into_iter().chain(texts(mail.targets)));
        let original = original_of(&mail.alias.to_string());
        let recipient = |address: &String| NewRecipient {
            address: address.clone(),
            notify: Notify::default(),
            original: original.clone(),
        };
        let size = raw.len() as u64;
        let message = NewMessage {
            source: Source {
                kind: SourceKind::Forward,
                account: None,
                record: RecordId(0),
                key: key_of(&mail.digest, mail.alias),
            },
            blob: self.outbox.put(raw).await?,
            size,
            sender,
            envelope_id: None,
            returned: None,
            transmission,
            due: u64::try_from(mail.received.seconds()).unwrap_or_default(),
            recipients: mail.targets.iter().map(recipient).collect(),
        };
        self.outbox.queue(message).await
    }
}

fn texts(texts: &[String]) -> impl Iterator<Item = &str> {
    texts.iter().map(String::as_str)
}

/// What a forward is recognized by when the message comes again.
fn key_of(digest: &[u8; 32], alias: &EmailAddress) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"forward\0");
    hash.update(digest);
    hash.update(alias.to_string());
    hash.finalize().into()
}

/// The address of the alias as `ORCPT` has it.
fn original_of(alias: &str) -> Option<String> {
    alias.is_ascii().then(|| format!("rfc822;{}", encode_xtext(alias)))
}

/// How a message may be transmitted. SMTPUTF8 is needed only for what came with it: older mail has octets above 127 in fields, too.
pub(crate) fn transmission_of<'a>(
    raw: &[u8],
    is_utf8: bool,
    addresses: impl IntoIterator<Item = &'a str>,
) -> Transmission {
    let is_address_wide = addresses.into_iter().any(|address| !address.is_ascii());
    let header = memchr::memmem::find(raw, b"\r\n\r\n").and_then(|end| raw.get(..end)).unwrap_or(raw);
    Transmission { is_8bit: !raw.is_ascii(), is_utf8: is_address_wide || (is_utf8 && !header.is_ascii()) }
}
