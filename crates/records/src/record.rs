use bytes::Bytes;
use restante_core::{Kind, RecordId, Revision};

use crate::{Body, RESTORE_JUMP};

/// A property of a kind of records. The schema names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Property(pub u8);

/// The longest text that a property has. The caller must hash or cut longer ones.
pub const TEXT_BYTES_MAX: usize = 128;

/// The most ids that one [`Get`] takes.
pub const GET_RECORDS_MAX: usize = 4_096;

/// A value of a property. Numbers sort before texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// A number: an id, a time, a set of bits.
    Number(u64),
    /// Bytes, at most [`TEXT_BYTES_MAX`], compared bytewise.
    Text(Bytes),
    /// In commits only: the id of the n-th create of the commit, counted from 0. Stored as a number.
    Created(u16),
    /// In commits only: the revision of the commit. Stored as a number.
    Revision,
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<RecordId> for Value {
    fn from(id: RecordId) -> Self {
        Self::Number(id.0)
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Bytes::from_static(text.as_bytes()))
    }
}

impl From<Bytes> for Value {
    fn from(text: Bytes) -> Self {
        Self::Text(text)
    }
}

/// The properties of a record: a set of (property, value) pairs, so one property may have several values or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Properties(Vec<(Property, Value)>);

impl Properties {
    /// Adds a value; does nothing if the value is there already.
    #[must_use]
    pub fn with(mut self, property: Property, value: impl Into<Value>) -> Self {
        self.add(property, value.into());
        self
    }

    /// Adds a value, if it is not there already.
    pub fn add(&mut self, property: Property, value: Value) {
        let pair = (property, value);
        if let Err(place) = self.0.binary_search(&pair) {
            self.0.insert(place, pair);
        }
    }

    /// Removes a value, if it is there.
    pub fn remove(&mut self, property: Property, value: &Value) {
        self.0.retain(|(known, there)| *known != property || there != value);
    }

    /// From ascending pairs without duplicates.
    pub(crate) fn of_ascending(pairs: Vec<(Property, Value)>) -> Self {
        debug_assert!(pairs.is_sorted_by(|a, b| a < b), "each pair is above the one before it");
        Self(pairs)
    }

    /// The values of a property, ascending.
    pub fn values(&self, property: Property) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |(known, _)| *known == property).map(|(_, value)| value)
    }

    /// All pairs, ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(Property, Value)> {
        self.0.iter()
    }

    /// The same with the numbers of some properties raised by [`crate::RESTORE_JUMP`] for each of this many restores.
    pub(crate) fn raised(&self, counters: &[Property], restores: u64) -> Self {
        let raise = restores.saturating_mul(RESTORE_JUMP);
        let raised = |(property, value): &(Property, Value)| match value {
            Value::Number(number) if counters.contains(property) => {
                (*property, Value::Number(number.saturating_add(raise)))
            }
            _ => (*property, value.clone()),
        };
        self.0.iter().map(raised).collect()
    }

    /// Whether all values are known: none stands for an id or a revision that is assigned only when the commit is written.
    pub(crate) fn are_resolved(&self) -> bool {
        !self.0.iter().any(|(_, value)| matches!(value, Value::Created(_) | Value::Revision))
    }

    /// The same with the commit's ids and its revision filled in; `None` when `id` has no id for a create.
    pub(crate) fn resolved(&self, id: impl Fn(u16) -> Option<RecordId>, revision: Revision) -> Option<Self> {
        let mut resolved = Self::default();
        for (property, value) in &self.0 {
            let value = match value {
                Value::Created(n) => Value::Number(id(*n)?.0),
                Value::Revision => Value::Number(revision.0),
                other => other.clone(),
            };
            resolved.add(*property, value);
        }
        Some(resolved)
    }
}

impl FromIterator<(Property, Value)> for Properties {
    fn from_iter<T: IntoIterator<Item = (Property, Value)>>(pairs: T) -> Self {
        let mut properties = Self(pairs.into_iter().collect());
        properties.0.sort_unstable();
        properties.0.dedup();
        properties
    }
}

/// A record as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its kind.
    pub kind: Kind,
    /// Its id.
    pub id: RecordId,
    /// The revision that last changed it.
    pub revision: Revision,
    /// The revision that created it.
    pub created: Revision,
    /// Its content; empty when it was not requested.
    pub body: Body,
    /// Values that change often, and that the record is found by.
    pub properties: Properties,
}

/// Which records to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    /// Their kind.
    pub kind: Kind,
    /// Their ids, at most [`GET_RECORDS_MAX`].
    pub ids: Vec<RecordId>,
    /// Whether to read their bodies.
    pub with_body: bool,
}

impl Get {
    /// Whole records.
    pub fn whole(kind: Kind, ids: Vec<RecordId>) -> Self {
        Self { kind, ids, with_body: true }
    }

    /// Records without their bodies.
    pub fn small(kind: Kind, ids: Vec<RecordId>) -> Self {
        Self { kind, ids, with_body: false }
    }
}
