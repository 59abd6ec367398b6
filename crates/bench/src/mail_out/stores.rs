//! The stores of a queue.

use std::{path::Path, sync::Arc};

use restante_core::SystemClock;
use restante_mail::queue::Queue;
use restante_records::Schema;

/// Records, blobs, and the queue in them. Cloning shares them.
#[derive(Clone)]
pub(super) struct Stores {
    pub(super) records: restante_records::Opened,
    pub(super) blobs: restante_blobs::Opened,
    pub(super) queue: Queue,
}

impl Stores {
    /// Opens the stores of a folder, new ones if there are none.
    pub(super) async fn open(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let kinds = restante_mail::kinds().into_iter().chain(restante_directory::kinds());
        let url = restante_records::EngineUrl::Lmdb(folder.join("records"));
        let config = restante_records::Config::new(url, Schema::new(kinds.collect())?);
        let records = restante_records::open(config).await?;
        let url = restante_blobs::EngineUrl::Files(folder.join("blobs"));
        let blobs = restante_blobs::open(restante_blobs::Config::new(url)).await?;
        let queue = Queue::new(records.records.clone(), Arc::new(SystemClock));
        Ok(Self { records, blobs, queue })
    }

    pub(super) async fn close(self) -> anyhow::Result<()> {
        self.records.upkeep.close().await?;
        self.blobs.upkeep.close().await?;
        Ok(())
    }
}
