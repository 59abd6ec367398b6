//! Rows, tables, plots and goals of `bench relay`.

use serde::Serialize;

use super::{
    Measured,
    delivery::{RATE, Stretch},
    kill::Killed,
    load::Outcome,
};
use crate::{
    measure::{Latencies, ms, ratio, rounded},
    peers::Role,
    report::{Curves, Goal, Plot, Report, Table, number, optional},
};

/// A row of JSON about a load.
#[derive(Clone, Debug, Serialize)]
struct LoadRow {
    engine: &'static str,
    /// `load`; other rows are `kill` and `delivery`.
    measure: &'static str,
    load: String,
    publishers: u64,
    messages_each: u64,
    payload_bytes: usize,
    rate: Option<f64>,
    /// Whether all publishers receive each message too.
    publishers_subscribed: bool,
    published: u64,
    unpublished: u64,
    retries: u64,
    arrived: u64,
    stored: u64,
    lost: u64,
    publishing_s: f64,
    all_stored_s: Option<f64>,
    messages_per_s: Option<f64>,
    dropped_to_archive: u64,
    dropped_to_peers: u64,
    dropped_by_publishers: u64,
    server_us_per_message: Option<f64>,
}

/// A row of JSON about the killed server.
#[derive(Clone, Debug, Serialize)]
struct KillRow {
    engine: &'static str,
    measure: &'static str,
    published: u64,
    unpublished: u64,
    publishing_s: f64,
    stored_before_kill: u64,
    away_s: f64,
    arrived_after_start: u64,
    complete_after_start_s: Option<f64>,
    complete_after_last_s: Option<f64>,
    stored_by_killed: u64,
    lost_by_killed: u64,
    lost_by_other: u64,
}

/// A row of JSON about a part of the deliveries.
#[derive(Clone, Debug, Serialize)]
struct DeliveryRow {
    engine: &'static str,
    measure: &'static str,
    users: usize,
    seconds: f64,
    messages_per_s: f64,
    published: u64,
    lost: u64,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// The 99th percentile divided by that without users, before and after.
    p99_by_alone: Option<f64>,
    pages_per_s: Option<f64>,
    page_p99_ms: Option<f64>,
    query_errors: Option<u64>,
}

/// Adds the results of one engine to the report.
pub(super) fn present(measured: &Measured, report: &mut Report) -> anyhow::Result<()> {
    present_loads(measured, report)?;
    if let Some(killed) = &measured.killed {
        present_kill(measured.engine, killed, report)?;
    }
    present_delivery(measured, report)
}

/// How to read the figures, and those of others.
pub(super) fn note(report: &mut Report) {
    report.tables.push(others());
    report.notes.extend(NOTES.map(str::to_owned));
    report.note_debug_build();
}

const NOTES: [&str; 5] = [
    "Publishers, subscriber, users and server share this machine. Every publisher is a node with a key and a connection of \
     its own; it remains until the server has everything. A publisher whose queues are full waits and tries again.",
    "Stored messages are counted by reading the server's history with a store client, and compared hash by hash with \
     the published ones.",
    "subscribed: the publishers are in the relay's mesh themselves, as a desktop client's node is, so the server forwards \
     each message to them too.",
    "killed: the second of two servers, which follows the first by --storenode, gets SIGKILL when it has a third of the \
     messages and is started again two seconds later.",
    "delivery: from the call of the publisher's node until the subscriber's node had the message, through the \
     server. The users page back from the newest message in pages of 100, in a process of the lowest priority: real users \
     have machines of their own, and only their cost for the server counts.",
];

/// The same load on other servers: as published, or measured with the programs on a machine with two cores.
fn others() -> Table {
    let columns = ["server", "publishing", "stored of 9,000", "time"];
    let mut table =
        Table::new("The same load on other servers (30 publishers, 300 messages of 1.4 kB)", &columns)
            .explain(&[
                ("server", "published by nwaku's authors, or measured on another machine with two cores"),
                ("publishing", "how fast, in messages a second"),
                ("stored of 9,000", "messages that were in its history at the end"),
                ("time", "until all were stored"),
            ]);
    for cells in [
        ["nwaku, its authors' laptop", "at once", "8,997", "38.8 s (232/s)"],
        ["nwaku 0.35.1, SQLite", "burst, publishers stay", "9,000", "about 4 s"],
        ["nwaku 0.35.1, SQLite", "burst, publishers leave after 6 s", "2,611 to 2,797", "-"],
        ["nwaku 0.35.1, SQLite", "298/s and 979/s", "9,000", "-"],
        ["go-waku 0.10.0, SQLite", "burst", "5,161 to 6,016", "-"],
        ["go-waku 0.10.0, SQLite", "296/s", "9,000", "-"],
        ["go-waku 0.10.0, SQLite", "867/s", "8,980", "-"],
    ] {
        table.add(cells.map(str::to_owned));
    }
    table
}

fn load_row(engine: &'static str, outcome: &Outcome) -> LoadRow {
    let (load, published) = (outcome.load, &outcome.published);
    let all_stored_s = outcome.all_stored.map(|time| rounded(time.as_secs_f64()));
    let count = published.hashes.len() as f64;
    LoadRow {
        engine,
        measure: "load",
        load: load.name(),
        publishers: load.publishers,
        messages_each: load.messages_each,
        payload_bytes: load.payload_bytes,
        rate: load.rate,
        publishers_subscribed: load.role == Role::Relay,
        published: published.hashes.len() as u64,
        unpublished: published.failures(),
        retries: published.retries,
        arrived: outcome.arrived,
        stored: outcome.stored,
        lost: outcome.lost,
        publishing_s: rounded(outcome.publishing.as_secs_f64()),
        all_stored_s,
        messages_per_s: all_stored_s.and_then(|seconds| ratio(outcome.stored as f64, seconds)),
        dropped_to_archive: outcome.dropped_to_archive,
        dropped_to_peers: outcome.dropped_to_peers,
        dropped_by_publishers: outcome.dropped_by_publishers,
        server_us_per_message: outcome.worked.and_then(|time| ratio(ms(time) * 1e3, count)),
    }
}

fn present_loads(measured: &Measured, report: &mut Report) -> anyhow::Result<()> {
    if measured.outcomes.is_empty() {
        return Ok(());
    }
    let engine = measured.engine;
    let rows: Vec<LoadRow> = measured.outcomes.iter().map(|outcome| load_row(engine, outcome)).collect();
    report.add_rows(&rows)?;
    report.tables.push(load_table(engine, &rows));
    report.tables.push(queue_table(engine, &rows));
    for row in &rows {
        let what = format!("{engine}, {}", row.load);
        let expected = (row.publishers * row.messages_each) as f64;
        let goal = format!("{what}: messages stored");
        let stored = Some(row.stored.min(row.published) as f64);
        report.goals.push(Goal::at_least(goal, expected, "", stored).at_any_size());
        report.goals.push(Goal::none(format!("{what}: messages lost"), row.lost));
    }
    for outcome in &measured.outcomes {
        for (why, count) in &outcome.published.failed {
            let load = outcome.load.name();
            report.notes.push(format!("{engine}, {load}: {count} messages were not published: {why}"));
        }
    }
    Ok(())
}

fn load_table(engine: &str, rows: &[LoadRow]) -> Table {
    let columns = [
        "load",
        "published",
        "arrived",
        "stored",
        "lost",
        "publishing s",
        "all stored s",
        "messages/s",
        "server us/message",
    ];
    let mut table = Table::new(format!("Published by relay ({engine})"), &columns).explain(&[
        (
            "load",
            "publishers x messages of each, and how fast; subscribed: the publishers get all messages, too",
        ),
        ("arrived", "messages that the server received by relay"),
        ("publishing s", "from the first publish to the last"),
        ("all stored s", "from the first publish until the server had counted all as durable"),
        ("messages/s", "messages stored, divided by all stored s"),
        ("server us/message", "processor time of the server, divided by messages"),
    ]);
    for row in rows {
        table.add([
            row.load.clone(),
            number(row.published as f64),
            number(row.arrived as f64),
            number(row.stored as f64),
            number(row.lost as f64),
            number(row.publishing_s),
            optional(row.all_stored_s),
            optional(row.messages_per_s),
            optional(row.server_us_per_message),
        ]);
    }
    table
}

fn queue_table(engine: &str, rows: &[LoadRow]) -> Table {
    let columns = [
        "load",
        "not published",
        "publishers' retries",
        "dropped by publishers",
        "dropped before the archive",
        "dropped to slow peers",
    ];
    let mut table = Table::new(format!("Queues ({engine})"), &columns).explain(&[
        ("load", "as above"),
        ("not published", "a publisher gave up"),
        ("publishers' retries", "a publisher's queues were full, and it tried again"),
        ("dropped by publishers", "messages that a publisher's node did not send to a slow peer"),
        ("dropped before the archive", "messages that did not fit into the server's queue"),
        ("dropped to slow peers", "messages that the server did not pass on to a slow peer"),
    ]);
    for row in rows {
        table.add([
            row.load.clone(),
            number(row.unpublished as f64),
            number(row.retries as f64),
            number(row.dropped_by_publishers as f64),
            number(row.dropped_to_archive as f64),
            number(row.dropped_to_peers as f64),
        ]);
    }
    table
}

fn present_kill(engine: &'static str, killed: &Killed, report: &mut Report) -> anyhow::Result<()> {
    let seconds = |time: std::time::Duration| rounded(time.as_secs_f64());
    let row = KillRow {
        engine,
        measure: "kill",
        published: killed.published.hashes.len() as u64,
        unpublished: killed.published.failures(),
        publishing_s: seconds(killed.publishing),
        stored_before_kill: killed.stored_before,
        away_s: seconds(killed.away),
        arrived_after_start: killed.arrived_after,
        complete_after_start_s: killed.complete_after_start.map(seconds),
        complete_after_last_s: killed.complete_after_last.map(seconds),
        stored_by_killed: killed.stored_second,
        lost_by_killed: killed.lost_second,
        lost_by_other: killed.lost_first,
    };
    report.add_rows(std::slice::from_ref(&row))?;
    let load = killed.load.name();
    let mut table =
        Table::new(format!("A server killed and started again, {load} ({engine})"), &["what", "value"]);
    for (what, value) in [
        ("published", Some(row.published as f64)),
        ("not published", Some(row.unpublished as f64)),
        ("publishing, s", Some(row.publishing_s)),
        ("stored by it when it was killed", Some(row.stored_before_kill as f64)),
        ("away until healthy again, s", Some(row.away_s)),
        ("came by relay after its start", Some(row.arrived_after_start as f64)),
        ("complete after its start, s", row.complete_after_start_s),
        ("complete after the last was published, s", row.complete_after_last_s),
        ("stored by it at the end", Some(row.stored_by_killed as f64)),
        ("lost by it", Some(row.lost_by_killed as f64)),
        ("lost by the other", Some(row.lost_by_other as f64)),
    ] {
        table.add([what.to_owned(), optional(value)]);
    }
    report.tables.push(table);
    let expected = killed.load.messages() as f64;
    let what = format!("{engine}, killed and started again: messages stored after its sync");
    let stored = row.stored_by_killed.min(row.published) as f64;
    report.goals.push(Goal::at_least(what, expected, "", Some(stored)).at_any_size());
    let what = format!("{engine}, killed and started again: messages lost by both");
    report.goals.push(Goal::none(what, row.lost_by_killed.max(row.lost_by_other)));
    Ok(())
}

/// The 99th percentile without users, over all such parts.
fn alone_ms(stretches: &[Stretch]) -> Option<f64> {
    let mut times = Latencies::default();
    for stretch in stretches.iter().filter(|stretch| stretch.users == 0) {
        times.add(&stretch.times);
    }
    (times.len() > 0).then(|| times.p99_ms())
}

fn delivery_row(engine: &'static str, stretch: &Stretch, alone_ms: Option<f64>) -> DeliveryRow {
    let times = &stretch.times;
    let by_alone = alone_ms.and_then(|alone| ratio(times.p99_ms(), alone));
    DeliveryRow {
        engine,
        measure: "delivery",
        users: stretch.users,
        seconds: rounded(stretch.seconds),
        messages_per_s: RATE,
        published: stretch.published,
        lost: stretch.lost,
        p50_ms: rounded(times.median_ms()),
        p95_ms: rounded(times.p95_ms()),
        p99_ms: rounded(times.p99_ms()),
        max_ms: rounded(times.max_ms()),
        p99_by_alone: by_alone.filter(|_| stretch.users > 0),
        pages_per_s: stretch.summary.as_ref().map(|summary| summary.pages_per_s),
        page_p99_ms: stretch.summary.as_ref().map(|summary| summary.p99_ms),
        query_errors: stretch.summary.as_ref().map(|summary| summary.errors),
    }
}

fn present_delivery(measured: &Measured, report: &mut Report) -> anyhow::Result<()> {
    if measured.stretches.is_empty() {
        return Ok(());
    }
    let (engine, alone) = (measured.engine, alone_ms(&measured.stretches));
    let rows: Vec<DeliveryRow> =
        measured.stretches.iter().map(|stretch| delivery_row(engine, stretch, alone)).collect();
    report.add_rows(&rows)?;
    report.tables.push(delivery_table(engine, &rows));
    for row in rows.iter().filter(|row| row.users > 0) {
        let what = format!("{engine}, delivery p99 with {} users by that without", row.users);
        report.goals.push(Goal::at_most(what, 2.0, "", row.p99_by_alone));
        let what = format!("{engine}: queries that failed meanwhile");
        let errors = row.query_errors.map(|errors| errors as f64);
        report.goals.push(Goal::at_most(what, 0.0, "", errors).at_any_size());
    }
    let lost: u64 = rows.iter().map(|row| row.lost).sum();
    let what = format!("{engine}: messages that were not delivered");
    report.goals.push(Goal::none(what, lost));
    let names = ["before", "with users", "after"];
    let lines = names.into_iter().zip(&measured.stretches);
    report.plots.push(Plot::Curves(Curves {
        title: format!("Share of messages delivered within a time ({engine})"),
        unit: "ms",
        lines: lines.map(|(name, stretch)| (name.to_owned(), stretch.times.curve())).collect(),
    }));
    for first_error in
        measured.stretches.iter().filter_map(|stretch| stretch.summary.as_ref()?.first_error.as_ref())
    {
        report.notes.push(format!("{engine}: the users' first error: {first_error}"));
    }
    Ok(())
}

fn delivery_table(engine: &str, rows: &[DeliveryRow]) -> Table {
    let columns = [
        "users",
        "published",
        "lost",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "longest ms",
        "p99 by alone",
        "pages/s",
        "page p99 ms",
    ];
    let title = format!("Delivery at {RATE} messages a second ({engine})");
    let mut table = Table::new(title, &columns).explain(&[
        ("lost", "messages that the subscriber did not get"),
        ("p99 by alone", "p99 ms divided by that without users, before and after"),
        ("pages/s", "pages that the users got"),
        ("page p99 ms", "99 % of the users' pages took at most this long"),
    ]);
    for row in rows {
        table.add([
            row.users.to_string(),
            number(row.published as f64),
            number(row.lost as f64),
            number(row.p50_ms),
            number(row.p95_ms),
            number(row.p99_ms),
            number(row.max_ms),
            optional(row.p99_by_alone),
            optional(row.pages_per_s),
            optional(row.page_p99_ms),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use restante_core::MessageHash;

    use super::*;
    use crate::{
        machine::Machine,
        peers::users::Summary,
        relay::load::{Load, Published},
        report::assert_explained,
    };

    const LOAD: Load =
        Load { publishers: 2, messages_each: 3, payload_bytes: 1_400, rate: None, role: Role::Publisher };

    fn published(count: u8) -> Published {
        let hashes = (0..count).map(|number| MessageHash([number; 32])).collect();
        let mut published = Published { hashes, ..Published::default() };
        if count < 6 {
            published.failed.insert("no peer".to_owned(), u64::from(6 - count));
        }
        published
    }

    fn outcome(count: u8, stored: u64) -> Outcome {
        Outcome {
            load: LOAD,
            published: published(count),
            publishing: Duration::from_secs(1),
            all_stored: (stored == 6).then_some(Duration::from_secs(2)),
            arrived: 6,
            stored,
            lost: u64::from(count) - stored,
            dropped_to_archive: 0,
            dropped_to_peers: 1,
            dropped_by_publishers: 0,
            worked: Some(Duration::from_millis(6)),
        }
    }

    fn killed(stored: u64) -> Killed {
        Killed {
            load: LOAD,
            published: published(6),
            publishing: Duration::from_secs(1),
            lost_first: 0,
            stored_before: 2,
            away: Duration::from_secs(2),
            arrived_after: 1,
            complete_after_start: (stored == 6).then_some(Duration::from_secs(3)),
            complete_after_last: (stored == 6).then_some(Duration::from_secs(1)),
            lost_second: 6 - stored,
            stored_second: stored,
        }
    }

    fn stretch(users: usize, times_ms: f64) -> Stretch {
        let mut times = Latencies::default();
        (0..200).for_each(|_| times.record_ms(times_ms));
        let summary = Summary { pages_per_s: 900.0, p50_ms: 1.0, p99_ms: 2.0, errors: 0, first_error: None };
        let summary = (users > 0).then_some(summary);
        Stretch { users, seconds: 2.0, published: 200, lost: 0, times, summary }
    }

    fn shown(measured: &Measured) -> Report {
        let mut report = Report::new("relay", "Test.", Machine::look(Path::new(".")));
        present(measured, &mut report).unwrap();
        report.tables.push(others());
        assert_explained(&report.tables);
        report
    }

    fn verdicts(report: &Report) -> Vec<Option<bool>> {
        report.goals.iter().map(|goal| goal.is_met).collect()
    }

    #[test]
    fn loads_are_judged_by_stored_messages() {
        let measured = Measured {
            engine: "log",
            outcomes: vec![outcome(6, 6), outcome(6, 5), outcome(4, 4)],
            ..Measured::default()
        };
        let report = shown(&measured);
        let yes = Some(true);
        assert_eq!(verdicts(&report), [yes, yes, Some(false), Some(false), Some(false), yes]);
        assert_eq!(report.rows[0]["messages_per_s"], 3.0);
        assert_eq!(report.rows[0]["server_us_per_message"], 1_000.0);
        assert!(report.rows[1]["all_stored_s"].is_null());
        assert!(report.notes.iter().any(|note| note.contains("2 messages were not published: no peer")));
    }

    #[test]
    fn a_killed_server_is_judged_by_its_final_history() {
        for (stored, is_met) in [(6, true), (5, false)] {
            let measured = Measured { engine: "log", killed: Some(killed(stored)), ..Measured::default() };
            let report = shown(&measured);
            assert_eq!(verdicts(&report), [Some(is_met), Some(is_met)]);
            assert_eq!(report.rows[0]["measure"], "kill");
        }
    }

    #[test]
    fn delivery_is_judged_by_its_rise() {
        for (with_users, is_met) in [(1.5, true), (2.5, false)] {
            let stretches = vec![stretch(0, 1.0), stretch(25, with_users), stretch(0, 1.0)];
            let measured = Measured { engine: "log", stretches, ..Measured::default() };
            let report = shown(&measured);
            assert_eq!(verdicts(&report), [Some(is_met), Some(true), Some(true)]);
            assert_eq!((report.rows.len(), report.plots.len()), (3, 1));
            assert!(report.rows[0]["p99_by_alone"].is_null());
        }
    }
}
