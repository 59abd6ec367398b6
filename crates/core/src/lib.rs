//! Types that all crates of restante share: timestamps, hashes, ids of accounts, records and blobs, identities of stores,
//! cursors, errors, clocks, gates, topic filters and the notation of settings.
//!
//! This crate does no I/O, uses no async runtime and imports no other crate of the project.

mod blob;
mod bloom;
mod clock;
mod cursor;
mod error;
mod gate;
mod hash;
mod identity;
mod record;
pub mod settings;
mod timestamp;
mod unsynced;

pub use blob::{BlobId, ParseBlobIdError};
pub use bloom::{Bloom, ParseBloomError, TopicBits};
pub use clock::{Clock, ManualClock, SystemClock};
pub use cursor::{Cursor, Key};
pub use error::{Error, ErrorKind};
pub use gate::{Gate, GateKeeper};
pub use hash::{MessageHash, ParseHashError};
pub use identity::{Identity, ParseIdentityError};
pub use record::{AccountId, Kind, RecordId, Revision};
pub use timestamp::{NANOS_PER_SECOND, Timestamp};
pub use unsynced::{UnsyncedBlob, UnsyncedBlobs};
