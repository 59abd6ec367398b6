//! The door over real sockets. Tests are named by the rules of `docs/design/mail-rules.md`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

mod commands;
mod data;
mod limits;
mod lmtp;
mod mail;
mod recipients;
mod stop;
mod support;
mod tls;
