//! What is around the senders: other servers that lie, accounts, users who cancel.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use restante_blobs::Blobs;
use restante_core::{BlobId, Error};
use restante_delivery::{
    Attempted, Connection, Local, NotedOutcome, NoticeAbout, NoticeKind, Notices, OutcomeLog, Outgoing,
    PrepareError, Preparing, Recipient, RecipientOutcome, Remote, Submissions, SubmittedMessage,
};
use restante_mail::{
    Delivery, Mail, StoredMessage,
    queue::{QueuedMessage, Reply, SourceKind, Transmission},
};
use restante_records::{AccountId, RecordId};
use ring::digest::{SHA256, digest};
use tokio::time::{Instant, sleep};

use crate::chance::Chance;

/// A mail that another server took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) server: usize,
    pub(crate) at: Duration,
    /// When its answer reached the sender; `None` when it was lost.
    pub(crate) answered: Option<Duration>,
}

/// A mail in an account: the key of the message, and the address.
pub(crate) type PlacedKey = ([u8; 32], String);

/// A submission of JMAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    Pending,
    Final,
    Canceled,
}

/// What all servers share, and what survives their crashes.
pub(crate) struct Outside {
    pub(crate) chance: Arc<Chance>,
    pub(crate) is_flaky: Arc<AtomicBool>,
    pub(crate) begun: Instant,
    /// By the number of the message and the address.
    pub(crate) taken: Mutex<BTreeMap<(u8, String), Vec<Received>>>,
    /// Mails that were to be placed in an account, by their keys and addresses, and the bytes of those for which that was answered with success.
    pub(crate) tried: Mutex<BTreeSet<PlacedKey>>,
    pub(crate) placed: Mutex<BTreeMap<PlacedKey, Bytes>>,
    pub(crate) submissions: Mutex<BTreeMap<u64, Undo>>,
    /// The bytes of reports that expired.
    pub(crate) expired_reports: Mutex<Vec<BlobId>>,
}

/// The outside as one server sees it.
pub(crate) struct View {
    pub(crate) outside: Arc<Outside>,
    pub(crate) server: usize,
    pub(crate) mail: Mail,
    pub(crate) blobs: Arc<dyn Blobs>,
}

struct SimConnection {
    outside: Arc<Outside>,
    server: usize,
    is_open: bool,
}

fn reply(code: u16, enhanced: &str) -> Reply {
    Reply::own(code, enhanced, "simulated")
}

#[async_trait]
impl Remote for View {
    async fn connect(&self, _domain: &str) -> Result<Box<dyn Connection>, Reply> {
        let outside = &self.outside;
        if outside.is_flaky.load(Relaxed) {
            sleep(outside.chance.millis(3_000)).await;
            if outside.chance.percent(20) {
                return Err(reply(421, "4.4.1"));
            }
        }
        Ok(Box::new(SimConnection { outside: outside.clone(), server: self.server, is_open: true }))
    }
}

#[async_trait]
impl Connection for SimConnection {
    async fn send(&mut self, message: &Outgoing, recipients: &[Recipient]) -> Vec<Attempted> {
        let chance = &self.outside.chance;
        let is_flaky = self.outside.is_flaky.load(Relaxed);
        let lost = reply(451, "4.4.2");
        if is_flaky {
            sleep(chance.millis(2_000)).await;
            if chance.percent(8) {
                self.is_open = false; // before it took anything
                return vec![
                    Attempted { reply: lost, is_reported_further: false, is_forwarded: false };
                    recipients.len()
                ];
            }
        }
        let (mut replies, mut took) = (Vec::new(), Vec::new());
        for recipient in recipients {
            replies.push(match (is_flaky, chance.below(100)) {
                (true, 0..20) => reply(451, "4.3.0"),
                (true, 20..26) => reply(550, "5.1.1"),
                _ => {
                    let taken =
                        Received { server: self.server, at: self.outside.begun.elapsed(), answered: None };
                    let name = (message.key[0], recipient.address.clone());
                    let mut all = self.outside.taken.lock();
                    let of_name = all.entry(name.clone()).or_default();
                    took.push((name, of_name.len()));
                    of_name.push(taken);
                    reply(250, "2.0.0")
                }
            });
        }
        if is_flaky {
            // Here its sender may crash.
            sleep(chance.millis(if chance.percent(10) { 40_000 } else { 500 })).await;
            if chance.percent(8) {
                self.is_open = false;
                return vec![
                    Attempted { reply: lost, is_reported_further: false, is_forwarded: false };
                    recipients.len()
                ];
            }
            self.is_open = !chance.percent(10);
        }
        let now = self.outside.begun.elapsed();
        for (name, place) in took {
            if let Some(taken) = self.outside.taken.lock().get_mut(&name) {
                taken[place].answered = Some(now);
            }
        }
        replies
            .into_iter()
            .map(|reply| Attempted { reply, is_reported_further: false, is_forwarded: false })
            .collect()
    }

    fn is_open(&self) -> bool {
        self.is_open
    }

    async fn close(self: Box<Self>) {}
}

/// The account of an address of this server.
pub(crate) fn account_of(address: &str) -> AccountId {
    AccountId(2_000 + u32::from(address.as_bytes()[0]))
}

#[async_trait]
impl Local for View {
    async fn is_local(&self, domain: &str) -> Result<bool, Error> {
        if self.outside.is_flaky.load(Relaxed) && self.outside.chance.percent(3) {
            return Err(Error::unavailable("a simulated failure of the directory"));
        }
        Ok(domain == "here.example")
    }

    async fn deliver(&self, message: &Outgoing, recipient: &Recipient) -> Attempted {
        let answer = |reply| Attempted { reply, is_reported_further: false, is_forwarded: false };
        let Ok(put) = self.blobs.put(&mut message.bytes.clone()).await else {
            return answer(reply(451, "4.3.0"));
        };
        let name = [&message.key[..], recipient.address.as_bytes()].concat();
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, &name).as_ref());
        let delivery = Delivery {
            message: StoredMessage::new(&restante_mail::message::read(&message.bytes), put.id),
            key,
            to_junk: false,
            received: 1_700_000_000,
            quota: None,
        };
        let place = (message.key, recipient.address.clone());
        self.outside.tried.lock().insert(place.clone());
        match self.mail.deliver(account_of(&recipient.address), delivery).await {
            Ok(_) => {
                self.outside.placed.lock().insert(place, message.bytes.clone());
                answer(reply(250, "2.0.0"))
            }
            Err(_) => answer(reply(451, "4.3.0")),
        }
    }
}

#[async_trait]
impl Submissions for View {
    async fn release(&self, _account: AccountId, submission: RecordId) -> Result<bool, Error> {
        let outside = &self.outside;
        let is_flaky = outside.is_flaky.load(Relaxed);
        if is_flaky && outside.chance.percent(4) {
            return Err(Error::unavailable("a simulated failure before a release"));
        }
        let is_sent = {
            let mut submissions = outside.submissions.lock();
            let undo = submissions.get_mut(&submission.0).expect("what is queued was submitted");
            if *undo == Undo::Pending {
                *undo = Undo::Final;
            }
            *undo == Undo::Final
        };
        if is_flaky && outside.chance.percent(4) {
            return Err(Error::unavailable("a simulated failure after a release"));
        }
        Ok(is_sent)
    }

    async fn report(
        &self,
        _account: AccountId,
        _submission: RecordId,
        _recipient: &str,
        _reply: &Reply,
        _is_local: bool,
    ) -> Result<(), Error> {
        if self.outside.is_flaky.load(Relaxed) && self.outside.chance.percent(4) {
            return Err(Error::unavailable("a simulated failure of a report"));
        }
        Ok(())
    }
}

#[async_trait]
impl Preparing for View {
    async fn message_id(&self, _: &QueuedMessage) -> Option<String> {
        None
    }

    async fn prepare(&self, message: &QueuedMessage) -> Result<Outgoing, PrepareError> {
        if self.outside.is_flaky.load(Relaxed) && self.outside.chance.percent(3) {
            return Err(PrepareError::Later(Error::unavailable("a simulated failure to read")));
        }
        let bytes = if message.source.kind == SourceKind::Report {
            let mut source = self.blobs.read(message.blob, 0..u64::MAX).await.map_err(PrepareError::Later)?;
            let chunk = source.next().await.map_err(PrepareError::Later)?;
            chunk.unwrap_or_default()
        } else {
            Bytes::from(format!("Message-ID: <{}@here.example>\r\n\r\n", message.source.key[0]))
        };
        Ok(Outgoing {
            bytes,
            sender: message.sender.clone(),
            envelope_id: message.envelope_id.clone(),
            returned: None,
            transmission: message.transmission,
            source: message.source.kind,
            account: message.source.account,
            record: message.source.record,
            key: message.source.key,
        })
    }
}

impl OutcomeLog for View {
    fn submitted(&self, _: SubmittedMessage<'_>) {}

    fn note(&self, noted: NotedOutcome<'_>) {
        let is_report = noted.message.source.kind == SourceKind::Report;
        if is_report && matches!(noted.outcome, RecipientOutcome::Failed(_)) {
            self.outside.expired_reports.lock().push(noted.message.blob);
        }
    }
}

impl Notices for View {
    fn compose(&self, about: &NoticeAbout) -> (Vec<u8>, Transmission) {
        let number = about.envelope_id.as_deref().unwrap_or_default();
        let kind = if about.kind == NoticeKind::Failed { "failed" } else { "delayed" };
        let mut text = format!("Subject: {kind}\r\n\r\n");
        for recipient in &about.recipients {
            text.push_str(&format!("{kind} {number} {}\r\n", recipient.address));
        }
        (text.into_bytes(), Transmission::default())
    }
}
