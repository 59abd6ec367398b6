//! Many clients that write to one account at the same time.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use futures_util::future::join_all;
use restante_core::Error;
use restante_directory::Access;
use restante_mail::upload;
use restante_records::{
    AccountId, Commit, Query, Records,
    testing::{Hook, Hooked},
};
use serde_json::{Value, json};

use crate::{JmapConfig, core::IdType, testing::TestServer};

/// Concurrent requests of one user: as many as the session allows.
const REQUESTS: usize = 16;

/// Records whose readers wait for each other, so that all plan with the same state.
struct AllRead;

#[async_trait]
impl Hook for AllRead {
    async fn before_query(&self, _records: &dyn Records, _account: AccountId, _query: &Query) {
        for _ in 0..REQUESTS {
            tokio::task::yield_now().await;
        }
    }
}

/// Records that refuse commits that create uploads, except for the first ones.
struct FewUploads(AtomicUsize);

#[async_trait]
impl Hook for FewUploads {
    async fn before_commit(&self, commit: &Commit) -> Result<(), Error> {
        let is_upload = commit.changes.iter().any(|change| change.kind() == upload::KIND);
        if !is_upload || self.0.fetch_add(1, Ordering::Relaxed) < 2 {
            return Ok(());
        }
        Err(Error::unavailable("a test"))
    }
}

async fn server(hook: impl Hook) -> TestServer {
    let wrap = |inner| -> Arc<dyn Records> { Arc::new(Hooked { inner, hook }) };
    TestServer::with_records(JmapConfig::default(), wrap).await
}

/// Runs a call in as many concurrent requests as a user may have, and returns their responses. `arguments` gets the number of the request.
async fn at_once(server: &TestServer, name: &str, arguments: impl Fn(usize) -> Value) -> Vec<Value> {
    join_all((0..REQUESTS).map(|n| server.call(name, arguments(n)))).await
}

/// Regression test: the calls failed with `serverUnavailable`, because each lost 16 attempts against other requests.
#[tokio::test]
async fn requests_at_the_same_time_all_write() {
    let server = server(AllRead).await;
    let (alice, bob) = (&server.alice.id, &server.bob.id);
    server.grant(&server.bob, &server.alice, Access::Write).await;
    let create = |n: usize| -> Value {
        let blob = |k: usize| (format!("k{k}"), json!({"data": [{"data:asText": format!("{n} {k}")}]}));
        json!({"accountId": alice, "create": (0..5).map(blob).collect::<serde_json::Map<_, _>>()})
    };
    let mut blobs = Vec::new();
    for answer in at_once(&server, "Blob/upload", create).await {
        let created = answer["created"].as_object().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(created.len(), 5, "{answer}");
        blobs.push(created["k0"]["id"].clone());
    }
    let copy = |n: usize| json!({"fromAccountId": alice, "accountId": bob, "blobIds": [blobs[n]]});
    for answer in at_once(&server, "Blob/copy", copy).await {
        assert_eq!(answer["notCopied"], Value::Null, "{answer}");
    }
    let create = |n: usize| -> Value {
        let email = &server.alice.address.to_string();
        let identity = |k: usize| (format!("k{k}"), json!({"email": email, "name": format!("{n} {k}")}));
        json!({"accountId": alice, "create": (0..5).map(identity).collect::<serde_json::Map<_, _>>()})
    };
    for answer in at_once(&server, "Identity/set", create).await {
        assert_eq!(answer["created"].as_object().map(serde_json::Map::len), Some(5), "{answer}");
    }
    let update = |n: usize| {
        let patch = json!({"subject": format!("{n}")});
        json!({"accountId": alice, "update": {"singleton": patch}})
    };
    for answer in at_once(&server, "VacationResponse/set", update).await {
        assert_eq!(answer["updated"], json!({"singleton": null}), "{answer}");
    }
}

/// Regression test: some were answered with 503.
#[tokio::test]
async fn uploads_of_several_users_into_one_account_are_all_kept() {
    let server = server(AllRead).await;
    server.grant(&server.bob, &server.alice, Access::Write).await;
    let uploads = (0..8).map(async |n: usize| {
        let user = if n < 4 { &server.alice } else { &server.bob };
        let request = Request::post(format!("/jmap/upload/{}", server.bob.id));
        server.send(user, request.body(Body::from(format!("{n}"))).unwrap()).await.status()
    });
    assert_eq!(join_all(uploads).await, vec![StatusCode::CREATED; 8]);
}

/// Regression test: the call failed although it had already stored some blobs.
#[tokio::test]
async fn m1_a_call_that_has_stored_a_blob_does_not_fail_any_more() {
    let server = server(FewUploads(AtomicUsize::default())).await;
    let text = |text: &str| json!({"data": [{"data:asText": text}]});
    let create = json!({"a": text("a"), "b": text("b"), "c": text("c")});
    let arguments = json!({"accountId": server.alice.id, "create": create});
    let answer = server.call("Blob/upload", arguments.clone()).await;
    assert_eq!(answer["created"].as_object().unwrap().len(), 2, "{answer}");
    let failed: Vec<&Value> = answer["notCreated"].as_object().unwrap().values().collect();
    assert_eq!(failed, [&json!({"type": "serverUnavailable"})]);
    // A call that has stored nothing fails, so that the client repeats it.
    assert_eq!(server.call("Blob/upload", arguments).await["type"], "serverUnavailable");
}

#[tokio::test]
async fn m1_a_call_that_has_copied_a_blob_does_not_fail_any_more() {
    let server = server(FewUploads(AtomicUsize::default())).await;
    server.grant(&server.bob, &server.alice, Access::Write).await;
    let blob = server.upload("a").await;
    let email = server.deliver("Subject: x\n\nx\n").await;
    let get =
        json!({"accountId": server.alice.id, "ids": [IdType::Email.id(email)], "properties": ["blobId"]});
    let other = server.call("Email/get", get).await["list"][0]["blobId"].clone();
    let (from, to) = (&server.alice.id, &server.bob.id);
    let copy = |ids: Value| json!({"fromAccountId": from, "accountId": to, "blobIds": ids});
    let answer = server.call("Blob/copy", copy(json!([blob, other]))).await;
    assert_eq!(answer["copied"].as_object().unwrap().len(), 1, "{answer}");
    assert_eq!(answer["notCopied"][other.as_str().unwrap()], json!({"type": "serverUnavailable"}));
    assert_eq!(server.call("Blob/copy", copy(json!([blob]))).await["type"], "serverUnavailable");
}
