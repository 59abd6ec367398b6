//! `restante blobs`: what operators do with blobs.

mod check;
mod copy;
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
    /// Copy all blobs to another place, for example to an S3 storage; continues a copy that was interrupted
    #[command(after_help = COPY_HELP)]
    Copy(copy::CopyFlags),
    /// Remove the blobs that no record refers to; no server may be running on them
    #[command(after_help = SWEEP_HELP)]
    Sweep(sweep::SweepFlags),
}

const COPY_HELP: &str = "\
Examples:
  restante blobs copy files:/var/lib/restante/blobs s3://mail/restante
  restante blobs copy s3://mail/restante files:/srv/copy/blobs

No server may be running on the first place. Every blob is compared with its hash; a damaged one is
listed and not copied, and the exit code is 1. Keys and endpoint of an S3 storage are settings
(blobs.s3). Afterwards name the new place in blobs.url.";

const SWEEP_HELP: &str = "\
Examples:
  restante blobs sweep --data /var/lib/restante
  restante blobs sweep --grace 0

A running server sweeps by itself (blobs.sweep_interval_seconds). Blobs belong to certain records
and are swept with no others; --adopt makes them those of the present records. Blobs without an
owner become those of the records, if these refer to one of them.";

/// Runs a command to completion.
pub(crate) async fn run(command: BlobsCommand) -> anyhow::Result<ExitCode> {
    match command {
        BlobsCommand::Stats(flags) => stats::run(&flags).await,
        BlobsCommand::Check(flags) => check::run(&flags).await,
        BlobsCommand::Copy(flags) => copy::run(&flags).await,
        BlobsCommand::Sweep(flags) => sweep::run(&flags).await,
    }
}
