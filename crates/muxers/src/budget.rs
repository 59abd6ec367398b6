//! Bounds the memory of unread bytes.

use std::{
    collections::HashMap,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use restante_net::LogThrottle;
use tokio::time::{Sleep, sleep};
use tracing::warn;

use crate::MuxerMetrics;

/// The bytes that each connection may always hold, even when the shared budget is used up.
const FLOOR_BYTES: usize = 16 << 10;
/// Beyond the floor, bytes are taken from the shared budget in steps of this size, so that its lock is rarely needed.
const STEP_BYTES: usize = 32 << 10;
/// A connection at its limit is closed when nothing was read for this long.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The memory for unread bytes of all connections.
pub struct Budget {
    limits: Limits,
    pool: Mutex<Pool>,
    metrics: MuxerMetrics,
    log: LogThrottle,
}

/// The bounds of unread bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most connections at once.
    pub connections_max: usize,
    /// The most unread bytes of one connection, at least 16 KiB.
    pub connection_bytes_max: usize,
    /// The most unread bytes of all connections, 16 KiB for each of `connections_max` included.
    pub bytes_max: usize,
    /// Logged with connections that were closed: the settings that change these bounds.
    pub advice: &'static str,
}

struct Pool {
    free_bytes: usize,
    members: HashMap<u64, Member>,
    next_id: u64,
    /// Connections that wait for free bytes.
    waiting: Vec<Waker>,
}

struct Member {
    taken_bytes: usize,
    eviction: Arc<Eviction>,
}

/// Signals a connection that it is closed because others need the memory.
#[derive(Default)]
struct Eviction {
    is_due: AtomicBool,
    waker: AtomicWaker,
}

impl Budget {
    /// Creates a budget of which everything is free.
    pub fn new(mut limits: Limits, metrics: MuxerMetrics) -> Arc<Self> {
        let floors = FLOOR_BYTES.saturating_mul(limits.connections_max);
        let free_bytes = limits.bytes_max.saturating_sub(floors);
        limits.connection_bytes_max = limits.connection_bytes_max.max(FLOOR_BYTES);
        let pool = Pool {
            // One connection can always reach its own limit.
            free_bytes: free_bytes.max(limits.connection_bytes_max),
            members: HashMap::new(),
            next_id: 0,
            waiting: Vec::new(),
        };
        Arc::new(Self { limits, pool: Mutex::new(pool), metrics, log: LogThrottle::default() })
    }

    /// The most that one connection may hold.
    pub(crate) fn connection_bytes_max(&self) -> usize {
        self.limits.connection_bytes_max
    }

    /// Creates the budget of a new connection.
    pub(crate) fn connection(self: &Arc<Self>) -> ConnectionBudget {
        let eviction = Arc::new(Eviction::default());
        let mut pool = self.pool.lock();
        let id = pool.next_id;
        pool.next_id += 1;
        pool.members.insert(id, Member { taken_bytes: 0, eviction: eviction.clone() });
        ConnectionBudget {
            budget: self.clone(),
            id,
            eviction,
            held_bytes: 0,
            taken_bytes: 0,
            is_stalled: false,
            waker: None,
            stall: None,
        }
    }

    /// Takes bytes for a connection. When there are not enough, evicts the connection that has taken the most, and wakes the
    /// caller once bytes are free.
    fn take(&self, id: u64, bytes: usize, waker: &Waker) -> bool {
        let mut pool = self.pool.lock();
        let is_free = pool.free_bytes >= bytes;
        if !is_free {
            pool.evict_largest();
            pool.waiting.push(waker.clone());
            return false;
        }
        let Some(member) = pool.members.get_mut(&id) else { return false };
        member.taken_bytes += bytes;
        pool.free_bytes -= bytes;
        drop(pool);
        self.metrics.unread_bytes.inc_by(bytes as i64);
        true
    }

    fn give_back(&self, id: u64, bytes: usize) {
        let waiting = {
            let mut pool = self.pool.lock();
            if let Some(member) = pool.members.get_mut(&id) {
                member.taken_bytes = member.taken_bytes.saturating_sub(bytes);
            }
            pool.free_bytes += bytes;
            std::mem::take(&mut pool.waiting)
        };
        self.metrics.unread_bytes.dec_by(bytes as i64);
        for waker in waiting {
            waker.wake();
        }
    }

    /// Counts and logs a connection that is closed for its unread bytes.
    fn closed(&self, reason: &'static str) {
        self.metrics.closed(reason);
        if let Some(connections) = self.log.count() {
            let advice = self.limits.advice;
            warn!(connections, reason, advice, "connections were closed because of too many unread bytes");
        }
    }
}

impl Pool {
    fn evict_largest(&mut self) {
        let largest = self.members.values().max_by_key(|member| member.taken_bytes);
        let Some(largest) = largest.filter(|member| member.taken_bytes > 0) else { return };
        largest.eviction.is_due.store(true, Ordering::Release);
        largest.eviction.waker.wake();
    }
}

/// The bytes that one connection holds, released when dropped.
pub(crate) struct ConnectionBudget {
    budget: Arc<Budget>,
    id: u64,
    eviction: Arc<Eviction>,
    held_bytes: usize,
    /// Taken from the shared budget, for what is held beyond the floor.
    taken_bytes: usize,
    is_stalled: bool,
    /// Woken when bytes are released while the connection is stalled.
    waker: Option<Waker>,
    stall: Option<Pin<Box<Sleep>>>,
}

impl ConnectionBudget {
    /// Takes bytes. When there are not enough, the connection is stalled, and `waker` is woken once trying again makes sense.
    pub(crate) fn hold(&mut self, bytes: usize, waker: &Waker) -> bool {
        let held = self.held_bytes + bytes;
        // A connection that holds nothing may receive one frame of any length that its muxer accepts.
        let is_allowed = held <= self.budget.limits.connection_bytes_max || self.held_bytes == 0;
        let missing = steps_of(held).saturating_sub(self.taken_bytes);
        if !is_allowed || (missing > 0 && !self.budget.take(self.id, missing, waker)) {
            self.is_stalled = true;
            self.waker = Some(waker.clone());
            return false;
        }
        self.held_bytes = held;
        self.taken_bytes += missing;
        self.resume();
        true
    }

    /// Takes bytes for a stream that we open, even beyond the limit.
    pub(crate) fn hold_own(&mut self, bytes: usize) {
        self.held_bytes += bytes;
    }

    /// Releases bytes.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
        let surplus = self.taken_bytes.saturating_sub(steps_of(self.held_bytes));
        // One step is kept, so that a connection near the edge of a step does not take and release all the time.
        if surplus > STEP_BYTES || (surplus > 0 && self.held_bytes == 0) {
            self.taken_bytes -= surplus;
            self.budget.give_back(self.id, surplus);
        }
        if let Some(waker) = self.waker.take() {
            // Something was read: the time-out starts again.
            self.stall = None;
            waker.wake();
        }
    }

    fn resume(&mut self) {
        self.is_stalled = false;
        self.waker = None;
        self.stall = None;
    }

    /// Fails when the connection has to be closed: others need the memory, or it was stalled for too long.
    pub(crate) fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.eviction.waker.register(cx.waker());
        if self.eviction.is_due.load(Ordering::Acquire) {
            self.budget.closed("all");
            return Err(io::Error::other("other connections need the memory for unread bytes"));
        }
        if !self.is_stalled {
            return Ok(());
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(STALL_TIMEOUT)));
        match stall.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                self.budget.closed("connection");
                Err(io::Error::other("too many unread bytes on the connection"))
            }
        }
    }
}

impl Drop for ConnectionBudget {
    fn drop(&mut self) {
        if self.taken_bytes > 0 {
            self.budget.give_back(self.id, self.taken_bytes);
        }
        self.budget.pool.lock().members.remove(&self.id);
    }
}

/// The bytes to take from the shared budget when `held_bytes` are held.
fn steps_of(held_bytes: usize) -> usize {
    held_bytes.saturating_sub(FLOOR_BYTES).div_ceil(STEP_BYTES) * STEP_BYTES
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::timeout;

    use super::*;

    fn budget(connection: usize, all: usize) -> Arc<Budget> {
        let limits =
            Limits { connections_max: 2, connection_bytes_max: connection, bytes_max: all, advice: "" };
        Budget::new(limits, MuxerMetrics::default())
    }

    fn free(budget: &Budget) -> usize {
        budget.pool.lock().free_bytes
    }

    /// Whether the connection is closed, after all time-outs have passed.
    async fn is_closed(connection: &mut ConnectionBudget) -> bool {
        let closed = poll_fn(|cx| match connection.check(cx) {
            Ok(()) => Poll::Pending,
            Err(_) => Poll::Ready(()),
        });
        timeout(STALL_TIMEOUT * 2, closed).await.is_ok()
    }

    #[test]
    fn held_bytes_are_released() {
        let budget = budget(1 << 20, 4 << 20);
        let before = free(&budget);
        let mut connection = budget.connection();
        assert!(connection.hold(FLOOR_BYTES, Waker::noop()));
        assert_eq!(free(&budget), before, "the floor is not taken from the shared budget");
        assert!(connection.hold(500_000, Waker::noop()));
        assert!(before - free(&budget) >= 500_000);
        connection.release(400_000);
        assert!(before - free(&budget) <= 100_000 + 2 * STEP_BYTES);
        connection.release(100_000 + FLOOR_BYTES);
        assert_eq!(free(&budget), before);
        assert!(connection.hold(900_000, Waker::noop()));
        drop(connection);
        assert_eq!(free(&budget), before);
        assert!(budget.pool.lock().members.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_at_its_limit_waits_and_is_closed_when_nothing_is_read() {
        let budget = budget(1 << 20, 4 << 20);
        let mut connection = budget.connection();
        assert!(connection.hold(1 << 20, Waker::noop()));
        assert!(!is_closed(&mut connection).await, "there is no time-out below the limit");
        assert!(!connection.hold(1, Waker::noop()));
        connection.release(10);
        assert!(connection.hold(1, Waker::noop()));
        assert!(!is_closed(&mut connection).await, "the time-out started again");
        assert!(!connection.hold(1_000, Waker::noop()));
        assert!(is_closed(&mut connection).await);
    }

    #[test]
    fn one_long_frame_is_accepted_when_nothing_else_is_held() {
        let budget = budget(100_000, 4 << 20);
        let mut connection = budget.connection();
        assert!(connection.hold(200_000, Waker::noop()));
        assert!(!connection.hold(1, Waker::noop()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_holds_most_is_closed() {
        let budget = budget(1 << 20, (2 << 20) + 2 * FLOOR_BYTES);
        let (mut greedy, mut other) = (budget.connection(), budget.connection());
        assert!(greedy.hold(1 << 20, Waker::noop()));
        let mut third = budget.connection();
        assert!(other.hold(900_000, Waker::noop()));
        assert!(!third.hold(500_000, Waker::noop()));
        assert!(!is_closed(&mut other).await);
        assert!(is_closed(&mut greedy).await);
        drop(greedy);
        assert!(third.hold(500_000, Waker::noop()));
        assert!(third.hold(1, Waker::noop()));
    }
}
