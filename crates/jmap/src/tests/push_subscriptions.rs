//! Pushes to the URLs of subscriptions, as a push service receives them.

use std::time::Duration;

use axum::http::StatusCode;
use restante_core::Timestamp;
use restante_directory::{Access, Answer, Operation, Scope};
use restante_operate::Door;
use restante_records::{Body as RecordBody, Change, Commit, Properties};
use serde_json::{Value, json};

use super::{
    push::change,
    push_service::{ClientKeys, PushService},
};
use crate::{
    JmapConfig, PushConfig, erase_push_subscriptions,
    push::subscriptions::list,
    testing::{TestServer, User, token_of},
};

/// Creates a subscription; returns its id.
async fn create(server: &TestServer, user: &User, subscription: Value) -> String {
    let set = server.call_as(user, "PushSubscription/set", json!({"create": {"k": subscription}})).await;
    assert_eq!(set["notCreated"], Value::Null, "{set}");
    set["created"]["k"]["id"].as_str().unwrap().to_owned()
}

async fn verify(server: &TestServer, user: &User, id: &str, code: &Value) -> Value {
    let update = json!({"update": {id: {"verificationCode": code}}});
    server.call_as(user, "PushSubscription/set", update).await
}

/// Creates a subscription to a path of the service, sends its code back, and receives the following push of all states.
async fn subscribe(
    server: &TestServer,
    service: &mut PushService,
    user: &User,
    path: &str,
    more: Value,
) -> String {
    let mut subscription = json!({"deviceClientId": "d", "url": service.url(path)});
    subscription.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let id = create(server, user, subscription).await;
    let code = service.next().await.json()["verificationCode"].clone();
    let set = verify(server, user, &id, &code).await;
    assert_eq!(set["updated"], json!({&id: null}), "{set}");
    let first = service.next().await.json();
    assert_eq!(first["@type"], "StateChange");
    id
}

async fn ids(server: &TestServer, user: &User) -> Vec<Value> {
    let got = server.call_as(user, "PushSubscription/get", json!({"ids": null})).await;
    got["list"].as_array().unwrap().clone()
}

/// Waits until the server has removed all subscriptions of a user.
async fn until_removed(server: &TestServer, user: &User) {
    while !list(&server.mail, user.account).await.unwrap().subscriptions.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn metrics(server: &TestServer) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    Door::register(&server.door, &mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[tokio::test]
async fn p5_the_code_comes_first_and_nothing_else_before_it_was_sent_back() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    let id =
        create(&server, &server.alice, json!({"deviceClientId": "d", "url": service.url("/a?b=c")})).await;
    let push = service.next().await;
    assert_eq!((push.path.as_str(), push.headers["content-type"].as_str()), ("/a?b=c", "application/json"));
    assert_eq!(push.headers["ttl"], "86400");
    assert!(!push.headers.contains_key("content-encoding"));
    let authorization = &push.headers["authorization"];
    assert!(authorization.starts_with("vapid t=") && authorization.contains(", k="), "{authorization}");
    let verification = push.json();
    assert_eq!(verification["@type"], "PushVerification");
    assert_eq!(verification["pushSubscriptionId"], id);
    let code = verification["verificationCode"].clone();
    assert!(code.as_str().unwrap().len() >= 32);

    change(&server, server.alice.account).await;
    let wrong = verify(&server, &server.alice, &id, &json!("wrong")).await;
    assert_eq!(wrong["notUpdated"][&id]["type"], "invalidProperties");
    assert_eq!(wrong["notUpdated"][&id]["properties"], json!(["verificationCode"]));
    assert!(service.is_empty());

    let right = verify(&server, &server.alice, &id, &code).await;
    assert_eq!(right["updated"], json!({&id: null}));
    // Earlier changes are not missed: the first push has all states.
    let first = service.next().await;
    assert_eq!(first.json()["changed"][&server.alice.id].as_object().unwrap().len(), 8);
    let revision = change(&server, server.alice.account).await;
    let push = service.next().await;
    let expected =
        json!({"@type": "StateChange", "changed": {&server.alice.id: {"Mailbox": revision.to_string()}}});
    assert_eq!((push.json(), push.headers["topic"].as_str()), (expected, "jmap-states"));
    assert_eq!(push.headers["urgency"], "low");
    for line in [
        "restante_jmap_pushes_total{result=\"sent\"} 3\n",
        "restante_jmap_push_subscriptions 1\n",
        "restante_jmap_pushes_waiting 0\n",
    ] {
        // It is counted when the response of the service has arrived.
        until(|| metrics(&server).contains(line)).await;
    }
}

#[tokio::test]
async fn p5_pushes_are_encrypted_for_the_keys_of_the_client() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    let keys = ClientKeys::new();
    let subscription = json!({"deviceClientId": "d", "url": service.url("/1"), "keys": keys.json()});
    let id = create(&server, &server.alice, subscription).await;
    let push = service.next().await;
    assert_eq!(push.headers["content-encoding"], "aes128gcm");
    assert_eq!(push.headers["content-type"], "application/json");
    let verification: Value = serde_json::from_slice(&keys.decrypt(&push.body)).unwrap();
    assert_eq!(verification["pushSubscriptionId"], id);

    // The keys of a test decrypt only once: this subscription uses others for the states, and its code is read from the store.
    let keys = ClientKeys::new();
    let subscription = json!({"deviceClientId": "e", "url": service.url("/2"), "keys": keys.json()});
    let id = create(&server, &server.alice, subscription).await;
    service.next().await;
    let stored = list(&server.mail, server.alice.account).await.unwrap().subscriptions;
    let stored = stored.iter().find(|found| format!("p{}", found.id.0) == id).unwrap();
    verify(&server, &server.alice, &id, &json!(stored.stored.code)).await;
    let push = service.next().await;
    assert_eq!(push.path, "/2");
    let states: Value = serde_json::from_slice(&keys.decrypt(&push.body)).unwrap();
    assert_eq!(states["@type"], "StateChange");
}

#[tokio::test]
async fn p5_only_the_types_and_accounts_of_the_subscription_are_pushed() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    server.grant(&server.bob, &server.alice, Access::Read).await;
    subscribe(&server, &mut service, &server.alice, "/emails", json!({"types": ["Email", "EmailDelivery"]}))
        .await;
    change(&server, server.alice.account).await;
    change(&server, server.bob.account).await;
    server.deliver("From: a@b.example\nSubject: x\n\nhello\n").await;
    let push = service.next().await;
    let changed = push.json()["changed"].clone();
    assert_eq!(changed.as_object().unwrap().len(), 1, "{changed}");
    let types: Vec<&String> = changed[&server.alice.id].as_object().unwrap().keys().collect();
    assert_eq!(types, ["Email", "EmailDelivery"]);
    assert_eq!(push.headers["urgency"], "normal", "mail has come");
    let id = subscribe(&server, &mut service, &server.alice, "/all", json!({"types": null})).await;
    change(&server, server.bob.account).await;
    let push = service.next().await;
    assert_eq!((push.path.as_str(), push.json()["changed"][&server.bob.id].is_object()), ("/all", true));
    // Changed types take effect at once.
    server.call("PushSubscription/set", json!({"update": {&id: {"types": ["Quota"]}}})).await;
    change(&server, server.bob.account).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(service.is_empty());
    // So do changed access rights of the user.
    let (owner, user) = (server.bob.address.clone(), server.alice.address.clone());
    server.operate(Operation::Revoke { owner, user }).await;
    server.call("PushSubscription/set", json!({"update": {&id: {"types": null}}})).await;
    change(&server, server.alice.account).await;
    let changed = service.next().await.json()["changed"].clone();
    assert!(changed[&server.bob.id].is_null(), "{changed}");
}

#[tokio::test]
async fn p5_what_failed_is_tried_again_with_the_newest_states_alone() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    service.answer(&["500 Internal Server Error"]);
    // The code, which is rejected at first, and then the states.
    let id = create(&server, &server.alice, json!({"deviceClientId": "d", "url": service.url("/a")})).await;
    let refused = service.next().await;
    let repeated = service.next().await;
    assert_eq!(refused.body, repeated.body);
    verify(&server, &server.alice, &id, &repeated.json()["verificationCode"]).await;
    service.next().await;
    service.answer(&[
        "503 Service Unavailable\r\nRetry-After: 1",
        "307 Temporary Redirect\r\nLocation: /elsewhere",
    ]);
    change(&server, server.alice.account).await;
    service.next().await;
    // Both changes are made while the push waits for its time.
    change(&server, server.alice.account).await;
    let newest = change(&server, server.alice.account).await;
    for _ in 0..2 {
        let push = service.next().await;
        assert_eq!(push.path, "/a", "redirects are not followed");
        let expected = json!({"Mailbox": newest.to_string()});
        assert_eq!(
            push.json()["changed"][&server.alice.id],
            expected,
            "the newer state has replaced the older one"
        );
    }
    let stored = list(&server.mail, server.alice.account).await.unwrap().subscriptions;
    assert!(stored[0].stored.is_verified);
}

#[tokio::test]
async fn p5_a_url_that_is_gone_is_removed() {
    for answer in ["404 Not Found", "410 Gone"] {
        let mut service = PushService::start().await;
        let server = TestServer::with(service.config()).await;
        subscribe(&server, &mut service, &server.alice, "/a", json!({})).await;
        service.answer(&[answer]);
        change(&server, server.alice.account).await;
        service.next().await;
        until_removed(&server, &server.alice).await;
        until(|| metrics(&server).contains("removed_total{reason=\"gone\"} 1\n")).await;
    }
}

#[tokio::test]
async fn p5_a_subscription_that_fails_for_days_is_removed() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    subscribe(&server, &mut service, &server.alice, "/a", json!({})).await;
    service.answer(&["400 Bad Request"; 90]);
    change(&server, server.alice.account).await;
    service.next().await;
    service.next().await;
    assert_eq!(ids(&server, &server.alice).await.len(), 1);
    server.clock.set(Timestamp::from_seconds(1_800_000_000 + 259_200));
    until_removed(&server, &server.alice).await;
    until(|| metrics(&server).contains("removed_total{reason=\"failed\"} 1\n")).await;
}

#[tokio::test]
async fn p5_nothing_is_sent_to_a_subscription_that_has_expired() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    subscribe(&server, &mut service, &server.alice, "/a", json!({"expires": "2027-01-15T09:00:00Z"})).await;
    server.clock.set(Timestamp::from_seconds(1_800_003_599));
    change(&server, server.alice.account).await;
    service.next().await;
    server.clock.set(Timestamp::from_seconds(1_800_003_600));
    assert!(ids(&server, &server.alice).await.is_empty());
    change(&server, server.alice.account).await;
    until_removed(&server, &server.alice).await;
    assert!(service.is_empty());
    until(|| metrics(&server).contains("removed_total{reason=\"expired\"} 1\n")).await;
}

#[tokio::test]
async fn p5_a_subscription_ends_with_the_token_that_created_it() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    subscribe(&server, &mut service, &server.alice, "/a", json!({})).await;
    let mut other = server.alice.clone();
    other.token = token_of(&server.directory, &other.address, Scope::Mail).await;
    let kept = subscribe(&server, &mut service, &other, "/b", json!({})).await;
    assert_eq!(ids(&server, &other).await.len(), 1, "the other log-in's is not visible");
    let tokens = server.operate(Operation::Tokens { address: other.address.clone() }).await;
    let Answer::Tokens(tokens) = tokens else { panic!("tokens") };
    let id = tokens[0].id.clone();
    server.operate(Operation::RevokeToken { address: other.address.clone(), id }).await;
    while list(&server.mail, other.account).await.unwrap().subscriptions.len() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    change(&server, other.account).await;
    assert_eq!(service.next().await.path, "/b");
    assert_eq!(ids(&server, &other).await[0]["id"], kept);
    until(|| metrics(&server).contains("removed_total{reason=\"revoked\"} 1\n")).await;
}

#[tokio::test]
async fn p5_subscriptions_survive_a_restart_and_miss_nothing() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    let key = |server: &TestServer| {
        let app = server.door.app().push.clone();
        async move { app.application_server_key().await.unwrap().to_owned() }
    };
    let before = key(&server).await;
    let id = subscribe(&server, &mut service, &server.alice, "/a", json!({})).await;
    // A code that was sent is not sent again.
    create(&server, &server.alice, json!({"deviceClientId": "e", "url": service.url("/b")})).await;
    assert_eq!(service.next().await.path, "/b");
    let codes_sent = async || {
        let stored = list(&server.mail, server.alice.account).await.unwrap().subscriptions;
        stored.iter().filter(|found| found.stored.is_code_sent).count()
    };
    while codes_sent().await < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.door.close().await;
    let revision = change(&server, server.alice.account).await;
    let door = server.restarted();
    let push = service.next().await;
    assert_eq!(push.path, "/a");
    assert_eq!(push.json()["changed"][&server.alice.id]["Mailbox"], revision.to_string());
    assert_eq!(door.app().push.running(), 2);
    assert_eq!(door.app().push.application_server_key().await.unwrap(), before);
    assert_eq!(ids(&server, &server.alice).await[0]["id"], id);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(service.is_empty());
    drop(door);
}

#[tokio::test]
async fn p5_private_addresses_are_not_connected_to() {
    let mut service = PushService::start().await;
    let config = service.config();
    let push = PushConfig { allow_private: false, ..config.push };
    let server = TestServer::with(JmapConfig { push, ..config }).await;
    let url = service.url("/a");
    let set = server
        .call("PushSubscription/set", json!({"create": {"k": {"deviceClientId": "d", "url": url}}}))
        .await;
    assert_eq!(set["notCreated"]["k"]["properties"], json!(["url"]));
    // A subscription that was created when this was still allowed.
    let mut found = {
        let allowed = TestServer::with(service.config()).await;
        create(&allowed, &allowed.alice, json!({"deviceClientId": "d", "url": url})).await;
        service.next().await;
        list(&allowed.mail, allowed.alice.account).await.unwrap().subscriptions.remove(0)
    };
    found.stored.is_code_sent = false;
    let stored = (found.ends, found.stored);
    let id = crate::push::subscriptions::create(&server.mail, server.alice.account, stored, 9).await.unwrap();
    server.door.app().push.begin(server.alice.account, id.unwrap());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(service.is_empty());
}

#[tokio::test]
async fn p5_what_an_account_has_left_is_erased_with_it() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    subscribe(&server, &mut service, &server.alice, "/a", json!({})).await;
    create(&server, &server.alice, json!({"deviceClientId": "e", "url": service.url("/b")})).await;
    service.next().await;
    create(&server, &server.bob, json!({"deviceClientId": "e", "url": service.url("/c")})).await;
    service.next().await;
    server.operate(Operation::RemoveAccount { address: server.alice.address.clone() }).await;
    until_removed(&server, &server.alice).await;
    assert_eq!(erase_push_subscriptions(&server.mail, server.bob.account).await.unwrap(), 1);
    assert_eq!(erase_push_subscriptions(&server.mail, server.bob.account).await.unwrap(), 0);
    assert!(ids(&server, &server.bob).await.is_empty());
}

#[tokio::test]
async fn p5_the_session_names_the_key_that_signs() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    let response = server.get(&server.alice, "/.well-known/jmap").await;
    assert_eq!(response.status(), StatusCode::OK);
    let session: Value = serde_json::from_slice(&crate::testing::body_of(response).await).unwrap();
    let key = &session["capabilities"]["urn:ietf:params:jmap:webpush-vapid"]["applicationServerKey"];
    create(&server, &server.alice, json!({"deviceClientId": "d", "url": service.url("/a")})).await;
    let authorization = service.next().await.headers["authorization"].clone();
    assert_eq!(authorization.split_once(", k=").unwrap().1, key.as_str().unwrap());
}

/// Regression test: each server only served the subscriptions that it had created itself, and those that it had found at its start.
#[tokio::test]
async fn p5_another_server_goes_on_with_the_subscriptions_of_one_that_is_gone() {
    let mut service = PushService::start().await;
    let server = TestServer::in_memory(service.config()).await;
    subscribe(&server, &mut service, &server.bob, "/b", json!({})).await;
    let other = server.restarted();
    assert_eq!(service.next().await.path, "/b", "it has looked for subscriptions, of alice first");
    subscribe(&server, &mut service, &server.alice, "/a", json!({})).await;
    assert_eq!(other.app().push.running(), 1);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    // The server does not know what the client has seen, like after a restart.
    let first = service.next().await.json();
    assert_eq!(first["changed"][&server.alice.id].as_object().unwrap().len(), 8);
    assert_eq!(other.app().push.running(), 2);
    server.door.close().await;
    let revision = change(&server, server.alice.account).await;
    let push = service.next().await.json();
    assert_eq!(push["changed"][&server.alice.id], json!({"Mailbox": revision.to_string()}));
    assert_eq!(ids(&server, &server.alice).await.len(), 1);
}

/// Regression test: one damaged record prevented all subscriptions of the server from being served after a restart, and those of its
/// user from being listed.
#[tokio::test]
async fn p5_a_damaged_subscription_is_left_out_and_others_are_served() {
    let mut service = PushService::start().await;
    let server = TestServer::with(service.config()).await;
    let damaged = Change::Create {
        kind: restante_mail::push::KIND,
        body: RecordBody::new(b"damaged".to_vec()),
        properties: Properties::default().with(restante_mail::push::EXPIRES, 1_900_000_000),
    };
    server.records.records.commit(server.alice.account, Commit::of([damaged])).await.unwrap();
    let alices = subscribe(&server, &mut service, &server.alice, "/a", json!({})).await;
    assert_eq!(ids(&server, &server.alice).await[0]["id"], alices);
    subscribe(&server, &mut service, &server.bob, "/b", json!({})).await;
    server.door.close().await;
    let door = server.restarted();
    let mut paths = [service.next().await.path, service.next().await.path];
    paths.sort();
    assert_eq!(paths, ["/a", "/b"]);
    assert_eq!(door.app().push.running(), 2);
}
