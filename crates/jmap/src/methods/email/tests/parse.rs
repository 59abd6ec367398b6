use restante_mail::message::HEADER_BYTES_MAX;
use serde_json::{Value, json};

use super::{Fixture, message};

const NESTED: &str = "From: a@b\r\nSubject: outer\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n\
    --b\r\nContent-Type: text/plain\r\n\r\nsee below\r\n\
    --b\r\nContent-Type: message/rfc822\r\n\r\nFrom: c@d\r\nSubject: inner\r\nContent-Type: multipart/mixed; boundary=i\r\n\r\n\
    --i\r\nContent-Type: text/plain\r\n\r\nfirst\r\n--i\r\nContent-Type: text/plain\r\nContent-Disposition: attachment\r\n\r\nsecond\r\n--i--\r\n\r\n--b--\r\n";

async fn parse(fixture: &Fixture, arguments: Value) -> Value {
    let answer = fixture.call("Email/parse", arguments).await;
    assert!(answer.get("parsed").is_some(), "{answer}");
    answer
}

#[tokio::test]
async fn parse_gives_the_properties_of_an_uploaded_message_without_metadata() {
    let fixture = Fixture::new().await;
    let raw = message("Hello", "", "text");
    let blob = fixture.server.upload(raw.clone()).await;
    let answer = parse(&fixture, json!({"blobIds": [blob, blob], "fetchTextBodyValues": true})).await;
    let email = &answer["parsed"][&blob];
    let mut names: Vec<&str> = email.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    let expected = "attachments bcc bodyValues cc from hasAttachment htmlBody inReplyTo messageId preview references replyTo \
                    sender sentAt subject textBody to";
    assert_eq!(names.join(" "), expected);
    assert_eq!((&email["subject"], &email["bodyValues"]["1"]["value"]), (&json!("Hello"), &json!("text\n")));
    assert_eq!(email["textBody"][0]["blobId"], format!("{blob}-1"));
    assert_eq!((&answer["notParsable"], &answer["notFound"]), (&Value::Null, &Value::Null));
    let properties =
        json!(["id", "mailboxIds", "keywords", "receivedAt", "threadId", "blobId", "size", "header:To"]);
    let answer = parse(&fixture, json!({"blobIds": [blob], "properties": properties})).await;
    let expected = json!({"id": null, "mailboxIds": null, "keywords": null, "receivedAt": null, "threadId": null,
        "blobId": blob, "size": raw.len(), "header:To": " Bob <bob@example.org>"});
    assert_eq!(answer["parsed"][&blob], expected);
}

#[tokio::test]
async fn parse_reads_messages_within_messages() {
    let fixture = Fixture::new().await;
    let id = fixture.add(NESTED, &[fixture.inbox], &[], 1).await;
    let attachments = fixture.email(id, &["attachments"]).await["attachments"].clone();
    let blob = attachments[0]["blobId"].as_str().unwrap();
    assert_eq!(attachments[0]["type"], "message/rfc822");
    let answer = parse(&fixture, json!({"blobIds": [blob], "properties": ["subject", "attachments"]})).await;
    let inner = &answer["parsed"][blob];
    assert_eq!(inner["subject"], "inner");
    let part = inner["attachments"][0]["blobId"].as_str().unwrap();
    assert_eq!(part, format!("{blob}-{}", inner["attachments"][0]["partId"].as_str().unwrap()));
    assert_eq!(fixture.server.download(part).await.unwrap(), "second");
}

#[tokio::test]
async fn parse_names_what_is_no_message_and_what_is_not_there() {
    let fixture = Fixture::new().await;
    let picture = fixture.server.upload(vec![0x89, b'P', b'N', b'G', 0, 1, 2]).await;
    let answer = parse(&fixture, json!({"blobIds": [picture, "bu999", "be1-1", "nothing"]})).await;
    assert_eq!(answer["parsed"], Value::Null);
    assert_eq!(answer["notParsable"], json!([picture]));
    assert_eq!(answer["notFound"], json!(["bu999", "be1-1", "nothing"]));
    for wrong in [
        json!({}),
        json!({"blobIds": null}),
        json!({"blobIds": ["a b"]}),
        json!({"blobIds": [], "properties": ["no"]}),
    ] {
        assert_eq!(fixture.error("Email/parse", wrong.clone()).await, "invalidArguments", "{wrong}");
    }
}

#[tokio::test]
async fn parse_reads_as_much_of_a_long_header_as_get_does() {
    let fixture = Fixture::new().await;
    let more = format!("X-Long: {}\r\nX-Last: a\r\nSubject: last\r\n", "y".repeat(HEADER_BYTES_MAX));
    let raw = message("first", &more, "text");
    let properties = ["subject", "header:Subject:asText", "header:X-Last", "headers"];
    let blob = fixture.server.upload(raw.clone()).await;
    let answer = parse(&fixture, json!({"blobIds": [blob], "properties": properties})).await;
    let parsed = answer["parsed"][&blob].clone();
    assert_eq!((&parsed["subject"], &parsed["header:Subject:asText"]), (&json!("first"), &json!("first")));
    assert_eq!(parsed["header:X-Last"], Value::Null);
    let id = fixture.add(&raw, &[fixture.inbox], &[], 1).await;
    let mut email = fixture.email(id, &properties).await;
    email.as_object_mut().unwrap().remove("id");
    assert_eq!(parsed, email);
}
