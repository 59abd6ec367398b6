use proptest::prelude::*;

use super::*;
use crate::Index;

const KIND: Kind = Kind(7);

fn index_of(parts: &[u8]) -> IndexSchema {
    let parts: Vec<Property> = parts.iter().map(|part| Property(*part)).collect();
    IndexSchema::ordered(Index(3), "test", &parts)
}

fn values() -> impl Strategy<Value = Value> {
    let bytes = prop_oneof![Just(0_u8), Just(1), Just(9), Just(255), any::<u8>()];
    prop_oneof![
        (any::<u64>(), 0..64_u32).prop_map(|(number, shift)| Value::Number(number >> shift)),
        prop::collection::vec(bytes, 0..5).prop_map(|text| Value::Text(text.into())),
    ]
}

fn packed(values: &[Value]) -> KeyBuf {
    let mut out = KeyBuf::new();
    pack_values(&mut out, values);
    out
}

proptest! {
    #[test]
    fn packed_values_sort_as_the_values_do(
        a in prop::collection::vec(values(), 2),
        b in prop::collection::vec(values(), 2),
    ) {
        prop_assert_eq!(packed(&a).cmp(&packed(&b)), a.cmp(&b));
    }

    #[test]
    fn packed_values_read_back_and_have_the_length_that_is_reckoned(value in values()) {
        let bytes = packed(std::slice::from_ref(&value));
        prop_assert_eq!(bytes.len(), packed_bytes(&value));
        let rest = &mut &bytes[..];
        prop_assert_eq!(take_value(rest), Some(value));
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn packed_properties_read_back(pairs in prop::collection::vec((0..4_u8, values()), 0..8)) {
        let properties: Properties =
            pairs.into_iter().map(|(property, value)| (Property(property), value)).collect();
        let mut bytes = Vec::new();
        pack_properties(&mut bytes, &properties);
        prop_assert_eq!(take_properties(&mut &bytes[..]), Some(properties));
        prop_assert_eq!(take_properties(&mut &[&bytes[..], &[1]].concat()[..]), None, "a property without a value");
    }

    #[test]
    fn a_cursor_leads_back_to_its_place(values in prop::collection::vec(values(), 1..4), id: u64) {
        let index = index_of(&[1, 2, 3][..values.len()]);
        let cursor = cursor(KIND, &index, &values, RecordId(id));
        let place = place_of(&cursor, KIND, &index).unwrap();
        prop_assert_eq!((&place.values[..], place.id), (&values[..], RecordId(id)));
        prop_assert!(place_of(&cursor, Kind(8), &index).is_err(), "of another kind");
        let other = IndexSchema { index: Index(4), ..index.clone() };
        prop_assert!(place_of(&cursor, KIND, &other).is_err(), "of another index");
        let cut = Cursor(cursor.0.slice(..cursor.0.len() - 1));
        prop_assert!(place_of(&cut, KIND, &index).is_err(), "cut short");
        let longer = Cursor([&cursor.0[..], &[0]].concat().into());
        prop_assert!(place_of(&longer, KIND, &index).is_err(), "with something behind it");
    }
}

#[test]
fn properties_that_are_not_ascending_are_refused() {
    let mut one = Vec::new();
    pack_properties(&mut one, &Properties::default().with(Property(1), 5));
    let mut other = Vec::new();
    pack_properties(&mut other, &Properties::default().with(Property(2), 5));
    assert!(take_properties(&mut &[&one[..], &other[..]].concat()[..]).is_some());
    assert_eq!(take_properties(&mut &[&other[..], &one[..]].concat()[..]), None, "out of order");
    assert_eq!(take_properties(&mut &[&one[..], &one[..]].concat()[..]), None, "twice");
}

#[test]
fn a_text_that_is_too_long_is_refused() {
    let mut bytes = vec![TEXT];
    bytes.put_text(&[b'a'; TEXT_BYTES_MAX]);
    assert!(take_value(&mut &bytes[..]).is_some());
    let mut bytes = vec![TEXT];
    bytes.put_text(&[b'a'; TEXT_BYTES_MAX + 1]);
    assert_eq!(take_value(&mut &bytes[..]), None);
}

#[test]
fn entries_are_all_combinations_in_ascending_order() {
    let properties = Properties::default()
        .with(Property(1), 2)
        .with(Property(1), 1)
        .with(Property(2), "b")
        .with(Property(2), 9)
        .with(Property(3), 5);
    let of = |parts: &[u8]| entries(&index_of(parts), &properties).unwrap();
    let pair = |a: Value, b: Value| Entry::from_vec(vec![a, b]);
    let expected = vec![
        pair(1.into(), 9.into()),
        pair(1.into(), "b".into()),
        pair(2.into(), 9.into()),
        pair(2.into(), "b".into()),
    ];
    assert_eq!(of(&[1, 2]), expected);
    assert_eq!(of(&[3]), [Entry::from_vec(vec![5.into()])]);
    assert!(of(&[1, 4]).is_empty(), "a part has no value");
}

#[test]
fn too_many_entries_are_refused() {
    let many = |count: u64| (0..count).map(|n| (Property(1), Value::Number(n))).collect::<Properties>();
    let max = INDEX_ENTRIES_MAX as u64;
    assert_eq!(entries(&index_of(&[1]), &many(max)).unwrap().len(), INDEX_ENTRIES_MAX);
    assert!(entries(&index_of(&[1]), &many(max + 1)).is_err());
    assert!(entries(&index_of(&[1, 1]), &many(16)).is_ok());
    assert!(entries(&index_of(&[1, 1]), &many(17)).is_err());
    assert!(entries(&index_of(&[1, 2]), &many(max + 1)).unwrap().is_empty(), "they have no second part");
}

#[test]
fn entries_that_do_not_fit_a_key_are_refused() {
    let text = |zeros: usize| Value::Text([vec![0; zeros], vec![1; TEXT_BYTES_MAX - zeros]].concat().into());
    let with = |zeros: usize| Properties::default().with(Property(1), text(0)).with(Property(2), text(zeros));
    let rest = INDEX_VALUES_BYTES_MAX - 2 * (TEXT_BYTES_MAX + 3);
    let index = index_of(&[1, 2, 2]);
    // The second property counts twice, so the rest includes two of its zeros and one of its texts.
    let zeros = (rest - (TEXT_BYTES_MAX + 3)) / 2;
    assert!(entries(&index, &with(zeros)).is_ok());
    assert!(entries(&index, &with(zeros + 1)).is_err());
}
