//! What the console shows of mail: the server at a glance, and the page of an account.

mod account;
mod facts;
mod routes;

pub(crate) use facts::show;
pub(crate) use routes::{Pages, routes};
