//! Several servers on one database: properties of two archives that are open in one place at the same time.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{future::Future, pin::Pin, sync::Arc};

use common::{
    OwnedRow,
    engines::{self, Engine, TestArchive},
    filter_of, message, message_in, rows, sorted, walk,
};
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use restante_archive::{Appended, Archive, Direction, Message, Opened, Query, Topics, Walk};
use restante_core::Timestamp;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
/// How many different topics the shared messages have.
const TOPICS: usize = 100;
const CHANNELS: [&str; 2] = ["one", "two"];

type Run = fn(Arc<TestArchive>) -> Pin<Box<dyn Future<Output = ()>>>;

/// Lists test functions by name.
macro_rules! promises {
    ($($promise:ident),* $(,)?) => { [$((stringify!($promise), (|place| Box::pin($promise(place))) as Run)),*] };
}

fn main() {
    let promises = promises![
        two_may_open_an_empty_database_at_once,
        the_same_messages_through_both_are_stored_once,
        new_topics_through_one_are_found_through_the_other,
        a_walk_goes_on_at_the_other,
        a_topic_that_one_pruned_comes_back_through_the_other,
        one_prunes_while_the_other_appends_and_answers,
        both_prune_at_once,
        one_closes_and_the_other_goes_on,
    ];
    let mut trials = Vec::new();
    for engine in [Engine::Postgres, Engine::PostgresSmall, Engine::Cassandra, Engine::CassandraSmall] {
        for (name, promise) in promises {
            trials.push(engines::trial(engine, name, move || engines::run(engine, promise)));
        }
    }
    engines::conclude(&libtest_mimic::run(&engines::arguments(), trials))
}

/// A topic is distinguished by its first three bytes, so that a filter of one matches that one alone.
fn topic(n: usize) -> String {
    format!("{:03}", n % TOPICS)
}

/// Messages on both sides of a midnight, a hundred a second; some timestamps are equal.
fn shared_messages(count: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    for n in 0..count {
        let timestamp = DAY - 10 * SECOND + (n as i64 / 3) * 30_000_000;
        messages.push(message_in(CHANNELS[n % 2], timestamp, n as u8, &topic(n * 7)));
    }
    messages
}

fn only(messages: &[Message], keep: impl Fn(&Message) -> bool) -> Vec<OwnedRow> {
    let kept: Vec<Message> = messages.iter().filter(|message| keep(message)).cloned().collect();
    sorted(&kept)
}

/// All rows of a walk, in the archive's order whichever direction it had.
async fn walked(archive: &dyn Archive, query: Query) -> Vec<OwnedRow> {
    let is_backward = query.direction == Direction::Backward;
    let mut pages = walk(archive, query).await;
    if is_backward {
        pages.reverse();
    }
    pages.concat()
}

/// Appends in batches, each without an error; returns how many messages were stored.
async fn append_all(archive: Arc<dyn Archive>, messages: Vec<Message>, batch_messages: usize) -> usize {
    let mut stored = 0;
    for batch in messages.chunks(batch_messages) {
        let answers = archive.append(batch.to_vec()).await.unwrap();
        assert_eq!(answers.len(), batch.len());
        assert!(!answers.contains(&Appended::Spooled), "the database is there");
        stored += answers.iter().filter(|answer| **answer == Appended::Stored).count();
    }
    stored
}

/// Checks that a server returns exactly these messages, each once, with every kind of filter.
async fn shows(server: &Opened, messages: &[Message]) {
    let archive = &*server.archive;
    for direction in [Direction::Forward, Direction::Backward] {
        let query = Query { direction, limit: 97, ..Query::default() };
        assert_eq!(walked(archive, query.clone()).await, sorted(messages));
        for channel in CHANNELS {
            let query = Query { channel: Some(channel.to_owned()), ..query.clone() };
            assert_eq!(walked(archive, query).await, only(messages, |message| &*message.channel == channel));
        }
        let some = [topic(3), topic(42), topic(77)];
        let of_some = only(messages, |message| some.iter().any(|topic| **topic == *message.topic));
        let filter = filter_of(&some.each_ref().map(String::as_str));
        let query = Query { limit: 7, ..query };
        for topics in [Topics::List(some.to_vec()), Topics::Bloom(filter)] {
            let found = walked(archive, Query { topics, ..query.clone() }).await;
            // A filter of several topics also matches others whose bits it has by chance.
            let found: Vec<OwnedRow> = found.into_iter().filter(|row| some.contains(&row.topic)).collect();
            assert_eq!(found, of_some);
        }
    }
    for n in 0..TOPICS {
        let of_topic = only(messages, |message| *message.topic == *topic(n));
        let list = Query { topics: Topics::List(vec![topic(n)]), limit: 6, ..Query::default() };
        assert_eq!(walked(archive, list.clone()).await, of_topic);
        let bloom = Query { topics: Topics::Bloom(filter_of(&[&topic(n)])), ..list };
        assert_eq!(walked(archive, bloom).await, of_topic);
    }
    let stats = server.upkeep.stats().await.unwrap();
    assert_eq!(stats.messages, messages.len() as u64);
}

/// Migrations exclude one another, and the second finds them done.
async fn two_may_open_an_empty_database_at_once(place: Arc<TestArchive>) {
    // Creating tables takes seconds in Cassandra, where a test finds them unless no test has ended before.
    for round in 0..if place.engine.is_cassandra() { 1 } else { 5 } {
        let place = TestArchive::new(place.engine);
        let (one, other) = tokio::join!(place.open(), place.open());
        let (first, second) = (message(round, 1, "a"), message(round, 2, "b"));
        assert_eq!(one.archive.append(vec![first.clone()]).await.unwrap(), [Appended::Stored]);
        let answers = other.archive.append(vec![first.clone(), second.clone()]).await.unwrap();
        assert_eq!(answers, [Appended::Duplicate, Appended::Stored]);
        for server in [&one, &other] {
            let page = server.archive.query(&Query::default()).await.unwrap();
            assert_eq!(rows(&page), sorted(&[first.clone(), second.clone()]));
            server.upkeep.close().await.unwrap();
        }
    }
}

async fn the_same_messages_through_both_are_stored_once(place: Arc<TestArchive>) {
    let (one, other) = (place.open().await, place.open().await);
    let messages = shared_messages(2_000);
    let backward: Vec<Message> = messages.iter().rev().cloned().collect();
    let mut shuffled = messages.clone();
    shuffled.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    let appenders = [
        tokio::spawn(append_all(one.archive.clone(), messages.clone(), 37)),
        tokio::spawn(append_all(one.archive.clone(), shuffled, 211)),
        tokio::spawn(append_all(other.archive.clone(), backward, 101)),
        tokio::spawn(append_all(other.archive.clone(), messages.clone(), 10)),
    ];
    let mut stored = 0;
    for appender in appenders {
        stored += appender.await.unwrap();
    }
    if place.engine.is_cassandra() {
        assert!(
            stored >= messages.len(),
            "a message may be answered as stored by both, but it is stored once"
        );
    } else {
        assert_eq!(stored, messages.len());
    }
    shows(&one, &messages).await;
    shows(&other, &messages).await;
}

async fn new_topics_through_one_are_found_through_the_other(place: Arc<TestArchive>) {
    let servers = [place.open().await, place.open().await];
    for n in 0..20 {
        let (appends, answers) = (&servers[n % 2].archive, &servers[(n + 1) % 2].archive);
        let (channel, topic) = (format!("channel {n}"), topic(n));
        let sent = message_in(&channel, DAY + n as i64 * SECOND, 1, &topic);
        let by_list = Query { topics: Topics::List(vec![topic.clone()]), ..Query::default() };
        let by_bloom = Query { topics: Topics::Bloom(filter_of(&[&topic])), ..Query::default() };
        let by_channel = Query { channel: Some(channel), ..Query::default() };
        let by_all = Query { channel: by_channel.channel.clone(), ..by_list.clone() };
        // Queried before, so that a server could remember that there is nothing.
        for query in [&by_list, &by_bloom, &by_channel, &by_all] {
            assert!(answers.query(query).await.unwrap().is_empty());
        }
        appends.append(vec![sent.clone()]).await.unwrap();
        for query in [&by_list, &by_bloom, &by_channel, &by_all] {
            let page = answers.query(query).await.unwrap();
            assert_eq!(rows(&page), sorted(std::slice::from_ref(&sent)), "{query:?}");
        }
    }
}

async fn a_walk_goes_on_at_the_other(place: Arc<TestArchive>) {
    let servers = [place.open().await, place.open().await];
    let messages = shared_messages(200);
    append_all(servers[0].archive.clone(), messages.clone(), 50).await;
    for direction in [Direction::Forward, Direction::Backward] {
        let mut walk = Walk::new(Query { limit: 7, direction, ..Query::default() });
        let (mut pages, mut turn) = (Vec::new(), 0);
        while let Some(page) = walk.next(&*servers[turn % 2].archive).await.unwrap() {
            pages.push(rows(&page));
            turn += 1;
        }
        if direction == Direction::Backward {
            pages.reverse();
        }
        assert_eq!(pages.concat(), sorted(&messages));
    }
}

/// Topics and partitions that a server remembers may be gone meanwhile.
async fn a_topic_that_one_pruned_comes_back_through_the_other(place: Arc<TestArchive>) {
    let (one, other) = (place.open().await, place.open().await);
    let messages = shared_messages(300);
    for _ in 0..3 {
        assert_eq!(append_all(other.archive.clone(), messages.clone(), 100).await, messages.len());
        shows(&one, &messages).await;
        let long_afterwards = Timestamp(100 * DAY);
        one.upkeep.prune(&"time:60".parse().unwrap(), long_afterwards).await.unwrap();
        for server in [&one, &other] {
            assert!(server.archive.query(&Query::default()).await.unwrap().is_empty());
        }
    }
    append_all(one.archive.clone(), messages.clone(), 100).await;
    shows(&other, &messages).await;
}

async fn one_prunes_while_the_other_appends_and_answers(place: Arc<TestArchive>) {
    let (one, other) = (place.open().await, place.open().await);
    let newest = message(50 * DAY, 9, "newest");
    other.archive.append(vec![newest.clone()]).await.unwrap();
    let archive = other.archive.clone();
    let appender = tokio::spawn(async move {
        for n in 0..200 {
            let second = i64::from(n) * SECOND;
            archive
                .append(vec![message(second, 1, &topic(n as usize)), message(second, 2, "all")])
                .await
                .unwrap();
            let query =
                Query { topics: Topics::List(vec!["newest".into(), topic(n as usize)]), ..Query::default() };
            let page = archive.query(&query).await.unwrap();
            assert_eq!(page.rows().last().map(|row| row.topic.to_owned()).as_deref(), Some("newest"));
        }
    });
    let mut pruned = 0;
    while !appender.is_finished() {
        let now = Timestamp(150 * SECOND);
        pruned += one.upkeep.prune(&"time:100;capacity:30".parse().unwrap(), now).await.unwrap().messages;
        let page =
            one.archive.query(&Query { direction: Direction::Backward, ..Query::default() }).await.unwrap();
        assert_eq!(rows(&page).last(), sorted(std::slice::from_ref(&newest)).last());
        tokio::task::yield_now().await;
    }
    appender.await.unwrap();
    for server in [&one, &other] {
        let kept = walked(&*server.archive, Query::default()).await;
        let accounted = kept.len() as u64 + pruned;
        if place.engine.is_cassandra() {
            assert!(accounted <= 401, "no message was pruned twice, or is there though it was pruned");
        } else {
            assert_eq!(accounted, 401, "each message was pruned once or is there");
        }
        assert_eq!(server.upkeep.stats().await.unwrap().messages, kept.len() as u64);
    }
}

/// As with servers that are started by the same timer. Neither fails because the other one was first.
async fn both_prune_at_once(place: Arc<TestArchive>) {
    let servers = [place.open().await, place.open().await];
    let messages = shared_messages(600);
    let newest = message(50 * DAY, 9, "newest");
    append_all(servers[0].archive.clone(), [messages, vec![newest.clone()]].concat(), 200).await;
    let now = Timestamp(40 * DAY);
    let pruned = servers.each_ref().map(|server| {
        let upkeep = server.upkeep.clone();
        tokio::spawn(async move {
            upkeep.stats().await.unwrap();
            upkeep.prune(&"time:60".parse().unwrap(), now).await.unwrap().messages
        })
    });
    let mut total = 0;
    for pruned in pruned {
        total += pruned.await.unwrap();
    }
    assert_eq!(total, 600, "each message was counted by the server that removed it");
    for server in &servers {
        let page = server.archive.query(&Query::default()).await.unwrap();
        assert_eq!(rows(&page), sorted(std::slice::from_ref(&newest)));
        assert_eq!(server.upkeep.stats().await.unwrap().messages, 1);
    }
}

async fn one_closes_and_the_other_goes_on(place: Arc<TestArchive>) {
    let (one, other) = (place.open().await, place.open().await);
    let messages = shared_messages(400);
    let (early, late) = messages.split_at(200);
    append_all(one.archive.clone(), early.to_vec(), 50).await;
    one.upkeep.close().await.unwrap();
    drop(one);
    append_all(other.archive.clone(), late.to_vec(), 50).await;
    shows(&other, &messages).await;
    let again = place.open().await;
    assert_eq!(append_all(again.archive.clone(), messages.clone(), 100).await, 0, "it knows them all");
    shows(&again, &messages).await;
}
