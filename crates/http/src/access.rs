//! When the credentials of a request become invalid: streams and sockets that were opened with them end.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::body::{Body, Bytes, HttpBody};
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use hyper::body::{Frame, SizeHint};

/// Completes when the credentials of a request are no longer valid: the account was disabled, or its password or token changed. A
/// [`Guard`](crate::Guard) adds it to the extensions of requests that it lets pass. It does no work before it is polled.
#[derive(Clone)]
pub struct AccessEnded(Shared<BoxFuture<'static, ()>>);

impl AccessEnded {
    /// Wraps a future that completes when the credentials become invalid.
    pub fn new(ended: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(ended.boxed().shared())
    }

    /// Completes when the credentials become invalid.
    pub async fn wait(self) {
        self.0.await;
    }
}

impl fmt::Debug for AccessEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessEnded")
    }
}

/// The answer was cut because the credentials of its request are no longer valid.
#[derive(Debug, thiserror::Error)]
#[error("the credentials of the request hold no more")]
struct Cut;

/// A body that ends with an error when the credentials of its request become invalid. Its first piece always passes, so that
/// operators who disable their own account get an answer.
pub(crate) struct WhileAllowed {
    body: Body,
    ended: AccessEnded,
    has_begun: bool,
}

impl WhileAllowed {
    pub(crate) fn new(body: Body, ended: AccessEnded) -> Self {
        Self { body, ended, has_begun: false }
    }

    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        ready!(self.ended.0.poll_unpin(context));
        Poll::Ready(Some(Err(axum::Error::new(Cut))))
    }
}

impl HttpBody for WhileAllowed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // A stream that always has more to send must be cut, too.
        if self.has_begun
            && !self.body.is_end_stream()
            && let Poll::Ready(cut) = self.poll_ended(context)
        {
            return Poll::Ready(cut);
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            self.has_begun = true;
            return frame;
        }
        self.poll_ended(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::BodyExt;
    use tokio::sync::oneshot;

    use super::*;

    fn ended_by(receiver: oneshot::Receiver<()>) -> AccessEnded {
        AccessEnded::new(receiver.map(|_| ()))
    }

    #[tokio::test]
    async fn streams_are_cut_whether_they_wait_or_are_always_ready() {
        let one = stream::iter([Ok::<_, Infallible>("one")]);
        let endless = stream::repeat_with(|| Ok::<_, Infallible>("more"));
        for body in [Body::from_stream(one.chain_pending()), Body::from_stream(endless)] {
            let (end, receiver) = oneshot::channel();
            let mut body = WhileAllowed::new(body, ended_by(receiver));
            body.frame().await.unwrap().unwrap();
            let next = tokio::spawn(async move { body.frame().await.unwrap().map(|_| body) });
            end.send(()).unwrap();
            let mut next = next.await.unwrap();
            while let Ok(mut body) = next {
                next = body.frame().await.unwrap().map(|_| body);
            }
        }
    }

    trait ChainPending: stream::Stream + Sized {
        /// This stream, followed by one that never yields.
        fn chain_pending(self) -> stream::Chain<Self, stream::Pending<Self::Item>> {
            futures_util::StreamExt::chain(self, stream::pending())
        }
    }

    impl<S: stream::Stream> ChainPending for S {}

    #[tokio::test]
    async fn an_answer_of_one_piece_is_sent_whole() {
        let ended = AccessEnded::new(async {});
        let body = WhileAllowed::new(Body::from("done"), ended.clone());
        assert_eq!(body.collect().await.unwrap().to_bytes(), "done");
        let empty = WhileAllowed::new(Body::empty(), ended);
        assert!(empty.collect().await.unwrap().to_bytes().is_empty());
    }
}
