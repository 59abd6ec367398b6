use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use libp2p::{
    PeerId, Stream, StreamProtocol,
    core::{InboundUpgrade, OutboundUpgrade, UpgradeInfo},
    swarm::{
        ConnectionHandler, ConnectionHandlerEvent, ConnectionId, StreamUpgradeError, SubstreamProtocol,
        handler::{ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound},
    },
};
use tokio::sync::{Semaphore, mpsc};

use super::{Activity, OpenError, Origin, RequestHandler, Streams, Then, Wanted, serve::ConnectionContext};

/// What is done on a stream.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One connection's streams.
pub(crate) struct Handler {
    peer: PeerId,
    id: ConnectionId,
    streams: Streams,
    desk: Arc<RequestHandler>,
    wanted: mpsc::Receiver<Wanted>,
    activity: Activity,
    line: ConnectionContext,
    /// Requests that are being answered, and those whose answer is waited for.
    work: FuturesUnordered<Work>,
    /// Streams of ours that are being opened.
    opening: usize,
}

impl Handler {
    pub(crate) fn new(
        peer: PeerId,
        id: ConnectionId,
        origin: Origin,
        streams: Streams,
        desk: Arc<RequestHandler>,
    ) -> Self {
        let activity = Activity::default();
        let wanted = streams.add(peer, id, origin, activity.clone());
        let slots = Arc::new(Semaphore::new(streams.limits.streams_per_connection_max));
        let line = ConnectionContext::new(peer, slots, activity.clone(), streams.clone());
        Self { peer, id, streams, desk, wanted, activity, line, work: FuturesUnordered::new(), opening: 0 }
    }
}

impl Handler {
    /// The next stream that somebody wants, when there are not too many.
    fn poll_wanted(&mut self, cx: &mut Context<'_>) -> Poll<Wanted> {
        if self.opening + self.work.len() >= self.streams.limits.streams_per_connection_max * 2 {
            return Poll::Pending; // each that ends wakes this task
        }
        match self.wanted.poll_recv(cx) {
            Poll::Ready(Some(wanted)) => Poll::Ready(wanted),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn opened(&mut self, then: Then, opened: Result<Stream, OpenError>) {
        self.opening = self.opening.saturating_sub(1);
        if let Some(work) = then.go_on(opened) {
            self.work.push(work);
        }
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
    type OutboundOpenInfo = Then;

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
        while let Poll::Ready(Some(())) = self.work.poll_next_unpin(cx) {}
        self.poll_wanted(cx).map(|Wanted { protocol, then }| {
            self.opening += 1;
            let protocol = SubstreamProtocol::new(Offer(vec![protocol]), then);
            ConnectionHandlerEvent::OutboundSubstreamRequest { protocol }
        })
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        match event {}
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, Self::InboundProtocol, Self::OutboundProtocol, (), Then>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                let (stream, protocol) = protocol;
                if let Some(served) = self.desk.take(&self.line, stream, &protocol) {
                    self.work.push(Box::pin(served));
                }
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                let (stream, _) = protocol;
                self.opened(info, Ok(stream));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { error, info }) => {
                self.opened(info, Err(error_of(error)));
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
