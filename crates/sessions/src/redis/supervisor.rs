//! The supervisor: one task that opens links, renews the lease, catches up, and sweeps. All retries and pauses are here.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout_at},
};
use tracing::{debug, info};

use super::{
    link::{Link, LinkError, channels},
    table::{LinkListener, Table},
};
use crate::{Error, SessionId};

/// The first pause before the next attempt to connect. It doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause, which bounds how long a reachable Redis is not used.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Attempts to register everything before the next heartbeat; the rest follows after it.
const CATCH_UPS_MAX: usize = 3;
/// Pages of sessions that others have ended, before the next heartbeat: as many as Redis has at most.
const MAIL_PAGES_MAX: usize = 100;
/// Delay of a sweep after the lease of a dead node has expired: Redis expires it to the millisecond.
const SWEEP_AFTER: Duration = Duration::from_millis(5);
/// Requests for a heartbeat that may wait.
pub(super) const BEATS_MAX: usize = 8;
/// Sessions that may wait for a repair; when there are more, everything is registered again.
pub(super) const REPAIRS_MAX: usize = 1_024;

/// A request for a heartbeat.
pub(super) type BeatRequest = oneshot::Sender<Result<(), Error>>;

pub(super) struct Supervisor {
    pub(super) table: Arc<Table>,
    pub(super) beats: mpsc::Receiver<BeatRequest>,
    pub(super) repairs: mpsc::Receiver<SessionId>,
    /// The number of attempts to connect.
    pub(super) generation: u64,
    pub(super) pause: Duration,
}

impl Supervisor {
    pub(super) fn new(
        table: Arc<Table>,
        beats: mpsc::Receiver<BeatRequest>,
        repairs: mpsc::Receiver<SessionId>,
    ) -> Self {
        Self { table, beats, repairs, generation: 0, pause: PAUSE_MIN }
    }

    /// Runs until the table is closed.
    pub(super) async fn run(mut self) {
        let mut waiting: Vec<BeatRequest> = self.beats.recv().await.into_iter().collect();
        loop {
            let had_link = self.table.link().is_some();
            let beat = self.tick().await;
            if had_link && beat.is_ok() {
                self.pause = PAUSE_MIN; // only a link that outlived its first heartbeat counts
            }
            let next = if beat.is_ok() { self.next_tick() } else { self.next_attempt() };
            let is_up = beat.is_ok();
            for request in waiting.drain(..) {
                // The requester may be gone.
                let _ = request.send(beat.clone().map_err(Error::from));
            }
            let Some(request) = self.wait(next, is_up).await else { return };
            waiting.extend(request);
        }
    }

    /// One heartbeat and the work that follows from it.
    async fn tick(&mut self) -> Result<(), LinkError> {
        let (link, is_new) = match self.table.link() {
            Some(link) => (link, false),
            None => match self.connect().await {
                Ok(link) => (link, true),
                Err(error) => {
                    self.table.set_error(&error);
                    return Err(error);
                }
            },
        };
        let maintained = self.maintain(&link, is_new).await;
        if let Err(error) = &maintained {
            // Whatever the error was, this link is unusable.
            self.table.drop_link(link.generation, error);
            self.table.set_error(error);
        }
        maintained
    }

    async fn connect(&mut self) -> Result<Arc<Link>, LinkError> {
        self.generation += 1;
        let table = &self.table;
        let listener = LinkListener { table: Arc::downgrade(table), generation: self.generation };
        let channels = channels(&table.keys, table.here);
        let link =
            Link::open(&table.address, self.generation, &channels, Arc::new(listener), table.metrics.clone());
        Ok(Arc::new(link.await?))
    }

    async fn maintain(&self, link: &Arc<Link>, is_new: bool) -> Result<(), LinkError> {
        let table = &self.table;
        let mut beat = table.beat(link).await?;
        link.check_listening().await?;
        if is_new {
            // Sessions opened from here on are written by `open`; earlier ones count as missed.
            table.use_link(link.clone());
        }
        for _ in 0..MAIL_PAGES_MAX {
            if !beat.had_mail {
                break;
            }
            beat = table.beat(link).await?;
        }
        for _ in 0..CATCH_UPS_MAX {
            if table.is_synced() {
                break;
            }
            table.register_all(link).await?;
        }
        let removed = table.sweep_dead(link, &beat.nodes).await?;
        if removed > 0 {
            info!(removed, "removed the sessions of dead nodes");
        }
        Ok(())
    }

    /// A third of the lease later, or when the lease of another node expires.
    fn next_tick(&self) -> Instant {
        let next = Instant::now() + self.table.lease / 3;
        let end = self.table.leases.read().next_end(self.table.here);
        end.map_or(next, |end| next.min(end + SWEEP_AFTER))
    }

    /// After a pause that differs between nodes, so that they don't all connect at once.
    fn next_attempt(&mut self) -> Instant {
        let part = self.table.here.0 % 100;
        let pause = self.pause + self.pause * part / 200;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Instant::now() + pause
    }

    /// Repairs sessions until the next tick, which is earlier if a heartbeat is requested or the link is lost. `None` when the table
    /// is gone.
    async fn wait(&mut self, mut next: Instant, is_up: bool) -> Option<Option<BeatRequest>> {
        loop {
            tokio::select! {
                () = sleep_until(next) => return Some(None),
                request = self.beats.recv() => return request.map(Some),
                id = self.repairs.recv() => {
                    let id = id?;
                    match self.table.link() {
                        Some(link) => self.repair_by(next, &link, id).await,
                        None => self.table.mark_missed(),
                    }
                }
                () = self.table.lost.notified(), if is_up => next = next.min(self.next_attempt()),
            }
        }
    }

    /// Repairs a session unless that delays the heartbeat.
    async fn repair_by(&self, next: Instant, link: &Link, id: SessionId) {
        if timeout_at(next, self.table.repair(link, id)).await.is_err() {
            debug!(%id, "a session was not repaired before the heartbeat: retrying after it");
            for id in self.table.with_others_of_its_user(id) {
                self.table.queue_repair(id);
            }
        }
    }
}
