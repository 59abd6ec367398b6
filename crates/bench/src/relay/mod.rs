//! Messages through relay: publishers in this process, a real node each, and a server in another process; what was published,
//! received and stored, and the time from publisher to subscriber while users query.

mod delivery;
mod kill;
mod load;
mod present;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use tempfile::TempDir;

use crate::{
    args::{CommonArgs, EngineChoice},
    location::Location,
    machine::Machine,
    peers::{CLUSTER, Role, SHARD, users},
    progress,
    report::Report,
    server::{self, Server, Settings},
    stock::{HOT_TOPIC, PAYLOAD_BYTES, Stock, refuse_memory},
    store::{Store, work_folder},
};
use delivery::{Crowd, Line, Stretch};
use kill::{Killed, Pair};
use load::{Load, Outcome, Target};

/// Publishers and their messages, as nwaku was measured.
const PUBLISHERS: u64 = 30;
const MESSAGES_EACH: u64 = 300;
const PUBLISHERS_QUICK: u64 = 3;
const MESSAGES_EACH_QUICK: u64 = 20;
/// Message rates besides the burst: nwaku and go-waku were measured at about these.
const RATES: [f64; 2] = [300.0, 1_000.0];
/// The message rate when a server is killed, low enough to kill it halfway.
const KILL_RATE: f64 = 1_000.0;
const KILL_RATE_QUICK: f64 = 30.0;
/// Users that query while messages are delivered.
const USERS: usize = 25;
/// Length of a part of the deliveries: at a hundred a second, 2,000 messages.
const STRETCH: Duration = Duration::from_secs(20);
const STRETCH_QUICK: Duration = Duration::from_millis(500);
/// Messages in the archive that they query.
const STOCK: u64 = 100_000;
const STOCK_QUICK: u64 = 2_000;

/// Flags of `bench relay`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Without --rate, --kill and --queries, everything is measured.

Examples:
  restante bench relay --html relay.html
  restante bench relay --engine log: --engine sqlite: --rate 0
  restante bench relay --kill
  restante bench relay --queries 25")]
pub struct RelayArgs {
    /// Flags of every bench; --messages is the size of the archive that users query [default: 100000]; a `memory:` archive
    /// can't be opened by a server in another process
    #[command(flatten)]
    pub common: CommonArgs,
    /// Program to run as the server; by default this one
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
    /// Nodes that publish, all at the same time
    #[arg(long, value_name = "N", default_value_t = PUBLISHERS, value_parser = clap::value_parser!(u64).range(1..=500))]
    pub publishers: u64,
    /// Messages that each of them publishes
    #[arg(long, value_name = "N", default_value_t = MESSAGES_EACH, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub messages_each: u64,
    /// Bytes of a payload
    #[arg(long, value_name = "N", default_value_t = PAYLOAD_BYTES as u64, value_parser = clap::value_parser!(u64).range(32..=140_000))]
    pub bytes: u64,
    /// Measure only publishing, at this many messages a second in all; 0 for as fast as possible
    #[arg(long, value_name = "N")]
    pub rate: Option<u32>,
    /// Measure only two servers, one of which is killed halfway and started again
    #[arg(long)]
    pub kill: bool,
    /// Measure only the time of messages while so many users query as fast as they can
    #[arg(long, value_name = "USERS", value_parser = clap::value_parser!(u64).range(1..=500))]
    pub queries: Option<u64>,
}

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
struct Plan {
    loads: Vec<Load>,
    kill: Option<Load>,
    users: Option<usize>,
}

impl RelayArgs {
    fn publishers(&self) -> u64 {
        self.common.pick(self.publishers, self.publishers.min(PUBLISHERS_QUICK))
    }

    fn messages_each(&self) -> u64 {
        self.common.pick(self.messages_each, self.messages_each.min(MESSAGES_EACH_QUICK))
    }

    fn plan(&self) -> Plan {
        let is_everything = self.rate.is_none() && !self.kill && self.queries.is_none();
        let mut loads = Vec::new();
        if let Some(rate) = self.rate {
            loads.push(self.load((rate > 0).then_some(f64::from(rate)), Role::Publisher));
        } else if is_everything {
            loads.push(self.load(None, Role::Publisher));
            loads.push(self.load(None, Role::Relay));
            loads.extend(RATES.map(|rate| self.load(Some(rate), Role::Publisher)));
        }
        let kill_rate = self.common.pick(KILL_RATE, KILL_RATE_QUICK);
        let kill = (self.kill || is_everything).then(|| self.load(Some(kill_rate), Role::Publisher));
        let users = match self.queries {
            Some(users) => Some(users as usize),
            None => is_everything.then_some(USERS),
        };
        Plan { loads, kill, users }
    }

    /// Removes the goals of the usual load if this run had another one.
    fn note_size(&self, report: &mut Report) {
        report.note_quick(self.common.quick);
        report.note_size_of(self.bytes, PAYLOAD_BYTES as u64, "bytes of a payload");
        report.note_size_of(self.common.messages.unwrap_or(STOCK), STOCK, "messages in the archive");
        report.note_size_of(self.queries.unwrap_or(USERS as u64), USERS as u64, "users");
    }

    fn load(&self, rate: Option<f64>, role: Role) -> Load {
        Load {
            publishers: self.publishers(),
            messages_each: self.messages_each(),
            payload_bytes: self.bytes as usize,
            rate,
            role,
        }
    }
}

/// The results of one engine.
#[derive(Default)]
struct Measured {
    engine: &'static str,
    outcomes: Vec<Outcome>,
    killed: Option<Killed>,
    stretches: Vec<Stretch>,
}

/// Runs the bench and delivers its report; in a child process, runs its users.
pub(crate) async fn run(args: &RelayArgs) -> anyhow::Result<()> {
    if let Ok(plan) = std::env::var(users::USERS_VARIABLE) {
        return users::run_child(&plan).await;
    }
    measure(args).await?.deliver(&args.common)
}

/// Runs the bench.
pub(crate) async fn measure(args: &RelayArgs) -> anyhow::Result<Report> {
    refuse_memory(&args.common, "bench relay")?;
    let folder = work_folder(&args.common)?;
    let title = format!(
        "Relay: {} publishers of {} messages of {} bytes each, through real nodes on this machine.",
        args.publishers(),
        args.messages_each(),
        args.bytes
    );
    let mut report = Report::new("relay", title, Machine::look(folder.path()));
    let bench = Bench { args, folder, program: server::program(args.server.as_deref())? };
    let plan = args.plan();
    for choice in &args.common.engines {
        let measured = bench.measure(choice, &plan).await?;
        present::present(&measured, &mut report)?;
    }
    present::note(&mut report);
    args.note_size(&mut report);
    Ok(report)
}

struct Bench<'a> {
    args: &'a RelayArgs,
    folder: TempDir,
    program: PathBuf,
}

impl Bench<'_> {
    async fn measure(&self, choice: &EngineChoice, plan: &Plan) -> anyhow::Result<Measured> {
        let mut measured = Measured::default();
        let bar = progress::bar("relay", plan.loads.len() as u64 + 2);
        for (stream, load) in (1..).zip(&plan.loads) {
            // Each load has a fresh archive, so that earlier ones have no influence.
            let location = Location::fresh(choice, self.folder.path())?;
            measured.outcomes.push(self.publish(&location, *load, stream).await?);
            bar.inc(1);
        }
        if let Some(load) = plan.kill {
            let (first, second) =
                (Location::fresh(choice, self.folder.path())?, Location::fresh(choice, self.folder.path())?);
            let pair = Pair {
                program: &self.program,
                folder: self.folder.path(),
                first: &first,
                second: &second,
                is_quick: self.args.common.quick,
            };
            measured.killed = Some(pair.run(load).await?);
        }
        bar.inc(1);
        if let Some(users) = plan.users {
            measured.stretches = self.deliver(choice, users).await?;
        }
        bar.finish_and_clear();
        measured.engine = Location::of(choice, self.folder.path())?.url.engine();
        Ok(measured)
    }

    async fn publish(&self, location: &Location, load: Load, stream: u64) -> anyhow::Result<Outcome> {
        let server = self.start(location, &format!("load-{stream}")).await?;
        let node = server.peer_address().await?;
        let target = Target { node: &node, rest: server.address, worked: &|| server.worked() };
        let outcome = target.run(load, stream).await;
        let outcome =
            outcome.with_context(|| format!("the last lines of the server: {}", server.log_tail()))?;
        server.stop().await?;
        Ok(outcome)
    }

    async fn deliver(&self, choice: &EngineChoice, users: usize) -> anyhow::Result<Vec<Stretch>> {
        let common = &self.args.common;
        let messages = common.messages.unwrap_or(common.pick(STOCK, STOCK_QUICK));
        let store: Store =
            Arc::new(Stock::new(common.seed, messages)).lay_in(choice, self.folder.path()).await?;
        let server = self.start(&store.location, "delivery").await?;
        let node = server.peer_address().await?;
        let line = Line::lay(&node, self.args.bytes as usize).await?;
        let crowd = Crowd {
            node: &node,
            rest: server.address,
            users,
            content_topic: HOT_TOPIC.to_owned(),
            folder: self.folder.path(),
        };
        let stretches = crowd.measure(&line, common.pick(STRETCH, STRETCH_QUICK)).await;
        let stretches =
            stretches.with_context(|| format!("the last lines of the server: {}", server.log_tail()))?;
        line.take_up().await;
        server.stop().await?;
        Ok(stretches)
    }

    async fn start(&self, location: &Location, name: &str) -> anyhow::Result<Server> {
        let folder: &Path = self.folder.path();
        Server::start_with(&self.program, &location.url, folder, name, &node_settings(&[])).await
    }
}

/// The flags of a server in the bench's network.
pub(crate) fn node_settings(more: &[String]) -> Settings {
    let mut flags = vec!["--cluster-id".to_owned(), CLUSTER.to_string()];
    flags.extend(["--shard".to_owned(), SHARD.to_string()]);
    flags.extend_from_slice(more);
    Settings { flags, variables: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::quick;

    fn args(engine: &str) -> RelayArgs {
        RelayArgs {
            common: quick(engine),
            server: None,
            publishers: PUBLISHERS,
            messages_each: MESSAGES_EACH,
            bytes: 1_400,
            rate: None,
            kill: false,
            queries: None,
        }
    }

    #[tokio::test]
    async fn a_memory_archive_is_refused() {
        let error = measure(&args("memory:")).await.err().unwrap();
        assert!(error.to_string().contains("--engine log:"), "{error}");
    }

    #[test]
    fn flags_choose_what_is_measured() {
        let real = |args: RelayArgs| RelayArgs { common: CommonArgs { quick: false, ..args.common }, ..args };
        let everything = real(args("log:")).plan();
        assert_eq!((everything.loads.len(), everything.users), (4, Some(25)));
        assert!(everything.loads.iter().all(|load| load.messages() == 9_000));
        assert_eq!(everything.kill.unwrap().rate, Some(1_000.0));
        let burst = real(RelayArgs { rate: Some(0), ..args("log:") }).plan();
        assert_eq!((burst.loads.len(), burst.loads[0].rate, burst.kill, burst.users), (1, None, None, None));
        let kill = RelayArgs { kill: true, ..args("log:") }.plan();
        assert_eq!((kill.loads.len(), kill.kill.is_some(), kill.users), (0, true, None));
        let queries = RelayArgs { queries: Some(3), ..args("log:") }.plan();
        assert_eq!((queries.loads.len(), queries.kill, queries.users), (0, None, Some(3)));
    }
}
