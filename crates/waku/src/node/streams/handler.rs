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

use super::{
    Activity, OpenError, OpenRequest, Origin, RequestHandler, Streams, Then, serve::ConnectionContext,
};

/// The handling of a stream.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The streams of one connection.
pub(crate) struct Handler {
    peer: PeerId,
    id: ConnectionId,
    streams: Streams,
    requests: Arc<RequestHandler>,
    opens: mpsc::Receiver<OpenRequest>,
    activity: Activity,
    context: ConnectionContext,
    /// Requests that are being answered, and our own that wait for an answer.
    work: FuturesUnordered<Work>,
    /// The number of our streams that are being opened.
    opening: usize,
}

impl Handler {
    pub(crate) fn new(
        peer: PeerId,
        id: ConnectionId,
        origin: Origin,
        streams: Streams,
        requests: Arc<RequestHandler>,
    ) -> Self {
        let activity = Activity::default();
        let opens = streams.add(peer, id, origin, activity.clone());
        let slots = Arc::new(Semaphore::new(streams.limits.streams_per_connection_max.get()));
        let context = ConnectionContext::new(peer, slots, activity.clone(), streams.clone());
        Self {
            peer,
            id,
            streams,
            requests,
            opens,
            activity,
            context,
            work: FuturesUnordered::new(),
            opening: 0,
        }
    }
}

impl Handler {
    /// The next stream to open, unless there are too many.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<OpenRequest> {
        if self.opening + self.work.len() >= self.streams.limits.streams_per_connection_max.get() * 2 {
            return Poll::Pending; // each that ends wakes this task
        }
        match self.opens.poll_recv(cx) {
            Poll::Ready(Some(open)) => Poll::Ready(open),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn opened(&mut self, then: Then, opened: Result<Stream, OpenError>) {
        self.opening = self.opening.saturating_sub(1);
        if let Some(work) = then.run(opened) {
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
        SubstreamProtocol::new(Offer(self.requests.protocols()), ())
    }

    fn connection_keep_alive(&self) -> bool {
        self.activity.streams() > 0
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, Self::OutboundOpenInfo, Self::ToBehaviour>> {
        while let Poll::Ready(Some(())) = self.work.poll_next_unpin(cx) {}
        self.poll_open(cx).map(|OpenRequest { protocol, then }| {
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
                if let Some(served) = self.requests.serve(&self.context, stream, &protocol) {
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
