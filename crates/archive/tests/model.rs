//! Random operations on each engine, compared with the `memory` model after each.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::num::NonZero;

use common::{
    engines::{self, Engine, TestArchive},
    filter_of, message_in, rows,
};
use proptest::{
    prelude::*,
    test_runner::{FileFailurePersistence, TestRunner},
};
use restante_archive::{
    CassandraConfig, Config, Direction, LogConfig, Message, Opened, PostgresConfig, Query, Retention, Topics,
    open,
};
use restante_core::{Cursor, Key, MessageHash, Timestamp, nonzero};

const TOPICS: [&str; 5] = ["apple", "apply", "beech", "cedar", "dates"];
const CHANNELS: [&str; 2] = ["one", "two"];

#[derive(Clone, Debug)]
enum Operation {
    Append(Vec<Message>),
    Query(Box<Query>),
    Prune { policy: Retention, now: i64 },
    Reopen,
    Rebuild,
    Check,
}

/// Few timestamps and few hashes, so that equal ones are common; eight windows of one second.
fn timestamp() -> impl Strategy<Value = i64> {
    (0..8_i64, 0..4_i64).prop_map(|(second, n)| second * 1_000_000_000 + n)
}

fn messages() -> impl Strategy<Value = Message> {
    (0..CHANNELS.len(), timestamp(), 0..6_u8, 0..TOPICS.len())
        .prop_map(|(channel, at, hash, topic)| message_in(CHANNELS[channel], at, hash, TOPICS[topic]))
}

fn topics() -> impl Strategy<Value = Topics> {
    prop_oneof![
        Just(Topics::Any),
        prop::sample::subsequence(&TOPICS[..], 0..=TOPICS.len())
            .prop_map(|topics| Topics::List(topics.into_iter().map(str::to_owned).collect())),
        prop::sample::subsequence(&TOPICS[..], 0..=TOPICS.len())
            .prop_map(|topics| Topics::Bloom(filter_of(&topics))),
    ]
}

fn cursors() -> impl Strategy<Value = Cursor> {
    prop_oneof![
        messages().prop_map(|message| Cursor::Message(message.message_hash)),
        messages().prop_map(|message| Cursor::At(message.key())),
        timestamp()
            .prop_map(|at| Cursor::At(Key { timestamp: Timestamp(at), message_hash: MessageHash::MAX })),
    ]
}

fn queries() -> impl Strategy<Value = Query> {
    let bounds = (prop::option::of(timestamp()), prop::option::of(timestamp()));
    let hashes = prop::collection::vec(messages().prop_map(|message| message.message_hash), 1..6);
    (
        prop::option::of(0..CHANNELS.len()),
        topics(),
        bounds,
        prop_oneof![4 => Just(vec![]), 1 => hashes],
        prop::option::of(cursors()),
        prop::bool::ANY,
        prop_oneof![1..6_usize, Just(1_000)],
    )
        .prop_map(|(channel, topics, (start, end), hashes, cursor, forward, limit)| Query {
            channel: channel.map(|channel| CHANNELS[channel].to_owned()),
            topics,
            start: start.map(Timestamp),
            end: end.map(Timestamp),
            hashes,
            cursor,
            direction: if forward { Direction::Forward } else { Direction::Backward },
            limit,
            bodies: true,
        })
}

fn operations() -> impl Strategy<Value = Operation> {
    let policy = (prop::option::of(1..8_u64), prop::option::of(1..40_u64))
        .prop_map(|(time_seconds, capacity)| Retention { time_seconds, capacity, size_bytes: None });
    prop_oneof![
        8 => prop::collection::vec(messages(), 1..12).prop_map(Operation::Append),
        12 => queries().prop_map(|query| Operation::Query(Box::new(query))),
        1 => (policy, timestamp()).prop_map(|(policy, now)| Operation::Prune { policy, now }),
        1 => Just(Operation::Reopen),
        1 => Just(Operation::Rebuild),
        1 => Just(Operation::Check),
    ]
}

struct Pair {
    engine: Opened,
    model: Opened,
    config: Config,
}

impl Pair {
    async fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Append(batch) => {
                let answers = self.engine.archive.append(batch.clone()).await.unwrap();
                assert_eq!(answers, self.model.archive.append(batch).await.unwrap());
            }
            Operation::Query(query) => self.compare(&query).await,
            Operation::Prune { policy, now } => self.prune(&policy, Timestamp(now)).await,
            Operation::Reopen => {
                self.engine.upkeep.close().await.unwrap();
                self.engine = open(self.config.clone()).await.unwrap();
            }
            Operation::Rebuild => assert!(self.engine.upkeep.rebuild(&|_, _| ()).await.unwrap().is_sound()),
            Operation::Check => assert!(self.engine.upkeep.check(&|_, _| ()).await.unwrap().is_sound()),
        }
        let (engine, model) =
            (self.engine.upkeep.stats().await.unwrap(), self.model.upkeep.stats().await.unwrap());
        assert_eq!(
            (engine.messages, engine.topics, engine.body_bytes),
            (model.messages, model.topics, model.body_bytes)
        );
        assert_eq!((engine.oldest, engine.newest), (model.oldest, model.newest));
    }

    async fn compare(&self, query: &Query) {
        let (engine, model) = (self.engine.archive.query(query).await, self.model.archive.query(query).await);
        match (engine, model) {
            (Ok(engine), Ok(model)) => {
                assert_eq!(rows(&engine), rows(&model), "{query:?}");
                assert_eq!(engine.next, model.next, "{query:?}");
            }
            (Err(engine), Err(model)) => assert_eq!(engine.kind(), model.kind(), "{query:?}"),
            (engine, model) => panic!("{query:?}: engine {engine:?}, model {model:?}"),
        }
    }

    /// An engine that removes whole parts may keep more than the model, but must not remove what the policy keeps. Afterwards the
    /// model gets what the engine has kept.
    async fn prune(&self, policy: &Retention, now: Timestamp) {
        let everything = Query { limit: 10_000, ..Query::default() };
        self.engine.upkeep.prune(policy, now).await.unwrap();
        let before = rows(&self.model.archive.query(&everything).await.unwrap());
        self.model.upkeep.prune(policy, now).await.unwrap();
        let kept_by_policy = rows(&self.model.archive.query(&everything).await.unwrap());
        let kept = rows(&self.engine.archive.query(&everything).await.unwrap());
        for row in &kept_by_policy {
            assert!(kept.contains(row), "{policy} at {now}: {row:?} is gone");
        }
        let missing = before.into_iter().filter(|row| kept.contains(row) && !kept_by_policy.contains(row));
        let messages = missing.map(|row| Message {
            message_hash: row.key.message_hash,
            channel: row.channel.into(),
            topic: row.topic.into(),
            timestamp: row.key.timestamp,
            body: row.body.into(),
        });
        self.model.archive.append(messages.collect()).await.unwrap();
    }
}

/// How the engine divides its contents: into small parts, so that operations cross many.
#[derive(Clone, Debug)]
struct Shape {
    segment_messages: NonZero<u64>,
    open_segments: NonZero<usize>,
    window_seconds: NonZero<u64>,
}

fn shapes() -> impl Strategy<Value = Shape> {
    (prop_oneof![1..8_u64, Just(1_000)], 1..4_usize, 1..4_u64).prop_map(
        |(segment_messages, open_segments, window_seconds)| Shape {
            segment_messages: segment_messages.try_into().unwrap(),
            open_segments: open_segments.try_into().unwrap(),
            window_seconds: window_seconds.try_into().unwrap(),
        },
    )
}

async fn compare_all(place: &TestArchive, shape: Shape, operations: Vec<Operation>) {
    let Shape { segment_messages, open_segments, window_seconds } = shape;
    let mut config = place.config.clone();
    config.log = LogConfig { window_seconds, segment_messages, open_segments, ..config.log };
    config.postgres = PostgresConfig { window_seconds, ..config.postgres };
    let seconds = window_seconds.get();
    config.cassandra = CassandraConfig {
        window_seconds: nonzero!(1),
        epoch_seconds: seconds,
        epochs_max: open_segments,
        ..config.cassandra
    };
    let model = open(Config { url: "memory:".parse().unwrap(), ..config.clone() }).await.unwrap();
    let mut pair = Pair { engine: open(config.clone()).await.unwrap(), model, config };
    for operation in operations {
        pair.run(operation).await;
    }
    pair.engine.upkeep.close().await.unwrap();
}

/// RESTANTE_TEST_CASES=10000 for a long run. Slower engines get fewer cases.
fn cases(engine: Engine) -> u32 {
    let of_log =
        std::env::var("RESTANTE_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300);
    let times_slower = match engine {
        Engine::Memory | Engine::Log | Engine::LogSmall => 1,
        Engine::Sqlite => 3,
        Engine::Postgres | Engine::PostgresSmall => 10,
        // Creating and dropping a table takes a second or two.
        Engine::Cassandra | Engine::CassandraSmall => 30,
    };
    (of_log / times_slower).max(1)
}

/// A failure prints the shortest failing list of operations that was found, which is kept in `model.regressions` for later runs.
fn agrees_with_the_model(engine: Engine) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: cases(engine),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        source_file: Some(file!()),
        test_name: Some(engine.name()),
        ..ProptestConfig::default()
    });
    let operations = prop::collection::vec(operations(), 1..60);
    let outcome = runner.run(&(operations, shapes()), |(operations, shape)| {
        engines::run(engine, async |place| compare_all(&place, shape, operations).await);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn main() {
    let trials = [Engine::Log, Engine::Sqlite, Engine::Postgres, Engine::Cassandra]
        .map(|engine| engines::trial(engine, "agrees_with_the_model", move || agrees_with_the_model(engine)));
    engines::conclude(&libtest_mimic::run(&engines::arguments(), trials.into()))
}
