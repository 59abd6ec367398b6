//! One attempt: recipients of one message and one domain.

use std::{ops::Deref, panic::AssertUnwindSafe};

use futures_util::FutureExt;
use restante_mail::queue::{Claimed, Ending, Outcome, Reply, SourceKind};
use tokio::{sync::SemaphorePermit, time::sleep};
use tracing::{debug, warn};

use super::{
    Shared, notes, reports,
    worker::{NOTE_PAUSE, NOTE_TRIES_MAX, count},
};
use crate::{
    Attempted, Connection, NoticeKind, Outgoing, PrepareError, Recipient,
    metrics::AttemptResult,
    schedule::{self, Next},
};

/// How often updating a submission is tried while the server stops: the outcomes must be recorded before it ends.
const REPORT_TRIES_STOPPING: u32 = 3;
/// When a message that could not be prepared is tried again, in seconds; longer each time.
const FAULT_SECONDS: u64 = 60;

/// How a domain is reached.
#[derive(Clone, Debug)]
pub(super) enum Via {
    /// It is a domain of this server.
    Local,
    /// Over the connection of the worker.
    Remote,
    /// Not at all: this is the reply for all recipients.
    Down(Reply),
    /// Not now: its recipients are tried again later, and the attempt does not count.
    NotNow {
        /// Why.
        why: String,
        /// Whether they wait for some time. Otherwise they are due at once, for any server that can try them.
        has_to_wait: bool,
    },
}

/// Recipients of one message that were claimed together.
pub(super) struct Attempt<'a> {
    pub(super) shared: &'a Shared,
    pub(super) recipients: &'a [Claimed],
}

/// A message in memory. The memory is released when this is dropped.
struct Prepared<'a> {
    outgoing: Outgoing,
    _memory: SemaphorePermit<'a>,
}

impl Deref for Prepared<'_> {
    type Target = Outgoing;

    fn deref(&self) -> &Outgoing {
        &self.outgoing
    }
}

/// A recipient, and the outcome of the attempt.
pub(super) struct Decision<'a> {
    pub(super) claim: &'a Claimed,
    /// The last reply.
    pub(super) reply: Reply,
    pub(super) end: End,
    /// Why it has expired, in words of this server.
    pub(super) expired: Option<String>,
    /// Whether an alias of this server forwards copies of it to other servers.
    pub(super) is_forwarded: bool,
    /// Whether its sender gets a report now.
    pub(super) is_reported: bool,
}

/// How an attempt ended for a recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Delivered,
    Failed,
    Expired,
    Postponed { due: u64 },
}

impl Decision<'_> {
    /// The reply that submissions of JMAP and operators are shown.
    pub(super) fn shown(&self) -> Reply {
        match &self.expired {
            Some(why) => schedule::expired(why, &self.reply),
            None => self.reply.clone(),
        }
    }
}

impl Attempt<'_> {
    /// Makes the attempt, and returns the outcomes to record.
    pub(super) async fn make(&self, via: &Via, connection: Option<&mut Box<dyn Connection>>) -> Vec<Outcome> {
        if let Via::NotNow { why, has_to_wait } = via {
            debug!(why, "outgoing mail can't be tried now");
            return self.all_returned(*has_to_wait);
        }
        let Some(message) = self.recipients.first().map(|claim| &claim.recipient.message) else {
            return Vec::new();
        };
        if message.source.kind == SourceKind::Submission && !self.is_released() {
            match self.release().await {
                Some(true) => {}
                Some(false) => return self.all_canceled(),
                None => return self.all_returned(true),
            }
        }
        if let Via::Down(reply) = via {
            let attempted =
                Attempted { reply: reply.clone(), is_reported_further: false, is_forwarded: false };
            let attempted = vec![attempted; self.recipients.len()];
            return self.outcomes(attempted, None, false).await;
        }
        // A message whose preparation or transmission panics must neither end the sender nor be tried for ever.
        let made = AssertUnwindSafe(self.transmit(via, connection)).catch_unwind().await;
        match made {
            Ok(Ok((attempted, outgoing))) => {
                self.outcomes(attempted, Some(&outgoing), matches!(via, Via::Local)).await
            }
            Ok(Err(PrepareError::Later(error))) => {
                warn!(%error, "a queued message can't be read now");
                self.all_returned(true)
            }
            Ok(Err(PrepareError::Never(reply))) => {
                let attempted = Attempted { reply, is_reported_further: false, is_forwarded: false };
                let attempted = vec![attempted; self.recipients.len()];
                self.outcomes(attempted, None, false).await
            }
            Ok(Err(PrepareError::Broken(error))) => self.all_faulted(&error.to_string(), via).await,
            Err(_) => self.all_faulted("sending it panicked: see the log", via).await,
        }
    }

    /// Whether an attempt was made before, so that the submission is final.
    fn is_released(&self) -> bool {
        self.recipients.iter().all(|claim| claim.recipient.last.is_some())
    }

    /// Makes the submission final; `None` when that can't be done now.
    async fn release(&self) -> Option<bool> {
        let source = &self.recipients.first()?.recipient.message.source;
        let Some(account) = source.account else { return Some(true) };
        match self.shared.parts.submissions.release(account, source.record).await {
            Ok(is_sent) => Some(is_sent),
            Err(error) => {
                warn!(%error, "a submission can't be made final now");
                None
            }
        }
    }

    async fn transmit(
        &self,
        via: &Via,
        connection: Option<&mut Box<dyn Connection>>,
    ) -> Result<(Vec<Attempted>, Prepared<'_>), PrepareError> {
        let parts = &self.shared.parts;
        let outgoing = self.prepare().await?;
        let recipients: Vec<Recipient> = self.recipients.iter().map(recipient).collect();
        let mut attempted = match (via, connection) {
            (Via::Remote, Some(connection)) => connection.send(&outgoing, &recipients).await,
            (Via::Local, _) => {
                let mut attempted = Vec::with_capacity(recipients.len());
                for recipient in &recipients {
                    attempted.push(parts.local.deliver(&outgoing, recipient).await);
                }
                attempted
            }
            _ => Vec::new(),
        };
        // Every recipient gets a reply, even if the implementation has returned too few.
        let none = Reply::own(451, "4.4.2", "the connection ended without a reply");
        attempted.resize(
            recipients.len(),
            Attempted { reply: none, is_reported_further: false, is_forwarded: false },
        );
        Ok((attempted, outgoing))
    }

    /// Prepares the message as soon as there is memory for it.
    async fn prepare(&self) -> Result<Prepared<'_>, PrepareError> {
        let Some(claim) = self.recipients.first() else {
            return Err(PrepareError::Later(restante_core::Error::internal("an attempt without recipients")));
        };
        let message = &claim.recipient.message;
        let memory = self.shared.memory.acquire(message.size).await;
        let outgoing = self.shared.parts.preparing.prepare(message).await?;
        Ok(Prepared { outgoing, _memory: memory })
    }

    /// The outcomes to record for the replies to all recipients, with the reports about them.
    async fn outcomes(
        &self,
        attempted: Vec<Attempted>,
        outgoing: Option<&Outgoing>,
        is_local: bool,
    ) -> Vec<Outcome> {
        let now = self.shared.parts.queue.now();
        let mut decisions = Vec::with_capacity(self.recipients.len());
        for (claim, attempted) in self.recipients.iter().zip(attempted) {
            decisions.push(self.decide(claim, attempted, now));
        }
        self.report(&decisions, is_local).await;
        let notes = notes::Notes::begin(self.shared, self.recipients, outgoing, is_local).await;
        notes.decided(&decisions);
        // Reports repeat the message, so if necessary it is prepared for them alone; if that fails, they are sent without it.
        let prepared = match outgoing {
            Some(_) => None,
            None if decisions.iter().any(|decision| decision.is_reported) => {
                AssertUnwindSafe(self.prepare()).catch_unwind().await.ok().and_then(Result::ok)
            }
            None => None,
        };
        let original = outgoing.or(prepared.as_deref());
        let mut outcomes = Vec::new();
        let delivered = NoticeKind::Delivered { is_local };
        for kind in [delivered, NoticeKind::Expanded, NoticeKind::Failed, NoticeKind::Delayed] {
            let of_kind = |decision: &&Decision<'_>| reports::kind_of(decision, is_local) == kind;
            let decisions: Vec<&Decision<'_>> = decisions.iter().filter(of_kind).collect();
            if decisions.is_empty() {
                continue;
            }
            let notice = reports::notice(self.shared, kind, &decisions, original, now).await;
            if let Ok(Some(report)) = &notice {
                notes.reported(&decisions, kind, report);
            }
            outcomes.push(reports::outcome(self.shared, &decisions, notice, now));
        }
        outcomes
    }

    fn decide<'b>(&self, claim: &'b Claimed, attempted: Attempted, now: u64) -> Decision<'b> {
        let recipient = &claim.recipient;
        let Attempted { reply, is_reported_further, is_forwarded } = attempted;
        let notify = recipient.recipient.notify;
        let mut expired = None;
        let (result, end, is_reported) = if reply.is_success() {
            let waited = now.saturating_sub(recipient.first_due);
            self.shared.parts.metrics.queued_seconds.observe(waited as f64);
            (AttemptResult::Delivered, End::Delivered, notify.on_success && !is_reported_further)
        } else if reply.is_permanent() {
            (AttemptResult::Failed, End::Failed, notify.on_failure)
        } else {
            match schedule::next(&self.shared.config, recipient, now) {
                Next::Retry { due, is_delay_due } => {
                    (AttemptResult::Postponed, End::Postponed { due }, is_delay_due && notify.on_delay)
                }
                Next::Expired(why) => {
                    expired = Some(why);
                    (AttemptResult::Expired, End::Expired, notify.on_failure)
                }
            }
        };
        self.shared.parts.metrics.count(result);
        Decision { claim, reply, end, expired, is_forwarded, is_reported }
    }

    /// Updates the submission of JMAP, with retries: once the outcomes are recorded, nothing reports them again.
    async fn report(&self, decisions: &[Decision<'_>], is_local: bool) {
        let mut failures = 0;
        for decision in decisions {
            let source = &decision.claim.recipient.message.source;
            let (SourceKind::Submission, Some(account)) = (source.kind, source.account) else { return };
            let address = &decision.claim.recipient.recipient.address;
            let (reply, is_local) = (decision.shown(), is_local && !decision.is_forwarded);
            let submissions = &self.shared.parts.submissions;
            while let Err(error) = submissions.report(account, source.record, address, &reply, is_local).await
            {
                failures += 1;
                warn!(%error, failures, "the delivery status of a submission can't be noted");
                let is_stopping = *self.shared.stopping.borrow();
                let failures_max = if is_stopping { REPORT_TRIES_STOPPING } else { NOTE_TRIES_MAX };
                // The limit is for all recipients together: until this ends, their outcomes are not recorded.
                if failures >= failures_max {
                    break;
                }
                sleep(NOTE_PAUSE).await;
            }
        }
    }

    fn all(&self, ending: impl Fn(&Claimed) -> Ending) -> Vec<Outcome> {
        let endings = self.recipients.iter().map(|claim| (claim.lease, ending(claim)));
        vec![Outcome { endings: endings.collect(), notice: None }]
    }

    fn all_returned(&self, has_to_wait: bool) -> Vec<Outcome> {
        count(self.shared, AttemptResult::Returned, self.recipients.len());
        let now = self.shared.parts.queue.now();
        self.all(|claim| {
            let wait =
                if has_to_wait { schedule::return_wait(&self.shared.config, &claim.recipient) } else { 0 };
            Ending::Returned { due: now.saturating_add(wait) }
        })
    }

    fn all_canceled(&self) -> Vec<Outcome> {
        count(self.shared, AttemptResult::Canceled, self.recipients.len());
        self.all(|_| Ending::Dropped)
    }

    async fn all_faulted(&self, why: &str, via: &Via) -> Vec<Outcome> {
        warn!(why, "a queued message can't be sent");
        let notes = notes::Notes::begin(self.shared, self.recipients, None, matches!(via, Via::Local)).await;
        notes.faulted(why);
        count(self.shared, AttemptResult::Faulted, self.recipients.len());
        let now = self.shared.parts.queue.now();
        let faults_max = self.shared.config.faults_max.get();
        self.all(|claim| {
            let wait = FAULT_SECONDS.saturating_mul(u64::from(claim.recipient.faults) + 1);
            Ending::Faulted { due: now.saturating_add(wait), why: why.to_owned(), faults_max }
        })
    }
}

fn recipient(claim: &Claimed) -> Recipient {
    let recipient = &claim.recipient.recipient;
    Recipient {
        address: recipient.address.clone(),
        notify: recipient.notify,
        original: recipient.original.clone(),
    }
}
