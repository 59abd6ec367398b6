//! The engine `opensearch`: one index of an OpenSearch cluster for all accounts.
//!
//! An account's documents are in one shard, by routing, with a document that contains its revision. A query returns both from one
//! snapshot of that shard. Texts are sent as the words that [`crate::Words`] makes of them, so that this engine finds what the others
//! find.
//!
//! OpenSearch can't commit several documents together. Writes are kept in memory and sent in an order in which each step is consistent
//! by itself: documents, then revisions, then the checkpoint. `write.rs` describes the steps.

mod build;
mod bulk;
mod circuit;
mod client;
mod place;
mod query;
mod schema;
mod upkeep;
mod write;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use restante_core::ErrorKind;
use tokio::{
    sync::{Notify, Semaphore, watch},
    task::AbortHandle,
};
use tracing::{error, warn};

use self::{
    circuit::Circuit,
    client::Client,
    write::{Writer, commit_when_due},
};
use crate::{AccountId, Config, Error, Metrics, Opened, OpensearchConfig, OpensearchUrl, Revision};

/// A request that writes, or reads a whole index, may take this many times as long as a query.
const WRITE_TIMES: u32 = 6;

/// The state that the interfaces share.
struct Engine {
    /// For writes and upkeep. The follower has threads of its own with a low priority, which serve the connections that it opens.
    client: Client,
    /// For queries.
    reader: Client,
    config: OpensearchConfig,
    metrics: Metrics,
    circuit: Circuit,
    /// The writer, and what was written and is not committed.
    writer: Arc<tokio::sync::Mutex<Writer>>,
    /// Revisions that are not committed, because no document has changed.
    ahead: Mutex<Ahead>,
    /// The series that may write.
    series: watch::Sender<u64>,
    /// The error of the last write, if it failed.
    failure: Mutex<Option<Error>>,
    /// Whether the index was found missing: it is created again when a series begins.
    is_missing: AtomicBool,
    /// Whether the index is to be replaced by an empty one when a series begins.
    is_to_be_cleared: AtomicBool,
    is_closed: AtomicBool,
    /// How many queries run at once.
    permits: Semaphore,
    /// Notified when something is written that is to be committed in time.
    written: Arc<Notify>,
}

/// For each account, the revision in the last commit, and the one up to which no document has changed since: an answer that is
/// complete up to the former is complete up to the latter.
type Ahead = BTreeMap<AccountId, (Revision, Revision)>;

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

/// Why a write failed.
#[derive(Debug)]
enum Failure {
    /// The index does not exist.
    Missing,
    /// Another process writes: its series began later.
    Fenced,
    /// The index is not complete. Another one may have replaced it.
    Replaced(Error),
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Failure {
    fn into_error(self) -> Error {
        match self {
            Self::Missing => {
                Error::unavailable("the search index is gone and will be made again: try again later")
            }
            Self::Fenced => Error::conflict("another process writes to the search index"),
            Self::Replaced(error) | Self::Failed(error) => error,
        }
    }
}

/// Opens the index in an OpenSearch, and creates it if it does not exist. If OpenSearch can't be reached, the first series does that.
pub(crate) async fn open(url: &OpensearchUrl, config: Config) -> Result<Opened, Error> {
    if let Some(wrong) = OpensearchConfig::prefix_error(&config.opensearch.prefix) {
        return Err(Error::invalid(wrong));
    }
    let engine = Arc::new(Engine {
        client: Client::new(url, &config.opensearch)?,
        reader: Client::new(url, &config.opensearch)?,
        permits: Semaphore::new(config.opensearch.queries_max.get().min(Semaphore::MAX_PERMITS)),
        config: config.opensearch.clone(),
        metrics: config.metrics,
        circuit: Circuit::default(),
        writer: Arc::default(),
        ahead: Mutex::default(),
        series: watch::Sender::new(0),
        failure: Mutex::default(),
        is_missing: AtomicBool::new(false),
        is_to_be_cleared: AtomicBool::new(false),
        is_closed: AtomicBool::new(false),
        written: Arc::default(),
    });
    engine.look_up(config.must_exist).await?;
    let task = commit_when_due(Arc::downgrade(&engine), engine.written.clone());
    let handle = Arc::new(Handle { committer: tokio::spawn(task).abort_handle(), engine });
    Ok(Opened { search: handle.clone(), index: handle.clone(), upkeep: handle })
}

impl Engine {
    /// Sends the first request. A wrong password is reported now: waiting does not help.
    async fn look_up(&self, must_exist: bool) -> Result<(), Error> {
        let answer =
            self.client.ask(hyper::Method::GET, "/", client::Body::Nothing, self.query_limit()).await;
        let found = match answer {
            Ok(answer) if answer.is_refused() => {
                let error = answer.error("be asked");
                return Err(Error::invalid(error.to_string()));
            }
            Ok(_) if must_exist => match self.find().await {
                Ok(found) if found.live.is_none() => {
                    let prefix = &self.config.prefix;
                    return Err(Error::not_found(format!(
                        "there is no search index '{prefix}' in OpenSearch"
                    )));
                }
                found => found,
            },
            Ok(_) => self.find_or_create().await,
            Err(error) => Err(error),
        };
        match found {
            Ok(_) => Ok(()),
            Err(error) if error.is_transient() && !must_exist => {
                warn!(%error, "the search index can't be opened now: searches fail until it can");
                *self.failure.lock() = Some(error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn query_limit(&self) -> Duration {
        Duration::from_millis(self.config.timeout_ms.get())
    }

    fn write_limit(&self) -> Duration {
        self.query_limit() * WRITE_TIMES
    }

    fn check_open(&self) -> Result<(), Error> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Error::unavailable("the search index is closed")),
            false => Ok(()),
        }
    }

    fn end_series(&self) {
        self.series.send_modify(|series| *series += 1);
    }

    /// Notes that the index does not exist: the follower begins anew, which creates one.
    fn found_missing(&self) -> Error {
        if !self.is_missing.swap(true, Ordering::AcqRel) {
            error!(prefix = self.config.prefix, "the search index is gone and will be made again");
            self.end_series();
        }
        Failure::Missing.into_error()
    }

    /// Notes the outcome of a write. After a failure it is unknown what is written: the series ends.
    fn settle<T>(&self, writer: &mut Writer, result: Result<T, Failure>) -> Result<T, Error> {
        self.metrics.uncommitted.set(writer.uncommitted() as u64);
        let failure = match result {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let error = failure.into_error();
        if error.kind() == ErrorKind::Conflict {
            warn!(
                prefix = self.config.prefix,
                "another process writes to this search index: only one server should, or choose another prefix"
            );
        }
        *self.failure.lock() = Some(error.duplicate());
        writer.fail();
        self.ahead.lock().clear();
        self.metrics.uncommitted.set(0);
        self.end_series();
        Err(error)
    }
}
