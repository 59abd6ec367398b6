//! nwaku's scenarios, with real servers: queries while messages are published, several servers on one database, and a
//! database outage.

mod ask;
mod check;
mod door;
mod outage;
mod posts;
mod present;
mod publish;
mod scenario;
mod servers;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, bail, ensure};
use restante_archive::EngineUrl;
use restante_core::{Clock, SystemClock};
use tempfile::TempDir;

use crate::{
    args::{CommonArgs, EngineChoice, FreshEngine},
    dataset::Dataset,
    location::Location,
    machine::Machine,
    progress,
    report::Report,
    server::{self, Server},
    store::{Store, work_folder},
};
use check::StoredMessages;
use outage::Plan;
use posts::Posts;
use scenario::{Outcome, Scenario, Site, Traffic};
use servers::Same;

/// Numbers of users, as in nwaku's measurements.
const USERS: [usize; 3] = [1, 10, 25];
/// Clients of the select hammer, as in nwaku's measurements.
const HAMMERS: [usize; 2] = [50, 100];
/// Length of a scenario: at ten messages a second, 200 appends.
const SECONDS: u64 = 20;
const QUICK: Duration = Duration::from_millis(300);
/// Shares of that length: clients without a pause need less time, and so do the periods without queries.
const UNPACED_SHARE: f64 = 0.4;
const NONE_SHARE: f64 = 0.5;
/// Messages that each of several servers gets.
const SAME: u64 = 100_000;
const SAME_QUICK: u64 = 300;
/// Load before and after an outage.
const AROUND: Duration = Duration::from_secs(10);

/// Flags of `bench store`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  restante bench store --engine log: --engine sqlite: --engine postgres: --html store.html
  restante bench store --engine postgres: --servers 5
  restante bench store --door waku --engine log: --html door.html
  restante bench store --engine postgres: --messages 100000 --outage 60 \\
      --stop-command 'dev/services/down postgres' --start-command 'dev/services/up postgres'
`postgres:` uses the database of RESTANTE_POSTGRES_URL; `eval \"$(dev/services/up postgres)\"` starts one on this \
machine, and `dev/services/down postgres` stops it and keeps its data.")]
pub struct StoreArgs {
    /// Flags of every bench; a `memory:` archive can't be opened by a server in another process
    #[command(flatten)]
    pub common: CommonArgs,
    /// Program to run as the server; without it this one
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
    /// How users ask: through REST, or as nodes over libp2p
    #[arg(long, value_enum, default_value_t = Door::Rest)]
    pub door: Door,
    /// Length of a scenario in seconds [default: 20; with --door waku of a cell, 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: Option<u64>,
    /// Servers on the same archive; more than one only with postgres, and then each gets the same messages
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=16))]
    pub servers: u64,
    /// Messages that each of several servers gets [default: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub same: Option<u64>,
    /// Stop the database under load for so many seconds and start it again, instead of the scenarios
    #[arg(long, value_name = "SECONDS", requires_all = ["stop_command", "start_command"])]
    pub outage: Option<u64>,
    /// Shell command that stops the database, for --outage; it returns when the database has stopped
    #[arg(long, value_name = "COMMAND", requires = "outage")]
    pub stop_command: Option<String>,
    /// Shell command that starts the database again, for --outage; it returns when the database answers
    #[arg(long, value_name = "COMMAND", requires = "outage")]
    pub start_command: Option<String>,
}

/// The protocol of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Door {
    /// Queries by HTTP while messages are published by HTTP, as nwaku was measured.
    Rest,
    /// Store queries of real nodes over libp2p, as nwaku was measured: a million messages of 1.4 kB, pages of 20 and 100.
    Waku,
}

impl StoreArgs {
    fn length(&self) -> Duration {
        self.seconds.map_or(self.common.pick(Duration::from_secs(SECONDS), QUICK), Duration::from_secs)
    }

    /// Checks for unsupported flags before anything is filled.
    fn check(&self) -> anyhow::Result<()> {
        for choice in &self.common.engines {
            if *choice == EngineChoice::At(EngineUrl::Memory) {
                bail!(
                    "bench store runs a server in another process, which can't open a memory archive: use --engine log:"
                );
            }
            let is_shared = matches!(
                choice,
                EngineChoice::Fresh(FreshEngine::Postgres)
                    | EngineChoice::At(EngineUrl::Postgres(_) | EngineUrl::Cassandra(_))
            );
            ensure!(
                self.servers == 1 || is_shared,
                "{choice} can't be shared by several servers: use --servers with --engine postgres:"
            );
            ensure!(
                self.outage.is_none() || is_shared,
                "{choice} can't be stopped and started: use --outage with --engine postgres:"
            );
        }
        Ok(())
    }
}

/// The results of one engine.
struct Measured {
    engine: &'static str,
    servers: u64,
    outcomes: Vec<Outcome>,
    same: Option<Same>,
    stored_messages: StoredMessages,
}

/// Runs the bench and delivers its report.
pub(crate) async fn run(args: &StoreArgs) -> anyhow::Result<()> {
    measure(args).await?.deliver(&args.common)
}

/// Runs the bench.
pub(crate) async fn measure(args: &StoreArgs) -> anyhow::Result<Report> {
    if args.door == Door::Waku {
        return door::measure(args).await;
    }
    args.check()?;
    let common = &args.common;
    let folder = work_folder(common)?;
    let title = match (args.outage, args.servers) {
        (Some(seconds), _) => {
            format!("A database that is stopped for {seconds} s while messages are published.")
        }
        (None, 1) => "Store queries while messages are published, as nwaku was measured.".to_owned(),
        (None, servers) => format!("{servers} servers on one database, each with the same messages."),
    };
    let mut report = Report::new("store", title, Machine::look(folder.path()));
    let dataset = Arc::new(Dataset::new(common.seed, common.messages()));
    let bench = Bench { args, folder, dataset, program: server::program(args.server.as_deref())? };
    let mut measured = Vec::new();
    for (number, choice) in common.engines.iter().enumerate() {
        let filled = bench.fill(choice, number).await?;
        match &args.outage {
            Some(seconds) => bench.stop_and_start(filled, Duration::from_secs(*seconds), &mut report).await?,
            None => measured.push(bench.measure(filled).await?),
        }
    }
    present::present(&measured, &mut report)?;
    report.note_size(bench.dataset.len());
    report.note_quick(common.quick);
    Ok(report)
}

struct Bench<'a> {
    args: &'a StoreArgs,
    folder: TempDir,
    dataset: Arc<Dataset>,
    program: PathBuf,
}

/// An archive with the data set that no process has open.
struct Filled {
    location: Location,
    engine: &'static str,
    /// The prefix of its servers' folders.
    name: String,
}

impl Bench<'_> {
    async fn fill(&self, choice: &EngineChoice, number: usize) -> anyhow::Result<Filled> {
        let store = Store::open(choice, self.folder.path(), self.dataset.len()).await?;
        store.fill(&self.dataset).await?;
        store.opened.upkeep.close().await?;
        let engine = store.engine();
        Ok(Filled { location: store.location, engine, name: format!("{engine}-{number}") })
    }

    async fn start(&self, filled: &Filled) -> anyhow::Result<Vec<Server>> {
        let mut servers = Vec::new();
        for number in 0..self.args.servers {
            let name = format!("{}-server-{number}", filled.name);
            servers
                .push(Server::start(&self.program, &filled.location.url, self.folder.path(), &name).await?);
        }
        Ok(servers)
    }

    /// Runs all scenarios, and checks the archive after the servers have stopped.
    async fn measure(&self, filled: Filled) -> anyhow::Result<Measured> {
        let servers = self.start(&filled).await?;
        let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
        let loaded = self.load(&addresses, filled.engine).await;
        let (same, outcomes) = loaded.with_context(|| log_tail(&servers))?;
        for server in servers {
            server.stop().await?;
        }
        let stored_messages = StoredMessages::read(&filled.location.url, self.dataset.len()).await?;
        Ok(Measured { engine: filled.engine, servers: self.args.servers, outcomes, same, stored_messages })
    }

    async fn load(
        &self,
        addresses: &[SocketAddr],
        engine: &str,
    ) -> anyhow::Result<(Option<Same>, Vec<Outcome>)> {
        let mut same = None;
        if addresses.len() > 1 {
            let messages = self.args.same.unwrap_or(self.args.common.pick(SAME, SAME_QUICK));
            let posts = Arc::new(Posts::new(0, Traffic::MANY.payload_bytes, SystemClock.now()));
            same = Some(servers::publish_same(addresses, posts, messages).await?);
        }
        let site = Site { addresses, dataset: &self.dataset };
        let plan = plan(addresses.len(), self.args.length());
        let bar = progress::bar(&format!("store queries, {engine}"), plan.len() as u64);
        let mut outcomes = Vec::new();
        for (load, (traffic, scenario, length)) in (1..).zip(plan) {
            outcomes.push(site.run(traffic, scenario, length, load).await?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok((same, outcomes))
    }

    /// Stops the database and starts it again.
    async fn stop_and_start(
        &self,
        filled: Filled,
        outage: Duration,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let (Some(stop_command), Some(start_command)) =
            (self.args.stop_command.clone(), self.args.start_command.clone())
        else {
            bail!("--outage needs --stop-command and --start-command");
        };
        let around = self.args.common.pick(AROUND, QUICK);
        let plan = Plan { stop_command, start_command, outage, around };
        let mut server =
            Server::start(&self.program, &filled.location.url, self.folder.path(), &filled.name).await?;
        let measured = outage::measure(&mut server, &plan).await;
        let measured =
            measured.with_context(|| format!("the last lines of the server: {}", server.log_tail()))?;
        server.stop().await?;
        let stored_messages = StoredMessages::read(&filled.location.url, self.dataset.len()).await?;
        present::present_outage(filled.engine, &measured, &stored_messages, report)
    }
}

fn log_tail(servers: &[Server]) -> String {
    let words: Vec<String> = servers.iter().map(Server::log_tail).collect();
    format!("the last lines of the servers: {}", words.join(" | "))
}

/// The scenarios in order: for each kind of traffic without users, with users, and without them again, so that
/// the reference is measured on both sides.
fn plan(servers: usize, length: Duration) -> Vec<(Traffic, Scenario, Duration)> {
    let none = (Scenario::NONE, length.mul_f64(NONE_SHARE));
    let mut plan = Vec::new();
    if servers > 1 {
        let hammers = HAMMERS.map(|clients| (Scenario::hammer(clients), length));
        for (scenario, length) in [none].into_iter().chain(hammers).chain([none]) {
            plan.push((Traffic::LARGE, scenario, length));
        }
        return plan;
    }
    let paced = USERS.map(|users| (Scenario::paced(users), length));
    let unpaced = USERS.map(|users| (Scenario::unpaced(users), length.mul_f64(UNPACED_SHARE)));
    for traffic in [Traffic::LARGE, Traffic::MANY] {
        for (scenario, length) in [none].into_iter().chain(paced).chain(unpaced).chain([none]) {
            plan.push((traffic, scenario, length));
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::quick;

    fn args(engine: &str) -> StoreArgs {
        StoreArgs {
            common: quick(engine),
            server: None,
            door: Door::Rest,
            seconds: None,
            servers: 1,
            same: None,
            outage: None,
            stop_command: None,
            start_command: None,
        }
    }

    #[tokio::test]
    async fn unsupported_flags_are_refused_at_once() {
        for (engine, servers, outage, word) in [
            ("memory:", 1, None, "log:"),
            ("log:", 3, None, "postgres:"),
            ("sqlite:", 1, Some(60), "postgres:"),
        ] {
            let args = StoreArgs { servers, outage, ..args(engine) };
            let error = measure(&args).await.err().unwrap().to_string();
            assert!(error.contains(word), "{engine}: {error}");
        }
        args("log:").check().unwrap();
        StoreArgs { servers: 5, ..args("postgres:") }.check().unwrap();
    }

    #[test]
    fn the_plan_has_all_scenarios() {
        let one = plan(1, Duration::from_secs(20));
        assert_eq!(one.len(), 2 * (3 + 3 + 2));
        let total: f64 = one.iter().map(|(_, _, length)| length.as_secs_f64()).sum();
        assert_eq!(total, 2.0 * (3.0 * 20.0 + 3.0 * 8.0 + 2.0 * 10.0));
        let users: Vec<usize> = plan(5, Duration::from_secs(20)).iter().map(|(_, it, _)| it.users).collect();
        assert_eq!(users, [0, 50, 100, 0]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_load_runs_through_its_plan() {
        let answer = |line: &str, _: &str| {
            let body = if line.starts_with("POST ") { "OK" } else { "{\"messages\":[]}" };
            crate::http::tests::sized("200 OK", body)
        };
        let addresses = [crate::http::tests::serve(answer).await, crate::http::tests::serve(answer).await];
        let args = StoreArgs { same: Some(10), ..args("log:") };
        let folder = work_folder(&args.common).unwrap();
        let dataset = Arc::new(Dataset::new(0, 100));
        let bench = Bench { args: &args, folder, dataset, program: PathBuf::from("none") };
        let (same, outcomes) = bench.load(&addresses[..1], "log").await.unwrap();
        assert!(same.is_none());
        assert_eq!(outcomes.len(), 16);
        let (same, outcomes) = bench.load(&addresses, "postgres").await.unwrap();
        assert_eq!(same.unwrap().published.acknowledged.len(), 20);
        assert_eq!(outcomes.len(), 4);
        assert!(outcomes.iter().all(|outcome| outcome.published.refused == 0 && outcome.asked.errors == 0));
    }
}
