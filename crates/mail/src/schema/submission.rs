//! A submission, RFC 8621 §7: an email that was submitted for sending. Its recipients and their delivery status are in the body.

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The number of the kind.
pub const KIND: Kind = Kind(7);

/// The id of the email.
pub const EMAIL: Property = Property(1);
/// The id of its thread.
pub const THREAD: Property = Property(2);
/// The id of the identity.
pub const IDENTITY: Property = Property(3);
/// When it is released, in seconds since 1970.
pub const SEND_AT: Property = Property(4);
/// Whether it can be canceled: [`PENDING`], [`FINAL`] or [`CANCELED`].
pub const UNDO: Property = Property(5);

/// A value of [`UNDO`].
pub const PENDING: u64 = 1;
/// A value of [`UNDO`].
pub const FINAL: u64 = 2;
/// A value of [`UNDO`].
pub const CANCELED: u64 = 3;

/// All submissions of an account, in the order in which they are sent.
pub const BY_SEND_AT: Index = Index(1);

pub(super) fn schema() -> KindSchema {
    KindSchema::new(KIND, "submission")
        .property(EMAIL, "email")
        .property(THREAD, "thread")
        .property(IDENTITY, "identity")
        .property(SEND_AT, "send_at")
        .property(UNDO, "undo")
        .index(IndexSchema::ordered(BY_SEND_AT, "send_at", &[SEND_AT]))
}
