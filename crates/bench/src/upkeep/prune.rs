//! Retention of the oldest day, concurrent with an appender that does not pause and a client with queries at a fixed rate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use restante_archive::{Archive, Direction, Pruned, Query, Retention, Stats, Topics};
use restante_core::Timestamp;

use super::UpkeepRow;
use crate::{
    args::CommonArgs,
    dataset::{DAYS, Dataset, day_start},
    measure::{Latencies, ms, ratio, rounded, touch_all},
    pace::Tickets,
    random::Random,
    store::{Store, append_new},
    supply::Supply,
};

/// The most days that are removed one by one, which leaves some to query; fewer if enough was measured.
const PRUNED_DAYS_MIN: usize = 5;
const PRUNED_DAYS_MAX: usize = 20;
/// Appends, and queries, during retention that a 99th percentile needs.
const ENOUGH: usize = 500;
/// Queries a second: as many as one client can send to any engine without queueing.
const QUERIES_PER_SECOND: f64 = 200.0;
/// How long appends and queries are measured before the first prune, and between prunes.
const BEFORE: Duration = Duration::from_secs(3);
const BETWEEN: Duration = Duration::from_millis(500);
/// Longer than any bench: the client is stopped explicitly.
const QUERYING_MAX: Duration = Duration::from_secs(24 * 3_600);

/// When an append, a query or a prune began and ended.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    begun: Instant,
    ended: Instant,
}

impl Stretch {
    fn overlaps(&self, other: &Self) -> bool {
        self.begun <= other.ended && other.begun <= self.ended
    }

    fn ms(&self) -> f64 {
        ms(self.ended.duration_since(self.begun))
    }
}

/// The measured periods.
struct Watched {
    /// Before the first prune.
    before: Stretch,
    prunes: Vec<(Stretch, Pruned)>,
    appends: Vec<Stretch>,
    queries: Vec<Stretch>,
    /// The archive before the first prune and after the last.
    stats: (Stats, Stats),
}

pub(super) async fn measure(
    store: &Store,
    dataset: &Arc<Dataset>,
    common: &CommonArgs,
) -> anyhow::Result<Vec<UpkeepRow>> {
    let stats_before = store.opened.upkeep.stats().await?;
    let stop = Arc::new(AtomicBool::new(false));
    let supply = Supply::of(dataset, day_start(DAYS));
    let begun = Instant::now();
    let appender = tokio::spawn(append_until(store.archive().clone(), supply, stop.clone()));
    let querying = tokio::spawn(query_until(store.archive().clone(), dataset.clone(), stop.clone()));
    tokio::time::sleep(common.pick(BEFORE, BETWEEN / 10)).await;
    let before = Stretch { begun, ended: Instant::now() };
    let days_max = common.pick(PRUNED_DAYS_MAX, PRUNED_DAYS_MIN);
    let mut prunes: Vec<(Stretch, Pruned)> = Vec::new();
    for day in 0..days_max {
        prunes.push(prune_day(store, dataset, day).await?);
        let pruning: f64 = prunes.iter().map(|(stretch, _)| stretch.ms() / 1e3).sum();
        let is_enough = pruning * QUERIES_PER_SECOND >= ENOUGH as f64;
        if is_enough && prunes.len() >= PRUNED_DAYS_MIN {
            break;
        }
        tokio::time::sleep(common.pick(BETWEEN, BETWEEN / 10)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let (appends, queries) = (appender.await??, querying.await??);
    let stats = (stats_before, store.settle().await?);
    let watched = Watched { before, prunes, appends, queries, stats };
    Ok(rows(store.engine(), dataset, &watched))
}

/// Removes one day: with a `now` thirty days after that day's end, a policy of thirty days keeps the later ones.
async fn prune_day(store: &Store, dataset: &Dataset, day: usize) -> anyhow::Result<(Stretch, Pruned)> {
    const DAY_SECONDS: u64 = 86_400;
    let policy = Retention { time_seconds: Some(DAYS as u64 * DAY_SECONDS), ..Retention::default() };
    let now = day_start(day + 1 + DAYS);
    let begun = Instant::now();
    let pruned = store.opened.upkeep.prune(&policy, now).await?;
    let ended = Instant::now();
    let (removed, expected) = (pruned.messages, dataset.day_len(day));
    ensure!(removed == expected, "retention of day {day} removed {removed} messages instead of {expected}");
    Ok((Stretch { begun, ended }, pruned))
}

/// Appends one message after the other, each when the previous one is durable.
async fn append_until(
    archive: Arc<dyn Archive>,
    supply: Supply,
    stop: Arc<AtomicBool>,
) -> anyhow::Result<Vec<Stretch>> {
    let mut appends = Vec::new();
    for number in 0.. {
        let Some(message) = supply.message(number) else { break };
        let begun = Instant::now();
        append_new(&*archive, vec![message]).await?;
        appends.push(Stretch { begun, ended: Instant::now() });
        if stop.load(Ordering::Relaxed) {
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(appends)
}

/// Requests pages at a fixed rate; each at another position of the remaining days.
async fn query_until(
    archive: Arc<dyn Archive>,
    dataset: Arc<Dataset>,
    stop: Arc<AtomicBool>,
) -> anyhow::Result<Vec<Stretch>> {
    const PAGE_ROWS: usize = 100;
    let begun = Instant::now();
    let tickets = Tickets::new(begun, QUERIES_PER_SECOND, begun + QUERYING_MAX);
    let mut random = Random::new(0, 13);
    let first = day_start(PRUNED_DAYS_MAX).nanos();
    let span = (day_start(DAYS).nanos() - first) as u64;
    let topics = Topics::List(vec![dataset.topic(1).to_string()]);
    let mut queries = Vec::new();
    while let Some(ticket) = tickets.take().await {
        let start = Timestamp(first + random.below(span) as i64);
        let direction = if ticket.number % 2 == 0 { Direction::Forward } else { Direction::Backward };
        let query = Query {
            topics: topics.clone(),
            start: Some(start),
            direction,
            limit: PAGE_ROWS,
            ..Query::default()
        };
        touch_all(archive.query(&query).await?.bodies());
        queries.push(Stretch { begun: ticket.from, ended: Instant::now() });
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(queries)
}

/// Times of operations that overlap a prune, and of all others.
fn during_and_without(times: &[Stretch], prunes: &[(Stretch, Pruned)]) -> (Latencies, Latencies) {
    let (mut during, mut without) = (Latencies::default(), Latencies::default());
    for stretch in times {
        let is_during = prunes.iter().any(|(prune, _)| prune.overlaps(stretch));
        let latencies = if is_during { &mut during } else { &mut without };
        latencies.record(stretch.ended.duration_since(stretch.begun));
    }
    (during, without)
}

fn rows(engine: &'static str, dataset: &Dataset, watched: &Watched) -> Vec<UpkeepRow> {
    let longest = |stretch: &Stretch| {
        let under_way = watched.appends.iter().filter(|append| append.overlaps(stretch));
        under_way.map(Stretch::ms).max_by(f64::total_cmp).map(rounded)
    };
    let row = |measure, what: String, value: f64, unit| UpkeepRow {
        engine,
        messages: dataset.len(),
        measure,
        what,
        value: rounded(value),
        unit,
        longest_append_ms: None,
        times: None,
    };
    let before = longest(&watched.before).unwrap_or(0.0);
    let mut rows = vec![row("append", "longest append before retention".to_owned(), before, "ms")];
    for (day, (prune, _)) in watched.prunes.iter().enumerate() {
        let what = format!("retention of day {}, {} messages", day + 1, dataset.day_len(day));
        rows.push(UpkeepRow { longest_append_ms: longest(prune), ..row("prune", what, prune.ms(), "ms") });
    }
    for (measure, times) in [("appends", &watched.appends), ("queries", &watched.queries)] {
        let (during, without) = during_and_without(times, &watched.prunes);
        let p99 = |times: &Latencies| (times.len() > 0).then(|| times.p99_ms());
        let by_without = p99(&during).zip(p99(&without)).and_then(|(with, without)| ratio(with, without));
        for (what, value, unit, times) in [
            ("without retention", p99(&without), "ms", without.len()),
            ("during retention", p99(&during), "ms", during.len()),
            ("during retention by that without", by_without, "x", during.len()),
        ] {
            let Some(value) = value else { continue };
            let what = format!("p99 of {measure} {what}");
            rows.push(UpkeepRow { times: Some(times), ..row(measure, what, value, unit) });
        }
    }
    rows.extend(disk_rows(watched, row));
    rows
}

/// The disk space that retention freed, and whether the remaining messages take as much space each as before.
fn disk_rows(
    watched: &Watched,
    row: impl Fn(&'static str, String, f64, &'static str) -> UpkeepRow,
) -> Vec<UpkeepRow> {
    let (before, after) = &watched.stats;
    if before.disk_bytes == 0 {
        return Vec::new(); // an engine without a disk
    }
    let freed: u64 = watched.prunes.iter().map(|(_, pruned)| pruned.disk_bytes).sum();
    let mut rows = vec![row("disk", "disk given back by retention".to_owned(), freed as f64 / 1e6, "MB")];
    let per_payload = |stats: &Stats| ratio(stats.disk_bytes as f64, stats.body_bytes as f64);
    let by_before =
        per_payload(after).zip(per_payload(before)).and_then(|(after, before)| ratio(after, before));
    if let Some(by_before) = by_before {
        rows.push(row("disk", "disk by payload after retention, by that before".to_owned(), by_before, "x"));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_during_a_prune_are_separated_from_others() {
        let zero = Instant::now();
        let stretch = |from: u64, until: u64| Stretch {
            begun: zero + Duration::from_millis(from),
            ended: zero + Duration::from_millis(until),
        };
        let pruned = Pruned { messages: 10, disk_bytes: 2_000_000, parts: 1 };
        let stats = |disk_bytes: u64, body_bytes: u64| Stats { disk_bytes, body_bytes, ..Stats::default() };
        let watched = Watched {
            before: stretch(0, 5),
            prunes: vec![(stretch(9, 10), pruned), (stretch(100, 101), pruned)],
            appends: vec![stretch(0, 3), stretch(3, 10), stretch(10, 12), stretch(12, 91)],
            queries: vec![stretch(0, 4), stretch(9, 17), stretch(50, 52)],
            stats: (stats(20_000_000, 10_000_000), stats(18_000_000, 8_000_000)),
        };
        let rows = rows("log", &Dataset::new(0, 100), &watched);
        assert_eq!(rows[0].value, 7.0);
        assert_eq!((rows[1].value, rows[1].longest_append_ms), (1.0, Some(7.0)));
        assert_eq!(rows[2].longest_append_ms, None);
        let find = |measure: &str, unit: &str| {
            let of_it = rows.iter().filter(|row| row.measure == measure && row.unit == unit);
            of_it.map(|row| (row.value.round(), row.times)).collect::<Vec<_>>()
        };
        assert_eq!(find("queries", "ms"), [(4.0, Some(2)), (8.0, Some(1))]);
        assert_eq!(find("queries", "x"), [(2.0, Some(1))]);
        assert_eq!(find("appends", "ms"), [(79.0, Some(2)), (7.0, Some(2))]);
        assert_eq!(find("disk", "MB"), [(4.0, None)]);
        let by_before = rows.iter().find(|row| row.measure == "disk" && row.unit == "x").unwrap();
        assert_eq!(by_before.value, 1.125); // 18 MB for 8 where 20 MB were for 10
    }
}
