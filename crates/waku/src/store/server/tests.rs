use std::collections::BTreeMap;

use proptest::prelude::*;
use restante_archive::{Appended, Config, Message, open};
use restante_core::Key;
use restante_waku_wire::{message_hash, rpc::store::StoreQueryResponse};

use super::*;

const PUBSUB: &str = "/waku/2/rs/1/0";
const TOPIC: &str = "/toy/1/chat/proto";

async fn memory() -> Arc<dyn Archive> {
    open(Config::new("memory:".parse().unwrap())).await.unwrap().archive
}

/// A message at a nanosecond, different from others by its payload.
fn message(pubsub_topic: &str, content_topic: &str, nanos: i64, payload: &[u8]) -> Message {
    let wire = WakuMessage {
        payload: Bytes::copy_from_slice(payload),
        content_topic: content_topic.to_owned(),
        timestamp: Some(nanos),
        ..WakuMessage::default()
    };
    Message {
        message_hash: message_hash(pubsub_topic, payload, content_topic, b"", nanos),
        channel: pubsub_topic.into(),
        topic: content_topic.into(),
        timestamp: Timestamp(nanos),
        body: wire.to_wire(),
    }
}

/// `count` messages, one per nanosecond from 1 on.
fn messages(count: i64) -> Vec<Message> {
    (1..=count).map(|nanos| message(PUBSUB, TOPIC, nanos, b"hello")).collect()
}

async fn service(messages: &[Message]) -> StoreService {
    let archive = memory().await;
    archive.append(messages.to_vec()).await.unwrap();
    StoreService::new(archive)
}

/// A forward query for hashes with the largest page.
fn forward() -> StoreQueryRequest {
    StoreQueryRequest {
        request_id: "r1".into(),
        pagination_forward: true,
        pagination_limit: Some(100),
        ..StoreQueryRequest::default()
    }
}

fn wire_hash(hash: MessageHash) -> Bytes {
    Bytes::copy_from_slice(hash.as_bytes())
}

async fn ask(service: &StoreService, request: &StoreQueryRequest) -> StoreQueryResponse {
    ask_raw(service, request.encode_to_vec().into()).await
}

async fn ask_raw(service: &StoreService, request: Bytes) -> StoreQueryResponse {
    let answer = service.answer(PeerId::random(), request).await;
    let response = StoreQueryResponse::decode_length_delimited(&answer.frame.unwrap()[..]).unwrap();
    assert_eq!(response.status_code, Some(answer.status));
    assert!(response.status_desc.is_some(), "nwaku's client refuses an answer without a text");
    response
}

/// The hashes of a successful answer.
fn hashes(response: &StoreQueryResponse) -> Vec<MessageHash> {
    assert_eq!(response.status_code, Some(200), "{:?}", response.status_desc);
    response.messages.iter().map(|entry| hash_of(entry.message_hash.as_ref().unwrap()).unwrap()).collect()
}

/// The timestamps of the messages that a query returns.
async fn times(service: &StoreService, request: &StoreQueryRequest) -> Vec<i64> {
    let request = StoreQueryRequest { include_data: true, ..request.clone() };
    let response = ask(service, &request).await;
    hashes(&response);
    let time = |entry: &store::KeyValue| {
        WakuMessageView::parse(entry.message.as_ref().unwrap()).unwrap().timestamp.unwrap()
    };
    response.messages.iter().map(time).collect()
}

fn refusal(response: &StoreQueryResponse) -> (u32, &str) {
    assert!(response.messages.is_empty() && response.pagination_cursor.is_none());
    (response.status_code.unwrap(), response.status_desc.as_deref().unwrap())
}

#[tokio::test]
async fn messages_are_served_unchanged() {
    let all = messages(3);
    let service = service(&all).await;
    let response = ask(&service, &StoreQueryRequest { include_data: true, ..forward() }).await;
    assert_eq!((&*response.request_id, response.status_desc.as_deref()), ("r1", Some("OK")));
    for (entry, message) in response.messages.iter().zip(&all) {
        assert_eq!(entry.message.as_ref(), Some(&message.body));
        assert_eq!(entry.pubsub_topic.as_deref(), Some(PUBSUB));
        assert_eq!(entry.message_hash, Some(wire_hash(message.message_hash)));
    }
    assert_eq!(response.messages.len(), 3);
    let response = ask(&service, &forward()).await;
    assert!(response.messages.iter().all(|entry| entry.message.is_none() && entry.pubsub_topic.is_none()));
}

#[tokio::test]
async fn the_page_size_is_20_or_as_requested_up_to_100() {
    let service = service(&messages(150)).await;
    for (limit, rows) in [(None, 20), (Some(0), 20), (Some(7), 7), (Some(100), 100), (Some(u64::MAX), 100)] {
        let response = ask(&service, &StoreQueryRequest { pagination_limit: limit, ..forward() }).await;
        assert_eq!(response.messages.len(), rows, "{limit:?}");
    }
}

#[tokio::test]
async fn without_a_direction_a_page_ends_at_the_newest_message() {
    let service = service(&messages(30)).await;
    let newest = StoreQueryRequest { pagination_limit: Some(3), ..StoreQueryRequest::default() };
    assert_eq!(times(&service, &newest).await, [28, 29, 30], "the rows are ascending all the same");
    let oldest = StoreQueryRequest { pagination_forward: true, ..newest };
    assert_eq!(times(&service, &oldest).await, [1, 2, 3]);
}

/// `13/WAKU2-STORE`; nwaku includes the end.
#[tokio::test]
async fn the_end_of_a_time_range_is_exclusive() {
    let service = service(&messages(9)).await;
    let range = |start, end| StoreQueryRequest { time_start: start, time_end: end, ..forward() };
    assert_eq!(times(&service, &range(Some(3), Some(5))).await, [3, 4]);
    assert_eq!(times(&service, &range(None, Some(2))).await, [1]);
    assert_eq!(times(&service, &range(Some(8), None)).await, [8, 9]);
    assert_eq!(times(&service, &range(Some(5), Some(5))).await, [0_i64; 0]);
    assert_eq!(
        times(&service, &range(Some(6), Some(3))).await,
        [0_i64; 0],
        "a range that ends before it begins"
    );
    assert_eq!(times(&service, &range(Some(-5), Some(0))).await, [0_i64; 0], "0 is an ordinary time");
}

#[tokio::test]
async fn the_cursor_stands_at_the_end_of_a_page_in_its_direction() {
    let all = messages(5);
    let service = service(&all).await;
    for (is_forward, last) in [(true, 1), (false, 3)] {
        let request =
            StoreQueryRequest { pagination_forward: is_forward, pagination_limit: Some(2), ..forward() };
        let response = ask(&service, &request).await;
        assert_eq!(response.pagination_cursor, Some(wire_hash(all[last].message_hash)));
    }
    for limit in [5, 6] {
        let response = ask(&service, &StoreQueryRequest { pagination_limit: Some(limit), ..forward() }).await;
        assert_eq!((response.messages.len(), response.pagination_cursor), (5, None), "nothing remains");
    }
}

/// js-waku uses the last message of each page as cursor, and stops at an empty page.
#[tokio::test]
async fn after_the_last_message_there_is_an_empty_page() {
    let all = messages(5);
    let service = service(&all).await;
    for (is_forward, last) in [(true, 4), (false, 0)] {
        let cursor = Some(wire_hash(all[last].message_hash));
        let request =
            StoreQueryRequest { pagination_forward: is_forward, pagination_cursor: cursor, ..forward() };
        let response = ask(&service, &request).await;
        assert_eq!((hashes(&response), response.pagination_cursor), (vec![], None));
    }
}

#[tokio::test]
async fn topics_may_be_given_in_any_mix() {
    let all = [
        message(PUBSUB, "/a/1/x/proto", 1, b""),
        message(PUBSUB, "/b/1/x/proto", 2, b""),
        message("/waku/2/rs/1/1", "/a/1/x/proto", 3, b""),
        message("/waku/2/rs/1/1", "/c/1/x/proto", 4, b""),
    ];
    let service = service(&all).await;
    let cases: [(Option<&str>, &[&str], &[i64]); 8] = [
        (None, &[], &[1, 2, 3, 4]),
        (Some(""), &[], &[1, 2, 3, 4]),
        (Some(PUBSUB), &[], &[1, 2]),
        (None, &["/a/1/x/proto"], &[1, 3]),
        (None, &["/a/1/x/proto", "/c/1/x/proto", "/a/1/x/proto"], &[1, 3, 4]),
        (Some(PUBSUB), &["/a/1/x/proto", "/c/1/x/proto"], &[1]),
        (Some("/waku/2/rs/9/9"), &[], &[]),
        (None, &[""], &[]),
    ];
    for (pubsub_topic, content_topics, expected) in cases {
        let request = StoreQueryRequest {
            pubsub_topic: pubsub_topic.map(str::to_owned),
            content_topics: content_topics.iter().map(|topic| (*topic).to_owned()).collect(),
            ..forward()
        };
        assert_eq!(times(&service, &request).await, expected, "{pubsub_topic:?} {content_topics:?}");
    }
}

#[tokio::test]
async fn hashes_are_found_and_combine_with_other_filters() {
    let all = messages(9);
    let service = service(&all).await;
    let requested = [8, 0, 3].map(|index: usize| wire_hash(all[index].message_hash));
    let mut by_hash = StoreQueryRequest { message_hashes: requested.to_vec(), ..forward() };
    assert_eq!(times(&service, &by_hash).await, [1, 4, 9]);
    by_hash.message_hashes.push(Bytes::from(vec![0; 32]));
    assert_eq!(times(&service, &by_hash).await, [1, 4, 9], "an unknown hash is left out");
    let in_time = StoreQueryRequest { time_start: Some(2), time_end: Some(9), ..by_hash.clone() };
    assert_eq!(times(&service, &in_time).await, [4]);
    let elsewhere = StoreQueryRequest { pubsub_topic: Some("/waku/2/rs/1/9".into()), ..by_hash.clone() };
    assert_eq!(times(&service, &elsewhere).await, [0_i64; 0]);
    let other_topic = StoreQueryRequest { content_topics: vec!["/a/1/x/proto".into()], ..by_hash };
    assert_eq!(times(&service, &other_topic).await, [0_i64; 0]);
}

#[tokio::test]
async fn wrong_queries_are_refused_with_their_id() {
    let service = service(&messages(3)).await;
    let hash = || Bytes::from(vec![1; 32]);
    let cases = [
        (300, "cursor not found", StoreQueryRequest { pagination_cursor: Some(hash()), ..forward() }),
        (400, "pagination_cursor", StoreQueryRequest { pagination_cursor: Some("x".into()), ..forward() }),
        (400, "pagination_cursor", StoreQueryRequest { pagination_cursor: Some(Bytes::new()), ..forward() }),
        (
            400,
            "message_hashes: exp",
            StoreQueryRequest { message_hashes: vec![hash(), "x".into()], ..forward() },
        ),
        (400, "1001 are too many", StoreQueryRequest { message_hashes: vec![hash(); 1_001], ..forward() }),
        (
            400,
            "1001 are too many",
            StoreQueryRequest { content_topics: vec!["t".into(); 1_001], ..forward() },
        ),
    ];
    for (status, part, request) in cases {
        let response = ask(&service, &request).await;
        let (code, text) = refusal(&response);
        assert_eq!((code, &*response.request_id), (status, "r1"));
        assert!(text.contains(part), "{text} should say {part}");
    }
    let most = StoreQueryRequest {
        message_hashes: vec![hash(); 1_000],
        content_topics: vec!["t".into(); 1_000],
        ..forward()
    };
    assert_eq!(ask(&service, &most).await.status_code, Some(200));
    assert!(most.encoded_len() <= service.request_bytes_max());
}

#[tokio::test]
async fn an_invalid_query_is_refused() {
    let service = service(&[]).await;
    for garbage in [&b"\xff"[..], b"\x0a\x05r", b"\x0a\x01\xff", b"\x10\x01\x52"] {
        let response = ask_raw(&service, Bytes::from_static(garbage)).await;
        assert_eq!(&*response.request_id, "N/A");
        assert_eq!(refusal(&response), (400, "BAD_REQUEST: not a store query"));
    }
    let response = ask_raw(&service, Bytes::new()).await;
    assert_eq!(hashes(&response), [], "without any field the newest messages are returned");
}

#[tokio::test]
async fn too_many_requests_are_refused_with_429() {
    let answer = service(&[]).await.answer_too_often(forward().encode_to_vec().into());
    let response = StoreQueryResponse::decode_length_delimited(&answer.frame.unwrap()[..]).unwrap();
    assert_eq!((answer.status, &*response.request_id), (429, "N/A"));
    assert_eq!(refusal(&response).0, 429);
}

/// An archive that always fails.
struct Failing(ErrorKind);

#[async_trait]
impl Archive for Failing {
    async fn append(&self, _messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        Err(Error::new(self.0, "/secret/path"))
    }

    async fn query(&self, _query: &Query) -> Result<Page, Error> {
        Err(Error::new(self.0, "/secret/path"))
    }
}

#[tokio::test]
async fn errors_of_the_archive_are_reported_without_internals() {
    for (kind, status) in [
        (ErrorKind::Unavailable, 503),
        (ErrorKind::Full, 503),
        (ErrorKind::Corrupt, 500),
        (ErrorKind::Internal, 500),
        (ErrorKind::Conflict, 500),
        (ErrorKind::Invalid, 400),
    ] {
        let response = ask(&StoreService::new(Arc::new(Failing(kind))), &forward()).await;
        let (code, text) = refusal(&response);
        assert_eq!((code, &*response.request_id), (status, "r1"), "{kind:?}");
        assert!(!text.contains("secret"), "{text}");
    }
}

/// A row that is not a Waku message, from an importer, would make a client refuse the whole page.
#[tokio::test]
async fn rows_of_others_do_not_break_a_page() {
    let other_topic = message(PUBSUB, "/another/1/x/proto", 2, b"p").body;
    let bodies: [&[u8]; 5] = [b"<message/>", b"", &other_topic, b"\x12\x11/toy/1/chat/proto", b"\x0a\x01"];
    let mut all = messages(2);
    for (index, body) in bodies.into_iter().enumerate() {
        all.push(Message {
            message_hash: MessageHash([index as u8; 32]),
            channel: "/an/importer".into(),
            topic: TOPIC.into(),
            timestamp: Timestamp(10 + index as i64),
            body: Bytes::copy_from_slice(body),
        });
    }
    let service = service(&all).await;
    let response = ask(&service, &StoreQueryRequest { include_data: true, ..forward() }).await;
    assert_eq!(response.messages.len(), 7);
    for (entry, stored) in response.messages.iter().zip(&all) {
        let message = WakuMessage::from_wire(entry.message.as_ref().unwrap()).unwrap();
        assert_eq!(message.content_topic, TOPIC);
        assert_eq!(message.timestamp, Some(stored.timestamp.nanos()));
        let is_own = &*stored.channel == PUBSUB;
        assert_eq!(message.payload, if is_own { Bytes::from("hello") } else { stored.body.clone() });
    }
    let presence = ask(&service, &forward()).await;
    assert!(presence.messages.iter().all(|entry| entry.message.is_none()));
}

/// js-waku reads no answer of more than 4 MiB.
#[tokio::test]
async fn pages_of_long_messages_are_cut_and_lose_nothing() {
    let payload = vec![7; 150_000];
    let mut all: Vec<Message> = (1..=60).map(|nanos| message(PUBSUB, TOPIC, nanos, &payload)).collect();
    all.push(message(PUBSUB, TOPIC, 30, &vec![8; 5_000_000])); // longer than a page: it is returned alone
    let service = service(&all).await;
    // A page of the archive is cut, whether or not it is the last one of the archive.
    for (is_forward, limit) in [(true, 100), (false, 100), (true, 40), (false, 40)] {
        let mut request = StoreQueryRequest {
            include_data: true,
            pagination_forward: is_forward,
            pagination_limit: Some(limit),
            ..forward()
        };
        let mut seen = Vec::new();
        let mut pages = 0;
        loop {
            let response = ask(&service, &request).await;
            let page = hashes(&response);
            assert!(page.len() == 1 || response.encoded_len() <= 4 << 20, "{} bytes", response.encoded_len());
            seen.extend(page);
            pages += 1;
            request.pagination_cursor = response.pagination_cursor;
            if request.pagination_cursor.is_none() {
                break;
            }
        }
        assert!(pages <= 6, "{pages} pages");
        seen.sort_unstable();
        let mut expected: Vec<_> = all.iter().map(|message| message.message_hash).collect();
        expected.sort_unstable();
        assert_eq!(seen, expected);
    }
}

/// All pages by the cursors of the answers, as in go-waku and nwaku.
async fn walk_by_cursor(service: &StoreService, mut request: StoreQueryRequest) -> Vec<Vec<MessageHash>> {
    let mut pages = Vec::new();
    loop {
        let response = ask(service, &request).await;
        pages.push(hashes(&response));
        if response.pagination_cursor.is_none() {
            return pages;
        }
        assert!(!response.messages.is_empty(), "more remain, so the page has some");
        request.pagination_cursor = response.pagination_cursor;
    }
}

/// All pages by the client's own cursors until one is empty, as in js-waku.
async fn walk_until_empty(service: &StoreService, mut request: StoreQueryRequest) -> Vec<Vec<MessageHash>> {
    let mut pages = Vec::new();
    loop {
        let page = hashes(&ask(service, &request).await);
        let edge = if request.pagination_forward { page.last() } else { page.first() };
        let Some(edge) = edge else { return pages };
        request.pagination_cursor = Some(wire_hash(*edge));
        pages.push(page);
    }
}

/// Joins pages in ascending order.
fn join(mut pages: Vec<Vec<MessageHash>>, is_forward: bool) -> Vec<MessageHash> {
    if !is_forward {
        pages.reverse();
    }
    pages.concat()
}

fn random_messages() -> impl Strategy<Value = Vec<Message>> {
    // Few times and topics, so that many messages have equal timestamps and some topics are rare.
    let one = (0_usize..3, 0_usize..4, 0_i64..12, any::<u16>());
    prop::collection::vec(one, 0..120).prop_map(|fields| {
        let make = |(pubsub, topic, nanos, payload): (usize, usize, i64, u16)| {
            let topic = format!("/toy/1/{topic}/proto");
            message(&format!("/waku/2/rs/1/{pubsub}"), &topic, nanos, &payload.to_be_bytes())
        };
        fields.into_iter().map(make).collect()
    })
}

fn queries() -> impl Strategy<Value = StoreQueryRequest> {
    let fields = (
        prop::option::of(0_usize..3),
        prop::collection::vec(0_usize..5, 0..3),
        prop::option::of(-1_i64..13),
        prop::option::of(-1_i64..13),
        any::<bool>(),
        prop::option::of(1_u64..30),
    );
    fields.prop_map(|(pubsub, topics, time_start, time_end, pagination_forward, pagination_limit)| {
        StoreQueryRequest {
            pubsub_topic: pubsub.map(|shard| format!("/waku/2/rs/1/{shard}")),
            content_topics: topics.into_iter().map(|topic| format!("/toy/1/{topic}/proto")).collect(),
            time_start,
            time_end,
            pagination_forward,
            pagination_limit,
            ..StoreQueryRequest::default()
        }
    })
}

/// The expected result of all pages of a query, in ascending order.
fn model(all: &[Message], query: &StoreQueryRequest) -> Vec<MessageHash> {
    let mut matching = BTreeMap::new();
    for message in all {
        let nanos = message.timestamp.nanos();
        let is_pubsub = query.pubsub_topic.as_deref().is_none_or(|topic| topic == &*message.channel);
        let is_topic = query.content_topics.is_empty()
            || query.content_topics.iter().any(|topic| **topic == *message.topic);
        let is_time = query.time_start.is_none_or(|start| start <= nanos)
            && query.time_end.is_none_or(|end| nanos < end);
        if is_pubsub && is_topic && is_time {
            let key = Key { timestamp: message.timestamp, message_hash: message.message_hash };
            matching.insert(key, message.message_hash);
        }
    }
    matching.into_values().collect()
}

proptest! {
    #[test]
    fn walking_all_pages_returns_every_message_once(all in random_messages(), query in queries()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let service = service(&all).await;
            let expected = model(&all, &query);
            let by_cursor = walk_by_cursor(&service, query.clone()).await;
            let limit = query.pagination_limit.unwrap_or(20) as usize;
            assert_eq!(by_cursor.len(), expected.len().div_ceil(limit).max(1), "no more pages than needed");
            assert_eq!(join(by_cursor, query.pagination_forward), expected);
            let until_empty = walk_until_empty(&service, query.clone()).await;
            assert_eq!(join(until_empty, query.pagination_forward), expected);
        });
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        super::super::fuzz_store_rpc(&bytes);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(async { ask_raw(&service(&[]).await, bytes.into()).await });
        prop_assert!([200, 300, 400].contains(&response.status_code.unwrap()));
    }
}
