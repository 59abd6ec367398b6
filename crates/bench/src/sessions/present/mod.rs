//! Rows, tables, plots, goals and notes of `bench sessions`.

mod entries;
mod live;
mod table;

use crate::report::{Report, number};
pub use entries::{bytes_table, find_table, merge_table};
pub use table::{memory_table, op_bars, op_table};

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
    table::present(measured, sizes, sizes.last() == Some(&GOAL_SESSIONS), report);
    live::present(measured, args.streams() == GOAL_STREAMS, report);
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
    report.add_rows(&measured.streams)
}

/// Says which goals are not shown because this run had other sizes.
fn note_sizes(measured: &Measured, sizes: &[u32], args: &SessionsArgs, report: &mut Report) {
    let has_table = !measured.table.is_empty() || !measured.memory.is_empty() || !measured.counts.is_empty();
    if has_table && sizes.last() != Some(&GOAL_SESSIONS) {
        let set_for = number(f64::from(GOAL_SESSIONS));
        report.withhold(format!("those of tables are set for {set_for} sessions, and this run had others"));
    }
    if !measured.streams.is_empty() && args.streams() != GOAL_STREAMS {
        let set_for = number(GOAL_STREAMS as f64);
        report.withhold(format!(
            "those of live streams are set for {set_for} streams, and this run had others"
        ));
    }
    report.note_quick(args.common.quick);
    report.note_debug_build();
}
