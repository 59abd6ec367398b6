//! `restante archive import`

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context;
use clap::{Args, ValueEnum, ValueHint};
use indicatif::HumanCount;
use restante_archive::{Appended, Archive, Metrics};
use restante_import::{DEFAULT_PUBSUB_TOPIC, Findings, Location, Owner};
use restante_waku_wire::PubsubTopic;

use super::foreign;
use crate::{
    config::ArchiveFlags,
    doors::waku::{
        archives::{self, Access},
        transfer::{FileFormat, Reader},
    },
    exit::{self, UsageError},
    output::printable,
    progress::Progress,
};

#[derive(Args, Debug)]
pub(crate) struct ImportFlags {
    #[command(flatten)]
    pub(super) archive: ArchiveFlags,
    /// Read this instead of stdin: a file of messages, nwaku's SQLite file, a mailserver's LevelDB folder, or postgres://..
    #[arg(value_name = "SOURCE", value_hint = ValueHint::AnyPath)]
    input: Option<PathBuf>,
    /// The kind of archive or file [default: detected]
    #[arg(long, value_name = "WHOSE")]
    from: Option<From>,
    /// How the file is written [default: by its name; protobuf for .pb, .binpb and .bin, else ndjson]
    #[arg(long, value_name = "FORMAT")]
    format: Option<FileFormat>,
    /// Put a mailserver's messages on this pubsub topic [default: /waku/2/default-waku/proto]
    #[arg(long, value_name = "TOPIC")]
    pub(super) pubsub_topic: Option<PubsubTopic>,
    /// Import messages whose stored hash is wrong, under the hash of their content
    #[arg(long)]
    rehash: bool,
    /// Store the progress of the import in this file [default: ./restante-import-<hash>.state]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) state: Option<PathBuf>,
}

/// Whose messages are imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum From {
    /// A file that `restante archive export` or the REST export wrote.
    File,
    /// An archive of nwaku or go-waku: SQLite or PostgreSQL.
    #[value(alias = "go-waku")]
    Nwaku,
    /// An archive of a Status mailserver: LevelDB or PostgreSQL.
    #[value(alias = "status-go")]
    Status,
}

/// The outcome of the messages.
#[derive(Debug, Default)]
pub(super) struct Imported {
    pub(super) stored: u64,
    pub(super) duplicates: u64,
}

pub(crate) async fn run(flags: &ImportFlags) -> anyhow::Result<ExitCode> {
    match flags.foreign_location()? {
        Some(location) => foreign::run(flags, location).await,
        None => run_file(flags).await,
    }
}

impl ImportFlags {
    /// The archive of another server, if the input names one.
    fn foreign_location(&self) -> anyhow::Result<Option<Location>> {
        let usage = |what: String| Err(UsageError(what).into());
        let input = self.input.as_deref().filter(|_| self.from != Some(From::File));
        let text = input.map(Path::to_string_lossy).unwrap_or_default();
        if text.starts_with("log:") || text.starts_with("cassandra:") {
            return usage(format!("{text} is an archive of restante: 'restante archive copy' takes one"));
        }
        let location = match input {
            Some(input) => Location::of(input)?,
            None => None,
        };
        match (&location, self.owner()) {
            (None, Some(owner)) => {
                let input = input.map_or("stdin".into(), Path::to_string_lossy);
                usage(format!("{input} is no archive of {owner}: that is a database or a folder"))
            }
            (None, None) if self.rehash || self.pubsub_topic.is_some() || self.state.is_some() => usage(
                "--rehash, --pubsub-topic and --state are for archives of other servers, not for files"
                    .into(),
            ),
            (Some(_), _) if self.format.is_some() => usage("--format is for files, not for databases".into()),
            _ => Ok(location),
        }
    }

    pub(super) fn owner(&self) -> Option<Owner> {
        match self.from? {
            From::File => None,
            From::Nwaku => Some(Owner::Nwaku),
            From::Status => Some(Owner::Status),
        }
    }

    /// The options for reading an archive of another server.
    pub(super) fn options(&self) -> restante_import::Options {
        let named = self.pubsub_topic.as_ref().map(ToString::to_string);
        let pubsub_topic = named.unwrap_or_else(|| DEFAULT_PUBSUB_TOPIC.to_owned());
        restante_import::Options { pubsub_topic, rehash: self.rehash, after: None }
    }
}

async fn run_file(flags: &ImportFlags) -> anyhow::Result<ExitCode> {
    let config = flags.archive.load()?.config;
    let (mut reader, done, size) = open_input(flags)?;
    reader.check_plain().context("can't read the file")?;
    let opened = archives::open(&config, Access::Write, Metrics::default()).await?;
    let progress = Progress::bytes("importing", size);
    let imported =
        import(&mut reader, &*opened.archive, &|| progress.set(done.load(Ordering::Relaxed))).await;
    drop(progress);
    opened.upkeep.close().await?;
    Ok(tell(&imported?, reader.refused()))
}

/// Stores all messages of the reader: while one batch is written to disk, the next one is read.
async fn import(reader: &mut Reader, archive: &dyn Archive, progress: &dyn Fn()) -> anyhow::Result<Imported> {
    let mut imported = Imported::default();
    let mut batch = reader.batch().context("can't read the file")?;
    while !batch.is_empty() {
        // The archive receives the batch before the next one is read: join polls them in this order.
        let (answers, next) = tokio::join!(archive.append(batch), async { reader.batch() });
        imported.add(&answers?);
        progress();
        batch = next.context("can't read the file")?;
    }
    Ok(imported)
}

impl Imported {
    pub(super) fn add(&mut self, answers: &[Appended]) {
        for answer in answers {
            match answer {
                Appended::Stored | Appended::Spooled => self.stored += 1,
                Appended::Duplicate => self.duplicates += 1,
            }
        }
    }
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
    let opening = || format!("can't open {}", path.display());
    let metadata = path.metadata().with_context(opening)?;
    if !metadata.is_file() {
        let advice = "leave SOURCE out and redirect it to stdin";
        return Err(UsageError(format!("{} is no regular file: {advice}", path.display())).into());
    }
    let file = File::open(path).with_context(opening)?;
    let size = Some(metadata.len());
    let source = Counted { inner: file, done: done.clone() };
    Ok((Reader::new(Box::new(BufReader::with_capacity(1 << 20, source)), format), done, size))
}

/// Counts the bytes that are read.
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

/// Prints the result to stderr, since it is not output for another program, and returns the exit code.
pub(super) fn tell(imported: &Imported, refused: &Findings) -> ExitCode {
    list("refused", refused);
    let (stored, duplicates) = (HumanCount(imported.stored), HumanCount(imported.duplicates));
    eprintln!(
        "stored {stored} messages, {duplicates} were there already, {} refused",
        HumanCount(refused.count)
    );
    if refused.count == 0 { ExitCode::SUCCESS } else { exit::found_wrong() }
}

/// Prints the listed findings to stderr.
pub(super) fn list(what: &str, findings: &Findings) {
    for line in &findings.listed {
        eprintln!("{what}: {}", printable(line));
    }
    let unlisted = findings.count - findings.listed.len() as u64;
    if unlisted > 0 {
        eprintln!("{what}: {} more", HumanCount(unlisted));
    }
}
