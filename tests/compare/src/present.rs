//! The report: a table of answers, a table of filling, and the goals.

use restante_bench::{Bars, Goal, Plot, Report, Table, number, optional};
use serde::Serialize;

use crate::{
    contender::{Load, Part},
    goals::{self, Contest},
    measure::Figure,
    sides::Measured,
};

/// A row of JSON: its table, and its figures.
#[derive(Serialize)]
#[serde(tag = "table", rename_all = "snake_case")]
enum Row<'a> {
    Answer(&'a Figure),
    Fill(Fill),
    Goal(Judged<'a>),
}

/// How a store was filled.
#[derive(Serialize)]
struct Fill {
    database: &'static str,
    contender: &'static str,
    how: &'static str,
    messages: u64,
    seconds: f64,
    messages_per_second: f64,
    payload_bytes: u64,
    disk_bytes: u64,
    disk_by_payload: f64,
}

/// A goal and its verdict.
#[derive(Serialize)]
struct Judged<'a> {
    what: &'a str,
    goal: &'a str,
    measured: &'a str,
    met: Option<bool>,
}

/// Adds everything about a side to the report.
pub(crate) fn side(measured: &Measured, report: &mut Report) -> anyhow::Result<()> {
    let contests = Contest::all(measured);
    let levels: Vec<usize> = contests.iter().map(|contest| contest.concurrency).collect();
    for concurrency in 1..=levels.iter().copied().max().unwrap_or(1) {
        if levels.contains(&concurrency) {
            report.tables.push(answer_table(measured, &contests, concurrency));
        }
    }
    report.plots.push(cell_bars(measured, &contests));
    let fills: Vec<Fill> = measured.loads.iter().map(|load| fill(measured, load)).collect();
    report.tables.push(fill_table(measured, &fills));
    let goals = goals::goals(measured);
    report.add_rows(&measured.figures.iter().map(Row::Answer).collect::<Vec<_>>())?;
    report.add_rows(&fills.into_iter().map(Row::Fill).collect::<Vec<_>>())?;
    report.add_rows(&goals.iter().map(|goal| Row::Goal(judged(goal))).collect::<Vec<_>>())?;
    report.goals.extend(goals);
    Ok(())
}

fn judged(goal: &Goal) -> Judged<'_> {
    Judged { what: &goal.what, goal: &goal.bound, measured: &goal.measured, met: goal.is_met }
}

fn answer_table(measured: &Measured, contests: &[Contest<'_>], concurrency: usize) -> Table {
    let mut columns = vec!["cell", "query", "answer", "rows", "MB"];
    columns.extend(measured.loads.iter().map(|(name, ..)| *name));
    columns.push("better by ours");
    let database = measured.database.name();
    let title = match concurrency {
        1 => format!("{database}: one question at a time (ms)"),
        _ => format!("{database}: {concurrency} equal questions at once, until the last is answered (ms)"),
    };
    let mut table = Table::new(title, &columns).explain(&[
        ("cell", "1w is a week and 1m a month; s is 3 topics, l 256 topics, x nearly all messages"),
        ("query", "by a list of topics, or by a bloom filter"),
        ("answer", "in full, or a page of a hundred"),
        ("MB", "bytes of the bodies of the answer"),
        ("better by ours", "the time of the fastest rival divided by that of restante on this database"),
    ]);
    for contest in contests.iter().filter(|contest| contest.concurrency == concurrency) {
        // The bit string may return more: rows are those of an exact answer.
        let exact = contest.figures.iter().min_by_key(|figure| figure.rows);
        let (rows, bytes) = exact.map_or((0, 0), |figure| (figure.rows, figure.bytes));
        let mut cells: Vec<String> =
            [contest.cell, contest.query, contest.access].map(str::to_owned).to_vec();
        cells.extend([number(rows as f64), number(bytes as f64 / 1e6)]);
        cells.extend(contest.figures.iter().map(|figure| number(figure.median_ms)));
        cells.push(optional(contest.ratio()));
        table.add(cells);
    }
    table
}

/// Full answers, a group for each cell and kind of query.
fn cell_bars(measured: &Measured, contests: &[Contest<'_>]) -> Plot {
    let mut full: Vec<&Contest<'_>> = contests.iter().filter(|contest| contest.access == "full").collect();
    full.retain(|contest| contest.concurrency == 1);
    let mut series = Vec::new();
    for (name, ..) in &measured.loads {
        let times = full.iter().map(|contest| contest.by(name).map(|figure| figure.median_ms));
        series.push(((*name).to_owned(), times.collect()));
    }
    Plot::Bars(Bars {
        title: format!("{}: all matches, one question at a time", measured.database.name()),
        unit: "ms",
        groups: full.iter().map(|contest| format!("{} by {}", contest.cell, contest.query)).collect(),
        series,
    })
}

fn fill(measured: &Measured, (contender, _, load): &(&'static str, Part, Load)) -> Fill {
    let seconds = load.time.as_secs_f64();
    Fill {
        database: measured.database.name(),
        contender,
        how: load.how,
        messages: load.messages,
        seconds,
        messages_per_second: load.messages as f64 / seconds.max(f64::MIN_POSITIVE),
        payload_bytes: load.payload_bytes,
        disk_bytes: load.disk_bytes,
        disk_by_payload: load.disk_bytes as f64 / load.payload_bytes.max(1) as f64,
    }
}

fn fill_table(measured: &Measured, fills: &[Fill]) -> Table {
    let columns = ["store", "filled by", "s", "messages/s", "disk MB", "disk by payload"];
    let title = format!("{}: filling and space", measured.database.name());
    let mut table = Table::new(title, &columns).explain(&[
        ("filled by", "in bulk, or by durable appends with all indexes live"),
        (
            "disk by payload",
            "bytes of tables, indexes and logs divided by those of the bodies of all messages",
        ),
    ]);
    for fill in fills {
        table.add([
            fill.contender.to_owned(),
            fill.how.to_owned(),
            number(fill.seconds),
            number(fill.messages_per_second),
            number(fill.disk_bytes as f64 / 1e6),
            number(fill.disk_by_payload),
        ]);
    }
    table
}

const NOTES: [&str; 5] = [
    "Medians over rounds that ask every store in turn, after a warm-up; every byte of every answer is read.",
    "Full: restante pages by its cursor, 10,000 rows a page; the rivals return everything in one query. Newest and oldest \
     100: a single page.",
    "Bit string: the mailserver's own method, always by the filter, so it may return more rows than match a list of \
     topics. Topic index: it gets the list of topics that match a bloom filter, without the time of matching. Both are \
     tried with custom and generic plans, and the faster is timed.",
    "Rivals are loaded in bulk, unlike in production; restante's appends are durable ones with all indexes live. \
     Compare their space, not their speed. PostgreSQL's tables are vacuumed and analysed on both sides.",
    "Better by ours: the time of the fastest rival divided by that of restante's engine on this database. Disk by payload: bytes \
     of tables, indexes and logs divided by those of the bodies of all messages.",
];

/// Adds how to read the tables of history.
pub(crate) fn notes(report: &mut Report) {
    report.notes.extend(NOTES.map(str::to_owned));
}
