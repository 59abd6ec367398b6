//! A connection that is ready for messages.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use restante_mail::queue::{Notify, Reply, Return};
use restante_mail_wire::smtp::peer::{
    AddressError, Extensions, MailCommand, Notified, PeerReply, RcptCommand, write_data, write_mail, write_rcpt,
};
use tokio::time::timeout;
use tracing::warn;

use super::{
    config::Times,
    fit::{self, Fitted},
    metrics::{MessageResult, RemoteMetrics},
    reply,
    wire::{Wire, WireError},
};
use crate::{Attempted, Connection, Outgoing, Recipient, Signer};

/// How long a server has to say goodbye, and to say why it breaks off.
const LAST_WORD: Duration = Duration::from_secs(5);
/// What ends a message.
const END: &[u8] = b".\r\n";

/// A connection to another server.
pub(super) struct SmtpConnection {
    pub(super) wire: Wire,
    pub(super) extensions: Extensions,
    /// The name of the server, for replies.
    pub(super) server: String,
    pub(super) times: Times,
    pub(super) signer: Arc<dyn Signer>,
    pub(super) metrics: RemoteMetrics,
    pub(super) is_open: bool,
    /// Whether the server has a transaction that was not finished.
    pub(super) needs_reset: bool,
}

/// The commands of an envelope.
struct Envelope {
    mail: Vec<u8>,
    /// Those for recipients, and the number of each.
    rcpts: Vec<(usize, Vec<u8>)>,
}

/// What became of the recipients so far.
struct Outcomes(Vec<Option<Reply>>);

impl Outcomes {
    /// Recipients whose addresses can't be written have an outcome at once.
    fn new(recipients: &[Recipient], has_smtputf8: bool) -> Self {
        let of = |recipient: &Recipient| {
            fit::problem_of(&recipient.address).or_else(|| {
                let is_possible = fit::address(&recipient.address, has_smtputf8).is_some();
                (!is_possible).then(|| fit::no_utf8("the address"))
            })
        };
        Self(recipients.iter().map(of).collect())
    }

    fn is_open(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(Option::is_none)
    }

    fn has_open(&self) -> bool {
        self.0.iter().any(Option::is_none)
    }

    fn set(&mut self, index: usize, reply: Reply) {
        if let Some(outcome) = self.0.get_mut(index) {
            *outcome = Some(reply);
        }
    }

    /// The outcome of all that have none.
    fn set_open(&mut self, reply: &Reply) {
        for outcome in &mut self.0 {
            outcome.get_or_insert_with(|| reply.clone());
        }
    }
}

#[async_trait]
impl Connection for SmtpConnection {
    async fn send(&mut self, message: &Outgoing, recipients: &[Recipient]) -> Vec<Attempted> {
        let mut outcomes = Outcomes::new(recipients, self.extensions.has_smtputf8);
        let time = self.times.message;
        let sending = Box::pin(self.transmit(message, recipients, &mut outcomes));
        if timeout(time, sending).await.is_err() {
            self.is_open = false;
            outcomes.set_open(&WireError::TimedOut.reply("it received the message"));
        }
        let has_dsn = self.extensions.has_dsn;
        let attempted = outcomes.0.into_iter().map(|outcome| {
            let reply = outcome.unwrap_or_else(|| Reply::own(451, "4.3.0", "the recipient was not tried"));
            self.metrics.count_recipient(MessageResult::of(&reply));
            Attempted { is_reported_further: has_dsn && reply.is_success(), reply }
        });
        attempted.collect()
    }

    fn is_open(&self) -> bool {
        self.is_open
    }

    async fn close(mut self: Box<Self>) {
        if self.is_open && self.wire.write(b"QUIT\r\n", LAST_WORD).await.is_ok() {
            let _ = self.wire.reply(LAST_WORD).await; // it may as well just close the connection
        }
    }
}

impl SmtpConnection {
    /// Sends a message, and leaves an outcome for each recipient.
    async fn transmit(&mut self, message: &Outgoing, recipients: &[Recipient], outcomes: &mut Outcomes) {
        if !outcomes.has_open() {
            return;
        }
        if !self.is_open || self.wire.has_unread() {
            // What nobody waits for would be taken for the reply to the next command.
            self.is_open = false;
            return outcomes.set_open(&WireError::Closed.reply("it had no message"));
        }
        let sent = match self.fitted(message).await {
            Ok(fitted) => self.converse(message, &fitted, recipients, outcomes).await,
            Err(reply) => return outcomes.set_open(&reply),
        };
        if let Err(reply) = sent {
            self.is_open = false;
            outcomes.set_open(&reply);
        }
    }

    /// The message as this server takes it, with its signatures.
    async fn fitted(&mut self, message: &Outgoing) -> Result<Fitted, Reply> {
        let mut fitted = fit::fit(message, &self.extensions)?;
        let to_sign = Outgoing { bytes: fitted.bytes.clone(), ..message.clone() };
        let signatures = self.signer.sign(&to_sign).await.map_err(|error| {
            warn!(%error, "a message can't be signed now");
            Reply::own(451, "4.3.0", "the message can't be signed now")
        })?;
        if !signatures.is_empty() {
            fitted.bytes = Bytes::from([&signatures[..], &fitted.bytes[..]].concat());
        }
        let size = fitted.bytes.len() as u64;
        if let Some(max) = self.extensions.size_max.filter(|max| *max < size) {
            let text = format!("the message has {size} bytes, and the server takes {max} at most");
            return Err(Reply::own(552, "5.3.4", text));
        }
        Ok(fitted)
    }

    /// The envelope and the message. An error ends the connection, and is the outcome of all recipients that have none.
    async fn converse(
        &mut self,
        message: &Outgoing,
        fitted: &Fitted,
        recipients: &[Recipient],
        outcomes: &mut Outcomes,
    ) -> Result<(), Reply> {
        let envelope = match self.envelope(message, fitted, recipients, outcomes) {
            Ok(envelope) => envelope,
            Err(error) => {
                outcomes.set_open(&Reply::own(553, "5.1.7", format!("the sender: {error}")));
                return Ok(());
            }
        };
        let reset: &[u8] = if self.needs_reset { b"RSET\r\n" } else { b"" };
        let is_pipelined = self.extensions.has_pipelining;
        if is_pipelined {
            let mut group = [reset, &envelope.mail].concat();
            envelope.rcpts.iter().for_each(|(_, rcpt)| group.extend_from_slice(rcpt));
            group.extend_from_slice(b"DATA\r\n");
            self.write(&group).await?;
        }
        if self.needs_reset {
            self.exchange(reset, is_pipelined, self.times.command).await?;
        }
        self.needs_reset = true;
        let mail = self.exchange(&envelope.mail, is_pipelined, self.times.command).await?;
        if !mail.is_success() {
            outcomes.set_open(&reply::of(&self.server, &mail));
            if !is_pipelined {
                return Ok(());
            }
        }
        for (index, command) in &envelope.rcpts {
            let rcpt = self.exchange(command, is_pipelined, self.times.command).await?;
            if outcomes.is_open(*index) && !rcpt.is_success() {
                outcomes.set(*index, reply::of_rcpt(&self.server, &rcpt));
            }
        }
        if !is_pipelined && !outcomes.has_open() {
            return Ok(());
        }
        let data = self.exchange(b"DATA\r\n", is_pipelined, self.times.data).await?;
        match data.code {
            354 if outcomes.has_open() => self.data(&fitted.bytes, outcomes).await,
            354 => self.no_data().await,
            400.. => {
                outcomes.set_open(&reply::of(&self.server, &data));
                Ok(())
            }
            _ => Err(reply::unexpected(&self.server, &data)),
        }
    }

    fn envelope(
        &self,
        message: &Outgoing,
        fitted: &Fitted,
        recipients: &[Recipient],
        outcomes: &Outcomes,
    ) -> Result<Envelope, AddressError> {
        let extensions = &self.extensions;
        let mut rcpts = Vec::with_capacity(recipients.len());
        let mut has_utf8_recipient = false;
        for (index, recipient) in recipients.iter().enumerate() {
            let address = fit::address(&recipient.address, extensions.has_smtputf8);
            let Some(address) = address.filter(|_| outcomes.is_open(index)) else { continue };
            has_utf8_recipient |= !address.is_ascii();
            let mut command = RcptCommand { recipient: &address, ..RcptCommand::default() };
            if extensions.has_dsn {
                command.notify = notified(recipient);
                command.original = recipient.original.as_deref();
            }
            let mut rcpt = Vec::new();
            write_rcpt(&command, &mut rcpt)?;
            rcpts.push((index, rcpt));
        }
        let returned = message.returned.map(|returned| match returned {
            Return::Full => "FULL",
            Return::Headers => "HDRS",
        });
        let command = MailCommand {
            sender: &fitted.sender,
            size: extensions.has_size.then_some(fitted.bytes.len() as u64),
            is_8bit: fitted.is_8bit,
            is_utf8: fitted.is_utf8 || has_utf8_recipient,
            returned: returned.filter(|_| extensions.has_dsn),
            envelope_id: message.envelope_id.as_deref().filter(|_| extensions.has_dsn),
        };
        let mut mail = Vec::new();
        write_mail(&command, &mut mail)?;
        Ok(Envelope { mail, rcpts })
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Reply> {
        let written = self.wire.write(bytes, self.times.command).await;
        written.map_err(|error| error.reply("it received commands"))
    }

    /// Sends a command, unless it was sent with its group, and returns the reply.
    async fn exchange(&mut self, command: &[u8], is_sent: bool, time: Duration) -> Result<PeerReply, Reply> {
        if !is_sent {
            self.write(command).await?;
        }
        let found = self.wire.reply(time).await.map_err(|error| {
            let word = command.get(..4).unwrap_or_default();
            error.reply(&format!("it replied to {}", String::from_utf8_lossy(word)))
        })?;
        if found.code == 421 {
            return Err(reply::of(&self.server, &found)); // RFC 5321 §3.8: it closes the connection
        }
        Ok(found)
    }

    /// Sends the message to the recipients that have no outcome: the server has accepted them.
    async fn data(&mut self, message: &[u8], outcomes: &mut Outcomes) -> Result<(), Reply> {
        let mut bytes = Vec::new();
        write_data(message, &mut bytes);
        let body = bytes.strip_suffix(END).unwrap_or(&bytes);
        let written = self.wire.write_blocks(body, self.times.block).await;
        let is_refused = match written {
            Ok(is_whole) => !is_whole || self.wire.has_unread(),
            Err(error) => return Err(self.last_word().await.unwrap_or_else(|| error.reply("it received the message"))),
        };
        if is_refused {
            let broken = || WireError::Closed.reply("it received the message");
            return Err(self.last_word().await.unwrap_or_else(broken));
        }
        let ended = self.wire.write(END, self.times.block).await;
        ended.map_err(|error| error.reply("it received the end of the message"))?;
        // From here on nobody knows whether the server has the message: it may arrive twice (RFC 5321 §4.2.5, RFC 1047).
        let end = self.wire.reply(self.times.end).await;
        let end = end.map_err(|error| error.reply("it replied to the message, which may arrive twice"))?;
        self.needs_reset = false;
        self.is_open = end.code != 421;
        outcomes.set_open(&reply::of(&self.server, &end));
        Ok(())
    }

    /// What a server says that does not wait for the end of a message. A success can't be meant: it does not have the message.
    async fn last_word(&mut self) -> Option<Reply> {
        let found = self.wire.reply(LAST_WORD).await.ok()?;
        let is_refusal = found.is_temporary() || found.is_permanent();
        let of = if is_refusal { reply::of } else { reply::unexpected };
        Some(of(&self.server, &found))
    }

    /// Ends a message for nobody: the server waits for one though it has accepted no recipient (RFC 2920 §3.1).
    async fn no_data(&mut self) -> Result<(), Reply> {
        self.write(END).await?;
        let end = self.wire.reply(self.times.end).await;
        end.map_err(|error| error.reply("it replied to no message"))?;
        Ok(())
    }
}

/// `NOTIFY`, if it is not what holds without it.
fn notified(recipient: &Recipient) -> Option<Notified> {
    let Notify { on_success, on_failure, on_delay } = recipient.notify;
    let is_default = recipient.notify == Notify::default();
    (!is_default).then_some(Notified { on_success, on_failure, on_delay })
}
