use std::{collections::BTreeMap, env, ops::RangeInclusive, path::Path, sync::PoisonError, thread};

use rand::{RngExt, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use rustix::fs::statvfs;
use tempfile::TempDir;

use crate::{
    Error, Log,
    image::{self, Manner},
    log::Record,
    record::STARTING,
    state::State,
};

/// The number of cuts that a test replays: `RESTANTE_POWER_CUTS`, or `default`.
pub fn cuts(default: usize) -> usize {
    let cuts = env::var("RESTANTE_POWER_CUTS").ok();
    cuts.and_then(|cuts| cuts.parse().ok()).unwrap_or(default)
}

/// A memory file system of Linux. The folder of a cut is temporary, and a check that opens stores syncs hundreds of times: 1.4 s
/// for each cut of a whole data folder on a disk, 0.06 s here.
const IN_MEMORY: &str = "/dev/shm";
/// Enough free space for the folder of a cut and for what a check writes: containers often have only 64 MiB.
const IN_MEMORY_BYTES_MIN: u64 = 1 << 30;
/// A cut around a rename is before it or after one of this many records from it on, which include the sync of its folder.
const AROUND: usize = 4;
/// Each stage of a replay by stages gets at least this fraction of the cuts: one in this many.
const SHARE: usize = 20;

/// The folder of a cut: in memory, unless there is too little space or `TMPDIR` is set.
fn image_folder() -> Result<TempDir, Error> {
    let is_chosen = env::var_os("TMPDIR").is_some();
    let has_room =
        || statvfs(IN_MEMORY).is_ok_and(|disk| disk.f_bavail * disk.f_frsize >= IN_MEMORY_BYTES_MIN);
    if !is_chosen
        && has_room()
        && let Ok(folder) = tempfile::tempdir_in(IN_MEMORY)
    {
        return Ok(folder);
    }
    tempfile::tempdir().map_err(Error::io("create", env::temp_dir()))
}

/// A power cut: a folder with what may be left after it.
pub struct Cut<'c> {
    folder: &'c Path,
    acknowledged: Vec<&'c str>,
}

impl Cut<'_> {
    /// What is left of the recorded folder. It may be written to.
    pub fn folder(&self) -> &Path {
        self.folder
    }

    /// The acknowledgements before the cut, in order. Everything they acknowledge must be in the folder, which may hold more.
    pub fn acknowledged(&self) -> &[&str] {
        &self.acknowledged
    }
}

/// When a check panics, prints the cut and keeps its folder.
struct Reporter {
    image: Option<TempDir>,
    what: String,
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(image) = self.image.take()
        {
            eprintln!("{}; what it left is kept in {}", self.what, image.keep().display());
        }
    }
}

impl Log {
    /// Cuts the log at random points and calls `check` for each. Half of the cuts directly follow an acknowledgement, and a
    /// quarter are around a rename, which publishes finished files and is rare among writes.
    ///
    /// The seed chooses the cuts and what is left. The log is of one run and differs between runs when threads
    /// write concurrently, so a failed check keeps the folder and prints the cut.
    ///
    /// # Errors
    /// When the log can't be replayed, or a folder can't be written. A check that fails panics.
    pub fn replay(&self, cuts: usize, seed: u64, check: impl FnMut(&Cut<'_>)) -> Result<(), Error> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let points = self.cut_points(cuts, &mut rng);
        self.cut_at(points, seed, rng, check)
    }

    /// The same with a share of the cuts for each stage of what was recorded, a twentieth at least. `stage` names the stage of a cut by the
    /// acknowledgements before it. Returns the number of cuts at each stage that the log has.
    ///
    /// # Errors
    /// As [`Log::replay`].
    pub fn replay_stages(
        &self,
        cuts: usize,
        seed: u64,
        stage: impl Fn(&[&str]) -> &'static str,
        check: impl FnMut(&Cut<'_>),
    ) -> Result<BTreeMap<&'static str, usize>, Error> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut points = self.cut_points(cuts, &mut rng);
        let stages = self.stages(stage);
        let share = cuts / SHARE;
        let counts = fill_up(&mut points, &stages, share, &mut rng);
        self.cut_at(points, seed, rng, check)?;
        Ok(counts)
    }

    fn cut_at(
        &self,
        points: Vec<usize>,
        seed: u64,
        mut rng: ChaCha8Rng,
        mut check: impl FnMut(&Cut<'_>),
    ) -> Result<(), Error> {
        let mut state = State::new(self);
        let cuts = points.len();
        for (number, point) in points.into_iter().enumerate() {
            state.advance(point)?;
            let manner = Manner::draw(&mut rng);
            let image = image_folder()?;
            image::write(&state, image.path(), &manner, &mut rng)?;
            let records = self.records.len();
            let what =
                format!("cut {number} of {cuts}, seed {seed}, after record {point} of {records}, {manner:?}");
            let reporter = Reporter { image: Some(image), what };
            if let Some(image) = &reporter.image {
                let _nothing_starts = STARTING.read().unwrap_or_else(PoisonError::into_inner);
                check(&Cut { folder: image.path(), acknowledged: self.acknowledged_before(point) });
            }
        }
        Ok(())
    }

    /// The cuts, ascending: each is a number of completed records.
    fn cut_points(&self, cuts: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
        let acknowledgements: Vec<usize> = self.acknowledgements().iter().map(|(at, _)| *at).collect();
        let renames = self.renames();
        let mut points = Vec::new();
        for number in 0..cuts {
            let chosen = match number % 4 {
                0 | 2 => acknowledgements.choose(rng).map(|at| at + 1),
                1 => renames.choose(rng).map(|at| at + rng.random_range(0..=AROUND)),
                _ => None,
            };
            let point = chosen.unwrap_or_else(|| rng.random_range(0..=self.records.len()));
            points.push(point.min(self.records.len()));
        }
        points.sort_unstable();
        points
    }

    /// All possible cuts, by stage.
    fn stages(&self, stage: impl Fn(&[&str]) -> &'static str) -> Vec<(RangeInclusive<usize>, &'static str)> {
        let texts: Vec<&str> = self.acknowledged().collect();
        let mut stages = Vec::new();
        let mut begin = 0;
        let ends = self.acknowledgements().iter().map(|(at, _)| *at).chain([self.records.len()]);
        for (acknowledged, end) in ends.enumerate() {
            let before = texts.get(..acknowledged).unwrap_or_default();
            stages.push((begin..=end, stage(before)));
            begin = end + 1;
        }
        stages
    }

    fn renames(&self) -> Vec<usize> {
        let records = self.records.iter().enumerate();
        let renames = records.filter(|(_, record)| matches!(record, Record::Rename { .. }));
        renames.map(|(at, _)| at).collect()
    }

    fn acknowledged_before(&self, point: usize) -> Vec<&str> {
        let acknowledgements = self.acknowledgements().iter();
        acknowledgements.take_while(|(at, _)| *at < point).map(|(_, text)| text.as_str()).collect()
    }
}

/// Moves cuts from the stages that have most to those that have less than their share. Returns the number of cuts at each stage.
fn fill_up(
    points: &mut Vec<usize>,
    stages: &[(RangeInclusive<usize>, &'static str)],
    share: usize,
    rng: &mut ChaCha8Rng,
) -> BTreeMap<&'static str, usize> {
    let mut of_stage: BTreeMap<&'static str, Vec<usize>> = BTreeMap::new();
    for (_, stage) in stages {
        of_stage.entry(stage).or_default();
    }
    for point in points.drain(..) {
        let found = stages.partition_point(|(range, _)| *range.end() < point);
        if let Some((_, stage)) = stages.get(found) {
            of_stage.entry(stage).or_default().push(point);
        }
    }
    while let Some((short, _)) = of_stage.iter().find(|(_, cuts)| cuts.len() < share) {
        let short = *short;
        let longest = of_stage.values_mut().max_by_key(|cuts| cuts.len());
        let Some(longest) = longest.filter(|cuts| cuts.len() > share) else { break };
        longest.swap_remove(rng.random_range(0..longest.len()));
        let ranges: Vec<_> = stages.iter().filter(|(_, stage)| *stage == short).collect();
        let Some((range, _)) = ranges.choose(rng) else { break };
        of_stage.entry(short).or_default().push(rng.random_range(range.clone()));
    }
    points.extend(of_stage.values().flatten());
    points.sort_unstable();
    of_stage.into_iter().map(|(stage, cuts)| (stage, cuts.len())).collect()
}
