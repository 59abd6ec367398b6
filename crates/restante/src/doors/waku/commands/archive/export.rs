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
    new_file::NewFile,
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

/// Messages that are read at once.
const PAGE_ROWS: usize = 1_000;

pub(crate) async fn run(flags: &ExportFlags) -> anyhow::Result<ExitCode> {
    let config = flags.archive.load()?.config;
    let opened = archives::open(&config, Access::Read, Metrics::default()).await?;
    let total = if flags.wanted.is_everything() { Some(opened.upkeep.stats().await?.messages) } else { None };
    let query = flags.wanted.to_query(clock::system().now(), PAGE_ROWS);
    let progress = Progress::counting("messages", "exporting", total);
    let count = match &flags.output {
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
    eprintln!("exported {} messages", HumanCount(count));
    Ok(ExitCode::SUCCESS)
}

/// Exports to a file and returns when it is on disk. An export that fails leaves no file of that name, or the one of before.
async fn to_file(
    path: &Path,
    format: FileFormat,
    archive: &dyn Archive,
    query: Query,
    progress: &Progress,
) -> anyhow::Result<u64> {
    let failed = || format!("can't write {}", path.display());
    let file = NewFile::create(path).with_context(failed)?;
    let out = io::BufWriter::with_capacity(1 << 20, file);
    let (count, out) =
        export(Writer::new(out, format), archive, query, progress).await.with_context(failed)?;
    let file = out.into_inner().map_err(io::Error::from).with_context(failed)?;
    file.finish().with_context(failed)?;
    Ok(count)
}

/// Writes all messages of a query and gives their number.
async fn export<W: Write>(
    mut writer: Writer<W>,
    archive: &dyn Archive,
    query: Query,
    progress: &Progress,
) -> anyhow::Result<(u64, W)> {
    let mut walk = Walk::new(query);
    let mut count = 0;
    while let Some(page) = walk.next(archive).await? {
        for row in page.rows() {
            writer.write(&row)?;
        }
        count += page.len() as u64;
        progress.set(count);
    }
    Ok((count, writer.finish()?))
}
