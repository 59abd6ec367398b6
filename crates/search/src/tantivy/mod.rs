//! The engine `tantivy`: one index for all accounts, in a folder.
//!
//! A document has its account as a term, so a query is the intersection of that term with the words. Each account also has a
//! document with its revision, so that it changes in the same commit as the documents; the checkpoint is the payload of a commit.

mod directory;
mod files;
mod guarded;
mod newest;
mod query;
mod removal;
mod schema;
mod upkeep;
mod write;

use std::{
    fs::File,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::available_parallelism,
};

use ::tantivy::TantivyError;
use async_trait::async_trait;
use parking_lot::Mutex;
use restante_disk::create_folder;
use tokio::{
    sync::{Notify, Semaphore, watch},
    task::{AbortHandle, JoinError, spawn_blocking},
};
use tracing::error;

use crate::{
    AccountId, Config, Error, Metrics, Opened, Page, Query, Search, TantivyConfig,
    tantivy::{
        files::OpenIndex,
        write::{Waiting, Writer, commit_when_due},
    },
    validate,
};

/// The state that the interfaces share.
struct Engine {
    folder: PathBuf,
    config: TantivyConfig,
    metrics: Metrics,
    /// The index that queries read; `None` once it is closed.
    open: Mutex<Option<OpenIndex>>,
    /// The writer, and what was written and is not committed.
    writer: Arc<tokio::sync::Mutex<Writer>>,
    /// The uncommitted documents that searches wait for.
    waiting: Waiting,
    /// The series that may write.
    series: watch::Sender<u64>,
    /// The error of the last write that failed, until a commit succeeds or a new index is made.
    failure: Mutex<Option<Error>>,
    /// Whether the index was found damaged: it is rebuilt when a series begins.
    is_damaged: AtomicBool,
    is_closed: AtomicBool,
    /// How many queries run at once.
    permits: Semaphore,
    /// Notified when something is written that is to be committed in time.
    written: Arc<Notify>,
    /// Held until the engine is closed.
    lock: Mutex<Option<File>>,
}

impl Drop for Engine {
    /// Drops the writer next, then the lock.
    fn drop(&mut self) {
        if let Some(open) = self.open.get_mut() {
            open.directory.close();
        }
    }
}

/// The engine, and the task that commits in time; the task ends when this is dropped.
struct Handle {
    engine: Arc<Engine>,
    committer: AbortHandle,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.committer.abort();
    }
}

/// Opens the index in a folder.
pub(crate) async fn open(folder: PathBuf, config: Config) -> Result<Opened, Error> {
    let handle = Arc::new(open_handle(folder, config).await?);
    Ok(Opened { search: handle.clone(), index: handle.clone(), upkeep: handle })
}

async fn open_handle(folder: PathBuf, config: Config) -> Result<Handle, Error> {
    if let Some((setting, advice)) = config.tantivy.problem() {
        return Err(Error::invalid(format!(
            "the setting {setting} of the search index can't be used: {advice}"
        )));
    }
    let engine = run_blocking(move || open_blocking(folder, config)).await.map_err(join_error)??;
    let engine = Arc::new(engine);
    let task = commit_when_due(Arc::downgrade(&engine), engine.written.clone());
    Ok(Handle { committer: tokio::spawn(task).abort_handle(), engine })
}

fn open_blocking(folder: PathBuf, config: Config) -> Result<Engine, Error> {
    create_folder(&folder)?;
    let what = format!("the search index in {}", folder.display());
    let lock = restante_disk::hold(&folder.join("lock"), &what, "stop it first")?;
    let verify = config.tantivy.verify;
    let (open, is_new) = match config.must_exist {
        true => (files::open_unchanged(&folder, verify)?, false),
        false => files::open_or_create(&folder, verify)?,
    };
    if is_new {
        config.metrics.cleared.inc();
    }
    let queries_at_once = available_parallelism().map_or(2, |cores| 2 * cores.get());
    Ok(Engine {
        folder,
        config: config.tantivy,
        metrics: config.metrics,
        open: Mutex::new(Some(open)),
        writer: Arc::default(),
        waiting: Waiting::default(),
        series: watch::Sender::new(0),
        failure: Mutex::default(),
        is_damaged: AtomicBool::new(false),
        is_closed: AtomicBool::new(false),
        permits: Semaphore::new(queries_at_once),
        written: Arc::default(),
        lock: Mutex::new(Some(lock)),
    })
}

impl Engine {
    /// The index that queries and the writer use now.
    fn open_index(&self) -> Result<OpenIndex, Error> {
        self.check_open()?;
        let open = self.open.lock().clone();
        open.ok_or_else(|| Error::unavailable("the search index is closed"))
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::unavailable("the search index is closed"));
        }
        if self.is_damaged.load(Ordering::Acquire) {
            return Err(Error::unavailable(
                "the search index is damaged and will be made again: try again later",
            ));
        }
        Ok(())
    }

    fn end_series(&self) {
        self.waiting.clear(); // what is not committed is dropped, or the close commits it
        self.series.send_modify(|series| *series += 1);
    }

    /// Notes that reading the index failed in a way that only damage explains: the follower begins anew, which replaces it.
    fn found_damaged(&self, why: &str) -> Error {
        if !self.is_damaged.swap(true, Ordering::AcqRel) {
            error!(folder = %self.folder.display(), why, "the search index is damaged and will be made again");
            self.end_series();
        }
        Error::unavailable("the search index is damaged and will be made again: try again later")
    }
}

#[async_trait]
impl Search for Handle {
    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        validate::query(query)?;
        let open = self.engine.open_index()?;
        if self.engine.waiting.note_search(account) {
            self.engine.written.notify_one();
        }
        let closed = |_| Error::unavailable("the search index is closed");
        let permit = self.engine.permits.acquire().await.map_err(closed)?;
        let query = query.clone();
        let run = move || query::page(&open, account, &query);
        let page = run_blocking(run).await;
        drop(permit);
        match page {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(TantivyError::IoError(error))) if error.kind() != std::io::ErrorKind::InvalidData => Err(
                Error::io("read", "the search index", std::io::Error::new(error.kind(), error.to_string())),
            ),
            Ok(Err(error)) => Err(self.engine.found_damaged(&error.to_string())),
            Err(error) if error.is_panic() => Err(self.engine.found_damaged("a query panicked")),
            Err(error) => Err(join_error(error)),
        }
    }
}

/// Runs a task that reads files, or would block a worker of the runtime for too long.
async fn run_blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    spawn_blocking(run).await
}

fn join_error(error: JoinError) -> Error {
    match error.is_panic() {
        true => Error::internal("the search engine panicked").with_source(error),
        false => Error::unavailable("the runtime is stopping"),
    }
}

#[cfg(test)]
mod tests;
