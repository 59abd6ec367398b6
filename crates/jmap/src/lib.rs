//! The JMAP door: RFC 8620 (core), RFC 8621 (mail), RFC 8887 (WebSocket), RFC 9404 (blobs) and RFC 9425 (quotas).
//!
//! A request is read as strict JSON, its calls are run one after the other, and each writes its response into one buffer. Methods are
//! in `methods`, what they share is in `core`, the routes in `http`, and push notifications of changes in `push`.

mod config;
mod connections;
mod core;
mod door;
mod http;
mod methods;
mod metrics;
mod parts;
mod push;
mod slots;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use config::{JmapConfig, PushConfig, SubmissionConfig};
pub use connections::{Connections, OpenConnections};
pub use door::JmapDoor;
pub use http::url_token;
pub use metrics::JmapMetrics;
pub use parts::JmapParts;
pub use push::subscriptions::erase_push_subscriptions;

/// Reads any bytes as a request; for a fuzz target.
#[doc(hidden)]
pub fn fuzz_request(bytes: &[u8]) {
    core::fuzz::request(bytes);
}

/// Reads any bytes as an object and a patch, and applies the patch; for a fuzz target.
#[doc(hidden)]
pub fn fuzz_patch(bytes: &[u8]) {
    core::fuzz::patch(bytes);
}

/// Reads any bytes as a filter and a sort of Email/query, and tests an email with them; for a fuzz target.
#[doc(hidden)]
pub fn fuzz_filter(bytes: &[u8]) {
    methods::email::query::fuzz::filter(bytes);
}
