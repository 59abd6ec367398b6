//! In memory.

use std::{ops::Range, path::Path, sync::Arc};

use async_trait::async_trait;
use restante_core::{BlobId, ErrorKind, Timestamp};

use crate::{Blobs, Config, Error, Listed, Opened, Put, Report, Source, Stats, Upkeep};

pub(crate) fn open(_config: &Config) -> Opened {
    let memory = Arc::new(Memory);
    Opened { blobs: memory.clone(), upkeep: memory }
}

struct Memory;

fn later<T>() -> Result<T, Error> {
    Err(Error::new(ErrorKind::Internal, "the engine is in the making"))
}

#[async_trait]
impl Blobs for Memory {
    async fn put(&self, _: &mut dyn Source) -> Result<Put, Error> {
        later()
    }

    async fn read(&self, _: BlobId, _: Range<u64>) -> Result<Box<dyn Source>, Error> {
        later()
    }

    async fn size(&self, _: BlobId) -> Result<Option<u64>, Error> {
        later()
    }
}

#[async_trait]
impl Upkeep for Memory {
    async fn list(&self, _: Option<BlobId>, _: usize) -> Result<Vec<Listed>, Error> {
        later()
    }

    async fn remove(&self, _: &[BlobId], _: Timestamp) -> Result<u64, Error> {
        later()
    }

    async fn stats(&self) -> Result<Stats, Error> {
        later()
    }

    fn health(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn check(&self, _: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        later()
    }

    async fn backup(&self, _: &Path) -> Result<(), Error> {
        later()
    }

    async fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}
