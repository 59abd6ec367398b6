use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use restante_archive::{Appended, Error, Page, Query};
use restante_core::{ErrorKind, MessageHash, Timestamp};
use tokio::sync::Semaphore;

use super::*;

/// An archive that appends a batch for each permit, after a number of failures.
struct Slow {
    permits: Semaphore,
    failures: AtomicUsize,
    kind: ErrorKind,
    batches: Mutex<Vec<Vec<Message>>>,
}

impl Slow {
    fn new(permits: usize, failures: usize, kind: ErrorKind) -> Arc<Self> {
        let (permits, failures) = (Semaphore::new(permits), AtomicUsize::new(failures));
        Arc::new(Self { permits, failures, kind, batches: Mutex::default() })
    }

    fn stored(&self) -> Vec<u8> {
        self.batches.lock().iter().flatten().map(|message| message.message_hash.0[0]).collect()
    }
}

#[async_trait]
impl Archive for Slow {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        let failures = self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if failures.is_ok() {
            return Err(Error::new(self.kind, "a test's failure"));
        }
        self.permits.acquire().await.unwrap().forget();
        let answers = vec![Appended::Stored; messages.len()];
        self.batches.lock().push(messages);
        Ok(answers)
    }

    async fn query(&self, _: &Query) -> Result<Page, Error> {
        Ok(Page::default())
    }
}

fn message(n: u8) -> Message {
    Message {
        message_hash: MessageHash([n; 32]),
        channel: "/waku/2/rs/1/0".into(),
        topic: "/toy/1/chat/proto".into(),
        timestamp: Timestamp(i64::from(n)),
        body: vec![n; 100].into(),
    }
}

fn size() -> usize {
    size_of(&message(0))
}

fn start(archive: &Arc<Slow>, messages_max: usize) -> (Handover, IntakeMetrics) {
    let metrics = IntakeMetrics::default();
    let config = HandoverConfig { bytes_max: (messages_max * size()).try_into().unwrap() };
    (Handover::start(archive.clone(), config, metrics.clone()), metrics)
}

/// Runs the worker until it waits.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn waiting_messages_are_bounded_and_drops_are_counted() {
    let archive = Slow::new(0, 0, ErrorKind::Internal);
    let (handover, metrics) = start(&archive, 3);
    handover.offer(message(0));
    settle().await; // the first is being appended and still counts
    (1..=5).for_each(|n| handover.offer(message(n)));
    assert_eq!(metrics.handover_dropped.get(), 3);
    assert_eq!((metrics.handover_messages.get(), metrics.handover_bytes.get()), (2, 3 * size() as i64));

    archive.permits.add_permits(9);
    settle().await;
    handover.offer(message(6));
    handover.close().await;
    assert_eq!(archive.stored(), [0, 1, 2, 6], "bytes were freed, order was kept");
    assert_eq!((metrics.handover_messages.get(), metrics.handover_bytes.get()), (0, 0));
    assert_eq!(
        archive.batches.lock().iter().map(Vec::len).collect::<Vec<_>>(),
        [1, 2, 1],
        "load makes batches"
    );
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_archive_is_retried() {
    let archive = Slow::new(9, 4, ErrorKind::Unavailable);
    let (handover, metrics) = start(&archive, 9);
    handover.offer(message(1));
    handover.close().await;
    assert_eq!(archive.stored(), [1]);
    assert_eq!(metrics.handover_failed.get() + metrics.handover_dropped.get(), 0);
}

#[tokio::test]
async fn permanently_refused_messages_are_counted_and_block_nothing() {
    let archive = Slow::new(9, 1, ErrorKind::Internal);
    let (handover, metrics) = start(&archive, 9);
    handover.offer(message(1));
    settle().await;
    handover.offer(message(2));
    handover.close().await;
    assert_eq!(archive.stored(), [2]);
    assert_eq!(metrics.handover_failed.get(), 1);
}

#[tokio::test]
async fn messages_after_closing_are_dropped() {
    let archive = Slow::new(9, 0, ErrorKind::Internal);
    let (handover, metrics) = start(&archive, 9);
    handover.close().await;
    handover.offer(message(1));
    handover.close().await;
    assert_eq!((archive.stored(), metrics.handover_dropped.get()), (Vec::new(), 1));
}

#[tokio::test]
async fn settled_waits_only_for_earlier_messages() {
    let archive = Slow::new(0, 0, ErrorKind::Internal);
    let (handover, _) = start(&archive, 9);
    handover.settled().now_or_never().expect("nothing waits");
    handover.offer(message(1));
    settle().await;
    handover.offer(message(2));
    let mut settled = Box::pin(handover.settled());
    assert!((&mut settled).now_or_never().is_none());
    handover.offer(message(3));
    archive.permits.add_permits(1);
    settle().await;
    assert!((&mut settled).now_or_never().is_none(), "the second is not archived yet");
    archive.permits.add_permits(1);
    settle().await;
    handover.offer(message(4));
    settled.now_or_never().expect("the second is archived, and the fourth came later");
    assert_eq!(archive.stored(), [1, 2, 3]);
}

#[tokio::test]
async fn settled_does_not_wait_for_refused_or_late_messages() {
    let archive = Slow::new(9, 1, ErrorKind::Internal);
    let (handover, _) = start(&archive, 1);
    handover.offer(message(1));
    handover.offer(message(2));
    settle().await;
    handover.settled().now_or_never().expect("one was refused, one was dropped");
    handover.close().await;
    handover.offer(message(3));
    handover.settled().now_or_never().expect("a closed queue is settled");
}

/// The log lines of this thread until the guard is dropped.
struct Logged {
    lines: Arc<Mutex<Vec<u8>>>,
    _guard: tracing::subscriber::DefaultGuard,
    /// With a single dispatcher, a callsite that another thread reached first would be disabled for this thread too.
    _second: tracing::Dispatch,
}

fn logged() -> Logged {
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let lines = Arc::new(Mutex::default());
    let written = Arc::clone(&lines);
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || Lines(written.clone())).finish();
    Logged { lines, _guard: tracing::subscriber::set_default(subscriber), _second: second }
}

#[tokio::test(start_paused = true)]
async fn repeated_failures_of_the_archive_are_logged_rarely() {
    for (kind, expected) in [(ErrorKind::Full, "they wait"), (ErrorKind::Internal, "refused")] {
        let logged = logged();
        let archive = Slow::new(1_000, 0, kind);
        let (handover, _) = start(&archive, 1);
        let begun = tokio::time::Instant::now();
        for n in 0..100 {
            archive.failures.store(1, Ordering::SeqCst);
            handover.offer(message(n));
            handover.offer(message(n)); // the queue is full
            handover.settled().await;
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        archive.failures.store(1, Ordering::SeqCst);
        handover.offer(message(100));
        handover.settled().await;
        let text = String::from_utf8(logged.lines.lock().clone()).unwrap();
        assert!(text.lines().count() as u64 <= begun.elapsed().as_secs(), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains(expected)).count(), 2, "{text}");
        assert!(text.contains("failures=1 ") && text.contains("failures=100"), "all are counted: {text}");
        assert_eq!(text.lines().filter(|line| line.contains("too slow")).count(), 1, "{text}");
    }
}
