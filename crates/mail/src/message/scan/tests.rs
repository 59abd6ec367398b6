use mail_parser::{MessageParser, PartType};
use proptest::prelude::*;

use super::super::{PartKind, structure};

/// A sound message of random parts.
#[derive(Clone, Debug)]
enum Tree {
    Leaf(&'static str),
    Multi(&'static str, Vec<Tree>),
}

impl Tree {
    fn write(&self, path: &str, out: &mut String) {
        match self {
            Tree::Leaf(media_type) => {
                out.push_str(&format!("Content-Type: {media_type}\r\n\r\ncontent of {path}\r\n"))
            }
            Tree::Multi(subtype, parts) => {
                out.push_str(&format!("Content-Type: multipart/{subtype}; boundary=\"b{path}\"\r\n\r\n"));
                for (index, part) in parts.iter().enumerate() {
                    out.push_str(&format!("\r\n--b{path}\r\n"));
                    part.write(&format!("{path}.{index}x"), out);
                }
                out.push_str(&format!("\r\n--b{path}--\r\n"));
            }
        }
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let media_type = prop_oneof![
        Just("text/plain"),
        Just("text/html; charset=utf-8"),
        Just("image/png; name=x.png"),
        Just("application/pdf"),
        Just("text/csv"),
    ];
    media_type.prop_map(Tree::Leaf).prop_recursive(4, 24, 4, |part| {
        let subtype = prop_oneof![Just("mixed"), Just("related"), Just("alternative"), Just("signed")];
        (subtype, proptest::collection::vec(part, 1..4))
            .prop_map(|(subtype, parts)| Tree::Multi(subtype, parts))
    })
}

/// The parts below one of mail-parser, depth first: whether it has parts, its type, its body.
fn flatten(message: &mail_parser::Message<'_>, id: u32, out: &mut Vec<(bool, String, String)>) {
    use mail_parser::MimeHeaders;
    let part = &message.parts[id as usize];
    let media_type =
        part.content_type().map(|it| format!("{}/{}", it.ctype(), it.subtype().unwrap_or_default()));
    let (start, end) = (part.offset_body as usize, part.offset_end as usize);
    match &part.body {
        PartType::Multipart(children) => {
            out.push((true, media_type.unwrap_or_default(), String::new()));
            children.iter().for_each(|child| flatten(message, *child, out));
        }
        _ => {
            let body = String::from_utf8_lossy(&message.raw_message[start..end]).into_owned();
            out.push((false, media_type.unwrap_or_default(), body));
        }
    }
}

proptest! {
    /// An independent parser finds the same parts with the same bodies in mail without errors.
    #[test]
    fn e6_parts_of_sound_mail_are_those_that_mail_parser_finds(tree in tree()) {
        let mut raw = "Subject: x\r\nMIME-Version: 1.0\r\n".to_owned();
        tree.write("0x", &mut raw);
        let ours: Vec<_> = structure(raw.as_bytes()).parts.iter().map(|part| {
            let is_multipart = part.kind == PartKind::Multipart;
            let body = String::from_utf8_lossy(part.body.of(raw.as_bytes())).into_owned();
            (is_multipart, part.media_type.clone(), if is_multipart { String::new() } else { body })
        }).collect();
        let parsed = MessageParser::default().parse(&raw).unwrap();
        let mut theirs = Vec::new();
        flatten(&parsed, 0, &mut theirs);
        prop_assert_eq!(ours, theirs);
    }
}
