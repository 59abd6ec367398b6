//! `restante mail vault`

use std::{io, process::ExitCode};

use anyhow::bail;
use clap::Args;
use indicatif::DecimalBytes;
use restante_directory::EmailAddress;

use super::operate::{Destroyed, MailAnswer, MailOperation, ReachedMail};
use crate::{
    doors::mail::commands::{
        directory::{
            reach::{DirectoryFlags, Reached},
            show,
        },
        pages::{Item, Pages},
    },
    output::{printable, short},
};

/// Emails that are read per request.
const PAGE: usize = 256;
/// The most characters of a sender and of a subject in a line.
const FROM_CHARS: usize = 24;
const SUBJECT_CHARS: usize = 60;

#[derive(Args, Debug)]
pub(crate) struct VaultFlags {
    /// The address of the account, as anna@example.org
    address: EmailAddress,
    /// Print at most this many, those that were destroyed last [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

pub(super) async fn run(flags: &VaultFlags) -> anyhow::Result<ExitCode> {
    let reached = flags.flags.reach().await?;
    let done = list(flags, &reached).await;
    reached.close().await?;
    done.map(|()| ExitCode::SUCCESS)
}

/// Prints page by page, so that a long list is never in memory as a whole.
async fn list(flags: &VaultFlags, reached: &Reached) -> anyhow::Result<()> {
    let mail = ReachedMail::of(reached).await?;
    let mut pages = Pages::new(flags.flags.format);
    let mut left = flags.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let mut after = None;
    loop {
        let (address, limit) = (flags.address.clone(), left.min(PAGE));
        let answer = mail.operate(MailOperation::Vault { address, after, limit }).await?;
        let MailAnswer::Vault { items, next } = answer else {
            bail!("the server's answer is no page of a vault");
        };
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

impl Item for Destroyed {
    fn head() -> String {
        columns(["id", "destroyed", "size", "from", "subject"].map(str::to_owned))
    }

    fn line(&self) -> String {
        let destroyed = show::time(i64::try_from(self.destroyed).unwrap_or(i64::MAX));
        let size = DecimalBytes(self.size).to_string();
        let (from, subject) = (short(&self.from, FROM_CHARS), short(&self.subject, SUBJECT_CHARS));
        columns([self.id.to_string(), destroyed, size, from, subject])
    }
}

fn columns(cells: [String; 5]) -> String {
    let [id, destroyed, size, from, subject] = cells.map(|cell| printable(&cell));
    format!("{id:<8}  {destroyed:<20}  {size:>9}  {from:<FROM_CHARS$}  {subject}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::ReportFormat;

    fn destroyed(id: u64, subject: &str) -> Destroyed {
        let (destroyed, received) = (1_554_076_800, 1_554_076_000);
        let (from, subject) = ("Bob".to_owned(), subject.to_owned());
        Destroyed { id, email: 4, destroyed, received, size: 12_345, from, subject }
    }

    fn printed(format: ReportFormat, pages: &[&[Destroyed]]) -> String {
        let (mut printer, mut out) = (Pages::new(format), Vec::new());
        for page in pages {
            printer.print(page, &mut out).unwrap();
        }
        printer.end(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn pages_have_one_head() {
        let text = printed(ReportFormat::Text, &[&[destroyed(18, "a\u{1b}b")], &[destroyed(17, "")]]);
        assert_eq!(
            text,
            "id        destroyed                  size  from                      subject\n\
             18        2019-04-01T00:00:00Z   12.35 kB  Bob                       a b\n\
             17        2019-04-01T00:00:00Z   12.35 kB  Bob\n"
        );
        assert_eq!(printed(ReportFormat::Text, &[&[]]), "");
    }

    #[test]
    fn pages_are_one_array_of_json() {
        let text = printed(ReportFormat::Json, &[&[destroyed(18, "a")], &[destroyed(17, "b")]]);
        let read: Vec<Destroyed> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, [destroyed(18, "a"), destroyed(17, "b")]);
        assert_eq!(printed(ReportFormat::Json, &[&[]]), "[]\n");
    }
}
