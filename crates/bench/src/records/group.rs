//! Durable commits, one at a time and by many concurrent committers, compared with the disk alone.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use restante_records::{AccountId, Change, Commit};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::{
    cost::{Head, us},
    mail::{self, Mails, in_one_piece},
    store::{RecordsEngine, Store},
};
use crate::measure::{Latencies, median, ratio, rounded};

/// Numbers of concurrent committers.
pub(super) const COMMITTERS: [u32; 2] = [1, 64];
/// Rounds; each measures the disk, one committer and many.
const ROUNDS: usize = 7;
const ROUNDS_QUICK: usize = 1;
const ROUND_TIME: Duration = Duration::from_millis(1_000);
const ROUND_TIME_QUICK: Duration = Duration::from_millis(10);
/// Mails that are committed repeatedly, each time as new records.
const MAILS: u64 = 1_024;
/// The file that the disk is measured with, preallocated like a commit log.
const FLOOR_FILE: &str = "floor";
const FLOOR_BYTES: u64 = 8 << 20;

/// The figures of a number of committers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GroupFigures {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) committers: u32,
    pub(super) commits_per_s: f64,
    pub(super) p99_us: f64,
    /// The disk alone: the same bytes written into a file, each with a sync.
    pub(super) floor_per_s: f64,
    pub(super) floor_us: f64,
    pub(super) ratio_to_floor: Option<f64>,
    /// By one committer in the same rounds.
    pub(super) ratio_to_one: Option<f64>,
}

/// The results of all rounds.
#[derive(Default)]
struct Rounds {
    per_s: Vec<f64>,
    times: Latencies,
}

impl Rounds {
    fn add(&mut self, times: &Latencies, duration: Duration) {
        self.per_s.push(times.len() as f64 / duration.as_secs_f64());
        self.times.add(times);
    }

    fn median_per_s(&self) -> f64 {
        rounded(median(self.per_s.clone()))
    }
}

/// Measures in alternating rounds, so that all have the same conditions.
pub(super) async fn measure(
    engine: RecordsEngine,
    folder: &Path,
    seed: u64,
    is_quick: bool,
) -> anyhow::Result<Vec<GroupFigures>> {
    let (rounds, round_time) = if is_quick { (ROUNDS_QUICK, ROUND_TIME_QUICK) } else { (ROUNDS, ROUND_TIME) };
    let pool = Arc::new(Pool::new(seed));
    let floor = Arc::new(Floor::new(folder, &pool).context("can't measure the disk")?);
    let store = Store::open(engine, &folder.join("store"), &mail::schema()?).await?;
    let mut floors = Rounds::default();
    let mut results = COMMITTERS.map(|_| Rounds::default());
    for _ in 0..rounds {
        let (times, duration) = tokio::task::spawn_blocking({
            let floor = floor.clone();
            move || floor.run(round_time)
        })
        .await??;
        floors.add(&times, duration);
        for (committers, result) in COMMITTERS.into_iter().zip(&mut results) {
            let (times, duration) = commit_for(&store, committers, &pool, round_time).await?;
            result.add(&times, duration);
        }
    }
    store.close().await?;
    let one = results.first().map(Rounds::median_per_s).unwrap_or_default();
    let figures = COMMITTERS
        .into_iter()
        .zip(&results)
        .map(|(committers, result)| figures(committers, result, &floors, one));
    Ok(figures.collect())
}

fn figures(committers: u32, results: &Rounds, floors: &Rounds, one_per_s: f64) -> GroupFigures {
    let commits_per_s = results.median_per_s();
    let floor_per_s = floors.median_per_s();
    GroupFigures {
        head: Head {
            entities: results.times.len(),
            batch: 1,
            median_us: Some(us(results.times.median_ms())),
            ..Head::default()
        },
        committers,
        commits_per_s,
        p99_us: us(results.times.p99_ms()),
        floor_per_s,
        floor_us: us(floors.times.median_ms()),
        ratio_to_floor: ratio(commits_per_s, floor_per_s),
        ratio_to_one: ratio(commits_per_s, one_per_s),
    }
}

/// Generated mails.
struct Pool(Vec<Change>);

impl Pool {
    fn new(seed: u64) -> Self {
        let mails = Mails { seed, account: AccountId(1), inbox_every: 2 };
        Self((0..MAILS).map(|n| mails.create(n).0).collect())
    }

    /// A commit of one of them.
    fn commit(&self, n: usize) -> Commit {
        Commit::of(self.0.get(n % self.0.len().max(1)).cloned())
    }

    fn records(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(in_one_piece).collect()
    }
}

/// Concurrent committers, each with an account of its own, as fast as they can.
async fn commit_for(
    store: &Store,
    committers: u32,
    pool: &Arc<Pool>,
    round_time: Duration,
) -> anyhow::Result<(Latencies, Duration)> {
    let begun = Instant::now();
    let until = begun + round_time;
    let mut running = JoinSet::new();
    for committer in 0..committers {
        let (records, pool) = (store.shared(), pool.clone());
        running.spawn(async move {
            let mut times = Latencies::default();
            let mut n = committer as usize;
            loop {
                let committing = Instant::now();
                records.commit(AccountId(committer + 1), pool.commit(n)).await?;
                times.record(committing.elapsed());
                n += 1;
                if Instant::now() >= until {
                    return Ok::<_, restante_records::Error>(times);
                }
            }
        });
    }
    let mut times = Latencies::default();
    while let Some(done) = running.join_next().await {
        times.add(&done??);
    }
    Ok((times, begun.elapsed()))
}

/// The disk without any engine.
struct Floor {
    file: File,
    path: PathBuf,
    records: Vec<Vec<u8>>,
}

impl Floor {
    fn new(folder: &Path, pool: &Pool) -> io::Result<Self> {
        let path = folder.join(FLOOR_FILE);
        let file = File::create(&path)?;
        file.write_all_at(&vec![0x5a; FLOOR_BYTES as usize], 0)?;
        file.sync_all()?;
        Ok(Self { file, path, records: pool.records() })
    }

    /// Writes one record after the other, each with a sync; at the end of the file it starts again at the front.
    fn run(&self, round_time: Duration) -> anyhow::Result<(Latencies, Duration)> {
        let mut times = Latencies::default();
        let mut offset = 0;
        let begun = Instant::now();
        for record in self.records.iter().cycle() {
            if offset + record.len() as u64 > FLOOR_BYTES {
                offset = 0;
            }
            let writing = Instant::now();
            let written = self.file.write_all_at(record, offset).and_then(|()| self.file.sync_data());
            written.with_context(|| format!("can't write {}", self.path.display()))?;
            times.record(writing.elapsed());
            offset += record.len() as u64;
            if begun.elapsed() >= round_time {
                break;
            }
        }
        Ok((times, begun.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_stays_within_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let floor = Floor::new(folder.path(), &Pool::new(0)).unwrap();
        let (times, duration) = floor.run(Duration::from_millis(5)).unwrap();
        assert!(times.len() >= 1 && duration >= Duration::from_millis(5));
        assert_eq!(std::fs::metadata(folder.path().join(FLOOR_FILE)).unwrap().len(), FLOOR_BYTES);
    }

    #[test]
    fn figures_are_by_the_floor_and_by_one() {
        let results = |per_s: f64| Rounds { per_s: vec![per_s], times: Latencies::default() };
        let many = figures(64, &results(30_000.0), &results(5_000.0), 3_000.0);
        assert_eq!((many.ratio_to_floor, many.ratio_to_one), (Some(6.0), Some(10.0)));
    }
}
