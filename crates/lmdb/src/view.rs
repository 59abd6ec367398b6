//! What readers see.

use std::ops::{Bound, Deref};

use heed::{RoTxn, WithTls};

use crate::{Error, Table, env::Environment};

/// Everything that had been acknowledged at one moment.
pub struct View<'s> {
    environment: &'s Environment,
    transaction: RoTxn<'s, WithTls>,
}

/// The value of a row, as long as the view lives.
pub struct Value<'v>(&'v [u8]);

impl Deref for Value<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

/// Which way a range is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key on.
    Ascending,
    /// From the largest key on.
    Descending,
}

impl<'s> View<'s> {
    pub(crate) fn new(environment: &'s Environment, transaction: RoTxn<'s, WithTls>) -> Self {
        Self { environment, transaction }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// `Corrupt` or `Unavailable` from LMDB.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Value<'_>>, Error> {
        let found = self.environment.table(table)?.get(&self.transaction, key);
        Ok(found.map_err(|error| Error::lmdb("read", error))?.map(Value))
    }

    /// The rows between two keys, one after the other.
    ///
    /// # Errors
    /// `Corrupt` or `Unavailable` from LMDB.
    pub fn range(
        &self,
        table: Table,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Range<'_>, Error> {
        let table = self.environment.table(table)?;
        let bounds = (from, to);
        let rows: Box<dyn Iterator<Item = _>> = match direction {
            Direction::Ascending => {
                Box::new(table.range(&self.transaction, &bounds).map_err(|error| Error::lmdb("read", error))?)
            }
            Direction::Descending => {
                Box::new(table.rev_range(&self.transaction, &bounds).map_err(|error| Error::lmdb("read", error))?)
            }
        };
        Ok(Range { rows })
    }
}

/// Rows in order. They are borrowed one at a time.
pub struct Range<'v> {
    rows: Box<dyn Iterator<Item = Result<(&'v [u8], &'v [u8]), heed::Error>> + 'v>,
}

impl Range<'_> {
    /// The next key and value; `None` after the last.
    ///
    /// # Errors
    /// `Corrupt` or `Unavailable` from LMDB.
    #[expect(clippy::should_implement_trait, reason = "an iterator's items can't be borrowed from it")]
    pub fn next(&mut self) -> Result<Option<(&[u8], &[u8])>, Error> {
        self.rows.next().transpose().map_err(|error| Error::lmdb("read", error))
    }
}
