use bytes::Bytes;
use restante_mail_wire::compose::{self, FieldValue};
use serde_json::{Value, json};

use super::*;
use crate::methods::email_edit::write;

fn read(email: Value) -> Result<Draft, Vec<String>> {
    let mut invalid = Invalid::default();
    let draft = Draft::read(email.as_object().unwrap(), &mut invalid);
    if invalid.is_empty() { Ok(draft) } else { Err(invalid.properties) }
}

fn bad(email: Value) -> Vec<String> {
    read(email.clone()).err().unwrap_or_else(|| panic!("taken: {email}"))
}

/// The tree of parts with their contents; a blob contains its id.
fn shape(draft: Draft) -> String {
    let blobs = draft.blobs().into_iter().map(|id| (id.to_owned(), Bytes::from(id.to_owned()))).collect();
    shape_of(&write::root(draft.body, &blobs))
}

fn shape_of(part: &compose::Part) -> String {
    match &part.content {
        compose::Content::Parts(parts) => {
            let inner: Vec<String> = parts.iter().map(shape_of).collect();
            format!("{}({})", part.media_type.trim_start_matches("multipart/"), inner.join(" "))
        }
        compose::Content::Text(text) => format!("{}:{text}", part.media_type),
        compose::Content::Bytes(id) => format!("{}@{}", part.media_type, String::from_utf8_lossy(id)),
    }
}

fn with_body(more: Value) -> Value {
    let mut email = json!({"bodyValues": {"t": {"value": "plain"}, "h": {"value": "<p>rich"}}});
    let object = email.as_object_mut().unwrap();
    object.extend(more.as_object().unwrap().clone());
    email
}

#[test]
fn es1_what_a_creation_cannot_have_is_named() {
    assert_eq!(bad(json!({"headers": []})), ["headers"]);
    assert_eq!(
        bad(json!({"id": "e1", "size": 3, "threadId": "t1", "blobId": "be1"})),
        ["blobId", "id", "size", "threadId"]
    );
    assert_eq!(bad(json!({"hasAttachment": false, "flavour": 1})), ["flavour", "hasAttachment"]);
}

#[test]
fn es1_two_properties_of_one_field_are_both_named() {
    assert_eq!(bad(json!({"from": [], "header:FROM:asAddresses": []})), ["from", "header:FROM:asAddresses"]);
    assert_eq!(
        bad(json!({"header:X-A": "1", "header:x-a:asText": "2"})),
        ["header:X-A", "header:x-a:asText"]
    );
    assert_eq!(
        bad(json!({"sentAt": "2026-01-02T03:04:05Z", "header:Date": " now"})),
        ["sentAt", "header:Date"]
    );
}

#[test]
fn es1_forms_that_a_field_has_not_are_refused() {
    assert_eq!(bad(json!({"header:From:asDate": "2026-01-02T03:04:05Z"})), ["header:From:asDate"]);
    assert_eq!(bad(json!({"header:Subject:asAddresses": []})), ["header:Subject:asAddresses"]);
    assert_eq!(bad(json!({"header:X-A:asNothing": "a"})), ["header:X-A:asNothing"]);
    assert_eq!(
        bad(json!({"header:": "a", "header:a b": "a", "header:a:all:all": []})),
        ["header:", "header:a b", "header:a:all:all"]
    );
    assert!(read(json!({"header:X-A:asDate": "2026-01-02T03:04:05Z"})).is_ok());
}

#[test]
fn es1_content_fields_belong_to_parts() {
    assert_eq!(bad(json!({"header:Content-Type": "text/plain"})), ["header:Content-Type"]);
    assert_eq!(bad(json!({"header:content-language:asText": "en"})), ["header:content-language:asText"]);
}

#[test]
fn es1_line_breaks_in_values_are_refused() {
    for email in [
        json!({"subject": "a\r\nBcc: x@example.org"}),
        json!({"header:X-A": "a\nb"}),
        json!({"to": [{"name": "a\rb", "email": "a@example.org"}]}),
        json!({"to": [{"name": null, "email": "a@example.org\n"}]}),
        json!({"header:To:asGroupedAddresses": [{"name": "g\n", "addresses": []}]}),
        json!({"messageId": ["a@b\r\n"]}),
        json!({"header:List-Post:asURLs": ["mailto:a\n"]}),
        json!({"header:X-A:all": ["a", "b\0"]}),
    ] {
        let property = email.as_object().unwrap().keys().next().unwrap().clone();
        assert_eq!(bad(email), [property]);
    }
    for (name, value) in [("name", "a\nb"), ("cid", "a\r"), ("location", "\n"), ("disposition", "inline; a")]
    {
        let email = with_body(json!({"attachments": [{"blobId": "bu1", name: value}]}));
        assert_eq!(bad(email), ["attachments"], "{name}");
    }
}

#[test]
fn es1_values_of_other_types_are_refused() {
    for email in [
        json!({"subject": 1}),
        json!({"from": "a@example.org"}),
        json!({"from": [{"name": "a"}]}),
        json!({"from": [{"email": "a@example.org", "more": 1}]}),
        json!({"sentAt": "yesterday"}),
        json!({"header:X-A:all": "a"}),
        json!({"textBody": {}}),
        json!({"attachments": 1}),
        json!({"bodyStructure": []}),
        json!({"bodyValues": []}),
    ] {
        let property = email.as_object().unwrap().keys().next().unwrap().clone();
        assert_eq!(bad(email), [property]);
    }
}

#[test]
fn es1_a_structure_excludes_the_lists_and_repeats_no_field() {
    let structure = json!({"partId": "t", "type": "text/plain"});
    let email = with_body(json!({"bodyStructure": structure, "textBody": [structure], "attachments": []}));
    assert_eq!(bad(email), ["textBody", "attachments"]);
    let email = with_body(json!({"subject": "a", "bodyStructure": {"partId": "t", "header:Subject": " b"}}));
    assert_eq!(bad(email), ["bodyStructure"]);
    let email =
        with_body(json!({"subject": "a", "bodyStructure": {"partId": "t", "header:X-B:asText": "b"}}));
    let DraftBody::Structure(root) = read(email).unwrap().body else { panic!("no structure") };
    assert_eq!(root.fields.len(), 1);
}

#[test]
fn es1_text_and_html_are_one_part_of_their_type() {
    for body in [
        json!({"textBody": []}),
        json!({"textBody": [{"partId": "t"}, {"partId": "h"}]}),
        json!({"textBody": [{"partId": "t", "type": "text/html"}]}),
        json!({"htmlBody": [{"partId": "t", "type": "text/plain"}]}),
        json!({"htmlBody": [{"partId": "h"}]}),
    ] {
        let property = body.as_object().unwrap().keys().next().unwrap().clone();
        assert_eq!(bad(with_body(body)), [property]);
    }
    assert!(read(with_body(json!({"textBody": [{"partId": "t"}]}))).is_ok());
}

#[test]
fn es1_a_leaf_has_either_a_part_id_or_a_blob_id() {
    for part in [
        json!({}),
        json!({"partId": "t", "blobId": "bu1"}),
        json!({"partId": "other"}),
        json!({"partId": 1}),
        json!({"partId": "t", "charset": "utf-8"}),
        json!({"partId": "t", "size": 5}),
        json!({"blobId": "bu1", "header:Content-Transfer-Encoding": " 7bit"}),
        json!({"blobId": "bu1", "header:Content-Type": " text/plain"}),
        json!({"blobId": "bu1", "cid": "a", "header:Content-ID": " <b>"}),
        json!({"blobId": "bu1", "headers": []}),
        json!({"blobId": "bu1", "type": "text"}),
        json!({"blobId": "bu1", "type": "multipart/mixed"}),
        json!({"partId": "t", "type": "multipart/mixed", "subParts": [{"partId": "t"}]}),
        json!({"type": "text/plain", "subParts": [{"partId": "t"}]}),
        json!({"type": "multipart/mixed", "subParts": []}),
        json!(7),
    ] {
        assert_eq!(bad(with_body(json!({"bodyStructure": part}))), ["bodyStructure"], "{part}");
    }
    let blob = json!({"blobId": "bu1", "size": 3, "type": "text/plain", "charset": "koi8-r"});
    let draft = read(json!({"bodyStructure": blob})).unwrap();
    let DraftBody::Structure(root) = &draft.body else { panic!("{draft:?}") };
    assert_eq!(root.charset.as_deref(), Some("koi8-r"));
    assert_eq!(shape(draft), "text/plain@bu1");
}

#[test]
fn es1_body_values_are_whole_texts() {
    for value in [
        json!({"value": "a", "isTruncated": true}),
        json!({"value": "a", "isEncodingProblem": true}),
        json!({"value": 1}),
        json!({}),
        json!({"value": "a", "more": 1}),
        json!("a"),
    ] {
        assert_eq!(bad(json!({"bodyValues": {"t": value}})), ["bodyValues"]);
    }
    let value = json!({"value": "a", "isTruncated": false, "isEncodingProblem": false});
    assert!(read(json!({"bodyValues": {"t": value}})).is_ok());
}

#[test]
fn es1_nesting_and_the_number_of_parts_have_bounds() {
    let mut deep = json!({"partId": "t"});
    for _ in 0..DEPTH_MAX {
        deep = json!({"type": "multipart/mixed", "subParts": [deep]});
    }
    assert_eq!(bad(with_body(json!({"bodyStructure": deep}))), ["bodyStructure"]);
    let many: Vec<Value> = (0..=PARTS_MAX).map(|_| json!({"blobId": "bu1"})).collect();
    assert_eq!(bad(json!({"attachments": many})), ["attachments"]);
}

#[test]
fn es2_text_and_html_are_alternatives_and_attachments_stand_beside() {
    let text = json!([{"partId": "t"}]);
    let html = json!([{"partId": "h", "type": "text/html"}]);
    let shaped = |body: Value| shape(read(with_body(body)).unwrap());
    assert_eq!(shaped(json!({})), "text/plain:");
    assert_eq!(shaped(json!({"textBody": text})), "text/plain:plain");
    assert_eq!(shaped(json!({"htmlBody": html})), "text/html:<p>rich");
    assert_eq!(
        shaped(json!({"textBody": text, "htmlBody": html})),
        "alternative(text/plain:plain text/html:<p>rich)"
    );
    let attachments = json!([
        {"blobId": "bu1", "type": "image/png", "cid": "logo", "disposition": "inline"},
        {"blobId": "bu2", "type": "Application/PDF", "name": "a.pdf"},
    ]);
    assert_eq!(
        shaped(json!({"textBody": text, "htmlBody": html, "attachments": attachments})),
        "mixed(alternative(text/plain:plain related(text/html:<p>rich image/png@bu1)) application/pdf@bu2)"
    );
    assert_eq!(
        shaped(json!({"textBody": text, "attachments": attachments})),
        "mixed(text/plain:plain image/png@bu1 application/pdf@bu2)"
    );
    assert_eq!(shaped(json!({"attachments": [{"blobId": "bu3"}]})), "mixed(application/octet-stream@bu3)");
}

#[test]
fn es2_an_attachment_without_a_disposition_is_read_back_as_one() {
    let draft = read(json!({"attachments": [{"blobId": "bu1", "type": "text/plain"}]})).unwrap();
    let DraftBody::Lists { attachments, .. } = &draft.body else { panic!("{draft:?}") };
    assert_eq!(attachments[0].disposition.as_deref(), Some("attachment"));
}

#[test]
fn es2_fields_keep_their_values_and_nulls_are_absent() {
    let draft = read(json!({
        "subject": "Größe", "cc": null, "from": [{"name": "A", "email": "a@example.org"}], "references": ["1@x", "2@x"],
        "header:X-A:all": [" 1", " 2"], "header:To:asGroupedAddresses": [{"name": null, "addresses": []}],
    }))
    .unwrap();
    let names: Vec<&str> = draft.fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["From", "Subject", "References", "To", "X-A", "X-A"]);
    assert!(matches!(&draft.fields[1].1, FieldValue::Text(text) if text == "Größe"));
    assert!(matches!(&draft.fields[5].1, FieldValue::Raw(text) if text == " 2"));
}

#[test]
fn es3_the_blobs_of_a_creation_are_listed_in_order() {
    let structure = json!({"type": "multipart/mixed", "subParts": [
        {"blobId": "bu2"}, {"type": "multipart/related", "subParts": [{"blobId": "bu1"}, {"blobId": "bu2"}]}, {"blobId": "bu3"},
    ]});
    assert_eq!(read(json!({"bodyStructure": structure})).unwrap().blobs(), ["bu2", "bu1", "bu2", "bu3"]);
}

#[test]
fn es3_a_text_is_counted_as_often_as_it_is_used_and_not_copied() {
    let parts: Vec<Value> = (0..900).map(|_| json!({"partId": "t"})).collect();
    let structure = json!({"type": "multipart/mixed", "subParts": parts});
    let draft = read(with_body(json!({ "bodyStructure": structure }))).unwrap();
    assert_eq!(draft.text_bytes(), 900 * "plain".len() as u64);
    let contents = draft.contents();
    let (Content::Text(first), Content::Text(last)) = (contents[0], contents[899]) else {
        panic!("{draft:?}")
    };
    assert!(Arc::ptr_eq(first, last));
}

#[test]
fn es1_an_attachment_may_give_its_disposition_as_a_header_field() {
    let attachment = json!({"blobId": "bu1", "header:Content-Disposition": " attachment; filename=a.txt"});
    let draft = read(json!({"attachments": [attachment]})).unwrap();
    let DraftBody::Lists { attachments, .. } = &draft.body else { panic!("{draft:?}") };
    assert_eq!((&attachments[0].disposition, attachments[0].fields.len()), (&None, 1));
}

#[test]
fn es1_reasons_name_each_property_once_and_have_a_bound() {
    let why = |email: Value| {
        let mut invalid = Invalid::default();
        Draft::read(email.as_object().unwrap(), &mut invalid);
        let mut error = Vec::new();
        invalid.into_error().write(&mut error);
        serde_json::from_slice::<Value>(&error).unwrap()
    };
    let error = why(json!({"subject": "a\n"}));
    assert_eq!(error["description"], "subject: has no value of its form, or has line breaks");
    let error = why(json!({"header:Subject:asDate": null}));
    assert_eq!(error["description"], "header:Subject:asDate: has a form that the field does not have");
    let error = why(json!({"attachments": [{"blobId": "b", "header:X:asNothing": " a"}]}));
    assert_eq!(error["description"], "attachments: header:X:asNothing is no header field");
    let many: Map<String, Value> = (0..10_000).map(|n| (format!("x{n}"), json!(1))).collect();
    let error = why(Value::Object(many));
    assert_eq!(error["properties"].as_array().unwrap().len(), 10_000);
    assert!(error["description"].as_str().unwrap().ends_with("; and more"), "{}", error["description"]);
}
