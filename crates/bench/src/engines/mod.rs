//! The engines that an operator runs: is each as fast as it should be, and is it set up safely?
//!
//! Distributed James publishes a page with base figures of its databases (Cassandra, OpenSearch, RabbitMQ, S3). This repeats
//! those tables with clients of our own, prints the published figure next to each, compares with what machine and network allow
//! in the same run, and gives a verdict with its reason. PostgreSQL and Redis are measured in the same manner.
//!
//! Everything is created under a name of this run, and removed at the end, also after an error or Ctrl-C.

#[cfg(feature = "cassandra")]
mod cassandra;
mod floors;
#[cfg(feature = "http")]
mod http_client;
pub(crate) mod load;
#[cfg(any(feature = "opensearch", feature = "s3"))]
mod network;
#[cfg(feature = "opensearch")]
pub(crate) mod opensearch;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "rabbitmq")]
pub(crate) mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
mod results;
#[cfg(feature = "s3")]
pub(crate) mod s3;
mod setting;
pub(crate) mod target;
mod verdict;

pub(crate) use target::fresh_name;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use crate::{
    args::{CommonArgs, OutputArgs},
    machine::Machine,
    report::Report,
};
use results::{Baseline, Results};
use setting::EngineSetting;

/// How long removing what a run created may take.
const CLEAN_UP_MAX: Duration = Duration::from_secs(60);

/// Flags of `bench engines`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  dev/services/with postgres redis -- restante bench engines --small
  restante bench engines --redis rediss://redis.example.org --ca-file ca.pem
  restante bench engines --json today.json --baseline last-month.json --html report.html")]
pub struct EnginesArgs {
    /// Measure this PostgreSQL; without it that of RESTANTE_POSTGRES_URL
    #[arg(long, value_name = "URL")]
    pub postgres: Option<String>,
    /// A file with the password of the PostgreSQL, when its URL has none
    #[arg(long, value_name = "FILE")]
    pub postgres_password_file: Option<PathBuf>,
    /// Measure this Redis; without it that of RESTANTE_REDIS_URL
    #[arg(long, value_name = "URL")]
    pub redis: Option<String>,
    /// A file with the password of the Redis, when its URL has none
    #[arg(long, value_name = "FILE")]
    pub redis_password_file: Option<PathBuf>,
    /// Where the Cassandra is, and who may use it
    #[cfg(feature = "cassandra")]
    #[command(flatten)]
    pub cassandra: cassandra::CassandraArgs,
    /// Where the RabbitMQ is, and who may use it
    #[cfg(feature = "rabbitmq")]
    #[command(flatten)]
    pub rabbitmq: rabbitmq::RabbitmqArgs,
    /// Where the S3 is, and who may use it
    #[cfg(feature = "s3")]
    #[command(flatten)]
    pub s3: s3::S3Args,
    /// Where the OpenSearch is, and who may use it
    #[cfg(feature = "opensearch")]
    #[command(flatten)]
    pub opensearch: opensearch::OpensearchArgs,
    /// Trust this certificate authority for connections over TLS, in place of those of the system
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Do less: enough for a verdict, not for small differences
    #[arg(long)]
    pub small: bool,
    /// Compare with the rows of an earlier run: a file that it wrote with --json
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Where files and results go; --data names the disk of local engines, to measure it
    #[command(flatten)]
    pub output: OutputArgs,
}

impl EnginesArgs {
    /// Engines as the environment names them, for other benches.
    pub(crate) fn of_environment(output: OutputArgs) -> Self {
        Self {
            postgres: None,
            postgres_password_file: None,
            redis: None,
            redis_password_file: None,
            #[cfg(feature = "cassandra")]
            cassandra: cassandra::CassandraArgs::default(),
            #[cfg(feature = "rabbitmq")]
            rabbitmq: rabbitmq::RabbitmqArgs::default(),
            #[cfg(feature = "s3")]
            s3: s3::S3Args::default(),
            #[cfg(feature = "opensearch")]
            opensearch: opensearch::OpensearchArgs::default(),
            ca_file: None,
            small: false,
            baseline: None,
            output,
        }
    }

    fn common(&self) -> CommonArgs {
        let common = self.output.common(0);
        CommonArgs { quick: self.small || common.quick, ..common }
    }

    /// The full number, or the one of a small run, or a twentieth of that.
    fn pick(&self, full: u64, small: u64) -> u64 {
        match (self.output.quick, self.small) {
            (true, _) => small.div_ceil(20),
            (_, true) => small,
            _ => full,
        }
    }
}

/// An engine to which the bench is connected.
#[async_trait]
pub(crate) trait Engine: Send + Sync {
    fn name(&self) -> &'static str;

    /// What this run creates in it and the command that removes it by hand.
    fn created(&self) -> String;

    /// The settings that decide about safety and speed, judged.
    async fn settings(&self) -> anyhow::Result<Vec<EngineSetting>>;

    /// Runs the workloads, and adds figures as soon as they are measured. Creates only what `clean_up` removes.
    async fn measure(&self, args: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<()>;

    /// Removes all that this run created, if it exists.
    async fn clean_up(&self) -> anyhow::Result<()>;
}

/// Connects to an engine; `None` if neither a flag nor the environment names one.
type Connect = for<'a> fn(&'a EnginesArgs) -> BoxFuture<'a, anyhow::Result<Option<Box<dyn Engine>>>>;

/// All engines, in the order in which they are measured.
const ENGINES: &[(&str, Connect)] = &[
    #[cfg(feature = "postgres")]
    ("postgres", |args| Box::pin(postgres::connect(args))),
    #[cfg(feature = "redis")]
    ("redis", |args| Box::pin(redis::connect(args))),
    #[cfg(feature = "s3")]
    ("s3", |args| Box::pin(s3::connect(args))),
    #[cfg(feature = "opensearch")]
    ("opensearch", |args| Box::pin(opensearch::connect(args))),
    #[cfg(feature = "cassandra")]
    ("cassandra", |args| Box::pin(cassandra::connect(args))),
    #[cfg(feature = "rabbitmq")]
    ("rabbitmq", |args| Box::pin(rabbitmq::connect(args))),
];

/// Runs the bench and delivers its report. On Ctrl-C it removes what it created.
pub(crate) async fn run(args: &EnginesArgs) -> anyhow::Result<()> {
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?.unwrap_or_default();
    let results = Arc::new(Mutex::new(Results::new(baseline)));
    let mut has_engine = false;
    for (name, connect) in ENGINES {
        let connected = tokio::select! {
            connected = connect(args) => connected,
            _ = tokio::signal::ctrl_c() => bail!("the bench was interrupted"),
        };
        match connected {
            Ok(None) => {}
            Ok(Some(engine)) => {
                has_engine = true;
                run_engine(&*engine, args, &results).await?;
            }
            Err(error) => {
                has_engine = true;
                results.lock().add_failure(format!("{name}: {error:#}"));
            }
        }
    }
    if !has_engine {
        bail!(
            "no engine is named: use --redis and the like, or `dev/services/with redis -- restante bench engines`"
        );
    }
    deliver(args, std::mem::take(&mut *results.lock()))
}

fn deliver(args: &EnginesArgs, results: Results) -> anyhow::Result<()> {
    let failures = results.failures().to_vec();
    if !results.is_empty() {
        let title =
            "Engines that scale out: measured, beside published figures and what machine and network allow.";
        let folder = args.output.data.clone().unwrap_or_else(|| ".".into());
        let mut report = Report::new("engines", title, Machine::look(&folder));
        results.fill(&mut report)?;
        report.note_quick(args.output.quick);
        report.note_debug_build();
        report.deliver(&args.common())?;
    }
    match failures.as_slice() {
        [] => Ok(()),
        failures => bail!("not all engines were measured: {}", failures.join("; ")),
    }
}

/// Measures one engine. An engine that fails midway keeps the figures so far, and the others are still measured.
///
/// # Errors
/// When it was interrupted.
async fn run_engine(engine: &dyn Engine, args: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<()> {
    let measuring = async {
        let settings = engine.settings().await.context("can't read its settings")?;
        results.lock().add_settings(settings);
        engine.measure(args, results).await
    };
    let interrupted = tokio::select! {
        measured = measuring => {
            if let Err(error) = measured {
                results.lock().add_failure(format!("{}: {error:#}", engine.name()));
            }
            false
        }
        _ = tokio::signal::ctrl_c() => true,
    };
    let cleaned = match tokio::time::timeout(CLEAN_UP_MAX, engine.clean_up()).await {
        Ok(cleaned) => cleaned,
        Err(_) => Err(anyhow::anyhow!("no answer within {} s", CLEAN_UP_MAX.as_secs())),
    };
    if let Err(error) = cleaned {
        let left =
            format!("{}: can't remove what was created ({error:#}): {}", engine.name(), engine.created());
        if interrupted {
            bail!("the bench was interrupted; {left}");
        }
        results.lock().add_failure(left);
    }
    if interrupted {
        bail!("the bench was interrupted; what it created in {} is removed", engine.name());
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
