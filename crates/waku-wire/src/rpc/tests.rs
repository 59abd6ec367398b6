use proptest::prelude::*;
use restante_core::MessageHash;

use super::{
    filter::{SubscribeRequest, SubscribeType},
    metadata::Metadata,
    store::{Entry, KeyValue, ResponseHead, StoreQueryRequest, StoreQueryResponse, encode_response},
    *,
};

/// js-waku reads only field 2 (unpacked), go-waku writes only field 3 (packed).
#[test]
fn metadata_has_the_shards_in_both_fields() {
    let metadata = Metadata::new(Some(42), [0, 5]);
    assert_eq!(metadata.encode_to_vec(), b"\x08\x2a\x10\x00\x10\x05\x1a\x02\x00\x05");
    for (wire, why) in [
        (&b"\x08\x2a\x1a\x02\x00\x05"[..], "field 3 packed"),
        (b"\x08\x2a\x12\x02\x00\x05", "field 2 packed"),
        (b"\x08\x2a\x10\x00\x10\x05", "field 2 unpacked"),
    ] {
        assert_eq!(Metadata::decode(wire).unwrap().shards(), [0, 5], "{why}");
    }
}

/// Field numbers and types of a store query, byte by byte.
#[test]
fn store_query_fields_are_encoded_as_specified() {
    let request = StoreQueryRequest {
        request_id: "r".into(),
        include_data: true,
        pubsub_topic: Some("p".into()),
        content_topics: vec!["c".into()],
        time_start: Some(-1),
        time_end: Some(1),
        message_hashes: vec!["h".into()],
        pagination_cursor: Some("x".into()),
        pagination_forward: true,
        pagination_limit: Some(7),
    };
    let expected =
        b"\x0a\x01r\x10\x01\x52\x01p\x5a\x01c\x60\x01\x68\x02\xa2\x01\x01h\x9a\x03\x01x\xa0\x03\x01\xa8\x03\x07";
    assert_eq!(request.encode_to_vec(), expected);
    let absent = StoreQueryRequest::decode(&b""[..]).unwrap();
    assert!(!absent.pagination_forward, "absent is backward");
}

#[test]
fn filter_types_have_their_numbers() {
    let request = SubscribeRequest::decode(&b"\x10\x03"[..]).unwrap();
    assert_eq!(request.subscribe_type(), SubscribeType::UnsubscribeAll);
    assert_eq!(SubscribeRequest::default().subscribe_type(), SubscribeType::Ping);
}

proptest! {
    #[test]
    fn an_encoded_response_is_decoded_by_prost(
        request_id in "[a-z]{0,40}",
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
        include_data: bool,
        has_cursor: bool,
    ) {
        let hashes: Vec<_> = (0..bodies.len()).map(|n| MessageHash([n as u8; 32])).collect();
        let cursor = has_cursor.then_some(MessageHash([9; 32]));
        let head = ResponseHead { request_id: &request_id, status_code: 200, status_desc: "OK", cursor };
        let entries = bodies.iter().zip(&hashes).map(|(body, message_hash)| Entry {
            message_hash,
            data: include_data.then_some((&body[..], "/waku/2/rs/1/0")),
        });
        let wire = encode_response(head, entries);
        let read = StoreQueryResponse::decode_length_delimited(&wire[..]).unwrap();
        let expected = StoreQueryResponse {
            request_id: request_id.clone(),
            status_code: Some(200),
            status_desc: Some("OK".into()),
            messages: bodies.iter().zip(&hashes).map(|(body, hash)| KeyValue {
                message_hash: Some(hash.as_bytes().to_vec().into()),
                message: include_data.then(|| body.clone().into()),
                pubsub_topic: include_data.then(|| "/waku/2/rs/1/0".into()),
            }).collect(),
            pagination_cursor: cursor.map(|hash| hash.as_bytes().to_vec().into()),
        };
        prop_assert_eq!(&read, &expected);
        if !request_id.is_empty() {
            prop_assert_eq!(frame(&expected), wire);
        }
    }
}
