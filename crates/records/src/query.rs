use std::ops::Bound;

use bytes::Bytes;

use crate::{Index, Kind, RecordId, Revision, Value};

/// The most ids that one page has.
pub const QUERY_ROWS_MAX: usize = 4_096;

/// The most queries of one [`crate::Records::query_each`].
pub const QUERIES_MAX: usize = 256;

/// Which way an index is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest value on.
    #[default]
    Ascending,
    /// From the largest value on.
    Descending,
}

/// A place in an index: behind the last entry of a page. It means nothing to who carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Bytes);

/// A question to an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The kind.
    pub kind: Kind,
    /// One of its indexes.
    pub index: Index,
    /// What the leading parts of the index must be.
    pub equals: Vec<Value>,
    /// Where the part after those must lie.
    pub range: (Bound<Value>, Bound<Value>),
    /// Which way to read.
    pub direction: Direction,
    /// How many entries are left out first: of all, or of those behind `after`. Each is
    /// read, so a page far from the beginning takes longer. Walking page by page leaves it at 0 from the second page on.
    pub skip: u64,
    /// The most ids to answer, from 1 to [`QUERY_ROWS_MAX`].
    pub limit: usize,
    /// Where the page before ended.
    pub after: Option<Cursor>,
    /// Whether [`Page::values`] is answered, too.
    pub with_values: bool,
}

impl Query {
    /// Everything in an index, ascending, a hundred a page.
    pub fn new(kind: Kind, index: Index) -> Self {
        Self {
            kind,
            index,
            equals: Vec::new(),
            range: (Bound::Unbounded, Bound::Unbounded),
            direction: Direction::Ascending,
            skip: 0,
            limit: 100,
            after: None,
            with_values: false,
        }
    }

    /// The next leading part equals `value`.
    #[must_use]
    pub fn equals(mut self, value: impl Into<Value>) -> Self {
        self.equals.push(value.into());
        self
    }

    /// The part after the equal ones lies between these.
    #[must_use]
    pub fn between(mut self, from: Bound<Value>, to: Bound<Value>) -> Self {
        self.range = (from, to);
        self
    }

    /// From the largest value on.
    #[must_use]
    pub fn descending(mut self) -> Self {
        self.direction = Direction::Descending;
        self
    }

    /// Leaves out so many entries first.
    #[must_use]
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// So many ids a page.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// With the value of the last part of each entry.
    #[must_use]
    pub fn with_values(mut self) -> Self {
        self.with_values = true;
        self
    }

    /// What comes after a page.
    #[must_use]
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.after = Some(cursor);
        self
    }
}

/// How many entries a query has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The entries: a record with several values of a part counts once for each combination.
    pub entries: u64,
    /// The state of the kind when they were counted.
    pub state: Revision,
}

/// A page of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The records, in the order of the query.
    pub ids: Vec<RecordId>,
    /// The value of the last part of the index in the entry of each of them, if the query asks for values; else empty.
    pub values: Vec<Value>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<Cursor>,
    /// The state of the kind when this was read.
    pub state: Revision,
}
