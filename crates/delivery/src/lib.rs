//! Delivery of outgoing mail: to other servers, and to accounts of this one.

pub mod auto_reply;
pub mod dkim;
mod seams;
pub mod srs;

pub use seams::{Attempted, Connection, Local, Outgoing, Recipient, Remote, Signer, Submissions};
