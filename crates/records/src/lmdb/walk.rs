//! Walks over whole tables, for upkeep. The views are short, since pages that are freed during a view can't be reused.

use std::ops::{Bound, ControlFlow};

use restante_lmdb::{Direction, Store, Table, View, key::KeyBuf};

use crate::Error;

/// The most rows that one view reads: a few milliseconds, if each is compared with some others.
pub(super) const VIEW_ROWS_MAX: usize = 1_000;

/// Handles a row; returns whether the walk continues.
type Visit<'f> = &'f mut dyn FnMut(&View<'_>, &[u8], &[u8]) -> Result<ControlFlow<()>, Error>;

/// Visits the rows from a key on, ascending, until `visit` breaks. Rows that are written or removed meanwhile may be visited or
/// not.
pub(super) fn walk(store: &Store, table: Table, from: Bound<&[u8]>, visit: Visit<'_>) -> Result<(), Error> {
    let mut from = from.map(KeyBuf::from_slice);
    loop {
        let stretch = store.read(|view| walk_view(view, table, from.as_ref().map(|key| &key[..]), visit))?;
        match stretch {
            ControlFlow::Continue(last) => from = Bound::Excluded(last),
            ControlFlow::Break(()) => return Ok(()),
        }
    }
}

/// Visits the rows of one view; returns the last key when there may be more.
fn walk_view(
    view: &View<'_>,
    table: Table,
    from: Bound<&[u8]>,
    visit: Visit<'_>,
) -> Result<ControlFlow<(), KeyBuf>, Error> {
    let mut rows = view.range(table, from, Bound::Unbounded, Direction::Ascending)?;
    for visited in 1.. {
        let Some((key, value)) = rows.next()? else { break };
        if visit(view, key, value)?.is_break() {
            break;
        }
        if visited >= VIEW_ROWS_MAX {
            return Ok(ControlFlow::Continue(KeyBuf::from_slice(key)));
        }
    }
    Ok(ControlFlow::Break(()))
}
