//! Rows, tables, plots and goals of `bench store`.

mod outage;
mod same;

use serde::Serialize;

use super::{
    Measured,
    scenario::{Outcome, Traffic},
};
use crate::{
    measure::{Latencies, ratio, rounded},
    report::{Bars, Curves, Goal, Plot, Report, Series, Table, number, optional},
};
pub(super) use outage::present_outage;
use same::present_same;

/// The least number of times for a 99th percentile to be judged.
const TIMES_MIN: u64 = 100;

/// A row of JSON: a scenario.
#[derive(Clone, Debug, Serialize)]
struct StoreRow {
    engine: &'static str,
    servers: u64,
    /// `scenario`; other rows are `same` and `outage`.
    measure: &'static str,
    /// The traffic that is published to each server.
    appends: &'static str,
    appends_per_s: f64,
    payload_bytes: usize,
    /// `none`, `paced`, `unpaced` or `hammer`.
    scenario: &'static str,
    users: usize,
    seconds: f64,
    /// Pages that were answered.
    queries: u64,
    queries_per_s: f64,
    query_p50_ms: Option<f64>,
    query_p95_ms: Option<f64>,
    query_p99_ms: Option<f64>,
    query_max_ms: Option<f64>,
    query_errors: u64,
    /// Whole walks by cursor.
    walks: u64,
    walk_p99_ms: Option<f64>,
    sent: u64,
    acknowledged: u64,
    refused: u64,
    unanswered: u64,
    /// Acknowledged, but not in the archive at the end.
    lost: u64,
    append_p50_ms: Option<f64>,
    append_p99_ms: Option<f64>,
    append_max_ms: Option<f64>,
    /// The 99th percentile without queries, before and after.
    append_p99_alone_ms: Option<f64>,
    append_p99_by_alone: Option<f64>,
    /// Pages of each second, as a rate.
    queries_per_minute: Vec<u64>,
}

/// A figure of times, if there are any.
fn of(times: &Latencies, figure: fn(&Latencies) -> f64) -> Option<f64> {
    (times.len() > 0).then(|| rounded(figure(times)))
}

/// The times of appends without queries.
fn alone(outcomes: &[Outcome], traffic: Traffic) -> Latencies {
    let mut times = Latencies::default();
    for outcome in outcomes.iter().filter(|outcome| outcome.traffic == traffic && outcome.scenario.users == 0)
    {
        times.add(&outcome.published.times);
    }
    times
}

fn row(measured: &Measured, outcome: &Outcome) -> StoreRow {
    let (asked, published) = (&outcome.asked, &outcome.published);
    let alone_ms = of(&alone(&measured.outcomes, outcome.traffic), Latencies::p99_ms);
    let append_p99_ms = of(&published.times, Latencies::p99_ms);
    let by_alone = append_p99_ms.zip(alone_ms).and_then(|(with, alone)| ratio(with, alone));
    let seconds = outcome.length.as_secs_f64();
    StoreRow {
        engine: measured.engine,
        servers: measured.servers,
        measure: "scenario",
        appends: outcome.traffic.name,
        appends_per_s: outcome.traffic.per_second,
        payload_bytes: outcome.traffic.payload_bytes,
        scenario: outcome.scenario.name,
        users: outcome.scenario.users,
        seconds: rounded(seconds),
        queries: asked.pages.len(),
        queries_per_s: rounded(asked.pages.len() as f64 / seconds),
        query_p50_ms: of(&asked.pages, Latencies::median_ms),
        query_p95_ms: of(&asked.pages, Latencies::p95_ms),
        query_p99_ms: of(&asked.pages, Latencies::p99_ms),
        query_max_ms: of(&asked.pages, Latencies::max_ms),
        query_errors: asked.errors,
        walks: asked.walks.len(),
        walk_p99_ms: of(&asked.walks, Latencies::p99_ms),
        sent: published.sent,
        acknowledged: published.acknowledged.len() as u64,
        refused: published.refused,
        unanswered: published.unanswered,
        lost: measured.stored_messages.lost(&outcome.posts, published),
        append_p50_ms: of(&published.times, Latencies::median_ms),
        append_p99_ms,
        append_max_ms: of(&published.times, Latencies::max_ms),
        append_p99_alone_ms: alone_ms,
        append_p99_by_alone: by_alone.filter(|_| outcome.scenario.users > 0),
        queries_per_minute: asked.each_second.iter().map(|pages| pages * 60).collect(),
    }
}

/// The columns of both tables.
const LEGEND: &[(&str, &str)] = &[
    ("appends", "the traffic that is published at the same time"),
    ("walk p99 ms", "99 % of the walks, of up to five pages, took at most this long"),
    ("by alone", "p99 ms divided by that without queries"),
];

const NOTES: [&str; 4] = [
    "Clients, servers and their database share this machine. A query is a request for one page. Paced: each user begins a \
     walk of up to five pages by cursor every second, due by the clock; the first page's time counts from when it was due. \
     Unpaced: the next walk begins when the previous one ends. Hammer: single pages, ten a second for each client.",
    "Walks ask for one topic of one day, frequent or rare, forward or backward, in pages of 20 or 100 with their data; one \
     in four asks for the newest of what is being published.",
    "Messages are published at a fixed rate over several connections; each is answered when it is durable. A message that is late \
     because all clients wait for answers counts from when it was due; that of a client that slept until then counts from \
     its waking.",
    "There are no queries before and after the users; by alone compares with both. A percentile of fewer than 100 times is not \
     judged. Losses are counted in the archive after the servers have stopped.",
];

/// Adds all results to the report.
pub(super) fn present(measured: &[Measured], report: &mut Report) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for engine in measured {
        rows.extend(engine.outcomes.iter().map(|outcome| row(engine, outcome)));
    }
    report.add_rows(&rows)?;
    if rows.is_empty() {
        return Ok(());
    }
    report.tables.push(query_table(&rows));
    report.tables.push(append_table(&rows));
    report.plots.push(p99_bars("99 % of queries within", &rows, |row| row.query_p99_ms));
    report.plots.push(p99_bars("99 % of appends within", &rows, |row| row.append_p99_ms));
    for engine in measured {
        let of_engine: Vec<&StoreRow> = rows.iter().filter(|row| row.engine == engine.engine).collect();
        for traffic in [Traffic::LARGE, Traffic::MANY] {
            plots(engine, traffic, report);
        }
        report.goals.extend(goals(engine, &of_engine));
        note_first_errors(engine, report);
        if let Some(same) = &engine.same {
            present_same(engine, same, report)?;
        }
    }
    report.notes.extend(NOTES.map(str::to_owned));
    Ok(())
}

fn users(row: &StoreRow) -> String {
    match row.users {
        0 => "none".to_owned(),
        users => format!("{users} {}", row.scenario),
    }
}

fn query_table(rows: &[StoreRow]) -> Table {
    let columns = [
        "engine",
        "appends",
        "users",
        "pages",
        "pages/s",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "longest ms",
        "walk p99 ms",
        "errors",
    ];
    let mut table = Table::new("Queries", &columns).explain(LEGEND);
    for row in rows.iter().filter(|row| row.users > 0) {
        table.add([
            row.engine.to_owned(),
            row.appends.to_owned(),
            users(row),
            number(row.queries as f64),
            number(row.queries_per_s),
            optional(row.query_p50_ms),
            optional(row.query_p95_ms),
            optional(row.query_p99_ms),
            optional(row.query_max_ms),
            optional(row.walk_p99_ms),
            row.query_errors.to_string(),
        ]);
    }
    table
}

fn append_table(rows: &[StoreRow]) -> Table {
    let columns = [
        "engine",
        "appends",
        "users",
        "sent",
        "acknowledged",
        "refused",
        "unanswered",
        "lost",
        "p50 ms",
        "p99 ms",
        "longest ms",
        "by alone",
    ];
    let mut table = Table::new("Appends", &columns).explain(LEGEND);
    for row in rows {
        table.add([
            row.engine.to_owned(),
            row.appends.to_owned(),
            users(row),
            number(row.sent as f64),
            number(row.acknowledged as f64),
            number(row.refused as f64),
            number(row.unanswered as f64),
            number(row.lost as f64),
            optional(row.append_p50_ms),
            optional(row.append_p99_ms),
            optional(row.append_max_ms),
            optional(row.append_p99_by_alone),
        ]);
    }
    table
}

/// A bar for each engine in each scenario.
fn p99_bars(title: &str, rows: &[StoreRow], figure: fn(&StoreRow) -> Option<f64>) -> Plot {
    let scenario = |row: &StoreRow| format!("{}, {}", users(row), row.appends);
    let (mut groups, mut engines) = (Vec::new(), Vec::new());
    for row in rows {
        if !groups.contains(&scenario(row)) && figure(row).is_some() {
            groups.push(scenario(row));
        }
        if !engines.contains(&row.engine) {
            engines.push(row.engine);
        }
    }
    let mut series = Vec::new();
    for engine in engines {
        let of_group = |group: &String| {
            let is_it = |row: &&StoreRow| row.engine == engine && scenario(row) == *group;
            rows.iter().find(is_it).and_then(figure)
        };
        series.push((engine.to_owned(), groups.iter().map(of_group).collect()));
    }
    Plot::Bars(Bars { title: title.to_owned(), unit: "ms", groups, series })
}

/// A line of a plot: its name, and pairs of seconds and value.
type Line = (String, Vec<(f64, f64)>);

/// The distributions of an engine's times, and its queries over time.
fn plots(measured: &Measured, traffic: Traffic, report: &mut Report) {
    let name = |outcome: &Outcome| match outcome.scenario.users {
        0 => "no queries".to_owned(),
        users => format!("{users} {}", outcome.scenario.name),
    };
    let (mut queries, mut appends) = (Vec::new(), Vec::new());
    // Without users that do not pause, whose rates would make the other lines unreadable.
    let mut minutes: Vec<(&'static str, Vec<Line>)> = Vec::new();
    let outcomes = measured.outcomes.iter().filter(|outcome| outcome.traffic == traffic);
    for outcome in outcomes {
        if outcome.scenario.users > 0 {
            queries.push((name(outcome), outcome.asked.pages.curve()));
            appends.push((name(outcome), outcome.published.times.curve()));
            let line = (name(outcome), per_minute(outcome));
            match minutes.iter_mut().find(|(kind, _)| *kind == outcome.scenario.name) {
                Some((_, lines)) => lines.push(line),
                None => minutes.push((outcome.scenario.name, vec![line])),
            }
        }
    }
    if queries.is_empty() {
        return;
    }
    appends.insert(0, ("no queries".to_owned(), alone(&measured.outcomes, traffic).curve()));
    let title = |what: &str| format!("{}: {what}, appends {}", measured.engine, traffic.name);
    report.plots.push(Plot::Curves(Curves {
        title: title("share of queries answered within a time"),
        unit: "ms",
        lines: queries,
    }));
    report.plots.push(Plot::Curves(Curves {
        title: title("share of inserts answered within a time"),
        unit: "ms",
        lines: appends,
    }));
    for (kind, lines) in minutes {
        let title = title(&format!("queries a minute, {kind}"));
        report.plots.push(Plot::Series(Series { title, unit: "pages/min", lines }));
    }
}

/// Pages of each whole second, as a rate.
fn per_minute(outcome: &Outcome) -> Vec<(f64, f64)> {
    let whole_seconds = (outcome.length.as_secs() as usize).max(1);
    let seconds = outcome.asked.each_second.iter().take(whole_seconds).enumerate();
    seconds.map(|(second, pages)| (second as f64, *pages as f64 * 60.0)).collect()
}

fn goals(measured: &Measured, rows: &[&StoreRow]) -> Vec<Goal> {
    let engine = measured.engine;
    let most = |figure: &dyn Fn(&StoreRow) -> Option<f64>| {
        rows.iter().filter_map(|row| figure(row)).max_by(f64::total_cmp)
    };
    let total = |figure: fn(&StoreRow) -> u64| rows.iter().map(|row| figure(row)).sum::<u64>();
    let by_alone = |is_paced: bool| {
        most(&|row| {
            let is_judged = row.acknowledged >= TIMES_MIN && (row.scenario != "unpaced") == is_paced;
            row.append_p99_by_alone.filter(|_| is_judged)
        })
    };
    let at_25 = most(&|row| {
        let is_it = row.users == 25 && row.scenario == "paced" && row.queries >= TIMES_MIN;
        row.query_p99_ms.filter(|_| is_it)
    });
    let mut goals = Vec::new();
    if measured.servers == 1 {
        goals.push(Goal::at_most(
            format!("{engine}: p99 of a query, 25 users with a query a second each"),
            10.0,
            "ms",
            at_25,
        ));
    }
    let not_stored = total(|row| row.refused + row.unanswered + row.lost);
    goals.push(Goal::none(format!("{engine}: appends refused or lost"), not_stored));
    let errors = total(|row| row.query_errors);
    goals.push(Goal::none(format!("{engine}: queries that failed"), errors));
    goals.push(Goal::none(format!("{engine}: messages stored twice"), measured.stored_messages.repeated));
    let what = format!("{engine}: p99 of appends by that without queries");
    goals.push(Goal::at_most(format!("{what}, paced"), 2.0, "x", by_alone(true)));
    if measured.servers == 1 {
        goals.push(Goal::at_most(format!("{what}, unpaced"), 2.0, "x", by_alone(false)));
    }
    goals
}

/// Adds the first errors to the notes.
fn note_first_errors(measured: &Measured, report: &mut Report) {
    let first_errors = measured.outcomes.iter().flat_map(|outcome| {
        [("an append", &outcome.published.first_error), ("a query", &outcome.asked.first_error)]
    });
    for (what, first_error) in first_errors {
        if let Some(first_error) = first_error {
            report.notes.push(format!("{}: the first error of {what}: {first_error}", measured.engine));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, path::Path, sync::Arc, time::Duration};

    use restante_core::Timestamp;

    use super::*;
    use crate::{
        machine::Machine,
        report::assert_explained,
        waku_store::{
            ask::Asked,
            check::StoredMessages,
            outage::{Outage, State},
            posts::Posts,
            publish::Published,
            scenario::Scenario,
            servers::Same,
        },
    };

    fn times(ms: f64, count: u64) -> Latencies {
        let mut times = Latencies::default();
        (0..count).for_each(|_| times.record_ms(ms));
        times
    }

    fn outcome(scenario: Scenario, append_ms: f64, refused: u64) -> Outcome {
        let count = if scenario.users > 0 { 150 } else { 0 };
        Outcome {
            traffic: Traffic::LARGE,
            scenario,
            length: Duration::from_secs(2),
            posts: Arc::new(Posts::new(0, 100, Timestamp(1))),
            published: Published {
                sent: 200 + refused,
                acknowledged: (0..200).collect(),
                refused,
                times: times(append_ms, 200),
                first_error: (refused > 0).then(|| "full".to_owned()),
                ..Published::default()
            },
            asked: Asked {
                pages: times(12.0, count),
                walks: times(50.0, count / 5),
                each_second: vec![count / 2, count / 2],
                ..Asked::default()
            },
        }
    }

    fn stored_messages(messages: u64) -> StoredMessages {
        let posts = Posts::new(0, 100, Timestamp(1));
        let hashes: HashSet<_> = (0..messages).map(|number| posts.hash(number)).collect();
        StoredMessages { hashes, repeated: 0 }
    }

    fn report() -> Report {
        Report::new("store", "Test.", Machine::look(Path::new(".")))
    }

    fn verdict(report: &Report, words: &str) -> Option<bool> {
        let goal = report.goals.iter().find(|goal| goal.what.contains(words));
        goal.unwrap_or_else(|| panic!("no goal about {words}")).is_met
    }

    #[test]
    fn scenarios_become_rows_plots_and_goals() {
        let outcomes = vec![
            outcome(Scenario::NONE, 2.0, 0),
            outcome(Scenario::paced(25), 3.0, 0),
            outcome(Scenario::unpaced(25), 9.0, 5),
            outcome(Scenario::NONE, 2.0, 0),
        ];
        let measured = Measured {
            engine: "sqlite",
            servers: 1,
            outcomes,
            same: None,
            stored_messages: stored_messages(199),
        };
        let mut report = report();
        present(&[measured], &mut report).unwrap();
        assert_eq!(report.rows.len(), 4);
        let paced = &report.rows[1];
        assert_eq!(
            (&paced["users"], &paced["queries"], &paced["lost"]),
            (&25.into(), &150.into(), &1.into())
        );
        assert_eq!(paced["queries_per_minute"], serde_json::json!([4_500, 4_500]));
        assert!((paced["append_p99_by_alone"].as_f64().unwrap() - 1.5).abs() < 0.01, "{paced}");
        assert!(report.rows[0]["append_p99_by_alone"].is_null() && report.rows[0]["query_p99_ms"].is_null());
        // Two of bars, queries, inserts, and queries over time for both kinds of users.
        assert_eq!((report.plots.len(), report.tables.len()), (2 + 2 + 2, 2));
        assert_explained(&report.tables);
        assert_eq!(verdict(&report, "p99 of a query"), Some(false));
        assert_eq!(verdict(&report, "refused or lost"), Some(false));
        assert_eq!(verdict(&report, "queries that failed"), Some(true));
        assert_eq!(verdict(&report, "without queries, paced"), Some(true));
        assert_eq!(verdict(&report, "without queries, unpaced"), Some(false));
        assert!(report.notes.iter().any(|note| note.contains("full")));
    }

    #[test]
    fn several_servers_are_judged_by_rows_errors_and_repetitions() {
        let same = |rows: (u64, u64)| Same {
            messages: 200,
            duration: Duration::from_secs(1),
            posts: Arc::new(Posts::new(0, 100, Timestamp(1))),
            published: outcome(Scenario::NONE, 1.0, 0).published,
            walks: 3,
            repeated: 0,
            rows,
        };
        for (rows, is_met) in [((200, 200), true), ((199, 200), false), ((200, 201), false)] {
            let outcomes = vec![outcome(Scenario::NONE, 2.0, 0), outcome(Scenario::hammer(50), 2.0, 0)];
            let same = Some(same(rows));
            let measured = Measured {
                engine: "postgres",
                servers: 3,
                outcomes,
                same,
                stored_messages: stored_messages(200),
            };
            let mut report = report();
            present(&[measured], &mut report).unwrap();
            assert_eq!(report.rows.len(), 3);
            assert_eq!(report.rows[2]["measure"], "same");
            assert_eq!(verdict(&report, "too many or too few"), Some(is_met), "{rows:?}");
            assert_eq!(verdict(&report, "the same messages: errors"), Some(true));
        }
    }

    #[test]
    fn an_outage_is_judged_by_what_was_lost() {
        let state = |at_s: f64, status: u16| State { at_s, status: Some(status), said: "text".to_owned() };
        let outage = Outage {
            posts: Arc::new(Posts::new(0, 100, Timestamp(1))),
            published: outcome(Scenario::NONE, 1.0, 7).published,
            stopped_s: 10.0,
            started_s: 70.0,
            healthy_after_s: Some(1.5),
            caught_up_after_s: 2.5,
            states: vec![state(0.0, 200), state(10.1, 503), state(71.5, 200)],
            is_server_up: true,
        };
        for (stored_messages, is_met) in [(stored_messages(200), true), (stored_messages(150), false)] {
            let mut report = report();
            present_outage("postgres", &outage, &stored_messages, &mut report).unwrap();
            assert_eq!(verdict(&report, "messages lost"), Some(is_met));
            assert_eq!(verdict(&report, "servers that ended"), Some(true));
            assert_eq!(verdict(&report, "changes of /health"), Some(true));
            assert_explained(&report.tables);
            assert_eq!(report.rows[0]["states"].as_array().unwrap().len(), 3);
        }
    }
}
