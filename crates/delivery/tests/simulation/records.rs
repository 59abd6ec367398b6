//! Records that are slow, fail, and sometimes fail after they have committed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use async_trait::async_trait;
use restante_core::Error;
use restante_records::{
    AccountId, Changes, ChangesSince, Commit, Committed, Count, Get, Page, Query, Record, Records, States,
    Watch,
};
use tokio::time::sleep;

use crate::chance::Chance;

pub(crate) struct FlakyRecords {
    pub(crate) inner: Arc<dyn Records>,
    pub(crate) chance: Arc<Chance>,
    /// Whether anything goes wrong.
    pub(crate) is_flaky: Arc<AtomicBool>,
}

impl FlakyRecords {
    async fn read(&self) -> Result<(), Error> {
        if !self.is_flaky.load(Relaxed) {
            return Ok(());
        }
        if self.chance.percent(10) {
            sleep(self.chance.millis(30)).await;
        }
        if self.chance.below(1_000) < 4 {
            return Err(Error::unavailable("a simulated failure to read"));
        }
        Ok(())
    }
}

#[async_trait]
impl Records for FlakyRecords {
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        if !self.is_flaky.load(Relaxed) {
            return self.inner.commit(account, commit).await;
        }
        sleep(self.chance.millis(30)).await;
        if self.chance.percent(3) {
            return Err(Error::unavailable("a simulated failure before a commit"));
        }
        let committed = self.inner.commit(account, commit).await?;
        sleep(self.chance.millis(30)).await;
        if self.chance.percent(3) {
            return Err(Error::unavailable("a simulated failure after a commit"));
        }
        Ok(committed)
    }

    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        self.read().await?;
        self.inner.get(account, get).await
    }

    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        self.read().await?;
        self.inner.query(account, query).await
    }

    async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        self.read().await?;
        self.inner.count(account, query).await
    }

    async fn changes(&self, account: AccountId, since: &ChangesSince) -> Result<Changes, Error> {
        self.read().await?;
        self.inner.changes(account, since).await
    }

    async fn states(&self, account: AccountId) -> Result<States, Error> {
        self.read().await?;
        self.inner.states(account).await
    }

    fn watch(&self) -> Watch {
        self.inner.watch()
    }
}
