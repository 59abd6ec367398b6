//! Delivery of outgoing mail: to other servers, and to accounts of this one.

pub mod auto_reply;
mod follower_metrics;
mod seams;
mod submission_follower;
mod submissions;
mod vacation;
mod vacation_reply;

pub use follower_metrics::FollowerMetrics;
pub use seams::{
    Attempted, Connection, Local, NoticeAbout, NoticeKind, NoticeRecipient, Notices, Outgoing, PrepareError,
    Preparing, Recipient, Remote, Signer, Submissions,
};
pub use submission_follower::SubmissionFollower;
pub use submissions::MailSubmissions;
pub use vacation::VacationFollower;
