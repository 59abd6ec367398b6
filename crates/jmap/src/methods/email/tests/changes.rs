use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use restante_mail::{email, mailbox, thread};
use restante_records::{
    Body, Change, Changes, ChangesSince, Commit, Properties, RecordId, Records, Revision, Value as Property,
    testing::{Hook, Hooked},
};
use serde_json::{Value, json};

use super::{Fixture, email_id, email_ids, message, strings};
use crate::{JmapConfig, testing::TestServer};

async fn changes(fixture: &Fixture, since: &str, max: Option<usize>) -> Value {
    let answer = fixture.call("Email/changes", json!({"sinceState": since, "maxChanges": max})).await;
    assert!(answer["newState"].is_string(), "{answer}");
    assert_eq!(answer["oldState"], since);
    answer
}

async fn state(fixture: &Fixture) -> String {
    let answer = fixture.call("Email/get", json!({"ids": []})).await;
    answer["state"].as_str().unwrap().to_owned()
}

fn text(answer: &Value, name: &str) -> String {
    answer[name].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn s1_an_id_stands_in_one_list() {
    let fixture = Fixture::new().await;
    let [kept, gone] = [fixture.add_plain("kept", 1).await, fixture.add_plain("gone", 2).await];
    let before = state(&fixture).await;
    let new = fixture.add_plain("new", 3).await;
    fixture.set_keywords(new, &["$flagged"]).await;
    fixture.set_keywords(kept, &["$flagged"]).await;
    fixture.set_keywords(gone, &["$flagged"]).await;
    fixture.destroy(gone).await;
    let brief = fixture.add_plain("brief", 4).await;
    fixture.destroy(brief).await;
    let answer = changes(&fixture, &before, None).await;
    assert_eq!(strings(&answer["created"]), [email_id(new)]);
    assert_eq!(strings(&answer["updated"]), [email_id(kept)]);
    assert_eq!(strings(&answer["destroyed"]), [email_id(gone)]);
    assert_eq!(answer["hasMoreChanges"], false);
}

#[tokio::test]
async fn s2_max_changes_bounds_the_sum() {
    let fixture = Fixture::new().await;
    let before = state(&fixture).await;
    for n in 0..5 {
        fixture.add_plain("one", n).await;
    }
    let answer = changes(&fixture, &before, Some(3)).await;
    assert_eq!((strings(&answer["created"]).len(), &answer["hasMoreChanges"]), (3, &json!(true)));
    for max in [json!(0), json!(-1), json!("3"), json!(1.5)] {
        let error = fixture.error("Email/changes", json!({"sinceState": before, "maxChanges": max})).await;
        assert_eq!(error, "invalidArguments", "{max}");
    }
}

#[tokio::test]
async fn s2_an_unknown_state_cannot_be_calculated_from() {
    let fixture = Fixture::new().await;
    for unknown in ["", "x", "999999", "-1", "01", "1-x", "12-"] {
        let error = fixture.error("Email/changes", json!({"sinceState": unknown})).await;
        assert_eq!(error, "cannotCalculateChanges", "{unknown}");
    }
    assert_eq!(fixture.error("Email/changes", json!({})).await, "invalidArguments");
    assert_eq!(fixture.error("Email/changes", json!({"sinceState": 1})).await, "invalidArguments");
}

#[tokio::test]
async fn s3_the_new_state_is_that_of_a_get_right_after() {
    let fixture = Fixture::new().await;
    fixture.add_plain("one", 1).await;
    let before = state(&fixture).await;
    fixture.add_plain("two", 2).await;
    // A commit that touches no email raises the account's revision above the state of emails.
    fixture
        .commit(Commit::of([Change::Create {
            kind: thread::KIND,
            body: Body::default(),
            properties: Properties::default(),
        }]))
        .await;
    let answer = changes(&fixture, &before, None).await;
    assert_eq!(text(&answer, "newState"), state(&fixture).await);
    let again = changes(&fixture, &text(&answer, "newState"), None).await;
    assert_eq!(
        (text(&again, "newState"), &again["hasMoreChanges"]),
        (text(&answer, "newState"), &json!(false))
    );
    assert!(strings(&again["created"]).is_empty());
}

#[tokio::test]
async fn s4_the_state_moves_for_changes_that_a_get_shows_and_for_no_others() {
    let fixture = Fixture::new().await;
    let id = fixture.add_plain("one", 1).await;
    let mut states = vec![state(&fixture).await];
    fixture.set_keywords(id, &["$flagged"]).await;
    states.push(state(&fixture).await);
    fixture.set_mailboxes(id, &[fixture.archive]).await;
    states.push(state(&fixture).await);
    fixture.destroy(id).await;
    states.push(state(&fixture).await);
    let mut distinct = states.clone();
    distinct.dedup();
    assert_eq!(distinct, states);
    let touch = Change::Update { kind: mailbox::KIND, id: fixture.inbox, body: None, properties: None };
    fixture.commit(Commit::of([touch])).await;
    assert_eq!(state(&fixture).await, states[3]);
}

#[tokio::test]
async fn s5_paging_to_the_end_equals_one_big_answer() {
    let fixture = Fixture::new().await;
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(fixture.add_plain("old", n).await);
    }
    let before = state(&fixture).await;
    for id in &ids[..4] {
        fixture.set_keywords(*id, &["$flagged"]).await;
    }
    fixture.destroy(ids[1]).await;
    ids.push(fixture.add_plain("new", 9).await);
    let whole = changes(&fixture, &before, None).await;
    for max in 1..=7 {
        let mut lists = [Vec::new(), Vec::new(), Vec::new()];
        let mut since = before.clone();
        loop {
            let page = changes(&fixture, &since, Some(max)).await;
            let mut count = 0;
            for (list, name) in lists.iter_mut().zip(["created", "updated", "destroyed"]) {
                let part = strings(&page[name]);
                count += part.len();
                list.extend(part);
            }
            assert!(count <= max, "{page}");
            since = text(&page, "newState");
            if page["hasMoreChanges"] == false {
                break;
            }
        }
        assert_eq!(since, text(&whole, "newState"));
        for (list, name) in lists.iter().zip(["created", "updated", "destroyed"]) {
            assert_eq!(*list, strings(&whole[name]), "{name} by {max}");
        }
    }
}

/// One commit that makes the same change to several emails.
async fn together(fixture: &Fixture, ids: &[RecordId], change: impl Fn(RecordId) -> Change) {
    fixture.commit(Commit::of(ids.iter().map(|id| change(*id)))).await;
}

fn touched(id: RecordId) -> Change {
    Change::Update { kind: email::KIND, id, body: None, properties: None }
}

fn destroyed(id: RecordId) -> Change {
    Change::Destroy { kind: email::KIND, id }
}

/// All pages: the ids of the lists, and the states between them.
async fn pages(fixture: &Fixture, since: &str, max: usize) -> (Vec<Vec<String>>, Vec<String>) {
    let mut lists = vec![Vec::new(); 3];
    let mut states = Vec::new();
    let mut since = since.to_owned();
    for _ in 0..100 {
        let page = changes(fixture, &since, Some(max)).await;
        let sizes: usize =
            ["created", "updated", "destroyed"].map(|name| strings(&page[name]).len()).iter().sum();
        assert!(sizes <= max, "{page}");
        for (list, name) in lists.iter_mut().zip(["created", "updated", "destroyed"]) {
            list.extend(strings(&page[name]));
        }
        since = text(&page, "newState");
        states.push(since.clone());
        if page["hasMoreChanges"] == false {
            return (lists, states);
        }
    }
    panic!("the pages don't end");
}

#[tokio::test]
async fn s6_a_commit_with_more_changes_is_returned_in_parts() {
    let fixture = Fixture::new().await;
    let mut ids = Vec::new();
    for n in 0..7 {
        ids.push(fixture.add_plain("old", n).await);
    }
    // Commits of other kinds come between, so that the revision must be searched for.
    let between = || {
        Commit::of([Change::Update { kind: mailbox::KIND, id: fixture.inbox, body: None, properties: None }])
    };
    for (change, list) in [(touched as fn(RecordId) -> Change, 1), (destroyed, 2)] {
        fixture.commit(between()).await;
        let before = state(&fixture).await;
        fixture.commit(between()).await;
        fixture.commit(between()).await;
        together(&fixture, &ids, change).await;
        fixture.commit(between()).await;
        for max in [1, 2, 3, 6, 7, 8] {
            let (lists, states) = pages(&fixture, &before, max).await;
            assert_eq!(lists[list], email_ids(&ids), "by {max}");
            assert_eq!(lists.iter().map(Vec::len).sum::<usize>(), ids.len());
            assert_eq!(states.len(), ids.len().div_ceil(max));
            assert_eq!(states.iter().filter(|state| state.contains('-')).count(), states.len() - 1);
            assert_eq!(*states.last().unwrap(), state(&fixture).await);
        }
    }
}

#[tokio::test]
async fn s6_what_changes_again_between_the_parts_of_a_commit_is_not_missed() {
    let fixture = Fixture::new().await;
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(fixture.add_plain("old", n).await);
    }
    let before = state(&fixture).await;
    together(&fixture, &ids, touched).await;
    let first = changes(&fixture, &before, Some(2)).await;
    assert_eq!(strings(&first["updated"]), email_ids(&ids[..2]));
    fixture.set_keywords(ids[0], &["$flagged"]).await; // returned already, and changed again
    fixture.set_keywords(ids[3], &["$flagged"]).await; // not returned yet
    fixture.destroy(ids[4]).await;
    let (lists, _) = pages(&fixture, &text(&first, "newState"), 2).await;
    let mut updated = lists[1].clone();
    updated.sort();
    let mut expected = email_ids(&[ids[0], ids[2], ids[3], ids[5]]);
    expected.sort();
    assert_eq!(updated, expected);
    assert_eq!(lists[2], [email_id(ids[4])]);
    // All the rest of the commit changes again: nothing of it remains.
    let first = changes(&fixture, &before, Some(1)).await;
    together(&fixture, &[ids[0], ids[1], ids[2], ids[3], ids[5]], touched).await;
    let (lists, _) = pages(&fixture, &text(&first, "newState"), 2).await;
    assert_eq!(lists[1], email_ids(&[ids[0], ids[1], ids[2], ids[3], ids[5]]));
}

#[tokio::test]
async fn s6_a_commit_of_which_nothing_is_left_does_not_hide_the_one_behind_it() {
    let fixture = Fixture::new().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(fixture.add_plain("old", n).await);
    }
    for change in [touched as fn(RecordId) -> Change, destroyed] {
        let before = state(&fixture).await;
        together(&fixture, &ids, touched).await;
        let first = changes(&fixture, &before, Some(2)).await;
        assert_eq!(strings(&first["updated"]), email_ids(&ids[..2]));
        together(&fixture, &ids, change).await;
        let (lists, _) = pages(&fixture, &text(&first, "newState"), 2).await;
        assert_eq!(lists[1..].concat(), email_ids(&ids));
    }
}

#[tokio::test]
async fn s6_created_emails_of_one_commit_are_returned_in_parts() {
    let fixture = Fixture::new().await;
    let first = fixture.add(&message("a", "", "b"), &[fixture.inbox], &[], 1).await;
    let records = &fixture.server.records.records;
    let get = restante_records::Get::whole(email::KIND, vec![first]);
    let record = records.get(fixture.server.alice.account, &get).await.unwrap().remove(0).unwrap();
    let before = state(&fixture).await;
    let copy = |n: u64| Change::Create {
        kind: email::KIND,
        body: record.body.clone(),
        properties: {
            let mut properties = record.properties.clone();
            properties.add(email::PLACE, Property::Number(1 << 40 | n));
            properties
        },
    };
    fixture.commit(Commit::of((0..5).map(copy))).await;
    let whole = strings(&changes(&fixture, &before, None).await["created"]);
    assert_eq!(whole.len(), 5);
    let (lists, states) = pages(&fixture, &before, 2).await;
    assert_eq!((&lists[0], states.len()), (&whole, 3));
}

/// While this is true, each page of changes is empty and covers one revision.
#[derive(Default)]
struct EmptyPages(AtomicBool);

#[async_trait]
impl Hook for EmptyPages {
    fn changes_instead(&self, since: &ChangesSince) -> Option<Changes> {
        let revision = Revision(since.since.0 + 1);
        let empty = Changes {
            created: Vec::new(),
            updated: Vec::new(),
            destroyed: Vec::new(),
            revision,
            has_more: true,
        };
        self.0.load(Ordering::Relaxed).then_some(empty)
    }
}

/// Regression test: the response was always `serverUnavailable` after many emails had been created and destroyed again.
#[tokio::test]
async fn s5_a_client_gets_on_where_nothing_is_left_of_many_changes() {
    let mut hooked = None;
    let wrap = |inner: Arc<dyn Records>| {
        let records = Arc::new(Hooked { inner, hook: EmptyPages::default() });
        hooked = Some(records.clone());
        records as Arc<dyn Records>
    };
    let fixture = Fixture::of(TestServer::with_records(JmapConfig::default(), wrap).await).await;
    let before = state(&fixture).await;
    for n in 0..40 {
        fixture.add_plain("one", n).await;
    }
    let hook = &hooked.as_ref().unwrap().hook;
    hook.0.store(true, Ordering::Relaxed);
    let page = changes(&fixture, &before, None).await;
    hook.0.store(false, Ordering::Relaxed);
    assert_eq!((&page["created"], &page["hasMoreChanges"]), (&json!([]), &json!(true)));
    let reached = text(&page, "newState");
    assert!(reached.parse::<u64>().unwrap() > before.parse().unwrap(), "{page}");
    let rest = changes(&fixture, &reached, None).await;
    assert_eq!((text(&rest, "newState"), &rest["hasMoreChanges"]), (state(&fixture).await, &json!(false)));
}
