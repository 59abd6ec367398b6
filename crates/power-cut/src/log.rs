use std::{collections::BTreeSet, ops::Range};

use crate::Error;

/// The operations of a recorded process, in order.
#[derive(Debug)]
pub struct Log {
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<Record>,
    acknowledged: Vec<(usize, String)>,
    mapped: BTreeSet<String>,
}

/// One operation. Files and folders are identified by inode number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The recorded folder.
    Root { inode: u64 },
    /// A new file.
    Create { inode: u64, path: String },
    /// A new folder.
    MakeFolder { inode: u64, path: String },
    /// A file was truncated, or extended with zeros, to a length.
    Truncate { inode: u64, len: u64 },
    /// A file was extended to at least a length.
    Extend { inode: u64, len: u64 },
    /// Bytes of the log were written at an offset.
    Write { inode: u64, offset: u64, data: Range<usize> },
    /// The previous write is durable.
    Persist { inode: u64 },
    /// A sync began.
    SyncBegins { inode: u64, sync: u64 },
    /// A sync returned.
    SyncEnds { inode: u64, sync: u64 },
    /// A file was renamed, replacing the previous owner of the name.
    Rename { from: String, to: String },
    /// A file has one more name.
    Link { from: String, to: String },
    /// A file or folder has lost a name.
    Unlink { path: String },
    /// An acknowledgement.
    Acknowledge,
    /// A file was mapped shared and writable.
    Map,
}

/// Bytes of a record's header.
const HEADER_BYTES: usize = 25;

/// An encoded record.
struct Raw<'l> {
    kind: u8,
    inode: u64,
    number: u64,
    first: &'l [u8],
    second: &'l [u8],
    /// The offset of the second text in the log.
    place: Range<usize>,
}

impl Log {
    pub(crate) fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let (mut records, mut acknowledged) = (Vec::new(), Vec::new());
        let (mut mapped, mut paths) = (BTreeSet::new(), Vec::new());
        let mut at = 0;
        while at < bytes.len() {
            let raw = read(&bytes, at).ok_or_else(|| Error::Log(format!("it is truncated at byte {at}")))?;
            at = raw.place.end;
            let record = decode(&raw)?;
            match &record {
                Record::Acknowledge => acknowledged.push((records.len(), text(raw.second)?)),
                Record::Create { inode, path } => paths.push((*inode, path.clone())),
                Record::Map => {
                    let created = paths.iter().rev().find(|(inode, _)| *inode == raw.inode);
                    mapped.extend(created.map(|(_, path)| path.clone()));
                }
                _ => {}
            }
            records.push(record);
        }
        Ok(Self { bytes, records, acknowledged, mapped })
    }

    /// All acknowledgements, in order.
    pub fn acknowledged(&self) -> impl Iterator<Item = &str> {
        self.acknowledged.iter().map(|(_, text)| text.as_str())
    }

    /// All acknowledgements with the numbers of their records.
    pub(crate) fn acknowledgements(&self) -> &[(usize, String)] {
        &self.acknowledged
    }

    /// The files that were mapped shared and writable, by the names that they were created with. Writes through memory are not
    /// recorded.
    pub fn mapped(&self) -> impl Iterator<Item = &str> {
        self.mapped.iter().map(String::as_str)
    }

    /// The number of completed syncs of files and folders.
    pub fn syncs(&self) -> usize {
        let is_end = |record: &&Record| matches!(record, Record::SyncEnds { .. } | Record::Persist { .. });
        self.records.iter().filter(is_end).count()
    }
}

fn read(bytes: &[u8], at: usize) -> Option<Raw<'_>> {
    let header = bytes.get(at..at + HEADER_BYTES)?;
    let number = |from: usize| Some(u64::from_ne_bytes(header.get(from..from + 8)?.try_into().ok()?));
    let len = |from: usize| Some(u32::from_ne_bytes(header.get(from..from + 4)?.try_into().ok()?) as usize);
    let first_end = at + HEADER_BYTES + len(17)?;
    let place = first_end..first_end + len(21)?;
    Some(Raw {
        kind: *header.first()?,
        inode: number(1)?,
        number: number(9)?,
        first: bytes.get(at + HEADER_BYTES..first_end)?,
        second: bytes.get(place.clone())?,
        place,
    })
}

fn decode(raw: &Raw<'_>) -> Result<Record, Error> {
    let (inode, number) = (raw.inode, raw.number);
    Ok(match raw.kind {
        b'R' => Record::Root { inode },
        b'C' => Record::Create { inode, path: text(raw.first)? },
        b'K' => Record::MakeFolder { inode, path: text(raw.first)? },
        b'T' => Record::Truncate { inode, len: number },
        b'F' => Record::Extend { inode, len: number },
        b'W' => Record::Write { inode, offset: number, data: raw.place.clone() },
        b'P' => Record::Persist { inode },
        b'S' => Record::SyncBegins { inode, sync: number },
        b'E' => Record::SyncEnds { inode, sync: number },
        b'N' => Record::Rename { from: text(raw.first)?, to: text(raw.second)? },
        b'L' => Record::Link { from: text(raw.first)?, to: text(raw.second)? },
        b'U' => Record::Unlink { path: text(raw.first)? },
        b'A' => Record::Acknowledge,
        b'M' => Record::Map,
        b'!' => {
            return Err(Error::Log(format!("{} can't be recorded: {}", text(raw.first)?, text(raw.second)?)));
        }
        other => return Err(Error::Log(format!("a record of unknown kind {other}"))),
    })
}

fn text(bytes: &[u8]) -> Result<String, Error> {
    let text = str::from_utf8(bytes).map_err(|_| Error::Log("a text that is not UTF-8".into()))?;
    Ok(text.to_owned())
}
