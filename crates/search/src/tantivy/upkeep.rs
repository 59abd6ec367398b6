//! The interface for operators.

use std::{fs, io, path::Path};

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::{Engine, Handle, files, join_error, query, run_blocking};
use crate::{Error, Report, Stats, Upkeep};

#[async_trait]
impl Upkeep for Handle {
    fn health(&self) -> Result<(), Error> {
        self.engine.check_open()?;
        match &*self.engine.failure.lock() {
            Some(failure) => Err(failure.duplicate()),
            None => Ok(()),
        }
    }

    async fn stats(&self) -> Result<Stats, Error> {
        let open = self.engine.open_index()?;
        let folder = self.engine.folder.clone();
        let uncommitted = self.engine.writer.lock().await.uncommitted();
        let read = move || {
            let searcher = open.reader.searcher();
            let documents =
                query::documents(&searcher).map_err(|error| files::engine_error("read", &error))?;
            let disk_bytes =
                disk_bytes(&folder).map_err(|error| Error::io("read", folder.display(), error))?;
            let segments = searcher.segment_readers().len() as u64;
            Ok(Stats { documents: documents as u64, uncommitted: uncommitted as u64, segments, disk_bytes })
        };
        run_blocking(read).await.map_err(join_error)?
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        let open = self.engine.open_index()?;
        let (sender, mut receiver) = mpsc::channel(16);
        let verify = move || {
            files::verify(&open.index, &|done, total| {
                let _ = sender.try_send((done, total)); // a slow caller misses some
            })
        };
        let verified = tokio::spawn(run_blocking(verify));
        while let Some((done, total)) = receiver.recv().await {
            progress(done, total);
        }
        verified.await.map_err(join_error)?.map_err(join_error)?
    }

    async fn clear(&self) -> Result<(), Error> {
        self.engine.with_writer(Engine::clear).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.engine.with_writer(Engine::close).await
    }
}

/// The bytes of the files in a folder and its subfolders.
fn disk_bytes(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Merges may remove files at any time.
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes += disk_bytes(&entry.path())?,
            Ok(metadata) => bytes += metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}
