use proptest::prelude::*;
use restante_archive::{Direction, Part, RowAt, TopicName, record};
use restante_core::{Cursor, Key, MessageHash};
use restante_waku_wire::WakuMessage;
use serde_json::json;

use super::*;
use crate::rest::json as writer;

/// A page with these messages.
fn page_of(messages: &[Message]) -> Page {
    let (mut bytes, mut rows, mut topics) = (Vec::new(), Vec::new(), Vec::new());
    for (number, message) in messages.iter().enumerate() {
        rows.push(RowAt { part: 0, offset: bytes.len() as u32 });
        record::encode_message(0, number as u32, message.key(), &message.body, &mut bytes);
        topics.push(TopicName { channel: message.channel.clone(), topic: message.topic.clone() });
    }
    let part = Part { bytes: bytes.into(), topics: topics.into() };
    Page { parts: vec![part], rows, next: None, bodies: true }
}

fn written(page: &Page, include_data: bool) -> Value {
    serde_json::from_slice(&writer::write_answer(page, include_data, Direction::Forward)).unwrap()
}

fn base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

/// The expected entry of a message.
fn entry_of(message: &Message, decoded: &WakuMessage) -> Value {
    let mut fields = json!({
        "payload": base64(&decoded.payload),
        "contentTopic": decoded.content_topic,
        "version": decoded.version.unwrap_or(0),
        "timestamp": decoded.timestamp.unwrap_or(message.timestamp.nanos()),
    });
    for (name, bytes) in [("meta", &decoded.meta), ("proof", &decoded.rate_limit_proof)] {
        if let Some(bytes) = bytes.as_ref().filter(|bytes| !bytes.is_empty()) {
            fields[name] = base64(bytes).into();
        }
    }
    if let Some(ephemeral) = decoded.ephemeral {
        fields["ephemeral"] = ephemeral.into();
    }
    json!({"messageHash": message.message_hash.to_string(), "message": fields, "pubsubTopic": &*message.channel})
}

fn message_of(decoded: &WakuMessage, number: u64) -> Message {
    Message { topic: decoded.content_topic.as_str().into(), ..archived(number, decoded.to_wire()) }
}

/// Data of another door, or an engine's test data, must not break a page.
#[test]
fn a_body_that_is_no_waku_message_is_served_as_the_payload() {
    let stanza = archived(3, "<message to='romeo'/>");
    let other_topic =
        WakuMessage { payload: "x".into(), content_topic: "/other".into(), ..WakuMessage::default() };
    let other_topic = archived(4, other_topic.to_wire());
    let page = page_of(&[stanza.clone(), other_topic.clone()]);
    let expected = |message: &Message| {
        json!({
            "messageHash": message.message_hash.to_string(),
            "message": {
                "payload": base64(&message.body),
                "contentTopic": CHAT,
                "version": 0,
                "timestamp": message.timestamp.nanos(),
            },
            "pubsubTopic": PUBSUB,
        })
    };
    assert_eq!(written(&page, true)["messages"], json!([expected(&stanza), expected(&other_topic)]));
}

#[test]
fn the_cursor_is_the_hash_of_the_message_it_names() {
    let hash = MessageHash(std::array::from_fn(|n| (n * 9) as u8));
    for next in [Cursor::Message(hash), Cursor::At(Key { timestamp: NOW, message_hash: hash })] {
        let page = Page { next: Some(next), ..page_of(&[archived(1, "")]) };
        assert_eq!(written(&page, false)["paginationCursor"], hash.to_string());
    }
    assert_eq!(written(&page_of(&[]), false).get("paginationCursor"), None);
}

fn any_bytes() -> impl Strategy<Value = bytes::Bytes> {
    prop::collection::vec(any::<u8>(), 0..80).prop_map(Into::into)
}

fn any_topic() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[\\x00-\\x7f]{0,40}", "[\"\\\\/\u{7f}\u{2028}ä🦀]{0,20}"]
}

fn any_message() -> impl Strategy<Value = WakuMessage> {
    let optional = prop::option::of::<BoxedStrategy<bytes::Bytes>>;
    (
        any_bytes(),
        any_topic(),
        any::<Option<u32>>(),
        any::<Option<i64>>(),
        optional(any_bytes().boxed()),
        optional(any_bytes().boxed()),
        any::<Option<bool>>(),
    )
        .prop_map(|(payload, content_topic, version, timestamp, meta, rate_limit_proof, ephemeral)| {
            WakuMessage { payload, content_topic, version, timestamp, meta, rate_limit_proof, ephemeral }
        })
}

proptest! {
    #[test]
    fn what_is_written_reads_back(
        decoded in prop::collection::vec(any_message(), 0..5),
        channel in any_topic(),
        time in any::<i64>(),
    ) {
        let message = |(number, decoded)| Message {
            channel: channel.as_str().into(),
            timestamp: Timestamp(time),
            ..message_of(decoded, number as u64)
        };
        let messages: Vec<Message> = decoded.iter().enumerate().map(message).collect();
        let page = page_of(&messages);
        let entries: Vec<Value> =
            messages.iter().zip(&decoded).map(|(message, decoded)| entry_of(message, decoded)).collect();
        let expected = json!({"requestId": "", "statusCode": 200, "statusDesc": "OK", "messages": entries});
        prop_assert_eq!(written(&page, true), expected);
        let hashes: Vec<Value> =
            messages.iter().map(|message| json!({"messageHash": message.message_hash.to_string()})).collect();
        prop_assert_eq!(&written(&page, false)["messages"], &Value::from(hashes));
    }
}
