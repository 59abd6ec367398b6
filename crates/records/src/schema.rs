use crate::{Error, Kind, Property};

/// An index of a kind of records. The schema names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Index(pub u8);

/// The order in which an index keeps its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexOrder {
    /// By the values of its parts: supports ranges.
    Ordered,
    /// By the age of the records first: for random values such as hashes. It can be queried only with values for all its parts.
    /// The cost of a write does not depend on how many records there are, whereas an ordered index would touch a random page for
    /// each.
    Scattered,
}

/// An index: the properties by whose values records are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSchema {
    /// Its number in the keys of the engines.
    pub index: Index,
    /// Its name, for messages.
    pub name: &'static str,
    /// The properties, in the order of comparison. A record without a value for one of them is not in the index.
    pub parts: Vec<Property>,
    /// Its order.
    pub order: IndexOrder,
}

impl IndexSchema {
    /// An index that supports ranges.
    pub fn ordered(index: Index, name: &'static str, parts: &[Property]) -> Self {
        Self { index, name, parts: parts.to_vec(), order: IndexOrder::Ordered }
    }

    /// An index for random values.
    pub fn scattered(index: Index, name: &'static str, parts: &[Property]) -> Self {
        Self { index, name, parts: parts.to_vec(), order: IndexOrder::Scattered }
    }
}

/// A kind of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindSchema {
    /// Its number in the keys of the engines.
    pub kind: Kind,
    /// Its name, for messages.
    pub name: &'static str,
    /// Its properties and their names.
    pub properties: Vec<(Property, &'static str)>,
    /// The properties that contain numbers given to clients, see [`KindSchema::counter`].
    pub counters: Vec<Property>,
    /// Its indexes.
    pub indexes: Vec<IndexSchema>,
}

impl KindSchema {
    /// A kind without properties.
    pub fn new(kind: Kind, name: &'static str) -> Self {
        Self { kind, name, properties: Vec::new(), counters: Vec::new(), indexes: Vec::new() }
    }

    /// Adds a property.
    #[must_use]
    pub fn property(mut self, property: Property, name: &'static str) -> Self {
        self.properties.push((property, name));
        self
    }

    /// Adds a property whose numbers are given to clients and must not be assigned again, such as the UIDs of IMAP. They are
    /// [`crate::RESTORE_JUMP`] higher after a restore. No index may contain it.
    #[must_use]
    pub fn counter(mut self, property: Property, name: &'static str) -> Self {
        self.counters.push(property);
        self.property(property, name)
    }

    /// Adds an index.
    #[must_use]
    pub fn index(mut self, index: IndexSchema) -> Self {
        self.indexes.push(index);
        self
    }

    /// The index with this number.
    pub fn find_index(&self, index: Index) -> Option<&IndexSchema> {
        self.indexes.iter().find(|known| known.index == index)
    }
}

/// The kinds of records that a store has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    kinds: Vec<KindSchema>,
}

impl Schema {
    /// A schema of these kinds.
    ///
    /// # Errors
    /// `Invalid` when a number is used twice, or an index has no parts, a counter, or a property that its kind lacks.
    pub fn new(kinds: Vec<KindSchema>) -> Result<Self, Error> {
        for (place, kind) in kinds.iter().enumerate() {
            let is_twice = kinds.iter().skip(place + 1).any(|other| other.kind == kind.kind);
            if is_twice {
                return Err(wrong(kind, "its number belongs to two kinds"));
            }
            check_kind(kind)?;
        }
        Ok(Self { kinds })
    }

    /// The kinds.
    pub fn kinds(&self) -> &[KindSchema] {
        &self.kinds
    }

    /// The kind with this number.
    ///
    /// # Errors
    /// `Invalid` when it does not exist.
    pub fn kind(&self, kind: Kind) -> Result<&KindSchema, Error> {
        let found = self.kinds.iter().find(|known| known.kind == kind);
        found.ok_or_else(|| Error::invalid(format!("there is no kind of records with the number {}", kind.0)))
    }
}

fn check_kind(kind: &KindSchema) -> Result<(), Error> {
    for (place, (property, name)) in kind.properties.iter().enumerate() {
        if kind.properties.iter().skip(place + 1).any(|(other, _)| other == property) {
            return Err(wrong(kind, &format!("the number of its property {name} belongs to two")));
        }
    }
    for (place, index) in kind.indexes.iter().enumerate() {
        if kind.indexes.iter().skip(place + 1).any(|other| other.index == index.index) {
            return Err(wrong(kind, &format!("the number of its index {} belongs to two", index.name)));
        }
        let is_known = |part: &Property| kind.properties.iter().any(|(property, _)| property == part);
        if index.parts.iter().any(|part| kind.counters.contains(part)) {
            return Err(wrong(kind, &format!("its index {} has a counter", index.name)));
        }
        if index.parts.is_empty() || !index.parts.iter().all(is_known) {
            return Err(wrong(
                kind,
                &format!("its index {} has no parts, or one that is no property", index.name),
            ));
        }
    }
    Ok(())
}

fn wrong(kind: &KindSchema, why: &str) -> Error {
    Error::invalid(format!("the schema of kind {} is wrong: {why}", kind.name))
}
