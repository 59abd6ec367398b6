use proptest::prelude::*;
use restante_archive::{Query, Topics};
use restante_core::{Bloom, MessageHash};
use restante_waku_wire::bloom::filter_of;
use serde_json::json;

use super::*;
use crate::rest::store::{CONTENT_TOPICS_MAX, STORE_NAMES, StoreQuery};

const STORE: &str = "/store/v3/messages";

/// A golden conversation, as in a script for nwaku.
#[tokio::test]
async fn published_messages_are_paged_through_to_their_end() {
    let door = door().await;
    for second in 0..5 {
        door.publish(&format!("m{second}"), second).await;
    }
    let first = door.get(&format!("{STORE}?includeData=true&pageSize=2")).await.json();
    assert_eq!(first["requestId"], "");
    assert_eq!((&first["statusCode"], &first["statusDesc"]), (&json!(200), &json!("OK")));
    assert_eq!(payloads(&first), ["m0", "m1"]);
    assert_eq!(first["paginationCursor"], first["messages"][1]["messageHash"]);
    assert_eq!(first["messages"][0]["pubsubTopic"], PUBSUB);
    let message = json!({"payload": "bTA=", "contentTopic": CHAT, "version": 0, "timestamp": NOW.nanos()});
    assert_eq!(first["messages"][0]["message"], message);

    let mut cursor = first["paginationCursor"].as_str().unwrap().to_owned();
    let second = door.get(&format!("{STORE}?includeData=true&pageSize=2&cursor={cursor}")).await.json();
    assert_eq!(payloads(&second), ["m2", "m3"]);
    cursor = second["paginationCursor"].as_str().unwrap().to_owned();
    let last = door.get(&format!("{STORE}?includeData=true&pageSize=2&cursor={cursor}")).await.json();
    assert_eq!(payloads(&last), ["m4"]);
    assert_eq!(last.get("paginationCursor"), None);

    let end = last["messages"][0]["messageHash"].as_str().unwrap();
    let behind = door.get(&format!("{STORE}?includeData=true&cursor={end}")).await.json();
    assert_eq!(behind, json!({"requestId": "", "statusCode": 200, "statusDesc": "OK", "messages": []}));
}

#[tokio::test]
async fn backward_pages_end_with_the_newest_and_are_ascending() {
    let door = door().await;
    for second in 0..3 {
        door.publish(&format!("m{second}"), second).await;
    }
    let newest = door.get(&format!("{STORE}?includeData=true&pageSize=2&ascending=false")).await.json();
    assert_eq!(payloads(&newest), ["m1", "m2"]);
    let cursor = newest["paginationCursor"].as_str().unwrap();
    assert_eq!(cursor, newest["messages"][0]["messageHash"]);
    let oldest = door.get(&format!("{STORE}?includeData=true&ascending=false&cursor={cursor}")).await.json();
    assert_eq!(payloads(&oldest), ["m0"]);
    assert_eq!(oldest.get("paginationCursor"), None);
}

#[tokio::test]
async fn without_data_only_hashes_are_answered() {
    let door = door().await;
    door.publish("m", 0).await;
    let answer = door.get(STORE).await.json();
    let entry = answer["messages"][0].as_object().unwrap();
    assert_eq!(entry.keys().collect::<Vec<_>>(), ["messageHash"]);
    let hash = entry["messageHash"].as_str().unwrap();
    assert!(hash.len() == 66 && hash.parse::<MessageHash>().is_ok());
    let named = door.get(&format!("{STORE}?hashes={hash},{}", &"0".repeat(64))).await.json();
    assert_eq!(named, answer);
}

#[tokio::test]
async fn the_end_of_time_is_exclusive() {
    let door = door().await;
    door.publish("a", 0).await;
    door.publish("b", 1).await;
    let (start, end) = (NOW.nanos(), NOW.plus_seconds(1).nanos());
    let at =
        async |query: String| payloads(&door.get(&format!("{STORE}?includeData=true&{query}")).await.json());
    assert_eq!(at(format!("startTime={start}&endTime={end}")).await, ["a"]);
    assert_eq!(at(format!("startTime={end}")).await, ["b"]);
    assert_eq!(at(format!("endTime={}", end + 1)).await, ["a", "b"]);
    assert_eq!(at("startTime=0&endTime=0".to_owned()).await, ["a", "b"]);
    assert_eq!(at(format!("startTime={end}&endTime={start}")).await, Vec::<String>::new());
}

#[tokio::test]
async fn topics_and_filters_choose_messages() {
    let door = door().await;
    door.publish("chat", 0).await;
    for (payload, topic) in [("c3BhY2U=", "/a b,ä/1/x/proto"), ("cmFyZQ==", "/rare/1/x/proto")] {
        let message =
            json!({"payload": payload, "contentTopic": topic, "timestamp": NOW.plus_seconds(1).nanos()});
        assert_eq!(door.post(PUBLISH, message).await.status, 200);
    }
    let get = async |query: &str| {
        let mut payloads = payloads(&door.get(&format!("{STORE}?includeData=true&{query}")).await.json());
        payloads.sort();
        payloads
    };
    let post = async |query: Value| {
        let mut payloads = payloads(&door.post(STORE, query).await.json());
        payloads.sort();
        payloads
    };
    assert_eq!(get("contentTopics=/toychat/2/huilong/proto,,/rare/1/x/proto").await, ["chat", "rare"]);
    assert_eq!(get("contentTopics=%2Frare%2F1%2Fx%2Fproto&contentTopics=/unknown/1/x/y").await, ["rare"]);
    assert_eq!(get("pubsubTopic=/waku/2/rs/16/33").await, Vec::<String>::new());
    assert_eq!(get("pubsubTopic=/waku/2/rs/16/32&contentTopics=/rare/1/x/proto&peerAddr=").await, ["rare"]);
    assert_eq!(get(&format!("bloom={}", filter_of(["/rare/1/x/proto"]))).await, ["rare"]);
    assert_eq!(get(&format!("bloom=0x{}", Bloom::FULL)).await, ["chat", "rare", "space"]);
    let comma = json!({"includeData": true, "contentTopics": ["/a b,ä/1/x/proto"]});
    assert_eq!(post(comma).await, ["space"]);
    let filter = filter_of([CHAT]).to_string();
    assert_eq!(post(json!({"includeData": "true", "bloom": filter, "contentTopics": []})).await, ["chat"]);
    let many: Vec<String> =
        (0..20_000).map(|n| format!("/app/1/{n}/proto")).chain([CHAT.to_owned()]).collect();
    assert_eq!(post(json!({"includeData": true, "contentTopics": many})).await, ["chat"]);
}

#[tokio::test]
async fn the_wrong_field_is_named() {
    let door = door().await;
    let hash = "expected 0x and 64 hex digits";
    let nanos = "expected nanoseconds since 1970 as a whole number";
    let full = Bloom::FULL.to_string();
    let cases = [
        (
            "peerAddr=/ip4/1.2.3.4".to_owned(),
            "peerAddr: expected an address of at most 1024 bytes that ends with /p2p/<peer id>",
        ),
        ("includeData=yes".into(), "includeData: expected true or false"),
        ("ascending=1".into(), "ascending: expected true or false"),
        ("startTime=1.5".into(), &format!("startTime: {nanos}")),
        ("endTime=9223372036854775808".into(), &format!("endTime: {nanos}")),
        ("hashes=0x00".into(), &format!("hashes: {hash}")),
        ("cursor=abc".into(), &format!("cursor: {hash}")),
        ("pageSize=-1".into(), "pageSize: expected a whole number; 0 is 20, the largest page is 100"),
        ("bloom=ff".into(), "bloom: expected 128 hex digits"),
        (format!("bloom={full}&contentTopics=/a"), "bloom: does not go together with contentTopics"),
        ("pageSize=1&pageSize=2".into(), "pageSize: is given twice"),
        ("pubsubTopic=%FF".into(), "pubsubTopic: is not UTF-8"),
        (format!("cursor={}", "0".repeat(64)), "cursor: no message with this hash is archived"),
    ];
    for (query, problem) in cases {
        let answer = door.get(&format!("{STORE}?{query}")).await;
        assert_eq!(answer.refusal(), (400, problem), "{query}");
    }
    let cases = [
        (json!({"cursor": "abc"}), format!("cursor: {hash}")),
        (json!({"cursor": 5}), format!("cursor: {hash}")),
        (json!({"startTime": 1.5}), "startTime: invalid type: floating point `1.5`, expected".to_owned()),
        (json!({"startTime": {}}), "startTime: invalid type: object, expected".to_owned()),
        (json!({"startTime": ["1"]}), "startTime: expected one value, not a list".to_owned()),
        (json!({"hashes": [["1"]]}), "hashes: expected a string, not an array in an array".to_owned()),
        (json!({"cursor": "0".repeat(64)}), "cursor: no message with this hash is archived".to_owned()),
        (json!([]), "invalid type: array, expected a query as a JSON object".to_owned()),
        (json!({"contentTopics": vec!["x"; CONTENT_TOPICS_MAX + 1]}), "contentTopics: too many".to_owned()),
    ];
    for (query, problem) in cases {
        let answer = door.post(STORE, &query).await;
        let (status, text) = answer.refusal();
        assert!(status == 400 && text.starts_with(&problem), "{text} is not {problem}");
    }
    let deep = format!("{{\"unknown\": {}", "[".repeat(1_000_000));
    assert_eq!(door.post(STORE, deep).await.status, 400);
    assert_eq!(door.post(STORE, "").await.status, 400);
    assert_eq!(door.post(STORE, "{} {}").await.status, 400);
    let answer = door.send("POST", STORE, vec![b' '; (4 << 20) + 1]).await;
    assert_eq!(answer.refusal(), (413, "the body is too long: the limit is 4194304 bytes"));
}

#[test]
fn page_sizes_are_nwakus() {
    for (size, limit) in
        [("", 20), ("0", 20), ("1", 1), ("100", 100), ("101", 100), ("18446744073709551615", 100)]
    {
        let asked = StoreQuery::from_query_string(&format!("pageSize={size}")).unwrap();
        assert_eq!(asked.query.limit, limit, "{size}");
    }
    assert_eq!(StoreQuery::from_query_string("").unwrap().query.limit, 20);
}

#[test]
fn a_query_string_and_a_body_mean_the_same() {
    let hash = MessageHash([0xab; 32]);
    let text = format!(
        "includeData=true&pubsubTopic=%2Fwaku%2F2%2Fx&contentTopics=/a+b,/c&startTime=-5&endTime=7\
         &hashes={hash}&cursor={hash}&ascending=false&pageSize=7"
    );
    let asked = StoreQuery::from_query_string(&text).unwrap();
    let expected = Query {
        channel: Some("/waku/2/x".to_owned()),
        topics: Topics::List(vec!["/a b".to_owned(), "/c".to_owned()]),
        start: Some(Timestamp(-5)),
        end: Some(Timestamp(7)),
        hashes: vec![hash],
        cursor: Some(restante_core::Cursor::Message(hash)),
        direction: restante_archive::Direction::Backward,
        limit: 7,
        bodies: true,
    };
    assert_eq!(asked, StoreQuery { peer: None, include_data: true, query: expected });
    let (hash, none) = (hash.to_string(), Value::Null);
    let typed = json!({
        "includeData": true, "pubsubTopic": "/waku/2/x", "contentTopics": ["/a b", "/c"], "startTime": -5,
        "endTime": 7, "hashes": [hash], "cursor": hash, "ascending": false, "pageSize": 7, "bloom": none,
    });
    let texts = json!({
        "includeData": "true", "pubsubTopic": "/waku/2/x", "contentTopics": "/a b,/c", "startTime": "-5",
        "endTime": "7", "hashes": hash, "cursor": hash, "ascending": "false", "pageSize": "7", "bloom": "",
    });
    for json in [typed, texts] {
        assert_eq!(StoreQuery::from_json(json.to_string().as_bytes()), Ok(asked.clone()));
    }
}

#[test]
fn too_many_hashes_are_refused() {
    let hash = "0".repeat(64);
    let hashes = |count| format!("{{\"hashes\": {:?}}}", vec![&hash; count]);
    assert!(StoreQuery::from_json(hashes(10_000).as_bytes()).is_ok());
    let refusal = StoreQuery::from_json(hashes(10_001).as_bytes()).unwrap_err();
    assert!(refusal.text.starts_with("hashes: too many: the limit is 10000"), "{}", refusal.text);
}

#[tokio::test]
async fn long_answers_are_written_whole() {
    let opened = memory().await;
    let body = vec![7; 140 << 10];
    let messages = (0..10).map(|number| archived(number, body.clone())).collect();
    opened.archive.append(messages).await.unwrap();
    let door = door_over(opened.archive.clone(), opened, RestConfig::default());
    let answer = door.get(&format!("{STORE}?includeData=true")).await.json();
    let payload = base64_simd::STANDARD.encode_to_string(&body);
    assert_eq!(answer["messages"].as_array().unwrap().len(), 10);
    assert!(
        answer["messages"].as_array().unwrap().iter().all(|entry| entry["message"]["payload"] == payload)
    );
}

/// A page may have 100 messages of 150 KiB: it is cut where those for peers are, and continues at its cursor.
#[tokio::test]
async fn a_page_that_would_become_too_long_is_cut_and_goes_on() {
    let opened = memory().await;
    let messages: Vec<Message> = (0..60).map(|number| archived(number, vec![7; 140 << 10])).collect();
    let hashes: Vec<String> = messages.iter().map(|message| message.message_hash.to_string()).collect();
    opened.archive.append(messages).await.unwrap();
    let door = door_over(opened.archive.clone(), opened, RestConfig::default());
    for direction in ["true", "false"] {
        let mut all: Vec<String> = Vec::new();
        let mut cursor = String::new();
        for fitting in [27, 27, 6] {
            let query =
                format!("{STORE}?includeData=true&pageSize=100&ascending={direction}&cursor={cursor}");
            let answer = door.get(&query).await;
            assert!(answer.body.len() < 5_400_000, "{}", answer.body.len());
            let page = answer.json();
            let page_hashes = page["messages"]
                .as_array()
                .unwrap()
                .iter()
                .map(|entry| entry["messageHash"].as_str().unwrap());
            let mut page_hashes: Vec<String> = page_hashes.map(str::to_owned).collect();
            assert_eq!(page_hashes.len(), fitting);
            if direction == "false" {
                page_hashes.reverse();
            }
            all.extend(page_hashes);
            cursor = page["paginationCursor"].as_str().unwrap_or_default().to_owned();
        }
        assert_eq!(cursor, "", "nothing remains");
        if direction == "false" {
            all.reverse();
        }
        assert_eq!(all, hashes);
    }
}

proptest! {
    #[test]
    fn no_bytes_break_the_parsers(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz_store_query(&bytes);
    }

    #[test]
    fn nothing_that_looks_like_a_query_breaks_the_parsers(
        pairs in prop::collection::vec((prop::sample::select(STORE_NAMES), "[-0-9a-fx,%+truels]{0,70}"), 0..6),
    ) {
        let text: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        fuzz_store_query(text.join("&").as_bytes());
        let json: serde_json::Map<String, Value> =
            pairs.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        fuzz_store_query(Value::from(json).to_string().as_bytes());
    }
}
