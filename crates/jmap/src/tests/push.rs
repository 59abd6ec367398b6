//! State changes over an event stream.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use http_body_util::BodyExt;
use restante_directory::{Access, Operation};
use restante_mail::mailbox;
use restante_records::{AccountId, Body as RecordBody, Change, Commit, Properties};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::testing::{TestServer, User, body_of};

/// Long enough for the busiest machine; an event that takes longer is considered missing.
const PATIENCE: Duration = Duration::from_secs(60);

/// A change that is pushed to clients: a new mailbox record.
pub(super) async fn change(server: &TestServer, account: AccountId) -> u64 {
    let create = Change::Create {
        kind: mailbox::KIND,
        body: RecordBody::default(),
        properties: Properties::default(),
    };
    server.records.records.commit(account, Commit::of([create])).await.unwrap().revision.0
}

struct Stream(Body);

impl Stream {
    async fn open(server: &TestServer, user: &User, query: &str, last: Option<&str>) -> Self {
        let mut request = Request::get(format!("/jmap/events?{query}"));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = server.send(user, request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self(response.into_body())
    }

    /// The name, the id and the data of the next event; `None` at the end.
    async fn next(&mut self) -> Option<(String, Option<String>, Value)> {
        let frame = timeout(PATIENCE, self.0.frame()).await.expect("an event")?;
        let text = String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap();
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned))
        };
        let data = field("data").map_or(Value::Null, |data| serde_json::from_str(&data).unwrap());
        Some((field("event").unwrap_or_default(), field("id"), data))
    }
}

#[tokio::test]
async fn p1_a_commit_is_a_state_change() {
    let server = TestServer::new().await;
    let mut stream = Stream::open(&server, &server.alice, "types=*&closeafter=no&ping=0", None).await;
    let revision = change(&server, server.alice.account).await;
    let (event, _, data) = stream.next().await.unwrap();
    assert_eq!(event, "state");
    let expected =
        json!({"@type": "StateChange", "changed": {&server.alice.id: {"Mailbox": revision.to_string()}}});
    assert_eq!(data, expected);
}

/// Regression test: a quota has no commit in its account, so nothing was pushed.
#[tokio::test]
async fn p1_another_quota_is_a_state_change_also_for_those_with_a_grant() {
    let server = TestServer::new().await;
    server.grant(&server.bob, &server.alice, Access::Read).await;
    let mut stream = Stream::open(&server, &server.alice, "types=Quota&closeafter=no&ping=0", None).await;
    for owner in [&server.alice, &server.bob] {
        let set = Operation::SetQuota { address: owner.address.clone(), quota_bytes: Some(4_000_000) };
        server.operate(set).await;
        let get = json!({"accountId": owner.id, "ids": null});
        let state = server.call("Quota/get", get).await["state"].clone();
        let (_, _, data) = stream.next().await.unwrap();
        assert_eq!(data["changed"], json!({&owner.id: {"Quota": state}}));
    }
}

/// Regression test: clients fetched these types, and got `accountNotSupportedByMethod`.
#[tokio::test]
async fn p1_identities_and_submissions_of_other_accounts_are_not_announced() {
    let server = TestServer::new().await;
    server.grant(&server.bob, &server.alice, Access::Write).await;
    // An invalid id: all states count as new.
    let mut stream = Stream::open(&server, &server.alice, "types=*&closeafter=no&ping=0", Some("x")).await;
    let (_, _, data) = stream.next().await.unwrap();
    let types = |id: &str| data["changed"][id].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let mut own = types(&server.alice.id);
    assert_eq!(own.len(), 8);
    own.retain(|name| !["Identity", "EmailSubmission"].contains(&name.as_str()));
    assert_eq!(types(&server.bob.id), own);
}

#[tokio::test]
async fn p2_other_types_and_other_accounts_are_not_announced() {
    let server = TestServer::new().await;
    server.grant(&server.bob, &server.alice, Access::Read).await;
    let mut emails = Stream::open(&server, &server.alice, "types=Email&closeafter=no&ping=0", None).await;
    let mut all = Stream::open(&server, &server.alice, "types=*&closeafter=no&ping=0", None).await;
    let mut bobs = Stream::open(&server, &server.bob, "types=*&closeafter=no&ping=0", None).await;
    change(&server, server.alice.account).await;
    assert!(all.next().await.unwrap().2["changed"][&server.alice.id].is_object());
    change(&server, server.bob.account).await;
    assert!(
        all.next().await.unwrap().2["changed"][&server.bob.id].is_object(),
        "alice may read that account"
    );
    let (_, _, data) = bobs.next().await.unwrap();
    let accounts: Vec<&String> = data["changed"].as_object().unwrap().keys().collect();
    assert_eq!(accounts, [&server.bob.id]);
    let nothing = timeout(Duration::from_millis(50), emails.0.frame()).await;
    assert!(nothing.is_err(), "no email changed");
}

#[tokio::test]
async fn p2_closeafter_state_ends_the_stream_after_one_event() {
    let server = TestServer::new().await;
    let mut stream = Stream::open(&server, &server.alice, "types=*&closeafter=state&ping=0", None).await;
    change(&server, server.alice.account).await;
    assert_eq!(stream.next().await.unwrap().0, "state");
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn p2_a_client_that_comes_back_gets_what_it_missed_at_once() {
    let server = TestServer::new().await;
    let query = "types=*&closeafter=no&ping=0";
    let mut stream = Stream::open(&server, &server.alice, query, None).await;
    change(&server, server.alice.account).await;
    let (_, id, _) = stream.next().await.unwrap();
    drop(stream);
    let missed = change(&server, server.alice.account).await;
    let mut stream = Stream::open(&server, &server.alice, query, id.as_deref()).await;
    let (_, newest, data) = stream.next().await.unwrap();
    assert_eq!(data["changed"][&server.alice.id], json!({"Mailbox": missed.to_string()}));
    drop(stream);
    // An invalid id: all states count as new.
    let mut stream = Stream::open(&server, &server.alice, query, Some("x")).await;
    let (_, id, data) = stream.next().await.unwrap();
    assert_eq!(data["changed"][&server.alice.id].as_object().unwrap().len(), 8);
    assert_eq!(id, newest, "an id is the whole state");
}

#[tokio::test(start_paused = true)]
async fn p2_pings_are_counted_from_the_last_event() {
    let server = TestServer::in_memory(crate::JmapConfig { push_delay_ms: 1, ..Default::default() }).await;
    let begun = tokio::time::Instant::now();
    let mut stream = Stream::open(&server, &server.alice, "types=*&closeafter=no&ping=40", None).await;
    tokio::time::advance(Duration::from_secs(20)).await;
    change(&server, server.alice.account).await;
    assert_eq!(stream.next().await.unwrap().0, "state");
    let (event, id, data) = stream.next().await.unwrap();
    assert_eq!((event.as_str(), id, data), ("ping", None, json!({"interval": 40})));
    assert_eq!(begun.elapsed().as_secs(), 60);
}

#[tokio::test]
async fn p2_bad_parameters_are_400() {
    let server = TestServer::new().await;
    for query in
        ["", "types=*&closeafter=no&ping=x", "types=&closeafter=no&ping=0", "types=*&closeafter=maybe&ping=0"]
    {
        let response = server.get(&server.alice, &format!("/jmap/events?{query}")).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{query}");
        assert!(!body_of(response).await.is_empty());
    }
}

#[tokio::test]
async fn p4_a_slow_reader_gets_the_newest_state_alone() {
    let server = TestServer::new().await;
    let mut stream = Stream::open(&server, &server.alice, "types=Mailbox&closeafter=no&ping=0", None).await;
    let mut other = Stream::open(&server, &server.alice, "types=Mailbox&closeafter=no&ping=0", None).await;
    let mut last = 0;
    for _ in 0..20 {
        last = change(&server, server.alice.account).await;
    }
    // The other reader receives everything up to the last change.
    while other.next().await.unwrap().2["changed"][&server.alice.id]["Mailbox"] != *last.to_string() {}
    let (_, _, data) = stream.next().await.unwrap();
    assert_eq!(data["changed"][&server.alice.id]["Mailbox"], last.to_string());
    let nothing = timeout(Duration::from_millis(50), stream.0.frame()).await;
    assert!(nothing.is_err(), "what is between is left out");
}

#[tokio::test(start_paused = true)]
async fn p4_changes_of_the_same_time_are_joined() {
    let config = crate::JmapConfig { push_delay_ms: 60, ..crate::JmapConfig::default() };
    let server = TestServer::in_memory(config).await;
    let mut stream = Stream::open(&server, &server.alice, "types=*&closeafter=no&ping=0", None).await;
    let begun = tokio::time::Instant::now();
    let mut last = 0;
    for _ in 0..3 {
        last = change(&server, server.alice.account).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (_, _, data) = stream.next().await.unwrap();
    assert_eq!(data["changed"][&server.alice.id]["Mailbox"], last.to_string());
    let took = begun.elapsed().as_millis();
    assert!((50..=100).contains(&took), "{took}");
}

#[tokio::test]
async fn p4_an_account_that_nobody_listens_to_takes_no_memory() {
    let server = TestServer::new().await;
    let stream = Stream::open(&server, &server.alice, "types=*&closeafter=no&ping=0", None).await;
    let other = Stream::open(&server, &server.alice, "types=*&closeafter=no&ping=0", None).await;
    assert_eq!(server.door.listened(), 1);
    drop(stream);
    assert_eq!(server.door.listened(), 1);
    drop(other);
    assert_eq!(server.door.listened(), 0);
}

#[tokio::test]
async fn p1_a_delivery_moves_email_delivery() {
    let server = TestServer::new().await;
    let email = server.deliver("Subject: first\n\ntext\n").await;
    let query = "types=Email,EmailDelivery,Mailbox,Thread&closeafter=no&ping=0";
    let mut stream = Stream::open(&server, &server.alice, query, None).await;
    server.deliver("Subject: second\n\ntext\n").await;
    let (_, _, data) = stream.next().await.unwrap();
    let changed = data["changed"][&server.alice.id].as_object().unwrap();
    let names: Vec<&String> = changed.keys().collect();
    assert_eq!(names, ["Email", "EmailDelivery", "Mailbox", "Thread"]);
    let seen = restante_mail::EmailUpdate {
        if_in_state: None,
        mailboxes: restante_mail::Patch::Keep,
        keywords: restante_mail::Patch::Whole(["$seen".to_owned()].into()),
    };
    server.mail.update_email(server.alice.account, email, seen).await.unwrap();
    let (_, _, data) = stream.next().await.unwrap();
    let changed = data["changed"][&server.alice.id].as_object().unwrap();
    assert!(changed.contains_key("Email") && !changed.contains_key("EmailDelivery"), "{data}");
}

#[tokio::test]
async fn p2_streams_end_when_the_door_closes() {
    use restante_operate::Door;
    let server = TestServer::new().await;
    let mut stream = Stream::open(&server, &server.alice, "types=*&closeafter=no&ping=0", None).await;
    server.door.close().await;
    assert!(stream.next().await.is_none());
}
