//! The keeper: one task that makes links, keeps the lease, catches up, and sweeps. It alone tries again, and waits in between.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout_at},
};
use tracing::{debug, info};

use super::{
    link::{Fault, Link, channels},
    table::{Ear, Table},
};
use crate::{Error, SessionId};

/// The first pause before a new link is tried. It doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause: that long Redis may be back before anybody uses it.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Attempts to write everything down before the next heartbeat: what is missed meanwhile is then written at leisure.
const CATCH_UPS_MAX: usize = 3;
/// Pages of sessions that others have ended, before the next heartbeat: as many as Redis keeps.
const MAIL_PAGES_MAX: usize = 100;
/// How long after the end of a dead node's lease it is swept: Redis ends it to the millisecond.
const SWEEP_AFTER: Duration = Duration::from_millis(5);
/// Heartbeats that wait to be done for others.
pub(super) const BEATS_MAX: usize = 8;
/// Sessions that wait to be looked after; more of them and everything is written down again.
pub(super) const CHORES_MAX: usize = 1_024;

/// Somebody waits for a heartbeat.
pub(super) type BeatRequest = oneshot::Sender<Result<(), Error>>;

pub(super) struct Keeper {
    pub(super) table: Arc<Table>,
    pub(super) beats: mpsc::Receiver<BeatRequest>,
    pub(super) chores: mpsc::Receiver<SessionId>,
    /// Links that were tried.
    pub(super) generation: u64,
    pub(super) pause: Duration,
}

impl Keeper {
    pub(super) fn new(
        table: Arc<Table>,
        beats: mpsc::Receiver<BeatRequest>,
        chores: mpsc::Receiver<SessionId>,
    ) -> Self {
        Self { table, beats, chores, generation: 0, pause: PAUSE_MIN }
    }

    /// Runs until the table is closed.
    pub(super) async fn run(mut self) {
        let mut waiting: Vec<BeatRequest> = self.beats.recv().await.into_iter().collect();
        loop {
            let had_link = self.table.link().is_some();
            let beat = self.turn().await;
            if had_link && beat.is_ok() {
                self.pause = PAUSE_MIN; // a link that serves only once has not served
            }
            let next = if beat.is_ok() { self.next_turn() } else { self.next_attempt() };
            let is_up = beat.is_ok();
            for request in waiting.drain(..) {
                // Who has asked may be gone.
                let _ = request.send(beat.clone().map_err(Error::from));
            }
            let Some(request) = self.rest(next, is_up).await else { return };
            waiting.extend(request);
        }
    }

    /// One heartbeat and what it shows to be necessary.
    async fn turn(&mut self) -> Result<(), Fault> {
        let (link, is_new) = match self.table.link() {
            Some(link) => (link, false),
            None => match self.connect().await {
                Ok(link) => (link, true),
                Err(fault) => {
                    self.table.away_for(&fault);
                    return Err(fault);
                }
            },
        };
        let kept = self.keep(&link, is_new).await;
        if let Err(fault) = &kept {
            // Whatever it was, this link doesn't serve.
            self.table.lose(link.generation, fault);
            self.table.away_for(fault);
        }
        kept
    }

    async fn connect(&mut self) -> Result<Arc<Link>, Fault> {
        self.generation += 1;
        let table = &self.table;
        let ear = Ear { table: Arc::downgrade(table), generation: self.generation };
        let channels = channels(&table.keys, table.here);
        let link =
            Link::open(&table.address, self.generation, &channels, Arc::new(ear), table.metrics.clone());
        Ok(Arc::new(link.await?))
    }

    async fn keep(&self, link: &Arc<Link>, is_new: bool) -> Result<(), Fault> {
        let table = &self.table;
        let mut beat = table.beat(link).await?;
        link.check_listening().await?;
        if is_new {
            // From here on what is opened is written down by who opens it; what was opened before is missed.
            table.take_up(link.clone());
        }
        for _ in 0..MAIL_PAGES_MAX {
            if !beat.had_mail {
                break;
            }
            beat = table.beat(link).await?;
        }
        for _ in 0..CATCH_UPS_MAX {
            if table.is_in_step() {
                break;
            }
            table.register_all(link).await?;
        }
        let removed = table.sweep_dead(link, &beat.nodes).await?;
        if removed > 0 {
            info!(removed, "removed the sessions of nodes that have died");
        }
        Ok(())
    }

    /// A third of the lease later, or when the lease of another node has run out.
    fn next_turn(&self) -> Instant {
        let next = Instant::now() + self.table.lease / 3;
        let end = self.table.living.read().next_end(self.table.here);
        end.map_or(next, |end| next.min(end + SWEEP_AFTER))
    }

    /// After a pause that differs from node to node, so that they don't all come at once.
    fn next_attempt(&mut self) -> Instant {
        let part = self.table.here.0 % 100;
        let pause = self.pause + self.pause * part / 200;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Instant::now() + pause
    }

    /// Looks after sessions until the next turn, which comes early when somebody asks for it or the link is lost. `None` when
    /// the table is gone.
    async fn rest(&mut self, mut next: Instant, is_up: bool) -> Option<Option<BeatRequest>> {
        loop {
            tokio::select! {
                () = sleep_until(next) => return Some(None),
                request = self.beats.recv() => return request.map(Some),
                id = self.chores.recv() => {
                    let id = id?;
                    match self.table.link() {
                        Some(link) => self.settle_by(next, &link, id).await,
                        None => self.table.miss(),
                    }
                }
                () = self.table.lost.notified(), if is_up => next = next.min(self.next_attempt()),
            }
        }
    }

    /// The lease is more important than a session.
    async fn settle_by(&self, next: Instant, link: &Link, id: SessionId) {
        if timeout_at(next, self.table.settle(link, id)).await.is_err() {
            debug!(%id, "a session was not written down in time for the heartbeat: it is afterwards");
            for id in self.table.with_others_of_its_user(id) {
                self.table.look_after(id);
            }
        }
    }
}
