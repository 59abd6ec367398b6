//! Reclaiming space: the blobs of a pack that is less than half in use are appended to another, and the pack is removed.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::File,
};

use bytes::Bytes;
use restante_core::BlobId;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{
    append::{Appender, Record},
    index::{Entry, Location, Row},
    queue::MaintenancePermit,
    scan::{Found, Scan},
    schema::{PACK_HEADER_BYTES, PACKS, pack_name},
    shared::Shared,
    write::{Move, Writer},
};
use crate::Error;

/// Bytes of a pack that are read before waiting puts get their turn.
const STEP_BYTES: u64 = 4 << 20;

/// The packs to rewrite, and the removal that waits for it.
#[derive(Default)]
pub(super) struct Rewrites {
    waiting: VecDeque<u64>,
    current: Option<(u64, Option<Scan>)>,
    /// Packs with unreadable blobs, which stay.
    damaged: BTreeSet<u64>,
    removal: Option<Removal>,
}

/// A removal that is answered when the space is reclaimed.
struct Removal {
    removed: u64,
    answer: oneshot::Sender<Result<u64, Error>>,
    _permit: MaintenancePermit,
}

impl Rewrites {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.current.is_none()
    }

    /// Selects packs after a removal, which is answered when they are rewritten.
    pub(super) fn begin(
        &mut self,
        shared: &Shared,
        appender: &mut Appender,
        removed: Result<u64, Error>,
        permit: MaintenancePermit,
        answer: oneshot::Sender<Result<u64, Error>>,
    ) {
        let removed = match removed.and_then(|removed| appender.sync().map(|()| removed)) {
            Ok(removed) => removed,
            Err(error) => return drop(answer.send(Err(error))),
        };
        self.removal = Some(Removal { removed, answer, _permit: permit });
        for (number, pack) in &shared.ledger.lock().packs {
            let can_go = pack.live == 0 || !self.damaged.contains(number);
            let is_worth_it = pack.live_bytes < pack.dead_bytes() && can_go;
            if !is_worth_it {
                continue;
            }
            appender.leave(*number);
            if pack.live == 0 {
                self.waiting.push_front(*number); // empty packs first: moving needs space when the disk is full
            } else {
                self.waiting.push_back(*number);
            }
        }
        self.answer_when_idle();
    }

    /// Stops for now; moved blobs stay moved, and the next removal continues.
    pub(super) fn stop(&mut self) {
        self.waiting.clear();
        self.current = None;
        self.answer_when_idle();
    }

    fn answer_when_idle(&mut self) {
        if self.is_idle()
            && let Some(removal) = self.removal.take()
        {
            let _ = removal.answer.send(Ok(removal.removed)); // the caller may be gone
        }
    }
}

/// A blob to move.
struct Moved {
    id: BlobId,
    entry: Entry,
    bytes: Bytes,
}

impl Writer {
    /// Continues with the current pack, or begins with the next.
    pub(super) fn rewrite_some(&mut self) {
        if self.rewrites.is_idle() {
            return;
        }
        let done = self.shared.check_writable().and_then(|()| self.rewrite_step());
        match done {
            Ok(()) => self.rewrites.answer_when_idle(),
            Err(error) => {
                warn!(%error, "packs that are half empty stay until the next removal");
                self.rewrites.stop();
            }
        }
    }

    fn rewrite_step(&mut self) -> Result<(), Error> {
        let (number, mut scan) = match self.rewrites.current.take() {
            Some(current) => current,
            None => match self.rewrites.waiting.pop_front() {
                Some(number) => (number, self.scan(number)),
                None => return Ok(()),
            },
        };
        let (moved, is_end) = match &mut scan {
            Some(scan) => self.live_records(number, scan)?,
            None => (Vec::new(), true),
        };
        self.move_records(&moved)?;
        if is_end {
            return self.finish_pack(number);
        }
        self.rewrites.current = Some((number, scan));
        Ok(())
    }

    /// A scan of a pack; `None` if nothing of it can or must be moved.
    fn scan(&self, number: u64) -> Option<Scan> {
        let pack = self.shared.ledger.lock().packs.get(&number).copied().unwrap_or_default();
        if pack.live == 0 {
            return None;
        }
        let name = pack_name(number);
        let opened = File::open(self.shared.disk.path(&name)).and_then(|file| {
            let len = file.metadata()?.len();
            Ok((file, len))
        });
        match opened {
            Ok((file, len)) => Some(Scan::new(file, PACK_HEADER_BYTES, len.min(pack.len))),
            Err(error) => {
                warn!(pack = number, %error, "a pack can't be opened");
                None
            }
        }
    }

    /// The next records that belong to blobs, and whether they are the last.
    fn live_records(&self, number: u64, scan: &mut Scan) -> Result<(Vec<Moved>, bool), Error> {
        let mut live = Vec::new();
        let mut seen = 0;
        while seen < STEP_BYTES {
            let (offset, header, bytes) = match scan.next() {
                Ok(Some(Found::Record { offset, header, bytes })) => (offset, header, bytes),
                Ok(Some(Found::Damage { from, to })) => {
                    seen += to - from;
                    continue;
                }
                Ok(Some(Found::Unwritten { .. }) | None) => return Ok((live, true)),
                Err(error) => {
                    // The rest of the pack stays, and with it the pack.
                    warn!(pack = number, %error, "a pack can't be read");
                    return Ok((live, true));
                }
            };
            seen += header.record_bytes();
            let entry = self.shared.find(header.id)?;
            if let Some(entry) = entry.filter(|entry| entry.location == Location::Pack { number, offset }) {
                live.push(Moved { id: header.id, entry, bytes });
            }
        }
        Ok((live, false))
    }

    /// Appends blobs to the current pack, and updates the index once they are durable.
    fn move_records(&mut self, moved: &[Moved]) -> Result<(), Error> {
        if moved.is_empty() {
            return Ok(());
        }
        let records = moved.iter();
        let records =
            records.map(|blob| Record { id: blob.id, bytes: &blob.bytes, put_at: blob.entry.put_at });
        let entries = self.appender.append(records)?;
        self.appender.sync()?;
        let mut moves = Vec::new();
        for (blob, entry) in moved.iter().zip(entries) {
            self.shared.metrics.rewritten_bytes.inc_by(entry.bytes);
            moves.push(Move { id: blob.id, old: Some(blob.entry), new: Some(entry) });
        }
        self.flush_index(&moves, vec![])
    }

    /// Removes a pack without blobs.
    fn finish_pack(&mut self, number: u64) -> Result<(), Error> {
        let left = self.shared.ledger.lock().packs.get(&number).map_or(0, |pack| pack.live);
        if left > 0 {
            warn!(pack = number, blobs = left, "a pack has blobs that can't be read, and is not removed");
            self.rewrites.damaged.insert(number);
            return Ok(());
        }
        let name = pack_name(number);
        self.shared.disk.remove(&name).map_err(|error| Error::io("remove", &name, error))?;
        self.shared.forget_pack(number);
        let synced = self.shared.disk.sync_folder(PACKS);
        synced.map_err(|error| self.shared.sync_failed("sync", PACKS, error))?;
        // Last: a pack that exists without a row is read from its beginning, which would bring back all its blobs.
        self.shared.index()?.write(vec![Row::PackGone(number)])?;
        self.shared.ledger.lock().packs.remove(&number);
        self.changed.remove(&number);
        info!(pack = number, "a pack was removed");
        Ok(())
    }
}
