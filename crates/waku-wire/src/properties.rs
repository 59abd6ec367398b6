//! What must hold for any bytes: run by the fuzz targets over endless input and by ordinary tests over their seeds.

use prost::Message;

use crate::{
    ContentTopic, WakuMessage, WakuMessageView, bloom,
    enr::{self, Enr},
    rpc::{filter, light_push, metadata, peer_exchange, store},
};

/// The view agrees with prost on what is a message and what it says; decode, encode, decode is the identity.
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
    let view_again = WakuMessageView::parse(&again).expect("what was written can be read");
    assert_eq!(view_again.to_message(), decoded);
    assert_eq!(WakuMessage::from_wire(wire).ok(), view.check().is_ok().then_some(decoded));
}

/// A content topic reads back from its parts, has a shard below the count, and sets one to three bits.
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

/// Every request and response reads without trouble from any bytes, and what was read reads back from what is written.
///
/// # Panics
/// When that does not hold.
pub fn waku_rpc(wire: &[u8]) {
    reads_back::<filter::SubscribeRequest>(wire);
    reads_back::<filter::SubscribeResponse>(wire);
    reads_back::<filter::MessagePush>(wire);
    reads_back::<light_push::LightPushRequest>(wire);
    reads_back::<light_push::LightPushResponse>(wire);
    reads_back::<light_push::PushRpc>(wire);
    reads_back::<metadata::Metadata>(wire);
    reads_back::<peer_exchange::PeerExchangeRpc>(wire);
    reads_back::<store::StoreQueryRequest>(wire);
    reads_back::<store::StoreQueryResponse>(wire);
    if let Ok(metadata) = metadata::Metadata::decode(wire) {
        assert!(metadata.shards().len() <= wire.len());
    }
}

fn reads_back<M: Message + Default + PartialEq + std::fmt::Debug>(wire: &[u8]) {
    let Ok(decoded) = M::decode(wire) else { return };
    let again = decoded.encode_to_vec();
    assert!(M::decode(&again[..]).is_ok_and(|again| again == decoded), "{decoded:?}");
}

/// A record that is accepted stands in its one encoding, as bytes and as a text; what any other would say can be read, too,
/// and a record with the same contents can be signed unless it is too long.
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
