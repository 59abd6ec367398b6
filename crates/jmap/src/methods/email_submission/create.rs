//! Reads a submission of a client, and checks whether it may be sent.

use restante_directory::{EmailAddress, Scope};
use restante_mail::{
    EmailState, EnvelopeAddress, Identity, NewSubmission, OutboxMessage, email, queue::Transmission,
    row::Row, sending::SendingRefused,
};
use restante_records::{AccountId, Get, RecordId};
use serde_json::{Map, Value};

use super::envelope::{Envelope, GivenEnvelope, MessageAddresses, invalid_email, too_many_recipients};
use crate::{
    core::{Content, Context, Creations, IdType, MethodError, SetError},
    methods::{email_edit::Invalid, mail_errors::too_large},
};

/// The properties that a client can't set.
const SERVER_SET: [&str; 7] =
    ["id", "threadId", "sendAt", "undoStatus", "deliveryStatus", "dsnBlobIds", "mdnBlobIds"];

/// A submission that passed all checks.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) submission: NewSubmission,
    /// Whether the server has made the envelope.
    pub(super) is_envelope_made: bool,
}

/// Reads the submissions of one call.
pub(super) struct Create<'c> {
    pub(super) context: &'c Context,
    pub(super) account: AccountId,
}

/// What a client requests.
struct Asked {
    identity: RecordId,
    email: RecordId,
    envelope: Option<GivenEnvelope>,
}

/// The email that is to be sent.
struct Message {
    id: RecordId,
    thread: RecordId,
    content: Content,
    blob: restante_core::BlobId,
    size: u64,
    header: bytes::Bytes,
}

impl Create<'_> {
    /// Reads and checks one submission, and counts it as sent. The inner error concerns this submission only.
    pub(super) async fn read(
        &self,
        value: &Value,
        creations: &Creations,
    ) -> Result<Result<Accepted, SetError>, MethodError> {
        let asked = match self.asked(value, creations) {
            Ok(asked) => asked,
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = self.check_user() {
            return Ok(Err(error));
        }
        let mut invalid = Invalid::default();
        let identity = self.context.mail().identity(self.account, asked.identity).await?;
        let message = self.message(asked.email).await?;
        let (identity, message) = match (identity, message) {
            (Some(identity), Ok(Some(message))) => (identity, message),
            (Some(_), Err(error)) => return Ok(Err(error)),
            (identity, message) => {
                if identity.is_none() {
                    invalid.add("identityId", "there is no such identity");
                }
                if matches!(message, Ok(None)) {
                    invalid.add("emailId", "there is no such email");
                }
                return Ok(Err(invalid.into_error()));
            }
        };
        let addresses = MessageAddresses::read(&message.header);
        let problems = addresses.problems();
        if !problems.is_empty() {
            let why = "a message has one From field, and a Sender if that has several addresses";
            return Ok(Err(invalid_email(&problems, why)));
        }
        let is_envelope_made = asked.envelope.is_none();
        let given = match asked.envelope {
            Some(given) => given,
            None => self.made_envelope(&addresses, &identity).await?,
        };
        let (config, now) = (&self.context.config.submission, self.context.clock().now().seconds());
        let envelope = match Envelope::check(given, config.recipients_max.get(), now) {
            Ok(envelope) => envelope,
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = self.check_senders(&addresses, &envelope).await? {
            return Ok(Err(error));
        }
        let release = match self.release(&envelope, now) {
            Ok(release) => release,
            Err(error) => return Ok(Err(error)),
        };
        let transmission = self.transmission(&message, &envelope).await?;
        if !self.context.blobs().touch(&[message.blob]).await?.contains(&true) {
            return Ok(Err(SetError::invalid(["emailId"], "there is no such email")));
        }
        if let Err(error) = self.count(envelope.recipients.len()).await? {
            return Ok(Err(error));
        }
        let submission = NewSubmission {
            if_in_state: None,
            email: message.id,
            thread: message.thread,
            identity: identity.id,
            send_at: release.unwrap_or(now),
            is_pending: release.is_some(),
            mail_from: envelope.mail_from,
            rcpt_to: envelope.rcpt_to,
            message: OutboxMessage {
                blob: message.blob,
                size: message.size,
                sender: envelope.sender,
                envelope_id: envelope.asked.envelope_id,
                returned: envelope.asked.returned,
                transmission,
                recipients: envelope.recipients,
            },
        };
        Ok(Ok(Accepted { submission, is_envelope_made }))
    }

    fn asked(&self, value: &Value, creations: &Creations) -> Result<Asked, SetError> {
        let Some(object) = value.as_object() else {
            return Err(SetError::new("invalidProperties").describe("expected an object"));
        };
        let mut invalid = Invalid::default();
        let identity = record(object, "identityId", IdType::Identity, creations, &mut invalid);
        let email = record(object, "emailId", IdType::Email, creations, &mut invalid);
        let envelope = object.get("envelope").filter(|envelope| !envelope.is_null());
        let read = envelope.map(GivenEnvelope::read);
        if matches!(read, Some(None)) {
            invalid.add("envelope", "must have mailFrom and rcptTo");
        }
        for name in object.keys() {
            if SERVER_SET.contains(&name.as_str()) {
                invalid.add(name, "is set by the server");
            } else if !["identityId", "emailId", "envelope"].contains(&name.as_str()) {
                invalid.add(name, "is no property of submissions");
            }
        }
        match (identity, email) {
            (Some(identity), Some(email)) if invalid.is_empty() => {
                Ok(Asked { identity, email, envelope: read.flatten() })
            }
            _ => Err(invalid.into_error()),
        }
    }

    /// Whether the user may send at all.
    fn check_user(&self) -> Result<(), SetError> {
        if !self.context.login.allows(Scope::Send) {
            return Err(SetError::new("forbiddenToSend").describe("the token is not good for sending mail"));
        }
        Ok(())
    }

    /// The email, with its header. The inner error means that it is too large.
    async fn message(&self, id: RecordId) -> Result<Result<Option<Message>, SetError>, MethodError> {
        let get = Get::whole(email::KIND, vec![id]);
        let found = self.context.records().get(self.account, &get).await?;
        let Some(record) = found.into_iter().flatten().next() else { return Ok(Ok(None)) };
        let state = EmailState::of(&record)?;
        let Some(blob) = record.body.blobs.first().copied().filter(|_| !state.mailboxes.is_empty()) else {
            return Ok(Ok(None));
        };
        let bytes_max = self.context.config.submission.message_bytes_max.get();
        if state.size > bytes_max {
            return Ok(Err(too_large(bytes_max)));
        }
        let row = Row::read(record.body.bytes)?;
        let content = Content::Stored { blob, size: state.size };
        let header = self.context.bytes(&content, 0..row.header_bytes().into()).await?;
        Ok(Ok(Some(Message { id, thread: state.thread, content, blob, size: state.size, header })))
    }

    /// SU1: the return path is that of the message, if the identity allows it, else the identity's.
    async fn made_envelope(
        &self,
        addresses: &MessageAddresses,
        identity: &Identity,
    ) -> Result<GivenEnvelope, MethodError> {
        let mut email = identity.email.clone();
        if let Some(path) = addresses.return_path()
            && self.may_send_as(path).await?
        {
            path.clone_into(&mut email);
        }
        let mail_from = EnvelopeAddress { email, parameters: None };
        Ok(GivenEnvelope { mail_from, rcpt_to: addresses.recipients() })
    }

    /// SU2: the sender of the envelope, and every address of the From field, must be the account's.
    async fn check_senders(
        &self,
        addresses: &MessageAddresses,
        envelope: &Envelope,
    ) -> Result<Result<(), SetError>, MethodError> {
        if !self.may_send_as(&envelope.mail_from.email).await? {
            let why = "mail for the sender of the envelope does not go to this account alone";
            return Ok(Err(SetError::new("forbiddenMailFrom").describe(why)));
        }
        for from in &addresses.from {
            if !self.may_send_as(from).await? {
                let why = "mail for an address of the From field does not go to this account alone";
                return Ok(Err(SetError::new("forbiddenFrom").describe(why)));
            }
        }
        Ok(Ok(()))
    }

    async fn may_send_as(&self, address: &str) -> Result<bool, MethodError> {
        match address.parse::<EmailAddress>() {
            Ok(address) => Ok(self.context.directory().is_address_of(self.account, &address).await?),
            Err(_) => Ok(false),
        }
    }

    /// When the message is released, if it is to be held (SU4).
    fn release(&self, envelope: &Envelope, now: i64) -> Result<Option<i64>, SetError> {
        let Some(release) = envelope.asked.release else { return Ok(None) };
        let seconds_max = self.context.config.submission.delay_seconds_max;
        let latest = now.saturating_add(i64::try_from(seconds_max).unwrap_or(i64::MAX));
        if release > latest {
            let why = format!("a message is held back for {seconds_max} seconds at most");
            return Err(SetError::invalid(["envelope"], why));
        }
        Ok(Some(release).filter(|release| *release > now))
    }

    /// How the message must be transmitted, depending on what it has beyond ASCII.
    async fn transmission(
        &self,
        message: &Message,
        envelope: &Envelope,
    ) -> Result<Transmission, MethodError> {
        let is_ascii = |recipient: &restante_mail::queue::NewRecipient| recipient.address.is_ascii();
        let is_utf8 = !message.header.is_ascii()
            || !envelope.sender.is_ascii()
            || !envelope.recipients.iter().all(is_ascii);
        let mut is_8bit = !message.header.is_ascii();
        if !is_8bit {
            let body = message.header.len() as u64..message.size;
            let mut source = self.context.stream(message.content.clone(), body).await?;
            while let Some(chunk) = source.next().await? {
                if !chunk.is_ascii() {
                    is_8bit = true;
                    break;
                }
            }
        }
        Ok(Transmission { is_8bit, is_utf8 })
    }

    /// Counts the message against the limits of the account, which stop the abuse of a stolen password.
    async fn count(&self, recipients: usize) -> Result<Result<(), SetError>, MethodError> {
        let Some(limits) = &self.context.parts.sending else { return Ok(Ok(())) };
        match limits.admit(self.account, recipients).await {
            Ok(()) => Ok(Ok(())),
            Err(SendingRefused::TooManyRecipients { max }) => {
                Ok(Err(too_many_recipients(usize::try_from(max).unwrap_or(usize::MAX))))
            }
            Err(error @ SendingRefused::Limited { .. }) => {
                // RFC 8621 §7.5: the user may not send right now.
                Ok(Err(SetError::new("forbiddenToSend").describe(error.to_string())))
            }
            Err(SendingRefused::Failed(error)) => Err(error.into()),
        }
    }
}

/// A property that is the id of an object, or `#` and a creation id.
fn record(
    object: &Map<String, Value>,
    name: &str,
    id_type: IdType,
    creations: &Creations,
    invalid: &mut Invalid,
) -> Option<RecordId> {
    let id = object.get(name).and_then(Value::as_str);
    let record = id.and_then(|id| creations.resolve(id)).and_then(|id| id_type.record(id));
    if record.is_none() {
        invalid.add(name, "must be the id of an object that is there");
    }
    record
}
