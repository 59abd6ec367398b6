//! The disk without any engine: the floors of `bench ingest`.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{
    args::CommonArgs,
    dataset::MESSAGES_FULL,
    measure::{Latencies, ms},
    random::Random,
};

/// About one message.
const APPEND_BYTES: usize = 700;
const APPENDS_MAX: u64 = 2_000;
const APPENDS_MIN: u64 = 10;
const CALL_BYTES: usize = 1 << 20;
/// Calls of the long write, with the full data set.
const CALLS_MAX: u64 = 512;
const CALLS_MIN: u64 = 8;

/// The figures of the disk alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    pub(crate) sync_ms: f64,
    pub(crate) syncs_per_s: f64,
    pub(crate) write_mb_s: f64,
}

impl Disk {
    /// The mean of two probes, to compare with a measurement between them.
    pub(crate) fn between(before: &Self, after: &Self) -> Self {
        Self {
            sync_ms: f64::midpoint(before.sync_ms, after.sync_ms),
            syncs_per_s: f64::midpoint(before.syncs_per_s, after.syncs_per_s),
            write_mb_s: f64::midpoint(before.write_mb_s, after.write_mb_s),
        }
    }
}

/// Measures the disk below `folder`. Removes its files.
pub(crate) async fn probe(folder: &Path, common: &CommonArgs) -> anyhow::Result<Disk> {
    let patience = common.pick(Duration::from_millis(400), Duration::from_millis(10));
    let calls = (CALLS_MAX * common.messages() / MESSAGES_FULL).clamp(CALLS_MIN, CALLS_MAX);
    let file = folder.join("disk-probe");
    let probe = move || {
        let result = measure(&file, patience, calls);
        let removed = std::fs::remove_file(&file);
        result
            .and_then(|disk| removed.map(|()| disk))
            .with_context(|| format!("can't probe the disk by {}", file.display()))
    };
    tokio::task::spawn_blocking(probe).await?
}

fn measure(file: &PathBuf, patience: Duration, calls: u64) -> io::Result<Disk> {
    let (sync_ms, syncs_per_s) = sync_appends(file, patience)?;
    Ok(Disk { sync_ms, syncs_per_s, write_mb_s: write_at_length(file, calls)? })
}

/// Appends of one message, each synced: the median time of the sync alone, and the number of appends a second.
fn sync_appends(path: &PathBuf, patience: Duration) -> io::Result<(f64, f64)> {
    let mut bytes = [0; APPEND_BYTES];
    Random::new(0, 0).fill(&mut bytes);
    let mut file = File::create(path)?;
    let mut syncs = Latencies::default();
    let begun = Instant::now();
    while syncs.len() < APPENDS_MIN || (syncs.len() < APPENDS_MAX && begun.elapsed() < patience) {
        file.write_all(&bytes)?;
        let written = Instant::now();
        file.sync_data()?;
        syncs.record(written.elapsed());
    }
    let per_second = syncs.len() as f64 / begun.elapsed().as_secs_f64();
    Ok((syncs.median_ms(), per_second))
}

/// One long write with one sync at its end, in 10^6 bytes a second.
fn write_at_length(path: &PathBuf, calls: u64) -> io::Result<f64> {
    let mut bytes = vec![0; CALL_BYTES];
    Random::new(0, 1).fill(&mut bytes); // random, so that no disk can compress it
    let mut file = File::create(path)?;
    let begun = Instant::now();
    for _ in 0..calls {
        file.write_all(&bytes)?;
    }
    file.sync_data()?;
    let bytes = calls as f64 * CALL_BYTES as f64;
    Ok(bytes / 1e3 / ms(begun.elapsed()))
}
