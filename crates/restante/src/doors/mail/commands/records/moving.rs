//! `restante records copy` and `restante records compare`

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueHint};
use indicatif::HumanCount;
use restante_core::{ErrorKind, Identity};
use restante_records::{Copied, EngineUrl, Moving, Report};

use crate::{
    config::{Config, RecordsFlags},
    doors::mail::{commands::findings, records},
    exit::{self, UsageError},
    output::counted,
    progress::Progress,
};

#[derive(Args, Debug)]
pub(crate) struct CopyFlags {
    /// Copy these records: lmdb:<folder>, postgres://<user>@<host>/<database> or cassandra://<host>/<keyspace>; no server may be
    /// running on them
    #[arg(value_name = "FROM")]
    from: EngineUrl,
    /// Copy to these, which are created
    #[arg(value_name = "TO")]
    to: EngineUrl,
    /// Read the engines' settings from this file instead of ./restante.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct CompareFlags {
    /// The first records: lmdb:<folder>, postgres://<user>@<host>/<database> or cassandra://<host>/<keyspace>; no server may be
    /// running on them
    #[arg(value_name = "A")]
    a: EngineUrl,
    /// The second ones
    #[arg(value_name = "B")]
    b: EngineUrl,
    /// Read the engines' settings from this file instead of ./restante.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

pub(super) async fn copy(flags: &CopyFlags) -> anyhow::Result<ExitCode> {
    check_places([&flags.from, &flags.to], ["FROM", "TO"])?;
    let config = RecordsFlags::of_file(flags.config.clone()).load()?.config;
    let from = open(&config, &flags.from, None).await?;
    let to = open(&config, &flags.to, Some(from.opened.upkeep.identity())).await?;
    let progress = Progress::counting("rows", "copying", Some(0));
    let copied = restante_records::copy(&from, &to, &|done, total| progress.set_of(done, total)).await;
    drop(progress);
    to.opened.upkeep.close().await?;
    from.opened.upkeep.close().await?;
    let copied = copied.with_context(|| format!("can't copy {} to {}", flags.from, flags.to))?;
    println!("{}", counts(&copied));
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn compare(flags: &CompareFlags) -> anyhow::Result<ExitCode> {
    check_places([&flags.a, &flags.b], ["A", "B"])?;
    let config = RecordsFlags::of_file(flags.config.clone()).load()?.config;
    let a = open(&config, &flags.a, None).await?;
    let b = open(&config, &flags.b, None).await?;
    let progress = Progress::counting("rows", "comparing", Some(0));
    let report = restante_records::compare(&a, &b, &|done, total| progress.set_of(done, total)).await;
    drop(progress);
    a.opened.upkeep.close().await?;
    b.opened.upkeep.close().await?;
    let report = report?;
    print(&report, &mut io::stdout().lock())?;
    Ok(if report.wrong == 0 { ExitCode::SUCCESS } else { exit::found_wrong() })
}

fn check_places(urls: [&EngineUrl; 2], names: [&str; 2]) -> Result<(), UsageError> {
    for (url, name) in urls.iter().zip(names) {
        if **url == EngineUrl::Memory {
            return Err(UsageError(format!("{name} is memory:, which keeps nothing: name a place")));
        }
    }
    let [one, other] = urls;
    if one == other {
        return Err(UsageError(format!("{} and {} are the same records", names[0], names[1])));
    }
    Ok(())
}

/// Opens records for this process alone; without `new` they must exist.
async fn open(config: &Config, url: &EngineUrl, new: Option<Identity>) -> anyhow::Result<Moving> {
    let opened = records::open_moving(config, url, new).await;
    opened.map_err(|error| {
        if exit::kind(&error) != Some(ErrorKind::Conflict) {
            return error;
        }
        restante_records::Error::conflict(format!(
            "{error:#}: no server may be running on records that are moved"
        ))
        .into()
    })
}

fn counts(copied: &Copied) -> String {
    let mut counts = format!(
        "copied {} accounts with {} records and tombstones, and {} checkpoints",
        HumanCount(copied.accounts),
        HumanCount(copied.rows),
        HumanCount(copied.followers)
    );
    if copied.kept > 0 {
        counts.push_str(&format!("; {} accounts were copied before", HumanCount(copied.kept)));
    }
    counts
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let found = report.findings.iter().map(|finding| (&*finding.place, &*finding.what));
    findings::print(found, report.wrong, out)?;
    let verdict = match report.wrong {
        0 => "both are equal".to_owned(),
        wrong => counted(wrong, "difference", "differences"),
    };
    writeln!(out, "compared {} records and tombstones: {verdict}", HumanCount(report.records))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_come_before_the_verdict() {
        let mut report = Report { records: 1_234, ..Report::default() };
        let printed = |report: &Report| {
            let mut out = Vec::new();
            print(report, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(printed(&report), "compared 1,234 records and tombstones: both are equal\n");
        report.note("account 1", "only in the first");
        assert_eq!(
            printed(&report),
            "account 1: only in the first\ncompared 1,234 records and tombstones: 1 difference\n"
        );
    }

    #[test]
    fn places_that_can_not_be_copied_are_usage_errors() {
        let url = |text: &str| text.parse::<EngineUrl>().unwrap();
        let check =
            |a: &str, b: &str| check_places([&url(a), &url(b)], ["FROM", "TO"]).map_err(|e| e.to_string());
        assert_eq!(check("lmdb:a", "lmdb:b"), Ok(()));
        assert_eq!(check("lmdb:a", "lmdb:a"), Err("FROM and TO are the same records".to_owned()));
        assert_eq!(
            check("lmdb:a", "memory:"),
            Err("TO is memory:, which keeps nothing: name a place".to_owned())
        );
    }

    #[test]
    fn what_was_copied_before_is_counted_apart() {
        let mut copied = Copied { accounts: 2, kept: 0, rows: 1_000, followers: 1 };
        let whole = "copied 2 accounts with 1,000 records and tombstones, and 1 checkpoints";
        assert_eq!(counts(&copied), whole);
        copied.kept = 7;
        assert_eq!(counts(&copied), format!("{whole}; 7 accounts were copied before"));
    }
}
