//! The directory: where mail for an address goes, and how long log-ins take.

use std::{
    net::{IpAddr, Ipv4Addr},
    num::NonZero,
    sync::Arc,
    thread,
    time::Instant,
};

use anyhow::{Context, ensure};
use restante_core::SystemClock;
use restante_directory::{
    Actor, Directory, DirectoryConfig, DirectoryMetrics, Domain, EmailAddress, NewPassword, Operation,
    Resolution, Role,
};
use restante_records::{EngineUrl, Schema};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    args::OutputArgs,
    machine::Machine,
    measure::{median, rounded},
    progress,
    report::{Goal, Report, Table, number},
    store::work_folder,
};

const ACCOUNTS: u64 = 100_000;
const ACCOUNTS_QUICK: u64 = 200;
/// Accounts that are added at the same time, so that their commits share syncs.
const ADDERS: u64 = 64;
/// Look-ups and cached log-ins that are measured.
const SAMPLES: u64 = 20_000;
const SAMPLES_QUICK: u64 = 100;
/// Accounts that have a password; one log-in of each is checked.
const PASSWORDS: u64 = 200;
const PASSWORDS_QUICK: u64 = 4;

/// Flags of `bench directory`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  restante bench directory
  restante bench directory --data /var/lib/restante --json directory.json
  restante bench directory --quick")]
pub struct DirectoryArgs {
    /// Accounts in the directory
    #[arg(long, value_name = "N", default_value_t = ACCOUNTS, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub accounts: u64,
    /// Where files and results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl DirectoryArgs {
    fn accounts(&self) -> u64 {
        if self.output.quick { ACCOUNTS_QUICK } else { self.accounts }
    }
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
struct DirectoryRow {
    what: &'static str,
    accounts: u64,
    samples: usize,
    p50_us: f64,
    p99_us: f64,
}

/// Runs the bench and delivers its report.
pub(crate) async fn run(args: &DirectoryArgs) -> anyhow::Result<()> {
    measure(args).await?.deliver(&args.output.common(0))
}

async fn measure(args: &DirectoryArgs) -> anyhow::Result<Report> {
    let common = args.output.common(0);
    let folder = work_folder(&common)?;
    let url = EngineUrl::Lmdb(folder.path().join("records"));
    let schema = Schema::new(restante_directory::kinds())?;
    let opened = restante_records::open(restante_records::Config::new(url, schema)).await?;
    let metrics = DirectoryMetrics::default();
    let config = DirectoryConfig::default();
    let rounds = config.rounds;
    let (directory, follower) = Directory::open(&opened, config, Arc::new(SystemClock), metrics).await?;
    let following = tokio::spawn(follower.run());
    let bench = Bench { directory, accounts: args.accounts(), is_quick: args.output.quick };
    bench.fill().await?;
    let look_ups = bench.look_ups().await?;
    let fresh = bench.log_ins("password that is checked").await?;
    let at_once = bench.log_ins_at_once().await?;
    let remembered = bench.remembered().await?;
    following.abort();
    opened.upkeep.close().await?;

    let title =
        "The directory: look-ups of addresses, and log-ins by password, in records of the engine lmdb.";
    let mut report = Report::new("directory", title, Machine::look(folder.path()));
    let rows = [look_ups, fresh, remembered];
    report.add_rows(&rows)?;
    present(&rows, at_once, rounds, &mut report);
    report.note_size_of(bench.accounts, ACCOUNTS, "accounts");
    report.note_debug_build();
    report.note_quick(args.output.quick);
    Ok(report)
}

struct Bench {
    directory: Directory,
    accounts: u64,
    is_quick: bool,
}

fn address(number: u64) -> anyhow::Result<EmailAddress> {
    Ok(format!("user{number}@example.org").parse()?)
}

fn password(number: u64) -> String {
    format!("password {number}")
}

/// Each client has a network of its own, as in practice.
fn ip(number: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + (number as u32 & 0xff_ffff)))
}

fn actor() -> Actor {
    Actor("restante bench".to_owned())
}

impl Bench {
    fn samples(&self) -> u64 {
        if self.is_quick { SAMPLES_QUICK } else { SAMPLES }
    }

    fn passwords(&self) -> u64 {
        if self.is_quick { PASSWORDS_QUICK } else { PASSWORDS }.min(self.accounts)
    }

    /// Adds the accounts; the first ones have passwords.
    async fn fill(&self) -> anyhow::Result<()> {
        let domain: Domain = "example.org".parse()?;
        let add = Operation::AddDomain { domain, separator: Some('+'), catch_all: None };
        self.directory.operate(&actor(), add).await?;
        let bar = progress::bar("adding accounts", self.accounts);
        let mut adders = JoinSet::new();
        for adder in 0..ADDERS {
            let (directory, bar) = (self.directory.clone(), bar.clone());
            let (accounts, passwords) = (self.accounts, self.passwords());
            adders.spawn(async move {
                for number in (adder..accounts).step_by(ADDERS as usize) {
                    let password = (number < passwords).then(|| NewPassword::Given(password(number)));
                    let address = address(number)?;
                    let add =
                        Operation::AddAccount { address, password, role: Role::User, quota_bytes: None };
                    directory.operate(&actor(), add).await?;
                    bar.inc(1);
                }
                anyhow::Ok(())
            });
        }
        while let Some(added) = adders.join_next().await {
            added.context("an adder ended early")??;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Looks up where mail for addresses goes, spread over all of them.
    async fn look_ups(&self) -> anyhow::Result<DirectoryRow> {
        let mut times = Vec::new();
        for sample in 0..self.samples() {
            // A large odd step visits addresses far from each other.
            let address = address(sample.wrapping_mul(7_919) % self.accounts)?;
            let started = Instant::now();
            let found = self.directory.resolve(&address).await?;
            times.push(started.elapsed().as_secs_f64() * 1e6);
            ensure!(matches!(found, Resolution::Targets(_)), "{address} was not found");
        }
        Ok(self.row("look-up of an address", times))
    }

    /// Logs in with each password once, one after the other.
    async fn log_ins(&self, what: &'static str) -> anyhow::Result<DirectoryRow> {
        let mut times = Vec::new();
        for number in 0..self.passwords() {
            times.push(self.log_in(number).await?);
        }
        Ok(self.row(what, times))
    }

    async fn log_in(&self, number: u64) -> anyhow::Result<f64> {
        let (name, password) = (address(number)?.to_string(), password(number));
        let started = Instant::now();
        let login = self.directory.check_password(ip(number), &name, &password).await?;
        let time = started.elapsed().as_secs_f64() * 1e6;
        ensure!(login.address.to_string() == name, "{name} logged in as {}", login.address);
        Ok(time)
    }

    /// Tries wrong passwords of many accounts at once; returns how many processors that used on average.
    async fn log_ins_at_once(&self) -> anyhow::Result<f64> {
        let count = self.passwords();
        let (started, before) = (Instant::now(), processor_seconds()?);
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let (directory, name) = (self.directory.clone(), address(number)?.to_string());
            tasks.spawn(async move { directory.check_password(ip(number), &name, "wrong").await.is_err() });
        }
        while let Some(refused) = tasks.join_next().await {
            ensure!(refused.context("a log-in ended early")?, "a wrong password was taken");
        }
        Ok((processor_seconds()? - before) / started.elapsed().as_secs_f64())
    }

    /// Logs in repeatedly with passwords that were right before.
    async fn remembered(&self) -> anyhow::Result<DirectoryRow> {
        let mut times = Vec::new();
        for sample in 0..self.samples() {
            times.push(self.log_in(sample % self.passwords()).await?);
        }
        Ok(self.row("password that is remembered", times))
    }

    fn row(&self, what: &'static str, mut times: Vec<f64>) -> DirectoryRow {
        times.sort_by(f64::total_cmp);
        let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
        DirectoryRow {
            what,
            accounts: self.accounts,
            samples: times.len(),
            p50_us: rounded(median(times)),
            p99_us: rounded(p99),
        }
    }
}

/// The unit of times in `/proc`, the same on every architecture that we build for.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time that this process has used.
fn processor_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("can't read the processor time")?;
    // proc_pid_stat(5): utime and stime are fields 14 and 15, and the second field, in parentheses, may contain spaces.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks: f64 = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks / TICKS_PER_SECOND)
}

fn present(rows: &[DirectoryRow; 3], at_once: f64, rounds: NonZero<u32>, report: &mut Report) {
    let mut table = Table::new("Directory", &["what", "accounts", "samples", "p50 us", "p99 us"]);
    for row in rows {
        table.add([
            row.what.to_owned(),
            number(row.accounts as f64),
            number(row.samples as f64),
            number(row.p50_us),
            number(row.p99_us),
        ]);
    }
    report.tables.push(table);
    let [look_up, _, remembered] = rows;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // One processor at least, and a tenth for all that is not derivation.
    let half = (cores / 2).max(1) as f64 + 0.1;
    report.goals = vec![
        Goal::at_most("look-up of an address, p50", 5.0, "us", Some(look_up.p50_us)),
        Goal::at_most("remembered log-in, p50", 20.0, "us", Some(remembered.p50_us)),
        Goal::at_most("processors that many checks at once take", half, "", Some(rounded(at_once))),
    ];
    report.notes.push(format!("Keys are derived with {rounds} rounds, the default of directory.rounds."));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_quick_run_measures_everything() {
        let folder = tempfile::tempdir().unwrap();
        let data = Some(folder.path().to_owned());
        let args = DirectoryArgs {
            accounts: ACCOUNTS,
            output: OutputArgs { data, json: None, html: None, quick: true },
        };
        let report = measure(&args).await.unwrap();
        assert_eq!(report.rows.len(), 3);
        assert!(report.rows.iter().all(|row| row["p50_us"].as_f64() > Some(0.0)), "{:?}", report.rows);
        assert!(report.goals.is_empty(), "a quick run shows nothing");
    }
}
