//! Random batches compared with maps: the contents of a store after each of them, whichever part is already in LMDB.

use std::{collections::BTreeMap, ops::Bound};

use proptest::prelude::*;

use super::{FIRST, SECOND, open, wait};
use crate::{Direction, Error, Store, Table, View};

type Model = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    /// A batch: for each row the table, the key and the value, or `None` to delete it.
    Write(Vec<(bool, u8, Option<u16>)>),
    Refused(u8),
    Range(bool, Bound<u8>, Bound<u8>),
    Settle,
    Reopen,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let row = (any::<bool>(), 0..40_u8, prop::option::weighted(0.7, prop_oneof![0..60_u16, Just(3_000)]));
    let bound = || {
        prop_oneof![
            (0..42_u8).prop_map(Bound::Included),
            (0..42_u8).prop_map(Bound::Excluded),
            Just(Bound::Unbounded)
        ]
    };
    prop_oneof![
        8 => prop::collection::vec(row, 0..6).prop_map(Step::Write),
        1 => any::<u8>().prop_map(Step::Refused),
        6 => (any::<bool>(), bound(), bound()).prop_map(|(table, from, to)| Step::Range(table, from, to)),
        1 => Just(Step::Settle),
        1 => Just(Step::Reopen),
        1 => Just(Step::Close),
    ]
}

fn table(is_second: bool) -> Table {
    if is_second { SECOND } else { FIRST }
}

fn key(number: u8) -> Vec<u8> {
    // Some keys are prefixes of others.
    vec![number / 3; 1 + usize::from(number % 3)]
}

fn write(store: &Store, model: &mut Model, rows: &[(bool, u8, Option<u16>)]) {
    let rows: Vec<_> = rows
        .iter()
        .map(|(second, number, len)| (table(*second), key(*number), len.map(|len| vec![*number; len.into()])))
        .collect();
    for (table, key, value) in &rows {
        match value {
            Some(value) => model.insert((table.number, key.clone()), value.clone()),
            None => model.remove(&(table.number, key.clone())),
        };
    }
    let put = move |batch: &mut crate::Batch<'_>| {
        for (table, key, value) in &rows {
            match value {
                Some(value) => batch.put(*table, key, value),
                None => batch.delete(*table, key),
            }
        }
        Ok(())
    };
    store.write_blocking(put).unwrap();
}

fn all(
    view: &View<'_>,
    table: Table,
    bounds: (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows = Vec::new();
    let mut range = view.range(table, bounds.0, bounds.1, direction).unwrap();
    while let Some((key, value)) = range.next().unwrap() {
        rows.push((key.to_vec(), value.to_vec()));
    }
    rows
}

fn compare(
    store: &Store,
    model: &Model,
    table: Table,
    from: Bound<u8>,
    to: Bound<u8>,
) -> Result<(), TestCaseError> {
    let (from, to) = (from.map(key), to.map(key));
    let inside = |key: &Vec<u8>| {
        let after = match &from {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        };
        let before = match &to {
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
            Bound::Unbounded => true,
        };
        after && before
    };
    let expected: Vec<_> = model
        .iter()
        .filter(|((number, key), _)| *number == table.number && inside(key))
        .map(|((_, key), value)| (key.clone(), value.clone()))
        .collect();
    let bounds = (from.as_ref().map(|key| &key[..]), to.as_ref().map(|key| &key[..]));
    let compared = store.read(|view| Ok(compare_view(view, model, table, bounds, expected)));
    compared.unwrap()
}

fn compare_view(
    view: &View<'_>,
    model: &Model,
    table: Table,
    bounds: (Bound<&[u8]>, Bound<&[u8]>),
    mut expected: Vec<(Vec<u8>, Vec<u8>)>,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(&all(view, table, bounds, Direction::Ascending), &expected);
    expected.reverse();
    prop_assert_eq!(&all(view, table, bounds, Direction::Descending), &expected);
    for number in 0..42 {
        let there = view.get(table, &key(number)).unwrap().map(|value| value.to_vec());
        prop_assert_eq!(there.as_ref(), model.get(&(table.number, key(number))));
    }
    Ok(())
}

fn run(log_bytes: u64, steps: &[Step]) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path(), log_bytes);
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Write(rows) => write(&store, &mut model, rows),
            Step::Refused(number) => {
                let number = *number;
                let refused = store.write_blocking(move |batch| {
                    batch.put(FIRST, &key(number), b"never");
                    Err::<(), _>(Error::new(restante_core::ErrorKind::Conflict, "not this one"))
                });
                prop_assert!(refused.is_err());
            }
            Step::Range(second, from, to) => compare(&store, &model, table(*second), *from, *to)?,
            Step::Settle => wait(store.settle()).unwrap(),
            Step::Reopen => {
                drop(store);
                store = open(folder.path(), log_bytes);
            }
            Step::Close => {
                wait(store.close()).unwrap();
                prop_assert!(store.health().is_err());
                drop(store);
                store = open(folder.path(), log_bytes);
            }
        }
    }
    for second in [false, true] {
        compare(&store, &model, table(second), Bound::Unbounded, Bound::Unbounded)?;
    }
    wait(store.settle()).unwrap();
    prop_assert_eq!(store.check().unwrap(), Vec::<String>::new());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_store_with_a_commit_log_holds_what_was_written(steps in prop::collection::vec(step(), 1..60)) {
        run(16 << 10, &steps)?;
    }

    #[test]
    fn a_store_without_a_commit_log_holds_what_was_written(steps in prop::collection::vec(step(), 1..30)) {
        run(0, &steps)?;
    }
}
