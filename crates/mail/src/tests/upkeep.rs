use restante_core::nonzero;
use restante_records::{Change, Commit, Properties, Value};

use super::*;

#[tokio::test]
async fn a_destroyed_email_is_listed_and_restored_as_it_was() {
    let server = Server::new().await;
    let archive = server.mailbox(Role::Archive).await.id;
    let first = server.create(&[archive], &["$flagged", "work"], message(1, &[1, 2])).await;
    server.pass(60);
    server.mail.destroy_email(ACCOUNT, first.id, None).await.unwrap();
    let entry = server.mail.vault(ACCOUNT, None, 10).await.unwrap().entries.remove(0);
    assert_eq!((entry.email, entry.size, entry.blob), (first.id, 101, Some(message(1, &[]).blob)));
    assert_eq!((entry.received, entry.deleted_at), (START as u64, START as u64 + 60));
    assert_eq!((entry.mailboxes, entry.row), (vec![archive], message(1, &[]).row));
    let other = server.create(&[archive], &[], message(2, &[2])).await;
    let restored = server.mail.restore(ACCOUNT, entry.id, None).await.unwrap();
    assert!(restored.id != first.id && restored.thread == other.thread);
    assert_eq!(server.keywords(restored.id).await, ["$flagged", "work"]);
    let state = server.state(restored.id).await;
    assert_eq!((state.mailboxes, state.received, state.size), (vec![archive], START as u64, 101));
    assert_eq!(server.mail.vault(ACCOUNT, None, 10).await.unwrap(), VaultPage::default());
    assert!(matches!(server.mail.restore(ACCOUNT, entry.id, None).await, Err(MailError::NotFound)));
    server.assert_sound().await;
}

#[tokio::test]
async fn what_has_no_mailbox_any_more_is_restored_into_one_of_that_name() {
    let server = Server::new().await;
    for number in 0..2 {
        let mailbox = server.make("gone", Parent::Top).await;
        server.create(&[mailbox], &[], message(number, &[])).await;
        let set = MailboxSet { destroy: vec![mailbox], remove_emails: true, ..MailboxSet::default() };
        assert!(server.set(set).await.destroyed[0].is_ok());
    }
    let entries = server.mail.vault(ACCOUNT, None, 10).await.unwrap().entries;
    let (one, other) = tokio::join!(
        server.mail.restore(ACCOUNT, entries[0].id, None),
        server.mail.restore(ACCOUNT, entries[1].id, Some(1_000)),
    );
    let restored = server.named("Restored").await;
    for email in [one.unwrap(), other.unwrap()] {
        assert_eq!(server.state(email.id).await.mailboxes, [restored.id]);
    }
    assert_eq!(restored.total, 2);
    server.assert_sound().await;
}

#[tokio::test]
async fn a_restore_over_quota_is_refused_and_the_entry_stays() {
    let server = Server::new().await;
    let email = server.deliver(message(1, &[])).await;
    server.mail.destroy_email(ACCOUNT, email, None).await.unwrap();
    let entry = server.mail.vault(ACCOUNT, None, 1).await.unwrap().entries.remove(0).id;
    assert!(matches!(server.mail.restore(ACCOUNT, entry, Some(100)).await, Err(MailError::OverQuota)));
    assert!(server.mail.restore(ACCOUNT, entry, Some(101)).await.is_ok());
}

#[tokio::test]
async fn the_vault_is_paged_and_forgets_what_is_old() {
    let server = Server::with(MailConfig { vault_seconds: 100, ..MailConfig::default() }).await;
    for number in 0..5 {
        let email = server.deliver(message(number, &[])).await;
        server.mail.destroy_email(ACCOUNT, email, None).await.unwrap();
        server.pass(10);
    }
    let first = server.mail.vault(ACCOUNT, None, 3).await.unwrap();
    let rest = server.mail.vault(ACCOUNT, first.next, 3).await.unwrap();
    let deleted: Vec<u64> =
        first.entries.iter().chain(&rest.entries).map(|entry| entry.deleted_at - START as u64).collect();
    assert_eq!((deleted, rest.next), (vec![40, 30, 20, 10, 0], None));
    let bytes = first.entries.iter().chain(&rest.entries).map(|entry| entry.size).sum();
    let usage = server.mail.vault_usage(ACCOUNT, 1).await.unwrap();
    let (oldest, newest) = (Some(START as u64), Some(START as u64 + 40));
    assert_eq!(usage, VaultUsage { emails: 5, bytes, oldest, newest, is_whole: true }, "the page is longer");
    server.pass(71); // the first three are older than 100 seconds now
    let purged = server.mail.purge_vault(ACCOUNT, 2).await.unwrap();
    assert_eq!(purged, Purged { entries: 2, has_more: true });
    assert_eq!(server.mail.purge_vault(ACCOUNT, 2).await.unwrap(), Purged { entries: 1, has_more: false });
    assert_eq!(server.mail.purge_vault(ACCOUNT, 2).await.unwrap(), Purged::default());
    assert_eq!(server.mail.vault(ACCOUNT, None, 10).await.unwrap().entries.len(), 2);
}

impl Server {
    /// The numbers of the emails in the vault, which were destroyed in the order of their numbers.
    async fn in_vault(&self) -> Vec<u64> {
        let page = self.mail.vault(ACCOUNT, None, 100).await.unwrap();
        let mut numbers: Vec<u64> = page.entries.iter().map(|entry| entry.received - START as u64).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Delivers a message of 100 bytes and its number, and destroys it.
    async fn deliver_and_destroy(&self, number: u64) {
        let delivery = Delivery { received: START + number as i64, ..delivery(message(number, &[])) };
        let Ok(Delivered::New(email)) = self.mail.deliver(ACCOUNT, delivery).await else {
            panic!("it is new")
        };
        self.mail.destroy_email(ACCOUNT, email, None).await.unwrap();
        self.pass(1);
    }
}

#[tokio::test]
async fn a_vault_with_too_many_bytes_loses_what_was_destroyed_first() {
    let server = Server::with(MailConfig { vault_bytes_max: 350, ..MailConfig::default() }).await;
    for number in 0..6 {
        server.deliver_and_destroy(number).await;
    }
    assert_eq!(server.in_vault().await, [3, 4, 5], "three of some 100 bytes fit");
    server.assert_sound().await;
    let entry = server.mail.vault(ACCOUNT, None, 1).await.unwrap().entries.remove(0);
    server.mail.restore(ACCOUNT, entry.id, None).await.unwrap();
    server.deliver_and_destroy(6).await;
    assert_eq!(server.in_vault().await, [3, 4, 6], "what was restored has left space");
    assert_eq!(server.mail.purge_vault(ACCOUNT, 10).await.unwrap(), Purged::default());
    server.assert_sound().await;
}

/// Several emails that are destroyed in one commit make space for each other only by entries that were there before.
#[tokio::test]
async fn a_vault_that_got_too_much_at_once_is_purged_of_the_rest() {
    let server = Server::with(MailConfig { vault_bytes_max: 250, ..MailConfig::default() }).await;
    server.deliver_and_destroy(0).await;
    let mailbox = server.make("gone", Parent::Top).await;
    for number in 1..8 {
        server.create(&[mailbox], &[], message(number, &[])).await;
    }
    let set = MailboxSet { destroy: vec![mailbox], remove_emails: true, ..MailboxSet::default() };
    assert!(server.set(set).await.destroyed[0].is_ok());
    assert_eq!(server.mail.vault(ACCOUNT, None, 100).await.unwrap().entries.len(), 7);
    server.assert_sound().await;
    let purged = server.mail.purge_vault(ACCOUNT, 3).await.unwrap();
    assert_eq!(purged, Purged { entries: 3, has_more: true });
    let purged = server.mail.purge_vault(ACCOUNT, 100).await.unwrap();
    assert_eq!(purged, Purged { entries: 2, has_more: false });
    server.assert_sound().await;
}

/// Versions before the bound have not counted them.
#[tokio::test]
async fn a_vault_that_was_never_counted_is_counted_when_it_changes() {
    let server = Server::with(MailConfig { vault_bytes_max: 250, ..MailConfig::default() }).await;
    for number in 0..2 {
        server.deliver_and_destroy(number).await;
    }
    let query = restante_records::Query::new(account::KIND, account::ALL);
    let record = server.opened.records.query(ACCOUNT, &query).await.unwrap().ids[0];
    let uncount = |properties: &mut Properties| {
        let bytes: Vec<Value> = properties.values(account::VAULT_BYTES).cloned().collect();
        bytes.iter().for_each(|bytes| properties.remove(account::VAULT_BYTES, bytes));
    };
    damage(&server, account::KIND, record, uncount).await;
    assert_eq!(server.mail.check(ACCOUNT).await.unwrap(), []);
    server.deliver_and_destroy(2).await;
    assert_eq!(server.in_vault().await, [1, 2]);
    server.assert_sound().await;
    damage(&server, account::KIND, record, uncount).await;
    assert_eq!(server.mail.purge_vault(ACCOUNT, 10).await.unwrap(), Purged::default());
    damage(&server, account::KIND, record, replace(account::VAULT_BYTES, 7)).await;
    let findings = server.mail.check(ACCOUNT).await.unwrap();
    assert_eq!((findings.len(), findings[0].place.as_str()), (1, "the vault"));
    assert_eq!(server.mail.rebuild(ACCOUNT).await.unwrap(), findings);
    server.assert_sound().await;
}

#[tokio::test]
async fn an_erased_account_is_empty_and_can_be_used_again() {
    let server = Server::new().await;
    for number in 0..20 {
        server.deliver(message(number, &[number % 4])).await;
    }
    let erased = server.mail.erase(ACCOUNT, &*server.opened.upkeep, &|_| {}).await.unwrap();
    assert_eq!(erased, 20 + 4 + 6 + 1);
    assert_eq!(server.mail.mailboxes(ACCOUNT).await.unwrap().0.len(), 0);
    assert_eq!(server.mail.usage(ACCOUNT).await.unwrap().emails, 0);
    server.deliver(message(1, &[])).await;
    assert_eq!(server.mailbox(Role::Inbox).await.total, 1);
    server.assert_sound().await;
}

/// Changes a record behind the handle's back.
async fn damage(
    server: &Server,
    kind: restante_records::Kind,
    id: RecordId,
    change: impl Fn(&mut Properties),
) {
    let get = Get::small(kind, vec![id]);
    let record = server.opened.records.get(ACCOUNT, &get).await.unwrap().remove(0).unwrap();
    let mut properties = record.properties;
    change(&mut properties);
    let change = Change::Update { kind, id, body: None, properties: Some(properties) };
    server.opened.records.commit(ACCOUNT, Commit::of([change])).await.unwrap();
}

fn replace(property: restante_records::Property, number: u64) -> impl Fn(&mut Properties) {
    move |properties| {
        let old: Vec<Value> = properties.values(property).cloned().collect();
        for value in old {
            properties.remove(property, &value);
        }
        properties.add(property, Value::Number(number));
    }
}

#[tokio::test]
async fn check_finds_each_wrong_counter_and_rebuild_corrects_it() {
    let server = Server::new().await;
    for number in 0..10 {
        server.deliver(message(number, &[number % 3])).await;
    }
    let inbox = server.mailbox(Role::Inbox).await.id;
    let query = restante_records::Query::new(account::KIND, account::ALL);
    let account = server.opened.records.query(ACCOUNT, &query).await.unwrap().ids[0];
    server.assert_sound().await;
    let wrong = [
        (mailbox::KIND, inbox, mailbox::TOTAL),
        (mailbox::KIND, inbox, mailbox::UNREAD),
        (mailbox::KIND, inbox, mailbox::THREADS),
        (mailbox::KIND, inbox, mailbox::UNREAD_THREADS),
        (mailbox::KIND, inbox, mailbox::BYTES),
        (mailbox::KIND, inbox, mailbox::UID_NEXT),
        (account::KIND, account, account::BYTES),
        (account::KIND, account, account::COUNT),
    ];
    for (kind, id, property) in wrong {
        damage(&server, kind, id, replace(property, 1)).await;
        let findings = server.mail.check(ACCOUNT).await.unwrap();
        assert_eq!(findings.len(), 1, "{property:?}");
        assert!(findings[0].is_derived);
        assert_eq!(server.mail.rebuild(ACCOUNT).await.unwrap(), findings);
        server.assert_sound().await;
    }
    let next = server.deliver(message(11, &[])).await;
    assert_eq!(server.state(next).await.places, [inbox.0 << 32 | 11]);
}

#[tokio::test]
async fn check_leaves_an_account_empty_that_was_never_used() {
    let server = Server::new().await;
    server.assert_sound().await;
    assert_eq!(server.mail.rebuild(ACCOUNT).await.unwrap(), []);
    assert_eq!(server.opened.records.states(ACCOUNT).await.unwrap().revision, restante_records::Revision(0));
}

#[tokio::test]
async fn check_finds_emails_that_contradict_themselves() {
    let server = Server::new().await;
    let email = server.deliver(message(1, &[])).await;
    damage(&server, email::KIND, email, replace(email::MAILBOX, 999)).await;
    let findings = server.mail.check(ACCOUNT).await.unwrap();
    let of_email: Vec<&Finding> = findings.iter().filter(|finding| !finding.is_derived).collect();
    assert_eq!(of_email.len(), 2, "{findings:?}");
    assert!(of_email.iter().all(|finding| finding.place == format!("email {}", email.0)));
}

#[tokio::test]
async fn accounts_beyond_those_in_memory_are_read_again() {
    let server =
        Server::with(MailConfig { accounts_in_memory_max: nonzero!(2), ..MailConfig::default() }).await;
    for round in 0..3 {
        for account in 1..6 {
            let delivery = delivery(message(round, &[1]));
            assert!(matches!(server.mail.deliver(AccountId(account), delivery).await, Ok(Delivered::New(_))));
        }
    }
    for account in 1..6 {
        let (mailboxes, _) = server.mail.mailboxes(AccountId(account)).await.unwrap();
        assert_eq!((mailboxes[0].total, mailboxes[0].threads), (3, 1));
        assert_eq!(server.mail.check(AccountId(account)).await.unwrap(), []);
    }
}

#[tokio::test]
async fn mailboxes_beyond_those_in_memory_are_read_each_time() {
    let server = Server::with(MailConfig { mailboxes_in_memory_max: 13, ..MailConfig::default() }).await;
    for account in 1..4 {
        let delivered = server.mail.deliver(AccountId(account), delivery(message(1, &[]))).await;
        assert!(matches!(delivered, Ok(Delivered::New(_))));
    }
    // The writers of two accounts have 6 each.
    let read = async || server.mail.mailboxes(AccountId(3)).await.unwrap().0;
    assert!(!Arc::ptr_eq(&read().await, &read().await));
    for account in 1..4 {
        server.mail.erase(AccountId(account), &*server.opened.upkeep, &|_| {}).await.unwrap();
    }
    server.mail.prepare(AccountId(3)).await.unwrap();
    assert!(Arc::ptr_eq(&read().await, &read().await), "the memory was given back");
}

#[tokio::test]
async fn edits_beyond_those_that_may_wait_are_refused_as_busy() {
    let server = Server::with(MailConfig { edits_waiting_max: nonzero!(4), ..MailConfig::default() }).await;
    let deliver = |number| server.mail.deliver(ACCOUNT, delivery(message(number, &[])));
    // All are queued before the writer runs: the tests' runtime has one thread.
    let (a, b, c, d, refused) = tokio::join!(deliver(1), deliver(2), deliver(3), deliver(4), deliver(5));
    assert!([a, b, c, d].iter().all(Result::is_ok));
    assert!(matches!(refused, Err(MailError::Store(error)) if error.is_transient()));
    assert!(deliver(5).await.is_ok());
}

/// A thread without a record, as damage leaves it, fails the edits of its emails and no others.
#[tokio::test]
async fn a_missing_record_fails_only_the_edits_that_need_it() {
    let server = Server::new().await;
    let (broken, whole) = (server.deliver(message(1, &[1])).await, server.deliver(message(2, &[2])).await);
    let thread = server.state(broken).await.thread;
    let destroy = Change::Destroy { kind: thread::KIND, id: thread };
    server.opened.records.commit(ACCOUNT, Commit::of([destroy])).await.unwrap();
    let (refused, made) = tokio::join!(
        server.mail.deliver(ACCOUNT, delivery(message(3, &[1]))),
        server.mail.update_email(ACCOUNT, whole, add_keywords(&["$seen"])),
    );
    assert!(
        matches!(refused, Err(MailError::Store(error)) if error.kind() == restante_core::ErrorKind::NotFound)
    );
    assert!(made.is_ok());
    let findings = server.mail.check(ACCOUNT).await.unwrap();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].place, format!("thread {}", thread.0));
}
