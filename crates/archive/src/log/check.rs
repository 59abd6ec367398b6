//! `check` and `rebuild`: the log is the truth, an index is what can be made of it.

use std::sync::Arc;

use super::{
    Shared,
    active::Active,
    recover::{Replay, replay},
    schema::{IndexInput, SegmentId, decode_log_header, encode_index},
    seal::{load, write_index},
    sealed::Sealed,
    segment::Segment,
};
use crate::{Error, Finding, Report};

type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Verifies every record of every log and every index against its log.
pub(super) fn check(shared: &Shared, progress: Progress<'_>) -> Report {
    let segments = shared.segments();
    let total = segments.iter().map(Segment::disk_bytes).sum();
    let mut report = Report::default();
    for segment in segments.iter() {
        match segment {
            Segment::Active(active) => check_active(active, &mut report),
            Segment::Sealed(sealed) => check_sealed(sealed, &mut report),
        }
        report.bytes += segment.disk_bytes();
        progress(report.bytes, total);
    }
    report
}

fn check_active(active: &Active, report: &mut Report) {
    let (log_len, rows) = (active.log_len(), active.rows());
    let log = active.log().get(..log_len as usize).unwrap_or_default();
    let replay = add_replay(report, log, &active.id);
    // Messages that came after the lengths were read are no concern of this check.
    if (replay.rows.len() as u64) < rows {
        let what = format!("log has {} sound messages, its index in memory {rows}", replay.rows.len());
        report.add(Finding { part: active.id.log_name(), offset: None, what });
    }
}

fn check_sealed(sealed: &Sealed, report: &mut Report) {
    let replay = add_replay(report, sealed.log(), &sealed.id);
    let part = sealed.id.index_name();
    if !sealed.index.columns_are_sound() {
        report.add(Finding { part, offset: None, what: "checksum of the columns is wrong".into() });
    } else if index_of(sealed, &replay) != sealed.index.bytes() {
        report.add(Finding { part, offset: None, what: "index differs from its log".into() });
    }
}

/// Replays a log and takes over what it found.
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
    report.messages += replay.rows.len() as u64;
    replay
}

/// The bytes of the index that a sealed segment should have.
fn index_of(sealed: &Sealed, replay: &Replay) -> Vec<u8> {
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

/// Makes the index of every sealed segment anew.
pub(super) fn rebuild(shared: &Shared, progress: Progress<'_>) -> Result<Report, Error> {
    let segments = shared.segments();
    let total = segments.iter().map(Segment::disk_bytes).sum();
    let mut report = Report::default();
    for segment in segments.iter() {
        match segment {
            Segment::Active(active) => check_active(active, &mut report), // its index is made when it is sealed
            Segment::Sealed(sealed) => rebuild_sealed(shared, sealed, &mut report)?,
        }
        report.bytes += segment.disk_bytes();
        progress(report.bytes, total);
    }
    Ok(report)
}

fn rebuild_sealed(shared: &Shared, sealed: &Sealed, report: &mut Report) -> Result<(), Error> {
    let replay = add_replay(report, sealed.log(), &sealed.id);
    write_index(shared, &sealed.id, &index_of(sealed, &replay))?;
    let rebuilt = load(shared, sealed.id, sealed.log().len() as u64)?;
    shared.replace(sealed.id.sequence, Segment::Sealed(Arc::new(rebuilt)));
    Ok(())
}
