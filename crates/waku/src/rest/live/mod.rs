//! Live streams: messages as they arrive, after everything since a cursor, as Server-Sent Events or over a WebSocket.
//!
//! A stream is a session: [`member`] opens it and subscribes to the hub. [`ask`] parses what a client wants, [`catch_up`] walks
//! the archive from its cursor, [`hand_over`] explains why nothing is missing and nothing is repeated where the two meet,
//! [`feed`] is the output, and [`sse`] and [`socket`] write it.
//!
//! **Cursors.** A message from the archive has its own key as cursor, so that a stream resumes right after it. A message that is
//! sent as it arrives has a key as cursor before which nothing can arrive any more: the validity window of timestamps and some
//! seconds before the moment at which everything that had arrived was sent. A client that resumes there misses nothing, and gets
//! what it already had of these last thirty seconds or so again: clients identify a message by its `messageHash`. The same holds
//! for the last seconds of a walk. What a resumed stream can miss, because it is in no archive or arrives in another way:
//!
//! - messages that are never archived: ephemeral ones, and those with a time that no archive accepts;
//! - messages that the server fetches from other stores (store sync) long after their time, which are never announced either;
//! - messages that were published at another node of the table whose archiving took longer than ten seconds, if they were
//!   announced while the stream was disconnected;
//! - on a server that accepts messages of any time (a window of 0), those whose time is further from its clock than the usual
//!   window: no cursor is early enough for them.
//!
//! **Durability.** A message is sent as it arrives, before it is durable: waiting for the sync would delay it for as long as
//! other writes keep the disk busy. So a stream may send a message whose publisher never got an acknowledgement: the archive
//! refused it, or the machine failed before the sync. Resuming from a cursor later finds only archived messages.

mod ask;
mod catch_up;
mod feed;
mod hand_over;
mod member;
mod metrics;
mod socket;
mod sse;

use std::{net::SocketAddr, sync::Arc};

use axum::{body::Body, extract::State, http::Request, response::Response};
use restante_archive::Query;
use restante_core::{Key, MessageHash};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

#[cfg(test)]
pub(super) use ask::LIVE_NAMES;
pub(super) use metrics::LiveMetrics;

use restante_http::{Client, Permits, websocket::Upgrade};

use super::{App, RestConfig, refusals, reply::Refusal};
use ask::{Asked, From};
use catch_up::{CatchUp, Pages};
use feed::{Feed, LiveMessages, Marks};
use hand_over::Times;
use member::Member;
use metrics::Transport;

/// Pages that are queried and read at the same time, over all streams. Here streams wait for each other, for the time of a page.
const WALKS_MAX: usize = 16;

/// The limits on the streams of a door.
#[derive(Debug)]
pub(super) struct Bounds {
    streams: Permits,
    walks: Semaphore,
    pages: Pages,
}

impl Bounds {
    pub(super) fn of(config: &RestConfig) -> Self {
        Self {
            streams: Permits::new(config.live_streams_max.get()),
            walks: Semaphore::new(WALKS_MAX),
            pages: Pages::default(),
        }
    }
}

/// `GET /live`
pub(super) async fn live(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response, Refusal> {
    Box::pin(open(app, request, false)).await
}

/// `GET /relay/v1/messages/{pubsubTopic}/live`
pub(super) async fn live_of(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    Box::pin(open(app, request, true)).await
}

async fn open(app: Arc<App>, request: Request<Body>, is_topic_in_path: bool) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let upgrade = Upgrade::read(&request)?;
    let asked = Asked::read(request.uri(), request.headers(), app.rules(), is_topic_in_path)?;
    let client = request.extensions().get::<Client>().map_or(NOBODY, |client| client.0);
    let transport = if upgrade.is_some() { Transport::WebSocket } else { Transport::Sse };
    drop(request); // its head need not be kept for as long as the stream lasts
    let feed = feed(&app, asked, client, transport, deadline).await?;
    Ok(match upgrade {
        None => sse::answer(feed),
        Some(upgrade) => socket::answer(upgrade, feed),
    })
}

/// The address of a client that did not connect by a socket, and has none.
const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Joins the hub, and determines where to begin.
async fn feed(
    app: &Arc<App>,
    asked: Asked,
    client: SocketAddr,
    transport: Transport,
    deadline: Instant,
) -> Result<Feed, Refusal> {
    let permit = app.live.streams.acquire().map_err(|_| TOO_MANY)?;
    let behind = match asked.from {
        From::Now => None,
        From::Behind(key) => Some(key),
        From::Message(hash) => Some(place_of(app, hash, deadline).await?),
    };
    let (rest, times) = (&app.rest, Times::of(app.rules()));
    let marks = Marks::new(rest.clock.clone(), times);
    let metrics = &rest.metrics.live;
    let join =
        Member::join(&rest.waku.live, client, &asked.wants, &rest.config, (metrics, transport), permit);
    let member = join.await?;
    let Some(behind) = behind else {
        return Ok(Feed::Live(Box::new(LiveMessages::from_now(member, marks, metrics.clone()))));
    };
    let mut walk = CatchUp::new(app.clone(), member, asked.wants, behind, marks, times).await;
    walk.begin(deadline).await?;
    Ok(Feed::CatchingUp(walk.start()))
}

const TOO_MANY: Refusal =
    Refusal::unavailable("as many live streams are open as there may be: try again later");

/// The key of a message in the archive.
async fn place_of(app: &App, hash: MessageHash, deadline: Instant) -> Result<Key, Refusal> {
    let _permit = app.permits.acquire()?;
    let query = Query { hashes: vec![hash], limit: 1, bodies: false, ..Query::default() };
    let page = timeout_at(deadline, app.archive.query(&query)).await;
    let page = page.map_err(|_| refusals::late())?;
    let page = page.map_err(|error| refusals::of_query(&error))?;
    let key = page.rows().next().map(|row| row.key());
    key.ok_or_else(|| Refusal::field("cursor", "no message with this hash is archived"))
}

#[cfg(test)]
mod tests;
