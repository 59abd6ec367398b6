//! The header of a message as properties of JMAP, and its thread keys.

use std::{collections::BTreeSet, io::Write};

use restante_mail_wire::{
    header::{self, Address, Form, Group, Header},
    subject,
};
use serde_json::json;
use sha2::{Digest, Sha256};

/// The last value of each relevant field; of Received, the first one whose time can be read.
#[derive(Default)]
pub(super) struct Fields<'m> {
    pub(super) message_id: Option<&'m [u8]>,
    pub(super) in_reply_to: Option<&'m [u8]>,
    pub(super) references: Option<&'m [u8]>,
    pub(super) sender: Option<&'m [u8]>,
    pub(super) from: Option<&'m [u8]>,
    pub(super) to: Option<&'m [u8]>,
    pub(super) cc: Option<&'m [u8]>,
    pub(super) bcc: Option<&'m [u8]>,
    pub(super) reply_to: Option<&'m [u8]>,
    pub(super) subject: Option<&'m [u8]>,
    pub(super) date: Option<&'m [u8]>,
    pub(super) newest_received: Option<i64>,
}

impl<'m> Fields<'m> {
    pub(super) fn read(header: &'m [u8]) -> Self {
        let mut fields = Self::default();
        for field in Header::parse(header).fields() {
            if fields.newest_received.is_none() && field.is("Received") {
                fields.newest_received = received_time(field.value);
            } else if let Some(slot) = fields.slot(field.name) {
                *slot = Some(field.value);
            }
        }
        fields
    }

    fn slot(&mut self, name: &str) -> Option<&mut Option<&'m [u8]>> {
        let slots = [
            ("Message-ID", &mut self.message_id),
            ("In-Reply-To", &mut self.in_reply_to),
            ("References", &mut self.references),
            ("Sender", &mut self.sender),
            ("From", &mut self.from),
            ("To", &mut self.to),
            ("Cc", &mut self.cc),
            ("Bcc", &mut self.bcc),
            ("Reply-To", &mut self.reply_to),
            ("Subject", &mut self.subject),
            ("Date", &mut self.date),
        ];
        slots.into_iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, slot)| slot)
    }

    /// RFC 8621 §3, by mail.md section 5: the keys that a message shares with others of its thread, ascending, each once.
    pub(super) fn thread_keys(&self) -> Vec<[u8; 16]> {
        let subject = self.subject.map(header::as_text).unwrap_or_default();
        let subject = subject::base_subject(&subject).to_lowercase();
        let ids = |value: Option<&[u8]>| value.and_then(header::as_message_ids).unwrap_or_default();
        let mut keys = BTreeSet::new();
        keys.extend(ids(self.message_id).first().map(|id| thread_key(id, &subject)));
        for value in [self.in_reply_to, self.references] {
            let ids = ids(value);
            let last = ids.iter().skip(1.max(ids.len().saturating_sub(LAST_IDS)));
            keys.extend(ids.first().into_iter().chain(last).map(|id| thread_key(id, &subject)));
        }
        keys.into_iter().collect()
    }
}

/// How many of the last ids of a list are keys: those that this message answers. The first id, which began the thread, always is one.
const LAST_IDS: usize = 15;

/// The first 16 bytes of the SHA-256 of the id's length in 4 bytes (big-endian), the id, and the base subject in lowercase.
fn thread_key(id: &str, subject: &str) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(u32::try_from(id.len()).unwrap_or(u32::MAX).to_be_bytes());
    hash.update(id);
    hash.update(subject);
    let hash: [u8; 32] = hash.finalize().into();
    let (key, _) = hash.split_first_chunk().unwrap_or((&[0; 16], &[]));
    *key
}

/// RFC 5321 §4.4: the time follows the last semicolon.
fn received_time(value: &[u8]) -> Option<i64> {
    let at = memchr::memrchr(b';', value)?;
    header::as_date(value.get(at + 1..)?).map(|date| date.seconds)
}

/// Writes the value of a header field in a form as JSON, as `header:Name:asForm` of an Email has it. A field that can't be read in
/// that form is null.
pub fn write_header_json(form: Form, value: &[u8], out: &mut Vec<u8>) {
    match form {
        Form::Raw => write_string(&header::as_raw(value), out),
        Form::Text => write_string(&header::as_text(value), out),
        Form::Addresses => write_array(&header::as_addresses(value), out, write_address),
        Form::GroupedAddresses => write_array(&header::as_grouped_addresses(value), out, write_group),
        Form::MessageIds => write_strings(header::as_message_ids(value), out),
        Form::Date => match header::as_date(value) {
            Some(date) => write_string(&date.to_string(), out),
            None => out.extend_from_slice(b"null"),
        },
        Form::Urls => write_strings(header::as_urls(value), out),
    }
}

fn write_strings(strings: Option<Vec<String>>, out: &mut Vec<u8>) {
    match strings {
        Some(strings) => write_array(&strings, out, |string, out| write_string(string, out)),
        None => out.extend_from_slice(b"null"),
    }
}

fn write_array<T>(items: &[T], out: &mut Vec<u8>, write: impl Fn(&T, &mut Vec<u8>)) {
    out.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(item, out);
    }
    out.push(b']');
}

fn write_address(address: &Address, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"name\":");
    write_name(address.name.as_deref(), out);
    out.extend_from_slice(b",\"email\":");
    write_string(&address.email, out);
    out.push(b'}');
}

fn write_group(group: &Group, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"name\":");
    write_name(group.name.as_deref(), out);
    out.extend_from_slice(b",\"addresses\":");
    write_array(&group.addresses, out, write_address);
    out.push(b'}');
}

fn write_name(name: Option<&str>, out: &mut Vec<u8>) {
    match name {
        Some(name) => write_string(name, out),
        None => out.extend_from_slice(b"null"),
    }
}

pub(super) fn write_string(text: &str, out: &mut Vec<u8>) {
    write!(out, "{}", json!(text)).expect("a vector takes all that is written");
}

#[cfg(test)]
mod tests;
