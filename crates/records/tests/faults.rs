//! Faults of the network between servers and the database that they share: whatever happens to connections, what was acknowledged
//! exists, what was refused does not, and no reader goes back. See `common/history.rs` for what is checked.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{
    future::Future,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use common::{
    A, B,
    engines::{self, Engine, TestStore},
    history::{History, Reader},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_core::{ErrorKind, ManualClock, Timestamp, nonzero};
use restante_fault_proxy::{Direction, Proxy, Side};
use restante_records::{
    AccountId, CassandraConfig, Config, EngineUrl, Opened, PostgresConfig, PostgresUrl, open,
};
use tokio::time::timeout;

type Run = fn(Arc<TestStore>) -> Pin<Box<dyn Future<Output = ()>>>;

/// Lists test functions by name.
macro_rules! promises {
    ($($promise:ident),* $(,)?) => { [$((stringify!($promise), (|place| Box::pin($promise(place))) as Run)),*] };
}

#[path = "faults/nodes.rs"]
mod nodes;

const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];
/// Places at which connections are cut in one commit, in each direction. `RESTANTE_FAULT_CUTS=1000` for a long run.
const CUTS: u64 = 40;
/// Servers that die in a commit. `RESTANTE_FAULT_DEATHS=1000` for a long run.
const DEATHS: u64 = 12;
/// Seconds of random faults. `RESTANTE_FAULT_SECONDS=600` for a long run.
const SECONDS: u64 = 8;
/// How long an expected event may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let promises = promises![
        a_lost_connection_is_noticed_without_a_time_out,
        a_commit_that_is_cut_at_any_byte_is_made_once_or_not_at_all,
        a_commit_whose_answer_does_not_come_is_settled,
        a_server_whose_requests_do_not_arrive_does_not_stop_others_for_long,
        a_transaction_that_nobody_ends_is_ended,
        a_database_that_is_away_refuses_and_comes_back,
        histories_hold_under_random_faults,
    ];
    // On Cassandra, connections are cut by a test of the conformance suite.
    let engine = Engine::Postgres;
    let mut trials = Vec::new();
    for (name, promise) in promises {
        trials.push(engines::trial(engine, name, move || engines::run(engine, promise)));
    }
    let of_both = promises![
        a_server_that_dies_at_any_byte_of_a_commit_leaves_all_of_it_or_nothing,
        servers_whose_clocks_differ_agree,
    ];
    for engine in [Engine::Postgres, Engine::Cassandra] {
        for (name, promise) in of_both {
            trials.push(engines::trial(engine, name, move || engines::run(engine, promise)));
        }
    }
    for (name, promise) in nodes::promises() {
        let engine = Engine::Cassandra;
        trials.push(engines::trial_of_nodes(engine, name, move || engines::run(engine, promise)));
    }
    libtest_mimic::run(&engines::arguments(), trials).exit();
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// Settings with short time-outs, so that faults show soon.
fn impatient(place: &TestStore) -> Config {
    let postgres = PostgresConfig {
        connect_timeout_ms: nonzero!(1_000),
        statement_timeout_ms: nonzero!(1_000),
        lock_timeout_ms: nonzero!(1_000),
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
async fn behind_proxy(place: &TestStore) -> (Proxy, Opened) {
    proxied(impatient(place)).await
}

/// Opens a store whose connections go through a proxy. With several nodes of Cassandra, only the first is proxied; the server
/// learns the others from it.
async fn proxied(config: Config) -> (Proxy, Opened) {
    let url = match &config.url {
        EngineUrl::Postgres(url) => url,
        EngineUrl::Cassandra(url) => {
            let proxy = Proxy::new(url.nodes()[0].clone()).await.unwrap();
            let text = url.to_string().replace(&url.nodes().join(","), &proxy.address().to_string());
            let url = EngineUrl::Cassandra(text.parse().unwrap());
            let opened = open(Config { url, ..config }).await.unwrap();
            return (proxy, opened);
        }
        other => panic!("{other} has no proxy"),
    };
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

/// A server that reaches the database without faults.
async fn beside(place: &TestStore) -> Opened {
    open(impatient(place)).await.unwrap()
}

/// Commits until one is acknowledged.
async fn commit_in_the_end(opened: &Opened, history: &History, account: AccountId) {
    let start = Instant::now();
    while let Err(error) = history.commit(&*opened.records, account, None).await {
        assert!(start.elapsed() < PATIENCE, "it doesn't work again: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Calls waited for the time-out of their statement, because a connection that ended did not end the requests on it.
async fn a_lost_connection_is_noticed_without_a_time_out(place: Arc<TestStore>) {
    let hour = nonzero!(3_600_000);
    let postgres = PostgresConfig { statement_timeout_ms: hour, ..place.config.postgres };
    let (proxy, opened) = proxied(Config { postgres, ..place.config.clone() }).await;
    let history = History::default();
    commit_in_the_end(&opened, &history, A).await;
    for direction in BOTH {
        for bytes in [0, 30, 300] {
            proxy.cut_after(direction, bytes);
            let commit = timeout(PATIENCE, history.commit(&*opened.records, A, None));
            let _ = commit.await.expect("a commit ends with its connection");
            proxy.cut_after(direction, bytes);
            let read = timeout(PATIENCE, opened.records.states(A));
            let _ = read.await.expect("a read ends with its connection");
            proxy.heal();
            commit_in_the_end(&opened, &history, A).await;
        }
    }
    history.check(&opened).await;
}

async fn a_commit_that_is_cut_at_any_byte_is_made_once_or_not_at_all(place: Arc<TestStore>) {
    let (proxy, opened) = behind_proxy(&place).await;
    let other = beside(&place).await;
    let history = History::default();
    let mut readers = [Reader::new(A), Reader::new(A)];
    // Twice: the first prepares the statements.
    for _ in 0..2 {
        commit_in_the_end(&opened, &history, A).await;
    }
    let mut happened = 0;
    for direction in BOTH {
        let before = proxy.passed(direction);
        commit_in_the_end(&opened, &history, A).await;
        let bytes = proxy.passed(direction) - before;
        let cuts = setting("RESTANTE_FAULT_CUTS", CUTS).min(bytes);
        for cut in 0..cuts {
            proxy.cut_after(direction, bytes * cut / cuts);
            let expected = (cut % 3 == 0).then_some(readers[0].seen());
            let _ = history.commit(&*opened.records, A, expected).await;
            happened += u64::from(!proxy.is_armed(direction));
            proxy.heal();
            commit_in_the_end(&opened, &history, A).await;
            for (reader, server) in readers.iter_mut().zip([&opened, &other]) {
                reader.read_on(&*server.records, &history).await.unwrap();
            }
        }
        assert!(happened >= cuts / 2, "most cuts of {cuts} fall into the commit: {happened}");
    }
    let counts = history.check(&other).await;
    eprintln!("{counts:?}, {happened} cuts: {:?}", history.errors());
    // The server queries the database, which is reachable, for the outcome of a commit in doubt.
    assert_eq!(counts.made_unknown, 0, "{counts:?}");
}

async fn a_commit_whose_answer_does_not_come_is_settled(place: Arc<TestStore>) {
    let (proxy, opened) = behind_proxy(&place).await;
    let other = beside(&place).await;
    let history = Arc::new(History::default());
    for _ in 0..2 {
        commit_in_the_end(&opened, &history, A).await;
    }
    let before = proxy.passed(Direction::ToClient);
    commit_in_the_end(&opened, &history, A).await;
    let bytes = proxy.passed(Direction::ToClient) - before;
    // The end of the answers is held back, and with it the answer to the commit. The notification of the commit follows it.
    proxy.silence_after(Direction::ToClient, bytes - 150);
    let commit = tokio::spawn({
        let (records, history) = (opened.records.clone(), history.clone());
        async move { history.commit(&*records, A, None).await }
    });
    let start = Instant::now();
    while proxy.is_armed(Direction::ToClient) {
        assert!(start.elapsed() < PATIENCE, "no answer is held back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // It is made, unless the database gave up, though its client can't know. Others go on.
    commit_in_the_end(&other, &history, A).await;
    commit_in_the_end(&other, &history, B).await;
    let is_given_up = commit.is_finished();
    proxy.heal();
    let answer = commit.await.unwrap();
    assert!(answer.is_err() || !is_given_up, "it was acknowledged without an answer of the database");
    commit_in_the_end(&opened, &history, A).await;
    eprintln!("{:?}: {:?}", history.check(&other).await, history.errors());
}

async fn a_server_whose_requests_do_not_arrive_does_not_stop_others_for_long(place: Arc<TestStore>) {
    let (proxy, opened) = behind_proxy(&place).await;
    let other = beside(&place).await;
    let history = Arc::new(History::default());
    for _ in 0..2 {
        commit_in_the_end(&opened, &history, A).await;
    }
    let before = proxy.passed(Direction::ToServer);
    commit_in_the_end(&opened, &history, A).await;
    let bytes = proxy.passed(Direction::ToServer) - before;
    for part in 1..4 {
        let commit = tokio::spawn({
            let (records, history) = (opened.records.clone(), history.clone());
            async move { history.commit(&*records, A, None).await }
        });
        let start = proxy.passed(Direction::ToServer);
        while proxy.passed(Direction::ToServer) < start + bytes * part / 5 && !commit.is_finished() {
            tokio::task::yield_now().await;
        }
        proxy.silence(Direction::ToServer);
        // The account may be locked until the database ends the transaction.
        commit_in_the_end(&other, &history, A).await;
        commit_in_the_end(&other, &history, B).await;
        proxy.heal();
        let _ = commit.await.unwrap();
        commit_in_the_end(&opened, &history, A).await;
    }
    history.check(&other).await;
}

async fn a_transaction_that_nobody_ends_is_ended(place: Arc<TestStore>) {
    let (proxy, opened) = behind_proxy(&place).await;
    let other = beside(&place).await;
    let history = History::default();
    for _ in 0..2 {
        commit_in_the_end(&opened, &history, A).await;
    }
    let before = proxy.passed(Direction::ToServer);
    commit_in_the_end(&opened, &history, A).await;
    let bytes = proxy.passed(Direction::ToServer) - before;
    for (number, side) in [Side::Client, Side::Server, Side::Client, Side::Server].into_iter().enumerate() {
        let start = proxy.passed(Direction::ToServer);
        let lose = async {
            while proxy.passed(Direction::ToServer) < start + bytes * (number as u64 + 1) / 6 {
                tokio::task::yield_now().await;
            }
            proxy.lose(side);
        };
        let (_, ()) = tokio::join!(history.commit(&*opened.records, A, None), lose);
        commit_in_the_end(&opened, &history, A).await;
        commit_in_the_end(&other, &history, A).await;
    }
    proxy.cut();
    history.check(&other).await;
}

async fn a_database_that_is_away_refuses_and_comes_back(place: Arc<TestStore>) {
    let (proxy, opened) = behind_proxy(&place).await;
    let history = History::default();
    commit_in_the_end(&opened, &history, A).await;
    proxy.refuse().await;
    proxy.cut();
    let error = history.commit(&*opened.records, A, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = opened.records.states(A).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    proxy.accept().await.unwrap();
    commit_in_the_end(&opened, &history, A).await;
    history.check(&opened).await;
}

/// A server dies between its bodies, the commit and the feed: after each number of bytes that it sends or receives in a commit.
/// Another one settles what was begun, no record lacks its body, and a follower sees every commit, though nobody commits to that
/// account afterwards.
async fn a_server_that_dies_at_any_byte_of_a_commit_leaves_all_of_it_or_nothing(place: Arc<TestStore>) {
    let other = beside(&place).await;
    let history = History::default();
    let deaths = setting("RESTANTE_FAULT_DEATHS", DEATHS);
    let mut happened = 0;
    for number in 0..deaths {
        let account = AccountId(1_000 + number as u32);
        let (proxy, opened) = behind_proxy(&place).await;
        for _ in 0..2 {
            commit_in_the_end(&opened, &history, account).await;
        }
        // Without answers a server sends nothing that depends on them.
        let direction = BOTH[number as usize % 2];
        let before = proxy.passed(direction);
        commit_in_the_end(&opened, &history, account).await;
        let bytes = proxy.passed(direction) - before;
        proxy.silence_after(direction, (bytes * (number + 1) / deaths).saturating_sub(1));
        let death = async {
            while proxy.is_armed(direction) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        history.commit_until(&*opened.records, account, death).await;
        happened += u64::from(!proxy.is_armed(direction));
        proxy.refuse().await;
        proxy.cut();
        // It is not closed in order. Its threads may wait for the database, which they can't reach.
        tokio::task::spawn_blocking(move || drop(opened)).await.unwrap();
    }
    assert!(happened >= deaths / 2, "most of {deaths} servers die in a commit: {happened}");
    let counts = history.check(&other).await;
    sees_every_commit(&other, (0..deaths).map(|number| AccountId(1_000 + number as u32)).collect()).await;
    eprintln!("{counts:?}, {happened} of {deaths} servers died in a commit");
}

/// A follower that starts at the beginning finds each account at its newest revision.
async fn sees_every_commit(opened: &Opened, accounts: Vec<AccountId>) {
    let start = Instant::now();
    let mut expected = Vec::new();
    for account in accounts {
        expected.push((account, common::revision(&*opened.records, account).await));
    }
    loop {
        let mut seen = common::all_accounts(&*opened.feed).await;
        seen.sort_unstable();
        if seen == expected {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "a follower sees {seen:?} and not {expected:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The clocks of servers have no influence on commits.
async fn servers_whose_clocks_differ_agree(place: Arc<TestStore>) {
    let history = History::default();
    let mut servers = Vec::new();
    for seconds in [1_000_000, 1_000_600, 999_400] {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(seconds)));
        servers.push(open(Config { clock, ..impatient(&place) }).await.unwrap());
    }
    let mut readers: Vec<Reader> = servers.iter().map(|_| Reader::new(A)).collect();
    for round in 0..30 {
        let server = &servers[round % servers.len()];
        let expected = (round % 2 == 0).then_some(readers[0].seen());
        history.commit(&*server.records, A, expected).await.unwrap();
        for (reader, server) in readers.iter_mut().zip(&servers) {
            reader.read_on(&*server.records, &history).await.unwrap();
        }
    }
    // At the same time, and all to the same account.
    let history = Arc::new(history);
    let writers = servers.iter().map(|server| {
        let (server, history) = (server.clone(), history.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                commit_in_the_end(&server, &history, A).await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    for server in &servers {
        assert_eq!(history.check(server).await.acknowledged, 90);
        sees_every_commit(server, vec![A]).await;
    }
}

/// A client that commits, with pauses, until it is stopped; sometimes it expects a state that it has read.
async fn write(
    opened: Opened,
    history: Arc<History>,
    account: AccountId,
    seed: u64,
    pause: Duration,
    stop: Arc<AtomicBool>,
) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    while !stop.load(Ordering::SeqCst) {
        let mut expected = None;
        if random.random_bool(0.3)
            && let Ok(states) = opened.records.states(account).await
        {
            expected = Some(states.revision);
        }
        tokio::time::sleep(pause).await;
        if history.commit(&*opened.records, account, expected).await.is_err() {
            tokio::time::sleep(Duration::from_millis(random.random_range(1..50))).await;
        }
    }
}

async fn read(opened: Opened, history: Arc<History>, account: AccountId, stop: Arc<AtomicBool>) -> usize {
    let mut reader = Reader::new(account);
    while !stop.load(Ordering::SeqCst) {
        if reader.read_on(&*opened.records, &history).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    reader.read()
}

async fn happen(proxy: &Proxy, random: &mut ChaCha8Rng) {
    let direction = BOTH[random.random_range(0..2)];
    let side = if random.random() { Side::Client } else { Side::Server };
    match random.random_range(0..6) {
        0 => proxy.cut(),
        1 => proxy.cut_after(direction, random.random_range(0..20_000)),
        2 => proxy.silence(direction),
        3 => proxy.lose(side),
        4 => proxy.delay(direction, Duration::from_millis(random.random_range(1..200))),
        _ => {
            proxy.refuse().await;
            proxy.cut();
        }
    }
    tokio::time::sleep(Duration::from_millis(random.random_range(10..700))).await;
    proxy.heal();
    proxy.accept().await.unwrap();
}

async fn histories_hold_under_random_faults(place: Arc<TestStore>) {
    let seed = setting("RESTANTE_FAULT_SEED", RandomState::new().hash_one("seed"));
    eprintln!("RESTANTE_FAULT_SEED={seed}");
    let (one_proxy, one) = behind_proxy(&place).await;
    let (other_proxy, other) = behind_proxy(&place).await;
    let (history, stop) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let mut writers = Vec::new();
    let mut readers = Vec::new();
    for (number, account) in [A, A, B, B].into_iter().enumerate() {
        let opened = if number % 2 == 0 { &one } else { &other };
        let seed = seed.wrapping_add(number as u64);
        writers.push(tokio::spawn(write(
            opened.clone(),
            history.clone(),
            account,
            seed,
            Duration::ZERO,
            stop.clone(),
        )));
        readers.push(tokio::spawn(read(opened.clone(), history.clone(), account, stop.clone())));
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let end = Instant::now() + Duration::from_secs(setting("RESTANTE_FAULT_SECONDS", SECONDS));
    while Instant::now() < end {
        let proxy = if random.random() { &one_proxy } else { &other_proxy };
        happen(proxy, &mut random).await;
        tokio::time::sleep(Duration::from_millis(random.random_range(10..300))).await;
    }
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
    let mut read = 0;
    for reader in readers {
        read += reader.await.unwrap();
    }
    for opened in [&one, &other] {
        commit_in_the_end(opened, &history, A).await;
    }
    let counts = history.check(&beside(&place).await).await;
    eprintln!("{counts:?}, {read} records read");
    assert!(counts.acknowledged > 0 && read > 0, "{counts:?}");
}
