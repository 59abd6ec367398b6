//! An archive: appends compared with the three writes that they need at least, and pages at two sizes.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use futures_util::{StreamExt, TryStreamExt, future::try_join_all, stream};
use restante_archive::{Appended, Archive, CassandraUrl, Config, EngineUrl, Message, Opened, Query, open};
use restante_core::{MessageHash, Timestamp};
use scylla::{
    client::session::Session,
    statement::{
        batch::{Batch, BatchType},
        prepared::PreparedStatement,
    },
};

use super::{
    super::{
        Bench, Subject,
        pairs::{Bound, Load, load},
    },
    Cassandra, Keyspace, beside_raw,
};
use crate::{progress, random::Random, report::number};

/// Messages of one append, and the clients that append.
const MESSAGES: u64 = 100;
const APPENDERS: usize = 4;
const BODY_BYTES: usize = 700;
const TOPICS: u64 = 10;
/// 72,000 messages in a window of an hour.
const INTERVAL_NS: i64 = 50_000_000;
const START: Timestamp = Timestamp::from_seconds(1_700_000_000);
const WINDOW_NS: i64 = 3_600_000_000_000;
/// Messages of the small archive, and of an append while an archive is filled.
const SMALL_MESSAGES: u64 = 10_000;
const FILL_MESSAGES: u64 = 2_000;
const FILLERS: usize = 4;
const PAGE: usize = 100;
/// What the value of a message has besides its body: `docs/formats/archive-cassandra.md`.
const VALUE_HEAD_BYTES: usize = 25;
/// The first byte of a partition's key.
const BY_TIME: u8 = 0;
const BY_TOPIC: u8 = 1;
const BY_HASH: u8 = 2;

impl Cassandra {
    pub(super) async fn measure_archive(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let messages = bench.args.stored(bench.args.messages);
        let small_messages = bench.args.stored(SMALL_MESSAGES).min(SMALL_MESSAGES);
        let small = self.open_archive(Keyspace::SmallArchive).await?;
        let large = self.open_archive(Keyspace::LargeArchive).await?;
        fill(&small, small_messages).await?;
        fill(&large, messages).await?;
        self.measure_appends(bench, &large, messages).await?;
        let what = format!("page of {PAGE} among {} messages", number(messages as f64));
        let beside = format!("restante among {}", number(small_messages as f64));
        let subject = Subject { what: &what, beside: &beside };
        let base = pages(&small.archive, small_messages);
        let ours = pages(&large.archive, messages);
        bench.compare(subject, &[Bound::Time(1.5)], base, ours).await?;
        small.upkeep.close().await?;
        large.upkeep.close().await?;
        Ok(())
    }

    async fn open_archive(&self, keyspace: Keyspace) -> anyhow::Result<Opened> {
        let url: CassandraUrl = format!("{}/{}", self.url, self.keyspace(keyspace)).parse()?;
        open(Config::new(EngineUrl::Cassandra(url))).await.context("can't open an archive")
    }

    async fn measure_appends(
        &self,
        bench: &mut Bench<'_>,
        opened: &Opened,
        messages: u64,
    ) -> anyhow::Result<()> {
        let raw = Arc::new(RawAppends::new(self).await?);
        let (next, next_raw) = (Arc::new(AtomicU64::new(messages)), Arc::new(AtomicU64::new(messages)));
        let base = async |span| {
            let (raw, next) = (raw.clone(), next_raw.clone());
            load(APPENDERS, span, move |_, _| {
                let (raw, first) = (raw.clone(), next.fetch_add(MESSAGES, Ordering::Relaxed));
                async move { raw.append(first).await }
            })
            .await
        };
        let ours = async |span| {
            let (archive, next) = (opened.archive.clone(), next.clone());
            load(APPENDERS, span, move |_, _| {
                let (archive, first) = (archive.clone(), next.fetch_add(MESSAGES, Ordering::Relaxed));
                append(archive, first, MESSAGES)
            })
            .await
        };
        let subject = beside_raw("append 100 messages of 700 bytes, 4 at once");
        bench.compare(subject, &[Bound::Rate(0.8)], base, ours).await
    }
}

/// The message with this number, in time order.
fn message(number: u64) -> Message {
    let mut random = Random::new(number, 1);
    let mut hash = [0; 32];
    random.fill(&mut hash);
    let mut body = vec![0; BODY_BYTES];
    random.fill(&mut body);
    Message {
        message_hash: MessageHash(hash),
        channel: "/restante/overhead".into(),
        topic: format!("/restante/1/topic-{}/proto", topic(number)).into(),
        timestamp: Timestamp(timestamp(number)),
        body: body.into(),
    }
}

/// The messages of an append have one topic.
fn topic(number: u64) -> u64 {
    number / MESSAGES % TOPICS
}

fn timestamp(number: u64) -> i64 {
    START.0 + number as i64 * INTERVAL_NS
}

async fn append(archive: Arc<dyn Archive>, first: u64, messages: u64) -> anyhow::Result<()> {
    let appended = archive.append((first..first + messages).map(message).collect()).await?;
    ensure!(appended.iter().all(|one| *one == Appended::Stored), "a new message was not stored");
    Ok(())
}

async fn fill(opened: &Opened, messages: u64) -> anyhow::Result<()> {
    let bar = progress::bar("messages", messages);
    let appends = (0..messages).step_by(FILL_MESSAGES as usize).map(|first| {
        let (archive, bar) = (opened.archive.clone(), bar.clone());
        async move {
            let count = FILL_MESSAGES.min(messages - first);
            append(archive, first, count).await?;
            bar.inc(count);
            anyhow::Ok(())
        }
    });
    stream::iter(appends).buffer_unordered(FILLERS).try_collect::<()>().await?;
    bar.finish_and_clear();
    Ok(())
}

/// A side with one client that reads pages anywhere in an archive.
fn pages(archive: &Arc<dyn Archive>, messages: u64) -> impl AsyncFnMut(Duration) -> anyhow::Result<Load> {
    let archive = archive.clone();
    async move |span| {
        let archive = archive.clone();
        load(1, span, move |_, number| page(archive.clone(), messages, number)).await
    }
}

fn page(
    archive: Arc<dyn Archive>,
    messages: u64,
    number: u64,
) -> impl Future<Output = anyhow::Result<()>> + Send {
    let first = Random::new(number, 2).below(messages - PAGE as u64);
    let query = Query { start: Some(Timestamp(timestamp(first))), limit: PAGE, ..Query::default() };
    async move {
        let page = archive.query(&query).await?;
        ensure!(page.len() == PAGE, "a page has {} messages", page.len());
        Ok(())
    }
}

/// The raw client: keys by topic and by hash, then the messages.
struct RawAppends {
    session: Arc<Session>,
    put_key: PreparedStatement,
    put_message: PreparedStatement,
    /// Of messages, and of keys, so many in one partition.
    messages: Batch,
    keys: Batch,
    /// The timestamp of the last write; it decreases, as in the engine.
    written: AtomicI64,
}

impl RawAppends {
    async fn new(cassandra: &Cassandra) -> anyhow::Result<Self> {
        let columns = "part blob, timestamp bigint, hash blob, value blob, size int, PRIMARY KEY (part, timestamp, hash)";
        let table = cassandra.make_raw_table("messages", columns).await?;
        let put_key =
            format!("INSERT INTO {table} (part, timestamp, hash) VALUES (?, ?, ?) USING TIMESTAMP ?");
        let put_message = format!(
            "INSERT INTO {table} (part, timestamp, hash, value, size) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?"
        );
        let (put_key, put_message) =
            (cassandra.prepare(&put_key).await?, cassandra.prepare(&put_message).await?);
        let (mut messages, mut keys) = (Batch::new(BatchType::Unlogged), Batch::new(BatchType::Unlogged));
        for _ in 0..MESSAGES {
            messages.append_statement(put_message.clone());
            keys.append_statement(put_key.clone());
        }
        let session = cassandra.session.clone();
        Ok(Self { session, put_key, put_message, messages, keys, written: AtomicI64::new(0) })
    }

    async fn append(&self, first: u64) -> anyhow::Result<()> {
        let written = self.written.fetch_sub(1, Ordering::Relaxed) - 1;
        let messages: Vec<Message> = (first..first + MESSAGES).map(message).collect();
        let mut topic_part = vec![BY_TOPIC; 24];
        topic_part.extend((topic(first) as u8).to_be_bytes());
        let by_topic: Vec<_> = messages
            .iter()
            .map(|one| (topic_part.as_slice(), one.timestamp.0, &one.message_hash.0[..], written))
            .collect();
        let by_hash = messages.iter().map(|one| {
            let part = [&[BY_HASH], &one.message_hash.0[..]].concat();
            self.put_key_of(part, one, written)
        });
        let (by_topic, by_hash) =
            tokio::join!(self.session.batch(&self.keys, by_topic), try_join_all(by_hash));
        by_topic?;
        by_hash?;
        self.put_messages(&messages, written).await
    }

    async fn put_key_of(&self, part: Vec<u8>, message: &Message, written: i64) -> anyhow::Result<()> {
        let values = (part, message.timestamp.0, &message.message_hash.0[..], written);
        self.session.execute_unpaged(&self.put_key, values).await?;
        Ok(())
    }

    /// All in one window, unless the next window starts among them.
    async fn put_messages(&self, messages: &[Message], written: i64) -> anyhow::Result<()> {
        let window = |message: &Message| message.timestamp.0.div_euclid(WINDOW_NS);
        for of_window in messages.chunk_by(|one, other| window(one) == window(other)) {
            let rows: Vec<_> = of_window
                .iter()
                .map(|one| {
                    let part = [&[BY_TIME][..], &window(one).to_be_bytes()].concat();
                    let value = [&[0; VALUE_HEAD_BYTES][..], &one.body].concat();
                    (part, one.timestamp.0, &one.message_hash.0[..], value, one.body.len() as i32, written)
                })
                .collect();
            if rows.len() == MESSAGES as usize {
                self.session.batch(&self.messages, rows).await?;
            } else {
                let mut batch = Batch::new(BatchType::Unlogged);
                rows.iter().for_each(|_| batch.append_statement(self.put_message.clone()));
                self.session.batch(&batch, rows).await?;
            }
        }
        Ok(())
    }
}
