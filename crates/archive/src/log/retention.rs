//! Retention: whole segments are removed by deleting their files.

use restante_core::Timestamp;
use tracing::{info, warn};

use super::{
    Shared, damage,
    segment::{Segment, Span},
};
use crate::{
    Error, Pruned, Retention,
    retention::{LeftByPrune, PartWords},
};

/// The sequence numbers of the segments that `policy` removes, oldest first.
///
/// A segment is removed only when the policy keeps none of its messages, so up to one segment more than configured is kept.
pub(super) fn choose(segments: &[Segment], policy: &Retention, now: Timestamp) -> Vec<u64> {
    let mut by_age: Vec<(Span, &Segment)> =
        segments.iter().filter_map(|segment| Some((segment.span()?, segment))).collect();
    by_age.sort_by_key(|(span, segment)| (span.newest, segment.sequence()));
    let mut kept_bytes: u64 = segments.iter().map(Segment::disk_bytes).sum();
    let mut chosen = Vec::new();
    for (place, (span, segment)) in by_age.iter().enumerate() {
        let younger = by_age.get(place + 1..).unwrap_or_default();
        let is_too_old = policy.oldest_kept(now).is_some_and(|oldest| span.newest < oldest);
        let is_too_many = policy.capacity.is_some_and(|capacity| rows_behind(span, younger) >= capacity);
        let is_too_big = policy.size_bytes.is_some_and(|size| kept_bytes > size) && !younger.is_empty();
        if !(is_too_old || is_too_many || is_too_big) {
            break;
        }
        kept_bytes -= segment.disk_bytes();
        chosen.push(segment.sequence());
    }
    chosen
}

const SEGMENT: PartWords = PartWords {
    one: "a segment",
    many: "segments",
    settings: "archive.log.segment_bytes, archive.log.window_seconds",
};

/// Describes which segment stays although the policy would remove some of its messages, and why; `None` when there is none.
pub(super) fn not_removed(segments: &[Segment], policy: &Retention, now: Timestamp) -> Option<String> {
    let oldest = segments
        .iter()
        .filter_map(|segment| Some((segment.span()?, segment)))
        .min_by_key(|(span, segment)| (span.oldest, segment.sequence()));
    let (span, segment) = oldest?;
    let left = LeftByPrune {
        name: segment.stats().name,
        first: span.oldest,
        messages: segment.rows(),
        disk_bytes: segment.disk_bytes(),
        all_messages: segments.iter().map(Segment::rows).sum(),
        all_disk_bytes: segments.iter().map(Segment::disk_bytes).sum(),
    };
    left.not_removed(policy, now, &SEGMENT)
}

/// Rows of segments that are younger as a whole.
fn rows_behind(span: &Span, younger: &[(Span, &Segment)]) -> u64 {
    younger.iter().filter(|(other, _)| other.oldest > span.newest).map(|(_, segment)| segment.rows()).sum()
}

/// Removes segments that accept no more messages. Queries in progress keep what they have mapped.
///
/// A segment whose log can't be removed stays in use, and the others are removed all the same; the first error is returned. Of
/// lost segments, the list drops those whose messages are all older than `lost_before`, or than a removed one.
pub(super) fn remove(
    shared: &Shared,
    sequences: &[u64],
    lost_before: Option<Timestamp>,
) -> Result<Pruned, Error> {
    let segments = shared.segments();
    let is_chosen = |segment: &&Segment| sequences.contains(&segment.sequence());
    let newest = segments.iter().filter(is_chosen).filter_map(|segment| Some(segment.span()?.newest)).max();
    let mut retiring = lost_segments(shared, lost_before.max(newest));
    retiring.extend(sequences);
    // The list first: a segment that is listed and does not exist is lost.
    let mut listed = shared.list.retire(shared, &retiring);
    let mut pruned = Pruned::default();
    let mut failure = None;
    for segment in segments.iter().filter(is_chosen) {
        match remove_segment(shared, segment) {
            Ok(()) => {
                listed.remove(&segment.sequence());
                info!(part = segment.stats().name, messages = segment.rows(), "segment removed");
                pruned.messages += segment.rows();
                pruned.disk_bytes += segment.disk_bytes();
                pruned.parts += 1;
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    listed.retain(|sequence, _| sequences.contains(sequence));
    shared.list.retired(shared, &retiring, listed);
    damage::remove_set_aside(shared, &retiring);
    damage::count(shared);
    shared.metrics.pruned_messages.inc_by(pruned.messages);
    if pruned.parts > 0 {
        shared.disk.sync_folder("").map_err(|error| Error::io("sync", "the archive's folder", error))?;
    }
    match failure {
        None => Ok(pruned),
        Some(error) => {
            let what = format!("{error}; {} segments were removed", pruned.parts);
            Err(Error::new(error.kind(), what).with_source(error))
        }
    }
}

/// Whether there are such segments.
pub(super) fn has_lost_before(shared: &Shared, oldest_kept: Option<Timestamp>) -> bool {
    !lost_segments(shared, oldest_kept).is_empty()
}

/// Segments that are listed but gone, with messages that are all older than `before`.
fn lost_segments(shared: &Shared, before: Option<Timestamp>) -> Vec<u64> {
    let Some(before) = before else { return Vec::new() };
    let (entries, segments) = damage::listed_segments(shared);
    let is_gone = |sequence: &u64| !segments.iter().any(|segment| segment.sequence() == *sequence);
    let old = entries.values().filter(|entry| entry.span.newest < before).map(|entry| entry.sequence);
    old.filter(is_gone).collect()
}

/// The log is removed first: after that nothing can restore the segment, and an index without a log is removed at the next start
/// at the latest.
fn remove_segment(shared: &Shared, segment: &Segment) -> Result<(), Error> {
    let id = match segment {
        Segment::Active(active) => active.id,
        Segment::Sealed(sealed) => sealed.id,
    };
    remove_file(shared, &id.log_name())?;
    shared.remove_segment(id.sequence);
    if let Err(error) = remove_file(shared, &id.index_name()) {
        warn!(%error, "an index without a log is left; it is removed at the next start");
    }
    Ok(())
}

fn remove_file(shared: &Shared, name: &str) -> Result<(), Error> {
    shared.disk.remove(name).map_err(|error| Error::io("remove", name, error))
}
