//! The contents as readers see them: LMDB, overlaid with the rows that are only in the commit log.

use std::{
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crossbeam_epoch::Guard;

use crate::{
    Error, Table,
    env::Environment,
    error::lmdb_error,
    layer::{Layer, LayerRow, Sequence},
    readers::Reading,
};

/// The layers over LMDB at one moment.
#[derive(Clone)]
pub(crate) struct Layers {
    /// The layer that is written to.
    pub(crate) active: Arc<Layer>,
    /// The layer that is being written into LMDB.
    pub(crate) frozen: Option<Arc<Layer>>,
    /// The number of the LMDB transaction under the layers.
    pub(crate) base: usize,
}

impl Layers {
    /// Whether a transaction of LMDB belongs to these layers: the one under them, or the one that wrote the frozen layer into
    /// LMDB. Later ones may have newer rows than the layers.
    fn match_transaction(&self, transaction: usize) -> bool {
        transaction == self.base || (self.frozen.is_some() && transaction == self.base + 1)
    }
}

/// Everything that had been acknowledged at one moment.
pub struct View<'s> {
    environment: &'s Environment,
    reading: Reading<'s>,
    layers: arc_swap::Guard<Arc<Layers>>,
    /// Keeps rows of layers readable.
    guard: Guard,
    until: Sequence,
    /// Whether LMDB could not read something.
    has_failed: AtomicBool,
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        if self.has_failed.load(Ordering::Relaxed) {
            self.reading.note_failed();
        }
    }
}

/// The direction in which a range is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key on.
    Ascending,
    /// From the largest key on.
    Descending,
}

impl<'s> View<'s> {
    /// A view of all batches up to the result of `visible`, which is called after `layers`.
    pub(crate) fn new(
        environment: &'s Environment,
        layers: impl Fn() -> arc_swap::Guard<Arc<Layers>>,
        visible: impl Fn() -> Sequence,
    ) -> Result<Self, Error> {
        loop {
            let layers = layers();
            let until = visible();
            let reading = environment.read()?;
            if layers.match_transaction(reading.id()) {
                let (guard, has_failed) = (crossbeam_epoch::pin(), AtomicBool::new(false));
                return Ok(Self { environment, reading, layers, guard, until, has_failed });
            }
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// `Corrupt` or `Unavailable` from LMDB.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<&[u8]>, Error> {
        for layer in self.over().filter(|layer| layer.rows() > 0) {
            if let Some(row) = layer.get(table.number, key, self.until, &self.guard) {
                return Ok(row.value);
            }
        }
        let found = self.environment.table(table)?.get(self.reading.transaction(), key);
        found.map_err(|error| failed(&self.has_failed, error))
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
        let rows = self.environment.table(table)?;
        let bounds = (from, to);
        let transaction = self.reading.transaction();
        let failed = |error| failed(&self.has_failed, error);
        let is_empty = is_empty_range(&bounds);
        let mapped: MappedRows<'_> = match direction {
            _ if is_empty => Box::new(std::iter::empty()),
            Direction::Ascending => Box::new(rows.range(transaction, &bounds).map_err(failed)?),
            Direction::Descending => Box::new(rows.rev_range(transaction, &bounds).map_err(failed)?),
        };
        let mut range = Range {
            table: table.number,
            until: self.until,
            direction,
            end: match direction {
                Direction::Ascending => to.map(Box::from),
                Direction::Descending => from.map(Box::from),
            },
            layers: [None, None],
            guard: &self.guard,
            mapped,
            mapped_head: None,
            has_failed: &self.has_failed,
            last: Source::None,
        };
        if !is_empty {
            let begin = match direction {
                Direction::Ascending => from,
                Direction::Descending => to,
            };
            for (place, layer) in range.layers.iter_mut().zip(self.over()) {
                let head = step(layer, range.table, begin, range.until, direction, &self.guard);
                *place = Some(LayerRange {
                    layer,
                    head: head.filter(|row| is_before(row, &range.end, direction)),
                });
            }
        }
        range.advance_mapped()?;
        Ok(range)
    }

    /// The layers over LMDB, the newer first.
    fn over(&self) -> impl Iterator<Item = &Layer> {
        std::iter::once(&*self.layers.active).chain(self.layers.frozen.as_deref())
    }
}

fn is_empty_range((from, to): &(Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match (from, to) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => {
            from >= to
        }
    }
}

type MappedRows<'v> = Box<dyn Iterator<Item = Result<KeyValue<'v>, heed::Error>> + 'v>;

/// A row's key and its value.
pub type KeyValue<'r> = (&'r [u8], &'r [u8]);

/// Rows in order. They are borrowed one at a time.
pub struct Range<'v> {
    table: u8,
    until: Sequence,
    direction: Direction,
    /// The end of the range for layers; LMDB's iterator has its own.
    end: Bound<Box<[u8]>>,
    layers: [Option<LayerRange<'v>>; 2],
    guard: &'v Guard,
    mapped: MappedRows<'v>,
    mapped_head: Option<(&'v [u8], &'v [u8])>,
    has_failed: &'v AtomicBool,
    /// The source of the last row that was returned, to be stepped over next.
    last: Source,
}

/// A layer's part of a range.
struct LayerRange<'v> {
    layer: &'v Layer,
    head: Option<LayerRow<'v>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    None,
    Layer(usize),
    Mapped,
}

impl Range<'_> {
    /// The next key and value; `None` after the last.
    ///
    /// # Errors
    /// `Corrupt` or `Unavailable` from LMDB.
    #[expect(clippy::should_implement_trait, reason = "an iterator's items can't be borrowed from it")]
    pub fn next(&mut self) -> Result<Option<KeyValue<'_>>, Error> {
        loop {
            self.step_over_last()?;
            self.last = self.nearest();
            match self.last {
                Source::None => return Ok(None),
                Source::Mapped => return Ok(self.mapped_head),
                Source::Layer(number) => {
                    let is_deleted = self.layer_head(number).is_none_or(|row| row.value.is_none());
                    if !is_deleted {
                        break;
                    }
                }
            }
        }
        let Source::Layer(number) = self.last else { return Ok(None) };
        let row = self.layer_head(number);
        Ok(row.map(|row| (row.key, row.value.unwrap_or_default())))
    }

    fn layer_head(&self, number: usize) -> Option<&LayerRow<'_>> {
        self.layers.get(number)?.as_ref()?.head.as_ref()
    }

    /// The source of the next row: of several with the same key, the newest.
    fn nearest(&self) -> Source {
        let mut nearest = (Source::None, None);
        for number in 0..self.layers.len() {
            let key = self.layer_head(number).map(|row| row.key);
            nearest = self.nearer(nearest, (Source::Layer(number), key));
        }
        self.nearer(nearest, (Source::Mapped, self.mapped_head.map(|(key, _)| key))).0
    }

    fn nearer<'k>(
        &self,
        first: (Source, Option<&'k [u8]>),
        second: (Source, Option<&'k [u8]>),
    ) -> (Source, Option<&'k [u8]>) {
        let (Some(first_key), Some(second_key)) = (first.1, second.1) else {
            return if first.1.is_some() { first } else { second };
        };
        let is_second = match self.direction {
            Direction::Ascending => second_key < first_key,
            Direction::Descending => second_key > first_key,
        };
        if is_second { second } else { first }
    }

    /// Steps over the last row that was returned, in every source that has its key: the others are older versions.
    fn step_over_last(&mut self) -> Result<(), Error> {
        let number = match self.last {
            Source::None => return Ok(()),
            Source::Mapped => return self.advance_mapped(),
            Source::Layer(number) => number,
        };
        let Some(row) = self.layers.get(number).and_then(|layer| layer.as_ref()?.head.clone()) else {
            return Ok(());
        };
        let key = row.key;
        for layer in self.layers.iter_mut().flatten() {
            if layer.head.as_ref().is_some_and(|head| head.key == key) {
                let head = match self.direction {
                    Direction::Ascending => {
                        layer.head.as_ref().and_then(|head| layer.layer.after(head, self.until, self.guard))
                    }
                    Direction::Descending => {
                        layer.layer.at_or_before(self.table, Bound::Excluded(key), self.until, self.guard)
                    }
                };
                layer.head = head.filter(|row| is_before(row, &self.end, self.direction));
            }
        }
        if self.mapped_head.is_some_and(|(mapped, _)| mapped == key) {
            self.advance_mapped()?;
        }
        Ok(())
    }

    fn advance_mapped(&mut self) -> Result<(), Error> {
        self.mapped_head = self.mapped.next().transpose().map_err(|error| failed(self.has_failed, error))?;
        Ok(())
    }
}

/// The error of a view that can't read from LMDB; also notes the failure.
fn failed(has_failed: &AtomicBool, error: heed::Error) -> Error {
    has_failed.store(true, Ordering::Relaxed);
    lmdb_error("read", error)
}

/// The first row of a layer from `begin` on, in a direction.
fn step<'l>(
    layer: &'l Layer,
    table: u8,
    begin: Bound<&[u8]>,
    until: Sequence,
    direction: Direction,
    guard: &'l Guard,
) -> Option<LayerRow<'l>> {
    match direction {
        Direction::Ascending => layer.at_or_after(table, begin, until, guard),
        Direction::Descending => layer.at_or_before(table, begin, until, guard),
    }
}

fn is_before(row: &LayerRow<'_>, end: &Bound<Box<[u8]>>, direction: Direction) -> bool {
    let key = row.key;
    match (end, direction) {
        (Bound::Unbounded, _) => true,
        (Bound::Included(end), Direction::Ascending) => key <= &**end,
        (Bound::Excluded(end), Direction::Ascending) => key < &**end,
        (Bound::Included(end), Direction::Descending) => key >= &**end,
        (Bound::Excluded(end), Direction::Descending) => key > &**end,
    }
}
