//! Bytes written and on disk: mails in commits, and flag changes.

use super::{
    super::{
        Measured,
        batch::{BATCHES, BatchFigures, SINGLE_MAX},
        cost::Row,
        input::Input,
    },
    engines, usual,
};
use crate::{
    measure::ratio,
    report::{Bars, Curves, Goal, Plot, Report, Table, number, optional},
};

/// The size that goals are set for, and a larger one of about the same cost per record.
const RECORDS: u64 = 100_000;
const RECORDS_LARGE: u64 = 1_000_000;
const DISK_GOAL: f64 = 1.0;
const WRITTEN_GOAL: f64 = 2.0;
const WRITTEN_SINGLE_GOAL: f64 = 12.0;
const GROWTH_GOAL: f64 = 1.5;
const CHURN_GOAL: f64 = 5_000.0;
/// The batches that goals are set for.
const LARGE_BATCHES: [u64; 2] = [100, 1_000];

/// Device bytes by bytes of records in commits of [`BATCHES`], measured on a private disk before the layout was chosen: the
/// same rows in LMDB with a transaction for each commit, and a preallocated file with nothing but the records.
const PLAIN_LMDB: [f64; 4] = [94.8, 20.8, 5.9, 2.6];
const BARE_FILE: [f64; 4] = [8.35, 1.76, 1.09, 1.01];
/// Bytes written for a flag change of 50,000, a hundred in a commit, in Sink's last layout and in plain LMDB with ours.
const SINK_CHURN: f64 = 57_400.0;
const PLAIN_CHURN: f64 = 7_850.0;

/// The columns of the tables.
const LEGEND: &[(&str, &str)] = &[
    ("batch", "records in one commit"),
    ("disk", "main file at rest, divided by bytes of records"),
    ("written", "bytes given to write calls (wchar of /proc/self/io), divided by bytes of records"),
    ("device", "the same by the counter of the device below the folder, which counts all processes"),
    ("plain LMDB", "device bytes measured on another disk: LMDB with a transaction for each commit"),
    ("bare file", "device bytes measured on another disk: a preallocated file with nothing but the records"),
    ("B by record", "bytes of the main file at rest for a record"),
    ("folder open MB", "the whole folder while the store is open, its commit log included"),
    ("to open MB", "written by opening the fresh store"),
    ("commits/s", "commits of one committer that does not pause"),
    ("records/s", "records in those commits"),
    ("RSS MB", "resident memory of the process, the mapped file included"),
    ("private MB", "memory of the process without mapped files"),
    ("written B", "bytes given to write calls for one change"),
    ("device B", "bytes that the device wrote for one change"),
    ("bytes", "mean size of a record"),
    ("zstd 3", "mean size when each record is compressed alone"),
    ("with a dictionary of 64 KiB", "the same with a dictionary trained on other records"),
];

const NOTES: [&str; 5] = [
    "Batches: mail-like records in three indexes (mailbox and time of arrival, thread, message id), each commit returning \
     when it is durable. Payload: bodies and the 32-byte blobs that they name; properties are not counted. disk: main file \
     at rest by payload.",
    "written: bytes given to write calls (wchar of /proc/self/io) by payload, from the first commit until the store is \
     closed, in a process that does nothing else; they include lengthening the commit log in its first round, but not \
     opening the fresh store. device: the same by the counter of the device below the folder, read after its \
     file system was synced; it counts all processes. A device writes whole blocks, so that one at a time it counts more \
     than write calls.",
    "One at a time there are 5,000 records at most, and without a commit log 10,000 commits. plain LMDB and bare file: \
     device bytes of a measurement on another disk, LMDB with a transaction for each commit, and a preallocated file \
     with nothing but the records: 602 bytes take a block of 4,096, which is 6.8 times as much.",
    "commits/s: while one committer commits without a pause; another thread generates the records. us: from the call of a \
     commit to its return.",
    "Flag changes: 10,000 at random among 50,000 records, a hundred in a commit, in a store that was closed and opened \
     before; written until it is closed again. Sink: its layout of 2020, which rewrites the record and all index \
     entries.",
];

pub(super) fn present(measured: &Measured, report: &mut Report) {
    if let Some(input) = measured.input {
        report.tables.push(input_table(input));
    }
    if !measured.batch.is_empty() {
        report.tables.push(batch_table(&measured.batch));
        report.tables.push(time_table(&measured.batch));
        report.plots.extend(plots(&measured.batch));
        report.goals.extend(batch_goals(&measured.batch));
    }
    if !measured.churn.is_empty() {
        report.tables.push(churn_table(measured));
        report.goals.push(churn_goal(measured));
    }
    if !measured.batch.is_empty() || !measured.churn.is_empty() {
        report.notes.extend(NOTES.map(str::to_owned));
    }
}

fn input_table(input: Input) -> Table {
    let columns = ["records", "bytes", "zstd 3", "with a dictionary of 64 KiB"];
    let mut table = Table::new("The records themselves: mean bytes", &columns).explain(LEGEND);
    table.add([
        number(input.entities as f64),
        number(input.record_bytes),
        number(input.zstd_bytes),
        number(input.dictionary_bytes),
    ]);
    table
}

fn by_payload(figures: &BatchFigures, bytes: Option<u64>) -> Option<f64> {
    ratio(bytes? as f64, figures.head.payload_bytes? as f64)
}

fn disk(figures: &BatchFigures) -> Option<f64> {
    by_payload(figures, figures.head.disk_bytes)
}

fn written(figures: &BatchFigures) -> Option<f64> {
    by_payload(figures, figures.head.written_bytes)
}

/// The figure of an earlier measurement with the same batch.
fn elsewhere(figures: [f64; 4], batch: u64) -> Option<f64> {
    let place = BATCHES.iter().position(|known| *known == batch)?;
    figures.get(place).copied()
}

fn batch_table(rows: &[Row<BatchFigures>]) -> Table {
    let columns = [
        "engine",
        "records",
        "batch",
        "disk",
        "written",
        "device",
        "plain LMDB",
        "bare file",
        "B by record",
        "folder open MB",
        "to open MB",
    ];
    let mut table = Table::new("Bytes divided by bytes of records", &columns).explain(LEGEND);
    for Row { engine, figures, .. } in rows {
        let head = &figures.head;
        let by_record = head.disk_bytes.and_then(|bytes| ratio(bytes as f64, head.entities as f64));
        table.add([
            (*engine).to_owned(),
            number(head.entities as f64),
            number(head.batch as f64),
            optional(disk(figures)),
            optional(written(figures)),
            optional(by_payload(figures, head.device_bytes)),
            optional(elsewhere(PLAIN_LMDB, head.batch)),
            optional(elsewhere(BARE_FILE, head.batch)),
            optional(by_record),
            optional(figures.open.map(|disk| disk.folder_bytes as f64 / 1e6)),
            optional(figures.opening_bytes.map(|bytes| bytes as f64 / 1e6)),
        ]);
    }
    table
}

fn time_table(rows: &[Row<BatchFigures>]) -> Table {
    let columns = [
        "engine",
        "records",
        "batch",
        "commits/s",
        "records/s",
        "p50 us",
        "p99 us",
        "longest us",
        "RSS MB",
        "private MB",
    ];
    let mut table = Table::new("Commits", &columns).explain(LEGEND);
    let mb = |bytes: Option<u64>| optional(bytes.map(|bytes| bytes as f64 / 1e6));
    for Row { engine, figures, .. } in rows {
        let (head, times) = (&figures.head, &figures.times);
        table.add([
            (*engine).to_owned(),
            number(head.entities as f64),
            number(head.batch as f64),
            number(times.commits_per_s),
            number(times.commits_per_s * head.batch as f64),
            optional(head.median_us),
            number(times.p99_us),
            number(times.max_us),
            mb(figures.memory.rss_bytes),
            mb(figures.memory.private_bytes),
        ]);
    }
    table
}

/// The figures of one cell. With commits of one record there may be fewer records than requested.
fn find<'a>(
    rows: &'a [Row<BatchFigures>],
    engine: &str,
    entities: u64,
    batch: u64,
) -> Option<&'a BatchFigures> {
    let is_it = |row: &&Row<BatchFigures>| {
        let head = &row.figures.head;
        row.engine == engine && head.batch == batch && (head.entities == entities || batch == 1)
    };
    rows.iter().find(is_it).map(|row| &row.figures)
}

fn sizes(rows: &[Row<BatchFigures>]) -> Vec<u64> {
    let of_many = rows.iter().filter(|row| row.figures.head.batch > 1);
    let mut sizes: Vec<u64> = of_many.map(|row| row.figures.head.entities).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn plots(rows: &[Row<BatchFigures>]) -> Vec<Plot> {
    let sizes = sizes(rows);
    let shown = if sizes.contains(&RECORDS) { Some(&RECORDS) } else { sizes.last() };
    let Some(shown) = shown.copied() else { return Vec::new() };
    vec![written_bars(rows, shown), size_bars(rows, &sizes), commit_curves(rows, shown)]
}

fn written_bars(rows: &[Row<BatchFigures>], entities: u64) -> Plot {
    let of_engine = |engine: &'static str| {
        let values = BATCHES.map(|batch| find(rows, engine, entities, batch).and_then(written));
        (engine.to_owned(), values.to_vec())
    };
    let mut series: Vec<_> = engines(rows).into_iter().map(of_engine).collect();
    series.push(("plain LMDB (elsewhere, device)".to_owned(), PLAIN_LMDB.map(Some).to_vec()));
    series.push(("bare file (elsewhere, device)".to_owned(), BARE_FILE.map(Some).to_vec()));
    Plot::Bars(Bars {
        title: format!("Bytes written by bytes of records, {} records", number(entities as f64)),
        unit: "x",
        groups: BATCHES.map(|batch| format!("batch {}", number(batch as f64))).to_vec(),
        series,
    })
}

/// The costs by the size of the store, in commits of a hundred.
fn size_bars(rows: &[Row<BatchFigures>], sizes: &[u64]) -> Plot {
    const BATCH: u64 = 100;
    let mut series = Vec::new();
    for engine in engines(rows) {
        let cell = |size: &u64| find(rows, engine, *size, BATCH);
        series.push((format!("{engine}: written"), sizes.iter().map(|size| written(cell(size)?)).collect()));
        series.push((format!("{engine}: on disk"), sizes.iter().map(|size| disk(cell(size)?)).collect()));
    }
    Plot::Bars(Bars {
        title: format!("Bytes by bytes of records, {BATCH} in a commit"),
        unit: "x",
        groups: sizes.iter().map(|size| format!("{} records", number(*size as f64))).collect(),
        series,
    })
}

fn commit_curves(rows: &[Row<BatchFigures>], entities: u64) -> Plot {
    let mut lines = Vec::new();
    for engine in engines(rows) {
        for batch in [1, 100, 1_000] {
            if let Some(figures) = find(rows, engine, entities, batch) {
                lines.push((format!("{engine}, batch {batch}"), figures.times.curve_ms.clone()));
            }
        }
    }
    Plot::Curves(Curves { title: "Share of commits answered within a time".to_owned(), unit: "ms", lines })
}

/// The larger of two figures; `None` if one is missing.
fn worst(figures: [Option<f64>; 2]) -> Option<f64> {
    let [one, other] = figures;
    Some(one?.max(other?))
}

fn batch_goals(rows: &[Row<BatchFigures>]) -> Vec<Goal> {
    let cell = |entities, batch| {
        usual(rows).find(|figures| figures.head.batch == batch && figures.head.entities == entities)
    };
    let single = cell(SINGLE_MAX, 1);
    let small = LARGE_BATCHES.map(|batch| cell(RECORDS, batch));
    let growth = |what: fn(&BatchFigures) -> Option<f64>| {
        let of_batch = |batch| ratio(what(cell(RECORDS_LARGE, batch)?)?, what(cell(RECORDS, batch)?)?);
        worst(LARGE_BATCHES.map(of_batch))
    };
    vec![
        Goal::at_most(
            "100,000 records: disk, batch 100 and 1,000",
            DISK_GOAL,
            "x",
            worst(small.map(|cell| disk(cell?))),
        ),
        Goal::at_most(
            "100,000 records: written, batch 100 and 1,000",
            WRITTEN_GOAL,
            "x",
            worst(small.map(|cell| written(cell?))),
        ),
        Goal::at_most("one at a time: written", WRITTEN_SINGLE_GOAL, "x", single.and_then(written)),
        Goal::at_most("a million records by 100,000: disk", GROWTH_GOAL, "x", growth(disk)),
        Goal::at_most("a million records by 100,000: written", GROWTH_GOAL, "x", growth(written)),
    ]
}

fn churn_table(measured: &Measured) -> Table {
    let columns = ["store", "records", "changes", "written B", "device B", "commits/s", "p50 us", "p99 us"];
    let mut table = Table::new("Flag changes, a hundred in a commit", &columns).explain(LEGEND);
    for Row { engine, figures, .. } in &measured.churn {
        let by_change = |bytes: Option<u64>| {
            optional(bytes.and_then(|bytes| ratio(bytes as f64, figures.changes as f64)))
        };
        table.add([
            (*engine).to_owned(),
            number(figures.head.entities as f64),
            number(figures.changes as f64),
            by_change(figures.head.written_bytes),
            by_change(figures.head.device_bytes),
            number(figures.times.commits_per_s),
            optional(figures.head.median_us),
            number(figures.times.p99_us),
        ]);
    }
    for (store, bytes) in
        [("KDE Sink's layout, elsewhere", SINK_CHURN), ("plain LMDB, elsewhere", PLAIN_CHURN)]
    {
        let none = || "-".to_owned();
        let (records, changes) = (number(50_000.0), number(10_000.0));
        table.add([store.to_owned(), records, changes, number(bytes), none(), none(), none(), none()]);
    }
    table
}

fn churn_goal(measured: &Measured) -> Goal {
    let figures = usual(&measured.churn).find(|figures| figures.head.entities == 50_000);
    let by_change =
        figures.and_then(|figures| ratio(figures.head.written_bytes? as f64, figures.changes as f64));
    Goal::at_most("a flag change, 100 in a commit: written", CHURN_GOAL, "B", by_change)
}
