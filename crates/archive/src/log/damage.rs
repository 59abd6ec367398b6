//! What is wrong with the files of an archive: which messages are lost, and where damaged files are kept.
//!
//! Nothing that is damaged is removed or truncated. A file that can't keep its name is renamed to `NAME.damaged-1`, and is
//! removed when retention removes its segment.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use tracing::{error, info, warn};

use super::{
    Shared,
    disk::LogDisk,
    schema::{DAMAGED_INFIX, INDEX_SUFFIX, IndexSummary, LIST_NAME, LOG_SUFFIX, SegmentId, sequence_of},
    sealed::Sealed,
    segment::Segments,
    segment_list::{Entries, Entry, ListState, Listed},
};
use crate::{Error, Finding};

/// The most copies of one file that are set aside. If an index is damaged more often, the last copy is overwritten: it can be
/// rebuilt from its log.
const COPIES_MAX: u32 = 9;
/// The most segments that a start logs one by one, and that a sentence names.
const LOGGED_MAX: usize = 20;
const NAMED_MAX: usize = 3;

/// A segment that has lost messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// The file that had them.
    pub(super) part: String,
    pub(super) lost: u64,
    /// Messages that the segment had.
    pub(super) of: u64,
    pub(super) is_gone: bool,
}

impl Loss {
    pub(super) fn finding(&self) -> Finding {
        let Self { lost, of, is_gone, .. } = self;
        let why = if *is_gone { "its log is gone" } else { "its log is damaged" };
        let what = format!("LOST DATA: {lost} of {of} messages of this segment are lost: {why}");
        Finding { part: self.part.clone(), offset: None, what }
    }

    /// The loss of a segment that has `rows` messages now, or is gone.
    pub(super) fn of(entry: &Entry, rows: Option<u64>) -> Option<Self> {
        let lost = entry.rows.saturating_sub(rows.unwrap_or(0));
        let part = format!("{:08}{LOG_SUFFIX}", entry.sequence);
        (lost > 0).then_some(Self { part, lost, of: entry.rows, is_gone: rows.is_none() })
    }
}

/// The segments, and the entries that were listed both before and after the segments were read: what is sealed or removed
/// meanwhile is no loss.
pub(super) fn listed_segments(shared: &Shared) -> (Entries, Segments) {
    let before = shared.list.entries();
    let segments = shared.segments();
    let mut entries = shared.list.entries();
    entries.retain(|sequence, _| before.contains_key(sequence));
    (entries, segments)
}

/// The losses of the archive according to indexes and the list. Damaged records within a log are found when they are read.
pub(super) fn losses(shared: &Shared) -> Vec<Loss> {
    let (entries, segments) = listed_segments(shared);
    let rows: BTreeMap<u64, u64> =
        segments.iter().map(|segment| (segment.sequence(), segment.rows())).collect();
    let of_list = entries.values().filter_map(|entry| Loss::of(entry, rows.get(&entry.sequence).copied()));
    of_list.chain(shared.unlisted_losses.lock().iter().cloned()).collect()
}

/// Counts what is lost and set aside, for metrics and health: called after each change.
pub(super) fn count(shared: &Shared) {
    let losses = losses(shared);
    let lost: u64 = losses.iter().map(|loss| loss.lost).sum();
    *shared.losses.lock() = losses;
    shared.metrics.lost_messages.set(lost as i64);
    shared.metrics.damaged_files.set(shared.damaged_files.load(Ordering::Relaxed) as i64);
}

/// The damage in a sentence for operators; `None` when there is none.
pub(super) fn describe(shared: &Shared) -> Option<String> {
    let losses = shared.losses.lock();
    let mut parts = Vec::new();
    if !losses.is_empty() {
        let lost: u64 = losses.iter().map(|loss| loss.lost).sum();
        let named: Vec<&str> = losses.iter().take(NAMED_MAX).map(|loss| &*loss.part).collect();
        let more = if losses.len() > NAMED_MAX { ", ..." } else { "" };
        parts.push(format!("archived messages that are lost: {lost} ({}{more})", named.join(", ")));
    }
    let rebuilt = shared.metrics.rebuilt_indexes.get();
    if rebuilt > 0 {
        parts.push(format!("damaged indexes made anew since the start: {rebuilt}"));
    }
    let files = shared.damaged_files.load(Ordering::Relaxed);
    if files > 0 {
        parts.push(format!("damaged files set aside: {files}"));
    }
    (!parts.is_empty()).then(|| format!("{}; see 'restante archive check'", parts.join("; ")))
}

/// Renames a damaged file, durably; returns whether the name is free now.
pub(super) fn set_aside(shared: &Shared, name: &str) -> bool {
    let files = shared.disk.list().unwrap_or_default();
    let has = |name: &str| files.iter().any(|(other, _)| other == name);
    if !has(name) {
        return true;
    }
    let aside = |number: u32| format!("{name}{DAMAGED_INFIX}{number}");
    let free = (1..=COPIES_MAX).map(aside).find(|aside| !has(aside));
    let is_log = name.ends_with(LOG_SUFFIX);
    let Some(to) = free.or_else(|| (!is_log).then(|| aside(COPIES_MAX))) else {
        warn!(name, "a damaged log stays where it is: too many of this name are set aside");
        return false;
    };
    let is_new = !has(&to);
    match shared.disk.rename(name, &to).and_then(|()| shared.disk.sync_folder("")) {
        Ok(()) => {
            warn!(name, to, "a damaged file is set aside");
            shared.damaged_files.fetch_add(u64::from(is_new), Ordering::Relaxed);
            true
        }
        Err(error) => {
            warn!(%error, name, "can't set a damaged file aside");
            false
        }
    }
}

/// Removes the files set aside of segments that retention has removed.
pub(super) fn remove_set_aside(shared: &Shared, sequences: &[u64]) {
    if shared.damaged_files.load(Ordering::Relaxed) == 0 {
        return;
    }
    for (name, _) in shared.disk.list().unwrap_or_default() {
        let segment = name.split_once(DAMAGED_INFIX).and_then(|(name, _)| sequence_of(name));
        if !segment.is_some_and(|sequence| sequences.contains(&sequence)) {
            continue;
        }
        match shared.disk.remove(&name) {
            Ok(()) => drop(shared.damaged_files.fetch_sub(1, Ordering::Relaxed)),
            Err(error) => warn!(%error, name, "can't remove a damaged file that was set aside"),
        }
    }
}

/// What is known about the segments during opening, before their logs are read.
pub(super) struct Known<'a> {
    shared: &'a Shared,
    read_only: bool,
    listed: Listed,
    /// What each segment should have: as listed, or else according to its index.
    expected: Entries,
    /// The segments whose logs are in use, by their salts.
    in_use: BTreeMap<u64, u64>,
    /// Entries from indexes that do not belong to the log of their name.
    strangers: Vec<Entry>,
    /// Files to set aside when all is loaded, after their losses are listed.
    aside: Vec<String>,
    findings: Vec<Finding>,
}

impl<'a> Known<'a> {
    /// Reads the list. The folder is listed afterwards: a running server may be changing both.
    pub(super) fn read(shared: &'a Shared, read_only: bool) -> Result<Self, Error> {
        let listed = Listed::read(&*shared.disk)?;
        let expected = listed.entries.clone();
        let (in_use, strangers, aside, findings) = Default::default();
        Ok(Self { shared, read_only, listed, expected, in_use, strangers, aside, findings })
    }

    /// What a segment should have, if it is known; for a segment that is not listed, its index decides.
    pub(super) fn of(&mut self, sequence: u64, index_len: Option<u64>) -> Option<Entry> {
        if let Some(entry) = self.expected.get(&sequence) {
            return Some(*entry);
        }
        let len = usize::try_from(index_len?).ok()?;
        let index = self.shared.disk.map(&index_name(sequence), len).ok()?;
        let entry = Entry::of_index(sequence, &IndexSummary::read(&index)?);
        self.expected.insert(sequence, entry);
        Some(entry)
    }

    /// Whether the log of that name belongs to another segment, or is a copy of another log. Then it is set aside.
    pub(super) fn is_foreign(&mut self, id: &SegmentId) -> bool {
        let is_listed = self.listed.entries.contains_key(&id.sequence);
        let salt = self.expected.get(&id.sequence).map(|entry| entry.salt);
        let differs = salt.is_some_and(|salt| salt != id.salt);
        if (is_listed && differs) || self.in_use.contains_key(&id.salt) {
            self.give_up(id.sequence, "the log is of another segment");
            return true;
        }
        self.in_use.insert(id.salt, id.sequence);
        if differs {
            // Not listed: the log counts, and its index belongs to another one.
            self.strangers.extend(self.expected.remove(&id.sequence));
        }
        false
    }

    /// Sets a segment's files aside: none of its messages can be served.
    pub(super) fn give_up(&mut self, sequence: u64, why: &str) {
        let id = SegmentId { sequence, window_start: 0, window_len: 0, salt: 0 };
        error!(log = id.log_name(), why, "a segment can't be served");
        self.aside.extend([id.log_name(), id.index_name()]);
    }

    /// Notes that an index can't be used and has to be rebuilt from its log.
    pub(super) fn replace_index(&mut self, id: &SegmentId, why: &str) {
        let name = id.index_name();
        warn!(name, why, "an index can't be used: making it anew from its log");
        self.shared.metrics.rebuilt_indexes.inc();
        let what = format!("index can't be used, the server makes it anew from its log: {why}");
        self.findings.push(Finding { part: name.clone(), offset: None, what });
        self.aside.push(name);
    }

    /// Whether the first and the last timestamp of an index are right: they decide which queries need the segment, and the
    /// columns are verified only on first use.
    pub(super) fn has_its_span(&self, sealed: &Sealed) -> bool {
        let entry = Entry::of_sealed(sealed);
        self.listed.entries.get(&entry.sequence) == Some(&entry) || sealed.has_sound_span()
    }

    /// Notes what a segment with a usable index has.
    pub(super) fn found(&mut self, entry: Entry) {
        self.expected.entry(entry.sequence).or_insert(entry);
    }

    /// Called when all logs are loaded: lists what there was, then sets aside what can't be used.
    pub(super) fn settle(mut self, files: &[(String, u64)]) -> Result<(), Error> {
        self.take_indexes_without_logs(files)?;
        let shared = self.shared;
        let last = self.expected.keys().last().copied().unwrap_or(0);
        let names = files.iter().filter_map(|(name, _)| name.split_once(DAMAGED_INFIX));
        let last = names.filter_map(|(name, _)| sequence_of(name)).fold(last, u64::max);
        shared.last_sequence.fetch_max(last, Ordering::Relaxed);
        let of_strangers = self.strangers.iter().filter(|entry| !self.in_use.contains_key(&entry.salt));
        *shared.unlisted_losses.lock() = of_strangers.map(stranger).collect();
        let there = files.iter().filter(|(name, _)| name.contains(DAMAGED_INFIX)).count();
        shared.damaged_files.store(there as u64, Ordering::Relaxed);

        if self.read_only {
            // Segments that a server has listed or removed meanwhile are no loss.
            let now = Listed::read(&*shared.disk)?;
            let changed = |sequence: &u64| now.entries.get(sequence) != self.listed.entries.get(sequence);
            self.expected.retain(|sequence, _| !changed(sequence));
            shared.list.take(self.expected);
            self.findings.extend((self.listed.state == ListState::Damaged).then(list_finding));
            *shared.opening_findings.lock() = self.findings;
        } else {
            if self.listed.state == ListState::Damaged {
                warn!(name = LIST_NAME, "the list of segments is damaged: making it anew from the segments");
                set_aside(shared, LIST_NAME);
            }
            if let Err(error) = shared.list.adopt(&*shared.disk, self.listed, self.expected) {
                warn!(%error, "can't write the list of segments; it is tried again with its next change");
            }
            for name in self.aside {
                set_aside(shared, &name);
            }
        }
        count(shared);
        log_losses(&shared.losses.lock());
        Ok(())
    }

    /// An index without its log: the log is lost, or the process ended while retention was removing both. Retention removes a
    /// segment from the list first.
    fn take_indexes_without_logs(&mut self, files: &[(String, u64)]) -> Result<(), Error> {
        let has = |name: &str| files.binary_search_by(|(other, _)| other.as_str().cmp(name)).is_ok();
        for (name, len) in files.iter().filter(|(name, _)| name.ends_with(INDEX_SUFFIX)) {
            let Some(sequence) = sequence_of(name) else { continue };
            if has(&log_name(sequence)) {
                continue;
            }
            let is_listed = self.listed.entries.contains_key(&sequence);
            let is_removed = !is_listed && self.listed.state == ListState::Sound;
            if !is_removed {
                self.of(sequence, Some(*len)); // what it lists is lost
                self.give_up(sequence, "its log is gone");
            } else if !self.read_only {
                info!(name, "removing an index whose segment was removed");
                self.shared.disk.remove(name).map_err(|error| Error::io("remove", name, error))?;
            }
        }
        Ok(())
    }
}

fn log_name(sequence: u64) -> String {
    format!("{sequence:08}{LOG_SUFFIX}")
}

fn index_name(sequence: u64) -> String {
    format!("{sequence:08}{INDEX_SUFFIX}")
}

/// The loss of a log whose index has the name of another one.
fn stranger(entry: &Entry) -> Loss {
    Loss { part: index_name(entry.sequence), lost: entry.rows, of: entry.rows, is_gone: true }
}

fn list_finding() -> Finding {
    let what = "the list of segments is damaged, it is made anew at the next start; whether a segment is gone can't be \
                said";
    Finding { part: LIST_NAME.to_owned(), offset: None, what: what.to_owned() }
}

fn log_losses(losses: &[Loss]) {
    for loss in losses.iter().take(LOGGED_MAX) {
        let Loss { part, lost, of, is_gone } = loss;
        error!(part, lost, of, is_gone, "LOST DATA: messages of a segment are lost");
    }
    if losses.len() > LOGGED_MAX {
        error!(segments = losses.len() - LOGGED_MAX, "LOST DATA: more segments have lost messages");
    }
}
