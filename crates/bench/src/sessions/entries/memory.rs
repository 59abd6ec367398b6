//! Bytes of small maps: many of a kind, and the private memory of the process that holds them.

use std::hint::black_box;

use anyhow::Context;
use restante_sessions::{InfoBuf, InfoChange, InfoKey, InfoValue};
use serde::Serialize;

use super::info_map::InfoMap;
use crate::{
    machine::private_memory,
    measure::rounded,
    sessions::{
        child::{Runner, Task},
        session_table::info_of,
    },
};

/// Entries of a map.
pub const BYTES_SIZES: [u16; 3] = [3, 10, 100];
/// Entries of all maps of a kind together.
const ENTRIES: u32 = 2_000_000;
const ENTRIES_QUICK: u32 = 20_000;

/// Bytes of an entry in maps of one kind and size.
#[derive(Clone, Debug, Serialize)]
pub struct EntryBytes {
    part: &'static str,
    pub(in super::super) map: &'static str,
    op: &'static str,
    /// Entries of a map.
    pub(in super::super) keys: u16,
    pub(in super::super) bytes_per_entry: f64,
}

impl EntryBytes {
    /// The row of maps of `keys` entries of `bytes` each.
    pub fn new(map: &'static str, keys: u16, bytes: f64) -> Self {
        let bytes_per_entry = rounded(bytes / f64::from(keys));
        Self { part: "entries", map, op: "bytes", keys, bytes_per_entry }
    }
}

/// How many maps of `keys` entries are measured together.
pub fn map_count(keys: u16, is_quick: bool) -> u32 {
    if is_quick { ENTRIES_QUICK / u32::from(keys) } else { ENTRIES / u32::from(keys) }
}

/// Measures restante's maps in a process of their own, and their encoded bytes within a session.
pub(in super::super) async fn entry_bytes(
    runner: &Runner,
    is_quick: bool,
) -> anyhow::Result<Vec<EntryBytes>> {
    let mut rows = Vec::new();
    for keys in BYTES_SIZES {
        rows.push(EntryBytes::new(IN_A_SESSION, keys, encoded_bytes(keys)?));
        let figures = runner.run(&Task::Maps { keys, maps: map_count(keys, is_quick) }).await?;
        let bytes = figures.first().context("the child process printed no figure")?;
        rows.push(EntryBytes::new(InfoBuf::NAME, keys, *bytes));
    }
    Ok(rows)
}

/// The name of the rows of encoded bytes, which are all that an entry of a session needs.
pub(in super::super) const IN_A_SESSION: &str = "restante, in a session";

/// The encoded bytes of small entries: an address, a short text, and small numbers.
fn encoded_bytes(keys: u16) -> anyhow::Result<f64> {
    let kinds = info_of(1);
    let value = |key: u16| match kinds.get(usize::from(key) - 1) {
        Some((_, value)) => *value,
        None => Some(InfoValue::Number(i64::from(key % 100))),
    };
    let changes: Vec<InfoChange<'_>> = (1..=keys).map(|key| (InfoKey(key), value(key))).collect();
    let mut info = InfoBuf::new();
    info.merge(&changes)?;
    Ok(info.as_info().as_bytes().len() as f64)
}

/// The bytes of private memory of a map of `keys` entries, on average over `maps` of them.
///
/// # Errors
/// When the system reports no private memory.
pub fn bytes_of<M: InfoMap>(keys: u16, maps: u32) -> anyhow::Result<f64> {
    let pairs: Vec<_> = (1..=keys).map(|key| (key, i64::from(key % 100))).collect();
    let memory = || private_memory("self").context("this system reports no private memory of a process");
    let before = memory()?;
    let mut all = Vec::with_capacity(maps as usize);
    all.extend((0..maps).map(|_| M::build(&pairs)));
    let after = memory()?;
    black_box(&all);
    Ok(after.saturating_sub(before) as f64 / f64::from(maps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_entries_take_few_bytes_in_a_session() {
        for keys in BYTES_SIZES {
            let bytes = encoded_bytes(keys).unwrap() / f64::from(keys);
            assert!(bytes > 2.0 && bytes < 24.0, "{keys}: {bytes}");
        }
    }

    /// The amount can't be checked here: other tests allocate and free memory of this process meanwhile.
    #[test]
    fn maps_have_a_figure() {
        let bytes = bytes_of::<InfoBuf>(100, 1_000).unwrap();
        assert!(bytes.is_finite() && bytes >= 0.0, "{bytes}");
    }
}
