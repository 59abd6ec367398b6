//! Opening a store: cleaning up after a crash, and indexing records of packs and files that the index lacks.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io,
    ops::Range,
    path::Path,
    sync::Arc,
};

use restante_core::{BlobId, ErrorKind, Timestamp};
use sha2::{Digest, Sha256};
use tracing::{info, warn};

use super::{
    append::Appender,
    index::{Entry, Index, Location, Pack, Row},
    scan::{Found, Scan, read_at_most},
    schema::{
        BLOB_BYTES_LIMIT, FILES, PACK_HEADER_BYTES, PACKS, PART_BYTES, VERSION, file_name, other_version,
        pack_name, pack_number, pack_version,
    },
    shared::Shared,
    sums::Sums,
};
use crate::Error;

/// Rows per write.
const ROWS_AT_ONCE: usize = 1_024;

/// Updates index and ledger from packs and files. Returns the appender, and the packs whose rows could not be written because the
/// disk is full.
pub(super) fn recover(shared: &Arc<Shared>) -> Result<(Appender, BTreeSet<u64>), Error> {
    let index = shared.index()?;
    let counted = index.files()?;
    remove_loose(shared, &index)?;
    // Before rows are written about existing or removed packs: their folder may never have been synced.
    shared.disk.sync_folder(PACKS).map_err(|error| Error::io("sync", PACKS, error))?;
    let known = packs_left(shared, &index)?;
    // Times of later puts of a blob are only in the index. Without it all blobs count as put now, so that none is swept too
    // early.
    let now = counted.is_none().then(|| shared.clock.now());
    let mut recovery = Recovery { shared, index: &index, now, rows: HashMap::new(), is_deferred: false };
    let last = recovery.read_packs(&known)?;
    let is_deferred = recovery.is_deferred;
    match counted {
        Some(files) => shared.ledger.lock().files = files,
        None => recovery.read_files()?,
    }
    let packs = shared.ledger.lock().packs.keys().copied().collect();
    let rows = shared.ledger.lock().rows(&packs);
    let is_changed = counted.is_none() || shared.ledger.lock().packs != known;
    let is_written = !is_deferred && (!is_changed || write_if_space(&index, rows)?);
    let unwritten = if is_written { BTreeSet::new() } else { packs };
    let next = shared.ledger.lock().packs.keys().chain(known.keys()).max().map_or(1, |last| last + 1);
    Ok((Appender::open(shared.clone(), next, last)?, unwritten))
}

/// Removes files that were being created or removed.
fn remove_loose(shared: &Shared, index: &Index) -> Result<(), Error> {
    loop {
        let loose = index.loose(ROWS_AT_ONCE)?;
        if loose.is_empty() {
            return Ok(());
        }
        for id in &loose {
            let (name, [folder, _]) = file_name(*id);
            shared.disk.remove(&name).map_err(|error| Error::io("remove", &name, error))?;
            match shared.disk.sync_folder(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("sync", &folder, error));
                }
                _ => {} // it does not exist
            }
        }
        if !write_if_space(index, loose.into_iter().map(Row::LooseGone).collect())? {
            return Ok(()); // the files are removed, their rows at the next opening
        }
    }
}

/// Writes rows to the index; returns false if the disk is full.
fn write_if_space(index: &Index, rows: Vec<Row>) -> Result<bool, Error> {
    match index.write(rows) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Full => {
            warn!(%error, "the disk is full: the index is written when there is space");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The packs in the index, except removed ones.
fn packs_left(shared: &Shared, index: &Index) -> Result<BTreeMap<u64, Pack>, Error> {
    let mut known = index.packs()?;
    let is_removed =
        |number: u64, pack: &Pack| pack.live == 0 && !shared.disk.path(&pack_name(number)).exists();
    let removed: Vec<u64> =
        known.iter().filter(|(number, pack)| is_removed(**number, pack)).map(|(number, _)| *number).collect();
    for number in &removed {
        known.remove(number);
    }
    write_if_space(index, removed.into_iter().map(Row::PackGone).collect())?;
    Ok(known)
}

struct Recovery<'a> {
    shared: &'a Shared,
    index: &'a Index,
    /// The time at which all blobs count as put, if the index is rebuilt.
    now: Option<Timestamp>,
    /// Rows to write.
    rows: HashMap<BlobId, Entry>,
    /// Whether the disk was full: these rows and all later ones stay in memory, and if the store is opened again before they are
    /// written, the packs are read again.
    is_deferred: bool,
}

impl Recovery<'_> {
    /// Reads the records of all packs that the index lacks; returns the pack to append to, and its length.
    fn read_packs(&mut self, known: &BTreeMap<u64, Pack>) -> Result<Option<(u64, u64)>, Error> {
        self.shared.ledger.lock().packs = known.clone();
        let mut last = None;
        let numbers = self.pack_files()?;
        for number in &numbers {
            let is_newest = Some(number) == numbers.last();
            last = self.read_pack(*number, known.get(number), is_newest)?.map(|len| (*number, len));
        }
        let newest = self.shared.ledger.lock().packs.keys().max().copied();
        let has_room = |(_, len): &(u64, u64)| *len < self.shared.settings.pack_bytes.get();
        Ok(last.filter(has_room).filter(|(number, _)| Some(*number) == newest))
    }

    fn pack_files(&self) -> Result<Vec<u64>, Error> {
        let names = names(&self.shared.disk.path(PACKS)).map_err(|error| Error::io("list", PACKS, error))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| pack_number(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads the records of a pack that the index lacks. Returns its length if it can be appended to.
    fn read_pack(
        &mut self,
        number: u64,
        known: Option<&Pack>,
        is_newest: bool,
    ) -> Result<Option<u64>, Error> {
        let name = pack_name(number);
        let (file, len, header) =
            open_pack(self.shared, &name).map_err(|error| Error::io("read", &name, error))?;
        let version = pack_version(&header);
        if let Some(newer) = version.filter(|version| *version > VERSION) {
            return Err(other_version(&name, newer));
        }
        let from = known.map_or(PACK_HEADER_BYTES, |pack| pack.len);
        let mut is_sound = version.is_some() && len >= from;
        let unsynced = known.map_or(0, |pack| pack.len)..len;
        self.make_durable(&name, &file, unsynced, is_newest)
            .map_err(|error| Error::io("sync", &name, error))?;
        let (mut records, mut unwritten) = (0_u64, None);
        let mut scan = Scan::new(file, from, len);
        while let Some(found) = scan.next().map_err(|error| Error::io("read", &name, error))? {
            match found {
                Found::Record { offset, header, bytes } => {
                    records += 1;
                    let put_at = self.now.unwrap_or(header.put_at);
                    let location = Location::Pack { number, offset };
                    self.take(header.id, Entry { location, bytes: bytes.len() as u64, put_at })?;
                }
                Found::Damage { from, to } => {
                    warn!(pack = number, from, to, "bytes of a pack are no records: a torn end, or damage");
                    is_sound = false;
                }
                Found::Unwritten { from } => unwritten = Some(from),
            }
        }
        if let Some(end) = unwritten {
            let cut = self.shared.disk.open(&name).and_then(|file| file.set_len(end));
            cut.map_err(|error| Error::io("cut", &name, error))?;
        }
        if known.is_none() && version.is_none() && records == 0 && len > PACK_HEADER_BYTES {
            warn!(pack = number, len, "a pack has no record that can be read, and is not used");
            return Ok(None);
        }
        if known.is_none() && version.is_none() && records == 0 {
            // It was being created: it contains no acknowledged blob.
            let removed = self.shared.disk.remove(&name).and_then(|()| self.shared.disk.sync_folder(PACKS));
            removed.map_err(|error| Error::io("remove", &name, error))?;
            return Ok(None);
        }
        if len < from {
            warn!(pack = number, len, known = from, "a pack is shorter than it was");
        }
        let end = unwritten.unwrap_or(len.max(from));
        self.shared.ledger.lock().packs.entry(number).or_default().len = end;
        self.write_rows([number].into())?;
        Ok(is_sound.then_some(end))
    }

    /// Makes durable what is about to be indexed. Beyond the indexed length there may be bytes that were never synced: after a
    /// failed sync, or a kill before it, they are read from the page cache, where they may count as clean. So they are
    /// written again. For a rebuilt index no such length is known: the newest pack, the only one that had no sync after its last byte, is
    /// written again, and others, which somebody may have copied or restored, are only synced.
    fn make_durable(&self, name: &str, file: &File, unsynced: Range<u64>, is_newest: bool) -> io::Result<()> {
        let is_made_anew = self.now.is_some();
        if unsynced.is_empty() && !is_made_anew {
            return Ok(());
        }
        let written = self.shared.disk.open(name)?;
        let mut offset = if is_made_anew && !is_newest { unsynced.end } else { unsynced.start };
        let mut part = vec![0; PART_BYTES as usize];
        while offset < unsynced.end {
            part.truncate(usize::try_from(unsynced.end - offset).unwrap_or(usize::MAX));
            let read = read_at_most(file, &mut part, offset)?;
            if read == 0 {
                break;
            }
            written.write_at(part.get(..read).unwrap_or_default(), offset)?;
            offset += read as u64;
        }
        written.sync()
    }

    /// Records that a blob is at a location, unless it has another one: then only the time counts, if it is later.
    fn take(&mut self, id: BlobId, entry: Entry) -> Result<(), Error> {
        let known = match self.rows.get(&id) {
            Some(known) => Some(*known),
            None => self.shared.find(id)?,
        };
        let put_at = known.map_or(entry.put_at, |known| known.put_at.max(entry.put_at));
        match known {
            Some(known) if known.location != entry.location => {
                if put_at > known.put_at {
                    self.rows.insert(id, Entry { put_at, ..known });
                }
            }
            _ => {
                self.rows.insert(id, Entry { put_at, ..entry });
                self.shared.ledger.lock().add(&entry);
            }
        }
        if self.rows.len() >= ROWS_AT_ONCE { self.write_rows([].into()) } else { Ok(()) }
    }

    /// Writes the waiting rows, and the state of packs that were read to their end: after a crash in between, the rest is read
    /// again.
    fn write_rows(&mut self, packs: BTreeSet<u64>) -> Result<(), Error> {
        let mut rows: Vec<Row> = self.rows.iter().map(|(id, entry)| Row::Blob(*id, *entry)).collect();
        let ledger = self.shared.ledger.lock();
        rows.extend(packs.iter().filter_map(|number| Some(Row::Pack(*number, *ledger.packs.get(number)?))));
        drop(ledger);
        let is_made_anew = self.now.is_some();
        if is_made_anew {
            self.index.write(rows)?;
        } else if self.is_deferred || !write_if_space(self.index, rows)? {
            // All later rows wait too: a row of a pack promises that the index has all blobs before its end.
            self.is_deferred = true;
            self.shared.pending.write().extend(self.rows.drain());
        }
        self.rows.clear();
        Ok(())
    }

    /// Indexes all files, for a rebuilt index.
    fn read_files(&mut self) -> Result<(), Error> {
        let mut read = 0_u64;
        for id in file_ids(self.shared).map_err(|error| Error::io("list", FILES, error))? {
            let id = id.map_err(|error| Error::io("list", FILES, error))?;
            let name = file_name(id).0;
            let found = sum_up(self.shared, &name).map_err(|error| Error::io("read", &name, error))?;
            let Some((_, bytes, sums)) = found.filter(|(hash, ..)| *hash == id) else {
                warn!(file = name, "a file has another hash than its name says, and is not used");
                continue;
            };
            let is_elsewhere = self.index.find(id)?.is_some_and(|known| known.location != Location::File);
            if is_elsewhere {
                self.index.write(vec![Row::Loose(id)])?; // a second copy: the next opening removes it
                continue;
            }
            let put_at = self.now.unwrap_or_default();
            self.index.write(vec![Row::Sums(id, sums)])?;
            self.take(id, Entry { location: Location::File, bytes, put_at })?;
            read += 1;
        }
        let packs = self.shared.ledger.lock().totals().0 - read;
        if read + packs > 0 {
            info!(packed = packs, files = read, "the index of the blobs was rebuilt");
        }
        self.write_rows([].into())
    }
}

/// A pack, its length and its header.
fn open_pack(shared: &Shared, name: &str) -> io::Result<(File, u64, Vec<u8>)> {
    let file = File::open(shared.disk.path(name))?;
    let len = file.metadata()?.len();
    let mut header = vec![0; PACK_HEADER_BYTES as usize];
    let read = read_at_most(&file, &mut header, 0)?;
    header.truncate(read);
    Ok((file, len, header))
}

/// The hash of a file, its length and the checksums of its parts; `None` when it is longer than any blob.
fn sum_up(shared: &Shared, name: &str) -> io::Result<Option<(BlobId, u64, Vec<u8>)>> {
    let file = File::open(shared.disk.path(name))?;
    let (mut hash, mut sums, mut len) = (Sha256::new(), Sums::default(), 0);
    let mut part = vec![0; PART_BYTES as usize];
    loop {
        let read = read_at_most(&file, &mut part, len)?;
        let read_bytes = part.get(..read).unwrap_or_default();
        hash.update(read_bytes);
        sums.add(read_bytes);
        len += read as u64;
        if len > BLOB_BYTES_LIMIT {
            return Ok(None);
        }
        if read < part.len() {
            return Ok(Some((BlobId(hash.finalize().into()), len, sums.finish())));
        }
    }
}

/// The blobs that have files, by the names of the files.
pub(super) fn file_ids(shared: &Shared) -> io::Result<impl Iterator<Item = io::Result<BlobId>> + '_> {
    let root = shared.disk.path(FILES);
    let first = names(&root)?.into_iter().map(move |name| root.join(name));
    let second = first.flat_map(|folder| match names(&folder) {
        Ok(found) => found.into_iter().map(|name| Ok(folder.join(name))).collect(),
        Err(error) => vec![Err(error)],
    });
    let is_ours = |id: &BlobId, file: &Path| shared.disk.path(&file_name(*id).0) == file;
    let third = second.map(move |folder| {
        let folder = folder?;
        let mut ids = Vec::new();
        for name in names(&folder)? {
            ids.extend(name.parse().ok().filter(|id| is_ours(id, &folder.join(&name))));
        }
        Ok(ids)
    });
    Ok(third.flat_map(|ids: io::Result<Vec<BlobId>>| match ids {
        Ok(ids) => ids.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    }))
}

/// The names in a folder; none if it is a file.
pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(vec![]),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}
