//! Delivery of outgoing mail: to other servers, and to accounts of this one.

pub mod auto_reply;
mod seams;

pub use seams::{Attempted, Connection, Local, Outgoing, Recipient, Remote, Signer, Submissions};
