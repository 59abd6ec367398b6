//! The command line: help texts, man pages and shell completions are all generated from these definitions.

use clap::{Parser, Subcommand};

use crate::{
    commands::{
        backup::BackupFlags, completions::CompletionsFlags, config::ConfigCommand, man::ManFlags,
        restore::RestoreFlags, sessions::SessionsCommand,
    },
    config::ServeFlags,
    doors,
};

/// The width of help texts in columns.
const WIDTH: usize = 100;

/// Keeps messages while clients are offline, and answers their history queries fast
#[derive(Parser, Debug)]
#[command(name = "restante", version, max_term_width = WIDTH, after_help = help())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

fn help() -> String {
    let examples = doors::lines("help");
    format!("Examples:\n  restante serve\n{examples}  restante sessions list\n\n{EXIT_CODES}")
}

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  failure, something wrong was found (check, import, export, copy), or archives differ (compare)
  2  the command line or the settings can't be used
  3  another process holds what is needed: a locked archive or other store, a port in use
  130  stopped by Ctrl-C or SIGTERM; the same command continues (archive copy, archive import)";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run the server
    #[command(after_help = serve_help())]
    Serve(ServeFlags),
    #[cfg(feature = "mail")]
    #[command(flatten)]
    Mail(doors::mail::commands::MailCommand),
    #[cfg(feature = "waku")]
    #[command(flatten)]
    Waku(doors::waku::commands::WakuCommand),
    /// List and close the sessions of a running server: connected clients
    #[command(subcommand, after_help = "Example:\n  restante sessions list")]
    Sessions(SessionsCommand),
    /// Copy everything that a server keeps into a folder, while it runs
    #[command(after_help = BACKUP_HELP)]
    Backup(BackupFlags),
    /// Restore a backup
    #[command(after_help = RESTORE_HELP)]
    Restore(RestoreFlags),
    #[cfg(feature = "bench")]
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
    /// Whether the command writes the data of a server. Man pages and completions may be read by everybody.
    pub(crate) fn keeps_data(&self) -> bool {
        match self {
            Self::Man(_) | Self::Completions(_) | Self::Config(_) => false,
            #[cfg(feature = "bench")]
            Self::Bench(_) => false,
            _ => true,
        }
    }
}

fn serve_help() -> String {
    let examples = doors::lines("serve");
    format!("Examples:\n  restante serve\n{examples}\n{SERVE_TEXT}")
}

const SERVE_TEXT: &str = "\
Every setting is also a key of restante.toml and an environment variable (RESTANTE_REST__PORT=80);
a flag overrides the environment, and the environment overrides the file. SIGTERM or Ctrl-C stops
the server when it has finished what it accepted; a second one ends it at once.";

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
