use std::borrow::Cow;

use restante_mail_wire::header::{self, Header};

use super::{PartKind, decoded, scan};

/// How deep messages within messages are read. Each one is scanned again, since a message in a part has no parts of its own in the
/// structure.
const MESSAGES_NESTED_MAX: usize = 16;

/// The names that the parts of a message have, decoded (RFC 2231, RFC 2047): both the `filename` of Content-Disposition and the
/// `name` of Content-Type, since programs differ in which of them they show. Names inside attached messages are included.
///
/// `None` for a message with more than `names_max` names, or beyond [`super::PARTS_MAX`], [`super::NESTING_MAX`],
/// [`super::HEADER_BYTES_MAX`] or 16 levels of messages within messages: not all of its parts are read, and other programs may show
/// them.
pub fn attachment_names(raw: &[u8], names_max: usize) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut messages = vec![(Cow::Borrowed(raw), 0)];
    while let Some((raw, depth)) = messages.pop() {
        let whole: &[u8] = &raw;
        let raw = whole.get(..u32::MAX as usize).unwrap_or(whole); // Offsets have 32 bits.
        for part in scan::parts(raw).ok()? {
            names.extend(names_of(part.header.of(raw)));
            if names.len() > names_max {
                return None;
            }
            if part.kind != PartKind::Message {
                continue;
            }
            if depth == MESSAGES_NESTED_MAX {
                return None;
            }
            // RFC 2046 §5.2.1 does not allow encodings like base64 for it, but programs decode it all the same.
            let inner = decoded(raw, &part).into_owned();
            messages.push((Cow::Owned(inner), depth + 1));
        }
    }
    Some(names)
}

fn names_of(part_header: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    for field in Header::parse(part_header).fields() {
        let parameter = match field.name.to_ascii_lowercase().as_str() {
            "content-type" => "name",
            "content-disposition" => "filename",
            _ => continue,
        };
        let parameters = header::as_parameters(field.value);
        let name = parameters.get(parameter).map(str::trim).filter(|name| !name.is_empty());
        names.extend(name.map(str::to_owned));
    }
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::{super::PARTS_MAX, *};

    fn names(raw: &str) -> Option<Vec<String>> {
        attachment_names(raw.replace('\n', "\r\n").as_bytes(), 100)
    }

    #[test]
    fn chk15_names_of_parts_are_found_however_they_are_written() {
        for (fields, expected) in [
            ("Content-Disposition: attachment; filename=\"setup.exe\"", vec!["setup.exe"]),
            ("Content-Type: application/zip; name=setup.exe", vec!["setup.exe"]),
            (
                "CONTENT-TYPE: text/plain; NAME=\"a.txt\"\nContent-Disposition: inline; filename=b.exe",
                vec!["a.txt", "b.exe"],
            ),
            ("Content-Disposition: attachment; filename*=utf-8''pr%C3%BCfung.exe", vec!["pr\u{fc}fung.exe"]),
            ("Content-Disposition: attachment; filename*0=set; filename*1=up.exe", vec!["setup.exe"]),
            ("Content-Disposition: attachment; filename=\"=?utf-8?B?c2V0dXAuZXhl?=\"", vec!["setup.exe"]),
            ("Content-Disposition: attachment;\n filename=\"setup.exe\"", vec!["setup.exe"]),
            ("Content-Disposition: attachment", vec![]),
        ] {
            let alone = format!("Subject: x\n{fields}\n\nbytes\n");
            assert_eq!(names(&alone).unwrap(), expected, "{fields}");
            let inside = format!(
                "Content-Type: multipart/mixed; boundary=b\n\n--b\n\ntext\n--b\n{fields}\n\nbytes\n--b--\n"
            );
            assert_eq!(names(&inside).unwrap(), expected, "{fields}");
            let forwarded = format!("Content-Type: message/rfc822\n\n{inside}");
            assert_eq!(names(&forwarded).unwrap(), expected, "{fields}");
            let encoded: String = inside.bytes().map(|byte| format!("={byte:02X}=\n")).collect();
            let encoded = format!(
                "Content-Type: message/rfc822\nContent-Transfer-Encoding: quoted-printable\n\n{encoded}"
            );
            assert_eq!(names(&encoded).unwrap(), expected, "{fields}");
        }
    }

    #[test]
    fn chk15_a_message_whose_parts_are_not_read_is_no_message_without_attachments() {
        let part = "--b\nContent-Disposition: attachment; filename=a.exe\n\nx\n";
        let message =
            |parts: usize| format!("Content-Type: multipart/mixed; boundary=b\n\n{}", part.repeat(parts));
        assert_eq!(names(&message(100)).unwrap().len(), 100);
        assert_eq!(names(&message(101)), None, "more than asked for");
        assert_eq!(names(&message(PARTS_MAX)), None);
        let nested = |depth: usize| {
            format!(
                "{}Content-Disposition: attachment; filename=a.exe\n\nx\n",
                "Content-Type: message/rfc822\n\n".repeat(depth)
            )
        };
        assert_eq!(names(&nested(MESSAGES_NESTED_MAX)).unwrap(), ["a.exe"]);
        assert_eq!(names(&nested(MESSAGES_NESTED_MAX + 1)), None);
    }
}
