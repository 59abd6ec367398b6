//! Tables, plots and goals of `bench ingest`.

use super::{APPENDERS, BATCHES, IngestRow, Measured};
use crate::{
    measure::ratio,
    report::{Bars, Curves, Goal, Plot, Report, Table, number, optional},
};

/// The columns of both tables.
const LEGEND: &[(&str, &str)] = &[
    ("batch", "messages in one append"),
    ("sync ms", "the disk alone: median of fdatasync after an append of 700 bytes"),
    ("syncs/s", "the disk alone: such appends and syncs a second"),
    ("disk MB/s", "the disk alone: one write of up to 512 MiB in calls of 1 MiB, and one fdatasync"),
    ("by syncs", "appends a second divided by syncs/s"),
    ("by disk", "MB/s divided by disk MB/s"),
    ("by one", "messages/s divided by that of one appender with the same batch"),
    (
        "written",
        "bytes given to write calls (wchar of /proc/self/io) until all is sealed, divided by bytes of bodies",
    ),
    ("device", "the same by the counter of the device below the folder, which counts all processes"),
    ("on disk", "bytes of all files when all is sealed, divided by bytes of bodies"),
];

const NOTES: [&str; 3] = [
    "The figures of the disk alone are measured in the same folder before and after each row; a row is compared with their \
 mean.",
    "For postgres the database's own processes write, perhaps on another disk: their writes are not counted here.",
    "Bodies and topics are those of the data set; each message has a hash and a time of its own, all within one \
 day.",
];

pub(super) fn present(measured: &[Measured], report: &mut Report) {
    let rows: Vec<&IngestRow> = measured.iter().map(|cell| &cell.row).collect();
    report.tables.push(rate_table(&rows));
    report.tables.push(cost_table(&rows));
    let mut engines: Vec<&'static str> = rows.iter().map(|row| row.engine).collect();
    engines.dedup();
    for engine in engines {
        report.plots.push(rate_bars(engine, &rows));
        report.plots.push(latency_curves(engine, measured));
        let of_engine: Vec<&IngestRow> = rows.iter().copied().filter(|row| row.engine == engine).collect();
        if engine == "log" {
            report.goals.extend(goals(engine, &of_engine)); // set for the embedded engine
        }
    }
    report.notes.extend(NOTES.map(str::to_owned));
}

fn rate_table(rows: &[&IngestRow]) -> Table {
    let columns = [
        "engine",
        "batch",
        "appenders",
        "messages/s",
        "MB/s",
        "p50 ms",
        "p99 ms",
        "sync ms",
        "syncs/s",
        "disk MB/s",
        "by syncs",
        "by disk",
        "by one",
    ];
    let mut table = Table::new("Durable appends", &columns).explain(LEGEND);
    for row in rows {
        table.add([
            row.engine.to_owned(),
            row.batch.to_string(),
            row.appenders.to_string(),
            number(row.messages_per_s),
            number(row.payload_mb_s),
            number(row.p50_ms),
            number(row.p99_ms),
            number(row.sync_ms),
            number(row.syncs_per_s),
            number(row.disk_write_mb_s),
            optional(row.ratio_to_syncs),
            optional(row.ratio_to_disk),
            optional(row.ratio_to_one),
        ]);
    }
    table
}

fn cost_table(rows: &[&IngestRow]) -> Table {
    let columns = ["engine", "batch", "appenders", "messages", "written", "device", "on disk", "longest ms"];
    let mut table = Table::new("Disk writes of an append", &columns).explain(LEGEND);
    for row in rows {
        table.add([
            row.engine.to_owned(),
            row.batch.to_string(),
            row.appenders.to_string(),
            number(row.messages as f64),
            optional(row.write_amplification),
            optional(row.device_write_amplification),
            optional(row.disk_per_payload),
            number(row.max_ms),
        ]);
    }
    table
}

fn find<'a>(rows: &[&'a IngestRow], batch: usize, appenders: usize) -> Option<&'a IngestRow> {
    rows.iter().find(|row| row.batch == batch && row.appenders == appenders).copied()
}

fn rate_bars(engine: &str, rows: &[&IngestRow]) -> Plot {
    let rows: Vec<&IngestRow> = rows.iter().copied().filter(|row| row.engine == engine).collect();
    let mut series = Vec::new();
    for appenders in APPENDERS {
        let rate = |batch: usize| find(&rows, batch, appenders).map(|row| row.messages_per_s);
        let name = if appenders == 1 { "1 appender".to_owned() } else { format!("{appenders} appenders") };
        series.push((name, BATCHES.map(rate).to_vec()));
    }
    let bound = |batch: usize| find(&rows, batch, 1).and_then(disk_bound);
    series.push(("limit of the disk for one appender".to_owned(), BATCHES.map(bound).to_vec()));
    let groups = BATCHES.map(|batch| format!("batch {batch}")).to_vec();
    Plot::Bars(Bars {
        title: format!("Durable messages a second ({engine})"),
        unit: "messages/s",
        groups,
        series,
    })
}

/// Messages a second if only the disk needed time: one sync for each append, and its write rate.
fn disk_bound(row: &IngestRow) -> Option<f64> {
    let by_syncs = row.syncs_per_s * row.batch as f64;
    let mb_per_message = ratio(row.payload_mb_s, row.messages_per_s)?;
    let by_writing = row.disk_write_mb_s / mb_per_message;
    Some(by_syncs.min(by_writing))
}

fn latency_curves(engine: &str, measured: &[Measured]) -> Plot {
    let mut lines = Vec::new();
    for cell in measured.iter().filter(|cell| cell.row.engine == engine) {
        let is_shown = cell.row.batch != 10 && cell.row.appenders != 8;
        if is_shown {
            let name = format!("batch {}, appenders {}", cell.row.batch, cell.row.appenders);
            lines.push((name, cell.appends.curve()));
        }
    }
    Plot::Curves(Curves {
        title: format!("Share of appends answered within a time ({engine})"),
        unit: "ms",
        lines,
    })
}

fn goals(engine: &str, rows: &[&IngestRow]) -> Vec<Goal> {
    let largest = |figure: &dyn Fn(&IngestRow) -> Option<f64>| {
        let large_batches = rows.iter().filter(|row| row.batch >= 100);
        large_batches.filter_map(|row| figure(row)).max_by(f64::total_cmp)
    };
    let to_disk = |appenders| find(rows, 1_000, appenders).and_then(|row| row.ratio_to_disk);
    vec![
        Goal::at_least(
            format!("{engine}: batch 1,000, one appender, by the disk's write rate"),
            0.7,
            "x",
            to_disk(1),
        ),
        Goal::at_least(
            format!("{engine}: batch 1,000, 8 appenders, by the disk's write rate"),
            0.7,
            "x",
            to_disk(8),
        ),
        Goal::at_least(
            format!("{engine}: one at a time, one appender, by the bare append and sync"),
            0.8,
            "x",
            find(rows, 1, 1).and_then(|row| row.ratio_to_syncs),
        ),
        Goal::at_least(
            format!("{engine}: one at a time, 64 appenders, by one appender"),
            20.0,
            "x",
            find(rows, 1, 64).and_then(|row| row.ratio_to_one),
        ),
        Goal::at_most(
            format!("{engine}: written by payload, batch 100 and 1,000, worst"),
            1.25,
            "x",
            largest(&|row| row.write_amplification),
        ),
        Goal::at_most(
            format!("{engine}: disk by payload, batch 100 and 1,000, worst"),
            1.12,
            "x",
            largest(&|row| row.disk_per_payload),
        ),
    ]
}
