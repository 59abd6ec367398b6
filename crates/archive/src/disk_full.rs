//! A full disk, as health, the metric and the log report it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use restante_core::{Clock, ErrorKind, Timestamp};
use tracing::{info, warn};

use crate::Error;

/// A full disk is logged at most once in this time, however many writes fail.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// With this much space a disk no longer counts as full: enough for a message of any size.
const ROOM_BYTES: u64 = 1 << 20;
/// With less space than this a disk counts as full when the archive is opened, before the first write was tried.
const FULL_BYTES: u64 = 64 << 10;

/// The text in `GET /health`.
const PROBLEM: &str = "the disk is full: messages are refused; queries, exports and pruning work: free some space on \
                       the disk, or prune the archive";

/// Whether an error says that the disk, or the quota on it, has no space.
pub(crate) fn has_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The bytes that may still be written to the disk of a path; `None` if unknown.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The size of the disk of a path; `None` if unknown.
pub(crate) fn disk_bytes(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    Some(disk.f_blocks.saturating_mul(disk.f_frsize)).filter(|bytes| *bytes > 0)
}

/// Allows one line in [`LOG_INTERVAL`].
#[derive(Default)]
pub(crate) struct LogLimit(Mutex<Option<Instant>>);

impl LogLimit {
    pub(crate) fn permits(&self) -> bool {
        let mut last = self.0.lock();
        let is_permitted = last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        if is_permitted {
            *last = Some(Instant::now());
        }
        is_permitted
    }
}

/// Whether the archive's disk is full, according to the last writes.
pub(crate) struct DiskFull {
    /// Any path on the disk; `None` where only a successful write shows that there is space.
    path: Option<PathBuf>,
    /// Read before the disk is checked, so that a disk with space costs nothing.
    is_full: AtomicBool,
    since: Mutex<Option<Timestamp>>,
    lines: LogLimit,
    /// Whether the full disk was logged, but not yet that there is space again.
    is_logged: AtomicBool,
    clock: Arc<dyn Clock>,
    gauge: Gauge,
}

impl DiskFull {
    pub(crate) fn new(path: Option<&Path>, clock: Arc<dyn Clock>, gauge: Gauge) -> Self {
        Self {
            path: path.map(Path::to_owned),
            is_full: AtomicBool::new(false),
            since: Mutex::default(),
            lines: LogLimit::default(),
            is_logged: AtomicBool::new(false),
            clock,
            gauge,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Notes an error if it is about a full disk. Returns whether it is.
    pub(crate) fn note(&self, error: &Error) -> bool {
        if error.kind() != ErrorKind::Full {
            return false;
        }
        self.since.lock().get_or_insert_with(|| self.clock.now());
        self.is_full.store(true, Ordering::Relaxed);
        self.gauge.set(1);
        if self.lines.permits() {
            self.is_logged.store(true, Ordering::Relaxed);
            let advice =
                "free some space on it, or prune the archive; queries, exports and pruning work meanwhile";
            warn!(%error, advice, "the disk is full: messages are refused until it has room");
        }
        true
    }

    /// Notes a disk that is full when the archive is opened, so that health and log say so before a message arrives.
    pub(crate) fn note_at_open(&self) {
        let Some(path) = self.path.as_deref() else { return };
        if let Some(free) = free_bytes(path).filter(|free| *free < FULL_BYTES) {
            let what = format!("{free} bytes are free on the disk of {}", path.display());
            self.note(&Error::full(what));
        }
    }

    /// Checks whether a disk that was full has space again. Call it after a write that succeeded.
    pub(crate) fn look(&self) {
        if !self.is_full() {
            return;
        }
        let free = self.path.as_deref().and_then(free_bytes);
        if free.is_none_or(|free| free >= ROOM_BYTES) {
            self.clear();
        }
    }

    fn clear(&self) {
        *self.since.lock() = None;
        self.is_full.store(false, Ordering::Relaxed);
        self.gauge.set(0);
        if self.is_logged.swap(false, Ordering::Relaxed) {
            info!("the disk has room again");
        }
    }

    /// Checks with the system, which answers from memory, whether a disk that was full has space again.
    pub(crate) fn refresh(&self) {
        if self.path.is_some() {
            self.look();
        }
    }

    /// The problem, and since when; `None` when the disk has space, as far as is known.
    pub(crate) fn problem(&self) -> Option<(String, Timestamp)> {
        self.refresh();
        let since = *self.since.lock();
        since.map(|since| (PROBLEM.to_owned(), since))
    }
}

#[cfg(test)]
mod tests {
    use restante_core::ManualClock;

    use super::*;

    #[test]
    fn a_full_disk_is_reported_until_it_has_room() {
        let clock = Arc::new(ManualClock::new(Timestamp(5)));
        let gauge = Gauge::default();
        let disk = DiskFull::new(None, clock.clone(), gauge.clone());
        let error = |kind| Error::new(kind, "as the test wanted");
        assert!(!disk.note(&error(ErrorKind::Unavailable)));
        assert_eq!((disk.problem(), gauge.get()), (None, 0));

        assert!(disk.note(&error(ErrorKind::Full)));
        clock.set(Timestamp(9));
        assert!(disk.note(&error(ErrorKind::Full)));
        assert_eq!((disk.problem(), gauge.get()), (Some((PROBLEM.to_owned(), Timestamp(5))), 1));
        disk.look();
        assert_eq!((disk.problem(), gauge.get()), (None, 0));
    }

    #[test]
    fn lines_have_a_limit() {
        let lines = LogLimit::default();
        assert!(lines.permits());
        assert!((0..1_000).all(|_| !lines.permits()));
    }
}
