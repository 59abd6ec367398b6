//! The report of `bench mail-out`.

use super::{FigureRow, Load, LoadRow, opening::Opening};
use crate::{
    measure::rounded,
    report::{Curves, Goal, Plot, Report, Table, number, optional},
};

/// What was measured.
#[derive(Default)]
pub(super) struct Measured {
    loads: Vec<(LoadRow, Load)>,
    figures: Vec<FigureRow>,
}

/// The upper limits that restante promises for a queue of a million.
const LIMITS: [(&str, f64); 4] =
    [("start", 2.0), ("list_by_domain", 50.0), ("due_next", 1.0), ("memory_private", 100.0)];
/// Mails a second that are queued durably and arrive, in all loads that are not paced.
const SENT_MIN: f64 = 1_000.0;
/// The 99th percentile of mails to other domains while some fail, divided by that while none does.
const BESIDE_FAILING_MAX: f64 = 1.2;

const NOTES: [&str; 5] = [
    "send: 64 clients submit mails of 4 KB, each to one recipient, as fast as they can, while a sender sends them over 50 connections to \
     servers of so many domains: mails a second from the first submission to the last arrival. The time of a mail is from its submission \
     to its arrival. A mail counts once; one that is lost, or arrives twice, ends the bench.",
    "submit: the same clients while nobody sends; the time until a mail is in the queue, which is when it is on disk.",
    "paced: 300 mails a second to 100 domains. paced_failing: ten of the domains have a server that accepts connections and never says a \
     word, ten a server that takes half a second for each reply; rates and times are of the mails to the others.",
    "us of a mail: processor time of the clients, the queue, the sender and the servers that take the mail, which are one process.",
    "start: opening the stores with the long queue, until it is known when the next recipient is due. list_by_domain: a page of the \
     recipients of one of 10,000 domains. due_next: a look for what is due in all 64 accounts of the queue. domains: counting all \
     recipients by domain. memory_private: RssAnon of a process that did all that.",
];

impl Measured {
    pub(super) fn load(&mut self, op: &str, domains: u64, load: Load) {
        let mails = load.mails.max(1) as f64;
        let row = LoadRow {
            op: op.to_owned(),
            domains,
            mails: load.mails,
            per_s: rounded(load.mails as f64 / load.duration.as_secs_f64().max(f64::MIN_POSITIVE)),
            p50_ms: rounded(load.times.median_ms()),
            p99_ms: rounded(load.times.p99_ms()),
            cpu_us: load.cpu.map(|cpu| rounded(cpu.as_secs_f64() * 1e6 / mails)),
        };
        self.loads.push((row, load));
    }

    pub(super) fn opening(&mut self, opening: &Opening, queued: u64) {
        let figures = [
            ("start", Some(opening.start_s), "s"),
            ("list_by_domain", Some(opening.list_by_domain_ms), "ms"),
            ("due_next", Some(opening.due_next_ms), "ms"),
            ("domains", Some(opening.domains_s), "s"),
            ("memory_private", opening.memory_private.map(|bytes| rounded(bytes as f64 / 1e6)), "MB"),
        ];
        for (op, value, unit) in figures {
            self.figures.extend(value.map(|value| FigureRow { op, queued, value, unit }));
        }
    }

    fn p99_ms(&self, op: &str) -> Option<f64> {
        self.loads.iter().find(|(row, _)| row.op == op).map(|(row, _)| row.p99_ms)
    }
}

/// Adds rows, tables, plots and goals.
pub(super) fn present(measured: &Measured, report: &mut Report) -> anyhow::Result<()> {
    let rows: Vec<&LoadRow> = measured.loads.iter().map(|(row, _)| row).collect();
    report.add_rows(&rows)?;
    report.add_rows(&measured.figures)?;
    report.tables.extend([loads(&rows), figures(&measured.figures)]);
    let line = |(row, load): &(LoadRow, Load)| (format!("{} {}", row.op, row.domains), load.times.curve());
    let title = "Share of mails that were queued, or had arrived, within a time".to_owned();
    report.plots.push(Plot::Curves(Curves {
        title,
        unit: "ms",
        lines: measured.loads.iter().map(line).collect(),
    }));
    report.goals = goals(measured);
    report.notes.extend(NOTES.map(str::to_owned));
    Ok(())
}

fn loads(rows: &[&LoadRow]) -> Table {
    let columns = ["op", "domains", "mails", "/s", "p50 ms", "p99 ms", "us of a mail"];
    let mut table = Table::new("Mails", &columns).explain(&[
        ("domains", "of the recipients"),
        ("mails", "that arrived, or were queued where nobody sends"),
        ("/s", "mails a second"),
        ("us of a mail", "processor time of everything together"),
    ]);
    for row in rows {
        table.add([
            row.op.clone(),
            if row.domains == 0 { "-".to_owned() } else { number(row.domains as f64) },
            number(row.mails as f64),
            number(row.per_s),
            number(row.p50_ms),
            number(row.p99_ms),
            optional(row.cpu_us),
        ]);
    }
    table
}

fn figures(rows: &[FigureRow]) -> Table {
    let columns = ["what", "queued", "value", "unit", "at most"];
    let mut table = Table::new("A long queue", &columns)
        .explain(&[("queued", "recipients, all due later"), ("at most", "what restante promises")]);
    for row in rows {
        let limit = LIMITS.iter().find(|(op, _)| *op == row.op).map(|(_, most)| *most);
        table.add([
            row.op.to_owned(),
            number(row.queued as f64),
            number(row.value),
            row.unit.to_owned(),
            optional(limit),
        ]);
    }
    table
}

fn goals(measured: &Measured) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (row, _) in measured.loads.iter().filter(|(row, _)| row.op == "send") {
        let what = format!("mails sent to {} domains", number(row.domains as f64));
        goals.push(Goal::at_least(what, SENT_MIN, "/s", Some(row.per_s)));
    }
    let beside = measured.p99_ms("paced_failing").zip(measured.p99_ms("paced"));
    let beside = beside.map(|(failing, all)| rounded(failing / all.max(f64::MIN_POSITIVE)));
    let what = "p99 of mails beside domains that fail, divided by that without these";
    goals.push(Goal::at_most(what, BESIDE_FAILING_MAX, "x", beside));
    for (op, most) in LIMITS {
        let row = measured.figures.iter().find(|row| row.op == op);
        let unit = row.map_or("", |row| row.unit);
        goals.push(Goal::at_most(format!("{op} of the long queue"), most, unit, row.map(|row| row.value)));
    }
    // Otherwise the bench fails.
    goals.push(Goal::none("mails lost or sent twice", 0));
    goals
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;
    use crate::{machine::Machine, measure::Latencies, report::assert_explained};

    fn load(mails: u64, ms: f64) -> Load {
        let mut times = Latencies::default();
        (0..mails).for_each(|_| times.record_ms(ms));
        Load { mails, times, duration: Duration::from_secs(1), cpu: Some(Duration::from_millis(500)) }
    }

    #[test]
    fn loads_and_figures_become_rows_tables_and_goals() {
        let mut measured = Measured::default();
        measured.load("send", 1, load(2_000, 1.0));
        measured.load("send", 100, load(500, 1.0));
        measured.load("paced", 100, load(300, 10.0));
        measured.load("paced_failing", 100, load(240, 11.0));
        let opening = Opening {
            start_s: 0.5,
            list_by_domain_ms: 60.0,
            due_next_ms: 0.5,
            domains_s: 1.0,
            memory_private: Some(50_000_000),
        };
        measured.opening(&opening, 1_000_000);
        let mut report = Report::new("mail-out", "Test.", Machine::look(Path::new(".")));
        present(&measured, &mut report).unwrap();
        for (what, is_met) in [
            ("mails sent to 1 domains", Some(true)),
            ("mails sent to 100 domains", Some(false)),
            ("p99 of mails beside domains that fail, divided by that without these", Some(true)),
            ("start of the long queue", Some(true)),
            ("list_by_domain of the long queue", Some(false)),
            ("memory_private of the long queue", Some(true)),
            ("mails lost or sent twice", Some(true)),
        ] {
            let goal = report.goals.iter().find(|goal| goal.what == what).unwrap();
            assert_eq!(goal.is_met, is_met, "{what}");
        }
        assert_eq!(report.rows[0]["cpu_us"], 250.0);
        assert_explained(&report.tables);
    }
}
