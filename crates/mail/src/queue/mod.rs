//! The queue of outgoing mail: a record for each recipient, in reserved accounts.

mod item;
mod view;

pub use item::{NewMessage, NewRecipient, Notify, QueuedId, Reply, Return, Source, SourceKind, Transmission};
pub use view::{LastAttempt, QueuedMessage, QueuedRecipient, QueuedState};
