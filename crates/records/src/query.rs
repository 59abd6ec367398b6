use std::ops::Bound;

use bytes::Bytes;

use crate::{Index, Kind, RecordId, Revision, Value};

/// The most ids that one page has.
pub const QUERY_ROWS_MAX: usize = 4_096;

/// The most queries of one [`crate::Records::query_each`].
pub const QUERIES_MAX: usize = 256;

/// The direction in which an index is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest value on.
    #[default]
    Ascending,
    /// From the largest value on.
    Descending,
}

/// A position in an index: after the last entry of a page. Opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Bytes);

/// A query to an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The kind.
    pub kind: Kind,
    /// One of its indexes.
    pub index: Index,
    /// The values that the leading parts of the index must have.
    pub equals: Vec<Value>,
    /// The range of the part after those.
    pub range: (Bound<Value>, Bound<Value>),
    /// The direction in which to read.
    pub direction: Direction,
    /// How many entries to skip first: of all, or of those that follow the cursor `after`. Skipped entries are read too, so a
    /// page far from the beginning takes longer. A page-by-page walk uses 0 from the second page on.
    pub skip: u64,
    /// The most ids to return, from 1 to [`QUERY_ROWS_MAX`].
    pub limit: usize,
    /// Where the previous page ended.
    pub after: Option<Cursor>,
    /// Whether to return [`Page::values`], too.
    pub with_values: bool,
}

impl Query {
    /// Everything in an index, ascending, a hundred entries per page.
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

    /// Requires the next leading part to equal `value`.
    #[must_use]
    pub fn equals(mut self, value: impl Into<Value>) -> Self {
        self.equals.push(value.into());
        self
    }

    /// Requires the part after the equal ones to be in a range.
    #[must_use]
    pub fn between(mut self, from: Bound<Value>, to: Bound<Value>) -> Self {
        self.range = (from, to);
        self
    }

    /// Reads from the largest value on.
    #[must_use]
    pub fn descending(mut self) -> Self {
        self.direction = Direction::Descending;
        self
    }

    /// Skips this many entries first.
    #[must_use]
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Returns at most this many ids per page.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Returns the value of the last part of each entry, too.
    #[must_use]
    pub fn with_values(mut self) -> Self {
        self.with_values = true;
        self
    }

    /// Continues after a page.
    #[must_use]
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.after = Some(cursor);
        self
    }
}

/// How many entries a query has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The entries: a record with several values for a part counts once for each combination.
    pub entries: u64,
    /// The state of the kind at the moment of counting.
    pub state: Revision,
}

/// A page of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The records, in the order of the query.
    pub ids: Vec<RecordId>,
    /// For each of them, the value of the last part of the index in its entry, if the query asks for values; otherwise empty.
    pub values: Vec<Value>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<Cursor>,
    /// The state of the kind at the moment of the read.
    pub state: Revision,
}
