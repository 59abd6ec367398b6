//! The interfaces that the sender of the queue works with. Tests and the simulation replace each of them.

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::Error;
use restante_mail::queue::{
    Attempted, NewMessage, Outgoing, QueuedMessage, Recipient, Reply, Return, Transmission,
};
use restante_records::{AccountId, RecordId};

/// Other servers.
#[async_trait]
pub trait Remote: Send + Sync + 'static {
    /// A connection to a server that takes mail for a domain (RFC 5321 §5), after the greeting, ready for `MAIL`.
    ///
    /// # Errors
    /// The reply for all recipients of the domain: 4yz if it is to be tried again, 5yz if the domain takes no mail.
    async fn connect(&self, domain: &str) -> Result<Box<dyn Connection>, Reply>;
}

/// A connection to another server.
#[async_trait]
pub trait Connection: Send {
    /// Transmits a message, and returns the outcome of each recipient, in their order. At most 100 recipients.
    async fn send(&mut self, message: &Outgoing, recipients: &[Recipient]) -> Vec<Attempted>;

    /// Whether another message can be sent.
    fn is_open(&self) -> bool;

    /// Ends the session with the server, in bounded time.
    async fn close(self: Box<Self>);
}

/// The accounts of this server.
#[async_trait]
pub trait Local: Send + Sync + 'static {
    /// Whether mail for a domain stays on this server.
    ///
    /// # Errors
    /// When this can't be determined now.
    async fn is_local(&self, domain: &str) -> Result<bool, Error>;

    /// Places a message in the accounts that an address leads to: exactly once in each, even if the call is repeated.
    async fn deliver(&self, message: &Outgoing, recipient: &Recipient) -> Attempted;
}

/// Submissions of JMAP, whose records say whether they are still to be sent.
#[async_trait]
pub trait Submissions: Send + Sync + 'static {
    /// Makes a submission final before its first attempt; `false` when it was canceled, and nothing of it may be sent.
    ///
    /// # Errors
    /// Those of the records; the attempt is made later.
    async fn release(&self, account: AccountId, submission: RecordId) -> Result<bool, Error>;

    /// Records the outcome for a recipient in its `deliveryStatus`. Repeating it changes nothing. It is no error if the submission is gone.
    /// `is_local` if the message was placed in an account of this server.
    ///
    /// # Errors
    /// Those of the records; the outcome is recorded again with the next attempt.
    async fn report(
        &self,
        account: AccountId,
        submission: RecordId,
        recipient: &str,
        reply: &Reply,
        is_local: bool,
    ) -> Result<(), Error>;
}

/// Signs outgoing mail.
#[async_trait]
pub trait Signer: Send + Sync + 'static {
    /// The header fields to put before a message, each ended by CRLF: the signatures of the domain in its `From` field (RFC 6376),
    /// empty if that domain has no key here.
    ///
    /// # Errors
    /// When keys can't be read now; the attempt is made later.
    async fn sign(&self, message: &Outgoing) -> Result<Vec<u8>, Error>;
}

/// Why a message can't be transmitted as it is.
#[derive(Debug)]
pub enum PrepareError {
    /// Its bytes can't be read now: the attempt is made later, and does not count.
    Later(Error),
    /// It can never be transmitted; its sender gets this reply: `5.6.0` for a message that has no form in which it could leave.
    Never(Reply),
    /// It can't be read though the store works, for example because its blob is gone: tried some times, then held for the operator.
    Broken(Error),
}

/// Prepares stored messages for transmission.
#[async_trait]
pub trait Preparing: Send + Sync + 'static {
    /// The message as it is transmitted, with SMTP line ends; if it was submitted by JMAP, without `Bcc`, and with `Date` and `Message-ID`.
    ///
    /// # Errors
    /// See [`PrepareError`].
    async fn prepare(&self, message: &QueuedMessage) -> Result<Outgoing, PrepareError>;

    /// The Message-ID of a message that is not prepared, without brackets; `None` when it has none or can't be read now.
    async fn message_id(&self, message: &QueuedMessage) -> Option<String>;
}

/// The outcome for a recipient in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecipientOutcome<'r> {
    /// It was delivered, with this reply.
    Delivered(&'r Reply),
    /// It will be tried again.
    Postponed(&'r Reply),
    /// It will not be tried any more.
    Failed(&'r Reply),
    /// Its sender gets a report.
    Reported {
        /// The kind of report.
        kind: NoticeKind,
        /// The [`key`](restante_mail::queue::Source::key) of the report, which is itself in the queue.
        report: &'r [u8; 32],
    },
    /// It was dropped from the queue.
    Dropped {
        /// Who dropped it, in one line.
        by: &'r str,
    },
}

/// An outcome for the operators of the server.
#[derive(Clone, Copy, Debug)]
pub struct NotedOutcome<'r> {
    /// The message.
    pub message: &'r QueuedMessage,
    /// Its Message-ID, without brackets.
    pub message_id: Option<&'r str>,
    /// The address of the recipient.
    pub recipient: &'r str,
    /// Whether the attempt was to place it in an account of this server.
    pub is_local: bool,
    /// The outcome.
    pub outcome: RecipientOutcome<'r>,
}

/// A submission of JMAP that left the outbox, for the operators of the server.
#[derive(Clone, Copy, Debug)]
pub struct SubmittedMessage<'m> {
    /// The message.
    pub message: &'m NewMessage,
    /// Its Message-ID, without brackets.
    pub message_id: Option<&'m str>,
    /// Why it can never be queued; `None` when it is in the queue.
    pub refused: Option<&'m Reply>,
}

/// Records the outcomes of outgoing mail for operators.
pub trait OutcomeLog: Send + Sync + 'static {
    /// Records a submission of JMAP. As with [`OutcomeLog::note`], the entry may be lost, or may be there twice after a crash.
    fn submitted(&self, submitted: SubmittedMessage<'_>);

    /// Records an outcome. It does not block, and its memory is bounded: an entry may be lost, and that of an attempt which a crash
    /// repeats may be there twice.
    fn note(&self, noted: NotedOutcome<'_>);
}

/// The outcome that a report states (RFC 3464 §2.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// Delivery has ended without success.
    Failed,
    /// Delivery has not succeeded yet, and is still tried.
    Delayed,
    /// The message was delivered, and no other server will report this: `delivered` for an account of this server, else `relayed`.
    Delivered {
        /// Whether it was placed in an account of this server.
        is_local: bool,
    },
    /// The recipient leads to several addresses, some of them on other servers, and the message is forwarded to them (RFC 3461 §5.2.7.3).
    Expanded,
}

/// A recipient that a report is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeRecipient {
    /// The address.
    pub address: String,
    /// `ORCPT` as it was given.
    pub original: Option<String>,
    /// The last reply.
    pub reply: Reply,
    /// Why it is not tried any more although the last reply was temporary, in words of this server.
    pub expired: Option<String>,
    /// The attempts so far.
    pub attempts: u32,
    /// When the last one was made, in seconds since 1970.
    pub last_attempt: u64,
    /// Until when delivery is tried, in seconds since 1970; only for delayed recipients.
    pub will_retry_until: Option<u64>,
}

/// The content of a report: recipients of one message with the same outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeAbout {
    /// The [`key`](restante_mail::queue::Source::key) of the report, different for each report.
    pub key: [u8; 32],
    /// The outcome that is reported.
    pub kind: NoticeKind,
    /// The envelope sender, which gets the report; never empty.
    pub sender: String,
    /// `ENVID`.
    pub envelope_id: Option<String>,
    /// `RET`.
    pub returned: Option<Return>,
    /// When the message was queued, in seconds since 1970.
    pub arrived: u64,
    /// When the report is made, in seconds since 1970.
    pub now: u64,
    /// The message as it was to be transmitted; empty if it can't be read.
    pub original: Bytes,
    /// How its bytes may be transmitted.
    pub transmission: Transmission,
    /// Its recipients, one at least.
    pub recipients: Vec<NoticeRecipient>,
}

/// Writes reports (RFC 3464).
pub trait Notices: Send + Sync + 'static {
    /// The bytes of a report as a message, lines ended by CRLF, and how they may be transmitted. The same report gives the same bytes.
    fn compose(&self, about: &NoticeAbout) -> (Vec<u8>, Transmission);
}
