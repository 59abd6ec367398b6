//! `66/WAKU2-METADATA`: nodes exchange their cluster and shards, and disconnect from peers of another cluster.
//!
//! go-waku and nwaku disconnect from a peer that does not answer, and so does js-waku when the answer lacks its shard.

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
pub(crate) use metrics::AnswerResult;
pub use metrics::MetadataMetrics;

/// The longest request and the longest answer of this node: nwaku reads no more.
const METADATA_BYTES_MAX: usize = 1_024;
/// The most shards in an answer: each takes up to five bytes, in two fields, and all must fit into [`METADATA_BYTES_MAX`].
const SHARDS_MAX: usize = 200;
/// The most shards of a peer that are stored: a cluster has no more.
const NOTED_SHARDS_MAX: usize = SHARD_MAX as usize + 1;

/// The cluster and shards that this node announces.
///
/// - A server with a cluster announces it with its shards. Without shards in its settings it serves the whole cluster: it
///   announces the shards of the network, those that it relays, and those of the asker.
/// - A server without a cluster accepts messages of any: it announces to each asker the asker's own cluster, because peers
///   would disconnect otherwise.
#[derive(Clone, Debug)]
pub(crate) struct LocalMetadata {
    node: Node,
    cluster_id: Option<u16>,
    shards: Vec<u16>,
    takes_all_shards: bool,
}

impl LocalMetadata {
    pub(crate) fn new(node: Node, rules: &Rules) -> Self {
        let takes_all_shards = rules.shards.is_empty();
        let shards = shards_of(rules).into_iter().take(SHARDS_MAX).collect();
        Self { node, cluster_id: rules.cluster_id, shards, takes_all_shards }
    }

    /// The metadata for a peer with this cluster and these shards, as far as they are known.
    fn for_asker(&self, cluster_id: Option<u32>, shards: &[u32]) -> Metadata {
        let theirs = cluster_id.and_then(|cluster_id| u16::try_from(cluster_id).ok());
        let cluster_id = self.cluster_id.or(theirs);
        let mut announced: BTreeSet<u16> = self.shards.iter().copied().collect();
        if self.takes_all_shards {
            let asked = shards.iter().filter_map(|shard| u16::try_from(*shard).ok());
            let relayed = relayed_shards(&self.node.topics(), cluster_id);
            for shard in asked.filter(|shard| *shard <= SHARD_MAX).chain(relayed) {
                if announced.len() < SHARDS_MAX {
                    announced.insert(shard);
                }
            }
        }
        Metadata::new(cluster_id, announced)
    }
}

/// The shards in the settings; if there are none, those of the network.
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

/// Stores the metadata of a peer.
fn note(node: &Node, peer: PeerId, metadata: &Metadata) {
    let shards = metadata.shards().iter().copied().take(NOTED_SHARDS_MAX).collect();
    node.note_metadata(peer, metadata.cluster_id, shards);
}

/// Answers metadata requests, and stores the metadata of the askers.
#[derive(Clone, Debug)]
pub(crate) struct MetadataService {
    local: LocalMetadata,
}

impl MetadataService {
    pub(crate) fn new(local: LocalMetadata) -> Self {
        Self { local }
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
        // The protocol has no status: like nwaku, close the stream when the request can't be decoded.
        let Ok(asker) = Metadata::decode(request) else { return Answer::none(400) };
        note(&self.local.node, peer, &asker);
        let metadata = self.local.for_asker(asker.cluster_id, asker.shards());
        Answer::new(200, rpc::frame(&metadata))
    }

    fn answer_too_often(&self, _request: Bytes) -> Answer {
        Answer::none(429)
    }
}

#[cfg(test)]
mod tests;
