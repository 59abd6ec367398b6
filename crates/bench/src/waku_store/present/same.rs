//! The same messages through several servers: row, table, plot and goals.

use serde::Serialize;

use super::of;
use crate::{
    measure::{Latencies, rounded},
    report::{Curves, Goal, Plot, Report, Table, number},
    waku_store::{Measured, servers::Same},
};

/// A row of JSON: the same messages through several servers.
#[derive(Clone, Debug, Serialize)]
struct SameRow {
    engine: &'static str,
    servers: u64,
    measure: &'static str,
    /// Messages that each server got.
    messages: u64,
    sent: u64,
    acknowledged: u64,
    refused: u64,
    unanswered: u64,
    lost: u64,
    seconds: f64,
    /// Answers of all servers.
    appends_per_s: f64,
    append_p50_ms: Option<f64>,
    append_p99_ms: Option<f64>,
    append_max_ms: Option<f64>,
    /// Walks through the messages by cursor, through all servers, most of them while messages were published.
    walks: u64,
    rows_repeated: u64,
    /// Rows of a walk through each server at the end, least and most.
    rows_min: u64,
    rows_max: u64,
}

/// Puts it into the report.
pub(super) fn present_same(measured: &Measured, same: &Same, report: &mut Report) -> anyhow::Result<()> {
    let published = &same.published;
    let seconds = same.duration.as_secs_f64();
    let row = SameRow {
        engine: measured.engine,
        servers: measured.servers,
        measure: "same",
        messages: same.messages,
        sent: published.sent,
        acknowledged: published.acknowledged.len() as u64,
        refused: published.refused,
        unanswered: published.unanswered,
        lost: measured.stored_messages.lost(&same.posts, published),
        seconds: rounded(seconds),
        appends_per_s: rounded(published.acknowledged.len() as f64 / seconds),
        append_p50_ms: of(&published.times, Latencies::median_ms),
        append_p99_ms: of(&published.times, Latencies::p99_ms),
        append_max_ms: of(&published.times, Latencies::max_ms),
        walks: same.walks,
        rows_repeated: same.repeated,
        rows_min: same.rows.0,
        rows_max: same.rows.1,
    };
    report.add_rows(std::slice::from_ref(&row))?;
    let title = format!("The same messages through {} servers ({})", row.servers, row.engine);
    let mut table = Table::new(title, &["what", "value"]);
    for (what, value) in [
        ("messages that each server got", row.messages as f64),
        ("sent", row.sent as f64),
        ("acknowledged", row.acknowledged as f64),
        ("refused or unanswered", (row.refused + row.unanswered) as f64),
        ("acknowledged, not in the archive", row.lost as f64),
        ("answers/s", row.appends_per_s),
        ("append p50 ms", row.append_p50_ms.unwrap_or(0.0)),
        ("append p99 ms", row.append_p99_ms.unwrap_or(0.0)),
        ("walks by cursor", row.walks as f64),
        ("rows that came twice in a walk", row.rows_repeated as f64),
        ("rows of a walk at the end, least", row.rows_min as f64),
        ("rows of a walk at the end, most", row.rows_max as f64),
    ] {
        table.add([what.to_owned(), number(value)]);
    }
    report.tables.push(table);
    let what = format!("{} servers, one {}, the same messages", row.servers, row.engine);
    let wrong = row.rows_min.abs_diff(row.messages).max(row.rows_max.abs_diff(row.messages));
    let errors = row.refused + row.unanswered + row.lost;
    report.goals.push(Goal::none(format!("{what}: rows too many or too few"), wrong));
    report.goals.push(Goal::none(format!("{what}: errors"), errors));
    report.goals.push(Goal::none(format!("{what}: rows that came twice in a walk"), row.rows_repeated));
    report.plots.push(Plot::Curves(Curves {
        title: format!("The same messages through {} servers: share of inserts within a time", row.servers),
        unit: "ms",
        lines: vec![(row.engine.to_owned(), published.times.curve())],
    }));
    if let Some(first_error) = &published.first_error {
        report.notes.push(format!("The first error of an append of the same messages: {first_error}"));
    }
    Ok(())
}
