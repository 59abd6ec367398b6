//! `restante mail import`

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    str::FromStr,
};

use anyhow::Context;
use clap::{Args, ValueHint};
use futures_util::{StreamExt, stream};
use indicatif::DecimalBytes;
use restante_directory::EmailAddress;
use restante_mail_files::Folder;
use serde::Serialize;

use super::{
    batches::{self, Batch, FileKind, FileSource},
    jmap::{JmapFlags, JmapSource},
    mover::{KnownMessage, Outcome},
    report::{Problems, Shown},
    target::Target,
};
use crate::{
    doors::mail::commands::directory::{reach::DirectoryFlags, show},
    exit,
    output::{ReportFormat, counted},
    progress::Progress,
    signals::Stop,
};

/// Batches that are stored concurrently, while the next one is read.
const BATCHES_AT_ONCE: usize = 2;

#[derive(Args, Debug)]
pub(crate) struct ImportFlags {
    /// The address of the account that gets the mail, as anna@example.org
    #[arg(long, value_name = "ADDRESS")]
    account: EmailAddress,
    /// mbox:FILE, a folder of such files, maildir:FOLDER, or jmap:URL of another server
    #[arg(value_name = "SOURCE", value_hint = ValueHint::AnyPath)]
    source: SourceName,
    /// Put all messages into this mailbox, as Old/2019 [default: the mailboxes that the source has]
    #[arg(long, value_name = "NAME")]
    mailbox: Option<String>,
    /// Mark all messages as read
    #[arg(long)]
    seen: bool,
    /// Read the source and report what would be imported, without changing anything
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    jmap: JmapFlags,
    #[command(flatten)]
    flags: DirectoryFlags,
}

/// Where messages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SourceName {
    Files(FileKind, PathBuf),
    Jmap(String),
}

impl FromStr for SourceName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("mbox", path)) if !path.is_empty() => Ok(Self::Files(FileKind::Mbox, path.into())),
            Some(("maildir", path)) if !path.is_empty() => Ok(Self::Files(FileKind::Maildir, path.into())),
            Some(("jmap", url)) if !url.is_empty() => Ok(Self::Jmap(url.to_owned())),
            _ => Err("expected mbox:FILE, maildir:FOLDER or jmap:URL"),
        }
    }
}

/// What was done.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// New emails, or those that would be new.
    imported: u64,
    /// The bytes of their messages.
    bytes: u64,
    /// Emails that were also imported from another folder before, and are now in more mailboxes.
    placed: u64,
    /// Messages that were imported before, or that were exported from this account, which still has them.
    known: u64,
    /// Messages that the source's own program has marked as deleted: they are not imported.
    deleted: u64,
    /// Mailboxes that were created.
    mailboxes: u64,
    /// Flags of messages that are not possible as JMAP keywords, or exceed their maximum number.
    keywords_left_out: u64,
    /// Messages that can't be imported.
    problems: Problems,
    /// Whether the import ended before the end of the source, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<Stopped>,
}

/// Why an import ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Stopped {
    Interrupted,
    OverQuota,
}

/// An open source.
enum Source {
    Files(FileSource),
    Jmap(Box<JmapSource>),
}

impl Source {
    async fn next(&mut self, target: &Target) -> anyhow::Result<Option<Batch>> {
        match self {
            Self::Files(source) => source.next().await,
            Self::Jmap(source) => source.next(target).await,
        }
    }
}

pub(crate) async fn run(flags: &ImportFlags) -> anyhow::Result<ExitCode> {
    if let SourceName::Jmap(_) = flags.source {
        flags.jmap.check()?; // before anything is opened
    }
    let target = Target::open(&flags.flags, &flags.account).await?;
    let mut report = Report::default();
    let imported = import(flags, &target, &mut report).await;
    target.close().await?;
    // Also after an error: what was imported stays imported.
    match flags.flags.format {
        ReportFormat::Text => print(&report, flags.dry_run, &mut io::stdout().lock())?,
        ReportFormat::Json => show::json(&report)?,
    }
    imported?;
    report.problems.print();
    Ok(match report.stopped {
        Some(Stopped::Interrupted) => {
            eprintln!("restante: stopped before the end: the same command continues there");
            exit::interrupted()
        }
        Some(Stopped::OverQuota) => {
            let advice = "raise it with `restante account quota`, and run the same command again";
            eprintln!("restante: the account {} has reached its quota: {advice}", flags.account);
            exit::found_wrong()
        }
        None if report.problems.count > 0 => exit::found_wrong(),
        None => ExitCode::SUCCESS,
    })
}

async fn import(flags: &ImportFlags, target: &Target, report: &mut Report) -> anyhow::Result<()> {
    let stop = Stop::on_signals()?;
    let (mut source, progress) = open(flags, target).await?;
    let mut shown = Shown::new(progress, if flags.dry_run { "found" } else { "imported" });
    let read = stream::unfold(&mut source, async |source| {
        let batch = source.next(target).await.transpose()?;
        Some((batch, source))
    });
    let read = read.take_until(stop.clone().requested());
    let stored = read.map(async |batch| store(flags, target, batch?).await);
    let mut stored = std::pin::pin!(stored.buffered(BATCHES_AT_ONCE));
    while let Some(batch) = stored.next().await {
        let batch = batch?;
        report.add(&batch);
        shown.set(batch.done, report.imported + report.placed + report.known);
        if batch.outcomes.contains(&Outcome::OverQuota) {
            report.stopped = Some(Stopped::OverQuota);
            return Ok(());
        }
    }
    if stop.is_requested() {
        report.stopped = Some(Stopped::Interrupted);
    }
    Ok(())
}

async fn open(flags: &ImportFlags, target: &Target) -> anyhow::Result<(Source, Progress)> {
    match &flags.source {
        SourceName::Files(kind, path) => {
            let (counted, counted_path) = (*kind, path.clone());
            let total = tokio::task::spawn_blocking(move || batches::total(counted, &counted_path)).await;
            let total = total.context("the source can't be counted")??;
            let progress = match kind {
                FileKind::Mbox => Progress::bytes("importing", Some(total)),
                FileKind::Maildir => Progress::counting("messages", "importing", Some(total)),
            };
            let source = FileSource::open(*kind, path.clone(), target.message_bytes_max);
            Ok((Source::Files(source), progress))
        }
        SourceName::Jmap(url) => {
            let source = JmapSource::open(url, &flags.jmap, target.message_bytes_max).await?;
            let progress = Progress::counting("emails", "importing", source.total());
            Ok((Source::Jmap(Box::new(source)), progress))
        }
    }
}

/// A batch that was stored.
struct StoredBatch {
    outcomes: Vec<Outcome>,
    /// The bytes of each message.
    bytes: Vec<u64>,
    mailboxes: u64,
    deleted: u64,
    known: u64,
    refused: Vec<String>,
    done: u64,
}

async fn store(flags: &ImportFlags, target: &Target, batch: Batch) -> anyhow::Result<StoredBatch> {
    let Batch { mut folders, mut items, messages, deleted, known, refused, done } = batch;
    if let Some(name) = &flags.mailbox {
        let folder = named(name);
        folders.clear();
        for (place, _) in items.iter_mut().flat_map(|item| &mut item.places) {
            *place = folder.clone();
        }
    }
    if flags.seen {
        items.iter_mut().for_each(|item| item.keywords.push("$seen".to_owned()));
    }
    let bytes = items.iter().map(|item| item.bytes).collect();
    let (outcomes, mailboxes) = if flags.dry_run {
        let known = target.known(items.iter().map(KnownMessage::of).collect()).await?;
        let outcome = |known| if known { Outcome::Repeated } else { Outcome::New { keywords_left_out: 0 } };
        (known.into_iter().map(outcome).collect(), 0)
    } else {
        let made = target.create(folders).await?;
        let (outcomes, made_for_items) = target.add(items, &messages).await?;
        (outcomes, made + made_for_items)
    };
    Ok(StoredBatch { outcomes, bytes, mailboxes, deleted, known, refused, done })
}

/// The mailbox that `--mailbox` names.
fn named(name: &str) -> Folder {
    Folder::named(name.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

impl Report {
    fn add(&mut self, batch: &StoredBatch) {
        self.mailboxes += batch.mailboxes;
        self.deleted += batch.deleted;
        self.known += batch.known;
        for problem in &batch.refused {
            self.problems.add(format!("not imported: {problem}"));
        }
        for (outcome, bytes) in batch.outcomes.iter().zip(&batch.bytes) {
            match outcome {
                Outcome::New { keywords_left_out } => {
                    self.imported += 1;
                    self.bytes += bytes;
                    self.keywords_left_out += keywords_left_out;
                }
                Outcome::Placed => self.placed += 1,
                Outcome::Repeated => self.known += 1,
                Outcome::Refused(why) => self.problems.add(format!("not imported: a message: {why}")),
                Outcome::OverQuota => {}
            }
        }
    }
}

fn print(report: &Report, is_dry_run: bool, out: &mut dyn Write) -> io::Result<()> {
    let Report { imported, bytes, placed, known, deleted, mailboxes, keywords_left_out, problems, .. } =
        report;
    let would = if is_dry_run { "would import" } else { "imported" };
    writeln!(out, "{would} {}, {}", counted(*imported, "email", "emails"), DecimalBytes(*bytes))?;
    let lines = [
        (*mailboxes, "mailbox made", "mailboxes made"),
        (*placed, "email placed into further mailboxes", "emails placed into further mailboxes"),
        (*known, "message is there already", "messages are there already"),
        (
            *deleted,
            "message is marked as deleted and left out",
            "messages are marked as deleted and left out",
        ),
        (
            *keywords_left_out,
            "flag left out, which no keyword can have",
            "flags left out, which no keyword can have",
        ),
        (problems.count, "message can't be imported", "messages can't be imported"),
    ];
    for (count, one, many) in lines.into_iter().filter(|(count, ..)| *count > 0) {
        writeln!(out, "{}", counted(count, one, many))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_named_with_its_kind() {
        let maildir = SourceName::Files(FileKind::Maildir, "mail/a:b".into());
        assert_eq!("maildir:mail/a:b".parse(), Ok(maildir));
        assert_eq!("jmap:https://x".parse(), Ok(SourceName::Jmap("https://x".into())));
        for wrong in ["", "mbox:", "mail/anna", "imap:host"] {
            assert!(wrong.parse::<SourceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_report_has_a_line_for_what_there_is() {
        let mut report = Report::default();
        let outcomes = vec![
            Outcome::New { keywords_left_out: 2 },
            Outcome::Placed,
            Outcome::Repeated,
            Outcome::Refused("too long".to_owned()),
        ];
        let refused = vec!["cur/x: it is empty".to_owned()];
        let bytes = vec![1_000; 4];
        report.add(&StoredBatch { outcomes, bytes, mailboxes: 0, deleted: 1, known: 1, refused, done: 4 });
        let mut out = Vec::new();
        print(&report, false, &mut out).unwrap();
        let expected = "\
imported 1 email, 1.00 kB
1 email placed into further mailboxes
2 messages are there already
1 message is marked as deleted and left out
2 flags left out, which no keyword can have
2 messages can't be imported
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let listed = ["not imported: cur/x: it is empty", "not imported: a message: too long"];
        assert_eq!(report.problems.listed, listed);
    }
}
