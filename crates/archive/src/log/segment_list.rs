//! The list of segments: what each of them had when it was listed. A segment that has less, or is gone, has lost messages; a
//! segment that retention removes is removed from the list first. `docs/formats/log.md` describes the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use parking_lot::{Mutex, RwLock};
use restante_core::Timestamp;
use tracing::warn;

use super::{
    Shared,
    active::Active,
    disk::{Disk, DiskFile, LogDisk},
    schema::{
        IndexSummary, LIST_NAME, LIST_SLOT_BYTES, OTHER_VERSION, TEMPORARY_SUFFIX, check_list_header,
        decode_list_slot, encode_list_header, encode_list_slot, other_version,
    },
    sealed::Sealed,
    segment::Span,
};
use crate::Error;

/// The span of a segment whose timestamps are unknown: it may have any.
const ANY_TIME: Span = Span { oldest: Timestamp::MIN, newest: Timestamp::MAX };

/// Attempts to read a list that looks damaged: a server may be writing to it.
const READS_MAX: u32 = 3;

/// The minimum contents of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    /// The salt of its log, which identifies it.
    pub(super) salt: u64,
    pub(super) rows: u64,
    /// Bytes of the log that were durable.
    pub(super) log_len: u64,
    pub(super) span: Span,
    /// Whether it accepts no more messages: then its contents are exactly these.
    pub(super) is_sealed: bool,
}

impl Entry {
    pub(super) fn of_active(active: &Active, is_sealed: bool) -> Self {
        Self {
            sequence: active.id.sequence,
            salt: active.id.salt,
            rows: active.rows(),
            log_len: active.log_len(),
            span: active.span().unwrap_or(ANY_TIME),
            is_sealed,
        }
    }

    pub(super) fn of_sealed(sealed: &Sealed) -> Self {
        Self {
            sequence: sealed.id.sequence,
            salt: sealed.id.salt,
            rows: sealed.index.rows as u64,
            log_len: sealed.index.log_len,
            span: sealed.span.unwrap_or(ANY_TIME),
            is_sealed: true,
        }
    }

    /// The entry according to the header of an index.
    pub(super) fn of_index(sequence: u64, summary: &IndexSummary) -> Self {
        let IndexSummary { rows, log_len, salt, span } = *summary;
        Self { sequence, salt, rows, log_len, span: span.unwrap_or(ANY_TIME), is_sealed: true }
    }

    /// The minimum contents of the segment if both are true.
    pub(super) fn and(self, other: Self) -> Self {
        let more = if other.rows >= self.rows { other } else { self };
        Self { is_sealed: self.is_sealed || other.is_sealed, ..more }
    }
}

pub(super) type Entries = BTreeMap<u64, Entry>;

/// The contents of the file.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) entries: Entries,
    pub(super) state: ListState,
    /// The sequence number in each slot after the header.
    slots: Vec<Option<u64>>,
}

/// The condition of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ListState {
    /// It does not exist: the archive is new, or was written before there were lists.
    #[default]
    Absent,
    Sound,
    /// Entries may be missing.
    Damaged,
}

impl Listed {
    /// Reads the list of a folder.
    ///
    /// # Errors
    /// `Corrupt` when its format is newer, and those of the disk.
    pub(super) fn read(disk: &dyn Disk) -> Result<Self, Error> {
        let mut listed = Self::read_once(disk)?;
        for _ in 1..READS_MAX {
            if listed.state != ListState::Damaged {
                break;
            }
            listed = Self::read_once(disk)?;
        }
        Ok(listed)
    }

    fn read_once(disk: &dyn Disk) -> Result<Self, Error> {
        let bytes = match disk.read(LIST_NAME) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Error::io("read", LIST_NAME, error)),
        };
        match check_list_header(&bytes) {
            Ok(()) => Ok(Self::decode(&bytes)),
            Err(OTHER_VERSION) => Err(other_version(LIST_NAME, &bytes)),
            Err(_) => Ok(Self { state: ListState::Damaged, ..Self::decode(&bytes) }),
        }
    }

    fn decode(bytes: &[u8]) -> Self {
        let mut listed = Self { state: ListState::Sound, ..Self::default() };
        for slot in bytes.chunks(LIST_SLOT_BYTES).skip(1) {
            let is_free = slot.len() == LIST_SLOT_BYTES && slot.iter().all(|byte| *byte == 0);
            let entry = decode_list_slot(slot);
            listed.slots.push(entry.map(|entry| entry.sequence));
            let is_repeated =
                entry.is_some_and(|entry| listed.entries.insert(entry.sequence, entry).is_some());
            if is_repeated || (entry.is_none() && !is_free) {
                listed.state = ListState::Damaged;
            }
        }
        listed
    }
}

/// The list while the archive is open. The copy in memory is authoritative; the file follows it, and if it could not be written,
/// the next change tries again.
#[derive(Default)]
pub(super) struct SegmentList {
    entries: RwLock<Entries>,
    file: Mutex<ListFile>,
}

#[derive(Default)]
struct ListFile {
    /// `None` until it is created, or created again.
    file: Option<Box<dyn DiskFile>>,
    /// The sequence number in each slot after the header.
    slots: Vec<Option<u64>>,
    /// Slots that differ from what the file has.
    changed: BTreeSet<usize>,
    /// Segments that are being removed: they are not listed again.
    retiring: BTreeSet<u64>,
}

impl SegmentList {
    /// The current entries.
    pub(super) fn entries(&self) -> Entries {
        self.entries.read().clone()
    }

    /// Takes over entries without writing the file.
    pub(super) fn take(&self, entries: Entries) {
        *self.entries.write() = entries;
    }

    /// Takes over entries and writes those that the file does not have. When writing fails they are in effect all the same.
    pub(super) fn adopt(&self, disk: &dyn Disk, listed: Listed, entries: Entries) -> Result<(), Error> {
        let mut file = self.file.lock();
        self.take(entries);
        if listed.state != ListState::Sound {
            return self.flush(disk, &mut file);
        }
        file.slots = listed.slots;
        let entries = self.entries();
        let changed = entries.values().filter(|entry| listed.entries.get(&entry.sequence) != Some(entry));
        let gone = listed.entries.keys().filter(|sequence| !entries.contains_key(sequence));
        for sequence in changed.map(|entry| &entry.sequence).chain(gone) {
            file.change(*sequence);
        }
        // A backup may have the file under another name.
        let opened = disk.own(LIST_NAME).and_then(|()| disk.open(LIST_NAME));
        file.file = Some(opened.map_err(|error| Error::io("open", LIST_NAME, error))?);
        self.flush(disk, &mut file)
    }

    /// Replaces all entries.
    pub(super) fn replace(&self, disk: &dyn Disk, entries: Entries) -> Result<(), Error> {
        let mut file = self.file.lock();
        let before = std::mem::replace(&mut *self.entries.write(), entries.clone());
        for sequence in before.keys().chain(entries.keys()) {
            if before.get(sequence) != entries.get(sequence) {
                file.change(*sequence);
            }
        }
        self.flush(disk, &mut file)
    }

    /// Lists segments before their indexes exist; returns those that are being removed instead.
    pub(super) fn put(&self, shared: &Shared, entries: &[Entry]) -> Result<Vec<u64>, Error> {
        let mut file = self.file.lock();
        let mut gone = Vec::new();
        for entry in entries {
            let sequence = entry.sequence;
            let is_there = shared.segments().iter().any(|segment| segment.sequence() == sequence);
            if file.retiring.contains(&sequence) || !is_there {
                gone.push(sequence);
                continue;
            }
            let mut listed = self.entries.write();
            let known = listed.get(&sequence).map_or(*entry, |known| known.and(*entry));
            if listed.insert(sequence, known) != Some(known) {
                drop(listed);
                file.change(sequence);
            }
        }
        self.flush(&*shared.disk, &mut file)?;
        Ok(gone)
    }

    /// Removes segments from the list before their files are removed; returns what was listed. If the list can't be written this
    /// continues, because removing files may be what frees space on a full disk: [`SegmentList::retired`] writes the list again.
    pub(super) fn retire(&self, shared: &Shared, sequences: &[u64]) -> Entries {
        let mut file = self.file.lock();
        let mut taken = Entries::new();
        for sequence in sequences {
            file.retiring.insert(*sequence);
            if let Some(entry) = self.entries.write().remove(sequence) {
                taken.insert(*sequence, entry);
                file.change(*sequence);
            }
        }
        self.flush_or_warn(shared, &mut file);
        taken
    }

    /// Ends [`SegmentList::retire`]; `kept` has the segments that could not be removed.
    pub(super) fn retired(&self, shared: &Shared, sequences: &[u64], kept: Entries) {
        let mut file = self.file.lock();
        for (sequence, entry) in kept {
            self.entries.write().insert(sequence, entry);
            file.change(sequence);
        }
        file.retiring.retain(|sequence| !sequences.contains(sequence));
        self.flush_or_warn(shared, &mut file);
    }

    fn flush_or_warn(&self, shared: &Shared, file: &mut ListFile) {
        if let Err(error) = self.flush(&*shared.disk, file) {
            warn!(%error, "can't write the list of segments; it is tried again with its next change");
        }
    }

    /// Writes the changed slots, durably.
    fn flush(&self, disk: &dyn Disk, list: &mut ListFile) -> Result<(), Error> {
        let entries = self.entries();
        let failed = |error| Error::io("write", LIST_NAME, error);
        let Some(file) = &list.file else {
            if entries.is_empty() && list.changed.is_empty() {
                return Ok(()); // there may be no file yet
            }
            list.slots = entries.keys().copied().map(Some).collect();
            list.file = Some(write_anew(disk, &entries).map_err(failed)?);
            list.changed.clear();
            return Ok(());
        };
        if list.changed.is_empty() {
            return Ok(());
        }
        for slot in &list.changed {
            let entry = list.slots.get(*slot).copied().flatten().and_then(|sequence| entries.get(&sequence));
            let bytes = entry.map_or_else(|| vec![0; LIST_SLOT_BYTES], encode_list_slot);
            file.write_at(&bytes, ((slot + 1) * LIST_SLOT_BYTES) as u64).map_err(failed)?;
        }
        file.sync().map_err(failed)?;
        // Slots of entries that were removed are free from now on.
        for slot in list.slots.iter_mut() {
            *slot = slot.filter(|sequence| entries.contains_key(sequence));
        }
        list.changed.clear();
        Ok(())
    }
}

impl ListFile {
    /// Notes that the entry of a segment has changed, and assigns a slot if it has none.
    fn change(&mut self, sequence: u64) {
        let known = self.slots.iter().position(|slot| *slot == Some(sequence));
        let slot = known.or_else(|| self.slots.iter().position(Option::is_none)).unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            Some(free) => *free = Some(sequence),
            None => self.slots.push(Some(sequence)),
        }
        self.changed.insert(slot);
    }
}

/// The bytes of a list.
pub(super) fn encode(entries: &Entries) -> Vec<u8> {
    let mut bytes = encode_list_header();
    for entry in entries.values() {
        bytes.extend_from_slice(&encode_list_slot(entry));
    }
    bytes
}

fn write_anew(disk: &dyn Disk, entries: &Entries) -> io::Result<Box<dyn DiskFile>> {
    let temporary = LIST_NAME.to_owned() + TEMPORARY_SUFFIX;
    disk.remove(&temporary)?;
    let file = disk.create(&temporary)?;
    file.write_at(&encode(entries), 0)?;
    file.sync()?;
    disk.rename(&temporary, LIST_NAME)?;
    disk.sync_folder("")?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::log::{
        disk::Folder,
        open::share,
        schema::{LOG_HEADER_BYTES, SegmentId},
        segment::Segment,
        tests::config,
    };

    fn entry(sequence: u64, rows: u64) -> Entry {
        let span = Span { oldest: Timestamp(1), newest: Timestamp(2) };
        Entry { sequence, salt: sequence, rows, log_len: 100, span, is_sealed: true }
    }

    /// An archive with these segments, as far as the list needs them.
    fn shared(folder: &std::path::Path, sequences: &[u64]) -> Arc<Shared> {
        let shared = share(Arc::new(Folder::new(folder)), &config(), None);
        shared.change_segments(|segments| {
            for sequence in sequences {
                let id = SegmentId { window_start: 0, window_len: 1, sequence: *sequence, salt: *sequence };
                let log = vec![0; LOG_HEADER_BYTES as usize].into();
                segments.push(Segment::Active(Arc::new(Active::new(id, log))));
            }
        });
        shared
    }

    fn listed(shared: &Shared) -> Vec<u64> {
        let listed = Listed::read(&*shared.disk).unwrap();
        assert_eq!(listed.state, ListState::Sound);
        assert_eq!(listed.entries, shared.list.entries());
        listed.entries.into_keys().collect()
    }

    #[test]
    fn the_file_follows_each_change_and_slots_are_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let shared = shared(folder.path(), &[1, 2, 3, 4]);
        let len = || std::fs::metadata(folder.path().join(LIST_NAME)).unwrap().len() as usize;
        shared.list.put(&shared, &[entry(1, 10)]).unwrap();
        shared.list.put(&shared, &[entry(2, 10), entry(3, 10)]).unwrap();
        assert_eq!((listed(&shared), len()), (vec![1, 2, 3], 4 * LIST_SLOT_BYTES));
        shared.list.retire(&shared, &[2]);
        assert_eq!(listed(&shared), [1, 3], "before its files go");
        shared.list.retired(&shared, &[2], Entries::new());
        shared.list.put(&shared, &[entry(4, 10)]).unwrap();
        assert_eq!((listed(&shared), len()), (vec![1, 3, 4], 4 * LIST_SLOT_BYTES));
    }

    #[test]
    fn a_segment_that_is_removed_is_not_listed_again() {
        let folder = tempfile::tempdir().unwrap();
        let shared = shared(folder.path(), &[1, 2]);
        shared.list.put(&shared, &[entry(1, 10)]).unwrap();
        let taken = shared.list.retire(&shared, &[1, 2]);
        assert_eq!(shared.list.put(&shared, &[entry(2, 10)]).unwrap(), [2], "it is sealed meanwhile");
        assert_eq!(shared.list.put(&shared, &[entry(9, 10)]).unwrap(), [9], "it is gone");
        // The first can't be removed.
        shared.list.retired(&shared, &[1, 2], taken);
        assert_eq!(listed(&shared), [1]);
    }

    #[test]
    fn what_a_segment_had_is_not_forgotten_when_it_has_less() {
        let folder = tempfile::tempdir().unwrap();
        let shared = shared(folder.path(), &[1]);
        shared.list.put(&shared, &[entry(1, 10)]).unwrap();
        shared.list.put(&shared, &[entry(1, 6)]).unwrap();
        assert_eq!(shared.list.entries()[&1].rows, 10);
        shared.list.put(&shared, &[entry(1, 12)]).unwrap();
        assert_eq!(shared.list.entries()[&1].rows, 12);
    }

    #[test]
    fn any_flipped_byte_of_the_list_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let shared = shared(folder.path(), &[1, 2]);
        shared.list.put(&shared, &[entry(1, 10), entry(2, 10)]).unwrap();
        let path = folder.path().join(LIST_NAME);
        let sound = std::fs::read(&path).unwrap();
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, damaged).unwrap();
            let listed = Listed::read(&*shared.disk).unwrap();
            assert_eq!(listed.state, ListState::Damaged, "byte {at}");
            assert!(!listed.entries.is_empty(), "the other entries are read");
        }
    }
}
