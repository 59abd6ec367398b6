//! A client's request for a live stream: which messages, and from where on.

use std::{borrow::Cow, sync::Arc};

use axum::http::{HeaderMap, Uri};
use restante_archive::{Query, Row, Topics};
use restante_core::{Cursor, Key, MessageHash, Timestamp};
use restante_sessions::hub::{Interest, TopicMatch};
use restante_waku_wire::CONTENT_TOPIC_BYTES_MAX;

use super::super::{
    path::{self, decode_form, set_once},
    reply::{Refusal, cut},
    store::parse_time,
};
use crate::validate::{Rules, check_pubsub_topic};

/// The query names of a live stream.
pub(crate) const LIVE_NAMES: &[&str] =
    &["pubsubTopic", "contentTopics", "contentTopicPrefix", "cursor", "start"];
/// The most content topics and prefixes of one stream: a client that needs more needs a prefix.
pub(crate) const LIVE_TOPICS_MAX: usize = 1_000;
/// The longest description of a stream's topics for operators, in characters.
const READS_CHARS_MAX: usize = 120;
/// The header in which a browser's `EventSource` sends the cursor at which its connection broke.
const LAST_EVENT_ID: &str = "last-event-id";

/// A requested stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) wants: Wants,
    pub(super) from: From,
}

/// Where a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// What arrives from now on.
    Now,
    /// What follows a key.
    Behind(Key),
    /// What follows a message.
    Message(MessageHash),
}

/// Which messages a stream reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wants {
    pubsub_topic: Option<Arc<str>>,
    content_topics: Vec<Arc<str>>,
    prefixes: Vec<Arc<str>>,
}

impl Asked {
    /// Parses a request. `pubsubTopic` in the query is for the path that does not contain it.
    pub(super) fn read(
        uri: &Uri,
        headers: &HeaderMap,
        rules: &Rules,
        is_topic_in_path: bool,
    ) -> Result<Self, Refusal> {
        let mut fields = Fields::default();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            fields.read(pair)?;
        }
        if let Some(id) = headers.get(LAST_EVENT_ID).filter(|id| !id.is_empty()) {
            let id = id.to_str().ok().and_then(parse_cursor);
            fields.cursor = Some(id.ok_or_else(|| Refusal::field("Last-Event-ID", NO_CURSOR))?);
        }
        if is_topic_in_path {
            if fields.pubsub_topic.is_some() {
                return Err(Refusal::field("pubsubTopic", "is given twice: it is in the path"));
            }
            fields.pubsub_topic = Some(path::last_but_one(uri, "pubsubTopic")?.as_ref().into());
        }
        if let Some(topic) = &fields.pubsub_topic {
            check_pubsub_topic(topic, rules)?;
        }
        Ok(fields.into_asked())
    }
}

/// The fields of a request as they are parsed.
#[derive(Default)]
struct Fields {
    pubsub_topic: Option<Arc<str>>,
    content_topics: Vec<Arc<str>>,
    prefixes: Vec<Arc<str>>,
    cursor: Option<From>,
    start: Option<Timestamp>,
}

const NO_CURSOR: &str = "expected an id of a live stream, or 0x and 64 hex digits";

impl Fields {
    /// Parses one `name=value`. Unknown names are refused, as in the other routes; empty values are ignored.
    fn read(&mut self, pair: &str) -> Result<(), Refusal> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !LIVE_NAMES.contains(&name) {
            return Err(Refusal::unknown(name, LIVE_NAMES));
        }
        let value = decode_form(value, name)?;
        if value.is_empty() {
            return Ok(());
        }
        self.set(name, &value).map_err(|problem| Refusal::field(name, &problem))
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Cow<'static, str>> {
        let set = match name {
            "pubsubTopic" => set_once(&mut self.pubsub_topic, value.into()),
            "contentTopics" => self.add(value, |fields| &mut fields.content_topics),
            "contentTopicPrefix" => self.add(value, |fields| &mut fields.prefixes),
            "cursor" => set_once(&mut self.cursor, parse_cursor(value).ok_or(NO_CURSOR)?),
            "start" => set_once(&mut self.start, parse_time(value)?),
            _ => Ok(()),
        };
        set.map_err(Cow::Borrowed)
    }

    fn add(&mut self, list: &str, of: fn(&mut Self) -> &mut Vec<Arc<str>>) -> Result<(), &'static str> {
        for topic in list.split(',').filter(|topic| !topic.is_empty()) {
            if topic.len() > CONTENT_TOPIC_BYTES_MAX {
                return Err("is too long: no content topic has more than 4096 bytes");
            }
            if self.content_topics.len() + self.prefixes.len() == LIVE_TOPICS_MAX {
                return Err("too many: a stream has at most 1000 content topics and prefixes");
            }
            of(self).push(topic.into());
        }
        Ok(())
    }

    fn into_asked(mut self) -> Asked {
        for list in [&mut self.content_topics, &mut self.prefixes] {
            list.sort_unstable();
            list.dedup();
        }
        let (pubsub_topic, content_topics, prefixes) =
            (self.pubsub_topic, self.content_topics, self.prefixes);
        let from = self.cursor.or(self.start.map(since)).unwrap_or(From::Now);
        Asked { wants: Wants { pubsub_topic, content_topics, prefixes }, from }
    }
}

/// Everything at or after a time: what follows the last key before it.
fn since(start: Timestamp) -> From {
    match start.nanos().checked_sub(1) {
        Some(before) => From::Behind(Key { timestamp: Timestamp(before), message_hash: MessageHash::MAX }),
        None => From::Behind(Key { timestamp: Timestamp::MIN, message_hash: MessageHash::MIN }),
    }
}

/// Writes a key as a stream's cursor: nanoseconds since 1970 and, after a hyphen, the message's hash without `0x`; a key before
/// all messages of its time has no hash.
pub(super) fn write_cursor(key: Key, out: &mut Vec<u8>) {
    out.extend_from_slice(key.timestamp.nanos().to_string().as_bytes());
    if key.message_hash != MessageHash::MIN {
        out.push(b'-');
        out.extend(key.message_hash.to_string().bytes().skip(2));
    }
}

fn parse_cursor(text: &str) -> Option<From> {
    if let Ok(nanos) = text.parse() {
        return Some(From::Behind(Key { timestamp: Timestamp(nanos), message_hash: MessageHash::MIN }));
    }
    let Some((nanos, hash)) = text.rsplit_once('-') else { return text.parse().ok().map(From::Message) };
    let (timestamp, message_hash) = (Timestamp(nanos.parse().ok()?), hash.parse().ok()?);
    Some(From::Behind(Key { timestamp, message_hash }))
}

impl Wants {
    /// The interests for the hub.
    pub(super) fn interests(&self) -> Vec<Interest> {
        let of = |topics| Interest { channel: self.pubsub_topic.clone(), topics };
        if self.takes_all_topics() {
            return vec![of(TopicMatch::All)];
        }
        let exact = self.content_topics.iter().cloned().map(TopicMatch::Exact);
        let prefixes = self.prefixes.iter().cloned().map(TopicMatch::Prefix);
        exact.chain(prefixes).map(of).collect()
    }

    /// The query for the archive: a superset of the wanted messages if there are prefixes, which archives don't support.
    pub(super) fn query(&self, behind: Key, end: Option<Timestamp>, limit: usize) -> Query {
        let topics = match self.takes_all_topics() || !self.prefixes.is_empty() {
            true => Topics::Any,
            false => Topics::List(self.content_topics.iter().map(ToString::to_string).collect()),
        };
        let channel = self.pubsub_topic.as_ref().map(ToString::to_string);
        let cursor = Some(Cursor::At(behind));
        Query { channel, topics, end, cursor, limit, ..Query::default() }
    }

    /// Whether a row that the archive returned is wanted.
    pub(super) fn has(&self, row: &Row<'_>) -> bool {
        self.takes_all_topics()
            || self.content_topics.binary_search_by(|topic| (**topic).cmp(row.topic)).is_ok()
            || self.prefixes.iter().any(|prefix| row.topic.starts_with(&**prefix))
    }

    fn takes_all_topics(&self) -> bool {
        self.content_topics.is_empty() && self.prefixes.is_empty()
    }

    /// The number of topics and prefixes.
    pub(super) fn len(&self) -> usize {
        self.content_topics.len() + self.prefixes.len()
    }

    /// A description for operators.
    pub(super) fn describe(&self) -> String {
        let exact = self.content_topics.iter().map(ToString::to_string);
        let prefixes = self.prefixes.iter().map(|prefix| format!("{prefix}*"));
        let topics = exact.chain(prefixes).take(3).collect::<Vec<_>>().join(", ");
        let topics = if topics.is_empty() { "everything".to_owned() } else { topics };
        let more = if self.len() > 3 { ", ..." } else { "" };
        let place = self.pubsub_topic.as_ref().map(|topic| format!(" on {topic}")).unwrap_or_default();
        cut(&format!("{topics}{more}{place}"), READS_CHARS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBSUB: &str = "/waku/2/rs/16/32";

    fn ask(uri: &str, last_event_id: Option<&'static str>) -> Result<Asked, String> {
        let mut headers = HeaderMap::new();
        if let Some(id) = last_event_id {
            headers.insert(LAST_EVENT_ID, id.parse().unwrap());
        }
        let uri: Uri = uri.parse().unwrap();
        let is_in_path = uri.path() != "/live";
        Asked::read(&uri, &headers, &Rules::default(), is_in_path).map_err(|refusal| refusal.text.into())
    }

    fn behind(nanos: i64, hash: [u8; 32]) -> From {
        From::Behind(Key { timestamp: Timestamp(nanos), message_hash: MessageHash(hash) })
    }

    #[test]
    fn a_stream_of_everything_begins_now() {
        let asked = ask("/live?start=&contentTopics=,", None).unwrap();
        assert_eq!(asked.from, From::Now);
        assert_eq!(asked.wants.interests(), [Interest { channel: None, topics: TopicMatch::All }]);
        assert_eq!(asked.wants.describe(), "everything");
    }

    #[test]
    fn topics_and_prefixes_are_wanted_together_each_once() {
        let asked = ask(
            "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32/live?contentTopics=%2Fb%2F1,/a/1,/b/1&contentTopicPrefix=/c/",
            None,
        );
        let wants = asked.unwrap().wants;
        let of = |topics| Interest { channel: Some(PUBSUB.into()), topics };
        let exact = ["/a/1", "/b/1"].map(|topic| of(TopicMatch::Exact(topic.into())));
        assert_eq!(wants.interests(), [&exact[..], &[of(TopicMatch::Prefix("/c/".into()))]].concat());
        assert_eq!(wants.describe(), "/a/1, /b/1, /c/* on /waku/2/rs/16/32");
        let query = wants.query(Key { timestamp: Timestamp(1), message_hash: MessageHash::MIN }, None, 7);
        assert_eq!((query.channel.as_deref(), query.topics, query.limit), (Some(PUBSUB), Topics::Any, 7));
    }

    #[test]
    fn a_stream_goes_on_at_its_cursor() {
        let hash = format!("0x{}", "07".repeat(32));
        let from = |query: &str, id| ask(&format!("/live?{query}"), id).map(|asked| asked.from);
        assert_eq!(from(&format!("cursor={hash}"), None), Ok(From::Message(MessageHash([7; 32]))));
        assert_eq!(from("cursor=-5", None), Ok(behind(-5, [0; 32])));
        assert_eq!(from("start=0", None), Ok(behind(-1, [0xff; 32])));
        assert_eq!(from("start=-9223372036854775808", None), Ok(behind(i64::MIN, [0; 32])));
        assert_eq!(from("start=9&cursor=12", None), Ok(behind(12, [0; 32])), "the cursor counts");
        assert_eq!(
            from("start=9&cursor=12", Some("13")),
            Ok(behind(13, [0; 32])),
            "and the header above all"
        );
    }

    #[test]
    fn cursors_read_back() {
        for key in [(5, [0; 32]), (-5, [0; 32]), (-5, [9; 32]), (i64::MIN, [1; 32]), (i64::MAX, [0xff; 32])] {
            let From::Behind(place) = behind(key.0, key.1) else { unreachable!() };
            let mut text = Vec::new();
            write_cursor(place, &mut text);
            assert_eq!(parse_cursor(std::str::from_utf8(&text).unwrap()), Some(From::Behind(place)));
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let many = format!("/live?contentTopics={}", vec!["/a"; 1_001].join(","));
        let long = format!("/live?contentTopicPrefix={}", "x".repeat(4_097));
        let refused = [
            ("/live?cursor=x", "cursor: expected"),
            ("/live?cursor=5-00", "cursor: expected"),
            ("/live?cursor=1&cursor=2", "cursor: is given twice"),
            ("/live?start=soon", "start: expected"),
            ("/live?contentTopics=%ff", "contentTopics: is not UTF-8"),
            ("/live?pubsubTopic=%2Fwaku%2F2%2Frs%2Fx", "pubsubTopic: "),
            (
                "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32/live?pubsubTopic=a",
                "pubsubTopic: is given twice",
            ),
            (&many, "contentTopics: too many"),
            (&long, "contentTopicPrefix: is too long"),
        ];
        for (uri, expected) in refused {
            let text = ask(uri, None).unwrap_err();
            assert!(text.starts_with(expected), "{uri}: {text}");
        }
        assert!(ask("/live", Some("never")).unwrap_err().starts_with("Last-Event-ID: expected"));
    }
}
