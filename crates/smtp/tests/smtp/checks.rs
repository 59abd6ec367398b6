//! What SMTP does with the results of the checks of mail from other servers.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use restante_checks::{ClientFacts, Envelope, Judgement, Peer, Refused, Reverse, SenderChecks, Verdict};
use restante_core::{Error, ErrorKind, nonzero};
use restante_records::RecordId;
use restante_smtp::{DeliveryEntry, NotedReply, Outcome, Parts, Quarantine, QuarantinedAbout, ReceivedMail};
use tokio::sync::Semaphore;

use crate::{
    support::{Client, Server, until},
    users::{PASSWORD, Users, plain},
};

const MESSAGE: &str = "From: a@example.net\r\n\r\ntext\r\n.\r\n";

/// Checks that return what a test has set, and record their arguments.
struct FakeChecks {
    is_exempt: bool,
    facts: Mutex<ClientFacts>,
    sender: Mutex<Result<(), Refused>>,
    /// Refusals of recipients.
    recipients: Mutex<HashMap<String, Refused>>,
    judgement: Mutex<Judgement>,
    asked: Mutex<Vec<String>>,
    /// Permits for look-ups and messages to return.
    go_on: Semaphore,
    /// Look-ups that were begun, and those that ended.
    lookups: AtomicUsize,
    ended: AtomicUsize,
    /// A check that keeps a reference to the message that it got.
    kept: Mutex<Option<Bytes>>,
}

struct Ended<'c>(&'c AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn judgement(verdict: Verdict) -> Judgement {
    let fields = "Authentication-Results: mail.example.org; spf=pass\r\n".to_owned();
    Judgement { verdict, fields, authentication: None, filter: None }
}

impl FakeChecks {
    fn new() -> Self {
        Self {
            is_exempt: false,
            facts: Mutex::new(ClientFacts::UNKNOWN),
            sender: Mutex::new(Ok(())),
            recipients: Mutex::default(),
            judgement: Mutex::new(judgement(Verdict::Accept)),
            asked: Mutex::default(),
            go_on: Semaphore::new(Semaphore::MAX_PERMITS / 2),
            lookups: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            kept: Mutex::default(),
        }
    }

    fn judging(verdict: Verdict) -> Arc<Self> {
        Arc::new(Self { judgement: Mutex::new(judgement(verdict)), ..Self::new() })
    }

    fn ask(&self, what: String) {
        self.asked.lock().push(what);
    }

    fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock())
    }
}

#[async_trait]
impl SenderChecks for FakeChecks {
    fn is_exempt(&self, _: IpAddr) -> bool {
        self.is_exempt
    }

    async fn client(&self, address: IpAddr) -> ClientFacts {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let _ended = Ended(&self.ended);
        self.ask(format!("client {address}"));
        self.go_on.acquire().await.unwrap().forget();
        self.facts.lock().clone()
    }

    async fn sender(&self, peer: &Peer, facts: &ClientFacts, sender: &str) -> Result<(), Refused> {
        let is_known = *facts == *self.facts.lock();
        self.ask(format!("sender {} {} {sender} {is_known}", peer.address, peer.hello));
        self.sender.lock().clone()
    }

    async fn recipient(
        &self,
        _: &Peer,
        _: &ClientFacts,
        sender: &str,
        recipient: &str,
    ) -> Result<(), Refused> {
        self.ask(format!("recipient {sender} {recipient}"));
        self.recipients.lock().get(recipient).cloned().map_or(Ok(()), Err)
    }

    async fn message(&self, envelope: Envelope<'_>, raw: Bytes) -> Judgement {
        let text = String::from_utf8(raw.to_vec()).unwrap();
        self.ask(format!("message {} {:?} {text}", envelope.sender, envelope.recipients));
        self.go_on.acquire().await.unwrap().forget();
        if let Some(kept) = &mut *self.kept.lock() {
            *kept = raw;
        }
        self.judgement.lock().clone()
    }

    fn claims_to_be_ours(&self, value: &[u8]) -> bool {
        value.trim_ascii().starts_with(b"mail.example.org")
    }
}

/// Keeps mail in memory.
#[derive(Default)]
struct FakeQuarantine {
    kept: Mutex<Vec<(ReceivedMail, QuarantinedAbout)>>,
    failing: Mutex<Option<ErrorKind>>,
}

#[async_trait]
impl Quarantine for FakeQuarantine {
    async fn keep(&self, mail: ReceivedMail, about: QuarantinedAbout) -> Result<(), Error> {
        if let Some(kind) = *self.failing.lock() {
            return Err(Error::new(kind, "it was asked to fail"));
        }
        self.kept.lock().push((mail, about));
        Ok(())
    }
}

fn refused(code: u16, enhanced: &'static str, text: &str, check: &'static str) -> Refused {
    Refused { code, enhanced, text: text.to_owned(), check }
}

async fn server(checks: &Arc<FakeChecks>) -> Server {
    Server::with_parts(None, |_, _| {}, |parts| parts.checks = Some(checks.clone())).await
}

async fn users(checks: &Arc<FakeChecks>, change: impl FnOnce(&mut Parts)) -> Users {
    let change = |parts: &mut Parts| {
        parts.checks = Some(checks.clone());
        change(parts);
    };
    Users::with_parts(|_, _| {}, change).await
}

fn entries(server: &Server) -> Vec<DeliveryEntry> {
    server.journal.0.lock().clone()
}

/// Recipients and their outcomes in the journal.
fn outcomes(entries: &[DeliveryEntry]) -> Vec<(&str, Outcome)> {
    entries.iter().map(|entry| (entry.recipient.as_str(), entry.outcome.clone())).collect()
}

fn refusal(code: u16, status: &'static str, reason: &'static str) -> Outcome {
    Outcome::Refused(NotedReply { code, status: status.into(), reason: reason.into() })
}

async fn send(client: &mut Client, recipients: &[&str], message: &str) -> String {
    client.dialogue(&[("MAIL FROM:<s@example.com>", "250")]).await;
    for recipient in recipients {
        client.dialogue(&[(format!("RCPT TO:<{recipient}>").as_str(), "250 2.1.5")]).await;
    }
    client.dialogue(&[("DATA", "354")]).await;
    client.send(message).await;
    client.reply().await
}

#[tokio::test]
async fn chk8_mail_of_other_servers_is_checked_at_each_step() {
    let checks = Arc::new(FakeChecks::new());
    let server = server(&checks).await;
    let mut client = server.smtp().await;
    assert!(send(&mut client, &["anna@example.org", "bob@example.org"], MESSAGE).await.starts_with("250"));
    assert_eq!(
        checks.take_asked(),
        [
            "client 127.0.0.1",
            "sender 127.0.0.1 client.example.net s@example.com true",
            "recipient s@example.com anna@example.org",
            "recipient s@example.com bob@example.org",
            "message s@example.com [\"anna@example.org\", \"bob@example.org\"] From: a@example.net\r\n\r\ntext\r\n",
        ]
    );
    let message = server.last();
    let (trace, rest) = message.split_once(" +0000\r\n").unwrap();
    assert!(trace.starts_with("Return-Path: <s@example.com>\r\nReceived: "), "{trace}");
    assert_eq!(
        rest,
        "Authentication-Results: mail.example.org; spf=pass\r\nFrom: a@example.net\r\n\r\ntext\r\n"
    );
    // The next message of the connection is checked as well; its client is known.
    assert!(client.mail(MESSAGE).await.starts_with("250"));
    let asked: Vec<String> =
        checks.take_asked().iter().map(|asked| asked.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(asked, ["sender", "recipient", "message"]);
}

#[tokio::test]
async fn chk8_exempt_clients_lmtp_and_submission_are_not_checked() {
    let claiming =
        "Authentication-Results: mail.example.org; spf=pass\r\nFrom: anna@example.org\r\n\r\n.\r\n";
    let exempt = Arc::new(FakeChecks { is_exempt: true, ..FakeChecks::new() });
    let server_of_exempt = server(&exempt).await;
    let mut client = server_of_exempt.smtp().await;
    assert!(client.mail(claiming).await.starts_with("250"));
    let checks = FakeChecks::judging(Verdict::Refuse(refused(550, "5.7.1", "no", "dmarc")));
    let users = users(&checks, |_| {}).await;
    let mut client = users.lmtp().await;
    assert!(send(&mut client, &["anna@example.org"], claiming).await.starts_with("250"));
    for stored in [&server_of_exempt.stored, &users.stored] {
        let raw = stored.mails.lock()[0].0.raw.clone();
        let text = String::from_utf8(raw.to_vec()).unwrap();
        assert_eq!(
            text.matches("Authentication-Results").count(),
            1,
            "who has checked it has said so: {text}"
        );
    }
    for mut client in [users.client().await, users.immediate().await] {
        let log_in = format!("AUTH PLAIN {}", plain("", "anna@example.org", PASSWORD));
        client.dialogue(&[(log_in.as_str(), "235"), ("MAIL FROM:<anna@example.org>", "250")]).await;
        client.dialogue(&[("RCPT TO:<x@example.net>", "250"), ("DATA", "354")]).await;
        client.send("From: anna@example.org\r\n\r\n.\r\n").await;
        client.expect("250").await;
    }
    assert_eq!((exempt.take_asked(), checks.take_asked()), (Vec::<String>::new(), Vec::new()));
}

#[tokio::test]
async fn chk5_results_that_claim_to_be_ours_are_removed() {
    let server = server(&Arc::new(FakeChecks::new())).await;
    let message = "Authentication-Results: mail.example.org; dkim=pass\r\nReturn-Path: <x>\r\n\
                   Authentication-Results: other.example; dkim=pass\r\n\r\n.\r\n";
    assert!(server.smtp().await.mail(message).await.starts_with("250"));
    let stored = server.last();
    let (_, rest) = stored.split_once(" +0000\r\n").unwrap();
    assert_eq!(
        rest,
        "Authentication-Results: mail.example.org; spf=pass\r\n\
         Authentication-Results: other.example; dkim=pass\r\n\r\n"
    );
}

#[tokio::test]
async fn chk9_a_name_that_leads_back_stands_in_the_received_field() {
    let checks = Arc::new(FakeChecks::new());
    let server = server(&checks).await;
    for (number, (reverse, expected)) in [
        (Reverse::Confirmed("out.example.net".to_owned()), "(out.example.net [127.0.0.1])"),
        (Reverse::Unconfirmed("out.example.net".to_owned()), "([127.0.0.1])"),
        (Reverse::Confirmed("a\r\nb.example.net".to_owned()), "([127.0.0.1])"),
        (Reverse::None, "([127.0.0.1])"),
    ]
    .into_iter()
    .enumerate()
    {
        checks.facts.lock().reverse = reverse;
        let message = format!("a: {number}\r\n\r\n.\r\n");
        assert!(server.smtp().await.mail(message).await.starts_with("250"));
        let received = format!("Received: from client.example.net {expected}\r\n");
        assert!(server.last().contains(&received), "{}", server.last());
    }
}

#[tokio::test]
async fn chk9_a_slow_look_up_delays_the_first_recipient_alone_and_ends_with_its_client() {
    let checks = Arc::new(FakeChecks { go_on: Semaphore::new(0), ..FakeChecks::new() });
    let server = server(&checks).await;
    let mut client = server.smtp().await;
    client.dialogue(&[("MAIL FROM:<s@example.com>", "250"), ("RCPT TO:<no@example.org>", "550 5.1.1")]).await;
    client.send("RCPT TO:<anna@example.org>\r\nRCPT TO:<bob@example.org>\r\n").await;
    assert_eq!(checks.ended.load(Ordering::SeqCst), 0);
    checks.go_on.add_permits(1);
    client.expect("250 2.1.5").await;
    client.expect("250 2.1.5").await;
    assert_eq!(checks.ended.load(Ordering::SeqCst), 1);
    let mut other = server.smtp().await;
    until("the look-up has begun", || checks.lookups.load(Ordering::SeqCst) == 2).await;
    other.dialogue(&[("QUIT", "221")]).await;
    until("the look-up is over", || checks.ended.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test]
async fn chk10_a_sender_that_checks_refuse_is_refused_at_each_recipient_that_exists() {
    let checks = Arc::new(FakeChecks::new());
    let text = "your address is on the block list l.example";
    *checks.sender.lock() = Err(refused(550, "5.7.1", text, "block_list"));
    let server = server(&checks).await;
    let mut client = server.smtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<s@example.com>", "250"),
            ("RCPT TO:<no@example.org>", "550 5.1.1"),
            ("RCPT TO:<anna@example.org>", "550 5.7.1 your address is on the block list l.example"),
            ("RCPT TO:<bob@example.org>", "550 5.7.1 your address is on"),
            ("DATA", "503"),
            ("RCPT TO:<Postmaster>", "250"),
        ])
        .await;
    let asked = checks.take_asked();
    assert_eq!(asked.iter().filter(|asked| asked.starts_with("sender")).count(), 1, "{asked:?}");
    assert!(!asked.iter().any(|asked| asked.starts_with("recipient")), "{asked:?}");
    let entries = entries(&server);
    assert_eq!(
        outcomes(&entries),
        [
            ("no@example.org", refusal(550, "5.1.1", "no such user here")),
            ("anna@example.org", refusal(550, "5.7.1", text)),
            ("bob@example.org", refusal(550, "5.7.1", text)),
        ],
        "chk12: the journal has the reason"
    );
    assert_eq!(server.metric("restante_smtp_refused_by_checks_total{check=\"block_list\"}"), 2);
    let labels = "{protocol=\"smtp\",result=\"refused_by_check\"}";
    assert_eq!(server.metric(&format!("restante_smtp_recipients_total{labels}")), 2);
}

#[tokio::test]
async fn chk11_a_recipient_is_refused_for_now_and_others_get_the_message() {
    let checks = Arc::new(FakeChecks::new());
    let greylisted = refused(451, "4.7.1", "greylisted: try again in 300 seconds", "greylist");
    checks.recipients.lock().insert("bob@example.org".to_owned(), greylisted);
    let server = server(&checks).await;
    let mut client = server.smtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<s@example.com>", "250"),
            ("RCPT TO:<bob@example.org>", "451 4.7.1 greylisted"),
            ("RCPT TO:<anna@example.org>", "250"),
            ("DATA", "354"),
        ])
        .await;
    client.send(MESSAGE).await;
    client.expect("250").await;
    let entries = entries(&server);
    assert_eq!(
        outcomes(&entries),
        [
            ("bob@example.org", refusal(451, "4.7.1", "greylisted: try again in 300 seconds")),
            ("anna@example.org", Outcome::Stored(RecordId(100))),
        ]
    );
    assert_eq!(server.metric("restante_smtp_refused_by_checks_total{check=\"greylist\"}"), 1);
}

#[tokio::test]
async fn chk12_junk_is_stored_as_such_and_the_journal_says_why() {
    let checks = FakeChecks::judging(Verdict::Junk("dmarc: quarantine".to_owned()));
    checks.judgement.lock().filter = Some("rspamd 7.5 of 15".to_owned());
    let server = server(&checks).await;
    assert!(server.smtp().await.mail(MESSAGE).await.starts_with("250 2.0.0 stored"));
    assert!(server.stored.mails.lock()[0].0.to_junk);
    let reason = "dmarc: quarantine (rspamd 7.5 of 15)".into();
    let junk = Outcome::Junk { email: RecordId(100), reason };
    assert_eq!(outcomes(&entries(&server)), [("anna@example.org", junk)]);
    let result =
        |result: &str| format!("restante_smtp_messages_total{{protocol=\"smtp\",result=\"{result}\"}}");
    assert_eq!((server.metric(&result("junk")), server.metric(&result("stored"))), (1, 0));
    // The same for what a trusted filter in front of this server has marked.
    server.lmtp().await.mail("X-Spam-Flag: YES\r\n\r\n.\r\n").await;
    let marked = Outcome::Junk { email: RecordId(100), reason: "X-Spam-Flag: YES".into() };
    assert_eq!(entries(&server)[1].outcome, marked);
}

#[tokio::test]
async fn chk13_what_checks_refuse_is_not_stored() {
    for (code, enhanced, text, check) in [
        (550, "5.7.1", "the policy of example.net refuses this message", "dmarc"),
        (550, "5.6.0", "the message has several From fields", "from"),
        (451, "4.7.1", "try again later", "filter"),
    ] {
        let checks = FakeChecks::judging(Verdict::Refuse(refused(code, enhanced, text, check)));
        let server = server(&checks).await;
        let mut client = server.smtp().await;
        let message = "Message-ID: <m@example.net>\r\nFrom: a@b\r\nFrom: c@d\r\n\r\n.\r\n";
        let reply = send(&mut client, &["anna@example.org", "both@example.org"], message).await;
        assert_eq!(reply, format!("{code} {enhanced} {text}"));
        assert!(server.stored.mails.lock().is_empty());
        let entries = entries(&server);
        assert_eq!(entries.len(), 3, "one for each account of each recipient");
        for entry in entries {
            assert_eq!(entry.outcome, refusal(code, enhanced, text));
            assert_eq!(entry.message_id.as_deref(), Some("m@example.net"));
        }
        assert_eq!(server.metric(&format!("restante_smtp_refused_by_checks_total{{check=\"{check}\"}}")), 1);
        let result = if code == 550 { "refused" } else { "deferred" };
        let name = format!("restante_smtp_messages_total{{protocol=\"smtp\",result=\"{result}\"}}");
        assert_eq!(server.metric(&name), 1);
        // The connection continues.
        *checks.judgement.lock() = judgement(Verdict::Accept);
        assert!(client.mail(MESSAGE).await.starts_with("250"));
    }
}

#[tokio::test]
async fn chk13_the_quarantine_keeps_mail_durably_before_it_is_acknowledged() {
    let checks = FakeChecks::judging(Verdict::Quarantine("attachment: a.exe".to_owned()));
    let quarantine = Arc::new(FakeQuarantine::default());
    let parts_quarantine = quarantine.clone();
    let users = users(&checks, |parts| parts.quarantine = Some(parts_quarantine)).await;
    let mut client = users.smtp().await;
    for (kind, reply) in [(ErrorKind::Unavailable, "451 4.3.0"), (ErrorKind::Full, "452 4.3.1")] {
        *quarantine.failing.lock() = Some(kind);
        let answer = send(&mut client, &["anna@example.org"], MESSAGE).await;
        assert!(answer.starts_with(reply), "{answer}");
    }
    *quarantine.failing.lock() = None;
    let recipients = ["team@example.org", "anna@example.org", "away@example.org", "team@example.org"];
    let reply = send(&mut client, &recipients, MESSAGE).await;
    assert!(reply.starts_with("250 2.0.0 stored as "), "{reply}");
    {
        let kept = quarantine.kept.lock();
        let [(mail, about)] = kept.as_slice() else { panic!("one message: {kept:?}") };
        assert_eq!(about.recipients, ["team@example.org", "anna@example.org", "away@example.org"]);
        assert_eq!((about.sender.as_str(), about.reason.as_str()), ("s@example.com", "attachment: a.exe"));
        assert!(reply.ends_with(&about.id));
        assert_eq!(about.hello, "client.example.net");
        let raw = String::from_utf8(mail.raw.to_vec()).unwrap();
        assert!(raw.starts_with("Return-Path: <s@example.com>\r\nReceived: "), "{raw}");
        assert!(raw.ends_with("spf=pass\r\nFrom: a@example.net\r\n\r\ntext\r\n"), "{raw}");
        assert!(!mail.to_junk);
    }
    assert!(users.stored.mails.lock().is_empty());
    assert_eq!(users.sent.count(), 0, "nothing is forwarded before it is released");
    let entries = users.journal.0.lock().clone();
    let (failed, kept) = entries.split_at(2);
    assert!(failed.iter().all(|entry| matches!(&entry.outcome, Outcome::Refused(reply) if reply.code < 500)));
    assert!(!kept.is_empty());
    for entry in kept {
        assert_eq!(entry.outcome, Outcome::Quarantined("attachment: a.exe".into()));
    }
}

#[tokio::test]
async fn chk13_without_a_quarantine_such_mail_goes_to_junk() {
    let checks = FakeChecks::judging(Verdict::Quarantine("attachment: a.exe".to_owned()));
    let server = server(&checks).await;
    assert!(server.smtp().await.mail(MESSAGE).await.starts_with("250"));
    assert!(server.stored.mails.lock()[0].0.to_junk);
}

#[tokio::test]
async fn fwd4_junk_is_not_sent_to_other_servers() {
    let checks = FakeChecks::judging(Verdict::Junk("dmarc".to_owned()));
    let users = users(&checks, |_| {}).await;
    let mut client = users.smtp().await;
    // Nobody here gets it: the client is notified.
    let reply = send(&mut client, &["away@example.org"], MESSAGE).await;
    assert!(reply.starts_with("550 5.7.1"), "{reply}");
    assert!(users.stored.mails.lock().is_empty());
    // The recipient here finds it in Junk, and that is all.
    let reply = send(&mut client, &["team@example.org", "away@example.org"], MESSAGE).await;
    assert!(reply.starts_with("250"), "{reply}");
    assert_eq!(users.sent.count(), 0);
    assert!(users.stored.mails.lock()[0].0.to_junk);
    let entries = users.journal.0.lock().clone();
    let of = |recipient: &str, is_refused: bool| {
        let is_it = |entry: &&DeliveryEntry| {
            entry.recipient == recipient && matches!(entry.outcome, Outcome::Refused(_)) == is_refused
        };
        entries.iter().filter(is_it).count()
    };
    assert_eq!((of("team@example.org", false), of("team@example.org", true)), (1, 1));
    assert_eq!((of("away@example.org", false), of("away@example.org", true)), (0, 2));
    // What is not junk is forwarded with our results, from which the next server makes its seal.
    *checks.judgement.lock() = judgement(Verdict::Accept);
    let reply = send(&mut client, &["away@example.org"], "From: b@example.net\r\n\r\n.\r\n").await;
    assert!(reply.starts_with("250"), "{reply}");
    let (_, raw) = users.sent.only();
    assert!(raw.contains("\r\nAuthentication-Results: mail.example.org; spf=pass\r\n"), "{raw}");
}

#[tokio::test]
async fn chk8_what_is_refused_anyway_is_not_checked() {
    let checks = Arc::new(FakeChecks::new());
    let change = |parts: &mut Parts| parts.checks = Some(checks.clone());
    let server = Server::with_parts(None, |smtp, _| smtp.message_bytes_max = nonzero!(1_000), change).await;
    let mut client = server.smtp().await;
    assert!(client.mail("a: 1\n\r\n.\r\n").await.starts_with("550 5.5.2"));
    assert!(client.mail("x\r\n".repeat(1_000) + ".\r\n").await.starts_with("552 5.3.4"));
    assert!(client.mail("Received: a\r\n".repeat(60) + "\r\n.\r\n").await.starts_with("250"));
    let is_message = |asked: &String| asked.starts_with("message");
    assert_eq!(checks.take_asked().into_iter().filter(is_message).count(), 1);
}

/// A check that keeps a reference to a message does not change what is stored of it.
#[tokio::test]
async fn chk8_a_message_is_stored_as_it_came_whatever_checks_keep_of_it() {
    let checks = Arc::new(FakeChecks { kept: Mutex::new(Some(Bytes::new())), ..FakeChecks::new() });
    let server = server(&checks).await;
    let mut client = server.smtp().await;
    let body = "0123456789\r\n".repeat(5_000);
    assert!(client.mail(format!("a: 1\r\n\r\n{body}.\r\n")).await.starts_with("250"));
    let kept = checks.kept.lock().clone().unwrap();
    assert_eq!(kept, Bytes::from(format!("a: 1\r\n\r\n{body}")));
    assert!(server.last().ends_with(&format!("spf=pass\r\na: 1\r\n\r\n{body}")));
    until("all memory is given back", || server.metric("restante_smtp_memory_bytes") == 0).await;
}

/// The client disconnects while its message is checked: what is stored then is recognized when it is sent again.
#[tokio::test]
async fn chk8_a_client_that_goes_away_while_its_message_is_checked_loses_nothing() {
    let checks = Arc::new(FakeChecks { go_on: Semaphore::new(1), ..FakeChecks::new() });
    let server = server(&checks).await;
    let mut client = server.smtp().await;
    client.begin().await;
    client.dialogue(&[("DATA", "354")]).await;
    client.send(MESSAGE).await;
    until("it is checked", || checks.asked.lock().iter().any(|asked| asked.starts_with("message"))).await;
    drop(client);
    checks.go_on.add_permits(10);
    until("it is stored", || server.stored.mails.lock().len() == 1).await;
    assert!(server.smtp().await.mail(MESSAGE).await.starts_with("250"));
    assert_eq!(server.stored.mails.lock().len(), 1);
    assert_eq!(entries(&server).last().unwrap().outcome, Outcome::Repeated);
}
