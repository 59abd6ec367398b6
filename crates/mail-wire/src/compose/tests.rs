use proptest::prelude::*;

use super::*;
use crate::{
    header::{Header, as_addresses, as_parameters, as_text},
    properties, transfer,
};

mod bodies;
mod fields;

fn origin() -> Origin<'static> {
    Origin { seed: [7; 16], date: Date { seconds: 1_414_649_520, offset_minutes: 480 }, host: "example.com" }
}

/// A message with one text.
fn message(fields: &[(&str, FieldValue)], root: Part) -> Message {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Message { fields, root }
}

fn text_part(text: &str) -> Part {
    Part::new("text/plain", Content::Text(text.into()))
}

/// What is written, as text.
fn written(message: &Message) -> String {
    String::from_utf8(message.write(&origin()).unwrap()).unwrap()
}

/// The lines of one field.
fn field(name: &str, value: FieldValue) -> Result<String, Problem> {
    let written = message(&[(name, value)], text_part("")).write(&origin()).map_err(|error| error.problem)?;
    let written = String::from_utf8(written).unwrap();
    let (field, _) = written.split_once("\r\nDate: ").unwrap();
    Ok(format!("{field}\r\n"))
}

fn address(name: &str, email: &str) -> Address {
    Address { name: (!name.is_empty()).then(|| name.to_owned()), email: email.to_owned() }
}

#[test]
fn es2_message_id_date_and_mime_version_are_made_when_absent() {
    let expected = "Subject: hello\r\n\
        Date: Thu, 30 Oct 2014 14:12:00 +0800\r\n\
        Message-ID: <07070707070707070707070707070707@example.com>\r\n\
        MIME-Version: 1.0\r\n\
        Content-Type: text/plain; charset=utf-8\r\n\
        \r\n\
        hi\r\n";
    let subject = ("Subject", FieldValue::Text("hello".to_owned()));
    assert_eq!(written(&message(&[subject], text_part("hi\n"))), expected);

    let given = [
        ("message-id", FieldValue::Raw(" <a@b>".to_owned())),
        ("DATE", FieldValue::Raw(" yesterday".to_owned())),
        ("Mime-Version", FieldValue::Raw(" 1.0 (x)".to_owned())),
        ("To", FieldValue::Addresses(Vec::new())),
    ];
    let expected = "message-id: <a@b>\r\nDATE: yesterday\r\nMime-Version: 1.0 (x)\r\n\
        Content-Type: text/plain; charset=utf-8\r\n\r\n";
    assert_eq!(written(&message(&given, text_part(""))), expected);

    // Fields of the root part count as present, and a list without items does not.
    let mut root = text_part("");
    root.fields.push(("Date".to_owned(), FieldValue::Raw(" today".to_owned())));
    let both = written(&message(&[("Message-ID", FieldValue::MessageIds(Vec::new()))], root));
    assert_eq!(both.matches("Date:").count(), 1);
    assert_eq!(both.matches("Message-ID: <0707").count(), 1);
}

proptest! {
    #[test]
    fn es2_what_is_written_is_read_again(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        properties::compose(&bytes);
    }

    #[test]
    fn es2_texts_are_read_again(text in "[ -~éé中\u{1f600}=?_\t]{0,120}", name in "\\PC{0,90}") {
        for value in [&text, &name] {
            properties::field_is_read_again("Subject", &FieldValue::Text(value.clone()));
            properties::field_is_read_again("X", &FieldValue::Raw(value.clone()));
            let addresses = vec![Address { name: Some(value.clone()), email: "a@b".to_owned() }; 3];
            properties::field_is_read_again("To", &FieldValue::Addresses(addresses));
            let mut part = text_part("");
            part.name = Some(value.clone());
            properties::part_is_read_again(&part);
            part.disposition = Some("attachment".to_owned());
            properties::part_is_read_again(&part);
        }
    }

    #[test]
    fn es2_contents_are_read_again(
        text in "([ -~]{0,90}|\r\n|\n|\r|é|=|\t| \r\n|\\.|From |\u{0}){0,24}",
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        media_type in "text/plain|application/x|message/rfc822",
    ) {
        properties::part_is_read_again(&Part::new(&media_type, Content::Text(text.as_str().into())));
        for octets in [bytes, text.into_bytes()] {
            let part = Part::new(&media_type, Content::Bytes(octets.into()));
            properties::part_is_read_again(&part);
            let inner = Part::new("multipart/alternative", Content::Parts(vec![part.clone(), text_part("x")]));
            properties::part_is_read_again(&Part::new("multipart/mixed", Content::Parts(vec![inner, part])));
        }
    }
}
