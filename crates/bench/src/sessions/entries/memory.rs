//! What small maps take: so many of each kind that the memory of the process tells it.

use std::{hash::RandomState, hint::black_box};

use anyhow::Context;
use restante_sessions::{InfoBuf, InfoChange, InfoKey, InfoValue};
use serde::{Deserialize, Serialize};

use super::containers::{Container, Hashed, Scanned, Sorted, Tree};
use crate::{
    machine::private_memory,
    measure::rounded,
    sessions::child::{self, Task},
};

/// Entries of a map.
pub(in super::super) const SIZES: [u16; 3] = [3, 10, 100];
/// Entries of all maps of a kind together.
const ENTRIES: u32 = 2_000_000;
const ENTRIES_QUICK: u32 = 20_000;

/// Which map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) enum ContainerKind {
    Info,
    Scanned,
    Sorted,
    SipHash,
    FoldHash,
    Tree,
}

impl ContainerKind {
    const ALL: [Self; 6] =
        [Self::Info, Self::Scanned, Self::Sorted, Self::SipHash, Self::FoldHash, Self::Tree];

    fn name(self) -> &'static str {
        match self {
            Self::Info => InfoBuf::NAME,
            Self::Scanned => Scanned::NAME,
            Self::Sorted => Sorted::NAME,
            Self::SipHash => <Hashed<RandomState>>::NAME,
            Self::FoldHash => <Hashed<foldhash::fast::RandomState>>::NAME,
            Self::Tree => Tree::NAME,
        }
    }
}

/// One figure for programs.
#[derive(Clone, Debug, Serialize)]
pub(in super::super) struct EntryBytes {
    part: &'static str,
    pub(in super::super) map: &'static str,
    pub(in super::super) op: &'static str,
    /// Entries of a map.
    pub(in super::super) keys: u16,
    pub(in super::super) bytes_per_entry: f64,
}

/// Measures all maps, each in a process of its own, and the bytes that restante's take within a session's entry.
pub(in super::super) async fn of_containers(
    runner: &child::Runner,
    is_quick: bool,
) -> anyhow::Result<Vec<EntryBytes>> {
    let entries = if is_quick { ENTRIES_QUICK } else { ENTRIES };
    let row = |map, keys, bytes| EntryBytes {
        part: "entries",
        map,
        op: "bytes",
        keys,
        bytes_per_entry: rounded(bytes),
    };
    let mut rows = Vec::new();
    for keys in SIZES {
        rows.push(row(IN_A_SESSION, keys, encoded_bytes(keys)? / f64::from(keys)));
        for kind in ContainerKind::ALL {
            let maps = entries / u32::from(keys);
            let bytes: Vec<f64> = runner.run(&Task::Containers { kind, keys, maps }).await?;
            let bytes = bytes.first().context("the child process told no memory")?;
            rows.push(row(kind.name(), keys, bytes / f64::from(keys)));
        }
    }
    Ok(rows)
}

/// The name of the row that is about a session's entry, where nothing but the encoded bytes is added.
pub(in super::super) const IN_A_SESSION: &str = "restante, in a session";

/// What so many small entries take when they are encoded: the first is an address, the second a short text, the others are
/// small numbers.
fn encoded_bytes(keys: u16) -> anyhow::Result<f64> {
    let kinds = super::super::subject::info_of(1);
    let value = |key: u16| match kinds.get(usize::from(key) - 1) {
        Some((_, value)) => *value,
        None => Some(InfoValue::Number(i64::from(key % 100))),
    };
    let changes: Vec<InfoChange<'_>> = (1..=keys).map(|key| (InfoKey(key), value(key))).collect();
    let mut info = InfoBuf::new();
    info.merge(&changes)?;
    Ok(info.as_info().as_bytes().len() as f64)
}

/// What the child does: so many maps, and the private memory that each has added.
pub(in super::super) fn tell(kind: ContainerKind, keys: u16, maps: u32) -> anyhow::Result<f64> {
    match kind {
        ContainerKind::Info => bytes_of::<InfoBuf>(keys, maps),
        ContainerKind::Scanned => bytes_of::<Scanned>(keys, maps),
        ContainerKind::Sorted => bytes_of::<Sorted>(keys, maps),
        ContainerKind::SipHash => bytes_of::<Hashed<RandomState>>(keys, maps),
        ContainerKind::FoldHash => bytes_of::<Hashed<foldhash::fast::RandomState>>(keys, maps),
        ContainerKind::Tree => bytes_of::<Tree>(keys, maps),
    }
}

fn bytes_of<C: Container>(keys: u16, maps: u32) -> anyhow::Result<f64> {
    let pairs: Vec<_> = (1..=keys).map(|key| (key, i64::from(key % 100))).collect();
    let memory = || private_memory("self").context("this system does not tell a process's private memory");
    let before = memory()?;
    let mut all = Vec::with_capacity(maps as usize);
    all.extend((0..maps).map(|_| C::build(&pairs)));
    let after = memory()?;
    black_box(&all);
    Ok(after.saturating_sub(before) as f64 / f64::from(maps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_entries_take_few_bytes_in_a_session() {
        for keys in SIZES {
            let bytes = encoded_bytes(keys).unwrap() / f64::from(keys);
            assert!(bytes > 2.0 && bytes < 24.0, "{keys}: {bytes}");
        }
    }

    /// How much it is can't be judged here: other tests take and free memory of this process at the same time.
    #[test]
    fn memory_is_told_of_every_kind() {
        for kind in ContainerKind::ALL {
            let bytes = tell(kind, 100, 1_000).unwrap();
            assert!(bytes.is_finite() && bytes >= 0.0, "{kind:?}: {bytes}");
        }
    }
}
