//! What `query` promises.

use std::ops::Bound::{Excluded, Included, Unbounded};

use bytes::Bytes;
use restante_core::ErrorKind;
use restante_records::{
    COMMIT_CHANGES_MAX, Change, Config, Cursor, Properties, QUERIES_MAX, QUERY_ROWS_MAX, Query, RecordId,
    Records, Revision, TEXT_BYTES_MAX, Value, open,
};

use crate::{
    Subject,
    common::{
        A, B, BY_ALL, BY_HASH, BY_HASH_AND_MAILBOX, BY_KEYWORD, BY_MAILBOX, BY_NAME, EMAIL, HASH, IN,
        KEYWORD, MAILBOX, NAME, NO_INDEX, NO_KIND, RECEIVED, SIZE, commit, create, create_one, destroy,
        email, ids, in_mailbox, mailbox, move_to, none, number, revision, text, thread, walk,
    },
};

crate::promises! {
    any: [
        leading_parts_equal_the_values_of_the_query,
        the_next_part_lies_in_the_range,
        the_range_of_the_first_part_needs_no_values,
        a_range_that_ends_before_it_begins_is_empty,
        the_order_is_part_by_part_then_by_id,
        descending_is_the_reverse,
        numbers_stand_before_texts,
        texts_are_compared_bytewise,
        a_text_that_begins_another_does_not_equal_it,
        a_record_is_returned_once_for_each_combination_of_values,
        a_record_without_a_value_of_a_part_is_not_returned,
        entries_follow_an_update,
        a_scattered_index_answers_when_all_parts_are_given,
        a_scattered_index_is_in_the_order_of_ids,
        a_scattered_index_finds_records_of_every_age,
        a_scattered_index_tells_a_record_once,
        next_is_set_when_and_only_when_more_remains,
        a_walk_gives_every_entry_once,
        a_walk_of_a_scattered_index_gives_every_entry_once,
        a_walk_passes_by_what_is_destroyed_and_added_meanwhile,
        a_cursor_survives_the_destruction_of_its_record,
        a_cursor_survives_moving_to_another_engine,
        a_cursor_before_the_range_begins_at_the_range,
        a_cursor_behind_the_range_ends_the_walk,
        values_are_those_of_the_last_part,
        skipped_entries_are_left_out,
        skipping_a_scattered_index_goes_on_through_all_ages,
        skipping_begins_behind_the_cursor,
        a_walk_goes_on_behind_a_page_that_skipped,
        several_queries_are_answered_as_each_alone,
        several_queries_are_refused_when_one_is_or_they_are_too_many,
        the_count_is_that_of_all_pages,
        the_count_begins_behind_the_cursor,
        what_a_query_refuses_is_not_counted,
        the_state_is_that_of_the_kind,
        an_empty_account_has_an_empty_page,
        the_longest_page_is_answered,
        an_unknown_kind_or_index_is_refused,
        too_many_values_are_refused,
        a_value_that_no_record_can_have_is_refused,
        a_scattered_index_refuses_what_it_cannot_answer,
        limits_out_of_bounds_are_refused,
        a_cursor_of_another_kind_or_index_is_refused,
        a_cursor_that_is_none_is_refused,
    ],
    disk: [entries_survive_reopening, a_cursor_survives_reopening]
}

/// Emails in mailboxes at times, in the order of their ids.
async fn emails(records: &dyn Records, places: &[(u64, u64)]) -> Vec<RecordId> {
    let changes = places.iter().map(|(mailbox, received)| create(EMAIL, "", in_mailbox(*mailbox, *received)));
    commit(records, A, changes).await.created
}

fn of(ids: &[RecordId], places: &[usize]) -> Vec<RecordId> {
    places.iter().map(|place| ids[*place]).collect()
}

async fn refusal(records: &dyn Records, query: &Query) -> ErrorKind {
    records.query(A, query).await.unwrap_err().kind()
}

async fn leading_parts_equal_the_values_of_the_query(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 5), (2, 4), (1, 3), (256, 1), (0, 9)]).await;
    let by_mailbox = || Query::new(EMAIL, BY_MAILBOX);
    assert_eq!(ids(&*records, A, &by_mailbox()).await, of(&all, &[4, 2, 0, 1, 3]));
    assert_eq!(ids(&*records, A, &by_mailbox().equals(1)).await, of(&all, &[2, 0]));
    assert_eq!(ids(&*records, A, &by_mailbox().equals(1).equals(5)).await, of(&all, &[0]));
    assert_eq!(ids(&*records, A, &by_mailbox().equals(1).equals(4)).await, []);
    assert_eq!(ids(&*records, A, &by_mailbox().equals(3)).await, []);
    assert_eq!(ids(&*records, A, &by_mailbox().equals("1")).await, [], "a text is no number");
}

async fn the_next_part_lies_in_the_range(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 10), (1, 20), (1, 30), (2, 20), (0, 20)]).await;
    let ends = |n: u64| [Included(number(n)), Excluded(number(n)), Unbounded];
    for from in ends(10).into_iter().chain(ends(15)) {
        for to in ends(30).into_iter().chain(ends(25)) {
            let query = Query::new(EMAIL, BY_MAILBOX).equals(1).between(from.clone(), to.clone());
            let mut expected = vec![all[1]];
            if matches!(&from, Included(Value::Number(10)) | Unbounded) {
                expected.insert(0, all[0]);
            }
            if matches!(&to, Included(Value::Number(30)) | Unbounded) {
                expected.push(all[2]);
            }
            assert_eq!(ids(&*records, A, &query).await, expected, "{from:?} to {to:?}");
            expected.reverse();
            assert_eq!(
                ids(&*records, A, &query.descending()).await,
                expected,
                "{from:?} to {to:?}, descending"
            );
        }
    }
}

async fn the_range_of_the_first_part_needs_no_values(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 5), (2, 4), (3, 3), (4, 2)]).await;
    let query = Query::new(EMAIL, BY_MAILBOX).between(Excluded(number(1)), Included(number(3)));
    assert_eq!(ids(&*records, A, &query).await, of(&all, &[1, 2]));
    assert_eq!(ids(&*records, A, &query.descending().limit(1)).await, of(&all, &[2]));
}

async fn a_range_that_ends_before_it_begins_is_empty(subject: Subject) {
    let records = subject.open().await.records;
    emails(&*records, &[(1, 1), (1, 2), (1, 3)]).await;
    let ranges = [
        (Included(number(3)), Included(number(1))),
        (Excluded(number(2)), Excluded(number(2))),
        (Included(number(2)), Excluded(number(2))),
        (Excluded(number(2)), Included(number(2))),
        (Included(text("a")), Included(number(2))),
    ];
    for (from, to) in ranges {
        let query = Query::new(EMAIL, BY_MAILBOX).equals(1).between(from, to);
        let page = records.query(A, &query).await.unwrap();
        assert_eq!((page.ids, page.next), (vec![], None), "{query:?}");
        assert_eq!(ids(&*records, A, &query.descending()).await, []);
    }
    let one = Query::new(EMAIL, BY_MAILBOX).equals(1).between(Included(number(2)), Included(number(2)));
    assert_eq!(ids(&*records, A, &one).await.len(), 1);
}

async fn the_order_is_part_by_part_then_by_id(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(2, 1), (1, 2), (1, 1), (2, 1), (1, 2), (300, 0)]).await;
    assert_eq!(ids(&*records, A, &Query::new(EMAIL, BY_MAILBOX)).await, of(&all, &[2, 1, 4, 0, 3, 5]));
}

async fn descending_is_the_reverse(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(2, 1), (1, 2), (1, 1), (2, 1), (1, 2), (300, 0)]).await;
    let query = Query::new(EMAIL, BY_MAILBOX).descending();
    assert_eq!(ids(&*records, A, &query).await, of(&all, &[5, 3, 0, 4, 1, 2]));
    assert_eq!(ids(&*records, A, &query.equals(1)).await, of(&all, &[4, 1, 2]));
}

async fn named(records: &dyn Records, names: &[Value]) -> Vec<RecordId> {
    let changes = names.iter().map(|name| create(MAILBOX, "", none().with(NAME, name.clone())));
    commit(records, A, changes).await.created
}

async fn numbers_stand_before_texts(subject: Subject) {
    let records = subject.open().await.records;
    let all =
        named(&*records, &[text("1"), number(u64::MAX), text(""), number(0), number(255), number(256)]).await;
    let query = Query::new(MAILBOX, BY_NAME);
    assert_eq!(ids(&*records, A, &query).await, of(&all, &[3, 4, 5, 1, 2, 0]));
    let numbers = query.clone().between(Unbounded, Excluded(text("")));
    assert_eq!(ids(&*records, A, &numbers).await, of(&all, &[3, 4, 5, 1]));
    let texts = query.between(Excluded(number(u64::MAX)), Unbounded);
    assert_eq!(ids(&*records, A, &texts).await, of(&all, &[2, 0]));
}

async fn texts_are_compared_bytewise(subject: Subject) {
    let records = subject.open().await.records;
    let long = Bytes::from(vec![0; TEXT_BYTES_MAX]);
    let names = [
        text("b"),
        Value::Text(long),
        text("a"),
        Value::Text(vec![255].into()),
        text("ab"),
        text("a\0"),
        text("a\0b"),
        text("B"),
        Value::Text(vec![0, 255].into()),
        text("é"),
    ];
    let all = named(&*records, &names).await;
    let mut expected: Vec<usize> = (0..names.len()).collect();
    expected.sort_by(|a, b| names[*a].cmp(&names[*b]));
    assert_eq!(expected, [1, 8, 7, 2, 5, 6, 4, 0, 9, 3]);
    assert_eq!(ids(&*records, A, &Query::new(MAILBOX, BY_NAME)).await, of(&all, &expected));
    for (name, id) in names.into_iter().zip(all) {
        let query = Query::new(MAILBOX, BY_NAME).equals(name);
        assert_eq!(ids(&*records, A, &query).await, [id], "{query:?}");
    }
}

async fn a_text_that_begins_another_does_not_equal_it(subject: Subject) {
    let records = subject.open().await.records;
    let all = named(&*records, &[text("mail"), text("mailbox"), text(""), text("mail\0box")]).await;
    assert_eq!(ids(&*records, A, &Query::new(MAILBOX, BY_NAME).equals("mail")).await, [all[0]]);
    assert_eq!(ids(&*records, A, &Query::new(MAILBOX, BY_NAME).equals("")).await, [all[2]]);
}

async fn a_record_is_returned_once_for_each_combination_of_values(subject: Subject) {
    let records = subject.open().await.records;
    let first = in_mailbox(1, 10).with(IN, 2).with(RECEIVED, 30);
    let all =
        commit(&*records, A, [create(EMAIL, "", first), create(EMAIL, "", in_mailbox(1, 20))]).await.created;
    let query = Query::new(EMAIL, BY_MAILBOX);
    let in_order = of(&all, &[0, 1, 0, 0, 0]); // (1, 10), (1, 20), (1, 30), (2, 10), (2, 30)
    assert_eq!(ids(&*records, A, &query).await, in_order);
    assert_eq!(walk(&*records, A, &query.clone().limit(1)).await, in_order);
    assert_eq!(ids(&*records, A, &query.clone().equals(2)).await, of(&all, &[0, 0]));
    assert_eq!(ids(&*records, A, &query.descending()).await, of(&all, &[0, 0, 0, 1, 0]));
}

async fn a_record_without_a_value_of_a_part_is_not_returned(subject: Subject) {
    let records = subject.open().await.records;
    create_one(&*records, A, create(EMAIL, "", none().with(IN, 1))).await;
    create_one(&*records, A, create(EMAIL, "", none().with(RECEIVED, 1))).await;
    create_one(&*records, A, create(EMAIL, "", none().with(SIZE, 1))).await;
    let both = create_one(&*records, A, create(EMAIL, "", in_mailbox(1, 1))).await;
    assert_eq!(ids(&*records, A, &Query::new(EMAIL, BY_MAILBOX)).await, [both]);
}

async fn entries_follow_an_update(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 1), (1, 2), (2, 3)]).await;
    commit(&*records, A, [move_to(all[0], 2, 5)]).await;
    let by_mailbox = |n: u64| Query::new(EMAIL, BY_MAILBOX).equals(n);
    assert_eq!(ids(&*records, A, &by_mailbox(1)).await, of(&all, &[1]));
    assert_eq!(ids(&*records, A, &by_mailbox(2)).await, of(&all, &[2, 0]));
    let both = in_mailbox(1, 9).with(IN, 2).with(KEYWORD, "seen");
    let update = Change::Update { kind: EMAIL, id: all[2], body: None, properties: Some(both) };
    commit(&*records, A, [update]).await;
    assert_eq!(ids(&*records, A, &by_mailbox(1)).await, of(&all, &[1, 2]));
    assert_eq!(ids(&*records, A, &by_mailbox(2)).await, of(&all, &[0, 2]));
    assert_eq!(ids(&*records, A, &Query::new(EMAIL, BY_KEYWORD).equals("seen")).await, of(&all, &[2]));
    let update = Change::Update { kind: EMAIL, id: all[2], body: None, properties: Some(none()) };
    commit(&*records, A, [update]).await;
    assert_eq!(ids(&*records, A, &Query::new(EMAIL, BY_KEYWORD)).await, []);
    assert_eq!(ids(&*records, A, &Query::new(EMAIL, BY_MAILBOX)).await, of(&all, &[1, 0]));
}

fn hashed(hash: u64, mailbox: u64) -> Change {
    create(EMAIL, "", none().with(HASH, hash).with(IN, mailbox))
}

async fn a_scattered_index_answers_when_all_parts_are_given(subject: Subject) {
    let records = subject.open().await.records;
    let all =
        commit(&*records, A, [hashed(5, 1), hashed(6, 1), hashed(5, 2), hashed(u64::MAX, 1)]).await.created;
    let by_hash = |hash: u64| Query::new(EMAIL, BY_HASH).equals(hash);
    assert_eq!(ids(&*records, A, &by_hash(5)).await, of(&all, &[0, 2]));
    assert_eq!(ids(&*records, A, &by_hash(u64::MAX)).await, of(&all, &[3]));
    assert_eq!(ids(&*records, A, &by_hash(7)).await, []);
    let both = Query::new(EMAIL, BY_HASH_AND_MAILBOX).equals(5).equals(2);
    assert_eq!(ids(&*records, A, &both).await, of(&all, &[2]));
    commit(&*records, A, [destroy(EMAIL, all[0])]).await;
    assert_eq!(ids(&*records, A, &by_hash(5)).await, of(&all, &[2]));
}

async fn a_scattered_index_is_in_the_order_of_ids(subject: Subject) {
    let records = subject.open().await.records;
    let all = commit(&*records, A, (0..20).map(|n| hashed(n % 2, n))).await.created;
    let expected: Vec<RecordId> = all.iter().copied().step_by(2).collect();
    let query = Query::new(EMAIL, BY_HASH).equals(0);
    assert_eq!(ids(&*records, A, &query).await, expected);
    let reversed: Vec<RecordId> = expected.iter().rev().copied().collect();
    assert_eq!(ids(&*records, A, &query.descending()).await, reversed);
}

/// This many ids span at least one whole generation of a scattered index, however an engine divides them.
const AGES_APART: usize = 70_000;

/// Uses up ids, so that what follows is much younger.
async fn grow_older(records: &dyn Records, ids: usize) {
    for _ in 0..ids.div_ceil(COMMIT_CHANGES_MAX) {
        commit(records, B, (0..COMMIT_CHANGES_MAX).map(|_| thread())).await;
    }
}

async fn a_scattered_index_finds_records_of_every_age(subject: Subject) {
    let records = subject.open().await.records;
    let mut old = Vec::new();
    for _ in 0..2 {
        let created = commit(&*records, B, [hashed(5, 1), hashed(6, 2), hashed(5, 3)]).await.created;
        old.extend([created[0], created[2]]);
        grow_older(&*records, AGES_APART / 2).await;
    }
    let created = commit(&*records, B, [hashed(5, 1)]).await.created;
    old.extend(created);
    let query = Query::new(EMAIL, BY_HASH).equals(5);
    assert_eq!(ids(&*records, B, &query).await, old);
    assert_eq!(walk(&*records, B, &query.clone().limit(1)).await, old);
    assert_eq!(walk(&*records, B, &query.clone().limit(2)).await, old);
    old.reverse();
    assert_eq!(walk(&*records, B, &query.descending().limit(2)).await, old);
}

async fn a_scattered_index_tells_a_record_once(subject: Subject) {
    let records = subject.open().await.records;
    let id =
        create_one(&*records, A, create(EMAIL, "", none().with(HASH, 1).with(HASH, 2).with(IN, 1))).await;
    for hash in [1, 2] {
        assert_eq!(ids(&*records, A, &Query::new(EMAIL, BY_HASH).equals(hash)).await, [id]);
        let both = Query::new(EMAIL, BY_HASH_AND_MAILBOX).equals(hash).equals(1);
        assert_eq!(ids(&*records, A, &both).await, [id]);
    }
}

async fn next_is_set_when_and_only_when_more_remains(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 1), (1, 2), (1, 3), (2, 1)]).await;
    for (limit, has_next) in [(1, true), (2, true), (3, false), (4, false)] {
        for query in [
            Query::new(EMAIL, BY_MAILBOX).equals(1),
            Query::new(EMAIL, BY_MAILBOX).equals(1).descending(),
            Query::new(EMAIL, BY_MAILBOX).equals(1).between(Unbounded, Included(number(3))),
        ] {
            let page = records.query(A, &query.limit(limit)).await.unwrap();
            assert_eq!((page.ids.len(), page.next.is_some()), (limit.min(3), has_next), "limit {limit}");
        }
    }
    let query = Query::new(EMAIL, BY_MAILBOX).equals(1).limit(2);
    let page = records.query(A, &query).await.unwrap();
    let last = records.query(A, &query.after(page.next.unwrap())).await.unwrap();
    assert_eq!((last.ids, last.next), (of(&all, &[2]), None));
}

async fn a_walk_gives_every_entry_once(subject: Subject) {
    let records = subject.open().await.records;
    let places: Vec<(u64, u64)> = (0..60).map(|n| (n % 4, n / 7)).collect();
    emails(&*records, &places).await;
    for query in [
        Query::new(EMAIL, BY_MAILBOX),
        Query::new(EMAIL, BY_MAILBOX).descending(),
        Query::new(EMAIL, BY_MAILBOX).equals(2),
        Query::new(EMAIL, BY_MAILBOX).equals(2).equals(3),
        Query::new(EMAIL, BY_MAILBOX).between(Excluded(number(0)), Excluded(number(3))).descending(),
        Query::new(EMAIL, BY_MAILBOX).equals(1).between(Included(number(2)), Unbounded),
    ] {
        let whole = ids(&*records, A, &query).await;
        assert!(!whole.is_empty());
        for limit in [1, 2, 7, whole.len(), whole.len() + 1] {
            assert_eq!(walk(&*records, A, &query.clone().limit(limit)).await, whole, "{query:?} by {limit}");
        }
    }
}

async fn a_walk_of_a_scattered_index_gives_every_entry_once(subject: Subject) {
    let records = subject.open().await.records;
    let all = commit(&*records, A, (0..30).map(|n| hashed(n % 3, 0))).await.created;
    let mut expected: Vec<RecordId> = all.into_iter().step_by(3).collect();
    let query = Query::new(EMAIL, BY_HASH).equals(0);
    for limit in [1, 3, 10, 11] {
        assert_eq!(walk(&*records, A, &query.clone().limit(limit)).await, expected, "by {limit}");
    }
    expected.reverse();
    assert_eq!(walk(&*records, A, &query.descending().limit(3)).await, expected);
}

async fn a_walk_passes_by_what_is_destroyed_and_added_meanwhile(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 10), (1, 20), (1, 30), (1, 40), (1, 50), (1, 60)]).await;
    let mut query = Query::new(EMAIL, BY_MAILBOX).equals(1).limit(2);
    let mut seen = Vec::new();
    for n in 0.. {
        assert!(n < 50, "the walk doesn't end");
        let page = records.query(A, &query).await.unwrap();
        seen.extend(page.ids);
        let Some(next) = page.next else { break };
        query.after = Some(next);
        if n == 0 {
            // One is created before the cursor and one after it; one that was seen is destroyed, and one that was not.
            let changes = [(1, 5), (1, 99)].map(|(mailbox, at)| create(EMAIL, "", in_mailbox(mailbox, at)));
            commit(&*records, A, changes.into_iter().chain([destroy(EMAIL, all[0]), destroy(EMAIL, all[3])]))
                .await;
        } else {
            commit(&*records, A, [create(EMAIL, "", in_mailbox(1, 5))]).await;
        }
    }
    let of_before: Vec<RecordId> = seen.into_iter().filter(|id| all.contains(id)).collect();
    assert_eq!(of_before, of(&all, &[0, 1, 2, 4, 5]));
}

async fn a_cursor_survives_the_destruction_of_its_record(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 10), (1, 20), (1, 20), (1, 30)]).await;
    let up = Query::new(EMAIL, BY_MAILBOX).limit(2);
    let page = records.query(A, &up).await.unwrap();
    assert_eq!(page.ids, of(&all, &[0, 1]));
    commit(&*records, A, [destroy(EMAIL, all[1])]).await;
    assert_eq!(walk(&*records, A, &up.after(page.next.unwrap())).await, of(&all, &[2, 3]));
    let down = Query::new(EMAIL, BY_MAILBOX).descending().limit(1);
    let page = records.query(A, &down).await.unwrap();
    assert_eq!(page.ids, of(&all, &[3]));
    commit(&*records, A, [destroy(EMAIL, all[3])]).await;
    assert_eq!(walk(&*records, A, &down.after(page.next.unwrap())).await, of(&all, &[2, 0]));
}

async fn a_cursor_survives_moving_to_another_engine(subject: Subject) {
    let records = subject.open().await.records;
    let config = Config { url: "memory:".parse().unwrap(), ..subject.config.clone() };
    let other = open(config).await.unwrap().records;
    let with_hash = |n: u64| create(EMAIL, "", in_mailbox(n % 4, n).with(KEYWORD, "a\0b").with(HASH, n % 2));
    for records in [&records, &other] {
        commit(&**records, A, (0..20).map(with_hash)).await;
    }
    for query in [
        Query::new(EMAIL, BY_MAILBOX).limit(3),
        Query::new(EMAIL, BY_ALL).equals("a\0b").descending().limit(4),
        Query::new(EMAIL, BY_HASH).equals(1).limit(3),
    ] {
        for (from, to) in [(&records, &other), (&other, &records)] {
            let first = from.query(A, &query).await.unwrap();
            let query = query.clone().after(first.next.unwrap());
            assert_eq!(from.query(A, &query).await.unwrap(), to.query(A, &query).await.unwrap());
        }
    }
}

async fn a_cursor_before_the_range_begins_at_the_range(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 10), (1, 20), (2, 30), (2, 40)]).await;
    let first = records.query(A, &Query::new(EMAIL, BY_MAILBOX).limit(1)).await.unwrap();
    let query = Query::new(EMAIL, BY_MAILBOX).equals(2).after(first.next.unwrap());
    assert_eq!(ids(&*records, A, &query).await, of(&all, &[2, 3]));
    let query = query.between(Included(number(40)), Unbounded);
    assert_eq!(ids(&*records, A, &query).await, of(&all, &[3]));
    let last = records.query(A, &Query::new(EMAIL, BY_MAILBOX).descending().limit(1)).await.unwrap();
    let query = Query::new(EMAIL, BY_MAILBOX).equals(1).descending().after(last.next.unwrap());
    assert_eq!(ids(&*records, A, &query).await, of(&all, &[1, 0]));
}

async fn a_cursor_behind_the_range_ends_the_walk(subject: Subject) {
    let records = subject.open().await.records;
    emails(&*records, &[(1, 10), (1, 20), (2, 30), (2, 40), (2, 50)]).await;
    let behind = records.query(A, &Query::new(EMAIL, BY_MAILBOX).limit(4)).await.unwrap().next;
    let query = Query { after: behind, ..Query::new(EMAIL, BY_MAILBOX).equals(1) };
    let page = records.query(A, &query).await.unwrap();
    assert_eq!((page.ids, page.next), (vec![], None));
    let before = records.query(A, &Query::new(EMAIL, BY_MAILBOX).limit(1)).await.unwrap().next;
    let query = Query { after: before, ..Query::new(EMAIL, BY_MAILBOX).equals(2).descending() };
    let page = records.query(A, &query).await.unwrap();
    assert_eq!((page.ids, page.next), (vec![], None));
}

async fn values_are_those_of_the_last_part(subject: Subject) {
    let records = subject.open().await.records;
    emails(&*records, &[(1, 300), (1, 5), (1, 70_000)]).await;
    let values = async |query: Query| records.query(A, &query).await.unwrap().values;
    let numbers = |numbers: &[u64]| numbers.iter().map(|number| Value::Number(*number)).collect::<Vec<_>>();
    let query = || Query::new(EMAIL, BY_MAILBOX).equals(1);
    assert_eq!(values(query()).await, []);
    assert_eq!(values(query().with_values()).await, numbers(&[5, 300, 70_000]));
    assert_eq!(values(query().with_values().descending().limit(2)).await, numbers(&[70_000, 300]));
    assert_eq!(values(query().with_values().skip(1).limit(1)).await, numbers(&[300]));
    assert_eq!(values(Query::new(EMAIL, BY_MAILBOX).with_values()).await, numbers(&[5, 300, 70_000]));
    assert_eq!(
        values(query().equals(300).with_values()).await,
        numbers(&[300]),
        "also of a value of the query"
    );
}

async fn skipped_entries_are_left_out(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 50), (1, 10), (1, 40), (1, 20), (1, 30), (2, 1)]).await;
    let in_order = of(&all, &[1, 3, 4, 2, 0]);
    let backwards = of(&all, &[0, 2, 4, 3, 1]);
    for skip in 0..=6 {
        let query = || Query::new(EMAIL, BY_MAILBOX).equals(1).skip(skip as u64).limit(2);
        let expected: Vec<RecordId> = in_order.iter().skip(skip).take(2).copied().collect();
        let page = records.query(A, &query()).await.unwrap();
        assert_eq!((page.ids, page.next.is_some()), (expected, skip + 2 < 5), "{skip} skipped");
        let expected: Vec<RecordId> = backwards.iter().skip(skip).take(2).copied().collect();
        assert_eq!(ids(&*records, A, &query().descending()).await, expected, "{skip} skipped, descending");
    }
    let all_skipped = Query::new(EMAIL, BY_MAILBOX).skip(u64::MAX);
    let page = records.query(A, &all_skipped).await.unwrap();
    assert_eq!((page.ids, page.next), (vec![], None));
}

async fn skipping_a_scattered_index_goes_on_through_all_ages(subject: Subject) {
    let records = subject.open().await.records;
    let with_hash = |hash: u64| create(EMAIL, "", none().with(HASH, hash));
    let first = create_one(&*records, A, with_hash(7)).await;
    for _ in 0..9 {
        commit(&*records, A, (0..COMMIT_CHANGES_MAX).map(|_| thread())).await; // another generation of ids
    }
    let last = create_one(&*records, A, with_hash(7)).await;
    let query = |skip| Query::new(EMAIL, BY_HASH).equals(7).skip(skip);
    assert_eq!(ids(&*records, A, &query(0)).await, [first, last]);
    assert_eq!(ids(&*records, A, &query(1)).await, [last]);
    assert_eq!(ids(&*records, A, &query(1).descending()).await, [first]);
    assert_eq!(ids(&*records, A, &query(2)).await, []);
    assert_eq!(records.count(A, &query(0)).await.unwrap().entries, 2);
}

async fn skipping_begins_behind_the_cursor(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 1), (1, 2), (1, 3), (1, 4), (1, 5)]).await;
    let query = || Query::new(EMAIL, BY_MAILBOX).limit(2);
    let next = records.query(A, &query()).await.unwrap().next.unwrap();
    assert_eq!(ids(&*records, A, &query().after(next).skip(1)).await, of(&all, &[3, 4]));
}

async fn a_walk_goes_on_behind_a_page_that_skipped(subject: Subject) {
    let records = subject.open().await.records;
    let all = emails(&*records, &[(1, 1), (1, 2), (1, 3), (1, 4), (1, 5)]).await;
    let query = || Query::new(EMAIL, BY_MAILBOX).limit(2);
    let page = records.query(A, &query().skip(1)).await.unwrap();
    assert_eq!(page.ids, of(&all, &[1, 2]));
    assert_eq!(ids(&*records, A, &query().after(page.next.unwrap())).await, of(&all, &[3, 4]));
}

async fn several_queries_are_answered_as_each_alone(subject: Subject) {
    let records = subject.open().await.records;
    // Mailboxes with 0, 1, 2, 15, 16, 17 and 300 emails.
    let counts = [0, 1, 2, 15, 16, 17, 300];
    let places: Vec<(u64, u64)> =
        (0..).zip(counts).flat_map(|(mailbox, count)| (0..count).map(move |time| (mailbox, time))).collect();
    emails(&*records, &places).await;
    let of_mailbox = |mailbox: u64| Query::new(EMAIL, BY_MAILBOX).equals(mailbox);
    let cursor = records.query(A, &of_mailbox(6).limit(3)).await.unwrap().next.unwrap();
    let mut queries: Vec<Query> = (0..8).map(|mailbox| of_mailbox(mailbox).limit(QUERY_ROWS_MAX)).collect();
    queries.extend((0..8).map(|mailbox| of_mailbox(mailbox).limit(16).descending()));
    queries.extend([0, 1, 15, 16, 17, 299, 300].map(|skip| of_mailbox(6).skip(skip).limit(10)));
    queries.extend([
        of_mailbox(6).after(cursor).with_values(),
        Query::new(EMAIL, BY_HASH).equals("none"),
        Query::new(EMAIL, BY_MAILBOX).between(Included(number(2)), Excluded(number(4))),
        of_mailbox(6),
    ]);
    queries.extend((0..100).map(|n| of_mailbox(n % 8).skip(n / 8)));
    let pages = records.query_each(A, &queries).await.unwrap();
    assert_eq!(pages.len(), queries.len());
    for (query, page) in queries.iter().zip(&pages) {
        assert_eq!(*page, records.query(A, query).await.unwrap(), "{query:?}");
    }
    assert_eq!(records.query_each(A, &[]).await.unwrap(), []);
    assert_eq!(records.query_each(B, &queries[1..2]).await.unwrap()[0].ids, []);
}

async fn several_queries_are_refused_when_one_is_or_they_are_too_many(subject: Subject) {
    let records = subject.open().await.records;
    emails(&*records, &[(1, 1)]).await;
    let sound = || Query::new(EMAIL, BY_MAILBOX).equals(1);
    let refused = async |queries: &[Query]| records.query_each(A, queries).await.unwrap_err().kind();
    assert_eq!(refused(&[sound(), sound().limit(0)]).await, ErrorKind::Invalid);
    assert_eq!(refused(&[Query::new(NO_KIND, BY_MAILBOX), sound()]).await, ErrorKind::Invalid);
    assert_eq!(refused(&[sound(), sound().limit(QUERY_ROWS_MAX + 1)]).await, ErrorKind::Invalid);
    assert_eq!(records.query_each(A, &vec![sound(); QUERIES_MAX]).await.unwrap().len(), QUERIES_MAX);
    assert_eq!(refused(&vec![sound(); QUERIES_MAX + 1]).await, ErrorKind::Invalid);
}

async fn the_count_is_that_of_all_pages(subject: Subject) {
    let records = subject.open().await.records;
    let places: Vec<(u64, u64)> = (0..30).map(|n| (n % 3, n)).collect();
    emails(&*records, &places).await;
    let in_two = in_mailbox(1, 100).with(IN, 2);
    create_one(&*records, A, create(EMAIL, "", in_two)).await;
    let count = async |query: Query| records.count(A, &query).await.unwrap();
    let all = Query::new(EMAIL, BY_MAILBOX);
    assert_eq!(count(all.clone()).await.entries, 32, "a record with two values counts twice");
    assert_eq!(count(all.clone()).await.state, Revision(2));
    assert_eq!(count(all.clone().skip(5).limit(1)).await.entries, 32);
    assert_eq!(count(all.clone().equals(1)).await.entries, 11);
    assert_eq!(count(all.clone().equals(1).descending()).await.entries, 11);
    assert_eq!(count(all.clone().equals(7)).await.entries, 0);
    let from_10 = all.equals(0).between(Included(number(10)), Excluded(number(27)));
    assert_eq!(count(from_10).await.entries, 5, "12, 15, 18, 21 and 24");
    assert_eq!(records.count(B, &Query::new(EMAIL, BY_MAILBOX)).await.unwrap().entries, 0);
}

async fn the_count_begins_behind_the_cursor(subject: Subject) {
    let records = subject.open().await.records;
    emails(&*records, &[(1, 1), (1, 2), (1, 3), (1, 4), (1, 5)]).await;
    let query = || Query::new(EMAIL, BY_MAILBOX).limit(2);
    let next = records.query(A, &query()).await.unwrap().next.unwrap();
    assert_eq!(records.count(A, &query().after(next)).await.unwrap().entries, 3);
}

async fn what_a_query_refuses_is_not_counted(subject: Subject) {
    let records = subject.open().await.records;
    for query in [Query::new(EMAIL, NO_INDEX), Query::new(NO_KIND, BY_NAME), Query::new(EMAIL, BY_HASH)] {
        assert_eq!(records.count(A, &query).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

async fn the_state_is_that_of_the_kind(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, A, [email(1)]).await;
    commit(&*records, A, [thread()]).await;
    let page = records.query(A, &Query::new(EMAIL, BY_MAILBOX)).await.unwrap();
    assert_eq!(page.state, Revision(1));
    commit(&*records, A, [email(2)]).await;
    let page = records.query(A, &Query::new(EMAIL, BY_MAILBOX).equals(99)).await.unwrap();
    assert_eq!(page.state, Revision(3), "also of an empty page");
    assert_eq!(records.query(A, &Query::new(MAILBOX, BY_NAME)).await.unwrap().state, Revision(0));
    let scattered = records.query(A, &Query::new(EMAIL, BY_HASH).equals(1)).await.unwrap();
    assert_eq!(scattered.state, Revision(3));
}

async fn an_empty_account_has_an_empty_page(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, B, [email(1)]).await;
    let page = records.query(A, &Query::new(EMAIL, BY_MAILBOX)).await.unwrap();
    assert_eq!((page.ids, page.next, page.state), (vec![], None, Revision(0)));
}

async fn the_longest_page_is_answered(subject: Subject) {
    let records = subject.open().await.records;
    let mut all =
        commit(&*records, A, (0..QUERY_ROWS_MAX as u64).map(|n| create(EMAIL, "", in_mailbox(1, n))))
            .await
            .created;
    all.extend(commit(&*records, A, [create(EMAIL, "", in_mailbox(1, QUERY_ROWS_MAX as u64))]).await.created);
    let query = Query::new(EMAIL, BY_MAILBOX).equals(1).limit(QUERY_ROWS_MAX);
    let page = records.query(A, &query).await.unwrap();
    assert_eq!(page.ids, all[..QUERY_ROWS_MAX]);
    let rest = records.query(A, &query.after(page.next.unwrap())).await.unwrap();
    assert_eq!((rest.ids, rest.next), (vec![all[QUERY_ROWS_MAX]], None));
}

async fn an_unknown_kind_or_index_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    assert_eq!(refusal(&*records, &Query::new(NO_KIND, BY_MAILBOX)).await, ErrorKind::Invalid);
    assert_eq!(refusal(&*records, &Query::new(EMAIL, NO_INDEX)).await, ErrorKind::Invalid);
    assert_eq!(refusal(&*records, &Query::new(MAILBOX, BY_ALL)).await, ErrorKind::Invalid, "of another kind");
}

async fn too_many_values_are_refused(subject: Subject) {
    let records = subject.open().await.records;
    let all = Query::new(EMAIL, BY_MAILBOX).equals(1).equals(2);
    assert_eq!(refusal(&*records, &all.clone().equals(3)).await, ErrorKind::Invalid);
    let range = all.between(Included(number(1)), Unbounded);
    assert_eq!(refusal(&*records, &range).await, ErrorKind::Invalid, "no part is left for the range");
}

async fn a_value_that_no_record_can_have_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    let long = Value::Text(vec![b'x'; TEXT_BYTES_MAX + 1].into());
    for value in [long, Value::Created(0), Value::Revision] {
        let equal = Query::new(EMAIL, BY_MAILBOX).equals(value.clone());
        assert_eq!(refusal(&*records, &equal).await, ErrorKind::Invalid);
        let from = Query::new(EMAIL, BY_MAILBOX).between(Excluded(value.clone()), Unbounded);
        assert_eq!(refusal(&*records, &from).await, ErrorKind::Invalid);
        let to = Query::new(EMAIL, BY_MAILBOX).between(Unbounded, Included(value));
        assert_eq!(refusal(&*records, &to).await, ErrorKind::Invalid);
    }
    let zeros = || Value::Text(vec![0; TEXT_BYTES_MAX].into());
    let together = Query::new(EMAIL, BY_ALL).equals(zeros()).equals(zeros());
    assert_eq!(refusal(&*records, &together).await, ErrorKind::Invalid, "longer than any entry");
    let range = Query::new(EMAIL, BY_ALL).equals(zeros()).between(Unbounded, Excluded(zeros()));
    assert_eq!(refusal(&*records, &range).await, ErrorKind::Invalid, "longer than any entry");
}

async fn a_scattered_index_refuses_what_it_cannot_answer(subject: Subject) {
    let records = subject.open().await.records;
    let index = || Query::new(EMAIL, BY_HASH_AND_MAILBOX);
    for query in [
        index(),
        index().equals(1),
        index().equals(1).between(Included(number(1)), Unbounded),
        index().between(Unbounded, Included(number(1))),
        index().equals(1).equals(1).between(Unbounded, Included(number(1))),
        index().equals(1).equals(1).equals(1),
    ] {
        assert_eq!(refusal(&*records, &query).await, ErrorKind::Invalid, "{query:?}");
    }
    assert_eq!(ids(&*records, A, &index().equals(1).equals(1)).await, []);
}

async fn limits_out_of_bounds_are_refused(subject: Subject) {
    let records = subject.open().await.records;
    for limit in [0, QUERY_ROWS_MAX + 1, usize::MAX] {
        assert_eq!(refusal(&*records, &Query::new(EMAIL, BY_MAILBOX).limit(limit)).await, ErrorKind::Invalid);
    }
}

async fn a_cursor_of_another_kind_or_index_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    let properties = || Properties::default().with(KEYWORD, "a").with(HASH, 1);
    commit(&*records, A, [create(EMAIL, "", properties()), create(EMAIL, "", properties())]).await;
    commit(&*records, A, [mailbox("a"), mailbox("b")]).await;
    let cursor_of = async |query: Query| records.query(A, &query.limit(1)).await.unwrap().next.unwrap();
    let of_keyword = cursor_of(Query::new(EMAIL, BY_KEYWORD)).await;
    let of_hash = cursor_of(Query::new(EMAIL, BY_HASH).equals(1)).await;
    let of_name = cursor_of(Query::new(MAILBOX, BY_NAME)).await;
    let by_keyword = Query::new(EMAIL, BY_KEYWORD);
    assert_eq!(refusal(&*records, &by_keyword.clone().after(of_hash)).await, ErrorKind::Invalid);
    assert_eq!(refusal(&*records, &by_keyword.after(of_name.clone())).await, ErrorKind::Invalid);
    let by_name = Query::new(MAILBOX, BY_NAME);
    assert_eq!(refusal(&*records, &by_name.clone().after(of_keyword)).await, ErrorKind::Invalid);
    assert_eq!(ids(&*records, A, &by_name.after(of_name)).await.len(), 1);
}

async fn a_cursor_that_is_none_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    emails(&*records, &[(1, 1), (1, 2)]).await;
    let query = Query::new(EMAIL, BY_MAILBOX).limit(1);
    let cursor = records.query(A, &query).await.unwrap().next.unwrap();
    for len in 0..cursor.0.len() {
        let cut = Cursor(cursor.0.slice(..len));
        assert_eq!(refusal(&*records, &query.clone().after(cut)).await, ErrorKind::Invalid, "{len} bytes");
    }
    for more in [1, 10_000] {
        let longer = Cursor([&cursor.0[..], &vec![0; more]].concat().into());
        assert_eq!(refusal(&*records, &query.clone().after(longer)).await, ErrorKind::Invalid);
    }
    let garbage = Cursor(Bytes::from_static(&[0xff; 20]));
    assert_eq!(refusal(&*records, &query.after(garbage)).await, ErrorKind::Invalid);
}

async fn entries_survive_reopening(subject: Subject) {
    let opened = subject.open().await;
    let all = emails(&*opened.records, &[(1, 2), (1, 1), (2, 1)]).await;
    let hashed = create_one(&*opened.records, A, hashed(5, 9)).await;
    commit(&*opened.records, A, [move_to(all[2], 1, 0)]).await;
    let opened = subject.reopen(opened).await;
    let by_mailbox = Query::new(EMAIL, BY_MAILBOX).equals(1);
    assert_eq!(ids(&*opened.records, A, &by_mailbox).await, of(&all, &[2, 1, 0]));
    assert_eq!(ids(&*opened.records, A, &Query::new(EMAIL, BY_HASH).equals(5)).await, [hashed]);
    assert_eq!(revision(&*opened.records, A).await, Revision(3));
}

async fn a_cursor_survives_reopening(subject: Subject) {
    let opened = subject.open().await;
    let all = emails(&*opened.records, &[(1, 1), (1, 2), (1, 3)]).await;
    let query = Query::new(EMAIL, BY_MAILBOX).limit(1);
    let page = opened.records.query(A, &query).await.unwrap();
    let opened = subject.reopen(opened).await;
    commit(&*opened.records, A, [destroy(EMAIL, all[0])]).await;
    assert_eq!(walk(&*opened.records, A, &query.after(page.next.unwrap())).await, of(&all, &[1, 2]));
}
