//! The SMTP and LMTP server: receives mail.
//!
//! [`SmtpDoor`] serves SMTP for other mail servers (port 25) and LMTP for a mail server in front of this one, over TCP and Unix
//! sockets. A message is stored durably before it is acknowledged, once for each recipient however often a peer repeats it. It
//! also serves submission for users (ports 587 and 465): what they send, and what an alias leads to another server, is queued
//! durably before it is acknowledged.
//!
//! The server uses traits, which tests replace: [`Recipients`] resolves addresses, [`Delivery`] stores a message in accounts, as
//! [`MailDelivery`] does in the mail of this server, [`Outbox`] queues what is sent, and [`ForwardSender`] rewrites the senders
//! of forwarded mail. `docs/design/smtp.md` describes the decisions.

mod config;
mod connection;
mod delivery;
mod door;
mod forwards;
mod journal;
mod limits;
mod local;
mod mail_delivery;
mod mail_quarantine;
mod memory;
mod metrics;
mod outbox;
mod quarantine;
mod recipients;
mod refusal;
mod submission;
mod trace;

pub use config::{LmtpAddress, LmtpConfig, SmtpConfig};
pub use delivery::{Delivered, Delivery, DeliveryError, ReceivedMail, Report};
pub use door::{Parts, SmtpDoor};
pub use forwards::{ForwardReports, ForwardSender, Forwarded, Forwards};
pub use journal::{
    About, DeliveryEntry, DeliveryJournal, Found, Journal, JournalConfig, JournalMetrics, Lookup, NotedReply,
    Outcome, queued_id,
};
pub use local::LocalDelivery;
pub use mail_delivery::MailDelivery;
pub use mail_quarantine::{MailQuarantine, Released};
pub use metrics::SmtpMetrics;
pub use outbox::{Outbox, QueueOutbox};
pub use quarantine::{Quarantine, QuarantinedAbout};
pub use recipients::{Recipients, Target, WithPostmasters};
pub use submission::{SubmissionConfig, SubmissionParts};

/// Which protocol a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// From other mail servers.
    Smtp,
    /// From a mail server in front of this one.
    Lmtp,
    /// From users, who begin TLS by STARTTLS (RFC 6409).
    Submission,
    /// From users, in TLS from the first byte (RFC 8314).
    Submissions,
}

impl Protocol {
    pub(crate) const ALL: [Self; 4] = [Self::Smtp, Self::Lmtp, Self::Submission, Self::Submissions];

    /// The value of the labels `protocol` and `listener`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Smtp => "smtp",
            Self::Lmtp => "lmtp",
            Self::Submission => "submission",
            Self::Submissions => "submissions",
        }
    }

    /// Whether users submit mail with it.
    pub const fn is_submission(self) -> bool {
        matches!(self, Self::Submission | Self::Submissions)
    }
}
