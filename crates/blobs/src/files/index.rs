//! The index of where each blob is, derived from packs and files.

use std::{collections::BTreeMap, ops::Bound, path::Path, sync::Arc};

use restante_core::{BlobId, Timestamp};
use restante_disk::{Disk, Folder};
use restante_lmdb::{
    Batch, Direction, Options, Store, Table, View,
    key::{Pack as _, take_bytes, take_number},
};

use super::schema::{BLOB_BYTES_LIMIT, INDEX, PACKED_BYTES_LIMIT, VERSION, other_version, record_bytes};
use crate::{Error, Listed, error::of_index};

/// id -> location, length, time of the last put.
const BLOBS: Table = Table::new(1, "blobs");
/// packed number of a pack -> its state.
const PACKS: Table = Table::new(2, "packs");
/// id -> the checksums of the parts of its own file, 4 bytes each.
const SUMS: Table = Table::new(3, "sums");
/// id -> empty: a file with this name may exist without a blob.
const LOOSE: Table = Table::new(4, "loose");
/// name -> bytes.
const META: Table = Table::new(5, "meta");
const TABLES: [Table; 5] = [BLOBS, PACKS, SUMS, LOOSE, META];

const FORMAT: &[u8] = b"format";
const FILES: &[u8] = b"files";

/// The commit log of the index: rows of some 70 bytes are written to LMDB twenty-five thousand at a time, and are in memory until then.
const LOG_BYTES: u64 = 2 << 20;

/// Where a blob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// In a file of its own.
    File,
    /// In a pack, with its record at an offset.
    Pack { number: u64, offset: u64 },
}

/// The row of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) location: Location,
    pub(super) bytes: u64,
    pub(super) put_at: Timestamp,
}

/// The row of a pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pack {
    /// Its length at the last sync for which all its records have rows.
    pub(super) len: u64,
    /// Blobs in it.
    pub(super) live: u64,
    /// Bytes of their records.
    pub(super) live_bytes: u64,
}

/// Blobs with files of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) blobs: u64,
    pub(super) bytes: u64,
}

/// A change of the index.
#[derive(Clone, Debug)]
pub(super) enum Row {
    Blob(BlobId, Entry),
    BlobGone(BlobId),
    Sums(BlobId, Vec<u8>),
    SumsGone(BlobId),
    Loose(BlobId),
    LooseGone(BlobId),
    Pack(u64, Pack),
    PackGone(u64),
    Files(Files),
}

/// The index of a store.
#[derive(Clone)]
pub(super) struct Index {
    store: Store,
    disk: Arc<dyn Disk>,
}

impl Index {
    pub(super) fn open(disk: Arc<dyn Disk>, metrics: restante_lmdb::Metrics) -> Result<Self, Error> {
        Self::open_with(disk, Options { log_bytes: LOG_BYTES, metrics, ..Options::default() })
    }

    /// An index that is written once, in large batches.
    pub(super) fn open_copy(folder: &Path) -> Result<Self, Error> {
        let disk = Arc::new(Folder::new(folder));
        Self::open_with(disk, Options { log_bytes: 0, ..Options::default() })
    }

    fn open_with(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        let index = Self { store: Store::open(&disk.path(INDEX), &TABLES, options).map_err(of_index)?, disk };
        index.check_format()?;
        Ok(index)
    }

    fn read<T>(&self, read: impl FnOnce(&View<'_>) -> Result<T, Error>) -> Result<T, Error> {
        self.store.read(read).map_err(of_index)
    }

    fn write_batch(
        &self,
        write: impl FnOnce(&mut Batch<'_>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        self.store.write_blocking(write).map_err(of_index)
    }

    fn check_format(&self) -> Result<(), Error> {
        let found = self.read(|view| Ok(view.get(META, FORMAT)?.map(|value| value.to_vec())))?;
        let Some(found) = found else {
            return self.write_batch(|batch| {
                batch.put(META, FORMAT, &VERSION.to_le_bytes());
                Ok(())
            });
        };
        if found == VERSION.to_le_bytes() {
            return Ok(());
        }
        let found = found.first_chunk().map_or(0, |version| u32::from_le_bytes(*version));
        Err(other_version("the index of the blobs", found))
    }

    pub(super) fn find(&self, id: BlobId) -> Result<Option<Entry>, Error> {
        self.read(|view| match view.get(BLOBS, &id.0)? {
            Some(value) => read_entry(value).map(Some),
            None => Ok(None),
        })
    }

    /// The blobs after one, ordered by id.
    pub(super) fn page(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<(BlobId, Entry)>, Error> {
        let mut page = Vec::new();
        self.read(|view| {
            let from = after.as_ref().map_or(Bound::Unbounded, |id| Bound::Excluded(&id.0[..]));
            let mut rows = view.range(BLOBS, from, Bound::Unbounded, Direction::Ascending)?;
            while let Some((key, value)) = rows.next()? {
                page.push((read_id(key)?, read_entry(value)?));
                if page.len() == limit {
                    break;
                }
            }
            Ok(())
        })?;
        Ok(page)
    }

    /// The checksums of the parts of a file.
    pub(super) fn sums(&self, id: BlobId) -> Result<Option<Vec<u8>>, Error> {
        self.read(|view| Ok(view.get(SUMS, &id.0)?.map(|value| value.to_vec())))
    }

    pub(super) fn is_loose(&self, id: BlobId) -> Result<bool, Error> {
        self.read(|view| Ok(view.get(LOOSE, &id.0)?.is_some()))
    }

    /// At most `limit` files that belong to no blob.
    pub(super) fn loose(&self, limit: usize) -> Result<Vec<BlobId>, Error> {
        let mut loose = Vec::new();
        self.read(|view| {
            each(view, LOOSE, &mut |key, _| {
                loose.push(read_id(key)?);
                Ok(loose.len() < limit)
            })
        })?;
        Ok(loose)
    }

    pub(super) fn packs(&self) -> Result<BTreeMap<u64, Pack>, Error> {
        let mut packs = BTreeMap::new();
        self.read(|view| {
            each(view, PACKS, &mut |mut key, value| {
                let number = take_number(&mut key).ok_or_else(damaged)?;
                packs.insert(number, read_pack(value)?);
                Ok(true)
            })
        })?;
        Ok(packs)
    }

    /// The totals of blobs with files of their own; `None` if they were never counted.
    pub(super) fn files(&self) -> Result<Option<Files>, Error> {
        self.read(|view| {
            let Some(value) = view.get(META, FILES)? else { return Ok(None) };
            let mut value = value;
            let numbers = take_number(&mut value).zip(take_number(&mut value));
            numbers.map(|(blobs, bytes)| Some(Files { blobs, bytes })).ok_or_else(damaged)
        })
    }

    /// Makes changes durable, all or none; of several changes of one row the last counts.
    pub(super) fn write(&self, rows: Vec<Row>) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let failed = |error| Error::io("write", "the index of the blobs", error);
        self.disk.before("index").map_err(failed)?;
        self.write_batch(move |batch| {
            rows.iter().for_each(|row| put_row(batch, row));
            Ok(())
        })
    }

    /// A defect in the pages of its file, if there is one.
    pub(super) fn damaged_page(&self) -> Result<Option<String>, Error> {
        self.store.damaged_page().map_err(of_index)
    }

    /// Its size on disk.
    pub(super) fn disk_bytes(&self) -> Result<u64, Error> {
        let stats = self.store.stats().map_err(of_index)?;
        Ok(stats.file_bytes + stats.log_bytes)
    }

    pub(super) fn health(&self) -> Result<(), Error> {
        self.store.health().map_err(of_index)
    }

    pub(super) async fn close(&self) -> Result<(), Error> {
        self.store.close().await.map_err(of_index)
    }
}

/// Visits the rows of a table until `visit` returns false.
fn each(
    view: &View<'_>,
    table: Table,
    visit: &mut impl FnMut(&[u8], &[u8]) -> Result<bool, Error>,
) -> Result<(), Error> {
    let mut rows = view.range(table, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
    while let Some((key, value)) = rows.next()? {
        if !visit(key, value)? {
            return Ok(());
        }
    }
    Ok(())
}

fn put_row(batch: &mut Batch<'_>, row: &Row) {
    match row {
        Row::Blob(id, entry) => batch.put(BLOBS, &id.0, &entry_value(entry)),
        Row::BlobGone(id) => batch.delete(BLOBS, &id.0),
        Row::Sums(id, sums) => batch.put(SUMS, &id.0, sums),
        Row::SumsGone(id) => batch.delete(SUMS, &id.0),
        Row::Loose(id) => batch.put(LOOSE, &id.0, &[]),
        Row::LooseGone(id) => batch.delete(LOOSE, &id.0),
        Row::Pack(number, pack) => {
            batch.put(PACKS, &numbers(&[*number]), &numbers(&[pack.len, pack.live, pack.live_bytes]))
        }
        Row::PackGone(number) => batch.delete(PACKS, &numbers(&[*number])),
        Row::Files(files) => batch.put(META, FILES, &numbers(&[files.blobs, files.bytes])),
    }
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    let mut packed = Vec::new();
    numbers.iter().for_each(|number| packed.put_number(*number));
    packed
}

/// Encodes the length, 8 bytes of time, then nothing or the number of a pack and an offset.
fn entry_value(entry: &Entry) -> Vec<u8> {
    let mut value = Vec::with_capacity(32);
    value.put_number(entry.bytes);
    value.put_bytes(&entry.put_at.nanos().to_be_bytes());
    if let Location::Pack { number, offset } = entry.location {
        value.put_number(number);
        value.put_number(offset);
    }
    value
}

fn read_entry(value: &[u8]) -> Result<Entry, Error> {
    parse_entry(value).ok_or_else(damaged)
}

fn parse_entry(mut value: &[u8]) -> Option<Entry> {
    let bytes = take_number(&mut value)?;
    let put_at = i64::from_be_bytes(take_bytes(&mut value, 8)?.try_into().ok()?);
    let location = match value.is_empty() {
        true => Location::File,
        false => Location::Pack { number: take_number(&mut value)?, offset: take_number(&mut value)? },
    };
    let bytes_limit = match location {
        Location::File => BLOB_BYTES_LIMIT,
        Location::Pack { .. } => PACKED_BYTES_LIMIT, // it is read into memory as a whole
    };
    let is_possible = value.is_empty() && bytes <= bytes_limit;
    is_possible.then_some(Entry { location, bytes, put_at: Timestamp(put_at) })
}

fn read_pack(mut value: &[u8]) -> Result<Pack, Error> {
    let mut next = || take_number(&mut value).ok_or_else(damaged);
    Ok(Pack { len: next()?, live: next()?, live_bytes: next()? })
}

fn read_id(key: &[u8]) -> Result<BlobId, Error> {
    key.try_into().map(BlobId).map_err(|_| damaged())
}

fn damaged() -> Error {
    Error::corrupt("a row is damaged: close the store, move its folder index away, and open it again")
}

impl Pack {
    /// Bytes of the pack that belong to no blob.
    pub(super) fn dead_bytes(&self) -> u64 {
        self.len.saturating_sub(super::schema::PACK_HEADER_BYTES + self.live_bytes)
    }
}

impl Entry {
    pub(super) fn listed(&self, id: BlobId) -> Listed {
        Listed { id, bytes: self.bytes, put_at: self.put_at }
    }

    /// Bytes of its record in a pack.
    pub(super) fn record_bytes(&self) -> u64 {
        record_bytes(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_back_and_others_are_damaged() {
        for location in [Location::File, Location::Pack { number: 3, offset: 70_000 }] {
            let entry = Entry { location, bytes: 1 << 20, put_at: Timestamp(-1) };
            let value = entry_value(&entry);
            assert_eq!(parse_entry(&value), Some(entry));
            assert_eq!(parse_entry(&[&value[..], &[0]].concat()), None, "one byte more");
            assert_eq!(parse_entry(&value[..value.len() - 1]), None, "one byte less");
        }
        let pack = Location::Pack { number: 3, offset: 70_000 };
        for (location, bytes) in [(Location::File, BLOB_BYTES_LIMIT + 1), (pack, PACKED_BYTES_LIMIT + 1)] {
            let long = Entry { location, bytes, put_at: Timestamp(0) };
            assert_eq!(parse_entry(&entry_value(&long)), None, "longer than any blob there");
        }
    }
}
