//! Accounts that changed: forgets remembered passwords, and announces the accounts to doors.

use std::{sync::Arc, time::Duration};

use restante_core::ErrorKind;
use restante_records::{
    AccountId, CHANGES_MAX, Changed, Feed, FeedRequest, GET_RECORDS_MAX, Get, Record, RecordId, Revision,
    Watch,
};
use tokio::sync::broadcast;
use tracing::warn;

use crate::{
    Directory, Error,
    entry::AccountHead,
    remembered::{Known, RecordKey},
    schema::{ADDRESS, SHARDS, Shard},
    store::of_records,
};

/// The most announcements that wait for a slow door.
pub(crate) const WAITING_MAX: usize = 1_024;
/// How long to wait before records that failed are read again.
const RETRY: Duration = Duration::from_millis(250);

/// An account whose password, tokens, grants, state, role or quota changed, or that was removed after somebody had logged in to it on
/// this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountChange {
    /// This one.
    Account(AccountId),
    /// It is unknown which: any may have changed.
    Any,
}

/// Announces accounts that change, on any server.
pub struct AccountChanges(broadcast::Receiver<AccountChange>);

impl AccountChanges {
    /// The next account that changed; `None` when the directory is closed. A door that is slow gets [`AccountChange::Any`].
    pub async fn next(&mut self) -> Option<AccountChange> {
        match self.0.recv().await {
            Ok(change) => Some(change),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(AccountChange::Any),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl Directory {
    /// Announces accounts that change from now on. A door calls [`Directory::holds`] for each of the account's connections, and
    /// once when it has noted a new one, since the account may have changed while it logged in.
    pub fn changes(&self) -> AccountChanges {
        AccountChanges(self.0.changes.subscribe())
    }

    fn announce(&self, change: AccountChange) {
        let _ = self.0.changes.send(change); // fails when no door listens
    }
}

/// Reads what changes in the directory, on this server and others.
pub struct Follower {
    directory: Directory,
    feed: Arc<dyn Feed>,
    watch: Watch,
    /// The revision of each shard up to which changes were read.
    seen: Vec<Revision>,
}

impl Follower {
    pub(crate) async fn new(directory: Directory, feed: Arc<dyn Feed>) -> Result<Self, Error> {
        let watch = directory.store().watch();
        let mut seen = Vec::with_capacity(SHARDS);
        for shard in Shard::all() {
            seen.push(directory.store().revision(shard.account()).await?);
        }
        Ok(Self { directory, feed, watch, seen })
    }

    /// Follows until the records are closed.
    pub async fn run(mut self) {
        while let Some(announced) = self.watch.next().await {
            let shards: Vec<Shard> = match announced {
                Ok(commit) => Shard::of_account(commit.account).into_iter().collect(),
                Err(_) => Shard::all().collect(), // announcements were left out
            };
            for shard in shards {
                self.read_until_done(shard).await;
            }
        }
    }

    /// Reads what is new in a shard, and retries when the records fail. No password is remembered meanwhile.
    async fn read_until_done(&mut self, shard: Shard) {
        let mut has_failed = false;
        while let Err(error) = self.read(shard).await {
            if !has_failed {
                warn!(%error, "the directory can't be followed: all passwords are checked meanwhile");
            }
            has_failed = true;
            self.directory.0.remembered.forget_all();
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Reads what is new in a shard.
    async fn read(&mut self, shard: Shard) -> Result<(), Error> {
        let Some(seen) = self.seen.get_mut(usize::from(shard.number())) else { return Ok(()) };
        loop {
            // Unlike a client, a follower also gets what was created and destroyed since.
            let request = FeedRequest { since: *seen, began: *seen, limit: CHANGES_MAX };
            let changes = match self.feed.follow(shard.account(), &request).await {
                Ok(changes) => changes,
                // The history was removed, or the records were restored to an earlier state.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => {
                    *seen = self.directory.store().revision(shard.account()).await?;
                    self.directory.0.remembered.forget_all();
                    self.directory.announce(AccountChange::Any);
                    return Ok(());
                }
                Err(error) => return Err(of_records(error)),
            };
            // A record that was created since may also have changed since, and its user may have logged in between.
            let changed: Vec<RecordId> =
                addresses(&changes.created).chain(addresses(&changes.updated)).collect();
            self.directory.forget_older(shard, changed).await?;
            for id in addresses(&changes.destroyed) {
                self.directory.forget((shard, id), None);
            }
            *seen = changes.revision;
            if !changes.has_more {
                return Ok(());
            }
        }
    }
}

impl Directory {
    /// Forgets the log-ins that are older than the last change of these records.
    pub(crate) async fn forget_older(&self, shard: Shard, ids: Vec<RecordId>) -> Result<(), Error> {
        for ids in ids.chunks(GET_RECORDS_MAX) {
            let records = self.store().get(shard.account(), &Get::small(ADDRESS, ids.to_vec())).await?;
            for (id, record) in ids.iter().zip(records) {
                self.forget((shard, *id), record);
            }
        }
        Ok(())
    }

    /// `newest` is the current record.
    fn forget(&self, key: RecordKey, newest: Option<Record>) {
        match self.0.remembered.forget(key, newest.as_ref().map(|record| record.revision)) {
            Known::Account(account) => self.announce(AccountChange::Account(account)),
            Known::Anybody => self.announce(AccountChange::Any),
            // Nobody has logged in to it here, but a user with a grant may receive its quota.
            Known::Nobody => {
                let head = newest.and_then(|record| AccountHead::read(&record.properties).ok().flatten());
                head.into_iter().for_each(|head| self.announce(AccountChange::Account(head.account)));
            }
        }
    }
}

/// The addresses among records that changed.
fn addresses(changed: &[Changed]) -> impl Iterator<Item = RecordId> {
    changed.iter().filter(|changed| changed.kind == ADDRESS).map(|changed| changed.id)
}
