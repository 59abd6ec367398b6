//! A reader of LevelDB files, as written by LevelDB and goleveldb.
//!
//! A library that opens a LevelDB locks it, replays its journal and may start to compact it, which changes the files.
//! This reader never writes. It merges the tables and the journals in key order, holds one block of each level in memory,
//! and skips and notes what is damaged.

mod block;
mod journal;
mod manifest;
mod table;
mod wire;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque, btree_map},
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use manifest::{Manifest, TableFile};
use table::Table;

use crate::{Error, Findings, location::check_regular};

/// The largest file that is read as a whole: journals end at 4 MiB by default, and manifests are usually smaller.
const WHOLE_FILE_BYTES_MAX: u64 = 256 << 20;
/// The largest block: a block has at least one value, and the values of a Status mailserver have at most 10 MiB.
const BLOCK_BYTES_MAX: usize = 64 << 20;

/// All pairs of a LevelDB, in key order.
pub(crate) struct Reader {
    heads: Vec<Head>,
    /// The last key: older values of it are skipped.
    last: Option<Vec<u8>>,
    notes: Notes,
    bytes_total: u64,
}

/// A key and a sequence number, the latest first.
type EntryKey = (Vec<u8>, Reverse<u64>);
/// The content of the journals: values, and `None` for deletions.
type Written = BTreeMap<EntryKey, Option<Vec<u8>>>;

/// What the parts of a reader report.
#[derive(Clone, Default)]
struct Notes {
    damage: Arc<std::sync::Mutex<Findings>>,
    bytes_read: Arc<AtomicU64>,
}

impl Notes {
    fn damage(&self, what: impl FnOnce() -> String) {
        self.damage.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(what);
    }

    fn read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A written value or deletion.
struct Entry {
    key: Vec<u8>,
    /// Later writes have higher numbers.
    sequence: u64,
    /// `None` for a deletion.
    value: Option<Vec<u8>>,
}

/// A stream of entries and its next entry.
struct Head {
    entry: Option<Entry>,
    rest: Stream,
}

enum Stream {
    /// Tables with consecutive keys.
    Tables { folder: PathBuf, from: Vec<u8>, waiting: VecDeque<TableFile>, open: Option<Table> },
    /// The content of the journals.
    Journals(btree_map::IntoIter<EntryKey, Option<Vec<u8>>>),
}

impl Reader {
    /// Opens the LevelDB in a folder, to be read after the key `after` or from its beginning.
    pub(crate) fn open(folder: &Path, after: Option<Vec<u8>>) -> Result<Self, Error> {
        let manifest = Manifest::read(folder)?;
        let notes = Notes::default();
        if let Some(truncated) = &manifest.truncated {
            notes.damage(|| truncated.clone());
        }
        let journals = manifest.journals(folder)?;
        let mut bytes_total: u64 = manifest.levels.values().flatten().map(|table| table.bytes).sum();
        let mut written = Written::new();
        for path in journals {
            let bytes = read_whole(&path)?;
            bytes_total += bytes.len() as u64;
            notes.read(bytes.len() as u64);
            journal::replay(&bytes, &name_of(&path), &mut written, &notes);
        }
        let from = after.clone().unwrap_or_default();
        let mut streams = vec![Stream::Journals(written.into_iter())];
        for (level, tables) in manifest.levels {
            // The tables of level 0 overlap; those of each other level have consecutive keys.
            let groups =
                if level == 0 { tables.into_iter().map(|table| vec![table]).collect() } else { vec![tables] };
            for group in groups {
                let (folder, from) = (folder.to_owned(), from.clone());
                streams.push(Stream::Tables { folder, from, waiting: group.into(), open: None });
            }
        }
        let head = |mut rest: Stream| Head { entry: rest.next(&notes), rest };
        let heads = streams.into_iter().map(head).collect();
        Ok(Self { heads, last: after, notes, bytes_total })
    }

    /// The next pair.
    pub(crate) fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        loop {
            let entry = self.pop()?;
            // The newest entry of a key comes first; entries up to the last key are older ones.
            if self.last.as_ref().is_some_and(|last| entry.key <= *last) {
                continue;
            }
            self.last = Some(entry.key.clone());
            if let Some(value) = entry.value {
                return Some((entry.key, value));
            }
        }
    }

    /// The first entry of all streams: by key, and of equal keys the latest.
    fn pop(&mut self) -> Option<Entry> {
        let has_entry = |head: &&mut Head| head.entry.is_some();
        let position =
            |head: &&mut Head| head.entry.as_ref().map(|entry| (entry.key.clone(), Reverse(entry.sequence)));
        let head = self.heads.iter_mut().filter(has_entry).min_by_key(position)?;
        std::mem::replace(&mut head.entry, head.rest.next(&self.notes))
    }

    /// The bytes that were read, and those of all files.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let read = self.notes.bytes_read.load(Ordering::Relaxed);
        (read.min(self.bytes_total), self.bytes_total)
    }

    /// The damage that was found since the last call.
    pub(crate) fn take_damage(&self) -> Findings {
        std::mem::take(&mut self.notes.damage.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl Stream {
    fn next(&mut self, notes: &Notes) -> Option<Entry> {
        match self {
            Self::Journals(entries) => {
                let ((key, Reverse(sequence)), value) = entries.next()?;
                Some(Entry { key, sequence, value })
            }
            Self::Tables { folder, from, waiting, open } => loop {
                if let Some(entry) = open.as_mut().and_then(|table| table.next(notes)) {
                    return Some(entry);
                }
                let file = waiting.pop_front()?;
                *open = open_table(folder, &file, from, notes);
            },
        }
    }
}

/// Opens a table; notes one that is missing or damaged as a whole.
fn open_table(folder: &Path, file: &TableFile, from: &[u8], notes: &Notes) -> Option<Table> {
    if file.largest.as_slice() < from {
        notes.read(file.bytes);
        return None;
    }
    let table = Table::open(folder, file.number, from);
    table.inspect_err(|error| notes.damage(|| error.to_string())).ok()
}

/// Reads a small file.
fn read_whole(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error| Error::io("read", path.display(), error);
    let mut bytes = Vec::new();
    check_regular(path)?;
    let file = File::open(path).map_err(failed)?;
    file.take(WHOLE_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > WHOLE_FILE_BYTES_MAX {
        return Err(Error::corrupt(format!(
            "{} has more than {WHOLE_FILE_BYTES_MAX} bytes, which no such file of a LevelDB has",
            path.display()
        )));
    }
    Ok(bytes)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
