use restante_waku_wire::KeyValueView;

use super::*;

const EXPORT: &str = "/archive/v1/export";

/// A door over an archive with this many messages, each with a body of a few hundred bytes.
async fn filled(count: u64) -> (Door, Vec<Message>) {
    let opened = memory().await;
    let body = |number: u64| [number.to_be_bytes().as_slice(), &[b'x'; 300]].concat();
    let messages: Vec<Message> = (0..count).map(|number| archived(number, body(number))).collect();
    for batch in messages.chunks(5_000) {
        opened.archive.append(batch.to_vec()).await.unwrap();
    }
    (door_over(opened.archive.clone(), opened, RestConfig::default()), messages)
}

#[tokio::test]
async fn protobuf_has_every_message_with_its_stored_bytes() {
    let (door, messages) = filled(9_000).await; // some pages, some chunks
    let answer = door.get(&format!("{EXPORT}?format=protobuf")).await;
    assert_eq!((answer.status, &*answer.content_type), (200, "application/x-protobuf"));
    let mut wire = &answer.body[..];
    for message in &messages {
        let entry = KeyValueView::take(&mut wire).unwrap().unwrap();
        assert_eq!(entry.message_hash, message.message_hash);
        assert_eq!((entry.message, entry.pubsub_topic), (&message.body[..], PUBSUB));
    }
    assert!(wire.is_empty());
}

#[tokio::test]
async fn ndjson_has_a_line_like_a_store_entry_for_every_message() {
    let (door, messages) = filled(5_000).await;
    let answer = door.get(EXPORT).await;
    assert_eq!((answer.status, &*answer.content_type), (200, "application/x-ndjson"));
    assert!(answer.text().ends_with('\n'));
    let lines: Vec<Value> = answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), messages.len());
    let mut page = door.get("/store/v3/messages?includeData=true&pageSize=100").await.json();
    for entry in page["messages"].as_array_mut().unwrap() {
        // An import creates the same message from a line: an absent version is not version 0.
        assert_eq!(entry["message"].as_object_mut().unwrap().remove("version"), Some(Value::from(0)));
    }
    assert_eq!(page["messages"].as_array().unwrap(), &lines[..100]);
    let hashes = lines.iter().map(|line| line["messageHash"].as_str().unwrap().to_owned());
    assert!(hashes.eq(messages.iter().map(|message| message.message_hash.to_string())));
}

#[tokio::test]
async fn a_descending_export_is_descending_across_pages() {
    let (door, messages) = filled(5_000).await;
    let answer = door.get(&format!("{EXPORT}?ascending=false")).await;
    let hash =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["messageHash"].as_str().unwrap().to_owned();
    let hashes = answer.text().lines().map(hash);
    assert!(hashes.eq(messages.iter().rev().map(|message| message.message_hash.to_string())));
}

#[tokio::test]
async fn ranges_and_topics_choose_what_is_exported() {
    let (door, _) = filled(50).await;
    let lines = async |query: &str| door.get(&format!("{EXPORT}?{query}")).await.text().lines().count();
    let (start, end) = (NOW.plus_seconds(10).nanos(), NOW.plus_seconds(30).nanos());
    assert_eq!(lines(&format!("startTime={start}&endTime={end}&format=ndjson")).await, 20);
    assert_eq!(lines(&format!("contentTopics={CHAT}&pubsubTopic={PUBSUB}")).await, 50);
    assert_eq!(lines("contentTopics=/none").await, 0);
    assert_eq!(lines(&format!("bloom={}", "f".repeat(128))).await, 50);
    assert_eq!(lines(&format!("bloom={}", "0".repeat(128))).await, 0);
    let refused = door.get(&format!("{EXPORT}?cursor=not-a-name-of-exports")).await;
    assert!(refused.refusal().1.starts_with("cursor: is not known here: "), "{}", refused.text());
}

#[tokio::test]
async fn the_wrong_field_is_named() {
    let (door, _) = filled(0).await;
    for (query, problem) in [
        ("format=csv", "format: expected ndjson or protobuf"),
        ("startTime=x", "startTime: expected nanoseconds since 1970 as a whole number"),
    ] {
        assert_eq!(door.get(&format!("{EXPORT}?{query}")).await.refusal(), (400, problem));
    }
}

#[tokio::test]
async fn an_archive_that_fails_at_once_is_a_refusal() {
    let opened = memory().await;
    let failing = Failing::new(opened.archive.clone(), 0, ErrorKind::Unavailable);
    let door = door_over(Arc::new(failing), opened, RestConfig::default());
    assert_eq!(door.get(EXPORT).await.refusal(), (503, "the archive is unavailable: try again later"));
}

#[tokio::test]
async fn an_archive_that_fails_in_the_middle_is_an_error_of_the_body() {
    let opened = memory().await;
    opened.archive.append((0..5_000).map(|number| archived(number, "body")).collect()).await.unwrap();
    let failing = Failing::new(opened.archive.clone(), 1, ErrorKind::Corrupt);
    let door = door_over(Arc::new(failing), opened, RestConfig::default());
    let request = Request::builder().uri(EXPORT).body(Body::empty()).unwrap();
    let response = door.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test]
async fn an_archive_that_falls_silent_in_the_middle_is_an_error_of_the_body() {
    let opened = memory().await;
    opened.archive.append((0..5_000).map(|number| archived(number, "body")).collect()).await.unwrap();
    let silent = Arc::new(SilentAfter { inner: opened.archive.clone(), queries: 1.into() });
    let config = RestConfig { request_timeout_ms: nonzero!(500), ..RestConfig::default() };
    let door = door_over(silent, opened, config);
    let request = Request::builder().uri(EXPORT).body(Body::empty()).unwrap();
    let response = door.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test]
async fn an_export_asks_for_no_more_than_its_reader_takes() {
    let opened = memory().await;
    let messages = (0..8_500).map(|number| archived(number, vec![b'x'; 1_000]));
    opened.archive.append(messages.collect()).await.unwrap();
    let counting = Arc::new(Failing::new(opened.archive.clone(), 1_000, ErrorKind::Internal));
    let door = door_over(counting.clone(), opened, RestConfig::default());
    let request = Request::builder().uri(EXPORT).body(Body::empty()).unwrap();
    let response = door.router.clone().oneshot(request).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    // A page has about 6 MB as JSON: the producer waits within the first one.
    assert_eq!(counting.queries.load(Ordering::SeqCst), 999);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body.iter().filter(|byte| **byte == b'\n').count(), 8_500);
    assert_eq!(counting.queries.load(Ordering::SeqCst), 997);
}

#[tokio::test]
async fn exports_are_bounded_and_end_with_their_readers() {
    let opened = memory().await;
    let messages = (0..5_000).map(|number| archived(number, vec![b'x'; 1_000]));
    opened.archive.append(messages.collect()).await.unwrap();
    let door = door_over(opened.archive.clone(), opened, RestConfig::default());
    let mut running = Vec::new();
    for _ in 0..EXPORTS_MAX {
        let request = Request::builder().uri(EXPORT).body(Body::empty()).unwrap();
        running.push(door.router.clone().oneshot(request).await.unwrap());
    }
    assert_eq!(door.get(EXPORT).await.status, 503);
    drop(running);
    while door.get(EXPORT).await.status == 503 {
        tokio::task::yield_now().await; // the producers notice at their next send
    }
}

#[tokio::test]
async fn an_older_http_is_refused_because_it_could_not_show_a_cut() {
    let (door, _) = filled(1).await;
    let request =
        Request::builder().uri(EXPORT).version(axum::http::Version::HTTP_10).body(Body::empty()).unwrap();
    let answer = Answer::of(door.router.clone().oneshot(request).await.unwrap()).await;
    assert_eq!(answer.refusal(), (505, "an export needs HTTP/1.1"));
}
