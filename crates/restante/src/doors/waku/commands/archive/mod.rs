//! `restante archive`: what operators do with an archive.

mod compare;
mod copy;
mod export;
mod foreign;
mod import;
mod maintain;
mod state;
mod stats;

use std::process::ExitCode;

use clap::Subcommand;

use crate::config::ArchiveFlags;

#[derive(Subcommand, Debug)]
pub(crate) enum ArchiveCommand {
    /// Print what an archive holds and what it takes on disk; a server may be running on it
    #[command(after_help = "Example:\n  restante archive stats --archive log:data/archive --format json")]
    Stats(stats::StatsFlags),
    /// Verify every checksum and every index; exits with 1 and a list if something is damaged or lost
    #[command(after_help = "Example:\n  restante archive check --data /var/lib/restante")]
    Check(ArchiveFlags),
    /// Rebuild every index from the messages, and accept losses; no server may be running on the archive
    #[command(after_help = "Example:\n  restante archive rebuild --data /var/lib/restante")]
    Rebuild(ArchiveFlags),
    /// Write messages to a file or to stdout; a server may be running on the archive
    #[command(after_help = EXPORT_HELP)]
    Export(export::ExportFlags),
    /// Read messages from a file, from stdin, or from an archive of nwaku, go-waku or a Status mailserver
    #[command(after_help = IMPORT_HELP)]
    Import(import::ImportFlags),
    /// Copy one archive to another, of any engine; a server may be running on the first one
    #[command(after_help = COPY_HELP)]
    Copy(copy::CopyFlags),
    /// List what one archive has and another lacks; exits with 1 if they differ; servers may be running on both
    #[command(after_help = COMPARE_HELP)]
    Compare(compare::CompareFlags),
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
  restante archive import --from nwaku store.sqlite3
  restante archive import --from nwaku postgres://user@host/store
  restante archive import --from status /var/lib/mailserver/wnode

The format is detected; --from is needed only if that fails. The source is only read: a server may
be running on nwaku's SQLite file and on a PostgreSQL database, but not on a LevelDB. Messages
that arrive meanwhile may be missing: import again.

Each message's hash is recomputed. A message that is damaged, ephemeral, or stored under another
hash (nwaku before 2024 did not keep a message's meta), is listed and omitted, and the exit code
is 1; --rehash imports the last kind under the computed hash. Importing again stores nothing twice.
An interrupted import from another server's archive continues with the same command, from a state
file in the current folder.";

const COPY_HELP: &str = "\
Examples:
  restante archive copy log:data/archive sqlite:archive.db
  restante archive copy log:data/archive postgres://me@db/restante
  restante archive copy sqlite:archive.db log:other/archive --start 2026-01-01

The copy goes from old to new, and copying again stores nothing twice. Damaged messages are left
out and counted, and the exit code is 1. If it is interrupted, by Ctrl-C or otherwise, the same
command continues from a state file in the current folder, which is removed at the end. A server
may use FROM meanwhile: messages that it stores with a timestamp before the position of the copy
may be missing. `restante archive compare --repair` or another copy adds them.";

const COMPARE_HELP: &str = "\
Examples:
  restante archive compare log:data/archive sqlite:archive.db
  restante archive compare log:data/archive postgres://me@db/restante --bodies
  restante archive compare log:data/archive sqlite:archive.db --repair --start -7d

Each archive is read once, without the bodies, for a fingerprint of every hour; only hours that
differ are read again. --repair copies to B what it lacks; messages that only B has, or has with
another body, are not changed. The exit code is 0 if both are equal, also after a repair, else 1.";

pub(crate) async fn run(command: ArchiveCommand) -> anyhow::Result<ExitCode> {
    match command {
        ArchiveCommand::Stats(flags) => stats::run(&flags).await,
        ArchiveCommand::Check(flags) => maintain::check(&flags).await,
        ArchiveCommand::Rebuild(flags) => maintain::rebuild(&flags).await,
        ArchiveCommand::Export(flags) => export::run(&flags).await,
        ArchiveCommand::Import(flags) => import::run(&flags).await,
        ArchiveCommand::Copy(flags) => Box::pin(copy::run(&flags)).await,
        ArchiveCommand::Compare(flags) => Box::pin(compare::run(&flags)).await,
        ArchiveCommand::Prune(flags) => maintain::prune(&flags).await,
    }
}
