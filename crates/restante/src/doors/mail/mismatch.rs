//! A server whose records and blobs don't belong together ([`SweepError::is_mismatch`]).

use std::sync::Arc;

use async_trait::async_trait;
use restante_core::Error;
use restante_directory::{Actor, Answer, Directory, EmailAddress, Operation, Resolution};
use restante_smtp::Recipients;

use super::tidying::SweepError;

/// The recipients of such a server. Mail is deferred that would be refused for good because the records are empty, or would be stored where
/// blobs are missing.
pub(super) struct Deferring {
    pub(super) directory: Directory,
    pub(super) mismatch: Arc<SweepError>,
}

#[async_trait]
impl Recipients for Deferring {
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        if matches!(*self.mismatch, SweepError::NoBlobs) || self.has_no_domain().await? {
            return Err(Error::unavailable(self.mismatch.to_string()));
        }
        self.directory.resolve(address).await
    }
}

impl Deferring {
    async fn has_no_domain(&self) -> Result<bool, Error> {
        let domains = Operation::Domains { after: None, limit: 1 };
        let answer = self.directory.operate(&Actor("the server".to_owned()), domains).await?;
        Ok(matches!(answer, Answer::Domains(page) if page.items.is_empty()))
    }
}
