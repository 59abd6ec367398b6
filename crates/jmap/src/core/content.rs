//! The bytes that a blob id names.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use restante_blobs::Source;
use restante_core::{BlobId, Error};
use restante_mail::{
    email,
    message::{self, Encoding, Part, PartKind, Span},
    row::Row,
    upload,
};
use restante_records::{AccountId, Get, Kind, Property, Record, RecordId, Value};
use tokio::time::Instant;

use super::{BlobRef, Context, ids::BlobBase};

/// How long a caller waits for memory that other requests use.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(20);
/// More bytes than this are decoded on the blocking pool: they take longer than half a millisecond.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// What a blob id names.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A whole blob of the store.
    Stored { blob: BlobId, size: u64 },
    /// A part of a message, decoded. It holds its permit of the memory for answers.
    Decoded(Bytes),
}

impl Content {
    /// Its bytes.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Stored { size, .. } => *size,
            Self::Decoded(bytes) => bytes.len() as u64,
        }
    }
}

/// A message, and the requested part if it is known.
struct Message {
    blob: BlobId,
    size: u64,
    part: KnownPart,
}

enum KnownPart {
    /// The row has the part tree, and this is the part.
    There(Box<Part>),
    /// The row has the part tree, which has no such part.
    Absent,
    /// The row does not know: the message must be read.
    Unknown,
}

impl Context {
    /// What a blob id names in an account: `None` when there is no such blob, and for an upload of another user (RFC 8620 §6.1).
    ///
    /// # Errors
    /// Those of the stores; `Unavailable` when there is no memory for decoded parts in time.
    pub(crate) async fn content(&self, account: AccountId, blob: &BlobRef) -> Result<Option<Content>, Error> {
        let Some((first, nested)) = blob.parts.split_first() else {
            let whole = self.whole(account, blob.base).await?;
            return Ok(whole.map(|(blob, size, _)| Content::Stored { blob, size }));
        };
        let Some(message) = self.message(account, blob.base, *first).await? else { return Ok(None) };
        let permit = self.parts.memory.acquire(memory_of(&message), Instant::now() + MEMORY_TIMEOUT).await;
        let permit = permit.map_err(|refusal| Error::unavailable(refusal.text))?;
        let decoded = match message.part {
            KnownPart::Absent => None,
            KnownPart::There(part) => {
                let Span { start, end } = part.body;
                let encoded = self.collect(message.blob, start.into()..end.into()).await?;
                // The offsets are those of the whole message, but only the body was read.
                let part = Part { body: Span { start: 0, end: end - start }, ..*part };
                decode(encoded, part, nested.to_vec()).await?
            }
            KnownPart::Unknown => {
                let raw = self.collect(message.blob, 0..message.size).await?;
                find(raw, blob.parts.clone()).await?
            }
        };
        Ok(decoded.map(|bytes| Content::Decoded(permit.hold(bytes))))
    }

    /// The bytes of a content in a range; a range past its end is cut.
    ///
    /// # Errors
    /// Those of the blobs; `Unavailable` when there is no memory for them in time.
    pub(crate) async fn bytes(&self, content: &Content, range: Range<u64>) -> Result<Bytes, Error> {
        let range = range.start.min(content.size())..range.end.min(content.size());
        match content {
            Content::Stored { blob, .. } => {
                let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
                let permit = self.parts.memory.acquire(length, Instant::now() + MEMORY_TIMEOUT).await;
                let permit = permit.map_err(|refusal| Error::unavailable(refusal.text))?;
                self.collect(*blob, range).await.map(|bytes| permit.hold(bytes))
            }
            Content::Decoded(bytes) => {
                let at = |offset: u64| usize::try_from(offset).unwrap_or(bytes.len());
                let (start, end) = (at(range.start), at(range.end));
                Ok(bytes.slice(start.min(end)..end))
            }
        }
    }

    /// The bytes of a content in a range, to be sent in chunks.
    pub(crate) async fn stream(&self, content: Content, range: Range<u64>) -> Result<Box<dyn Source>, Error> {
        match content {
            Content::Stored { blob, .. } => self.blobs().read(blob, range).await,
            Content::Decoded(_) => Ok(Box::new(self.bytes(&content, range).await?)),
        }
    }

    /// The record, and its blob with the length.
    async fn whole(
        &self,
        account: AccountId,
        base: BlobBase,
    ) -> Result<Option<(BlobId, u64, Record)>, Error> {
        let (kind, id, size) = match base {
            BlobBase::Email(id) => (email::KIND, id, email::SIZE),
            BlobBase::Upload(id) => (upload::KIND, id, upload::SIZE),
        };
        let Some(record) = self.record(account, kind, id).await? else { return Ok(None) };
        let owner = u64::from(self.login.account.0);
        if kind == upload::KIND && number(&record, upload::OWNER) != Some(owner) {
            return Ok(None);
        }
        let damaged =
            || Error::corrupt(format!("the record {} of kind {} has no blob or no size", id.0, kind.0));
        let blob = record.body.blobs.first().copied().ok_or_else(damaged)?;
        let size = number(&record, size).ok_or_else(damaged)?;
        Ok(Some((blob, size, record)))
    }

    async fn record(&self, account: AccountId, kind: Kind, id: RecordId) -> Result<Option<Record>, Error> {
        let found = self.records().get(account, &Get::whole(kind, vec![id])).await?;
        Ok(found.into_iter().next().flatten())
    }

    async fn message(&self, account: AccountId, base: BlobBase, part: u16) -> Result<Option<Message>, Error> {
        let Some((blob, size, record)) = self.whole(account, base).await? else { return Ok(None) };
        let part = match base {
            BlobBase::Upload(_) => KnownPart::Unknown,
            BlobBase::Email(_) => match Row::read(record.body.bytes)?.structure()? {
                None => KnownPart::Unknown,
                Some(structure) => match structure.part(part) {
                    Some(part) if part.kind != PartKind::Multipart => {
                        KnownPart::There(Box::new(part.clone()))
                    }
                    _ => KnownPart::Absent,
                },
            },
        };
        Ok(Some(Message { blob, size, part }))
    }

    async fn collect(&self, blob: BlobId, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let length = range.end.saturating_sub(range.start);
        let mut source = self.blobs().read(blob, range).await?;
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        while let Some(chunk) = source.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

/// The value of a property that is a number.
pub(crate) fn number(record: &Record, property: Property) -> Option<u64> {
    record.properties.values(property).find_map(|value| match value {
        Value::Number(number) => Some(*number),
        _ => None,
    })
}

/// The memory for decoding a part: the encoded bytes, and as many decoded ones.
fn memory_of(message: &Message) -> usize {
    let encoded = match &message.part {
        KnownPart::There(part) => u64::from(part.body.end - part.body.start),
        KnownPart::Absent => 0,
        KnownPart::Unknown => message.size,
    };
    usize::try_from(encoded).unwrap_or(usize::MAX).saturating_mul(2)
}

/// Decodes a part whose body is all of `encoded`. If the part is a message, `nested` leads to a part in it.
async fn decode(encoded: Vec<u8>, part: Part, nested: Vec<u16>) -> Result<Option<Vec<u8>>, Error> {
    if !nested.is_empty() && part.kind != PartKind::Message {
        return Ok(None);
    }
    if nested.is_empty() && matches!(part.encoding, Encoding::Identity | Encoding::Unknown) {
        return Ok(Some(encoded));
    }
    on_a_core(encoded.len(), move || {
        let decoded = message::decoded(&encoded, &part).into_owned();
        match nested.as_slice() {
            [] => Some(decoded),
            nested => message::find(&decoded, nested).map(|found| found.bytes),
        }
    })
    .await
}

/// Finds a part in bytes whose parts are not known; bytes that are not a message have none.
async fn find(raw: Vec<u8>, path: Vec<u16>) -> Result<Option<Vec<u8>>, Error> {
    on_a_core(raw.len(), move || {
        let found = if message::is_message(&raw) { message::find(&raw, &path) } else { None };
        found.map(|found| found.bytes)
    })
    .await
}

/// Runs work on this many bytes: directly when they are few, otherwise on the blocking pool.
pub(crate) async fn on_a_core<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Error::internal("a task that decodes bytes ended early"))
}
