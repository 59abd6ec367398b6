//! The rules of RFC 8620 as a client sees them.

mod blobs;
mod chains;
mod push;
mod requests;
mod session;
mod socket;
