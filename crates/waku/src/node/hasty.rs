//! Connections that end in time.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use tokio::time::{Sleep, sleep};

/// How long a connection has to say goodbye.
const CLOSING: Duration = Duration::from_secs(5);

/// A muxer whose goodbye is cut short: a peer that reads nothing would never take it, and its connection would count among
/// those that there may be for ever.
pub(crate) struct Hasty<M> {
    muxer: M,
    until: Option<Pin<Box<Sleep>>>,
}

impl<M> Hasty<M> {
    pub(crate) fn new(muxer: M) -> Self {
        Self { muxer, until: None }
    }
}

impl<M: StreamMuxer + Unpin> StreamMuxer for Hasty<M> {
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
    async fn a_goodbye_that_nobody_takes_is_cut_short() {
        let begun = Instant::now();
        let mut muxer = Hasty::new(Stuck);
        poll_fn(|cx| Pin::new(&mut muxer).poll_close(cx)).await.unwrap();
        assert!(begun.elapsed() >= CLOSING);
    }
}
