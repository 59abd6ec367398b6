//! Tandem: two archives at once. The first answers all requests, the second follows.
//!
//! A message goes to the first and then, in the same call, to a spool for the second, from which a task stores it in the second.
//! So the second may be slow, or unavailable, and the first never waits for more than a local write.
//!
//! What is acknowledged is in the first and in the second or its spool. A crash between the two writes leaves a message that was
//! not acknowledged only in the first: when its publisher tries again, the first reports a duplicate, and it goes to the spool
//! all the same. That is why duplicates are spooled too.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use restante_core::{Clock, ErrorKind, Timestamp};
use tokio::sync::Semaphore;
use tracing::{debug, error, warn};

use crate::{
    Appended, Archive, Config, Error, Following, Health, Message, Opened, Page, Pruned, Query, Report,
    Retention, Stats, TandemConfig, Upkeep, backup,
    metrics::TandemMetrics,
    spool::{APPENDS_MAX, Circuit, Draining, Store, to_its_end},
    waiting::closed,
};

/// How long messages are collected before they are stored in the second. It bounds how many generations the spool creates, and is
/// the minimum lag of the second.
const GATHERING: Duration = Duration::from_secs(1);
/// A file in the spool of the second that shows that messages are missing there.
const GAP_NAME: &str = "GAP";

/// Makes `second` follow `first`.
pub(crate) async fn open(
    first: Opened,
    second: Opened,
    tandem: &TandemConfig,
    config: &Config,
) -> Result<Opened, Error> {
    let metrics = config.metrics.tandem.clone();
    let spool = &tandem.spool;
    let store = Store::open(&spool.folder, spool.bytes_max, GATHERING, metrics.spool.clone()).await?;
    let store = Arc::new(store);
    let circuit = Circuit::new(tandem.url.engine(), config.clock.clone(), metrics.spool.up.clone());
    let circuit = Arc::new(circuit);
    let timeout = Duration::from_millis(spool.timeout_ms.get());
    let draining = Draining::start(store.clone(), second.archive.clone(), circuit.clone(), timeout);
    let gap = spool.folder.join(GAP_NAME);
    let begun = config.clock.now();
    let earlier = std::fs::read_to_string(&gap).ok().map(|text| {
        let text = text.trim();
        format!(
            "{text}; followed again since {begun}: run `restante archive copy`, then remove {}",
            gap.display()
        )
    });
    if let Some(earlier) = &earlier {
        warn!(earlier, "the second archive of the tandem lacks messages");
    }
    let state = State { problem: earlier, since: Some(begun), is_stopped: false };
    let following = Follower {
        store,
        circuit,
        draining,
        gap,
        clock: config.clock.clone(),
        metrics,
        state: Mutex::new(state),
        is_closed: AtomicBool::new(false),
    };
    let follower = Arc::new(following);
    let turns = Arc::new(Semaphore::new(APPENDS_MAX));
    let tandem = Arc::new(Tandem { first, second, follower, turns });
    Ok(Opened { archive: tandem.clone(), upkeep: tandem })
}

/// Two archives; the second follows the first.
struct Tandem {
    first: Opened,
    second: Opened,
    follower: Arc<Follower>,
    /// Permits for appends in progress.
    turns: Arc<Semaphore>,
}

/// Stores messages for the second.
struct Follower {
    store: Arc<Store>,
    circuit: Arc<Circuit>,
    draining: Draining,
    gap: PathBuf,
    clock: Arc<dyn Clock>,
    metrics: TandemMetrics,
    state: Mutex<State>,
    is_closed: AtomicBool,
}

struct State {
    /// What the second lacks, and why.
    problem: Option<String>,
    since: Option<Timestamp>,
    is_stopped: bool,
}

impl Follower {
    /// Puts a batch in the spool of the second. Fails only when the archive is being closed: then the batch must not be
    /// acknowledged. Any other error stops following, and the first continues alone.
    async fn follow(&self, messages: Vec<Message>) -> Result<(), Error> {
        if self.state.lock().is_stopped {
            return Ok(());
        }
        let Err(error) = self.store.put(messages).await else { return Ok(()) };
        if self.is_closed.load(Ordering::Acquire) {
            return Err(error);
        }
        self.stop(&error).await;
        Ok(())
    }

    /// Stops following until the server is started again. If a second that lacks messages continued, it would look complete.
    async fn stop(&self, why: &Error) {
        let now = self.clock.now();
        let problem = format!("tandem stopped at {now}: {why}");
        {
            let mut state = self.state.lock();
            if state.is_stopped {
                return;
            }
            let advice = "run `restante archive copy` and start the server again";
            state.problem = Some(format!("{problem}: {advice}"));
            state.since = Some(now);
            state.is_stopped = true;
        }
        self.metrics.stopped.set(1);
        error!(
            problem,
            "the second archive follows no more: run restante archive copy and start the server again"
        );
        let gap = self.gap.clone();
        let written = tokio::task::spawn_blocking(move || write_gap(&gap, &problem)).await;
        if let Ok(Err(error)) = written {
            warn!(%error, "can't note that the tandem has stopped; after a restart nobody will know");
        }
    }

    fn following(&self) -> Following {
        let state = self.state.lock();
        let outage = self.circuit.outage();
        let (mut problem, mut since) =
            (state.problem.clone(), state.since.filter(|_| state.problem.is_some()));
        if problem.is_none()
            && let Some(outage) = outage
        {
            (problem, since) = (Some(outage.what), Some(outage.since));
        }
        let waiting = self.store.usage();
        Following {
            engine: self.circuit.engine(),
            problem,
            since,
            is_stopped: state.is_stopped,
            messages: waiting.messages,
            bytes: waiting.bytes,
            oldest: waiting.oldest,
        }
    }
}

/// Records on disk that messages are missing, for the next start.
fn write_gap(gap: &Path, problem: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::create(gap)?;
    writeln!(file, "{problem}")?;
    file.sync_all()
}

#[async_trait]
impl Archive for Tandem {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        let (first, follower) = (self.first.archive.clone(), self.follower.clone());
        let both = async move {
            let answers = first.append(messages.clone()).await?;
            follower.follow(messages).await?;
            Ok(answers)
        };
        to_its_end(&self.turns, both).await
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        self.first.archive.query(query).await
    }
}

#[async_trait]
impl Upkeep for Tandem {
    async fn stats(&self) -> Result<Stats, Error> {
        self.first.upkeep.stats().await
    }

    fn health(&self) -> Health {
        Health { following: Some(self.follower.following()), ..self.first.upkeep.health() }
    }

    /// Both have the same policy. The second is pruned as far as possible; when it is unavailable it is pruned the next time.
    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
        let pruned = self.first.upkeep.prune(policy, now).await;
        match self.second.upkeep.prune(policy, now).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Unavailable => debug!(%error, "can't prune the second"),
            Err(error) => warn!(%error, "can't prune the second archive of the tandem"),
        }
        pruned
    }

    fn not_pruned(&self, policy: &Retention, now: Timestamp) -> Option<String> {
        self.first.upkeep.not_pruned(policy, now)
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.first.upkeep.check(progress).await
    }

    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.first.upkeep.rebuild(progress).await
    }

    /// The first is copied first, the second last, so that each message of the first's copy is in one of the others: it is
    /// spooled before it is acknowledged, and drained into the second before it leaves the spool. A second that can't be copied
    /// still exists when the first is restored.
    async fn backup(&self, folder: &Path) -> Result<(), Error> {
        let first = self.first.upkeep.backup(folder).await;
        if let Err(error) = &first
            && error.kind() != ErrorKind::Invalid
        {
            return first;
        }
        // Appends that are already in the first's copy may not have reached the spool yet.
        let all = u32::try_from(APPENDS_MAX).unwrap_or(u32::MAX);
        drop(self.turns.acquire_many(all).await.map_err(|_| closed())?);
        self.follower.store.backup(&folder.join(backup::SECOND_SPOOL)).await?;
        let second = folder.join(backup::SECOND);
        backup::create(&second)?;
        match self.second.upkeep.backup(&second).await {
            Err(error) if error.kind() == ErrorKind::Invalid => backup::remove_empty(&second)?,
            copied => copied?,
        }
        backup::sync(folder)?;
        first
    }

    /// The first is closed before the spool, so that everything it still accepts is spooled too.
    async fn close(&self) -> Result<(), Error> {
        let first = self.first.upkeep.close().await;
        self.follower.is_closed.store(true, Ordering::Release);
        self.follower.draining.stop();
        let store = self.follower.store.close().await;
        if let Err(error) = self.second.upkeep.close().await {
            warn!(%error, "can't close the second archive of the tandem in order");
        }
        first.and(store)
    }
}
