//! The promises of `append`.

use restante_archive::{
    APPEND_MESSAGES_MAX, Appended, BODY_BYTES_MAX, CHANNEL_BYTES_MAX, Message, Query, TOPIC_BYTES_MAX,
};
use restante_core::ErrorKind;

use crate::{
    Subject,
    common::{message, message_in, rows, sorted, walk},
};

crate::promises! {
    any: [
        an_appended_message_is_visible,
        answers_stand_in_the_order_of_the_messages,
        a_message_appended_again_changes_nothing,
        a_message_twice_in_a_batch_is_stored_once,
        equal_hashes_at_other_times_are_other_messages,
        concurrent_appends_of_the_same_messages_store_each_once,
        concurrent_appends_are_all_stored,
        an_empty_batch_is_answered,
        late_messages_are_stored_in_their_place,
        extreme_timestamps_are_kept,
        empty_and_long_fields_are_kept,
        bodies_need_not_be_text,
        too_long_fields_are_refused_and_nothing_is_stored,
        too_large_a_batch_is_refused,
        a_closed_archive_refuses_appends,
    ],
    disk: [
        appended_messages_survive_reopening,
        duplicates_are_known_after_reopening,
        appending_goes_on_after_reopening,
    ]
}

async fn an_appended_message_is_visible(subject: Subject) {
    let archive = subject.open().await.archive;
    let sent = message(5, 1, "a");
    assert_eq!(archive.append(vec![sent.clone()]).await.unwrap(), [Appended::Stored]);
    let page = archive.query(&Query::default()).await.unwrap();
    assert_eq!(rows(&page), sorted(&[sent]));
    assert_eq!(page.next, None);
}

async fn answers_stand_in_the_order_of_the_messages(subject: Subject) {
    let archive = subject.open().await.archive;
    archive.append(vec![message(2, 1, "a"), message(4, 1, "a")]).await.unwrap();
    let batch: Vec<Message> = [5, 4, 3, 2, 1].map(|timestamp| message(timestamp, 1, "a")).into();
    let answers = archive.append(batch).await.unwrap();
    use Appended::{Duplicate, Stored};
    assert_eq!(answers, [Stored, Duplicate, Stored, Duplicate, Stored]);
}

async fn a_message_appended_again_changes_nothing(subject: Subject) {
    let archive = subject.open().await.archive;
    let first = message(5, 1, "a");
    archive.append(vec![first.clone()]).await.unwrap();
    let mut again = first.clone();
    again.body = "another body".into();
    assert_eq!(archive.append(vec![again]).await.unwrap(), [Appended::Duplicate]);
    let page = archive.query(&Query::default()).await.unwrap();
    assert_eq!(rows(&page), sorted(&[first]));
}

async fn a_message_twice_in_a_batch_is_stored_once(subject: Subject) {
    let archive = subject.open().await.archive;
    let sent = message(5, 1, "a");
    let answers = archive.append(vec![sent.clone(), sent.clone()]).await.unwrap();
    assert_eq!(answers, [Appended::Stored, Appended::Duplicate]);
    assert_eq!(archive.query(&Query::default()).await.unwrap().len(), 1);
}

async fn equal_hashes_at_other_times_are_other_messages(subject: Subject) {
    let archive = subject.open().await.archive;
    let one = message(5, 1, "a");
    let mut other = message(6, 1, "a");
    other.message_hash = one.message_hash;
    let answers = archive.append(vec![one.clone(), other.clone()]).await.unwrap();
    assert_eq!(answers, [Appended::Stored; 2]);
    let query = Query { hashes: vec![one.message_hash], ..Query::default() };
    assert_eq!(rows(&archive.query(&query).await.unwrap()), sorted(&[one, other]));
}

async fn concurrent_appends_of_the_same_messages_store_each_once(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages: Vec<Message> = (0..40).map(|n| message(n, 1, "a")).collect();
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (archive, messages) = (archive.clone(), messages.clone());
        tasks.push(tokio::spawn(async move {
            let mut stored = 0;
            for batch in messages.chunks(7) {
                let answers = archive.append(batch.to_vec()).await.unwrap();
                stored += answers.iter().filter(|answer| **answer == Appended::Stored).count();
            }
            stored
        }));
    }
    let mut stored = 0;
    for task in tasks {
        stored += task.await.unwrap();
    }
    assert_eq!(stored, messages.len());
    assert_eq!(rows(&archive.query(&Query::default()).await.unwrap()), sorted(&messages));
}

async fn concurrent_appends_are_all_stored(subject: Subject) {
    let archive = subject.open().await.archive;
    let of_task = |task: u8| (0..30).map(move |n| message(n * 200_000_000, task, "a")).collect::<Vec<_>>();
    let mut tasks = Vec::new();
    for task in 0..8 {
        let archive = archive.clone();
        tasks.push(tokio::spawn(async move {
            for message in of_task(task) {
                assert_eq!(archive.append(vec![message]).await.unwrap(), [Appended::Stored]);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let all: Vec<Message> = (0..8).flat_map(of_task).collect();
    assert_eq!(walk(&*archive, Query::default()).await.concat(), sorted(&all));
}

async fn an_empty_batch_is_answered(subject: Subject) {
    let archive = subject.open().await.archive;
    assert_eq!(archive.append(vec![]).await.unwrap(), []);
}

async fn late_messages_are_stored_in_their_place(subject: Subject) {
    let archive = subject.open().await.archive;
    let seconds = [9, 1, 8, 2, 0, 7, 3, 6, 4, 5, 1, 8, 0];
    let second = 1_000_000_000;
    let messages: Vec<Message> =
        (0..).zip(seconds).map(|(n, s): (u8, i64)| message(s * second, n, "a")).collect();
    for sent in &messages {
        archive.append(vec![sent.clone()]).await.unwrap();
    }
    assert_eq!(walk(&*archive, Query { limit: 2, ..Query::default() }).await.concat(), sorted(&messages));
}

async fn extreme_timestamps_are_kept(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX].map(|at| message(at, 1, "a"));
    assert_eq!(archive.append(messages.to_vec()).await.unwrap(), [Appended::Stored; 7]);
    assert_eq!(archive.append(messages.to_vec()).await.unwrap(), [Appended::Duplicate; 7]);
    assert_eq!(rows(&archive.query(&Query::default()).await.unwrap()), sorted(&messages));
}

async fn empty_and_long_fields_are_kept(subject: Subject) {
    let archive = subject.open().await.archive;
    let mut empty = message_in("", 1, 1, "");
    empty.body = Default::default();
    let mut long = message_in(&"c".repeat(CHANNEL_BYTES_MAX), 2, 1, &"t".repeat(TOPIC_BYTES_MAX));
    long.body = vec![7; BODY_BYTES_MAX].into();
    archive.append(vec![empty.clone(), long.clone()]).await.unwrap();
    assert_eq!(rows(&archive.query(&Query::default()).await.unwrap()), sorted(&[empty, long]));
}

async fn bodies_need_not_be_text(subject: Subject) {
    let archive = subject.open().await.archive;
    let mut binary = message(1, 1, "a");
    binary.body = (0..=255).collect::<Vec<u8>>().into();
    archive.append(vec![binary.clone()]).await.unwrap();
    assert_eq!(rows(&archive.query(&Query::default()).await.unwrap()), sorted(&[binary]));
}

async fn too_long_fields_are_refused_and_nothing_is_stored(subject: Subject) {
    let archive = subject.open().await.archive;
    let mut long_body = message(1, 1, "a");
    long_body.body = vec![0; BODY_BYTES_MAX + 1].into();
    let long_channel = message_in(&"c".repeat(CHANNEL_BYTES_MAX + 1), 1, 1, "a");
    let long_topic = message(1, 1, &"t".repeat(TOPIC_BYTES_MAX + 1));
    for refused in [long_body, long_channel, long_topic] {
        let error = archive.append(vec![message(2, 2, "a"), refused]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert!(archive.query(&Query::default()).await.unwrap().is_empty());
}

async fn too_large_a_batch_is_refused(subject: Subject) {
    let archive = subject.open().await.archive;
    let batch = (0..=APPEND_MESSAGES_MAX as i64).map(|n| message(n, 1, "a")).collect();
    assert_eq!(archive.append(batch).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(archive.query(&Query::default()).await.unwrap().is_empty());
}

async fn a_closed_archive_refuses_appends(subject: Subject) {
    let opened = subject.open().await;
    opened.archive.append(vec![message(1, 1, "a")]).await.unwrap();
    opened.upkeep.close().await.unwrap();
    opened.upkeep.close().await.unwrap();
    let error = opened.archive.append(vec![message(2, 1, "a")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // Closing releases the engine's resources, so it may no longer answer queries; but if it does, then correctly.
    match opened.archive.query(&Query::default()).await {
        Ok(page) => assert_eq!(page.len(), 1),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
    }
}

async fn appended_messages_survive_reopening(subject: Subject) {
    let mut opened = subject.open().await;
    let mut messages = Vec::new();
    for n in 0..12 {
        let batch = vec![message(n * 300_000_000, 1, "a"), message(n * 300_000_000, 2, "b")];
        messages.extend(batch.clone());
        opened.archive.append(batch).await.unwrap();
        opened = subject.reopen(opened).await;
        assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    }
}

async fn duplicates_are_known_after_reopening(subject: Subject) {
    let opened = subject.open().await;
    let messages: Vec<Message> = (0..20).map(|n| message(n * 300_000_000, 1, "a")).collect();
    opened.archive.append(messages.clone()).await.unwrap();
    let opened = subject.reopen(opened).await;
    assert_eq!(opened.archive.append(messages.clone()).await.unwrap(), [Appended::Duplicate; 20]);
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
}

async fn appending_goes_on_after_reopening(subject: Subject) {
    let mut opened = subject.open().await;
    let mut messages = Vec::new();
    for round in 0..6 {
        let batch: Vec<Message> =
            (0..5).map(|n| message(n * 400_000_000, round, &format!("topic {round}"))).collect();
        opened.archive.append(batch.clone()).await.unwrap();
        messages.extend(batch);
        opened = subject.reopen(opened).await;
    }
    assert_eq!(
        walk(&*opened.archive, Query { limit: 4, ..Query::default() }).await.concat(),
        sorted(&messages)
    );
    let stats = opened.upkeep.stats().await.unwrap();
    assert_eq!((stats.messages, stats.topics), (30, 6));
}
