//! What `commit` promises about what it makes.

use std::collections::BTreeSet;

use restante_core::{BlobId, Error, ErrorKind, Timestamp, UnsyncedBlob};
use restante_records::{
    Body, Change, ChangesSince, Commit, Gate, Opened, Properties, Query, RecordId, Records, Revision, States,
    Value,
};

use crate::{
    Subject,
    common::{
        A, B, BY_HASH, BY_KEYWORD, BY_MAILBOX, EMAIL, HASH, IN, KEYWORD, LAST, MAILBOX, RECEIVED, SIZE,
        THREAD, blob, commit, commit_one, create, create_one, destroy, email, get_one, ids, in_mailbox,
        mailbox, mirror::all_of, move_to, none, revision, rewrite, thread,
    },
};

crate::promises! {
    any: [
        each_commit_takes_the_next_revision_of_its_account,
        all_kinds_of_an_account_share_one_sequence_of_revisions,
        the_state_of_a_kind_is_the_revision_that_last_touched_it,
        states_tell_every_kind_that_an_account_has_or_had,
        an_account_without_commits_is_at_revision_0,
        ids_are_the_next_of_their_account_over_all_kinds,
        ids_are_never_used_again,
        a_refused_commit_uses_no_id_and_no_revision,
        all_changes_of_a_commit_are_one_revision,
        a_commit_is_visible_when_it_is_answered,
        a_commit_is_made_when_all_its_gates_are_open_and_not_before,
        a_commit_is_not_made_when_a_gate_fails,
        an_unsynced_blob_is_refused_where_commits_do_not_make_it_durable,
        a_precondition_that_holds_lets_a_commit_pass,
        a_precondition_that_fails_is_a_conflict,
        every_precondition_must_hold,
        a_kind_that_was_never_touched_is_expected_in_state_0,
        preconditions_are_those_of_the_own_account,
        created_ids_stand_in_the_order_of_the_creates,
        a_property_may_be_the_id_of_a_create_of_the_same_commit,
        an_update_may_name_the_id_of_a_create,
        an_id_that_a_property_has_already_is_kept_once,
        a_property_may_be_the_revision_of_its_commit,
        a_revision_that_a_property_has_already_is_kept_once,
        an_update_leaves_what_it_does_not_name,
        an_update_replaces_body_and_blobs,
        an_update_of_nothing_is_a_change,
        a_destroyed_record_is_gone_everywhere,
        a_commit_without_changes_changes_nothing,
        a_commit_without_changes_checks_its_preconditions,
        accounts_are_apart,
        the_ends_of_the_ranges_of_numbers_are_kept,
        bodies_of_any_bytes_are_kept,
    ],
    disk: [
        commits_survive_reopening,
        commits_survive_a_store_that_was_not_closed,
        revisions_go_on_after_reopening,
        ids_are_never_used_again_after_reopening,
    ]
}

async fn each_commit_takes_the_next_revision_of_its_account(subject: Subject) {
    let records = subject.open().await.records;
    for expected in 1..=5 {
        assert_eq!(commit(&*records, A, [email(expected)]).await.revision, Revision(expected));
    }
    assert_eq!(commit(&*records, B, [email(1)]).await.revision, Revision(1));
    assert_eq!(commit(&*records, A, [email(1)]).await.revision, Revision(6));
}

async fn all_kinds_of_an_account_share_one_sequence_of_revisions(subject: Subject) {
    let records = subject.open().await.records;
    assert_eq!(commit(&*records, A, [email(1)]).await.revision, Revision(1));
    assert_eq!(commit(&*records, A, [mailbox("Inbox")]).await.revision, Revision(2));
    assert_eq!(commit(&*records, A, [thread()]).await.revision, Revision(3));
    assert_eq!(commit(&*records, A, [email(2)]).await.revision, Revision(4));
}

async fn the_state_of_a_kind_is_the_revision_that_last_touched_it(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    commit(&*records, A, [mailbox("Inbox"), thread()]).await;
    commit(&*records, A, [rewrite(EMAIL, id, "other")]).await;
    commit(&*records, A, [thread()]).await;
    let states = records.states(A).await.unwrap();
    assert_eq!(
        (states.of(EMAIL), states.of(MAILBOX), states.of(THREAD)),
        (Revision(3), Revision(2), Revision(4))
    );
    commit(&*records, A, [destroy(EMAIL, id)]).await;
    assert_eq!(records.states(A).await.unwrap().of(EMAIL), Revision(5), "destroying touches");
}

async fn states_tell_every_kind_that_an_account_has_or_had(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, thread()).await;
    commit(&*records, A, [email(1)]).await;
    commit(&*records, A, [destroy(THREAD, id)]).await;
    let kinds = vec![(EMAIL, Revision(2)), (THREAD, Revision(3))];
    assert_eq!(records.states(A).await.unwrap(), States { revision: Revision(3), kinds });
}

async fn an_account_without_commits_is_at_revision_0(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, B, [email(1)]).await;
    assert_eq!(records.states(A).await.unwrap(), States::default());
    assert_eq!(records.states(A).await.unwrap().of(EMAIL), Revision(0));
}

async fn ids_are_the_next_of_their_account_over_all_kinds(subject: Subject) {
    let records = subject.open().await.records;
    let first = create_one(&*records, A, email(1)).await;
    let of_others = commit(&*records, A, [mailbox("Inbox"), email(2), thread()]).await.created;
    assert_eq!(of_others, [RecordId(first.0 + 1), RecordId(first.0 + 2), RecordId(first.0 + 3)]);
    assert_eq!(create_one(&*records, B, email(1)).await, first, "another account counts for itself");
}

async fn ids_are_never_used_again(subject: Subject) {
    let records = subject.open().await.records;
    let mut used = BTreeSet::new();
    for n in 0..10 {
        let id = create_one(&*records, A, email(n)).await;
        assert!(used.insert(id), "{id:?} was used before");
        commit(&*records, A, [destroy(EMAIL, id)]).await;
    }
}

async fn a_refused_commit_uses_no_id_and_no_revision(subject: Subject) {
    let records = subject.open().await.records;
    let first = create_one(&*records, A, email(1)).await;
    let bad = Commit::of([email(2), destroy(EMAIL, RecordId(99))]);
    assert_eq!(records.commit(A, bad).await.unwrap_err().kind(), ErrorKind::NotFound);
    let next = commit(&*records, A, [email(2)]).await;
    assert_eq!((next.revision, next.created), (Revision(2), vec![RecordId(first.0 + 1)]));
}

async fn all_changes_of_a_commit_are_one_revision(subject: Subject) {
    let records = subject.open().await.records;
    let old = commit(&*records, A, [email(1), email(2)]).await.created;
    let changes = [rewrite(EMAIL, old[0], "new"), destroy(EMAIL, old[1]), email(3), mailbox("Inbox")];
    let committed = commit(&*records, A, changes).await;
    assert_eq!(committed.revision, Revision(2));
    let updated = get_one(&*records, A, EMAIL, old[0]).await.unwrap();
    assert_eq!((updated.created, updated.revision), (Revision(1), Revision(2)));
    let created = get_one(&*records, A, EMAIL, committed.created[0]).await.unwrap();
    assert_eq!((created.created, created.revision), (Revision(2), Revision(2)));
    let states = records.states(A).await.unwrap();
    assert_eq!((states.of(EMAIL), states.of(MAILBOX)), (Revision(2), Revision(2)));
}

async fn a_commit_is_visible_when_it_is_answered(subject: Subject) {
    let records = subject.open().await.records;
    for n in 1..20 {
        let id = create_one(&*records, A, create(EMAIL, "hello", in_mailbox(7, n))).await;
        assert_eq!(get_one(&*records, A, EMAIL, id).await.unwrap().body, Body::new("hello"));
        let newest = Query::new(EMAIL, BY_MAILBOX).equals(7).descending().limit(1);
        assert_eq!(ids(&*records, A, &newest).await, [id]);
        assert_eq!(revision(&*records, A).await, Revision(n));
    }
}

async fn a_commit_is_made_when_all_its_gates_are_open_and_not_before(subject: Subject) {
    let records = subject.open().await.records;
    let (keepers, gates): (Vec<_>, Vec<_>) = (0..3).map(|_| Gate::new()).unzip();
    let committing = tokio::spawn({
        let records = records.clone();
        async move { records.commit_after(&gates, A, Commit::of([email(1)])).await }
    });
    for keeper in keepers {
        commit(&*records, B, [email(2)]).await; // gives the other one time
        assert!(!committing.is_finished() && revision(&*records, A).await == Revision(0));
        keeper.open();
    }
    assert_eq!(committing.await.unwrap().unwrap().revision, Revision(1));
    let (keeper, open) = Gate::new();
    keeper.open();
    let at_once = records.commit_after(&[open], A, Commit::of([email(3)])).await;
    assert_eq!(at_once.unwrap().revision, Revision(2));
}

async fn a_commit_is_not_made_when_a_gate_fails(subject: Subject) {
    let records = subject.open().await.records;
    let (open, other) = (Gate::new(), Gate::new());
    let gates = [open.1, other.1];
    let committing = records.commit_after(&gates, A, Commit::of([email(1)]));
    let (refused, ()) = tokio::join!(committing, async {
        open.0.open();
        tokio::task::yield_now().await;
        other.0.fail(Error::full("no space"));
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(commit(&*records, A, [email(2)]).await.revision, Revision(1));
}

async fn an_unsynced_blob_is_refused_where_commits_do_not_make_it_durable(subject: Subject) {
    let records = subject.open().await.records;
    assert!(!records.makes_blobs_durable());
    let blob = UnsyncedBlob { id: BlobId([7; 32]), bytes: "words".into() };
    let (keeper, gate) = Gate::of_unsynced(blob);
    keeper.open();
    let refused = records.commit_after(&[gate], A, Commit::of([email(1)])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(revision(&*records, A).await, Revision(0));
}

async fn a_precondition_that_holds_lets_a_commit_pass(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, A, [email(1)]).await;
    commit(&*records, A, [thread()]).await;
    let next = Commit::of([email(2)]).if_in_state(EMAIL, Revision(1)).if_in_state(THREAD, Revision(2));
    assert_eq!(records.commit(A, next).await.unwrap().revision, Revision(3));
}

async fn a_precondition_that_fails_is_a_conflict(subject: Subject) {
    let opened = subject.open().await;
    let records = &*opened.records;
    commit(records, A, [email(1)]).await;
    commit(records, A, [thread()]).await;
    let before = (all_of(&*opened.upkeep, A).await, records.states(A).await.unwrap());
    for state in [0, 2, u64::MAX] {
        let late = Commit::of([email(2), thread()]).if_in_state(EMAIL, Revision(state));
        assert_eq!(records.commit(A, late).await.unwrap_err().kind(), ErrorKind::Conflict, "state {state}");
    }
    assert_eq!((all_of(&*opened.upkeep, A).await, records.states(A).await.unwrap()), before);
}

async fn every_precondition_must_hold(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, A, [email(1)]).await;
    let half = Commit::of([email(2)]).if_in_state(EMAIL, Revision(1)).if_in_state(THREAD, Revision(1));
    assert_eq!(records.commit(A, half).await.unwrap_err().kind(), ErrorKind::Conflict);
    let both = Commit::of([email(2)]).if_in_state(EMAIL, Revision(1)).if_in_state(EMAIL, Revision(2));
    assert_eq!(
        records.commit(A, both).await.unwrap_err().kind(),
        ErrorKind::Conflict,
        "one kind, two states"
    );
    assert_eq!(revision(&*records, A).await, Revision(1));
}

async fn a_kind_that_was_never_touched_is_expected_in_state_0(subject: Subject) {
    let records = subject.open().await.records;
    let first = Commit::of([email(1)]).if_in_state(EMAIL, Revision(0)).if_in_state(THREAD, Revision(0));
    assert_eq!(records.commit(A, first.clone()).await.unwrap().revision, Revision(1));
    assert_eq!(records.commit(A, first).await.unwrap_err().kind(), ErrorKind::Conflict);
}

async fn preconditions_are_those_of_the_own_account(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, B, [email(1)]).await;
    let own = Commit::of([email(1)]).if_in_state(EMAIL, Revision(0));
    assert_eq!(records.commit(A, own).await.unwrap().revision, Revision(1));
}

async fn created_ids_stand_in_the_order_of_the_creates(subject: Subject) {
    let records = subject.open().await.records;
    let old = create_one(&*records, A, email(0)).await;
    let changes = [mailbox("one"), destroy(EMAIL, old), email(2), mailbox("three")];
    let created = commit(&*records, A, changes).await.created;
    assert_eq!(created.len(), 3);
    assert_eq!(get_one(&*records, A, MAILBOX, created[0]).await.unwrap().body, Body::new("one"));
    assert_eq!(get_one(&*records, A, EMAIL, created[1]).await.unwrap().body, Body::new("email 2"));
    assert_eq!(get_one(&*records, A, MAILBOX, created[2]).await.unwrap().body, Body::new("three"));
}

async fn a_property_may_be_the_id_of_a_create_of_the_same_commit(subject: Subject) {
    let records = subject.open().await.records;
    create_one(&*records, A, thread()).await; // so that ids and places differ
    let changes = [
        create(EMAIL, "one", none().with(IN, Value::Created(1)).with(RECEIVED, 5)),
        mailbox("Inbox"),
        create(EMAIL, "two", none().with(IN, Value::Created(1)).with(RECEIVED, Value::Created(2))),
    ];
    let created = commit(&*records, A, changes).await.created;
    let inbox = Query::new(EMAIL, BY_MAILBOX).equals(created[1]);
    assert_eq!(ids(&*records, A, &inbox).await, [created[2], created[0]], "the third id is below 5");
    let own = get_one(&*records, A, EMAIL, created[2]).await.unwrap().properties;
    assert_eq!(own, none().with(IN, created[1]).with(RECEIVED, created[2]), "it is stored as a number");
}

async fn an_update_may_name_the_id_of_a_create(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    let properties = Some(none().with(IN, Value::Created(0)).with(RECEIVED, 1));
    let update = Change::Update { kind: EMAIL, id, body: None, properties };
    let created = commit(&*records, A, [update, mailbox("Inbox")]).await.created;
    let inbox = Query::new(EMAIL, BY_MAILBOX).equals(created[0]);
    assert_eq!(ids(&*records, A, &inbox).await, [id]);
}

async fn an_id_that_a_property_has_already_is_kept_once(subject: Subject) {
    let records = subject.open().await.records;
    let inbox = create_one(&*records, A, mailbox("Inbox")).await;
    let next = RecordId(inbox.0 + 1);
    let properties = none().with(IN, next).with(IN, Value::Created(0)).with(RECEIVED, 1);
    let id = create_one(&*records, A, create(EMAIL, "", properties)).await;
    assert_eq!(id, next);
    let stored = get_one(&*records, A, EMAIL, id).await.unwrap().properties;
    assert_eq!(stored, none().with(IN, next).with(RECEIVED, 1));
    assert_eq!(ids(&*records, A, &Query::new(EMAIL, BY_MAILBOX)).await, [id]);
}

async fn a_property_may_be_the_revision_of_its_commit(subject: Subject) {
    let records = subject.open().await.records;
    create_one(&*records, A, thread()).await; // so that the revision is not 1
    let received_now = || none().with(IN, 1).with(RECEIVED, Value::Revision);
    let first = commit(&*records, A, [create(EMAIL, "first", received_now())]).await;
    let second = commit(&*records, A, [create(EMAIL, "second", in_mailbox(1, 1))]).await;
    let update =
        Change::Update { kind: EMAIL, id: second.created[0], body: None, properties: Some(received_now()) };
    commit(&*records, A, [update]).await;
    let stored = get_one(&*records, A, EMAIL, first.created[0]).await.unwrap();
    assert_eq!(stored.properties, in_mailbox(1, 2), "it is stored as a number");
    assert_eq!(stored.revision, Revision(2));
    let of_revision_4 = Query::new(EMAIL, BY_MAILBOX).equals(1).equals(4);
    assert_eq!(ids(&*records, A, &of_revision_4).await, [second.created[0]], "an index has the number");
}

async fn a_revision_that_a_property_has_already_is_kept_once(subject: Subject) {
    let records = subject.open().await.records;
    let properties = in_mailbox(1, 1).with(RECEIVED, Value::Revision);
    let id = create_one(&*records, A, create(EMAIL, "", properties)).await;
    assert_eq!(get_one(&*records, A, EMAIL, id).await.unwrap().properties, in_mailbox(1, 1));
    assert_eq!(ids(&*records, A, &Query::new(EMAIL, BY_MAILBOX)).await, [id]);
}

async fn an_update_leaves_what_it_does_not_name(subject: Subject) {
    let records = subject.open().await.records;
    let body = Body { bytes: "hello".into(), blobs: vec![blob(1)] };
    let properties = in_mailbox(1, 1).with(KEYWORD, "seen").with(SIZE, 9);
    let create = Change::Create { kind: EMAIL, body: body.clone(), properties: properties.clone() };
    let id = create_one(&*records, A, create).await;
    commit(&*records, A, [move_to(id, 2, 1)]).await;
    let moved = get_one(&*records, A, EMAIL, id).await.unwrap();
    assert_eq!((moved.body, moved.properties), (body, in_mailbox(2, 1)), "all properties are replaced");
    commit(&*records, A, [rewrite(EMAIL, id, "new")]).await;
    let rewritten = get_one(&*records, A, EMAIL, id).await.unwrap();
    assert_eq!((rewritten.body, rewritten.properties), (Body::new("new"), in_mailbox(2, 1)));
    assert_eq!((rewritten.created, rewritten.revision), (Revision(1), Revision(3)));
    assert!(ids(&*records, A, &Query::new(EMAIL, BY_KEYWORD)).await.is_empty(), "the old entries are gone");
    assert_eq!(ids(&*records, A, &Query::new(EMAIL, BY_MAILBOX)).await, [id]);
}

async fn an_update_replaces_body_and_blobs(subject: Subject) {
    let records = subject.open().await.records;
    let body = Body { bytes: "hello".into(), blobs: vec![blob(1), blob(2), blob(1)] };
    let create = Change::Create { kind: THREAD, body: body.clone(), properties: none() };
    let id = create_one(&*records, A, create).await;
    assert_eq!(get_one(&*records, A, THREAD, id).await.unwrap().body, body, "blobs stand as they were given");
    let body = Body { bytes: "other".into(), blobs: vec![blob(3)] };
    let update = Change::Update { kind: THREAD, id, body: Some(body.clone()), properties: None };
    commit(&*records, A, [update]).await;
    assert_eq!(get_one(&*records, A, THREAD, id).await.unwrap().body, body);
}

async fn an_update_of_nothing_is_a_change(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    let update = Change::Update { kind: EMAIL, id, body: None, properties: None };
    assert_eq!(commit(&*records, A, [update]).await.revision, Revision(2));
    let record = get_one(&*records, A, EMAIL, id).await.unwrap();
    assert_eq!((record.revision, record.body), (Revision(2), Body::new("email 1")));
    assert_eq!(records.states(A).await.unwrap().of(EMAIL), Revision(2));
}

async fn a_destroyed_record_is_gone_everywhere(subject: Subject) {
    let opened = subject.open().await;
    let records = &*opened.records;
    let properties = in_mailbox(1, 1).with(KEYWORD, "seen").with(HASH, 5);
    let id = create_one(records, A, create(EMAIL, "hello", properties)).await;
    commit(records, A, [destroy(EMAIL, id)]).await;
    assert_eq!(get_one(records, A, EMAIL, id).await, None);
    assert!(ids(records, A, &Query::new(EMAIL, BY_MAILBOX)).await.is_empty());
    assert!(ids(records, A, &Query::new(EMAIL, BY_KEYWORD)).await.is_empty());
    let by_hash = Query::new(EMAIL, BY_HASH).equals(5);
    assert!(ids(records, A, &by_hash).await.is_empty());
    assert!(all_of(&*opened.upkeep, A).await.is_empty());
}

async fn a_commit_without_changes_changes_nothing(subject: Subject) {
    let opened = subject.open().await;
    let records = &*opened.records;
    let nothing = records.commit(A, Commit::default()).await.unwrap();
    assert_eq!((nothing.revision, nothing.created), (Revision(0), Vec::new()));
    assert_eq!(opened.upkeep.stats().await.unwrap().accounts, 0);
    commit(records, A, [email(1)]).await;
    let before = (records.states(A).await.unwrap(), crate::common::last_position(&*opened.feed).await);
    let nothing = records.commit(A, Commit::default()).await.unwrap();
    assert_eq!((nothing.revision, nothing.created), (Revision(1), Vec::new()));
    assert_eq!((records.states(A).await.unwrap(), crate::common::last_position(&*opened.feed).await), before);
}

async fn a_commit_without_changes_checks_its_preconditions(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, A, [email(1)]).await;
    let holds = Commit::default().if_in_state(EMAIL, Revision(1));
    assert_eq!(records.commit(A, holds).await.unwrap().revision, Revision(1));
    let fails = Commit::default().if_in_state(EMAIL, Revision(0));
    assert_eq!(records.commit(A, fails).await.unwrap_err().kind(), ErrorKind::Conflict);
}

async fn accounts_are_apart(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    create_one(&*records, LAST, create(EMAIL, "theirs", in_mailbox(1, 1))).await;
    assert_eq!(get_one(&*records, B, EMAIL, id).await, None);
    assert_eq!(get_one(&*records, A, EMAIL, id).await.unwrap().body, Body::new("email 1"));
    assert_eq!(get_one(&*records, LAST, EMAIL, id).await.unwrap().body, Body::new("theirs"));
    assert!(ids(&*records, B, &Query::new(EMAIL, BY_MAILBOX)).await.is_empty());
    assert_eq!(ids(&*records, LAST, &Query::new(EMAIL, BY_MAILBOX)).await.len(), 1);
    let others = Commit::of([destroy(EMAIL, id)]);
    assert_eq!(records.commit(B, others).await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn the_ends_of_the_ranges_of_numbers_are_kept(subject: Subject) {
    let records = subject.open().await.records;
    let mut expected: Vec<(RecordId, Properties)> = Vec::new();
    for n in [0, 1, 255, 256, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let properties = none().with(IN, n).with(RECEIVED, n);
        let id = create_one(&*records, LAST, create(EMAIL, "", properties.clone())).await;
        expected.push((id, properties));
    }
    let ids_in_order: Vec<RecordId> = expected.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids(&*records, LAST, &Query::new(EMAIL, BY_MAILBOX)).await, ids_in_order);
    for (id, properties) in expected {
        assert_eq!(get_one(&*records, LAST, EMAIL, id).await.unwrap().properties, properties);
    }
}

async fn bodies_of_any_bytes_are_kept(subject: Subject) {
    let records = subject.open().await.records;
    let all_bytes: Vec<u8> = (0..=255).collect();
    for bytes in [vec![], vec![0], vec![0; 5_000], all_bytes, vec![255; 3]] {
        let body = Body::new(bytes);
        let create = Change::Create { kind: THREAD, body: body.clone(), properties: none() };
        let id = create_one(&*records, A, create).await;
        assert_eq!(get_one(&*records, A, THREAD, id).await.unwrap().body, body);
    }
}

/// A bit of everything.
async fn make_a_history(records: &dyn Records) {
    let created = commit(records, A, (0..50).map(email)).await.created;
    commit(records, B, [mailbox("Inbox"), email(1)]).await;
    commit_one(records, A, move_to(created[3], 9, 9)).await;
    commit_one(records, A, rewrite(EMAIL, created[4], "rewritten")).await;
    commit_one(records, A, destroy(EMAIL, created[5])).await;
}

/// What readers see of this history.
async fn seen(opened: &Opened) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut all = Vec::new();
    for account in [A, B] {
        let by_mailbox = ids(&*opened.records, account, &Query::new(EMAIL, BY_MAILBOX)).await;
        let states = opened.records.states(account).await.unwrap();
        let since = ChangesSince { kind: None, since: Revision(1), limit: 100 };
        let changes = opened.records.changes(account, &since).await.unwrap();
        all.push((all_of(&*opened.upkeep, account).await, by_mailbox, states, changes));
    }
    all
}

async fn commits_survive_reopening(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&*opened.records).await;
    let before = seen(&opened).await;
    let opened = subject.reopen(opened).await;
    assert!(seen(&opened).await == before);
}

async fn commits_survive_a_store_that_was_not_closed(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&*opened.records).await;
    let before = seen(&opened).await;
    drop(opened);
    let opened = subject.open().await;
    assert!(seen(&opened).await == before);
    let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
    assert_eq!(report.findings, []);
}

async fn revisions_go_on_after_reopening(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    commit(&*opened.records, A, [thread()]).await;
    let opened = subject.reopen(opened).await;
    let next = Commit::of([email(2)]).if_in_state(EMAIL, Revision(1)).if_in_state(THREAD, Revision(2));
    assert_eq!(opened.records.commit(A, next).await.unwrap().revision, Revision(3));
}

async fn ids_are_never_used_again_after_reopening(subject: Subject) {
    let mut opened = subject.open().await;
    let mut used = BTreeSet::new();
    for n in 0..5 {
        let id = create_one(&*opened.records, A, email(n)).await;
        assert!(used.insert(id), "{id:?} was used before");
        commit(&*opened.records, A, [destroy(EMAIL, id)]).await;
        opened = subject.reopen(opened).await;
    }
    // Also when nothing that refers to them is left.
    subject.set_seconds(100);
    opened.upkeep.clean(Timestamp::from_seconds(50), 1_000).await.unwrap();
    let opened = subject.reopen(opened).await;
    let id = create_one(&*opened.records, A, email(9)).await;
    assert!(used.insert(id), "{id:?} was used before");
}
