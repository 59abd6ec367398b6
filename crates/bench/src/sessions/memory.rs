//! Bytes per session at several fills of a table.

use anyhow::{Context, ensure};
use serde::Serialize;

use super::{
    child::{Runner, Task},
    restante_table::RestanteTable,
    session_table::{NAME_BYTES, Name, SessionTable, info_of, write_name},
    table::TableRow,
};
use crate::{machine::private_memory, measure::rounded, progress};

/// Fills evenly spread around a size: tables grow by doubling, so one fill says little.
const FILLS: u32 = 16;
/// The smallest and the largest fill, relative to the size.
const FILL_MIN: f64 = 0.7;
const FILL_MAX: f64 = 1.4;

/// Bytes per session at one fill.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryRow {
    part: &'static str,
    pub(super) table: &'static str,
    pub(super) sessions: u64,
    /// Entries of info of each session.
    pub(super) info_entries: usize,
    pub(super) bytes_per_session: f64,
}

/// Measures restante's table at many fills around a size.
pub(super) async fn measure(runner: &Runner, size: u32) -> anyhow::Result<Vec<MemoryRow>> {
    let bar = progress::bar("memory: the table at several fills, each in a process of its own", 2);
    let mut rows = Vec::new();
    for has_info in [false, true] {
        rows.extend(of_restante(runner, has_info, &fills(size)).await?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Measures the bytes per session at these sizes, for the rows of the operations.
pub(super) async fn add_to(rows: &mut [TableRow], runner: &Runner, sizes: &[u32]) -> anyhow::Result<()> {
    let mut measured = Vec::new();
    for has_info in [false, true] {
        measured.extend(of_restante(runner, has_info, sizes).await?);
    }
    add_bytes(rows, &measured);
    Ok(())
}

async fn of_restante(runner: &Runner, has_info: bool, fills: &[u32]) -> anyhow::Result<Vec<MemoryRow>> {
    let task = Task::Fill { has_info, fills: fills.to_vec() };
    memory_rows(RestanteTable::NAME, has_info, fills, runner.run(&task).await?)
}

/// Rows of the figures that a child has measured by [`fill`].
///
/// # Errors
/// When the number of figures is not that of the fills.
pub fn memory_rows(
    table: &'static str,
    has_info: bool,
    fills: &[u32],
    figures: Vec<f64>,
) -> anyhow::Result<Vec<MemoryRow>> {
    ensure!(figures.len() == fills.len(), "the child process printed too few figures");
    let row = |(fill, bytes): (&u32, f64)| MemoryRow {
        part: "memory",
        table,
        sessions: u64::from(*fill),
        info_entries: if has_info { 3 } else { 0 },
        bytes_per_session: rounded(bytes),
    };
    Ok(fills.iter().zip(figures).map(row).collect())
}

/// Copies the bytes per session into the rows of the same table, size and info.
pub fn add_bytes(rows: &mut [TableRow], measured: &[MemoryRow]) {
    for row in rows {
        let same = measured.iter().find(|found| {
            (found.table, found.sessions, found.info_entries) == (row.table, row.sessions, row.info_entries)
        });
        row.bytes_per_session = same.map(|found| found.bytes_per_session);
    }
}

/// The fills that tables of about this size are measured at.
pub fn fills(size: u32) -> Vec<u32> {
    let share = |step: u32| FILL_MIN + (FILL_MAX - FILL_MIN) * f64::from(step) / f64::from(FILLS - 1);
    (0..FILLS).map(|step| (f64::from(size) * share(step)) as u32).collect()
}

/// Opens sessions and returns the bytes of private memory per session at each fill. A table that grows to a fill has the same
/// history as one that stops there.
///
/// # Errors
/// When the table refuses a session, or the system reports no private memory.
pub fn fill<T: SessionTable>(table: &T, has_info: bool, fills: &[u32]) -> anyhow::Result<Vec<f64>> {
    let memory = || private_memory("self").context("this system reports no private memory of a process");
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

    /// The amount can't be checked here: other tests allocate and free memory of this process meanwhile.
    #[tokio::test]
    async fn every_fill_has_a_figure() {
        let figures = fill(&RestanteTable::open().await.unwrap(), true, &[2_000, 20_000]).unwrap();
        assert_eq!(figures.len(), 2);
        assert!(figures.iter().all(|bytes| bytes.is_finite() && *bytes >= 0.0), "{figures:?}");
    }
}
