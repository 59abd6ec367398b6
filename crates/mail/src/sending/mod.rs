//! How much an account may send: messages an hour, recipients a day.
//!
//! What an account has sent is a record of its own, of the kind [`crate::sent`], so that the limits hold over restarts and for several servers
//! together. JMAP and SMTP submission share them.

mod limited;
mod metrics;
mod window;

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use restante_core::{Clock, Error, ErrorKind};
use restante_mail_wire::header::Date;
use restante_records::{
    AccountId, Body, Change, Commit, Get, Properties, Query, RecordId, Records, Revision,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tracing::warn;

use self::{
    limited::Limited,
    window::{Window, WindowLength},
};
pub use self::{limited::LimitedAccount, metrics::SendingMetrics};
use crate::{Tries, schema::sent};

/// The window of `messages_per_hour_max`.
const HOUR: WindowLength = WindowLength { slot_seconds: 600, slots: 6 };
/// The window of `recipients_per_day_max`.
const DAY: WindowLength = WindowLength { slot_seconds: 3_600, slots: 24 };
/// Locks that serialize the commits that count what one account sends. Accounts that share a lock wait for each other.
const LOCKS: usize = 256;
/// The most messages that wait to be counted; further ones are refused as busy.
const WAITING_MAX: usize = 16_384;

/// How much one account may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendingRates {
    /// Messages in any 60 minutes; 0 for no limit.
    pub messages_per_hour_max: u32,
    /// Recipients of all its messages in any 24 hours; 0 for no limit.
    pub recipients_per_day_max: u32,
}

/// A limit on what an account sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SendingLimit {
    /// Messages an hour.
    Messages,
    /// Recipients a day.
    Recipients,
}

/// Why a message is not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendingRefused {
    /// The account has sent as much as it may.
    #[error("{}", limited_text(*limit, *until))]
    Limited {
        /// The limit that it reached.
        limit: SendingLimit,
        /// When the message can be sent, in seconds since 1970.
        until: u64,
    },
    /// The message has more recipients than an account may have in a day.
    #[error("a message can have at most {max} recipients")]
    TooManyRecipients {
        /// How many it can have.
        max: u32,
    },
    /// It is not known now whether the message may be sent; of kind `Unavailable` or `Full`.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// The error text for the user who sends.
fn limited_text(limit: SendingLimit, until: u64) -> String {
    let what = match limit {
        SendingLimit::Messages => "messages in an hour",
        SendingLimit::Recipients => "recipients in a day",
    };
    let until = Date { seconds: i64::try_from(until).unwrap_or(i64::MAX), offset_minutes: 0 };
    format!("the account has sent as much as it may ({what}): try again at {until}")
}

/// The limits on what accounts send. Cloning shares them.
#[derive(Clone)]
pub struct SendingLimits(Arc<Inner>);

struct Inner {
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    rates: SendingRates,
    metrics: SendingMetrics,
    limited: Mutex<Limited>,
    waiting: Mutex<HashMap<AccountId, Vec<Waiting>>>,
    locks: Vec<tokio::sync::Mutex<()>>,
}

/// A message that waits to be counted.
struct Waiting {
    recipients: u64,
    answer: oneshot::Sender<Result<(), SendingRefused>>,
}

/// The body of the record, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SentBody {
    /// In slots of 10 minutes.
    messages: Window,
    /// In slots of an hour.
    recipients: Window,
}

/// The record of an account as it was read.
struct Sent {
    id: Option<RecordId>,
    body: SentBody,
    state: Revision,
}

impl SendingLimits {
    /// The limits of accounts in these records.
    pub fn new(
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
        rates: SendingRates,
        metrics: SendingMetrics,
    ) -> Self {
        let locks = (0..LOCKS).map(|_| tokio::sync::Mutex::default()).collect();
        let (limited, waiting) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { records, clock, rates, metrics, limited, waiting, locks }))
    }

    /// Counts a message of an account to so many recipients, durably, before it is sent. It stays counted even if it is not sent
    /// after all. Messages of one account that are counted at the same time share a commit.
    ///
    /// # Errors
    /// [`SendingRefused`]; nothing is counted then, except that it is unknown after `Failed`.
    pub async fn admit(&self, account: AccountId, recipients: usize) -> Result<(), SendingRefused> {
        let rates = self.0.rates;
        if rates.messages_per_hour_max == 0 && rates.recipients_per_day_max == 0 {
            return Ok(());
        }
        let recipients = recipients as u64;
        let max = rates.recipients_per_day_max;
        if max > 0 && recipients > u64::from(max) {
            return Err(SendingRefused::TooManyRecipients { max });
        }
        let mut answer = self.wait(account, recipients)?;
        let lock = self.0.locks.get(account.0 as usize % LOCKS);
        let _locked = match lock {
            Some(lock) => Some(lock.lock().await),
            None => None,
        };
        // The previous holder of the lock may have counted this message with its own.
        if let Ok(answer) = answer.try_recv() {
            return answer;
        }
        let waiting = self.0.waiting.lock().remove(&account).unwrap_or_default();
        self.count(account, waiting).await;
        answer.await.unwrap_or_else(|_| Err(Error::internal("a message was not counted").into()))
    }

    /// The limit that an account has reached, and until when, as far as this server knows: for refusing a message before it is received.
    pub fn reached(&self, account: AccountId) -> Option<(SendingLimit, u64)> {
        self.0.limited.lock().reached(account, self.now())
    }

    /// The accounts that reached a limit on this server in the last 24 hours, the latest first; at most 1,000.
    pub fn limited(&self) -> Vec<LimitedAccount> {
        self.0.limited.lock().list(self.now())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.clock.now().seconds()).unwrap_or_default()
    }

    fn wait(
        &self,
        account: AccountId,
        recipients: u64,
    ) -> Result<oneshot::Receiver<Result<(), SendingRefused>>, Error> {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.0.waiting.lock();
        let waiting = waiting.entry(account).or_default();
        if waiting.len() >= WAITING_MAX {
            return Err(Error::unavailable("too many messages of the account wait to be counted: try again"));
        }
        waiting.push(Waiting { recipients, answer });
        Ok(answered)
    }

    /// Counts messages of an account in one commit, and answers each.
    async fn count(&self, account: AccountId, waiting: Vec<Waiting>) {
        // A caller that has stopped waiting sends nothing.
        let waiting: Vec<Waiting> =
            waiting.into_iter().filter(|waiting| !waiting.answer.is_closed()).collect();
        let sizes: Vec<u64> = waiting.iter().map(|waiting| waiting.recipients).collect();
        if sizes.is_empty() {
            return;
        }
        let answers = match self.commit(account, &sizes).await {
            Ok(answers) => answers,
            Err(error) => sizes.iter().map(|_| Err(SendingRefused::Failed(error.duplicate()))).collect(),
        };
        for (waiting, answer) in waiting.into_iter().zip(answers) {
            if let Err(SendingRefused::Limited { limit, until }) = &answer {
                self.note_limited(account, *limit, *until);
            }
            let _ = waiting.answer.send(answer); // its caller may be gone: the message is counted and not sent
        }
    }

    fn note_limited(&self, account: AccountId, limit: SendingLimit, until: u64) {
        self.0.metrics.count_refused(limit);
        let is_new = self.0.limited.lock().note(account, limit, self.now(), until);
        if is_new {
            self.0.metrics.count_account(limit);
            warn!(
                account = account.0,
                ?limit,
                until,
                "an account has sent as much as it may: its password may be stolen"
            );
        }
    }

    async fn commit(
        &self,
        account: AccountId,
        sizes: &[u64],
    ) -> Result<Vec<Result<(), SendingRefused>>, Error> {
        let mut tries = Tries::default();
        loop {
            let now = self.now();
            let mut sent = self.read(account).await?;
            let (answers, is_changed) = sent.body.admit(self.0.rates, now, sizes);
            if !is_changed {
                return Ok(answers);
            }
            match self.0.records.commit(account, sent.into_commit(now)?).await {
                Ok(_) => return Ok(answers),
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    if !tries.next().await {
                        let what = "other servers send for the same account at the same time: try again";
                        return Err(Error::unavailable(what));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn read(&self, account: AccountId) -> Result<Sent, Error> {
        let page = self.0.records.query(account, &Query::new(sent::KIND, sent::ALL).limit(1)).await?;
        let state = page.state;
        let Some(id) = page.ids.first().copied() else {
            return Ok(Sent { id: None, body: SentBody::default(), state });
        };
        let records = self.0.records.get(account, &Get::whole(sent::KIND, vec![id])).await?;
        let Some(record) = records.into_iter().flatten().next() else {
            return Ok(Sent { id: None, body: SentBody::default(), state }); // it was destroyed meanwhile: the commit conflicts
        };
        let body = serde_json::from_slice(&record.body.bytes).map_err(|error| {
            Error::corrupt(format!("the record of what account {} has sent is damaged: {error}", account.0))
        })?;
        Ok(Sent { id: Some(id), body, state })
    }
}

impl SentBody {
    /// Counts those messages that fit, in their order; returns the answer to each, and whether any was counted.
    fn admit(
        &mut self,
        rates: SendingRates,
        now: u64,
        sizes: &[u64],
    ) -> (Vec<Result<(), SendingRefused>>, bool) {
        self.messages.move_to(now, HOUR);
        self.recipients.move_to(now, DAY);
        let mut is_changed = false;
        let answers = sizes.iter().map(|size| {
            let messages = (SendingLimit::Messages, &self.messages, HOUR, 1, rates.messages_per_hour_max);
            let recipients =
                (SendingLimit::Recipients, &self.recipients, DAY, *size, rates.recipients_per_day_max);
            for (limit, window, length, count, max) in [messages, recipients] {
                let max = u64::from(max);
                if max > 0 && window.sum().saturating_add(count) > max {
                    // A message that never fits was refused before.
                    let until = window.fits_at(length, count, max).unwrap_or(now);
                    return Err(SendingRefused::Limited { limit, until });
                }
            }
            self.messages.add(now, HOUR, 1);
            self.recipients.add(now, DAY, *size);
            is_changed = true;
            Ok(())
        });
        (answers.collect(), is_changed)
    }
}

impl Sent {
    fn into_commit(self, now: u64) -> Result<Commit, Error> {
        let json = serde_json::to_vec(&self.body).map_err(|error| {
            Error::internal(format!("what an account has sent can't be written as JSON: {error}"))
        })?;
        let (kind, body) = (sent::KIND, Body::new(json));
        let properties = Properties::default().with(sent::UPDATED, now);
        let change = match self.id {
            None => Change::Create { kind, body, properties },
            Some(id) => Change::Update { kind, id, body: Some(body), properties: Some(properties) },
        };
        Ok(Commit::of([change]).if_in_state(kind, self.state))
    }
}

#[cfg(test)]
mod tests;
