//! `34/WAKU2-PEER-EXCHANGE`: nodes exchange the signed records of peers.

mod dial;
mod learn;
mod metrics;
mod record;
mod record_table;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;
use prost::Message;
use rand::{SeedableRng, rngs::StdRng};
use restante_core::{Timestamp, settings};
use restante_waku_wire::{
    enr::Enr,
    rpc::{
        self,
        peer_exchange::{self, PeerExchangeQuery, PeerExchangeResponse, PeerExchangeRpc, PeerInfo},
    },
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{
    Services,
    node::Node,
    service::{Answer, Service},
    validate::Rules,
};

pub(crate) use learn::keep_learning;
pub use metrics::PeerExchangeMetrics;
#[cfg(test)]
pub(crate) use metrics::RecordResult;
use record_table::RecordTable;

/// The most records of an answer, as in nwaku.
const ANSWER_RECORDS_MAX: usize = 60;
/// The longest request: one number.
const REQUEST_BYTES_MAX: usize = 1_024;

const OK: u32 = 200;
const BAD_REQUEST: u32 = 400;
const TOO_MANY_REQUESTS: u32 = 429;

/// The settings of peer exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerExchangeConfig {
    /// Records that are always stored and sent to peers.
    #[serde(with = "settings::texts")]
    pub records: Vec<Enr>,
    /// Dial peers from received records until this many peers are connected. With 0, the default, none are dialled: the signer
    /// of a record can put any address into it.
    pub dial_until_peers: usize,
    /// Whether addresses that are not public, and host names, are dialled as well.
    pub dial_any_address: bool,
}

/// The known records, shared by the service and the task that queries peers.
#[derive(Clone, Debug)]
pub(crate) struct PeerExchange {
    node: Node,
    config: PeerExchangeConfig,
    records: Arc<RecordTable>,
    metrics: PeerExchangeMetrics,
}

impl PeerExchange {
    pub(crate) fn new(
        node: Node,
        config: PeerExchangeConfig,
        cluster_id: Option<u16>,
        metrics: PeerExchangeMetrics,
    ) -> Self {
        let records = RecordTable::new(cluster_id, StdRng::from_rng(&mut rand::rng()));
        for record in &config.records {
            records.pin(record.clone());
        }
        let exchange = Self { node, config, records: Arc::new(records), metrics };
        exchange.update_metrics();
        exchange
    }

    fn update_metrics(&self) {
        self.metrics.known.set(i64::try_from(self.records.len()).unwrap_or(i64::MAX));
    }

    /// Sets this node's own record, which is sent to peers from then on.
    pub(crate) fn set_own_record(&self, own: Enr) {
        self.records.set_own(own);
    }
}

/// The own record of a node that listens; `None` when its key can't sign records.
pub(crate) fn own_record(node: &Node, rules: &Rules, services: Services, now: Timestamp) -> Option<Enr> {
    record::own(node, rules, services, now)
}

/// Answers peers with known records.
#[derive(Clone, Debug)]
pub(crate) struct PeerExchangeService {
    exchange: PeerExchange,
}

impl PeerExchangeService {
    pub(crate) fn new(exchange: PeerExchange) -> Self {
        Self { exchange }
    }
}

#[async_trait]
impl Service for PeerExchangeService {
    fn id(&self) -> &'static str {
        peer_exchange::ID
    }

    fn name(&self) -> &'static str {
        "peer_exchange"
    }

    fn request_bytes_max(&self) -> usize {
        REQUEST_BYTES_MAX
    }

    async fn answer(&self, peer: PeerId, request: Bytes) -> Answer {
        let query = PeerExchangeRpc::decode(request).ok().and_then(|rpc| rpc.query);
        let Some(query) = query else { return refusal(BAD_REQUEST, "expected a query") };
        let count = usize::try_from(query.num_peers).unwrap_or(usize::MAX).min(ANSWER_RECORDS_MAX);
        let records = self.exchange.records.pick(count, peer, Instant::now());
        self.exchange.metrics.sent.inc_by(records.len() as u64);
        let peer_infos = records.iter().map(|record| PeerInfo { enr: record.wire().clone() }).collect();
        Answer::new(OK, response(query, peer_infos, OK, "OK"))
    }

    fn answer_too_often(&self, _request: Bytes) -> Answer {
        refusal(TOO_MANY_REQUESTS, "too many requests: try again later")
    }
}

fn refusal(status: u32, text: &str) -> Answer {
    Answer::new(status, response(PeerExchangeQuery::default(), Vec::new(), status, text))
}

/// The response includes the query: nwaku's decoder refuses an answer without it.
fn response(query: PeerExchangeQuery, peer_infos: Vec<PeerInfo>, status: u32, text: &str) -> Vec<u8> {
    let response =
        PeerExchangeResponse { peer_infos, status_code: Some(status), status_desc: Some(text.to_owned()) };
    rpc::frame(&PeerExchangeRpc { query: Some(query), response: Some(response) })
}

#[cfg(test)]
mod tests;
