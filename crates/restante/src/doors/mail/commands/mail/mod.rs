//! `restante mail`: what operators do with the mail of accounts, in the records of a stopped server or by a running one.

mod check;
mod deliveries;
mod moving;
mod operate;
mod restore;
mod route;
mod trace;
mod vault;

use std::process::ExitCode;

use clap::Subcommand;

pub(crate) use moving::{Mover, message_bytes_max, route as moving_route};
pub(crate) use operate::Operator;
pub(crate) use route::routes;

#[derive(Subcommand, Debug)]
pub(crate) enum UpkeepCommand {
    /// Count all emails again and compare with what mailboxes and accounts have counted; exits with 1 and a list if
    /// something is wrong
    #[command(after_help = CHECK_HELP)]
    Check(check::CheckFlags),
    /// Find what became of messages: by the address of a sender or recipient, or by Message-ID; exits with 1 if there is nothing
    #[command(after_help = TRACE_HELP)]
    Trace(trace::TraceFlags),
    /// List the destroyed emails of an account that can be restored
    #[command(after_help = VAULT_HELP)]
    Vault(vault::VaultFlags),
    /// Restore destroyed emails of an account
    #[command(after_help = RESTORE_HELP)]
    Restore(restore::RestoreFlags),
    /// Move mail into an account: from mbox files, a Maildir, or another server by JMAP
    #[command(after_help = IMPORT_HELP)]
    Import(moving::ImportFlags),
    /// Write the mail of an account into mbox files or a Maildir
    #[command(after_help = EXPORT_HELP)]
    Export(moving::ExportFlags),
}

const IMPORT_HELP: &str = "\
Examples:
  restante mail import --account anna@example.org maildir:/home/anna/Maildir
  restante mail import --account anna@example.org mbox:archive.mbox --mailbox Old/2019
  restante mail import --account anna@example.org jmap:https://old.example.net \\
    --source-user anna@example.net --source-password-file FILE

Run again, it imports what is new and nothing twice: so it can be stopped, and repeated until the
move is over. Mailboxes are made as needed; folders with well-known names, such as Sent, are the
account's own. It works while the server runs, too. Messages that can't be imported are listed,
and the exit code is 1 then.";

const EXPORT_HELP: &str = "\
Examples:
  restante mail export --account anna@example.org maildir:anna-maildir
  restante mail export --account anna@example.org mbox:anna.mbox
  restante mail export --account anna@example.org mbox:anna-folders/

mbox:FILE has each email once, with its mailboxes noted in it; mbox:FOLDER/ has a file for each
mailbox. An import of either, or of the Maildir, gives the same emails. The target must not exist.
Until it is complete its name ends with .partial.";

const CHECK_HELP: &str = "\
Examples:
  restante mail check
  restante mail check anna@example.org --rebuild

It checks the totals of mailboxes, the size of accounts, and that mailboxes and threads of emails
exist. Without an address it checks all accounts. Changes of an account wait while it is checked,
about a second for 100,000 emails. --rebuild corrects what is counted; what it can't correct stays
listed, and the exit code is 1 then.";

const TRACE_HELP: &str = "\
Examples:
  restante mail trace anna@example.org --since -2d
  restante mail trace '<1234@example.net>' --format json | jq '.[].outcome'

Messages that came by SMTP or LMTP are kept for seven days (mail.journal): delivered, repeated
(it was delivered before), deferred (the sender's server tries again), refused, broken off (the
connection ended within the message), or queued. What is queued is then sent, postponed, failed, or
delivered here, and reported when its sender gets a report. The newest come first. Mail that is
imported is not listed.";

const VAULT_HELP: &str = "\
Examples:
  restante mail vault anna@example.org --limit 20
  restante mail vault anna@example.org --format json | jq '.[] | select(.size > 1000000)'

What was destroyed last comes first. An email can be restored for thirty days
(mail.limits.vault_seconds) after it was destroyed.";

const RESTORE_HELP: &str = "\
Examples:
  restante mail restore anna@example.org 17 18
  restante mail vault anna@example.org --format json | jq '.[].id' \\
    | xargs restante mail restore anna@example.org

The ids are those of `restante mail vault`. A restored email has a new id; it is in its former
mailboxes, or in one with the name Restored if all of them are gone. An email that would exceed
the quota of the account stays in the vault, and the exit code is 1 then.";

/// Runs a command to completion.
pub(crate) async fn run(command: UpkeepCommand) -> anyhow::Result<ExitCode> {
    match command {
        UpkeepCommand::Check(flags) => check::run(&flags).await,
        UpkeepCommand::Trace(flags) => trace::run(&flags).await,
        UpkeepCommand::Vault(flags) => vault::run(&flags).await,
        UpkeepCommand::Restore(flags) => restore::run(&flags).await,
        UpkeepCommand::Import(flags) => moving::run_import(&flags).await,
        UpkeepCommand::Export(flags) => moving::run_export(&flags).await,
    }
}
