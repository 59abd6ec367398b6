//! The end of a message: it is stored, and the client gets the result.

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
    checks::{Decision, Judged, refused_with},
    entries::refused,
    envelope::{Recipient, Transaction},
    message::Incoming,
    wire::Wire,
};
use crate::{
    Delivered, DeliveryError, ForwardReports, Forwarded, Outcome, Protocol, Quarantine, ReceivedMail, Report,
    Target,
    metrics::MessageResult,
    refusal::Refusal,
    trace::{RECEIVED_MAX, message_id},
};

/// Why mail from a trusted client goes to Junk.
const MARKED: &str = "X-Spam-Flag: YES";

/// The outcome of a message for an account.
type Stored = Result<Delivered, Refusal>;

/// The accounts of a message, each once, and the outcome for each.
#[derive(Default)]
struct Deliveries {
    targets: Vec<Target>,
    by_account: HashMap<AccountId, usize>,
    results: Vec<Stored>,
    message_id: Option<String>,
    /// The outcome of the copies for other servers, by the recipient's alias.
    outside: HashMap<String, Result<(), Refusal>>,
    /// Why it goes to Junk, if it does.
    junk: Option<String>,
    /// Whether checks have put it there: then it is not sent to other servers, which would take this one for a source of junk.
    holds_forwards: bool,
}

/// A message as it is stored, and what is to be done with it.
struct Prepared {
    mail: ReceivedMail,
    decision: Decision,
    /// Whether a trusted filter has marked it as junk.
    is_marked: bool,
    /// The aliases for which this server has already forwarded it.
    was_forwarded: HashSet<String>,
}

impl Client {
    /// Processes a complete message, and replies: once, or in LMTP once for each recipient.
    pub(super) async fn finish(&mut self, wire: &mut Wire, transaction: Transaction, mut incoming: Incoming) {
        let (begun, bytes) = (Instant::now(), incoming.bytes());
        let result = match Box::pin(self.prepare(&transaction, &mut incoming)).await {
            Ok(prepared) => Box::pin(self.act(wire, &transaction, incoming.received_bytes, prepared)).await,
            Err(refusal) => {
                let message_id = incoming.message_id();
                let outcome = refused(refusal.reply());
                self.note_all(&transaction, message_id.as_deref(), incoming.received_bytes, &outcome);
                self.reply_to_message(
                    wire,
                    &transaction.id,
                    &vec![Err(refusal); transaction.recipients.len()],
                )
            }
        };
        self.server.metrics.count_message(self.protocol, result);
        self.server.metrics.observe_message(self.protocol, bytes, begun.elapsed());
        drop(incoming.memory); // the memory of the message is released only now
    }

    /// The message as it is stored, with the result of the checks, or why it is refused.
    async fn prepare(
        &mut self,
        transaction: &Transaction,
        incoming: &mut Incoming,
    ) -> Result<Prepared, Refusal> {
        if let Some(refusal) = incoming.refusal {
            return Err(refusal);
        }
        let at = incoming.trace_bytes;
        let header = self.header_of(incoming.raw.get(at..).unwrap_or_default());
        if header.received > RECEIVED_MAX {
            return Err(Refusal::HopLimit);
        }
        let Judged { decision, fields } = self.judge(transaction, incoming).await;
        header.clean(&mut incoming.raw, at);
        if !fields.is_empty() {
            if !incoming.make_room(fields.len()).await {
                return Err(Refusal::Memory);
            }
            incoming.raw.splice(at..at, fields.into_bytes());
        }
        let outside = transaction.recipients.iter().filter_map(|recipient| recipient.outside.as_ref());
        let was_forwarded = outside.filter(|outside| header.was_delivered_to(&outside.alias));
        let was_forwarded = was_forwarded.map(|outside| outside.alias.to_string()).collect();
        let is_marked = self.is_trusted && header.is_spam;
        let to_junk = is_marked || matches!(decision, Decision::Junk(_));
        let mail = ReceivedMail {
            raw: Bytes::from(mem::take(&mut incoming.raw)),
            digest: incoming.digest(),
            to_junk,
            received: self.server.clock.now(),
        };
        Ok(Prepared { mail, decision, is_marked, was_forwarded })
    }

    /// Carries out the decision about a message, and replies. Returns how it is counted.
    async fn act(
        &mut self,
        wire: &mut Wire,
        transaction: &Transaction,
        received_bytes: u64,
        prepared: Prepared,
    ) -> MessageResult {
        let Prepared { mail, decision, is_marked, was_forwarded } = prepared;
        let marked = is_marked.then(|| MARKED.to_owned());
        match decision {
            Decision::Accept => {
                let deliveries = Deliveries { junk: marked, ..Deliveries::to(&transaction.recipients) };
                self.deliver(wire, transaction, received_bytes, mail, deliveries, &was_forwarded).await
            }
            Decision::Junk(reason) => {
                let deliveries = Deliveries {
                    junk: Some(reason),
                    holds_forwards: true,
                    ..Deliveries::to(&transaction.recipients)
                };
                match self.deliver(wire, transaction, received_bytes, mail, deliveries, &was_forwarded).await
                {
                    MessageResult::Stored => MessageResult::Junk,
                    other => other,
                }
            }
            Decision::Quarantine(reason, quarantine) => {
                self.quarantine(wire, transaction, received_bytes, mail, reason, &*quarantine).await
            }
            Decision::Refuse(refusal) => {
                let message_id = message_id(&mail.raw);
                let outcome = Outcome::Refused(refused_with(&refusal));
                self.note_all(transaction, message_id.as_deref(), received_bytes, &outcome);
                self.server.metrics.count_check(refusal.check);
                let reply = Reply::new(refusal.code, refusal.enhanced, &refusal.text);
                wire.reply(reply);
                if reply.is_permanent() { MessageResult::Refused } else { MessageResult::Deferred }
            }
        }
    }

    /// Stores a message for its accounts, and queues it for other servers.
    async fn deliver(
        &mut self,
        wire: &mut Wire,
        transaction: &Transaction,
        received_bytes: u64,
        mail: ReceivedMail,
        mut deliveries: Deliveries,
        was_forwarded: &HashSet<String>,
    ) -> MessageResult {
        if !deliveries.targets.is_empty() {
            let report = self.server.delivery.deliver(mail.clone(), &deliveries.targets).await;
            self.take_report(&mut deliveries, report);
        }
        deliveries.outside = self.forward(transaction, &mail, &deliveries, was_forwarded).await;
        if deliveries.message_id.is_none() {
            deliveries.message_id = message_id(&mail.raw); // a message that was not stored may not have been read
        }
        self.note_message(
            transaction,
            deliveries.message_id.as_deref(),
            received_bytes,
            |target| deliveries.outcome(target),
            |recipient| match deliveries.of_outside(recipient) {
                Ok(()) => Outcome::Queued,
                Err(refusal) => refused(refusal.reply()),
            },
        );
        let results: Vec<Result<(), Refusal>> =
            transaction.recipients.iter().map(|recipient| deliveries.of(recipient)).collect();
        self.reply_to_message(wire, &transaction.id, &results)
    }

    /// Keeps a message for the operator.
    async fn quarantine(
        &mut self,
        wire: &mut Wire,
        transaction: &Transaction,
        received_bytes: u64,
        mail: ReceivedMail,
        reason: String,
        quarantine: &dyn Quarantine,
    ) -> MessageResult {
        let message_id = message_id(&mail.raw);
        let kept = match self.about_quarantined(transaction, reason.clone()).await {
            Ok(about) => quarantine.keep(mail, about).await.map_err(|error| {
                self.server.log_failure("a message could not be put into the quarantine", &error);
                Refusal::of_store(error.kind())
            }),
            Err(_) => Err(Refusal::Away), // its recipient existed a moment ago
        };
        let outcome = match kept {
            Ok(()) => Outcome::Quarantined(reason.into()),
            Err(refusal) => refused(refusal.reply()),
        };
        self.note_all(transaction, message_id.as_deref(), received_bytes, &outcome);
        let results = vec![kept; transaction.recipients.len()];
        match self.reply_to_message(wire, &transaction.id, &results) {
            MessageResult::Stored => MessageResult::Quarantined,
            other => other,
        }
    }

    /// The same outcome for all recipients.
    fn note_all(
        &self,
        transaction: &Transaction,
        message_id: Option<&str>,
        received_bytes: u64,
        outcome: &Outcome,
    ) {
        self.note_message(transaction, message_id, received_bytes, |_| outcome.clone(), |_| outcome.clone());
    }

    /// Queues the copies for other servers, and records the outcome of each, by the alias.
    async fn forward(
        &self,
        transaction: &Transaction,
        mail: &ReceivedMail,
        deliveries: &Deliveries,
        was_forwarded: &HashSet<String>,
    ) -> HashMap<String, Result<(), Refusal>> {
        let mut results = HashMap::new();
        // SMTP has one reply for all recipients: what the client will send again must not be forwarded already.
        let is_sent_again = |recipient| {
            deliveries.of_accounts(recipient).is_err_and(|refusal| !refusal.reply().is_permanent())
        };
        let is_held = self.protocol == Protocol::Smtp && transaction.recipients.iter().any(is_sent_again);
        for outside in transaction.recipients.iter().filter_map(|recipient| recipient.outside.as_ref()) {
            let alias = outside.alias.to_string();
            if results.contains_key(&alias) {
                continue;
            }
            let result = match &self.server.forwards {
                _ if was_forwarded.contains(&alias) => Err(Refusal::ForwardLoop),
                _ if deliveries.holds_forwards => Err(Refusal::ForwardJunk),
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
                        // Only submission has the parameters, and submitted mail is queued first.
                        reports: ForwardReports::default(),
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

    /// Replies to the message, and returns how it is counted.
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
        // A missing result is a bug in the delivery: the client keeps the message.
        index.and_then(|index| self.results.get(*index)).copied().unwrap_or(Err(Refusal::Away))
    }

    /// The same for the journal.
    fn outcome(&self, target: &Target) -> Outcome {
        match self.result(target) {
            Ok(Delivered::New(email)) => match &self.junk {
                Some(reason) => Outcome::Junk { email, reason: reason.clone().into() },
                None => Outcome::Stored(email),
            },
            Ok(Delivered::Repeated) => Outcome::Repeated,
            Err(refusal) => refused(refusal.reply()),
        }
    }

    /// The outcome of the message for a recipient.
    fn of(&self, recipient: &Recipient) -> Result<(), Refusal> {
        let outside = recipient.outside.as_ref().map(|_| self.of_outside(recipient));
        // Junk that was stored for an account here is accepted: no client learns which of several copies was not forwarded.
        let outside =
            outside.filter(|result| *result != Err(Refusal::ForwardJunk) || self.targets.is_empty());
        joined(recipient.targets.iter().map(|target| self.result(target).map(|_| ())).chain(outside))
    }

    /// The same for its accounts alone.
    fn of_accounts(&self, recipient: &Recipient) -> Result<(), Refusal> {
        joined(recipient.targets.iter().map(|target| self.result(target).map(|_| ())))
    }

    /// The same for its addresses at other servers.
    fn of_outside(&self, recipient: &Recipient) -> Result<(), Refusal> {
        let alias = recipient.outside.as_ref().map(|outside| outside.alias.to_string());
        alias.and_then(|alias| self.outside.get(&alias).copied()).unwrap_or(Err(Refusal::Away))
    }
}

/// A message with our trace fields but without the first of them, `Return-Path`.
fn without_return_path(raw: &Bytes) -> Bytes {
    let end = memchr::memmem::find(raw, b"\r\n").map_or(0, |end| end + 2);
    raw.slice(end..)
}

/// One result for several: success only if all succeeded, and a temporary refusal if one of them is temporary.
///
/// Where some are stored and others refused permanently, the client is asked to try again: then the former are recognized as
/// repeated, and the latter are refused one by one at `RCPT`. A refusal that `RCPT` can't know would be repeated for ever: it is
/// permanent, so that the sender is notified.
fn joined(results: impl Iterator<Item = Result<(), Refusal>>) -> Result<(), Refusal> {
    let (mut permanent, mut is_any_stored): (Option<Refusal>, bool) = (None, false);
    for result in results {
        match result {
            Ok(()) => is_any_stored = true,
            Err(refusal) if refusal.reply().is_permanent() => {
                let known = permanent.filter(|known| known.is_of_message() || !refusal.is_of_message());
                permanent = known.or(Some(refusal));
            }
            Err(refusal) => return Err(refusal),
        }
    }
    match permanent {
        None => Ok(()),
        Some(refusal) if is_any_stored && !refusal.is_of_message() => Err(Refusal::Away),
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
        assert_eq!(joined(&[Ok(()), Err(Refusal::AliasOutside)]), Err(Refusal::Away));
        for refusal in [Refusal::OverQuotaForGood, Refusal::ForwardLoop] {
            assert_eq!(joined(&[Ok(()), Err(refusal)]), Err(refusal), "RCPT does not refuse it");
            assert_eq!(joined(&[Err(Refusal::AliasOutside), Ok(()), Err(refusal)]), Err(refusal));
            assert_eq!(joined(&[Err(refusal), Ok(()), Err(Refusal::DiskFull)]), Err(Refusal::DiskFull));
        }
    }
}
