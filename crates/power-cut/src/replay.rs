use std::{env, path::Path, sync::PoisonError, thread};

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

/// How many cuts a test replays: what `RESTANTE_POWER_CUTS` says, or `default`.
pub fn cuts(default: usize) -> usize {
    let told = env::var("RESTANTE_POWER_CUTS").ok();
    told.and_then(|told| told.parse().ok()).unwrap_or(default)
}

/// A folder in memory that Linux has. What a cut leaves is of no use once it was looked at, and a check that opens stores syncs
/// hundreds of times: on a disk that took 1.4 s for each cut of a whole data folder, here 0.06 s.
const IN_MEMORY: &str = "/dev/shm";
/// It must have room for what a cut leaves and for what a check makes of it: containers often give it 64 MiB.
const IN_MEMORY_BYTES_MIN: u64 = 1 << 30;
/// A cut around a renaming is before it or behind one of so many records from it on, among which is the sync of its folder.
const AROUND: usize = 4;

/// The folder of a cut: in memory, unless there is too little or `TMPDIR` names a place.
fn image_folder() -> Result<TempDir, Error> {
    let is_told = env::var_os("TMPDIR").is_some();
    let has_room =
        || statvfs(IN_MEMORY).is_ok_and(|disk| disk.f_bavail * disk.f_frsize >= IN_MEMORY_BYTES_MIN);
    if !is_told
        && has_room()
        && let Ok(folder) = tempfile::tempdir_in(IN_MEMORY)
    {
        return Ok(folder);
    }
    tempfile::tempdir().map_err(Error::io("create", env::temp_dir()))
}

/// A power cut: a folder as it may be found after it.
pub struct Cut<'c> {
    folder: &'c Path,
    acknowledged: Vec<&'c str>,
}

impl Cut<'_> {
    /// What is left of the folder that was recorded. It may be written into.
    pub fn folder(&self) -> &Path {
        self.folder
    }

    /// What was acknowledged before the cut, in order. All of it must be there; more may be.
    pub fn acknowledged(&self) -> &[&str] {
        &self.acknowledged
    }
}

/// Says where a check has failed, and keeps what it was given.
struct Told {
    image: Option<TempDir>,
    what: String,
}

impl Drop for Told {
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(image) = self.image.take()
        {
            eprintln!("{}; what it left is kept in {}", self.what, image.keep().display());
        }
    }
}

impl Log {
    /// Cuts the log at random places and lets `check` look at each. Half of them are right behind an acknowledgement, and a quarter
    /// around a renaming, by which things get their name when they are finished: these are rare among writes.
    ///
    /// The seed chooses places and what is left. The log itself is of one run, and differs from run to run when threads
    /// write at once; so a check that fails keeps the folder and says where.
    ///
    /// # Errors
    /// When the log can't be replayed, or a folder can't be written. A check that fails panics.
    pub fn replay(&self, cuts: usize, seed: u64, mut check: impl FnMut(&Cut<'_>)) -> Result<(), Error> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut state = State::new(self);
        for (number, place) in self.places(cuts, &mut rng).into_iter().enumerate() {
            state.advance(place)?;
            let manner = Manner::draw(&mut rng);
            let image = image_folder()?;
            image::write(&state, image.path(), &manner, &mut rng)?;
            let records = self.records.len();
            let what = format!(
                "cut {number} of {cuts}, seed {seed}, behind record {place} of {records}, {manner:?}"
            );
            let told = Told { image: Some(image), what };
            if let Some(image) = &told.image {
                let _nothing_starts = STARTING.read().unwrap_or_else(PoisonError::into_inner);
                check(&Cut { folder: image.path(), acknowledged: self.acknowledged_before(place) });
            }
        }
        Ok(())
    }

    /// Where to cut, ascending: each is a number of records that were done.
    fn places(&self, cuts: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
        let acknowledgements: Vec<usize> = self.acknowledgements().iter().map(|(at, _)| *at).collect();
        let renamings = self.renamings();
        let mut places = Vec::new();
        for number in 0..cuts {
            let chosen = match number % 4 {
                0 | 2 => acknowledgements.choose(rng).map(|at| at + 1),
                1 => renamings.choose(rng).map(|at| at + rng.random_range(0..=AROUND)),
                _ => None,
            };
            let place = chosen.unwrap_or_else(|| rng.random_range(0..=self.records.len()));
            places.push(place.min(self.records.len()));
        }
        places.sort_unstable();
        places
    }

    fn renamings(&self) -> Vec<usize> {
        let records = self.records.iter().enumerate();
        let renamings = records.filter(|(_, record)| matches!(record, Record::Rename { .. }));
        renamings.map(|(at, _)| at).collect()
    }

    fn acknowledged_before(&self, place: usize) -> Vec<&str> {
        let acknowledgements = self.acknowledgements().iter();
        acknowledgements.take_while(|(at, _)| *at < place).map(|(_, text)| text.as_str()).collect()
    }
}
