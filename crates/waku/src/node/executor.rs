//! Two lanes for connections: those of peers that have large answers written to them leave the fast one, so that relay does not
//! wait behind them.
//!
//! A connection's task encrypts and decrypts all that travels on it. One that hands out history keeps a core busy for as long
//! as its peer asks, and tasks of one runtime take turns: a relayed message would wait until everybody's page has gone out.
//! So the task moves, for as long as its peer goes on, to a runtime whose threads have a lower priority: then the system's scheduler
//! gives relay a core as soon as it wants one, and history all that is left.

use std::{
    cell::RefCell,
    future::Future,
    num::NonZero,
    pin::Pin,
    sync::{Arc, OnceLock, Weak},
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use futures_util::task::AtomicWaker;
use libp2p::swarm::Executor;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tracing::{debug, warn};

/// A connection that was written so much in answers in one window of time moves to the slow traffic, and back when less was
/// written in a whole one: three full pages change nothing for others, thirty for each of many readers do.
const BULK_BYTES: u64 = 512 << 10;
const WINDOW_SECONDS: u64 = 10;
/// By how much the slow traffic's threads are less urgent than all others: under load they get about a tenth of the time that
/// others want, and all of the time that nobody wants.
const NICENESS: i32 = 10;
/// The name of the slow traffic's threads.
const SLOW: &str = "waku-history";

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// The traffic of the connection whose task is running on this thread.
    static CURRENT: RefCell<Option<AnswerTraffic>> = const { RefCell::new(None) };
}

/// What was written in answers on one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerTraffic(Arc<Mutex<Written>>);

/// Bytes that were written in the present window of time and in the one before.
#[derive(Debug, Default)]
struct Written {
    window: u64,
    bytes: u64,
    before: u64,
}

impl Written {
    fn turn_to(&mut self, window: u64) {
        if window != self.window {
            let is_next = window == self.window + 1;
            self.before = if is_next { self.bytes } else { 0 };
            (self.window, self.bytes) = (window, 0);
        }
    }
}

impl AnswerTraffic {
    /// The traffic of the connection whose task runs now; one of its own when none does.
    pub(crate) fn current() -> Self {
        CURRENT.with_borrow(|current| current.clone().unwrap_or_default())
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, bytes: usize) {
        let mut written = self.0.lock();
        written.turn_to(window());
        written.bytes += bytes as u64;
    }

    /// Whether much was written lately.
    fn is_bulk(&self) -> bool {
        let mut written = self.0.lock();
        written.turn_to(window());
        written.bytes.max(written.before) > BULK_BYTES
    }
}

/// The present window of time.
fn window() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    EPOCH.get_or_init(Instant::now).elapsed().as_secs() / WINDOW_SECONDS
}

/// Runs connections' tasks.
pub(crate) struct ConnectionExecutor {
    fast: Handle,
    slow: Arc<Slow>,
}

impl ConnectionExecutor {
    /// The fast traffic is the present runtime.
    pub(crate) fn new() -> Self {
        Self { fast: Handle::current(), slow: Arc::default() }
    }
}

/// The slow traffic's runtime, made when the first connection needs it: most nodes never hand out much.
#[derive(Default)]
struct Slow(OnceLock<Option<Runtime>>);

impl Slow {
    /// Without threads of its own (there may be no more) the slow traffic is the fast one.
    fn handle(&self) -> Option<&Handle> {
        self.0.get_or_init(Self::start).as_ref().map(Runtime::handle)
    }

    fn start() -> Option<Runtime> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let started = Builder::new_multi_thread()
            .worker_threads(cores.saturating_sub(1).max(1)) // a core is left to everything else
            .thread_name(SLOW)
            .enable_all()
            .on_thread_start(step_back)
            .build();
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

impl Executor for ConnectionExecutor {
    fn exec(&self, task: Task) {
        let (fast, slow) = (self.fast.clone(), Arc::downgrade(&self.slow));
        let ride =
            ConnectionTask { task, traffic: AnswerTraffic::default(), bell: Arc::default(), is_slow: false };
        self.fast.spawn(travel(ride, fast, slow));
    }
}

/// Has a task go on in its traffic until it belongs into the other, and sends it there.
fn travel(mut ride: ConnectionTask, fast: Handle, slow: Weak<Slow>) -> Task {
    Box::pin(async move {
        if (&mut ride).await == TaskEvent::Done {
            return;
        }
        // A node that is gone needs no connections.
        let Some(slow_runtime) = slow.upgrade() else { return };
        ride.is_slow = !ride.is_slow;
        let traffic =
            if ride.is_slow { slow_runtime.handle().unwrap_or(&fast).clone() } else { fast.clone() };
        traffic.spawn(travel(ride, fast, slow));
    })
}

/// A connection's task in one of the lanes.
struct ConnectionTask {
    task: Task,
    traffic: AnswerTraffic,
    bell: Arc<TaskWaker>,
    is_slow: bool,
}

/// Why a ride is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskEvent {
    /// The task is done.
    Done,
    /// The task is to go on in the other traffic.
    Change,
}

/// Wakes a connection's task in whichever traffic it is. What the task gives to others to be woken by never changes, because
/// some of them (gossipsub's queues) keep the first that they were given.
#[derive(Default)]
struct TaskWaker(AtomicWaker);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

impl Future for ConnectionTask {
    type Output = TaskEvent;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TaskEvent> {
        self.bell.0.register(cx.waker());
        let bell = Waker::from(self.bell.clone());
        let before = CURRENT.replace(Some(self.traffic.clone()));
        let polled = self.task.as_mut().poll(&mut Context::from_waker(&bell));
        CURRENT.set(before);
        if polled.is_ready() {
            return Poll::Ready(TaskEvent::Done);
        }
        if self.traffic.is_bulk() != self.is_slow {
            return Poll::Ready(TaskEvent::Change);
        }
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
            AnswerTraffic::current().answered(answer_bytes);
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            if told.send(name).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn threads_of(answer_bytes: usize) -> Vec<String> {
        let (told, mut threads) = mpsc::channel(1);
        let lanes = ConnectionExecutor::new();
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

    /// Keeps the first waker that it is given, as gossipsub's queues do.
    struct Stubborn {
        waker: Arc<Mutex<Option<Waker>>>,
        told: mpsc::Sender<String>,
        polls: usize,
    }

    impl Future for Stubborn {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            self.waker.lock().get_or_insert_with(|| cx.waker().clone());
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            let _ = self.told.try_send(name);
            self.polls += 1;
            if self.polls == 1 {
                AnswerTraffic::current().answered(BULK_BYTES as usize + 1); // it moves now
            }
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_task_that_has_moved_is_woken_by_whoever_knew_it_before() {
        let (told, mut threads) = mpsc::channel(100);
        let waker = Arc::default();
        let lanes = ConnectionExecutor::new();
        lanes.exec(Box::pin(Stubborn { waker: Arc::clone(&waker), told, polls: 0 }));
        assert_ne!(threads.recv().await.unwrap(), SLOW);
        assert_eq!(threads.recv().await.unwrap(), SLOW);
        let first = waker.lock().clone().unwrap();
        first.wake();
        assert_eq!(threads.recv().await.unwrap(), SLOW, "woken after it had moved");
    }

    #[test]
    fn what_was_written_is_forgotten_after_a_window() {
        let mut written = Written { window: 7, bytes: 5, before: 3 };
        written.turn_to(7);
        assert_eq!((written.bytes, written.before), (5, 3));
        written.turn_to(8);
        assert_eq!((written.bytes, written.before), (0, 5));
        written.turn_to(10);
        assert_eq!((written.bytes, written.before), (0, 0));
    }

    #[test]
    fn outside_of_connections_nothing_is_counted_for_others() {
        let traffic = AnswerTraffic::current();
        traffic.answered(usize::MAX);
        assert!(!AnswerTraffic::current().is_bulk());
    }
}
