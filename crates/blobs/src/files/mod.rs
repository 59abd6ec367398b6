//! Files: packs of short blobs, a file for each longer one, and an index of where they are.
//!
//! `docs/design/blobs.md` has the reasons, `docs/formats/blobs.md` the formats.

mod append;
mod backup;
mod check;
mod index;
mod owner;
mod queue;
mod read;
mod receive;
mod recover;
mod remove;
mod rewrite;
mod scan;
mod schema;
mod shared;
mod sums;
#[cfg(test)]
mod tests;
mod uploads;
mod write;

use std::{collections::BTreeSet, ops::Range, path::Path, sync::Arc};

use async_trait::async_trait;
use restante_core::{BlobId, ErrorKind, Identity, Timestamp};
use restante_disk::{Disk, Folder};
use tracing::{error, warn};

use self::{
    append::Appender,
    index::Index,
    queue::{Answered, Queue},
    receive::Received,
    rewrite::Rewrites,
    schema::{BLOB_BYTES_LIMIT, FILES, INCOMING, INDEX, LOCK, PACKED_BYTES_LIMIT, PACKS},
    shared::Shared,
    write::Writer,
};
use crate::{
    Blobs, Config, Error, Listed, Opened, Put, PutHook, Report, Source, Stats, Upkeep,
    error::is_damaged_index,
    limits::{check_limit, check_touch},
};

pub(crate) async fn open(folder: &Path, config: Config) -> Result<Opened, Error> {
    let folder = folder.to_owned();
    blocking(move || {
        restante_disk::create_folder(&folder)?;
        open_on(Arc::new(Folder::new(&folder)), &config)
    })
    .await
}

/// Opens the store in an existing folder.
fn open_on(disk: Arc<dyn Disk>, config: &Config) -> Result<Opened, Error> {
    let files = Arc::new(FilesEngine::open(disk, config)?);
    Ok(Opened { blobs: files.clone(), upkeep: files })
}

impl FilesEngine {
    fn open(disk: Arc<dyn Disk>, config: &Config) -> Result<Self, Error> {
        check_settings(config)?;
        let what = format!("the blob store {}", disk.path("").display());
        let lock = restante_disk::hold(&disk.path(LOCK), &what, "stop it first")?;
        make_folders(&*disk)?;
        let (shared, appender, changed) = match read_store(&disk, config) {
            Err(error) if is_damaged_index(&error) => {
                rename_damaged_index(&*disk, &error)?;
                read_store(&disk, config)?
            }
            read => read?,
        };
        *shared.lock.lock() = Some(lock);
        let (queue, jobs) = Queue::new(&config.metrics);
        let writer = Writer {
            shared: shared.clone(),
            appender,
            rewrites: Rewrites::default(),
            changed,
            has_unsynced: false,
            latest: Timestamp::default(),
        };
        let started = std::thread::Builder::new().name("blobs".into()).spawn(move || writer.run(jobs));
        started.map_err(|error| Error::io("start", "the writer of the blobs", error))?;
        Ok(Self { shared, queue })
    }
}

/// Opens the index and updates it from packs and files. Returns the packs whose rows are still to be written.
fn read_store(
    disk: &Arc<dyn Disk>,
    config: &Config,
) -> Result<(Arc<Shared>, Appender, BTreeSet<u64>), Error> {
    let index = Index::open(disk.clone(), config.metrics.index.clone())?;
    disk.sync_folder("").map_err(|error| Error::io("sync", "the folder of the blobs", error))?;
    let shared = Arc::new(Shared::new(disk.clone(), index, config));
    let (appender, changed) = recover::recover(&shared)?;
    Ok((shared, appender, changed))
}

/// Renames a damaged index, so that a new one is built from packs and files.
fn rename_damaged_index(disk: &dyn Disk, error: &Error) -> Result<(), Error> {
    let aside = (1..).map(|number: u64| format!("{INDEX}.damaged-{number}"));
    let Some(aside) = aside.into_iter().find(|name| !disk.path(name).exists()) else { return Ok(()) };
    error!(%error, aside, "the index of the blobs is damaged: it is renamed and rebuilt; all blobs count as put now");
    let renamed = disk.rename(INDEX, &aside).and_then(|()| disk.sync_folder(""));
    renamed.map_err(|error| Error::io("rename", INDEX, error))
}

fn check_settings(config: &Config) -> Result<(), Error> {
    let bounds = [
        ("the longest blob of a pack", config.files.packed_bytes_max, PACKED_BYTES_LIMIT),
        ("the longest blob", config.blob_bytes_max.get(), BLOB_BYTES_LIMIT),
    ];
    for (what, bytes, bytes_max) in bounds {
        if bytes > bytes_max {
            return Err(Error::invalid(format!(
                "{what} is set to {bytes} bytes: set it to {bytes_max} at most"
            )));
        }
    }
    Ok(())
}

/// Creates the folders of the store, and removes unfinished uploads.
fn make_folders(disk: &dyn Disk) -> Result<(), Error> {
    for folder in [PACKS, FILES, INCOMING] {
        disk.create_folder(folder).map_err(|error| Error::io("create", folder, error))?;
    }
    let left = recover::names(&disk.path(INCOMING)).map_err(|error| Error::io("list", INCOMING, error))?;
    for name in left {
        let name = format!("{INCOMING}/{name}");
        disk.remove(&name).map_err(|error| Error::io("remove", &name, error))?;
    }
    Ok(())
}

/// Runs work on files on the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::internal("work on blobs ended early").with_source(error))?
}

/// The engine.
struct FilesEngine {
    shared: Arc<Shared>,
    queue: Queue,
}

impl FilesEngine {
    async fn receive(&self, source: &mut dyn Source) -> Result<Received, Error> {
        self.shared.check_writable()?;
        let received = receive::receive(&self.shared, &self.queue, source).await;
        received.inspect_err(|error| {
            if error.kind() == ErrorKind::Full {
                self.shared.note(Some(error));
            }
        })
    }
}

#[async_trait]
impl Blobs for FilesEngine {
    async fn put(&self, source: &mut dyn Source) -> Result<Put, Error> {
        let received = self.receive(source).await?;
        self.queue.put(received).await
    }

    async fn put_then(&self, source: &mut dyn Source, done: PutHook) -> Result<(), Error> {
        let received = self.receive(source).await?;
        self.queue.put_then(received, Answered::WhenDurable, done).await
    }

    async fn put_unsynced(&self, source: &mut dyn Source, done: PutHook) -> Result<(), Error> {
        let received = self.receive(source).await?;
        self.queue.put_then(received, Answered::WhenWritten, done).await
    }

    async fn sync(&self) -> Result<(), Error> {
        self.queue.sync().await
    }

    async fn read(&self, id: BlobId, range: Range<u64>) -> Result<Box<dyn Source>, Error> {
        if let Some(source) = read::cached(&self.shared, id, &range) {
            return Ok(source);
        }
        let shared = self.shared.clone();
        blocking(move || read::open(&shared, id, range)).await
    }

    async fn size(&self, id: BlobId) -> Result<Option<u64>, Error> {
        Ok(self.shared.find(id)?.map(|entry| entry.bytes))
    }

    async fn touch(&self, ids: &[BlobId]) -> Result<Vec<bool>, Error> {
        check_touch(ids.len())?;
        self.shared.check_writable()?;
        self.queue.touch(ids.to_vec()).await
    }
}

#[async_trait]
impl Upkeep for FilesEngine {
    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<Listed>, Error> {
        check_limit(limit)?;
        let flushed = self.queue.flush_index().await;
        let shared = self.shared.clone();
        let page = blocking(move || match flushed {
            Ok(()) => shared.index()?.page(after, limit),
            Err(error) if error.kind() == ErrorKind::Full => shared.page(after, limit),
            Err(error) => Err(error),
        });
        let page = page.await?;
        Ok(page.iter().map(|(id, entry)| entry.listed(*id)).collect())
    }

    async fn remove(&self, ids: &[BlobId], put_before: Timestamp) -> Result<u64, Error> {
        self.queue.remove(ids.to_vec(), put_before).await
    }

    async fn owner(&self) -> Result<Option<Identity>, Error> {
        self.shared.check_open()?;
        let shared = self.shared.clone();
        blocking(move || owner::read(&*shared.disk)).await
    }

    async fn set_owner(&self, owner: Identity) -> Result<(), Error> {
        self.shared.check_open()?;
        let permit = self.queue.maintenance_permit().await?;
        self.shared.check_open()?; // after a close the folder may belong to another process
        let shared = self.shared.clone();
        blocking(move || {
            let _permit = permit; // held until it is written: excludes backups and other removals
            owner::write(&*shared.disk, owner)
        })
        .await
    }

    async fn stats(&self) -> Result<Stats, Error> {
        let index_bytes = self.shared.index()?.disk_bytes()?;
        let ledger = self.shared.ledger.lock();
        let (blobs, bytes) = ledger.totals();
        let pack_bytes = ledger.pack_bytes();
        let live_bytes = ledger.packs.values().map(|pack| pack.live_bytes).sum();
        let engine = [
            ("packs", ledger.packs.len() as u64),
            ("pack_bytes", pack_bytes),
            ("pack_live_bytes", live_bytes),
            ("files", ledger.files.blobs),
            ("file_bytes", ledger.files.bytes),
            ("index_bytes", index_bytes),
        ];
        let engine = engine.map(|(name, figure)| (name.to_owned(), figure)).into();
        Ok(Stats { blobs, bytes, disk_bytes: pack_bytes + ledger.files.bytes + index_bytes, engine })
    }

    fn health(&self) -> Result<(), Error> {
        self.shared.health()
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        match self.queue.flush_index().await {
            Err(error) if error.kind() != ErrorKind::Full => return Err(error),
            _ => check::check(&self.shared, progress),
        }
    }

    async fn backup(&self, folder: &Path) -> Result<(), Error> {
        let permit = self.queue.maintenance_permit().await?;
        self.queue.flush_index().await?;
        let (shared, folder) = (self.shared.clone(), folder.to_owned());
        let copied = blocking(move || {
            let _permit = permit; // held until the copy ends, even if the caller is cancelled
            backup::check_folder(&folder)?;
            backup::copy(&shared, &folder)
        });
        copied.await?.close().await
    }

    async fn close(&self) -> Result<(), Error> {
        if self.shared.start_closing() {
            return Ok(());
        }
        let flushed = self.queue.close().await;
        if let Some(index) = self.shared.release() {
            index.close().await?;
        }
        drop(self.shared.lock.lock().take());
        match flushed {
            Err(error) if error.kind() == ErrorKind::Full => {
                warn!(%error, "the store is closed on a full disk: its index is brought up to date when it is opened again");
                Ok(())
            }
            flushed => flushed,
        }
    }
}
