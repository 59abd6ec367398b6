//! `restante archive check`, `rebuild` and `prune`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Args;
use indicatif::{DecimalBytes, HumanCount};
use restante_archive::{Metrics, Opened, Report, Retention};
use restante_core::ErrorKind;

use crate::{
    backups, clock,
    config::{ArchiveFlags, Config},
    doors::waku::archives::{self, Access},
    exit::{self, UsageError},
    progress::Progress,
};

#[derive(Args, Debug)]
pub(crate) struct PruneFlags {
    #[command(flatten)]
    archive: ArchiveFlags,
    /// What to keep: time:<seconds>, capacity:<count>, size:<n>MB|GB, joined by ';' [default: archive.retention]
    #[arg(long, value_name = "POLICY")]
    policy: Option<Retention>,
}

pub(crate) async fn check(flags: &ArchiveFlags) -> anyhow::Result<ExitCode> {
    let config = flags.load()?.config;
    let opened = archives::open(&config, Access::Read, Metrics::default()).await?;
    let progress = Progress::bytes("checking", Some(0));
    let report = opened.upkeep.check(&|done, total| progress.set_of(done, total)).await?;
    drop(progress);
    tell("checked", &report, &mut io::stdout().lock())?;
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { exit::found_wrong() })
}

pub(crate) async fn rebuild(flags: &ArchiveFlags) -> anyhow::Result<ExitCode> {
    let opened = open_existing(&flags.load()?.config).await?;
    let progress = Progress::bytes("rebuilding", Some(0));
    let report = opened.upkeep.rebuild(&|done, total| progress.set_of(done, total)).await?;
    drop(progress);
    opened.upkeep.close().await?;
    tell("rebuilt", &report, &mut io::stdout().lock())?;
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { exit::found_wrong() })
}

pub(crate) async fn prune(flags: &PruneFlags) -> anyhow::Result<ExitCode> {
    let config = flags.archive.load()?.config;
    let policy = flags.policy.unwrap_or(config.archive.retention);
    if policy.is_none() {
        let what =
            "the policy is none, which keeps everything: give one with --policy, or set archive.retention";
        return Err(UsageError(what.into()).into());
    }
    let opened = open_existing(&config).await?;
    let now = clock::system().now();
    let pruned = opened.upkeep.prune(&policy, now).await;
    let not_pruned = opened.upkeep.not_pruned(&policy, now);
    opened.upkeep.close().await?;
    let pruned = pruned?;
    let (messages, bytes) = (HumanCount(pruned.messages), DecimalBytes(pruned.disk_bytes));
    writeln!(
        io::stdout().lock(),
        "removed {messages} messages, {bytes} on disk, {} parts whole",
        pruned.parts
    )?;
    if let Some(not_pruned) = not_pruned {
        writeln!(io::stdout().lock(), "{not_pruned}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens an existing archive for writing: a mistyped path is an error, and must not create a new archive.
async fn open_existing(config: &Config) -> anyhow::Result<Opened> {
    backups::check_not_halfway(config)?;
    // Only opening for reading detects a missing archive. Its other errors are ignored: what can't be read may be rebuilt.
    if let Err(error) = archives::open(config, Access::Read, Metrics::default()).await
        && exit::kind(&error) == Some(ErrorKind::NotFound)
    {
        return Err(error);
    }
    archives::open(config, Access::Write, Metrics::default()).await
}

/// Prints a report: what was read, and each finding on a line.
fn tell(done: &str, report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let (messages, bytes) = (HumanCount(report.messages), DecimalBytes(report.bytes));
    for finding in &report.findings {
        let offset = finding.offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default();
        writeln!(out, "{}{offset}: {}", finding.part, finding.what)?;
    }
    if report.findings_left_out > 0 {
        writeln!(out, "and {} more", HumanCount(report.findings_left_out))?;
    }
    let found = report.findings.len() as u64 + report.findings_left_out;
    let verdict = match (found, report.lost) {
        (0, _) => "all sound".to_owned(),
        (_, 0) => format!("{} damaged places, no message is known to be lost", HumanCount(found)),
        (_, lost) => format!("LOST DATA: {} messages, {} findings", HumanCount(lost), HumanCount(found)),
    };
    writeln!(out, "{done} {messages} messages in {bytes}: {verdict}")
}

#[cfg(test)]
mod tests {
    use restante_archive::Finding;

    use super::*;

    fn summary(report: &Report) -> String {
        let mut out = Vec::new();
        tell("checked", report, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn findings_are_listed_one_a_line() {
        let finding = |offset| Finding { part: "a.log".into(), offset, what: "checksum is wrong".into() };
        let report = Report {
            findings: vec![finding(Some(7)), finding(None)],
            findings_left_out: 3,
            ..Report::default()
        };
        let lines = summary(&report);
        assert_eq!(
            lines,
            "a.log at byte 7: checksum is wrong\na.log: checksum is wrong\nand 3 more\n\
             checked 0 messages in 0 B: 5 damaged places, no message is known to be lost\n"
        );
        let lines = summary(&Report { lost: 1_234, ..report });
        assert!(lines.ends_with("0 B: LOST DATA: 1,234 messages, 5 findings\n"), "{lines}");
        assert_eq!(summary(&Report::default()), "checked 0 messages in 0 B: all sound\n");
    }
}
