//! Mail that breaks the rules, from the package of mail-parser (see `corpus/README.md`), read as `corpus/outlines.txt` says.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

use std::{fmt::Write, fs, path::PathBuf};

use restante_mail::{
    message::{self, Message, PartKind, Shorthand},
    row::Row,
};

fn corpus() -> PathBuf {
    PathBuf::from("tests/corpus")
}

/// Each mail with CRLF, by name.
fn mails() -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().path());
    let mut mails: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|ending| ending == "eml"))
        .map(|path| {
            let raw = message::repaired(&fs::read(&path).unwrap()).into_owned();
            (path.file_stem().unwrap().to_string_lossy().into_owned(), raw)
        })
        .collect();
    mails.sort();
    assert_eq!(mails.len(), 53);
    mails
}

/// A line for the message and one for each part: its number below its multipart's, type, size, lists, what else it has, and whether
/// its text has an encoding problem.
fn outline(name: &str, raw: &[u8], message: &Message) -> String {
    let mut out = String::new();
    let subject = String::from_utf8_lossy(message.json(Shorthand::Subject));
    writeln!(out, "{name}: {subject}, {} bytes of header", message.header_bytes).unwrap();
    let structure = &message.structure;
    for part in &structure.parts {
        let flag = |list: &[u16], letter| if list.contains(&part.number) { letter } else { '-' };
        let lists = [
            flag(&structure.text_body, 't'),
            flag(&structure.html_body, 'h'),
            flag(&structure.attachments, 'a'),
        ];
        let lists: String = lists.iter().collect();
        write!(out, "  {}<{} {} {} {lists}", part.number, part.parent, part.media_type, part.size).unwrap();
        for (name, value) in [("name", &part.name), ("disposition", &part.disposition), ("cid", &part.cid)] {
            if let Some(value) = value {
                write!(out, " {name}={value:?}").unwrap();
            }
        }
        let is_text = part.kind == PartKind::Leaf && part.media_type.starts_with("text/");
        if is_text && message::body_value(raw, part, 0).is_encoding_problem {
            write!(out, " problem").unwrap();
        }
        out.push('\n');
    }
    out
}

#[test]
fn e6_awkward_mail_is_read_as_the_outlines_say() {
    let mut outlines = String::new();
    for (name, raw) in mails() {
        outlines.push_str(&outline(&name, &raw, &message::read(&raw)));
    }
    let path = corpus().join("outlines.txt");
    let expected = fs::read_to_string(&path).unwrap_or_default();
    if outlines != expected {
        let written = path.with_extension("new");
        fs::write(&written, &outlines).unwrap();
        let differing = outlines.lines().zip(expected.lines()).find(|(now, before)| now != before);
        panic!("{differing:?} differ; see {}", written.display());
    }
}

#[test]
fn e5_rows_of_awkward_mail_have_what_the_message_has() {
    for (name, raw) in mails() {
        let message = message::read(&raw);
        let row = Row::read(message.row()).unwrap();
        assert_eq!(row.structure().unwrap().as_ref(), Some(&message.structure), "{name}");
        for shorthand in
            [Shorthand::From, Shorthand::To, Shorthand::Subject, Shorthand::SentAt, Shorthand::Preview]
        {
            let json = row.json(shorthand).unwrap();
            assert_eq!(json, message.json(shorthand), "{name}");
            serde_json::from_slice::<serde_json::Value>(json).unwrap();
        }
    }
}
