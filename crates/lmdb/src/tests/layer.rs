//! Layers compared with ordered maps, and with readers that read while rows are added.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use proptest::prelude::*;

use crate::{
    frame,
    layer::{Layer, LayerRow, Sequence},
};

/// A row's table, key and value.
type Owned = (u8, Vec<u8>, Option<Vec<u8>>);
/// By table, key and sequence.
type Model = BTreeMap<(u8, Vec<u8>, Sequence), Option<Vec<u8>>>;

fn rows(rows: &[Owned]) -> Vec<u8> {
    let mut out = Vec::new();
    for (table, key, value) in rows {
        frame::put_row(&mut out, *table, key, value.as_deref());
    }
    out
}

/// Keys that are prefixes of others, that differ only after a long common prefix, that end with zeros.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        2 => Just(vec![1]), // written repeatedly
        4 => prop::collection::vec(0_u8..3, 1..5),
        2 => (1_usize..40, 0_u8..3).prop_map(|(len, byte)| vec![byte; len]),
        2 => (0_u8..2, prop::collection::vec(0_u8..2, 0..4)).prop_map(|(first, rest)| {
            [vec![first; 14], rest].concat()
        }),
        1 => (0_u16..300).prop_map(|number| [&[2, 1, 7, 7][..], &number.to_be_bytes()].concat()),
    ]
}

fn batches() -> impl Strategy<Value = Vec<Vec<Owned>>> {
    let row = (prop::sample::select(vec![0_u8, 1, 7, 255]), key(), any::<Option<[u8; 2]>>());
    let row = row.prop_map(|(table, key, value)| (table, key, value.map(|value| value.to_vec())));
    prop::collection::vec(prop::collection::vec(row, 0..6), 0..60)
}

fn owned(row: Option<LayerRow<'_>>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    row.map(|row| (row.key.to_vec(), row.value.map(Vec::from)))
}

/// The newest versions up to a batch.
fn newest(model: &Model, table: u8, until: Sequence) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let seen = model.iter().filter(|((of, _, sequence), _)| *of == table && *sequence <= until);
    seen.map(|((_, key, _), value)| (key.clone(), value.clone())).collect() // later ones replace earlier ones
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        4 => key().prop_map(Bound::Included),
        4 => key().prop_map(Bound::Excluded),
        1 => Just(Bound::Unbounded),
    ]
}

proptest! {
    #[test]
    fn a_layer_finds_what_a_map_finds(
        batches in batches(),
        asked in prop::collection::vec((prop::sample::select(vec![0_u8, 1, 7, 9, 255]), key(), bound()), 12),
        until in 0_u64..70,
    ) {
        let guard = crossbeam_epoch::pin();
        let (layer, mut model) = (Layer::new(), Model::new());
        for (sequence, batch) in (1..).zip(&batches) {
            layer.add(sequence, &rows(batch));
            for (table, key, value) in batch {
                model.insert((*table, key.clone(), sequence), value.clone());
            }
        }
        prop_assert_eq!(layer.rows(), model.len());
        let all: Vec<_> = layer.newest(&guard).map(|row| (row.table, row.key.to_vec(), row.value.map(Vec::from))).collect();
        let mut expected = Vec::new();
        for table in 0..=255 {
            expected.extend(newest(&model, table, Sequence::MAX).into_iter().map(|(key, value)| (table, key, value)));
        }
        prop_assert_eq!(all, expected);
        for (table, key, bound) in &asked {
            let seen = newest(&model, *table, until);
            let found = owned(layer.get(*table, key, until, &guard));
            prop_assert_eq!(found, seen.get(key).map(|value| (key.clone(), value.clone())));
            let entry = |(key, value): (&Vec<u8>, &Option<Vec<u8>>)| (key.clone(), value.clone());
            let up = seen.range((bound.clone(), Bound::Unbounded)).next().map(entry);
            prop_assert_eq!(owned(layer.at_or_after(*table, as_slice(bound), until, &guard)), up);
            if let Some(row) = layer.at_or_after(*table, as_slice(bound), until, &guard) {
                let behind = seen.range((Bound::Excluded(row.key.to_vec()), Bound::Unbounded)).next().map(entry);
                prop_assert_eq!(owned(layer.after(&row, until, &guard)), behind);
            }
            let down = seen.range((Bound::Unbounded, bound.clone())).next_back().map(entry);
            prop_assert_eq!(owned(layer.at_or_before(*table, as_slice(bound), until, &guard)), down);
        }
    }
}

#[test]
fn a_list_of_many_rows_stays_in_order_whichever_way_they_come() {
    let ways: [fn(u32) -> u32; 3] = [|n| n, |n| 19_999 - n, |n| n.wrapping_mul(7_919) % 20_000];
    for way in ways {
        let (layer, guard) = (Layer::new(), crossbeam_epoch::pin());
        for n in 0..20_000 {
            layer.add(u64::from(n) + 1, &rows(&[(3, way(n).to_be_bytes().to_vec(), Some(vec![1]))]));
        }
        let found: Vec<_> = layer.newest(&guard).map(|row| row.key.to_vec()).collect();
        assert!(
            found
                .iter()
                .map(Vec::as_slice)
                .eq((0..20_000_u32).map(u32::to_be_bytes).collect::<Vec<_>>().iter())
        );
        assert!(layer.get(3, &777_u32.to_be_bytes(), Sequence::MAX, &guard).is_some());
    }
}

#[test]
fn a_reader_finds_whole_rows_of_every_batch_that_was_published() {
    const BATCHES: u64 = 20_000;
    let (layer, published) = (&Layer::new(), &AtomicU64::new(0));
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    thread::scope(|scope| {
        scope.spawn(move || {
            for n in 1..=BATCHES {
                let own = (1, key(n), Some(n.to_be_bytes().to_vec()));
                layer.add(n, &rows(&[own, (1, vec![255; 20], Some(n.to_be_bytes().to_vec()))]));
                published.store(n, Ordering::Release);
            }
        });
        let mut until = 0;
        while until < BATCHES {
            until = published.load(Ordering::Acquire);
            let guard = crossbeam_epoch::pin();
            let number = |row: LayerRow<'_>| u64::from_be_bytes(row.value.unwrap().try_into().unwrap());
            if until == 0 {
                continue;
            }
            for n in [1, until / 2, until].into_iter().filter(|n| *n > 0) {
                assert_eq!(layer.get(1, &key(n), until, &guard).map(number), Some(n));
            }
            assert_eq!(layer.get(1, &[255; 20], until, &guard).map(number), Some(until));
            let first = layer.at_or_after(1, Bound::Unbounded, until, &guard).map(number);
            assert!(first.is_some_and(|first| first <= until));
            let last = layer.at_or_before(1, Bound::Unbounded, until, &guard).map(number);
            assert_eq!(last, Some(until));
        }
    });
}
