//! Two lanes for connections: those of peers that have large answers written to them leave the fast one, so that relay does not
//! wait behind them.
//!
//! A connection's task encrypts and decrypts all that travels on it. One that hands out history keeps a core busy for as long
//! as its peer asks, and tasks of one runtime take turns: a relayed message would wait until everybody's page has gone out.
//! So the task moves, once and for all, to a runtime of its own kind, whose threads have a lower priority: then the system's
//! scheduler gives relay a core as soon as it wants one, and history all that is left.

use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use libp2p::swarm::Executor;
use tokio::runtime::{Builder, Handle, Runtime};
use tracing::{debug, warn};

/// A connection that was written so much in answers moves to the slow lane: a few pages change nothing for others.
const BULK_BYTES: u64 = 4 << 20;
/// By how much the slow lane's threads are less urgent than all others: under load they get about a tenth of the time that
/// others want, and all of the time that nobody wants.
const NICENESS: i32 = 10;
/// The name of the slow lane's threads.
const SLOW: &str = "waku-history";

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// The lane of the connection whose task is running on this thread.
    static CURRENT: RefCell<Option<Lane>> = const { RefCell::new(None) };
}

/// What was written in answers on one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lane(Arc<AtomicU64>);

impl Lane {
    /// The lane of the connection whose task runs now; one of its own when none does.
    pub(crate) fn current() -> Self {
        CURRENT.with_borrow(|current| current.clone().unwrap_or_default())
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn is_bulk(&self) -> bool {
        self.0.load(Ordering::Relaxed) > BULK_BYTES
    }
}

/// Runs connections' tasks.
pub(crate) struct Lanes {
    fast: Handle,
    slow: Arc<Slow>,
}

impl Lanes {
    /// The fast lane is the present runtime.
    pub(crate) fn new() -> Self {
        Self { fast: Handle::current(), slow: Arc::default() }
    }
}

/// The slow lane's runtime, made when the first connection needs it: most nodes never hand out much.
#[derive(Default)]
struct Slow(OnceLock<Option<Runtime>>);

impl Slow {
    /// Without threads of its own (there may be no more) the slow lane is the fast one.
    fn handle(&self) -> Option<&Handle> {
        self.0.get_or_init(Self::start).as_ref().map(Runtime::handle)
    }

    fn start() -> Option<Runtime> {
        let started =
            Builder::new_multi_thread().thread_name(SLOW).enable_all().on_thread_start(step_back).build();
        started.inspect_err(|error| warn!(%error, "history is served by the threads of everything else")).ok()
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        if let Some(slow) = self.0.take().flatten() {
            slow.shutdown_background(); // a runtime may not be waited for by another's task
        }
    }
}

/// Gives the present thread a lower priority.
fn step_back() {
    // Linux takes 0 for the calling thread, not for its process.
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        debug!(%error, "history is served with the priority of everything else");
    }
}

impl Executor for Lanes {
    fn exec(&self, task: Task) {
        let (fast, slow) = (self.fast.clone(), Arc::downgrade(&self.slow));
        let ride = Ride { task: Some(task), lane: Lane::default() };
        self.fast.spawn(async move {
            let Some(task) = ride.await else { return };
            // A node that is gone needs no connections.
            let Some(slow) = slow.upgrade() else { return };
            slow.handle().unwrap_or(&fast).spawn(task);
        });
    }
}

/// A task on the fast lane; ready when it is done, or with the task when it is to go on elsewhere.
struct Ride {
    task: Option<Task>,
    lane: Lane,
}

impl Future for Ride {
    type Output = Option<Task>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Task>> {
        let Some(mut task) = self.task.take() else { return Poll::Ready(None) };
        let before = CURRENT.replace(Some(self.lane.clone()));
        let polled = task.as_mut().poll(cx);
        CURRENT.set(before);
        if polled.is_ready() {
            return Poll::Ready(None);
        }
        if self.lane.is_bulk() {
            return Poll::Ready(Some(task));
        }
        self.task = Some(task);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Tells on which thread it runs, each time it is polled, and counts an answer each time.
    async fn chatter(answer_bytes: usize, told: mpsc::Sender<String>) {
        loop {
            Lane::current().answered(answer_bytes);
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            if told.send(name).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn threads_of(answer_bytes: usize) -> Vec<String> {
        let (told, mut threads) = mpsc::channel(1);
        let lanes = Lanes::new();
        lanes.exec(Box::pin(chatter(answer_bytes, told)));
        let mut names = Vec::new();
        while names.len() < 40 {
            names.push(threads.recv().await.unwrap());
        }
        names
    }

    #[tokio::test]
    async fn a_connection_that_hands_out_much_moves_once() {
        let names = threads_of(BULK_BYTES as usize / 8).await;
        let moved = names.iter().position(|name| name == SLOW).unwrap();
        assert!((8..20).contains(&moved), "it moved at its turn {moved}");
        assert!(names.iter().skip(moved).all(|name| name == SLOW));
    }

    #[tokio::test]
    async fn a_connection_that_hands_out_little_stays() {
        let names = threads_of(10).await;
        assert!(names.iter().all(|name| name != SLOW));
    }

    #[test]
    fn outside_of_connections_nothing_is_counted_for_others() {
        let lane = Lane::current();
        lane.answered(usize::MAX);
        assert!(!Lane::current().is_bulk());
    }
}
