//! What is noted in the journal.

use restante_mail_wire::smtp::Reply;

use super::{Client, envelope::Transaction, message::Incoming};
use crate::{DeliveryEntry, Outcome, RefusedWith, Target, refusal::Refusal};

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

    /// What became of a message for each account of each recipient.
    pub(super) fn note_message(
        &self,
        transaction: &Transaction,
        message_id: Option<&str>,
        bytes: u64,
        outcome_of: impl Fn(&Target) -> Outcome,
    ) {
        for recipient in &transaction.recipients {
            for target in &recipient.targets {
                self.note(|| DeliveryEntry {
                    message_id: message_id.map(str::to_owned),
                    bytes,
                    ..self.entry_of(transaction, &recipient.address, Some(target), outcome_of(target))
                });
            }
        }
    }

    /// A message that is over before its end, with the reply that says so, if there was one.
    pub(super) fn note_unfinished(
        &self,
        transaction: &Transaction,
        incoming: &Incoming,
        reply: Option<Reply<'static>>,
    ) {
        let outcome = reply.map_or(Outcome::BrokenOff, refused);
        let (message_id, bytes) = (incoming.message_id(), incoming.received_bytes);
        self.note_message(transaction, message_id.as_deref(), bytes, |_| outcome.clone());
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
        DeliveryEntry {
            sender: transaction.sender.clone(),
            recipient: recipient.to_owned(),
            account: target.map(|target| (target.account, target.address.to_string())),
            id: transaction.id.clone(),
            ..self.entry(outcome)
        }
    }

    /// An entry with what is known of the connection.
    fn entry(&self, outcome: Outcome) -> DeliveryEntry {
        DeliveryEntry {
            time: self.server.clock.now(),
            protocol: self.protocol,
            is_tls: self.is_tls,
            peer: self.address,
            hello: self.hello_name().to_owned(),
            sender: String::new(),
            recipient: String::new(),
            account: None,
            id: String::new(),
            message_id: None,
            bytes: 0,
            outcome,
        }
    }
}

/// The outcome that a reply reports.
pub(super) fn refused(reply: Reply<'static>) -> Outcome {
    Outcome::Refused(RefusedWith { code: reply.code, status: reply.status.into(), reason: reply.text.into() })
}
