//! Faults of the network between a server and its database: whatever happens to connections, what was acknowledged is found,
//! once, and an answer is complete or an error.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    engines::{self, Engine, TestArchive},
    message, rows, sorted, walk,
};
use restante_archive::{
    Appended, Archive, CassandraConfig, Config, EngineUrl, Message, Opened, PostgresConfig, PostgresUrl,
    Query, open,
};
use restante_core::{ErrorKind, nonzero};
use restante_fault_proxy::{Direction, Proxy, Side};
use tokio::time::timeout;

const SECOND: i64 = 1_000_000_000;
const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];
/// Points at which connections are cut in one operation, in each direction. `RESTANTE_FAULT_CUTS=1000` for a long run.
const CUTS: u64 = 40;
/// How long to wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

type Run = fn(Arc<TestArchive>) -> Pin<Box<dyn Future<Output = ()>>>;

/// Lists test functions by name.
macro_rules! promises {
    ($($promise:ident),* $(,)?) => { [$((stringify!($promise), (|place| Box::pin($promise(place))) as Run)),*] };
}

#[path = "faults/nodes.rs"]
mod nodes;

fn main() {
    let promises = promises![
        a_lost_connection_is_noticed_without_a_time_out,
        an_append_that_is_cut_at_any_byte_is_stored_once,
        a_query_that_is_cut_at_any_byte_is_whole_or_an_error,
        a_database_that_does_not_answer_is_unavailable_until_it_does,
        a_connection_that_only_one_side_has_is_given_up,
    ];
    let mut trials = Vec::new();
    for engine in [Engine::Postgres, Engine::PostgresSmall] {
        for (name, promise) in promises {
            trials.push(engines::trial(engine, name, move || engines::run(engine, promise)));
        }
    }
    for (name, promise) in nodes::promises() {
        let engine = Engine::Cassandra;
        trials.push(engines::trial_of_nodes(engine, name, move || engines::run(engine, promise)));
    }
    engines::conclude(&libtest_mimic::run(&engines::arguments(), trials))
}

fn cuts() -> u64 {
    std::env::var("RESTANTE_FAULT_CUTS").ok().map_or(CUTS, |text| text.parse().unwrap())
}

/// Settings with short time-outs, so that faults are noticed soon.
fn impatient(place: &TestArchive) -> Config {
    let postgres = PostgresConfig {
        connect_timeout_ms: nonzero!(1_000),
        statement_timeout_ms: nonzero!(1_000),
        ..place.config.postgres
    };
    let cassandra = CassandraConfig {
        request_timeout_ms: nonzero!(2_000),
        patience_ms: nonzero!(15_000),
        ..place.config.cassandra
    };
    Config { postgres, cassandra, ..place.config.clone() }
}

/// A server whose connections go through a proxy.
async fn behind_proxy(place: &TestArchive) -> (Proxy, Opened) {
    proxied(impatient(place)).await
}

async fn proxied(config: Config) -> (Proxy, Opened) {
    let EngineUrl::Postgres(url) = &config.url else { panic!("{} has no proxy", config.url) };
    let (scheme, rest) = url.connection().split_once("://").unwrap();
    let (user, rest) = rest.rsplit_once('@').unwrap();
    let (server, database) = rest.split_once('/').unwrap();
    let proxy = Proxy::new(server).await.unwrap();
    let joint = if database.contains('?') { '&' } else { '?' };
    let text = format!("{scheme}://{user}@{}/{database}{joint}schema={}", proxy.address(), url.schema());
    let url = EngineUrl::Postgres(text.parse::<PostgresUrl>().unwrap());
    let opened = open(Config { url, ..config }).await.unwrap();
    (proxy, opened)
}

/// Messages that differ from those of every other number.
fn batch(number: u64) -> Vec<Message> {
    let at = |n: u64| ((number * 10 + n) as i64) * SECOND / 4;
    (0..10).map(|n| message(at(n), n as u8, &format!("{:03}", n % 4))).collect()
}

/// Appends until it is acknowledged; returns how many messages the last call stored.
async fn append_in_the_end(archive: &dyn Archive, messages: &[Message]) -> usize {
    let start = Instant::now();
    loop {
        match archive.append(messages.to_vec()).await {
            Ok(answers) => {
                assert!(!answers.contains(&Appended::Spooled), "there is no spool");
                return answers.iter().filter(|answer| **answer == Appended::Stored).count();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        assert!(start.elapsed() < PATIENCE, "it doesn't work again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Queries until there is an answer.
async fn query_in_the_end(archive: &dyn Archive, query: &Query) -> Vec<common::OwnedRow> {
    let start = Instant::now();
    loop {
        match archive.query(query).await {
            Ok(page) => return rows(&page),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        assert!(start.elapsed() < PATIENCE, "it doesn't work again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Calls waited for the time-out of their statement, because the end of a connection did not end the requests on it.
async fn a_lost_connection_is_noticed_without_a_time_out(place: Arc<TestArchive>) {
    let hour = nonzero!(3_600_000);
    let postgres = PostgresConfig { statement_timeout_ms: hour, ..place.config.postgres };
    let (proxy, opened) = proxied(Config { postgres, ..place.config.clone() }).await;
    append_in_the_end(&*opened.archive, &batch(0)).await;
    for direction in BOTH {
        for bytes in [0, 30, 300] {
            proxy.cut_after(direction, bytes);
            let append = timeout(PATIENCE, opened.archive.append(batch(1)));
            let _ = append.await.expect("an append ends with its connection");
            proxy.cut_after(direction, bytes);
            let query = timeout(PATIENCE, opened.archive.query(&Query::default())).await;
            let _ = query.expect("a query ends with its connection");
            proxy.heal();
            append_in_the_end(&*opened.archive, &batch(1)).await;
        }
    }
    let found = query_in_the_end(&*opened.archive, &Query { limit: 100, ..Query::default() }).await;
    assert_eq!(found, sorted(&(0..2).flat_map(batch).collect::<Vec<_>>()));
}

async fn an_append_that_is_cut_at_any_byte_is_stored_once(place: Arc<TestArchive>) {
    let (proxy, opened) = behind_proxy(&place).await;
    let other = open(impatient(&place)).await.unwrap();
    let mut all = Vec::new();
    let mut next = || {
        let messages = batch(all.len() as u64 / 10);
        all.extend(messages.clone());
        messages
    };
    append_in_the_end(&*opened.archive, &next()).await;
    let (mut happened, mut tried) = (0, 0);
    for direction in BOTH {
        let before = proxy.passed(direction);
        append_in_the_end(&*opened.archive, &next()).await;
        let bytes = proxy.passed(direction) - before;
        let cuts = cuts().min(bytes);
        for cut in 0..cuts {
            let messages = next();
            proxy.cut_after(direction, bytes * cut / cuts);
            let answered = opened.archive.append(messages.clone()).await;
            happened += u64::from(!proxy.is_armed(direction));
            tried += 1;
            proxy.heal();
            // What was reported to a client exists before anything is repeated.
            if let Ok(answers) = answered {
                // Messages were reported as duplicates when they were committed and only the answer was lost.
                assert_eq!(answers, [Appended::Stored; 10], "cut at {cut} of {cuts}, {direction:?}");
                let hashes = messages.iter().map(|message| message.message_hash).collect();
                let found = other.archive.query(&Query { hashes, ..Query::default() }).await.unwrap();
                assert_eq!(rows(&found), sorted(&messages), "cut at {cut} of {cuts}, {direction:?}");
            }
            append_in_the_end(&*opened.archive, &messages).await;
            assert_eq!(append_in_the_end(&*opened.archive, &messages).await, 0, "all are duplicates now");
        }
    }
    assert!(happened > tried / 2, "most cuts fall into the append: {happened} of {tried}");
    let found = walk(&*other.archive, Query { limit: 70, ..Query::default() }).await.concat();
    assert_eq!(found, sorted(&all));
    assert_eq!(other.upkeep.stats().await.unwrap().messages, all.len() as u64);
}

async fn a_query_that_is_cut_at_any_byte_is_whole_or_an_error(place: Arc<TestArchive>) {
    let (proxy, opened) = behind_proxy(&place).await;
    let all: Vec<Message> = (0..30).flat_map(batch).collect();
    append_in_the_end(&*opened.archive, &all).await;
    let query = Query { limit: 100, ..Query::default() };
    let expected = &sorted(&all)[..100];
    query_in_the_end(&*opened.archive, &query).await;
    let (mut errors, mut tried) = (0, 0);
    for direction in BOTH {
        let before = proxy.passed(direction);
        assert_eq!(query_in_the_end(&*opened.archive, &query).await, expected);
        let bytes = proxy.passed(direction) - before;
        let cuts = cuts().min(bytes);
        for cut in 0..cuts {
            proxy.cut_after(direction, bytes * cut / cuts);
            match opened.archive.query(&query).await {
                Ok(page) => assert_eq!(rows(&page), expected, "cut at {cut} of {cuts}, {direction:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    errors += 1;
                }
            }
            tried += u64::from(!proxy.is_armed(direction));
            proxy.heal();
            assert_eq!(query_in_the_end(&*opened.archive, &query).await, expected);
        }
    }
    assert!(tried > 0, "no cut fell into a query");
    eprintln!("{tried} cuts, {errors} errors");
}

async fn a_database_that_does_not_answer_is_unavailable_until_it_does(place: Arc<TestArchive>) {
    let (proxy, opened) = behind_proxy(&place).await;
    append_in_the_end(&*opened.archive, &batch(0)).await;
    for (number, direction) in (1..).zip(BOTH) {
        proxy.silence(direction);
        let query = Query::default();
        let (appended, found) =
            tokio::join!(opened.archive.append(batch(number)), opened.archive.query(&query));
        assert_eq!(appended.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(found.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(opened.upkeep.health().problem.is_some(), "it is noticed");
        proxy.heal();
        append_in_the_end(&*opened.archive, &batch(number)).await;
    }
    let found = query_in_the_end(&*opened.archive, &Query { limit: 100, ..Query::default() }).await;
    assert_eq!(found, sorted(&(0..3).flat_map(batch).collect::<Vec<_>>()));
    assert!(opened.upkeep.health().problem.is_none());
}

async fn a_connection_that_only_one_side_has_is_given_up(place: Arc<TestArchive>) {
    let (proxy, opened) = behind_proxy(&place).await;
    append_in_the_end(&*opened.archive, &batch(0)).await;
    for (number, side) in (1..).zip([Side::Client, Side::Server]) {
        let before = proxy.passed(Direction::ToServer);
        let lose = async {
            // In the middle of the append, or before it if it ends earlier.
            while proxy.passed(Direction::ToServer) < before + 200 {
                tokio::task::yield_now().await;
            }
            proxy.lose(side);
        };
        let messages = batch(number);
        let (_, ()) = tokio::join!(opened.archive.append(messages.clone()), lose);
        append_in_the_end(&*opened.archive, &messages).await;
    }
    let found = query_in_the_end(&*opened.archive, &Query { limit: 100, ..Query::default() }).await;
    assert_eq!(found, sorted(&(0..3).flat_map(batch).collect::<Vec<_>>()));
}
