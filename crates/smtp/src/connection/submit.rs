//! Submission: whose mail is accepted, and how it is queued.

use std::{io, mem, sync::Arc};

use restante_core::Error;
use restante_directory::{EmailAddress, Login};
use restante_mail::{
    queue::{self, NewMessage, NewRecipient, Source, SourceKind, Transmission},
    sending::{SendingLimit, SendingRefused},
};
use restante_mail_wire::smtp::{self, Hold, MailParameters, Mailbox, RcptParameters, Reply};
use restante_records::RecordId;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{
    Client, Next,
    commands::PARAMETER,
    envelope::{Recipient, RefusedSender, Transaction},
    message::Incoming,
    wire::Wire,
};
use crate::{
    Outcome,
    forwards::off_thread,
    metrics::MessageResult,
    refusal::Refusal,
    submission::{
        Submission,
        message::{Completed, Completion},
    },
};

const LOG_IN_FIRST: Reply<'_> = Reply::new(530, "5.7.0", "log in first");
const TLS_FIRST: Reply<'_> = Reply::new(530, "5.7.0", "begin TLS and log in first");
const FOREIGN_SENDER: Reply<'_> = Reply::new(553, "5.7.1", "the sender is no address of your account");
const HELD_TOO_LONG: Reply<'_> =
    Reply::new(501, "5.5.4", "the message can't be held for so long: EHLO says how long it can");

/// The additional data of a submitted message's envelope.
pub(super) struct Submitted {
    login: Arc<Login>,
    envelope_id: Option<String>,
    returned: Option<queue::Return>,
    /// When it is sent, in seconds since 1970.
    due: u64,
}

impl Client {
    /// Checks the client that submits a message and the parameters of its `MAIL`. `None` where mail is not submitted.
    ///
    /// # Errors
    /// The reply that refuses it.
    pub(super) async fn submitted(
        &self,
        sender: Option<Mailbox<'_>>,
        parameters: &MailParameters<'_>,
    ) -> Result<Option<Submitted>, RefusedSender> {
        let Some(submission) = self.submission() else { return Ok(None) };
        let login = match &self.session {
            Some(session) => session.login.clone(),
            None if self.may_log_in() => return Err(RefusedSender::Error(LOG_IN_FIRST)),
            None => return Err(RefusedSender::Error(TLS_FIRST)),
        };
        let now = self.now();
        let due = match (parameters.hold, submission.config.hold_seconds_max) {
            (None, _) => now,
            (Some(_), 0) => return Err(RefusedSender::Error(PARAMETER)),
            (Some(hold), max) => match end_of(hold, now) {
                due if due - now <= max => due,
                _ => return Err(RefusedSender::Error(HELD_TOO_LONG)),
            },
        };
        // A notification by a client, such as that a message was read (RFC 8098), has no sender.
        if let Some(sender) = sender {
            let checked = self.check_sender(submission, &login, sender).await;
            checked.map_err(RefusedSender::Noted)?;
        }
        if let Some((limit, _)) = submission.limits.reached(login.account) {
            return Err(RefusedSender::Noted(limited(limit).reply()));
        }
        let returned = parameters.returned.map(|returned| match returned {
            smtp::Return::Full => queue::Return::Full,
            smtp::Return::Headers => queue::Return::Headers,
        });
        let envelope_id = parameters.envelope_id.map(str::to_owned);
        Ok(Some(Submitted { login, envelope_id, returned, due }))
    }

    fn submission(&self) -> Option<&Submission> {
        self.server.submission.as_ref().filter(|_| self.protocol.is_submission())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.server.clock.now().seconds()).unwrap_or_default()
    }

    async fn check_sender(
        &self,
        submission: &Submission,
        login: &Login,
        sender: Mailbox<'_>,
    ) -> Result<(), Reply<'static>> {
        let Ok(address) = sender.to_string().parse::<EmailAddress>() else { return Err(FOREIGN_SENDER) };
        match submission.directory.may_send_as(login, &address).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(FOREIGN_SENDER),
            Err(error) => {
                self.server.log_failure("addresses of an account can't be looked up", &error);
                Err(Refusal::Away.reply())
            }
        }
    }

    /// Replies to a submitted message, after queueing it if it can be sent.
    pub(super) async fn submit(
        &mut self,
        wire: &mut Wire,
        transaction: Transaction,
        mut incoming: Incoming,
    ) -> io::Result<Next> {
        let (begun, bytes) = (Instant::now(), incoming.bytes());
        let received_id = incoming.message_id();
        let prepared = self.prepare_submitted(&transaction, &mut incoming).await;
        let message_id = match &prepared {
            Ok(prepared) => prepared.message_id.clone(),
            Err(_) => received_id,
        };
        let queued = match prepared {
            Ok(prepared) => Box::pin(self.queue_submitted(&transaction, prepared, incoming.digest())).await,
            Err(refusal) => Err(refusal),
        };
        let outcome = match queued {
            Ok(()) => Outcome::Queued,
            Err(refusal) => super::entries::refused(refusal.reply()),
        };
        self.note_submitted(&transaction, message_id.as_deref(), incoming.received_bytes, &outcome);
        let result = queued.map_or_else(MessageResult::of, |()| MessageResult::Queued);
        self.server.metrics.count_message(self.protocol, result);
        self.server.metrics.observe_message(self.protocol, bytes, begun.elapsed());
        match queued {
            Ok(()) => {
                self.errors = 0;
                wire.reply(Reply::new(250, "2.0.0", &format!("queued as {}", transaction.id)));
                Ok(Next::Command)
            }
            Err(refusal) => {
                wire.reply(refusal.reply());
                Ok(if refusal == Refusal::LoginOver { Next::Close } else { Next::Command })
            }
        }
    }

    async fn prepare_submitted(
        &self,
        transaction: &Transaction,
        incoming: &mut Incoming,
    ) -> Result<Completed, Refusal> {
        if let Some(refusal) = incoming.refusal {
            return Err(refusal);
        }
        let id = hex(self.id_of(transaction).get(..16).unwrap_or_default());
        let completion = Completion {
            at: incoming.trace_bytes,
            now: self.server.clock.now(),
            message_id: format!("{id}@{}", self.server.config.hostname),
        };
        let raw = mem::take(&mut incoming.raw);
        off_thread(raw.len(), move || completion.complete(raw)).await.unwrap_or(Err(Refusal::Away))
    }

    /// Queues a message. The order matters: nothing is counted or stored of a message that the client may not send.
    async fn queue_submitted(
        &self,
        transaction: &Transaction,
        prepared: Completed,
        digest: [u8; 32],
    ) -> Result<(), Refusal> {
        let (Some(submission), Some(submitted)) = (self.submission(), &transaction.submitted) else {
            return Err(Refusal::Away); // always present: MAIL was refused otherwise
        };
        let failed = |error: &Error| {
            self.server.log_failure("a submitted message could not be queued", error);
            Refusal::of_store(error.kind())
        };
        for author in &prepared.authors {
            let may_send = submission.directory.may_send_as(&submitted.login, author).await;
            if !may_send.map_err(|error| failed(&error))? {
                return Err(Refusal::ForeignAuthor);
            }
        }
        if !submission.directory.holds(&submitted.login).await.map_err(|error| failed(&error))? {
            return Err(Refusal::LoginOver);
        }
        let recipients = recipients_of(&transaction.recipients);
        let account = submitted.login.account;
        submission.limits.admit(account, recipients.len()).await.map_err(|refused| match refused {
            SendingRefused::Limited { limit, .. } => limited(limit),
            SendingRefused::TooManyRecipients { .. } => Refusal::TooManyForDay,
            SendingRefused::Failed(error) => failed(&error),
        })?;
        let is_wide = !transaction.sender.is_ascii()
            || recipients.iter().any(|recipient| !recipient.address.is_ascii());
        let has_wide_fields = prepared.transmission.is_utf8 && transaction.parameters.is_utf8;
        let transmission = Transmission { is_utf8: is_wide || has_wide_fields, ..prepared.transmission };
        let mut key = Sha256::new();
        key.update(self.id_of(transaction));
        key.update(digest);
        let size = prepared.raw.len() as u64;
        // The blob comes before the records that refer to it.
        let blob = submission.outbox.put(prepared.raw).await.map_err(|error| failed(&error))?;
        let message = NewMessage {
            source: Source {
                kind: SourceKind::Smtp,
                account: Some(account),
                record: RecordId(0),
                key: key.finalize().into(),
            },
            blob,
            size,
            sender: transaction.sender.clone(),
            envelope_id: submitted.envelope_id.clone(),
            returned: submitted.returned,
            transmission,
            due: submitted.due,
            recipients,
        };
        submission.outbox.queue(message).await.map_err(|error| failed(&error))
    }

    /// An id that no other message has, whether of this server, its earlier runs or other servers.
    fn id_of(&self, transaction: &Transaction) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.submission().map_or("", |submission| &submission.secret));
        hash.update(&transaction.id);
        hash.finalize().into()
    }
}

/// An accepted recipient of a submitted message.
pub(super) fn recipient_of(address: &str, parameters: RcptParameters<'_>) -> Recipient {
    let notify = parameters.notify.map(|notify| queue::Notify {
        on_success: notify.on_success,
        on_failure: notify.on_failure,
        on_delay: notify.on_delay,
    });
    let queued = NewRecipient {
        address: address.to_owned(),
        notify: notify.unwrap_or_default(),
        original: parameters.original.map(str::to_owned),
    };
    // Where an address of this server leads is looked up when the message is sent.
    Recipient { address: address.to_owned(), targets: Vec::new(), outside: None, queued: Some(queued) }
}

/// The recipients, each once.
fn recipients_of(recipients: &[Recipient]) -> Vec<NewRecipient> {
    let mut seen = std::collections::HashSet::new();
    let queued = recipients.iter().filter_map(|recipient| recipient.queued.as_ref());
    queued.filter(|recipient| seen.insert(recipient.address.as_str())).cloned().collect()
}

fn limited(limit: SendingLimit) -> Refusal {
    match limit {
        SendingLimit::Messages => Refusal::MessagesLimited,
        SendingLimit::Recipients => Refusal::RecipientsLimited,
    }
}

/// When a held message is sent; a time in the past counts as now.
fn end_of(hold: Hold, now: u64) -> u64 {
    match hold {
        Hold::For(seconds) => now.saturating_add(seconds),
        Hold::Until(time) => u64::try_from(time).unwrap_or_default().max(now),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
