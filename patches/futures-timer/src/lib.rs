//! The timers of libp2p, on tokio's clock.
//!
//! libp2p sets a timer for each stream that is opened, through the crate `futures-timer`, which has a thread of its own that is
//! woken for each timer. That took a fifth of the processor time of a short request. Everything here runs on tokio, whose
//! timers need no thread, so this crate takes the place of the other one. It has what libp2p uses of it, and nothing more.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

/// Is ready after a while. It must be polled within a tokio runtime, but may be made anywhere.
pub struct Delay {
    at: Instant,
    /// Registered when it is first waited for: most timers are dropped before.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Delay {
    /// A timer that is ready after `duration`.
    pub fn new(duration: Duration) -> Self {
        Self { at: after(duration), sleep: None }
    }

    /// Makes the timer ready after `duration` from now.
    pub fn reset(&mut self, duration: Duration) {
        self.at = after(duration);
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().reset(self.at);
        }
    }
}

/// A moment that can't be expressed is one that does not come: thirty years will do.
fn after(duration: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);
    Instant::now() + duration.min(FAR)
}

impl Future for Delay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let at = self.at;
        self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at))).as_mut().poll(cx)
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delay").field("at", &self.at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_timer_is_ready_in_its_time() {
        let begun = Instant::now();
        Delay::new(SECOND).await;
        assert_eq!(begun.elapsed(), SECOND);
        assert!(timeout(SECOND, Delay::new(Duration::MAX)).await.is_err());
        Delay::new(Duration::ZERO).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_can_be_set_again() {
        let begun = Instant::now();
        let mut timer = Delay::new(SECOND);
        timer.reset(3 * SECOND); // before it is waited for
        assert!(timeout(2 * SECOND, &mut timer).await.is_err());
        timer.reset(2 * SECOND); // while it is
        (&mut timer).await;
        timer.reset(SECOND); // afterwards
        timer.await;
        assert_eq!(begun.elapsed(), 5 * SECOND);
    }
}
