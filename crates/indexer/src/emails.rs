//! Turns a page of changes into documents of the index.

use std::{
    mem::take,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use async_trait::async_trait;
use restante_blobs::Blobs;
use restante_core::ErrorKind;
use restante_follow::{Handler, HandlerError};
use restante_mail::{document, email, message, message::Structure, row::Row, searched_end};
use restante_records::{AccountId, Changed, Changes, Error, Get, Record, RecordId, Records, Value, get_each};
use restante_search::{Batch, Document, Index};
use tokio::task::spawn_blocking;
use tracing::{error, warn};

use crate::{Metrics, feed::Progress, metrics::Outcome};

/// Only this much of a longer message is indexed, which bounds the memory. By default mail accepts no longer messages.
const MESSAGE_BYTES_MAX: u64 = 80 << 20;

/// The number of emails whose records are read at once. Each has a row of up to 64 KiB.
const RECORDS_AT_ONCE: usize = 32;

/// Messages are read one by one until they have this many bytes, and then turned into documents together.
const MESSAGES_BYTES: usize = 1 << 20;

/// Documents are written when they have this many bytes together.
const BATCH_BYTES: usize = 4 << 20;

/// Writes new emails to the index, and removes destroyed ones.
pub(crate) struct Emails {
    pub(crate) records: Arc<dyn Records>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) metrics: Metrics,
}

#[async_trait]
impl Handler for Emails {
    /// The content of an email never changes, so updates are left out.
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError> {
        self.apply(account, changes).await.map_err(HandlerError::new)
    }

    async fn reset(&mut self, account: AccountId) -> Result<(), HandlerError> {
        self.progress.note_removal();
        let erased = self.index.erase(self.progress.series(), account).await;
        erased.map_err(HandlerError::new)
    }
}

impl Emails {
    async fn apply(&self, account: AccountId, changes: &Changes) -> Result<(), Error> {
        let removed = emails_of(&changes.destroyed);
        self.metrics.count(Outcome::Removed, removed.len());
        if !removed.is_empty() {
            self.progress.note_removal();
        }
        let mut batch = Batch { removed, ..Batch::default() };
        let mut emails: Vec<Email> = Vec::new();
        let mut bytes = 0;
        for ids in emails_of(&changes.created).chunks(RECORDS_AT_ONCE) {
            let get = Get::whole(email::KIND, ids.to_vec());
            let records = get_each(self.records.as_ref(), account, &get).await?;
            for (id, record) in ids.iter().zip(records) {
                let record = match record {
                    Ok(Some(record)) => record,
                    Ok(None) => {
                        self.metrics.count(Outcome::Gone, 1);
                        continue;
                    }
                    Err(error) => {
                        self.note_unreadable(account, *id, &error);
                        continue;
                    }
                };
                let Some(email) = self.read(account, record).await? else { continue };
                bytes += email.raw.len();
                emails.push(email);
                if bytes >= MESSAGES_BYTES {
                    bytes = 0;
                    self.add(account, take(&mut emails), &mut batch).await?;
                }
            }
        }
        self.add(account, emails, &mut batch).await?;
        batch.revision = Some(changes.revision);
        self.write(account, batch).await
    }

    /// Adds the documents of emails to a batch, and writes it when it is full.
    async fn add(&self, account: AccountId, emails: Vec<Email>, batch: &mut Batch) -> Result<(), Error> {
        let count = emails.len();
        let documents = parse(emails).await?;
        self.metrics.count(Outcome::Unreadable, count - documents.len());
        batch.documents.extend(documents);
        if batch.documents.iter().map(Document::bytes).sum::<usize>() >= BATCH_BYTES {
            self.write(account, take(batch)).await?;
        }
        Ok(())
    }

    async fn write(&self, account: AccountId, batch: Batch) -> Result<(), Error> {
        let count = batch.documents.len();
        self.index.write(self.progress.series(), account, batch).await?;
        self.metrics.count(Outcome::Indexed, count);
        Ok(())
    }

    /// Reads the message of an email; `None` when it is damaged or missing.
    async fn read(&self, account: AccountId, record: Record) -> Result<Option<Email>, Error> {
        // A row leaves out a part tree that is too large. If the row can't be read, that is reported elsewhere: the message
        // is there.
        let row = Row::read(record.body.bytes.clone()).ok();
        let structure = row.as_ref().and_then(|row| row.structure().ok().flatten());
        let end = match (&row, &structure) {
            (Some(row), Some(structure)) => searched_end(row, structure).min(MESSAGE_BYTES_MAX),
            _ => MESSAGE_BYTES_MAX,
        };
        match self.raw_message(&record, end).await {
            Ok(raw) => {
                self.metrics.bytes.inc_by(raw.len() as u64);
                let received = record.properties.values(email::RECEIVED).find_map(|value| match value {
                    Value::Number(seconds) => i64::try_from(*seconds).ok(),
                    _ => None,
                });
                let (id, received) = (record.id, received.unwrap_or_default());
                Ok(Some(Email { id, received, structure, raw }))
            }
            // One unreadable email must not keep the others of its account out of the index.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                self.note_unreadable(account, record.id, &error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn note_unreadable(&self, account: AccountId, email: RecordId, error: &Error) {
        warn!(account = account.0, email = email.0, %error, "an email can't be indexed");
        self.metrics.count(Outcome::Unreadable, 1);
    }

    /// The message of an email up to this byte, or its end.
    async fn raw_message(&self, record: &Record, end: u64) -> Result<Vec<u8>, Error> {
        let Some(blob) = record.body.blobs.first() else {
            return Err(Error::corrupt(format!("email {} refers to no message", record.id.0)));
        };
        let mut source = self.blobs.read(*blob, 0..end).await?;
        let mut raw = Vec::new();
        while let Some(chunk) = source.next().await? {
            raw.extend_from_slice(&chunk);
        }
        Ok(raw)
    }
}

/// An email that was read.
struct Email {
    id: RecordId,
    received: i64,
    /// `None` when the whole message is needed to compute it: then `raw` is all of it.
    structure: Option<Structure>,
    raw: Vec<u8>,
}

impl Email {
    fn document(self) -> Document {
        let structure = self.structure.unwrap_or_else(|| message::structure(&self.raw));
        document(self.id, self.received, &self.raw, &structure)
    }
}

/// Turns emails into documents, on a thread that may block. Parsing should never panic; if it does, that email is left out.
async fn parse(emails: Vec<Email>) -> Result<Vec<Document>, Error> {
    if emails.is_empty() {
        return Ok(Vec::new());
    }
    let read = |email: Email| {
        let id = email.id;
        let document = catch_unwind(AssertUnwindSafe(|| email.document()));
        document.inspect_err(|_| error!(email = id.0, "reading an email for the search index panicked")).ok()
    };
    let parsed = spawn_blocking(move || emails.into_iter().filter_map(read).collect()).await;
    parsed.map_err(|_| Error::unavailable("the runtime is stopping"))
}

/// The emails among records that changed.
pub(crate) fn emails_of(changed: &[Changed]) -> Vec<RecordId> {
    changed.iter().filter(|changed| changed.kind == email::KIND).map(|changed| changed.id).collect()
}
