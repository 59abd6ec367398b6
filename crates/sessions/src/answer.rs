use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;

/// The result of a call: ready at once where the engine is in this process, which costs no allocation, or a future.
#[must_use = "an answer does nothing unless it is awaited"]
pub enum Answer<'a, T> {
    /// The result is ready.
    Ready(Option<T>),
    /// The result is ready later.
    Later(BoxFuture<'a, T>),
}

impl<'a, T> Answer<'a, T> {
    /// A result that is ready.
    #[inline]
    pub fn ready(answer: T) -> Self {
        Self::Ready(Some(answer))
    }

    /// The result, if it is ready: cheaper than polling, and without a task.
    ///
    /// # Errors
    /// This answer, to be awaited.
    #[inline]
    pub fn now(self) -> Result<T, Self> {
        match self {
            Self::Ready(Some(answer)) => Ok(answer),
            later => Err(later),
        }
    }

    /// A result that is ready later.
    pub fn later(answer: impl Future<Output = T> + Send + 'a) -> Self {
        Self::Later(Box::pin(answer))
    }
}

impl<T> fmt::Debug for Answer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Ready",
            Self::Later(_) => "Later",
        })
    }
}

impl<T: Unpin> Future for Answer<'_, T> {
    type Output = T;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Self::Ready(answer) => Poll::Ready(answer.take().expect("a future is not polled after its end")),
            Self::Later(answer) => answer.as_mut().poll(context),
        }
    }
}
