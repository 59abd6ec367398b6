//! The body of an answer, with everything that must live until it is written.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use restante_net::{Activity, InFlight};
use tokio::time::{Instant, sleep};

use super::open_requests::OpenPermit;

/// Over HTTP/2 an answer is passed to the connection in pieces of this size, each when the client accepts more. The last piece
/// may wait for a long time; only the number of streams bounds this.
pub(super) const PIECE_BYTES: usize = 16 << 10;
/// How long a client may stall while requests wait for memory that its answers hold.
const SHORT_STALL: Duration = Duration::from_secs(5);
/// How often to check for stalled answers.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// When the answers of an HTTP/2 connection last made progress. Its client can stall an answer without stalling the connection.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    /// The answers that have more to send than the client accepts, as far as that is known.
    waiting_since: HashMap<u64, Instant>,
}

impl Progress {
    /// Completes when the client has read nothing of an answer for too long.
    pub(super) async fn stalled(&self, limit: Duration, activity: &Activity) {
        loop {
            sleep(LOOK_INTERVAL.min(limit)).await;
            let limit = if activity.is_memory_short() { SHORT_STALL.min(limit) } else { limit };
            let state = self.state.lock();
            if state.waiting_since.values().any(|since| since.elapsed() >= limit) {
                return;
            }
        }
    }
}

/// One answer in [`Progress`], or a socket.
pub(crate) struct Tracked {
    progress: Arc<Progress>,
    id: u64,
}

impl Tracked {
    pub(super) fn new(progress: Arc<Progress>) -> Self {
        let mut state = progress.state.lock();
        state.next_id += 1;
        let id = state.next_id;
        drop(state);
        Self { progress, id }
    }

    /// A piece was passed on; the next is polled when the client opens its window.
    fn note_piece(&self) {
        self.progress.state.lock().waiting_since.insert(self.id, Instant::now());
    }

    /// What is to be sent waits for the client's window.
    pub(crate) fn note_waiting(&self) {
        self.progress.state.lock().waiting_since.entry(self.id).or_insert_with(Instant::now);
    }

    /// The client has opened its window, and there is nothing to send yet.
    pub(crate) fn note_nothing_to_send(&self) {
        self.progress.state.lock().waiting_since.remove(&self.id);
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.note_nothing_to_send();
    }
}

/// The body of an answer. When it is dropped, all of it was passed to the connection.
pub(super) struct Answer {
    body: Body,
    /// The rest of a long frame.
    rest: Bytes,
    tracked: Option<Tracked>,
    _in_flight: InFlight,
    _permit: Option<OpenPermit>,
}

impl Answer {
    /// An answer; over HTTP/2 with its connection's `progress`.
    pub(super) fn new(
        body: Body,
        in_flight: InFlight,
        permit: Option<OpenPermit>,
        progress: Option<Arc<Progress>>,
    ) -> Self {
        let tracked = progress.map(Tracked::new);
        Self { body, rest: Bytes::new(), tracked, _in_flight: in_flight, _permit: permit }
    }

    fn take_piece(&mut self) -> Frame<Bytes> {
        let mut piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        if self.rest.is_empty() {
            piece = Bytes::copy_from_slice(&piece); // releases the memory of the whole answer
        }
        if let Some(tracked) = &self.tracked {
            tracked.note_piece();
        }
        Frame::data(piece)
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(tracked) = &self.tracked else { return Pin::new(&mut self.body).poll_frame(context) };
        if self.rest.is_empty() {
            tracked.note_nothing_to_send();
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        Poll::Ready(Some(Ok(self.take_piece())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}
