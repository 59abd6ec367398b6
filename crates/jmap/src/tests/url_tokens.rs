//! Tokens in URLs.

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use restante_core::Timestamp;
use restante_directory::{Answer, Operation};
use serde_json::Value;
use tower::ServiceExt;

use crate::testing::{TestServer, body_of};

const EVENTS: &str = "/jmap/events?types=*&closeafter=no&ping=0";

async fn token(server: &TestServer) -> String {
    let request = Request::post("/jmap/token").body(Body::empty()).unwrap();
    let response = server.send(&server.alice, request).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
    let answer: Value = serde_json::from_slice(&body_of(response).await).unwrap();
    assert_eq!(answer["expires"], "2027-01-15T08:10:00Z", "ten minutes from now");
    answer["accessToken"].as_str().unwrap().to_owned()
}

/// The status of a request without `Authorization`.
async fn status(server: &TestServer, method: &str, uri: &str) -> StatusCode {
    let request = Request::builder().method(method).uri(uri).header(header::HOST, "localhost:8080");
    server.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status()
}

#[tokio::test]
async fn h7_a_token_in_the_url_opens_streams_sockets_and_downloads_alone() {
    let server = TestServer::new().await;
    let token = token(&server).await;
    let blob = server.upload("hello").await;
    let get = async |uri: String| status(&server, "GET", &uri).await;
    assert_eq!(get(EVENTS.to_owned()).await, StatusCode::UNAUTHORIZED);
    assert_eq!(get(format!("{EVENTS}&access_token={token}")).await, StatusCode::OK);
    // The guard has accepted it: the error is that it is not a handshake.
    assert_eq!(get(format!("/jmap/ws?access_token={token}")).await, StatusCode::BAD_REQUEST);
    let download = format!("/jmap/download/{}/{blob}/name?type=text%2Fplain", server.alice.id);
    for method in ["GET", "HEAD"] {
        let uri = format!("{download}&access_token={token}");
        assert_eq!(status(&server, method, &uri).await, StatusCode::OK, "{method}");
        assert_eq!(status(&server, method, &download).await, StatusCode::UNAUTHORIZED, "{method}");
    }
    for uri in [format!("/.well-known/jmap?access_token={token}"), format!("/jmap/api?access_token={token}")]
    {
        assert_ne!(get(uri).await, StatusCode::OK);
    }
    for uri in ["/jmap/api", "/jmap/token"] {
        let uri = format!("{uri}?access_token={token}");
        assert_eq!(status(&server, "POST", &uri).await, StatusCode::UNAUTHORIZED, "{uri}");
    }
    let changed = format!("{EVENTS}&access_token={}x", &token[..token.len() - 1]);
    assert_eq!(get(changed).await, StatusCode::UNAUTHORIZED);
    // A long-lived token must not be used in URLs, because URLs are logged.
    assert_eq!(get(format!("{EVENTS}&access_token={}", server.alice.token)).await, StatusCode::UNAUTHORIZED);
    let mut bearer = server.alice.clone();
    bearer.token = token;
    assert_eq!(server.get(&bearer, "/.well-known/jmap").await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn h7_a_token_in_the_url_expires_and_ends_with_the_log_in_that_made_it() {
    let server = TestServer::new().await;
    let uri = format!("{EVENTS}&access_token={}", token(&server).await);
    server.clock.set(Timestamp::from_seconds(1_800_000_599));
    assert_eq!(status(&server, "GET", &uri).await, StatusCode::OK);
    server.clock.set(Timestamp::from_seconds(1_800_000_600));
    assert_eq!(status(&server, "GET", &uri).await, StatusCode::UNAUTHORIZED);

    let server = TestServer::new().await;
    let uri = format!("{EVENTS}&access_token={}", token(&server).await);
    let Answer::Tokens(tokens) =
        server.operate(Operation::Tokens { address: server.alice.address.clone() }).await
    else {
        panic!("tokens")
    };
    let id = tokens[0].id.clone();
    server.operate(Operation::RevokeToken { address: server.alice.address.clone(), id }).await;
    assert_eq!(status(&server, "GET", &uri).await, StatusCode::UNAUTHORIZED);
}
