//! The Status mailserver's table in PostgreSQL, with the two methods of queries that its authors measured.
//!
//! Table, indexes and the query by bit string are those of status-go from 2019 on. The authors' own method "topic" needs
//! the index on (topic, id), which the mailserver never had; the bit string can't use it, so one table serves both.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use async_trait::async_trait;
use bytes::{BufMut, BytesMut};
use futures_util::TryStreamExt;
use restante_archive::Message;
use restante_bench::dataset::Dataset;
use restante_core::{Bloom, NANOS_PER_SECOND, Timestamp};
use restante_waku_wire::bloom::{content_topic_bits, topic4};
use tokio_postgres::{
    Client, Statement,
    binary_copy::BinaryCopyInWriter,
    types::{IsNull, ToSql, Type, to_sql_checked},
};

use crate::{
    contender::{Store, Tally, feed},
    question::{Access, PAGE_ROWS, Question},
    server::{RIVAL, Server},
};

/// Settings that an operator would choose for such queries: sorts in memory, and no JIT compilation for queries of a
/// few milliseconds.
const SETTINGS: &str = "SET work_mem = '256MB'; SET jit = off;";
/// A prepared statement is planned for the values of each query, or once for all. Both are tried before anything is
/// timed, and the faster one is used.
const PLANS: [&str; 2] =
    ["SET plan_cache_mode = force_custom_plan", "SET plan_cache_mode = force_generic_plan"];

/// The additional index of the method "topic".
const ADDED_INDEX: &str = "envelopes_topic_id";

/// The method of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// `bloom & $3::bit(512) = bloom`: the mailserver's.
    BitString,
    /// `topic = any($3)`: its authors' alternative.
    Topic,
}

impl Method {
    fn condition(self) -> &'static str {
        match self {
            Self::BitString => "bloom & $3::bit(512) = bloom",
            Self::Topic => "topic = any($3)",
        }
    }

    fn sql(self, access: Access) -> String {
        let condition = self.condition();
        let order = match access {
            Access::Full => "DESC".to_owned(), // the mailserver's order
            Access::Newest => format!("DESC LIMIT {PAGE_ROWS}"),
            Access::Oldest => format!("ASC LIMIT {PAGE_ROWS}"),
        };
        format!(
            "SELECT id, data FROM {RIVAL}.envelopes WHERE id BETWEEN $1 AND $2 AND {condition} ORDER BY id {order}"
        )
    }
}

/// The figures of loading.
pub(crate) struct Loaded {
    /// Until the mailserver's own table and indexes were complete.
    pub(crate) time: Duration,
    /// The same with the added index.
    pub(crate) time_with_added: Duration,
    pub(crate) payload_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) disk_bytes_with_added: u64,
}

/// Loads the data set in bulk, creates the indexes afterwards, vacuums and analyses.
pub(crate) async fn load(server: &Server, dataset: &Arc<Dataset>) -> anyhow::Result<Loaded> {
    let client = server.session("SET maintenance_work_mem = '512MB'").await?;
    let table = format!(
        "CREATE SCHEMA {RIVAL}; \
         CREATE TABLE {RIVAL}.envelopes (id bytea NOT NULL, data bytea NOT NULL, topic bytea NOT NULL, \
         bloom bit(512) NOT NULL)"
    );
    client.batch_execute(&table).await.context("can't create the mailserver's table")?;
    let begun = Instant::now();
    let payload_bytes = copy_in(&client, dataset).await?;
    let indexes = format!(
        "ALTER TABLE {RIVAL}.envelopes ADD CONSTRAINT envelopes_id_key UNIQUE (id); \
         CREATE INDEX envelopes_id_bloom ON {RIVAL}.envelopes (id DESC, bloom); \
         CREATE INDEX envelopes_id_topic ON {RIVAL}.envelopes (id DESC, topic)"
    );
    client.batch_execute(&indexes).await.context("can't create the mailserver's indexes")?;
    let time = begun.elapsed();
    client.batch_execute(&format!("CREATE INDEX {ADDED_INDEX} ON {RIVAL}.envelopes (topic, id)")).await?;
    let time_with_added = begun.elapsed();
    server.tidy(RIVAL).await?;
    let disk_bytes_with_added = server.disk_bytes(RIVAL).await?;
    let added = server.relation_bytes(&format!("{RIVAL}.{ADDED_INDEX}")).await?;
    let disk_bytes = disk_bytes_with_added.saturating_sub(added);
    Ok(Loaded { time, time_with_added, payload_bytes, disk_bytes, disk_bytes_with_added })
}

/// Copies all messages into the table and returns the bytes of their bodies.
async fn copy_in(client: &Client, dataset: &Arc<Dataset>) -> anyhow::Result<u64> {
    let sink = client.copy_in(&format!("COPY {RIVAL}.envelopes FROM STDIN BINARY")).await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &[Type::BYTEA, Type::BYTEA, Type::BYTEA, Type::BIT]));
    let mut payload_bytes = 0;
    let mut batches = feed(dataset);
    while let Some(batch) = batches.recv().await {
        for message in &batch {
            write_row(writer.as_mut(), message).await?;
            payload_bytes += message.body.len() as u64;
        }
    }
    let rows = writer.finish().await?;
    ensure!(rows == dataset.len(), "{rows} of {} rows were copied", dataset.len());
    Ok(payload_bytes)
}

async fn write_row(writer: Pin<&mut BinaryCopyInWriter>, message: &Message) -> anyhow::Result<()> {
    let topic = topic4(&message.topic);
    let mut bloom = Bloom::EMPTY;
    bloom.insert(content_topic_bits(&message.topic));
    let id = id(message.timestamp, &message.message_hash.0, topic);
    writer.write(&[&&id[..], &&message.body[..], &&topic[..], &Bits(bloom)]).await?;
    Ok(())
}

/// The mailserver's key: seconds, hash, topic.
fn id(timestamp: Timestamp, hash: &[u8; 32], topic: [u8; 4]) -> Vec<u8> {
    let mut id = Vec::with_capacity(40);
    id.extend_from_slice(&seconds(timestamp).to_be_bytes());
    id.extend_from_slice(hash);
    id.extend_from_slice(&topic);
    id
}

/// Whole seconds since the epoch, as in an envelope.
fn seconds(timestamp: Timestamp) -> u32 {
    let seconds = timestamp.nanos().div_euclid(NANOS_PER_SECOND);
    u32::try_from(seconds).unwrap_or(if seconds < 0 { 0 } else { u32::MAX })
}

/// A filter as `bit(512)`.
#[derive(Debug)]
struct Bits(Bloom);

impl ToSql for Bits {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.put_i32(512); // the number of bits
        out.put_slice(&self.0.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::BIT
    }

    to_sql_checked!();
}

/// The table with one method of queries.
pub(crate) struct Mailserver {
    method: Method,
    /// For each lane a session for each plan mode.
    lanes: Vec<[Session; 2]>,
    /// The plan mode in use.
    plan: AtomicUsize,
}

/// A connection and its prepared statements.
struct Session {
    client: Client,
    full: Statement,
    newest: Statement,
    oldest: Statement,
}

impl Session {
    async fn open(server: &Server, method: Method, plan: &str) -> anyhow::Result<Self> {
        let client = server.session(&format!("{SETTINGS} {plan}")).await?;
        let full = client.prepare(&method.sql(Access::Full)).await?;
        let newest = client.prepare(&method.sql(Access::Newest)).await?;
        let oldest = client.prepare(&method.sql(Access::Oldest)).await?;
        Ok(Self { client, full, newest, oldest })
    }

    fn statement(&self, access: Access) -> &Statement {
        match access {
            Access::Full => &self.full,
            Access::Newest => &self.newest,
            Access::Oldest => &self.oldest,
        }
    }
}

impl Mailserver {
    pub(crate) async fn open(server: &Server, method: Method, lanes: usize) -> anyhow::Result<Self> {
        let mut opened = Vec::with_capacity(lanes);
        for _ in 0..lanes {
            let [custom, generic] = PLANS;
            opened.push([
                Session::open(server, method, custom).await?,
                Session::open(server, method, generic).await?,
            ]);
        }
        Ok(Self { method, lanes: opened, plan: AtomicUsize::new(0) })
    }

    /// Streams all rows in binary form, and reads them as they arrive.
    async fn ask_session(&self, session: &Session, question: &Question) -> anyhow::Result<Tally> {
        let first = id(question.start, &[0; 32], [0; 4]);
        let last_second = Timestamp(question.end.nanos() - NANOS_PER_SECOND);
        let last = id(last_second, &[0xff; 32], [0xff; 4]);
        let bits = Bits(question.bloom);
        let condition_value: &(dyn ToSql + Sync) = match self.method {
            Method::BitString => &bits,
            Method::Topic => &question.topics,
        };
        let parameters: [&(dyn ToSql + Sync); 3] = [&first, &last, condition_value];
        let statement = session.statement(question.access);
        let mut rows = pin!(session.client.query_raw(statement, parameters).await?);
        let mut tally = Tally::default();
        while let Some(row) = rows.try_next().await? {
            let (id, data): (&[u8], &[u8]) = (row.try_get(0)?, row.try_get(1)?);
            tally.add(data, &[id]);
        }
        Ok(tally)
    }
}

#[async_trait]
impl Store for Mailserver {
    async fn ask(&self, question: &Question, lane: usize) -> anyhow::Result<Tally> {
        let plan = self.plan.load(Ordering::Relaxed);
        let session = self.lanes.get(lane).and_then(|lane| lane.get(plan));
        self.ask_session(session.context("there is no such lane")?, question).await
    }

    async fn warm_up(&self, question: &Question) -> anyhow::Result<Tally> {
        let mut tally = self.ask(question, 0).await?;
        let mut best: Option<(Duration, usize)> = None;
        for plan in 0..PLANS.len() {
            self.plan.store(plan, Ordering::Relaxed);
            let begun = Instant::now();
            tally = self.ask(question, 0).await?;
            let time = begun.elapsed();
            best = Some(best.map_or((time, plan), |best| best.min((time, plan))));
        }
        self.plan.store(best.map_or(0, |(_, plan)| plan), Ordering::Relaxed);
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_mailservers() {
        let key = id(Timestamp::from_seconds(0x5ca1_5380), &[7; 32], [1, 2, 3, 4]);
        assert_eq!(key.len(), 40);
        assert_eq!(key[..4], [0x5c, 0xa1, 0x53, 0x80]);
        assert_eq!((&key[4..36], &key[36..]), (&[7; 32][..], &[1, 2, 3, 4][..]));
    }

    #[test]
    fn a_filter_is_sent_as_512_bits() {
        let mut filter = Bloom::EMPTY;
        filter.0[63] = 1;
        let mut out = BytesMut::new();
        assert!(matches!(Bits(filter).to_sql(&Type::BIT, &mut out), Ok(IsNull::No)));
        assert_eq!(out[..4], [0, 0, 2, 0]);
        assert_eq!((out.len(), out[67]), (68, 1));
    }
}
