//! The amoc load, Redis, live streams.

use super::super::{Measured, amoc::SEED_ARRIVAL_US, entries::seed, redis::IN_FLIGHT, streams::StreamsRow};
use crate::{
    measure::ratio,
    report::{Curves, Goal, Plot, Report, Table, number, optional},
};

const REDIS_RATE_GOAL: f64 = 20_000.0;
const REDIS_BYTES_GOAL: f64 = 520.0;
const DELIVERY_MS_GOAL: f64 = 50.0;
const STREAM_BYTES_GOAL: f64 = 20.0 * 1_024.0;

const AMOC_NOTE: &str = "Arrivals (a load of MongooseIM's tool amoc): each operation has a time of its own, which includes two readings of the clock (about 50 \
    ns), and the processor may have slept before it. MongooseIM's figures, as its authors published them, are microseconds a call under a profiler that makes \
    everything 10 to 50 times slower, with lists and with maps: only their shape can be compared.";
const REDIS_NOTE: &str = "Redis: 16 tasks, each with one operation in flight, through the one connection of \
    the engine. Bytes: the growth of Redis' memory in use (used_memory) by 100,000 opens.";
const STREAMS_NOTE: &str = "Live streams: one content topic each, 1,000 messages a second to them in turn, published over REST. \
    A message's time begins when it is due, whether or not those before it were acknowledged, and ends when a client in this \
    process has read it, so it includes the load of all clients on this machine. Acknowledged: until its publisher had the answer that \
    it is durable, which waits for the disk. Bytes: private memory of the server after the messages \
    less that before the streams (and after other messages), divided by streams, without the kernel's buffers.";

/// Adds tables, plots and goals; the goals of live streams only for the number of streams that they are set for.
pub(super) fn present(measured: &Measured, is_full_streams: bool, report: &mut Report) {
    if !measured.amoc.is_empty() {
        report.tables.extend(amoc_tables(measured));
        report.notes.push(AMOC_NOTE.to_owned());
    }
    if !measured.redis.is_empty() {
        report.tables.push(redis_table(measured));
        report.goals.extend(redis_goals(measured));
        report.notes.push(REDIS_NOTE.to_owned());
    }
    if !measured.streams.is_empty() {
        report.tables.push(streams_table(&measured.streams));
        report.plots.push(Plot::Curves(delivery_curves(&measured.streams)));
        report.add_goals(measured.streams.iter().flat_map(stream_goals), is_full_streams);
        report.notes.push(STREAMS_NOTE.to_owned());
    }
}

fn amoc_tables(measured: &Measured) -> [Table; 2] {
    let (users, arrival) = measured.amoc.first().map_or((0, 0), |row| (row.sessions, row.arrival_us));
    let title = format!(
        "Arrivals: {} users, one every {} us (as published: every {} us)",
        number(users as f64),
        number(arrival as f64),
        number(SEED_ARRIVAL_US as f64)
    );
    let mut ours = Table::new(title, &["op", "count", "median ns", "p99 ns"]).explain(&[
        ("count", "operations of all users"),
        ("median ns", "half of them took at most this long"),
        ("p99 ns", "99 % of them took at most this long"),
    ]);
    for row in &measured.amoc {
        ours.add([row.op.to_owned(), number(row.count as f64), number(row.ns_per_op), number(row.p99_ns)]);
    }
    let mut theirs = Table::new(
        "MongooseIM as its authors published it (us a call, traced)",
        &["call", "lists", "maps", "gain"],
    )
    .explain(&[
        ("call", "of MongooseIM's session manager"),
        ("lists", "before, with lists"),
        ("maps", "after, with maps"),
        ("gain", "lists divided by maps"),
    ]);
    for (call, lists, maps) in seed::PROFILE {
        theirs.add([call.to_owned(), number(lists), number(maps), optional(ratio(lists, maps))]);
    }
    [ours, theirs]
}

fn redis_table(measured: &Measured) -> Table {
    let title = format!("Redis: one connection, {IN_FLIGHT} in flight");
    let columns = ["op", "sessions", "a second", "p50 ms", "p99 ms", "bytes"];
    let mut table = Table::new(title, &columns).explain(&[
        ("a second", "operations a second"),
        ("bytes", "memory that Redis has in use for a session"),
    ]);
    for row in &measured.redis {
        table.add([
            row.op.to_owned(),
            number(row.sessions as f64),
            number(row.per_s),
            number(row.p50_ms),
            number(row.p99_ms),
            optional(row.bytes_per_session),
        ]);
    }
    table
}

fn redis_goals(measured: &Measured) -> [Goal; 3] {
    let row = |op: &str| measured.redis.iter().find(|row| row.op == op);
    let rate = |op| row(op).map(|row| row.per_s);
    let bytes = row("open").and_then(|row| row.bytes_per_session);
    [
        Goal::at_least("redis: opens", REDIS_RATE_GOAL, "/s", rate("open")),
        Goal::at_least("redis: look-ups by user", REDIS_RATE_GOAL, "/s", rate("by_user")),
        Goal::at_most("redis: a session", REDIS_BYTES_GOAL, "B", bytes),
    ]
}

fn streams_table(rows: &[StreamsRow]) -> Table {
    let columns = [
        "archive",
        "streams",
        "opened in s",
        "messages/s",
        "published",
        "heard",
        "lost",
        "repeated",
        "strays",
        "p50 ms",
        "p99 ms",
        "max ms",
        "ack p50 ms",
        "ack p99 ms",
        "ack max ms",
        "bytes by stream",
        "cpu us by message",
    ];
    let mut table = Table::new("Live streams", &columns).explain(&[
        ("archive", "the engine of the server's archive"),
        ("opened in s", "seconds until all streams were open"),
        ("heard", "messages that streams got"),
        ("lost", "messages that their stream did not get"),
        ("repeated", "messages that a stream got twice"),
        ("strays", "messages that another stream got"),
        ("max ms", "the longest of the times"),
        ("ack p50 ms", "publishing: half of the answers took at most this long"),
        ("ack p99 ms", "publishing: 99 % of the answers took at most this long"),
        ("ack max ms", "publishing: the longest of the times"),
        ("bytes by stream", "private memory of the server for a stream"),
        ("cpu us by message", "processor time of the server for a message"),
    ]);
    for row in rows {
        table.add([
            row.engine.to_owned(),
            number(row.streams as f64),
            number(row.opening_s),
            number(row.messages_per_s),
            number(row.published as f64),
            number(row.heard as f64),
            number(row.lost as f64),
            number(row.repeated as f64),
            number(row.strays as f64),
            number(row.p50_ms),
            number(row.p99_ms),
            number(row.max_ms),
            number(row.acknowledged_p50_ms),
            number(row.acknowledged_p99_ms),
            number(row.acknowledged_max_ms),
            optional(row.bytes_per_stream),
            optional(row.cpu_us_per_message),
        ]);
    }
    table
}

fn delivery_curves(rows: &[StreamsRow]) -> Curves {
    let lines = |row: &StreamsRow| {
        let delivered = (format!("archive {}: delivered", row.engine), row.curve.clone());
        let acknowledged = (format!("archive {}: acknowledged", row.engine), row.acknowledged_curve.clone());
        [delivered, acknowledged]
    };
    Curves {
        title: "Delivery to live streams, and acknowledgement to publishers".to_owned(),
        unit: "ms",
        lines: rows.iter().flat_map(lines).collect(),
    }
}

fn stream_goals(row: &StreamsRow) -> [Goal; 3] {
    let what = format!("{} live streams, {}", number(row.streams as f64), row.engine);
    let wrong = row.lost + row.repeated + row.strays;
    [
        Goal::at_most(format!("{what}: p99 of delivery"), DELIVERY_MS_GOAL, "ms", Some(row.p99_ms)),
        Goal::at_most(format!("{what}: memory of one"), STREAM_BYTES_GOAL, "B", row.bytes_per_stream),
        Goal::none(format!("{what}: lost, repeated or strayed"), wrong),
    ]
}
