//! How much an account has sent recently: one record, by which the limits on sending are enforced.

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The number of the kind.
pub const KIND: Kind = Kind(17);

/// When it was last written, in seconds since 1970.
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
