//! Records: KDE Sink's tables, bytes on disk and written for mail-like records, and times of commits and reads.

mod batch;
mod child;
mod churn;
mod cost;
mod fill;
mod group;
mod input;
mod mail;
mod present;
mod read;
mod seed;
mod sink;
mod store;

use std::path::Path;

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use serde::de::DeserializeOwned;

pub use store::RecordsEngine;

use crate::{
    args::{OutputArgs, Sizes},
    machine::Machine,
    progress,
    report::Report,
    server,
    store::work_folder,
};
use batch::BatchFigures;
use child::{Job, Runner, Task};
use churn::ChurnFigures;
use cost::Row;
use group::GroupFigures;
use input::Input;
use read::ReadFigures;
use seed::SeedFigures;

/// Sizes of a store, from too small to show growth to large.
const SIZES: &str = "10000,100000,1000000";
const SIZES_QUICK: [u64; 1] = [250];
/// Enough for a hundred changes and twenty mails in the inbox.
const RECORDS_MIN: u64 = 200;
const RECORDS_MAX: u64 = 100_000_000;
/// Mails in Sink's two tables.
const SEED1_MAILS: u64 = 5_000;
const SEED2_MAILS: u64 = 1_000;
const SEED_MAILS_QUICK: u64 = 250;
/// Mails of the part churn, and changes of their flags.
const CHURN_MAILS: u64 = 50_000;
const CHURN_CHANGES: u64 = 10_000;
const CHURN_MAILS_QUICK: u64 = 300;
const CHURN_CHANGES_QUICK: u64 = 150;
/// Mails of a commit where filling is not measured.
const FILL_BATCH: u64 = 1_000;
/// The smallest store that is read.
const READ_MIN: u64 = 100_000;
/// Bytes on disk of a mail, in the largest engine, garbage included.
const DISK_BYTES_PER_MAIL: u64 = 2_500;
/// Bytes on disk of an empty store: preallocated commit logs.
const DISK_BYTES_AT_LEAST: u64 = 100 << 20;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The first table that KDE Sink's authors published: 5,000 mails of 184 bytes
    Seed1,
    /// Its second table: 1,000 of them
    Seed2,
    /// Bytes on disk and bytes written for mail-like records of 602 bytes, 1 to 1,000 in a commit
    Batch,
    /// Flag changes: 10,000 in 50,000 records
    Churn,
    /// Single records, the newest of a mailbox, changes since
    Read,
    /// Commits one at a time and by 64 committers, compared with the disk alone
    Group,
}

impl Part {
    const ALL: [Self; 6] = [Self::Seed1, Self::Seed2, Self::Batch, Self::Churn, Self::Read, Self::Group];
}

/// Flags of `bench records`.
#[derive(clap::Args, Clone, Debug)]
#[command(
    after_long_help = "Every measurement has a fresh store, which is removed afterwards, and a process of its own.

Examples:
  restante bench records --data /var/lib/restante --html records.html     (measures the disk below that folder)
  restante bench records --parts seed1,seed2
  restante bench records --parts batch,read --records 100000
  restante bench records --engine lmdb,lmdb-without-log,lmdb-uncompressed --parts batch --records 100000
  restante bench records --quick --json records.json"
)]
pub struct RecordsArgs {
    /// What to measure, separated by commas; without it everything
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    pub parts: Vec<Part>,
    /// Engines to measure, separated by commas; Sink's tables also have lmdb-uncompressed
    #[arg(
        long,
        value_name = "ENGINE",
        value_enum,
        value_delimiter = ',',
        default_value = "lmdb,lmdb-without-log"
    )]
    pub engine: Vec<RecordsEngine>,
    /// Records in a store, separated by commas, for the parts batch and read
    #[arg(long, value_name = "N,N", default_value = SIZES)]
    pub records: Sizes,
    /// Accounts that the records of the part batch belong to; each commit is of one, at random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub accounts: u32,
    /// Seed of the records
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Where files and results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl RecordsArgs {
    fn parts(&self) -> Vec<Part> {
        let is_chosen = |part: &Part| self.parts.is_empty() || self.parts.contains(part);
        Part::ALL.into_iter().filter(is_chosen).collect()
    }

    fn sizes(&self) -> anyhow::Result<Vec<u64>> {
        if self.output.quick {
            return Ok(SIZES_QUICK.to_vec());
        }
        for size in &self.records.0 {
            ensure!(
                (RECORDS_MIN..=RECORDS_MAX).contains(size),
                "a store has {RECORDS_MIN} to {RECORDS_MAX} records here, not {size}"
            );
        }
        Ok(self.records.0.clone())
    }

    /// The sizes at which a store is read: the larger ones, or the largest when all are small.
    fn read_sizes(&self) -> anyhow::Result<Vec<u64>> {
        let sizes = self.sizes()?;
        let largest = sizes.last().copied();
        let is_large = |size: &u64| *size >= READ_MIN || Some(*size) == largest;
        Ok(sizes.into_iter().filter(is_large).collect())
    }

    /// The engines of Sink's tables. Mails of one subject compress better than real ones, so there is a column without.
    fn seed_engines(&self) -> Vec<RecordsEngine> {
        let mut engines = self.engine.clone();
        let plain = RecordsEngine::LmdbUncompressed;
        if engines.contains(&RecordsEngine::Lmdb) && !engines.contains(&plain) {
            engines.push(plain);
        }
        engines
    }
}

/// Everything that was measured.
#[derive(Default)]
struct Measured {
    input: Option<Input>,
    seed1: Vec<Row<SeedFigures>>,
    seed2: Vec<Row<SeedFigures>>,
    batch: Vec<Row<BatchFigures>>,
    churn: Vec<Row<ChurnFigures>>,
    read: Vec<Row<ReadFigures>>,
    group: Vec<Row<GroupFigures>>,
}

/// Runs the bench and delivers its report; in a child process, runs one measurement.
pub(crate) async fn run(args: &RecordsArgs) -> anyhow::Result<()> {
    if let Ok(task) = std::env::var(child::TASK) {
        return child::run_task(&task).await;
    }
    let runner = Runner::Child(server::program(None)?);
    measure(args, runner).await?.deliver(&args.output.common(args.seed))
}

/// Runs the bench.
async fn measure(args: &RecordsArgs, runner: Runner) -> anyhow::Result<Report> {
    let folder = work_folder(&args.output.common(args.seed))?;
    check_space(folder.path(), args.sizes()?.last().copied().unwrap_or_default())?;
    let title = "Records: revisioned objects with indexes, in durable commits; what they take on disk, what is written for \
                 them, how long commits and reads take.";
    let mut report = Report::new("records", title, Machine::look(folder.path()));
    let bench = Bench { args, folder: folder.path(), runner };
    let mut measured = Measured::default();
    for part in args.parts() {
        bench.measure(part, &mut measured).await?;
    }
    present::present(&measured, args.output.quick, &mut report)?;
    Ok(report)
}

/// Fails when the disk lacks space for the largest store.
fn check_space(folder: &Path, records: u64) -> anyhow::Result<()> {
    let needed = records * DISK_BYTES_PER_MAIL + DISK_BYTES_AT_LEAST;
    let disk = rustix::fs::statvfs(folder)
        .with_context(|| format!("can't read the free space of {}", folder.display()))?;
    let free = disk.f_bavail * disk.f_frsize;
    if free < needed {
        let (needed, free) = (needed as f64 / 1e9, free as f64 / 1e9);
        bail!(
            "{records} records need up to {needed:.1} GB and {} has {free:.1} GB free: choose another folder with --data, \
             or fewer records",
            folder.display()
        );
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a RecordsArgs,
    folder: &'a Path,
    runner: Runner,
}

impl Bench<'_> {
    async fn measure(&self, part: Part, measured: &mut Measured) -> anyhow::Result<()> {
        match part {
            Part::Seed1 => measured.seed1 = self.seed("seed1", SEED1_MAILS).await?,
            Part::Seed2 => measured.seed2 = self.seed("seed2", SEED2_MAILS).await?,
            Part::Batch => {
                let seed = self.args.seed;
                measured.input = Some(tokio::task::spawn_blocking(move || input::look(seed)).await??);
                measured.batch = self.batch().await?;
            }
            Part::Churn => measured.churn = self.churn().await?,
            Part::Read => measured.read = self.read().await?,
            Part::Group => {
                let jobs: Vec<_> = self.args.engine.iter().map(|engine| (*engine, Job::Group)).collect();
                let bar = progress::bar("commits, one at a time and by 64", jobs.len() as u64);
                for rows in self.all("group", jobs, &bar).await? {
                    measured.group.extend(several::<GroupFigures>(rows));
                }
            }
        }
        Ok(())
    }

    async fn seed(&self, table: &'static str, mails: u64) -> anyhow::Result<Vec<Row<SeedFigures>>> {
        let entities = self.pick(mails, SEED_MAILS_QUICK);
        let jobs: Vec<_> =
            self.args.seed_engines().into_iter().map(|engine| (engine, Job::Seed { entities })).collect();
        let bar = progress::bar("Sink's mails", jobs.len() as u64);
        self.all(table, jobs, &bar).await
    }

    async fn batch(&self) -> anyhow::Result<Vec<Row<BatchFigures>>> {
        let (sizes, accounts) = (self.args.sizes()?, self.args.accounts);
        let mut jobs = Vec::new();
        for engine in &self.args.engine {
            for batch::Cell { entities, batch } in batch::cells(*engine, &sizes) {
                jobs.push((*engine, Job::Batch { entities, batch, accounts }));
            }
        }
        let bar = progress::bar("records in commits of 1 to 1,000", jobs.len() as u64);
        self.all("batch", jobs, &bar).await
    }

    async fn churn(&self) -> anyhow::Result<Vec<Row<ChurnFigures>>> {
        let job = Job::Churn {
            entities: self.pick(CHURN_MAILS, CHURN_MAILS_QUICK),
            batch: FILL_BATCH,
            changes: self.pick(CHURN_CHANGES, CHURN_CHANGES_QUICK),
        };
        let jobs: Vec<_> = self.args.engine.iter().map(|engine| (*engine, job)).collect();
        let bar = progress::bar("flag changes", jobs.len() as u64);
        self.all("churn", jobs, &bar).await
    }

    async fn read(&self) -> anyhow::Result<Vec<Row<ReadFigures>>> {
        let mut jobs = Vec::new();
        for engine in &self.args.engine {
            for entities in self.args.read_sizes()? {
                jobs.push((*engine, Job::Read { entities, batch: FILL_BATCH }));
            }
        }
        let bar = progress::bar("reads", jobs.len() as u64);
        let rows = self.all("read", jobs, &bar).await?;
        Ok(rows.into_iter().flat_map(several).collect())
    }

    /// Runs the jobs one after the other, each with a fresh folder.
    async fn all<F: DeserializeOwned>(
        &self,
        table: &'static str,
        jobs: Vec<(RecordsEngine, Job)>,
        bar: &ProgressBar,
    ) -> anyhow::Result<Vec<Row<F>>> {
        let mut rows = Vec::new();
        for (engine, job) in jobs {
            let folder = tempfile::Builder::new().prefix("records-").tempdir_in(self.folder)?;
            let task = Task {
                engine,
                folder: folder.path().to_owned(),
                seed: self.args.seed,
                is_quick: self.args.output.quick,
                job,
            };
            let figures =
                self.runner.run(&task).await.with_context(|| format!("{}, {job:?}", engine.name()))?;
            rows.push(Row { table, engine: engine.name(), figures });
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    fn pick(&self, real: u64, quick: u64) -> u64 {
        if self.args.output.quick { quick } else { real }
    }
}

/// A row for each of several figures.
fn several<F>(row: Row<Vec<F>>) -> Vec<Row<F>> {
    let one = |figures| Row { table: row.table, engine: row.engine, figures };
    row.figures.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_explained;

    fn args(engines: &[RecordsEngine], parts: &[Part]) -> RecordsArgs {
        RecordsArgs {
            parts: parts.to_vec(),
            engine: engines.to_vec(),
            records: SIZES.parse().unwrap(),
            accounts: 1,
            seed: 0,
            output: OutputArgs { data: Some(std::env::temp_dir()), json: None, html: None, quick: true },
        }
    }

    async fn report(engines: &[RecordsEngine], parts: &[Part]) -> Report {
        measure(&args(engines, parts), Runner::Here).await.unwrap()
    }

    /// The keys of every row, with or without a figure.
    const KEYS: [&str; 8] = [
        "engine",
        "entities",
        "batch",
        "disk_bytes",
        "payload_bytes",
        "written_bytes",
        "device_bytes",
        "median_us",
    ];

    fn rows<'a>(report: &'a Report, table: &str) -> Vec<&'a serde_json::Value> {
        report.rows.iter().filter(|row| row["table"] == table).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_small_run_has_a_complete_report() {
        let report = report(&[RecordsEngine::Lmdb, RecordsEngine::LmdbWithoutLog], &[]).await;
        for (table, count) in
            [("seed1", 3), ("seed2", 3), ("batch", 8), ("churn", 2), ("read", 20), ("group", 4)]
        {
            let rows = rows(&report, table);
            assert_eq!(rows.len(), count, "{table}");
            for row in rows {
                assert!(KEYS.iter().all(|key| row.get(key).is_some()), "{row}");
                assert!(row["median_us"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
        assert_eq!(rows(&report, "input").len(), 1);
        for row in rows(&report, "seed1").into_iter().chain(rows(&report, "batch")) {
            let figure = |key: &str| row[key].as_u64().unwrap();
            assert!(
                figure("disk_bytes") > 0 && figure("payload_bytes") > 0 && figure("rss_bytes") > 0,
                "{row}"
            );
            assert!(row["closed"]["folder_bytes"].as_u64() >= row["disk_bytes"].as_u64(), "{row}");
        }
        assert!(report.plots.len() >= 6);
        assert!(report.goals.is_empty(), "a quick run is not judged");
        assert_explained(&report.tables);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_engine_without_a_disk_has_times_and_no_bytes() {
        let report =
            report(&[RecordsEngine::Memory], &[Part::Seed2, Part::Batch, Part::Churn, Part::Read]).await;
        assert_eq!((rows(&report, "batch").len(), rows(&report, "group").len()), (4, 0));
        for row in rows(&report, "batch").into_iter().chain(rows(&report, "seed2")) {
            assert!(row["disk_bytes"].is_null() && row["written_bytes"].is_null(), "{row}");
            assert!(row["payload_bytes"].as_u64().unwrap() > 0, "{row}");
        }
        let sum = |row: &serde_json::Value| {
            row["payload_bytes"].as_u64().unwrap() / row["entities"].as_u64().unwrap()
        };
        assert!(rows(&report, "batch").into_iter().all(|row| (560..640).contains(&sum(row))));
        assert!(rows(&report, "seed2").into_iter().all(|row| sum(row) == 184));
    }

    #[test]
    fn requested_parts_sizes_and_engines_are_chosen() {
        let usual = args(&[RecordsEngine::Lmdb], &[]);
        assert_eq!(usual.parts(), Part::ALL);
        assert_eq!(args(&[], &[Part::Read, Part::Seed1]).parts(), [Part::Seed1, Part::Read]);
        assert_eq!(usual.seed_engines(), [RecordsEngine::Lmdb, RecordsEngine::LmdbUncompressed]);
        assert_eq!(args(&[RecordsEngine::Memory], &[]).seed_engines(), [RecordsEngine::Memory]);
        let output = OutputArgs { quick: false, ..usual.output.clone() };
        let real = |sizes: &str| RecordsArgs {
            records: sizes.parse().unwrap(),
            output: output.clone(),
            ..usual.clone()
        };
        assert_eq!(real(SIZES).read_sizes().unwrap(), [100_000, 1_000_000]);
        assert_eq!(real("1000,10000").read_sizes().unwrap(), [10_000]);
        assert!(real("100").sizes().is_err());
    }

    #[test]
    fn a_store_without_enough_disk_space_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_space(folder.path(), 1).is_ok());
        let error = check_space(folder.path(), 1 << 50).unwrap_err().to_string();
        assert!(error.contains("--data"), "{error}");
    }
}
