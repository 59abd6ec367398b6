//! Delivery of outgoing mail: to other servers, and to accounts of this one.

pub mod auto_reply;
pub mod dkim;
mod notices;
pub mod prepare;
pub mod route;
mod seams;
pub mod srs;
pub mod transport;

pub use notices::ReportNotices;
pub use prepare::BlobPreparing;
pub use seams::{
    Attempted, Connection, Local, NoticeAbout, NoticeKind, NoticeRecipient, Notices, Outgoing, PrepareError,
    Preparing, Recipient, Remote, Signer, Submissions,
};
