use serde_json::{Value, json};

use super::{Fixture, email_id, email_ids, mailbox_id, member, message, reply_to, strings, with};
use crate::JmapConfig;

fn at(seconds: u64) -> String {
    format!("1970-01-01T00:00:{seconds:02}Z")
}

#[tokio::test]
async fn l1_a_query_says_its_state_and_position_and_the_total_only_if_asked() {
    let fixture = Fixture::new().await;
    let [old, new] = [fixture.add_plain("old", 1).await, fixture.add_plain("new", 2).await];
    let filter = json!({"inMailbox": fixture.inbox_id()});
    let answer = fixture.call("Email/query", json!({"filter": filter, "limit": 10})).await;
    let mut names: Vec<&str> = answer.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names.join(" "), "accountId canCalculateChanges ids position queryState");
    assert_eq!(strings(&answer["ids"]), email_ids(&[new, old]));
    assert_eq!((&answer["position"], &answer["canCalculateChanges"]), (&json!(0), &json!(true)));
    let state = fixture.call("Email/get", json!({"ids": []})).await["state"].clone();
    assert_eq!(answer["queryState"], state);
    let answer = fixture.call("Email/query", json!({"filter": filter, "calculateTotal": true})).await;
    assert_eq!(answer["total"], 2);
    assert_eq!(answer["limit"], 5_000, "the server set it");
    let answer = fixture.call("Email/query", json!({"filter": filter, "limit": 6_000})).await;
    assert_eq!(answer["limit"], 5_000);
}

#[tokio::test]
async fn l2_positions_anchors_and_limits() {
    let fixture = Fixture::new().await;
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(fixture.add_plain("one", n).await);
    }
    ids.reverse();
    let all = email_ids(&ids);
    let filters = [
        json!({"inMailbox": fixture.inbox_id()}),
        json!({"operator": "NOT", "conditions": [{"inMailbox": mailbox_id(fixture.archive)}]}),
    ];
    // (arguments, position, ids)
    let cases = [
        (json!({"position": 2, "limit": 2}), 2, 2..4),
        (json!({"position": -2}), 4, 4..6),
        (json!({"position": -9, "limit": 1}), 0, 0..1),
        (json!({"position": 9}), 9, 0..0),
        (json!({"limit": 0}), 0, 0..0),
        (json!({"limit": null, "position": 5}), 5, 5..6),
        (json!({"anchor": all[3]}), 3, 3..6),
        (json!({"anchor": all[3], "anchorOffset": -2, "limit": 3}), 1, 1..4),
        (json!({"anchor": all[3], "anchorOffset": 1, "position": -1}), 4, 4..6),
        (json!({"anchor": all[3], "anchorOffset": -9, "limit": 1}), 0, 0..1),
        (json!({"anchor": all[3], "anchorOffset": 9}), 12, 0..0),
        (json!({"anchor": all[3], "anchorOffset": (1_i64 << 53) - 1}), (1_i64 << 53) - 1, 0..0),
    ];
    for filter in &filters {
        for collapse in [false, true] {
            for (arguments, position, range) in &cases {
                let mut arguments =
                    with(arguments.clone(), json!({"filter": filter, "collapseThreads": collapse}));
                let answer = fixture.call("Email/query", arguments.clone()).await;
                assert_eq!(answer["position"], *position, "{arguments} {answer}");
                assert_eq!(strings(&answer["ids"]), all[range.clone()], "{arguments}");
                arguments["calculateTotal"] = true.into();
                let answer = fixture.call("Email/query", arguments.clone()).await;
                assert_eq!(
                    (strings(&answer["ids"]), &answer["total"]),
                    (all[range.clone()].to_vec(), &json!(6))
                );
            }
        }
        for absent in ["e999", "nobody"] {
            let arguments = json!({"filter": filter, "anchor": absent});
            assert_eq!(fixture.error("Email/query", arguments).await, "anchorNotFound");
        }
    }
    for wrong in [
        json!({"limit": -1}),
        json!({"position": 1.5}),
        json!({"position": null}),
        json!({"anchor": 3}),
        json!({"calculateTotal": 1}),
        json!({"collapseThreads": "true"}),
        json!({"more": 1}),
    ] {
        assert_eq!(fixture.error("Email/query", wrong.clone()).await, "invalidArguments", "{wrong}");
    }
}

#[tokio::test]
async fn l2_an_email_that_is_not_in_the_result_is_no_anchor() {
    let fixture = Fixture::new().await;
    fixture.add_plain("in", 1).await;
    let other = fixture.add(&message("other", "", "text"), &[fixture.archive], &[], 2).await;
    let arguments = json!({"filter": {"inMailbox": fixture.inbox_id()}, "anchor": email_id(other)});
    assert_eq!(fixture.error("Email/query", arguments).await, "anchorNotFound");
}

#[tokio::test]
async fn l2_far_positions_are_the_same_by_walk_and_by_view() {
    let fixture = Fixture::new().await;
    let mut ids = Vec::new();
    for n in 0..140 {
        ids.push(fixture.add_plain("one", n).await);
    }
    let filter = json!({"inMailbox": fixture.inbox_id()});
    // The first of these walk an index, the later ones use a cached result, which is updated.
    for round in 0..4 {
        let mut expected = email_ids(&ids);
        expected.reverse();
        for collapse in [false, true] {
            let arguments =
                json!({"filter": filter, "collapseThreads": collapse, "position": 3, "limit": 5_000});
            assert_eq!(fixture.ids(arguments).await, expected[3..], "round {round}");
        }
        ids.push(fixture.add_plain("new", 200 + round).await);
        fixture.destroy(ids.remove(2)).await;
    }
    assert!(answered_by(&fixture, "walked") > 0);
    assert_eq!(answered_by(&fixture, "made"), 2);
}

/// How many queries were answered in this way.
fn answered_by(fixture: &Fixture, by: &str) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    restante_operate::Door::register(&fixture.server.door, &mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let name = format!("restante_jmap_email_queries_total{{by=\"{by}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn l3_operators_nest() {
    let fixture = Fixture::new().await;
    let [one, two, three] = [
        fixture.add_plain("one", 1).await,
        fixture.add_plain("two", 2).await,
        fixture.add_plain("three", 3).await,
    ];
    fixture.set_keywords(two, &["$flagged"]).await;
    let cases = [
        (json!(null), vec![three, two, one]),
        (json!({}), vec![three, two, one]),
        (json!({"operator": "AND", "conditions": []}), vec![three, two, one]),
        (json!({"operator": "OR", "conditions": []}), vec![]),
        (json!({"operator": "NOT", "conditions": []}), vec![three, two, one]),
        (
            json!({"operator": "NOT", "conditions": [{"hasKeyword": "$flagged"}, {"before": at(2)}]}),
            vec![three],
        ),
        (
            json!({"operator": "OR", "conditions": [
                {"operator": "AND", "conditions": [{"hasKeyword": "$flagged"}, {"after": at(2)}]},
                {"before": at(2)},
            ]}),
            vec![two, one],
        ),
    ];
    for (filter, expected) in cases {
        assert_eq!(fixture.ids(json!({"filter": filter})).await, email_ids(&expected), "{filter}");
    }
    let wrong = json!({"filter": {"operator": "XOR", "conditions": []}});
    assert_eq!(fixture.error("Email/query", wrong).await, "invalidArguments");
    assert_eq!(fixture.error("Email/query", json!({"filter": {"colour": 1}})).await, "unsupportedFilter");
}

#[tokio::test]
async fn l4_a_sort_that_is_not_known_is_unsupported() {
    let fixture = Fixture::new().await;
    for sort in [json!([{"property": "preview"}]), json!([{"property": "subject", "collation": "i;x"}])] {
        assert_eq!(fixture.error("Email/query", json!({"sort": sort})).await, "unsupportedSort");
    }
    assert_eq!(fixture.error("Email/query", json!({"sort": {}})).await, "invalidArguments");
}

#[tokio::test]
async fn l5_the_query_state_moves_when_ids_or_their_order_do() {
    let fixture = Fixture::new().await;
    let id = fixture.add_plain("one", 1).await;
    let arguments = || json!({"sort": [{"property": "hasKeyword", "keyword": "$flagged"}]});
    let state = async || fixture.call("Email/query", arguments()).await["queryState"].clone();
    let before = state().await;
    assert_eq!(before, state().await);
    fixture.set_keywords(id, &["$flagged"]).await;
    assert_ne!(before, state().await);
}

#[tokio::test]
async fn eq1_each_condition_selects_what_it_says() {
    let fixture = Fixture::new().await;
    let both = [fixture.inbox, fixture.archive];
    let small = fixture.add(&message("small", "", "a"), &both, &["$seen", "Custom"], 1).await;
    let large = fixture.add(&message("large", "", &"a".repeat(500)), &both[..1], &["$flagged"], 2).await;
    let attached = "From: a@b\r\nSubject: attached\r\nContent-Type: application/pdf; name=a.pdf\r\n\
                    Content-Disposition: attachment\r\n\r\nx\r\n";
    let attached = fixture.add(attached, &both[1..], &[], 3).await;
    let size = fixture.email(large, &["size"]).await["size"].clone();
    let cases = [
        (json!({"inMailbox": mailbox_id(both[0])}), vec![large, small]),
        (json!({"inMailbox": mailbox_id(both[1])}), vec![attached, small]),
        (json!({"inMailbox": "m999"}), vec![]),
        (json!({"inMailbox": "nobody"}), vec![]),
        (json!({"inMailboxOtherThan": [mailbox_id(both[0])]}), vec![attached, small]),
        (json!({"inMailboxOtherThan": [mailbox_id(both[0]), mailbox_id(both[1])]}), vec![]),
        (json!({"before": at(2)}), vec![small]),
        (json!({"after": at(2)}), vec![attached, large]),
        (json!({"after": at(1), "before": at(2), "inMailbox": mailbox_id(both[0])}), vec![small]),
        (json!({"minSize": size}), vec![large]),
        (json!({"maxSize": size}), vec![attached, small]),
        (json!({"hasKeyword": "$FLAGGED"}), vec![large]),
        (json!({"hasKeyword": "custom"}), vec![small]),
        (json!({"notKeyword": "$flagged"}), vec![attached, small]),
        (json!({"hasKeyword": "$seen"}), vec![small]),
        (json!({"notKeyword": "$seen", "inMailbox": mailbox_id(both[0])}), vec![large]),
        (json!({"notKeyword": "$seen"}), vec![attached, large]),
        (json!({"hasKeyword": "never"}), vec![]),
        (json!({"hasAttachment": true}), vec![attached]),
        (json!({"hasAttachment": false}), vec![large, small]),
    ];
    for (filter, expected) in cases {
        let answer = fixture.call("Email/query", json!({"filter": filter, "calculateTotal": true})).await;
        assert_eq!(strings(&answer["ids"]), email_ids(&expected), "{filter}");
        assert_eq!(answer["total"], expected.len(), "{filter}");
    }
}

#[tokio::test]
async fn eq1_thread_conditions_look_at_all_emails_of_a_thread() {
    let fixture = Fixture::new().await;
    let first = message("Plans", "Message-ID: <p1@example.com>\r\n", "a");
    let first = fixture.add(&first, &[fixture.inbox], &["$flagged"], 1).await;
    let reply = message("Re: Plans", &reply_to("p1"), "b");
    let reply = fixture.add(&reply, &[fixture.archive], &[], 2).await;
    let single = fixture.add(&message("single", "", "c"), &[fixture.inbox], &["$flagged"], 3).await;
    let thread = async |id| fixture.email(id, &["threadId"]).await["threadId"].clone();
    assert_eq!(thread(first).await, thread(reply).await);
    let cases = [
        ("allInThreadHaveKeyword", vec![single]),
        ("someInThreadHaveKeyword", vec![single, reply, first]),
        ("noneInThreadHaveKeyword", vec![]),
    ];
    for (condition, expected) in cases {
        let filter = member(condition, json!("$flagged"));
        assert_eq!(fixture.ids(json!({"filter": filter})).await, email_ids(&expected), "{condition}");
    }
    fixture.set_keywords(reply, &["$flagged"]).await;
    let filter = json!({"allInThreadHaveKeyword": "$flagged", "inMailbox": fixture.inbox_id()});
    assert_eq!(fixture.ids(json!({"filter": filter})).await, email_ids(&[single, first]));
}

#[tokio::test]
async fn eq3_each_sort_orders_by_its_property() {
    let fixture = Fixture::new().await;
    let raw = |from: &str, to: &str, subject: &str, date: &str, body: &str| {
        format!("From: {from}\r\nTo: {to}\r\nSubject: {subject}\r\nDate: {date}\r\n\r\n{body}\r\n")
    };
    let one = raw("zed <a@x>", "b@x", "Re: \u{c9}clair", "Thu, 30 Oct 2014 03:00:00 +0000", "aaa");
    let two = raw("<m@x>", "Ann <z@x>", "apple", "Thu, 30 Oct 2014 01:00:00 +0000", "aa");
    let three = raw("Bob <q@x>", "", "Fwd: Zebra", "Thu, 30 Oct 2014 02:00:00 +0000", "aaaa");
    let inbox = [fixture.inbox];
    let one = fixture.add(&one, &inbox, &["$flagged"], 1).await;
    let two = fixture.add(&two, &inbox, &[], 2).await;
    let three = fixture.add(&three, &inbox, &[], 3).await;
    let cases = [
        (json!({"property": "receivedAt"}), [one, two, three]),
        (json!({"property": "sentAt"}), [two, three, one]),
        (json!({"property": "from"}), [three, two, one]),
        (json!({"property": "to"}), [three, two, one]),
        (json!({"property": "subject"}), [two, one, three]),
        (json!({"property": "hasKeyword", "keyword": "$flagged"}), [two, three, one]),
        (json!({"property": "allInThreadHaveKeyword", "keyword": "$flagged"}), [two, three, one]),
        (json!({"property": "someInThreadHaveKeyword", "keyword": "$FLAGGED"}), [two, three, one]),
    ];
    for (comparator, mut expected) in cases {
        let ids = fixture.ids(json!({"sort": [comparator]})).await;
        assert_eq!(ids, email_ids(&expected), "{comparator}");
        let descending = with(comparator.clone(), json!({"isAscending": false}));
        expected.reverse();
        let ids = fixture
            .ids(json!({"sort": [descending, {"property": "receivedAt", "isAscending": false}]}))
            .await;
        if !comparator["property"].as_str().unwrap().ends_with("Keyword") {
            assert_eq!(ids, email_ids(&expected), "{comparator}");
        } else {
            assert_eq!(ids, email_ids(&[one, three, two]), "{comparator}");
        }
    }
    let by_size = fixture.ids(json!({"sort": [{"property": "size"}]})).await;
    let mut sizes = Vec::new();
    for id in by_size {
        let answer = fixture.call("Email/get", json!({"ids": [id], "properties": ["size"]})).await;
        sizes.push(answer["list"][0]["size"].as_u64().unwrap());
    }
    assert!(sizes.is_sorted(), "{sizes:?}");
    for keyword_sort in ["hasKeyword", "allInThreadHaveKeyword", "someInThreadHaveKeyword"] {
        let arguments = json!({"sort": [{"property": keyword_sort}]});
        assert_eq!(fixture.error("Email/query", arguments).await, "invalidArguments");
    }
}

/// Two threads of two and a single email, by receivedAt: a1 b1 c1 a2 b2.
async fn threads(fixture: &Fixture) -> [restante_records::RecordId; 5] {
    let inbox = [fixture.inbox];
    let id = |id: &str| format!("Message-ID: <{id}@example.com>\r\n");
    let a1 = fixture.add(&message("A", &id("a1"), "x"), &inbox, &[], 1).await;
    let b1 = fixture.add(&message("B", &id("b1"), "x"), &inbox, &["$flagged"], 2).await;
    let c1 = fixture.add(&message("C", &id("c1"), "x"), &inbox, &[], 3).await;
    let a2 = fixture.add(&message("Re: A", &reply_to("a1"), "x"), &inbox, &["$flagged"], 4).await;
    let b2 = fixture.add(&message("Re: B", &reply_to("b1"), "x"), &inbox, &[], 5).await;
    [a1, b1, c1, a2, b2]
}

#[tokio::test]
async fn eq4_threads_are_collapsed_after_filter_and_sort() {
    let fixture = Fixture::new().await;
    let [a1, b1, c1, a2, b2] = threads(&fixture).await;
    let inbox = json!({"inMailbox": fixture.inbox_id()});
    let flagged = json!({"inMailbox": fixture.inbox_id(), "hasKeyword": "$flagged"});
    let oldest = json!([{"property": "receivedAt"}]);
    let cases = [
        (inbox.clone(), json!(null), vec![b2, a2, c1]),
        (inbox.clone(), oldest.clone(), vec![a1, b1, c1]),
        (flagged, oldest, vec![b1, a2]),
        (json!({"hasKeyword": "$flagged"}), json!(null), vec![a2, b1]),
    ];
    for (filter, sort, expected) in cases {
        let arguments = json!({"filter": filter, "sort": sort, "collapseThreads": true});
        assert_eq!(fixture.ids(arguments).await, email_ids(&expected), "{filter} {sort}");
    }
    let arguments =
        json!({"filter": inbox, "collapseThreads": true, "calculateTotal": true, "position": 1, "limit": 1});
    let answer = fixture.call("Email/query", arguments).await;
    assert_eq!((strings(&answer["ids"]), &answer["total"]), (email_ids(&[a2]), &json!(3)));
    let arguments =
        json!({"filter": inbox, "collapseThreads": true, "anchor": email_id(a2), "anchorOffset": 1});
    assert_eq!(fixture.ids(arguments).await, email_ids(&[c1]));
    let arguments = json!({"filter": inbox, "collapseThreads": true, "anchor": email_id(a1)});
    assert_eq!(fixture.error("Email/query", arguments).await, "anchorNotFound");
}

#[tokio::test]
async fn eq4_kept_results_of_threads_follow_changes_without_being_made_again() {
    let fixture = Fixture::new().await;
    let [a1, b1, c1, a2, b2] = threads(&fixture).await;
    // No index can answer this filter.
    let any = json!({"filter": {"minSize": 1}, "collapseThreads": true});
    let flagged = json!({"filter": {"someInThreadHaveKeyword": "$flagged", "minSize": 1}});
    let check = async |first: &[_], of_flagged: &[_]| {
        assert_eq!(fixture.ids(any.clone()).await, email_ids(first));
        assert_eq!(fixture.ids(flagged.clone()).await, email_ids(of_flagged));
    };
    check(&[b2, a2, c1], &[b2, a2, b1, a1]).await;
    fixture.destroy(b2).await;
    check(&[a2, c1, b1], &[a2, b1, a1]).await;
    fixture.set_keywords(a2, &[]).await;
    check(&[a2, c1, b1], &[b1]).await;
    let a3 = fixture.add(&message("Re: A", &reply_to("a1"), "x"), &[fixture.inbox], &["$flagged"], 6).await;
    check(&[a3, c1, b1], &[a3, a2, b1, a1]).await;
    fixture.destroy(b1).await;
    fixture.destroy(a3).await;
    check(&[a2, c1], &[]).await;
    assert_eq!((answered_by(&fixture, "made"), answered_by(&fixture, "walked")), (2, 0));
}

#[tokio::test]
async fn eq5_what_was_added_is_found_by_the_next_call() {
    let fixture = Fixture::new().await;
    let filter = json!({"operator": "NOT", "conditions": [{"hasKeyword": "$flagged"}]});
    let mut expected: Vec<String> = Vec::new();
    for n in 0..20 {
        expected.insert(0, email_id(fixture.add_plain("one", n).await));
        assert_eq!(fixture.ids(json!({"filter": filter})).await, expected);
    }
}

#[tokio::test]
async fn mb5_the_total_of_a_mailbox_is_what_a_query_counts() {
    let fixture = Fixture::new().await;
    threads(&fixture).await;
    let (mailboxes, _) = fixture.server.mail.mailboxes(fixture.server.alice.account).await.unwrap();
    let inbox = mailboxes.iter().find(|mailbox| mailbox.id == fixture.inbox).unwrap();
    // Totals from the counters, and by counting.
    let filters = [
        json!({"inMailbox": fixture.inbox_id()}),
        json!({"operator": "OR", "conditions": [{"inMailbox": fixture.inbox_id()}]}),
    ];
    for filter in filters {
        let total = async |collapse: bool| {
            let arguments = json!({"filter": filter, "collapseThreads": collapse, "calculateTotal": true});
            fixture.call("Email/query", arguments).await["total"].clone()
        };
        assert_eq!(total(false).await, inbox.total);
        assert_eq!(total(true).await, inbox.threads);
    }
}

#[tokio::test]
async fn r1_emails_are_read_by_back_reference_to_a_query() {
    let fixture = Fixture::new().await;
    let id = fixture.add_plain("one", 1).await;
    let account = fixture.server.alice.id.clone();
    let filter = json!({"inMailbox": fixture.inbox_id()});
    let calls = json!([
        ["Email/query", {"accountId": account, "filter": filter, "limit": 20}, "q"],
        ["Email/get", {"accountId": account, "properties": ["subject"],
            "#ids": {"resultOf": "q", "name": "Email/query", "path": "/ids"}}, "g"],
    ]);
    let responses = fixture.server.calls(calls).await;
    assert_eq!(responses[1][1]["list"], json!([{"id": email_id(id), "subject": "one"}]));
}

#[tokio::test]
async fn m2_the_account_must_be_named_and_be_one_of_the_callers() {
    let fixture = Fixture::new().await;
    let bob = fixture.server.bob.id.clone();
    for name in [
        "Email/get",
        "Email/query",
        "Email/changes",
        "Email/queryChanges",
        "Email/parse",
        "SearchSnippet/get",
    ] {
        let missing = fixture.server.call(name, json!({})).await;
        assert_eq!(missing["type"], "invalidArguments", "{name}");
        let foreign = fixture.server.call(name, json!({ "accountId": bob })).await;
        assert_eq!(foreign["type"], "accountNotFound", "{name}");
    }
}

#[tokio::test]
async fn l1_a_query_returns_no_more_than_the_servers_limit() {
    let config = JmapConfig { query_limit_max: restante_core::nonzero!(2), ..JmapConfig::default() };
    let fixture = Fixture::with(config, None).await;
    for n in 0..3 {
        fixture.add_plain("one", n).await;
    }
    for arguments in [json!({}), json!({"limit": 3}), json!({"limit": null, "collapseThreads": true})] {
        let answer = fixture.call("Email/query", arguments).await;
        assert_eq!((strings(&answer["ids"]).len(), &answer["limit"]), (2, &json!(2)));
    }
    let answer = fixture.call("Email/query", json!({"limit": 1})).await;
    assert_eq!((strings(&answer["ids"]).len(), answer.get("limit")), (1, None::<&Value>));
}

#[tokio::test]
async fn l1_a_long_answer_is_complete() {
    let fixture = Fixture::new().await;
    let id = fixture.add_plain("one", 1).await;
    let records = &fixture.server.records.records;
    let get = restante_records::Get::whole(restante_mail::email::KIND, vec![id]);
    let record = records.get(fixture.server.alice.account, &get).await.unwrap().remove(0).unwrap();
    // More than one page of an index.
    for _ in 0..5 {
        let copy = || restante_records::Change::Create {
            kind: restante_mail::email::KIND,
            body: restante_records::Body::new(record.body.bytes.clone()),
            properties: record.properties.clone(),
        };
        fixture.commit(restante_records::Commit::of((0..900).map(|_| copy()))).await;
    }
    let filter = json!({"inMailbox": fixture.inbox_id()});
    for _ in 0..5 {
        assert_eq!(fixture.ids(json!({ "filter": filter })).await.len(), 4_501);
        assert_eq!(fixture.ids(json!({"filter": filter, "position": 4_400})).await.len(), 101);
    }
}
