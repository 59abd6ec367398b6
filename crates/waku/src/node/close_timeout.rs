//! Bounds the time for closing a connection.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use tokio::time::{Sleep, sleep};

/// How long closing a connection may take.
const CLOSING: Duration = Duration::from_secs(5);

/// A muxer whose orderly close has a time-out: it would never finish if the peer reads nothing, and the connection would count
/// against the limits for ever.
pub(crate) struct CloseTimeout<M> {
    muxer: M,
    until: Option<Pin<Box<Sleep>>>,
}

impl<M> CloseTimeout<M> {
    pub(crate) fn new(muxer: M) -> Self {
        Self { muxer, until: None }
    }
}

impl<M: StreamMuxer + Unpin> StreamMuxer for CloseTimeout<M> {
    type Substream = M::Substream;
    type Error = M::Error;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        Pin::new(&mut self.muxer).poll_inbound(cx)
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        Pin::new(&mut self.muxer).poll_outbound(cx)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        Pin::new(&mut self.muxer).poll(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let closed = Pin::new(&mut self.muxer).poll_close(cx);
        if closed.is_ready() {
            return closed;
        }
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(CLOSING)));
        until.as_mut().poll(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::poll_fn};

    use futures_util::io::Cursor;
    use tokio::time::Instant;

    use super::*;

    type Nothing = Cursor<Vec<u8>>;

    /// A connection whose peer never reads.
    struct Stuck;

    impl StreamMuxer for Stuck {
        type Substream = Nothing;
        type Error = Infallible;

        fn poll_inbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<Nothing, Infallible>> {
            Poll::Pending
        }

        fn poll_outbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<Nothing, Infallible>> {
            Poll::Pending
        }

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Infallible>> {
            Poll::Pending
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn closing_a_connection_that_is_not_read_times_out() {
        let begun = Instant::now();
        let mut muxer = CloseTimeout::new(Stuck);
        poll_fn(|cx| Pin::new(&mut muxer).poll_close(cx)).await.unwrap();
        assert!(begun.elapsed() >= CLOSING);
    }
}
