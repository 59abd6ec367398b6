//! SMTP and LMTP over real sockets. Tests are named by the rules of `docs/design/mail-rules.md`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

mod checks;
mod commands;
mod data;
mod floods;
mod forwards;
mod limits;
mod lmtp;
mod log_ins;
mod mail;
mod outgoing;
mod recipients;
mod smuggling;
mod stop;
mod submitted;
mod support;
mod tls;
mod users;
