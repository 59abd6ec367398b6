//! Retention under load, start-up and memory.

mod memory;
mod prune;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use restante_archive::{EngineUrl, Query};
use serde::Serialize;

use crate::{
    args::CommonArgs,
    dataset::Dataset,
    machine::Machine,
    measure::{median, ms, rounded},
    report::{Bars, Goal, Plot, Report, Table, number, optional},
    store::{Store, work_folder},
};

const STARTS: usize = 5;
/// A percentile of fewer times than this is not judged.
const TIMES_MIN: u64 = 100;
/// Costs that do not belong to a day (topics, a log of changes) weigh more when there are fewer days.
const DISK_KEPT: f64 = 1.25;

/// Flags of `bench upkeep`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  restante bench upkeep
  restante bench upkeep --engine sqlite: --engine postgres:
  restante bench upkeep --messages 150000 --json upkeep.json")]
pub struct UpkeepArgs {
    /// Flags of every bench.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The argument of the child process that measures its memory
    #[arg(long, value_name = "URL", hide = true, env = memory::MEMORY_OF)]
    pub memory_of: Option<EngineUrl>,
}

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UpkeepRow {
    engine: &'static str,
    /// Messages in the archive before retention.
    messages: u64,
    /// `prune`, `append`, `appends`, `queries`, `disk`, `start` or `memory`.
    measure: &'static str,
    /// What exactly was measured.
    what: String,
    value: f64,
    unit: &'static str,
    /// The longest append during retention.
    longest_append_ms: Option<f64>,
    /// Samples of a percentile.
    times: Option<u64>,
}

/// Runs the bench and delivers its report; in a child process, measures its memory.
pub(crate) async fn run(args: &UpkeepArgs) -> anyhow::Result<()> {
    if let Some(url) = &args.memory_of {
        return memory::run_child(url).await;
    }
    measure(args).await?.deliver(&args.common)
}

/// Runs the bench.
pub(crate) async fn measure(args: &UpkeepArgs) -> anyhow::Result<Report> {
    let common = &args.common;
    let folder = work_folder(common)?;
    let title =
        "Upkeep: start-up, private memory, and retention of the oldest day while messages are appended.";
    let mut report = Report::new("upkeep", title, Machine::look(folder.path()));
    let dataset = Arc::new(Dataset::new(common.seed, common.messages()));
    let mut rows = Vec::new();
    for choice in &common.engines {
        let store = Store::open(choice, folder.path(), dataset.len()).await?;
        store.fill(&dataset).await?;
        rows.extend(measure_engine(store, &dataset, common, &mut report).await?);
    }
    report.add_rows(&rows)?;
    present(&rows, &mut report);
    report.note_size(dataset.len());
    report.note_quick(common.quick);
    Ok(report)
}

async fn measure_engine(
    mut store: Store,
    dataset: &Arc<Dataset>,
    common: &CommonArgs,
    report: &mut Report,
) -> anyhow::Result<Vec<UpkeepRow>> {
    let mut rows = Vec::new();
    let is_kept = store.config.url != EngineUrl::Memory;
    if is_kept {
        rows.extend(starts(&mut store, dataset.len()).await?);
        store.opened.upkeep.close().await?;
        match memory::of_child(&store.config.url).await {
            Ok(memory) => rows.extend(memory_rows(&store, dataset.len(), memory)),
            Err(error) => report.notes.push(format!("The memory could not be measured: {error:#}.")),
        }
        store.reopen().await?;
    } else {
        report.notes.push("The memory engine stores nothing: it has no start-up to measure.".to_owned());
    }
    rows.extend(prune::measure(&store, dataset, common).await?);
    store.opened.upkeep.close().await?;
    Ok(rows)
}

/// Closes and opens the archive several times: measures opening and the first page.
async fn starts(store: &mut Store, messages: u64) -> anyhow::Result<Vec<UpkeepRow>> {
    let (mut opening, mut first_pages) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        store.opened.upkeep.close().await?;
        let opened: Duration = store.reopen().await?;
        let begun = Instant::now();
        let page = store.archive().query(&Query::default()).await?;
        first_pages.push(ms(begun.elapsed()));
        opening.push(ms(opened));
        ensure!(!page.is_empty(), "the archive was empty after opening it again");
    }
    let held = store.opened.upkeep.stats().await?.messages;
    ensure!(held == messages, "{held} of {messages} messages were found after opening the archive again");
    let row = |what: &str, times: Vec<f64>| UpkeepRow {
        engine: store.engine(),
        messages,
        measure: "start",
        what: what.to_owned(),
        value: rounded(median(times)),
        unit: "ms",
        longest_append_ms: None,
        times: None,
    };
    Ok(vec![row("opening the archive, median of five", opening), row("the first page after it", first_pages)])
}

fn memory_rows(store: &Store, messages: u64, memory: memory::PrivateMemory) -> Vec<UpkeepRow> {
    let row = |what: &str, bytes: u64| UpkeepRow {
        engine: store.engine(),
        messages,
        measure: "memory",
        what: what.to_owned(),
        value: rounded(bytes as f64 / 1e6),
        unit: "MB",
        longest_append_ms: None,
        times: None,
    };
    vec![
        row("private memory, just opened", memory.opened_bytes),
        row("private memory, after a walk through everything and 1,000 pages", memory.used_bytes),
    ]
}

const NOTES: [&str; 4] = [
    "Retention: the oldest day is removed, at least five times, while one appender appends without a \
 pause and one client requests 200 pages of 100 a second.",
    "p99: of all appends, or queries, that overlapped one of the prunes, and of all others; a query's time counts \
 from when it was due.",
    "Start-up: the same process opens the archive again; its files are in the page cache.",
    "Private memory: RssAnon of a process of its own. Mapped files are not in it: the system can reclaim them at any time.",
];

fn present(rows: &[UpkeepRow], report: &mut Report) {
    let mut table =
        Table::new("Upkeep", &["engine", "messages", "what", "value", "unit", "longest append ms", "times"])
            .explain(&[
                ("longest append ms", "the longest append that was under way during the prune"),
                ("times", "how many times the 99th percentile is of; fewer than 100 are not judged"),
            ]);
    for row in rows {
        table.add([
            row.engine.to_owned(),
            number(row.messages as f64),
            row.what.clone(),
            number(row.value),
            row.unit.to_owned(),
            optional(row.longest_append_ms),
            optional(row.times.map(|times| times as f64)),
        ]);
    }
    report.tables.push(table);
    let times: Vec<&UpkeepRow> = rows.iter().filter(|row| row.unit == "ms").collect();
    report.plots.push(Plot::Bars(Bars {
        title: "Times".to_owned(),
        unit: "ms",
        groups: times.iter().map(|row| format!("{}: {}", row.engine, row.what)).collect(),
        series: vec![
            ("time".to_owned(), times.iter().map(|row| Some(row.value)).collect()),
            ("longest append meanwhile".to_owned(), times.iter().map(|row| row.longest_append_ms).collect()),
        ],
    }));
    let mut engines: Vec<&'static str> = rows.iter().map(|row| row.engine).collect();
    engines.dedup();
    for engine in engines {
        let of_engine: Vec<&UpkeepRow> = rows.iter().filter(|row| row.engine == engine).collect();
        report.goals.extend(goals(engine, &of_engine));
    }
    report.notes.extend(NOTES.map(str::to_owned));
}

/// The goals of an engine, if it has any.
fn goals(engine: &str, rows: &[&UpkeepRow]) -> Vec<Goal> {
    match engine {
        "log" => log_goals(engine, rows),
        "sqlite" | "postgres" => table_goals(engine, rows),
        _ => Vec::new(),
    }
}

/// Retention must neither delay appends and queries, nor keep the disk space.
fn table_goals(engine: &str, rows: &[&UpkeepRow]) -> Vec<Goal> {
    let value = |measure: &str| {
        let of_it = rows.iter().filter(|row| row.measure == measure && row.unit == "x");
        of_it.filter(|row| row.times.is_none_or(|times| times >= TIMES_MIN)).map(|row| row.value).next()
    };
    let what = |measure: &str| format!("{engine}: p99 of {measure} during retention by that without");
    vec![
        Goal::at_most(what("appends"), 2.0, "x", value("appends")),
        Goal::at_most(what("queries"), 2.0, "x", value("queries")),
        Goal::at_most(
            format!("{engine}: disk by payload after retention, by that before"),
            DISK_KEPT,
            "x",
            value("disk"),
        ),
    ]
}

fn log_goals(engine: &str, rows: &[&UpkeepRow]) -> Vec<Goal> {
    let values = |measure: &str| {
        rows.iter().filter(|row| row.measure == measure).map(|row| row.value).collect::<Vec<f64>>()
    };
    let prunes = values("prune");
    let prune = (!prunes.is_empty()).then(|| median(prunes));
    let longest = rows.iter().filter(|row| row.measure == "prune").filter_map(|row| row.longest_append_ms);
    let start = values("start").into_iter().next();
    let memory = values("memory").into_iter().max_by(f64::total_cmp);
    vec![
        Goal::at_most(format!("{engine}: retention of the oldest day, median"), 20.0, "ms", prune),
        Goal::at_most(
            format!("{engine}: longest append during retention"),
            20.0,
            "ms",
            longest.max_by(f64::total_cmp),
        ),
        Goal::at_most(format!("{engine}: start-up"), 1_000.0, "ms", start),
        Goal::at_most(format!("{engine}: private memory"), 150.0, "MB", memory),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::assert_explained, tests::quick};

    #[tokio::test(flavor = "multi_thread")]
    async fn retention_removes_exactly_the_oldest_days_during_appends() {
        let report = measure(&UpkeepArgs { common: quick("memory:"), memory_of: None }).await.unwrap();
        let of = |measure: &str| report.rows.iter().filter(|row| row["measure"] == measure).count();
        assert_eq!((of("prune"), of("append"), of("start"), of("disk")), (5, 1, 0, 0));
        assert!(of("appends") >= 1 && of("queries") >= 1);
        assert_explained(&report.tables);
        assert_eq!((report.plots.len(), report.goals.len()), (1, 0));
    }
}
