//! Compares restante's engines with other stores, on the same server, disk and data, queried in turns: the tables of the
//! Status mailserver in PostgreSQL and of nwaku in SQLite, and tables of sessions. `docs/compare.md` explains how to read the
//! result.

mod args;
mod contender;
mod goals;
mod mailserver;
mod measure;
mod nwaku;
mod ours;
mod present;
mod question;
mod server;
mod sessions;
mod sides;

use std::sync::Arc;

use anyhow::{Context, bail};
use restante_bench::{Machine, Report, dataset::Dataset};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

pub use args::{CompareArgs, Comparison};
use question::Question;
use server::Server;
use sides::Side;

const TITLE: &str =
    "The history of a Status mailserver, and tables of sessions: restante's engines and other stores.";

/// Runs the comparison, prints its report and writes the requested files. Also on failure, it removes what it filled, unless
/// `--keep` is given, and reports the comparisons that were complete. In a child process it runs the task of the environment
/// instead.
///
/// # Errors
/// When a server, an engine or a file fails, a store answers wrongly, or the run was interrupted.
pub async fn run(args: &CompareArgs) -> anyhow::Result<()> {
    if let Ok(task) = std::env::var(sessions::TASK) {
        return sessions::run_task(&task).await;
    }
    let folder = work_folder(args)?;
    let server = match (&args.postgres, args.includes(Comparison::Postgres)) {
        (Some(url), true) => Some(Server::open(url).await?),
        (None, true) => {
            bail!("no PostgreSQL server is named: use --postgres URL, or --only sqlite or sessions")
        }
        (_, false) => None,
    };
    let mut report = Report::new("compare", TITLE, Machine::look(folder.path()));
    let outcome = tokio::select! {
        outcome = Box::pin(compare(args, server.as_ref(), &folder, &mut report)) => outcome,
        interrupted = interrupted() => interrupted,
    };
    if args.keep {
        let schemas = if server.is_some() { ", schemas restante_compare_*" } else { "" };
        eprintln!("not removed: folder {}{schemas}", folder.keep().display());
    } else if let Some(server) = &server {
        server.drop_schemas().await?;
    }
    if !report.tables.is_empty() {
        report.note_size(args.common.messages());
        report.deliver(&args.common)?;
    }
    outcome
}

/// Waits for Ctrl-C or SIGTERM: without a handler they would leave gigabytes on disk.
async fn interrupted() -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("can't wait for signals")?;
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    bail!("the comparison was interrupted")
}

/// The folder for files, removed when it goes out of scope.
fn work_folder(args: &CompareArgs) -> anyhow::Result<TempDir> {
    let parent = args.common.data.clone().unwrap_or_else(|| ".".into());
    std::fs::create_dir_all(&parent).with_context(|| format!("can't make folder {}", parent.display()))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix("restante-compare-");
    builder
        .tempdir_in(&parent)
        .with_context(|| format!("can't write in {}: name a folder with --data", parent.display()))
}

/// Makes one comparison after the other and reports each when it is complete.
async fn compare(
    args: &CompareArgs,
    server: Option<&Server>,
    folder: &TempDir,
    report: &mut Report,
) -> anyhow::Result<()> {
    if args.includes(Comparison::Postgres) || args.includes(Comparison::Sqlite) {
        histories(args, server, folder, report).await?;
    }
    if args.includes(Comparison::Sessions) {
        sessions::compare(args, folder.path(), report).await?;
    }
    Ok(())
}

/// Compares stores of history on one database after the other.
async fn histories(
    args: &CompareArgs,
    server: Option<&Server>,
    folder: &TempDir,
    report: &mut Report,
) -> anyhow::Result<()> {
    present::notes(report);
    let dataset = Arc::new(Dataset::new(args.common.seed, args.common.messages()));
    let questions = Question::all(&dataset);
    let log = sides::log(args, folder.path(), &dataset).await?;
    if let Some(server) = server {
        report.notes.push(format!("PostgreSQL: {}.", server.description().await?));
        let side = Side::postgres(server, args, &dataset, log.clone()).await?;
        present::side(&side.measure(&questions, args).await?, report)?;
        side.close().await?;
    }
    if args.includes(Comparison::Sqlite) {
        let side = Side::sqlite(folder.path(), args, &dataset, log.clone()).await?;
        present::side(&side.measure(&questions, args).await?, report)?;
        side.close().await?;
    }
    if let Some((log, _)) = log {
        log.close().await?;
    }
    Ok(())
}
