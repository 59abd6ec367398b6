//! The console's data about mail: the overview of the server, outgoing mail, and the page of an account.

mod account;
mod facts;
mod outgoing;
mod routes;

pub(crate) use facts::show;
pub(crate) use outgoing::Outgoing;
pub(crate) use routes::{Pages, routes};
