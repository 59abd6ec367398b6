//! The costs of a measurement: bytes written, memory, times.

use std::{fs::File, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use super::store::RecordsEngine;
use crate::{
    machine::{bytes_written, device_bytes_written, private_memory, resident_memory},
    measure::{Latencies, rounded},
};

/// The figures of every row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Head {
    /// Records in the store, or the committed ones if only commits are counted.
    pub(super) entities: u64,
    /// Changes of a commit.
    pub(super) batch: u64,
    /// Length of the main file after closing.
    pub(super) disk_bytes: Option<u64>,
    /// Bytes of the records before compression: bodies and the blobs they name, without properties.
    pub(super) payload_bytes: Option<u64>,
    /// Bytes passed to write calls, closing included.
    pub(super) written_bytes: Option<u64>,
    /// Bytes that the device wrote meanwhile, for all processes.
    pub(super) device_bytes: Option<u64>,
    /// Microseconds of a commit, or of a read.
    pub(super) median_us: Option<f64>,
}

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row<F> {
    pub(super) table: &'static str,
    pub(super) engine: &'static str,
    #[serde(flatten)]
    pub(super) figures: F,
}

/// Bytes written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) calls: Option<u64>,
    pub(super) device: Option<u64>,
}

/// The counters at a moment.
pub(super) struct Counters(Option<Written>);

impl Counters {
    /// The current counters; none for an engine without a disk.
    pub(super) fn now(engine: RecordsEngine, folder: &Path) -> Self {
        Self(engine.is_on_disk().then(|| look(folder)))
    }

    /// The difference since then.
    pub(super) fn since(&self, folder: &Path) -> Written {
        let Some(before) = self.0 else { return Written::default() };
        let now = look(folder);
        let added = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Written { calls: added(now.calls, before.calls), device: added(now.device, before.device) }
    }
}

/// Reads the counters, that of the device after a sync of its file system: otherwise dirty pages would be counted
/// later. If the sync fails, the counter is read without it.
fn look(folder: &Path) -> Written {
    let calls = bytes_written();
    if let Ok(folder) = File::open(folder) {
        let _: rustix::io::Result<()> = rustix::fs::syncfs(folder);
    }
    Written { calls, device: device_bytes_written(folder) }
}

/// Memory of this process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Memory {
    /// All that is resident, mapped files included.
    pub(super) rss_bytes: Option<u64>,
    /// Without mapped files, whose pages the system can drop.
    pub(super) private_bytes: Option<u64>,
}

impl Memory {
    pub(super) fn now() -> Self {
        Self { rss_bytes: resident_memory("self"), private_bytes: private_memory("self") }
    }
}

/// How long commits took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) commits: u64,
    pub(super) commits_per_s: f64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
    /// Pairs of percentile and milliseconds.
    pub(super) curve_ms: Vec<(f64, f64)>,
}

impl Times {
    /// For commits with this total time.
    pub(super) fn of(commits: &Latencies, total: Duration) -> Self {
        Self {
            commits: commits.len(),
            commits_per_s: rounded(commits.len() as f64 / total.as_secs_f64().max(f64::MIN_POSITIVE)),
            p99_us: us(commits.p99_ms()),
            max_us: us(commits.max_ms()),
            curve_ms: commits.curve(),
        }
    }
}

/// Microseconds.
pub(super) fn us(ms: f64) -> f64 {
    rounded(ms * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_counted_for_engines_with_a_disk() {
        let folder = tempfile::tempdir().unwrap();
        let before = Counters::now(RecordsEngine::Lmdb, folder.path());
        std::fs::write(folder.path().join("file"), vec![7; 50_000]).unwrap();
        let written = before.since(folder.path());
        assert!(written.calls.is_none_or(|bytes| bytes >= 50_000), "{written:?}");
        let memory = Counters::now(RecordsEngine::Memory, folder.path());
        assert_eq!(memory.since(folder.path()), Written::default());
    }

    #[test]
    fn a_row_is_flat() {
        #[derive(Serialize)]
        struct Figures {
            #[serde(flatten)]
            head: Head,
            extra: u64,
        }
        let head = Head { entities: 5, payload_bytes: Some(920), ..Head::default() };
        let row = Row { table: "seed1", engine: "lmdb", figures: Figures { head, extra: 1 } };
        let row = serde_json::to_value(row).unwrap();
        assert_eq!((&row["table"], &row["entities"], &row["extra"]), (&"seed1".into(), &5.into(), &1.into()));
        assert!(row["device_bytes"].is_null() && row["payload_bytes"] == 920);
    }
}
