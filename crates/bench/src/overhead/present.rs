//! The report: a table for each server, and the goals.

use super::pairs::Row;
use crate::report::{Report, Table, number};

const COLUMNS: [&str; 9] =
    ["what", "beside", "its figure", "restante", "unit", "ratio", "smallest", "largest", "goal"];
const LEGEND: &[(&str, &str)] = &[
    (
        "beside",
        "what restante is compared with: a client of our own that does the same work without restante's engine, or restante itself",
    ),
    (
        "its figure",
        "its median over all pairs: operations a second (1/s), or the time that half of them took at most (ms)",
    ),
    ("restante", "the median of restante over all pairs"),
    ("ratio", "restante's figure divided by the other one: the median of all pairs"),
    ("smallest", "the smallest ratio of a pair"),
    ("largest", "the largest ratio of a pair"),
];
const NOTES: [&str; 3] = [
    "The sides of a pair run one after the other, the same bytes with the same durability. The raw clients do the least that stores these bytes: they keep no \
     feed of changes, look for no duplicates, check no hash, and don't find out what became of a write whose answer was lost.",
    "A commit is one new record of 600 bytes with three index entries. The raw client of Cassandra writes its rows and its body by one conditional batch on the \
     partition of the account, that of PostgreSQL those of all waiting commits by one transaction on two connections.",
    "Servers, bench and everything else of the machine share its processors: only ratios mean something.",
];

pub(super) fn present(rows: &[Row], report: &mut Report) -> anyhow::Result<()> {
    report.add_rows(rows)?;
    for of_server in rows.chunk_by(|one, other| one.server == other.server) {
        let Some(first) = of_server.first() else { continue };
        let mut table = Table::new(first.server, &COLUMNS).explain(LEGEND);
        for row in of_server {
            table.add([
                row.what.clone(),
                row.beside.clone(),
                number(row.base),
                number(row.restante),
                row.unit.to_owned(),
                number(row.ratio),
                number(row.ratio_min),
                number(row.ratio_max),
                row.bound.clone(),
            ]);
        }
        report.tables.push(table);
    }
    report.goals.extend(rows.iter().map(Row::goal));
    report.notes.extend(NOTES.map(str::to_owned));
    Ok(())
}
