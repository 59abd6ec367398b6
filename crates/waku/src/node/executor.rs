//! Runs the tasks of connections on two runtimes, so that relay does not wait for peers that read much history.
//!
//! A connection's task encrypts and decrypts all of its traffic. A task that sends history keeps a core busy for as long as its
//! peer asks, and the tasks of one runtime share its threads fairly: a relayed message would wait for many pages. So while a
//! connection sends much, its task runs on a second runtime whose threads have a lower priority. The system's scheduler then
//! prefers relay, and history gets the remaining time.

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

/// A connection on which more bytes of answers were written in one time window moves to the slow runtime, and back after a
/// whole window with less: three full pages do not delay others, thirty for each of many readers do.
const BULK_BYTES: u64 = 512 << 10;
const WINDOW_SECONDS: u64 = 10;
/// The nice value of the slow runtime's threads: under load they get about a tenth of the time of other threads, and all idle
/// time.
const NICENESS: i32 = 10;
/// The name of the slow runtime's threads.
const SLOW: &str = "waku-history";

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// The counter of the connection whose task is running on this thread.
    static CURRENT: RefCell<Option<AnswerTraffic>> = const { RefCell::new(None) };
}

/// Counts the bytes of answers that were written on one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerTraffic(Arc<Mutex<Written>>);

/// Bytes that were written in the current time window and in the one before.
#[derive(Debug, Default)]
struct Written {
    window: u64,
    bytes: u64,
    previous_bytes: u64,
}

impl Written {
    fn advance_to(&mut self, window: u64) {
        if window != self.window {
            let is_next = window == self.window + 1;
            self.previous_bytes = if is_next { self.bytes } else { 0 };
            (self.window, self.bytes) = (window, 0);
        }
    }
}

impl AnswerTraffic {
    /// The counter of the connection whose task is running; a new one when none is.
    pub(crate) fn current() -> Self {
        CURRENT.with_borrow(|current| current.clone().unwrap_or_default())
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, bytes: usize) {
        let mut written = self.0.lock();
        written.advance_to(window());
        written.bytes += bytes as u64;
    }

    /// Whether more than [`BULK_BYTES`] were written in a recent window.
    fn is_bulk(&self) -> bool {
        let mut written = self.0.lock();
        written.advance_to(window());
        written.bytes.max(written.previous_bytes) > BULK_BYTES
    }
}

/// The current time window.
fn window() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    EPOCH.get_or_init(Instant::now).elapsed().as_secs() / WINDOW_SECONDS
}

/// Runs the tasks of connections on the fast or the slow runtime.
pub(crate) struct ConnectionExecutor {
    fast: Handle,
    slow: Arc<SlowRuntime>,
}

impl ConnectionExecutor {
    /// Uses the current runtime as the fast one.
    pub(crate) fn new() -> Self {
        Self { fast: Handle::current(), slow: Arc::default() }
    }
}

/// The slow runtime, started when the first connection needs it: most nodes never send much history.
#[derive(Default)]
struct SlowRuntime(OnceLock<Option<Runtime>>);

impl SlowRuntime {
    /// `None` when its threads could not be started; then the fast runtime is used.
    fn handle(&self) -> Option<&Handle> {
        self.0.get_or_init(Self::start).as_ref().map(Runtime::handle)
    }

    fn start() -> Option<Runtime> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let started = Builder::new_multi_thread()
            .worker_threads(cores.saturating_sub(1).max(1)) // a core is left to everything else
            .thread_name(SLOW)
            .enable_all()
            .on_thread_start(lower_priority)
            .build();
        started.inspect_err(|error| warn!(%error, "can't start threads for history: it shares the threads of everything else")).ok()
    }
}

impl Drop for SlowRuntime {
    fn drop(&mut self) {
        if let Some(slow) = self.0.take().flatten() {
            slow.shutdown_background(); // dropping a runtime in an async task would panic
        }
    }
}

/// Gives the current thread a lower priority.
fn lower_priority() {
    // On Linux, 0 means the calling thread, not its process.
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        debug!(%error, "can't lower the priority of the threads for history");
    }
}

impl Executor for ConnectionExecutor {
    fn exec(&self, task: Task) {
        let (fast, slow) = (self.fast.clone(), Arc::downgrade(&self.slow));
        let task =
            ConnectionTask { task, traffic: AnswerTraffic::default(), waker: Arc::default(), is_slow: false };
        self.fast.spawn(run(task, fast, slow));
    }
}

/// Runs a task until it is done or has to move, and then spawns it on the other runtime.
fn run(mut task: ConnectionTask, fast: Handle, slow: Weak<SlowRuntime>) -> Task {
    Box::pin(async move {
        if (&mut task).await == TaskEvent::Done {
            return;
        }
        // The node was dropped: the connection ends with it.
        let Some(slow_runtime) = slow.upgrade() else { return };
        task.is_slow = !task.is_slow;
        let runtime =
            if task.is_slow { slow_runtime.handle().unwrap_or(&fast).clone() } else { fast.clone() };
        runtime.spawn(run(task, fast, slow));
    })
}

/// A connection's task on one of the runtimes.
struct ConnectionTask {
    task: Task,
    traffic: AnswerTraffic,
    waker: Arc<TaskWaker>,
    is_slow: bool,
}

/// Why a task stopped running on its runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskEvent {
    /// The task is done.
    Done,
    /// The task has to move to the other runtime.
    Move,
}

/// Wakes a connection's task on its current runtime. The task passes on the same waker for all of its life, because some
/// wakers are stored once and never replaced (by gossipsub's queues).
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
        self.waker.0.register(cx.waker());
        let waker = Waker::from(self.waker.clone());
        let previous = CURRENT.replace(Some(self.traffic.clone()));
        let polled = self.task.as_mut().poll(&mut Context::from_waker(&waker));
        CURRENT.set(previous);
        if polled.is_ready() {
            return Poll::Ready(TaskEvent::Done);
        }
        if self.traffic.is_bulk() != self.is_slow {
            return Poll::Ready(TaskEvent::Move);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Counts an answer and sends the name of its thread, each time it is polled.
    async fn send_answers(answer_bytes: usize, threads: mpsc::Sender<String>) {
        loop {
            AnswerTraffic::current().answered(answer_bytes);
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            if threads.send(name).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn threads_of(answer_bytes: usize) -> Vec<String> {
        let (sender, mut threads) = mpsc::channel(1);
        let executor = ConnectionExecutor::new();
        executor.exec(Box::pin(send_answers(answer_bytes, sender)));
        let mut names = Vec::new();
        while names.len() < 40 {
            names.push(threads.recv().await.unwrap());
        }
        names
    }

    #[tokio::test]
    async fn a_connection_that_sends_much_moves_once() {
        let names = threads_of(BULK_BYTES as usize / 8).await;
        let moved = names.iter().position(|name| name == SLOW).unwrap();
        assert!((8..20).contains(&moved), "it moved at poll {moved}");
        assert!(names.iter().skip(moved).all(|name| name == SLOW));
    }

    #[tokio::test]
    async fn a_connection_that_sends_little_stays() {
        let names = threads_of(10).await;
        assert!(names.iter().all(|name| name != SLOW));
    }

    /// Stores the first waker that it gets, as gossipsub's queues do.
    struct FirstWaker {
        waker: Arc<Mutex<Option<Waker>>>,
        threads: mpsc::Sender<String>,
        polls: usize,
    }

    impl Future for FirstWaker {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            self.waker.lock().get_or_insert_with(|| cx.waker().clone());
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            let _ = self.threads.try_send(name);
            self.polls += 1;
            if self.polls == 1 {
                AnswerTraffic::current().answered(BULK_BYTES as usize + 1); // it moves now
            }
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_task_that_has_moved_is_woken_by_its_first_waker() {
        let (sender, mut threads) = mpsc::channel(100);
        let waker = Arc::default();
        let executor = ConnectionExecutor::new();
        executor.exec(Box::pin(FirstWaker { waker: Arc::clone(&waker), threads: sender, polls: 0 }));
        assert_ne!(threads.recv().await.unwrap(), SLOW);
        assert_eq!(threads.recv().await.unwrap(), SLOW);
        let first = waker.lock().clone().unwrap();
        first.wake();
        assert_eq!(threads.recv().await.unwrap(), SLOW, "woken after it had moved");
    }

    #[test]
    fn written_bytes_expire_after_a_window() {
        let mut written = Written { window: 7, bytes: 5, previous_bytes: 3 };
        written.advance_to(7);
        assert_eq!((written.bytes, written.previous_bytes), (5, 3));
        written.advance_to(8);
        assert_eq!((written.bytes, written.previous_bytes), (0, 5));
        written.advance_to(10);
        assert_eq!((written.bytes, written.previous_bytes), (0, 0));
    }

    #[test]
    fn outside_of_connections_each_counter_is_separate() {
        let traffic = AnswerTraffic::current();
        traffic.answered(usize::MAX);
        assert!(!AnswerTraffic::current().is_bulk());
    }
}
