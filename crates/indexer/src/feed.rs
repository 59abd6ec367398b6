//! The feed of records, with a checkpoint that is kept in the index.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use restante_core::Identity;
use restante_records::{
    AccountId, Changes, Checkpoint, Error, Feed, FeedRequest, Position, Revision, Touched,
};
use restante_search::{Batch, Index, Series};
use tokio::time::Instant;

use crate::indexer::NAME;

/// The version of the checkpoint.
const VERSION: u8 = 1;

/// How often the position is saved. After a crash, accounts that were touched since then are looked at again, which costs little:
/// their revisions are in the index.
const POSITION_INTERVAL: Duration = Duration::from_secs(5);

/// The position up to which the index has what a store of records has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexCheckpoint {
    /// Of the records.
    pub(crate) identity: Identity,
    pub(crate) position: Position,
}

impl IndexCheckpoint {
    pub(crate) fn to_bytes(self) -> Bytes {
        [&[VERSION][..], &self.identity.0, &self.position.to_bytes()].concat().into()
    }

    /// `None` for bytes of another version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (identity, position) = rest.split_first_chunk::<16>()?;
        let position = Position::from_bytes(position.try_into().ok()?);
        (*version == VERSION).then_some(Self { identity: Identity(*identity), position })
    }
}

/// What the parts of one series of writes share.
pub(crate) struct Progress {
    series: Series,
    /// Whether something was removed since the position was saved.
    is_removal_unsaved: AtomicBool,
}

impl Progress {
    pub(crate) fn new(series: Series) -> Self {
        Self { series, is_removal_unsaved: AtomicBool::new(false) }
    }

    pub(crate) fn series(&self) -> Series {
        self.series
    }

    pub(crate) fn note_removal(&self) {
        self.is_removal_unsaved.store(true, Ordering::Relaxed);
    }
}

/// The feed of records for the follower of one series. Its checkpoint is that of the index.
///
/// The position is also saved with the records, before it is saved with the index. So records that were restored from a backup
/// are noticed: their position is before that of the index.
pub(crate) struct IndexFeed {
    feed: Arc<dyn Feed>,
    index: Arc<dyn Index>,
    progress: Arc<Progress>,
    identity: Identity,
    saved: Mutex<Saved>,
}

#[derive(Clone, Copy, Debug)]
struct Saved {
    /// What the follower saved last.
    position: Position,
    /// What is with the records and in the index.
    durable: Position,
    at: Instant,
}

impl IndexFeed {
    pub(crate) fn new(
        feed: Arc<dyn Feed>,
        index: Arc<dyn Index>,
        progress: Arc<Progress>,
        start: IndexCheckpoint,
    ) -> Self {
        let saved = Saved { position: start.position, durable: start.position, at: Instant::now() };
        Self { feed, index, progress, identity: start.identity, saved: Mutex::new(saved) }
    }

    /// Saves the position to which the follower came.
    pub(crate) async fn save_position(&self) -> Result<(), Error> {
        let Saved { position, durable, .. } = *self.saved.lock();
        if position == durable {
            return Ok(());
        }
        self.feed.save(NAME, &Checkpoint { position, accounts: Vec::new() }).await?;
        let checkpoint = IndexCheckpoint { identity: self.identity, position };
        self.index.save(self.progress.series, checkpoint.to_bytes()).await?;
        self.progress.is_removal_unsaved.store(false, Ordering::Relaxed);
        let mut saved = self.saved.lock();
        (saved.durable, saved.at) = (position, Instant::now());
        Ok(())
    }

    async fn save_revisions(&self, wanted: &[(AccountId, Revision)]) -> Result<(), Error> {
        let accounts: Vec<AccountId> = wanted.iter().map(|(account, _)| *account).collect();
        let known = self.index.revisions(self.progress.series, &accounts).await?;
        for ((account, revision), known) in wanted.iter().zip(known) {
            // What had no email was not written by the handler. An account that was reset is erased already.
            if *revision > known {
                let batch = Batch { revision: Some(*revision), ..Batch::default() };
                self.index.write(self.progress.series, *account, batch).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Feed for IndexFeed {
    async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
        self.feed.touched(after, limit).await
    }

    async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        self.feed.follow(account, request).await
    }

    async fn checkpoint(&self, _: &str, accounts: &[AccountId]) -> Result<Checkpoint, Error> {
        let position = self.saved.lock().position;
        let revisions = self.index.revisions(self.progress.series, accounts).await?;
        Ok(Checkpoint { position, accounts: accounts.iter().copied().zip(revisions).collect() })
    }

    /// Not durable: what is lost with the process is in no commit of the index either, and is handled again.
    async fn save(&self, _: &str, checkpoint: &Checkpoint) -> Result<(), Error> {
        self.save_revisions(&checkpoint.accounts).await?;
        let is_due = {
            let mut saved = self.saved.lock();
            saved.position = checkpoint.position;
            saved.at.elapsed() >= POSITION_INTERVAL
        };
        // An email that was removed, and comes back by a restore, is found again only if the restore is noticed.
        if is_due || self.progress.is_removal_unsaved.load(Ordering::Relaxed) {
            self.save_position().await?;
        }
        Ok(())
    }

    async fn forget(&self, follower: &str) -> Result<(), Error> {
        Err(Error::invalid(format!("the checkpoint of {follower} is in the search index: clear that")))
    }

    async fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        self.feed.followers().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_read_back_and_others_are_none() {
        let checkpoint = IndexCheckpoint {
            identity: Identity(std::array::from_fn(|n| n as u8)),
            position: Position::from_bytes([0, 0, 0, 0, 0, 1, 2, 3]),
        };
        let bytes = checkpoint.to_bytes();
        assert_eq!(IndexCheckpoint::from_bytes(&bytes), Some(checkpoint));
        let mut other = bytes.to_vec();
        other[0] = 9;
        assert_eq!(IndexCheckpoint::from_bytes(&other), None);
        for end in 0..bytes.len() {
            assert_eq!(IndexCheckpoint::from_bytes(&bytes[..end]), None);
        }
        assert_eq!(IndexCheckpoint::from_bytes(&[&bytes[..], b"x"].concat()), None);
    }
}
