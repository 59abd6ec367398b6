//! Rows, tables, plots and goals of `bench store --door waku`.

use serde::Serialize;

use super::{Cell, Measured, floor::Floor};
use crate::{
    measure::{ms, ratio, rounded},
    report::{Bars, Curves, Goal, Plot, Report, Table, number, optional},
};

/// A row of JSON: a cell.
#[derive(Clone, Debug, Serialize)]
struct DoorRow {
    engine: &'static str,
    /// `door`; floors are `floor`.
    measure: &'static str,
    door: &'static str,
    messages: u64,
    /// `hot` or `absent`.
    topic: &'static str,
    page: u64,
    users: usize,
    seconds: f64,
    pages: u64,
    pages_per_s: f64,
    messages_per_s: f64,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    errors: u64,
    /// Processor time of a page.
    server_us_per_page: Option<f64>,
    client_us_per_page: Option<f64>,
}

/// A row of JSON: a floor.
#[derive(Clone, Debug, Serialize)]
struct FloorRow {
    engine: &'static str,
    measure: &'static str,
    name: &'static str,
    page: u64,
    users: usize,
    answer_bytes: usize,
    pages_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// The server's rate divided by this one.
    store_by_floor: Option<f64>,
}

/// The rates of nwaku 0.35.1 on SQLite with a million messages on a machine with two cores: page, users, pages a second,
/// and times in milliseconds (50th, 95th, 99th percentile).
const NWAKU: [(u64, usize, f64, [f64; 3]); 6] = [
    (20, 1, 557.0, [1.72, 2.37, 3.27]),
    (20, 10, 917.0, [10.6, 14.2, 16.5]),
    (20, 25, 1_019.0, [22.8, 37.8, 40.7]),
    (100, 1, 110.0, [8.70, 11.6, 12.5]),
    (100, 10, 122.0, [78.3, 102.0, 104.0]),
    (100, 25, 126.0, [194.0, 229.0, 249.0]),
];

const NOTES: [&str; 4] = [
    "Clients and server share this machine. Every user is a node with a connection of its own, and asks for the next page as \
     soon as the one before is decoded; times are those of whole pages as the client sees them. Each begins at the newest \
     message of the hot topic and follows the cursor.",
    "The archive holds payloads of 1.4 kB; three of four messages have the hot topic, the others one of a thousand. Before \
     the clock runs, the newest pages are compared hash by hash with the stored messages.",
    "nwaku's figures are of another machine with two cores, where its one thread took 50 to 80 us for a message.",
    "Floors, in the same run: the same bytes by request and answer over plain TCP, and over the node's encrypted connections \
     from a service with a constant answer, with client and service in one process.",
];

fn row(measured: &Measured, cell: &Cell) -> DoorRow {
    let (asked, pages) = (&cell.asked, cell.asked.pages.len());
    let by_page = |worked: std::time::Duration| ratio(ms(worked) * 1e3, pages as f64);
    DoorRow {
        engine: measured.engine,
        measure: "door",
        door: "waku",
        messages: measured.messages,
        topic: if cell.is_absent { "absent" } else { "hot" },
        page: cell.page,
        users: cell.users,
        seconds: rounded(asked.seconds),
        pages,
        pages_per_s: rounded(pages as f64 / asked.seconds),
        messages_per_s: rounded(asked.messages as f64 / asked.seconds),
        p50_ms: rounded(asked.pages.median_ms()),
        p95_ms: rounded(asked.pages.p95_ms()),
        p99_ms: rounded(asked.pages.p99_ms()),
        max_ms: rounded(asked.pages.max_ms()),
        errors: asked.errors,
        server_us_per_page: asked.server_worked.and_then(by_page),
        client_us_per_page: asked.worked.and_then(by_page),
    }
}

fn floor_row(engine: &'static str, floor: &Floor, rows: &[DoorRow]) -> FloorRow {
    let pages_per_s = rounded(floor.times.len() as f64 / floor.seconds);
    let is_same = |row: &&DoorRow| row.topic == "hot" && row.page == floor.page && row.users == floor.users;
    let reached = rows.iter().find(is_same).map(|row| row.pages_per_s);
    FloorRow {
        engine,
        measure: "floor",
        name: floor.name,
        page: floor.page,
        users: floor.users,
        answer_bytes: floor.answer_bytes,
        pages_per_s,
        p50_ms: rounded(floor.times.median_ms()),
        p99_ms: rounded(floor.times.p99_ms()),
        store_by_floor: reached.and_then(|reached| ratio(reached, pages_per_s)),
    }
}

/// Adds the results of one engine to the report.
pub(super) fn present(measured: &Measured, report: &mut Report) -> anyhow::Result<()> {
    let engine = measured.engine;
    let rows: Vec<DoorRow> = measured.cells.iter().map(|cell| row(measured, cell)).collect();
    let floors: Vec<FloorRow> = measured.floors.iter().map(|floor| floor_row(engine, floor, &rows)).collect();
    report.add_rows(&rows)?;
    report.add_rows(&floors)?;
    report.tables.push(cell_table(measured, &rows));
    report.tables.push(floor_table(engine, &floors));
    report.plots.push(rate_bars(engine, &rows));
    report.plots.push(curves(measured));
    report.goals.extend(goals(engine, &rows));
    if let Some(bytes) = measured.memory_bytes {
        let mb = number(bytes as f64 / 1e6);
        report.notes.push(format!("{engine}: private memory of the server after the load: {mb} MB."));
    }
    if let Some(first_error) = measured.cells.iter().find_map(|cell| cell.asked.first_error.as_ref()) {
        report.notes.push(format!("{engine}: the first error of a user: {first_error}"));
    }
    Ok(())
}

/// How to read the figures, and nwaku's time for a topic without messages.
pub(super) fn note(report: &mut Report) {
    report.notes.extend(NOTES.map(str::to_owned));
    let absent = "A topic without messages took nwaku 0.35.1 on SQLite 38.2 s for one query among a million messages of \
                  others, and refused connections meanwhile; on PostgreSQL, with 100,000 messages, 0.80 ms.";
    report.notes.push(absent.to_owned());
    report.note_debug_build();
}

fn nwaku(row: &DoorRow) -> Option<(f64, [f64; 3])> {
    let is_same =
        |(page, users, _, _): &&(u64, usize, f64, [f64; 3])| *page == row.page && *users == row.users;
    let found = NWAKU.iter().find(is_same)?;
    (row.topic == "hot").then_some((found.2, found.3))
}

fn cell_table(measured: &Measured, rows: &[DoorRow]) -> Table {
    let columns = [
        "topic",
        "page",
        "users",
        "pages/s",
        "messages/s",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "longest ms",
        "errors",
        "server us/page",
        "client us/page",
        "nwaku pages/s",
        "nwaku p99 ms",
    ];
    let messages = number(measured.messages as f64);
    let title = format!("Store queries over libp2p, {messages} messages ({})", measured.engine);
    let mut table = Table::new(title, &columns).explain(&[
        ("topic", "hot: three of four messages have it; absent: none has it"),
        ("server us/page", "processor time of the server, divided by pages"),
        ("client us/page", "processor time of the clients, divided by pages"),
        ("nwaku pages/s", "nwaku 0.35.1 on SQLite with the same load on another machine"),
        ("nwaku p99 ms", "nwaku 0.35.1 on SQLite with the same load on another machine"),
    ]);
    for row in rows {
        let nwaku = nwaku(row);
        table.add([
            row.topic.to_owned(),
            row.page.to_string(),
            row.users.to_string(),
            number(row.pages_per_s),
            number(row.messages_per_s),
            number(row.p50_ms),
            number(row.p95_ms),
            number(row.p99_ms),
            number(row.max_ms),
            row.errors.to_string(),
            optional(row.server_us_per_page),
            optional(row.client_us_per_page),
            optional(nwaku.map(|(rate, _)| rate)),
            optional(nwaku.map(|(_, [_, _, p99])| p99)),
        ]);
    }
    table
}

fn floor_table(engine: &str, floors: &[FloorRow]) -> Table {
    let columns = ["floor", "page", "users", "bytes", "pages/s", "p50 ms", "p99 ms", "store by floor"];
    let mut table = Table::new(format!("The same answers without a store ({engine})"), &columns).explain(&[
        ("floor", "how a constant answer of the same size is sent"),
        ("bytes", "bytes of an answer"),
        ("store by floor", "pages/s of the store divided by pages/s here"),
    ]);
    for floor in floors {
        table.add([
            floor.name.to_owned(),
            floor.page.to_string(),
            floor.users.to_string(),
            number(floor.answer_bytes as f64),
            number(floor.pages_per_s),
            number(floor.p50_ms),
            number(floor.p99_ms),
            optional(floor.store_by_floor),
        ]);
    }
    table
}

fn rate_bars(engine: &str, rows: &[DoorRow]) -> Plot {
    let hot = || rows.iter().filter(|row| row.topic == "hot");
    Plot::Bars(Bars {
        title: format!("Pages a second over libp2p ({engine})"),
        unit: "/s",
        groups: hot().map(|row| format!("page {}, {} users", row.page, row.users)).collect(),
        series: vec![
            ("restante".to_owned(), hot().map(|row| Some(row.pages_per_s)).collect()),
            ("nwaku 0.35.1, SQLite".to_owned(), hot().map(|row| nwaku(row).map(|(rate, _)| rate)).collect()),
        ],
    })
}

fn curves(measured: &Measured) -> Plot {
    let users_most = measured.cells.iter().map(|cell| cell.users).max().unwrap_or(0);
    let most = measured.cells.iter().filter(|cell| cell.users == users_most);
    let name = |cell: &Cell| {
        let topic = if cell.is_absent { "absent" } else { "hot" };
        format!("page {}, {topic}", cell.page)
    };
    Plot::Curves(Curves {
        title: format!("Share of pages answered within a time, {users_most} users ({})", measured.engine),
        unit: "ms",
        lines: most.map(|cell| (name(cell), cell.asked.pages.curve())).collect(),
    })
}

fn goals(engine: &str, rows: &[DoorRow]) -> Vec<Goal> {
    let users_most = rows.iter().map(|row| row.users).max().unwrap_or(0);
    let of = |page: u64, topic: &str| {
        rows.iter().find(|row| row.users == users_most && row.page == page && row.topic == topic)
    };
    let users = format!("{users_most} users");
    let errors: u64 = rows.iter().map(|row| row.errors).sum();
    let p99 = |page, topic| of(page, topic).map(|row| row.p99_ms);
    vec![
        Goal::at_least(
            format!("{engine}, page 100, {users}"),
            1_500.0,
            "pages/s",
            of(100, "hot").map(|row| row.pages_per_s),
        ),
        Goal::at_most(format!("{engine}, page 100, {users}: p99"), 50.0, "ms", p99(100, "hot")),
        Goal::at_most(format!("{engine}, page 20, {users}: p99"), 20.0, "ms", p99(20, "hot")),
        Goal::at_most(
            format!("{engine}, a topic without messages, {users}: p99"),
            5.0,
            "ms",
            p99(100, "absent").into_iter().chain(p99(20, "absent")).max_by(f64::total_cmp),
        ),
        Goal::none(format!("{engine}: queries that failed"), errors),
    ]
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;
    use crate::{machine::Machine, measure::Latencies, peers::users::Asked, report::assert_explained};

    fn cell(users: usize, page: u64, is_absent: bool, page_ms: f64) -> Cell {
        let mut pages = Latencies::default();
        (0..2_000).for_each(|_| pages.record_ms(page_ms));
        let messages = if is_absent { 0 } else { 2_000 * page };
        let (worked, server_worked) = (Some(Duration::from_millis(200)), Some(Duration::from_secs(1)));
        let asked = Asked { pages, messages, seconds: 1.0, worked, server_worked, ..Asked::default() };
        Cell { users, page, is_absent, asked }
    }

    #[test]
    fn cells_are_compared_with_nwaku_and_floors_and_judged() {
        let mut times = Latencies::default();
        (0..4_000).for_each(|_| times.record_ms(1.0));
        let name = "plain TCP";
        let floor = Floor { name, users: 25, page: 100, answer_bytes: 150_000, times, seconds: 1.0 };
        let cells = vec![cell(25, 20, false, 30.0), cell(25, 100, false, 10.0), cell(25, 100, true, 1.0)];
        let measured = Measured {
            engine: "log",
            messages: 10,
            cells,
            floors: vec![floor],
            memory_bytes: Some(1_000_000),
        };
        let mut report = Report::new("store", "Test.", Machine::look(Path::new(".")));
        present(&measured, &mut report).unwrap();
        let verdicts: Vec<_> = report.goals.iter().map(|goal| goal.is_met).collect();
        assert_eq!(verdicts, [Some(true), Some(true), Some(false), Some(true), Some(true)]);
        note(&mut report);
        assert_explained(&report.tables);
        assert_eq!((report.rows.len(), report.tables.len(), report.plots.len()), (4, 2, 2));
        assert_eq!(report.rows[1]["server_us_per_page"], 500.0);
        assert_eq!(report.rows[1]["client_us_per_page"], 100.0);
        assert_eq!(report.rows[3]["store_by_floor"], 0.5);
        let rows: Vec<DoorRow> = measured.cells.iter().map(|cell| row(&measured, cell)).collect();
        assert_eq!(nwaku(&rows[1]).unwrap().0, 126.0);
        assert!(nwaku(&rows[2]).is_none());
    }
}
