//! `restante search stats`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use indicatif::{DecimalBytes, HumanCount};
use restante_search::Stats;
use serde::{Deserialize, Serialize};

use super::{IndexFlags, SEARCH_PATH};
use crate::{
    commands::backup::explain_token,
    doors::mail::search,
    output::{ReportFormat, printable},
};

#[derive(Args, Debug)]
pub(crate) struct StatsFlags {
    #[command(flatten)]
    index: IndexFlags,
    /// How to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: ReportFormat,
}

/// The statistics of the index, as printed and as returned by a server.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownStats {
    /// The location of the index.
    url: String,
    documents: u64,
    /// Written but not committed yet.
    uncommitted: u64,
    segments: u64,
    disk_bytes: u64,
}

pub(super) async fn run(flags: &StatsFlags) -> anyhow::Result<ExitCode> {
    let stats = match flags.index.server()? {
        Some(server) => {
            let body = server.get(SEARCH_PATH).await.map_err(explain_token)?;
            serde_json::from_slice(&body)
                .context("the server's answer has no statistics of the search index")?
        }
        None => {
            let config = flags.index.stores.load()?.config;
            let opened = search::open_existing(&config).await?;
            let stats = opened.upkeep.stats().await?;
            opened.upkeep.close().await?;
            shown(config.search_url().to_string(), stats)
        }
    };
    let mut out = io::stdout().lock();
    match flags.format {
        ReportFormat::Text => print(&stats, &mut out)?,
        ReportFormat::Json => writeln!(out, "{}", serde_json::to_string_pretty(&stats)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn shown(
    url: String,
    Stats { documents, uncommitted, segments, disk_bytes }: Stats,
) -> ShownStats {
    ShownStats { url, documents, uncommitted, segments, disk_bytes }
}

fn print(stats: &ShownStats, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "index      {}", printable(&stats.url))?;
    writeln!(out, "emails     {}", HumanCount(stats.documents))?;
    writeln!(out, "waiting    {}", HumanCount(stats.uncommitted))?;
    writeln!(out, "segments   {}", HumanCount(stats.segments))?;
    writeln!(out, "on disk    {}", DecimalBytes(stats.disk_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_printed_for_people() {
        let stats = Stats { documents: 12_345, uncommitted: 6, segments: 7, disk_bytes: 2_000_000 };
        let mut out = Vec::new();
        print(&shown("tantivy:x".to_owned(), stats), &mut out).unwrap();
        let expected =
            "index      tantivy:x\nemails     12,345\nwaiting    6\nsegments   7\non disk    2.00 MB\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
