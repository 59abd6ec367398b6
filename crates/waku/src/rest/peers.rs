//! Routes on peers, only for operators: a client of these routes can make the node dial any address.

use std::{collections::BTreeMap, io, str::FromStr, sync::Arc};

use axum::{
    body::Body,
    extract::State,
    http::{Request, StatusCode, Uri},
    response::Response,
};
use futures_util::future::join_all;
use libp2p::PeerId;
use restante_waku_wire::{PubsubTopic, rpc};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{task::spawn_blocking, time::timeout_at};

use super::{App, body, path, reply, reply::Refusal};
use crate::{
    filter::Subscription,
    node::{Node, PeerAddress, PeerInfo, with_peer_id},
};

/// The most addresses in one request to connect.
const ADDRESSES_MAX: usize = 32;
/// The longest request to connect.
const ADDRESSES_BYTES_MAX: usize = 32 << 10;
/// The longest report. Every peer may follow every topic, and would be listed in full under each.
const REPORT_BYTES_MAX: usize = 64 << 20;

/// Relay's protocol, `11/WAKU2-RELAY`.
const RELAY_ID: &str = "/vac/waku/relay/2.0.0";
/// The protocols of a peer's services.
const SERVICE_IDS: [&str; 6] = [
    RELAY_ID,
    rpc::filter::SUBSCRIBE_ID,
    rpc::store::ID,
    rpc::light_push::ID,
    rpc::light_push::LEGACY_ID,
    rpc::peer_exchange::ID,
];

/// Writes a report on the blocking pool, because it may be long, and one report at a time: its memory is not counted elsewhere
/// while it is written.
async fn report(
    app: Arc<App>,
    write: impl FnOnce(&App) -> Result<Vec<u8>, Refusal> + Send + 'static,
) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let permit = timeout_at(deadline, app.reports.clone().acquire_owned()).await;
    let permit = permit.ok().and_then(Result::ok).ok_or(Refusal::busy())?;
    let with = app.clone();
    // The permit moves with the work, which continues when the client leaves.
    let written = spawn_blocking(move || (write(&with), permit)).await;
    let (json, _permit) = written.map_err(|_| Refusal::internal())?;
    let json = json?;
    let memory = app.memory.acquire(json.capacity(), deadline).await?;
    Ok(reply::json(memory.hold(json)))
}

/// Writes a report as JSON, up to [`REPORT_BYTES_MAX`].
fn written(report: &impl Serialize) -> Result<Vec<u8>, Refusal> {
    let mut bounded = Bounded { json: Vec::new(), bytes_max: REPORT_BYTES_MAX };
    match serde_json::to_writer(&mut bounded, report) {
        Ok(()) => Ok(bounded.json),
        Err(_) => Err(Refusal::unavailable("the report is too long: ask for less at once, as for one shard")),
    }
}

/// Collects written bytes up to a limit.
struct Bounded {
    json: Vec<u8>,
    bytes_max: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.json.len().saturating_add(bytes.len()) > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.json.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `GET /admin/v1/peers`, and `.../connected`: this node knows only peers that are connected.
pub(crate) async fn peers(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    report(app, |app| shown(&app.peers())).await
}

/// `GET /admin/v1/peers/service`: peers that offer a service, with only their services.
pub(crate) async fn service_peers(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    report(app, |app| {
        let mut peers = app.peers();
        for peer in &mut peers {
            peer.protocols.retain(|id| SERVICE_IDS.contains(&&**id));
        }
        peers.retain(|peer| !peer.protocols.is_empty());
        shown(&peers)
    })
    .await
}

/// `GET /admin/v1/peer/{peerId}`
pub(crate) async fn peer(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Refusal> {
    let id = path::last(&uri, "peerId")?;
    let id = PeerId::from_str(&id).map_err(|_| Refusal::field("peerId", "is no peer id"))?;
    let info = app.rest.waku.node.as_ref().and_then(|node| node.peer(id));
    let info = info.ok_or(Refusal::new(StatusCode::NOT_FOUND, "this peer is not connected"))?;
    Ok(reply::json(written(&show(&info))?))
}

/// `GET /admin/v1/peers/connected/on/{shardId}`
pub(crate) async fn connected_on(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Refusal> {
    let shard = shard_of(&uri)?;
    report(app, move |app| {
        let mut peers = app.peers();
        peers.retain(|peer| shards_of(peer).contains(&shard));
        shown(&peers)
    })
    .await
}

/// `GET /admin/v1/peers/relay`: the followers of each shard that this node relays.
pub(crate) async fn relay_peers(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    report(app, |app| by_shard(app, Follows::Topic)).await
}

/// `GET /admin/v1/peers/relay/on/{shardId}`
pub(crate) async fn relay_peers_on(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Refusal> {
    let shard = shard_of(&uri)?;
    report(app, move |app| on_shard(app, shard, Follows::Topic)).await
}

/// `GET /admin/v1/peers/mesh`: the peers in the mesh of each shard.
pub(crate) async fn mesh_peers(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    report(app, |app| by_shard(app, Follows::InMesh)).await
}

/// `GET /admin/v1/peers/mesh/on/{shardId}`
pub(crate) async fn mesh_peers_on(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Refusal> {
    let shard = shard_of(&uri)?;
    report(app, move |app| on_shard(app, shard, Follows::InMesh)).await
}

/// `GET /admin/v1/peers/stats`
pub(crate) async fn stats(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    report(app, |app| {
        let topics = app.rest.waku.node.as_ref().map(Node::topics).unwrap_or_default();
        written(&count(&app.peers(), &topics))
    })
    .await
}

fn count(peers: &[PeerInfo], topics: &[String]) -> Value {
    let by_protocol: BTreeMap<&str, usize> = SERVICE_IDS
        .into_iter()
        .map(|id| {
            (id, peers.iter().filter(|peer| peer.protocols.iter().any(|protocol| protocol == id)).count())
        })
        .collect();
    json!({
        "Sum": {"Total peers": peers.len()},
        "By Connectedness": {
            "Connected": peers.len(), "NotConnected": 0, "CannotConnect": 0, "CanConnect": 0,
        },
        "Relay peers": counts_by_shard(peers, topics, Follows::Topic),
        "Mesh peers": counts_by_shard(peers, topics, Follows::InMesh),
        "By Protocols": by_protocol,
    })
}

/// `POST /admin/v1/peers`: connects to each address in a list, which include the peer ids.
pub(crate) async fn connect(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let json = body::read(request.into_body(), ADDRESSES_BYTES_MAX, deadline).await?;
    let addresses: Vec<String> = serde_json::from_slice(&json).map_err(|error| Refusal::json(&error))?;
    if addresses.len() > ADDRESSES_MAX {
        let text =
            format!("{} addresses are too many: a request has at most {ADDRESSES_MAX}", addresses.len());
        return Err(Refusal::invalid(text));
    }
    let mut parsed = Vec::with_capacity(addresses.len());
    for (index, address) in addresses.iter().enumerate() {
        let wrong =
            |_| Refusal::invalid(format!("address {index} does not end with /p2p/<peer id>: {address}"));
        parsed.push(address.parse::<PeerAddress>().map_err(wrong)?.address);
    }
    let node = app.node()?;
    let _permit = app.permits.acquire()?;
    let connected = join_all(parsed.into_iter().map(|address| node.connect(address)));
    let connected = timeout_at(deadline, connected).await;
    let connected = connected.map_err(|_| Refusal::invalid("not all peers answered in time".to_owned()))?;
    for (index, result) in connected.into_iter().enumerate() {
        result.map_err(|error| Refusal::invalid(format!("peer {index}: {error}")))?;
    }
    Ok(reply::text("OK"))
}

/// `GET /admin/v1/filter/subscriptions`: the filter subscriptions of peers.
pub(crate) async fn filter_subscriptions(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    report(app, |app| {
        let Some(subscriptions) = app.rest.waku.filter_subscriptions() else {
            return Err(Refusal::invalid("this server offers no filter to peers".to_owned()));
        };
        let shown: Vec<ShownSubscription<'_>> = subscriptions.iter().map(show_subscription).collect();
        written(&shown)
    })
    .await
}

/// Which of a peer's pubsub topics count.
#[derive(Clone, Copy)]
enum Follows {
    /// All topics that it follows.
    Topic,
    /// The topics for which it is in our mesh.
    InMesh,
}

impl Follows {
    fn holds(self, peer: &PeerInfo, topic: &str) -> bool {
        match self {
            Self::Topic => peer.topics.contains(topic),
            Self::InMesh => peer.mesh_topics.contains(topic),
        }
    }
}

fn by_shard(app: &App, follows: Follows) -> Result<Vec<u8>, Refusal> {
    let node = relaying(app)?;
    let peers = node.peers();
    let all: Vec<(&PeerInfo, ShownPeer<'_>)> = peers.iter().map(|peer| (peer, show(peer))).collect();
    let shards = shards_relayed(&node.topics());
    let shown = shards.iter().map(|(shard, topic)| show_shard(*shard, topic, &all, follows));
    written(&shown.collect::<Vec<ShownShard<'_>>>())
}

/// The peers of one of the shards that this node relays; none for another shard. A number that it relays in several clusters
/// means the first of them.
fn on_shard(app: &App, asked: u16, follows: Follows) -> Result<Vec<u8>, Refusal> {
    let node = relaying(app)?;
    let relayed = shards_relayed(&node.topics());
    let topic = relayed.into_iter().find(|(shard, _)| *shard == asked).map(|(_, topic)| topic);
    let peers = node.peers();
    let all: Vec<(&PeerInfo, ShownPeer<'_>)> = peers.iter().map(|peer| (peer, show(peer))).collect();
    written(&show_shard(asked, topic.as_deref().unwrap_or_default(), &all, follows))
}

fn relaying(app: &App) -> Result<&Node, Refusal> {
    let node = app.rest.waku.node.as_ref().filter(|node| node.is_relay());
    node.ok_or(Refusal::unavailable("this server does not relay"))
}

fn show_shard<'p>(
    shard: u16,
    topic: &str,
    all: &'p [(&PeerInfo, ShownPeer<'p>)],
    follows: Follows,
) -> ShownShard<'p> {
    let there = all.iter().filter(|(peer, _)| follows.holds(peer, topic));
    ShownShard { shard, peers: there.map(|(_, shown)| shown).collect() }
}

/// nwaku's totals count shards and not peers; these count peers, each once.
fn counts_by_shard(peers: &[PeerInfo], topics: &[String], follows: Follows) -> Value {
    let mut counts = serde_json::Map::new();
    for (shard, topic) in shards_relayed(topics) {
        let count = peers.iter().filter(|peer| follows.holds(peer, &topic)).count();
        counts.insert(shard.to_string(), count.into());
    }
    let anywhere = |peer: &&PeerInfo| topics.iter().any(|topic| follows.holds(peer, topic));
    let (name, total) = match follows {
        Follows::Topic => ("Total relay peers", peers.iter().filter(anywhere).count()),
        Follows::InMesh => ("Total mesh peers", peers.iter().filter(anywhere).count()),
    };
    counts.insert(name.to_owned(), total.into());
    Value::Object(counts)
}

/// The shards among pubsub topics, each with its topic.
fn shards_relayed(topics: &[String]) -> Vec<(u16, String)> {
    let mut shards: Vec<(u16, String)> =
        topics.iter().filter_map(|topic| Some((shard_number(topic)?, topic.clone()))).collect();
    shards.sort();
    shards
}

fn shard_number(topic: &str) -> Option<u16> {
    match topic.parse() {
        Ok(PubsubTopic::Shard { shard, .. }) => Some(shard),
        _ => None,
    }
}

fn shard_of(uri: &Uri) -> Result<u16, Refusal> {
    let text = path::last(uri, "shardId")?;
    text.parse().map_err(|_| Refusal::field("shardId", "expected a whole number from 0 to 65535"))
}

fn shown(peers: &[PeerInfo]) -> Result<Vec<u8>, Refusal> {
    written(&peers.iter().map(show).collect::<Vec<ShownPeer<'_>>>())
}

/// A peer in nwaku's format.
#[derive(Serialize)]
struct ShownPeer<'p> {
    multiaddr: String,
    protocols: &'p [String],
    shards: Vec<u16>,
    connected: &'static str,
    agent: &'p str,
    origin: &'static str,
}

#[derive(Serialize)]
struct ShownShard<'p> {
    shard: u16,
    peers: Vec<&'p ShownPeer<'p>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownSubscription<'s> {
    peer_id: String,
    filter_criteria: Vec<ShownCriterion<'s>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownCriterion<'s> {
    pubsub_topic: &'s str,
    content_topic: &'s str,
}

fn show(peer: &PeerInfo) -> ShownPeer<'_> {
    ShownPeer {
        multiaddr: with_peer_id(peer.address.clone(), peer.peer).to_string(),
        protocols: &peer.protocols,
        shards: shards_of(peer),
        connected: "Connected",
        agent: &peer.agent,
        origin: if peer.is_static { "Static" } else { "UnknownOrigin" },
    }
}

fn show_subscription(subscription: &Subscription) -> ShownSubscription<'_> {
    let criteria = subscription
        .criteria
        .iter()
        .map(|of| ShownCriterion { pubsub_topic: &of.pubsub_topic, content_topic: &of.content_topic });
    ShownSubscription { peer_id: subscription.peer.to_string(), filter_criteria: criteria.collect() }
}

/// The shards that a peer has announced, and those that it follows.
fn shards_of(peer: &PeerInfo) -> Vec<u16> {
    let announced = peer.shards.iter().filter_map(|shard| u16::try_from(*shard).ok());
    let followed = peer.topics.iter().filter_map(|topic| shard_number(topic));
    let mut shards: Vec<u16> = announced.chain(followed).collect();
    shards.sort_unstable();
    shards.dedup();
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_bounded() {
        let fits = "x".repeat(REPORT_BYTES_MAX - 2);
        assert_eq!(written(&fits).unwrap().len(), REPORT_BYTES_MAX);
        let refusal = written(&[&*fits, "x"]).unwrap_err();
        assert_eq!(refusal.status, StatusCode::SERVICE_UNAVAILABLE);
    }
}
