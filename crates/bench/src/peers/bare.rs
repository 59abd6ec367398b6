//! A node with one chosen service and without an archive.

use std::sync::Arc;

use anyhow::{Context, ensure};
use restante_core::SystemClock;
use restante_waku::{
    Multiaddr,
    intake::{Intake, IntakeMetrics},
    node::{Node, NodeMetrics},
    rates::Limiter,
    service::Service,
};

use super::{PATIENCE, Role, id_of, node_config, sink::Sink, until};

/// The node; it does not take part in relay.
pub(crate) struct Bare {
    pub(crate) node: Node,
    intake: Intake,
}

impl Bare {
    /// Starts a node that listens on loopback.
    pub(crate) async fn listen(service: Arc<dyn Service>) -> anyhow::Result<(Self, Multiaddr)> {
        let loopback = "/ip4/127.0.0.1/tcp/0".parse().context("not an address")?;
        let bare = Self::start(vec![loopback], &[], service).await?;
        let address = bare.node.addresses().into_iter().next().context("the node has no listen address")?;
        Ok((bare, address))
    }

    /// Starts a node that is connected to a server and knows its protocols.
    pub(crate) async fn connect(server: &Multiaddr, service: Arc<dyn Service>) -> anyhow::Result<Self> {
        let bare = Self::start(Vec::new(), std::slice::from_ref(server), service).await?;
        let server = id_of(server)?;
        let is_known = || bare.node.peer(server).is_some_and(|info| !info.protocols.is_empty());
        let waited = until(PATIENCE, async || is_known()).await;
        ensure!(waited.is_some(), "a node did not find its server within a minute");
        Ok(bare)
    }

    async fn start(
        listen: Vec<Multiaddr>,
        servers: &[Multiaddr],
        service: Arc<dyn Service>,
    ) -> anyhow::Result<Self> {
        let mut config = node_config(Role::Light, servers)?;
        config.listen = listen;
        let (archive, clock) = (Arc::new(Sink::open().await?), Arc::new(SystemClock));
        let metrics = IntakeMetrics::default();
        let intake = Intake::new(archive, clock, Default::default(), Default::default(), metrics);
        let (node, unstarted) = Node::new(config, NodeMetrics::default());
        intake.connect(Vec::new(), Some(node.clone()));
        unstarted.start(vec![service], Limiter::default(), intake.clone()).await?;
        Ok(Self { node, intake })
    }

    pub(crate) async fn close(self) {
        self.node.close().await;
        self.intake.close().await;
    }
}
