//! Delivery of outgoing mail: to other servers, and to accounts of this one.

mod notices;
pub mod prepare;
mod seams;

pub use notices::ReportNotices;
pub use prepare::BlobPreparing;
pub use seams::{
    Attempted, Connection, Local, NoticeAbout, NoticeKind, NoticeRecipient, Notices, Outgoing, PrepareError,
    Preparing, Recipient, Remote, Signer, Submissions,
};
