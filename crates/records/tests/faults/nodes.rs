//! Faults of one of three Cassandra nodes: while it is down, hangs, is slow, or has lost its data, clients commit and read, and
//! afterwards they go on without opening the store again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use restante_fault_proxy::{Cluster, Proxy};
use restante_records::{Config, EngineUrl, Opened, open};
use tokio::task::JoinHandle;

use super::{A, B, History, Run, TestStore, beside, commit_in_the_end, impatient, read, write};

/// How often each server has to commit to each account before a test goes on.
const ROUNDS: usize = 3;
/// Between the commits of a client: conditional writes to one account at once mostly wait for each other.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn promises() -> [(&'static str, Run); 5] {
    promises![
        a_node_that_is_killed_and_comes_back,
        a_node_that_hangs,
        a_node_that_is_slow,
        a_node_that_is_replaced_by_an_empty_one,
        a_node_that_lost_the_end_of_its_commit_log,
    ]
}

/// Two servers. On each, clients write and read two accounts until it ends.
struct Load {
    servers: Vec<Opened>,
    history: Arc<History>,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
    readers: Vec<JoinHandle<usize>>,
    cluster: Cluster,
}

impl Load {
    async fn start(place: &TestStore) -> Self {
        let cluster = Cluster::take().await;
        let servers = vec![beside(place).await, beside(place).await];
        Self::on(servers, cluster).await
    }

    async fn on(servers: Vec<Opened>, cluster: Cluster) -> Self {
        let (history, stop) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
        let (mut writers, mut readers) = (Vec::new(), Vec::new());
        for (number, account) in [A, A, B, B].into_iter().enumerate() {
            let opened = &servers[number % 2];
            writers.push(tokio::spawn(write(
                opened.clone(),
                history.clone(),
                account,
                number as u64,
                PAUSE,
                stop.clone(),
            )));
            readers.push(tokio::spawn(read(opened.clone(), history.clone(), account, stop.clone())));
        }
        let load = Self { servers, history, stop, writers, readers, cluster };
        load.goes_on("at the start").await;
        load
    }

    /// Each server commits to each account.
    async fn goes_on(&self, when: &str) {
        for _ in 0..ROUNDS {
            for server in &self.servers {
                for account in [A, B] {
                    commit_in_the_end(server, &self.history, account).await;
                }
            }
        }
        eprintln!("{when}: {} commits are acknowledged", self.history.acknowledged());
    }

    /// Checks at a named moment that clients go on.
    fn clients(&self) -> impl AsyncFn(&str) {
        async |when| self.goes_on(when).await
    }

    /// Stops all clients; compares what they saw with what is there.
    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for writer in self.writers {
            writer.await.unwrap();
        }
        let mut read = 0;
        for reader in self.readers {
            read += reader.await.unwrap();
        }
        for server in &self.servers {
            commit_in_the_end(server, &self.history, A).await;
        }
        let counts = self.history.check(&self.servers[0]).await;
        eprintln!("{counts:?}, {read} records read: {:?}", self.history.errors());
        assert!(read > 0, "{counts:?}");
    }
}

async fn a_node_that_is_killed_and_comes_back(place: Arc<TestStore>) {
    let load = Load::start(&place).await;
    load.cluster.kill_one(&load.clients()).await.unwrap();
    load.end().await;
}

async fn a_node_that_hangs(place: Arc<TestStore>) {
    let load = Load::start(&place).await;
    load.cluster.pause_each(&load.clients()).await.unwrap();
    load.end().await;
}

/// A server that reaches each node through a proxy.
async fn behind_proxies(place: &TestStore) -> (Vec<Proxy>, Opened) {
    let config = impatient(place);
    let EngineUrl::Cassandra(url) = &config.url else { panic!("{} has no nodes", config.url) };
    let proxies = Proxy::of_nodes(url.nodes()).await.unwrap();
    let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let text = url.to_string().replace(&url.nodes().join(","), &addresses.join(","));
    let url = EngineUrl::Cassandra(text.parse().unwrap());
    (proxies, open(Config { url, ..config }).await.unwrap())
}

/// One node is half a second away from one of the servers.
async fn a_node_that_is_slow(place: Arc<TestStore>) {
    let cluster = Cluster::take().await;
    let (proxies, server) = behind_proxies(&place).await;
    let load = Load::on(vec![server, beside(&place).await], cluster).await;
    load.cluster.slow_down(&proxies[1], &load.clients()).await.unwrap();
    load.end().await;
}

async fn a_node_that_is_replaced_by_an_empty_one(place: Arc<TestStore>) {
    let load = Load::start(&place).await;
    load.cluster.replace_one(&load.clients()).await.unwrap();
    load.end().await;
}

async fn a_node_that_lost_the_end_of_its_commit_log(place: Arc<TestStore>) {
    let load = Load::start(&place).await;
    load.cluster.lose_what_one_has_not_synced(&load.clients()).await.unwrap();
    load.end().await;
}
