//! The archive of a Status mailserver: whisper's and Waku 1's envelopes, one after the other by time and hash.

mod envelope;
pub(crate) mod leveldb;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;

pub(crate) use envelope::message_of;
