//! Tables, plots, goals and notes about sessions.

use restante_bench::{
    Goal, Plot, Report, Table, number, optional,
    sessions::{KEYS, MERGES, Order, bytes_table, find_table, memory_table, merge_table, op_bars, op_table},
};

use super::{Measured, erlang::Erlang};

/// The size that the goal is set for.
const GOAL_SESSIONS: u32 = 1_000_000;
/// The time of a look-up in Mnesia divided by restante's.
const MNESIA_GOAL: f64 = 30.0;
/// Entries of info of Mnesia's sessions.
const MNESIA_ENTRIES: usize = 3;

/// What the columns of the tables mean.
const LEGEND: &[(&str, &str)] = &[
    ("order", "the position of the searched key; random is the mean over 15 shuffles"),
    ("merge", "entries of a map and of the changes that are merged into it"),
    ("keyfind", "Erlang's lists with lists:keyfind"),
    ("maps", "Erlang's maps"),
    ("proplists", "Erlang's lists with proplists"),
    ("orddict", "Erlang's ordered lists, with conversions from and to lists as MongooseIM did"),
    ("processes", "Erlang processes at once"),
    ("ns", "of an operation in Mnesia"),
    ("restante", "ns in restante, for tables with 3 entries of info and as many threads as processes"),
    ("by ours", "ns divided by restante"),
    ("bytes", "of a session in Mnesia"),
];

const NOTES: [&str; 2] = [
    "naive: RwLock<HashMap<String, Vec<(String, HashMap<u16, String>)>>>, without ids. 64 shards: 64 of \
     RwLock<hashbrown::HashTable>, foldhash, users and sessions of fixed size inside, info as fields, names of at most 23 \
     bytes. Both read what they find under their locks; restante copies it.",
    "Mnesia: dirty_index_read on a ram_copies table of MongooseIM's shape with its two indexes, in one node without \
     replication; open writes and reads back, as MongooseIM does.",
];

/// Adds everything about sessions to the report.
pub(super) fn present(measured: &Measured, sizes: &[u32], report: &mut Report) -> anyhow::Result<()> {
    report.add_rows(&measured.maps)?;
    report.add_rows(&measured.map_bytes)?;
    report.add_rows(&measured.table)?;
    report.add_rows(&measured.memory)?;
    report.tables.push(find_table(&measured.maps));
    report.tables.push(merge_table(&measured.maps));
    report.tables.push(bytes_table(&measured.map_bytes));
    for size in sizes {
        report.tables.push(op_table(&measured.table, u64::from(*size)));
        report.plots.push(Plot::Bars(op_bars(&measured.table, u64::from(*size))));
    }
    report.tables.push(memory_table(&measured.memory));
    report.notes.extend(NOTES.map(str::to_owned));
    let Some(erlang) = &measured.erlang else {
        report.notes.push(
            "Erlang: not measured, because there is no escript on the PATH (apt-get install erlang-base \
             erlang-mnesia)."
                .to_owned(),
        );
        return Ok(());
    };
    report.add_rows(&erlang.finds)?;
    report.add_rows(&erlang.merges)?;
    report.add_rows(&erlang.table)?;
    report.add_rows(&erlang.counts)?;
    report.tables.extend([
        erlang_find_table(erlang),
        erlang_merge_table(erlang),
        mnesia_table(measured, erlang),
        counts_table(erlang),
    ]);
    if sizes.last() == Some(&GOAL_SESSIONS) {
        report.goals.push(mnesia_goal(measured, erlang));
    }
    Ok(())
}

fn erlang_find_table(erlang: &Erlang) -> Table {
    const MAPS: [&str; 3] = ["keyfind", "maps", "proplists"];
    let mut columns = vec!["keys", "order"];
    columns.extend(MAPS);
    let title = format!("Erlang {}: finding one key (ns)", erlang.release);
    let mut table = Table::new(title, &columns).explain(LEGEND);
    for keys in KEYS {
        for order in Order::ALL {
            let ns = |map| {
                let mut rows = erlang.finds.iter();
                let found = rows.find(|row| (row.map.as_str(), row.keys, row.order) == (map, keys, order));
                optional(found.map(|row| row.ns_per_op))
            };
            let mut row = vec![keys.to_string(), order.as_str().to_owned()];
            row.extend(MAPS.map(ns));
            table.add(row);
        }
    }
    table
}

fn erlang_merge_table(erlang: &Erlang) -> Table {
    let title = format!("Erlang {}: merging (ns)", erlang.release);
    let mut table = Table::new(title, &["merge", "orddict", "maps"]).explain(LEGEND);
    for (keys, changes) in MERGES {
        let ns = |map| {
            let mut rows = erlang.merges.iter();
            let found = rows.find(|row| (row.map.as_str(), row.keys, row.changes) == (map, keys, changes));
            optional(found.map(|row| row.ns_per_op))
        };
        table.add([format!("{keys} + {changes}"), ns("orddict"), ns("maps")]);
    }
    table
}

/// Nanoseconds of the same operation in restante.
fn ours(measured: &Measured, sessions: u64, threads: usize, op: &str) -> Option<f64> {
    let key = ("restante", sessions, MNESIA_ENTRIES, threads, op);
    let mut rows = measured.table.iter();
    let found = rows.find(|row| (row.table, row.sessions, row.info_entries, row.threads, row.op) == key);
    found.map(|row| row.ns_per_op)
}

fn mnesia_table(measured: &Measured, erlang: &Erlang) -> Table {
    let columns = ["sessions", "processes", "op", "ns", "restante", "by ours", "bytes"];
    let mut table = Table::new(format!("Mnesia, Erlang {}", erlang.release), &columns).explain(LEGEND);
    for row in &erlang.table {
        let ours = ours(measured, row.sessions, row.threads, &row.op);
        table.add([
            number(row.sessions as f64),
            row.threads.to_string(),
            row.op.clone(),
            number(row.ns_per_op),
            optional(ours),
            optional(ours.map(|ours| row.ns_per_op / ours)),
            optional(row.bytes_per_session),
        ]);
    }
    table
}

fn counts_table(erlang: &Erlang) -> Table {
    let title = "Mnesia: counting users by walking through the table (ns)";
    let mut table = Table::new(title, &["sessions", "ns"]).explain(&[("ns", "of one count")]);
    for row in &erlang.counts {
        table.add([number(row.sessions as f64), number(row.ns_per_op)]);
    }
    table
}

fn mnesia_goal(measured: &Measured, erlang: &Erlang) -> Goal {
    let sessions = u64::from(GOAL_SESSIONS);
    let mut rows = erlang.table.iter();
    let mnesia = rows.find(|row| (row.sessions, row.threads, row.op.as_str()) == (sessions, 1, "by_user"));
    let ratio =
        mnesia.zip(ours(measured, sessions, 1, "by_user")).map(|(mnesia, ours)| mnesia.ns_per_op / ours);
    let what = format!("by_user at {}, 3 entries: mnesia's time by ours", number(f64::from(GOAL_SESSIONS)));
    Goal::at_least(what, MNESIA_GOAL, "", ratio)
}
