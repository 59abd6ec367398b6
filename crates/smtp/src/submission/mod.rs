//! Submission: users send mail (RFC 6409, RFC 8314).

mod config;
pub(crate) mod message;

use std::sync::Arc;

use restante_core::Error;
use restante_directory::{Directory, random_secret};
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
    /// Queues submitted mail.
    pub outbox: Arc<dyn Outbox>,
    /// How much an account may send.
    pub limits: SendingLimits,
}

/// Submission in a running server.
pub(crate) struct Submission {
    pub(crate) config: SubmissionConfig,
    pub(crate) directory: Directory,
    pub(crate) outbox: Arc<dyn Outbox>,
    pub(crate) limits: SendingLimits,
    /// Makes the keys of messages differ from those of other servers and earlier runs.
    pub(crate) secret: String,
}

impl Submission {
    /// # Errors
    /// `Invalid` if the settings can't work; `Internal` if the system provides no random numbers.
    pub(crate) fn new(parts: SubmissionParts, has_tls: bool) -> Result<Self, Error> {
        let SubmissionParts { config, directory, outbox, limits } = parts;
        let wrong = |setting: &str, advice: &str| {
            Err(Error::invalid(format!("the setting submission.{setting} can't be used: {advice}")))
        };
        if let Some((setting, advice)) = config.problem() {
            return wrong(setting, &advice);
        }
        if let Some((setting, advice)) = config.missing_certificate(has_tls) {
            return wrong(setting, advice);
        }
        Ok(Self { config, directory, outbox, limits, secret: random_secret()? })
    }
}
