//! Requests of several types, as clients send them.

use serde_json::{Value, json};

use crate::testing::TestServer;

fn of(call: &str, name: &str, path: &str) -> Value {
    json!({"resultOf": call, "name": name, "path": path})
}

#[tokio::test]
async fn r2_a_thread_is_read_by_four_calls_of_one_request() {
    let server = TestServer::new().await;
    let message = |id: &str, more: &str| format!("Message-ID: <{id}@x>\nSubject: Plan\n{more}\ntext\n");
    let first = server.deliver(&message("1", "")).await;
    let second = server.deliver(&message("2", "In-Reply-To: <1@x>\n")).await;
    let account = &server.alice.id;
    let calls = json!([
        ["Email/query", {"accountId": account, "collapseThreads": true, "limit": 10}, "0"],
        ["Email/get", {"accountId": account, "#ids": of("0", "Email/query", "/ids"), "properties": ["threadId"]}, "1"],
        ["Thread/get", {"accountId": account, "#ids": of("1", "Email/get", "/list/*/threadId")}, "2"],
        ["Email/get", {"accountId": account, "#ids": of("2", "Thread/get", "/list/*/emailIds"), "properties": ["subject"]}, "3"],
    ]);
    let responses = server.calls(calls).await;
    assert_eq!(responses[0][1]["ids"].as_array().unwrap().len(), 1, "{responses:?}");
    let subject = |id: restante_records::RecordId| json!({"id": format!("e{}", id.0), "subject": "Plan"});
    assert_eq!(responses[3][1]["list"], json!([subject(first), subject(second)]));
}

#[tokio::test]
async fn r3_creation_ids_cross_types_and_calls() {
    let server = TestServer::new().await;
    let account = &server.alice.id;
    let email = json!({"mailboxIds": {"#box": true}, "subject": "made", "textBody": [{"partId": "1", "type": "text/plain"}],
        "bodyValues": {"1": {"value": "text"}}});
    let calls = json!([
        ["Mailbox/set", {"accountId": account, "create": {"box": {"name": "Projects"}}}, "0"],
        ["Email/set", {"accountId": account, "create": {"mail": email}}, "1"],
        ["Mailbox/get", {"accountId": account, "ids": ["#box"], "properties": ["totalEmails"]}, "2"],
        ["Email/set", {"accountId": account, "update": {"#mail": {"keywords/$flagged": true}}}, "3"],
        ["Email/get", {"accountId": account, "ids": ["#mail"], "properties": ["keywords", "mailboxIds"]}, "4"],
        ["Email/set", {"accountId": account, "destroy": ["#mail", "#unknown"]}, "5"],
    ]);
    let responses = server.calls(calls).await;
    let mailbox = responses[0][1]["created"]["box"]["id"].as_str().unwrap();
    let email = responses[1][1]["created"]["mail"]["id"].as_str().unwrap();
    assert_eq!(responses[2][1]["list"], json!([{"id": mailbox, "totalEmails": 1}]));
    assert_eq!(responses[3][1]["updated"], json!({email: null}));
    let expected = json!([{"id": email, "keywords": {"$flagged": true}, "mailboxIds": {mailbox: true}}]);
    assert_eq!(responses[4][1]["list"], expected);
    assert_eq!(responses[5][1]["destroyed"], json!([email]));
    assert_eq!(responses[5][1]["notDestroyed"]["#unknown"]["type"], "notFound");
}

#[tokio::test]
async fn eq5_what_was_uploaded_and_imported_is_found_by_the_next_call() {
    let server = TestServer::new().await;
    let account = &server.alice.id;
    let blob = server.upload("From: a@example.org\r\nSubject: brought\r\n\r\ntext\r\n").await;
    let inbox = json!({"accountId": account, "filter": {"role": "inbox"}});
    let inbox = server.call("Mailbox/query", inbox).await["ids"][0].as_str().unwrap().to_owned();
    let import = json!({"k": {"blobId": blob, "mailboxIds": {&inbox: true}}});
    let calls = json!([
        ["Email/import", {"accountId": account, "emails": import}, "0"],
        ["Email/query", {"accountId": account, "filter": {"inMailbox": &inbox}}, "1"],
    ]);
    let responses = server.calls(calls).await;
    let created = &responses[0][1]["created"]["k"];
    assert_eq!(responses[1][1]["ids"], json!([created["id"]]));
    let raw = server.download(created["blobId"].as_str().unwrap()).await.unwrap();
    assert!(raw.ends_with(b"text\r\n"));
}
