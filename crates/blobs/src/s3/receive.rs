//! Receives the bytes of a source: the hash must be known before the key is.

use std::{
    io::Write,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use object_store::PutPayload;
use restante_core::BlobId;
use sha2::{Digest, Sha256};

use crate::{CHUNK_BYTES_MAX, Error, Source, hash::hash_in_turns, limits::check_length};

/// Blobs up to this length stay in memory, longer ones are written to a file until they are in the storage.
const MEMORY_BYTES_MAX: u64 = CHUNK_BYTES_MAX as u64;

/// A completely received blob.
pub(super) struct Received {
    pub(super) id: BlobId,
    pub(super) bytes: u64,
    body: Body,
}

enum Body {
    Memory(Vec<Bytes>),
    /// A file without a name: it is freed when it is closed.
    File(std::fs::File),
}

/// What has been received so far.
struct Spool {
    hasher: Sha256,
    chunks: Vec<Bytes>,
    file: Option<std::fs::File>,
}

/// Reads a source to its end.
///
/// # Errors
/// Those of the source; `Invalid` when it is too long; those of the disk.
pub(super) async fn receive(
    source: &mut dyn Source,
    bytes_max: u64,
    folder: &Path,
) -> Result<Received, Error> {
    let mut spool = Spool { hasher: Sha256::new(), chunks: Vec::new(), file: None };
    let mut bytes = 0;
    while let Some(chunk) = source.next().await? {
        bytes += chunk.len() as u64;
        check_length(bytes, bytes_max)?;
        if bytes > MEMORY_BYTES_MAX {
            let folder = folder.to_owned();
            spool = blocking(move || spool.write(chunk, &folder)).await?;
        } else {
            hash_in_turns(&mut spool.hasher, &chunk).await;
            spool.chunks.push(chunk);
        }
    }
    let id = BlobId(spool.hasher.finalize().into());
    let body = spool.file.map_or(Body::Memory(spool.chunks), Body::File);
    Ok(Received { id, bytes, body })
}

impl Spool {
    /// Hashes a chunk and writes it to the file, after those that are in memory.
    fn write(mut self, chunk: Bytes, folder: &Path) -> Result<Self, Error> {
        self.hasher.update(&chunk);
        self.chunks.push(chunk);
        let name = folder.display();
        let file = match &mut self.file {
            Some(file) => file,
            None => self
                .file
                .insert(nameless_file(folder).map_err(|error| Error::io("create a file in", &name, error))?),
        };
        for chunk in self.chunks.drain(..) {
            file.write_all(&chunk).map_err(|error| Error::io("write to a file in", &name, error))?;
        }
        Ok(self)
    }
}

/// A file that no longer has a name.
fn nameless_file(folder: &Path) -> std::io::Result<std::fs::File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    std::fs::create_dir_all(folder)?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("upload-{}-{number}", std::process::id()));
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {} // left by an earlier process with this number
    }
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

impl Received {
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self.body, Body::Memory(_))
    }

    /// The bytes, if they are in memory.
    pub(super) fn in_memory(&self) -> Option<Bytes> {
        match &self.body {
            Body::Memory(chunks) => match chunks.as_slice() {
                [one] => Some(one.clone()),
                chunks => Some(chunks.concat().into()),
            },
            Body::File(_) => None,
        }
    }

    /// A part of the bytes, for a request.
    pub(super) async fn payload(&self, start: u64, bytes: u64) -> Result<PutPayload, Error> {
        let file = match &self.body {
            Body::Memory(chunks) => return Ok(chunks.iter().cloned().collect()),
            Body::File(file) => file.try_clone().map_err(|error| Error::io("open", "an upload", error))?,
        };
        blocking(move || {
            let mut part = vec![0; bytes as usize];
            file.read_exact_at(&mut part, start).map_err(|error| Error::io("read", "an upload", error))?;
            Ok(PutPayload::from(part))
        })
        .await
    }
}

/// Runs work on files on the blocking pool.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::internal("work on blobs ended early").with_source(error))?
}
