//! Data folders of earlier versions, which every later one must open.
//!
//! `tests/fixtures/data-N.tar.gz` has a data folder with its `restante.toml`, as a killed server left them, an SQLite archive and
//! a backup. Each version with new settings or formats adds a folder before it is released:
//!
//! ```text
//! make data-folder
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use bytes::Bytes;
use restante_archive::Message;
use restante_core::{MessageHash, Timestamp};
use restante_mail::{email, mailbox};
use restante_records::{AccountId, Body, Change, Commit, Properties, Schema};
use serde_json::Value;

use crate::support::{
    CONTENT_TOPIC, PUBSUB_TOPIC, Server, folder, free_address, restante, said, say, wait_until,
};

/// The newest folder: what `make_data_folder` writes.
const NEWEST: u32 = 1;

/// Messages of six days: more than a log archive has open segments.
const DAYS: u32 = 6;
const MESSAGES_PER_DAY: u32 = 10;
const OLD_MESSAGES: u32 = DAYS * MESSAGES_PER_DAY;
const DAY_NANOS: i64 = 86_400_000_000_000;

/// Messages that a server accepted before it was killed, and the one that waits in the spool for a database.
const PUBLISHED: [&str; 2] = ["first", "second"];
const SPOOLED: &str = "spooled";

/// The number of `anna@example.org`, the owner of these records.
const ANNA: AccountId = AccountId(1_025);
const EMAILS: u64 = 24;
/// Each has a blob of its own; every eighth is too long for a pack.
const LONG_BLOB_BYTES: usize = 300_000;

fn fixtures() -> PathBuf {
    PathBuf::from("tests/fixtures")
}

fn tar(args: &[&str], folder: &Path) {
    let status = Command::new("tar").args(args).arg("--directory").arg(folder).status().unwrap();
    assert!(status.success(), "tar {args:?}: {status}");
}

fn json_of(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&said(folder, &[args, &["--format", "json"]].concat())).unwrap()
}

/// The texts of one field in the entries of a list.
fn texts<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|entry| entry[field].as_str().unwrap()).collect()
}

fn payload(number: u32) -> String {
    format!("message {number}")
}

/// A message of `14/WAKU2-MESSAGE`: the payload is field 1, the content topic is field 2.
fn old_message(number: u32) -> Message {
    let payload = payload(number);
    let mut body = vec![0x0a, payload.len() as u8];
    body.extend(payload.as_bytes());
    body.extend([0x12, CONTENT_TOPIC.len() as u8]);
    body.extend(CONTENT_TOPIC.as_bytes());
    let day = i64::from(number / MESSAGES_PER_DAY);
    Message {
        message_hash: MessageHash([number as u8; 32]),
        channel: PUBSUB_TOPIC.into(),
        topic: CONTENT_TOPIC.into(),
        timestamp: Timestamp(1_700_000_000_000_000_000 + day * DAY_NANOS + i64::from(number)),
        body: body.into(),
    }
}

async fn fill_archive(folder: &Path) {
    let url = format!("log:{}", folder.join("data/archive").display()).parse().unwrap();
    let opened = restante_archive::open(restante_archive::Config::new(url)).await.unwrap();
    let messages: Vec<Message> = (0..OLD_MESSAGES).map(old_message).collect();
    for day in messages.chunks(MESSAGES_PER_DAY as usize) {
        opened.archive.append(day.to_vec()).await.unwrap();
    }
    opened.upkeep.close().await.unwrap();
}

fn blob(number: u64) -> Bytes {
    let bytes = if number.is_multiple_of(8) { LONG_BLOB_BYTES } else { 500 };
    vec![number as u8; bytes].into()
}

/// A mailbox, and emails whose properties are in all indexes.
async fn fill_records_and_blobs(folder: &Path) {
    let url = restante_records::EngineUrl::Lmdb(folder.join("data/records"));
    let kinds = [restante_mail::kinds(), restante_directory::kinds()].concat();
    let schema = Schema::new(kinds).unwrap();
    let records = restante_records::open(restante_records::Config::new(url, schema)).await.unwrap();
    let url = restante_blobs::EngineUrl::Files(folder.join("data/blobs"));
    let blobs = restante_blobs::open(restante_blobs::Config::new(url)).await.unwrap();
    let commit = async |change| records.records.commit(ANNA, Commit::of([change])).await.unwrap();
    let properties = Properties::default().with(mailbox::NAME, "Inbox").with(mailbox::UID_NEXT, EMAILS + 1);
    commit(Change::Create { kind: mailbox::KIND, body: Body::default(), properties }).await;
    for number in 1..=EMAILS {
        let id = blobs.blobs.put(&mut blob(number)).await.unwrap().id;
        let properties = Properties::default()
            .with(email::MAILBOX, 1)
            .with(email::RECEIVED, 1_700_000_000 + number)
            .with(email::THREAD_KEY, number % 5)
            .with(email::KEYWORD, 1)
            .with(email::PLACE, (1 << 32) + number);
        let body = Body { bytes: format!("email {number}").into(), blobs: vec![id] };
        commit(Change::Create { kind: email::KIND, body, properties }).await;
    }
    records.upkeep.close().await.unwrap();
    blobs.upkeep.close().await.unwrap();
}

/// The settings of the repository, with those that `restante setup` sets.
fn settings() -> String {
    let root = Path::new("../..");
    let mut settings = fs::read_to_string(root.join("restante.toml")).unwrap();
    for (table, default, set) in [
        ("[tls]", "certificate_files = []", "certificate_files = [\"data/tls/example.org.crt\"]"),
        ("[tls]", "certificate_key_files = []", "certificate_key_files = [\"data/tls/example.org.key\"]"),
        ("[operate]", "token_file = \"\"", "token_file = \"data/operator.token\""),
    ] {
        let begin = settings.find(table).unwrap();
        let at = begin + settings[begin..].find(default).unwrap();
        settings.replace_range(at..at + default.len(), set);
    }
    settings
}

#[test]
fn data_folders_of_earlier_versions_are_opened() {
    for version in 1..=NEWEST {
        let (_guard, folder) = folder();
        let packed = fixtures().join(format!("data-{version}.tar.gz"));
        tar(&["-xzf", packed.to_str().unwrap()], &folder);
        said(&folder, &["config", "check"]);
        check_directory(&folder);
        check_mail(&folder, "data");
        check_archives(&folder);
        check_backup(&folder);
        check_server(&folder);
        said(&folder, &["backup", "another"]);
        said(&folder, &["backup", "check", "another"]);
    }
}

fn check_directory(folder: &Path) {
    let accounts = json_of(folder, &["account", "list"]);
    assert_eq!(texts(&accounts, "address"), ["anna@example.org", "bert@example.org", "carl@example.org"]);
    assert_eq!(accounts[0]["account"], ANNA.0);
    assert_eq!(texts(&accounts, "role"), ["operator", "user", "user"]);
    assert_eq!(accounts[1]["quotaBytes"], 5_000_000_000_u64);
    let aliases = json_of(folder, &["alias", "list"]);
    assert_eq!(
        texts(&aliases, "address"),
        ["abuse@example.org", "postmaster@example.org", "team@example.org"]
    );
    assert_eq!(aliases[2]["targets"], serde_json::json!(["anna@example.org", "bert@example.org"]));
    assert_eq!(texts(&json_of(folder, &["token", "list", "anna@example.org"]), "name"), ["script"]);
    assert_eq!(texts(&json_of(folder, &["domain", "list"]), "domain"), ["example.org"]);
    let log = said(folder, &["log"]);
    assert!(log.contains("added domain example.org"), "{log}");
}

fn check_mail(folder: &Path, data: &str) {
    said(folder, &["records", "check", "--data", data]);
    said(folder, &["blobs", "check", "--data", data]);
    let dump = said(folder, &["records", "dump", "--data", data]);
    let records = dump.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let emails: Vec<Value> = records.filter(|record| record["kind"] == "email").collect();
    assert_eq!(emails.len() as u64, EMAILS);
    for (number, email) in (1..).zip(&emails) {
        assert_eq!(email["account"], ANNA.0);
        assert_eq!(email["body"], format!("email {number}"));
        assert_eq!(email["properties"]["received"], serde_json::json!([1_700_000_000 + number]));
        assert_eq!(email["blobs"].as_array().unwrap().len(), 1);
    }
}

fn check_archives(folder: &Path) {
    let sqlite = &["--archive", "sqlite:archive.db"][..];
    for (archive, messages) in [(&[][..], OLD_MESSAGES + 2), (sqlite, OLD_MESSAGES)] {
        said(folder, &[&["archive", "check"], archive].concat());
        let stats = json_of(folder, &[&["archive", "stats"], archive].concat());
        assert_eq!(stats["messages"], messages, "{archive:?}");
    }
}

fn check_backup(folder: &Path) {
    said(folder, &["backup", "check", "backup"]);
    said(folder, &["restore", "backup", "--data", "restored"]);
    check_mail(folder, "restored");
    said(folder, &["archive", "check", "--data", "restored"]);
    let stats = json_of(folder, &["archive", "stats", "--data", "restored"]);
    assert_eq!(stats["messages"], OLD_MESSAGES + 2);
}

/// A server stores what waited in the spool, and accepts a message.
fn check_server(folder: &Path) {
    let server = Server::start(folder);
    let mut expected: Vec<String> = (0..OLD_MESSAGES).map(payload).collect();
    expected.extend(PUBLISHED.iter().map(|payload| (*payload).to_owned()));
    expected.push(SPOOLED.to_owned());
    wait_until("the spool is empty", || server.payloads(100).len() == expected.len());
    server.publish("new");
    expected.push("new".to_owned());
    assert_eq!(server.payloads(100), expected);
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
#[ignore = "writes into the source tree"]
fn make_data_folder() {
    let (_guard, folder) = folder();
    said(&folder, &["setup", "example.org", "--user", "anna"]);
    fs::write(folder.join("restante.toml"), settings()).unwrap();
    fs::write(folder.join("password"), "not a secret\n").unwrap();
    said(&folder, &["account", "add", "bert@example.org", "--password-file", "password", "--quota", "5GB"]);
    said(&folder, &["alias", "add", "team@example.org", "anna@example.org", "bert@example.org"]);
    said(&folder, &["token", "create", "anna@example.org", "--name", "script", "--scope", "mail"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(fill_archive(&folder));
    runtime.block_on(fill_records_and_blobs(&folder));
    said(&folder, &["archive", "copy", "log:data/archive", "sqlite:archive.db"]);

    let server = Server::start(&folder);
    for payload in PUBLISHED {
        server.publish(payload);
    }
    let operators = free_address();
    said(&folder, &["backup", "backup", "--rest", &server.url(), "--token-file", "data/operator.token"]);
    server.kill();

    // The database does not answer: the message stays in the spool, and the account in the commit log.
    let mut command = restante(&folder);
    command.args([
        "serve",
        "--rest-port",
        "0",
        "--tcp-port",
        "0",
        "--archive",
        "postgres://nobody@127.0.0.1:1/none",
    ]);
    command.env("RESTANTE_OPERATE__LISTEN", operators.to_string());
    let server = Server::spawn(command);
    server.publish(SPOOLED);
    let add = ["account", "add", "carl@example.org", "--password-file", "password"];
    let url = format!("http://{operators}");
    let added = say(&folder, &[&add[..], &["--rest", &url, "--token-file", "data/operator.token"]].concat());
    assert_eq!(added.code, 0, "{}", added.err);
    server.kill();

    let _ = fs::remove_file(folder.join("archive.db.reserve")); // zeros that only take space
    let packed = fixtures().join(format!("data-{NEWEST}.tar.gz"));
    fs::create_dir_all(fixtures()).unwrap();
    let owner = ["--owner=0", "--group=0", "--numeric-owner", "--sort=name", "--sparse"];
    let files = ["--exclude=password", "--exclude=*.state", "-czf", packed.to_str().unwrap()];
    let mut args = [&owner[..], &files[..]].concat();
    args.extend(["--directory", folder.to_str().unwrap(), "."]);
    let status = Command::new("tar").args(&args).status().unwrap();
    assert!(status.success(), "tar {args:?}: {status}");
}
