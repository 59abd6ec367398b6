//! Submission: users send mail (RFC 6409, RFC 8314).

mod config;
pub(crate) mod message;

use std::sync::Arc;

use restante_directory::Directory;
use restante_mail::sending::SendingLimits;

pub use self::config::SubmissionConfig;
use crate::Outbox;

/// What submission needs.
#[derive(Clone)]
pub struct SubmissionParts {
    /// The settings.
    pub config: SubmissionConfig,
    /// Log-ins, and the addresses that belong to an account. Its follower must run.
    pub directory: Directory,
    /// Takes what is submitted.
    pub outbox: Arc<dyn Outbox>,
    /// How much an account may send.
    pub limits: SendingLimits,
}

/// Submission in a running door.
pub(crate) struct Submission {
    pub(crate) config: SubmissionConfig,
    pub(crate) directory: Directory,
    pub(crate) outbox: Arc<dyn Outbox>,
    pub(crate) limits: SendingLimits,
    /// Makes the keys of messages differ from those of other servers and earlier runs.
    pub(crate) secret: String,
}
