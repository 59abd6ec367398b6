//! Faults of one of three Cassandra nodes: while it is gone, hangs, is slow, or has lost its data, clients append and read, and
//! afterwards they continue without opening the archive again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use restante_archive::{Archive, Config, EngineUrl, Opened, Query, open};
use restante_core::ErrorKind;
use restante_fault_proxy::{Cluster, Proxy};
use tokio::task::JoinHandle;

use super::{
    Run, TestArchive, append_in_the_end, batch,
    common::cassandra::{connect, execute},
    impatient, query_in_the_end, rows, sorted, walk,
};

/// How many batches each server has to store, and find, before a test continues.
const ROUNDS: usize = 3;
/// The pause between the appends of a client, and between the queries of one.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn promises() -> [(&'static str, Run); 5] {
    promises![
        a_node_that_is_killed_and_comes_back,
        a_node_that_hangs,
        a_node_that_is_slow,
        a_node_that_is_replaced_by_an_empty_one,
        a_node_that_lost_the_end_of_its_commit_log,
    ]
}

/// What clients have appended.
#[derive(Default)]
struct History {
    /// The number of the next batch.
    next: AtomicU64,
    /// Batches that were acknowledged.
    acknowledged: Mutex<Vec<u64>>,
}

impl History {
    /// Appends another batch until it is acknowledged.
    async fn append(&self, archive: &dyn Archive) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        append_in_the_end(archive, &batch(number)).await;
        self.acknowledged.lock().push(number);
        number
    }

    /// A batch that was acknowledged before; all are equally likely.
    fn some(&self, n: usize) -> Option<u64> {
        let acknowledged = self.acknowledged.lock();
        acknowledged.get(n.wrapping_mul(7_919) % acknowledged.len().max(1)).copied()
    }
}

/// The messages of a batch, found by their hashes.
fn query_of(number: u64) -> Query {
    let hashes = batch(number).iter().map(|message| message.message_hash).collect();
    Query { hashes, ..Query::default() }
}

async fn write(archive: Arc<dyn Archive>, history: Arc<History>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        history.append(&*archive).await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Queries acknowledged batches; each answer must be complete. Returns how many answers there were.
async fn read(archive: Arc<dyn Archive>, history: Arc<History>, stop: Arc<AtomicBool>) -> usize {
    let mut answers = 0;
    for n in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        if let Some(number) = history.some(n) {
            match archive.query(&query_of(number)).await {
                Ok(page) => {
                    assert_eq!(rows(&page), sorted(&batch(number)), "batch {number}");
                    answers += 1;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    answers
}

/// Two servers, each with clients that append and read until it ends.
struct Load {
    servers: [Opened; 2],
    history: Arc<History>,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
    readers: Vec<JoinHandle<usize>>,
    cluster: Cluster,
}

/// Waits for the cluster. Drops a keyspace that an earlier test has used: writes that a node has missed then may still be sent to
/// it, even after the tables were emptied.
async fn take(place: &TestArchive) -> Cluster {
    let cluster = Cluster::take().await;
    let EngineUrl::Cassandra(url) = &place.config.url else { panic!("{} has no nodes", place.config.url) };
    execute(&connect().await, &format!("DROP KEYSPACE IF EXISTS {}", url.keyspace())).await;
    cluster
}

impl Load {
    async fn start(place: &TestArchive) -> Self {
        let cluster = take(place).await;
        let servers = [open(impatient(place)).await.unwrap(), open(impatient(place)).await.unwrap()];
        Self::on(servers, cluster).await
    }

    async fn on(servers: [Opened; 2], cluster: Cluster) -> Self {
        let (history, stop) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
        let (mut writers, mut readers) = (Vec::new(), Vec::new());
        for server in &servers {
            writers.push(tokio::spawn(write(server.archive.clone(), history.clone(), stop.clone())));
            readers.push(tokio::spawn(read(server.archive.clone(), history.clone(), stop.clone())));
        }
        let load = Self { servers, history, stop, writers, readers, cluster };
        load.goes_on("at the start").await;
        load
    }

    /// What each server stores is found by the other one.
    async fn goes_on(&self, when: &str) {
        let [one, other] = &self.servers;
        for _ in 0..ROUNDS {
            for (writer, reader) in [(one, other), (other, one)] {
                let number = self.history.append(&*writer.archive).await;
                let found = query_in_the_end(&*reader.archive, &query_of(number)).await;
                assert_eq!(found, sorted(&batch(number)), "{when}");
            }
        }
        eprintln!("{when}: {} batches are acknowledged", self.history.acknowledged.lock().len());
    }

    /// Checks that clients continue, at a named moment.
    fn clients(&self) -> impl AsyncFn(&str) {
        async |when| self.goes_on(when).await
    }

    /// Stops all clients. Everything they appended exists, once.
    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for writer in self.writers {
            writer.await.unwrap();
        }
        let mut answers = 0;
        for reader in self.readers {
            answers += reader.await.unwrap();
        }
        assert!(answers > 0, "nothing was read");
        let batches = self.history.next.load(Ordering::Relaxed);
        let expected = sorted(&(0..batches).flat_map(batch).collect::<Vec<_>>());
        for server in &self.servers {
            let found = walk(&*server.archive, Query { limit: 1_000, ..Query::default() }).await.concat();
            assert_eq!(found, expected);
        }
        eprintln!("{} messages, {answers} queries were answered", expected.len());
    }
}

async fn a_node_that_is_killed_and_comes_back(place: Arc<TestArchive>) {
    let load = Load::start(&place).await;
    load.cluster.kill_one(&load.clients()).await.unwrap();
    load.end().await;
}

async fn a_node_that_hangs(place: Arc<TestArchive>) {
    let load = Load::start(&place).await;
    load.cluster.pause_each(&load.clients()).await.unwrap();
    load.end().await;
}

/// A server that reaches each node through a proxy.
async fn behind_proxies(place: &TestArchive) -> (Vec<Proxy>, Opened) {
    let config = impatient(place);
    let EngineUrl::Cassandra(url) = &config.url else { panic!("{} has no nodes", config.url) };
    let proxies = Proxy::of_nodes(url.nodes()).await.unwrap();
    let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let text = url.to_string().replace(&url.nodes().join(","), &addresses.join(","));
    let url = EngineUrl::Cassandra(text.parse().unwrap());
    (proxies, open(Config { url, ..config }).await.unwrap())
}

/// One node is half a second away from one of the servers.
async fn a_node_that_is_slow(place: Arc<TestArchive>) {
    let cluster = take(&place).await;
    let (proxies, server) = behind_proxies(&place).await;
    let load = Load::on([server, open(impatient(&place)).await.unwrap()], cluster).await;
    load.cluster.slow_down(&proxies[1], &load.clients()).await.unwrap();
    load.end().await;
}

async fn a_node_that_is_replaced_by_an_empty_one(place: Arc<TestArchive>) {
    let load = Load::start(&place).await;
    load.cluster.replace_one(&load.clients()).await.unwrap();
    load.end().await;
}

async fn a_node_that_lost_the_end_of_its_commit_log(place: Arc<TestArchive>) {
    let load = Load::start(&place).await;
    load.cluster.lose_what_one_has_not_synced(&load.clients()).await.unwrap();
    load.end().await;
}
