//! The thread that writes: it takes all writes that wait, runs them one after the other, makes their rows durable with one
//! sync and answers each.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use restante_core::ErrorKind;
use tokio::sync::{mpsc, oneshot};
use tracing::{error, warn};

use crate::{
    Error, View,
    env::Progress,
    frame::{self, Head, Salt},
    group::{self, Answer, Ends, Group, Syncer},
    layer::Sequence,
    log::{CommitLog, LARGE_BYTES},
    shared::Shared,
    store::{Batch, Rows},
};

/// The most writes of a group. More would wait long for the first's answer.
const GROUP_WRITES_MAX: usize = 1_024;

/// From so many writes on a group goes on its way while others wait, unless the one before is still under way. A sync costs as
/// much time of the processor as some five commits.
const GROUP_WRITES_AHEAD: usize = 32;

/// The most bytes of small frames of a group.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// The most bytes of frames whose place is kept to be used again: those of a full group with the frame that filled it.
const SPARE_BYTES_MAX: usize = 2 * GROUP_BYTES_MAX;

/// How long the writer looks out for the next write before it goes to sleep: waking a thread takes some 25 microseconds, a
/// fifth of what the disk takes for a sync, and who commits one after the other would pay that each time.
const AWAKE: Duration = Duration::from_micros(100);

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
    /// Of the last batch of the group before.
    grouped: Sequence,
    /// Frames that are not written yet; there is room for them.
    pending: Rows,
    /// Who waits for them.
    answers: Vec<Answer>,
    /// When the first write of the group began.
    begun: Instant,
    syncer: Syncer,
    /// The bytes' place of a group that has landed.
    spare: Vec<u8>,
    /// Whether the commit log may hold rows from before the opening that LMDB lacks, so that it can't be written yet.
    is_log_held: bool,
}

impl Writer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        log: Option<CommitLog>,
        progress: Progress,
        syncer: Syncer,
    ) -> Self {
        let Progress { applied: sequence, epoch, salt } = progress;
        Self {
            shared,
            log,
            epoch,
            salt,
            sequence,
            grouped: sequence,
            pending: Rows::default(),
            answers: Vec::new(),
            begun: Instant::now(),
            syncer,
            spare: Vec::new(),
            is_log_held: true,
        }
    }

    /// Serves requests until nobody is left to make any, or the store is closed.
    pub(crate) fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let _ends = Ends(self.shared.clone());
        let _stops = StopsApplying(self.shared.clone());
        let mut is_awake = false;
        while let Some(request) = next(&mut requests, is_awake) {
            is_awake = matches!(request, Request::Write(_));
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

    /// Runs a write and those that wait behind it. What is no write ends this, and is answered to the caller.
    fn group(&mut self, first: Write, requests: &mut mpsc::Receiver<Request>) -> Option<Request> {
        let shared = self.shared.clone();
        let (mut next, mut view, mut seen_by) = (first, None, 0);
        let other = loop {
            if self.answers.is_empty() {
                self.begun = Instant::now();
            }
            if view.is_none() || seen_by >= GROUP_WRITES_MAX {
                drop(view.take()); // none lives for long: it keeps pages from being used again
                seen_by = 0;
                view = shared.newest_view().map_err(|error| error!(%error, "the writer can't read")).ok();
            }
            self.write(next, &mut view);
            seen_by += 1;
            if self.is_full() || self.may_go_ahead() {
                view = None;
                self.send_off();
            }
            next = match self.take(requests, &mut view) {
                Some(Request::Write(write)) => write,
                other => break other,
            };
        };
        drop(view);
        self.finish();
        other
    }

    fn is_full(&self) -> bool {
        self.answers.len() >= GROUP_WRITES_MAX || self.pending.frames.len() >= GROUP_BYTES_MAX
    }

    fn may_go_ahead(&mut self) -> bool {
        let are_many = self.log.is_some() && self.answers.len() >= GROUP_WRITES_AHEAD;
        are_many && !self.syncer.is_under_way(&mut self.spare)
    }

    /// A request that waits. When there is none, those are waited for whom the group before is being made durable: they may
    /// come with the next.
    fn take(
        &mut self,
        requests: &mut mpsc::Receiver<Request>,
        view: &mut Option<View<'_>>,
    ) -> Option<Request> {
        if let Ok(request) = requests.try_recv() {
            return Some(request);
        }
        *view = None;
        self.syncer.wait(&mut self.spare);
        requests.try_recv().ok()
    }

    /// Runs one write. It takes the view away when what comes next must be read by another.
    fn write(&mut self, write: Write, view: &mut Option<View<'_>>) {
        let Some(seen) = view else { return }; // who waits is told that the answer never came
        let start = self.pending.begin();
        let (keep, answer) = write(&mut Batch::new(seen, &mut self.pending));
        let refused = self.shared.health().and_then(|()| self.release_log()).err();
        if let Some(error) = refused.or(self.pending.wrong.take()) {
            self.pending.frames.truncate(start);
            answer(Err(error));
            return;
        }
        if keep == Keep::Nothing || self.pending.count == 0 {
            self.pending.frames.truncate(start);
            // It has read what is not durable yet, and may tell of it.
            self.answers.push(answer);
            return;
        }
        match self.stage(start, view) {
            Ok(()) => {
                self.answers.push(answer);
                self.shared.metrics.writes.inc();
            }
            Err(error) => {
                self.shared.note_refused(&error);
                answer(Err(error));
            }
        }
    }

    /// Lets the commit log be written once LMDB has what it held at the opening, which a full disk puts off.
    fn release_log(&mut self) -> Result<(), Error> {
        if self.is_log_held {
            self.shared.wait_until_applied()?;
            self.is_log_held = false;
        }
        Ok(())
    }

    /// Gives the rows of the frame that begins at `start` a sequence, a place in the commit log and in the active layer.
    fn stage(&mut self, start: usize, view: &mut Option<View<'_>>) -> Result<(), Error> {
        let rows = self.pending.rows_from(start);
        if u32::try_from(rows.len()).is_err() {
            let what = format!("a batch of {} bytes is too long", rows.len());
            self.pending.frames.truncate(start);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let rows: Box<[u8]> = rows.into();
        if self.log.is_some() {
            self.place_frame(start, view)?;
        }
        self.sequence += 1;
        self.shared.active().add(self.sequence, &rows);
        Ok(())
    }

    /// Finds room for a frame in the commit log, in the other file if need be.
    fn place_frame(&mut self, start: usize, view: &mut Option<View<'_>>) -> Result<(), Error> {
        let len = (self.pending.frames.len() - start).next_multiple_of(frame::ALIGNMENT);
        let has_room = self.log.as_ref().is_none_or(|log| log.has_room(start + len));
        let start = if has_room { start } else { self.turn_over(start, view)? };
        let head = Head { epoch: self.epoch, sequence: self.sequence + 1, group: self.grouped + 1 };
        frame::finish(&mut self.pending.frames, start, head, self.salt);
        let Some(log) = &mut self.log else { return Ok(()) };
        if len < LARGE_BYTES {
            return log.reserve(start + len).inspect_err(|_| self.pending.frames.truncate(start));
        }
        // A large frame is written at once, behind all before it: should the disk be full, it alone fails.
        self.syncer.wait(&mut self.spare);
        if let Err(error) = self.shared.health() {
            self.pending.frames.truncate(start); // it would say that the group before it is durable
            return Err(error);
        }
        let large = self.pending.frames.split_off(start);
        if let Err(error) = log.write(&std::mem::take(&mut self.pending.frames)) {
            group::fail(&self.shared, "write", &error);
            return Err(Error::io("write", "the commit log", error));
        }
        log.write(&large).map_err(|error| Error::io("write", "the commit log", error))
    }

    /// Ends the group before the frame that begins at `start`, and goes on in the other file. Answers where the frame is then.
    fn turn_over(&mut self, start: usize, view: &mut Option<View<'_>>) -> Result<usize, Error> {
        // Dropped before anything is waited for: LMDB's map can't grow while a view lives.
        *view = None;
        let frame = self.pending.frames.split_off(start);
        self.finish();
        self.shared.health()?;
        self.switch()?;
        self.pending.frames = frame;
        Ok(0)
    }

    /// Makes what was staged durable, lets readers see it, and answers.
    fn finish(&mut self) {
        self.syncer.wait(&mut self.spare);
        if self.log.is_none() {
            self.apply();
        } else if !self.answers.is_empty() {
            self.spare = self.begin_group().land(&self.shared.clone());
        }
    }

    /// Has what was staged made durable by another thread, behind the group before it.
    fn send_off(&mut self) {
        if self.log.is_none() {
            return self.apply();
        }
        self.syncer.wait(&mut self.spare);
        let group = self.begin_group();
        if let Err(group) = self.syncer.send(group) {
            self.spare = group.land(&self.shared);
        }
    }

    /// The group of all that was staged; the next one begins.
    fn begin_group(&mut self) -> Group {
        let mut spare = std::mem::take(&mut self.spare);
        spare.shrink_to(SPARE_BYTES_MAX);
        let frames = std::mem::replace(&mut self.pending.frames, spare);
        let is_durable = self.sequence == self.grouped;
        let room = self.log.as_mut().filter(|_| !is_durable).map(|log| log.take_room(frames.len()));
        if let Some(log) = &self.log {
            self.shared.note_log_bytes(log.bytes());
        }
        self.grouped = self.sequence;
        Group {
            frames: room.map(|room| (frames, room)),
            last: self.sequence,
            answers: std::mem::take(&mut self.answers),
            begun: std::mem::replace(&mut self.begun, Instant::now()),
        }
    }

    /// Brings what was staged into LMDB at once: a store without a commit log.
    fn apply(&mut self) {
        self.pending.frames.clear();
        let progress = self.progress();
        let mut result = self.shared.health();
        if result.is_ok() && self.sequence != self.grouped {
            result = self.shared.apply_now(progress);
            if let Err(error) = &result {
                self.sequence = self.grouped;
                self.shared.note_refused(error);
                if error.kind() != ErrorKind::Full {
                    self.shared.refuse(ErrorKind::Unavailable, group::refusal(error));
                }
            }
        }
        if result.is_ok() {
            self.grouped = self.sequence;
            self.shared.publish(self.sequence);
        }
        group::tell(std::mem::take(&mut self.answers), &result, self.begun, &self.shared);
    }

    fn progress(&self) -> Progress {
        Progress { applied: self.sequence, epoch: self.epoch, salt: self.salt }
    }

    /// Goes on in the other file of the commit log, over a new layer.
    fn switch(&mut self) -> Result<(), Error> {
        self.shared.freeze(Progress { applied: self.grouped, ..self.progress() })?;
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
        if let Err(error) = settled {
            if error.kind() != ErrorKind::Full {
                return Err(error);
            }
            warn!(%error, "the store is closed on a full disk: rows stay in the commit log until it is opened again");
            return Ok(());
        }
        let cleared = self.log.as_mut().map_or(Ok(()), CommitLog::clear);
        self.shared.note_log_bytes(0);
        cleared.map_err(|error| Error::io("empty", "the commit log", error))
    }
}

/// The next request; `None` when nobody is left to make any.
fn next(requests: &mut mpsc::Receiver<Request>, is_awake: bool) -> Option<Request> {
    if is_awake {
        let begun = Instant::now();
        while begun.elapsed() < AWAKE {
            match requests.try_recv() {
                Ok(request) => return Some(request),
                Err(mpsc::error::TryRecvError::Disconnected) => return None,
                Err(mpsc::error::TryRecvError::Empty) => thread::yield_now(),
            }
        }
    }
    requests.blocking_recv()
}

impl Rows {
    /// Begins a frame; answers where.
    fn begin(&mut self) -> usize {
        self.count = 0;
        frame::begin(&mut self.frames)
    }

    /// The rows of the frame that begins at `start`.
    fn rows_from(&self, start: usize) -> &[u8] {
        self.frames.get(start + frame::HEADER_BYTES..).unwrap_or_default()
    }
}

/// Lets the applying thread end when the writer, which may wait for it, has ended.
struct StopsApplying(Arc<Shared>);

impl Drop for StopsApplying {
    fn drop(&mut self) {
        self.0.stop_applying();
    }
}
