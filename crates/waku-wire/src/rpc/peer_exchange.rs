//! `34/WAKU2-PEER-EXCHANGE`: nodes exchange the signed records of peers.

use bytes::Bytes;
use prost::Message;

/// The protocol.
pub const ID: &str = "/vac/waku/peer-exchange/2.0.0-alpha1";

/// `PeerExchangeRPC`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PeerExchangeRpc {
    /// Set in a request.
    #[prost(message, optional, tag = "1")]
    pub query: Option<PeerExchangeQuery>,
    /// Set in a response.
    #[prost(message, optional, tag = "2")]
    pub response: Option<PeerExchangeResponse>,
}

/// `PeerExchangeQuery`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PeerExchangeQuery {
    /// The most peers to return.
    #[prost(uint64, tag = "1")]
    pub num_peers: u64,
}

/// `PeerExchangeResponse`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PeerExchangeResponse {
    /// The peers.
    #[prost(message, repeated, tag = "1")]
    pub peer_infos: Vec<PeerInfo>,
    /// The status, as in HTTP; absent counts as 200 when there are peers.
    #[prost(uint32, optional, tag = "10")]
    pub status_code: Option<u32>,
    /// The status text.
    #[prost(string, optional, tag = "11")]
    pub status_desc: Option<String>,
}

/// `PeerInfo`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PeerInfo {
    /// A node record of EIP-778, RLP-encoded.
    #[prost(bytes = "bytes", tag = "1")]
    pub enr: Bytes,
}
