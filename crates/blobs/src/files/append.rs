//! Appending to packs: one sequential write and one sync for a group of records.

use std::{sync::Arc, time::Instant};

use restante_core::{BlobId, Timestamp};
use restante_disk::DiskFile;

use super::{
    index::{Entry, Location},
    schema::{PACK_HEADER_BYTES, PACKS, RecordHeader, pack_header, pack_name, record_bytes},
    shared::Shared,
};
use crate::Error;

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
    /// The length up to the last sync.
    len: u64,
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
            appender.current = Some(Current { number, file, len });
        }
        Ok(appender)
    }

    /// Makes records durable, and returns where they are. After an error none of them is stored.
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

    /// Begins a new pack with the next record.
    pub(super) fn leave(&mut self, number: u64) {
        self.current.take_if(|current| current.number == number);
    }

    /// Ends a pack that would become too long, unless it is empty.
    fn make_room(&mut self, bytes: u64) -> Result<(), Error> {
        let Some(current) = &self.current else { return Ok(()) };
        let len = current.len + self.buffer.len() as u64;
        if len > PACK_HEADER_BYTES && len + bytes > self.shared.settings.pack_bytes.get() {
            self.write_out()?;
            self.current = None;
        }
        Ok(())
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
        Ok(Current { number, file, len: PACK_HEADER_BYTES })
    }

    /// Writes and syncs the buffered records of the current pack.
    fn write_out(&mut self) -> Result<(), Error> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let buffer = std::mem::take(&mut self.buffer);
        let Some(mut current) = self.current.take() else { return Ok(()) };
        let name = pack_name(current.number);
        if let Err(error) = current.file.write_at(&buffer, current.len) {
            // Removes the rest of a partial write; if that fails, nothing more is appended to this pack.
            let is_cut = current.file.set_len(current.len).is_ok();
            self.current = is_cut.then_some(current);
            return Err(Error::io("write", &name, error));
        }
        let start = Instant::now();
        current.file.sync().map_err(|error| self.shared.sync_failed("sync", &name, error))?;
        self.shared.metrics.sync_seconds.observe(start.elapsed().as_secs_f64());
        current.len += buffer.len() as u64;
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
