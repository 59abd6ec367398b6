use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

/// Whether a follower was told to stop: a future that may be asked again after it was ready.
pub(crate) struct Stop<F> {
    future: Pin<Box<F>>,
    is_told: bool,
}

impl<F: Future<Output = ()>> Stop<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Box::pin(future), is_told: false }
    }

    /// Whether it was told until now.
    pub(crate) async fn is_told(&mut self) -> bool {
        poll_fn(|context| {
            if !self.is_told {
                self.is_told = self.future.as_mut().poll(context).is_ready();
            }
            Poll::Ready(self.is_told)
        })
        .await
    }

    /// Returns when it is told.
    pub(crate) async fn told(&mut self) {
        if !self.is_told {
            self.future.as_mut().await;
            self.is_told = true;
        }
    }
}
