//! The command line: help texts, man pages and shell completions are all made from what stands here.

use clap::{Parser, Subcommand};

use crate::{
    commands::{
        backup::BackupFlags, completions::CompletionsFlags, config::ConfigCommand, man::ManFlags,
        restore::RestoreFlags, sessions::SessionsCommand,
    },
    config::ServeFlags,
    doors::{
        mail::commands::{
            blobs::BlobsCommand,
            directory::{
                account::AccountCommand, alias::AliasCommand, domain::DomainCommand, log::LogFlags,
                setup::SetupFlags, token::TokenCommand,
            },
            records::RecordsCommand,
        },
        waku::commands::{archive::ArchiveCommand, publish::PublishFlags, query::QueryFlags},
    },
};

/// Columns of help texts.
const WIDTH: usize = 100;

/// Keeps messages while clients are offline, and answers their history queries fast
#[derive(Parser, Debug)]
#[command(name = "restante", version, max_term_width = WIDTH, after_help = HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const HELP: &str = "\
Examples:
  restante serve
  restante setup example.org
  restante publish --pubsub-topic /waku/2/rs/1/0 --content-topic /toy/1/chat/proto --payload hello
  restante query --content-topic /toy/1/chat/proto --start -1h
  restante sessions list

Exit codes:
  0  success
  1  failure, something wrong was found (check, import, copy), or archives differ (compare)
  2  the command line or the settings can't be used
  3  another process holds what is needed: a locked archive or other store, a port in use
  130  stopped by Ctrl-C or SIGTERM; the same command continues (archive copy, archive import)";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Set up a server for a domain: settings, a first account, DNS records to set
    #[command(after_help = SETUP_HELP)]
    Setup(SetupFlags),
    /// Run the server
    #[command(after_help = SERVE_HELP)]
    Serve(ServeFlags),
    /// Publish one message over REST
    #[command(after_help = PUBLISH_HELP)]
    Publish(PublishFlags),
    /// Query stored messages, over REST or directly from an archive
    #[command(after_help = QUERY_HELP)]
    Query(QueryFlags),
    /// List and close the sessions of a running server: connected clients
    #[command(subcommand, after_help = "Example:\n  restante sessions list")]
    Sessions(SessionsCommand),
    /// Manage the domains of this server
    #[command(subcommand, after_help = "Example:\n  restante domain add example.org")]
    Domain(DomainCommand),
    /// Manage accounts: passwords, quotas, access to the mail of others
    #[command(subcommand, after_help = "Example:\n  restante account add anna@example.org")]
    Account(AccountCommand),
    /// Manage aliases: addresses whose mail goes to other addresses
    #[command(subcommand, after_help = "Example:\n  restante alias add info@example.org anna@example.org")]
    Alias(AliasCommand),
    /// Manage tokens, with which scripts and devices log in
    #[command(subcommand, after_help = "Example:\n  restante token create anna@example.org --name laptop")]
    Token(TokenCommand),
    /// Show who changed domains, accounts, aliases and tokens, and when
    #[command(after_help = "Example:\n  restante log --limit 10")]
    Log(LogFlags),
    /// Manage an archive: statistics, check, rebuild, export, import, copy, compare, prune
    #[command(subcommand, after_help = "Example:\n  restante archive stats --data /var/lib/restante")]
    Archive(ArchiveCommand),
    /// Manage records: statistics, check, dump, erasing an account
    #[command(subcommand, after_help = "Example:\n  restante records stats --data /var/lib/restante")]
    Records(RecordsCommand),
    /// Manage blobs: statistics, check, sweep
    #[command(subcommand, after_help = "Example:\n  restante blobs stats --data /var/lib/restante")]
    Blobs(BlobsCommand),
    /// Copy everything that a server keeps into a folder, while it runs
    #[command(after_help = BACKUP_HELP)]
    Backup(BackupFlags),
    /// Restore a backup
    #[command(after_help = RESTORE_HELP)]
    Restore(RestoreFlags),
    /// Measure this machine: history queries, durable appends, REST, sessions, records and more
    #[command(subcommand, after_help = "Example:\n  restante bench history --messages 100000")]
    Bench(restante_bench::BenchCommand),
    /// Show or check the settings
    #[command(subcommand, after_help = "Example:\n  restante config show")]
    Config(ConfigCommand),
    /// Print completions for a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions(CompletionsFlags),
    /// Write man pages, one for each command
    #[command(after_help = "Example:\n  restante man --out target/man && man -l target/man/restante.1")]
    Man(ManFlags),
}

impl Command {
    /// Whether it writes what a server keeps. Man pages and completions are for everybody.
    pub(crate) fn keeps_data(&self) -> bool {
        !matches!(self, Self::Man(_) | Self::Completions(_) | Self::Config(_) | Self::Bench(_))
    }
}

const SETUP_HELP: &str = "\
Examples:
  restante setup example.org
  restante setup example.org --user anna --data /var/lib/restante

It writes restante.toml into this folder, and creates the domain, an account whose password it
prints once, the aliases postmaster and abuse, a self-signed certificate and a token for
operators. It changes nothing that exists. `restante serve` in the same folder then runs the
server.";

const SERVE_HELP: &str = "\
Examples:
  restante serve
  restante serve --data /var/lib/restante --retention 'time:2592000;size:50GB'
  restante serve --cluster-id 16 --shard 32 --shard 64 --listen-address 0.0.0.0 --websocket-support
  restante serve --cluster-id 1 --relay=false --storenode /ip4/198.51.100.9/tcp/60000/p2p/16U...

Every setting is also a key of restante.toml and an environment variable (RESTANTE_REST__PORT=80);
a flag overrides the environment, and the environment overrides the file. SIGTERM or Ctrl-C stops
the server when it has finished what it accepted; a second one ends it at once.";

const PUBLISH_HELP: &str = "\
Examples:
  restante publish --pubsub-topic /waku/2/rs/1/0 --content-topic /toy/1/chat/proto --payload hello
  date | restante publish --content-topic /toy/1/chat/proto

Without --pubsub-topic the server chooses the shard by the content topic.";

const QUERY_HELP: &str = "\
Examples:
  restante query --content-topic /toy/1/chat/proto --start -1h
  restante query --backward --limit 10
  restante query --archive log:data/archive --start 2026-01-31 --end 2026-02-01 > day.ndjson

A table is printed to a terminal and NDJSON to a pipe or file. --archive reads beside a running
server.";

const BACKUP_HELP: &str = "\
Examples:
  restante backup /var/backups/restante/$(date -I)
  restante backup /mnt/usb/restante --data /var/lib/restante
  restante backup check /var/backups/restante/2026-01-31

A running server writes the folder itself, as its own user: the command asks it on its listener
for operators (operate.listen). Without a server the command reads the folders of the settings, or
asks the server at operate.listen if there are none and no folder was named. The backup has
everything that was acknowledged before: records, blobs, the archive, its spool, the node's key,
and the settings without secrets. An archive in PostgreSQL is not in it; the command says so. The
folder's name ends with .partial until everything is on disk. A user who can read it can read
everything.

On the disk of the archive its sealed segments take no more space, because they are hard-linked:
copy the folder to another machine, since it does not survive this disk. Write a folder named
check as ./check.";

const RESTORE_HELP: &str = "\
Examples:
  restante restore /var/backups/restante/2026-01-31 --data /var/lib/restante --keep-node-key
  sudo -u restante restante restore /mnt/usb/restante --config /etc/restante/restante.toml --force

Everything goes to the folders of the settings: the data folder must be empty or missing, and no
server may be running on it. With --force its content is moved into before-restore-<time> in it.
Every file is copied and compared with its SHA-256 before anything is moved to its location; if
one is damaged, it is named and nothing is restored. The settings are not restored: settings.toml
in the backup has them. The server gets a new node key unless --keep-node-key makes it the node
that was backed up, which must not run any more.";

const COMPLETIONS_HELP: &str = "\
Example:
  restante completions bash > /usr/share/bash-completion/completions/restante";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    /// A longer line would be broken in the middle of a paragraph.
    #[test]
    fn no_line_of_a_help_text_is_broken_by_a_terminal() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines() {
                assert!(line.len() <= WIDTH, "restante {}: {line}", command.get_name());
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }
}
