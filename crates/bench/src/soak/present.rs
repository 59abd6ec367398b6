//! Rows, tables, plots and goals of `bench soak`.

use serde::Serialize;

use super::Measured;
use crate::{
    measure::rounded,
    report::{Curves, Goal, Plot, Report, Series, Table, number, optional},
};

/// Flat: memory at the end is at most a tenth above that in the middle of the run...
const GROWTH_SHARE_MAX: f64 = 0.1;
/// ...or at most this much: an allocator's arenas vary by as much.
const GROWTH_MB_MAX: f64 = 4.0;
/// Shorter runs are not judged: relay remembers seen messages for two minutes, and memory grows until then.
const JUDGED_SECONDS: f64 = 300.0;
/// Warnings that are shown; more of them are rarely new.
const SHOWN_MAX: usize = 5;

/// A row of JSON: a run.
#[derive(Clone, Debug, Serialize)]
struct SoakRow {
    engine: &'static str,
    seconds: f64,
    keep_s: f64,
    rate: f64,
    users: usize,
    published: u64,
    unpublished: u64,
    retries: u64,
    looked_for: u64,
    lost: u64,
    audits: u64,
    audits_failed: u64,
    pages: u64,
    page_p50_ms: f64,
    page_p99_ms: f64,
    page_max_ms: f64,
    queries_failed: u64,
    visits: u64,
    visits_failed: u64,
    stored: u64,
    removed: u64,
    dropped_to_archive: u64,
    dropped_to_peers: u64,
    memory_10_mb: Option<f64>,
    memory_50_mb: Option<f64>,
    memory_100_mb: Option<f64>,
    memory_slope_mb_per_minute: Option<f64>,
    memory_growth_mb: Option<f64>,
    log_warnings: u64,
}

const NOTES: [&str; 4] = [
    "Publishers, users, visitors and server share this machine. Users stay connected and make a query a second, up to five pages of 100 \
     from the newest on. A visitor comes every 300 ms: one asks for a page, one is in the relay's mesh for two seconds, two \
     subscribe by filter, receive twenty pushes, and one of them disconnects without unsubscribing.",
    "looked for: several times within the retention time, every message published by then is looked \
     up by hash through a store client; lost: what was missing.",
    "Memory is the private memory (RssAnon) of the server's process, sampled every second: the median of 5 to 15 %, of 40 to \
     60 % and of the last tenth of the run; the slope is that of the second half. Relay remembers seen messages for two minutes: runs of less than \
     five minutes grow for that alone, and are not judged by it.",
    "Warnings are lines of the server's log at WARN or ERROR, and lines of another format.",
];

fn row(measured: &Measured) -> SoakRow {
    let (shape, run) = (measured.shape, &measured.run);
    let memory = &run.memory;
    SoakRow {
        engine: measured.engine,
        seconds: rounded(shape.length.as_secs_f64()),
        keep_s: rounded(shape.keep.as_secs_f64()),
        rate: shape.rate,
        users: shape.users,
        published: run.published,
        unpublished: run.unpublished,
        retries: run.retries,
        looked_for: run.audited.looked_for,
        lost: run.audited.lost,
        audits: run.audited.audits,
        audits_failed: run.audited.failed,
        pages: run.asked.pages.len(),
        page_p50_ms: rounded(run.asked.pages.median_ms()),
        page_p99_ms: rounded(run.asked.pages.p99_ms()),
        page_max_ms: rounded(run.asked.pages.max_ms()),
        queries_failed: run.asked.errors,
        visits: run.visited.visits,
        visits_failed: run.visited.failed,
        stored: run.counts.stored(),
        removed: run.counts.sum("restante_archive_pruned_messages_total"),
        dropped_to_archive: run.counts.lost_to_archive(),
        dropped_to_peers: run.counts.lost_to_peers(),
        memory_10_mb: memory.median_mb(0.05, 0.15).map(rounded),
        memory_50_mb: memory.median_mb(0.4, 0.6).map(rounded),
        memory_100_mb: memory.median_mb(0.9, 1.0).map(rounded),
        memory_slope_mb_per_minute: memory.slope_mb_per_minute().map(rounded),
        memory_growth_mb: memory.growth_mb().map(rounded),
        log_warnings: measured.warnings.len() as u64,
    }
}

/// Adds the results of one engine to the report.
pub(super) fn present(measured: &Measured, report: &mut Report) -> anyhow::Result<()> {
    let row = row(measured);
    report.add_rows(std::slice::from_ref(&row))?;
    report.tables.push(table(&row));
    report.goals.extend(goals(&row));
    let engine = measured.engine;
    let megabytes = measured.run.memory.points.iter().map(|(second, bytes)| (*second, bytes / 1e6));
    report.plots.push(Plot::Series(Series {
        title: format!("Private memory of the server ({engine})"),
        unit: "MB",
        lines: vec![(engine.to_owned(), megabytes.collect())],
    }));
    report.plots.push(Plot::Curves(Curves {
        title: format!("Share of pages answered within a time ({engine})"),
        unit: "ms",
        lines: vec![(format!("{} users", row.users), measured.run.asked.pages.curve())],
    }));
    note_warnings(measured, report);
    Ok(())
}

pub(super) fn note(report: &mut Report) {
    report.notes.extend(NOTES.map(str::to_owned));
    report.note_debug_build();
}

fn note_warnings(measured: &Measured, report: &mut Report) {
    let (engine, run) = (measured.engine, &measured.run);
    for (what, first_error) in [
        ("publishing", &run.first_error),
        ("a query", &run.asked.first_error),
        ("a visit", &run.visited.first_error),
        ("looking for messages", &run.audited.first_error),
    ] {
        if let Some(first_error) = first_error {
            report.notes.push(format!("{engine}: the first error of {what}: {first_error}"));
        }
    }
    for line in measured.warnings.iter().take(SHOWN_MAX) {
        report.notes.push(format!("{engine}: the server's log: {line}"));
    }
}

fn table(row: &SoakRow) -> Table {
    let mut table = Table::new(format!("Soak ({})", row.engine), &["what", "value"]);
    let count = |value: u64| Some(value as f64);
    for (what, value) in [
        ("published", count(row.published)),
        ("not published", count(row.unpublished)),
        ("publishers' retries", count(row.retries)),
        ("looked for", count(row.looked_for)),
        ("lost", count(row.lost)),
        ("stored", count(row.stored)),
        ("removed by retention", count(row.removed)),
        ("pages", count(row.pages)),
        ("page p50 ms", Some(row.page_p50_ms)),
        ("page p99 ms", Some(row.page_p99_ms)),
        ("longest page ms", Some(row.page_max_ms)),
        ("queries that failed", count(row.queries_failed + row.audits_failed)),
        ("visits", count(row.visits)),
        ("visits that failed", count(row.visits_failed)),
        ("dropped before the archive", count(row.dropped_to_archive)),
        ("dropped to slow peers", count(row.dropped_to_peers)),
        ("memory at 10 %, MB", row.memory_10_mb),
        ("memory at 50 %, MB", row.memory_50_mb),
        ("memory at 100 %, MB", row.memory_100_mb),
        ("growth from 50 % to 100 %, MB", row.memory_growth_mb),
        ("slope of the second half, MB/minute", row.memory_slope_mb_per_minute),
        ("warnings in the log", count(row.log_warnings)),
    ] {
        table.add([what.to_owned(), optional(value)]);
    }
    table
}

fn goals(row: &SoakRow) -> Vec<Goal> {
    let engine = row.engine;
    let failed = row.queries_failed + row.audits_failed + row.visits_failed + row.unpublished;
    let none = |what: &str, count: u64| Goal::none(format!("{engine}: {what}"), count);
    let middle_mb = row.memory_50_mb.unwrap_or(0.0);
    let growth_max = (middle_mb * GROWTH_SHARE_MAX).max(GROWTH_MB_MAX);
    let growth = row.memory_growth_mb.filter(|_| row.seconds >= JUDGED_SECONDS);
    let what = format!("{engine}: growth of memory in the second half of {} s", number(row.seconds));
    vec![
        Goal::at_most(what, growth_max, "MB", growth),
        none("errors and warnings in the log", row.log_warnings),
        none("requests that failed", failed),
        none("messages lost", row.lost),
        Goal::at_least(format!("{engine}: messages removed meanwhile"), 1.0, "", Some(row.removed as f64))
            .at_any_size(),
    ]
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;
    use crate::{
        machine::Machine,
        scrape::Scrape,
        soak::{Run, Shape, audit::Audited, memory::Samples, users::Asked, visitors::Visited},
    };

    fn measured(seconds: u64, leak: f64, warnings: usize, lost: u64) -> Measured {
        let length = Duration::from_secs(seconds);
        let keep = Duration::from_secs(10);
        let mut memory = Samples::of(length);
        memory.points = (0..=seconds).map(|second| (second as f64, 30e6 + second as f64 * leak)).collect();
        let shape = Shape { length, keep, rate: 100.0, users: 20, sample: Duration::from_secs(1) };
        let counts = "restante_archive_pruned_messages_total{engine=\"log\"} 9000\n";
        let run = Run {
            published: 10_000,
            unpublished: 0,
            retries: 0,
            first_error: None,
            asked: Asked::default(),
            visited: Visited::default(),
            audited: Audited { looked_for: 10_000, lost, ..Audited::default() },
            memory,
            counts: Scrape::parse(counts),
        };
        Measured { engine: "log", shape, run, warnings: vec!["{}".to_owned(); warnings] }
    }

    #[test]
    fn a_run_is_judged_by_memory_log_and_losses() {
        for (leak, warnings, lost) in [(0.0, 0, 0), (0.1e6, 0, 0), (0.0, 9, 0), (0.0, 0, 1)] {
            let mut report = Report::new("soak", "Test.", Machine::look(Path::new(".")));
            present(&measured(600, leak, warnings, lost), &mut report).unwrap();
            let verdicts: Vec<_> = report.goals.iter().map(|goal| goal.is_met.unwrap()).collect();
            assert_eq!(verdicts, [leak == 0.0, warnings == 0, true, lost == 0, true]);
            assert_eq!((report.rows.len(), report.plots.len(), report.tables.len()), (1, 2, 1));
            assert_eq!(report.notes.len(), warnings.min(SHOWN_MAX));
        }
    }

    #[test]
    fn the_memory_of_a_short_run_is_not_judged() {
        let mut report = Report::new("soak", "Test.", Machine::look(Path::new(".")));
        present(&measured(60, 1e6, 0, 0), &mut report).unwrap();
        assert_eq!(report.goals.first().unwrap().is_met, None);
    }
}
