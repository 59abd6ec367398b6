//! What opening promises, and how it handles a schema that has changed.

use restante_core::ErrorKind;
use restante_records::{
    Change, Commit, Config, INDEX_ENTRIES_MAX, Index, IndexSchema, KindSchema, Opened, Query, Revision,
    Schema, Value, open,
};

use crate::{
    Subject,
    common::{
        A, B, BY_HASH, BY_MAILBOX, EMAIL, HASH, IN, NO_KIND, RECEIVED, SIZE, commit, create, create_one,
        destroy, email, email_schema, get_one, ids, in_mailbox, mailbox, mailbox_schema, none,
    },
};

crate::promises! {
    any: [a_new_store_is_empty, a_kind_that_the_schema_lacks_is_refused],
    disk: [
        a_store_that_was_closed_can_be_opened,
        a_store_that_must_exist_is_not_made,
        a_new_index_is_made_on_opening,
        a_new_scattered_index_is_made_on_opening,
        an_index_that_was_dropped_is_made_anew,
        an_index_that_changed_its_parts_is_made_anew,
        an_index_that_records_do_not_fit_is_refused,
        a_new_kind_is_added_on_opening,
    ],
    files: [a_store_that_is_open_is_not_opened_again]
}

const BY_SIZE: Index = Index(9);
const BY_SIZE_SCATTERED: Index = Index(10);

async fn a_new_store_is_empty(subject: Subject) {
    let opened = subject.open().await;
    assert_eq!(opened.upkeep.dump(None, 10).await.unwrap(), []);
    assert_eq!(opened.upkeep.stats().await.unwrap().commits, 0);
    assert_eq!(opened.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

async fn a_kind_that_the_schema_lacks_is_refused(subject: Subject) {
    let opened = subject.open_with(Schema::new(vec![mailbox_schema()]).unwrap()).await;
    let refused = opened.records.commit(A, Commit::of([email(1)])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    commit(&*opened.records, A, [mailbox("Inbox")]).await;
}

async fn a_store_that_is_open_is_not_opened_again(subject: Subject) {
    let opened = subject.open().await;
    let Err(error) = open(subject.config.clone()).await else { panic!("it was opened twice") };
    assert_eq!(error.kind(), ErrorKind::Conflict);
    commit(&*opened.records, A, [email(1)]).await;
}

async fn a_store_that_must_exist_is_not_made(subject: Subject) {
    let existing = Config { must_exist: true, ..subject.config.clone() };
    for _ in 0..2 {
        let Err(error) = open(existing.clone()).await else { panic!("it was made") };
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let opened = open(existing).await.unwrap();
    assert_eq!(opened.upkeep.stats().await.unwrap().commits, 1);
}

async fn a_store_that_was_closed_can_be_opened(subject: Subject) {
    for expected in 1..4 {
        let opened = subject.open().await;
        assert_eq!(commit(&*opened.records, A, [email(1)]).await.revision, Revision(expected));
        opened.upkeep.close().await.unwrap();
    }
}

/// Closes a store and opens it with another schema.
async fn reopen_with(subject: &Subject, opened: Opened, emails: KindSchema) -> Opened {
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let opened = subject.open_with(Schema::new(vec![emails, mailbox_schema()]).unwrap()).await;
    assert_eq!(opened.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    opened
}

fn sized(size: u64) -> Change {
    create(EMAIL, "", in_mailbox(1, size).with(SIZE, 100 - size).with(HASH, size % 3))
}

async fn a_new_index_is_made_on_opening(subject: Subject) {
    let opened = subject.open().await;
    let all = commit(&*opened.records, A, (0..50).map(sized)).await.created;
    let of_b = commit(&*opened.records, B, (0..3).map(sized)).await.created;
    commit(&*opened.records, A, [destroy(EMAIL, all[7]), email(1)]).await;
    let schema = email_schema().index(IndexSchema::ordered(BY_SIZE, "size", &[SIZE]));
    let opened = reopen_with(&subject, opened, schema).await;
    let expected: Vec<_> = all.iter().rev().filter(|id| **id != all[7]).copied().collect();
    let by_size = Query::new(EMAIL, BY_SIZE);
    assert_eq!(ids(&*opened.records, A, &by_size).await, expected);
    assert_eq!(ids(&*opened.records, B, &by_size.clone().descending()).await, of_b);
    let next = create_one(&*opened.records, A, sized(99)).await;
    assert_eq!(ids(&*opened.records, A, &by_size.limit(1)).await, [next]);
    assert_eq!(ids(&*opened.records, A, &Query::new(EMAIL, BY_MAILBOX).equals(1)).await.len(), 51);
}

async fn a_new_scattered_index_is_made_on_opening(subject: Subject) {
    let opened = subject.open().await;
    let all = commit(&*opened.records, A, (0..50).map(sized)).await.created;
    let schema = email_schema().index(IndexSchema::scattered(BY_SIZE_SCATTERED, "size", &[SIZE]));
    let opened = reopen_with(&subject, opened, schema).await;
    let of_size = |size: u64| Query::new(EMAIL, BY_SIZE_SCATTERED).equals(size);
    assert_eq!(ids(&*opened.records, A, &of_size(100)).await, [all[0]]);
    assert_eq!(ids(&*opened.records, A, &of_size(60)).await, [all[40]]);
    assert_eq!(ids(&*opened.records, A, &of_size(1)).await, []);
}

fn without_hash() -> KindSchema {
    let mut emails = email_schema();
    emails.indexes.retain(|index| index.index != BY_HASH);
    emails
}

async fn an_index_that_was_dropped_is_made_anew(subject: Subject) {
    let opened = subject.open().await;
    let all = commit(&*opened.records, A, (0..9).map(sized)).await.created;
    let opened = reopen_with(&subject, opened, without_hash()).await;
    let query = Query::new(EMAIL, BY_HASH).equals(0);
    assert_eq!(opened.records.query(A, &query).await.unwrap_err().kind(), ErrorKind::Invalid);
    // What happens meanwhile doesn't update it: its old entries would be wrong.
    commit(&*opened.records, A, [destroy(EMAIL, all[0])]).await;
    let opened = reopen_with(&subject, opened, email_schema()).await;
    assert_eq!(ids(&*opened.records, A, &query).await, [all[3], all[6]]);
}

async fn an_index_that_changed_its_parts_is_made_anew(subject: Subject) {
    let opened = subject.open().await;
    let all = commit(&*opened.records, A, (0..4).map(sized)).await.created;
    let schema = without_hash().index(IndexSchema::ordered(BY_HASH, "hash", &[HASH, RECEIVED]));
    let opened = reopen_with(&subject, opened, schema).await;
    assert_eq!(ids(&*opened.records, A, &Query::new(EMAIL, BY_HASH)).await, [all[0], all[3], all[1], all[2]]);
    assert_eq!(ids(&*opened.records, A, &Query::new(EMAIL, BY_HASH).equals(0)).await, [all[0], all[3]]);
}

async fn an_index_that_records_do_not_fit_is_refused(subject: Subject) {
    let opened = subject.open().await;
    let many = (0..=INDEX_ENTRIES_MAX as u64).map(|n| (SIZE, Value::Number(n))).collect();
    let id = create_one(&*opened.records, A, create(EMAIL, "many", many)).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let emails = email_schema().index(IndexSchema::ordered(BY_SIZE, "size", &[SIZE]));
    let schema = Schema::new(vec![emails, mailbox_schema()]).unwrap();
    let Err(error) = open(Config { schema, ..subject.config.clone() }).await else {
        panic!("the index has no room")
    };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    // With its former schema it is as it was.
    let opened = subject.open().await;
    assert_eq!(get_one(&*opened.records, A, EMAIL, id).await.unwrap().body.bytes, "many");
    assert_eq!(opened.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

async fn a_new_kind_is_added_on_opening(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let by_in = IndexSchema::ordered(Index(1), "in", &[IN]);
    let new = KindSchema::new(NO_KIND, "calendar").property(IN, "in").index(by_in);
    let opened = subject.open_with(Schema::new(vec![email_schema(), mailbox_schema(), new]).unwrap()).await;
    let id = create_one(&*opened.records, A, create(NO_KIND, "new", none().with(IN, 1))).await;
    assert_eq!(ids(&*opened.records, A, &Query::new(NO_KIND, Index(1))).await, [id]);
    assert_eq!(opened.records.states(A).await.unwrap().kinds, [(EMAIL, Revision(1)), (NO_KIND, Revision(2))]);
}
