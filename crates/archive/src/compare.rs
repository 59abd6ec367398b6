//! Compares two archives: first by fingerprints of short ranges of time, then message by message where those differ.
//!
//! A range's fingerprint is the number of its messages and the sum of a keyed 128-bit hash over each. The sum doesn't depend on
//! the order, so each side is read once, at its own pace, and only the ranges that differ are remembered.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hasher},
};

use foldhash::quality::FixedState;
use restante_core::{Key, NANOS_PER_SECOND, Timestamp};

use crate::{Archive, Error, Page, TimeRange, Walk};

/// Length of a range that has a fingerprint of its own. Short, so that little is read twice when a message is missing.
const RANGE_NANOS: i64 = 3_600 * NANOS_PER_SECOND;
/// The most ranges that are remembered as different; adjacent ones count as one. After that the last one grows, and the ranges in
/// between are compared too.
const RANGES_MAX: usize = 4_096;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Only messages in this range.
    pub range: TimeRange,
    /// Whether channel, topic and body are compared too, not only timestamp and hash. Every body is read then.
    pub bodies: bool,
    /// Makes the hash unpredictable: with it, one could send messages whose sums are equal.
    pub seed: u64,
}

/// The messages of a range, as a number and a sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// How many.
    pub messages: u64,
    sum: u128,
}

impl Fingerprint {
    fn add(&mut self, entry: &Entry) {
        self.messages += 1;
        self.sum = self.sum.wrapping_add(entry.digest);
    }
}

/// A message that is not the same in both archives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which message.
    pub key: Key,
    /// How it differs.
    pub kind: DifferenceKind,
}

/// How a message differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DifferenceKind {
    /// Missing in the second archive.
    OnlyInA,
    /// Missing in the first archive.
    OnlyInB,
    /// Both have it, with another channel, topic or body.
    Differs,
}

/// The first pass: fingerprints of both archives, range by range, from old to new.
pub struct Comparison<'a> {
    a: Side<'a>,
    b: Side<'a>,
    scope: Scope,
    /// First and last number of ranges that differ.
    differing: Vec<(i64, i64)>,
}

impl<'a> Comparison<'a> {
    /// A comparison of the messages in the scope.
    pub fn new(a: &'a dyn Archive, b: &'a dyn Archive, scope: Scope) -> Self {
        let side = |archive| Side { entries: Entries::new(archive, scope), found: None, messages: 0 };
        Self { a: side(a), b: side(b), scope, differing: Vec::new() }
    }

    /// Compares the next range that has messages; `false` when there is none.
    ///
    /// # Errors
    /// Those of [`Archive::query`].
    pub async fn step(&mut self) -> Result<bool, Error> {
        let (a, b) = tokio::join!(self.a.look(), self.b.look());
        let Some(number) = [a?, b?].into_iter().flatten().min() else { return Ok(false) };
        if self.a.take(number) != self.b.take(number) {
            remember(&mut self.differing, number);
        }
        Ok(true)
    }

    /// Messages of each archive so far.
    pub fn messages(&self) -> (u64, u64) {
        (self.a.messages, self.b.messages)
    }

    /// The ranges that differ, from old to new.
    pub fn differing(&self) -> Vec<TimeRange> {
        self.differing.iter().map(|numbers| time_range(*numbers, self.scope.range)).collect()
    }
}

impl std::fmt::Debug for Comparison<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Comparison").field("differing", &self.differing).finish_non_exhaustive()
    }
}

/// The second pass: both archives message by message, in one range.
pub struct Differences<'a> {
    a: Entries<'a>,
    b: Entries<'a>,
}

impl<'a> Differences<'a> {
    /// The differences within `range`; the rest as in the first pass.
    pub fn new(a: &'a dyn Archive, b: &'a dyn Archive, scope: Scope, range: TimeRange) -> Self {
        let scope = Scope { range, ..scope };
        Self { a: Entries::new(a, scope), b: Entries::new(b, scope) }
    }

    /// The next difference; `None` when there is none.
    ///
    /// # Errors
    /// Those of [`Archive::query`].
    pub async fn next(&mut self) -> Result<Option<Difference>, Error> {
        loop {
            let (a, b) = tokio::join!(self.a.peek(), self.b.peek());
            let (key, kind) = match (a?, b?) {
                (None, None) => return Ok(None),
                (Some(a), None) => (a.key, DifferenceKind::OnlyInA),
                (None, Some(b)) => (b.key, DifferenceKind::OnlyInB),
                (Some(a), Some(b)) if a.key < b.key => (a.key, DifferenceKind::OnlyInA),
                (Some(a), Some(b)) if a.key > b.key => (b.key, DifferenceKind::OnlyInB),
                (Some(a), Some(b)) => {
                    self.a.take();
                    self.b.take();
                    if a.digest == b.digest {
                        continue;
                    }
                    return Ok(Some(Difference { key: a.key, kind: DifferenceKind::Differs }));
                }
            };
            match kind {
                DifferenceKind::OnlyInA => self.a.take(),
                _ => self.b.take(),
            };
            return Ok(Some(Difference { key, kind }));
        }
    }
}

impl std::fmt::Debug for Differences<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Differences").finish_non_exhaustive()
    }
}

/// Adds the number of a range that differs; numbers come in ascending order.
fn remember(differing: &mut Vec<(i64, i64)>, number: i64) {
    let is_full = differing.len() >= RANGES_MAX;
    match differing.last_mut() {
        Some((_, last)) if is_full || last.checked_add(1) == Some(number) => *last = number,
        _ => differing.push((number, number)),
    }
}

/// The time from the beginning of one range to the end of another, within the bounds of the whole.
fn time_range((first, last): (i64, i64), whole: TimeRange) -> TimeRange {
    // The first possible range begins before the first timestamp, and the last possible one ends after the last timestamp: they
    // have no bound on that side.
    let start = first.checked_mul(RANGE_NANOS).map(Timestamp);
    let end = last.checked_add(1).and_then(|next| next.checked_mul(RANGE_NANOS)).map(Timestamp);
    TimeRange { start: start.max(whole.start), end: [end, whole.end].into_iter().flatten().min() }
}

fn range_number(timestamp: Timestamp) -> i64 {
    timestamp.nanos().div_euclid(RANGE_NANOS)
}

/// One archive in the first pass.
struct Side<'a> {
    entries: Entries<'a>,
    /// The next range and its fingerprint.
    found: Option<(i64, Fingerprint)>,
    messages: u64,
}

impl Side<'_> {
    /// Finds the number of the next range that has messages.
    async fn look(&mut self) -> Result<Option<i64>, Error> {
        if self.found.is_none() {
            self.found = self.read().await?;
        }
        Ok(self.found.map(|(number, _)| number))
    }

    async fn read(&mut self) -> Result<Option<(i64, Fingerprint)>, Error> {
        let Some(first) = self.entries.peek().await? else { return Ok(None) };
        let number = range_number(first.key.timestamp);
        let mut fingerprint = Fingerprint::default();
        while let Some(entry) = self.entries.peek().await? {
            if range_number(entry.key.timestamp) != number {
                break;
            }
            fingerprint.add(&entry);
            self.entries.take();
        }
        self.messages += fingerprint.messages;
        Ok(Some((number, fingerprint)))
    }

    /// The fingerprint of a range: that of no messages if the next range is a later one.
    fn take(&mut self, number: i64) -> Fingerprint {
        match self.found {
            Some((found, fingerprint)) if found == number => {
                self.found = None;
                fingerprint
            }
            _ => Fingerprint::default(),
        }
    }
}

/// The compared parts of a message.
#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    digest: u128,
}

/// The messages of an archive in order, one by one.
struct Entries<'a> {
    archive: &'a dyn Archive,
    walk: Walk,
    read: VecDeque<Entry>,
    digest: Digest,
}

impl<'a> Entries<'a> {
    fn new(archive: &'a dyn Archive, scope: Scope) -> Self {
        let query = crate::Query { bodies: scope.bodies, ..scope.range.to_query() };
        Self { archive, walk: Walk::new(query), read: VecDeque::new(), digest: Digest::new(scope) }
    }

    async fn peek(&mut self) -> Result<Option<Entry>, Error> {
        while self.read.is_empty() {
            match self.walk.next(self.archive).await? {
                Some(page) => self.keep(&page),
                None => return Ok(None),
            }
        }
        Ok(self.read.front().copied())
    }

    fn keep(&mut self, page: &Page) {
        for row in page.rows() {
            let entry = Entry { key: row.key(), digest: self.digest.of(&row) };
            self.read.push_back(entry);
        }
    }

    fn take(&mut self) {
        self.read.pop_front();
    }
}

/// The keyed hash: two 64-bit hashes with separate keys.
struct Digest {
    halves: [FixedState; 2],
    bodies: bool,
}

impl Digest {
    fn new(scope: Scope) -> Self {
        let halves = [FixedState::with_seed(scope.seed), FixedState::with_seed(!scope.seed)];
        Self { halves, bodies: scope.bodies }
    }

    fn of(&self, row: &crate::Row<'_>) -> u128 {
        let mut digest = 0;
        for half in &self.halves {
            let mut hasher = half.build_hasher();
            hasher.write_i64(row.timestamp.nanos());
            hasher.write(row.message_hash.as_bytes());
            if self.bodies {
                for part in [row.channel.as_bytes(), row.topic.as_bytes(), row.body] {
                    hasher.write_usize(part.len());
                    hasher.write(part);
                }
            }
            digest = digest << 64 | u128::from(hasher.finish());
        }
        digest
    }
}

#[cfg(test)]
mod tests;
