//! The tables that KDE Sink's authors published, with the figures of this run.

use super::{
    super::{
        Measured,
        cost::Row,
        seed::SeedFigures,
        sink::{MAIL_BYTES, SINK, Sink},
    },
    engines, kb, usual,
};
use crate::{
    measure::ratio,
    report::{Bars, Goal, Plot, Report, Table, number, optional},
};

/// KiB in kB: Sink's figures were published in KiB.
const KB_PER_KIB: f64 = 1.024;
/// The mails that the goals are set for.
const MAILS1: u64 = 5_000;
const MAILS2: u64 = 1_000;
const ON_DISK_KB_GOAL: f64 = 2_000.0 * KB_PER_KIB;
const AMPLIFICATION_GOAL: f64 = 2.2;
const TOTAL_BYTES_GOAL: f64 = 700_000.0;
const RATIO_GOAL: f64 = 2.0;

/// The columns of the tables.
const LEGEND: &[(&str, &str)] = &[
    ("lmdb", "ours: LMDB with a commit log before it, bodies compressed with a dictionary"),
    ("lmdb without log", "ours: an LMDB transaction for each group of commits"),
    ("lmdb uncompressed", "ours: as lmdb, bodies as they are"),
    ("memory", "ours: the reference model in memory"),
    ("published: before", "KDE Sink as its authors published it, before their changes"),
    ("published: binary keys", "the same after they made keys binary"),
    ("Sink run: before", "KDE Sink run on a machine of the same kind, before those changes"),
    ("Sink run: binary keys", "the same with binary keys"),
    ("Sink run: ids apart", "the same with ids separated from revisions"),
];

const NOTES: [&str; 4] = [
    "Sink is the mail store of KDE. Mails of 184 bytes as its dummyresourcewritebenchmark stores them, a hundred in a commit; here uid, message \
     id and date differ between mails. Mails of one subject compress better than real ones: lmdb uncompressed is the same store \
     without compression. The mails have six indexes for the queries of Sink's eight: date; folder and date (also for folder \
     alone); message id (also for its thread, a property of the mail); parent; thread; draft.",
    "Columns marked published: the text of Sink's authors, which has graphs only of the patch that separates ids from \
     revisions. Sink run: Sink \
     itself at the three revisions, its programs unchanged, medians of four runs on a machine of the same kind.",
    "Computed as in Sink: write amplification (table 1): main file by 184 bytes a mail. Table 2: used size: page size x \
     (pages - free pages); total on disk: everything of a resource, ours the store's folder; write amplification: main file \
     by bytes of all keys and values, including the dictionary of the bodies. Both are ratios of space. \
     Bytes written are in the table of batches.",
    "At rest: after closing, when everything is in the main file. Open: after the last commit, with a preallocated \
     commit log. RSS: resident memory of a process that only has the store open, the mapped file \
     included; private: without mapped files.",
];

pub(super) fn present(measured: &Measured, report: &mut Report) {
    if !measured.seed1.is_empty() {
        report.tables.push(table1(&measured.seed1));
        report.plots.push(Plot::Bars(bars1(&measured.seed1)));
        report.goals.extend(goals1(&measured.seed1));
    }
    if !measured.seed2.is_empty() {
        report.tables.push(table2(&measured.seed2));
        report.goals.extend(goals2(&measured.seed2));
    }
    if !measured.seed1.is_empty() || !measured.seed2.is_empty() {
        report.notes.extend(NOTES.map(str::to_owned));
    }
}

/// A line of a table: the figures of our engines, and those of Sink.
type Line<'a> = (&'a str, &'a dyn Fn(&SeedFigures) -> Option<f64>, &'a dyn Fn(&Sink) -> Option<f64>);

fn table(title: String, rows: &[Row<SeedFigures>], lines: &[Line<'_>]) -> Table {
    let mut columns = vec!["what"];
    columns.extend(engines(rows));
    columns.extend(SINK.iter().map(|sink| sink.name));
    let mut table = Table::new(title, &columns).explain(LEGEND);
    for (name, ours, theirs) in lines {
        let mut cells = vec![(*name).to_owned()];
        cells.extend(rows.iter().map(|row| optional(ours(&row.figures))));
        cells.extend(SINK.iter().map(|sink| optional(theirs(sink))));
        table.add(cells);
    }
    table
}

fn mails(rows: &[Row<SeedFigures>]) -> String {
    let mails = rows.first().map(|row| row.figures.head.entities).unwrap_or_default();
    number(mails as f64)
}

/// Main file at rest divided by bytes of mails.
fn amplification(figures: &SeedFigures) -> Option<f64> {
    ratio(figures.closed?.main_bytes as f64, figures.head.payload_bytes? as f64)
}

/// Main file at rest divided by bytes of all keys and values.
fn key_value_ratio(figures: &SeedFigures) -> Option<f64> {
    ratio(figures.closed?.main_bytes as f64, figures.pages?.key_value_bytes? as f64)
}

fn table1(rows: &[Row<SeedFigures>]) -> Table {
    let rss = |figures: &SeedFigures| figures.memory.rss_bytes.map(kb);
    let rss_without = |figures: &SeedFigures| {
        let rss = figures.memory.rss_bytes?;
        Some(kb(rss.saturating_sub(figures.open?.main_bytes)))
    };
    table(
        format!("Sink's table 1: {} mails of 184 bytes", mails(rows)),
        rows,
        &[
            ("current RSS, kB", &rss, &|sink| Some(sink.rss_kib * KB_PER_KIB)),
            ("RSS without db, kB", &rss_without, &|sink| {
                Some((sink.rss_kib - sink.on_disk_kib) * KB_PER_KIB)
            }),
            ("private memory, kB", &|figures| figures.memory.private_bytes.map(kb), &|_| None),
            ("on disk, kB: main file at rest", &|figures| Some(kb(figures.closed?.main_bytes)), &|sink| {
                Some(sink.on_disk_kib * KB_PER_KIB)
            }),
            ("main file open, kB", &|figures| Some(kb(figures.open?.main_bytes)), &|_| None),
            ("whole folder at rest, kB", &|figures| Some(kb(figures.closed?.folder_bytes)), &|_| None),
            ("whole folder open, kB", &|figures| Some(kb(figures.open?.folder_bytes)), &|_| None),
            ("buffer size total, kB", &|figures| figures.head.payload_bytes.map(kb), &|_| {
                Some(kb(MAILS1 * MAIL_BYTES))
            }),
            ("write amplification (space)", &amplification, &|sink| Some(sink.amplification)),
            ("bytes written by payload", &written_ratio, &|_| None),
        ],
    )
}

/// Bytes passed to write calls divided by bytes of mails.
fn written_ratio(figures: &SeedFigures) -> Option<f64> {
    ratio(figures.head.written_bytes? as f64, figures.head.payload_bytes? as f64)
}

fn table2(rows: &[Row<SeedFigures>]) -> Table {
    let used_ratio = |figures: &SeedFigures| {
        let pages = figures.pages?;
        ratio(pages.used_bytes() as f64, pages.key_value_bytes? as f64)
    };
    table(
        format!("Sink's table 2: {} of them", mails(rows)),
        rows,
        &[
            ("total pages", &|figures| figures.pages.map(|pages| pages.total as f64), &|sink| {
                Some(sink.pages)
            }),
            ("used size, B", &|figures| figures.pages.map(|pages| pages.used_bytes() as f64), &|sink| {
                Some(sink.used_bytes)
            }),
            (
                "total on disk, B: folder at rest",
                &|figures| Some(figures.closed?.folder_bytes as f64),
                &|sink| Some(sink.total_bytes),
            ),
            ("whole folder open, B", &|figures| Some(figures.open?.folder_bytes as f64), &|_| None),
            ("main file at rest, B", &|figures| Some(figures.closed?.main_bytes as f64), &|_| None),
            (
                "keys and values, B",
                &|figures| figures.pages?.key_value_bytes.map(|bytes| bytes as f64),
                &|_| None,
            ),
            ("write amplification (space)", &key_value_ratio, &|sink| Some(sink.ratio)),
            ("used size amplification", &used_ratio, &|_| None),
        ],
    )
}

fn bars1(rows: &[Row<SeedFigures>]) -> Bars {
    let mut groups: Vec<String> = rows.iter().map(|row| row.engine.to_owned()).collect();
    let mut on_disk: Vec<Option<f64>> =
        rows.iter().map(|row| row.figures.closed.map(|disk| kb(disk.main_bytes))).collect();
    for sink in &SINK {
        groups.push(sink.name.to_owned());
        on_disk.push(Some(sink.on_disk_kib * KB_PER_KIB));
    }
    Bars {
        title: format!("{} mails of 184 bytes on disk", mails(rows)),
        unit: "kB",
        groups,
        series: vec![("main file".to_owned(), on_disk)],
    }
}

/// The figures of the default engine with this number of mails.
fn of_usual(rows: &[Row<SeedFigures>], mails: u64) -> Option<&SeedFigures> {
    usual(rows).find(|figures| figures.head.entities == mails)
}

fn goals1(rows: &[Row<SeedFigures>]) -> [Goal; 2] {
    let figures = of_usual(rows, MAILS1);
    let on_disk = figures.and_then(|figures| Some(kb(figures.closed?.main_bytes)));
    let ratio = figures.and_then(amplification);
    [
        Goal::at_most("Sink's table 1: on disk (main file at rest)", ON_DISK_KB_GOAL, "kB", on_disk),
        Goal::at_most("Sink's table 1: its write amplification", AMPLIFICATION_GOAL, "", ratio),
    ]
}

fn goals2(rows: &[Row<SeedFigures>]) -> [Goal; 2] {
    let figures = of_usual(rows, MAILS2);
    let total = figures.and_then(|figures| Some(figures.closed?.folder_bytes as f64));
    let ratio = figures.and_then(key_value_ratio);
    [
        Goal::at_most("Sink's table 2: total on disk (folder at rest)", TOTAL_BYTES_GOAL, "B", total),
        Goal::at_most("Sink's table 2: its write amplification", RATIO_GOAL, "", ratio),
    ]
}
