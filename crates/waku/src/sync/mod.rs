//! Store sync: asks other store nodes for the messages that this one has missed, by Store v3 alone.
//!
//! From each store peer this node asks, for a range of time, first the hashes, looks which of them its own archive lacks, and
//! then asks for the messages with those. What comes is validated as any message is, but for its age, and its hash must be
//! the one that was asked for.
//!
//! Ranges overlap, so that a message that reached the peer late is found by a later run. How far a peer's messages are known
//! to be here is kept in a file, from where a node that was away goes on.

mod floor;
mod metrics;
mod progress;
mod run;
mod window;

use std::{collections::HashSet, fmt, path::PathBuf, sync::Arc, time::Duration};

use libp2p::{Multiaddr, PeerId};
use parking_lot::Mutex;
use restante_archive::{Archive, Retention};
use restante_core::{Clock, MessageHash, Timestamp};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::timeout,
};
use tracing::{debug, info, warn};

pub use metrics::SyncMetrics;

use crate::{
    intake::Intake,
    node::{Node, NodeError, peer_of},
    store::StoreClient,
};
use floor::Floor;
use metrics::RunResult;
use progress::ProgressFile;
use run::{Place, Run, SyncError};

/// One run with one peer takes no longer; the next goes on where it has stopped.
const RUN_TIME_MAX: Duration = Duration::from_secs(300);
/// A peer that is away, or answers nonsense, is asked again after this, then after twice as long, up to the interval.
const RETRY_FIRST: Duration = Duration::from_secs(5);
/// Messages that a peer tells and this node does not take, or the peer does not give, are remembered, so that they are not
/// asked for in each run. When so many came together the memory is cleared; then they are asked for once more.
const DECLINED_MAX: usize = 10_000;

/// The settings of store sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncConfig {
    /// The store nodes that are asked, each with its peer id; none turns sync off.
    pub peers: Vec<Multiaddr>,
    /// How long to wait between two runs.
    pub interval_seconds: u64,
    /// How far a run looks back.
    pub range_seconds: u64,
    /// How far the first run looks back at most, when this node was away or never here.
    pub resume_range_seconds: u64,
    /// Messages younger than this are left to relay: they may still be on their way.
    pub lag_seconds: u64,
    /// What the own archive keeps: nothing is fetched that would be removed again.
    pub retention: Retention,
    /// Where it is kept until when each peer's messages are known to be here. Without it every start looks back as far as
    /// it may.
    pub online_file: Option<PathBuf>,
}

impl Default for SyncConfig {
    /// nwaku's: `--store-sync-interval`, `--store-sync-range`, the six hours of `--store-resume`, and the jitter of its relay.
    fn default() -> Self {
        Self {
            peers: Vec::new(),
            interval_seconds: 300,
            range_seconds: 3_600,
            resume_range_seconds: 6 * 3_600,
            lag_seconds: 20,
            retention: Retention::default(),
            online_file: None,
        }
    }
}

/// What runs have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Hashes of peers that were looked up in the own archive.
    pub hashes: u64,
    /// Messages that were new and are archived now.
    pub messages: u64,
    /// Peers with which the run came to its end.
    pub peers: usize,
    /// Peers that were away or gave wrong answers, or with which the run was not finished.
    pub failed_peers: usize,
}

/// Store sync with all configured peers. Cloning gives another handle of the same.
#[derive(Clone)]
pub struct StoreSync {
    shared: Arc<Shared>,
    tasks: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl fmt::Debug for StoreSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSync").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

struct Shared {
    config: SyncConfig,
    peers: Vec<Arc<StorePeer>>,
    node: Node,
    client: StoreClient,
    intake: Intake,
    archive: Arc<dyn Archive>,
    clock: Arc<dyn Clock>,
    progress: Option<Arc<ProgressFile>>,
    floor: Floor,
    metrics: SyncMetrics,
    /// One run at a time: what one peer gives, the next need not.
    turn: Semaphore,
    is_stopped: watch::Sender<bool>,
}

/// A store node that is asked.
struct StorePeer {
    id: PeerId,
    /// They are tried one after the other.
    addresses: Vec<Multiaddr>,
    state: Mutex<PeerState>,
}

/// What is remembered of a store node.
#[derive(Default)]
struct PeerState {
    /// Its messages before this are known to be here.
    synced_until: Option<Timestamp>,
    /// Where the last run has stopped, if that was in its middle.
    place: Place,
    /// Its messages that this node does not take, or that it does not give.
    declined: HashSet<MessageHash>,
    /// Runs that failed one after the other.
    failures: u32,
}

impl PeerState {
    fn decline(&mut self, hash: MessageHash) {
        if self.declined.len() >= DECLINED_MAX {
            self.declined.clear();
        }
        self.declined.insert(hash);
    }
}

impl StoreSync {
    /// Sync over a node. It runs when it is told to, and regularly once it is started.
    ///
    /// # Errors
    /// When an address does not name its peer.
    pub fn new(
        config: SyncConfig,
        node: Node,
        intake: Intake,
        archive: Arc<dyn Archive>,
        clock: Arc<dyn Clock>,
        metrics: SyncMetrics,
    ) -> Result<Self, NodeError> {
        let progress = config.online_file.clone().map(|path| Arc::new(ProgressFile::new(path)));
        let peers = peers_of(&config.peers, progress.as_deref())?;
        let client = StoreClient::new(node.clone()).with_max_message_bytes(intake.rules().max_message_bytes);
        let floor = Floor::new(config.retention);
        let shared = Shared {
            config,
            peers,
            node,
            client,
            intake,
            archive,
            clock,
            progress,
            floor,
            metrics,
            turn: Semaphore::new(1),
            is_stopped: watch::Sender::new(false),
        };
        Ok(Self { shared: Arc::new(shared), tasks: Arc::default() })
    }

    /// Runs with each peer at once and then regularly, until [`StoreSync::close`].
    pub fn start(&self) {
        let mut tasks = self.tasks.lock();
        for peer in &self.shared.peers {
            tasks.push(tokio::spawn(self.shared.clone().follow(peer.clone())));
        }
    }

    /// Runs once with every peer, one after the other, and returns when they are done.
    pub async fn run_now(&self) -> SyncReport {
        let mut report = SyncReport::default();
        for peer in &self.shared.peers {
            self.shared.sync(peer, &mut report).await;
        }
        report
    }

    /// Ends the runs, also in their middle: what they have archived stays, and the next start goes on from there.
    pub async fn close(&self) {
        self.shared.is_stopped.send_replace(true);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            let _ = task.await;
        }
    }
}

fn peers_of(
    addresses: &[Multiaddr],
    progress: Option<&ProgressFile>,
) -> Result<Vec<Arc<StorePeer>>, NodeError> {
    let known = progress.map(ProgressFile::load).unwrap_or_default();
    let mut peers: Vec<StorePeer> = Vec::with_capacity(addresses.len());
    for address in addresses {
        let missing =
            || NodeError::Config(format!("the store node {address} has no /p2p/<peer id> at its end"));
        let id = peer_of(address).ok_or_else(missing)?;
        if let Some(same) = peers.iter_mut().find(|peer| peer.id == id) {
            same.addresses.push(address.clone());
            continue;
        }
        let state = PeerState { synced_until: known.get(&id).copied(), ..PeerState::default() };
        peers.push(StorePeer { id, addresses: vec![address.clone()], state: Mutex::new(state) });
    }
    Ok(peers.into_iter().map(Arc::new).collect())
}

impl Shared {
    /// Runs with a peer at once and then regularly.
    async fn follow(self: Arc<Self>, peer: Arc<StorePeer>) {
        let mut is_stopped = self.is_stopped.subscribe();
        let runs = async {
            loop {
                let result = self.sync(&peer, &mut SyncReport::default()).await;
                tokio::time::sleep(self.pause_after(result, &peer)).await;
            }
        };
        tokio::select! {
            () = runs => {}
            _ = is_stopped.wait_for(|stopped| *stopped) => {}
        }
    }

    fn pause_after(&self, result: RunResult, peer: &StorePeer) -> Duration {
        let interval = Duration::from_secs(self.config.interval_seconds.max(1));
        match result {
            RunResult::Complete => interval,
            RunResult::Unfinished => RETRY_FIRST.min(interval), // the rest waits
            _ => {
                let doublings = peer.state.lock().failures.saturating_sub(1).min(16);
                (RETRY_FIRST * 2_u32.pow(doublings)).min(interval)
            }
        }
    }

    /// Runs once with a peer, when no other run is under way.
    async fn sync(&self, peer: &StorePeer, report: &mut SyncReport) -> RunResult {
        let Ok(_turn) = self.turn.acquire().await else {
            return RunResult::Unfinished; // the semaphore is never closed
        };
        let mut run = Run::new(self, peer);
        let outcome = timeout(RUN_TIME_MAX, run.go()).await.unwrap_or(Err(SyncError::TimedOut));
        report.hashes += run.hashes;
        report.messages += run.messages;
        match outcome {
            Ok(()) => report.peers += 1,
            Err(_) => report.failed_peers += 1,
        }
        let result = self.conclude(peer, run, outcome);
        self.save_progress().await;
        result
    }

    /// Counts a run, and says what the operator should know: once when a peer begins to fail, and once when it is back.
    fn conclude(&self, peer: &StorePeer, run: Run<'_>, outcome: Result<(), SyncError>) -> RunResult {
        let result = outcome.as_ref().err().map_or(RunResult::Complete, SyncError::result);
        self.metrics.ran(result);
        tell(peer, &run);
        let mut state = peer.state.lock();
        if outcome.as_ref().is_err_and(SyncError::keeps_place) {
            state.place = run.place;
        }
        let Err(error) = outcome else {
            self.metrics.last_success.set(self.clock.now().seconds());
            if std::mem::take(&mut state.failures) > 0 {
                info!(peer = %peer.id, "store sync with the peer succeeds again");
            }
            return result;
        };
        if result == RunResult::Unfinished {
            info!(peer = %peer.id, "there is more at the store peer than a run has time for: it goes on in a moment");
            return result;
        }
        state.failures = state.failures.saturating_add(1);
        match state.failures {
            1 => warn!(peer = %peer.id, %error, "store sync with the peer failed: it is tried again"),
            failures => debug!(peer = %peer.id, %error, failures, "store sync with the peer failed again"),
        }
        result
    }

    async fn save_progress(&self) {
        let Some(file) = self.progress.clone() else { return };
        let until = |peer: &Arc<StorePeer>| Some((peer.id, peer.state.lock().synced_until?));
        let known = self.peers.iter().filter_map(until).collect();
        let saved = tokio::task::spawn_blocking(move || file.save(known)).await;
        if let Ok(Err(error)) = saved {
            warn!(%error, "can't keep how far store sync has come: the next start looks back further");
        }
    }
}

fn tell(peer: &StorePeer, run: &Run<'_>) {
    if run.messages > 0 {
        info!(peer = %peer.id, messages = run.messages, hashes = run.hashes, "store sync found messages");
    }
    if run.wrong > 0 {
        warn!(peer = %peer.id, messages = run.wrong, "the store peer did not give the messages whose hashes it told");
    }
}

#[cfg(test)]
mod tests;
