//! The libp2p behaviours of a node.

use libp2p::{
    connection_limits::{self, ConnectionLimits},
    identify, ping,
    swarm::{NetworkBehaviour, behaviour::toggle::Toggle},
};

use super::{NodeConfig, NodeError, NodeLimits, relay, streams};

/// The protocol version that the identify protocol sends.
const PROTOCOL_VERSION: &str = "/ipfs/0.1.0";
/// Connections that are accepted beyond the limit, for as long as it takes to close an idle one.
const CONNECTIONS_SPARE: u32 = 64;

#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    limits: connection_limits::Behaviour,
    pub(crate) streams: streams::Behaviour,
    pub(crate) relay: Toggle<relay::Relay>,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
}

impl Behaviour {
    pub(crate) fn new(
        config: &NodeConfig,
        streams: streams::Behaviour,
        known: relay::KnownTopics,
    ) -> Result<Self, NodeError> {
        let relay =
            config.relay.as_ref().map(|_| relay::build(config.max_message_bytes, known)).transpose()?;
        let identify = identify::Config::new(PROTOCOL_VERSION.to_owned(), config.key.public())
            .with_agent_version(config.agent.clone());
        let mut limits = connection_limits::Behaviour::new(connection_limits_of(&config.limits));
        let named = config.static_peers.iter().map(|address| address.peer);
        for peer in named.chain(config.reserved_peers.iter().copied()) {
            limits.bypass_peer_id(&peer);
        }
        Ok(Self {
            limits,
            streams,
            relay: relay.into(),
            identify: identify::Behaviour::new(identify),
            ping: ping::Behaviour::default(),
        })
    }
}

fn connection_limits_of(limits: &NodeLimits) -> ConnectionLimits {
    // Incoming handshakes are bounded by `half_open`.
    ConnectionLimits::default()
        .with_max_pending_outgoing(Some(limits.handshakes_max.get()))
        .with_max_established(Some(limits.connections_max.get().saturating_add(CONNECTIONS_SPARE)))
        .with_max_established_per_peer(Some(limits.connections_per_peer_max.get()))
}
