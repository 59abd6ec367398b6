use restante_records::RecordId;
use serde_json::{Value, json};

use super::{Fixture, email_id, email_ids, member, message, reply_to, strings, with};

/// A query that a client keeps up to date by its changes.
pub(super) struct Client {
    pub(super) arguments: Value,
    pub(super) ids: Vec<String>,
    state: String,
}

impl Client {
    pub(super) async fn new(fixture: &Fixture, arguments: Value) -> Self {
        let mut answer = Value::Null;
        for _ in 0..100 {
            answer = fixture.call("Email/query", arguments.clone()).await;
            if answer["canCalculateChanges"] == true {
                break; // it is not exact while others keep committing
            }
        }
        assert_eq!(answer["canCalculateChanges"], true, "{answer}");
        let state = answer["queryState"].as_str().unwrap().to_owned();
        Self { arguments, ids: strings(&answer["ids"]), state }
    }

    /// Applies the changes as RFC 8620 §5.6 says; returns (removed, added).
    pub(super) async fn update(&mut self, fixture: &Fixture) -> (Vec<String>, Vec<String>) {
        let since = json!({"sinceQueryState": self.state, "calculateTotal": true});
        let answer = fixture.call("Email/queryChanges", with(self.arguments.clone(), since)).await;
        self.apply(&answer)
    }

    /// The same, but returns false when others commit so often that there is no response.
    pub(super) async fn try_update(&mut self, fixture: &Fixture) -> bool {
        let since = json!({"sinceQueryState": self.state, "calculateTotal": true});
        let answer = fixture.call("Email/queryChanges", with(self.arguments.clone(), since)).await;
        if answer["type"] == "cannotCalculateChanges" {
            return false;
        }
        self.apply(&answer);
        true
    }

    fn apply(&mut self, answer: &Value) -> (Vec<String>, Vec<String>) {
        assert_eq!(answer["oldQueryState"], self.state.as_str(), "{answer}");
        let removed = strings(&answer["removed"]);
        self.ids.retain(|id| !removed.contains(id));
        let mut added = Vec::new();
        let mut last = None;
        for item in answer["added"].as_array().unwrap() {
            let index = usize::try_from(item["index"].as_u64().unwrap()).unwrap();
            assert!(last.is_none_or(|last| last < index), "ascending: {answer}");
            last = Some(index);
            let id = item["id"].as_str().unwrap().to_owned();
            self.ids.insert(index.min(self.ids.len()), id.clone());
            added.push(id);
        }
        answer["newQueryState"].as_str().unwrap().clone_into(&mut self.state);
        assert_eq!(answer["total"], self.ids.len(), "{answer}");
        (removed, added)
    }

    /// Checks that the client has the result of a new query.
    pub(super) async fn check(&mut self, fixture: &Fixture, what: &str) {
        let before = self.ids.clone();
        let (removed, added) = self.update(fixture).await;
        let expected = fixture.ids(self.arguments.clone()).await;
        let arguments = &self.arguments;
        assert_eq!(self.ids, expected, "{what}: {arguments}: {before:?} - {removed:?} + {added:?}");
    }
}

#[tokio::test]
async fn x1_changes_applied_to_the_old_result_give_the_new_one() {
    let fixture = Fixture::new().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(fixture.add_plain("one", 10 * n).await);
    }
    let mut client = Client::new(&fixture, json!({"filter": {"inMailbox": fixture.inbox_id()}})).await;
    fixture.add_plain("newest", 100).await;
    fixture.add_plain("between", 25).await;
    fixture.destroy(ids[1]).await;
    fixture.set_mailboxes(ids[3], &[fixture.archive]).await;
    client.check(&fixture, "added, destroyed and moved").await;
    let (removed, added) = client.update(&fixture).await;
    assert!(removed.is_empty() && added.is_empty(), "nothing is new");
}

#[tokio::test]
async fn x1_more_than_max_changes_are_too_many() {
    let fixture = Fixture::new().await;
    let state = fixture.call("Email/query", json!({})).await["queryState"].clone();
    for n in 0..3 {
        fixture.add_plain("one", n).await;
    }
    let changes = |max: Value| json!({"sinceQueryState": state, "maxChanges": max});
    assert_eq!(fixture.error("Email/queryChanges", changes(json!(2))).await, "tooManyChanges");
    let enough = fixture.call("Email/queryChanges", changes(json!(3))).await;
    assert_eq!(enough["added"].as_array().unwrap().len(), 3);
    assert!(enough.get("total").is_none());
    assert_eq!(fixture.error("Email/queryChanges", changes(json!(0))).await, "invalidArguments");
    for unknown in ["x", "99999", "1-2"] {
        let arguments = json!({ "sinceQueryState": unknown });
        assert_eq!(
            fixture.error("Email/queryChanges", arguments).await,
            "cannotCalculateChanges",
            "{unknown}"
        );
    }
}

#[tokio::test]
async fn x2_what_may_have_moved_is_removed_and_added() {
    let fixture = Fixture::new().await;
    let [one, two] = [fixture.add_plain("one", 1).await, fixture.add_plain("two", 2).await];
    let sort = json!([{"property": "hasKeyword", "keyword": "$flagged"}, {"property": "receivedAt"}]);
    let mut by_keyword = Client::new(&fixture, json!({ "sort": sort })).await;
    let mut by_mailbox = Client::new(&fixture, json!({"filter": {"inMailbox": fixture.inbox_id()}})).await;
    fixture.set_keywords(one, &["$flagged"]).await;
    let (removed, added) = by_keyword.update(&fixture).await;
    assert_eq!((removed, added), (email_ids(&[one]), email_ids(&[one])));
    assert_eq!(by_keyword.ids, email_ids(&[two, one]));
    let (removed, added) = by_mailbox.update(&fixture).await;
    assert_eq!((removed, added), (email_ids(&[one]), email_ids(&[one])));
}

#[tokio::test]
async fn x2_what_cannot_move_is_left_out_and_up_to_id_shortens() {
    let fixture = Fixture::new().await;
    let mut ids = Vec::new();
    for n in 1..4 {
        ids.push(fixture.add_plain("one", 10 * n).await);
    }
    let immutable = json!({"filter": {"minSize": 1}});
    let mutable = json!({"filter": {"minSize": 1, "inMailbox": fixture.inbox_id()}});
    let mut client = Client::new(&fixture, immutable.clone()).await;
    let state = fixture.call("Email/query", immutable.clone()).await["queryState"].clone();
    fixture.set_keywords(ids[0], &["$flagged"]).await;
    let newest = fixture.add_plain("newest", 90).await;
    let oldest = fixture.add_plain("oldest", 5).await;
    let since = json!({"sinceQueryState": state, "upToId": email_id(ids[2])});
    let short = fixture.call("Email/queryChanges", with(immutable, since.clone())).await;
    assert_eq!(short["added"], json!([{"id": email_id(newest), "index": 0}]));
    assert_eq!(short["removed"], json!([]));
    let long = fixture.call("Email/queryChanges", with(mutable, since)).await;
    assert_eq!(long["added"].as_array().unwrap().len(), 3);
    let (removed, added) = client.update(&fixture).await;
    assert_eq!((removed, added), (Vec::new(), email_ids(&[newest, oldest])));
    fixture.destroy(ids[1]).await;
    client.check(&fixture, "destroyed").await;
}

/// Threads a (a1, a2) and b (b1, b2): the emails in the order of receivedAt.
async fn threads(fixture: &Fixture, keywords: &[&str]) -> [RecordId; 4] {
    let inbox = [fixture.inbox];
    let id = |id: &str| format!("Message-ID: <{id}@example.com>\r\n");
    let a1 = fixture.add(&message("A", &id("a1"), "x"), &inbox, keywords, 1).await;
    let b1 = fixture.add(&message("B", &id("b1"), "x"), &inbox, keywords, 2).await;
    let a2 = fixture.add(&message("Re: A", &reply_to("a1"), "x"), &inbox, keywords, 3).await;
    let b2 = fixture.add(&message("Re: B", &reply_to("b1"), "x"), &inbox, keywords, 4).await;
    [a1, b1, a2, b2]
}

fn collapsed(fixture: &Fixture) -> Value {
    json!({"filter": {"inMailbox": fixture.inbox_id()}, "collapseThreads": true})
}

#[tokio::test]
async fn x4_a_reply_replaces_what_represented_its_thread() {
    let fixture = Fixture::new().await;
    let [_, b1, a2, b2] = threads(&fixture, &[]).await;
    let mut client = Client::new(&fixture, collapsed(&fixture)).await;
    assert_eq!(client.ids, email_ids(&[b2, a2]));
    let a3 = fixture.add(&message("Re: A", &reply_to("a1"), "x"), &[fixture.inbox], &[], 9).await;
    client.check(&fixture, "a reply").await;
    assert_eq!(client.ids, email_ids(&[a3, b2]));
    fixture.destroy(b2).await;
    client.check(&fixture, "the representing email destroyed").await;
    assert_eq!(client.ids, email_ids(&[a3, b1]));
    fixture.destroy(b1).await;
    client.check(&fixture, "the whole thread destroyed").await;
    assert_eq!(client.ids, email_ids(&[a3]));
}

#[tokio::test]
async fn x4_moved_mail_leaves_and_comes_back() {
    let fixture = Fixture::new().await;
    let [a1, _, a2, b2] = threads(&fixture, &[]).await;
    let mut client = Client::new(&fixture, collapsed(&fixture)).await;
    fixture.set_mailboxes(a2, &[fixture.archive]).await;
    client.check(&fixture, "the representing email moved away").await;
    assert_eq!(client.ids, email_ids(&[b2, a1]));
    fixture.set_mailboxes(a1, &[fixture.archive]).await;
    client.check(&fixture, "the thread moved away").await;
    fixture.set_mailboxes(a2, &[fixture.inbox]).await;
    client.check(&fixture, "one came back").await;
    assert_eq!(client.ids, email_ids(&[b2, a2]));
}

#[tokio::test]
async fn x4_in_thread_conditions_follow_what_is_read() {
    let fixture = Fixture::new().await;
    let [a1, b1, a2, b2] = threads(&fixture, &[]).await;
    let mut clients = Vec::new();
    for collapse in [false, true] {
        for condition in ["allInThreadHaveKeyword", "someInThreadHaveKeyword", "noneInThreadHaveKeyword"] {
            let filter = with(member(condition, json!("$seen")), json!({"inMailbox": fixture.inbox_id()}));
            clients.push(Client::new(&fixture, json!({"filter": filter, "collapseThreads": collapse})).await);
        }
    }
    for (what, id, keywords) in [
        ("the first of a is read", a1, &["$seen"][..]),
        ("all of a is read", a2, &["$seen"]),
        ("the first of a is unread again", a1, &[]),
        ("one of b is read", b2, &["$seen", "$flagged"]),
        ("all of b is read", b1, &["$seen"]),
    ] {
        fixture.set_keywords(id, keywords).await;
        for client in &mut clients {
            client.check(&fixture, what).await;
        }
    }
    fixture.destroy(b1).await;
    for client in &mut clients {
        client.check(&fixture, "one of b is destroyed").await;
    }
}

#[tokio::test]
async fn x4_an_email_leaves_a_keyword_filter_when_it_is_unflagged() {
    let fixture = Fixture::new().await;
    let [a1, b1, a2, b2] = threads(&fixture, &["$flagged"]).await;
    let filter = json!({"hasKeyword": "$flagged"});
    let mut plain = Client::new(&fixture, json!({ "filter": filter })).await;
    let mut collapsed = Client::new(&fixture, json!({"filter": filter, "collapseThreads": true})).await;
    fixture.set_keywords(a2, &[]).await;
    plain.check(&fixture, "unflagged").await;
    collapsed.check(&fixture, "unflagged").await;
    assert_eq!(plain.ids, email_ids(&[b2, b1, a1]));
    assert_eq!(collapsed.ids, email_ids(&[b2, a1]));
    fixture.set_keywords(a2, &["$flagged"]).await;
    plain.check(&fixture, "flagged again").await;
    collapsed.check(&fixture, "flagged again").await;
}
