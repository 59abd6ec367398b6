//! Followers of change feeds: work that is done after a commit, in order, at least once, from a checkpoint.
//!
//! A [`Follower`] reads which accounts have changed, passes the changes of each to a [`Handler`] page by page, and saves its
//! position. A door never calls a search index or a push service: those are followers.
//!
//! - *At least once*: every commit is handled, even if the process ends at any moment. What was handled since the last save is
//!   repeated.
//! - *In order*: the pages of an account are handled in the order of its revisions. Between accounts there is no order.
//! - *Convergence*: a handler that applies all changes ends with the state of the store.
//! - *From zero*: an account that was never followed, whose history was removed below the checkpoint, or that is rebuilt, is
//!   reset first, and then all its records are passed as created.
//! - *Isolation*: an account that can't be followed waits and is tried again; others continue.
//! - *Fairness*: an account with many changes, or with new ones all the time, is followed some pages at a time; others are
//!   followed in between.

mod follower;
mod handler;
mod metrics;
mod stop;

pub use follower::{Follower, Settings};
pub use handler::{Handler, HandlerError};
pub use metrics::Metrics;
