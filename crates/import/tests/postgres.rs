//! nwaku's, go-waku's and the Status mailserver's tables in PostgreSQL, each test in its own schema.
//!
//! They need `RESTANTE_POSTGRES_URL`. Without it they are reported as ignored, or as failed when `RESTANTE_TEST_REQUIRE`
//! includes postgres.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

mod common;

use std::{env, process::ExitCode, str::FromStr};

use common::{CONTENT_TOPIC, PUBSUB_TOPIC, Sample, envelope, key, read_all, samples, topic_message};
use libtest_mimic::{Arguments, Failed, Trial};
use restante_archive::PostgresUrl;
use restante_import::{Location, Options, Owner, open};
use tokio_postgres::{Client, NoTls, error::SqlState};

/// nwaku's schema version 7: partitioned by time.
const NWAKU: &str = "CREATE TABLE messages (messageHash VARCHAR NOT NULL, pubsubTopic VARCHAR NOT NULL,
    contentTopic VARCHAR NOT NULL, payload VARCHAR, version INTEGER NOT NULL, timestamp BIGINT NOT NULL, meta VARCHAR,
    CONSTRAINT messageIndex PRIMARY KEY (timestamp, messageHash)) PARTITION BY RANGE (timestamp);
    CREATE TABLE messages_1699999200_1700002800 PARTITION OF messages
    FOR VALUES FROM (1699999200000000000) TO (1700002800000000000);
    CREATE TABLE messages_1700002800_1700006400 PARTITION OF messages
    FOR VALUES FROM (1700002800000000000) TO (1700006400000000000);
    CREATE INDEX idx_messages_timestamp ON messages (timestamp);";
/// nwaku's schema version 1, without meta.
const NWAKU_OLD: &str =
    "CREATE TABLE messages (pubsubTopic VARCHAR NOT NULL, contentTopic VARCHAR NOT NULL, payload VARCHAR,
    version INTEGER NOT NULL, timestamp BIGINT NOT NULL, id VARCHAR NOT NULL, messageHash VARCHAR NOT NULL,
    storedAt BIGINT NOT NULL, CONSTRAINT messageIndex PRIMARY KEY (messageHash));";
const GO_WAKU: &str = "CREATE TABLE message (pubsubTopic BYTEA NOT NULL, contentTopic BYTEA NOT NULL, payload BYTEA,
    version INTEGER NOT NULL DEFAULT 0, timestamp BIGINT NOT NULL, id BYTEA, messageHash BYTEA, storedAt BIGINT NOT NULL,
    PRIMARY KEY (messageHash)); CREATE INDEX i_ts ON message (storedAt);";
const STATUS: &str =
    "CREATE TABLE envelopes (id BYTEA NOT NULL UNIQUE, data BYTEA NOT NULL, topic BYTEA NOT NULL,
    bloom BIT(512) NOT NULL); CREATE INDEX id_bloom_idx ON envelopes (id DESC, bloom);";

type Test = fn(&Url) -> Result<(), Failed>;

const TESTS: &[(&str, Test)] = &[
    ("messages_of_nwaku_are_restored_to_the_byte", |url| run(nwaku(url))),
    ("an_older_table_of_nwaku_is_read", |url| run(nwaku_old(url))),
    ("messages_of_go_waku_are_read", |url| run(go_waku(url))),
    ("invalid_rows_are_refused_and_reported", |url| run(refused(url))),
    ("reading_continues_after_a_batch", |url| run(resumed(url))),
    ("concurrent_inserts_are_not_seen", |url| run(snapshot(url))),
    ("envelopes_become_messages", |url| run(status(url))),
    ("a_database_without_an_archive_is_an_error", |url| run(nothing(url))),
    ("two_archives_in_one_schema_need_an_owner", |url| run(both(url))),
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let url = env::var("RESTANTE_POSTGRES_URL").ok();
    let is_required =
        env::var("RESTANTE_TEST_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == "postgres"));
    let trial = |(name, test): &(&'static str, Test)| {
        let (name, test, url) = (*name, *test, url.clone());
        let is_ignored = url.is_none() && !is_required;
        let trial = Trial::test(name, move || {
            let url =
                url.ok_or("RESTANTE_POSTGRES_URL is not set, and RESTANTE_TEST_REQUIRE wants postgres")?;
            test(&Url {
                url,
                schema: format!("import_{}_{name}", std::process::id()).chars().take(48).collect(),
            })
        });
        trial.with_ignored_flag(is_ignored)
    };
    libtest_mimic::run(&arguments, TESTS.iter().map(trial).collect()).exit_code()
}

/// A server, and the schema of one test.
struct Url {
    url: String,
    schema: String,
}

fn run(test: impl Future<Output = ()>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(test);
    Ok(())
}

/// An empty schema, dropped at the end of the test.
struct Database {
    client: Client,
    schema: String,
    location: Location,
}

impl Database {
    async fn new(url: &Url, tables: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(&url.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let Url { url, schema } = url;
        let sql = format!("CREATE SCHEMA {schema}; SET search_path TO {schema}; {tables}");
        client.batch_execute(&sql).await.unwrap();
        let url = PostgresUrl::from_str(url).unwrap().with_schema(schema).unwrap();
        Self { client, schema: schema.clone(), location: Location::Postgres(url) }
    }

    async fn open(&self, options: Options) -> restante_import::Source {
        open(self.location.clone(), None, options).await.unwrap()
    }

    async fn end(self) {
        let drop = format!("DROP SCHEMA {} CASCADE", self.schema);
        // A source that has just been dropped may be in the middle of a query: if two wait for each other, the server cancels one.
        while let Err(error) = self.client.batch_execute(&drop).await {
            assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{error}");
        }
    }

    async fn put_nwaku(&self, sample: &Sample) {
        let Sample { payload, meta, version, timestamp, .. } = sample;
        let hex = |bytes: &[u8]| hex::encode(bytes);
        let meta = meta.as_deref().map(hex).unwrap_or_default(); // nwaku writes an empty string
        self.client
            .execute(
                "INSERT INTO messages VALUES ($1, $2, $3, $4, $5, $6, $7)",
                &[
                    &hex(&sample.hash().0),
                    &PUBSUB_TOPIC,
                    &CONTENT_TOPIC,
                    &hex(payload),
                    &(*version as i32),
                    timestamp,
                    &meta,
                ],
            )
            .await
            .unwrap();
    }
}

async fn nwaku(url: &Url) {
    let database = Database::new(url, NWAKU).await;
    // The last one is in another partition.
    let mut samples = samples(10);
    samples[9].timestamp += 3_600_000_000_000;
    for sample in samples.iter().rev() {
        database.put_nwaku(sample).await;
    }
    let source = database.open(Options::default()).await;
    assert_eq!(source.owner, Owner::Nwaku);
    let read = read_all(source).await;
    assert_eq!(read.messages, samples.iter().map(Sample::message).collect::<Vec<_>>());
    assert_eq!((read.refused.count, read.done), (0, 10));
    database.end().await;
}

async fn nwaku_old(url: &Url) {
    let database = Database::new(url, NWAKU_OLD).await;
    let samples: Vec<Sample> = samples(5).iter().map(Sample::without_meta).collect();
    for sample in &samples {
        let Sample { payload, version, timestamp, .. } = sample;
        let (hash, payload) = (hex::encode(sample.hash().0), hex::encode(payload));
        database
            .client
            .execute(
                "INSERT INTO messages VALUES ($1, $2, $3, $4, $5, 'id', $6, $7)",
                &[&PUBSUB_TOPIC, &CONTENT_TOPIC, &payload, &(*version as i32), timestamp, &hash, timestamp],
            )
            .await
            .unwrap();
    }
    let read = read_all(database.open(Options::default()).await).await;
    assert_eq!(read.messages, samples.iter().map(Sample::message).collect::<Vec<_>>());
    database.end().await;
}

async fn go_waku(url: &Url) {
    let database = Database::new(url, GO_WAKU).await;
    let samples: Vec<Sample> = samples(5).iter().map(Sample::without_meta).collect();
    for sample in &samples {
        let Sample { payload, version, timestamp, .. } = sample;
        let (pubsub, content) = (PUBSUB_TOPIC.as_bytes(), CONTENT_TOPIC.as_bytes());
        let hash = sample.hash().0;
        database
            .client
            .execute(
                "INSERT INTO message VALUES ($1, $2, $3, $4, $5, NULL, $6, $7)",
                &[&pubsub, &content, payload, &(*version as i32), timestamp, &&hash[..], &(timestamp + 9)],
            )
            .await
            .unwrap();
    }
    let read = read_all(database.open(Options::default()).await).await;
    assert_eq!(read.messages, samples.iter().map(Sample::message).collect::<Vec<_>>());
    database.end().await;
}

async fn refused(url: &Url) {
    let database = Database::new(url, NWAKU).await;
    let samples = samples(5);
    for sample in &samples {
        database.put_nwaku(sample).await;
    }
    let edits = ["payload = '00'", "payload = 'not hex'", "version = -1", "payload = repeat('0', 40000000)"];
    for (edit, sample) in edits.iter().zip(&samples) {
        let sql = format!("UPDATE messages SET {edit} WHERE messageHash = $1");
        database.client.execute(&sql, &[&hex::encode(sample.hash().0)]).await.unwrap();
    }
    let read = read_all(database.open(Options::default()).await).await;
    assert_eq!(read.messages, [samples[4].message()]);
    let reported = read.refused.listed.join("\n");
    for (why, sample) in
        ["the stored hash is", "payload is not hex", "version -1", "payload of 40000000 bytes"]
            .iter()
            .zip(&samples)
    {
        assert!(
            reported.contains(&format!("message {}: {why}", sample.hash())),
            "{why} is not in\n{reported}"
        );
    }
    let rehash = Options { rehash: true, ..Options::default() };
    let read = read_all(database.open(rehash).await).await;
    assert_eq!((read.messages.len(), read.refused.count, read.renamed.count), (2, 3, 1));
    database.end().await;
}

async fn resumed(url: &Url) {
    let database = Database::new(url, NWAKU).await;
    database
        .client
        .batch_execute(&format!(
            "INSERT INTO messages SELECT 'no hash ' || number, '{PUBSUB_TOPIC}', '{CONTENT_TOPIC}', '', 0, \
             1700000000000000000 + number, '' FROM generate_series(1, 9000) AS number; ANALYZE messages"
        ))
        .await
        .unwrap();
    let mut source = database.open(Options::default()).await;
    assert_eq!(source.extent, Some(restante_import::Extent::Rows(9_000)));
    // Values that are not hex are not hashes, so these messages have no stored hash.
    let first = source.next().await.unwrap().unwrap();
    drop(source);
    assert!(first.messages.len() > 1_000 && first.messages.len() < 9_000, "{}", first.messages.len());
    let rest =
        read_all(database.open(Options { after: first.after.clone(), ..Options::default() }).await).await;
    assert_eq!(first.messages.len() + rest.messages.len(), 9_001, "the last moment is read twice");
    assert_eq!(first.messages.last(), rest.messages.first());
    database.end().await;
}

async fn snapshot(url: &Url) {
    let database = Database::new(url, NWAKU).await;
    let samples = samples(4);
    for sample in &samples[..2] {
        database.put_nwaku(sample).await;
    }
    let source = database.open(Options::default()).await;
    for sample in &samples[2..] {
        database.put_nwaku(sample).await;
    }
    assert_eq!(read_all(source).await.messages.len(), 2);
    assert_eq!(read_all(database.open(Options::default()).await).await.messages.len(), 4);
    database.end().await;
}

async fn status(url: &Url) {
    let database = Database::new(url, STATUS).await;
    let topic = [0x5c, 0x6c, 0x9b, 0x56];
    let sent = |number: u32| 1_554_076_800 + number;
    for number in 0..10 {
        let bytes = envelope(sent(number), topic, &[7; 300]);
        let id = key(sent(number), topic, &bytes);
        database
            .client
            .execute(
                "INSERT INTO envelopes VALUES ($1, $2, $3, repeat('0', 512)::bit(512))",
                &[&id, &bytes, &&topic[..]],
            )
            .await
            .unwrap();
    }
    let source = database.open(Options::default()).await;
    assert_eq!(source.owner, Owner::Status);
    let read = read_all(source).await;
    let expected: Vec<_> = (0..10).map(|number| topic_message(sent(number), topic, &[7; 300])).collect();
    assert_eq!(read.messages, expected);

    let after = key(sent(6), topic, &envelope(sent(6), topic, &[7; 300]));
    let options = Options { after: Some(hex::encode(after)), ..Options::default() };
    assert_eq!(read_all(database.open(options).await).await.messages, expected[7..]);
    database.end().await;
}

async fn nothing(url: &Url) {
    let database = Database::new(url, "CREATE TABLE other (x INT)").await;
    let error = open(database.location.clone(), None, Options::default()).await.unwrap_err().to_string();
    assert!(error.contains("there is no table messages, message, envelopes"), "{error}");
    database.end().await;
    let nowhere = PostgresUrl::from_str("postgres://me:secret@127.0.0.1:1/x").unwrap();
    let error = open(Location::Postgres(nowhere), None, Options::default()).await.unwrap_err().to_string();
    assert!(
        error.contains("can't reach postgres://me:***@127.0.0.1:1/x") && !error.contains("secret"),
        "{error}"
    );
}

async fn both(url: &Url) {
    let database = Database::new(url, &format!("{NWAKU} {STATUS}")).await;
    let error = open(database.location.clone(), None, Options::default()).await.unwrap_err().to_string();
    assert!(error.contains("messages and envelopes"), "{error}");
    for owner in [Owner::Nwaku, Owner::Status] {
        let source = open(database.location.clone(), Some(owner), Options::default()).await.unwrap();
        assert_eq!(source.owner, owner);
    }
    database.end().await;
}
