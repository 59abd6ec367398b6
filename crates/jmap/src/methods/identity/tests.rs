use restante_directory::{Access, Operation};
use serde_json::{Value, json};

use crate::testing::TestServer;

async fn call(server: &TestServer, name: &str, mut arguments: Value) -> Value {
    arguments["accountId"] = json!(server.alice.id);
    server.call(name, arguments).await
}

async fn create(server: &TestServer, identity: Value) -> Value {
    let answer = call(server, "Identity/set", json!({"create": {"k": identity}})).await;
    match &answer["created"] {
        Value::Null => answer["notCreated"]["k"].clone(),
        created => created["k"].clone(),
    }
}

async fn alias(server: &TestServer, address: &str, targets: &[&str]) {
    let targets = targets.iter().map(|target| target.parse().unwrap()).collect();
    server.operate(Operation::AddAlias { address: address.parse().unwrap(), targets }).await;
}

#[tokio::test]
async fn id1_the_address_of_an_account_has_an_identity_that_stays() {
    let server = TestServer::new().await;
    let answer = call(&server, "Identity/get", json!({})).await;
    let id = answer["list"][0]["id"].clone();
    let expected = json!([{
        "id": id, "name": "", "email": "alice@example.org", "replyTo": null, "bcc": null, "textSignature": "",
        "htmlSignature": "", "mayDelete": false,
    }]);
    assert_eq!((&answer["list"], &answer["notFound"]), (&expected, &json!([])));
    let again =
        call(&server, "Identity/get", json!({"ids": [id, "i999", "x"], "properties": ["email"]})).await;
    assert_eq!(again["list"], json!([{"id": id, "email": "alice@example.org"}]));
    assert_eq!((&again["notFound"], &again["state"]), (&json!(["i999", "x"]), &answer["state"]));
    let destroyed = call(&server, "Identity/set", json!({"destroy": [id]})).await;
    assert_eq!(destroyed["notDestroyed"][id.as_str().unwrap()]["type"], "forbidden");
    assert_eq!(destroyed["newState"], answer["state"]);
}

#[tokio::test]
async fn id1_an_alias_that_leads_to_the_account_alone_has_an_identity_too() {
    let server = TestServer::new().await;
    let state = call(&server, "Identity/get", json!({})).await["state"].clone();
    alias(&server, "info@example.org", &["alice@example.org"]).await;
    alias(&server, "more@example.org", &["info@example.org"]).await;
    alias(&server, "team@example.org", &["alice@example.org", "bob@example.org"]).await;
    alias(&server, "away@example.org", &["alice@example.org", "carol@example.net"]).await;
    let changes = call(&server, "Identity/changes", json!({ "sinceState": state })).await;
    assert_eq!(changes["created"].as_array().unwrap().len(), 2);
    let answer = call(&server, "Identity/get", json!({})).await;
    let mut found: Vec<(&str, bool)> = Vec::new();
    for identity in answer["list"].as_array().unwrap() {
        found.push((identity["email"].as_str().unwrap(), identity["mayDelete"].as_bool().unwrap()));
    }
    let expected = [("alice@example.org", false), ("info@example.org", false), ("more@example.org", false)];
    assert_eq!(found, expected);
    // Without the alias its identity can be destroyed.
    let remove = Operation::RemoveAlias { address: "more@example.org".parse().unwrap(), targets: Vec::new() };
    server.operate(remove).await;
    let id = answer["list"][2]["id"].clone();
    // `mayDelete` has changed, but the state has not.
    let changes = call(&server, "Identity/changes", json!({"sinceState": answer["state"]})).await;
    assert_eq!((&changes["updated"], &changes["created"]), (&json!([id]), &json!([])));
    let get = json!({"ids": [id], "properties": ["mayDelete"]});
    let after = call(&server, "Identity/get", get.clone()).await;
    assert_eq!((&after["list"][0]["mayDelete"], &after["state"]), (&json!(true), &changes["newState"]));
    alias(&server, "more@example.org", &["info@example.org"]).await;
    let again = call(&server, "Identity/get", get.clone()).await;
    assert_eq!(again["list"][0]["mayDelete"], false);
    assert_ne!(again["state"], after["state"]);
    let remove = Operation::RemoveAlias { address: "more@example.org".parse().unwrap(), targets: Vec::new() };
    server.operate(remove).await;
    let destroyed = call(&server, "Identity/set", json!({"destroy": [id]})).await;
    assert_eq!(destroyed["destroyed"], json!([id]));
}

#[tokio::test]
async fn id2_an_identity_has_an_address_of_the_account() {
    let server = TestServer::new().await;
    alias(&server, "info@example.org", &["alice@example.org"]).await;
    alias(&server, "team@example.org", &["alice@example.org", "bob@example.org"]).await;
    for email in ["alice@example.org", "Alice@Example.org", "alice+shop@example.org", "info@example.org"] {
        let created = create(&server, json!({ "email": email })).await;
        assert_eq!(created["mayDelete"], true, "{email}: {created}");
    }
    for email in
        ["bob@example.org", "team@example.org", "nobody@example.org", "alice@example.net", "*@example.org"]
    {
        let error = create(&server, json!({ "email": email })).await;
        assert_eq!(error["type"], "forbiddenFrom", "{email}: {error}");
    }
    for wrong in [json!({}), json!({"email": "alice"}), json!({"email": 1}), json!({"email": null})] {
        let error = create(&server, wrong.clone()).await;
        assert_eq!((&error["type"], &error["properties"]), (&json!("invalidProperties"), &json!(["email"])));
    }
    let error = create(&server, json!({"email": "alice@example.org", "mayDelete": true, "x": 1})).await;
    assert_eq!(error["properties"], json!(["mayDelete", "x"]));
}

#[tokio::test]
async fn id3_all_but_the_address_can_be_changed() {
    let server = TestServer::new().await;
    let created = create(&server, json!({"email": "alice@example.org", "name": "Alice", "bcc": null})).await;
    let id = created["id"].as_str().unwrap().to_owned();
    assert_eq!(created["textSignature"], "", "the default of what was not given: {created}");
    assert_eq!((created.get("name"), created.get("bcc")), (None, None), "{created}");
    let bob = json!([{"name": "Bob", "email": "bob@example.org"}, {"name": null, "email": "b@example.net"}]);
    let patch = json!({
        "name": "A.", "replyTo": bob, "textSignature": "--\nA.", "htmlSignature": "<b>A.</b>",
        "email": "alice@example.org", "mayDelete": true,
    });
    let set = call(&server, "Identity/set", json!({"update": {id.clone(): patch}})).await;
    assert_eq!(set["updated"], json!({id.clone(): null}), "{set}");
    let get = call(&server, "Identity/get", json!({"ids": [id]})).await;
    let expected = json!([{
        "id": id, "name": "A.", "email": "alice@example.org", "replyTo": bob, "bcc": null,
        "textSignature": "--\nA.", "htmlSignature": "<b>A.</b>", "mayDelete": true,
    }]);
    assert_eq!(get["list"], expected);
    assert_eq!(set["newState"], get["state"]);
    let changes = call(&server, "Identity/changes", json!({"sinceState": set["oldState"]})).await;
    assert_eq!((&changes["updated"], &changes["newState"]), (&json!([id]), &get["state"]));
    for (patch, bad) in [
        (json!({"email": "alice+x@example.org"}), "email"),
        (json!({"mayDelete": false}), "mayDelete"),
        (json!({"name": 1}), "name"),
        (json!({"replyTo": [{"name": "x"}]}), "replyTo"),
        (json!({"bcc": "bob@example.org"}), "bcc"),
        (json!({"color": "red"}), "color"),
    ] {
        let set = call(&server, "Identity/set", json!({"update": {id.clone(): patch}})).await;
        assert_eq!(set["notUpdated"][&id]["properties"], json!([bad]), "{set}");
    }
    // Null sets the default.
    let patch = json!({"name": null, "replyTo": null});
    call(&server, "Identity/set", json!({"update": {id.clone(): patch}})).await;
    let get = call(&server, "Identity/get", json!({"ids": [id], "properties": ["name", "replyTo"]})).await;
    assert_eq!(get["list"], json!([{"id": id, "name": "", "replyTo": null}]));
    let arguments = json!({"ifInState": set["oldState"], "destroy": [id]});
    assert_eq!(call(&server, "Identity/set", arguments).await["type"], "stateMismatch");
    let arguments = json!({"destroy": [id], "update": {id.clone(): {}, "i999": {}}});
    let set = call(&server, "Identity/set", arguments).await;
    assert_eq!(set["destroyed"], json!([id]));
    assert_eq!(set["notUpdated"][&id]["type"], "willDestroy");
    assert_eq!(set["notUpdated"]["i999"]["type"], "notFound");
}

#[tokio::test]
async fn id3_an_id_that_is_repeated_is_destroyed_once() {
    let server = TestServer::new().await;
    let id = create(&server, json!({"email": "alice@example.org"})).await["id"].clone();
    let destroy = json!([id, id, "i999", "i999"]);
    let set = call(&server, "Identity/set", json!({ "destroy": destroy })).await;
    assert_eq!(
        (&set["destroyed"], &set["notDestroyed"]),
        (&json!([id]), &json!({"i999": {"type": "notFound"}}))
    );
}

#[tokio::test]
async fn id3_an_identity_of_an_older_version_is_read() {
    let server = TestServer::new().await;
    let body =
        r#"{"email":"alice@example.org","name":"A","textSignature":"","htmlSignature":"","mayDelete":false}"#;
    let properties =
        restante_records::Properties::default().with(restante_mail::identity::EMAIL, "alice@example.org");
    let create = restante_records::Change::Create {
        kind: restante_mail::identity::KIND,
        body: restante_records::Body::new(body),
        properties,
    };
    let commit = restante_records::Commit::of([create]);
    server.mail.records().commit(server.alice.account, commit).await.unwrap();
    let get = call(&server, "Identity/get", json!({"properties": ["name", "replyTo", "bcc"]})).await;
    assert_eq!(get["list"].as_array().unwrap().len(), 1);
    assert_eq!(get["list"][0]["name"], "A");
    assert_eq!((&get["list"][0]["replyTo"], &get["list"][0]["bcc"]), (&Value::Null, &Value::Null));
}

/// Regression test: a read by a user with read access created the identity of the address.
#[tokio::test]
async fn m2_accounts_of_others_have_no_identities() {
    let server = TestServer::new().await;
    let state = async || {
        let states = server.mail.records().states(server.alice.account).await.unwrap();
        states.of(restante_mail::identity::KIND)
    };
    let before = state().await;
    for access in [Access::Read, Access::Write] {
        server.grant(&server.alice, &server.bob, access).await;
        for (name, arguments) in [
            ("Identity/get", json!({})),
            ("Identity/changes", json!({"sinceState": "0"})),
            ("Identity/set", json!({"create": {"k": {"email": "alice@example.org"}}})),
            ("EmailSubmission/get", json!({})),
            ("EmailSubmission/query", json!({})),
        ] {
            let mut arguments = arguments;
            arguments["accountId"] = json!(server.alice.id);
            let answer = server.call_as(&server.bob, name, arguments).await;
            assert_eq!(answer["type"], "accountNotSupportedByMethod", "{name}");
        }
        // The account that the session lists exists.
        let arguments = json!({"accountId": server.alice.id});
        let answer = server.call_as(&server.bob, "VacationResponse/get", arguments).await;
        assert!(answer["list"].is_array(), "{answer}");
    }
    assert_eq!(state().await, before);
    let unknown = server.call_as(&server.bob, "Identity/get", json!({"accountId": "a1"})).await;
    assert_eq!(unknown["type"], "accountNotFound");
}

#[tokio::test]
async fn q4_identities_need_the_capability_of_submissions() {
    let server = TestServer::new().await;
    let calls = json!([["Identity/get", {"accountId": server.alice.id}, "c"]]);
    let request = json!({"using": ["urn:ietf:params:jmap:core"], "methodCalls": calls}).to_string();
    let (_, answer) = server.post(&server.alice, request).await;
    assert_eq!(answer["methodResponses"][0][1]["type"], "unknownMethod");
}
