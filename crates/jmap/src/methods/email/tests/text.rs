use std::{sync::Arc, time::Duration};

use restante_search::Document;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Fixture, email_ids, index::Index, message, reply_to, strings};
use crate::JmapConfig;

async fn fixture() -> (Fixture, Arc<Index>) {
    let index = Arc::new(Index::new().await);
    (Fixture::with(JmapConfig::default(), Some(index.clone())).await, index)
}

/// The emails that pass, newest first; also checks that requests for parts of the result return the same emails.
async fn found(fixture: &Fixture, filter: Value) -> Vec<String> {
    let all = fixture.ids(json!({ "filter": filter })).await;
    for (position, limit) in [(0, 1), (0, 20), (2, 3), (0, 1_000)] {
        let part = fixture.ids(json!({"filter": filter, "position": position, "limit": limit})).await;
        let expected: Vec<&String> = all.iter().skip(position).take(limit).collect();
        assert_eq!(part.iter().collect::<Vec<_>>(), expected, "{limit} from {position} on of {filter}");
    }
    all
}

#[tokio::test]
async fn eq2_texts_of_emails_that_are_newer_than_the_index_are_matched_directly() {
    let (fixture, _) = fixture().await;
    let html = "Content-Type: text/html\r\n";
    let body = "<style>hidden</style><p>Caf\u{e9} <b>au</b> lait <img alt='picture of milk'></p>";
    let one = fixture.add(&message("First one", html, body), &[fixture.inbox], &[], 1).await;
    let two = fixture
        .add(&message("Second one", "X-Mailer: kube 2\r\n", "plain words"), &[fixture.inbox], &[], 2)
        .await;
    let cases = [
        (json!({"text": "one"}), vec![two, one]),
        (json!({"text": "one second"}), vec![two]),
        (json!({"text": "'second one'"}), vec![two]),
        (json!({"text": "\"one second\""}), vec![]),
        (json!({"body": "CAFE"}), vec![one]),
        (json!({"body": "milk"}), vec![one]),
        (json!({"body": "hidden"}), vec![]),
        (json!({"body": "style"}), vec![]),
        (json!({"subject": "first"}), vec![one]),
        (json!({"subject": "words"}), vec![]),
        (json!({"from": "alice"}), vec![two, one]),
        (json!({"from": "example.com"}), vec![two, one]),
        (json!({"to": "Bob"}), vec![two, one]),
        (json!({"cc": "Bob"}), vec![]),
        (json!({"header": ["x-mailer"]}), vec![two]),
        (json!({"header": ["X-Mailer", "kube"]}), vec![two]),
        (json!({"header": ["X-Mailer", "other"]}), vec![]),
        (json!({"operator": "NOT", "conditions": [{"text": "second"}]}), vec![one]),
        (json!({"operator": "OR", "conditions": [{"text": "second"}, {"subject": "first"}]}), vec![two, one]),
    ];
    for (filter, expected) in cases {
        assert_eq!(found(&fixture, filter.clone()).await, email_ids(&expected), "{filter}");
    }
}

#[tokio::test]
async fn eq5_what_the_index_has_and_what_is_newer_is_found_together() {
    let (fixture, index) = fixture().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(fixture.add_plain("needle", n).await);
    }
    let account = fixture.server.alice.account;
    let indexed = ids.iter().enumerate().map(|(n, id)| Document {
        id: *id,
        received: n as i64,
        subject: "needle".to_owned(),
        ..Document::default()
    });
    let revision = fixture.server.records.records.states(account).await.unwrap().revision;
    index.put(account, indexed.collect(), revision).await;
    fixture.destroy(ids[1]).await; // the index still has it
    for n in 10..13 {
        ids.push(fixture.add_plain("needle", n).await);
        let mut expected = ids.clone();
        expected.remove(1);
        expected.reverse();
        let answer = fixture
            .call("Email/query", json!({"filter": {"subject": "needle"}, "calculateTotal": true}))
            .await;
        assert_eq!(strings(&answer["ids"]), email_ids(&expected));
        assert_eq!(
            (&answer["total"], &answer["canCalculateChanges"]),
            (&json!(expected.len()), &json!(false))
        );
    }
}

#[tokio::test]
async fn eq2_texts_are_combined_with_what_changes() {
    let (fixture, _) = fixture().await;
    let [one, two] = [fixture.add_plain("needle", 1).await, fixture.add_plain("needle", 2).await];
    let filter = json!({"text": "needle", "hasKeyword": "$flagged", "inMailbox": fixture.inbox_id()});
    assert!(found(&fixture, filter.clone()).await.is_empty());
    fixture.set_keywords(one, &["$flagged"]).await;
    assert_eq!(found(&fixture, filter.clone()).await, email_ids(&[one]));
    fixture.set_keywords(two, &["$flagged"]).await;
    fixture.set_mailboxes(one, &[fixture.archive]).await;
    assert_eq!(found(&fixture, filter).await, email_ids(&[two]));
}

#[tokio::test]
async fn eq4_threads_of_a_text_query_are_collapsed() {
    let (fixture, _) = fixture().await;
    let first = message("needle", "Message-ID: <n1@example.com>\r\n", "a");
    let first = fixture.add(&first, &[fixture.inbox], &[], 1).await;
    let reply = fixture.add(&message("Re: needle", &reply_to("n1"), "b"), &[fixture.inbox], &[], 2).await;
    for limit in [None, Some(10)] {
        let query = async |collapse: bool| {
            let arguments =
                json!({"filter": {"text": "needle"}, "collapseThreads": collapse, "limit": limit});
            fixture.ids(arguments).await
        };
        assert_eq!(query(false).await, email_ids(&[reply, first]));
        assert_eq!(query(true).await, email_ids(&[reply]));
        assert_eq!(query(false).await, email_ids(&[reply, first]));
    }
}

#[tokio::test]
async fn eq2_many_hits_are_intersected_with_a_mailbox() {
    let (fixture, index) = fixture().await;
    let mut archived = Vec::new();
    let mut documents = Vec::new();
    for n in 0..1_100 {
        let mailbox = if n % 400 == 0 { fixture.archive } else { fixture.inbox };
        let id = fixture.add(&message("needle", "", "text"), &[mailbox], &[], n).await;
        if mailbox == fixture.archive {
            archived.insert(0, id);
        }
        documents.push(Document { id, received: n, subject: "needle".to_owned(), ..Document::default() });
    }
    let states = fixture.server.records.records.states(fixture.server.alice.account).await.unwrap();
    index.put(fixture.server.alice.account, documents, states.revision).await;
    let filter = json!({"subject": "needle", "inMailbox": super::mailbox_id(fixture.archive)});
    assert_eq!(found(&fixture, filter.clone()).await, email_ids(&archived));
    fixture.destroy(archived.remove(1)).await; // the index still has it
    assert_eq!(found(&fixture, filter).await, email_ids(&archived));
    assert_eq!(found(&fixture, json!({"subject": "needle"})).await.len(), 1_099);
}

#[tokio::test]
async fn eq2_the_newest_hits_are_those_of_all_whatever_the_order_of_the_index() {
    let (fixture, index) = fixture().await;
    let mut documents = Vec::new();
    for n in 0..400_i64 {
        // Received in another order than stored, some at the same time, in either mailbox, in the index or newer than it.
        let received = n * 7 % 90;
        let mailbox = if n % 9 == 0 { fixture.archive } else { fixture.inbox };
        let subject = if n % 4 == 0 { "needle hay" } else { "needle" };
        let id = fixture.add(&message(subject, "", "text"), &[mailbox], &[], received).await;
        if n % 5 == 0 {
            fixture.set_keywords(id, &["$flagged"]).await;
        }
        documents.push(Document { id, received, subject: subject.to_owned(), ..Document::default() });
        if n == 370 {
            let states = fixture.server.records.records.states(fixture.server.alice.account).await.unwrap();
            index.put(fixture.server.alice.account, documents.clone(), states.revision).await;
        }
    }
    for n in [5, 36, 80, 200, 371, 396] {
        fixture.destroy(documents[n].id).await; // the index still has most of them
    }
    let archive = super::mailbox_id(fixture.archive);
    for (filter, least) in [
        (json!({"text": "needle"}), 300),
        (json!({"subject": "needle", "inMailbox": archive}), 30),
        (json!({"subject": "hay", "inMailbox": archive}), 5),
        (json!({"subject": "needle hay", "hasKeyword": "$flagged"}), 10),
        (json!({"text": "needle", "after": "1970-01-01T00:00:20Z", "before": "1970-01-01T00:01:00Z"}), 100),
        (
            json!({"operator": "AND", "conditions": [
                {"operator": "NOT", "conditions": [{"text": "hay"}]},
                {"operator": "OR", "conditions": [{"inMailbox": archive}, {"hasKeyword": "$flagged"}]},
            ]}),
            20,
        ),
        (json!({"operator": "OR", "conditions": [{"inMailbox": archive}, {"text": "hay"}]}), 100),
    ] {
        let found = found(&fixture, filter.clone()).await;
        assert!(found.len() >= least, "{} of {filter}", found.len());
        let collapsed = |limit: Value| json!({"filter": filter, "collapseThreads": true, "limit": limit});
        let (all, some) =
            (fixture.ids(collapsed(Value::Null)).await, fixture.ids(collapsed(json!(10))).await);
        assert_eq!(all[..10.min(all.len())], some);
    }
}

#[tokio::test]
async fn x3_changes_of_a_text_query_cannot_be_calculated() {
    let (fixture, _) = fixture().await;
    let filter = json!({"text": "needle"});
    let answer = fixture.call("Email/query", json!({ "filter": filter })).await;
    assert_eq!(answer["canCalculateChanges"], false);
    let arguments = json!({"filter": filter, "sinceQueryState": answer["queryState"]});
    assert_eq!(fixture.error("Email/queryChanges", arguments).await, "cannotCalculateChanges");
}

#[tokio::test]
async fn l3_texts_are_unsupported_without_an_index() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.error("Email/query", json!({"filter": {"text": "a"}})).await, "unsupportedFilter");
}

#[tokio::test]
async fn eq5_an_index_that_lags_far_behind_does_not_keep_its_partial_results() {
    let (fixture, index) = fixture().await;
    let mut ids = Vec::new();
    for n in 0..520 {
        ids.push(fixture.add_plain("needle", n).await);
    }
    let filter = json!({"subject": "needle"});
    let partial = found(&fixture, filter.clone()).await;
    assert_eq!(partial.len(), 512, "the newest are matched directly");
    assert_eq!(partial[0], email_ids(&ids)[519]);
    let answers = async |limit: Value| {
        let answer = fixture.call("Email/query", json!({"filter": filter, "limit": limit})).await;
        (answer["queryState"].as_str().unwrap().to_owned(), answer["ids"].as_array().unwrap().len())
    };
    let before = [answers(Value::Null).await, answers(json!(600)).await];
    let indexed =
        ids.iter().map(|id| Document { id: *id, subject: "needle".to_owned(), ..Document::default() });
    let states = fixture.server.records.records.states(fixture.server.alice.account).await.unwrap();
    index.put(fixture.server.alice.account, indexed.collect(), states.revision).await;
    assert_eq!(found(&fixture, filter.clone()).await.len(), 520, "no email has changed meanwhile");
    // L5: a client that keeps the partial result for its state would never see the others.
    for (before, limit) in before.into_iter().zip([Value::Null, json!(600)]) {
        let after = answers(limit).await;
        assert_eq!((before.1, after.1), (512, 520));
        assert_eq!(before.0, format!("{}-i0", after.0));
        let arguments = json!({"filter": filter, "sinceQueryState": before.0});
        assert_eq!(fixture.error("Email/queryChanges", arguments).await, "cannotCalculateChanges");
        let arguments = json!({"sinceQueryState": before.0});
        assert_eq!(fixture.error("Email/queryChanges", arguments).await, "cannotCalculateChanges");
    }
}

#[tokio::test]
async fn eq5_an_index_that_was_repaired_is_asked_again_though_no_email_changed() {
    let (fixture, index) = fixture().await;
    let ids = [fixture.add_plain("needle", 1).await, fixture.add_plain("needle", 2).await];
    let account = fixture.server.alice.account;
    let document = |id| Document { id, subject: "needle".to_owned(), ..Document::default() };
    let revision = fixture.server.records.records.states(account).await.unwrap().revision;
    index.put(account, vec![document(ids[0])], revision).await;
    // The size prevents an answer from the index alone.
    let filter = json!({"subject": "needle", "minSize": 1});
    assert_eq!(found(&fixture, filter.clone()).await, email_ids(&[ids[0]]), "it has lost one");
    index.put(account, ids.map(document).to_vec(), revision).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    assert_eq!(found(&fixture, filter).await, email_ids(&[ids[1], ids[0]]));
}

/// Makes 600 emails with a needle; the index has only the first one. Returns all of them as documents.
async fn imported(fixture: &Fixture, index: &Index) -> Vec<Document> {
    let account = fixture.server.alice.account;
    let mut documents = Vec::new();
    for n in 0..600 {
        let id = fixture.add_plain("needle", n).await;
        documents.push(Document { id, received: n, subject: "needle".to_owned(), ..Document::default() });
        if n == 0 {
            let states = fixture.server.records.records.states(account).await.unwrap();
            index.put(account, documents.clone(), states.revision).await;
        }
    }
    documents
}

#[tokio::test]
async fn eq5_a_search_after_a_large_import_waits_for_the_index() {
    let needle = json!({"subject": "needle"});
    for (arguments, expected) in [
        (json!({"filter": {"operator": "NOT", "conditions": [needle]}}), 0),
        (json!({"filter": needle}), 600),
        (json!({"filter": needle, "limit": 1_000}), 600), // the newest hits
    ] {
        let (fixture, index) = fixture().await;
        let documents = imported(&fixture, &index).await;
        let account = fixture.server.alice.account;
        let revision = fixture.server.records.records.states(account).await.unwrap().revision;
        let indexing = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(250)).await;
            index.put(account, documents, revision).await;
        });
        assert_eq!(fixture.ids(arguments.clone()).await.len(), expected, "{arguments}");
        indexing.await.unwrap();
    }
}

#[tokio::test]
async fn eq5_a_search_waits_for_an_index_that_stays_behind_only_so_long() {
    let (fixture, index) = fixture().await;
    imported(&fixture, &index).await;
    let begun = Instant::now();
    assert_eq!(fixture.ids(json!({"filter": {"subject": "needle"}})).await.len(), 513);
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(4), "{waited:?}");
}
