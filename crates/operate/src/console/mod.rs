//! The console: a page that shows the server at a glance, and browses its messages.
//!
//! The page is a handful of files that are part of the binary. It shows the answer of `GET /console/v1/state`, and otherwise uses
//! what doors serve: the store for messages, the live stream for new ones. Browsers get it at `/`, where other clients get the
//! list of routes.

pub mod cached;
pub mod exposition;
mod history;
mod pages;
pub(crate) mod state;

pub(crate) use pages::{VARY, file, is_wanted, page, redirect};
pub(crate) use state::{ConsoleState, state, watch};
