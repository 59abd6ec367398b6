//! The two tables of KDE Sink's authors, on the same input.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use restante_records::{AccountId, Commit};
use serde::{Deserialize, Serialize};

use super::{
    cost::{Counters, Head, Memory, Times, us},
    sink,
    store::{Disk, RecordsEngine, Store},
};
use crate::measure::Latencies;

const ACCOUNT: AccountId = AccountId(1);

/// The figures of Sink's mails.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SeedFigures {
    #[serde(flatten)]
    pub(super) head: Head,
    #[serde(flatten)]
    pub(super) memory: Memory,
    #[serde(flatten)]
    pub(super) times: Times,
    /// Files while the store was open, after the last commit.
    pub(super) open: Option<Disk>,
    /// Files after closing.
    pub(super) closed: Option<Disk>,
    /// Pages, for the second table.
    pub(super) pages: Option<Pages>,
}

/// The pages of LMDB's file.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Pages {
    /// As Sink counts them: the number of the last one plus one.
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) page_bytes: u64,
    /// Bytes of all keys and values in all tables.
    pub(super) key_value_bytes: Option<u64>,
}

impl Pages {
    /// Sink's "used size".
    pub(super) fn used_bytes(&self) -> u64 {
        self.page_bytes * self.total.saturating_sub(self.free)
    }

    /// The figures of an open store; `None` when its engine has no pages.
    async fn of(store: &Store) -> anyhow::Result<Option<Self>> {
        let (Some(total), Some(free), Some(page_bytes)) = (
            store.engine_figure("pages").await?,
            store.engine_figure("free_pages").await?,
            store.engine_figure("page_bytes").await?,
        ) else {
            return Ok(None);
        };
        let key_value_bytes = store.engine_figure("key_value_bytes").await?;
        Ok(Some(Self { total, free, page_bytes, key_value_bytes }))
    }
}

/// Puts this many of Sink's mails into a fresh store.
pub(super) async fn measure(
    engine: RecordsEngine,
    folder: &Path,
    seed: u64,
    entities: u64,
) -> anyhow::Result<SeedFigures> {
    let schema = sink::schema()?;
    let store = Store::open(engine, folder, &schema).await?;
    let before = Counters::now(engine, folder);
    let (commits, total) = fill(&store, seed, entities).await?;
    let memory = Memory::now();
    let open = Disk::of(engine, folder)?;
    store.close().await?;
    let written = before.since(folder);
    let closed = Disk::of(engine, folder)?;
    let store = Store::open(engine, folder, &schema).await.context("after closing")?;
    let pages = Pages::of(&store).await?;
    store.close().await?;
    let head = Head {
        entities,
        batch: sink::BATCH,
        disk_bytes: closed.map(|disk| disk.main_bytes),
        payload_bytes: Some(entities * sink::MAIL_BYTES),
        written_bytes: written.calls,
        device_bytes: written.device,
        median_us: Some(us(commits.median_ms())),
    };
    Ok(SeedFigures { head, memory, times: Times::of(&commits, total), open, closed, pages })
}

async fn fill(store: &Store, seed: u64, entities: u64) -> anyhow::Result<(Latencies, Duration)> {
    let mut commits = Latencies::default();
    let mut total = Duration::ZERO;
    let mut next = 0;
    while next < entities {
        let end = entities.min(next + sink::BATCH);
        let commit = Commit::of((next..end).map(|n| sink::create(seed, n)));
        let begun = Instant::now();
        store.records().commit(ACCOUNT, commit).await?;
        let duration = begun.elapsed();
        commits.record(duration);
        total += duration;
        next = end;
    }
    Ok((commits, total))
}
