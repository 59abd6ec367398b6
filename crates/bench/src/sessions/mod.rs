//! Sessions: the info of a session, the table of sessions, and live delivery.
//!
//! What is public here lets `tests/compare` measure other tables in the same way.

mod amoc;
mod chase;
mod child;
mod counts;
mod entries;
mod load;
mod memory;
mod population;
mod present;
mod redis;
mod restante_table;
mod session_table;
mod streams;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use restante_sessions::InfoBuf;

use crate::{
    args::{CommonArgs, Sizes},
    machine::Machine,
    report::Report,
    server,
    store::work_folder,
};
use amoc::AmocRow;
pub use child::Runner;
use counts::CountsRow;
use redis::RedisRow;
use session_table::USERS_MAX;
use streams::StreamsRow;

pub use entries::{
    BYTES_SIZES, Changes, EntriesRow, EntryBytes, InfoMap, KEYS, MERGES, Order, assert_is_map, bytes_of,
    map_count, measure_map,
};
pub use memory::{MemoryRow, add_bytes, fill, fills, memory_rows};
pub use present::{bytes_table, find_table, memory_table, merge_table, op_bars, op_table};
pub use restante_table::RestanteTable;
pub use session_table::{Name, SessionTable, assert_is_table, route};
pub use table::{Plan, TableRow, measure_table};

/// Sizes of the table: that of MongooseIM's measurement, and a large server's.
const SIZES: &str = "12000,1000000";
const SIZES_QUICK: [u32; 2] = [200, 500];
const STREAMS: u64 = 10_000;
const STREAMS_QUICK: u64 = 20;
/// Tables need names for a quarter more users than sessions; larger ones exceed the memory of most machines.
const SESSIONS_MAX: u64 = USERS_MAX as u64 / 4;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// MongooseIM's micro-benchmark: finding and merging entries of a session's info, and their bytes
    Entries,
    /// Operations of the table, on one and two threads
    Table,
    /// Bytes per session at 16 fills around the largest size
    Memory,
    /// Counting sessions and users in small and large tables
    Counts,
    /// 12,000 users that arrive one after the other and write to their neighbours
    Amoc,
    /// The redis engine: operations through one connection, bytes per session in Redis
    Redis,
    /// Live streams over REST: messages to 10,000 readers, delivery times, memory per stream
    Streams,
}

impl Part {
    const ALL: [Self; 7] =
        [Self::Entries, Self::Table, Self::Memory, Self::Counts, Self::Amoc, Self::Redis, Self::Streams];
}

/// Flags of `bench sessions`.
#[derive(clap::Args, Clone, Debug)]
#[command(
    after_long_help = "Without --parts, everything is measured, redis only where a server is named. --engine and --messages are about the part streams alone: the archive of its server, and how \
many messages are published to the streams [default: 10000].

Examples:
  restante bench sessions --html sessions.html
  restante bench sessions --parts entries,table
  restante bench sessions --parts table,memory --sizes 100000
  restante bench sessions --parts redis --redis redis://127.0.0.1:6379/9
  restante bench sessions --parts streams --streams 50000 --messages 60000"
)]
pub struct SessionsArgs {
    /// Flags of every bench; the data set has no part in this one
    #[command(flatten)]
    pub common: CommonArgs,
    /// What to measure, separated by commas
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    pub parts: Vec<Part>,
    /// Sessions in the table, separated by commas; a million take 300 MB of memory
    #[arg(long, value_name = "N,N", default_value = SIZES)]
    pub sizes: Sizes,
    /// Microseconds between two arrivals in the part amoc; the published 10000 take two minutes
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub arrival_us: u64,
    /// Redis for the part redis; keys of its own are written there and removed afterwards
    #[arg(long, value_name = "URL", env = "RESTANTE_REDIS_URL", hide_env_values = true)]
    pub redis: Option<String>,
    /// Live streams; each needs an open file here and one in the server
    #[arg(long, value_name = "N", default_value_t = STREAMS, value_parser = clap::value_parser!(u64).range(1..=200_000))]
    pub streams: u64,
    /// Program to run as the server, and to measure memory in; without it this one
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
}

impl SessionsArgs {
    fn sizes(&self) -> anyhow::Result<Vec<u32>> {
        if self.common.quick {
            return Ok(SIZES_QUICK.to_vec());
        }
        let mut sizes = Vec::new();
        for size in &self.sizes.0 {
            ensure!(
                (100..=SESSIONS_MAX).contains(size),
                "a table has 100 to {SESSIONS_MAX} sessions, not {size}"
            );
            sizes.push(u32::try_from(*size)?);
        }
        Ok(sizes)
    }

    fn streams(&self) -> u64 {
        self.common.pick(self.streams, self.streams.min(STREAMS_QUICK))
    }

    /// What to measure, in the order of parts.
    fn parts(&self) -> anyhow::Result<Vec<Part>> {
        if self.parts.is_empty() {
            let is_possible = |part: &Part| *part != Part::Redis || self.redis.is_some();
            return Ok(Part::ALL.into_iter().filter(is_possible).collect());
        }
        if self.parts.contains(&Part::Redis) && self.redis.is_none() {
            bail!("no Redis is named: use --redis redis://HOST:PORT/DATABASE or set RESTANTE_REDIS_URL");
        }
        Ok(Part::ALL.into_iter().filter(|part| self.parts.contains(part)).collect())
    }
}

/// Everything that was measured.
#[derive(Default)]
struct Measured {
    entries: Vec<EntriesRow>,
    entry_bytes: Vec<EntryBytes>,
    table: Vec<TableRow>,
    memory: Vec<MemoryRow>,
    counts: Vec<CountsRow>,
    amoc: Vec<AmocRow>,
    redis: Vec<RedisRow>,
    streams: Vec<StreamsRow>,
}

/// Runs the bench and delivers its report; in a child process, runs the task of the environment.
pub(crate) async fn run(args: &SessionsArgs) -> anyhow::Result<()> {
    if let Ok(task) = std::env::var(child::TASK) {
        return child::run_task(&task).await;
    }
    measure(args).await?.deliver(&args.common)
}

/// Runs the bench.
pub(crate) async fn measure(args: &SessionsArgs) -> anyhow::Result<Report> {
    let parts = args.parts()?;
    let folder = work_folder(&args.common)?;
    let title = "Sessions: their info, the table that finds them, and live delivery.";
    let mut report = Report::new("sessions", title, Machine::look(folder.path()));
    let bench = Bench {
        args,
        folder: folder.path(),
        sizes: args.sizes()?,
        runner: Runner {
            program: server::program(args.server.as_deref())?,
            args: &["bench", "sessions"],
            variable: child::TASK,
        },
    };
    let mut measured = Measured::default();
    for part in parts {
        bench.measure(part, &mut measured, &mut report).await?;
    }
    present::present(&measured, &bench.sizes, args, &mut report)?;
    Ok(report)
}

struct Bench<'a> {
    args: &'a SessionsArgs,
    folder: &'a Path,
    sizes: Vec<u32>,
    runner: Runner,
}

impl Bench<'_> {
    async fn measure(&self, part: Part, measured: &mut Measured, report: &mut Report) -> anyhow::Result<()> {
        let common = &self.args.common;
        let is_quick = common.quick;
        match part {
            Part::Entries => {
                measured.entries =
                    tokio::task::spawn_blocking(move || measure_map::<InfoBuf>(is_quick)).await??;
                let bytes = entries::entry_bytes(&self.runner, is_quick).await;
                measured.entry_bytes = self.or_note(bytes, "bytes per entry", report);
            }
            Part::Table => {
                measured.table = table::measure(&self.sizes, is_quick).await?;
                let added = memory::add_to(&mut measured.table, &self.runner, &self.sizes).await;
                self.or_note(added, "bytes per session of the operations", report);
            }
            Part::Memory => {
                let size = self.sizes.last().copied().unwrap_or_default();
                let rows = memory::measure(&self.runner, size).await;
                measured.memory = self.or_note(rows, "bytes per session", report);
            }
            Part::Counts => measured.counts = counts::measure(&self.sizes).await?,
            Part::Amoc => measured.amoc = amoc::measure(self.args.arrival_us, is_quick).await?,
            Part::Redis => {
                let url = self.args.redis.as_deref().unwrap_or_default();
                measured.redis = redis::measure(url, is_quick).await?;
            }
            Part::Streams => {
                for choice in &common.engines {
                    let streams = self.args.streams();
                    let row = streams::measure(&self.runner.program, self.folder, choice, streams, common);
                    measured.streams.push(row.await?);
                }
            }
        }
        Ok(())
    }

    /// The measured rows; on an error none, and a note with the reason.
    fn or_note<T: Default>(&self, measured: anyhow::Result<T>, what: &str, report: &mut Report) -> T {
        measured.unwrap_or_else(|error| {
            report.notes.push(format!("{what}: not measured, because {error:#}."));
            T::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::assert_explained, tests::quick};

    fn args(parts: &[Part]) -> SessionsArgs {
        SessionsArgs {
            common: quick("memory:"),
            parts: parts.to_vec(),
            sizes: SIZES.parse().unwrap(),
            arrival_us: 1,
            redis: None,
            streams: STREAMS,
            server: Some("/bin/false".into()),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_small_run_has_a_complete_report() {
        let parts = [Part::Entries, Part::Table, Part::Memory, Part::Counts, Part::Amoc];
        let report = measure(&args(&parts)).await.unwrap();
        let table: Vec<_> = report.rows.iter().filter(|row| row["part"] == "table").collect();
        assert!(!table.is_empty());
        for row in table {
            for key in ["table", "sessions", "threads", "op", "ns_per_op", "cache_miss_ns"] {
                assert!(!row[key].is_null(), "{key} is missing in {row}");
            }
            assert!(row.get("bytes_per_session").is_some(), "{row}");
        }
        for part in ["entries", "counts", "amoc"] {
            assert!(report.rows.iter().any(|row| row["part"] == part), "{part} has no rows");
        }
        let missing = report.notes.iter().filter(|note| note.contains("not measured")).count();
        assert_eq!(missing, 3, "a child that fails leaves a note: {:?}", report.notes);
        assert!(report.plots.len() >= 3);
        assert!(report.goals.is_empty(), "a quick run is not judged");
        assert_explained(&report.tables);
    }

    #[test]
    fn parts_that_can_run_are_chosen() {
        let without = args(&[]);
        let parts = without.parts().unwrap();
        assert!(!parts.contains(&Part::Redis) && parts.len() == 6);
        let with_redis = SessionsArgs { redis: Some("redis://localhost".to_owned()), ..args(&[]) };
        assert_eq!(with_redis.parts().unwrap(), Part::ALL);
        assert!(args(&[Part::Redis]).parts().unwrap_err().to_string().contains("--redis"));
        let chosen = args(&[Part::Table, Part::Entries]).parts().unwrap();
        assert_eq!(chosen, [Part::Entries, Part::Table]);
    }

    #[test]
    fn sizes_are_bounded() {
        let real = |sizes: &str| {
            let common = CommonArgs { quick: false, ..quick("memory:") };
            SessionsArgs { common, sizes: sizes.parse().unwrap(), ..args(&[]) }.sizes()
        };
        assert_eq!(real(SIZES).unwrap(), [12_000, 1_000_000]);
        assert!(real("99").is_err() && real("30000000").is_err());
    }
}
