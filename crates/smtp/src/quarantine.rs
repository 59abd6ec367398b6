//! The trait between the SMTP server and the store of suspicious mail for the operator.

use std::net::IpAddr;

use async_trait::async_trait;
use restante_core::Error;

use crate::ReceivedMail;

/// Where a message came from, its recipients, and why it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedAbout {
    /// The id in our `Received` field, in our reply and in the journal.
    pub id: String,
    /// The client.
    pub peer: Option<IpAddr>,
    /// The name in the client's greeting.
    pub hello: String,
    /// The sender of the envelope; empty for `<>`.
    pub sender: String,
    /// The accepted recipients, as addresses, each once, `postmaster` with its domain. They are resolved again when the message
    /// is released: into accounts, and where an alias leads outside, into the queue.
    pub recipients: Vec<String>,
    /// Why, in one line of at most 400 bytes of printable ASCII.
    pub reason: String,
    /// Whether the client has declared SMTPUTF8.
    pub is_utf8: bool,
}

/// Stores mail for the operator, who releases or drops it.
#[async_trait]
pub trait Quarantine: Send + Sync + 'static {
    /// Stores a message: durably when this returns. The same [`ReceivedMail::digest`] from the same sender to the same recipients
    /// is stored once, however often a peer repeats it; to other recipients it is another message. `mail.raw` begins with our
    /// trace fields, and is delivered like that when it is released.
    ///
    /// # Errors
    /// `Full` if there is no space; others if it can't be stored now. The client is asked to try again, and repeating is safe.
    async fn keep(&self, mail: ReceivedMail, about: QuarantinedAbout) -> Result<(), Error>;
}
