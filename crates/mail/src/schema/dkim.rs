//! A key that signs mail of a domain (RFC 6376), in the directory's reserved account of that domain.

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The number of the kind.
pub const KIND: Kind = Kind(14);

/// A hash of the domain in the directory's form; the domain itself is in the body.
pub const DOMAIN: Property = Property(1);

/// The keys of a domain, the oldest first.
pub const BY_DOMAIN: Index = Index(1);

pub(super) fn schema() -> KindSchema {
    KindSchema::new(KIND, "dkim").property(DOMAIN, "domain").index(IndexSchema::ordered(
        BY_DOMAIN,
        "domain",
        &[DOMAIN],
    ))
}
