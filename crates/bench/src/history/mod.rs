//! The history workload of the Status mailserver: time ranges and sets of topics, reading every byte of every answer.

mod cell;
mod chart;
mod full;
mod page;

use std::sync::Arc;

use serde::Serialize;

use crate::{
    args::CommonArgs,
    dataset::Dataset,
    machine::Machine,
    measure::{Latencies, ratio},
    progress,
    report::Report,
    store::{Store, work_folder},
};
use cell::{Bench, Cell, QueryKind};

/// Numbers of concurrent queries.
const CONCURRENCY: [usize; 4] = [1, 2, 4, 8];
const CONCURRENCY_QUICK: [usize; 2] = [1, 2];

/// Flags of `bench history`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  restante bench history --html history.html
  restante bench history --messages 150000 --engine log: --engine memory: --json history.json
  restante bench history --engine log:bench-archive     (keeps the archive; the next run finds it filled)")]
pub struct HistoryArgs {
    /// Flags of every bench.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HistoryRow {
    engine: &'static str,
    /// `1w` or `1m` for the span, `s`, `l` or `x` for the set of topics.
    cell: &'static str,
    /// `topics` or `bloom`.
    query: &'static str,
    /// `full`: all matches, page by page. `page`: a single page of 100.
    access: &'static str,
    concurrency: usize,
    /// Rows of one answer.
    rows: u64,
    /// Bytes of its bodies.
    bytes: u64,
    /// `full`: from the start of all concurrent queries to the end of the last. `page`: one page.
    median_ms: f64,
    p99_ms: f64,
    /// Copying the same bodies once into a reused buffer of 1 MiB, from known addresses.
    floor_ms: f64,
    /// `median_ms` divided by `floor_ms`.
    ratio_to_floor: Option<f64>,
    /// Reading the same bodies, from known addresses.
    touch_ms: Option<f64>,
    /// From the start of all concurrent queries to the end of the last, median.
    total_ms: f64,
    /// `total_ms` divided by that of one query alone.
    ratio_to_one: Option<f64>,
    /// The time of matching the filter: a tiny query by filter minus the same by list.
    bloom_match_ms: Option<f64>,
    /// Repetitions of the query.
    repetitions: u64,
    /// Consecutive queries per measured time, if a single one is too short.
    inner: u64,
    /// Bytes of the whole archive on disk divided by bytes of all bodies.
    disk_per_payload: Option<f64>,
    /// `page` only: each measured position.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    positions: Vec<PositionRow>,
}

/// Pages of one position.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PositionRow {
    direction: &'static str,
    position: &'static str,
    rows: u64,
    median_ms: f64,
    p99_ms: f64,
}

/// The figures of a cell and a kind of query.
struct Measured {
    rows: Vec<HistoryRow>,
    /// Times of single pages, for a plot.
    pages: Latencies,
}

/// Runs the bench and delivers its report.
pub(crate) async fn run(args: &HistoryArgs) -> anyhow::Result<()> {
    measure(args).await?.deliver(&args.common)
}

/// Runs the bench.
pub(crate) async fn measure(args: &HistoryArgs) -> anyhow::Result<Report> {
    let common = &args.common;
    let folder = work_folder(common)?;
    let title = "History of the Status mailserver's data set: 3 topics (s), 256 topics (l) and nearly all messages (x) of a \
                 week (1w) or a month (1m); every byte of every answer is touched.";
    let mut report = Report::new("history", title, Machine::look(folder.path()));
    let dataset = Arc::new(Dataset::new(common.seed, common.messages()));
    let mut measured = Vec::new();
    for choice in &common.engines {
        let store = Store::open(choice, folder.path(), dataset.len()).await?;
        store.fill(&dataset).await?;
        measured.extend(measure_engine(&store, &dataset, common).await?);
        store.opened.upkeep.close().await?;
    }
    for cell in &measured {
        report.add_rows(&cell.rows)?;
    }
    chart::present(&measured, &dataset, &mut report);
    report.note_size(dataset.len());
    report.note_quick(common.quick);
    Ok(report)
}

async fn measure_engine(
    store: &Store,
    dataset: &Arc<Dataset>,
    common: &CommonArgs,
) -> anyhow::Result<Vec<Measured>> {
    let bar = progress::bar("asking for history", (Cell::ALL.len() * QueryKind::ALL.len()) as u64);
    let mut measured: Vec<Measured> = Vec::new();
    for cell in Cell::ALL {
        for kind in QueryKind::ALL {
            let bench = Bench::new(store, dataset, cell, kind, common);
            measured.push(tokio::task::spawn_blocking(move || measure_cell(&bench)).await??);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let stats = store.opened.upkeep.stats().await?;
    let is_on_disk = stats.disk_bytes > 0;
    let by_payload = ratio(stats.disk_bytes as f64, stats.body_bytes as f64).filter(|_| is_on_disk);
    for row in measured.iter_mut().flat_map(|cell| &mut cell.rows) {
        row.disk_per_payload = by_payload;
    }
    Ok(measured)
}

/// Measures one cell by one kind of query: all of it, then pages of it.
fn measure_cell(bench: &Bench) -> anyhow::Result<Measured> {
    let answer = bench.collect()?;
    bench.check(&answer)?;
    let bloom_match_ms = bench.bloom_match_ms()?;
    let mut rows = full::measure(bench, &answer)?;
    let (page_rows, pages) = page::measure(bench, &answer)?;
    rows.extend(page_rows);
    for row in &mut rows {
        row.bloom_match_ms = bloom_match_ms;
    }
    Ok(Measured { rows, pages })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::assert_explained, tests::quick};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_small_run_has_every_cell_with_right_counts() {
        let report = measure(&HistoryArgs { common: quick("memory:") }).await.unwrap();
        let dataset = Dataset::new(0, 5_000);
        // 6 cells, by list and by filter, full and in pages, one and two at once.
        assert_eq!(report.rows.len(), 6 * 2 * 2 * 2);
        for row in &report.rows {
            for key in [
                "engine",
                "cell",
                "query",
                "access",
                "concurrency",
                "rows",
                "bytes",
                "median_ms",
                "p99_ms",
                "floor_ms",
            ] {
                assert!(!row[key].is_null(), "{key} is missing in {row}");
            }
            let is_small = row["cell"].as_str().unwrap().ends_with('s');
            let is_filter = row["query"] == "bloom";
            assert_eq!(row["bloom_match_ms"].is_f64(), is_small && is_filter, "{row}");
        }
        let worst = dataset.query_set(crate::dataset::SetName::Worst).topics;
        let expected =
            dataset.count(crate::dataset::Span::Month, |topic| worst.iter().any(|name| name == topic));
        let row = report.rows.iter().find(|row| row["cell"] == "1mx" && row["query"] == "topics").unwrap();
        assert_eq!(row["rows"], expected);
        assert_eq!(report.plots.len(), 4);
        assert!(report.tables.iter().any(|table| table.title.contains("published figures")));
        assert_explained(&report.tables);
        assert!(report.goals.is_empty(), "the memory engine has no goals");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn engines_share_a_report_and_have_their_own_goals() {
        let mut common = quick("log:");
        common.engines.push("memory:".parse().unwrap());
        let report = measure(&HistoryArgs { common }).await.unwrap();
        let of = |engine: &str| report.rows.iter().filter(|row| row["engine"] == engine).count();
        assert_eq!((of("log"), of("memory")), (48, 48));
        // The cells of both in one plot, and three plots for each of them.
        assert_eq!(report.plots.len(), 1 + 3 + 3);
        assert!(report.goals.is_empty(), "goals are set for the full data set");
        assert!(report.rows.iter().any(|row| row["engine"] == "log" && row["disk_per_payload"].is_f64()));
    }
}
