use serde_json::{Value, json};

use crate::{JmapConfig, PushConfig, testing::TestServer};

/// A server whose pushes fail at once without reaching anyone.
async fn server() -> TestServer {
    with(PushConfig::default()).await
}

async fn with(push: PushConfig) -> TestServer {
    TestServer::with(JmapConfig { push: PushConfig { allow_private: true, ..push }, ..JmapConfig::default() })
        .await
}

fn new() -> Value {
    json!({"deviceClientId": "a889-ffea-910", "url": "https://127.0.0.1:1/push"})
}

async fn set(server: &TestServer, arguments: Value) -> Value {
    server.call("PushSubscription/set", arguments).await
}

async fn create(server: &TestServer, more: Value) -> Value {
    let mut subscription = new();
    subscription.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    set(server, json!({"create": {"k": subscription}})).await
}

async fn id_of_new(server: &TestServer, more: Value) -> String {
    let created = create(server, more).await;
    created["created"]["k"]["id"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned()
}

#[tokio::test]
async fn p5_get_has_no_account_no_state_no_url_and_no_keys() {
    let server = server().await;
    let keys = crate::tests::push_service::ClientKeys::new().json();
    let id = id_of_new(&server, json!({"keys": keys, "types": ["Email"]})).await;
    let got = server.call("PushSubscription/get", json!({})).await;
    let expected = json!({"list": [{
        "id": id, "deviceClientId": "a889-ffea-910", "verificationCode": null, "expires": "2027-01-22T08:00:00Z",
        "types": ["Email"],
    }], "notFound": []});
    assert_eq!(got, expected);
    let ids = json!({"ids": [&id, "p999", "x", &id], "properties": ["types"]});
    let got = server.call("PushSubscription/get", ids).await;
    assert_eq!(got, json!({"list": [{"id": id, "types": ["Email"]}], "notFound": ["p999", "x"]}));
    for secret in ["url", "keys"] {
        let got = server.call("PushSubscription/get", json!({"properties": ["id", secret]})).await;
        assert_eq!(got["type"], "forbidden", "{secret}");
    }
    for wrong in [json!({"properties": ["x"]}), json!({"accountId": server.alice.id}), json!({"ids": "x"})] {
        let got = server.call("PushSubscription/get", wrong.clone()).await;
        assert_eq!(got["type"], "invalidArguments", "{wrong}");
    }
    let bobs = server.call_as(&server.bob, "PushSubscription/get", json!({"ids": [id]})).await;
    assert_eq!(bobs, json!({"list": [], "notFound": [id]}));
}

#[tokio::test]
async fn p5_a_creation_is_checked() {
    let server = server().await;
    let bad_keys = json!({"p256dh": "AAAA", "auth": "AAAA"});
    for (more, property) in [
        (json!({"url": null}), "url"),
        (json!({"url": "http://push.example.org/"}), "url"),
        (json!({"url": 1}), "url"),
        (json!({"deviceClientId": null}), "deviceClientId"),
        (json!({"deviceClientId": ""}), "deviceClientId"),
        (json!({"deviceClientId": "x".repeat(1_025)}), "deviceClientId"),
        (json!({"keys": bad_keys}), "keys"),
        (json!({"keys": {"p256dh": "AAAA"}}), "keys"),
        (json!({"keys": []}), "keys"),
        (json!({"verificationCode": "x"}), "verificationCode"),
        (json!({"expires": "2027-01-15T08:00:00Z"}), "expires"),
        (json!({"expires": "2028-01-15T08:00:00+01:00"}), "expires"),
        (json!({"expires": 1}), "expires"),
        (json!({"types": "Email"}), "types"),
        (json!({"types": [1]}), "types"),
        (json!({"types": vec!["x"; 101]}), "types"),
        (json!({"id": "p1"}), "id"),
        (json!({"x": 1}), "x"),
    ] {
        let created = create(&server, more.clone()).await;
        let error = &created["notCreated"]["k"];
        assert_eq!(
            (&error["type"], &error["properties"]),
            (&json!("invalidProperties"), &json!([property])),
            "{more}"
        );
    }
    let several = json!({"url": 1, "types": 1, "x": 1});
    assert_eq!(create(&server, several).await["notCreated"]["k"]["properties"], json!(["url", "types", "x"]));
    assert_eq!(
        set(&server, json!({"create": {"k": 1}})).await["notCreated"]["k"]["type"],
        "invalidProperties"
    );
    for wrong in [
        json!({"accountId": "a1"}),
        json!({"ifInState": "0"}),
        json!({"create": 1}),
        json!({"create": {"": {}}}),
    ] {
        assert_eq!(set(&server, wrong.clone()).await["type"], "invalidArguments", "{wrong}");
    }
    let nulls = json!({"keys": null, "verificationCode": null, "expires": null, "types": null});
    let answer = create(&server, nulls).await;
    let members: Vec<&String> = answer.as_object().unwrap().keys().collect();
    let mut expected = ["created", "updated", "destroyed", "notCreated", "notUpdated", "notDestroyed"];
    expected.sort_unstable();
    let mut members: Vec<&str> = members.into_iter().map(String::as_str).collect();
    members.sort_unstable();
    assert_eq!(members, expected, "no account and no states");
}

#[tokio::test]
async fn p5_the_server_bounds_when_a_subscription_expires() {
    let server = server().await;
    let week = "2027-01-22T08:00:00Z";
    assert_eq!(create(&server, json!({})).await["created"]["k"]["expires"], week);
    assert_eq!(
        create(&server, json!({"expires": "2029-01-01T00:00:00Z"})).await["created"]["k"]["expires"],
        week
    );
    let created = create(&server, json!({"expires": "2027-01-18T08:00:00Z"})).await;
    assert_eq!(created["created"]["k"].as_object().unwrap().len(), 1, "as the client has asked: {created}");
    let id = created["created"]["k"]["id"].as_str().unwrap();
    let update = |expires: Value| set(&server, json!({"update": {id: {"expires": expires}}}));
    assert_eq!(update(json!("2027-01-19T08:00:00Z")).await["updated"], json!({id: null}));
    assert_eq!(update(json!("2029-01-01T00:00:00Z")).await["updated"], json!({id: {"expires": week}}));
    assert_eq!(update(Value::Null).await["updated"], json!({id: {"expires": week}}));
    assert_eq!(
        update(json!("2020-01-01T00:00:00Z")).await["notUpdated"][id]["properties"],
        json!(["expires"])
    );
}

#[tokio::test]
async fn p5_with_a_token_that_expires_the_client_s_time_stays() {
    use restante_directory::{Actor, Answer, NewToken, Operation, Scope};
    let server = server().await;
    let token = NewToken { name: "t".to_owned(), scopes: vec![Scope::Mail], expires_in: Some(3_600) };
    let create_token = Operation::CreateToken { address: server.alice.address.clone(), token };
    let made = server.directory.operate(&Actor("test".to_owned()), create_token).await.unwrap();
    let Answer::Token { token, .. } = made else { panic!("a token") };
    let mut user = server.alice.clone();
    user.token = token;
    let create = json!({"create": {"k": new(), "l": {
        "deviceClientId": "d", "url": "https://127.0.0.1:1/", "expires": "2030-01-01T00:00:00Z"
    }}});
    let answer = server.call_as(&user, "PushSubscription/set", create).await;
    assert_eq!(answer["created"]["k"].as_object().unwrap().len(), 1, "{answer}");
    let got = server.call_as(&user, "PushSubscription/get", json!({"properties": ["expires"]})).await;
    let expires: Vec<&Value> =
        got["list"].as_array().unwrap().iter().map(|found| &found["expires"]).collect();
    assert_eq!(expires, [&Value::Null, &json!("2030-01-01T00:00:00Z")]);
    let stored = crate::push::subscriptions::list(&server.mail, user.account).await.unwrap().subscriptions;
    assert!(stored.iter().all(|found| found.ends == 1_800_003_600), "both end with the token");
}

#[tokio::test]
async fn p5_only_code_time_and_types_can_be_updated() {
    let server = server().await;
    let keys = crate::tests::push_service::ClientKeys::new().json();
    let id = id_of_new(&server, json!({"keys": keys})).await;
    let update = |patch: Value| set(&server, json!({"update": {&id: patch}}));
    let same = json!({"id": &id, "deviceClientId": "a889-ffea-910", "url": "https://127.0.0.1:1/push", "keys": keys,
        "verificationCode": null, "types": ["Email"]});
    assert_eq!(update(same).await["updated"], json!({&id: null}));
    assert_eq!(update(json!({"keys/auth": keys["auth"]})).await["updated"], json!({&id: null}));
    for (patch, property) in [
        (json!({"url": "https://127.0.0.1:1/other"}), "url"),
        (json!({"url": null}), "url"),
        (json!({"keys": null}), "keys"),
        (json!({"keys/auth": "x"}), "keys"),
        (json!({"deviceClientId": "x"}), "deviceClientId"),
        (json!({"id": "p9"}), "id"),
        (json!({"x": 1}), "x"),
        (json!({"types": {}}), "types"),
        (json!({"verificationCode": 1}), "verificationCode"),
    ] {
        let error = update(patch.clone()).await["notUpdated"][&id].clone();
        assert_eq!(
            (&error["type"], &error["properties"]),
            (&json!("invalidProperties"), &json!([property])),
            "{patch}"
        );
    }
    for patch in
        [json!({"types/0": "x"}), json!({"url/x": 1}), json!(1), json!({"types": [], "types/0": "x"})]
    {
        assert_eq!(update(patch.clone()).await["notUpdated"][&id]["type"], "invalidPatch", "{patch}");
    }
    let got = server.call("PushSubscription/get", json!({"properties": ["types"]})).await;
    assert_eq!(got["list"][0]["types"], json!(["Email"]), "nothing of what was refused was done");
    let others = json!({"update": {"p999": {}, "x": {}}, "destroy": ["p998", "#k"]});
    let answer = set(&server, others).await;
    assert_eq!(answer["notUpdated"]["p999"]["type"], "notFound");
    assert_eq!(answer["notUpdated"]["x"]["type"], "notFound");
    assert_eq!(answer["notDestroyed"], json!({"p998": {"type": "notFound"}, "#k": {"type": "notFound"}}));
}

#[tokio::test]
async fn p5_one_call_creates_updates_and_destroys() {
    let server = server().await;
    let old = id_of_new(&server, json!({})).await;
    let gone = id_of_new(&server, json!({})).await;
    let arguments = json!({"create": {"k": new()}, "update": {"#k": {"types": []}, &old: {"types": ["Email"]}, &gone: {}},
        "destroy": [&gone, &gone, "p999", "p999"]});
    let answer = set(&server, arguments).await;
    let new = answer["created"]["k"]["id"].as_str().unwrap();
    assert_eq!(answer["updated"], json!({new: null, &old: null}));
    assert_eq!(answer["notUpdated"], json!({&gone: {"type": "willDestroy"}}));
    assert_eq!(answer["destroyed"], json!([gone]), "each once");
    assert_eq!(answer["notDestroyed"], json!({"p999": {"type": "notFound"}}));
    let got = server
        .call("PushSubscription/get", json!({"ids": [&old, new, &gone], "properties": ["types"]}))
        .await;
    let list = json!([{"id": old, "types": ["Email"]}, {"id": new, "types": []}]);
    assert_eq!((&got["list"], &got["notFound"]), (&list, &json!([gone])));
    let bobs = json!({"update": {&old: {"types": null}}, "destroy": [&old]});
    let bobs = server.call_as(&server.bob, "PushSubscription/set", bobs).await;
    assert_eq!(
        (&bobs["notUpdated"][&old]["type"], &bobs["notDestroyed"][&old]["type"]),
        (&json!("notFound"), &json!("notFound"))
    );
}

#[tokio::test]
async fn p5_a_user_has_and_creates_a_bounded_number() {
    let two = restante_core::nonzero!(2);
    let server = with(PushConfig { subscriptions_per_user_max: two, ..PushConfig::default() }).await;
    let id = id_of_new(&server, json!({})).await;
    id_of_new(&server, json!({})).await;
    assert_eq!(create(&server, json!({})).await["notCreated"]["k"]["type"], "overQuota");
    set(&server, json!({"destroy": [id]})).await;
    id_of_new(&server, json!({})).await;

    let server = with(PushConfig { created_per_hour_max: two, ..PushConfig::default() }).await;
    id_of_new(&server, json!({})).await;
    id_of_new(&server, json!({})).await;
    assert_eq!(create(&server, json!({})).await["notCreated"]["k"]["type"], "rateLimit");
    let bobs = server.call_as(&server.bob, "PushSubscription/set", json!({"create": {"k": new()}})).await;
    assert!(bobs["created"]["k"].is_object(), "each user has a limit of its own");
    server.clock.set(restante_core::Timestamp::from_seconds(1_800_003_600));
    id_of_new(&server, json!({})).await;
}
