//! Queries each peer's cluster, and disconnects from peers of another.

use std::{collections::HashSet, sync::Arc, time::Duration};

use libp2p::PeerId;
use parking_lot::Mutex;
use prost::Message;
use restante_waku_wire::rpc::{self, metadata::Metadata};
use tokio::{task::JoinSet, time::timeout};
use tracing::{debug, warn};

use super::{LocalMetadata, metrics::AnswerResult, metrics::MetadataMetrics, note};
use crate::peer_connected::PeerConnected;

/// The most peers that are queried at the same time: enough to query a thousand new peers within seconds.
const ASKED_AT_ONCE_MAX: usize = 32;
/// How long a peer may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer of a peer: all shards of a cluster, in both fields.
const ANSWER_BYTES_MAX: usize = 8 << 10;
/// The most static peers of another cluster that are stored, to warn once of each.
const WARNED_MAX: usize = 1_024;

/// Queries peers until it is dropped. A node without a cluster queries none: it accepts all clusters, and gets the metadata of
/// its peers when they query this node.
pub(crate) async fn keep_asking(
    local: LocalMetadata,
    mut connected: PeerConnected,
    metrics: MetadataMetrics,
) {
    let Some(cluster_id) = local.cluster_id else { return };
    let asker = Arc::new(Asker { local, cluster_id, metrics, warned: Mutex::default() });
    let mut asked = JoinSet::new();
    loop {
        if asked.len() >= ASKED_AT_ONCE_MAX {
            asked.join_next().await;
        }
        tokio::select! {
            peer = connected.next() => match peer {
                Some(peer) => { asked.spawn(Arc::clone(&asker).check(peer)); }
                None => return,
            },
            Some(_) = asked.join_next() => {}
        }
    }
}

struct Asker {
    local: LocalMetadata,
    cluster_id: u16,
    metrics: MetadataMetrics,
    warned: Mutex<HashSet<PeerId>>,
}

impl Asker {
    async fn check(self: Arc<Self>, peer: PeerId) {
        let Some(metadata) = self.ask(peer).await else {
            self.metrics.count_answer(AnswerResult::NoAnswer);
            return;
        };
        note(&self.local.node, peer, &metadata);
        let result = match metadata.cluster_id {
            Some(theirs) if theirs == u32::from(self.cluster_id) => AnswerResult::SameCluster,
            Some(_) => AnswerResult::OtherCluster,
            None => AnswerResult::NoCluster,
        };
        self.metrics.count_answer(result);
        if result != AnswerResult::SameCluster {
            self.disconnect(peer, metadata.cluster_id).await;
        }
    }

    /// The peer's metadata; `None` when it does not answer or the answer can't be decoded.
    async fn ask(&self, peer: PeerId) -> Option<Metadata> {
        let node = &self.local.node;
        let known = node.peer(peer)?; // the peer disconnected meanwhile
        let request = rpc::frame(&self.local.for_asker(known.cluster_id, &known.shards));
        let answer = node.ask(peer, rpc::metadata::ID, &request, ANSWER_BYTES_MAX);
        match timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(answer)) => Metadata::decode(answer).ok(),
            Ok(Err(error)) => {
                debug!(%peer, %error, "peer did not answer the metadata request");
                None
            }
            Err(_) => {
                debug!(%peer, "peer did not answer the metadata request in time");
                None
            }
        }
    }

    /// Disconnects, as nwaku and go-waku do: peers of different clusters exchange no messages.
    async fn disconnect(&self, peer: PeerId, theirs: Option<u32>) {
        let node = &self.local.node;
        let ours = self.cluster_id;
        let is_static = node.peer(peer).is_some_and(|peer| peer.is_static);
        if is_static && self.is_first_warning(peer) {
            warn!(%peer, ours, ?theirs, "static peer is of another cluster: disconnected from it, and will be again");
        } else {
            debug!(%peer, ours, ?theirs, "peer is of another cluster: disconnected from it");
        }
        node.disconnect(peer).await;
    }

    fn is_first_warning(&self, peer: PeerId) -> bool {
        let mut warned = self.warned.lock();
        warned.len() < WARNED_MAX && warned.insert(peer)
    }
}
