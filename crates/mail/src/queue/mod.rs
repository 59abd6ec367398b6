//! The queue of outgoing mail: a record for each recipient, in reserved accounts.

mod item;

pub use item::{NewMessage, NewRecipient, Notify, QueuedId, Reply, Return, Source, SourceKind, Transmission};
