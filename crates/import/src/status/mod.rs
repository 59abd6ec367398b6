//! The archive of a Status mailserver: envelopes of Whisper and Waku 1, in the order of time and hash.

mod envelope;
pub(crate) mod leveldb;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;

pub(crate) use envelope::message_of;
