//! Tables of sessions, and maps for the info of a session: restante's, a sharded and a naive table, Rust's containers, and
//! Erlang's, measured as in `restante bench sessions`.

mod child;
mod erlang;
mod maps;
mod naive;
mod present;
mod sharded;

use std::path::Path;

use anyhow::Context;
use restante_bench::{
    Report,
    sessions::{
        BYTES_SIZES, EntriesRow, EntryBytes, MemoryRow, Plan, TableRow, add_bytes, fills, map_count,
        memory_rows,
    },
};

use crate::args::CompareArgs;
pub(crate) use child::{TASK, run_task};
use child::{TableKind, Task, runner};
use erlang::Erlang;
use maps::MapKind;

/// Everything that was measured.
struct Measured {
    maps: Vec<EntriesRow>,
    map_bytes: Vec<EntryBytes>,
    table: Vec<TableRow>,
    memory: Vec<MemoryRow>,
    /// `None` if Erlang is not installed.
    erlang: Option<Erlang>,
}

/// Measures everything and reports it.
pub(crate) async fn compare(args: &CompareArgs, folder: &Path, report: &mut Report) -> anyhow::Result<()> {
    let (sizes, is_quick) = (args.sizes()?, args.common.quick);
    let maps: Vec<MapKind> = MapKind::ALL.into_iter().skip(usize::from(args.rivals_only)).collect();
    let tables: Vec<TableKind> = TableKind::ALL.into_iter().skip(usize::from(args.rivals_only)).collect();
    eprintln!("measuring maps of info");
    let mut measured = Measured {
        maps: times_of_maps(&maps, is_quick).await?,
        map_bytes: bytes_of_maps(&maps, is_quick).await?,
        table: Vec::new(),
        memory: Vec::new(),
        erlang: None,
    };
    for plan in Plan::all(&sizes, is_quick) {
        for table in &tables {
            eprintln!(
                "measuring {}: {} sessions, {} entries",
                table.name(),
                plan.sessions,
                plan.info_entries
            );
            measured.table.extend(table.measure(plan).await?);
        }
    }
    add_bytes(&mut measured.table, &bytes_of_tables(&tables, &sizes).await?);
    let largest = sizes.last().copied().unwrap_or_default();
    measured.memory = bytes_of_tables(&tables, &fills(largest)).await?;
    if erlang::is_installed() {
        eprintln!("measuring Erlang");
        measured.erlang = Some(erlang::measure(folder, &sizes, is_quick).await?);
    }
    present::present(&measured, &sizes, report)
}

async fn times_of_maps(maps: &[MapKind], is_quick: bool) -> anyhow::Result<Vec<EntriesRow>> {
    let mut rows = Vec::new();
    for map in maps.iter().copied() {
        rows.extend(tokio::task::spawn_blocking(move || map.measure(is_quick)).await??);
    }
    Ok(rows)
}

async fn bytes_of_maps(maps: &[MapKind], is_quick: bool) -> anyhow::Result<Vec<EntryBytes>> {
    let runner = runner()?;
    let mut rows = Vec::new();
    for keys in BYTES_SIZES {
        for map in maps.iter().copied() {
            let figures = runner.run(&Task::Maps { map, keys, maps: map_count(keys, is_quick) }).await?;
            let bytes = figures.first().context("the child process printed no figure")?;
            rows.push(EntryBytes::new(map.name(), keys, *bytes));
        }
    }
    Ok(rows)
}

/// Bytes per session in tables of these sizes, which ascend.
async fn bytes_of_tables(tables: &[TableKind], sizes: &[u32]) -> anyhow::Result<Vec<MemoryRow>> {
    let runner = runner()?;
    let mut rows = Vec::new();
    for table in tables.iter().copied() {
        for has_info in [false, true] {
            let figures = runner.run(&Task::Table { table, has_info, fills: sizes.to_vec() }).await?;
            rows.extend(memory_rows(table.name(), has_info, sizes, figures)?);
        }
    }
    Ok(rows)
}
