//! The writer: one thread that drains a queue of appends into group commits.
//!
//! A commit takes all waiting appends, so that batches grow with the load: it places each message in its window's segment and
//! writes each segment's records in one call. The rest (sync, make visible, answer: [`super::commit`]) is done by the writer
//! itself when no append waits, and otherwise by a second thread, so that one commit is written while the one before it is
//! synced.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;
use restante_core::{ErrorKind, Key, NANOS_PER_SECOND, Timestamp};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, warn};

use super::{
    Shared,
    active::{Active, Addition},
    backup::{self, Snapshot},
    commit::{self, Commit, Finisher, Work, Written},
    disk::{DiskFile, LogDisk},
    heal, retention,
    schema::{IndexRow, LOG_HEADER_BYTES, SegmentId, encode_log_header},
    segment::{Segment, Span},
};
use crate::{
    Appended, BODY_BYTES_MAX, Error, Message, Retention, TOPIC_BYTES_MAX,
    disk_full::has_no_room,
    record,
    topics::TopicId,
    waiting::{Answer, Append, batch_bytes},
};

/// A commit takes no more appends when it has this many bytes: enough to keep a disk busy while the next one is encoded.
const COMMIT_BYTES_MAX: usize = 1 << 20;
/// Space that is reserved at once: an eighth of the log, within these bounds.
const RESERVED_BYTES_MIN: u64 = 64 << 10;
const RESERVED_BYTES_MAX: u64 = 4 << 20;
/// A segment of this size accepts no more messages once the disk is full, so that retention can remove it later.
const FROZEN_WHEN_FULL_BYTES_MIN: u64 = 1 << 20;
/// How long the writer polls for appends of callers that it has just answered.
const LINGER: Duration = Duration::from_micros(100);
/// A commit of at most this many bytes is finished by the writer when no append waits.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// Segments that one commit may open in addition to those that stay open.
const OPEN_IN_A_COMMIT_MAX: usize = 32;
/// Bytes of a record apart from its body: its header and, for a new topic, a definition.
pub(super) const RECORD_EXTRA_BYTES_MAX: usize =
    2 * record::HEADER_BYTES + crate::CHANNEL_BYTES_MAX + TOPIC_BYTES_MAX;

/// A request to the writer.
pub(super) enum Command {
    Append(Append),
    /// Accept no more messages in these segments and have them sealed.
    Seal {
        sequences: Vec<u64>,
    },
    /// Choose the segments that a policy removes, and accept no more messages in them.
    Retire {
        policy: Retention,
        now: Timestamp,
        chosen: oneshot::Sender<Vec<u64>>,
    },
    /// Report the archive's files between two commits.
    Look {
        seen: oneshot::Sender<Snapshot>,
    },
    /// Finish what was accepted, and end.
    Close {
        done: oneshot::Sender<()>,
    },
}

/// The writer's own state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    finisher: Finisher,
    /// Segments that accept messages, in the order in which they were opened.
    open: Vec<OpenSegment>,
}

type Keys = HashSet<Key, RandomState>;

/// A segment that accepts messages, as the writer sees it.
pub(super) struct OpenSegment {
    active: Arc<Active>,
    file: Arc<dyn DiskFile>,
    /// Bytes and rows that were written, visible or not.
    log_len: u64,
    rows: u64,
    /// The file's length: space that is reserved after the written bytes reads as zeros.
    file_len: u64,
    /// The segment's number of each topic, by the topic's number in the archive.
    locals: HashMap<TopicId, u32, RandomState>,
    last_used: Instant,
    pending: Pending,
}

/// What the current commit adds to a segment.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    addition: Addition,
    /// The topic of each row, by its number in the archive.
    topics: Vec<TopicId>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, finisher: Finisher, open: Vec<OpenSegment>) -> Self {
        Self { shared, finisher, open }
    }

    /// Runs until it is closed or all senders are dropped.
    pub(super) fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut expected = 0;
        while let Some(command) = next_command(&mut commands, expected) {
            let Command::Append(first) = command else {
                if self.obey(command) {
                    return;
                }
                continue;
            };
            let (group, next) = take_group(first, &mut commands);
            let somebody_waits = next.is_some() || !commands.is_empty();
            expected = group.len();
            self.commit(group, somebody_waits);
            if next.is_some_and(|next| self.obey(next)) {
                return;
            }
        }
    }

    /// Executes a command that isn't an append; returns whether the writer has to end.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Append(append) => self.commit(vec![append], false),
            Command::Seal { sequences } => {
                let frozen = self.freeze(&sequences);
                self.seal(frozen);
            }
            Command::Retire { policy, now, chosen } => {
                // Written messages must be visible before retention chooses segments.
                self.finisher.drain();
                let sequences = retention::choose(&self.shared.segments(), &policy, now);
                drop(self.freeze(&sequences));
                let _ = chosen.send(sequences); // the caller may be gone; then a later prune finds the segments
            }
            Command::Look { seen } => {
                self.finisher.drain();
                let _ = seen.send(backup::snapshot(&self.shared)); // the caller may be gone
            }
            Command::Close { done } => {
                self.finisher.drain();
                self.open.iter().for_each(OpenSegment::trim);
                self.finisher.work(Work::Reply(done));
                return true;
            }
        }
        false
    }

    /// Removes segments from those that accept messages.
    fn freeze(&mut self, sequences: &[u64]) -> Vec<OpenSegment> {
        let is_meant = |segment: &mut OpenSegment| sequences.contains(&segment.active.id.sequence);
        let frozen = self.open.extract_if(.., is_meant).collect();
        self.count_open();
        frozen
    }

    /// Stores the messages of a group's appends and has each append answered.
    fn commit(&mut self, group: Vec<Append>, somebody_waits: bool) {
        let messages: usize = group.iter().map(|append| append.messages.len()).sum();
        self.shared.metrics.commit_messages.observe(messages as f64);
        match self.write(&group) {
            Ok(answers) => {
                self.note_room(&answers);
                self.hand_on(group, answers, somebody_waits);
            }
            Err(error) => {
                if !self.note_full(&error) {
                    error!(%error, messages, "commit failed");
                }
                for append in group {
                    append.fail(&error);
                }
            }
        }
        self.seal_beyond_the_limit();
    }

    /// Notes whether the messages of a commit found space.
    fn note_room(&mut self, answers: &[Answer]) {
        let mut has_failed = false;
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            has_failed |= self.note_full(error);
        }
        if !has_failed {
            self.shared.disk_full.look();
        }
    }

    /// Notes an error if it is about a full disk, and returns whether it is. When the disk has just become full, large segments
    /// are closed: the next messages go to new ones.
    fn note_full(&mut self, error: &Error) -> bool {
        let was_full = self.shared.disk_full.is_full();
        let is_full = self.shared.disk_full.note(error);
        if is_full && !was_full {
            let is_large = |segment: &mut OpenSegment| {
                !segment.has_pending() && segment.log_len >= FROZEN_WHEN_FULL_BYTES_MIN
            };
            let frozen = self.open.extract_if(.., is_large).collect();
            self.seal(frozen);
            self.count_open();
        }
        is_full
    }

    /// Places and writes the messages. An error with the window of one append fails that append only; a failed write fails all of
    /// them.
    fn write(&mut self, group: &[Append]) -> Result<Vec<Answer>, Error> {
        self.shared.check_refusal()?;
        let answers = self.place_all(group);
        if let Err(error) = self.write_pending() {
            self.take_back();
            self.abandon();
            return Err(error);
        }
        Ok(answers)
    }

    /// Has the written records synced, made visible and answered. The rows are staged while the disk syncs, unless syncing is so
    /// fast that it isn't worth waking another thread.
    fn hand_on(&mut self, group: Vec<Append>, answers: Vec<Answer>, somebody_waits: bool) {
        let (mut written, mut added, mut bytes) = (Vec::new(), Vec::new(), 0);
        for segment in self.open.iter_mut().filter(|segment| segment.has_pending()) {
            bytes += segment.pending.bytes.len();
            written.push(Written { id: segment.active.id, file: segment.file.clone() });
            added.push(segment.written());
        }
        let goes_inline = !somebody_waits && bytes <= INLINE_BYTES_MAX && self.finisher.is_idle();
        if goes_inline {
            let commit = stage(added, group, answers);
            commit::sync(&self.shared, &written);
            commit::publish(&self.shared, vec![commit]);
            return;
        }
        self.finisher.work(Work::Sync(written));
        self.finisher.work(Work::Publish(stage(added, group, answers)));
    }

    /// Puts each new message into the pending records of its segment.
    fn place_all(&mut self, group: &[Append]) -> Vec<Answer> {
        let is_single = matches!(group, [append] if append.messages.len() == 1);
        let mut seen = (!is_single).then(Keys::default);
        let mut window = Window::default();
        group.iter().map(|append| self.place(append, &mut window, &mut seen)).collect()
    }

    /// Places one append's messages. After an error some of them may have been placed; they are stored, but this is not
    /// guaranteed to anyone.
    fn place(&mut self, append: &Append, window: &mut Window, seen: &mut Option<Keys>) -> Answer {
        let mut answers = Vec::with_capacity(append.messages.len());
        for message in &append.messages {
            let key = message.key();
            if !window.contains(key.timestamp) {
                *window = self.window_of(key.timestamp);
            }
            let is_repeated = seen.as_ref().is_some_and(|seen| seen.contains(&key));
            if is_repeated || self.has(window, key)? {
                answers.push(Appended::Duplicate);
                continue;
            }
            let segment = self.segment_for(window, message)?;
            if let Some(segment) = self.open.get_mut(segment) {
                segment.place(message, &self.shared);
            }
            // Only now: a message that was not written makes no other one a duplicate.
            if let Some(seen) = seen {
                seen.insert(key);
            }
            answers.push(Appended::Stored);
        }
        Ok(answers)
    }

    /// Whether a message is already stored. A damaged index found on the way is rebuilt.
    fn has(&self, window: &mut Window, key: Key) -> Result<bool, Error> {
        window.has(key).or_else(|error| match error.kind() {
            ErrorKind::Corrupt => heal::healing(&self.shared, || {
                *window = self.window_of(key.timestamp);
                window.has(key)
            }),
            _ => Err(error),
        })
    }

    /// The window of a timestamp and the segments that may have messages of it.
    fn window_of(&self, timestamp: Timestamp) -> Window {
        let len = self.shared.limits.window_ns;
        let start = timestamp.0.div_euclid(len).saturating_mul(len);
        let last = start.saturating_add(len - 1);
        let window = Span { oldest: Timestamp(start), newest: Timestamp(last) };
        let segments = self.shared.segments();
        let with_span = segments.iter().filter_map(|segment| Some((segment.known_span()?, segment.clone())));
        let segments = with_span.filter(|(span, _)| span.overlaps(&window)).collect();
        Window { span: Some(window), segments }
    }

    /// The index in `open` of the segment for a message: the window's, or a new one.
    fn segment_for(&mut self, window: &Window, message: &Message) -> Result<usize, Error> {
        let limits = self.shared.limits;
        let needed = (message.body.len() + RECORD_EXTRA_BYTES_MAX) as u64;
        let takes = |segment: &OpenSegment| {
            let id = segment.active.id;
            let is_of_window = id.window_start == window.start() && id.window_len == limits.window_ns;
            let bytes = segment.log_len + segment.pending.bytes.len() as u64;
            let rows = segment.rows + segment.pending.addition.rows.len() as u64;
            let has_room = rows < limits.segment_messages && bytes + needed <= limits.segment_bytes;
            // A message that is larger than a segment gets a segment of its own.
            is_of_window && (has_room || rows == 0)
        };
        if let Some(place) = self.open.iter().rposition(takes) {
            return Ok(place);
        }
        if self.open.len() >= limits.open_segments + OPEN_IN_A_COMMIT_MAX {
            self.write_early()?;
        }
        let segment = create_segment(&self.shared, window.start())?;
        self.open.push(segment);
        self.count_open();
        Ok(self.open.len() - 1)
    }

    /// Writes what is pending and closes segments in the middle of a commit that touches very many windows, so that files and
    /// memory are bounded.
    fn write_early(&mut self) -> Result<(), Error> {
        self.write_pending()?;
        self.hand_on(Vec::new(), Vec::new(), true);
        self.seal_beyond_the_limit();
        Ok(())
    }

    fn write_pending(&mut self) -> Result<(), Error> {
        for segment in self.open.iter_mut().filter(|segment| segment.has_pending()) {
            let name = segment.active.id.log_name();
            segment.reserve().map_err(|error| Error::io("reserve room in", &name, error))?;
            let written = segment.file.write_at(&segment.pending.bytes, segment.log_len);
            written.map_err(|error| Error::io("write to", &name, error))?;
        }
        Ok(())
    }

    /// Truncates what a failed commit has written, so that the logs end where readers expect.
    fn take_back(&mut self) {
        for segment in self.open.iter_mut().filter(|segment| segment.has_pending()) {
            segment.file_len = segment.log_len;
            segment.active.set_file_len(segment.log_len);
            // Synced, so that nothing of it can reappear after what is written next.
            let cut = segment.file.set_len(segment.log_len).and_then(|()| segment.file.sync());
            if let Err(error) = cut {
                let name = segment.active.id.log_name();
                self.shared.refuse(format!("can't cut {name} after a failed write: {error}"));
                return;
            }
        }
    }

    /// Discards what was pending.
    fn abandon(&mut self) {
        let mut dictionary = self.shared.dictionary.write();
        for segment in &mut self.open {
            let pending = std::mem::take(&mut segment.pending);
            for (id, _) in &pending.addition.topics {
                segment.locals.remove(id);
            }
            for id in pending.topics {
                dictionary.discount(id, 1);
            }
        }
    }

    /// Hands full segments, and the least recently used beyond the limit, to the sealer.
    fn seal_beyond_the_limit(&mut self) {
        let limits = self.shared.limits;
        let (full, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(|segment| segment.is_full(&limits));
        self.open = open;
        self.seal(full);
        while self.open.len() > limits.open_segments {
            let oldest = self.open.iter().enumerate().min_by_key(|(_, segment)| segment.last_used);
            let Some((oldest, _)) = oldest else { return };
            let segment = self.open.remove(oldest);
            self.seal(vec![segment]);
        }
        self.count_open();
    }

    fn seal(&mut self, segments: Vec<OpenSegment>) {
        for segment in segments {
            self.finisher.work(Work::Seal(segment.active));
        }
    }

    fn count_open(&self) {
        self.shared.metrics.open_segments.set(self.open.len() as i64);
    }
}

/// Returns the next command. Before that, waits for at most [`LINGER`] until `expected` commands are queued.
///
/// A caller that was just answered often sends its next message at once, whether it is the only one or one of sixty-four. Polling
/// for a moment, while yielding the processor to other threads, saves a single caller the time of a wake-up, and makes one commit
/// of what would otherwise be two.
fn next_command(commands: &mut mpsc::Receiver<Command>, expected: usize) -> Option<Command> {
    let begun = Instant::now();
    while commands.len() < expected && begun.elapsed() < LINGER && !commands.is_closed() {
        std::thread::yield_now();
    }
    commands.blocking_recv()
}

/// The waiting appends that go into one commit with the first, and the command that ended the group.
fn take_group(first: Append, commands: &mut mpsc::Receiver<Command>) -> (Vec<Append>, Option<Command>) {
    let mut bytes = batch_bytes(&first.messages);
    let mut group = vec![first];
    while bytes < COMMIT_BYTES_MAX {
        match commands.try_recv() {
            Ok(Command::Append(append)) => {
                bytes += batch_bytes(&append.messages);
                group.push(append);
            }
            Ok(other) => return (group, Some(other)),
            Err(_) => break,
        }
    }
    (group, None)
}

/// A window and the segments in which a message of it may already be. Segments are chosen by their time span, and not by the
/// window they were created for: the length of windows is a setting that may have changed.
#[derive(Default)]
struct Window {
    span: Option<Span>,
    segments: Vec<(Span, Segment)>,
}

impl Window {
    fn contains(&self, timestamp: Timestamp) -> bool {
        self.span.is_some_and(|span| span.contains(timestamp))
    }

    fn has(&self, key: Key) -> Result<bool, Error> {
        for (span, segment) in &self.segments {
            if span.contains(key.timestamp) && segment.contains(key)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The window's first nanosecond.
    fn start(&self) -> i64 {
        self.span.map_or(i64::MIN, |span| span.oldest.0)
    }
}

impl OpenSegment {
    pub(super) fn new(active: Arc<Active>, file: Arc<dyn DiskFile>) -> Self {
        let locals = active.topics().iter().map(|(id, _)| *id).zip(0..).collect();
        let (log_len, rows) = (active.log_len(), active.rows());
        Self {
            active,
            file,
            log_len,
            rows,
            file_len: log_len,
            locals,
            last_used: Instant::now(),
            pending: Pending::default(),
        }
    }

    fn has_pending(&self) -> bool {
        !self.pending.bytes.is_empty()
    }

    pub(super) fn is_full(&self, limits: &super::Limits) -> bool {
        self.rows >= limits.segment_messages
            || self.log_len + RECORD_EXTRA_BYTES_MAX as u64 + 1_024 > limits.segment_bytes
    }

    /// Reserves space for the pending records and an eighth of the log more, within bounds; if there is no space for that, for
    /// the pending records alone. A sync of bytes within the file need not record a new length, and takes a quarter less time;
    /// and a full disk is noticed here, where nothing is lost by it, and not by the sync.
    ///
    /// # Errors
    /// When the disk is full. A file system that can't reserve is no error.
    fn reserve(&mut self) -> std::io::Result<()> {
        let end = self.log_len + self.pending.bytes.len() as u64;
        if end <= self.file_len {
            return Ok(());
        }
        let ahead = end + (end / 8).clamp(RESERVED_BYTES_MIN, RESERVED_BYTES_MAX);
        let reserved = self.file.reserve(self.file_len, ahead - self.file_len);
        if reserved.as_ref().is_err_and(has_no_room) {
            match self.file.reserve(self.file_len, end - self.file_len) {
                Err(error) if has_no_room(&error) => return Err(error),
                _ => {}
            }
        }
        self.file_len = if reserved.is_ok() { ahead } else { end };
        self.active.set_file_len(self.file_len);
        Ok(())
    }

    /// Releases the reserved space that was not used.
    fn trim(&self) {
        if self.file_len == self.log_len {
            return;
        }
        match self.file.set_len(self.log_len) {
            Ok(()) => self.active.set_file_len(self.log_len),
            Err(error) => {
                warn!(%error, log = self.active.id.log_name(), "can't trim a log; the next start does")
            }
        }
    }

    /// Encodes a message after the pending ones.
    fn place(&mut self, message: &Message, shared: &Shared) {
        let Pending { bytes, addition, topics } = &mut self.pending;
        let (id, name) = shared.dictionary.write().count(&message.channel, &message.topic, 1);
        let seed = self.active.id.seed();
        let next_local = self.locals.len() as u32;
        let local = *self.locals.entry(id).or_insert_with(|| {
            record::encode_definition(seed, next_local, &message.channel, &message.topic, bytes);
            addition.topics.push((id, name));
            next_local
        });
        let offset = self.log_len + bytes.len() as u64;
        let offset = u32::try_from(offset).expect("a segment is at most SEGMENT_BYTES_MAX long");
        record::encode_message(seed, local, message.key(), &message.body, bytes);
        topics.push(id);
        addition.rows.push(IndexRow { key: message.key(), offset, topic: local });
        addition.body_bytes += message.body.len() as u64;
    }

    /// Takes the pending rows, whose records have been written.
    fn written(&mut self) -> Added {
        let Pending { bytes, mut addition, topics } = std::mem::take(&mut self.pending);
        self.log_len += bytes.len() as u64;
        self.rows += addition.rows.len() as u64;
        self.last_used = Instant::now();
        addition.log_len = self.log_len;
        Added { active: self.active.clone(), addition, topics }
    }
}

/// What a commit has written to a segment.
struct Added {
    active: Arc<Active>,
    addition: Addition,
    /// The topic of each row, by its number in the archive.
    topics: Vec<TopicId>,
}

/// Stages the rows of a commit.
fn stage(added: Vec<Added>, group: Vec<Append>, answers: Vec<Answer>) -> Commit {
    let (mut staged, mut topics) = (Vec::new(), Vec::new());
    for added in added {
        topics.extend(added.topics);
        let rows = added.active.stage(added.addition);
        staged.push((added.active, rows));
    }
    Commit { staged, topics, group, answers }
}

/// Creates a segment for a window: durable, empty and visible when this returns.
fn create_segment(shared: &Shared, window_start: i64) -> Result<OpenSegment, Error> {
    let id = SegmentId {
        window_start,
        window_len: shared.limits.window_ns,
        sequence: shared.next_sequence(),
        salt: shared.salt(),
    };
    let name = id.log_name();
    let file = shared.disk.create(&name).map_err(|error| Error::io("create", &name, error))?;
    let prepared = file
        .write_at(&encode_log_header(&id), 0)
        .and_then(|()| file.sync())
        .and_then(|()| shared.disk.sync_folder(""))
        .and_then(|()| shared.disk.map(&name, shared.limits.mapping_bytes()));
    let log = match prepared {
        Ok(log) => log,
        Err(error) => {
            if let Err(error) = shared.disk.remove(&name) {
                warn!(%error, name, "can't remove a segment that could not be created; it is removed at the next start");
            }
            return Err(Error::io("create", &name, error));
        }
    };
    let active = Arc::new(Active::new(id, log));
    shared.change_segments(|segments| segments.push(Segment::Active(active.clone())));
    Ok(OpenSegment::new(active, file.into()))
}

impl super::Limits {
    /// Bytes that an active segment maps: the largest size it may grow to.
    pub(super) fn mapping_bytes(&self) -> usize {
        self.segment_bytes as usize + BODY_BYTES_MAX + RECORD_EXTRA_BYTES_MAX + LOG_HEADER_BYTES as usize
    }
}

/// Seconds as nanoseconds, at most what an i64 can hold.
pub(super) fn window_ns(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(NANOS_PER_SECOND).max(1)
}

#[cfg(test)]
mod tests {
    use restante_disk::testing::{FailingDisk, FailurePlan, InjectedFailure};

    use super::*;
    use crate::log::{
        disk::Folder,
        open::share,
        seal::Sealer,
        tests::{config, message},
    };

    fn append(messages: Vec<Message>) -> (Append, oneshot::Receiver<Answer>) {
        let room = Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().unwrap();
        Append::new(messages, room)
    }

    /// A commit is staged, and not visible yet, while the disk syncs it. The same message may arrive meanwhile.
    #[test]
    fn a_message_whose_first_copy_is_not_visible_yet_is_a_duplicate() {
        let folder = tempfile::tempdir().unwrap();
        let shared = share(Arc::new(Folder::new(folder.path())), &config(), None);
        let (commands, _queue) = mpsc::channel(1);
        let (sealer, _) = Sealer::start(shared.clone(), commands.downgrade()).unwrap();
        let (finisher, _) = Finisher::start(shared.clone(), sealer).unwrap();
        let mut writer = Writer::new(shared.clone(), finisher, Vec::new());
        let (first, first_answer) = append(vec![message(1, 10)]);
        let group = vec![first];
        let answers = writer.write(&group).unwrap();
        let added = writer.open.iter_mut().map(OpenSegment::written).collect();
        let under_way = stage(added, group, answers);
        let (second, second_answer) = append(vec![message(1, 10)]);
        writer.commit(vec![second], false);
        assert_eq!(second_answer.blocking_recv().unwrap().unwrap(), [Appended::Duplicate]);
        commit::publish(&shared, vec![under_way]);
        assert_eq!(first_answer.blocking_recv().unwrap().unwrap(), [Appended::Stored]);
        assert_eq!(shared.segments().iter().map(Segment::rows).sum::<u64>(), 1);
    }

    /// Two publishers relay one message, and the first one's attempt finds no space for a new segment.
    #[test]
    fn a_message_that_could_not_be_placed_is_nobodys_duplicate() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FailingDisk::new(folder.path(), FailurePlan::at_step(1, InjectedFailure::Full));
        let shared = share(Arc::new(disk), &config(), None);
        let (commands, _queue) = mpsc::channel(1);
        let (sealer, _) = Sealer::start(shared.clone(), commands.downgrade()).unwrap();
        let (finisher, _) = Finisher::start(shared.clone(), sealer).unwrap();
        let mut writer = Writer::new(shared.clone(), finisher, Vec::new());
        let (first, first_answer) = append(vec![message(1, 10)]);
        let (second, second_answer) = append(vec![message(1, 10)]);
        writer.commit(vec![first, second], false);
        assert!(first_answer.blocking_recv().unwrap().is_err());
        assert_eq!(second_answer.blocking_recv().unwrap().unwrap(), [Appended::Stored]);
        assert_eq!(shared.segments().iter().map(Segment::rows).sum::<u64>(), 1);
    }
}
