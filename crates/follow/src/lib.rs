//! Followers of change feeds: what is done after a commit, in order, at least once, from a checkpoint.
//!
//! A [`Follower`] reads which accounts have changed, hands the changes of each to a [`Handler`] page by page, and saves how
//! far it is. A door never calls a search index or a push service: those follow.
//!
//! - *At least once*: what was committed is handed on, also when the process ends at any moment. What was handed on since the
//!   last save comes again.
//! - *In order*: the pages of an account are handed on in the order of its revisions. Between accounts there is no order.
//! - *To the end*: a handler that does what it is told has at the end what the store has.
//! - *From zero*: an account that was never followed, whose history was forgotten below the checkpoint, or that is rebuilt, is
//!   reset first, and then told as created.
//! - *Apart*: an account that can't be followed waits and is tried again; others go on.
//! - *In turns*: an account that has much to tell, or more all the time, is followed some pages at a time; others have their
//!   turns in between.

mod follower;
mod handler;
mod metrics;
mod stop;

pub use follower::{Follower, Settings};
pub use handler::{Handler, HandlerError};
pub use metrics::Metrics;
