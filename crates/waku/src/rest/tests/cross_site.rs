//! Requests that browsers send for pages of other sites.

use super::*;

const HERE: (&str, &str) = ("host", "127.0.0.1:8645");
const FORM: (&str, &str) = ("content-type", "text/plain");

async fn ask(door: &Door, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if method == "POST" { r#"{"payload": "AQID", "contentTopic": "/a/1/b/proto"}"# } else { "" };
    let request = request.body(Body::from(body)).unwrap();
    Answer::of(door.router.clone().oneshot(request).await.unwrap()).await
}

async fn archived_messages(door: &Door) -> usize {
    door.archive.query(&restante_archive::Query::default()).await.unwrap().len()
}

/// A form on a page of another site is posted without a preflight, so only the server can refuse it.
#[tokio::test]
async fn a_form_of_another_site_publishes_nothing() {
    let door = door().await;
    for page in [
        ("origin", "http://evil.example"),
        ("origin", "http://localhost:3000"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let answer = ask(&door, "POST", PUBLISH, &[HERE, FORM, page]).await;
        assert_eq!(answer.refusal().0, 403, "{page:?}: {}", answer.text());
    }
    assert_eq!(archived_messages(&door).await, 0);
}

/// Fetching relay's messages takes them out of the cache: a page that can't read the answer could still empty it.
#[tokio::test]
async fn a_page_of_another_site_reads_nothing() {
    let door = door().await;
    for path in
        [PUBLISH, "/store/v3/messages", "/archive/v1/export", "/live", "/metrics", "/info", "/nothing"]
    {
        for page in [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")] {
            assert_eq!(ask(&door, "GET", path, &[HERE, page]).await.status, 403, "{path} {page:?}");
        }
    }
}

/// DNS rebinding: for the browser such a page has this server's own origin.
#[tokio::test]
async fn a_name_that_was_made_to_lead_to_loopback_is_refused_on_every_route() {
    let door = door().await;
    let page = [
        ("host", "evil.example:8645"),
        ("origin", "http://evil.example:8645"),
        ("sec-fetch-site", "same-origin"),
    ];
    for path in ["/", PUBLISH, "/store/v3/messages", "/live", "/metrics", "/version", "/console/console.js"] {
        assert_eq!(ask(&door, "GET", path, &page).await.status, 403, "{path}");
    }
    assert_eq!(ask(&door, "POST", PUBLISH, &page).await.status, 403);
    assert_eq!(archived_messages(&door).await, 0);
}

#[tokio::test]
async fn clients_that_are_no_browsers_and_the_servers_own_page_are_served() {
    let door = door().await;
    let form = ("content-type", "application/x-www-form-urlencoded"); // the default of curl -d
    let clients: [&[(&str, &str)]; 6] = [
        &[],
        &[HERE],
        &[("host", "localhost:8645"), form],
        &[("host", "[::1]:8645")],
        &[HERE, ("origin", "http://127.0.0.1:8645")],
        &[HERE, ("origin", "null"), ("sec-fetch-site", "same-origin")],
    ];
    for (number, client) in clients.into_iter().enumerate() {
        assert_eq!(ask(&door, "POST", PUBLISH, client).await.refusal(), (200, "OK"), "client {number}");
        assert_eq!(ask(&door, "GET", "/version", client).await.refusal(), (200, "9.9.9"), "client {number}");
    }
}

#[tokio::test]
async fn links_of_other_sites_lead_to_the_console_alone() {
    let door = door().await;
    let link =
        [HERE, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("accept", "text/html")];
    assert_eq!(ask(&door, "GET", "/", &link).await.status, 200);
    assert_eq!(ask(&door, "GET", PUBLISH, &link).await.status, 403);
    assert_eq!(ask(&door, "POST", "/", &link).await.status, 403);
}

#[tokio::test]
async fn hosts_and_origins_of_the_settings_are_served_and_may_read_the_answers() {
    let config = RestConfig {
        hosts: vec!["waku.example".parse().unwrap()],
        origins: vec!["https://chat.example".parse().unwrap()],
        ..RestConfig::default()
    };
    let door = door_with(config).await;
    let (named, page) = (("host", "Waku.example:443"), ("origin", "https://chat.example"));
    let published = ask(&door, "POST", PUBLISH, &[named, page, ("sec-fetch-site", "cross-site")]).await;
    assert_eq!(published.refusal(), (200, "OK"));
    assert_eq!(published.head["access-control-allow-origin"], "https://chat.example");
    assert_eq!(published.head["vary"], "origin");
    let asks = ("access-control-request-method", "POST");
    let preflight = ask(&door, "OPTIONS", PUBLISH, &[named, page, asks]).await;
    assert_eq!((preflight.status, preflight.body.len()), (204, 0));
    assert_eq!(preflight.head["access-control-allow-headers"], "authorization, content-type, last-event-id");
    for page in [("origin", "http://chat.example"), ("origin", "https://evil.example")] {
        assert_eq!(ask(&door, "OPTIONS", PUBLISH, &[HERE, page, asks]).await.status, 403, "{page:?}");
    }
    assert_eq!(ask(&door, "GET", "/version", &[("host", "evil.example")]).await.status, 403);
    for path in ["/console/v1/state", "/console/v1/search?contentTopicPrefix=x"] {
        assert_eq!(ask(&door, "GET", path, &[HERE, page]).await.status, 403, "{path} is for operators");
    }
}

/// Such a server can be reached without a browser's help, so its hosts may have any name.
#[tokio::test]
async fn hosts_are_checked_on_loopback_without_a_token_alone() {
    let token = Token::new("correct-horse-battery").unwrap();
    for access in
        [OperatorGuard::new(None, "0.0.0.0:8645".parse().unwrap()), OperatorGuard::new(Some(token), LOOPBACK)]
    {
        let door = door().await.with_operators(access);
        assert_eq!(ask(&door, "GET", "/version", &[("host", "waku.example")]).await.status, 200);
        let page = [("host", "waku.example"), ("origin", "http://evil.example")];
        assert_eq!(ask(&door, "POST", PUBLISH, &page).await.status, 403);
    }
}
