//! The trace fields of a message: ours are put before it, and its own are parsed.

use std::{net::IpAddr, ops::Range};

use memchr::memchr;
use restante_core::Timestamp;
use restante_directory::EmailAddress;
use restante_mail_wire::header::Date;

use crate::Protocol;

/// The most `Received` fields of a message: one with more is in a loop (RFC 5321 §6.3).
pub(crate) const RECEIVED_MAX: usize = 100;
/// The most `Delivered-To` fields that are examined: fewer than a message in a loop has.
const DELIVERED_TO_MAX: usize = 100;
/// How much of a message is parsed. Messages with longer headers become one opaque attachment anyway.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// The values of our trace fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace<'t> {
    pub(crate) sender: &'t str,
    /// The name in the client's greeting.
    pub(crate) hello: &'t str,
    /// Its address; `None` on a Unix socket.
    pub(crate) peer: Option<IpAddr>,
    /// The name of that address in the DNS, if it resolves back to it.
    pub(crate) peer_name: Option<&'t str>,
    pub(crate) hostname: &'t str,
    pub(crate) with: With,
    pub(crate) id: &'t str,
    /// The recipient, if there is only one: several must not learn of each other, and the message is stored once for all.
    pub(crate) recipient: Option<&'t str>,
    pub(crate) time: Timestamp,
}

/// The protocol by which a message was received, for the `with` clause (RFC 3848, RFC 6531 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct With {
    pub(crate) protocol: Protocol,
    /// Whether the client uses extensions.
    pub(crate) is_extended: bool,
    pub(crate) is_tls: bool,
    pub(crate) is_utf8: bool,
}

impl With {
    fn as_str(self) -> &'static str {
        match (self.protocol, self.is_utf8, self.is_tls) {
            (Protocol::Smtp, _, _) if !self.is_extended => "SMTP",
            (Protocol::Smtp, false, false) => "ESMTP",
            (Protocol::Smtp, false, true) => "ESMTPS",
            (Protocol::Smtp, true, false) => "UTF8SMTP",
            (Protocol::Smtp, true, true) => "UTF8SMTPS",
            (Protocol::Submission | Protocol::Submissions, false, false) => "ESMTPA",
            (Protocol::Submission | Protocol::Submissions, false, true) => "ESMTPSA",
            (Protocol::Submission | Protocol::Submissions, true, false) => "UTF8SMTPA",
            (Protocol::Submission | Protocol::Submissions, true, true) => "UTF8SMTPSA",
            (Protocol::Lmtp, false, false) => "LMTP",
            (Protocol::Lmtp, false, true) => "LMTPS",
            (Protocol::Lmtp, true, false) => "UTF8LMTP",
            (Protocol::Lmtp, true, true) => "UTF8LMTPS",
        }
    }
}

impl Trace<'_> {
    /// The fields to be put before the message. For a user they say only that a user submitted it: where users are is private,
    /// and the journal has it.
    pub(crate) fn fields(&self) -> String {
        let name = self.peer_name.map(|name| format!("{name} ")).unwrap_or_default();
        let client = match self.peer.map(|peer| peer.to_canonical()) {
            None => String::new(),
            Some(IpAddr::V4(address)) => format!(" ({name}[{address}])"),
            Some(IpAddr::V6(address)) => format!(" ({name}[IPv6:{address}])"),
        };
        let recipient =
            self.recipient.map(|recipient| format!("\r\n\tfor <{recipient}>")).unwrap_or_default();
        let Self { sender, hello, hostname, id, .. } = self;
        let time = Date { seconds: self.time.seconds(), offset_minutes: 0 };
        let (with, date) = (self.with.as_str(), time.to_rfc_5322());
        let by = format!("by {hostname} with {with} id {id}{recipient};\r\n\t{date}\r\n");
        if self.with.protocol.is_submission() {
            return format!("Received: {by}");
        }
        format!("Return-Path: <{sender}>\r\nReceived: from {hello}{client}\r\n\t{by}")
    }
}

/// What the server needs to know of the header of a received message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// How many `Received` fields it has.
    pub(crate) received: usize,
    /// Whether it has `X-Spam-Flag: YES`.
    pub(crate) is_spam: bool,
    /// The values of `Delivered-To`, at most [`DELIVERED_TO_MAX`].
    delivered_to: Vec<String>,
    /// The ranges of fields that must not be stored, with their line breaks: `Return-Path`, and results of checks that claim to
    /// be from this server.
    removed: Vec<Range<usize>>,
    /// Whether it begins with white space, which would continue the last of our fields.
    begins_folded: bool,
}

impl Header {
    /// Parses the header of a message, each byte once.
    pub(crate) fn read(message: &[u8]) -> Self {
        Self::read_with(message, |_| false)
    }

    /// The same; `claims_to_be_ours` decides from the value of an `Authentication-Results` field whether it claims to be from
    /// this server (RFC 8601 §5).
    pub(crate) fn read_with(message: &[u8], claims_to_be_ours: impl Fn(&[u8]) -> bool) -> Self {
        let message = message.get(..HEADER_BYTES_MAX).unwrap_or(message);
        let mut header = Self { begins_folded: message.first().is_some_and(is_blank), ..Self::default() };
        let mut at = 0;
        while let Some(field) = field_at(message, at) {
            let text = message.get(field.clone()).unwrap_or_default();
            let (name, value) = match memchr(b':', text) {
                Some(colon) => text.split_at(colon),
                None => (text, &[][..]),
            };
            let is = |known: &str| name.trim_ascii_end().eq_ignore_ascii_case(known.as_bytes());
            if is("Received") {
                header.received += 1;
            } else if is("Return-Path") {
                header.removed.push(field.clone());
            } else if is("Delivered-To") && header.delivered_to.len() < DELIVERED_TO_MAX {
                let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
                header.delivered_to.push(String::from_utf8_lossy(value).into_owned());
            } else if is("Authentication-Results") {
                if claims_to_be_ours(value.strip_prefix(b":").unwrap_or(value)) {
                    header.removed.push(field.clone());
                }
            } else if is("X-Spam-Flag") {
                let value = value.strip_prefix(b":").unwrap_or(value);
                header.is_spam |= value.trim_ascii().eq_ignore_ascii_case(b"YES");
            }
            at = field.end;
        }
        header
    }

    /// Whether this server has already forwarded the message for an address.
    pub(crate) fn was_delivered_to(&self, address: &EmailAddress) -> bool {
        self.delivered_to.iter().any(|text| text.parse::<EmailAddress>().is_ok_and(|there| there == *address))
    }

    /// Removes what must not be in a stored message, which begins at `at`.
    pub(crate) fn clean(&self, raw: &mut Vec<u8>, at: usize) {
        remove(raw, at, &self.removed);
        if self.begins_folded {
            raw.splice(at..at, *b"\r\n"); // it has no header: all of it is the body
        }
    }
}

/// The ranges of the fields with this name whose text, from the colon on, matches; with their line breaks.
pub(crate) fn fields_where(
    message: &[u8],
    name: &str,
    is_wanted: impl Fn(&[u8]) -> bool,
) -> Vec<Range<usize>> {
    let message = message.get(..HEADER_BYTES_MAX).unwrap_or(message);
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(field) = field_at(message, at) {
        at = field.end;
        let text = message.get(field.clone()).unwrap_or_default();
        let Some((known, value)) = memchr(b':', text).map(|colon| text.split_at(colon)) else { continue };
        if known.trim_ascii_end().eq_ignore_ascii_case(name.as_bytes()) && is_wanted(value) {
            found.push(field);
        }
    }
    found
}

/// Removes ranges of a message that begins at `at` in `raw`.
pub(crate) fn remove(raw: &mut Vec<u8>, at: usize, ranges: &[Range<usize>]) {
    let mut ranges = ranges.iter().peekable();
    let mut kept = ranges.peek().map_or(raw.len(), |first| at + first.start);
    while let Some(range) = ranges.next() {
        let from = (at + range.end).min(raw.len());
        let to = ranges.peek().map_or(raw.len(), |next| at + next.start).clamp(from, raw.len());
        raw.copy_within(from..to, kept);
        kept += to - from;
    }
    raw.truncate(kept);
}

/// The Message-ID of a message that was not parsed: what is in the angle brackets of the field.
pub(crate) fn message_id(message: &[u8]) -> Option<String> {
    let message = message.get(..HEADER_BYTES_MAX).unwrap_or(message);
    let mut at = 0;
    while let Some(field) = field_at(message, at) {
        let text = message.get(field.clone())?;
        let (name, value) = text.split_at(memchr(b':', text).unwrap_or(text.len()));
        if name.trim_ascii_end().eq_ignore_ascii_case(b"Message-ID") {
            let begin = memchr(b'<', value)? + 1;
            let end = begin + memchr(b'>', value.get(begin..)?)?;
            return Some(String::from_utf8_lossy(value.get(begin..end)?).into_owned());
        }
        at = field.end;
    }
    None
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The field at an offset, with the lines that continue it; `None` at the empty line and at the end.
pub(crate) fn field_at(message: &[u8], at: usize) -> Option<Range<usize>> {
    let rest = message.get(at..)?;
    if rest.is_empty() || rest.starts_with(b"\r\n") {
        return None;
    }
    let mut end = 0;
    loop {
        let line = rest.get(end..)?;
        end += memchr(b'\n', line).map_or(line.len(), |newline| newline + 1);
        if !rest.get(end).is_some_and(is_blank) {
            return Some(at..at + end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace<'static> {
        Trace {
            sender: "anna@example.net",
            hello: "mail.example.net",
            peer: Some("192.0.2.1".parse().unwrap()),
            peer_name: None,
            hostname: "mail.example.org",
            with: With { protocol: Protocol::Smtp, is_extended: true, is_tls: true, is_utf8: false },
            id: "abc",
            recipient: Some("bob@example.org"),
            time: Timestamp(1_000_000_000_000_000_000),
        }
    }

    #[test]
    fn sm8_our_fields_say_who_brought_a_message_and_how() {
        assert_eq!(
            trace().fields(),
            "Return-Path: <anna@example.net>\r\nReceived: from mail.example.net ([192.0.2.1])\r\n\
             \tby mail.example.org with ESMTPS id abc\r\n\tfor <bob@example.org>;\r\n\
             \tSun, 9 Sep 2001 01:46:40 +0000\r\n"
        );
        let to_many = Trace { recipient: None, sender: "", peer: None, ..trace() }.fields();
        assert_eq!(
            to_many,
            "Return-Path: <>\r\nReceived: from mail.example.net\r\n\tby mail.example.org with ESMTPS id abc;\r\n\
             \tSun, 9 Sep 2001 01:46:40 +0000\r\n"
        );
        let v6 = Trace { peer: Some("2001:db8::1".parse().unwrap()), ..trace() }.fields();
        assert!(v6.contains(" ([IPv6:2001:db8::1])\r\n"));
        let named = Trace { peer_name: Some("out.example.net"), ..trace() }.fields();
        assert!(named.contains("from mail.example.net (out.example.net [192.0.2.1])\r\n"), "{named}");
    }

    #[test]
    fn chk5_results_that_claim_to_be_ours_are_removed_in_one_pass() {
        let message = "Authentication-Results: mail.example.org; spf=pass\r\nA: 1\r\n\
                       authentication-results :\r\n mail.example.org;\r\n\tdkim=pass\r\n\
                       Authentication-Results: other.example; spf=pass\r\nReturn-Path: <x>\r\n\r\n\
                       Authentication-Results: mail.example.org\r\n";
        let ours = |value: &[u8]| value.trim_ascii().starts_with(b"mail.example.org");
        let cleaned = |header: Header| {
            let mut raw = format!("T: 1\r\n{message}").into_bytes();
            header.clean(&mut raw, 6);
            String::from_utf8(raw).unwrap()
        };
        let body = "Authentication-Results: mail.example.org\r\n";
        assert_eq!(
            cleaned(Header::read_with(message.as_bytes(), ours)),
            format!("T: 1\r\nA: 1\r\nAuthentication-Results: other.example; spf=pass\r\n\r\n{body}")
        );
        let kept = message.replace("Return-Path: <x>\r\n", "");
        assert_eq!(cleaned(Header::read(message.as_bytes())), format!("T: 1\r\n{kept}"));
    }

    #[test]
    fn sm13_our_field_does_not_say_where_a_user_is() {
        for (protocol, is_tls, name) in [
            (Protocol::Submission, true, "ESMTPSA"),
            (Protocol::Submissions, true, "ESMTPSA"),
            (Protocol::Submission, false, "ESMTPA"),
        ] {
            let with = With { protocol, is_tls, ..trace().with };
            assert_eq!(
                Trace { with, recipient: None, ..trace() }.fields(),
                format!(
                    "Received: by mail.example.org with {name} id abc;\r\n\tSun, 9 Sep 2001 01:46:40 +0000\r\n"
                )
            );
        }
    }

    #[test]
    fn fwd3_a_forwarded_message_is_recognized_by_its_address() {
        let header = Header::read(
            b"Delivered-To: Info@Example.org\r\nDelivered-To : <x>\r\n\r\nDelivered-To: b@c\r\n",
        );
        assert!(header.was_delivered_to(&"info@example.org".parse().unwrap()));
        assert!(!header.was_delivered_to(&"b@c.example".parse().unwrap()));
    }

    #[test]
    fn sm8_the_protocol_is_named_as_registered() {
        let with =
            |protocol, is_extended, is_tls, is_utf8| With { protocol, is_extended, is_tls, is_utf8 }.as_str();
        assert_eq!(with(Protocol::Smtp, false, false, false), "SMTP");
        assert_eq!(with(Protocol::Smtp, true, false, false), "ESMTP");
        assert_eq!(with(Protocol::Smtp, true, true, true), "UTF8SMTPS");
        assert_eq!(with(Protocol::Lmtp, true, false, false), "LMTP");
        assert_eq!(with(Protocol::Lmtp, true, true, false), "LMTPS");
        assert_eq!(with(Protocol::Lmtp, true, false, true), "UTF8LMTP");
    }

    fn cleaned(message: &str) -> String {
        let mut raw = format!("T: 1\r\n{message}").into_bytes();
        Header::read(message.as_bytes()).clean(&mut raw, 6);
        String::from_utf8(raw).unwrap()
    }

    #[test]
    fn sm8_foreign_return_paths_are_removed() {
        let message =
            "A: 1\r\nReturn-Path:\r\n\t<x@y>\r\nB: 2\r\nRETURN-PATH : <z>\r\n\r\nReturn-Path: body\r\n";
        assert_eq!(cleaned(message), "T: 1\r\nA: 1\r\nB: 2\r\n\r\nReturn-Path: body\r\n");
        assert_eq!(cleaned("Return-Path: <x>"), "T: 1\r\n");
        for unchanged in ["", "\r\n", "A: 1\r\n", "\r\nReturn-Path: body\r\n", "no header", "Return-Path"] {
            let expected =
                if unchanged == "Return-Path" { "T: 1\r\n".into() } else { format!("T: 1\r\n{unchanged}") };
            assert_eq!(cleaned(unchanged), expected, "{unchanged:?}");
        }
        assert_eq!(cleaned(" folded\r\nA: 1\r\n"), "T: 1\r\n\r\n folded\r\nA: 1\r\n");
    }

    #[test]
    fn the_message_id_of_a_message_that_was_not_read_is_found() {
        let id = |message: &str| message_id(message.as_bytes());
        assert_eq!(id("A: 1\r\nmessage-id :\r\n\t<a@b> (c)\r\n\r\n").as_deref(), Some("a@b"));
        assert_eq!(id("Message-ID: <a@b>").as_deref(), Some("a@b"));
        for none in [
            "",
            "Message-ID: <a@b",
            "Message-ID: a@b\r\n",
            "Message-ID\r\n",
            "A: 1\r\n\r\nMessage-ID: <a@b>\r\n",
        ] {
            assert_eq!(id(none), None, "{none}");
        }
    }

    #[test]
    fn sm8_received_fields_are_counted_in_the_header_only() {
        let header = "Received: a\r\n\tReceived: folded\r\nreceived : b\r\nX: 1\r\n\r\nReceived: body\r\n";
        assert_eq!(Header::read(header.as_bytes()).received, 2);
    }

    #[test]
    fn a_spam_flag_counts_if_it_says_yes() {
        for (field, expected) in [
            ("X-Spam-Flag: YES", true),
            ("x-spam-flag:yes ", true),
            ("X-Spam-Flag: NO", false),
            ("X-Spam-Status: YES", false),
        ] {
            assert_eq!(Header::read(format!("{field}\r\n\r\n").as_bytes()).is_spam, expected, "{field}");
        }
    }
}
