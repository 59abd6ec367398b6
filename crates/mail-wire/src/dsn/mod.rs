//! Writes reports about the delivery of a message: `multipart/report` (RFC 6522) with a text for people, a delivery status for
//! programs (RFC 3464; RFC 6533 if addresses need UTF-8), and the message or its header.

mod status;
mod text;

use bytes::Bytes;

use crate::{
    compose::{ComposeError, Content, FieldValue, Message, Origin, Part},
    header::{Address, Date, Header, as_message_ids},
};

/// The outcome for the recipients: `Action` (RFC 3464 §2.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Delivery has ended without success.
    Failed,
    /// Delivery will be tried again.
    Delayed,
    /// The message is in a mailbox.
    Delivered,
    /// The message was passed to a server that does not report deliveries.
    Relayed,
    /// The recipient leads to several addresses, and the message was passed on to them.
    Expanded,
}

/// How much of the message a report returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// All of it.
    Whole,
    /// Its header.
    Header,
}

/// A recipient in a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedRecipient<'r> {
    /// The address.
    pub address: &'r str,
    /// `ORCPT` (RFC 3461 §4.2) as it was received, in `xtext`: `rfc822;bob@example.net`.
    pub original: Option<&'r str>,
    /// The enhanced status code of the reply (RFC 3463): `5.1.1`.
    pub status: &'r str,
    /// The reply code of the last attempt.
    pub code: u16,
    /// The text of the reply.
    pub text: &'r str,
    /// The server that replied; `None` if the reporting server found the problem itself.
    pub server: Option<&'r str>,
    /// Why it is not tried any more although that reply was temporary, as a text of the reporting server.
    pub expired: Option<&'r str>,
    /// When the last attempt was made, in seconds since 1970.
    pub last_attempt: i64,
    /// Until when delivery is tried, in seconds since 1970.
    pub will_retry_until: Option<i64>,
}

/// A report. Whatever its texts are, it is one well-formed message.
#[derive(Clone, Debug)]
pub struct Report<'r> {
    /// The outcome for all its recipients.
    pub action: Action,
    /// The name of the server that reports.
    pub host: &'r str,
    /// The address that the report comes from.
    pub from: &'r str,
    /// The sender of the message, who gets the report.
    pub to: &'r str,
    /// `ENVID` (RFC 3461 §4.4) as it was received, in `xtext`.
    pub envelope_id: Option<&'r str>,
    /// When the message was queued, in seconds since 1970.
    pub arrived: i64,
    /// When the report is made, in seconds since 1970.
    pub now: i64,
    /// Whether the message was sent with SMTPUTF8 (RFC 6531): then addresses and texts are in UTF-8, and otherwise in ASCII.
    pub is_utf8: bool,
    /// The message; empty when it can't be returned.
    pub original: &'r [u8],
    /// How much of it is returned.
    pub returned: Returned,
    /// Its recipients.
    pub recipients: Vec<ReportedRecipient<'r>>,
    /// Random octets, from which Message-ID and boundaries are made.
    pub seed: [u8; 16],
}

impl Report<'_> {
    /// The report as a message, lines ended by CRLF.
    pub fn write(&self) -> Vec<u8> {
        let origin =
            Origin { seed: self.seed, date: Date { seconds: self.now, offset_minutes: 0 }, host: self.host };
        let to = FieldValue::Addresses(vec![Address { name: None, email: self.to.to_owned() }]);
        let message = self.message(Some(to));
        // A sender that is not valid in a field is still in the envelope.
        let written = message.write(&origin).or_else(|_| self.message(None).write(&origin));
        let mut bytes = written.unwrap_or_else(|error| self.plain(&error));
        if !bytes.ends_with(b"\r\n") {
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    fn message(&self, to: Option<FieldValue>) -> Message {
        let from = Address { name: Some("Mail Delivery System".to_owned()), email: self.from.to_owned() };
        let raw = |value: &str| FieldValue::Raw(format!(" {value}"));
        let mut fields = vec![("From".to_owned(), FieldValue::Addresses(vec![from]))];
        fields.extend(to.map(|to| ("To".to_owned(), to)));
        fields.push(("Subject".to_owned(), raw(self.subject())));
        fields.push(("Auto-Submitted".to_owned(), raw("auto-replied"))); // RFC 3834 §5
        if let Some(id) = self.message_id() {
            fields.push(("In-Reply-To".to_owned(), FieldValue::MessageIds(vec![id.clone()])));
            fields.push(("References".to_owned(), FieldValue::MessageIds(vec![id])));
        }
        let status_type =
            if self.is_utf8 { "message/global-delivery-status" } else { "message/delivery-status" };
        let status = Part::new(status_type, Content::Bytes(Bytes::from(status::write(self))));
        let mut parts = vec![Part::new("text/plain", Content::Text(text::write(self).into())), status];
        parts.extend(self.returned_part());
        let parameters = vec![("report-type".to_owned(), "delivery-status".to_owned())];
        let root = Part { parameters, ..Part::new("multipart/report", Content::Parts(parts)) };
        Message { fields, root }
    }

    /// A report with only the text, in case the other one contains something that can't be written.
    fn plain(&self, error: &ComposeError) -> Vec<u8> {
        let text = text::write(self).replace('\n', "\r\n");
        let text: String = text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect();
        let subject = self.subject();
        format!("Subject: {subject}\r\nAuto-Submitted: auto-replied\r\n\r\n{text}\r\n({error})\r\n")
            .into_bytes()
    }

    fn subject(&self) -> &'static str {
        match self.action {
            Action::Failed => "Your message could not be delivered",
            Action::Delayed => "Your message is delayed",
            Action::Delivered => "Your message was delivered",
            Action::Relayed | Action::Expanded => "Your message was passed on",
        }
    }

    /// The Message-ID of the message, if it is valid in a field.
    fn message_id(&self) -> Option<String> {
        let field = Header::parse(self.original).last("Message-ID")?;
        let id = as_message_ids(field.value)?.into_iter().next()?;
        let is_plain = id.len() <= 250 && id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'>');
        is_plain.then_some(id)
    }

    fn original_header(&self) -> &[u8] {
        self.original.get(..Header::parse(self.original).bytes()).unwrap_or(self.original)
    }

    /// How much of the message is returned. A message whose header has non-ASCII bytes, although it was received without
    /// SMTPUTF8, could not be passed on to a server without 8BITMIME: message/rfc822 must not be encoded (RFC 2046 §5.2.1). Its
    /// header can be encoded as a text.
    fn returned(&self) -> Returned {
        let is_whole = self.is_utf8 || self.original_header().is_ascii();
        if is_whole { self.returned } else { Returned::Header }
    }

    /// The message or its header.
    fn returned_part(&self) -> Option<Part> {
        if self.original.is_empty() {
            return None;
        }
        let header = self.original_header();
        let is_global = self.is_utf8 && !header.is_ascii();
        let (media_type, content) = match (self.returned(), is_global) {
            (Returned::Whole, false) => ("message/rfc822", self.original),
            (Returned::Whole, true) => ("message/global", self.original),
            (Returned::Header, false) => ("text/rfc822-headers", header),
            (Returned::Header, true) => ("message/global-headers", header),
        };
        Some(Part::new(media_type, Content::Bytes(Bytes::copy_from_slice(content))))
    }
}

/// A text in one line of at most `bytes_max` bytes, without control characters; in ASCII unless UTF-8 is allowed.
fn one_line(text: &str, is_utf8: bool, bytes_max: usize) -> String {
    let shown = |c: char| match c {
        _ if c.is_control() => ' ',
        _ if !c.is_ascii() && !is_utf8 => '?',
        _ => c,
    };
    let mut line: String = text.chars().map(shown).collect();
    line.truncate(line.floor_char_boundary(bytes_max));
    line.trim().to_owned()
}

#[cfg(test)]
mod tests;
