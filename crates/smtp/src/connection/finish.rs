//! The end of a message: it is stored, and the client hears what became of it.

use std::{
    collections::{HashMap, HashSet},
    mem,
};

use bytes::Bytes;
use restante_mail_wire::smtp::Reply;
use restante_records::AccountId;
use tokio::time::Instant;

use super::{
    Client,
    entries::refused,
    envelope::{Recipient, Transaction},
    message::Incoming,
    wire::Wire,
};
use crate::{
    Delivered, DeliveryError, Forwarded, Outcome, Protocol, ReceivedMail, Report, Target,
    metrics::MessageResult,
    refusal::Refusal,
    trace::{Header, RECEIVED_MAX, message_id},
};

/// What became of a message for an account.
type Stored = Result<Delivered, Refusal>;

/// The accounts of a message, each once, and what became of it there.
#[derive(Default)]
struct Deliveries {
    targets: Vec<Target>,
    by_account: HashMap<AccountId, usize>,
    results: Vec<Stored>,
    message_id: Option<String>,
    /// What became of the copies for other servers, by the recipient's alias.
    outside: HashMap<String, Result<(), Refusal>>,
}

impl Client {
    /// Stores a message that was received whole, and replies: once, or in LMTP once for each recipient.
    pub(super) async fn finish(&mut self, wire: &mut Wire, transaction: Transaction, mut incoming: Incoming) {
        let (begun, bytes) = (Instant::now(), incoming.bytes());
        let mut deliveries = Deliveries::to(&transaction.recipients);
        let was_forwarded = was_forwarded(&transaction, &incoming);
        match self.prepare(&mut incoming) {
            Ok(mail) => {
                let raw = mail.raw.clone();
                if !deliveries.targets.is_empty() {
                    let report = self.server.delivery.deliver(mail.clone(), &deliveries.targets).await;
                    self.take_report(&mut deliveries, report);
                }
                deliveries.outside = self.forward(&transaction, &mail, &deliveries, &was_forwarded).await;
                if deliveries.message_id.is_none() {
                    deliveries.message_id = message_id(&raw); // a message that was not stored may not have been read
                }
            }
            Err(refusal) => {
                deliveries.results = vec![Err(refusal); deliveries.targets.len()];
                deliveries.refuse_outside(&transaction, refusal);
                deliveries.message_id = incoming.message_id();
            }
        }
        self.note_message(
            &transaction,
            deliveries.message_id.as_deref(),
            incoming.received_bytes,
            |target| deliveries.outcome(target),
            |recipient| match deliveries.of_outside(recipient) {
                Ok(()) => Outcome::Queued,
                Err(refusal) => refused(refusal.reply()),
            },
        );
        let results: Vec<Result<(), Refusal>> =
            transaction.recipients.iter().map(|recipient| deliveries.of(recipient)).collect();
        let result = self.reply_to_message(wire, &transaction.id, &results);
        self.server.metrics.count_message(self.protocol, result);
        self.server.metrics.observe_message(self.protocol, bytes, begun.elapsed());
        drop(incoming.memory); // the message is out of memory only now
    }

    /// The message as it is stored, or why it is refused.
    fn prepare(&self, incoming: &mut Incoming) -> Result<ReceivedMail, Refusal> {
        if let Some(refusal) = incoming.refusal {
            return Err(refusal);
        }
        let mut raw = mem::take(&mut incoming.raw);
        let header = Header::read(raw.get(incoming.trace_bytes..).unwrap_or_default());
        if header.received > RECEIVED_MAX {
            incoming.raw = raw; // the journal looks for its Message-ID
            return Err(Refusal::HopLimit);
        }
        header.clean(&mut raw, incoming.trace_bytes);
        Ok(ReceivedMail {
            raw: Bytes::from(raw),
            digest: incoming.digest(),
            to_junk: self.is_trusted && header.is_spam,
            received: self.server.clock.now(),
        })
    }

    /// Queues the copies for other servers, and says what became of each, by the alias.
    async fn forward(
        &self,
        transaction: &Transaction,
        mail: &ReceivedMail,
        deliveries: &Deliveries,
        was_forwarded: &HashSet<String>,
    ) -> HashMap<String, Result<(), Refusal>> {
        let mut results = HashMap::new();
        // One reply is for all recipients of SMTP: what the client sends again must not have been forwarded already.
        let is_held = self.protocol == Protocol::Smtp
            && transaction.recipients.iter().any(|recipient| deliveries.of_accounts(recipient).is_err());
        for outside in transaction.recipients.iter().filter_map(|recipient| recipient.outside.as_ref()) {
            let alias = outside.alias.to_string();
            if results.contains_key(&alias) {
                continue;
            }
            let result = match &self.server.forwards {
                _ if was_forwarded.contains(&alias) => Err(Refusal::ForwardLoop),
                _ if is_held => Err(Refusal::Away),
                None => Err(Refusal::AliasOutside),
                Some(forwards) => {
                    let forwarded = Forwarded {
                        raw: without_return_path(&mail.raw),
                        digest: mail.digest,
                        sender: &transaction.sender,
                        is_utf8: transaction.parameters.is_utf8,
                        alias: &outside.alias,
                        targets: &outside.addresses,
                        received: mail.received,
                    };
                    Box::pin(forwards.forward(forwarded)).await.map_err(|error| {
                        self.server.log_failure("a message could not be forwarded", &error);
                        Refusal::of_store(error.kind())
                    })
                }
            };
            results.insert(alias, result);
        }
        results
    }

    fn take_report(&self, deliveries: &mut Deliveries, report: Report) {
        deliveries.message_id = report.message_id;
        for result in report.results {
            deliveries.results.push(match result {
                Ok(delivered) => Ok(delivered),
                Err(DeliveryError::OverQuota) => Err(self.server.over_quota()),
                Err(DeliveryError::Store(error)) => {
                    self.server.log_failure("a message could not be stored", &error);
                    Err(Refusal::of_store(error.kind()))
                }
            });
        }
    }

    /// Replies to the message, and says how it is counted.
    fn reply_to_message(
        &mut self,
        wire: &mut Wire,
        id: &str,
        results: &[Result<(), Refusal>],
    ) -> MessageResult {
        let text = format!("stored as {id}");
        match self.protocol {
            Protocol::Smtp | Protocol::Submission | Protocol::Submissions => {
                match joined(results.iter().copied()) {
                    Ok(()) => wire.reply(Reply::new(250, "2.0.0", &text)),
                    Err(refusal) => wire.reply(refusal.reply()),
                }
            }
            Protocol::Lmtp => {
                for result in results {
                    match result {
                        Ok(()) => wire.reply(Reply::new(250, "2.1.5", &text)),
                        Err(refusal) => wire.reply(refusal.reply()),
                    }
                }
            }
        }
        if results.iter().any(Result::is_ok) {
            self.errors = 0;
            return MessageResult::Stored;
        }
        joined(results.iter().copied()).err().map_or(MessageResult::Stored, MessageResult::of)
    }
}

impl Deliveries {
    /// To the accounts of all recipients. An account that several of them lead to gets the message once.
    fn to(recipients: &[Recipient]) -> Self {
        let mut deliveries = Self::default();
        for target in recipients.iter().flat_map(|recipient| &recipient.targets) {
            let next = deliveries.targets.len();
            if *deliveries.by_account.entry(target.account).or_insert(next) == next {
                deliveries.targets.push(target.clone());
            }
        }
        deliveries
    }

    fn result(&self, target: &Target) -> Stored {
        let index = self.by_account.get(&target.account);
        // A result that is missing is a bug of whatever delivers: the client keeps the message.
        index.and_then(|index| self.results.get(*index)).copied().unwrap_or(Err(Refusal::Away))
    }

    /// The same for the journal.
    fn outcome(&self, target: &Target) -> Outcome {
        match self.result(target) {
            Ok(Delivered::New(id)) => Outcome::Stored(id),
            Ok(Delivered::Repeated) => Outcome::Repeated,
            Err(refusal) => refused(refusal.reply()),
        }
    }

    /// What became of the message for a recipient.
    fn of(&self, recipient: &Recipient) -> Result<(), Refusal> {
        let outside = recipient.outside.as_ref().map(|_| self.of_outside(recipient));
        joined(recipient.targets.iter().map(|target| self.result(target).map(|_| ())).chain(outside))
    }

    /// The same for its accounts alone.
    fn of_accounts(&self, recipient: &Recipient) -> Result<(), Refusal> {
        joined(recipient.targets.iter().map(|target| self.result(target).map(|_| ())))
    }

    /// The same for its addresses of other servers.
    fn of_outside(&self, recipient: &Recipient) -> Result<(), Refusal> {
        let alias = recipient.outside.as_ref().map(|outside| outside.alias.to_string());
        alias.and_then(|alias| self.outside.get(&alias).copied()).unwrap_or(Err(Refusal::Away))
    }

    /// The message is refused as a whole.
    fn refuse_outside(&mut self, transaction: &Transaction, refusal: Refusal) {
        let outside = transaction.recipients.iter().filter_map(|recipient| recipient.outside.as_ref());
        self.outside = outside.map(|outside| (outside.alias.to_string(), Err(refusal))).collect();
    }
}

/// The aliases of a message for which this server has forwarded it before.
fn was_forwarded(transaction: &Transaction, incoming: &Incoming) -> HashSet<String> {
    let outside: Vec<_> =
        transaction.recipients.iter().filter_map(|recipient| recipient.outside.as_ref()).collect();
    if outside.is_empty() {
        return HashSet::new();
    }
    let header = Header::read(incoming.raw.get(incoming.trace_bytes..).unwrap_or_default());
    let was_forwarded = outside.into_iter().filter(|outside| header.was_delivered_to(&outside.alias));
    was_forwarded.map(|outside| outside.alias.to_string()).collect()
}

/// A message with our trace fields, whose first is `Return-Path`, without that one.
fn without_return_path(raw: &Bytes) -> Bytes {
    let end = memchr::memmem::find(raw, b"\r\n").map_or(0, |end| end + 2);
    raw.slice(end..)
}

/// One answer for several: success only if all succeeded, a refusal for good only if all are refused for good.
///
/// Where some are stored and others refused for good, the client is asked to try again: the former are recognized as repeated then,
/// and the latter refused one by one at `RCPT`.
fn joined(results: impl Iterator<Item = Result<(), Refusal>>) -> Result<(), Refusal> {
    let (mut permanent, mut is_any_stored) = (None, false);
    for result in results {
        match result {
            Ok(()) => is_any_stored = true,
            Err(refusal) if refusal.reply().is_permanent() => permanent = permanent.or(Some(refusal)),
            Err(refusal) => return Err(refusal),
        }
    }
    match permanent {
        None => Ok(()),
        Some(_) if is_any_stored => Err(Refusal::Away),
        Some(refusal) => Err(refusal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sm10_one_answer_for_all_is_a_success_only_if_all_are_stored() {
        let joined = |results: &[Result<(), Refusal>]| super::joined(results.iter().copied());
        assert_eq!(joined(&[Ok(()), Ok(())]), Ok(()));
        assert_eq!(joined(&[Ok(()), Err(Refusal::DiskFull)]), Err(Refusal::DiskFull));
        assert_eq!(joined(&[Err(Refusal::HopLimit), Err(Refusal::OverQuota)]), Err(Refusal::OverQuota));
        assert_eq!(joined(&[Err(Refusal::HopLimit), Err(Refusal::HopLimit)]), Err(Refusal::HopLimit));
        assert_eq!(joined(&[Ok(()), Err(Refusal::OverQuotaForGood)]), Err(Refusal::Away));
    }
}
