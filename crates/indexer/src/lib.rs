//! The follower that keeps the search index: new emails are added, destroyed ones removed, some time after the commit.
//!
//! [`Indexer`] runs a [`restante_follow::Follower`] whose checkpoint is in the index itself, in one commit with the documents. So
//! an index that was lost, damaged or cleared begins from zero by itself, and what it lost in a crash is written again.
//! `docs/design/search.md` explains how.

mod compare;
mod emails;
mod feed;
mod indexer;
mod metrics;

pub use compare::{Difference, compare};
pub use indexer::Indexer;
pub use metrics::Metrics;
