//! `restante archive export`

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueHint};
use indicatif::HumanCount;
use restante_archive::{Archive, Metrics, Query, Walk};

use crate::{
    clock,
    config::ArchiveFlags,
    doors::waku::{
        archives::{self, Access},
        commands::query::Wanted,
        transfer::{FileFormat, Writer},
    },
    exit,
    new_file::NewFile,
    output::left_out,
    progress::Progress,
};

#[derive(Args, Debug)]
pub(crate) struct ExportFlags {
    #[command(flatten)]
    archive: ArchiveFlags,
    #[command(flatten)]
    wanted: Wanted,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// How to write [default: by the file's name; protobuf for .pb, .binpb and .bin, else ndjson]
    #[arg(long, value_name = "FORMAT")]
    format: Option<FileFormat>,
}

/// Messages that are read per request.
const PAGE_ROWS: usize = 1_000;

pub(crate) async fn run(flags: &ExportFlags) -> anyhow::Result<ExitCode> {
    let config = flags.archive.load()?.config;
    let metrics = Metrics::default();
    let opened = archives::open(&config, Access::Read, metrics.clone()).await?;
    let total = if flags.wanted.is_everything() { Some(opened.upkeep.stats().await?.messages) } else { None };
    let query = flags.wanted.to_query(clock::system().now(), PAGE_ROWS);
    let progress = Progress::counting("messages", "exporting", total);
    let exported = match &flags.output {
        Some(path) => {
            let format = flags.format.unwrap_or_else(|| FileFormat::of_name(path));
            to_file(path, format, &*opened.archive, query, &progress).await?
        }
        None => {
            let format = flags.format.unwrap_or(FileFormat::Ndjson);
            let out = io::BufWriter::with_capacity(1 << 20, io::stdout().lock());
            export(Writer::new(out, format), &*opened.archive, query, &progress).await?.0
        }
    };
    drop(progress);
    eprintln!("exported {} messages", HumanCount(exported.messages));
    let damaged = exported.unreadable + metrics.damaged_records();
    if damaged > 0 {
        let check = format!("archive check --archive {}", config.archive_url());
        eprintln!("{}", left_out(damaged, check));
        return Ok(exit::found_wrong());
    }
    Ok(ExitCode::SUCCESS)
}

/// The counts of an export.
#[derive(Clone, Copy, Debug, Default)]
struct Exported {
    messages: u64,
    /// Messages that were damaged after the archive had verified them.
    unreadable: u64,
}

/// Exports to a file and returns when it is on disk. A failed export leaves no file of that name, or the previous one.
async fn to_file(
    path: &Path,
    format: FileFormat,
    archive: &dyn Archive,
    query: Query,
    progress: &Progress,
) -> anyhow::Result<Exported> {
    let failed = || format!("can't write {}", path.display());
    let file = NewFile::create(path).with_context(failed)?;
    let out = io::BufWriter::with_capacity(1 << 20, file);
    let (exported, out) =
        export(Writer::new(out, format), archive, query, progress).await.with_context(failed)?;
    let file = out.into_inner().map_err(io::Error::from).with_context(failed)?;
    file.finish().with_context(failed)?;
    Ok(exported)
}

/// Writes all messages of a query.
async fn export<W: Write>(
    mut writer: Writer<W>,
    archive: &dyn Archive,
    query: Query,
    progress: &Progress,
) -> anyhow::Result<(Exported, W)> {
    let mut walk = Walk::new(query);
    let mut exported = Exported::default();
    while let Some(page) = walk.next(archive).await? {
        let before = exported.messages;
        for row in page.rows() {
            writer.write(&row)?;
            exported.messages += 1;
        }
        exported.unreadable += page.len() as u64 - (exported.messages - before);
        progress.set(exported.messages);
    }
    Ok((exported, writer.finish()?))
}
