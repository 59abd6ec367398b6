//! Dials peers that others told of, until enough are connected.

use std::{collections::HashSet, future::pending, sync::Arc, time::Duration};

use libp2p::PeerId;
use restante_waku_wire::enr::Enr;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tracing::debug;

use super::{PeerExchange, record};
use crate::node::is_public;

/// Peers that are dialled at once.
const DIALLED_AT_ONCE_MAX: usize = 4;
/// How long a peer may take to answer at one of its addresses.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Dials peers of the book. One that answers at none of its addresses is forgotten.
pub(super) struct Dialler {
    exchange: Arc<PeerExchange>,
    dialled: HashSet<PeerId>,
    tasks: JoinSet<PeerId>,
}

impl Dialler {
    pub(super) fn new(exchange: &Arc<PeerExchange>) -> Self {
        Self { exchange: Arc::clone(exchange), dialled: HashSet::new(), tasks: JoinSet::new() }
    }

    /// Begins to dial as many as are missing, but not too many at once.
    pub(super) fn dial_some(&mut self) {
        let wanted = self.exchange.config.dial_until_peers;
        if wanted == 0 {
            return;
        }
        let connected: HashSet<PeerId> =
            self.exchange.node.peers().into_iter().map(|peer| peer.peer).collect();
        let missing = wanted.saturating_sub(connected.len() + self.dialled.len());
        let count = missing.min(DIALLED_AT_ONCE_MAX.saturating_sub(self.dialled.len()));
        let is_known = |peer| connected.contains(&peer) || self.dialled.contains(&peer);
        for (peer, record) in self.exchange.book.strangers(count, is_known, Instant::now()) {
            self.dialled.insert(peer);
            self.tasks.spawn(dial(Arc::clone(&self.exchange), peer, record));
        }
    }

    /// Waits until a dial has come to its end, one way or the other.
    pub(super) async fn next_done(&mut self) {
        match self.tasks.join_next().await {
            Some(Ok(peer)) => {
                self.dialled.remove(&peer);
            }
            Some(Err(_)) => self.dialled.clear(), // it panicked: nobody knows which
            None => pending().await,
        }
    }
}

async fn dial(exchange: Arc<PeerExchange>, peer: PeerId, record: Enr) -> PeerId {
    let config = &exchange.config;
    let may_be_anywhere = config.dial_any_address || config.records.contains(&record);
    for address in record::addresses_of(&record.contents()) {
        if !may_be_anywhere && !is_public(&address) {
            exchange.metrics.not_public.inc();
            debug!(%address, "not dialling an address from peer exchange that is not public");
            continue;
        }
        let Ok(address) = address.with_p2p(peer) else { continue };
        match timeout(DIAL_TIMEOUT, exchange.node.connect(address.clone())).await {
            Ok(Ok(_)) => return peer,
            Ok(Err(error)) => debug!(%address, %error, "a peer that others told of can't be reached"),
            Err(_) => debug!(%address, "a peer that others told of did not answer in time"),
        }
    }
    exchange.book.forget(peer);
    peer
}
