use restante_core::ErrorKind;

use super::*;
use crate::place::THREAD_EMAILS_MAX;

#[tokio::test]
async fn a_delivery_is_unread_in_the_inbox_and_counted() {
    let server = Server::new().await;
    let id = server.deliver(message(1, &[])).await;
    let inbox = server.mailbox(Role::Inbox).await;
    let counters = (inbox.total, inbox.unread, inbox.threads, inbox.unread_threads, inbox.bytes);
    assert_eq!(counters, (1, 1, 1, 1, 101));
    let state = server.state(id).await;
    assert_eq!((state.mailboxes, state.received, state.size), (vec![inbox.id], START as u64, 101));
    let record = server.record(id).await.unwrap();
    assert_eq!((record.body.bytes, record.body.blobs), (message(1, &[]).row, vec![message(1, &[]).blob]));
    let usage = server.mail.usage(ACCOUNT).await.unwrap();
    assert_eq!((usage.bytes, usage.emails, usage.delivered), (101, 1, record.created));
    server.assert_sound().await;
}

#[tokio::test]
async fn what_a_filter_calls_junk_goes_to_the_junk_mailbox_with_the_keyword() {
    let server = Server::new().await;
    let delivery = Delivery { to_junk: true, ..delivery(message(1, &[])) };
    let Delivered::New(id) = server.mail.deliver(ACCOUNT, delivery).await.unwrap() else { panic!() };
    let junk = server.mailbox(Role::Junk).await;
    assert_eq!(server.state(id).await.mailboxes, [junk.id]);
    assert_eq!(server.keywords(id).await, ["$junk"]);
}

#[tokio::test]
async fn a_delivery_that_is_repeated_is_stored_once_also_after_it_was_destroyed() {
    let server = Server::new().await;
    let id = server.deliver(message(1, &[])).await;
    let again = || server.mail.deliver(ACCOUNT, delivery(message(1, &[])));
    assert_eq!(again().await.unwrap(), Delivered::Repeated);
    let key = delivery(message(1, &[])).key;
    assert_eq!(server.mail.delivered_before(ACCOUNT, &key).await.unwrap(), Some(id));
    assert_eq!(server.mail.delivered_before(ACCOUNT, &[9; 32]).await.unwrap(), None);
    server.mail.destroy_email(ACCOUNT, id, None).await.unwrap();
    assert_eq!(again().await.unwrap(), Delivered::Repeated);
    assert_eq!(server.mail.delivered_before(ACCOUNT, &key).await.unwrap(), None);
    let other = Delivery { key: [9; 32], ..delivery(message(1, &[])) };
    assert!(matches!(server.mail.deliver(ACCOUNT, other).await.unwrap(), Delivered::New(_)));
    server.pass(5 * 24 * 3_600 + 1);
    assert!(matches!(again().await.unwrap(), Delivered::New(_)));
    server.assert_sound().await;
}

#[tokio::test]
async fn a_delivery_that_comes_twice_at_once_is_stored_once() {
    let server = Server::new().await;
    let second = server.second().await;
    let handles = [&server.mail, &second, &server.mail, &second];
    let deliveries = handles.map(|mail| {
        let mail = mail.clone();
        tokio::spawn(async move { mail.deliver(ACCOUNT, delivery(message(1, &[]))).await.unwrap() })
    });
    let mut new = 0;
    for delivery in deliveries {
        new += usize::from(delivery.await.unwrap() != Delivered::Repeated);
    }
    assert_eq!((new, server.mailbox(Role::Inbox).await.total), (1, 1));
}

#[tokio::test]
async fn a_delivery_is_committed_when_its_blob_is_durable_and_not_before() {
    let server = Server::new().await;
    server.mail.prepare(ACCOUNT).await.unwrap();
    let before = server.opened.records.states(ACCOUNT).await.unwrap();
    let (keeper, blob) = Gate::new();
    let mail = server.mail.clone();
    let delivered =
        tokio::spawn(async move { mail.deliver_when_put(ACCOUNT, delivery(message(1, &[])), blob).await });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.opened.records.states(ACCOUNT).await.unwrap(), before);
    assert!(!delivered.is_finished());
    keeper.open();
    let Delivered::New(id) = delivered.await.unwrap().unwrap() else { panic!("it is new") };
    assert_eq!(server.record(id).await.unwrap().body.blobs, [message(1, &[]).blob]);
    server.assert_sound().await;
}

#[tokio::test]
async fn a_delivery_whose_blob_is_not_stored_fails_alone_and_can_be_repeated() {
    let server = Server::new().await;
    server.mail.prepare(ACCOUNT).await.unwrap();
    for number in [10, 11] {
        let (keeper, blob) = Gate::new();
        let (gone, fails) = (blob.clone(), delivery(message(number, &[])));
        let failing = server.mail.deliver_when_put(ACCOUNT, fails.clone(), blob);
        // Planned in the same commit, before and after it.
        let beside = [number + 10, number + 20].map(|number| delivery(message(number, &[])));
        let [first, last] = beside.map(|delivery| server.mail.deliver(ACCOUNT, delivery));
        let end = async {
            tokio::task::yield_now().await;
            keeper.fail(Error::full("no space"));
        };
        let (first, failed, last, ()) = tokio::join!(first, failing, last, end);
        let Err(MailError::Store(error)) = failed else { panic!("it was not stored") };
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(matches!((first, last), (Ok(Delivered::New(_)), Ok(Delivered::New(_)))));
        assert!(gone.failure().is_some());
        assert!(matches!(server.mail.deliver(ACCOUNT, fails).await, Ok(Delivered::New(_))));
    }
    server.assert_sound().await;
    assert_eq!(server.mailbox(Role::Inbox).await.total, 6);
}

#[tokio::test]
async fn es3_over_quota_is_refused_in_the_same_commit_as_the_bytes_are_counted() {
    let server = Server::new().await;
    let deliver = |number, quota| {
        let delivery = Delivery { quota: Some(quota), ..delivery(message(number, &[])) };
        let mail = server.mail.clone();
        tokio::spawn(async move { mail.deliver(ACCOUNT, delivery).await })
    };
    // 100 + 7 bytes each: sizes are 100 + number % 7.
    let both = [deliver(7, 150), deliver(14, 150)];
    let mut refused = 0;
    for delivery in both {
        refused += usize::from(matches!(delivery.await.unwrap(), Err(MailError::OverQuota)));
    }
    assert_eq!(refused, 1);
    assert!(deliver(21, 200).await.unwrap().is_ok(), "the quota itself can be used");
    let inbox = server.mailbox(Role::Inbox).await.id;
    let email = NewEmail { quota: Some(200), ..new_email(&[inbox], &[], message(28, &[])) };
    assert!(matches!(server.mail.create_email(ACCOUNT, email).await, Err(MailError::OverQuota)));
    assert_eq!(server.mail.usage(ACCOUNT).await.unwrap().bytes, 200);
}

#[tokio::test]
async fn an_email_joins_the_thread_of_the_oldest_one_that_shares_a_key() {
    let server = Server::new().await;
    let first = server.deliver(message(1, &[1])).await;
    let other = server.deliver(message(2, &[2])).await;
    let reply = server.deliver(message(3, &[3, 2, 1])).await;
    let threads = [
        server.state(first).await.thread,
        server.state(other).await.thread,
        server.state(reply).await.thread,
    ];
    assert_eq!(threads[2], threads[0]);
    assert_ne!(threads[1], threads[0], "threads are never merged");
    let alone = [server.deliver(message(4, &[])).await, server.deliver(message(5, &[])).await];
    assert_ne!(server.state(alone[0]).await.thread, server.state(alone[1]).await.thread);
    let inbox = server.mailbox(Role::Inbox).await;
    assert_eq!((inbox.threads, inbox.unread_threads), (4, 4));
}

/// A reply that comes first is found by the key of what it refers to.
#[tokio::test]
async fn a_reply_that_comes_first_is_in_the_thread_of_what_it_replies_to() {
    let server = Server::new().await;
    let reply = server.deliver(message(1, &[2, 1])).await;
    let original = server.deliver(message(2, &[1])).await;
    assert_eq!(server.state(reply).await.thread, server.state(original).await.thread);
}

#[tokio::test]
async fn emails_of_one_commit_join_each_other_and_not_what_the_commit_destroys() {
    let server = Server::new().await;
    let gone = server.deliver(message(1, &[1])).await;
    let old = server.state(gone).await.thread;
    let (destroyed, first, second) = tokio::join!(
        server.mail.destroy_email(ACCOUNT, gone, None),
        server.deliver(message(2, &[1])),
        server.deliver(message(3, &[1])),
    );
    let first_record = server.record(first).await.unwrap();
    assert_eq!(destroyed.unwrap().new, first_record.created, "they shared the commit");
    let thread = server.state(first).await.thread;
    assert_eq!(server.state(second).await.thread, thread);
    assert_ne!(thread, old);
    server.assert_sound().await;
}

#[tokio::test]
async fn a_thread_ends_at_500_emails_and_the_next_one_begins() {
    let server = Server::new().await;
    let mut threads = Vec::new();
    for number in 0..THREAD_EMAILS_MAX as u64 + 20 {
        let id = server.deliver(message(number, &[1])).await;
        threads.push(server.state(id).await.thread);
    }
    let (full, next) = threads.split_at(THREAD_EMAILS_MAX);
    assert!(full.iter().all(|thread| *thread == full[0]));
    assert!(next.iter().all(|thread| *thread == next[0]) && next[0] != full[0]);
    assert_eq!(server.mailbox(Role::Inbox).await.threads, 2);
    server.assert_sound().await;
}

#[tokio::test]
async fn uids_rise_and_are_not_used_again() {
    let server = Server::new().await;
    let first = server.deliver(message(1, &[])).await;
    let second = server.deliver(message(2, &[])).await;
    let inbox = server.mailbox(Role::Inbox).await;
    assert_eq!(server.state(first).await.places, [inbox.id.0 << 32 | 1]);
    assert_eq!(server.state(second).await.places, [inbox.id.0 << 32 | 2]);
    server.mail.destroy_email(ACCOUNT, second, None).await.unwrap();
    let after = server.mailbox(Role::Inbox).await;
    assert_eq!(after.expunged, after.modseq);
    assert!(after.expunged > inbox.modseq && inbox.expunged.0 == 0);
    let third = server.deliver(message(3, &[])).await;
    assert_eq!(server.state(third).await.places, [inbox.id.0 << 32 | 3]);
    let validities: std::collections::BTreeSet<u64> =
        server.mailboxes().await.iter().map(|mailbox| mailbox.uid_validity).collect();
    assert_eq!(validities.len(), 6);
    assert!(validities.first().unwrap() >= &(START as u64));
}

#[tokio::test]
async fn deliveries_that_wait_share_a_commit() {
    let server = Server::new().await;
    server.mail.prepare(ACCOUNT).await.unwrap();
    let before = server.opened.records.states(ACCOUNT).await.unwrap().revision;
    let deliveries = (0..64).map(|number| {
        let mail = server.mail.clone();
        tokio::spawn(async move { mail.deliver(ACCOUNT, delivery(message(number, &[number % 9]))).await })
    });
    for delivery in deliveries.collect::<Vec<_>>() {
        assert!(matches!(delivery.await.unwrap().unwrap(), Delivered::New(_)));
    }
    let after = server.opened.records.states(ACCOUNT).await.unwrap().revision;
    assert!(after.0 - before.0 < 8, "{} commits", after.0 - before.0);
    server.assert_sound().await;
}

/// One edit that the records refuse must not fail those that wait with it.
#[tokio::test]
async fn an_edit_that_no_store_takes_fails_alone() {
    let server = Server::new().await;
    server.mail.prepare(ACCOUNT).await.unwrap();
    let mut long = message(1, &[]);
    long.row = Bytes::from(vec![0; restante_records::BODY_BYTES_MAX + 1]);
    let (before, refused, after) = tokio::join!(
        server.mail.deliver(ACCOUNT, delivery(message(2, &[]))),
        server.mail.deliver(ACCOUNT, delivery(long)),
        server.mail.deliver(ACCOUNT, delivery(message(3, &[]))),
    );
    assert!(before.is_ok() && after.is_ok());
    assert!(
        matches!(refused, Err(MailError::Store(error)) if error.kind() == restante_core::ErrorKind::Invalid)
    );
    assert_eq!(server.mailbox(Role::Inbox).await.total, 2);
}

#[tokio::test]
async fn callers_that_stop_waiting_disturb_no_others() {
    let server = Server::new().await;
    let deliveries = (0..40).map(|number| {
        let mail = server.mail.clone();
        tokio::spawn(async move { mail.deliver(ACCOUNT, delivery(message(number, &[number % 3]))).await })
    });
    let deliveries: Vec<_> = deliveries.collect();
    for (number, delivery) in deliveries.into_iter().enumerate() {
        if number % 2 == 0 {
            delivery.abort();
        } else {
            assert!(delivery.await.unwrap().is_ok());
        }
    }
    assert!(server.mailbox(Role::Inbox).await.total >= 20);
    server.assert_sound().await;
}
