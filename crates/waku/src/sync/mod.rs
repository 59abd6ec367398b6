//! Store sync: fetches missed messages from other store nodes by Store v3.
//!
//! From each store peer this node queries the hashes of a time range, looks up which of them its own archive lacks, and fetches
//! these messages. They are validated as any message, except for their age, and must have the requested hashes.
//!
//! Ranges overlap, so a message that reached the peer late is found by a later run. The time until which each peer's messages
//! are archived here is stored in a file, so a node that was offline continues from there.

mod floor;
mod metrics;
mod progress;
mod run;
mod window;

use std::{collections::HashSet, fmt, num::NonZero, path::PathBuf, sync::Arc, time::Duration};

use libp2p::{Multiaddr, PeerId};
use parking_lot::Mutex;
use restante_archive::{Archive, Retention};
use restante_core::{Clock, MessageHash, Timestamp, nonzero, settings};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::timeout,
};
use tracing::{debug, info, warn};

pub use metrics::SyncMetrics;

use crate::{
    intake::Intake,
    node::{Node, PeerAddress},
    store::StoreClient,
};
use floor::Floor;
use metrics::RunResult;
use progress::ProgressFile;
use run::{Position, Run, SyncError};

/// The longest run with one peer; the next run continues where it stopped.
const RUN_TIME_MAX: Duration = Duration::from_secs(300);
/// The first delay after a failed run; it doubles with each failure, up to the interval.
const RETRY_FIRST: Duration = Duration::from_secs(5);
/// The most declined messages of a peer that are stored, so that they are not requested in each run: messages that this node
/// does not accept or that the peer does not send. The set is cleared when it is full; then they are requested once more.
const DECLINED_MAX: usize = 10_000;

/// The settings of store sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncConfig {
    /// The store nodes to query; an empty list disables sync.
    #[serde(with = "settings::texts")]
    pub peers: Vec<PeerAddress>,
    /// The time between two runs.
    pub interval_seconds: NonZero<u64>,
    /// How far a run looks back.
    pub range_seconds: NonZero<u64>,
    /// The most that a run looks back, when this node was offline or has no progress.
    pub resume_range_seconds: NonZero<u64>,
    /// Younger messages are left to relay.
    pub lag_seconds: u64,
    /// The retention of the archive: messages that it would remove are not fetched.
    #[serde(skip)]
    pub retention: Retention,
    /// The file with the progress of each peer. Without it, the first run after a start looks back as far as allowed.
    #[serde(skip)]
    pub online_file: Option<PathBuf>,
}

impl Default for SyncConfig {
    /// nwaku's values: `--store-sync-interval`, `--store-sync-range`, the six hours of `--store-resume`, and the jitter of its relay.
    fn default() -> Self {
        Self {
            peers: Vec::new(),
            interval_seconds: nonzero!(300),
            range_seconds: nonzero!(3_600),
            resume_range_seconds: nonzero!(6 * 3_600),
            lag_seconds: 20,
            retention: Retention::default(),
            online_file: None,
        }
    }
}

/// The results of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Hashes that were looked up in this node's archive.
    pub hashes: u64,
    /// New messages that were archived.
    pub messages: u64,
    /// Peers with which the run was completed.
    pub peers: usize,
    /// Peers with which the run failed or was not finished.
    pub failed_peers: usize,
}

/// Store sync with all configured peers. Clones are handles of the same sync.
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
    /// One run at a time: messages that one peer sent need not be fetched from the next.
    run_permit: Semaphore,
    is_stopped: watch::Sender<bool>,
}

/// A store node to query.
struct StorePeer {
    id: PeerId,
    /// Tried one after the other.
    addresses: Vec<Multiaddr>,
    state: Mutex<PeerState>,
}

/// The sync state of a store node.
#[derive(Default)]
struct PeerState {
    /// Its messages before this time are archived here.
    synced_until: Option<Timestamp>,
    /// Where the last run stopped, if it was not finished.
    position: Position,
    /// Messages that this node does not accept, or that the peer does not send.
    declined: HashSet<MessageHash>,
    /// The number of failed runs in a row.
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
    /// Creates a sync that queries by `node`. It runs on [`StoreSync::run_now`], and periodically after [`StoreSync::start`].
    pub fn new(
        config: SyncConfig,
        node: Node,
        intake: Intake,
        archive: Arc<dyn Archive>,
        clock: Arc<dyn Clock>,
        metrics: SyncMetrics,
    ) -> Self {
        let progress = config.online_file.clone().map(|path| Arc::new(ProgressFile::new(path)));
        let peers = peers_of(&config.peers, progress.as_deref());
        let client =
            StoreClient::new(node.clone()).with_max_message_bytes(intake.rules().max_message_bytes.get());
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
            run_permit: Semaphore::new(1),
            is_stopped: watch::Sender::new(false),
        };
        Self { shared: Arc::new(shared), tasks: Arc::default() }
    }

    /// Runs with each peer now and then periodically, until [`StoreSync::close`].
    pub fn start(&self) {
        let mut tasks = self.tasks.lock();
        for peer in &self.shared.peers {
            tasks.push(tokio::spawn(self.shared.clone().run_periodically(peer.clone())));
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

    /// Stops all runs. Archived messages stay, and the next start continues from there.
    pub async fn close(&self) {
        self.shared.is_stopped.send_replace(true);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            let _ = task.await;
        }
    }
}

fn peers_of(addresses: &[PeerAddress], progress: Option<&ProgressFile>) -> Vec<Arc<StorePeer>> {
    let known = progress.map(ProgressFile::load).unwrap_or_default();
    let mut peers: Vec<StorePeer> = Vec::with_capacity(addresses.len());
    for PeerAddress { address, peer: id } in addresses {
        if let Some(same) = peers.iter_mut().find(|peer| peer.id == *id) {
            same.addresses.push(address.clone());
            continue;
        }
        let state = PeerState { synced_until: known.get(id).copied(), ..PeerState::default() };
        peers.push(StorePeer { id: *id, addresses: vec![address.clone()], state: Mutex::new(state) });
    }
    peers.into_iter().map(Arc::new).collect()
}

impl Shared {
    /// Runs with a peer now and then periodically.
    async fn run_periodically(self: Arc<Self>, peer: Arc<StorePeer>) {
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
        let interval = Duration::from_secs(self.config.interval_seconds.get());
        match result {
            RunResult::Complete => interval,
            RunResult::Unfinished => RETRY_FIRST.min(interval), // there is more to fetch
            _ => {
                let doublings = peer.state.lock().failures.saturating_sub(1).min(16);
                (RETRY_FIRST * 2_u32.pow(doublings)).min(interval)
            }
        }
    }

    /// Runs once with a peer, when no other run is active.
    async fn sync(&self, peer: &StorePeer, report: &mut SyncReport) -> RunResult {
        let Ok(_permit) = self.run_permit.acquire().await else {
            return RunResult::Unfinished; // the semaphore is never closed
        };
        let mut run = Run::new(self, peer);
        let outcome = timeout(RUN_TIME_MAX, run.execute()).await.unwrap_or(Err(SyncError::TimedOut));
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

    /// Counts a run and logs its result: failures of a peer once when they begin, and once when they end.
    fn conclude(&self, peer: &StorePeer, run: Run<'_>, outcome: Result<(), SyncError>) -> RunResult {
        let result = outcome.as_ref().err().map_or(RunResult::Complete, SyncError::result);
        self.metrics.ran(result);
        log_messages(peer, &run);
        let mut state = peer.state.lock();
        if outcome.as_ref().is_err_and(SyncError::keeps_position) {
            state.position = run.position;
        }
        let Err(error) = outcome else {
            self.metrics.last_success.set(self.clock.now().seconds());
            if std::mem::take(&mut state.failures) > 0 {
                info!(peer = %peer.id, "store sync with the peer succeeds again");
            }
            return result;
        };
        if result == RunResult::Unfinished {
            info!(peer = %peer.id, "the time for a run of store sync is over: the next one continues in a moment");
            return result;
        }
        state.failures = state.failures.saturating_add(1);
        match state.failures {
            1 => warn!(peer = %peer.id, %error, "store sync with the peer failed: trying again"),
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
            warn!(%error, "can't save the progress of store sync: the next start looks back further");
        }
    }
}

fn log_messages(peer: &StorePeer, run: &Run<'_>) {
    if run.messages > 0 {
        info!(peer = %peer.id, messages = run.messages, hashes = run.hashes, "store sync found messages");
    }
    if run.wrong > 0 {
        warn!(peer = %peer.id, messages = run.wrong, "the store peer did not send the messages whose hashes it announced");
    }
}

#[cfg(test)]
mod tests;
