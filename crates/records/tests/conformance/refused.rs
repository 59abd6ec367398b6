//! What `commit` refuses, and that a refused commit leaves nothing behind.

use bytes::Bytes;
use restante_core::ErrorKind;
use restante_records::{
    BODY_BLOBS_MAX, BODY_BYTES_MAX, Body, COMMIT_BYTES_MAX, COMMIT_CHANGES_MAX, Change, Commit,
    INDEX_ENTRIES_MAX, INDEX_VALUES_BYTES_MAX, Opened, Properties, Property, Query, RecordId, Records,
    Revision, TEXT_BYTES_MAX, Value,
};

use crate::{
    Subject,
    common::{
        A, B, BY_ALL, BY_MAILBOX, EMAIL, IN, KEYWORD, MAILBOX, NAME, NO_KIND, NO_PROPERTY, RECEIVED, SIZE,
        THREAD, blob, commit, create, create_one, destroy, email, get_one, ids, in_mailbox, mailbox,
        mirror::all_of, none, rewrite, thread, walk,
    },
};

crate::promises! {
    any: [
        a_record_that_is_not_there_is_not_changed,
        a_record_of_another_kind_is_not_changed,
        a_destroyed_record_is_not_changed,
        an_unknown_kind_is_refused,
        an_unknown_property_is_refused,
        a_record_that_stands_in_two_changes_is_refused,
        a_created_that_names_no_create_is_refused,
        too_many_changes_are_refused,
        too_long_a_body_is_refused,
        too_many_blobs_are_refused,
        too_many_bytes_are_refused,
        blobs_count_towards_the_bytes,
        too_long_a_text_is_refused,
        too_many_entries_of_an_index_are_refused,
        too_long_entries_of_an_index_are_refused,
        too_many_preconditions_are_refused,
        an_invalid_commit_is_refused_before_a_conflict_is_reported,
        refused_commits_leave_nothing_behind,
    ],
    disk: []
}

async fn refusal(records: &dyn Records, changes: impl IntoIterator<Item = Change>) -> ErrorKind {
    records.commit(A, Commit::of(changes)).await.unwrap_err().kind()
}

async fn a_record_that_is_not_there_is_not_changed(subject: Subject) {
    let records = subject.open().await.records;
    for changes in [destroy(EMAIL, RecordId(5)), rewrite(EMAIL, RecordId(5), "new")] {
        assert_eq!(refusal(&*records, [changes]).await, ErrorKind::NotFound);
    }
    let id = create_one(&*records, A, email(1)).await;
    for id in [RecordId(id.0 + 1), RecordId(0), RecordId(u64::MAX)] {
        assert_eq!(refusal(&*records, [destroy(EMAIL, id)]).await, ErrorKind::NotFound);
    }
    let next = RecordId(id.0 + 1);
    let own = refusal(&*records, [email(2), rewrite(EMAIL, next, "new")]).await;
    assert_eq!(own, ErrorKind::NotFound, "what the same commit creates is not there yet");
}

async fn a_record_of_another_kind_is_not_changed(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    assert_eq!(refusal(&*records, [destroy(MAILBOX, id)]).await, ErrorKind::NotFound);
    assert_eq!(refusal(&*records, [rewrite(THREAD, id, "new")]).await, ErrorKind::NotFound);
    assert_eq!(get_one(&*records, A, EMAIL, id).await.unwrap().body, Body::new("email 1"));
}

async fn a_destroyed_record_is_not_changed(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    commit(&*records, A, [destroy(EMAIL, id)]).await;
    assert_eq!(refusal(&*records, [destroy(EMAIL, id)]).await, ErrorKind::NotFound);
    assert_eq!(refusal(&*records, [rewrite(EMAIL, id, "new")]).await, ErrorKind::NotFound);
}

async fn an_unknown_kind_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    for change in [create(NO_KIND, "", none()), rewrite(NO_KIND, id, ""), destroy(NO_KIND, id)] {
        assert_eq!(refusal(&*records, [change]).await, ErrorKind::Invalid);
    }
    let expecting = Commit::default().if_in_state(NO_KIND, Revision(0));
    assert_eq!(records.commit(A, expecting).await.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn an_unknown_property_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    let properties = none().with(NO_PROPERTY, 1);
    assert_eq!(refusal(&*records, [create(EMAIL, "", properties.clone())]).await, ErrorKind::Invalid);
    let update = Change::Update { kind: EMAIL, id, body: None, properties: Some(properties) };
    assert_eq!(refusal(&*records, [update]).await, ErrorKind::Invalid);
    let of_email = none().with(RECEIVED, 1);
    assert_eq!(
        refusal(&*records, [create(MAILBOX, "", of_email)]).await,
        ErrorKind::Invalid,
        "of another kind"
    );
}

async fn a_record_that_stands_in_two_changes_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    let change = || [rewrite(EMAIL, id, "new"), destroy(EMAIL, id)];
    for first in change() {
        for second in change() {
            let both = [first.clone(), thread(), second];
            assert_eq!(refusal(&*records, both).await, ErrorKind::Invalid);
        }
    }
}

async fn a_created_that_names_no_create_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    let with = |n: u16| create(EMAIL, "", none().with(IN, Value::Created(n)).with(RECEIVED, 1));
    assert_eq!(refusal(&*records, [with(1)]).await, ErrorKind::Invalid);
    assert_eq!(refusal(&*records, [with(0), mailbox("Inbox"), with(3)]).await, ErrorKind::Invalid);
    assert_eq!(refusal(&*records, [with(u16::MAX)]).await, ErrorKind::Invalid);
    let id = create_one(&*records, A, email(1)).await;
    let properties = Some(none().with(IN, Value::Created(0)));
    let update = Change::Update { kind: EMAIL, id, body: None, properties };
    assert_eq!(refusal(&*records, [update]).await, ErrorKind::Invalid);
}

async fn too_many_changes_are_refused(subject: Subject) {
    let records = subject.open().await.records;
    let most = commit(&*records, A, (0..COMMIT_CHANGES_MAX).map(|_| thread())).await;
    assert_eq!(most.created.len(), COMMIT_CHANGES_MAX);
    let destroyed = most.created.into_iter().map(|id| destroy(THREAD, id));
    let more = refusal(&*records, destroyed.clone().chain([thread()])).await;
    assert_eq!(more, ErrorKind::Invalid);
    assert_eq!(commit(&*records, A, destroyed).await.revision, Revision(2));
}

fn with_body(bytes: usize) -> Change {
    create(THREAD, &"x".repeat(bytes), none())
}

async fn too_long_a_body_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, with_body(BODY_BYTES_MAX)).await;
    assert_eq!(get_one(&*records, A, THREAD, id).await.unwrap().body.bytes.len(), BODY_BYTES_MAX);
    assert_eq!(refusal(&*records, [with_body(BODY_BYTES_MAX + 1)]).await, ErrorKind::Invalid);
    let update = rewrite(THREAD, id, &"x".repeat(BODY_BYTES_MAX + 1));
    assert_eq!(refusal(&*records, [update]).await, ErrorKind::Invalid);
}

fn with_blobs(blobs: usize) -> Change {
    let blobs = (0..blobs as u64).map(blob).collect();
    Change::Create { kind: THREAD, body: Body { bytes: Bytes::new(), blobs }, properties: none() }
}

async fn too_many_blobs_are_refused(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, with_blobs(BODY_BLOBS_MAX)).await;
    assert_eq!(get_one(&*records, A, THREAD, id).await.unwrap().body.blobs.len(), BODY_BLOBS_MAX);
    assert_eq!(refusal(&*records, [with_blobs(BODY_BLOBS_MAX + 1)]).await, ErrorKind::Invalid);
}

/// Bodies that compression can't shorten, such as those of encrypted mail.
fn random_bodies() -> Vec<Change> {
    use rand::{Rng, SeedableRng};
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(6);
    let bodies = (0..COMMIT_BYTES_MAX / BODY_BYTES_MAX).map(|_| {
        let mut bytes = vec![0; BODY_BYTES_MAX];
        random.fill_bytes(&mut bytes);
        Change::Create { kind: THREAD, body: Body::new(bytes), properties: none() }
    });
    bodies.collect()
}

async fn too_many_bytes_are_refused(subject: Subject) {
    let records = subject.open().await.records;
    let most = random_bodies();
    let created = commit(&*records, A, most.clone()).await.created;
    for (id, change) in created.into_iter().zip(&most) {
        let Change::Create { body, .. } = change else { unreachable!("all are creates") };
        assert!(get_one(&*records, A, THREAD, id).await.unwrap().body == *body);
    }
    let more = most.iter().cloned().chain([with_body(1)]);
    assert_eq!(refusal(&*records, more).await, ErrorKind::Invalid);
    let texts = most.into_iter().chain([create(MAILBOX, "", none().with(NAME, "x"))]);
    assert_eq!(refusal(&*records, texts).await, ErrorKind::Invalid, "properties count, too");
}

async fn blobs_count_towards_the_bytes(subject: Subject) {
    let records = subject.open().await.records;
    let bodies = COMMIT_BYTES_MAX / (32 * BODY_BLOBS_MAX);
    let most = (0..bodies).map(|_| with_blobs(BODY_BLOBS_MAX));
    assert_eq!(commit(&*records, A, most.clone()).await.created.len(), bodies);
    assert_eq!(refusal(&*records, most.chain([with_blobs(1)])).await, ErrorKind::Invalid);
}

fn with_text(bytes: usize) -> Properties {
    none().with(NAME, Bytes::from(vec![b'x'; bytes]))
}

async fn too_long_a_text_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    let properties = with_text(TEXT_BYTES_MAX);
    let id = create_one(&*records, A, create(MAILBOX, "", properties.clone())).await;
    assert_eq!(get_one(&*records, A, MAILBOX, id).await.unwrap().properties, properties);
    let longer = create(MAILBOX, "", with_text(TEXT_BYTES_MAX + 1));
    assert_eq!(refusal(&*records, [longer]).await, ErrorKind::Invalid);
}

fn with_values(property: Property, count: usize) -> Properties {
    (0..count as u64).map(|n| (property, Value::Number(n))).collect()
}

async fn too_many_entries_of_an_index_are_refused(subject: Subject) {
    let records = subject.open().await.records;
    let all = Query::new(EMAIL, BY_MAILBOX);
    let most = with_values(IN, INDEX_ENTRIES_MAX).with(RECEIVED, 1);
    let id = create_one(&*records, A, create(EMAIL, "", most.clone())).await;
    assert_eq!(walk(&*records, A, &all).await, vec![id; INDEX_ENTRIES_MAX]);
    let product = most.with(RECEIVED, 2);
    assert_eq!(refusal(&*records, [create(EMAIL, "", product.clone())]).await, ErrorKind::Invalid);
    let update = Change::Update { kind: EMAIL, id, body: None, properties: Some(product) };
    assert_eq!(refusal(&*records, [update]).await, ErrorKind::Invalid);
    let without_index = with_values(SIZE, INDEX_ENTRIES_MAX + 1);
    let id = create_one(&*records, A, create(EMAIL, "", without_index.clone())).await;
    assert_eq!(get_one(&*records, A, EMAIL, id).await.unwrap().properties, without_index);
}

/// An email whose entry in the index of everything has this many bytes: each of the three texts takes three more than it
/// has, and one more for each zero in it.
fn with_entry_of(bytes: usize) -> Properties {
    let zeros = bytes - 3 * (TEXT_BYTES_MAX + 3);
    let mut properties = none();
    for (place, property) in [KEYWORD, IN, RECEIVED].into_iter().enumerate() {
        let own = zeros.saturating_sub(place * TEXT_BYTES_MAX).min(TEXT_BYTES_MAX);
        let text = [vec![0; own], vec![b'x'; TEXT_BYTES_MAX - own]].concat();
        properties.add(property, Value::Text(text.into()));
    }
    properties
}

async fn too_long_entries_of_an_index_are_refused(subject: Subject) {
    let records = subject.open().await.records;
    // Without zeros the three texts fill less than an entry may have.
    let most = create(EMAIL, "", with_entry_of(INDEX_VALUES_BYTES_MAX));
    let id = create_one(&*records, A, most).await;
    assert_eq!(ids(&*records, A, &Query::new(EMAIL, BY_ALL)).await, [id]);
    let more = create(EMAIL, "", with_entry_of(INDEX_VALUES_BYTES_MAX + 1));
    assert_eq!(refusal(&*records, [more]).await, ErrorKind::Invalid);
}

async fn too_many_preconditions_are_refused(subject: Subject) {
    let records = subject.open().await.records;
    let many = Commit { expect: vec![(EMAIL, Revision(0)); 256], changes: Vec::new() };
    assert_eq!(records.commit(A, many.clone()).await.unwrap().revision, Revision(0));
    let more = many.if_in_state(EMAIL, Revision(0));
    assert_eq!(records.commit(A, more).await.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn an_invalid_commit_is_refused_before_a_conflict_is_reported(subject: Subject) {
    let records = subject.open().await.records;
    let missing = destroy(EMAIL, RecordId(99));
    let conflict = Commit::of([missing.clone()]).if_in_state(EMAIL, Revision(9));
    assert_eq!(records.commit(A, conflict).await.unwrap_err().kind(), ErrorKind::Conflict);
    let wrong = Commit::of([missing, create(NO_KIND, "", none())]).if_in_state(EMAIL, Revision(9));
    assert_eq!(records.commit(A, wrong).await.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn everything(opened: &Opened) -> impl PartialEq + use<> {
    let mut all = vec![];
    for account in [A, B] {
        let by_mailbox = ids(&*opened.records, account, &Query::new(EMAIL, BY_MAILBOX)).await;
        let states = opened.records.states(account).await.unwrap();
        all.push((all_of(&*opened.upkeep, account).await, by_mailbox, states));
    }
    let stats = opened.upkeep.stats().await.unwrap();
    (all, crate::common::last_position(&*opened.feed).await, stats.accounts, stats.kinds, stats.commits)
}

async fn refused_commits_leave_nothing_behind(subject: Subject) {
    let opened = subject.open().await;
    let created = commit(&*opened.records, A, (0..10).map(email)).await.created;
    let before = everything(&opened).await;
    // Each starts with changes that could be made.
    let good = || {
        let moved = Change::Update {
            kind: EMAIL,
            id: created[1],
            body: Some(Body::new("new")),
            properties: Some(in_mailbox(50, 50)),
        };
        vec![email(77), moved, destroy(EMAIL, created[2])]
    };
    let bad = [
        destroy(EMAIL, RecordId(99)),
        destroy(EMAIL, created[1]),
        create(NO_KIND, "", none()),
        create(EMAIL, "", none().with(NO_PROPERTY, 1)),
        with_body(BODY_BYTES_MAX + 1),
        create(EMAIL, "", none().with(IN, Value::Created(9))),
    ];
    for account in [A, B] {
        for last in &bad {
            let changes = good().into_iter().chain([last.clone()]);
            opened.records.commit(account, Commit::of(changes)).await.unwrap_err();
            assert!(everything(&opened).await == before, "{last:?}");
        }
    }
    assert_eq!(commit(&*opened.records, A, good()).await.revision, Revision(2));
    let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
    assert_eq!(report.findings, []);
}
