//! Sealing: one thread that writes the index of each segment that accepts no more messages, and replaces the active segment with
//! the mapped, immutable one.

use std::{
    io,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::mpsc as queue;
use tracing::{debug, warn};

use super::{
    Shared,
    active::Active,
    append::Command,
    disk::{DiskFile, LogDisk},
    heal, retention,
    schema::{LOG_HEADER_BYTES, SegmentId, TEMPORARY_SUFFIX},
    sealed::Sealed,
    segment::Segment,
    segment_list::Entry,
};
use crate::Error;

/// Segments that may wait to be sealed; for one more, the writer waits.
const WAITING_MAX: usize = 8;
/// How often to look for quiet segments and to retry failed ones.
const TICK: Duration = Duration::from_secs(1);

/// The writer's end of the sealing thread. The thread ends when this is dropped and all work is done.
pub(super) struct Sealer {
    waiting: mpsc::SyncSender<Arc<Active>>,
}

impl Sealer {
    pub(super) fn start(
        shared: Arc<Shared>,
        writer: queue::WeakSender<Command>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (waiting, jobs) = mpsc::sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("archive-seal".into());
        let handle = thread.spawn(move || run(&shared, &writer, &jobs))?;
        Ok((Self { waiting }, handle))
    }

    /// Queues a segment, which accepts no more messages, for sealing.
    pub(super) fn seal(&self, active: Arc<Active>) {
        if self.waiting.send(active).is_err() {
            warn!("the sealing thread has ended; the segment is sealed at the next start");
        }
    }
}

fn run(shared: &Shared, writer: &queue::WeakSender<Command>, jobs: &mpsc::Receiver<Arc<Active>>) {
    let mut failed: Vec<Arc<Active>> = Vec::new();
    loop {
        match jobs.recv_timeout(TICK) {
            Ok(active) => failed.extend(try_seal(shared, active)),
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                retry(shared, &mut failed);
                freeze_quiet(shared, writer);
                heal::verify_next(shared);
            }
        }
    }
}

/// Tries again to seal those that failed, up to the first that fails again. That one is tried last the next time.
fn retry(shared: &Shared, failed: &mut Vec<Arc<Active>>) {
    while !failed.is_empty() {
        if let Some(active) = try_seal(shared, failed.remove(0)) {
            failed.push(active);
            return;
        }
    }
}

/// Asks the writer to close segments whose window is over and that received nothing for a while.
fn freeze_quiet(shared: &Shared, writer: &queue::WeakSender<Command>) {
    let now = shared.clock.now();
    let quiet = Duration::from_secs(shared.limits.quiet_seconds);
    let quiet_ns = i64::try_from(quiet.as_nanos()).unwrap_or(i64::MAX);
    let is_quiet = |active: &Arc<Active>| {
        active.id.window_last().saturating_add(quiet_ns) < now.0
            && active.quiet_for() >= quiet
            && active.rows() > 0
    };
    let sequences: Vec<u64> =
        shared.active().iter().filter(|active| is_quiet(active)).map(|a| a.id.sequence).collect();
    if sequences.is_empty() {
        return;
    }
    if let Some(writer) = writer.upgrade() {
        // A full queue means that the writer is busy; the next tick asks again.
        let _ = writer.try_send(Command::Seal { sequences });
    }
}

/// Seals a segment; returns it when that failed. It stays in use as it is, and its log has everything.
fn try_seal(shared: &Shared, active: Arc<Active>) -> Option<Arc<Active>> {
    match seal(shared, &active) {
        Ok(()) => None,
        Err(error) => {
            if !shared.disk_full.note(&error) {
                warn!(%error, log = active.id.log_name(), "segment could not be sealed; trying again");
            }
            Some(active)
        }
    }
}

fn seal(shared: &Shared, active: &Active) -> Result<(), Error> {
    let sequence = active.id.sequence;
    let is_gone = !shared.segments().iter().any(|segment| segment.sequence() == sequence);
    if is_gone {
        return Ok(()); // retention was faster
    }
    if active.log_len() == LOG_HEADER_BYTES {
        return retention::remove(shared, &[sequence], None).map(|_| ());
    }
    let name = active.id.log_name();
    // A log that may be linked to a backup, and was opened when there was no space for a copy, must not be truncated.
    shared.disk.own(&name).map_err(|error| Error::io("copy", &name, error))?;
    trim(shared, active)?;
    // Before there is an index: one that isn't listed belongs to a segment that retention was removing.
    let gone = shared.list.put(shared, &[Entry::of_active(active, true)])?;
    if !gone.is_empty() {
        return Ok(()); // retention was faster
    }
    let index = active.encode_index();
    write_index(shared, &active.id, &index)?;
    let lens = FileLens { log: active.log_len(), index: index.len() as u64 };
    let not_while_removing = shared.replacing.lock();
    let sealed = load_written(shared, active.id, lens)?;
    sealed.trust_all();
    let is_wanted = shared.replace(active.id.sequence, Segment::Sealed(Arc::new(sealed)));
    drop(not_while_removing);
    if is_wanted {
        debug!(log = active.id.log_name(), rows = active.rows(), "segment sealed");
        return Ok(());
    }
    remove_unwanted_index(shared, &active.id);
    Ok(())
}

/// Removes the index of a segment that retention has removed meanwhile.
pub(super) fn remove_unwanted_index(shared: &Shared, id: &SegmentId) {
    let name = id.index_name();
    if let Err(error) = shared.disk.remove(&name) {
        warn!(%error, name, "an index without a log is left; it is removed at the next start");
    }
}

/// Releases the space that was reserved after the records of a log.
fn trim(shared: &Shared, active: &Active) -> Result<(), Error> {
    let name = active.id.log_name();
    let cut = |file: Box<dyn DiskFile>| file.set_len(active.log_len()).and_then(|()| file.sync());
    shared.disk.open(&name).and_then(cut).map_err(|error| Error::io("trim", &name, error))?;
    active.set_file_len(active.log_len());
    Ok(())
}

/// Writes an index atomically: afterwards it exists completely or not at all.
pub(super) fn write_index(shared: &Shared, id: &SegmentId, bytes: &[u8]) -> Result<(), Error> {
    let name = id.index_name();
    let temporary = name.clone() + TEMPORARY_SUFFIX;
    let disk = &shared.disk;
    let written = disk
        .remove(&temporary)
        .and_then(|()| disk.create(&temporary))
        .and_then(|file| file.write_at(bytes, 0).and_then(|()| file.sync()));
    if written.is_err() {
        // On a full disk it would keep the last space from others. The next attempt, or the next start, removes it otherwise.
        let _ = disk.remove(&temporary);
    }
    written
        .and_then(|()| disk.rename(&temporary, &name))
        .and_then(|()| disk.sync_folder(""))
        .map_err(|error| Error::io("write", &name, error))
}

/// The lengths of a sealed segment's files.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileLens {
    pub(super) log: u64,
    pub(super) index: u64,
}

/// Opens a segment that has an index.
pub(super) fn load(shared: &Shared, id: SegmentId, lens: FileLens) -> Result<Sealed, Error> {
    load_by(shared, id, lens, |name, len| shared.disk.map(name, len))
}

/// Opens a segment that was just written.
pub(super) fn load_written(shared: &Shared, id: SegmentId, lens: FileLens) -> Result<Sealed, Error> {
    load_by(shared, id, lens, |name, len| shared.disk.map_written(name, len))
}

fn load_by(
    shared: &Shared,
    id: SegmentId,
    lens: FileLens,
    map: impl Fn(&str, usize) -> io::Result<Bytes>,
) -> Result<Sealed, Error> {
    let (log_name, index_name) = (id.log_name(), id.index_name());
    let map = |name: &str, len: u64| {
        let len = usize::try_from(len).map_err(io::Error::other);
        len.and_then(|len| map(name, len)).map_err(|error| Error::io("map", name, error))
    };
    let log = map(&log_name, lens.log)?;
    let index = map(&index_name, lens.index)?;
    let damaged = shared.metrics.damaged.clone();
    let opened = Sealed::open(id, log, index, &mut shared.dictionary.write(), damaged);
    opened.map_err(|what| Error::new(restante_core::ErrorKind::Corrupt, format!("{index_name}: {what}")))
}
