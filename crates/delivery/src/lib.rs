//! Delivery of outgoing mail: to other servers, and to accounts of this one.

pub mod auto_reply;
mod seams;

pub use seams::{
    Attempted, Connection, Local, NoticeAbout, NoticeKind, NoticeRecipient, Notices, Outgoing, PrepareError,
    Preparing, Recipient, Remote, Signer, Submissions,
};
