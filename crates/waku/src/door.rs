//! Puts the door together: the node, its services, and the way in.

use std::sync::Arc;

use libp2p::PeerId;
use restante_archive::Archive;
use restante_core::Clock;
use restante_sessions::Live;

use crate::{
    WakuMetrics,
    discovery::{Discovery, Tasks},
    filter::{FilterConfig, FilterService, Subscription},
    intake::{HandoverConfig, Intake},
    lightpush::{LightPush, LightPushConfig},
    live::Listener,
    node::{Node, NodeConfig, NodeError, peer_of},
    peer_exchange::PeerExchangeConfig,
    rates::{Limiter, RateLimits},
    store::StoreService,
    sync::{StoreSync, SyncConfig, SyncReport},
    validate::Rules,
};

/// The settings of the door.
#[derive(Clone, Debug, Default)]
pub struct WakuConfig {
    /// Which messages are taken.
    pub rules: Rules,
    /// The node; without it messages come and go by REST only.
    pub node: Option<NodeConfig>,
    /// The queue between relay and the archive.
    pub handover: HandoverConfig,
    /// Which services peers are offered.
    pub services: Services,
    /// How often a peer may ask.
    pub rates: RateLimits,
    /// Filter subscribers and what waits for them.
    pub filter: FilterConfig,
    /// When pushed messages are taken.
    pub light_push: LightPushConfig,
    /// Whom peers are told of.
    pub peer_exchange: PeerExchangeConfig,
    /// The store nodes that are asked for what this one has missed.
    pub sync: SyncConfig,
}

/// Which services peers are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The running door. Cloning gives another handle of the same.
#[derive(Clone, Debug)]
pub struct Waku {
    /// The way in.
    pub intake: Intake,
    /// The node, if there is one.
    pub node: Option<Node>,
    /// Which services peers are offered, if there is a node.
    pub services: Services,
    /// The filter, if it is offered.
    pub filter: Option<Arc<FilterService>>,
    /// Store sync, if there are peers to ask.
    pub sync: Option<StoreSync>,
    /// Who is connected, and the hub that hands them what arrives.
    pub live: Live,
    tasks: Tasks,
}

impl Waku {
    /// Starts the door over an archive of its own. `listeners` are called with every message that arrives, after the sessions in the hub of `live`.
    ///
    /// # Errors
    /// When a setting can't be used, or an address can't be listened on.
    pub async fn start(
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
                    "store nodes are asked over the network, and this node is off".into(),
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
        node_config.reserved_peers.extend(config.sync.peers.iter().filter_map(peer_of));
        let (node, unstarted) = Node::new(node_config, metrics.node.clone())?;
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
            Some(StoreSync::new(config.sync, node, intake, archive, clock.clone(), metrics)?)
        };
        intake.connect(listeners, Some(node.clone()));
        let tasks = discovery.start();
        unstarted.start(services, Limiter::new(config.rates), intake.clone()).await?;
        discovery.introduce(clock.now());
        if let Some(sync) = &sync {
            sync.start();
        }
        Ok(Self { intake, node: Some(node), services: config.services, filter, sync, live, tasks })
    }

    /// Who the node is.
    pub fn peer_id(&self) -> Option<PeerId> {
        self.node.as_ref().map(Node::peer_id)
    }

    /// Which peers have subscribed to what; `None` when the filter is not offered.
    pub fn filter_subscriptions(&self) -> Option<Vec<Subscription>> {
        self.filter.as_ref().map(|filter| filter.subscriptions())
    }

    /// Asks the store nodes once for what this one has missed, and returns when it is archived.
    pub async fn sync_now(&self) -> SyncReport {
        match &self.sync {
            Some(sync) => sync.run_now().await,
            None => SyncReport::default(),
        }
    }

    /// Takes leave of the peers, and waits until the archive has what they brought.
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
