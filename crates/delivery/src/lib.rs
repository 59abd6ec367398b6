//! Delivery of outgoing mail: to other servers, and to accounts of this one.

pub mod aggregate;
pub mod auto_reply;
mod config;
pub mod dkim;
pub mod domain_records;
mod dropped;
mod follower_metrics;
mod learning;
mod metrics;
mod notices;
pub mod prepare;
pub mod route;
mod schedule;
mod seams;
mod sender;
pub mod srs;
mod submission_follower;
mod submissions;
pub mod transport;
mod vacation;
mod vacation_reply;

pub use config::DeliveryConfig;
pub use dropped::note_dropped;
pub use follower_metrics::FollowerMetrics;
pub use learning::LearningFollower;
pub use metrics::SenderMetrics;
pub use notices::ReportNotices;
pub use prepare::BlobPreparing;
pub use restante_mail::queue::{Attempted, Outgoing, Recipient};
pub use seams::{
    Connection, Local, NotedOutcome, NoticeAbout, NoticeKind, NoticeRecipient, Notices, OutcomeLog,
    PrepareError, Preparing, RecipientOutcome, Remote, Signer, Submissions, SubmittedMessage,
};
pub use sender::{Sender, SenderHealth, SenderParts, decode_hint};
pub use submission_follower::SubmissionFollower;
pub use submissions::MailSubmissions;
pub use vacation::VacationFollower;
