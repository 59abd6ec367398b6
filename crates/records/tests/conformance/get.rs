//! What `get` promises.

use restante_core::ErrorKind;
use restante_records::{Body, Change, GET_RECORDS_MAX, Get, Record, RecordId, Revision};

use crate::{
    Subject,
    common::{
        A, B, EMAIL, IN, KEYWORD, MAILBOX, NO_KIND, SIZE, THREAD, blob, commit, create, create_one, destroy,
        email, get_one, mailbox, none, rewrite, thread,
    },
};

crate::promises! {
    any: [
        records_stand_in_the_order_of_the_ids,
        a_record_that_is_not_there_is_none,
        a_record_of_another_kind_is_none,
        an_id_asked_for_twice_is_answered_twice,
        a_record_is_whole,
        a_body_that_is_not_asked_for_is_empty,
        no_ids_are_answered_with_no_records,
        as_many_ids_as_are_allowed_are_answered,
        records_close_together_are_found_whatever_became_of_their_bodies,
        too_many_ids_are_refused,
        a_get_of_an_unknown_kind_is_refused,
        what_a_get_gave_stays_as_it_was,
        a_state_that_comes_with_records_is_that_of_their_kind,
    ],
    disk: []
}

async fn records_stand_in_the_order_of_the_ids(subject: Subject) {
    let records = subject.open().await.records;
    let mut ids = commit(&*records, A, (0..5).map(email)).await.created;
    ids.reverse();
    ids.swap(1, 3);
    let got = records.get(A, &Get::whole(EMAIL, ids.clone())).await.unwrap();
    assert_eq!(got.into_iter().map(|record| record.unwrap().id).collect::<Vec<_>>(), ids);
}

async fn a_record_that_is_not_there_is_none(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    let asked = vec![RecordId(id.0 + 1), id, RecordId(0), RecordId(u64::MAX)];
    let got = records.get(A, &Get::whole(EMAIL, asked)).await.unwrap();
    assert_eq!(got.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false, false]);
}

async fn a_record_of_another_kind_is_none(subject: Subject) {
    let records = subject.open().await.records;
    let created = commit(&*records, A, [email(1), mailbox("Inbox")]).await.created;
    let got = records.get(A, &Get::small(MAILBOX, created.clone())).await.unwrap();
    assert_eq!(got[0], None);
    assert_eq!(got[1].as_ref().map(|record| (record.kind, record.id)), Some((MAILBOX, created[1])));
}

async fn an_id_asked_for_twice_is_answered_twice(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    let got = records.get(A, &Get::whole(EMAIL, vec![id, id])).await.unwrap();
    assert_eq!(got.len(), 2);
    assert!(got[0].is_some() && got[0] == got[1]);
}

async fn a_record_is_whole(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, A, [thread()]).await;
    let properties = none().with(IN, 3).with(IN, "three").with(KEYWORD, "$seen").with(SIZE, 0).with(SIZE, "");
    let body = Body { bytes: "hello".into(), blobs: vec![blob(2), blob(1)] };
    let change = Change::Create { kind: EMAIL, body: body.clone(), properties: properties.clone() };
    let id = create_one(&*records, A, change).await;
    let (revision, created) = (Revision(2), Revision(2));
    let whole = Record { kind: EMAIL, id, revision, created, body, properties };
    assert_eq!(get_one(&*records, A, EMAIL, id).await, Some(whole));
}

async fn a_body_that_is_not_asked_for_is_empty(subject: Subject) {
    let records = subject.open().await.records;
    let body = Body { bytes: "hello".into(), blobs: vec![blob(1)] };
    let properties = none().with(IN, 3);
    let change = Change::Create { kind: EMAIL, body, properties: properties.clone() };
    let id = create_one(&*records, A, change).await;
    let small = records.get(A, &Get::small(EMAIL, vec![id])).await.unwrap().remove(0).unwrap();
    assert_eq!((small.body, small.properties), (Body::default(), properties));
}

async fn no_ids_are_answered_with_no_records(subject: Subject) {
    let records = subject.open().await.records;
    assert_eq!(records.get(A, &Get::whole(EMAIL, vec![])).await.unwrap(), []);
}

async fn as_many_ids_as_are_allowed_are_answered(subject: Subject) {
    let records = subject.open().await.records;
    let created = commit(&*records, A, (0..GET_RECORDS_MAX).map(|n| create(THREAD, &n.to_string(), none())))
        .await
        .created;
    let got = records.get(A, &Get::whole(THREAD, created)).await.unwrap();
    for (n, record) in got.into_iter().enumerate() {
        assert_eq!(record.unwrap().body, Body::new(n.to_string()));
    }
}

/// An engine may read ranges of rows for them, which contain gaps, other kinds, and bodies that were replaced.
async fn records_close_together_are_found_whatever_became_of_their_bodies(subject: Subject) {
    let records = subject.open().await.records;
    let mut created = Vec::new();
    for n in 0..30 {
        created.extend(commit(&*records, A, [email(n), thread()]).await.created.first().copied());
        create_one(&*records, B, email(100 + n)).await;
    }
    for n in (0..30).step_by(7) {
        commit(&*records, A, [rewrite(EMAIL, created[n], &format!("new {n}"))]).await;
    }
    for n in (3..30).step_by(5) {
        commit(&*records, A, [destroy(EMAIL, created[n])]).await;
    }
    for (first, step) in [(0, 1), (0, 2), (5, 1), (20, 1), (1, 3)] {
        let mut asked: Vec<usize> = (first..30).step_by(step).collect();
        asked.reverse();
        asked.push(first); // twice
        let ids = asked.iter().map(|n| created[*n]).collect();
        let got = records.get(A, &Get::whole(EMAIL, ids)).await.unwrap();
        let bodies = got.into_iter().map(|record| record.map(|record| record.body));
        let expected = asked.iter().map(|n| match n {
            n if n % 5 == 3 => None,
            n if n % 7 == 0 => Some(Body::new(format!("new {n}"))),
            n => Some(Body::new(format!("email {n}"))),
        });
        assert_eq!(bodies.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "from {first} by {step}");
    }
}

async fn too_many_ids_are_refused(subject: Subject) {
    let records = subject.open().await.records;
    let many = (0..=GET_RECORDS_MAX as u64).map(RecordId).collect();
    assert_eq!(records.get(A, &Get::small(EMAIL, many)).await.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn a_get_of_an_unknown_kind_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    assert_eq!(records.get(A, &Get::small(NO_KIND, vec![])).await.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn what_a_get_gave_stays_as_it_was(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    let before = get_one(&*records, A, EMAIL, id).await.unwrap();
    commit(&*records, A, [destroy(EMAIL, id)]).await;
    commit(&*records, A, (0..500).map(email)).await;
    assert_eq!(before.body, Body::new("email 1"));
}

async fn a_state_that_comes_with_records_is_that_of_their_kind(subject: Subject) {
    let records = subject.open().await.records;
    let get = |ids: Vec<RecordId>| Get::whole(EMAIL, ids);
    assert_eq!(records.get_with_state(A, &get(Vec::new())).await.unwrap(), (Revision(0), Vec::new()));
    for _ in 0..3 {
        let id = create_one(&*records, A, email(1)).await;
        let state = records.states(A).await.unwrap().of(EMAIL);
        // A commit of another kind does not change it.
        create_one(&*records, A, mailbox("box")).await;
        for ids in [vec![id], vec![RecordId(id.0 + 1), id], Vec::new()] {
            let found = records.get(A, &get(ids.clone())).await.unwrap();
            assert_eq!(records.get_with_state(A, &get(ids)).await.unwrap(), (state, found));
        }
    }
    let refused = records.get_with_state(A, &Get::whole(NO_KIND, Vec::new())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}
