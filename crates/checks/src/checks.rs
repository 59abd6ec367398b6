//! All checks of a message together.

use std::net::IpAddr;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Authentication, ClientFacts, Envelope, Peer, Refused};

/// Finds out who sent a message: SPF, DKIM, ARC and DMARC.
#[async_trait]
pub trait Authenticating: Send + Sync + 'static {
    /// Looks at a message. What can't be found out now is [`crate::Outcome::TempError`].
    async fn authenticate(&self, envelope: Envelope<'_>, raw: &Bytes) -> Authentication;

    /// The `Authentication-Results` field (RFC 8601), ended by CRLF. Without `authentication` the message was not looked at in time.
    fn results(&self, envelope: Envelope<'_>, authentication: Option<&Authentication>) -> String;

    /// See [`crate::SenderChecks::claims_to_be_ours`].
    fn claims_to_be_ours(&self, value: &[u8]) -> bool;
}

/// Looks at a client before its message: its name, block lists, greylisting.
#[async_trait]
pub trait ClientChecking: Send + Sync + 'static {
    /// See [`crate::SenderChecks::client`].
    async fn client(&self, address: IpAddr) -> ClientFacts;

    /// Whether the name that a client gave itself is a name in the DNS or an address literal; true as well when that is not known now. Answered at once where
    /// the setting `hello` asks for nothing.
    async fn has_good_hello(&self, peer: &Peer) -> bool;

    /// See [`crate::SenderChecks::sender`].
    ///
    /// # Errors
    /// The refusal that each `RCPT` of the message gets.
    async fn sender(&self, peer: &Peer, facts: &ClientFacts, sender: &str) -> Result<(), Refused>;

    /// See [`crate::SenderChecks::recipient`].
    ///
    /// # Errors
    /// The refusal of this recipient, for now.
    async fn recipient(
        &self,
        peer: &Peer,
        facts: &ClientFacts,
        sender: &str,
        recipient: &str,
    ) -> Result<(), Refused>;
}
