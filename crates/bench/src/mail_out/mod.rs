//! Outgoing mail: submissions into the queue, mails from it to other servers, and a queue of a million.

mod child;
mod fill;
mod opening;
mod present;
mod sending;
mod sink;
mod stores;
mod submitting;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    args::OutputArgs,
    jmap::corpus::Corpus,
    machine::{Machine, processor_time},
    measure::Latencies,
    pace::Tickets,
    report::Report,
    server,
    store::work_folder,
};
use child::Runner;
use opening::Opening;
use present::Measured;
use sending::Sending;
use sink::{Arrivals, Sink};
use stores::Stores;
use submitting::Submitter;

/// Recipients of the long queue.
const QUEUED: u64 = 1_000_000;
const QUEUED_QUICK: u64 = 2_000;
/// Domains of the recipients, one load for each.
const DOMAINS: [u64; 3] = [1, 100, 10_000];
/// Clients that submit.
const SUBMITTERS: u64 = 64;
const SUBMITTERS_QUICK: u64 = 4;
/// The most connections to other servers.
const CONNECTIONS: usize = 50;
/// Mails a second where times are compared.
const PACED_PER_S: f64 = 300.0;
const PACED_PER_S_QUICK: f64 = 50.0;
const LENGTH: Duration = Duration::from_secs(5);
const QUICK: Duration = Duration::from_millis(200);
/// The time limit for all mails of a load to arrive after the last one was submitted.
const ARRIVING_MAX: Duration = Duration::from_secs(120);

/// Flags of `bench mail-out`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  restante bench mail-out --html mail-out.html
  restante bench mail-out --queued 100000 --data /var/lib/restante
  restante bench mail-out --quick")]
pub struct MailOutArgs {
    /// Recipients in the long queue, all due later
    #[arg(long, value_name = "N", default_value_t = QUEUED, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub queued: u64,
    /// Seed of the mails
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Where files and results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A row of JSON: a load.
#[derive(Clone, Debug, Serialize)]
struct LoadRow {
    op: String,
    /// Domains of the recipients; 0 where nothing is sent.
    domains: u64,
    mails: u64,
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Processor time of a mail: of queue, sender, clients and the servers that take it together.
    cpu_us: Option<f64>,
}

/// A row of JSON: another figure.
#[derive(Clone, Debug, Serialize)]
struct FigureRow {
    op: &'static str,
    queued: u64,
    value: f64,
    unit: &'static str,
}

/// A load, and its outcome.
#[derive(Clone, Debug, Default)]
struct Load {
    /// Mails.
    mails: u64,
    /// For each: until it was in the queue, or from then until it had arrived.
    times: Latencies,
    duration: Duration,
    cpu: Option<Duration>,
}

/// Runs the bench and delivers its report.
pub(crate) async fn run(args: &MailOutArgs) -> anyhow::Result<()> {
    if let Ok(task) = std::env::var(child::TASK) {
        return child::run_task(&task).await;
    }
    measure(args, &Runner::Child(server::program(None)?)).await?.deliver(&args.output.common(args.seed))
}

async fn measure(args: &MailOutArgs, runner: &Runner) -> anyhow::Result<Report> {
    let common = args.output.common(args.seed);
    let folder = work_folder(&common)?;
    let title = "Outgoing mail: the queue in records of the engine lmdb, blobs of the engine files, all durable; the servers that take \
                 it are in the same process.";
    let mut report = Report::new("mail-out", title, Machine::look(folder.path()));
    let mut measured = Measured::default();

    let queued = common.pick(args.queued, QUEUED_QUICK);
    let long = folder.path().join("long");
    fill::fill(&long, queued).await?;
    let opening: Opening =
        runner.run(&child::Task { folder: long, seed: args.seed, is_quick: common.quick }).await?;
    measured.opening(&opening, queued);

    let stores = Stores::open(&folder.path().join("short")).await?;
    let bench = Bench { stores: stores.clone(), corpus: Corpus { seed: args.seed }, is_quick: common.quick };
    bench.measure(&mut measured).await?;
    drop(bench);
    stores.close().await?;

    present::present(&measured, &mut report)?;
    report.note_size_of(queued, QUEUED, "recipients");
    report.note_debug_build();
    report.note_quick(args.output.quick);
    Ok(report)
}

/// Whether some of the servers of a load don't work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Servers {
    AllWork,
    /// One domain in ten has a server that never answers, and one a server that is slow.
    SomeFail,
}

/// When mails are submitted.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// As soon as the one before is in the queue.
    Closed,
    /// This many a second together.
    Open(f64),
}

struct Bench {
    stores: Stores,
    corpus: Corpus,
    is_quick: bool,
}

impl Bench {
    fn pick<T>(&self, real: T, quick: T) -> T {
        if self.is_quick { quick } else { real }
    }

    async fn measure(&self, measured: &mut Measured) -> anyhow::Result<()> {
        for domains in DOMAINS {
            let load = self.send(domains, Servers::AllWork, Pace::Closed).await?;
            measured.load("send", domains, load);
        }
        let pace = Pace::Open(self.pick(PACED_PER_S, PACED_PER_S_QUICK));
        for (op, servers) in [("paced", Servers::AllWork), ("paced_failing", Servers::SomeFail)] {
            let load = self.send(DOMAINS[1], servers, pace).await?;
            measured.load(op, DOMAINS[1], load);
        }
        // At the end: what it adds remains in the queue.
        let load = self.submit().await?;
        measured.load("submit", 0, load);
        Ok(())
    }

    /// Lets clients submit mails that are not sent.
    async fn submit(&self) -> anyhow::Result<Load> {
        let arrivals = Arc::new(Arrivals::new(Servers::AllWork));
        let (begun, worked) = (Instant::now(), processor_time("self"));
        let times = self.submit_all(&arrivals, 1, Pace::Closed, begun).await?;
        let duration = begun.elapsed();
        let cpu = processor_time("self").zip(worked).map(|(now, before)| now.saturating_sub(before));
        Ok(Load { mails: times.len(), times, duration, cpu })
    }

    /// Lets clients submit mails, and a sender send them.
    async fn send(&self, domains: u64, servers: Servers, pace: Pace) -> anyhow::Result<Load> {
        let arrivals = Arc::new(Arrivals::new(servers));
        let sink = Sink::start(arrivals.clone()).await?;
        let sending = Sending::start(&self.stores, sink.port(), domains, servers)?;
        let (begun, worked) = (Instant::now(), processor_time("self"));
        self.submit_all(&arrivals, domains, pace, begun).await?;
        let arrived = arrivals.all(ARRIVING_MAX).await;
        let duration = begun.elapsed();
        let cpu = processor_time("self").zip(worked).map(|(now, before)| now.saturating_sub(before));
        sending.stop().await?;
        let times = arrived?;
        Ok(Load { mails: times.len(), times, duration, cpu })
    }

    /// Submits for the time of a load; returns the time until each mail was in the queue.
    async fn submit_all(
        &self,
        arrivals: &Arc<Arrivals>,
        domains: u64,
        pace: Pace,
        begun: Instant,
    ) -> anyhow::Result<Latencies> {
        let until = begun + self.pick(LENGTH, QUICK);
        let tickets = match pace {
            Pace::Closed => None,
            Pace::Open(per_second) => Some(Arc::new(Tickets::new(begun, per_second, until))),
        };
        let submitter = Arc::new(Submitter::new(&self.stores, self.corpus, arrivals.clone(), domains));
        let mut tasks = JoinSet::new();
        for _ in 0..self.pick(SUBMITTERS, SUBMITTERS_QUICK) {
            let (submitter, tickets) = (submitter.clone(), tickets.clone());
            tasks.spawn(async move {
                let mut times = Latencies::default();
                loop {
                    match &tickets {
                        Some(tickets) if tickets.take().await.is_none() => break,
                        None if times.len() > 0 && Instant::now() >= until => break,
                        _ => times.record(submitter.submit().await?),
                    }
                }
                anyhow::Ok(times)
            });
        }
        let mut times = Latencies::default();
        while let Some(done) = tasks.join_next().await {
            times.add(&done??);
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_quick_run_sends_all_mails_and_opens_the_long_queue() {
        let folder = tempfile::tempdir().unwrap();
        let data = Some(folder.path().to_owned());
        let output = OutputArgs { data, json: None, html: None, quick: true };
        let args = MailOutArgs { queued: QUEUED, seed: 1, output };
        let report = measure(&args, &Runner::Here).await.unwrap();
        let ops: Vec<&str> = report.rows.iter().filter_map(|row| row["op"].as_str()).collect();
        assert_eq!(ops.iter().filter(|op| **op == "send").count(), 3);
        for op in
            ["paced", "paced_failing", "submit", "start", "list_by_domain", "due_next", "memory_private"]
        {
            assert!(ops.contains(&op), "{op} of {ops:?}");
        }
        assert_eq!(report.goals.iter().filter(|goal| goal.what.contains("lost")).count(), 1);
    }
}
