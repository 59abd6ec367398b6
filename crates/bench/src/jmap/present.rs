//! The report of `bench jmap`.

use super::{FigureRow, Load, LoadRow};
use crate::{
    measure::rounded,
    report::{Bars, Curves, Goal, Plot, Report, Table, number, optional},
};

/// What was measured.
#[derive(Default)]
pub(super) struct Measured {
    loads: Vec<(LoadRow, Load)>,
    pub(super) figures: Vec<FigureRow>,
}

/// The size of the inbox that got most requests, and the size that goals are set for.
#[derive(Clone, Copy)]
pub(super) struct Sizing {
    pub(super) main: u64,
    pub(super) set_for: u64,
}

/// What restante promises for a load, and what others reach on a machine like ours.
#[derive(Clone, Copy, Default)]
struct Promise {
    op: &'static str,
    /// Requests a second: the minimum, and the goal.
    per_s: Option<(f64, f64)>,
    p99_ms: Option<f64>,
    cyrus: Option<f64>,
    james: &'static str,
}

const PROMISES: [Promise; 13] = [
    Promise {
        op: "query20",
        per_s: Some((3_000.0, 10_000.0)),
        p99_ms: Some(40.0),
        cyrus: Some(75.0),
        james: "52",
    },
    Promise { op: "query20_open", p99_ms: Some(40.0), ..NOTHING },
    Promise { op: "thread_chain", per_s: Some((2_000.0, 6_000.0)), ..NOTHING },
    Promise { op: "changes", per_s: Some((10_000.0, 25_000.0)), ..NOTHING },
    Promise { op: "text", p99_ms: Some(50.0), ..NOTHING },
    Promise {
        op: "flag",
        per_s: Some((3_000.0, 10_000.0)),
        p99_ms: Some(50.0),
        cyrus: Some(44.0),
        james: "23 to 60",
    },
    Promise { op: "mailboxes_20", per_s: Some((8_000.0, 8_000.0)), ..NOTHING },
    Promise { op: "mailboxes_500", per_s: Some((2_000.0, 2_000.0)), ..NOTHING },
    Promise {
        op: "lmtp",
        per_s: Some((2_500.0, 5_000.0)),
        p99_ms: Some(100.0),
        cyrus: Some(110.0),
        james: "23 to 60",
    },
    Promise { op: "push_events", p99_ms: Some(200.0), ..NOTHING },
    Promise { op: "push_sockets", p99_ms: Some(200.0), ..NOTHING },
    Promise { op: "lmtp_one", per_s: Some((400.0, 1_000.0)), ..NOTHING },
    Promise { op: "lmtp_all", p99_ms: Some(100.0), ..NOTHING },
];
const NOTHING: Promise = Promise { op: "", per_s: None, p99_ms: None, cyrus: None, james: "-" };

/// Figures with an upper limit: the limit, the goal, and the figures of Cyrus and James.
const LIMITS: [(&str, f64, f64, &str, &str); 7] = [
    ("blobs_of_a_mail", 1.0, 1.0, "-", "-"),
    ("memory_event_stream", 25.0, 12.0, "-", "-"),
    ("memory_socket", 25.0, 12.0, "-", "-"),
    ("disk_beyond_raw", 1.8, 1.2, "-", "-"),
    ("memory_private", 200.0, 100.0, "54 to 78 (resident)", "640 to 970 (resident)"),
    ("memory_import", 100.0, 50.0, "-", "-"),
    ("text_new_missed", 0.0, 0.0, "-", "-"),
];
/// Deliveries over one connection divided by syncs of the disk alone.
const OF_SYNCS_MIN: f64 = 0.3;
/// The rate at 1,000 emails divided by that at 1,000,000.
const BY_SIZE_MAX: f64 = 1.3;

const NOTES: [&str; 9] = [
    "Clients and server share this machine. Each client asks over a kept-alive connection, again as soon as it is answered. Before the \
     first load and before lmtp_one the search index has all emails.",
    "query20: Email/query of 20 emails of the inbox, newest first, from a random position among the newest 10,000, and Email/get of ten \
     properties of them in the same request. thread_chain: the same of threads, with Thread/get and Email/get of all their emails. Before \
     one in ten of them the client changes a keyword in that inbox, which is not counted as a request.",
    "query20_open: the same requests as query20 at a fixed rate of 3,000 a second, however fast the server answers: their time counts from \
     when they were due.",
    "flag: Email/set of one keyword, where each client changes emails of its own. changes: Email/changes with nothing new. \
     text: Email/query of a word of the emails by Zipf's law, the commonest included.",
    "lmtp: 4 KB, one recipient of many; a delivery counts when it is answered, which is when it is on disk. fdatasync: \
     appends of 4 KB to a file of the same disk, each synced, before and after lmtp_one. A client writes its next mail while the \
     server stores the one before, because a mail server has a queue. lmtp_all: one connection, each mail to all \
     recipients, 100 of them; from the end of a mail to the last reply. blobs_of_a_mail: blobs that were stored meanwhile, by mails.",
    "disk_beyond_raw: records and blobs on disk without the bytes of the raw messages, by emails. memory_private: RssAnon of the server \
     with 100 connections. memory_import: the most that it has more while so many emails of 4 KB are delivered by LMTP over 64 connections \
     to 100 accounts, and indexed. jmap.requests_per_user_max is 128 in this run, and jmap.connections_per_user_max 2,000, because all \
     connections are of one user.",
    "text_new: an email is delivered by LMTP, and as soon as it is accepted, Email/query asks for a word that only this email has: the \
     time of the query. text_new_missed: emails that were not found.",
    "push_events and push_sockets: clients of one account that wait for changes by event stream or WebSocket. A keyword is changed when \
     all have the change before; a time is from that request to the push at one client. memory_event_stream and memory_socket: RssAnon of \
     the server for one of them, before anything else is asked.",
    "Cyrus 3.6.1 (query20 with 99 % within 76 ms) and James with its memory mailboxes were measured on two busy cores of another \
     run. The authors of James state 1,000 JMAP requests a second, 99 % within 400 ms, for three clusters.",
];

impl Measured {
    pub(super) fn load(&mut self, op: String, emails: u64, load: Load) {
        let row = LoadRow {
            op,
            emails,
            connections: load.connections,
            requests: load.times.len(),
            per_s: rounded(load.per_second()),
            p50_ms: rounded(load.times.median_ms()),
            p99_ms: rounded(load.times.p99_ms()),
            server_cpu_us: load.of_one(load.server_cpu).map(rounded),
            client_cpu_us: load.of_one(load.client_cpu).map(rounded),
        };
        self.loads.push((row, load));
    }

    pub(super) fn figure(&mut self, op: &'static str, emails: u64, value: f64, unit: &'static str) {
        self.figures.push(FigureRow { op, emails, value: rounded(value), unit });
    }

    fn rows(&self) -> impl Iterator<Item = &LoadRow> {
        self.loads.iter().map(|(row, _)| row)
    }

    /// The rate of query20 in the inbox of that size.
    fn query_rate(&self, emails: u64) -> Option<f64> {
        self.rows().find(|row| row.op == "query20" && row.emails == emails).map(|row| row.per_s)
    }

    fn value(&self, op: &str) -> Option<f64> {
        self.figures.iter().find(|row| row.op == op).map(|row| row.value)
    }
}

/// Adds rows, tables, plots and goals.
pub(super) fn present(measured: &Measured, sizing: Sizing, report: &mut Report) -> anyhow::Result<()> {
    let rows: Vec<&LoadRow> = measured.rows().collect();
    report.add_rows(&rows)?;
    report.add_rows(&measured.figures)?;
    report.tables.extend([loads(measured), figures(measured)]);
    report.plots.extend(plots(measured));
    report.goals = goals(measured, sizing);
    report.note_size_of(sizing.main, sizing.set_for, "emails");
    report.notes.extend(NOTES.map(str::to_owned));
    Ok(())
}

fn promise(op: &str) -> Promise {
    PROMISES.into_iter().find(|promise| promise.op == op).unwrap_or(NOTHING)
}

fn loads(measured: &Measured) -> Table {
    let columns = [
        "op",
        "emails",
        "connections",
        "/s",
        "p50 ms",
        "p99 ms",
        "server us",
        "client us",
        "at least",
        "aim",
        "p99 at most",
        "Cyrus",
        "James",
    ];
    let mut table = Table::new("Requests", &columns).explain(&[
        ("emails", "in the inbox that was asked"),
        ("/s", "requests or deliveries a second"),
        ("server us", "processor time of the server for one of them"),
        ("client us", "processor time of the client for one of them"),
        ("at least", "what restante must do, of an inbox of 100,000"),
        ("aim", "what it should do"),
        ("p99 at most", "milliseconds"),
        ("Cyrus", "the rate of Cyrus 3.6.1"),
        ("James", "the rate of James"),
    ]);
    for row in measured.rows() {
        let promise = promise(&row.op);
        table.add([
            row.op.clone(),
            some(row.emails),
            row.connections.to_string(),
            number(row.per_s),
            number(row.p50_ms),
            number(row.p99_ms),
            optional(row.server_cpu_us),
            optional(row.client_cpu_us),
            optional(promise.per_s.map(|(least, _)| least)),
            optional(promise.per_s.map(|(_, goal)| goal)),
            optional(promise.p99_ms),
            optional(promise.cyrus),
            promise.james.to_owned(),
        ]);
    }
    table
}

fn figures(measured: &Measured) -> Table {
    let columns = ["what", "emails", "value", "unit", "at most", "aim", "Cyrus", "James"];
    let mut table = Table::new("Disk, memory, index", &columns).explain(&[
        ("emails", "in the stores, or in the inbox that was asked"),
        ("at most", "what restante promises"),
        ("aim", "what it should do"),
        ("Cyrus", "the figure of Cyrus 3.6.1"),
        ("James", "the figure of James"),
    ]);
    for row in &measured.figures {
        let limit = LIMITS.into_iter().find(|limit| limit.0 == row.op);
        let (_, most, goal, cyrus, james) = limit.unwrap_or(("", f64::NAN, f64::NAN, "-", "-"));
        let shown = |bound: f64| if bound.is_nan() { "-".to_owned() } else { number(bound) };
        let (what, unit) = (row.op.to_owned(), row.unit.to_owned());
        table.add([
            what,
            some(row.emails),
            number(row.value),
            unit,
            shown(most),
            shown(goal),
            cyrus.to_owned(),
            james.to_owned(),
        ]);
    }
    table
}

/// A number of emails, if it matters.
fn some(emails: u64) -> String {
    if emails == 0 { "-".to_owned() } else { number(emails as f64) }
}

fn plots(measured: &Measured) -> [Plot; 2] {
    let name = |row: &LoadRow| format!("{} {} ({})", row.op, row.emails, row.connections);
    let names: Vec<String> = measured.rows().map(name).collect();
    let of = |value: fn(&LoadRow, Promise) -> Option<f64>| -> Vec<Option<f64>> {
        measured.rows().map(|row| value(row, promise(&row.op))).collect()
    };
    let rates = Bars {
        title: "Requests a second, by operation, emails and connections".to_owned(),
        unit: "/s",
        groups: names.clone(),
        series: vec![
            ("measured".to_owned(), of(|row, _| Some(row.per_s))),
            ("at least".to_owned(), of(|_, promise| promise.per_s.map(|(least, _)| least))),
            ("Cyrus 3.6.1".to_owned(), of(|_, promise| promise.cyrus)),
        ],
    };
    let curves = measured.loads.iter().zip(names).map(|((_, load), name)| (name, load.times.curve()));
    let title = "Share of requests answered within a time".to_owned();
    [Plot::Bars(rates), Plot::Curves(Curves { title, unit: "ms", lines: curves.collect() })]
}

/// Goals of loads are set for the inbox of one size; the goals of figures are those of memory, disk and blobs.
fn goals(measured: &Measured, sizing: Sizing) -> Vec<Goal> {
    let mut goals = Vec::new();
    for promise in PROMISES {
        let is_of_size =
            |row: &&LoadRow| row.op == promise.op && (row.emails == sizing.main || row.op != "query20");
        let row = measured.rows().find(is_of_size);
        if let Some((least, _)) = promise.per_s {
            goals.push(Goal::at_least(promise.op, least, "/s", row.map(|row| row.per_s)));
        }
        if let Some(most) = promise.p99_ms {
            goals.push(Goal::at_most(
                format!("p99 of {}", promise.op),
                most,
                "ms",
                row.map(|row| row.p99_ms),
            ));
        }
    }
    let one = measured.rows().find(|row| row.op == "lmtp_one").map(|row| row.per_s);
    let of_syncs = one.zip(measured.value("fdatasync")).map(|(one, syncs)| rounded(one / syncs));
    goals.push(Goal::at_least("lmtp_one divided by fdatasync", OF_SYNCS_MIN, "x", of_syncs));
    let by_size = measured.query_rate(1_000).zip(measured.query_rate(1_000_000));
    let by_size = by_size.map(|(small, large)| rounded(small / large));
    goals.push(Goal::at_most(
        "query20 at 1,000 emails divided by that at 1,000,000",
        BY_SIZE_MAX,
        "x",
        by_size,
    ));
    for (op, most, ..) in LIMITS {
        let unit = measured.figures.iter().find(|row| row.op == op).map_or("", |row| row.unit);
        goals.push(Goal::at_most(op, most, unit, measured.value(op)));
    }
    goals
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;
    use crate::{machine::Machine, measure::Latencies, report::assert_explained};

    /// A load of this many requests in a second, of this many milliseconds each.
    fn load(requests: u64, ms: f64) -> Load {
        let mut times = Latencies::default();
        (0..requests).for_each(|_| times.record_ms(ms));
        let cpu = Some(Duration::from_millis(500));
        Load { connections: 16, times, duration: Duration::from_secs(1), server_cpu: cpu, client_cpu: None }
    }

    fn goal<'r>(report: &'r Report, what: &str) -> &'r Goal {
        report.goals.iter().find(|goal| goal.what == what).unwrap()
    }

    #[test]
    fn loads_and_figures_become_rows_tables_plots_and_goals() {
        let mut measured = Measured::default();
        measured.load("query20".to_owned(), 1_000, load(8_000, 1.0));
        measured.load("query20".to_owned(), 100_000, load(2_000, 50.0));
        measured.load("query20".to_owned(), 1_000_000, load(5_000, 1.0));
        measured.load("lmtp_one".to_owned(), 0, load(500, 2.0));
        measured.figure("fdatasync", 0, 1_000.0, "/s");
        measured.figure("disk_beyond_raw", 101_000, 1.5, "kB");
        let mut report = Report::new("jmap", "Test.", Machine::look(Path::new(".")));
        present(&measured, Sizing { main: 100_000, set_for: 100_000 }, &mut report).unwrap();

        for (what, is_met) in [
            ("query20", Some(false)),
            ("p99 of query20", Some(false)),
            ("lmtp_one", Some(true)),
            ("lmtp_one divided by fdatasync", Some(true)),
            ("query20 at 1,000 emails divided by that at 1,000,000", Some(false)),
            ("disk_beyond_raw", Some(true)),
            ("flag", None),
        ] {
            assert_eq!(goal(&report, what).is_met, is_met, "{what}");
        }
        assert_eq!((report.rows.len(), report.plots.len()), (6, 2));
        assert_eq!(
            (&report.rows[1]["per_s"], &report.rows[1]["server_cpu_us"]),
            (&2_000.0.into(), &250.0.into())
        );
        assert_explained(&report.tables);
        assert_eq!(report.tables[0].rows[1][11], "75", "Cyrus is shown next to ours");
    }

    #[test]
    fn goals_of_an_inbox_of_another_size_are_not_shown() {
        let mut measured = Measured::default();
        measured.load("query20".to_owned(), 300, load(10, 1.0));
        let mut report = Report::new("jmap", "Test.", Machine::look(Path::new(".")));
        present(&measured, Sizing { main: 300, set_for: 100_000 }, &mut report).unwrap();
        assert!(report.goals.is_empty());
    }
}
