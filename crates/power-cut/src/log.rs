use std::{collections::BTreeSet, ops::Range};

use crate::Error;

/// What a recorded process did, in order.
#[derive(Debug)]
pub struct Log {
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<Record>,
    acknowledged: Vec<(usize, String)>,
    mapped: BTreeSet<String>,
}

/// One thing that was done. Files and folders are told apart by the number of their inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The folder that is recorded.
    Root { inode: u64 },
    /// A new file.
    Create { inode: u64, path: String },
    /// A new folder.
    MakeFolder { inode: u64, path: String },
    /// A file was cut, or made longer by zeros, to a length.
    Truncate { inode: u64, len: u64 },
    /// A file has at least a length.
    Extend { inode: u64, len: u64 },
    /// Bytes of the log were written at an offset.
    Write { inode: u64, offset: u64, data: Range<usize> },
    /// The write just before is durable.
    Persist { inode: u64 },
    /// A sync began.
    SyncBegins { inode: u64, sync: u64 },
    /// It has returned.
    SyncEnds { inode: u64, sync: u64 },
    /// A file has another name, and what had that name has none.
    Rename { from: String, to: String },
    /// A file has one more name.
    Link { from: String, to: String },
    /// A file or folder has lost a name.
    Unlink { path: String },
    /// Something was acknowledged.
    Acknowledge,
    /// A file was mapped so that memory writes into it.
    Map,
}

/// Bytes of a record before its two texts.
const HEADER_BYTES: usize = 25;

/// A record as it stands in the log.
struct Raw<'l> {
    kind: u8,
    inode: u64,
    number: u64,
    first: &'l [u8],
    second: &'l [u8],
    /// Where the second text is in the log.
    place: Range<usize>,
}

impl Log {
    pub(crate) fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let (mut records, mut acknowledged) = (Vec::new(), Vec::new());
        let (mut mapped, mut paths) = (BTreeSet::new(), Vec::new());
        let mut at = 0;
        while at < bytes.len() {
            let raw = read(&bytes, at).ok_or_else(|| Error::Log(format!("it breaks off at byte {at}")))?;
            at = raw.place.end;
            let record = understand(&raw)?;
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

    /// What was acknowledged in all, in order.
    pub fn acknowledged(&self) -> impl Iterator<Item = &str> {
        self.acknowledged.iter().map(|(_, text)| text.as_str())
    }

    /// Where it was acknowledged, and what.
    pub(crate) fn acknowledgements(&self) -> &[(usize, String)] {
        &self.acknowledged
    }

    /// The files that were mapped shared and writable, by the names that they were created with. What memory writes into
    /// them is not recorded.
    pub fn mapped(&self) -> impl Iterator<Item = &str> {
        self.mapped.iter().map(String::as_str)
    }

    /// How many syncs of files and folders have returned.
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

fn understand(raw: &Raw<'_>) -> Result<Record, Error> {
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
        other => return Err(Error::Log(format!("a record of the unknown kind {other}"))),
    })
}

fn text(bytes: &[u8]) -> Result<String, Error> {
    let text = str::from_utf8(bytes).map_err(|_| Error::Log("a text that is not UTF-8".into()))?;
    Ok(text.to_owned())
}
