//! The reference model.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use restante_core::{ErrorKind, Timestamp};

use crate::{
    AccountId, Changes, ChangesSince, Checkpoint, Cleaned, Commit, Committed, Config, Dumped, Error, Feed, Get, Opened,
    Page, Place, Position, Query, Record, Records, Referenced, Report, States, Stats, Touched, Upkeep, Watch,
    watch::Announcer,
};

pub(crate) fn open(_config: &Config) -> Opened {
    let model = Arc::new(Model { announcer: Announcer::new() });
    Opened { records: model.clone(), feed: model.clone(), upkeep: model }
}

struct Model {
    announcer: Announcer,
}

fn later<T>() -> Result<T, Error> {
    Err(Error::new(ErrorKind::Internal, "the engine is in the making"))
}

#[async_trait]
impl Records for Model {
    async fn commit(&self, _: AccountId, _: Commit) -> Result<Committed, Error> {
        later()
    }

    async fn get(&self, _: AccountId, _: &Get) -> Result<Vec<Option<Record>>, Error> {
        later()
    }

    async fn query(&self, _: AccountId, _: &Query) -> Result<Page, Error> {
        later()
    }

    async fn changes(&self, _: AccountId, _: &ChangesSince) -> Result<Changes, Error> {
        later()
    }

    async fn states(&self, _: AccountId) -> Result<States, Error> {
        later()
    }

    fn watch(&self) -> Watch {
        self.announcer.watch()
    }
}

#[async_trait]
impl Feed for Model {
    async fn touched(&self, _: Position, _: usize) -> Result<Vec<Touched>, Error> {
        later()
    }

    async fn position(&self) -> Result<Position, Error> {
        later()
    }

    async fn checkpoint(&self, _: &str, _: &[AccountId]) -> Result<Checkpoint, Error> {
        later()
    }

    async fn save(&self, _: &str, _: &Checkpoint) -> Result<(), Error> {
        later()
    }

    async fn forget(&self, _: &str) -> Result<(), Error> {
        later()
    }

    async fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        later()
    }
}

#[async_trait]
impl Upkeep for Model {
    async fn stats(&self) -> Result<Stats, Error> {
        later()
    }

    fn health(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn check(&self, _: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        later()
    }

    async fn clean(&self, _: Timestamp, _: usize) -> Result<Cleaned, Error> {
        later()
    }

    async fn dump(&self, _: Option<Place>, _: usize) -> Result<Vec<Dumped>, Error> {
        later()
    }

    async fn referenced(&self, _: Option<u64>) -> Result<Referenced, Error> {
        later()
    }

    async fn backup(&self, _: &Path) -> Result<(), Error> {
        later()
    }

    async fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}
