//! The session object.

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use restante_directory::{Access, Operation};
use restante_mail::MailConfig;
use serde_json::{Value, json};

use crate::{
    JmapConfig,
    testing::{TestServer, User, body_of},
};

async fn session(server: &TestServer, user: &User) -> Value {
    let response = server.get(user, "/.well-known/jmap").await;
    assert_eq!(response.status(), StatusCode::OK);
    serde_json::from_slice(&body_of(response).await).unwrap()
}

#[tokio::test]
async fn h1_all_urls_are_absolute_from_the_host_of_the_request() {
    let server = TestServer::new().await;
    let session = session(&server, &server.alice).await;
    for url in ["apiUrl", "downloadUrl", "uploadUrl", "eventSourceUrl"] {
        let url = session[url].as_str().unwrap();
        assert!(url.starts_with("http://localhost:8080/jmap/"), "{url}");
    }
    let socket = &session["capabilities"]["urn:ietf:params:jmap:websocket"];
    assert_eq!(socket, &json!({"url": "ws://localhost:8080/jmap/ws", "supportsPush": true}));
}

#[tokio::test]
async fn h1_all_urls_are_those_of_the_settings() {
    let url = Some("https://mail.example.org");
    let server = TestServer::open(JmapConfig::default(), MailConfig::default(), url).await;
    let session = session(&server, &server.alice).await;
    assert_eq!(session["apiUrl"], "https://mail.example.org/jmap/api");
    let socket = &session["capabilities"]["urn:ietf:params:jmap:websocket"]["url"];
    assert_eq!(socket, "wss://mail.example.org/jmap/ws");
}

#[tokio::test]
async fn h1_a_request_of_http2_names_the_host_in_its_uri_and_a_wrong_host_is_refused() {
    let server = TestServer::new().await;
    let response = server.get(&server.alice, "https://localhost:9/.well-known/jmap").await;
    let session: Value = serde_json::from_slice(&body_of(response).await).unwrap();
    assert_eq!(session["apiUrl"], "http://localhost:9/jmap/api");
    for host in ["user@localhost", "local host", ""] {
        let request =
            Request::get("/.well-known/jmap").header(header::HOST, host).body(Body::empty()).unwrap();
        let status = server.send(&server.alice, request).await.status();
        assert!(status == StatusCode::BAD_REQUEST || status == StatusCode::FORBIDDEN, "{host}: {status}");
    }
}

#[tokio::test]
async fn h2_the_session_has_its_members_and_is_never_stored() {
    let server = TestServer::new().await;
    let response = server.get(&server.alice, "/.well-known/jmap").await;
    assert_eq!(response.headers()[header::CACHE_CONTROL], "no-cache, no-store, must-revalidate");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    let session: Value = serde_json::from_slice(&body_of(response).await).unwrap();
    let mut names: Vec<&String> = session.as_object().unwrap().keys().collect();
    names.sort();
    let expected = [
        "accounts",
        "apiUrl",
        "capabilities",
        "downloadUrl",
        "eventSourceUrl",
        "primaryAccounts",
        "state",
        "uploadUrl",
        "username",
    ];
    assert_eq!(names, expected);
    assert_eq!(session["username"], "alice@example.org");
}

#[tokio::test]
async fn h2_the_state_moves_with_the_session_and_is_in_every_response() {
    let server = TestServer::new().await;
    let state_of_response = async || {
        let (_, answer) = server.post(&server.alice, r#"{"using":[],"methodCalls":[]}"#).await;
        answer["sessionState"].clone()
    };
    let before = session(&server, &server.alice).await;
    assert_eq!(session(&server, &server.alice).await, before);
    assert_eq!(state_of_response().await, before["state"]);
    let mut states = vec![before["state"].clone(), session(&server, &server.bob).await["state"].clone()];
    for access in [Access::Read, Access::Write] {
        server.grant(&server.bob, &server.alice, access).await;
        let state = session(&server, &server.alice).await["state"].clone();
        assert_eq!(state_of_response().await, state);
        states.push(state);
    }
    let removed = server.bob.address.clone();
    server.operate(Operation::RemoveAccount { address: removed }).await;
    assert_eq!(state_of_response().await, before["state"], "all is as it was");
    let other_host =
        Request::get("/.well-known/jmap").header(header::HOST, "127.0.0.1").body(Body::empty()).unwrap();
    let response = server.send(&server.alice, other_host).await;
    let other: Value = serde_json::from_slice(&body_of(response).await).unwrap();
    states.push(other["state"].clone());
    for (at, state) in states.iter().enumerate() {
        assert!(state.is_string() && !states[..at].contains(state), "{states:?}");
    }
}

#[tokio::test]
async fn h3_the_limits_are_what_rfc_8620_wants_at_least() {
    let server = TestServer::new().await;
    let session = session(&server, &server.alice).await;
    let core = &session["capabilities"]["urn:ietf:params:jmap:core"];
    for (name, least) in [
        ("maxSizeUpload", 50_000_000),
        ("maxConcurrentUpload", 4),
        ("maxSizeRequest", 10_000_000),
        ("maxConcurrentRequests", 4),
        ("maxCallsInRequest", 16),
        ("maxObjectsInGet", 500),
        ("maxObjectsInSet", 500),
    ] {
        assert!(core[name].as_u64().unwrap() >= least, "{name}");
    }
    let collations = json!(["i;ascii-casemap", "i;unicode-casemap", "i;ascii-numeric", "i;octet"]);
    assert_eq!(core["collationAlgorithms"], collations);
}

#[tokio::test]
async fn h4_accounts_have_their_limits_and_granted_ones_are_listed() {
    let server = TestServer::new().await;
    server.grant(&server.bob, &server.alice, Access::Read).await;
    let session = session(&server, &server.alice).await;
    let own = &session["accounts"][&server.alice.id];
    assert_eq!(
        (&own["name"], &own["isPersonal"], &own["isReadOnly"]),
        (&json!("alice@example.org"), &json!(true), &json!(false))
    );
    let mail = &own["accountCapabilities"]["urn:ietf:params:jmap:mail"];
    assert!(mail["maxSizeMailboxName"].as_u64().unwrap() >= 100);
    assert_eq!(mail["mayCreateTopLevelMailbox"], true);
    for name in ["maxMailboxesPerEmail", "maxMailboxDepth", "maxSizeAttachmentsPerEmail"] {
        assert!(mail[name].is_u64(), "{name}");
    }
    assert!(mail["emailQuerySortOptions"].as_array().unwrap().contains(&json!("receivedAt")));
    let granted = &session["accounts"][&server.bob.id];
    assert_eq!(
        (&granted["name"], &granted["isPersonal"], &granted["isReadOnly"]),
        (&json!("bob@example.org"), &json!(false), &json!(true))
    );
    assert_eq!(
        granted["accountCapabilities"]["urn:ietf:params:jmap:mail"]["mayCreateTopLevelMailbox"],
        false
    );
    // Only the user's own account can send.
    for (account, can_send) in [(own, true), (granted, false)] {
        let submission = &account["accountCapabilities"]["urn:ietf:params:jmap:submission"];
        assert_eq!(submission.is_object(), can_send, "{account}");
    }
    let primary = session["primaryAccounts"].as_object().unwrap();
    assert!(!primary.contains_key("urn:ietf:params:jmap:core"));
    assert!(primary.values().all(|account| *account == json!(server.alice.id)));
    for capability in ["mail", "blob", "quota"] {
        assert_eq!(session["capabilities"][format!("urn:ietf:params:jmap:{capability}")], json!({}));
    }
    let blob = &own["accountCapabilities"]["urn:ietf:params:jmap:blob"];
    assert!(blob["maxDataSources"].as_u64().unwrap() >= 64);
}

#[tokio::test]
async fn h5_the_templates_have_all_their_variables() {
    let server = TestServer::new().await;
    let session = session(&server, &server.alice).await;
    for (url, variables) in [
        ("downloadUrl", &["{accountId}", "{blobId}", "{name}", "{type}"][..]),
        ("uploadUrl", &["{accountId}"]),
        ("eventSourceUrl", &["{types}", "{closeafter}", "{ping}"]),
    ] {
        let url = session[url].as_str().unwrap();
        assert!(variables.iter().all(|variable| url.contains(variable)), "{url}");
    }
    let download = session["downloadUrl"].as_str().unwrap();
    assert!(download.find('?').unwrap() < download.find("{type}").unwrap());
}
