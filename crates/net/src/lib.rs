//! What all listeners share: limits on connections, slow and idle clients, a graceful stop, and rates of requests; TLS, also for
//! connections to other servers; clients behind a proxy; and the DNS.
//!
//! A front or a door makes a [`Listener`] and gives it a handler. The listener accepts, applies the limits, and runs the handler
//! with a [`Connection`] in a task of its own; when it is stopped, it lets handlers finish and cuts what takes too long.

mod activity;
mod connections;
pub mod dns;
mod listener;
mod log_throttle;
mod metrics;
mod pace;
pub mod proxy;
mod public;
mod rates;
mod socket;
pub mod tls;

pub use activity::{Activity, InFlight, SharedMemory};
pub use connections::Source;
pub use listener::{Connection, Limits, Listener, StartTls, Stopping, Stream};
pub use log_throttle::LogThrottle;
pub use metrics::{ListenerMetrics, NetMetrics};
pub use public::is_public;
pub use rates::{Buckets, ParseRateError, Rate};
