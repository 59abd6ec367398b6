//! Places outgoing mail in accounts of this server.

use std::sync::Arc;

use bytes::Bytes;
use restante_core::{Clock, Error, ErrorKind};
use restante_directory::{Domain, EmailAddress, Resolution};
use restante_mail::queue::{Attempted, Outgoing, Recipient, Reply};
use restante_records::{AccountId, RecordId};
use sha2::{Digest, Sha256};
use tracing::debug;

use crate::{
    Delivered, Delivery, DeliveryError, Forwarded, Forwards, ReceivedMail, Recipients,
    recipients::{Destination, Outside, active},
    refusal::Refusal,
    trace::{Header, RECEIVED_MAX},
};

/// Delivers what is sent to addresses of this server: into accounts, and where an alias leads outside, back into the queue. It is what SMTP does with the
/// mail of other servers, without a connection.
#[derive(Clone)]
pub struct LocalDelivery {
    /// Says where mail for an address goes.
    pub recipients: Arc<dyn Recipients>,
    /// Stores it.
    pub delivery: Arc<dyn Delivery>,
    /// Forwards what leads outside; without it such mail is refused.
    pub forwards: Option<Forwards>,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// Whether mail beyond an account's quota is refused for good.
    pub quota_is_permanent: bool,
}

impl LocalDelivery {
    /// Where mail of a sender for an address goes.
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

    /// Places a message, and returns the emails that it made.
    async fn place(&self, message: &Outgoing, address: &str) -> Result<Vec<(AccountId, RecordId)>, Refusal> {
        let Destination { targets, outside } = self.destination(&message.sender, address).await?;
        let header = Header::read(&message.bytes);
        if header.received > RECEIVED_MAX {
            return Err(Refusal::HopLimit);
        }
        let (digest, received) = (digest_of(message), self.clock.now());
        let mut placed = Vec::new();
        if !targets.is_empty() {
            let mut raw = format!("Return-Path: <{}>\r\n", message.sender).into_bytes();
            let at = raw.len();
            raw.extend_from_slice(&message.bytes);
            header.clean(&mut raw, at);
            let mail = ReceivedMail { raw: Bytes::from(raw), digest, to_junk: false, received };
            let report = self.delivery.deliver(mail, &targets).await;
            for (target, result) in targets.iter().zip(report.results) {
                if let Delivered::New(email) = result.map_err(|error| self.refusal_of(&error))? {
                    placed.push((target.account, email));
                }
            }
        }
        // The last, so that an attempt that is repeated has forwarded nothing.
        let (Some(outside), Some(forwards)) = (outside, &self.forwards) else { return Ok(placed) };
        if header.was_delivered_to(&outside.alias) {
            return Err(Refusal::ForwardLoop);
        }
        let forwarded = Forwarded {
            raw: message.bytes.clone(),
            digest,
            sender: &message.sender,
            is_utf8: message.transmission.is_utf8,
            alias: &outside.alias,
            targets: &outside.addresses,
            received,
        };
        forwards.forward(forwarded).await.map_err(|error| {
            debug!(%error, "a message could not be forwarded");
            Refusal::of_store(error.kind())
        })?;
        Ok(placed)
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
    /// When that can't be known now.
    pub async fn is_local(&self, domain: &str) -> Result<bool, Error> {
        // What can't be a domain of this server is another's.
        let Ok(domain) = domain.parse::<Domain>() else { return Ok(false) };
        let address = EmailAddress::new("postmaster", domain)?;
        match self.recipients.resolve(&address).await {
            Ok(Resolution::Foreign) => Ok(false),
            Ok(Resolution::Targets(_) | Resolution::Unknown) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(true), // its alias leads in a circle
            Err(error) => Err(error),
        }
    }

    /// Places a message in the accounts that an address leads to, exactly once for each however often it is repeated, and returns the emails that
    /// it made.
    pub async fn deliver(
        &self,
        message: &Outgoing,
        recipient: &Recipient,
    ) -> (Attempted, Vec<(AccountId, RecordId)>) {
        let (reply, placed) = match Box::pin(self.place(message, &recipient.address)).await {
            Ok(placed) => (Reply::own(250, "2.1.5", "delivered"), placed),
            Err(refusal) => {
                let reply = refusal.reply();
                (Reply::own(reply.code, reply.status, reply.text), Vec::new())
            }
        };
        (Attempted { reply, is_reported_further: false }, placed)
    }
}

/// What makes it the same message when an attempt is repeated. An account that two recipients lead to gets it once.
fn digest_of(message: &Outgoing) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"queue\0");
    hash.update(message.key);
    hash.finalize().into()
}
