//! Records with hooks that run while they are used, for tests (feature `testing`).

use std::sync::Arc;

use crate::{
    AccountId, Changes, ChangesSince, Commit, Committed, Count, Error, Get, Page, Query, Record, Records,
    States, Watch,
};
use async_trait::async_trait;

/// What happens before a read or a commit. By default, each method does nothing.
#[async_trait]
pub trait Hook: Send + Sync + 'static {
    /// Before records are read by id, queried or counted. If this returns an error, nothing is read.
    async fn before_read(&self, _account: AccountId) -> Result<(), Error> {
        Ok(())
    }

    /// Before a query.
    async fn before_query(&self, _records: &dyn Records, _account: AccountId, _query: &Query) {}

    /// Before states are read.
    async fn before_states(&self, _records: &dyn Records, _account: AccountId) {}

    /// Before records are read by id. If this returns an error, nothing is read.
    fn before_get(&self, _get: &Get) -> Result<(), Error> {
        Ok(())
    }

    /// If this returns changes, they replace those of the records.
    fn changes_instead(&self, _since: &ChangesSince) -> Option<Changes> {
        None
    }

    /// Before a commit. If this returns an error, nothing is committed.
    async fn before_commit(&self, _commit: &Commit) -> Result<(), Error> {
        Ok(())
    }
}

/// Records with a hook.
pub struct Hooked<H> {
    /// The records.
    pub inner: Arc<dyn Records>,
    /// The hook.
    pub hook: H,
}

#[async_trait]
impl<H: Hook> Records for Hooked<H> {
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        self.hook.before_commit(&commit).await?;
        self.inner.commit(account, commit).await
    }

    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        self.hook.before_read(account).await?;
        self.hook.before_get(get)?;
        self.inner.get(account, get).await
    }

    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        self.hook.before_read(account).await?;
        self.hook.before_query(self.inner.as_ref(), account, query).await;
        self.inner.query(account, query).await
    }

    async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        self.hook.before_read(account).await?;
        self.inner.count(account, query).await
    }

    async fn changes(&self, account: AccountId, since: &ChangesSince) -> Result<Changes, Error> {
        match self.hook.changes_instead(since) {
            Some(changes) => Ok(changes),
            None => self.inner.changes(account, since).await,
        }
    }

    async fn states(&self, account: AccountId) -> Result<States, Error> {
        self.hook.before_states(self.inner.as_ref(), account).await;
        self.inner.states(account).await
    }

    fn watch(&self) -> Watch {
        self.inner.watch()
    }
}
