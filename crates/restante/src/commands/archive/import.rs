//! `restante archive import`

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context;
use clap::{Args, ValueHint};
use indicatif::HumanCount;
use restante_archive::{Appended, Archive, Metrics};

use crate::{
    archives::{self, Access},
    config::ArchiveFlags,
    exit,
    progress::Progress,
    transfer::{FileFormat, Reader, Refused},
};

#[derive(Args, Debug)]
pub(crate) struct ImportFlags {
    #[command(flatten)]
    archive: ArchiveFlags,
    /// Read this file instead of stdin
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    input: Option<PathBuf>,
    /// How the file is written [default: by its name; protobuf for .pb, .binpb and .bin, else ndjson]
    #[arg(long, value_name = "FORMAT")]
    format: Option<FileFormat>,
}

/// What became of the messages.
#[derive(Debug, Default)]
struct Imported {
    stored: u64,
    duplicates: u64,
}

pub(crate) async fn run(flags: &ImportFlags) -> anyhow::Result<ExitCode> {
    let config = flags.archive.load()?.config;
    let (mut reader, done, size) = open_input(flags)?;
    let opened = archives::open(&config, Access::Write, Metrics::default()).await?;
    let progress = Progress::bytes("importing", size);
    let imported =
        import(&mut reader, &*opened.archive, &|| progress.set(done.load(Ordering::Relaxed))).await;
    drop(progress);
    opened.upkeep.close().await?;
    Ok(tell(&imported?, reader.refused()))
}

/// Stores everything that the reader gives: while one batch goes to disk, the next one is read.
async fn import(reader: &mut Reader, archive: &dyn Archive, progress: &dyn Fn()) -> anyhow::Result<Imported> {
    let mut imported = Imported::default();
    let mut batch = reader.batch().context("can't read the file")?;
    while !batch.is_empty() {
        // The archive has the batch before the reader is asked: join polls them in this order.
        let (answers, next) = tokio::join!(archive.append(batch), async { reader.batch() });
        for answer in answers? {
            match answer {
                Appended::Stored => imported.stored += 1,
                Appended::Duplicate => imported.duplicates += 1,
            }
        }
        progress();
        batch = next.context("can't read the file")?;
    }
    Ok(imported)
}

/// The reader, how many bytes it has read, and how many there are, if that is known.
fn open_input(flags: &ImportFlags) -> anyhow::Result<(Reader, Arc<AtomicU64>, Option<u64>)> {
    let done = Arc::new(AtomicU64::new(0));
    let Some(path) = &flags.input else {
        let source = Counted { inner: io::stdin(), done: done.clone() };
        let format = flags.format.unwrap_or(FileFormat::Ndjson);
        return Ok((Reader::new(Box::new(BufReader::with_capacity(1 << 20, source)), format), done, None));
    };
    let format = flags.format.unwrap_or_else(|| FileFormat::of_name(path));
    let file = File::open(path).with_context(|| format!("can't open {}", path.display()))?;
    let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
    let source = Counted { inner: file, done: done.clone() };
    Ok((Reader::new(Box::new(BufReader::with_capacity(1 << 20, source)), format), done, size))
}

/// Counts what is read.
struct Counted<R> {
    inner: R,
    done: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buffer)?;
        self.done.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }
}

/// Says what was done on stderr, since it is no output that another program reads, and gives the exit code.
fn tell(imported: &Imported, refused: &Refused) -> ExitCode {
    for line in &refused.listed {
        eprintln!("refused: {line}");
    }
    let unlisted = refused.count - refused.listed.len() as u64;
    if unlisted > 0 {
        eprintln!("refused: {} more", HumanCount(unlisted));
    }
    let (stored, duplicates) = (HumanCount(imported.stored), HumanCount(imported.duplicates));
    eprintln!(
        "stored {stored} messages, {duplicates} were there already, {} refused",
        HumanCount(refused.count)
    );
    if refused.count == 0 { ExitCode::SUCCESS } else { exit::found_wrong() }
}
