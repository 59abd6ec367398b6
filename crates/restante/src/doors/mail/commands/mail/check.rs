//! `restante mail check`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::bail;
use clap::Args;
use indicatif::HumanCount;
use restante_directory::{AccountSummary, Answer, EmailAddress, Operation};
use serde::Serialize;

use super::operate::{MailAnswer, MailOperation, ReachedMail, WrongFigure};
use crate::{
    doors::mail::commands::{
        directory::{
            reach::{DirectoryFlags, Reached},
            show,
        },
        findings,
    },
    exit,
    output::ReportFormat,
    progress::Progress,
};

/// The most findings that are printed.
const PRINTED_MAX: usize = 1_000;

#[derive(Args, Debug)]
pub(crate) struct CheckFlags {
    /// Only this account [default: all accounts]
    address: Option<EmailAddress>,
    /// Correct what was counted wrong
    #[arg(long)]
    rebuild: bool,
    #[command(flatten)]
    flags: DirectoryFlags,
}

/// What a check found.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    accounts: u64,
    /// The number of problems.
    wrong: u64,
    /// The number of problems that were corrected.
    corrected: u64,
    /// At most [`PRINTED_MAX`].
    findings: Vec<ReportedFinding>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportedFinding {
    address: EmailAddress,
    #[serde(flatten)]
    figure: WrongFigure,
}

impl Report {
    fn add(&mut self, address: &EmailAddress, figures: Vec<WrongFigure>, is_rebuilt: bool) {
        self.accounts += 1;
        self.wrong += figures.len() as u64;
        if is_rebuilt {
            self.corrected += figures.iter().filter(|figure| figure.can_be_rebuilt).count() as u64;
        }
        let room = PRINTED_MAX.saturating_sub(self.findings.len());
        let reported = figures.into_iter().take(room);
        self.findings.extend(reported.map(|figure| ReportedFinding { address: address.clone(), figure }));
    }
}

pub(super) async fn run(flags: &CheckFlags) -> anyhow::Result<ExitCode> {
    let reached = flags.flags.reach().await?;
    let report = check(flags, &reached).await;
    reached.close().await?;
    let report = report?;
    match flags.flags.format {
        ReportFormat::Text => print(&report, &mut io::stdout().lock())?,
        ReportFormat::Json => show::json(&report)?,
    }
    Ok(if report.wrong == report.corrected { ExitCode::SUCCESS } else { exit::found_wrong() })
}

async fn check(flags: &CheckFlags, reached: &Reached) -> anyhow::Result<Report> {
    let accounts = accounts(flags.address.as_ref(), reached).await?;
    let mail = ReachedMail::of(reached).await?;
    let progress = Progress::counting("accounts", "checking", Some(accounts.len() as u64));
    let mut report = Report::default();
    for AccountSummary { address, account, .. } in accounts {
        let operation = MailOperation::Check { account, rebuild: flags.rebuild };
        let MailAnswer::Checked(figures) = mail.operate(operation).await? else {
            bail!("the server's answer is none to a check");
        };
        report.add(&address, figures, flags.rebuild);
        progress.set(report.accounts);
    }
    Ok(report)
}

async fn accounts(address: Option<&EmailAddress>, reached: &Reached) -> anyhow::Result<Vec<AccountSummary>> {
    let Some(address) = address.cloned() else {
        let page = |after, limit| Operation::Accounts { domain: None, after, limit };
        let read = |answer| match answer {
            Answer::Accounts(page) => Some(page),
            _ => None,
        };
        return reached.list(page, read).await;
    };
    match reached.operate(Operation::Account { address }).await? {
        Answer::Account(info) => Ok(vec![info.summary]),
        _ => bail!("the server's answer is no account"),
    }
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let places: Vec<(String, &str)> = report
        .findings
        .iter()
        .map(|ReportedFinding { address, figure }| (format!("{address}, {}", figure.place), &*figure.what))
        .collect();
    findings::print(places.iter().map(|(place, what)| (&**place, *what)), report.wrong, out)?;
    let verdict = findings::verdict(report.wrong);
    write!(out, "checked the mail of {} accounts: {verdict}", HumanCount(report.accounts))?;
    match report.corrected {
        0 => writeln!(out),
        corrected => writeln!(out, ", {} corrected", HumanCount(corrected)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(can_be_rebuilt: bool) -> WrongFigure {
        let (place, what) = ("mailbox 3".to_owned(), "gives UID 1 next, and 4 is in use".to_owned());
        WrongFigure { place, what, can_be_rebuilt }
    }

    fn printed(report: &Report) -> String {
        let mut out = Vec::new();
        print(report, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn findings_are_named_with_their_account() {
        let anna: EmailAddress = "anna@example.org".parse().unwrap();
        let mut report = Report::default();
        report.add(&anna, Vec::new(), true);
        assert_eq!(printed(&report), "checked the mail of 1 accounts: all sound\n");
        report.add(&anna, vec![figure(true), figure(false)], true);
        let line = "anna@example.org, mailbox 3: gives UID 1 next, and 4 is in use\n";
        let end = "checked the mail of 2 accounts: 2 damaged places, 1 corrected\n";
        assert_eq!(printed(&report), format!("{line}{line}{end}"));
    }

    #[test]
    fn findings_beyond_a_thousand_are_counted() {
        let anna: EmailAddress = "anna@example.org".parse().unwrap();
        let mut report = Report::default();
        for _ in 0..3 {
            report.add(&anna, vec![figure(true); 400], false);
        }
        assert_eq!((report.findings.len(), report.wrong, report.corrected), (1_000, 1_200, 0));
        let text = printed(&report);
        let end = "and 200 more\nchecked the mail of 3 accounts: 1,200 damaged places\n";
        assert!(text.ends_with(end), "{text}");
    }
}
