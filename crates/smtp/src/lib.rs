//! The SMTP and LMTP door: mail comes in.
//!
//! [`SmtpDoor`] serves SMTP for other mail servers (the role of port 25) and LMTP for a mail server that feeds this one, over TCP and
//! Unix sockets. A message is stored durably before it is acknowledged, once for each recipient however often a peer repeats it. It serves
//! submission for users, too (ports 587 and 465): what they send, and what an alias leads to another server, is queued durably before it is
//! acknowledged.
//!
//! The door uses seams, which tests replace: [`Recipients`] says where mail for an address goes, [`Delivery`] stores a message
//! in accounts, as [`MailDelivery`] does in the mail of this server, [`Outbox`] queues what is sent, and [`ForwardSender`] rewrites the
//! senders of forwarded mail. `docs/design/smtp.md` describes the decisions.

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
    /// With other mail servers.
    Smtp,
    /// With a mail server in front of this one.
    Lmtp,
    /// With users, who begin TLS by STARTTLS (RFC 6409).
    Submission,
    /// With users, in TLS from the first byte (RFC 8314).
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

    /// Whether users submit mail by it.
    pub const fn is_submission(self) -> bool {
        matches!(self, Self::Submission | Self::Submissions)
    }
}
