use restante_core::nonzero;

use super::*;

fn create(new: NewMailbox) -> MailboxSet {
    MailboxSet { create: vec![new], ..MailboxSet::default() }
}

fn update(id: RecordId, update: MailboxUpdate) -> MailboxSet {
    MailboxSet { update: vec![(id, update)], ..MailboxSet::default() }
}

fn rename(name: &str) -> MailboxUpdate {
    MailboxUpdate { name: Some(name.to_owned()), ..MailboxUpdate::default() }
}

fn below(parent: RecordId) -> MailboxUpdate {
    MailboxUpdate { parent: Some(Parent::Mailbox(parent)), ..MailboxUpdate::default() }
}

fn with_role(role: Option<&str>) -> MailboxUpdate {
    MailboxUpdate { role: Some(role.map(str::to_owned)), ..MailboxUpdate::default() }
}

fn destroy(ids: &[RecordId], remove_emails: bool) -> MailboxSet {
    MailboxSet { destroy: ids.to_vec(), remove_emails, ..MailboxSet::default() }
}

fn wrong_properties<T: std::fmt::Debug>(result: &Result<T, MailError>) -> Vec<&'static str> {
    match result {
        Err(MailError::Invalid { properties, .. }) => properties.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn mb1_a_mailbox_has_what_it_was_made_with() {
    let server = Server::new().await;
    let roles: Vec<Option<Role>> = server.mailboxes().await.iter().map(|mailbox| mailbox.role).collect();
    let expected = [Role::Inbox, Role::Drafts, Role::Sent, Role::Archive, Role::Junk, Role::Trash].map(Some);
    assert_eq!(roles, expected);
    let new = NewMailbox {
        role: Some("important".into()),
        sort_order: (1 << 31) - 1,
        is_subscribed: false,
        ..new_mailbox("Ünï", Parent::Mailbox(server.mailbox(Role::Archive).await.id))
    };
    let outcome = server.set(create(new)).await;
    let made = server.named("Ünï").await;
    assert_eq!(outcome.created[0].as_ref().unwrap().id, made.id);
    assert_eq!(made.parent, Some(server.mailbox(Role::Archive).await.id));
    assert_eq!(
        (made.role, made.sort_order, made.is_subscribed),
        (Some(Role::Important), (1 << 31) - 1, false)
    );
    assert_eq!((made.shape, made.uid_next), (outcome.states.new, 1));
    let too_far = NewMailbox { sort_order: 1 << 31, ..new_mailbox("b", Parent::Top) };
    assert_eq!(wrong_properties(&server.set(create(too_far)).await.created[0]), ["sortOrder"]);
}

#[tokio::test]
async fn mb1_the_inbox_keeps_its_name_and_can_not_be_destroyed() {
    let server = Server::new().await;
    let inbox = server.mailbox(Role::Inbox).await;
    let outcome = server.set(destroy(&[inbox.id], true)).await;
    assert!(matches!(outcome.destroyed[0], Err(MailError::Forbidden(_))));
    for change in [rename("x"), with_role(None), below(server.mailbox(Role::Archive).await.id)] {
        let outcome = server.set(update(inbox.id, change)).await;
        assert!(matches!(outcome.updated[0], Err(MailError::Forbidden(_))));
    }
    let same =
        MailboxUpdate { is_subscribed: Some(false), role: Some(Some("inbox".into())), ..rename("Inbox") };
    assert!(server.set(update(inbox.id, same)).await.updated[0].is_ok());
    assert!(!server.mailbox(Role::Inbox).await.is_subscribed);
}

#[tokio::test]
async fn mb2_names_are_checked_and_normalized() {
    let server = Server::new().await;
    let long = "n".repeat(491);
    for name in ["", "a/b", "a\u{7}b", "\u{85}", &long, "INBOX", "inBox"] {
        let outcome = server.set(create(new_mailbox(name, Parent::Top))).await;
        assert_eq!(wrong_properties(&outcome.created[0]), ["name"], "{name}");
        assert_eq!(outcome.states.old, outcome.states.new);
    }
    let archive = Parent::Mailbox(server.mailbox(Role::Archive).await.id);
    assert!(server.set(create(new_mailbox("INBOX", archive))).await.created[0].is_ok());
    assert!(server.set(create(new_mailbox(&long[1..], archive))).await.created[0].is_ok());
    assert_eq!(server.named(&long[1..]).await.parent, Some(server.mailbox(Role::Archive).await.id));
    let outcome = server.set(create(new_mailbox("Cafe\u{301}", Parent::Top))).await;
    let made = outcome.created[0].as_ref().unwrap();
    assert_eq!(made.normalized_name.as_deref(), Some("Café"));
    assert_eq!(server.named("Café").await.id, made.id);
    let outcome = server.set(create(new_mailbox("Café", Parent::Top))).await;
    assert!(matches!(outcome.created[0], Err(MailError::AlreadyExists { existing }) if existing == made.id));
}

#[tokio::test]
async fn mb2_depth_loops_and_unknown_parents_are_refused() {
    let server = Server::with(MailConfig { mailbox_depth_max: nonzero!(3), ..MailConfig::default() }).await;
    let a = server.make("a", Parent::Top).await;
    let b = server.make("b", Parent::Mailbox(a)).await;
    let c = server.make("c", Parent::Mailbox(b)).await;
    let outcome = server.set(create(new_mailbox("d", Parent::Mailbox(c)))).await;
    assert_eq!(wrong_properties(&outcome.created[0]), ["parentId"]);
    for (id, parent) in [(a, a), (a, c), (a, server.mailbox(Role::Inbox).await.id), (b, RecordId(999))] {
        let outcome = server.set(update(id, below(parent))).await;
        assert_eq!(wrong_properties(&outcome.updated[0]), ["parentId"], "{id:?} below {parent:?}");
    }
    let unknown = server.set(create(new_mailbox("x", Parent::Created(3)))).await;
    assert_eq!(wrong_properties(&unknown.created[0]), ["parentId"]);
}

/// With a depth above the number of mailboxes a loop is longer than any path.
#[tokio::test]
async fn mb2_a_mailbox_can_not_be_its_own_parent() {
    let server = Server::new().await;
    let archive = server.mailbox(Role::Archive).await.id;
    let outcome = server.set(update(archive, below(archive))).await;
    assert_eq!(wrong_properties(&outcome.updated[0]), ["parentId"]);
}

#[tokio::test]
async fn mb2_an_account_has_so_many_mailboxes_and_no_more() {
    let server = Server::with(MailConfig { mailboxes_max: nonzero!(8), ..MailConfig::default() }).await;
    let names = ["a", "b", "c"].map(|name| new_mailbox(name, Parent::Top));
    let outcome = server.set(MailboxSet { create: names.to_vec(), ..MailboxSet::default() }).await;
    assert!(outcome.created[0].is_ok() && outcome.created[1].is_ok());
    assert!(matches!(outcome.created[2], Err(MailError::OverQuota)));
    let junk = server.mailbox(Role::Junk).await.id;
    let exchange = MailboxSet { create: vec![new_mailbox("c", Parent::Top)], ..destroy(&[junk], false) };
    assert!(server.set(exchange).await.created[0].is_ok());
}

#[tokio::test]
async fn mb3_a_role_is_one_of_ten_and_has_one_mailbox() {
    let server = Server::new().await;
    for role in ["Inbox", "spam", "", "inbox", "trash"] {
        let new = NewMailbox { role: Some(role.into()), ..new_mailbox("x", Parent::Top) };
        assert_eq!(wrong_properties(&server.set(create(new)).await.created[0]), ["role"], "{role}");
    }
    let (junk, archive) = (server.mailbox(Role::Junk).await.id, server.mailbox(Role::Archive).await.id);
    let both = [(junk, with_role(Some("archive"))), (archive, with_role(Some("junk")))];
    let outcome = server.set(MailboxSet { update: both.to_vec(), ..MailboxSet::default() }).await;
    assert!(outcome.updated.iter().all(Result::is_ok), "roles can be swapped");
    assert_eq!(
        (server.mailbox(Role::Junk).await.id, server.mailbox(Role::Archive).await.id),
        (archive, junk)
    );
}

#[tokio::test]
async fn mb4_unread_threads_are_counted_again_when_another_mailbox_becomes_the_trash() {
    let server = Server::new().await;
    let bin = server.make("bin", Parent::Top).await;
    let read = server.deliver(message(1, &[1])).await;
    server.update(read, add_keywords(&["$seen"])).await;
    let unread = server.deliver(message(2, &[1])).await;
    server.update(unread, move_to(&[bin])).await;
    assert_eq!(server.mailbox(Role::Inbox).await.unread_threads, 1);
    let trash = server.mailbox(Role::Trash).await.id;
    let changes = [(trash, with_role(None)), (bin, with_role(Some("trash")))];
    server.set(MailboxSet { update: changes.to_vec(), ..MailboxSet::default() }).await;
    assert_eq!(
        (server.mailbox(Role::Inbox).await.unread_threads, server.mailbox(Role::Trash).await.id),
        (0, bin)
    );
    server.assert_sound().await;
    server.set(update(bin, with_role(None))).await;
    assert_eq!(server.mailbox(Role::Inbox).await.unread_threads, 1);
    server.assert_sound().await;
}

#[tokio::test]
async fn mb7_a_mailbox_with_children_is_not_destroyed_and_no_email_is_touched() {
    let server = Server::new().await;
    let parent = server.make("parent", Parent::Top).await;
    let child = server.make("child", Parent::Mailbox(parent)).await;
    let email = server.create(&[parent], &[], message(1, &[])).await.id;
    for remove_emails in [false, true] {
        let outcome = server.set(destroy(&[parent], remove_emails)).await;
        assert!(matches!(outcome.destroyed[0], Err(MailError::HasChild)));
    }
    assert_eq!(server.state(email).await.mailboxes, [parent]);
    let outcome = server.set(destroy(&[parent, child], true)).await;
    assert!(outcome.destroyed.iter().all(Result::is_ok), "both at once");
    assert!(server.record(email).await.is_none());
    server.assert_sound().await;
}

#[tokio::test]
async fn mb7_emails_of_a_mailbox_that_is_destroyed_leave_it_and_those_in_no_other_are_destroyed() {
    let server = Server::new().await;
    let inbox = server.mailbox(Role::Inbox).await.id;
    let mailbox = server.make("gone", Parent::Top).await;
    let alone = server.create(&[mailbox], &[], message(1, &[1])).await.id;
    let elsewhere = server.create(&[mailbox, inbox], &[], message(2, &[1])).await.id;
    let refused = server.set(destroy(&[mailbox], false)).await;
    assert!(matches!(refused.destroyed[0], Err(MailError::HasEmail)));
    let outcome = server.set(destroy(&[mailbox, mailbox], true)).await;
    assert!(outcome.destroyed[0].is_ok());
    assert!(matches!(outcome.destroyed[1], Err(MailError::NotFound)));
    assert!(server.record(alone).await.is_none());
    assert_eq!(server.state(elsewhere).await.mailboxes, [inbox]);
    assert_eq!(server.record(elsewhere).await.unwrap().revision, outcome.states.new, "one commit");
    assert_eq!(server.mail.vault(ACCOUNT, None, 10).await.unwrap().entries.len(), 1);
    server.assert_sound().await;
}

#[tokio::test]
async fn mb7_many_emails_leave_in_several_commits_and_the_mailbox_goes_with_the_last() {
    let server = Server::new().await;
    let mailbox = server.make("big", Parent::Top).await;
    let inbox = server.mailbox(Role::Inbox).await.id;
    for number in 0..600 {
        let mailboxes = if number % 3 == 0 { vec![mailbox, inbox] } else { vec![mailbox] };
        server.create(&mailboxes, &[], message(number, &[number % 50])).await;
    }
    let before = server.mail.mailboxes(ACCOUNT).await.unwrap().1;
    let set = MailboxSet { if_in_state: Some(before), ..destroy(&[mailbox], true) };
    let outcome = server.set(set).await;
    assert!(outcome.destroyed[0].is_ok());
    assert!(outcome.states.old == before && outcome.states.is_shared);
    assert!(outcome.states.new.0 - before.0 >= 3);
    assert_eq!(server.mailbox(Role::Inbox).await.total, 200);
    server.assert_sound().await;
}

#[tokio::test]
async fn t1_a_set_in_another_state_is_refused_as_a_whole() {
    let server = Server::new().await;
    let state = server.mail.mailboxes(ACCOUNT).await.unwrap().1;
    server.deliver(message(1, &[])).await;
    let set = MailboxSet { if_in_state: Some(state), ..create(new_mailbox("a", Parent::Top)) };
    assert!(matches!(server.mail.set_mailboxes(ACCOUNT, set).await, Err(MailError::StateMismatch)));
}

#[tokio::test]
async fn t3_two_mailboxes_swap_their_names_in_one_call() {
    let server = Server::new().await;
    let (a, b) = (server.make("a", Parent::Top).await, server.make("b", Parent::Top).await);
    let set = MailboxSet { update: vec![(a, rename("b")), (b, rename("a"))], ..MailboxSet::default() };
    assert!(server.set(set).await.updated.iter().all(Result::is_ok));
    assert_eq!((server.named("a").await.id, server.named("b").await.id), (b, a));
    // One of them alone can't.
    let outcome = server.set(update(a, rename("a"))).await;
    assert!(matches!(outcome.updated[0], Err(MailError::AlreadyExists { existing }) if existing == b));
}

#[tokio::test]
async fn t3_a_child_is_made_before_its_parent_is_named_and_loops_of_creates_are_refused() {
    let server = Server::new().await;
    let new = vec![
        new_mailbox("leaf", Parent::Created(1)),
        new_mailbox("middle", Parent::Created(2)),
        new_mailbox("root", Parent::Top),
        new_mailbox("x", Parent::Created(4)),
        new_mailbox("y", Parent::Created(3)),
    ];
    let outcome = server.set(MailboxSet { create: new, ..MailboxSet::default() }).await;
    let (leaf, middle, root) =
        (server.named("leaf").await, server.named("middle").await, server.named("root").await);
    assert_eq!((leaf.parent, middle.parent, root.parent), (Some(middle.id), Some(root.id), None));
    assert_eq!(outcome.created[0].as_ref().unwrap().id, leaf.id);
    for refused in &outcome.created[3..] {
        assert_eq!(wrong_properties(refused), ["parentId"]);
    }
}

#[tokio::test]
async fn t3_what_depends_on_a_refused_entry_is_refused_and_others_are_made() {
    let server = Server::new().await;
    let a = server.make("a", Parent::Top).await;
    let set = MailboxSet {
        create: vec![
            new_mailbox("", Parent::Top),
            new_mailbox("child", Parent::Created(0)),
            new_mailbox("twin", Parent::Top),
            new_mailbox("twin", Parent::Top),
            new_mailbox("below a", Parent::Mailbox(a)),
        ],
        update: vec![(a, rename("Sent"))],
        destroy: vec![a, RecordId(999)],
        ..MailboxSet::default()
    };
    let outcome = server.set(set).await;
    assert_eq!(wrong_properties(&outcome.created[0]), ["name"]);
    assert_eq!(wrong_properties(&outcome.created[1]), ["parentId"]);
    let twin = outcome.created[2].as_ref().unwrap().id;
    assert!(matches!(outcome.created[3], Err(MailError::AlreadyExists { existing }) if existing == twin));
    assert!(outcome.created[4].is_ok());
    let sent = server.mailbox(Role::Sent).await.id;
    assert!(matches!(outcome.updated[0], Err(MailError::AlreadyExists { existing }) if existing == sent));
    assert!(matches!(outcome.destroyed[0], Err(MailError::HasChild)), "a child was made below it");
    assert!(matches!(outcome.destroyed[1], Err(MailError::NotFound)));
}

/// A chain in which each rename is possible only when the one before it is. It must end, in bounded time.
#[tokio::test]
async fn t3_a_chain_of_renames_that_falls_apart_ends() {
    let server = Server::new().await;
    let names: Vec<String> = (0..200).map(|number| format!("n{number}")).collect();
    let new = names.iter().map(|name| new_mailbox(name, Parent::Top)).collect();
    let outcome = server.set(MailboxSet { create: new, ..MailboxSet::default() }).await;
    let ids: Vec<RecordId> = outcome.created.into_iter().map(|set| set.unwrap().id).collect();
    // Each takes the name of the next one; the last takes one that nobody gives up.
    let mut update: Vec<(RecordId, MailboxUpdate)> =
        ids.iter().zip(&names[1..]).map(|(id, name)| (*id, rename(name))).collect();
    update.push((ids[199], rename("Sent")));
    let outcome = server.set(MailboxSet { update, ..MailboxSet::default() }).await;
    assert!(outcome.updated.iter().all(Result::is_err));
    let now: Vec<String> = server.mailboxes().await.into_iter().map(|mailbox| mailbox.name).collect();
    assert!(names.iter().all(|name| now.contains(name)));
}

#[tokio::test]
async fn mailboxes_are_read_again_when_something_changed() {
    let server = Server::new().await;
    server.mail.prepare(ACCOUNT).await.unwrap();
    let (first, state) = server.mail.mailboxes(ACCOUNT).await.unwrap();
    let (again, same) = server.mail.mailboxes(ACCOUNT).await.unwrap();
    assert!(Arc::ptr_eq(&first, &again) && state == same);
    server.second().await.deliver(ACCOUNT, delivery(message(1, &[]))).await.unwrap();
    let (after, moved) = server.mail.mailboxes(ACCOUNT).await.unwrap();
    assert_eq!((after[0].total, first[0].total), (1, 0));
    assert!(moved > state);
}
