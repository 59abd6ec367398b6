//! Appending to packs: one sequential write for a group of records, and one sync, which may come later.
//!
//! A write that makes a file longer also costs a commit of the file system's journal. So zeros are written after a small group,
//! and the next small groups overwrite them.

use std::{io, sync::Arc, time::Instant};

use restante_core::{BlobId, ErrorKind, Timestamp};
use restante_disk::DiskFile;

use super::{
    index::{Entry, Location},
    schema::{PACK_HEADER_BYTES, PACKS, RecordHeader, pack_header, pack_name, record_bytes},
    shared::Shared,
};
use crate::Error;

/// Zeros that are written ahead of small groups.
const AHEAD_BYTES: u64 = 256 << 10;
/// Groups of at least this length write so much that the journal commit does not matter, and zeros would only add to it.
const LARGE_BYTES: u64 = 32 << 10;

/// A blob to append to a pack.
pub(super) struct Record<'a> {
    pub(super) id: BlobId,
    pub(super) bytes: &'a [u8],
    pub(super) put_at: Timestamp,
}

/// The pack that is appended to.
struct Current {
    number: u64,
    file: Box<dyn DiskFile>,
    /// The length of all records.
    len: u64,
    /// The length of the file: zeros follow the records.
    file_len: u64,
    /// Whether the last sync was before the last record.
    is_unsynced: bool,
}

impl Current {
    /// How many zeros to write after this many bytes of records.
    fn zeros(&self, records: u64, pack_bytes: u64) -> u64 {
        let end = self.len + records;
        let is_inside = end <= self.file_len;
        if is_inside || records >= LARGE_BYTES { 0 } else { AHEAD_BYTES.min(pack_bytes.saturating_sub(end)) }
    }

    /// Writes the records at the front of `buffer` with the zeros after them; without the zeros when the disk is full.
    fn write(&mut self, buffer: &[u8], records: usize) -> io::Result<()> {
        let written = match self.file.write_at(buffer, self.len) {
            Err(error) if ErrorKind::of_io(error.kind()) == ErrorKind::Full && records < buffer.len() => {
                self.file.set_len(self.len)?;
                self.file_len = self.len;
                let records = buffer.get(..records).unwrap_or(buffer);
                self.file.write_at(records, self.len).map(|()| records.len())
            }
            written => written.map(|()| buffer.len()),
        };
        self.file_len = self.file_len.max(self.len + written? as u64);
        Ok(())
    }

    /// Removes the zeros at the end. They do no harm: if this fails, or a power cut brings them back, the next opening removes them.
    fn trim(&self) {
        if self.file_len > self.len {
            let _ = self.file.set_len(self.len);
        }
    }
}

/// The writer of packs.
pub(super) struct Appender {
    shared: Arc<Shared>,
    current: Option<Current>,
    next: u64,
    buffer: Vec<u8>,
}

impl Appender {
    /// Appends to `last`, a pack and its length, if there is one, and begins new packs at number `next`.
    pub(super) fn open(shared: Arc<Shared>, next: u64, last: Option<(u64, u64)>) -> Result<Self, Error> {
        let mut appender = Self { shared, current: None, next, buffer: Vec::new() };
        if let Some((number, len)) = last {
            let name = pack_name(number);
            let file = appender.shared.disk.open(&name).map_err(|error| Error::io("open", &name, error))?;
            appender.current = Some(Current { number, file, len, file_len: len, is_unsynced: false });
        }
        Ok(appender)
    }

    /// Writes records, and returns where they are. They are durable after [`Appender::sync`]. After an error none of them is stored.
    pub(super) fn append<'a>(
        &mut self,
        records: impl Iterator<Item = Record<'a>>,
    ) -> Result<Vec<Entry>, Error> {
        self.buffer.clear();
        let mut entries = Vec::new();
        for record in records {
            let bytes = record.bytes.len() as u64;
            self.make_room(record_bytes(bytes))?;
            let current = self.current()?;
            let location =
                Location::Pack { number: current.number, offset: current.len + self.buffer.len() as u64 };
            entries.push(Entry { location, bytes, put_at: record.put_at });
            RecordHeader::new(record.id, record.bytes, record.put_at).put_into(&mut self.buffer);
            self.buffer.extend_from_slice(record.bytes);
        }
        self.write_out()?;
        Ok(entries)
    }

    /// Makes all records durable.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        let Some(current) = self.current.as_mut().filter(|current| current.is_unsynced) else {
            return self.shared.check_unbroken(); // a sync that failed left records that are not durable
        };
        let start = Instant::now();
        if let Err(error) = current.file.sync() {
            let name = pack_name(current.number);
            self.current = None;
            return Err(self.shared.sync_failed("sync", &name, error));
        }
        current.is_unsynced = false;
        self.shared.metrics.sync_seconds.observe(start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Begins a new pack with the next record. All records must be durable.
    pub(super) fn leave(&mut self, number: u64) {
        self.current.take_if(|current| current.number == number);
    }

    /// Ends a pack that would become too long, unless it is empty.
    fn make_room(&mut self, bytes: u64) -> Result<(), Error> {
        let Some(current) = &self.current else { return Ok(()) };
        let len = current.len + self.buffer.len() as u64;
        if len > PACK_HEADER_BYTES && len + bytes > self.shared.settings.pack_bytes.get() {
            self.write_out()?;
            self.sync()?;
            self.close();
        }
        Ok(())
    }

    /// Ends the current pack.
    pub(super) fn close(&mut self) {
        if let Some(current) = self.current.take() {
            current.trim();
        }
    }

    fn current(&mut self) -> Result<&Current, Error> {
        let current = match self.current.take() {
            Some(current) => current,
            None => self.create()?,
        };
        Ok(self.current.insert(current))
    }

    fn create(&mut self) -> Result<Current, Error> {
        let number = self.next;
        self.next += 1; // even if it fails: no number is used twice
        let name = pack_name(number);
        let created = self.shared.disk.create(&name).and_then(|file| {
            file.write_at(&pack_header(number), 0)?;
            Ok(file)
        });
        let file = created.map_err(|error| {
            let _ = self.shared.disk.remove(&name); // if this fails, opening the store removes it
            Error::io("create", &name, error)
        })?;
        let synced = file.sync().and_then(|()| self.shared.disk.sync_folder(PACKS));
        synced.map_err(|error| self.shared.sync_failed("sync", &name, error))?;
        self.grow(number, PACK_HEADER_BYTES);
        Ok(Current { number, file, len: PACK_HEADER_BYTES, file_len: PACK_HEADER_BYTES, is_unsynced: false })
    }

    /// Writes the buffered records to the current pack.
    fn write_out(&mut self) -> Result<(), Error> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let Some(mut current) = self.current.take() else { return Ok(()) };
        let name = pack_name(current.number);
        let records = buffer.len();
        let zeros = current.zeros(records as u64, self.shared.settings.pack_bytes.get());
        buffer.resize(records + zeros as usize, 0);
        if let Err(error) = current.write(&buffer, records) {
            // Removes the rest of a partial write; if that fails, nothing more is appended to this pack.
            let is_cut = current.file.set_len(current.len).is_ok();
            current.file_len = current.len;
            self.current = Some(current);
            if !is_cut {
                self.sync()?; // of the records before it
                self.current = None;
            }
            return Err(Error::io("write", &name, error));
        }
        current.len += records as u64;
        current.is_unsynced = true;
        self.grow(current.number, current.len);
        self.current = Some(current);
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    fn grow(&self, number: u64, len: u64) {
        self.shared.ledger.lock().packs.entry(number).or_default().len = len;
    }
}
