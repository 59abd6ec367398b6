//! The micro-benchmark of MongooseIM's authors: finding one of several things that are remembered about a session, and merging them.

mod containers;
mod memory;
pub(super) mod seed;

use std::{
    hash::RandomState,
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::ensure;
use restante_sessions::InfoBuf;
use serde::Serialize;

use crate::{
    measure::{median, rounded},
    progress,
    random::Random,
};
use containers::{Changes, Container, Hashed, Scanned, Sorted, Tree};
pub(super) use memory::{
    ContainerKind, EntryBytes, IN_A_SESSION, SIZES as MEMORY_SIZES, of_containers, tell,
};

/// Keys beside the one that is looked for, as published.
pub(super) const SIZES: [u16; 4] = [3, 10, 100, 1_000];
/// How often the keys are shuffled for `random`.
const SHUFFLES: u64 = 15;
/// Batches of look-ups, of which the median counts, and how long one of them takes at least.
const BATCHES: usize = 15;
const BATCH: Duration = Duration::from_micros(400);
const BATCH_QUICK: Duration = Duration::from_micros(20);
/// Entries that are there, and entries that are merged into them: one of two, and two of five, are there already.
pub(super) const MERGES: [(u16, u16); 2] = [(3, 2), (10, 5)];

/// Where the key lies that is looked for: in the list, and for what keeps keys in order also among the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Order {
    First,
    Last,
    Random,
}

impl Order {
    pub(super) const ALL: [Self; 3] = [Self::First, Self::Last, Self::Random];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Last => "last",
            Self::Random => "random",
        }
    }
}

/// One figure for programs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EntriesRow {
    part: &'static str,
    pub(super) map: &'static str,
    /// `find` or `merge`.
    pub(super) op: &'static str,
    /// Entries beside the one that is looked for; or before the merge.
    pub(super) keys: u16,
    pub(super) order: Option<Order>,
    /// Entries that are merged in.
    pub(super) changes: Option<u16>,
    pub(super) ns_per_op: f64,
}

/// The names of all maps, in the order of columns.
pub(super) const MAPS: [&str; 6] = [
    InfoBuf::NAME,
    Scanned::NAME,
    Sorted::NAME,
    <Hashed<RandomState>>::NAME,
    <Hashed<foldhash::fast::RandomState>>::NAME,
    Tree::NAME,
];

/// Measures everything; on a thread that may be kept busy.
pub(super) fn measure(is_quick: bool) -> anyhow::Result<Vec<EntriesRow>> {
    let bar = progress::bar("entries: finding and merging what is remembered", MAPS.len() as u64);
    let batch = if is_quick { BATCH_QUICK } else { BATCH };
    let mut rows = Vec::new();
    let runs: [Run; MAPS.len()] = [
        of_map::<InfoBuf>,
        of_map::<Scanned>,
        of_map::<Sorted>,
        of_map::<Hashed<RandomState>>,
        of_map::<Hashed<foldhash::fast::RandomState>>,
        of_map::<Tree>,
    ];
    for run in runs {
        rows.extend(run(batch)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Measures one map, in batches of that length.
type Run = fn(Duration) -> anyhow::Result<Vec<EntriesRow>>;

fn of_map<C: Container>(batch: Duration) -> anyhow::Result<Vec<EntriesRow>> {
    let mut rows = Vec::new();
    for keys in SIZES {
        for order in Order::ALL {
            let ns_per_op = rounded(find_ns::<C>(keys, order, batch)?);
            let order = Some(order);
            rows.push(EntriesRow {
                part: "entries",
                map: C::NAME,
                op: "find",
                keys,
                order,
                changes: None,
                ns_per_op,
            });
        }
    }
    for (keys, changes) in MERGES {
        let ns_per_op = rounded(merge_ns::<C>(keys, changes, batch));
        let changes = Some(changes);
        rows.push(EntriesRow {
            part: "entries",
            map: C::NAME,
            op: "merge",
            keys,
            order: None,
            changes,
            ns_per_op,
        });
    }
    Ok(rows)
}

/// A look-up, over all shuffles when there are any: the mean of their medians.
fn find_ns<C: Container>(keys: u16, order: Order, batch: Duration) -> anyhow::Result<f64> {
    let shuffles = if order == Order::Random { SHUFFLES } else { 1 };
    let mut sum = 0.0;
    for shuffle in 0..shuffles {
        let (pairs, wanted) = contents(keys, order, shuffle);
        let map = C::build(&pairs);
        ensure!(map.find(wanted).is_some(), "{} has lost a key", C::NAME);
        sum += median_ns(batch / shuffles as u32, || {
            black_box(black_box(&map).find(black_box(wanted)));
        });
    }
    Ok(sum / shuffles as f64)
}

fn merge_ns<C: Container>(keys: u16, changes: u16, batch: Duration) -> f64 {
    let old: Vec<_> = (1..=keys).map(|key| (key, i64::from(key))).collect();
    let first_new = keys + 1 - changes / 2;
    let changes: Vec<_> = (first_new..first_new + changes).map(|key| (key, -1)).collect();
    let (map, changes) = (C::build(&old), Changes::new(&changes));
    median_ns(batch, || {
        black_box(black_box(&map).merged(black_box(&changes)));
    })
}

/// Entries, one more than `keys`, and the key that is looked for: the first or last in the list and in the order of keys,
/// or at random places in both.
fn contents(keys: u16, order: Order, shuffle: u64) -> (Vec<(u16, i64)>, u16) {
    let mut pairs: Vec<_> = (1..=keys + 1).map(|key| (key, i64::from(key % 100))).collect();
    let wanted = match order {
        Order::First => 1,
        Order::Last => keys + 1,
        Order::Random => {
            let mut random = Random::new(shuffle, 33);
            random.shuffle(&mut pairs);
            1 + random.below(u64::from(keys) + 1) as u16
        }
    };
    (pairs, wanted)
}

/// The median time of `work`, over batches that each take at least so long.
fn median_ns(batch: Duration, mut work: impl FnMut()) -> f64 {
    let mut count = 16_u32;
    let mut repeat = |count: u32| {
        let begun = Instant::now();
        for _ in 0..count {
            work();
        }
        begun.elapsed()
    };
    while repeat(count) < batch && count < 1 << 24 {
        count *= 2;
    }
    let times = (0..BATCHES).map(|_| repeat(count).as_nanos() as f64 / f64::from(count)).collect();
    median(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_seed_has_a_time() {
        let rows = measure(true).unwrap();
        assert_eq!(rows.len(), MAPS.len() * (SIZES.len() * 3 + MERGES.len()));
        assert!(rows.iter().all(|row| row.ns_per_op > 0.0));
        for keys in SIZES {
            for order in Order::ALL {
                assert!(seed::medians(keys, order).is_some(), "{keys} {order:?}");
            }
        }
    }

    #[test]
    fn the_key_lies_where_it_should() {
        assert_eq!(contents(3, Order::First, 0).0[0].0, 1);
        assert_eq!(contents(3, Order::Last, 0).0[3].0, 4);
        let (pairs, wanted) = contents(10, Order::Random, 3);
        assert!(pairs.iter().any(|(key, _)| *key == wanted) && !pairs.is_sorted());
    }
}
