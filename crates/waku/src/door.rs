//! Builds the door from the node, its services and the intake.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use libp2p::PeerId;
use restante_archive::Archive;
use restante_core::Clock;
use restante_sessions::Live;
use serde::{Deserialize, Serialize};

use crate::{
    WakuMetrics,
    discovery::{Discovery, Tasks},
    filter::{FilterConfig, FilterService, Subscription},
    intake::{HandoverConfig, Intake},
    lightpush::{LightPush, LightPushConfig},
    live::Listener,
    node::{Node, NodeConfig, NodeError},
    peer_exchange::PeerExchangeConfig,
    rates::{Limiter, RateLimits},
    store::StoreService,
    sync::{StoreSync, SyncConfig, SyncReport},
    validate::Rules,
};

/// The settings of the door.
#[derive(Clone, Debug, Default)]
pub struct WakuConfig {
    /// Which messages are accepted.
    pub rules: Rules,
    /// The node; without it only REST is served.
    pub node: Option<NodeConfig>,
    /// The queue between relay and the archive.
    pub handover: HandoverConfig,
    /// The services for peers.
    pub services: Services,
    /// The request rates of a peer.
    pub rates: RateLimits,
    /// Filter subscribers and their queues.
    pub filter: FilterConfig,
    /// When lightpush messages are accepted.
    pub light_push: LightPushConfig,
    /// Which peers are exchanged.
    pub peer_exchange: PeerExchangeConfig,
    /// The store nodes from which missed messages are fetched.
    pub sync: SyncConfig,
}

/// The services for peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Services {
    /// Store queries.
    pub store: bool,
    /// Filter subscriptions.
    pub filter: bool,
    /// Lightpush, both versions.
    pub lightpush: bool,
    /// Peer exchange.
    pub peer_exchange: bool,
}

impl Default for Services {
    fn default() -> Self {
        Self { store: true, filter: true, lightpush: true, peer_exchange: true }
    }
}

/// The running door. Clones are handles of the same door.
#[derive(Clone, Debug)]
pub struct Waku {
    /// Accepts incoming messages.
    pub intake: Intake,
    /// The node, if there is one.
    pub node: Option<Node>,
    /// The services for peers, if there is a node.
    pub services: Services,
    /// The filter service, if it is enabled.
    pub filter: Option<Arc<FilterService>>,
    /// Store sync, if peers are configured.
    pub sync: Option<StoreSync>,
    /// The session table, and the hub that delivers messages to sessions.
    pub live: Live,
    tasks: Tasks,
}

impl Waku {
    /// Starts the door over its own archive. `listeners` are called with every message that arrives, after the hub of `live`.
    ///
    /// # Errors
    /// When a setting can't be used, or an address can't be listened on.
    pub fn start(
        config: WakuConfig,
        archive: Arc<dyn Archive>,
        clock: Arc<dyn Clock>,
        live: Live,
        listeners: Vec<Arc<dyn Listener>>,
        metrics: &WakuMetrics,
    ) -> BoxFuture<'_, Result<Self, NodeError>> {
        // Boxed here, so that this crate compiles the node, instead of each crate that starts a door.
        Box::pin(Self::started(config, archive, clock, live, listeners, metrics))
    }

    async fn started(
        config: WakuConfig,
        archive: Arc<dyn Archive>,
        clock: Arc<dyn Clock>,
        live: Live,
        mut listeners: Vec<Arc<dyn Listener>>,
        metrics: &WakuMetrics,
    ) -> Result<Self, NodeError> {
        let intake = Intake::new(
            archive.clone(),
            clock.clone(),
            config.rules.clone(),
            config.handover,
            metrics.intake.clone(),
        );
        listeners.insert(0, Arc::new(live.hub.clone()));
        let Some(mut node_config) = config.node else {
            if !config.sync.peers.is_empty() {
                return Err(NodeError::Config(
                    "store sync needs the network: switch the node on or remove the sync peers".into(),
                ));
            }
            intake.connect(listeners, None);
            return Ok(Self {
                intake,
                node: None,
                services: config.services,
                filter: None,
                sync: None,
                live,
                tasks: Tasks::default(),
            });
        };
        node_config.reserved_peers.extend(config.sync.peers.iter().map(|address| address.peer));
        let (node, unstarted) = Node::new(node_config, metrics.node.clone());
        let (rules, offered) = (&config.rules, config.services);
        let discovery = Discovery::new(&node, rules, offered, config.peer_exchange, metrics);
        let mut services = discovery.services();
        if config.services.store {
            services.push(Arc::new(StoreService::new(archive.clone())));
        }
        let filter = config.services.filter.then(|| {
            let rules = config.rules.clone();
            FilterService::start(config.filter, rules, node.clone(), &live, metrics.filter.clone())
        });
        if let Some(filter) = &filter {
            services.push(filter.clone());
        }
        if config.services.lightpush {
            let light_push = LightPush::new(config.light_push, intake.clone(), Some(node.clone()));
            services.extend(light_push.services());
        }
        let sync = if config.sync.peers.is_empty() {
            None
        } else {
            let (node, intake, metrics) = (node.clone(), intake.clone(), metrics.sync.clone());
            Some(StoreSync::new(config.sync, node, intake, archive, clock.clone(), metrics))
        };
        intake.connect(listeners, Some(node.clone()));
        let tasks = discovery.start();
        unstarted.start(services, Limiter::new(config.rates), intake.clone()).await?;
        discovery.publish_record(clock.now());
        if let Some(sync) = &sync {
            sync.start();
        }
        Ok(Self { intake, node: Some(node), services: config.services, filter, sync, live, tasks })
    }

    /// The node's peer id.
    pub fn peer_id(&self) -> Option<PeerId> {
        self.node.as_ref().map(Node::peer_id)
    }

    /// The subscriptions of peers; `None` when the filter is disabled.
    pub fn filter_subscriptions(&self) -> Option<Vec<Subscription>> {
        self.filter.as_ref().map(|filter| filter.subscriptions())
    }

    /// Fetches missed messages from the store nodes once, and returns when they are archived.
    pub async fn sync_now(&self) -> SyncReport {
        match &self.sync {
            Some(sync) => sync.run_now().await,
            None => SyncReport::default(),
        }
    }

    /// Disconnects from all peers, and waits until their messages are archived.
    pub async fn close(&self) {
        self.tasks.stop();
        if let Some(sync) = &self.sync {
            sync.close().await;
        }
        if let Some(node) = &self.node {
            node.close().await;
        }
        self.intake.close().await;
    }
}
