//! Store v3, `13/WAKU2-STORE`: [`StoreService`] answers queries of peers from the archive, [`StoreClient`] queries peers.

mod client;
mod server;

use bytes::Bytes;
use restante_core::MessageHash;

pub use client::{StoreClient, StoreClientError};
pub use server::StoreService;
pub(crate) use server::{PAGE_BYTES_MAX, cut};

/// `13/WAKU2-STORE` leaves the page size to the server; these are nwaku's and go-waku's.
pub(crate) const PAGE_ROWS_DEFAULT: u64 = 20;
pub(crate) const PAGE_ROWS_MAX: u64 = 100;

/// Success.
pub(crate) const OK: u32 = 200;

/// The peer exceeds its rate limit.
pub(crate) const TOO_MANY_REQUESTS: u32 = 429;

/// The request id in an answer to a request that was not decoded. Clients accept it as their own.
pub(crate) const NO_REQUEST_ID: &str = "N/A";

/// Decodes a message hash.
pub(crate) fn hash_of(bytes: &Bytes) -> Option<MessageHash> {
    bytes[..].try_into().ok().map(MessageHash)
}

/// Feeds bytes to the server's and the client's parser, and checks that the results are bounded.
#[doc(hidden)]
pub fn fuzz_store_rpc(bytes: &[u8]) {
    server::fuzz_request(bytes);
    client::fuzz_answer(bytes);
}
