use serde_json::{Value, json};

use super::{Fixture, email_id, message, reply_to, strings};
use crate::JmapConfig;

const ALTERNATIVE: &str = "From: =?utf-8?q?J=C3=B6rg?= <joerg@example.com>\r\nTo: a@example.org\r\nTo: b@example.org\r\n\
    Subject: Two =?utf-8?q?v=C3=A9rsions?=\r\nDate: Thu, 30 Oct 2014 06:12:00 +0100\r\nMessage-ID: <one@example.com>\r\n\
    MIME-Version: 1.0\r\nX-Note:  padded\r\nContent-Type: multipart/mixed; boundary=m\r\n\r\n\
    --m\r\nContent-Type: multipart/alternative; boundary=a\r\n\r\n\
    --a\r\nContent-Type: text/plain; charset=utf-8\r\nX-Part: first\r\n\r\nHello w\u{f6}rld\r\nbye\r\n\
    --a\r\nContent-Type: text/html; charset=x-unknown\r\n\r\n<p>Hello</p>\r\n--a--\r\n\
    --m\r\nContent-Type: image/png; name=dot.png\r\nContent-Disposition: attachment\r\nContent-ID: <dot@x>\r\n\
    Content-Transfer-Encoding: base64\r\n\r\nAAEC\r\n--m--\r\n";

async fn get(fixture: &Fixture, arguments: Value) -> Value {
    fixture.call("Email/get", arguments).await
}

#[tokio::test]
async fn g1_a_get_has_list_not_found_and_state() {
    let fixture = Fixture::new().await;
    let [one, two] = [fixture.add_plain("one", 1).await, fixture.add_plain("two", 2).await];
    let ids = json!([email_id(two), "e999", email_id(one), "nothing", email_id(two)]);
    let answer = get(&fixture, json!({"ids": ids, "properties": ["subject"]})).await;
    let expected = json!([
        {"id": email_id(two), "subject": "two"},
        {"id": email_id(one), "subject": "one"},
    ]);
    assert_eq!(answer["list"], expected);
    assert_eq!(strings(&answer["notFound"]), ["nothing", "e999"]);
    assert!(answer["state"].is_string());
    let none = get(&fixture, json!({"ids": []})).await;
    assert_eq!((&none["list"], &none["notFound"]), (&json!([]), &json!([])));
    let all = get(&fixture, json!({"ids": null, "properties": ["id"]})).await;
    assert_eq!(all["list"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn g1_too_many_objects_are_too_large_also_by_null() {
    let config = JmapConfig { objects_in_get_max: restante_core::nonzero!(2), ..JmapConfig::default() };
    let fixture = Fixture::with(config, None).await;
    for n in 0..3 {
        fixture.add_plain("one", n).await;
    }
    assert_eq!(fixture.error("Email/get", json!({"ids": ["e1", "e2", "e3"]})).await, "requestTooLarge");
    assert_eq!(fixture.error("Email/get", json!({"ids": null})).await, "requestTooLarge");
    assert!(get(&fixture, json!({"ids": ["e1", "e2", "e2"]})).await["list"].is_array());
}

#[tokio::test]
async fn g2_exactly_the_properties_that_are_asked_for_and_the_id() {
    let fixture = Fixture::new().await;
    let id = fixture.add_plain("one", 1).await;
    let email = fixture.email(id, &["bcc", "header:X-None"]).await;
    assert_eq!(email, json!({"id": email_id(id), "bcc": null, "header:X-None": null}));
    let email = fixture.email(id, &[]).await;
    assert_eq!(email, json!({"id": email_id(id)}));
    for wrong in [json!(["nope"]), json!("subject"), json!([1]), json!(["header:Subject:asDate"])] {
        let arguments = json!({"ids": [], "properties": wrong});
        assert_eq!(fixture.error("Email/get", arguments).await, "invalidArguments", "{wrong}");
    }
    let arguments = json!({"ids": [], "bodyProperties": ["textBody"]});
    assert_eq!(fixture.error("Email/get", arguments).await, "invalidArguments");
    assert_eq!(fixture.error("Email/get", json!({"ids": [], "more": 1})).await, "invalidArguments");
}

#[tokio::test]
async fn e1_keywords_are_lowercase_and_true_only() {
    let fixture = Fixture::new().await;
    let raw = message("one", "", "text");
    let id =
        fixture.add(&raw, &[fixture.inbox, fixture.archive], &["$Seen", "Custom/Word", "$flagged"], 1).await;
    let email = fixture.email(id, &["keywords", "mailboxIds"]).await;
    assert_eq!(email["keywords"], json!({"$seen": true, "$flagged": true, "custom/word": true}));
    assert_eq!(email["mailboxIds"].as_object().unwrap().len(), 2);
    assert_eq!(email["mailboxIds"][fixture.inbox_id()], true);
    fixture.set_keywords(id, &[]).await;
    assert_eq!(fixture.email(id, &["keywords"]).await["keywords"], json!({}));
}

#[tokio::test]
async fn e2_header_properties_give_the_last_instance_or_all() {
    let fixture = Fixture::new().await;
    let id = fixture.add(ALTERNATIVE, &[fixture.inbox], &[], 1).await;
    let properties =
        ["header:to", "header:TO:all", "header:To:asAddresses:all", "header:cc:all", "header:Cc"];
    let email = fixture.email(id, &properties).await;
    assert_eq!(email["header:to"], " b@example.org");
    assert_eq!(email["header:TO:all"], json!([" a@example.org", " b@example.org"]));
    let addresses =
        json!([[{"name": null, "email": "a@example.org"}], [{"name": null, "email": "b@example.org"}]]);
    assert_eq!(email["header:To:asAddresses:all"], addresses);
    assert_eq!((&email["header:cc:all"], &email["header:Cc"]), (&json!([]), &Value::Null));
}

#[tokio::test]
async fn e2_headers_are_all_fields_in_order_raw() {
    let fixture = Fixture::new().await;
    let id = fixture.add(ALTERNATIVE, &[fixture.inbox], &[], 1).await;
    let email = fixture.email(id, &["headers"]).await;
    let headers = email["headers"].as_array().unwrap();
    let names: Vec<&str> = headers.iter().map(|field| field["name"].as_str().unwrap()).collect();
    let expected = "From To To Subject Date Message-ID MIME-Version X-Note Content-Type";
    assert_eq!(names.join(" "), expected);
    assert_eq!(headers[7]["value"], "  padded");
    assert_eq!(headers[0]["value"], " =?utf-8?q?J=C3=B6rg?= <joerg@example.com>");
}

#[tokio::test]
async fn e3_forms_are_given_for_their_fields_only() {
    let fixture = Fixture::new().await;
    let id = fixture.add(ALTERNATIVE, &[fixture.inbox], &[], 1).await;
    let properties = [
        "header:Subject:asText",
        "header:From:asGroupedAddresses",
        "header:Message-ID:asMessageIds",
        "header:Date:asDate",
        "header:X-Note:asURLs",
        "header:X-Note:asText",
    ];
    let email = fixture.email(id, &properties).await;
    assert_eq!(email["header:Subject:asText"], "Two v\u{e9}rsions");
    let group = json!([{"name": null, "addresses": [{"name": "J\u{f6}rg", "email": "joerg@example.com"}]}]);
    assert_eq!(email["header:From:asGroupedAddresses"], group);
    assert_eq!(email["header:Message-ID:asMessageIds"], json!(["one@example.com"]));
    assert_eq!(email["header:Date:asDate"], "2014-10-30T06:12:00+01:00");
    assert_eq!(
        (&email["header:X-Note:asURLs"], &email["header:X-Note:asText"]),
        (&Value::Null, &json!("padded"))
    );
    for wrong in
        ["header:From:asDate", "header:Subject:asAddresses", "header:X-A:asNothing", "header:A:all:asText"]
    {
        let arguments = json!({"ids": [email_id(id)], "properties": [wrong]});
        assert_eq!(fixture.error("Email/get", arguments).await, "invalidArguments", "{wrong}");
    }
}

#[tokio::test]
async fn e5_shorthands_equal_their_header_properties() {
    let fixture = Fixture::new().await;
    let raw = message(
        "Re: Hello",
        &(reply_to("two") + "Message-ID: <one@example.com>\r\nReferences: <three@x> <two@x>\r\n"),
        "t",
    );
    let id = fixture.add(&raw, &[fixture.inbox], &[], 1).await;
    let pairs = [
        ("messageId", "header:Message-ID:asMessageIds"),
        ("inReplyTo", "header:In-Reply-To:asMessageIds"),
        ("references", "header:References:asMessageIds"),
        ("sender", "header:Sender:asAddresses"),
        ("from", "header:From:asAddresses"),
        ("to", "header:To:asAddresses"),
        ("cc", "header:Cc:asAddresses"),
        ("bcc", "header:Bcc:asAddresses"),
        ("replyTo", "header:Reply-To:asAddresses"),
        ("subject", "header:Subject:asText"),
        ("sentAt", "header:Date:asDate"),
    ];
    let names: Vec<&str> = pairs.iter().flat_map(|(short, long)| [*short, *long]).collect();
    let email = fixture.email(id, &names).await;
    for (short, long) in pairs {
        assert_eq!(email[short], email[long], "{short}");
    }
    assert_eq!(email["subject"], "Re: Hello");
}

#[tokio::test]
async fn e6_parts_have_ids_unless_they_are_multiparts() {
    let fixture = Fixture::new().await;
    let id = fixture.add(ALTERNATIVE, &[fixture.inbox], &[], 1).await;
    let answer = get(&fixture, json!({"ids": [email_id(id)], "properties": ["bodyStructure", "attachments"],
        "bodyProperties": ["partId", "blobId", "type", "name", "charset", "cid", "disposition", "size", "header:X-Part"]}))
    .await;
    let root = &answer["list"][0]["bodyStructure"];
    assert_eq!(
        (&root["partId"], &root["blobId"], &root["type"]),
        (&Value::Null, &Value::Null, &json!("multipart/mixed"))
    );
    let [alternative, image] = [&root["subParts"][0], &root["subParts"][1]];
    assert_eq!(alternative["type"], "multipart/alternative");
    let text = &alternative["subParts"][0];
    assert_eq!((&text["type"], &text["charset"]), (&json!("text/plain"), &json!("utf-8")));
    assert_eq!(text["header:X-Part"], " first");
    assert!(text.get("subParts").is_none(), "a leaf shows it only when it is asked for");
    assert_eq!(image["size"], 3);
    assert_eq!(
        (&image["name"], &image["cid"], &image["disposition"]),
        (&json!("dot.png"), &json!("dot@x"), &json!("attachment"))
    );
    assert_eq!(image["blobId"], format!("be{}-{}", id.0, image["partId"].as_str().unwrap()));
    assert_eq!(answer["list"][0]["attachments"], json!([image]));
}

#[tokio::test]
async fn e7_body_lists_name_the_parts_that_are_shown() {
    let fixture = Fixture::new().await;
    let id = fixture.add(ALTERNATIVE, &[fixture.inbox], &[], 1).await;
    let answer = get(
        &fixture,
        json!({"ids": [email_id(id)], "bodyProperties": ["type"],
        "properties": ["textBody", "htmlBody", "attachments"]}),
    )
    .await;
    let email = &answer["list"][0];
    assert_eq!(email["textBody"], json!([{"type": "text/plain"}]));
    assert_eq!(email["htmlBody"], json!([{"type": "text/html"}]));
    assert_eq!(email["attachments"], json!([{"type": "image/png"}]));
}

#[tokio::test]
async fn e8_body_values_come_by_fetch_flags_only() {
    let fixture = Fixture::new().await;
    let id = fixture.add(ALTERNATIVE, &[fixture.inbox], &[], 1).await;
    let values = async |flags: Value| {
        let arguments = super::with(
            json!({"ids": [email_id(id)], "properties": ["bodyValues", "textBody", "htmlBody"]}),
            flags,
        );
        get(&fixture, arguments).await["list"][0].clone()
    };
    let none = values(json!({})).await;
    assert_eq!(none["bodyValues"], json!({}));
    let text = values(json!({"fetchTextBodyValues": true})).await;
    let part = none["textBody"][0]["partId"].as_str().unwrap();
    let expected =
        json!({part: {"value": "Hello w\u{f6}rld\nbye", "isEncodingProblem": false, "isTruncated": false}});
    assert_eq!(text["bodyValues"], expected);
    let html = values(json!({"fetchHTMLBodyValues": true})).await;
    let part = none["htmlBody"][0]["partId"].as_str().unwrap();
    assert_eq!(html["bodyValues"][part]["isEncodingProblem"], true, "{html}");
    let all = values(json!({"fetchAllBodyValues": true})).await;
    assert_eq!(all["bodyValues"].as_object().unwrap().len(), 2, "an image has no body value");
    let cut = values(json!({"fetchTextBodyValues": true, "maxBodyValueBytes": 8})).await;
    let part = none["textBody"][0]["partId"].as_str().unwrap();
    assert_eq!(
        cut["bodyValues"][part],
        json!({"value": "Hello w", "isEncodingProblem": false, "isTruncated": true})
    );
}

#[tokio::test]
async fn e9_has_attachment_and_preview_are_in_the_row() {
    let fixture = Fixture::new().await;
    let [plain, mixed] = [
        fixture.add(&message("one", "", "some \r\n  text"), &[fixture.inbox], &[], 1).await,
        fixture.add(ALTERNATIVE, &[fixture.inbox], &[], 1).await,
    ];
    let email = fixture.email(plain, &["hasAttachment", "preview"]).await;
    assert_eq!((&email["hasAttachment"], &email["preview"]), (&json!(false), &json!("some text")));
    assert_eq!(fixture.email(mixed, &["hasAttachment"]).await["hasAttachment"], true);
}

#[tokio::test]
async fn e10_without_properties_the_defaults_are_returned() {
    let fixture = Fixture::new().await;
    let raw = message("one", "", "text");
    let id = fixture.add(&raw, &[fixture.inbox], &["$seen"], 1_414_649_520).await;
    let answer = get(&fixture, json!({"ids": [email_id(id)]})).await;
    let email = answer["list"][0].as_object().unwrap();
    let mut names: Vec<&str> = email.keys().map(String::as_str).collect();
    names.sort_unstable();
    let mut expected: Vec<&str> =
        "id blobId threadId mailboxIds keywords size receivedAt messageId inReplyTo references sender \
        from to cc bcc replyTo subject sentAt hasAttachment preview bodyValues textBody htmlBody attachments"
            .split_whitespace()
            .collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(email["blobId"], format!("be{}", id.0));
    assert_eq!((&email["size"], &email["receivedAt"]), (&json!(raw.len()), &json!("2014-10-30T06:12:00Z")));
    let mut part: Vec<&str> = email["textBody"][0].as_object().unwrap().keys().map(String::as_str).collect();
    part.sort_unstable();
    assert_eq!(part.join(" "), "blobId charset cid disposition language location name partId size type");
}

#[tokio::test]
async fn e6_what_does_not_fit_into_the_row_is_read_from_the_message() {
    let fixture = Fixture::new().await;
    let long: String = (0..4_000).map(|n| format!("recipient-{n}@example.org,\r\n ")).collect();
    let raw = message("one", &format!("Cc: {long}last@example.org\r\n"), "text");
    let id = fixture.add(&raw, &[fixture.inbox], &[], 1).await;
    let email = fixture.email(id, &["cc", "subject", "header:Cc:asAddresses"]).await;
    assert_eq!(email["cc"].as_array().unwrap().len(), 4_001);
    assert_eq!(email["cc"], email["header:Cc:asAddresses"]);
    assert_eq!(email["subject"], "one");
}

#[tokio::test]
async fn g2_a_listing_reads_no_blob() {
    let fixture = Fixture::new().await;
    let id = fixture.add(ALTERNATIVE, &[fixture.inbox], &[], 1).await;
    // Without its blob an email can still be listed.
    let upkeep = &fixture.server.blobs.upkeep;
    let blobs: Vec<_> = upkeep.list(None, 10).await.unwrap().iter().map(|listed| listed.id).collect();
    assert_eq!(upkeep.remove(&blobs, restante_core::Timestamp(i64::MAX)).await.unwrap(), 1);
    let properties = [
        "threadId",
        "mailboxIds",
        "keywords",
        "hasAttachment",
        "from",
        "to",
        "subject",
        "receivedAt",
        "size",
        "preview",
        "textBody",
        "bodyStructure",
    ];
    let email = fixture.email(id, &properties).await;
    assert_eq!(email["subject"], "Two v\u{e9}rsions");
    let answer = get(&fixture, json!({"ids": [email_id(id)], "properties": ["headers"]})).await;
    assert_eq!(answer["type"], "serverFail");
}

#[tokio::test]
async fn e4_forms_keep_folds_decode_where_it_is_legal_and_are_null_for_what_they_cannot_read() {
    let fixture = Fixture::new().await;
    let more = "X-Folded: one\r\n  two\r\nX-Word: =?utf-8?q?e=CC=81?= \"=?utf-8?q?no?=\"\r\nResent-Date: yesterday\r\n\
                Cc: Group: a@x, b@y; , c@z (Carol)\r\n";
    let id = fixture.add(&message("one", more, "text"), &[fixture.inbox], &[], 1).await;
    let properties = [
        "header:X-Folded",
        "header:X-Folded:asText",
        "header:X-Word:asText",
        "header:Resent-Date:asDate",
        "header:Cc:asAddresses",
    ];
    let email = fixture.email(id, &properties).await;
    assert_eq!(email["header:X-Folded"], " one\r\n  two");
    assert_eq!(email["header:X-Folded:asText"], "one  two");
    assert!(
        email["header:X-Word:asText"].as_str().unwrap().starts_with('\u{e9}'),
        "decoded, in NFC: {email}"
    );
    assert_eq!(email["header:Resent-Date:asDate"], Value::Null);
    let expected = json!([
        {"name": null, "email": "a@x"},
        {"name": null, "email": "b@y"},
        {"name": "Carol", "email": "c@z"},
    ]);
    assert_eq!(email["header:Cc:asAddresses"], expected);
}
