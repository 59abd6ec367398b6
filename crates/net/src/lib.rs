//! What all listeners share: limits on connections, on slow and on idle clients, a graceful stop, and request rates; TLS, also
//! for connections to other servers; clients behind a proxy; and the DNS.
//!
//! A front or a door creates a [`Listener`] and passes it a handler. The listener accepts, applies the limits, and runs the
//! handler with a [`Connection`] in its own task; when it is stopped, it lets handlers finish and cuts off those that take too
//! long.

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
