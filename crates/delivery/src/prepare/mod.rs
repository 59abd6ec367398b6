//! Makes what is transmitted out of what is stored: bytes that every server takes for the same message.

mod encode;
mod fields;
mod lines;

use std::{borrow::Cow, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use restante_blobs::Blobs;
use restante_core::{BlobId, Error, ErrorKind};
use restante_mail::queue::{self, QueuedMessage, Reply, SourceKind, Transmission};

pub use encode::to_seven_bit;
pub(crate) use fields::header_bytes;
use fields::without_fields;
pub use lines::LINE_BYTES_MAX;

use crate::{Outgoing, PrepareError, Preparing};

/// Messages up to this length are prepared on the thread of their caller: in less than half a millisecond.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;

/// How much is read of a message whose header alone is of interest.
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// How a message may be transmitted.
pub fn sniff(message: &[u8]) -> Transmission {
    let header = message.get(..header_bytes(message)).unwrap_or(message);
    Transmission { is_8bit: !message.is_ascii(), is_utf8: !header.is_ascii() }
}

/// A stored message as it leaves this server: lines end with CRLF and have [`LINE_BYTES_MAX`] bytes at most, there is no other CR or LF and no NUL, and
/// the last line is ended. `Bcc` fields of messages that were submitted by JMAP are removed (RFC 8621 §7.5).
///
/// Parts with longer lines are encoded anew; other long lines are folded.
pub fn prepared(stored: &[u8], source: SourceKind) -> Cow<'_, [u8]> {
    let mut message = lines::normalized(stored);
    if source == SourceKind::Submission {
        message = match without_fields(&message, &["Bcc", "Resent-Bcc"]) {
            Some(without) => Cow::Owned(without),
            None => message,
        };
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

/// Reads messages from the blobs and prepares them.
#[derive(Clone)]
pub struct BlobPreparing {
    blobs: Arc<dyn Blobs>,
}

impl BlobPreparing {
    /// Preparing of messages that lie in these blobs.
    pub fn new(blobs: Arc<dyn Blobs>) -> Self {
        Self { blobs }
    }
}

/// Bytes of a blob, about so many. The range may end behind the end of the blob.
async fn read(blobs: &dyn Blobs, id: BlobId, range: Range<u64>, size: u64) -> Result<Bytes, Error> {
    let mut source = blobs.read(id, range).await?;
    let mut bytes = BytesMut::with_capacity(usize::try_from(size).unwrap_or(0).min(1 << 20));
    while let Some(chunk) = source.next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

/// The Message-ID of a stored message, without brackets; `None` when it has none or can't be read now.
pub(crate) async fn message_id(blobs: &dyn Blobs, id: BlobId) -> Option<String> {
    let begin = read(blobs, id, 0..HEADER_BYTES_MAX, HEADER_BYTES_MAX).await.ok()?;
    queue::message_id(&begin)
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
        let kind = message.source.kind;
        let bytes = if stored.len() <= INLINE_BYTES_MAX {
            prepared_bytes(stored, kind)
        } else {
            let preparing = tokio::task::spawn_blocking(move || prepared_bytes(stored, kind)).await;
            preparing.map_err(|error| {
                PrepareError::Broken(Error::internal(format!("a message could not be prepared: {error}")))
            })?
        };
        let sniffed = sniff(&bytes);
        Ok(Outgoing {
            transmission: Transmission {
                is_8bit: sniffed.is_8bit,
                // What was sent without SMTPUTF8 and has other bytes in its header is passed on as it came.
                is_utf8: message.transmission.is_utf8,
            },
            bytes,
            sender: message.sender.clone(),
            envelope_id: message.envelope_id.clone(),
            returned: message.returned,
            source: kind,
            account: message.source.account,
            record: message.source.record,
            key: message.source.key,
        })
    }

    async fn message_id(&self, message: &QueuedMessage) -> Option<String> {
        message_id(&*self.blobs, message.blob).await
    }
}

/// The same without a copy where nothing changes.
fn prepared_bytes(stored: Bytes, source: SourceKind) -> Bytes {
    match prepared(&stored, source) {
        Cow::Borrowed(_) => stored,
        Cow::Owned(bytes) => Bytes::from(bytes),
    }
}

#[cfg(test)]
mod tests;
