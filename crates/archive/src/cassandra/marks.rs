//! How many messages a window has, without counters: a count is saved while no server stores into the window.
//!
//! Before a server stores into a window, it writes a *mark* of its own for the window: an odd number. When it has stored nothing
//! there for a while, it writes the next even number. A count is valid as long as the marks are the same as when it was taken,
//! all even; so a window that is being written to is counted by reading its keys, and others need not be read again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use foldhash::fast::RandomState;
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Shared,
    epochs::Epoch,
    schema::{self, EpochId, ServerId, Statement},
};
use crate::Error;

/// A window into which nothing was stored for this long gets an even mark.
const QUIET: Duration = Duration::from_secs(60);
/// A window that is being written to gets a new mark after this long...
const MARK_AGAIN: Duration = Duration::from_secs(600);
/// ...so that an odd mark of this age was left by a server that has ended.
const ABANDONED_MICROS: i64 = 3_600_000_000;
/// The row of a window that has its count.
const COUNT_ROW: ServerId = [0; 16];
/// Keys that are read at once to count, and windows that are counted at the same time.
const COUNT_KEYS: i32 = 5_000;
const COUNT_WINDOWS: usize = 8;

/// The numbers of a window or an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) messages: u64,
    pub(super) body_bytes: u64,
    pub(super) oldest: Option<i64>,
    pub(super) newest: Option<i64>,
}

impl Count {
    fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.body_bytes += other.body_bytes;
        self.oldest = [self.oldest, other.oldest].into_iter().flatten().min();
        self.newest = [self.newest, other.newest].into_iter().flatten().max();
    }

    /// Estimated bytes on disk of one copy: the message, its two keys, and the overhead of a row. The actual size depends on
    /// compression, compaction and the number of copies.
    pub(super) fn disk_bytes(&self) -> u64 {
        const ROW_BYTES: u64 = 300;
        self.body_bytes + self.messages * ROW_BYTES
    }

    fn encode(&self, fingerprint: u64) -> Vec<u8> {
        let numbers = [
            fingerprint,
            self.messages,
            self.body_bytes,
            self.oldest.unwrap_or(0) as u64,
            self.newest.unwrap_or(0) as u64,
        ];
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    /// Reads a count and the fingerprint of the marks with which it was taken.
    fn decode(bytes: &[u8]) -> Option<(u64, Self)> {
        let mut numbers =
            bytes.chunks_exact(8).filter_map(|chunk| Some(u64::from_be_bytes(chunk.try_into().ok()?)));
        let fingerprint = numbers.next()?;
        let (messages, body_bytes) = (numbers.next()?, numbers.next()?);
        let (oldest, newest) = (numbers.next()? as i64, numbers.next()? as i64);
        let span = (messages > 0).then_some((oldest, newest));
        let (oldest, newest) = span.unzip();
        Some((fingerprint, Self { messages, body_bytes, oldest, newest }))
    }
}

/// The marks of this server.
#[derive(Default)]
pub(super) struct Marks {
    windows: Mutex<HashMap<(EpochId, i64), Mark, RandomState>>,
    writing: tokio::sync::Mutex<()>,
}

struct Mark {
    number: i64,
    /// Whether `number` is known to be written.
    is_written: bool,
    appends: usize,
    used: Instant,
    written: Instant,
}

/// An append into some windows; they get no even mark until it is dropped.
pub(super) struct Appending<'a> {
    marks: &'a Marks,
    windows: Vec<(EpochId, i64)>,
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        let mut windows = self.marks.windows.lock();
        for window in &self.windows {
            if let Some(mark) = windows.get_mut(window) {
                mark.appends -= 1;
                mark.used = Instant::now();
            }
        }
    }
}

impl Marks {
    /// Notes an append. Marks of a window that has none yet begin above `first`, which rises, so that none is ever used again.
    pub(super) fn begin(&self, windows: &[(EpochId, i64)], first: i64) -> Appending<'_> {
        let mut held = self.windows.lock();
        let now = Instant::now();
        for window in windows {
            let fresh = Mark { number: first * 2, is_written: true, appends: 0, used: now, written: now };
            held.entry(*window).or_insert(fresh).appends += 1;
        }
        Appending { marks: self, windows: windows.to_vec() }
    }

    /// The marks to write before something is stored: the next odd ones.
    fn next_odd(&self, windows: &[(EpochId, i64)]) -> Vec<((EpochId, i64), i64)> {
        let mut held = self.windows.lock();
        let mut missing = Vec::new();
        for window in windows {
            let Some(mark) = held.get_mut(window) else { continue };
            let is_odd = mark.number % 2 == 1;
            if is_odd && mark.is_written && mark.written.elapsed() < MARK_AGAIN {
                continue;
            }
            mark.number += if is_odd { 2 } else { 1 };
            mark.is_written = false;
            missing.push((*window, mark.number));
        }
        missing
    }

    /// The next even marks, of windows that are quiet.
    fn next_even(&self, quiet: Duration) -> Vec<((EpochId, i64), i64)> {
        let mut held = self.windows.lock();
        let is_finished = |mark: &Mark| mark.appends == 0 && mark.number % 2 == 0 && mark.is_written;
        held.retain(|_, mark| !is_finished(mark));
        let mut missing = Vec::new();
        for (window, mark) in held.iter_mut() {
            let is_quiet = mark.appends == 0 && mark.used.elapsed() >= quiet;
            let is_even = mark.number % 2 == 0;
            if !is_quiet {
                continue;
            }
            mark.number += if is_even { 2 } else { 1 };
            mark.is_written = false;
            missing.push((*window, mark.number));
        }
        missing
    }

    fn wrote(&self, window: (EpochId, i64), number: i64) {
        let mut held = self.windows.lock();
        if let Some(mark) = held.get_mut(&window).filter(|mark| mark.number == number) {
            mark.is_written = true;
            mark.written = Instant::now();
        }
    }

    /// Forgets the windows of an epoch that was dropped.
    pub(super) fn forget(&self, epoch: EpochId) {
        self.windows.lock().retain(|(of, _), mark| *of != epoch || mark.appends > 0);
    }
}

/// The marks of a window and its count, as written.
#[derive(Clone, Debug, Default)]
struct Written {
    marks: Vec<(ServerId, i64)>,
    count: Option<Vec<u8>>,
    has_odd: bool,
}

impl Written {
    /// The same marks have the same fingerprint on every server.
    fn fingerprint(&self) -> u64 {
        let mut marks = self.marks.clone();
        marks.sort_unstable();
        let mut bytes = Vec::new();
        for (server, number) in marks {
            bytes.extend_from_slice(&server);
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        let low = crc32c::crc32c(&bytes);
        let high = crc32c::crc32c_append(low ^ u32::MAX, &bytes);
        (u64::from(high) << 32) | u64::from(low)
    }

    fn valid_count(&self) -> Option<Count> {
        let (fingerprint, count) = Count::decode(self.count.as_deref()?)?;
        (!self.has_odd && fingerprint == self.fingerprint()).then_some(count)
    }
}

impl Shared {
    /// Marks windows before something is stored in them.
    pub(super) async fn mark(&self, windows: &[(EpochId, i64)]) -> Result<(), Error> {
        // A task that finds a mark being written waits for it.
        let _one = self.marks.writing.lock().await;
        let missing = self.marks.next_odd(windows);
        self.write_marks(missing).await
    }

    /// Gives windows that are quiet an even mark.
    pub(super) async fn unmark(&self, is_closing: bool) -> Result<(), Error> {
        let _one = self.marks.writing.lock().await;
        let missing = self.marks.next_even(if is_closing { Duration::ZERO } else { QUIET });
        self.write_marks(missing).await
    }

    async fn write_marks(&self, marks: Vec<((EpochId, i64), i64)>) -> Result<(), Error> {
        let writes: Vec<_> = marks
            .into_iter()
            .map(|((epoch, window), number)| async move {
                let values = (epoch, window, self.server.as_slice(), number, self.micros());
                self.database.write("mark a window", Statement::PutMark, values).await?;
                self.marks.wrote((epoch, window), number);
                Ok::<(), Error>(())
            })
            .collect();
        stream::iter(writes).buffer_unordered(COUNT_WINDOWS).try_collect().await
    }

    /// The counts of windows of an epoch. Counts that are not valid are taken again, and saved if `keep`.
    pub(super) async fn count(
        &self,
        epoch: &Epoch,
        windows: &BTreeSet<i64>,
        keep: bool,
    ) -> Result<BTreeMap<i64, Count>, Error> {
        let written = self.read_marks(epoch.id).await?;
        let mut counts = BTreeMap::new();
        let mut missing = Vec::new();
        for window in windows {
            match written.get(window).and_then(Written::valid_count) {
                Some(count) => {
                    counts.insert(*window, count);
                }
                None => missing.push(*window),
            }
        }
        let counted: Vec<_> = missing
            .into_iter()
            .map(|window| async move { Ok::<_, Error>((window, self.count_window(epoch.id, window).await?)) })
            .collect();
        let counted: Vec<(i64, Count)> =
            stream::iter(counted).buffer_unordered(COUNT_WINDOWS).try_collect().await?;
        if keep && !counted.is_empty() {
            self.keep_counts(epoch.id, &written, &counted).await?;
        }
        counts.extend(counted);
        Ok(counts)
    }

    /// Saves the counts of windows whose marks were even before they were counted and are the same now.
    async fn keep_counts(
        &self,
        epoch: EpochId,
        before: &BTreeMap<i64, Written>,
        counted: &[(i64, Count)],
    ) -> Result<(), Error> {
        let is_settled = |window: &i64| before.get(window).is_some_and(|marks| !marks.has_odd);
        if !counted.iter().any(|(window, _)| is_settled(window)) {
            return Ok(());
        }
        let after = self.read_marks(epoch).await?;
        for (window, count) in counted.iter().filter(|(window, _)| is_settled(window)) {
            let marks = (before.get(window), after.get(window));
            let (Some(before), Some(after)) = marks else { continue };
            if after.has_odd || before.fingerprint() != after.fingerprint() {
                continue;
            }
            let count = count.encode(after.fingerprint());
            let values = (epoch, *window, COUNT_ROW.as_slice(), count);
            self.database.write("keep a count", Statement::PutCount, values).await?;
        }
        Ok(())
    }

    async fn read_marks(&self, epoch: EpochId) -> Result<BTreeMap<i64, Written>, Error> {
        type Row = (i64, Vec<u8>, Option<i64>, Option<Vec<u8>>, Option<i64>);
        let rows: Vec<Row> = self.database.read("read its counts", Statement::ReadWindows, (epoch,)).await?;
        let oldest = self.now_micros().saturating_sub(ABANDONED_MICROS);
        let mut windows: BTreeMap<i64, Written> = BTreeMap::new();
        for (window, server, mark, count, written_at) in rows {
            let entry = windows.entry(window).or_default();
            let Ok(server) = ServerId::try_from(server.as_slice()) else { continue };
            if server == COUNT_ROW {
                entry.count = count;
            } else if let Some(mark) = mark {
                entry.marks.push((server, mark));
                entry.has_odd |= mark % 2 == 1 && written_at.is_none_or(|at| at > oldest);
            }
        }
        Ok(windows)
    }

    /// Counts a window by its keys.
    pub(super) async fn count_window(&self, epoch: EpochId, window: i64) -> Result<Count, Error> {
        let part = schema::window_part(window);
        let mut count = Count::default();
        let mut from = (i64::MIN, Vec::new());
        let end = schema::end_of_slice();
        loop {
            let values = (part.as_slice(), from.0, from.1.as_slice(), end.0, end.1.as_slice(), COUNT_KEYS);
            let rows: Vec<(i64, Vec<u8>, Option<i32>)> =
                self.database.read("count its messages", Statement::Sizes(epoch), values).await?;
            for (timestamp, _, size) in &rows {
                let size = u64::try_from(size.unwrap_or(0)).unwrap_or(0);
                let one = Count {
                    messages: 1,
                    body_bytes: size,
                    oldest: Some(*timestamp),
                    newest: Some(*timestamp),
                };
                count.add(&one);
            }
            let is_last = rows.len() < COUNT_KEYS as usize;
            match rows.into_iter().next_back() {
                Some((timestamp, hash, _)) if !is_last => from = (timestamp, hash),
                _ => return Ok(count),
            }
        }
    }
}

/// The sum of counts.
pub(super) fn sum<'a>(counts: impl IntoIterator<Item = &'a Count>) -> Count {
    let mut total = Count::default();
    counts.into_iter().for_each(|count| total.add(count));
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_holds_while_its_marks_do() {
        let count = Count { messages: 2, body_bytes: 7, oldest: Some(-5), newest: Some(9) };
        let mut written = Written { marks: vec![([1; 16], 2), ([2; 16], 4)], count: None, has_odd: false };
        written.count = Some(count.encode(written.fingerprint()));
        assert_eq!(written.valid_count(), Some(count));
        written.marks.reverse();
        assert_eq!(written.valid_count(), Some(count), "the order of rows says nothing");
        assert_eq!(Written { has_odd: true, ..written.clone() }.valid_count(), None);
        written.marks.push(([3; 16], 2));
        assert_eq!(written.valid_count(), None);
    }

    #[test]
    fn marks_are_odd_while_something_is_stored() {
        let marks = Marks::default();
        let windows = [(1, 5)];
        let appending = marks.begin(&windows, 0);
        assert_eq!(marks.next_odd(&windows), [((1, 5), 1)]);
        assert_eq!(marks.next_odd(&windows), [((1, 5), 3)], "it isn't known to be written");
        marks.wrote((1, 5), 3);
        assert_eq!(marks.next_odd(&windows), []);
        assert_eq!(marks.next_even(Duration::ZERO), [], "an append is under way");
        drop(appending);
        assert_eq!(marks.next_even(Duration::from_secs(3_600)), []);
        assert_eq!(marks.next_even(Duration::ZERO), [((1, 5), 4)]);
        assert_eq!(marks.next_even(Duration::ZERO), [((1, 5), 6)]);
        marks.wrote((1, 5), 6);
        assert_eq!(marks.next_even(Duration::ZERO), []);
        let _appending = marks.begin(&windows, 50);
        assert_eq!(marks.next_odd(&windows), [((1, 5), 101)]);
    }
}
