//! The micro-benchmark of MongooseIM's authors: finding one entry of a session's info, and merging entries.

mod info_map;
mod memory;
pub(super) mod seed;

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::ensure;
use serde::Serialize;

use crate::{
    measure::{median, rounded},
    random::Random,
};
pub use info_map::{Changes, InfoMap, assert_is_map};
pub use memory::{BYTES_SIZES, EntryBytes, bytes_of, map_count};
pub(super) use memory::{IN_A_SESSION, entry_bytes};

/// Keys besides the one that is searched, as published.
pub const KEYS: [u16; 4] = [3, 10, 100, 1_000];
/// Shuffles for [`Order::Random`].
const SHUFFLES: u64 = 15;
/// Batches of look-ups, whose median is reported, and the least time of a batch.
const BATCHES: usize = 15;
const BATCH: Duration = Duration::from_micros(400);
const BATCH_QUICK: Duration = Duration::from_micros(20);
/// Entries of a map and of the changes: one of two, and two of five, replace an entry.
pub const MERGES: [(u16, u16); 2] = [(3, 2), (10, 5)];

/// The position of the searched key: in the list, and for sorted maps also among the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The first.
    First,
    /// The last.
    Last,
    /// At random, on average over shuffles.
    Random,
}

impl Order {
    /// All positions.
    pub const ALL: [Self; 3] = [Self::First, Self::Last, Self::Random];

    /// The position's name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Last => "last",
            Self::Random => "random",
        }
    }
}

/// The time of an operation of one map.
#[derive(Clone, Debug, Serialize)]
pub struct EntriesRow {
    part: &'static str,
    /// The map's name.
    pub map: &'static str,
    /// `find` or `merge`.
    pub op: &'static str,
    /// Entries besides the one that is searched, or before the merge.
    pub keys: u16,
    /// Of finds.
    pub order: Option<Order>,
    /// Entries that are merged in.
    pub changes: Option<u16>,
    /// Nanoseconds, the median.
    pub ns_per_op: f64,
}

/// Measures one map. Blocks for up to a second.
///
/// # Errors
/// When the map loses a key.
pub fn measure_map<M: InfoMap>(is_quick: bool) -> anyhow::Result<Vec<EntriesRow>> {
    let batch = if is_quick { BATCH_QUICK } else { BATCH };
    let mut rows = Vec::new();
    for keys in KEYS {
        for order in Order::ALL {
            let ns_per_op = rounded(find_ns::<M>(keys, order, batch)?);
            let order = Some(order);
            rows.push(EntriesRow {
                part: "entries",
                map: M::NAME,
                op: "find",
                keys,
                order,
                changes: None,
                ns_per_op,
            });
        }
    }
    for (keys, changes) in MERGES {
        let ns_per_op = rounded(merge_ns::<M>(keys, changes, batch));
        let changes = Some(changes);
        rows.push(EntriesRow {
            part: "entries",
            map: M::NAME,
            op: "merge",
            keys,
            order: None,
            changes,
            ns_per_op,
        });
    }
    Ok(rows)
}

/// The time of a find: the mean over the medians of all shuffles.
fn find_ns<M: InfoMap>(keys: u16, order: Order, batch: Duration) -> anyhow::Result<f64> {
    let shuffles = if order == Order::Random { SHUFFLES } else { 1 };
    let mut sum = 0.0;
    for shuffle in 0..shuffles {
        let (pairs, searched) = contents(keys, order, shuffle);
        let map = M::build(&pairs);
        ensure!(map.find(searched).is_some(), "{} lost a key", M::NAME);
        sum += median_ns(batch / shuffles as u32, || {
            black_box(black_box(&map).find(black_box(searched)));
        });
    }
    Ok(sum / shuffles as f64)
}

fn merge_ns<M: InfoMap>(keys: u16, changes: u16, batch: Duration) -> f64 {
    let old: Vec<_> = (1..=keys).map(|key| (key, i64::from(key))).collect();
    let first_new = keys + 1 - changes / 2;
    let changes: Vec<_> = (first_new..first_new + changes).map(|key| (key, -1)).collect();
    let (map, changes) = (M::build(&old), Changes::new(&changes));
    median_ns(batch, || {
        black_box(black_box(&map).merged(black_box(&changes)));
    })
}

/// Entries, one more than `keys`, and the searched key: the first or last both in the list and among the sorted keys, or at
/// a random position in each.
fn contents(keys: u16, order: Order, shuffle: u64) -> (Vec<(u16, i64)>, u16) {
    let mut pairs: Vec<_> = (1..=keys + 1).map(|key| (key, i64::from(key % 100))).collect();
    let searched = match order {
        Order::First => 1,
        Order::Last => keys + 1,
        Order::Random => {
            let mut random = Random::new(shuffle, 33);
            random.shuffle(&mut pairs);
            1 + random.below(u64::from(keys) + 1) as u16
        }
    };
    (pairs, searched)
}

/// The median time of `work` over batches that each take at least the time `batch`.
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
    fn every_published_cell_has_a_time() {
        let rows = measure_map::<restante_sessions::InfoBuf>(true).unwrap();
        assert_eq!(rows.len(), KEYS.len() * 3 + MERGES.len());
        assert!(rows.iter().all(|row| row.ns_per_op > 0.0));
        for keys in KEYS {
            for order in Order::ALL {
                assert!(seed::medians(keys, order).is_some(), "{keys} {order:?}");
            }
        }
    }

    #[test]
    fn the_key_has_the_right_position() {
        assert_eq!(contents(3, Order::First, 0).0[0].0, 1);
        assert_eq!(contents(3, Order::Last, 0).0[3].0, 4);
        let (pairs, searched) = contents(10, Order::Random, 3);
        assert!(pairs.iter().any(|(key, _)| *key == searched) && !pairs.is_sorted());
    }
}
