//! The REST interface under load: pages, export, publishing, by clients on the same machine.

mod load;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{bail, ensure};
use restante_archive::{Config, EngineUrl, open};
use serde::Serialize;

use crate::{
    args::{CommonArgs, EngineChoice},
    dataset::Dataset,
    machine::Machine,
    measure::{Latencies, median, ms, rounded},
    report::{Curves, Goal, Plot, Report, Table, number, optional},
    server::{self, Server},
    store::{Store, work_folder},
};
use load::{Load, PUBLISHERS, READERS};

const PAGING: Duration = Duration::from_secs(5);
const PUBLISHING: Duration = Duration::from_secs(5);
const QUICK: Duration = Duration::from_millis(200);
const EXPORTS: usize = 3;

/// Flags of `bench rest`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  restante bench rest --html rest.html
  restante bench rest --messages 150000 --engine log:bench-archive")]
pub struct RestArgs {
    /// Flags of every bench; a `memory:` archive can't be opened by a server in another process
    #[command(flatten)]
    pub common: CommonArgs,
    /// Program to run as the server; by default this one
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
}

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RestRow {
    engine: &'static str,
    /// Messages in the archive before the load.
    messages: u64,
    /// `pages`, `export`, `publish`, `start`, `memory` or `stop`.
    measure: &'static str,
    what: &'static str,
    connections: u64,
    /// Answered requests.
    requests: u64,
    /// The figure, in its unit.
    value: f64,
    unit: &'static str,
    /// Bytes of bodies, in 10^6 a second.
    mb_s: Option<f64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    max_ms: Option<f64>,
}

/// The rows, and the times for the plot.
struct Measured {
    rows: Vec<RestRow>,
    pages: Latencies,
    publishing: Latencies,
}

/// Runs the bench and delivers its report.
pub(crate) async fn run(args: &RestArgs) -> anyhow::Result<()> {
    measure(args).await?.deliver(&args.common)
}

/// Runs the bench.
pub(crate) async fn measure(args: &RestArgs) -> anyhow::Result<Report> {
    let common = &args.common;
    if common.engines.contains(&EngineChoice::At(EngineUrl::Memory)) {
        bail!(
            "bench rest runs a server in another process, which can't open a memory archive: use --engine log:"
        );
    }
    let folder = work_folder(common)?;
    let title =
        "The REST interface: 25 clients that page, a binary export, 64 publishers, all on this machine.";
    let mut report = Report::new("rest", title, Machine::look(folder.path()));
    let dataset = Arc::new(Dataset::new(common.seed, common.messages()));
    let program = server::program(args.server.as_deref())?;
    for choice in &common.engines {
        let store = Store::open(choice, folder.path(), dataset.len()).await?;
        store.fill(&dataset).await?;
        store.opened.upkeep.close().await?;
        let archive = store.location.url.clone();
        let server = Server::start(&program, &archive, folder.path(), "server").await?;
        let measured = measure_server(server, &archive, store.engine(), dataset.len(), common).await?;
        report.add_rows(&measured.rows)?;
        present(&measured, &mut report);
    }
    report.notes.extend(NOTES.map(str::to_owned));
    report.note_size(dataset.len());
    report.note_quick(common.quick);
    Ok(report)
}

async fn measure_server(
    server: Server,
    archive: &EngineUrl,
    engine: &'static str,
    messages: u64,
    common: &CommonArgs,
) -> anyhow::Result<Measured> {
    let rows = Rows { engine, messages };
    let start = rows.figure("start", "start until healthy", ms(server.start), "ms");
    let fresh_memory = server.private_memory();
    let pages = load::page(server.address, common.pick(PAGING, QUICK)).await?;
    let mut exports = Vec::new();
    for _ in 0..common.pick(EXPORTS, 1) {
        exports.push(load::export(server.address).await?);
    }
    let publishing = load::publish(server.address, common.pick(PUBLISHING, QUICK)).await?;
    let used_memory = server.private_memory();
    let stop = rows.figure("stop", "stop by SIGTERM", ms(server.stop().await?), "ms");
    check_published(archive, messages + publishing.times.len()).await?;

    let mut all = vec![start];
    for (what, bytes) in
        [("private memory, just started", fresh_memory), ("private memory, after the load", used_memory)]
    {
        if let Some(bytes) = bytes {
            all.push(rows.figure("memory", what, bytes as f64 / 1e6, "MB"));
        }
    }
    all.push(rows.rate("pages", "pages of 100 with data", READERS, &pages, "pages/s"));
    all.push(rows.export(&exports));
    all.push(rows.rate("publish", "durable messages", PUBLISHERS, &publishing, "messages/s"));
    all.push(stop);
    Ok(Measured { rows: all, pages: pages.times, publishing: publishing.times })
}

/// Checks that every acknowledged message is in the archive after the server has stopped.
async fn check_published(archive: &EngineUrl, expected: u64) -> anyhow::Result<()> {
    let opened = open(Config::new(archive.clone())).await?;
    let held = opened.upkeep.stats().await?.messages;
    opened.upkeep.close().await?;
    ensure!(held == expected, "{held} messages are archived where {expected} were acknowledged");
    Ok(())
}

/// Creates rows of one server.
struct Rows {
    engine: &'static str,
    messages: u64,
}

impl Rows {
    fn figure(&self, measure: &'static str, what: &'static str, value: f64, unit: &'static str) -> RestRow {
        RestRow {
            engine: self.engine,
            messages: self.messages,
            measure,
            what,
            connections: 0,
            requests: 0,
            value: rounded(value),
            unit,
            mb_s: None,
            p50_ms: None,
            p99_ms: None,
            max_ms: None,
        }
    }

    /// Requests a second.
    fn rate(
        &self,
        measure: &'static str,
        what: &'static str,
        connections: u64,
        load: &Load,
        unit: &'static str,
    ) -> RestRow {
        let seconds = load.duration.as_secs_f64();
        RestRow {
            connections,
            requests: load.times.len(),
            mb_s: Some(rounded(load.bytes as f64 / 1e6 / seconds)),
            p50_ms: Some(rounded(load.times.median_ms())),
            p99_ms: Some(rounded(load.times.p99_ms())),
            max_ms: Some(rounded(load.times.max_ms())),
            ..self.figure(measure, what, load.times.len() as f64 / seconds, unit)
        }
    }

    fn export(&self, exports: &[Load]) -> RestRow {
        let rates =
            exports.iter().map(|load| load.bytes as f64 / 1e6 / load.duration.as_secs_f64()).collect();
        let rate = median(rates);
        let times: Vec<f64> = exports.iter().map(|load| ms(load.duration)).collect();
        RestRow {
            connections: 1,
            requests: exports.len() as u64,
            mb_s: Some(rounded(rate)),
            p50_ms: Some(rounded(median(times))),
            ..self.figure("export", "export of everything as protobuf", rate, "MB/s")
        }
    }
}

const NOTES: [&str; 3] = [
    "Clients and server share this machine. A client follows the cursor of each page over one kept-alive connection; \
     pages are complete, and their JSON is received but not parsed.",
    "A published message counts when it is answered, which is when it is on disk. After the server \
     has stopped, the archive is opened and must contain them all.",
    "Private memory: RssAnon of the server's process; without mapped files.",
];

fn present(measured: &Measured, report: &mut Report) {
    let columns =
        ["what", "connections", "requests", "value", "unit", "MB/s", "p50 ms", "p99 ms", "longest ms"];
    let engine = measured.rows.first().map_or("", |row| row.engine);
    let mut table = Table::new(format!("REST ({engine})"), &columns);
    for row in &measured.rows {
        table.add([
            row.what.to_owned(),
            row.connections.to_string(),
            number(row.requests as f64),
            number(row.value),
            row.unit.to_owned(),
            optional(row.mb_s),
            optional(row.p50_ms),
            optional(row.p99_ms),
            optional(row.max_ms),
        ]);
    }
    report.tables.push(table);
    report.plots.push(Plot::Curves(Curves {
        title: format!("Share of requests answered within a time ({engine})"),
        unit: "ms",
        lines: vec![
            (format!("pages, {READERS} clients"), measured.pages.curve()),
            (format!("publishing, {PUBLISHERS} clients"), measured.publishing.curve()),
        ],
    }));
    if engine == "log" {
        report.goals.extend(goals(&measured.rows)); // set for the embedded engine
    }
}

fn goals(rows: &[RestRow]) -> Vec<Goal> {
    let row = |measure: &str| rows.iter().find(|row| row.measure == measure);
    let value = |measure: &str| row(measure).map(|row| row.value);
    let memory =
        rows.iter().filter(|row| row.measure == "memory").map(|row| row.value).max_by(f64::total_cmp);
    vec![
        Goal::at_least("pages of 100 with data, 25 clients", 2_000.0, "/s", value("pages")),
        Goal::at_most("p99 of a page", 30.0, "ms", row("pages").and_then(|row| row.p99_ms)),
        Goal::at_least("binary export", 400.0, "MB/s", value("export")),
        Goal::at_least("durable messages, 64 publishers", 10_000.0, "/s", value("publish")),
        Goal::at_most("start until healthy", 1_000.0, "ms", value("start")),
        Goal::at_most("private memory of the server", 150.0, "MB", memory),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::assert_explained, tests::quick};

    #[tokio::test]
    async fn a_memory_archive_is_refused() {
        let error = measure(&RestArgs { common: quick("memory:"), server: None }).await.err().unwrap();
        assert!(error.to_string().contains("--engine log:"), "{error}");
    }

    #[test]
    fn figures_become_rows_tables_plots_and_goals() {
        let mut times = Latencies::default();
        times.record_ms(2.0);
        let load = Load { times, bytes: 4_000_000, duration: Duration::from_secs(1) };
        let rows = Rows { engine: "log", messages: 10 };
        let all = vec![
            rows.figure("start", "start until healthy", 3.0, "ms"),
            rows.figure("memory", "private memory, just started", 20.0, "MB"),
            rows.rate("pages", "pages of 100 with data", READERS, &load, "pages/s"),
            rows.export(std::slice::from_ref(&load)),
            rows.rate("publish", "durable messages", PUBLISHERS, &load, "messages/s"),
        ];
        assert_eq!((all[2].value, all[2].mb_s, all[3].value), (1.0, Some(4.0), 4.0));
        let mut report = Report::new("rest", "Test.", Machine::look(std::path::Path::new(".")));
        let measured = Measured { rows: all, pages: load.times.clone(), publishing: load.times };
        present(&measured, &mut report);
        let verdicts: Vec<_> = report.goals.iter().map(|goal| goal.is_met).collect();
        assert_eq!(verdicts, [Some(false), Some(true), Some(false), Some(false), Some(true), Some(true)]);
        assert_explained(&report.tables);
        assert_eq!((report.tables.len(), report.plots.len()), (1, 1));
    }
}
