//! The doors of the server, each with the roles that it keeps things in and the commands for them.

pub(crate) mod mail;
pub(crate) mod waku;
