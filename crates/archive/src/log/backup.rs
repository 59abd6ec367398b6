//! Backup: the archive as it was between two commits.
//!
//! The writer reports the length of each open log at a moment when all that was written is synced; retention waits until the copy
//! is complete. So nothing that the copy needs can change or disappear meanwhile: sealed files never change, and later records of
//! a log follow the bytes that are copied.

use std::path::Path;

use super::{
    Shared,
    disk::LogDisk,
    schema::{LIST_NAME, LOG_HEADER_BYTES, SegmentId},
    segment::Segment,
    segment_list::{self, Entries, Entry},
};
use crate::{
    Error,
    backup::{self, Extent},
};

/// The files of the archive at one moment.
pub(super) struct Snapshot {
    pieces: Vec<Piece>,
    /// The messages that each segment of the copy should have.
    listed: Entries,
}

/// A segment that has messages.
struct Piece {
    id: SegmentId,
    log: Extent,
}

/// The current files. The caller makes sure that everything written is synced, and that nothing is written meanwhile.
pub(super) fn snapshot(shared: &Shared) -> Snapshot {
    let mut pieces = Vec::new();
    // What is lost here is lost in the copy too.
    let mut listed = shared.list.entries();
    for segment in shared.segments().iter() {
        match segment {
            Segment::Sealed(sealed) => pieces.push(Piece { id: sealed.id, log: Extent::Whole }),
            Segment::Active(active) if active.log_len() > LOG_HEADER_BYTES => {
                let now = Entry::of_active(active, false);
                let known = listed.get(&active.id.sequence).map_or(now, |known| known.and(now));
                listed.insert(active.id.sequence, known);
                pieces.push(Piece { id: active.id, log: Extent::Bytes(active.log_len()) });
            }
            Segment::Active(_) => {} // it may be removed at any time, and is empty
        }
    }
    Snapshot { pieces, listed }
}

/// Writes a copy of the snapshot into a folder. A log that was open is copied without an index; opening the copy replays it.
pub(super) fn write(shared: &Shared, snapshot: &Snapshot, folder: &Path) -> Result<(), Error> {
    backup::require_empty(folder)?;
    for piece in &snapshot.pieces {
        copy(shared, &piece.id.log_name(), folder, piece.log)?;
        if piece.log == Extent::Whole {
            copy(shared, &piece.id.index_name(), folder, Extent::Whole)?;
        }
    }
    if !snapshot.listed.is_empty() {
        let list = folder.join(LIST_NAME);
        backup::create_file(&list, &segment_list::encode(&snapshot.listed))
            .map_err(|error| Error::io("write", list.display(), error))?;
    }
    backup::sync(folder)
}

fn copy(shared: &Shared, name: &str, folder: &Path, extent: Extent) -> Result<(), Error> {
    let copied = shared.disk.copy_out(name, extent, &folder.join(name));
    copied.map_err(|error| Error::io("back up", name, error))
}
