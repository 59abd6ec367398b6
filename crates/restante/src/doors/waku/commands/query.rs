//! `restante query`

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use anyhow::Context;
use clap::{ArgGroup, Args, builder::NonEmptyStringValueParser};
use restante_archive::{Direction, EngineUrl, Metrics, Opened, Query, Topics};
use restante_core::{Bloom, Cursor, MessageHash, Timestamp};
use restante_waku::validate::Problem;
use serde::{Deserialize, Serialize};

use crate::{
    client::{RestClient, escape},
    clock,
    doors::waku::{archives, printer::Printer, transfer::json::JsonEntry},
    exit::{self, UsageError},
    moment::{Moment, parse_moment},
    output::{Format, left_out},
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
    #[arg(long, value_name = "TOPIC", value_parser = NonEmptyStringValueParser::new())]
    pubsub_topic: Option<String>,
    /// Only messages with this content topic; may be repeated
    #[arg(long, value_name = "TOPIC", value_parser = NonEmptyStringValueParser::new())]
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

    /// Whether there is no restriction.
    pub(crate) fn is_everything(&self) -> bool {
        self.pubsub_topic.is_none()
            && self.content_topic.is_empty()
            && self.start.is_none()
            && self.end.is_none()
    }
}

/// Messages per request. nwaku's servers return at most 100.
const PAGE_ROWS: usize = 100;

pub(crate) async fn run(flags: &QueryFlags) -> anyhow::Result<ExitCode> {
    let mut source = Source::open(flags).await?;
    let mut query = flags.to_query(clock::system().now());
    if flags.archive.is_none() {
        check_times(&query)?;
    }
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
            entries.reverse(); // a page is ascending in both directions, but the newest were requested first
        }
        printer.page(&entries)?;
        query.cursor = next;
        if next.is_none() {
            break;
        }
    }
    printer.finish()?;
    if let (damaged @ 1.., Some(url)) = (source.damaged_records(), &flags.archive) {
        eprintln!("{}", left_out(damaged, format_args!("archive check --archive {url}")));
        return Ok(exit::found_wrong());
    }
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

/// The source of the messages.
enum Source {
    Rest(RestClient),
    Archive(ReadArchive),
}

/// An archive that is read without a server.
struct ReadArchive {
    opened: Opened,
    metrics: Metrics,
    /// Messages that were damaged after the archive had verified them.
    unreadable: u64,
}

impl Source {
    async fn open(flags: &QueryFlags) -> anyhow::Result<Self> {
        match &flags.archive {
            Some(url) => {
                let metrics = Metrics::default();
                let opened = archives::open_for_reading(url.clone(), metrics.clone()).await?;
                Ok(Self::Archive(ReadArchive { opened, metrics, unreadable: 0 }))
            }
            None => Ok(Self::Rest(RestClient::new(&flags.rest)?)),
        }
    }

    /// One page, ascending, and where the next one begins.
    async fn page(&mut self, query: &Query) -> anyhow::Result<(Vec<JsonEntry>, Option<Cursor>)> {
        match self {
            Self::Archive(archive) => archive.page(query).await,
            Self::Rest(client) => page_of_server(client, query).await,
        }
    }

    /// The damaged records that were left out so far; a server does not say how many it leaves out.
    fn damaged_records(&self) -> u64 {
        match self {
            Self::Archive(archive) => archive.unreadable + archive.metrics.damaged_records(),
            Self::Rest(_) => 0,
        }
    }
}

impl ReadArchive {
    async fn page(&mut self, query: &Query) -> anyhow::Result<(Vec<JsonEntry>, Option<Cursor>)> {
        let page = self.opened.archive.query(query).await?;
        let entries: Vec<_> = page.rows().map(|row| JsonEntry::of_row(&row).with_version()).collect();
        self.unreadable += page.len() as u64 - entries.len() as u64;
        Ok((entries, page.next))
    }
}

/// The response of `/store/v3/messages`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoreAnswer {
    #[serde(default)]
    messages: Vec<JsonEntry>,
    pagination_cursor: Option<String>,
}

const STORE_PATH: &str = "/store/v3/messages";
/// The longest path with a query: request lines of 8,000 bytes are supported everywhere (RFC 9112 section 3).
const PATH_BYTES_MAX: usize = 7_500;

async fn page_of_server(
    client: &RestClient,
    query: &Query,
) -> anyhow::Result<(Vec<JsonEntry>, Option<Cursor>)> {
    let fields = StoreFields::new(query);
    // nwaku's servers support only GET, and not every query can be written as a GET.
    let body = match fields.to_path() {
        Some(path) => client.get(&path).await?,
        None => client.post(STORE_PATH, serde_json::to_vec(&fields)?).await?,
    };
    let answer: StoreAnswer =
        serde_json::from_slice(&body).context("the server's answer is no store answer")?;
    let cursor = answer.pagination_cursor.filter(|cursor| !cursor.is_empty());
    let next =
        cursor.map(|hash| hash.parse()).transpose().context("the server's cursor is no message hash")?;
    Ok((answer.messages, next.map(Cursor::Message)))
}

/// Fails when a server would misinterpret a time of the query: a time of 0 means none, and others may be interpreted as seconds,
/// milliseconds or microseconds.
fn check_times(query: &Query) -> Result<(), UsageError> {
    let end_is_lost = query.end.is_some_and(|end| end.nanos() == 0);
    let is_other_unit = |time: Option<Timestamp>| time.is_some_and(|time| Problem::of_unit(time).is_some());
    let (flag, time) = if end_is_lost || is_other_unit(query.end) {
        ("--end", query.end)
    } else if is_other_unit(query.start) {
        ("--start", query.start)
    } else {
        return Ok(());
    };
    let time = time.unwrap_or_default();
    Err(UsageError(format!("{flag} {time} can't be asked of a server: name an archive by --archive")))
}

/// A store query in nwaku's names; `bloom` is ours.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct StoreFields {
    include_data: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pubsub_topic: Option<String>,
    content_topics: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bloom: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<i64>,
    hashes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
    ascending: bool,
    page_size: usize,
}

impl StoreFields {
    fn new(query: &Query) -> Self {
        let (mut content_topics, mut bloom) = (Vec::new(), None);
        match &query.topics {
            Topics::Any => {}
            Topics::List(topics) => content_topics.clone_from(topics),
            Topics::Bloom(filter) => bloom = Some(filter.to_string()),
        }
        let cursor = match query.cursor {
            Some(Cursor::Message(hash)) => Some(hash),
            Some(Cursor::At(key)) => Some(key.message_hash),
            None => None,
        };
        Self {
            include_data: true,
            pubsub_topic: query.channel.clone(),
            content_topics,
            bloom,
            start_time: query.start.map(Timestamp::nanos),
            end_time: query.end.map(Timestamp::nanos),
            hashes: query.hashes.iter().map(MessageHash::to_string).collect(),
            cursor: cursor.map(|hash| hash.to_string()),
            ascending: query.direction == Direction::Forward,
            page_size: query.limit,
        }
    }

    /// The path of a GET; `None` when it would be too long, or a topic contains a comma, the separator of topics.
    fn to_path(&self) -> Option<String> {
        if self.content_topics.iter().any(|topic| topic.contains(',')) {
            return None;
        }
        let joined = |texts: &[String]| if texts.is_empty() { None } else { Some(texts.join(",")) };
        let mut path = format!("{STORE_PATH}?includeData={}", self.include_data);
        for (name, value) in [
            ("pubsubTopic", self.pubsub_topic.clone()),
            ("contentTopics", joined(&self.content_topics)),
            ("bloom", self.bloom.clone()),
            ("startTime", self.start_time.map(|nanos| nanos.to_string())),
            ("endTime", self.end_time.map(|nanos| nanos.to_string())),
            ("hashes", joined(&self.hashes)),
            ("cursor", self.cursor.clone()),
            ("ascending", Some(self.ascending.to_string())),
            ("pageSize", Some(self.page_size.to_string())),
        ] {
            if let Some(value) = value {
                path = format!("{path}&{name}={}", escape(&value));
            }
        }
        (path.len() <= PATH_BYTES_MAX).then_some(path)
    }
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
            StoreFields::new(&query).to_path().unwrap(),
            format!(
                "/store/v3/messages?includeData=true&pubsubTopic=%2Fwaku%2F2%2Frs%2F1%2F0\
                 &contentTopics=%2Fa%2F1%2Fb%2Fc%2C%2Fd%2F1%2Fe%2Ff&startTime=5&endTime=6&hashes=0x{hex}&cursor=0x{hex}\
                 &ascending=false&pageSize=7"
            )
        );
    }

    /// Regression test: a topic with a comma found nothing, and a thousand hashes were too long for a URL.
    #[test]
    fn what_a_path_can_not_say_is_sent_as_a_body() {
        let with_topics = |topics: Vec<String>| Query { topics: Topics::List(topics), ..Query::default() };
        let comma = with_topics(vec!["/a/1/b,c/d".into()]);
        let many = with_topics((0..3_000).map(|number| format!("/a/1/{number}/c")).collect());
        let hashes = Query { hashes: vec![MessageHash([1; 32]); 1_000], ..Query::default() };
        for query in [&comma, &many, &hashes] {
            assert_eq!(StoreFields::new(query).to_path(), None);
        }
        let json = serde_json::to_value(StoreFields::new(&comma)).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "includeData": true, "contentTopics": ["/a/1/b,c/d"], "hashes": [], "ascending": true,
                "pageSize": comma.limit,
            })
        );
    }

    /// A server that is queried for messages from before 1970 returns everything.
    #[test]
    fn times_that_a_server_takes_for_others_are_refused() {
        let check = |start, end| {
            let of = |nanos: Option<i64>| nanos.map(Timestamp);
            check_times(&Query { start: of(start), end: of(end), ..Query::default() })
        };
        let day = 86_400_000_000_000;
        for (start, end, flag) in
            [(None, Some(0), "--end"), (Some(0), Some(day), "--end"), (Some(day), None, "--start")]
        {
            let error = check(start, end).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{flag} 1970-01-0")), "{error}");
        }
        for (start, end) in [(None, None), (Some(0), Some(1_700_000_000_000_000_000)), (Some(5), Some(6))] {
            check(start, end).unwrap();
        }
    }
}
