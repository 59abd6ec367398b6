use axum::http::{HeaderMap, HeaderName};
use restante_sessions::{InfoKey, InfoValue, NewSession};
use serde_json::json;

use super::*;
use crate::rest::search::SEARCH_NAMES;

const SECRET: &str = "correct-horse-battery";
const STATE: &str = "/console/v1/state";

/// The `Accept` header of a browser.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

async fn get_with(door: &Door, path: &str, headers: &[(&'static str, &str)]) -> Answer {
    send_with(door, "GET", path, headers).await
}

async fn send_with(door: &Door, method: &str, path: &str, headers: &[(&'static str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    Answer::of(door.router.clone().oneshot(request).await.unwrap()).await
}

fn with_token() -> OperatorGuard {
    OperatorGuard::new(Some(Token::new(SECRET).unwrap()), "0.0.0.0:8645".parse().unwrap())
}

fn header_of(headers: &HeaderMap, name: impl Into<HeaderName>) -> String {
    headers.get(name.into()).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn browsers_get_the_page_where_others_get_the_routes() {
    let door = door().await;
    let page = get_with(&door, "/", &[("accept", BROWSER)]).await;
    assert_eq!((page.status, &*page.content_type), (200, "text/html; charset=utf-8"));
    assert!(page.text().starts_with("<!doctype html>"));
    for accept in ["*/*", "text/plain", "application/json", ""] {
        let text = get_with(&door, "/", &[("accept", accept)]).await;
        assert!(text.refusal().1.starts_with("restante 9.9.9\n"), "{accept}");
        assert!(text.text().contains(STATE));
        assert_eq!(header_of(&text.head, header::VARY), "accept");
    }
}

#[tokio::test]
async fn the_pages_files_say_what_browsers_may_do_with_them() {
    let door = door().await;
    for (path, content_type) in [
        ("/console/console.js", "text/javascript; charset=utf-8"),
        ("/console/console.css", "text/css; charset=utf-8"),
        ("/console/icon.svg", "image/svg+xml"),
    ] {
        let file = door.get(path).await;
        assert_eq!((file.status, &*file.content_type), (200, content_type), "{path}");
        let policy = header_of(&file.head, header::CONTENT_SECURITY_POLICY);
        for rule in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"]
        {
            assert!(policy.split("; ").any(|part| part == rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header_of(&file.head, header::X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(header_of(&file.head, header::REFERRER_POLICY), "no-referrer");
        assert_eq!(header_of(&file.head, header::CACHE_CONTROL), "no-cache");
    }
    for path in ["/console/other.js", "/console/index.html"] {
        assert_eq!(door.get(path).await.refusal(), (404, "the console has no such file"), "{path}");
    }
    assert_eq!(door.get("/console/..%2Fmod.rs").await.status, 404);
}

#[tokio::test]
async fn files_that_a_browser_has_are_not_sent_again() {
    let door = door().await;
    let first = door.get("/console/console.js").await;
    let tag = header_of(&first.head, header::ETAG);
    let again = get_with(&door, "/console/console.js", &[("if-none-match", &tag)]).await;
    assert_eq!((again.status, again.body.len()), (304, 0));
    assert_eq!(header_of(&again.head, header::ETAG), tag);
    let other = get_with(&door, "/console/console.css", &[("if-none-match", &tag)]).await;
    assert_eq!(other.status, 200);
}

#[tokio::test]
async fn there_is_no_console_where_others_than_operators_can_come() {
    let open = door().await.with_operators(OperatorGuard::new(None, "0.0.0.0:8645".parse().unwrap()));
    let off = door_with(RestConfig { console: ConsolePage::Off, ..RestConfig::default() }).await;
    for door in [open, off] {
        assert!(get_with(&door, "/", &[("accept", BROWSER)]).await.refusal().1.starts_with("restante"));
        for path in [STATE, "/console/console.js", "/console/v1/search?contentTopicPrefix=x"] {
            assert_eq!(door.get(path).await.status, 404, "{path}");
        }
        assert!(!door.get("/").await.text().contains("/console/"));
    }
}

#[tokio::test]
async fn with_a_token_operators_come_from_everywhere_and_nobody_else_does() {
    let door = door().await.with_operators(with_token());
    assert_eq!(get_with(&door, "/", &[("accept", BROWSER)]).await.content_type, "text/html; charset=utf-8");
    assert_eq!(door.get("/console/console.js").await.status, 200, "there is nothing secret in it");
    let bearer = format!("Bearer {SECRET}");
    for path in [STATE, "/console/v1/search?contentTopicPrefix=x", "/admin/v1/peers"] {
        let refused = door.get(path).await;
        assert_eq!(refused.status, 401, "{path}");
        assert_eq!(header_of(&refused.head, header::WWW_AUTHENTICATE), "Bearer realm=\"restante\"");
        let wrong = get_with(&door, path, &[("authorization", "Bearer something-else-entirely")]).await;
        assert_eq!(wrong.refusal(), (401, "this is not the server's token"), "{path}");
        assert_eq!(get_with(&door, path, &[("authorization", &bearer)]).await.status, 200, "{path}");
    }
    assert_eq!(send_with(&door, "PUT", STATE, &[]).await.status, 401, "whatever is asked");
    for path in ["/store/v3/messages", "/health", "/metrics"] {
        assert_eq!(door.get(path).await.status, 200, "{path} is for everybody");
    }
}

#[tokio::test]
async fn pages_of_others_are_kept_out_without_a_token() {
    let door = door_with(RestConfig { admin: true, ..RestConfig::default() }).await;
    for path in [STATE, "/admin/v1/peers"] {
        assert_eq!(get_with(&door, path, &[("host", "localhost:8645")]).await.status, 200, "{path}");
        assert_eq!(get_with(&door, path, &[("host", "evil.example:8645")]).await.status, 403, "{path}");
    }
    let close = format!("/admin/v1/sessions/{}", "0".repeat(32));
    let from = async |origin| {
        send_with(&door, "DELETE", &close, &[("host", "localhost:8645"), ("origin", origin)]).await.status
    };
    assert_eq!(from("http://localhost:8645").await, 404, "there is no such session");
    assert_eq!(from("http://evil.example").await, 403);
}

#[tokio::test]
async fn the_state_tells_what_the_server_is_and_does() {
    let door = door_with_node(RestConfig::default(), &[PUBSUB]).await;
    door.publish("one", 0).await;
    let state = door.get(STATE).await.json();
    let server = &state["server"];
    assert_eq!((&server["version"], &server["isReady"]), (&json!("9.9.9"), &json!(true)));
    assert_eq!(server["now"], json!(NOW.nanos() / 1_000_000));
    assert_eq!((&server["problems"], &server["hasAdmin"]), (&json!([]), &json!(false)));
    assert_eq!(server["archive"]["held"]["messages"], json!(1));
    assert_eq!(server["retention"]["policy"], "none");
    assert_eq!(server["sessions"]["total"], json!(0));
    assert_eq!(server["peers"]["topics"], json!([{"name": PUBSUB, "peers": 0}]));
    let doors = server["doors"].as_array().unwrap();
    let is_on = |name: &str| doors.iter().find(|door| door["name"] == name).unwrap()["isOn"] == json!(true);
    assert!(is_on("REST") && is_on("Waku node") && is_on("Relay") && is_on("Store"));
    assert!(state["history"]["at"].is_array());
    assert_eq!(door.get("/console/v1/state?since=x").await.status, 400);
}

#[tokio::test]
async fn sessions_are_counted_by_door() {
    let door = door().await;
    for (user, name) in [("a", "rest_live"), ("b", "rest_live"), ("c", "waku_filter")] {
        let info = [(InfoKey::DOOR, Some(InfoValue::Text(name)))];
        let new = NewSession { user, resource: "x", info: &info };
        door.waku.live.sessions.open(new).await.unwrap();
    }
    let server = door.get(STATE).await.json()["server"].clone();
    assert_eq!((&server["sessions"]["total"], &server["sessions"]["users"]), (&json!(3), &json!(3)));
    let doors = json!([{"door": "rest_live", "sessions": 2}, {"door": "waku_filter", "sessions": 1}]);
    assert_eq!(
        server["sessions"]["byDoor"],
        json!({"at": NOW.nanos() / 1_000_000, "doors": doors, "isWhole": true})
    );
}

#[tokio::test]
async fn an_archive_that_is_away_is_reported_as_a_problem() {
    let door = super::about::door_with_health(super::about::away()).await;
    let server = door.get(STATE).await.json()["server"].clone();
    assert_eq!((&server["isReady"], &server["archive"]["isWell"]), (&json!(false), &json!(false)));
    assert!(server["problems"][0]["what"].is_string(), "{server}");
}

/// The first messages of a fresh server were shown only after a minute. The page polls every second.
#[tokio::test(start_paused = true)]
async fn what_is_published_is_counted_within_a_second() {
    let door = door().await;
    assert_eq!(door.get(STATE).await.json()["server"]["archive"]["held"]["messages"], json!(0));
    door.publish("one", 0).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(door.get(STATE).await.json()["server"]["archive"]["held"]["messages"], json!(1));
}

#[tokio::test]
async fn the_consoles_path_leads_to_the_console() {
    let door = door().await;
    for (path, location) in [("/console", "./"), ("/console/", "../")] {
        let answer = door.get(path).await;
        assert_eq!((answer.status, &*header_of(&answer.head, header::LOCATION)), (307, location), "{path}");
    }
}

/// The payloads that a search finds.
async fn find(door: &Door, query: &str) -> (Vec<String>, Value) {
    let found = door.get(&format!("/console/v1/search?{query}")).await.json();
    let hashes: Vec<&str> =
        found["hashes"].as_array().unwrap().iter().map(|hash| hash.as_str().unwrap()).collect();
    if hashes.is_empty() {
        return (Vec::new(), found);
    }
    let answer = door.get(&format!("/store/v3/messages?includeData=true&hashes={}", hashes.join(","))).await;
    (payloads(&answer.json()), found)
}

#[tokio::test]
async fn topics_are_found_by_how_they_begin() {
    let door = door().await;
    for (number, topic) in
        ["/toy/1/a/proto", "/toy/1/b/proto", "/other/1/a/proto", "/toy/2/a/proto"].iter().enumerate()
    {
        door.publish_on(PUBSUB, topic, &number.to_string()).await;
    }
    let sorted = |mut texts: Vec<String>| {
        texts.sort();
        texts
    };
    let (found, answer) = find(&door, "contentTopicPrefix=%2Ftoy%2F1").await;
    assert_eq!(sorted(found), ["0", "1"]);
    assert_eq!((&answer["looked"], &answer["next"]), (&json!(4), &Value::Null));
    assert_eq!(sorted(find(&door, "contentTopicPrefix=/toy/&ascending=false").await.0), ["0", "1", "3"]);
    assert!(find(&door, "contentTopicPrefix=/none").await.0.is_empty());
    let elsewhere = "contentTopicPrefix=/toy/&pubsubTopic=/waku/2/rs/1/1";
    assert!(find(&door, elsewhere).await.0.is_empty());
}

#[tokio::test]
async fn searches_go_on_where_they_stopped_and_find_each_message_once() {
    let door = door().await;
    for number in 0..7 {
        let topic = if number % 3 == 0 { "/other/1/a/proto" } else { "/toy/1/a/proto" };
        door.publish_on(PUBSUB, topic, &number.to_string()).await;
    }
    let (mut all, mut cursor) = (Vec::new(), String::new());
    for ascending in [true, false] {
        let mut pages = 0;
        loop {
            let query = format!("contentTopicPrefix=/toy/&pageSize=2&ascending={ascending}&cursor={cursor}");
            let (found, answer) = find(&door, &query).await;
            all.extend(found);
            pages += 1;
            match answer["next"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        cursor.clear();
        assert!((2..=3).contains(&pages), "{pages}");
        all.sort();
        assert_eq!(all, ["1", "2", "4", "5"], "ascending: {ascending}");
        all.clear();
    }
}

#[tokio::test]
async fn wrong_searches_are_refused() {
    let door = door().await;
    for (query, text) in [
        ("", "contentTopicPrefix: is missing"),
        ("contentTopicPrefix=", "contentTopicPrefix: expected 1 to 1024 bytes"),
        ("contentTopicPrefix=%ff", "contentTopicPrefix: is not UTF-8"),
        (
            "contentTopicPrefix=/a&pageSize=x",
            "pageSize: expected a whole number; 0 is 20, the largest page is 100",
        ),
        ("contentTopicPrefix=/a&cursor=0x1", "cursor: expected 0x and 64 hex digits"),
    ] {
        assert_eq!(door.get(&format!("/console/v1/search?{query}")).await.refusal(), (400, text));
    }
    let long = format!("/console/v1/search?contentTopicPrefix={}", "x".repeat(1_025));
    assert_eq!(door.get(&long).await.status, 400);
    let unknown = format!("/console/v1/search?contentTopicPrefix=/a&cursor=0x{}", "0".repeat(64));
    assert_eq!(door.get(&unknown).await.refusal(), (400, "cursor: no message with this hash is archived"));
}

#[test]
fn documented_names_of_a_search_are_those_that_are_understood() {
    let document: Value = serde_json::from_str(super::super::about::OPENAPI).unwrap();
    let parameters = document["paths"]["/console/v1/search"]["get"]["parameters"].as_array().unwrap();
    let mut documented: Vec<&str> =
        parameters.iter().map(|parameter| parameter["name"].as_str().unwrap()).collect();
    let mut understood = SEARCH_NAMES.to_vec();
    documented.sort_unstable();
    understood.sort_unstable();
    assert_eq!(documented, understood);
}
