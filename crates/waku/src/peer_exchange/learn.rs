//! Asks peers for the records that they know.

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

use super::{PeerExchange, dial::Dialler, metrics::Heard};
use crate::peer_connected::{self, PeerConnected};

/// Peers that are asked at once.
const ASKED_AT_ONCE_MAX: usize = 4;
/// Peers that are asked again each time.
const ASKED_AGAIN_MAX: usize = 3;
/// How often some peers are asked again.
const ASK_INTERVAL: Duration = Duration::from_secs(300);
/// How long a peer may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Records that a peer is asked for; what it tells beyond them is left.
const RECORDS_ASKED: usize = 30;
/// The longest answer: as many records as anybody tells, each of 300 bytes, and room for what else may come with them.
const ANSWER_BYTES_MAX: usize = 32 << 10;

/// Learns from peers until it is dropped: from each when it connects, and from a few by chance every few minutes.
pub(crate) async fn keep_learning(exchange: PeerExchange, mut newcomers: PeerConnected) {
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
            newcomer = newcomers.next() => match newcomer {
                Some(peer) => { asked.spawn(Arc::clone(&exchange).learn_from(peer)); }
                None => return,
            },
            Some(_) = asked.join_next() => dialler.dial_some(),
            () = dialler.next_done() => {}
            _ = again.tick() => {
                for peer in exchange.some_speakers() {
                    asked.spawn(Arc::clone(&exchange).learn_from(peer));
                }
                dialler.dial_some();
            }
        }
    }
}

impl PeerExchange {
    /// Notes who is connected, and chooses some of those to be asked again.
    fn some_speakers(&self) -> Vec<PeerId> {
        let connected = self.node.peers().into_iter().map(|peer| peer.peer);
        self.book.see(connected, Instant::now());
        self.count_known();
        let speakers = peer_connected::speakers(&self.node, peer_exchange::ID);
        speakers.sample(&mut rand::rng(), ASKED_AGAIN_MAX).copied().collect()
    }

    async fn learn_from(self: Arc<Self>, peer: PeerId) {
        let query = PeerExchangeQuery { num_peers: RECORDS_ASKED as u64 };
        let request = rpc::frame(&PeerExchangeRpc { query: Some(query), response: None });
        let answer = self.node.ask(peer, peer_exchange::ID, &request, ANSWER_BYTES_MAX);
        let answer = match timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return debug!(%peer, %error, "peer told of no others"),
            Err(_) => return debug!(%peer, "peer told of no others in time"),
        };
        let response = PeerExchangeRpc::decode(answer).ok().and_then(|rpc| rpc.response);
        let infos = response.map(|response| response.peer_infos).unwrap_or_default();
        debug!(%peer, records = infos.len(), "peer told of others");
        for info in infos.into_iter().take(RECORDS_ASKED) {
            self.metrics.heard(self.take(peer, &info));
            // Checking a signature takes a good part of the time that a worker may be held up for.
            tokio::task::yield_now().await;
        }
        self.count_known();
    }

    fn take(&self, teller: PeerId, info: &PeerInfo) -> Heard {
        let Ok(record) = Enr::decode(&info.enr) else { return Heard::Wrong };
        let is_seen = |peer| peer == teller || self.node.peer(peer).is_some();
        self.book.take(record, is_seen, Instant::now())
    }
}
