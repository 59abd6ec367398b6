//! What submission changes in a message, and what it extracts from it (RFC 6409 §8).

use std::ops::Range;

use bytes::Bytes;
use memchr::memchr;
use restante_core::Timestamp;
use restante_directory::EmailAddress;
use restante_mail::queue::Transmission;
use restante_mail_wire::{
    compose::OriginFields,
    header::{Date, as_addresses, as_message_ids},
};

use crate::{
    forwards::transmission_of,
    refusal::Refusal,
    trace::{Header, RECEIVED_MAX, field_at, remove},
};

/// The longest header. Clients write some kilobytes.
const HEADER_BYTES_MAX: usize = 1 << 20;
/// The most authors of a message.
const AUTHORS_MAX: usize = 100;

/// The values with which a message is completed.
#[derive(Debug)]
pub(crate) struct Completion {
    /// Where the message begins, after our trace field.
    pub(crate) at: usize,
    /// For `Date`.
    pub(crate) now: Timestamp,
    /// For `Message-ID`.
    pub(crate) message_id: String,
}

/// A submitted message as it is queued.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) raw: Bytes,
    /// The addresses in `From`.
    pub(crate) authors: Vec<EmailAddress>,
    /// Without brackets.
    pub(crate) message_id: Option<String>,
    /// What a server must support to receive it, if the client has declared it.
    pub(crate) transmission: Transmission,
}

impl Completion {
    /// Removes `Bcc` from a message, and adds `Date` and `Message-ID` where they are missing.
    ///
    /// # Errors
    /// The message can't be sent: as [`SubmittedHeader::read`], or [`Refusal::HopLimit`].
    pub(crate) fn complete(self, mut raw: Vec<u8>) -> Result<Completed, Refusal> {
        let message = raw.get(self.at..).unwrap_or_default();
        if Header::read(message).received > RECEIVED_MAX {
            return Err(Refusal::HopLimit);
        }
        let mut header = SubmittedHeader::read(message)?;
        header.complete(&mut raw, self.at, self.now, self.message_id);
        let transmission = transmission_of(&raw);
        let SubmittedHeader { authors, message_id, .. } = header;
        Ok(Completed { raw: Bytes::from(raw), authors, message_id, transmission })
    }
}

/// The header of a submitted message.
#[derive(Debug, Default, PartialEq, Eq)]
struct SubmittedHeader {
    authors: Vec<EmailAddress>,
    message_id: Option<String>,
    has_message_id: bool,
    has_date: bool,
    /// Fields that are removed, with their line breaks.
    removed: Vec<Range<usize>>,
}

impl SubmittedHeader {
    /// Reads the header of a message.
    ///
    /// # Errors
    /// The message can't be sent: [`Refusal::HeaderTooLong`], [`Refusal::NulByte`], or [`Refusal::NoAuthor`] without exactly one
    /// `From` field that has addresses.
    fn read(message: &[u8]) -> Result<Self, Refusal> {
        if memchr(0, message).is_some() {
            return Err(Refusal::NulByte);
        }
        let (mut header, mut at, mut from_fields) = (Self::default(), 0, 0);
        while let Some(field) = field_at(message, at) {
            if field.end > HEADER_BYTES_MAX {
                return Err(Refusal::HeaderTooLong);
            }
            let text = message.get(field.clone()).unwrap_or_default();
            let (name, value) = text.split_at(memchr(b':', text).unwrap_or(text.len()));
            let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
            let is = |known: &str| name.trim_ascii_end().eq_ignore_ascii_case(known.as_bytes());
            if is("From") {
                from_fields += 1;
                header.authors = authors_of(value)?;
            } else if is("Message-ID") {
                header.has_message_id = true;
                header.message_id = as_message_ids(value).and_then(|ids| ids.into_iter().next());
            } else if is("Date") {
                header.has_date = true;
            } else if is("Bcc") || is("Resent-Bcc") || is("Return-Path") {
                header.removed.push(field.clone());
            }
            at = field.end;
        }
        if from_fields == 1 { Ok(header) } else { Err(Refusal::NoAuthor) }
    }

    /// Removes `Bcc` from a message that begins at `at` in `raw`, and adds `Date` and `Message-ID` where they are missing. `id`
    /// is used for the latter.
    fn complete(&mut self, raw: &mut Vec<u8>, at: usize, now: Timestamp, id: String) {
        remove(raw, at, &self.removed);
        let date = Date { seconds: now.seconds(), offset_minutes: 0 };
        let fields = OriginFields { date, message_id: id };
        let added = fields.missing(self.has_date, self.has_message_id);
        if !self.has_message_id {
            self.message_id = Some(fields.message_id);
        }
        raw.splice(at..at, added.into_bytes());
    }
}

/// The addresses of a `From` field, at least one.
fn authors_of(value: &[u8]) -> Result<Vec<EmailAddress>, Refusal> {
    let addresses = as_addresses(value);
    if addresses.is_empty() || addresses.len() > AUTHORS_MAX {
        return Err(Refusal::NoAuthor);
    }
    addresses.into_iter().map(|address| address.email.parse().map_err(|_| Refusal::NoAuthor)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message as it is queued.
    fn completed(message: &str) -> String {
        let mut raw = format!("T: 1\r\n{message}").into_bytes();
        let mut header = SubmittedHeader::read(message.as_bytes()).unwrap();
        header.complete(&mut raw, 6, Timestamp::from_seconds(1_000_000_000), "id@mail.example.org".into());
        String::from_utf8(raw).unwrap()
    }

    #[test]
    fn sm13_date_and_message_id_are_added_when_they_are_missing() {
        assert_eq!(
            completed("From: a@b.example\r\n\r\nText\r\n"),
            "T: 1\r\nDate: Sun, 9 Sep 2001 01:46:40 +0000\r\nMessage-ID: <id@mail.example.org>\r\n\
             From: a@b.example\r\n\r\nText\r\n"
        );
        let whole = "from: a@b.example\r\nDATE: now\r\nmessage-id : <x@y>\r\n\r\nText\r\n";
        assert_eq!(completed(whole), format!("T: 1\r\n{whole}"));
        let header = SubmittedHeader::read(whole.as_bytes()).unwrap();
        assert_eq!(header.message_id.as_deref(), Some("x@y"));
    }

    #[test]
    fn sm13_bcc_is_removed_wherever_it_stands() {
        let message = "Bcc: x@y\r\nDate: d\r\nBCC :\r\n\tsecret@z,\r\n w\r\nFrom: a@b.example\r\nMessage-ID: <i@j>\r\n\
                       Resent-Bcc: x@y\r\nReturn-Path: <q@r>\r\n\r\nBcc: body\r\n";
        let expected = "T: 1\r\nDate: d\r\nFrom: a@b.example\r\nMessage-ID: <i@j>\r\n\r\nBcc: body\r\n";
        assert_eq!(completed(message), expected);
    }

    #[test]
    fn sm13_a_message_has_one_from_field_with_addresses() {
        let read = |message: &str| SubmittedHeader::read(message.as_bytes()).map(|header| header.authors);
        let address = |text: &str| text.parse::<EmailAddress>().unwrap();
        let two = "From: A <A@b.example>,\r\n \"B, C\" <c@d.example>\r\n\r\n";
        assert_eq!(read(two), Ok(vec![address("a@b.example"), address("c@d.example")]));
        for none in [
            "",
            "\r\nFrom: a@b.example\r\n",
            "From:\r\n\r\n",
            "From: nobody\r\n\r\n",
            "From: a@b.example, nobody\r\n\r\n",
            "From: a@b.example\r\nFrom: a@b.example\r\n\r\n",
            "To: a@b.example\r\n\r\n",
        ] {
            assert_eq!(read(none), Err(Refusal::NoAuthor), "{none:?}");
        }
        let long = format!("From: a@b.example\r\nX: {}\r\n\r\n", "x".repeat(HEADER_BYTES_MAX));
        assert_eq!(read(&long), Err(Refusal::HeaderTooLong));
        assert_eq!(read("From: a@b.example\r\n\r\n\0"), Err(Refusal::NulByte));
    }
}
