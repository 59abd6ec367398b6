use restante_core::{Bloom, Cursor, Key, MessageHash, Timestamp};

use crate::Error;

/// The most rows that one page may have.
pub const PAGE_ROWS_MAX: usize = 10_000;
/// A page ends with the row that brings its bodies to this many bytes.
pub const PAGE_BYTES_MAX: usize = 64 << 20;
/// The most hashes in one query.
pub const HASHES_MAX: usize = 10_000;

/// Which messages, from where, in which direction, how many. See [`crate::Archive::query`] for the meaning.
///
/// The default is the oldest 100 messages of everything, with bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Only this channel.
    pub channel: Option<String>,
    /// Only these topics.
    pub topics: Topics,
    /// Only messages at or after this.
    pub start: Option<Timestamp>,
    /// Only messages before this.
    pub end: Option<Timestamp>,
    /// Only messages with one of these hashes; empty means any.
    pub hashes: Vec<MessageHash>,
    /// Where the page begins, exclusive.
    pub cursor: Option<Cursor>,
    /// The direction of paging.
    pub direction: Direction,
    /// The most rows, from 1 to [`PAGE_ROWS_MAX`].
    pub limit: usize,
    /// Whether rows have bodies; without them a row's body is empty.
    pub bodies: bool,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            channel: None,
            topics: Topics::Any,
            start: None,
            end: None,
            hashes: Vec::new(),
            cursor: None,
            direction: Direction::Forward,
            limit: 100,
            bodies: true,
        }
    }
}

/// The topics that a query matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topics {
    /// All of them.
    Any,
    /// Exactly these, any number; an empty list matches nothing.
    List(Vec<String>),
    /// All whose bits are in the filter.
    Bloom(Box<Bloom>),
}

/// The direction in which a query pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From old to new.
    Forward,
    /// From new to old; the rows of each page are still in ascending order.
    Backward,
}

impl Query {
    /// Whether messages of a channel match.
    pub(crate) fn has_channel(&self, channel: &str) -> bool {
        self.channel.as_deref().is_none_or(|wanted| wanted == channel)
    }

    pub(crate) fn check_bounds(&self) -> Result<(), Error> {
        if self.limit == 0 || self.limit > PAGE_ROWS_MAX {
            return Err(Error::invalid(format!(
                "limit is {}: it must be from 1 to {PAGE_ROWS_MAX}",
                self.limit
            )));
        }
        if self.hashes.len() > HASHES_MAX {
            return Err(Error::invalid(format!("{} hashes: the limit is {HASHES_MAX}", self.hashes.len())));
        }
        Ok(())
    }

    /// The range of the keys of a page's rows, given the key of the cursor.
    pub(crate) fn range(&self, cursor: Option<Key>) -> KeyRange {
        let start = self.start.unwrap_or(Timestamp::MIN);
        let mut range = KeyRange {
            from: Key { timestamp: start, message_hash: MessageHash::MIN },
            from_excluded: false,
            until: self.end.map(|end| Key { timestamp: end, message_hash: MessageHash::MIN }),
        };
        match (cursor, self.direction) {
            (Some(key), Direction::Forward) if key >= range.from => {
                range.from = key;
                range.from_excluded = true;
            }
            (Some(key), Direction::Backward) if range.until.is_none_or(|until| key < until) => {
                range.until = Some(key);
            }
            _ => {}
        }
        range
    }
}

/// A range of keys: from one (in- or excluded) until before another, or without an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) from: Key,
    pub(crate) from_excluded: bool,
    pub(crate) until: Option<Key>,
}

impl KeyRange {
    /// Whether `key` is before the range.
    pub(crate) fn is_before(&self, key: Key) -> bool {
        key < self.from || (self.from_excluded && key == self.from)
    }

    /// Whether `key` is after the range.
    pub(crate) fn is_behind(&self, key: Key) -> bool {
        self.until.is_some_and(|until| key >= until)
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        !self.is_before(key) && !self.is_behind(key)
    }
}
