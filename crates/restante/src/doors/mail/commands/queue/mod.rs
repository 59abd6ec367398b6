//! `restante queue`: what operators do with outgoing mail, in the records of a stopped server or by a running one.

mod dead;
mod list;
mod operate;
mod route;

use std::{io, io::Write, process::ExitCode};

use anyhow::{Context, bail};
use clap::{ArgGroup, Args, Subcommand};
use restante_directory::EmailAddress;

use operate::{Filter, IDS_MAX, QueueAnswer, QueueOperation, ReachedQueue, Which};
pub(crate) use operate::{Noting, Operator};
pub(crate) use route::route;

use super::directory::reach::DirectoryFlags;

#[derive(Subcommand, Debug)]
pub(crate) enum QueueCommand {
    /// List outgoing mail that waits: each recipient with its next attempt and the last reply
    #[command(after_help = LIST_HELP)]
    List(list::ListFlags),
    /// Show all that is known of one recipient
    #[command(after_help = "Example:\n  restante queue show 17-4711")]
    Show(list::ShowFlags),
    /// Try recipients now instead of at their time
    #[command(after_help = RETRY_HELP)]
    Retry(ChangeFlags),
    /// Keep recipients from being tried until they are released
    #[command(after_help = HOLD_HELP)]
    Hold(HoldFlags),
    /// Let recipients be tried again that were held; --all also lets a restored server send
    #[command(after_help = RELEASE_HELP)]
    Release(ChangeFlags),
    /// Drop recipients: nothing is sent to them, and nobody gets a report
    #[command(after_help = DROP_HELP)]
    Drop(DropFlags),
    /// What servers could not use of the hints that they send each other by a broker
    #[command(subcommand, after_help = DEAD_HELP)]
    Dead(dead::DeadCommand),
}

const DEAD_HELP: &str = "\
Examples:
  restante queue dead list
  restante queue dead requeue

A hint only says that a recipient is due. Mail is in the records, and is sent without its hint, too:
look at `restante queue list`.";

const LIST_HELP: &str = "\
Examples:
  restante queue list
  restante queue list --domain example.net --limit 20
  restante queue list --by-domain
  restante queue list --held --format json | jq '.[].reason'";

const RETRY_HELP: &str = "\
Examples:
  restante queue retry 17-4711
  restante queue retry --domain example.net

Recipients that are held stay held: restante queue release. Those that their authors have
scheduled for later (`scheduled` in the list) are tried when their time comes; an id on the command
line tries one now.";

const HOLD_HELP: &str = "\
Examples:
  restante queue hold --sender spammer@example.org --why 'stolen password'
  restante queue hold --all --why 'the provider moves'

An attempt that is under way is finished. --all also holds what is submitted from now on. It holds
on this server when the command returns, and on others that share its records within ten seconds.";

const RELEASE_HELP: &str = "\
Examples:
  restante queue release 17-4711
  restante queue release --all

A server that was restored from a backup sends nothing until its queue is released: what it sent
after the backup is in the queue again. Look at `restante queue list` first, and drop what was
sent already.";

const DROP_HELP: &str = "\
Examples:
  restante queue drop 17-4711 17-4712 --yes
  restante queue drop --sender spammer@example.org --yes";

/// Which recipients a command changes.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["ids", "domain", "account", "sender", "all"]))]
pub(crate) struct ChangeFlags {
    /// Ids that `restante queue list` shows
    #[arg(value_name = "ID", conflicts_with_all = ["domain", "account", "sender"])]
    ids: Vec<String>,
    #[command(flatten)]
    filter: FilterFlags,
    /// All recipients
    #[arg(long, conflicts_with_all = ["ids", "domain", "account", "sender"])]
    all: bool,
    #[command(flatten)]
    flags: DirectoryFlags,
}

/// Which recipients are meant.
#[derive(Args, Debug)]
struct FilterFlags {
    /// Those of a domain
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Those that an account sends to
    #[arg(long, value_name = "ADDRESS")]
    account: Option<EmailAddress>,
    /// Those of messages with this envelope sender, '' for reports
    #[arg(long, value_name = "ADDRESS")]
    sender: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct HoldFlags {
    #[command(flatten)]
    change: ChangeFlags,
    /// Why, for who looks at the queue later
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "by an operator",
        value_parser = clap::builder::NonEmptyStringValueParser::new(),
    )]
    why: String,
}

#[derive(Args, Debug)]
pub(crate) struct DropFlags {
    #[command(flatten)]
    change: ChangeFlags,
    /// Drop them: there is no way back
    #[arg(long)]
    yes: bool,
}

impl FilterFlags {
    fn filter(&self, held: bool) -> Filter {
        let Self { domain, account, sender } = self;
        Filter { domain: domain.clone(), account: account.clone(), sender: sender.clone(), held }
    }
}

impl ChangeFlags {
    /// The recipients of the command line, in groups that are small enough for one operation.
    fn which(&self) -> Vec<Which> {
        if self.all {
            return vec![Which::All];
        }
        if self.ids.is_empty() {
            return vec![Which::Matching(self.filter.filter(false))];
        }
        self.ids.chunks(IDS_MAX).map(|ids| Which::Ids(ids.to_vec())).collect()
    }
}

/// The actions of the commands, as they are printed.
const TRIED: &str = "tried now";
const HELD: &str = "held";
const RELEASED: &str = "released";

/// Runs a command to completion.
pub(crate) async fn run(command: QueueCommand) -> anyhow::Result<ExitCode> {
    match command {
        QueueCommand::Dead(command) => dead::run(command).await,
        QueueCommand::List(flags) => list::run(&flags).await,
        QueueCommand::Show(flags) => list::show(&flags).await,
        QueueCommand::Retry(flags) => change(&flags, TRIED, |which| QueueOperation::Retry { which }).await,
        QueueCommand::Hold(HoldFlags { change: flags, why }) => {
            change(&flags, HELD, |which| QueueOperation::Hold { which, why: why.clone() }).await
        }
        QueueCommand::Release(flags) => {
            change(&flags, RELEASED, |which| QueueOperation::Release { which }).await
        }
        QueueCommand::Drop(DropFlags { change: flags, yes }) => {
            if !yes {
                bail!("nothing brings dropped mail back: add --yes to drop it");
            }
            change(&flags, "dropped", |which| QueueOperation::Drop { which }).await
        }
    }
}

/// Changes recipients, and prints how many were changed.
async fn change(
    flags: &ChangeFlags,
    done: &str,
    operation: impl Fn(Which) -> QueueOperation,
) -> anyhow::Result<ExitCode> {
    let reached = flags.flags.reach().await?;
    let changed = async {
        let queue = ReachedQueue::of(&reached).await?;
        let (mut recipients, mut is_all_held) = (0, false);
        for which in flags.which() {
            let QueueAnswer::Changed(count) = queue.operate(operation(which)).await? else {
                bail!("the server's answer is none to a change of the queue");
            };
            recipients += count;
        }
        if recipients > 0 {
            let (filter, after) = (Filter::default(), None);
            let answer = queue.operate(QueueOperation::List { filter, after, limit: 1 }).await?;
            is_all_held = matches!(answer, QueueAnswer::Listed { held: Some(_), .. });
        }
        anyhow::Ok((recipients, is_all_held))
    }
    .await;
    reached.close().await?;
    let (recipients, is_all_held) = changed?;
    writeln!(io::stdout(), "{}", result_line(done, recipients, flags.all, is_all_held))
        .context("can't print")?;
    Ok(ExitCode::SUCCESS)
}

/// What a command did, and to how many recipients.
fn result_line(done: &str, recipients: u64, is_all: bool, is_all_held: bool) -> String {
    let noun = if recipients == 1 { "recipient" } else { "recipients" };
    match done {
        HELD if is_all => format!("the queue is held; recipients that were to be tried: {recipients}"),
        RELEASED if is_all => {
            format!("the queue is released; recipients that were held by themselves: {recipients}")
        }
        TRIED | RELEASED if is_all_held => format!(
            "{recipients} {noun} due, and not tried: the whole queue is held (`restante queue release --all`)"
        ),
        _ => format!("{recipients} {noun} {done}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Commands {
        #[command(subcommand)]
        command: QueueCommand,
    }

    /// Regression test: usage showed ids alone, although recipients can also be chosen by other means.
    #[test]
    fn usage_shows_each_way_to_choose_recipients() {
        const WAYS: &str = "<ID|--domain <DOMAIN>|--account <ADDRESS>|--sender <ADDRESS>|--all>";
        for name in ["retry", "hold", "release", "drop"] {
            let error = Commands::try_parse_from(["queue", name]).unwrap_err().to_string();
            assert!(error.contains(&format!("Usage: queue {name} {WAYS}")), "{error}");
            let help = Commands::try_parse_from(["queue", name, "--help"]).unwrap_err().to_string();
            assert!(help.contains(&format!("Usage: queue {name} [OPTIONS] {WAYS}")), "{help}");
            for way in [&["17-1", "17-2"][..], &["--domain=a.example", "--sender="], &["--all"]] {
                Commands::try_parse_from([&["queue", name][..], way].concat()).unwrap();
            }
            for wrong in [&["17-1", "--domain=a.example"][..], &["--all", "17-1"], &["--all", "--sender=x"]] {
                Commands::try_parse_from([&["queue", name][..], wrong].concat()).unwrap_err();
            }
        }
    }

    /// Regression test: `hold --all` counted recipients as held that are not held themselves, and `retry --all` of a held queue said
    /// that it tried.
    #[test]
    fn what_was_done_is_said_as_it_is() {
        let line = |done, is_all, is_all_held| result_line(done, 2, is_all, is_all_held);
        assert_eq!(line(TRIED, false, false), "2 recipients tried now");
        assert!(
            line(TRIED, true, true).starts_with("2 recipients due, and not tried: the whole queue is held")
        );
        assert_eq!(line(HELD, false, false), "2 recipients held");
        assert_eq!(line(HELD, true, true), "the queue is held; recipients that were to be tried: 2");
        assert!(line(RELEASED, true, false).starts_with("the queue is released; "));
        assert_eq!(line("dropped", true, true), "2 recipients dropped");
    }
}
