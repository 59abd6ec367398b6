//! `restante sessions list`

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write},
    num::NonZero,
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use restante_core::Timestamp;
use restante_sessions::SessionId;
use serde_json::Value;

use super::{SessionPage, ShownSession, count, sessions_path};
use crate::{
    client::{OperatorFlags, RestClient},
    clock,
    output::{Format, printable, short, write_json},
};

#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    #[command(flatten)]
    operator: OperatorFlags,
    /// Only sessions of this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Only sessions with this resource
    #[arg(long, value_name = "RESOURCE")]
    resource: Option<String>,
    /// Only sessions of this door, as rest_live or waku_filter
    #[arg(long, value_name = "DOOR")]
    door: Option<String>,
    /// Only sessions of this server, by its name or number
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Print at most this many sessions
    #[arg(long, value_name = "N")]
    limit: Option<NonZero<u64>>,
    /// How to print [default: table on a terminal, else ndjson]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
}

/// Sessions per request: the maximum of a server, because it walks through its table for each page.
const PAGE_SESSIONS: u64 = 10_000;
/// The most characters of a user that a table shows, and of other columns: a peer id has 53.
const USER_WIDTH_MAX: usize = 53;
const COLUMN_WIDTH_MAX: usize = 24;
/// The most characters of a session's info that a table shows.
const INFO_CHARS_MAX: usize = 80;

pub(crate) async fn run(flags: &ListFlags) -> anyhow::Result<ExitCode> {
    let client = flags.operator.client()?;
    let usual = if io::stdout().is_terminal() { Format::Table } else { Format::Ndjson };
    let format = flags.format.unwrap_or(usual);
    let names = if format == Format::Table { node_names(&client).await } else { BTreeMap::new() };
    let out = io::BufWriter::new(io::stdout().lock());
    let mut printer =
        Printer { out, format, names, now: clock::system().now(), widths: None, is_begun: false };
    let mut left = flags.limit.map_or(u64::MAX, NonZero::get);
    let (mut cursor, mut is_complete) = (None, true);
    loop {
        let page = flags.page(&client, left.min(PAGE_SESSIONS), cursor.as_deref()).await?;
        printer.page(&page.sessions)?;
        is_complete &= page.complete;
        left = left.saturating_sub(page.sessions.len() as u64);
        cursor = page.next;
        if left == 0 || cursor.is_none() {
            break;
        }
    }
    printer.finish()?;
    if !is_complete {
        eprintln!("restante: other servers are out of reach: sessions of theirs may be missing");
    }
    Ok(ExitCode::SUCCESS)
}

impl ListFlags {
    async fn page(
        &self,
        client: &RestClient,
        limit: u64,
        cursor: Option<&str>,
    ) -> anyhow::Result<SessionPage> {
        let path = sessions_path(&[
            ("user", self.user.as_deref()),
            ("resource", self.resource.as_deref()),
            ("door", self.door.as_deref()),
            ("node", self.node.as_deref()),
            ("limit", Some(&limit.to_string())),
            ("cursor", cursor),
        ]);
        let body = client.get(&path).await?;
        serde_json::from_slice(&body).context("the server's answer is no list of sessions")
    }
}

/// The names of the servers. Without them a table shows their numbers.
async fn node_names(client: &RestClient) -> BTreeMap<u32, String> {
    let Ok(counts) = count::ask(client).await else { return BTreeMap::new() };
    counts.by_node.into_iter().filter_map(|node| Some((node.node, node.name?))).collect()
}

/// Prints sessions page by page.
struct Printer<W> {
    out: W,
    format: Format,
    names: BTreeMap<u32, String>,
    now: Timestamp,
    /// Set by the first page, since later pages are not known yet.
    widths: Option<Widths>,
    is_begun: bool,
}

#[derive(Clone, Copy)]
struct Widths {
    user: usize,
    resource: usize,
    node: usize,
}

impl<W: Write> Printer<W> {
    fn page(&mut self, sessions: &[ShownSession]) -> io::Result<()> {
        for session in sessions {
            match self.format {
                Format::Table => self.row(session, sessions)?,
                Format::Ndjson => {
                    write_json(&mut self.out, session)?;
                    self.out.write_all(b"\n")?;
                }
                Format::Json => {
                    self.out.write_all(if self.is_begun { b",\n" } else { b"[\n" })?;
                    write_json(&mut self.out, session)?;
                }
            }
            self.is_begun = true;
        }
        self.out.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.format == Format::Json {
            self.out.write_all(if self.is_begun { b"\n]\n" } else { b"[]\n" })?;
        }
        self.out.flush()
    }

    fn row(&mut self, session: &ShownSession, page: &[ShownSession]) -> io::Result<()> {
        let widths = match self.widths {
            Some(widths) => widths,
            None => self.head(page)?,
        };
        let Widths { user, resource, node } = widths;
        let cell = |text: &str, width| short(&printable(text), width);
        let priority = session.priority.map_or("-".to_owned(), |priority| priority.to_string());
        writeln!(
            self.out,
            "{:<32}  {:<user$}  {:<resource$}  {:<node$}  {:>4}  {priority:>4}  {}",
            cell(&session.id, 32),
            cell(&session.user, user),
            cell(&session.resource, resource),
            cell(&self.node_name(session), node),
            age(&session.id, self.now),
            short(&show_info(session), INFO_CHARS_MAX),
        )
    }

    fn head(&mut self, page: &[ShownSession]) -> io::Result<Widths> {
        let widest = |head: &str, max: usize, text: &dyn Fn(&ShownSession) -> String| {
            let width = page.iter().map(|session| text(session).chars().count()).max().unwrap_or(0);
            width.clamp(head.len(), max)
        };
        let widths = Widths {
            user: widest("user", USER_WIDTH_MAX, &|session| session.user.clone()),
            resource: widest("resource", COLUMN_WIDTH_MAX, &|session| session.resource.clone()),
            node: widest("node", COLUMN_WIDTH_MAX, &|session| self.node_name(session)),
        };
        self.widths = Some(widths);
        let Widths { user, resource, node } = widths;
        writeln!(
            self.out,
            "{:<32}  {:<user$}  {:<resource$}  {:<node$}  {:>4}  {:>4}  info",
            "id", "user", "resource", "node", "age", "prio"
        )?;
        Ok(widths)
    }

    fn node_name(&self, session: &ShownSession) -> String {
        self.names.get(&session.node).cloned().unwrap_or_else(|| session.node.to_string())
    }
}

/// How long ago the session was opened, computed from its id, in the largest unit that fits.
fn age(id: &str, now: Timestamp) -> String {
    let Ok(id) = id.parse::<SessionId>() else { return "?".to_owned() };
    let nanos = now.nanos().saturating_sub(id.opened_at().nanos());
    let seconds = nanos.max(0) / restante_core::NANOS_PER_SECOND;
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The info of a session, on one line.
fn show_info(session: &ShownSession) -> String {
    let shown = session.info.iter().map(|(key, value)| match value {
        Value::String(text) => format!("{key}={text}"),
        other => format!("{key}={other}"),
    });
    printable(&shown.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(user: &str) -> ShownSession {
        let id = SessionId { opened_us: 1_000_000_000_000, node: restante_sessions::NodeId(7), user_hash: 0 };
        serde_json::from_value(serde_json::json!({
            "id": id.to_string(), "user": user, "resource": "live", "priority": null, "node": 7,
            "openedAt": id.opened_at().to_string(), "info": {"door": "rest_live", "topics": 3},
        }))
        .unwrap()
    }

    fn print(format: Format, pages: &[&[ShownSession]]) -> String {
        let names = BTreeMap::from([(7, "paris".to_owned())]);
        let now = Timestamp::from_seconds(1_000_000 + 3 * 3_600);
        let mut printer = Printer { out: Vec::new(), format, names, now, widths: None, is_begun: false };
        for page in pages {
            printer.page(page).unwrap();
        }
        printer.finish().unwrap();
        String::from_utf8(printer.out).unwrap()
    }

    #[test]
    fn a_table_has_one_head_and_a_line_for_each() {
        let table = print(Format::Table, &[&[session("juliet@example.com"), session("a")], &[session("b")]]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[0].starts_with("id  ") && lines[0].ends_with("prio  info"), "{table}");
        let expected = "  juliet@example.com  live      paris    3h     -  door=rest_live topics=3";
        assert!(lines[1].ends_with(expected), "{table}");
    }

    #[test]
    fn nothing_in_a_session_drives_the_terminal() {
        let mut hostile = session("\u{1b}[2Jme");
        hostile.info.insert("reads".into(), "\u{1b}]0;x\u{7}".into());
        let table = print(Format::Table, &[&[hostile]]);
        assert!(!table.contains('\u{1b}') && !table.contains('\u{7}'), "{table:?}");
    }

    #[test]
    fn json_is_one_array_and_ndjson_one_line_each() {
        for pages in [&[][..], &[&[][..]], &[&[session("a"), session("b")], &[session("c")]]] {
            let count = pages.iter().map(|page| page.len()).sum::<usize>();
            let array: Vec<ShownSession> = serde_json::from_str(&print(Format::Json, pages)).unwrap();
            assert_eq!(array.len(), count);
            assert_eq!(print(Format::Ndjson, pages).lines().count(), count);
        }
    }

    #[test]
    fn ages_are_short() {
        let id = session("a").id;
        let age_after = |seconds: i64| age(&id, Timestamp::from_seconds(1_000_000 + seconds));
        let ages = [0, 119, 120, 7_199, 7_200, 172_800, 1_000_000_000, -5].map(age_after);
        assert_eq!(ages, ["0s", "119s", "2m", "119m", "2h", "2d", "11574d", "0s"]);
        assert_eq!(age("x", Timestamp::from_seconds(0)), "?");
    }
}
