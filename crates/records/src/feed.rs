use async_trait::async_trait;

use crate::{AccountId, Changes, Error, Revision};

/// The most accounts that one page of [`Feed::touched`] has.
pub const TOUCHED_MAX: usize = 4_096;

/// The longest name of a follower.
pub const FOLLOWER_NAME_BYTES_MAX: usize = 64;

/// The number of a commit among those of all accounts of a store, from 1. 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// An account at the place of its last commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The place of its last commit.
    pub position: Position,
    /// The account.
    pub account: AccountId,
    /// The revision of that commit.
    pub revision: Revision,
}

/// How far a follower has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Every account whose last commit is at or before this is followed to its end.
    pub position: Position,
    /// For some accounts the revision up to which they are followed.
    pub accounts: Vec<(AccountId, Revision)>,
}

/// From where a follower goes on in an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Onward {
    /// What it has seen for certain.
    pub since: Revision,
    /// The account's revision at a moment when the follower had nothing of the account: it was never told of what was
    /// destroyed until then. 0 when it does not know.
    pub began: Revision,
    /// The most entries of a page, from 1 to [`crate::CHANGES_MAX`].
    pub limit: usize,
}

/// What followers of all accounts read, and where they note how far they are.
#[async_trait]
pub trait Feed: Send + Sync + 'static {
    /// The accounts whose last commit is after a position, in the order of those commits, `limit` at most. An account that
    /// changes again moves to the end: a page costs what it tells, not what was committed.
    ///
    /// # Errors
    /// `Invalid` for a limit of 0 or above [`TOUCHED_MAX`]; `Unavailable`.
    async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error>;

    /// [`crate::Records::changes`] of all kinds as a follower needs it; pages, orders and `has_more` are the same.
    ///
    /// - *Destroyed* has everything that was destroyed after [`Onward::since`], also what was created after it. A follower
    ///   that was told of a creation and stopped before it could save that asks with the old revision again, and would
    ///   otherwise keep a record that is gone meanwhile.
    /// - History that was forgotten is no obstacle as long as no floor of the account is above the larger of
    ///   [`Onward::since`] and [`Onward::began`]. So who begins at 0 walks through all that exists page by page, all of it
    ///   told as created first, however high the floors are.
    ///
    /// # Errors
    /// `NotFound`: a floor is above both; the follower drops what it has of the account and begins at 0. `Invalid`: `since`
    /// is above the account's revision, a limit of 0 or above [`crate::CHANGES_MAX`]. `Unavailable`.
    async fn follow(&self, account: AccountId, onward: &Onward) -> Result<Changes, Error>;

    /// The position of the last commit.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn position(&self) -> Result<Position, Error>;

    /// The position of a follower, and for each of these accounts the revision that was saved last; 0 when none was.
    ///
    /// # Errors
    /// `Invalid` for a name that is empty or longer than [`FOLLOWER_NAME_BYTES_MAX`], or more than [`TOUCHED_MAX`]
    /// accounts; `Unavailable`.
    async fn checkpoint(&self, follower: &str, accounts: &[AccountId]) -> Result<Checkpoint, Error>;

    /// Saves how far a follower is; accounts that are not named keep what they have. Durable and atomic.
    ///
    /// # Errors
    /// As [`Feed::checkpoint`], and those of a commit.
    async fn save(&self, follower: &str, checkpoint: &Checkpoint) -> Result<(), Error>;

    /// Forgets all about a follower, so that it begins from zero.
    ///
    /// # Errors
    /// Those of [`Feed::save`]; what was forgotten until then stays forgotten, the position first.
    async fn forget(&self, follower: &str) -> Result<(), Error>;

    /// The followers that have saved something, with their positions, ascending by name.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn followers(&self) -> Result<Vec<(String, Position)>, Error>;
}
