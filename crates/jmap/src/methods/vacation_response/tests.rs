use serde_json::{Value, json};

use crate::testing::TestServer;

async fn call(server: &TestServer, name: &str, mut arguments: Value) -> Value {
    arguments["accountId"] = json!(server.alice.id);
    server.call(name, arguments).await
}

async fn update(server: &TestServer, patch: Value) -> Value {
    call(server, "VacationResponse/set", json!({"update": {"singleton": patch}})).await
}

#[tokio::test]
async fn vac1_each_account_has_one_response_with_the_id_singleton() {
    let server = TestServer::new().await;
    let get = call(&server, "VacationResponse/get", json!({})).await;
    let expected = json!([{
        "id": "singleton", "isEnabled": false, "fromDate": null, "toDate": null, "subject": null, "textBody": null,
        "htmlBody": null,
    }]);
    assert_eq!((&get["list"], &get["notFound"]), (&expected, &json!([])));
    let get = call(&server, "VacationResponse/get", json!({"ids": ["x", "singleton"]})).await;
    assert_eq!((get["list"].as_array().unwrap().len(), &get["notFound"]), (1, &json!(["x"])));
    let arguments = json!({"create": {"k": {}}, "destroy": ["singleton", "x"], "update": {"x": {}}});
    let set = call(&server, "VacationResponse/set", arguments).await;
    assert_eq!(set["notCreated"]["k"]["type"], "singleton");
    assert_eq!(set["notDestroyed"]["singleton"]["type"], "singleton");
    assert_eq!(set["notDestroyed"]["x"]["type"], "notFound");
    assert_eq!(set["notUpdated"]["x"]["type"], "notFound");
    assert_eq!((&set["oldState"], &set["newState"]), (&get["state"], &get["state"]));
}

#[tokio::test]
async fn vac2_a_patch_changes_the_response_and_its_state() {
    let server = TestServer::new().await;
    let patch = json!({
        "isEnabled": true, "fromDate": "2027-01-15T08:00:00Z", "toDate": "2027-01-20T08:00:00Z",
        "subject": "Away", "textBody": "Back soon.", "htmlBody": "<p>Back soon.</p>", "id": "singleton",
    });
    let set = update(&server, patch.clone()).await;
    assert_eq!(set["updated"], json!({"singleton": null}), "{set}");
    let get = call(&server, "VacationResponse/get", json!({})).await;
    assert_eq!((&get["list"][0], &get["state"]), (&patch, &set["newState"]));
    assert_ne!(set["oldState"], set["newState"]);
    let again = update(&server, json!({"isEnabled": true})).await;
    assert_eq!(again["newState"], set["newState"], "nothing was changed");
    update(&server, json!({"toDate": null, "htmlBody": null})).await;
    let get = call(&server, "VacationResponse/get", json!({"properties": ["toDate", "htmlBody"]})).await;
    assert_eq!(get["list"], json!([{"id": "singleton", "toDate": null, "htmlBody": null}]));
    let stale = json!({"ifInState": set["oldState"], "update": {"singleton": {}}});
    assert_eq!(call(&server, "VacationResponse/set", stale).await["type"], "stateMismatch");
}

#[tokio::test]
async fn vac2_values_of_other_types_are_invalid() {
    let server = TestServer::new().await;
    for (patch, bad) in [
        (json!({"isEnabled": null}), "isEnabled"),
        (json!({"fromDate": "2027-01-15T10:00:00+02:00"}), "fromDate"),
        (json!({"fromDate": "2027-02-30T08:00:00Z"}), "fromDate"),
        (json!({"isEnabled": "yes"}), "isEnabled"),
        (json!({"fromDate": "tomorrow"}), "fromDate"),
        (json!({"toDate": 1}), "toDate"),
        (json!({"subject": "a\r\nBcc: x@example.org"}), "subject"),
        (json!({"subject": "x".repeat(999)}), "subject"),
        (json!({"textBody": 1}), "textBody"),
        (json!({"id": "other"}), "id"),
        (json!({"color": "red"}), "color"),
    ] {
        let set = update(&server, patch.clone()).await;
        assert_eq!(set["notUpdated"]["singleton"]["properties"], json!([bad]), "{patch}: {set}");
    }
    for (patch, problem) in [
        (
            json!({"toDate": "2027-01-15T10:00:00+02:00"}),
            "toDate: must be a valid time in UTC, as 2014-10-30T06:12:00Z, or null",
        ),
        (json!({"subject": "a\r\nb"}), "subject: must be one line without control characters"),
        (json!({"subject": "x".repeat(999)}), "subject: must have at most 998 bytes"),
        (json!({"htmlBody": 1}), "htmlBody: must be a text or null"),
    ] {
        let set = update(&server, patch.clone()).await;
        assert_eq!(set["notUpdated"]["singleton"]["description"], problem, "{patch}");
    }
    let set = update(&server, json!({"textBody": "x".repeat(200_000)})).await;
    assert_eq!(set["notUpdated"]["singleton"]["type"], "invalidProperties");
    assert_eq!(call(&server, "VacationResponse/get", json!({})).await["list"][0]["isEnabled"], json!(false));
}
