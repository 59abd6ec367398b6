//! Mails in commits of 1 to 1,000: their size on disk, and the bytes written for them.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{
    cost::{Counters, Head, Memory, Times, us},
    fill::{Load, fill},
    mail,
    store::{Disk, RecordsEngine, Store},
};

/// Mails of a commit.
pub(super) const BATCHES: [u64; 4] = [1, 10, 100, 1_000];
/// The most mails that are committed one at a time: each commit costs the same, and takes a sync.
pub(super) const SINGLE_MAX: u64 = 5_000;
/// The most commits without a commit log: each writes tens of kilobytes at every size.
const COMMITS_WITHOUT_LOG_MAX: u64 = 10_000;

/// A cell: mails, and mails in a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) entities: u64,
    pub(super) batch: u64,
}

/// The cells of an engine, each once.
pub(super) fn cells(engine: RecordsEngine, sizes: &[u64]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for size in sizes {
        for batch in BATCHES {
            let mut entities = *size;
            if batch == 1 {
                entities = entities.min(SINGLE_MAX);
            }
            if engine == RecordsEngine::LmdbWithoutLog {
                entities = entities.min(COMMITS_WITHOUT_LOG_MAX * batch);
            }
            let cell = Cell { entities, batch };
            if !cells.contains(&cell) {
                cells.push(cell);
            }
        }
    }
    cells
}

/// The figures of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BatchFigures {
    #[serde(flatten)]
    pub(super) head: Head,
    #[serde(flatten)]
    pub(super) memory: Memory,
    #[serde(flatten)]
    pub(super) times: Times,
    /// Accounts that the mails belong to.
    pub(super) accounts: u32,
    /// Bytes written by opening the fresh store, which are not counted elsewhere: a commit log is preallocated once.
    pub(super) opening_bytes: Option<u64>,
    /// Files while the store was open, after the last commit.
    pub(super) open: Option<Disk>,
    /// Files after closing.
    pub(super) closed: Option<Disk>,
}

/// Fills a fresh store.
pub(super) async fn measure(
    engine: RecordsEngine,
    folder: &Path,
    load: Load,
) -> anyhow::Result<BatchFigures> {
    let before_opening = Counters::now(engine, folder);
    let store = Store::open(engine, folder, &mail::schema()?).await?;
    let opening_bytes = before_opening.since(folder).calls;
    let before = Counters::now(engine, folder);
    let filled = fill(&store, load).await?;
    let memory = Memory::now();
    let open = Disk::of(engine, folder)?;
    store.close().await?;
    let written = before.since(folder);
    let closed = Disk::of(engine, folder)?;
    let head = Head {
        entities: load.entities,
        batch: load.batch,
        disk_bytes: closed.map(|disk| disk.main_bytes),
        payload_bytes: Some(filled.payload_bytes),
        written_bytes: written.calls,
        device_bytes: written.device,
        median_us: Some(us(filled.commits.median_ms())),
    };
    let times = Times::of(&filled.commits, filled.total);
    Ok(BatchFigures { head, memory, times, accounts: load.accounts, opening_bytes, open, closed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_bounded_and_unique() {
        let sizes = [10_000, 100_000, 1_000_000];
        let with_log = cells(RecordsEngine::Lmdb, &sizes);
        assert_eq!(with_log.len(), 1 + 3 * 3, "one at a time is measured once");
        assert!(with_log.contains(&Cell { entities: 5_000, batch: 1 }));
        assert!(with_log.contains(&Cell { entities: 1_000_000, batch: 10 }));
        let without = cells(RecordsEngine::LmdbWithoutLog, &sizes);
        assert_eq!(without.len(), with_log.len() - 1, "a million by ten is a hundred thousand by ten");
        assert!(without.iter().all(|cell| cell.entities / cell.batch <= 10_000));
    }
}
