//! What must hold for any bytes: run by the fuzz targets over endless input and by ordinary tests over their seeds.

use prost::Message;

use crate::{ContentTopic, WakuMessage, WakuMessageView, bloom};

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
