//! Backup: the archive as it was between two commits.
//!
//! The writer says how long each open log was when everything written was synced; retention waits until the copy is made. So
//! nothing that the copy needs can change or go away meanwhile: sealed files never change, and what a log gets later lies
//! behind the bytes that are copied.

use std::path::Path;

use super::{
    Shared,
    disk::LogDisk,
    schema::{LOG_HEADER_BYTES, SegmentId},
    segment::Segment,
};
use crate::{
    Error,
    backup::{self, Extent},
};

/// What the archive was made of at one moment.
pub(super) struct Snapshot(Vec<Piece>);

/// A segment that has messages.
struct Piece {
    id: SegmentId,
    log: Extent,
}

/// What is there now. The caller makes sure that all that was written is synced, and that nothing is written meanwhile.
pub(super) fn snapshot(shared: &Shared) -> Snapshot {
    let mut pieces = Vec::new();
    for segment in shared.segments().iter() {
        match segment {
            Segment::Sealed(sealed) => pieces.push(Piece { id: sealed.id, log: Extent::Whole }),
            Segment::Active(active) if active.log_len() > LOG_HEADER_BYTES => {
                pieces.push(Piece { id: active.id, log: Extent::Bytes(active.log_len()) });
            }
            Segment::Active(_) => {} // it may go away at any time, and has nothing
        }
    }
    Snapshot(pieces)
}

/// Writes a copy of what was there into a folder. A log that was open comes without an index; whoever opens the copy replays it.
pub(super) fn write(shared: &Shared, snapshot: &Snapshot, folder: &Path) -> Result<(), Error> {
    backup::require_empty(folder)?;
    for piece in &snapshot.0 {
        copy(shared, &piece.id.log_name(), folder, piece.log)?;
        if piece.log == Extent::Whole {
            copy(shared, &piece.id.index_name(), folder, Extent::Whole)?;
        }
    }
    backup::sync(folder)
}

fn copy(shared: &Shared, name: &str, folder: &Path, extent: Extent) -> Result<(), Error> {
    let copied = shared.disk.copy_out(name, extent, &folder.join(name));
    copied.map_err(|error| Error::io("back up", name, error))
}
