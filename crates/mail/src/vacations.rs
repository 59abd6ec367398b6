//! The vacation response of an account (RFC 8621 §8), and the senders that got a reply recently.

use std::ops::Bound;

use bytes::Bytes;
use restante_core::{Error, ErrorKind};
use restante_records::{AccountId, Body, Change, Commit, Get, Properties, Query, RecordId, Revision, Value};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    Mail, MailError, Transition, Tries,
    schema::{answered, vacation},
};

/// The most bytes of a response's texts together.
const TEXTS_BYTES_MAX: usize = 128 << 10;
/// The most senders that are remembered: beyond that, no other sender gets a reply until some of them are forgotten.
const SENDERS_MAX: u64 = 10_000;
/// The most senders that are forgotten when a new one is remembered.
const FORGOTTEN_MAX: usize = 16;
/// The most records that are read for one sender.
const FEW: usize = 4;

/// A vacation response, RFC 8621 §8. Times are in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VacationResponse {
    /// Whether replies are sent.
    pub is_enabled: bool,
    /// When it was last enabled: messages from before that are not answered. Set by [`Mail::set_vacation`].
    pub enabled_since: Option<i64>,
    /// When replies begin.
    pub from_date: Option<i64>,
    /// When they end.
    pub to_date: Option<i64>,
    /// Their subject.
    pub subject: Option<String>,
    /// Their text.
    pub text_body: Option<String>,
    /// Their text in HTML.
    pub html_body: Option<String>,
}

impl VacationResponse {
    /// Whether a message that was received at this time is answered.
    pub fn is_in_force(&self, received: i64) -> bool {
        let is_since = |from: Option<i64>| from.is_none_or(|from| received >= from);
        let is_before_end = self.to_date.is_none_or(|to| received < to);
        self.is_enabled && is_since(self.enabled_since) && is_since(self.from_date) && is_before_end
    }
}

/// The response of an account as it was read.
struct Found {
    id: Option<RecordId>,
    response: VacationResponse,
    state: Revision,
}

impl Mail {
    /// The vacation response of an account, and its state. Each account has one.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn vacation(&self, account: AccountId) -> Result<(VacationResponse, Revision), Error> {
        let found = self.find_vacation(account).await?;
        Ok((found.response, found.state))
    }

    /// Changes the vacation response of an account by `change`, which is called again when another server has changed the response
    /// meanwhile. A change to the same values commits nothing.
    ///
    /// # Errors
    /// `StateMismatch`; `Invalid` when it gets too long; `Store`; those of `change`.
    pub async fn set_vacation<E: From<MailError>>(
        &self,
        account: AccountId,
        if_in_state: Option<Revision>,
        change: impl Fn(&mut VacationResponse) -> Result<(), E>,
    ) -> Result<Transition, E> {
        let of_store = |error: Error| E::from(MailError::from(error));
        let _lock = self.lock_edits(account, vacation::KIND).await;
        let mut tries = Tries::default();
        loop {
            let Found { id, response: before, state: old } =
                self.find_vacation(account).await.map_err(of_store)?;
            if if_in_state.is_some_and(|expected| expected != old) {
                return Err(MailError::StateMismatch.into());
            }
            let mut after = before.clone();
            change(&mut after)?;
            after.enabled_since = match (after.is_enabled, before.is_enabled) {
                (false, _) => None,
                (true, true) => before.enabled_since,
                (true, false) => Some(self.clock().now().seconds()),
            };
            if after == before {
                return Ok(Transition { old, new: old, is_shared: false });
            }
            let commit = commit_of(id, &after)?.if_in_state(vacation::KIND, old);
            match self.records().commit(account, commit).await {
                Ok(committed) => {
                    return Ok(Transition { old, new: committed.revision, is_shared: false });
                }
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    if !tries.next().await {
                        let what = "the vacation response changes all the time: try again";
                        return Err(of_store(Error::unavailable(what)));
                    }
                }
                Err(error) => return Err(of_store(error)),
            }
        }
    }

    async fn find_vacation(&self, account: AccountId) -> Result<Found, Error> {
        let page = self.records().query(account, &Query::new(vacation::KIND, vacation::ALL).limit(1)).await?;
        let state = page.state;
        let Some(id) = page.ids.first().copied() else {
            return Ok(Found { id: None, response: VacationResponse::default(), state });
        };
        let found = self.records().get(account, &Get::whole(vacation::KIND, vec![id])).await?;
        // It is never destroyed while the account is there.
        let Some(record) = found.into_iter().flatten().next() else {
            return Err(Error::unavailable("the vacation response was removed just now: try again"));
        };
        let response = serde_json::from_slice(&record.body.bytes).map_err(|error| {
            Error::corrupt(format!("the vacation response of account {} is damaged: {error}", account.0))
        })?;
        Ok(Found { id: Some(id), response, state })
    }

    /// Whether a sender must not get a vacation reply: it got one since a time, in seconds since 1970, or too many other senders got one.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn was_answered(&self, account: AccountId, sender: &str, since: i64) -> Result<bool, Error> {
        let since = u64::try_from(since).unwrap_or_default();
        let lately = |query: Query| query.between(Bound::Included(since.into()), Bound::Unbounded).limit(1);
        let of_sender = Query::new(answered::KIND, answered::BY_SENDER).equals(sender_key(sender));
        if !self.records().query(account, &lately(of_sender)).await?.ids.is_empty() {
            return Ok(true);
        }
        let of_all = Query::new(answered::KIND, answered::BY_AT).skip(SENDERS_MAX - 1);
        Ok(!self.records().query(account, &lately(of_all)).await?.ids.is_empty())
    }

    /// Remembers durably that a sender got a vacation reply at a time, and forgets some of those before `forget_before`.
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn note_answered(
        &self,
        account: AccountId,
        sender: &str,
        at: i64,
        forget_before: i64,
    ) -> Result<(), Error> {
        let kind = answered::KIND;
        let key = sender_key(sender);
        let number = |time: i64| u64::try_from(time).unwrap_or_default();
        let of_sender = Query::new(kind, answered::BY_SENDER).equals(key.clone()).limit(FEW);
        let known = self.records().query(account, &of_sender).await?.ids;
        let old = Query::new(kind, answered::BY_AT)
            .between(Bound::Unbounded, Bound::Excluded(number(forget_before).into()))
            .limit(FORGOTTEN_MAX);
        let old = self.records().query(account, &old).await?.ids;
        let properties = Properties::default().with(answered::SENDER, key).with(answered::AT, number(at));
        let mut changes = vec![Change::Create { kind, body: Body::default(), properties }];
        let mut gone: Vec<RecordId> = known.into_iter().chain(old).collect();
        gone.sort_unstable();
        gone.dedup();
        changes.extend(gone.into_iter().map(|id| Change::Destroy { kind, id }));
        self.records().commit(account, Commit::of(changes)).await.map(|_| ())
    }
}

fn commit_of(id: Option<RecordId>, response: &VacationResponse) -> Result<Commit, MailError> {
    let json = serde_json::to_vec(response)
        .map_err(|error| Error::internal(format!("a vacation response can't be written as JSON: {error}")))?;
    if json.len() > TEXTS_BYTES_MAX {
        let properties = vec!["subject", "textBody", "htmlBody"];
        let why = format!("a vacation response has at most {TEXTS_BYTES_MAX} bytes");
        return Err(MailError::Invalid { properties, why });
    }
    let (kind, body) = (vacation::KIND, Body::new(json));
    let properties = Properties::default().with(vacation::ENABLED, u64::from(response.is_enabled));
    Ok(Commit::of([match id {
        None => Change::Create { kind, body, properties },
        Some(id) => Change::Update { kind, id, body: Some(body), properties: Some(properties) },
    }]))
}

/// The key by which a sender is remembered.
fn sender_key(sender: &str) -> Value {
    let hash = Sha256::digest(sender.to_lowercase());
    Value::Text(Bytes::copy_from_slice(hash.get(..16).unwrap_or_default()))
}
