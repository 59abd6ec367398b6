//! `restante archive stats`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use indicatif::{DecimalBytes, HumanCount};
use restante_archive::{Metrics, PartStats, Stats};
use restante_core::Timestamp;
use serde_json::json;

use crate::{
    config::ArchiveFlags,
    doors::waku::archives::{self, Access},
};

#[derive(Args, Debug)]
pub(crate) struct StatsFlags {
    #[command(flatten)]
    archive: ArchiveFlags,
    /// How to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: StatsFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StatsFormat {
    /// A table, for people.
    Text,
    /// One JSON object.
    Json,
}

pub(crate) async fn run(flags: &StatsFlags) -> anyhow::Result<ExitCode> {
    let config = flags.archive.load()?.config;
    let opened = archives::open(&config, Access::Read, Metrics::default()).await?;
    let stats = opened.upkeep.stats().await?;
    let mut out = io::stdout().lock();
    match flags.format {
        StatsFormat::Text => print(&config.archive_url().to_string(), &stats, &mut out)?,
        StatsFormat::Json => writeln!(out, "{:#}", as_json(&stats))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(url: &str, stats: &Stats, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "archive    {url}")?;
    writeln!(out, "messages   {}", HumanCount(stats.messages))?;
    writeln!(out, "topics     {}", HumanCount(stats.topics))?;
    writeln!(out, "bodies     {}", DecimalBytes(stats.body_bytes))?;
    writeln!(out, "on disk    {}{}", DecimalBytes(stats.disk_bytes), per_body_byte(stats))?;
    writeln!(out, "oldest     {}", show(stats.oldest))?;
    writeln!(out, "newest     {}", show(stats.newest))?;
    if stats.damaged > 0 {
        writeln!(out, "damaged    {} records: see restante archive check", HumanCount(stats.damaged))?;
    }
    print_parts(&stats.parts, out)
}

fn print_parts(parts: &[PartStats], out: &mut dyn Write) -> io::Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    let width = parts.iter().map(|part| part.name.len()).max().unwrap_or(0).max(4);
    writeln!(
        out,
        "\n{:<width$}  {:<30}  {:<30}  {:>12}  {:>11}",
        "part", "oldest", "newest", "messages", "on disk"
    )?;
    for part in parts {
        let (oldest, newest) = (part.oldest.to_string(), part.newest.to_string());
        let (messages, disk) =
            (HumanCount(part.messages).to_string(), DecimalBytes(part.disk_bytes).to_string());
        let open = if part.is_open { "  open" } else { "" };
        writeln!(out, "{:<width$}  {oldest:<30}  {newest:<30}  {messages:>12}  {disk:>11}{open}", part.name)?;
    }
    Ok(())
}

/// The bytes on disk per byte of a message.
fn per_body_byte(stats: &Stats) -> String {
    if stats.body_bytes == 0 || stats.disk_bytes == 0 {
        return String::new();
    }
    format!(", {:.2} a byte of body", stats.disk_bytes as f64 / stats.body_bytes as f64)
}

fn show(timestamp: Option<Timestamp>) -> String {
    timestamp.map_or_else(|| "-".to_owned(), |timestamp| timestamp.to_string())
}

/// Timestamps are nanoseconds, as everywhere in JSON here.
fn as_json(stats: &Stats) -> serde_json::Value {
    let part = |part: &PartStats| {
        json!({
            "name": part.name,
            "oldest": part.oldest.nanos(),
            "newest": part.newest.nanos(),
            "messages": part.messages,
            "disk_bytes": part.disk_bytes,
            "is_open": part.is_open,
        })
    };
    json!({
        "engine": stats.engine,
        "messages": stats.messages,
        "topics": stats.topics,
        "body_bytes": stats.body_bytes,
        "disk_bytes": stats.disk_bytes,
        "oldest": stats.oldest.map(Timestamp::nanos),
        "newest": stats.newest.map(Timestamp::nanos),
        "damaged": stats.damaged,
        "parts": stats.parts.iter().map(part).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_what_there_is() {
        let stats = Stats {
            engine: "log",
            messages: 1_467_846,
            topics: 12,
            body_bytes: 1_000,
            disk_bytes: 1_100,
            oldest: Some(Timestamp(0)),
            newest: None,
            damaged: 2,
            parts: vec![PartStats {
                name: "0001".into(),
                oldest: Timestamp(0),
                newest: Timestamp(1),
                messages: 3,
                disk_bytes: 1_100,
                is_open: true,
            }],
        };
        let mut out = Vec::new();
        print("log:x", &stats, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "archive    log:x",
            "1,467,846",
            "1.10 a byte of body",
            "newest     -",
            "2 records",
            "0001",
            "  open",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
