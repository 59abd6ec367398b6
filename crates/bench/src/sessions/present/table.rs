//! The tables of sessions: operations, memory, counts.

use super::super::{Measured, memory::MemoryRow, table::TableRow};
use crate::{
    measure::ratio,
    report::{Bars, Goal, Plot, Report, Table, number, optional},
};

/// A look-up by cache misses, and by mnesia's.
const MISSES_GOAL: f64 = 1.5;
const MNESIA_GOAL: f64 = 30.0;
/// Two threads by one.
const THREADS_GOAL: f64 = 1.0;
/// Counting in the largest table, and by that in the smallest.
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
    ("table", "restante, a naive table, 64 locked tables, or Mnesia"),
    ("entries", "entries that are remembered about each session"),
    ("1 thread", "ns of an operation"),
    ("2 threads", "ns of an operation, by both threads together"),
    ("2 by 1", "operations a second of two threads divided by those of one"),
    ("cache miss", "ns of a dependent load from memory, measured before and after"),
    ("misses", "1 thread divided by cache miss"),
    ("bytes", "private memory of a process that holds this table alone, for a session"),
    ("mnesia", "ns of the same operation in Mnesia"),
    ("faster", "mnesia divided by 1 thread"),
    ("processes", "Erlang processes that ask at the same time"),
    ("ns", "of an operation"),
    ("average", "bytes of a session over all fills of the table"),
    ("least", "bytes of a session at the best fill"),
    ("worst", "bytes of a session at the worst fill"),
    ("by entry", "bytes that one entry adds to a session"),
];

const NOTES: [&str; 5] = [
    "Tables: ns of an operation by all threads together, the median of seven rounds of 32,768 operations a thread, in which \
     one and two threads take turns, after a round that warms up. Users are drawn at random, and names and ids are made \
     before the clock runs. Opened are users who have been away for long. restante is asked through its trait as an object \
     and copies what it finds; the other two look at it under their locks, which is less work.",
    "naive: RwLock<HashMap<String, Vec<(String, HashMap<u16, String>)>>>, without ids. 64 shards: 64 of \
     RwLock<hashbrown::HashTable>, foldhash, users and sessions of fixed size inside, what is remembered as fields, names \
     of at most 23 bytes.",
    "cache miss: a dependent load in a random cycle through 64 MB, before and after each table. Look-ups of independent users \
     overlap, so one may cost less than that.",
    "bytes: private memory of a process that holds this table alone, by its sessions; 13 bytes of user, 11 of resource. \
     With 3 entries: address, kind of connection, carbons. Where nothing is remembered, merge_info adds the first entry.",
    "mnesia: dirty_index_read on a ram_copies table of MongooseIM's shape with its two indexes, in one node without \
     replication; open writes and reads back, as MongooseIM does.",
];

/// Adds tables, plots and goals; the goals only if the largest table has the size that they are set for.
pub(super) fn present(measured: &Measured, sizes: &[u32], is_full: bool, report: &mut Report) {
    if !measured.table.is_empty() {
        for size in sizes {
            report.tables.push(op_table(measured, u64::from(*size)));
            report.plots.push(Plot::Bars(op_bars(measured, u64::from(*size))));
        }
        report.add_goals(table_goals(measured, sizes), is_full);
    }
    if !measured.erlang.table.is_empty() {
        report.tables.push(mnesia_table(measured));
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

/// All operations of one size: a row for each, a column for each table and number of threads.
fn op_table(measured: &Measured, sessions: u64) -> Table {
    let title = format!("Table of {} sessions: operations (ns)", number(sessions as f64));
    let columns = [
        "table",
        "entries",
        "op",
        "1 thread",
        "2 threads",
        "2 by 1",
        "cache miss",
        "misses",
        "bytes",
        "mnesia",
        "faster",
    ];
    let mut table = Table::new(title, &columns).explain(LEGEND);
    let of_size = measured.table.iter().filter(|row| row.sessions == sessions && row.threads == 1);
    for row in of_size {
        let two = find(&measured.table, (row.table, sessions, row.info_entries, 2, row.op));
        let two = two.map(|two| two.ns_per_op);
        // Mnesia's sessions have three entries each.
        let mnesia = mnesia_ns(measured, sessions, row.op).filter(|_| row.info_entries == 3);
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
            optional(mnesia),
            optional(mnesia.and_then(|mnesia| ratio(mnesia, row.ns_per_op))),
        ]);
    }
    table
}

fn mnesia_ns(measured: &Measured, sessions: u64, op: &str) -> Option<f64> {
    let mut rows = measured.erlang.table.iter();
    let found = rows.find(|row| (row.sessions, row.threads, row.op.as_str()) == (sessions, 1, op));
    found.map(|row| row.ns_per_op)
}

const PLOTTED: [&str; 5] = ["by_user", "by_address", "merge_info", "open", "close"];

fn op_bars(measured: &Measured, sessions: u64) -> Bars {
    let mut tables: Vec<&'static str> = measured.table.iter().map(|row| row.table).collect();
    tables.dedup();
    tables.sort_unstable();
    tables.dedup();
    let of_table = |table: &&'static str| {
        let ns = |op| find(&measured.table, (table, sessions, 3, 1, op)).map(|row| row.ns_per_op);
        ((*table).to_owned(), PLOTTED.map(ns).to_vec())
    };
    let mut series: Vec<_> = tables.iter().map(of_table).collect();
    if !measured.erlang.table.is_empty() {
        series.push(("mnesia".to_owned(), PLOTTED.map(|op| mnesia_ns(measured, sessions, op)).to_vec()));
    }
    Bars {
        title: format!("{} sessions with 3 entries, one thread", number(sessions as f64)),
        unit: "ns",
        groups: PLOTTED.map(str::to_owned).to_vec(),
        series,
    }
}

/// Look-ups of the largest table, and two threads at every size.
fn table_goals(measured: &Measured, sizes: &[u32]) -> Vec<Goal> {
    let rows = &measured.table;
    let mut goals = Vec::new();
    let largest = sizes.last().copied().unwrap_or_default();
    let of_largest = |entries| find(rows, (OURS, u64::from(largest), entries, 1, "by_user"));
    for entries in [0, 3] {
        let found = of_largest(entries);
        let misses = found.and_then(|row| ratio(row.ns_per_op, row.cache_miss_ns));
        let what = format!("by_user at {}, {entries} entries: cache misses", number(f64::from(largest)));
        goals.push(Goal::at_most(what, MISSES_GOAL, "", misses));
    }
    let mnesia = mnesia_ns(measured, u64::from(largest), "by_user");
    let faster = of_largest(3).zip(mnesia).and_then(|(row, mnesia)| ratio(mnesia, row.ns_per_op));
    let what = format!("by_user at {}, 3 entries: mnesia's time by ours", number(f64::from(largest)));
    goals.push(Goal::at_least(what, MNESIA_GOAL, "", faster));
    for size in sizes {
        goals.extend(thread_goals(rows, *size));
    }
    goals
}

/// Both mixes, with three entries: operations a second of two threads by those of one.
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

fn mnesia_table(measured: &Measured) -> Table {
    let title = format!("Mnesia, Erlang {}", measured.erlang.release);
    let mut table = Table::new(title, &["sessions", "processes", "op", "ns", "bytes"]).explain(LEGEND);
    for row in &measured.erlang.table {
        table.add([
            number(row.sessions as f64),
            row.threads.to_string(),
            row.op.clone(),
            number(row.ns_per_op),
            optional(row.bytes_per_session),
        ]);
    }
    table
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

fn memory_table(rows: &[MemoryRow]) -> Table {
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
    for row in &measured.erlang.counts {
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
