//! The store: the interface for its users.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use restante_core::{ErrorKind, Gate};
use restante_disk::{Disk, Folder};
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};
use tracing::warn;

use crate::{
    Error, Metrics, Table, View,
    env::{Environment, Progress, RedoRows},
    frame,
    group::{Answer, Hooks, Syncer},
    key::KEY_BYTES_MAX,
    layer::Layer,
    log::{self, CommitLog},
    shared::Shared,
    writer::{Keep, Request, Write, Writer},
};

/// The most writes in the writer's queue; further callers wait.
const QUEUE_WRITES_MAX: usize = 1_024;

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size of each of the two files of the commit log; 0 means no commit log, so every group is an LMDB transaction. Rows of
    /// both files are also in memory, where they take about three times as much, six times when all are short.
    pub log_bytes: u64,
    /// The largest size of LMDB's file, or twice its size at the opening if that is more. The file is mapped with this size,
    /// which takes address space, but neither memory nor disk.
    pub map_bytes: u64,
    /// Makes the writes that redo rows repeat durable (see [`Table::redo`]); with `None` the rows are written into LMDB.
    pub sync_others: Option<SyncOthers>,
    /// The metrics.
    pub metrics: Metrics,
}

impl Default for Options {
    fn default() -> Self {
        let map_bytes = if cfg!(target_pointer_width = "64") { 1 << 40 } else { 512 << 20 };
        Self { log_bytes: 8 << 20, map_bytes, sync_others: None, metrics: Metrics::default() }
    }
}

/// Makes all writes that redo rows repeat durable. It is called on a thread of the store, which it may block, and must not use
/// the store.
#[derive(Clone)]
pub struct SyncOthers(pub Arc<dyn Fn() -> Result<(), Error> + Send + Sync>);

impl fmt::Debug for SyncOthers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SyncOthers")
    }
}

/// Creates the folder of a store durably, and locks it until the file is closed.
pub(crate) fn lock(folder: &Path) -> Result<std::fs::File, Error> {
    restante_disk::create_folder(folder)?;
    let name = folder.display().to_string();
    restante_disk::hold(&folder.join("lock"), &name, "stop it first")
}

/// The size of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Each table of LMDB; rows that are only in the commit log are not counted.
    pub tables: Vec<TableStats>,
    /// The length of LMDB's file.
    pub file_bytes: u64,
    /// The length of the files of the commit log.
    pub log_bytes: u64,
    /// Pages of LMDB's file that are in use or free.
    pub pages: u64,
    /// Pages of it that no table uses: free ones, and LMDB's list of them.
    pub free_pages: u64,
    /// The size of a page.
    pub page_bytes: u64,
    /// Rows that are in the commit log and not yet in LMDB; a row that was written twice counts twice.
    pub waiting_rows: u64,
}

/// The size of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Its name.
    pub name: &'static str,
    /// Its rows.
    pub rows: u64,
    /// Its pages.
    pub pages: u64,
}

/// A store. Clones share it. When the last one is dropped, what was acknowledged stays in the commit log; [`Store::close`] writes
/// it into LMDB. Dropping the last one waits for the store's threads, which may be writing: close the store first where a thread
/// must not block.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    requests: Mutex<Option<mpsc::Sender<Request>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Whether the store was closed; locked while it is being closed.
    closing: tokio::sync::Mutex<bool>,
}

impl Store {
    /// Opens the store of a folder, creates it if it does not exist, and writes into LMDB what only the commit log has.
    ///
    /// # Errors
    /// `Conflict` when it is open already, here or in another process; `Corrupt` when acknowledged data can't be read; those of a
    /// disk that fails.
    pub fn open(folder: &Path, tables: &[Table], options: Options) -> Result<Self, Error> {
        let lock = lock(folder)?;
        let environment = Environment::open(folder, tables, options.map_bytes)?;
        Self::start(environment, &Folder::new(folder), options, lock)
    }

    pub(crate) fn start(
        environment: Environment,
        disk: &dyn Disk,
        options: Options,
        lock: std::fs::File,
    ) -> Result<Self, Error> {
        let brought_in = bring_in(&environment, disk)?;
        let progress = brought_in.progress;
        let mut log = CommitLog::open(disk, options.log_bytes)?;
        if options.log_bytes == 0 && brought_in.put_off.is_none() {
            log.clear().map_err(|error| Error::io("empty", "the commit log", error))?;
        }
        let at_first = log.bytes();
        let log = (options.log_bytes > 0).then_some(log);
        let shared = Shared::new(environment, options.metrics, options.sync_others, brought_in, lock);
        let shared = Arc::new(shared);
        let (requests, waiting) = mpsc::channel(QUEUE_WRITES_MAX);
        shared.note_log_bytes(at_first);
        let (syncer, sync) = Syncer::new(shared.clone());
        let writer = Writer::new(shared.clone(), log, progress, syncer);
        let applying = shared.clone();
        let inner = Inner {
            shared,
            requests: Mutex::new(Some(requests)),
            threads: Mutex::default(),
            closing: tokio::sync::Mutex::default(),
        };
        inner.spawn("lmdb-write", move || writer.run(waiting))?;
        inner.spawn("lmdb-sync", sync)?;
        inner.spawn("lmdb-apply", move || applying.apply_frozen())?;
        Ok(Self(Arc::new(inner)))
    }

    /// Runs `read` on everything that was acknowledged until now.
    ///
    /// The view ends with the closure, so it can't be held across an await; while it lives, pages that were freed after it began
    /// can't be reused. Keep it short.
    ///
    /// # Errors
    /// Those of `read`, and `Corrupt` or `Unavailable` from LMDB.
    pub fn read<T>(&self, read: impl FnOnce(&View<'_>) -> Result<T, Error>) -> Result<T, Error> {
        read(&self.0.shared.view()?)
    }

    /// Runs `work` on the writer thread; returns when its rows are durable, and views see all of them or none. An error from
    /// `work` leaves nothing behind.
    ///
    /// # Errors
    /// Those of `work`; `Full` when the disk has no space; `Unavailable` after a failed sync (until the store is opened
    /// again) and after [`Store::close`].
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Batch<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (write, answer) = job(work);
        self.0.ask(Request::Write(write)).await?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// [`Store::write`] for rows that must not be durable before something else: `work` is queued when all gates are open, by the
    /// thread that opens the last one.
    ///
    /// # Errors
    /// Those of [`Store::write`], and that of a gate that fails: then nothing is written.
    pub async fn write_after<T: Send + 'static>(
        &self,
        gates: &[Gate],
        work: impl FnOnce(&mut Batch<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if gates.is_empty() {
            return self.write(work).await;
        }
        let (write, answer) = job(work);
        let (given_back, full) = oneshot::channel();
        let requests = self.0.requests()?.downgrade(); // a gate that stays closed must not keep the writer alive
        let queue = move || {
            let Some(requests) = requests.upgrade() else { return };
            if let Err(TrySendError::Full(request)) = requests.try_send(Request::Write(write)) {
                let _ = given_back.send(request); // the caller may be gone
            }
        };
        when_all_open(gates, queue);
        if let Ok(request) = full.await {
            self.0.ask(request).await?;
        }
        match answer.await {
            Ok(done) => done,
            Err(_) => Err(gates.iter().find_map(Gate::failure).unwrap_or_else(|| self.0.refusal())),
        }
    }

    /// [`Store::write`] for threads that may block; it must not be called within an async runtime.
    ///
    /// # Errors
    /// Those of [`Store::write`].
    pub fn write_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Batch<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (write, answer) = job(work);
        let requests = self.0.requests()?;
        requests.blocking_send(Request::Write(write)).map_err(|_| self.0.refusal())?;
        drop(requests);
        answer.blocking_recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Writes everything that was acknowledged into LMDB.
    ///
    /// # Errors
    /// `Full` or `Unavailable` when LMDB can't store it now; it stays in the commit log.
    pub async fn settle(&self) -> Result<(), Error> {
        let (sender, answer) = oneshot::channel();
        self.0.ask(Request::Settle(sender)).await?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Writes a compact copy of everything that was acknowledged before the call into `folder`, which must exist: a store
    /// that can be opened. Reads and writes continue meanwhile.
    ///
    /// # Errors
    /// Those of [`Store::settle`], of the disk, and `Conflict` when `folder` holds a store.
    pub async fn backup(&self, folder: &Path) -> Result<(), Error> {
        self.settle().await?;
        let (shared, folder) = (self.0.shared.clone(), folder.to_owned());
        let copied = tokio::task::spawn_blocking(move || shared.environment.copy(&folder));
        copied.await.unwrap_or_else(|error| Err(Error::internal(error.to_string())))
    }

    /// Reads the pages of LMDB's trees and returns the first missing or damaged one, if there is one. LMDB may end the process
    /// when it reads such a page, so this comes before a check that reads all rows.
    ///
    /// # Errors
    /// `Unavailable` when the file can't be read.
    pub fn damaged_page(&self) -> Result<Option<String>, Error> {
        self.0.shared.environment.damaged_page()
    }

    /// Reads every row of every table of LMDB, and returns what is wrong with their order or number. It takes as long as reading
    /// the file, and runs on its caller's thread.
    ///
    /// # Errors
    /// `Corrupt` when a page can't be read at all; `Unavailable`.
    pub fn check(&self) -> Result<Vec<String>, Error> {
        self.0.shared.environment.check()
    }

    /// The contents and the size of the store.
    ///
    /// # Errors
    /// `Unavailable` when LMDB can't be read.
    pub fn stats(&self) -> Result<Stats, Error> {
        let mut stats = self.0.shared.environment.stats()?;
        stats.waiting_rows = self.0.shared.waiting_rows() as u64;
        stats.log_bytes = self.0.shared.log_bytes();
        Ok(stats)
    }

    /// Whether the store accepts writes. Reads work in any case.
    ///
    /// # Errors
    /// The error with which writes fail, or will fail soon: `Full` from when the disk had no space for a write until it has some
    /// again, which is checked once a second.
    pub fn health(&self) -> Result<(), Error> {
        self.0.shared.health()?;
        self.0.shared.has_space()
    }

    /// Accepts no more writes, finishes those that were accepted, and leaves everything in LMDB and an empty commit log. On a
    /// full disk rows may stay in the commit log, until the store is opened again with some space. Closing twice is no error.
    ///
    /// # Errors
    /// Those of [`Store::settle`]; nothing that was acknowledged is lost.
    pub async fn close(&self) -> Result<(), Error> {
        let mut closing = self.0.closing.lock().await;
        if *closing {
            return Ok(());
        }
        let (sender, answer) = oneshot::channel();
        self.0.ask(Request::Close(sender)).await?;
        answer.await.unwrap_or_else(|_| Err(gone()))?;
        *closing = true;
        self.0.requests.lock().take();
        Ok(())
    }
}

/// A write for the writer thread, and the receiver of its answer.
fn job<T: Send + 'static>(
    work: impl FnOnce(&mut Batch<'_>) -> Result<T, Error> + Send + 'static,
) -> (Write, oneshot::Receiver<Result<T, Error>>) {
    let (sender, receiver) = oneshot::channel();
    let write = move |batch: &mut Batch<'_>| {
        let done = work(batch);
        let keep = if done.is_ok() { Keep::Rows } else { Keep::Nothing };
        let [before, after] = [&mut batch.hooks, &mut batch.hooks_after_answers].map(std::mem::take);
        let answer: Answer = Box::new(move |written: Result<(), Error>| {
            let is_durable = done.is_ok() && written.is_ok();
            let called = |hooks: Hooks| if is_durable { hooks } else { Hooks::new() };
            called(before).into_iter().for_each(|hook| hook());
            let after = called(after);
            let result = match written {
                Ok(()) => done,
                Err(error) => done.and(Err(error)),
            };
            let _ = sender.send(result); // the caller may be gone
            after
        });
        (keep, answer)
    };
    (Box::new(write), receiver)
}

/// Runs `work` when all of one gate or more are open, on the thread that opens the last one; drops it when one fails.
fn when_all_open(gates: &[Gate], work: impl FnOnce() + Send + 'static) {
    let (closed, work) = (AtomicUsize::new(gates.len()), Mutex::new(Some(work)));
    let waiting = Arc::new((closed, work));
    for gate in gates {
        let waiting = waiting.clone();
        gate.on_end(move |is_open| {
            let (closed, work) = &*waiting;
            if is_open && closed.fetch_sub(1, Ordering::AcqRel) > 1 {
                return;
            }
            let work = work.lock().take();
            if let Some(work) = work.filter(|_| is_open) {
                work();
            }
        });
    }
}

/// The state after the commit log was read on opening.
pub(crate) struct BroughtIn {
    /// The progress of LMDB, once it also has the rows of `put_off`.
    pub(crate) progress: Progress,
    /// LMDB's last transaction.
    pub(crate) base: usize,
    /// The rows of the commit log that can't be written into LMDB because the disk is full, and the error.
    pub(crate) put_off: Option<(Layer, Error)>,
}

/// Writes into LMDB what only the commit log has, with the next epoch. On a full disk that is put off.
fn bring_in(environment: &Environment, disk: &dyn Disk) -> Result<BroughtIn, Error> {
    let before = environment.progress()?;
    let recovered = log::recover(disk, before)?;
    let layer = Layer::of_commit_log();
    for frame in recovered.frames() {
        let mut rows = frame.rows;
        while let Some(row) = frame::take_row(&mut rows) {
            if !row.is_some_and(|row| environment.has_table(row.table)) {
                let batch = frame.head.sequence;
                let what = format!(
                    "batch {batch} of the commit log has a row that this version does not understand: open the store with \
                     the version that wrote it"
                );
                return Err(Error::corrupt(what));
            }
        }
        layer.add(frame.head.sequence, frame.rows);
    }
    let progress = Progress { applied: recovered.last, epoch: before.epoch.wrapping_add(1), ..before };
    let announced = disk.before("apply").map_err(|error| Error::io("write", "the LMDB store", error));
    match announced.and_then(|()| environment.apply(&layer, progress, RedoRows::Keep)) {
        Ok(base) => Ok(BroughtIn { progress, base, put_off: None }),
        Err(error) if error.kind() == ErrorKind::Full => {
            warn!(%error, "the store is opened on a full disk: reads work, writes are refused until there is space");
            let base = environment.read()?.id();
            Ok(BroughtIn { progress, base, put_off: Some((layer, error)) })
        }
        Err(error) => Err(error),
    }
}

fn gone() -> Error {
    Error::unavailable("the writer thread of the store has ended")
}

impl Inner {
    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let handle = thread::Builder::new().name(name.to_owned()).spawn(run);
        let handle = handle.map_err(|error| Error::io("start", "a thread of the store", error))?;
        self.threads.lock().push(handle);
        Ok(())
    }

    fn requests(&self) -> Result<mpsc::Sender<Request>, Error> {
        let requests = self.requests.lock().clone();
        requests.ok_or_else(|| self.refusal())
    }

    async fn ask(&self, request: Request) -> Result<(), Error> {
        let requests = self.requests()?;
        requests.send(request).await.map_err(|_| self.refusal())
    }

    /// Why requests are refused.
    fn refusal(&self) -> Error {
        let refusal = self.shared.health().err();
        refusal.unwrap_or_else(|| Error::unavailable("the store is being closed"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.requests.lock().take();
        let here = thread::current().id();
        let mut threads = self.threads.lock();
        // A write or its answer held the last handle. The threads end when the writer has ended.
        if threads.iter().any(|thread| thread.thread().id() == here) {
            return;
        }
        for thread in threads.drain(..) {
            let _ = thread.join(); // a panic was logged
        }
    }
}

/// The work of a write. It reads everything that was written before it, but not its own rows.
pub struct Batch<'s> {
    view: &'s View<'s>,
    rows: &'s mut Rows,
    hooks: Hooks,
    hooks_after_answers: Hooks,
}

/// The rows of a batch, encoded.
#[derive(Default)]
pub(crate) struct Rows {
    /// The frames that are not written yet, followed by the one of this batch.
    pub(crate) frames: Vec<u8>,
    /// Rows of that frame.
    pub(crate) count: usize,
    /// The error of the first invalid one.
    pub(crate) wrong: Option<Error>,
}

impl Rows {
    fn put(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            let what = format!("a key of {} bytes for the table {}", key.len(), table.name());
            self.wrong.get_or_insert_with(|| Error::invalid(what));
            return;
        }
        frame::put_row(&mut self.frames, table.number, key, value);
        self.count += 1;
    }
}

impl<'s> Batch<'s> {
    pub(crate) fn new(view: &'s View<'s>, rows: &'s mut Rows) -> Self {
        Self { view, rows, hooks: Hooks::new(), hooks_after_answers: Hooks::new() }
    }

    /// The rows that were written before this batch.
    pub fn view(&self) -> &View<'s> {
        self.view
    }

    /// Puts a row, replacing one with the same key if there is one. The last of several rows with one key in a batch wins.
    ///
    /// A batch with a key that is empty or longer than [`KEY_BYTES_MAX`] fails with `Invalid`.
    pub fn put(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.rows.put(table, key, Some(value));
    }

    /// Removes a row, if it exists.
    pub fn delete(&mut self, table: Table, key: &[u8]) {
        self.rows.put(table, key, None);
    }

    /// Calls `hook` when the batch is durable and visible, before the write is answered; not at all when it fails. The hooks of
    /// all batches are called one after the other, in the order of the batches, on a thread of the store: they must be short and
    /// must not use the store.
    pub fn on_durable(&mut self, hook: impl FnOnce() + Send + 'static) {
        self.hooks.push(Box::new(hook));
    }

    /// The same, but after the writes that became durable together were answered: for hooks that would delay their callers.
    pub fn on_answered(&mut self, hook: impl FnOnce() + Send + 'static) {
        self.hooks_after_answers.push(Box::new(hook));
    }
}
