//! Copies the messages of one archive to another, whatever their engines.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use restante_core::{Cursor, Key, Timestamp};

use crate::{Appended, Archive, Error, Message, Page, Query, Walk};

/// Messages that are read at once. A page is also bounded by [`crate::PAGE_BYTES_MAX`], and two of them are in memory.
const PAGE_ROWS: usize = 8_000;
/// Appends of one page that run at the same time, so that an engine with several connections can use them.
const APPENDS_IN_FLIGHT: usize = 4;

/// A range of time, open where it has no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeRange {
    /// Only messages at or after this.
    pub start: Option<Timestamp>,
    /// Only messages before this.
    pub end: Option<Timestamp>,
}

impl TimeRange {
    /// Whether it has no bounds.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// The query for all messages of the range, from old to new.
    pub(crate) fn to_query(self) -> Query {
        Query { start: self.start, end: self.end, limit: PAGE_ROWS, ..Query::default() }
    }
}

/// The progress of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Messages that were stored.
    pub stored: u64,
    /// Messages that were there already.
    pub duplicates: u64,
    /// Messages that could not be read, because their record is damaged.
    pub unreadable: u64,
    /// All messages up to this one are durable in the other archive.
    pub after: Option<Key>,
}

/// Copies messages in the archive's order, page by page: while one page is written, the next one is read.
///
/// Messages that arrive meanwhile are copied if their position in the order has not been reached yet; those with an older
/// timestamp are not. Copying again, or [`crate::Comparison`], finds them.
pub struct Copier<'a> {
    from: &'a dyn Archive,
    to: &'a dyn Archive,
    walk: Walk,
    ahead: Option<Page>,
    copied: Copied,
}

impl<'a> Copier<'a> {
    /// A copy of the messages in `range`, which continues after `begun`, where an earlier one ended.
    pub fn new(from: &'a dyn Archive, to: &'a dyn Archive, range: TimeRange, begun: Copied) -> Self {
        let query = Query { cursor: begun.after.map(Cursor::At), ..range.to_query() };
        Self { from, to, walk: Walk::new(query), ahead: None, copied: begun }
    }

    /// The progress of the copy, earlier ones included.
    pub fn copied(&self) -> Copied {
        self.copied
    }

    /// Copies one page and returns when it is durable; `false` when nothing was left to copy.
    ///
    /// # Errors
    /// Those of [`Archive::query`] and [`Archive::append`]. The copy is over then: begin another one from [`Copier::copied`].
    pub async fn step(&mut self) -> Result<bool, Error> {
        let page = match self.ahead.take() {
            Some(page) => page,
            None => match self.walk.next(self.from).await? {
                Some(page) => page,
                None => return Ok(false),
            },
        };
        let messages = messages_of(&page);
        let unreadable = page.len().saturating_sub(messages.len()) as u64;
        let last = last_key(&page);
        let (appended, ahead) = tokio::join!(append_all(self.to, messages), self.walk.next(self.from));
        let (stored, duplicates) = appended?;
        self.copied.stored += stored;
        self.copied.duplicates += duplicates;
        self.copied.unreadable += unreadable;
        self.copied.after = last.or(self.copied.after);
        self.ahead = ahead?;
        Ok(true)
    }
}

impl std::fmt::Debug for Copier<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copier").field("copied", &self.copied).finish_non_exhaustive()
    }
}

/// Copies the messages with these hashes; returns how many were stored and how many were duplicates.
///
/// # Errors
/// Those of [`Archive::query`] and [`Archive::append`]; at most [`crate::HASHES_MAX`] keys are accepted.
pub async fn copy_keys(from: &dyn Archive, to: &dyn Archive, keys: &[Key]) -> Result<(u64, u64), Error> {
    if keys.is_empty() {
        return Ok((0, 0)); // a query without hashes would ask for everything
    }
    let hashes = keys.iter().map(|key| key.message_hash).collect();
    let mut walk = Walk::new(Query { hashes, limit: PAGE_ROWS, ..Query::default() });
    let (mut stored, mut duplicates) = (0, 0);
    while let Some(page) = walk.next(from).await? {
        let appended = append_all(to, messages_of(&page)).await?;
        stored += appended.0;
        duplicates += appended.1;
    }
    Ok((stored, duplicates))
}

/// The key of a page's last row, even if its record is damaged.
fn last_key(page: &Page) -> Option<Key> {
    match page.next {
        Some(Cursor::At(key)) => Some(key),
        _ => page.rows().next_back().map(|row| row.key()),
    }
}

/// The rows of a page as owned messages. A name that occurs in many of them is allocated once.
fn messages_of(page: &Page) -> Vec<Message> {
    let mut names: HashMap<&str, Arc<str>> = HashMap::new();
    let mut messages = Vec::with_capacity(page.len());
    for row in page.rows() {
        let mut name = |text| names.entry(text).or_insert_with(|| text.into()).clone();
        messages.push(Message {
            message_hash: row.message_hash,
            channel: name(row.channel),
            topic: name(row.topic),
            timestamp: row.timestamp,
            body: Bytes::copy_from_slice(row.body),
        });
    }
    messages
}

/// Appends the messages in [`APPENDS_IN_FLIGHT`] concurrent parts; returns how many were stored and how many were duplicates.
async fn append_all(to: &dyn Archive, mut messages: Vec<Message>) -> Result<(u64, u64), Error> {
    let part_len = messages.len().div_ceil(APPENDS_IN_FLIGHT);
    let mut part = || {
        let rest = messages.split_off(part_len.min(messages.len()));
        append(to, std::mem::replace(&mut messages, rest))
    };
    let (one, two, three, four) = (part(), part(), part(), part());
    let answers = tokio::join!(one, two, three, four);
    let mut sum = (0, 0);
    for answer in [answers.0, answers.1, answers.2, answers.3] {
        let (stored, duplicates) = answer?;
        sum = (sum.0 + stored, sum.1 + duplicates);
    }
    Ok(sum)
}

async fn append(to: &dyn Archive, messages: Vec<Message>) -> Result<(u64, u64), Error> {
    if messages.is_empty() {
        return Ok((0, 0));
    }
    let answers = to.append(messages).await?;
    let duplicates = answers.iter().filter(|answer| **answer == Appended::Duplicate).count();
    Ok(((answers.len() - duplicates) as u64, duplicates as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Opened, memory};
    use restante_core::MessageHash;

    fn archive() -> Opened {
        memory::open(&Config::new("memory:".parse().unwrap()))
    }

    fn message(number: u32) -> Message {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&number.to_be_bytes());
        Message {
            message_hash: MessageHash(hash),
            channel: "channel".into(),
            topic: format!("topic {}", number % 3).into(),
            timestamp: Timestamp(i64::from(number / 2)),
            body: Bytes::from(number.to_string()),
        }
    }

    /// An archive with `count` messages, in appends of at most 10,000.
    async fn filled(count: u32) -> Opened {
        let opened = archive();
        for first in (0..count).step_by(10_000) {
            let messages = (first..count.min(first + 10_000)).map(message).collect();
            opened.archive.append(messages).await.unwrap();
        }
        opened
    }

    async fn copy_all(from: &Opened, to: &Opened, range: TimeRange, begun: Copied) -> Copied {
        let mut copier = Copier::new(&*from.archive, &*to.archive, range, begun);
        while copier.step().await.unwrap() {}
        copier.copied()
    }

    async fn everything(opened: &Opened) -> Vec<Message> {
        let mut walk = Walk::new(TimeRange::default().to_query());
        let mut messages = Vec::new();
        while let Some(page) = walk.next(&*opened.archive).await.unwrap() {
            messages.extend(messages_of(&page));
        }
        messages
    }

    #[tokio::test]
    async fn a_copy_is_the_same_and_a_second_one_changes_nothing() {
        let count = PAGE_ROWS as u32 * 2 + 3;
        let (from, to) = (filled(count).await, archive());
        let copied = copy_all(&from, &to, TimeRange::default(), Copied::default()).await;
        let expected = Copied {
            stored: u64::from(count),
            duplicates: 0,
            unreadable: 0,
            after: Some(message(count - 1).key()),
        };
        assert_eq!(copied, expected);
        assert_eq!(everything(&to).await, everything(&from).await);
        let again = copy_all(&from, &to, TimeRange::default(), Copied::default()).await;
        assert_eq!((again.stored, again.duplicates), (0, u64::from(count)));
    }

    #[tokio::test]
    async fn a_copy_goes_on_where_another_one_stopped() {
        let count = PAGE_ROWS as u32 * 3;
        let (from, to) = (filled(count).await, archive());
        let mut first = Copier::new(&*from.archive, &*to.archive, TimeRange::default(), Copied::default());
        assert!(first.step().await.unwrap());
        let begun = first.copied();
        assert_eq!(begun.stored, PAGE_ROWS as u64);
        let copied = copy_all(&from, &to, TimeRange::default(), begun).await;
        assert_eq!((copied.stored, copied.duplicates), (u64::from(count), 0), "no page was copied twice");
        assert_eq!(everything(&to).await, everything(&from).await);
    }

    #[tokio::test]
    async fn only_the_range_is_copied() {
        let (from, to) = (filled(100).await, archive());
        let range = TimeRange { start: Some(Timestamp(10)), end: Some(Timestamp(20)) };
        let copied = copy_all(&from, &to, range, Copied::default()).await;
        assert_eq!(copied.stored, 20);
        assert_eq!(everything(&to).await, (20..40).map(message).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn an_empty_archive_is_copied_at_once() {
        let copied = copy_all(&archive(), &archive(), TimeRange::default(), Copied::default()).await;
        assert_eq!(copied, Copied::default());
    }

    #[tokio::test]
    async fn single_messages_are_copied_by_their_keys() {
        let (from, to) = (filled(100).await, archive());
        let keys: Vec<Key> = [3, 50, 99].map(|number| message(number).key()).into();
        let copy = |keys: Vec<Key>| {
            let (from, to) = (from.archive.clone(), to.archive.clone());
            async move { copy_keys(&*from, &*to, &keys).await.unwrap() }
        };
        assert_eq!(copy(keys.clone()).await, (3, 0));
        assert_eq!(copy(keys).await, (0, 3));
        assert_eq!(copy(Vec::new()).await, (0, 0));
        assert_eq!(everything(&to).await, [3, 50, 99].map(message));
    }

    #[tokio::test]
    async fn a_full_or_closed_archive_ends_the_copy() {
        let (from, to) = (filled(10).await, archive());
        to.upkeep.close().await.unwrap();
        let mut copier = Copier::new(&*from.archive, &*to.archive, TimeRange::default(), Copied::default());
        assert!(copier.step().await.is_err());
        assert_eq!(copier.copied(), Copied::default());
    }
}
