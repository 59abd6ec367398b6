//! `66/WAKU2-METADATA`: nodes tell each other their cluster and shards, and take leave of those of another cluster.
//!
//! go-waku and nwaku hang up on a peer that does not answer, and so does js-waku when the answer lacks the shard it wants.

mod ask;
mod metrics;

use std::collections::BTreeSet;

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;
use prost::Message;
use restante_waku_wire::{
    PubsubTopic, SHARD_MAX,
    rpc::{self, metadata::Metadata},
};

use crate::{
    node::Node,
    service::{Answer, Service},
    validate::Rules,
};

pub(crate) use ask::keep_asking;
#[cfg(test)]
pub(crate) use metrics::Heard;
pub use metrics::MetadataMetrics;

/// The longest request, and the longest answer that we give: nwaku reads no more.
const METADATA_BYTES_MAX: usize = 1_024;
/// The most shards that are told: each takes up to five bytes, in two fields, and all of them have to fit into
/// [`METADATA_BYTES_MAX`].
const SHARDS_MAX: usize = 200;
/// The most shards of a peer that are remembered: a cluster has no more.
const NOTED_SHARDS_MAX: usize = SHARD_MAX as usize + 1;

/// Where this node is, as it tells others.
///
/// - A server with a cluster tells it, with its shards. Without shards in its settings it takes all of the cluster: it tells
///   those of the network, those that it relays, and those that the asker is on.
/// - A server without a cluster takes messages of any: it tells each asker the asker's own cluster, because it is at home
///   there too, and peers would hang up on it otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Whereabouts {
    node: Node,
    cluster_id: Option<u16>,
    shards: Vec<u16>,
    takes_all_shards: bool,
}

impl Whereabouts {
    pub(crate) fn new(node: Node, rules: &Rules) -> Self {
        let takes_all_shards = rules.shards.is_empty();
        let shards = shards_of(rules).into_iter().take(SHARDS_MAX).collect();
        Self { node, cluster_id: rules.cluster_id, shards, takes_all_shards }
    }

    /// What is told to a peer that is on `cluster_id` and `shards`, as far as that is known.
    fn told_to(&self, cluster_id: Option<u32>, shards: &[u32]) -> Metadata {
        let theirs = cluster_id.and_then(|cluster_id| u16::try_from(cluster_id).ok());
        let cluster_id = self.cluster_id.or(theirs);
        let mut told: BTreeSet<u16> = self.shards.iter().copied().collect();
        if self.takes_all_shards {
            let wanted = shards.iter().filter_map(|shard| u16::try_from(*shard).ok());
            let relayed = relayed_shards(&self.node.topics(), cluster_id);
            for shard in wanted.filter(|shard| *shard <= SHARD_MAX).chain(relayed) {
                if told.len() < SHARDS_MAX {
                    told.insert(shard);
                }
            }
        }
        Metadata::new(cluster_id, told)
    }
}

/// The shards of the settings; without any those of the network.
pub(crate) fn shards_of(rules: &Rules) -> Vec<u16> {
    if rules.shards.is_empty() { (0..rules.shards_in_network).collect() } else { rules.shards.clone() }
}

/// The shards of a cluster among pubsub topics.
fn relayed_shards(topics: &[String], cluster_id: Option<u16>) -> Vec<u16> {
    let mut shards = Vec::new();
    for topic in topics {
        if let Ok(PubsubTopic::Shard { cluster, shard }) = topic.parse()
            && cluster_id == Some(cluster)
        {
            shards.push(shard);
        }
    }
    shards
}

/// Remembers what a peer said of itself.
fn note(node: &Node, peer: PeerId, metadata: &Metadata) {
    let shards = metadata.shards().iter().copied().take(NOTED_SHARDS_MAX).collect();
    node.note_metadata(peer, metadata.cluster_id, shards);
}

/// Tells peers where this node is, and remembers where they are.
#[derive(Clone, Debug)]
pub(crate) struct MetadataService {
    whereabouts: Whereabouts,
}

impl MetadataService {
    pub(crate) fn new(whereabouts: Whereabouts) -> Self {
        Self { whereabouts }
    }
}

#[async_trait]
impl Service for MetadataService {
    fn id(&self) -> &'static str {
        rpc::metadata::ID
    }

    fn name(&self) -> &'static str {
        "metadata"
    }

    fn request_bytes_max(&self) -> usize {
        METADATA_BYTES_MAX
    }

    async fn answer(&self, peer: PeerId, request: Bytes) -> Answer {
        // The protocol has no status: like nwaku, close the stream on what can't be read.
        let Ok(asker) = Metadata::decode(request) else { return Answer::none(400) };
        note(&self.whereabouts.node, peer, &asker);
        let told = self.whereabouts.told_to(asker.cluster_id, asker.shards());
        Answer::new(200, rpc::frame(&told))
    }

    fn answer_too_often(&self, _request: Bytes) -> Answer {
        Answer::none(429)
    }
}

#[cfg(test)]
mod tests;
