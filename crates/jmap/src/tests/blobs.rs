//! Uploads, downloads, and the methods of blobs.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use futures_util::stream;
use restante_core::{Clock, nonzero};
use restante_directory::Access;
use restante_mail::upload;
use restante_records::{
    Commit, Error, Query, Records,
    testing::{Hook, Hooked},
};
use serde_json::{Value, json};

use crate::{
    JmapConfig,
    door::expire_all,
    testing::{TestServer, body_of},
};

fn pass(server: &TestServer, seconds: i64) {
    server.clock.set(server.clock.now().plus_seconds(seconds));
}

async fn post(server: &TestServer, account: &str, body: Body) -> (StatusCode, Value) {
    let request =
        Request::post(format!("/jmap/upload/{account}")).header(header::CONTENT_TYPE, "text/x-Mine; a=b");
    let response = server.send(&server.alice, request.body(body).unwrap()).await;
    (response.status(), serde_json::from_slice(&body_of(response).await).unwrap())
}

#[tokio::test]
async fn b1_an_upload_is_answered_with_its_blob_and_the_type_is_echoed() {
    let server = TestServer::new().await;
    let (status, answer) = post(&server, &server.alice.id, Body::from("hello")).await;
    assert_eq!(status, StatusCode::CREATED);
    let blob = answer["blobId"].as_str().unwrap();
    assert!(blob.starts_with("bu"), "{blob}");
    let expected =
        json!({"accountId": server.alice.id, "blobId": blob, "type": "text/x-Mine; a=b", "size": 5});
    assert_eq!(answer, expected);
    assert_eq!(server.download(blob).await.unwrap(), "hello");
    let empty = server.upload("").await;
    assert_eq!(server.download(&empty).await.unwrap(), "");
}

#[tokio::test]
async fn b1_a_long_upload_of_many_pieces_is_stored_whole() {
    let server = TestServer::new().await;
    let piece = || Ok::<_, std::io::Error>(vec![b'x'; 100_000]);
    let body = Body::from_stream(stream::iter((0..50).map(move |_| piece())));
    let blob = server.upload(body).await;
    assert_eq!(server.download(&blob).await.unwrap().len(), 5_000_000);
}

#[tokio::test]
async fn q5_a_too_long_upload_is_refused_whether_announced_or_not() {
    let server =
        TestServer::with(JmapConfig { upload_bytes_max: nonzero!(10), ..JmapConfig::default() }).await;
    let unannounced = Body::from_stream(stream::iter([Ok::<_, std::io::Error>("12345"), Ok("678901")]));
    for body in [Body::from("12345678901"), unannounced] {
        let (status, problem) = post(&server, &server.alice.id, body).await;
        assert_eq!((status, &problem["limit"]), (StatusCode::BAD_REQUEST, &json!("maxSizeUpload")));
        assert_eq!(problem["type"], "urn:ietf:params:jmap:error:limit");
    }
    assert_eq!(post(&server, &server.alice.id, Body::from("1234567890")).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn q5_too_many_uploads_at_once_are_refused() {
    let config = JmapConfig { uploads_per_user_max: nonzero!(1), ..JmapConfig::default() };
    let server = TestServer::in_memory(config).await;
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let waiting = stream::once(async move {
        let _ = receiver.await;
        Ok::<_, std::io::Error>("late")
    });
    let first = post(&server, &server.alice.id, Body::from_stream(waiting));
    let second = async {
        let (_, problem) = post(&server, &server.alice.id, Body::from("x")).await;
        assert_eq!(problem["limit"], "maxConcurrentUpload");
        sender.send(()).unwrap();
    };
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first.0, StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn b1_an_upload_that_stops_ends_in_time_and_leaves_nothing() {
    let server = TestServer::in_memory(JmapConfig::default()).await;
    let begun = stream::iter([Ok::<_, std::io::Error>("begun")]);
    let endless = futures_util::StreamExt::chain(begun, stream::pending());
    assert_eq!(
        post(&server, &server.alice.id, Body::from_stream(endless)).await.0,
        StatusCode::REQUEST_TIMEOUT
    );
    let broken = stream::iter([Ok("begun"), Err(std::io::Error::other("gone"))]);
    assert_eq!(post(&server, &server.alice.id, Body::from_stream(broken)).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(server.blobs.upkeep.stats().await.unwrap().blobs, 0);
}

#[tokio::test]
async fn b2_uploads_are_for_the_uploader_alone() {
    let server = TestServer::new().await;
    server.grant(&server.alice, &server.bob, Access::Write).await;
    let own = server.upload("mine").await;
    let bobs = server.upload_as(&server.bob, &server.alice.id, "his").await;
    assert_eq!(server.download_as(&server.bob, &server.alice.id, &own).await, None);
    assert_eq!(server.download(&bobs).await, None);
    assert_eq!(server.download_as(&server.bob, &server.alice.id, &bobs).await.unwrap(), "his");
    let same = server.upload_as(&server.bob, &server.alice.id, "mine").await;
    assert_ne!(same, own, "each has an upload of his own");
}

#[tokio::test]
async fn b2_an_upload_lives_for_its_time_and_uploading_again_resets_it() {
    let server =
        TestServer::with(JmapConfig { upload_seconds: nonzero!(3_600), ..JmapConfig::default() }).await;
    let (first, second) = (server.upload("one").await, server.upload("two").await);
    pass(&server, 3_000);
    assert_eq!(server.upload("one").await, first, "the same bytes are the same blob");
    pass(&server, 601);
    // The door's own first run may have come before.
    assert!(expire_all(&server.mail, &server.directory, 3_600).await.unwrap() <= 1);
    assert_eq!(server.download(&first).await.unwrap(), "one");
    assert_eq!(server.download(&second).await, None);
    pass(&server, 3_600);
    server.upload("three").await;
    assert_eq!(server.download(&first).await, None, "the next upload removes what has expired");
}

/// The next commit fails while this is true.
#[derive(Default)]
struct FailsOnce(AtomicBool);

#[async_trait]
impl Hook for FailsOnce {
    async fn before_commit(&self, _: &Commit) -> Result<(), Error> {
        match self.0.swap(false, Ordering::Relaxed) {
            true => Err(Error::corrupt("a record is damaged")),
            false => Ok(()),
        }
    }
}

/// Regression test: the uploads of all accounts after a damaged one were never removed.
#[tokio::test]
async fn b2_an_account_whose_uploads_cannot_be_removed_keeps_no_others() {
    let mut hooked = None;
    let wrap = |inner: Arc<dyn Records>| {
        let records = Arc::new(Hooked { inner, hook: FailsOnce::default() });
        hooked = Some(records.clone());
        records as Arc<dyn Records>
    };
    let server = TestServer::with_records(JmapConfig::default(), wrap).await;
    server.upload("one").await;
    server.upload_as(&server.bob, &server.bob.id, "two").await;
    pass(&server, 100_000);
    hooked.unwrap().hook.0.store(true, Ordering::Relaxed);
    let expire = async || expire_all(&server.mail, &server.directory, 3_600).await.unwrap();
    assert_eq!(expire().await, 1, "the first account fails, and the other one is served");
    assert_eq!(expire().await, 1, "the first account is served by the next walk");
}

#[tokio::test]
async fn b2_beyond_the_quota_the_oldest_go() {
    let server =
        TestServer::with(JmapConfig { uploads_bytes_max: nonzero!(10), ..JmapConfig::default() }).await;
    let mut uploads = Vec::new();
    for bytes in ["aaaa", "bbbb", "cc", "dddd"] {
        uploads.push(server.upload(bytes).await);
        pass(&server, 1);
    }
    let mut there = Vec::new();
    for upload in &uploads {
        there.push(server.download(upload).await.is_some());
    }
    assert_eq!(there, [false, true, true, true]);
    let all = Query::new(upload::KIND, upload::BY_UPLOADED);
    let left = server.records.records.query(server.alice.account, &all).await.unwrap();
    assert_eq!(left.ids.len(), 3);
}

#[tokio::test]
async fn b3_a_download_has_the_type_and_the_name_of_its_url() {
    let server = TestServer::new().await;
    let blob = server.upload("<script>").await;
    let uri = format!("/jmap/download/{}/{blob}/gr%C3%BCn%2F1.html?type=text%2Fhtml", server.alice.id);
    let response = server.get(&server.alice, &uri).await;
    assert_eq!(response.status(), StatusCode::OK);
    let header = |name: header::HeaderName| response.headers()[name].to_str().unwrap();
    assert_eq!(header(header::CONTENT_TYPE), "text/html");
    assert_eq!(header(header::CONTENT_LENGTH), "8");
    assert_eq!(header(header::CACHE_CONTROL), "private, immutable, max-age=31536000");
    assert_eq!(header(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
    assert!(header(header::CONTENT_SECURITY_POLICY).starts_with("sandbox"));
    let disposition = header(header::CONTENT_DISPOSITION);
    assert!(disposition.contains("filename*=UTF-8''gr%C3%BCn%2F1.html"), "{disposition}");
    assert_eq!(body_of(response).await, "<script>");
}

#[tokio::test]
async fn b3_a_download_needs_no_name() {
    let server = TestServer::new().await;
    let blob = server.upload("hello").await;
    let uri = |account: &str| format!("/jmap/download/{account}/{blob}/?type=text%2Fplain");
    let response = server.get(&server.alice, &uri(&server.alice.id)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[header::CONTENT_DISPOSITION], "attachment");
    assert_eq!(body_of(response).await, "hello");
    let response = server.get(&server.alice, &uri("a1")).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn b3_what_is_not_there_is_a_problem_404() {
    let server = TestServer::new().await;
    let blob = server.upload("x").await;
    let (own, bobs) = (&server.alice.id, &server.bob.id);
    for path in [
        format!("{own}/bu999/x"),
        format!("{own}/be1/x"),
        format!("{own}/x/x"),
        format!("{own}/{blob}-1/x"),
        format!("{bobs}/{blob}/x"),
        format!("a1/{blob}/x"),
    ] {
        let response = server.get(&server.alice, &format!("/jmap/download/{path}?type=a%2Fb")).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
    }
    let (status, _) = post(&server, bobs, Body::from("x")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    server.grant(&server.bob, &server.alice, Access::Read).await;
    assert_eq!(post(&server, bobs, Body::from("x")).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn b4_blobs_are_copied_to_another_account() {
    let server = TestServer::new().await;
    server.grant(&server.bob, &server.alice, Access::Write).await;
    let blob = server.upload("x").await;
    let (own, bobs) = (&server.alice.id, &server.bob.id);
    let copy = |ids: Value| json!({"fromAccountId": own, "accountId": bobs, "blobIds": ids});
    let answer = server.call("Blob/copy", copy(json!([blob, "bu99", "x"]))).await;
    let copied = answer["copied"][&blob].as_str().unwrap().to_owned();
    let missing = json!({"bu99": {"type": "notFound"}, "x": {"type": "notFound"}});
    let expected =
        json!({"fromAccountId": own, "accountId": bobs, "copied": {&blob: &copied}, "notCopied": missing});
    assert_eq!(answer, expected);
    assert_eq!(server.download_as(&server.alice, bobs, &copied).await.unwrap(), "x");
    let answer = server.call("Blob/copy", copy(json!([]))).await;
    assert_eq!((&answer["copied"], &answer["notCopied"]), (&Value::Null, &Value::Null));
    let unknown = json!({"fromAccountId": "a1", "accountId": own, "blobIds": []});
    assert_eq!(server.call("Blob/copy", unknown).await["type"], "fromAccountNotFound");
}

async fn create(server: &TestServer, create: Value) -> Value {
    server.call("Blob/upload", json!({"accountId": server.alice.id, "create": create})).await
}

#[tokio::test]
async fn b5_a_blob_is_made_of_texts_base64_and_ranges_of_blobs() {
    let server = TestServer::new().await;
    let blob = server.upload("0123456789").await;
    let data = json!([{"data:asText": "ä"}, {"data:asBase64": "AP8="}, {"blobId": blob, "offset": 2, "length": 3},
        {"blobId": blob, "offset": 8}, {"blobId": "#first", "length": null}]);
    let made = json!({"second": {"data": data, "type": "a/b"}, "first": {"data": [{"data:asText": "!"}]}, "none": {"data": []}});
    let answer = create(&server, made).await;
    assert_eq!(answer["notCreated"], Value::Null, "{answer}");
    let second = &answer["created"]["second"];
    assert_eq!((&second["type"], &second["size"]), (&json!("a/b"), &json!(10)));
    let bytes = server.download(second["id"].as_str().unwrap()).await.unwrap();
    assert_eq!(
        bytes,
        "ä\0\u{ff}23489!"
            .chars()
            .flat_map(|character| match character {
                'ä' => vec![0xc3, 0xa4],
                other => vec![other as u8],
            })
            .collect::<Vec<u8>>()
    );
    assert_eq!(answer["created"]["none"]["size"], 0);
    assert_eq!(answer["created"]["none"]["type"], "application/octet-stream");
}

#[tokio::test]
async fn b5_wrong_sources_are_not_created() {
    let server = TestServer::new().await;
    let blob = server.upload("0123456789").await;
    for (source, kind) in [
        (json!({"blobId": blob, "offset": 8, "length": 3}), "invalidProperties"),
        (json!({"blobId": blob, "offset": 11}), "invalidProperties"),
        (
            json!({"blobId": blob, "offset": 9_007_199_254_740_991_u64, "length": 9_007_199_254_740_991_u64}),
            "invalidProperties",
        ),
        (json!({"data:asBase64": "?"}), "invalidProperties"),
        (json!({"data:asText": "x", "data:asBase64": "eA=="}), "invalidProperties"),
        (json!({"data:asText": "x", "blobId": blob}), "invalidProperties"),
        (json!({"data:asText": "x", "offset": 1}), "invalidProperties"),
        (json!({}), "invalidProperties"),
        (json!("x"), "invalidProperties"),
        (json!({"blobId": blob, "offset": -1}), "invalidProperties"),
        (json!({"blobId": "bu99"}), "blobNotFound"),
        (json!({"blobId": "#unknown"}), "blobNotFound"),
        (json!({"blobId": "#k"}), "invalidProperties"), // made of itself
    ] {
        let answer = create(&server, json!({"k": {"data": [source]}})).await;
        assert_eq!(answer["created"], Value::Null, "{source}");
        assert_eq!(answer["notCreated"]["k"]["type"], kind, "{source}");
    }
    let circle = json!({"a": {"data": [{"blobId": "#b"}]}, "b": {"data": [{"blobId": "#a"}]}, "c": {"data": [{"blobId": "#a"}]},
        "d": {"data": [{"data:asText": "x"}]}});
    let answer = create(&server, circle).await;
    let failed: Vec<&String> = answer["notCreated"].as_object().unwrap().keys().collect();
    assert_eq!(failed, ["a", "b", "c"]);
    assert!(answer["created"]["d"].is_object(), "one failure stops no other");
    for wrong in [
        json!(1),
        json!({}),
        json!({"data": null}),
        json!({"data": [], "type": 1}),
        json!({"data": [], "x": 1}),
    ] {
        let answer = create(&server, json!({"k": wrong})).await;
        assert_eq!(answer["notCreated"]["k"]["type"], "invalidProperties", "{answer}");
    }
    let many = vec![json!({"data:asText": "x"}); 65];
    assert_eq!(
        create(&server, json!({"k": {"data": many}})).await["notCreated"]["k"]["type"],
        "invalidProperties"
    );
}

#[tokio::test]
async fn b5_the_error_says_what_is_wrong_with_a_source() {
    let server = TestServer::new().await;
    let one = "a data source has exactly one of data:asText, data:asBase64 and blobId";
    for (data, problem) in [
        (json!("x"), "expected an array of data sources"),
        (json!(["x"]), "a data source is an object"),
        (json!([{"data:asText": "x", "blobId": "bu1"}]), one),
        (json!([{}]), one),
        (json!([{"data:asBase64": "?"}]), "data:asBase64 is not base64 (RFC 4648 §4)"),
        (json!([{"data:asText": 1}]), "data:asText is a string"),
        (json!([{"blobId": 1}]), "blobId is an id"),
        (
            json!([{"blobId": "bu1", "offset": -1}]),
            "offset and length of a data source are whole numbers from 0 to 2^53-1",
        ),
        (
            json!([{"data:asText": "x", "offset": 1}]),
            "a data source has an unknown member, or a range without blobId",
        ),
    ] {
        let answer = create(&server, json!({"k": {"data": data}})).await;
        let error = &answer["notCreated"]["k"];
        assert_eq!(
            (&error["description"], &error["properties"]),
            (&json!(problem), &json!(["data"])),
            "{data}"
        );
    }
}

/// Regression test: 20 blobs made of one source had 20 times as many bytes; they evicted the source, and some of them each other.
#[tokio::test]
async fn b5_blobs_of_one_request_do_not_push_each_other_or_their_source_out_of_the_quota() {
    let server =
        TestServer::with(JmapConfig { uploads_bytes_max: nonzero!(100), ..JmapConfig::default() }).await;
    let source = server.upload("s".repeat(30)).await;
    pass(&server, 1);
    let other = server.upload("o".repeat(60)).await;
    pass(&server, 1);
    let piece = |text: &str| json!({"data": [{"data:asText": text}, {"blobId": source}]});
    let call =
        |creates: Value| json!(["Blob/upload", {"accountId": server.alice.id, "create": creates}, "c"]);
    let long = json!({"data": vec![json!({"blobId": source}); 3]});
    // 92 bytes including the source; 10 more are too many, no matter which call needs them.
    let first = call(json!({"a": piece("a"), "b": piece("b")}));
    let second = call(
        json!({"c": {"data": [{"data:asText": "0123456789"}]}, "d": long, "e": {"data": [{"data:asText": "e"}]}}),
    );
    let responses = server.calls(json!([first, second])).await;
    let made = |call: usize, key: &str| responses[call][1]["created"][key]["id"].as_str().unwrap().to_owned();
    for key in ["c", "d"] {
        assert_eq!(responses[1][1]["notCreated"][key]["type"], "overQuota", "{responses:?}");
    }
    for blob in [&source, &made(0, "a"), &made(0, "b"), &made(1, "e")] {
        assert!(server.download(blob).await.is_some(), "{blob}: {responses:?}");
    }
    assert_eq!(server.download(&other).await, None, "it is the oldest now");
    // A single one may be longer than the quota, as over HTTP.
    let alone = create(&server, json!({"k": {"data": [{"data:asText": "x".repeat(200)}]}})).await;
    assert_eq!(alone["created"]["k"]["size"], 200);
}

#[tokio::test]
async fn b4_copies_of_one_request_do_not_push_each_other_out_of_the_quota() {
    let server =
        TestServer::with(JmapConfig { uploads_bytes_max: nonzero!(100), ..JmapConfig::default() }).await;
    server.grant(&server.bob, &server.alice, Access::Write).await;
    let (one, other) = (server.upload("a".repeat(40)).await, server.upload("b".repeat(60)).await);
    let email = format!("be{}", server.deliver("Subject: a\n\nb\n").await.0);
    let (own, bobs) = (&server.alice.id, &server.bob.id);
    let arguments = json!({"fromAccountId": own, "accountId": bobs, "blobIds": [one, other, email]});
    let answer = server.call("Blob/copy", arguments).await;
    assert_eq!(answer["notCopied"][&email]["type"], "overQuota");
    for blob in [one, other] {
        let copy = answer["copied"][&blob].as_str().unwrap();
        assert!(server.download_as(&server.alice, bobs, copy).await.is_some());
    }
}

async fn get(server: &TestServer, blob: &str, more: Value) -> Value {
    let mut arguments = json!({"accountId": server.alice.id, "ids": [blob]});
    arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut answer = server.call("Blob/get", arguments).await;
    let Some(one) = answer["list"].as_array_mut().and_then(|list| list.pop()) else { return answer };
    let Value::Object(mut one) = one else { panic!("{one}") };
    assert_eq!(one.remove("id"), Some(json!(blob)));
    Value::Object(one)
}

#[tokio::test]
async fn b5_get_returns_data_digests_and_ranges() {
    let server = TestServer::new().await;
    let text = server.upload("The quick brown fox").await;
    let binary = server.upload(vec![b'a', 0xff]).await;
    assert_eq!(
        get(&server, &text, json!({})).await,
        json!({"data:asText": "The quick brown fox", "size": 19})
    );
    let problem = json!({"data:asBase64": "Yf8=", "isEncodingProblem": true, "size": 2});
    assert_eq!(get(&server, &binary, json!({})).await, problem);
    let as_text = json!({"properties": ["data:asText"]});
    assert_eq!(get(&server, &binary, as_text).await, json!({"data:asText": null, "isEncodingProblem": true}));
    let both = json!({"properties": ["data", "data:asText", "data:asBase64"], "offset": 4, "length": 5});
    assert_eq!(get(&server, &text, both).await, json!({"data:asText": "quick", "data:asBase64": "cXVpY2s="}));
    let past = json!({"properties": ["data", "size"], "offset": 16, "length": 5});
    assert_eq!(
        get(&server, &text, past).await,
        json!({"data:asText": "fox", "isTruncated": true, "size": 19})
    );
    let behind = json!({"properties": ["data"], "offset": 20});
    assert_eq!(get(&server, &text, behind).await, json!({"data:asText": "", "isTruncated": true}));
    let digests = json!({"properties": ["digest:sha", "digest:sha-256", "size"], "offset": 4, "length": 5});
    let expected = json!({"digest:sha": "Hxd4yADR5NqFuuyjY4UlxBz2OoA=", "size": 19,
        "digest:sha-256": "HXqFMp3/BLjFPCMJiM2lGrFUI8pkM6Ou8HPt9GK+tJM="});
    let found = get(&server, &text, digests).await;
    assert_eq!(found["size"], expected["size"]);
    assert_eq!(
        (found["digest:sha"].as_str().unwrap().len(), found["digest:sha-256"].as_str().unwrap().len()),
        (28, 44)
    );
    for wrong in [
        json!({"properties": ["digest:md5"]}),
        json!({"properties": ["x"]}),
        json!({"offset": -1}),
        json!({"ids": null}),
    ] {
        assert_eq!(get(&server, &text, wrong.clone()).await["type"], "invalidArguments", "{wrong}");
    }
    let missing = get(&server, "bu99", json!({})).await;
    assert_eq!((&missing["list"], &missing["notFound"]), (&json!([]), &json!(["bu99"])));
}

#[tokio::test]
async fn b5_a_response_of_blobs_is_bounded() {
    let server =
        TestServer::with(JmapConfig { response_bytes_max: nonzero!(10_000), ..JmapConfig::default() }).await;
    let (one, other) = (server.upload("x".repeat(4_000)).await, server.upload("y".repeat(4_000)).await);
    let ids = |ids: &[&String]| json!({"accountId": server.alice.id, "ids": ids});
    assert!(server.call("Blob/get", ids(&[&one])).await["list"][0].is_object());
    assert_eq!(server.call("Blob/get", ids(&[&one, &other])).await["type"], "requestTooLarge");
}

/// Regression test: 64 calls with both digests of a long blob took most of a minute.
#[tokio::test]
async fn b5_a_request_hashes_a_bounded_number_of_bytes() {
    let server =
        TestServer::with(JmapConfig { upload_bytes_max: nonzero!(1_000), ..JmapConfig::default() }).await;
    let (long, short) = (server.upload("x".repeat(1_000)).await, server.upload("y".repeat(400)).await);
    let types = async |calls: &[(&[&String], Value)]| {
        let arguments = |(ids, more): &(&[&String], Value)| {
            let mut arguments = json!({"accountId": server.alice.id, "ids": ids});
            arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!(["Blob/get", arguments, "c"])
        };
        let calls: Vec<Value> = calls.iter().map(arguments).collect();
        let responses = server.calls(json!(calls)).await;
        json!(responses.iter().map(|response| response[1]["type"].clone()).collect::<Vec<_>>())
    };
    let both = || json!({"properties": ["digest:sha", "digest:sha-256"]});
    let one = || json!({"properties": ["digest:sha"]});
    let (done, refused) = (Value::Null, json!("requestTooLarge"));
    let found = types(&[(&[&long], both()), (&[&short], one()), (&[&short], json!({}))]).await;
    assert_eq!(found, json!([done, refused, done]), "data is no digest");
    let found = types(&[(&[&long, &short], both())]).await;
    assert_eq!(found, json!([refused]));
    let range = json!({"properties": ["digest:sha"], "length": 200});
    let found = types(&[(&[&short, &long], one()), (&[&short], one()), (&[&long, &short], range)]).await;
    assert_eq!(found, json!([done, done, refused]));
    // A part of a message may be longer than an upload.
    let email = server.deliver(&format!("Subject: a\n\n{}", "z".repeat(3_000))).await;
    let found = types(&[(&[&format!("be{}", email.0)], both()), (&[&short], one())]).await;
    assert_eq!(found, json!([done, refused]));
}

#[tokio::test]
async fn b5_lookup_names_what_refers_to_a_blob() {
    let server = TestServer::new().await;
    let blob = server.upload("x").await;
    let look_up = |names: Value| {
        server.call(
            "Blob/lookup",
            json!({"accountId": server.alice.id, "typeNames": names, "ids": [blob, "be9", "x"]}),
        )
    };
    let nothing = json!({"Email": [], "Thread": []});
    let expected = json!([{"id": blob, "matchedIds": nothing}, {"id": "be9", "matchedIds": nothing}, {"id": "x", "matchedIds": nothing}]);
    assert_eq!(look_up(json!(["Email", "Thread"])).await["list"], expected);
    assert_eq!(look_up(json!(["Email", "CalendarEvent"])).await["type"], "unknownDataType");
}

#[tokio::test]
async fn b5_lookup_knows_the_types_of_the_capabilities_that_the_request_uses() {
    let server = TestServer::new().await;
    let arguments = json!({"accountId": server.alice.id, "typeNames": ["Email"], "ids": ["be1"]});
    for (more, error) in [(None, json!("unknownDataType")), (Some("urn:ietf:params:jmap:mail"), Value::Null)]
    {
        let mut using = vec!["urn:ietf:params:jmap:core", "urn:ietf:params:jmap:blob"];
        using.extend(more);
        let request = json!({"using": using, "methodCalls": [["Blob/lookup", arguments, "c"]]}).to_string();
        let (_, answer) = server.post(&server.alice, request).await;
        assert_eq!(answer["methodResponses"][0][1]["type"], error, "{answer}");
    }
}

/// A message with a text, an attachment in base64, and a message that has two parts of its own.
const NESTED: &str = "From: a@example.org
Subject: outer
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary=out

--out
Content-Type: text/plain

text
--out
Content-Type: application/octet-stream
Content-Transfer-Encoding: base64

AAH/
--out
Content-Type: message/rfc822

Subject: inner
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary=in

--in
Content-Type: text/plain
Content-Transfer-Encoding: quoted-printable

gr=C3=BCn
--in--
--out--
";

#[tokio::test]
async fn b3_messages_and_their_parts_are_blobs() {
    let server = TestServer::new().await;
    let raw = NESTED.replace('\n', "\r\n");
    let email = format!("be{}", server.deliver(NESTED).await.0);
    let upload = server.upload(raw.clone()).await;
    for message in [email, upload] {
        assert_eq!(server.download(&message).await.unwrap(), raw);
        let part = async |path: &str| server.download(&format!("{message}{path}")).await;
        assert_eq!(part("-1").await, None, "a multipart has no blob");
        assert_eq!(part("-2").await.unwrap(), "text");
        assert_eq!(part("-3").await.unwrap(), &[0, 1, 0xff][..]);
        assert!(part("-4").await.unwrap().starts_with(b"Subject: inner\r\n"));
        assert_eq!(part("-4-1").await, None);
        assert_eq!(part("-4-2").await.unwrap(), "grün");
        for absent in ["-5", "-4-3", "-2-1", "-4-2-1"] {
            assert_eq!(part(absent).await, None, "{absent}");
        }
    }
}

#[tokio::test]
async fn b3_a_large_part_is_decoded_whole() {
    let server = TestServer::new().await;
    let encoded = base64_simd::STANDARD.encode_to_string(vec![7; 600_000]);
    let lines: String =
        encoded.as_bytes().chunks(76).map(|line| format!("{}\n", str::from_utf8(line).unwrap())).collect();
    let email =
        server.deliver(&format!("Content-Type: a/b\nContent-Transfer-Encoding: base64\n\n{lines}")).await;
    let part = server.download(&format!("be{}-1", email.0)).await.unwrap();
    assert!(part.len() == 600_000 && part.iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn b5_lookup_names_the_email_its_thread_and_its_mailboxes() {
    let server = TestServer::new().await;
    let email = server.deliver(NESTED).await.0;
    let names = ["Mailbox", "Thread", "Email"];
    let ids = [format!("be{email}"), format!("be{email}-2")];
    let answer = server
        .call("Blob/lookup", json!({"accountId": server.alice.id, "typeNames": names, "ids": ids}))
        .await;
    for (at, id) in ids.iter().enumerate() {
        let found = &answer["list"][at];
        assert_eq!(
            (&found["id"], &found["matchedIds"]["Email"]),
            (&json!(id), &json!([format!("e{email}")]))
        );
        let first = |name: &str| found["matchedIds"][name][0].as_str().unwrap().to_owned();
        assert!(first("Thread").starts_with('t') && first("Mailbox").starts_with('m'), "{found}");
    }
}

#[tokio::test]
async fn b5_parts_of_emails_are_read_and_put_together() {
    let server = TestServer::new().await;
    let email = server.deliver(NESTED).await.0;
    let data = json!([{"blobId": format!("be{email}-2")}, {"blobId": format!("be{email}-4-2"), "offset": 2}]);
    let answer = create(&server, json!({"k": {"data": data}})).await;
    let made = answer["created"]["k"]["id"].as_str().unwrap();
    assert_eq!(server.download(made).await.unwrap(), "textün");
    assert_eq!(
        get(&server, &format!("be{email}-4-2"), json!({})).await,
        json!({"data:asText": "grün", "size": 5})
    );
}

#[tokio::test]
async fn b4_a_part_is_copied_as_its_bytes() {
    let server = TestServer::new().await;
    server.grant(&server.bob, &server.alice, Access::Write).await;
    let part = format!("be{}-3", server.deliver(NESTED).await.0);
    let copy = json!({"fromAccountId": server.alice.id, "accountId": server.bob.id, "blobIds": [part]});
    let answer = server.call("Blob/copy", copy).await;
    let copied = answer["copied"][&part].as_str().unwrap();
    assert_eq!(server.download_as(&server.alice, &server.bob.id, copied).await.unwrap(), &[0, 1, 0xff][..]);
}
