//! The followers that fill the queue: on the memory engines, with restarts and rebuilds.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::sync::Arc;

use bytes::Bytes;
use restante_core::{Clock, ManualClock, Timestamp};
use restante_delivery::{
    FollowerMetrics, MailSubmissions, NotedOutcome, OutcomeLog, RecipientOutcome, SubmissionFollower,
    Submissions, SubmittedMessage, VacationFollower,
};
use restante_directory::{
    Actor, Answer, Directory, DirectoryConfig, DirectoryMetrics, Operation, Role as UserRole,
};
use restante_follow::{Follower, Handler, Metrics, Settings};
use restante_mail::{
    Delivered, Delivery, EnvelopeAddress, Mail, MailConfig, MailError, MailMetrics, NewEmail, NewSubmission,
    OutboxMessage, RecipientState, Role, StoredMessage, UndoStatus, VacationResponse, email,
    queue::{ListFilter, NewRecipient, Notify, Queue, QueuedRecipient, Reply, SourceKind, Transmission},
};
use restante_records::{AccountId, Changes, ChangesSince, Opened, RecordId, Revision, Schema};

const START: i64 = 1_800_000_000;

struct Scene {
    opened: Opened,
    mail: Mail,
    queue: Queue,
    directory: Directory,
    clock: Arc<ManualClock>,
    account: AccountId,
}

/// What is noted for operators.
#[derive(Default)]
struct Notes {
    submitted: parking_lot::Mutex<Vec<Note>>,
    /// The recipient, the Message-ID, and who dropped it.
    dropped: parking_lot::Mutex<Vec<(String, Option<String>, String)>>,
}

/// The recipients, the Message-ID, and the code of the reply if the message was refused.
type Note = (Vec<String>, Option<String>, Option<u16>);

impl OutcomeLog for Notes {
    fn submitted(&self, submitted: SubmittedMessage<'_>) {
        assert!(submitted.message.source.account.is_some() && submitted.message.sender == "anna@example.org");
        let recipients = submitted.message.recipients.iter().map(|recipient| recipient.address.clone());
        let (id, code) = (submitted.message_id.map(str::to_owned), submitted.refused.map(|reply| reply.code));
        self.submitted.lock().push((recipients.collect(), id, code));
    }

    fn note(&self, noted: NotedOutcome<'_>) {
        let RecipientOutcome::Dropped { by } = noted.outcome else {
            panic!("a follower makes no attempts: {noted:?}");
        };
        let id = noted.message_id.map(str::to_owned);
        self.dropped.lock().push((noted.recipient.to_owned(), id, by.to_owned()));
    }
}

fn actor() -> Actor {
    Actor("a test".to_owned())
}

impl Scene {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(START)));
        let mut kinds = restante_mail::kinds();
        kinds.extend(restante_directory::kinds());
        let records =
            restante_records::Config::new(restante_records::EngineUrl::Memory, Schema::new(kinds).unwrap());
        let opened = restante_records::open(records).await.unwrap();
        let blobs = restante_blobs::Config::new(restante_blobs::EngineUrl::Memory);
        let blobs = restante_blobs::open(blobs).await.unwrap().blobs;
        let (settings, metrics) = (DirectoryConfig::default(), DirectoryMetrics::default());
        let (directory, _) = Directory::open(&opened, settings, clock.clone(), metrics).await.unwrap();
        let (config, metrics) = (MailConfig::default(), MailMetrics::default());
        let mail = Mail::new(opened.records.clone(), blobs, clock.clone(), config, metrics);
        let queue = Queue::new(opened.records.clone(), clock.clone());
        let domain = "example.org".parse().unwrap();
        let add = Operation::AddDomain { domain, separator: Some('+'), catch_all: None };
        directory.operate(&actor(), add).await.unwrap();
        let add = Operation::AddAccount {
            address: "anna@example.org".parse().unwrap(),
            password: None,
            role: UserRole::User,
            quota_bytes: None,
        };
        let Answer::Password { account: Some(number), .. } = directory.operate(&actor(), add).await.unwrap()
        else {
            unreachable!("a new account has a number")
        };
        Self { opened, mail, queue, directory, clock, account: AccountId(number) }
    }

    fn submissions(&self) -> SubmissionFollower {
        SubmissionFollower::new(self.mail.clone(), self.queue.clone(), None, FollowerMetrics::default())
    }

    /// The same that notes what it queues.
    fn noted_submissions(&self, notes: &Arc<Notes>) -> SubmissionFollower {
        let notes: Arc<dyn OutcomeLog> = notes.clone();
        SubmissionFollower::new(
            self.mail.clone(),
            self.queue.clone(),
            Some(notes),
            FollowerMetrics::default(),
        )
    }

    fn vacation(&self) -> VacationFollower {
        let (mail, queue) = (self.mail.clone(), self.queue.clone());
        VacationFollower::new(mail, queue, self.directory.clone(), FollowerMetrics::default())
    }

    /// All that there is, as a follower gets it that begins from zero.
    async fn all_changes(&self) -> Changes {
        self.changes_since(Revision(0)).await
    }

    async fn changes_since(&self, since: Revision) -> Changes {
        let since = ChangesSince { kind: None, since, limit: 4_096 };
        self.opened.records.changes(self.account, &since).await.unwrap()
    }

    /// Passes everything to a new follower, as after a rebuild.
    async fn follow(&self, mut handler: impl Handler) {
        handler.reset(self.account).await.unwrap();
        handler.handle(self.account, &self.all_changes().await).await.unwrap();
    }

    async fn queued(&self) -> Vec<QueuedRecipient> {
        let page = self.queue.list(&ListFilter::default(), None, 1_000).await.unwrap();
        page.recipients
    }

    /// Waits until so many recipients are queued.
    async fn until_queued(&self, recipients: usize) {
        while self.queued().await.len() < recipients {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    async fn submit(&self, delay: i64) -> RecordId {
        let address = |email: &str| EnvelopeAddress { email: email.to_owned(), parameters: None };
        let recipient = |address: &str| NewRecipient {
            address: address.to_owned(),
            notify: Notify::default(),
            original: None,
        };
        let bytes = Bytes::from_static(b"From: anna@example.org\r\nMessage-ID: <1@x>\r\n\r\nText\r\n");
        let blob = self.mail.blobs().put(&mut bytes.clone()).await.unwrap().id;
        let new = NewSubmission {
            if_in_state: None,
            email: RecordId(1),
            thread: RecordId(2),
            identity: RecordId(3),
            send_at: START + delay,
            is_pending: delay > 0,
            mail_from: address("anna@example.org"),
            rcpt_to: vec![address("bob@example.net"), address("carol@example.org")],
            message: OutboxMessage {
                blob,
                size: bytes.len() as u64,
                sender: "anna@example.org".to_owned(),
                envelope_id: Some("id".to_owned()),
                returned: None,
                transmission: Transmission::default(),
                recipients: vec![recipient("bob@example.net"), recipient("carol@example.org")],
            },
        };
        self.mail.create_submission(self.account, new).await.unwrap().0
    }

    /// Ends all that is due, as a sender does that has delivered it.
    async fn deliver_queued(&self) {
        use restante_mail::queue::{Ending, Outcome};
        for recipient in self.queued().await {
            let now = self.queue.now();
            for claimed in self.queue.claim(&[recipient.id], now + 60).await.unwrap() {
                let outcome = Outcome { endings: vec![(claimed.lease, Ending::Delivered)], notice: None };
                self.queue.end(&[outcome]).await.unwrap();
            }
        }
        assert!(self.queued().await.is_empty());
    }

    async fn receive(&self, raw: &str) -> RecordId {
        self.receive_to(raw, false).await
    }

    async fn receive_to(&self, raw: &str, to_junk: bool) -> RecordId {
        let (message, key) = self.stored(raw).await;
        let received = self.clock.now().seconds();
        let delivery = Delivery { message, key, to_junk, received, quota: None };
        match self.mail.deliver(self.account, delivery).await.unwrap() {
            Delivered::New(id) => id,
            Delivered::Repeated => panic!("each message of a test is another one"),
        }
    }

    async fn stored(&self, raw: &str) -> (StoredMessage, [u8; 32]) {
        let raw = Bytes::from(raw.replace('\n', "\r\n"));
        let blob = self.mail.blobs().put(&mut raw.clone()).await.unwrap().id;
        let mut key = [0; 32];
        key[..4].copy_from_slice(&self.changes_since(Revision(0)).await.revision.0.to_be_bytes()[4..]);
        (StoredMessage::new(&restante_mail::message::read(&raw), blob), key)
    }

    async fn set_vacation(&self, change: impl Fn(&mut VacationResponse)) {
        let set = self.mail.set_vacation(self.account, None, |response| {
            change(response);
            Ok::<(), MailError>(())
        });
        set.await.unwrap();
    }

    fn pass(&self, seconds: i64) {
        self.clock.set(self.clock.now().plus_seconds(seconds));
    }

    /// The bytes of a queued message.
    async fn text(&self, recipient: &QueuedRecipient) -> String {
        let message = &recipient.message;
        let mut source = self.mail.blobs().read(message.blob, 0..message.size).await.unwrap();
        let mut bytes = Vec::new();
        while let Some(chunk) = source.next().await.unwrap() {
            bytes.extend_from_slice(&chunk);
        }
        String::from_utf8(bytes).unwrap()
    }
}

fn message(id: &str, sender: &str) -> String {
    format!(
        "Return-Path: <{sender}>\nFrom: {sender}\nTo: anna@example.org\nSubject: Hello\nMessage-ID: <{id}@example.net>\n\nText\n"
    )
}

#[tokio::test]
async fn su3_a_submission_is_queued_once_whatever_is_repeated() {
    let scene = Scene::new().await;
    let id = scene.submit(0).await;
    let later = scene.submit(60).await;
    scene.follow(scene.submissions()).await;
    let mut queued = scene.queued().await;
    queued.sort_by_key(|recipient| (recipient.due, recipient.recipient.address.clone()));
    let found: Vec<(&str, u64, RecordId)> =
        queued.iter().map(|it| (it.recipient.address.as_str(), it.due, it.message.source.record)).collect();
    let (now, then) = (START as u64, START as u64 + 60);
    let expected = [
        ("bob@example.net", now, id),
        ("carol@example.org", now, id),
        ("bob@example.net", then, later),
        ("carol@example.org", then, later),
    ];
    assert_eq!(found, expected);
    let source = &queued[0].message.source;
    assert_eq!((source.kind, source.account), (SourceKind::Submission, Some(scene.account)));
    assert_eq!(queued[0].message.envelope_id.as_deref(), Some("id"));
    assert!(scene.mail.outbox(scene.account, 10).await.unwrap().is_empty());
    scene.follow(scene.submissions()).await;
    assert_eq!(scene.queued().await.len(), 4);
}

#[tokio::test]
async fn jrn3_a_submission_is_noted_when_it_is_queued() {
    let scene = Scene::new().await;
    let notes = Arc::new(Notes::default());
    scene.submit(0).await;
    scene.follow(scene.noted_submissions(&notes)).await;
    scene.follow(scene.noted_submissions(&notes)).await;
    let recipients = vec!["bob@example.net".to_owned(), "carol@example.org".to_owned()];
    assert_eq!(*notes.submitted.lock(), [(recipients, Some("1@x".to_owned()), None)]);
}

#[tokio::test]
async fn su3_a_rebuild_does_not_send_again_what_was_sent() {
    let scene = Scene::new().await;
    scene.submit(0).await;
    scene.follow(scene.submissions()).await;
    scene.deliver_queued().await;
    scene.pass(30 * 24 * 3_600); // longer than the queue remembers
    while scene.queue.forget().await.unwrap() {}
    scene.follow(scene.submissions()).await;
    assert!(scene.queued().await.is_empty());
    let next = scene.submit(0).await;
    scene.follow(scene.submissions()).await;
    assert!(scene.queued().await.iter().all(|recipient| recipient.message.source.record == next));
}

#[tokio::test]
async fn su3_a_crash_between_queueing_and_the_outbox_sends_nothing_twice() {
    let scene = Scene::new().await;
    let id = scene.submit(0).await;
    // The process ends when the queue has the message, and the outbox has it, too.
    let entry = scene.mail.outbox(scene.account, 10).await.unwrap().remove(0);
    scene.queue.add(entry.message).await.unwrap();
    scene.deliver_queued().await;
    scene.follow(scene.submissions()).await;
    assert!(scene.queued().await.is_empty(), "it was delivered");
    assert!(scene.mail.outbox(scene.account, 10).await.unwrap().is_empty());
    assert!(scene.mail.release_submission(scene.account, id).await.unwrap());
}

#[tokio::test]
async fn su3_a_follower_queues_what_was_submitted_before_it_ran_and_while_it_runs() {
    let scene = Scene::new().await;
    scene.submit(0).await;
    let settings = Settings::new(SubmissionFollower::NAME);
    let metrics = Metrics::default();
    let follower =
        Follower::new(settings, &scene.opened, scene.submissions(), scene.clock.clone(), &metrics).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(follower.run(async { drop(stopped.await) }));
    scene.until_queued(2).await;
    scene.submit(0).await;
    scene.until_queued(4).await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn su4_what_is_canceled_is_not_queued_or_not_sent() {
    let scene = Scene::new().await;
    let submissions = MailSubmissions::new(scene.mail.clone());
    let (early, late) = (scene.submit(60).await, scene.submit(60).await);
    scene.mail.cancel_submission(scene.account, early, None).await.unwrap();
    scene.follow(scene.submissions()).await;
    assert_eq!(scene.queued().await.len(), 2, "those of the other one");
    scene.mail.cancel_submission(scene.account, late, None).await.unwrap();
    assert!(!submissions.release(scene.account, late).await.unwrap());
    // It was listed as due until its time.
    let changes = Changes {
        updated: vec![restante_records::Changed { kind: restante_mail::submission::KIND, id: late }],
        ..Changes::default()
    };
    let notes = Arc::new(Notes::default());
    for _ in 0..2 {
        scene.noted_submissions(&notes).handle(scene.account, &changes).await.unwrap();
    }
    assert_eq!(scene.queued().await, []);
    let dropped = |recipient: &str| (recipient.to_owned(), Some("1@x".to_owned()), "its author".to_owned());
    assert_eq!(*notes.dropped.lock(), ["bob@example.net", "carol@example.org"].map(dropped));
    let sent = scene.submit(60).await;
    assert!(submissions.release(scene.account, sent).await.unwrap());
    let found = scene.mail.submissions(scene.account, &[sent]).await.unwrap().remove(0).unwrap();
    assert_eq!(found.head.undo, UndoStatus::Final);
}

#[tokio::test]
async fn su5_an_outcome_is_what_rfc_8621_calls_it() {
    let scene = Scene::new().await;
    let submissions = MailSubmissions::new(scene.mail.clone());
    let id = scene.submit(0).await;
    let status = async || {
        let found = scene.mail.submissions(scene.account, &[id]).await.unwrap().remove(0).unwrap();
        found.rcpt_to.into_iter().map(|it| (it.state, it.smtp_reply)).collect::<Vec<_>>()
    };
    let report = async |recipient: &str, reply: &Reply, is_local: bool| {
        submissions.report(scene.account, id, recipient, reply, is_local).await.unwrap();
        submissions.report(scene.account, id, recipient, reply, is_local).await.unwrap();
    };
    report("bob@example.net", &Reply::own(451, "4.4.1", "no\nanswer"), false).await;
    report("carol@example.org", &Reply::own(250, "2.1.5", "delivered"), true).await;
    let later = "451 4.4.1 no answer".to_owned();
    let yes = (RecipientState::Yes, "250 2.1.5 delivered".to_owned());
    assert_eq!(status().await, [(RecipientState::Queued, later), yes.clone()]);
    report("bob@example.net", &Reply::own(250, "2.0.0", "taken"), false).await;
    assert_eq!(status().await, [(RecipientState::Unknown, "250 2.0.0 taken".to_owned()), yes]);
    report("carol@example.org", &Reply::own(550, "5.1.1", "gone"), true).await;
    assert_eq!(status().await[1], (RecipientState::No, "550 5.1.1 gone".to_owned()));
    submissions
        .report(scene.account, RecordId(999), "x@example.net", &Reply::own(250, "", ""), true)
        .await
        .unwrap();
}

#[tokio::test]
async fn vac4_a_new_email_gets_one_reply_with_an_empty_return_path() {
    let scene = Scene::new().await;
    scene
        .set_vacation(|response| {
            response.is_enabled = true;
            response.text_body = Some("Back on Monday".to_owned());
        })
        .await;
    let email = scene.receive(&message("one", "bob@Example.net")).await;
    scene.follow(scene.vacation()).await;
    let queued = scene.queued().await;
    assert_eq!(queued.len(), 1);
    let source = &queued[0].message.source;
    assert_eq!(
        (source.kind, source.account, source.record),
        (SourceKind::Vacation, Some(scene.account), email)
    );
    assert_eq!(
        (queued[0].message.sender.as_str(), queued[0].recipient.address.as_str()),
        ("", "bob@example.net")
    );
    let text = scene.text(&queued[0]).await;
    for line in [
        "From: anna@example.org\r\n",
        "Subject: Auto: Hello\r\n",
        "In-Reply-To: <one@example.net>\r\n",
        "Auto-Submitted: auto-replied\r\n",
        "Back on Monday",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    scene.follow(scene.vacation()).await;
    assert_eq!(scene.queued().await.len(), 1, "a rebuild answers nothing again");
}

#[tokio::test]
async fn vac3_a_sender_gets_a_reply_once_in_seven_days() {
    let scene = Scene::new().await;
    scene.set_vacation(|response| response.is_enabled = true).await;
    for id in ["one", "two"] {
        scene.receive(&message(id, "bob@example.net")).await;
    }
    scene.receive(&message("three", "carol@example.net")).await;
    scene.follow(scene.vacation()).await;
    assert_eq!(scene.queued().await.len(), 2, "one for each sender");
    scene.deliver_queued().await;
    scene.pass(7 * 86_400 - 1);
    scene.receive(&message("four", "BOB@example.net")).await;
    scene.follow(scene.vacation()).await;
    assert!(scene.queued().await.is_empty());
    scene.pass(1);
    scene.receive(&message("five", "bob@example.net")).await;
    scene.follow(scene.vacation()).await;
    assert_eq!(scene.queued().await.len(), 1);
}

#[tokio::test]
async fn vac3_a_crash_before_the_sender_is_noted_sends_no_second_reply() {
    let scene = Scene::new().await;
    scene.set_vacation(|response| response.is_enabled = true).await;
    scene.receive(&message("one", "bob@example.net")).await;
    scene.follow(scene.vacation()).await;
    // Forget the sender, as if the process had ended before the commit.
    let query = restante_records::Query::new(restante_mail::answered::KIND, restante_mail::answered::BY_AT);
    let noted = scene.opened.records.query(scene.account, &query).await.unwrap().ids;
    assert_eq!(noted.len(), 1);
    let kind = restante_mail::answered::KIND;
    let destroy = noted.into_iter().map(|id| restante_records::Change::Destroy { kind, id });
    scene.opened.records.commit(scene.account, restante_records::Commit::of(destroy)).await.unwrap();
    scene.deliver_queued().await;
    scene.follow(scene.vacation()).await;
    assert!(scene.queued().await.is_empty(), "the queue knows the reply");
    assert!(scene.mail.was_answered(scene.account, "bob@example.net", START).await.unwrap());
}

#[tokio::test]
async fn vac4_what_a_program_or_a_list_sent_gets_no_reply() {
    let scene = Scene::new().await;
    scene.set_vacation(|response| response.is_enabled = true).await;
    for (n, header) in [
        "Return-Path: <>\nTo: anna@example.org\n",
        "Return-Path: <bob@example.net>\nTo: anna@example.org\nAuto-Submitted: auto-generated\n",
        "Return-Path: <bob@example.net>\nTo: anna@example.org\nList-Id: <list.example.net>\n",
        "Return-Path: <owner-list@example.net>\nTo: anna@example.org\n",
        "Return-Path: <list-request@example.net>\nTo: anna@example.org\n",
        "Return-Path: <bob@example.net>\nTo: others@example.net\n",
        "Return-Path: <anna@example.org>\nTo: anna@example.org\n",
        "To: anna@example.org\n",
    ]
    .into_iter()
    .enumerate()
    {
        scene.receive(&format!("{header}Message-ID: <{n}@example.net>\n\nText\n")).await;
    }
    scene.receive_to(&message("junk", "bob@example.net"), true).await;
    scene.follow(scene.vacation()).await;
    assert!(scene.queued().await.is_empty());
    assert!(!scene.mail.was_answered(scene.account, "bob@example.net", START).await.unwrap());
}

#[tokio::test]
async fn vac4_only_deliveries_while_the_response_is_in_force_get_a_reply() {
    let scene = Scene::new().await;
    scene.receive(&message("before", "a@example.net")).await;
    scene.pass(10);
    scene
        .set_vacation(|response| {
            response.is_enabled = true;
            response.to_date = Some(START + 100);
        })
        .await;
    // An email that a user makes is none that was delivered.
    let (stored, _) = scene.stored(&message("draft", "b@example.net")).await;
    let mailboxes = scene.mail.mailboxes(scene.account).await.unwrap().0;
    let inbox = mailboxes.iter().find(|mailbox| mailbox.role == Some(Role::Inbox)).unwrap().id;
    let new = NewEmail {
        if_in_state: None,
        message: stored,
        mailboxes: vec![inbox],
        keywords: Vec::new(),
        received: scene.clock.now().seconds(),
        quota: None,
    };
    scene.mail.create_email(scene.account, new).await.unwrap();
    scene.pass(10);
    scene.receive(&message("while", "c@example.net")).await;
    scene.pass(100);
    scene.receive(&message("after", "d@example.net")).await;
    let emails = scene.all_changes().await.created.iter().filter(|it| it.kind == email::KIND).count();
    assert_eq!(emails, 4);
    scene.follow(scene.vacation()).await;
    let queued = scene.queued().await;
    assert_eq!(queued.len(), 1);
    assert_eq!(queued[0].recipient.address, "c@example.net");
    // What comes again after a long time is not answered.
    scene.set_vacation(|response| response.to_date = None).await;
    scene.receive(&message("late", "e@example.net")).await;
    scene.pass(86_401);
    scene.follow(scene.vacation()).await;
    assert_eq!(scene.queued().await.len(), 1);
}
