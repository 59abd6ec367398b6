//! Child processes that hold one table or many maps of one kind, and measure their memory.

use anyhow::Context;
use restante_bench::sessions::{Plan, RestanteTable, Runner, SessionTable, TableRow, fill, measure_table};
use serde::{Deserialize, Serialize};

use super::{maps::MapKind, naive::Naive, sharded::Sharded};

/// The variable with a child's task.
pub(crate) const TASK: &str = "RESTANTE_COMPARE_TASK";

/// The compared tables.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum TableKind {
    Restante,
    Sharded,
    Naive,
}

impl TableKind {
    pub(super) const ALL: [Self; 3] = [Self::Restante, Self::Sharded, Self::Naive];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Restante => RestanteTable::NAME,
            Self::Sharded => Sharded::NAME,
            Self::Naive => Naive::NAME,
        }
    }

    /// Times of all operations.
    pub(super) async fn measure(self, plan: Plan) -> anyhow::Result<Vec<TableRow>> {
        match self {
            Self::Restante => measure_table(RestanteTable::open().await?, plan).await,
            Self::Sharded => measure_table(Sharded::new(), plan).await,
            Self::Naive => measure_table(Naive::default(), plan).await,
        }
    }

    /// Bytes per session at each fill.
    async fn fill(self, has_info: bool, fills: &[u32]) -> anyhow::Result<Vec<f64>> {
        match self {
            Self::Restante => fill(&RestanteTable::open().await?, has_info, fills),
            Self::Sharded => fill(&Sharded::new(), has_info, fills),
            Self::Naive => fill(&Naive::default(), has_info, fills),
        }
    }
}

/// What a child measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Bytes of a session at each of these fills, which ascend.
    Table { table: TableKind, has_info: bool, fills: Vec<u32> },
    /// Bytes of a map of this many entries, in this many maps.
    Maps { map: MapKind, keys: u16, maps: u32 },
}

/// A runner that starts this program.
pub(super) fn runner() -> anyhow::Result<Runner> {
    Ok(Runner { program: std::env::current_exe()?, args: &[], variable: TASK })
}

/// Runs the task of a child process and prints its figures.
pub(crate) async fn run_task(task: &str) -> anyhow::Result<()> {
    let figures = match serde_json::from_str(task).context("can't parse the task")? {
        Task::Table { table, has_info, fills } => table.fill(has_info, &fills).await?,
        Task::Maps { map, keys, maps } => vec![map.bytes_of(keys, maps)?],
    };
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}
