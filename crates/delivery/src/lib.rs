//! Delivery of outgoing mail: to other servers, and to accounts of this one.

pub mod auto_reply;
mod config;
mod metrics;
mod schedule;
mod seams;
mod sender;

pub use config::DeliveryConfig;
pub use metrics::SenderMetrics;
pub use seams::{
    Attempted, Connection, Local, NoticeAbout, NoticeKind, NoticeRecipient, Notices, Outgoing, PrepareError,
    Preparing, Recipient, Remote, Signer, Submissions,
};
pub use sender::{Sender, SenderHealth, SenderParts};
