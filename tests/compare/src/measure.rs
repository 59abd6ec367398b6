//! Queries all stores in turn.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use restante_bench::{median, ms, rounded};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    args::{CompareArgs, Database},
    contender::{Contender, Part, Store, Tally},
    question::{Access, Question},
};

/// Rounds; each queries every store once; figures are medians over them. The time of a page differs by a fifth from one round to
/// the next, so it takes many of them.
const ROUNDS: usize = 31;
/// Long answers differ less: fewer rounds suffice, once a question has taken this long in all.
const PATIENCE: Duration = Duration::from_secs(20);
const ROUNDS_MIN: usize = 5;
/// Shorter times would measure the clock and the waking of threads: short questions are repeated several
/// times in a row.
const MEASURED_MIN: Duration = Duration::from_millis(10);
const INNER_MAX: u64 = 200;

/// The times of one contender for one question.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) database: &'static str,
    pub(crate) contender: &'static str,
    #[serde(skip)]
    pub(crate) part: Part,
    pub(crate) cell: &'static str,
    /// `topics` or `bloom`.
    pub(crate) query: &'static str,
    /// `full`, `newest 100` or `oldest 100`.
    pub(crate) access: &'static str,
    pub(crate) concurrency: usize,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// From the start of all equal questions to the end of the last.
    pub(crate) median_ms: f64,
    pub(crate) min_ms: f64,
    pub(crate) max_ms: f64,
    pub(crate) rounds: usize,
    /// Consecutive questions that one time is the mean of.
    pub(crate) inner: u64,
}

/// A contender, its repetitions and times.
struct Entry<'a> {
    contender: &'a Contender,
    tally: Tally,
    inner: u64,
    times_ms: Vec<f64>,
}

/// Asks all contenders a question, in turn, at one level of concurrency.
pub(crate) async fn measure(
    database: Database,
    contenders: &[Contender],
    question: &Arc<Question>,
    concurrency: usize,
    args: &CompareArgs,
) -> anyhow::Result<Vec<Figure>> {
    let mut entries = Vec::with_capacity(contenders.len());
    for contender in contenders {
        let tally = contender.store.warm_up(question).await?;
        check(contender, question, tally)?;
        let once = run(&contender.store, question, concurrency, 1).await?;
        let enough = MEASURED_MIN.as_nanos() / once.as_nanos().max(1) + 1;
        let inner = u64::try_from(enough).unwrap_or(INNER_MAX).min(args.common.pick(INNER_MAX, 2));
        entries.push(Entry { contender, tally, inner, times_ms: Vec::new() });
    }
    check_bytes(&entries, question)?;
    let begun = Instant::now();
    for round in 0..args.common.pick(ROUNDS, 1) {
        for entry in &mut entries {
            let time = run(&entry.contender.store, question, concurrency, entry.inner).await?;
            entry.times_ms.push(ms(time) / entry.inner as f64);
        }
        if round + 1 >= ROUNDS_MIN && begun.elapsed() > PATIENCE {
            break;
        }
    }
    let figures = entries.into_iter().map(|entry| figure(database, entry, question, concurrency));
    Ok(figures.collect())
}

fn figure(database: Database, entry: Entry<'_>, question: &Question, concurrency: usize) -> Figure {
    let extreme = |pick: fn(f64, f64) -> f64| entry.times_ms.iter().copied().reduce(pick).unwrap_or(0.0);
    Figure {
        database: database.name(),
        contender: entry.contender.name,
        part: entry.contender.part,
        cell: question.cell.name,
        query: question.kind.name(),
        access: question.access.name(),
        concurrency,
        rows: entry.tally.rows,
        bytes: entry.tally.bytes,
        min_ms: rounded(extreme(f64::min)),
        max_ms: rounded(extreme(f64::max)),
        rounds: entry.times_ms.len(),
        inner: entry.inner,
        median_ms: rounded(median(entry.times_ms)),
    }
}

/// The time from the start of all lanes to the end of the last.
async fn run(
    store: &Arc<dyn Store>,
    question: &Arc<Question>,
    lanes: usize,
    inner: u64,
) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut asking = JoinSet::new();
    for lane in 0..lanes {
        let (store, question) = (store.clone(), question.clone());
        asking.spawn(async move {
            for _ in 0..inner {
                store.ask(&question, lane).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = asking.join_next().await {
        done??;
    }
    Ok(begun.elapsed())
}

/// A wrong answer is an error, however fast it is.
fn check(contender: &Contender, question: &Question, tally: Tally) -> anyhow::Result<()> {
    let matches = if contender.is_by_filter { question.rows_by_filter } else { question.rows };
    let expected = question.answer_rows(matches);
    let (name, cell, kind) = (contender.name, question.cell.name, question.kind.name());
    let (found, access) = (tally.rows, question.access.name());
    ensure!(
        found == expected,
        "{name} found {found} rows in cell {cell} by {kind} ({access}) instead of {expected}"
    );
    Ok(())
}

/// Stores of the same bodies with equal numbers of rows must return equal numbers of bytes. Pages may differ: the mailserver
/// orders messages of one second by their hash.
fn check_bytes(entries: &[Entry<'_>], question: &Question) -> anyhow::Result<()> {
    let is_comparable = |entry: &&Entry<'_>| {
        let is_exact = entry.tally.rows == question.rows;
        entry.contender.has_bodies && is_exact && question.access == Access::Full
    };
    let mut comparable = entries.iter().filter(is_comparable);
    let Some(first) = comparable.next() else { return Ok(()) };
    for entry in comparable {
        let (one, other) = (first.contender.name, entry.contender.name);
        let (bytes, others) = (first.tally.bytes, entry.tally.bytes);
        ensure!(bytes == others, "{one} returned {bytes} bytes, {other} {others}");
    }
    Ok(())
}
