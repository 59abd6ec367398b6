//! DMARC results of messages of one day, in the reserved account 194: see [`crate::dmarc`]. A record is a row of an aggregate
//! report (RFC 7489 §7.2) with the number of its messages, or a note that a domain's report of a day was sent or that none will be.

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The number of the kind.
pub const KIND: Kind = Kind(20);

/// The day in UTC: days since 1970.
pub const DAY: Property = Property(1);
/// The domain whose DMARC record was applied. Empty for the messages beyond the rows of a day that are counted separately.
pub const DOMAIN: Property = Property(2);
/// A hash of the day and of the row.
pub const KEY: Property = Property(3);
/// The messages of the row.
pub const COUNT: Property = Property(4);
/// 1 when they passed.
pub const PASSED: Property = Property(5);
/// In a note about a report: its day.
pub const REPORTED_DAY: Property = Property(6);
/// In a note about a report: its domain.
pub const REPORTED_DOMAIN: Property = Property(7);

/// The rows of a day, and of a domain in it.
pub const BY_DAY: Index = Index(1);
/// The record of a row. Hashes are random, so the index is scattered.
pub const BY_KEY: Index = Index(2);
/// The notes about reports.
pub const BY_REPORTED: Index = Index(3);

pub(super) fn schema() -> KindSchema {
    KindSchema::new(KIND, "dmarc_seen")
        .property(DAY, "day")
        .property(DOMAIN, "domain")
        .property(KEY, "key")
        .property(COUNT, "count")
        .property(PASSED, "passed")
        .property(REPORTED_DAY, "reported_day")
        .property(REPORTED_DOMAIN, "reported_domain")
        .index(IndexSchema::ordered(BY_DAY, "day", &[DAY, DOMAIN]))
        .index(IndexSchema::scattered(BY_KEY, "key", &[KEY]))
        .index(IndexSchema::ordered(BY_REPORTED, "reported", &[REPORTED_DAY, REPORTED_DOMAIN]))
}
