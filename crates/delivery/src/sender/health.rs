//! The health of the sender: metrics, and the watchdog.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use restante_core::Error;
use restante_mail::queue::QueueAccount;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{Shared, gauge};

/// How often the oldest recipient is looked up.
const OLDEST_EVERY: Duration = Duration::from_secs(30);
/// How often the queue is counted, and expired records are removed from it.
const COUNT_EVERY: Duration = Duration::from_secs(60);
/// How long the loop of the sender may be silent, in seconds.
const SILENCE_SECONDS: u64 = 120;

/// The health of a sender. Clones share it.
#[derive(Clone, Debug)]
pub struct SenderHealth(Arc<State>);

#[derive(Debug)]
struct State {
    stuck_seconds: u64,
    /// When the loop last ran, in seconds since 1970; 0 before it began.
    ticked: AtomicU64,
    /// When an outcome was last recorded.
    noted: AtomicU64,
    /// When the oldest recipient was due, as last read; `u64::MAX` for none.
    oldest_due: AtomicU64,
    is_held: AtomicBool,
    is_stopped: AtomicBool,
}

impl SenderHealth {
    pub(super) fn new(stuck_seconds: u64) -> Self {
        Self(Arc::new(State {
            stuck_seconds,
            ticked: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            oldest_due: AtomicU64::new(u64::MAX),
            is_held: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        }))
    }

    pub(super) fn ticked(&self, now: u64) {
        // The sender can't have been stuck for longer than it has run.
        if self.0.ticked.swap(now, Relaxed) == 0 {
            self.0.noted.store(now, Relaxed);
        }
    }

    pub(super) fn noted(&self, now: u64) {
        self.0.noted.store(now, Relaxed);
    }

    pub(super) fn set_held(&self, is_held: bool) {
        self.0.is_held.store(is_held, Relaxed);
    }

    pub(super) fn stopped(&self) {
        self.0.is_stopped.store(true, Relaxed);
    }

    fn set_oldest(&self, due: Option<u64>) {
        self.0.oldest_due.store(due.unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether the whole queue is held, by an operator or after a restore.
    pub fn is_held(&self) -> bool {
        self.0.is_held.load(Relaxed)
    }

    /// The problem, if there is one: the sender does not run, or mail is due and nothing has moved for longer than `stuck_seconds`.
    /// `now` in seconds since 1970.
    pub fn problem(&self, now: u64) -> Option<String> {
        let ticked = self.0.ticked.load(Relaxed);
        if self.0.is_stopped.load(Relaxed) || ticked == 0 {
            return Some("the sender of outgoing mail does not run".to_owned());
        }
        if now.saturating_sub(ticked) > SILENCE_SECONDS {
            return Some(format!("the sender of outgoing mail has made no progress for {} s", now - ticked));
        }
        let waited = now.saturating_sub(self.0.oldest_due.load(Relaxed));
        let quiet = now.saturating_sub(self.0.noted.load(Relaxed));
        let is_stuck = waited > self.0.stuck_seconds && quiet > self.0.stuck_seconds;
        if is_stuck && !self.is_held() {
            return Some(format!(
                "outgoing mail has been due for {waited} s, and nothing was sent for {quiet} s"
            ));
        }
        None
    }
}

/// Keeps metrics up to date, and removes what has expired from the queue. Never ends.
pub(super) async fn tend(shared: &Shared) {
    let mut counted: Option<Instant> = None;
    loop {
        if let Err(error) = read_oldest(shared).await {
            warn!(%error, "the oldest recipient of the queue can't be read");
        }
        if counted.is_none_or(|last| last.elapsed() >= COUNT_EVERY) {
            counted = Some(Instant::now());
            if let Err(error) = count(shared).await {
                warn!(%error, "the queue can't be counted");
            }
        }
        sleep(OLDEST_EVERY).await;
    }
}

async fn read_oldest(shared: &Shared) -> Result<(), Error> {
    let queue = &shared.parts.queue;
    let (mut oldest, mut first_error) = (None, None);
    for account in QueueAccount::all() {
        match queue.next_due(account, None).await {
            Ok(due) => oldest = [oldest, due].into_iter().flatten().min(),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    if oldest.is_none()
        && let Some(error) = first_error
    {
        return Err(error);
    }
    shared.health.set_oldest(oldest);
    let waited = oldest.map_or(0, |due| queue.now().saturating_sub(due));
    shared.parts.metrics.oldest_due_seconds.set(i64::try_from(waited).unwrap_or(i64::MAX));
    first_error.map_or(Ok(()), Err)
}

async fn count(shared: &Shared) -> Result<(), Error> {
    let totals = shared.parts.queue.totals().await;
    if let Ok(totals) = &totals {
        let metrics = &shared.parts.metrics;
        let number = |count: u64| gauge(usize::try_from(count).unwrap_or(usize::MAX));
        metrics.queued.set(number(totals.waiting));
        metrics.held.set(number(totals.held));
        metrics.remembered.set(number(totals.remembered));
    }
    // In small steps, so that commits of others come in between.
    while shared.parts.queue.forget().await? {
        tokio::task::yield_now().await;
    }
    totals.map(drop)
}
