//! Operations of tables of sessions at several sizes, on one and on two threads.

use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use serde::Serialize;

use super::{
    chase::Chase,
    load::{Job, Load},
    population::Population,
    subject::{Naive, Ours, Sharded, Subject},
};
use crate::{
    measure::{median, rounded},
    progress,
    together::together,
};

/// How many threads work at once.
const THREADS: [usize; 2] = [1, 2];
/// Operations of a thread in a round: so many that what lies before and after does not count.
const OPS: usize = 32_768;
const OPS_QUICK: usize = 200;
/// Rounds, in each of which one thread and two threads have their turn.
const ROUNDS: usize = 7;
const ROUNDS_QUICK: usize = 2;

/// One figure for programs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TableRow {
    part: &'static str,
    pub(super) table: &'static str,
    pub(super) sessions: u64,
    /// Entries that are remembered about each session.
    pub(super) info_entries: usize,
    pub(super) threads: usize,
    pub(super) op: &'static str,
    /// Time by the operations of all threads together.
    pub(super) ns_per_op: f64,
    /// In a process that holds nothing else.
    pub(super) bytes_per_session: Option<f64>,
    /// One dependent load from 64 MB, before and after this table: their mean.
    pub(super) cache_miss_ns: f64,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) sessions: u32,
    pub(super) info_entries: usize,
    pub(super) is_quick: bool,
}

impl Plan {
    fn ops(self) -> usize {
        if self.is_quick { OPS_QUICK } else { OPS }
    }

    fn rounds(self) -> usize {
        if self.is_quick { ROUNDS_QUICK } else { ROUNDS }
    }
}

/// Measures all tables at all sizes.
pub(super) async fn measure(sizes: &[u32], is_quick: bool) -> anyhow::Result<Vec<TableRow>> {
    let mut plans = Vec::new();
    for sessions in sizes {
        plans.extend([0, 3].map(|info_entries| Plan { sessions: *sessions, info_entries, is_quick }));
    }
    let bar = progress::bar("tables: look-ups and changes, on one and two threads", plans.len() as u64 * 3);
    let mut rows = Vec::new();
    for plan in plans {
        let ours = Ours::open().await?;
        let measured = tokio::task::spawn_blocking(move || measure_table(&ours, plan)).await?;
        rows.extend(measured?);
        bar.inc(1);
        rows.extend(tokio::task::spawn_blocking(move || measure_table(&Sharded::new(), plan)).await??);
        bar.inc(1);
        rows.extend(tokio::task::spawn_blocking(move || measure_table(&Naive::default(), plan)).await??);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Measures one table, between two chases.
fn measure_table<T: Subject>(table: &T, plan: Plan) -> anyhow::Result<Vec<TableRow>> {
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

/// One load in rounds, after one that warms up.
fn measure_load<T: Subject>(
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

/// One round: the time of each of the load's operations, by all threads together.
fn run_round<T: Subject>(
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
    async fn every_operation_of_every_table_has_a_time() {
        let rows = measure(&[300], true).await.unwrap();
        let ops = Load::ALL.iter().map(|load| load.ops().len()).sum::<usize>();
        assert_eq!(rows.len(), 2 * THREADS.len() * (3 * ops - 1), "the naive table has no ids");
        assert!(rows.iter().all(|row| row.ns_per_op > 0.0 && row.cache_miss_ns > 0.0));
    }
}
