use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr, SocketAddrV6},
};

use proptest::{collection::vec, prelude::*};
use restante_core::ErrorKind;

use super::*;

/// An owned value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owned {
    Number(i64),
    Text(String),
    Address(SocketAddr),
}

type Map = BTreeMap<u16, Owned>;
type Change = (u16, Option<Owned>);

impl Owned {
    fn borrow(&self) -> InfoValue<'_> {
        match self {
            Self::Number(number) => InfoValue::Number(*number),
            Self::Text(text) => InfoValue::Text(text),
            Self::Address(address) => InfoValue::Address(*address),
        }
    }

    /// Its encoded length, by the format.
    fn bytes(&self) -> usize {
        match self {
            Self::Number(number) => {
                let twice = 2 * i128::from(*number);
                let mut zigzag = if twice < 0 { -twice - 1 } else { twice };
                let mut bytes = 1;
                while zigzag > 0 {
                    zigzag /= 256;
                    bytes += 1;
                }
                bytes
            }
            Self::Text(text) if text.len() < 31 => 1 + text.len(),
            Self::Text(text) => 3 + text.len(),
            Self::Address(SocketAddr::V4(_)) => 7,
            Self::Address(SocketAddr::V6(_)) => 19,
        }
    }
}

/// The length of the info of a map, by the format.
fn bytes_of(map: &Map) -> usize {
    let values: usize = map.values().map(Owned::bytes).sum();
    let key_bytes = |key: &u16| match key {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        _ => 3,
    };
    if map.len() < 16 {
        1 + map.keys().map(key_bytes).sum::<usize>() + values
    } else {
        3 + 4 * map.len() + values
    }
}

fn borrow(changes: &[Change]) -> Vec<InfoChange<'_>> {
    changes.iter().map(|(key, value)| (InfoKey(*key), value.as_ref().map(Owned::borrow))).collect()
}

fn change(map: &mut Map, changes: &[Change]) {
    for (key, value) in changes {
        match value {
            Some(value) => map.insert(*key, value.clone()),
            None => map.remove(key),
        };
    }
}

fn info_of(map: &Map) -> InfoBuf {
    let changes: Vec<Change> = map.iter().map(|(key, value)| (*key, Some(value.clone()))).collect();
    let mut info = InfoBuf::new();
    info.merge(&borrow(&changes)).unwrap();
    info
}

/// The info equals the map by every way to read it.
fn assert_is(info: &InfoBuf, map: &Map) {
    let read = info.as_info();
    let entries: Vec<_> = read.iter().collect();
    let expected: Vec<_> = map.iter().map(|(key, value)| (InfoKey(*key), value.borrow())).collect();
    assert_eq!(entries, expected);
    assert_eq!((read.len(), read.is_empty()), (map.len(), map.is_empty()));
    for (key, value) in expected {
        assert_eq!(read.get(key), Some(value));
        let beside = [key.0.wrapping_sub(1), key.0.wrapping_add(1)];
        for other in beside {
            assert_eq!(read.get(InfoKey(other)), map.get(&other).map(Owned::borrow));
        }
    }
    assert_eq!(read.as_bytes().len(), bytes_of(map));
    read.check().unwrap();
}

fn numbers() -> impl Strategy<Value = i64> {
    let near_powers =
        (0..64_u32, -2..=2_i64).prop_map(|(power, beside)| (1_i64 << power).wrapping_add(beside));
    prop_oneof![any::<i64>(), near_powers, -300..300_i64, Just(i64::MIN), Just(i64::MAX)]
}

fn values() -> impl Strategy<Value = Owned> {
    let around_the_longer_form = (28..35_usize).prop_map(|len| "x".repeat(len));
    prop_oneof![
        4 => numbers().prop_map(Owned::Number),
        2 => "\\PC{0,50}".prop_map(Owned::Text),
        1 => around_the_longer_form.prop_map(Owned::Text),
        1 => (0..2_000_usize).prop_map(|len| Owned::Text("y".repeat(len))),
        1 => (any::<IpAddr>(), any::<u16>()).prop_map(|at| Owned::Address(at.into())),
    ]
}

fn keys() -> impl Strategy<Value = u16> {
    prop_oneof![4 => 0..40_u16, 1 => 120..136_u16, 1 => any::<u16>()]
}

fn changes(size_max: usize) -> impl Strategy<Value = Vec<Change>> {
    vec((keys(), prop::option::weighted(0.7, values())), 0..size_max)
}

proptest! {
    /// Few entries and many, across the switch of layouts in both directions, until the info is full.
    #[test]
    fn merging_does_what_a_map_does(batches in vec(prop_oneof![4 => changes(8), 1 => changes(60)], 0..12)) {
        let (mut info, mut map) = (InfoBuf::new(), Map::new());
        for batch in batches {
            let (before, mut merged) = (info.clone(), map.clone());
            change(&mut merged, &batch);
            match info.merge(&borrow(&batch)) {
                Ok(()) => map = merged,
                Err(error) => {
                    prop_assert_eq!(error.kind(), ErrorKind::Full);
                    prop_assert!(bytes_of(&merged) > INFO_BYTES_MAX, "it would have fitted: {}", bytes_of(&merged));
                    prop_assert_eq!(&info, &before);
                }
            }
            prop_assert!(info.as_info().as_bytes().len() <= INFO_BYTES_MAX);
            assert_is(&info, &map);
        }
    }

    /// Equal infos have equal bytes, however they were made.
    #[test]
    fn equal_infos_have_equal_bytes(
        kept in prop::collection::btree_map(keys(), numbers().prop_map(Owned::Number), 0..40),
        forgotten in vec(keys(), 0..40),
        order in any::<prop::sample::Index>(),
    ) {
        let at_once = info_of(&kept);
        let mut steps: Vec<Change> = kept.iter().map(|(key, value)| (*key, Some(value.clone()))).collect();
        let first = order.index(steps.len().max(1));
        steps.rotate_left(first);
        let mut step_by_step = InfoBuf::new();
        let foreign: Vec<u16> = forgotten.into_iter().filter(|key| !kept.contains_key(key)).collect();
        for key in &foreign {
            step_by_step.merge(&[(InfoKey(*key), Some(InfoValue::Text("soon forgotten")))]).unwrap();
        }
        for step in &steps {
            step_by_step.merge(&borrow(std::slice::from_ref(step))).unwrap();
        }
        for key in &foreign {
            step_by_step.merge(&[(InfoKey(*key), None)]).unwrap();
        }
        prop_assert_eq!(step_by_step.as_info().as_bytes(), at_once.as_info().as_bytes());
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in vec(any::<u8>(), 0..200)) {
        assert_holds(&bytes);
    }

    /// Like the former test with nearly valid bytes: right lengths and counts.
    #[test]
    fn damaged_infos_are_read_without_panic(
        batch in changes(30),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut info = InfoBuf::new();
        prop_assume!(info.merge(&borrow(&batch)).is_ok());
        let whole = info.as_info().as_bytes();
        let mut damaged = whole.to_vec();
        damaged[at.index(whole.len())] = byte;
        assert_holds(&damaged);
        let shorter = &whole[..cut.index(whole.len())];
        assert_holds(shorter);
        prop_assert!(Info::new(shorter).check().is_err(), "it was cut");
        let mut longer = whole.to_vec();
        longer.push(byte);
        assert_holds(&longer);
        prop_assert!(Info::new(&longer).check().is_err(), "something follows it");
    }
}

/// Bytes that are accepted are those that would have been written.
fn assert_holds(bytes: &[u8]) {
    let info = Info::new(bytes);
    let entries: Vec<_> = info.iter().collect();
    assert!(entries.len() <= info.len());
    for key in [0, 1, 127, 128, u16::MAX] {
        info.get(InfoKey(key));
    }
    if info.check().is_ok() {
        let mut again = InfoBuf::new();
        let changes: Vec<_> = entries.iter().map(|(key, value)| (*key, Some(*value))).collect();
        again.merge(&changes).unwrap();
        assert_eq!(again.as_info().as_bytes(), bytes);
        assert_eq!(entries.len(), info.len());
        for (key, value) in entries {
            assert_eq!(info.get(key), Some(value));
        }
    }
}

fn small_numbers(count: u16) -> Map {
    (0..count).map(|n| (n * 65, Owned::Number(i64::from(n) - 500))).collect()
}

#[test]
fn a_thousand_entries_are_kept_and_those_around_the_switch() {
    for count in [0, 1, 14, 15, 16, 17, 255, 256, 1_000] {
        let map = small_numbers(count);
        assert_is(&info_of(&map), &map);
    }
}

#[test]
fn entries_come_and_go_one_by_one_over_the_switch() {
    let whole = small_numbers(20);
    let (mut info, mut map) = (InfoBuf::new(), Map::new());
    for (key, value) in &whole {
        change(&mut map, &[(*key, Some(value.clone()))]);
        info.merge(&[(InfoKey(*key), Some(value.borrow()))]).unwrap();
        assert_is(&info, &map);
    }
    for key in whole.keys() {
        change(&mut map, &[(*key, None)]);
        info.merge(&[(InfoKey(*key), None)]).unwrap();
        assert_is(&info, &map);
    }
    assert_eq!(info, InfoBuf::new());
}

#[test]
fn extreme_values_are_kept() {
    let addresses = [
        SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        SocketAddr::new(Ipv4Addr::BROADCAST.into(), u16::MAX),
        SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0x0102),
        SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), u16::MAX),
    ];
    let numbers = [0, -1, 1, -128, 127, 128, -129, i64::from(i32::MIN), i64::MAX - 1, i64::MAX, i64::MIN];
    let texts = [0, 1, 30, 31, 32, 255, 256, 1_000].map(|len| Owned::Text("t".repeat(len)));
    let odd_texts = ["\0", "é", "\u{10ffff}", "a\r\nb"].map(|text| Owned::Text(text.to_owned()));
    let values = numbers.map(Owned::Number).into_iter().chain(addresses.map(Owned::Address));
    let map: Map = (0..).zip(values.chain(texts).chain(odd_texts)).collect();
    assert_is(&info_of(&map), &map);
    for (key, value) in map {
        let alone = Map::from([(key, value)]);
        assert_is(&info_of(&alone), &alone);
    }
}

/// Of two changes of one key the later counts, also for the limit.
#[test]
fn the_later_change_of_a_key_counts() {
    let long = "x".repeat(INFO_BYTES_MAX - 10);
    let (key, other) = (InfoKey(7), InfoKey(3));
    let mut info = InfoBuf::new();
    let changes = [
        (key, Some(InfoValue::Text(&long))),
        (other, Some(InfoValue::Number(1))),
        (key, None),
        (key, Some(InfoValue::Text(&long))),
        (other, None),
    ];
    info.merge(&changes).unwrap();
    assert_eq!(info.as_info().iter().collect::<Vec<_>>(), [(key, InfoValue::Text(&long))]);
    info.merge(&[(key, None), (other, Some(InfoValue::Text(&long)))]).unwrap();
    assert_eq!(info.as_info().len(), 1, "removed entries free space for new ones");
}

#[test]
fn an_info_is_full_at_its_last_byte() {
    // One byte of count and one of key, one of kind and two of length.
    let text_max = INFO_BYTES_MAX - 5;
    let text = |len: usize| "x".repeat(len);
    let mut info = InfoBuf::new();
    info.merge(&[(InfoKey(1), Some(InfoValue::Text(&text(text_max))))]).unwrap();
    assert_eq!(info.as_info().as_bytes().len(), INFO_BYTES_MAX);
    let before = info.clone();
    for len in [text_max + 1, INFO_BYTES_MAX, u16::MAX.into(), usize::from(u16::MAX) + 1, 1 << 20] {
        let refused = info.merge(&[(InfoKey(1), Some(InfoValue::Text(&text(len))))]);
        assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Full), "{len}");
    }
    let many: Vec<_> = (0..u16::MAX).map(|key| (InfoKey(key), Some(InfoValue::Number(i64::MIN)))).collect();
    assert_eq!(info.merge(&many).map_err(|error| error.kind()), Err(ErrorKind::Full));
    assert_eq!(info, before);
}

/// The most entries that fit, and one more.
#[test]
fn an_info_holds_as_many_entries_as_fit() {
    let entries_max = ((INFO_BYTES_MAX - 3) / 5) as u16;
    let flags: Map = (0..entries_max).map(|key| (key, Owned::Number(0))).collect();
    let mut info = info_of(&flags);
    assert_is(&info, &flags);
    let one_more = [(InfoKey(entries_max), Some(InfoValue::Number(0)))];
    assert_eq!(info.merge(&one_more).map_err(|error| error.kind()), Err(ErrorKind::Full));
    assert_is(&info, &flags);
}

/// What was written before stays, also when the rest does not fit.
#[test]
fn what_is_merged_is_appended() {
    let mut out = InfoBytes::from_slice(b"before");
    merge(Info::EMPTY, &[(InfoKey(1), Some(InfoValue::Number(1)))], &mut out).unwrap();
    assert_eq!(&out[6..], [1, 1, 0x01, 2]);
    let long = "x".repeat(INFO_BYTES_MAX);
    for text in [&long[..INFO_BYTES_MAX - 4], &long] {
        let before = out.clone();
        assert!(merge(Info::EMPTY, &[(InfoKey(1), Some(InfoValue::Text(text)))], &mut out).is_err());
        assert_eq!(out, before);
    }
}

#[test]
fn what_nobody_writes_is_refused() {
    let wrong: [(&str, &[u8]); 17] = [
        ("nothing at all", &[]),
        ("an entry that is missing", &[1]),
        ("an entry that is cut off", &[1, 1]),
        ("the second of two entries is missing", &[2, 1, 0x00]),
        ("more than is counted", &[0, 1, 0x00]),
        ("keys out of order", &[2, 2, 0x00, 1, 0x00]),
        ("a key twice", &[2, 1, 0x00, 1, 0x00]),
        ("a key in more bytes than it needs", &[1, 0x81, 0x00, 0x00]),
        ("a key beyond 16 bits", &[1, 0x80, 0x80, 0x04, 0x00]),
        ("a number with a leading zero", &[1, 1, 0x02, 1, 0]),
        ("a number of nine bytes", &[1, 1, 0x09, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("a text that is none", &[1, 1, 0x21, 0xff]),
        ("a short text in the form of long ones", &[1, 1, 0x3f, 1, 0, b'x']),
        ("an address of five bytes", &[1, 1, 0x45, 1, 2, 3, 4, 5]),
        ("a kind that there is not", &[1, 1, 0x60]),
        ("an index for less than it is made for", &[INDEXED, 1, 0, 1, 0, 1, 0, 0x00]),
        ("an index that is missing", &[INDEXED, 16, 0]),
    ];
    for (what, bytes) in wrong {
        assert_holds(bytes);
        let refused = Info::new(bytes).check().map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::Corrupt), "{what}");
    }
    let mut long = vec![1, 1, 0x3f];
    long.extend((INFO_BYTES_MAX as u16).to_le_bytes());
    long.extend(vec![b'x'; INFO_BYTES_MAX]);
    assert!(Info::new(&long).check().is_err(), "more than an info may take");
}

/// Nothing is read beyond the end of untrusted bytes, whatever their index says.
#[test]
fn an_index_that_points_anywhere_is_refused() {
    let info = info_of(&small_numbers(20));
    let whole = info.as_info().as_bytes();
    for index in 0..20 {
        for end in [0, 1, 39, 40, 41, u16::MAX] {
            let mut damaged = whole.to_vec();
            let at = 3 + index * INDEX_ENTRY_BYTES + 2;
            damaged[at..at + 2].copy_from_slice(&end.to_le_bytes());
            assert_holds(&damaged);
            assert!(damaged == whole || Info::new(&damaged).check().is_err(), "{index} ends at {end}");
        }
    }
}

#[test]
fn values_are_given_by_their_kind() {
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 60_000);
    let mut info = InfoBuf::default();
    info.merge(&[
        (InfoKey::DOOR, Some(InfoValue::Text("rest_live"))),
        (InfoKey::TOPICS, Some(InfoValue::Number(-3))),
        (InfoKey::ADDRESS, Some(InfoValue::Address(address))),
    ])
    .unwrap();
    let read = info.as_info();
    assert_eq!((read.text(InfoKey::DOOR), read.number(InfoKey::DOOR)), (Some("rest_live"), None));
    assert_eq!((read.text(InfoKey::TOPICS), read.number(InfoKey::TOPICS)), (None, Some(-3)));
    assert_eq!((read.text(InfoKey::ADDRESS), read.number(InfoKey::READS)), (None, None));
    let shown: Vec<String> = read.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(shown, ["door=rest_live", "address=127.0.0.1:60000", "topics=-3"]);
    assert_eq!(InfoKey(60_000).to_string(), "key_60000");
    assert_eq!(InfoKey::READS.to_string(), "reads");
    assert_eq!(InfoKey::CARBONS.to_string(), "carbons");
}

#[test]
fn scope_and_flow_are_not_kept() {
    let scoped = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 80, 7, 9));
    let mut info = InfoBuf::new();
    info.merge(&[(InfoKey::ADDRESS, Some(InfoValue::Address(scoped)))]).unwrap();
    let plain = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 80);
    assert_eq!(info.as_info().get(InfoKey::ADDRESS), Some(InfoValue::Address(plain)));
}
