use restante_directory::{Access, Operation};
use restante_mail::{
    RecipientState,
    queue::{NewMessage, Notify, Return, Transmission},
    sending::{SendingLimits, SendingMetrics, SendingRates},
};
use restante_records::RecordId;
use serde_json::{Value, json};

use crate::{
    JmapConfig, SubmissionConfig,
    testing::{TestServer, USING},
};

const MESSAGE: &str = "From: Alice <alice@example.org>\nTo: bob@example.org, Carol <carol@example.net>\n\
    Cc: bob@example.org\nBcc: dave@example.com\nSubject: Hello\n\nText\n";

struct Scene {
    server: TestServer,
    /// The identity of alice.
    identity: String,
}

impl Scene {
    async fn new() -> Self {
        Self::of(TestServer::new().await).await
    }

    async fn with(submission: SubmissionConfig) -> Self {
        Self::of(TestServer::with(JmapConfig { submission, ..JmapConfig::default() }).await).await
    }

    async fn of(server: TestServer) -> Self {
        let get = server.call("Identity/get", json!({"accountId": server.alice.id})).await;
        let identity = get["list"][0]["id"].as_str().unwrap().to_owned();
        Self { server, identity }
    }

    async fn email(&self, raw: &str) -> String {
        format!("e{}", self.server.deliver(raw).await.0)
    }

    async fn call(&self, name: &str, mut arguments: Value) -> Value {
        arguments["accountId"] = json!(self.server.alice.id);
        self.server.call(name, arguments).await
    }

    /// Creates a submission; returns the created object, or the error.
    async fn create(&self, submission: Value) -> Value {
        let answer = self.call("EmailSubmission/set", json!({"create": {"k": submission}})).await;
        match &answer["created"] {
            Value::Null => answer["notCreated"]["k"].clone(),
            created => created["k"].clone(),
        }
    }

    async fn submit(&self, email: &str) -> String {
        let created = self.create(json!({"identityId": self.identity, "emailId": email})).await;
        created["id"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned()
    }

    /// Submits an email with an envelope.
    async fn send(&self, email: &str, mail_from: Value, rcpt_to: Value) -> Value {
        let envelope = json!({"mailFrom": mail_from, "rcptTo": rcpt_to});
        self.create(json!({"identityId": self.identity, "emailId": email, "envelope": envelope})).await
    }

    async fn held(&self, seconds: u64) -> String {
        let email = self.email(MESSAGE).await;
        let from = json!({"email": "alice@example.org", "parameters": {"HOLDFOR": seconds.to_string()}});
        let created = self.send(&email, from, json!([{"email": "bob@example.org"}])).await;
        created["id"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned()
    }

    async fn get(&self, id: &str) -> Value {
        self.call("EmailSubmission/get", json!({"ids": [id]})).await["list"][0].clone()
    }

    async fn outbox(&self) -> Vec<NewMessage> {
        let entries = self.server.mail.outbox(self.server.alice.account, 100).await.unwrap();
        entries.into_iter().map(|entry| entry.message).collect()
    }
}

fn record(id: &str) -> RecordId {
    RecordId(id[1..].parse().unwrap())
}

fn recipients(message: &NewMessage) -> Vec<&str> {
    message.recipients.iter().map(|recipient| recipient.address.as_str()).collect()
}

#[tokio::test]
async fn su1_without_an_envelope_it_is_made_of_the_header() {
    let scene = Scene::new().await;
    let email = scene.email(MESSAGE).await;
    let created = scene.create(json!({"identityId": scene.identity, "emailId": email})).await;
    let address = |email: &str| json!({"email": email, "parameters": null});
    let envelope = json!({
        "mailFrom": address("alice@example.org"),
        "rcptTo": [address("bob@example.org"), address("carol@example.net"), address("dave@example.com")],
    });
    assert_eq!(created["envelope"], envelope);
    assert_eq!(
        (&created["undoStatus"], &created["sendAt"]),
        (&json!("final"), &json!("2027-01-15T08:00:00Z"))
    );
    let thread = scene.call("Email/get", json!({"ids": [email], "properties": ["threadId"]})).await;
    assert_eq!(created["threadId"], thread["list"][0]["threadId"]);
    let got = scene.get(created["id"].as_str().unwrap()).await;
    let status = |_| json!({"smtpReply": "250 2.1.5 Queued", "delivered": "queued", "displayed": "unknown"});
    let expected = json!({
        "id": created["id"], "identityId": scene.identity, "emailId": email, "threadId": created["threadId"],
        "envelope": envelope, "sendAt": created["sendAt"], "undoStatus": "final", "dsnBlobIds": [], "mdnBlobIds": [],
        "deliveryStatus": {
            "bob@example.org": status(0), "carol@example.net": status(1), "dave@example.com": status(2),
        },
    });
    assert_eq!(got, expected);
    let outbox = scene.outbox().await;
    assert_eq!(outbox.len(), 1);
    assert_eq!(recipients(&outbox[0]), ["bob@example.org", "carol@example.net", "dave@example.com"]);
    assert_eq!((outbox[0].sender.as_str(), outbox[0].due), ("alice@example.org", 1_800_000_000));
}

#[tokio::test]
async fn su1_the_return_path_is_the_identity_s_when_that_of_the_message_is_not_allowed() {
    let scene = Scene::new().await;
    for (header, path) in [
        ("From: alice+x@example.org\n", "alice+x@example.org"),
        ("From: alice@example.org\nSender: alice+y@example.org\n", "alice+y@example.org"),
        ("From: alice@example.org\nSender: bob@example.org\n", "alice@example.org"),
    ] {
        let email = scene.email(&format!("{header}To: bob@example.org\n\n")).await;
        let created = scene.create(json!({"identityId": scene.identity, "emailId": email})).await;
        assert_eq!(created["envelope"]["mailFrom"]["email"], path, "{header}: {created}");
    }
}

#[tokio::test]
async fn su1_parameters_of_the_envelope_reach_the_queue() {
    let scene = Scene::new().await;
    let email = scene.email("From: alice@example.org\nSubject: =?x?=\n\n\u{fc}\n").await;
    let from =
        json!({"email": "alice@example.org", "parameters": {"RET": "HDRS", "ENVID": "a b", "SIZE": "7"}});
    let to = json!([
        {"email": "Bob@Example.NET", "parameters": {"NOTIFY": "NEVER", "ORCPT": "rfc822;bob@example.net"}},
        {"email": "bob@example.net"}, {"email": "Bob@example.net"},
    ]);
    let created = scene.send(&email, from, to).await;
    assert_eq!(created.get("envelope"), None, "it was given");
    let outbox = scene.outbox().await;
    let message = &outbox[0];
    assert_eq!((message.returned, message.envelope_id.as_deref()), (Some(Return::Headers), Some("a+20b")));
    assert_eq!(message.transmission, Transmission { is_8bit: true, is_utf8: false });
    assert_eq!(recipients(message), ["Bob@example.net", "bob@example.net"], "each once");
    let never = Notify { on_success: false, on_failure: false, on_delay: false };
    assert_eq!(message.recipients[0].notify, never);
    assert_eq!(message.recipients[0].original.as_deref(), Some("rfc822;bob@example.net"));
    assert_eq!(message.recipients[1].notify, Notify::default());
    for (from, to) in [
        (json!({"AUTH": "<>"}), json!({})),
        (json!({"RET": "ALL"}), json!({})),
        (json!({}), json!({"NOTIFY": "NEVER,DELAY"})),
        (json!({}), json!({"X": null})),
        (json!({"SIZE": 1}), json!({})),
    ] {
        let from = json!({"email": "alice@example.org", "parameters": from});
        let error = scene.send(&email, from, json!([{"email": "b@example.net", "parameters": to}])).await;
        assert_eq!(
            (&error["type"], &error["properties"]),
            (&json!("invalidProperties"), &json!(["envelope"]))
        );
    }
}

#[tokio::test]
async fn su2_an_email_an_identity_and_properties_that_are_wrong_are_named() {
    let scene = Scene::new().await;
    let (email, identity) = (scene.email(MESSAGE).await, &scene.identity);
    for (submission, bad) in [
        (json!({"identityId": "i999", "emailId": "e999"}), json!(["identityId", "emailId"])),
        (json!({"identityId": identity, "emailId": "e999"}), json!(["emailId"])),
        (json!({"identityId": "i999", "emailId": email}), json!(["identityId"])),
        (json!({}), json!(["identityId", "emailId"])),
        (json!({"identityId": identity, "emailId": "#unknown"}), json!(["emailId"])),
        (json!({"identityId": identity, "emailId": email, "envelope": {}}), json!(["envelope"])),
        (json!({"identityId": identity, "emailId": email, "undoStatus": "pending"}), json!(["undoStatus"])),
        (json!({"identityId": identity, "emailId": email, "x": 1}), json!(["x"])),
    ] {
        let error = scene.create(submission.clone()).await;
        assert_eq!(error["properties"], bad, "{submission}: {error}");
        assert_eq!(error["type"], "invalidProperties");
    }
    assert!(scene.outbox().await.is_empty());
}

#[tokio::test]
async fn su2_senders_that_are_not_the_user_s_are_forbidden() {
    let scene = Scene::new().await;
    let targets = vec!["alice@example.org".parse().unwrap(), "bob@example.org".parse().unwrap()];
    let team = "team@example.org".parse().unwrap();
    scene.server.operate(Operation::AddAlias { address: team, targets }).await;
    for from in ["bob@example.org", "team@example.org", "alice@example.net"] {
        let email = scene.email(&format!("From: {from}\nTo: bob@example.org\n\n")).await;
        let error = scene.create(json!({"identityId": scene.identity, "emailId": email})).await;
        assert_eq!(error["type"], "forbiddenFrom", "{from}: {error}");
        let email = scene.email(MESSAGE).await;
        let error = scene.send(&email, json!({ "email": from }), json!([{"email": "b@example.net"}])).await;
        assert_eq!(error["type"], "forbiddenMailFrom", "{from}: {error}");
    }
    let email = scene.email(MESSAGE).await;
    let error = scene.send(&email, json!({"email": ""}), json!([{"email": "b@example.net"}])).await;
    assert_eq!(error["type"], "forbiddenMailFrom");
    let email = scene
        .email("From: alice@example.org, bob@example.org\nSender: alice@example.org\nTo: c@example.net\n\n");
    let error = scene.create(json!({"identityId": scene.identity, "emailId": email.await})).await;
    assert_eq!(error["type"], "forbiddenFrom");
    assert!(scene.outbox().await.is_empty());
}

#[tokio::test]
async fn su2_a_message_without_one_sender_is_an_invalid_email() {
    let scene = Scene::new().await;
    for (header, bad) in [
        ("To: bob@example.org\n", json!(["from"])),
        ("From: nobody\nTo: bob@example.org\n", json!(["from"])),
        ("From: alice@example.org\nFrom: alice@example.org\nTo: bob@example.org\n", json!(["from"])),
        ("From: alice@example.org, alice+x@example.org\nTo: bob@example.org\n", json!(["sender"])),
        ("From: alice@example.org\nSender: a@example.org, b@example.org\n", json!(["sender"])),
    ] {
        let email = scene.email(&format!("{header}Subject: x\n\n")).await;
        let error = scene.create(json!({"identityId": scene.identity, "emailId": email})).await;
        assert_eq!((&error["type"], &error["properties"]), (&json!("invalidEmail"), &bad), "{header}");
    }
}

#[tokio::test]
async fn su2_recipients_are_counted_and_must_be_addresses() {
    let recipients_max = 2.try_into().unwrap();
    let message_bytes_max = 1_000.try_into().unwrap();
    let scene =
        Scene::with(SubmissionConfig { recipients_max, message_bytes_max, ..SubmissionConfig::default() });
    let scene = scene.await;
    let email = scene.email("From: alice@example.org\n\n").await;
    let error = scene.create(json!({"identityId": scene.identity, "emailId": email})).await;
    assert_eq!(error["type"], "noRecipients");
    let from = || json!({"email": "alice@example.org"});
    assert_eq!(scene.send(&email, from(), json!([])).await["type"], "noRecipients");
    let wrong = json!([{"email": "b@example.net> SIZE=1"}, {"email": "carol"}]);
    let error = scene.send(&email, from(), wrong).await;
    assert_eq!(error["type"], "invalidRecipients");
    assert_eq!(error["invalidRecipients"], json!(["b@example.net> SIZE=1", "carol"]));
    let three = json!([{"email": "a@example.net"}, {"email": "b@example.net"}, {"email": "c@example.net"}]);
    let error = scene.send(&email, from(), three).await;
    assert_eq!((&error["type"], &error["maxRecipients"]), (&json!("tooManyRecipients"), &json!(2)));
    let long =
        scene.email(&format!("From: alice@example.org\nTo: b@example.net\n\n{}", "x".repeat(1_000))).await;
    let error = scene.create(json!({"identityId": scene.identity, "emailId": long})).await;
    assert_eq!((&error["type"], &error["maxSize"]), (&json!("tooLarge"), &json!(1_000)));
    assert!(scene.outbox().await.is_empty());
}

#[tokio::test]
async fn su2_nobody_sends_for_others_or_with_a_token_that_is_not_for_sending() {
    let scene = Scene::new().await;
    let Scene { server, identity } = &scene;
    let email = scene.email(MESSAGE).await;
    server.grant(&server.alice, &server.bob, Access::Write).await;
    let submission = json!({"k": {"identityId": identity, "emailId": email}});
    let arguments = json!({"accountId": server.alice.id, "create": submission});
    let answer = server.call_as(&server.bob, "EmailSubmission/set", arguments).await;
    assert_eq!(answer["type"], "accountNotSupportedByMethod");
    assert!(scene.outbox().await.is_empty());
}

#[tokio::test]
async fn su2_an_account_that_has_sent_too_much_is_stopped() {
    let scene = Scene::new().await;
    let server = &scene.server;
    let rates = SendingRates { messages_per_hour_max: 3, recipients_per_day_max: 5 };
    let (records, clock) = (server.mail.records().clone(), server.mail.clock().clone());
    let limits = SendingLimits::new(records, clock, rates, SendingMetrics::default());
    let door = server.restarted_with(|parts| parts.sending = Some(limits));
    let submit = async |to: &str| {
        let email = scene.email(&format!("From: alice@example.org\nTo: {to}\n\n")).await;
        let create = json!({"k": {"identityId": scene.identity, "emailId": email}});
        let arguments = json!({"accountId": server.alice.id, "create": create});
        let responses = server.run_with(&door, json!([["EmailSubmission/set", arguments, "c"]])).await;
        let error = &responses[0][1]["notCreated"]["k"];
        if error["type"] == "forbiddenToSend" {
            let text = "the account has sent as much as it may (recipients in a day): try again at 2027-01-";
            assert!(error["description"].as_str().unwrap().starts_with(text), "{error}");
        }
        error["type"].clone()
    };
    let many: Vec<String> = (0..6).map(|n| format!("{n}@example.net")).collect();
    assert_eq!(submit(&many.join(", ")).await, "tooManyRecipients");
    assert_eq!(submit(&many[..4].join(", ")).await, Value::Null);
    assert_eq!(submit("a@example.net, b@example.net").await, "forbiddenToSend", "six recipients");
    assert_eq!(submit("a@example.net").await, Value::Null);
    assert_eq!(scene.outbox().await.len(), 2);
}

#[tokio::test]
async fn su3_destroying_the_email_or_the_submission_stops_nothing() {
    let scene = Scene::new().await;
    let email = scene.email(MESSAGE).await;
    let id = scene.submit(&email).await;
    scene.call("Email/set", json!({"destroy": [email]})).await;
    let set = scene.call("EmailSubmission/set", json!({"destroy": [id]})).await;
    assert_eq!(set["destroyed"], json!([id]));
    assert_eq!(scene.get(&id).await, Value::Null);
    let outbox = scene.outbox().await;
    assert_eq!(outbox.len(), 1);
    assert_eq!(outbox[0].source.record, record(&id));
    let bytes = scene.server.blobs.blobs.size(outbox[0].blob).await.unwrap();
    assert_eq!(bytes, Some(outbox[0].size), "the message with its Bcc, which goes when it is sent");
    assert!(scene.server.mail.release_submission(scene.server.alice.account, record(&id)).await.unwrap());
}

#[tokio::test]
async fn su4_a_message_that_is_held_back_can_be_canceled_until_it_is_sent() {
    let scene = Scene::new().await;
    let id = scene.held(60).await;
    let got = scene.get(&id).await;
    assert_eq!((&got["undoStatus"], &got["sendAt"]), (&json!("pending"), &json!("2027-01-15T08:01:00Z")));
    assert_eq!(scene.outbox().await[0].due, 1_800_000_060);
    let cancel = |id: &str| json!({"update": {id: {"undoStatus": "canceled", "emailId": got["emailId"]}}});
    let set = scene.call("EmailSubmission/set", cancel(&id)).await;
    assert_eq!(set["updated"], json!({ id.clone(): null }), "{set}");
    assert_eq!(scene.get(&id).await["undoStatus"], "canceled");
    assert!(scene.outbox().await.is_empty());
    let mail = &scene.server.mail;
    let account = scene.server.alice.account;
    assert!(!mail.release_submission(account, record(&id)).await.unwrap());
    scene.call("EmailSubmission/set", json!({"destroy": [id]})).await;
    assert!(!mail.release_submission(account, record(&id)).await.unwrap(), "it stays canceled");

    let sent = scene.held(60).await;
    assert!(mail.release_submission(account, record(&sent)).await.unwrap());
    let set = scene.call("EmailSubmission/set", json!({"update": {&sent: {"undoStatus": "canceled"}}})).await;
    assert_eq!(set["notUpdated"][&sent]["type"], "cannotUnsend");
    assert_eq!(scene.get(&sent).await["undoStatus"], "final");
}

#[tokio::test]
async fn su4_nothing_else_of_a_submission_can_be_changed() {
    let scene = Scene::new().await;
    let id = scene.held(60).await;
    for (patch, bad) in [
        (json!({"undoStatus": "final"}), "undoStatus"),
        (json!({"sendAt": "2027-01-15T09:00:00Z"}), "sendAt"),
        (json!({"envelope/mailFrom/email": "bob@example.org"}), "envelope"),
        (json!({"color": 1}), "color"),
    ] {
        let set = scene.call("EmailSubmission/set", json!({"update": {&id: patch}})).await;
        assert_eq!(set["notUpdated"][&id]["properties"], json!([bad]), "{set}");
    }
    let set = scene.call("EmailSubmission/set", json!({"update": {&id: {}, "s999": {}}})).await;
    assert_eq!((&set["updated"][&id], &set["newState"]), (&Value::Null, &set["oldState"]));
    assert_eq!(set["notUpdated"]["s999"]["type"], "notFound");
    assert_eq!(scene.get(&id).await["undoStatus"], "pending");
}

#[tokio::test]
async fn su4_a_delay_has_a_limit_that_the_account_names() {
    let scene = Scene::with(SubmissionConfig { delay_seconds_max: 60, ..SubmissionConfig::default() }).await;
    let email = scene.email(MESSAGE).await;
    let send = async |parameters: Value| {
        let from = json!({"email": "alice@example.org", "parameters": parameters});
        scene.send(&email, from, json!([{"email": "bob@example.org"}])).await
    };
    assert_eq!(send(json!({"HOLDFOR": "61"})).await["properties"], json!(["envelope"]));
    assert_eq!(send(json!({"HOLDUNTIL": "2027-01-15T08:01:01Z"})).await["type"], "invalidProperties");
    assert_eq!(send(json!({"HOLDUNTIL": "2027-01-15T08:01:00Z"})).await["undoStatus"], "pending");
    assert_eq!(send(json!({"HOLDUNTIL": "2020-01-15T08:01:00Z"})).await["undoStatus"], "final", "is over");
    let session = scene.server.get(&scene.server.alice, "/.well-known/jmap").await;
    let session: Value = serde_json::from_slice(&crate::testing::body_of(session).await).unwrap();
    let account = &session["accounts"][&scene.server.alice.id]["accountCapabilities"];
    let expected =
        json!({"maxDelayedSend": 60, "submissionExtensions": {"DSN": [], "FUTURERELEASE": ["60"]}});
    assert_eq!(account["urn:ietf:params:jmap:submission"], expected, "{session}");
    assert_eq!(account["urn:ietf:params:jmap:vacationresponse"], json!({}));
    for uri in USING {
        assert!(session["capabilities"][uri].is_object(), "{uri}");
    }
}

#[tokio::test]
async fn su5_the_delivery_status_follows_the_replies_of_servers() {
    let scene = Scene::new().await;
    let email = scene.email(MESSAGE).await;
    let id = scene.submit(&email).await;
    let (mail, account) = (&scene.server.mail, scene.server.alice.account);
    let report = async |address: &str, reply: &str, state: RecipientState| {
        mail.report_submission(account, record(&id), address, reply, state).await.unwrap();
    };
    report("bob@example.org", "250 2.1.5 delivered", RecipientState::Yes).await;
    report("carol@example.net", "450 4.2.0 later", RecipientState::Queued).await;
    report("dave@example.com", "550 5.1.1 unknown", RecipientState::No).await;
    report("nobody@example.com", "250 2.0.0", RecipientState::Yes).await;
    let got = scene.get(&id).await;
    let status = |reply: &str, delivered: &str| json!({"smtpReply": reply, "delivered": delivered, "displayed": "unknown"});
    let expected = json!({
        "bob@example.org": status("250 2.1.5 delivered", "yes"),
        "carol@example.net": status("450 4.2.0 later", "queued"),
        "dave@example.com": status("550 5.1.1 unknown", "no"),
    });
    assert_eq!(got["deliveryStatus"], expected);
    let state = scene.call("EmailSubmission/get", json!({"ids": []})).await["state"].clone();
    report("bob@example.org", "250 2.1.5 delivered", RecipientState::Yes).await;
    report("dave@example.com", "450 4.2.0 later", RecipientState::Queued).await;
    let after = scene.call("EmailSubmission/get", json!({"ids": []})).await["state"].clone();
    assert_eq!(after, state, "a repeated report, and one that came late, change nothing");
    report("carol@example.net", "250 2.0.0 taken", RecipientState::Unknown).await;
    mail.add_submission_report(account, record(&id), RecordId(77)).await.unwrap();
    mail.add_submission_report(account, record(&id), RecordId(77)).await.unwrap();
    let got = scene.get(&id).await;
    assert_eq!(got["deliveryStatus"]["carol@example.net"], status("250 2.0.0 taken", "unknown"));
    assert_eq!(got["dsnBlobIds"], json!(["be77"]));
    let changes = scene.call("EmailSubmission/changes", json!({ "sinceState": state })).await;
    assert_eq!((&changes["updated"], &changes["created"]), (&json!([id]), &json!([])));
}

#[tokio::test]
async fn su6_a_success_changes_and_destroys_emails_in_a_second_response() {
    let scene = Scene::new().await;
    let (one, other) = (scene.email(MESSAGE).await, scene.email(MESSAGE).await);
    let bad = scene.email("From: bob@example.org\nTo: alice@example.org\n\n").await;
    let sent = scene.call("Mailbox/query", json!({"filter": {"role": "sent"}})).await["ids"][0].clone();
    let submission = |email: &str| json!({"identityId": scene.identity, "emailId": email});
    let arguments = json!({
        "accountId": scene.server.alice.id,
        "create": {"a": submission(&one), "b": submission(&other), "c": submission(&bad)},
        "onSuccessUpdateEmail": {
            "#a": {"mailboxIds": {sent.as_str().unwrap(): true}, "keywords/$draft": null},
            "#c": {"keywords/$flagged": true},
            "s999": {"keywords/$flagged": true},
        },
        "onSuccessDestroyEmail": ["#b", "#c", "#unknown"],
    });
    let responses = scene.server.calls(json!([["EmailSubmission/set", arguments, "c0"]])).await;
    assert_eq!(responses.len(), 2);
    assert_eq!(responses[0][1]["notCreated"]["c"]["type"], "forbiddenFrom");
    assert_eq!((&responses[1][0], &responses[1][2]), (&json!("Email/set"), &json!("c0")));
    assert_eq!(responses[1][1]["updated"], json!({ one.clone(): null }));
    assert_eq!(responses[1][1]["destroyed"], json!([other]));
    assert_eq!(
        (&responses[1][1]["notUpdated"], &responses[1][1]["notDestroyed"]),
        (&Value::Null, &Value::Null)
    );
    let get = scene.call("Email/get", json!({"ids": [one], "properties": ["mailboxIds"]})).await;
    assert_eq!(get["list"][0]["mailboxIds"], json!({sent.as_str().unwrap(): true}));
    assert_eq!(scene.outbox().await.len(), 2);
}

/// Regression test: of two patches of one email, one was dropped.
#[tokio::test]
async fn su6_an_email_gets_the_patches_of_all_its_submissions() {
    let scene = Scene::new().await;
    let email = scene.email(MESSAGE).await;
    let sent = scene.call("Mailbox/query", json!({"filter": {"role": "sent"}})).await["ids"][0].clone();
    let sent = sent.as_str().unwrap();
    let set = async |patches: [Value; 2]| {
        let submission = json!({"identityId": scene.identity, "emailId": email});
        let [first, second] = patches;
        let arguments = json!({
            "accountId": scene.server.alice.id, "create": {"s": submission, "t": submission},
            "onSuccessUpdateEmail": {"#s": first, "#t": second},
        });
        scene.server.calls(json!([["EmailSubmission/set", arguments, "c0"]])).await
    };
    let first = json!({"mailboxIds": {sent: true}, "keywords/$draft": null});
    let responses = set([first, json!({"keywords/$flagged": true})]).await;
    assert_eq!(responses[1][1]["updated"], json!({email.clone(): null}), "{responses:?}");
    let get =
        scene.call("Email/get", json!({"ids": [email], "properties": ["mailboxIds", "keywords"]})).await;
    let expected = json!({"id": email, "mailboxIds": {sent: true}, "keywords": {"$flagged": true}});
    assert_eq!(get["list"][0], expected);
    let responses = set([json!({"keywords": {}}), json!({"keywords/$seen": true})]).await;
    assert_eq!(responses[1][1]["notUpdated"][&email]["type"], "invalidPatch", "{responses:?}");
}

#[tokio::test]
async fn su4_an_id_that_is_repeated_is_destroyed_once() {
    let scene = Scene::new().await;
    let email = scene.email(MESSAGE).await;
    let id = scene.submit(&email).await;
    let create = json!({"k": {"identityId": scene.identity, "emailId": email}});
    let destroy = json!([id, "#k", id, "s999", "s999", "#k"]);
    let set = scene.call("EmailSubmission/set", json!({"create": create, "destroy": destroy})).await;
    assert_eq!(set["destroyed"], json!([id, set["created"]["k"]["id"]]));
    assert_eq!(set["notDestroyed"], json!({"s999": {"type": "notFound"}}));
}

#[tokio::test]
async fn su6_an_undo_and_a_destruction_are_successes_and_a_failure_is_none() {
    let scene = Scene::new().await;
    let (id, gone) = (scene.held(60).await, scene.held(60).await);
    let emails = [scene.get(&id).await["emailId"].clone(), scene.get(&gone).await["emailId"].clone()];
    let arguments = json!({
        "accountId": scene.server.alice.id, "update": {&id: {"undoStatus": "canceled"}}, "destroy": [gone],
        "onSuccessUpdateEmail": {&id: {"keywords/$draft": true}, &gone: {"keywords/$flagged": true}},
    });
    let responses = scene.server.calls(json!([["EmailSubmission/set", arguments, "c0"]])).await;
    let mut updated: Vec<&String> = responses[1][1]["updated"].as_object().unwrap().keys().collect();
    updated.sort_unstable();
    let mut expected: Vec<&str> = emails.iter().map(|email| email.as_str().unwrap()).collect();
    expected.sort_unstable();
    assert_eq!(updated, expected);
    let arguments = json!({
        "accountId": scene.server.alice.id, "create": {"k": {}},
        "onSuccessDestroyEmail": ["#k"],
    });
    let responses = scene.server.calls(json!([["EmailSubmission/set", arguments, "c0"]])).await;
    assert_eq!(responses.len(), 1, "nothing succeeded");
    for wrong in [json!({"onSuccessUpdateEmail": {"#k": 1}}), json!({"onSuccessDestroyEmail": "#k"})] {
        assert_eq!(scene.call("EmailSubmission/set", wrong).await["type"], "invalidArguments");
    }
}

#[tokio::test]
async fn su6_a_draft_is_made_sent_and_moved_in_one_request() {
    let scene = Scene::new().await;
    let account = &scene.server.alice.id;
    let query = |role: &str| json!({"accountId": account, "filter": {"role": role}});
    let drafts = scene.call("Mailbox/query", query("drafts")).await["ids"][0].clone();
    let sent = scene.call("Mailbox/query", query("sent")).await["ids"][0].clone();
    let draft = json!({
        "mailboxIds": {drafts.as_str().unwrap(): true}, "keywords": {"$draft": true},
        "from": [{"email": "alice@example.org"}], "to": [{"email": "bob@example.org"}], "subject": "Hello",
        "bodyValues": {"t": {"value": "Text"}}, "textBody": [{"partId": "t", "type": "text/plain"}],
    });
    let patch = json!({
        format!("mailboxIds/{}", drafts.as_str().unwrap()): null,
        format!("mailboxIds/{}", sent.as_str().unwrap()): true,
        "keywords/$draft": null,
    });
    let calls = json!([
        ["Email/set", {"accountId": account, "create": {"draft": draft}}, "c0"],
        ["EmailSubmission/set", {
            "accountId": account, "create": {"s": {"emailId": "#draft", "identityId": scene.identity}},
            "onSuccessUpdateEmail": {"#s": patch},
        }, "c1"],
    ]);
    let responses = scene.server.calls(calls).await;
    let email = responses[0][1]["created"]["draft"]["id"].clone();
    assert!(responses[1][1]["created"]["s"]["id"].is_string(), "{responses:?}");
    assert_eq!(responses[2][1]["updated"], json!({email.as_str().unwrap(): null}));
    let get =
        scene.call("Email/get", json!({"ids": [email], "properties": ["mailboxIds", "keywords"]})).await;
    assert_eq!(get["list"][0]["mailboxIds"], json!({sent.as_str().unwrap(): true}));
    assert_eq!(get["list"][0]["keywords"], json!({}));
}

#[tokio::test]
async fn su7_submissions_are_filtered_and_sorted() {
    let scene = Scene::new().await;
    let later = scene.held(120).await;
    let sooner = scene.held(60).await;
    let email = scene.email("From: alice@example.org\nTo: b@example.net\nSubject: other\n\n").await;
    let now = scene.submit(&email).await;
    let got = scene.get(&sooner).await;
    let query = async |filter: Value, sort: Value| {
        scene.call("EmailSubmission/query", json!({"filter": filter, "sort": sort})).await["ids"].clone()
    };
    let by_time = json!([{"property": "sentAt"}]);
    assert_eq!(query(json!({}), by_time.clone()).await, json!([now, sooner, later]));
    let descending = json!([{"property": "sendAt", "isAscending": false}]);
    assert_eq!(query(json!({}), descending).await, json!([later, sooner, now]));
    let by_email = json!([{"property": "emailId"}, {"property": "threadId"}]);
    assert_eq!(query(Value::Null, by_email).await, json!([later, sooner, now]));
    for (filter, expected) in [
        (json!({"undoStatus": "pending"}), json!([sooner, later])),
        (json!({"undoStatus": "final"}), json!([now])),
        (json!({"undoStatus": "unheard"}), json!([])),
        (json!({"emailIds": [got["emailId"], "x"]}), json!([sooner])),
        (json!({"threadIds": [got["threadId"], "t999"]}), json!([sooner])),
        (json!({"identityIds": [scene.identity]}), json!([now, sooner, later])),
        (json!({"identityIds": ["i999"]}), json!([])),
        (json!({"before": "2027-01-15T08:01:00Z"}), json!([now])),
        (json!({"after": "2027-01-15T08:01:00Z"}), json!([sooner, later])),
    ] {
        assert_eq!(query(filter.clone(), by_time.clone()).await, expected, "{filter}");
    }
    let wrong = [
        (json!({"filter": {"subject": "x"}}), "unsupportedFilter"),
        (json!({"filter": {"before": "now"}}), "invalidArguments"),
        (json!({"sort": [{"property": "undoStatus"}]}), "unsupportedSort"),
    ];
    for (arguments, error) in wrong {
        assert_eq!(scene.call("EmailSubmission/query", arguments).await["type"], error);
    }
}

#[tokio::test]
async fn su7_changes_of_submissions_and_of_queries_are_reported() {
    let scene = Scene::new().await;
    let (kept, canceled) = (scene.held(60).await, scene.held(60).await);
    let filter = json!({"undoStatus": "pending"});
    let before = scene.call("EmailSubmission/query", json!({ "filter": filter })).await["queryState"].clone();
    scene.call("EmailSubmission/set", json!({"update": {&canceled: {"undoStatus": "canceled"}}})).await;
    let new = scene.held(90).await;
    let arguments = json!({"filter": filter, "sinceQueryState": before});
    let changes = scene.call("EmailSubmission/queryChanges", arguments).await;
    let mut removed: Vec<&str> =
        changes["removed"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    removed.sort_unstable();
    assert!(removed.contains(&canceled.as_str()) && !removed.contains(&kept.as_str()), "{changes}");
    assert_eq!(changes["added"], json!([{"id": new, "index": 1}]));
    let arguments = json!({"filter": filter, "sinceQueryState": "999999"});
    let changes = scene.call("EmailSubmission/queryChanges", arguments).await;
    assert_eq!(changes["type"], "cannotCalculateChanges");
    scene.call("EmailSubmission/set", json!({"destroy": [kept]})).await;
    let changes = scene.call("EmailSubmission/changes", json!({"sinceState": before})).await;
    assert_eq!(
        (&changes["created"], &changes["updated"], &changes["destroyed"]),
        (&json!([new]), &json!([canceled]), &json!([kept]))
    );
    let get = scene.call("EmailSubmission/get", json!({"properties": ["undoStatus"]})).await;
    assert_eq!((get["list"].as_array().unwrap().len(), &get["state"]), (2, &changes["newState"]));
}

#[tokio::test]
async fn s4_putting_a_submission_into_the_queue_changes_no_state() {
    let scene = Scene::new().await;
    let email = scene.email(MESSAGE).await;
    scene.submit(&email).await;
    let state = async || scene.call("EmailSubmission/get", json!({"ids": []})).await["state"].clone();
    let before = state().await;
    let account = scene.server.alice.account;
    let entries = scene.server.mail.outbox(account, 10).await.unwrap();
    scene.server.mail.clear_outbox(account, entries[0].id).await.unwrap();
    assert!(scene.outbox().await.is_empty());
    assert_eq!(state().await, before);
}

#[tokio::test]
async fn t1_submissions_are_made_in_the_expected_state_only() {
    let scene = Scene::new().await;
    let email = scene.email(MESSAGE).await;
    let state = scene.call("EmailSubmission/get", json!({})).await["state"].clone();
    let create = json!({
        "a": {"identityId": scene.identity, "emailId": email}, "b": {"identityId": scene.identity, "emailId": email},
    });
    let arguments = json!({"ifInState": state, "create": create});
    let set = scene.call("EmailSubmission/set", arguments.clone()).await;
    assert_eq!((&set["oldState"], set["created"].as_object().unwrap().len()), (&state, 2));
    assert_eq!(scene.call("EmailSubmission/set", arguments).await["type"], "stateMismatch");
    assert_eq!(scene.outbox().await.len(), 2);
}
