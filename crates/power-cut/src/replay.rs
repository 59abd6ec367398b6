use std::{env, path::Path, thread};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use crate::{
    Error, Log,
    image::{self, Manner},
    state::State,
};

/// How many cuts a test replays: what `RESTANTE_POWER_CUTS` says, or `default`.
pub fn cuts(default: usize) -> usize {
    let told = env::var("RESTANTE_POWER_CUTS").ok();
    told.and_then(|told| told.parse().ok()).unwrap_or(default)
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
    /// Cuts the log at random places, half of them right behind an acknowledgement, and lets `check` look at each.
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
            let image = tempfile::tempdir().map_err(Error::io("create", env::temp_dir()))?;
            let manner = Manner::draw(&mut rng);
            image::write(&state, image.path(), &manner, &mut rng)?;
            let records = self.records.len();
            let what = format!(
                "cut {number} of {cuts}, seed {seed}, behind record {place} of {records}, {manner:?}"
            );
            let told = Told { image: Some(image), what };
            if let Some(image) = &told.image {
                check(&Cut { folder: image.path(), acknowledged: self.acknowledged_before(place) });
            }
        }
        Ok(())
    }

    /// Where to cut, ascending: each is a number of records that were done.
    fn places(&self, cuts: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
        let acknowledgements = self.acknowledgements();
        let mut places = Vec::new();
        for number in 0..cuts {
            let behind_one = (number % 2 == 0 && !acknowledgements.is_empty())
                .then(|| acknowledgements.get(rng.random_range(0..acknowledgements.len())))
                .flatten();
            places.push(match behind_one {
                Some((at, _)) => at + 1,
                None => rng.random_range(0..=self.records.len()),
            });
        }
        places.sort_unstable();
        places
    }

    fn acknowledged_before(&self, place: usize) -> Vec<&str> {
        let acknowledgements = self.acknowledgements().iter();
        acknowledgements.take_while(|(at, _)| *at < place).map(|(_, text)| text.as_str()).collect()
    }
}
