//! The envelope: who sends a message, and to whom.

use std::{io, time::Duration};

use restante_mail_wire::smtp::{ForwardPath, MailParameters, Mailbox, Reply};
use restante_net::InFlight;
use tokio::time::sleep;

use super::{Client, Next, message::Incoming, wire::Wire};
use crate::{Protocol, Target, recipients::targets_of, refusal::Refusal};

const SENDER_OK: Reply<'_> = Reply::new(250, "2.1.0", "sender ok");
const RECIPIENT_OK: Reply<'_> = Reply::new(250, "2.1.5", "recipient ok");
const NO_HELLO: Reply<'_> = Reply::new(503, "5.5.1", "introduce yourself first");
const MAIL_ALREADY: Reply<'_> = Reply::new(503, "5.5.1", "a message has begun: use RSET to forget it");
const NO_MAIL: Reply<'_> = Reply::new(503, "5.5.1", "begin with MAIL FROM");
const NO_EXTENSIONS: Reply<'_> = Reply::new(555, "5.5.4", "parameters need EHLO");
const TOO_MANY_MESSAGES: Reply<'_> =
    Reply::new(450, "4.7.1", "too many messages from your address: try again later");
const TOO_MANY_UNKNOWN: Reply<'_> = Reply::new(421, "4.7.1", "closed: too many unknown recipients");

/// Unknown recipients of a connection that are answered at once.
const UNKNOWN_FREE: u32 = 2;
/// The most delays of one unknown recipient.
const UNKNOWN_DELAYS_MAX: u32 = 5;
/// Accounts that the recipients of one message lead to, at most: an alias may lead to 1,000.
const TARGETS_MAX: usize = 10_000;

/// A message from its `MAIL` command on.
pub(super) struct Transaction {
    /// Stands in the `Received` field, the reply and the journal.
    pub(super) id: String,
    /// Empty for `<>`.
    pub(super) sender: String,
    pub(super) parameters: MailParameters,
    /// Those that were accepted, in order, repeated ones too.
    pub(super) recipients: Vec<Recipient>,
    /// What chunks have brought.
    pub(super) incoming: Option<Incoming>,
    /// The connection is not closed for another one meanwhile.
    _in_use: InFlight,
}

/// A recipient that was accepted.
pub(super) struct Recipient {
    /// As the client wrote it.
    pub(super) address: String,
    pub(super) targets: Vec<Target>,
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
    pub(super) fn mail(
        &mut self,
        wire: &mut Wire,
        sender: Option<Mailbox<'_>>,
        parameters: MailParameters,
    ) -> Next {
        let Some(hello) = &self.hello else { return self.refuse(wire, NO_HELLO) };
        if self.transaction.is_some() {
            return self.refuse(wire, MAIL_ALREADY);
        }
        if !hello.is_extended && parameters != MailParameters::default() {
            return self.refuse(wire, NO_EXTENSIONS);
        }
        let bytes_max = self.server.config.message_bytes_max.get() as u64;
        if parameters.size.is_some_and(|size| size > bytes_max) {
            return self.refuse_sender(wire, sender, Refusal::TooBig.reply());
        }
        if !parameters.is_utf8 && sender.is_some_and(|sender| !sender.is_ascii()) {
            return self.refuse_sender(wire, sender, Refusal::NeedsUtf8.reply());
        }
        if self.protocol == Protocol::Smtp && !self.server.rates.admits_message(self.peer) {
            return self.refuse_sender(wire, sender, TOO_MANY_MESSAGES);
        }
        self.transaction = Some(Transaction {
            id: self.server.next_id(),
            sender: text_of(sender),
            parameters,
            recipients: Vec::new(),
            incoming: None,
            _in_use: self.activity.begin(),
        });
        wire.reply(SENDER_OK);
        Next::Command
    }

    fn refuse_sender(&self, wire: &mut Wire, sender: Option<Mailbox<'_>>, reply: Reply<'static>) -> Next {
        self.note_refused_sender(&text_of(sender), reply);
        wire.reply(reply);
        Next::Command
    }

    /// `RCPT`.
    pub(super) async fn rcpt(&mut self, wire: &mut Wire, path: ForwardPath<'_>) -> io::Result<Next> {
        let Some(transaction) = &self.transaction else { return Ok(self.refuse(wire, NO_MAIL)) };
        if transaction.incoming.is_some() {
            return Ok(self.refuse(wire, MAIL_ALREADY)); // its chunks have begun
        }
        let address = match path {
            ForwardPath::Postmaster => "postmaster".to_owned(),
            ForwardPath::Mailbox(mailbox) => mailbox.to_string(),
        };
        let accepted = self.accept(transaction, path).await;
        let refusal = accepted.as_ref().err().map(|refused| refused.refusal);
        self.server.metrics.count_recipient(self.protocol, refusal);
        let RefusedRecipient { refusal, target } = match accepted {
            Ok(targets) => {
                if let Some(transaction) = &mut self.transaction {
                    transaction.recipients.push(Recipient { address, targets });
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

    /// The accounts of a recipient, if the message may go to all of them.
    async fn accept(
        &self,
        transaction: &Transaction,
        path: ForwardPath<'_>,
    ) -> Result<Vec<Target>, RefusedRecipient> {
        let config = &self.server.config;
        if transaction.recipients.len() >= config.recipients_max.get() {
            return Err(Refusal::TooManyRecipients.into());
        }
        if let ForwardPath::Mailbox(mailbox) = path
            && !transaction.parameters.is_utf8
            && !mailbox.is_ascii()
        {
            return Err(Refusal::NeedsUtf8.into());
        }
        let targets = targets_of(&self.server, path).await?;
        let known: usize = transaction.recipients.iter().map(|recipient| recipient.targets.len()).sum();
        if known + targets.len() > TARGETS_MAX {
            return Err(Refusal::TooManyRecipients.into());
        }
        let bytes = transaction.parameters.size.unwrap_or_default();
        for target in targets.iter().filter(|target| target.quota_bytes.is_some()) {
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
        Ok(targets)
    }

    /// Answers an unknown recipient, ever later: who guesses addresses finds few.
    async fn slow_down(&mut self, wire: &mut Wire) -> io::Result<Next> {
        self.unknown = self.unknown.saturating_add(1);
        if !self.server.rates.admits_unknown(self.peer) {
            wire.reply(TOO_MANY_UNKNOWN);
            return Ok(Next::Close);
        }
        let delay = delay_of(self.unknown, Duration::from_millis(self.server.config.unknown_delay_ms));
        if !delay.is_zero() {
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

/// A sender as text; empty for `<>`.
fn text_of(sender: Option<Mailbox<'_>>) -> String {
    sender.map(|sender| sender.to_string()).unwrap_or_default()
}

/// How long the answer to an unknown recipient is held back: the how many-th of its connection it is, and the step.
fn delay_of(unknown: u32, step: Duration) -> Duration {
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
