//! `restante domain`, `account`, `alias`, `token` and `log`: the directory, in the records of a stopped server or by a running one.

pub(crate) mod account;
pub(crate) mod alias;
pub(crate) mod dkim;
pub(crate) mod domain;
mod domain_records;
pub(crate) mod log;
pub(super) mod reach;
mod route;
pub(crate) mod setup;
pub(super) mod show;
pub(crate) mod token;

pub(crate) use dkim::keys_of as dkim_keys;
pub(in crate::doors::mail) use route::{check_request, parse_request, refusal};
pub(crate) use route::{dkim_route, routes};
