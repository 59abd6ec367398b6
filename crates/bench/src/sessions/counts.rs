//! Counting, in a small and in a large table.

use std::time::Instant;

use anyhow::{Context, ensure};
use serde::Serialize;

use super::{
    population::Population,
    restante_table::{RestanteTable, now},
};
use crate::measure::{median, rounded};

/// Calls of a batch, and batches.
const CALLS: u32 = 1_000;
const BATCHES: usize = 15;

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CountsRow {
    part: &'static str,
    pub(super) table: &'static str,
    pub(super) op: &'static str,
    pub(super) sessions: u64,
    pub(super) ns_per_op: f64,
}

/// Measures restante's table at all sizes.
pub(super) async fn measure(sizes: &[u32]) -> anyhow::Result<Vec<CountsRow>> {
    let mut rows = Vec::new();
    for sessions in sizes {
        let (table, sessions) = (RestanteTable::open().await?, *sessions);
        rows.push(tokio::task::spawn_blocking(move || of_table(&table, sessions)).await??);
    }
    Ok(rows)
}

fn of_table(table: &RestanteTable, sessions: u32) -> anyhow::Result<CountsRow> {
    Population::fill(table, sessions, false)?;
    let mut times = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let begun = Instant::now();
        for _ in 0..CALLS {
            let counts = now(table.sessions().counts()).context("counts came later")??;
            ensure!(counts.sessions == u64::from(sessions), "{} sessions were counted", counts.sessions);
        }
        times.push(begun.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    let ns_per_op = rounded(median(times));
    Ok(CountsRow {
        part: "counts",
        table: "restante",
        op: "counts",
        sessions: u64::from(sessions),
        ns_per_op,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_size_has_a_time() {
        let rows = measure(&[10, 50]).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.sessions).collect::<Vec<_>>(), [10, 50]);
    }
}
