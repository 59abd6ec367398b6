use libp2p::PeerId;
use parking_lot::Mutex;
use restante_sessions::{
    SessionId,
    hub::{Next, Subscription},
};
use tokio::sync::Notify;

/// The most messages of one push, to which the time-out applies.
const BATCH_MESSAGES_MAX: usize = 8;

/// A subscriber: its subscription in the hub, and its state.
pub(super) struct Subscriber {
    pub(super) peer: PeerId,
    pub(super) subscription: Subscription,
    state: Mutex<State>,
    /// The peer disconnected since the pusher last checked.
    left: Notify,
}

#[derive(Default)]
struct State {
    /// The number of failed pushes since the last success.
    failures: u32,
    is_away: bool,
}

/// What the pusher is to do next.
#[derive(Debug)]
pub(super) enum Task {
    /// Drop the streams: the peer disconnected.
    Forget,
    /// Messages of the subscription, or its end.
    Serve(Next),
}

impl Subscriber {
    pub(super) fn new(peer: PeerId, subscription: Subscription) -> Self {
        Self { peer, subscription, state: Mutex::default(), left: Notify::new() }
    }

    /// The session id, which differs for two subscribers of the same peer.
    pub(super) fn id(&self) -> SessionId {
        self.subscription.id()
    }

    /// Waits for the next task. Cancel-safe.
    pub(super) async fn next(&self) -> Task {
        tokio::select! {
            biased;
            () = self.left.notified() => Task::Forget,
            next = self.subscription.next_few(BATCH_MESSAGES_MAX) => Task::Serve(next),
        }
    }

    /// A push succeeded.
    pub(super) fn succeeded(&self) {
        self.state.lock().failures = 0;
    }

    /// A push failed. Returns the number of failures in a row, without those while the peer was not connected.
    pub(super) fn failed(&self) -> u32 {
        let mut state = self.state.lock();
        if !state.is_away {
            state.failures = state.failures.saturating_add(1);
        }
        state.failures
    }

    /// Whether the peer is not connected.
    pub(super) fn is_away(&self) -> bool {
        self.state.lock().is_away
    }

    /// The peer is connected: messages are queued again.
    pub(super) fn peer_connected(&self) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_away) {
            state.failures = 0;
            self.subscription.resume();
        }
    }

    /// The peer disconnected. Returns the number of queued messages that are dropped.
    pub(super) fn peer_disconnected(&self) -> usize {
        let mut state = self.state.lock();
        state.is_away = true;
        let dropped = self.subscription.pause();
        self.left.notify_one();
        dropped
    }
}
