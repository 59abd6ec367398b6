//! Delivery of outgoing mail: to other servers, and to accounts of this one.

pub mod auto_reply;
pub mod dkim;
mod follower_metrics;
mod notices;
pub mod prepare;
mod seams;
pub mod srs;
mod submission_follower;
mod submissions;
mod vacation;
mod vacation_reply;

pub use follower_metrics::FollowerMetrics;
pub use notices::ReportNotices;
pub use prepare::BlobPreparing;
pub use seams::{
    Attempted, Connection, Local, NoticeAbout, NoticeKind, NoticeRecipient, Notices, Outgoing, PrepareError,
    Preparing, Recipient, Remote, Signer, Submissions,
};
pub use submission_follower::SubmissionFollower;
pub use submissions::MailSubmissions;
pub use vacation::VacationFollower;
