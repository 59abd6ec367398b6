//! `restante blobs check`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use indicatif::{DecimalBytes, HumanCount};
use restante_blobs::Report;

use crate::{
    config::RecordsFlags,
    doors::mail::{blobs, commands::findings},
    exit,
    progress::Progress,
};

pub(super) async fn run(flags: &RecordsFlags) -> anyhow::Result<ExitCode> {
    let opened = blobs::open_existing(&flags.load()?.config).await?;
    let progress = Progress::bytes("checking", Some(0));
    let report = opened.upkeep.check(&|done, total| progress.set_of(done, total)).await?;
    drop(progress);
    opened.upkeep.close().await?;
    tell(&report, &mut io::stdout().lock())?;
    Ok(if report.wrong == 0 { ExitCode::SUCCESS } else { exit::found_wrong() })
}

fn tell(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let found = report.findings.iter().map(|finding| (&*finding.place, &*finding.what));
    findings::print(found, report.wrong, out)?;
    let (blobs, bytes) = (HumanCount(report.blobs), DecimalBytes(report.bytes));
    writeln!(out, "checked {blobs} blobs of {bytes}: {}", findings::verdict(report.wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_come_before_the_verdict() {
        let mut report = Report { blobs: 2, bytes: 2_000, ..Report::default() };
        report.note("00000001.pack", "it ends too early");
        let mut out = Vec::new();
        tell(&report, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "00000001.pack: it ends too early\nchecked 2 blobs of 2.00 kB: 1 damaged place\n");
    }
}
