//! Exchanges addresses, clusters and known peers with other nodes.

use std::{fmt, future::Future, sync::Arc};

use parking_lot::Mutex;
use restante_core::Timestamp;
use restante_waku_wire::rpc;
use tokio::task::JoinSet;
use tracing::debug;

use crate::{
    Services, WakuMetrics,
    metadata::{self, LocalMetadata, MetadataService},
    node::Node,
    peer_connected::PeerConnected,
    peer_exchange::{self, PeerExchange, PeerExchangeConfig, PeerExchangeService},
    service::Service,
    validate::Rules,
};

/// Metadata, peer exchange and this node's own record, before the node listens.
pub(crate) struct Discovery {
    node: Node,
    rules: Rules,
    services: Services,
    metadata: LocalMetadata,
    exchange: Option<PeerExchange>,
    metrics: WakuMetrics,
}

impl Discovery {
    pub(crate) fn new(
        node: &Node,
        rules: &Rules,
        services: Services,
        config: PeerExchangeConfig,
        metrics: &WakuMetrics,
    ) -> Self {
        let new_exchange =
            || PeerExchange::new(node.clone(), config, rules.cluster_id, metrics.peer_exchange.clone());
        Self {
            node: node.clone(),
            rules: rules.clone(),
            services,
            metadata: LocalMetadata::new(node.clone(), rules),
            exchange: services.peer_exchange.then(new_exchange),
            metrics: metrics.clone(),
        }
    }

    /// The services for peers. Metadata is always one of them: peers disconnect from a node that does not answer it.
    pub(crate) fn services(&self) -> Vec<Arc<dyn Service>> {
        let mut services: Vec<Arc<dyn Service>> = vec![Arc::new(MetadataService::new(self.metadata.clone()))];
        if let Some(exchange) = &self.exchange {
            services.push(Arc::new(PeerExchangeService::new(exchange.clone())));
        }
        services
    }

    /// Starts the tasks that query peers. Call it before the node starts, so that no peer is missed.
    pub(crate) fn start(&self) -> Tasks {
        let tasks = Tasks::default();
        let connected = PeerConnected::new(self.node.clone(), rpc::metadata::ID);
        let metrics = self.metrics.metadata.clone();
        tasks.spawn(metadata::keep_asking(self.metadata.clone(), connected, metrics));
        if let Some(exchange) = &self.exchange {
            let connected = PeerConnected::new(self.node.clone(), rpc::peer_exchange::ID);
            tasks.spawn(peer_exchange::keep_learning(exchange.clone(), connected));
        }
        tasks
    }

    /// Creates and publishes this node's own record. Call it once the node's addresses are known.
    pub(crate) fn publish_record(&self, now: Timestamp) {
        let Some(own) = peer_exchange::own_record(&self.node, &self.rules, self.services, now) else {
            debug!("no node record: only a secp256k1 key can sign one");
            return;
        };
        self.node.set_enr(own.to_string());
        if let Some(exchange) = &self.exchange {
            exchange.set_own_record(own);
        }
    }
}

/// Tasks that run until [`Tasks::stop`], or until the last handle is dropped.
#[derive(Clone, Default)]
pub(crate) struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().spawn(task);
    }

    pub(crate) fn stop(&self) {
        self.0.lock().abort_all();
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tasks").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
