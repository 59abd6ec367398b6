//! The waiting messages, on disk: a sequence of *generations*, each an archive of the `log` engine in its own folder.
//!
//! One generation accepts messages. It is frozen when it is large enough or when its messages are needed; from then on it is only
//! read, from beginning to end, and removed as a whole. So a message that arrives while others are drained is in a later
//! generation, whatever its timestamp, and disk space is freed generation by generation.

use std::{
    collections::VecDeque,
    fs::File,
    num::NonZero,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use restante_core::{ErrorKind, Timestamp, nonzero};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use super::{folder, reader::Reader};
use crate::{
    Appended, Archive, Config, EngineUrl, Error, LogConfig, Message, Metrics, Opened, Upkeep, backup, log,
    message::check_batch, metrics::SpoolMetrics, record,
};

/// A generation accepts no more messages at this size, or at a sixteenth of the spool's: this much is read into memory at once,
/// freed at once, and stored twice after a crash.
const GENERATION_BYTES_MAX: u64 = 32 << 20;
const GENERATION_BYTES_MIN: u64 = 1 << 20;
/// The log of a generation never grows to this: it stays one segment, and no index is written for it.
const SEGMENT_BYTES: u64 = 256 << 20;
/// The most bytes of messages that wait for the disk; further appends wait.
const QUEUE_BYTES: usize = 16 << 20;
/// An append that finds its generation frozen goes to the next one, at most this often.
const PUT_TRIES: usize = 8;

/// See the module.
pub(crate) struct Store {
    folder: PathBuf,
    bytes_max: u64,
    /// How long a generation accepts messages before its messages are needed. Where messages arrive all the time this bounds how
    /// many generations are created.
    linger: Duration,
    state: Mutex<State>,
    /// Locked while a generation is created or frozen, which waits for the disk.
    turning: tokio::sync::Mutex<()>,
    /// Notified when a message was put.
    pub(super) changed: Notify,
    is_full: AtomicBool,
    metrics: SpoolMetrics,
    lock: Mutex<Option<Arc<File>>>,
}

#[derive(Default)]
struct State {
    /// Generations that are only read, oldest first.
    frozen: VecDeque<Frozen>,
    /// The one being moved from `current` to `frozen`.
    freezing: Option<Arc<Current>>,
    /// The one that accepts messages.
    current: Option<Arc<Current>>,
    next_number: u64,
    is_closed: bool,
}

/// A generation that is only read.
#[derive(Clone, Copy, Debug)]
struct Frozen {
    number: u64,
    usage: Usage,
}

/// A generation that accepts messages.
struct Current {
    number: u64,
    archive: Arc<dyn Archive>,
    upkeep: Arc<dyn Upkeep>,
    begun: Instant,
    messages: AtomicU64,
    /// The most bytes that the messages may take; the actual size is known when the generation is frozen.
    bytes: AtomicU64,
    oldest: AtomicI64,
    is_frozen: AtomicBool,
    /// Its disk has failed: further messages go to a new one.
    is_broken: AtomicBool,
}

/// The waiting messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// The oldest timestamp among the messages.
    pub(crate) oldest: Option<Timestamp>,
}

impl Usage {
    fn plus(self, other: Self) -> Self {
        Self {
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
            oldest: [self.oldest, other.oldest].into_iter().flatten().min(),
        }
    }
}

/// The messages to drain next.
pub(super) enum Oldest {
    /// Nothing waits.
    Nothing,
    /// Those of this generation.
    Generation(u64),
    /// There will be some after this long.
    In(Duration),
}

/// The configuration of a generation.
pub(super) fn generation_config(read_only: bool) -> Config {
    let log = LogConfig {
        // Messages are added in the order of arrival, and windows would only scatter them over segments.
        window_seconds: NonZero::<u64>::MAX,
        segment_bytes: nonzero!(SEGMENT_BYTES),
        quiet_seconds: u64::MAX,
        queue_bytes: nonzero!(QUEUE_BYTES),
        ..LogConfig::default()
    };
    // Its own metrics: the engine's are about the engine.
    Config { read_only, log, metrics: Metrics::default(), ..Config::new(EngineUrl::Memory) }
}

impl Store {
    /// Opens or creates the spool in a folder. Its messages are counted, which reads them once.
    pub(crate) async fn open(
        folder: &Path,
        bytes_max: u64,
        linger: Duration,
        metrics: SpoolMetrics,
    ) -> Result<Self, Error> {
        let place = folder.to_owned();
        let (lock, numbers) = blocking(move || {
            let lock = folder::create_and_lock(&place)?;
            let failed = |error| Error::io("list", place.display(), error);
            Ok((lock, folder::generations(&place).map_err(failed)?))
        })
        .await?;
        let mut state = State { next_number: numbers.last().map_or(1, |last| last + 1), ..State::default() };
        for number in numbers {
            let opened = log::open(folder::generation(folder, number), generation_config(true)).await?;
            let usage = usage_of(&opened).await?;
            state.frozen.push_back(Frozen { number, usage });
        }
        let store = Self {
            folder: folder.to_owned(),
            bytes_max,
            linger,
            state: Mutex::new(state),
            turning: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            is_full: AtomicBool::new(false),
            metrics,
            lock: Mutex::new(Some(Arc::new(lock))),
        };
        let Usage { messages, bytes, .. } = store.note_usage();
        if messages > 0 {
            info!(messages, bytes, folder = %folder.display(), "messages wait in the spool from before");
        }
        Ok(store)
    }

    /// The messages that wait now.
    pub(crate) fn usage(&self) -> Usage {
        self.state.lock().usage()
    }

    /// Whether the last message found no space, within the spool's limit or on its disk.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Puts a batch and returns when it is durable.
    pub(crate) async fn put(&self, messages: Vec<Message>) -> Result<(), Error> {
        check_batch(&messages)?;
        let put = self.put_into_current(messages).await;
        match &put {
            Ok(()) => self.is_full.store(false, Ordering::Relaxed),
            Err(error) if error.kind() == ErrorKind::Full => self.is_full.store(true, Ordering::Relaxed),
            Err(_) => {}
        }
        put
    }

    async fn put_into_current(&self, messages: Vec<Message>) -> Result<(), Error> {
        let room = messages.iter().map(room_for).sum();
        for _ in 0..PUT_TRIES {
            let Some(current) = self.current(room).await? else { continue };
            match current.archive.append(messages.clone()).await {
                Ok(answers) => {
                    current.note(&messages, &answers);
                    self.metrics.put.inc_by(messages.len() as u64);
                    self.note_usage();
                    self.changed.notify_one();
                    return Ok(());
                }
                Err(_) if current.is_frozen.load(Ordering::Acquire) => {}
                Err(error) => {
                    current.bytes.fetch_sub(room, Ordering::Relaxed);
                    let error = self.in_spool(error);
                    if error.kind() == ErrorKind::Unavailable {
                        current.is_broken.store(true, Ordering::Relaxed);
                    }
                    return Err(error);
                }
            }
        }
        Err(Error::unavailable("the spool was turned over again and again: publish again"))
    }

    /// The generation for a batch, with space reserved for it; `None` when others have filled it first.
    async fn current(&self, room: u64) -> Result<Option<Arc<Current>>, Error> {
        if let Some(current) = self.reserve(room)? {
            return Ok(Some(current));
        }
        let _turn = self.turning.lock().await;
        if let Some(current) = self.reserve(room)? {
            return Ok(Some(current)); // another task has created it meanwhile
        }
        self.turn(Next::IsMade).await?;
        self.reserve(room)
    }

    /// Reserves space in the current generation, if there is one that accepts more.
    fn reserve(&self, room: u64) -> Result<Option<Arc<Current>>, Error> {
        let state = self.state.lock();
        if state.is_closed {
            return Err(closed());
        }
        let used = state.usage().bytes;
        if used.saturating_add(room) > self.bytes_max {
            return Err(self.full(used));
        }
        let largest = (self.bytes_max / 16).clamp(GENERATION_BYTES_MIN, GENERATION_BYTES_MAX);
        let current = state.current.as_ref().filter(|current| {
            !current.is_broken.load(Ordering::Relaxed) && current.bytes.load(Ordering::Relaxed) < largest
        });
        if let Some(current) = current {
            current.bytes.fetch_add(room, Ordering::Relaxed);
        }
        Ok(current.cloned())
    }

    fn full(&self, used: u64) -> Error {
        let (folder, max) = (self.folder.display(), self.bytes_max);
        Error::full(format!("the spool {folder} is full: {used} of {max} bytes are in use"))
    }

    /// An error of a generation, with the spool's folder. Kinds other than `Full` and `Invalid` become `Unavailable`.
    fn in_spool(&self, error: Error) -> Error {
        let kind = match error.kind() {
            kind @ (ErrorKind::Full | ErrorKind::Invalid) => kind,
            _ => ErrorKind::Unavailable,
        };
        let what = format!("the spool {} can't be used: {error}", self.folder.display());
        Error::new(kind, what).with_source(error)
    }

    /// Freezes the current generation; the next one is created first, so that no append waits for it. The caller holds `turning`.
    /// When it is cancelled, the next call continues where it stopped.
    async fn turn(&self, next: Next) -> Result<(), Error> {
        self.freeze().await?;
        let next = match next {
            Next::IsMade => Some(self.begin().await.map_err(|error| self.in_spool(error))?),
            Next::IsNotWanted => None,
        };
        {
            let mut state = self.state.lock();
            state.freezing = std::mem::replace(&mut state.current, next);
        }
        self.freeze().await
    }

    /// Creates a generation that accepts messages.
    async fn begin(&self) -> Result<Arc<Current>, Error> {
        let number = {
            let mut state = self.state.lock();
            state.next_number += 1;
            state.next_number - 1
        };
        let opened = log::open(folder::generation(&self.folder, number), generation_config(false)).await;
        // A number whose folder could not be created is tried again: a disk without space must not fill with empty folders.
        let Opened { archive, upkeep } = opened.inspect_err(|_| self.state.lock().next_number = number)?;
        Ok(Arc::new(Current {
            number,
            archive,
            upkeep,
            begun: Instant::now(),
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            oldest: AtomicI64::new(i64::MAX),
            is_frozen: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        }))
    }

    /// Lets the generation that is being frozen finish what it has accepted, and appends it to the frozen ones.
    async fn freeze(&self) -> Result<(), Error> {
        let freezing = self.state.lock().freezing.clone();
        let Some(old) = freezing else { return Ok(()) };
        old.is_frozen.store(true, Ordering::Release);
        old.upkeep.close().await?;
        let opened = Opened { archive: old.archive.clone(), upkeep: old.upkeep.clone() };
        // If the folder can no longer be read, the counted usage is as good.
        let usage = usage_of(&opened).await.unwrap_or_else(|_| old.usage());
        {
            let mut state = self.state.lock();
            state.freezing = None;
            state.frozen.push_back(Frozen { number: old.number, usage });
        }
        self.note_usage();
        Ok(())
    }

    /// The messages to drain next.
    pub(super) async fn oldest(&self) -> Result<Oldest, Error> {
        if let Some(number) = self.front() {
            return Ok(Oldest::Generation(number));
        }
        let _turn = self.turning.lock().await;
        self.freeze().await?; // a turn that was given up
        let current = self.state.lock().current.clone();
        if let Some(current) = current.filter(|current| current.messages.load(Ordering::Relaxed) > 0) {
            let rest = self.linger.saturating_sub(current.begun.elapsed());
            if !rest.is_zero() {
                return Ok(Oldest::In(rest));
            }
            self.turn(self.next_wanted()).await?;
        }
        Ok(self.front().map_or(Oldest::Nothing, Oldest::Generation))
    }

    /// Where messages arrive all the time, the next one must not wait for a new generation.
    fn next_wanted(&self) -> Next {
        if self.linger.is_zero() { Next::IsNotWanted } else { Next::IsMade }
    }

    fn front(&self) -> Option<u64> {
        self.state.lock().frozen.front().map(|front| front.number)
    }

    /// Opens a frozen generation for reading; `None` when nothing in it can be read and it has been set aside or removed.
    pub(super) async fn read(&self, number: u64) -> Result<Option<Reader>, Error> {
        match Reader::open(&self.folder, number).await {
            Ok(reader) => Ok(Some(reader)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                error!(%error, number, "a part of the spool is gone: its messages are lost");
                self.forget(number);
                Ok(None)
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                error!(%error, number, "a part of the spool can't be read");
                self.set_aside(number).await;
                Ok(None)
            }
            Err(error) => Err(self.in_spool(error)),
        }
    }

    /// Notes that this many messages of a generation have been stored.
    pub(super) fn drained(&self, number: u64, messages: u64) {
        let mut state = self.state.lock();
        if let Some(front) = state.frozen.iter_mut().find(|frozen| frozen.number == number) {
            front.usage.messages = front.usage.messages.saturating_sub(messages);
            if front.usage.messages == 0 {
                front.usage.oldest = None; // nothing waits any more, only the files still exist
            }
        }
        drop(state);
        self.metrics.drained.inc_by(messages);
        self.note_usage();
    }

    /// Messages of a generation that were put and not stored elsewhere yet.
    fn waiting_in(&self, number: u64) -> u64 {
        let state = self.state.lock();
        let frozen = state.frozen.iter().find(|frozen| frozen.number == number);
        frozen.map_or(0, |frozen| frozen.usage.messages)
    }

    /// Removes a generation that was read to its end.
    pub(super) async fn finish(&self, reader: Reader) -> Result<(), Error> {
        let number = reader.number;
        let missing = reader.missing().max(self.waiting_in(number));
        let is_empty = reader.is_empty();
        drop(reader);
        let folder = self.folder.clone();
        let is_unreadable = is_empty && blocking(move || Ok(folder::has_records(&folder, number))).await?;
        if is_unreadable {
            error!(number, "a part of the spool has content that can't be read");
            self.set_aside(number).await;
            return Ok(());
        }
        if missing > 0 {
            error!(number, missing, "messages of the spool are damaged and could not be stored");
            self.set_aside(number).await;
            return Ok(());
        }
        let folder = self.folder.clone();
        // The next opening of the spool must not find a part that is half removed.
        let lock = self.lock.lock().clone();
        let remove = move || {
            let removed = folder::remove(&folder, number);
            drop(lock);
            Ok(removed)
        };
        let removed = blocking(remove).await?;
        if let Err(error) = removed {
            // It must not be drained forever, so it leaves the list all the same.
            warn!(%error, number, "can't remove a drained part of the spool; the next start drains it once more");
        }
        self.forget(number);
        Ok(())
    }

    /// Keeps the files of a generation that can't be read, out of the way of the others.
    pub(super) async fn set_aside(&self, number: u64) {
        let folder = self.folder.clone();
        let failed = |error| Error::io("set aside a part of", "the spool", error);
        match blocking(move || folder::set_aside(&folder, number).map_err(failed)).await {
            Ok(place) => {
                error!(place = %place.display(), "a damaged part of the spool was set aside: restante archive check says more");
            }
            // The others must not wait for it forever, so it leaves the list all the same.
            Err(error) => error!(%error, number, "a damaged part of the spool is left where it is"),
        }
        self.forget(number);
    }

    fn forget(&self, number: u64) {
        self.state.lock().frozen.retain(|frozen| frozen.number != number);
        self.is_full.store(false, Ordering::Relaxed);
        self.note_usage();
    }

    /// Keeps a message that the engine will never accept: it was acknowledged, so it is not dropped.
    pub(super) async fn refuse(&self, message: Message, why: &Error) -> Result<(), Error> {
        let place = self.folder.join(folder::REFUSED_NAME);
        error!(message_hash = %message.message_hash, error = %why, place = %place.display(),
            "the engine refuses a message of the spool: it was set aside");
        let refused = log::open(place, generation_config(false)).await?;
        let appended = refused.archive.append(vec![message]).await;
        refused.upkeep.close().await?;
        self.metrics.refused.inc();
        appended.map(drop)
    }

    /// Copies the waiting messages into a folder that it creates. What is drained meanwhile may be missing: the target has it.
    pub(crate) async fn backup(&self, to: &Path) -> Result<(), Error> {
        let numbers = {
            let _turn = self.turning.lock().await;
            self.freeze().await?; // a turn that was given up
            let current = self.state.lock().current.clone();
            if current.is_some_and(|current| current.messages.load(Ordering::Relaxed) > 0) {
                self.turn(self.next_wanted()).await?;
            }
            self.state.lock().frozen.iter().map(|frozen| frozen.number).collect::<Vec<u64>>()
        };
        let (folder, to) = (self.folder.clone(), to.to_owned());
        blocking(move || {
            let failed = |error| Error::io("back up", folder.display(), error);
            backup::create(&to)?;
            for number in numbers {
                folder::copy_generation(&folder, number, &to).map_err(failed)?;
            }
            folder::copy_rest(&folder, &to).map_err(failed)
        })
        .await
    }

    /// Accepts no more messages; those in the spool stay there.
    pub(crate) async fn close(&self) -> Result<(), Error> {
        let _turn = self.turning.lock().await;
        self.state.lock().is_closed = true;
        self.turn(Next::IsNotWanted).await?;
        *self.lock.lock() = None;
        Ok(())
    }

    /// Updates the gauges.
    fn note_usage(&self) -> Usage {
        let usage = self.usage();
        self.metrics.messages.set(i64::try_from(usage.messages).unwrap_or(i64::MAX));
        self.metrics.bytes.set(i64::try_from(usage.bytes).unwrap_or(i64::MAX));
        self.metrics.oldest.set(usage.oldest.map_or(0, Timestamp::seconds));
        usage
    }
}

/// Whether a freeze creates the next generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    IsMade,
    IsNotWanted,
}

impl State {
    fn usage(&self) -> Usage {
        let frozen = self.frozen.iter().map(|frozen| frozen.usage);
        let taking = [&self.freezing, &self.current].into_iter().flatten().map(|current| current.usage());
        frozen.chain(taking).fold(Usage::default(), Usage::plus)
    }
}

impl Current {
    fn usage(&self) -> Usage {
        let messages = self.messages.load(Ordering::Relaxed);
        let oldest = (messages > 0).then(|| Timestamp(self.oldest.load(Ordering::Relaxed)));
        Usage { messages, bytes: self.bytes.load(Ordering::Relaxed), oldest }
    }

    /// Counts what was put, and releases the space of duplicates.
    fn note(&self, messages: &[Message], answers: &[Appended]) {
        for (message, answer) in messages.iter().zip(answers) {
            if *answer == Appended::Stored {
                self.oldest.fetch_min(message.timestamp.0, Ordering::Relaxed);
                self.messages.fetch_add(1, Ordering::Relaxed);
            } else {
                self.bytes.fetch_sub(room_for(message), Ordering::Relaxed);
            }
        }
    }
}

async fn usage_of(opened: &Opened) -> Result<Usage, Error> {
    let stats = opened.upkeep.stats().await?;
    Ok(Usage { messages: stats.messages, bytes: stats.disk_bytes, oldest: stats.oldest })
}

/// The most bytes of a message in a log: its record and the definition of its topic.
fn room_for(message: &Message) -> u64 {
    let names = message.channel.len() + message.topic.len();
    (2 * record::HEADER_BYTES + names + message.body.len()) as u64
}

fn closed() -> Error {
    Error::unavailable("the spool takes no messages: it is closed")
}

/// Runs work that waits for the disk on the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|error| Err(Error::internal("a task of the spool ended early").with_source(error)))
}

#[cfg(test)]
mod tests {
    use restante_core::MessageHash;

    use super::*;

    async fn open(folder: &Path) -> Store {
        let metrics = Metrics::default().spool.clone();
        Store::open(folder, 64 << 20, Duration::ZERO, metrics).await.unwrap()
    }

    fn message(number: u8) -> Message {
        Message {
            message_hash: MessageHash([number; 32]),
            channel: "channel".into(),
            topic: "topic".into(),
            timestamp: Timestamp(i64::from(number)),
            body: vec![number; 100].into(),
        }
    }

    #[tokio::test]
    async fn a_put_that_failed_leaves_no_space_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).await;
        store.put(vec![message(1)]).await.unwrap();
        let used = store.usage();
        let current = store.state.lock().current.clone().unwrap();
        current.upkeep.close().await.unwrap(); // as a failed disk would end it
        let error = store.put(vec![message(2)]).await.unwrap_err();
        assert_eq!((error.kind(), store.usage()), (ErrorKind::Unavailable, used));
        store.put(vec![message(2)]).await.unwrap();
        assert_eq!(store.usage().messages, 2, "it goes to the next generation");
    }

    #[tokio::test]
    async fn a_generation_from_before_is_not_begun_again_though_older_ones_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).await;
        for number in [1, 2] {
            store.put(vec![message(number)]).await.unwrap();
            assert!(matches!(store.oldest().await.unwrap(), Oldest::Generation(1)));
            store.turn(Next::IsNotWanted).await.unwrap();
        }
        drop(store);
        folder::remove(folder.path(), 1).unwrap();
        let store = open(folder.path()).await;
        store.put(vec![message(3)]).await.unwrap();
        assert_eq!(folder::generations(folder.path()).unwrap(), [2, 3]);
    }
}
