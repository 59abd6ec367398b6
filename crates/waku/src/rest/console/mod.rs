//! The console: a page that shows the server at a glance, and browses its messages.
//!
//! The page is a handful of files that are part of the binary. It shows what `GET /console/v1/state` tells, and else asks what
//! everybody may ask: the store for messages, the live stream for what arrives. Browsers get it where others get the list of
//! routes, at `/`. See [`super::token`] for who may see it.

mod cached;
mod days;
mod exposition;
mod history;
mod pages;
mod retention;
mod search;
mod state;

pub(crate) use pages::{VARY, file, is_wanted, page, redirect};
pub use retention::RetentionState;
pub(crate) use search::search;
pub(crate) use state::{Desk, state};

#[cfg(test)]
pub(crate) use search::SEARCH_NAMES;
