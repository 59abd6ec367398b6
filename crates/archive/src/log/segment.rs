//! The archive as a query sees it: a list of segments, each active or sealed.

use std::{cell::Cell, sync::Arc};

use restante_core::{Key, MessageHash, Timestamp};

use super::{active::Active, sealed::Sealed};
use crate::{Direction, Error, Part, PartStats, plan, query::KeyRange, topics::Selection};

/// Segments in the order of their sequence numbers. The list itself never changes: adding or removing a segment replaces it, so
/// that a query works on one list from beginning to end.
pub(super) type Segments = Arc<Vec<Segment>>;

#[derive(Clone)]
pub(super) enum Segment {
    Active(Arc<Active>),
    Sealed(Arc<Sealed>),
}

/// The timestamps of a segment's first and last row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) oldest: Timestamp,
    pub(super) newest: Timestamp,
}

impl Span {
    pub(super) fn contains(&self, timestamp: Timestamp) -> bool {
        self.oldest <= timestamp && timestamp <= self.newest
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.oldest <= other.newest && other.oldest <= self.newest
    }

    /// Whether a key of the span may be in the range.
    pub(super) fn touches(&self, range: &KeyRange) -> bool {
        let last = Key { timestamp: self.newest, message_hash: MessageHash::MAX };
        let first = Key { timestamp: self.oldest, message_hash: MessageHash::MIN };
        last >= range.from && range.until.is_none_or(|until| first < until)
    }
}

/// What a query reads from one segment.
#[derive(Clone, Copy)]
pub(super) struct Find<'a> {
    pub(super) range: KeyRange,
    pub(super) selection: &'a Selection,
    pub(super) direction: Direction,
    /// The most rows.
    pub(super) limit: usize,
    pub(super) budget: &'a Budget,
}

/// How many bytes a query may verify, and so perhaps wait for, on the thread that it runs on. What is verified once costs nothing
/// afterwards. When the budget is exceeded the query ends early, and its answer must be discarded.
pub(super) struct Budget {
    bytes: Cell<usize>,
    is_spent: Cell<bool>,
}

impl Budget {
    pub(super) fn of(bytes: usize) -> Self {
        Self { bytes: Cell::new(bytes), is_spent: Cell::new(false) }
    }

    pub(super) fn unlimited() -> Self {
        Self::of(usize::MAX)
    }

    /// Whether the bytes may be verified.
    pub(super) fn spend(&self, bytes: usize) -> bool {
        match self.bytes.get().checked_sub(bytes) {
            Some(rest) => self.bytes.set(rest),
            None => self.is_spent.set(true),
        }
        !self.is_spent.get()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.is_spent.get()
    }
}

/// Rows of one segment: where their records begin, in the direction of the query.
pub(super) struct Found {
    pub(super) part: Part,
    pub(super) offsets: Vec<u32>,
}

impl Segment {
    /// The segment's sequence number.
    pub(super) fn sequence(&self) -> u64 {
        match self {
            Self::Active(active) => active.id.sequence,
            Self::Sealed(sealed) => sealed.id.sequence,
        }
    }

    /// `None` when the segment has no rows.
    pub(super) fn span(&self) -> Option<Span> {
        match self {
            Self::Active(active) => active.span(),
            Self::Sealed(sealed) => sealed.span,
        }
    }

    /// The span of all rows, whether queries see them yet or not.
    pub(super) fn known_span(&self) -> Option<Span> {
        match self {
            Self::Active(active) => active.known_span(),
            Self::Sealed(sealed) => sealed.span,
        }
    }

    pub(super) fn rows(&self) -> u64 {
        match self {
            Self::Active(active) => active.rows(),
            Self::Sealed(sealed) => sealed.index.rows as u64,
        }
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        match self {
            Self::Active(active) => active.disk_bytes(),
            Self::Sealed(sealed) => sealed.index.log_len + sealed.index.bytes().len() as u64,
        }
    }

    pub(super) fn body_bytes(&self) -> u64 {
        match self {
            Self::Active(active) => active.body_bytes(),
            Self::Sealed(sealed) => sealed.index.body_bytes,
        }
    }

    /// The wanted rows, up to the limit, without damaged ones.
    pub(super) fn find(&self, find: &Find<'_>) -> Result<Found, Error> {
        match self {
            Self::Active(active) => Ok(active.find(find)),
            Self::Sealed(sealed) => sealed.find(find),
        }
    }

    /// Where the records with this hash begin.
    pub(super) fn find_hash(&self, hash: &MessageHash, budget: &Budget) -> Result<Vec<u32>, Error> {
        match self {
            Self::Active(active) => Ok(active.find_hash(hash)),
            Self::Sealed(sealed) => sealed.find_hash(hash, budget),
        }
    }

    /// Whether a row with this key exists.
    pub(super) fn contains(&self, key: Key) -> Result<bool, Error> {
        match self {
            Self::Active(active) => Ok(active.contains(key)),
            Self::Sealed(sealed) => sealed.contains(key),
        }
    }

    /// The segment's records, as a part of a page.
    pub(super) fn part(&self) -> Part {
        match self {
            Self::Active(active) => active.part(),
            Self::Sealed(sealed) => sealed.part(),
        }
    }

    pub(super) fn stats(&self) -> PartStats {
        let (name, is_open) = match self {
            Self::Active(active) => (active.id.log_name(), true),
            Self::Sealed(sealed) => (sealed.id.log_name(), false),
        };
        let span = self.span().unwrap_or(Span { oldest: Timestamp::default(), newest: Timestamp::default() });
        PartStats {
            name,
            oldest: span.oldest,
            newest: span.newest,
            messages: self.rows(),
            disk_bytes: self.disk_bytes(),
            is_open,
        }
    }
}

/// The access path to the rows of `topics` wanted topics that have `rows` rows in a segment.
pub(super) fn access(
    find: &Find<'_>,
    range_rows: usize,
    part_rows: usize,
    rows: usize,
    topics: usize,
) -> plan::Access {
    plan::access(plan::Counts {
        range_rows,
        part_rows,
        wanted_rows: rows,
        wanted_topics: topics,
        limit: find.limit,
    })
}
