//! The interface between the SMTP server and the checks.

use std::net::IpAddr;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Authentication, ClientFacts};

/// A client of port 25.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it connects from.
    pub address: IpAddr,
    /// The name in its greeting; empty before that.
    pub hello: String,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
}

/// A message that was received completely, before it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'e> {
    /// The client that sends it.
    pub peer: &'e Peer,
    /// What is known of that client.
    pub facts: &'e ClientFacts,
    /// The id that is in the `Received` field and in the journal.
    pub id: &'e str,
    /// The envelope sender, empty for `<>`.
    pub sender: &'e str,
    /// The recipients that were accepted, as the client wrote them.
    pub recipients: &'e [&'e str],
    /// When it was received, in seconds since 1970.
    pub received: u64,
}

/// What is done with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is delivered to its recipients.
    Accept,
    /// It goes to Junk, with the reason in one line.
    Junk(String),
    /// It is held for the operator, who releases or drops it, with the reason in one line. The client's reply is that it was accepted.
    Quarantine(String),
    /// It is refused.
    Refuse(Refused),
}

/// A refusal: the reply to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// 4yz or 5yz.
    pub code: u16,
    /// The enhanced code (RFC 3463), as `5.7.1`.
    pub enhanced: &'static str,
    /// The text for the client, printable ASCII in one line of at most 400 bytes.
    pub text: String,
    /// Which check refuses: `dmarc`, `from`, `block_list`, `greylist`, `reverse`, `hello`, `filter`, `attachment`; a label of metrics.
    pub check: &'static str,
}

/// The result of the checks of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What is done with it.
    pub verdict: Verdict,
    /// Header fields to put before the message, each ended by CRLF: `Authentication-Results` (RFC 8601).
    pub fields: String,
    /// The results about its sender; `None` if they were not examined.
    pub authentication: Option<Authentication>,
    /// The filter's verdict in one line, for the journal.
    pub filter: Option<String>,
}

/// The checks of each message from another server. No method fails, and each takes bounded time: what can't be found out in time
/// is not held against the sender.
#[async_trait]
pub trait SenderChecks: Send + Sync + 'static {
    /// Whether a client is exempt, so that none of its mail is checked.
    fn is_exempt(&self, address: IpAddr) -> bool;

    /// Looks a client up when it connects: its name, and block lists. The SMTP dialogue continues meanwhile, and needs the result
    /// at the first `RCPT`.
    async fn client(&self, address: IpAddr) -> ClientFacts;

    /// Whether a client may use this envelope sender: checks of its name and of its address.
    ///
    /// # Errors
    /// The refusal that each `RCPT` of the message gets.
    async fn sender(&self, peer: &Peer, facts: &ClientFacts, sender: &str) -> Result<(), Refused>;

    /// Whether it may send to a recipient that exists: greylisting.
    ///
    /// # Errors
    /// The temporary refusal of this recipient.
    async fn recipient(
        &self,
        peer: &Peer,
        facts: &ClientFacts,
        sender: &str,
        recipient: &str,
    ) -> Result<(), Refused>;

    /// Judges a message: `raw` is what the client sent, without fields of this server.
    async fn message(&self, envelope: Envelope<'_>, raw: Bytes) -> Judgement;

    /// Whether an `Authentication-Results` field with this value claims to be from this server (RFC 8601 §5): the SMTP server
    /// removes such fields from mail from outside.
    fn claims_to_be_ours(&self, value: &[u8]) -> bool;
}
