//! The tables that MongooseIM's authors published, with the figures of this run.

use super::super::{
    Measured,
    entries::{BYTES_SIZES, EntriesRow, EntryBytes, IN_A_SESSION, KEYS, MERGES, Order, seed},
};
use crate::report::{Bars, Goal, Plot, Report, Table, number, optional};

/// Bytes of a small entry.
const ENTRY_BYTES_GOAL: f64 = 24.0;

/// What the columns of the tables mean.
const LEGEND: &[(&str, &str)] = &[
    ("order", "the position of the searched key; random is the mean over 15 shuffles"),
    ("merge", "entries of a map and of the changes that are merged into it"),
    ("entries", "entries of a session or map"),
    ("restante", "the info of a session in restante"),
    (IN_A_SESSION, "the same inside a session, where only the encoded bytes count"),
    ("Vec, scan", "an unsorted list, searched from the front"),
    ("Vec, sorted", "a sorted list with binary search"),
    ("HashMap, SipHash", "Rust's hash map with its default hash"),
    ("HashMap, foldhash", "Rust's hash map with a faster hash"),
    ("BTreeMap", "Rust's ordered map"),
    ("published keyfind", "MongooseIM's authors on another machine, Erlang 23: lists with lists:keyfind"),
    ("published maps", "the same with maps"),
    ("published proplists", "the same with proplists"),
];

const NOTES: [&str; 3] = [
    "Entries: ns of finding one key among so many others; in sorted maps, first and last are those of the sorted keys. \
     The same key is searched in a loop, so all data is in the nearest cache and every branch is predicted: this is the least \
     that a map costs. The loop itself is in every figure. The published figures are medians.",
    "Merging makes a new map and keeps the old one, as Erlang does: 2 into 3 with one key in common, 5 into 10 with two.",
    "Bytes per entry: private memory of a process with so many maps that they take megabytes, divided by their entries. In a \
     session only the encoded bytes count: an address, a short text, and numbers.",
];

pub(super) fn present(measured: &Measured, report: &mut Report) {
    if !measured.entries.is_empty() {
        report.tables.push(find_table(&measured.entries));
        report.tables.push(merge_table(&measured.entries));
        report.notes.extend(NOTES.map(str::to_owned));
        report.plots.push(Plot::Bars(find_bars(&measured.entries)));
    }
    if !measured.entry_bytes.is_empty() {
        report.tables.push(bytes_table(&measured.entry_bytes));
    }
    if !measured.entries.is_empty() {
        report.goals.push(bytes_goal(&measured.entry_bytes));
    }
}

/// The names, each once, in their order.
fn distinct(names: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let mut found = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

fn ns(rows: &[EntriesRow], map: &str, op: &str, keys: u16, order: Option<Order>) -> Option<f64> {
    let mut rows = rows.iter();
    rows.find(|row| (row.map, row.op, row.keys, row.order) == (map, op, keys, order)).map(|row| row.ns_per_op)
}

/// Times of finding a key: a column for each map, and the published ones.
pub fn find_table(rows: &[EntriesRow]) -> Table {
    let maps = distinct(rows.iter().map(|row| row.map));
    let mut columns = vec!["keys".to_owned(), "order".to_owned()];
    columns.extend(maps.iter().map(|map| (*map).to_owned()));
    columns.extend(seed::NAMES.map(|name| format!("published {name}")));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new("Entries: finding one key (ns)", &columns).explain(LEGEND);
    for keys in KEYS {
        for order in Order::ALL {
            let mut row = vec![keys.to_string(), order.as_str().to_owned()];
            row.extend(maps.iter().map(|map| optional(ns(rows, map, "find", keys, Some(order)))));
            let medians = seed::medians(keys, order).map_or([None; 3], |medians| medians.map(Some));
            row.extend(medians.map(optional));
            table.add(row);
        }
    }
    table
}

/// Times of merging: a column for each map.
pub fn merge_table(rows: &[EntriesRow]) -> Table {
    let maps = distinct(rows.iter().map(|row| row.map));
    let mut columns = vec!["merge"];
    columns.extend(&maps);
    let mut table = Table::new("Entries: merging (ns)", &columns).explain(LEGEND);
    for (keys, changes) in MERGES {
        let mut row = vec![format!("{keys} + {changes}")];
        row.extend(maps.iter().map(|map| optional(ns(rows, map, "merge", keys, None))));
        table.add(row);
    }
    table
}

fn bytes(rows: &[EntryBytes], map: &str, keys: u16) -> Option<f64> {
    rows.iter().find(|row| (row.map, row.keys) == (map, keys)).map(|row| row.bytes_per_entry)
}

/// Bytes of an entry: a column for each map.
pub fn bytes_table(rows: &[EntryBytes]) -> Table {
    let maps = distinct(rows.iter().map(|row| row.map));
    let mut columns = vec!["entries"];
    columns.extend(&maps);
    let mut table = Table::new("Entries: bytes per entry", &columns).explain(LEGEND);
    for keys in BYTES_SIZES {
        let mut row = vec![keys.to_string()];
        row.extend(maps.iter().map(|map| optional(bytes(rows, map, keys))));
        table.add(row);
    }
    table
}

fn find_bars(rows: &[EntriesRow]) -> Bars {
    let of_map = |map: &'static str| {
        let values = KEYS.map(|keys| ns(rows, map, "find", keys, Some(Order::Random)));
        (map.to_owned(), values.to_vec())
    };
    let mut series: Vec<_> = distinct(rows.iter().map(|row| row.map)).into_iter().map(of_map).collect();
    for (column, name) in seed::NAMES.iter().enumerate() {
        let of_size =
            |keys| seed::medians(keys, Order::Random).and_then(|medians| medians.get(column).copied());
        series.push((format!("published {name}"), KEYS.map(of_size).to_vec()));
    }
    Bars {
        title: "Finding one key, in random order".to_owned(),
        unit: "ns",
        groups: KEYS.map(|keys| format!("{} keys", number(f64::from(keys)))).to_vec(),
        series,
    }
}

fn bytes_goal(rows: &[EntryBytes]) -> Goal {
    let all: Option<Vec<f64>> = BYTES_SIZES.map(|keys| bytes(rows, IN_A_SESSION, keys)).into_iter().collect();
    let most = all.map(|all| all.into_iter().fold(0.0, f64::max));
    Goal::at_most("a small entry, encoded in a session", ENTRY_BYTES_GOAL, "B", most)
}
