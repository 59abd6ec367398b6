//! Reading a pack from one end to the other, skipping damage.

use std::{fs::File, io, os::unix::fs::FileExt};

use bytes::Bytes;

use super::schema::{RECORD_HEADER_BYTES, RecordHeader};
use crate::hash::id_of;

/// Bytes per read.
const WINDOW_BYTES: u64 = 1 << 20;

/// The next part of a pack.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A valid record at an offset.
    Record { offset: u64, header: RecordHeader, bytes: Bytes },
    /// Bytes that are no valid record.
    Damage { from: u64, to: u64 },
    /// Zeros up to the end: no record was written there yet.
    Unwritten { from: u64 },
}

/// An iteration over the records of a pack.
pub(super) struct Scan {
    window: Window,
    offset: u64,
    end: u64,
}

impl Scan {
    /// An iteration from the beginning of a record to an offset.
    pub(super) fn new(file: File, offset: u64, end: u64) -> Self {
        Self { window: Window { file, start: 0, bytes: Vec::new() }, offset, end }
    }

    /// The next part; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Found>> {
        let from = self.offset;
        if from >= self.end {
            return Ok(None);
        }
        if let Some((header, bytes)) = self.record_at(from)? {
            self.offset = from + header.record_bytes();
            return Ok(Some(Found::Record { offset: from, header, bytes }));
        }
        self.offset = self.next_record()?;
        if self.offset == self.end && self.is_zero(from)? {
            return Ok(Some(Found::Unwritten { from }));
        }
        Ok(Some(Found::Damage { from, to: self.offset }))
    }

    /// Whether there are only zeros from an offset on.
    fn is_zero(&mut self, from: u64) -> io::Result<bool> {
        let mut offset = from;
        while offset < self.end {
            let len = WINDOW_BYTES.min(self.end - offset);
            let bytes = self.window.at(offset, len as usize, self.end)?;
            if bytes.is_empty() || bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            offset += bytes.len() as u64;
        }
        Ok(true)
    }

    /// The valid record at an offset, if there is one.
    fn record_at(&mut self, offset: u64) -> io::Result<Option<(RecordHeader, Bytes)>> {
        let left = self.end - offset;
        if left < RECORD_HEADER_BYTES as u64 {
            return Ok(None);
        }
        let header = RecordHeader::read(self.window.at(offset, RECORD_HEADER_BYTES, self.end)?);
        let Some(header) = header.filter(|header| header.record_bytes() <= left) else { return Ok(None) };
        let bytes = self.window.at(offset + RECORD_HEADER_BYTES as u64, header.len as usize, self.end)?;
        Ok(header.fits(bytes).then(|| (header, Bytes::copy_from_slice(bytes))))
    }

    /// The offset of the next valid record after damage, or the end.
    ///
    /// A blob may contain bytes that look like a record, which is found if the blob's own record is damaged. That is harmless: bytes
    /// are used only for the blob whose id is their hash.
    fn next_record(&mut self) -> io::Result<u64> {
        for offset in self.offset + 1..self.end {
            if let Some((header, bytes)) = self.record_at(offset)?
                && id_of(&bytes) == header.id
            {
                return Ok(offset);
            }
        }
        Ok(self.end)
    }
}

/// A buffered part of a file.
struct Window {
    file: File,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// `len` bytes at an offset, all before `end`; fewer at the end of the file.
    fn at(&mut self, offset: u64, len: usize, end: u64) -> io::Result<&[u8]> {
        let is_inside = offset >= self.start && offset + len as u64 <= self.start + self.bytes.len() as u64;
        if !is_inside {
            let wanted = WINDOW_BYTES.max(len as u64).min(end - offset);
            self.bytes.resize(wanted as usize, 0);
            let read = read_at_most(&self.file, &mut self.bytes, offset)?;
            self.bytes.truncate(read);
            self.start = offset;
        }
        let begin = (offset - self.start) as usize;
        let end = (begin + len).min(self.bytes.len());
        Ok(self.bytes.get(begin..end).unwrap_or_default())
    }
}

/// Fills a buffer from an offset, up to the end of the file.
pub(super) fn read_at_most(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
