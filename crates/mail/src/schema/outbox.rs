//! What the queue has to know of a submission. It is separate from the submission, so that queueing changes no state that clients
//! see, and destroying the submission stops nothing (RFC 8621 §7.5).

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The number of the kind.
pub const KIND: Kind = Kind(18);

/// The id of the submission, which may be gone.
pub const SUBMISSION: Property = Property(1);
/// [`UNQUEUED`] or [`CANCELED`].
pub const STATE: Property = Property(2);
/// When the submission is sent, in seconds since 1970.
pub const SEND_AT: Property = Property(3);

/// A value of [`STATE`]: the message is not in the queue yet. The body has what the queue needs, and refers to the message.
pub const UNQUEUED: u64 = 1;
/// A value of [`STATE`]: the submission was canceled and then destroyed. What the queue still has of it is not sent.
pub const CANCELED: u64 = 2;

/// The records of a submission.
pub const BY_SUBMISSION: Index = Index(1);
/// The messages to queue, and the canceled submissions, each in the order of time.
pub const BY_STATE: Index = Index(2);

pub(super) fn schema() -> KindSchema {
    KindSchema::new(KIND, "outbox")
        .property(SUBMISSION, "submission")
        .property(STATE, "state")
        .property(SEND_AT, "send_at")
        .index(IndexSchema::ordered(BY_SUBMISSION, "submission", &[SUBMISSION]))
        .index(IndexSchema::ordered(BY_STATE, "state", &[STATE, SEND_AT]))
}
