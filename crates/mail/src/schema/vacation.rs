//! The vacation response of an account, RFC 8621 §8: one record.

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The number of the kind.
pub const KIND: Kind = Kind(8);

/// 1 when it is enabled, else 0.
pub const ENABLED: Property = Property(1);

/// Finds the record: its only entry.
pub const ALL: Index = Index(1);

pub(super) fn schema() -> KindSchema {
    KindSchema::new(KIND, "vacation").property(ENABLED, "enabled").index(IndexSchema::ordered(
        ALL,
        "all",
        &[ENABLED],
    ))
}
