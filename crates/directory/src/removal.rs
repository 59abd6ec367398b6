//! Removing accounts.
//!
//! The record of the address is destroyed in the commit that notes the removed account: from then on nobody logs in and no mail
//! is accepted. Everything else can be repeated, so a crash before the end loses nothing: the note stays until
//! [`Directory::forget_removed`].

use restante_core::ErrorKind;
use restante_records::{AccountId, Change, Commit, Properties, Query, Record};
use serde::{Deserialize, Serialize};

use crate::{
    Actor, Directory, EmailAddress, Error, Page,
    accounts::no_account,
    entry::{self, AddressEntry},
    schema::{NUMBER, NUMBER_BY_ACCOUNT, REMOVED, REMOVED_ACCOUNT, REMOVED_BY_ACCOUNT, Shard, number_name},
    store::{Entry, Plan, Step},
};

/// An account that was removed; other stores may still have data of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedAccount {
    /// Its number, which is never assigned to another account.
    pub account: AccountId,
    /// The address that it had. Another account may have it now.
    pub address: EmailAddress,
    /// When it was removed, in seconds since 1970.
    pub removed: i64,
}

/// The body of its record.
#[derive(Serialize, Deserialize)]
struct RemovedBody {
    account: u32,
    address: EmailAddress,
    removed: i64,
}

impl RemovedAccount {
    fn read(record: &Record) -> Result<Self, Error> {
        let RemovedBody { account, address, removed } = entry::decode(record, "removed account")?;
        Ok(Self { account: AccountId(account), address, removed })
    }

    fn create(&self) -> Result<Change, Error> {
        let Self { account, address, removed } = self;
        let body = RemovedBody { account: account.0, address: address.clone(), removed: *removed };
        let properties = Properties::default().with(REMOVED_ACCOUNT, u64::from(account.0));
        Ok(Change::Create { kind: REMOVED, body: entry::encode(&body)?, properties })
    }

    /// The shard that has its record.
    fn shard(&self) -> Shard {
        AddressEntry::shard(&self.address)
    }
}

impl Directory {
    /// Removes an account, and the grants that concern it. Its number is never assigned again.
    pub(crate) async fn remove_account(&self, actor: &Actor, address: &EmailAddress) -> Result<(), Error> {
        let now = self.store().now().seconds();
        let removed = self
            .store()
            .change::<AddressEntry, RemovedAccount>(actor, address, |there| {
                let Some(AddressEntry::Account(entry)) = there else { return Err(no_account(address)) };
                let account = entry.head.account;
                let removed = RemovedAccount { account, address: address.clone(), removed: now };
                Ok(Plan {
                    step: Step::DestroyFor(removed.create()?),
                    log: format!("removed account {address} with number {}", account.0),
                    answer: removed,
                })
            })
            .await?;
        self.clear_removed(actor, &removed).await
    }

    /// Removes the rest of a removed account from the directory. It may be repeated.
    async fn clear_removed(&self, actor: &Actor, removed: &RemovedAccount) -> Result<(), Error> {
        let RemovedAccount { account, address, .. } = removed;
        for (user, _) in self.users_of(*account).await? {
            let revoked = self.change_account(actor, &user, |entry| {
                entry.body.grants.retain(|grant| grant.owner != account.0);
                Ok((format!("revoked what {user} could do with {address}, which was removed"), ()))
            });
            match revoked.await {
                Err(error) if error.kind() == ErrorKind::NotFound => {} // removed at the same time
                revoked => revoked?,
            }
        }
        let shard = Shard::of(&number_name(*account)).account();
        let query = Query::new(NUMBER, NUMBER_BY_ACCOUNT).equals(u64::from(account.0));
        if let (Some(record), _) = self.store().first(shard, query, false).await? {
            let commit = Commit::of([Change::Destroy { kind: NUMBER, id: record.id }]);
            self.store().commit(shard, commit).await?;
        }
        Ok(())
    }

    /// One page of the accounts that were removed and not yet forgotten. A store with data of accounts erases it,
    /// and calls [`Directory::forget_removed`] when no more data of them can arrive.
    ///
    /// # Errors
    /// Those of the records; `Invalid` for an `after` that is not a [`Page::next`].
    pub async fn removed_accounts(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<RemovedAccount>, Error> {
        let query = Query::new(REMOVED, REMOVED_BY_ACCOUNT);
        let (rows, next) = self.store().page(&query, after, limit).await?;
        let items = rows.iter().map(|(_, record)| RemovedAccount::read(record)).collect::<Result<_, _>>()?;
        Ok(Page { items, next })
    }

    /// Forgets a removed account; no store may have data of it any more. It may be repeated.
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn forget_removed(&self, actor: &Actor, removed: &RemovedAccount) -> Result<(), Error> {
        self.clear_removed(actor, removed).await?;
        let shard = removed.shard().account();
        let query = Query::new(REMOVED, REMOVED_BY_ACCOUNT).equals(u64::from(removed.account.0));
        let (Some(record), _) = self.store().first(shard, query, false).await? else { return Ok(()) };
        match self.store().commit(shard, Commit::of([Change::Destroy { kind: REMOVED, id: record.id }])).await
        {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()), // another server was first
            forgotten => forgotten.map(|_| ()),
        }
    }

    /// Adds a line to the log of operations, for what operators do with an account in other stores.
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn note(&self, actor: &Actor, address: &EmailAddress, what: String) -> Result<(), Error> {
        self.store().note(AddressEntry::shard(address), actor, what).await
    }
}
