//! How much an account has sent lately: one record, which the limits on sending are kept by.

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The number of the kind.
pub const KIND: Kind = Kind(17);

/// When it was written last, in seconds since 1970.
pub const UPDATED: Property = Property(1);

/// Finds the record: its only entry.
pub const ALL: Index = Index(1);

pub(super) fn schema() -> KindSchema {
    KindSchema::new(KIND, "sent").property(UPDATED, "updated").index(IndexSchema::ordered(
        ALL,
        "all",
        &[UPDATED],
    ))
}
