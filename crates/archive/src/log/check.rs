//! `check` and `rebuild`: the log is authoritative, an index is derived from it.

use std::sync::Arc;

use super::{
    Shared,
    active::Active,
    damage::{self, Loss},
    recover::{Replay, replay},
    schema::{IndexInput, SegmentId, decode_log_header, encode_index},
    seal::{FileLens, load, write_index},
    sealed::Sealed,
    segment::Segment,
    segment_list::{Entries, Entry},
};
use crate::{Error, Finding, Report};

type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Verifies every record of every log and every index against its log, and reports lost messages.
pub(super) fn check(shared: &Shared, progress: Progress<'_>) -> Report {
    let (entries, segments) = damage::listed_segments(shared);
    let total = segments.iter().map(Segment::disk_bytes).sum();
    let mut report = Report::default();
    for segment in segments.iter() {
        let rows = match segment {
            Segment::Active(active) => check_active(active, &mut report),
            Segment::Sealed(sealed) => check_sealed(sealed, &mut report),
        };
        report.messages += rows;
        if let Some(entry) = entries.get(&segment.sequence()) {
            report.add_loss(Loss::of(entry, Some(rows)));
        }
        report.bytes += segment.disk_bytes();
        progress(report.bytes, total);
    }
    report_gone(shared, &entries, &segments, &mut report);
    report
}

/// Reports what is lost with segments that are gone, and errors of the list.
fn report_gone(shared: &Shared, entries: &Entries, segments: &[Segment], report: &mut Report) {
    for entry in entries.values() {
        let is_gone = !segments.iter().any(|segment| segment.sequence() == entry.sequence);
        if is_gone {
            report.add_loss(Loss::of(entry, None));
        }
    }
    for loss in shared.unlisted_losses.lock().iter() {
        report.add_loss(Some(loss.clone()));
    }
    for finding in shared.opening_findings.lock().iter() {
        report.add(finding.clone());
    }
}

impl Report {
    fn add_loss(&mut self, loss: Option<Loss>) {
        if let Some(loss) = loss {
            self.lost += loss.lost;
            self.add(loss.finding());
        }
    }
}

/// Returns how many messages are sound.
fn check_active(active: &Active, report: &mut Report) -> u64 {
    let (log_len, rows) = (active.log_len(), active.rows());
    let log = active.log().get(..log_len as usize).unwrap_or_default();
    let replay = add_replay(report, log, &active.id);
    // Messages that arrived after the lengths were read don't matter to this check.
    let sound = replay.rows.len() as u64;
    if sound < rows {
        let what = format!("log has {sound} sound messages, its index in memory {rows}");
        report.add(Finding { part: active.id.log_name(), offset: None, what });
    }
    sound
}

/// Returns how many messages can be served.
fn check_sealed(sealed: &Sealed, report: &mut Report) -> u64 {
    let replay = add_replay(report, sealed.log(), &sealed.id);
    let part = sealed.id.index_name();
    if !sealed.index.columns_are_sound() {
        let what = "checksum of the columns is wrong; the server makes the index anew from its log".into();
        report.add(Finding { part, offset: None, what });
        return replay.rows.len() as u64;
    }
    if index_of(sealed, &replay) == sealed.index.bytes() {
        return replay.rows.len() as u64;
    }
    report.add(Finding { part, offset: None, what: "index differs from its log".into() });
    sealed.sound_rows() as u64
}

/// Replays a log and adds what it found to the report.
fn add_replay(report: &mut Report, log: &[u8], id: &SegmentId) -> Replay {
    let name = id.log_name();
    if let Err(what) = decode_log_header(log) {
        report.add(Finding { part: name.clone(), offset: Some(0), what: what.to_owned() });
    }
    let mut replay = replay(log, id);
    for finding in std::mem::take(&mut replay.findings) {
        report.add(finding);
    }
    if replay.end < log.len() as u64 {
        let what = format!("{} bytes at the end are no sound record", log.len() as u64 - replay.end);
        report.add(Finding { part: name, offset: Some(replay.end), what });
    }
    replay
}

/// The bytes of the index that a sealed segment should have.
pub(super) fn index_of(sealed: &Sealed, replay: &Replay) -> Vec<u8> {
    let mut rows = replay.rows.clone();
    rows.sort_unstable_by_key(|row| row.key);
    encode_index(&IndexInput {
        rows: &rows,
        topics: &replay.topic_names(),
        log_len: sealed.log().len() as u64,
        body_bytes: replay.body_bytes,
        salt: sealed.id.salt,
    })
}

/// Rebuilds the index of every sealed segment, and accepts losses: the report lists them once more, and from now on the list has
/// what exists.
pub(super) fn rebuild(shared: &Shared, progress: Progress<'_>) -> Result<Report, Error> {
    let (entries, segments) = damage::listed_segments(shared);
    let total = segments.iter().map(Segment::disk_bytes).sum();
    let mut report = Report::default();
    for segment in segments.iter() {
        let rows = match segment {
            Segment::Active(active) => check_active(active, &mut report), // its index is built when it is sealed
            Segment::Sealed(sealed) => rebuild_sealed(shared, sealed, &mut report)?,
        };
        report.messages += rows;
        if let Some(entry) = entries.get(&segment.sequence()) {
            report.add_loss(Loss::of(entry, Some(rows)));
        }
        report.bytes += segment.disk_bytes();
        progress(report.bytes, total);
    }
    report_gone(shared, &entries, &segments, &mut report);
    shared.unlisted_losses.lock().clear();
    let sealed = shared.segments().iter().filter_map(listed_now).collect();
    shared.list.replace(&*shared.disk, sealed)?;
    damage::count(shared);
    Ok(report)
}

fn listed_now(segment: &Segment) -> Option<(u64, Entry)> {
    match segment {
        Segment::Sealed(sealed) => Some((segment.sequence(), Entry::of_sealed(sealed))),
        Segment::Active(_) => None, // listed when it is sealed, or the archive is closed
    }
}

/// Returns how many messages can be served.
fn rebuild_sealed(shared: &Shared, sealed: &Sealed, report: &mut Report) -> Result<u64, Error> {
    let replay = add_replay(report, sealed.log(), &sealed.id);
    let rows = replay.rows.len();
    if sealed.columns_are_sound() && sealed.sound_rows() > rows {
        // The names of topics are in the index, too: here they are damaged in the log.
        let what = "index is left as it is: its log says less".to_owned();
        report.add(Finding { part: sealed.id.index_name(), offset: None, what });
        return Ok(sealed.sound_rows() as u64);
    }
    let index = index_of(sealed, &replay);
    write_index(shared, &sealed.id, &index)?;
    let lens = FileLens { log: sealed.log().len() as u64, index: index.len() as u64 };
    let _not_while_removing = shared.replacing.lock();
    let rebuilt = load(shared, sealed.id, lens)?;
    shared.replace(sealed.id.sequence, Segment::Sealed(Arc::new(rebuilt)));
    Ok(rows as u64)
}
