//! `restante backup` and `restante backup check`

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand, ValueHint};
use http::StatusCode;
use indicatif::{DecimalBytes, HumanCount};
use restante_backup::{Asked, Event, EventSender, Manifest, Removing, Role, Sources, Summary};
use restante_core::ErrorKind;

use crate::{
    backups,
    client::{self, OperatorFlags, Refused, Unreachable, own_token},
    config::{Config, DataFlags, Effective},
    doors::{self, HeldStore},
    exit::{self, UsageError},
    progress::Progress,
    signals::Stop,
};

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BackupFlags {
    #[command(subcommand)]
    command: Option<BackupCommand>,
    /// The folder to create; it may exist if it is empty
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath, required = true)]
    folder: Option<PathBuf>,
    #[command(flatten)]
    data: DataFlags,
    /// Use this server instead of the one of the settings [default: that one, if it is running]
    #[arg(long, value_name = "URL")]
    rest: Option<String>,
    /// A file with the server's token, that of its operate.token_file [default: RESTANTE_TOKEN, then operate.token_file
    /// of the settings]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum BackupCommand {
    /// Compare every file of a backup with its SHA-256; exits with 1 and a list if one differs
    #[command(after_help = "Example:\n  restante backup check /var/backups/restante/2026-01-31")]
    Check(CheckFlags),
}

#[derive(Args, Debug)]
struct CheckFlags {
    /// The backup
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    folder: PathBuf,
}

pub(crate) async fn run(flags: &BackupFlags) -> anyhow::Result<ExitCode> {
    if let Some(BackupCommand::Check(flags)) = &flags.command {
        return check(flags);
    }
    let folder = flags.folder.as_deref().context("no folder was named")?;
    // The server has another current folder.
    let folder = std::path::absolute(folder).with_context(|| format!("can't find {}", folder.display()))?;
    if let Some(url) = &flags.rest {
        return ask(flags.token_file.clone(), url.clone(), Asked { folder, data: None }).await;
    }
    let effective = flags.data.load()?;
    let config = &effective.config;
    let token_file = flags.token_file.clone().or_else(|| own_token(config));
    match Held::open(&effective).await? {
        Found::Stores(held) => held.back_up(&effective, folder).await,
        Found::Held => {
            let url = server_of(config)?;
            let data = backups::data_folder(config);
            let asked = ask(token_file, url.clone(), Asked { folder, data: Some(data) }).await;
            asked.map_err(|error| explain_guess(error, config, &url))
        }
        Found::Nothing => {
            let nothing = anyhow!(
                "there is nothing to back up in {}: name another place with --data or --config",
                config.server.data_dir.display()
            );
            // A folder that was named explicitly must be backed up itself, not a server with another folder.
            let is_named = effective.is_set("server.data_dir");
            let Some(url) = server_of(config).ok().filter(|_| !is_named) else { return Err(nothing) };
            let asked = ask(token_file, url.clone(), Asked { folder, data: None }).await;
            asked.map_err(|error| match error.downcast_ref::<Unreachable>() {
                Some(_) => anyhow!("{nothing}; and no server is at {url}: name one with --rest"),
                None => error,
            })
        }
    }
}

/// What can be backed up.
enum Found {
    /// No server has these stores open.
    Stores(Held),
    /// Another process has them open: a server.
    Held,
    Nothing,
}

/// [`client::server_of`] for a command that needs the server that uses the data.
pub(crate) fn server_of(config: &Config) -> anyhow::Result<String> {
    client::server_of(config).with_context(|| {
        let data = config.server.data_dir.display();
        format!("a server holds what is in {data}, and the settings have no listener without TLS: stop it, or name it with --rest")
    })
}

/// Makes a running server take the backup; the server writes it as its own user.
async fn ask(token_file: Option<PathBuf>, url: String, asked: Asked) -> anyhow::Result<ExitCode> {
    let client = OperatorFlags::of(url, token_file).client()?;
    let mut shown = Shown::default();
    let asked = serde_json::to_vec(&asked).context("the folder's name is no UTF-8")?;
    let mut show = |line: &[u8]| {
        let event = serde_json::from_slice(line).context("the server's answer is no event of a backup")?;
        shown.show(event)
    };
    let result = client.post_lines(restante_backup::PATH, asked, &mut show).await;
    result.map_err(explain)?;
    shown.end()
}

/// Names the setting that a server without operator routes needs.
pub(crate) fn explain(error: anyhow::Error) -> anyhow::Error {
    let is_closed = |refused: &Refused| {
        refused.status == StatusCode::NOT_FOUND && refused.text.starts_with("no such path")
    };
    if error.downcast_ref().is_some_and(is_closed) {
        return anyhow!(
            "a server is running that has no routes for operators there: name its operate.listen with --rest, or stop it first"
        );
    }
    explain_token(error)
}

/// Adds how to send a token to a server that requires one.
pub(crate) fn explain_token(error: anyhow::Error) -> anyhow::Error {
    let needs_token = |refused: &Refused| refused.status == StatusCode::UNAUTHORIZED;
    if error.downcast_ref().is_some_and(needs_token) {
        return error.context("name the file of the server's token with --token-file, or set RESTANTE_TOKEN");
    }
    error
}

/// Adds to the error of an unreachable server that only the address in the settings was tried.
pub(crate) fn explain_guess(error: anyhow::Error, config: &Config, url: &str) -> anyhow::Error {
    if error.downcast_ref::<Unreachable>().is_none() {
        return error;
    }
    error.context(format!(
        "another process holds what is in {}, and no server is at {url}, where the settings have its listener: if it is a server, name it with --rest",
        config.server.data_dir.display()
    ))
}

/// The stores that the settings name, if no server has them open.
struct Held(Vec<Box<dyn HeldStore>>);

impl Held {
    /// Opens the existing stores, and creates nothing.
    async fn open(effective: &Effective) -> anyhow::Result<Found> {
        let config = &effective.config;
        backups::check_not_halfway(config)?;
        let mut held = Self(Vec::new());
        match held.open_all(config).await {
            Ok(()) if held.0.is_empty() => Ok(Found::Nothing),
            Ok(()) => Ok(Found::Stores(held)),
            Err(error) => {
                held.close().await?;
                if exit::kind(&error) == Some(ErrorKind::Conflict) { Ok(Found::Held) } else { Err(error) }
            }
        }
    }

    async fn open_all(&mut self, config: &Config) -> anyhow::Result<()> {
        for door in doors::enabled(config) {
            door.hold(config, &mut self.0).await?;
        }
        Ok(())
    }

    async fn back_up(self, effective: &Effective, folder: PathBuf) -> anyhow::Result<ExitCode> {
        let stores = self.0.iter().map(|store| store.store(&effective.config)).collect();
        let sources = backups::sources(effective, stores, Removing::default());
        let taken = take_and_show(sources, folder).await;
        self.close().await?;
        taken
    }

    async fn close(&self) -> anyhow::Result<()> {
        for store in &self.0 {
            store.close().await?;
        }
        Ok(())
    }
}

/// Whether a folder was ever used.
pub(crate) fn is_used(folder: &Path) -> anyhow::Result<bool> {
    match folder.read_dir() {
        Ok(entries) => Ok(entries.flatten().any(|entry| entry.file_name() != restante_backup::OF_DISK)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("can't read {}", folder.display())),
    }
}

/// Takes the backup in this process; Ctrl-C stops it.
async fn take_and_show(sources: Sources, folder: PathBuf) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signals()?;
    let (sender, mut events) = EventSender::until(stop.signal(), restante_backup::stopped);
    let taking = tokio::spawn(restante_backup::take(Arc::new(sources), folder, sender));
    let mut shown = Shown::default();
    while let Some(event) = events.recv().await {
        shown.show(event)?;
    }
    let summary = taking.await.context("the backup ended early")?;
    if let (Err(error), true) = (&summary, stop.is_requested()) {
        eprintln!("restante: {error}");
        return Ok(exit::interrupted());
    }
    // The same exit code as when a server takes the backup, which returns only the text of the error.
    let summary = summary.map_err(|error| anyhow!("{error}"))?;
    shown.show(Event::Done(summary))?;
    shown.end()
}

/// Shows the progress: a bar on a terminal, otherwise lines for scripts.
#[derive(Default)]
struct Shown {
    bar: Option<(Step, Progress)>,
    end: Option<Summary>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Copying(Role),
    Summing,
}

impl Shown {
    fn show(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Begun { folder, bytes, free_bytes } => {
                let (bytes, free) = (DecimalBytes(bytes), DecimalBytes(free_bytes));
                eprintln!("backing up into {}: about {bytes}, {free} are free", folder.display());
            }
            Event::Copying { role, bytes, of_bytes } => {
                let what = match role {
                    Role::Files => "copying files",
                    Role::Records => "copying records",
                    Role::Blobs => "copying blobs",
                    Role::Archive => "copying archive",
                };
                self.bar(Step::Copying(role), what).set_of(bytes, of_bytes.max(bytes));
            }
            Event::Summing { bytes, of_bytes } => {
                self.bar(Step::Summing, "reading back").set_of(bytes, of_bytes)
            }
            Event::Omitted { role, why } => {
                self.bar = None;
                eprintln!("restante: not in the backup: {}: {why}", role.name());
            }
            Event::Note { text } => eprintln!("restante: {text}"),
            Event::Done(summary) => {
                self.bar = None;
                self.end = Some(summary);
            }
            Event::Failed { error, .. } => {
                self.bar = None;
                bail!("{error}");
            }
        }
        Ok(())
    }

    fn bar(&mut self, step: Step, what: &'static str) -> &Progress {
        let is_new = self.bar.as_ref().is_none_or(|(shown, _)| *shown != step);
        if is_new {
            self.bar = None; // clear the old bar before the new one is drawn
        }
        &self.bar.get_or_insert_with(|| (step, Progress::bytes(what, Some(0)))).1
    }

    fn end(self) -> anyhow::Result<ExitCode> {
        let summary = self.end.context("the answer broke off before the backup was finished")?;
        let (files, bytes) = (HumanCount(summary.files), DecimalBytes(summary.bytes));
        let counts = counts(&summary.counts);
        writeln!(
            io::stdout(),
            "backed up {counts} into {}: {files} files, {bytes}",
            summary.folder.display()
        )?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The counts as text: `3 blobs, 1,000 messages, 20 records`. Accounts are those of the records, including internal ones of the server.
pub(super) fn counts(counts: &std::collections::BTreeMap<String, u64>) -> String {
    let note = |name: &str| if name == "accounts" { " (with internal ones)" } else { "" };
    let shown: Vec<String> =
        counts.iter().map(|(name, count)| format!("{} {name}{}", HumanCount(*count), note(name))).collect();
    if shown.is_empty() { "what there is".to_owned() } else { shown.join(", ") }
}

/// The error when there is no backup at this path.
pub(super) fn no_backup(folder: &Path) -> UsageError {
    UsageError(format!("there is no folder {}: name one that `restante backup` has made", folder.display()))
}

fn check(flags: &CheckFlags) -> anyhow::Result<ExitCode> {
    if !flags.folder.is_dir() {
        return Err(no_backup(&flags.folder).into());
    }
    let manifest = Manifest::read(&flags.folder)?;
    let bar = Progress::bytes("checking", Some(0));
    let wrong =
        restante_backup::verify(&flags.folder, &manifest, &mut |done, total| bar.set_of(done, total))?;
    drop(bar);
    let mut out = io::stdout().lock();
    for wrong in &wrong {
        writeln!(out, "{}: {}", wrong.path, wrong.what)?;
    }
    for role in &manifest.roles {
        if let Some(why) = &role.omitted {
            writeln!(out, "not in the backup: {} ({}): {why}", role.role.name(), role.url)?;
        }
    }
    let (files, bytes) = (HumanCount(manifest.files.len() as u64), DecimalBytes(manifest.bytes()));
    let verdict = match wrong.len() as u64 {
        0 => "all sound".to_owned(),
        wrong => format!("{} wrong", HumanCount(wrong)),
    };
    let counts = counts(&manifest.counts());
    writeln!(
        out,
        "backup of {} with {counts}: checked {files} files, {bytes}: {verdict}",
        manifest.taken_at
    )?;
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { exit::found_wrong() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_nothing_of_ours_was_never_used() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_used(&folder.path().join("missing")).unwrap());
        std::fs::create_dir(folder.path().join("lost+found")).unwrap();
        assert!(!is_used(folder.path()).unwrap());
        std::fs::write(folder.path().join("00000001.log"), "").unwrap();
        assert!(is_used(folder.path()).unwrap());
    }

    #[test]
    fn the_server_of_the_settings_is_reached_on_this_machine() {
        let mut config = Config::default();
        assert_eq!(server_of(&config).unwrap(), "http://127.0.0.1:8646");
        config.operate.listen = Some("[::]:9000".parse().unwrap());
        assert_eq!(server_of(&config).unwrap(), "http://[::1]:9000");
        config.operate.listen = None;
        assert_eq!(server_of(&config).unwrap(), "http://127.0.0.1:8645");
        config.rest.address = "::".parse().unwrap();
        assert_eq!(server_of(&config).unwrap(), "http://[::1]:8645");
        config.rest.address = "192.0.2.7".parse().unwrap();
        assert_eq!(server_of(&config).unwrap(), "http://192.0.2.7:8645");
        config.rest.port = 0;
        assert!(server_of(&config).unwrap_err().to_string().ends_with("or name it with --rest"));
    }

    #[test]
    fn an_answer_that_broke_off_is_no_backup() {
        let shown = Shown::default();
        assert!(shown.end().unwrap_err().to_string().contains("broke off"));
        let mut shown = Shown::default();
        let failed = Event::Failed { kind: "full".into(), error: "no room".into() };
        assert_eq!(shown.show(failed).unwrap_err().to_string(), "no room");
    }
}
