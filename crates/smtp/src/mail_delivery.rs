//! Stores messages in the mail of accounts.

use std::{
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use restante_blobs::{Put, Source};
use restante_core::{BlobId, Error, Gate, UnsyncedBlob};
use restante_mail::{Mail, MailError, StoredMessage};
use restante_records::RecordId;
use sha2::{Digest, Sha256};

use crate::{Delivered, Delivery, DeliveryError, ReceivedMail, Report, SmtpConfig, Target};

/// Messages up to this length are parsed on the thread that serves the connection, in less than half a millisecond.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// The longest message that is stored without its own sync: its bytes are then written twice.
const UNSYNCED_BYTES_MAX: usize = 32 << 10;

/// With more messages in flight they share the syncs of their blobs, and writing them twice would cost more than it saves.
const UNSYNCED_AT_ONCE_MAX: usize = 2;

/// Delivers into [`Mail`]: the message is stored as one blob for all recipients, parsed once, and placed in each account by its
/// own commit.
#[derive(Clone)]
pub struct MailDelivery {
    mail: Mail,
    deliveries_at_once_max: NonZero<usize>,
    /// Messages that are being delivered.
    delivering: Arc<AtomicUsize>,
}

/// A message that is being delivered, until this is dropped.
struct Delivering(Arc<AtomicUsize>);

impl Drop for Delivering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MailDelivery {
    /// Delivers into this mail store, with the bounds of the settings.
    pub fn new(mail: Mail, config: &SmtpConfig) -> Self {
        Self { mail, deliveries_at_once_max: config.deliveries_at_once_max, delivering: Arc::default() }
    }

    /// Counts a message that is being delivered; returns whether its blob may be stored without a sync, because its single commit
    /// makes it durable.
    fn begin(&self, mail: &ReceivedMail, targets: &[Target]) -> (Delivering, bool) {
        let before = self.delivering.fetch_add(1, Ordering::Relaxed);
        let is_short = mail.raw.len() <= UNSYNCED_BYTES_MAX && targets.len() == 1;
        let is_unsynced =
            is_short && before < UNSYNCED_AT_ONCE_MAX && self.mail.records().makes_blobs_durable();
        (Delivering(self.delivering.clone()), is_unsynced)
    }

    async fn deliver_to(
        &self,
        target: &Target,
        message: StoredMessage,
        blob: Option<Gate>,
        mail: &ReceivedMail,
    ) -> Result<Delivered, DeliveryError> {
        let delivery = restante_mail::Delivery {
            message,
            key: key_of(&mail.digest, target),
            to_junk: mail.to_junk,
            received: mail.received.seconds(),
            quota: target.quota_bytes,
        };
        Ok(match blob {
            Some(blob) => self.mail.deliver_when_put(target.account, delivery, blob).await?,
            None => self.mail.deliver(target.account, delivery).await?,
        })
    }

    /// Delivers a message whose blob is durable, or is being stored, to all targets.
    async fn deliver_to_all(
        &self,
        targets: &[Target],
        message: StoredMessage,
        blob: Option<Gate>,
        mail: &ReceivedMail,
    ) -> Vec<Result<Delivered, DeliveryError>> {
        let deliver = |target| self.deliver_to(target, message.clone(), blob.clone(), mail).boxed();
        let deliveries: Vec<_> = targets.iter().map(deliver).collect();
        stream::iter(deliveries).buffered(self.deliveries_at_once_max.get()).collect().await
    }

    /// Delivers a short message: its record is built and its commits are prepared while its blob is stored.
    async fn deliver_short(
        &self,
        mail: &ReceivedMail,
        targets: &[Target],
        is_unsynced: bool,
    ) -> Result<Report, Error> {
        let id = BlobId(Sha256::digest(&mail.raw).into());
        let mut bytes = mail.raw.clone();
        let (keeper, blob) = match is_unsynced {
            true => Gate::of_unsynced(UnsyncedBlob { id, bytes: bytes.clone() }),
            false => Gate::new(),
        };
        let done = |put: Result<Put, Error>| match put {
            Ok(_) => keeper.open(),
            Err(error) => keeper.fail(error),
        };
        let (blobs, source, done) = (self.mail.blobs(), &mut bytes as &mut dyn Source, Box::new(done));
        let put = match is_unsynced {
            true => blobs.put_unsynced(source, done),
            false => blobs.put_then(source, done),
        };
        let deliver = async {
            let Read { stored, message_id } = Read::of(&mail.raw);
            let stored = StoredMessage { blob: id, ..stored };
            (self.deliver_to_all(targets, stored, Some(blob), mail).await, message_id)
        };
        // Some engines return only when the blob is durable.
        let (put, (results, message_id)) = tokio::join!(put, deliver);
        put.map(|()| Report { message_id, results })
    }

    /// Delivers a message whose blob may take so long to store that no edit should wait for it.
    async fn deliver_long(&self, mail: &ReceivedMail, targets: &[Target]) -> Result<Report, Error> {
        let mut bytes = mail.raw.clone();
        let put = self.mail.blobs().put(&mut bytes as &mut dyn Source);
        let (put, Read { stored, message_id }) = tokio::try_join!(put, read(mail.raw.clone()))?;
        let stored = StoredMessage { blob: put.id, ..stored };
        let results = self.deliver_to_all(targets, stored, None, mail).await;
        Ok(Report { message_id, results })
    }
}

#[async_trait]
impl Delivery for MailDelivery {
    async fn has_space(&self, target: &Target, bytes: u64) -> Result<bool, Error> {
        let Some(quota) = target.quota_bytes else { return Ok(true) };
        let used = self.mail.usage(target.account).await.map_err(store_error)?.bytes;
        Ok(used.saturating_add(bytes.max(1)) <= quota)
    }

    async fn deliver(&self, mail: ReceivedMail, targets: &[Target]) -> Report {
        // The blob is stored before the commits, or its bytes with the only commit: a record never refers to bytes that a power
        // cut can lose.
        let (_delivering, is_unsynced) = self.begin(&mail, targets);
        let report = match mail.raw.len() <= INLINE_BYTES_MAX {
            true => self.deliver_short(&mail, targets, is_unsynced).await,
            false => self.deliver_long(&mail, targets).await,
        };
        report.unwrap_or_else(|error| failed(&error, targets))
    }

    async fn delivered_before(&self, digest: &[u8; 32], target: &Target) -> Result<Option<RecordId>, Error> {
        self.mail.delivered_before(target.account, &key_of(digest, target)).await
    }
}

/// A parsed message.
struct Read {
    /// Without its blob.
    stored: StoredMessage,
    message_id: Option<String>,
}

impl Read {
    fn of(raw: &Bytes) -> Self {
        let message = restante_mail::message::read(raw);
        Self { stored: StoredMessage::new(&message, BlobId([0; 32])), message_id: message.message_id }
    }
}

/// Parses a long message on a thread where it keeps no connection waiting.
async fn read(raw: Bytes) -> Result<Read, Error> {
    let reading = tokio::task::spawn_blocking(move || Read::of(&raw));
    reading.await.map_err(|error| Error::internal(format!("a message could not be read: {error}")))
}

/// The report about a message that could not be stored for any target.
fn failed(error: &Error, targets: &[Target]) -> Report {
    let results = targets.iter().map(|_| Err(DeliveryError::Store(error.duplicate())));
    Report { message_id: None, results: results.collect() }
}

/// The key by which a repeated delivery is recognized.
fn key_of(digest: &[u8; 32], target: &Target) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(digest);
    hash.update(target.address.to_string());
    hash.finalize().into()
}

fn store_error(error: MailError) -> Error {
    match error {
        MailError::Store(error) => error,
        other => Error::internal(format!("mail refused what it should take: {other}")),
    }
}

impl From<MailError> for DeliveryError {
    fn from(error: MailError) -> Self {
        match error {
            MailError::OverQuota => Self::OverQuota,
            other => Self::Store(store_error(other)),
        }
    }
}
