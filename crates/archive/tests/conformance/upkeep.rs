//! The promises of `Upkeep`.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_archive::{Health, Message, Query, Retention};
use restante_core::Timestamp;

use crate::{
    Subject,
    common::{message, rows, sorted, walk},
};

crate::promises! {
    any: [
        a_fresh_archive_is_well,
        stats_count_messages_and_topics,
        an_empty_archive_has_stats,
        stats_tell_when_what_is_held_was_sent,
        a_policy_that_keeps_everything_removes_nothing,
        time_retention_keeps_what_is_young,
        time_retention_removes_what_is_old,
        capacity_retention_keeps_the_newest,
        pruned_messages_are_gone_from_every_query,
        appending_goes_on_after_a_prune,
        appends_and_queries_go_on_during_prunes,
        a_sound_archive_passes_its_check,
        a_rebuild_changes_no_answer,
    ],
    disk: [size_retention_gives_disk_back, pruned_messages_stay_gone_after_reopening]
}

const SECOND: i64 = 1_000_000_000;
/// Engines may keep a window of which a policy keeps only a part; after this long every window, of any length, has ended.
const LONG_AFTERWARDS: Timestamp = Timestamp(100 * 86_400 * SECOND);

fn every_second(seconds: i64) -> Vec<Message> {
    (0..seconds).map(|n| message(n * SECOND, 1, &format!("topic {}", n % 7))).collect()
}

fn policy(text: &str) -> Retention {
    text.parse().unwrap()
}

fn no_progress(_: u64, _: u64) {}

async fn a_fresh_archive_is_well(subject: Subject) {
    let opened = subject.open().await;
    assert_eq!(opened.upkeep.health(), Health::default(), "no problem, and nothing spooled");
    opened.archive.append(every_second(3)).await.unwrap();
    assert_eq!(opened.upkeep.health(), Health::default());
}

async fn stats_count_messages_and_topics(subject: Subject) {
    let opened = subject.open().await;
    let messages = every_second(30);
    opened.archive.append(messages.clone()).await.unwrap();
    opened.archive.append(messages.clone()).await.unwrap();
    let stats = opened.upkeep.stats().await.unwrap();
    assert_eq!((stats.messages, stats.topics, stats.damaged), (30, 7, 0));
    assert_eq!(stats.body_bytes, messages.iter().map(|message| message.body.len() as u64).sum::<u64>());
    assert_eq!((stats.oldest, stats.newest), (Some(Timestamp(0)), Some(Timestamp(29 * SECOND))));
    assert_eq!(stats.parts.iter().map(|part| part.messages).sum::<u64>(), 30);
}

async fn an_empty_archive_has_stats(subject: Subject) {
    let stats = subject.open().await.upkeep.stats().await.unwrap();
    assert_eq!((stats.messages, stats.topics, stats.oldest, stats.newest), (0, 0, None, None));
    assert_eq!(stats.parts, []);
}

/// The parts have all messages and nothing else, each within the archive's span, even after messages were removed.
async fn stats_tell_when_what_is_held_was_sent(subject: Subject) {
    let opened = subject.open().await;
    let day = 86_400 * SECOND;
    let sent: Vec<i64> = (0..40).map(|n| n % 4 * day + n * SECOND).collect(); // not in the order of time
    let messages: Vec<Message> = sent.iter().map(|at| message(*at, 1, "t")).collect();
    for batch in messages.chunks(7) {
        opened.archive.append(batch.to_vec()).await.unwrap();
    }
    for kept in ["none", "capacity:25", "capacity:1"] {
        opened.upkeep.prune(&policy(kept), LONG_AFTERWARDS).await.unwrap();
        let stats = opened.upkeep.stats().await.unwrap();
        let parts = &stats.parts;
        assert_eq!(parts.iter().map(|part| part.messages).sum::<u64>(), stats.messages, "{kept}");
        assert!(parts.is_sorted_by_key(|part| part.oldest), "{kept}: {parts:?}");
        let oldest = parts.iter().map(|part| part.oldest).min();
        let newest = parts.iter().map(|part| part.newest).max();
        assert_eq!((oldest, newest), (stats.oldest, stats.newest), "{kept}");
        assert!(
            parts.iter().all(|part| part.oldest <= part.newest && part.messages > 0),
            "{kept}: {parts:?}"
        );
        // A segment may be sealed after the folder is read and before the parts are, so that the sums are only about the same.
        let has_disk = parts.iter().any(|part| part.disk_bytes > 0);
        assert_eq!(has_disk, stats.disk_bytes > 0, "{kept}: {parts:?}");
    }
}

async fn a_policy_that_keeps_everything_removes_nothing(subject: Subject) {
    let opened = subject.open().await;
    let messages = every_second(20);
    opened.archive.append(messages.clone()).await.unwrap();
    for kept in ["none", "time:20", "capacity:20", "size:1GB", "time:20;capacity:20;size:1GB"] {
        let pruned = opened.upkeep.prune(&policy(kept), Timestamp(20 * SECOND)).await.unwrap();
        assert_eq!(pruned.messages, 0, "{kept}");
    }
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
}

async fn time_retention_keeps_what_is_young(subject: Subject) {
    let opened = subject.open().await;
    let messages = every_second(30);
    opened.archive.append(messages.clone()).await.unwrap();
    opened.upkeep.prune(&policy("time:10"), Timestamp(30 * SECOND)).await.unwrap();
    let kept = walk(&*opened.archive, Query::default()).await.concat();
    assert_eq!(kept[kept.len() - 10..], sorted(&messages)[20..]);
    assert_eq!(kept, sorted(&messages)[30 - kept.len()..], "what went is the oldest");
}

async fn time_retention_removes_what_is_old(subject: Subject) {
    let opened = subject.open().await;
    opened.archive.append(every_second(30)).await.unwrap();
    let pruned = opened.upkeep.prune(&policy("time:60"), LONG_AFTERWARDS).await.unwrap();
    assert_eq!(pruned.messages, 30);
    let stats = opened.upkeep.stats().await.unwrap();
    assert_eq!((stats.messages, stats.topics, stats.oldest), (0, 0, None));
}

async fn capacity_retention_keeps_the_newest(subject: Subject) {
    let opened = subject.open().await;
    let messages = every_second(30);
    opened.archive.append(messages.clone()).await.unwrap();
    opened.upkeep.prune(&policy("capacity:7"), Timestamp(0)).await.unwrap();
    let kept = walk(&*opened.archive, Query::default()).await.concat();
    assert!(kept.len() >= 7);
    assert_eq!(kept, sorted(&messages)[30 - kept.len()..]);
}

async fn pruned_messages_are_gone_from_every_query(subject: Subject) {
    let opened = subject.open().await;
    let messages = every_second(30);
    opened.archive.append(messages.clone()).await.unwrap();
    opened.upkeep.prune(&policy("time:60"), LONG_AFTERWARDS).await.unwrap();
    assert!(opened.archive.query(&Query::default()).await.unwrap().is_empty());
    let hashes = messages.iter().map(|message| message.message_hash).collect();
    assert!(opened.archive.query(&Query { hashes, ..Query::default() }).await.unwrap().is_empty());
    let topics = restante_archive::Topics::List(vec!["topic 1".into()]);
    assert!(opened.archive.query(&Query { topics, ..Query::default() }).await.unwrap().is_empty());
}

async fn appending_goes_on_after_a_prune(subject: Subject) {
    let opened = subject.open().await;
    let messages = every_second(30);
    opened.archive.append(messages.clone()).await.unwrap();
    opened.upkeep.prune(&policy("time:60"), LONG_AFTERWARDS).await.unwrap();
    opened.archive.append(messages.clone()).await.unwrap();
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    assert_eq!(opened.upkeep.stats().await.unwrap().topics, 7);
}

async fn appends_and_queries_go_on_during_prunes(subject: Subject) {
    let opened = subject.open().await;
    let newest = message(1_000_000 * SECOND, 9, "newest");
    opened.archive.append(vec![newest.clone()]).await.unwrap();
    let archive = opened.archive.clone();
    let appender = tokio::spawn(async move {
        for sent in every_second(200) {
            archive.append(vec![sent]).await.unwrap();
        }
    });
    while !appender.is_finished() {
        opened.upkeep.prune(&policy("time:100;capacity:20"), Timestamp(150 * SECOND)).await.unwrap();
        let backward = Query { direction: restante_archive::Direction::Backward, ..Query::default() };
        let page = opened.archive.query(&backward).await.unwrap();
        assert_eq!(rows(&page).last(), sorted(std::slice::from_ref(&newest)).last());
        tokio::task::yield_now().await;
    }
    appender.await.unwrap();
    let stats = opened.upkeep.stats().await.unwrap();
    let kept = walk(&*opened.archive, Query::default()).await.concat();
    assert_eq!(kept.len() as u64, stats.messages);
}

async fn a_sound_archive_passes_its_check(subject: Subject) {
    let opened = subject.open().await;
    opened.archive.append(every_second(30)).await.unwrap();
    let report = opened.upkeep.check(&no_progress).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.messages, 30);
}

async fn a_rebuild_changes_no_answer(subject: Subject) {
    let opened = subject.open().await;
    let messages = every_second(30);
    opened.archive.append(messages.clone()).await.unwrap();
    let report = opened.upkeep.rebuild(&no_progress).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.messages, 30);
    assert_eq!(
        walk(&*opened.archive, Query { limit: 4, ..Query::default() }).await.concat(),
        sorted(&messages)
    );
    assert_eq!(opened.upkeep.stats().await.unwrap().topics, 7);
    assert!(opened.upkeep.check(&no_progress).await.unwrap().is_sound());
}

async fn size_retention_gives_disk_back(subject: Subject) {
    let opened = subject.open().await;
    let mut random = ChaCha8Rng::seed_from_u64(1); // an engine may compress, but not this
    for chunk in every_second(60).chunks(3) {
        let mut batch = chunk.to_vec();
        for sent in &mut batch {
            let mut body = vec![0; 100_000];
            random.fill_bytes(&mut body);
            sent.body = body.into();
        }
        opened.archive.append(batch).await.unwrap();
    }
    let before = opened.upkeep.stats().await.unwrap();
    assert!(before.disk_bytes > 6_000_000, "{before:?}");
    let pruned = opened.upkeep.prune(&policy("size:2MB"), Timestamp(0)).await.unwrap();
    let after = opened.upkeep.stats().await.unwrap();
    assert_eq!(before.messages - after.messages, pruned.messages);
    let has_one_part = after.parts.len() == 1;
    assert!(after.disk_bytes <= 2_000_000 || has_one_part, "{after:?}");
    if pruned.messages > 0 {
        assert!(
            after.disk_bytes < before.disk_bytes && pruned.disk_bytes > 0,
            "{before:?} {pruned:?} {after:?}"
        );
    }
    assert_eq!(after.newest, before.newest);
}

async fn pruned_messages_stay_gone_after_reopening(subject: Subject) {
    let opened = subject.open().await;
    opened.archive.append(every_second(30)).await.unwrap();
    opened.upkeep.prune(&policy("time:60"), LONG_AFTERWARDS).await.unwrap();
    let opened = subject.reopen(opened).await;
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 0);
}
