//! `66/WAKU2-METADATA`: the cluster and shards of a node. Peers disconnect from nodes that don't answer it.

use prost::Message;

/// The protocol.
pub const ID: &str = "/vac/waku/metadata/1.0.0";

/// `WakuMetadataRequest` and `WakuMetadataResponse`, which have the same shape.
///
/// The shards are in two fields, because some clients read only one of them and some write only the other.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Metadata {
    /// The cluster.
    #[prost(uint32, optional, tag = "1")]
    pub cluster_id: Option<u32>,
    /// The shards, one field each. Deprecated, and the only ones that js-waku reads.
    #[prost(uint32, repeated, packed = "false", tag = "2")]
    pub shards_unpacked: Vec<u32>,
    /// The shards in one packed field. The only ones that go-waku writes.
    #[prost(uint32, repeated, packed = "true", tag = "3")]
    pub shards_packed: Vec<u32>,
}

impl Metadata {
    /// Creates metadata with the shards in both fields.
    pub fn new(cluster_id: Option<u16>, shards: impl IntoIterator<Item = u16>) -> Self {
        let shards: Vec<u32> = shards.into_iter().map(u32::from).collect();
        Self { cluster_id: cluster_id.map(u32::from), shards_unpacked: shards.clone(), shards_packed: shards }
    }

    /// The shards, from the field that has them.
    pub fn shards(&self) -> &[u32] {
        if self.shards_packed.is_empty() { &self.shards_unpacked } else { &self.shards_packed }
    }
}
