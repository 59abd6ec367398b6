//! The envelope of a submission: given by the client, or made from the message's header (SU1).

use std::collections::HashSet;

use restante_mail::{EnvelopeAddress, queue::NewRecipient};
use restante_mail_wire::header::{Header, as_addresses};
use serde_json::{Value, json};

use super::address::{MailFrom, RcptTo, smtp_address};
use crate::core::SetError;

/// A complete envelope.
#[derive(Debug)]
pub(super) struct Envelope {
    pub(super) mail_from: EnvelopeAddress,
    /// The sender as SMTP writes it.
    pub(super) sender: String,
    pub(super) asked: MailFrom,
    /// Each recipient once, in the order of `recipients`.
    pub(super) rcpt_to: Vec<EnvelopeAddress>,
    pub(super) recipients: Vec<NewRecipient>,
}

/// An envelope as a client gives it.
#[derive(Debug)]
pub(super) struct GivenEnvelope {
    pub(super) mail_from: EnvelopeAddress,
    pub(super) rcpt_to: Vec<EnvelopeAddress>,
}

impl GivenEnvelope {
    /// Reads the value of `envelope`.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let object = value.as_object()?;
        if object.keys().any(|key| key != "mailFrom" && key != "rcptTo") {
            return None;
        }
        let rcpt_to = object.get("rcptTo")?.as_array()?;
        Some(Self {
            mail_from: address(object.get("mailFrom")?)?,
            rcpt_to: rcpt_to.iter().map(address).collect::<Option<_>>()?,
        })
    }
}

/// An Address of RFC 8621 §7.
fn address(value: &Value) -> Option<EnvelopeAddress> {
    let object = value.as_object()?;
    if object.keys().any(|key| key != "email" && key != "parameters") {
        return None;
    }
    let email = object.get("email")?.as_str()?.to_owned();
    let parameters = match object.get("parameters") {
        None | Some(Value::Null) => None,
        Some(parameters) => {
            let parameter = |(name, value): (&String, &Value)| match value {
                Value::Null => Some((name.clone(), None)),
                Value::String(text) => Some((name.clone(), Some(text.clone()))),
                _ => None,
            };
            Some(parameters.as_object()?.iter().map(parameter).collect::<Option<_>>()?)
        }
    };
    Some(EnvelopeAddress { email, parameters })
}

/// The senders and recipients in the header of a message.
#[derive(Debug, Default)]
pub(super) struct MessageAddresses {
    /// Of all From fields.
    pub(super) from: Vec<String>,
    /// Of all Sender fields.
    sender: Vec<String>,
    /// The number of From fields.
    from_fields: usize,
    sender_fields: usize,
    /// Of To, Cc and Bcc.
    recipients: Vec<String>,
}

impl MessageAddresses {
    pub(super) fn read(header: &[u8]) -> Self {
        let header = Header::parse(header);
        let mut read = Self::default();
        for field in header.fields() {
            let into = |list: &mut Vec<String>| {
                list.extend(as_addresses(field.value).into_iter().map(|address| address.email));
            };
            match field.name.to_ascii_lowercase().as_str() {
                "from" => {
                    into(&mut read.from);
                    read.from_fields += 1;
                }
                "sender" => {
                    into(&mut read.sender);
                    read.sender_fields += 1;
                }
                "to" | "cc" | "bcc" => into(&mut read.recipients),
                _ => {}
            }
        }
        read
    }

    /// SU2: the invalid properties of the email.
    pub(super) fn problems(&self) -> Vec<&'static str> {
        let mut properties = Vec::new();
        let is_bad = |list: &[String]| list.iter().any(|address| smtp_address(address).is_none());
        if self.from_fields != 1 || self.from.is_empty() || is_bad(&self.from) {
            properties.push("from");
        }
        let is_sender_needed = self.from_fields == 1 && self.from.len() > 1; // RFC 5322 §3.6.2
        let senders = self.sender.len();
        let is_one = self.sender_fields == 1 && senders == 1;
        if (self.sender_fields > 0 || is_sender_needed) && (!is_one || is_bad(&self.sender)) {
            properties.push("sender");
        }
        properties
    }

    /// The return path: Sender, else From.
    pub(super) fn return_path(&self) -> Option<&str> {
        self.sender.last().or_else(|| self.from.first()).map(String::as_str)
    }

    /// To, Cc and Bcc, each address once.
    pub(super) fn recipients(&self) -> Vec<EnvelopeAddress> {
        let mut seen = HashSet::new();
        let mut recipients = Vec::new();
        for email in &self.recipients {
            let key = smtp_address(email).unwrap_or_else(|| email.clone());
            if seen.insert(key) {
                recipients.push(EnvelopeAddress { email: email.clone(), parameters: None });
            }
        }
        recipients
    }
}

/// `invalidEmail` with the properties that are invalid.
pub(super) fn invalid_email(properties: &[&'static str], why: &'static str) -> SetError {
    SetError::new("invalidEmail").describe(why).with("properties", json!(properties))
}

impl Envelope {
    /// Checks an envelope. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// `forbiddenMailFrom`, `noRecipients`, `tooManyRecipients`, `invalidRecipients`; `invalidProperties` for parameters.
    pub(super) fn check(given: GivenEnvelope, recipients_max: usize, now: i64) -> Result<Self, SetError> {
        let GivenEnvelope { mail_from, rcpt_to } = given;
        let wrong = |why: String| SetError::invalid(["envelope"], why);
        if rcpt_to.is_empty() {
            return Err(SetError::new("noRecipients").describe("the envelope has no recipients"));
        }
        if rcpt_to.len() > recipients_max {
            return Err(too_many_recipients(recipients_max));
        }
        let sender = smtp_address(&mail_from.email).ok_or_else(|| {
            SetError::new("forbiddenMailFrom").describe("mailFrom is no address that can be used")
        })?;
        let asked = mail_from.parameters.as_ref();
        let asked = asked.map_or(Ok(MailFrom::default()), |asked| MailFrom::read(asked, now));
        let asked = asked.map_err(wrong)?;
        let mut envelope = Self { mail_from, sender, asked, rcpt_to: Vec::new(), recipients: Vec::new() };
        let mut invalid = Vec::new();
        let mut seen = HashSet::new();
        for given in rcpt_to {
            let Some(address) = smtp_address(&given.email) else {
                invalid.push(given.email);
                continue;
            };
            if !seen.insert(address.clone()) {
                continue;
            }
            let asked = given.parameters.as_ref().map_or(Ok(RcptTo::default()), RcptTo::read);
            let RcptTo { notify, original } = asked.map_err(wrong)?;
            envelope.recipients.push(NewRecipient { address, notify, original });
            envelope.rcpt_to.push(given);
        }
        if invalid.is_empty() {
            return Ok(envelope);
        }
        let error = SetError::new("invalidRecipients").describe("some recipients are no addresses");
        Err(error.with("invalidRecipients", json!(invalid)))
    }
}

/// `tooManyRecipients` with the limit.
pub(super) fn too_many_recipients(max: usize) -> SetError {
    SetError::new("tooManyRecipients").with("maxRecipients", json!(max))
}
