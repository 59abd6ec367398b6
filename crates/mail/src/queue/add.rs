//! Adding messages, once each.

use std::collections::HashMap;

use async_trait::async_trait;
use restante_core::Error;
use restante_records::{Change, Committed, RecordId};

use super::{
    NewMessage, NewRecipient, QueuedId,
    account::QueueAccount,
    edit::{Edit, Editor, Reader},
    stored::{Stored, new_properties},
};
use crate::schema::queued;

/// The most recipients of one commit.
const RECIPIENTS_PER_COMMIT_MAX: usize = 2_048;
/// The most bytes of their bodies, as estimated: half of what a commit may have.
const BYTES_PER_COMMIT_MAX: usize = restante_records::COMMIT_BYTES_MAX / 2;
/// The bytes of a record besides its texts.
const RECORD_BYTES: usize = 640;

struct Add<'a> {
    message: &'a NewMessage,
    recipients: &'a [NewRecipient],
}

/// The record of a recipient.
enum Entry {
    /// It exists already.
    Known(RecordId),
    /// The number of the create in the commit.
    Created(usize),
}

#[async_trait]
impl Edit for Add<'_> {
    type Plan = Vec<Entry>;

    async fn plan(&self, reader: &Reader<'_>) -> Result<(Vec<Change>, Vec<Entry>), Error> {
        let mut known: HashMap<String, Entry> = HashMap::new();
        for record in reader.of_key(&self.message.source.key).await? {
            let stored = Stored::read(&record.body)?;
            if stored.is_of(&self.message.source.key) {
                known.insert(stored.address, Entry::Known(record.id));
            }
        }
        let mut changes = Vec::new();
        let mut places = Vec::with_capacity(self.recipients.len());
        for recipient in self.recipients {
            let place = match known.get(&recipient.address) {
                Some(Entry::Known(id)) => Entry::Known(*id),
                Some(Entry::Created(n)) => Entry::Created(*n),
                None => {
                    let n = changes.len();
                    changes.push(create(self.message, recipient, reader.now)?);
                    known.insert(recipient.address.clone(), Entry::Created(n));
                    Entry::Created(n)
                }
            };
            places.push(place);
        }
        Ok((changes, places))
    }
}

/// The record of a new recipient. It is not due before now, so that a sender that has read everything due until now does not miss it.
pub(super) fn create(message: &NewMessage, recipient: &NewRecipient, now: u64) -> Result<Change, Error> {
    let body = Stored::new(message, recipient, now).body(vec![message.blob])?;
    let properties = new_properties(message, recipient, message.due.max(now));
    Ok(Change::Create { kind: queued::KIND, body, properties })
}

impl Editor {
    /// See [`super::Queue::add`].
    pub(super) async fn add(&self, message: &NewMessage) -> Result<Vec<QueuedId>, Error> {
        if message.recipients.is_empty() {
            return Err(Error::invalid("a message without recipients can't be queued"));
        }
        let account = QueueAccount::of_key(&message.source.key).account();
        let mut ids = Vec::with_capacity(message.recipients.len());
        for recipients in parts(message) {
            let (places, committed) = self.edit(account, &Add { message, recipients }).await?;
            for place in places {
                let record = match place {
                    Entry::Known(id) => id,
                    Entry::Created(n) => created(committed.as_ref(), n)?,
                };
                ids.push(QueuedId { account, record });
            }
        }
        Ok(ids)
    }
}

fn created(committed: Option<&Committed>, n: usize) -> Result<RecordId, Error> {
    let id = committed.and_then(|committed| committed.created.get(n));
    id.copied().ok_or_else(|| Error::internal("a commit answered with too few ids"))
}

/// The recipients of a message in parts that each fit into a commit: nearly always one part.
fn parts(message: &NewMessage) -> Vec<&[NewRecipient]> {
    let shared = RECORD_BYTES + message.sender.len() + message.envelope_id.as_ref().map_or(0, String::len);
    let bytes_of = |recipient: &NewRecipient| {
        // The properties repeat the texts.
        2 * (shared + recipient.address.len()) + recipient.original.as_ref().map_or(0, String::len)
    };
    let mut parts = Vec::new();
    let mut rest = message.recipients.as_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let fitting = rest.iter().take(RECIPIENTS_PER_COMMIT_MAX).take_while(|recipient| {
            bytes += bytes_of(recipient);
            bytes <= BYTES_PER_COMMIT_MAX
        });
        let (part, after) = rest.split_at(fitting.count().max(1));
        parts.push(part);
        rest = after;
    }
    parts
}
