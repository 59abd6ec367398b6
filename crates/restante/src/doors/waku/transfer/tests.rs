use std::io::Cursor;

use bytes::Bytes;
use restante_archive::Row;
use restante_import::Findings;
use restante_waku_wire::WakuMessage;

use super::*;

const PUBSUB_TOPIC: &str = "/waku/2/rs/1/0";

fn message(number: i64) -> Message {
    let message = WakuMessage {
        payload: format!("payload {number}").into(),
        content_topic: "/toy/1/chat/proto".into(),
        version: Some(1),
        timestamp: Some(1_700_000_000_000_000_000 + number),
        meta: Some(Bytes::from_static(b"meta")),
        rate_limit_proof: Some(Bytes::from_static(b"\x00\xff")),
        ephemeral: None,
    };
    let hash = message_hash(
        PUBSUB_TOPIC,
        &message.payload,
        &message.content_topic,
        b"meta",
        1_700_000_000_000_000_000 + number,
    );
    verified(hash, PUBSUB_TOPIC, message.to_wire()).unwrap()
}

fn row(message: &Message) -> Row<'_> {
    Row {
        message_hash: message.message_hash,
        timestamp: message.timestamp,
        channel: &message.channel,
        topic: &message.topic,
        body: &message.body,
    }
}

fn written(messages: &[Message], format: FileFormat) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), format);
    for message in messages {
        writer.write(&row(message)).unwrap();
    }
    writer.finish().unwrap()
}

fn read(file: Vec<u8>, format: FileFormat) -> (Vec<Message>, Findings) {
    let mut reader = Reader::new(Box::new(Cursor::new(file)), format);
    let mut messages = Vec::new();
    loop {
        let batch = reader.batch().unwrap();
        if batch.is_empty() {
            return (messages, reader.refused().clone());
        }
        messages.extend(batch);
    }
}

#[test]
fn what_is_written_reads_back() {
    let messages: Vec<Message> = (0..9).map(message).collect();
    for format in [FileFormat::Ndjson, FileFormat::Protobuf] {
        let (again, refused) = read(written(&messages, format), format);
        assert_eq!(again, messages, "{format:?}");
        assert_eq!(refused, Findings::default());
    }
}

/// Regression test: an import turned a missing version into version 0, which has other bytes.
#[test]
fn a_version_reads_back_as_it_was() {
    for version in [None, Some(0), Some(1)] {
        let wire = WakuMessage {
            payload: "x".into(),
            content_topic: "/toy/1/chat/proto".into(),
            version,
            timestamp: Some(1),
            ..WakuMessage::default()
        };
        let hash = message_hash(PUBSUB_TOPIC, b"x", "/toy/1/chat/proto", b"", 1);
        let original = verified(hash, PUBSUB_TOPIC, wire.to_wire()).unwrap();
        let (again, _) =
            read(written(std::slice::from_ref(&original), FileFormat::Ndjson), FileFormat::Ndjson);
        assert_eq!(again, [original], "{version:?}");
    }
}

#[test]
fn a_line_is_an_entry_of_nwakus_rest() {
    let line = String::from_utf8(written(&[message(5)], FileFormat::Ndjson)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(json["messageHash"], message(5).message_hash.to_string());
    assert_eq!(json["pubsubTopic"], PUBSUB_TOPIC);
    assert_eq!(json["message"]["contentTopic"], "/toy/1/chat/proto");
    assert_eq!(json["message"]["payload"], "cGF5bG9hZCA1");
    assert_eq!(json["message"]["timestamp"], 1_700_000_000_000_000_005_i64);
    assert_eq!(json["message"]["proof"], "AP8=");
}

#[test]
fn damaged_lines_are_named_and_the_others_are_taken() {
    let mut lines: Vec<String> =
        String::from_utf8(written(&[message(1), message(2), message(3)], FileFormat::Ndjson))
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect();
    lines[1] = lines[1].replace("cGF5bG9hZCAy", "cGF5bG9hZCAz"); // another payload under the same hash
    lines.insert(1, "not json".into());
    lines.insert(1, String::new());
    let (messages, refused) = read(lines.join("\n").into_bytes(), FileFormat::Ndjson);
    assert_eq!(messages, [message(1), message(3)]);
    assert_eq!(refused.count, 2);
    assert!(refused.listed[0].starts_with("line 3: not an entry: "), "{refused:?}");
    assert!(refused.listed[1].starts_with("line 4: the hash is 0x"), "{refused:?}");
}

#[test]
fn damaged_records_are_named_by_their_place() {
    let first = written(&[message(1)], FileFormat::Protobuf);
    let mut file = written(&[message(1), message(2), message(3)], FileFormat::Protobuf);
    file[first.len() + 20] ^= 1; // inside the second one's hash
    file.extend_from_slice(b"\x05ab");
    let (messages, refused) = read(file, FileFormat::Protobuf);
    assert_eq!(messages, [message(1), message(3)]);
    assert_eq!(refused.count, 2);
    assert!(refused.listed[0].starts_with(&format!("byte {}: the hash is 0x", first.len())), "{refused:?}");
    assert!(refused.listed[1].ends_with("the file ends 3 bytes before the record does"), "{refused:?}");
}

#[test]
fn lengths_that_can_not_be_end_the_reading() {
    for (file, why) in [
        (vec![0xff; 20], "there is no length here"),
        (vec![0x80], "there is no length here"),
        (vec![0xff, 0xff, 0xff, 0xff, 0x7f], "the limit is"),
    ] {
        let (messages, refused) = read(file, FileFormat::Protobuf);
        assert_eq!((messages.len(), refused.count), (0, 1));
        assert!(refused.listed[0].contains(why), "{refused:?}");
    }
}

/// Regression test: a compressed file caused an error for each of its lines.
#[test]
fn a_compressed_file_is_recognised() {
    for (head, name) in [(&b"\x1f\x8b\x08"[..], "gzip"), (b"\x28\xb5\x2f\xfd", "zstd")] {
        let mut reader = Reader::new(Box::new(Cursor::new(head)), FileFormat::Ndjson);
        let error = reader.check_plain().unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    for file in [&b""[..], b"{}", b"\x1f"] {
        Reader::new(Box::new(Cursor::new(file)), FileFormat::Ndjson).check_plain().unwrap();
    }
}

#[test]
fn only_the_first_refusals_are_listed() {
    let (_, refused) = read(b"x\n".repeat(1_000), FileFormat::Ndjson);
    assert_eq!((refused.count, refused.listed.len()), (1_000, 20));
}

#[test]
fn messages_without_a_sure_name_and_ephemeral_ones_are_refused() {
    let without_timestamp = WakuMessage { content_topic: "/t".into(), ..WakuMessage::default() };
    let hash = message_hash(PUBSUB_TOPIC, b"", "/t", b"", 0);
    let refusal = verified(hash, PUBSUB_TOPIC, without_timestamp.to_wire()).unwrap_err();
    assert_eq!(refusal.to_string(), "message: timestamp is missing");
    let ephemeral = WakuMessage { timestamp: Some(0), ephemeral: Some(true), ..without_timestamp.clone() };
    let refusal = verified(hash, PUBSUB_TOPIC, ephemeral.to_wire()).unwrap_err();
    assert_eq!(refusal.to_string(), "message: it is ephemeral");
    let refusal = verified(hash, "", without_timestamp.to_wire()).unwrap_err();
    assert_eq!(refusal.to_string(), "the pubsub topic is empty");
}
