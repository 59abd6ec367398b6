//! The commands of the Waku door.

pub(super) mod archive;
mod publish;
mod query;

use std::process::ExitCode;

use clap::Subcommand;

#[derive(Subcommand, Debug)]
pub(crate) enum WakuCommand {
    /// Publish one message over REST
    #[command(after_help = PUBLISH_HELP)]
    Publish(publish::PublishFlags),
    /// Query stored messages, over REST or directly from an archive
    #[command(after_help = QUERY_HELP)]
    Query(query::QueryFlags),
    /// Manage an archive: statistics, check, rebuild, export, import, copy, compare, prune
    #[command(subcommand, after_help = "Example:\n  restante archive stats --data /var/lib/restante")]
    Archive(archive::ArchiveCommand),
}

const PUBLISH_HELP: &str = "\
Examples:
  restante publish --pubsub-topic /waku/2/rs/1/0 --content-topic /toy/1/chat/proto --payload hello
  date | restante publish --content-topic /toy/1/chat/proto

The hash of the message is printed. Without --pubsub-topic the server chooses the shard by the
content topic, and nothing is printed: the hash covers the pubsub topic.";

const QUERY_HELP: &str = "\
Examples:
  restante query --content-topic /toy/1/chat/proto --start -1h
  restante query --backward --limit 10
  restante query --archive log:data/archive --start 2026-01-31 --end 2026-02-01 > day.ndjson

A table is printed to a terminal and NDJSON to a pipe or file. --archive reads beside a running
server.";

/// Runs a command to completion.
pub(crate) async fn run(command: WakuCommand) -> anyhow::Result<ExitCode> {
    match command {
        WakuCommand::Publish(flags) => publish::run(&flags).await,
        WakuCommand::Query(flags) => query::run(&flags).await,
        WakuCommand::Archive(command) => Box::pin(archive::run(command)).await,
    }
}
