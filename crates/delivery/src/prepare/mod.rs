//! Prepares stored messages for transmission: the result is read as the same message by every server.

mod encode;
mod fields;
mod lines;

use std::{borrow::Cow, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use restante_blobs::Blobs;
use restante_core::{BlobId, Error, ErrorKind};
use restante_directory::EmailAddress;
use restante_mail::queue::{self, QueuedMessage, Reply, Source, SourceKind, Transmission};
use restante_mail_wire::{compose::OriginFields, header::Date};
use sha2::{Digest, Sha256};

pub use encode::to_seven_bit;
pub(crate) use fields::header_bytes;
use fields::{has_field, without_fields};
pub use lines::LINE_BYTES_MAX;

use crate::{Outgoing, PrepareError, Preparing};

/// Messages up to this length are prepared on the thread of their caller: in less than half a millisecond.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;

/// How much is read of a message when only its header is needed.
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// The transmission that a message needs.
pub fn sniff(message: &[u8]) -> Transmission {
    let header = message.get(..header_bytes(message)).unwrap_or(message);
    Transmission { is_8bit: !message.is_ascii(), is_utf8: !header.is_ascii() }
}

/// A stored message as it leaves this server: lines end with CRLF and have at most [`LINE_BYTES_MAX`] bytes, there is no other CR
/// or LF and no NUL, and the last line is ended. For a message that was submitted by JMAP, `origin` has fields: its `Bcc` fields
/// are removed (RFC 8621 §7.5), and those of `origin` that it lacks are added.
///
/// Parts with longer lines are re-encoded, and so are parts that are declared as `binary` and that this would change; other long lines are folded.
pub fn prepared<'m>(stored: &'m [u8], origin: Option<&OriginFields>) -> Cow<'m, [u8]> {
    let without_binary = if lines::is_normal(stored) { None } else { encode::without_binary(stored) };
    let mut message = match &without_binary {
        Some(encoded) => Cow::Owned(lines::normalized(encoded).into_owned()),
        None => lines::normalized(stored),
    };
    if let Some(origin) = origin {
        message = match without_fields(&message, &["Bcc", "Resent-Bcc"]) {
            Some(without) => Cow::Owned(without),
            None => message,
        };
        let added = origin.missing(has_field(&message, "Date"), has_field(&message, "Message-ID"));
        if !added.is_empty() {
            message = Cow::Owned([added.as_bytes(), &message].concat());
        }
    }
    if !lines::has_long(&message) {
        return message;
    }
    let header = header_bytes(&message);
    let (header, body) = message.split_at_checked(header).unwrap_or((&message, b""));
    let mut folded = lines::folded(header);
    folded.extend_from_slice(body);
    let encoded = encode::without_long_lines(&folded).unwrap_or(folded);
    Cow::Owned(lines::folded(&encoded))
}

/// The fields that a message which was submitted by JMAP gets if it lacks them: the same in each attempt and for all recipients.
/// `None` for other messages, which had these fields when they were received.
fn origin_fields(message: &QueuedMessage) -> Option<OriginFields> {
    let message_id = made_message_id(&message.source, message.blob, &message.sender)?;
    let date = Date { seconds: i64::try_from(message.queued).unwrap_or(i64::MAX), offset_minutes: 0 };
    Some(OriginFields { date, message_id })
}

/// The Message-ID that a message which was submitted by JMAP gets if it has none, without brackets.
fn made_message_id(source: &Source, blob: BlobId, sender: &str) -> Option<String> {
    if source.kind != SourceKind::Submission {
        return None;
    }
    let domain = match sender.parse::<EmailAddress>() {
        Ok(address) => address.domain().to_string(),
        Err(_) => "localhost".to_owned(), // nobody may submit with such a sender
    };
    // The hash includes the blob, since the keys of two servers may be the same.
    let hash: [u8; 32] = Sha256::new().chain_update(source.key).chain_update(blob.0).finalize().into();
    let number = u128::from_be_bytes(hash.first_chunk().copied().unwrap_or_default());
    Some(format!("{number:032x}@{domain}"))
}

/// Reads messages from blobs and prepares them.
#[derive(Clone)]
pub struct BlobPreparing {
    blobs: Arc<dyn Blobs>,
}

impl BlobPreparing {
    /// Prepares messages that are stored in these blobs.
    pub fn new(blobs: Arc<dyn Blobs>) -> Self {
        Self { blobs }
    }
}

/// A range of a blob, which has about `size` bytes. The range may end after the end of the blob.
async fn read(blobs: &dyn Blobs, id: BlobId, range: Range<u64>, size: u64) -> Result<Bytes, Error> {
    let mut source = blobs.read(id, range).await?;
    let mut bytes = BytesMut::with_capacity(usize::try_from(size).unwrap_or(0).min(1 << 20));
    while let Some(chunk) = source.next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

/// The Message-ID that a message has when it is sent, without brackets; `None` when it has none or can't be read now.
pub(crate) async fn message_id(
    blobs: &dyn Blobs,
    source: &Source,
    blob: BlobId,
    sender: &str,
) -> Option<String> {
    let begin = read(blobs, blob, 0..HEADER_BYTES_MAX, HEADER_BYTES_MAX).await.ok()?;
    if has_field(&begin, "Message-ID") {
        return queue::message_id(&begin);
    }
    made_message_id(source, blob, sender)
}

#[async_trait]
impl Preparing for BlobPreparing {
    async fn prepare(&self, message: &QueuedMessage) -> Result<Outgoing, PrepareError> {
        let stored = match read(&*self.blobs, message.blob, 0..u64::MAX, message.size).await {
            Ok(stored) => stored,
            Err(error) => {
                let is_broken = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt);
                return Err(if is_broken { PrepareError::Broken(error) } else { PrepareError::Later(error) });
            }
        };
        if stored.is_empty() {
            return Err(PrepareError::Never(Reply::own(554, "5.6.0", "the message is empty")));
        }
        let origin = origin_fields(message);
        let bytes = if stored.len() <= INLINE_BYTES_MAX {
            prepared_bytes(stored, origin.as_ref())
        } else {
            let preparing =
                tokio::task::spawn_blocking(move || prepared_bytes(stored, origin.as_ref())).await;
            preparing.map_err(|error| {
                PrepareError::Broken(Error::internal(format!("a message could not be prepared: {error}")))
            })?
        };
        let sniffed = sniff(&bytes);
        Ok(Outgoing {
            transmission: Transmission {
                is_8bit: sniffed.is_8bit,
                // A message that was sent without SMTPUTF8 but has other bytes in its header is passed on as it is.
                is_utf8: message.transmission.is_utf8,
            },
            bytes,
            sender: message.sender.clone(),
            envelope_id: message.envelope_id.clone(),
            returned: message.returned,
            source: message.source.kind,
            account: message.source.account,
            record: message.source.record,
            key: message.source.key,
        })
    }

    async fn message_id(&self, message: &QueuedMessage) -> Option<String> {
        message_id(&*self.blobs, &message.source, message.blob, &message.sender).await
    }
}

/// Like [`prepared`], without a copy if nothing changes.
fn prepared_bytes(stored: Bytes, origin: Option<&OriginFields>) -> Bytes {
    match prepared(&stored, origin) {
        Cow::Borrowed(_) => stored,
        Cow::Owned(bytes) => Bytes::from(bytes),
    }
}

#[cfg(test)]
mod tests;
