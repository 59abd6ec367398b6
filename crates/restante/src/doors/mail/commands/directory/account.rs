//! `restante account`: the accounts of this server, their passwords and access rights.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use restante_directory::{Access, Answer, EmailAddress, NewPassword, Operation, Role, State};

use super::{
    alias::{ListFlags, by_domain},
    reach::{DirectoryFlags, PasswordFlags, Reached, eraser},
    show,
};
use crate::{output::ReportFormat, progress::Progress};

#[derive(Subcommand, Debug)]
pub(crate) enum AccountCommand {
    /// Add an account to a domain of this server
    #[command(after_help = ADD_HELP)]
    Add(AddFlags),
    /// List the accounts
    #[command(after_help = "Example:\n  restante account list --domain example.org")]
    List(ListFlags),
    /// Show an account with its passwords, tokens and grants
    #[command(after_help = "Example:\n  restante account show anna@example.org")]
    Show(OneFlags),
    /// Set the password of an account, or one for a single application
    #[command(after_help = PASSWORD_HELP)]
    Password(PasswordCommandFlags),
    /// Refuse log-ins and mail of an account, and keep its data
    #[command(after_help = "Example:\n  restante account disable anna@example.org")]
    Disable(OneFlags),
    /// Accept log-ins and mail of an account again
    #[command(after_help = "Example:\n  restante account enable anna@example.org")]
    Enable(OneFlags),
    /// Limit the size of an account's mail
    #[command(after_help = "Example:\n  restante account quota anna@example.org 5GB")]
    Quota(QuotaFlags),
    /// Set what the user of an account may do
    #[command(after_help = "Example:\n  restante account role anna@example.org operator")]
    Role(RoleFlags),
    /// Remove an account permanently, with its mail
    #[command(after_help = REMOVE_HELP)]
    Remove(OneFlags),
    /// Let one account read or write the mail of another
    #[command(after_help = "Example:\n  restante account grant shared@example.org anna@example.org read")]
    Grant(GrantFlags),
    /// Revoke access to the mail of another account
    #[command(after_help = "Example:\n  restante account revoke shared@example.org anna@example.org")]
    Revoke(RevokeFlags),
}

const ADD_HELP: &str = "\
Examples:
  restante account add anna@example.org
  restante account add anna@example.org --generate --quota 5GB
  pass show mail/anna | restante account add anna@example.org --password-file -

Without a flag the command asks for the password. --generate prints it to stdout. The domain must
exist: restante domain add example.org.";

const PASSWORD_HELP: &str = "\
Examples:
  restante account password anna@example.org
  restante account password anna@example.org --application phone --generate
  restante account password anna@example.org --application phone --remove

A password for an application works like the account's own, and can be removed alone when the
phone is lost. Connections that were opened with a password end within two seconds after it is
changed or removed.";

const REMOVE_HELP: &str = "\
Example:
  restante account remove anna@example.org

Log-ins and mail for its address are refused at once, and connections of its user end within two
seconds. Its mail is erased: mailboxes, emails, destroyed emails that could be restored, search
entries, and what the delivery journal has of it. Only a backup brings it back. A running server
does that in the background, restante log shows when it is done; what was interrupted continues at
the next start. The address is free again; an account that is added with it later has another
number. To keep the mail and refuse the user: restante account disable.";

#[derive(Args, Debug)]
pub(crate) struct AddFlags {
    /// The address of the account, as anna@example.org
    address: EmailAddress,
    #[command(flatten)]
    password: PasswordFlags,
    /// What the user may do
    #[arg(long, value_name = "ROLE", default_value = "user")]
    role: RoleFlag,
    /// The most bytes of mail, as in 500MB or 5GB, or none [default: none]
    #[arg(long, value_name = "SIZE", value_parser = quota)]
    quota: Option<Quota>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct OneFlags {
    /// The address of the account, as anna@example.org
    address: EmailAddress,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct PasswordCommandFlags {
    /// The address of the account, as anna@example.org
    address: EmailAddress,
    /// Set the password of this application, and not the account's own
    #[arg(long, value_name = "NAME")]
    application: Option<String>,
    /// Remove the password instead of setting it
    #[arg(long, conflicts_with_all = ["password_file", "generate"])]
    remove: bool,
    #[command(flatten)]
    password: PasswordFlags,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct QuotaFlags {
    /// The address of the account, as anna@example.org
    address: EmailAddress,
    /// The most bytes of mail, as in 500MB or 5GB, or none
    #[arg(value_name = "SIZE", value_parser = quota)]
    quota: Quota,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct RoleFlags {
    /// The address of the account, as anna@example.org
    address: EmailAddress,
    /// The new role
    role: RoleFlag,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct GrantFlags {
    /// The account with the mail
    owner: EmailAddress,
    /// The account that may use it
    user: EmailAddress,
    /// What it may do with the mail
    access: AccessFlag,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct RevokeFlags {
    /// The account with the mail
    owner: EmailAddress,
    /// The account that may no longer use it
    user: EmailAddress,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleFlag {
    /// Use the account
    User,
    /// Operate the server, too
    Operator,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AccessFlag {
    /// Read the mail
    Read,
    /// Read and change the mail
    Write,
}

impl From<RoleFlag> for Role {
    fn from(flag: RoleFlag) -> Self {
        match flag {
            RoleFlag::User => Self::User,
            RoleFlag::Operator => Self::Operator,
        }
    }
}

/// The most bytes of an account's mail; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quota(Option<u64>);

fn quota(text: &str) -> Result<Quota, String> {
    let wrong = || format!("'{text}' is no size: use bytes, or a unit as in 500MB or 5GB, or none");
    if text == "none" {
        return Ok(Quota(None));
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.map(|bytes| Quota(Some(bytes))).ok_or_else(wrong)
}

pub(crate) async fn run(command: AccountCommand) -> anyhow::Result<ExitCode> {
    match command {
        AccountCommand::Add(flags) => add(flags).await?,
        AccountCommand::List(flags) => list(flags).await?,
        AccountCommand::Show(OneFlags { address, flags }) => {
            let Answer::Account(info) = flags.operate(Operation::Account { address }).await? else {
                bail!("the server's answer is no account");
            };
            match flags.format {
                ReportFormat::Text => show::whole_account(&info)?,
                ReportFormat::Json => show::json(&info)?,
            }
        }
        AccountCommand::Password(flags) => set_password(flags).await?,
        AccountCommand::Disable(OneFlags { address, flags }) => {
            flags.operate(Operation::SetState { address, state: State::Disabled }).await?;
        }
        AccountCommand::Enable(OneFlags { address, flags }) => {
            flags.operate(Operation::SetState { address, state: State::Active }).await?;
        }
        AccountCommand::Quota(QuotaFlags { address, quota, flags }) => {
            flags.operate(Operation::SetQuota { address, quota_bytes: quota.0 }).await?;
        }
        AccountCommand::Role(RoleFlags { address, role, flags }) => {
            flags.operate(Operation::SetRole { address, role: role.into() }).await?;
        }
        AccountCommand::Remove(OneFlags { address, flags }) => {
            let reached = flags.reach().await?;
            let removed = remove(&reached, address).await;
            reached.close().await?;
            removed?;
        }
        AccountCommand::Grant(GrantFlags { owner, user, access, flags }) => {
            let access = match access {
                AccessFlag::Read => Access::Read,
                AccessFlag::Write => Access::Write,
            };
            flags.operate(Operation::Grant { owner, user, access }).await?;
        }
        AccountCommand::Revoke(RevokeFlags { owner, user, flags }) => {
            flags.operate(Operation::Revoke { owner, user }).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn add(AddFlags { address, password, role, quota, flags }: AddFlags) -> anyhow::Result<()> {
    let password = Some(password.read(&address)?);
    let (role, quota_bytes) = (role.into(), quota.and_then(|quota| quota.0));
    let answer = flags.operate(Operation::AddAccount { address, password, role, quota_bytes }).await?;
    print_password(answer, flags.format)
}

async fn set_password(flags: PasswordCommandFlags) -> anyhow::Result<()> {
    let PasswordCommandFlags { address, application, remove, password, flags } = flags;
    if remove {
        flags.operate(Operation::RemovePassword { address, application }).await?;
        return Ok(());
    }
    let password: NewPassword = password.read(&address)?;
    let answer = flags.operate(Operation::SetPassword { address, application, password }).await?;
    print_password(answer, flags.format)
}

/// Removes an account. A running server erases its mail in the background; otherwise that is done here.
async fn remove(reached: &Reached, address: EmailAddress) -> anyhow::Result<()> {
    reached.operate(Operation::RemoveAccount { address }).await?;
    let Reached::Here { opened, config } = reached else { return Ok(()) };
    let eraser = eraser(opened, config).await?;
    let progress = Progress::counting("records", "erasing", None);
    let erased = eraser.erase(&|records| progress.set(records)).await;
    erased.context(
        "the account is removed, and its mail is not erased yet: the next start of the server continues",
    )?;
    Ok(())
}

/// Prints a generated password, alone on its line.
fn print_password(answer: Answer, format: ReportFormat) -> anyhow::Result<()> {
    let Answer::Password { account, password } = &answer else {
        bail!("the server's answer is none to a password")
    };
    match (format, password) {
        (ReportFormat::Text, Some(password)) => writeln!(io::stdout(), "{password}")?,
        (ReportFormat::Text, None) => {}
        (ReportFormat::Json, _) => {
            show::json(&serde_json::json!({"account": account, "password": password}))?
        }
    }
    Ok(())
}

async fn list(ListFlags { domain, flags }: ListFlags) -> anyhow::Result<()> {
    let page = |after, limit| Operation::Accounts { domain: domain.clone(), after, limit };
    let mut accounts = flags
        .list(page, |answer| match answer {
            Answer::Accounts(page) => Some(page),
            _ => None,
        })
        .await?;
    accounts.sort_by(|one, other| by_domain(&one.address).cmp(&by_domain(&other.address)));
    Ok(show::list(&accounts, flags.format, show::ACCOUNT_HEAD, show::account)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_have_units() {
        for (text, bytes) in [
            ("none", None),
            ("0", Some(0)),
            ("500MB", Some(500_000_000)),
            ("5 gb", Some(5_000_000_000)),
            ("1TB", Some(1_000_000_000_000)),
        ] {
            assert_eq!(quota(text), Ok(Quota(bytes)), "{text}");
        }
        for text in ["", "GB", "-1", "1.5GB", "5 apples", "99999999999TB"] {
            assert!(quota(text).is_err(), "{text}");
        }
    }
}
