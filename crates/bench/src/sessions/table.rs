//! Operations of a table of sessions at several sizes, on one and on two threads.

use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use serde::Serialize;

use super::{
    chase::Chase,
    load::{Job, Load},
    population::Population,
    restante_table::RestanteTable,
    session_table::SessionTable,
};
use crate::{
    measure::{median, rounded},
    progress,
    together::together,
};

/// Numbers of threads.
const THREADS: [usize; 2] = [1, 2];
/// Operations of a thread in a round: enough to make starting and joining threads negligible.
const OPS: usize = 32_768;
const OPS_QUICK: usize = 200;
/// Rounds; each measures one thread and then two.
const ROUNDS: usize = 7;
const ROUNDS_QUICK: usize = 2;

/// The time of an operation of one table.
#[derive(Clone, Debug, Serialize)]
pub struct TableRow {
    part: &'static str,
    /// The table's name.
    pub table: &'static str,
    /// Sessions in the table.
    pub sessions: u64,
    /// Entries of info of each session.
    pub info_entries: usize,
    /// Threads at once.
    pub threads: usize,
    /// The operation or mix of operations.
    pub op: &'static str,
    /// Time divided by the operations of all threads.
    pub ns_per_op: f64,
    /// In a process that holds nothing else.
    pub(super) bytes_per_session: Option<f64>,
    /// One dependent load from 64 MB, before and after this table: their mean.
    pub(super) cache_miss_ns: f64,
}

/// The size of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Sessions in the table.
    pub sessions: u32,
    /// Entries of info of each session: 0 or 3.
    pub info_entries: usize,
    /// Fewer operations and rounds.
    pub is_quick: bool,
}

impl Plan {
    /// All sizes, without and with info.
    pub fn all(sizes: &[u32], is_quick: bool) -> Vec<Self> {
        let of_size =
            |sessions: &u32| [0, 3].map(|info_entries| Self { sessions: *sessions, info_entries, is_quick });
        sizes.iter().flat_map(of_size).collect()
    }

    fn ops(self) -> usize {
        if self.is_quick { OPS_QUICK } else { OPS }
    }

    fn rounds(self) -> usize {
        if self.is_quick { ROUNDS_QUICK } else { ROUNDS }
    }
}

/// Measures restante's table at all sizes.
pub(super) async fn measure(sizes: &[u32], is_quick: bool) -> anyhow::Result<Vec<TableRow>> {
    let plans = Plan::all(sizes, is_quick);
    let bar = progress::bar("table: look-ups and changes, on one and two threads", plans.len() as u64);
    let mut rows = Vec::new();
    for plan in plans {
        rows.extend(measure_table(RestanteTable::open().await?, plan).await?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Measures all operations of an empty table, after filling it.
///
/// # Errors
/// When the table refuses or loses a session.
pub async fn measure_table<T: SessionTable>(table: T, plan: Plan) -> anyhow::Result<Vec<TableRow>> {
    tokio::task::spawn_blocking(move || measure_loads(&table, plan)).await?
}

fn measure_loads<T: SessionTable>(table: &T, plan: Plan) -> anyhow::Result<Vec<TableRow>> {
    let chase = Chase::new(plan.is_quick);
    let mut users = Population::fill(table, plan.sessions, plan.info_entries > 0)?;
    let before = chase.miss_ns();
    let mut rows = Vec::new();
    for load in Load::ALL {
        if load == Load::ById && !T::HAS_IDS {
            continue;
        }
        rows.extend(measure_load(table, load, plan, &mut users)?);
    }
    let cache_miss_ns = rounded(f64::midpoint(before, chase.miss_ns()));
    for row in &mut rows {
        row.cache_miss_ns = cache_miss_ns;
    }
    Ok(rows)
}

/// Measures one load in rounds, after a round that warms up.
fn measure_load<T: SessionTable>(
    table: &T,
    load: Load,
    plan: Plan,
    users: &mut Population<T::Id>,
) -> anyhow::Result<Vec<TableRow>> {
    run_round(table, load, 1, plan, users)?;
    let mut times = vec![Vec::new(); THREADS.len() * load.ops().len()];
    for _ in 0..plan.rounds() {
        let mut round = Vec::new();
        for threads in THREADS {
            round.extend(run_round(table, load, threads, plan, users)?);
        }
        for (times, ns) in times.iter_mut().zip(round) {
            times.push(ns);
        }
    }
    let kinds = THREADS.iter().flat_map(|threads| load.ops().iter().map(|op| (*threads, *op)));
    let row = |((threads, op), times)| TableRow {
        part: "table",
        table: T::NAME,
        sessions: u64::from(plan.sessions),
        info_entries: plan.info_entries,
        threads,
        op,
        ns_per_op: rounded(median(times)),
        bytes_per_session: None,
        cache_miss_ns: 0.0,
    };
    Ok(kinds.zip(times).map(row).collect())
}

/// Runs one round and returns the time of each of the load's operations, divided by the operations of all threads.
fn run_round<T: SessionTable>(
    table: &T,
    load: Load,
    threads: usize,
    plan: Plan,
    users: &mut Population<T::Id>,
) -> anyhow::Result<Vec<f64>> {
    let jobs = Mutex::new(Job::draw(load, plan.ops(), threads, plan.info_entries > 0, users)?);
    let (_, done) = together(threads, || {
        let job = jobs.lock().pop().context("a thread has no job")?;
        job.run(table)
    })?;
    let mut figures = Vec::new();
    for op in 0..load.ops().len() {
        let count: usize = done.iter().filter_map(|done| done.counts.get(op)).sum();
        let longest = done.iter().filter_map(|done| done.times.get(op)).max();
        let longest = longest.copied().unwrap_or(Duration::ZERO);
        figures.push(longest.as_nanos() as f64 / count.max(1) as f64);
    }
    for done in done {
        done.settle(users);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_operation_has_a_time() {
        let rows = measure(&[300], true).await.unwrap();
        let ops = Load::ALL.iter().map(|load| load.ops().len()).sum::<usize>();
        assert_eq!(rows.len(), 2 * THREADS.len() * ops);
        assert!(rows.iter().all(|row| row.ns_per_op > 0.0 && row.cache_miss_ns > 0.0));
    }
}
