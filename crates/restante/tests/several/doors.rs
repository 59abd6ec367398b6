//! A server is killed while clients of all doors use it. What it acknowledged is at the other one, which takes over its
//! work.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    net::SocketAddr,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    Site,
    client::{Client, Events},
    engines::Stores,
    ledger::{Writer, all, check_account},
    recount, seconds,
    sink::Sink,
    start_writers, submit,
    support::{Server, deliver, message, now, publish_path, request, said, wait_until},
    two_sites,
};

/// He receives emails, and sends some; the writers use the other account.
const BOB: &str = "bob@example.org";
/// How many messages of each client are acknowledged before the server is killed.
const BEFORE: usize = 3;
/// Between two messages of a client, so that the checks at the end don't take long.
const PAUSE: Duration = Duration::from_millis(20);

/// What a client has sent.
#[derive(Debug, Default)]
struct Sent {
    acknowledged: Vec<String>,
    /// Was being sent when the server ended.
    doubtful: Option<String>,
}

/// A way into a server: a client sends a message of this name by it; `false` if there was no answer.
type Door = Box<dyn Fn(&str) -> bool + Send>;

/// What all clients have sent, in the order of the sites.
struct Load {
    writers: Vec<Writer>,
    published: [Sent; 2],
    by_lmtp: [Sent; 2],
    by_smtp: [Sent; 2],
    submitted: [Sent; 2],
}

fn email(name: &str) -> String {
    format!(
        "From: Carol <carol@example.net>\nDate: Sat, 28 Nov 2026 12:00:00 +0000\nMessage-ID: <{}@example.net>\n\
         Subject: {name}\n\nA text.",
        name.replace(' ', ".")
    )
}

fn is_delivered(address: SocketAddr, greeting: &str, name: &str) -> bool {
    let Ok(reply) = deliver(address, greeting, BOB, &email(name)) else { return false };
    assert!(reply.starts_with("250 "), "{name}: {reply}");
    true
}

/// Publishes by HTTP.
fn waku(server: &Server) -> Door {
    let address = server.address();
    Box::new(move |name| {
        let body = message(name, now()).to_string();
        let answer = request(address, "POST", &publish_path(), &body);
        answer.is_some_and(|answer| {
            assert_eq!(answer.status, 200, "{name}: {}", answer.body);
            true
        })
    })
}

fn lmtp(site: &Site) -> Door {
    let address = site.lmtp;
    Box::new(move |name| is_delivered(address, "LHLO client.example", name))
}

fn smtp(site: &Site) -> Door {
    let address = site.smtp;
    Box::new(move |name| is_delivered(address, "EHLO client.example", name))
}

/// Submits to an address that has the message's name.
fn submission(sites: &[Site; 2], by: usize) -> Door {
    let clients = sites.each_ref().map(|site| site.client_of(BOB));
    Box::new(move |name| submit(&clients, by, &recipient(name)).is_ok())
}

fn recipient(name: &str) -> String {
    format!("{}@example.net", name.replace(' ', "."))
}

/// A client: how many of its messages were acknowledged, and whether its server may be gone.
#[derive(Default)]
struct Progress {
    acknowledged: AtomicUsize,
    may_end: AtomicBool,
}

/// Sends until it is stopped, or there is no answer.
fn send_until(stop: &AtomicBool, client: &str, progress: &Progress, send: &Door) -> Sent {
    let mut sent = Sent::default();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("{client} {n}");
        if !send(&name) {
            assert!(progress.may_end.load(Ordering::Relaxed), "{name} has no answer");
            sent.doubtful = Some(name);
            break;
        }
        sent.acknowledged.push(name);
        progress.acknowledged.fetch_add(1, Ordering::Relaxed);
        thread::sleep(PAUSE);
    }
    sent
}

/// Lets clients of all doors send to both servers, and kills the first one meanwhile.
fn load_and_kill(sites: &[Site; 2], servers: [Server; 2]) -> (Load, Server) {
    let stop = AtomicBool::new(false);
    let [dead, left] = servers;
    let doors = [
        ("waku", [waku(&dead), waku(&left)]),
        ("lmtp", sites.each_ref().map(lmtp)),
        ("smtp", sites.each_ref().map(smtp)),
        ("submission", [submission(sites, 0), submission(sites, 1)]),
    ];
    let progress: [[Progress; 2]; 4] = Default::default();
    thread::scope(|scope| {
        let writers = start_writers(scope, sites, &stop, true);
        let clients = doors.into_iter().zip(&progress).map(|((name, doors), progress)| {
            let mut number = 0;
            doors.map(|door| {
                let (stop, progress, client) = (&stop, &progress[number], format!("{name} {number}"));
                number += 1;
                scope.spawn(move || send_until(stop, &client, progress, &door))
            })
        });
        let clients: Vec<_> = clients.collect();
        thread::sleep(seconds() / 2);
        let has_sent = |client: &Progress| client.acknowledged.load(Ordering::Relaxed) >= BEFORE;
        wait_until("each client has sent some", || progress.as_flattened().iter().all(has_sent));
        // What is submitted was uploaded to both servers.
        let [waku, lmtp, smtp, submission] = &progress;
        for client in [&waku[0], &lmtp[0], &smtp[0], &submission[0], &submission[1]] {
            client.may_end.store(true, Ordering::Relaxed);
        }
        dead.kill();
        thread::sleep(seconds() / 2);
        stop.store(true, Ordering::Relaxed);
        let sent = clients.into_iter().map(|clients| clients.map(|client| client.join().unwrap()));
        let sent: Vec<[Sent; 2]> = sent.collect();
        let [published, by_lmtp, by_smtp, submitted] = sent.try_into().unwrap();
        let writers = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        (Load { writers, published, by_lmtp, by_smtp, submitted }, left)
    })
}

/// Checks what a server has of the load.
fn check_load(load: &Load, site: &Site, server: &Server) {
    check_account(&site.client(), &load.writers);
    let published = server.payloads(100);
    for name in load.published.iter().flat_map(|sent| &sent.acknowledged) {
        assert!(published.contains(name), "{name} is not in the archive");
    }
    let mut copies: BTreeMap<String, usize> = BTreeMap::new();
    for (subject, _) in all(&site.client_of(BOB)).into_values() {
        *copies.entry(subject).or_default() += 1;
    }
    for sent in load.by_lmtp.iter().chain(&load.by_smtp) {
        for name in sent.acknowledged.iter().chain(&sent.doubtful) {
            assert_eq!(copies.get(name), Some(&1), "copies of {name}");
        }
    }
    for name in load.submitted.iter().flat_map(|sent| &sent.acknowledged) {
        assert_eq!(copies.get(&recipient(name)), Some(&1), "copies of what was submitted as {name}");
    }
}

/// Follows the events of an account from now on; waits for a state of its emails.
fn follow(client: Client) -> impl FnOnce(Value) {
    let (wanted, wants) = mpsc::sync_channel(1);
    let events = Events::open(&client);
    let follower = thread::spawn(move || {
        let state: Value = wants.recv().unwrap();
        events.wait_for_state("Email", &state);
    });
    move |state| {
        wanted.send(state).unwrap();
        follower.join().unwrap();
    }
}

pub(crate) fn a_server_killed_under_load_of_all_doors_loses_nothing(stores: &Stores) {
    let sites = two_sites(stores);
    said(&sites[0].folder, &["account", "add", BOB, "--password-file", "password"]);
    for site in &sites {
        let mut settings =
            fs::OpenOptions::new().append(true).open(site.folder.join("restante.toml")).unwrap();
        writeln!(settings, "[archive]\nurl = \"{}\"", stores.archive()).unwrap();
        // In ten minutes Bob sends more than the default limit of an account.
        writeln!(settings, "[submission]\nmessages_per_hour_max = 0\nrecipients_per_day_max = 0").unwrap();
    }
    let sink = Sink::start();
    let servers = sites.each_ref().map(|site| site.start(Some(sink.address)));
    let wait_for_push = follow(sites[1].client_of(BOB));
    let (load, left) = load_and_kill(&sites, servers);
    let counts = [&load.published, &load.by_lmtp, &load.by_smtp, &load.submitted]
        .map(|clients| clients.each_ref().map(|sent| sent.acknowledged.len()));
    println!("acknowledged by both servers: waku, lmtp, smtp, submission {counts:?}");

    // A peer retries what has no answer, at a server that is up.
    for (sent, greeting, address) in
        [(&load.by_lmtp, "LHLO", sites[1].lmtp), (&load.by_smtp, "EHLO", sites[1].smtp)]
    {
        for name in sent.iter().filter_map(|sent| sent.doubtful.as_ref()) {
            assert!(is_delivered(address, &format!("{greeting} client.example"), name), "{name}");
        }
    }
    check_load(&load, &sites[1], &left);
    let bob = sites[1].client_of(BOB);
    wait_for_push(bob.call("Email/get", json!({"ids": []})).unwrap()["state"].clone());
    let is_sent = |name: &String| sink.taken().iter().any(|mail| mail.recipients.contains(&recipient(name)));
    wait_until("all that was submitted is sent", || {
        load.submitted.iter().flat_map(|sent| &sent.acknowledged).all(is_sent)
    });

    let back = sites[0].start(Some(sink.address));
    check_load(&load, &sites[0], &back);
    for server in [left, back] {
        assert_eq!(server.stop().code(), Some(0));
    }
    recount(&sites[1].folder);
}
