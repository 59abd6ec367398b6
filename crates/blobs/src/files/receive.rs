//! Receiving a blob: its bytes are hashed as they arrive, and a blob too long for a pack is written to a file at once.

use std::sync::{Arc, atomic::Ordering};

use bytes::{Bytes, BytesMut};
use restante_core::{BlobId, ErrorKind};
use restante_disk::{Disk, DiskFile};
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

use super::{
    blocking, index::Entry, queue::Queue, read, schema::INCOMING, shared::Shared, sums::Sums,
    uploads::UploadSlot,
};
use crate::{Error, Source, hash::id_of, limits::check_length};

/// Blobs up to this length are hashed where they are put: that takes at most 40 us, less than a change of threads.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// A blob with all its bytes, before it is stored.
pub(super) struct Received {
    pub(super) id: BlobId,
    pub(super) bytes: u64,
    pub(super) content: Content,
}

impl Received {
    /// The bytes that it has in memory.
    pub(super) fn held_bytes(&self) -> usize {
        match &self.content {
            Content::Packed { bytes, .. } => bytes.len(),
            Content::File { sums, .. } => sums.len(),
        }
    }
}

/// Where the bytes of a received blob are.
pub(super) enum Content {
    /// In memory, for a pack.
    Packed {
        bytes: Bytes,
        /// The existing copy, if that is damaged.
        damaged: Option<Entry>,
    },
    /// In a synced file, to be renamed; and the checksums of its parts.
    File { file: Incoming, sums: Vec<u8> },
}

/// Reads a source, with at most the longest blob for a pack and one chunk in memory.
pub(super) async fn receive(
    shared: &Arc<Shared>,
    queue: &Queue,
    source: &mut dyn Source,
) -> Result<Received, Error> {
    let mut gathered = BytesMut::new();
    let mut total = 0;
    while let Some(chunk) = source.next().await? {
        total += chunk.len() as u64;
        check_length(total, shared.blob_bytes_max)?;
        if total > shared.settings.packed_bytes_max {
            let slot = queue.upload_slots.take().await?;
            return receive_file(shared, source, slot, gathered.freeze(), chunk).await;
        }
        gathered.extend_from_slice(&chunk);
    }
    receive_packed(shared.clone(), gathered.freeze()).await
}

/// Hashes a short blob, and looks up whether it exists. A damaged copy does not count: an acknowledged blob can be read.
async fn receive_packed(shared: Arc<Shared>, bytes: Bytes) -> Result<Received, Error> {
    if bytes.len() > INLINE_BYTES_MAX {
        return blocking(move || hashed(&shared, bytes, id_of)).await;
    }
    let id = id_of(&bytes);
    if shared.find(id)?.is_some() {
        return blocking(move || hashed(&shared, bytes, |_| id)).await; // reads the copy that exists
    }
    Ok(Received { id, bytes: bytes.len() as u64, content: Content::Packed { bytes, damaged: None } })
}

fn hashed(shared: &Shared, bytes: Bytes, hash: impl FnOnce(&[u8]) -> BlobId) -> Result<Received, Error> {
    let id = hash(&bytes);
    let damaged = read::damaged(shared, id)?;
    Ok(Received { id, bytes: bytes.len() as u64, content: Content::Packed { bytes, damaged } })
}

async fn receive_file(
    shared: &Arc<Shared>,
    source: &mut dyn Source,
    mut slot: UploadSlot,
    gathered: Bytes,
    chunk: Bytes,
) -> Result<Received, Error> {
    let number = shared.incoming.fetch_add(1, Ordering::Relaxed);
    let name = format!("{INCOMING}/{number:08}");
    let disk = shared.disk.clone();
    let file = blocking(move || PartialFile::create(disk, name)?.add(&gathered)?.add(&chunk)).await?;
    let mut upload = FileUpload(Some(file));
    while let Some(chunk) = upload.next(&mut slot, source, shared.blob_bytes_max).await? {
        upload.change(move |file| file.add(&chunk)).await?;
    }
    let file = upload.take()?;
    blocking(move || file.finish()).await
}

/// A file that is being received. If receiving fails or is cancelled, it is removed on the blocking pool: removing a long file
/// takes time.
struct FileUpload(Option<PartialFile>);

impl FileUpload {
    /// Reads the next chunk. After an error the file is removed.
    async fn next(
        &mut self,
        slot: &mut UploadSlot,
        source: &mut dyn Source,
        bytes_max: u64,
    ) -> Result<Option<Bytes>, Error> {
        let next = slot.next(source).await.and_then(|chunk| {
            let len = self.0.as_ref().map_or(0, |file| file.len);
            check_length(len + chunk.as_ref().map_or(0, Bytes::len) as u64, bytes_max)?;
            Ok(chunk)
        });
        if next.is_err() {
            let file = self.0.take();
            let remove = move || {
                drop(file);
                Ok(())
            };
            let _ = blocking(remove).await; // if this fails, opening the store removes it
        }
        next
    }

    async fn change(
        &mut self,
        work: impl FnOnce(PartialFile) -> Result<PartialFile, Error> + Send + 'static,
    ) -> Result<(), Error> {
        let file = self.take()?;
        self.0 = Some(blocking(move || work(file)).await?);
        Ok(())
    }

    fn take(&mut self) -> Result<PartialFile, Error> {
        self.0.take().ok_or_else(|| Error::internal("what is received has no file any more"))
    }
}

impl Drop for FileUpload {
    fn drop(&mut self) {
        let Some(file) = self.0.take() else { return };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(file))),
            Err(_) => drop(file), // the runtime has ended, so blocking is fine
        }
    }
}

/// A file that is being received. Dropping it removes the file, unless it was renamed.
pub(super) struct Incoming {
    disk: Arc<dyn Disk>,
    pub(super) name: String,
    is_placed: bool,
}

impl Incoming {
    /// Notes that it was renamed.
    pub(super) fn mark_placed(&mut self) {
        self.is_placed = true;
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = self.disk.remove(&self.name); // if this fails, opening the store removes it
        }
    }
}

struct PartialFile {
    incoming: Incoming,
    file: Box<dyn DiskFile>,
    len: u64,
    hash: Sha256,
    sums: Sums,
}

impl PartialFile {
    fn create(disk: Arc<dyn Disk>, name: String) -> Result<Self, Error> {
        let file = disk.create(&name).map_err(|error| unavailable("create", &name, error))?;
        let incoming = Incoming { disk, name, is_placed: false };
        Ok(Self { incoming, file, len: 0, hash: Sha256::new(), sums: Sums::default() })
    }

    fn add(mut self, chunk: &[u8]) -> Result<Self, Error> {
        if chunk.is_empty() {
            return Ok(self);
        }
        let written = self.file.write_at(chunk, self.len);
        written.map_err(|error| unavailable("write", &self.incoming.name, error))?;
        self.len += chunk.len() as u64;
        self.hash.update(chunk);
        self.sums.add(chunk);
        Ok(self)
    }

    /// A sync that fails here fails only this put: nothing else relies on the file, which is removed.
    fn finish(self) -> Result<Received, Error> {
        self.file.sync().map_err(|error| unavailable("sync", &self.incoming.name, error))?;
        let content = Content::File { file: self.incoming, sums: self.sums.finish() };
        Ok(Received { id: BlobId(self.hash.finalize().into()), bytes: self.len, content })
    }
}

/// An error of the disk during a put is never `NotFound`.
fn unavailable(what: &str, name: &str, error: std::io::Error) -> Error {
    let error = Error::io(what, name, error);
    match error.kind() {
        ErrorKind::NotFound => Error::unavailable(error.to_string()).with_source(error),
        _ => error,
    }
}
