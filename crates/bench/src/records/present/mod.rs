//! Rows, tables, plots, goals and notes of `bench records`.

mod batch;
mod seed;
mod time;

use serde::Serialize;

use super::{Measured, cost::Row, store::RecordsEngine};
use crate::report::Report;

/// What a server has without settings: the goals are set for it.
const USUAL: RecordsEngine = RecordsEngine::Lmdb;

pub(super) fn present(measured: &Measured, is_quick: bool, report: &mut Report) -> anyhow::Result<()> {
    report.add_rows(measured.input.as_slice())?;
    report.add_rows(&measured.seed1)?;
    report.add_rows(&measured.seed2)?;
    report.add_rows(&measured.batch)?;
    report.add_rows(&measured.churn)?;
    report.add_rows(&measured.read)?;
    report.add_rows(&measured.group)?;
    seed::present(measured, report);
    batch::present(measured, report);
    time::present(measured, report);
    if is_quick {
        report.notes.push("This was a quick run: its figures mean nothing.".to_owned());
    }
    if report.machine.build == "debug" {
        report.notes.push("This is a debug build: its figures mean nothing.".to_owned());
    }
    Ok(())
}

/// The rows of the engine that goals are set for.
fn usual<F>(rows: &[Row<F>]) -> impl Iterator<Item = &F> {
    rows.iter().filter(|row| row.engine == USUAL.name()).map(|row| &row.figures)
}

/// The engines of some rows, in their order.
fn engines<F: Serialize>(rows: &[Row<F>]) -> Vec<&'static str> {
    let mut engines = Vec::new();
    for row in rows {
        if !engines.contains(&row.engine) {
            engines.push(row.engine);
        }
    }
    engines
}

fn kib(bytes: u64) -> f64 {
    bytes as f64 / 1_024.0
}
