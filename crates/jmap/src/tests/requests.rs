//! Requests, their errors, references and creation ids.

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use restante_core::nonzero;
use restante_directory::{Access, Scope};
use restante_net::SharedMemory;
use serde_json::{Value, json};

use crate::{
    JmapConfig,
    testing::{TestServer, body_of, token_of},
};

const CORE: &str = "urn:ietf:params:jmap:core";

/// The status, the last part of the problem's type, and its limit.
async fn problem(server: &TestServer, bytes: impl Into<Body>) -> (u16, String, Value) {
    let (status, problem) = server.post(&server.alice, bytes).await;
    assert_eq!(problem["status"], status.as_u16(), "{problem}");
    let kind = problem["type"].as_str().unwrap_or_default();
    let kind = kind.strip_prefix("urn:ietf:params:jmap:error:").unwrap_or(kind).to_owned();
    (status.as_u16(), kind, problem["limit"].clone())
}

#[tokio::test]
async fn q1_what_is_no_json_by_type_or_content_is_not_json() {
    let server = TestServer::new().await;
    let wrong: [&[u8]; 5] = [
        b"",
        b"{",
        b"{\"using\":[\"\xff\"],\"methodCalls\":[]}",
        br#"{"using":[],"using":[],"methodCalls":[]}"#,
        br#"{"using":[],"methodCalls":[["Core/echo",{"a":"\ud800"},"c"]]}"#,
    ];
    for bytes in wrong {
        assert_eq!(problem(&server, bytes.to_vec()).await, (400, "notJSON".to_owned(), Value::Null));
    }
    for (content_type, status) in [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 400),
        ("application/jsonp", 400),
        ("", 400),
    ] {
        let request = Request::post("/jmap/api").header(header::CONTENT_TYPE, content_type);
        let request = request.body(Body::from(r#"{"using":[],"methodCalls":[]}"#)).unwrap();
        let response = server.send(&server.alice, request).await;
        assert_eq!(response.status().as_u16(), status, "{content_type}");
        if status == 400 {
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
            assert!(String::from_utf8_lossy(&body_of(response).await).contains("notJSON"));
        }
    }
}

#[tokio::test]
async fn q2_json_that_is_no_request_is_always_400() {
    let server = TestServer::new().await;
    for wrong in
        [json!([]), json!({"using": [CORE]}), json!({"using": [CORE], "methodCalls": [["Core/echo", {}]]})]
    {
        let problem = problem(&server, wrong.to_string()).await;
        assert_eq!(problem, (400, "notRequest".to_owned(), Value::Null), "{wrong}");
    }
}

#[tokio::test]
async fn q3_an_unknown_capability_is_an_error_of_the_request() {
    let server = TestServer::new().await;
    let request = json!({"using": [CORE, "https://example.org/x"], "methodCalls": [["Core/echo", {}, "c"]]});
    assert_eq!(problem(&server, request.to_string()).await.1, "unknownCapability");
    let all = json!({"using": [CORE, "urn:ietf:params:jmap:contacts", "urn:ietf:params:jmap:vacationresponse"],
        "methodCalls": [["Core/echo", {}, "c"]]});
    assert_eq!(server.post(&server.alice, all.to_string()).await.0, StatusCode::OK);
}

#[tokio::test]
async fn q4_a_method_exists_with_its_capability_alone() {
    let server = TestServer::new().await;
    for using in [json!([]), json!(["urn:ietf:params:jmap:mail"])] {
        let request = json!({"using": using, "methodCalls": [["Core/echo", {"a": 1}, "c"]]});
        let (status, answer) = server.post(&server.alice, request.to_string()).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(answer["methodResponses"], json!([["error", {"type": "unknownMethod"}, "c"]]));
    }
}

#[tokio::test]
async fn q5_limits_of_a_request_are_named() {
    let config = JmapConfig {
        request_bytes_max: nonzero!(1_000),
        calls_max: nonzero!(2),
        requests_per_user_max: nonzero!(1),
        request_wait_ms: 0,
        ..JmapConfig::default()
    };
    let server = TestServer::in_memory(config).await;
    let limit = |name: &str| (400, "limit".to_owned(), json!(name));
    let long = json!({"using": [CORE], "methodCalls": [["Core/echo", {"x": "x".repeat(1_000)}, "c"]]});
    assert_eq!(problem(&server, long.to_string()).await, limit("maxSizeRequest"));
    let unannounced = futures_util::stream::iter([Ok::<_, std::io::Error>(long.to_string())]);
    assert_eq!(problem(&server, Body::from_stream(unannounced)).await, limit("maxSizeRequest"));
    let calls = json!({"using": [], "methodCalls": [["a", {}, "a"], ["a", {}, "b"], ["a", {}, "c"]]});
    assert_eq!(problem(&server, calls.to_string()).await, limit("maxCallsInRequest"));
    // A request whose body does not arrive holds its slot.
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let waiting = futures_util::stream::once(async move {
        let _ = receiver.await;
        Ok::<_, std::io::Error>(r#"{"using":[],"methodCalls":[]}"#)
    });
    let first = server.post(&server.alice, Body::from_stream(waiting));
    let second = async {
        assert_eq!(
            problem(&server, r#"{"using":[],"methodCalls":[]}"#).await,
            limit("maxConcurrentRequests")
        );
        let others = server.post(&server.bob, r#"{"using":[],"methodCalls":[]}"#).await;
        assert_eq!(others.0, StatusCode::OK, "bob has slots of his own");
        sender.send(()).unwrap();
    };
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first.0, StatusCode::OK);
    let again = server.post(&server.alice, r#"{"using":[],"methodCalls":[]}"#).await;
    assert_eq!(again.0, StatusCode::OK, "the slot is free again");
}

/// Regression test: a request released its slot before its response had memory, so any number of responses could wait for memory.
#[tokio::test]
async fn q5_an_answer_that_waits_for_memory_holds_its_slot() {
    let config =
        JmapConfig { requests_per_user_max: nonzero!(1), request_wait_ms: 0, ..JmapConfig::default() };
    let server = TestServer::in_memory(config).await;
    let memory = server.door.app().parts.memory.clone();
    let all_but_a_kib = (256 << 20) - 1_024;
    let held = memory.acquire(all_but_a_kib, tokio::time::Instant::now()).await.unwrap();
    assert!(memory.acquire(1_025, tokio::time::Instant::now()).await.is_err());
    // The request fits into the remaining memory, but the response does not.
    let reference = json!({"resultOf": "a", "name": "Core/echo", "path": "/x"});
    let calls = json!([["Core/echo", {"x": "y".repeat(600)}, "a"], ["Core/echo", {"#x": reference}, "b"]]);
    let request = json!({"using": [CORE], "methodCalls": calls}).to_string();
    assert!(request.len() <= 1_024);
    let first = server.post(&server.alice, request.clone());
    let second = async {
        while !memory.has_waiters() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let expected = (400, "limit".to_owned(), json!("maxConcurrentRequests"));
        assert_eq!(problem(&server, request.clone()).await, expected);
        drop(held);
    };
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first.0, StatusCode::OK);
    assert_eq!(server.post(&server.alice, request).await.0, StatusCode::OK, "the slot is free again");
}

#[tokio::test]
async fn q5_a_request_waits_for_another_of_its_user() {
    let config = JmapConfig {
        requests_per_user_max: nonzero!(1),
        request_wait_ms: 3_600_000,
        ..JmapConfig::default()
    };
    let server = TestServer::in_memory(config).await;
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let body = futures_util::stream::once(async move {
        let _ = receiver.await;
        Ok::<_, std::io::Error>(r#"{"using":[],"methodCalls":[]}"#)
    });
    let first = server.post(&server.alice, Body::from_stream(body));
    let second = server.post(&server.alice, r#"{"using":[],"methodCalls":[]}"#);
    let free = async {
        tokio::task::yield_now().await;
        sender.send(()).unwrap();
    };
    let (first, second, ()) = tokio::join!(first, second, free);
    assert_eq!((first.0, second.0), (StatusCode::OK, StatusCode::OK));
}

#[tokio::test]
async fn m1_a_call_that_fails_does_not_stop_the_others() {
    let server = TestServer::new().await;
    let calls = json!([["Core/echo", {"a": 1}, "c0"], ["Foo/get", {}, "c1"], ["Core/echo", {"b": 2}, "c2"]]);
    let expected = json!([["Core/echo", {"a": 1}, "c0"], ["error", {"type": "unknownMethod"}, "c1"], ["Core/echo", {"b": 2}, "c2"]]);
    assert_eq!(json!(server.calls(calls).await), expected);
}

#[tokio::test]
async fn m2_a_missing_account_is_never_defaulted_and_an_unknown_one_not_found() {
    let server = TestServer::new().await;
    let of = |arguments: Value| server.call("Blob/get", arguments);
    assert_eq!(of(json!({"ids": []})).await["type"], "invalidArguments");
    assert_eq!(of(json!({"accountId": null, "ids": []})).await["type"], "invalidArguments");
    for unknown in ["a1", "x", server.bob.id.as_str()] {
        assert_eq!(
            of(json!({"accountId": unknown, "ids": []})).await["type"],
            "accountNotFound",
            "{unknown}"
        );
    }
}

#[tokio::test]
async fn m1_an_account_that_may_only_be_read_is_read_only() {
    let server = TestServer::new().await;
    server.grant(&server.bob, &server.alice, Access::Read).await;
    let get = json!({"accountId": server.bob.id, "ids": []});
    assert_eq!(server.call("Blob/get", get).await["list"], json!([]));
    let upload = json!({"accountId": server.bob.id, "create": {}});
    assert_eq!(server.call("Blob/upload", upload.clone()).await["type"], "accountReadOnly");
    server.grant(&server.bob, &server.alice, Access::Write).await;
    assert_eq!(server.call("Blob/upload", upload).await["created"], Value::Null);
}

#[tokio::test]
async fn m3_unknown_arguments_are_invalid() {
    let server = TestServer::new().await;
    let get = json!({"accountId": server.alice.id, "ids": [], "wrong": 1});
    let error = server.call("Blob/get", get).await;
    assert_eq!(
        error,
        json!({"type": "invalidArguments", "description": "wrong: is not an argument of this method"})
    );
    for ids in [json!("bu1"), json!([1]), json!(["a b"]), json!([""])] {
        let get = json!({"accountId": server.alice.id, "ids": ids});
        assert_eq!(server.call("Blob/get", get).await["type"], "invalidArguments", "{ids}");
    }
}

#[tokio::test]
async fn m5_calls_run_in_order_and_echo_gives_back_its_arguments() {
    let server = TestServer::new().await;
    let arguments = json!({"a": [1, -1, 1.5, {"b": "\u{1F600}\0"}], "": null, "#": true});
    let arguments = {
        let mut arguments = arguments;
        arguments.as_object_mut().unwrap().remove("#");
        arguments
    };
    assert_eq!(server.call("Core/echo", arguments.clone()).await, arguments);
    let calls: Vec<Value> = (0..64).map(|at| json!(["Core/echo", {"at": at}, "same"])).collect();
    assert_eq!(server.calls(json!(calls)).await, calls);
}

#[tokio::test]
async fn r1_references_read_earlier_responses() {
    let server = TestServer::new().await;
    let of = |call: &str, path: &str| json!({"resultOf": call, "name": "Core/echo", "path": path});
    let calls = json!([
        ["Core/echo", {"list": [{"id": "e1"}, {"id": "e2"}], "none": null}, "c0"],
        ["Core/echo", {"#ids": of("c0", "/list/*/id"), "#none": of("c0", "/none"), "all": true}, "c1"],
        ["Core/echo", {"#x": of("c2", "/all")}, "c2"],
        ["Core/echo", {"#x": of("c0", "/absent")}, "c3"],
        ["Core/echo", {"#x": of("c1", "/all"), "x": 1}, "c4"],
        ["Core/echo", {"#x": of("c3", "/type")}, "c5"],
    ]);
    let responses = server.calls(calls).await;
    assert_eq!(responses[1], json!(["Core/echo", {"ids": ["e1", "e2"], "none": null, "all": true}, "c1"]));
    let types: Vec<&Value> = responses[2..].iter().map(|response| &response[1]["type"]).collect();
    assert_eq!(
        types,
        ["invalidResultReference", "invalidResultReference", "invalidArguments", "invalidResultReference"]
    );
}

#[tokio::test]
async fn r4_created_ids_are_returned_only_if_sent() {
    let server = TestServer::new().await;
    let upload = json!({"accountId": server.alice.id, "create": {"k": {"data": [{"data:asText": "x"}]}}});
    let mut request =
        json!({"using": [CORE, "urn:ietf:params:jmap:blob"], "methodCalls": [["Blob/upload", upload, "c"]]});
    let (_, answer) = server.post(&server.alice, request.to_string()).await;
    assert_eq!(answer.get("createdIds"), None);
    request["createdIds"] = json!({"old": "m1"});
    let (_, answer) = server.post(&server.alice, request.to_string()).await;
    let id = &answer["methodResponses"][0][1]["created"]["k"]["id"];
    assert_eq!(answer["createdIds"], json!({"old": "m1", "k": id}));
}

#[tokio::test]
async fn r3_a_creation_id_names_what_was_made() {
    let server = TestServer::new().await;
    let account = &server.alice.id;
    let calls = json!([
        ["Blob/upload", {"accountId": account, "create": {"k": {"data": [{"data:asText": "x"}]}}}, "c0"],
        ["Blob/get", {"accountId": account, "ids": ["#k", "#unknown"], "properties": ["data:asText"]}, "c1"],
    ]);
    let responses = server.calls(calls).await;
    let id = &responses[0][1]["created"]["k"]["id"];
    assert_eq!(responses[1][1]["list"], json!([{"id": id, "data:asText": "x"}]));
    assert_eq!(responses[1][1]["notFound"], json!(["#unknown"]));
}

#[tokio::test]
async fn h6_requests_without_credentials_and_tokens_for_other_things_are_refused() {
    let server = TestServer::new().await;
    let mut nobody = server.alice.clone();
    nobody.token = "wrong".to_owned();
    let mut chat = server.alice.clone();
    chat.token = token_of(&server.directory, &chat.address, Scope::Chat).await;
    for path in [
        "/.well-known/jmap",
        "/jmap/events?types=*&closeafter=no&ping=0",
        "/jmap/ws",
        "/jmap/download/a1/be1/x",
    ] {
        let response = server.get(&nobody, path).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{path}");
        assert!(response.headers().contains_key(header::WWW_AUTHENTICATE));
        assert_eq!(server.get(&chat, path).await.status(), StatusCode::FORBIDDEN, "{path}");
    }
    let (status, _) = server.post(&nobody, "{}").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn h7_preflights_of_allowed_pages_are_answered() {
    let server = TestServer::new().await;
    let preflight = |origin: &str| {
        let request =
            Request::options("/jmap/api").header(header::ORIGIN, origin).header(header::HOST, "localhost");
        let request = request.header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST");
        server.send(&server.alice, request.body(Body::empty()).unwrap())
    };
    let allowed = preflight("https://client.example").await;
    assert_eq!(allowed.status(), StatusCode::NO_CONTENT);
    assert_eq!(allowed.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://client.example");
    assert_eq!(preflight("https://other.example").await.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn h8_an_answer_is_one_piece_with_its_length() {
    use axum::body::HttpBody;
    let server = TestServer::new().await;
    let request = json!({"using": [CORE], "methodCalls": [["Core/echo", {"x": "x".repeat(1_000_000)}, "c"]]});
    let request = Request::post("/jmap/api")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(request.to_string()))
        .unwrap();
    let mut body = server.send(&server.alice, request).await.into_body();
    let length = body.size_hint().exact().expect("the length is known");
    let first = http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first.len() as u64, length);
    assert!(body.is_end_stream());
}
