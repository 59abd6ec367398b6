//! `restante quarantine`: mail that checks keep for the operator, in a running server.

mod operate;
mod route;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use indicatif::DecimalBytes;

pub(crate) use operate::Operator;
use operate::{IDS_MAX, PATH, QuarantineAnswer, QuarantineOperation, QuarantinedMessage, ReleasedTo, Shown};
pub(crate) use route::route;

use super::{
    directory::{
        reach::{DirectoryFlags, Reached},
        show,
    },
    pages::{Item, Pages},
};
use crate::{
    exit,
    output::{ReportFormat, printable, short},
};

/// Messages that are read per request.
const PAGE: usize = 256;
/// The widths of columns in characters.
const SENDER_CHARS: usize = 30;
const RECIPIENT_CHARS: usize = 30;
const SUBJECT_CHARS: usize = 40;
const REASON_CHARS: usize = 70;

#[derive(Subcommand, Debug)]
pub(crate) enum QuarantineCommand {
    /// List mail that checks keep for the operator, the newest first
    #[command(after_help = LIST_HELP)]
    List(QuarantineListFlags),
    /// Show all that is known of one message, and the beginning of what it says
    #[command(
        after_help = "Examples:\n  restante quarantine show 17\n  restante quarantine show 17 --raw | less"
    )]
    Show(QuarantineShowFlags),
    /// Deliver messages to their recipients, as if they had been accepted
    #[command(after_help = "Example:\n  restante quarantine release 17 18")]
    Release(QuarantineReleaseFlags),
    /// Drop messages: nobody gets them
    #[command(after_help = "Example:\n  restante quarantine drop 17 18 --yes")]
    Drop(QuarantineDropFlags),
}

const LIST_HELP: &str = "\
Examples:
  restante quarantine list
  restante quarantine list --domain example.net --limit 20
  restante quarantine list --recipient anna@example.org --format json

Mail is kept in quarantine where a setting in [checks] says so, for quarantine.days_kept days.";

#[derive(Args, Debug)]
pub(crate) struct QuarantineListFlags {
    /// Those whose envelope sender is of this domain, '' for mail without a sender
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Those for this recipient
    #[arg(long, value_name = "ADDRESS")]
    recipient: Option<String>,
    /// Print at most this many [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct QuarantineShowFlags {
    /// The id that `restante quarantine list` shows
    #[arg(value_name = "ID")]
    id: u64,
    /// Write the first 256 KiB of the message as they are, and nothing else
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct QuarantineReleaseFlags {
    /// Ids that `restante quarantine list` shows
    #[arg(value_name = "ID", required = true)]
    ids: Vec<u64>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct QuarantineDropFlags {
    /// Ids that `restante quarantine list` shows
    #[arg(value_name = "ID", required = true)]
    ids: Vec<u64>,
    /// Drop them: there is no way back
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    flags: DirectoryFlags,
}

/// Runs a command to completion.
pub(crate) async fn run(command: QuarantineCommand) -> anyhow::Result<ExitCode> {
    let flags = match &command {
        QuarantineCommand::List(flags) => &flags.flags,
        QuarantineCommand::Show(flags) => &flags.flags,
        QuarantineCommand::Release(flags) => &flags.flags,
        QuarantineCommand::Drop(flags) => &flags.flags,
    };
    if matches!(&command, QuarantineCommand::Drop(flags) if !flags.yes) {
        bail!("nothing brings dropped mail back: add --yes to drop it");
    }
    let reached = flags.reach().await?;
    let done = match &command {
        QuarantineCommand::List(flags) => list(flags, &reached).await,
        QuarantineCommand::Show(flags) => show_one(flags, &reached).await,
        QuarantineCommand::Release(flags) => release(flags, &reached).await,
        QuarantineCommand::Drop(flags) => drop_all(flags, &reached).await,
    };
    reached.close().await?;
    done
}

async fn operate(reached: &Reached, operation: QuarantineOperation) -> anyhow::Result<QuarantineAnswer> {
    match reached {
        Reached::Here { .. } => bail!("no server runs: start it, the quarantine is reached through it"),
        Reached::Server(server) => server.ask(PATH, operation).await,
    }
}

/// Prints page by page, so that a long list is never in memory as a whole.
async fn list(flags: &QuarantineListFlags, reached: &Reached) -> anyhow::Result<ExitCode> {
    let mut pages = Pages::new(flags.flags.format);
    let mut left = flags.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let mut after = None;
    loop {
        let (domain, recipient) = (flags.domain.clone(), flags.recipient.clone());
        let operation = QuarantineOperation::List { domain, recipient, after, limit: left.min(PAGE) };
        let QuarantineAnswer::Listed { items, next } = operate(reached, operation).await? else {
            bail!("the server's answer is no page of the quarantine");
        };
        left = left.saturating_sub(items.len());
        // Locked again for each page, not during the requests.
        let mut out = io::stdout().lock();
        pages.print(&items, &mut out)?;
        after = next;
        if after.is_none() || left == 0 {
            pages.end(&mut out)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
}

async fn show_one(flags: &QuarantineShowFlags, reached: &Reached) -> anyhow::Result<ExitCode> {
    let QuarantineAnswer::Shown(found) = operate(reached, QuarantineOperation::Show { id: flags.id }).await?
    else {
        bail!("the server's answer shows no message");
    };
    let Some(shown) = found else { return not_there(&[flags.id]) };
    let message = shown.bytes().context("the server's answer has no message")?;
    let mut out = io::stdout().lock();
    match flags.flags.format {
        _ if flags.raw => out.write_all(&message)?,
        ReportFormat::Json => show::json(&*shown)?,
        ReportFormat::Text => print_one(&shown, &message, &mut out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_one(shown: &Shown, message: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let QuarantinedMessage { id, received, peer, hello, sender, recipients, reason, from, subject, size } =
        &shown.kept;
    let sender = if sender.is_empty() { "<>" } else { sender };
    let lines = [
        ("id", Some(id.to_string())),
        ("received", Some(time(*received))),
        ("client", Some(format!("{} {}", peer.as_deref().unwrap_or_default(), hello).trim().to_owned())),
        ("sender", Some(sender.to_owned())),
        ("recipients", Some(recipients.join(", "))),
        ("reason", Some(reason.clone())),
        ("from", from.clone()),
        ("subject", subject.clone()),
        ("size", Some(DecimalBytes(*size).to_string())),
    ];
    for (name, value) in lines {
        if let Some(value) = value {
            writeln!(out, "{name:<10}  {}", printable(&value))?;
        }
    }
    writeln!(out)?;
    for line in String::from_utf8_lossy(message).lines() {
        writeln!(out, "{}", printable(line))?;
    }
    Ok(())
}

async fn release(flags: &QuarantineReleaseFlags, reached: &Reached) -> anyhow::Result<ExitCode> {
    let mut all = Vec::new();
    for ids in flags.ids.chunks(IDS_MAX) {
        let operation = QuarantineOperation::Release { ids: ids.to_vec() };
        let QuarantineAnswer::Released(released) = operate(reached, operation).await? else {
            bail!("the server's answer is none to a release");
        };
        all.extend(released);
    }
    let missing: Vec<u64> =
        flags.ids.iter().copied().filter(|id| all.iter().all(|to| to.id != *id)).collect();
    let has_problem = all.iter().any(|to| to.problem.is_some());
    let row = |to: &ReleasedTo| {
        vec![
            to.id.to_string(),
            to.recipient.clone(),
            to.problem.clone().unwrap_or_else(|| "delivered".to_owned()),
        ]
    };
    show::list(&all, flags.flags.format, &["id", "recipient", "outcome"], row)?;
    if has_problem {
        writeln!(io::stderr(), "restante: what was not delivered to all recipients stays in quarantine")?;
    }
    if missing.is_empty() {
        return Ok(if has_problem { exit::found_wrong() } else { ExitCode::SUCCESS });
    }
    not_there(&missing)
}

async fn drop_all(flags: &QuarantineDropFlags, reached: &Reached) -> anyhow::Result<ExitCode> {
    let mut messages = 0;
    for ids in flags.ids.chunks(IDS_MAX) {
        let operation = QuarantineOperation::Drop { ids: ids.to_vec() };
        let QuarantineAnswer::Dropped(count) = operate(reached, operation).await? else {
            bail!("the server's answer is none to dropping mail");
        };
        messages += count;
    }
    let noun = if messages == 1 { "message" } else { "messages" };
    writeln!(io::stdout(), "{messages} {noun} dropped")?;
    Ok(ExitCode::SUCCESS)
}

fn not_there(ids: &[u64]) -> anyhow::Result<ExitCode> {
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    let ids = ids.join(", ");
    writeln!(io::stderr(), "restante: not in quarantine: {ids}: released, dropped, or too old")?;
    Ok(exit::found_wrong())
}

impl Item for QuarantinedMessage {
    fn head() -> String {
        columns(["id", "received", "sender", "recipients", "subject", "reason"].map(str::to_owned))
    }

    fn line(&self) -> String {
        let sender = if self.sender.is_empty() { "<>" } else { &self.sender };
        let recipients = match self.recipients.as_slice() {
            [first, rest @ ..] if !rest.is_empty() => format!("{first} +{}", rest.len()),
            all => all.concat(),
        };
        columns([
            self.id.to_string(),
            time(self.received),
            short(sender, SENDER_CHARS),
            short(&recipients, RECIPIENT_CHARS),
            short(self.subject.as_deref().unwrap_or_default(), SUBJECT_CHARS),
            short(&self.reason, REASON_CHARS),
        ])
    }
}

fn columns(cells: [String; 6]) -> String {
    let [id, received, sender, recipients, subject, reason] = cells.map(|cell| printable(&cell));
    format!(
        "{id:<8}  {received:<20}  {sender:<SENDER_CHARS$}  {recipients:<RECIPIENT_CHARS$}  {subject:<SUBJECT_CHARS$}  {reason}"
    )
}

fn time(seconds: u64) -> String {
    show::time(i64::try_from(seconds).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chk20_a_line_of_the_list_does_not_drive_the_terminal() {
        let kept = QuarantinedMessage {
            id: 17,
            received: 1_554_076_800,
            peer: Some("192.0.2.1".to_owned()),
            hello: "mx".to_owned(),
            sender: String::new(),
            recipients: vec!["anna@example.org".to_owned(), "bob@example.org".to_owned()],
            reason: "the filter's score is 9.0".to_owned(),
            from: None,
            subject: Some("a\u{1b}[2Jb".to_owned()),
            size: 12,
        };
        let line = kept.line();
        assert!(line.starts_with("17        2019-04-01T00:00:00Z  <>  "), "{line}");
        assert!(line.contains("anna@example.org +1") && !line.contains('\u{1b}'), "{line}");
    }
}
