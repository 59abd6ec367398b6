//! `restante records`: what operators do with records.

mod check;
mod dump;
mod erase;
mod moving;
mod route;
mod stats;

use std::process::ExitCode;

use clap::Subcommand;

use crate::config::RecordsFlags;

pub(crate) use route::route;

#[derive(Subcommand, Debug)]
pub(crate) enum RecordsCommand {
    /// Print the number of records of each kind and their size on disk; with --rest of a running server
    #[command(after_help = STATS_HELP)]
    Stats(stats::StatsFlags),
    /// Read every record and verify indexes, history and counters; exits with 1 and a list if something is damaged; no
    /// server may be running on them
    #[command(after_help = "Example:\n  restante records check --data /var/lib/restante")]
    Check(RecordsFlags),
    /// Write all records as lines of JSON to a file or to stdout; no server may be running on them
    #[command(after_help = DUMP_HELP)]
    Dump(dump::DumpFlags),
    /// Copy all records to another engine or place, from which clients go on as before; continues a copy that was
    /// interrupted; no server may be running on either
    #[command(after_help = COPY_HELP)]
    Copy(moving::CopyFlags),
    /// Compare two records; exits with 1 and a list if they differ; no server may be running on either
    #[command(after_help = COMPARE_HELP)]
    Compare(moving::CompareFlags),
    /// Erase all records of an account; no server may be running on them
    #[command(after_help = ERASE_HELP)]
    Erase(erase::EraseFlags),
}

const STATS_HELP: &str = "\
Examples:
  restante records stats --data /var/lib/restante
  restante records stats --rest http://127.0.0.1:8646 --format json

Only one process can have the records open. --rest asks a running server, on its listener for
operators (operate.listen).";

const DUMP_HELP: &str = "\
Examples:
  restante records dump --out records.ndjson
  restante records dump | jq -r 'select(.kind == \"email\") | .id'

One line for each record, ordered by account, kind and id: account, kind, id, revision, created,
properties by name (each a list of numbers and texts), the body and the ids of its blobs. Bytes
that are no text are in base64: a body as bodyBase64, a property as {\"base64\": ...}.

A dump is for inspection; use restante backup for copies that can be restored.";

const COPY_HELP: &str = "\
Examples:
  restante records copy lmdb:data/records postgres://me@db/restante
  restante records copy postgres://me@db/restante lmdb:data/new-records
  restante records copy lmdb:data/records cassandra://one,two,three/mail

Ids, revisions, states, UIDs and the checkpoints of followers stay the same, so clients read
nothing again. TO must be empty, or a copy of FROM that was interrupted: the same command continues
it, and copies accounts again that have changed since. Until a copy is complete, servers refuse to
start on it. FROM is not changed.";

const COMPARE_HELP: &str = "\
Example:
  restante records compare lmdb:data/records postgres://me@db/restante

Every record with its body, what is left of destroyed ones, the counters of each account, the order
of the feed and the checkpoints of followers are compared. `restante records check` compares
indexes with the records. The exit code is 0 if both are equal, else 1.";

const ERASE_HELP: &str = "\
Example:
  restante records erase 12 --yes --data /var/lib/restante

The account is empty then and can be used again; it assigns no id twice. Blobs without a reference
are removed by the next sweep. If the command is interrupted, run it again; until then commits in
the account are refused.";

/// Runs a command to completion.
pub(crate) async fn run(command: RecordsCommand) -> anyhow::Result<ExitCode> {
    match command {
        RecordsCommand::Stats(flags) => stats::run(&flags).await,
        RecordsCommand::Check(flags) => check::run(&flags).await,
        RecordsCommand::Dump(flags) => dump::run(&flags).await,
        RecordsCommand::Copy(flags) => Box::pin(moving::copy(&flags)).await,
        RecordsCommand::Compare(flags) => Box::pin(moving::compare(&flags)).await,
        RecordsCommand::Erase(flags) => erase::run(&flags).await,
    }
}
