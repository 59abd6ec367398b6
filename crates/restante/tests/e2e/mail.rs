//! Mail is received by LMTP and read by JMAP.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use bytes::Bytes;
use restante_core::{BlobId, SystemClock};
use restante_directory::{Actor, Directory, Operation};
use restante_mail::{MailConfig, MailMetrics, Role, email, mailbox};
use restante_records::{AccountId, Body, Change, Commit, Get, Properties, Query, Value as Property};
use serde_json::{Value, json};

use crate::{
    records::with_stores,
    support::{Server, deliver_by_lmtp, exchange, folder, free_address, restante, said, say, wait_until},
};

const USER: &str = "alice@example.org";
const PASSWORD: &str = "correct horse";

/// A server with an account.
pub(crate) struct Mail {
    pub(crate) server: Server,
    pub(crate) jmap: SocketAddr,
    lmtp: SocketAddr,
}

pub(crate) fn start(folder: &Path) -> Mail {
    start_with(folder, None)
}

/// A server that also serves operators at an address.
pub(crate) fn start_with(folder: &Path, operators: Option<SocketAddr>) -> Mail {
    let (jmap, lmtp) = (free_address(), free_address());
    let mut command = restante(folder);
    command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
    command.args(["--jmap-listen", &jmap.to_string(), "--lmtp-listen", &lmtp.to_string()]);
    if let Some(operators) = operators {
        command.env("RESTANTE_OPERATE__LISTEN", operators.to_string());
    }
    Mail { server: Server::spawn(command), jmap, lmtp }
}

pub(crate) fn make_account(folder: &Path) {
    std::fs::write(folder.join("password"), PASSWORD).unwrap();
    said(folder, &["domain", "add", "example.org"]);
    said(folder, &["account", "add", USER, "--password-file", "password"]);
}

/// Delivers a message to a server, which may end meanwhile; returns the reply for its recipient.
fn deliver(lmtp: SocketAddr, message: &str) -> io::Result<String> {
    deliver_by_lmtp(lmtp, USER, message)
}

impl Mail {
    /// The reply to a recipient.
    pub(crate) fn recipient(&self, recipient: &str) -> String {
        let mut stream = TcpStream::connect(self.lmtp).unwrap();
        write!(
            stream,
            "LHLO client.example\r\nMAIL FROM:<bob@example.net>\r\nRCPT TO:<{recipient}>\r\nQUIT\r\n"
        )
        .unwrap();
        let replies: Vec<String> = BufReader::new(stream).lines().map(Result::unwrap).collect();
        replies[replies.len() - 2].clone()
    }

    /// Delivers a message; returns the reply for its recipient.
    pub(crate) fn deliver(&self, message: &str) -> String {
        deliver(self.lmtp, message).unwrap()
    }

    fn request(&self, method: &str, path: &str, body: &str) -> Value {
        let credentials = base64_simd::STANDARD.encode_to_string(format!("{USER}:{PASSWORD}"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nauthorization: Basic {credentials}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.jmap,
            body.len()
        );
        let answer = exchange(self.jmap, &[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// The arguments of the last response to these calls.
    fn calls(&self, calls: &[(&str, Value)]) -> Value {
        let session = self.request("GET", "/.well-known/jmap", "");
        let account = &session["primaryAccounts"]["urn:ietf:params:jmap:mail"];
        let calls: Vec<Value> = calls
            .iter()
            .enumerate()
            .map(|(number, (name, arguments))| {
                let mut arguments = arguments.clone();
                arguments["accountId"] = account.clone();
                json!([name, arguments, number.to_string()])
            })
            .collect();
        let using = ["urn:ietf:params:jmap:core", "urn:ietf:params:jmap:mail"];
        let api = session["apiUrl"].as_str().unwrap();
        let path = &api[api.find(&self.jmap.to_string()).unwrap() + self.jmap.to_string().len()..];
        let body = json!({"using": using, "methodCalls": calls}).to_string();
        let response = self.request("POST", path, &body);
        response["methodResponses"].as_array().unwrap().last().unwrap()[1].clone()
    }

    /// The subjects of the emails that match, newest first.
    pub(crate) fn subjects(&self, filter: Value) -> Vec<String> {
        let ids = json!({"resultOf": "0", "name": "Email/query", "path": "/ids"});
        let answer = self.calls(&[
            ("Email/query", json!({"filter": filter})),
            ("Email/get", json!({"#ids": ids, "properties": ["subject"]})),
        ]);
        let list = answer["list"].as_array().unwrap_or_else(|| panic!("{answer}"));
        list.iter().map(|email| email["subject"].as_str().unwrap().to_owned()).collect()
    }
}

pub(crate) fn message(subject: &str, text: &str) -> String {
    format!(
        "From: Bob <bob@example.net>\nTo: {USER}\nMessage-ID: <{subject}@example.net>\nSubject: {subject}\n\n{text}\n"
    )
}

#[test]
fn what_lmtp_brings_is_read_and_searched_by_jmap_also_after_a_kill() {
    let (_guard, folder) = folder();
    make_account(&folder);
    let mail = start(&folder);
    let reply = mail.deliver(&message("Lunch", "Shall we eat pancakes?"));
    assert!(reply.starts_with("250 "), "{reply}");
    let again = mail.deliver(&message("Lunch", "Shall we eat pancakes?"));
    assert!(again.starts_with("250 "), "{again}");
    assert_eq!(mail.subjects(json!({})), ["Lunch"], "a repeated delivery is stored once");
    assert_eq!(mail.subjects(json!({"text": "PANCAKES"})), ["Lunch"], "what was just stored is found");
    assert_eq!(mail.subjects(json!({"text": "waffles"})), [""; 0]);
    mail.server.kill();

    let mail = start(&folder);
    assert_eq!(mail.subjects(json!({"body": "pancakes"})), ["Lunch"]);
    let inbox = mail.calls(&[("Mailbox/get", json!({"ids": null}))]);
    let inbox = inbox["list"].as_array().unwrap().iter().find(|mailbox| mailbox["role"] == "inbox").unwrap();
    assert_eq!((&inbox["totalEmails"], &inbox["unreadThreads"]), (&json!(1), &json!(1)));
    assert_eq!(mail.server.stop().code(), Some(0));
}

/// Removes what a power cut may lose: the packs of blobs that were not synced.
fn lose_packs(folder: &Path) {
    for pack in std::fs::read_dir(folder.join("data/blobs/packs")).unwrap() {
        std::fs::remove_file(pack.unwrap().path()).unwrap();
    }
}

/// One sync makes a record and its bytes durable: they are in the commit log of the records until the blobs are synced.
#[test]
fn a_message_that_came_alone_is_there_after_a_power_cut_that_took_its_blob() {
    // A command that has only the records open loses nothing, and one that has both moves the blob to where it belongs.
    for commands in [&[][..], &["account list", "check"], &["mail check", "blobs sweep"]] {
        let (_guard, folder) = folder();
        make_account(&folder);
        let mail = start(&folder);
        assert!(mail.deliver(&message("Lunch", "Pancakes?")).starts_with("250 "));
        mail.server.kill();
        lose_packs(&folder);
        for command in commands {
            said(&folder, &command.split(' ').collect::<Vec<_>>());
        }
        let mail = start(&folder);
        let ids = json!({"resultOf": "0", "name": "Email/query", "path": "/ids"});
        let get = json!({"#ids": ids, "properties": ["bodyValues"], "fetchTextBodyValues": true});
        let answer = mail.calls(&[("Email/query", json!({})), ("Email/get", get)]);
        let texts = answer["list"][0]["bodyValues"].as_object().unwrap_or_else(|| panic!("{answer}"));
        let texts: Vec<&Value> = texts.values().map(|text| &text["value"]).collect();
        assert_eq!(texts, [&json!("Pancakes?\n\n")], "{commands:?}");
        assert_eq!(mail.server.stop().code(), Some(0));
    }
}

/// Several peers deliver until the server is killed. They deliver everything again, acknowledged or not.
#[test]
fn sm10_mail_survives_kills_and_is_stored_once_when_it_is_repeated() {
    const PEERS: usize = 3;
    let (_guard, folder) = folder();
    make_account(&folder);
    let numbered = |number: usize| message(&format!("mail{number}"), "text");
    let sent = AtomicUsize::new(0);
    for round in 0..4 {
        let mail = start(&folder);
        for number in 0..sent.load(Ordering::Relaxed) {
            let reply = mail.deliver(&numbered(number));
            assert!(reply.starts_with("250 "), "round {round}, mail {number}: {reply}");
        }
        let inbox = mail.calls(&[("Mailbox/get", json!({"ids": null}))]);
        let inbox = inbox["list"].as_array().unwrap().iter().find(|mailbox| mailbox["role"] == "inbox");
        assert_eq!(inbox.unwrap()["totalEmails"], json!(sent.load(Ordering::Relaxed)), "round {round}");
        let lmtp = mail.lmtp;
        let (stored, replies) = mpsc::sync_channel(1_024);
        thread::scope(|scope| {
            for _ in 0..PEERS {
                let (stored, sent) = (stored.clone(), &sent);
                scope.spawn(move || {
                    loop {
                        let number = sent.fetch_add(1, Ordering::Relaxed);
                        let Ok(reply) = deliver(lmtp, &numbered(number)) else { return };
                        assert!(reply.starts_with("250 "), "{reply}");
                        let _ = stored.try_send(()); // nobody counts any more when it is full
                    }
                });
            }
            for _ in 0..7 + 3 * round {
                replies.recv().unwrap();
            }
            mail.server.kill();
        });
    }
    assert!(said(&folder, &["mail", "check"]).contains("all sound"), "no counter is wrong");
}

#[test]
fn addresses_of_mail_are_printed() {
    let (_guard, folder) = folder();
    let mut command = restante(&folder);
    command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
    command.args(["--lmtp-listen", "127.0.0.1:0", "--lmtp-listen", "unix:lmtp.socket"]);
    command.args(["--smtp-listen", "127.0.0.1:0"]);
    let mut server = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mail =
        lines.filter_map(|line| Some(line.unwrap().strip_prefix("listening for mail by ")?.to_owned()));
    let mail: Vec<String> = mail.take(3).collect();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(
        mail[0].starts_with("SMTP on 127.0.0.1:") && mail[1].starts_with("LMTP on 127.0.0.1:"),
        "{mail:?}"
    );
    assert_eq!(mail[2], "LMTP on unix:lmtp.socket");
}

#[test]
fn a_search_index_that_was_removed_is_made_again() {
    let (_guard, folder) = folder();
    make_account(&folder);
    let mail = start(&folder);
    mail.deliver(&message("Tea", "with milk"));
    mail.deliver(&message("Coffee", "without milk"));
    mail.server.stop();
    std::fs::remove_dir_all(folder.join("data/search")).unwrap();
    // As in a restored folder.
    assert_eq!(
        said(&folder, &["search", "rebuild"]),
        "a server makes the search index again as soon as one runs\n"
    );
    for elsewhere in [["--data", "elsewhere"], ["--search", "tantivy:elsewhere"]] {
        let refused = say(&folder, &[&["search", "rebuild"][..], &elsewhere].concat());
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains("name the server's folder with --data"), "{}", refused.err);
    }
    let mail = start(&folder);
    let mut found = mail.subjects(json!({"text": "milk"}));
    found.sort();
    assert_eq!(found, ["Coffee", "Tea"]);
    assert_eq!(mail.subjects(json!({"subject": "tea"})), ["Tea"]);
}

fn account_of(folder: &Path) -> AccountId {
    let accounts: Value =
        serde_json::from_str(&said(folder, &["account", "list", "--format", "json"])).unwrap();
    AccountId(u32::try_from(accounts[0]["account"].as_u64().unwrap()).unwrap())
}

/// Destroys all emails of an account of a stopped server, from the first on, and counts one too many in its inbox.
fn destroy_and_damage(folder: &Path, account: AccountId) {
    with_stores(folder, async |records, blobs| {
        let (clock, limits, metrics) = (Arc::new(SystemClock), MailConfig::default(), MailMetrics::default());
        let mail =
            restante_mail::Mail::new(records.records.clone(), blobs.blobs.clone(), clock, limits, metrics);
        let mut emails =
            records.records.query(account, &Query::new(email::KIND, email::BY_THREAD)).await.unwrap().ids;
        emails.sort();
        for email in emails {
            mail.destroy_email(account, email, None).await.unwrap();
        }
        let (mailboxes, _) = mail.mailboxes(account).await.unwrap();
        let id = mailboxes.iter().find(|mailbox| mailbox.role == Some(Role::Inbox)).unwrap().id;
        let get = Get::small(mailbox::KIND, vec![id]);
        let mut properties = records.records.get(account, &get).await.unwrap().remove(0).unwrap().properties;
        properties.remove(mailbox::TOTAL, &Property::Number(0));
        properties.add(mailbox::TOTAL, Property::Number(1));
        let change = Change::Update { kind: mailbox::KIND, id, body: None, properties: Some(properties) };
        records.records.commit(account, Commit::of([change])).await.unwrap();
    });
}

/// Commits an email of a missing blob, bypassing all that would count it.
fn add_email_without_blob(folder: &Path, account: AccountId) {
    with_stores(folder, async |records, _| {
        let body = Body { bytes: Bytes::from_static(b"no row"), blobs: vec![BlobId([7; 32])] };
        let create = Change::Create { kind: email::KIND, body, properties: Properties::default() };
        records.records.commit(account, Commit::of([create])).await.unwrap();
    });
}

#[test]
fn stores_are_compared_with_each_other() {
    let (_guard, folder) = folder();
    make_account(&folder);
    let account = account_of(&folder);
    let mail = start(&folder);
    for subject in ["Tea", "Coffee", "Milk"] {
        mail.deliver(&message(subject, "hot"));
    }
    assert_eq!(mail.subjects(json!({"text": "hot"})).len(), 3);
    assert_eq!(say(&folder, &["check"]).code, 3, "a server has the stores");
    assert_eq!(mail.server.stop().code(), Some(0));
    let sound = said(&folder, &["check", "--all"]);
    assert!(sound.ends_with(" records and the mail of 1 accounts: all sound\n"), "{sound}");

    destroy_and_damage(&folder, account);
    add_email_without_blob(&folder, account);
    let blob = format!("its blob {} is missing\n", "07".repeat(32));
    let checked = say(&folder, &["check"]);
    assert_eq!(checked.code, 1, "{}", checked.err);
    let [missing, wrong @ .., verdict] = &checked.out.lines().collect::<Vec<_>>()[..] else {
        panic!("{}", checked.out)
    };
    assert!(missing.starts_with(&format!("account {}, email ", account.0)), "{missing}");
    assert!(missing.ends_with(blob.trim_end()), "{missing}");
    assert!(wrong.iter().any(|line| line.starts_with(&format!("{USER}, mailbox "))), "{wrong:?}");
    assert!(verdict.ends_with(" damaged places"), "{verdict}");
    // What can be recounted is recounted, and the rest is still reported.
    let rebuilt = say(&folder, &["check", "--rebuild", "--format", "json"]);
    assert_eq!(rebuilt.code, 1, "{}", rebuilt.err);
    let rebuilt: Value = serde_json::from_str(&rebuilt.out).unwrap();
    assert!(rebuilt["corrected"].as_u64().unwrap() > 0, "{rebuilt}");
    let checked = say(&folder, &["check", "--all"]);
    assert!(checked.out.contains(&blob) && !checked.out.contains("mailbox"), "{}", checked.out);
}

/// The ids and subjects of what can be restored.
fn vault(folder: &Path, flags: &[&str]) -> Vec<(String, String)> {
    let args = [&["mail", "vault", USER, "--format", "json"], flags].concat();
    let list: Value = serde_json::from_str(&said(folder, &args)).unwrap();
    let entry = |entry: &Value| (entry["id"].to_string(), entry["subject"].as_str().unwrap().to_owned());
    list.as_array().unwrap().iter().map(entry).collect()
}

#[test]
fn destroyed_emails_are_restored_and_counters_corrected_on_a_stopped_server_and_by_a_running_one() {
    let (_guard, folder) = folder();
    make_account(&folder);
    let account = account_of(&folder);
    assert_eq!(said(&folder, &["mail", "check"]), "checked the mail of 1 accounts: all sound\n");
    let mail = start(&folder);
    for subject in ["Tea", "Coffee", "Milk"] {
        mail.deliver(&message(subject, "hot"));
    }
    assert_eq!(mail.server.stop().code(), Some(0));
    assert_eq!(said(&folder, &["mail", "vault", USER]), "");
    destroy_and_damage(&folder, account);

    // With a stopped server.
    let entries = vault(&folder, &[]);
    assert_eq!(entries.iter().map(|(_, subject)| &**subject).collect::<Vec<_>>(), ["Milk", "Coffee", "Tea"]);
    let text = said(&folder, &["mail", "vault", USER, "--limit", "1"]);
    let [_, line] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(line.starts_with(&entries[0].0) && line.ends_with("Bob                       Milk"), "{text}");
    let partly = say(&folder, &["mail", "restore", USER, &entries[0].0, "999"]);
    assert_eq!(partly.code, 1, "{}", partly.err);
    assert!(partly.out.starts_with(&format!("restored {} as email ", entries[0].0)), "{}", partly.out);
    assert_eq!(partly.err, "restante: 999 is not restored: the vault has no such email\n");
    let wrong = say(&folder, &["mail", "check"]);
    assert_eq!(wrong.code, 1, "{}", wrong.err);
    assert!(wrong.out.starts_with(&format!("{USER}, mailbox ")), "{}", wrong.out);
    assert!(wrong.out.ends_with("\nchecked the mail of 1 accounts: 1 damaged place\n"), "{}", wrong.out);
    assert_eq!(say(&folder, &["mail", "vault", "nobody@example.org"]).code, 1);

    // With a running server.
    let operators = free_address();
    let mail = start_with(&folder, Some(operators));
    let url = format!("http://{operators}");
    let by_server = |args: &[&str]| say(&folder, &[args, &["--rest", &url]].concat());
    assert_eq!(by_server(&["mail", "check", USER]).out, wrong.out);
    let corrected = by_server(&["mail", "check", "--rebuild"]);
    assert_eq!(corrected.code, 0, "{}", corrected.err);
    assert!(corrected.out.ends_with("accounts: 1 damaged place, 1 corrected\n"), "{}", corrected.out);
    assert_eq!(by_server(&["mail", "check"]).out, "checked the mail of 1 accounts: all sound\n");
    assert_eq!(vault(&folder, &["--rest", &url]), entries[1..]);
    let restored = by_server(&["mail", "restore", USER, &entries[1].0, &entries[2].0, "--format", "json"]);
    let outcomes: Value = serde_json::from_str(&restored.out).unwrap();
    assert!(outcomes.as_array().unwrap().iter().all(|outcome| outcome["email"].is_u64()), "{outcomes}");
    assert_eq!(vault(&folder, &["--rest", &url]), []);
    let mut subjects = mail.subjects(json!({}));
    subjects.sort();
    assert_eq!(subjects, ["Coffee", "Milk", "Tea"]);
    let refused = by_server(&["mail", "vault", "nobody@example.org"]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(refused.err.contains("nobody@example.org"), "{}", refused.err);
    assert_eq!(mail.server.metric("restante_mail_purge_turns_total"), Some(0.0));
    assert_eq!(mail.server.stop().code(), Some(0));

    let log: Value = serde_json::from_str(&said(&folder, &["log", "--format", "json"])).unwrap();
    let by = |end: &str, what: &str| {
        let whats =
            log.as_array().unwrap().iter().filter(|line| line["who"].as_str().unwrap().ends_with(end));
        whats.filter(|line| line["what"] == what).count()
    };
    assert_eq!(by(" on the command line", "restored 1 destroyed emails of alice@example.org"), 1, "{log}");
    assert_eq!(by(" over HTTP", "restored 2 destroyed emails of alice@example.org"), 1, "{log}");
    assert_eq!(by(" over HTTP", "corrected 1 counters of the mail of alice@example.org"), 1, "{log}");
}

/// Records of accounts of users, and blobs that are referred to.
fn left(folder: &Path) -> (usize, usize) {
    let mut counts = (0, 0);
    with_stores(folder, async |records, _| {
        let dumped = records.upkeep.dump(None, 4_096).await.unwrap();
        counts.0 =
            dumped.iter().filter(|dumped| dumped.key.account.0 >= restante_directory::FIRST_ACCOUNT).count();
        counts.1 = records.upkeep.referenced(None).await.unwrap().blobs.len();
    });
    counts
}

#[test]
fn a_running_server_erases_mail_with_its_account_and_goes_on_after_a_crash() {
    let (_guard, folder) = folder();
    make_account(&folder);
    let operators = free_address();
    let mail = start_with(&folder, Some(operators));
    for subject in ["Tea", "Coffee", "Milk"] {
        mail.deliver(&message(subject, "hot"));
    }
    assert_eq!(mail.subjects(json!({"text": "coffee"})), ["Coffee"]);
    let url = format!("http://{operators}");
    let traced = || say(&folder, &["mail", "trace", USER, "--rest", &url]).out;
    assert!(traced().contains("delivered"), "{}", traced());
    said(&folder, &["account", "remove", USER, "--rest", &url]);
    let refused = mail.recipient(USER);
    assert!(refused.starts_with("550 5.1.1 "), "{refused}");
    let erased = "restante_mail_erased_accounts_total";
    wait_until("the mail is erased", || mail.server.metric(erased) == Some(1.0));
    assert!(said(&folder, &["log", "--rest", &url]).contains("the server  "));
    assert!(!traced().contains("delivered"), "{}", traced());
    // The address belongs to another account now, which has none of that.
    said(&folder, &["account", "add", USER, "--password-file", "password", "--rest", &url]);
    assert_eq!(mail.subjects(json!({})), [""; 0]);
    assert_eq!(mail.subjects(json!({"text": "coffee"})), [""; 0]);
    mail.deliver(&message("Tea", "hot"));
    assert_eq!(mail.subjects(json!({"text": "hot"})), ["Tea"], "it was not delivered to this account before");
    mail.server.kill();

    // The state after a server was killed right after the removal.
    let (records, blobs) = left(&folder);
    assert!(records > 1 && blobs == 1, "{records} records, {blobs} blobs");
    with_stores(&folder, async |opened, _| {
        let (settings, clock, metrics) = (Default::default(), Arc::new(SystemClock), Default::default());
        let (directory, _) = Directory::open(&opened, settings, clock, metrics).await.unwrap();
        let remove = Operation::RemoveAccount { address: USER.parse().unwrap() };
        directory.operate(&Actor("a test".to_owned()), remove).await.unwrap();
    });
    assert_eq!(left(&folder), (records, blobs));
    let mail = start(&folder);
    wait_until("the mail is erased", || mail.server.metric(erased) == Some(1.0));
    assert_eq!(mail.server.stop().code(), Some(0));
    assert_eq!(left(&folder), (0, 0));
}

#[test]
fn without_a_server_mail_is_erased_by_the_command_and_the_index_follows() {
    let (_guard, folder) = folder();
    make_account(&folder);
    let mail = start(&folder);
    mail.deliver(&message("Tea", "with milk"));
    assert_eq!(mail.subjects(json!({"text": "milk"})), ["Tea"]);
    let indexed_emails = "restante_indexer_emails_total{outcome=\"indexed\"}";
    wait_until("the email is indexed", || mail.server.metric(indexed_emails) == Some(1.0));
    assert_eq!(mail.server.stop().code(), Some(0));
    assert_eq!(indexed(&folder), 1);
    assert_eq!(said(&folder, &["account", "remove", USER]), "");
    assert_eq!(left(&folder), (0, 0));
    let log = said(&folder, &["log"]);
    assert!(log.contains(&format!("erased the mail of {USER} with number ")), "{log}");

    said(&folder, &["account", "add", USER, "--password-file", "password"]);
    let mail = start(&folder);
    mail.deliver(&message("Coffee", "without milk"));
    // The index has handled the erased account by then: its last revision was earlier.
    wait_until("the new email is indexed", || {
        mail.server.metric("restante_search_documents_total") > Some(0.0)
    });
    assert_eq!(mail.subjects(json!({"text": "milk"})), ["Coffee"]);
    assert_eq!(mail.server.stop().code(), Some(0));
    assert_eq!(indexed(&folder), 1);
}

/// The emails in the search index of a stopped server.
fn indexed(folder: &Path) -> u64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = restante_search::EngineUrl::Tantivy(folder.join("data/search"));
        let search = restante_search::open(restante_search::Config::new(url)).await.unwrap();
        let documents = search.upkeep.stats().await.unwrap().documents;
        search.upkeep.close().await.unwrap();
        documents
    })
}
