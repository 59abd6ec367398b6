//! What is written to the journal.

use restante_checks::Refused;
use restante_mail_wire::smtp::Reply;

use super::{
    Client,
    checks::refused_with,
    envelope::{Recipient, Transaction},
    message::Incoming,
};
use crate::{DeliveryEntry, NotedReply, Outcome, Target, refusal::Refusal};

impl Client {
    /// A message that is refused before it has a recipient.
    pub(super) fn note_refused_sender(&self, sender: &str, reply: Reply<'static>) {
        self.note(|| DeliveryEntry { sender: sender.to_owned(), ..self.entry(refused(reply)) });
    }

    /// A recipient that is refused, with the account that can't take the message.
    pub(super) fn note_refused_recipient(&self, recipient: &str, refusal: Refusal, target: Option<&Target>) {
        let Some(transaction) = &self.transaction else { return };
        let outcome = refused(refusal.reply());
        self.note(|| self.entry_of(transaction, recipient, target, outcome));
    }

    /// A recipient that a check refuses.
    pub(super) fn note_checked_recipient(&self, recipient: &str, refused: &Refused) {
        let Some(transaction) = &self.transaction else { return };
        let outcome = Outcome::Refused(refused_with(refused));
        self.note(|| self.entry_of(transaction, recipient, None, outcome));
    }

    /// The outcome of a message for each account of each recipient.
    pub(super) fn note_message(
        &self,
        transaction: &Transaction,
        message_id: Option<&str>,
        bytes: u64,
        outcome_of: impl Fn(&Target) -> Outcome,
        outcome_outside: impl Fn(&Recipient) -> Outcome,
    ) {
        for recipient in &transaction.recipients {
            for target in &recipient.targets {
                self.note(|| DeliveryEntry {
                    message_id: message_id.map(str::to_owned),
                    bytes,
                    ..self.entry_of(transaction, &recipient.address, Some(target), outcome_of(target))
                });
            }
            if recipient.outside.is_some() {
                self.note(|| DeliveryEntry {
                    message_id: message_id.map(str::to_owned),
                    bytes,
                    ..self.entry_of(transaction, &recipient.address, None, outcome_outside(recipient))
                });
            }
        }
    }

    /// The outcome of a submitted message for each recipient.
    pub(super) fn note_submitted(
        &self,
        transaction: &Transaction,
        message_id: Option<&str>,
        bytes: u64,
        outcome: &Outcome,
    ) {
        for recipient in &transaction.recipients {
            self.note(|| DeliveryEntry {
                message_id: message_id.map(str::to_owned),
                bytes,
                ..self.entry_of(transaction, &recipient.address, None, outcome.clone())
            });
        }
    }

    /// A message that was not received completely, with the reply that says so, if there was one.
    pub(super) fn note_unfinished(
        &self,
        transaction: &Transaction,
        incoming: &Incoming,
        reply: Option<Reply<'static>>,
    ) {
        let outcome = reply.map_or(Outcome::BrokenOff, refused);
        let (message_id, bytes) = (incoming.message_id(), incoming.received_bytes);
        if transaction.submitted.is_some() {
            return self.note_submitted(transaction, message_id.as_deref(), bytes, &outcome);
        }
        self.note_message(
            transaction,
            message_id.as_deref(),
            bytes,
            |_| outcome.clone(),
            |_| outcome.clone(),
        );
    }

    fn note(&self, entry: impl FnOnce() -> DeliveryEntry) {
        if let Some(journal) = &self.server.journal {
            journal.note(entry());
        }
    }

    fn entry_of(
        &self,
        transaction: &Transaction,
        recipient: &str,
        target: Option<&Target>,
        outcome: Outcome,
    ) -> DeliveryEntry {
        let entry = self.entry(outcome);
        DeliveryEntry {
            sender: transaction.sender.clone(),
            recipient: recipient.to_owned(),
            account: target.map(|target| (target.account, target.address.to_string())).or(entry.account),
            id: transaction.id.clone(),
            ..entry
        }
    }

    /// An entry with what is known of the connection.
    fn entry(&self, outcome: Outcome) -> DeliveryEntry {
        DeliveryEntry {
            time: self.server.clock.now(),
            protocol: Some(self.protocol),
            is_tls: self.is_tls,
            peer: self.address,
            hello: self.hello_name().to_owned(),
            sender: String::new(),
            recipient: String::new(),
            account: self
                .session
                .as_ref()
                .map(|session| (session.login.account, session.login.address.to_string())),
            id: String::new(),
            message_id: None,
            bytes: 0,
            outcome,
        }
    }
}

/// The outcome that a reply reports.
pub(super) fn refused(reply: Reply<'static>) -> Outcome {
    Outcome::Refused(NotedReply { code: reply.code, status: reply.status.into(), reason: reply.text.into() })
}
