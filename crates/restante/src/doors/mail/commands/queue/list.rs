//! `restante queue list` and `restante queue show`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::bail;
use clap::Args;
use indicatif::DecimalBytes;

use super::{
    FilterFlags,
    operate::{AllHeld, QueueAnswer, QueueOperation, Queued, QueuedDomain, ReachedQueue},
};
use crate::{
    doors::mail::commands::{
        directory::{
            reach::{DirectoryFlags, Reached},
            show,
        },
        pages::{Item, Pages},
    },
    exit,
    output::{ReportFormat, printable, short},
};

/// Recipients that are read per request.
const PAGE: usize = 256;
/// The widths of columns in characters.
const RECIPIENT_CHARS: usize = 36;
const SENDER_CHARS: usize = 30;
const REPLY_CHARS: usize = 60;

#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    #[command(flatten)]
    filter: FilterFlags,
    /// Only those that are held
    #[arg(long)]
    held: bool,
    /// Count them by domain, the domain with the most first
    #[arg(long, conflicts_with_all = ["domain", "account", "sender", "held", "limit"])]
    by_domain: bool,
    /// Print at most this many [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ShowFlags {
    /// The id that `restante queue list` shows
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    flags: DirectoryFlags,
}

pub(super) async fn run(flags: &ListFlags) -> anyhow::Result<ExitCode> {
    let reached = flags.flags.reach().await?;
    let done = if flags.by_domain { domains(flags, &reached).await } else { list(flags, &reached).await };
    reached.close().await?;
    done.map(|()| ExitCode::SUCCESS)
}

/// Prints page by page, so that a long list is never in memory as a whole.
async fn list(flags: &ListFlags, reached: &Reached) -> anyhow::Result<()> {
    let queue = ReachedQueue::of(reached).await?;
    let mut pages = Pages::new(flags.flags.format);
    let mut left = flags.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let (mut after, mut is_first) = (None, true);
    loop {
        let (filter, limit) = (flags.filter.filter(flags.held), left.min(PAGE));
        let QueueAnswer::Listed { items, next, held } =
            queue.operate(QueueOperation::List { filter, after, limit }).await?
        else {
            bail!("the server's answer is no page of the queue");
        };
        if std::mem::take(&mut is_first) {
            warn_of(held.as_ref())?;
        }
        left = left.saturating_sub(items.len());
        // Locked again for each page, not during the requests.
        let mut out = io::stdout().lock();
        pages.print(&items, &mut out)?;
        after = next;
        if after.is_none() || left == 0 {
            pages.end(&mut out)?;
            return Ok(());
        }
    }
}

async fn domains(flags: &ListFlags, reached: &Reached) -> anyhow::Result<()> {
    let answer = ReachedQueue::of(reached).await?.operate(QueueOperation::Domains).await?;
    let QueueAnswer::Domains { items, held } = answer else {
        bail!("the server's answer is no list of domains");
    };
    warn_of(held.as_ref())?;
    let row = |domain: &QueuedDomain| {
        let counts = [domain.recipients.to_string(), domain.held.to_string()];
        [vec![domain.domain.clone()], counts.to_vec(), vec![time(domain.oldest_due)]].concat()
    };
    show::list(&items, flags.flags.format, &["domain", "recipients", "held", "oldest due"], row)?;
    Ok(())
}

/// Warns when the queue is held as a whole, so that nothing is sent.
fn warn_of(held: Option<&AllHeld>) -> io::Result<()> {
    let Some(AllHeld { since, why }) = held else { return Ok(()) };
    let (since, why) = (time(*since), printable(why));
    let line =
        format!("nothing is sent since {since} ({why}): restante queue release --all lets mail be sent");
    writeln!(io::stderr(), "restante: {line}")
}

pub(super) async fn show(flags: &ShowFlags) -> anyhow::Result<ExitCode> {
    let reached = flags.flags.reach().await?;
    let answer = async {
        ReachedQueue::of(&reached).await?.operate(QueueOperation::Show { id: flags.id.clone() }).await
    }
    .await;
    reached.close().await?;
    let QueueAnswer::Shown(found) = answer? else { bail!("the server's answer shows no recipient") };
    let Some(queued) = found else {
        writeln!(
            io::stderr(),
            "restante: {} is not in the queue: it was sent, failed or was dropped",
            flags.id
        )?;
        return Ok(exit::found_wrong());
    };
    match flags.flags.format {
        ReportFormat::Json => show::json(&queued)?,
        ReportFormat::Text => print_one(&queued, &mut io::stdout().lock())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_one(queued: &Queued, out: &mut dyn Write) -> io::Result<()> {
    let sender = if queued.sender.is_empty() { "<>".to_owned() } else { queued.sender.clone() };
    let lines = [
        ("id", Some(queued.id.clone())),
        ("state", Some(queued.state.clone())),
        ("reason", queued.reason.clone()),
        ("recipient", Some(queued.recipient.clone())),
        ("sender", Some(sender)),
        ("source", Some(queued.source.clone())),
        ("account", queued.account.map(|account| account.to_string())),
        ("size", Some(DecimalBytes(queued.size).to_string())),
        ("queued", Some(time(queued.queued))),
        ("next attempt", queued.has_next().then(|| time(queued.due))),
        ("attempts", Some(queued.attempts.to_string())),
        ("last attempt", queued.last_attempt.map(time)),
        ("last reply", queued.last_reply.clone()),
    ];
    for (name, value) in lines {
        if let Some(value) = value {
            writeln!(out, "{name:<12}  {}", printable(&value))?;
        }
    }
    Ok(())
}

impl Queued {
    /// Whether the time of the next attempt is known.
    fn has_next(&self) -> bool {
        matches!(self.state.as_str(), "due" | "scheduled")
    }
}

impl Item for Queued {
    fn head() -> String {
        columns(
            ["id", "state", "next attempt", "tries", "recipient", "sender", "last reply"].map(str::to_owned),
        )
    }

    fn line(&self) -> String {
        let sender = if self.sender.is_empty() { "<>" } else { &self.sender };
        let next = if self.has_next() { time(self.due) } else { String::new() };
        let reply = self.last_reply.as_deref().or(self.reason.as_deref()).unwrap_or_default();
        columns([
            self.id.clone(),
            self.state.clone(),
            next,
            self.attempts.to_string(),
            short(&self.recipient, RECIPIENT_CHARS),
            short(sender, SENDER_CHARS),
            short(reply, REPLY_CHARS),
        ])
    }
}

fn columns(cells: [String; 7]) -> String {
    let [id, state, next, tries, recipient, sender, reply] = cells.map(|cell| printable(&cell));
    format!(
        "{id:<10}  {state:<9}  {next:<20}  {tries:>5}  {recipient:<RECIPIENT_CHARS$}  {sender:<SENDER_CHARS$}  {reply}"
    )
}

fn time(seconds: u64) -> String {
    show::time(i64::try_from(seconds).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(id: &str) -> Queued {
        Queued {
            id: id.to_owned(),
            state: "due".to_owned(),
            recipient: "bob@example.net".to_owned(),
            domain: "example.net".to_owned(),
            sender: String::new(),
            source: "report".to_owned(),
            account: None,
            size: 12_345,
            queued: 1_554_076_000,
            due: 1_554_076_800,
            attempts: 2,
            last_attempt: Some(1_554_076_700),
            last_reply: Some("451 4.3.0 come\u{1b} later (mx.example.net)".to_owned()),
            reason: None,
        }
    }

    fn printed(format: ReportFormat, pages: &[&[Queued]]) -> String {
        let (mut printer, mut out) = (Pages::new(format), Vec::new());
        for page in pages {
            printer.print(page, &mut out).unwrap();
        }
        printer.end(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn pages_have_one_head_and_replies_of_others_do_not_drive_the_terminal() {
        let text = printed(ReportFormat::Text, &[&[queued("17-1")], &[queued("17-2")]]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[0].starts_with("id ") && lines[1].starts_with("17-1 ") && lines[2].starts_with("17-2 ")
        );
        assert!(
            lines[1].ends_with("<>                              451 4.3.0 come  later (mx.example.net)"),
            "{text}"
        );
        assert_eq!(printed(ReportFormat::Text, &[&[]]), "");
    }

    #[test]
    fn pages_are_one_array_of_json() {
        let read: Vec<Queued> =
            serde_json::from_str(&printed(ReportFormat::Json, &[&[queued("17-1")], &[queued("17-2")]]))
                .unwrap();
        assert_eq!(read, [queued("17-1"), queued("17-2")]);
        assert_eq!(printed(ReportFormat::Json, &[&[]]), "[]\n");
    }

    #[test]
    fn what_is_known_of_one_recipient_is_a_line_each() {
        let mut out = Vec::new();
        print_one(&queued("17-1"), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("sender        <>\n") && text.contains("next attempt  2019-04-01T00:00:00Z\n"),
            "{text}"
        );
        assert!(!text.contains("reason"), "{text}");
    }
}
