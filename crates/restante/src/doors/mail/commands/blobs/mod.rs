//! `restante blobs`: what operators do with blobs.

mod check;
mod stats;
mod sweep;

use std::process::ExitCode;

use clap::Subcommand;

use crate::config::RecordsFlags;

#[derive(Subcommand, Debug)]
pub(crate) enum BlobsCommand {
    /// Print how many blobs there are and what they take on disk; no server may be running on them
    #[command(after_help = "Example:\n  restante blobs stats --data /var/lib/restante")]
    Stats(stats::StatsFlags),
    /// Read every blob and compare it with its hash; exits with 1 and a list if something is damaged; no server may be
    /// running on them
    #[command(after_help = "Example:\n  restante blobs check --data /var/lib/restante")]
    Check(RecordsFlags),
    /// Remove the blobs that no record refers to; no server may be running on them
    #[command(after_help = SWEEP_HELP)]
    Sweep(sweep::SweepFlags),
}

const SWEEP_HELP: &str = "\
Examples:
  restante blobs sweep --data /var/lib/restante
  restante blobs sweep --grace 0

A running server sweeps by itself (blobs.sweep_interval_seconds). Blobs belong to certain records
and are swept with no others; --adopt makes them those of the present records. Blobs without an
owner become those of the records, if these refer to one of them.";

/// Runs a command to its end.
pub(crate) async fn run(command: BlobsCommand) -> anyhow::Result<ExitCode> {
    match command {
        BlobsCommand::Stats(flags) => stats::run(&flags).await,
        BlobsCommand::Check(flags) => check::run(&flags).await,
        BlobsCommand::Sweep(flags) => sweep::run(&flags).await,
    }
}
