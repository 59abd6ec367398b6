//! The tables that MongooseIM's authors published with our columns beside them.

use super::super::{
    Measured,
    entries::{IN_A_SESSION, MAPS, MEMORY_SIZES, MERGES, Order, SIZES, seed},
};
use crate::report::{Bars, Goal, Plot, Report, Table, number, optional};

/// At most so many bytes for a small entry.
const ENTRY_BYTES_GOAL: f64 = 24.0;

/// What the columns of the tables mean.
const LEGEND: &[(&str, &str)] = &[
    ("order", "which key is looked for; random is the mean over 15 shuffles"),
    ("merge", "entries of a map and of the changes that are merged into it"),
    ("entries", "entries of a session or map"),
    ("restante", "what restante keeps in a session's entry"),
    (IN_A_SESSION, "the same inside a session, where nothing comes on top of the encoded bytes"),
    ("Vec, scan", "a list that is looked through"),
    ("Vec, sorted", "a list in order, searched by halves"),
    ("HashMap, SipHash", "Rust's hash map as it comes"),
    ("HashMap, foldhash", "Rust's hash map with a faster hash"),
    ("BTreeMap", "Rust's ordered map"),
    ("published keyfind", "MongooseIM's authors on another machine, Erlang 23: lists with lists:keyfind"),
    ("published maps", "the same with maps"),
    ("published proplists", "the same with proplists"),
    ("Erlang keyfind", "this run: lists with lists:keyfind"),
    ("Erlang maps", "this run: maps"),
    ("Erlang proplists", "this run: proplists"),
    ("Erlang orddict", "this run: ordered lists"),
];

const NOTES: [&str; 3] = [
    "Entries: ns of finding one key among so many others; for what keeps keys in order, first and last are those in order. \
     The same key is looked for in a loop, so everything is in the nearest cache and \
     every branch is foreseen: what a map costs at its best. The loop itself is in every figure. What was published are \
     medians.",
    "Merging makes another map and leaves the old one, as Erlang does: 2 into 3 with one key in common, 5 into 10 with two. \
     orddict converts from and to lists, as MongooseIM did.",
    "Bytes per entry: private memory of a process with so many maps that they take megabytes, by their entries. In a \
     session nothing comes on top of the encoded bytes: an address, a short text, and numbers.",
];

pub(super) fn present(measured: &Measured, report: &mut Report) {
    let has_entries = !measured.entries.is_empty();
    if has_entries || !measured.erlang.finds.is_empty() {
        report.tables.push(find_table(measured));
        report.tables.push(merge_table(measured));
        report.notes.extend(NOTES.map(str::to_owned));
    }
    if has_entries {
        report.plots.push(Plot::Bars(find_bars(measured)));
    }
    if !measured.entry_bytes.is_empty() {
        report.tables.push(bytes_table(measured));
    }
    if has_entries {
        report.goals.push(bytes_goal(measured));
    }
}

fn ours(measured: &Measured, map: &str, op: &str, keys: u16, order: Option<Order>) -> Option<f64> {
    let mut rows = measured.entries.iter();
    rows.find(|row| (row.map, row.op, row.keys, row.order) == (map, op, keys, order)).map(|row| row.ns_per_op)
}

fn theirs(measured: &Measured, map: &str, keys: u16, order: Order) -> Option<f64> {
    let mut rows = measured.erlang.finds.iter();
    rows.find(|row| (row.map.as_str(), row.keys, row.order) == (map, keys, order)).map(|row| row.ns_per_op)
}

fn find_table(measured: &Measured) -> Table {
    let mut columns = vec!["keys".to_owned(), "order".to_owned()];
    columns.extend(MAPS.map(str::to_owned));
    columns.extend(seed::NAMES.map(|name| format!("published {name}")));
    columns.extend(seed::NAMES.map(|name| format!("Erlang {name}")));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new("Entries: finding one key (ns)", &columns).explain(LEGEND);
    for keys in SIZES {
        for order in Order::ALL {
            let mut row = vec![keys.to_string(), order.as_str().to_owned()];
            row.extend(MAPS.map(|map| optional(ours(measured, map, "find", keys, Some(order)))));
            let medians = seed::medians(keys, order).map_or([None; 3], |medians| medians.map(Some));
            row.extend(medians.map(optional));
            row.extend(seed::NAMES.map(|map| optional(theirs(measured, map, keys, order))));
            table.add(row);
        }
    }
    table
}

fn merge_table(measured: &Measured) -> Table {
    let mut columns = vec!["merge"];
    columns.extend(MAPS);
    columns.extend(["Erlang orddict", "Erlang maps"]);
    let mut table = Table::new("Entries: merging (ns)", &columns).explain(LEGEND);
    for (keys, changes) in MERGES {
        let mut row = vec![format!("{keys} + {changes}")];
        row.extend(MAPS.map(|map| optional(ours(measured, map, "merge", keys, None))));
        for map in ["orddict", "maps"] {
            let mut rows = measured.erlang.merges.iter();
            let found = rows.find(|row| (row.map.as_str(), row.keys, row.changes) == (map, keys, changes));
            row.push(optional(found.map(|row| row.ns_per_op)));
        }
        table.add(row);
    }
    table
}

fn bytes(measured: &Measured, map: &str, keys: u16) -> Option<f64> {
    let mut rows = measured.entry_bytes.iter();
    rows.find(|row| (row.map, row.keys) == (map, keys)).map(|row| row.bytes_per_entry)
}

fn bytes_table(measured: &Measured) -> Table {
    let mut columns = vec!["entries", IN_A_SESSION];
    columns.extend(MAPS);
    let mut table = Table::new("Entries: bytes per entry", &columns).explain(LEGEND);
    for keys in MEMORY_SIZES {
        let mut row = vec![keys.to_string(), optional(bytes(measured, IN_A_SESSION, keys))];
        row.extend(MAPS.map(|map| optional(bytes(measured, map, keys))));
        table.add(row);
    }
    table
}

fn find_bars(measured: &Measured) -> Bars {
    let of_map = |map: &'static str| {
        let values = SIZES.map(|keys| ours(measured, map, "find", keys, Some(Order::Random)));
        (map.to_owned(), values.to_vec())
    };
    let mut series: Vec<_> = MAPS.into_iter().map(of_map).collect();
    for (place, name) in seed::NAMES.iter().enumerate() {
        let of_size =
            |keys| seed::medians(keys, Order::Random).and_then(|medians| medians.get(place).copied());
        series.push((format!("published {name}"), SIZES.map(of_size).to_vec()));
    }
    Bars {
        title: "Finding one key, in random order".to_owned(),
        unit: "ns",
        groups: SIZES.map(|keys| format!("{} keys", number(f64::from(keys)))).to_vec(),
        series,
    }
}

fn bytes_goal(measured: &Measured) -> Goal {
    let all: Option<Vec<f64>> =
        MEMORY_SIZES.map(|keys| bytes(measured, IN_A_SESSION, keys)).into_iter().collect();
    let most = all.map(|all| all.into_iter().fold(0.0, f64::max));
    Goal::at_most("a small entry, encoded in a session", ENTRY_BYTES_GOAL, "B", most)
}
