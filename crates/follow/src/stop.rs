use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

/// The request to stop a follower: a future that may be polled again after it was ready.
pub(crate) struct Stop<F> {
    future: Pin<Box<F>>,
    is_requested: bool,
}

impl<F: Future<Output = ()>> Stop<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Box::pin(future), is_requested: false }
    }

    /// Whether the stop was requested before now.
    pub(crate) async fn is_requested(&mut self) -> bool {
        poll_fn(|context| {
            if !self.is_requested {
                self.is_requested = self.future.as_mut().poll(context).is_ready();
            }
            Poll::Ready(self.is_requested)
        })
        .await
    }

    /// Returns when the stop is requested.
    pub(crate) async fn requested(&mut self) {
        if !self.is_requested {
            self.future.as_mut().await;
            self.is_requested = true;
        }
    }
}
