//! Peers that come and go: a history query, a time in the mesh, a filter subscription that is abandoned.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use restante_waku::{
    Multiaddr,
    filter::{FilterClient, FilterPushReceiver},
    validate::MESSAGE_BYTES_MAX,
};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use super::traffic::CONTENT_TOPIC;
use crate::peers::{
    PUBSUB_TOPIC, Peer, Role,
    bare::Bare,
    history::{History, question},
    id_of,
};

/// The interval between visitors.
const EVERY: Duration = Duration::from_millis(300);
/// Visitors at once; at this limit the next one waits.
const AT_ONCE: usize = 16;
/// How long one stays in the mesh.
const IN_MESH: Duration = Duration::from_secs(2);
/// How long a subscriber waits for a push: there are a hundred messages a second.
const PUSH_PATIENCE: Duration = Duration::from_secs(20);
/// Pushes that a subscriber waits for before it leaves.
const PUSHES: usize = 20;
/// The capacity of the queue of pushes.
const PUSHES_WAITING: usize = 64;

/// The result of the visits.
#[derive(Clone, Debug, Default)]
pub(super) struct Visited {
    pub(super) visits: u64,
    pub(super) failed: u64,
    pub(super) first_error: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Visit {
    /// Requests a page.
    Query,
    /// Joins relay for a while.
    Relay,
    /// Subscribes by filter, receives a few pushes, and disconnects without unsubscribing.
    Filter,
    /// The same with unsubscribing.
    FilterPolitely,
}

const VISITS: [Visit; 4] = [Visit::Query, Visit::Filter, Visit::Relay, Visit::FilterPolitely];

/// Starts visitors until the end, and waits for the last one.
pub(super) async fn come_and_go(server: Multiaddr, until: Instant) -> anyhow::Result<Visited> {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut visiting = JoinSet::new();
    let mut visited = Visited::default();
    for visit in VISITS.into_iter().cycle() {
        if Instant::now() >= until {
            break;
        }
        let permit = permits.clone().acquire_owned().await?;
        let server = server.clone();
        visiting.spawn(async move {
            let outcome = pay(visit, &server, until).await;
            drop(permit);
            outcome.with_context(|| format!("a visit ({visit:?})"))
        });
        tokio::time::sleep(EVERY).await;
        while let Some(done) = visiting.try_join_next() {
            visited.note(done?);
        }
    }
    while let Some(done) = visiting.join_next().await {
        visited.note(done?);
    }
    Ok(visited)
}

impl Visited {
    fn note(&mut self, outcome: anyhow::Result<()>) {
        self.visits += 1;
        if let Err(error) = outcome {
            self.failed += 1;
            self.first_error.get_or_insert_with(|| format!("{error:#}"));
        }
    }
}

async fn pay(visit: Visit, server: &Multiaddr, until: Instant) -> anyhow::Result<()> {
    match visit {
        Visit::Query => look(server).await,
        Visit::Relay => join(server).await,
        Visit::Filter => subscribe(server, false, until).await,
        Visit::FilterPolitely => subscribe(server, true, until).await,
    }
}

async fn look(server: &Multiaddr) -> anyhow::Result<()> {
    let history = History::start(server).await?;
    let asked = history.page(&question(CONTENT_TOPIC, 20)).await;
    history.close().await;
    asked.map(|_| ())
}

async fn join(server: &Multiaddr) -> anyhow::Result<()> {
    let peer = Peer::start_connected(Role::Relay, std::slice::from_ref(server), Vec::new()).await?;
    tokio::time::sleep(IN_MESH).await;
    peer.close().await;
    Ok(())
}

/// Nothing is published after `until`, so missing pushes are no error then.
async fn subscribe(server: &Multiaddr, is_polite: bool, until: Instant) -> anyhow::Result<()> {
    let (receiver, mut pushes) = FilterPushReceiver::new(PUSHES_WAITING, MESSAGE_BYTES_MAX);
    let bare = Bare::connect(server, receiver).await?;
    let (client, id) = (FilterClient::new(bare.node.clone()), id_of(server)?);
    client.subscribe(id, PUBSUB_TOPIC, &[CONTENT_TOPIC]).await?;
    for _ in 0..PUSHES {
        let left = until.saturating_duration_since(Instant::now());
        let waited = timeout(left.min(PUSH_PATIENCE), pushes.recv()).await;
        if waited.is_err() && Instant::now() >= until {
            break;
        }
        let push = waited.context("no push came")?.context("the node ended")?;
        ensure!(&*push.content_topic == CONTENT_TOPIC, "a push of another topic");
    }
    if is_polite {
        client.ping(id).await?;
        client.unsubscribe_all(id).await?;
    }
    bare.close().await;
    Ok(())
}
