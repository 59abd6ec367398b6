//! Outgoing mail: by SMTP submission and JMAP, to another server and to accounts of this one.

mod kills;
mod sink;

use std::{
    io::{self, BufRead, BufReader, Lines, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{Mutex, mpsc},
    thread,
};

use serde_json::{Value, json};
use sink::Sink;

use crate::{
    mail::make_account,
    support::{Server, exchange, folder, free_address, restante, said, say, wait_until},
};

const USER: &str = "alice@example.org";
const PASSWORD: &str = "correct horse";

/// A server that sends all mail for other domains to a sink.
struct Sending {
    server: Server,
    jmap: SocketAddr,
    submission: SocketAddr,
    operators: String,
}

impl Sending {
    fn start(folder: &Path, sink: &Sink) -> Self {
        Self::start_with(folder, sink, &[])
    }

    fn start_with(folder: &Path, sink: &Sink, settings: &[(&str, &str)]) -> Self {
        let (jmap, submission, operators) = (free_address(), free_address(), free_address());
        let mut command = restante(folder);
        command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
        command.args(["--jmap-listen", &jmap.to_string(), "--submission-listen", &submission.to_string()]);
        command.args(["--smarthost", &sink.address.to_string()]);
        command.env("RESTANTE_SUBMISSION__ALLOW_PLAINTEXT_LOOPBACK", "true");
        command.env("RESTANTE_OPERATE__LISTEN", operators.to_string());
        // A claim of a killed server expires soon, and retries are quick.
        command.env("RESTANTE_DELIVERY__LEASE_SECONDS", "3");
        command.env("RESTANTE_DELIVERY__DOMAIN_DOWN_SECONDS", "0");
        command.env("RESTANTE_DELIVERY__RETRY_SECONDS", "0,1");
        command.envs(settings.iter().copied());
        Self { server: Server::spawn(command), jmap, submission, operators: format!("http://{operators}") }
    }

    fn submit(&self, recipients: &[&str], message: &str) -> String {
        submit(self.submission, recipients, message).unwrap()
    }

    fn request(&self, method: &str, path: &str, content: &str, body: &[u8]) -> Value {
        let credentials = base64_simd::STANDARD.encode_to_string(format!("{USER}:{PASSWORD}"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nauthorization: Basic {credentials}\r\n\
             content-type: {content}\r\ncontent-length: {}\r\n\r\n",
            self.jmap,
            body.len()
        );
        let answer = exchange(self.jmap, &[head.as_bytes(), body].concat()).unwrap();
        assert!(answer.status < 300, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// The path of a URL of the session.
    fn path<'u>(&self, url: &'u str) -> &'u str {
        let host = self.jmap.to_string();
        &url[url.find(&host).unwrap() + host.len()..]
    }

    /// The responses to these calls.
    fn calls(&self, calls: &[(&str, Value)]) -> Vec<Value> {
        let session = self.request("GET", "/.well-known/jmap", "text/plain", b"");
        let account = &session["primaryAccounts"]["urn:ietf:params:jmap:mail"];
        let named = |(number, (name, arguments)): (usize, &(&str, Value))| {
            let mut arguments = arguments.clone();
            arguments["accountId"] = account.clone();
            json!([name, arguments, number.to_string()])
        };
        let calls: Vec<Value> = calls.iter().enumerate().map(named).collect();
        let using = ["core", "mail", "submission"].map(|name| format!("urn:ietf:params:jmap:{name}"));
        let body = json!({"using": using, "methodCalls": calls}).to_string();
        let path = self.path(session["apiUrl"].as_str().unwrap());
        let answer = self.request("POST", path, "application/json", body.as_bytes());
        answer["methodResponses"].as_array().unwrap().clone()
    }

    /// The subjects of all emails, newest first.
    fn subjects(&self) -> Vec<String> {
        let ids = json!({"resultOf": "0", "name": "Email/query", "path": "/ids"});
        let answers = self.calls(&[
            ("Email/query", json!({})),
            ("Email/get", json!({"#ids": ids, "properties": ["subject"]})),
        ]);
        let list = answers[1][1]["list"].as_array().unwrap();
        list.iter().map(|email| email["subject"].as_str().unwrap().to_owned()).collect()
    }

    /// Uploads and imports a draft, and submits it to its recipients; returns the id of the submission.
    fn submit_by_jmap(&self, message: &str) -> String {
        let session = self.request("GET", "/.well-known/jmap", "text/plain", b"");
        let account = session["primaryAccounts"]["urn:ietf:params:jmap:mail"].as_str().unwrap();
        let upload = session["uploadUrl"].as_str().unwrap().replace("{accountId}", account);
        let message = message.replace('\n', "\r\n");
        let blob = self.request("POST", self.path(&upload), "message/rfc822", message.as_bytes());
        let of_drafts = json!({"filter": {"role": "drafts"}});
        let answers = self.calls(&[("Mailbox/query", of_drafts), ("Identity/get", json!({}))]);
        let drafts = answers[0][1]["ids"][0].as_str().unwrap();
        let identity = answers[1][1]["list"][0]["id"].clone();
        let email =
            json!({"blobId": blob["blobId"], "mailboxIds": {drafts: true}, "keywords": {"$draft": true}});
        let imported = self.calls(&[("Email/import", json!({"emails": {"d": email}}))]);
        let email = imported[0][1]["created"]["d"]["id"].clone();
        let create = json!({"s": {"identityId": identity, "emailId": email}});
        let on_success = json!({"#s": {"keywords/$draft": null}});
        let set = json!({"create": create, "onSuccessUpdateEmail": on_success});
        let answers = self.calls(&[("EmailSubmission/set", set)]);
        assert_eq!(answers[1][0], "Email/set", "{answers:?}");
        answers[0][1]["created"]["s"]["id"].as_str().unwrap_or_else(|| panic!("{answers:?}")).to_owned()
    }

    /// The output of a command of the queue, while the server runs.
    fn queue(&self, folder: &Path, args: &[&str]) -> String {
        said(folder, &[&["queue"], args, &["--rest", &self.operators]].concat())
    }

    fn submission(&self, id: &str) -> Value {
        self.calls(&[("EmailSubmission/get", json!({"ids": [id]}))])[0][1]["list"][0].clone()
    }
}

/// Submits a message by SMTP, and returns the reply to it.
fn submit(address: SocketAddr, recipients: &[&str], message: &str) -> io::Result<String> {
    let mut client = SubmissionClient::begin(address, recipients)?;
    client.write(&transmitted(message))?;
    client.reply()
}

/// A message as it is transmitted, with its end.
fn transmitted(message: &str) -> String {
    format!("{}\r\n.\r\n", message.replace("\n.", "\n..").replace('\n', "\r\n"))
}

/// A client of submission for whose message the server waits.
struct SubmissionClient {
    stream: TcpStream,
    replies: Lines<BufReader<TcpStream>>,
}

impl SubmissionClient {
    /// Sends all commands up to `DATA`.
    fn begin(address: SocketAddr, recipients: &[&str]) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        let replies = BufReader::new(stream.try_clone()?).lines();
        let mut client = Self { stream, replies };
        assert!(client.reply()?.starts_with("220 "));
        let credentials = base64_simd::STANDARD.encode_to_string(format!("\0{USER}\0{PASSWORD}"));
        let mut commands = vec![
            "EHLO client.example".to_owned(),
            format!("AUTH PLAIN {credentials}"),
            format!("MAIL FROM:<{USER}>"),
        ];
        commands.extend(recipients.iter().map(|recipient| format!("RCPT TO:<{recipient}>")));
        for command in commands {
            client.write(&format!("{command}\r\n"))?;
            let line = client.reply()?;
            assert!(line.starts_with('2'), "{command}: {line}");
        }
        client.write("DATA\r\n")?;
        assert!(client.reply()?.starts_with("354 "));
        Ok(client)
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes())
    }

    /// The last line of the next reply.
    fn reply(&mut self) -> io::Result<String> {
        loop {
            let line = self.replies.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
            if line.as_bytes().get(3) == Some(&b' ') {
                return Ok(line);
            }
        }
    }
}

fn message(subject: &str) -> String {
    format!(
        "From: Alice <{USER}>\nTo: bob@example.net\nBcc: hidden@example.net\nSubject: {subject}\n\nA text.\n.A dot.\n"
    )
}

#[test]
fn what_is_submitted_reaches_the_other_server_and_accounts_of_this_one() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    make_account(&folder);
    let sending = Sending::start(&folder, &sink);
    let reply = sending.submit(&["bob@example.net", "carol@example.net", USER], &message("Lunch"));
    assert!(reply.starts_with("250 2.0.0"), "{reply}");
    wait_until("the sink has it", || sink.taken().len() == 1);
    let taken = sink.taken().remove(0);
    let mut recipients = taken.recipients.clone();
    recipients.sort();
    assert_eq!(recipients, ["bob@example.net", "carol@example.net"], "one message for both");
    assert_eq!(
        (taken.sender.as_str(), taken.field("Subject"), taken.field("Bcc")),
        (USER, Some("Lunch"), None)
    );
    assert!(taken.field("Message-ID").is_some() && taken.field("Date").is_some(), "{}", taken.text);
    assert!(taken.text.contains("\nA text.\n.A dot.\n"), "{}", taken.text);
    wait_until("it is in the own account", || sending.subjects() == ["Lunch"]);
    wait_until("the queue is empty", || sending.queue(&folder, &["list"]).is_empty());
    assert_eq!(sending.server.stop().code(), Some(0));
}

#[test]
fn what_is_submitted_by_jmap_is_sent_and_its_status_is_kept() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    make_account(&folder);
    let sending = Sending::start(&folder, &sink);
    let id = sending.submit_by_jmap(&message("Tea"));
    wait_until("the sink has it", || !sink.taken().is_empty());
    let taken = sink.taken();
    let mut recipients: Vec<String> = taken.iter().flat_map(|taken| taken.recipients.clone()).collect();
    recipients.sort();
    assert_eq!(recipients, ["bob@example.net", "hidden@example.net"]);
    assert!(taken.iter().all(|taken| taken.field("Bcc").is_none()), "{taken:?}");
    let status = |recipient: &str| sending.submission(&id)["deliveryStatus"][recipient].clone();
    wait_until("the status of all is known", || {
        ["bob@example.net", "hidden@example.net"].iter().all(|to| status(to)["delivered"] == "unknown")
    });
    assert!(status("bob@example.net")["smtpReply"].as_str().unwrap().starts_with("250"));
    assert_eq!(sending.submission(&id)["undoStatus"], "final");
    assert_eq!(sending.server.stop().code(), Some(0));
}

/// Its recipients stayed `queued` for ever.
#[test]
fn what_operators_drop_is_shown_in_its_submission() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    make_account(&folder);
    let sending = Sending::start(&folder, &sink);
    sending.queue(&folder, &["hold", "--all", "--why", "a test"]);
    let id = sending.submit_by_jmap(&message("Tea"));
    wait_until("it is queued", || !sending.queue(&folder, &["list"]).is_empty());
    sending.queue(&folder, &["drop", "--all", "--yes"]);
    let submission = sending.submission(&id);
    for recipient in ["bob@example.net", "hidden@example.net"] {
        let status = &submission["deliveryStatus"][recipient];
        assert_eq!(status["delivered"], "no", "{submission}");
        assert!(status["smtpReply"].as_str().unwrap().starts_with("554 5.7.0 dropped"), "{submission}");
    }
    assert_eq!(sending.server.stop().code(), Some(0));
}

#[test]
fn mail_that_is_refused_comes_back_as_a_report() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    make_account(&folder);
    let sending = Sending::start(&folder, &sink);
    let reply = sending.submit(&["refused@example.net", "bob@example.net"], &message("Lunch"));
    assert!(reply.starts_with("250 "), "{reply}");
    wait_until("the report is there", || sending.subjects().len() == 1);
    wait_until("the other recipient has it", || sink.taken().len() == 1);
    let ids = json!({"resultOf": "0", "name": "Email/query", "path": "/ids"});
    let get = json!({"#ids": ids, "properties": ["from", "bodyStructure", "header:Return-Path"]});
    let report = sending.calls(&[("Email/query", json!({})), ("Email/get", get)])[1][1]["list"][0].clone();
    assert_eq!(report["bodyStructure"]["type"], "multipart/report", "{report}");
    assert_eq!(report["header:Return-Path"].as_str().unwrap().trim(), "<>");
    assert_eq!(sending.server.stop().code(), Some(0));
}

#[test]
fn operators_see_hold_and_drop_what_is_queued() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    sink.set_busy(true);
    make_account(&folder);
    let sending = Sending::start_with(&folder, &sink, &[("RESTANTE_DELIVERY__RETRY_SECONDS", "0,86400")]);
    for recipient in ["later1@example.net", "later2@example.com"] {
        assert!(sending.submit(&[recipient], &message("Lunch")).starts_with("250 "));
    }
    let list = |args: &[&str]| -> Vec<Value> {
        let out = sending.queue(&folder, &[&["list", "--format", "json"], args].concat());
        serde_json::from_str(&out).unwrap()
    };
    wait_until("both were tried", || {
        list(&[]).len() == 2 && list(&[]).iter().all(|item| item["attempts"].as_u64() >= Some(1))
    });
    let of_com = list(&["--domain", "example.com"]);
    assert_eq!((of_com.len(), &of_com[0]["recipient"]), (1, &json!("later2@example.com")));
    let id = of_com[0]["id"].as_str().unwrap();
    let shown = sending.queue(&folder, &["show", id]);
    assert!(shown.contains("later2@example.com") && shown.contains("451"), "{shown}");
    sending.queue(&folder, &["hold", id]);
    sink.set_busy(false);
    sending.queue(&folder, &["retry", "--all"]);
    wait_until("what is not held is sent", || sink.taken().len() == 1);
    assert_eq!(sink.taken()[0].recipients, ["later1@example.net"]);
    assert_eq!(list(&["--held"]).len(), 1);
    sending.queue(&folder, &["drop", id, "--yes"]);
    assert_eq!(list(&[]), [Value::Null; 0]);
    // It ended with exit code 0, as if something had been dropped.
    for command in [&["drop", id, "--yes"][..], &["retry", id]] {
        let gone = say(&folder, &[&["queue"], command, &["--rest", &sending.operators]].concat());
        assert!(gone.code == 1 && gone.err.contains("not in the queue"), "{} {}", gone.code, gone.err);
    }
    let unknown = say(&folder, &["queue", "show", id, "--rest", &sending.operators]);
    assert_eq!(unknown.code, 1, "{}", unknown.err);
    assert_eq!(sending.server.stop().code(), Some(0));
}

#[test]
fn the_console_shows_what_waits_and_who_reached_a_limit() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    sink.set_busy(true);
    make_account(&folder);
    let settings = [
        ("RESTANTE_DELIVERY__RETRY_SECONDS", "0,86400"),
        ("RESTANTE_REST__ADMIN", "true"),
        ("RESTANTE_SUBMISSION__MESSAGES_PER_HOUR_MAX", "2"),
    ];
    let sending = Sending::start_with(&folder, &sink, &settings);
    let glance = || -> Value {
        let answer = sending.server.get("/admin/v1/mail/outgoing");
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    };
    for recipients in [&["later1@example.net", "later2@example.net"][..], &["later3@example.com"]] {
        assert!(sending.submit(recipients, &message("Lunch")).starts_with("250 "));
    }
    let refused = submit(sending.submission, &["d@example.net"], &message("Lunch"));
    assert!(refused.is_err() || refused.is_ok_and(|reply| reply.starts_with("450 ")));
    let list = || -> Vec<Value> {
        serde_json::from_str(&sending.queue(&folder, &["list", "--format", "json"])).unwrap()
    };
    wait_until("all were tried", || {
        list().len() == 3 && list().iter().all(|item| item["attempts"].as_u64() >= Some(1))
    });
    sending.queue(&folder, &["hold", "--domain", "example.com"]);
    // The queue is counted now, for the first time: a count is cached for a while.
    wait_until("the queue was counted", || glance()["counts"].is_object());
    let shown = glance();
    assert_eq!(
        (&shown["counts"]["held"], &shown["held"], &shown["limitedInAll"]),
        (&json!(1), &Value::Null, &json!(1))
    );
    assert_eq!((&shown["counts"]["waiting"], &shown["counts"]["domainsInAll"]), (&json!(2), &json!(2)));
    let first = &shown["counts"]["domains"][0];
    assert_eq!((&first["domain"], &first["recipients"]), (&json!("example.net"), &json!(2)));
    assert!(first["oldestDue"].as_u64() > Some(1_600_000_000), "{shown}");
    let limited = &shown["limited"][0];
    assert_eq!((&limited["address"], &limited["limit"]), (&json!(USER), &json!("messages")), "{shown}");
    let held = sending.queue(&folder, &["hold", "--all", "--why", "the provider moves"]);
    assert_eq!(held, "the queue is held; recipients that were to be tried: 2\n");
    assert_eq!(glance()["held"]["why"], "the provider moves");
    let retried = sending.queue(&folder, &["retry", "--all"]);
    assert!(retried.contains("due, and not tried: the whole queue is held"), "{retried}");
    let released = sending.queue(&folder, &["release", "--all"]);
    assert_eq!(released, "the queue is released; recipients that were held by themselves: 1\n");
    assert_eq!(sending.server.stop().code(), Some(0));
}

#[test]
fn a_restored_server_holds_its_queue_until_it_is_released() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    sink.set_busy(true);
    make_account(&folder);
    let sending = Sending::start(&folder, &sink);
    assert!(sending.submit(&["later@example.net"], &message("Lunch")).starts_with("250 "));
    said(&folder, &["backup", "copy", "--rest", &sending.operators]);
    sink.set_busy(false);
    wait_until("it is sent", || sink.taken().len() == 1);
    assert_eq!(sending.server.stop().code(), Some(0));

    said(&folder, &["restore", "copy", "--force"]);
    let sending = Sending::start(&folder, &sink);
    let listed = say(&folder, &["queue", "list", "--rest", &sending.operators]);
    assert!(listed.err.contains("restante queue release --all"), "{}", listed.err);
    assert!(sending.submit(&["bob@example.net"], &message("New")).starts_with("250 "));
    thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(sink.taken().len(), 1, "nothing is sent again by itself");
    sending.queue(&folder, &["release", "--all"]);
    wait_until("all is sent", || sink.taken().len() == 3);
    assert_eq!(sending.server.stop().code(), Some(0));
}

#[test]
fn jrn1_the_way_of_a_message_is_traced_from_submission_to_the_last_reply() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    sink.set_busy(true);
    make_account(&folder);
    let sending = Sending::start(&folder, &sink);
    let text = format!("Message-ID: <way@example.org>\n{}", message("Lunch"));
    let recipients = ["bob@example.net", "later@example.net", "refused@example.net", USER];
    assert!(sending.submit(&recipients, &text).starts_with("250 "));
    let trace = |about: &str| -> Vec<Value> {
        let args = ["mail", "trace", about, "--format", "json", "--rest", &sending.operators];
        let found: Vec<Value> = serde_json::from_str(&say(&folder, &args).out).unwrap_or_default();
        found.into_iter().rev().collect()
    };
    let outcomes = |about: &str, recipient: &str| -> Vec<String> {
        let found = trace(about).into_iter().filter(|entry| entry["recipient"] == recipient);
        found.map(|entry| entry["outcome"].as_str().unwrap().to_owned()).collect()
    };
    let about = "<way@example.org>";
    wait_until("it was delayed", || outcomes(about, "later@example.net").contains(&"postponed".to_owned()));
    sink.set_busy(false);
    wait_until("all has an end", || sending.queue(&folder, &["list"]).is_empty());
    wait_until("all is noted", || outcomes(about, "later@example.net").contains(&"sent".to_owned()));
    assert_eq!(outcomes(about, "bob@example.net"), ["queued", "sent"]);
    assert_eq!(outcomes(about, "refused@example.net"), ["queued", "failed", "reported"]);
    assert_eq!(outcomes(about, USER), ["queued", "delivered"]);
    let of_later = outcomes(about, "later@example.net");
    assert_eq!(
        (of_later[0].as_str(), of_later.last().map(String::as_str)),
        ("queued", Some("sent")),
        "{of_later:?}"
    );
    let found = trace("refused@example.net");
    let failed = found.iter().find(|entry| entry["outcome"] == "failed").unwrap();
    assert_eq!(
        (&failed["code"], &failed["status"], &failed["listener"]),
        (&json!(550), &json!("5.1.1"), &json!("queue"))
    );
    assert_eq!((&failed["messageId"], &failed["address"]), (&json!("way@example.org"), &json!(USER)));
    assert!(failed["reason"].as_str().unwrap().contains("nobody here"), "{failed}");
    // The report has an id of its own, by which it is found in the sender's account.
    let reported = found.iter().find(|entry| entry["outcome"] == "reported").unwrap();
    let id = reported["reason"].as_str().unwrap().rsplit_once(' ').unwrap().1.to_owned();
    wait_until("the report is noted", || outcomes(&id, USER) == ["delivered"]);
    let report = trace(&id).remove(0);
    assert_eq!((&report["sender"], report["emailId"].is_string()), (&json!(""), true), "{report}");
    assert_eq!(sending.server.stop().code(), Some(0));
}

/// It went on as queued.
#[test]
fn what_operators_drop_is_traced_whether_the_server_runs_or_not() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    make_account(&folder);
    let sending = Sending::start(&folder, &sink);
    sending.queue(&folder, &["hold", "--all", "--why", "a test"]);
    let text = format!("Message-ID: <dropped@example.org>\n{}", message("Lunch"));
    assert!(sending.submit(&["bob@example.net", "later@example.net"], &text).starts_with("250 "));
    let found = sending.queue(&folder, &["list", "--domain", "example.net", "--format", "json"]);
    let found: Vec<Value> = serde_json::from_str(&found).unwrap();
    let id = |recipient: &str| -> String {
        let queued = found.iter().find(|queued| queued["recipient"] == recipient).unwrap();
        queued["id"].as_str().unwrap().to_owned()
    };
    let last = |recipient: &str, reach: &[&str]| -> Value {
        let args = [&["mail", "trace", "<dropped@example.org>", "--format", "json"], reach].concat();
        let found: Vec<Value> = serde_json::from_str(&said(&folder, &args)).unwrap();
        found.into_iter().find(|entry| entry["recipient"] == recipient).unwrap()
    };
    sending.queue(&folder, &["drop", &id("bob@example.net"), "--yes"]);
    let dropped = last("bob@example.net", &["--rest", &sending.operators]);
    assert_eq!(
        (&dropped["outcome"], &dropped["listener"]),
        (&json!("dropped"), &json!("queue")),
        "{dropped}"
    );
    assert!(dropped["reason"].as_str().unwrap().starts_with("by "), "{dropped}");
    assert_eq!((&dropped["address"], &dropped["sender"]), (&json!(USER), &json!(USER)), "{dropped}");
    assert_eq!(last("later@example.net", &["--rest", &sending.operators])["outcome"], "queued");
    assert_eq!(sending.server.stop().code(), Some(0));
    said(&folder, &["queue", "drop", &id("later@example.net"), "--yes"]);
    let dropped = last("later@example.net", &[]);
    assert_eq!(dropped["outcome"], "dropped", "{dropped}");
    assert!(dropped["reason"].as_str().unwrap().ends_with(" on the command line"), "{dropped}");
}

#[test]
fn jrn3_a_submission_by_jmap_is_traced_from_the_queue_on() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    make_account(&folder);
    let sending = Sending::start(&folder, &sink);
    sending.submit_by_jmap(&format!("Message-ID: <jmap@example.org>\n{}", message("Tea")));
    let trace = || -> Vec<Value> {
        let args = ["mail", "trace", "<jmap@example.org>", "--format", "json", "--rest", &sending.operators];
        let found: Vec<Value> = serde_json::from_str(&say(&folder, &args).out).unwrap_or_default();
        found.into_iter().rev().filter(|entry| entry["recipient"] == "bob@example.net").collect()
    };
    wait_until("it is sent", || trace().iter().any(|entry| entry["outcome"] == "sent"));
    let found = trace();
    assert_eq!(found.len(), 2, "{found:?}");
    let queued = &found[0];
    assert_eq!((&queued["outcome"], &queued["listener"]), (&json!("queued"), &json!("queue")));
    assert_eq!((&queued["address"], &queued["id"]), (&json!(USER), &found[1]["id"]), "{found:?}");
    assert!(queued["bytes"].as_u64() > Some(0) && queued["account"].is_u64(), "{queued}");
    assert_eq!(sending.server.stop().code(), Some(0));
}

/// Clients submit until the server is killed, several times. What was answered with 250 reaches all recipients, and the own
/// account once.
#[test]
fn qu1_what_was_accepted_survives_kills() {
    const CLIENTS: usize = 3;
    let (_guard, folder) = folder();
    let sink = Sink::start();
    make_account(&folder);
    let (accepted, mut numbers) = (Mutex::new(Vec::<String>::new()), 0..);
    for round in 0..4 {
        let sending = Sending::start_with(
            &folder,
            &sink,
            &[
                ("RESTANTE_SUBMISSION__MESSAGES_PER_HOUR_MAX", "100000"),
                ("RESTANTE_SUBMISSION__RECIPIENTS_PER_DAY_MAX", "100000"),
            ],
        );
        let address = sending.submission;
        let (stored, replies) = mpsc::sync_channel(1_024);
        let begin = numbers.next().unwrap() * 100_000;
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (stored, accepted) = (stored.clone(), &accepted);
                scope.spawn(move || {
                    for number in begin + client * 1_000.. {
                        let subject = format!("mail{number}");
                        let sent = submit(address, &["bob@example.net", USER], &message(&subject));
                        let Ok(reply) = sent else { return };
                        assert!(reply.starts_with("250 "), "{reply}");
                        accepted.lock().unwrap().push(subject);
                        let _ = stored.try_send(()); // nobody counts any more when it is full
                    }
                });
            }
            for _ in 0..5 + 3 * round {
                replies.recv().unwrap();
            }
            sending.server.kill();
        });
    }
    let sending = Sending::start(&folder, &sink);
    // A claim of the killed server expires with its lease.
    wait_until("the queue is empty", || sending.queue(&folder, &["list"]).is_empty());
    let taken = sink.taken();
    let own = sending.subjects();
    for subject in accepted.lock().unwrap().iter() {
        assert!(taken.iter().any(|taken| taken.field("Subject") == Some(subject)), "{subject} is lost");
        assert_eq!(own.iter().filter(|own| *own == subject).count(), 1, "{subject} in the own account");
    }
    assert_eq!(sending.server.stop().code(), Some(0));
}
