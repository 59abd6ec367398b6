//! Store v3 queries: their names and values from a query string or a JSON body, and the answer.

use std::{borrow::Cow, fmt, sync::Arc};

use axum::{
    body::Body,
    extract::{RawQuery, State},
    http::Request,
    response::Response,
};
use bytes::Bytes;
use restante_archive::{Direction, HASHES_MAX, Query, Topics};
use restante_core::{Bloom, Cursor, MessageHash, Timestamp};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use tokio::time::{Instant, timeout_at};

use super::{
    App, body, json,
    path::{self, set_once},
    refusals,
    remote::{self, MayDial},
    reply,
    reply::Refusal,
};
use crate::{
    large,
    node::PeerAddress,
    store::{PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX},
    validate::Problem,
};

/// The names in a store query.
pub(crate) const STORE_NAMES: &[&str] = &[
    "peerAddr",
    "includeData",
    "pubsubTopic",
    "contentTopics",
    "startTime",
    "endTime",
    "hashes",
    "cursor",
    "ascending",
    "pageSize",
    "bloom",
];
/// The names in an export's query.
pub(crate) const EXPORT_NAMES: &[&str] =
    &["format", "pubsubTopic", "contentTopics", "startTime", "endTime", "ascending", "bloom"];

/// The longest query as a JSON body.
pub(crate) const QUERY_BYTES_MAX: usize = 4 << 20;
/// A body up to this size is read without a permit for long ones.
const SHORT_QUERY_BYTES: usize = 64 << 10;
/// The most content topics of one query: as many of usual length as fit into the longest body.
pub(crate) const CONTENT_TOPICS_MAX: usize = 100_000;

/// `GET /store/v3/messages`
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    may_dial: MayDial,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let asked = StoreQuery::from_query_string(query.as_deref().unwrap_or_default())?;
    answer(&app, asked, may_dial, app.deadline()).await
}

/// `POST /store/v3/messages`
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    may_dial: MayDial,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let body = request.into_body();
    // Held until the answer is complete, because a parsed query takes several times its body's memory.
    let _long = if body::is_at_most(&body, SHORT_QUERY_BYTES) || body::is_longer(&body, QUERY_BYTES_MAX) {
        None
    } else {
        Some(app.long_queries.acquire()?)
    };
    let json = body::read(body, QUERY_BYTES_MAX, deadline).await?;
    let asked = read_json(json).await?;
    answer(&app, asked, may_dial, deadline).await
}

/// Parses a query; a long one on the blocking pool, because parsing it would block a worker.
async fn read_json(json: Bytes) -> Result<StoreQuery, Refusal> {
    if json.len() <= SHORT_QUERY_BYTES {
        return StoreQuery::from_json(&json);
    }
    let read = tokio::task::spawn_blocking(move || StoreQuery::from_json(&json)).await;
    read.map_err(|_| Refusal::internal())?
}

async fn answer(
    app: &App,
    asked: StoreQuery,
    may_dial: MayDial,
    deadline: Instant,
) -> Result<Response, Refusal> {
    let own_id = app.rest.waku.peer_id();
    if let Some(peer) = asked.peer.as_ref().filter(|peer| Some(peer.peer) != own_id) {
        return remote::answer(app, peer, &asked, may_dial, deadline).await;
    }
    let message_bytes_max = if asked.include_data { app.rules().max_message_bytes.get() } else { 0 };
    let longest = json::longest_page(asked.query.limit, message_bytes_max);
    let memory = app.memory.acquire(longest, deadline).await?;
    let _permit = app.permits.acquire()?;
    let page = timeout_at(deadline, app.archive.query(&asked.query)).await;
    let page = page.map_err(|_| refusals::late())?;
    let page = page.map_err(|error| refusals::of_query(&error))?;
    let (include_data, direction) = (asked.include_data, asked.query.direction);
    let size = json::estimate_size(&page, include_data);
    let write = move || memory.hold(json::write_answer(&page, include_data, direction));
    let written = large::work(size, write).await;
    written.map(reply::json).map_err(|_| Refusal::internal())
}

/// A client's store query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreQuery {
    /// The node that should answer; `None` for this server itself.
    pub(crate) peer: Option<PeerAddress>,
    pub(crate) include_data: bool,
    pub(crate) query: Query,
}

impl StoreQuery {
    pub(crate) fn from_query_string(text: &str) -> Result<Self, Refusal> {
        Fields::from_query_string(STORE_NAMES, text)?.into_store_query()
    }

    pub(crate) fn from_json(json: &[u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new(STORE_NAMES);
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let read = deserializer.deserialize_map(FieldsVisitor(&mut fields));
        read.and_then(|()| deserializer.end()).map_err(|error| Refusal::json(&error))?;
        fields.into_store_query()
    }
}

/// The fields of a query as they are parsed, of all kinds of queries.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    names: &'static [&'static str],
    peer: Option<PeerAddress>,
    include_data: Option<bool>,
    pubsub_topic: Option<String>,
    content_topics: Vec<String>,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    hashes: Vec<MessageHash>,
    cursor: Option<MessageHash>,
    ascending: Option<bool>,
    page_size: Option<u64>,
    bloom: Option<Box<Bloom>>,
    format: Option<Format>,
}

/// The format of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// A JSON object per line.
    #[default]
    Ndjson,
    /// `WakuMessageKeyValue`s, each with a length prefix.
    Protobuf,
}

impl Fields {
    fn new(names: &'static [&'static str]) -> Self {
        Self { names, ..Self::default() }
    }

    /// Parses `application/x-www-form-urlencoded`. A name that is not among `names` is refused: a typo in it would select
    /// everything.
    pub(crate) fn from_query_string(names: &'static [&'static str], text: &str) -> Result<Self, Refusal> {
        let mut fields = Self::new(names);
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = path::decode_form(name, "").unwrap_or(Cow::Borrowed(name));
            if !fields.names.contains(&&*name) {
                return Err(Refusal::unknown(&name, names));
            }
            let value = path::decode_form(value, &name)?;
            fields.set(&name, &value).map_err(|problem| Refusal::field(&name, &problem))?;
        }
        Ok(fields)
    }

    /// Sets a field from its text. An empty text counts as an absent field, as in nwaku.
    fn set(&mut self, name: &str, text: &str) -> Result<(), Cow<'static, str>> {
        if text.is_empty() {
            return Ok(());
        }
        let set = match name {
            "startTime" => return set_time(&mut self.start, text),
            "endTime" => return set_time(&mut self.end, text),
            "peerAddr" => set_once(&mut self.peer, parse_peer(text)?),
            "includeData" => set_once(&mut self.include_data, parse_bool(text)?),
            "pubsubTopic" => set_once(&mut self.pubsub_topic, text.to_owned()),
            "contentTopics" | "hashes" => text.split(',').try_for_each(|item| self.add(name, item)),
            "cursor" => set_once(&mut self.cursor, parse_hash(text)?),
            "ascending" => set_once(&mut self.ascending, parse_bool(text)?),
            "pageSize" => set_once(&mut self.page_size, parse_page_size(text)?),
            "bloom" => set_once(&mut self.bloom, Box::new(parse_bloom(text)?)),
            "format" => set_once(&mut self.format, parse_format(text)?),
            _ => Ok(()),
        };
        set.map_err(Cow::Borrowed)
    }

    /// Adds an item to a field that is a list.
    fn add(&mut self, name: &str, item: &str) -> Result<(), &'static str> {
        let item = if name == "hashes" { item.trim() } else { item };
        match name {
            "contentTopics" | "hashes" if item.is_empty() => Ok(()),
            "contentTopics" if self.content_topics.len() == CONTENT_TOPICS_MAX => {
                Err("too many: the limit is 100000, a bloom filter takes any number")
            }
            "hashes" if self.hashes.len() == HASHES_MAX => Err("too many: the limit is 10000"),
            "contentTopics" => {
                self.content_topics.push(item.to_owned());
                Ok(())
            }
            "hashes" => {
                self.hashes.push(parse_hash(item)?);
                Ok(())
            }
            _ => Err("expected one value, not a list"),
        }
    }

    pub(crate) fn into_store_query(mut self) -> Result<StoreQuery, Refusal> {
        let peer = self.peer.take();
        let include_data = self.include_data.unwrap_or(false);
        let page_size = self.page_size.filter(|size| *size > 0).unwrap_or(PAGE_ROWS_DEFAULT);
        let cursor = self.cursor.map(Cursor::Message);
        let hashes = self.hashes.clone();
        let query = Query {
            hashes,
            cursor,
            limit: page_size.min(PAGE_ROWS_MAX) as usize,
            bodies: include_data,
            ..self.into_query()?
        };
        Ok(StoreQuery { peer, include_data, query })
    }

    pub(crate) fn format(&self) -> Format {
        self.format.unwrap_or_default()
    }

    /// The part that store queries and exports have in common. The end is exclusive, as in `13/WAKU2-STORE`.
    pub(crate) fn into_query(self) -> Result<Query, Refusal> {
        let topics = match (self.bloom, self.content_topics.is_empty()) {
            (None, true) => Topics::Any,
            (None, false) => Topics::List(self.content_topics),
            (Some(bloom), true) => Topics::Bloom(bloom),
            (Some(_), false) => {
                return Err(Refusal::field("bloom", "does not go together with contentTopics"));
            }
        };
        Ok(Query {
            channel: self.pubsub_topic,
            topics,
            start: self.start,
            end: self.end,
            direction: if self.ascending.unwrap_or(true) { Direction::Forward } else { Direction::Backward },
            ..Query::default()
        })
    }
}

/// Like nwaku, treats a time of 0 as absent.
fn set_time(field: &mut Option<Timestamp>, text: &str) -> Result<(), Cow<'static, str>> {
    let time = parse_time(text)?;
    if time.nanos() != 0 {
        set_once(field, time)?;
    }
    Ok(())
}

/// Parses nanoseconds since 1970. Numbers that are probably in another unit are refused.
pub(crate) fn parse_time(text: &str) -> Result<Timestamp, Cow<'static, str>> {
    let nanos = text.parse().map_err(|_| "expected nanoseconds since 1970 as a whole number")?;
    match Problem::of_unit(Timestamp(nanos)) {
        Some(problem) => Err(problem.to_string().into()),
        None => Ok(Timestamp(nanos)),
    }
}

fn parse_bool(text: &str) -> Result<bool, &'static str> {
    text.parse().map_err(|_| "expected true or false")
}

fn parse_hash(text: &str) -> Result<MessageHash, &'static str> {
    text.parse().map_err(|_| "expected 0x and 64 hex digits")
}

fn parse_peer(text: &str) -> Result<PeerAddress, &'static str> {
    text.parse().map_err(|_| "expected an address of at most 1024 bytes that ends with /p2p/<peer id>")
}

fn parse_page_size(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "expected a whole number; 0 is 20, the largest page is 100")
}

fn parse_bloom(text: &str) -> Result<Bloom, &'static str> {
    text.parse().map_err(|_| "expected 128 hex digits")
}

fn parse_format(text: &str) -> Result<Format, &'static str> {
    match text {
        "ndjson" => Ok(Format::Ndjson),
        "protobuf" => Ok(Format::Protobuf),
        _ => Err("expected ndjson or protobuf"),
    }
}

/// Parses the object of a JSON query into the fields.
struct FieldsVisitor<'f>(&'f mut Fields);

impl<'de> Visitor<'de> for FieldsVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a query as a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if !self.0.names.contains(&&*name) {
                return Err(A::Error::custom(Refusal::unknown(&name, self.0.names).text));
            }
            let value = ValueSeed { fields: &mut *self.0, name: &name, is_item: false };
            map.next_value_seed(value).map_err(|error| A::Error::custom(format_args!("{name}: {error}")))?;
        }
        Ok(())
    }
}

/// Parses the value of one field: numbers and booleans may be written as such or as texts, lists as arrays or with commas.
struct ValueSeed<'f> {
    fields: &'f mut Fields,
    name: &'f str,
    is_item: bool,
}

impl ValueSeed<'_> {
    fn take<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if self.is_item {
            self.fields.add(self.name, text).map_err(E::custom)
        } else {
            self.fields.set(self.name, text).map_err(E::custom)
        }
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a whole number, true or false, or an array of strings")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(()) // null: absent
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.take(text)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.take(if value { "true" } else { "false" })
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.take(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.take(&number.to_string())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        if self.is_item {
            return Err(A::Error::custom("expected a string, not an array in an array"));
        }
        loop {
            let item = ValueSeed { fields: &mut *self.fields, name: self.name, is_item: true };
            if items.next_element_seed(item)?.is_none() {
                return Ok(());
            }
        }
    }
}

/// The limits of every accepted query.
pub(crate) fn assert_bounded(asked: &StoreQuery) {
    let query = &asked.query;
    assert!((1..=PAGE_ROWS_MAX as usize).contains(&query.limit), "a page has 1 to 100 rows");
    assert!(query.hashes.len() <= HASHES_MAX, "hashes are bounded");
    assert_eq!(query.bodies, asked.include_data, "bodies are read only to be shown");
    if let Topics::List(topics) = &query.topics {
        assert!((1..=CONTENT_TOPICS_MAX).contains(&topics.len()), "content topics are bounded");
        assert!(topics.iter().all(|topic| !topic.is_empty()), "no content topic is empty");
    }
}
