use std::{collections::BTreeSet, num::NonZero};

use restante_directory::Access;
use serde_json::{Map, Value, json};

use crate::{JmapConfig, testing::TestServer};

mod replica;

/// The mailboxes of alice by their names.
async fn mailboxes(server: &TestServer) -> Map<String, Value> {
    let answer = get(server, json!({})).await;
    let list = answer["list"].as_array().unwrap().clone();
    list.into_iter().map(|mailbox| (mailbox["name"].as_str().unwrap().to_owned(), mailbox)).collect()
}

async fn call(server: &TestServer, name: &str, arguments: Value) -> Value {
    let mut arguments = arguments;
    arguments["accountId"] = json!(server.alice.id);
    server.call(name, arguments).await
}

async fn get(server: &TestServer, arguments: Value) -> Value {
    call(server, "Mailbox/get", arguments).await
}

async fn set(server: &TestServer, arguments: Value) -> Value {
    call(server, "Mailbox/set", arguments).await
}

async fn state(server: &TestServer) -> String {
    get(server, json!({"ids": []})).await["state"].as_str().unwrap().to_owned()
}

/// Creates mailboxes; returns their ids by creation id.
async fn create(server: &TestServer, create: Value) -> Map<String, Value> {
    let answer = set(server, json!({ "create": create })).await;
    assert_eq!(answer["notCreated"], Value::Null, "{answer}");
    let created = answer["created"].as_object().unwrap().clone();
    created.into_iter().map(|(key, made)| (key, made["id"].clone())).collect()
}

async fn put_email(server: &TestServer, mailbox: &Value, seen: bool) -> String {
    let blob = server.upload("Subject: hello\r\n\r\nworld\r\n").await;
    let mailbox = mailbox.as_str().unwrap();
    let keywords = if seen { json!({"$seen": true}) } else { json!({}) };
    let email = json!({"blobId": blob, "mailboxIds": {mailbox: true}, "keywords": keywords});
    let answer = call(server, "Email/import", json!({"emails": {"k": email}})).await;
    answer["created"]["k"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

async fn query(server: &TestServer, arguments: Value) -> Vec<String> {
    let names = get(server, json!({"properties": ["name"]})).await;
    let name = |id: &Value| {
        let mailbox = names["list"].as_array().unwrap().iter().find(|mailbox| mailbox["id"] == *id);
        mailbox.unwrap()["name"].as_str().unwrap().to_owned()
    };
    let answer = call(server, "Mailbox/query", arguments).await;
    answer["ids"].as_array().unwrap_or_else(|| panic!("{answer}")).iter().map(name).collect()
}

fn error_of<'a>(answer: &'a Value, list: &str, key: &str) -> &'a Value {
    assert!(answer[list].is_object(), "{answer}");
    &answer[list][key]
}

#[tokio::test]
async fn mb1_a_mailbox_has_all_properties_and_the_inbox_stays() {
    let server = TestServer::new().await;
    let all = mailboxes(&server).await;
    let inbox = &all["Inbox"];
    let rights = |may_move: bool| {
        json!({
            "mayReadItems": true, "mayAddItems": true, "mayRemoveItems": true, "maySetSeen": true, "maySetKeywords": true,
            "mayCreateChild": true, "mayRename": may_move, "mayDelete": may_move, "maySubmit": true,
        })
    };
    let expected = json!({
        "id": inbox["id"], "name": "Inbox", "parentId": null, "role": "inbox", "sortOrder": inbox["sortOrder"],
        "totalEmails": 0, "unreadEmails": 0, "totalThreads": 0, "unreadThreads": 0, "myRights": rights(false),
        "isSubscribed": true,
    });
    assert_eq!(*inbox, expected);
    assert_eq!(all["Trash"]["myRights"], rights(true));
    let roles: BTreeSet<&str> = all.values().filter_map(|mailbox| mailbox["role"].as_str()).collect();
    assert_eq!(roles, BTreeSet::from(["archive", "drafts", "inbox", "junk", "sent", "trash"]));
    let id = inbox["id"].as_str().unwrap();
    let answer = set(&server, json!({"update": {id: {"name": "In"}}, "destroy": []})).await;
    assert_eq!(error_of(&answer, "notUpdated", id)["type"], "forbidden");
    let answer = set(&server, json!({"destroy": [id]})).await;
    assert_eq!(error_of(&answer, "notDestroyed", id)["type"], "forbidden");
}

#[tokio::test]
async fn mb1_who_may_only_read_has_no_other_right() {
    let server = TestServer::new().await;
    server.grant(&server.alice, &server.bob, Access::Read).await;
    let arguments = json!({"accountId": server.alice.id, "properties": ["myRights"]});
    let answer = server.call_as(&server.bob, "Mailbox/get", arguments).await;
    for mailbox in answer["list"].as_array().unwrap() {
        let rights = mailbox["myRights"].as_object().unwrap();
        let granted: Vec<&str> =
            rights.iter().filter(|(_, may)| **may == json!(true)).map(|(name, _)| name.as_str()).collect();
        assert_eq!((granted, rights.len()), (vec!["mayReadItems"], 9));
    }
    let arguments = json!({"accountId": server.alice.id, "create": {"k": {"name": "x"}}});
    let answer = server.call_as(&server.bob, "Mailbox/set", arguments).await;
    assert_eq!(answer["type"], "accountReadOnly");
}

#[tokio::test]
async fn g1_ids_are_found_or_not_and_null_is_all() {
    let server = TestServer::new().await;
    let all = mailboxes(&server).await;
    let inbox = all["Inbox"]["id"].clone();
    let answer = get(&server, json!({"ids": [inbox, "m999", "e1", inbox], "properties": ["name"]})).await;
    assert_eq!(answer["list"], json!([{"id": inbox, "name": "Inbox"}]));
    assert_eq!(answer["notFound"], json!(["m999", "e1"]));
    let answer = get(&server, json!({"ids": []})).await;
    assert_eq!((&answer["list"], &answer["notFound"]), (&json!([]), &json!([])));
    assert_eq!(all.len(), 6);
}

#[tokio::test]
async fn g2_only_the_properties_that_are_asked_for_and_the_id() {
    let server = TestServer::new().await;
    let answer = get(&server, json!({"properties": ["totalEmails", "role", "role"]})).await;
    for mailbox in answer["list"].as_array().unwrap() {
        let names: Vec<&String> = mailbox.as_object().unwrap().keys().collect();
        assert_eq!(names, ["id", "role", "totalEmails"]);
    }
    let answer = get(&server, json!({"properties": ["colour"]})).await;
    assert_eq!(answer["type"], "invalidArguments");
    let answer = get(&server, json!({"colour": true})).await;
    assert_eq!(answer["type"], "invalidArguments");
}

#[tokio::test]
async fn mb2_names_that_are_not_possible_are_refused() {
    let server = TestServer::new().await;
    let long = "x".repeat(491);
    let names = json!({"a": "", "b": long, "c": "a\u{7}b", "d": "a/b", "e": "INBOX", "f": 1, "g": null});
    let creates: Map<String, Value> =
        names.as_object().unwrap().iter().map(|(key, name)| (key.clone(), json!({ "name": name }))).collect();
    let answer = set(&server, json!({ "create": creates })).await;
    for key in names.as_object().unwrap().keys() {
        let error = error_of(&answer, "notCreated", key);
        let is_sibling = key == "e" && error["type"] == "alreadyExists";
        assert!(is_sibling || error["type"] == "invalidProperties", "{key}: {error}");
        assert!(is_sibling || error["properties"] == json!(["name"]), "{key}: {error}");
    }
    assert_eq!(answer["created"], Value::Null);
    let answer = set(&server, json!({"create": {"k": {"name": "Cafe\u{301}"}}})).await;
    assert_eq!(answer["created"]["k"]["name"], "Caf\u{e9}");
}

#[tokio::test]
async fn mb2_a_sibling_of_that_name_exists() {
    let server = TestServer::new().await;
    let made = create(&server, json!({"a": {"name": "Work"}, "b": {"name": "Home"}})).await;
    let answer = set(
        &server,
        json!({"create": {"k": {"name": "Work"}, "l": {"name": "Work", "parentId": made["b"]}}}),
    )
    .await;
    let error = error_of(&answer, "notCreated", "k");
    assert_eq!((&error["type"], &error["existingId"]), (&json!("alreadyExists"), &made["a"]));
    assert!(answer["created"]["l"]["id"].is_string());
}

#[tokio::test]
async fn mb2_parents_that_are_unknown_too_deep_or_in_a_circle_are_refused() {
    let server = TestServer::new().await;
    let creates = json!({
        "a": {"name": "a", "parentId": "m999"}, "b": {"name": "b", "parentId": "x"}, "c": {"name": "c", "parentId": "#none"},
        "d": {"name": "d", "parentId": 1},
    });
    let answer = set(&server, json!({ "create": creates })).await;
    for key in ["a", "b", "c", "d"] {
        assert_eq!(
            error_of(&answer, "notCreated", key)["properties"],
            json!(["parentId"]),
            "{key}: {answer}"
        );
    }
    let mut parent = json!(null);
    for depth in 1..=10 {
        let made = create(&server, json!({"k": {"name": depth.to_string(), "parentId": parent}})).await;
        parent = made["k"].clone();
    }
    let answer = set(&server, json!({"create": {"k": {"name": "11", "parentId": parent}}})).await;
    assert_eq!(error_of(&answer, "notCreated", "k")["properties"], json!(["parentId"]));
    let top = mailboxes(&server).await["1"]["id"].clone();
    let top = top.as_str().unwrap();
    let answer = set(&server, json!({"update": {top: {"parentId": parent}}})).await;
    assert_eq!(error_of(&answer, "notUpdated", top)["properties"], json!(["parentId"]));
}

#[tokio::test]
async fn mb3_roles_are_known_and_each_is_there_once() {
    let server = TestServer::new().await;
    for role in ["Archive", "inbox", "elsewhere", ""] {
        let answer = set(&server, json!({"create": {"k": {"name": "x", "role": role}}})).await;
        let error = error_of(&answer, "notCreated", "k");
        assert_eq!(
            (&error["type"], &error["properties"]),
            (&json!("invalidProperties"), &json!(["role"])),
            "{role}"
        );
    }
    let made = create(&server, json!({"k": {"name": "x", "role": "important"}})).await;
    let id = made["k"].as_str().unwrap();
    let answer = set(
        &server,
        json!({"update": {id: {"role": null}}, "create": {"l": {"name": "y", "role": "important"}}}),
    )
    .await;
    assert!(answer["created"]["l"].is_object() && answer["updated"].get(id).is_some(), "{answer}");
}

#[tokio::test]
async fn mb4_counts_are_those_of_emails_and_threads() {
    let server = TestServer::new().await;
    let all = mailboxes(&server).await;
    let (inbox, trash) = (&all["Inbox"]["id"], &all["Trash"]["id"]);
    // All have the same subject and no references to existing messages, so each email is a thread of its own.
    put_email(&server, inbox, true).await;
    put_email(&server, inbox, false).await;
    put_email(&server, trash, false).await;
    let all = mailboxes(&server).await;
    let counts = |name: &str| {
        let counts = ["totalEmails", "unreadEmails", "totalThreads", "unreadThreads"];
        counts.map(|count| all[name][count].as_u64().unwrap())
    };
    assert_eq!(counts("Inbox"), [2, 1, 2, 1]);
    assert_eq!(counts("Trash"), [1, 1, 1, 1]);
    assert_eq!(counts("Sent"), [0; 4]);
}

/// Imports an email into the thread of `<1@x>`.
async fn put_into_thread(server: &TestServer, mailbox: &Value, number: u32, seen: bool) {
    let raw = format!("Message-ID: <{number}@x>\r\nReferences: <1@x>\r\nSubject: a\r\n\r\nb\r\n");
    let blob = server.upload(raw).await;
    let keywords = if seen { json!({"$seen": true}) } else { json!({}) };
    let email =
        json!({"blobId": blob, "mailboxIds": {mailbox.as_str().unwrap(): true}, "keywords": keywords});
    let answer = call(server, "Email/import", json!({"emails": {"k": email}})).await;
    assert_eq!(answer["notCreated"], Value::Null, "{answer}");
}

#[tokio::test]
async fn mb4_unread_mail_that_is_only_in_the_trash_counts_there_alone() {
    let server = TestServer::new().await;
    let all = mailboxes(&server).await;
    put_into_thread(&server, &all["Inbox"]["id"], 1, true).await;
    put_into_thread(&server, &all["Trash"]["id"], 2, false).await;
    let counted = mailboxes(&server).await;
    let unread = |name: &str| (counted[name]["totalThreads"].clone(), counted[name]["unreadThreads"].clone());
    assert_eq!((unread("Inbox"), unread("Trash")), ((json!(1), json!(0)), (json!(1), json!(1))));
    put_into_thread(&server, &all["Archive"]["id"], 3, false).await;
    let counted = mailboxes(&server).await;
    assert_eq!(
        (&counted["Inbox"]["unreadThreads"], &counted["Inbox"]["unreadEmails"]),
        (&json!(1), &json!(0))
    );
}

#[tokio::test]
async fn mb5_counts_are_the_totals_of_queries() {
    let server = TestServer::new().await;
    let all = mailboxes(&server).await;
    let inbox = &all["Inbox"]["id"];
    for number in 1..4 {
        put_into_thread(&server, inbox, number, false).await;
    }
    put_email(&server, inbox, true).await;
    let total = async |collapse: bool| {
        let arguments =
            json!({"filter": {"inMailbox": inbox}, "collapseThreads": collapse, "calculateTotal": true});
        call(&server, "Email/query", arguments).await["total"].clone()
    };
    let counted = mailboxes(&server).await;
    assert_eq!((&counted["Inbox"]["totalEmails"], &counted["Inbox"]["totalThreads"]), (&json!(4), &json!(2)));
    assert_eq!((total(false).await, total(true).await), (json!(4), json!(2)));
}

#[tokio::test]
async fn g1_all_of_too_many_are_too_much() {
    let config = JmapConfig { objects_in_get_max: NonZero::new(5).unwrap(), ..JmapConfig::default() };
    let server = TestServer::with(config).await;
    assert_eq!(get(&server, json!({"ids": null})).await["type"], "requestTooLarge");
    let ids: Vec<String> = (900..906).map(|number| format!("m{number}")).collect();
    assert_eq!(get(&server, json!({ "ids": ids })).await["type"], "requestTooLarge");
    assert_eq!(get(&server, json!({"ids": &ids[..5]})).await["notFound"].as_array().map(Vec::len), Some(5));
}

#[tokio::test]
async fn mb6_filters_select_mailboxes() {
    let server = TestServer::new().await;
    let made = create(&server, json!({
        "a": {"name": "Work", "isSubscribed": false}, "b": {"name": "Über work", "parentId": "#a"}, "c": {"name": "Play"},
    }))
    .await;
    let sort = json!([{"property": "name"}]);
    for (filter, expected) in [
        (json!({"parentId": made["a"]}), vec!["Über work"]),
        (json!({"parentId": "m999"}), vec![]),
        (json!({"name": "ÜBER"}), vec!["Über work"]),
        (json!({"name": "WORK"}), vec!["Über work", "Work"]),
        (json!({"role": "inbox"}), vec!["Inbox"]),
        (json!({"role": "elsewhere"}), vec![]),
        (json!({"role": null, "isSubscribed": true}), vec!["Play", "Über work"]),
        (json!({"hasAnyRole": false, "parentId": null}), vec!["Play", "Work"]),
        (json!({"isSubscribed": false}), vec!["Work"]),
        (json!({"operator": "NOT", "conditions": [{"hasAnyRole": true}, {"name": "work"}]}), vec!["Play"]),
    ] {
        let names = query(&server, json!({"filter": filter, "sort": sort})).await;
        let (names, expected) =
            (BTreeSet::from_iter(names.iter().map(String::as_str)), BTreeSet::from_iter(expected));
        assert_eq!(names, expected, "{filter}");
    }
    let answer = call(&server, "Mailbox/query", json!({"filter": {"colour": "red"}})).await;
    assert_eq!(answer["type"], "unsupportedFilter");
    let answer = call(&server, "Mailbox/query", json!({"filter": {"isSubscribed": "yes"}})).await;
    assert_eq!(answer["type"], "invalidArguments");
    let answer = call(&server, "Mailbox/query", json!({"sort": [{"property": "totalEmails"}]})).await;
    assert_eq!(answer["type"], "unsupportedSort");
}

#[tokio::test]
async fn mb6_trees_sort_children_behind_parents_and_drop_those_of_what_is_filtered_out() {
    let server = TestServer::new().await;
    create(&server, json!({
        "a": {"name": "b-top", "sortOrder": 2}, "b": {"name": "a-top", "sortOrder": 3},
        "c": {"name": "z-child", "parentId": "#b", "sortOrder": 1}, "d": {"name": "y-child", "parentId": "#a"},
        "e": {"name": "x-child", "parentId": "#b", "sortOrder": 9},
    }))
    .await;
    let filter = json!({"hasAnyRole": false});
    let by_name = json!([{"property": "name"}]);
    let names = query(&server, json!({"filter": filter, "sort": by_name})).await;
    assert_eq!(names, ["a-top", "b-top", "x-child", "y-child", "z-child"]);
    let names = query(&server, json!({"filter": filter, "sort": by_name, "sortAsTree": true})).await;
    assert_eq!(names, ["a-top", "x-child", "z-child", "b-top", "y-child"]);
    let sort = json!([{"property": "sortOrder", "isAscending": false}, {"property": "name"}]);
    let names = query(&server, json!({"filter": filter, "sort": sort, "sortAsTree": true})).await;
    assert_eq!(names, ["a-top", "x-child", "z-child", "b-top", "y-child"]);
    let filter = json!({"operator": "OR", "conditions": [{"name": "child"}, {"name": "b-top"}]});
    let names = query(&server, json!({"filter": filter, "sort": by_name, "filterAsTree": true})).await;
    assert_eq!(names, ["b-top", "y-child"]);
}

#[tokio::test]
async fn l1_a_query_says_where_its_ids_stand() {
    let server = TestServer::new().await;
    let sort = json!([{"property": "name"}]);
    let answer = call(
        &server,
        "Mailbox/query",
        json!({"sort": sort, "position": -2, "limit": 1, "calculateTotal": true}),
    )
    .await;
    assert_eq!((&answer["position"], &answer["total"], answer.get("limit")), (&json!(4), &json!(6), None));
    assert_eq!((answer["ids"].as_array().unwrap().len(), &answer["canCalculateChanges"]), (1, &json!(true)));
    assert_eq!(answer["queryState"], json!(state(&server).await));
    let answer = call(&server, "Mailbox/query", json!({"sort": sort, "anchor": "m999"})).await;
    assert_eq!(answer["type"], "anchorNotFound");
    let answer = call(&server, "Mailbox/query", json!({"limit": -1})).await;
    assert_eq!(answer["type"], "invalidArguments");
}

/// The list that a client has after applying the changes to its old list (RFC 8620 §5.6).
fn applied(old: &[Value], changes: &Value) -> Vec<Value> {
    let removed = changes["removed"].as_array().unwrap_or_else(|| panic!("{changes}"));
    let mut list: Vec<Value> = old.iter().filter(|id| !removed.contains(id)).cloned().collect();
    for added in changes["added"].as_array().unwrap() {
        list.insert(usize::try_from(added["index"].as_u64().unwrap()).unwrap(), added["id"].clone());
    }
    list
}

#[tokio::test]
async fn x1_query_changes_make_the_new_list_of_the_old_one() {
    let server = TestServer::new().await;
    let made = create(
        &server,
        json!({"a": {"name": "A"}, "b": {"name": "B"}, "c": {"name": "C"}, "d": {"name": "D"}}),
    )
    .await;
    let question = json!({"filter": {"hasAnyRole": false}, "sort": [{"property": "name"}]});
    let before = call(&server, "Mailbox/query", question.clone()).await;
    let (b, c) = (made["b"].as_str().unwrap(), made["c"].as_str().unwrap());
    let inbox = mailboxes(&server).await["Inbox"]["id"].clone();
    set(&server, json!({"create": {"e": {"name": "AA"}}, "update": {b: {"name": "Z"}}, "destroy": [c]}))
        .await;
    put_email(&server, &inbox, false).await;
    let mut arguments = question.clone();
    arguments["sinceQueryState"] = before["queryState"].clone();
    arguments["calculateTotal"] = json!(true);
    let changes = call(&server, "Mailbox/queryChanges", arguments.clone()).await;
    let after = call(&server, "Mailbox/query", question).await;
    assert_eq!(applied(before["ids"].as_array().unwrap(), &changes), *after["ids"].as_array().unwrap());
    assert_eq!((&changes["newQueryState"], &changes["total"]), (&after["queryState"], &json!(4)));
    // A mailbox is not among them if only its counts changed.
    assert!(!changes["removed"].as_array().unwrap().contains(&inbox), "{changes}");
    arguments["maxChanges"] = json!(1);
    assert_eq!(call(&server, "Mailbox/queryChanges", arguments).await["type"], "tooManyChanges");
}

#[tokio::test]
async fn x3_changes_of_trees_are_not_calculated() {
    let server = TestServer::new().await;
    let answer = call(&server, "Mailbox/query", json!({"sortAsTree": true})).await;
    assert_eq!(answer["canCalculateChanges"], false);
    for tree in ["sortAsTree", "filterAsTree"] {
        let arguments = json!({tree: true, "sinceQueryState": answer["queryState"]});
        assert_eq!(call(&server, "Mailbox/queryChanges", arguments).await["type"], "cannotCalculateChanges");
    }
    let answer = call(&server, "Mailbox/queryChanges", json!({"sinceQueryState": "never"})).await;
    assert_eq!(answer["type"], "cannotCalculateChanges");
}

#[tokio::test]
async fn s7_counts_are_named_when_nothing_else_changed() {
    let server = TestServer::new().await;
    let inbox = mailboxes(&server).await["Inbox"]["id"].clone();
    let before = state(&server).await;
    put_email(&server, &inbox, false).await;
    let changes = call(&server, "Mailbox/changes", json!({ "sinceState": before })).await;
    assert_eq!(changes["updated"], json!([inbox]));
    let counts = json!(["totalEmails", "unreadEmails", "totalThreads", "unreadThreads"]);
    assert_eq!(changes["updatedProperties"], counts);
    let id = inbox.as_str().unwrap();
    set(&server, json!({"update": {id: {"sortOrder": 77}}})).await;
    let changes = call(&server, "Mailbox/changes", json!({ "sinceState": before })).await;
    assert_eq!((&changes["updated"], &changes["updatedProperties"]), (&json!([inbox]), &json!(null)));
    let changes = call(&server, "Mailbox/changes", json!({"sinceState": changes["newState"]})).await;
    assert_eq!((&changes["updated"], &changes["updatedProperties"]), (&json!([]), &json!(null)));
}

/// Regression test: a change that a page left out, because the mailbox had changed again, was lost when that later change was of counts
/// only.
#[tokio::test]
async fn s7_a_change_that_an_earlier_page_left_out_is_not_reported_as_one_of_counts() {
    let server = TestServer::new().await;
    let made = create(&server, json!({"a": {"name": "A"}, "b": {"name": "B"}})).await;
    let [a, b] = ["a", "b"].map(|key| made[key].as_str().unwrap());
    let before = state(&server).await;
    set(&server, json!({"update": {a: {"name": "AA"}}})).await;
    set(&server, json!({"update": {b: {"sortOrder": 7}}})).await;
    put_email(&server, &made["a"], false).await;
    let first = call(&server, "Mailbox/changes", json!({"sinceState": before, "maxChanges": 1})).await;
    assert_eq!((&first["updated"], &first["hasMoreChanges"]), (&json!([b]), &json!(true)));
    let second = call(&server, "Mailbox/changes", json!({"sinceState": first["newState"]})).await;
    assert_eq!((&second["updated"], &second["updatedProperties"]), (&json!([a]), &json!(null)));
    assert_eq!((&second["oldState"], &second["hasMoreChanges"]), (&first["newState"], &json!(false)));
    assert_eq!(second["newState"], json!(state(&server).await));
    // A state between two pages is not a state of the mailboxes.
    let between = json!({"ifInState": first["newState"], "create": {"k": {"name": "K"}}});
    assert_eq!(set(&server, between).await["type"], "stateMismatch");
    let between = json!({"sinceQueryState": first["newState"]});
    assert_eq!(call(&server, "Mailbox/queryChanges", between).await["type"], "cannotCalculateChanges");
}

#[tokio::test]
async fn s7_counts_are_named_on_each_page_of_changes_of_counts() {
    let server = TestServer::new().await;
    let made = create(&server, json!({"a": {"name": "A"}, "b": {"name": "B"}})).await;
    let mut since = state(&server).await;
    put_email(&server, &made["a"], false).await;
    put_email(&server, &made["b"], false).await;
    for (name, has_more) in [("a", true), ("b", false)] {
        let page = call(&server, "Mailbox/changes", json!({"sinceState": since, "maxChanges": 1})).await;
        assert_eq!((&page["updated"], &page["hasMoreChanges"]), (&json!([made[name]]), &json!(has_more)));
        assert!(page["updatedProperties"].is_array(), "{page}");
        since = page["newState"].as_str().unwrap().to_owned();
    }
    assert_eq!(since, state(&server).await);
}

#[tokio::test]
async fn t1_another_state_is_a_mismatch_and_nothing_is_done() {
    let server = TestServer::new().await;
    let before = state(&server).await;
    create(&server, json!({"a": {"name": "A"}})).await;
    for wrong in [before.as_str(), "x", "", "1-1"] {
        let answer = set(&server, json!({"ifInState": wrong, "create": {"b": {"name": "B"}}})).await;
        assert_eq!(answer["type"], "stateMismatch", "{wrong}");
    }
    assert!(!mailboxes(&server).await.contains_key("B"));
    let now = state(&server).await;
    let answer = set(&server, json!({"ifInState": now, "create": {"b": {"name": "B"}}})).await;
    assert_eq!(
        (&answer["oldState"], answer["newState"].as_str()),
        (&json!(now), Some(state(&server).await.as_str()))
    );
}

#[tokio::test]
async fn t3_parents_are_made_first_and_circles_are_refused() {
    let server = TestServer::new().await;
    let made = create(&server, json!({
        "a": {"name": "leaf", "parentId": "#c"}, "b": {"name": "root"}, "c": {"name": "middle", "parentId": "#b"},
    }))
    .await;
    let all = mailboxes(&server).await;
    assert_eq!((&all["leaf"]["parentId"], &all["middle"]["parentId"]), (&made["c"], &made["b"]));
    let answer = set(
        &server,
        json!({"create": {
            "x": {"name": "x", "parentId": "#y"}, "y": {"name": "y", "parentId": "#x"},
            "z": {"name": "", "sortOrder": -1}, "w": {"name": "w", "parentId": "#z"},
        }}),
    )
    .await;
    for (key, properties) in
        [("x", json!(["parentId"])), ("y", json!(["parentId"])), ("w", json!(["parentId"]))]
    {
        assert_eq!(error_of(&answer, "notCreated", key)["properties"], properties, "{key}: {answer}");
    }
    assert_eq!(answer["created"], Value::Null);
}

#[tokio::test]
async fn t3_the_final_state_must_be_valid() {
    let server = TestServer::new().await;
    let made = create(
        &server,
        json!({
            "a": {"name": "A"}, "b": {"name": "B"}, "p": {"name": "P"}, "q": {"name": "Q", "parentId": "#p"},
        }),
    )
    .await;
    let [a, b, p, q] = ["a", "b", "p", "q"].map(|key| made[key].as_str().unwrap());
    let answer =
        set(&server, json!({"update": {a: {"name": "B"}, b: {"name": "A"}}, "destroy": [p, q]})).await;
    assert_eq!((&answer["notUpdated"], &answer["notDestroyed"]), (&json!(null), &json!(null)), "{answer}");
    let all = mailboxes(&server).await;
    assert_eq!((&all["A"]["id"], &all["B"]["id"]), (&made["b"], &made["a"]));
    assert!(!all.contains_key("P") && !all.contains_key("Q"));
}

#[tokio::test]
async fn t3_what_a_call_makes_can_be_changed_and_destroyed_by_it() {
    let server = TestServer::new().await;
    let answer = set(&server, json!({
        "create": {"a": {"name": "A"}, "b": {"name": "B"}}, "update": {"#a": {"name": "AA"}}, "destroy": ["#b"],
    }))
    .await;
    let (a, b) = (&answer["created"]["a"]["id"], &answer["created"]["b"]["id"]);
    assert!(answer["updated"].get(a.as_str().unwrap()).is_some(), "{answer}");
    assert_eq!(answer["destroyed"], json!([b]));
    assert!(mailboxes(&server).await.contains_key("AA"));
}

#[tokio::test]
async fn t4_the_error_says_what_is_wrong() {
    let server = TestServer::new().await;
    let made = create(&server, json!({"a": {"name": "A"}})).await;
    let a = made["a"].as_str().unwrap();
    let answer =
        set(&server, json!({"update": {a: {"name": "B"}, "m999": {}, "e1": {}}, "destroy": [a, "m998"]}))
            .await;
    assert_eq!(error_of(&answer, "notUpdated", a)["type"], "willDestroy");
    assert_eq!(error_of(&answer, "notUpdated", "m999")["type"], "notFound");
    assert_eq!(error_of(&answer, "notUpdated", "e1")["type"], "notFound");
    assert_eq!(error_of(&answer, "notDestroyed", "m998")["type"], "notFound");
    assert_eq!(answer["destroyed"], json!([a]));
}

#[tokio::test]
async fn t5_a_creation_gets_defaults_and_refuses_what_the_server_sets() {
    let server = TestServer::new().await;
    let answer = set(&server, json!({"create": {"k": {"name": "K", "sortOrder": 4}}})).await;
    let made = &answer["created"]["k"];
    assert_eq!(
        (&made["parentId"], &made["role"], &made["isSubscribed"]),
        (&json!(null), &json!(null), &json!(true))
    );
    assert_eq!((&made["totalEmails"], &made["myRights"]["mayDelete"]), (&json!(0), &json!(true)));
    assert!(made.get("name").is_none() && made.get("sortOrder").is_none(), "{made}");
    let wrong =
        json!({"name": "L", "id": "m5", "totalEmails": 1, "colour": 1, "sortOrder": 2_147_483_648_u64});
    let answer = set(&server, json!({"create": {"k": wrong, "l": 3}})).await;
    let error = error_of(&answer, "notCreated", "k");
    assert_eq!(error["properties"], json!(["colour", "id", "sortOrder", "totalEmails"]));
    assert_eq!(error_of(&answer, "notCreated", "l")["type"], "invalidProperties");
}

#[tokio::test]
async fn t6_a_whole_mailbox_is_a_patch_of_itself() {
    let server = TestServer::new().await;
    create(&server, json!({"a": {"name": "A"}})).await;
    let mut whole = mailboxes(&server).await["A"].clone();
    let id = whole["id"].as_str().unwrap().to_owned();
    whole["name"] = json!("B");
    whole["isSubscribed"] = json!(false);
    let answer = set(&server, json!({"update": {&id: whole}})).await;
    assert_eq!(answer["updated"], json!({&id: null}), "{answer}");
    let mut changed = mailboxes(&server).await["B"].clone();
    assert_eq!(changed["isSubscribed"], false);
    changed["totalEmails"] = json!(5);
    changed["myRights"]["mayDelete"] = json!(false);
    let answer = set(&server, json!({"update": {&id: changed}})).await;
    assert_eq!(error_of(&answer, "notUpdated", &id)["properties"], json!(["myRights", "totalEmails"]));
    let answer = set(&server, json!({"update": {&id: {"name/x": 1}}})).await;
    assert_eq!(error_of(&answer, "notUpdated", &id)["type"], "invalidPatch");
    let answer =
        set(&server, json!({"update": {&id: {"isSubscribed": null, "sortOrder": null, "parentId": null}}}))
            .await;
    assert_eq!(answer["notUpdated"], Value::Null);
    assert_eq!(mailboxes(&server).await["B"]["isSubscribed"], true);
}

#[tokio::test]
async fn mb7_a_mailbox_with_children_or_emails_stays() {
    let server = TestServer::new().await;
    let made = create(&server, json!({"a": {"name": "A"}, "b": {"name": "B", "parentId": "#a"}})).await;
    let [a, b] = ["a", "b"].map(|key| made[key].as_str().unwrap());
    put_email(&server, &made["a"], false).await;
    put_email(&server, &made["b"], false).await;
    for remove in [false, true] {
        let answer = set(&server, json!({"destroy": [a], "onDestroyRemoveEmails": remove})).await;
        assert_eq!(error_of(&answer, "notDestroyed", a)["type"], "mailboxHasChild");
    }
    assert_eq!(mailboxes(&server).await["A"]["totalEmails"], 1, "no email is touched");
    let answer = set(&server, json!({"destroy": [b]})).await;
    assert_eq!(error_of(&answer, "notDestroyed", b)["type"], "mailboxHasEmail");
    let answer = set(&server, json!({"destroy": [b], "onDestroyRemoveEmails": true})).await;
    assert_eq!(answer["destroyed"], json!([b]), "{answer}");
}

#[tokio::test]
async fn mb7_emails_leave_and_those_in_no_other_mailbox_are_destroyed() {
    let server = TestServer::new().await;
    let made = create(&server, json!({"a": {"name": "A"}, "b": {"name": "B"}})).await;
    let [a, b] = ["a", "b"].map(|key| made[key].as_str().unwrap());
    let alone = put_email(&server, &made["a"], false).await;
    let both = put_email(&server, &made["a"], false).await;
    let update = json!({"update": {&both: {format!("mailboxIds/{b}"): true}}});
    let answer = call(&server, "Email/set", update).await;
    assert_eq!(answer["updated"], json!({&both: null}), "{answer}");
    let before = answer["newState"].clone();
    let answer = set(&server, json!({"destroy": [a], "onDestroyRemoveEmails": true})).await;
    assert_eq!(answer["destroyed"], json!([a]));
    assert_eq!(mailboxes(&server).await["B"]["totalEmails"], 1);
    let answer = call(&server, "Email/set", json!({"ifInState": before, "destroy": [alone]})).await;
    assert_eq!(answer["type"], "stateMismatch");
    let answer = call(&server, "Email/set", json!({"destroy": [alone, both]})).await;
    assert_eq!(
        (&answer["destroyed"], &answer["notDestroyed"][&alone]["type"]),
        (&json!([both]), &json!("notFound"))
    );
}
