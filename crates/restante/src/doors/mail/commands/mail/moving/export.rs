//! `restante mail export`

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};

use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use indicatif::DecimalBytes;
use restante_directory::EmailAddress;
use restante_mail_files::{ExportedMessage, Folder, maildir::MaildirWriter, mbox};
use serde::Serialize;

use super::{
    page::FolderInfo,
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

/// The suffix of a target's name until it is complete.
const SUFFIX: &str = ".partial";

#[derive(Args, Debug)]
pub(crate) struct ExportFlags {
    /// The address of the account whose mail is written, as anna@example.org
    #[arg(long, value_name = "ADDRESS")]
    account: EmailAddress,
    /// mbox:FILE for one file, mbox:FOLDER/ for a file for each mailbox, or maildir:FOLDER
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    target: TargetName,
    /// Write this mailbox alone, as Work/Projects
    #[arg(long, value_name = "NAME")]
    mailbox: Option<String>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

/// Where messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TargetName {
    Mbox(PathBuf),
    Mboxes(PathBuf),
    Maildir(PathBuf),
}

impl FromStr for TargetName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("mbox", path)) if path.len() > 1 && path.ends_with('/') => {
                Ok(Self::Mboxes(path.trim_end_matches('/').into()))
            }
            Some(("mbox", path)) if !path.is_empty() && path != "/" => Ok(Self::Mbox(path.into())),
            Some(("maildir", path)) if !path.is_empty() => {
                Ok(Self::Maildir(PathBuf::from(path.trim_end_matches('/'))))
            }
            _ => Err("expected mbox:FILE, mbox:FOLDER/ or maildir:FOLDER"),
        }
    }
}

impl TargetName {
    fn path(&self) -> &Path {
        match self {
            Self::Mbox(path) | Self::Mboxes(path) | Self::Maildir(path) => path,
        }
    }
}

/// What was exported.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    exported: u64,
    bytes: u64,
    mailboxes: u64,
    /// Keywords for which a folder of a Maildir had no letter left.
    keywords_left_out: u64,
    problems: Problems,
    is_interrupted: bool,
}

/// The writer for each kind of target.
enum Writer {
    Mbox(mbox::MboxWriter<BufWriter<File>>),
    Mboxes(mbox::MboxFolders),
    Maildir(MaildirWriter),
}

impl Writer {
    fn create(target: &TargetName, path: &Path) -> anyhow::Result<Self> {
        Ok(match target {
            TargetName::Mbox(_) => {
                let file = File::options().write(true).create_new(true).open(path);
                let file = file.with_context(|| format!("can't make {}", path.display()))?;
                Self::Mbox(mbox::MboxWriter::new(BufWriter::with_capacity(1 << 20, file)))
            }
            TargetName::Mboxes(_) => Self::Mboxes(mbox::MboxFolders::create(path)?),
            TargetName::Maildir(_) => Self::Maildir(MaildirWriter::create(path)?),
        })
    }

    fn add_folder(&mut self, folder: &Folder) -> anyhow::Result<()> {
        match self {
            Self::Mbox(_) => Ok(()),
            Self::Mboxes(writer) => Ok(writer.add_folder(folder)?),
            Self::Maildir(writer) => Ok(writer.add_folder(folder)?),
        }
    }

    fn write(&mut self, message: &ExportedMessage<'_>) -> anyhow::Result<()> {
        match self {
            Self::Mbox(writer) => writer.write(message).context("can't write the file"),
            Self::Mboxes(writer) => Ok(writer.write(message)?),
            Self::Maildir(writer) => Ok(writer.write(message)?),
        }
    }

    /// Finishes the files, and returns how many keywords they could not store.
    fn finish(self) -> anyhow::Result<u64> {
        match self {
            Self::Mbox(writer) => {
                let file = writer.finish().and_then(|file| file.into_inner().map_err(io::Error::from));
                file.and_then(|file| file.sync_all()).context("can't write the file")?;
                Ok(0)
            }
            Self::Mboxes(writer) => {
                writer.finish()?;
                Ok(0)
            }
            Self::Maildir(writer) => {
                let left_out = writer.keywords_left_out;
                writer.finish()?;
                Ok(left_out)
            }
        }
    }
}

pub(crate) async fn run(flags: &ExportFlags) -> anyhow::Result<ExitCode> {
    let path = flags.target.path();
    let partial = partial_path(path)?;
    let target = Target::open(&flags.flags, &flags.account).await?;
    let mut report = Report::default();
    let exported = export(flags, &target, &partial, &mut report).await;
    target.close().await?;
    exported?;
    match report.is_interrupted {
        true => remove(&partial)?,
        false => finish(&partial, path)?,
    }
    match flags.flags.format {
        ReportFormat::Text => print(&report, &mut io::stdout().lock())?,
        ReportFormat::Json => show::json(&report)?,
    }
    report.problems.print();
    Ok(match report.problems.count {
        _ if report.is_interrupted => {
            eprintln!("restante: stopped before the end: what was written is removed");
            exit::interrupted()
        }
        0 => ExitCode::SUCCESS,
        _ => exit::found_wrong(),
    })
}

/// Removes what a stopped command has written.
fn remove(partial: &Path) -> anyhow::Result<()> {
    let removed = if partial.is_dir() { fs::remove_dir_all(partial) } else { fs::remove_file(partial) };
    removed.with_context(|| format!("can't remove {}", partial.display()))
}

/// The name of a target until it is complete. Neither name may exist.
fn partial_path(path: &Path) -> anyhow::Result<PathBuf> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(SUFFIX);
    let partial = PathBuf::from(partial);
    for path in [path, &partial] {
        if fs::symlink_metadata(path).is_ok() {
            bail!("{} exists: remove it, or name another target", path.display());
        }
    }
    Ok(partial)
}

/// Renames a complete target to its final name.
#[expect(clippy::disallowed_methods, reason = "the folder is synced after it")]
fn finish(partial: &Path, path: &Path) -> anyhow::Result<()> {
    let failed = || format!("can't rename {}", partial.display());
    fs::rename(partial, path).with_context(failed)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()).with_context(failed)
}

async fn export(
    flags: &ExportFlags,
    target: &Target,
    partial: &Path,
    report: &mut Report,
) -> anyhow::Result<()> {
    let stop = Stop::on_signals()?;
    let folders = target.folders().await?;
    let chosen = chosen(flags.mailbox.as_deref(), &folders)?;
    let total: u64 =
        folders.iter().filter(|info| chosen.is_none_or(|id| id == info.id)).map(|info| info.emails).sum();
    let mut writer = Writer::create(&flags.target, partial)?;
    for info in folders.iter().filter(|info| chosen.is_none_or(|id| id == info.id)) {
        writer.add_folder(&info.folder)?;
        report.mailboxes += 1;
    }
    let known: std::collections::BTreeSet<&Folder> = folders.iter().map(|info| &info.folder).collect();
    let mut shown = Shown::new(Progress::counting("emails", "exporting", Some(total)), "exported");
    let mut after = None;
    let mut added: std::collections::BTreeSet<Folder> = Default::default();
    loop {
        let (emails, next) = target.page(chosen, after).await?;
        for (item, raw) in emails {
            if let Some(problem) = item.problem {
                report.problems.add(format!("email {} is not exported: {problem}", item.id));
                continue;
            }
            // Mailboxes that were created in the meantime.
            for folder in item.folders.iter().filter(|folder| !known.contains(folder)) {
                if added.insert(folder.clone()) {
                    writer.add_folder(folder)?;
                }
            }
            let message = ExportedMessage {
                id: item.id,
                received: item.received,
                folders: &item.folders,
                keywords: &item.keywords,
                raw: &raw,
            };
            writer.write(&message)?;
            report.exported += 1;
            report.bytes += item.bytes;
        }
        shown.set(report.exported, report.exported);
        if stop.is_requested() {
            report.is_interrupted = true;
            return Ok(());
        }
        after = next;
        if after.is_none() {
            report.keywords_left_out = writer.finish()?;
            return Ok(());
        }
    }
}

/// The mailbox with this name, if one is named.
fn chosen(name: Option<&str>, folders: &[FolderInfo]) -> anyhow::Result<Option<u64>> {
    let Some(name) = name else { return Ok(None) };
    let is_meant = |info: &&FolderInfo| info.folder.path.join("/") == name;
    let Some(found) = folders.iter().find(is_meant) else {
        let names: Vec<String> = folders.iter().map(|info| info.folder.path.join("/")).take(20).collect();
        bail!("the account has no mailbox '{name}'; it has {}", names.join(", "));
    };
    Ok(Some(found.id))
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let Report { exported, bytes, mailboxes, keywords_left_out, problems, .. } = report;
    let emails = counted(*exported, "email", "emails");
    let mailboxes = counted(*mailboxes, "mailbox", "mailboxes");
    writeln!(out, "exported {emails} of {mailboxes}, {}", DecimalBytes(*bytes))?;
    if *keywords_left_out > 0 {
        let why = "a folder of a Maildir has 26 at most; mbox has all";
        writeln!(out, "{} left out: {why}", counted(*keywords_left_out, "keyword", "keywords"))?;
    }
    if problems.count > 0 {
        writeln!(out, "{} can't be exported", counted(problems.count, "email", "emails"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_named_with_its_kind() {
        assert_eq!("mbox:a/b".parse(), Ok(TargetName::Mbox("a/b".into())));
        assert_eq!("mbox:a/b/".parse(), Ok(TargetName::Mboxes("a/b".into())));
        assert_eq!("maildir:a/".parse(), Ok(TargetName::Maildir("a".into())));
        for wrong in ["", "mbox:", "mbox:/", "maildir:", "a"] {
            assert!(wrong.parse::<TargetName>().is_err(), "{wrong}");
        }
    }
}
