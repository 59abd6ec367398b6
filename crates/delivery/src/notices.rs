//! Writes the reports that senders get.

use restante_mail::queue::{Return, Transmission};
use restante_mail_wire::dsn::{Action, Report, ReportedRecipient, Returned};
use sha2::{Digest, Sha256};

use crate::{NoticeAbout, NoticeKind, Notices, prepare::sniff};

/// A message up to this length is returned whole; of a longer one, only the header.
const RETURNED_BYTES_MAX: usize = 256 << 10;
/// The local part of the address that reports come from.
const SENDER: &str = "mailer-daemon";

/// Reports as multipart/report (RFC 3464).
#[derive(Clone, Debug)]
pub struct ReportNotices {
    hostname: String,
}

impl ReportNotices {
    /// Reports of the server with this name.
    pub fn new(hostname: &str) -> Self {
        Self { hostname: hostname.to_owned() }
    }
}

impl Notices for ReportNotices {
    fn compose(&self, about: &NoticeAbout) -> (Vec<u8>, Transmission) {
        let action = match about.kind {
            NoticeKind::Failed => Action::Failed,
            NoticeKind::Delayed => Action::Delayed,
            NoticeKind::Delivered { is_local: true } => Action::Delivered,
            NoticeKind::Delivered { is_local: false } => Action::Relayed,
            NoticeKind::Expanded => Action::Expanded,
        };
        // RFC 3461 §4.3: RET applies to failures; other reports have only the header.
        let is_whole = action == Action::Failed
            && about.returned != Some(Return::Headers)
            && about.original.len() <= RETURNED_BYTES_MAX;
        let is_utf8 = about.transmission.is_utf8 || !about.sender.is_ascii();
        let report = Report {
            action,
            host: &self.hostname,
            from: &format!("{SENDER}@{}", self.hostname),
            to: &about.sender,
            envelope_id: about.envelope_id.as_deref(),
            arrived: seconds(about.arrived),
            now: seconds(about.now),
            is_utf8,
            original: &about.original,
            returned: if is_whole { Returned::Whole } else { Returned::Header },
            recipients: about.recipients.iter().map(reported).collect(),
            seed: seed_of(about),
        };
        let bytes = report.write();
        let transmission = sniff(&bytes);
        (bytes, transmission)
    }
}

fn reported(recipient: &crate::NoticeRecipient) -> ReportedRecipient<'_> {
    ReportedRecipient {
        address: &recipient.address,
        original: recipient.original.as_deref(),
        status: &recipient.reply.enhanced,
        code: recipient.reply.code,
        text: &recipient.reply.text,
        server: recipient.reply.from.as_deref(),
        expired: recipient.expired.as_deref(),
        last_attempt: seconds(recipient.last_attempt),
        will_retry_until: recipient.will_retry_until.map(seconds),
    }
}

fn seconds(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// The seed of the boundaries and the Message-ID: always the same for the same report, and different for any other.
fn seed_of(about: &NoticeAbout) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(about.key);
    hash.update(format!("{:?} {} {} {}", about.kind, about.arrived, about.now, about.sender));
    hash.update(&about.original);
    for recipient in &about.recipients {
        hash.update(format!("{recipient:?}"));
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut seed = [0; 16];
    seed.copy_from_slice(digest.split_at(16).0);
    seed
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use restante_mail::{
        message::{self, PartKind},
        queue::Reply,
    };

    use super::*;
    use crate::NoticeRecipient;

    const MESSAGE: &[u8] = b"From: anna@example.org\r\nSubject: hello\r\n\r\n.text\r\n";

    fn about(kind: NoticeKind) -> NoticeAbout {
        let mut reply = Reply::own(550, "5.1.1", "no such user");
        reply.from = Some("mx.example.net".into());
        NoticeAbout {
            key: [1; 32],
            kind,
            sender: "anna@example.org".into(),
            envelope_id: None,
            returned: None,
            arrived: 1_000_000_000,
            now: 1_000_000_100,
            original: Bytes::from_static(MESSAGE),
            transmission: Transmission::default(),
            recipients: vec![NoticeRecipient {
                address: "bob@example.net".into(),
                original: Some("rfc822;bob@example.net".into()),
                reply,
                expired: None,
                attempts: 1,
                last_attempt: 1_000_000_050,
                will_retry_until: Some(1_000_400_000),
            }],
        }
    }

    fn composed(about: &NoticeAbout) -> Vec<u8> {
        ReportNotices::new("mail.example.org").compose(about).0
    }

    /// The types and the bodies of the three parts, as our own reader finds them.
    fn parts(report: &[u8]) -> Vec<(String, Vec<u8>)> {
        let structure = message::structure(report);
        let root = structure.part(1).unwrap();
        assert_eq!((root.kind, root.media_type.as_str()), (PartKind::Multipart, "multipart/report"));
        let children = structure.children(1);
        children.map(|part| (part.media_type.clone(), message::decoded(report, part).into_owned())).collect()
    }

    fn types(about: &NoticeAbout) -> Vec<String> {
        parts(&composed(about)).into_iter().map(|(media_type, _)| media_type).collect()
    }

    #[test]
    fn dsn4_our_own_reader_finds_what_a_report_was_made_of() {
        let found = parts(&composed(&about(NoticeKind::Failed)));
        let types: Vec<&str> = found.iter().map(|(media_type, _)| media_type.as_str()).collect();
        assert_eq!(types, ["text/plain", "message/delivery-status", "message/rfc822"]);
        assert!(String::from_utf8_lossy(&found[0].1).contains("bob@example.net"));
        assert!(String::from_utf8_lossy(&found[1].1).contains("Action: failed\r\nStatus: 5.1.1\r\n"));
        assert_eq!(found[2].1, MESSAGE);
    }

    #[test]
    fn dsn4_each_outcome_is_named() {
        for (kind, action) in [
            (NoticeKind::Failed, "Action: failed"),
            (NoticeKind::Delayed, "Action: delayed"),
            (NoticeKind::Delivered { is_local: true }, "Action: delivered"),
            (NoticeKind::Delivered { is_local: false }, "Action: relayed"),
            (NoticeKind::Expanded, "Action: expanded"),
        ] {
            let status = parts(&composed(&about(kind))).remove(1).1;
            assert!(String::from_utf8_lossy(&status).contains(action), "{action}");
        }
    }

    #[test]
    fn dsn5_only_failures_return_the_message_and_not_when_it_is_large() {
        let last = |about: &NoticeAbout| types(about).pop().unwrap();
        let failed = about(NoticeKind::Failed);
        assert_eq!(last(&failed), "message/rfc822");
        assert_eq!(last(&NoticeAbout { returned: Some(Return::Full), ..failed.clone() }), "message/rfc822");
        let headers = NoticeAbout { returned: Some(Return::Headers), ..failed.clone() };
        assert_eq!(last(&headers), "text/rfc822-headers");
        let large = [MESSAGE, &b"text\r\n".repeat(RETURNED_BYTES_MAX / 6)].concat();
        assert_eq!(last(&NoticeAbout { original: large.into(), ..failed.clone() }), "text/rfc822-headers");
        assert_eq!(last(&about(NoticeKind::Delayed)), "text/rfc822-headers");
        let unreadable = NoticeAbout { original: Bytes::new(), ..failed };
        assert_eq!(types(&unreadable), ["text/plain", "message/delivery-status"]);
    }

    #[test]
    fn dsn6_a_report_says_how_it_may_be_transmitted() {
        let notices = ReportNotices::new("mail.example.org");
        let ascii = about(NoticeKind::Failed);
        assert_eq!(notices.compose(&ascii).1, Transmission::default());
        let original = Bytes::from("Subject: grüße\r\n\r\ntext\r\n");
        let transmission = Transmission { is_8bit: true, is_utf8: true };
        let utf8 = NoticeAbout { original, transmission, ..ascii };
        assert_eq!(notices.compose(&utf8).1, Transmission { is_8bit: true, is_utf8: false });
        assert_eq!(types(&utf8), ["text/plain", "message/global-delivery-status", "message/global"]);
        let to_utf8 = NoticeAbout { sender: "jürgen@example.org".into(), ..utf8 };
        assert!(notices.compose(&to_utf8).1.is_utf8, "its To field");
    }

    /// Such a report was lost on the way to a server without 8BITMIME.
    #[test]
    fn dsn5_a_report_about_a_header_with_other_bytes_can_be_made_ascii() {
        let original = Bytes::from_static(b"From: anna@example.org\r\nSubject: gr\xfc\xdfe\r\n\r\ntext\r\n");
        let report = composed(&NoticeAbout { original, ..about(NoticeKind::Failed) });
        let ascii = crate::prepare::to_seven_bit(&report).unwrap_or(report);
        assert!(ascii.is_ascii(), "{}", ascii.escape_ascii());
        let (media_type, header) = parts(&ascii).pop().unwrap();
        assert_eq!(media_type, "text/rfc822-headers");
        assert!(header.starts_with(b"From: anna@example.org\r\nSubject: gr\xfc\xdfe\r\n"));
    }

    #[test]
    fn dsn4_the_same_report_is_the_same_bytes_and_another_one_is_not() {
        let one = about(NoticeKind::Failed);
        assert_eq!(composed(&one), composed(&one));
        let later = NoticeAbout { now: one.now + 1, ..one.clone() };
        assert_ne!(seed_of(&one), seed_of(&later));
        // Two submissions of one email differ in nothing else, or in ENVID, and their reports had one Message-ID.
        let of_other = NoticeAbout { key: [2; 32], ..one.clone() };
        assert_ne!(seed_of(&one), seed_of(&of_other));
    }
}
