//! Whether the blob of a message is durable yet.

use tokio::sync::watch;

/// How far a put is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    Durable,
    Failed,
}

/// A blob that is being put, for edits that refer to it: they are prepared meanwhile, and committed when it is durable. Cloning shares
/// it.
#[derive(Clone, Debug)]
pub struct BlobPut(watch::Receiver<State>);

/// The side that puts the blob. When it is dropped before [`Putting::end`], the put has failed.
#[derive(Debug)]
pub struct Putting(watch::Sender<State>);

impl BlobPut {
    /// A put that begins.
    pub fn begin() -> (Putting, Self) {
        let (sender, receiver) = watch::channel(State::Pending);
        (Putting(sender), Self(receiver))
    }

    /// Waits until the put has ended; returns whether the blob is durable.
    pub(crate) async fn is_durable(&self) -> bool {
        let mut state = self.0.clone();
        let ended = state.wait_for(|state| *state != State::Pending).await;
        ended.is_ok_and(|state| *state == State::Durable)
    }
}

impl Putting {
    /// Notes how the put has ended.
    pub fn end(self, is_durable: bool) {
        self.0.send_replace(if is_durable { State::Durable } else { State::Failed });
    }
}
