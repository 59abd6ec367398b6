//! The load under which MongooseIM was profiled: users arrive one after the other, and all connected users write to a
//! neighbour.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde::Serialize;

use super::{
    restante_table::RestanteTable,
    session_table::{NAME_BYTES, Name, SessionTable, info_of, write_name},
};
use crate::{
    measure::{Latencies, rounded},
    progress,
    random::Random,
};

/// The published number of users and interval of arrivals.
const USERS: u32 = 12_000;
const USERS_QUICK: u32 = 200;
pub(super) const SEED_ARRIVAL_US: u64 = 10_000;
/// Look-ups per arrival: the profile has 25,135 look-ups and 1,001 opened sessions.
const LOOKUPS: usize = 25;

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AmocRow {
    part: &'static str,
    pub(super) table: &'static str,
    pub(super) op: &'static str,
    /// Sessions at the end.
    pub(super) sessions: u64,
    pub(super) arrival_us: u64,
    /// The number of operations.
    pub(super) count: u64,
    pub(super) ns_per_op: f64,
    pub(super) p99_ns: f64,
}

/// How long each kind of operation took.
#[derive(Default)]
struct Times {
    open: Latencies,
    presence: Latencies,
    carbons: Latencies,
    lookup: Latencies,
}

/// Lets the users arrive.
pub(super) async fn measure(arrival_us: u64, is_quick: bool) -> anyhow::Result<Vec<AmocRow>> {
    let users = if is_quick { USERS_QUICK } else { USERS };
    let table = RestanteTable::open().await?;
    let interval = Duration::from_micros(arrival_us);
    let times = tokio::task::spawn_blocking(move || arrive(&table, users, interval)).await??;
    let row = |op, times: &Latencies| AmocRow {
        part: "amoc",
        table: RestanteTable::NAME,
        op,
        sessions: u64::from(users),
        arrival_us,
        count: times.len(),
        ns_per_op: rounded(times.median_ms() * 1e6),
        p99_ns: rounded(times.p99_ms() * 1e6),
    };
    Ok(vec![
        row("by_user", &times.lookup),
        row("open", &times.open),
        row("set_presence", &times.presence),
        row("merge_info", &times.carbons),
    ])
}

fn arrive(table: &RestanteTable, users: u32, interval: Duration) -> anyhow::Result<Times> {
    let bar = progress::bar("amoc: users arrive, and write to their neighbours", u64::from(users));
    let mut times = Times::default();
    let mut random = Random::new(0, 34);
    let begun = Instant::now();
    for number in 0..users {
        let due = begun + interval * number;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        enter(table, number, &mut times)?;
        write_to_neighbours(table, number + 1, &mut random, &mut times.lookup)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(times)
}

/// A client's start: it connects, sends its presence, and enables carbons.
fn enter(table: &RestanteTable, number: u32, times: &mut Times) -> anyhow::Result<()> {
    let mut text = String::with_capacity(NAME_BYTES);
    write_name(number, &mut text);
    let name = Name::of(&text).context("a name is too short")?;
    let info = info_of(number);
    let (id, took) = timed(|| table.open(name, &info));
    times.open.record(took);
    let id = id.context("a session was refused")?;
    let (is_available, took) = timed(|| table.set_presence(name, id, 0));
    times.presence.record(took);
    let (has_carbons, took) = timed(|| table.merge_info(name, id, 2));
    times.carbons.record(took);
    ensure!(is_available && has_carbons, "a session was lost");
    Ok(())
}

/// Some users write to the next one that arrived; the last of them writes to the first.
fn write_to_neighbours(
    table: &RestanteTable,
    present: u32,
    random: &mut Random,
    times: &mut Latencies,
) -> anyhow::Result<()> {
    let mut names = String::with_capacity(LOOKUPS * NAME_BYTES);
    for _ in 0..LOOKUPS {
        let sender = random.below(u64::from(present)) as u32;
        write_name((sender + 1) % present, &mut names);
    }
    for at in 0..LOOKUPS {
        let name = names.get(at * NAME_BYTES..(at + 1) * NAME_BYTES).and_then(Name::of);
        let neighbour = name.context("a name is missing")?;
        let (found, took) = timed(|| table.by_user(neighbour.user));
        times.record(took);
        ensure!(found == 1, "a neighbour has {found} sessions");
    }
    Ok(())
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let done = work();
    (done, begun.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn all_users_arrive_and_write() {
        let rows = measure(1, true).await.unwrap();
        let counts: Vec<_> = rows.iter().map(|row| (row.op, row.count)).collect();
        let users = u64::from(USERS_QUICK);
        let lookups = users * LOOKUPS as u64;
        assert_eq!(
            counts,
            [("by_user", lookups), ("open", users), ("set_presence", users), ("merge_info", users)]
        );
    }
}
