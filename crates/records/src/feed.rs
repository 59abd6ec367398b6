use async_trait::async_trait;
use restante_core::Timestamp;

use crate::{AccountId, Changes, Error, Revision};

/// The most accounts that one page of [`Feed::touched`] has.
pub const TOUCHED_MAX: usize = 4_096;

/// The longest name of a follower.
pub const FOLLOWER_NAME_BYTES_MAX: usize = 64;

/// A position in the order of the commits of all accounts of a store. The default is before the first commit.
///
/// A later commit has a larger position. Nothing else follows from a position: there are gaps, so the difference of two positions
/// is not the number of commits between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub(crate) u64);

impl Position {
    /// The position as bytes, for a checkpoint that is stored elsewhere. The bytes sort as the positions do.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// Restores a position from [`Position::to_bytes`].
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }
}

/// The last commit of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Where it is among the commits of all accounts.
    pub position: Position,
    /// The account.
    pub account: AccountId,
    /// Its revision.
    pub revision: Revision,
    /// When it was made, by the clock of the server that made it, in milliseconds.
    pub committed_at: Timestamp,
}

/// The progress of a follower.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The follower has handled every account whose last commit is at or before this position.
    pub position: Position,
    /// For some accounts, the revision up to which the follower has handled them.
    pub accounts: Vec<(AccountId, Revision)>,
}

/// Which changes of an account a follower asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedRequest {
    /// The revision up to which the follower has handled the account.
    pub since: Revision,
    /// The account's revision at a moment when the follower had no data of the account, so that nothing destroyed until then
    /// matters to it. 0 when that is unknown.
    pub began: Revision,
    /// The most entries of a page, from 1 to [`crate::CHANGES_MAX`].
    pub limit: usize,
}

/// The changes of all accounts for followers, and their checkpoints.
///
/// A restore takes the checkpoints back together with the records. A follower that keeps its checkpoint or its results outside
/// the records must be rebuilt after a restore.
#[async_trait]
pub trait Feed: Send + Sync + 'static {
    /// The accounts whose last commit is after a position, in the order of those commits, at most `limit`. An account that
    /// changes again moves to the end, so the cost of a page depends on its length, not on the number of commits.
    ///
    /// # Errors
    /// `Invalid` for a limit of 0 or above [`TOUCHED_MAX`]; `Unavailable`.
    async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error>;

    /// Like [`crate::Records::changes`] for all kinds, but for a follower. Pages, order and `has_more` are the same.
    ///
    /// - *Destroyed* contains everything that was destroyed after [`FeedRequest::since`], including what was also created after
    ///   it. A follower may handle a creation and end before it can save its progress. It then asks with the old revision again,
    ///   and would otherwise keep a record that was destroyed meanwhile.
    /// - A `since` from which changes can't be calculated is no error as long as [`FeedRequest::began`] is at or above the first
    ///   revision from which they can. So a follower that begins at 0 gets everything that exists, page by page, first as
    ///   created, however much history was removed.
    ///
    /// # Errors
    /// `NotFound`: changes since that revision can't be calculated, as for [`crate::Records::changes`]; the follower drops its
    /// data of the account and begins at 0. `Invalid`: `since` is above the account's revision, a limit of 0 or above
    /// [`crate::CHANGES_MAX`]. `Unavailable`.
    async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error>;

    /// The position of a follower, and for each of these accounts the revision that was last saved, or 0.
    ///
    /// # Errors
    /// `Invalid` for a name that is empty or longer than [`FOLLOWER_NAME_BYTES_MAX`], or more than [`TOUCHED_MAX`]
    /// accounts; `Unavailable`.
    async fn checkpoint(&self, follower: &str, accounts: &[AccountId]) -> Result<Checkpoint, Error>;

    /// Saves the progress of a follower. Accounts that are not listed keep their revisions. Durable and atomic.
    ///
    /// # Errors
    /// As [`Feed::checkpoint`], and those of a commit.
    async fn save(&self, follower: &str, checkpoint: &Checkpoint) -> Result<(), Error>;

    /// Removes everything that a follower has saved, so that it starts from scratch.
    ///
    /// # Errors
    /// Those of [`Feed::save`]; what was removed until then stays removed. The position is removed first.
    async fn forget(&self, follower: &str) -> Result<(), Error>;

    /// The followers that have saved something, with their positions, sorted by name.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn followers(&self) -> Result<Vec<(String, Position)>, Error>;
}
