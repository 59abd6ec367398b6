//! An email that is in Junk, or has just left it. Comparing an email with its record shows the moves that a content filter learns from.

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The number of the kind.
pub const KIND: Kind = Kind(22);

/// The id of the email. There is one record for each.
pub const EMAIL: Property = Property(1);
/// The mailbox that it is in, which had the role junk.
pub const MAILBOX: Property = Property(2);
/// What the filter has yet to learn: 1 that it is junk, 2 that it is not. None when there is nothing to learn.
pub const LESSON: Property = Property(3);
/// How often the filter has failed on it; none for 0.
pub const ATTEMPTS: Property = Property(4);

/// The record of an email.
pub const BY_EMAIL: Index = Index(1);
/// The records that have something to learn.
pub const BY_LESSON: Index = Index(2);

pub(super) fn schema() -> KindSchema {
    KindSchema::new(KIND, "learned")
        .property(EMAIL, "email")
        .property(MAILBOX, "mailbox")
        .property(LESSON, "lesson")
        .property(ATTEMPTS, "attempts")
        .index(IndexSchema::ordered(BY_EMAIL, "email", &[EMAIL]))
        .index(IndexSchema::ordered(BY_LESSON, "lesson", &[LESSON]))
}
