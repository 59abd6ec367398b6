//! The writer thread: it runs all queued writes one after the other, makes their rows durable with one sync and answers
//! their callers.

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

/// The most writes of a group. With more, the first would be answered late.
const GROUP_WRITES_MAX: usize = 1_024;

/// A group of this many writes is synced even if more are queued, unless the group before is still being synced. A sync costs as
/// much processor time as about five commits.
const GROUP_WRITES_AHEAD: usize = 32;

/// The most bytes of small frames of a group.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// The largest buffer of frames that is reused: that of a full group with the frame that filled it.
const SPARE_BYTES_MAX: usize = 2 * GROUP_BYTES_MAX;

/// How long the writer polls for the next write before it sleeps, if the last one arrived that soon: waking a thread takes about
/// 25 microseconds, a fifth of a sync, which a client that commits one write after the other would pay each time.
const AWAKE: Duration = Duration::from_micros(100);

/// A write: it puts rows into a batch, and returns whether to keep them and how to answer its caller.
pub(crate) type Write = Box<dyn FnOnce(&mut Batch<'_>) -> (Keep, Answer) + Send>;

/// Whether to keep the rows of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Rows,
    Nothing,
}

/// A request to the writer.
pub(crate) enum Request {
    /// Run a write.
    Write(Write),
    /// Write everything into LMDB.
    Settle(oneshot::Sender<Result<(), Error>>),
    /// Write everything into LMDB, empty the commit log, and end.
    Close(oneshot::Sender<Result<(), Error>>),
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    log: Option<CommitLog>,
    epoch: u32,
    salt: Salt,
    /// The last batch.
    sequence: Sequence,
    /// The last batch of the group before.
    grouped: Sequence,
    /// Frames that are not written yet; the file has space for them.
    pending: Rows,
    /// The answers to their callers.
    answers: Vec<Answer>,
    /// When the first write of the group began.
    begun: Instant,
    syncer: Syncer,
    /// The buffer of a finished group.
    spare: Vec<u8>,
    /// Whether the commit log may have rows from before the opening that LMDB lacks, so that it can't be overwritten yet.
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

    /// Serves requests until all senders are dropped or the store is closed.
    pub(crate) fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let _ends = Ends(self.shared.clone());
        let _stops = StopsApplying(self.shared.clone());
        let mut is_awake = false;
        loop {
            let idle_since = Instant::now();
            let Some(request) = next(&mut requests, is_awake) else { break };
            is_awake = matches!(request, Request::Write(_)) && idle_since.elapsed() < AWAKE;
            let next = match request {
                Request::Write(write) => self.group(write, &mut requests),
                other => Some(other),
            };
            match next {
                Some(Request::Settle(sender)) => drop(sender.send(self.settle())),
                Some(Request::Close(sender)) => {
                    drop(sender.send(self.close())); // the caller may be gone
                    return;
                }
                Some(Request::Write(_)) | None => {}
            }
        }
    }

    /// Runs a write and those queued after it. Stops at another request, and returns it.
    fn group(&mut self, first: Write, requests: &mut mpsc::Receiver<Request>) -> Option<Request> {
        let shared = self.shared.clone();
        let (mut next, mut view, mut seen_by) = (first, None, 0);
        let other = loop {
            if self.answers.is_empty() {
                self.begun = Instant::now();
            }
            if view.is_none() || seen_by >= GROUP_WRITES_MAX {
                drop(view.take()); // a long-lived view keeps pages from being reused
                seen_by = 0;
                view = shared.newest_view().map_err(|error| error!(%error, "the writer can't read")).ok();
            }
            self.write(next, &mut view);
            seen_by += 1;
            if self.is_full() || self.may_go_ahead() {
                view = None;
                self.send_group();
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
        are_many && !self.syncer.is_syncing(&mut self.spare)
    }

    /// A queued request. When there is none, waits until the group before is durable, because its callers may send the
    /// next ones.
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

    /// Runs one write. Drops the view when the next write needs a new one.
    fn write(&mut self, write: Write, view: &mut Option<View<'_>>) {
        let Some(seen) = view else { return }; // dropping the sender gives the caller an error
        let start = self.pending.begin();
        let (keep, answer) = write(&mut Batch::new(seen, &mut self.pending));
        let refused = self.shared.health().and_then(|()| self.release_log()).err();
        if let Some(error) = refused.or(self.pending.wrong.take()) {
            self.pending.frames.truncate(start);
            drop(answer(Err(error)));
            return;
        }
        if keep == Keep::Nothing || self.pending.count == 0 {
            self.pending.frames.truncate(start);
            // Its result may depend on rows that are not durable yet.
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
                drop(answer(Err(error)));
            }
        }
    }

    /// Allows writing the commit log once LMDB has its contents from the opening, which a full disk puts off.
    fn release_log(&mut self) -> Result<(), Error> {
        if self.is_log_held {
            self.shared.wait_until_applied()?;
            self.is_log_held = false;
        }
        Ok(())
    }

    /// Assigns a sequence to the frame that begins at `start`, reserves space for it in the commit log, and adds its rows to the
    /// active layer.
    fn stage(&mut self, start: usize, view: &mut Option<View<'_>>) -> Result<(), Error> {
        let rows = self.pending.rows_from(start);
        if u32::try_from(rows.len()).is_err() {
            let what = format!("a batch of {} bytes is too long", rows.len());
            self.pending.frames.truncate(start);
            return Err(Error::invalid(what));
        }
        let rows: Box<[u8]> = rows.into();
        if self.log.is_some() {
            self.place_frame(start, view)?;
        }
        self.sequence += 1;
        self.shared.active().add(self.sequence, &rows);
        Ok(())
    }

    /// Reserves space for a frame in the commit log, in the other file if necessary.
    fn place_frame(&mut self, start: usize, view: &mut Option<View<'_>>) -> Result<(), Error> {
        let len = (self.pending.frames.len() - start).next_multiple_of(frame::ALIGNMENT);
        let fits = self.log.as_ref().is_none_or(|log| log.fits(start + len));
        let start = if fits { start } else { self.switch_file(start, view)? };
        let head = Head { epoch: self.epoch, sequence: self.sequence + 1, group: self.grouped + 1 };
        frame::finish(&mut self.pending.frames, start, head, self.salt);
        let Some(log) = &mut self.log else { return Ok(()) };
        if len < LARGE_BYTES {
            return log.reserve(start + len).inspect_err(|_| self.pending.frames.truncate(start));
        }
        // A large frame is written at once, after all earlier ones: if the disk is full, it alone fails.
        self.syncer.wait(&mut self.spare);
        if let Err(error) = self.shared.health() {
            self.pending.frames.truncate(start); // it would imply that the group before it is durable
            return Err(error);
        }
        let large = self.pending.frames.split_off(start);
        if let Err(error) = log.write(&std::mem::take(&mut self.pending.frames)) {
            group::fail(&self.shared, "write", &error);
            return Err(Error::io("write", "the commit log", error));
        }
        log.write(&large).map_err(|error| Error::io("write", "the commit log", error))
    }

    /// Finishes the group before the frame that begins at `start`, and continues in the other file. Returns where the frame
    /// begins afterwards.
    fn switch_file(&mut self, start: usize, view: &mut Option<View<'_>>) -> Result<usize, Error> {
        *view = None;
        let frame = self.pending.frames.split_off(start);
        self.finish();
        self.shared.health()?;
        self.switch()?;
        self.pending.frames = frame;
        Ok(0)
    }

    /// Makes the staged rows durable and visible, and answers.
    fn finish(&mut self) {
        self.syncer.wait(&mut self.spare);
        if self.log.is_none() {
            self.apply();
        } else if !self.answers.is_empty() {
            self.spare = self.begin_group().finish(&self.shared.clone());
        }
    }

    /// Has another thread make the staged rows durable, after the group before it.
    fn send_group(&mut self) {
        if self.log.is_none() {
            return self.apply();
        }
        self.syncer.wait(&mut self.spare);
        let group = self.begin_group();
        if let Err(group) = self.syncer.send(group) {
            self.spare = group.finish(&self.shared);
        }
    }

    /// The group of all that was staged; begins the next one.
    fn begin_group(&mut self) -> Group {
        let mut spare = std::mem::take(&mut self.spare);
        spare.shrink_to(SPARE_BYTES_MAX);
        let frames = std::mem::replace(&mut self.pending.frames, spare);
        let is_durable = self.sequence == self.grouped;
        let slot = self.log.as_mut().filter(|_| !is_durable).map(|log| log.take_slot(frames.len()));
        if let Some(log) = &self.log {
            self.shared.note_log_bytes(log.bytes());
        }
        self.grouped = self.sequence;
        Group {
            frames: slot.map(|slot| (frames, slot)),
            last: self.sequence,
            answers: std::mem::take(&mut self.answers),
            begun: std::mem::replace(&mut self.begun, Instant::now()),
        }
    }

    /// Writes the staged rows into LMDB at once: for a store without a commit log.
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
        group::answer(std::mem::take(&mut self.answers), &result, self.begun, &self.shared);
    }

    fn progress(&self) -> Progress {
        Progress { applied: self.sequence, epoch: self.epoch, salt: self.salt }
    }

    /// Continues in the other file of the commit log, with a new layer.
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

/// The next request; `None` when all senders are dropped.
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
    /// Begins a frame; returns its offset.
    fn begin(&mut self) -> usize {
        self.count = 0;
        frame::begin(&mut self.frames)
    }

    /// The rows of the frame that begins at `start`.
    fn rows_from(&self, start: usize) -> &[u8] {
        self.frames.get(start + frame::HEADER_BYTES..).unwrap_or_default()
    }
}

/// Stops the applying thread when the writer, which may wait for it, has ended.
struct StopsApplying(Arc<Shared>);

impl Drop for StopsApplying {
    fn drop(&mut self) {
        self.0.stop_applying();
    }
}
