//! `restante domain`: the domains for which this server has addresses.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use restante_directory::{Answer, Domain, EmailAddress, Operation, SEPARATOR};

use super::{
    dkim::{self, DkimCommand},
    domain_records,
    reach::DirectoryFlags,
    show,
};
use crate::exit::UsageError;

#[derive(Subcommand, Debug)]
pub(crate) enum DomainCommand {
    /// Add a domain
    #[command(after_help = ADD_HELP)]
    Add(AddFlags),
    /// Change the separator or the catch-all of a domain
    #[command(after_help = "Example:\n  restante domain set example.org --catch-all none --separator -")]
    Set(SetFlags),
    /// List the domains
    #[command(after_help = "Example:\n  restante domain list")]
    List(ListFlags),
    /// Remove a domain that has no accounts and aliases
    #[command(after_help = "Example:\n  restante domain remove example.org")]
    Remove(RemoveFlags),
    /// Manage the keys by which mail of a domain is signed (DKIM)
    #[command(subcommand, after_help = "Example:\n  restante domain dkim create example.org")]
    Dkim(DkimCommand),
    /// Print the DNS records that a domain should have
    #[command(after_help = domain_records::RECORDS_HELP)]
    Records(domain_records::DomainRecordsFlags),
    /// Check the DNS records of a domain; exits with 1 if one is missing or wrong
    #[command(after_help = domain_records::CHECK_HELP)]
    Check(domain_records::CheckFlags),
}

const ADD_HELP: &str = "\
Examples:
  restante domain add example.org
  restante domain add example.org --catch-all anna@example.org

With the separator +, mail for anna+shop@example.org goes to anna@example.org. A catch-all gets
mail for addresses that don't exist, which is mostly spam.";

#[derive(Args, Debug)]
pub(crate) struct AddFlags {
    /// The domain, as example.org
    domain: Domain,
    /// What separates an address from a detail: one of + - _ = ~ . or none [default: +]
    #[arg(long, value_name = "CHARACTER", value_parser = separator, allow_hyphen_values = true)]
    separator: Option<Setting<char>>,
    /// The address for mail to addresses that don't exist [default: none]
    #[arg(long, value_name = "ADDRESS", value_parser = catch_all)]
    catch_all: Option<Setting<EmailAddress>>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct SetFlags {
    /// The domain, as example.org
    domain: Domain,
    /// What separates an address from a detail: one of + - _ = ~ . or none
    #[arg(long, value_name = "CHARACTER", value_parser = separator, allow_hyphen_values = true)]
    separator: Option<Setting<char>>,
    /// The address for mail to addresses that don't exist: an address, or none
    #[arg(long, value_name = "ADDRESS", value_parser = catch_all)]
    catch_all: Option<Setting<EmailAddress>>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct RemoveFlags {
    /// The domain, as example.org
    domain: Domain,
    #[command(flatten)]
    flags: DirectoryFlags,
}

/// A value, or `none`.
#[derive(Clone, Debug)]
struct Setting<T>(Option<T>);

fn separator(text: &str) -> Result<Setting<char>, String> {
    let mut chars = text.chars();
    match (text, chars.next(), chars.next()) {
        ("none", ..) => Ok(Setting(None)),
        (_, Some(separator), None) => Ok(Setting(Some(separator))),
        _ => Err(format!("'{text}' is no separator: use one character, or none")),
    }
}

fn catch_all(text: &str) -> Result<Setting<EmailAddress>, String> {
    if text == "none" {
        return Ok(Setting(None));
    }
    text.parse()
        .map(|address| Setting(Some(address)))
        .map_err(|error: restante_directory::Error| error.to_string())
}

pub(crate) async fn run(command: DomainCommand) -> anyhow::Result<ExitCode> {
    match command {
        DomainCommand::Add(AddFlags { domain, separator, catch_all, flags }) => {
            let separator = separator.map_or(Some(SEPARATOR), |setting| setting.0);
            let catch_all = catch_all.and_then(|setting| setting.0);
            flags.operate(Operation::AddDomain { domain, separator, catch_all }).await?;
        }
        DomainCommand::Set(SetFlags { domain, separator, catch_all, flags }) => {
            if separator.is_none() && catch_all.is_none() {
                return Err(UsageError("name what to change: --separator or --catch-all".to_owned()).into());
            }
            let (separator, catch_all) =
                (separator.map(|setting| setting.0), catch_all.map(|setting| setting.0));
            flags.operate(Operation::SetDomain { domain, separator, catch_all }).await?;
        }
        DomainCommand::Remove(RemoveFlags { domain, flags }) => {
            flags.operate(Operation::RemoveDomain { domain }).await?;
        }
        DomainCommand::List(ListFlags { flags }) => {
            let page = |after, limit| Operation::Domains { after, limit };
            let mut domains = flags
                .list(page, |answer| match answer {
                    Answer::Domains(page) => Some(page),
                    _ => None,
                })
                .await?;
            domains.sort_by(|one, other| one.domain.cmp(&other.domain));
            show::list(&domains, flags.format, show::DOMAIN_HEAD, show::domain)?;
        }
        DomainCommand::Dkim(command) => return dkim::run(command).await,
        DomainCommand::Records(flags) => return domain_records::run_records(flags).await,
        DomainCommand::Check(flags) => return domain_records::run_check(flags).await,
    }
    Ok(ExitCode::SUCCESS)
}
