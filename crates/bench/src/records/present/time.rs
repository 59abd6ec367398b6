//! Times of reads and of concurrent commits.

use super::{
    super::{
        Measured,
        cost::Row,
        group::GroupFigures,
        read::{INBOX_MAILS, ReadFigures, What, When},
    },
    engines, usual,
};
use crate::{
    measure::ratio,
    report::{Bars, Goal, Plot, Report, Table, number, optional},
};

/// The size that goals are set for.
const RECORDS: u64 = 100_000;
const POINT_US_GOAL: f64 = 2.0;
const NEWEST_US_GOAL: f64 = 100.0;
const CHANGES_US_GOAL: f64 = 200.0;
/// One committer compared with appending and syncing without any engine, as for the archive's appends: besides the
/// sync a commit switches threads twice.
const FLOOR_GOAL: f64 = 0.8;
const GROUP_GOAL: f64 = 15.0;

const READ_NOTE: &str = "Reads: us of one, the median of 201 groups of 100 (records) or 10 (others) that were timed together, after 20 groups \
     that warm up. Records are drawn at random and read whole, with their bodies; the inbox has 50,000 mails where there \
     are as many; the changes are a hundred flag changes in as many commits. Right after commits, the last ones are \
     still in the commit log; waiting: rows there at the beginning. Goals are about the slower of the two states.";
const GROUP_NOTE: &str = "Committers: each commits one record at a time, to an account of its own, without a pause. disk/s: bytes of the same \
     records written into a preallocated file, each with fdatasync, in the same folder, alternating every second \
     with the committers; medians of seven rounds.";

pub(super) fn present(measured: &Measured, report: &mut Report) {
    if !measured.group.is_empty() {
        report.tables.push(group_table(&measured.group));
        report.plots.push(group_bars(&measured.group));
        report.goals.extend(group_goals(&measured.group));
        report.notes.push(GROUP_NOTE.to_owned());
    }
    if !measured.read.is_empty() {
        report.tables.push(read_table(&measured.read));
        report.plots.push(read_bars(&measured.read));
        report.goals.extend(read_goals(&measured.read));
        report.notes.push(READ_NOTE.to_owned());
    }
}

fn read_table(rows: &[Row<ReadFigures>]) -> Table {
    let columns = ["engine", "records", "inbox", "when", "what", "us", "waiting"];
    let mut table = Table::new("Reads", &columns).explain(&[
        ("inbox", "mails in the mailbox that is read"),
        ("when", "right after commits, or after closing and opening the store again"),
        ("us", "median time of one read"),
        ("waiting", "rows in the commit log that LMDB did not have yet when the reads began"),
    ]);
    for Row { engine, figures, .. } in rows {
        table.add([
            (*engine).to_owned(),
            number(figures.head.entities as f64),
            number(figures.mailbox_mails as f64),
            figures.when.name().to_owned(),
            figures.what.name().to_owned(),
            optional(figures.head.median_us),
            optional(figures.waiting_rows.map(|rows| rows as f64)),
        ]);
    }
    table
}

fn read_bars(rows: &[Row<ReadFigures>]) -> Plot {
    let mut stores: Vec<(&'static str, u64)> = Vec::new();
    for row in rows {
        let store = (row.engine, row.figures.head.entities);
        if !stores.contains(&store) {
            stores.push(store);
        }
    }
    let mut series = Vec::new();
    for (engine, entities) in stores {
        for when in When::ALL {
            let us = |what| {
                let is_it = |row: &&Row<ReadFigures>| {
                    let figures = &row.figures;
                    (row.engine, figures.head.entities, figures.when, figures.what)
                        == (engine, entities, when, what)
                };
                rows.iter().find(is_it).and_then(|row| row.figures.head.median_us)
            };
            let name = format!("{engine}, {}, {}", number(entities as f64), when.name());
            series.push((name, What::ALL.map(us).to_vec()));
        }
    }
    let groups = What::ALL.map(|what| what.name().to_owned()).to_vec();
    Plot::Bars(Bars { title: "Reads".to_owned(), unit: "us", groups, series })
}

/// The slower of both states. A mailbox of another size is not judged.
fn slowest(rows: &[Row<ReadFigures>], what: What) -> Option<f64> {
    let is_it = |figures: &&ReadFigures| {
        figures.what == what && figures.head.entities == RECORDS && figures.mailbox_mails == INBOX_MAILS
    };
    usual(rows).filter(is_it).filter_map(|figures| figures.head.median_us).max_by(f64::total_cmp)
}

fn read_goals(rows: &[Row<ReadFigures>]) -> [Goal; 4] {
    [
        Goal::at_most("reading a record", POINT_US_GOAL, "us", slowest(rows, What::Point)),
        Goal::at_most("the newest 20 of 50,000, ids", NEWEST_US_GOAL, "us", slowest(rows, What::Newest)),
        Goal::at_most(
            "the newest 20 of 50,000, with bodies",
            NEWEST_US_GOAL,
            "us",
            slowest(rows, What::NewestWhole),
        ),
        Goal::at_most("changes since, 100", CHANGES_US_GOAL, "us", slowest(rows, What::Changes)),
    ]
}

fn group_table(rows: &[Row<GroupFigures>]) -> Table {
    let columns =
        ["engine", "committers", "commits/s", "p50 us", "p99 us", "disk/s", "disk us", "by disk", "by one"];
    let mut table = Table::new("Durable commits of one record", &columns).explain(&[
        ("commits/s", "of all committers together"),
        ("disk/s", "the disk alone: writes of the same bytes, each synced, a second"),
        ("disk us", "the disk alone: median time of such a write and its sync"),
        ("by disk", "commits/s divided by disk/s"),
        ("by one", "commits/s divided by that of one committer"),
    ]);
    for Row { engine, figures, .. } in rows {
        table.add([
            (*engine).to_owned(),
            figures.committers.to_string(),
            number(figures.commits_per_s),
            optional(figures.head.median_us),
            number(figures.p99_us),
            number(figures.floor_per_s),
            number(figures.floor_us),
            optional(figures.ratio_to_floor),
            optional(figures.ratio_to_one),
        ]);
    }
    table
}

fn group_bars(rows: &[Row<GroupFigures>]) -> Plot {
    let mut committers: Vec<u32> = rows.iter().map(|row| row.figures.committers).collect();
    committers.sort_unstable();
    committers.dedup();
    let of = |engine: &str, committers: u32, what: fn(&GroupFigures) -> f64| {
        let is_it = |row: &&Row<GroupFigures>| row.engine == engine && row.figures.committers == committers;
        rows.iter().find(is_it).map(|row| what(&row.figures))
    };
    let mut series = Vec::new();
    for engine in engines(rows) {
        let all = |what: fn(&GroupFigures) -> f64| {
            committers.iter().map(|count| of(engine, *count, what)).collect()
        };
        series.push((engine.to_owned(), all(|figures| figures.commits_per_s)));
        series.push((format!("the disk alone, with {engine}"), all(|figures| figures.floor_per_s)));
    }
    Plot::Bars(Bars {
        title: "Durable commits of one record".to_owned(),
        unit: "commits/s",
        groups: committers.iter().map(|count| format!("{count} at once")).collect(),
        series,
    })
}

fn group_goals(rows: &[Row<GroupFigures>]) -> [Goal; 2] {
    let of = |committers| usual(rows).find(move |figures| figures.committers == committers);
    let by_floor = of(1).and_then(|figures| ratio(figures.commits_per_s, figures.floor_per_s));
    let by_one = of(64).and_then(|figures| figures.ratio_to_one);
    [
        Goal::at_least("commits one at a time, by the disk's own rate", FLOOR_GOAL, "x", by_floor),
        Goal::at_least("64 committers by one", GROUP_GOAL, "x", by_one),
    ]
}
