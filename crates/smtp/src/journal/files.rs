//! The files of the journal. Each kind of entries has a sequence of them; the last one is appended to.

use std::{collections::VecDeque, io, sync::Arc};

use restante_core::{Error, Timestamp};
use restante_disk::{Disk, DiskFile};
use tracing::warn;

use super::{
    DeliveryEntry, Outcome,
    format::{self, HEADER_BYTES, View},
};

/// A file holds the entries of at most one day, so that old ones are removed as whole files.
const FILE_SECONDS: i64 = 86_400;
/// The suffix of a file that replaces another one when it is complete.
const NEW: &str = ".new";

/// The kinds of entries, each with its own files and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Messages that were stored, now or before, and final outcomes in the queue.
    Stored,
    /// All others.
    Refused,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Stored, Self::Refused];

    pub(super) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Stored(_)
            | Outcome::Junk { .. }
            | Outcome::Quarantined(_)
            | Outcome::Repeated
            | Outcome::Queued
            | Outcome::Sent(_)
            | Outcome::Failed(_)
            | Outcome::Reported(_)
            | Outcome::Released { .. }
            | Outcome::NotReleased(_)
            | Outcome::Dropped(_) => Self::Stored,
            // A postponed recipient has many of them.
            Outcome::Refused(_) | Outcome::BrokenOff | Outcome::Postponed(_) => Self::Refused,
        }
    }

    /// What the names of its files begin with.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Stored => "stored-",
            Self::Refused => "refused-",
        }
    }

    fn file(self, number: u64) -> String {
        format!("{}{number:08}", self.prefix())
    }

    fn number(self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(self.prefix())?;
        let is_number = digits.len() >= 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { digits.parse().ok() } else { None }
    }
}

/// The bounds of the entries of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) bytes: u64,
    pub(super) entries: u64,
    pub(super) file_bytes: u64,
    pub(super) file_entries: u64,
    /// Of entries that wait to be written.
    pub(super) batch_bytes: u64,
}

/// Entries that are written together.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    pub(super) entries: u64,
    oldest: Timestamp,
    newest: Timestamp,
}

impl Default for Batch {
    fn default() -> Self {
        Self { bytes: Vec::new(), entries: 0, oldest: Timestamp::MAX, newest: Timestamp::MIN }
    }
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Adds an entry; returns whether there was space for it.
    pub(super) fn push(&mut self, entry: &DeliveryEntry, limits: &Limits) -> bool {
        let before = self.bytes.len();
        format::write(entry, &mut self.bytes);
        let is_full = self.bytes.len() as u64 > limits.batch_bytes.saturating_sub(HEADER_BYTES)
            || self.entries >= limits.file_entries;
        if is_full {
            self.bytes.truncate(before);
            return false;
        }
        self.entries += 1;
        self.oldest = self.oldest.min(entry.time);
        self.newest = self.newest.max(entry.time);
        true
    }
}

/// A file.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    name: String,
    bytes: u64,
    entries: u64,
    pub(super) oldest: Timestamp,
    newest: Timestamp,
    /// Whether a write has failed and left something after the last entry.
    is_damaged: bool,
}

impl Segment {
    fn new(kind: Kind, number: u64) -> Self {
        Self {
            name: kind.file(number),
            bytes: HEADER_BYTES,
            entries: 0,
            oldest: Timestamp::MAX,
            newest: Timestamp::MIN,
            is_damaged: false,
        }
    }

    fn add(&mut self, view: &View<'_>) {
        self.entries += 1;
        self.oldest = self.oldest.min(view.time);
        self.newest = self.newest.max(view.time);
    }

    /// Whether these entries must go to another file.
    fn is_full_for(&self, batch: &Batch, limits: &Limits) -> bool {
        self.is_damaged
            || self.bytes + batch.bytes.len() as u64 > limits.file_bytes
            || self.entries + batch.entries > limits.file_entries
            || (self.entries > 0 && self.oldest.plus_seconds(FILE_SECONDS) <= batch.newest)
    }
}

/// A file, open for writing if it may be appended to.
type OpenSegment = (Segment, Option<Box<dyn DiskFile>>);

/// The files of one kind, the oldest first.
struct Row {
    kind: Kind,
    segments: VecDeque<Segment>,
    /// The last one, if it is open for writing.
    last: Option<Box<dyn DiskFile>>,
    next_number: u64,
}

impl Row {
    fn new(kind: Kind) -> Self {
        Self { kind, segments: VecDeque::new(), last: None, next_number: 1 }
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    fn entries(&self) -> u64 {
        self.segments.iter().map(|segment| segment.entries).sum()
    }

    fn sync(&self) -> Result<(), Error> {
        match (&self.last, self.segments.back()) {
            (Some(file), Some(segment)) => file.sync().map_err(|error| failed("sync", &segment.name, error)),
            _ => Ok(()),
        }
    }

    /// Removes the oldest file.
    fn remove_first(&mut self, disk: &dyn Disk) -> Result<(), Error> {
        let Some(first) = self.segments.front() else { return Ok(()) };
        disk.remove(&first.name).map_err(|error| failed("remove", &first.name, error))?;
        self.segments.pop_front();
        if self.segments.is_empty() {
            self.last = None;
        }
        Ok(())
    }

    /// Removes the oldest files until there is space for more.
    fn make_space(&mut self, disk: &dyn Disk, batch: &Batch, limits: &Limits) -> Result<(), Error> {
        let bytes = batch.bytes.len() as u64 + HEADER_BYTES;
        while !self.segments.is_empty()
            && (self.bytes() + bytes > limits.bytes || self.entries() + batch.entries > limits.entries)
        {
            self.remove_first(disk)?;
        }
        Ok(())
    }

    fn append(&mut self, disk: &dyn Disk, batch: &Batch, limits: &Limits) -> Result<(), Error> {
        self.make_space(disk, batch, limits)?;
        let is_full = self.segments.back().is_none_or(|last| last.is_full_for(batch, limits));
        if is_full || self.last.is_none() {
            self.begin_file(disk)?;
        }
        let (Some(file), Some(segment)) = (&self.last, self.segments.back_mut()) else {
            return Err(Error::internal("the journal of deliveries has no file"));
        };
        if let Err(error) = file.write_at(&batch.bytes, segment.bytes) {
            let name = segment.name.clone();
            // A part may have been written, which would look like damage. If it can't be removed, another file is begun.
            segment.is_damaged = file.set_len(segment.bytes).is_err();
            return Err(failed("write", &name, error));
        }
        segment.bytes += batch.bytes.len() as u64;
        segment.entries += batch.entries;
        segment.oldest = segment.oldest.min(batch.oldest);
        segment.newest = segment.newest.max(batch.newest);
        Ok(())
    }

    fn begin_file(&mut self, disk: &dyn Disk) -> Result<(), Error> {
        let synced = self.sync();
        self.last = None;
        synced?;
        let segment = Segment::new(self.kind, self.next_number);
        self.next_number += 1; // also after an error: the file may exist
        let begun = disk.create(&segment.name).and_then(|file| {
            file.write_at(&format::header(), 0)?;
            disk.sync_folder("")?;
            Ok(file)
        });
        match begun {
            Ok(file) => {
                self.last = Some(file);
                self.segments.push_back(segment);
                Ok(())
            }
            Err(error) => {
                let _ = disk.remove(&segment.name); // otherwise it is removed when the journal is opened
                Err(failed("create", &segment.name, error))
            }
        }
    }

    /// Rewrites a file without some entries; returns how many were removed. `None` instead of a file that has no entries left.
    fn erase_in(
        disk: &dyn Disk,
        segment: &Segment,
        is_erased: &dyn Fn(&View<'_>) -> bool,
    ) -> Result<(u64, Option<Segment>), Error> {
        let name = &segment.name;
        let file = disk.read(name).map_err(|error| failed("read", name, error))?;
        let mut left =
            Segment { entries: 0, oldest: Timestamp::MAX, newest: Timestamp::MIN, ..segment.clone() };
        let mut bytes = format::header();
        for (record, view) in format::records(&file, name)?.into_iter().flatten() {
            if !is_erased(&view) {
                bytes.extend_from_slice(record);
                left.add(&view);
            }
        }
        let erased = segment.entries.saturating_sub(left.entries);
        if erased == 0 && !segment.is_damaged {
            return Ok((0, Some(segment.clone())));
        }
        if left.entries == 0 {
            disk.remove(name).map_err(|error| failed("remove", name, error))?;
            return Ok((erased, None));
        }
        // Damaged bytes may be an entry of the account, and are removed too.
        (left.bytes, left.is_damaged) = (bytes.len() as u64, false);
        let new = format!("{name}{NEW}");
        let written = disk.remove(&new).and_then(|()| {
            let file = disk.create(&new)?;
            file.write_at(&bytes, 0)?;
            file.sync()?;
            disk.rename(&new, name)
        });
        written.map_err(|error| failed("rewrite", name, error))?;
        Ok((erased, Some(left)))
    }
}

/// All files of a folder.
pub(super) struct Files {
    disk: Arc<dyn Disk>,
    limits: Limits,
    rows: [Row; 2],
    /// The result of reading the folder. After an error every call fails until the next start.
    loaded: Option<Result<(), Error>>,
}

impl Files {
    /// The files of a folder. They are read on first use.
    pub(super) fn new(disk: Arc<dyn Disk>, limits: Limits) -> Self {
        Self { disk, limits, rows: Kind::ALL.map(Row::new), loaded: None }
    }

    /// The size of all files in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.rows.iter().map(Row::bytes).sum()
    }

    /// Appends entries. After an error none of them is stored.
    pub(super) fn append(&mut self, kind: Kind, batch: &Batch) -> Result<(), Error> {
        self.load()?;
        let [stored, refused] = &mut self.rows;
        let row = if kind == Kind::Stored { stored } else { refused };
        row.append(&*self.disk, batch, &self.limits)
    }

    /// Removes the files whose entries are all older than this.
    pub(super) fn expire(&mut self, before: Timestamp) -> Result<(), Error> {
        self.load()?;
        for row in &mut self.rows {
            while row.segments.front().is_some_and(|first| first.newest < before) {
                row.remove_first(&*self.disk)?;
            }
        }
        Ok(())
    }

    /// Makes what was appended durable.
    pub(super) fn sync(&self) -> Result<(), Error> {
        self.rows.iter().try_for_each(Row::sync)
    }

    /// The files of each kind that have entries, the oldest first.
    pub(super) fn segments(&mut self) -> Result<[Vec<Segment>; 2], Error> {
        self.load()?;
        let with_entries =
            |row: &Row| row.segments.iter().filter(|segment| segment.entries > 0).cloned().collect();
        Ok(self.rows.each_ref().map(with_entries))
    }

    /// Removes entries, durably; returns how many were removed.
    pub(super) fn erase(&mut self, is_erased: &dyn Fn(&View<'_>) -> bool) -> Result<u64, Error> {
        self.load()?;
        let mut erased = 0;
        for row in &mut self.rows {
            row.last = None; // it may be replaced; the next entries begin a file
            let mut at = 0;
            while let Some(segment) = row.segments.get_mut(at) {
                let (entries, left) = Row::erase_in(&*self.disk, segment, is_erased)?;
                erased += entries;
                match left {
                    Some(left) => {
                        *segment = left;
                        at += 1;
                    }
                    None => drop(row.segments.remove(at)),
                }
            }
        }
        self.disk.sync_folder("").map_err(|error| failed("sync", "the folder", error))?;
        Ok(erased)
    }

    /// Reads the folder, unless that was done.
    fn load(&mut self) -> Result<(), Error> {
        if self.loaded.is_none() {
            self.loaded = Some(load_rows(&*self.disk, &mut self.rows));
        }
        match &self.loaded {
            Some(Err(error)) => Err(error.duplicate()),
            _ => Ok(()),
        }
    }
}

fn load_rows(disk: &dyn Disk, rows: &mut [Row; 2]) -> Result<(), Error> {
    let listed = disk.list().map_err(|error| failed("list", "the folder", error))?;
    for row in rows {
        let mut numbers = Vec::new();
        for (name, _) in &listed {
            let replaced = name.strip_suffix(NEW);
            if replaced.is_some_and(|replaced| row.kind.number(replaced).is_some()) {
                disk.remove(name).map_err(|error| failed("remove", name, error))?;
            }
            numbers.extend(row.kind.number(name));
        }
        numbers.sort_unstable(); // a name of nine digits is listed before one of eight
        for number in numbers {
            row.next_number = number.saturating_add(1);
            if let Some((segment, file)) = load_file(disk, row.kind, number)? {
                row.segments.push_back(segment);
                row.last = file;
            }
        }
    }
    Ok(())
}

/// Reads a file and truncates what a crash or a damaged disk has left after its last complete entry. A file without entries is removed.
fn load_file(disk: &dyn Disk, kind: Kind, number: u64) -> Result<Option<OpenSegment>, Error> {
    let mut segment = Segment::new(kind, number);
    let name = segment.name.clone();
    let content = disk.read(&name).map_err(|error| failed("read", &name, error))?;
    let mut is_current = false;
    if let Some(mut records) = format::records(&content, &name)? {
        is_current = records.is_current;
        for (_, view) in records.by_ref() {
            segment.add(&view);
        }
        segment.bytes = records.read;
    }
    if segment.entries == 0 {
        disk.remove(&name).map_err(|error| failed("remove", &name, error))?;
        return Ok(None);
    }
    let file = disk.open(&name).map_err(|error| failed("open", &name, error))?;
    let unread = (content.len() as u64).saturating_sub(segment.bytes);
    if unread > 0 {
        let entries = segment.entries;
        warn!(
            file = name,
            entries, unread, "the journal of deliveries is damaged after these entries: the rest is cut off"
        );
        file.set_len(segment.bytes).map_err(|error| failed("cut", &name, error))?;
    }
    Ok(Some((segment, is_current.then_some(file))))
}

/// The newest entries that match, at most `limit`, the newest first.
pub(super) fn newest(
    disk: &dyn Disk,
    segments: &[Segment],
    since: Timestamp,
    limit: usize,
    matches: &dyn Fn(&View<'_>) -> bool,
) -> Result<Vec<DeliveryEntry>, Error> {
    let mut found = Vec::new();
    for segment in segments.iter().rev() {
        if found.len() >= limit {
            break;
        }
        if segment.newest < since {
            continue; // earlier ones may be newer: clocks can be set back
        }
        let file = match disk.read(&segment.name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // removed meanwhile
            Err(error) => return Err(failed("read", &segment.name, error)),
        };
        // Only the last matches of a file are converted to entries: a file may have thousands.
        let mut last = Latest { entries: VecDeque::new(), limit: limit - found.len() };
        for (_, view) in format::records(&file, &segment.name)?.into_iter().flatten() {
            if view.time >= since && matches(&view) {
                last.push(view);
            }
        }
        found.extend(last.into_newest_first().map(View::to_entry));
    }
    Ok(found)
}

/// The last items of a walk.
struct Latest<'f> {
    entries: VecDeque<View<'f>>,
    limit: usize,
}

impl<'f> Latest<'f> {
    fn push(&mut self, view: View<'f>) {
        if self.entries.len() >= self.limit {
            self.entries.pop_front();
        }
        self.entries.push_back(view);
    }

    fn into_newest_first(self) -> impl Iterator<Item = View<'f>> {
        self.entries.into_iter().rev()
    }
}

fn failed(what: &str, name: &str, error: io::Error) -> Error {
    Error::io(what, format!("{name} of the journal of deliveries"), error)
}
