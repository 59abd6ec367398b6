//! `restante queue dead`: messages between servers (hints) in the broker that no server could process.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use restante_delivery::decode_hint;
use restante_queue::Upkeep;
use serde::Serialize;
use tokio::time::sleep;

use super::operate::show_id;
use crate::{config::RecordsFlags, doors::mail::queue, output::ReportFormat};

/// How long to wait for a broker that is not reachable at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many bytes of an unreadable hint are shown.
const SHOWN_BYTES: usize = 32;

#[derive(Subcommand, Debug)]
pub(crate) enum DeadCommand {
    /// List the dead hints
    List(ListFlags),
    /// Add the dead hints to the queue again
    Requeue(DeadFlags),
    /// Drop the dead hints; the mail that they are about stays
    Drop(DeadFlags),
}

#[derive(Args, Debug)]
pub(crate) struct DeadFlags {
    #[command(flatten)]
    records: RecordsFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    #[command(flatten)]
    records: RecordsFlags,
    /// The most hints
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: usize,
    /// How to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: ReportFormat,
}

/// A hint as it is printed.
#[derive(Serialize)]
struct ShownHint {
    /// The id of the recipient for `restante queue show`; `None` when it can't be read.
    id: Option<String>,
    domain: Option<String>,
    reason: String,
    /// Its first bytes in hexadecimal digits, when it can't be read.
    bytes: Option<String>,
}

pub(super) async fn run(command: DeadCommand) -> anyhow::Result<ExitCode> {
    match command {
        DeadCommand::List(flags) => {
            let upkeep = reach(&flags.records).await?;
            let listed = list(upkeep.as_ref(), &flags).await;
            upkeep.close().await;
            listed?;
        }
        DeadCommand::Requeue(flags) => {
            let upkeep = reach(&flags.records).await?;
            let requeued = upkeep.requeue_dead().await;
            upkeep.close().await;
            writeln!(io::stdout(), "{} dead hints requeued", requeued?).context("can't print")?;
        }
        DeadCommand::Drop(flags) => {
            let upkeep = reach(&flags.records).await?;
            let dropped = upkeep.drop_dead().await;
            upkeep.close().await;
            writeln!(io::stdout(), "{} dead hints dropped", dropped?).context("can't print")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn reach(flags: &RecordsFlags) -> anyhow::Result<std::sync::Arc<dyn Upkeep>> {
    let config = flags.load()?.config;
    if !config.queue.url.is_shared() {
        bail!("queue.url names no broker: this server looks for its own work, and has no hints");
    }
    let upkeep = queue::open_upkeep(&config).await?;
    if upkeep.health().is_err() {
        sleep(PATIENCE).await; // leaves time for a second attempt
    }
    upkeep.health().with_context(|| format!("can't reach the queue {}", config.queue.url))?;
    Ok(upkeep)
}

async fn list(upkeep: &dyn Upkeep, flags: &ListFlags) -> anyhow::Result<()> {
    let dead = upkeep.dead(flags.limit).await?;
    let shown = dead.into_iter().map(|dead| {
        let item = decode_hint(&dead.item);
        let first = dead.item.get(..SHOWN_BYTES).unwrap_or(&dead.item);
        ShownHint {
            id: item.as_ref().map(|item| show_id(item.id)),
            bytes: item.is_none().then(|| hex::encode(first)),
            domain: item.map(|item| item.domain),
            reason: dead.reason,
        }
    });
    let shown: Vec<ShownHint> = shown.collect();
    let mut out = io::stdout().lock();
    if matches!(flags.format, ReportFormat::Json) {
        let text = serde_json::to_string_pretty(&shown).context("can't print")?;
        return writeln!(out, "{text}").context("can't print");
    }
    for ShownHint { id, domain, reason, bytes } in &shown {
        let what = bytes.as_ref().map(|bytes| format!("unreadable: {bytes}"));
        let what = what.or_else(|| domain.clone()).unwrap_or_default();
        writeln!(out, "{}  {reason}  {what}", id.as_deref().unwrap_or("-")).context("can't print")?;
    }
    if shown.is_empty() {
        writeln!(out, "no hint is dead").context("can't print")?;
    }
    Ok(())
}
