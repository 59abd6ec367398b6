//! A sender that got a vacation reply recently, and does not get another one yet.

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The number of the kind.
pub const KIND: Kind = Kind(19);

/// The first 16 bytes of the SHA-256 of the sender's address in lowercase.
pub const SENDER: Property = Property(1);
/// When the reply was queued, in seconds since 1970.
pub const AT: Property = Property(2);

/// The last reply to a sender.
pub const BY_SENDER: Index = Index(1);
/// All of them, the oldest first.
pub const BY_AT: Index = Index(2);

pub(super) fn schema() -> KindSchema {
    KindSchema::new(KIND, "answered")
        .property(SENDER, "sender")
        .property(AT, "at")
        .index(IndexSchema::ordered(BY_SENDER, "sender", &[SENDER, AT]))
        .index(IndexSchema::ordered(BY_AT, "at", &[AT]))
}
