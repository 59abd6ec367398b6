use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use libp2p::{
    PeerId, Stream, StreamProtocol,
    core::{InboundUpgrade, OutboundUpgrade, UpgradeInfo},
    swarm::{
        ConnectionHandler, ConnectionHandlerEvent, ConnectionId, StreamUpgradeError, SubstreamProtocol,
        handler::{ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound},
    },
};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{Activity, Desk, OpenError, Streams, Wanted, serve::Line};

/// Who waits for a stream.
type Reply = oneshot::Sender<Result<Stream, OpenError>>;

/// One connection's streams.
pub(crate) struct Handler {
    peer: PeerId,
    id: ConnectionId,
    streams: Streams,
    desk: Arc<Desk>,
    wanted: mpsc::Receiver<Wanted>,
    activity: Activity,
    line: Line,
}

impl Handler {
    pub(crate) fn new(peer: PeerId, id: ConnectionId, streams: Streams, desk: Arc<Desk>) -> Self {
        let activity = Activity::default();
        let wanted = streams.add(peer, id, activity.clone());
        let slots = Arc::new(Semaphore::new(streams.limits.streams_per_connection_max));
        let line = Line::new(peer, slots, activity.clone(), streams.clone());
        Self { peer, id, streams, desk, wanted, activity, line }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.streams.remove(self.peer, self.id);
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = Offer;
    type OutboundProtocol = Offer;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Reply;

    fn listen_protocol(&self) -> SubstreamProtocol<Offer, ()> {
        SubstreamProtocol::new(Offer(self.desk.protocols()), ())
    }

    fn connection_keep_alive(&self) -> bool {
        self.activity.streams() > 0
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, Self::OutboundOpenInfo, Self::ToBehaviour>> {
        match self.wanted.poll_recv(cx) {
            Poll::Ready(Some(Wanted { protocol, reply })) => {
                let protocol = SubstreamProtocol::new(Offer(vec![protocol]), reply);
                Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol })
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        match event {}
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, Self::InboundProtocol, Self::OutboundProtocol, (), Reply>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                let (stream, protocol) = protocol;
                self.desk.take(&self.line, stream, &protocol);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                let (stream, _) = protocol;
                let _ = info.send(Ok(stream)); // whoever wanted it may have given up
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { error, info }) => {
                let _ = info.send(Err(error_of(error)));
            }
            _ => {}
        }
    }
}

fn error_of(error: StreamUpgradeError<Infallible>) -> OpenError {
    match error {
        StreamUpgradeError::Timeout => OpenError::TimedOut,
        StreamUpgradeError::NegotiationFailed => OpenError::Unsupported("the protocol".to_owned()),
        StreamUpgradeError::Io(error) => OpenError::Broken(error.to_string()),
        StreamUpgradeError::Apply(never) => match never {},
    }
}

/// The protocols that are offered for a stream.
#[derive(Clone, Debug)]
pub(crate) struct Offer(Vec<StreamProtocol>);

impl UpgradeInfo for Offer {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for Offer {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl OutboundUpgrade<Stream> for Offer {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}
