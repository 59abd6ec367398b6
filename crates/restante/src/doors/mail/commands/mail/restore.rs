//! `restante mail restore`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::bail;
use clap::Args;
use restante_directory::EmailAddress;

use super::operate::{MailAnswer, MailOperation, RESTORED_MAX, ReachedMail, RestoreOutcome};
use crate::{
    doors::mail::commands::directory::{
        reach::{DirectoryFlags, Reached},
        show,
    },
    exit,
    output::{ReportFormat, printable},
    progress::Progress,
};

#[derive(Args, Debug)]
pub(crate) struct RestoreFlags {
    /// The address of the account, as anna@example.org
    address: EmailAddress,
    /// The ids of the destroyed emails, which `restante mail vault` lists
    #[arg(value_name = "ID", required = true)]
    ids: Vec<u64>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

pub(super) async fn run(flags: &RestoreFlags) -> anyhow::Result<ExitCode> {
    let reached = flags.flags.reach().await?;
    let mut outcomes = Vec::with_capacity(flags.ids.len());
    let done = restore(flags, &reached, &mut outcomes).await;
    reached.close().await?;
    // Also after an error: what was restored stays restored.
    match flags.flags.format {
        ReportFormat::Text => print(&outcomes, &mut io::stdout().lock(), &mut io::stderr().lock())?,
        ReportFormat::Json => show::json(&outcomes)?,
    }
    done?;
    let are_all_restored = outcomes.iter().all(|outcome| outcome.email.is_some());
    Ok(if are_all_restored { ExitCode::SUCCESS } else { exit::found_wrong() })
}

async fn restore(
    flags: &RestoreFlags,
    reached: &Reached,
    outcomes: &mut Vec<RestoreOutcome>,
) -> anyhow::Result<()> {
    let mail = ReachedMail::of(reached).await?;
    let progress = Progress::counting("emails", "restoring", Some(flags.ids.len() as u64));
    for ids in flags.ids.chunks(RESTORED_MAX) {
        let operation = MailOperation::Restore { address: flags.address.clone(), ids: ids.to_vec() };
        let MailAnswer::Restored(restored) = mail.operate(operation).await? else {
            bail!("the server's answer is none to a restore");
        };
        outcomes.extend(restored);
        progress.set(outcomes.len() as u64);
    }
    Ok(())
}

fn print(outcomes: &[RestoreOutcome], out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
    for RestoreOutcome { id, email, problem } in outcomes {
        if let Some(email) = email {
            writeln!(out, "restored {id} as email {email}")?;
        }
        if let Some(problem) = problem {
            writeln!(err, "restante: {id} is not restored: {}", printable(problem))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_restored_is_an_error() {
        let outcomes = [
            RestoreOutcome { id: 17, email: Some(40), problem: None },
            RestoreOutcome { id: 18, email: None, problem: Some("the vault has no such email".into()) },
        ];
        let (mut out, mut err) = (Vec::new(), Vec::new());
        print(&outcomes, &mut out, &mut err).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "restored 17 as email 40\n");
        let line = "restante: 18 is not restored: the vault has no such email\n";
        assert_eq!(String::from_utf8(err).unwrap(), line);
    }
}
