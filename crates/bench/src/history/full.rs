//! Full retrieval: all matches of a query, page by page, reading every byte.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::{
    CONCURRENCY, CONCURRENCY_QUICK, HistoryRow,
    cell::{Answer, Bench},
};
use crate::{
    measure::{Bundle, Latencies, median, ms, ratio, rounded, touch_all},
    together::together,
};

/// Shorter times would measure the clock and the waking of threads.
const MEASURED_MIN: Duration = Duration::from_millis(10);
const INNER_MAX: u64 = 1_000;
const REPETITIONS: usize = 5;
/// Repetitions end early after this time, which only slow engines reach.
const PATIENCE: Duration = Duration::from_secs(8);

/// Measures the cell at each concurrency, and floors in between, so that both have the same conditions.
pub(super) fn measure(bench: &Bench, answer: &Answer) -> anyhow::Result<Vec<HistoryRow>> {
    let bodies = answer.bodies();
    let mut bundle = Bundle::new();
    let inner = inner(bench)?;
    let levels: &[usize] = bench.common.pick(&CONCURRENCY, &CONCURRENCY_QUICK);
    let mut rows = Vec::new();
    let mut alone_ms = None;
    for concurrency in levels {
        let mut times = Latencies::default();
        let mut totals = Vec::new();
        let mut floors = Vec::new();
        let mut touches = Vec::new();
        let begun = Instant::now();
        for _ in 0..bench.common.pick(REPETITIONS, 1) {
            floors.push(mean_ms(inner, || bundle.copy_all(&bodies)));
            touches.push(mean_ms(inner, || {
                touch_all(bodies.iter().copied());
            }));
            let (total, tallies) = together(*concurrency, || bench.walk(inner))?;
            ensure!(
                tallies.iter().all(|tally| *tally == answer.tally),
                "two walks over the same rows read different bytes"
            );
            let total_ms = ms(total) / inner as f64;
            times.record_ms(total_ms);
            totals.push(total_ms);
            if begun.elapsed() > PATIENCE {
                break;
            }
        }
        let median_ms = median(totals);
        let alone_ms = *alone_ms.get_or_insert(median_ms);
        let floor_ms = median(floors);
        rows.push(HistoryRow {
            engine: bench.engine,
            cell: bench.cell.name,
            query: bench.kind.name(),
            access: "full",
            concurrency: *concurrency,
            rows: answer.tally.rows,
            bytes: answer.tally.bytes,
            median_ms: rounded(median_ms),
            p99_ms: rounded(times.p99_ms()),
            floor_ms: rounded(floor_ms),
            ratio_to_floor: ratio(median_ms, floor_ms),
            touch_ms: Some(rounded(median(touches))),
            total_ms: rounded(median_ms),
            ratio_to_one: ratio(median_ms, alone_ms),
            bloom_match_ms: None,
            repetitions: times.len(),
            inner,
            disk_per_payload: None,
            positions: Vec::new(),
        });
    }
    Ok(rows)
}

/// The number of queries that are measured as one, from the time of one query on a warm archive.
fn inner(bench: &Bench) -> anyhow::Result<u64> {
    let begun = Instant::now();
    bench.walk(1)?;
    let enough = MEASURED_MIN.as_nanos() / begun.elapsed().as_nanos().max(1) + 1;
    let enough = u64::try_from(enough).unwrap_or(INNER_MAX);
    Ok(enough.min(bench.common.pick(INNER_MAX, 2)))
}

/// The mean time of `times` runs, in milliseconds.
pub(super) fn mean_ms(times: u64, mut run: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..times {
        run();
    }
    ms(begun.elapsed()) / times as f64
}
