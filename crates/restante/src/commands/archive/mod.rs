//! `restante archive`: what operators do with an archive.

mod export;
mod import;
mod maintain;
mod stats;

use std::process::ExitCode;

use clap::Subcommand;

use crate::config::ArchiveFlags;

#[derive(Subcommand, Debug)]
pub(crate) enum ArchiveCommand {
    /// Print what an archive holds and what it takes on disk; a server may be running on it
    #[command(after_help = "Example:\n  restante archive stats --archive log:data/archive --format json")]
    Stats(stats::StatsFlags),
    /// Verify every checksum and every index; exits with 1 and a list when something is damaged
    #[command(after_help = "Example:\n  restante archive check --data /var/lib/restante")]
    Check(ArchiveFlags),
    /// Make every index anew from the messages; no server may be running on the archive
    #[command(after_help = "Example:\n  restante archive rebuild --data /var/lib/restante")]
    Rebuild(ArchiveFlags),
    /// Write messages to a file or to stdout; a server may be running on the archive
    #[command(after_help = EXPORT_HELP)]
    Export(export::ExportFlags),
    /// Read messages from a file or from stdin; those that are there already stay as they are
    #[command(after_help = IMPORT_HELP)]
    Import(import::ImportFlags),
    /// Remove the oldest messages that a policy doesn't keep; no server may be running on the archive
    #[command(after_help = "Example:\n  restante archive prune --policy 'time:2592000;size:50GB'")]
    Prune(maintain::PruneFlags),
}

const EXPORT_HELP: &str = "\
Examples:
  restante archive export --output messages.pb
  restante archive export --start -1d --content-topic /toy/1/chat/proto | gzip > day.ndjson.gz";

const IMPORT_HELP: &str = "\
Examples:
  restante archive import messages.pb
  zcat day.ndjson.gz | restante archive import --archive log:other/archive

Each message's hash is computed anew. Records that are damaged are listed and left out, and the exit
code is 1 then; importing the same file again stores nothing twice.";

pub(crate) async fn run(command: ArchiveCommand) -> anyhow::Result<ExitCode> {
    match command {
        ArchiveCommand::Stats(flags) => stats::run(&flags).await,
        ArchiveCommand::Check(flags) => maintain::check(&flags).await,
        ArchiveCommand::Rebuild(flags) => maintain::rebuild(&flags).await,
        ArchiveCommand::Export(flags) => export::run(&flags).await,
        ArchiveCommand::Import(flags) => import::run(&flags).await,
        ArchiveCommand::Prune(flags) => maintain::prune(&flags).await,
    }
}
