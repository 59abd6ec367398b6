//! Connections that are ready for messages.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use restante_mail::queue::{Notify, Reply, Return};
use restante_mail_wire::smtp::peer::{
    AddressError, DATA_END, DataWriter, Extensions, MailCommand, Notified, PeerReply, RcptCommand,
    write_mail, write_rcpt,
};
use tokio::time::timeout;
use tracing::warn;

use super::{
    Origin,
    config::Times,
    fit::{self, Fitted},
    metrics::MessageResult,
    reply,
    wire::{Wire, WireError},
};
use crate::{Attempted, Connection, Outgoing, Recipient, Signer};

/// How long a server may take to answer `QUIT`, or to say why it breaks off.
const LAST_WORD: Duration = Duration::from_secs(5);
/// The bytes of a message that have the timeout of one block.
const BLOCK_BYTES: usize = 64 << 10;

/// A connection for messages to one domain. Some servers accept a number of messages on a connection and then close it: the next
/// message is sent over another one.
pub(super) struct RemoteConnection {
    origin: Arc<Origin>,
    domain: String,
    session: Session,
    /// Whether a message was sent in the session.
    is_used: bool,
}

/// A connection to another server.
pub(super) struct Session {
    pub(super) wire: Wire,
    pub(super) extensions: Extensions,
    /// The name of the server, for replies.
    pub(super) server: String,
    pub(super) times: Times,
    pub(super) signer: Arc<dyn Signer>,
    pub(super) is_open: bool,
    /// Whether the server has an unfinished transaction.
    pub(super) needs_reset: bool,
    /// Whether the server has replied to the `MAIL` of the message.
    pub(super) has_replied: bool,
}

/// The commands of an envelope.
struct Envelope {
    mail: Vec<u8>,
    /// The commands for recipients, with the number of each.
    rcpts: Vec<(usize, Vec<u8>)>,
}

/// The outcomes of the recipients so far.
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

    /// Sets the outcome of all recipients that have none.
    fn set_open(&mut self, reply: &Reply) {
        for outcome in &mut self.0 {
            outcome.get_or_insert_with(|| reply.clone());
        }
    }
}

impl RemoteConnection {
    pub(super) fn new(origin: Arc<Origin>, domain: &str, session: Session) -> Self {
        Self { origin, domain: domain.to_owned(), session, is_used: false }
    }

    /// Sends a message over another connection.
    async fn send_anew(&mut self, message: &Outgoing, recipients: &[Recipient]) -> Vec<Attempted> {
        match Box::pin(self.origin.session(&self.domain)).await {
            Ok(session) => {
                self.session = session;
                self.session.send(message, recipients).await
            }
            Err(reply) => {
                self.session.is_open = false;
                recipients
                    .iter()
                    .map(|_| Attempted {
                        reply: reply.clone(),
                        is_reported_further: false,
                        is_forwarded: false,
                    })
                    .collect()
            }
        }
    }
}

#[async_trait]
impl Connection for RemoteConnection {
    async fn send(&mut self, message: &Outgoing, recipients: &[Recipient]) -> Vec<Attempted> {
        let is_silent = self.session.is_open && !self.session.wire.has_unread();
        let mut attempted = match self.is_used && self.session.is_open && !is_silent {
            true => self.send_anew(message, recipients).await,
            false => self.session.send(message, recipients).await,
        };
        // The server had closed the connection, or closed it instead of replying to the first command.
        if self.is_used && is_silent && !self.session.is_open && !self.session.has_replied {
            attempted = self.send_anew(message, recipients).await;
        }
        self.is_used = true;
        for recipient in &attempted {
            self.origin.metrics.count_recipient(MessageResult::of(&recipient.reply));
        }
        attempted
    }

    fn is_open(&self) -> bool {
        self.session.is_open
    }

    async fn close(mut self: Box<Self>) {
        let Session { wire, is_open, .. } = &mut self.session;
        if *is_open && wire.write(b"QUIT\r\n", LAST_WORD).await.is_ok() {
            let _ = wire.reply(LAST_WORD).await; // or it just closes the connection
        }
    }
}

impl Session {
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
            Attempted { is_reported_further: has_dsn && reply.is_success(), is_forwarded: false, reply }
        });
        attempted.collect()
    }

    /// Sends a message, and sets an outcome for each recipient.
    async fn transmit(&mut self, message: &Outgoing, recipients: &[Recipient], outcomes: &mut Outcomes) {
        self.has_replied = false;
        if !outcomes.has_open() {
            return;
        }
        if !self.is_open || self.wire.has_unread() {
            // An unexpected reply would be taken for the reply to the next command.
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
        let mut fitted = fit::fit(message, &self.extensions).await?;
        let to_sign = Outgoing { bytes: fitted.bytes.clone(), ..message.clone() };
        fitted.signatures = self.signer.sign(&to_sign).await.map_err(|error| {
            warn!(%error, "a message can't be signed now");
            Reply::own(451, "4.3.0", "the message can't be signed now")
        })?;
        let size = fitted.size();
        if let Some(max) = self.extensions.size_max.filter(|max| *max < size) {
            let text = format!("the message has {size} bytes, and the server takes {max} at most");
            return Err(Reply::own(552, "5.3.4", text));
        }
        Ok(fitted)
    }

    /// Sends the envelope and the message. An error ends the connection, and is the outcome of all recipients that have none.
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
        self.has_replied = true;
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
            354 if outcomes.has_open() => self.data(fitted, outcomes).await,
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
            size: extensions.has_size.then_some(fitted.size()),
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

    /// Sends a command, unless it was already sent with its group, and returns the reply.
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
    async fn data(&mut self, message: &Fitted, outcomes: &mut Outcomes) -> Result<(), Reply> {
        let refused = match self.body(message).await {
            Ok(true) => None,
            Ok(false) => Some(WireError::Closed),
            Err(error) => Some(error),
        };
        if let Some(error) = refused {
            return Err(self.last_word().await.unwrap_or_else(|| error.reply("it received the message")));
        }
        let ended = self.wire.write(DATA_END, self.times.block).await;
        ended.map_err(|error| error.reply("it received the end of the message"))?;
        // From here on it is unknown whether the server has the message: it may arrive twice (RFC 5321 §4.2.5, RFC 1047).
        let end = self.wire.reply(self.times.end).await;
        let end = end.map_err(|error| error.reply("it replied to the message, which may arrive twice"))?;
        self.needs_reset = false;
        self.is_open = end.code != 421;
        outcomes.set_open(&reply::of(&self.server, &end));
        Ok(())
    }

    /// Sends all but the end of a message. `false` when the server replies before that, or has closed the connection.
    async fn body(&mut self, message: &Fitted) -> Result<bool, WireError> {
        let (mut writer, mut block) = (DataWriter::default(), Vec::new());
        let pieces = message.signatures.chunks(BLOCK_BYTES).chain(message.bytes.chunks(BLOCK_BYTES));
        for piece in pieces {
            if self.wire.has_unread() {
                return Ok(false);
            }
            block.clear();
            writer.write(piece, &mut block);
            self.wire.write(&block, self.times.block).await?;
        }
        block.clear();
        writer.finish(&mut block);
        self.wire.write(&block, self.times.block).await?;
        Ok(!self.wire.has_unread())
    }

    /// The reply of a server that does not wait for the end of a message. It can't be a success: the server does not have the message.
    async fn last_word(&mut self) -> Option<Reply> {
        let found = self.wire.reply(LAST_WORD).await.ok()?;
        let is_refusal = found.is_temporary() || found.is_permanent();
        let of = if is_refusal { reply::of } else { reply::unexpected };
        Some(of(&self.server, &found))
    }

    /// Ends an empty message without recipients: the server waits for a message though it has accepted no recipient (RFC 2920 §3.1).
    async fn no_data(&mut self) -> Result<(), Reply> {
        self.write(DATA_END).await?;
        let end = self.wire.reply(self.times.end).await;
        end.map_err(|error| error.reply("it replied to no message"))?;
        Ok(())
    }
}

/// `NOTIFY`, if it differs from the default.
fn notified(recipient: &Recipient) -> Option<Notified> {
    let Notify { on_success, on_failure, on_delay } = recipient.notify;
    let is_default = recipient.notify == Notify::default();
    (!is_default).then_some(Notified { on_success, on_failure, on_delay })
}
