//! `restante records`: what operators do with records.

mod check;
mod dump;
mod erase;
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

const ERASE_HELP: &str = "\
Example:
  restante records erase 12 --yes --data /var/lib/restante

The account is empty then and can be used again; it assigns no id twice. Blobs without a reference
are removed by the next sweep. If the command is interrupted, run it again; until then commits in
the account are refused.";

/// Runs a command to its end.
pub(crate) async fn run(command: RecordsCommand) -> anyhow::Result<ExitCode> {
    match command {
        RecordsCommand::Stats(flags) => stats::run(&flags).await,
        RecordsCommand::Check(flags) => check::run(&flags).await,
        RecordsCommand::Dump(flags) => dump::run(&flags).await,
        RecordsCommand::Erase(flags) => erase::run(&flags).await,
    }
}
