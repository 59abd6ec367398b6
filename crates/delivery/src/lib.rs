//! Delivery of outgoing mail: to other servers, and to accounts of this one.

mod seams;

pub use seams::{
    Attempted, Connection, Local, NoticeAbout, NoticeKind, NoticeRecipient, Notices, Outgoing, PrepareError,
    Preparing, Recipient, Remote, Signer, Submissions,
};
