//! Requests and responses of the request-response protocols: one request on a stream, one response, each with a length prefix.
//!
//! Messages in them stay encoded: nothing here decodes a payload.

pub mod filter;
pub mod light_push;
pub mod metadata;
pub mod peer_exchange;
pub mod store;

use prost::{Message, encoding};

/// The most bytes of a length prefix.
pub const FRAME_HEADER_BYTES_MAX: usize = 10;

/// Encodes a message with its length prefix.
pub fn frame(message: &impl Message) -> Vec<u8> {
    message.encode_length_delimited_to_vec()
}

/// The encoded length of a field of bytes, with its key and length.
pub(crate) fn field_len(number: u32, bytes: &[u8]) -> usize {
    encoding::key_len(number) + encoding::encoded_len_varint(bytes.len() as u64) + bytes.len()
}

#[cfg(test)]
mod tests;
