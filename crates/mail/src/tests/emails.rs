use std::collections::BTreeSet;

use restante_core::nonzero;
use restante_records::{ChangesSince, Kind, Revision};

use super::*;

impl Server {
    async fn kind_state(&self, kind: Kind) -> Revision {
        self.opened.records.states(ACCOUNT).await.unwrap().of(kind)
    }

    async fn refused(&self, id: RecordId, update: EmailUpdate) -> MailError {
        self.mail.update_email(ACCOUNT, id, update).await.unwrap_err()
    }
}

#[tokio::test]
async fn e1_keywords_are_stored_in_lowercase_and_seen_is_one_of_them() {
    let server = Server::new().await;
    let inbox = server.mailbox(Role::Inbox).await.id;
    let created = server.create(&[inbox], &["$Seen", "$FLAGGED", "Work", "work"], message(1, &[])).await;
    assert_eq!(server.keywords(created.id).await, ["$seen", "$flagged", "work"]);
    server.update(created.id, add_keywords(&["later", "$Draft"])).await;
    server.update(created.id, remove_keywords(&["WORK", "$seen", "unknown"])).await;
    let keywords: BTreeSet<String> = server.keywords(created.id).await.into_iter().collect();
    assert_eq!(keywords, ["$draft", "$flagged", "later"].map(str::to_owned).into());
    let whole = ["$answered".to_owned(), "$seen".to_owned()];
    server.update(created.id, keyword_update(Patch::Whole(whole.into()))).await;
    assert_eq!(server.keywords(created.id).await, ["$seen", "$answered"]);
    server.assert_sound().await;
}

#[tokio::test]
async fn e1_a_keyword_has_one_number_in_its_account_on_all_servers() {
    let server = Server::new().await;
    let second = server.second().await;
    let inbox = server.mailbox(Role::Inbox).await.id;
    let first = server.create(&[inbox], &["work"], message(1, &[])).await;
    let other =
        second.create_email(ACCOUNT, new_email(&[inbox], &["work", "home"], message(2, &[]))).await.unwrap();
    let third = server.create(&[inbox], &["home"], message(3, &[])).await;
    assert_eq!(server.state(other.id).await.keywords[0], server.state(first.id).await.keywords[0]);
    assert_eq!(server.state(other.id).await.keywords[1], server.state(third.id).await.keywords[0]);
    let number = second.keyword_number(ACCOUNT, "home").await.unwrap();
    assert_eq!(number, server.state(third.id).await.keywords.first().copied());
    assert_eq!(server.mail.keyword_number(ACCOUNT, "nobody").await.unwrap(), None);
    assert_eq!(server.mail.keyword_number(ACCOUNT, "$flagged").await.unwrap(), Some(1));
    assert_eq!(server.mail.keyword_number(ACCOUNT, "$seen").await.unwrap(), None);
}

#[tokio::test]
async fn es3_too_many_keywords_and_mailboxes_are_refused() {
    let config = MailConfig {
        mailboxes_per_email_max: nonzero!(2),
        keywords_per_email_max: nonzero!(2),
        keywords_max: nonzero!(3),
        ..MailConfig::default()
    };
    let server = Server::with(config).await;
    let ids: Vec<RecordId> = server.mailboxes().await.iter().map(|mailbox| mailbox.id).collect();
    let email = server.create(&ids[..2], &["$seen", "a"], message(1, &[])).await.id;
    assert!(matches!(server.refused(email, add_to(ids[2])).await, MailError::TooManyMailboxes));
    assert!(matches!(server.refused(email, add_keywords(&["$flagged"])).await, MailError::TooManyKeywords));
    let create = |mailboxes: &[RecordId], keywords: &[&str]| {
        let new = new_email(mailboxes, keywords, message(2, &[]));
        let mail = server.mail.clone();
        async move { mail.create_email(ACCOUNT, new).await }
    };
    assert!(matches!(create(&ids[..3], &[]).await, Err(MailError::TooManyMailboxes)));
    assert!(matches!(create(&ids[..1], &["x", "y", "z"]).await, Err(MailError::TooManyKeywords)));
    // Those of the whole account.
    assert!(create(&ids[..1], &["b", "c"]).await.is_ok());
    assert!(matches!(create(&ids[..1], &["d"]).await, Err(MailError::TooManyKeywords)));
    assert!(create(&ids[..1], &["c", "$answered"]).await.is_ok());
    server.assert_sound().await;
}

#[tokio::test]
async fn es4_an_update_without_mailbox_with_an_unknown_one_or_a_bad_keyword_is_refused() {
    let server = Server::new().await;
    let inbox = server.mailbox(Role::Inbox).await.id;
    let email = server.deliver(message(1, &[])).await;
    let before = server.record(email).await;
    assert!(matches!(server.refused(email, move_to(&[])).await, MailError::NoMailbox));
    let remove = Patch::Parts { add: BTreeSet::new(), remove: [inbox].into() };
    let update = EmailUpdate { if_in_state: None, mailboxes: remove, keywords: Patch::Keep };
    assert!(matches!(server.refused(email, update).await, MailError::NoMailbox));
    let unknown = RecordId(999);
    let error = server.refused(email, move_to(&[inbox, unknown])).await;
    assert!(matches!(error, MailError::UnknownMailbox(ids) if ids == [unknown]));
    assert!(matches!(server.refused(email, add_keywords(&["a b"])).await, MailError::BadKeyword(_)));
    assert!(matches!(server.refused(unknown, add_keywords(&["a"])).await, MailError::NotFound));
    assert!(matches!(server.mail.destroy_email(ACCOUNT, unknown, None).await, Err(MailError::NotFound)));
    assert_eq!(server.record(email).await, before);
}

#[tokio::test]
async fn t1_an_edit_in_another_state_than_it_names_is_refused() {
    let server = Server::new().await;
    let email = server.deliver(message(1, &[])).await;
    let old = server.kind_state(email::KIND).await;
    server.update(email, add_keywords(&["$seen"])).await;
    let now = server.kind_state(email::KIND).await;
    let flag = |state| EmailUpdate { if_in_state: Some(state), ..add_keywords(&["$flagged"]) };
    assert!(matches!(server.refused(email, flag(old)).await, MailError::StateMismatch));
    let destroy = server.mail.destroy_email(ACCOUNT, email, Some(old)).await;
    assert!(matches!(destroy, Err(MailError::StateMismatch)));
    // Two at once with the same state: one of them.
    let (first, second) = tokio::join!(
        server.mail.update_email(ACCOUNT, email, flag(now)),
        server.mail.destroy_email(ACCOUNT, email, Some(now)),
    );
    assert_eq!(first.unwrap().old, now);
    assert!(matches!(second, Err(MailError::StateMismatch)));
}

/// What another server changed is seen also by edits that change nothing.
#[tokio::test]
async fn a_refusal_is_true_of_what_another_server_made() {
    let server = Server::new().await;
    let second = server.second().await;
    let email = server.deliver(message(1, &[])).await;
    let set = MailboxSet { create: vec![new_mailbox("new", Parent::Top)], ..MailboxSet::default() };
    let made = second.set_mailboxes(ACCOUNT, set).await.unwrap().created.remove(0).unwrap().id;
    server.update(email, move_to(&[made])).await;
    let taken = new_mailbox("new", Parent::Top);
    let set = MailboxSet { create: vec![taken], destroy: vec![made], ..MailboxSet::default() };
    let outcome = second.set_mailboxes(ACCOUNT, set).await.unwrap();
    assert!(matches!(outcome.destroyed[0], Err(MailError::HasEmail)));
    assert!(matches!(outcome.created[0], Err(MailError::AlreadyExists { existing }) if existing == made));
}

#[tokio::test]
async fn s4_setting_what_is_set_moves_no_state() {
    let server = Server::new().await;
    let email = server.deliver(message(1, &[])).await;
    let inbox = server.mailbox(Role::Inbox).await.id;
    let moved = server.update(email, add_keywords(&["$flagged", "$seen"])).await;
    assert!(moved.new > moved.old && !moved.is_shared);
    let states = server.opened.records.states(ACCOUNT).await.unwrap();
    for update in
        [add_keywords(&["$FLAGGED"]), remove_keywords(&["$draft"]), add_to(inbox), move_to(&[inbox])]
    {
        let transition = server.update(email, update).await;
        assert_eq!((transition.old, transition.new), (moved.new, moved.new));
    }
    assert_eq!(server.opened.records.states(ACCOUNT).await.unwrap(), states);
}

#[tokio::test]
async fn s4_a_thread_moves_when_an_email_joins_or_leaves_and_by_no_flag() {
    let server = Server::new().await;
    let first = server.deliver(message(1, &[1])).await;
    let thread = server.state(first).await.thread;
    let since = async |revision| {
        let since = ChangesSince { kind: Some(thread::KIND), since: revision, limit: 10 };
        let changes = server.opened.records.changes(ACCOUNT, &since).await.unwrap();
        let ids =
            |changed: Vec<restante_records::Changed>| changed.iter().map(|changed| changed.id).collect();
        (ids(changes.created), ids(changes.updated), ids(changes.destroyed), changes.revision)
    };
    let none: Vec<RecordId> = Vec::new();
    let (.., revision) = since(Revision(0)).await;
    server.update(first, add_keywords(&["$seen"])).await;
    let (_, updated, _, revision): (Vec<RecordId>, Vec<RecordId>, Vec<RecordId>, _) = since(revision).await;
    assert_eq!(updated, none);
    let reply = server.deliver(message(2, &[1])).await;
    let (created, updated, _, revision): (Vec<RecordId>, Vec<RecordId>, Vec<RecordId>, _) =
        since(revision).await;
    assert_eq!((created, updated), (none.clone(), vec![thread]));
    server.mail.destroy_email(ACCOUNT, first, None).await.unwrap();
    let (_, updated, destroyed, revision): (Vec<RecordId>, Vec<RecordId>, Vec<RecordId>, _) =
        since(revision).await;
    assert_eq!((updated, destroyed), (vec![thread], none.clone()));
    server.mail.destroy_email(ACCOUNT, reply, None).await.unwrap();
    let (_, updated, destroyed, _): (Vec<RecordId>, Vec<RecordId>, Vec<RecordId>, _) = since(revision).await;
    assert_eq!((updated, destroyed), (none, vec![thread]));
}

#[tokio::test]
async fn s4_the_account_moves_by_emails_that_come_and_go_and_by_no_flag() {
    let server = Server::new().await;
    let email = server.deliver(message(1, &[])).await;
    let usage = server.mail.usage(ACCOUNT).await.unwrap();
    server.update(email, add_keywords(&["$seen"])).await;
    server.update(email, move_to(&[server.mailbox(Role::Archive).await.id])).await;
    assert_eq!(server.mail.usage(ACCOUNT).await.unwrap(), usage);
    server.mail.destroy_email(ACCOUNT, email, None).await.unwrap();
    let after = server.mail.usage(ACCOUNT).await.unwrap();
    assert_eq!((after.bytes, after.emails, after.delivered), (0, 0, usage.delivered));
    assert!(after.state > usage.state);
}

#[tokio::test]
async fn mb4_an_email_in_several_mailboxes_counts_in_each_and_once_for_the_account() {
    let server = Server::new().await;
    let (inbox, archive) = (server.mailbox(Role::Inbox).await.id, server.mailbox(Role::Archive).await.id);
    let email = server.create(&[inbox, archive], &[], message(1, &[])).await.id;
    for role in [Role::Inbox, Role::Archive] {
        let mailbox = server.mailbox(role).await;
        assert_eq!((mailbox.total, mailbox.unread, mailbox.threads, mailbox.bytes), (1, 1, 1, 101));
    }
    let usage = server.mail.usage(ACCOUNT).await.unwrap();
    assert_eq!((usage.bytes, usage.emails), (101, 1));
    server.update(email, add_keywords(&["$draft"])).await;
    assert_eq!(server.mailbox(Role::Inbox).await.unread, 0);
    server.update(email, move_to(&[archive])).await;
    assert_eq!(server.mailbox(Role::Inbox).await.total, 0);
    server.assert_sound().await;
}

#[tokio::test]
async fn mb4_unread_threads_of_inbox_and_trash() {
    let server = Server::new().await;
    let read = server.deliver(message(1, &[1])).await;
    let unread = server.deliver(message(2, &[1])).await;
    server.update(read, add_keywords(&["$seen"])).await;
    let trash = server.mailbox(Role::Trash).await.id;
    server.update(unread, move_to(&[trash])).await;
    let unread_threads = async |role| server.mailbox(role).await.unread_threads;
    assert_eq!((unread_threads(Role::Inbox).await, unread_threads(Role::Trash).await), (0, 1));
    server.update(unread, add_to(server.mailbox(Role::Archive).await.id)).await;
    assert_eq!((unread_threads(Role::Inbox).await, unread_threads(Role::Archive).await), (1, 1));
    server.assert_sound().await;
}

#[tokio::test]
async fn a_change_of_an_email_raises_the_modseq_of_its_mailboxes_and_leaving_one_expunges_there() {
    let server = Server::new().await;
    let email = server.deliver(message(1, &[])).await;
    let flagged = server.update(email, add_keywords(&["$flagged"])).await.new;
    let inbox = server.mailbox(Role::Inbox).await;
    assert_eq!((inbox.modseq, inbox.expunged.0), (flagged, 0));
    let archive = server.mailbox(Role::Archive).await;
    let moved = server.update(email, move_to(&[archive.id])).await.new;
    let (inbox, after) = (server.mailbox(Role::Inbox).await, server.mailbox(Role::Archive).await);
    assert_eq!((inbox.modseq, inbox.expunged, after.modseq), (moved, moved, moved));
    assert_eq!((after.expunged, after.uid_next), (archive.expunged, archive.uid_next + 1));
    assert_eq!(server.state(email).await.places, [archive.id.0 << 32 | 1]);
}

/// RFC 8621 §2.2: `updatedProperties` are the four counts when nothing else changed.
#[tokio::test]
async fn s7_the_shape_of_a_mailbox_moves_by_no_counter() {
    let server = Server::new().await;
    let before = server.mailbox(Role::Inbox).await;
    let email = server.deliver(message(1, &[])).await;
    server.update(email, add_keywords(&["$seen"])).await;
    assert_eq!(server.mailbox(Role::Inbox).await.shape, before.shape);
    let update = MailboxUpdate { sort_order: Some(7), ..MailboxUpdate::default() };
    let set = MailboxSet { update: vec![(before.id, update)], ..MailboxSet::default() };
    let states = server.set(set).await.states;
    let after = server.mailbox(Role::Inbox).await;
    assert_eq!((after.shape, after.sort_order), (states.new, 7));
}

#[tokio::test]
async fn edits_of_several_callers_that_share_a_commit_say_so() {
    let server = Server::new().await;
    let (first, second) = (server.deliver(message(1, &[])).await, server.deliver(message(2, &[])).await);
    let (one, other, nothing) = tokio::join!(
        server.update(first, add_keywords(&["$seen"])),
        server.update(second, add_keywords(&["$seen"])),
        server.update(second, add_keywords(&["$seen"])),
    );
    assert_eq!(one, other);
    assert!(one.is_shared && !nothing.is_shared);
    assert_eq!((nothing.old, nothing.new), (one.old, one.old));
    let (mine, other) = (server.mail.for_call(), server.mail.for_call());
    let unread = || remove_keywords(&["$seen"]);
    let (one, two) = tokio::join!(
        mine.update_email(ACCOUNT, first, unread()),
        mine.update_email(ACCOUNT, second, unread()),
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    assert!(one == two && !one.is_shared && one.new > one.old);
    let (one, two) = tokio::join!(
        mine.update_email(ACCOUNT, first, add_keywords(&["$seen"])),
        other.update_email(ACCOUNT, second, add_keywords(&["$seen"])),
    );
    assert!(one.unwrap().is_shared && two.unwrap().is_shared);
}
