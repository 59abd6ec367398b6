//! The spool: stores messages for an engine that is unavailable, and hands them over when it is back.
//!
//! - [`Spooled`] wraps an engine: appends go to the engine, or to the spool while the engine is known to be unavailable.
//! - [`circuit`]: whether it is known to be unavailable.
//! - [`store`], [`reader`], [`folder`]: the waiting messages, on disk.
//! - [`drain`]: the task that hands them over, oldest first.
//!
//! Everything may be done twice: an append is idempotent, so what a crash has interrupted is repeated from the beginning of its
//! generation.

mod circuit;
mod drain;
mod folder;
mod reader;
mod store;

use std::{
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use restante_core::{ErrorKind, Timestamp};
use tokio::sync::Semaphore;

pub(crate) use self::{circuit::Circuit, drain::Draining, folder::has_content, store::Store};
use crate::{
    Appended, Archive, Config, Error, Health, Message, Opened, Page, Pruned, Query, Report, Retention,
    SpoolConfig, Stats, Upkeep, backup, message::check_batch, waiting::closed,
};

/// Wraps an engine with a spool.
pub(crate) async fn open(engine: Opened, spool: &SpoolConfig, config: &Config) -> Result<Opened, Error> {
    let metrics = config.metrics.spool.clone();
    let store = Store::open(&spool.folder, spool.bytes_max, Duration::ZERO, metrics.clone()).await?;
    let store = Arc::new(store);
    let circuit = Arc::new(Circuit::new(config.url.engine(), config.clock.clone(), metrics.up));
    if let Some(problem) = engine.upkeep.health().problem {
        circuit.open(&problem); // it was opened without an answer
    }
    let timeout = Duration::from_millis(spool.timeout_ms.get());
    let draining = Draining::start(store.clone(), engine.archive.clone(), circuit.clone(), timeout);
    let is_closed = AtomicBool::new(false);
    let turns = Arc::new(Semaphore::new(APPENDS_MAX));
    let spooled = Arc::new_cyclic(|me| Spooled {
        engine,
        store,
        circuit,
        timeout,
        draining,
        is_closed,
        turns,
        me: me.clone(),
    });
    Ok(Opened { archive: spooled.clone(), upkeep: spooled })
}

/// An engine with a spool.
struct Spooled {
    engine: Opened,
    store: Arc<Store>,
    circuit: Arc<Circuit>,
    timeout: Duration,
    draining: Draining,
    is_closed: AtomicBool,
    /// Permits for appends in progress.
    turns: Arc<Semaphore>,
    me: Weak<Self>,
}

/// The most concurrent appends; further ones wait. Each runs to completion, even if its caller is gone.
pub(crate) const APPENDS_MAX: usize = 1_024;

/// Runs work in a separate task, so that it completes even if its caller is gone: otherwise a time-out would never be noticed,
/// and what is partly stored never counted.
pub(crate) async fn to_its_end<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let turn = turns.clone().acquire_owned().await.map_err(|_| closed())?;
    let task = tokio::spawn(async move {
        let done = work.await;
        drop(turn);
        done
    });
    task.await.unwrap_or_else(|error| Err(Error::internal("an append ended early").with_source(error)))
}

impl Spooled {
    /// Stores messages in the engine, or in the spool when the engine is unavailable.
    async fn take(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        if !self.circuit.is_away()
            && let Some(answer) = self.ask_engine(messages.clone()).await
        {
            return answer;
        }
        self.put(messages).await
    }

    /// The engine's own answer; `None` when it is unavailable.
    async fn ask_engine(&self, messages: Vec<Message>) -> Option<Result<Vec<Appended>, Error>> {
        let answer = tokio::select! {
            biased;
            answer = drain::within(self.timeout, self.engine.archive.append(messages)) => answer,
            // Another append has waited long enough.
            () = self.circuit.opened() => return None,
        };
        match answer {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.circuit.open(&error.to_string());
                None
            }
            answer => Some(answer),
        }
    }

    async fn put(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        let answers = vec![Appended::Spooled; messages.len()];
        match self.store.put(messages).await {
            Ok(()) => Ok(answers),
            Err(error) => {
                let outage = self.circuit.outage();
                let why = outage.map_or_else(|| "the engine is unavailable".to_owned(), |outage| outage.what);
                Err(Error::new(error.kind(), format!("{why}, and {error}")).with_source(error))
            }
        }
    }
}

#[async_trait]
impl Archive for Spooled {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        check_batch(&messages)?;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let Some(me) = self.me.upgrade() else { return Err(closed()) };
        to_its_end(&self.turns, async move { me.take(messages).await }).await
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        self.engine.archive.query(query).await
    }
}

#[async_trait]
impl Upkeep for Spooled {
    async fn stats(&self) -> Result<Stats, Error> {
        self.engine.upkeep.stats().await
    }

    fn health(&self) -> Health {
        let mut health = self.engine.upkeep.health();
        if let Some(outage) = self.circuit.outage() {
            health.problem = Some(outage.what);
            health.since = Some(outage.since);
        }
        if self.store.is_full()
            && let Some(problem) = &mut health.problem
        {
            problem.push_str("; the spool is full");
        }
        let waiting = self.store.usage();
        health.spooled_messages += waiting.messages;
        health.spooled_bytes += waiting.bytes;
        health
    }

    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
        self.engine.upkeep.prune(policy, now).await
    }

    fn not_pruned(&self, policy: &Retention, now: Timestamp) -> Option<String> {
        self.engine.upkeep.not_pruned(policy, now)
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.engine.upkeep.check(progress).await
    }

    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.engine.upkeep.rebuild(progress).await
    }

    /// The spool is copied first: what is drained from it meanwhile is in the engine before the engine's copy is made.
    async fn backup(&self, folder: &Path) -> Result<(), Error> {
        backup::require_empty(folder)?;
        self.store.backup(&folder.join(backup::SPOOL)).await?;
        backup::sync(folder)?;
        self.engine.upkeep.backup(folder).await
    }

    /// The spool is closed first: it is on this machine, and what was acknowledged is in it even if the engine fails.
    async fn close(&self) -> Result<(), Error> {
        self.is_closed.store(true, Ordering::Release);
        self.draining.stop();
        let stored = self.store.close().await;
        let closed = self.engine.upkeep.close().await;
        stored.and(closed)
    }
}
