//! An outage: row, tables, plot and goals.

use serde::Serialize;

use super::of;
use crate::{
    measure::{Latencies, rounded},
    report::{Curves, Goal, Plot, Report, Table, number, optional},
    waku_store::{check::StoredMessages, outage::Outage},
};

/// A row of JSON: an outage.
#[derive(Clone, Debug, Serialize)]
struct OutageRow {
    engine: &'static str,
    measure: &'static str,
    sent: u64,
    acknowledged: u64,
    refused: u64,
    unanswered: u64,
    lost: u64,
    /// When the database was stopped, and when it was started again.
    stopped_s: f64,
    started_s: f64,
    /// From the restart.
    healthy_after_s: Option<f64>,
    caught_up_after_s: f64,
    append_p99_ms: Option<f64>,
    append_max_ms: Option<f64>,
    is_server_up: bool,
    states: Vec<StateRow>,
}

#[derive(Clone, Debug, Serialize)]
struct StateRow {
    at_s: f64,
    status: Option<u16>,
    said: String,
}

/// Puts an outage into the report.
pub(in crate::waku_store) fn present_outage(
    engine: &'static str,
    outage: &Outage,
    stored_messages: &StoredMessages,
    report: &mut Report,
) -> anyhow::Result<()> {
    let published = &outage.published;
    let states = outage.states.iter().map(|state| StateRow {
        at_s: rounded(state.at_s),
        status: state.status,
        said: state.said.clone(),
    });
    let row = OutageRow {
        engine,
        measure: "outage",
        sent: published.sent,
        acknowledged: published.acknowledged.len() as u64,
        refused: published.refused,
        unanswered: published.unanswered,
        lost: stored_messages.lost(&outage.posts, published),
        stopped_s: rounded(outage.stopped_s),
        started_s: rounded(outage.started_s),
        healthy_after_s: outage.healthy_after_s.map(rounded),
        caught_up_after_s: rounded(outage.caught_up_after_s),
        append_p99_ms: of(&published.times, Latencies::p99_ms),
        append_max_ms: of(&published.times, Latencies::max_ms),
        is_server_up: outage.is_server_up,
        states: states.collect(),
    };
    report.add_rows(std::slice::from_ref(&row))?;
    report.tables.push(outage_table(&row));
    report.tables.push(state_table(&row));
    let what = format!("{engine}, stopped under load");
    report.goals.push(Goal::none(format!("{what}: acknowledged messages lost"), row.lost));
    report.goals.push(Goal::none(format!("{what}: servers that ended"), u64::from(!row.is_server_up)));
    let changes = row.states.len().saturating_sub(1) as f64;
    let announced = Goal::at_least(format!("{what}: changes of /health"), 2.0, "", Some(changes));
    report.goals.push(announced.at_any_size());
    if let Some(first_error) = &published.first_error {
        report.notes.push(format!("The first error of an append: {first_error}"));
    }
    report.plots.push(Plot::Curves(Curves {
        title: format!("{what}: share of appends answered within a time"),
        unit: "ms",
        lines: vec![(engine.to_owned(), published.times.curve())],
    }));
    Ok(())
}

fn outage_table(row: &OutageRow) -> Table {
    let mut table = Table::new(format!("Outage ({})", row.engine), &["what", "value"]);
    for (what, value) in [
        ("sent", Some(row.sent as f64)),
        ("acknowledged", Some(row.acknowledged as f64)),
        ("refused", Some(row.refused as f64)),
        ("unanswered", Some(row.unanswered as f64)),
        ("acknowledged, not in the archive at the end", Some(row.lost as f64)),
        ("database stopped, s", Some(row.stopped_s)),
        ("database back, s", Some(row.started_s)),
        ("healthy again after it, s", row.healthy_after_s),
        ("all acknowledged until then could be read after it, s", Some(row.caught_up_after_s)),
        ("append p99 ms", row.append_p99_ms),
        ("longest append ms", row.append_max_ms),
    ] {
        table.add([what.to_owned(), optional(value)]);
    }
    table
}

fn state_table(row: &OutageRow) -> Table {
    let mut table = Table::new(format!("Answers of /health ({})", row.engine), &["from s", "status", "text"])
        .explain(&[("from s", "seconds since the start of the load")]);
    for state in &row.states {
        let status = state.status.map_or_else(|| "-".to_owned(), |status| status.to_string());
        table.add([number(state.at_s), status, state.said.replace('\n', " ")]);
    }
    table
}
