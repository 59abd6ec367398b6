//! The rules of RFC 8620 as a client sees them.

mod blobs;
mod chains;
mod mta_sts;
mod push;
pub(crate) mod push_service;
mod push_subscriptions;
mod requests;
mod session;
mod socket;
mod url_tokens;
mod writers;
