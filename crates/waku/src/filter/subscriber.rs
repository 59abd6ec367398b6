use libp2p::PeerId;
use parking_lot::Mutex;
use restante_sessions::{
    SessionId,
    hub::{Next, Seat},
};
use tokio::sync::Notify;

/// So many messages are taken from a queue at once: a push is that much, and has its time-out.
const BATCH_MESSAGES_MAX: usize = 8;

/// A subscriber: its seat in the hub, and how it does.
pub(super) struct Subscriber {
    pub(super) peer: PeerId,
    pub(super) seat: Seat,
    state: Mutex<State>,
    /// The peer went away since the pusher last looked.
    left: Notify,
}

#[derive(Default)]
struct State {
    /// Pushes that failed since the last that did not.
    failures: u32,
    is_away: bool,
}

/// What the pusher is to do next.
#[derive(Debug)]
pub(super) enum Task {
    /// Forget the streams: the peer went away.
    Forget,
    /// What the seat has.
    Serve(Next),
}

impl Subscriber {
    pub(super) fn new(peer: PeerId, seat: Seat) -> Self {
        Self { peer, seat, state: Mutex::default(), left: Notify::new() }
    }

    /// Tells subscribers apart, also two of the same peer one after the other.
    pub(super) fn id(&self) -> SessionId {
        self.seat.id()
    }

    /// Waits for something to do. Nothing is lost when the wait is given up.
    pub(super) async fn next(&self) -> Task {
        tokio::select! {
            biased;
            () = self.left.notified() => Task::Forget,
            next = self.seat.next_few(BATCH_MESSAGES_MAX) => Task::Serve(next),
        }
    }

    /// A push succeeded.
    pub(super) fn succeeded(&self) {
        self.state.lock().failures = 0;
    }

    /// A push failed. Returns how many did in a row; those to a peer that is away are not counted.
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
    pub(super) fn peer_came(&self) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_away) {
            state.failures = 0;
            self.seat.resume();
        }
    }

    /// The peer went away. Returns how many messages are dropped by that.
    pub(super) fn peer_left(&self) -> usize {
        let mut state = self.state.lock();
        state.is_away = true;
        let dropped = self.seat.pause();
        self.left.notify_one();
        dropped
    }
}
