//! Outgoing mail on this server: into the queue, and from the queue into accounts.

use std::sync::Arc;

use bytes::Bytes;
use restante_blobs::{Config, EngineUrl};
use restante_core::{ErrorKind, ManualClock, Timestamp};
use restante_mail::queue::{
    ListFilter, NewMessage, NewRecipient, Notify, Outgoing, Queue, Recipient, Return, Source, SourceKind,
    Transmission,
};
use restante_records::{AccountId, RecordId, Schema};
use restante_smtp::{DeliveryEntry, Forwards, LocalDelivery, Outbox, QueueOutbox, queued_id};

use crate::{
    support::Entries,
    users::{NOW, Rewritten, Users},
};

fn outgoing(sender: &str, bytes: &'static str) -> Outgoing {
    Outgoing {
        bytes: Bytes::from_static(bytes.as_bytes()),
        sender: sender.to_owned(),
        envelope_id: None,
        returned: None,
        transmission: Transmission::default(),
        source: SourceKind::Smtp,
        account: None,
        record: RecordId(0),
        key: [7; 32],
    }
}

fn recipient(address: &str) -> Recipient {
    Recipient { address: address.to_owned(), notify: Notify::default(), original: None }
}

fn local(users: &Users) -> LocalDelivery {
    LocalDelivery {
        recipients: Arc::new(users.directory.clone()),
        delivery: users.stored.clone(),
        forwards: Some(Forwards { outbox: users.sent.clone(), sender: Arc::new(Rewritten) }),
        clock: users.clock.clone(),
        quota_is_permanent: false,
        hostname: "mail.example.org".to_owned(),
        journal: None,
    }
}

/// The entries that were noted: recipient, account, Message-ID and outcome.
fn noted(entries: &Entries) -> Vec<String> {
    let entries = std::mem::take(&mut *entries.0.lock());
    let show = |entry: DeliveryEntry| {
        assert_eq!((entry.protocol, entry.peer), (None, None));
        assert_eq!(entry.id, queued_id(&[7; 32]));
        let address = entry.account.map_or("-".to_owned(), |(_, address)| address);
        let message_id = entry.message_id.unwrap_or_default();
        format!("{} {address} {message_id} {:?}", entry.recipient, entry.outcome)
    };
    entries.into_iter().map(show).collect()
}

#[tokio::test]
async fn sm13_what_the_door_queues_is_in_the_queue_with_its_bytes() {
    let records = restante_records::EngineUrl::Memory;
    let records = restante_records::Config::new(records, Schema::new(restante_mail::kinds()).unwrap());
    let records = restante_records::open(records).await.unwrap();
    let blobs = restante_blobs::open(Config::new(EngineUrl::Memory)).await.unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(NOW)));
    let queue = Queue::new(records.records.clone(), clock);
    let outbox = QueueOutbox::new(blobs.blobs.clone(), queue.clone());
    let blob = outbox.put(Bytes::from_static(b"From: a@b\r\n\r\n")).await.unwrap();
    let to = |address: &str| NewRecipient {
        address: address.to_owned(),
        notify: Notify::default(),
        original: None,
    };
    let message = NewMessage {
        source: Source {
            kind: SourceKind::Smtp,
            account: Some(AccountId(2_000)),
            record: RecordId(0),
            key: [1; 32],
        },
        blob,
        size: 13,
        sender: "anna@example.org".to_owned(),
        envelope_id: None,
        returned: None,
        transmission: Transmission::default(),
        due: NOW as u64,
        recipients: vec![to("x@example.net"), to("bob@example.org")],
    };
    for _ in 0..2 {
        outbox.queue(message.clone()).await.unwrap();
    }
    let page = queue.list(&ListFilter::default(), None, 10).await.unwrap();
    let mut addresses: Vec<&str> =
        page.recipients.iter().map(|queued| queued.recipient.address.as_str()).collect();
    addresses.sort_unstable();
    assert_eq!(addresses, ["bob@example.org", "x@example.net"]);
    assert_eq!(page.recipients[0].message.blob, blob);
    assert_eq!(blobs.blobs.size(blob).await.unwrap(), Some(13));
}

#[tokio::test]
async fn sm13_mail_to_addresses_of_this_server_is_placed_once() {
    let users = Users::start().await;
    let local = local(&users);
    assert!(local.is_local("example.org").await.unwrap());
    assert!(!local.is_local("example.net").await.unwrap());
    assert!(!local.is_local("[192.0.2.1]").await.unwrap());
    let message = outgoing("bob@example.org", "Received: x\r\nFrom: bob@example.org\r\n\r\ntext\r\n");
    for address in ["anna@example.org", "anna@example.org", "info@example.org"] {
        let (attempted, _) = local.deliver(&message, &recipient(address)).await;
        assert_eq!((attempted.reply.code, attempted.is_reported_further), (250, false));
    }
    {
        let mails = users.stored.mails.lock();
        assert_eq!((mails.len(), mails[0].1[0].account), (1, users.anna));
        let raw = String::from_utf8(mails[0].0.raw.to_vec()).unwrap();
        assert!(raw.starts_with("Return-Path: <bob@example.org>\r\nReceived: x\r\n"), "{raw}");
    }
    let code = async |address: &str| local.deliver(&message, &recipient(address)).await.0.reply.code;
    assert_eq!(code("nobody@example.org").await, 550);
    users.stored.failing.lock().insert("anna", Some(ErrorKind::Unavailable));
    assert_eq!(code("anna@example.org").await, 451);
    users.stored.failing.lock().insert("anna", None);
    assert_eq!(code("anna@example.org").await, 452, "the quota");
}

#[tokio::test]
async fn fwd1_mail_of_users_to_an_alias_is_forwarded_once() {
    let users = Users::start().await;
    let local = local(&users);
    let message = outgoing("bob@example.org", "From: bob@example.org\r\n\r\n");
    users.stored.failing.lock().insert("anna", Some(ErrorKind::Unavailable));
    assert_eq!(local.deliver(&message, &recipient("team@example.org")).await.0.reply.code, 451);
    assert_eq!(users.sent.count(), 0, "what is tried again has not been forwarded");
    users.stored.failing.lock().clear();
    for _ in 0..2 {
        assert_eq!(local.deliver(&message, &recipient("team@example.org")).await.0.reply.code, 250);
    }
    let (forwarded, raw) = users.sent.only();
    assert_eq!(forwarded.recipients[0].address, "team@example.net");
    assert!(raw.starts_with("Delivered-To: team@example.org\r\nFrom: "), "{raw}");
    let again =
        outgoing("bob@example.org", "Delivered-To: away@example.org\r\nFrom: bob@example.org\r\n\r\n");
    assert_eq!(local.deliver(&again, &recipient("away@example.org")).await.0.reply.code, 550);
}

/// NOTIFY, RET, ENVID and ORCPT were dropped: with NOTIFY=NEVER the sender got a report, and an alias with only outside targets
/// counted as an account.
#[tokio::test]
async fn fwd5_a_forward_keeps_what_its_sender_asked_of_reports() {
    let users = Users::start().await;
    let local = local(&users);
    let message = Outgoing {
        envelope_id: Some("env".to_owned()),
        returned: Some(Return::Headers),
        ..outgoing("bob@example.org", "From: bob@example.org\r\n\r\n")
    };
    let never = Notify { on_success: false, on_failure: false, on_delay: false };
    let all = Notify { on_success: true, on_failure: true, on_delay: true };
    let original = Some("rfc822;first@example.org".to_owned());
    for (address, notify, forwarded) in [
        ("team@example.org", never, never),
        // With only outside targets, of which there are two: this server reports that it was expanded.
        ("away@example.org", all, Notify { on_success: false, ..all }),
    ] {
        users.sent.messages.lock().clear();
        let to = Recipient { address: address.to_owned(), notify, original: original.clone() };
        let (attempted, _) = local.deliver(&message, &to).await;
        assert_eq!((attempted.is_forwarded, attempted.is_reported_further), (true, false), "{address}");
        assert_eq!(attempted.reply.text == "forwarded", address == "away@example.org");
        let queued = users.sent.messages.lock()[0].clone();
        assert_eq!((queued.envelope_id.as_deref(), queued.returned), (Some("env"), Some(Return::Headers)));
        for recipient in &queued.recipients {
            assert_eq!((recipient.notify, &recipient.original), (forwarded, &original));
        }
    }
    let (attempted, _) = local.deliver(&message, &recipient("anna@example.org")).await;
    assert!(!attempted.is_forwarded);
}

#[tokio::test]
async fn fwd2_reports_about_forwarded_mail_go_back_to_its_sender() {
    let users = Users::start().await;
    let local = local(&users);
    let report = outgoing("", "From: mailer-daemon@example.org\r\n\r\n");
    let back = recipient("srs-S=example.com@example.org");
    assert_eq!(local.deliver(&report, &back).await.0.reply.code, 250);
    let (message, _) = users.sent.only();
    assert_eq!((message.sender.as_str(), message.recipients[0].address.as_str()), ("", "S@example.com"));
    let other = outgoing("bob@example.org", "From: bob@example.org\r\n\r\n");
    assert_eq!(local.deliver(&other, &back).await.0.reply.code, 550);
}

#[tokio::test]
async fn jrn2_what_the_queue_places_is_noted_with_account_and_email() {
    let users = Users::start().await;
    let entries = Arc::new(Entries::default());
    let local = LocalDelivery { journal: Some(entries.clone()), ..local(&users) };
    let message = outgoing("bob@example.org", "Message-ID: <1@x>\r\nFrom: bob@example.org\r\n\r\n");
    let deliver = async |address: &str| {
        let address = recipient(address);
        local.deliver(&message, &address).await.0.reply.code
    };
    assert_eq!(deliver("anna@example.org").await, 250);
    let email = RecordId(u64::from(users.anna.0));
    assert_eq!(
        noted(&entries),
        [format!("anna@example.org anna@example.org 1@x {:?}", restante_smtp::Outcome::Stored(email))]
    );
    assert_eq!(deliver("anna@example.org").await, 250);
    assert_eq!(noted(&entries), ["anna@example.org anna@example.org 1@x Repeated"]);
    assert_eq!(deliver("team@example.org").await, 250);
    let found = noted(&entries);
    assert_eq!(found.last().map(String::as_str), Some("team@example.org - 1@x Queued"), "{found:?}");
    assert_eq!(deliver("nobody@example.org").await, 550);
    assert_eq!(noted(&entries), [""; 0], "the sender notes what it gives up");
}

#[tokio::test]
async fn dsn7_a_report_that_was_placed_before_a_crash_is_named_by_the_next_attempt() {
    let users = Users::start().await;
    let local = local(&users);
    let report = Outgoing {
        source: SourceKind::Report,
        record: RecordId(3),
        account: Some(users.anna),
        ..outgoing("", "From: mailer-daemon@example.org\r\n\r\n")
    };
    let to = recipient("anna@example.org");
    let (_, placed) = local.deliver(&report, &to).await;
    assert_eq!(placed.len(), 1);
    let (attempted, again) = local.deliver(&report, &to).await;
    assert_eq!((attempted.reply.code, again), (250, placed), "what was not noted is noted now");
    let other = Outgoing { source: SourceKind::Smtp, ..report };
    assert_eq!(local.deliver(&other, &to).await.1, []);
    assert_eq!(users.stored.mails.lock().len(), 1);
}

#[tokio::test]
async fn arc4_results_that_users_write_in_the_name_of_this_server_are_not_forwarded() {
    let users = Users::start().await;
    let message = outgoing(
        "bob@example.org",
        "Authentication-Results: mail.example.org; dkim=pass\r\n\theader.d=bank.example\r\nAUTHENTICATION-RESULTS : \
         MAIL.example.org 1; spf=pass\r\nAuthentication-Results: other.example; spf=none\r\nFrom: bob@example.org\r\n\r\nx\r\n",
    );
    local(&users).deliver(&message, &recipient("team@example.org")).await;
    let (_, raw) = users.sent.only();
    assert_eq!(
        raw,
        "Delivered-To: team@example.org\r\nAuthentication-Results: other.example; spf=none\r\n\
         From: bob@example.org\r\n\r\nx\r\n"
    );
}
