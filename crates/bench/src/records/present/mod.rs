//! Rows, tables, plots, goals and notes of `bench records`.

mod batch;
mod seed;
mod time;

use serde::Serialize;

use super::{Measured, cost::Row, store::RecordsEngine};
use crate::report::Report;

/// A server's default engine, which the goals are set for.
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
    report.note_quick(is_quick);
    report.note_debug_build();
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

fn kb(bytes: u64) -> f64 {
    bytes as f64 / 1e3
}
