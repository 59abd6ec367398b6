//! Single pages of 100 at the beginning, in the middle and at the end of a cell's matches, in both directions.

use std::time::{Duration, Instant};

use anyhow::ensure;
use restante_archive::{Direction, Page, Query};
use restante_core::Cursor;

use super::{
    CONCURRENCY, CONCURRENCY_QUICK, HistoryRow, PositionRow,
    cell::{Answer, Bench},
    full::mean_ms,
};
use crate::{
    measure::{Bundle, Latencies, median, ms, ratio, rounded, touch_all},
    together::together,
};

const PAGE_ROWS: u64 = 100;
/// Pages of each position and thread, and their time limit with a slow engine.
const REPETITIONS: u64 = 200;
const PATIENCE: Duration = Duration::from_secs(3);

/// A position at which pages are read.
struct Position {
    direction: Direction,
    name: &'static str,
    query: Query,
}

/// Measures pages at each concurrency: the rows, and the times of pages read without concurrency.
pub(super) fn measure(bench: &Bench, answer: &Answer) -> anyhow::Result<(Vec<HistoryRow>, Latencies)> {
    let positions = positions(bench, answer);
    let begun = Instant::now();
    let pages: Vec<Page> = positions.iter().map(|at| bench.page(&at.query)).collect::<Result<_, _>>()?;
    let repetitions = repetitions(begun.elapsed(), bench);
    let floor_ms = floor_ms(&pages);
    let page_rows = pages.iter().map(Page::len).max().unwrap_or(0) as u64;
    let page_bytes =
        pages.iter().map(|page| page.bodies().map(<[u8]>::len).sum::<usize>()).max().unwrap_or(0) as u64;
    let levels: &[usize] = bench.common.pick(&CONCURRENCY, &CONCURRENCY_QUICK);
    let mut rows = Vec::new();
    let mut alone: Option<(f64, Latencies)> = None;
    for concurrency in levels {
        let (total, threads) = together(*concurrency, || read(bench, &positions, repetitions))?;
        let by_position = merged(threads, positions.len());
        let mut all = Latencies::default();
        by_position.iter().for_each(|times| all.add(times));
        let total_ms = ms(total) / (repetitions * positions.len() as u64) as f64;
        let (alone_ms, _) = alone.get_or_insert_with(|| (total_ms, all.clone()));
        rows.push(HistoryRow {
            engine: bench.engine,
            cell: bench.cell.name,
            query: bench.kind.name(),
            access: "page",
            concurrency: *concurrency,
            rows: page_rows,
            bytes: page_bytes,
            median_ms: rounded(all.median_ms()),
            p99_ms: rounded(all.p99_ms()),
            floor_ms: rounded(floor_ms),
            ratio_to_floor: ratio(all.median_ms(), floor_ms),
            touch_ms: None,
            total_ms: rounded(total_ms),
            ratio_to_one: ratio(total_ms, *alone_ms),
            bloom_match_ms: None,
            repetitions: all.len(),
            inner: 1,
            disk_per_payload: None,
            positions: position_rows(&positions, &pages, &by_position),
        });
    }
    Ok((rows, alone.map(|(_, times)| times).unwrap_or_default()))
}

/// The positions of a cell: without a cursor, in the middle, and at the last full page.
fn positions(bench: &Bench, answer: &Answer) -> Vec<Position> {
    let rows = answer.tally.rows;
    let mut positions = Vec::new();
    for direction in [Direction::Forward, Direction::Backward] {
        let deepest = match direction {
            Direction::Forward => rows.checked_sub(PAGE_ROWS + 1),
            Direction::Backward => Some(PAGE_ROWS),
        };
        let cursors = [
            ("first", None),
            ("middle", answer.key(rows / 2)),
            ("deepest", deepest.and_then(|row| answer.key(row))),
        ];
        for (name, key) in cursors {
            if name != "first" && key.is_none() {
                continue; // all matches fit into one page
            }
            let cursor = key.map(Cursor::At);
            let query = Query { cursor, direction, limit: PAGE_ROWS as usize, ..bench.query.clone() };
            positions.push(Position { direction, name, query });
        }
    }
    positions
}

fn repetitions(once: Duration, bench: &Bench) -> u64 {
    let affordable = PATIENCE.as_nanos() / once.as_nanos().max(1);
    bench.common.pick(REPETITIONS, 2).min(u64::try_from(affordable).unwrap_or(REPETITIONS)).max(1)
}

/// Copying the bodies of a page.
fn floor_ms(pages: &[Page]) -> f64 {
    const TIMES: u64 = 200;
    let mut bundle = Bundle::new();
    let mut floors = Vec::new();
    for page in pages {
        let bodies: Vec<&[u8]> = page.bodies().collect();
        floors.push(mean_ms(TIMES, || bundle.copy_all(&bodies)));
    }
    median(floors)
}

/// Reads the positions in turn, repeatedly; returns the times of each.
fn read(bench: &Bench, positions: &[Position], repetitions: u64) -> anyhow::Result<Vec<Latencies>> {
    let mut times = vec![Latencies::default(); positions.len()];
    for _ in 0..repetitions {
        for (position, times) in positions.iter().zip(&mut times) {
            let begun = Instant::now();
            let page = bench.page(&position.query)?;
            touch_all(page.bodies());
            times.record(begun.elapsed());
            ensure!(page.len() as u64 <= PAGE_ROWS, "a page of {PAGE_ROWS} has {} rows", page.len());
        }
    }
    Ok(times)
}

/// The times of each position, from all threads.
fn merged(threads: Vec<Vec<Latencies>>, positions: usize) -> Vec<Latencies> {
    let mut merged = vec![Latencies::default(); positions];
    for thread in threads {
        for (merged, times) in merged.iter_mut().zip(&thread) {
            merged.add(times);
        }
    }
    merged
}

fn position_rows(positions: &[Position], pages: &[Page], times: &[Latencies]) -> Vec<PositionRow> {
    let mut rows = Vec::new();
    for ((position, page), times) in positions.iter().zip(pages).zip(times) {
        rows.push(PositionRow {
            direction: direction_name(position.direction),
            position: position.name,
            rows: page.len() as u64,
            median_ms: rounded(times.median_ms()),
            p99_ms: rounded(times.p99_ms()),
        });
    }
    rows
}

pub(crate) fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "forward",
        Direction::Backward => "backward",
    }
}
