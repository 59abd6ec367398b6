use restante_core::Cursor;

use crate::{Archive, Error, Page, Query};

/// All pages of a query, one after the other.
#[derive(Debug)]
pub struct Walk {
    query: Query,
    done: bool,
}

impl Walk {
    /// A walk over everything that matches `query`, in pages of its limit, starting at its cursor.
    pub fn new(query: Query) -> Self {
        Self { query, done: false }
    }

    /// The next page, or `None` after the last one.
    ///
    /// # Errors
    /// Those of [`Archive::query`]. After an error the same page can be requested again.
    pub async fn next(&mut self, archive: &dyn Archive) -> Result<Option<Page>, Error> {
        if self.done {
            return Ok(None);
        }
        let page = archive.query(&self.query).await?;
        self.query.cursor = page.next;
        self.done = page.next.is_none();
        Ok(Some(page))
    }

    /// Where the walk continues: after the last page that was returned.
    pub fn cursor(&self) -> Option<Cursor> {
        self.query.cursor
    }
}
