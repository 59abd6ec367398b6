//! The traits between the SMTP server and the mail store.

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::{Error, Timestamp};
pub use restante_mail::Delivered;
use restante_records::RecordId;

use crate::Target;

/// A message that was received completely.
#[derive(Clone, Debug)]
pub struct ReceivedMail {
    /// What is stored: our trace fields and the message. The same for all recipients.
    pub raw: Bytes,
    /// SHA-256 of the message as it was received, without our trace fields: the same when a peer repeats it.
    pub digest: [u8; 32],
    /// Whether it goes to Junk.
    pub to_junk: bool,
    /// When its last byte was received.
    pub received: Timestamp,
}

/// Why a message was not delivered to an account.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// It exceeds the quota of the account.
    #[error("it exceeds the quota")]
    OverQuota,
    /// The store failed; repeating is safe.
    #[error(transparent)]
    Store(#[from] Error),
}

/// The outcome of a message.
#[derive(Debug)]
pub struct Report {
    /// Its Message-ID, without brackets.
    pub message_id: Option<String>,
    /// One for each target, in their order.
    pub results: Vec<Result<Delivered, DeliveryError>>,
}

/// Stores messages in accounts.
#[async_trait]
pub trait Delivery: Send + Sync + 'static {
    /// Whether an account has space for `bytes` more bytes.
    ///
    /// # Errors
    /// When this can't be determined now.
    async fn has_space(&self, target: &Target, bytes: u64) -> Result<bool, Error>;

    /// Delivers a message to accounts, each named once: durably if the result says so, and once for each account however often
    /// the same [`ReceivedMail::digest`] is delivered.
    async fn deliver(&self, mail: ReceivedMail, targets: &[Target]) -> Report;

    /// The email that an earlier delivery with this [`ReceivedMail::digest`] created in an account, if it still exists.
    ///
    /// # Errors
    /// When this can't be determined now.
    async fn delivered_before(&self, digest: &[u8; 32], target: &Target) -> Result<Option<RecordId>, Error>;
}
