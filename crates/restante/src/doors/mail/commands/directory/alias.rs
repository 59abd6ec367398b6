//! `restante alias`: addresses whose mail goes to others.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use restante_directory::{Answer, Domain, EmailAddress, Operation};

use super::{reach::DirectoryFlags, show};

#[derive(Subcommand, Debug)]
pub(crate) enum AliasCommand {
    /// Add targets to an alias, which is created if missing
    #[command(after_help = ADD_HELP)]
    Add(AddFlags),
    /// List the aliases
    #[command(after_help = "Example:\n  restante alias list --domain example.org")]
    List(ListFlags),
    /// Remove targets from an alias, or the whole alias
    #[command(after_help = REMOVE_HELP)]
    Remove(RemoveFlags),
}

const ADD_HELP: &str = "\
Examples:
  restante alias add info@example.org anna@example.org
  restante alias add team@example.org anna@example.org bert@example.org carl@example.net

Targets are accounts, other aliases, or addresses of other servers.";

const REMOVE_HELP: &str = "\
Examples:
  restante alias remove team@example.org carl@example.net
  restante alias remove info@example.org";

#[derive(Args, Debug)]
pub(crate) struct AddFlags {
    /// The address of the alias, as info@example.org
    address: EmailAddress,
    /// Addresses that get its mail, here or elsewhere
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<EmailAddress>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    /// Only those of this domain
    #[arg(long, value_name = "DOMAIN")]
    pub(super) domain: Option<Domain>,
    #[command(flatten)]
    pub(super) flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct RemoveFlags {
    /// The address of the alias, as info@example.org
    address: EmailAddress,
    /// Targets to remove [default: the whole alias]
    #[arg(value_name = "TARGET")]
    targets: Vec<EmailAddress>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

pub(crate) async fn run(command: AliasCommand) -> anyhow::Result<ExitCode> {
    match command {
        AliasCommand::Add(AddFlags { address, targets, flags }) => {
            flags.operate(Operation::AddAlias { address, targets }).await?;
        }
        AliasCommand::Remove(RemoveFlags { address, targets, flags }) => {
            flags.operate(Operation::RemoveAlias { address, targets }).await?;
        }
        AliasCommand::List(ListFlags { domain, flags }) => {
            let page = |after, limit| Operation::Aliases { domain: domain.clone(), after, limit };
            let mut aliases = flags
                .list(page, |answer| match answer {
                    Answer::Aliases(page) => Some(page),
                    _ => None,
                })
                .await?;
            aliases.sort_by(|one, other| by_domain(&one.address).cmp(&by_domain(&other.address)));
            show::list(&aliases, flags.format, show::ALIAS_HEAD, show::alias)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Addresses are listed domain by domain.
pub(super) fn by_domain(address: &EmailAddress) -> (&Domain, &str) {
    (address.domain(), address.local())
}
