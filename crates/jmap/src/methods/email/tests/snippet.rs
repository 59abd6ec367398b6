use serde_json::{Value, json};

use super::{Fixture, email_id, message};

#[tokio::test]
async fn searchsnippet_shows_where_emails_match() {
    let fixture = Fixture::new().await;
    let one = fixture.add(&message("A <needle> & hay", "", "no match"), &[fixture.inbox], &[], 1).await;
    let two = fixture.add(&message("Hay", "", "a needle in it"), &[fixture.inbox], &[], 2).await;
    let filter =
        json!({"operator": "AND", "conditions": [{"text": "needle"}, {"inMailbox": fixture.inbox_id()}]});
    let ids = json!([email_id(one), email_id(two), "e999", "nobody"]);
    let answer = fixture.call("SearchSnippet/get", json!({"filter": filter, "emailIds": ids})).await;
    let expected = json!([
        {"emailId": email_id(one), "subject": "A &lt;<mark>needle</mark>&gt; &amp; hay", "preview": null},
        {"emailId": email_id(two), "subject": null, "preview": "a <mark>needle</mark> in it"},
    ]);
    let mut list = answer["list"].clone();
    for snippet in list.as_array_mut().unwrap() {
        if let Some(text) = snippet["preview"].as_str() {
            snippet["preview"] = text.trim_end().into();
        }
    }
    assert_eq!(list, expected);
    assert_eq!(answer["notFound"], json!(["e999", "nobody"]));
    let none = fixture.call("SearchSnippet/get", json!({"filter": null, "emailIds": [email_id(one)]})).await;
    assert_eq!(none["list"], json!([{"emailId": email_id(one), "subject": null, "preview": null}]));
    assert_eq!(none["notFound"], Value::Null);
}

#[tokio::test]
async fn searchsnippet_checks_its_arguments() {
    let fixture = Fixture::new().await;
    for (arguments, error) in [
        (json!({"filter": {"text": "a"}}), "invalidArguments"),
        (json!({"filter": {"text": 1}, "emailIds": []}), "invalidArguments"),
        (json!({"filter": {"colour": 1}, "emailIds": []}), "unsupportedFilter"),
        (json!({"emailIds": [], "ids": []}), "invalidArguments"),
    ] {
        assert_eq!(fixture.error("SearchSnippet/get", arguments.clone()).await, error, "{arguments}");
    }
}
