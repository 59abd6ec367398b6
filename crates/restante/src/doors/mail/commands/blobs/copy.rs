//! `restante blobs copy`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::bail;
use clap::Args;
use indicatif::{DecimalBytes, HumanCount};
use restante_blobs::{Copied, EngineUrl, Metrics};

use crate::{
    config::RecordsFlags,
    doors::mail::{blobs, commands::findings},
    exit,
    progress::Progress,
};

#[derive(Args, Debug)]
pub(crate) struct CopyFlags {
    /// The blobs to copy: files:<folder> or s3://<bucket>/<prefix>
    #[arg(value_name = "FROM")]
    from: EngineUrl,
    /// Where to: files:<folder> or s3://<bucket>/<prefix>
    #[arg(value_name = "TO")]
    to: EngineUrl,
    #[command(flatten)]
    settings: RecordsFlags,
}

pub(super) async fn run(flags: &CopyFlags) -> anyhow::Result<ExitCode> {
    if flags.from == flags.to {
        bail!("both places are {}: name another one", flags.from);
    }
    let config = flags.settings.load()?.config;
    let from = blobs::open_existing_at(&config, flags.from.clone()).await?;
    let to = blobs::open_at(&config, flags.to.clone(), Metrics::default()).await?;
    let progress = Progress::bytes("copying", Some(0));
    let copied = restante_blobs::copy(&from, &to, &|done, total| progress.set_of(done, total)).await;
    drop(progress);
    to.upkeep.close().await?;
    from.upkeep.close().await?;
    let copied = copied?;
    print(&copied, &mut io::stdout().lock())?;
    Ok(if copied.report.wrong == 0 { ExitCode::SUCCESS } else { exit::found_wrong() })
}

fn print(done: &Copied, out: &mut dyn Write) -> io::Result<()> {
    let Copied { copied, copied_bytes, known, report } = done;
    let found = report.findings.iter().map(|finding| (&*finding.place, &*finding.what));
    findings::print(found, report.wrong, out)?;
    let (copied, bytes, known) = (HumanCount(*copied), DecimalBytes(*copied_bytes), HumanCount(*known));
    let verdict = findings::verdict(report.wrong);
    writeln!(out, "copied {copied} blobs of {bytes}, {known} were there already: {verdict}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_blobs_come_before_the_counts() {
        let mut done = Copied { copied: 1_200, copied_bytes: 2_000, known: 3, ..Copied::default() };
        done.report.note("00aa", "the bytes are not those that were put");
        let mut out = Vec::new();
        print(&done, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "00aa: the bytes are not those that were put\n\
             copied 1,200 blobs of 2.00 kB, 3 were there already: 1 damaged place\n"
        );
    }
}
