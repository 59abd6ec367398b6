//! Requests and responses of the protocols that peers ask each other by: one request on a stream, one response, each
//! behind its length.
//!
//! Messages inside of them are kept as the bytes that stood on the wire: nothing here decodes a payload.

pub mod filter;
pub mod light_push;
pub mod metadata;
pub mod peer_exchange;
pub mod store;

use prost::{Message, encoding};

/// The bytes that a length before a frame takes at most.
pub const FRAME_HEADER_BYTES_MAX: usize = 10;

/// A message behind its length, ready for a stream.
pub fn frame(message: &impl Message) -> Vec<u8> {
    message.encode_length_delimited_to_vec()
}

/// The bytes that a field of bytes takes, its key and its length among them.
pub(crate) fn field_len(number: u32, bytes: &[u8]) -> usize {
    encoding::key_len(number) + encoding::encoded_len_varint(bytes.len() as u64) + bytes.len()
}

#[cfg(test)]
mod tests;
