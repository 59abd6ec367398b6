//! Delivery of outgoing mail: to other servers, and to accounts of this one.

mod seams;

pub use seams::{Attempted, Connection, Local, Outgoing, Recipient, Remote, Signer, Submissions};
