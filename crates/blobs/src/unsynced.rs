//! An adapter for records, which make short blobs durable with their own commits.

use std::sync::Arc;

use futures_util::future::try_join_all;
use restante_core::{UnsyncedBlob, UnsyncedBlobs};
use tokio::runtime::Handle;

use crate::{Blobs, Error};

/// The adapter for the configuration of records. It must be called within an async runtime.
pub fn unsynced(blobs: Arc<dyn Blobs>) -> Arc<dyn UnsyncedBlobs> {
    Arc::new(Blocking { blobs, runtime: Handle::current() })
}

struct Blocking {
    blobs: Arc<dyn Blobs>,
    runtime: Handle,
}

impl UnsyncedBlobs for Blocking {
    fn sync(&self) -> Result<(), Error> {
        self.runtime.block_on(self.blobs.sync())
    }

    fn put_again(&self, blobs: Vec<UnsyncedBlob>) -> Result<(), Error> {
        let put = |blob: UnsyncedBlob| async move {
            let mut bytes = blob.bytes;
            let put = self.blobs.put(&mut bytes).await?;
            match put.id == blob.id {
                true => Ok(()),
                false => {
                    Err(Error::corrupt(format!("the bytes of blob {} are those of {}", blob.id, put.id)))
                }
            }
        };
        self.runtime.block_on(try_join_all(blobs.into_iter().map(put))).map(drop)
    }
}
