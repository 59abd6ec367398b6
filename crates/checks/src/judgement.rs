//! What the door asks, and what it is answered.

use std::net::IpAddr;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Authentication, ClientFacts};

/// A client of port 25.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it connects from.
    pub address: IpAddr,
    /// The name that it gave itself; empty before it did.
    pub hello: String,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
}

/// A message that was received whole, before it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'e> {
    /// Who sends it.
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
    /// It goes where it is addressed to.
    Accept,
    /// It goes to Junk, with the reason in one line.
    Junk(String),
    /// It is kept for the operator, who releases or drops it, with the reason in one line. The client hears that it was accepted.
    Quarantine(String),
    /// It is refused.
    Refuse(Refused),
}

/// A refusal: what the client hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// 4yz or 5yz.
    pub code: u16,
    /// The enhanced code (RFC 3463), as `5.7.1`.
    pub enhanced: &'static str,
    /// What the client hears, printable ASCII in one line of 400 bytes at most.
    pub text: String,
    /// Which check refuses: `dmarc`, `from`, `block_list`, `greylist`, `reverse`, `hello`, `filter`, `attachment`; a label of metrics.
    pub check: &'static str,
}

/// What a message was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What is done with it.
    pub verdict: Verdict,
    /// Header fields to put before the message, each ended by CRLF: `Authentication-Results` (RFC 8601).
    pub fields: String,
    /// What was found of its sender; none when it was not looked at.
    pub authentication: Option<Authentication>,
    /// What the filter said in one line, for the journal.
    pub filter: Option<String>,
}

/// What the door asks of each message that another server sends. No method fails, and each takes bounded time: what can't be found out in time is not held
/// against the sender.
#[async_trait]
pub trait SenderChecks: Send + Sync + 'static {
    /// Whether mail of a client is not checked at all: its address is exempt.
    fn is_exempt(&self, address: IpAddr) -> bool;

    /// Looks a client up when it connects: its name, and block lists. The door goes on talking meanwhile, and needs the answer at the first `RCPT`.
    async fn client(&self, address: IpAddr) -> ClientFacts;

    /// Whether a client may send from this envelope sender: checks of its name and of its address.
    ///
    /// # Errors
    /// The refusal that each `RCPT` of the message gets.
    async fn sender(&self, peer: &Peer, facts: &ClientFacts, sender: &str) -> Result<(), Refused>;

    /// Whether it may send to a recipient that exists: greylisting.
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

    /// Judges a message: `raw` is what the client sent, without fields of this server.
    async fn message(&self, envelope: Envelope<'_>, raw: Bytes) -> Judgement;

    /// Whether an `Authentication-Results` field with this value claims to be of this server (RFC 8601 §5): the door removes such fields from what comes
    /// from outside.
    fn claims_to_be_ours(&self, value: &[u8]) -> bool;
}
