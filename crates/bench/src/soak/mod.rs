//! The load of a day in ten minutes: messages by relay, users who query, peers that come and go, and retention.

mod audit;
mod memory;
mod present;
mod traffic;
mod users;
mod visitors;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use restante_waku::Multiaddr;
use tempfile::TempDir;

use crate::{
    args::{CommonArgs, EngineChoice},
    location::Location,
    machine::Machine,
    pace::Tickets,
    peers::{Role, close_many, history::History, start_many},
    progress,
    relay::node_settings,
    report::Report,
    scrape::Scrape,
    server::{self, Server, Settings},
    stock::refuse_memory,
    store::work_folder,
};
use audit::Audited;
use memory::Samples;
use traffic::Book;
use visitors::Visited;

const SECONDS: u64 = 600;
const SECONDS_QUICK: u64 = 10;
/// Messages a second, and publishers.
const RATE: f64 = 100.0;
const PUBLISHERS: u64 = 5;
const USERS: usize = 20;
/// The retention time: a tenth of the run, so that for most of it removals balance arrivals.
const KEEP_SHARE: u64 = 10;
const KEEP_SECONDS_MIN: u64 = 4;
/// Retention removes whole windows; the retention time spans this many.
const WINDOWS: u64 = 6;
/// The interval of memory samples.
const SAMPLE: Duration = Duration::from_secs(1);
const SAMPLE_QUICK: Duration = Duration::from_millis(50);

/// Flags of `bench soak`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  restante bench soak --html soak.html
  restante bench soak --engine sqlite: --seconds 3600")]
pub struct SoakArgs {
    /// Flags of every bench; --messages has no meaning here; a `memory:` archive can't be opened by a server in another
    /// process
    #[command(flatten)]
    pub common: CommonArgs,
    /// Program to run as the server; without it this one
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
    /// Length of the run [default: 600]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(5..=604_800))]
    pub seconds: Option<u64>,
    /// Retention time [default: a tenth of the run]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(KEEP_SECONDS_MIN..=604_800))]
    pub keep: Option<u64>,
    /// Messages that are published in a second
    #[arg(long, value_name = "N", default_value_t = RATE)]
    pub rate: f64,
    /// Users who stay connected and query once a second
    #[arg(long, value_name = "N", default_value_t = USERS as u64, value_parser = clap::value_parser!(u64).range(1..=500))]
    pub users: u64,
}

impl SoakArgs {
    fn shape(&self) -> Shape {
        let seconds = self.seconds.unwrap_or(self.common.pick(SECONDS, SECONDS_QUICK));
        let keep = self.keep.unwrap_or(seconds / KEEP_SHARE).max(KEEP_SECONDS_MIN);
        Shape {
            length: Duration::from_secs(seconds),
            keep: Duration::from_secs(keep),
            rate: self.rate,
            users: self.users as usize,
            sample: self.common.pick(SAMPLE, SAMPLE_QUICK),
        }
    }
}

/// How long and how much.
#[derive(Clone, Copy, Debug)]
struct Shape {
    length: Duration,
    keep: Duration,
    rate: f64,
    users: usize,
    sample: Duration,
}

/// The results of one engine.
struct Measured {
    engine: &'static str,
    shape: Shape,
    run: Run,
    /// Lines of the server's log at WARN or ERROR.
    warnings: Vec<String>,
}

/// The results of a run.
struct Run {
    published: u64,
    unpublished: u64,
    retries: u64,
    first_error: Option<String>,
    asked: users::Asked,
    visited: Visited,
    audited: Audited,
    memory: Samples,
    /// The server's metrics at the end.
    counts: Scrape,
}

/// Runs the bench and delivers its report.
pub(crate) async fn run(args: &SoakArgs) -> anyhow::Result<()> {
    measure(args).await?.deliver(&args.common)
}

/// Runs the bench.
pub(crate) async fn measure(args: &SoakArgs) -> anyhow::Result<Report> {
    refuse_memory(&args.common, "bench soak")?;
    anyhow::ensure!(args.rate > 0.0 && args.rate.is_finite(), "--rate must be above 0");
    let folder = work_folder(&args.common)?;
    let shape = args.shape();
    let title = format!(
        "{} s of {} messages/s by relay, {} users, peers that come and go, a retention of {} s.",
        shape.length.as_secs(),
        shape.rate,
        shape.users,
        shape.keep.as_secs()
    );
    let mut report = Report::new("soak", title, Machine::look(folder.path()));
    let bench = Bench { folder, program: server::program(args.server.as_deref())?, shape };
    for choice in &args.common.engines {
        let measured = bench.measure(choice).await?;
        present::present(&measured, &mut report)?;
    }
    present::note(&mut report);
    report.note_quick(args.common.quick);
    Ok(report)
}

struct Bench {
    folder: TempDir,
    program: PathBuf,
    shape: Shape,
}

impl Bench {
    async fn measure(&self, choice: &EngineChoice) -> anyhow::Result<Measured> {
        let location = Location::fresh(choice, self.folder.path())?;
        let engine = location.url.engine();
        let settings = settings(self.shape.keep);
        let folder = self.folder.path();
        let server =
            Server::start_with(&self.program, &location.url, folder, &format!("soak-{engine}"), &settings)
                .await?;
        let node = server.peer_address().await?;
        let memory = || server.private_memory();
        let target = Target { node: &node, rest: server.address, memory: &memory };
        let run = target.run(self.shape).await;
        let run = run.with_context(|| format!("the last lines of the server: {}", server.log_tail()))?;
        let warnings = warnings(&server.log());
        server.stop().await?;
        Ok(Measured { engine, shape: self.shape, run, warnings })
    }
}

/// The settings of a node with a short retention: its windows are a fraction of the retention time.
fn settings(keep: Duration) -> Settings {
    let window = (keep.as_secs() / WINDOWS).max(1).to_string();
    let mut settings = node_settings(&[]);
    for (name, value) in [
        ("RESTANTE_ARCHIVE__RETENTION", format!("time:{}", keep.as_secs())),
        ("RESTANTE_ARCHIVE__RETENTION_INTERVAL_SECONDS", window.clone()),
        ("RESTANTE_ARCHIVE__LOG__WINDOW_SECONDS", window.clone()),
        ("RESTANTE_ARCHIVE__LOG__QUIET_SECONDS", "1".to_owned()),
        ("RESTANTE_ARCHIVE__POSTGRES__WINDOW_SECONDS", window),
        ("RESTANTE_LOG__FORMAT", "json".to_owned()),
    ] {
        settings.variables.push((name, value));
    }
    settings
}

/// A server under load.
struct Target<'a> {
    node: &'a Multiaddr,
    rest: SocketAddr,
    memory: &'a (dyn Fn() -> Option<u64> + Sync),
}

impl Target<'_> {
    /// Runs all loads concurrently.
    async fn run(&self, shape: Shape) -> anyhow::Result<Run> {
        let peers = start_many(PUBLISHERS, Role::Publisher, std::slice::from_ref(self.node)).await?;
        let auditor = Arc::new(History::start(self.node).await?);
        let book = Arc::new(Book::default());
        let begun = Instant::now();
        let until = begun + shape.length;
        let tickets = Arc::new(Tickets::new(begun, shape.rate, until));
        let publishing = traffic::publish(peers.clone(), tickets, book.clone());
        let asking = users::ask(self.node.clone(), shape.users, until);
        let visiting = visitors::come_and_go(self.node.clone(), until);
        let auditing = audit::audit(auditor.clone(), book.clone(), shape.keep);
        let sampling = self.sample(shape, begun);
        // The first error ends the run: the checks would wait forever for publishers that have ended.
        let auditing = async { Ok(auditing.await) };
        let sampling = async { Ok(sampling.await) };
        let all = Box::pin(async { tokio::try_join!(publishing, asking, visiting, auditing, sampling) });
        let ((), asked, visited, audited, memory) = all.await?;
        let counts = Scrape::of(self.rest).await?;
        close_many(peers).await;
        if let Some(auditor) = Arc::into_inner(auditor) {
            auditor.close().await;
        }
        let counted = |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
        Ok(Run {
            published: counted(&book.published),
            unpublished: counted(&book.failed),
            retries: counted(&book.retries),
            first_error: book.first_error(),
            asked,
            visited,
            audited,
            memory,
            counts,
        })
    }

    async fn sample(&self, shape: Shape, begun: Instant) -> Samples {
        let mut samples = Samples::of(shape.length);
        let bar = progress::bar("soaking", shape.length.as_secs());
        while begun.elapsed() < shape.length {
            if let Some(bytes) = (self.memory)() {
                samples.points.push((begun.elapsed().as_secs_f64(), bytes as f64));
            }
            bar.set_position(begun.elapsed().as_secs());
            tokio::time::sleep(shape.sample).await;
        }
        bar.finish_and_clear();
        samples
    }
}

/// The warnings and errors of a JSON log.
fn warnings(log: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    for line in log.lines() {
        let level = serde_json::from_str::<serde_json::Value>(line).ok();
        let level = level.as_ref().and_then(|line| line.get("level")?.as_str());
        // Any line that is not JSON is unexpected, such as a panic.
        let is_fine = matches!(level, Some("INFO" | "DEBUG" | "TRACE"));
        if !is_fine {
            warnings.push(line.to_owned());
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{peers::tests::Served, tests::quick};

    #[test]
    fn warnings_in_the_log_are_found() {
        let log = "{\"level\":\"INFO\"}\n{\"level\":\"WARN\",\"a\":1}\nthread 'x' panicked\n{\"level\":\"ERROR\"}\n";
        assert_eq!(warnings(log).len(), 3);
        assert!(warnings("{\"level\":\"INFO\"}\n").is_empty());
    }

    #[test]
    fn retention_is_a_share_of_the_run() {
        let args = SoakArgs {
            common: CommonArgs { quick: false, ..quick("log:") },
            server: None,
            seconds: None,
            keep: None,
            rate: RATE,
            users: 20,
        };
        let shape = args.shape();
        assert_eq!((shape.length.as_secs(), shape.keep.as_secs()), (600, 60));
        let settings = settings(shape.keep);
        let value = |name: &str| {
            let found = settings.variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(value("RESTANTE_ARCHIVE__RETENTION"), Some("time:60"));
        assert_eq!(value("RESTANTE_ARCHIVE__LOG__WINDOW_SECONDS"), Some("10"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_loads_run_and_nothing_is_lost() {
        let served = Served::start().await;
        let memory = || crate::machine::private_memory("self");
        let target = Target { node: &served.node, rest: served.rest, memory: &memory };
        let shape = Shape {
            length: Duration::from_secs(3),
            keep: Duration::from_secs(4),
            rate: 100.0,
            users: 3,
            sample: Duration::from_millis(20),
        };
        let run = target.run(shape).await.unwrap();
        assert_eq!((run.published, run.unpublished), (300, 0), "{:?}", run.first_error);
        assert_eq!((run.audited.looked_for, run.audited.lost, run.audited.failed), (300, 0, 0));
        assert!(run.asked.pages.len() >= 3 && run.asked.errors == 0, "{:?}", run.asked.first_error);
        assert!(run.visited.visits >= 2 && run.visited.failed == 0, "{:?}", run.visited.first_error);
        assert!(run.memory.points.len() > 5 && run.counts.stored() == 300);
        served.stop().await;
    }
}
