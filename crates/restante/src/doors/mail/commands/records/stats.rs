//! `restante records stats`

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueHint};
use indicatif::{DecimalBytes, HumanCount};
use restante_records::{Kind, Stats};
use serde::{Deserialize, Serialize};

use crate::{
    client::OperatorFlags,
    commands::backup::explain_token,
    config::RecordsFlags,
    doors::mail::{commands::findings::print_figures, records},
    output::ReportFormat,
    output::printable,
};

/// The path of the statistics on a server.
pub(super) const RECORDS_PATH: &str = "/admin/v1/records";

#[derive(Args, Debug)]
pub(crate) struct StatsFlags {
    #[command(flatten)]
    records: RecordsFlags,
    /// Ask this running server, as in http://127.0.0.1:8646
    #[arg(long, value_name = "URL", conflicts_with_all = ["data", "records", "blobs", "config"])]
    rest: Option<String>,
    /// A file with the server's token [default: RESTANTE_TOKEN, then operate.token_file of the settings]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "rest")]
    token_file: Option<PathBuf>,
    /// How to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: ReportFormat,
}

/// The statistics of records, as printed and as returned by a server.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownStats {
    /// The location of the records.
    url: String,
    accounts: u64,
    commits: u64,
    disk_bytes: u64,
    kinds: Vec<ShownKind>,
    /// Further figures of the engine.
    figures: BTreeMap<String, u64>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShownKind {
    kind: String,
    records: u64,
    tombstones: u64,
}

pub(super) async fn run(flags: &StatsFlags) -> anyhow::Result<ExitCode> {
    let stats = match &flags.rest {
        Some(url) => ask(url, flags.token_file.clone()).await?,
        None => read(&flags.records).await?,
    };
    let mut out = io::stdout().lock();
    match flags.format {
        ReportFormat::Text => print(&stats, &mut out)?,
        ReportFormat::Json => writeln!(out, "{}", serde_json::to_string_pretty(&stats)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn ask(url: &str, token_file: Option<PathBuf>) -> anyhow::Result<ShownStats> {
    let client = OperatorFlags::of(url.to_owned(), token_file).client()?;
    let body = client.get(RECORDS_PATH).await.map_err(explain_token)?;
    serde_json::from_slice(&body).context("the server's answer has no statistics of records")
}

async fn read(flags: &RecordsFlags) -> anyhow::Result<ShownStats> {
    let config = flags.load()?.config;
    let opened = records::open_existing(&config).await?;
    let stats = opened.upkeep.stats().await?;
    opened.upkeep.close().await?;
    Ok(shown(config.records_url().to_string(), &stats))
}

/// Statistics as they are shown.
pub(super) fn shown(url: String, stats: &Stats) -> ShownStats {
    let schema = records::schema();
    let name =
        |kind: Kind| schema.kind(kind).map_or_else(|_| records::unnamed(kind.0), |kind| kind.name.to_owned());
    let kinds = stats.kinds.iter().map(|kind| ShownKind {
        kind: name(kind.kind),
        records: kind.records,
        tombstones: kind.tombstones,
    });
    ShownStats {
        url,
        accounts: stats.accounts,
        commits: stats.commits,
        disk_bytes: stats.disk_bytes,
        kinds: kinds.collect(),
        figures: stats.engine.iter().cloned().collect(),
    }
}

fn print(stats: &ShownStats, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "records    {}", printable(&stats.url))?;
    // The directory and other parts of the server have accounts of their own, which `account list` does not show.
    writeln!(out, "accounts   {} (with internal ones)", HumanCount(stats.accounts))?;
    writeln!(out, "commits    {}", HumanCount(stats.commits))?;
    writeln!(out, "on disk    {}", DecimalBytes(stats.disk_bytes))?;
    if !stats.kinds.is_empty() {
        writeln!(out, "\n{:<10}  {:>12}  {:>12}", "kind", "records", "tombstones")?;
    }
    for kind in &stats.kinds {
        let (records, tombstones) =
            (HumanCount(kind.records).to_string(), HumanCount(kind.tombstones).to_string());
        writeln!(out, "{:<10}  {records:>12}  {tombstones:>12}", printable(&kind.kind))?;
    }
    print_figures(&stats.figures, out)
}

#[cfg(test)]
mod tests {
    use restante_records::KindStats;

    use super::*;

    fn stats() -> ShownStats {
        let kind = |kind, records| KindStats { kind: Kind(kind), records, tombstones: 3 };
        let stats = Stats {
            accounts: 12_345,
            kinds: vec![kind(2, 67_890), kind(99, 1)],
            commits: 80_000,
            disk_bytes: 3_000_000,
            engine: vec![("pages".into(), 768)],
        };
        shown("lmdb:x".into(), &stats)
    }

    #[test]
    fn the_table_names_what_there_is() {
        let mut out = Vec::new();
        print(&stats(), &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "records    lmdb:x\naccounts   12,345 (with internal ones)\ncommits    80,000\non disk    3.00 MB\n\n\
             kind             records    tombstones\n\
             email             67,890             3\n\
             #99                    1             3\n\n\
             pages               768\n"
        );
    }

    #[test]
    fn what_a_server_tells_reads_back() {
        let json = serde_json::to_value(stats()).unwrap();
        assert_eq!(json["diskBytes"], 3_000_000);
        assert_eq!(serde_json::from_value::<ShownStats>(json).unwrap(), stats());
    }
}
