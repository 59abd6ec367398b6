//! Emails with damaged records or messages, among intact ones.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use restante_core::Timestamp;
use restante_mail::email;
use restante_records::{
    Error, Get, RecordId, Records,
    testing::{Hook, Hooked},
};
use restante_search::Search;
use serde_json::{Value, json};

use super::{Fixture, email_id, index::Index, message, strings};
use crate::{JmapConfig, testing::TestServer};

/// The damaged email; 0 for none.
#[derive(Default)]
struct Damaged(AtomicU64);

#[async_trait]
impl Hook for Damaged {
    fn before_get(&self, get: &Get) -> Result<(), Error> {
        let damaged = RecordId(self.0.load(Ordering::Relaxed));
        match get.kind == email::KIND && get.ids.contains(&damaged) {
            true => Err(Error::corrupt("a row is damaged")),
            false => Ok(()),
        }
    }
}

/// Regression test: one damaged row made all emails of an account unreadable.
#[tokio::test]
async fn an_email_whose_record_is_damaged_is_left_out_of_answers_and_others_are_answered() {
    let mut hooked = None;
    let wrap = |inner: Arc<dyn Records>| {
        let records = Arc::new(Hooked { inner, hook: Damaged::default() });
        hooked = Some(records.clone());
        records as Arc<dyn Records>
    };
    let fixture = Fixture::of(TestServer::with_records(JmapConfig::default(), wrap).await).await;
    let mut ids = Vec::new();
    for number in 0..70 {
        ids.push(fixture.add_plain(&format!("number {number:02}"), number).await);
    }
    for number in [3, 40, 69] {
        let damaged = ids[number];
        hooked.as_ref().unwrap().hook.0.store(damaged.0, Ordering::Relaxed);
        let asked: Vec<String> = ids.iter().map(|id| email_id(*id)).collect();
        let sound: Vec<String> = asked.iter().filter(|id| **id != email_id(damaged)).cloned().collect();
        for properties in [json!(["subject"]), json!(["keywords"])] {
            let answer = fixture.call("Email/get", json!({"ids": asked, "properties": properties})).await;
            let found: Vec<Value> =
                answer["list"].as_array().unwrap().iter().map(|email| email["id"].clone()).collect();
            assert_eq!(json!(found), json!(sound), "{answer}");
            assert_eq!(answer["notFound"], json!([]), "it does exist");
            let alone = json!({"ids": [email_id(damaged)], "properties": properties});
            assert_eq!(fixture.error("Email/get", alone).await, "serverFail");
        }
        // A filter that was not used before, so that no cached result is used.
        let by_subject = json!({"filter": {"minSize": number}, "sort": [{"property": "subject"}]});
        let found = fixture.ids(by_subject).await;
        assert_eq!(found, sound, "what is sorted by rows");
    }
}

/// Regression test: one damaged message made the bodies of all emails of a call unreadable.
#[tokio::test]
async fn a_message_that_is_lost_has_empty_texts_with_a_problem_and_others_are_answered() {
    let index: Arc<dyn Search> = Arc::new(Index::new().await);
    let fixture = Fixture::with(JmapConfig::default(), Some(index)).await;
    let lost = fixture.add(&message("lost", "", "text"), &[fixture.inbox], &[], 1).await;
    let upkeep = &fixture.server.blobs.upkeep;
    let blobs: Vec<_> = upkeep.list(None, 10).await.unwrap().iter().map(|listed| listed.id).collect();
    assert_eq!(upkeep.remove(&blobs, Timestamp(i64::MAX)).await.unwrap(), 1);
    let sound = fixture.add(&message("sound", "", "another"), &[fixture.inbox], &[], 2).await;
    let ids = json!([email_id(lost), email_id(sound)]);

    let asked = json!({"ids": ids, "properties": ["subject", "bodyValues"], "fetchTextBodyValues": true});
    let answer = fixture.call("Email/get", asked).await;
    let subjects = strings(&json!([answer["list"][0]["subject"], answer["list"][1]["subject"]]));
    assert_eq!(subjects, ["lost", "sound"]);
    let value = |number: usize| {
        let values = answer["list"][number]["bodyValues"].as_object().unwrap();
        values.values().next().unwrap().clone()
    };
    assert_eq!(value(0), json!({"value": "", "isEncodingProblem": true, "isTruncated": false}));
    assert_eq!(value(1)["value"], "another\n");

    // Properties that are only in the message can't be returned.
    let answer = fixture.call("Email/get", json!({"ids": ids, "properties": ["headers"]})).await;
    assert_eq!(answer["list"][0]["id"], email_id(sound));
    assert_eq!((answer["list"].as_array().unwrap().len(), &answer["notFound"]), (1, &json!([])));

    // It has no snippet, and a search finds nothing in it.
    let filter = json!({"body": "another"});
    let answer = fixture.call("SearchSnippet/get", json!({"filter": filter, "emailIds": ids})).await;
    assert_eq!(answer["list"][0], json!({"emailId": email_id(lost), "subject": null, "preview": null}));
    assert_eq!(answer["list"][1]["preview"].as_str().unwrap().trim_end(), "<mark>another</mark>");
    assert_eq!(answer["notFound"], Value::Null);
    for limit in [Value::Null, json!(1)] {
        assert_eq!(fixture.ids(json!({"filter": filter, "limit": limit})).await, [email_id(sound)]);
    }
}
