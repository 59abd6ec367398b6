//! `restante blobs stats`

use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::ExitCode,
};

use clap::Args;
use indicatif::{DecimalBytes, HumanCount};
use restante_blobs::Stats;
use serde::Serialize;

use crate::{
    config::RecordsFlags,
    doors::mail::{blobs, commands::findings::print_figures},
    output::ReportFormat,
};

#[derive(Args, Debug)]
pub(crate) struct StatsFlags {
    #[command(flatten)]
    blobs: RecordsFlags,
    /// How to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: ReportFormat,
}

/// The disk usage of blobs, as it is printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownStats {
    /// The location of the blobs.
    url: String,
    blobs: u64,
    bytes: u64,
    disk_bytes: u64,
    /// Further figures of the engine.
    figures: BTreeMap<String, u64>,
}

pub(super) async fn run(flags: &StatsFlags) -> anyhow::Result<ExitCode> {
    let config = flags.blobs.load()?.config;
    let opened = blobs::open_existing(&config).await?;
    let stats = opened.upkeep.stats().await?;
    opened.upkeep.close().await?;
    let stats = shown(config.blobs_url().to_string(), stats);
    let mut out = io::stdout().lock();
    match flags.format {
        ReportFormat::Text => print(&stats, &mut out)?,
        ReportFormat::Json => writeln!(out, "{}", serde_json::to_string_pretty(&stats)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(url: String, Stats { blobs, bytes, disk_bytes, engine }: Stats) -> ShownStats {
    ShownStats { url, blobs, bytes, disk_bytes, figures: engine.into_iter().collect() }
}

fn print(stats: &ShownStats, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "place      {}", stats.url)?;
    writeln!(out, "blobs      {}", HumanCount(stats.blobs))?;
    writeln!(out, "bytes      {}", DecimalBytes(stats.bytes))?;
    writeln!(out, "on disk    {}", DecimalBytes(stats.disk_bytes))?;
    print_figures(&stats.figures, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_what_there_is() {
        let engine = vec![("packs".to_owned(), 3)];
        let stats = Stats { blobs: 12_345, bytes: 1_000_000, disk_bytes: 2_000_000, engine };
        let mut out = Vec::new();
        print(&shown("files:x".into(), stats), &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "place      files:x\nblobs      12,345\nbytes      1.00 MB\non disk    2.00 MB\n\n\
             packs                 3\n"
        );
    }
}
