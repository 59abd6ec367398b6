//! Tests of the `postgres` engine alone: its plans, lost connections, tables that a crash has left.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use common::{
    engines::{self, Engine, TestArchive},
    message, sorted, walk,
};
use restante_archive::{
    Config, Direction, EngineUrl, Message, PostgresUrl, Query, Topics, open, postgres_statements,
};
use restante_core::{ErrorKind, ManualClock, Timestamp, nonzero};
use tokio_postgres::{Client, NoTls};

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;

type Run = fn(Arc<TestArchive>) -> Pin<Box<dyn Future<Output = ()>>>;

/// Lists test functions by name.
macro_rules! promises {
    ($($promise:ident),* $(,)?) => { [$((stringify!($promise), (|place| Box::pin($promise(place))) as Run)),*] };
}

/// Tests that need a server with certificates.
const OVER_TLS: [&str; 3] = [
    "an_archive_is_reached_by_tls",
    "a_server_with_the_wrong_certificate_is_refused",
    "a_certificate_takes_the_place_of_a_password",
];
/// The folder of certificates of the server that `dev/services` starts.
const CERTIFICATES: &str = "RESTANTE_POSTGRES_TLS";

fn main() {
    let promises = promises![
        every_statement_goes_by_an_index,
        no_query_reads_a_whole_table,
        connections_that_are_cut_are_replaced,
        who_reads_all_tables_holds_pruning_up_and_nothing_else,
        a_window_that_is_not_empty_any_more_stays,
        topics_keep_their_names_after_a_failover,
        a_page_that_its_bytes_end_has_a_next,
        a_lone_reader_can_catch_up,
        large_pages_are_whole_and_in_order,
        large_pages_are_whole_where_messages_crowd,
        large_pages_are_whole_where_bytes_end_them,
        an_append_over_very_many_windows_is_stored,
        a_database_that_is_away_is_unavailable,
        an_unusable_url_is_refused,
        an_archive_is_reached_by_tls,
        a_server_with_the_wrong_certificate_is_refused,
        a_certificate_takes_the_place_of_a_password,
        a_newer_layout_is_refused,
        a_reader_of_nothing_finds_nothing,
        what_people_read_has_names,
    ];
    let mut trials = Vec::new();
    for (name, promise) in promises {
        let engine = Engine::Postgres;
        let variable = OVER_TLS.contains(&name).then_some(CERTIFICATES);
        trials.push(engines::trial_with(engine, variable, name, move || engines::run(engine, promise)));
    }
    engines::conclude(&libtest_mimic::run(&engines::arguments(), trials))
}

fn url(place: &TestArchive) -> &PostgresUrl {
    match &place.config.url {
        EngineUrl::Postgres(url) => url,
        other => panic!("{other} is no database"),
    }
}

/// A separate connection, not the archive's own.
async fn client(place: &TestArchive) -> Client {
    let (client, connection) = tokio_postgres::connect(url(place).connection(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path = {}", url(place).schema())).await.unwrap();
    client
}

async fn texts(client: &Client, sql: &str) -> Vec<String> {
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

const LEAVES: &str = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relname ~ '^messages_[0-9]+$' \
                      AND relnamespace = current_schema()::regnamespace";

/// Three days with 3,000 messages on 30 topics.
fn three_days() -> Vec<Message> {
    (0..3_000).map(|n| message(n * 86 * SECOND, n as u8, &format!("{:03}", n % 30))).collect()
}

async fn every_statement_goes_by_an_index(place: Arc<TestArchive>) {
    let opened = place.open().await;
    opened.archive.append(three_days()).await.unwrap();
    let client = client(&place).await;
    let leaf = texts(&client, LEAVES).await.remove(0);
    let (settings, statements) = postgres_statements(&leaf);
    client.batch_execute(&settings).await.unwrap();
    assert_eq!(statements.len(), 49);
    for (number, (name, sql)) in statements.iter().enumerate() {
        client.batch_execute(&format!("PREPARE s{number} AS {sql}")).await.unwrap();
        let row = client
            .query_one(
                "SELECT array_length(parameter_types, 1) FROM pg_prepared_statements WHERE name = $1",
                &[&format!("s{number}")],
            )
            .await
            .unwrap();
        let parameters: i32 = row.get(0);
        // All of time, so that no window is left out; a lookup of one hash has no other range.
        let range =
            ["-9223372036854775808", "''", "9223372036854775807", r"'\xff'", "100", "NULL", "NULL", "NULL"];
        let given = if parameters == 1 { "NULL".to_owned() } else { range[..parameters as usize].join(", ") };
        let plan = texts(&client, &format!("EXPLAIN EXECUTE s{number} ({given})")).await.join("\n");
        assert!(plan.contains("Index Scan") || plan.contains("Index Only Scan"), "{name}: {plan}");
        let of_messages = plan.replace("Seq Scan on state", ""); // which has one row
        assert!(!of_messages.contains("Seq Scan") && !plan.contains("Bitmap"), "{name}: {plan}");
        // Only the rows of few topics or hashes are sorted, and never those of a range.
        let sorts = plan.matches("Sort  ").count();
        let may_sort = ["Merge", "Gather", "Hashes"].iter().any(|access| name.contains(access));
        assert!(sorts == 0 || may_sort, "{name}: {plan}");
        let walks_the_order = name.contains("access: All") || name.contains("access: Scan");
        assert!(!walks_the_order || plan.contains("_pkey"), "{name}: {plan}");
        let is_by_topic = name.contains("Merge") || name.contains("Gather");
        assert!(!is_by_topic || plan.contains("_by_topic"), "{name}: {plan}");
        assert!(!name.to_lowercase().contains("hash,") || plan.contains("_by_hash"), "{name}: {plan}");
        if name.contains("Gather") {
            let first_day = given.replacen("9223372036854775807", "1000", 1);
            let plan = texts(&client, &format!("EXPLAIN EXECUTE s{number} ({first_day})")).await.join("\n");
            assert!(plan.contains("Subplans Removed"), "{name} opens windows out of its range: {plan}");
        }
    }
}

async fn no_query_reads_a_whole_table(place: Arc<TestArchive>) {
    let opened = place.open().await;
    opened.archive.append(three_days()).await.unwrap();
    let client = client(&place).await;
    let hashes = three_days().iter().take(5).map(|message| message.message_hash).collect();
    let list = |topics: &[&str]| Topics::List(topics.iter().map(|topic| (*topic).to_owned()).collect());
    let queries = [
        Query::default(),
        Query { topics: list(&["003"]), ..Query::default() },
        Query { topics: list(&["005"]), limit: 5_000, ..Query::default() },
        Query { topics: list(&["001", "002", "003", "004"]), limit: 1_000, ..Query::default() },
        Query { hashes, ..Query::default() },
    ];
    for query in queries {
        let found = walk(&*opened.archive, query.clone()).await.concat();
        assert!(!found.is_empty(), "{query:?}");
    }
    opened.upkeep.close().await.unwrap();
    // Counters are reported when a connection ends, a little later.
    let by_index = "SELECT relname::text FROM pg_stat_user_tables \
                    WHERE schemaname = current_schema() AND relname ~ '^messages' AND idx_tup_fetch > 0";
    while texts(&client, by_index).await.len() < 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let scanned = "SELECT relname::text FROM pg_stat_user_tables \
                   WHERE schemaname = current_schema() AND relname ~ '^messages' AND seq_tup_read > 0";
    assert_eq!(texts(&client, scanned).await, [""; 0]);
}

async fn connections_that_are_cut_are_replaced(place: Arc<TestArchive>) {
    let mut config = place.config.clone();
    let name = url(&place).schema().to_owned();
    let mut named: String = url(&place).connection().to_owned();
    named.push_str(&format!("?application_name={name}"));
    config.url = EngineUrl::Postgres(named.parse::<PostgresUrl>().unwrap().with_schema(&name).unwrap());
    let opened = open(config).await.unwrap();
    let client = client(&place).await;
    let cut =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{name}'");
    let mut stored = Vec::new();
    for n in 0..60 {
        let batch: Vec<Message> = (0..20).map(|m| message((n * 20 + m) * SECOND, 1, "topic")).collect();
        if n % 5 == 0 {
            client.batch_execute(&cut).await.unwrap();
        }
        // The result of an append that was cut is not specified; what was acknowledged exists.
        if opened.archive.append(batch.clone()).await.is_ok() {
            stored.extend(batch);
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(stored.len() > 400, "{} messages", stored.len());
    let mut answer = opened.archive.query(&Query::default()).await;
    for _ in 0..20 {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        answer = opened.archive.query(&Query::default()).await;
    }
    answer.unwrap();
    let found = walk(&*opened.archive, Query { limit: 1_000, ..Query::default() }).await.concat();
    for row in sorted(&stored) {
        assert!(found.contains(&row), "{row:?} was promised");
    }
    assert_eq!(opened.upkeep.health().problem, None);
}

async fn who_reads_all_tables_holds_pruning_up_and_nothing_else(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let mut messages = three_days();
    for message in &mut messages {
        message.body = vec![5; 3_000].into();
    }
    opened.archive.append(messages.clone()).await.unwrap();
    let client = client(&place).await;
    let before = texts(&client, LEAVES).await.len();
    client.batch_execute("BEGIN; SELECT count(*) FROM messages").await.unwrap();
    // There are twelve megabytes, and two days have to be removed; the reader has the locks.
    let policy = "size:5MB".parse().unwrap();
    let pruning = opened.upkeep.prune(&policy, Timestamp(3 * DAY));
    let appending = async {
        let late = message(DAY / 2, 77, "a new topic");
        opened.archive.append(vec![late]).await.unwrap();
        let new = message(40 * DAY, 77, "a new window");
        opened.archive.append(vec![new]).await.unwrap();
        assert_eq!(opened.archive.query(&Query::default()).await.unwrap().len(), 100);
    };
    let (pruned, ()) = tokio::join!(pruning, appending);
    assert_eq!(pruned.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 3_002, "nothing went by halves");
    client.batch_execute("COMMIT").await.unwrap();
    let pruned = opened.upkeep.prune(&policy, Timestamp(3 * DAY)).await.unwrap();
    assert_eq!(pruned.parts, 2, "{pruned:?}");
    assert_eq!(texts(&client, LEAVES).await.len(), before + 1 - 2);
}

/// A window was counted as empty and removed, although another server had stored a message there before it was locked.
async fn a_window_that_is_not_empty_any_more_stays(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let messages = [message(1, 1, "topic")];
    opened.archive.append(messages.to_vec()).await.unwrap();
    let (client, watcher) = (client(&place).await, client(&place).await);
    let leaf = texts(&client, "SELECT tableoid::regclass::text FROM messages").await.remove(0);
    let empty =
        "CREATE TEMP TABLE late AS SELECT * FROM messages; DELETE FROM messages; DELETE FROM window_counts";
    client.batch_execute(empty).await.unwrap();
    client.batch_execute(&format!("BEGIN; INSERT INTO {leaf} SELECT * FROM late")).await.unwrap();
    let policy = "capacity:1000".parse().unwrap();
    let pruning = opened.upkeep.prune(&policy, Timestamp(3 * DAY));
    let committing = async {
        let waiting = format!(
            "SELECT mode FROM pg_locks WHERE relation = '{leaf}'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted"
        );
        while texts(&watcher, &waiting).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client.batch_execute("COMMIT").await.unwrap();
    };
    let (pruned, ()) = tokio::join!(pruning, committing);
    assert_eq!(pruned.unwrap().parts, 0);
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    client.batch_execute("DELETE FROM messages").await.unwrap();
    assert_eq!(opened.upkeep.prune(&policy, Timestamp(3 * DAY)).await.unwrap().parts, 1, "it is empty");
}

/// A server that had registered a topic went on using its number, which another server had since assigned to another topic: the
/// standby that took over lacked the registration.
async fn topics_keep_their_names_after_a_failover(place: Arc<TestArchive>) {
    let admin = client(&place).await;
    let schema = url(&place).schema();
    let (primary, standby) = (format!("{schema}_primary"), format!("{schema}_standby"));
    let (server, _) = url(&place).connection().rsplit_once('/').unwrap();
    let config = |database: &str| Config {
        url: EngineUrl::Postgres(format!("{server}/{database}?schema={schema}").parse().unwrap()),
        clock: Arc::new(ManualClock::default()), // so that both have the same windows
        ..place.config.clone()
    };
    for database in [&primary, &standby] {
        admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    }
    let both = message(1, 1, "both");
    let (one, other) = (open(config(&primary)).await.unwrap(), open(config(&standby)).await.unwrap());
    for message in [both.clone(), message(2, 2, "lost")] {
        one.archive.append(vec![message]).await.unwrap();
    }
    let others = message(3, 3, "other");
    for message in [both.clone(), others.clone()] {
        other.archive.append(vec![message]).await.unwrap();
    }
    other.upkeep.close().await.unwrap();

    let gone = format!("{schema}_gone");
    for (from, to) in [(&primary, &gone), (&standby, &primary)] {
        let refuse = format!("ALTER DATABASE {from} ALLOW_CONNECTIONS false");
        admin.batch_execute(&refuse).await.unwrap();
        let cut = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{from}'");
        admin.batch_execute(&cut).await.unwrap();
        admin.batch_execute(&format!("ALTER DATABASE {from} RENAME TO {to}")).await.unwrap();
    }
    admin.batch_execute(&format!("ALTER DATABASE {primary} ALLOW_CONNECTIONS true")).await.unwrap();

    let expected = sorted(&[both, others, message(4, 4, "lost")]);
    let mut tries = 0;
    while let Err(error) = one.archive.append(vec![message(4, 4, "lost")]).await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        tries += 1;
        assert!(tries < 100, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let fresh = open(config(&primary)).await.unwrap();
    for opened in [&one, &fresh] {
        assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), expected);
        opened.upkeep.close().await.unwrap();
    }
    for database in [&primary, &gone] {
        admin.batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)")).await.unwrap();
    }
}

async fn a_page_that_its_bytes_end_has_a_next(place: Arc<TestArchive>) {
    let opened = place.open().await;
    for n in 0..5 {
        let mut large = message(n, 1, "large");
        large.body = vec![n as u8; 15 << 20].into();
        opened.archive.append(vec![large]).await.unwrap();
    }
    opened.archive.append(vec![message(2 * DAY, 1, "small")]).await.unwrap();
    let pages = walk(&*opened.archive, Query::default()).await;
    let rows: Vec<usize> = pages.iter().map(Vec::len).collect();
    assert_eq!(rows, [5, 1]);
}

async fn large_pages_are_whole_and_in_order(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let messages: Vec<Message> = (0..9_500)
        .map(|n| message((n * 7_919 % 9_500) * 27 * SECOND, n as u8, &format!("{:03}", n % 7)))
        .collect();
    opened.archive.append(messages.clone()).await.unwrap();
    let list = |topics: &[&str]| Topics::List(topics.iter().map(|topic| (*topic).to_owned()).collect());
    for topics in [Topics::Any, list(&["001", "002", "003", "004", "005"])] {
        let wanted = |message: &&Message| topics == Topics::Any || ("001".."006").contains(&&*message.topic);
        let expected: Vec<Message> = messages.iter().filter(wanted).cloned().collect();
        for (direction, limit) in
            [(Direction::Forward, 4_500), (Direction::Backward, 4_500), (Direction::Forward, 10_000)]
        {
            let query = Query { topics: topics.clone(), direction, limit, ..Query::default() };
            let mut pages = walk(&*opened.archive, query).await;
            assert!(
                pages.iter().rev().skip(1).all(|page| page.len() == limit),
                "full pages but for the last"
            );
            if direction == Direction::Backward {
                pages.reverse();
            }
            assert_eq!(pages.concat(), sorted(&expected), "{direction:?} {limit}");
        }
    }
}

/// A part of a page that was read from its end had more rows than were requested: those at its start are missing then.
async fn large_pages_are_whole_where_messages_crowd(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let minute = (0..15_000).map(|n| message(n * SECOND / 250, 1, "crowd"));
    let rest_of_the_day = (0..15_000).map(|n| message(60 * SECOND + n * 5 * SECOND, 2, "crowd"));
    let messages: Vec<Message> = minute.chain(rest_of_the_day).collect();
    for some in messages.chunks(5_000) {
        opened.archive.append(some.to_vec()).await.unwrap();
    }
    let pages = walk(&*opened.archive, Query { limit: 5_000, ..Query::default() }).await;
    let rows: Vec<usize> = pages.iter().map(Vec::len).collect();
    assert_eq!(rows, [5_000; 6]);
    assert_eq!(pages.concat(), sorted(&messages));
}

/// The same where it had more bytes than fit on a page.
async fn large_pages_are_whole_where_bytes_end_them(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let large =
        |n: i64| Message { body: vec![n as u8; 35 << 10].into(), ..message(n * 30 * SECOND, 1, "large") };
    let messages: Vec<Message> = (0..2_300).map(large).collect();
    for some in messages.chunks(200) {
        opened.archive.append(some.to_vec()).await.unwrap();
    }
    let pages = walk(&*opened.archive, Query { limit: 4_000, ..Query::default() }).await;
    let rows: Vec<usize> = pages.iter().map(Vec::len).collect();
    assert_eq!(rows, [1_873, 427]);
    assert!(pages.concat() == sorted(&messages), "all messages in order");
}

async fn a_lone_reader_can_catch_up(place: Arc<TestArchive>) {
    let config = Config {
        postgres: restante_archive::PostgresConfig { read_connections: nonzero!(1), ..place.config.postgres },
        ..place.config.clone()
    };
    let (one, other) = (open(config.clone()).await.unwrap(), open(config).await.unwrap());
    one.archive.append(vec![message(1, 1, "old"), message(2 * DAY, 1, "else")]).await.unwrap();
    assert_eq!(other.archive.query(&Query::default()).await.unwrap().len(), 2);
    // The other knows the topic, and the window, but not that the topic is in the window.
    one.archive.append(vec![message(2 * DAY, 2, "old")]).await.unwrap();
    let topics = Topics::List(vec!["old".to_owned()]);
    let page = other.archive.query(&Query { topics, ..Query::default() }).await.unwrap();
    assert_eq!(page.len(), 2);
}

async fn an_append_over_very_many_windows_is_stored(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let messages: Vec<Message> = (0..300).map(|n| message(n * 3 * DAY, 1, "topic")).collect();
    opened.archive.append(messages.clone()).await.unwrap();
    let found = walk(&*opened.archive, Query { limit: 70, ..Query::default() }).await.concat();
    assert_eq!(found, sorted(&messages));
}

async fn a_database_that_is_away_is_unavailable(_: Arc<TestArchive>) {
    // Port 1 of loopback: nobody listens there.
    let url: EngineUrl = "postgres://nobody@127.0.0.1:1/none".parse().unwrap();
    let error = open(Config::new(url.clone())).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let opened = open(Config { is_lazy: true, ..Config::new(url) }).await.unwrap();
    assert!(opened.upkeep.health().problem.is_some() && opened.upkeep.health().since.is_some());
    let error = opened.archive.query(&Query::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = opened.archive.append(vec![message(1, 1, "topic")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    opened.upkeep.close().await.unwrap();
}

async fn an_unusable_url_is_refused(_: Arc<TestArchive>) {
    for text in [
        "postgres:///x",
        "postgres://me@127.0.0.1/x?sslmode=always",
        "postgres://me@127.0.0.1/x?sslmode=verify-ca&sslrootcert=/no/such/file.pem",
    ] {
        let error = match text.parse() {
            Ok(url) => open(Config { is_lazy: true, ..Config::new(url) }).await.err().unwrap(),
            Err(error) => error, // most fail before anything is opened
        };
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}: {error}");
    }
}

fn certificates() -> String {
    std::env::var(CERTIFICATES).unwrap()
}

/// The archive of the place, reached over TLS by another user.
fn by_tls(place: &TestArchive, user: &str, host: &str, parameters: &str) -> Config {
    let url = url(place);
    let (_, at) = url.connection().split_once("127.0.0.1").unwrap();
    let text = format!("postgres://{user}@{host}{at}?{parameters}&schema={}_tls", url.schema());
    Config { url: EngineUrl::Postgres(text.parse().unwrap()), ..place.config.clone() }
}

/// Appends and finds a message, and cleans up.
async fn use_and_remove(place: &TestArchive, config: Config) {
    let schema = format!("{}_tls", url(place).schema());
    let opened = open(config).await.unwrap();
    opened.archive.append(vec![message(1, 1, "topic")]).await.unwrap();
    assert_eq!(opened.archive.query(&Query::default()).await.unwrap().rows().count(), 1);
    opened.upkeep.close().await.unwrap();
    client(place).await.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await.unwrap();
}

async fn an_archive_is_reached_by_tls(place: Arc<TestArchive>) {
    let user = "restante_tls:restante"; // a user who is refused without TLS
    let error = open(by_tls(&place, user, "127.0.0.1", "sslmode=disable")).await.err().unwrap();
    assert!(error.to_string().contains("pg_hba.conf"), "{error}");
    let ca = format!("{}/ca.pem", certificates());
    for (host, parameters) in [
        ("127.0.0.1", "sslmode=prefer".to_owned()),
        ("127.0.0.1", "sslmode=require".to_owned()),
        ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={ca}")),
        ("localhost", format!("sslmode=verify-full&sslrootcert={ca}")),
    ] {
        use_and_remove(&place, by_tls(&place, user, host, &parameters)).await;
    }
}

async fn a_server_with_the_wrong_certificate_is_refused(place: Arc<TestArchive>) {
    let (ca, other) = (format!("{}/ca.pem", certificates()), format!("{}/other-ca.pem", certificates()));
    for (host, parameters) in [
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={ca}")), // its certificate is for localhost
        ("localhost", format!("sslmode=verify-full&sslrootcert={other}")),
        ("localhost", format!("sslmode=verify-ca&sslrootcert={other}")),
        ("localhost", format!("sslmode=require&sslrootcert={other}")),
        ("localhost", "sslmode=verify-full".to_owned()), // the system knows no authority for tests
    ] {
        let error = open(by_tls(&place, "restante_tls:restante", host, &parameters)).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{parameters}: {error}");
        assert!(error.to_string().contains("certificate"), "{parameters}: {error}");
    }
}

async fn a_certificate_takes_the_place_of_a_password(place: Arc<TestArchive>) {
    let tls = certificates();
    let own = format!("sslcert={tls}/client.pem&sslkey={tls}/client.key");
    let parameters = format!("sslmode=verify-full&sslrootcert={tls}/ca.pem");
    let with = by_tls(&place, "restante_certificate", "localhost", &format!("{parameters}&{own}"));
    use_and_remove(&place, with).await;
    let without = by_tls(&place, "restante_certificate", "localhost", &parameters);
    let error = open(without).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

async fn a_newer_layout_is_refused(place: Arc<TestArchive>) {
    place.open().await.upkeep.close().await.unwrap();
    let client = client(&place).await;
    client.batch_execute("INSERT INTO version (version) VALUES (1000)").await.unwrap();
    let error = open(place.config.clone()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("has version 1000 and this restante knows 1"), "{error}");
}

async fn a_reader_of_nothing_finds_nothing(place: Arc<TestArchive>) {
    let error = open(Config { read_only: true, ..place.config.clone() }).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

async fn what_people_read_has_names(place: Arc<TestArchive>) {
    let opened = place.open().await;
    opened.archive.append(vec![message(3 * DAY, 7, "/toy/1/chat/proto")]).await.unwrap();
    let sql = "SELECT at::date || ' ' || channel || ' ' || topic || ' ' || left(hash, 2) FROM readable";
    assert_eq!(texts(&client(&place).await, sql).await, ["1970-01-04 chan /toy/1/chat/proto 07"]);
}
