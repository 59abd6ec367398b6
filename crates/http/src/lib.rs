//! What all HTTP listeners share, whatever their routes do.
//!
//! [`serve`] runs a router on a listener of `restante-net`, over HTTP/1.1 and HTTP/2. [`Front::router`] makes that router from
//! [`Route`]s: it counts requests, refuses pages of other sites, and calls a [`Guard`] for a route that is not public. This crate
//! also helps handlers to read bodies within limits, answer within a [`MemoryBudget`], refuse, and serve WebSockets and event
//! streams.

mod access;
pub mod body;
pub mod event_stream;
mod guard;
mod memory;
mod metrics;
mod operators;
mod origin;
pub mod path;
mod permits;
mod plain;
pub mod reply;
mod routes;
mod server;
mod sites;
pub mod websocket;

pub use access::AccessEnded;
pub use guard::{Admission, Caller, Credentials, Denied, Guard};
pub use memory::{MemoryBudget, MemoryPermit};
pub use metrics::HttpMetrics;
pub use operators::{OperatorGuard, TOKEN_CHARS_MAX, TOKEN_CHARS_MIN, Token, TokenError};
pub use origin::{HostName, PageOrigin};
pub use permits::Permits;
pub use plain::describe_json_error;
pub use reply::{LogReason, Refusal, RefusalFormat};
pub use routes::{Audience, Front, Route, describe};
pub use server::{Client, ClientStream, ServerLimits, serve};
pub use sites::Sites;
