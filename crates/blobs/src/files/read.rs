//! Reading a blob: only bytes that match their checksum are returned.

use std::{fs::File, io, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::{BlobId, ErrorKind};
use sha2::{Digest, Sha256};

use super::{
    blocking,
    index::{Entry, Location},
    scan::read_at_most,
    schema::{PART_BYTES, RECORD_HEADER_BYTES, RecordHeader, file_name},
    shared::Shared,
    sums,
};
use crate::{
    Error, Source,
    error::no_blob,
    hash::id_of,
    limits::{check_range, clip},
};

/// The error for an unreadable sector, on Linux and elsewhere.
const EIO: i32 = 5;
/// The hash of longer records takes too long for a thread that has other work.
const CACHED_BYTES_MAX: u64 = 64 << 10;
/// How often a blob is looked up again because it was moved to another pack.
const MOVES_MAX: usize = 16;

/// A range of a blob.
pub(super) fn open(shared: &Arc<Shared>, id: BlobId, range: Range<u64>) -> Result<Box<dyn Source>, Error> {
    check_range(&range)?;
    let Some((entry, packed)) = locate(shared, id)? else { return Err(no_blob(id)) };
    let range = clip(&range, entry.bytes);
    let is_whole = range == (0..entry.bytes);
    match packed {
        Some(bytes) if is_whole && id_of(&bytes) != id => Err(not_what_was_put(id)),
        Some(bytes) => Ok(Box::new(bytes.slice(range.start as usize..range.end as usize))),
        None => {
            let parts = Parts::open(shared, id, entry.bytes)?;
            let hash = is_whole.then(Sha256::new);
            Ok(Box::new(FileSource { shared: shared.clone(), reading: Some(Reading { parts, range, hash }) }))
        }
    }
}

/// The same for a short blob whose bytes the system has in memory, without waiting for the disk or for another thread: most messages
/// are read soon after they arrived. `None` for any other blob, and whenever something is wrong: [`open`] then returns the error.
pub(super) fn cached(shared: &Shared, id: BlobId, range: &Range<u64>) -> Option<Box<dyn Source>> {
    check_range(range).ok()?;
    let entry = shared.find(id).ok()??;
    let Location::Pack { number, offset } = entry.location else { return None };
    if entry.record_bytes() > CACHED_BYTES_MAX {
        return None;
    }
    let file = shared.opened_pack(number)?;
    let mut record = vec![0; entry.record_bytes() as usize];
    let read = read_cached(&file, &mut record, offset)?;
    let bytes = record_bytes(record, read, id, &entry).ok()?;
    let range = clip(range, entry.bytes);
    let is_whole = range == (0..entry.bytes);
    (!is_whole || id_of(&bytes) == id)
        .then(|| Box::new(bytes.slice(range.start as usize..range.end as usize)) as Box<dyn Source>)
}

/// Reads what the system has in memory; `None` when it would have to wait for the disk, or can't tell.
#[cfg(target_os = "linux")]
fn read_cached(file: &File, buffer: &mut [u8], offset: u64) -> Option<usize> {
    use rustix::io::{ReadWriteFlags, preadv2};
    preadv2(file, &mut [io::IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT).ok()
}

#[cfg(not(target_os = "linux"))]
fn read_cached(_: &File, _: &mut [u8], _: u64) -> Option<usize> {
    None
}

/// The row of a blob that exists but is damaged. It is read as a whole, so it should be short.
pub(super) fn damaged(shared: &Shared, id: BlobId) -> Result<Option<Entry>, Error> {
    let Some(entry) = shared.find(id)? else { return Ok(None) };
    match verify(shared, id, &mut |_| ()) {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Some(entry)),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(None),
    }
}

/// Reads all of a blob and compares it with its id; `None` when it does not exist. `seen` is called with the bytes read.
pub(super) fn verify(shared: &Shared, id: BlobId, seen: &mut dyn FnMut(u64)) -> Result<Option<Entry>, Error> {
    let Some((entry, packed)) = locate(shared, id)? else { return Ok(None) };
    let mut hash = Sha256::new();
    if let Some(bytes) = packed {
        seen(bytes.len() as u64);
        hash.update(&bytes);
    } else {
        let parts = Parts::open(shared, id, entry.bytes)?;
        for number in 0..entry.bytes.div_ceil(PART_BYTES) {
            let part = parts.read(shared, number)?;
            seen(part.len() as u64);
            hash.update(&part);
        }
    }
    let is_sound = <[u8; 32]>::from(hash.finalize()) == id.0;
    if is_sound { Ok(Some(entry)) } else { Err(not_what_was_put(id)) }
}

/// Where a blob is, and its bytes if it is in a pack.
fn locate(shared: &Shared, id: BlobId) -> Result<Option<(Entry, Option<Bytes>)>, Error> {
    let mut seen = None;
    for _ in 0..MOVES_MAX {
        let Some(entry) = shared.find(id)? else { return Ok(None) };
        let Location::Pack { number, offset } = entry.location else { return Ok(Some((entry, None))) };
        match shared.pack(number) {
            Ok(file) => {
                return read_packed(&file, offset, id, &entry).map(|bytes| Some((entry, Some(bytes))));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(unavailable("open a pack for", id, error));
            }
            // It was moved after the lookup, and the pack was removed. If the lookup finds the same pack again, the blob is lost.
            Err(_) if seen == Some(entry.location) => {
                let what = format!("blob {id} is lost: pack {number} is not there");
                return Err(Error::corrupt(what));
            }
            Err(_) => seen = Some(entry.location),
        }
    }
    Err(Error::unavailable(format!("blob {id} is moved again and again: read it once more")))
}

/// Reads a record with its header.
fn read_packed(file: &File, offset: u64, id: BlobId, entry: &Entry) -> Result<Bytes, Error> {
    let mut record = vec![0; entry.record_bytes() as usize];
    let read = read_at_most(file, &mut record, offset).map_err(|error| unreadable(id, error))?;
    record_bytes(record, read, id, entry)
}

/// The verified bytes of a blob in its record; `read` is how many bytes of the record were read.
fn record_bytes(record: Vec<u8>, read: usize, id: BlobId, entry: &Entry) -> Result<Bytes, Error> {
    let header = RecordHeader::read(&record).filter(|header| header.id == id);
    let bytes = Bytes::from(record).slice(RECORD_HEADER_BYTES..);
    let is_sound = read as u64 == entry.record_bytes() && header.is_some_and(|header| header.fits(&bytes));
    if is_sound { Ok(bytes) } else { Err(not_what_was_put(id)) }
}

/// A blob's own file.
struct Parts {
    id: BlobId,
    bytes: u64,
    sums: Vec<u8>,
}

impl Parts {
    fn open(shared: &Shared, id: BlobId, bytes: u64) -> Result<Self, Error> {
        let sums = shared.index()?.sums(id)?.ok_or_else(|| no_blob(id))?; // it was removed meanwhile
        Ok(Self { id, bytes, sums })
    }

    /// Reads and verifies a part of the file. The file is open only for that time, so that slow readers hold no open files.
    fn read(&self, shared: &Shared, number: u64) -> Result<Vec<u8>, Error> {
        let file = File::open(shared.disk.path(&file_name(self.id).0))
            .map_err(|error| self.missing(shared, error))?;
        let offset = number * PART_BYTES;
        let mut part = vec![0; PART_BYTES.min(self.bytes - offset) as usize];
        let read =
            read_at_most(&file, &mut part, offset).map_err(|error| unavailable("read", self.id, error))?;
        let is_sound = read == part.len() && sums::fits(&self.sums, number, &part);
        if is_sound { Ok(part) } else { Err(not_what_was_put(self.id)) }
    }

    fn missing(&self, shared: &Shared, error: io::Error) -> Error {
        let is_lost = error.kind() == io::ErrorKind::NotFound;
        match shared.find(self.id) {
            Ok(None) => no_blob(self.id),
            Ok(Some(_)) if is_lost => {
                Error::corrupt(format!("blob {} is lost: its file is not there", self.id))
            }
            Ok(Some(_)) => unavailable("open", self.id, error),
            Err(error) => error,
        }
    }
}

/// The rest of a range of a file.
struct Reading {
    parts: Parts,
    range: Range<u64>,
    /// The hash of the bytes read so far, when the whole file is read.
    hash: Option<Sha256>,
}

impl Reading {
    /// The next chunk, which ends where a part does. The last chunk of a whole file is returned only if the hash is right.
    fn next(&mut self, shared: &Shared) -> Result<Bytes, Error> {
        let number = self.range.start / PART_BYTES;
        let part = self.parts.read(shared, number)?;
        let begin = self.range.start - number * PART_BYTES;
        let end = (self.range.end - number * PART_BYTES).min(part.len() as u64);
        self.range.start = number * PART_BYTES + end;
        if let Some(hash) = &mut self.hash {
            hash.update(&part);
            let is_wrong =
                self.range.is_empty() && <[u8; 32]>::from(hash.clone().finalize()) != self.parts.id.0;
            if is_wrong {
                return Err(not_what_was_put(self.parts.id));
            }
        }
        Ok(Bytes::from(part).slice(begin as usize..end as usize))
    }
}

/// A range of a blob's own file, chunk by chunk.
struct FileSource {
    shared: Arc<Shared>,
    /// `None` after an error, and when the wait for a chunk was cancelled.
    reading: Option<Reading>,
}

#[async_trait]
impl Source for FileSource {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.reading.as_ref().is_some_and(|reading| reading.range.is_empty()) {
            return Ok(None);
        }
        let Some(mut reading) = self.reading.take() else {
            return Err(Error::unavailable("the read of the blob was interrupted before"));
        };
        let shared = self.shared.clone();
        let (reading, chunk) = blocking(move || {
            let chunk = reading.next(&shared)?;
            Ok((reading, chunk))
        })
        .await?;
        self.reading = Some(reading);
        Ok(Some(chunk))
    }
}

fn not_what_was_put(id: BlobId) -> Error {
    Error::corrupt(format!("blob {id} is damaged: its bytes are not those that were put"))
}

/// An unreadable sector counts as damage, so that the next put stores the blob again; other errors may be transient.
fn unreadable(id: BlobId, error: io::Error) -> Error {
    if error.raw_os_error() == Some(EIO) {
        return Error::corrupt(format!("blob {id} is damaged: {error}")).with_source(error);
    }
    unavailable("read", id, error)
}

fn unavailable(what: &str, id: BlobId, error: io::Error) -> Error {
    Error::unavailable(format!("can't {what} blob {id}: {error}")).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_sector_is_damage_and_other_errors_are_transient() {
        let kind = |code| unreadable(BlobId([1; 32]), io::Error::from_raw_os_error(code)).kind();
        assert_eq!(kind(EIO), ErrorKind::Corrupt);
        let out_of_memory = 12;
        assert_eq!(kind(out_of_memory), ErrorKind::Unavailable);
    }
}
