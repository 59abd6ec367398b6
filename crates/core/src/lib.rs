//! Types that all crates of restante share: timestamps, hashes, blob ids, identities of stores, cursors, error kinds, clocks, topic
//! filters and how settings are written.
//!
//! This crate does no I/O, uses no async runtime and imports no other crate of the project.

mod blob;
mod bloom;
mod clock;
mod cursor;
mod error;
mod hash;
mod identity;
pub mod settings;
mod timestamp;

pub use blob::{BlobId, ParseBlobIdError};
pub use bloom::{Bloom, ParseBloomError, TopicBits};
pub use clock::{Clock, ManualClock, SystemClock};
pub use cursor::{Cursor, Key};
pub use error::ErrorKind;
pub use hash::{MessageHash, ParseHashError};
pub use identity::{Identity, ParseIdentityError};
pub use timestamp::{NANOS_PER_SECOND, Timestamp};
