//! The state shared by readers, the writer thread and the applying thread.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex, MutexGuard};
use restante_core::ErrorKind;
use tracing::{info, warn};

use crate::{
    Error, Metrics, View,
    env::{Environment, Progress, RedoRows},
    layer::{Layer, Sequence},
    store::{BroughtIn, SyncOthers},
    view::Layers,
};

/// How long the applying thread waits before it tries again.
const RETRY: Duration = Duration::from_secs(1);

pub(crate) struct Shared {
    pub(crate) environment: Environment,
    pub(crate) metrics: Metrics,
    sync_others: Option<SyncOthers>,
    layers: ArcSwap<Layers>,
    /// The last batch that readers may see.
    visible: AtomicU64,
    applying: Mutex<Applying>,
    changed: Condvar,
    /// Why writes are refused.
    refusal: Mutex<Option<(ErrorKind, String)>>,
    is_refusing: AtomicBool,
    /// The length of the files of the commit log.
    log_bytes: AtomicU64,
    _lock: File,
}

#[derive(Default)]
struct Applying {
    /// The progress of LMDB with the frozen layer.
    progress: Option<Progress>,
    /// Why the last attempt to write it into LMDB failed.
    error: Option<(ErrorKind, String)>,
    /// The error of a write that found no space, until there is some.
    full: Option<String>,
    is_stopping: bool,
}

/// Refuses writes when the thread that applies rows panics: the writer would wait for it forever.
struct RefusesAfterPanic<'s>(&'s Shared);

impl Drop for RefusesAfterPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (kind, why) = (ErrorKind::Unavailable, "the thread that writes into LMDB has ended");
            self.0.refuse(kind, why.to_owned());
            self.0.applying.lock().error = Some((kind, why.to_owned()));
            self.0.changed.notify_all();
        }
    }
}

impl Shared {
    pub(crate) fn new(
        environment: Environment,
        metrics: Metrics,
        sync_others: Option<SyncOthers>,
        brought_in: BroughtIn,
        lock: File,
    ) -> Self {
        let BroughtIn { progress, base, put_off } = brought_in;
        let active = Arc::new(Layer::new());
        let (mut frozen, mut applying) = (None, Applying::default());
        if let Some((layer, error)) = put_off {
            frozen = Some(Arc::new(layer));
            applying.progress = Some(progress);
            applying.error = Some((error.kind(), error.to_string()));
        }
        Self {
            environment,
            metrics,
            sync_others,
            layers: ArcSwap::from_pointee(Layers { active, frozen, base }),
            visible: AtomicU64::new(progress.applied),
            applying: Mutex::new(applying),
            changed: Condvar::new(),
            refusal: Mutex::default(),
            is_refusing: AtomicBool::new(false),
            log_bytes: AtomicU64::new(0),
            _lock: lock,
        }
    }

    /// The view of a reader.
    pub(crate) fn view(&self) -> Result<View<'_>, Error> {
        View::new(&self.environment, || self.layers.load(), || self.visible.load(Ordering::Acquire))
    }

    /// The view of the writer, which includes rows that are not durable yet.
    pub(crate) fn newest_view(&self) -> Result<View<'_>, Error> {
        View::new(&self.environment, || self.layers.load(), || Sequence::MAX)
    }

    /// The layer that is written to.
    pub(crate) fn active(&self) -> Arc<Layer> {
        self.layers.load().active.clone()
    }

    /// Makes all batches up to this one visible to readers.
    pub(crate) fn publish(&self, sequence: Sequence) {
        self.visible.store(sequence, Ordering::Release);
    }

    pub(crate) fn waiting_rows(&self) -> usize {
        let layers = self.layers.load();
        layers.active.rows() + layers.frozen.as_ref().map_or(0, |layer| layer.rows())
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_log_bytes(&self, bytes: u64) {
        self.log_bytes.store(bytes, Ordering::Relaxed);
        self.metrics.log_bytes.set(bytes as i64);
    }

    /// Refuses all further writes.
    pub(crate) fn refuse(&self, kind: ErrorKind, why: String) {
        self.refusal.lock().get_or_insert((kind, why));
        self.is_refusing.store(true, Ordering::Release);
    }

    /// The error with which writes are refused.
    pub(crate) fn health(&self) -> Result<(), Error> {
        if !self.is_refusing.load(Ordering::Acquire) {
            return Ok(());
        }
        match &*self.refusal.lock() {
            Some((kind, why)) => Err(Error::new(*kind, why.clone())),
            None => Ok(()),
        }
    }

    /// Whether the disk had space for the last write, or has some now.
    pub(crate) fn has_space(&self) -> Result<(), Error> {
        let applying = self.applying.lock();
        if let Some((kind, why)) = &applying.error {
            let what = format!("reads work, writes are refused when the commit log is full: {why}");
            return Err(Error::new(*kind, what));
        }
        match &applying.full {
            Some(why) => Err(Error::full(format!("reads work, writes are refused: {why}"))),
            None => Ok(()),
        }
    }

    /// Notes that a write was refused by `error`, if that was a full disk.
    pub(crate) fn note_refused(&self, error: &Error) {
        if error.kind() != ErrorKind::Full {
            return;
        }
        let mut applying = self.applying.lock();
        let is_first = applying.full.is_none();
        applying.full = Some(error.to_string());
        if !is_first {
            return;
        }
        if applying.error.is_none() {
            warn!(%error, "the disk is full: reads work, writes are refused until there is space");
        }
        self.changed.notify_all();
    }

    // Called by the writer for its layers.

    /// Freezes the active layer and begins a new one, once LMDB has the layer that was frozen before.
    pub(crate) fn freeze(&self, progress: Progress) -> Result<(), Error> {
        let mut applying = self.wait_for_applied()?;
        self.push_layer();
        applying.progress = Some(progress);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until LMDB has all frozen rows.
    pub(crate) fn wait_until_applied(&self) -> Result<(), Error> {
        self.wait_for_applied().map(drop)
    }

    fn wait_for_applied(&self) -> Result<MutexGuard<'_, Applying>, Error> {
        let mut applying = self.applying.lock();
        while applying.progress.is_some() {
            if let Some((kind, why)) = &applying.error {
                return Err(Error::new(*kind, why.clone()));
            }
            self.changed.wait(&mut applying);
        }
        Ok(applying)
    }

    fn push_layer(&self) -> Arc<Layer> {
        let layers = self.layers.load_full();
        let active = Arc::new(Layer::new());
        let frozen = Some(layers.active.clone());
        self.layers.store(Arc::new(Layers { active, frozen, base: layers.base }));
        layers.active.clone()
    }

    fn drop_frozen(&self, base: usize) {
        let layers = self.layers.load_full();
        self.layers.store(Arc::new(Layers { active: layers.active.clone(), frozen: None, base }));
        self.metrics.waiting_rows.set(layers.active.rows() as i64);
    }

    /// Writes the active layer into LMDB at once, on the writer's thread: for a store without a commit log. After an error its
    /// rows are gone.
    pub(crate) fn apply_now(&self, progress: Progress) -> Result<(), Error> {
        let base = self.layers.load().base;
        let layer = self.push_layer();
        let applied = self.environment.apply(&layer, progress, RedoRows::Keep);
        self.drop_frozen(*applied.as_ref().unwrap_or(&base));
        applied.map(drop)
    }

    // The work of the applying thread.

    /// Writes frozen layers into LMDB until it is stopped.
    pub(crate) fn apply_frozen(&self) {
        let _panics = RefusesAfterPanic(self);
        let mut retired: Vec<Arc<Layer>> = Vec::new();
        let mut applying = self.applying.lock();
        while !applying.is_stopping {
            let frozen = self.layers.load().frozen.clone();
            let (Some(progress), Some(frozen)) = (applying.progress, frozen) else {
                self.wait_for_rows_or_space(&mut applying);
                continue;
            };
            drop(applying);
            let applied = self.apply(&frozen, progress);
            applying = self.applying.lock();
            match applied {
                Ok(base) => {
                    if applying.error.take().is_some() {
                        info!("the LMDB store accepts rows again");
                    }
                    applying.progress = None;
                    self.drop_frozen(base);
                    self.changed.notify_all();
                    // Freeing a layer takes milliseconds: neither a reader that is the last to use it nor the writer may wait for it.
                    retired.push(frozen);
                    let free = || retired.retain(|layer| Arc::strong_count(layer) > 1);
                    MutexGuard::unlocked(&mut applying, free);
                }
                Err(error) => {
                    self.metrics.apply_failures.inc();
                    if applying.error.is_none() {
                        warn!(%error, "the LMDB store can't take rows; they stay in the commit log");
                    }
                    applying.error = Some((error.kind(), error.to_string()));
                    self.changed.notify_all();
                    self.changed.wait_for(&mut applying, RETRY);
                }
            }
        }
    }

    /// Waits until there may be something to do. After writes were refused, checks for space periodically.
    fn wait_for_rows_or_space(&self, applying: &mut MutexGuard<'_, Applying>) {
        if applying.full.is_none() {
            return self.changed.wait(applying);
        }
        self.changed.wait_for(applying, RETRY);
        if self.environment.has_space() && applying.full.take().is_some() {
            info!("the disk has space again: writes are accepted");
        }
    }

    fn apply(&self, layer: &Layer, progress: Progress) -> Result<usize, Error> {
        let begun = Instant::now();
        let redo = self.sync_others(layer);
        let base = self.environment.apply(layer, progress, redo)?;
        self.metrics.applies.inc();
        self.metrics.apply_seconds.observe(begun.elapsed().as_secs_f64());
        Ok(base)
    }

    /// Makes the writes that the redo rows of a layer repeat durable. Those that the commit log had on opening are from another
    /// process, whose writes may be gone.
    fn sync_others(&self, layer: &Layer) -> RedoRows {
        let Some(SyncOthers(sync)) = &self.sync_others else { return RedoRows::Keep };
        if layer.is_of_commit_log || !self.environment.has_redo_rows(layer) {
            return RedoRows::Keep;
        }
        match sync() {
            Ok(()) => RedoRows::Drop,
            Err(error) => {
                warn!(%error, "what is also in the commit log could not be made durable; it stays in the LMDB store");
                RedoRows::Keep
            }
        }
    }

    pub(crate) fn stop_applying(&self) {
        self.applying.lock().is_stopping = true;
        self.changed.notify_all();
    }
}
