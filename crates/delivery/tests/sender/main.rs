//! The sender of the queue in paused time. Tests are named by the rules of `docs/design/mail-rules.md`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

mod dealing;
mod notes;
mod rate;
mod records;
mod smarthost;
mod world;

use std::sync::atomic::Ordering::SeqCst;

use restante_core::nonzero;
use restante_delivery::{DeliveryConfig, NoticeKind};
use restante_mail::queue::{ListFilter, Notify, QueuedState, Reply, Selection, SourceKind};
use restante_records::RecordId;
use tokio::time::sleep;
use world::*;

fn config() -> DeliveryConfig {
    DeliveryConfig::default()
}

#[tokio::test(start_paused = true)]
async fn out1_attempts_follow_the_list_with_some_jitter() {
    let config = DeliveryConfig { expire_seconds: nonzero!(30_000), ..config() };
    let waits = [300, 900, 1_800, 3_600, 7_200];
    let world = World::new(config).await;
    world.behave("b.example", Behavior { reply: reply(451, "4.3.0"), ..Behavior::default() });
    let addresses: Vec<String> = (0..20).map(|n| format!("{n}@b.example")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    world.add(1, &addresses).await;
    let running = world.run();
    sleep(seconds(20_000)).await;
    let mut first_waits = std::collections::BTreeSet::new();
    for address in &addresses {
        let attempts = world.attempts(address);
        assert!(attempts[0] <= 1, "the first at once: {attempts:?}");
        assert_eq!(attempts.len(), 6, "{attempts:?}");
        for (n, wait) in waits.iter().enumerate() {
            let waited = attempts[n + 1] - attempts[n];
            assert!((wait * 9 / 10..=wait * 11 / 10 + 2).contains(&waited), "attempt {n}: {waited}");
        }
        first_waits.insert(attempts[1] - attempts[0]);
    }
    assert!(first_waits.len() > 5, "{first_waits:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out1_the_last_time_of_the_list_is_repeated() {
    let config = DeliveryConfig {
        retry_seconds: vec![0, 100],
        expire_seconds: nonzero!(3_000),
        retry_jitter_percent: 0,
        delay_notice_seconds: 0,
        ..config()
    };
    let world = World::new(config).await;
    world.behave("b.example", Behavior { reply: reply(451, "4.3.0"), ..Behavior::default() });
    world.add(1, &["b@b.example"]).await;
    let running = world.run();
    sleep(seconds(1_000)).await;
    let attempts = world.attempts("b@b.example");
    assert!((9..=11).contains(&attempts.len()), "{attempts:?}");
    world.behave("b.example", Behavior::default());
    sleep(seconds(120)).await;
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out2_slow_and_dead_domains_delay_no_other() {
    let config =
        DeliveryConfig { connections_max: nonzero!(16), slow_connections_max: nonzero!(40), ..config() };
    let world = World::new(config).await;
    let running = world.run();
    world.add(240, &["a@known.example"]).await;
    sleep(seconds(5)).await;
    for n in 0..40 {
        let domain = format!("slow{n}.example");
        let down = (n % 2 == 0).then(|| reply(421, "4.4.1"));
        world.behave(&domain, Behavior { connecting: seconds(300), down, ..Behavior::default() });
        for key in 0..5 {
            world.add(n * 5 + key, &[&format!("a@{domain}"), &format!("b@{domain}")]).await;
        }
    }
    sleep(seconds(2)).await;
    // They have taken all places but those that are kept for domains that answer.
    let from = world.seconds();
    world.add(241, &["b@known.example"]).await;
    world.add(210, &["a@new.example"]).await;
    sleep(seconds(60)).await;
    let known = world.attempts("b@known.example");
    assert!(known[0] - from <= 1, "after {} s", known[0] - from);
    let new = world.attempts("a@new.example");
    assert!(new[0] - from <= 45, "the slow ones are found out in four times 10 s: after {} s", new[0] - from);
    // Once more, when it is known which are slow: all at once.
    sleep(seconds(400)).await;
    let from = world.seconds();
    world.add(242, &["c@known.example", "a@newer.example"]).await;
    sleep(seconds(30)).await;
    for address in ["c@known.example", "a@newer.example"] {
        let attempts = world.attempts(address);
        assert!(attempts[0] - from <= 1, "{address}: after {} s", attempts[0] - from);
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out2_much_mail_for_one_domain_delays_no_other() {
    let config = DeliveryConfig {
        connections_max: nonzero!(2),
        transactions_per_connection_max: nonzero!(5),
        ..config()
    };
    let world = World::new(config).await;
    world.behave("big.example", Behavior { sending: seconds(1), ..Behavior::default() });
    for key in 0..100 {
        let addresses: Vec<String> = (0..40).map(|n| format!("{n}@big.example")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        world.add(key, &addresses).await;
    }
    let running = world.run();
    sleep(seconds(2)).await;
    world.add(200, &["a@small.example"]).await;
    let from = world.seconds();
    sleep(seconds(20)).await;
    let attempts = world.attempts("a@small.example");
    assert!(attempts[0] - from <= 8, "after {} s", attempts[0] - from);
    sleep(seconds(600)).await;
    assert_eq!(world.queued().await, 0, "more than fits into memory for one domain is sent, too");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out2_a_domain_that_is_down_is_not_connected_to_for_each_recipient() {
    let world = World::new(config()).await;
    world.behave("down.example", Behavior { down: Some(reply(421, "4.4.1")), ..Behavior::default() });
    for key in 0..200 {
        world.add(key, &["a@down.example", "b@down.example", "c@down.example"]).await;
    }
    let running = world.run();
    sleep(seconds(50)).await;
    let connects = world.log.connects.lock().len();
    assert!((1..=2).contains(&connects), "{connects} connections");
    let mut listed = 0;
    let mut after = None;
    loop {
        let page = world.queue.list(&ListFilter::default(), after.as_ref(), 1_000).await.unwrap();
        for recipient in &page.recipients {
            assert_eq!(recipient.attempts, 1);
            assert_eq!(recipient.last.as_ref().unwrap().reply.code, 421);
            assert!(recipient.due > START + 200);
            listed += 1;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(listed, 600);
    world.behave("down.example", Behavior::default());
    sleep(seconds(400)).await;
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out3_a_recipient_expires_and_a_delay_that_was_asked_for_does_not_count() {
    let config = DeliveryConfig { expire_seconds: nonzero!(20_000), delay_notice_seconds: 0, ..config() };
    let world = World::new(config).await;
    world.behave("b.example", Behavior { reply: reply(451, "4.3.0"), ..Behavior::default() });
    let mut new = message(1, &["b@b.example"]);
    new.due = START + 30_000;
    world.queue.add(new).await.unwrap();
    let running = world.run();
    sleep(seconds(29_990)).await;
    assert!(world.attempts("b@b.example").is_empty(), "not before its time");
    sleep(seconds(19_900)).await;
    assert_eq!(world.notices().len(), 0);
    assert!(world.attempts("b@b.example").len() > 3);
    sleep(seconds(300)).await;
    let notices = world.notices();
    assert_eq!(notices.len(), 1);
    let reported = &notices[0].recipients[0];
    assert_eq!((notices[0].kind, reported.reply.enhanced.as_str()), (NoticeKind::Failed, "4.3.0"));
    assert_eq!(reported.expired.as_deref(), Some("delivery was tried for 5 hours"));
    let last = *world.attempts("b@b.example").last().unwrap();
    assert!((50_000..50_010).contains(&last), "the last attempt is made when it expires: {last}");
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out4_one_connection_takes_all_that_is_due_for_a_domain() {
    let world = World::new(config()).await;
    for key in 0..30 {
        world.add(key, &["a@b.example", "c@b.example", "d@other.example"]).await;
    }
    let running = world.run();
    sleep(seconds(5)).await;
    let sent = world.sent();
    let of_domain: Vec<&Sent> = sent.iter().filter(|sent| sent.domain == "b.example").collect();
    assert_eq!(of_domain.len(), 30, "a transaction for each message");
    assert!(of_domain.iter().all(|sent| sent.recipients.len() == 2));
    let connections: std::collections::BTreeSet<usize> =
        of_domain.iter().map(|sent| sent.connection).collect();
    assert!(connections.len() <= 2, "{connections:?}");
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out4_a_transaction_has_100_recipients_and_a_domain_two_connections() {
    let world = World::new(config()).await;
    world.behave("b.example", Behavior { sending: seconds(1), ..Behavior::default() });
    let addresses: Vec<String> = (0..950).map(|n| format!("{n}@b.example")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    world.add(1, &addresses).await;
    let running = world.run();
    sleep(seconds(60)).await;
    let sent = world.sent();
    assert!(sent.iter().all(|sent| sent.recipients.len() <= 100));
    assert!(sent.len() <= 12, "{}", sent.len());
    assert_eq!(sent.iter().map(|sent| sent.recipients.len()).sum::<usize>(), 950);
    assert_eq!(world.log.open_max.lock()["b.example"], 2);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out4_a_connection_that_the_other_side_closes_is_made_again() {
    let world = World::new(config()).await;
    world.behave("b.example", Behavior { messages_max: 3, ..Behavior::default() });
    for key in 0..20 {
        world.add(key, &["a@b.example"]).await;
    }
    let running = world.run();
    sleep(seconds(10)).await;
    assert_eq!(world.sent().len(), 20);
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out5_a_canceled_submission_is_not_sent_and_outcomes_are_reported() {
    let world = World::new(config()).await;
    world.log.canceled.lock().insert(8);
    world.behave("bad.example", Behavior { reply: reply(550, "5.1.1"), ..Behavior::default() });
    for submission in [7, 8] {
        let mut new =
            message(submission, &["a@b.example", "alias@here.example", "b@bad.example", "c@here.example"]);
        new.source.kind = SourceKind::Submission;
        new.source.record = RecordId(submission.into());
        world.queue.add(new).await.unwrap();
    }
    let running = world.run();
    sleep(seconds(5)).await;
    assert!(world.sent().iter().all(|sent| sent.key == 7));
    let mut reports = world.log.reports.lock().clone();
    reports.sort();
    let expected = [
        (7, "a@b.example".to_owned(), 250, false),
        // An account has it, and its copy for another server is in the queue: it was shown as delivered.
        (7, "alias@here.example".to_owned(), 250, false),
        (7, "b@bad.example".to_owned(), 550, false),
        (7, "c@here.example".to_owned(), 250, true),
    ];
    assert_eq!(reports, expected);
    assert_eq!(world.queued().await, 0);
    let local: Vec<u8> = world.log.local.lock().iter().map(|sent| sent.key).collect();
    assert!(!local.contains(&8));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out5_several_senders_send_each_mail_once() {
    let world = World::new(config()).await;
    let running = [world.run(), world.run_on(world.second()), world.run_on(world.second())];
    for key in 0..100 {
        world.add(key, &["a@b.example", "b@here.example"]).await;
    }
    sleep(seconds(30)).await;
    assert_eq!(world.attempts("a@b.example").len(), 100);
    assert_eq!(world.log.local.lock().len(), 100);
    for running in running {
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn out5_what_takes_longer_than_a_lease_is_sent_once() {
    let config = DeliveryConfig { lease_seconds: nonzero!(30), ..config() };
    let world = World::new(config).await;
    world.behave("b.example", Behavior { sending: seconds(500), ..Behavior::default() });
    let running = [world.run(), world.run_on(world.second())];
    world.add(1, &["a@b.example"]).await;
    sleep(seconds(1_200)).await;
    assert_eq!(world.attempts("a@b.example").len(), 1);
    assert_eq!(world.queued().await, 0);
    for running in running {
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn out5_a_sender_that_stops_returns_what_it_has_not_tried() {
    let world = World::new(config()).await;
    world.behave("b.example", Behavior { sending: seconds(5), ..Behavior::default() });
    for key in 0..10 {
        world.add(key, &["a@b.example"]).await;
    }
    let running = world.run();
    sleep(seconds(7)).await;
    running.stop().await;
    let sent = world.sent().len();
    assert!(sent < 10);
    let page = world.queue.list(&ListFilter::default(), None, 100).await.unwrap();
    assert_eq!(page.recipients.len(), 10 - sent);
    assert!(page.recipients.iter().all(|recipient| recipient.attempts == 0 && !recipient.is_leased));
}

#[tokio::test(start_paused = true)]
async fn dsn1_failures_delays_and_deliveries_are_reported_as_notify_says() {
    let config = DeliveryConfig { expire_seconds: nonzero!(40_000), ..config() };
    let world = World::new(config).await;
    world.behave("bad.example", Behavior { reply: reply(550, "5.1.1"), ..Behavior::default() });
    world.behave("late.example", Behavior { reply: reply(451, "4.3.0"), ..Behavior::default() });
    world.behave("further.example", Behavior { is_reported_further: true, ..Behavior::default() });
    let mut new = message(1, &[]);
    new.envelope_id = Some("env".to_owned());
    for domain in ["bad.example", "late.example", "good.example", "further.example", "here.example"] {
        for (name, notify) in [
            ("default", Notify::default()),
            ("never", Notify { on_success: false, on_failure: false, on_delay: false }),
            ("success", Notify { on_success: true, on_failure: false, on_delay: false }),
        ] {
            let address = format!("{name}@{domain}");
            let original = Some(format!("rfc822;{address}"));
            new.recipients.push(restante_mail::queue::NewRecipient { address, notify, original });
        }
    }
    let on_success = Notify { on_success: true, on_failure: false, on_delay: false };
    new.recipients.push(restante_mail::queue::NewRecipient {
        address: "alias@here.example".to_owned(),
        notify: on_success,
        original: Some("rfc822;alias@here.example".to_owned()),
    });
    world.queue.add(new).await.unwrap();
    let running = world.run();
    sleep(seconds(35_000)).await;
    let mut reported: Vec<(String, String)> = Vec::new();
    for notice in world.notices() {
        assert_eq!(
            (notice.sender.as_str(), notice.envelope_id.as_deref()),
            ("anna@here.example", Some("env"))
        );
        for recipient in notice.recipients {
            assert_eq!(recipient.original.unwrap(), format!("rfc822;{}", recipient.address));
            assert_eq!(recipient.will_retry_until.is_some(), notice.kind == NoticeKind::Delayed);
            reported.push((recipient.address, format!("{:?}", notice.kind)));
        }
    }
    reported.sort();
    let expected = [
        ("alias@here.example", "Expanded"),
        ("default@bad.example", "Failed"),
        ("default@late.example", "Delayed"),
        ("success@good.example", "Delivered { is_local: false }"),
        ("success@here.example", "Delivered { is_local: true }"),
    ];
    let expected = expected.map(|(address, kind)| (address.to_owned(), kind.to_owned()));
    assert_eq!(reported, expected, "each once, the delay too");
    // The reports reached the sender, who is of this server.
    let local = world.log.local.lock().clone();
    let reports = local.iter().filter(|sent| sent.recipients == ["anna@here.example"]).count();
    assert_eq!(reports, world.notices().len());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dsn1_recipients_that_fail_together_are_one_report() {
    let world = World::new(config()).await;
    world.behave("bad.example", Behavior { reply: reply(550, "5.1.1"), ..Behavior::default() });
    world.behave("null.example", Behavior { down: Some(reply(556, "5.1.10")), ..Behavior::default() });
    world.add(1, &["a@bad.example", "b@bad.example", "c@null.example"]).await;
    let running = world.run();
    sleep(seconds(5)).await;
    let mut reported: Vec<Vec<String>> = world
        .notices()
        .into_iter()
        .map(|notice| notice.recipients.into_iter().map(|recipient| recipient.address).collect())
        .collect();
    reported.sort();
    assert_eq!(
        reported,
        [vec!["a@bad.example".to_owned(), "b@bad.example".to_owned()], vec!["c@null.example".to_owned()]]
    );
    assert!(world.notices().iter().all(|notice| !notice.original.is_empty()), "they return the message");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dsn2_nothing_is_reported_about_mail_without_a_sender() {
    let world = World::new(config()).await;
    world.behave("bad.example", Behavior { reply: reply(550, "5.1.1"), ..Behavior::default() });
    let mut new = message(1, &["a@bad.example"]);
    new.sender = String::new();
    world.queue.add(new).await.unwrap();
    // A report that fails itself: to a sender that does not exist.
    let mut new = message(2, &["a@bad.example"]);
    new.sender = "nobody@bad.example".to_owned();
    world.queue.add(new).await.unwrap();
    let running = world.run();
    sleep(seconds(30)).await;
    assert_eq!(world.notices().len(), 1);
    assert_eq!(world.attempts("nobody@bad.example").len(), 1);
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dsn3_a_failure_whose_report_can_not_be_stored_is_not_noted() {
    let world = World::new(config()).await;
    world.behave("bad.example", Behavior { reply: reply(550, "5.1.1"), ..Behavior::default() });
    world.log.is_blob_store_full.store(true, SeqCst);
    let ids = world.add(1, &["a@bad.example"]).await;
    let running = world.run();
    sleep(seconds(150)).await;
    assert!(world.queue.get(ids[0]).await.unwrap().is_some(), "nothing is lost in silence");
    assert_eq!(world.log.local.lock().len(), 0);
    world.log.is_blob_store_full.store(false, SeqCst);
    sleep(seconds(300)).await;
    assert_eq!(world.queued().await, 0);
    assert_eq!(world.log.local.lock().len(), 1, "the report came");
    running.stop().await;
}

/// The server that refuses was asked each minute, for as long as the report could not be stored.
#[tokio::test(start_paused = true)]
async fn dsn3_a_failure_whose_report_can_not_be_stored_is_found_out_less_and_less_often() {
    let world = World::new(config()).await;
    world.behave("bad.example", Behavior { reply: reply(550, "5.1.1"), ..Behavior::default() });
    world.log.is_blob_store_full.store(true, SeqCst);
    world.add(1, &["a@bad.example"]).await;
    let running = world.run();
    sleep(seconds(20_000)).await;
    let attempts = world.attempts("a@bad.example");
    assert!((6..=10).contains(&attempts.len()), "{attempts:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dsn3_a_delivery_is_noted_even_when_its_report_can_not_be_stored() {
    let world = World::new(config()).await;
    world.log.is_blob_store_full.store(true, SeqCst);
    let mut new = message(1, &["a@good.example"]);
    new.recipients[0].notify.on_success = true;
    world.queue.add(new).await.unwrap();
    let running = world.run();
    sleep(seconds(300)).await;
    assert_eq!(world.attempts("a@good.example").len(), 1, "it is not sent twice for its report");
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn qu7_a_sender_of_a_held_queue_sends_nothing() {
    let world = World::new(config()).await;
    let restored = world.queue.clone().restored(1);
    world.add(1, &["a@b.example"]).await;
    let running = world.run_on(restored.clone());
    sleep(seconds(100)).await;
    assert_eq!(world.sent().len(), 0);
    assert!(running.health.is_held());
    restored.release_all().await.unwrap();
    sleep(seconds(5)).await;
    assert_eq!(world.sent().len(), 1);
    // It sent for some seconds more.
    restored.hold_all("a test").await.unwrap();
    world.add(2, &["a@b.example"]).await;
    sleep(seconds(10)).await;
    assert_eq!(world.sent().len(), 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn qu8_messages_that_can_not_be_prepared_or_panic_are_held_and_harm_no_other() {
    let world = World::new(config()).await;
    world.log.broken.lock().insert(1);
    world.log.panicking.lock().insert(2);
    for key in 1..=3 {
        world.add(key, &["a@b.example", "b@here.example"]).await;
    }
    let running = world.run();
    sleep(seconds(1_000)).await;
    assert_eq!(world.sent().iter().map(|sent| sent.key).collect::<Vec<_>>(), [3]);
    let held = ListFilter { state: Some(QueuedState::Held), ..ListFilter::default() };
    let page = world.queue.list(&held, None, 100).await.unwrap();
    assert_eq!(page.recipients.len(), 4);
    assert!(page.recipients.iter().all(|recipient| recipient.faults == 3 && recipient.reason.is_some()));
    world.log.broken.lock().clear();
    world.log.panicking.lock().clear();
    assert_eq!(world.queue.release(&Selection::Matching(held)).await.unwrap(), 4);
    sleep(seconds(30)).await;
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn qu8_a_message_that_can_not_be_read_now_is_tried_less_and_less_often() {
    let world = World::new(config()).await;
    world.log.is_unreadable.store(true, SeqCst);
    let ids = world.add(1, &["a@b.example"]).await;
    let running = world.run();
    sleep(seconds(20_000)).await;
    let prepared = world.log.prepared.lock().clone();
    assert!((6..=10).contains(&prepared.len()), "{prepared:?}");
    assert!((55..=70).contains(&(prepared[1] - prepared[0])), "at first after a minute: {prepared:?}");
    let recipient = world.queue.get(ids[0]).await.unwrap().unwrap();
    assert_eq!(recipient.attempts, 0);
    world.log.is_unreadable.store(false, SeqCst);
    sleep(seconds(3_600)).await;
    assert_eq!(world.queued().await, 0, "an hour at most");
    running.stop().await;
}

/// Each of 500 workers could have a message of 70 MB in memory.
#[tokio::test(start_paused = true)]
async fn out4_messages_in_memory_have_a_bound() {
    let config = DeliveryConfig { memory_bytes_max: nonzero!(1_000_000), ..config() };
    let world = World::new(config).await;
    for key in 0..20 {
        let domain = format!("d{key}.example");
        world.behave(&domain, Behavior { sending: seconds(3), ..Behavior::default() });
        let mut new = message(key, &[&format!("a@{domain}")]);
        new.size = 450_000;
        world.queue.add(new).await.unwrap();
    }
    let running = world.run();
    sleep(seconds(60)).await;
    assert_eq!((world.sent().len(), world.log.sending_max.swap(0, SeqCst)), (20, 2));
    // Larger than all of it.
    for key in [100, 101] {
        let mut new = message(key, &[&format!("a@d{}.example", key - 100)]);
        new.size = 70_000_000;
        world.queue.add(new).await.unwrap();
    }
    sleep(seconds(60)).await;
    assert_eq!((world.sent().len(), world.log.sending_max.load(SeqCst)), (22, 1));
    running.stop().await;
}

/// It was tried three times without a pause, and then `deliveryStatus` said `queued` for ever.
#[tokio::test(start_paused = true)]
async fn out5_the_delivery_status_is_noted_after_a_failure_of_some_seconds() {
    let world = World::new(config()).await;
    world.log.report_failures.store(10, SeqCst);
    let mut new = message(7, &["a@b.example", "b@b.example"]);
    new.source.kind = SourceKind::Submission;
    new.source.record = RecordId(7);
    world.queue.add(new).await.unwrap();
    let running = world.run();
    sleep(seconds(60)).await;
    let reports = world.log.reports.lock().clone();
    let expected = ["a@b.example", "b@b.example"].map(|address| (7, address.to_owned(), 250, false));
    assert_eq!(reports, expected);
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}

/// With several servers and no broker all of them connected to each domain, and all but one for nothing.
#[tokio::test(start_paused = true)]
async fn out5_only_the_server_that_claims_a_recipient_connects() {
    let world = World::new(config()).await;
    world.behave("b.example", Behavior { connecting: seconds(20), ..Behavior::default() });
    let running = [world.run(), world.run_on(world.second()), world.run_on(world.second())];
    world.add(1, &["a@b.example"]).await;
    sleep(seconds(60)).await;
    assert_eq!(world.attempts("a@b.example").len(), 1);
    assert_eq!(world.log.connections.load(SeqCst), 1);
    for running in running {
        running.stop().await;
    }
}

/// After two days in which the queue was held the first refusal for now returned the mail.
#[tokio::test(start_paused = true)]
async fn out3_time_in_which_the_queue_is_held_does_not_count() {
    let config = DeliveryConfig { expire_seconds: nonzero!(20_000), delay_notice_seconds: 0, ..config() };
    let world = World::new(config).await;
    world.behave("b.example", Behavior { reply: reply(451, "4.3.0"), ..Behavior::default() });
    world.add(1, &["a@b.example"]).await;
    let running = world.run();
    sleep(seconds(100)).await;
    world.queue.hold_all("a test").await.unwrap();
    sleep(seconds(30_000)).await;
    world.queue.release_all().await.unwrap();
    sleep(seconds(10_000)).await;
    assert_eq!(world.notices().len(), 0);
    assert!(world.attempts("a@b.example").len() > 3);
    sleep(seconds(15_000)).await;
    assert_eq!(world.notices().len(), 1, "it expires when it was tried for long enough");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_does_not_get_on_is_reported() {
    let config = DeliveryConfig { stuck_seconds: nonzero!(600), ..config() };
    let world = World::new(config).await;
    world.behave("b.example", Behavior { sending: seconds(1_000_000), ..Behavior::default() });
    world.behave("c.example", Behavior { reply: Reply::own(451, "4.0.0", "later"), ..Behavior::default() });
    let running = world.run();
    sleep(seconds(5)).await;
    assert_eq!(running.health.problem(world.queue.now()), None);
    world.add(1, &["a@c.example"]).await;
    sleep(seconds(2_000)).await;
    assert_eq!(running.health.problem(world.queue.now()), None, "what is retried is no problem");
    assert!(running.health.problem(world.queue.now() + 1_000).unwrap().contains("no progress"));
    let health = running.health.clone();
    running.stop().await;
    assert!(health.problem(world.queue.now()).unwrap().contains("does not run"));
}
