//! Store queries that another node should answer: those with a `peerAddr`.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
    response::Response,
};
use bytes::Bytes;
use restante_archive::{Direction, Query, Topics};
use restante_core::Cursor;
use restante_waku_wire::rpc::store::{StoreQueryRequest, StoreQueryResponse};
use tokio::time::{Instant, timeout_at};

use super::{App, json, reply, reply::Refusal, store::StoreQuery};
use crate::{
    large,
    node::{AskError, Node, PeerAddress},
    store::{StoreClient, StoreClientError},
};

/// How long connecting to another node and its answer may take: as long as nwaku waits.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the node may dial for a request: only for clients that may also make it connect to peers by `/admin/v1/peers`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MayDial(bool);

impl FromRequestParts<Arc<App>> for MayDial {
    type Rejection = Infallible;

    async fn from_request_parts(head: &mut Parts, app: &Arc<App>) -> Result<Self, Infallible> {
        let passes = app.rest.operators.passes(&head.method, &head.uri, &head.headers);
        Ok(Self(app.rest.offer().admin && passes))
    }
}

/// Queries another node and returns its answer.
pub(crate) async fn answer(
    app: &App,
    to: &PeerAddress,
    asked: &StoreQuery,
    may_dial: MayDial,
    deadline: Instant,
) -> Result<Response, Refusal> {
    let request = request_of(asked)?;
    let _remote_permit = app.remote_queries.acquire()?;
    let message_bytes_max = if asked.include_data { app.rules().max_message_bytes.get() } else { 0 };
    let longest = json::longest_answer(asked.query.limit, message_bytes_max);
    let memory = app.memory.acquire(longest, deadline).await?;
    let _permit = app.permits.acquire()?;
    let deadline = deadline.min(Instant::now() + PEER_TIMEOUT);
    let answered = timeout_at(deadline, ask(app, to, &request, may_dial)).await;
    let answer = answered.map_err(|_| too_late())??;
    let include_data = asked.include_data;
    let size = json::remote_size(&answer);
    let write = move || json::write_remote_answer(&answer, include_data).map(|written| memory.hold(written));
    let written = large::work(size, write).await.map_err(|_| Refusal::internal())?;
    written.map(reply::json).map_err(|json::Malformed| malformed())
}

async fn ask(
    app: &App,
    to: &PeerAddress,
    request: &StoreQueryRequest,
    may_dial: MayDial,
) -> Result<StoreQueryResponse, Refusal> {
    let Some(node) = &app.rest.waku.node else {
        let text = "peerAddr: this server has no node that could ask another";
        return Err(Refusal::new(StatusCode::PRECONDITION_FAILED, text));
    };
    reach(node, to, may_dial).await?;
    let client = StoreClient::new(node.clone()).with_max_message_bytes(app.rules().max_message_bytes.get());
    client.query(to.peer, request).await.map_err(|error| refusal_of(&error))
}

/// Makes sure that the peer is connected.
///
/// nwaku dials any address in a request. With that, any client could make this server connect to any host of its network, so
/// clients other than operators may query only connected peers, at any address.
async fn reach(node: &Node, to: &PeerAddress, may_dial: MayDial) -> Result<(), Refusal> {
    if node.is_connected(to.peer) {
        return Ok(());
    }
    if !may_dial.0 {
        let text = "peerAddr: this server is not connected to this peer, and dials for operators alone: with rest.admin \
                    or, where there is a token, for who shows it";
        return Err(Refusal::new(StatusCode::FORBIDDEN, text));
    }
    let unreached = |_| Refusal::new(StatusCode::GATEWAY_TIMEOUT, "peerAddr: can't connect to this peer");
    node.connect(to.address.clone()).await.map(|_| ()).map_err(unreached)
}

fn refusal_of(error: &StoreClientError) -> Refusal {
    match error {
        StoreClientError::Ask(AskError::TimedOut) => too_late(),
        StoreClientError::Refused { status: 429, .. } => {
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, "the peer is asked too often: try again later")
        }
        StoreClientError::Refused { status: 400, text } => {
            Refusal::invalid(format!("the peer refused the query: {text}"))
        }
        StoreClientError::Refused { status, text } => {
            bad_gateway(format!("the peer answered {status}: {text}"))
        }
        StoreClientError::Ask(_) => bad_gateway("the peer did not answer the query".to_owned()),
        StoreClientError::Malformed(_) => malformed(),
    }
}

fn too_late() -> Refusal {
    Refusal::new(StatusCode::GATEWAY_TIMEOUT, "the peer did not answer in time")
}

fn malformed() -> Refusal {
    bad_gateway("the peer's answer can't be used".to_owned())
}

fn bad_gateway(text: String) -> Refusal {
    Refusal { status: StatusCode::BAD_GATEWAY, ..Refusal::invalid(text) }
}

/// The query in the protocol's format, which has no bloom filters.
fn request_of(asked: &StoreQuery) -> Result<StoreQueryRequest, Refusal> {
    let query: &Query = &asked.query;
    let content_topics = match &query.topics {
        Topics::Any => Vec::new(),
        Topics::List(topics) => topics.clone(),
        Topics::Bloom(_) => return Err(Refusal::field("bloom", "does not go together with peerAddr")),
    };
    Ok(StoreQueryRequest {
        request_id: String::new(), // the client assigns one
        include_data: asked.include_data,
        pubsub_topic: query.channel.clone(),
        content_topics,
        time_start: query.start.map(|start| start.nanos()),
        time_end: query.end.map(|end| end.nanos()),
        message_hashes: query.hashes.iter().map(|hash| Bytes::copy_from_slice(hash.as_bytes())).collect(),
        pagination_cursor: query.cursor.map(|cursor| match cursor {
            Cursor::Message(hash) => Bytes::copy_from_slice(hash.as_bytes()),
            Cursor::At(key) => Bytes::copy_from_slice(key.message_hash.as_bytes()),
        }),
        pagination_forward: query.direction == Direction::Forward,
        pagination_limit: Some(query.limit as u64),
    })
}
