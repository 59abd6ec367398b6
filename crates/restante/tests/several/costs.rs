//! What a request costs at the engines that scale out, counted by the server's own metrics.

use std::{collections::BTreeMap, net::SocketAddr, thread, time::Duration};

use serde_json::{Value, json};

use crate::{
    client::Client,
    support::{deliver_by_lmtp, exchange, wait_until},
};

/// The counts of requests to each engine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requests {
    /// Reads of Cassandra.
    reads: u64,
    /// Other requests to Cassandra.
    writes: u64,
    s3: u64,
    searches: u64,
    /// Documents, removals and commits that were sent to OpenSearch.
    search_writes: u64,
}

impl Requests {
    fn since(&self, before: &Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            s3: self.s3 - before.s3,
            searches: self.searches - before.searches,
            search_writes: self.search_writes - before.search_writes,
        }
    }
}

/// The metrics of a server: names with labels, and values.
fn metrics(operators: SocketAddr) -> BTreeMap<String, f64> {
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {operators}\r\nconnection: close\r\n\r\n");
    let answer = exchange(operators, request.as_bytes()).unwrap();
    let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.rsplit_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

fn requests(operators: SocketAddr) -> Requests {
    let metrics = metrics(operators);
    let sum = |name: &str, without: &str| {
        let values = metrics.iter().filter(|(key, _)| {
            key.strip_prefix(name).is_some_and(|labels| labels.is_empty() || labels.starts_with('{'))
                && (without.is_empty() || !key.contains(without))
        });
        values.map(|(_, value)| *value as u64).sum::<u64>()
    };
    let cassandra = "restante_records_cassandra_requests_total";
    let reads = metrics[&format!("{cassandra}{{request=\"read\"}}")] as u64;
    Requests {
        reads,
        writes: sum(cassandra, "") - reads,
        s3: sum("restante_blobs_s3_requests_total", ""),
        searches: sum("restante_search_query_seconds_count", ""),
        search_writes: sum("restante_search_documents_total", "")
            + sum("restante_search_removed_total", "")
            + sum("restante_search_commit_seconds_count", ""),
    }
}

/// The requests that `run` costs, the least of several runs: maintenance and followers of the server make requests
/// meanwhile.
fn cost(operators: SocketAddr, mut run: impl FnMut()) -> Requests {
    let costs = (0..TIMES).map(|_| {
        let before = requests(operators);
        run();
        requests(operators).since(&before)
    });
    let costs: Vec<Requests> = costs.collect();
    let least = |of: fn(&Requests) -> u64| costs.iter().map(of).min().unwrap();
    Requests {
        reads: least(|cost| cost.reads),
        writes: least(|cost| cost.writes),
        s3: least(|cost| cost.s3),
        searches: least(|cost| cost.searches),
        search_writes: least(|cost| cost.search_writes),
    }
}

/// How often each cost is counted.
const TIMES: usize = 20;
const EMAILS: usize = 40;
/// The longest time from a write to the index to its commit, as in restante.toml.
const COMMIT: Duration = Duration::from_secs(1);

/// Fills an inbox, and counts the requests of a listing, a search, a delivery and a change of a flag.
pub(crate) fn check(client: &Client, lmtp: SocketAddr, operators: SocketAddr) {
    let created = client.call("Mailbox/set", json!({"create": {"m": {"name": "many"}}})).unwrap();
    let mailbox = created["created"]["m"]["id"].as_str().unwrap().to_owned();
    let mut last = Value::Null;
    for n in 0..EMAILS {
        let email = json!({
            "mailboxIds": {&mailbox: true}, "subject": format!("subject {n}"), "from": [{"email": crate::USER}],
            "bodyValues": {"t": {"value": "text"}}, "textBody": [{"partId": "t", "type": "text/plain"}],
        });
        let answer = client.call("Email/set", json!({"create": {"e": email}})).unwrap();
        last = answer["created"]["e"]["id"].clone();
    }
    let last = last.as_str().unwrap();
    // The index is complete, so nothing is written to it any more.
    wait_until("the emails are in the index", || {
        let before = requests(operators).search_writes;
        thread::sleep(2 * COMMIT);
        before > 0 && requests(operators).search_writes == before
    });
    let listing = cost(operators, || {
        let list = client.list(&mailbox, 20);
        assert_eq!(list.len(), 20);
    });
    assert!(listing.reads <= 3, "{listing:?}");
    let rest = (listing.writes, listing.s3, listing.searches, listing.search_writes);
    assert_eq!(rest, (0, 0, 0, 0), "a listing reads Cassandra alone");
    let search = cost(operators, || {
        let found = client.call("Email/query", json!({"filter": {"text": "subject"}, "limit": 20})).unwrap();
        assert_eq!(found["ids"].as_array().unwrap().len(), 20);
    });
    let written = requests(operators).search_writes;
    let mut is_seen = false;
    let flag = cost(operators, || {
        is_seen = !is_seen;
        let patch = json!({"keywords/$seen": is_seen.then_some(true)});
        let answer = client.call("Email/set", json!({"update": {last: patch}})).unwrap();
        assert!(answer["updated"].get(last).is_some(), "{answer}");
    });
    assert_eq!((flag.s3, flag.searches), (0, 0));
    // The follower of the index has seen all of them by then.
    thread::sleep(3 * COMMIT);
    assert_eq!(requests(operators).search_writes, written, "a flag writes nothing to the index");
    let mut number = 0;
    let delivery = cost(operators, || {
        number += 1;
        let message = format!("From: bob@example.net\nSubject: delivered {number}\n\ntext {number}\n");
        let reply = deliver_by_lmtp(lmtp, crate::USER, &message).unwrap();
        assert!(reply.starts_with("250 "), "{reply}");
    });
    println!("a listing: {listing:?}\na search: {search:?}\na flag: {flag:?}\na delivery: {delivery:?}");
}
