use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use libp2p::{
    Multiaddr, PeerId,
    core::{Endpoint, transport::PortUse},
    swarm::{
        ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
        THandlerOutEvent, ToSwarm,
    },
};

use super::{Origin, RequestHandler, Streams, handler::Handler};
use crate::node::address::AddressGroup;

/// Creates a handler for each connection.
pub(crate) struct Behaviour {
    streams: Streams,
    requests: Arc<RequestHandler>,
}

impl Behaviour {
    pub(crate) fn new(streams: Streams, requests: Arc<RequestHandler>) -> Self {
        Self { streams, requests }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let origin = Origin::Incoming(AddressGroup::of(remote));
        Ok(Handler::new(peer, id, origin, self.streams.clone(), self.requests.clone()))
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::new(peer, id, Origin::Dialled, self.streams.clone(), self.requests.clone()))
    }

    /// Handlers register and unregister themselves: another behaviour may refuse a connection after its handler was created.
    fn on_swarm_event(&mut self, _: FromSwarm<'_>) {}

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}
