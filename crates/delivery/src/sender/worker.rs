//! A worker: tries the recipients of one domain, on one connection.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::{join, try_join};
use parking_lot::Mutex;
use restante_core::Error;
use restante_mail::queue::{Claimed, Ending, Lease, Outcome, QueuedId, Reply};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::{
    Shared,
    attempt::{Attempt, Via},
    board::{Start, WorkerId},
};
use crate::{Connection, metrics::AttemptResult};

/// How often noting an outcome is tried. The lease is extended meanwhile.
const NOTE_TRIES_MAX: u32 = 30;
const NOTE_PAUSE: Duration = Duration::from_secs(2);
/// How long saying goodbye to a server may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// When what could not be tried is tried again, in seconds.
pub(super) const RETURN_SECONDS: u64 = 60;

pub(super) struct Worker {
    shared: Arc<Shared>,
    id: WorkerId,
    /// The domain as the index names it.
    domain: Arc<str>,
    connection: Option<Box<dyn Connection>>,
    /// Whether it has given up its place, and ends when the last outcomes are noted.
    has_left: bool,
}

/// Recipients that a worker took. Whatever becomes of the worker, they are let go.
struct ClaimedIds<'a> {
    shared: &'a Shared,
    ids: Vec<QueuedId>,
    is_noted: bool,
}

impl Drop for ClaimedIds<'_> {
    fn drop(&mut self) {
        self.shared.board.lock().done(&self.ids, self.is_noted);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.board.lock().finished(self.id, Instant::now());
        self.shared.freed.notify_one();
    }
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, start: Start) -> Self {
        Self { shared, id: start.worker, domain: start.domain, connection: None, has_left: false }
    }

    /// Works until its domain has nothing more, or until others have waited long enough.
    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        let max = shared.config.recipients_per_transaction_max.get();
        let mut transactions = 0;
        // What waits is read again when the queue is released.
        while !self.has_left && !self.is_stopping() && !shared.parts.queue.was_held() {
            let ids = shared.board.lock().take(&self.domain, max);
            if ids.is_empty() {
                break;
            }
            let mut taken = ClaimedIds { shared: &shared, ids, is_noted: false };
            match self.try_recipients(&taken.ids, &mut transactions).await {
                Ok(()) => taken.is_noted = true,
                Err(error) => {
                    warn!(%error, "outgoing mail can't be tried now");
                    drop(taken);
                    sleep(NOTE_PAUSE).await;
                    break;
                }
            }
            let is_over = transactions >= shared.config.transactions_per_connection_max.get();
            if is_over && shared.board.lock().is_waited_for() {
                break;
            }
        }
        self.close().await;
    }

    fn is_stopping(&self) -> bool {
        *self.shared.stopping.borrow()
    }

    async fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            let _ = timeout(CLOSE_TIMEOUT, connection.close()).await;
        }
    }

    /// Tries recipients of one account of the queue.
    async fn try_recipients(&mut self, ids: &[QueuedId], transactions: &mut u32) -> Result<(), Error> {
        let shared = self.shared.clone();
        let Some(domain) = name(&shared, &self.domain, ids).await? else { return Ok(()) };
        let leases = Mutex::default();
        let work = async {
            // The connection is made while the claim is committed.
            let connecting = async { Ok(self.connect(&domain).await) };
            let (claimed, via) = try_join(claim(&shared, ids, &leases), connecting).await?;
            self.try_messages(claimed, via, &domain, &leases, transactions).await
        };
        tokio::select! {
            biased;
            result = work => result,
            () = renew(&shared, &leases) => Ok(()),
        }
    }

    /// Closes the connection, and lets another domain have the place. A commit takes longer than a message to a server near by.
    async fn leave(&mut self) {
        self.close().await;
        self.has_left = true;
        self.shared.board.lock().left(self.id);
        self.shared.freed.notify_one();
    }

    /// How a domain is reached now, with a connection if it takes one.
    async fn connect(&mut self, domain: &str) -> Via {
        let shared = self.shared.clone();
        match shared.parts.local.is_local(domain).await {
            Ok(true) => {
                if shared.board.lock().set_local(&self.domain, Instant::now()) {
                    shared.freed.notify_one();
                }
                return Via::Local;
            }
            Ok(false) => {}
            Err(error) => return Via::NotNow { why: error.to_string(), seconds: RETURN_SECONDS },
        }
        if self.connection.as_ref().is_some_and(|connection| connection.is_open()) {
            return Via::Remote;
        }
        self.close().await;
        let now = Instant::now();
        if let Some(reply) = shared.board.lock().down(&self.domain, now) {
            return Via::Down(reply);
        }
        match shared.parts.remote.connect(domain).await {
            Ok(connection) => {
                shared.parts.metrics.connections.inc();
                self.connection = Some(connection);
                self.progressed();
                if shared.board.lock().set_good(&self.domain, Instant::now()) {
                    shared.freed.notify_one();
                }
                Via::Remote
            }
            Err(reply) => {
                debug!(domain, code = reply.code, "no server of a domain could be reached");
                shared.parts.metrics.connections_failed.inc();
                self.set_down(reply.clone());
                Via::Down(reply)
            }
        }
    }

    fn set_down(&self, reply: Reply) {
        let until = Instant::now() + Duration::from_secs(self.shared.config.domain_down_seconds);
        self.shared.board.lock().set_down(&self.domain, reply, until);
    }

    /// Notes that it gets on, so that its domain does not count as slow.
    fn progressed(&self) {
        self.shared.board.lock().progressed(self.id, Instant::now());
    }

    /// Tries claimed recipients, message by message.
    async fn try_messages(
        &mut self,
        claimed: Vec<Claimed>,
        mut via: Via,
        domain: &str,
        leases: &Mutex<Vec<Lease>>,
        transactions: &mut u32,
    ) -> Result<(), Error> {
        let shared = self.shared.clone();
        let mut messages = by_message(claimed).into_iter();
        while let Some(recipients) = messages.next() {
            if self.is_stopping() {
                via = Via::NotNow { why: "the server stops".to_owned(), seconds: 0 };
            }
            let is_closed = self.connection.as_ref().is_none_or(|connection| !connection.is_open());
            if matches!(via, Via::Remote) && is_closed {
                via = self.connect(domain).await;
            }
            // Also while a connection was made, which can take minutes.
            if shared.parts.queue.was_held() {
                via = Via::NotNow { why: "the queue is held".to_owned(), seconds: 0 };
            }
            *transactions += 1;
            let connection = self.connection.as_mut();
            let attempt = Attempt { shared: &shared, recipients: &recipients };
            let outcomes = attempt.make(&via, connection).await;
            self.progressed();
            let noting = note(&shared, &outcomes);
            if messages.len() == 0 && shared.board.lock().may_leave(&self.domain) {
                join(noting, self.leave()).await.0?;
            } else {
                noting.await?;
            }
            let ended = |lease: &Lease| recipients.iter().any(|claim| claim.lease == *lease);
            leases.lock().retain(|lease| !ended(lease));
        }
        Ok(())
    }
}

/// The domain of what was taken; `None` when that is gone. A name that is too long for the index is read from a record.
async fn name(shared: &Shared, domain: &str, ids: &[QueuedId]) -> Result<Option<String>, Error> {
    if !domain.starts_with('#') {
        return Ok(Some(domain.to_owned()));
    }
    let Some(first) = ids.first() else { return Ok(None) };
    Ok(shared.parts.queue.get(*first).await?.map(|recipient| recipient.domain))
}

/// Claims recipients, whose leases are extended from now on.
async fn claim(shared: &Shared, ids: &[QueuedId], leases: &Mutex<Vec<Lease>>) -> Result<Vec<Claimed>, Error> {
    let queue = &shared.parts.queue;
    let lease_until = queue.now().saturating_add(shared.config.lease_seconds.get());
    let claimed = queue.claim(ids, lease_until).await?;
    let lost = claimed.iter().filter(|claim| claim.is_lease_lost).count();
    shared.parts.metrics.leases_expired.inc_by(lost as u64);
    *leases.lock() = claimed.iter().map(|claim| claim.lease).collect();
    Ok(claimed)
}

/// Extends leases until it is dropped.
async fn renew(shared: &Shared, leases: &Mutex<Vec<Lease>>) {
    let seconds = shared.config.lease_seconds.get();
    loop {
        sleep(Duration::from_secs(seconds) / 3).await;
        let held: Vec<Lease> = leases.lock().clone();
        let until = shared.parts.queue.now().saturating_add(seconds);
        if let Err(error) = shared.parts.queue.renew(&held, until).await {
            warn!(%error, "leases of outgoing mail can't be extended");
        }
    }
}

/// Notes outcomes, some times if need be: a mail whose delivery is not noted is sent again.
async fn note(shared: &Shared, outcomes: &[Outcome]) -> Result<(), Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        match shared.parts.queue.end(outcomes).await {
            Ok(_) => {
                let is_outcome = |ending: &Ending| !matches!(ending, Ending::Returned { .. });
                let mut endings = outcomes.iter().flat_map(|outcome| &outcome.endings);
                if endings.any(|(_, ending)| is_outcome(ending)) {
                    shared.health.noted(shared.parts.queue.now());
                }
                return Ok(());
            }
            Err(error) if tries < NOTE_TRIES_MAX => {
                warn!(%error, "what became of outgoing mail can't be noted: it is tried again");
                sleep(NOTE_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Recipients by message, in the order in which they were claimed.
fn by_message(claimed: Vec<Claimed>) -> Vec<Vec<Claimed>> {
    let mut places: BTreeMap<[u8; 32], usize> = BTreeMap::new();
    let mut messages: Vec<Vec<Claimed>> = Vec::new();
    for claim in claimed {
        let place = *places.entry(claim.recipient.message.source.key).or_insert(messages.len());
        match messages.get_mut(place) {
            Some(message) => message.push(claim),
            None => messages.push(vec![claim]),
        }
    }
    messages
}

/// Counts what became of recipients.
pub(super) fn count(shared: &Shared, result: AttemptResult, recipients: usize) {
    for _ in 0..recipients {
        shared.parts.metrics.count(result);
    }
}
