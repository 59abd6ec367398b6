//! `restante query`

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use anyhow::Context;
use clap::{ArgGroup, Args};
use restante_archive::{Direction, EngineUrl, Opened, Query, Topics};
use restante_core::{Bloom, Cursor, MessageHash, Timestamp};
use serde::Deserialize;

use crate::{
    client::{RestClient, escape},
    clock,
    doors::waku::{archives, printer::Printer, transfer::json::JsonEntry},
    moment::{Moment, parse_moment},
    output::Format,
};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("topics").args(["content_topic", "bloom"]))]
pub(crate) struct QueryFlags {
    /// Ask this server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8645", conflicts_with = "archive")]
    rest: String,
    /// Read this archive instead, as log:<folder>; a server may be running on it
    #[arg(long, value_name = "URL")]
    archive: Option<EngineUrl>,
    #[command(flatten)]
    wanted: Wanted,
    /// Only messages with this hash; may be repeated
    #[arg(long, value_name = "HASH")]
    hash: Vec<MessageHash>,
    /// Only content topics in this filter: 128 hex digits; the server does not learn the exact topics
    #[arg(long, value_name = "HEX")]
    bloom: Option<Bloom>,
    /// From new to old
    #[arg(long)]
    backward: bool,
    /// Print at most this many messages
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// How to print [default: table on a terminal, else ndjson]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
}

/// Which messages, by topic and time: what a query and an export have in common.
#[derive(Args, Clone, Debug)]
pub(crate) struct Wanted {
    /// Only messages on this pubsub topic
    #[arg(long, value_name = "TOPIC")]
    pubsub_topic: Option<String>,
    /// Only messages with this content topic; may be repeated
    #[arg(long, value_name = "TOPIC")]
    content_topic: Vec<String>,
    /// Only messages at or after this: 2026-01-31T12:00:00Z, 2026-01-31, nanoseconds, now, -1h, -7d
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    start: Option<Moment>,
    /// Only messages before this
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    end: Option<Moment>,
}

impl Wanted {
    /// The query for these messages, from old to new, in pages of `limit`.
    pub(crate) fn to_query(&self, now: Timestamp, limit: usize) -> Query {
        let is_any = self.content_topic.is_empty();
        Query {
            channel: self.pubsub_topic.clone(),
            topics: if is_any { Topics::Any } else { Topics::List(self.content_topic.clone()) },
            start: self.start.map(|moment| moment.resolve(now)),
            end: self.end.map(|moment| moment.resolve(now)),
            limit,
            ..Query::default()
        }
    }

    /// Whether everything is wanted.
    pub(crate) fn is_everything(&self) -> bool {
        self.pubsub_topic.is_none()
            && self.content_topic.is_empty()
            && self.start.is_none()
            && self.end.is_none()
    }
}

/// Messages that are asked for at once. nwaku's servers give at most 100.
const PAGE_ROWS: usize = 100;

pub(crate) async fn run(flags: &QueryFlags) -> anyhow::Result<ExitCode> {
    let source = Source::open(flags).await?;
    let mut query = flags.to_query(clock::system().now());
    let out = io::BufWriter::new(io::stdout().lock());
    let mut printer = Printer::new(out, flags.format());
    loop {
        let left = flags.limit.map_or(u64::MAX, |limit| limit.saturating_sub(printer.printed()));
        if left == 0 {
            break;
        }
        query.limit = usize::try_from(left).unwrap_or(usize::MAX).min(PAGE_ROWS);
        let (mut entries, next) = source.page(&query).await?;
        if query.direction == Direction::Backward {
            entries.reverse(); // a page is ascending in both directions, and a person asked for the newest first
        }
        printer.page(&entries)?;
        query.cursor = next;
        if next.is_none() {
            break;
        }
    }
    printer.finish()?;
    Ok(ExitCode::SUCCESS)
}

impl QueryFlags {
    fn to_query(&self, now: Timestamp) -> Query {
        let mut query = self.wanted.to_query(now, PAGE_ROWS);
        if let Some(filter) = self.bloom {
            query.topics = Topics::Bloom(Box::new(filter));
        }
        query.hashes.clone_from(&self.hash);
        query.direction = if self.backward { Direction::Backward } else { Direction::Forward };
        query
    }

    fn format(&self) -> Format {
        let usual = if io::stdout().is_terminal() { Format::Table } else { Format::Ndjson };
        self.format.unwrap_or(usual)
    }
}

/// Who is asked.
enum Source {
    Rest(RestClient),
    Archive(Opened),
}

impl Source {
    async fn open(flags: &QueryFlags) -> anyhow::Result<Self> {
        match &flags.archive {
            Some(url) => Ok(Self::Archive(archives::open_for_reading(url.clone()).await?)),
            None => Ok(Self::Rest(RestClient::new(&flags.rest)?)),
        }
    }

    /// One page, ascending, and where the next one begins.
    async fn page(&self, query: &Query) -> anyhow::Result<(Vec<JsonEntry>, Option<Cursor>)> {
        match self {
            Self::Archive(opened) => page_of_archive(opened, query).await,
            Self::Rest(client) => page_of_server(client, query).await,
        }
    }
}

async fn page_of_archive(opened: &Opened, query: &Query) -> anyhow::Result<(Vec<JsonEntry>, Option<Cursor>)> {
    let page = opened.archive.query(query).await?;
    let entries = page.rows().map(|row| JsonEntry::of_row(&row)).collect();
    Ok((entries, page.next))
}

/// The answer of `GET /store/v3/messages`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoreAnswer {
    #[serde(default)]
    messages: Vec<JsonEntry>,
    pagination_cursor: Option<String>,
}

async fn page_of_server(
    client: &RestClient,
    query: &Query,
) -> anyhow::Result<(Vec<JsonEntry>, Option<Cursor>)> {
    let body = client.get(&store_path(query)).await?;
    let answer: StoreAnswer =
        serde_json::from_slice(&body).context("the server's answer is no store answer")?;
    let cursor = answer.pagination_cursor.filter(|cursor| !cursor.is_empty());
    let next =
        cursor.map(|hash| hash.parse()).transpose().context("the server's cursor is no message hash")?;
    Ok((answer.messages, next.map(Cursor::Message)))
}

/// The path of `GET /store/v3/messages` with a query, in nwaku's names; `bloom` is ours.
fn store_path(query: &Query) -> String {
    let mut parts = vec!["includeData=true".to_owned()];
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            parts.push(format!("{name}={}", escape(&value)));
        }
    };
    let joined = |texts: Vec<String>| if texts.is_empty() { None } else { Some(texts.join(",")) };
    add("pubsubTopic", query.channel.clone());
    match &query.topics {
        Topics::Any => {}
        Topics::List(topics) => add("contentTopics", joined(topics.clone())),
        Topics::Bloom(filter) => add("bloom", Some(filter.to_string())),
    }
    add("startTime", query.start.map(|start| start.nanos().to_string()));
    add("endTime", query.end.map(|end| end.nanos().to_string()));
    add("hashes", joined(query.hashes.iter().map(MessageHash::to_string).collect()));
    let cursor = match query.cursor {
        Some(Cursor::Message(hash)) => Some(hash),
        Some(Cursor::At(key)) => Some(key.message_hash),
        None => None,
    };
    add("cursor", cursor.map(|hash| hash.to_string()));
    add("ascending", Some((query.direction == Direction::Forward).to_string()));
    add("pageSize", Some(query.limit.to_string()));
    format!("/store/v3/messages?{}", parts.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_written_in_nwakus_names() {
        let hash = MessageHash([1; 32]);
        let query = Query {
            channel: Some("/waku/2/rs/1/0".into()),
            topics: Topics::List(vec!["/a/1/b/c".into(), "/d/1/e/f".into()]),
            start: Some(Timestamp(5)),
            end: Some(Timestamp(6)),
            hashes: vec![hash],
            cursor: Some(Cursor::Message(hash)),
            direction: Direction::Backward,
            limit: 7,
            bodies: true,
        };
        let hex = "01".repeat(32);
        assert_eq!(
            store_path(&query),
            format!(
                "/store/v3/messages?includeData=true&pubsubTopic=%2Fwaku%2F2%2Frs%2F1%2F0\
                 &contentTopics=%2Fa%2F1%2Fb%2Fc%2C%2Fd%2F1%2Fe%2Ff&startTime=5&endTime=6&hashes=0x{hex}&cursor=0x{hex}\
                 &ascending=false&pageSize=7"
            )
        );
    }
}
