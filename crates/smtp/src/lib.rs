//! The SMTP and LMTP door: mail comes in.
//!
//! [`SmtpDoor`] serves SMTP for other mail servers (the role of port 25) and LMTP for a mail server that feeds this one, over TCP and
//! Unix sockets. A message is stored durably before it is acknowledged, once for each recipient however often a peer repeats it.
//!
//! The door uses two seams, which tests replace: [`Recipients`] says where mail for an address goes, [`Delivery`] stores a message
//! in accounts, as [`MailDelivery`] does in the mail of this server. `docs/design/smtp.md` describes the decisions.

mod config;
mod connection;
mod delivery;
mod door;
mod journal;
mod limits;
mod mail_delivery;
mod memory;
mod metrics;
mod recipients;
mod refusal;
mod trace;

pub use config::{LmtpAddress, LmtpConfig, SmtpConfig};
pub use delivery::{Delivered, Delivery, DeliveryError, ReceivedMail, Report};
pub use door::{Parts, SmtpDoor};
pub use journal::{
    About, DeliveryEntry, DeliveryJournal, Found, Journal, JournalConfig, JournalMetrics, Lookup, Outcome,
    RefusedWith,
};
pub use mail_delivery::MailDelivery;
pub use metrics::SmtpMetrics;
pub use recipients::{Recipients, Target};

/// Which protocol a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// With other mail servers.
    Smtp,
    /// With a mail server in front of this one.
    Lmtp,
}

impl Protocol {
    pub(crate) const ALL: [Self; 2] = [Self::Smtp, Self::Lmtp];

    /// The value of the labels `protocol` and `listener`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Smtp => "smtp",
            Self::Lmtp => "lmtp",
        }
    }
}
