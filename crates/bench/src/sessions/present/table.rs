//! The tables of sessions: operations, memory, counts.

use super::super::{Measured, memory::MemoryRow, table::TableRow};
use crate::{
    measure::ratio,
    report::{Bars, Goal, Plot, Report, Table, number, optional},
};

/// Cache misses of a look-up.
const MISSES_GOAL: f64 = 1.5;
/// The rate of two threads divided by that of one.
const THREADS_GOAL: f64 = 1.0;
/// Counting in the largest table, and that divided by counting in the smallest.
const COUNTS_NS_GOAL: f64 = 2_000.0;
const COUNTS_RATIO_GOAL: f64 = 3.0;
/// Bytes of a session without info: on average over all fills, and at the worst.
const BYTES_GOAL: f64 = 160.0;
const BYTES_WORST_GOAL: f64 = 220.0;
/// Bytes that a small entry adds to a session.
const ENTRY_BYTES_GOAL: f64 = 24.0;

const OURS: &str = "restante";

/// What the columns of the tables mean.
const LEGEND: &[(&str, &str)] = &[
    ("table", "the measured table of sessions"),
    ("entries", "entries of info of each session"),
    ("1 thread", "ns of an operation"),
    ("2 threads", "elapsed ns divided by the operations of both threads"),
    ("2 by 1", "operations a second of two threads divided by those of one"),
    ("cache miss", "ns of a dependent load from memory, measured before and after"),
    ("misses", "1 thread divided by cache miss"),
    ("bytes", "private memory of a process that holds this table alone, for a session"),
    ("ns", "of an operation"),
    ("average", "bytes of a session over all fills of the table"),
    ("least", "bytes of a session at the best fill"),
    ("worst", "bytes of a session at the worst fill"),
    ("by entry", "bytes that one entry adds to a session"),
];

const NOTES: [&str; 3] = [
    "Table: elapsed ns divided by the operations of all threads, the median of seven rounds of 32,768 operations a thread. Each \
     round measures one thread and then two; a round before warms up. Users are drawn at random, and names and ids are \
     made before the clock runs. Users that open a session have had none for a long time. restante is called through its \
     trait object and copies what it finds.",
    "cache miss: a dependent load in a random cycle through 64 MB, before and after each table. Look-ups of independent users \
     overlap, so one may cost less than that.",
    "bytes: private memory of a process that holds this table alone, divided by its sessions; 13 bytes of user, 11 of resource. \
     With 3 entries: address, kind of connection, carbons. Without info, merge_info adds the first entry.",
];

/// Adds tables, plots and goals; the goals only if the largest table has the size that they are set for.
pub(super) fn present(measured: &Measured, sizes: &[u32], is_full: bool, report: &mut Report) {
    if !measured.table.is_empty() {
        for size in sizes {
            report.tables.push(op_table(&measured.table, u64::from(*size)));
            report.plots.push(Plot::Bars(op_bars(&measured.table, u64::from(*size))));
        }
        report.add_goals(table_goals(&measured.table, sizes), is_full);
    }
    if !measured.memory.is_empty() {
        report.tables.push(memory_table(&measured.memory));
        report.add_goals(memory_goals(&measured.memory), is_full);
    }
    if !measured.counts.is_empty() {
        report.tables.push(counts_table(measured));
        report.add_goals(counts_goals(measured), is_full);
    }
    if !measured.table.is_empty() || !measured.memory.is_empty() {
        report.notes.extend(NOTES.map(str::to_owned));
    }
}

fn find<'a>(rows: &'a [TableRow], key: (&str, u64, usize, usize, &str)) -> Option<&'a TableRow> {
    rows.iter().find(|row| (row.table, row.sessions, row.info_entries, row.threads, row.op) == key)
}

/// All operations of all tables of one size.
pub fn op_table(rows: &[TableRow], sessions: u64) -> Table {
    let title = format!("Table of {} sessions: operations (ns)", number(sessions as f64));
    let columns =
        ["table", "entries", "op", "1 thread", "2 threads", "2 by 1", "cache miss", "misses", "bytes"];
    let mut table = Table::new(title, &columns).explain(LEGEND);
    let of_size = rows.iter().filter(|row| row.sessions == sessions && row.threads == 1);
    for row in of_size {
        let two = find(rows, (row.table, sessions, row.info_entries, 2, row.op));
        let two = two.map(|two| two.ns_per_op);
        table.add([
            row.table.to_owned(),
            row.info_entries.to_string(),
            row.op.to_owned(),
            number(row.ns_per_op),
            optional(two),
            optional(two.and_then(|two| ratio(row.ns_per_op, two))),
            number(row.cache_miss_ns),
            optional(ratio(row.ns_per_op, row.cache_miss_ns)),
            optional(row.bytes_per_session),
        ]);
    }
    table
}

const PLOTTED: [&str; 5] = ["by_user", "by_address", "merge_info", "open", "close"];

/// The times of all tables of one size, on one thread.
pub fn op_bars(rows: &[TableRow], sessions: u64) -> Bars {
    let mut tables: Vec<&'static str> = rows.iter().map(|row| row.table).collect();
    tables.dedup();
    tables.sort_unstable();
    tables.dedup();
    let of_table = |table: &&'static str| {
        let ns = |op| find(rows, (table, sessions, 3, 1, op)).map(|row| row.ns_per_op);
        ((*table).to_owned(), PLOTTED.map(ns).to_vec())
    };
    let series = tables.iter().map(of_table).collect();
    Bars {
        title: format!("{} sessions with 3 entries, one thread", number(sessions as f64)),
        unit: "ns",
        groups: PLOTTED.map(str::to_owned).to_vec(),
        series,
    }
}

/// Look-ups of the largest table, and two threads at every size.
fn table_goals(rows: &[TableRow], sizes: &[u32]) -> Vec<Goal> {
    let mut goals = Vec::new();
    let largest = sizes.last().copied().unwrap_or_default();
    let of_largest = |entries| find(rows, (OURS, u64::from(largest), entries, 1, "by_user"));
    for entries in [0, 3] {
        let found = of_largest(entries);
        let misses = found.and_then(|row| ratio(row.ns_per_op, row.cache_miss_ns));
        let what = format!("by_user at {}, {entries} entries: cache misses", number(f64::from(largest)));
        goals.push(Goal::at_most(what, MISSES_GOAL, "", misses));
    }
    for size in sizes {
        goals.extend(thread_goals(rows, *size));
    }
    goals
}

/// Both mixes, with three entries: operations a second of two threads divided by those of one.
fn thread_goals(rows: &[TableRow], size: u32) -> Vec<Goal> {
    let mut goals = Vec::new();
    for row in rows {
        let is_mix = row.op.starts_with("90%");
        let is_ours =
            (row.table, row.sessions, row.info_entries, row.threads) == (OURS, u64::from(size), 3, 1);
        if !is_mix || !is_ours {
            continue;
        }
        let two = find(rows, (OURS, row.sessions, 3, 2, row.op));
        let gain = two.and_then(|two| ratio(row.ns_per_op, two.ns_per_op));
        let what = format!("{} at {}: two threads by one", row.op, number(f64::from(size)));
        goals.push(Goal::at_least(what, THREADS_GOAL, "", gain));
    }
    goals
}

/// Average, least and most bytes over all fills.
fn spread(rows: &[MemoryRow], table: &str, entries: usize) -> Option<(f64, f64, f64)> {
    let of_table = rows.iter().filter(|row| (row.table, row.info_entries) == (table, entries));
    let bytes: Vec<f64> = of_table.map(|row| row.bytes_per_session).collect();
    if bytes.is_empty() {
        return None;
    }
    let average = bytes.iter().sum::<f64>() / bytes.len() as f64;
    let least = bytes.iter().copied().fold(f64::MAX, f64::min);
    let most = bytes.iter().copied().fold(0.0, f64::max);
    Some((average, least, most))
}

/// What an entry adds to a session, on average.
fn entry_bytes(rows: &[MemoryRow], table: &str) -> Option<f64> {
    let (with, ..) = spread(rows, table, 3)?;
    let (without, ..) = spread(rows, table, 0)?;
    Some((with - without).max(0.0) / 3.0)
}

/// Bytes per session over all fills.
pub fn memory_table(rows: &[MemoryRow]) -> Table {
    let least = rows.iter().map(|row| row.sessions).min().unwrap_or_default();
    let most = rows.iter().map(|row| row.sessions).max().unwrap_or_default();
    let title =
        format!("Bytes per session, from {} to {} sessions", number(least as f64), number(most as f64));
    let columns = ["table", "entries", "average", "least", "worst", "by entry"];
    let mut table = Table::new(title, &columns).explain(LEGEND);
    let mut tables: Vec<&str> = rows.iter().map(|row| row.table).collect();
    tables.dedup();
    for name in tables {
        for entries in [0, 3] {
            let Some((average, least, most)) = spread(rows, name, entries) else { continue };
            let entry = if entries > 0 { entry_bytes(rows, name) } else { None };
            table.add([
                name.to_owned(),
                entries.to_string(),
                number(average),
                number(least),
                number(most),
                optional(entry),
            ]);
        }
    }
    table
}

fn memory_goals(rows: &[MemoryRow]) -> [Goal; 3] {
    let without = spread(rows, OURS, 0);
    [
        Goal::at_most(
            "a session without info, average of all fills",
            BYTES_GOAL,
            "B",
            without.map(|all| all.0),
        ),
        Goal::at_most("a session without info, worst fill", BYTES_WORST_GOAL, "B", without.map(|all| all.2)),
        Goal::at_most("what a small entry adds to a session", ENTRY_BYTES_GOAL, "B", entry_bytes(rows, OURS)),
    ]
}

fn counts_table(measured: &Measured) -> Table {
    let mut table =
        Table::new("Counting sessions and users (ns)", &["table", "sessions", "ns"]).explain(LEGEND);
    for row in &measured.counts {
        table.add([row.table.to_owned(), number(row.sessions as f64), number(row.ns_per_op)]);
    }
    table
}

fn counts_goals(measured: &Measured) -> [Goal; 2] {
    let least = measured.counts.iter().min_by_key(|row| row.sessions);
    let most = measured.counts.iter().max_by_key(|row| row.sessions);
    let has_two = least.map(|row| row.sessions) != most.map(|row| row.sessions);
    let pair = least.zip(most).filter(|_| has_two);
    let grows = pair.and_then(|(least, most)| ratio(most.ns_per_op, least.ns_per_op));
    [
        Goal::at_most("counts in the largest table", COUNTS_NS_GOAL, "ns", most.map(|row| row.ns_per_op)),
        Goal::at_most("counts in the largest table by the smallest", COUNTS_RATIO_GOAL, "", grows),
    ]
}
