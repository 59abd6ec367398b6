use futures_util::io::Cursor;

use super::*;

#[tokio::test]
async fn lengths_are_read_byte_by_byte() {
    for (wire, len) in [(&b"\x00"[..], 0), (b"\x7f", 127), (b"\x80\x01", 128), (b"\xff\xff\x03", 65_535)] {
        assert_eq!(read_len(&mut Cursor::new(wire)).await.unwrap(), len);
    }
    assert!(read_len(&mut Cursor::new(b"\x80")).await.is_err());
    assert!(read_len(&mut Cursor::new([0xff; 11])).await.is_err());
}

#[tokio::test]
async fn frames_that_end_early_are_errors() {
    assert_eq!(read_exactly(&mut Cursor::new(b"abc"), 3).await.unwrap(), b"abc");
    assert_eq!(read_exactly(&mut Cursor::new(b"abc"), 2).await.unwrap(), b"ab");
    assert!(read_exactly(&mut Cursor::new(b"abc"), 4).await.is_err());
}

#[test]
fn connections_are_counted_by_their_origin() {
    let streams = Streams::new(NodeLimits::default(), NodeMetrics::default());
    let group = |address: &str| Origin::Incoming(AddressGroup::of(&address.parse().unwrap()));
    let (one, other) = (group("/ip4/192.0.2.1/tcp/1"), group("/ip4/192.0.2.2/tcp/1"));
    let origins = [one, Origin::Dialled, one, other];
    let _receivers: Vec<_> = (0..)
        .zip(origins)
        .map(|(n, origin)| {
            streams.add(PeerId::random(), ConnectionId::new_unchecked(n), origin, Activity::default())
        })
        .collect();
    assert_eq!((streams.count_of(one), streams.count_of(other)), (2, 1));
    let newest = ConnectionId::new_unchecked(2);
    let oldest = streams.take_most_idle(|_, origin| origin == one, newest);
    assert_eq!(oldest, Some(ConnectionId::new_unchecked(0)));
    assert_eq!(streams.take_most_idle(|_, origin| origin == one, newest), None);
}

#[test]
fn the_most_idle_connection_is_taken() {
    let streams = Streams::new(NodeLimits::default(), NodeMetrics::default());
    let (one, other, exempt) = (PeerId::random(), PeerId::random(), PeerId::random());
    let id = ConnectionId::new_unchecked;
    let activities: Vec<Activity> = (0..4).map(|_| Activity::default()).collect();
    let _receivers: Vec<_> = [(exempt, 0), (one, 1), (other, 2), (other, 3)]
        .map(|(peer, n)| streams.add(peer, id(n), Origin::Dialled, activities[n].clone()))
        .into();
    activities[1].touch(1_000_000);
    let _busy = activities[2].begin();
    let may_close = |peer, _| peer != exempt;
    assert_eq!(streams.take_most_idle(may_close, id(3)), Some(id(1)), "not the newest, busy ones come last");
    assert_eq!(
        streams.take_most_idle(may_close, id(9)),
        Some(id(3)),
        "not exempt, not busy, not used lately"
    );
    assert_eq!(streams.len(), 2);
    assert_eq!(streams.take_most_idle(may_close, id(9)), Some(id(2)), "each is taken once");
    assert_eq!(streams.take_most_idle(may_close, id(9)), None);
    streams.remove(other, id(2));
    streams.remove(exempt, id(0));
    assert_eq!(streams.len(), 0);
}
