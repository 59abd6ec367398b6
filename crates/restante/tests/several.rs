//! Several servers on one PostgreSQL: one account with writers on both, push from one to the other, and what becomes of the work of a
//! server that is killed. Without a PostgreSQL these tests are reported as ignored; see docs/development.md.
//!
//! Each server has blobs of its own, so what one is to send for the other is uploaded to both.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

#[path = "several/client.rs"]
mod client;
#[path = "several/ledger.rs"]
mod ledger;
#[path = "e2e/sending/sink.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod sink;
#[path = "e2e/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::{
    env, fs,
    hash::{BuildHasher, RandomState},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use client::{Client, Events};
use ledger::{Writer, check_account};
use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};
use sink::{Sink, Step};
use support::{Server, folder, restante, said, wait_until};
use tokio_postgres::NoTls;

pub(crate) const USER: &str = "alice@example.org";
pub(crate) const PASSWORD: &str = "correct horse";
/// Names the PostgreSQL server, as `dev/services/with postgres` sets it.
const POSTGRES_URL: &str = "RESTANTE_POSTGRES_URL";
/// Engines, divided by commas, whose tests must not be ignored.
const REQUIRE: &str = "RESTANTE_TEST_REQUIRE";
/// How long writers write. `RESTANTE_SEVERAL_SECONDS=600` for a long run.
const SECONDS: u64 = 6;

type Test = (&'static str, fn(&str));

fn main() {
    let tests: [Test; 4] = [
        ("writers_on_two_servers_keep_one_account_right", writers_on_two_servers_keep_one_account_right),
        ("writers_go_on_when_the_other_server_is_killed", writers_go_on_when_the_other_server_is_killed),
        ("push_reaches_clients_on_the_other_server", push_reaches_clients_on_the_other_server),
        ("the_queue_of_a_killed_server_is_taken_over", the_queue_of_a_killed_server_is_taken_over),
    ];
    let url = env::var(POSTGRES_URL).ok();
    let is_required =
        env::var(REQUIRE).is_ok_and(|names| names.split(',').any(|name| name.trim() == "postgres"));
    let mut trials = Vec::new();
    for (name, test) in tests {
        let url = url.clone();
        let is_ignored = url.is_none() && !is_required;
        let run = move || {
            test(&url.ok_or(format!("{POSTGRES_URL} is not set"))?);
            Ok(())
        };
        trials.push(Trial::test(name, run).with_kind("postgres").with_ignored_flag(is_ignored));
    }
    let mut arguments = Arguments::from_args();
    // Two servers are enough for two cores.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials).exit();
}

fn seconds() -> Duration {
    let seconds = env::var("RESTANTE_SEVERAL_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A schema that is dropped at the end.
struct Database {
    server: String,
    schema: String,
}

impl Database {
    fn new(url: &str) -> Self {
        let schema = format!("t_{:016x}", RandomState::new().hash_one(0));
        Self { server: url.to_owned(), schema }
    }

    fn url(&self) -> String {
        let joint = if self.server.contains('?') { '&' } else { '?' };
        format!("{}{joint}schema={}", self.server, self.schema)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dropped = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&self.server, NoTls).await?;
            tokio::spawn(connection);
            client.batch_execute(&format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema)).await
        });
        if let Err(error) = dropped {
            eprintln!("the schema {} stays behind: {error}", self.schema);
        }
    }
}

/// A folder of a server, and its ports, which stay the same when it starts again.
struct Site {
    name: &'static str,
    folder: PathBuf,
    jmap: SocketAddr,
    operators: SocketAddr,
    _guard: tempfile::TempDir,
}

impl Site {
    fn new(database: &Database, name: &'static str) -> Self {
        let (guard, folder) = folder();
        let settings = format!("[records]\nurl = \"{}\"\n", database.url());
        fs::write(folder.join("restante.toml"), settings).unwrap();
        Self { name, folder, jmap: free_address(), operators: free_address(), _guard: guard }
    }

    fn start(&self, smarthost: Option<SocketAddr>) -> Server {
        let mut command = restante(&self.folder);
        command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
        command.args(["--jmap-listen", &self.jmap.to_string()]);
        if let Some(smarthost) = smarthost {
            command.args(["--smarthost", &smarthost.to_string()]);
        }
        command.env("RESTANTE_OPERATE__LISTEN", self.operators.to_string());
        command.env("RESTANTE_SMTP__HOSTNAME", format!("{}.example", self.name));
        // A claim of a killed server is taken back soon, and a failure keeps nobody waiting.
        command.env("RESTANTE_DELIVERY__LEASE_SECONDS", "3");
        command.env("RESTANTE_DELIVERY__DOMAIN_DOWN_SECONDS", "0");
        command.env("RESTANTE_DELIVERY__RETRY_SECONDS", "0,1");
        Server::spawn(command)
    }

    fn client(&self) -> Client {
        Client::new(self.jmap).unwrap()
    }
}

fn two_sites(database: &Database) -> [Site; 2] {
    let sites = [Site::new(database, "one"), Site::new(database, "two")];
    let folder = &sites[0].folder;
    fs::write(folder.join("password"), PASSWORD).unwrap();
    said(folder, &["domain", "add", "example.org"]);
    said(folder, &["account", "add", USER, "--password-file", "password"]);
    sites
}

/// Counts again what servers have counted; none of them runs.
fn recount(folder: &Path) {
    let checked = said(folder, &["mail", "check"]);
    assert!(!checked.contains("wrong"), "{checked}");
    said(folder, &["records", "check"]);
}

/// Has two writers write at each site; returns what they know of their emails.
fn write(sites: &[Site; 2], time: Duration, kill: Option<(Server, Duration)>) -> Vec<Writer> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut writers = Vec::new();
        for (number, site) in [0, 1, 0, 1].into_iter().enumerate() {
            let (stop, may_end) = (&stop, kill.is_some() && site == 0);
            let mut writer = Writer::new(sites[site].client(), number);
            writers.push(scope.spawn(move || {
                writer.write_until(|| stop.load(Ordering::Relaxed), may_end);
                writer
            }));
        }
        let end = Instant::now() + time;
        if let Some((server, after)) = kill {
            thread::sleep(after);
            server.kill();
        }
        thread::sleep(end.saturating_duration_since(Instant::now()));
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    })
}

fn writers_on_two_servers_keep_one_account_right(url: &str) {
    let database = Database::new(url);
    let sites = two_sites(&database);
    let servers = sites.each_ref().map(|site| site.start(None));
    let writers = write(&sites, seconds(), None);
    for site in &sites {
        check_account(&site.client(), &writers);
    }
    let calls: Vec<usize> = writers.iter().map(Writer::calls).collect();
    let mismatches: usize = writers.iter().map(Writer::mismatches).sum();
    println!("calls by writer: {calls:?}, of which {mismatches} were answered stateMismatch");
    assert!(calls.iter().all(|calls| *calls > 0));
    for server in servers {
        assert_eq!(server.stop().code(), Some(0));
    }
    recount(&sites[0].folder);
}

fn writers_go_on_when_the_other_server_is_killed(url: &str) {
    let database = Database::new(url);
    let sites = two_sites(&database);
    let [one, two] = sites.each_ref().map(|site| site.start(None));
    let writers = write(&sites, seconds(), Some((one, seconds() / 2)));
    check_account(&sites[1].client(), &writers);
    let one = sites[0].start(None);
    check_account(&sites[0].client(), &writers);
    for server in [one, two] {
        assert_eq!(server.stop().code(), Some(0));
    }
    recount(&sites[1].folder);
}

fn push_reaches_clients_on_the_other_server(url: &str) {
    let database = Database::new(url);
    let sites = two_sites(&database);
    let _servers = sites.each_ref().map(|site| site.start(None));
    let [one, two] = sites.each_ref().map(Site::client);
    for (writer, listener) in [(&one, &two), (&two, &one)] {
        let events = Events::open(listener);
        // The first event may be that of the time when the stream was opened.
        for n in 0..3 {
            let created = writer
                .call("Mailbox/set", json!({"create": {"m": {"name": format!("{n} {}", writer.address())}}}));
            let state = created.unwrap()["newState"].clone();
            events.wait_for_state("Mailbox", &state);
            let listed = listener.call("Mailbox/get", json!({"ids": []})).unwrap();
            assert_eq!(listed["state"], state, "what was pushed can be read");
        }
    }
}

/// Uploads a message to both servers, and submits it by one of them.
fn submit(clients: &[Client; 2], by: usize, to: &str) {
    let text = format!("From: Alice <{USER}>\r\nTo: {to}\r\nSubject: {to}\r\n\r\nA text.\r\n");
    let blobs = clients.each_ref().map(|client| client.upload(&text).unwrap());
    assert_eq!(blobs[0], blobs[1], "a blob's id is that of its bytes");
    let client = &clients[by];
    let drafts = client.call("Mailbox/query", json!({"filter": {"role": "drafts"}})).unwrap();
    let drafts = drafts["ids"][0].as_str().unwrap().to_owned();
    let identity = client.call("Identity/get", json!({})).unwrap()["list"][0]["id"].clone();
    let email = json!({"blobId": blobs[0], "mailboxIds": {drafts: true}, "keywords": {"$draft": true}});
    let imported = client.call("Email/import", json!({"emails": {"d": email}})).unwrap();
    let email = &imported["created"]["d"]["id"];
    assert!(email.is_string(), "{imported}");
    let create = json!({"s": {"identityId": identity, "emailId": email}});
    let submitted = client.call("EmailSubmission/set", json!({"create": create})).unwrap();
    assert!(submitted["created"]["s"]["id"].is_string(), "{submitted}");
}

fn the_queue_of_a_killed_server_is_taken_over(url: &str) {
    let database = Database::new(url);
    let sites = two_sites(&database);
    let sink = Sink::start();
    let servers = sites.each_ref().map(|site| site.start(Some(sink.address)));
    let clients = sites.each_ref().map(Site::client);
    let address = |n: usize| format!("to{n}@example.net");
    let reached = sink.hold(Step::Data, &address(0));
    for n in 0..4 {
        submit(&clients, n % 2, &address(n));
    }
    let holder = reached.recv().unwrap();
    let killed = sites.iter().position(|site| format!("{}.example", site.name) == holder);
    let killed = killed.unwrap_or_else(|| panic!("who is {holder}?"));
    let [one, two] = servers;
    let (dead, alive) = if killed == 0 { (one, two) } else { (two, one) };
    dead.kill();
    let left = &sites[1 - killed];
    // What comes after that goes out too. Its blobs need not be where nobody is.
    let survivor = [left.client(), left.client()];
    for n in 4..6 {
        submit(&survivor, 0, &address(n));
    }
    let sent = |n: usize| sink.taken().iter().filter(|mail| mail.recipients.contains(&address(n))).count();
    wait_until("all is sent", || (0..6).all(|n| sent(n) > 0));
    let operators = format!("http://{}", left.operators);
    wait_until("the queue is empty", || {
        said(&left.folder, &["queue", "list", "--rest", &operators]).is_empty()
    });
    for n in 0..6 {
        let copies: Vec<_> =
            sink.taken().into_iter().filter(|mail| mail.recipients.contains(&address(n))).collect();
        let repeated = copies.split_last().map_or(&[][..], |(_, before)| before);
        assert!(
            repeated.iter().all(|copy| !copy.is_noted),
            "sent again though its answer was noted: {copies:?}"
        );
    }
    let submissions = survivor[0].call("EmailSubmission/get", json!({"ids": null})).unwrap();
    let list: &Vec<Value> = submissions["list"].as_array().unwrap();
    assert_eq!(list.len(), 6);
    assert_eq!(alive.stop().code(), Some(0));
    recount(&left.folder);
}
