//! Stores suspicious mail in the quarantine of the records, and releases it.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::Error;
use restante_mail::quarantine::{Leaving, NewQuarantined, Quarantined};
use restante_mail_wire::smtp::Reply;
use restante_records::{AccountId, RecordId};

use crate::{
    Delivered, DeliveryEntry, ForwardReports, Forwarded, LocalDelivery, NotedReply, Outcome, Protocol,
    Quarantine, QuarantinedAbout, ReceivedMail, Target,
    recipients::{Destination, Outside},
    refusal::Refusal,
    trace::Header,
};

#[cfg(test)]
mod tests;

/// Stores mail in [`restante_mail::quarantine::Quarantine`], and delivers released mail as if it had been accepted. Releases and
/// drops are noted in the journal of [`LocalDelivery`].
#[derive(Clone)]
pub struct MailQuarantine {
    /// Where it is stored.
    pub kept: restante_mail::quarantine::Quarantine,
    /// Delivers it.
    pub local: LocalDelivery,
}

/// The result of a release for a recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The recipient.
    pub recipient: String,
    /// Why it was not delivered to this recipient, as an SMTP reply: `550 5.1.1 no such user here`.
    pub problem: Option<String>,
}

/// A message that is being released.
struct Releasing<'r> {
    message: &'r Quarantined,
    raw: Bytes,
    /// The operator.
    by: &'r str,
    /// The result in each account that it goes to.
    results: BTreeMap<AccountId, Result<Delivered, Refusal>>,
}

#[async_trait]
impl Quarantine for MailQuarantine {
    async fn keep(&self, mail: ReceivedMail, about: QuarantinedAbout) -> Result<(), Error> {
        let QuarantinedAbout { id: reply_id, peer, hello, sender, recipients, reason, is_utf8 } = about;
        let received = u64::try_from(mail.received.seconds()).unwrap_or(0);
        let ReceivedMail { raw, digest, .. } = mail;
        let message = NewQuarantined {
            peer,
            hello,
            reply_id,
            sender,
            recipients,
            reason,
            received,
            is_utf8,
            digest,
            raw,
        };
        self.kept.keep(message).await.map(drop)
    }
}

impl MailQuarantine {
    /// Delivers a message to its recipients, as they are resolved now, and removes it from the quarantine when all have it. Each
    /// account gets it once, and each alias that leads outside sends it once, however often this is repeated: also if the server
    /// stopped before the message was removed. Accounts that got the message in another way do not get it again. `None` if it
    /// does not exist. `by` is the operator, for the journal.
    ///
    /// # Errors
    /// Those of reading it, and of removing it. A recipient that fails is reported in the result, and the message stays.
    pub async fn release(&self, id: RecordId, by: &str) -> Result<Option<Vec<Released>>, Error> {
        let Some(message) = self.kept.get(id).await? else { return Ok(None) };
        let raw = self.kept.read(message.blob).await?;
        let mut destinations = Vec::with_capacity(message.recipients.len());
        for recipient in &message.recipients {
            destinations.push(self.local.destination(&message.sender, recipient).await);
        }
        let results = self.deliver(&message, &raw, &destinations).await;
        let releasing = Releasing { message: &message, raw, by, results };
        let mut released = Vec::with_capacity(message.recipients.len());
        for (recipient, destination) in message.recipients.iter().zip(destinations) {
            let result = self.finish(&releasing, recipient, destination).await;
            let problem = result.err().map(|refusal| text_of(&refusal.reply()));
            released.push(Released { recipient: recipient.clone(), problem });
        }
        if released.iter().all(|recipient| recipient.problem.is_none()) {
            self.kept.remove(&[id], Leaving::Released).await?;
        }
        Ok(Some(released))
    }

    /// Removes messages permanently, and returns how many existed. `by` is the operator, for the journal.
    ///
    /// # Errors
    /// Those of reading and of removing them; repeating continues.
    pub async fn drop_messages(&self, ids: &[RecordId], by: &str) -> Result<u64, Error> {
        let mut messages = BTreeMap::new();
        for id in ids {
            messages.insert(*id, self.kept.get(*id).await?);
        }
        let dropped = self.kept.remove(ids, Leaving::Dropped).await?;
        for message in dropped.iter().filter_map(|id| messages.get(id)).flatten() {
            for recipient in &message.recipients {
                self.note(message, recipient, None, Outcome::Dropped(by.to_owned().into()));
            }
        }
        Ok(dropped.len() as u64)
    }

    /// Stores a message in all accounts that it goes to, each once.
    async fn deliver(
        &self,
        message: &Quarantined,
        raw: &Bytes,
        destinations: &[Result<Destination, Refusal>],
    ) -> BTreeMap<AccountId, Result<Delivered, Refusal>> {
        let mut targets = Vec::<Target>::new();
        for target in destinations.iter().flatten().flat_map(|destination| &destination.targets) {
            if targets.iter().all(|known| known.account != target.account) {
                targets.push(target.clone());
            }
        }
        if targets.is_empty() {
            return BTreeMap::new();
        }
        // It is received now: a date of days ago would hide it among mail that was read.
        let received = self.local.clock.now();
        let mail = ReceivedMail { raw: raw.clone(), digest: message.digest, to_junk: false, received };
        let results = self.local.delivery.deliver(mail, &targets).await.results;
        let results = results.into_iter().map(|result| result.map_err(|error| self.local.refusal_of(&error)));
        targets.iter().map(|target| target.account).zip(results).collect()
    }

    /// The outcome of a message for a recipient; its copy for other servers is queued once its accounts have it.
    async fn finish(
        &self,
        releasing: &Releasing<'_>,
        recipient: &str,
        destination: Result<Destination, Refusal>,
    ) -> Result<(), Refusal> {
        let Releasing { message, by, results, .. } = releasing;
        let note = |target: Option<&Target>, result: Result<Option<RecordId>, Refusal>| {
            let outcome = match result {
                Ok(email) => Outcome::Released { email, by: (*by).to_owned().into() },
                Err(refusal) => Outcome::NotReleased(not_released(refusal, by)),
            };
            self.note(message, recipient, target, outcome);
        };
        let Destination { targets, outside } = match destination {
            Ok(destination) => destination,
            Err(refusal) => {
                note(None, Err(refusal));
                return Err(refusal);
            }
        };
        let mut in_accounts = Ok(());
        for target in &targets {
            let result = results.get(&target.account).copied().unwrap_or(Err(Refusal::Away));
            let email = |delivered| match delivered {
                Delivered::New(email) => Some(email),
                Delivered::Repeated => None,
            };
            note(Some(target), result.map(email));
            in_accounts = in_accounts.and(result.map(drop));
        }
        in_accounts?;
        let Some(outside) = outside else { return Ok(()) };
        let forwarded = self.forward(releasing, &outside).await;
        note(None, forwarded.map(|()| None));
        forwarded
    }

    /// Queues the copy for other servers.
    async fn forward(&self, releasing: &Releasing<'_>, outside: &Outside) -> Result<(), Refusal> {
        let Releasing { message, raw, .. } = releasing;
        let Some(forwards) = &self.local.forwards else { return Err(Refusal::AliasOutside) };
        if Header::read(raw).was_delivered_to(&outside.alias) {
            return Err(Refusal::ForwardLoop);
        }
        let forwarded = Forwarded {
            raw: without_return_path(raw),
            digest: message.digest,
            sender: &message.sender,
            is_utf8: message.is_utf8,
            alias: &outside.alias,
            targets: &outside.addresses,
            received: self.local.clock.now(),
            reports: ForwardReports::default(),
        };
        Box::pin(forwards.forward(forwarded)).await.map_err(|error| Refusal::of_store(error.kind()))
    }

    /// Notes the outcome of a message for a recipient in the journal.
    fn note(&self, message: &Quarantined, recipient: &str, target: Option<&Target>, outcome: Outcome) {
        let Some(journal) = &self.local.journal else { return };
        journal.note(DeliveryEntry {
            time: self.local.clock.now(),
            // Only mail received by SMTP is checked.
            protocol: Some(Protocol::Smtp),
            is_tls: false,
            peer: message.peer,
            hello: message.hello.clone(),
            sender: message.sender.clone(),
            recipient: recipient.to_owned(),
            account: target.map(|target| (target.account, target.address.to_string())),
            id: message.reply_id.clone(),
            message_id: message.message_id.clone(),
            bytes: message.size,
            outcome,
        });
    }
}

/// Why a message was not released, and who tried.
fn not_released(refusal: Refusal, by: &str) -> NotedReply {
    let reply = refusal.reply();
    NotedReply {
        code: reply.code,
        status: reply.status.to_string().into(),
        reason: format!("{}; released by {by}", reply.text).into(),
    }
}

/// A message whose first field is `Return-Path`, without that field.
fn without_return_path(raw: &Bytes) -> Bytes {
    if !raw.starts_with(b"Return-Path:") {
        return raw.clone();
    }
    let end = memchr::memmem::find(raw, b"\r\n").map_or(0, |end| end + 2);
    raw.slice(end..)
}

fn text_of(reply: &Reply<'_>) -> String {
    format!("{} {} {}", reply.code, reply.status, reply.text)
}
