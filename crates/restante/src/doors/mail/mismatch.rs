//! Servers whose records and blobs don't belong together, or are both empty: usually because a disk is not mounted.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use restante_blobs::{Blobs, Put, Source};
use restante_core::{BlobId, Error};
use restante_directory::{Actor, Answer, Directory, EmailAddress, Operation, Resolution};
use restante_smtp::Recipients;
use tracing::warn;

use super::{
    records,
    tidying::{self, SweepError},
};
use crate::config::Config;

/// What is wrong with the stores.
#[derive(Clone)]
pub(crate) struct Mismatch {
    /// The error for operators.
    pub(crate) error: Arc<SweepError>,
    /// Whether the blobs that the records refer to are missing.
    pub(crate) blobs_are_missing: bool,
}

/// Verifies that blobs belong to the records, and restores blobs that a crash may have removed.
pub(crate) async fn find(
    config: &Config,
    records: &restante_records::Opened,
    blobs: &restante_blobs::Opened,
) -> anyhow::Result<Option<Mismatch>> {
    let settled = match tidying::check_records_last(config) {
        Ok(()) => tidying::settle_owner(&*records.upkeep, blobs).await,
        Err(error) => Err(error),
    };
    match settled {
        Ok(()) => records::put_blobs_again(records, blobs).await?,
        Err(error) if error.is_mismatch() => {
            let refer_to_some = tidying::refer_to_some(&*records.upkeep, &*blobs.blobs).await?;
            let blobs_are_missing = refer_to_some == Some(false);
            return Ok(Some(Mismatch { error: Arc::new(error), blobs_are_missing }));
        }
        Err(error) => {
            warn!(%error, "blobs are not swept");
            records::put_blobs_again(records, blobs).await?;
        }
    }
    Ok(None)
}

impl Mismatch {
    pub(crate) fn as_error(&self) -> Error {
        Error::unavailable(self.error.to_string())
    }
}

/// The blobs of a server where they are missing. Nothing is stored among the wrong ones, and work that needs a blob waits for the right
/// ones: otherwise an email that was read as one without a blob would never be indexed, and one in the queue never be sent.
pub(super) struct MissingBlobs(pub(super) Mismatch);

#[async_trait]
impl Blobs for MissingBlobs {
    async fn put(&self, _source: &mut dyn Source) -> Result<Put, Error> {
        Err(self.0.as_error())
    }

    async fn read(&self, _id: BlobId, _range: Range<u64>) -> Result<Box<dyn Source>, Error> {
        Err(self.0.as_error())
    }

    async fn size(&self, _id: BlobId) -> Result<Option<u64>, Error> {
        Err(self.0.as_error())
    }

    async fn touch(&self, _ids: &[BlobId]) -> Result<Vec<bool>, Error> {
        Err(self.0.as_error())
    }
}

/// The recipients of a server. Defers mail that would be refused permanently because the records are empty, or be stored while blobs
/// are missing. Records without a domain belong to a server that is not set up yet, or their disk is not mounted.
pub(super) struct Deferring {
    pub(super) directory: Directory,
    pub(super) mismatch: Option<Mismatch>,
}

#[async_trait]
impl Recipients for Deferring {
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        if let Some(mismatch) = self.mismatch.as_ref().filter(|mismatch| mismatch.blobs_are_missing) {
            return Err(mismatch.as_error());
        }
        let found = self.directory.resolve(address).await?;
        if found == Resolution::Foreign && self.has_no_domain().await? {
            let no_domain = || Error::unavailable("there is no domain: `restante domain add` makes one");
            return Err(self.mismatch.as_ref().map_or_else(no_domain, Mismatch::as_error));
        }
        Ok(found)
    }
}

impl Deferring {
    async fn has_no_domain(&self) -> Result<bool, Error> {
        let domains = Operation::Domains { after: None, limit: 1 };
        let answer = self.directory.operate(&Actor("the server".to_owned()), domains).await?;
        Ok(matches!(answer, Answer::Domains(page) if page.items.is_empty()))
    }
}
