//! The envelope: who sends a message, and to whom.

use std::{io, time::Duration};

use restante_checks::Refused;
use restante_mail::queue::NewRecipient;
use restante_mail_wire::smtp::{Body, ForwardPath, MailParameters, Mailbox, RcptParameters, Reply};
use restante_net::InFlight;
use tokio::time::sleep;

use super::{
    Client, Next,
    commands::PARAMETER,
    message::Incoming,
    submit::{Submitted, recipient_of},
    wire::Wire,
};
use crate::{
    Protocol, Target,
    recipients::{Destination, Outside, destination_of, submitted_to},
    refusal::Refusal,
};

const SENDER_OK: Reply<'_> = Reply::new(250, "2.1.0", "sender ok");
const RECIPIENT_OK: Reply<'_> = Reply::new(250, "2.1.5", "recipient ok");
const NO_HELLO: Reply<'_> = Reply::new(503, "5.5.1", "introduce yourself first");
const MAIL_ALREADY: Reply<'_> = Reply::new(503, "5.5.1", "a message has begun: use RSET to forget it");
const NO_MAIL: Reply<'_> = Reply::new(503, "5.5.1", "begin with MAIL FROM");
const NO_EXTENSIONS: Reply<'_> = Reply::new(555, "5.5.4", "parameters need EHLO");
const TOO_MANY_MESSAGES: Reply<'_> =
    Reply::new(450, "4.7.1", "too many messages from your address: try again later");
const TOO_MANY_UNKNOWN: Reply<'_> = Reply::new(421, "4.7.1", "closed: too many unknown recipients");

/// Unknown recipients of a connection that are answered without delay.
const UNKNOWN_FREE: u32 = 2;
/// The most delay steps of one unknown recipient.
const UNKNOWN_DELAYS_MAX: u32 = 5;
/// The most accounts that the recipients of one message lead to: an alias may lead to 1,000.
const TARGETS_MAX: usize = 10_000;

/// A message from its `MAIL` command on.
pub(super) struct Transaction {
    /// In the `Received` field, the reply and the journal.
    pub(super) id: String,
    /// Empty for `<>`.
    pub(super) sender: String,
    /// Those of the message; those of the envelope are in `submitted`.
    pub(super) parameters: MailParameters<'static>,
    /// The additional data of a submitted message's envelope.
    pub(super) submitted: Option<Submitted>,
    /// The accepted recipients, in order, including repeated ones.
    pub(super) recipients: Vec<Recipient>,
    /// The result of the sender's checks, once they have run.
    pub(super) sender_checked: Option<Result<(), Refused>>,
    /// What chunks have brought so far.
    pub(super) incoming: Option<Incoming>,
    /// While this is held, the connection is not closed in favour of another one, unless the client sends next to nothing.
    pub(super) in_use: Option<InFlight>,
    /// Whether the client has sent next to nothing for a long time: then its memory is given to messages that wait for some.
    pub(super) is_slow: bool,
}

/// A recipient that was accepted.
pub(super) struct Recipient {
    /// As the client wrote it.
    pub(super) address: String,
    pub(super) targets: Vec<Target>,
    pub(super) outside: Option<Outside>,
    /// As it is queued, if the message is submitted.
    pub(super) queued: Option<NewRecipient>,
}

impl Recipient {
    /// How many accounts and addresses it leads to.
    fn destinations(&self) -> usize {
        self.targets.len() + self.outside.as_ref().map_or(0, |outside| outside.addresses.len())
    }
}

/// A `MAIL` that is refused.
pub(super) enum RefusedSender {
    /// It counts as an error of the client.
    Error(Reply<'static>),
    /// It is noted in the journal.
    Noted(Reply<'static>),
}

/// A recipient that is refused.
struct RefusedRecipient {
    refusal: Refusal,
    /// The account that can't take the message.
    target: Option<Target>,
}

impl From<Refusal> for RefusedRecipient {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, target: None }
    }
}

impl Client {
    /// `MAIL`.
    pub(super) async fn mail(
        &mut self,
        wire: &mut Wire,
        sender: Option<Mailbox<'_>>,
        parameters: MailParameters<'_>,
    ) -> io::Result<Next> {
        Ok(match self.begin_transaction(sender, parameters).await {
            Ok(transaction) => {
                self.transaction = Some(transaction);
                wire.reply(SENDER_OK);
                Next::Command
            }
            Err(RefusedSender::Error(reply)) => self.refuse(wire, reply),
            Err(RefusedSender::Noted(reply)) => {
                self.note_refused_sender(&text_of(sender), reply);
                wire.reply(reply);
                Next::Command
            }
        })
    }

    async fn begin_transaction(
        &self,
        sender: Option<Mailbox<'_>>,
        parameters: MailParameters<'_>,
    ) -> Result<Transaction, RefusedSender> {
        let Some(hello) = &self.hello else { return Err(RefusedSender::Error(NO_HELLO)) };
        if self.transaction.is_some() {
            return Err(RefusedSender::Error(MAIL_ALREADY));
        }
        if !hello.is_extended && parameters != MailParameters::default() {
            return Err(RefusedSender::Error(NO_EXTENSIONS));
        }
        let is_submission = self.protocol.is_submission();
        let MailParameters { size, body, is_utf8, auth, returned, envelope_id, hold } = parameters;
        let has_others = auth.is_some() || returned.is_some() || envelope_id.is_some() || hold.is_some();
        // Messages to other servers are sent as lines.
        if if is_submission { body == Body::Binary } else { has_others } {
            return Err(RefusedSender::Error(PARAMETER));
        }
        let submitted = self.submitted(sender, &parameters).await?;
        let bytes_max = self.server.config.message_bytes_max.get() as u64;
        if size.is_some_and(|size| size > bytes_max) {
            return Err(RefusedSender::Noted(Refusal::TooBig.reply()));
        }
        if !is_utf8 && sender.is_some_and(|sender| !sender.is_ascii()) {
            return Err(RefusedSender::Noted(Refusal::NeedsUtf8.reply()));
        }
        if self.protocol == Protocol::Smtp && !self.server.rates.admits_message(self.peer) {
            return Err(RefusedSender::Noted(TOO_MANY_MESSAGES));
        }
        Ok(Transaction {
            id: self.server.next_id(),
            sender: text_of(sender),
            parameters: MailParameters { size, body, is_utf8, ..MailParameters::default() },
            submitted,
            recipients: Vec::new(),
            sender_checked: None,
            incoming: None,
            in_use: Some(self.activity.begin()),
            is_slow: false,
        })
    }

    /// `RCPT`.
    pub(super) async fn rcpt(
        &mut self,
        wire: &mut Wire,
        path: ForwardPath<'_>,
        parameters: RcptParameters<'_>,
    ) -> io::Result<Next> {
        let Some(transaction) = &self.transaction else { return Ok(self.refuse(wire, NO_MAIL)) };
        if transaction.incoming.is_some() {
            return Ok(self.refuse(wire, MAIL_ALREADY)); // its chunks have begun
        }
        if parameters != RcptParameters::default() && !self.protocol.is_submission() {
            return Ok(self.refuse(wire, PARAMETER));
        }
        let address = match path {
            ForwardPath::Postmaster => "postmaster".to_owned(),
            ForwardPath::Mailbox(mailbox) => mailbox.to_string(),
        };
        let accepted = match self.protocol.is_submission() {
            true => self.accept_submitted(transaction, path, parameters).await,
            false => self.accept(transaction, path, &address).await,
        };
        // A recipient that does not exist is answered earlier, so no check is spent on it. RFC 5321 §4.5.1: a client that the
        // checks refuse can still write to the postmaster.
        if accepted.is_ok()
            && !is_postmaster(&address)
            && let Err(refused) = self.check_recipient_of_client(&address).await
        {
            self.server.metrics.count_checked_recipient(self.protocol, refused.check);
            self.note_checked_recipient(&address, &refused);
            wire.reply(Reply::new(refused.code, refused.enhanced, &refused.text));
            return Ok(Next::Command);
        }
        let refusal = accepted.as_ref().err().map(|refused| refused.refusal);
        self.server.metrics.count_recipient(self.protocol, refusal);
        let RefusedRecipient { refusal, target } = match accepted {
            Ok(recipient) => {
                if let Some(transaction) = &mut self.transaction {
                    transaction.recipients.push(recipient);
                }
                wire.reply(RECIPIENT_OK);
                return Ok(Next::Command);
            }
            Err(refused) => refused,
        };
        self.note_refused_recipient(&address, refusal, target.as_ref());
        if refusal == Refusal::Unknown && self.protocol == Protocol::Smtp {
            return self.slow_down(wire).await;
        }
        wire.reply(refusal.reply());
        Ok(Next::Command)
    }

    /// The checks that apply to all recipients.
    fn check_recipient(&self, transaction: &Transaction, path: ForwardPath<'_>) -> Result<(), Refusal> {
        if transaction.recipients.len() >= self.server.config.recipients_max.get() {
            return Err(Refusal::TooManyRecipients);
        }
        if let ForwardPath::Mailbox(mailbox) = path
            && !transaction.parameters.is_utf8
            && !mailbox.is_ascii()
        {
            return Err(Refusal::NeedsUtf8);
        }
        Ok(())
    }

    /// A recipient of a submitted message: at another server, or one that exists on this server.
    async fn accept_submitted(
        &self,
        transaction: &Transaction,
        path: ForwardPath<'_>,
        parameters: RcptParameters<'_>,
    ) -> Result<Recipient, RefusedRecipient> {
        self.check_recipient(transaction, path)?;
        let address = submitted_to(&self.server, path).await?;
        Ok(recipient_of(&address, parameters))
    }

    /// A recipient that leads to accounts, if the message may go to all of them, or elsewhere.
    async fn accept(
        &self,
        transaction: &Transaction,
        path: ForwardPath<'_>,
        address: &str,
    ) -> Result<Recipient, RefusedRecipient> {
        self.check_recipient(transaction, path)?;
        let Destination { targets, outside } = destination_of(&self.server, path).await?;
        let known: usize = transaction.recipients.iter().map(Recipient::destinations).sum();
        let recipient = Recipient { address: address.to_owned(), targets, outside, queued: None };
        if known + recipient.destinations() > TARGETS_MAX {
            return Err(Refusal::TooManyRecipients.into());
        }
        if let Some(outside) = &recipient.outside {
            if transaction.parameters.body == Body::Binary {
                return Err(Refusal::ForwardBinary.into());
            }
            if outside.is_return && !transaction.sender.is_empty() {
                return Err(Refusal::ReturnOnly.into());
            }
        }
        let bytes = transaction.parameters.size.unwrap_or_default();
        for target in recipient.targets.iter().filter(|target| target.quota_bytes.is_some()) {
            let refusal = match self.server.delivery.has_space(target, bytes).await {
                Ok(true) => continue,
                Ok(false) => self.server.over_quota(),
                Err(error) => {
                    self.server.log_failure("the use of an account can't be looked up", &error);
                    Refusal::of_store(error.kind())
                }
            };
            return Err(RefusedRecipient { refusal, target: Some(target.clone()) });
        }
        Ok(recipient)
    }

    /// Replies to an unknown recipient, each time later: a client that guesses addresses finds few.
    async fn slow_down(&mut self, wire: &mut Wire) -> io::Result<Next> {
        self.unknown = self.unknown.saturating_add(1);
        if !self.server.rates.admits_unknown(self.peer) {
            wire.reply(TOO_MANY_UNKNOWN);
            return Ok(Next::Close);
        }
        let delay = delay_of(self.unknown, Duration::from_millis(self.server.config.unknown_delay_ms));
        if !delay.is_zero() {
            self.note_idle(); // or clients that guess would keep all others out, for longer the more they guess
            wire.flush().await?;
            tokio::select! {
                () = sleep(delay) => {}
                () = self.stopping.begun() => {}
            }
        }
        wire.reply(Refusal::Unknown.reply());
        Ok(Next::Command)
    }

    pub(super) fn hello_name(&self) -> &str {
        self.hello.as_ref().map_or("", |hello| &hello.name)
    }
}

/// Whether an address is that of a postmaster.
fn is_postmaster(address: &str) -> bool {
    let local = address.rsplit_once('@').map_or(address, |(local, _)| local);
    local.eq_ignore_ascii_case("postmaster")
}

/// A sender as text; empty for `<>`.
fn text_of(sender: Option<Mailbox<'_>>) -> String {
    sender.map(|sender| sender.to_string()).unwrap_or_default()
}

/// How long the reply to an unknown recipient or a failed log-in is delayed: `unknown` is its number within the connection.
pub(super) fn delay_of(unknown: u32, step: Duration) -> Duration {
    step * unknown.saturating_sub(UNKNOWN_FREE).min(UNKNOWN_DELAYS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sm12_unknown_recipients_are_slowed_from_the_third() {
        let steps = |unknown| delay_of(unknown, Duration::from_secs(1)).as_secs();
        assert_eq!([1, 2, 3, 4, 7, 8, 1_000].map(steps), [0, 0, 1, 2, 5, 5, 5]);
    }
}
