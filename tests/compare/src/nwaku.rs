//! nwaku's table in SQLite, with nwaku's query.
//!
//! Rows are in the order of a random hash, and the only index is on the time: a question about topics looks up each row of
//! the time range. The file is filled in the most favourable way: in one transaction, vacuumed, analysed.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use async_trait::async_trait;
use restante_bench::dataset::{Dataset, PUBSUB_TOPIC};
use restante_waku_wire::WakuMessage;
use rusqlite::{Connection, OpenFlags, ToSql, params, params_from_iter};
use tokio::sync::Mutex;

use crate::{
    contender::{Store, Tally, feed},
    question::{Access, PAGE_ROWS, Question},
};

/// Memory for pages while filling: rows arrive in random order, and without memory for the whole table each
/// row would write a page.
const FILL_CACHE_MIB: u64 = 3_072;
/// Memory for pages of each session: four times that of restante's engine.
const CACHE_MIB: u64 = 64;
/// The most of the file that SQLite maps, which saves copying its pages.
const MAPPED_BYTES: u64 = 2 << 30;

const SCHEMA: &str = "CREATE TABLE Message (\
    messageHash BLOB PRIMARY KEY, pubsubTopic BLOB NOT NULL, contentTopic BLOB NOT NULL, payload BLOB, \
    version INTEGER NOT NULL, timestamp INTEGER NOT NULL, meta BLOB) WITHOUT ROWID";

/// The figures of loading.
pub(crate) struct Loaded {
    pub(crate) time: Duration,
    pub(crate) payload_bytes: u64,
}

/// Fills a new file. The time excludes vacuuming and analysing.
pub(crate) async fn load(file: &Path, dataset: &Arc<Dataset>) -> anyhow::Result<Loaded> {
    let mut batches = feed(dataset);
    let (file, expected) = (file.to_owned(), dataset.len());
    let load = move || {
        let mut connection = Connection::open(&file)?;
        set(&connection, "journal_mode", "OFF")?;
        set(&connection, "synchronous", "OFF")?;
        set(&connection, "cache_size", &format!("-{}", FILL_CACHE_MIB << 10))?;
        connection.execute_batch(SCHEMA)?;
        let begun = Instant::now();
        let mut payload_bytes = 0;
        let mut rows = 0;
        let transaction = connection.transaction()?;
        {
            let sql = "INSERT INTO Message VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let mut insert = transaction.prepare(sql)?;
            while let Some(batch) = batches.blocking_recv() {
                for message in batch {
                    let waku = WakuMessage::from_wire(&message.body)
                        .map_err(|error| anyhow!("a body of the data set is not a Waku message: {error}"))?;
                    rows += insert.execute(params![
                        message.message_hash.0,
                        PUBSUB_TOPIC.as_bytes(),
                        message.topic.as_bytes(),
                        &waku.payload[..],
                        waku.version.unwrap_or(0),
                        message.timestamp.nanos(),
                        waku.meta.as_deref().unwrap_or_default(),
                    ])?;
                    payload_bytes += message.body.len() as u64;
                }
            }
        }
        transaction.commit()?;
        connection.execute_batch("CREATE INDEX i_ts ON Message (timestamp)")?;
        let time = begun.elapsed();
        ensure!(rows as u64 == expected, "{rows} of {expected} rows were inserted");
        connection.execute_batch("VACUUM; ANALYZE")?;
        set(&connection, "journal_mode", "WAL")?; // nwaku's
        Ok(Loaded { time, payload_bytes })
    };
    tokio::task::spawn_blocking(load).await?.context("can't fill nwaku's table")
}

/// Sets a pragma, with or without an answer.
fn set(connection: &Connection, pragma: &str, value: &str) -> rusqlite::Result<()> {
    connection.pragma_update_and_check(None, pragma, value, |_| Ok(())).or_else(|error| match error {
        rusqlite::Error::QueryReturnedNoRows => Ok(()),
        error => Err(error),
    })
}

/// The table, one session for each lane.
pub(crate) struct Nwaku {
    lanes: Vec<Arc<Mutex<Connection>>>,
}

impl Nwaku {
    pub(crate) fn open(file: &Path, lanes: usize) -> anyhow::Result<Self> {
        let mut opened = Vec::with_capacity(lanes);
        for _ in 0..lanes {
            let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            set(&connection, "cache_size", &format!("-{}", CACHE_MIB << 10))?;
            set(&connection, "mmap_size", &MAPPED_BYTES.to_string())?;
            opened.push(Arc::new(Mutex::new(connection)));
        }
        Ok(Self { lanes: opened })
    }
}

/// nwaku's query for messages of these content topics in a time range.
fn sql(question: &Question) -> String {
    let placeholders = vec!["?"; question.content_topics.len()].join(", ");
    let order = match question.access {
        Access::Full => "timestamp ASC, messageHash ASC".to_owned(),
        Access::Newest => format!("timestamp DESC, messageHash DESC LIMIT {PAGE_ROWS}"),
        Access::Oldest => format!("timestamp ASC, messageHash ASC LIMIT {PAGE_ROWS}"),
    };
    format!(
        "SELECT messageHash, pubsubTopic, contentTopic, payload, version, timestamp, meta FROM Message \
         WHERE contentTopic IN ({placeholders}) AND timestamp >= ? AND timestamp < ? ORDER BY {order}"
    )
}

/// Steps through all rows and reads them in place.
fn ask(connection: &Connection, question: &Question) -> anyhow::Result<Tally> {
    let mut statement = connection.prepare_cached(&sql(question))?;
    let topics: Vec<&[u8]> = question.content_topics.iter().map(|topic| topic.as_bytes()).collect();
    let (start, end) = (question.start.nanos(), question.end.nanos());
    let mut parameters: Vec<&dyn ToSql> = topics.iter().map(|topic| topic as &dyn ToSql).collect();
    parameters.extend([&start as &dyn ToSql, &end]);
    let mut rows = statement.query(params_from_iter(parameters))?;
    let mut tally = Tally::default();
    while let Some(row) = rows.next()? {
        let [hash, pubsub_topic, content_topic, payload] =
            [row.get_ref(0)?, row.get_ref(1)?, row.get_ref(2)?, row.get_ref(3)?];
        let _version: u32 = row.get(4)?;
        let _timestamp: i64 = row.get(5)?;
        let meta = row.get_ref(6)?;
        let others = [hash.as_blob()?, pubsub_topic.as_blob()?, content_topic.as_blob()?, meta.as_blob()?];
        tally.add(payload.as_blob()?, &others);
    }
    Ok(tally)
}

#[async_trait]
impl Store for Nwaku {
    async fn ask(&self, question: &Question, lane: usize) -> anyhow::Result<Tally> {
        let lane = self.lanes.get(lane).context("there is no such lane")?;
        let connection = lane.lock().await;
        tokio::task::block_in_place(|| ask(&connection, question))
    }

    async fn warm_up(&self, question: &Question) -> anyhow::Result<Tally> {
        self.ask(question, 0).await
    }
}
