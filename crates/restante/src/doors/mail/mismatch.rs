//! Records and blobs that don't belong together: mostly the disk of one of them is not mounted, and an empty place was opened.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use restante_core::Error;
use restante_directory::{Actor, Answer, Directory, EmailAddress, Operation, Resolution};
use restante_smtp::Recipients;

use super::tidying::SweepError;

/// What is wrong.
#[derive(Debug)]
pub(crate) struct Mismatch(SweepError);

impl Mismatch {
    /// The mismatch that an error is, if it is one.
    pub(super) fn of(error: SweepError) -> Result<Self, SweepError> {
        match error {
            SweepError::NoBlobs | SweepError::WrongRecords | SweepError::OtherRecords { .. } => {
                Ok(Self(error))
            }
            SweepError::RecordsInMemory | SweepError::Failed(_) => Err(error),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The recipients of such a server. Mail is deferred that would be refused for good because the records are empty, or would be stored where
/// blobs are missing.
pub(super) struct Deferring {
    pub(super) directory: Directory,
    pub(super) mismatch: Arc<Mismatch>,
}

#[async_trait]
impl Recipients for Deferring {
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        if matches!(self.mismatch.0, SweepError::NoBlobs) || self.has_no_domain().await? {
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
