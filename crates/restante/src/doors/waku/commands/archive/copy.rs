//! `restante archive copy`

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, ValueHint};
use indicatif::HumanCount;
use restante_archive::{Copied, Copier, EngineUrl, Metrics, Opened, TimeRange};
use restante_core::{Key, Timestamp};
use serde::{Deserialize, Serialize};

use super::state::StateFile;
use crate::{
    clock,
    config::{ArchiveFlags, Config},
    doors::waku::archives::{self, Access},
    exit::{self, UsageError},
    moment::{Moment, parse_moment},
    output::left_out,
    progress::Progress,
    signals::Stop,
};

#[derive(Args, Debug)]
pub(crate) struct CopyFlags {
    /// Copy from this archive: log:<folder>, sqlite:<file>, postgres://<user>@<host>/<database> or cassandra://<host>/<keyspace>
    #[arg(value_name = "FROM")]
    from: EngineUrl,
    /// Copy to this one, which is created if missing; no server may be running on a log archive
    #[arg(value_name = "TO")]
    to: EngineUrl,
    #[command(flatten)]
    range: RangeFlags,
    /// Read the engines' settings from this file instead of ./restante.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Store the progress of the copy in this file [default: ./restante-copy-<hash>.state]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    state: Option<PathBuf>,
}

/// A range of time: what a copy and a comparison have in common.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct RangeFlags {
    /// Only messages at or after this: 2026-01-31T12:00:00Z, 2026-01-31, nanoseconds, now, -1h, -7d
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    start: Option<Moment>,
    /// Only messages before this
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    end: Option<Moment>,
}

impl RangeFlags {
    pub(super) fn resolve(self, now: Timestamp) -> TimeRange {
        let resolve = |moment: Option<Moment>| moment.map(|moment| moment.resolve(now));
        TimeRange { start: resolve(self.start), end: resolve(self.end) }
    }

    /// The range as it was typed: times relative to now differ between commands.
    fn typed(self) -> String {
        let typed = |moment| match moment {
            None => String::new(),
            Some(Moment::At(timestamp)) => timestamp.nanos().to_string(),
            Some(Moment::FromNow { seconds }) => format!("now{seconds:+}s"),
        };
        format!("{}..{}", typed(self.start), typed(self.end))
    }
}

/// The progress of a copy, as stored in its state file.
#[derive(Debug, Deserialize, Serialize)]
struct CopyState {
    /// What is copied where, to check that a state belongs to the command.
    copy: String,
    start: Option<i64>,
    end: Option<i64>,
    after: Option<(i64, String)>,
    stored: u64,
    duplicates: u64,
    unreadable: u64,
}

impl CopyState {
    fn new(copy: String, range: TimeRange, copied: Copied) -> Self {
        let after = copied.after.map(|key| (key.timestamp.nanos(), key.message_hash.to_string()));
        let Copied { stored, duplicates, unreadable, .. } = copied;
        let (start, end) = (range.start.map(Timestamp::nanos), range.end.map(Timestamp::nanos));
        Self { copy, start, end, after, stored, duplicates, unreadable }
    }

    fn range(&self) -> TimeRange {
        TimeRange { start: self.start.map(Timestamp), end: self.end.map(Timestamp) }
    }

    fn copied(&self) -> anyhow::Result<Copied> {
        let mut after = None;
        if let Some((nanos, hash)) = &self.after {
            after = Some(Key { timestamp: Timestamp(*nanos), message_hash: hash.parse()? });
        }
        let Self { stored, duplicates, unreadable, .. } = *self;
        Ok(Copied { stored, duplicates, unreadable, after })
    }
}

pub(crate) async fn run(flags: &CopyFlags) -> anyhow::Result<ExitCode> {
    if flags.from == flags.to {
        return Err(UsageError("FROM and TO are the same archive".into()).into());
    }
    let config = ArchiveFlags::of_file(flags.config.clone()).load()?.config;
    let (from_url, to_url) = (flags.from.to_string(), flags.to.to_string());
    let file = StateFile::new(flags.state.as_deref(), "copy", [&from_url, &to_url]);
    let state = load(flags, &file)?;
    let metrics = Metrics::default();
    let from = open(&config, &flags.from, Access::Read, metrics.clone()).await?;
    let to = open(&config, &flags.to, Access::Write, Metrics::default()).await?;
    let stop = Stop::on_signals()?;
    let ended = copy(flags, &file, state, (&from, &metrics, &to), &stop).await;
    to.upkeep.close().await?;
    let (copied, is_done) = ended?;
    if !is_done {
        eprintln!("stopped early: {}; the same command continues there", counts(&copied));
        return Ok(exit::interrupted());
    }
    file.remove()?;
    eprintln!("{}", counts(&copied));
    if copied.unreadable > 0 {
        let check = format!("archive check --archive {from_url}");
        eprintln!("{}", left_out(copied.unreadable, check));
        return Ok(exit::found_wrong());
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens an archive with the settings for its engine.
pub(super) async fn open(
    config: &Config,
    url: &EngineUrl,
    access: Access,
    metrics: Metrics,
) -> anyhow::Result<Opened> {
    let mut config = config.clone();
    config.archive.url = Some(url.clone());
    archives::open(&config, access, metrics).await
}

/// The state of an earlier command: its progress, and what it copies.
fn load(flags: &CopyFlags, file: &StateFile) -> anyhow::Result<Option<(Copied, TimeRange)>> {
    let Some(state) = file.load::<CopyState>()? else { return Ok(None) };
    file.check(&state.copy, &flags.describe())?;
    Ok(Some((state.copied()?, state.range())))
}

/// The state of an earlier command, if it is about the archive that is copied to.
async fn state_of_target(
    file: &StateFile,
    state: Option<(Copied, TimeRange)>,
    to: &Opened,
) -> anyhow::Result<Option<(Copied, TimeRange)>> {
    match state.and_then(|(copied, _)| copied.after) {
        Some(last) if !file.is_of(&*to.archive, last.message_hash).await? => Ok(None),
        _ => Ok(state),
    }
}

impl CopyFlags {
    fn describe(&self) -> String {
        format!("{} to {}, {}", self.from, self.to, self.range.typed())
    }
}

/// Copies page by page, and stores the progress; returns whether everything was copied, or the copy was stopped.
async fn copy(
    flags: &CopyFlags,
    file: &StateFile,
    state: Option<(Copied, TimeRange)>,
    (from, metrics, to): (&Opened, &Metrics, &Opened),
    stop: &Stop,
) -> anyhow::Result<(Copied, bool)> {
    let state = state_of_target(file, state, to).await?;
    // Damage that was found when the archive was opened was counted by an earlier command.
    let counted_before = if state.is_some() { metrics.damaged_records() } else { 0 };
    let (begun, range) =
        state.unwrap_or_else(|| (Copied::default(), flags.range.resolve(clock::system().now())));
    let mut copier = Copier::new(&*from.archive, &*to.archive, range, begun);
    let copied = |copier: &Copier<'_>| {
        let copied = copier.copied();
        let damaged = metrics.damaged_records().saturating_sub(counted_before);
        Copied { unreadable: copied.unreadable + damaged, ..copied }
    };
    let total = if range.is_everything() { Some(from.upkeep.stats().await?.messages) } else { None };
    let progress = Progress::counting("messages", "copying", total);
    // Messages that were copied before do not count for the rate.
    progress.bar.set_position(done(&begun));
    progress.bar.reset_eta();
    loop {
        if stop.is_requested() {
            return Ok((copied(&copier), false));
        }
        if !copier.step().await? {
            return Ok((copied(&copier), true));
        }
        let copied = copied(&copier);
        // The messages of the state are durable in the other archive, since step has returned.
        file.save(&CopyState::new(flags.describe(), range, copied))?;
        progress.set(done(&copied));
    }
}

fn done(copied: &Copied) -> u64 {
    copied.stored + copied.duplicates + copied.unreadable
}

fn counts(copied: &Copied) -> String {
    let (stored, duplicates) = (HumanCount(copied.stored), HumanCount(copied.duplicates));
    format!("copied {stored} messages, {duplicates} were there already")
}
