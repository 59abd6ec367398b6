//! `restante search`: what operators do with the search index.

mod rebuild;
mod route;
mod stats;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand, ValueHint};

use crate::{client::OperatorFlags, client::RestClient, config::RecordsFlags};

pub(crate) use route::routes;

/// The path of the statistics on a running server.
const SEARCH_PATH: &str = "/admin/v1/search";
/// The path for rebuilding the index.
const REBUILD_PATH: &str = "/admin/v1/search/rebuild";

#[derive(Subcommand, Debug)]
pub(crate) enum SearchCommand {
    /// Print how many emails the index has and what it takes on disk; with --rest of a running server
    #[command(after_help = STATS_HELP)]
    Stats(stats::StatsFlags),
    /// Make the index again from the emails; with --rest in a running server, else when a server runs next
    #[command(after_help = REBUILD_HELP)]
    Rebuild(IndexFlags),
}

const STATS_HELP: &str = "\
Examples:
  restante search stats --data /var/lib/restante
  restante search stats --rest http://127.0.0.1:8646 --format json

Only one process can have an embedded index open. --rest asks a running server, on its listener
for operators (operate.listen).";

const REBUILD_HELP: &str = "\
Examples:
  restante search rebuild --rest http://127.0.0.1:8646
  restante search rebuild --data /var/lib/restante

The server reads all emails again. With OpenSearch a new index is made beside the present one, which
answers searches until the new one has everything. An embedded index is emptied first: until it is
complete, searches find the newest emails and those that are indexed already.";

/// Whose index.
#[derive(Args, Debug)]
pub(crate) struct IndexFlags {
    #[command(flatten)]
    stores: RecordsFlags,
    /// Ask this running server, as in http://127.0.0.1:8646
    #[arg(long, value_name = "URL", conflicts_with_all = ["data", "records", "blobs", "search", "config"])]
    rest: Option<String>,
    /// A file with the server's token [default: RESTANTE_TOKEN, then operate.token_file of the settings]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "rest")]
    token_file: Option<PathBuf>,
}

impl IndexFlags {
    /// The client of a running server, if one was named.
    fn server(&self) -> anyhow::Result<Option<RestClient>> {
        let of = |url: &String| OperatorFlags::of(url.clone(), self.token_file.clone()).client();
        self.rest.as_ref().map(of).transpose()
    }
}

/// Runs a command to completion.
pub(crate) async fn run(command: SearchCommand) -> anyhow::Result<ExitCode> {
    match command {
        SearchCommand::Stats(flags) => stats::run(&flags).await,
        SearchCommand::Rebuild(flags) => rebuild::run(&flags).await,
    }
}
