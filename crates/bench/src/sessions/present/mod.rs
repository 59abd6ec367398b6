//! Rows, tables, plots, goals and notes of `bench sessions`.

mod entries;
mod live;
mod table;

use crate::report::Report;

use super::{Measured, SessionsArgs};

/// The size that goals are set for.
const GOAL_SESSIONS: u32 = 1_000_000;
const GOAL_STREAMS: u64 = 10_000;

pub(super) fn present(
    measured: &Measured,
    sizes: &[u32],
    args: &SessionsArgs,
    report: &mut Report,
) -> anyhow::Result<()> {
    add_rows(measured, report)?;
    entries::present(measured, report);
    table::present(measured, sizes, report);
    live::present(measured, report);
    note_sizes(measured, sizes, args, report);
    Ok(())
}

fn add_rows(measured: &Measured, report: &mut Report) -> anyhow::Result<()> {
    report.add_rows(&measured.entries)?;
    report.add_rows(&measured.entry_bytes)?;
    report.add_rows(&measured.table)?;
    report.add_rows(&measured.memory)?;
    report.add_rows(&measured.counts)?;
    report.add_rows(&measured.amoc)?;
    report.add_rows(&measured.redis)?;
    report.add_rows(&measured.streams)?;
    report.add_rows(&measured.erlang.finds)?;
    report.add_rows(&measured.erlang.merges)?;
    report.add_rows(&measured.erlang.table)?;
    report.add_rows(&measured.erlang.counts)
}

/// Says that goals are about other sizes, where this run had others.
fn note_sizes(measured: &Measured, sizes: &[u32], args: &SessionsArgs, report: &mut Report) {
    let has_table = !measured.table.is_empty() || !measured.memory.is_empty() || !measured.counts.is_empty();
    if has_table && sizes.last() != Some(&GOAL_SESSIONS) {
        report
            .notes
            .push(format!("Goals of tables are set for {GOAL_SESSIONS} sessions: this run had others."));
    }
    if !measured.streams.is_empty() && args.streams() != GOAL_STREAMS {
        report.notes.push(format!("Goals of live streams are set for {GOAL_STREAMS}: this run had others."));
    }
    if report.machine.build == "debug" {
        report.notes.push("This is a debug build: its figures mean nothing.".to_owned());
    }
}
