//! The quarantine: messages that are kept until an operator releases or drops them.
//!
//! What [`Quarantine::keep`] has returned is durable: a blob, and a record in a reserved account that refers to it. A message
//! leaves the quarantine when it is released or dropped, when its days are over, or when there are more than the settings allow:
//! then the oldest are removed.

mod config;
mod edit;
mod item;
mod list;
mod metrics;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use restante_blobs::{Blobs, Source};
use restante_core::{BlobId, Clock, Error};
use restante_records::{AccountId, RecordId, Records};
use tokio::sync::Mutex;

pub use config::QuarantineConfig;
pub use item::{NewQuarantined, Quarantined};
pub use list::{LIST_MAX, ListFilter, ListPage, Totals};
pub use metrics::{Leaving, QuarantineMetrics};

/// The reserved account of the quarantine.
const ACCOUNT: AccountId = AccountId(193);

/// The quarantine. Cloning shares it. All handles of one process on one store should be clones of one, so that their edits don't conflict.
#[derive(Clone)]
pub struct Quarantine {
    records: Arc<dyn Records>,
    blobs: Arc<dyn Blobs>,
    clock: Arc<dyn Clock>,
    config: QuarantineConfig,
    metrics: QuarantineMetrics,
    /// Held while records change, so that edits of this process don't conflict. It has the totals once they have been counted.
    totals: Arc<Mutex<Option<Totals>>>,
}

impl Quarantine {
    /// The quarantine in these records, which were opened with [`crate::kinds`] in their schema, and in these blobs.
    pub fn new(
        records: Arc<dyn Records>,
        blobs: Arc<dyn Blobs>,
        clock: Arc<dyn Clock>,
        config: QuarantineConfig,
        metrics: QuarantineMetrics,
    ) -> Self {
        Self { records, blobs, clock, config, metrics, totals: Arc::default() }
    }

    /// Keeps a message, durably once this returns: first its bytes, then the record that refers to them. The same message from the
    /// same sender for the same recipients is kept only once while it is in the quarantine, so repeating is safe. A message for
    /// more than 100 recipients has several records, created in one commit. Returns the records.
    ///
    /// # Errors
    /// `Invalid` without recipients; those of the blobs and of a commit: repeating is safe.
    pub async fn keep(&self, message: NewQuarantined) -> Result<Vec<RecordId>, Error> {
        if message.recipients.is_empty() {
            return Err(Error::invalid("a message in quarantine has at least one recipient"));
        }
        let mut raw = message.raw.clone();
        let blob = self.blobs.put(&mut raw as &mut dyn Source).await?.id;
        self.add(&message, blob).await
    }

    /// A message; `None` when it is no longer in the quarantine.
    ///
    /// # Errors
    /// Those of a get; `Corrupt`.
    pub async fn get(&self, id: RecordId) -> Result<Option<Quarantined>, Error> {
        let found = self.whole(vec![id]).await?;
        found.first().map(item::read).transpose()
    }

    /// The bytes of a message, as they are stored when it is released.
    ///
    /// # Errors
    /// Those of reading a blob.
    pub async fn read(&self, blob: BlobId) -> Result<Bytes, Error> {
        let mut source = self.blobs.read(blob, 0..u64::MAX).await?;
        let mut bytes = BytesMut::new();
        while let Some(chunk) = source.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    }

    /// A page of the messages that match, at most [`LIST_MAX`], the newest first. `after` is the [`ListPage::next`] of the page before.
    ///
    /// # Errors
    /// `Invalid` for an `after` of another list; those of a query.
    pub async fn list(
        &self,
        filter: &ListFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ListPage, Error> {
        self.page(filter, after, limit).await
    }

    /// How many messages there are, and their bytes. It walks the quarantine.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn totals(&self) -> Result<Totals, Error> {
        self.count().await
    }

    /// Removes messages for a reason, and returns those that existed, each once. Their bytes are removed when blobs are swept.
    ///
    /// # Errors
    /// Those of a commit; repeating is safe.
    pub async fn remove(&self, ids: &[RecordId], how: Leaving) -> Result<Vec<RecordId>, Error> {
        let mut totals = self.totals.lock().await;
        self.destroy(ids, how, &mut totals).await
    }

    /// Removes messages that were kept for longer than the settings say, then the oldest ones beyond the limits; returns how many.
    ///
    /// # Errors
    /// Those of a commit; repeating goes on.
    pub async fn expire(&self) -> Result<u64, Error> {
        self.expire_all().await
    }

    /// Now, in seconds since 1970.
    pub fn now(&self) -> u64 {
        u64::try_from(self.clock.now().seconds()).unwrap_or(0)
    }
}
