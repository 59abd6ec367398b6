//! Several servers on the same engines: one account with writers on both, push from one to the other, what happens to the work of
//! a server that is killed, and moving from engine to engine. Without the engines these tests are reported as ignored; see
//! docs/development.md.
//!
//! With PostgreSQL each server has its own blobs, so what one server may send for the other is uploaded to both.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

#[path = "several/client.rs"]
mod client;
#[path = "several/costs.rs"]
mod costs;
#[path = "several/doors.rs"]
mod doors;
#[path = "several/engines.rs"]
mod engines;
#[path = "e2e/filled.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod filled;
#[path = "several/ledger.rs"]
mod ledger;
#[path = "several/moving.rs"]
mod moving;
#[path = "e2e/sending/sink.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod sink;
#[path = "e2e/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use client::{Client, Events, Failure};
use engines::{Engines, Stores, is_required};
use ledger::{Writer, check_account};
use libtest_mimic::{Arguments, Trial};
use restante_fault_proxy::Proxy;
use serde_json::{Value, json};
use sink::{Sink, Step};
use support::{Server, folder, free_address, restante, said, wait_until};

pub(crate) const USER: &str = "alice@example.org";
pub(crate) const PASSWORD: &str = "correct horse";
/// Names the RabbitMQ server, for the test that needs one too.
const RABBITMQ_URL: &str = "RESTANTE_RABBITMQ_URL";
/// How long writers write. `RESTANTE_SEVERAL_SECONDS=600` for a long run.
const SECONDS: u64 = 6;

type Test = (&'static str, fn(&Stores));

/// These run on each set of engines.
const TESTS: [Test; 5] = [
    ("writers_on_two_servers_keep_one_account_right", writers_on_two_servers_keep_one_account_right),
    ("writers_go_on_when_the_other_server_is_killed", writers_go_on_when_the_other_server_is_killed),
    ("push_reaches_clients_on_the_other_server", push_reaches_clients_on_the_other_server),
    ("the_queue_of_a_killed_server_is_taken_over", the_queue_of_a_killed_server_is_taken_over),
    (
        "a_server_killed_under_load_of_all_doors_loses_nothing",
        doors::a_server_killed_under_load_of_all_doors_loses_nothing,
    ),
];

/// These run on Cassandra, S3 and OpenSearch.
const TESTS_OF_CASSANDRA: [Test; 1] = [(
    "a_listing_and_a_flag_cost_few_requests_to_cassandra_and_none_to_others",
    a_listing_and_a_flag_cost_few_requests_to_cassandra_and_none_to_others,
)];

/// This one moves everything that a user can move.
const MOVING: &str = "everything_moves_through_all_engines_and_back_though_copies_are_killed";
const BY_A_BROKER: &str = "servers_share_outgoing_mail_by_a_broker_and_go_on_without_it";

fn main() {
    let mut trials = vec![by_a_broker(), moving()];
    for engines in Engines::ALL {
        let more = if engines == Engines::Cassandra { &TESTS_OF_CASSANDRA[..] } else { &[] };
        for (name, test) in TESTS.iter().chain(more) {
            let missing = engines.missing();
            let run = move || match missing {
                Some(variable) => Err(format!("{variable} is not set").into()),
                None => {
                    test(&Stores::new(engines));
                    Ok(())
                }
            };
            let is_ignored = missing.is_some() && !engines.are_required();
            trials.push(Trial::test(*name, run).with_kind(engines.name()).with_ignored_flag(is_ignored));
        }
    }
    let mut arguments = Arguments::from_args();
    // Two servers are enough for two cores.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials).exit();
}

/// The test that needs a broker in addition to PostgreSQL.
fn by_a_broker() -> Trial {
    let engines = Engines::Postgres;
    let has_broker = env::var_os(RABBITMQ_URL).is_some();
    let missing = engines.missing().or((!has_broker).then_some(RABBITMQ_URL));
    let is_required = engines.are_required() && is_required("rabbitmq");
    let run = move || match missing {
        Some(variable) => Err(format!("{variable} is not set").into()),
        None => {
            servers_share_outgoing_mail_by_a_broker_and_go_on_without_it(&Stores::new(engines));
            Ok(())
        }
    };
    let trial = Trial::test(BY_A_BROKER, run).with_kind("rabbitmq");
    trial.with_ignored_flag(missing.is_some() && !is_required)
}

/// The test that needs all persistent engines.
fn moving() -> Trial {
    let missing = Engines::Cassandra.missing().or(Engines::Postgres.missing());
    let is_ignored = missing.is_some() && !Engines::ALL.into_iter().all(Engines::are_required);
    let run = move || match missing {
        Some(variable) => Err(format!("{variable} is not set").into()),
        None => {
            moving::everything_moves_and_comes_back(
                &Stores::new(Engines::Postgres),
                &Stores::new(Engines::Cassandra),
            );
            Ok(())
        }
    };
    Trial::test(MOVING, run).with_kind("all").with_ignored_flag(is_ignored)
}

fn seconds() -> Duration {
    let seconds = env::var("RESTANTE_SEVERAL_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}

/// The folder of a server, and its ports, which stay the same when it starts again.
struct Site {
    name: &'static str,
    folder: PathBuf,
    jmap: SocketAddr,
    lmtp: SocketAddr,
    smtp: SocketAddr,
    operators: SocketAddr,
    _guard: tempfile::TempDir,
}

impl Site {
    fn new(stores: &Stores, name: &'static str) -> Self {
        let (guard, folder) = folder();
        stores.configure(&folder, name);
        Self {
            name,
            folder,
            jmap: free_address(),
            lmtp: free_address(),
            smtp: free_address(),
            operators: free_address(),
            _guard: guard,
        }
    }

    fn start(&self, smarthost: Option<SocketAddr>) -> Server {
        let mut command = restante(&self.folder);
        command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
        command.args(["--jmap-listen", &self.jmap.to_string(), "--lmtp-listen", &self.lmtp.to_string()]);
        command.args(["--smtp-listen", &self.smtp.to_string()]);
        if let Some(smarthost) = smarthost {
            command.args(["--smarthost", &smarthost.to_string()]);
        }
        command.env("RESTANTE_OPERATE__LISTEN", self.operators.to_string());
        command.env("RESTANTE_SMTP__HOSTNAME", format!("{}.example", self.name));
        // A claim of a killed server expires soon, and retries are quick.
        command.env("RESTANTE_DELIVERY__LEASE_SECONDS", "3");
        command.env("RESTANTE_DELIVERY__DOMAIN_DOWN_SECONDS", "0");
        command.env("RESTANTE_DELIVERY__RETRY_SECONDS", "0,1");
        Server::spawn(command)
    }

    fn client(&self) -> Client {
        self.client_of(USER)
    }

    fn client_of(&self, user: &'static str) -> Client {
        Client::new(self.jmap, user).unwrap()
    }
}

fn two_sites(stores: &Stores) -> [Site; 2] {
    let sites = [Site::new(stores, "one"), Site::new(stores, "two")];
    add_account(&sites[0].folder);
    sites
}

fn add_account(folder: &Path) {
    fs::write(folder.join("password"), PASSWORD).unwrap();
    said(folder, &["domain", "add", "example.org"]);
    said(folder, &["account", "add", USER, "--password-file", "password"]);
}

/// Recounts what servers have counted; none of them may run.
fn recount(folder: &Path) {
    let checked = said(folder, &["mail", "check"]);
    assert!(!checked.contains("wrong"), "{checked}");
    said(folder, &["records", "check"]);
}

/// Starts two writers at each site, which write until they are stopped, or until the first server is gone if it
/// may be killed.
fn start_writers<'s>(
    scope: &'s thread::Scope<'s, '_>,
    sites: &[Site; 2],
    stop: &'s AtomicBool,
    may_end: bool,
) -> Vec<thread::ScopedJoinHandle<'s, Writer>> {
    let start = |(number, site): (usize, usize)| {
        let mut writer = Writer::new(sites[site].client(), number);
        scope.spawn(move || {
            writer.write_until(|| stop.load(Ordering::Relaxed), may_end && site == 0);
            writer
        })
    };
    [0, 1, 0, 1].into_iter().enumerate().map(start).collect()
}

/// Runs two writers at each site; returns what they know of their emails.
fn write(sites: &[Site; 2], time: Duration, kill: Option<(Server, Duration)>) -> Vec<Writer> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers = start_writers(scope, sites, &stop, kill.is_some());
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

fn writers_on_two_servers_keep_one_account_right(stores: &Stores) {
    let sites = two_sites(stores);
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

fn writers_go_on_when_the_other_server_is_killed(stores: &Stores) {
    let sites = two_sites(stores);
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

fn push_reaches_clients_on_the_other_server(stores: &Stores) {
    let sites = two_sites(stores);
    let _servers = sites.each_ref().map(|site| site.start(None));
    let [one, two] = sites.each_ref().map(Site::client);
    for (writer, listener) in [(&one, &two), (&two, &one)] {
        let events = Events::open(listener);
        // The first event may announce the state at which the stream was opened.
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
fn submit(clients: &[Client; 2], by: usize, to: &str) -> Result<(), Failure> {
    let client = &clients[by];
    let text = format!("From: <{}>\r\nTo: {to}\r\nSubject: {to}\r\n\r\nA text.\r\n", client.user());
    let blobs = [clients[0].upload(&text)?, clients[1].upload(&text)?];
    assert_eq!(blobs[0], blobs[1], "a blob's id is that of its bytes");
    let drafts = client.call("Mailbox/query", json!({"filter": {"role": "drafts"}}))?;
    let drafts = drafts["ids"][0].as_str().unwrap().to_owned();
    let identity = client.call("Identity/get", json!({}))?["list"][0]["id"].clone();
    let email = json!({"blobId": blobs[0], "mailboxIds": {drafts: true}, "keywords": {"$draft": true}});
    let imported = client.call("Email/import", json!({"emails": {"d": email}}))?;
    let email = &imported["created"]["d"]["id"];
    assert!(email.is_string(), "{imported}");
    let create = json!({"s": {"identityId": identity, "emailId": email}});
    let submitted = client.call("EmailSubmission/set", json!({"create": create}))?;
    assert!(submitted["created"]["s"]["id"].is_string(), "{submitted}");
    Ok(())
}

fn the_queue_of_a_killed_server_is_taken_over(stores: &Stores) {
    let sites = two_sites(stores);
    let sink = Sink::start();
    let servers = sites.each_ref().map(|site| site.start(Some(sink.address)));
    let clients = sites.each_ref().map(Site::client);
    let address = |n: usize| format!("to{n}@example.net");
    let reached = sink.hold(Step::Data, &address(0));
    for n in 0..4 {
        submit(&clients, n % 2, &address(n)).unwrap();
    }
    let holder = reached.recv().unwrap();
    let killed = sites.iter().position(|site| format!("{}.example", site.name) == holder);
    let killed = killed.unwrap_or_else(|| panic!("who is {holder}?"));
    let [one, two] = servers;
    let (dead, alive) = if killed == 0 { (one, two) } else { (two, one) };
    dead.kill();
    let left = &sites[1 - killed];
    // What is submitted after that is sent too. Its blobs need not be on the dead server.
    let survivor = [left.client(), left.client()];
    for n in 4..6 {
        submit(&survivor, 0, &address(n)).unwrap();
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

fn a_listing_and_a_flag_cost_few_requests_to_cassandra_and_none_to_others(stores: &Stores) {
    let [site, _] = two_sites(stores);
    let server = site.start(None);
    costs::check(&site.client(), site.lmtp, site.operators);
    assert_eq!(server.stop().code(), Some(0));
}

/// One server reaches the broker all the time, the other one through a proxy that is cut.
fn servers_share_outgoing_mail_by_a_broker_and_go_on_without_it(stores: &Stores) {
    let broker = env::var(RABBITMQ_URL).expect("the URL of a RabbitMQ");
    let (front, host) = broker.rsplit_once('@').unwrap();
    let (host, path) = host.split_once('/').unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let proxy = runtime.block_on(Proxy::new(host.to_owned())).unwrap();
    let sites = two_sites(stores);
    let urls = [broker.clone(), format!("{front}@{}/{path}", proxy.address())];
    for (site, broker) in sites.iter().zip(urls) {
        let mut settings = fs::read_to_string(site.folder.join("restante.toml")).unwrap();
        settings.push_str(&format!("[queue]\nurl = \"{broker}\"\nprefix = \"{}\"\n", stores.name()));
        fs::write(site.folder.join("restante.toml"), settings).unwrap();
    }
    let sink = Sink::start();
    let servers = sites.each_ref().map(|site| site.start(Some(sink.address)));
    let clients = sites.each_ref().map(Site::client);
    let metric = |name: &str| servers.each_ref().map(|server| server.metric(name).unwrap_or(0.0));
    wait_until("one server deals out the work", || {
        metric("restante_queue_is_dealer").iter().sum::<f64>() == 1.0
    });
    let address = |n: usize| format!("to{n}@{n}.example.net");
    let sent = |n: usize| sink.taken().iter().filter(|mail| mail.recipients.contains(&address(n))).count();
    for n in 0..6 {
        submit(&clients, n % 2, &address(n)).unwrap();
    }
    wait_until("all is sent", || (0..6).all(|n| sent(n) == 1));
    let settled = || metric("restante_queue_settled_total{result=\"done\"}").iter().sum::<f64>();
    wait_until("by hints", || settled() >= 6.0);
    runtime.block_on(proxy.refuse());
    proxy.cut();
    wait_until("its loss is reported", || metric("restante_queue_work_up") == [1.0, 0.0]);
    let health = servers[1].get("/health").body;
    assert!(health.contains("queue"), "{health}");
    for n in 6..10 {
        submit(&clients, n % 2, &address(n)).unwrap();
    }
    wait_until("all is sent without it", || (0..10).all(|n| sent(n) == 1));
    runtime.block_on(proxy.accept()).unwrap();
    wait_until("it is there again", || metric("restante_queue_work_up") == [1.0, 1.0]);
    assert_eq!(said(&sites[0].folder, &["queue", "dead", "list"]), "no hint is dead\n");
    assert_eq!(said(&sites[1].folder, &["queue", "dead", "drop"]), "0 dead hints dropped\n");
    for server in servers {
        assert_eq!(server.stop().code(), Some(0));
    }
    recount(&sites[0].folder);
}
