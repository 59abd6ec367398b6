//! Tests are named by the rules of `docs/design/mail-rules.md`.

use std::sync::Arc;

use parking_lot::Mutex;
use restante_core::{BlobId, ManualClock, Timestamp};
use restante_directory::{self as directory, EmailAddress, Resolution, State};
use restante_mail::{
    Mail, MailConfig, MailMetrics, kinds,
    quarantine::{ListFilter, QuarantineConfig, QuarantineMetrics},
    queue::NewMessage,
};
use restante_records::{Config, EngineUrl, Schema, open};

use super::*;
use crate::{ForwardSender, Forwards, Journal, MailDelivery, Outbox, Recipients, SmtpConfig};

/// `anna` and `bob` have accounts, `team` is anna and an address elsewhere, and no other address exists.
struct Users;

#[async_trait]
impl Recipients for Users {
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        let target = |number, local: &str| directory::Target::Account {
            account: AccountId(number),
            address: format!("{local}@example.org").parse().unwrap(),
            state: State::Active,
            quota_bytes: (local == "bob").then_some(50),
            detail: None,
        };
        Ok(match address.local() {
            "anna" | "anna+shop" => Resolution::Targets(vec![target(2_000, "anna")]),
            "bob" => Resolution::Targets(vec![target(2_001, "bob")]),
            "team" => Resolution::Targets(vec![
                target(2_000, "anna"),
                directory::Target::Foreign("x@example.com".parse().unwrap()),
            ]),
            _ => Resolution::Unknown,
        })
    }
}

struct Unchanged;

impl ForwardSender for Unchanged {
    fn rewrite(&self, sender: &str, _alias: &EmailAddress) -> String {
        format!("rewritten-{sender}")
    }

    fn original(&self, _address: &str) -> Option<String> {
        None
    }
}

#[derive(Default)]
struct Sent(Mutex<Vec<(NewMessage, Bytes)>>, Mutex<Bytes>);

#[async_trait]
impl Outbox for Sent {
    async fn put(&self, raw: Bytes) -> Result<BlobId, Error> {
        *self.1.lock() = raw;
        Ok(BlobId([1; 32]))
    }

    async fn queue(&self, message: NewMessage) -> Result<(), Error> {
        let mut sent = self.0.lock();
        if sent.iter().all(|(known, _)| known.source.key != message.source.key) {
            sent.push((message, self.1.lock().clone()));
        }
        Ok(())
    }
}

/// A journal in memory.
#[derive(Default)]
struct Entries(Mutex<Vec<DeliveryEntry>>);

impl Journal for Entries {
    fn note(&self, entry: DeliveryEntry) {
        self.0.lock().push(entry);
    }
}

const BY: &str = "an operator";

struct Server {
    journal: Arc<Entries>,
    quarantine: MailQuarantine,
    mail: Mail,
    sent: Arc<Sent>,
}

impl Server {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_700_000_000)));
        let records = open(Config::new(EngineUrl::Memory, Schema::new(kinds()).unwrap())).await.unwrap();
        let blobs = restante_blobs::Config::new(restante_blobs::EngineUrl::Memory);
        let blobs = restante_blobs::open(blobs).await.unwrap().blobs;
        let (config, metrics) = (MailConfig::default(), MailMetrics::default());
        let mail = Mail::new(records.records.clone(), blobs.clone(), clock.clone(), config, metrics);
        let kept = restante_mail::quarantine::Quarantine::new(
            records.records.clone(),
            blobs,
            clock.clone(),
            QuarantineConfig::default(),
            QuarantineMetrics::default(),
        );
        let sent: Arc<Sent> = Arc::default();
        let journal: Arc<Entries> = Arc::default();
        let local = LocalDelivery {
            hostname: "mx.example.org".to_owned(),
            journal: Some(journal.clone()),
            recipients: Arc::new(Users),
            delivery: Arc::new(MailDelivery::new(mail.clone(), &SmtpConfig::default())),
            forwards: Some(Forwards { outbox: sent.clone(), sender: Arc::new(Unchanged) }),
            clock,
            quota_is_permanent: true,
        };
        Self { journal, quarantine: MailQuarantine { kept, local }, mail, sent }
    }

    async fn keep(&self, recipients: &[&str]) -> RecordId {
        let raw = "Return-Path: <s@example.net>\r\nReceived: by here\r\nSubject: x\r\nMessage-ID: <m@x>\r\n\r\ntext of some length, and more of it, so that it is long enough for the quota\r\n";
        let mail = ReceivedMail {
            raw: Bytes::from_static(raw.as_bytes()),
            digest: [7; 32],
            to_junk: false,
            received: Timestamp::from_seconds(1_600_000_000),
        };
        let about = QuarantinedAbout {
            id: "5-1".into(),
            peer: None,
            hello: "h".into(),
            sender: "s@example.net".into(),
            recipients: recipients.iter().map(|it| (*it).to_owned()).collect(),
            reason: "why".into(),
            is_utf8: false,
        };
        self.quarantine.keep(mail, about).await.unwrap();
        self.ids().await[0]
    }

    async fn ids(&self) -> Vec<RecordId> {
        let page = self.quarantine.kept.list(&ListFilter::default(), None, 100).await.unwrap();
        page.items.iter().map(|item| item.id).collect()
    }

    /// What was noted since the last call: recipient, account and outcome. Each entry contains the id of the message.
    fn noted(&self) -> Vec<(String, Option<u32>, Outcome)> {
        let entries = std::mem::take(&mut *self.journal.0.lock());
        let read = |entry: DeliveryEntry| {
            let named = (entry.id.as_str(), entry.message_id.as_deref(), entry.sender.as_str());
            assert_eq!(named, ("5-1", Some("m@x"), "s@example.net"));
            (entry.recipient, entry.account.map(|(account, _)| account.0), entry.outcome)
        };
        entries.into_iter().map(read).collect()
    }

    async fn emails(&self, account: u32) -> u64 {
        self.mail.usage(AccountId(account)).await.unwrap().emails
    }
}

#[tokio::test]
async fn chk20_what_is_released_is_delivered_once_to_each_account() {
    let server = Server::new().await;
    let id = server.keep(&["anna@example.org", "anna+shop@example.org", "team@example.org"]).await;
    assert_eq!(server.emails(2_000).await, 0);
    let released = server.quarantine.release(id, BY).await.unwrap().unwrap();
    assert!(released.len() == 3 && released.iter().all(|it| it.problem.is_none()), "{released:?}");
    assert_eq!((server.emails(2_000).await, server.sent.0.lock().len()), (1, 1));
    {
        let sent = server.sent.0.lock();
        assert_eq!(sent[0].0.sender, "rewritten-s@example.net");
        assert!(sent[0].1.starts_with(b"Delivered-To: team@example.org\r\nReceived: by here\r\n"));
    }
    assert_eq!(server.quarantine.release(id, BY).await.unwrap(), None);
    // The client did not get its reply, and sends the message again: it is another one in quarantine, and nothing new when it is released.
    let again = server.keep(&["anna@example.org", "team@example.org"]).await;
    server.quarantine.release(again, BY).await.unwrap().unwrap();
    assert_eq!((server.emails(2_000).await, server.sent.0.lock().len()), (1, 1));
    assert!(server.ids().await.is_empty());
}

#[tokio::test]
async fn chk20_operators_who_release_the_same_at_once_deliver_it_once() {
    let server = Server::new().await;
    let id = server.keep(&["anna@example.org", "team@example.org"]).await;
    let release = || {
        let quarantine = server.quarantine.clone();
        tokio::spawn(async move { quarantine.release(id, BY).await.unwrap() })
    };
    let tasks: Vec<_> = (0..4).map(|_| release()).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!((server.emails(2_000).await, server.sent.0.lock().len()), (1, 1));
}

#[tokio::test]
async fn chk20_what_can_not_be_delivered_to_all_stays_in_quarantine() {
    let server = Server::new().await;
    let id = server.keep(&["anna@example.org", "gone@example.org", "bob@example.org"]).await;
    for _ in 0..2 {
        let released = server.quarantine.release(id, BY).await.unwrap().unwrap();
        let problems: Vec<Option<&str>> = released.iter().map(|it| it.problem.as_deref()).collect();
        assert_eq!(problems[..2], [None, Some("550 5.1.1 no such user here")]);
        assert!(problems[2].is_some_and(|problem| problem.starts_with("552 5.2.2")), "{problems:?}");
        assert_eq!((server.emails(2_000).await, server.emails(2_001).await), (1, 0));
        assert_eq!(server.ids().await, [id]);
    }
}

#[tokio::test]
async fn jrn4_what_operators_release_is_noted_for_each_recipient() {
    let server = Server::new().await;
    let id = server.keep(&["anna@example.org", "team@example.org", "gone@example.org"]).await;
    server.quarantine.release(id, BY).await.unwrap().unwrap();
    let noted = server.noted();
    let [(anna, Some(2_000), Outcome::Released { email: Some(email), by }), rest @ ..] = &noted[..] else {
        panic!("{noted:?}");
    };
    assert_eq!((anna.as_str(), &**by), ("anna@example.org", BY));
    let released = |email| Outcome::Released { email, by: BY.into() };
    let problem = NotedReply {
        code: 550,
        status: "5.1.1".into(),
        reason: "no such user here; released by an operator".into(),
    };
    let expected = [
        ("team@example.org".to_owned(), Some(2_000), released(Some(*email))),
        ("team@example.org".to_owned(), None, released(None)),
        ("gone@example.org".to_owned(), None, Outcome::NotReleased(problem)),
    ];
    assert_eq!(rest, expected);
    // The second time nothing is stored again.
    server.quarantine.release(id, BY).await.unwrap().unwrap();
    assert_eq!(server.noted()[0], ("anna@example.org".to_owned(), Some(2_000), released(None)));
}

#[tokio::test]
async fn jrn4_what_operators_drop_is_noted_once_for_each_recipient() {
    let server = Server::new().await;
    let id = server.keep(&["anna@example.org", "bob@example.org"]).await;
    let ids = [id, id, RecordId(99)];
    assert_eq!(server.quarantine.drop_messages(&ids, BY).await.unwrap(), 1);
    let dropped = |recipient: &str| (recipient.to_owned(), None, Outcome::Dropped(BY.into()));
    assert_eq!(server.noted(), [dropped("anna@example.org"), dropped("bob@example.org")]);
    assert_eq!(server.quarantine.drop_messages(&ids, BY).await.unwrap(), 0);
    assert_eq!(server.noted(), []);
}
