use std::num::NonZero;

use restante_directory::{Access, Operation};
use restante_mail::MailConfig;
use serde_json::{Map, Value, json};

use crate::{
    JmapConfig,
    testing::{TestServer, User},
};

async fn call(server: &TestServer, name: &str, arguments: Value) -> Value {
    let mut arguments = arguments;
    arguments["accountId"] = json!(server.alice.id);
    server.call(name, arguments).await
}

async fn set(server: &TestServer, arguments: Value) -> Value {
    call(server, "Email/set", arguments).await
}

/// The id of the mailbox of a user with a role.
async fn mailbox_of(server: &TestServer, user: &User, role: &str) -> String {
    let answer = server.call_as(user, "Mailbox/get", json!({"accountId": user.id})).await;
    let list = answer["list"].as_array().unwrap();
    let mailbox = list.iter().find(|mailbox| mailbox["role"] == role).unwrap();
    mailbox["id"].as_str().unwrap().to_owned()
}

async fn mailbox(server: &TestServer, role: &str) -> String {
    mailbox_of(server, &server.alice, role).await
}

async fn email_state(server: &TestServer) -> String {
    let answer = set(server, json!({})).await;
    answer["newState"].as_str().unwrap().to_owned()
}

/// Creates an email in the drafts; returns what the server returns for it.
async fn create(server: &TestServer, email: Value) -> Value {
    let mut email = email;
    email["mailboxIds"] = json!({mailbox(server, "drafts").await: true});
    let answer = set(server, json!({"create": {"k": email}})).await;
    assert_eq!(answer["notCreated"], Value::Null, "{answer}");
    answer["created"]["k"].clone()
}

/// The octets of an email.
async fn raw(server: &TestServer, made: &Value) -> String {
    let bytes = server.download(made["blobId"].as_str().unwrap()).await.unwrap();
    assert_eq!(made["size"].as_u64().unwrap(), bytes.len() as u64);
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn error_of_create(server: &TestServer, email: Value) -> Value {
    let answer = set(server, json!({"create": {"k": email}})).await;
    assert!(answer["notCreated"]["k"].is_object(), "{answer}");
    answer["notCreated"]["k"].clone()
}

async fn import(server: &TestServer, raw: &'static str, role: &str) -> Value {
    let blob = server.upload(raw).await;
    let email = json!({"blobId": blob, "mailboxIds": {mailbox(server, role).await: true}});
    let answer = call(server, "Email/import", json!({"emails": {"k": email}})).await;
    assert_eq!(answer["notCreated"], Value::Null, "{answer}");
    answer["created"]["k"].clone()
}

#[tokio::test]
async fn es1_all_that_is_wrong_is_named_and_nothing_is_made() {
    let server = TestServer::new().await;
    let before = email_state(&server).await;
    let email =
        json!({"mailboxIds": {}, "keywords": {"a b": true}, "subject": 1, "size": 4, "colour": "red"});
    let error = error_of_create(&server, email).await;
    assert_eq!(error["type"], "invalidProperties");
    let mut properties: Vec<&str> =
        error["properties"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    properties.sort_unstable();
    assert_eq!(properties, ["colour", "keywords", "mailboxIds", "size", "subject"]);
    for email in [json!(null), json!([]), json!({})] {
        assert_eq!(error_of_create(&server, email).await["type"], "invalidProperties");
    }
    let unknown = json!({"mailboxIds": {"m999": true}});
    assert_eq!(error_of_create(&server, unknown).await["properties"], json!(["mailboxIds"]));
    assert_eq!(email_state(&server).await, before);
}

#[tokio::test]
async fn es1_a_value_that_would_be_read_otherwise_names_its_property() {
    let server = TestServer::new().await;
    let drafts = mailbox(&server, "drafts").await;
    let email = json!({"mailboxIds": {drafts: true}, "messageId": ["a b c@d>, <e"]});
    let error = error_of_create(&server, email).await;
    assert_eq!((&error["type"], &error["properties"]), (&json!("invalidProperties"), &json!(["messageId"])));
}

#[tokio::test]
async fn es2_a_draft_is_a_message_with_what_was_missing() {
    let server = TestServer::new().await;
    let made = create(
        &server,
        json!({
            "from": [{"name": "Alice", "email": "alice@example.org"}], "to": [{"email": "bob@example.org"}],
            "subject": "Größe", "bodyValues": {"t": {"value": "hello\nworld"}}, "textBody": [{"partId": "t"}],
        }),
    )
    .await;
    let raw = raw(&server, &made).await;
    let (header, body) = raw.split_once("\r\n\r\n").unwrap();
    assert!(body.starts_with("hello\r\nworld"), "{raw}");
    for field in [
        "Message-ID: <",
        "Date: ",
        "MIME-Version: 1.0",
        "From: Alice <alice@example.org>",
        "To: bob@example.org",
    ] {
        assert!(header.lines().any(|line| line.starts_with(field)), "{field} is not in {raw}");
    }
    assert!(header.contains("@example.org>\r\n") && !header.contains("Größe"), "{raw}");
    assert!(
        made["id"].as_str().unwrap().starts_with('e') && made["threadId"].as_str().unwrap().starts_with('t')
    );
}

#[tokio::test]
async fn es2_given_fields_are_kept_and_odd_drafts_are_fine() {
    let server = TestServer::new().await;
    let made = create(&server, json!({
        "messageId": ["mine@example.org"], "sentAt": "2020-01-02T03:04:05+01:00", "header:X-Odd:all": [" 1", " 2"],
        "to": [{"name": null, "email": "not an address"}], "cc": [],
    }))
    .await;
    let raw = raw(&server, &made).await;
    assert_eq!(raw.matches("Message-ID:").count(), 1);
    for line in [
        "Message-ID: <mine@example.org>\r\n",
        "Date: Thu, 2 Jan 2020 03:04:05 +0100\r\n",
        "X-Odd: 1\r\nX-Odd: 2\r\n",
    ] {
        assert!(raw.contains(line), "{line} is not in {raw}");
    }
}

#[tokio::test]
async fn es2_two_drafts_of_one_call_have_different_ids() {
    let server = TestServer::new().await;
    let drafts = mailbox(&server, "drafts").await;
    let email = json!({"mailboxIds": {drafts: true}});
    let answer = set(&server, json!({"create": {"a": email, "b": email}})).await;
    let mut ids = Vec::new();
    for key in ["a", "b"] {
        let raw = raw(&server, &answer["created"][key]).await;
        ids.push(raw.lines().find(|line| line.starts_with("Message-ID")).unwrap().to_owned());
    }
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn es3_blobs_become_parts_and_missing_ones_are_all_named() {
    let server = TestServer::new().await;
    let blob = server.upload("%PDF attached").await;
    let made = create(
        &server,
        json!({
            "bodyValues": {"t": {"value": "see there"}}, "textBody": [{"partId": "t"}],
            "attachments": [{"blobId": blob, "type": "application/pdf", "name": "a.pdf"}],
        }),
    )
    .await;
    let raw = raw(&server, &made).await;
    assert!(raw.contains("JVBERiBhdHRhY2hlZA=="), "{raw}");
    assert!(raw.contains("multipart/mixed") && raw.contains("filename=") && raw.contains("a.pdf"), "{raw}");
    let drafts = mailbox(&server, "drafts").await;
    let email = json!({"mailboxIds": {drafts: true}, "attachments": [
        {"blobId": "bu999"}, {"blobId": blob}, {"blobId": "nothing"}, {"blobId": "bu999"},
    ]});
    let error = error_of_create(&server, email).await;
    assert_eq!((&error["type"], &error["notFound"]), (&json!("blobNotFound"), &json!(["bu999", "nothing"])));
}

#[tokio::test]
async fn es3_limits_have_their_errors() {
    let mail = MailConfig {
        keywords_per_email_max: NonZero::new(2).unwrap(),
        mailboxes_per_email_max: NonZero::new(2).unwrap(),
        ..MailConfig::default()
    };
    let config = JmapConfig {
        attachments_bytes_max: NonZero::new(10).unwrap(),
        upload_bytes_max: NonZero::new(2_000).unwrap(),
        ..JmapConfig::default()
    };
    let server = TestServer::open(config, mail, None).await;
    let [drafts, sent, inbox] =
        [mailbox(&server, "drafts").await, mailbox(&server, "sent").await, mailbox(&server, "inbox").await];
    let error =
        error_of_create(&server, json!({"mailboxIds": {&drafts: true, &sent: true, &inbox: true}})).await;
    assert_eq!(error["type"], "tooManyMailboxes");
    let keywords = json!({"a": true, "b": true, "c": true});
    let error = error_of_create(&server, json!({"mailboxIds": {&drafts: true}, "keywords": keywords})).await;
    assert_eq!(error["type"], "tooManyKeywords");
    let blob = server.upload("123456").await;
    let twice = json!([{"blobId": blob}, {"blobId": blob}]);
    let error = error_of_create(&server, json!({"mailboxIds": {&drafts: true}, "attachments": twice})).await;
    assert_eq!((&error["type"], &error["maxSize"]), (&json!("tooLarge"), &json!(10)));
    let long = json!({"t": {"value": "x".repeat(3_000)}});
    let email = json!({"mailboxIds": {&drafts: true}, "bodyValues": long, "textBody": [{"partId": "t"}]});
    assert_eq!(error_of_create(&server, email).await["type"], "tooLarge");
    let parts: Vec<Value> = (0..30).map(|_| json!({"partId": "t", "type": "text/plain"})).collect();
    let structure = json!({"type": "multipart/mixed", "subParts": parts});
    let short = json!({"t": {"value": "x".repeat(100)}});
    let email = json!({"mailboxIds": {&drafts: true}, "bodyValues": short, "bodyStructure": structure});
    let error = error_of_create(&server, email).await;
    assert_eq!((&error["type"], &error["maxSize"]), (&json!("tooLarge"), &json!(2_000)), "each use counts");
    let address = server.alice.address.clone();
    server.operate(Operation::SetQuota { address, quota_bytes: Some(100) }).await;
    let error = error_of_create(&server, json!({"mailboxIds": {&drafts: true}})).await;
    assert_eq!(error["type"], "overQuota");
}

#[tokio::test]
async fn es4_keywords_and_mailboxes_change_by_patches() {
    let server = TestServer::new().await;
    let (inbox, trash) = (mailbox(&server, "inbox").await, mailbox(&server, "trash").await);
    let made = import(&server, "Subject: a\r\n\r\nb\r\n", "inbox").await;
    let id = made["id"].as_str().unwrap();
    let update = json!({"keywords/$SEEN": true, "keywords/absent": null, format!("mailboxIds/{trash}"): true, format!("mailboxIds/{inbox}"): null});
    let answer = set(&server, json!({"update": {id: update}})).await;
    assert_eq!((&answer["updated"], &answer["notUpdated"]), (&json!({id: null}), &json!(null)), "{answer}");
    let answer = call(
        &server,
        "Mailbox/get",
        json!({"ids": [inbox, trash], "properties": ["totalEmails", "unreadEmails"]}),
    )
    .await;
    let counts: Vec<_> = answer["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mailbox| (&mailbox["totalEmails"], &mailbox["unreadEmails"]))
        .collect();
    assert_eq!(counts, [(&json!(0), &json!(0)), (&json!(1), &json!(0))]);
    for (patch, properties) in [
        (json!({"keywords/a": false}), "keywords"),
        (json!({"keywords": {"a b": true}}), "keywords"),
        (json!({"mailboxIds": {}}), "mailboxIds"),
        (json!({"mailboxIds/m999": true}), "mailboxIds"),
        (json!({format!("mailboxIds/{trash}"): null}), "mailboxIds"),
    ] {
        let answer = set(&server, json!({"update": {id: patch}})).await;
        let error = &answer["notUpdated"][id];
        assert_eq!(
            (&error["type"], &error["properties"]),
            (&json!("invalidProperties"), &json!([properties])),
            "{answer}"
        );
    }
    for named in ["e999", "m1", "#none"] {
        let answer = set(&server, json!({"update": {named: {"keywords/a": true}}})).await;
        assert_eq!(answer["notUpdated"][named]["type"], "notFound", "{answer}");
    }
}

#[tokio::test]
async fn t6_what_cannot_change_may_be_given_as_it_is() {
    let server = TestServer::new().await;
    let made = import(&server, "Subject: a\r\nFrom: x@example.org\r\n\r\nb\r\n", "inbox").await;
    let id = made["id"].as_str().unwrap();
    let same = json!({
        "id": id, "blobId": made["blobId"], "threadId": made["threadId"], "size": made["size"], "subject": "a", "cc": null,
        "from": [{"name": null, "email": "x@example.org"}], "hasAttachment": false, "keywords/$flagged": true,
    });
    let answer = set(&server, json!({"update": {id: same}})).await;
    assert_eq!(answer["updated"], json!({id: null}), "{answer}");
    let other = json!({"subject": "b", "size": 1, "receivedAt": null, "flavour": 1, "id": id});
    let answer = set(&server, json!({"update": {id: other}})).await;
    let mut properties = answer["notUpdated"][id]["properties"].as_array().unwrap().clone();
    properties.sort_by_key(Value::to_string);
    assert_eq!(properties, ["flavour", "receivedAt", "size", "subject"], "{answer}");
    let answer = set(&server, json!({"update": {id: {"subject/x": 1}}})).await;
    assert_eq!(answer["notUpdated"][id]["type"], "invalidPatch");
}

#[tokio::test]
async fn t6_an_update_names_all_that_is_wrong_if_there_is_such_an_email() {
    let server = TestServer::new().await;
    let made = import(&server, "Subject: a\r\n\r\nb\r\n", "inbox").await;
    let id = made["id"].as_str().unwrap();
    let wrong = json!({"keywords/a b": true, "mailboxIds": {}, "subject": "b", "flavour": 1});
    let answer = set(&server, json!({"update": {id: wrong, "e999": wrong}})).await;
    let mut properties = answer["notUpdated"][id]["properties"].as_array().unwrap().clone();
    properties.sort_by_key(Value::to_string);
    assert_eq!(properties, ["flavour", "keywords", "mailboxIds", "subject"], "{answer}");
    assert_eq!(answer["notUpdated"]["e999"]["type"], "notFound", "{answer}");
}

#[tokio::test]
async fn t6_more_properties_than_can_be_read_fail_only_the_email_that_they_are_given_for() {
    let server = TestServer::new().await;
    let [one, other] = [create(&server, json!({})).await, create(&server, json!({})).await];
    let [one, other] = [one["id"].as_str().unwrap(), other["id"].as_str().unwrap()];
    let many: Map<String, Value> = (0..201).map(|n| (format!("header:X-{n}"), Value::Null)).collect();
    let answer = set(&server, json!({"update": {one: many, other: {"keywords/a": true}}})).await;
    assert_eq!(answer["updated"], json!({other: null}), "{answer}");
    let error = &answer["notUpdated"][one];
    assert_eq!(error["type"], "invalidProperties");
    assert_eq!(error["properties"].as_array().unwrap().len(), 201);
    let some: Map<String, Value> = many.into_iter().take(200).collect();
    let answer = set(&server, json!({"update": {one: some}})).await;
    assert_eq!(answer["updated"], json!({one: null}), "{answer}");
}

#[tokio::test]
async fn es1_a_disposition_given_as_a_header_field_is_written_once() {
    let server = TestServer::new().await;
    let blob = server.upload("content").await;
    let field = " attachment; filename=a.txt";
    let attachments = json!([{"blobId": blob, "header:Content-Disposition": field}]);
    let made = create(&server, json!({ "attachments": attachments })).await;
    let raw = raw(&server, &made).await;
    assert_eq!(raw.matches("Content-Disposition:").count(), 1, "{raw}");
    assert!(raw.contains("Content-Disposition: attachment; filename=a.txt\r\n"), "{raw}");
}

#[tokio::test]
async fn t2_one_failure_stops_no_other_and_all_maps_are_there() {
    let server = TestServer::new().await;
    let drafts = mailbox(&server, "drafts").await;
    let [a, b] = [create(&server, json!({})).await, create(&server, json!({})).await];
    let [a, b] = [a["id"].as_str().unwrap(), b["id"].as_str().unwrap()];
    let before = email_state(&server).await;
    let answer = set(&server, json!({
        "create": {"good": {"mailboxIds": {drafts: true}}, "bad": {}}, "update": {a: {"keywords/x": true}, "e999": {}},
        "destroy": [b, b, "e998"],
    }))
    .await;
    assert!(answer["created"]["good"]["id"].is_string(), "{answer}");
    assert_eq!((&answer["updated"], &answer["destroyed"]), (&json!({a: null}), &json!([b])));
    let failed = ["notCreated", "notUpdated", "notDestroyed"]
        .map(|list| answer[list].as_object().unwrap().keys().next().unwrap().clone());
    assert_eq!(failed, ["bad", "e999", "e998"]);
    assert_eq!(
        (&answer["oldState"], &answer["newState"]),
        (&json!(before), &json!(email_state(&server).await))
    );
    let names: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(names.len(), 9);
}

#[tokio::test]
async fn t1_email_set_is_made_in_the_expected_state_only() {
    let server = TestServer::new().await;
    let before = email_state(&server).await;
    let made = create(&server, json!({})).await;
    let id = made["id"].as_str().unwrap();
    for wrong in [before.as_str(), "x", "99999"] {
        let answer = set(&server, json!({"ifInState": wrong, "destroy": [id]})).await;
        assert_eq!(answer["type"], "stateMismatch", "{wrong}");
    }
    let now = email_state(&server).await;
    let update = json!({"ifInState": now, "update": {id: {"keywords/a": true}}, "destroy": ["e999"]});
    assert_eq!(set(&server, update).await["updated"], json!({id: null}));
    let many: Vec<String> = (0..1_001).map(|number| format!("e{number}")).collect();
    assert_eq!(set(&server, json!({ "destroy": many })).await["type"], "requestTooLarge");
    let answer = set(&server, json!({"update": {id: {}}, "destroy": [id]})).await;
    assert_eq!(
        (&answer["notUpdated"][id]["type"], &answer["destroyed"]),
        (&json!("willDestroy"), &json!([id]))
    );
}

#[tokio::test]
async fn t2_many_updates_are_the_only_change_between_the_states() {
    let server = TestServer::new().await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(create(&server, json!({})).await["id"].as_str().unwrap().to_owned());
    }
    let before = email_state(&server).await;
    let update: Map<String, Value> =
        ids.iter().map(|id| (id.clone(), json!({"keywords/$seen": true}))).collect();
    let answer = set(&server, json!({ "update": update })).await;
    assert_eq!(answer["updated"].as_object().unwrap().len(), 20, "{answer}");
    assert_eq!(
        (&answer["oldState"], &answer["newState"]),
        (&json!(before), &json!(email_state(&server).await))
    );
    // Setting the current values changes nothing.
    let again = set(&server, json!({ "update": update })).await;
    assert_eq!((&again["oldState"], &again["newState"]), (&answer["newState"], &answer["newState"]));
    let mut mixed = update.clone();
    mixed.insert(ids[19].clone(), json!({"keywords/a": true}));
    let answer =
        set(&server, json!({"ifInState": answer["newState"], "update": mixed, "destroy": ["e999"]})).await;
    assert_eq!((&answer["oldState"], answer["updated"].as_object().unwrap().len()), (&again["newState"], 20));
}

#[tokio::test]
async fn t6_parts_and_header_fields_may_be_given_as_they_are() {
    let server = TestServer::new().await;
    let made = import(&server, "Subject: a\r\nX-A: b\r\n\r\nc\r\n", "inbox").await;
    let id = made["id"].as_str().unwrap();
    let properties = json!([
        "textBody",
        "attachments",
        "header:x-a:asText",
        "keywords",
        "mailboxIds",
        "receivedAt",
        "preview"
    ]);
    let got = call(&server, "Email/get", json!({"ids": [id], "properties": properties})).await;
    let whole = got["list"][0].clone();
    let answer = set(&server, json!({"update": {id: whole}})).await;
    assert_eq!(answer["updated"], json!({id: null}), "{answer}");
    let answer = set(&server, json!({"update": {id: {"header:X-A:asText": "c", "textBody": []}}})).await;
    assert_eq!(answer["notUpdated"][id]["properties"], json!(["header:X-A:asText", "textBody"]), "{answer}");
}

#[tokio::test]
async fn r3_creation_ids_stand_wherever_an_id_may() {
    let server = TestServer::new().await;
    let blob = server.upload("Subject: a\r\n\r\nb\r\n").await;
    let alice = &server.alice.id;
    let responses = server.calls(json!([
        ["Mailbox/set", {"accountId": alice, "create": {"box": {"name": "Box"}}}, "0"],
        ["Email/import", {"accountId": alice, "emails": {"mail": {"blobId": blob, "mailboxIds": {"#box": true}}}}, "1"],
        ["Email/set", {"accountId": alice, "update": {"#mail": {"keywords/a": true, "mailboxIds/#box": true}}}, "2"],
        ["Email/set", {"accountId": alice, "destroy": ["#mail"]}, "3"],
    ]))
    .await;
    let email = responses[1][1]["created"]["mail"]["id"].as_str().unwrap_or_else(|| panic!("{responses:?}"));
    assert_eq!(responses[2][1]["updated"], json!({email: null}));
    assert_eq!(responses[3][1]["destroyed"], json!([email]));
}

#[tokio::test]
async fn import_takes_defaults_from_the_message_and_the_clock() {
    let server = TestServer::new().await;
    let received = "Received: from a by b; Thu, 1 Jan 2026 00:00:10 +0000\r\nSubject: a\r\n\r\nb\r\n";
    let first = import(&server, received, "inbox").await;
    let second = import(&server, "Subject: a\r\n\r\nb\r\n", "inbox").await;
    let again = import(&server, "Subject: a\r\n\r\nb\r\n", "inbox").await;
    assert_ne!(second["id"], again["id"], "duplicates are emails of their own");
    let same = |time: &str| json!({"receivedAt": time});
    for (made, time) in [(&first, "2026-01-01T00:00:10Z"), (&second, "2027-01-15T08:00:00Z")] {
        let id = made["id"].as_str().unwrap();
        let answer = set(&server, json!({"update": {id: same(time)}})).await;
        assert_eq!(answer["notUpdated"], Value::Null, "{answer}");
    }
    assert_eq!(first["size"].as_u64().unwrap(), received.len() as u64);
    assert_eq!(raw(&server, &first).await, received);
}

#[tokio::test]
async fn import_refuses_what_is_wrong_of_each_email() {
    let server = TestServer::new().await;
    let inbox = mailbox(&server, "inbox").await;
    let [blob, text, empty] = [
        server.upload("Subject: a\r\n\r\nb").await,
        server.upload("no header at all").await,
        server.upload("").await,
    ];
    let bob_blob = server.upload_as(&server.bob, &server.bob.id, "Subject: a\r\n\r\nb").await;
    let ids = json!({inbox: true});
    let emails = json!({
        "a": {"blobId": "bu999", "mailboxIds": ids}, "b": {"blobId": blob, "mailboxIds": {"m999": true}},
        "c": {"blobId": blob, "mailboxIds": ids, "keywords": {"a b": true}}, "d": {"mailboxIds": ids},
        "e": {"blobId": blob, "mailboxIds": ids, "subject": "x"}, "f": {"blobId": text, "mailboxIds": ids},
        "g": {"blobId": empty, "mailboxIds": ids}, "h": {"blobId": blob}, "i": 1,
        "j": {"blobId": blob, "mailboxIds": ids, "receivedAt": "2020"}, "ok": {"blobId": blob, "mailboxIds": ids},
        "l": {"blobId": format!("{bob_blob}9"), "mailboxIds": ids},
    });
    let answer = call(&server, "Email/import", json!({ "emails": emails })).await;
    let property =
        |key: &str| answer["notCreated"][key]["properties"][0].as_str().unwrap_or("none").to_owned();
    let expected = [
        ("a", "blobId"),
        ("b", "mailboxIds"),
        ("c", "keywords"),
        ("d", "blobId"),
        ("e", "subject"),
        ("f", "none"),
        ("g", "none"),
        ("h", "mailboxIds"),
        ("i", "none"),
        ("j", "receivedAt"),
        ("l", "blobId"),
    ];
    for (key, name) in expected {
        assert_eq!(property(key), name, "{key}: {answer}");
    }
    for key in ["f", "g"] {
        assert_eq!(answer["notCreated"][key]["type"], "invalidEmail");
    }
    assert_eq!(answer["created"].as_object().unwrap().len(), 1);
    let answer = call(&server, "Email/import", json!({"ifInState": "0", "emails": {}})).await;
    assert_eq!(answer["type"], "stateMismatch");
}

#[tokio::test]
async fn import_repairs_bare_line_ends_and_nul() {
    let server = TestServer::new().await;
    let made = import(&server, "Subject: a\nX: \0b\n\nc\rd\n", "inbox").await;
    assert_eq!(raw(&server, &made).await, "Subject: a\r\nX: b\r\n\r\nc\r\nd\r\n");
}

#[tokio::test]
async fn import_of_a_part_makes_an_email_of_it() {
    let server = TestServer::new().await;
    let inner = "Subject: inner\r\n\r\nhello";
    let blob = server.upload(inner).await;
    let made = create(
        &server,
        json!({
            "bodyValues": {"t": {"value": "outer"}}, "textBody": [{"partId": "t"}],
            "attachments": [{"blobId": blob, "type": "message/rfc822"}],
        }),
    )
    .await;
    let part = format!("{}-3", made["blobId"].as_str().unwrap());
    let ids = json!({mailbox(&server, "inbox").await: true});
    let answer =
        call(&server, "Email/import", json!({"emails": {"k": {"blobId": part, "mailboxIds": ids}}})).await;
    assert_eq!(raw(&server, &answer["created"]["k"]).await, inner, "{answer}");
}

async fn copy(server: &TestServer, create: Value, more: Value) -> Vec<Value> {
    let mut arguments: Map<String, Value> = more.as_object().unwrap().clone();
    arguments.insert("fromAccountId".to_owned(), json!(server.bob.id));
    arguments.insert("accountId".to_owned(), json!(server.alice.id));
    arguments.insert("create".to_owned(), create);
    server.calls(json!([["Email/copy", arguments, "c"]])).await
}

/// An email of bob, with a keyword.
async fn email_of_bob(server: &TestServer) -> String {
    let blob = server.upload_as(&server.bob, &server.bob.id, "Subject: copied\r\n\r\nb\r\n").await;
    let inbox = mailbox_of(server, &server.bob, "inbox").await;
    let email =
        json!({"blobId": blob, "mailboxIds": {inbox: true}, "keywords": {"$flagged": true, "mine": true}});
    let arguments = json!({"accountId": server.bob.id, "emails": {"k": email}});
    let answer = server.call_as(&server.bob, "Email/import", arguments).await;
    answer["created"]["k"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn copy_takes_the_message_and_what_is_not_given_from_the_original() {
    let server = TestServer::new().await;
    server.grant(&server.bob, &server.alice, Access::Read).await;
    let original = email_of_bob(&server).await;
    let inbox = mailbox(&server, "inbox").await;
    let create = json!({
        "a": {"id": original, "mailboxIds": {&inbox: true}}, "b": {"id": "e999", "mailboxIds": {&inbox: true}},
        "c": {"id": original, "mailboxIds": {"m999": true}}, "d": {"id": original, "mailboxIds": {&inbox: true}, "subject": "x"},
        "e": {"mailboxIds": {&inbox: true}},
    });
    let responses = copy(&server, create, json!({})).await;
    let answer = &responses[0][1];
    assert_eq!(raw(&server, &answer["created"]["a"]).await, "Subject: copied\r\n\r\nb\r\n", "{answer}");
    assert_eq!(answer["notCreated"]["b"]["type"], "notFound");
    for (key, property) in [("c", "mailboxIds"), ("d", "subject"), ("e", "id")] {
        assert_eq!(answer["notCreated"][key]["properties"], json!([property]), "{answer}");
    }
    let names = ["fromAccountId", "accountId", "oldState", "newState", "created", "notCreated"];
    assert!(names.iter().all(|name| answer.get(name).is_some()) && responses.len() == 1, "{responses:?}");
}

#[tokio::test]
async fn t7_a_copy_is_into_another_account_and_may_destroy_the_original() {
    let server = TestServer::new().await;
    let original = email_of_bob(&server).await;
    let inbox = mailbox(&server, "inbox").await;
    let create = json!({"a": {"id": original, "mailboxIds": {inbox: true}}});
    assert_eq!(copy(&server, create.clone(), json!({})).await[0][1]["type"], "fromAccountNotFound");
    server.grant(&server.bob, &server.alice, Access::Write).await;
    let alice = &server.alice.id;
    let same = json!({"fromAccountId": alice, "accountId": alice, "create": {}});
    assert_eq!(server.call("Email/copy", same).await["type"], "invalidArguments");
    let answers = copy(&server, create.clone(), json!({"ifFromInState": "0"})).await;
    assert_eq!(answers[0][1]["type"], "stateMismatch");
    let wrong = json!({"onSuccessDestroyOriginal": true, "destroyFromIfInState": "0"});
    let answers = copy(&server, create.clone(), wrong).await;
    let kinds: Vec<&Value> = answers.iter().map(|answer| &answer[0]).collect();
    assert_eq!(
        (kinds, &answers[1][1]["type"]),
        (vec![&json!("Email/copy"), &json!("error")], &json!("stateMismatch"))
    );
    let answers = copy(&server, create, json!({"onSuccessDestroyOriginal": true})).await;
    assert_eq!((&answers[1][0], &answers[1][2]), (&json!("Email/set"), &json!("c")));
    assert_eq!(answers[1][1]["destroyed"], json!([original]), "{answers:?}");
    assert_eq!(answers[1][1]["accountId"], json!(server.bob.id));
}

#[tokio::test]
async fn t7_without_the_right_to_write_the_original_stays() {
    let server = TestServer::new().await;
    server.grant(&server.bob, &server.alice, Access::Read).await;
    let original = email_of_bob(&server).await;
    let create = json!({"a": {"id": original, "mailboxIds": {mailbox(&server, "inbox").await: true}}});
    let answers = copy(&server, create, json!({"onSuccessDestroyOriginal": true})).await;
    assert!(answers[0][1]["created"]["a"]["id"].is_string(), "{answers:?}");
    assert_eq!((&answers[1][0], &answers[1][1]["type"]), (&json!("error"), &json!("accountReadOnly")));
}
