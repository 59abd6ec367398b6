//! Keeps suspicious mail in the quarantine of the records, and releases it.

use std::collections::BTreeSet;

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::Error;
use restante_mail::quarantine::{Leaving, NewQuarantined, Quarantined};
use restante_mail_wire::smtp::Reply;
use restante_records::{AccountId, RecordId};

use crate::{
    Forwarded, LocalDelivery, Quarantine, QuarantinedAbout, ReceivedMail, Target, recipients::Destination,
    refusal::Refusal, trace::Header,
};

#[cfg(test)]
mod tests;

/// Keeps mail in [`restante_mail::quarantine::Quarantine`], and delivers what is released as if it had been accepted.
#[derive(Clone)]
pub struct MailQuarantine {
    /// Where it is kept.
    pub kept: restante_mail::quarantine::Quarantine,
    /// What delivers it.
    pub local: LocalDelivery,
}

/// What became of a released message for a recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The recipient.
    pub recipient: String,
    /// Why it was not delivered to it, as a reply of SMTP: `550 5.1.1 no such user here`.
    pub problem: Option<String>,
}

#[async_trait]
impl Quarantine for MailQuarantine {
    async fn keep(&self, mail: ReceivedMail, about: QuarantinedAbout) -> Result<(), Error> {
        let QuarantinedAbout { id: _, peer, hello, sender, recipients, reason, is_utf8 } = about;
        let received = u64::try_from(mail.received.seconds()).unwrap_or(0);
        let ReceivedMail { raw, digest, .. } = mail;
        let message =
            NewQuarantined { peer, hello, sender, recipients, reason, received, is_utf8, digest, raw };
        self.kept.keep(message).await.map(drop)
    }
}

impl MailQuarantine {
    /// Delivers a message to its recipients, as they are resolved now, and removes it from the quarantine when all have it. Each account gets it once,
    /// and each alias that leads outside sends it once, however often this is repeated: also when the server ended before the message was removed.
    /// Accounts that got the message outside of the quarantine do not get it again. `None` when it is not there.
    ///
    /// # Errors
    /// Those of reading it, and of removing it. A recipient that fails is reported in the answer, and the message stays.
    pub async fn release(&self, id: RecordId) -> Result<Option<Vec<Released>>, Error> {
        let Some(message) = self.kept.get(id).await? else { return Ok(None) };
        let raw = self.kept.read(message.blob).await?;
        let mut destinations = Vec::with_capacity(message.recipients.len());
        for recipient in &message.recipients {
            destinations.push(self.local.destination(&message.sender, recipient).await);
        }
        let failed = self.deliver(&message, &raw, &destinations).await;
        let mut released = Vec::with_capacity(message.recipients.len());
        for (recipient, destination) in message.recipients.iter().zip(destinations) {
            let result = match destination {
                Ok(destination) => self.finish(&message, &raw, &destination, &failed).await,
                Err(refusal) => Err(refusal),
            };
            let problem = result.err().map(|refusal| text_of(&refusal.reply()));
            released.push(Released { recipient: recipient.clone(), problem });
        }
        if released.iter().all(|recipient| recipient.problem.is_none()) {
            self.kept.remove(&[id], Leaving::Released).await?;
        }
        Ok(Some(released))
    }

    /// Stores a message in all accounts that it goes to, each once, and returns those that it could not be stored in.
    async fn deliver(
        &self,
        message: &Quarantined,
        raw: &Bytes,
        destinations: &[Result<Destination, Refusal>],
    ) -> Vec<(AccountId, Refusal)> {
        let (mut targets, mut seen) = (Vec::<Target>::new(), BTreeSet::new());
        for target in destinations.iter().flatten().flat_map(|destination| &destination.targets) {
            if seen.insert(target.account) {
                targets.push(target.clone());
            }
        }
        if targets.is_empty() {
            return Vec::new();
        }
        // It arrives now: a date of days ago would hide it among what was read.
        let received = self.local.clock.now();
        let mail = ReceivedMail { raw: raw.clone(), digest: message.digest, to_junk: false, received };
        let results = self.local.delivery.deliver(mail, &targets).await.results;
        let mut results = results.into_iter();
        let mut failed = Vec::new();
        for target in targets {
            match results.next() {
                Some(Ok(_)) => {}
                Some(Err(error)) => failed.push((target.account, self.local.refusal_of(&error))),
                None => failed.push((target.account, Refusal::Away)),
            }
        }
        failed
    }

    /// What became of a message for a recipient; its copy for other servers is queued when its accounts have it.
    async fn finish(
        &self,
        message: &Quarantined,
        raw: &Bytes,
        destination: &Destination,
        failed: &[(AccountId, Refusal)],
    ) -> Result<(), Refusal> {
        for target in &destination.targets {
            if let Some((_, refusal)) = failed.iter().find(|(account, _)| *account == target.account) {
                return Err(*refusal);
            }
        }
        let Some(outside) = &destination.outside else { return Ok(()) };
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
        };
        Box::pin(forwards.forward(forwarded)).await.map_err(|error| Refusal::of_store(error.kind()))
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
