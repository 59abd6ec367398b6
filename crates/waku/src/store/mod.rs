//! Store v3, `13/WAKU2-STORE`: [`StoreService`] answers peers from the archive, [`StoreClient`] asks them.

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

/// All is well.
pub(crate) const OK: u32 = 200;

/// The peer asks more often than it may.
pub(crate) const TOO_MANY_REQUESTS: u32 = 429;

/// The request id in an answer to a request that was not read. Clients take it for their own.
pub(crate) const NO_REQUEST_ID: &str = "N/A";

/// A message hash as it stands on the wire.
pub(crate) fn hash_of(bytes: &Bytes) -> Option<MessageHash> {
    bytes[..].try_into().ok().map(MessageHash)
}

/// Feeds bytes to the server's and the client's parser, and checks that what they let through is bounded.
#[doc(hidden)]
pub fn fuzz_store_rpc(bytes: &[u8]) {
    server::fuzz_request(bytes);
    client::fuzz_answer(bytes);
}
