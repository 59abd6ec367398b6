//! Changes the records of a queue account: one edit after the other in this process, each on the condition that no other server has
//! changed the records meanwhile.

use std::sync::Arc;

use async_trait::async_trait;
use restante_core::{Clock, Error, ErrorKind};
use restante_records::{
    AccountId, Change, Commit, Committed, Cursor, Get, Query, Record, RecordId, Records, Revision,
};
use tokio::sync::{Mutex, MutexGuard};

use super::{
    account::{QUEUE_ACCOUNTS, QueueAccount, key_hash},
    claim::{ClaimRequest, EndRequest},
    joint::Pending,
};
use crate::schema::queued;

/// How often an edit is planned again when other servers' commits come before it.
const TRIES_MAX: usize = 32;

/// An edit of one account. It may be planned several times, until no other commit comes between its reads and its commit.
#[async_trait]
pub(super) trait Edit: Sync {
    /// The part of the plan that the edit's answer is made of.
    type Plan: Send;

    /// The changes; without any, the account stays as it is.
    async fn plan(&self, reader: &Reader<'_>) -> Result<(Vec<Change>, Self::Plan), Error>;
}

/// Reads the records of a queue account.
pub(super) struct Reader<'a> {
    pub(super) records: &'a dyn Records,
    pub(super) account: AccountId,
    /// Seconds since 1970.
    pub(super) now: u64,
}

impl Reader<'_> {
    /// The records with these ids that exist.
    pub(super) async fn read(&self, ids: Vec<RecordId>) -> Result<Vec<Record>, Error> {
        let found = self.records.get(self.account, &Get::whole(queued::KIND, ids)).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The records of a message, including those that have ended.
    pub(super) async fn of_key(&self, key: &[u8; 32]) -> Result<Vec<Record>, Error> {
        let mut records = Vec::new();
        let mut after: Option<Cursor> = None;
        loop {
            let mut query = Query::new(queued::KIND, queued::BY_KEY)
                .equals(key_hash(key))
                .limit(restante_records::QUERY_ROWS_MAX);
            query.after = after;
            let page = self.records.query(self.account, &query).await?;
            if !page.ids.is_empty() {
                records.extend(self.read(page.ids).await?);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(records),
            }
        }
    }
}

/// Makes edits.
pub(super) struct Editor {
    pub(super) records: Arc<dyn Records>,
    pub(super) clock: Arc<dyn Clock>,
    accounts: [AccountEdits; QUEUE_ACCOUNTS as usize],
    pub(super) known_gate: parking_lot::Mutex<KnownGate>,
}

/// The gate as last known to this process.
#[derive(Default)]
pub(super) struct KnownGate {
    pub(super) is_held: bool,
    /// How often this process has held or released it: a value that was read before the last change is outdated.
    pub(super) changes: u64,
}

/// The edits of one account in this process.
#[derive(Default)]
pub(super) struct AccountEdits {
    /// Held by the edit that is being made, so that edits of this process don't conflict.
    turn: Mutex<()>,
    pub(super) claims: Pending<ClaimRequest>,
    pub(super) ends: Pending<EndRequest>,
}

impl Editor {
    pub(super) fn new(records: Arc<dyn Records>, clock: Arc<dyn Clock>) -> Self {
        let accounts = std::array::from_fn(|_| AccountEdits::default());
        Self { records, clock, accounts, known_gate: parking_lot::Mutex::default() }
    }

    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.clock.now().seconds()).unwrap_or(0)
    }

    pub(super) fn reader(&self, account: AccountId) -> Reader<'_> {
        Reader { records: self.records.as_ref(), account, now: self.now() }
    }

    /// Makes an edit; `None` instead of a commit when it changed nothing.
    ///
    /// # Errors
    /// Those of the records; `Conflict` when other servers' commits came first too often; `Invalid` for an account outside of the
    /// queue.
    pub(super) async fn edit<E: Edit>(
        &self,
        account: AccountId,
        edit: &E,
    ) -> Result<(E::Plan, Option<Committed>), Error> {
        let _turn = self.turn(account).await?;
        self.edit_in_turn(account, edit).await
    }

    /// The edits of one account in this process.
    ///
    /// # Errors
    /// `Invalid` for one outside of the queue.
    pub(super) fn edits(&self, account: AccountId) -> Result<&AccountEdits, Error> {
        let number = QueueAccount::of_account(account).map(QueueAccount::number);
        let edits = number.and_then(|number| self.accounts.get(number));
        edits.ok_or_else(|| Error::invalid(format!("account {} is none of the queue", account.0)))
    }

    /// Waits until no other edit of this process is made in an account.
    ///
    /// # Errors
    /// As [`Editor::edits`].
    pub(super) async fn turn(&self, account: AccountId) -> Result<MutexGuard<'_, ()>, Error> {
        Ok(self.edits(account)?.turn.lock().await)
    }

    /// Makes an edit for a caller that has the lock of [`Editor::turn`].
    ///
    /// # Errors
    /// As [`Editor::edit`].
    pub(super) async fn edit_in_turn<E: Edit>(
        &self,
        account: AccountId,
        edit: &E,
    ) -> Result<(E::Plan, Option<Committed>), Error> {
        let mut tries = 0;
        loop {
            let state = self.state(account).await?;
            let (changes, plan) = edit.plan(&self.reader(account)).await?;
            if changes.is_empty() {
                return Ok((plan, None));
            }
            let commit = Commit::of(changes).if_in_state(queued::KIND, state);
            tries += 1;
            match self.records.commit(account, commit).await {
                Ok(committed) => return Ok((plan, Some(committed))),
                Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES_MAX => {}
                Err(error) => return Err(error.context("changing the queue")),
            }
        }
    }

    async fn state(&self, account: AccountId) -> Result<Revision, Error> {
        Ok(self.records.states(account).await?.of(queued::KIND))
    }
}
