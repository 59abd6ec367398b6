//! `restante token`: the tokens with which scripts and devices log in.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use restante_directory::{Answer, EmailAddress, NewToken, Operation, Scope};

use super::{reach::DirectoryFlags, show};
use crate::output::ReportFormat;

#[derive(Subcommand, Debug)]
pub(crate) enum TokenCommand {
    /// Create a token and print it once
    #[command(after_help = CREATE_HELP)]
    Create(CreateFlags),
    /// List the tokens of an account
    #[command(after_help = "Example:\n  restante token list anna@example.org")]
    List(ListFlags),
    /// Revoke a token; what it has opened is closed within two seconds
    #[command(after_help = "Example:\n  restante token revoke anna@example.org 5f2c81d0")]
    Revoke(RevokeFlags),
}

const CREATE_HELP: &str = "\
Examples:
  restante token create anna@example.org --name backup-script --scope mail --expires 90d
  restante token create anna@example.org --name laptop

The token is printed to stdout only; the server keeps a hash of it. Clients send it as
`Authorization: Bearer rst_...`.";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScopeFlag {
    /// Read and change mail
    Mail,
    /// Send mail
    Send,
    /// Chat
    Chat,
    /// Do what operators do; for accounts of operators
    Operate,
}

impl From<ScopeFlag> for Scope {
    fn from(flag: ScopeFlag) -> Self {
        match flag {
            ScopeFlag::Mail => Self::Mail,
            ScopeFlag::Send => Self::Send,
            ScopeFlag::Chat => Self::Chat,
            ScopeFlag::Operate => Self::Operate,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct CreateFlags {
    /// The address of the account, as anna@example.org
    address: EmailAddress,
    /// A name, to recognise it in lists
    #[arg(long, value_name = "NAME")]
    name: String,
    /// What it may be used for, separated by commas
    #[arg(long, value_name = "SCOPE", value_delimiter = ',', default_value = "mail,send,chat")]
    scope: Vec<ScopeFlag>,
    /// Time until it expires, as in 12h, 90d or 52w [default: never]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    expires: Option<u64>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    /// The address of the account, as anna@example.org
    address: EmailAddress,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct RevokeFlags {
    /// The address of the account, as anna@example.org
    address: EmailAddress,
    /// The id from `restante token list`
    id: String,
    #[command(flatten)]
    flags: DirectoryFlags,
}

fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no time: use a number and s, m, h, d or w, as in 90d");
    let (number, unit) =
        text.len().checked_sub(1).and_then(|at| text.split_at_checked(at)).ok_or_else(wrong)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    seconds.filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

pub(crate) async fn run(command: TokenCommand) -> anyhow::Result<ExitCode> {
    match command {
        TokenCommand::Create(CreateFlags { address, name, scope, expires, flags }) => {
            let scopes = scope.into_iter().map(Scope::from).collect();
            let token = NewToken { name, scopes, expires_in: expires };
            let Answer::Token { token, info } =
                flags.operate(Operation::CreateToken { address, token }).await?
            else {
                bail!("the server's answer is no token");
            };
            match flags.format {
                ReportFormat::Text => writeln!(io::stdout(), "{token}")?,
                ReportFormat::Json => show::json(&serde_json::json!({"token": token, "info": info}))?,
            }
        }
        TokenCommand::List(ListFlags { address, flags }) => {
            let Answer::Tokens(tokens) = flags.operate(Operation::Tokens { address }).await? else {
                bail!("the server's answer is no list of tokens");
            };
            show::list(&tokens, flags.format, show::TOKEN_HEAD, show::token)?;
        }
        TokenCommand::Revoke(RevokeFlags { address, id, flags }) => {
            flags.operate(Operation::RevokeToken { address, id }).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (text, expected) in [("90s", 90), ("12h", 43_200), ("90d", 7_776_000), ("1w", 604_800)] {
            assert_eq!(seconds(text), Ok(expected));
        }
        for text in ["", "d", "90", "0d", "-1d", "1y", "9999999999999999999w", "1ä"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
