//! Dials peers from received records until enough are connected.

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

/// The most peers that are dialled at the same time.
const DIALLED_AT_ONCE_MAX: usize = 4;
/// How long a peer may take to answer at one of its addresses.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Dials peers of known records. The record of a peer that answers at none of its addresses is removed.
pub(super) struct Dialler {
    exchange: Arc<PeerExchange>,
    dialled: HashSet<PeerId>,
    tasks: JoinSet<PeerId>,
}

impl Dialler {
    pub(super) fn new(exchange: &Arc<PeerExchange>) -> Self {
        Self { exchange: Arc::clone(exchange), dialled: HashSet::new(), tasks: JoinSet::new() }
    }

    /// Starts to dial as many peers as are missing, within [`DIALLED_AT_ONCE_MAX`].
    pub(super) fn dial_some(&mut self) {
        let target = self.exchange.config.dial_until_peers;
        if target == 0 {
            return;
        }
        let connected: HashSet<PeerId> =
            self.exchange.node.peers().into_iter().map(|peer| peer.peer).collect();
        let missing = target.saturating_sub(connected.len() + self.dialled.len());
        let count = missing.min(DIALLED_AT_ONCE_MAX.saturating_sub(self.dialled.len()));
        let is_known = |peer| connected.contains(&peer) || self.dialled.contains(&peer);
        for (peer, record) in self.exchange.records.pick_to_dial(count, is_known, Instant::now()) {
            self.dialled.insert(peer);
            self.tasks.spawn(dial(Arc::clone(&self.exchange), peer, record));
        }
    }

    /// Waits until a dial has ended.
    pub(super) async fn next_done(&mut self) {
        match self.tasks.join_next().await {
            Some(Ok(peer)) => {
                self.dialled.remove(&peer);
            }
            Some(Err(_)) => self.dialled.clear(), // it panicked: its peer is unknown
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
            Ok(Err(error)) => debug!(%address, %error, "a peer from peer exchange can't be reached"),
            Err(_) => debug!(%address, "a peer from peer exchange did not answer in time"),
        }
    }
    exchange.records.remove(peer);
    peer
}
