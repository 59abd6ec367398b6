//! A message that is kept for the operator, in the reserved account 193: see [`crate::quarantine`]. Its body refers to the message. A message for many
//! recipients has several records, each for some of them.

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The number of the kind.
pub const KIND: Kind = Kind(21);

/// When it was received, in seconds since 1970.
pub const AT: Property = Property(1);
/// The bytes of the message.
pub const SIZE: Property = Property(2);
/// The domain of the envelope sender in lowercase; empty for `<>`. A domain that is too long for a property is `#` and its hash.
pub const DOMAIN: Property = Property(3);
/// Each recipient in lowercase, shortened like the domain.
pub const RECIPIENT: Property = Property(4);
/// A hash of the message, its sender and its recipients: a repeated message finds its record by it.
pub const KEY: Property = Property(5);

/// All of them in the order of time, with their sizes.
pub const BY_AT: Index = Index(1);
/// The messages of a sender's domain.
pub const BY_DOMAIN: Index = Index(2);
/// The messages for a recipient.
pub const BY_RECIPIENT: Index = Index(3);
/// Shows whether a message is already kept. Hashes are random, so the index is scattered.
pub const BY_KEY: Index = Index(4);

pub(super) fn schema() -> KindSchema {
    KindSchema::new(KIND, "quarantined")
        .property(AT, "at")
        .property(SIZE, "size")
        .property(DOMAIN, "domain")
        .property(RECIPIENT, "recipient")
        .property(KEY, "key")
        .index(IndexSchema::ordered(BY_AT, "at", &[AT, SIZE]))
        .index(IndexSchema::ordered(BY_DOMAIN, "domain", &[DOMAIN, AT]))
        .index(IndexSchema::ordered(BY_RECIPIENT, "recipient", &[RECIPIENT, AT]))
        .index(IndexSchema::scattered(BY_KEY, "key", &[KEY]))
}
