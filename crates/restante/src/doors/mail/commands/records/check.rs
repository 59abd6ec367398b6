//! `restante records check`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use indicatif::HumanCount;
use restante_records::Report;

use crate::{
    config::RecordsFlags,
    doors::mail::{commands::findings, records},
    exit,
    progress::Progress,
};

pub(super) async fn run(flags: &RecordsFlags) -> anyhow::Result<ExitCode> {
    let opened = records::open_existing(&flags.load()?.config).await?;
    let progress = Progress::counting("rows", "checking", Some(0));
    let report = opened.upkeep.check(&|done, total| progress.set_of(done, total)).await?;
    drop(progress);
    opened.upkeep.close().await?;
    tell(&report, &mut io::stdout().lock())?;
    Ok(if report.wrong == 0 { ExitCode::SUCCESS } else { exit::found_wrong() })
}

fn tell(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let found = report.findings.iter().map(|finding| (&*finding.place, &*finding.what));
    findings::print(found, report.wrong, out)?;
    writeln!(out, "checked {} records: {}", HumanCount(report.records), findings::verdict(report.wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_come_before_the_verdict() {
        let mut report = Report { records: 1_234, ..Report::default() };
        report.note("account 1, email 7", "its body is not there");
        let mut out = Vec::new();
        tell(&report, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "account 1, email 7: its body is not there\nchecked 1,234 records: 1 damaged place\n"
        );
    }
}
