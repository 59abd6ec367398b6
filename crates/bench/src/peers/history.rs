//! A client of store queries.

use std::collections::HashSet;

use anyhow::{Context, ensure};
use restante_core::{MessageHash, Timestamp};
use restante_waku::{Multiaddr, PeerId, store::StoreClient};
use restante_waku_wire::rpc::store::{StoreQueryRequest, StoreQueryResponse};

use super::{PUBSUB_TOPIC, Peer, Role, id_of};

/// The largest page of any store.
pub(crate) const PAGE_MAX: u64 = 100;

/// A light node that queries one server.
pub(crate) struct History {
    peer: Peer,
    server: PeerId,
    client: StoreClient,
}

impl History {
    /// Starts a node of its own and connects it.
    pub(crate) async fn start(server: &Multiaddr) -> anyhow::Result<Self> {
        let peer = Peer::start_connected(Role::Light, std::slice::from_ref(server), Vec::new()).await?;
        let client = StoreClient::new(peer.node.clone());
        Ok(Self { peer, server: id_of(server)?, client })
    }

    /// One page; an answer without success is an error.
    pub(crate) async fn page(&self, request: &StoreQueryRequest) -> anyhow::Result<StoreQueryResponse> {
        Ok(self.client.query(self.server, request).await?)
    }

    /// The hashes of all messages of a content topic in a time range, the end excluded. A repeated hash is an error.
    pub(crate) async fn hashes(
        &self,
        content_topic: &str,
        start: Timestamp,
        end: Option<Timestamp>,
    ) -> anyhow::Result<HashSet<MessageHash>> {
        let mut request = StoreQueryRequest {
            include_data: false,
            time_start: Some(start.nanos()),
            time_end: end.map(Timestamp::nanos),
            pagination_forward: true,
            ..question(content_topic, PAGE_MAX)
        };
        let mut hashes = HashSet::new();
        loop {
            let answer = self.page(&request).await?;
            for entry in &answer.messages {
                let hash = hash_of(entry.message_hash.as_deref())?;
                let is_new = hashes.insert(hash);
                ensure!(is_new, "a walk by cursor returned message {hash} twice");
            }
            match answer.pagination_cursor {
                Some(cursor) => request.pagination_cursor = Some(cursor),
                None => return Ok(hashes),
            }
        }
    }

    pub(crate) async fn close(self) {
        self.peer.close().await;
    }
}

/// Closes all of them concurrently.
pub(crate) async fn close_all(users: Vec<History>) {
    let mut closing = tokio::task::JoinSet::new();
    for history in users {
        closing.spawn(history.close());
    }
    closing.join_all().await;
}

/// The newest messages of a content topic, with their data.
pub(crate) fn question(content_topic: &str, page: u64) -> StoreQueryRequest {
    StoreQueryRequest {
        request_id: "bench".to_owned(),
        include_data: true,
        pubsub_topic: Some(PUBSUB_TOPIC.to_owned()),
        content_topics: vec![content_topic.to_owned()],
        pagination_limit: Some(page),
        ..StoreQueryRequest::default()
    }
}

/// The hash of an entry of an answer.
pub(crate) fn hash_of(bytes: Option<&[u8]>) -> anyhow::Result<MessageHash> {
    let bytes: [u8; 32] = bytes.unwrap_or_default().try_into().context("an entry has no hash of 32 bytes")?;
    Ok(MessageHash(bytes))
}
