//! Queries peers for records.

use std::{sync::Arc, time::Duration};

use libp2p::PeerId;
use prost::Message;
use rand::seq::IndexedRandom;
use restante_waku_wire::{
    enr::Enr,
    rpc::{
        self,
        peer_exchange::{self, PeerExchangeQuery, PeerExchangeRpc, PeerInfo},
    },
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};
use tracing::debug;

use super::{PeerExchange, dial::Dialler, metrics::RecordResult};
use crate::peer_connected::{self, PeerConnected};

/// The most peers that are queried at the same time.
const ASKED_AT_ONCE_MAX: usize = 4;
/// The most connected peers that are queried again each [`ASK_INTERVAL`].
const ASKED_AGAIN_MAX: usize = 3;
/// How often some connected peers are queried again.
const ASK_INTERVAL: Duration = Duration::from_secs(300);
/// How long a peer may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The records requested from a peer; more in an answer are ignored.
const RECORDS_ASKED: usize = 30;
/// The longest answer: 60 records of 300 bytes, as in nwaku, and some space for other fields.
const ANSWER_BYTES_MAX: usize = 32 << 10;

/// Queries peers until it is dropped: each one when it connects, and a few random ones every few minutes.
pub(crate) async fn keep_learning(exchange: PeerExchange, mut connected: PeerConnected) {
    let exchange = Arc::new(exchange);
    let mut dialler = Dialler::new(&exchange);
    let mut again = interval_at(Instant::now() + ASK_INTERVAL, ASK_INTERVAL);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked = JoinSet::new();
    dialler.dial_some();
    loop {
        if asked.len() >= ASKED_AT_ONCE_MAX {
            asked.join_next().await;
            dialler.dial_some();
        }
        tokio::select! {
            peer = connected.next() => match peer {
                Some(peer) => { asked.spawn(Arc::clone(&exchange).learn_from(peer)); }
                None => return,
            },
            Some(_) = asked.join_next() => dialler.dial_some(),
            () = dialler.next_done() => {}
            _ = again.tick() => {
                for peer in exchange.sample_peers() {
                    asked.spawn(Arc::clone(&exchange).learn_from(peer));
                }
                dialler.dial_some();
            }
        }
    }
}

impl PeerExchange {
    /// Marks the records of connected peers as seen, and chooses some of these peers to be queried again.
    fn sample_peers(&self) -> Vec<PeerId> {
        let connected = self.node.peers().into_iter().map(|peer| peer.peer);
        self.records.mark_seen(connected, Instant::now());
        self.update_metrics();
        let peers = peer_connected::supporting_peers(&self.node, peer_exchange::ID);
        peers.sample(&mut rand::rng(), ASKED_AGAIN_MAX).copied().collect()
    }

    async fn learn_from(self: Arc<Self>, peer: PeerId) {
        let query = PeerExchangeQuery { num_peers: RECORDS_ASKED as u64 };
        let request = rpc::frame(&PeerExchangeRpc { query: Some(query), response: None });
        let answer = self.node.ask(peer, peer_exchange::ID, &request, ANSWER_BYTES_MAX);
        let answer = match timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return debug!(%peer, %error, "peer did not answer the peer exchange request"),
            Err(_) => return debug!(%peer, "peer did not answer the peer exchange request in time"),
        };
        let response = PeerExchangeRpc::decode(answer).ok().and_then(|rpc| rpc.response);
        let infos = response.map(|response| response.peer_infos).unwrap_or_default();
        debug!(%peer, records = infos.len(), "peer sent records");
        for info in infos.into_iter().take(RECORDS_ASKED) {
            self.metrics.count_record(self.add(peer, &info));
            // Checking a signature takes a large part of the time for which a worker may be blocked.
            tokio::task::yield_now().await;
        }
        self.update_metrics();
    }

    fn add(&self, sender: PeerId, info: &PeerInfo) -> RecordResult {
        let Ok(record) = Enr::decode(&info.enr) else { return RecordResult::Wrong };
        let is_seen = |peer| peer == sender || self.node.peer(peer).is_some();
        self.records.add(record, is_seen, Instant::now())
    }
}
