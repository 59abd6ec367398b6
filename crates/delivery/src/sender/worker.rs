//! A worker: tries the recipients of one domain, on one connection.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use futures_util::future::{Either, join, select};
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

/// How often recording an outcome is tried, unless something was delivered. The lease is extended meanwhile.
pub(super) const NOTE_TRIES_MAX: u32 = 30;
pub(super) const NOTE_PAUSE: Duration = Duration::from_secs(2);
/// The first failure to record an outcome is logged, and then one of so many.
const NOTE_TRIES_PER_WARNING: u32 = 10;
/// If a claim is older than this, it is checked again whether a recipient may still be tried.
const CLAIM_FRESH: Duration = Duration::from_secs(1);
/// How long closing a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Worker {
    shared: Arc<Shared>,
    id: WorkerId,
    /// The domain in the form of the index.
    domain: Arc<str>,
    connection: Option<Box<dyn Connection>>,
    /// Whether it has given up its slot, and ends when the last outcomes are recorded.
    has_left: bool,
}

/// Recipients that a worker took. They are released no matter how the worker ends.
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
        // The recipients that wait are read again when the queue is released.
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
            if is_over && shared.board.lock().is_waited_for(self.id) {
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
            let begun = Instant::now();
            let (claimed, via) = self.claim_and_connect(ids, &domain, &leases).await?;
            self.try_messages((claimed, begun), via, &domain, &leases, transactions).await
        };
        tokio::select! {
            biased;
            result = work => result,
            () = renew(&shared, &leases) => Ok(()),
        }
    }

    /// Claims recipients, and connects while the claim is committed. Gives up connecting if others have claimed all of them.
    async fn claim_and_connect(
        &mut self,
        ids: &[QueuedId],
        domain: &str,
        leases: &Mutex<Vec<Lease>>,
    ) -> Result<(Vec<Claimed>, Via), Error> {
        let shared = self.shared.clone();
        let claiming = pin!(claim(&shared, ids, leases));
        let connecting = pin!(self.connect(domain));
        match select(claiming, connecting).await {
            Either::Left((claimed, connecting)) => {
                let claimed = claimed?;
                if claimed.is_empty() {
                    return Ok((claimed, Via::NotNow { why: String::new(), has_to_wait: false }));
                }
                Ok((claimed, connecting.await))
            }
            Either::Right((via, claiming)) => Ok((claiming.await?, via)),
        }
    }

    /// Closes the connection, and gives its slot to another domain: a commit takes longer than a message to a server near by.
    async fn leave(&mut self) {
        self.close().await;
        self.has_left = true;
        self.shared.board.lock().left(self.id);
        self.shared.freed.notify_one();
    }

    /// How a domain is reached now; opens a connection if it needs one.
    async fn connect(&mut self, domain: &str) -> Via {
        let shared = self.shared.clone();
        match shared.parts.local.is_local(domain).await {
            Ok(true) => {
                self.close().await; // its place is given up, and with it a connection from when the domain was of another server
                if shared.board.lock().set_local(self.id, Instant::now()) {
                    shared.freed.notify_one();
                }
                return Via::Local;
            }
            Ok(false) if !shared.board.lock().may_connect(self.id) => {
                self.has_left = true;
                let why = "the domain is no longer of this server".to_owned();
                return Via::NotNow { why, has_to_wait: false };
            }
            Ok(false) => {}
            Err(error) => return Via::NotNow { why: error.to_string(), has_to_wait: true },
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

    /// Notes that the worker makes progress, so that its domain does not count as slow.
    fn progressed(&self) {
        self.shared.board.lock().progressed(self.id, Instant::now());
    }

    /// Tries recipients that were claimed at a time, message by message.
    async fn try_messages(
        &mut self,
        (claimed, claimed_at): (Vec<Claimed>, Instant),
        mut via: Via,
        domain: &str,
        leases: &Mutex<Vec<Lease>>,
        transactions: &mut u32,
    ) -> Result<(), Error> {
        let shared = self.shared.clone();
        let mut messages = by_message(claimed).into_iter();
        while let Some(recipients) = messages.next() {
            if self.is_stopping() {
                via = Via::NotNow { why: "the server stops".to_owned(), has_to_wait: false };
            }
            let is_closed = self.connection.as_ref().is_none_or(|connection| !connection.is_open());
            if matches!(via, Via::Remote) && is_closed {
                via = self.connect(domain).await;
            }
            // The queue may also have been held while a connection was made, which can take minutes.
            if shared.parts.queue.was_held() {
                via = Via::NotNow { why: "the queue is held".to_owned(), has_to_wait: false };
            }
            let ended: Vec<Lease> = recipients.iter().map(|claim| claim.lease).collect();
            // The messages before this one may have taken hours.
            let is_fresh = claimed_at.elapsed() < CLAIM_FRESH;
            let recipients = if is_fresh { recipients } else { still_claimed(&shared, recipients).await? };
            if recipients.is_empty() {
                leases.lock().retain(|lease| !ended.contains(lease));
                continue;
            }
            *transactions += 1;
            let connection = self.connection.as_mut();
            let attempt = Attempt { shared: &shared, recipients: &recipients };
            let outcomes = attempt.make(&via, connection).await;
            self.progressed();
            let noting = note(&shared, &outcomes);
            if messages.len() == 0 && shared.board.lock().may_leave(self.id) {
                join(noting, self.leave()).await.0?;
            } else {
                noting.await?;
            }
            leases.lock().retain(|lease| !ended.contains(lease));
        }
        Ok(())
    }
}

/// The domain of the recipients; `None` when they are gone. A name that is too long for the index is read from a record.
async fn name(shared: &Shared, domain: &str, ids: &[QueuedId]) -> Result<Option<String>, Error> {
    if !domain.starts_with('#') {
        return Ok(Some(domain.to_owned()));
    }
    let Some(first) = ids.first() else { return Ok(None) };
    Ok(shared.parts.queue.get(*first).await?.map(|recipient| recipient.domain))
}

/// Claims recipients, and stores their leases, which are extended from then on.
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
        if let Err(error) = shared.parts.queue.renew(&held, until, until).await {
            warn!(%error, "leases of outgoing mail can't be extended");
        }
    }
}

/// The claimed recipients that may still be tried. The others were claimed by another server after their lease had ended, or were
/// dropped or held by an operator: they are left out, and those that are held return their lease.
async fn still_claimed(shared: &Shared, claimed: Vec<Claimed>) -> Result<Vec<Claimed>, Error> {
    let leases: Vec<Lease> = claimed.iter().map(|claim| claim.lease).collect();
    let seconds = shared.config.lease_seconds.get();
    let mut tries = 0;
    let valid = loop {
        tries += 1;
        let now = shared.parts.queue.now();
        let (before, until) = (now.saturating_add(seconds / 3), now.saturating_add(seconds));
        match shared.parts.queue.renew(&leases, before, until).await {
            Ok(valid) => break valid,
            Err(error) if tries < NOTE_TRIES_MAX => {
                warn!(%error, "it can't be read whether outgoing mail may still be tried");
                sleep(NOTE_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    };
    let (valid, others): (Vec<Claimed>, Vec<Claimed>) =
        claimed.into_iter().partition(|claim| valid.contains(&claim.lease));
    if !others.is_empty() {
        debug!(recipients = others.len(), "outgoing mail is left out that may not be tried any more");
        let due = shared.parts.queue.now();
        let endings = others.iter().map(|claim| (claim.lease, Ending::Returned { due })).collect();
        note(shared, &[Outcome { endings, notice: None }]).await?;
    }
    Ok(valid)
}

/// Records outcomes, with retries. A message whose delivery is not recorded is sent again, so recording a delivery is tried until the sender ends.
async fn note(shared: &Shared, outcomes: &[Outcome]) -> Result<(), Error> {
    let mut endings = outcomes.iter().flat_map(|outcome| &outcome.endings);
    let has_delivery = endings.any(|(_, ending)| matches!(ending, Ending::Delivered));
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
            Err(error) if tries < NOTE_TRIES_MAX || has_delivery => {
                if tries % NOTE_TRIES_PER_WARNING == 1 {
                    warn!(%error, tries, "what became of outgoing mail can't be noted: it is tried again");
                }
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
