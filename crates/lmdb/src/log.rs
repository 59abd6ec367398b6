//! The commit log: two files that are written in turn, each reused when all of its rows are in LMDB.
//!
//! Overwriting bytes of a file costs the disk one block; a write that extends the file also costs a commit of the file system's
//! journal. So a file is extended with zeros ahead of small writes, and after one round it has its full length for good.

use std::{io, sync::Arc};

use restante_core::ErrorKind;
use restante_disk::{Disk, DiskFile};

use crate::{
    Error,
    env::Progress,
    frame::{self, Frame, Salt},
    layer::Sequence,
};

pub(crate) const FILES: [&str; 2] = ["commit-0.log", "commit-1.log"];

/// How far a file is extended, ahead of frames that are smaller than [`LARGE_BYTES`].
const AHEAD_BYTES: u64 = 256 << 10;

/// Frames of at least this length are written directly at the end of the file: a journal commit is small in comparison, and zeros
/// ahead of them would only double what is written.
pub(crate) const LARGE_BYTES: usize = 16 << 10;

/// The files of the commit log, open for writing.
pub(crate) struct CommitLog {
    files: [LogFile; 2],
    active: usize,
    /// A file is full when the next frame would make it longer than this.
    bytes_max: u64,
}

struct LogFile {
    file: Arc<dyn DiskFile>,
    /// The length of the file.
    len: u64,
    /// The end of what was written since the file became active.
    end: u64,
}

/// The frames of a commit log that LMDB lacks, in order.
pub(crate) struct Recovered {
    /// The bytes of both files.
    files: [Vec<u8>; 2],
    /// The locations of the frames: their sequence, file and offset.
    frames: Vec<(Sequence, usize, usize)>,
    /// The sequence of the last frame, or of the last applied batch if there is none.
    pub(crate) last: Sequence,
    salt: Salt,
}

impl Recovered {
    /// The frames in the order of their sequences.
    pub(crate) fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        self.frames
            .iter()
            .filter_map(|(_, file, offset)| frame::read(self.files.get(*file)?.get(*offset..)?, self.salt))
    }
}

/// Reads the batches that LMDB lacks, of the epoch that is stored in LMDB.
///
/// What follows a missing frame was never acknowledged, unless there is a frame that was written after the missing one had been
/// synced: then the log is damaged, which is an error.
pub(crate) fn recover(disk: &dyn Disk, progress: Progress) -> Result<Recovered, Error> {
    let Progress { applied, epoch, salt } = progress;
    require_both(disk, epoch)?;
    let mut files = [Vec::new(), Vec::new()];
    for (name, bytes) in FILES.iter().zip(&mut files) {
        let read = disk.open_or_create(name).and_then(|_| disk.read(name));
        *bytes = read.map_err(|error| Error::io("read", name, error))?;
    }
    // Before an epoch is stored in LMDB: from then on a missing file counts as lost.
    disk.sync_folder("").map_err(|error| Error::io("sync", "the folder of the store", error))?;
    let mut found = Vec::new();
    let mut synced = 0;
    for (number, bytes) in files.iter().enumerate() {
        each_frame(bytes, salt, |offset, frame| {
            if frame.head.epoch == epoch && frame.head.sequence > applied {
                found.push((frame.head.sequence, number, offset));
                synced = synced.max(frame.head.group.saturating_sub(1));
            }
        });
    }
    found.sort_unstable();
    let in_order =
        found.iter().zip(applied + 1..).take_while(|((sequence, ..), expected)| sequence == expected);
    let whole = in_order.count();
    found.truncate(whole);
    let last = found.last().map_or(applied, |(sequence, ..)| *sequence);
    if synced > last {
        let what = format!(
            "the commit log is damaged: batch {} was acknowledged and can't be read; restore a backup, or move {} and {} \
             away to continue without what came after it",
            last + 1,
            FILES[0],
            FILES[1]
        );
        return Err(Error::corrupt(what));
    }
    Ok(Recovered { files, frames: found, last, salt })
}

/// Reports a missing file. A store that is opened for the first time has neither, and so has a restored backup.
fn require_both(disk: &dyn Disk, epoch: u32) -> Result<(), Error> {
    let is_there = FILES.map(|name| disk.path(name).exists());
    let missing = match is_there {
        [false, true] => FILES[0],
        [true, false] => FILES[1],
        _ => return Ok(()),
    };
    if epoch == 0 {
        return Ok(());
    }
    let path = disk.path(missing);
    let what = format!(
        "{} is gone, and with it what was committed last: put it back, restore a backup, or create an empty file of this name to \
         continue without it",
        path.display()
    );
    Err(Error::corrupt(what))
}

/// Finds every complete frame. Parts of older frames may be between them.
fn each_frame(bytes: &[u8], salt: Salt, mut found: impl FnMut(usize, &Frame<'_>)) {
    let mut offset = 0;
    while let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
        let frame = frame::read(rest, salt);
        if let Some(frame) = &frame {
            found(offset, frame);
        }
        offset += frame.map_or(frame::ALIGNMENT, |frame| frame.len);
    }
}

impl CommitLog {
    /// Opens both files, which [`recover`] has created if they didn't exist, to be written from their beginnings: their contents
    /// must be in LMDB.
    pub(crate) fn open(disk: &dyn Disk, bytes_max: u64) -> Result<Self, Error> {
        let open = |name: &str| {
            let file = disk.open_or_create(name)?;
            let len = file.size()?;
            Ok(LogFile { file: Arc::from(file), len, end: 0 })
        };
        let opened = |name: &str| open(name).map_err(|error| Error::io("open", name, error));
        let files = [opened(FILES[0])?, opened(FILES[1])?];
        let log = Self { files, active: 0, bytes_max };
        log.allocate();
        Ok(log)
    }

    /// Whether this many more bytes fit into the active file. The first frame of a file always does.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        let end = self.active().end;
        end == 0 || end + bytes as u64 <= self.bytes_max
    }

    /// Allocates space for this many more bytes, and some ahead.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), Error> {
        let bytes_max = self.bytes_max;
        let file = self.active_mut();
        let end = file.end + bytes as u64;
        if end <= file.len {
            return Ok(());
        }
        let ahead = (end + AHEAD_BYTES).min(bytes_max).max(end);
        let failed = |error| Error::io("make longer", "the commit log", error);
        file.len = match fill(&*file.file, file.len, ahead).map_err(failed) {
            Ok(()) => ahead,
            Err(error) if error.kind() == ErrorKind::Full && ahead > end => {
                fill(&*file.file, file.len, end).map_err(failed)?;
                end
            }
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Appends frames.
    pub(crate) fn write(&mut self, frames: &[u8]) -> io::Result<()> {
        let file = self.active_mut();
        file.file.write_at(frames, file.end)?;
        file.end += frames.len() as u64;
        file.len = file.len.max(file.end);
        Ok(())
    }

    /// Reserves the next bytes of the active file.
    pub(crate) fn take_slot(&mut self, bytes: usize) -> Slot {
        let file = self.active_mut();
        let slot = Slot { file: file.file.clone(), offset: file.end };
        file.end += bytes as u64;
        file.len = file.len.max(file.end);
        slot
    }

    /// Continues in the other file, whose frames must be in LMDB.
    pub(crate) fn switch(&mut self) {
        self.active = 1 - self.active;
        self.active_mut().end = 0;
    }

    /// Empties both files. Their contents must be in LMDB.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        for file in &mut self.files {
            file.file.set_len(0)?;
            file.file.sync()?;
            (file.len, file.end) = (0, 0);
        }
        self.allocate();
        Ok(())
    }

    /// Allocates the beginning of both files as far as there is space, so that the next writes, such as those of a clean-up,
    /// work on a full disk.
    fn allocate(&self) {
        for file in self.files.iter().filter(|_| self.bytes_max > 0) {
            let _ = file.file.allocate(0, AHEAD_BYTES.min(self.bytes_max));
        }
    }

    /// The length of both files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }

    fn active(&self) -> &LogFile {
        let [first, second] = &self.files;
        if self.active == 0 { first } else { second }
    }

    fn active_mut(&mut self) -> &mut LogFile {
        let [first, second] = &mut self.files;
        if self.active == 0 { first } else { second }
    }
}

/// Bytes of a file of the commit log that are reserved for a group of frames.
pub(crate) struct Slot {
    file: Arc<dyn DiskFile>,
    offset: u64,
}

impl Slot {
    /// Writes frames there, and makes them and all earlier writes durable.
    pub(crate) fn write(&self, frames: &[u8]) -> io::Result<()> {
        self.file.write_at(frames, self.offset)?;
        self.file.sync()
    }
}

/// Extends a file with zeros. They are written, so that the disk has allocated them.
fn fill(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut offset = from;
    while offset < to {
        let len = (to - offset).min(ZEROS.len() as u64);
        let zeros = ZEROS.get(..len as usize).unwrap_or(&ZEROS);
        file.write_at(zeros, offset)?;
        offset += len;
    }
    Ok(())
}
