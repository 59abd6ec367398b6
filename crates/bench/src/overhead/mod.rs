//! The overhead of restante's engines over the same work by a raw client of the server.
//!
//! An engine may use a share of what its server can do, and no more: each row compares one operation of a role with the least
//! that a client of our own needs for the same bytes, in pairs that alternate. Everything is created under a name of this run,
//! and removed at the end, also after an error or Ctrl-C.

#[cfg(feature = "cassandra")]
mod cassandra;
#[cfg(feature = "opensearch")]
mod opensearch;
mod pairs;
#[cfg(feature = "postgres")]
mod postgres;
mod present;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(any(feature = "cassandra", feature = "postgres"))]
mod records;
#[cfg(feature = "s3")]
mod s3;

use std::{path::Path, time::Duration};

use anyhow::bail;
use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;

use crate::{
    args::OutputArgs, engines::EnginesArgs, machine::Machine, progress, report::Report, store::work_folder,
};
use pairs::{Bound, Load, Plan, Row, Subject, alternate};

/// How long removing what a run created may take.
const CLEAN_UP_MAX: Duration = Duration::from_secs(120);
/// What a quick run does: pairs, milliseconds of a side, and what is stored before pages are read.
const QUICK_PAIRS: u64 = 1;
const QUICK_SPAN: Duration = Duration::from_millis(600);
const QUICK_STORED: u64 = 2_000;
/// The most that is stored.
const STORED_MAX: u64 = 100_000_000;
/// The raw client of the server, in rows.
const RAW: &str = "a raw client";

/// Flags of `bench overhead`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  dev/services/with cassandra postgres -- restante bench overhead
  dev/services/with s3 -- restante bench overhead --pairs 9 --seconds 10
  dev/services/with cassandra -- restante bench overhead --only cassandra --records 1000000 --messages 10000000")]
pub struct OverheadArgs {
    /// Measure only these servers, separated by commas: cassandra, postgres, s3, rabbitmq, opensearch
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = SERVER_NAMES)]
    pub only: Vec<String>,
    /// Pairs of each row
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub pairs: u64,
    /// Seconds of each side of a pair
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
    /// Records of the account whose pages are compared with those of an account with 1,000
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(2_000..=STORED_MAX))]
    pub records: u64,
    /// Messages of the archive whose pages are compared with those of an archive with 10,000
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(2_000..=STORED_MAX))]
    pub messages: u64,
    /// Where files and results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The names of all servers, in the order in which they are measured.
const SERVER_NAMES: [&str; 5] = ["cassandra", "postgres", "s3", "rabbitmq", "opensearch"];

impl OverheadArgs {
    fn plan(&self) -> Plan {
        match self.output.quick {
            true => Plan { pairs: QUICK_PAIRS, span: QUICK_SPAN },
            false => Plan { pairs: self.pairs, span: Duration::from_secs(self.seconds) },
        }
    }

    fn stored(&self, number: u64) -> u64 {
        if self.output.quick { QUICK_STORED } else { number }
    }

    /// Connections to the servers are those of `bench engines`, all of the environment.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "only some servers need it"))]
    fn engines(&self) -> EnginesArgs {
        EnginesArgs::of_environment(self.output.clone())
    }
}

/// A server to which the bench is connected.
#[async_trait(?Send)]
trait Server {
    fn name(&self) -> &'static str;

    /// What this run creates in it and the command that removes it by hand.
    fn created(&self) -> String;

    /// Compares, and creates only what `clean_up` removes.
    async fn measure(&self, bench: &mut Bench<'_>) -> anyhow::Result<()>;

    /// Removes all that this run created, if it exists.
    async fn clean_up(&self) -> anyhow::Result<()>;
}

/// What the modules of the servers use to measure.
struct Bench<'a> {
    args: &'a OverheadArgs,
    server: &'static str,
    /// For files of this run.
    folder: &'a Path,
    rows: Vec<Row>,
}

impl Bench<'_> {
    /// Compares two sides in pairs, and adds a row for each bound.
    async fn compare(
        &mut self,
        subject: Subject<'_>,
        bounds: &[Bound],
        mut base: impl AsyncFnMut(Duration) -> anyhow::Result<Load>,
        mut ours: impl AsyncFnMut(Duration) -> anyhow::Result<Load>,
    ) -> anyhow::Result<()> {
        let plan = self.args.plan();
        let bar = progress::bar(&format!("{}: {}", self.server, subject.what), 2 * (plan.pairs + 1));
        let counted = alternate(
            plan,
            async |span| base(span).await.inspect(|_| bar.inc(1)),
            async |span| ours(span).await.inspect(|_| bar.inc(1)),
        );
        let pairs = counted.await;
        bar.finish_and_clear();
        let pairs = pairs.map_err(|error| error.context(subject.what.to_owned()))?;
        for bound in bounds {
            self.rows.push(pairs.row(self.server, subject, *bound)?);
        }
        Ok(())
    }
}

/// Connects to a server; `None` if the environment does not name one.
type Connect = for<'a> fn(&'a OverheadArgs) -> LocalBoxFuture<'a, anyhow::Result<Option<Box<dyn Server>>>>;

/// All servers, in the order in which they are measured.
const SERVERS: &[(&str, Connect)] = &[
    #[cfg(feature = "cassandra")]
    ("cassandra", |_| Box::pin(cassandra::connect())),
    #[cfg(feature = "postgres")]
    ("postgres", |_| Box::pin(postgres::connect())),
    #[cfg(feature = "s3")]
    ("s3", |args| Box::pin(s3::connect(args))),
    #[cfg(feature = "rabbitmq")]
    ("rabbitmq", |args| Box::pin(rabbitmq::connect(args))),
    #[cfg(feature = "opensearch")]
    ("opensearch", |args| Box::pin(opensearch::connect(args))),
];

/// Runs the bench and delivers its report. On Ctrl-C it removes what it created.
pub(crate) async fn run(args: &OverheadArgs) -> anyhow::Result<()> {
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for (name, connect) in SERVERS {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == name) {
            continue;
        }
        let connected = tokio::select! {
            connected = connect(args) => connected,
            _ = tokio::signal::ctrl_c() => bail!("the bench was interrupted"),
        };
        match connected {
            Ok(None) => {}
            Ok(Some(server)) => rows.extend(run_server(&*server, args, &mut failures).await?),
            Err(error) => failures.push(format!("{name}: {error:#}")),
        }
    }
    if rows.is_empty() && failures.is_empty() {
        bail!(
            "no server is named: run it below `dev/services/with cassandra postgres s3 rabbitmq opensearch --`, or set \
             RESTANTE_CASSANDRA_URL and the like"
        );
    }
    deliver(args, &rows, &failures)
}

fn deliver(args: &OverheadArgs, rows: &[Row], failures: &[String]) -> anyhow::Result<()> {
    if !rows.is_empty() {
        report(args, rows, failures)?.deliver(&args.output.common(0))?;
    }
    match failures {
        [] => Ok(()),
        failures => bail!("not everything was measured: {}", failures.join("; ")),
    }
}

fn report(args: &OverheadArgs, rows: &[Row], failures: &[String]) -> anyhow::Result<Report> {
    let title = "What restante's engines take beside the same work by a raw client of the server.";
    let folder = args.output.data.clone().unwrap_or_else(|| ".".into());
    let mut report = Report::new("overhead", title, Machine::look(&folder));
    present::present(rows, &mut report)?;
    report.note_quick(args.output.quick);
    report.note_debug_build();
    report.notes.extend(failures.iter().map(|failure| format!("NOT MEASURED: {failure}")));
    Ok(report)
}

/// Measures one server. A server that fails midway keeps the rows so far, and the others are still measured.
///
/// # Errors
/// When it was interrupted.
async fn run_server(
    server: &dyn Server,
    args: &OverheadArgs,
    failures: &mut Vec<String>,
) -> anyhow::Result<Vec<Row>> {
    let name = server.name();
    let folder = work_folder(&args.output.common(0))?;
    let mut bench = Bench { args, server: name, folder: folder.path(), rows: Vec::new() };
    let interrupted = tokio::select! {
        measured = server.measure(&mut bench) => {
            failures.extend(measured.err().map(|error| format!("{name}: {error:#}")));
            false
        }
        _ = tokio::signal::ctrl_c() => true,
    };
    let cleaned = match tokio::time::timeout(CLEAN_UP_MAX, server.clean_up()).await {
        Ok(cleaned) => cleaned,
        Err(_) => Err(anyhow::anyhow!("no answer within {} s", CLEAN_UP_MAX.as_secs())),
    };
    let left = cleaned
        .err()
        .map(|error| format!("{name}: can't remove what was created ({error:#}): {}", server.created()));
    match (interrupted, left) {
        (true, Some(left)) => bail!("the bench was interrupted; {left}"),
        (true, None) => bail!("the bench was interrupted; what it created in {name} is removed"),
        (false, left) => failures.extend(left),
    }
    Ok(bench.rows)
}

#[cfg(test)]
mod tests;
