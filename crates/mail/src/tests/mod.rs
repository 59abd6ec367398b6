//! The handle on the memory engines: each rule by its number, and random edits against a model.

mod delivery;
mod emails;
mod import;
mod mailboxes;
mod model;
mod submissions;
mod upkeep;

use std::sync::Arc;

use bytes::Bytes;
use restante_core::{BlobId, Gate, ManualClock, Timestamp};
use restante_records::{AccountId, Get, Opened, Record, RecordId, Schema, open};

use crate::*;

const ACCOUNT: AccountId = AccountId(100);
/// When the clock starts, in seconds since 1970.
const START: i64 = 1_700_000_000;

/// A server.
struct Server {
    opened: Opened,
    mail: Mail,
    clock: Arc<ManualClock>,
}

impl Server {
    async fn new() -> Self {
        Self::with(MailConfig::default()).await
    }

    async fn with(config: MailConfig) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(START)));
        let schema = Schema::new(kinds()).unwrap();
        let mut records = restante_records::Config::new(restante_records::EngineUrl::Memory, schema);
        records.clock = clock.clone();
        let opened = open(records).await.unwrap();
        let mail = handle(&opened, clock.clone(), config).await;
        Self { opened, mail, clock }
    }

    /// Another server on the same records.
    async fn second(&self) -> Mail {
        handle(&self.opened, self.clock.clone(), MailConfig::default()).await
    }

    fn pass(&self, seconds: i64) {
        let now = self.mail.clock().now();
        self.clock.set(now.plus_seconds(seconds));
    }

    async fn mailboxes(&self) -> Vec<Mailbox> {
        self.mail.prepare(ACCOUNT).await.unwrap();
        self.mail.mailboxes(ACCOUNT).await.unwrap().0.to_vec()
    }

    async fn mailbox(&self, role: Role) -> Mailbox {
        self.mailboxes().await.into_iter().find(|mailbox| mailbox.role == Some(role)).unwrap()
    }

    async fn named(&self, name: &str) -> Mailbox {
        self.mailboxes().await.into_iter().find(|mailbox| mailbox.name == name).unwrap()
    }

    async fn record(&self, id: RecordId) -> Option<Record> {
        self.opened.records.get(ACCOUNT, &Get::whole(email::KIND, vec![id])).await.unwrap().remove(0)
    }

    async fn state(&self, id: RecordId) -> EmailState {
        EmailState::of(&self.record(id).await.unwrap()).unwrap()
    }

    /// The keywords of an email by their names.
    async fn keywords(&self, id: RecordId) -> Vec<String> {
        let state = self.state(id).await;
        let keywords = self.mail.keywords(ACCOUNT, &state.keywords).await.unwrap();
        keywords.of_email(&state).map(str::to_owned).collect()
    }

    async fn deliver(&self, message: StoredMessage) -> RecordId {
        match self.mail.deliver(ACCOUNT, delivery(message)).await.unwrap() {
            Delivered::New(id) => id,
            Delivered::Repeated => panic!("it was delivered before"),
        }
    }

    async fn create(
        &self,
        mailboxes: &[RecordId],
        keywords: &[&str],
        message: StoredMessage,
    ) -> CreatedEmail {
        self.mail.create_email(ACCOUNT, new_email(mailboxes, keywords, message)).await.unwrap()
    }

    async fn update(&self, id: RecordId, update: EmailUpdate) -> Transition {
        self.mail.update_email(ACCOUNT, id, update).await.unwrap()
    }

    async fn set(&self, set: MailboxSet) -> MailboxSetOutcome {
        self.mail.set_mailboxes(ACCOUNT, set).await.unwrap()
    }

    /// A new mailbox.
    async fn make(&self, name: &str, parent: Parent) -> RecordId {
        let set = MailboxSet { create: vec![new_mailbox(name, parent)], ..MailboxSet::default() };
        self.set(set).await.created.remove(0).unwrap().id
    }

    async fn assert_sound(&self) {
        assert_eq!(self.mail.check(ACCOUNT).await.unwrap(), []);
    }
}

async fn handle(opened: &Opened, clock: Arc<ManualClock>, config: MailConfig) -> Mail {
    let blobs = restante_blobs::Config::new(restante_blobs::EngineUrl::Memory);
    let blobs = restante_blobs::open(blobs).await.unwrap().blobs;
    Mail::new(opened.records.clone(), blobs, clock, config, MailMetrics::default())
}

/// A message with a number, and with the thread keys of these numbers.
fn message(number: u64, thread_keys: &[u64]) -> StoredMessage {
    StoredMessage {
        row: Bytes::from(format!("row {number}")),
        size: 100 + number % 7,
        thread_keys: thread_keys.iter().map(|key| u128::from(*key).to_be_bytes()).collect(),
        blob: BlobId(std::array::from_fn(|byte| (number >> (8 * (byte % 8))) as u8)),
    }
}

fn delivery(message: StoredMessage) -> Delivery {
    let key = message.blob.0;
    Delivery { message, key, to_junk: false, received: START, quota: None }
}

fn new_email(mailboxes: &[RecordId], keywords: &[&str], message: StoredMessage) -> NewEmail {
    NewEmail {
        if_in_state: None,
        message,
        mailboxes: mailboxes.to_vec(),
        keywords: keywords.iter().map(|keyword| (*keyword).to_owned()).collect(),
        received: START,
        quota: None,
    }
}

fn new_mailbox(name: &str, parent: Parent) -> NewMailbox {
    NewMailbox { name: name.to_owned(), parent, role: None, sort_order: 0, is_subscribed: true }
}

fn keyword_update(keywords: Patch<String>) -> EmailUpdate {
    EmailUpdate { if_in_state: None, mailboxes: Patch::Keep, keywords }
}

fn add_keywords(keywords: &[&str]) -> EmailUpdate {
    let add = keywords.iter().map(|keyword| (*keyword).to_owned()).collect();
    keyword_update(Patch::Parts { add, remove: Default::default() })
}

fn remove_keywords(keywords: &[&str]) -> EmailUpdate {
    let remove = keywords.iter().map(|keyword| (*keyword).to_owned()).collect();
    keyword_update(Patch::Parts { add: Default::default(), remove })
}

fn move_to(mailboxes: &[RecordId]) -> EmailUpdate {
    let mailboxes = Patch::Whole(mailboxes.iter().copied().collect());
    EmailUpdate { if_in_state: None, mailboxes, keywords: Patch::Keep }
}

fn add_to(mailbox: RecordId) -> EmailUpdate {
    let mailboxes = Patch::Parts { add: [mailbox].into(), remove: Default::default() };
    EmailUpdate { if_in_state: None, mailboxes, keywords: Patch::Keep }
}
