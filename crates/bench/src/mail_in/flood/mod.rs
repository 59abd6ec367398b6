//! Floods of strangers, and known senders beside them.

mod attack;
mod known;
mod names;
mod present;
mod setup;
mod wire;

use std::{
    path::Path,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::Context;
use restante_net::tls::{ClientTls, Verify};
use serde::Serialize;
use tokio::time::sleep;
use tokio_rustls::rustls::ClientConfig;

use crate::{
    measure::{Latencies, ratio, rounded},
    progress,
    report::Report,
    scrape::Scrape,
    server::allow_open_files,
};
use attack::{Counts, Flood, Kind};
use known::{By, Known, Times};
use names::Names;
use setup::{Setup, Target};

/// Rounds of a scenario: known senders alone, then together with the flood.
const ROUNDS: u64 = 3;
const WARM_UP: Duration = Duration::from_secs(2);
const ALONE: Duration = Duration::from_secs(5);
const BESIDE: Duration = Duration::from_secs(10);
const QUICK: Duration = Duration::from_millis(500);
/// After a flood, until the server has noticed the end of its connections.
const SETTLING: Duration = Duration::from_secs(1);
/// How often the server's memory is read.
const POLL: Duration = Duration::from_millis(50);
/// Files of the bench in addition to the connections of floods.
const OTHER_FILES: u64 = 512;

/// A flood, or all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    Connections,
    SlowTalkers,
    UnknownRecipients,
    PasswordGuessing,
    All,
}

impl Scenario {
    const ALL: [Self; 5] =
        [Self::Connections, Self::SlowTalkers, Self::UnknownRecipients, Self::PasswordGuessing, Self::All];

    fn op(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::SlowTalkers => "slow_talkers",
            Self::UnknownRecipients => "unknown_recipients",
            Self::PasswordGuessing => "password_guessing",
            Self::All => "all_at_once",
        }
    }

    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Connections => &[Kind::Connections],
            Self::SlowTalkers => &[Kind::SlowTalkers],
            Self::UnknownRecipients => &[Kind::UnknownRecipients],
            Self::PasswordGuessing => &[Kind::PasswordGuessing],
            Self::All => &Kind::ALL,
        }
    }

    /// Connections of the flood at once.
    fn connections(self, is_quick: bool) -> u64 {
        self.kinds().iter().map(|kind| kind.clients(is_quick)).sum()
    }
}

/// A row of JSON: the mails of known senders by one protocol, in one scenario.
#[derive(Clone, Debug, Serialize)]
struct Row {
    op: &'static str,
    /// How the known senders send: `smtp` or `submission`.
    known: &'static str,
    /// Of the flood, at the same time.
    connections: u64,
    /// Connections, recipients and log-ins that the flood tried, and those that were refused or cut off.
    attempts: u64,
    refused: u64,
    known_alone_p50_ms: f64,
    known_alone_p99_ms: f64,
    known_beside_p50_ms: f64,
    known_beside_p99_ms: f64,
    /// The median with the flood divided by the median alone.
    ratio: Option<f64>,
    private_mb_before: Option<f64>,
    private_mb_peak: Option<f64>,
}

/// How the mails of a scenario ended.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// Mails of known senders that were accepted, and those that were not.
    accepted: u64,
    failed: u64,
    first_error: Option<String>,
    /// Messages that the server has stored or queued beyond those of known senders, or too few.
    unexplained: u64,
    /// Recipients and log-ins of the flood that were accepted.
    let_in: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.failed += other.failed;
        self.first_error = self.first_error.take().or(other.first_error);
        self.unexplained += other.unexplained;
        self.let_in += other.let_in;
    }
}

/// Measures each flood, and adds them to the report.
pub(super) async fn measure(
    program: &Path,
    folder: &Path,
    is_quick: bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    // Each connection of a flood is a file here and one in the server, which raises its limit itself.
    allow_open_files(Scenario::All.connections(is_quick) + OTHER_FILES)?;
    let folder = folder.canonicalize().context("can't find the folder of the bench")?;
    let names = Names::start().await?;
    let setup = Setup::make(&folder, names.address).await?;
    let tls = ClientTls { verify: Verify::Nothing, ..ClientTls::default() }.config()?;
    let bench = Bench { program, setup, tls: Arc::new(tls), is_quick };
    let (mut rows, mut tally) = (Vec::new(), Tally::default());
    let bar = progress::bar("flooding", Scenario::ALL.len() as u64);
    for scenario in Scenario::ALL {
        let measured = bench.measure(scenario).await;
        let (measured, counted) = measured.with_context(|| format!("{} failed", scenario.op()))?;
        rows.extend(measured);
        tally.add(counted);
        bar.inc(1);
    }
    bar.finish_and_clear();
    present::present(&rows, &tally, report)
}

struct Bench<'a> {
    program: &'a Path,
    setup: Setup,
    tls: Arc<ClientConfig>,
    is_quick: bool,
}

/// The measurements of a scenario.
#[derive(Default)]
struct Measured {
    alone: Times,
    beside: Times,
    /// Private memory of the server in bytes: after known senders alone, and the most during the flood.
    before: Option<u64>,
    peak: Option<u64>,
}

impl Bench<'_> {
    fn pick<T>(&self, real: T, quick: T) -> T {
        if self.is_quick { quick } else { real }
    }

    async fn measure(&self, scenario: Scenario) -> anyhow::Result<(Vec<Row>, Tally)> {
        let target = self.setup.start(self.program, scenario).await?;
        let known = Arc::new(Known::new(scenario, &target, self.tls.clone()));
        let counts = Arc::new(Counts::default());
        let mut measured = Measured::default();
        known.send(self.pick(WARM_UP, QUICK)).await?;
        for _ in 0..self.pick(ROUNDS, 1) {
            measured.alone.add(&known.send(self.pick(ALONE, QUICK)).await?);
            let memory = target.server.private_memory();
            measured.before = measured.before.or(memory);
            let flood = Flood::start(scenario.kinds(), self.is_quick, &target, &self.tls, &counts);
            let beside = self.send_beside(&known, &target, &mut measured.peak).await;
            flood.stop().await;
            measured.beside.add(&beside?);
            sleep(self.pick(SETTLING, Duration::ZERO)).await;
        }
        let tally = tally(&known, &counts, &target).await?;
        target.server.stop().await?;
        let rows = By::ALL.map(|by| self.row(scenario, by, &measured, &counts)).to_vec();
        Ok((rows, tally))
    }

    /// Sends during a flood, and records the most memory of the server meanwhile.
    async fn send_beside(
        &self,
        known: &Arc<Known>,
        target: &Target,
        peak: &mut Option<u64>,
    ) -> anyhow::Result<Times> {
        let mut sent = pin!(known.send(self.pick(BESIDE, QUICK)));
        loop {
            *peak = (*peak).max(target.server.private_memory());
            tokio::select! {
                sent = &mut sent => return sent,
                () = sleep(POLL) => {}
            }
        }
    }

    fn row(&self, scenario: Scenario, by: By, measured: &Measured, counts: &Counts) -> Row {
        let (alone, beside): (&Latencies, &Latencies) = (measured.alone.of(by), measured.beside.of(by));
        let mb = |bytes: Option<u64>| bytes.map(|bytes| rounded(bytes as f64 / 1e6));
        Row {
            op: scenario.op(),
            known: by.name(),
            connections: scenario.connections(self.is_quick),
            attempts: counts.attempts.load(Ordering::Relaxed),
            refused: counts.refused.load(Ordering::Relaxed),
            known_alone_p50_ms: rounded(alone.median_ms()),
            known_alone_p99_ms: rounded(alone.p99_ms()),
            known_beside_p50_ms: rounded(beside.median_ms()),
            known_beside_p99_ms: rounded(beside.p99_ms()),
            ratio: ratio(beside.median_ms(), alone.median_ms()),
            private_mb_before: mb(measured.before),
            private_mb_peak: mb(measured.peak),
        }
    }
}

/// Compares what the server has accepted with the replies that known senders got.
async fn tally(known: &Known, counts: &Counts, target: &Target) -> anyhow::Result<Tally> {
    let scrape = Scrape::of(target.server.address).await?;
    let of = |result| scrape.sum_with("restante_smtp_messages_total", "result", result);
    let taken: u64 = ["stored", "junk", "quarantined", "queued"].into_iter().map(of).sum();
    let accepted = known.outcomes.accepted.load(Ordering::Relaxed);
    Ok(Tally {
        accepted,
        failed: known.outcomes.failed.load(Ordering::Relaxed),
        first_error: known.outcomes.first_error.lock().clone(),
        unexplained: taken.abs_diff(accepted),
        let_in: counts.accepted.load(Ordering::Relaxed),
    })
}
