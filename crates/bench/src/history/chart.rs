//! The published figures beside ours, the other tables, plots and goals.

use super::{HistoryRow, Measured};
use crate::{
    dataset::{Dataset, SetName, Span},
    report::{Bars, Curves, Goal, Plot, Report, Table, number, optional},
};

/// The cells of the published chart.
const CHART_CELLS: [&str; 4] = ["1ws", "1ms", "1wl", "1ml"];
const CELLS: [&str; 6] = ["1ws", "1ms", "1wl", "1ml", "1wx", "1mx"];

/// A line of the chart that was published and is not measured here.
struct Published {
    method: &'static str,
    source: &'static str,
    ms: [f64; 4],
}

const SEED: &str = "Status, 2019, 4 cores";
const PEERS: &str = "another run, 2 quiet cores";
const PUBLISHED: [Published; 7] = [
    Published { method: "table scan", source: SEED, ms: [1_200.0, 4_500.0, 1_200.0, 4_500.0] },
    Published { method: "bit string", source: SEED, ms: [189.0, 400.0, 500.0, 1_500.0] },
    Published { method: "topic", source: SEED, ms: [7.0, 8.0, 1_000.0, 4_000.0] },
    Published { method: "goleveldb, topic in the key", source: PEERS, ms: [323.0, 1_493.0, 363.0, 1_502.0] },
    Published { method: "PostgreSQL 15, bit string", source: PEERS, ms: [175.0, 405.0, 375.0, 1_344.0] },
    Published { method: "PostgreSQL 15, index (topic, id)", source: PEERS, ms: [0.85, 3.0, 334.0, 1_326.0] },
    Published { method: "column segments (prototype, copying)", source: PEERS, ms: [0.014, 0.11, 8.9, 44.0] },
];

/// The names of the combinations of a time range and a set of topics.
const CELL_LEGEND: &[(&str, &str)] = &[
    ("cell", "1w is a week and 1m a month; s is 3 topics, l 256 topics, x nearly all messages"),
    ("1ws", "3 topics in a week"),
    ("1ms", "3 topics in a month"),
    ("1wl", "256 topics in a week"),
    ("1ml", "256 topics in a month"),
    (
        "ms",
        "median time of an answer; with several queries at once, from their common start to the end of the last",
    ),
    ("by one", "ms divided by that of one query alone"),
    (
        "floor ms",
        "copying the bodies of the answer once, from known addresses, into a reused buffer of 1 MiB",
    ),
];

/// Adds everything to the report.
pub(super) fn present(measured: &[Measured], dataset: &Dataset, report: &mut Report) {
    let rows: Vec<&HistoryRow> = measured.iter().flat_map(|cell| &cell.rows).collect();
    report.tables.push(published_chart(&rows));
    report.tables.push(full_table(&rows));
    report.tables.push(page_table(&rows));
    report.tables.push(disk_table(&rows));
    report.tables.push(set_table(dataset));
    let mut engines: Vec<&'static str> = rows.iter().map(|row| row.engine).collect();
    engines.dedup();
    report.plots.push(cell_bars(&rows, &engines));
    for engine in engines {
        let of_engine: Vec<&HistoryRow> = rows.iter().copied().filter(|row| row.engine == engine).collect();
        report.plots.push(concurrency_bars(&of_engine, engine));
        for query in ["topics", "bloom"] {
            report.plots.push(page_curves(measured, query, engine));
        }
        report.goals.extend(goals(engine, &of_engine));
    }
    report.notes.extend(NOTES.map(str::to_owned));
}

const NOTES: [&str; 4] = [
    "Full: all matches, page by page, reading each byte of each body. floor and touch are measured between the queries, \
 medians of five, and are those of a single answer, also with several queries at once.",
    "Pages: pages of 100 with their bodies read, at the first, middle and last position of the matches, forward and \
 backward.",
    "Bloom queries also return false positives, so they have more rows.",
    "Figures with another source than this run were published elsewhere; only ratios within one run can be compared.",
];

/// The row of a cell, unless the bench was interrupted.
fn find<'a>(rows: &[&'a HistoryRow], engine: &str, cell: &str, query: &str) -> Option<&'a HistoryRow> {
    let is_it = |row: &&&HistoryRow| row.engine == engine && row.cell == cell && row.query == query;
    rows.iter().filter(|row| row.access == "full" && row.concurrency == 1).find(is_it).copied()
}

fn published_chart(rows: &[&HistoryRow]) -> Table {
    let mut table = Table::new(
        "Full retrieval beside published figures (ms, one query at a time)",
        &["method", "source", "1ws", "1ms", "1wl", "1ml"],
    )
    .explain(CELL_LEGEND)
    .explain(&[
        ("method", "how a store finds the messages: the Status mailserver's three, others, ours"),
        ("source", "where the figures come from"),
    ]);
    for line in PUBLISHED {
        let cells = [line.method.to_owned(), line.source.to_owned()];
        table.add(cells.into_iter().chain(line.ms.map(number)));
    }
    let mut engines: Vec<&str> = rows.iter().map(|row| row.engine).collect();
    engines.dedup();
    for engine in engines {
        for query in ["topics", "bloom"] {
            let figure = |cell: &str| find(rows, engine, cell, query).map(|row| row.median_ms);
            let cells = [format!("restante {engine}, {query}"), "this run".to_owned()];
            table.add(cells.into_iter().chain(CHART_CELLS.map(|cell| optional(figure(cell)))));
        }
        let floor = |cell: &str| find(rows, engine, cell, "topics").map(|row| row.floor_ms);
        let cells = [format!("copy floor in {engine}, topics"), "this run".to_owned()];
        table.add(cells.into_iter().chain(CHART_CELLS.map(|cell| optional(floor(cell)))));
    }
    table
}

fn full_table(rows: &[&HistoryRow]) -> Table {
    let columns = [
        "engine", "cell", "query", "at once", "rows", "MB", "ms", "p99 ms", "floor ms", "by floor",
        "touch ms", "by one",
    ];
    let mut table = Table::new("Full retrieval", &columns).explain(CELL_LEGEND).explain(&[
        ("MB", "bytes of the bodies of the answer"),
        ("by floor", "ms divided by floor ms"),
        ("touch ms", "reading every byte of the bodies of the answer, from known addresses"),
    ]);
    for row in rows.iter().filter(|row| row.access == "full") {
        table.add([
            row.engine.to_owned(),
            row.cell.to_owned(),
            row.query.to_owned(),
            row.concurrency.to_string(),
            number(row.rows as f64),
            number(row.bytes as f64 / 1e6),
            number(row.median_ms),
            number(row.p99_ms),
            number(row.floor_ms),
            optional(row.ratio_to_floor),
            optional(row.touch_ms),
            optional(row.ratio_to_one),
        ]);
    }
    table
}

fn page_table(rows: &[&HistoryRow]) -> Table {
    let columns = [
        "engine", "cell", "query", "at once", "rows", "ms", "p99 ms", "worst ms", "floor ms", "by one",
        "match ms",
    ];
    let mut table = Table::new("Pages of 100", &columns).explain(CELL_LEGEND).explain(&[
        ("worst ms", "the slowest median of all positions"),
        ("match ms", "the part of a small query's time that matching the bloom filter takes"),
    ]);
    for row in rows.iter().filter(|row| row.access == "page") {
        table.add([
            row.engine.to_owned(),
            row.cell.to_owned(),
            row.query.to_owned(),
            row.concurrency.to_string(),
            number(row.rows as f64),
            number(row.median_ms),
            number(row.p99_ms),
            optional(worst_position_ms(row)),
            number(row.floor_ms),
            optional(row.ratio_to_one),
            optional(row.bloom_match_ms),
        ]);
    }
    table
}

/// The size of each archive on disk.
fn disk_table(rows: &[&HistoryRow]) -> Table {
    let mut table = Table::new("Disk", &["engine", "disk by bodies"])
        .explain(&[("disk by bodies", "bytes of the whole archive on disk divided by bytes of all bodies")]);
    let mut seen = Vec::new();
    for row in rows {
        if !seen.contains(&row.engine) {
            seen.push(row.engine);
            table.add([row.engine.to_owned(), optional(row.disk_per_payload)]);
        }
    }
    table
}

fn set_table(dataset: &Dataset) -> Table {
    let mut table = Table::new("Sets of topics", &["set", "topics", "rows in a week", "rows in a month"])
        .explain(&[
            ("set", "the letter at the end of a cell's name"),
            ("rows in a week", "messages that match the list of topics"),
            ("rows in a month", "messages that match the list of topics"),
        ]);
    for (name, set) in [("s", SetName::Small), ("l", SetName::Large), ("x", SetName::Worst)] {
        let topics = dataset.query_set(set).topics;
        let rows = |span: Span| dataset.count(span, |topic| topics.iter().any(|name| name == topic)) as f64;
        table.add([
            name.to_owned(),
            topics.len().to_string(),
            number(rows(Span::Week)),
            number(rows(Span::Month)),
        ]);
    }
    table
}

/// The slowest position of a row of pages.
fn worst_position_ms(row: &HistoryRow) -> Option<f64> {
    row.positions.iter().map(|position| position.median_ms).max_by(f64::total_cmp)
}

fn cell_bars(rows: &[&HistoryRow], engines: &[&str]) -> Plot {
    let mut series = Vec::new();
    for engine in engines {
        for query in ["topics", "bloom"] {
            let figure = |cell: &str| find(rows, engine, cell, query).map(|row| row.median_ms);
            series.push((format!("{engine}, {query}"), CELLS.map(figure).to_vec()));
        }
        let floor = |cell: &str| find(rows, engine, cell, "topics").map(|row| row.floor_ms);
        series.push((format!("copy floor ({engine})"), CELLS.map(floor).to_vec()));
    }
    for line in PUBLISHED.iter().filter(|line| line.source == SEED) {
        series.push((format!("Status 2019: {}", line.method), line.ms.map(Some).to_vec()));
    }
    let groups = CELLS.map(str::to_owned).to_vec();
    Plot::Bars(Bars { title: "Full retrieval, one query at a time".to_owned(), unit: "ms", groups, series })
}

fn concurrency_bars(rows: &[&HistoryRow], engine: &str) -> Plot {
    let mut series = Vec::new();
    for concurrency in super::CONCURRENCY {
        let figure = |cell: &str| {
            let is_it = |row: &&&HistoryRow| {
                row.cell == cell && row.concurrency == concurrency && row.query == "topics"
            };
            rows.iter().filter(|row| row.access == "full").find(is_it).map(|row| row.median_ms)
        };
        series.push((format!("{concurrency} at once"), CELLS.map(figure).to_vec()));
    }
    let groups = CELLS.map(str::to_owned).to_vec();
    Plot::Bars(Bars {
        title: format!("Equal queries at once, all of them done ({engine})"),
        unit: "ms",
        groups,
        series,
    })
}

fn page_curves(measured: &[Measured], query: &str, engine: &str) -> Plot {
    let mut lines = Vec::new();
    for cell in measured {
        let Some(row) = cell.rows.first() else { continue };
        if row.query == query && row.engine == engine {
            lines.push((row.cell.to_owned(), cell.pages.curve()));
        }
    }
    Plot::Curves(Curves {
        title: format!("Pages of 100 by {query}: share of pages within a time ({engine})"),
        unit: "ms",
        lines,
    })
}

/// The goals of an engine, if it has any.
fn goals(engine: &str, rows: &[&HistoryRow]) -> Vec<Goal> {
    match engine {
        "log" => log_goals(engine, rows),
        "postgres" => postgres_goals(engine, rows),
        _ => Vec::new(),
    }
}

/// A database returns pages over a socket; `make compare` compares its large answers with other schemas on the same server.
fn postgres_goals(engine: &str, rows: &[&HistoryRow]) -> Vec<Goal> {
    let pages = rows.iter().filter(|row| row.access == "page" && row.concurrency == 1);
    let places = pages.flat_map(|row| &row.positions).filter(|place| place.position == "first");
    let slowest = places.map(|place| place.median_ms).max_by(f64::total_cmp);
    let disk = rows.first().and_then(|row| row.disk_per_payload);
    vec![
        Goal::at_most(
            format!("{engine}: a first page of 100 in any cell, slowest median"),
            2.0,
            "ms",
            slowest,
        ),
        Goal::at_most(format!("{engine}: disk by payload"), 1.5, "x", disk),
    ]
}

fn log_goals(engine: &str, rows: &[&HistoryRow]) -> Vec<Goal> {
    let largest = |is_chosen: &dyn Fn(&HistoryRow) -> bool, figure: &dyn Fn(&HistoryRow) -> Option<f64>| {
        rows.iter().filter(|row| is_chosen(row)).filter_map(|row| figure(row)).max_by(f64::total_cmp)
    };
    let is_small = |row: &HistoryRow| row.cell.ends_with('s');
    let is_full = |row: &HistoryRow| row.access == "full";
    let is_alone = |row: &HistoryRow| row.concurrency == 1;
    let small = largest(&|row| is_small(row) && is_full(row) && is_alone(row), &|row| Some(row.median_ms));
    let matching = largest(&is_small, &|row| row.bloom_match_ms);
    let large = largest(&|row| !is_small(row) && is_full(row) && is_alone(row), &|row| row.ratio_to_floor);
    let page = largest(&|row| !is_full(row) && is_alone(row), &worst_position_ms);
    let last = rows.iter().map(|row| row.concurrency).max().unwrap_or(1);
    let crowd = largest(&|row| is_full(row) && row.concurrency == last, &|row| row.ratio_to_one);
    vec![
        Goal::at_most(format!("{engine}: 1ws and 1ms in full, slowest"), 1.0, "ms", small),
        Goal::at_most(format!("{engine}: matching a filter"), 0.3, "ms", matching),
        Goal::at_most(format!("{engine}: 1wl to 1mx in full by the copy floor, worst"), 0.8, "x", large),
        Goal::at_most(
            format!("{engine}: a page of 100 in any cell and position, slowest median"),
            0.2,
            "ms",
            page,
        ),
        Goal::at_most(format!("{engine}: {last} queries at once by one, worst cell"), 4.5, "x", crowd),
    ]
}
