use crate::{MessageHash, Timestamp};

/// A position in the archive's total order: timestamp first, then message hash, both ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Compared first.
    pub timestamp: Timestamp,
    /// Decides between equal timestamps.
    pub message_hash: MessageHash,
}

/// Where a page begins; the message at the cursor is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cursor {
    /// A position in the order. No message needs to be there, so it survives retention.
    At(Key),
    /// The message with this hash, as in Store v3 and REST. It must be archived.
    Message(MessageHash),
}
