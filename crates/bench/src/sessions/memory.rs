//! What a session takes, at several fills of a table, and what a small thing that is remembered adds.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::{
    child::{Runner, Task},
    subject::{NAME_BYTES, Naive, Name, Ours, Sharded, Subject, info_of, write_name},
    table::TableRow,
};
use crate::{machine::private_memory, measure::rounded, progress};

/// Fills of restante's table, evenly spread around a size: tables grow by doubling, so that one fill says little.
const FILLS: u32 = 16;
/// The least and the greatest, by the size.
const FILL_MIN: f64 = 0.7;
const FILL_MAX: f64 = 1.4;

/// Which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TableKind {
    Ours,
    Sharded,
    Naive,
}

impl TableKind {
    const ALL: [Self; 3] = [Self::Ours, Self::Sharded, Self::Naive];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => Ours::NAME,
            Self::Sharded => Sharded::NAME,
            Self::Naive => Naive::NAME,
        }
    }
}

/// One figure for programs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemoryRow {
    part: &'static str,
    pub(super) table: &'static str,
    pub(super) sessions: u64,
    /// Entries that are remembered about each session.
    pub(super) info_entries: usize,
    pub(super) bytes_per_session: f64,
}

/// Measures restante's table at many fills around a size, and the others at those that are doubled by growth and between.
pub(super) async fn measure(runner: &Runner, size: u32) -> anyhow::Result<Vec<MemoryRow>> {
    let bar = progress::bar("memory: tables at several fills, each in a process of its own", 6);
    let mut rows = Vec::new();
    for table in TableKind::ALL {
        for has_info in [false, true] {
            rows.extend(of_table(runner, table, has_info, &fills(size)).await?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// What a session takes in tables of these sizes: for the rows of their operations.
pub(super) async fn add_to(rows: &mut [TableRow], runner: &Runner, sizes: &[u32]) -> anyhow::Result<()> {
    let mut measured = Vec::new();
    for table in TableKind::ALL {
        for has_info in [false, true] {
            measured.extend(of_table(runner, table, has_info, sizes).await?);
        }
    }
    for row in rows {
        let same = measured.iter().find(|found| {
            (found.table, found.sessions, found.info_entries) == (row.table, row.sessions, row.info_entries)
        });
        row.bytes_per_session = same.map(|found| found.bytes_per_session);
    }
    Ok(())
}

async fn of_table(
    runner: &Runner,
    table: TableKind,
    has_info: bool,
    fills: &[u32],
) -> anyhow::Result<Vec<MemoryRow>> {
    let figures = runner.run(&Task::Fill { table, has_info, fills: fills.to_vec() }).await?;
    ensure!(figures.len() == fills.len(), "the child process told too few figures");
    let row = |(fill, bytes): (&u32, f64)| MemoryRow {
        part: "memory",
        table: table.name(),
        sessions: u64::from(*fill),
        info_entries: if has_info { 3 } else { 0 },
        bytes_per_session: rounded(bytes),
    };
    Ok(fills.iter().zip(figures).map(row).collect())
}

fn fills(size: u32) -> Vec<u32> {
    let share = |step: u32| FILL_MIN + (FILL_MAX - FILL_MIN) * f64::from(step) / f64::from(FILLS - 1);
    (0..FILLS).map(|step| (f64::from(size) * share(step)) as u32).collect()
}

/// What the child does: it opens sessions, and looks at its private memory at each fill. A table that grows to a fill has
/// the same history as one that stops there.
pub(super) async fn tell(table: TableKind, has_info: bool, fills: &[u32]) -> anyhow::Result<Vec<f64>> {
    match table {
        TableKind::Ours => grow(&Ours::open().await?, has_info, fills),
        TableKind::Sharded => grow(&Sharded::new(), has_info, fills),
        TableKind::Naive => grow(&Naive::default(), has_info, fills),
    }
}

fn grow<T: Subject>(table: &T, has_info: bool, fills: &[u32]) -> anyhow::Result<Vec<f64>> {
    let memory = || private_memory("self").context("this system does not tell a process's private memory");
    let mut name = String::with_capacity(NAME_BYTES);
    let before = memory()?;
    let mut opened = 0;
    let mut figures = Vec::with_capacity(fills.len());
    for fill in fills {
        for number in opened..*fill {
            name.clear();
            write_name(number, &mut name);
            let info = info_of(number);
            let info = if has_info { info.as_slice() } else { &[] };
            let id = Name::of(&name).and_then(|name| table.open(name, info));
            ensure!(id.is_some(), "{} refused a session", T::NAME);
        }
        opened = *fill;
        figures.push(memory()?.saturating_sub(before) as f64 / f64::from((*fill).max(1)));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_are_spread_around_the_size() {
        let fills = fills(1_000_000);
        assert_eq!((fills.len(), fills[0], fills[15]), (16, 700_000, 1_400_000));
        assert!(fills.is_sorted());
    }

    /// How much it is can't be judged here: other tests take and free memory of this process at the same time.
    #[tokio::test]
    async fn memory_is_told_of_every_table_and_fill() {
        for table in TableKind::ALL {
            let figures = tell(table, true, &[2_000, 20_000]).await.unwrap();
            assert_eq!(figures.len(), 2, "{table:?}");
            assert!(figures.iter().all(|bytes| bytes.is_finite() && *bytes >= 0.0), "{table:?} {figures:?}");
        }
    }
}
