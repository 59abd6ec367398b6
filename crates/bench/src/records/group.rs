//! Durable commits, one at a time and of many committers at once, beside what the disk itself can do.

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

/// How many commit at once.
pub(super) const COMMITTERS: [u32; 2] = [1, 64];
/// Rounds, in each of which the disk, one committer and many have their turn.
const ROUNDS: usize = 7;
const ROUNDS_QUICK: usize = 1;
const TURN: Duration = Duration::from_millis(1_000);
const TURN_QUICK: Duration = Duration::from_millis(10);
/// Mails that are committed over and over, each time as new records.
const MAILS: u64 = 1_024;
/// The file that the disk is measured with, written in advance as a commit log is.
const FLOOR_FILE: &str = "floor";
const FLOOR_BYTES: u64 = 8 << 20;

/// What a number of committers reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GroupFigures {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) committers: u32,
    pub(super) commits_per_s: f64,
    pub(super) p99_us: f64,
    /// The disk itself: the same bytes written into a file, each with a sync.
    pub(super) floor_per_s: f64,
    pub(super) floor_us: f64,
    pub(super) ratio_to_floor: Option<f64>,
    /// By one committer in the same rounds.
    pub(super) ratio_to_one: Option<f64>,
}

/// What came of the turns of one of them.
#[derive(Default)]
struct Turns {
    per_s: Vec<f64>,
    times: Latencies,
}

impl Turns {
    fn add(&mut self, times: &Latencies, duration: Duration) {
        self.per_s.push(times.len() as f64 / duration.as_secs_f64());
        self.times.add(times);
    }

    fn median_per_s(&self) -> f64 {
        rounded(median(self.per_s.clone()))
    }
}

/// Measures in turns, so that all of them meet the same neighbours on the disk.
pub(super) async fn measure(
    engine: RecordsEngine,
    folder: &Path,
    seed: u64,
    is_quick: bool,
) -> anyhow::Result<Vec<GroupFigures>> {
    let (rounds, turn) = if is_quick { (ROUNDS_QUICK, TURN_QUICK) } else { (ROUNDS, TURN) };
    let pool = Arc::new(Pool::new(seed));
    let floor = Arc::new(Floor::new(folder, &pool).context("can't measure the disk")?);
    let store = Store::open(engine, &folder.join("store"), &mail::schema()?).await?;
    let mut floors = Turns::default();
    let mut turns = COMMITTERS.map(|_| Turns::default());
    for _ in 0..rounds {
        let (times, duration) = tokio::task::spawn_blocking({
            let floor = floor.clone();
            move || floor.run(turn)
        })
        .await??;
        floors.add(&times, duration);
        for (committers, turns) in COMMITTERS.into_iter().zip(&mut turns) {
            let (times, duration) = commit_for(&store, committers, &pool, turn).await?;
            turns.add(&times, duration);
        }
    }
    store.close().await?;
    let one = turns.first().map(Turns::median_per_s).unwrap_or_default();
    let figures = COMMITTERS
        .into_iter()
        .zip(&turns)
        .map(|(committers, turns)| figures(committers, turns, &floors, one));
    Ok(figures.collect())
}

fn figures(committers: u32, turns: &Turns, floors: &Turns, one_per_s: f64) -> GroupFigures {
    let commits_per_s = turns.median_per_s();
    let floor_per_s = floors.median_per_s();
    GroupFigures {
        head: Head {
            entities: turns.times.len(),
            batch: 1,
            median_us: Some(us(turns.times.median_ms())),
            ..Head::default()
        },
        committers,
        commits_per_s,
        p99_us: us(turns.times.p99_ms()),
        floor_per_s,
        floor_us: us(floors.times.median_ms()),
        ratio_to_floor: ratio(commits_per_s, floor_per_s),
        ratio_to_one: ratio(commits_per_s, one_per_s),
    }
}

/// Mails that are ready.
struct Pool(Vec<Change>);

impl Pool {
    fn new(seed: u64) -> Self {
        let mails = Mails { seed, account: AccountId(1), inbox_every: 2 };
        Self((0..MAILS).map(|n| mails.create(n).0).collect())
    }

    /// The commit of one of them.
    fn commit(&self, n: usize) -> Commit {
        Commit::of(self.0.get(n % self.0.len().max(1)).cloned())
    }

    fn records(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(in_one_piece).collect()
    }
}

/// So many committers, each with an account of its own, as fast as they can.
async fn commit_for(
    store: &Store,
    committers: u32,
    pool: &Arc<Pool>,
    turn: Duration,
) -> anyhow::Result<(Latencies, Duration)> {
    let begun = Instant::now();
    let until = begun + turn;
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

    /// Writes record behind record, each with a sync; at the end of the file it begins anew.
    fn run(&self, turn: Duration) -> anyhow::Result<(Latencies, Duration)> {
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
            if begun.elapsed() >= turn {
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
        let turns = |per_s: f64| Turns { per_s: vec![per_s], times: Latencies::default() };
        let many = figures(64, &turns(30_000.0), &turns(5_000.0), 3_000.0);
        assert_eq!((many.ratio_to_floor, many.ratio_to_one), (Some(6.0), Some(10.0)));
    }
}
