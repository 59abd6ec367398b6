//! The thread that writes: it takes all writes that wait, runs them one after the other, makes their rows durable with one
//! sync and answers each.

use std::{sync::Arc, time::Instant};

use restante_core::ErrorKind;
use tokio::sync::{mpsc, oneshot};
use tracing::error;

use crate::{
    Error, View,
    env::Progress,
    frame::{self, Head, Salt},
    key::KEY_BYTES_MAX,
    layer::{RowKey, Sequence},
    log::{CommitLog, LARGE_BYTES},
    shared::Shared,
    store::{Batch, Row},
};

/// The most writes of a group. More would wait long for the first's answer.
const GROUP_WRITES_MAX: usize = 1_024;

/// The most bytes of small frames of a group.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// Tells who waits how a write went.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// A write: it puts rows into a batch, and answers whether they are to be kept, and who waits for that.
pub(crate) type Write = Box<dyn FnOnce(&mut Batch<'_>) -> (Keep, Answer) + Send>;

/// Whether a write's rows are to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Rows,
    Nothing,
}

/// What the writer is asked for.
pub(crate) enum Request {
    /// To run a write.
    Write(Write),
    /// To bring everything into LMDB.
    Settle(oneshot::Sender<Result<(), Error>>),
    /// To do so, to empty the commit log, and to end.
    Close(oneshot::Sender<Result<(), Error>>),
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    log: Option<CommitLog>,
    epoch: u32,
    salt: Salt,
    /// Of the last batch.
    sequence: Sequence,
    /// Of the last batch that is durable.
    durable: Sequence,
    /// Frames that are not written yet; there is room for them.
    pending: Vec<u8>,
    /// Who waits for them.
    answers: Vec<Answer>,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, log: Option<CommitLog>, progress: Progress) -> Self {
        let Progress { applied: sequence, epoch, salt } = progress;
        Self {
            shared,
            log,
            epoch,
            salt,
            sequence,
            durable: sequence,
            pending: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Serves requests until nobody is left to make any, or the store is closed.
    pub(crate) fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let _ends = Ends(self.shared.clone());
        while let Some(request) = requests.blocking_recv() {
            let next = match request {
                Request::Write(write) => self.group(write, &mut requests),
                other => Some(other),
            };
            match next {
                Some(Request::Settle(told)) => drop(told.send(self.settle())),
                Some(Request::Close(told)) => {
                    drop(told.send(self.close())); // who asked may have gone away
                    return;
                }
                Some(Request::Write(_)) | None => {}
            }
        }
    }

    /// Runs a write and those that wait behind it. What is no write ends the group, and is answered to the caller.
    fn group(&mut self, first: Write, requests: &mut mpsc::Receiver<Request>) -> Option<Request> {
        let begun = Instant::now();
        let shared = self.shared.clone();
        let mut other = None;
        let mut next = Some(first);
        let mut view = None;
        let mut taken = 0;
        while let Some(write) = next {
            if view.is_none() {
                view = shared.newest_view().map_err(|error| error!(%error, "the writer can't read")).ok();
            }
            self.write(write, &mut view);
            taken += 1;
            if taken >= GROUP_WRITES_MAX || self.pending.len() >= GROUP_BYTES_MAX {
                break;
            }
            next = match requests.try_recv() {
                Ok(Request::Write(write)) => Some(write),
                Ok(request) => {
                    other = Some(request);
                    None
                }
                Err(_) => None,
            };
        }
        drop(view);
        self.finish();
        self.shared.metrics.group_seconds.observe(begun.elapsed().as_secs_f64());
        other
    }

    /// Runs one write. It takes the view away when what comes next must be read by another.
    fn write(&mut self, write: Write, view: &mut Option<View<'_>>) {
        let mut rows = Vec::new();
        let Some(seen) = view else { return }; // who waits is told that the answer never came
        let (keep, answer) = write(&mut Batch::new(seen, &mut rows));
        if let Err(error) = self.shared.health() {
            answer(Err(error));
            return;
        }
        if keep == Keep::Nothing || rows.is_empty() {
            // It has read what is not durable yet, and may tell of it.
            self.answers.push(answer);
            return;
        }
        match self.stage(rows, view) {
            Ok(()) => {
                self.answers.push(answer);
                self.shared.metrics.writes.inc();
            }
            Err(error) => answer(Err(error)),
        }
    }

    /// Gives rows a sequence, a place in the commit log and in the active layer.
    fn stage(&mut self, rows: Vec<Row>, view: &mut Option<View<'_>>) -> Result<(), Error> {
        if let Some(row) = rows.iter().find(|row| row.key.is_empty() || row.key.len() > KEY_BYTES_MAX) {
            let what = format!("a key of {} bytes for the table {}", row.key.len(), row.table.name());
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        if self.log.is_some() {
            let start = frame::begin(&mut self.pending);
            for row in &rows {
                frame::put_row(&mut self.pending, row.table.number, &row.key, row.value.as_deref());
            }
            let frame = self.pending.split_off(start);
            self.place_frame(&frame, view)?;
        }
        self.sequence += 1;
        let active = self.shared.active();
        for row in rows {
            let key = RowKey { table: row.table.number, key: row.key, sequence: self.sequence };
            active.insert(key, row.value);
        }
        Ok(())
    }

    /// Finds room for a frame in the commit log, in the other file if need be.
    fn place_frame(&mut self, frame: &[u8], view: &mut Option<View<'_>>) -> Result<(), Error> {
        let len = frame.len().next_multiple_of(frame::ALIGNMENT);
        if self.log.as_ref().is_some_and(|log| !log.has_room(self.pending.len() + len)) {
            // Dropped before anything is waited for: LMDB's map can't grow while a view lives.
            *view = None;
            self.finish();
            self.shared.health()?;
            self.switch()?;
        }
        let head = Head { epoch: self.epoch, sequence: self.sequence + 1, group: self.durable + 1 };
        let start = self.pending.len();
        self.pending.extend_from_slice(frame);
        frame::finish(&mut self.pending, start, head, self.salt);
        let Some(log) = &mut self.log else { return Ok(()) };
        if len < LARGE_BYTES {
            return log.reserve(self.pending.len()).inspect_err(|_| self.pending.truncate(start));
        }
        // A large frame is written at once: should the disk be full, it alone fails.
        let large = self.pending.split_off(start);
        if let Err(error) = log.write(&std::mem::take(&mut self.pending)) {
            self.fail("write", &error);
            return Err(Error::io("write", "the commit log", error));
        }
        log.write(&large).map_err(|error| Error::io("write", "the commit log", error))
    }

    /// Makes what was staged durable, lets readers see it, and answers.
    fn finish(&mut self) {
        let result = self.shared.health().and_then(|()| self.make_durable());
        if result.is_ok() {
            self.durable = self.sequence;
            self.shared.publish(self.sequence);
        }
        self.shared.metrics.groups.inc();
        self.shared.metrics.waiting_rows.set(self.shared.waiting_rows() as i64);
        for answer in self.answers.drain(..) {
            answer(result.as_ref().copied().map_err(Error::again));
        }
    }

    fn make_durable(&mut self) -> Result<(), Error> {
        if self.sequence == self.durable {
            return Ok(());
        }
        let progress = self.progress();
        let Some(log) = &mut self.log else {
            let applied = self.shared.apply_now(progress);
            if let Err(error) = &applied {
                self.sequence = self.durable;
                if error.kind() != ErrorKind::Full {
                    self.shared.refuse(ErrorKind::Unavailable, refusal(error));
                }
            }
            return applied;
        };
        let written = log.write(&self.pending).and_then(|()| log.sync());
        self.pending.clear();
        self.shared.note_log_bytes(log.bytes());
        written.map_err(|error| {
            self.fail("sync", &error);
            Error::io("sync", "the commit log", error)
        })
    }

    /// Nobody knows what the disk has kept: nothing more is taken until the store is opened again.
    fn fail(&self, what: &str, error: &std::io::Error) {
        error!(%error, what, "the commit log failed; nothing more is taken until the store is opened again");
        self.shared.refuse(ErrorKind::Unavailable, refusal(error));
    }

    fn progress(&self) -> Progress {
        Progress { applied: self.sequence, epoch: self.epoch, salt: self.salt }
    }

    /// Goes on in the other file of the commit log, over a new layer.
    fn switch(&mut self) -> Result<(), Error> {
        self.shared.freeze(Progress { applied: self.durable, ..self.progress() })?;
        if let Some(log) = &mut self.log {
            log.switch();
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Error> {
        if self.log.is_some() && self.shared.active().rows() > 0 {
            self.shared.health()?;
            self.switch()?;
        }
        self.shared.wait_until_applied()
    }

    fn close(&mut self) -> Result<(), Error> {
        let settled = self.settle();
        self.shared.refuse(ErrorKind::Unavailable, "the store is closed".to_owned());
        settled?;
        let cleared = self.log.as_mut().map_or(Ok(()), CommitLog::clear);
        self.shared.note_log_bytes(0);
        cleared.map_err(|error| Error::io("empty", "the commit log", error))
    }
}

/// Says that nothing more is taken when the writer thread ends, however that comes about.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.refuse(ErrorKind::Unavailable, "the writer thread of the store has ended".to_owned());
    }
}

fn refusal(error: &impl std::fmt::Display) -> String {
    format!("an earlier write failed ({error}): nothing more is taken until the store is opened again")
}
