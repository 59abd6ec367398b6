//! The commands of mail.

mod blobs;
mod check;
pub(super) mod directory;
pub(super) mod dmarc;
mod findings;
pub(super) mod mail;
mod pages;
pub(super) mod quarantine;
pub(super) mod queue;
pub(super) mod records;
pub(super) mod search;

use std::process::ExitCode;

use clap::Subcommand;

#[derive(Subcommand, Debug)]
pub(crate) enum MailCommand {
    /// Set up a server for a domain: settings, a first account, DNS records to set
    #[command(after_help = SETUP_HELP)]
    Setup(directory::setup::SetupFlags),
    /// Manage the domains of this server
    #[command(subcommand, after_help = "Example:\n  restante domain add example.org")]
    Domain(directory::domain::DomainCommand),
    /// Manage accounts: passwords, quotas, access to the mail of others
    #[command(subcommand, after_help = "Example:\n  restante account add anna@example.org")]
    Account(directory::account::AccountCommand),
    /// Manage aliases: addresses whose mail goes to other addresses
    #[command(subcommand, after_help = "Example:\n  restante alias add info@example.org anna@example.org")]
    Alias(directory::alias::AliasCommand),
    /// Manage tokens, with which scripts and devices log in
    #[command(subcommand, after_help = "Example:\n  restante token create anna@example.org --name laptop")]
    Token(directory::token::TokenCommand),
    /// Show who changed domains, accounts, aliases and tokens, and when
    #[command(after_help = "Example:\n  restante log --limit 10")]
    Log(directory::log::LogFlags),
    /// Manage the mail of accounts: check it, restore destroyed emails
    #[command(subcommand, after_help = "Example:\n  restante mail vault anna@example.org")]
    Mail(mail::UpkeepCommand),
    /// Show what DMARC found of received mail, and what domains are reported
    #[command(subcommand, after_help = "Example:\n  restante dmarc list")]
    Dmarc(dmarc::DmarcCommand),
    /// Manage mail that checks keep for the operator: list, show, release and drop it
    #[command(subcommand, after_help = "Example:\n  restante quarantine list")]
    Quarantine(quarantine::QuarantineCommand),
    /// Manage outgoing mail: list, hold, release, retry and drop what waits
    #[command(subcommand, after_help = "Example:\n  restante queue list")]
    Queue(queue::QueueCommand),
    /// Manage records: statistics, check, dump, erasing an account
    #[command(subcommand, after_help = "Example:\n  restante records stats --data /var/lib/restante")]
    Records(records::RecordsCommand),
    /// Manage blobs: statistics, check, copy, sweep
    #[command(subcommand, after_help = "Example:\n  restante blobs stats --data /var/lib/restante")]
    Blobs(blobs::BlobsCommand),
    /// Manage the search index: statistics, making it again
    #[command(subcommand, after_help = "Example:\n  restante search stats --data /var/lib/restante")]
    Search(search::SearchCommand),
    /// Compare records, blobs, counters and the search index with each other; exits with 1 and a list if something is wrong
    #[command(after_help = CHECK_HELP)]
    Check(check::CheckFlags),
}

const CHECK_HELP: &str = "\
Examples:
  restante check --all
  restante check --rebuild --data /var/lib/restante

Each blob that a record refers to must be there, each email must be in the search index and nothing
else, and counters must equal a recount. Embedded stores are checked while no server runs on them;
stores in databases while servers run, too: what comes and goes meanwhile is no finding.";

const SETUP_HELP: &str = "\
Examples:
  restante setup example.org
  restante setup example.org --user anna --data /var/lib/restante

It writes restante.toml into this folder, and creates the domain, an account whose password it
prints once, the aliases postmaster and abuse, a self-signed certificate and a token for
operators. It changes nothing that exists. `restante serve` in the same folder then runs the
server.";

/// Runs a command to completion.
pub(crate) async fn run(command: MailCommand) -> anyhow::Result<ExitCode> {
    match command {
        MailCommand::Setup(flags) => directory::setup::run(&flags).await,
        MailCommand::Domain(command) => directory::domain::run(command).await,
        MailCommand::Account(command) => directory::account::run(command).await,
        MailCommand::Alias(command) => directory::alias::run(command).await,
        MailCommand::Token(command) => directory::token::run(command).await,
        MailCommand::Log(flags) => directory::log::run(&flags).await,
        MailCommand::Mail(command) => mail::run(command).await,
        MailCommand::Dmarc(command) => dmarc::run(command).await,
        MailCommand::Quarantine(command) => quarantine::run(command).await,
        MailCommand::Queue(command) => queue::run(command).await,
        MailCommand::Records(command) => records::run(command).await,
        MailCommand::Blobs(command) => blobs::run(command).await,
        MailCommand::Search(command) => search::run(command).await,
        MailCommand::Check(flags) => check::run(&flags).await,
    }
}
