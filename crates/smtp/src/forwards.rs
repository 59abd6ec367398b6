//! Forwards: mail whose alias leads to another server.

use std::sync::Arc;

use bytes::Bytes;
use restante_core::{Error, Timestamp};
use restante_directory::EmailAddress;
use restante_mail::queue::{NewMessage, NewRecipient, Notify, Return, Source, SourceKind, Transmission};
use restante_mail_wire::smtp::encode_xtext;
use restante_records::RecordId;
use sha2::{Digest, Sha256};

use crate::Outbox;

/// Messages up to this length are copied and searched on the thread that serves the connection.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// Rewrites the senders of forwarded mail to addresses of this server (SRS), so that the next server finds this one in the SPF
/// record of the sender's domain, and reports return through this server.
pub trait ForwardSender: Send + Sync + 'static {
    /// The sender with which a message is forwarded. `sender` is its original sender, never empty; `alias` is the address that
    /// leads to another server.
    fn rewrite(&self, sender: &str, alias: &EmailAddress) -> String;

    /// The sender from which [`ForwardSender::rewrite`] made an address; `None` if this server has not made it, or too long ago.
    /// The address is as the client wrote it, with its upper and lower case.
    fn original(&self, address: &str) -> Option<String>;
}

/// Queues what is forwarded. Cloning shares the queue.
#[derive(Clone)]
pub struct Forwards {
    /// Queues the messages.
    pub outbox: Arc<dyn Outbox>,
    /// Rewrites senders.
    pub sender: Arc<dyn ForwardSender>,
}

/// A message that is forwarded.
#[derive(Clone, Debug)]
pub struct Forwarded<'m> {
    /// The message with the `Received` field of this server, without `Return-Path`.
    pub raw: Bytes,
    /// Identifies a repeated message: [`crate::ReceivedMail::digest`].
    pub digest: [u8; 32],
    /// Its original sender; empty for `<>`.
    pub sender: &'m str,
    /// Whether the client has declared SMTPUTF8.
    pub is_utf8: bool,
    /// The address that leads to another server.
    pub alias: &'m EmailAddress,
    /// The addresses that it leads to.
    pub targets: &'m [String],
    /// When it was received.
    pub received: Timestamp,
    /// Which reports its sender requests.
    pub reports: ForwardReports<'m>,
}

/// Which reports the sender of a forwarded message requests (RFC 3461). The default is that of mail without these parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForwardReports<'m> {
    /// `NOTIFY` of the alias.
    pub notify: Notify,
    /// `ORCPT` of the alias, if it was given.
    pub original: Option<&'m str>,
    /// `ENVID`.
    pub envelope_id: Option<&'m str>,
    /// `RET`.
    pub returned: Option<Return>,
}

impl Forwards {
    /// Queues a message for the outside targets of an alias: durably when this returns, and once, however often the same message
    /// is sent to the same alias. Its copy begins with `Delivered-To`, by which a loop is recognized.
    ///
    /// # Errors
    /// Those of the blobs and of the queue; repeating is safe.
    pub async fn forward(&self, mail: Forwarded<'_>) -> Result<(), Error> {
        let start = format!("Delivered-To: {}\r\n", mail.alias);
        let message = mail.raw.clone();
        let copied = off_thread(message.len(), move || {
            let raw = [start.as_bytes(), &message].concat();
            let transmission = transmission_of(&raw);
            (Bytes::from(raw), transmission)
        });
        let broken_off = || Error::internal("a message could not be copied");
        let (raw, transmission) = copied.await.ok_or_else(broken_off)?;
        let sender = match mail.sender {
            "" => String::new(),
            sender => self.sender.rewrite(sender, mail.alias),
        };
        let is_wide = mail.targets.iter().chain([&sender]).any(|address| !address.is_ascii());
        let transmission =
            Transmission { is_utf8: is_wide || (mail.is_utf8 && transmission.is_utf8), ..transmission };
        let given = mail.reports.original.map(str::to_owned);
        let original = given.or_else(|| original_of(&mail.alias.to_string()));
        let recipient = |address: &String| NewRecipient {
            address: address.clone(),
            notify: mail.reports.notify,
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
            envelope_id: mail.reports.envelope_id.map(str::to_owned),
            returned: mail.reports.returned,
            transmission,
            due: u64::try_from(mail.received.seconds()).unwrap_or_default(),
            recipients: mail.targets.iter().map(recipient).collect(),
        };
        self.outbox.queue(message).await
    }
}

/// The key by which a forward is recognized when the message is received again.
fn key_of(digest: &[u8; 32], alias: &EmailAddress) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"forward\0");
    hash.update(digest);
    hash.update(alias.to_string());
    hash.finalize().into()
}

/// The address of the alias in the form of `ORCPT`.
fn original_of(alias: &str) -> Option<String> {
    alias.is_ascii().then(|| format!("rfc822;{}", encode_xtext(alias)))
}

/// What a server must support to receive the message. Fields need SMTPUTF8 only if the message was received with it: older mail
/// also has octets above 127 in fields.
pub(crate) fn transmission_of(raw: &[u8]) -> Transmission {
    let header = memchr::memmem::find(raw, b"\r\n\r\n").and_then(|end| raw.get(..end)).unwrap_or(raw);
    Transmission { is_8bit: !raw.is_ascii(), is_utf8: !header.is_ascii() }
}

/// Runs work on a message of this length: on another thread if it takes more than half a millisecond. `None` if the work did not finish.
pub(crate) async fn off_thread<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match bytes <= INLINE_BYTES_MAX {
        true => Some(work()),
        false => tokio::task::spawn_blocking(work).await.ok(),
    }
}
