//! Properties that hold for any bytes: checked by the fuzz targets, and by ordinary tests over their seeds.

use prost::Message;

use crate::{
    ContentTopic, WakuMessage, WakuMessageView, bloom,
    enr::{self, Enr},
    rpc::{filter, light_push, metadata, peer_exchange, store},
};

/// The view and prost accept the same messages with the same fields; decode, encode, decode is the identity.
///
/// # Panics
/// When that does not hold.
pub fn waku_message(wire: &[u8]) {
    let view = WakuMessageView::parse(wire);
    let decoded = WakuMessage::decode(wire);
    assert_eq!(view.is_ok(), decoded.is_ok(), "view: {view:?}, prost: {decoded:?}");
    let (Ok(view), Ok(decoded)) = (view, decoded) else { return };
    assert_eq!(view.to_message(), decoded);

    let again = decoded.to_wire();
    let view_again = WakuMessageView::parse(&again).expect("an encoded message can be decoded");
    assert_eq!(view_again.to_message(), decoded);
    assert_eq!(WakuMessage::from_wire(wire).ok(), view.check().is_ok().then_some(decoded));
}

/// A content topic equals its joined parts, has a shard below the count, and sets one to three bits.
///
/// # Panics
/// When that does not hold.
pub fn content_topic(text: &str) {
    assert!(bloom::filter_of([text]).contains(bloom::content_topic_bits(text)));
    let Ok(topic) = text.parse::<ContentTopic>() else { return };
    assert_eq!(topic.as_str(), text);
    let parts = [topic.application(), topic.version(), topic.name(), topic.encoding()];
    let joined = parts.map(|part| format!("/{part}")).concat();
    assert!(text == joined || text == format!("/0{joined}"), "{text} is not {joined}");
    for count in [1, 2, 7, 8, u16::MAX] {
        assert!(topic.shard(count) < count);
    }
}

/// Decoding any bytes as a request or response does not panic, and encode, decode is the identity.
///
/// # Panics
/// When that does not hold.
pub fn waku_rpc(wire: &[u8]) {
    round_trips::<filter::SubscribeRequest>(wire);
    round_trips::<filter::SubscribeResponse>(wire);
    round_trips::<filter::MessagePush>(wire);
    round_trips::<light_push::LightPushRequest>(wire);
    round_trips::<light_push::LightPushResponse>(wire);
    round_trips::<light_push::PushRpc>(wire);
    round_trips::<metadata::Metadata>(wire);
    round_trips::<peer_exchange::PeerExchangeRpc>(wire);
    round_trips::<store::StoreQueryRequest>(wire);
    round_trips::<store::StoreQueryResponse>(wire);
    if let Ok(metadata) = metadata::Metadata::decode(wire) {
        assert!(metadata.shards().len() <= wire.len());
    }
}

fn round_trips<M: Message + Default + PartialEq + std::fmt::Debug>(wire: &[u8]) {
    let Ok(decoded) = M::decode(wire) else { return };
    let again = decoded.encode_to_vec();
    assert!(M::decode(&again[..]).is_ok_and(|again| again == decoded), "{decoded:?}");
}

/// An accepted record has exactly one encoding, as bytes and as text. The contents of any other can be decoded, and a record with
/// the same contents can be signed unless it is too long.
///
/// # Panics
/// When that does not hold.
pub fn enr(wire: &[u8]) {
    if let Ok(record) = Enr::decode(wire) {
        assert_eq!(record.wire(), wire);
        assert_eq!(record.to_string().parse(), Ok(record));
    }
    let Some((seq, contents)) = enr::contents_unverified(wire) else { return };
    match Enr::sign(seq, &contents, &[1; 32]) {
        Ok(record) => {
            assert_eq!((record.seq(), record.contents()), (seq, contents));
            assert_eq!(Enr::decode(record.wire()), Ok(record));
        }
        Err(error) => assert_eq!(error, enr::EnrError::TooLong),
    }
}
