//! How often a commit is tried again when other servers commit first.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// How often a commit is tried.
const TRIES_MAX: u32 = 64;
/// After so many tries, there is a wait before the next one.
const TRIES_AT_ONCE: u32 = 3;
/// The longest wait: about the time of some commits of another server.
const WAIT_MAX: Duration = Duration::from_millis(8);

/// The tries of a commit that is planned again when another server has changed what was read. Within one server, such commits wait
/// for each other, see [`Mail::lock_edits`](crate::Mail::lock_edits).
#[derive(Debug, Default)]
pub struct Tries {
    failed: u32,
}

impl Tries {
    /// Counts a failed try, and waits before the next one, so that several servers don't plan in step; false when no try is left.
    pub async fn next(&mut self) -> bool {
        self.failed += 1;
        if self.failed > TRIES_AT_ONCE {
            let chance = RandomState::new().hash_one(self.failed) % 512;
            tokio::time::sleep(WAIT_MAX / 2 + WAIT_MAX * chance as u32 / 1_024).await;
        }
        self.failed < TRIES_MAX
    }
}
