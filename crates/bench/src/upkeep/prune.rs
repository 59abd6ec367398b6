//! Retention of the oldest day, beside an appender that does not pause.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use restante_archive::{Archive, Retention};

use super::UpkeepRow;
use crate::{
    args::CommonArgs,
    dataset::{DAYS, Dataset, day_start},
    measure::{ms, rounded},
    store::{Store, append_new},
    supply::Supply,
};

/// Days that are removed, one by one.
const PRUNED_DAYS: usize = 5;
/// How long appends are watched before the first prune, and between prunes.
const BEFORE: Duration = Duration::from_millis(1_500);
const BETWEEN: Duration = Duration::from_millis(200);

/// When an append, or a prune, began and ended.
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

pub(super) async fn measure(
    store: &Store,
    dataset: &Arc<Dataset>,
    common: &CommonArgs,
) -> anyhow::Result<Vec<UpkeepRow>> {
    let stop = Arc::new(AtomicBool::new(false));
    let supply = Supply::of(dataset, day_start(DAYS));
    let appender = tokio::spawn(append_until(store.archive().clone(), supply, stop.clone()));
    let begun = Instant::now();
    tokio::time::sleep(common.pick(BEFORE, BETWEEN / 10)).await;
    let before = Stretch { begun, ended: Instant::now() };
    let mut prunes = Vec::new();
    for day in 0..PRUNED_DAYS {
        prunes.push(prune_day(store, dataset, day).await?);
        tokio::time::sleep(common.pick(BETWEEN, BETWEEN / 10)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let appends = appender.await??;
    Ok(rows(store.engine(), dataset, before, &prunes, &appends))
}

/// Removes one day: with a `now` thirty days behind that day's end, a policy of thirty days keeps what is younger.
async fn prune_day(store: &Store, dataset: &Dataset, day: usize) -> anyhow::Result<Stretch> {
    const DAY_SECONDS: u64 = 86_400;
    let policy = Retention { time_seconds: Some(DAYS as u64 * DAY_SECONDS), ..Retention::default() };
    let now = day_start(day + 1 + DAYS);
    let begun = Instant::now();
    let pruned = store.opened.upkeep.prune(&policy, now).await?;
    let ended = Instant::now();
    let (removed, expected) = (pruned.messages, dataset.day_len(day));
    ensure!(
        removed == expected,
        "retention of day {day} removed {removed} messages where the day has {expected}"
    );
    Ok(Stretch { begun, ended })
}

/// Appends message after message, each when the one before is durable.
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

fn rows(
    engine: &'static str,
    dataset: &Dataset,
    before: Stretch,
    prunes: &[Stretch],
    appends: &[Stretch],
) -> Vec<UpkeepRow> {
    let longest = |stretch: &Stretch| {
        appends
            .iter()
            .filter(|append| append.overlaps(stretch))
            .map(Stretch::ms)
            .max_by(f64::total_cmp)
            .map(rounded)
    };
    let mut rows = vec![UpkeepRow {
        engine,
        messages: dataset.len(),
        measure: "append",
        what: "longest append before retention".to_owned(),
        value: longest(&before).unwrap_or(0.0),
        unit: "ms",
        longest_append_ms: None,
    }];
    for (day, prune) in prunes.iter().enumerate() {
        rows.push(UpkeepRow {
            engine,
            messages: dataset.len(),
            measure: "prune",
            what: format!("retention of day {}, {} messages", day + 1, dataset.day_len(day)),
            value: rounded(prune.ms()),
            unit: "ms",
            longest_append_ms: longest(prune),
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_append_is_one_that_was_under_way() {
        let zero = Instant::now();
        let stretch = |from: u64, until: u64| Stretch {
            begun: zero + Duration::from_millis(from),
            ended: zero + Duration::from_millis(until),
        };
        let appends = [stretch(0, 3), stretch(3, 10), stretch(10, 11), stretch(11, 90)];
        let rows =
            rows("log", &Dataset::new(0, 100), stretch(0, 5), &[stretch(9, 10), stretch(100, 101)], &appends);
        assert_eq!(rows[0].value, 7.0);
        assert_eq!((rows[1].value, rows[1].longest_append_ms), (1.0, Some(7.0)));
        assert_eq!(rows[2].longest_append_ms, None);
    }
}
