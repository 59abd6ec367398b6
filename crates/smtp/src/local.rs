//! Delivers outgoing mail to accounts of this server.

use std::sync::Arc;

use bytes::Bytes;
use restante_core::{Clock, Error, ErrorKind, Timestamp};
use restante_directory::{Domain, EmailAddress, Resolution};
use restante_mail::queue::{Attempted, Notify, Outgoing, Recipient, Reply, SourceKind};
use restante_records::{AccountId, RecordId};
use sha2::{Digest, Sha256};
use tracing::debug;

use crate::{
    Delivered, Delivery, DeliveryEntry, DeliveryError, ForwardReports, Forwarded, Forwards, Journal, Outcome,
    ReceivedMail, Recipients, Target, queued_id,
    recipients::{Destination, Outside, active},
    refusal::Refusal,
    trace::{self, Header, RECEIVED_MAX},
};

/// Delivers mail that is sent to addresses of this server: into accounts, and where an alias leads outside, back into the queue.
/// It does what SMTP does with mail from other servers, without a connection.
#[derive(Clone)]
pub struct LocalDelivery {
    /// Resolves addresses.
    pub recipients: Arc<dyn Recipients>,
    /// Stores it.
    pub delivery: Arc<dyn Delivery>,
    /// Forwards what leads outside; without it such mail is refused.
    pub forwards: Option<Forwards>,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// Whether mail that exceeds an account's quota is refused permanently.
    pub quota_is_permanent: bool,
    /// The name of this server. Fields of forwarded mail that claim to be its `Authentication-Results` are removed: this server
    /// has not checked such mail.
    pub hostname: String,
    /// The journal in which deliveries are noted.
    pub journal: Option<Arc<dyn Journal>>,
}

/// A message that is being delivered.
struct Placing<'p> {
    message: &'p Outgoing,
    recipient: &'p Recipient,
    digest: [u8; 32],
    received: Timestamp,
    message_id: Option<String>,
}

/// The result of delivering a message.
#[derive(Default)]
struct Placed {
    /// The emails that it created, and those of an earlier attempt that must be reported.
    emails: Vec<(AccountId, RecordId)>,
    /// Whether it is stored in accounts.
    is_stored: bool,
    /// Whether copies are sent to other servers.
    is_forwarded: bool,
    /// Whether those servers report its delivery: only if it leads to exactly one address.
    is_reported_further: bool,
}

impl LocalDelivery {
    /// Where mail from a sender to an address goes.
    pub(crate) async fn destination(&self, sender: &str, address: &str) -> Result<Destination, Refusal> {
        let parsed: EmailAddress = address.parse().map_err(|_| Refusal::BadAddress)?;
        if let Some(forwards) = &self.forwards
            && let Some(original) = forwards.sender.original(address)
        {
            if !sender.is_empty() {
                return Err(Refusal::ReturnOnly);
            }
            let outside = Outside { alias: parsed, addresses: vec![original], is_return: true };
            return Ok(Destination { targets: Vec::new(), outside: Some(outside) });
        }
        match self.recipients.resolve(&parsed).await {
            Ok(Resolution::Targets(targets)) => active(&parsed, targets, self.forwards.is_some()),
            Ok(Resolution::Unknown | Resolution::Foreign) => Err(Refusal::Unknown),
            Err(error) if error.kind() == ErrorKind::Conflict => Err(Refusal::AliasLoop),
            Err(error) => {
                debug!(%error, "a recipient can't be looked up");
                Err(Refusal::Away)
            }
        }
    }

    /// Delivers a message.
    async fn place(&self, message: &Outgoing, recipient: &Recipient) -> Result<Placed, Refusal> {
        let Destination { targets, outside } = self.destination(&message.sender, &recipient.address).await?;
        let header = Header::read(&message.bytes);
        if header.received > RECEIVED_MAX {
            return Err(Refusal::HopLimit);
        }
        let (digest, received) = (digest_of(message), self.clock.now());
        let placing = Placing { message, recipient, digest, received, message_id: message.message_id() };
        let mut placed = Placed { is_stored: !targets.is_empty(), ..Placed::default() };
        if placed.is_stored {
            placed.emails = self.place_in_accounts(&placing, &header, &targets).await?;
        }
        // Forwarded last, so that an attempt that is repeated has forwarded nothing yet.
        if let (Some(outside), Some(forwards)) = (outside, &self.forwards) {
            if header.was_delivered_to(&outside.alias) {
                return Err(Refusal::ForwardLoop);
            }
            placed.is_forwarded = true;
            placed.is_reported_further = !placed.is_stored && outside.addresses.len() == 1;
            let mut notify = recipient.notify;
            // RFC 3461 §5.2.7.3: delivery to an alias of several addresses is reported once, by this server.
            notify.on_success &= placed.is_reported_further;
            self.forward(&placing, &outside, notify, forwards).await?;
            self.note(&placing, None, Outcome::Queued);
        }
        Ok(placed)
    }

    async fn place_in_accounts(
        &self,
        placing: &Placing<'_>,
        header: &Header,
        targets: &[Target],
    ) -> Result<Vec<(AccountId, RecordId)>, Refusal> {
        let (message, digest) = (placing.message, placing.digest);
        let mut raw = format!("Return-Path: <{}>\r\n", message.sender).into_bytes();
        let at = raw.len();
        raw.extend_from_slice(&message.bytes);
        header.clean(&mut raw, at);
        let mail = ReceivedMail { raw: Bytes::from(raw), digest, to_junk: false, received: placing.received };
        let report = self.delivery.deliver(mail, targets).await;
        let (mut placed, mut refusal) = (Vec::new(), None);
        for (target, result) in targets.iter().zip(report.results) {
            match result {
                Ok(Delivered::New(email)) => {
                    self.note(placing, Some(target), Outcome::Stored(email));
                    placed.push((target.account, email));
                }
                Ok(Delivered::Repeated) => {
                    self.note(placing, Some(target), Outcome::Repeated);
                    placed.extend(self.report_before(message, &digest, target).await?);
                }
                Err(error) => refusal = refusal.or_else(|| Some(self.refusal_of(&error))),
            }
        }
        match refusal {
            Some(refusal) => Err(refusal),
            None => Ok(placed),
        }
    }

    /// The email of a report that was stored earlier: the server may have stopped before the report's submission referred to it.
    async fn report_before(
        &self,
        message: &Outgoing,
        digest: &[u8; 32],
        target: &Target,
    ) -> Result<Option<(AccountId, RecordId)>, Refusal> {
        if message.source != SourceKind::Report || message.record == RecordId(0) {
            return Ok(None);
        }
        let known = self.delivery.delivered_before(digest, target).await.map_err(|error| {
            debug!(%error, "an email can't be looked up");
            Refusal::of_store(error.kind())
        })?;
        Ok(known.map(|email| (target.account, email)))
    }

    async fn forward(
        &self,
        placing: &Placing<'_>,
        outside: &Outside,
        notify: Notify,
        forwards: &Forwards,
    ) -> Result<(), Refusal> {
        let message = placing.message;
        let forwarded = Forwarded {
            raw: without_results(&message.bytes, &self.hostname),
            digest: placing.digest,
            sender: &message.sender,
            is_utf8: message.transmission.is_utf8,
            alias: &outside.alias,
            targets: &outside.addresses,
            received: placing.received,
            reports: ForwardReports {
                notify,
                original: placing.recipient.original.as_deref(),
                envelope_id: message.envelope_id.as_deref(),
                returned: message.returned,
            },
        };
        forwards.forward(forwarded).await.map_err(|error| {
            debug!(%error, "a message could not be forwarded");
            Refusal::of_store(error.kind())
        })
    }

    fn note(&self, placing: &Placing<'_>, target: Option<&Target>, outcome: Outcome) {
        let Some(journal) = &self.journal else { return };
        let message = placing.message;
        journal.note(DeliveryEntry {
            time: self.clock.now(),
            protocol: None,
            is_tls: false,
            peer: None,
            hello: String::new(),
            sender: message.sender.clone(),
            recipient: placing.recipient.address.clone(),
            account: target.map(|target| (target.account, target.address.to_string())),
            id: queued_id(&message.key),
            message_id: placing.message_id.clone(),
            bytes: message.bytes.len() as u64,
            outcome,
        });
    }

    pub(crate) fn refusal_of(&self, error: &DeliveryError) -> Refusal {
        match error {
            DeliveryError::OverQuota if self.quota_is_permanent => Refusal::OverQuotaForGood,
            DeliveryError::OverQuota => Refusal::OverQuota,
            DeliveryError::Store(error) => {
                debug!(%error, "a message could not be placed");
                Refusal::of_store(error.kind())
            }
        }
    }

    /// Whether mail for a domain stays on this server.
    ///
    /// # Errors
    /// When this can't be determined now.
    pub async fn is_local(&self, domain: &str) -> Result<bool, Error> {
        // What can't be a domain of this server belongs to another one.
        let Ok(domain) = domain.parse::<Domain>() else { return Ok(false) };
        let address = EmailAddress::new("postmaster", domain)?;
        match self.recipients.resolve(&address).await {
            Ok(Resolution::Foreign) => Ok(false),
            Ok(Resolution::Targets(_) | Resolution::Unknown) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(true), // its alias leads in a circle
            Err(error) => Err(error),
        }
    }

    /// Delivers a message to the accounts that an address leads to, exactly once for each however often it is repeated, and
    /// returns the emails that it created; for a report about a submission also those that an earlier attempt created.
    pub async fn deliver(
        &self,
        message: &Outgoing,
        recipient: &Recipient,
    ) -> (Attempted, Vec<(AccountId, RecordId)>) {
        let (reply, placed) = match Box::pin(self.place(message, recipient)).await {
            Ok(placed) => {
                let text = if placed.is_stored { "delivered" } else { "forwarded" };
                (Reply::own(250, "2.1.5", text), placed)
            }
            Err(refusal) => {
                let reply = refusal.reply();
                (Reply::own(reply.code, reply.status, reply.text), Placed::default())
            }
        };
        let Placed { emails, is_forwarded, is_reported_further, .. } = placed;
        (Attempted { reply, is_reported_further, is_forwarded }, emails)
    }
}

/// A message without the `Authentication-Results` fields that claim to be from this server (RFC 8601 §5). The name may be
/// followed by the version of the method's syntax and a comment; fields that can't be parsed are removed, too.
fn without_results(message: &Bytes, hostname: &str) -> Bytes {
    let fields = trace::fields_where(message, "Authentication-Results", |value| {
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii_start();
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let end = value.iter().position(|byte| !is_name(byte)).unwrap_or(value.len());
        let name = value.get(..end).unwrap_or_default();
        name.is_empty() || name.eq_ignore_ascii_case(hostname.as_bytes())
    });
    if fields.is_empty() {
        return message.clone();
    }
    let mut raw = message.to_vec();
    trace::remove(&mut raw, 0, &fields);
    Bytes::from(raw)
}

/// Identifies the message when an attempt is repeated. An account that two recipients lead to gets it once.
fn digest_of(message: &Outgoing) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"queue\0");
    hash.update(message.key);
    hash.finalize().into()
}
